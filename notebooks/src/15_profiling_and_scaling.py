# ---
# jupyter:
#   labkit:
#     sections: ["10.5.3", "10.6.3", "19.5.1", "19.6.5", "19.8.6", "19.10", "D-scale"]
#     needs: ["chapter 03"]
#     minutes: 60
# ---

# %% [markdown] sections="19.8.6"
# # Profiling and scaling
#
# *About an hour. You need chapter 03, and chapter 08 helps. No GPU is needed.*
#
# Our 7 B model trains on eight cards. No log has an error, and the loss falls. But the cards compute 60 % of the time only. So of every 100 dollars that we pay, 40 buy waiting. Waiting for what? And if we rent sixteen cards, will the training be twice as fast, or will the other eight wait as well?

# %%
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import labkit as lab
from labkit import model, planner, profiling, scaling, timeline, widgets
from labkit.profiling import check
from labkit.scaling import check as scaling_check

lab.begin("en", deadline_s=60)
ours = next(check.cases()).timeline
lab.show(ours, title="Our eight cards, three steps")

# %% [markdown]
# Simulated, and in small: three steps of a model of four layers stand for ours. Seven cards wait (hatched), while their all-reduces last and last (red). One row differs. Is it the culprit or the victim, and what would it save to cure it?
#
# **When you are done** you can record a training on all its ranks and say who waits for whom; know what a change brings before you make it; and measure how well a training scales, and where the rest went.

# %% [markdown] sections="10.5.3"
# ## By hand: look at one rank
#
# First, plain torch. A *profiler* notes what a program does, and when. Here are the forward and backward of a training with DDP on two ranks; the optimizer is left out, because it sends nothing. One of the two may be slow: before each step it sleeps, noted as computing, for as long as a slow card would compute longer.


# %%
def train(net, slow, num_steps=2):
    tokens, targets = model.story_tokens(8, 32)
    for _ in range(num_steps):
        if dist.get_rank() == slow:
            profiling.slow_compute(0.2)  # seconds
        net.zero_grad()
        model.loss(net(tokens), targets).backward()


# %% [markdown]
# Torch's profiler runs around two steps. Afterwards we ask for what took longest:


# %%
def profiled(slow):
    net = DistributedDataParallel(model.Transformer(2))
    train(net, None)  # the first two steps also set things up
    with torch.profiler.profile() as profiler:
        train(net, slow)
    # without autograd's wrappers, which repeat what they call
    events = [each for each in profiler.key_averages() if "::eval" not in each.key]
    events.sort(key=lambda event: event.cpu_time_total, reverse=True)
    return {event.key: event.cpu_time_total for event in events[:6]}


mine = lab.launch(profiled, 1, ranks=2)
lab.bars(mine[0], unit="us", title="Rank 0: six longest")

# %% [markdown]
# The names are torch's own, and a caller's time includes that of what it calls. Rank 0 spends about 400 ms or more of two steps in all-reduces. Rank 1, the slow one, is not in the picture: one rank's [profile](GLOSSARY.md#profile) does not tell what it waits for. So we record all ranks, on one clock. Before you look: how long is the *slow* rank in its all-reduces?

# %%
slow_one = lab.guess("ms in all-reduces, the slow rank", between=(0, 1000), unit="ms")


# %%
def recorded(slow):
    net = DistributedDataParallel(model.Transformer(2))
    train(net, None)
    profiling.recorded(train, net, slow)


line = lab.launch(recorded, 1, ranks=2).timeline()
line = line.select(line.lane != "mark")  # torch's notes on its own functions
lab.show(line, title="Two steps, rank 1 is slow")

# %%
slow_one.score(timeline.busy_us(line, "comm")[1] / 1e3)

# %% [markdown]
# Measured. Look at the thin bars, and at the column "communication": rank 0's all-reduces last much longer, and not because rank 0 is slow. Each begins as soon as *its* gradients are there, and ends when rank 1 has come. Rank 1 waits little: it computes. So where all ranks do the same work and one stands out, those that spend most time "communicating" are the victims, and the guilty one looks innocent. (Stages of a pipeline differ anyway.) A monitor that adds up communication per card points at the wrong cards.

