# ---
# jupyter:
#   labkit:
#     sections: ["8.6.1", "8.6.2", "10.3.2", "19.3.2", "S7"]
#     needs: ["DeepSpeed (installed with labkit)"]
#     minutes: 60
# ---

# %% [markdown]
# # Pipeline parallelism
#
# *Sections 8.6.1, 8.6.2, 10.3.2, 19.3.2 and S7 of the source material. About an hour. No GPU is needed.*
#
# A model too large for one device can be cut into **stages**, one per device. Activations travel forward through the stages, gradients travel back. Whenever a device waits for another, it is idle; that idle time is the **bubble**.
#
# You will build a pipeline from send and recv, predict the bubble of seven schedules, run each of them on real processes, and lay both on one time axis. At the end, PipeDream, which has no bubble and pays for it in another coin.

# %%
import labkit as lab

lab.begin("en")
from labkit import model, pipeline, widgets
from labkit.pipeline import pipedream_run
from labkit.pictures import scene
from labkit.pipeline import check
from labkit.pipeline.schedules import TITLES, one_f_one_b, parse, validate
from labkit.pipeline.simulation import Cost, bubble_formula, in_flight, simulate
from labkit.timeline import bubble


def draw(timeline, title, **options):
    widgets.show(scene.timeline(timeline, title=title, **options))


# %% [markdown] sections="S7"
# ## Two stages by hand
#
# Rank 0 holds the first half of a small transformer, rank 1 the second half. For each microbatch: rank 0 computes and sends, rank 1 computes forward and backward and sends the gradient back, rank 0 computes backward. `Paced` makes a stage take a stated time; more about it below.


# %%
def two_stages(num_microbatches, forward_us):
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.measure import pace, trace
    from torch.profiler import record_function as name

    torch.manual_seed(0)
    me = dist.get_rank()
    half = model.split(model.Transformer(2, 32, 2), 2)[me]
    stage = pace.Paced(half, forward_us=forward_us)
    tokens, targets = model.story_tokens(num_microbatches, 32)
    dist.barrier()
    with trace.record():
        for k in range(num_microbatches):
            x, grad = torch.empty(1, 32, 32), torch.empty(1, 32, 32)
            if me == 0:
                with name(f"0F{k}"):
                    y = stage(tokens[k : k + 1])
                dist.send(y.detach(), 1), dist.recv(grad, 1)
                with name(f"0B{k}"):
                    y.backward(grad)
            else:
                dist.recv(x, 0)
                with name(f"1F{k}"):
                    loss = model.loss(stage(x.requires_grad_()), targets[k : k + 1])
                with name(f"1B{k}"):
                    (loss / num_microbatches).backward()
                dist.send(x.grad, 0)
    return {f"layers.{key}": weight.grad for key, weight in half.named_parameters()}


# %%
by_hand = lab.launch(two_stages, 2, 20_000, ranks=2, timeout_s=40)
draw(by_hand.timeline(), "send / recv")

# %% [markdown]
# No two boxes lie above each other: rank 0 waits for the gradient of microbatch 0 before it starts microbatch 1. Each rank is idle half of the time.
#
# The gradients are right, though. The largest difference from the same batch on one process, over all weights:

# %%
import torch

torch.manual_seed(0)
whole = model.Transformer(2, 32, 2)
tokens, targets = model.story_tokens(2, 32)
model.loss(whole(tokens), targets).backward()
gradients = by_hand[0] | by_hand[1]
max(
    (gradients[name] - weight.grad).abs().max().item()
    for name, weight in whole.named_parameters()
)

# %% [markdown] sections="S7"
# ### The hand-written pipeline of S7
#
# S7 puts two stages on two devices, drives both from **one** process, and calls `output.backward(micro)`. First the loop as printed (smaller sizes; one device stands for both). It does not survive its first backward: what `backward` takes is a gradient of the output's shape, and `micro` is the input.


