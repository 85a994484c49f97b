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
# A plan, as in the last chapter, knows neither your script nor your machine. So what does a step wait for, and how near does a plan come to its time?
#
# We begin with a small script for two ranks, in which each sample waits 6 ms for a disk.

# %%
import tempfile
from functools import partial
from pathlib import Path

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.profiling.recording import record
from labkit.your_own import machine_check as check

lab.begin("en", deadline_s=120)

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

# %% [markdown]
# `record` starts it by torchrun, changes nothing in the file, and records ten steps of each rank. The first two are a warm-up, so eight remain.
#
# Each rank has a thick row for its computing, hatched where there is none, and thin rows for its reading and its messages. What stands under the longest hatched stretches?

# %%
found = record(script, ranks=2, show=False)
lab.show(found.advice.as_drawn)

# %% [markdown]
# Under them stands the reading, in brown: while a rank reads its next batch, it has nothing to compute.
#
# **When you are done** you can find what a script of yours waits for, prove that a change helps, forecast a larger step from small ones, and say what a slower network would cost.

# %% [markdown] sections="19.8.6"
# ## A script
#
# A batch has eight samples that wait 6 ms each, so to read it takes 48 ms or a little more. labkit's advice tries changes in the recorded timeline, and names the one that saves most:

# %%
found.advice.best

# %% [markdown]
# The advice simulates one worker that reads ahead. One worker still needs 48 ms for a batch, so no simulated step gets below that.
#
# ### Four readers
#
# So we take four worker processes of the `DataLoader` ([chapter 15](15_profiling_and_scaling.ipynb)). Each reads a batch of its own, all at the same time, so on average a batch is ready after a quarter of the wait. While they read, the rank does the rest of its step:

# %%
wait_us = found.step_us * found.advice.share("input")
rest_us = found.step_us - wait_us
parts_us = {"waiting for data_us": wait_us, "the rest_us": rest_us}
lab.table([{"one step_us": found.step_us} | parts_us])

# %% [markdown]
# If the rest stays what it was, the longer of the two sets the pace: the rest, or a quarter of the wait. What share of the old step do four readers save?

# %%
gain = lab.guess("share of the step that four readers save", between=(0, 1))

# %% [markdown]
# Only a run proves that, so we record a second script, with four readers. Batches now come in bursts of four, and eight steps would hold only two. So this one takes 42 steps, and 40 remain. We compare step with step.

# %%
readers = "batch_size=8, num_workers=4"
longer = script.read_text().replace("160", "672")  # samples for 42 steps
cured = script.with_name("cured.py")
_ = cured.write_text(longer.replace("batch_size=8", readers))

# %%
again = record(cured, ranks=2, show=False, steps=42)
gain.score(1 - again.step_us / found.step_us)

# %% [markdown]
# Which of the two sets the pace?

# %%
quarter_us = {"a quarter of the wait_us": wait_us / 4, "the rest_us": rest_us}
lab.table([quarter_us | {"a step now_us": again.step_us}])

# %% [markdown]
# On a quiet machine a quarter of the wait is longer than the rest. Then the readers set the pace, and a step takes about that quarter.
#
# The advice named the right change, but promised only a small part of this gain, on a quiet machine a tenth. It tells what to change, and a run tells how much that saves.

# %% [markdown]
# Did the rest stay what it was? The bars show a step of the average rank before and after. "Exposed communication" is messages that no computing hides. In "nothing recorded" no operator of torch ran.

# %%
steps_us = {"as it was": found.parts_us(), "four readers": again.parts_us()}
lab.bars(steps_us, unit="us", stacked=True, title="A step by its parts")

# %% [markdown]
# ### Who waits for whom?
#
# Is "waiting for other ranks" longer than before? The ranks do the same work. Here are 70 ms around the longest message, in red. What does the other rank do meanwhile?

# %%
drawn = again.advice.as_drawn
sent = drawn.select(drawn.kind == "all_reduce")
from_us = sent.start_us[(sent.end_us - sent.start_us).argmax()] - 20e3
lab.show(drawn.select((drawn.end_us > from_us) & (drawn.start_us < from_us + 70e3)))