# %% [markdown]
# ## Four troubles and their signs
#
# Most slow steps have one of four troubles. Each leaves a sign in the picture:
#
# | trouble | sign | first cure |
# | --- | --- | --- |
# | [straggler](GLOSSARY.md#straggler) | one rank hardly waits, the others do | mend that rank |
# | [bubble](GLOSSARY.md#bubble)-bound | a staircase of idle time, pipelines only | more microbatches |
# | communication-bound | all ranks still in messages after the backward | overlap, fewer bytes |
# | input-bound | all ranks idle before the forward, while a batch is read (thin brown bar) | read ahead |
#
# You have met the straggler. The board begins with the staircase: a pipeline of four stages, simulated as it is, and below with the one change that would help most. Then choose each other trouble in the list ("one slow rank", "slow link", "waits for data"), and find its sign. Communication is called [exposed](GLOSSARY.md#exposed-communication) where no computing hides it. What lies on the *critical path* can't take longer without the whole taking longer.

# %%
widgets.bottlenecks(kind="bubble", severity=1.0)

# %% [markdown]
# Twice as many microbatches are in flight after the change, each half as large, so the memory stays.
#
# ### Ask for advice
#
# The board's advice is from `lab.advise`, which reads any recording. It finds what each span waited for, plays copies of the timeline with ten possible changes, one at a time, and names the change that saves most. Next, a step of 93 ms: its four messages begin under the backward and take 71 ms, one after another. Half the bytes, in bf16 say, would take about half as long. Which share of the step would that save?

# %%
halved = lab.guess("share of the time that half the bytes save", between=(0, 1))

# %%
slow_link = profiling.Bottleneck(kind="link", severity=0.5).predict()
advice = lab.advise(slow_link)
advice

# %%
halved.score(advice.best.gain)

# %% [markdown]
# Half of what messages take of the critical path (the line below the picture): half of 77 % is 38.5 %. It is not half of the exposed 57.5 %. The first messages are hidden under the backward, but the later ones queue behind them, so they lie on the path too. This holds while messages stay on the path. From a link about three times as quick, all but the last hide under the backward, and more speed gains little.
#
# ### Does the promise hold?
#
# This is a promise, by simulation. So we take three such steps on real ranks at stated times ([paced](GLOSSARY.md#paced)), ask for advice, make the change, and run again. Both are run three times, and the picture shows the quickest run of each, since any disturbance can only delay. Will the promise be kept?

# %%
profiling.prove("link", severity=0.5, runs=3)

# %% [markdown]
# The figure's last line has both numbers; the first one is now made from the recording. Where they are about equal, the promise was kept. If the messages took clearly more than half as long as before (the table's column "communication"), it wasn't: what a message costs besides its bytes does not shrink. Then look for one unlucky step, which counts for a third here; where one [overran](GLOSSARY.md#overran), something took longer than stated. Before you believe a gain, repeat it with more steps.
#
# None of this needs a notebook: `python -m labkit record train.py --using torchrun --ranks 4` records an unchanged script and advises.
#
# <details><summary>And on GPUs?</summary>
#
# A GPU call returns before its work is done, so the CPU's times say little. Run every rank under a profiler that sees the GPU too (`rank` is `dist.get_rank()`):
#
# ```python
# from torch.profiler import ProfilerActivity, profile, schedule
#
# profiler = profile(
#     activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
#     schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
#     on_trace_ready=lambda p: p.export_chrome_trace(f"trace{rank}.json"),
# )
# profiler.start()
# for batch in loader:
#     train_step(batch)
#     profiler.step()
# profiler.stop()
# ```
#
# Open the files in Perfetto (ui.perfetto.dev). An NCCL kernel lasts from the moment its own rank is ready: it contains the waiting, as the thin bars do here. Clocks of two machines differ, but all ranks leave an all-reduce at nearly the same time, so align the traces there.
#
# </details>