# %%
def textbook_s7(as_printed):
    import torch
    from labkit.measure import pace, trace
    from torch import nn
    from torch.profiler import record_function as name

    stage1 = pace.Paced(nn.Sequential(nn.Linear(16, 32), nn.ReLU()), forward_us=20_000)
    stage2 = pace.Paced(
        nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10)),
        forward_us=20_000,
    )
    microbatches, outputs = torch.randn(8, 16).split(2), []
    with trace.record():
        for k, micro in enumerate(microbatches):
            with name(f"0F{k}"):
                x = stage1(micro)
            with name(f"1F{k}"):
                outputs.append(stage2(x))
    for output, micro in reversed(list(zip(outputs, microbatches))):
        if as_printed:
            output.backward(micro)
        else:
            output.square().mean().backward()  # a scalar loss needs no gradient from outside


# %%
try:
    lab.launch(textbook_s7, True, ranks=1, timeout_s=30)
except lab.RankFailed as verdict:
    print(str(verdict).partition("\n")[0])

# %% [markdown]
# With a loss it runs. Here are its forwards, one row for each of the two **devices** (both are driven by the one process): cut into microbatches, and yet the devices take turns. Microbatches help only if a stage starts the next one while the other stage still works on the last. Which stage does what when is a **schedule**, and schedules are what this chapter is about. (On two GPUs, where a call returns before its work is done, some forwards may happen to overlap; nothing in this loop sees to it.)

# %%
from dataclasses import replace


def boxes(run):
    """What a run computed, without its messages."""
    timeline = run.timeline()
    return timeline.select(timeline.lane == "compute")


s7 = boxes(lab.launch(textbook_s7, False, ranks=1, timeout_s=30))
stage_of_box = torch.tensor([int(label[0]) for label in s7.label]).numpy()
draw(
    replace(s7, rank=stage_of_box, num_ranks=2),
    {
        "en": "S7: one process, rank 0 = dev0, rank 1 = dev1",
        "zh": "S7：一个进程，rank 0 = dev0，rank 1 = dev1",
    },
)

# %% [markdown] sections="8.6.1"
# ## Four stages, one microbatch at a time
#
# **What "paced" means.** Four ranks on two cores would fight for the cores, and the picture would show that fight. So every stage does its real work and then sleeps until a stated time has passed: here a forward takes `forward_ms` milliseconds and a backward twice that. Processes, messages and order are real; only the durations are stated. Every picture says "paced" where that was done.
#
# The thin strips below a rank are its messages. A send lasts until somebody looks whether it has arrived; torch looks late.
#
# This is the **naive** pipeline: one microbatch in flight. How many of four ranks work at any moment?

# %%
naive = pipeline.Step(schedule="naive", ranks=4, microbatches=2, forward_ms=25)
runs = {"naive": naive.run()}
draw(runs["naive"].timeline(), naive.title())

# %% [markdown]
# One of p ranks works, so the bubble is $(p-1)/p$. The 75 % of section 8.6.1 is right, and more microbatches do not change it:

# %%
for m in (1, 2, 8):
    predicted = naive.but(microbatches=m).predict()
    print(f"m = {m}   (p-1)/p = {3 / 4:.3f}   simulated {bubble(predicted):.3f}")
print(f"measured, m = 2: {bubble(runs['naive'].timeline()):.3f}")

# %% [markdown] sections="8.6.1, 19.3.2"
# ## GPipe: predict, simulate, run, compare
#
# GPipe cuts the batch into m microbatches and sends all of them forward before the first goes back. Four stages, eight microbatches, backward twice as long as forward.
#
# **Predict.** What share of the ranks' time is idle? `27 %`, `0.27` and `3/11` all mean the same to the field.

# %%
my_bubble = lab.guess(
    {
        "en": "idle share of GPipe, 4 stages, 8 microbatches",
        "zh": "GPipe 的空闲占比：4 个 stage，8 个微批次",
    },
    between=(0, 1),
)

