# ---
# jupyter:
#   labkit:
#     sections: ["8.6.1", "8.6.2", "10.3.2", "19.3.2", "S7"]
#     needs: ["chapters 00 and 02", "DeepSpeed (installed with labkit)"]
#     minutes: 90
# ---

# %% [markdown]
# # Pipeline parallelism
#
# *An hour, half an hour more for the optional end; exercises come on top. You need chapters 00 and 02, and 06 for one section. No GPU is needed.*
#
# Our model of 7 billion parameters needs 112 GB for weights, gradients and optimizer alone, and a card has 80. So we cut it: layers 0 to 7 go on the first of four cards, 8 to 15 on the second, and so on. Only activations and their gradients travel between them. It fits. But a step takes as long as if one enormous card held the whole model, because at any moment three of our four cards wait.
#
# Where does that time go, and how much of it can we get back?

# %%
import torch
import torch.distributed as dist
from torch.profiler import record_function

import labkit as lab
from labkit import model, pipeline, planner
from labkit.pipeline import check, pipedream_run
from labkit.timeline import bubble

lab.begin("en", deadline_s=120)
pipeline.Step(schedule="naive", ranks=4, microbatches=4).board()

# %% [markdown]
# Each row is a card, here a [rank](GLOSSARY.md#rank): F is forward, B is backward, hatched is waiting. A batch is several pieces of one size, numbered from 0, and *bubble* is the share of all time that cards wait. Move the slider to more pieces (*microbatches*): does more work make that share smaller?
#
# **When you are done** you can build a pipeline, say how idle it will be, and choose a schedule for your memory.

# %% [markdown] sections="S7"
# ## Two stages, by hand
#
# Who waits for whom? Of two cards, rank 0 holds the first half of a small transformer and rank 1 the second half; each half is a [stage](GLOSSARY.md#stage). Activations go from rank 0 to rank 1, and their gradient comes back.


# %%
def two_stages():
    torch.manual_seed(0)
    rank = dist.get_rank()
    stage = model.split(model.Transformer(4, dim=128, num_heads=4), 2)[rank]
    tokens, targets = model.story_tokens(8, 64)
    received = torch.empty(8, 64, 128)  # sequences, tokens, width
    dist.barrier()  # both begin together
    if rank == 0:
        with record_function("0F0"):  # names a box: stage 0, forward, piece 0
            activations = stage(tokens)
        dist.send(activations.detach(), dst=1)
        gradient = torch.empty_like(activations)
        dist.recv(gradient, src=1)
        with record_function("0B0"):
            activations.backward(gradient)
    else:
        dist.recv(received, src=0)
        with record_function("1F0"):
            loss = model.loss(stage(received.requires_grad_()), targets)
        with record_function("1B0"):
            loss.backward()
        dist.send(received.grad, dst=0)
    return [weight.grad for weight in stage.parameters()]


# %%
by_hand = lab.launch(two_stages, ranks=2, record=True)
by_hand

# %% [markdown]
# *Pretend device* means that a CPU plays the card. Look at the order only, as a first call is slow: rank 1 waits for the activations and rank 0 for their gradient, so they take turns.
#
# Is the result right? Here is the largest difference of our gradients from those of one process, and the largest gradient:

# %%
torch.manual_seed(0)
whole = model.Transformer(4, dim=128, num_heads=4)
tokens, targets = model.story_tokens(8, 64)
model.loss(whole(tokens), targets).backward()
right = [weight.grad for weight in whole.parameters()]
largest = max(gradient.abs().max().item() for gradient in right)
lab.difference(by_hand[0] + by_hand[1], right), largest

# %% [markdown]
# A float has about seven digits. A difference below a millionth of the largest gradient is rounding, and so is ours.

# %% [markdown] sections="8.6.1"
# ## Four stages
#
# From here on `pipeline.Step` trains a small transformer through torch's own pipeline library, on four real ranks.
#
# They would fight for a laptop's two cores. So each stage does its real work, and then sleeps until 20 ms are over for a forward, or 40 for a backward. Such a run is called [paced](GLOSSARY.md#paced); a stage that takes longer than stated [overran](GLOSSARY.md#overran).