# %% [markdown] sections="19.8.6"
# ## Eight cards at 60 %
#
# Back to the first picture. Whom do they wait for, and what tells you without any advice? And what would the cure save?

# %%
lab.advise(ours).best

# %% [markdown] sections="19.8.6"
# For rank 3. Its all-reduces are the shortest, because each of them lasts until it comes. It is busy 99 % of the time, the other seven 56 %: on average about 60 %. The cure saves 43 % of the time, even a little more than was spent on waiting, because rank 3 computes faster, too.
#
# ## Exercise 1. Whom do they wait for?
#
# Write the monitor that does not point at the wrong cards. From the time that each rank spends in messages, return the number of the rank for which the others wait, or None if there is none. Small differences accuse nobody, so a rank must spend less than half the time in messages that another does. Six timelines: the first is ours, the others are of four ranks, one of them a pipeline, whose stages wait for one another in turn. `for case in check.cases(): lab.show(case.timeline)` draws them. Say your answer to each before you run the check.


# %%
def my_straggler(line):
    """The rank that the others wait for, or None."""
    messages_us = timeline.busy_us(line, "comm")  # an array: one number a rank
    ### BEGIN SOLUTION
    much_less = messages_us.min() < messages_us.max() / 2
    return int(messages_us.argmin()) if much_less else None
    ### END SOLUTION


# %%
check.straggler(my_straggler)

# %%
check.hint("straggler")

# %% [markdown] sections="19.5.1"
# ## A step that waits for its data
#
# The fourth trouble is cured most easily. Two ranks take eight steps of 60 ms; a batch takes 90 ms to read and decode:
#
# ```python
# loader = DataLoader(dataset, num_workers=0)  # 0: the training's own process reads
# for batch in loader:  # 90 ms
#     compute(batch)    # 60 ms
# ```
#
# Read, compute, read, compute, never both: 8 × 150 = 1,200 ms. With `num_workers=2` two more processes read, each up to `prefetch_factor` (2 by default) batches ahead. What is left to wait for?

# %%
scaling.Feeding(workers=2, read_ms=90, step_ms=60).compare()

# %% [markdown]
# A batch comes every 45 ms now, so a step of 60 ms need not wait. Only the first batch is read while nobody computes: 90 ms, and in the measured half of the picture more, because the workers have to start first. That is a good part of eight steps, and little in a training of hours. (It comes again at each epoch; with `persistent_workers=True` the workers start only once.) One worker would not be enough: 90 ms of reading can't hide under 60 ms of computing.
#
# <details><summary>And on to the GPU</summary>
#
# `pin_memory=True` makes the loader put batches into [pinned memory](GLOSSARY.md#pinned-memory), from which a device copies by itself: `batch.to(device, non_blocking=True)` returns at once, and the copy goes on beside the step before.
#
# </details>

# %% [markdown] sections="19.5.1"
# ## Exercise 2. Cure a training
#
# This training does everything after everything else, with batches from a function and not from a Dataset:
#
# ```
# for step in range(num_steps):
#     batch = load(step)
#     gradients = list(forward_backward(batch))  # a generator, the last layer first
#     for gradient in gradients:
#         send(gradient)
#     update(gradients)
# ```
#
# `check.watch()` records it on two real ranks.

# %%
lab.show(check.watch(), title="Everything after everything else")

# %% [markdown]
# Which two things could go on beside the computing? Write it so that it takes 35 % less time and ends with the same weights, and look at your own with `check.watch(my_training)`. A `ThreadPoolExecutor(1)` does one thing after another in a thread of its own. How many of them do you need?


