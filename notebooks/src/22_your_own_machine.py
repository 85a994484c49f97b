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
# *Fifty minutes; twenty more for the optional end. You need chapters 15, 18, 19 and 21. No GPU is needed.*
#
# A plan, as in chapter 18, knows neither your script nor your machine. So what does a step of yours wait for, and how near can a plan come to its time? This page clocks the machine that runs it, so close other programs first.
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
# Each rank has a thick row for its computing, hatched where there is none, and thin rows for its reading and its messages. Each step has a long hatched stretch. What stands under it?

# %%
found = record(script, ranks=2, show=False)
lab.show(found.advice.as_drawn)

# %% [markdown]
# Under it stands the reading, in brown: while a rank reads its next batch, it has nothing to compute.
#
# **When you are done** you can find what a script of yours waits for, prove that a change helps, and forecast a larger step from small ones.

# %% [markdown] sections="19.8.6"
# ## A script
#
# How can the rank wait less? A batch has eight samples that wait 6 ms each, so to read it takes 48 ms or a little more. labkit's advice tries changes in the recorded timeline, and names the one that saves most:

# %%
found.advice.best

# %% [markdown]
# The advice simulates one worker that reads ahead. One worker still needs 48 ms for a batch, so no simulated step gets below that.
#
# ### Four readers
#
# So we take four worker processes of the `DataLoader` ([chapter 15](15_profiling_and_scaling.ipynb)). Each reads a batch of its own, all at the same time, so on average a quarter of the wait lies between two batches. While they read, the rank does the rest of its step:

# %%
your_own.split({"as it was": found})

# %% [markdown]
# If the rest stays what it was, the longer of the two sets the pace: the rest, or a quarter of the wait. What share of the old step do four readers save?

# %%
gain = lab.guess("share of the step that four readers save", between=(0, 1))

# %% [markdown]
# Only a run proves that, so we record a second script, with four readers. Batches now come in bursts of four, and eight steps would hold only two. So this one takes 42 steps, and 40 remain.

# %%
readers = "batch_size=8, num_workers=4"
more = script.read_text().replace("160", "672")  # samples for 42 steps
cured = script.with_name("cured.py")
_ = cured.write_text(more.replace("batch_size=8", readers))

# %%
again = record(cured, ranks=2, show=False, steps=42)
gain.score(1 - again.step_us / found.step_us)

# %% [markdown]
# What is left of the wait, what became of the rest, and which of the two sets the pace?

# %%
scripts = {"as it was": found, "four readers": again}
your_own.split(scripts, readers=4)

# %% [markdown]
# A batch sleeps 48 ms on any machine, so four readers bring one every 12 ms at best. More readers help only as long as readers set the pace.

# %% [markdown]
# ### The rest of the step
#
# Did it stay what it was? Here are its parts, for the average rank. A message that no computing hides is "waiting for other ranks" until the last rank has begun it. From then on it is "exposed communication". "Nothing recorded" lies between the parts.

# %%
rests_us = your_own.rests_us(scripts)
lab.bars(rests_us, unit="us", stacked=True, title="The rest of a step, by its parts")

# %%
print(your_own.grown(found, again))

# %% [markdown]
# A part that grew says where the time went, not why. Computing and messages may take longer because readers need the cores too. But waiting for other ranks may also be the wait for data, moved into a message: a batch came late on one rank. Averages don't tell these apart. What the other rank does meanwhile does.
#
# ### Who waits for whom?
#
# To learn what that looks like, we make a case whose cause we know: in the first script, where nobody reads ahead, rank 1 gets a slower disk. A sample waits 12 ms there, and on rank 0 still 6. How long does rank 0 now wait for rank 1 in each step?

# %%
wait = lab.guess("rank 0's wait for rank 1 in a step, in ms", unit="ms")

# %%
slower = "sleep(0.006 * (1 + dist.get_rank()))"
late = script.with_name("late.py")
_ = late.write_text(script.read_text().replace("sleep(0.006)", slower))
uneven = record(late, ranks=2, show=False, steps=5)
wait.score(your_own.waited_us(uneven, rank=0) / 1e3)

# %% [markdown]
# Rank 0 has its batch after 8 x 6 = 48 ms, and rank 1 after 8 x 12 = 96. So rank 0 waits for about 96 - 48 = 48 ms. Here are three steps after the warm-up. What does rank 1 do under the long red bars of rank 0?