# %% [markdown]
# **Simulate.** A schedule is only an order per rank: `2F0` means stage 2, forward, microbatch 0. Give each action a duration, start it as soon as its rank is free and its input is there, and the order becomes a timeline. `step.order()` is the one, `step.predict()` the other.

# %%
step = pipeline.Step(schedule="gpipe", ranks=4, microbatches=8, forward_ms=25)
predicted = step.predict()
print(step.order())
draw(predicted, step.title())
print(f"simulated {bubble(predicted):.3f}, formula {step.formula():.3f}")
my_bubble.score(bubble(predicted))

# %% [markdown]
# **Run.** Four processes train the small transformer through `torch.distributed.pipelining`. **Compare.** Prediction above, measurement below, one axis; the dashed line is the predicted end.

# %%
runs["gpipe"] = step.run()
step.compare()

# %% [markdown]
# Where does the difference come from? The sentence under the picture says how much longer than predicted all ranks together were idle, and why: actions took other than their stated time, messages were not free, ranks began late, or there was work between actions, such as the loss.
#
# See for yourself, in the **trace viewer**. Point at a box: its times, and the same action in the other half. Click a message: an arrow to the one that receives it. Drag over a window: what each rank did in it. After a click `+ - 0`, the arrow keys, `n` and `p` work too.

# %%
widgets.trace(predicted, runs["gpipe"], title=step.title())

# %% [markdown]
# Each rank works for m microbatches and waits for p - 1. Over **total** time that is $(p-1)/(m+p-1)$; over the **ideal** time, without waiting, it is $(p-1)/m$. Say which one you mean: section 8.6.1 gives "about 50 %" for four stages and four microbatches, and neither is 50 %.

# %%
print("  m   of total  simulated   of ideal")
for m in (1, 2, 3, 4, 8, 16, 32):
    each = step.but(microbatches=m)
    of_ideal = bubble_formula(each.order(), over="ideal")
    print(
        f"{m:3}   {each.formula():8.1%} {bubble(each.predict()):10.1%} {of_ideal:10.1%}"
    )

# %% [markdown]
# On real ranks too: `lab.sweep` varies one field of the step, predicts at every value, and runs at those in `run`. The dot at 8 is the run above.

# %%
lab.sweep(step, microbatches=[1, 2, 4, 8, 16, 32], run=[2, 8])

# %% [markdown] sections="10.3.2, 19.3.2"
# ## 1F1B: the same bubble, less memory
#
# GPipe keeps the activations of all m microbatches until their backwards. 1F1B (PipeDream-Flush in section 10.3.2) lets a rank run p - 1 - r forwards to fill the pipeline, and then one forward, one backward in turn: every backward frees an activation.
#
# **Predict.** Section 19.3.2 says 1F1B reduces the bubble. What will it be with four ranks and eight microbatches?

# %%
my_bubble = lab.guess(
    {
        "en": "idle share of 1F1B, 4 stages, 8 microbatches",
        "zh": "1F1B 的空闲占比：4 个 stage，8 个微批次",
    },
    between=(0, 1),
)

# %%
step = step.but(schedule="1f1b")
runs["1f1b"] = step.run()
measured = runs["1f1b"].timeline()
print(f"simulated {bubble(step.predict()):.3f}, measured {bubble(measured):.3f}")
display(step.compare())
my_bubble.score(bubble(step.predict()))

# %% [markdown]
# It has not moved: GPipe and 1F1B both pay p - 1 microbatches to fill the pipeline and to drain it, as does any order with one stage per rank whose backwards are in one piece. (Interleaving and zero bubble, below, change just that.) What changed is the bar at the right of each row: the microbatches whose activations a rank holds at its peak. Simulated from the order, and measured, in the very same runs, as the bytes that autograd kept:

# %%
print("rank   GPipe: held   measured     1F1B: held   measured")
for rank in range(4):
    cells = [
        f"{in_flight(step.but(schedule=name).order())[rank]:11} {runs[name][rank]['peak_activation_bytes'] / 1000:8.0f} kB"
        for name in ("gpipe", "1f1b")
    ]
    print(f"{rank:4}   {'    '.join(cells)}")

# %% [markdown]
# Rank r of 1F1B holds at most min(m, p - r) microbatches, however large m is. So the bubble can be made small by a large m, which memory would forbid under GPipe. This 1F1B updates once per batch and needs no versions of the weights; those belong to PipeDream, below.

# %% [markdown] sections="8.6.1, 10.3.2, 19.3.2"
# ## The textbook's charts, judged
#
# Below are four charts of the sources, a box per step, microbatches counted from 0. First the "naive" one of 8.6.1. If it were naive, one rank would work at a time.

# %%
CHARTS = {
    "8.6.1 naive": "F0 .  F1 .  F2 .  F3 .  .  . | .  F0 .  F1 .  F2 .  F3 .  . |"
    ".  .  F0 .  F1 .  F2 .  F3 . | .  .  .  F0 .  F1 .  F2 .  F3",
    "8.6.1 GPipe": "F0 F1 F2 F3 . B0 B1 B2 B3 | . F0 F1 F2 F3 B0 B1 B2 B3 |"
    ". . F0 F1 F2 F3 B0 B1 B2 B3 | . . . F0 F1 F2 F3 B0 B1 B2 B3",
    "10.3.2 1F1B": "|".join(
        ". " * rank + "F0 F1 F2 F3 B0 B1 B2 B3" for rank in range(4)
    ),
    "19.3.2 GPipe": "|".join(
        ". " * rank + "F0 F1 F2 F3 B3 B2 B1 B0" for rank in range(4)
    ),
}
rows = [row.split() for row in CHARTS["8.6.1 naive"].split("|")]
at_work = [sum(box != "." for box in step) for step in zip(*rows)]
print(
    f"ranks at work in each step: {at_work}, idle as drawn: {1 - sum(at_work) / 40:.0%}"
)

# %% [markdown]
# Two ranks work at once: that chart is a pipeline already (without backward), and its bubble is not the 75 % written under it.
#
# The other three have backwards. `validate` asks whether each rank's order can run at all. `simulate` then says in which step each box can stand at the earliest, if forward and backward take one step each. A box drawn before that is impossible.


# %%
def judge(chart):
    rows = [row.split() for row in chart.split("|")]
    drawn = {
        f"{rank}{box}": step
        for rank, row in enumerate(rows)
        for step, box in enumerate(row)
        if box != "."
    }
    orders = [
        " ".join(f"{rank}{box}" for box in row if box != ".")
        for rank, row in enumerate(rows)
    ]
    order = parse("\n".join(f"rank {rank}: {text}" for rank, text in enumerate(orders)))
    validate(order)
    possible = simulate(order, Cost(forward_us=1, backward_us=1))
    starts = dict(zip(possible.label.tolist(), possible.start_us.astype(int).tolist()))
    early = sorted((step, box) for box, step in drawn.items() if step < starts[box])
    print(
        f"drawn too early: {len(early)} of {len(drawn)} boxes; microbatches held: {in_flight(order)}"
    )
    print(
        *(
            f"first of them: {box} in step {step}, possible in step {starts[box]}"
            for step, box in early[:1]
        )
    )
    return possible


# %%
for title in ("8.6.1 GPipe", "10.3.2 1F1B", "19.3.2 GPipe"):
    print(title)
    possible = judge(CHARTS[title])

# %% [markdown]
# The orders can run; the times cannot. In all three, stage 0 starts a backward before stage 1 has done its own: the backward has to begin on the **last** stage and march to stage 0. The chart that 10.3.2 calls 1F1B holds four microbatches on every rank, so it is GPipe's order. The last chart with its boxes where they can stand:

# %%
draw(
    replace(possible, start_us=possible.start_us * 1000, end_us=possible.end_us * 1000),
    "19.3.2, 1 step = 1 ms",
)

# %% [markdown] sections="8.6.1"
# ## All schedules in one table
#
# What does shrink the bubble? *Interleaved 1F1B* gives each rank two smaller stages: filling takes half as long. *Zero bubble* splits a backward into I (gradient of the input, for which the previous stage waits) and W (gradient of the weights, for which nobody waits) and fills the gaps with W. *ZBV* does both, its stages laid out in a V.

# %%
for name in ("interleaved_1f1b", "zb_h1", "interleaved_zb", "zbv"):
    runs[name] = step.but(schedule=name).run()
step.but(schedule="zbv").compare()

# %%
print(f"{'p = 4, m = 8':<24} formula simulated measured   peak in flight, per rank")
for name, run in runs.items():
    each = step.but(schedule=name, microbatches=2 if name == "naive" else 8)
    order, formula = each.order(), each.formula()
    print(
        f"{TITLES[name]:<24} {'-' if formula is None else f'{formula:.3f}':>7} {bubble(each.predict()):9.3f}"
        f" {bubble(run.timeline()):8.3f}   {in_flight(order)} / {order.num_stages // 4}"
    )

# %% [markdown]
# Reading the table:
#
# - In flight counts stage activations; where a rank holds two stages, each is half as large ("/ 2").
# - With two stages per rank, every action is half as long and there are twice as many messages: the measured bubble lies further above the simulated one.
# - ZBV's formula is 0, the simulation's bubble is not. The formula counts each rank from its own first action to its own last; our bubble counts every rank from the first action of all. The ranks start one after another, and that stagger is all there is:

# %%
simulated = step.but(schedule="zbv").predict()
for rank in range(4):
    mine = simulated.select(simulated.rank == rank)
    idle_us = (
        mine.end_us.max() - mine.start_us.min() - (mine.end_us - mine.start_us).sum()
    )
    print(
        f"rank {rank}: starts at {mine.start_us.min() / 1000:4.0f} ms, then idle for {idle_us / 1000:.0f} ms"
    )

# %% [markdown] sections="8.6.1"
# One more thing the stated times hide: stage 0 has no input that wants a gradient, so its real I is empty and torch does all of its backward in W. Here its I takes the stated time like every other.
#
# ### Turn the knobs
#
# Schedule, ranks, microbatches, the backward's length, the price of a message. The button runs the same configuration on real ranks and lays the measurement under the prediction.

# %%
step.board()

# %% [markdown] sections="8.6.2, 10.3.2"
# ## The libraries
#
# ### torch.distributed.pipelining
#
# Section 10.3.2 imports `torch.distributed.pipeline.sync.Pipe`. It is gone:

# %%
import importlib.util

for name in ("torch.distributed.pipeline.sync", "torch.distributed.pipelining"):
    try:
        print("found:", importlib.util.find_spec(name).name)
    except ModuleNotFoundError as error:
        print(error)

# %% [markdown]
# Its successor, used directly: wrap this rank's part in a `PipelineStage`, choose a schedule, call `step`. The first rank gives the inputs, the last one the targets.


