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
# A plan knows neither the script that trains a model nor the machine. Here is a small script, for two ranks. In each of its steps a rank computes nothing for at least 48 ms. Why?
#
# Look for the answer in the picture below the script. A rank's thick row is what it computes (hatched: nothing). Its thin rows are reading and messages; one that overlaps moves down.

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
from torch.utils.data import DataLoader, TensorDataset

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.006)  # to read and decode
        return super().__getitem__(index)

dist.init_process_group()
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in DataLoader(Slow(torch.randn(80, 256)), batch_size=8):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
""")

# %%
found = record(script, ranks=2, show=False)
found

# %% [markdown]
# The upper half is the recording, eight steps of each rank, and mostly reading. A long message may be a wait for the other rank. The lower half is what labkit's advice promises.
#
# **When you are done** you can find what a script of yours waits for and prove a cure, fit a plan's constants on your machine, say how far such a plan holds, and what a slower network costs.

# %% [markdown] sections="19.8.6"
# ## A script
#
# The script reads a batch, trains on it, then reads the next. DDP averages the gradients. (Here both ranks read the same samples.)
#
# `record` starts it by torchrun and records ten steps of each rank. The first two warm up and are left out. In a terminal it is `python -m labkit record train.py --using torchrun --ranks 2`.
#
# **With yours**: replace the script's cell by a path, `script = Path("train.py")`. The file stays as it is. Arguments follow, as in `record(script, "--epochs", "1")`. It runs to its end, so let it do few steps, in a folder of its own.
#
# Eight samples of 6 ms make 48 ms for each batch. The advice names the reading, but saves little. Why? It replays the steps with one reader that works ahead, and one reader still needs 48 ms for a batch.
#
# ### Four readers
#
# A reader is a worker process of the `DataLoader`. With four of them a batch comes every 12 ms, at best ([chapter 15](15_profiling_and_scaling.ipynb)). And this is the rest of a step, in ms:

# %%
rest_us = found.step_us * (1 - found.advice.share("input"))
round(rest_us / 1000, 1)

# %% [markdown]
# If the rest stays what it was, the longer of the two sets the pace. What share of the step do four readers save?

# %%
gain = lab.guess("share of the step that four readers save", between=(0, 1))

# %% [markdown]
# A cure is proven by a run. Here is the script with four readers. (With yours, change a copy by hand, and write `cured = Path("cured.py")`.)

# %%
readers = "batch_size=8, num_workers=4, prefetch_factor=1"
cured = script.with_name("cured.py")
_ = cured.write_text(script.read_text().replace("batch_size=8", readers))

# %%
again = record(cured, ranks=2, show=False)
gain.score(1 - again.step_us / found.step_us)

# %%
steps_us = {"as it was": found.step_us, "four readers": again.step_us}
quarter_us = found.step_us * found.advice.share("input") / 4
steps_us["the longer of the two"] = max(quarter_us, rest_us)
lab.table({"script": name, "took_us": took_us} for name, took_us in steps_us.items())

# %% [markdown]
# The last row was computed, from a quarter of the recorded wait for data. Is the run near it? If not, the rest of the step has changed too.
#
# ### What is in the way now?
#
# Brown is only the wait for a batch now; the readers aren't drawn. Look at the hatched stretches of the upper half. Which wait for a batch, which for a message?

# %%
again

# %% [markdown]
# The lower half promises again. Can it be kept? Eight batches take four readers 8 x 12 = 96 ms, if none was in hand, and the advice knows neither your readers nor your cores.
#
# And this is a step of the average rank, before and after. (Exposed is what no computing hides.) Add up all but the wait for data. Is that more than the 12 ms that four readers need?

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
# The longer of the two, the rest or 12 ms, sets the pace, not the largest part. (If they are nearly equal, both do, in turn.)
#
# - **Four readers**: more of them help, until the rest is longer.
# - **The rest**: mend its largest part. Has computing grown? Two ranks and eight readers share your cores. Is it a wait or a message? See in the picture what the other rank does meanwhile.
#
# <details><summary>Why <code>prefetch_factor=1</code>?</summary>
#
# Usually each reader keeps two batches in hand. With eight, most of the ten steps would have been read before the recording.
#
# </details>

# %% [markdown]
# ## A machine
#
# *A good place to rest.*
#
# A plan needs the speed of your machine. `speeds(2)` reads off what each of two ranks gets while both are busy. (`python -m labkit measure` runs the main experiments of the course, in ten minutes at most, and puts them beside other machines.)

# %%
here = planner.speeds(2)
lab.table(
    [
        {
            "products in fp32, TFLOP/s": here.tflops,
            "gathering, GB/s": here.links["all_gather"][1],
        }
    ]
)

# %% [markdown]
# Now plan for this machine: a stack of torch's own layers, in shards on two ranks. (With yours, take `small` and `next_token` from [chapter 21](21_your_own_model.ipynb).) Look for the longest part of the planned step.


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
# A program reaches only a part of these speeds. How large a part is a constant of the plan, and ours was fitted on GPUs. So how near does the plan come to a real step, the fastest of ten on this CPU (`devices="cpu"`)?

# %%
near = lab.guess("measured step over planned step", between=(0.2, 5))

# %%
plain = step.but(devices="cpu", timed=10)
run = plain.run()
fastest_us = min(run[0]["step_us"])
near.score(fastest_us / plan.time().step_us)

# %%
took = your_own.fastest(run)
lab.show(planner.clock_bars({"planned": plan}, {"measured": took}))

# %% [markdown]
# ### Where did the time go?
#
# Where is the plan wrong? A clock tells only the update from all else, so record one more such step.
#
# In the upper row of each rank blue is computing, and green is the update. Below it layers are gathered and gradients averaged (by an all-reduce, since gloo has no reduce-scatter). Look at what fills the step, not at its length: recording takes time as well.

# %%
timeline = run.timeline()
seen = timeline.select(timeline.lane != "mark")  # without FSDP's own marks
seen

# %% [markdown]
# Here is each part; recording has made all of them longer. Where is the plan short by most?

# %%
parts_us, where = plan.time().parts(), lab.advise(seen)
planned_us = {"waiting": 0.0, "comm": parts_us.pop("gather")}
planned_us |= {"compute": sum(parts_us.values()), "unrecorded": 0.0}
whole_us = seen.end_us.max() - seen.start_us.min()

# %%
lab.table(
    {
        "part": parts[part],
        "planned_us": part_us,
        "recorded_us": where.share(part) * whole_us,
    }
    for part, part_us in planned_us.items()
)

# %% [markdown]
# The plan has no wait for another rank, and nothing for "nothing recorded": mostly Python and copies, we believe. Of the update it counts what Adam reads and writes, not what Python does for each tensor.
#
# ### Fit, then plan
#
# [Chapter 19](19_how_far_to_trust_a_plan.ipynb) had a cure: measure four runs that differ in the sizes that you want to increase, and fit the constants. Ours have 2 and 4 layers, 4 and 8 sequences (half of them on each rank). The first is the one above; `row(...)` writes down a timed step.


# %%
def timed(layers, sequences):
    sized = plain.but(make=partial(mine, layers, sequences))
    return sized.row(min(sized.run()[0]["step_us"]), gpu=here)


runs = [plain.row(fastest_us, gpu=here)]
runs += [timed(*each) for each in ((2, 4), (4, 8), (2, 8))]

# %% [markdown]
# Four runs are enough for two constants, the share of the measured speed that products reach, and a time for each layer:
#
# $$\text{step} = \frac{\text{products at the measured speed}}{\text{share}} + \text{layers} \times \text{time of a layer} + \text{what isn't fitted}$$
#
# `fit` begins with the plan's own constants and moves them toward the four clocks. Two constants can't meet four clocks exactly.

# %%
moving = ("matmul", "layer_us")
fitted = planner.fit(runs, begun=[plan.stack], constants=moving)
stacks = {"by GPUs": plan.stack, "by four runs": fitted.stack(runs[0])}
lab.table(
    {"constants": name, "of the speed": stack.matmul, "each layer_us": stack.layer_us}
    for name, stack in stacks.items()
)

# %% [markdown]
# In the bars, compare the whole, then the update, in green.

# %%
plans = {name: plan.but(stack=stack) for name, stack in stacks.items()}
lab.show(planner.clock_bars(plans, {"measured": took}))

# %% [markdown]
# The fit aims at whole steps. It has no constant for the update, so that bar stays what it was, whatever the clock says. What is missing there has gone into the two constants, like all else that the plan doesn't know; the table shows which of them moved. So the parts no longer mean what they are called.
#
# <details><summary>Your products reach 1 or more of the speed?</summary>
#
# Your steps hardly grew with the sequences, so the fit made products cheap and layers dear.
#
# </details>
#
# ### Does it hold farther out?
#
# On its own four runs a good fit proves nothing. So take a larger step, 6 layers and 12 sequences. How near does the fitted plan come?

# %%
nearer = lab.guess("measured step over fitted plan", between=(0.2, 5))

# %%
runs.append(timed(6, 12))
nearer.score(
    runs[-1].step_us() / planner.predicted_us(runs[-1], fitted.stack(runs[-1]))
)

# %% [markdown]
# Look at "off", first in the four rows that were fitted, then in the last one, the test.

# %%
rows = [
    {
        "layers": row.shape.layers,
        "sequences": row.layout.gbs,
        "measured_us": row.step_us(),
        "planned_us": planner.predicted_us(row, plan.stack),
        "fitted_us": planner.predicted_us(row, fitted.stack(row)),
    }
    for row in runs
]
for row in rows:
    row["off"] = row["fitted_us"] / row["measured_us"] - 1
lab.table(rows, units={"off": "share"})

# %% [markdown]
# Which of these is your table?
#
# - **All five are off by a tenth at most**: the fit holds this far.
# - **Fitted rows are off by more**: then don't trust the test, near or not. Most often something else was running: write `timed=20` in the cell `plain = ...`, and choose *Run Selected Cell and All Below*.
# - **Only the test is off**, or "fitted" is no nearer to it than "planned": then the four runs were too small, or too alike, to learn from.
#
# **What labkit can't know**: who else uses the machine. The fastest of ten steps says what your program can do, not what it does on a busy day.

# %% [markdown]
# ### Was a term missing?
#
# If fitted rows are off on a quiet machine too, the formula may lack a term. A pattern counts if both rows of a size are off to one side, by more than a row differs between two runs:
#
# - **On layers**, too low for 2 and too high for 4: a step takes some time by itself. The fit presses it into the layers, and far out it is too high.
# - **On sequences**, too low for 4 and too high for 8: memory traffic grows in the plan, and your step hardly grew. Don't trust the fit in sequences.
# - **On neither**: most likely the noise of the clock. Run it once more to see.
#
# Here is a made-up machine of the first kind. A step takes 24 ms by itself, 15 ms for each layer, and 0.6 ms for each sequence in each layer. Beside it stands the best fit without a term for the step itself:
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
# Now write the fit. `clock(layers, sequences)` gives the milliseconds of one step, of 1 to 4 layers and 1 to 8 sequences. It follows the rule of the made-up machine, with three numbers that you don't know. The clock errs by up to 1 %. Say to within a tenth what a large step takes, 48 layers and 16 sequences for instance. You may time four steps. The fit above left one of the three out: keep them all.


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
# Where no plan can be trusted, try. `trial(microbatch, recompute)` runs a step on real ranks, with a made-up time for computing. It returns the step's milliseconds, or None where it does not fit. Find the fastest way to take `batch` samples on each rank. In the check `batch` is 16, so there are ten ways: microbatches of 1, 2, 4, 8 or 16, each with `recompute` or without. You have six trials.
#
# - One sample at a time always fits. What fits still fits with a smaller microbatch, or with recomputation.
# - With recomputation the forward runs twice ([chapter 05](05_precision_and_memory.ipynb)), so each sample's computing takes a third longer. Every microbatch costs something besides, an amount that differs from test to test.
# - The clock errs a little. Your choice may be 12 % slower than the fastest.


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
# In a cluster messages between machines are slower than inside, and the processes must find each other. The first can be planned. Take GPT-2 XL on two machines: 16 cards of 40 GB, one sequence each, in fp32 with products in TF32, by FSDP's constants. (With yours it is `your_own.Step(make=large).plan(...)`.) The plan warns first:

# %%
cards = {"gpu": "A100 40 GB", "gpus": 16, "batch": 16, "seq": 1024}
program = {"precision": "fp32", "stack": "fsdp-a100"}
two = planner.Plan(model="GPT-2 XL", zero=3, **cards, **program)
lab.table([{"warnings": each} for each in two.warnings()])

# %% [markdown]
# So don't believe the seconds; look how a step depends on the network. With a quarter of the bandwidth, 6.25 GB/s for each of a machine's eight network cards in place of 25, how many times as long is a step of the shards?

# %%
starved = lab.guess("step at 6.25 GB/s, over step at 25", between=(1, 5))

# %%
nic = {f"{gb} GB/s": two.but(nic_gb_per_s=gb) for gb in (6.25, 25)}
slow_us, fast_us = [each.time().step_us for each in nic.values()]
starved.score(slow_us / fast_us)

# %% [markdown]
# Less than four: trust that, not the number. See why; the bars have only messages that no computing hides.

# %%
lab.show(planner.time_bars(nic))

# %% [markdown]
# Computing is the same in both. The open messages grow more than fourfold, since computing hid a larger part of them at 25 GB/s.
#
# Now a network of 1.5 GB/s, where everybody waits for messages. In a step copies send about two models' worth of numbers (an all-reduce), shards three (two gathers and a reduce-scatter). How long is a step of copies there, compared with one of shards?

# %%
slowest = lab.guess("step of copies over step of shards, at 1.5 GB/s", between=(0, 2))

# %%
ways = {"shards": two, "copies": two.but(zero=0)}
at = {name: way.but(nic_gb_per_s=1.5).time().step_us for name, way in ways.items()}
slowest.score(at["copies"] / at["shards"])

# %% [markdown]
# Here are both, on networks from 1.5 to 100 GB/s. Upright lines are networks as they are sold, in Gbit/s: Ethernet of 25, and three generations of InfiniBand. Look at the slopes, left and right.

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
# On the left everybody waits for the network: half the bandwidth takes nearly twice the time, and copies win, since they send two where shards send three. On the right messages hide, and bandwidth helps little. There copies lose in the plan, since every card updates all numbers. Nothing was measured: don't read off where they cross.
#
# <details><summary>What the plan takes for granted</summary>
#
# A network card gives half of what its data sheet says. The rings are flat: each of a machine's eight network cards carries an eighth to the other machine. Copies fit here, with 34 of 40 GB.
#
# </details>

# %% [markdown]
# ### Let them find each other
#
# The same line runs on every machine, with the address of one of them:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d \
#          --rdzv-id any-name --rdzv-endpoint first-machine:29500 train.py
# ```
#
# Your script calls `init_process_group()`, takes the card `LOCAL_RANK`, reads by a `DistributedSampler`, and saves to a disk that all machines see. It begins from the last checkpoint if there is one ([chapter 13](13_checkpoint_and_recover.ipynb)). Then a rank may die: torchrun starts all processes anew, up to three times here, and they go on from there. With one machine lost, `--nnodes 2` can't go on.
#
# **What labkit can't know**: your network's topology, its other users, and which machine is slow. Before you let it run for a week, record it on each machine by itself, and compare.

# %% [markdown] sections="19.7"
# ## Key ideas of the course
#
# Here each has a number to remember it by:
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
# You can read the programs themselves now.
#
# | program | what it is | where it stands (late 2026) |
# | --- | --- | --- |
# | [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) | NVIDIA's: this course's way of cutting a transformer's tensors comes from here ([1909.08053](https://arxiv.org/abs/1909.08053)); now pipeline, context and expert parallelism too | maintained; its core is a package, `megatron-core`, of which chapter 09 uses 0.16 |
# | [DeepSpeed](https://github.com/deepspeedai/DeepSpeed) | where ZeRO comes from ([1910.02054](https://arxiv.org/abs/1910.02054)); offload, pipelines, experts | maintained; chapters 06 and 10 use 0.19 |
# | [torchtitan](https://github.com/pytorch/torchtitan) | PyTorch's own: all axes by `DeviceMesh`, `fully_shard` and DTensor, in little code ([2410.06511](https://arxiv.org/abs/2410.06511)) | maintained; read it first, since it uses what chapters 07 to 10 used |
# | [FairScale](https://github.com/facebookresearch/fairscale) | Meta's, where FSDP was first | history: by its own README its FSDP went into PyTorch, and should be taken from there |
# | [Colossal-AI](https://github.com/hpcaitech/ColossalAI) | a collection of all axes, with tensors cut in two and three dimensions as well ([2110.14883](https://arxiv.org/abs/2110.14883)) | its newest release on PyPI, 0.5.0, is of June 2025 |
# | [Alpa](https://github.com/alpa-projects/alpa) | a compiler that finds the layout by itself, in JAX ([2201.12023](https://arxiv.org/abs/2201.12023)) | by its own README not actively maintained; its search lives on in XLA |
# | [picotron](https://github.com/huggingface/picotron), [nanochat](https://github.com/karpathy/nanochat) | small programs, written to be read | not meant for large runs |

# %% [markdown]
# ## Summary
#
# - A script is recorded unchanged; a cure is proven by recording again.
# - A plan's constants are of a program and a machine. Measure four runs of your own that differ in the sizes that you want to increase, and fit them.
# - A fit proves nothing on the runs that it was fitted to: take one that lies farther out.
# - For a cluster, count the bytes that cross, and measure what no data sheet has.
#
# **Words of this page** are all in the [glossary](GLOSSARY.md). **Further reading**: [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
#
# **Next:** your own training. Come back when a step takes longer than planned.
#
# *Sections 19.7, 19.8.6 and D-next of the source material.*

# %%
check.status()