# %%
lab.show(uneven.advice.as_drawn)

# %% [markdown]
# It reads, in brown. An all-reduce ends only when both ranks have brought their gradients, so rank 0 waits in it for rank 1's disk, however fast the network is: **a slow reader on one rank looks like a slow network on the other.** The shares of each rank tell the two apart:

# %%
uneven.advice.table()

# %% [markdown]
# Here one rank waits for the other, and that one for data. On a slow network both would have much exposed communication, and neither would wait for the other. Now the four readers again: which of the two do they look like, or is it something between?

# %%
again.advice.table()

# %% [markdown]
# ## Exercise 1. Another script
#
# `check.script()` writes a script that reads from a disk as well, though a sample waits for only 1 ms. `print(check.script().read_text())` shows it. Record it, and say which part of its step is the longest. Change one thing in a copy, and record that: the part and the whole step must be shorter. A gain of half the step shows in one pair of recordings. (How smaller ones are proved stands folded below.) You may take a script of your own instead.
#
# - `before = record(check.script(), ranks=2)`. A script of your own may take arguments: `record(path, "--lr", "0.1", ranks=2)`.
# - `before.parts_us()` has the parts of a step, by name.
# - A step ends where `optimizer.step()` ends. There must be three or more, because two are a warm-up.
#
# <details><summary>How small a gain shows?</summary>
#
# For 5 %, record each script five times, in turns, and believe it if each new step is shorter than each old one.
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
# How near can a plan come to the time of a step? So far our plans took the speeds of GPUs. Here `speeds(2)` measures instead what each of two ranks gets, for matrix products and for messages. Shards need two kinds of message, and each takes some time to begin:

# %%
here = planner.speeds(2)
links = {name: here.links[name] for name in ("all_gather", "reduce_scatter")}
rows = links.items()
lab.table({"message": name, "to begin_us": us, "GB/s": gb} for name, (us, gb) in rows)

# %% [markdown]
# For the reduce-scatter gloo runs a whole all-reduce ([chapter 02](02_collectives.ipynb)), so expect fewer GB/s or a later start.
#
# With these speeds we can plan a step: two of torch's own layers, in shards on two ranks, with half of the four sequences on each (`split=True`). Which are its two longest parts?


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
# Products and messages take most of it. For the products `speeds` measured one large matrix. Those of a layer are smaller. The plan's constant `matmul` says that they reach only 63 % of that speed.
#
# ### The messages, by hand
#
# Where does the part of the messages come from? So many numbers has a layer:

# %%
sum(each.numel() for each in mine(layers=1)[0].parameters())

# %% [markdown]
# To gather these 198,272 numbers, a rank must begin, and then receive the half that it lacks: 99,136 numbers or 396,544 bytes. Each of the two layers is gathered for the forward and for the backward, and its gradients are reduced and scattered once. A message takes its time to begin, and these bytes over its GB/s:


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
# ### Does one factor do?
#
# The plan's constants, such as the 63 %, were fitted to runs on GPUs. There Python runs ahead of the computing, and here they take turns. So how far off is the plan, and would one factor mend it? We clock our step, steps of four other sizes for a comparison, and a larger one that we keep for a test. `clocked_twice` does it like this:
#
# - One clocking runs the six sizes in turn, in up to four rounds, so that a busy minute doesn't hit one of them alone. The fastest of each size counts.
# - It clocks twice. How far the two clockings of a size differ, at worst, is the **clock's error**.
# - If that is above 10 %, it clocks on, twice at most, and keeps the fastest.

# %%
sizes = [(2, 4), (1, 2), (3, 2), (1, 8), (3, 8), (4, 12)]
timed = step.but(devices="cpu", timed=4)
steps = [timed.but(make=partial(mine, *each)) for each in sizes]
pairs_us = your_own.clocked_twice(steps, within=0.1)
error = max(max(pair) / min(pair) - 1 for pair in pairs_us)
lab.table([{"clock's error": error}], units={"clock's error": "share"})

