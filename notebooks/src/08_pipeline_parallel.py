# ---
# jupyter:
#   labkit:
#     sections: ["8.6.1", "8.6.2", "10.3.2", "19.3.2", "S7"]
#     needs: ["chapters 00 and 02", "DeepSpeed (installed with labkit)"]
#     minutes: 60
# ---

# %% [markdown]
# # Pipeline parallelism
#
# *About an hour. You need chapters 00 and 02. No GPU is needed.*
#
# Our model of 7 billion parameters needs 112 GB while it trains, and a card has 80. So we cut it: layers 0 to 7 go on the first card, 8 to 15 on the second, and so on, until each of four cards holds a quarter. Only activations travel between them, a few MB at a time. It fits, and it runs. But a step takes as long as it would on one enormous card, because at any moment three of our four cards wait. We pay for four and use one.
#
# Where does that time go, and how much of it can we get back?

# %%
import torch
import torch.distributed as dist
from torch.profiler import record_function

import labkit as lab
from labkit import model, pipeline, planner, widgets
from labkit.pipeline import check, pipedream_run
from labkit.timeline import bubble

lab.begin("en", deadline_s=60)
pipeline.Step(schedule="naive", ranks=4, microbatches=8).board()

# %% [markdown]
# Each row is a card, here a [rank](GLOSSARY.md#rank): F is forward, B is backward, and the hatched part is waiting. Choose GPipe as the schedule, then move the microbatches from 8 to 16. What happens to the hatched part?
#
# **When you are done** you can build a pipeline with `send` and `recv`, say how idle it will be before you run it, and choose a schedule for the memory that you have.

# %% [markdown] sections="S7"
# ## Two stages, by hand
#
# Let's begin with two cards. Rank 0 holds the first half of a small transformer and rank 1 the second half; each half is a [stage](GLOSSARY.md#stage). Forward, the activations go from rank 0 to rank 1. Backward, their gradient comes back the same way. The names in `record_function` only label the boxes of the picture: `1B0` is stage 1, backward, piece 0 of the batch.


# %%
def two_stages():
    torch.manual_seed(0)
    rank = dist.get_rank()
    stage = model.split(model.Transformer(4, dim=128, num_heads=4), 2)[rank]
    tokens, targets = model.story_tokens(8, 64)
    if rank == 0:
        with record_function("0F0"):
            activations = stage(tokens)
        dist.send(activations.detach(), dst=1)
        gradient = torch.empty_like(activations)
        dist.recv(gradient, src=1)
        with record_function("0B0"):
            activations.backward(gradient)
    else:
        received = torch.empty(8, 64, 128)
        dist.recv(received, src=0)
        with record_function("1F0"):
            loss = model.loss(stage(received.requires_grad_()), targets)
        with record_function("1B0"):
            loss.backward()
        dist.send(received.grad, dst=0)
    return {f"layers.{name}": weight.grad for name, weight in stage.named_parameters()}


# %%
by_hand = lab.launch(two_stages, ranks=2, record=True)
by_hand

# %% [markdown]
# This was measured, on two real processes. Look at the boxes: they never overlap in time. Rank 1 can't begin before the activations arrive, and rank 0 can't go back before their gradient does, so the two take turns.
#
# At least the result is right. Here is the same batch on one process, and the largest difference between its gradients and those of our two ranks:

# %%
torch.manual_seed(0)
whole = model.Transformer(4, dim=128, num_heads=4)
tokens, targets = model.story_tokens(8, 64)
model.loss(whole(tokens), targets).backward()
alone = {name: weight.grad for name, weight in whole.named_parameters()}
lab.difference(by_hand[0] | by_hand[1], alone)

# %% [markdown] sections="S7"
# That is rounding in the last digit of a float.
#
# <details><summary>Erratum S7: a backward that is given the input, and one process for two devices</summary>
#
# The source's pipeline calls `output.backward(micro)`, and so gives `backward` the input of the stage. What `backward` takes is a gradient of the shape of the *output*, so the loop does not survive its first backward. Run it: `torch.nn.Linear(16, 10)(torch.randn(2, 16)).backward(torch.randn(2, 16))` raises a RuntimeError about the shapes. With a scalar loss it runs. But the loop also drives both devices from one process, forward after forward, so they still take turns although the batch is in pieces: nobody starts the next piece while the other device is busy. (On two GPUs, where a call returns before its work is done, some of it may happen to overlap; nothing in the loop sees to it.)
#
# </details>

