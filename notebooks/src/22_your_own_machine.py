# ---
# jupyter:
#   labkit:
#     sections: ["19.7", "19.8.6", "D-next"]
#     needs: ["chapters 15, 18, 19 and 21; for a cluster 10 and 13"]
#     minutes: 70
# ---

# %% [markdown]
# # Your own machine
#
# *Seventy minutes with ours, and then again with yours. You need chapters 15, 18, 19 and 21. No GPU is needed.*
#
# In the last chapter you planned a model of your own. But a plan knows neither the script that trains the model nor the machine, and a step can lose most of its time to what a plan leaves out.
#
# We begin with a small script for two ranks. In each of its steps a rank computes nothing for at least 48 ms, and the picture below shows why. Each rank has a thick row for what it computes, hatched where it computes nothing, and thin rows for its reading and its messages. What stands under the longest hatched stretches?

# %%
import tempfile
from functools import partial
from pathlib import Path

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.profiling.recording import record
from labkit.your_own import machine_check as check

lab.begin("en", deadline_s=60)

# %%
script = Path(tempfile.mkdtemp()) / "train.py"
_ = script.write_text("""
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.006)  # waits for a disk
        return super().__getitem__(index)

dist.init_process_group()
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = Slow(torch.randn(160, 256))
for (x,) in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
""")

# %%
found = record(script, ranks=2, show=False)
found

# %% [markdown]
# Under the long hatched stretches stands the reading, in brown: while a rank reads its next batch, it has nothing to compute. The upper half was recorded. The lower half simulates what labkit's advice would bring.
#
# **When you are done** you can find what a script of yours waits for, prove that a change helps, fit a plan to your machine, and say what a slower network would cost.

# %% [markdown] sections="19.8.6"
# ## A script
#
# This one reads a batch, trains on it, and only then reads the next. `record` starts it by torchrun, changes nothing in the file, and records ten steps of each rank; the first two, the warm-up, are left out. In a terminal it is `python -m labkit record train.py --using torchrun --ranks 2`.
#
# **With yours**: write `script = Path("train.py")`, and arguments as in `record(script, "--epochs", "1")`. Let it do few steps.
#
# A batch has eight samples and each takes 6 ms to read, all of it a wait for a disk, so a batch takes 48 ms. The advice lets one reader work ahead, but one reader still needs 48 ms for a batch, so no simulated step is shorter.
#
# ### Four readers
#
# So let us take four, as worker processes of the `DataLoader` ([chapter 15](15_profiling_and_scaling.ipynb)). Each reads a batch of its own, all at the same time, so on average a batch is ready every 12 ms. While they read, the rank does the rest of its step: the recorded step without its wait for data, here in ms:

# %%
rest_us = found.step_us * (1 - found.advice.share("input"))
round(rest_us / 1000, 1)

# %% [markdown]
# If the rest stays what it was, then the longer of the two sets the pace: the rest, or the readers' 12 ms. What share of the old step do four readers save?

# %%
gain = lab.guess("share of the step that four readers save", between=(0, 1))

# %% [markdown]
# Only a run proves that a change helps, so we record a second script, with four readers. By default each reads two batches ahead, together eight of our ten, so we set `prefetch_factor=1`. If the gain is small, record both again, and compare it with the difference between two recordings of one script. (With yours, change a copy by hand, and write `cured = Path("cured.py")`.)

# %%
readers = "batch_size=8, num_workers=4, prefetch_factor=1"
cured = script.with_name("cured.py")
_ = cured.write_text(script.read_text().replace("batch_size=8", readers))

# %%
again = record(cured, ranks=2, show=False)
gain.score(1 - again.step_us / found.step_us)

# %% [markdown]
# The last row of the table is what we expected of the new step: the longer of the rest and a quarter of the recorded wait for data.

# %%
steps_us = {"as it was": found.step_us, "four readers": again.step_us}
quarter_us = found.step_us * found.advice.share("input") / 4
steps_us["expected of four"] = max(quarter_us, rest_us)
lab.table({"script": name, "took_us": took_us} for name, took_us in steps_us.items())

# %% [markdown]
# If the two lower rows are close, the longer of the two did set the pace. Often the run takes longer. Then the rest has grown, because two ranks and eight readers now share your cores, or batches come in bursts, so that the rest sometimes waits although there are enough of them.
#
# ### What is in the way now?
#
# If yours was longer, the new recording may show why. Brown, in the thick row this time, is a rank's wait for a batch, and its numbers count that as busy; the first picture's counted it as idle. The readers aren't drawn. What stands under the hatched stretches now?