# %%
clock_us = [min(pair) for pair in pairs_us]
plan_us = [each.plan(gpu=here).time().step_us for each in steps]
ratios = [b / a for a, b in zip(plan_us, clock_us, strict=True)]
rows = [
    {"layers": n, "sequences": s, "planned_us": a, "measured_us": b, "again_us": c}
    for (n, s), a, (b, c) in zip(sizes, plan_us, pairs_us, strict=True)
]
lab.table([rows[0] | {"ratio": ratios[0]}])  # our step

# %%
lab.table([{"3 layers and 8 sequences, planned_us": plan_us[4]}])

# %% [markdown]
# "Sequences" are those of the whole batch, half of them on each rank. The ratio takes the faster clocking. If a plan lacks Python, it lacks as much for each layer with 8 sequences as with 4. Is the ratio for 3 layers and 8 sequences then smaller or larger than ours, and how large?

# %%
near = lab.guess("measured over planned, 3 layers and 8 sequences", between=(0.2, 10))

# %%
near.score(ratios[4])

# %%
five = zip(rows[:5], ratios[:5], strict=True)  # without the one that we keep
lab.table([row | {"ratio": ratio} for row, ratio in five])

# %%
print(your_own.one_factor(ratios[:5], error=error))

# %% [markdown]
# A difference counts if it is more than twice the clock's error.
#
# ### Three terms in place of one factor
#
# We sort a step's work by how often it comes. Some of the Python runs once in a step. Messages, updates and most of the Python come once for each layer. Products and attention come for each sequence of the batch as well. So it takes three terms:
#
# $$\text{step} = \text{fixed time} + \text{layers} \times \text{time of a layer} + \text{layers} \times \text{sequences} \times \text{time of a sequence in a layer}$$
#
# `lstsq` finds those with which the formula comes nearest to the first five runs:

# %%
parts_of = torch.tensor([[1.0, n, n * s] for n, s in sizes])
five_us = torch.tensor(clock_us[:5])[:, None]
three_us = torch.linalg.lstsq(parts_of[:5], five_us).solution[:, 0].tolist()
fixed_us, layer_us, seq_us = three_us
three = {"fixed time_us": fixed_us, "a layer_us": layer_us}
lab.table([three | {"a sequence in a layer_us": seq_us}])

# %% [markdown]
# If one of them is below zero, the clock's error is larger than that time, or the formula lacks something.
#
# Now forecast by hand the step that we kept. It has 4 layers and 12 sequences, more of both than any run of the fit. So it takes the fixed time, 4 times that of a layer, and 4 x 12 = 48 times that of a sequence in a layer:

# %%
sum_us = {
    "fixed_us": fixed_us,
    "4 layers_us": 4 * layer_us,
    "4 x 12 sequences_us": 48 * seq_us,
}
forecast_us = sum(sum_us.values())
lab.table([sum_us | {"forecast_us": forecast_us}])

# %% [markdown]
# ### Does it hold?
#
# Before we look, a rule: **a forecast holds if it is at most 10 % off on each of the six steps**, by a clock whose error is at most 10 %. By a worse clock it can only be refuted: by missing a step by more than twice the error. To be near on the five proves little, because the three terms were chosen for that. But to miss one of them refutes the formula. The kept step, which the fit hasn't seen, is the real test.
#
# In the formula each sequence costs as much as any other, in a batch of any size. If larger products run at a higher speed, is the kept step above or below its forecast, and by how much?

# %%
kept = lab.guess("measured over forecast, kept step", between=(0.5, 2))

# %%
kept.score(clock_us[5] / forecast_us)

# %% [markdown]
# The table has two simpler forecasts as well: the plan as it is, and the plan times our step's ratio. With a minus a forecast is too short. The sentences above it apply the rule.

# %%
formula_us = (parts_of @ torch.tensor(three_us)).tolist()
factor_us = [ratios[0] * planned for planned in plan_us]
forecasts = {"three terms": formula_us, "one factor": factor_us, "planned": plan_us}
your_own.judged(forecasts, clock_us, error=error)

# %% [markdown]
# Your machine may have been busy. So here are the same steps recorded on another day, on a quiet machine with two cores. They ran so many rounds that the fastest step is one that hardly anything disturbed:

# %%
your_own.judged_recorded()

# %% [markdown]
# There the three terms hold, on the kept step too, and one factor fails.
#
# ### Where plan and formula differ
#
# Why does it fail? In the picture of the recorded steps the hollow marks are the five, and the full one is the kept step. Four lines are the formula, one for each number of layers. The fifth is the plan for 3 layers. Compare both lines for 3 layers: how many times as high does the formula's begin, and how many times as fast does it rise?