# %%
step = pipeline.Step(
    schedule="naive",  # torch has none, so its library runs our order
    ranks=4,
    microbatches=2,
    forward_ms=20,
    training=pipeline.Training(num_layers=8),
)
step.compare()

# %% [markdown]
# This order is called *naive*: a piece of the batch leaves only when the one before has come back. So at any moment one of p ranks works, and the [bubble](GLOSSARY.md#bubble) is $(p-1)/p$, or 75 %. The number of pieces is not in it: more work changes nothing.
#
# We set the lengths of the boxes, so a run measures only their order, the waiting and the gaps. The line under the picture says what made the measured bubble larger. A purple box is a receive that was posted early, and a long pink one a send whose receiver is still busy: most of either is waiting, not travel.

# %% [markdown] sections="8.6.1, 19.3.2"
# ## Microbatches
#
# How much comes back if several pieces travel at once? While rank 1 works on the first, rank 0 can already begin the second. The pieces are called [microbatches](GLOSSARY.md#microbatch). There are m of them, and their size is fixed. **GPipe** does all forwards, and only then begins the first backward. This is its order on rank 0:

# %%
step = step.but(schedule="gpipe", microbatches=8)
print(*step.order().orders[0])

# %% [markdown]
# Such an order of actions for each rank is called a [schedule](GLOSSARY.md#schedule). It becomes a timeline if every action starts as soon as its rank is free and its input is there. With four ranks and eight microbatches, how idle are the ranks still?

# %%
idle = lab.guess("bubble of GPipe, 4 ranks, 8 microbatches", between=(0, 1))

# %%
idle.score(bubble(step.predict()))

# %%
step.compare()

# %% [markdown]
# Call the forward and the backward of one microbatch a *slot*. Every rank works for m slots, here 8. Rank 3 waits for three forwards before its first box and for three backwards after its last. That is three slots, and rank 0 waits as long in the middle. So of p ranks each waits for $p-1$ slots, if all stages take equally long:
#
# $$\text{bubble} = \frac{p-1}{m+p-1}$$
#
# The measured bubble is larger. The formula knows no slow message, no box that takes longer than stated, and nothing between two boxes. The line under the picture says how much each of these made.
#
# More microbatches don't shorten the waiting, they only make it a smaller share: from 16 to 32 the bubble falls from 15.8 % to 8.6 %. Their size is fixed here, so more of them are a larger batch. If you cut one batch finer instead, slots and waiting do shrink, until the matmuls get too small to be fast.

# %% [markdown] sections="8.6.1, S7"
# ## Exercise 1. A real pipeline
#
# Build a training step on two real ranks, each with half of the model. In the end both stages hold the gradients of the mean squared error (`mse_loss`) of the whole batch, and the bubble is no larger than GPipe's. Name no boxes: the check sees your calls of `stage`. It judges their order, not a clock.
#
# If both ranks send at the same time, both may wait for ever. The check stops such a run.


# %%
def my_step(rank, stage, microbatches, width):
    """Leaves the gradients of the whole batch in the stage's parameters.

    stage: this rank's half of the model. microbatches: a list of equal pieces: the
    inputs on rank 0, the targets on rank 1. What travels has the shape
    (len(microbatch), width).
    """
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

# %% [markdown] sections="10.3.2, 19.3.2"
# ## Exercise 2. The same time, less memory
#
# Why not take very many microbatches, then? Because GPipe keeps the activations of all of them until its backwards begin. Can you find an order that frees them earlier?
#
# List the actions of one rank as strings: `["0F0", "0F1", "0B0", "0B1"]` is an order for stage 0 and two microbatches. A microbatch is *open* on a rank between its forward and its backward there. Make the peak, the most microbatches that any rank has open at once, as low as you can, and each rank's own as well. But the step must take no longer than GPipe's, if a backward takes twice as long as a forward and messages take no time.