# %%
def torch_pipeline(num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    rank, size, means = dist.get_rank(), dist.get_world_size(), []
    part = model.split(model.Transformer(4, 32, 2, max_len=32), size)[rank]
    stage = PipelineStage(part, rank, size, torch.get_default_device())
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=model.loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(8, 32, seed=step)
        losses = []
        optimizer.zero_grad()
        schedule.step(
            *([tokens] if rank == 0 else []),
            target=targets if rank == size - 1 else None,
            losses=losses,
        )
        optimizer.step()
        means += [sum(losses).item() / 8] if losses else []
    return means


# %%
by_torch = lab.launch(torch_pipeline, 2, ranks=4, timeout_s=50)
by_torch[3]

# %% [markdown] sections="8.6.2"
# ### DeepSpeed
#
# `PipelineModule` takes the model as a list of layers and cuts it itself; `train_batch` runs its 1F1B. `partition_method` says how to cut. Section 8.6.2 writes that into the JSON configuration; this function can take it either way.


# %%
def deepspeed_pipeline(num_steps, forward_us, config, arguments):
    import deepspeed
    import torch
    from deepspeed.pipe import PipelineModule
    from labkit import model
    from labkit.measure import pace, trace

    deepspeed.init_distributed()
    torch.manual_seed(0)
    layers = model.Transformer(4, 32, 2, max_len=32).layers
    layers = [
        pace.Paced(layer, forward_us=forward_us)
        if isinstance(layer, model.Block)
        else layer
        for layer in layers
    ]
    net = PipelineModule(layers=layers, num_stages=4, loss_fn=model.loss, **arguments)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        **config,
    }
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    losses = []
    for step in range(num_steps):
        batch = iter(
            [(x[None], y[None]) for x, y in zip(*model.story_tokens(8, 32, seed=step))]
        )
        with trace.record(engine):  # the last recording stays
            losses.append(engine.train_batch(batch).item())
    return losses, [int(part) for part in net.parts]


# %%
by_deepspeed = lab.launch(deepspeed_pipeline, 2, 10_000, {}, {}, ranks=4, timeout_s=55)
print(*by_torch[3], "torch", sep="  ")
print(*by_deepspeed[3][0], "DeepSpeed", sep="  ")
draw(by_deepspeed.timeline(), "DeepSpeed PipelineModule (p = 4, m = 8)")

# %% [markdown]
# The same losses, the same order: 1F1B. Now the JSON of section 8.6.2. The list says at which of the six layers each stage begins and where the last one ends.

# %%
uniform = {"partition_method": "uniform"}
print(f"neither:        {by_deepspeed[0][1]}")
for place, config, arguments in (
    ("in the JSON:", {"pipeline": uniform}, {}),
    ("as an argument:", {}, uniform),
):
    run = lab.launch(deepspeed_pipeline, 0, 0, config, arguments, ranks=4, timeout_s=55)
    print(f"{place:<15} {run[0][1]}")

# %% [markdown] sections="8.6.2"
# The entry in the JSON changes nothing; the argument of `PipelineModule` does.
#
# ### Megatron
#
# Section 8.6.2 imports `megatron.model`. In today's Megatron the parts live in `megatron.core`, and there is no `loss.backward()` in the training loop: `get_forward_backward_func()` returns one of three functions (no pipelining, 1F1B, interleaved 1F1B) that runs forward, backward and all messages of a batch. The next cell looks whether it is installed here, and which of the two names exists.

# %%
from pathlib import Path

megatron = importlib.util.find_spec("megatron")
for name in ("model", "core/pipeline_parallel"):
    places = [] if megatron is None else list(megatron.submodule_search_locations)
    found = any(
        Path(place, name).is_dir() or Path(place, name + ".py").is_file()
        for place in places
    )
    print(
        f"megatron.{name.replace('/', '.'):<24}",
        "megatron is not installed" if megatron is None else found,
    )

# %% [markdown] sections="10.3.2, 19.3.2"
# ## PipeDream: no flush, and weights of several versions
#
# PipeDream does not wait for the last gradient of a batch. It runs 1F1B for ever and updates a stage after each of its backwards. Eight microbatches, once without a flush and once with one after every four:

# %%
endless = pipedream_run.launch(4, 8, forward_us=15_000, timeout_s=40)
flushed = pipedream_run.launch(4, 8, flush_every=4, forward_us=15_000, timeout_s=40)
draw(boxes(endless), "PipeDream", span_us=boxes(flushed).span_us)
draw(boxes(flushed), "1F1B + flush, m = 4")