# %% [markdown]
# On a quiet machine it mostly reads, in brown. An all-reduce ends only when both ranks have brought their gradients, so the rank that is first waits in it for the other's reader. The network isn't slow: **a slow reader on one rank looks like a slow network on the other.**
#
# Where both ranks are in a message, no reader is to blame. Then the message takes its own time, or waits for a core: two ranks and eight readers share them.
#
# Four readers on two cores help here because a sleep needs no core. Readers that decode on the CPU compete with the training for cores.

# %% [markdown]
# ## Exercise 1. Another script
#
# `check.script()` writes a script that reads from a disk as well, though a sample waits for only 1 ms. Record it, and say which part of its step is the longest. Change one thing in a copy, and record that: the part and the whole step must be shorter. You may take a script of your own instead.
#
# - `before = record(check.script(), ranks=2)`. Arguments of your own script follow its path.
# - `before.parts_us()` has the parts of a step, by name.
# - A step ends where `optimizer.step()` ends. There must be three or more, because two are a warm-up.
#
# <details><summary>How small a gain shows?</summary>
#
# A gain of half the step shows in one pair. For 5 %, record each script five times, in turns, and believe it if each new step is shorter than each old one.
#
# </details>


# %%
def my_cure():
    """(part, before, after): the longest part of a step, and the two recordings."""
    ### BEGIN SOLUTION
    train = check.script()
    first, loop = train.read_text().split("    for each in")
    last = loop[loop.index("    optimizer.step") :]
    wrapped = "net = torch.nn.parallel.DistributedDataParallel(net)\noptimizer ="
    changed = train.with_name("changed.py")
    changed.write_text(first.replace("optimizer =", wrapped) + last)
    before, after = [record(each, ranks=2, show=False) for each in (train, changed)]
    parts_us = before.parts_us()
    return max(parts_us, key=parts_us.get), before, after
    ### END SOLUTION


# %%
check.yours(my_cure)

# %%
check.hint("yours")

# %% [markdown]
# *A good place to rest.*

# %% [markdown]
# ## A machine
#
# So far our plans took the speeds of GPUs. Now `speeds(2)` measures what each of two ranks gets here, for matrix products and for messages. Shards need two kinds of message, and each takes some time to begin:

# %%
here = planner.speeds(2)
links = {name: here.links[name] for name in ("all_gather", "reduce_scatter")}
rows = links.items()
lab.table({"message": name, "to begin_us": us, "GB/s": gb} for name, (us, gb) in rows)

# %% [markdown]
# The reduce-scatter has fewer GB/s because gloo runs a whole all-reduce for it ([chapter 02](02_collectives.ipynb)).
#
# With these speeds we can plan a step: two of torch's own layers, in shards on two ranks, with half of the four sequences on each (`split=True`). Look for its longest part.


# %%
def mine(layers=2, sequences=4):
    sizes = {"dim_feedforward": 512, "dropout": 0.0, "batch_first": True}
    layer = torch.nn.TransformerEncoderLayer(128, 4, **sizes)
    net = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return net, torch.randn(sequences, 64, 128)


# %%
step = your_own.Step(make=mine, engine="fsdp", ranks=2, split=True)
plan = step.plan(gpu=here)
lab.show(planner.time_bars({"shards": plan}))

# %% [markdown]
# Products and messages take most of it. MFU is here a share of this machine's speed of products.
#
# ### The messages, by hand
#
# To gather a layer, a rank must begin, and then receive the half that it lacks: 99,136 numbers or 396,544 bytes. Each of the two layers is gathered for the forward and for the backward, and its gradients are reduced and scattered once. A message takes its time to begin, and these bytes over its GB/s:


# %%
def message_us(name):
    begin_us, gb = here.links[name]
    return begin_us + 396_544 / (gb * 1e3)


gather_us, reduce_us = message_us("all_gather"), message_us("reduce_scatter")
row = {"a gather_us": gather_us, "a reduce-scatter_us": reduce_us}
lab.table([row | {"4 gathers, 2 reduce-scatters_us": 4 * gather_us + 2 * reduce_us}])

# %% [markdown]
# The last column is the messages' part of the picture, but for rounding. On the CPU the plan lets no computing hide them.
#
# But some of the plan's constants were fitted to runs on GPUs. There Python runs ahead of the computing, and here they take turns. In [chapter 19](19_how_far_to_trust_a_plan.ipynb), another program's constants made a plan too short by a factor of 3.8. How many times as long as planned is our step?