# %%
def my_order(rank, num_ranks, num_microbatches):
    """The actions of one rank, in order; microbatches may be fewer than ranks."""
    ### BEGIN SOLUTION
    forwards = [f"{rank}F{k}" for k in range(num_microbatches)]
    backwards = [f"{rank}B{k}" for k in range(num_microbatches)]
    warmup = min(num_microbatches, num_ranks - 1 - rank)
    pairs = [action for pair in zip(forwards[warmup:], backwards) for action in pair]
    return forwards[:warmup] + pairs + backwards[num_microbatches - warmup :]
    ### END SOLUTION


# %%
check.better_order(my_order)

# %%
check.hint("better_order")

# %% [markdown] sections="10.3.2, 19.3.2"
# ## 1F1B
#
# The order of exercise 2 is [1F1B](GLOSSARY.md#1f1b) (one forward, one backward). Rank r first runs $p-1-r$ forwards, which fill the pipeline. Then it runs one forward and one backward in turn. When the forwards are used up, it finishes the backwards that are left.
#
# GPipe's predicted bubble was 27.3 %, and its *peak in flight*, the most microbatches open on a rank, was 8. And here? (The arrow at the top goes from the prediction to the run.)

# %%
step = step.but(schedule="1f1b")
step.compare()

# %% [markdown]
# The predicted bubble has not moved, because the pipeline still fills and drains. The peak has: GPipe held 8 everywhere, but rank r of 1F1B never holds more than $p-r$, however large m is.
#
# Here are the bytes that autograd kept in both runs:

# %%
gpipe = step.but(schedule="gpipe").compare().run  # remembered, not run again
ours = step.compare().run
held = {}
for rank in range(4):
    held[f"rank {rank}"] = {
        "GPipe": gpipe[rank]["peak_activation_bytes"],
        "1F1B": ours[rank]["peak_activation_bytes"],
    }
lab.bars(held, unit="bytes", title="Activations kept at the peak")

# %% [markdown] sections="19.3.2"
# Divide the second bar by the first: very nearly 4/8, 3/8, 2/8 and 1/8. So memory no longer limits m, and the predicted time is GPipe's. (Two single runs can't tell which of them is faster.) The first card stays the fullest: it keeps p microbatches of a p-th of the layers, which is as much as the whole model keeps of one.

# %% [markdown]
# ## Exercise 3. Choose for a given memory
#
# You may have a bubble of at most `max_bubble` (a share of total time, above 0), and your cards hold the activations of `max_activations` microbatches. Use the fewest microbatches that keep both; if both schedules do, prefer GPipe. Return `("gpipe", m)` or `("1f1b", m)`, or None if nothing fits.


# %%
def my_choice(num_ranks, max_bubble, max_activations):
    """The schedule and its fewest microbatches within both budgets; also for 1 rank."""
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
# ## When messages take time
#
# Is 1F1B ever slower than GPipe? So far predicted messages took no time. But a sequence of our model is an activation of 17 MB, which takes 13 ms at 1.25 GB/s. Let each message take 10 ms. GPipe's step then grows by 60 ms, for three borders there and back:

# %%
slow = step.but(message_ms=10)
slow_gpipe = slow.but(schedule="gpipe")
lab.show(slow_gpipe.predict(), title="GPipe, messages of 10 ms")

# %% [markdown]
# Here most messages travel while their receiver has other forwards or backwards to run. Is 1F1B's bubble smaller or larger than this one?

# %%
slower = lab.guess("1F1B's bubble, messages of 10 ms", choices=("smaller", "larger"))

# %%
grew = bubble(slow.predict()) > bubble(slow_gpipe.predict())
slower.score("larger" if grew else "smaller")

# %%
lab.show(slow.predict(), title="1F1B, messages of 10 ms")

# %% [markdown]
# Rank 3 now waits 20 ms before most forwards. Rank 2 begins its next forward only after the backward for which it waits: rank 3's gradient takes 10 ms to it, and its activation 10 ms back. GPipe has run all forwards by then, so nobody waits for an answer in between. 1F1B saves memory, and here pays with time.