# %%
lab.show(again.advice.timeline)

# %% [markdown]
# A hatched stretch above a message often waits for the other rank, because an all-reduce ends only when both have brought their gradients. Bursts would be some steps close together and then a wait, because the four readers began together.
#
# The table has a step of the average rank before and after; "exposed communication" is messages that no computing hides. Add up all of "after" but the wait for data. Is it more than 12 ms?

# %%
parts = {"input": "waiting for data", "waiting": "waiting for other ranks"}
parts |= {"compute": "computing", "comm": "exposed communication"}
parts["unrecorded"] = "nothing recorded"
lab.table(
    {
        "part": name,
        "before_us": found.step_us * found.advice.share(part),
        "after_us": again.step_us * again.advice.share(part),
    }
    for part, name in parts.items()
)

# %% [markdown]
# - **Below 12 ms** reading is still the longer of the two, so more readers help, until the rest is longer.
# - **Above 12 ms** more readers change nothing, because batches are ready in time. Mend the largest part of the rest. If that is computing, and it has grown, readers that decode may be taking its cores.

# %% [markdown]
# ## A machine
#
# *A good place to rest.*
#
# So far our plans took the speeds of GPUs; now `speeds(2)` measures what each of two ranks gets here while both are busy: for matrix products, and to gather a layer from its shards, which takes some time to begin.

# %%
here = planner.speeds(2)
begin_us, gather_gb = here.links["all_gather"]
found_here = {"products in fp32, TFLOP/s": here.tflops}
found_here |= {"to begin a gather_us": begin_us, "gathering, GB/s": gather_gb}
lab.table([found_here])

# %% [markdown]
# With these speeds we can plan a step: a stack of torch's own layers, in shards on two ranks, with half of the sequences on each (`split=True`). (With yours, take `small` and `next_token` from [chapter 21](21_your_own_model.ipynb).) Look for the longest part of the planned step.


# %%
def mine(layers=4, sequences=4):
    sizes = {"dim_feedforward": 512, "dropout": 0.0, "batch_first": True}
    layer = torch.nn.TransformerEncoderLayer(128, 4, **sizes)
    net = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return net, torch.randn(sequences, 64, 128)


# %%
step = your_own.Step(make=mine, engine="fsdp", ranks=2, split=True)
plan = step.plan(gpu=here)
lab.show(planner.time_bars({"shards": plan}))

# %% [markdown]
# We can check the messages by hand. A rank has half of each layer, so to gather one it must begin and then receive the other half:

# %%
half_bytes = 4 * sum(each.numel() for each in mine(layers=1)[0].parameters()) / 2
half_us = half_bytes / (gather_gb * 1e3)
lab.table(
    [{"begin_us": begin_us, "receive_us": half_us, "both_us": begin_us + half_us}]
)

# %% [markdown]
# The four layers are gathered twice each, for the forward and for the backward, which is eight times "both". The rest of the messages is four scatters of gradients. Where it takes longer to begin than to receive, fewer and larger layers would help, and a faster link hardly.
#
# A program reaches only a share of a speed, and the shares in our plan were fitted to runs on GPUs. So we run ten real steps on this CPU (`devices="cpu"`) and keep the fastest, because it was disturbed least. How many times as long as the planned step is it?

# %%
near = lab.guess("measured step over planned step", between=(0.2, 5))

# %%
plain = step.but(devices="cpu", timed=10)
run = plain.run()
fastest_us = min(run[0]["step_us"])
near.score(fastest_us / plan.time().step_us)

# %% [markdown]
# The clock can tell only the update from all else, so the lower bar has two parts. Compare the whole first, and then the update, in green.

# %%
took = your_own.fastest(run)
lab.show(planner.clock_bars({"planned": plan}, {"measured": took}))

# %% [markdown]
# ### Where did the time go?
#
# The bars show by how much the plan is off, but not where, and so the same run also recorded one step. Recording takes time too, so the second table has the sum of its parts beside the clock's step. How much did recording add?

# %%
names = parts | {"optimizer": "the update"}
both_us = your_own.by_parts(plan, run.timeline())
lab.table(
    {"part": names[part], "planned_us": planned_us, "recorded_us": recorded_us}
    for part, (planned_us, recorded_us) in both_us.items()
)

# %%
sum_us = sum(recorded_us for _, recorded_us in both_us.values())
lab.table([{"recorded_us": sum_us, "measured_us": fastest_us}])