# %% [markdown] sections="8.6.1"
# ## Four stages
#
# From here on we use `pipeline.Step`. It trains the same small transformer through torch's own pipeline library, whose code you will see later, on as many real ranks as we ask for.
#
# Four ranks on a laptop with two cores would fight for the cores, and the picture would show that fight. So each stage does its real work and then sleeps until a stated time is over: here a forward takes 25 ms and a backward twice that. Such a run is called [paced](GLOSSARY.md#paced). Processes, messages and their order are real, and only the durations are stated. If a stage could not keep its time, because the machine was busy, the picture says [overran](GLOSSARY.md#overran).

# %%
naive = pipeline.Step(schedule="naive", ranks=4, microbatches=2, forward_ms=25)
naive.compare()

# %% [markdown]
# Above is what theory predicts, below what four processes did. The share of time in which ranks wait is called the [bubble](GLOSSARY.md#bubble). One of p ranks works here, so it is $(p-1)/p$, or 75 %.
#
# The thin marks under a rank are its messages. Don't read a duration into them: a send ends when torch next looks whether it has arrived.
#
# This step sent two pieces of a batch through the pipeline, one after the other. What would eight pieces do to the bubble?

# %%
more = lab.guess("bubble, one piece at a time, 8 pieces", between=(0, 1))

# %%
more.score(bubble(naive.but(microbatches=8).predict()))

# %% [markdown]
# Nothing at all. As long as only one piece is on its way, three ranks wait, however many pieces follow.
#
# <details><summary>Erratum 8.6.1: a "naive" chart that is not naive</summary>
#
# The textbook draws `F0 . F1 . F2 . F3` on rank 0 and the same one step later on the next rank. Then two ranks work in nearly every step, so this is a pipeline already, without its backward, and its bubble is not the 75 % that stands under it. The 75 % itself is right for a naive one: `bubble(naive.predict())`.
#
# </details>

# %% [markdown] sections="8.6.1, 19.3.2"
# ## Microbatches
#
# The cure is to let several pieces travel at once. While rank 1 works on the first piece, rank 0 can already begin the second. The pieces are called [microbatches](GLOSSARY.md#microbatch); there are m of them. **GPipe** sends all of them forward, and only then the first one back.
#
# Say we have four ranks and eight microbatches. How idle are the ranks still?

# %%
idle = lab.guess("bubble of GPipe, 4 ranks, 8 microbatches", between=(0, 1))

# %% [markdown]
# Theory needs very little to answer. A [schedule](GLOSSARY.md#schedule) is only an order of actions for each rank. Give each action a duration, start it as soon as its rank is free and its input is there, and the order becomes a timeline:

# %%
step = pipeline.Step(schedule="gpipe", ranks=4, microbatches=8, forward_ms=25)
print(step.order())

# %%
step.compare()

# %%
idle.score(bubble(step.predict()))

# %% [markdown]
# Every rank works on 8 microbatches and waits for the time of 3: one for each other rank, while the pipeline fills and while it drains. So 3 of 11 slots are idle, whatever a microbatch costs:
#
# $$\text{bubble} = \frac{p-1}{m+p-1}$$
#
# The measured bubble is a little larger. The sentence under the picture says why: actions took other than their stated time, messages were not free, ranks began late, or there was work between actions, such as the loss.

# %% [markdown] sections="8.6.1"
# <details><summary>Erratum 8.6.1: "about 50 %" for four stages and four microbatches</summary>
#
# Three of seven slots are idle. Run it: `bubble(step.but(microbatches=4).predict())` gives 0.43. Some people divide by the *useful* time instead, which gives $(p-1)/m$, here 0.75: `bubble(step.but(microbatches=4).predict(), over="ideal")`. Neither is a half, so say which one you mean.
#
# </details>
#
# ### Look closer
#
# The next cell shows both timelines in the trace viewer. Point at a box, and you see its times and the same action in the other half. Click a message, and an arrow shows who receives it. Drag over a stretch of time, and you read what each rank did in it. After a click the keys work too: `+` and `-` zoom, `0` shows everything, the arrows move, `n` and `p` go to the next and the previous box.