# %%
near = lab.guess("measured step over planned step", between=(0.2, 5))

# %% [markdown]
# We clock it together with others that we need below. `in_turns` runs one step of each in turn, up to eight times, so that a busy minute slows all alike. It keeps the fastest of each: we forecast the fastest step, not the typical one.

# %%
sizes = [(2, 4), (1, 2), (3, 2), (1, 8), (3, 8), (2, 4), (4, 12)]
timed = step.but(devices="cpu", timed=8)
steps = [timed.but(make=partial(mine, *each)) for each in sizes]
clock_us = your_own.in_turns(steps)

# %%
plan_us = [each.plan(gpu=here).time().step_us for each in steps]
near.score(clock_us[0] / plan_us[0])

# %% [markdown]
# ### Does one factor do?
#
# Would this ratio mend the plan of any step? Look down the last column. Our step stands first and last, because each turn clocks it twice. The largest step we keep for a test.

# %%
six = zip(sizes[:6], plan_us[:6], clock_us[:6], strict=True)
lab.table(
    {"layers": n, "sequences": s, "planned_us": a, "measured_us": b, "ratio": b / a}
    for (n, s), a, b in six
)

# %% [markdown]
# If the first row and the last agree, the other ratios still differ, and by more. So one constant isn't enough.
#
# ### Fit constants to your machine
#
# We sort a step's work by how often it comes. Some of the Python runs once in a step. Messages, updates and most of the Python come once for each layer. Products and attention come for each sequence of the batch as well. That makes three times:
#
# $$\text{step} = \text{fixed time} + \text{layers} \times \text{time of a layer} + \text{layers} \times \text{sequences} \times \text{time of a sequence in a layer}$$
#
# `lstsq` finds those with which the formula comes nearest to the first five runs. How near is that?

# %%
parts_of = torch.tensor([[1, n, n * s] for n, s in sizes], dtype=torch.float64)


def three(times_us):
    five_us = torch.tensor(times_us[:5], dtype=torch.float64)[:, None]
    return torch.linalg.lstsq(parts_of[:5], five_us).solution[:, 0].tolist()


# %%
fit_us = (parts_of @ torch.tensor(three(clock_us), dtype=torch.float64)).tolist()
off_by = [abs(fit / took - 1) for fit, took in zip(fit_us, clock_us, strict=True)]
worst = {"the worst of the five": max(off_by[:5])}
lab.table([worst], units=dict.fromkeys(worst, "share"))

# %% [markdown]
# Meeting these five proves little, because the three times were chosen to meet them. So we forecast the step that we kept. It has 4 layers and 12 sequences, more of both than any run of the fit. How far off is that forecast?

# %%
off = lab.guess("how far off the forecast is", between=(0, 1))

# %%
off.score(off_by[6])

# %% [markdown]
# Four lines are the fit, one for each number of layers. The fifth is the plan. Hollow marks are the five runs of the fit, and the full one is the step that it hasn't seen. Is it further from its line than they are from theirs? Where does the planned line begin, and how steep is it?


# %%
def line(times_us, layers):
    fixed_us, layer_us, sequence_us = three(times_us)
    return {s: fixed_us + layers * (layer_us + s * sequence_us) for s in (2, 12)}


# %%
seen = {"1 layer": {2: clock_us[1], 8: clock_us[3]}, "2 layers": {4: clock_us[0]}}
seen |= {"3 layers": {2: clock_us[2], 8: clock_us[4]}}
unseen = {"4 layers": {12: clock_us[6]}}
lines = {name: line(clock_us, n) for n, name in enumerate([*seen, *unseen], start=1)}
lines["4 layers, planned"] = line(plan_us, 4)
axes = {"x": "sequences", "y": "one step", "title": "A step, fitted and planned"}
lab.curves(fitted=seen, measured=unseen, predicted=lines, unit="us", **axes)

# %% [markdown]
# We guess that the planned line begins too low because the plan has a GPU's constant for FSDP's Python. If it is too steep as well, the two errors cancel somewhere, and there it meets the clock by luck.
#
# ### With the library
#
# `planner.fit` moves two constants of the plan itself, so its result plans other layouts, too. How near do all three come to the larger step?