# %% [markdown]
# If it added much, judge the update by the bars, where nothing was recorded. Two parts are zero in the plan: the wait for the other rank, and the time in which nothing was recorded, mostly Python and copies, we believe. Of the update it counts the bytes that Adam reads and writes, but not the Python for each tensor. And since too long a part makes up for one too short, a plan can come near the clock by errors that cancel.
#
# ### Fit, then plan
#
# But we can time some runs and fit constants to them, as in [chapter 19](19_how_far_to_trust_a_plan.ipynb). Messages, updates and most of the Python come once for each layer, however many sequences it takes. Products and attention come for each sequence as well. So we fit two times:
#
# $$\text{step} = \text{layers} \times \text{time of a layer} + \text{layers} \times \text{sequences} \times \text{time of a sequence}$$
#
# To tell the two apart, our runs differ in both sizes: 2 and 4 layers, 4 and 8 sequences. A fifth, with 6 layers and 12 sequences, is kept for a test. `in_turns` runs one step of each in turn, ten times, so that a busy moment slows all alike, and keeps the fastest of each.

# %%
sizes = [(2, 4), (4, 4), (2, 8), (4, 8), (6, 12)]
steps = [plain.but(make=partial(mine, *each)) for each in sizes]
clock_us = your_own.in_turns(steps)
plan_us = [each.plan(gpu=here).time().step_us for each in steps]

# %% [markdown]
# `lstsq` finds the two times with which the formula comes nearest to the first four clocks. The plan is such a sum as well, so from its four times we get the two that it believed in. In which column are the rows further apart, as a ratio?


# %%
parts_of = torch.tensor([[n, n * s] for n, s in sizes], dtype=torch.float64)


def fitted(times_us):
    four_us = torch.tensor(times_us[:4], dtype=torch.float64)[:, None]
    return torch.linalg.lstsq(parts_of[:4], four_us).solution[:, 0].tolist()


# %%
constants = {"planned": fitted(plan_us), "fitted": fitted(clock_us)}
lab.table(
    {"constants": name, "each layer_us": layer_us, "each sequence_us": sequence_us}
    for name, (layer_us, sequence_us) in constants.items()
)

# %% [markdown]
# Where the rows differ, and the fit holds in the test below, the constants of GPUs and data sheets are not those of your program on your machine. A layer's time now holds the Python and the update, too. So a fitted plan tells you how long a step takes, but no longer where its time goes.
#
# ### Does it hold farther out?
#
# A good fit on its own four runs proves nothing, because its constants were chosen to meet these. So the test is the fifth step, which the fit hasn't seen. How many times as long as the fit says did it take?

# %%
nearer = lab.guess("measured step over fitted step", between=(0.2, 5))

# %%
layer_us, sequence_us = constants["fitted"]
fit_us = [n * layer_us + n * s * sequence_us for n, s in sizes]
nearer.score(clock_us[-1] / fit_us[-1])

# %% [markdown]
# Here are all five, the test in the last row, and how far the plan and the fit are above or below the clock. The second row is the step of the bars. If its clock differs from theirs by more than a tenth, the machine was disturbed: run both again. Then compare the columns of errors, first in the upper four rows, then in the last.

# %%
every = zip(sizes, clock_us, plan_us, fit_us, strict=True)
rows = [
    {"layers": n, "sequences": s, "measured_us": clock}
    | {"plan off": planned / clock - 1, "fit off": fit / clock - 1}
    for (n, s), clock, planned, fit in every
]
lab.table(rows, units={"plan off": "share", "fit off": "share"})

# %% [markdown]
# Which of these is your table? Only its last column counts.
#
# - **All five are off by a tenth at most.** The fit holds this far.
# - **One of the upper four is off by more,** or a constant is below zero. Then don't trust the test. Most likely something else was running: write `timed=20` in the cell `plain = ...`, and choose *Run Selected Cell and All Below*.
# - **Only the test is off.** Then the fit doesn't reach so far.
#
# %% [markdown]
# ### Was a term missing?
#
# If the upper rows are off on a quiet machine too, suppose that a step takes some time by itself, whatever its layers. Our formula has no place for that, so the fit spreads it over the layers. Then 2 layers come out too short, and 4 and more too long.
#
# On such a made-up machine a step takes 24 ms by itself, 15 ms for each layer, and 0.6 ms for each sequence in each layer. The last column is our formula's:
#
# | layers | sequences | took | fitted |
# | --- | --- | --- | --- |
# | 4 | 4 | 94 ms | 98 ms |
# | 2 | 4 | 59 ms | 49 ms |
# | 4 | 8 | 103 ms | 108 ms |
# | 2 | 8 | 64 ms | 54 ms |
# | 6 | 12 | ? | 176 ms |
#
# By hand, what does the fifth step take there?
#
# <details><summary>Answer</summary>
#
# 24 + 6 x 15 + 6 x 12 x 0.6 = 157 ms. The fit says 176 ms, 12 % more.
#
# </details>