# %%
lab.curves(**your_own.recorded_lines())

# %%
print(your_own.beside_recorded())

# %% [markdown]
# So the plan has too little time for what each step and layer needs whatever the batch, such as Python, and too much for each sequence. In our small step the first weighs more, so its factor is too large for a large step. The plan by itself comes near on the kept step, because there the two errors nearly cancel, and is much too short on the small ones: by being near once a forecast proves little.
#
# What follows from your own table?
#
# - **Something holds:** forecast a larger step with it, the simplest if several do, and keep another step to test it again.
# - **All are refuted, or none holds by a good clock:** that is a result too. Trust none of them. Clock some step nearer to the one that you want, fit again, and keep another for the test.
# - **Your clock leaves it open:** clock again when the machine is quiet, or with more rounds.

# %% [markdown]
# <details><summary>With yours: cells to paste, also for a GPU</summary>
#
# Write a `mine` with two arguments, one for the layers and one for the sequences of a batch. The rest of the section stays as it is. But the formula has no time for an output head, and three terms hold for one length of sequence.
#
# ```python
# def mine(layers=2, sequences=4):
#     net = ...  # your module, with so many layers
#     return net, ...  # and a batch of so many sequences
#
#
# step = your_own.Step(make=mine, loss=None, engine="fsdp", ranks=2, split=True)
# ```
#
# Your own lines, beside the plan for 4 layers:
#
# ```python
# four = {(4, s): step.but(make=partial(mine, 4, s)).plan(gpu=here) for s in (2, 12)}
# planned_us = {size: each.time().step_us for size, each in four.items()}
# lab.curves(**your_own.fit_lines(three_us, dict(zip(sizes, clock_us)), planned_us))
# print(your_own.beside_fit(three_us, planned_us, error=error))
# ```
#
# For a loss of your own, put a function of output and batch for `None`, such as `next_token` of [chapter 21](21_your_own_model.ipynb). `speeds` is made for CPUs. So on GPUs write `here = planner.gpu("A100 40 GB")`, skip the table of messages, and leave out `devices="cpu"`. If the error's list lacks yours, put your card's speeds into the nearest: `dataclasses.replace(planner.gpu("A100 40 GB"), tflops=..., hbm_gb_per_s=...)`.
#
# </details>

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

# %% [markdown]
# ---
#
# *Here ends what most people need. The rest is about the library's own fit, about a cluster, and about what comes after the course, and optional.*

# %% [markdown]
# ## With the library
#
# Can the plan itself learn from our five runs? Then it could forecast other layouts too. `planner.fit` ([chapter 19](19_how_far_to_trust_a_plan.ipynb)) moves one constant of a plan for every two runs, so here two. `matmul`, the share of their speed that products reach, is always the first. The second is the one that helps most, for instance `layer_us`, the microseconds that a layer takes beside its work. Which are moved, and how far?

# %%
own, constants = your_own.fitted(steps[:5], clock_us[:5], gpu=here, error=error)
constants

# %% [markdown]
# A constant that is moved need not be the cause. The plan has hardly any fixed time, for instance, so another constant makes up for it. Only the rule of before can say whether the forecasts are of use:

# %%
own_us = [each.plan(gpu=here, stack=own).time().step_us for each in steps]
your_own.judged({"planner.fit": own_us}, clock_us, error=error)

# %% [markdown]
# ## A cluster
#
# What does a slower network between machines cost? Take GPT-2 XL on two machines of eight GPUs of 40 GB, with one sequence on each GPU. Numbers are fp32, and products TF32. The plan's constants were fitted to runs of FSDP. Do shards and copies fit, and what do their plans warn of?

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
# Both fit, copies only just. They have 6.4 GB left, of which DDP's buckets take up to 6.2 GB, unless you say `gradient_as_bucket_view=True`, as the plan assumes.
#
# The warning's factor of 3.8 is that of [chapter 19](19_how_far_to_trust_a_plan.ipynb): runs in shards between machines with HDR 200 cards took so much longer than planned. No warning isn't a proof, either: copies are planned with FSDP's constants, and we have no run of DDP on this cluster.
#
# ### What leaves a machine
#
# GPT-2 XL has 1.56 billion parameters, in fp32 6.2 GB. Copies send them around the ring of 16 GPUs twice, for the all-reduce. Shards send them almost three times, for two gathers and a reduce-scatter; only the embedding is gathered just once. We count three:
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
# The picture has this ratio for faster networks. Below 1 copies are faster, above it shards. Upright lines are network cards as they are sold, by Gbit/s: "25GbE" carries 25 / 8 = 3.125 GB/s, and the next two are InfiniBand. The last is all that an A100's slot carries, PCIe 4.0 with 16 lanes. Where does the curve cross 1?