# %%
rows = [each.row(us, gpu=here) for each, us in zip(steps, clock_us, strict=True)]
fitted = planner.fit(rows[:5], begun=[plan.used])
own = fitted.stack(rows[0])  # the constants for steps in shards

# %%
own_us = [each.plan(gpu=here, stack=own).time().step_us for each in steps]
forecasts = {"three times": fit_us, "planner.fit": own_us, "planned": plan_us}
your_own.judged(forecasts, clock_us, again_us=clock_us[5])

# %% [markdown]
# Differences below the worst miss on the fitted steps mean nothing. If `planner.fit` meets the larger step better than its own runs, that may be luck, because errors cancel there as well. If you forecast further out, expect at least the error of the larger step.
#
# **With yours.** In place of `mine` take `small` of [chapter 21](21_your_own_model.ipynb), with `loss=next_token`. On GPUs, leave out `devices="cpu"`, and put their name for `here`, such as `gpu="A100 40 GB"`, because `speeds` is made for CPUs.

# %% [markdown]
# ## Exercise 2. Four runs, then far away
#
# `clock(layers, sequences)` gives the milliseconds of a step on a made-up machine. Say how long a much larger step takes there, of 48 layers and 16 sequences for instance. You may go so far only because this machine follows our formula exactly.
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
# ## Exercise 3. Few trials
#
# Between a few settings you can choose by trials, without a fit. In ours a layer takes some time however few sequences there are, so small microbatches are slow. Recomputation makes room for larger ones, but it runs the forward twice ([chapter 05](05_precision_and_memory.ipynb)), so computing takes a third longer.
#
# <details><summary>An example by hand</summary>
#
# Say that 8 samples compute for 24 ms, and with recomputation for 32. With it all 8 fit at once, and without it only 4:
#
# | a microbatch costs | two microbatches | one, with recomputation |
# | --- | --- | --- |
# | 5 ms | 24 + 2 x 5 = 34 ms | 32 + 5 = 37 ms |
# | 20 ms | 24 + 2 x 20 = 64 ms | 32 + 20 = 52 ms |
#
# </details>
#
# Find the fastest way to take `batch` samples on each rank, 16 in the check. `trial(microbatch, recompute)` runs such a step on real ranks, with made-up computing, and returns its milliseconds, or None where it does not fit.
#
# - There are ten ways: microbatches of 1, 2, 4, 8 or 16, with `recompute` or without. You have six trials, and None counts as one.
# - One sample at a time always fits. What fits still fits with a smaller microbatch, or with recomputation.
# - What a microbatch costs differs from test to test. Your choice may be 12 % slower than the fastest.


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
# *A good place to rest.*

# %% [markdown]
# ## A cluster
#
# What does a slower network cost? Take GPT-2 XL on two machines of eight GPUs of 40 GB, with one sequence on each GPU. Numbers are fp32, and products TF32. The plan's constants were fitted to runs of FSDP. Do shards and copies fit, and what do their plans warn of?

# %%
cluster = {"gpu": "A100 40 GB", "gpus": 16, "batch": 16, "seq": 1024}
program = {"precision": "fp32", "stack": "fsdp-a100"}
two = planner.Plan(model="GPT-2 XL", zero=3, **cluster, **program)
ways = {"shards": two, "copies": two.but(zero=0)}
lab.show(planner.memory_bars(ways))

# %%
lab.table(
    {"plan": name, "warns": warning}
    for name, way in ways.items()
    for warning in way.warnings() or ["-"]
)

# %% [markdown]
# Both fit. Copies have 6.4 GB left. DDP's buckets take up to 6.2 GB of them, unless you say `gradient_as_bucket_view=True`, as the plan assumes.
#
# The warning says that FSDP between machines took up to 3.8 times as long as planned. No warning isn't a proof, either: copies are planned with FSDP's constants, and we have no run of DDP on this cluster.
#
# ### What leaves a machine
#
# GPT-2 XL has 1.56 billion parameters, in fp32 6.2 GB. Copies send them around the ring of 16 GPUs twice, for the all-reduce. Shards send them three times, for two gathers and a reduce-scatter:
#
# | what | out of each machine in a step |
# | --- | --- |
# | copies | 2 x 6.2 x 15 / 16 = 11.6 GB |
# | shards | 3 x 6.2 x 15 / 16 = 17.4 GB |
#
# Each machine has eight network cards of 25 GB/s. Eight rings share the buffer and use all of them. By the plan's constant they reach half: 8 x 25 / 2 = 100 GB/s. So the messages of the shards take 17.4 / 100 = 0.17 s. The whole planned step:

# %%
fast_us = two.but(nic_gb_per_s=25).time().step_us
lab.table([{"a step of the shards_us": fast_us}])

# %% [markdown]
# Computing hides most of the messages. With a quarter of that network, how many times as long is the step?

# %%
starved = lab.guess("step at 6.25 GB/s, over step at 25", between=(1, 5))

# %%
slow_us = two.but(nic_gb_per_s=6.25).time().step_us
starved.score(slow_us / fast_us)

# %% [markdown]
# Now the messages take 0.70 s, too long to hide, and the step takes 0.71 s.
#
# At 1.5 GB/s nearly all of a step is messages. How many times as long as a step of shards is one of copies?

# %%
slowest = lab.guess("step of copies over step of shards, at 1.5 GB/s", between=(0, 2))

# %%
at = {name: way.but(nic_gb_per_s=1.5).time().step_us for name, way in ways.items()}
slowest.score(at["copies"] / at["shards"])

# %% [markdown]
# By bytes alone the ratio would be 11.6 / 17.4, two thirds. Copies hide less behind their messages, because they send only during the backward. Then each GPU updates all the numbers.
#
# ### Which network?
#
# The picture predicts shards and copies for faster networks, and shards once more at the warning's worst, 3.8 times as slow. Upright lines are network cards as they are sold, by Gbit/s: "25GbE" carries 25 / 8 = 3.125 GB/s, and the others are InfiniBand. Each of a machine's eight GPUs has such a card. With one 25GbE card for all eight you are left of the picture, at 3.125 / 8 = 0.39 GB/s. Where do curves cross?

# %%
networks = {"25GbE": 3.125, "EDR 100": 12.5, "HDR 200": 25, "NDR 400": 50}
speeds_gb = [1.5 * 1.15**number for number in range(31)]
curves = {
    name: {gb: way.but(nic_gb_per_s=gb).time().step_us / 1e6 for gb in speeds_gb}
    for name, way in ways.items()
}
warned = {gb: 3.8 * step_s for gb, step_s in curves["shards"].items()}
curves["shards, 3.8 times as long"] = warned
axes = {"x": "GB/s of a network card", "y": "seconds per step"}
axes |= {"log_x": True, "log_y": True, "at": networks}
lab.curves(predicted=curves, title="A step on two machines, predicted", **axes)

# %% [markdown]
# The planned curves cross near 20 GB/s. On the left messages fill the step, and copies win because they send less. If shards are slower than planned, copies win all the more.
#
# On the right computing hides most messages, and shards win because each GPU updates only a sixteenth of the numbers. But they win by 15 % at most, and the warning is about a factor of up to 3.8. So there the plan can't choose: measure both.
#
# <details><summary>Start it on both machines, and if a rank dies</summary>
#
# Run the same line on both machines, with the address of one of them. [Chapter 17](17_many_machines.ipynb) runs such a line, and explains it.
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d \
#          --rdzv-id any-name --rdzv-endpoint first-machine:29500 train.py
# ```
#
# If a rank dies, torchrun starts all processes anew, here up to three times. If your script saves as in [chapter 13](13_checkpoint_and_recover.ipynb), to a disk that all machines see, only the work since then is lost. It needs:
#
# ```python
# torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
# dist.init_process_group()
# net = DistributedDataParallel(net.cuda())
# optimizer = torch.optim.AdamW(net.parameters())
# loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
# if os.path.exists("/shared/last.pt"):
#     state = torch.load("/shared/last.pt", map_location="cpu")
#     net.module.load_state_dict(state["net"])
#     optimizer.load_state_dict(state["optimizer"])
# ```
#
# Chapter 13 also has the step to go on with, and the way for shards. If a whole machine dies, you start again by hand.
#
# </details>
#
# **What labkit can't know** is which machine or link is slow. Record your script on each machine by itself. A slow link shows only between two.