# %% [markdown]
# ## Exercise 1. Four runs, then far away
#
# Now find such numbers yourself. `clock(layers, sequences)` gives the milliseconds of a step on a machine that follows the same rule. Say how long a much larger step takes there, of 48 layers and 16 sequences for instance.
#
# - You may time four steps, of 1 to 4 layers and 1 to 8 sequences.
# - The clock errs by up to 1 %, so it matters which four you take.
# - Your answer may be off by a tenth.


# %%
def my_forecast(clock, layers, sequences):
    """Milliseconds of a step that is too large to be tried."""
    ### BEGIN SOLUTION
    tried = [(1, 1), (4, 1), (1, 8), (4, 8)]  # far apart, or the clock's error counts
    parts = torch.tensor([[1.0, n, n * s] for n, s in tried])
    took_ms = torch.tensor([[clock(n, s)] for n, s in tried])
    step, layer, sequence = torch.linalg.lstsq(parts, took_ms).solution[:, 0]
    return step + layer * layers + sequence * layers * sequences
    ### END SOLUTION


# %%
check.forecast(my_forecast)

# %%
check.hint("forecast")

# %% [markdown]
# ## Exercise 2. Few trials
#
# Where no plan can be trusted, you try settings, and it pays to know which can't win.
#
# Take 8 samples of 3 ms each, 24 ms of computing. Of these the backward is two thirds. Recomputation runs the forward twice ([chapter 05](05_precision_and_memory.ipynb)), so it takes a third longer, 32 ms. But say that all 8 samples fit at once with it, and only 4 without. Each microbatch costs something besides: shards are gathered again, say. If that is 5 ms, two microbatches take 24 + 2 x 5 = 34 ms, and one, with recomputation, 32 + 5 = 37 ms. If it is 20 ms, they take 24 + 2 x 20 = 64 and 32 + 20 = 52 ms, and now recomputation wins.
#
# Find the fastest way to take `batch` samples on each rank, 16 in the check. `trial(microbatch, recompute)` runs such a step on real ranks, with a made-up time for computing, and returns its milliseconds, or None where it does not fit.
#
# - You have six trials for ten ways: microbatches of 1, 2, 4, 8 or 16, with `recompute` or without. None counts as a trial.
# - One sample at a time always fits. What fits still fits with a smaller microbatch, or with recomputation.
# - What a microbatch costs besides differs from test to test. Your choice may be 12 % slower than the fastest.


# %%
def my_tuning(trial, batch):
    """(microbatch, recompute) of the fastest that fits."""
    ### BEGIN SOLUTION
    found, microbatch = [], batch
    for recompute in (True, False):  # without it, nothing larger fits
        while (took_ms := trial(microbatch, recompute)) is None:
            microbatch //= 2
        found.append((took_ms, microbatch, recompute))
    return min(found)[1:]
    ### END SOLUTION


# %%
check.tune(my_tuning)

# %%
check.hint("tune")

# %% [markdown]
# ## A cluster
#
# Messages between two machines are slower than inside one, and the processes must find each other. The first we can plan. Take GPT-2 XL on 16 cards of 40 GB in two machines, a sequence on each card, by constants fitted to FSDP. (With yours it is `your_own.Step(make=large).plan(...)`.) The plan warns first:

# %%
cards = {"gpu": "A100 40 GB", "gpus": 16, "batch": 16, "seq": 1024}
program = {"precision": "fp32", "stack": "fsdp-a100"}
two = planner.Plan(model="GPT-2 XL", zero=3, **cards, **program)
lab.table([{"warnings": each} for each in two.warnings()])

# %% [markdown]
# So we ask only how a step depends on the network. Each of a machine's eight network cards has 25 GB/s. With a quarter of that, 6.25 GB/s, how many times as long is a step of the shards?

# %%
starved = lab.guess("step at 6.25 GB/s, over step at 25", between=(1, 5))