# %% [markdown] sections="10.3.2"
# ## The libraries
#
# How do you run 1F1B yourself?
#
# ### torch.distributed.pipelining
#
# <details><summary>Why not <code>send</code> and <code>recv</code>?</summary>
#
# Under 1F1B a rank sends an activation while its neighbour sends a gradient, and both might wait for ever. So torch and Megatron post a send and a receive at once (`dist.batch_isend_irecv`); DeepSpeed orders them so that each send meets a receive.
#
# </details>
#
# You wrap a rank's part in a `PipelineStage`, choose a schedule and call its `step`. Only the last rank knows the loss:


# %%
def torch_pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    part = model.split(model.Transformer(4, 32, 2, max_len=32), size)[rank]
    stage = PipelineStage(part, rank, size, torch.get_default_device())
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=model.loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    tokens, targets = model.story_tokens(8, 32)
    losses = []
    if rank == 0:
        schedule.step(tokens)
    elif rank < size - 1:
        schedule.step()
    else:
        schedule.step(target=targets, losses=losses)
    optimizer.step()
    return round(sum(losses).item() / 8, 4) if losses else None


# %%
lab.launch(torch_pipeline, ranks=4)[3]

# %% [markdown] sections="8.6.2"
# ### DeepSpeed
#
# `PipelineModule` takes a list of layers, here the embedding, four blocks and the head, and cuts it by itself: with `partition_method="uniform"` into stages of about as many layers. Its order is 1F1B, too, and m is its `gradient_accumulation_steps`.


# %%
def deepspeed_pipeline(config, method="parameters"):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed()
    torch.manual_seed(0)
    layers = model.Transformer(4, 32, 2, max_len=32).layers
    net = PipelineModule(layers, 4, loss_fn=model.loss, partition_method=method)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    tokens, targets = model.story_tokens(8, 32)
    loss = engine.train_batch(zip(tokens.split(1), targets.split(1))).item()
    return {"rank": dist.get_rank(), "loss": loss, "cuts": net.parts}


# %%
config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
by_deepspeed = lab.launch(deepspeed_pipeline, config, "uniform", ranks=4)
by_deepspeed[0]

# %% [markdown] sections="8.6.2, 10.3.2"
# The loss is torch's, to four digits; gradients we did not compare. *cuts* says where stages begin: six layers became 2, 2, 1 and 1. Stage 1 holds two blocks, the others at most one. Say it takes twice as long as each of them. With a forward of 20 ms on every stage the predicted step took 660 ms. And now?

# %%
grown = lab.guess("a step with stage 1 twice as long, over 660 ms", unit="ratio")

# %%
uneven = pipeline.Cost(forward_us=(20e3, 40e3, 20e3, 20e3))  # of each stage
uneven_run = pipeline.simulate(step.order(), uneven)
grown.score(uneven_run.span_us / step.predict().span_us)

# %%
lab.show(uneven_run, title="1F1B, stage 1 twice as long")

# %% [markdown] sections="8.6.2, 10.3.2"
# Soon all wait for rank 1: the slowest stage sets the pace. Part of the delay is more work. The same work cut evenly, 25 ms a forward, would take 825 ms, so the cut alone makes the step 1.28 times as long.

# %% [markdown] sections="8.6.1"
# ## When is it worth it?
#
# ZeRO (chapter 06) makes our model fit, too, and has no bubble. Why a pipeline, then? Take eight A100 in eight machines, an Ethernet of 10 Gbit/s, or 1.25 GB/s, between them, and a batch of 64 sequences of 2048 tokens.
#
# Under ZeRO 1 a card adds up gradients, in float32 as Megatron does, and gathers weights in bf16. That is once a step and takes 28 s. A card of the pipeline passes on one activation for each sequence, and a gradient of the same size back. An activation is 2048 x 4096 numbers of 2 bytes. How long does a card send in a step?

# %%
sends = lab.guess("seconds that a card of the pipeline sends", between=(0, 60))

# %%
weights_gb = 2 * 6.7 * 7 / 8  # 6.7 billion in bf16; 7/8 lie on other cards
gradients_gb = 2 * weights_gb  # in float32
activation_gb = 2 * 2048 * 4096 / 1e9
traffic = {
    "ZeRO 1": (gradients_gb + weights_gb) / 1.25,
    "pipeline": 64 * 2 * activation_gb / 1.25,
}
sends.score(traffic["pipeline"])