# %%
def my_training(load, forward_backward, send, update, num_steps):
    ### BEGIN SOLUTION
    with ThreadPoolExecutor(1) as loader, ThreadPoolExecutor(1) as link:
        coming = loader.submit(load, 0)
        for step in range(num_steps):
            batch = coming.result()
            if step + 1 < num_steps:
                coming = loader.submit(load, step + 1)
            gradients, sent = [], []
            for gradient in forward_backward(batch):
                gradients.append(gradient)
                sent.append(link.submit(send, gradient))
            for each in sent:
                each.result()
            update(gradients)
    ### END SOLUTION


# %%
check.cure(my_training)

# %%
check.hint("cure")

# %% [markdown] sections="19.6.5, D-scale"
# What you have written here, DataLoader's workers and DDP's buckets do for you in every training.
#
# ## Does it scale?
#
# Sixteen cards for eight. The [speedup](GLOSSARY.md#speedup) is how many times as many samples a second we get. The [scaling efficiency](GLOSSARY.md#scaling-efficiency) is what we got of what we paid for: the actual speedup over the theoretical one, which is N for N ranks. If a step of 80 ms takes 26 ms on four ranks, that is 80 / 26 / 4 = 0.77. There are two ways to ask:
#
# - *Strong* scaling: the batch stays, so a step should take 1/N of the time.
# - *Weak* scaling: each rank keeps its batch, so a step should take as long as before and do N times as much.
#
# Here is a small transformer with DDP on one, two and four ranks. A step has 16 samples of 6 ms each, and 2 ms that can't be divided: 98 ms on one rank. The gradients go in two buckets, our pretend link takes half a millisecond for any message and one more for the bytes of a whole bucket, and a ring of N ranks sends each bucket in 2(N-1) messages of 1/N of it, one after another. What efficiency is left on four ranks, by simulation?

# %%
left = lab.guess("simulated: efficiency on four ranks, strong scaling", between=(0, 1))

# %%
strong = scaling.Scaling(kind="strong", batch=16, sample_ms=6.0, fixed_ms=2.0)
compared = strong.compare()
compared

# %%
left.score(compared.predicted.efficiency())

# %% [markdown]
# Four ranks have four samples each and the same 2 ms. The first bucket's messages hide under the backward. The last one's six take 0.5 ms, and a quarter for their bytes, each: 4.5 ms, and 98 / 30.5 / 4 = 0.80. That is the line, simulated; the dots are measured on real ranks at a stated pace, and the dashed 80 % are a rule of thumb, no more. Why does the line fall so steeply? The messages' bytes get smaller with N, but the latency of each does not, and their number grows. In a cluster a latency is some ten microseconds, so the same fall comes at far more ranks.
#
# What was lost, and to what? The bars show it; the share of "computing as on one rank" is the efficiency. By simulation four ranks lose 15 % to messages and 5 % to what does not divide. If the measured bar has less left, see which parts have grown: as a rule communication, and waiting for a slower rank. Our ranks sleep instead of computing, which takes no core, but their messages need cores, and four ranks share a few. So take home which part is the largest, not how large it is.
#
# <details><summary>How do we know? And why not eight ranks?</summary>
#
# Each number of ranks was measured in three ways. One rank *alone* with its share of the batch shows what does not divide. All ranks computing, but *silent*, show what they take from each other without any message: contention. The whole step shows the rest; waiting runs from a rank's last gradient to the slowest rank's. A part that the clock's noise makes negative is left out, so a bar may pass 100 %. `scaling.report([compared.measured], "scaling.html")` makes a page of it for your colleagues. And on two cores, eight ranks get in each other's way even if they mostly sleep: ask `strong.but(ranks=(1, 2, 4, 8)).refusal()`.
#
# </details>
#
# ### Two laws
#
# Amdahl (1967) asked what a fixed piece of work can gain: if the share s can't be divided, N ranks make it $1/(s + (1-s)/N)$ times as fast. Gustafson (1988) answered that nobody buys 64 cards to do the same work: let it grow with them. Say that 5 % can't be divided.

# %%
lab.table(
    {
        "ranks": num,
        "times as fast (Amdahl)": 1 / (0.05 + 0.95 / num),
        "times as fast, grown work (Gustafson)": 0.05 + 0.95 * num,
    }
    for num in (8, 64, 512)
)