# %%
nic = {f"{gb} GB/s": two.but(nic_gb_per_s=gb) for gb in (6.25, 25)}
slow_us, fast_us = [each.time().step_us for each in nic.values()]
starved.score(slow_us / fast_us)

# %% [markdown]
# Trust that it is less than four, but not the digits: messages take four times as long, but computing takes as long as before.
#
# On a much slower network everybody waits for messages, so let us count bytes. GPT-2 XL has 1.56 billion parameters, in fp32 6.2 GB. In a ring of 16 a pass over it sends 6.2 x 15 / 16 = 5.8 GB. In a step copies send two, 2 x 5.8 = 11.6 GB (an all-reduce), and shards three, 3 x 5.8 = 17.4 GB (two gathers and a reduce-scatter). Eight network cards of 1.5 GB/s carry 12 GB/s, and by the plan's constant the program reaches half: 11.6 / 6 = 1.9 s for copies, 17.4 / 6 = 2.9 s for shards. How many times as long as a step of shards is one of copies?

# %%
slowest = lab.guess("step of copies over step of shards, at 1.5 GB/s", between=(0, 2))

# %%
ways = {"shards": two, "copies": two.but(zero=0)}
at = {name: way.but(nic_gb_per_s=1.5).time().step_us for name, way in ways.items()}
slowest.score(at["copies"] / at["shards"])

# %% [markdown]
# Here are both, predicted at seven speeds. Upright lines are networks as they are sold, by their Gbit/s: "25GbE" carries 25 / 8 = 3.125 GB/s. See how steep the curves are on the left and on the right.

# %%
networks = {"25GbE": 3.125, "EDR 100": 12.5, "HDR 200": 25, "NDR 400": 50}
speeds_gb = [1.5, 6.25, 100, *networks.values()]
curves = {
    name: {
        gb: way.but(nic_gb_per_s=gb).time().step_us / 1e6 for gb in sorted(speeds_gb)
    }
    for name, way in ways.items()
}
axes = {"x": "GB/s of a network card", "y": "seconds per step"}
axes |= {"log_x": True, "log_y": True, "at": networks}
lab.curves(predicted=curves, title="A step on two machines, predicted", **axes)

# %% [markdown]
# On the left half the bandwidth takes nearly twice the time, and copies win, because they send two where shards send three. On the right computing hides messages, so a faster network helps little, and copies lose in the plan, because each card updates all the numbers. But there they are closer than a plan can tell, so on the right, too, you should measure.

# %% [markdown]
# ### Let them find each other
#
# Run the same line on both machines, with the address of one of them:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d \
#          --rdzv-id any-name --rdzv-endpoint first-machine:29500 train.py
# ```
#
# Your script needs four lines, a disk that all machines see, and besides them the saving and loading of [chapter 13](13_checkpoint_and_recover.ipynb):
#
# ```python
# torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
# dist.init_process_group()
# loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
# state = torch.load("/shared/last.pt", map_location="cpu")  # if there is one
# ```
#
# Then a rank may die: torchrun starts all processes anew, here up to three times.
#
# **What labkit can't know** is how your network is wired, who else uses it, and which machine is slow. Record your script on each machine by itself to find a slow one, then on both: if messages take much longer than planned, look at the network.