# %%
lab.bars(traffic, unit="s", title="Messages of a step at 1.25 GB/s", badge="predicted")

# %% [markdown]
# The pipeline sends far less here. But its activations grow with the batch, while ZeRO 1 sends once a step, however large the batch is. From some 1,000 sequences for each pipeline on, or 2 million tokens, ZeRO 1 sends less.
#
# And a pipeline waits for its messages. Is its step shorter all the same? The planner (chapter 18) predicts both. It lets them send at 40 % of the rated speed, so all messages take 2.5 times as long as in the bars. And it hides no message of either behind computing:

# %%
zero_1 = planner.Plan(model="LLaMA 7B", gpus=8, per_node=1, zero=1, mbs=2, batch=64)
ways = {
    "ZeRO 1": zero_1,
    "pipeline": zero_1.but(zero=0, mbs=1, pp=8),  # 8 stages, a sequence a microbatch
}


def step_s(plan, gbit):
    """Of a step on such a network, as predicted."""
    return plan.but(nic_gb_per_s=gbit / 8).time().step_us / 1e6


# %%
speeds = (10, 25, 50, 100, 200, 400, 800)
times = {
    way: {each: step_s(plan, each) for each in speeds} for way, plan in ways.items()
}
axes = {"x": "network (Gbit/s)", "y": "step", "unit": "s", "log_x": True, "log_y": True}
lab.curves(predicted=times, **axes, title="Time of a step on eight cards")

# %% [markdown]
# At 10 Gbit/s ZeRO 1 takes 8.5 times as long as the pipeline. On a fast network the two come together, because messages hardly count and the pipeline still has its bubble. Such predictions have been wrong by a factor of up to 3.8 (chapter 19): take 8.5 as a direction, not as a size, and the place where the curves meet as no result. But the bars, which are bytes alone, point the same way. With a batch of this size, then, a pipeline pays where links are slow.
#
# <details><summary>What about ZeRO 3, which needs less memory?</summary>
#
# It gathers the weights twice and adds up gradients once for each microbatch, so it sends more. `zero_1.but(zero=3, mbs=4)` plans it.
#
# </details>
#
# Large trainings put a pipeline between machines, tensor parallelism inside each machine (chapter 09), and copies of the whole beside it (chapter 10).

# %% [markdown]
# ## Summary
#
# - Microbatches let the ranks work at once. The bubble, the share of time that they still wait, is $(p-1)/(m+p-1)$.
# - 1F1B keeps fewer microbatches than GPipe. It waits as long, or longer if messages take time.
# - The slowest stage sets the pace of all.
# - Here a pipeline sends less than ZeRO 1 up to about 2 million tokens for each pipeline and step: take it where links are slow.
#
# **Words:** [stage](GLOSSARY.md#stage), [microbatch](GLOSSARY.md#microbatch), [schedule](GLOSSARY.md#schedule), [bubble](GLOSSARY.md#bubble), [1F1B](GLOSSARY.md#1f1b), [paced](GLOSSARY.md#paced).
#
# **Next:** [tensor parallelism](09_tensor_parallel.ipynb), where each layer itself is cut.
#
# ---
#
# *Here ends what most people need. The rest is about shorter bubbles, and optional.*

# %% [markdown]
# ## Schedules that shrink the bubble
#
# Can an order get back what 1F1B loses? Not as long as each rank has one stage, a backward is one piece, and the pipeline drains after every step: the last rank waits for $p-1$ forwards before its first box, and its last gradient walks through $p-1$ backwards after its last box.
#
# ### Interleaving: more stages
#
# **Interleaved 1F1B** gives every rank two smaller stages: rank 0 has blocks 0 and 4 of the eight. With four microbatches 1F1B's bubble is 42.9 %. What is it now?

# %%
less = lab.guess("bubble of interleaved 1F1B, two stages a rank", between=(0, 1))