# %% [markdown]
# From rank 0's first backward to its last forward the pipeline is full. In this **steady state** PipeDream has no bubble; what is measured are messages, two of which stand in the way of every microbatch. A flush pays $(p-1)/(m+p-1)$ each time.

# %%
ideal = simulate(
    one_f_one_b(4, 8)
)  # PipeDream's order is that of 1F1B with one endless batch
print(
    f"PipeDream, steady state  simulated {bubble(pipeline.steady(ideal)):.3f}  "
    f"measured {bubble(pipeline.steady(endless.timeline())):.3f}"
)
print(
    f"1F1B with flush, m = 4   simulated {bubble(simulate(one_f_one_b(4, 4))):.3f}  "
    f"measured {bubble(flushed.timeline()):.3f}"
)

# %% [markdown]
# The price: between a microbatch's forward and its backward, the stage has been updated by others. To compute the gradient that belongs to that forward, the stage must keep the weights it used: **weight stashing**. Stage s holds $p-s$ versions, and its gradients come $p-1-s$ updates late:

# %%
print(
    "stage  versions held  p - s   microbatch 7: forward with version, newest at its backward"
)
for stage in range(4):
    used, newest = endless[stage]["versions"][7]
    print(
        f"{stage:5}  {endless[stage]['peak_versions']:13}  {4 - stage:5}   {used:12} {newest:5}"
    )

# %% [markdown]
# Look at stage 0: it corrects its newest version with a gradient that was computed for one three updates older. The weights are **stale**. What does that cost? The same 48 microbatches, learning rate 0.3, mean loss of the first and last 16. The first line is one process, where nothing is stale.

# %%
for name, num_ranks, flush in (
    ("1 process", 1, None),
    ("PipeDream", 4, None),
    ("1F1B + flush", 4, 8),
):
    run = pipedream_run.launch(
        num_ranks, 48, flush_every=flush, learning_rate=0.3, timeout_s=40
    )
    losses = run[num_ranks - 1]["losses"]
    print(
        f"{name:<13} {48 // (flush or 1):3} updates   {sum(losses[:16]) / 16:.3f} -> {sum(losses[-16:]) / 16:.3f}"
    )

# %% [markdown]
# With four stages and so small a model staleness makes little difference; updating once per microbatch instead of once per eight makes a large one. But the first two lines are not equal: the result now depends on the number of stages. Megatron's paper keeps the flush for this reason: "strict optimizer semantics".
#
# So there are two methods under the name 1F1B. With flush: the bubble of GPipe, less memory, one version, exact. Without (PipeDream): no bubble once full, p - s versions, stale.

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. The order of 1F1B
#
# List the actions of one rank: `my_order(0, 2, 2)` is `["0F0", "0F1", "0B0", "0B1"]`. Rank r holds stage r.


# %%
def my_order(rank, num_ranks, num_microbatches):
    """The actions of one rank, in order, as text."""
    ### BEGIN SOLUTION
    forwards = [f"{rank}F{k}" for k in range(num_microbatches)]
    backwards = [f"{rank}B{k}" for k in range(num_microbatches)]
    warmup = min(num_microbatches, num_ranks - 1 - rank)
    pairs = [action for pair in zip(forwards[warmup:], backwards) for action in pair]
    return forwards[:warmup] + pairs + backwards[num_microbatches - warmup :]
    ### END SOLUTION


# %%
check.one_f_one_b_order(my_order)

# %%
check.hint("one_f_one_b_order")

# %% [markdown]
# ### 2. Choose the microbatches
#
# The bubble may be at most `max_bubble` (a share of total time), and no rank may hold more than `max_activations` microbatches. Return `("gpipe", m)` or `("1f1b", m)` with the fewest microbatches, or None where nothing fits.


# %%
def my_choice(num_ranks, max_bubble, max_activations):
    """The schedule and its fewest microbatches within both budgets."""
    ### BEGIN SOLUTION
    from math import ceil

    m = max(1, ceil((num_ranks - 1) * (1 - max_bubble) / max_bubble - 1e-9))
    if m <= max_activations:
        return "gpipe", m
    return ("1f1b", m) if min(m, num_ranks) <= max_activations else None
    ### END SOLUTION