# %%
widgets.trace(step.predict(), step.compare().run, title=step.title())

# %% [markdown]
# ### How many microbatches are enough?
#
# Four ranks again. From how many microbatches on is the bubble at most 10 %?

# %%
enough = lab.guess("microbatches for a bubble of 10 %, 4 ranks", between=(1, 100))

# %%
shares = {m: bubble(step.but(microbatches=m).predict()) for m in range(1, 101)}
enough.score(min(m for m, share in shares.items() if share <= 0.1))

# %%
lab.sweep(step, microbatches=[1, 2, 4, 8, 16, 32], run=[2, 8])

# %% [markdown]
# The line is predicted, and the dots are real runs. Each doubling helps less than the one before. So why not simply take very many? Because GPipe has to keep the activations of all of them until their backward comes. The next section is about that.

# %% [markdown] sections="10.3.2, 19.3.2"
# ## Exercise 1. The same time, less memory
#
# A backward sets the activations of its microbatch free. GPipe lets no backward begin before all forwards are done, and that is wasteful. Can you find a better order?
#
# List the actions of one rank, as text: `["0F0", "0F1", "0B0", "0B1"]` is an order for stage 0 and two microbatches. All ranks together must take no longer than GPipe, and no rank may keep more activations than it must. A wrong order is drawn for you, so try one.


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

# %% [markdown] sections="10.3.2, 19.3.2"
# ## 1F1B
#
# What you were looking for has a name. In [1F1B](GLOSSARY.md#1f1b) (one forward, one backward) rank r first runs $p-1-r$ forwards to fill the pipeline, and then one forward and one backward in turn, until nothing is left. What does that do to the bubble?

# %%
turns = lab.guess("bubble of 1F1B, 4 ranks, 8 microbatches", between=(0, 1))

# %%
step = step.but(schedule="1f1b")
step.compare()

# %%
turns.score(bubble(step.predict()))

# %% [markdown]
# It has not moved. The pipeline still fills and still drains, and as long as each rank has one stage and a backward is one piece, no order can avoid that.
#
# <details><summary>Erratum 19.3.2: "1F1B reduces the bubble"</summary>
#
# It keeps the bubble of GPipe and reduces the memory. Run it: `bubble(step.but(schedule="gpipe").predict()) - bubble(step.predict())` is 0.
#
# </details>
#
# What did change is the number at the right of each row. It counts the microbatches whose activations a rank holds at its peak. GPipe held 8 everywhere. How many does the fullest rank hold now?

# %%
kept = lab.guess("most microbatches held by a rank, 1F1B", between=(0, 8))

# %%
runs = {"GPipe": step.but(schedule="gpipe").compare().run, "1F1B": step.compare().run}
kept.score(max(rank["peak_in_flight"] for rank in runs["1F1B"]))

# %% [markdown]
# And here are the bytes that autograd really kept in these two runs:

# %%
held = {
    f"rank {rank}": {
        name: run[rank]["peak_activation_bytes"] for name, run in runs.items()
    }
    for rank in range(4)
}
lab.bars(held, unit="bytes", title="Activations kept at the peak")

# %% [markdown]
# Rank r of 1F1B holds $\min(m, p-r)$ microbatches, however large m is. The last rank holds one, because it can turn each microbatch around at once. So 1F1B doesn't shrink the bubble by itself, but it lets you take the large m that does.

# %% [markdown] sections="8.6.1, 10.3.2, 19.3.2"
# ### Charts that can't be
#
# People draw such schedules by hand, and it is easy to draw one that no machine can run. A backward has to begin on the *last* rank and walk to the first. Where can the boxes stand at the earliest, if each takes one step?

# %%
lab.show(
    step.but(schedule="gpipe", microbatches=4, backward_ratio=1).predict(),
    title="GPipe, 4 ranks, 4 microbatches, every box one step",
)