# %%
few = step.but(microbatches=4)
interleaved = few.but(schedule="interleaved_1f1b")
less.score(bubble(interleaved.predict()))

# %%
lab.show(interleaved.predict(), title=interleaved.title())

# %% [markdown]
# Each box is half as long, so filling and draining cost half as much. If m is a multiple of p, v stages a rank act like v times the microbatches:
#
# $$\text{bubble} = \frac{p-1}{vm+p-1}$$
#
# The price is messages, over seven borders instead of three, and memory. *Peak in flight* counts half stages here: rank 0's 8 halves are as much as 1F1B's 4 whole ones. From eight microbatches on it holds 11 halves.
#
# ### Zero bubble: a backward in two parts
#
# A backward computes two things, each in 20 ms here. One is I, the gradient of the input, for which the stage before waits. The other is W, the gradient of the weights, for which no other rank waits. So **ZB-H1** puts W off until there is a gap. What is the bubble now?

# %%
filled = lab.guess("bubble of ZB-H1, 4 ranks, 4 microbatches", between=(0, 1))

# %%
half = few.but(schedule="zb_h1")
filled.score(bubble(half.predict()))

# %%
lab.show(half.predict(), title=half.title())

# %% [markdown]
# The last rank waits for $p-1$ forwards before it can begin. After its last I the gradient passes $p-1$ more I's, and meanwhile this rank runs as many W's that it had put off. So it is idle for $(p-1)(F+I-W)$ instead of $(p-1)(F+B)$. The other ranks have as much work in the same time.
#
# The price: activations are kept until W is done, so every rank holds 4, like 1F1B's rank 0.
#
# ### Exercise 4. Where do the W's go?
#
# `order` is what a rank of 1F1B does, with I in the place of B. On rank 2 of four it begins `["2F0", "2F1", "2I0", "2F2", "2I1"]`. Return it with every W put in. F, I and W take equally long, and messages no time. The step must be as short as ZB-H1's, and the peak as low (a microbatch stays open until its W).


# %%
def my_gaps(rank, order):
    """The order with a W for every I; microbatches may be fewer than ranks."""
    ### BEGIN SOLUTION
    done, due = [], []
    for action in order:
        done.append(action)
        if "I" in action:
            due.append(action.replace("I", "W"))
            if len(due) > rank:
                done.append(due.pop(0))
    return done + due
    ### END SOLUTION


# %%
check.fill_gaps(my_gaps)

# %%
check.hint("fill_gaps")

# %% [markdown] sections="10.3.2, 19.3.2"
# ### PipeDream: never drain
#
# The draining is left. We drain before an update, a [flush](GLOSSARY.md#flush), so that all microbatches of a batch see the same weights. **PipeDream** never flushes. It goes on for ever as in the middle of 1F1B's picture, and each stage updates itself after every backward. Rank 0 begins like this:

# %%
print(*step.order().orders[0][:12])

# %% [markdown]
# How often does it update its weights between F3 and B3?

# %%
between = lab.guess("updates of rank 0 between F3 and B3", between=(0, 8))

# %%
stale = pipedream_run.launch(4, 8)  # for real: four ranks, eight microbatches
rows = []
for rank, told in enumerate(stale):
    behind = max(newest - used for used, newest in told["versions"])
    kept = told["peak_versions"]
    rows.append({"rank": rank, "updates late": behind, "versions kept": kept})
between.score(rows[0]["updates late"])

# %%
lab.table(rows)

# %% [markdown] sections="10.3.2, 19.3.2"
# The gradient of B3 must belong to the weights that F3 used, so rank 0 still keeps those: **weight stashing**. Stage s keeps $p-s$ versions, and its gradients come $p-1-s$ updates late: they are [stale](GLOSSARY.md#staleness). So PipeDream, once full, never waits if stages are equal and messages free, but it trains on older weights. Whether that hurts we did not measure.