# %%
networks = {"25GbE": 3.125, "EDR 100": 12.5, "HDR 200": 25, "PCIe 4.0": 31.5}
ratios = {}
for gb in [1.5 + number / 2 for number in range(61)]:
    at = {name: way.but(nic_gb_per_s=gb).time().step_us for name, way in ways.items()}
    ratios[gb] = at["copies"] / at["shards"]

# %%
axes = {"x": "GB/s of a network card", "y": "copies over shards", "at": networks}
title = "Step of copies over step of shards, on two machines"
lab.curves(predicted={"ratio": ratios}, marks={"equally long": 1}, title=title, **axes)

# %% [markdown]
# It crosses 1 near 21 GB/s. On the left messages fill the step, and copies win because they send less. On the right computing hides most messages, and shards win because each GPU updates only a sixteenth of the numbers. But they win by little: at HDR 200 copies take 5 % longer, and 10 % at the slot's limit.
#
# Shards that take 3.8 times as long, as in the warning, would lose to copies on every network here. That factor is a crude ceiling: it is another program's, and multiplies the computing as well. But it is so much more than 10 % that the plan can't choose on the right: measure both there.
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

# %% [markdown]
# ## Exercise 3. Which network?
#
# At which speed of a network card do two layouts take equally long? A step is simpler here than in a plan: of messages and the computing that can hide them, the longer counts. Then comes the rest, such as the update.
#
# - A layout is a dict: `sent_gb` leaves a machine in a step, `hiding_s` is the computing that can hide it, and `rest_s` the rest, in seconds.
# - A machine has `cards` network cards, and messages reach half of their bandwidth together.
# - With slower cards copies are faster, and with faster ones shards. Your answer, in GB/s of one card, may be off by 2 %.
#
# <details><summary>An example by hand</summary>
#
# Say that a machine has eight cards. Copies send 12 GB, of which 0.1 s of computing hide a part, and the rest takes 0.1 s. Shards send 18 GB, behind 0.16 s, and have no rest:
#
# | GB/s of a card | copies | shards |
# | --- | --- | --- |
# | 10 | 12 / 40 = 0.30, and 0.1: 0.40 s | 18 / 40 = 0.45 s |
# | 15 | 12 / 60 = 0.20, and 0.1: 0.30 s | 18 / 60 = 0.30 s |
# | 30 | 12 / 120 = 0.10, and 0.1: 0.20 s | 18 / 120 = 0.15, less than 0.16: 0.16 s |
#
# </details>


# %%
def my_crossing(copies, shards, cards):
    """GB/s of a network card at which both layouts take equally long."""

    ### BEGIN SOLUTION
    def step_s(way, gb):
        messages_s = way["sent_gb"] / (cards * gb / 2)
        return max(messages_s, way["hiding_s"]) + way["rest_s"]

    slow, fast = 0.01, 1000.0
    for _ in range(60):
        middle = (slow * fast) ** 0.5
        if step_s(copies, middle) < step_s(shards, middle):
            slow = middle
        else:
            fast = middle
    return slow
    ### END SOLUTION


# %%
check.crossing(my_crossing)

# %%
check.hint("crossing")

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
# - One factor mends a plan only if it is the same for all steps. A clock can refute that, but a difference smaller than its own error proves nothing.
# - You can fit three terms to small runs, forecast a larger step by hand, and say by a rule set beforehand whether that holds.
# - From the optional end: you count the bytes that cross a network, and know when they decide how long a step takes.
#
# **Words of this page** are all in the [glossary](GLOSSARY.md). **Further reading**: [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
#
# **Next:** your own training.

# %%
check.status()