# %% [markdown] sections="19.7"
# ## Key ideas of the course
#
# Here is the course in sixteen sentences, each with a number to remember it by. Which could you explain to a friend?
#
# | idea | a number | chapter |
# | --- | --- | --- |
# | In a ring's all-reduce a rank sends less than twice the buffer, among however many ranks. | 2 x 1023 / 1024 = 1.998 buffers for 1,024 ranks | [02](02_collectives.ipynb) |
# | Data parallelism averages gradients over the ranks, while the backward still runs. | 7 B in bf16: 14 GB of gradients in each step | [03](03_data_parallel.ipynb) |
# | Half the bits are not half the memory: Adam and the master weights stay in fp32. | 2 + 2 + 12 = 16 bytes a parameter, as many as in fp32 | [05](05_precision_and_memory.ipynb) |
# | ZeRO and FSDP shard what copies have in common. | 7 B on eight ranks: 112 / 8 = 14 GB of states in place of 112 | [06](06_zero_deepspeed.ipynb), [07](07_fsdp.ipynb) |
# | A pipeline sends little and waits: the bubble. | 3 / 11 = 27 % idle with 4 stages, 8 microbatches | [08](08_pipeline_parallel.ipynb) |
# | Tensor parallelism sends in every layer. | 4 all-reduces a layer, forward and backward together | [09](09_tensor_parallel.ipynb) |
# | Experts add weights, hardly any computing. | DeepSeek-V3: 8 of 256 experts a token, 37 of 671 billion parameters compute | [10](10_mesh_and_experts.ipynb) |
# | Inside a machine links are fast, between machines slow: place the axes accordingly. | our 7 B model with two axes swapped: a step of thirty seconds instead of seven | [10](10_mesh_and_experts.ipynb) |
# | Hide messages, or send fewer, or smaller ones. But fewer bytes in more messages may be slower. | a step predicted in chapter 20: 71 ms with an eighth of the bytes, 63 with all | [11](11_communication.ipynb), [20](20_case_studies.ipynb) |
# | Past a critical batch, more cards save few steps. | chapter 12's small training: 4 times the batch saved a third of the steps | [12](12_large_batches.ipynb) |
# | Machines fail: save, and start again. | on 16,384 GPUs something failed every three hours | [13](13_checkpoint_and_recover.ipynb) |
# | Most errors are echoes: look for the rank that failed first, or never came. | 64 tracebacks, one guilty rank | [14](14_debugging.ipynb) |
# | Watch what a step waits for, and prove a cure. | this chapter's script: 48 ms to read a batch, 12 at best with four readers | [15](15_profiling_and_scaling.ipynb), this one |
# | Unequal machines get unequal shares. | an H100 three times as fast as the A100 beside it: 3 microbatches to 1 do twice the work of equal shares in the same time | [16](16_unequal_machines_and_serving.ipynb) |
# | Between machines count what crosses. | two machines of two ranks: 1.5 buffers cross in a flat ring, one if it is done in three stages | [17](17_many_machines.ipynb) |
# | Choose a layout together with the program that runs it. | 175 B on 1,536 GPUs: 74 days by one program with ZeRO 3, 23 by another with tensors and stages | [19](19_how_far_to_trust_a_plan.ipynb) |

# %% [markdown] sections="D-next"
# ## Where to go from here
#
# You can read the programs themselves now. Begin with torchtitan, because it uses in little code what chapters 07 to 10 used.
#
# <details><summary>The programs, and where they stand</summary>
#
# | program | what it is | where it stands (late 2026) |
# | --- | --- | --- |
# | [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) | NVIDIA's: this course's way of cutting a transformer's tensors comes from here ([1909.08053](https://arxiv.org/abs/1909.08053)); now pipeline, context and expert parallelism too | maintained; its core is a package, `megatron-core`, of which chapter 09 uses 0.16 |
# | [DeepSpeed](https://github.com/deepspeedai/DeepSpeed) | where ZeRO comes from ([1910.02054](https://arxiv.org/abs/1910.02054)); offload, pipelines, experts | maintained; chapters 06 and 10 use 0.19 |
# | [torchtitan](https://github.com/pytorch/torchtitan) | PyTorch's own: all axes by `DeviceMesh`, `fully_shard` and DTensor, in little code ([2410.06511](https://arxiv.org/abs/2410.06511)) | maintained |
# | [FairScale](https://github.com/facebookresearch/fairscale) | Meta's, where FSDP was first | history: by its own README its FSDP went into PyTorch, and should be taken from there |
# | [Colossal-AI](https://github.com/hpcaitech/ColossalAI) | a collection of all axes, with tensors cut in two and three dimensions as well ([2110.14883](https://arxiv.org/abs/2110.14883)) | its newest release on PyPI, 0.5.0, is of June 2025 |
# | [Alpa](https://github.com/alpa-projects/alpa) | a compiler that finds the layout by itself, in JAX ([2201.12023](https://arxiv.org/abs/2201.12023)) | by its own README not actively maintained; its search lives on in XLA |
# | [picotron](https://github.com/huggingface/picotron), [nanochat](https://github.com/karpathy/nanochat) | small programs, written to be read | not meant for large runs |
#
# </details>

# %% [markdown]
# ## Summary
#
# - You can record a script unchanged, see what its steps wait for, and prove by a second recording that a change helps.
# - You can time runs that differ in the sizes that you want to increase, and fit constants to them, because constants belong to a program and a machine.
# - You test a fit on a larger run, because on its own it proves nothing.
# - You count the bytes that cross a network, and divide them by its speed.
#
# **Words of this page** are all in the [glossary](GLOSSARY.md). **Further reading**: [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
#
# **Next:** your own training. Come back when a step takes longer than planned.
#
# *Sections 19.7, 19.8.6 and D-next of the source material.*

# %%
check.status()