# %% [markdown] sections="10.3.2, 19.3.2"
# ### All of them, paced
#
# What do these schedules need on real ranks? Here are those that flush, one run each. **ZBV** splits the backward *and* gives each rank two stages, in a V: rank 0 has the first and the last, so no gradient has to walk back before its first I.
#
# <details><summary>Why "zero"</summary>
#
# Of three ranks, rank 0 has stages 0 and 5, rank 1 has 1 and 4, rank 2 has 2 and 3. Choose ZBV in the first picture: if F, I and W take equally long, each rank works without a pause from its first action to its last. (In real models they don't.)
#
# The papers count each rank from its own first action, so they call this bubble zero; we count the whole picture. Zero is fair if rank 0 may begin the next step while the last rank still finishes this one. Then the update must not wait for all ranks, as clipping by the norm of all gradients would.
#
# In the same menu, *ZB-H2* runs more forwards in advance than ZB-H1, which fill the beginning too, and holds $2p-1$ microbatches. *Interleaved zero bubble* is ZB-H1 with several stages a rank.
#
# </details>

# %%
schedules = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "interleaved 1F1B": "interleaved_1f1b",
    "ZB-H1": "zb_h1",
    "ZBV": "zbv",
}

# %%
rows = []
for name, key in schedules.items():
    pair = step.but(schedule=key).compare()
    row = {"schedule": name, "predicted_us": pair.predicted.span_us}
    row["measured_us"] = pair.measured.span_us
    row["activations_bytes"] = max(each["peak_activation_bytes"] for each in pair.run)
    rows.append(row)

# %%
lab.table(rows, title="Predicted and measured step, largest peak of activations")

# %% [markdown]
# Rank 0 of the interleaved run keeps 11 halves instead of 1F1B's 4 wholes, as predicted. The last two hardly exceed 1F1B.
#
# Every row took longer than predicted, by a time of the order of what the finer schedules should save over 1F1B. So one run each can't rank them. Their shorter boxes, 10 or 20 ms, also mean more gaps between boxes.
#
#
# <details><summary>The schedules in a table</summary>
#
# | schedule | bubble | microbatches on the fullest rank | price |
# | --- | --- | --- | --- |
# | naive | $(p-1)/p$ | 1 | idle ranks |
# | GPipe | $(p-1)/(m+p-1)$ | m | memory |
# | 1F1B | as GPipe | p | waits for slow messages |
# | interleaved 1F1B | $(p-1)/(vm+p-1)$ | $p+(p-1)/v$ | messages, memory |
# | ZB-H1 | a third of 1F1B's waiting | p | finer boxes, p on every rank |
# | ZBV | a sixth of 1F1B's waiting | p | finer boxes, messages, p on every rank |
# | PipeDream | none, once full | p, and p versions of weights | stale gradients |
#
# (For m a multiple of p, 2p or more, F, I and W equally long, and messages that take no time.)
#
# </details>

# %% [markdown] sections="8.6.1, 10.3.2, 19.3.2"
# ## Exercise 5. Optional: find the fault in a chart
#
# Here each box takes one step, and stands as early as it can:

# %%
chart = few.but(schedule="gpipe", forward_ms=1, backward_ratio=1)
lab.show(chart.predict(), title="GPipe, every box one step of 1 ms")

# %% [markdown] sections="8.6.1, 10.3.2, 19.3.2"
# Rank 0 gets to B0 in step 10, counted from 0; a chart that has it in step 4 can't run. Find the first box that can't. A box can run if whatever it waits for, on its own rank or a neighbour's, stands in an earlier step.


# %%
def my_fault(chart):
    """(rank, step) of the earliest box that can't run (then lowest rank), or None.

    chart: a list of rows, one per rank; a row: a box per step, "F1", "B1" or ".".
    The largest has 32 ranks and 256 microbatches, and you have two seconds.
    """
    ### BEGIN SOLUTION
    done, last = set(), len(chart) - 1
    for step, column in enumerate(zip(*chart)):
        boxes = [(rank, box) for rank, box in enumerate(column) if box != "."]
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