# %% [markdown]
# Follow B0 from the bottom row to the top: 14 steps in all. Three well-known charts need only 11, and all three for the same reason.
#
# <details><summary>Erratum 8.6.1: the GPipe chart</summary>
#
# The textbook lets every rank begin its backwards on its own, one step after the rank above. So rank 0 does B0 in step 5, before rank 3 has even done its forward of microbatch 3. In the picture above, rank 0 can do it in step 10. The order can run; 12 of the 32 boxes stand too early.
#
# </details>
#
# <details><summary>Erratum 10.3.2: a chart called 1F1B</summary>
#
# It has `F0 F1 F2 F3 B0 B1 B2 B3` on every rank. That is the order of GPipe, with four microbatches held by every rank, and rank 0's B0 in step 4. Compare it with `print(step.but(microbatches=4).order())`.
#
# </details>
#
# <details><summary>Erratum 19.3.2: the GPipe chart</summary>
#
# Here the backwards run from B3 to B0, which is a fine order (GPipe's paper does it too). But rank 0 starts B3 in step 4, one step after its own forward of it, and it can be there in step 10 at the earliest. Exercise 3 lets you find such boxes by program.
#
# </details>

# %% [markdown]
# ## Schedules that shrink the bubble
#
# Two conditions stood in the sentence above: one stage for each rank, and a backward in one piece. Drop them, and the bubble shrinks.
#
# - **Interleaved 1F1B** gives every rank two smaller stages, for instance layers 0 and 4 of eight. Then the pipeline is filled in half the time.
# - **Zero bubble** cuts a backward in two. I computes the gradient of the input, which the stage before waits for. W computes the gradient of the weights, which nobody waits for, so it can fill the gaps.
# - **ZBV** does both, with the stages laid out in a V.
#
# Start with interleaving. Four ranks, eight microbatches, two stages each: what is left of the 27 %?

# %%
less = lab.guess("bubble of interleaved 1F1B, two stages a rank", between=(0, 1))

# %%
less.score(bubble(step.but(schedule="interleaved_1f1b").predict()))

# %%
zbv = step.but(schedule="zbv", training=pipeline.Training(num_layers=8))
zbv.compare()

# %% [markdown]
# In the picture of ZBV, look for the W boxes: they lie where 1F1B had its gaps. Each rank now works without a pause from its first action to its last, and all that is left is that the ranks begin one after another. The papers count each rank from its own first action, so they call this bubble zero. We count all of them from the first action of anybody.
#
# Now all of them, with the same model of eight layers. The last column is the fullest rank's memory:


# %%
def row(name):
    """A schedule, predicted and run."""
    each = zbv.but(schedule=name)
    run = each.compare().run
    return {
        "schedule": name,
        "predicted_share": bubble(each.predict()),
        "measured_share": bubble(run.timeline()),
        "held_bytes": max(rank["peak_activation_bytes"] for rank in run),
    }


lab.table(
    map(row, ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "interleaved_zb", "zbv"])
)

# %% [markdown]
# Read it from the top. The predicted bubble falls, and nothing holds less than 1F1B. Schedules with two stages a rank also send twice as many messages, with actions half as long, so their measured bubble lies further above the predicted one. There is no free schedule; there is one that suits your memory and your links.
#
# (One thing the stated times hide: nobody wants the gradient of the tokens, so the real I of stage 0 is empty, and torch does all of its backward in W. Here its I takes the stated time like every other.)
#
# ### Turn the knobs
#
# This board has all of it: schedule, ranks, microbatches, stages per rank, the backward's length, the price of a message. Give a message 20 ms and compare 1F1B with interleaved 1F1B. Which of the two suffers more, and why?

# %%
step.board()

# %% [markdown] sections="10.3.2"
# ## The libraries
#
# ### torch.distributed.pipelining
#
# This is what `pipeline.Step` runs. You wrap the part of this rank in a `PipelineStage`, choose a schedule and call its `step`. The first rank gives the inputs, the last one the targets.