# %%
check.choose_microbatches(my_choice)

# %%
check.hint("choose_microbatches")

# %% [markdown]
# ### 3. Find the fault in a chart
#
# A chart is a list of rows, one per rank; a row is a list of boxes, one per step: `"F1"`, `"B1"` or `"."`. Rank r holds stage r. Return `(rank, step)` of the first box that cannot run where it stands (earliest step, then lowest rank), or None.


# %%
def my_fault(chart):
    """(rank, step) of the first impossible box, or None."""
    ### BEGIN SOLUTION
    done, last = set(), len(chart) - 1
    for step in range(max(len(row) for row in chart)):
        boxes = [
            (rank, row[step])
            for rank, row in enumerate(chart)
            if step < len(row) and row[step] != "."
        ]
        for rank, box in boxes:
            if box[0] == "F":
                need = (rank - 1, box) if rank else None
            else:
                need = (rank + 1, box) if rank < last else (rank, "F" + box[1:])
            if need is not None and need not in done:
                return rank, step
        done.update(boxes)
    return None
    ### END SOLUTION


# %%
check.chart_fault(my_fault)

# %%
check.hint("chart_fault")

# %% [markdown]
# ### 4. A real pipeline
#
# One training step of two stages on two real ranks. Rank 0 gets its stage and the inputs, rank 1 its stage and the targets, each as a list of microbatches. A message has the shape `(len(microbatch), width)`. Leave in both stages the gradients of the mean squared error (`mse_loss`) of the whole batch, with no larger bubble than GPipe.


# %%
def my_step(rank, stage, microbatches, width):
    """Forward and backward of every microbatch; the gradients stay in the stage's parameters."""
    ### BEGIN SOLUTION
    import torch
    import torch.distributed as dist

    kept = []
    for micro in microbatches:
        if rank == 0:
            kept.append(stage(micro))
            dist.send(kept[-1].detach(), 1)
        else:
            x = torch.empty(len(micro), width)
            dist.recv(x, 0)
            loss = torch.nn.functional.mse_loss(stage(x.requires_grad_()), micro) / len(
                microbatches
            )
            kept.append((x, loss))
    for item in kept:
        if rank == 0:
            grad = torch.empty_like(item)
            dist.recv(grad, 1)
            item.backward(grad)
        else:
            item[1].backward()
            dist.send(item[0].grad, 0)
    ### END SOLUTION


# %%
check.real_pipeline(my_step)

# %%
check.hint("real_pipeline")

# %% [markdown]
# ## Summary
#
# - A pipeline idles while it fills and drains: $(p-1)/(m+p-1)$ of total time for GPipe and for 1F1B, $(p-1)/p$ for the naive one.
# - 1F1B holds min(m, p - r) activations on rank r instead of m. Smaller stages (interleaving) and splitting the backward (zero bubble) are what shrink the bubble.
# - PipeDream never flushes: no bubble once full, several versions of the weights, stale gradients.
# - A schedule is an order. A chart can show a correct order at impossible times; simulate it.
#
# ## Sources
#
# - GPipe: Huang et al. 2018, [arXiv 1811.06965](https://arxiv.org/abs/1811.06965)
# - PipeDream: Harlap, Narayanan et al. 2018, [arXiv 1806.03377](https://arxiv.org/abs/1806.03377)
# - 1F1B with flush and interleaved: Narayanan et al. 2021 (Megatron), [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - Zero bubble, ZB-H1, ZBV: Qi et al. 2023, [arXiv 2401.10241](https://arxiv.org/abs/2401.10241)
# - DualPipe, with a table of bubbles and memory: [deepseek-ai/DualPipe](https://github.com/deepseek-ai/DualPipe)
#
# Where you stand:

# %%
check.status()