# %% [markdown]
# By Amdahl 64 ranks are 15.4 times as fast at most, and no number of ranks makes it more than 1 / 0.05 = 20. By Gustafson they do the grown work 60.8 times as fast as one rank would, because the serial part of a step does not grow with the work. Neither law knows messages: both say what is possible at best. So is weak scaling the honest measure? It is the kind one: with ever larger batches the steps to the same loss do not fall for ever ([chapter 12](12_large_batches.ipynb)). Always say which one you mean.
#
# ### And with messages?
#
# What do they leave of it? The board begins with the weak case: four samples a rank, up to 64 ranks. Compare it with the strong one. Which change helps each of them most? And is a link of 10 GB/s the cure?

# %%
widgets.scaling(kind="weak")

# %% [markdown]
# <details><summary>What you should have seen</summary>
#
# Samples help most in both cases: the longer one computes, the smaller the share of all else. A narrower model comes next: its gradients fill fewer buckets, so fewer messages pay the latency. A link of 10 GB/s hardly helps, since no bandwidth shortens a latency.
#
# </details>

# %% [markdown] sections="19.6.5"
# ## Exercise 3. Somebody else's table
#
# A colleague sends you a table: ranks, samples that all of them together process in a step, milliseconds of the step. Some rows kept the batch of all ranks, some that of a rank, some changed it, and the first row is not always one rank. Return the efficiency of every row against the first.


# %%
def my_efficiency(rows):
    """rows: [{"ranks": 2, "samples": 32, "step_ms": 40.0}, ...]. A list: 1.0 first."""
    ### BEGIN SOLUTION
    speeds = [row["samples"] / row["step_ms"] / row["ranks"] for row in rows]
    return [speed / speeds[0] for speed in speeds]
    ### END SOLUTION


# %%
scaling_check.efficiency_of(my_efficiency)

# %%
check.hint("efficiency_of")

# %% [markdown] sections="10.6.3, 19.8.6"
# ## How near is the peak?
#
# Efficiency compares a training with itself on one card. A training that wastes half of each card can still scale beautifully. So count the operations, 6 for each weight and token (2 in the forward, 4 in the backward) and some for attention, and divide by what the cards could have done in that time. That is [MFU](GLOSSARY.md#mfu), model FLOPs utilization (Chowdhery et al. 2022). The operations come from a formula, so what is computed twice, as in recomputation, counts once.
#
# A GPU's peak stands in its data sheet. A CPU's we measure, as the best of some large matrix products. What share of it does a training step of our small transformer reach?

# %%
near = lab.guess("MFU of a training step on this CPU", between=(0, 1))

# %%
found = lab.launch(scaling.utilization, ranks=1)[0]
reached = found["flops"] / (1e-6 * found["step_us"])
rates = {
    "large matrix products: the peak": found["peak_flops_per_s"],
    "training step": reached,
}
lab.bars(
    {name: rate / 1e9 for name, rate in rates.items()},
    title="Billions of operations a second",
)

# %%
near.score(reached / found["peak_flops_per_s"])

# %% [markdown]
# Measured: the MFU is the lower bar over the upper one. For comparison, PaLM with 540 B parameters reached 46 % on 6,144 chips (Chowdhery et al. 2022). The two are not alike, even where ours is higher: our peak is measured and not a data sheet's, and one rank sends no messages. Where does the rest go? Our matrices are small, and between them many light operations read and write memory without computing much. `torch.compile(net)` fuses those into a few. On a GPU, `scaling.utilization(compiled=True)` measures both.
#
# <details><summary>And while it trains?</summary>
#
# Rank 0 alone writes such numbers, for TensorBoard say, and the loss is averaged over the ranks first. `scaling.monitored` is a small training that does so.
#
# </details>