# %%
def torch_pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    part = model.split(model.Transformer(4, 32, 2, max_len=32), size)[rank]
    stage = PipelineStage(part, rank, size, torch.get_default_device())
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=model.loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    means = []
    for number in range(2):
        tokens, targets = model.story_tokens(8, 32, seed=number)
        losses = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets, losses=losses)
        optimizer.step()
        means.append(sum(losses).item() / 8 if losses else None)
    return means


# %%
by_torch = lab.launch(torch_pipeline, ranks=4)
by_torch[3]

# %% [markdown] sections="10.3.2"
# These are the mean losses of two steps, known on the last rank only.
#
# <details><summary>Erratum 10.3.2: an import that is gone</summary>
#
# The textbook has `from torch.distributed.pipeline.sync import Pipe`. That module has left torch; `torch.distributed.pipelining` is its successor. Run it: `importlib.util.find_spec("torch.distributed.pipeline")` gives None.
#
# </details>

# %% [markdown] sections="8.6.2"
# ### DeepSpeed
#
# `PipelineModule` takes the model as a list of layers and cuts it by itself. `train_batch` then runs forward, backward and update. How it cuts is called `partition_method`.


# %%
def deepspeed_pipeline(config, arguments):
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.schedule import TrainSchedule

    deepspeed.init_distributed()
    torch.manual_seed(0)
    layers = model.Transformer(4, 32, 2, max_len=32).layers
    net = PipelineModule(layers=layers, num_stages=4, loss_fn=model.loss, **arguments)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sizes = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=optimizer, config=sizes | config
    )
    losses = []
    for number in range(2):
        tokens, targets = model.story_tokens(8, 32, seed=number)
        batch = zip(tokens.split(1), targets.split(1))
        losses.append(engine.train_batch(batch).item())
    commands = [each for tick in TrainSchedule(8, 4, dist.get_rank()) for each in tick]
    order = "".join(each.name[0] for each in commands if each.name.endswith("Pass"))
    return {"losses": losses, "cut": list(map(int, net.parts)), "order": order}


# %%
by_deepspeed = lab.launch(deepspeed_pipeline, {}, {}, ranks=4)
both = zip(by_torch[3], by_deepspeed[3]["losses"])
lab.table([{"torch": ours, "DeepSpeed": theirs} for ours, theirs in both])

# %% [markdown]
# The same losses as torch's, up to rounding. And the same order: these are the forwards and backwards of the last rank, and of the first.

# %%
by_deepspeed[3]["order"], by_deepspeed[0]["order"]

# %% [markdown] sections="8.6.2"
# One forward and one backward in turn: 1F1B. Now to the cut. The list in `cut` says at which of the six layers (embedding, four blocks, head) each stage begins, and where the last one ends.
#
# <details><summary>Erratum 8.6.2: how to cut, in the JSON configuration</summary>
#
# The textbook writes `partition_method` into the JSON. There it changes nothing; it is an argument of `PipelineModule`. The next cell runs both.
#
# </details>

# %%
uniform = {"partition_method": "uniform"}
in_json = lab.launch(deepspeed_pipeline, {"pipeline": uniform}, {}, ranks=4)
as_argument = lab.launch(deepspeed_pipeline, {}, uniform, ranks=4)
cuts = {"neither": by_deepspeed, "in the JSON": in_json, "argument": as_argument}
lab.table([{"where": name, "cut": str(run[0]["cut"])} for name, run in cuts.items()])

# %% [markdown] sections="8.6.2"
# ### Megatron
#
# Megatron-LM is what many of the largest models were trained with. Its training loop has no `loss.backward()`. You call `get_forward_backward_func()` from `megatron.core.pipeline_parallel`, and it gives you one of three functions: no pipelining, 1F1B, or interleaved 1F1B. That function then runs all forwards, backwards and messages of a batch. (Megatron is not part of this kit, so nothing of it runs here; this is after its repository.)
#
# <details><summary>Erratum 8.6.2: Megatron's old modules</summary>
#
# The textbook has `from megatron.model import ...`. The parts live in `megatron.core` today, and a script that imports `megatron.model` is written for a release of years ago. Where Megatron is installed, look yourself: `importlib.util.find_spec("megatron.core")`.
#
# </details>