# %% [markdown] sections="19.7"
# ## Key ideas of the course
#
# Of the course's fifteen key ideas, here is one of each group. Which could you explain to a friend?
#
# - **Memory**: ZeRO and FSDP shard what copies have in common.
# - **Messages**: copies average gradients while the backward still runs.
# - **Waiting and waste**: watch what a step waits for, and prove a cure.
# - **Trust**: fit constants to runs of your own, and test them on a larger run.
#
# <details><summary>All fifteen, with a number for each</summary>
#
# | idea | a number | chapter |
# | --- | --- | --- |
# | **Memory** | | |
# | Half the bits are not half the memory: Adam and the master weights stay in fp32. | 2 + 2 + 12 = 16 bytes a parameter, as many as in fp32 | [05](05_precision_and_memory.ipynb) |
# | ZeRO and FSDP shard what copies have in common. | 7 B on eight ranks: 112 / 8 = 14 GB of states in place of 112 | [06](06_zero_deepspeed.ipynb), [07](07_fsdp.ipynb) |
# | Experts add weights, hardly any computing. | DeepSeek-V3: 37 of 671 billion parameters compute | [10](10_mesh_and_experts.ipynb) |
# | **Messages** | | |
# | Copies average gradients while the backward still runs. In a ring each rank sends less than two buffers. | 2 x 1023 / 1024 = 1.998 buffers for 1,024 ranks | [02](02_collectives.ipynb), [03](03_data_parallel.ipynb) |
# | Tensor parallelism sends in every layer. | 4 all-reduces a layer, forward and backward together | [09](09_tensor_parallel.ipynb) |
# | Links are slow between machines: place the axes accordingly, and count what crosses. | two machines of two ranks: 1.5 buffers cross in a flat ring, one in three stages | [10](10_mesh_and_experts.ipynb), [17](17_many_machines.ipynb) |
# | Hide messages, or send less. But fewer bytes in more messages may be slower. | chapter 20 predicts 71 ms with an eighth of the bytes, 63 with all | [11](11_communication.ipynb), [20](20_case_studies.ipynb) |
# | **Waiting and waste** | | |
# | A pipeline sends little and waits: the bubble. | 3 / 11 = 27 % idle with 4 stages, 8 microbatches | [08](08_pipeline_parallel.ipynb) |
# | Watch what a step waits for, and prove a cure. | the rank reads by itself: a batch every 48 ms; four readers: every 12 | [15](15_profiling_and_scaling.ipynb), this one |
# | Unequal machines get unequal shares. | an H100 three times as fast as an A100 gets 3 microbatches to 1 | [16](16_unequal_machines_and_serving.ipynb) |
# | Machines fail: save, and start again. | on 16,384 GPUs something failed every three hours | [13](13_checkpoint_and_recover.ipynb) |
# | Past a critical batch, more GPUs save few steps. | a small training: 128 samples in place of 32 saved a third of the steps | [12](12_large_batches.ipynb) |
# | **Trust** | | |
# | Most errors are echoes: find the rank that failed first, or never came. | 64 tracebacks, one guilty rank | [14](14_debugging.ipynb) |
# | Choose a layout together with the program that runs it. | 175 B on 1,536 GPUs: 74 days by one program, 23 by another | [19](19_how_far_to_trust_a_plan.ipynb) |
# | Fit constants to runs of your own, and test them on a larger run. | five small runs, and a larger one that the fit hasn't seen | this one |
#
# </details>

# %% [markdown] sections="D-next"
# ## Where to go from here
#
# Read the programs themselves. Begin with torchtitan, because it uses in little code what chapters 07 to 10 used.
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
# - You can record a script, see what its steps wait for, and prove by a second recording that a change helps.
# - A rank that waits in a message may be waiting for another rank's reader.
# - You can fit constants to small runs, and test the fit on a larger one.
# - You count the bytes that cross a network, and know when they decide how long a step takes.
#
# **Words of this page** are all in the [glossary](GLOSSARY.md). **Further reading**: [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
#
# **Next:** your own training. Come back when a step takes longer than planned.
#
# *Sections 19.7, 19.8.6 and D-next of the source material.*

# %%
check.status()