# %% [markdown] sections="8.6.1, 8.6.2, 10.3.2, 19.3.2, S7"
# ## Errata of the textbook
#
# They correct a textbook in wide use, by its sections; an S is one of its code snippets.
#
# <details><summary>Ten boxes</summary>
#
# <details><summary>Erratum S7: a backward that is given the input</summary>
#
# The textbook's pipeline calls `output.backward(micro)`, with the stage's input. What `backward` takes is a gradient of the shape of the output. Run it: `torch.nn.Linear(16, 10)(torch.randn(2, 16)).backward(torch.randn(2, 16))` raises a RuntimeError about the shapes.
#
# </details>
#
# <details><summary>Erratum 8.6.1: a "naive" chart that is not naive</summary>
#
# The textbook draws `F0 . F1 . F2 . F3` on rank 0 and the same one step later on the next rank. Then two ranks work in nearly every step, so this is a pipeline already, without its backward, and its bubble is not the 75 % that stands under it. The 75 % itself is right for a naive one: `bubble(step.but(schedule="naive").predict())`.
#
# </details>
#
# <details><summary>Erratum 8.6.1: "about 50 %" for four stages and four microbatches</summary>
#
# Three of seven slots are idle. Run it: `bubble(step.but(microbatches=4).predict())` gives 0.43. Over the useful time it is 0.75: `bubble(step.but(microbatches=4).predict(), over="ideal")`. Neither is a half.
#
# </details>
#
# <details><summary>Erratum 8.6.1: the GPipe chart</summary>
#
# The textbook lets every rank begin its backwards on its own, ranks 0 and 1 in step 5, the others one and two steps later. That is before rank 3 has even done its forward of microbatch 3. In the picture of exercise 5, rank 0 can do B0 in step 10. The order can run; 12 of the 32 boxes are drawn too early.
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
# Here the backwards run from B3 to B0, which is a fine order (GPipe's paper does it too). But rank 0 starts B3 in step 4, one step after its own forward of it, and it can be there in step 10 at the earliest.
#
# </details>
#
# <details><summary>Erratum 19.3.2: "1F1B reduces the bubble"</summary>
#
# It keeps the bubble of GPipe and reduces the memory. Run it: `bubble(step.but(schedule="gpipe").predict()) - bubble(step.predict())` is 0.
#
# </details>
#
# <details><summary>Erratum 8.6.2: Megatron's old modules</summary>
#
# The textbook has `from megatron.model import ...`. The parts live in `megatron.core` today (`get_forward_backward_func()` of `megatron.core.pipeline_parallel` gives the whole loop as one function), and a script that imports `megatron.model` is written for a release of years ago. Where Megatron is installed, look yourself: `importlib.util.find_spec("megatron.core")`.
#
# </details>
#
# <details><summary>Erratum 10.3.2: an import that is gone</summary>
#
# The textbook has `from torch.distributed.pipeline.sync import Pipe`. That module has left torch; `torch.distributed.pipelining` is its successor. Run it: `importlib.util.find_spec("torch.distributed.pipeline")` gives None.
#
# </details>
#
# <details><summary>Erratum 8.6.2: how to cut, in the JSON configuration</summary>
#
# The textbook writes `partition_method` into the JSON. There it changes nothing: DeepSpeed does what it does by default, which is to balance the number of *parameters*. Run it: `lab.table(list(lab.launch(deepspeed_pipeline, config | {"pipeline": {"partition_method": "uniform"}}, ranks=4)))` has other cuts than DeepSpeed's table, and the same as without that entry.
#
# </details>
#
# </details>
#
# ## Further reading
#
# <details><summary>Four papers, one repository</summary>
#
# - GPipe: Huang et al. 2018, [arXiv 1811.06965](https://arxiv.org/abs/1811.06965)
# - PipeDream: Harlap, Narayanan et al. 2018, [arXiv 1806.03377](https://arxiv.org/abs/1806.03377)
# - 1F1B with flush and interleaved: Narayanan et al. 2021 (Megatron), [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - Zero bubble, ZB-H1, ZBV: Qi et al. 2023, [arXiv 2401.10241](https://arxiv.org/abs/2401.10241)
# - DualPipe, with a table of bubbles and memory: [deepseek-ai/DualPipe](https://github.com/deepseek-ai/DualPipe)
#
# </details>

# %%
check.status()