# %% [markdown] sections="10.3.2, 19.3.2"
# ## PipeDream: never drain
#
# The bubble comes from filling and draining, and we drain because all microbatches of a batch shall see the same weights. Draining before an update is called a [flush](GLOSSARY.md#flush). What if we never flush? **PipeDream** runs 1F1B for ever, and each stage updates itself after every backward.

# %%
endless = pipedream_run.launch(4, 8, forward_us=15_000)
lab.show(endless, title="PipeDream: never a flush")

# %%
flushed = pipedream_run.launch(4, 8, flush_every=4, forward_us=15_000)
lab.show(flushed, title="1F1B with a flush after every 4 microbatches")

# %% [markdown]
# Look at the middle of both pictures. From rank 0's first backward to its last forward the first pipeline is full; that stretch is called its steady state, and in theory nobody waits there. What is measured are the messages, two of which stand in the way of every microbatch. In the second picture there is a hole in the middle, and you pay for it at every flush.

# %%
full = pipeline.steady(step.predict()), pipeline.steady(endless.timeline())
lab.bars(
    {
        "steady, predicted": bubble(full[0]),
        "steady, measured": bubble(full[1]),
        "with flushes, measured": bubble(flushed.timeline()),
    },
    unit="share",
    title="Bubble of PipeDream and of 1F1B with flushes",
    badge="simulated / measured, paced",
)

# %% [markdown]
# ### The price: old weights
#
# Between the forward of a microbatch and its backward, the stage has been updated by other microbatches. To compute the gradient that belongs to that forward, it must keep the weights that it used: **weight stashing**. Four stages: how many versions of its weights does stage 0 hold?

# %%
versions = lab.guess("versions of the weights on stage 0 of 4", between=(1, 8))

# %%
versions.score(endless[0]["peak_versions"])

# %%
late = [
    {"stage": stage, "held": told["peak_versions"], "used, newest": told["versions"][7]}
    for stage, told in enumerate(endless)
]
lab.table(late, title="Versions of the weights, and those of microbatch 7")

# %% [markdown]
# In the last column stand two versions: the one that the forward of microbatch 7 used, and the newest one when its gradient came. Stage s holds $p-s$ versions, and its gradients come $p-1-s$ updates late. Such weights are called **stale**.
#
# What does that cost? The next cell takes the same 48 microbatches and the same learning rate three ways. On one process nothing is stale.


# %%
def improved(num_ranks, flush_every=None):
    """Mean loss of the first and of the last 16 of 48 microbatches."""
    run = pipedream_run.launch(
        num_ranks, 48, flush_every=flush_every, learning_rate=0.3
    )
    losses = run[num_ranks - 1]["losses"]
    return {"first": sum(losses[:16]) / 16, "last": sum(losses[-16:]) / 16}


ways = {"one process": (1,), "PipeDream": (4,), "flush after 8": (4, 8)}
lab.bars({name: improved(*way) for name, way in ways.items()}, title="Mean loss")

# %% [markdown]
# With four stages and so small a model, staleness does little harm. To update once per microbatch instead of once per eight makes a much larger difference. But the first two results are not equal: how well you train now depends on how many stages you have. Megatron's paper keeps the flush for this very reason, and calls it strict optimizer semantics.
#
# So two methods go by the name 1F1B. With flushes you have the bubble of GPipe, less memory, one version of the weights, and an exact result. Without them you have no bubble once the pipeline is full, $p-s$ versions, and stale gradients.

# %% [markdown] sections="8.6.1"
# ## When is it worth it?
#
# Back to the 7 B model. Our eight cards stand in eight machines, with an Ethernet of 10 Gbit/s between them. ZeRO 3 (chapter 06) makes the model fit as well, but it gathers all weights anew for every microbatch. A pipeline sends only activations. How many times faster is the step with eight stages?

# %%
faster = lab.guess("ZeRO 3 over a pipeline, slow network", between=(1, 100))

# %%
slow = planner.Plan(
    model="LLaMA 7B", gpus=8, per_node=1, nic_gb_per_s=1.25, zero=3, batch=64
)
pipelined = slow.but(zero=0, pp=8)
faster.score(slow.time().step_us / pipelined.time().step_us)