# %% [markdown] sections="19.10, D-scale"
# ## When is it worth it?
#
# Sixteen cards for eight, and why not 1,024? The batch of our 7 B model is 1,024 sequences, and stays: strong scaling again. Cards used half as well need twice as many card-hours, so the price is proportional to 1 / MFU, and the planner knows the MFU (A100 of 80 GB, eight to a machine, 25 GB/s a card between machines; nobody is slow). How many times as much will the training cost on 1,024 cards as on eight?

# %%
dear = lab.guess("price on 1,024 cards over price on 8", between=(0.5, 10))

# %%
plan = planner.Plan(model="LLaMA 7B", zero=1, batch=1024)  # ZeRO 1, chapter 06
cards = [8, 16, 32, 64, 128, 256, 512, 1024]
mfu = {each: plan.but(gpus=each).mfu() for each in cards}
price = {each: mfu[8] / mfu[each] for each in cards}
axes = {"x": "cards", "y": "price, 8 cards = 1", "log_x": True}
lab.curves(predicted={"7 B model": price}, **axes, title="Price of the training")

# %%
dear.score(price[1024])

# %% [markdown]
# Predicted, and a planner's MFU is a bound: real runs reach less. Every card has less to compute, and its messages stay as large. For the speed, divide the number of cards by eight and by the price: 1,024 cards are 128 / 2.26 = 57 times as fast as eight. Being in a hurry costs 2.26 times as much.
#
# ### The answer to our opening
#
# What do 40 of our 100 dollars buy? Waiting for one card, rank 3. Mend it first: the same training takes 43 % less time, on the same eight cards. Then rent: sixteen cards are 2 / 1.015 = 1.97 times as fast, for 1.5 % more. In the other order fifteen cards would wait for rank 3.

# %% [markdown]
# ## Summary
#
# - Record all ranks on one clock. Where all ranks do the same work and one stands out, those that communicate longest are the victims; the guilty one makes them wait.
# - Change the timeline first and the program second: `lab.advise` says what a change would bring, a second run tests it.
# - A step that waits for data needs workers that read ahead: reading time over step time, rounded up (90 / 60: two).
# - Efficiency is actual over theoretical speedup. Say strong or weak, and what the rest was lost to.
# - MFU compares with the card's peak, and shows waste that scaling hides.
#
# **Words learned**: [profile](GLOSSARY.md#profile), [speedup](GLOSSARY.md#speedup), [scaling efficiency](GLOSSARY.md#scaling-efficiency), [strong and weak scaling](GLOSSARY.md#strong-and-weak-scaling), [MFU](GLOSSARY.md#mfu).
#
# **Next:** [unequal machines, and serving](16_unequal_machines_and_serving.ipynb): what if some cards are slower for good, and what if the model has been trained?

# %% [markdown] sections="19.6.5, 19.8.6"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Two errata</summary>
#
# <details><summary>Erratum 19.6.5: efficiency as theoretical over actual speedup</summary>
#
# Do not divide the other way round, as the textbook's monitor does: theoretical over actual gives 130 % for a step of 80 ms that takes 26 ms on four ranks. Run it: `scaling.efficiency(80, 26, 4)` gives 0.77.
#
# </details>
#
# <details><summary>Erratum 19.8.6: forward 30 %, backward 35 % of a step</summary>
#
# The textbook's diagnosis starts from such a step. But each matrix product of the forward has two in the backward, so expect twice the forward, and look for an error of measurement where you see less. Run it: `scaling.training_flops(1, 1)` gives 6.
#
# </details>
#
# </details>
#
# ## Further reading
#
# - MFU: Chowdhery et al. 2022, appendix B, [arXiv 2204.02311](https://arxiv.org/abs/2204.02311)
# - The laws: Amdahl 1967, [doi 10.1145/1465482.1465560](https://doi.org/10.1145/1465482.1465560); Gustafson 1988, [doi 10.1145/42411.42415](https://doi.org/10.1145/42411.42415)
# - [torch.profiler](https://docs.pytorch.org/docs/stable/profiler.html) and [DataLoader](https://docs.pytorch.org/docs/stable/data.html)

# %%
check.status()