# %%
planner.card(slow, pipelined)

# %% [markdown]
# These numbers are predicted, by the planner of chapter 18. Now put the same eight cards into one machine with NVLink:

# %%
node = planner.Plan(model="LLaMA 7B", gpus=8, zero=3, batch=64)
planner.card(node, node.but(zero=0, pp=8))

# %% [markdown]
# The advantage is gone. So a pipeline pays where links are slow, because it sends so little, and where the batch gives you many microbatches. It loses where the batch is small, because of its bubble; try `batch=16`. That is why large trainings use it *between* machines, and something else inside them.

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 2. Choose for a given memory
#
# You may have a bubble of at most `max_bubble` (of total time), and your cards hold the activations of `max_activations` microbatches. Fewer microbatches are better, because each is then larger and the cards compute it more efficiently; and where GPipe will do, take it, since it is simpler. Return `("gpipe", m)` or `("1f1b", m)`, or None if nothing fits.


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
# Write the program that finds what is wrong with a drawn schedule. A chart is a list of rows, one per rank; a row is a list of boxes, one per step: `"F1"`, `"B1"` or `"."`. Rank r holds stage r. Return `(rank, step)` of the first box that can't run where it stands (earliest step, then lowest rank), or None.


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
# Now build one: a training step of two stages on two real ranks, with microbatches. Rank 0 gets its stage and the inputs, rank 1 its stage and the targets, each as a list of microbatches. A message has the shape `(len(microbatch), width)`. Leave in both stages the gradients of the mean squared error (`mse_loss`) of the whole batch, with no larger bubble than GPipe.


# %%
def my_step(rank, stage, microbatches, width):
    """Leaves the gradients of the whole batch in the stage's parameters."""
    ### BEGIN SOLUTION
    kept = []
    for micro in microbatches:
        if rank == 0:
            kept.append(stage(micro))
            dist.send(kept[-1].detach(), 1)
        else:
            x = torch.empty(len(micro), width)
            dist.recv(x, 0)
            loss = torch.nn.functional.mse_loss(stage(x.requires_grad_()), micro)
            kept.append((x, loss / len(microbatches)))
    for item in kept:
        if rank == 0:
            gradient = torch.empty_like(item)
            dist.recv(gradient, 1)
            item.backward(gradient)
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
# - A pipeline waits while it fills and while it drains: $(p-1)/(m+p-1)$ of total time for GPipe and for 1F1B, $(p-1)/p$ for one microbatch at a time.
# - 1F1B keeps $\min(m, p-r)$ microbatches on rank r instead of m. Smaller stages (interleaving) and a backward in two parts (zero bubble) are what shrinks the bubble.
# - PipeDream never flushes: no bubble once full, several versions of the weights, stale gradients.
# - A schedule is an order. A chart can show a correct order at impossible times, so simulate it.
# - A pipeline sends little. It is worth most where links are slow and microbatches are many.
#
# **Words:** [stage](GLOSSARY.md#stage), [microbatch](GLOSSARY.md#microbatch), [schedule](GLOSSARY.md#schedule), [bubble](GLOSSARY.md#bubble), [1F1B](GLOSSARY.md#1f1b), [flush](GLOSSARY.md#flush), [paced](GLOSSARY.md#paced).
#
# **Further reading**
#
# - GPipe: Huang et al. 2018, [arXiv 1811.06965](https://arxiv.org/abs/1811.06965)
# - PipeDream: Harlap, Narayanan et al. 2018, [arXiv 1806.03377](https://arxiv.org/abs/1806.03377)
# - 1F1B with flush and interleaved: Narayanan et al. 2021 (Megatron), [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - Zero bubble, ZB-H1, ZBV: Qi et al. 2023, [arXiv 2401.10241](https://arxiv.org/abs/2401.10241)
# - DualPipe, with a table of bubbles and memory: [deepseek-ai/DualPipe](https://github.com/deepseek-ai/DualPipe)
#
# **Next:** [communication](11_communication.ipynb), where we hide messages under computing and send fewer bytes.
#
# *Sections 8.6.1, 8.6.2, 10.3.2, 19.3.2 and S7 of the source material.*

# %%
check.status()
