# ---
# jupyter:
#   labkit:
#     sections: ["8.1.1", "19.2.3", "19.4.2", "10.2.3", "10.7.4", "S3", "S4", "S9"]
#     needs: ["chapters 01 and 03"]
#     minutes: 95
# ---

# %% [markdown]
# # Precision and memory
#
# *A good hour in two halves, half an hour more for the optional end. You need chapters 01 and 03, and no GPU.*
#
# To train our 7 B model in fp32 takes 112 GB for weights, gradients and optimizer, and a card has 80 GB. "Train in 16 bits," everybody says, "that is half of it." So we turn all numbers into bf16, and these 56 GB fit. But our small model below learns a little worse that way.
#
# What gets lost? The picture shows the gap between a number and the next larger one. A weight changes only if its update is at least about half a gap.

# %%
import labkit as lab
from labkit import model

lab.begin("en")
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from labkit.measure import memory
from labkit.precision import check, formats, picture, watched_run
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)  # tiny models here, and the ranks want the other cores

# %%
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
numbers = [2.0**e * part for e in range(-10, 3) for part in (1, 1.999)]


def gap(x, dtype):
    """From x to the next larger number; eps is the gap at 1."""
    return 2.0 ** math.floor(math.log2(x)) * torch.finfo(dtype).eps


# %%
lines = {name: {x: gap(x, dtype) for x in numbers} for name, dtype in FORMATS.items()}
axes = {"x": "number", "y": "gap", "log_x": True, "log_y": True}
dashed = {"at": {"0.1": 0.1}, "marks": {"twice 0.0001": 2e-4}}
lab.curves(predicted=lines, **axes, **dashed, title="The gap to the next number")

# %% [markdown]
# Where a line is above the horizontal one, the gap is over twice 0.0001, so an update of 0.0001 is under half a gap. At 0.1 only bf16's line is above.
#
# **When you are done** you can choose a format for weights, train in 16 bits on several ranks, and cut the memory of a step.
#
# ## The formats
#
# Why do the gaps differ so much? A float has a sign, an exponent for its range, and a fraction (or *mantissa*) for its precision. The bits of each:

# %%
layout = {}
for name, dtype in FORMATS.items():
    info = torch.finfo(dtype)
    fraction = round(-math.log2(info.eps))
    exponent = info.bits - 1 - fraction
    layout[name] = {"sign": 1, "exponent": exponent, "fraction": fraction}
lab.bars(layout, stacked=True, badge="torch.finfo", title="The bits of a number")

# %% [markdown]
# bf16 has about fp32's range but few digits; fp16 has more digits, but ends at 65504, and has only zero below 6e-8.
#
# From $2^e$ to $2^{e+1}$ a format with m bits of fraction has $2^m$ numbers, at equal distances. So above $2^{-4}$, where 0.1 lies, the gap of fp16 is $2^{-4} / 2^{10} = 2^{-14}$, or 6.1e-5.
#
# Now a weight of 0.1 gets 100 updates of -0.0001. It should end at 0.09. Where does it end in fp16?

# %%
ends = lab.guess("0.1 after 100 updates of -0.0001, in fp16", between=(0.08, 0.11))


# %%
def pushed(dtype):
    weight, update = torch.tensor(0.1, dtype=dtype), torch.tensor(0.0001, dtype=dtype)
    for _ in range(100):
        weight = weight - update
    return weight.item()


# %%
lab.table([{name: pushed(FORMATS[name]) for name in ("fp32", "fp16", "bf16")}])

# %%
ends.score(pushed(torch.float16))

# %% [markdown] sections="19.2.3"
# In fp16 each update is 1.6 gaps, and was rounded to 2. In bf16 it is under half a gap, and the weight never moved. That is what gets lost: small updates.
#
# ## Master weights, by hand
#
# How do small updates survive? We keep a copy of the weights in fp32, the **[master weights](GLOSSARY.md#master-weights)**. Forward and backward compute in 16 bits, the optimizer updates the masters, and each weight is its master, rounded.
#
# The weight of 0.1 gets its 100 updates again, now with a master. How many move the bf16 weight?

# %%
moves = lab.guess("updates of 100 that move the bf16 weight", between=(0, 100))


# %%
def three_numbers(num_updates=100):
    """After each update: bf16 with a master, the master, bf16 alone."""
    master = torch.tensor(0.1)
    alone = master.bfloat16()
    lines = {"bf16 with a master": {}, "its master, fp32": {}, "bf16 alone": {}}
    for number in range(num_updates + 1):
        lines["bf16 with a master"][number] = master.bfloat16().item()
        lines["its master, fp32"][number] = master.item()
        lines["bf16 alone"][number] = alone.item()
        master = master - 0.0001
        alone = alone - 0.0001
    return lines


# %%
lines = three_numbers()
axes = {"x": "updates", "y": "number", "joined": True}
lab.curves(measured=lines, **axes, title="A weight and its master")

# %%
moves.score(len(set(lines["bf16 with a master"].values())) - 1)

# %% [markdown]
# The bf16 weight stays next to its master and jumps a whole gap at a time; no update is lost. This is a step with masters:

# %%
lab.show(picture.step("mixed"))

# %% [markdown]
# The update, and the rounding after it, we write ourselves. The masters are fp32, so their gradients have to be, too (the lower box on the right):


# %%
@torch.no_grad()
def update(weights, masters, optimizer):
    """One step of an optimizer that owns the masters."""
    for weight, master in zip(weights, masters):
        master.grad = weight.grad.to(master.dtype)
    optimizer.step()
    for weight, master in zip(weights, masters):
        weight.copy_(master)  # rounded to its type


# %% [markdown]
# We train a small transformer on two ranks with DDP in four ways. In fp32 and pure bf16 the masters are the weights themselves, and Adam's moments have their type. The third is a control, to see what is to blame: it has fp32 masters, but after each update overwrites them with the rounded weights (`master.copy_(weight)`), so only its moments gain. The fourth keeps its masters.


# %%
def make(kind):
    """A net, its weights, and the masters that its optimizer updates."""
    net = model.Transformer(1, 32, 2, max_len=32)
    net = net if kind == "fp32" else net.bfloat16()
    weights = masters = list(net.parameters())
    if kind in ("bf16, fp32 moments", "bf16 + masters"):
        masters = [weight.detach().float() for weight in weights]
    return net, weights, masters


# %%
def train(kind, seed, num_steps=36):
    """Losses; the share of masters with a gradient; of these, the share unmoved."""
    torch.manual_seed(seed)
    net, weights, masters = make(kind)
    ddp, losses = DDP(net), []
    optimizer = torch.optim.AdamW(masters, lr=5e-4)
    still = watched_run.Still(optimizer)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
        ddp.zero_grad()
        loss = model.loss(ddp(tokens).float(), targets)
        loss.backward()
        losses.append(loss.detach())
        update(weights, masters, optimizer)
        if kind == "bf16, fp32 moments":
            for weight, master in zip(weights, masters):
                master.copy_(weight.detach())
    return torch.stack(losses), *still.shares()


def seeds(kind):
    return [train(kind, seed) for seed in range(3)]


# %%
KINDS = ("fp32", "pure bf16", "bf16, fp32 moments", "bf16 + masters")
runs = lab.launch(lambda: {kind: seeds(kind) for kind in KINDS})[0]

# %%
lines, rows = watched_run.beside(runs, "fp32")
axes = {"x": "step", "y": "loss - loss of fp32", "joined": True}
lab.curves(measured=lines, **axes, title="The loss above that of fp32")

# %% [markdown]
# That is rank 0's loss, the mean of three seeds; in fp32 it falls from 5.7 to 5.1. How far above fp32's does each seed's loss end, and how many masters that got a gradient end where they began?

# %%
above = ["above: seed 0", "above: seed 1", "above: seed 2"]
shares = {"got a gradient": "share", "where it began": "share"}
lab.table(rows, heads=["training", *above, *shares], units=shares)

# %% [markdown]
# Pure bf16 falls behind with each seed. With fp32 moments it falls behind nearly as much, although it differs from `bf16 + masters` only in `master.copy_(weight)`; so most of it comes from rounding the weights after each update. With masters the loss stays at fp32's.
#
# Adam usually moves a weight by at most about its learning rate, 5e-4. From 0.25 up half a gap is at least 9.8e-4, so there even a whole step is lost. Most of the unmoved weights are that large: those of embeddings and norms.
#
# <details><summary>More: weights without a gradient</summary>
#
# They are rows of the embedding whose token never came.
#
# </details>
#
# ### Exercise 1. Which updates survive?
#
# Weights are kept in `dtype`, without masters, and one update subtracts `rate` from each. Which weights have changed afterwards? `weights` is an fp32 tensor of both signs, so round it to `dtype` first. Return a tensor of bools, one for each weight.


# %%
def my_surviving(weights, rate, dtype):
    """Which weights, kept in dtype, move when rate is subtracted."""
    ### BEGIN SOLUTION
    kept = weights.to(dtype)
    return kept - rate != kept
    ### END SOLUTION


# %%
check.surviving(my_surviving)

# %%
check.hint("surviving")

# %% [markdown]
# ### And in a large model?
#
# Many begin with normal weights of mean 0 and standard deviation 0.02, and the rate of LLaMA 7B falls from 3e-4 to 3e-5. What share of such weights moves in a last step, in bf16, if Adam's update is as large as its rate?

# %%
arrives = lab.guess("share of the weights that an update of 3e-5 moves", between=(0, 1))

# %%
large = 0.02 * torch.randn(100_000)
moved = {
    rate: formats.survives(large, rate, torch.bfloat16).float().mean().item()
    for rate in (3e-4, 1e-4, 3e-5)
}
lab.table(list(moved.items()), heads=["rate", "moved"], units={"moved": "share"})

# %%
arrives.score(moved[3e-5])

# %% [markdown]
# At 0.02 half a gap is 6.1e-5, and 3e-5 moves only weights below 0.0078. So if trained weights are about as large, most such updates are lost at the end.
#
# ### What masters cost
#
# Are we still at half the memory? A [recipe](GLOSSARY.md#recipe) says in which types the states are kept; `mixed` is from chapter 01:

# %%
RECIPES = {
    "fp32": {"moments": 8, "weights": 4, "gradients": 4},
    "pure bf16": {"moments": 4, "weights": 2, "gradients": 2},
    "mixed": {"moments": 8, "masters": 4, "weights": 2, "gradients": 2},
    "autocast": {"moments": 8, "weights": 4, "gradients": 4},  # the next section
}
bill = {
    name: {part: 7e9 * size for part, size in parts.items()}
    for name, parts in RECIPES.items()
}
looks = {"marks": {"one card": 80e9}, "badge": "predicted", "stacked": True}
lab.bars(bill, unit="bytes", **looks, title="States of 7 B parameters")

# %% [markdown] sections="19.2.3, 8.1.1"
# Only pure bf16 is half as large, and in our run it fell behind. [Mixed precision](GLOSSARY.md#mixed-precision) saves no states: in `mixed` the masters cost what 16 bits save, and autocast's stay fp32. What it saves is [activations](GLOSSARY.md#activations), and on GPUs time, which we don't measure.
#
# Our `update` makes `mixed` even dearer: its line `master.grad = weight.grad.to(master.dtype)` adds fp32 gradients, 28 GB, and the 112 GB become 140.
#
# <details><summary>More: what a step holds besides, fp32 moments, when masters do not fit</summary>
#
# The bill has states only. Our `update` drops its fp32 gradients only when it makes the next ones.
#
# Why are the moments in fp32? With torch's usual β2, 0.999, Adam's second one shrinks by at most 0.1 % a step, under half a gap of bf16, where it would never shrink.
#
# *Stochastic rounding* goes up or down at random, so that small updates arrive on average. Optimizers with 8-bit moments (Dettmers et al. 2022) take 2 bytes for both moments instead of 8: `mixed` would be 10 bytes a parameter, 70 GB. We trained with neither.
#
# </details>

# %% [markdown] sections="S3"
# ## autocast
#
# How much does it save? In torch's own way the weights stay fp32, so they *are* the masters, and [`autocast`](GLOSSARY.md#autocast) casts the inputs of some operators to 16 bits:

# %%
lab.show(picture.step("autocast"))

# %% [markdown]
# The bill leaves out the cast weights, up to 14 GB: they live until the backward is done, so we count them as activations.
#
# Which operators are cast? We ask a [pretend device](GLOSSARY.md#pretend-device), which casts as a GPU does:


# %%
def autocast(dtype=torch.bfloat16, **options):
    """torch.autocast on whatever this rank computes on."""
    return torch.autocast(torch.get_default_device().type, dtype=dtype, **options)


# %%
def results():
    x, weight, targets = torch.randn(4, 8), torch.randn(8, 8), torch.arange(4)
    with autocast():
        y = x @ weight
        made = {"product y = x @ weight": y, "gelu(y)": F.gelu(y), "x + y": x + y}
        made["layer_norm(y)"] = F.layer_norm(y, (8,))
        made["loss of y"] = F.cross_entropy(y, targets)
    return [(name, each.dtype) for name, each in made.items()]


# %%
made = lab.launch(results, ranks=1, devices=lab.pretend())[0]
lab.table(made, heads=["operator", "result"])

# %% [markdown]
# Products gain most, so their inputs are cast, and `gelu` takes what comes. Losses and `layer_norm` are fp32. The *residual stream* from block to block (here `x`) stays fp32 when a bf16 number is added.
#
# We count the bytes kept for the backward in fp32, under autocast, and in an all-bf16 model of two blocks: `held.chunk` counts what autograd saves inside its `with`. In fp32 that is 1.39 MB. The 8 x 32 x 256 logits of the loss, 262 kB, stay fp32 in all three; under autocast so does the residual stream, 164 kB. What share of fp32's bytes does autocast keep?

# %%
kept = lab.guess(
    "activations kept under autocast, as a share of fp32's", between=(0, 1)
)


# %%
def kept_bytes(kind):
    tokens, targets = model.story_tokens(8, 32)
    net = model.Transformer(2, 32, 2, max_len=32)
    net = net.bfloat16() if kind == "bf16 model" else net
    held = memory.Activations(net.parameters())
    with autocast(enabled=kind == "autocast"), held.chunk("forward"):
        loss = model.loss(net(tokens).float(), targets)
    return {"way": kind, "kept_bytes": held.peak_bytes}


# %%
kinds, one = ("fp32", "autocast", "bf16 model"), {"ranks": 1, "devices": lab.pretend()}
rows = [lab.launch(kept_bytes, kind, **one)[0] for kind in kinds]
lab.table(rows)

# %%
kept.score(rows[1]["kept_bytes"] / rows[0]["kept_bytes"])

# %% [markdown] sections="S3"
# Why not half? Logits and residual stream don't shrink; nearly all the rest halves. But autocast also keeps 65.5 kB of cast weights. With a larger batch these weigh less, and the share falls towards 66 %.

# %% [markdown] sections="10.2.3, 19.4.2"
# *Here the first half ends.*
#
# ## Accumulation: the big batch in small pieces
#
# How does a batch fit that is too large? By [gradient accumulation](GLOSSARY.md#gradient-accumulation), which chapter 03 used to save messages: [microbatches](GLOSSARY.md#microbatch) one after the other, each loss divided by their number, all but the last in `no_sync`, and one update.

# %%
import contextlib


def flat(tensors):
    """Many tensors as one long copy."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# %%
def accumulate(num_microbatches, dtype=torch.float32):
    torch.manual_seed(0)
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32).to(dtype))
    mine = slice(dist.get_rank(), None, dist.get_world_size())  # this rank's sequences
    tokens, targets = (each[mine].clone() for each in model.story_tokens(16, 32))
    pieces = list(zip(tokens.chunk(num_microbatches), targets.chunk(num_microbatches)))
    held = memory.Activations(ddp.parameters())
    for number, (tokens, targets) in enumerate(pieces, start=1):
        last = number == num_microbatches
        with contextlib.nullcontext() if last else ddp.no_sync():
            with held.chunk(number):
                loss = model.loss(ddp(tokens), targets) / num_microbatches
            loss.backward()
    return flat(weight.grad for weight in ddp.parameters()), held.peak_bytes


# %% [markdown]
# Is it the same gradient? We take 16 sequences on two ranks, at once and in four microbatches, and compare with all 16 on a single rank. Is the (relative) **error** rounding or a bug? fp64 tells:


# %%
def off(ours, theirs):
    """The norm of the difference, over that of the right answer."""
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def compared(dtype, num_microbatches):
    whole, _ = lab.launch(accumulate, 1, dtype, ranks=1)[0]
    grad, kept = lab.launch(accumulate, num_microbatches, dtype)[0]
    return f"fp{torch.finfo(dtype).bits}", num_microbatches, off(grad, whole), kept


# %%
cases = ((torch.float32, 1), (torch.float32, 4), (torch.float64, 4))
rows = [compared(*case) for case in cases]
lab.table(rows, heads=["format", "microbatches", "error", "kept_bytes"])

# %% [markdown] sections="10.2.3"
# In fp64 the error is some $10^8$ times smaller; the gap falls by the same order. A bug would stay as large, so it is rounding. And the activations fall with the size of a microbatch.
#
# ### Where it is not equal
#
# In four common cases the result differs:
#
# 1. A layer looks across the batch: BatchNorm takes the statistics of one microbatch.
# 2. Microbatches differ in their number of real tokens: a token among few weighs more than one among many. Exercise 2 mends it.
# 3. The sum is kept in bf16 (measured in the optional end).
# 4. Dropout draws other masks.
#
# ### Exercise 2. The mean over all real tokens
#
# Leave in each `.grad` the gradient of the mean loss over **all** real tokens of all microbatches of all ranks.
#
# - `ddp`: a model in DDP, which averages over ranks; its logits are [batch, tokens, vocabulary].
# - `microbatches`: this rank's list of (tokens, targets), as long on every rank.
# - Targets of -100 are not real. A microbatch may have no real target at all; then `model.loss` is NaN.
# - Send the gradients once and at most 64 bytes more; keep the activations of one microbatch at a time.


# %%
def my_accumulate(ddp, microbatches):
    """Leaves in ddp's weights the gradient of the mean over all real tokens."""
    ### BEGIN SOLUTION
    num_real = sum((targets != -100).sum() for _, targets in microbatches)
    total = torch.tensor(float(num_real))
    dist.all_reduce(total)
    for number, (tokens, targets) in enumerate(microbatches, start=1):
        with contextlib.nullcontext() if number == len(microbatches) else ddp.no_sync():
            logits = ddp(tokens).flatten(0, 1)
            loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
            (loss * dist.get_world_size() / total).backward()  # DDP divides by ranks
    ### END SOLUTION


# %%
check.accumulate_tokens(my_accumulate)

# %%
check.hint("accumulate_tokens")

# %% [markdown] sections="19.4.2"
# ## Recomputation
#
# If a microbatch is still too large, a block has to keep less for its backward. How much does it keep?


# %%
def kept_by(block, x):
    """Bytes that autograd keeps when a block has run on x."""
    held = memory.Activations(block.parameters())
    with held.chunk("forward"):
        y = block(x)
    return held.num_bytes


# %%
wide = model.Transformer(1, 256, 4, max_len=256).layers[1]
x = torch.randn(8, 256, 256, requires_grad=True)
lab.table([{"input_bytes": x.nbytes, "kept_bytes": kept_by(wide, x)}])

# %% [markdown]
# A block keeps 16 times its input, all of which can be computed again from it. [Activation checkpointing](GLOSSARY.md#activation-checkpointing), or recomputation, keeps the input only and runs the forward again in the backward:


# %%
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        y.backward(grad)  # adds to the .grad of the block's weights, too
        return None, x.grad


# %% [markdown]
# We recompute the first k of eight blocks, and count what autograd holds over a step. What is the smallest k with the lowest peak?

# %%
best = lab.guess("fewest recomputed blocks with the lowest peak", between=(0, 8))

# %%
chain = model.Transformer(8, 64, 4).layers[1:-1]
batch = torch.randn(4, 64, 64, requires_grad=True)


def live_bytes(k):
    """Bytes held after each tensor that is saved or let go in a step."""
    held, x = memory.Activations(chain.parameters()), batch
    with held.chunk("step"):
        for i, block in enumerate(chain):
            x = Recompute.apply(block, x) if i < k else block(x)
        x.sum().backward()
    return held.history


# %%
held = {k: live_bytes(k) for k in range(9)}
peaks = {k: max(held[k]) for k in held}
axes = {"x": "recomputed blocks, k", "y": "peak", "unit": "bytes", "joined": True}
lab.curves(measured={"peak": peaks}, **axes, title="The peak of a step")

# %%
best.score(min(peaks, key=peaks.get))

# %% [markdown]
# Why can't the peak fall further? Here is the whole step, with none and with all recomputed:

# %%
lines = {"keep": dict(enumerate(held[0])), "recompute": dict(enumerate(held[8]))}
full = held[0].index(peaks[0])  # the event with the highest peak
at = {"recompute: backward begins": 8, "keep: backward begins": full}
axes = {"x": "events: a tensor is saved or let go", "y": "activations", "unit": "bytes"}
title = "One step of eight blocks"
lab.curves(measured=lines, at=at, **axes, joined=True, title=title)

# %% [markdown] sections="19.4.2"
# The forward of `recompute` saves only eight inputs, so it ends at the first vertical line. In its backward each block, the last first, computes its activations again and frees them after use: a peak each. The first is the highest, because the inputs of all other blocks are still there. To recompute the last block gains nothing here: its backward follows at once.
#
# The price is one more forward. A backward takes about two, so a step of three becomes one of four. torch's `checkpoint(block, x, use_reentrant=False)` does the same, and restores autocast and the random state, which ours forgets. (Why `use_reentrant=False`, the optional end shows.)
#
# ### Exercise 3. Recompute within a budget
#
# Block i keeps `kept_bytes[i]`, among them its input, `input_bytes[i]`; recomputed, it keeps its input only. List as few blocks as possible to recompute, so that the step's peak is at most `budget_bytes`; `None` if that can't be done. There are at most eight blocks.


# %%
def my_blocks(kept_bytes, input_bytes, budget_bytes):
    """The numbers of the blocks to recompute, as a list; or None."""
    ### BEGIN SOLUTION
    blocks = range(len(kept_bytes))
    choices = [
        [i for i in blocks if number >> i & 1] for number in range(2 ** len(blocks))
    ]
    for chosen in sorted(choices, key=len):
        held = [input_bytes[i] if i in chosen else kept_bytes[i] for i in blocks]
        if max(sum(held[:i]) + kept_bytes[i] for i in blocks) <= budget_bytes:
            return chosen
    return None
    ### END SOLUTION


# %%
check.checkpoint_blocks(my_blocks)

# %%
check.hint("checkpoint_blocks")

# %% [markdown]
# ## All together, on a pretend device
#
# Say a device has 40 MB. Does a step of eight blocks fit? This is the step to copy, for bf16; padding needs the loss of exercise 2.


# %%
def train_step(ddp, optimizer, microbatches, mixed=True):
    """One update; returns the mean loss of its microbatches."""
    total = 0.0
    for number, (tokens, targets) in enumerate(microbatches, start=1):
        last = number == len(microbatches)
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast(tokens.device.type, torch.bfloat16, enabled=mixed):
                loss = model.loss(ddp(tokens), targets) / len(microbatches)
            loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


# %% [markdown]
# Two pretend devices take sixteen sequences each, by five plans: fp32, autocast, autocast with accumulation (four microbatches), autocast with recomputation, and all three. Each device reports two peaks of its bytes: in forward and backward, and in the update.


# %%
from functools import partial
from torch.utils.checkpoint import checkpoint


def recompute_all(blocks):
    """Lets each block run its forward again in the backward."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


# %%
def on_device(num_microbatches=1, recompute=False, mixed=True):
    """The device's peaks: until the update begins, and in the update."""
    torch.manual_seed(0)
    net = model.Transformer(8, 96, 4, max_len=64)
    recompute_all(net.layers[1:-1] if recompute else ())
    ddp, optimizer = DDP(net), torch.optim.AdamW(net.parameters(), foreach=True)
    peaks = watched_run.Peaks(optimizer)
    for num_sequences in (4, 16):  # a small first step makes Adam's moments
        batch = model.story_tokens(num_sequences, 64, seed=dist.get_rank())
        pieces = list(zip(*(each.chunk(num_microbatches) for each in batch)))
        train_step(ddp, optimizer, pieces, mixed)
    return {"forward, backward": peaks.before_bytes, "update": peaks.update_bytes}


# %%
plans = {
    "fp32": partial(on_device, mixed=False),
    "autocast": on_device,
    "autocast, accumulate": partial(on_device, num_microbatches=4),
    "autocast, recompute": partial(on_device, recompute=True),
    "all three": partial(on_device, num_microbatches=4, recompute=True),
}
peaks = {k: lab.launch(plan, devices=lab.pretend())[0] for k, plan in plans.items()}

# %%
marks = {"a device of": 40e6}
lab.bars(peaks, unit="bytes", marks=marks, title="The peak memory of each device")

# %% [markdown]
# Autocast alone does not fit; with accumulation or recomputation it does. Each of them lowers only the peak in forward and backward; in the plan `all three` it is below that of the update, so nothing more can be gained.
#
# What fills the update? The activations are gone, and by autocast's bill the states are 16 bytes for each parameter. But DDP also keeps its buckets, and AdamW computes with temporaries. How many bytes for each parameter are there in all?

# %%
most = lab.guess("bytes for each parameter in the update", between=(0, 40))

# %%
weights = model.Transformer(8, 96, 4, max_len=64).parameters()
most.score(peaks["autocast"]["update"] / sum(map(torch.numel, weights)))

# %% [markdown] sections="10.7.4"
# The buckets are a copy of the gradients, and the temporaries are as large as the weights: 4 bytes each, which stand in no bill. Our plans change none of this, so it is their floor.
#
# <details><summary>More: the two peaks, <em>selective</em> recomputation</summary>
#
# A GPU holds more, because its allocator leaves gaps. Buckets and temporaries can go, as torch's documentation says: with `gradient_as_bucket_view=True` gradients lie in DDP's buckets, and with `foreach=False` AdamW needs hardly any temporaries.
#
# For a GPT layer in 16 bits, Korthikanti et al. count $34\,sbh + 5\,as^2b$ bytes of activations: s tokens, b sequences, h width, a heads. (34 bytes are the 16 numbers that we counted, and the masks of two dropouts.) The term with $s^2$ is the attention matrix. *Selective* recomputation repeats only that one; flash attention never stores it. (In our 7 B model, below, it would add 86 GB to a sequence.) *Full* recomputation keeps the inputs, $2\,sbh$. For GPT-3 `5 * 96 * 2048**2 / (34 * 2048 * 12288 + 5 * 96 * 2048**2)` is 0.70: more than two thirds of its activations lie in that matrix.
#
# </details>
#
# ## When is it worth it?
#
# In this order:
#
# 1. **bf16 with fp32 masters:** always, on hardware that has it: its products are faster. (Not fp16: small gradients become zero there, unless a loss scale helps; see the optional end.)
# 2. **Accumulation:** when the batch doesn't fit. It adds no FLOPs, but smaller products use a GPU less well.
# 3. **Recomputation:** if it still doesn't fit, for one more forward.
#
# <details><summary>More: how much faster, fp8</summary>
#
# NVIDIA lists an A100 with 312 TFLOP/s in bf16, 156 in TF32 and 19.5 in plain fp32.
#
# fp8 is for large products, with a library such as torchao or Transformer Engine that keeps the scales. NVIDIA's GPUs multiply in fp8 since the H100, whose listed peak is twice that of bf16. But e4m3 (4 bits of exponent, 3 of mantissa) ends at 448. The trick is a **scale** for each tensor: multiply by 448 over its largest value, round, and divide afterwards. The usual split is e4m3 for weights and activations, and e5m2, with its wider range, for gradients, which differ more in size. With a scale for each small block e4m3 can do for all, as in DeepSeek-V3. Only the inputs of products are in fp8; sums have more digits.
#
# </details>
#
# And our 7 B model, with autocast or `mixed`? By the bill their states are equally large, and autocast is less work. But in chapter 06 eight cards share masters and moments, while each keeps gradients and the weights that it computes with whole. In bytes for each parameter:
#
# |on each card|`mixed`|autocast|
# |---|---|---|
# |weights, whole|2|4|
# |gradients, whole|2|4|
# |an eighth of the rest|(4 + 8) / 8|8 / 8|
#
# That is 5.5 bytes for each parameter, 38.5 GB, against 9. So there we take `mixed`. (Of the fp32 gradients, which we leave out, a card then needs only its eighth.)
#
# What do activations add? With flash attention a block keeps $34\,sbh$ bytes (chapter 01), of which its input is $2\,sbh$. We have 32 blocks, s = h = 4096 and b = 1. The logits of the loss, 32,000 for each token, stay in fp32 whatever we do. Beside the 38.5 GB two sequences fit on one of the eight cards, of 80 GB. How many fit if each block is recomputed?

# %%
fit = lab.guess("sequences that fit if each block is recomputed", between=(2, 100))

# %%
unit = 4096 * 4096
logits = 4 * 4096 * 32_000
free_bytes = 80e9 - 38.5e9
needs = {
    "keep": 32 * 34 * unit + logits,
    "recompute": (31 * 2 + 34) * unit + logits,  # 31 inputs, and one block in full
}
rows = [(way, size, free_bytes // size) for way, size in needs.items()]
lab.table(rows, heads=["way", "kept_bytes", "sequences"])

# %%
fit.score(free_bytes // needs["recompute"])

# %% [markdown]
# Recomputed, a sequence keeps its inputs, and in the backward one block in full, 1.6 GB together, and its logits are 0.5 GB. By this bill 19 fit. It leaves out buckets and temporaries, so really fewer do.
#
# ---
#
# *Here ends what most people need. The rest is about fp16 and its loss scale, messages and sums in 16 bits, torch's way of recomputing and sharded gradients, and optional.*

# %% [markdown] sections="S3, 19.2.3"
# ## The loss scale
#
# What goes wrong in fp16? The loss is a mean over all tokens, and early in a training it spreads over the whole vocabulary. So the gradient of most logits is about one over tokens times vocabulary. For 8,192 tokens and a vocabulary of 32,000, in fp16:

# %%
torch.tensor(1 / (8_192 * 32_000)).half()

# %% [markdown]
# It is below fp16's smallest number, so it is zero. The cure is a [loss scale](GLOSSARY.md#loss-scale): multiply the loss by a number before the backward, and divide the gradients by it afterwards. How large should it be? We try every second power of two on the toy, in fp16 and in bf16:


# %%
torch.manual_seed(0)
toy = model.Transformer(2, 32, 2, max_len=32)


def gradient(tokens, targets):
    toy.zero_grad()
    model.loss(toy(tokens), targets).backward()
    return flat(weight.grad for weight in toy.parameters())


# %%
def scaled_gradient(batch, scale, dtype):
    """The gradient of a batch with a loss scale, which is taken out again."""
    toy.zero_grad()
    with autocast(dtype):
        loss = model.loss(toy(batch[0]), batch[1])
    (loss * scale).backward()
    return flat(weight.grad for weight in toy.parameters()) / scale


# %%
batch, powers, errors = model.story_tokens(32, 32), range(-16, 24, 2), {}
right = gradient(*batch)
for name in ("fp16", "bf16"):
    ours = {p: scaled_gradient(batch, 2.0**p, FORMATS[name]) for p in powers}
    errors[name] = {p: off(grad, right) for p, grad in ours.items()}

# %%
lines = {
    name: {p: error for p, error in found.items() if math.isfinite(error)}
    for name, found in errors.items()
}
at = {"no scale": 0, "fp16: infinities": max(lines["fp16"]) + 2}
axes = {"x": "loss scale, as a power of 2", "y": "error", "log_y": True, "joined": True}
lab.curves(measured=lines, at=at, **axes, title="A gradient in 16 bits")

# %% [markdown]
# In fp16 the scales that work are a window: left of it gradients lose digits (the smallest round up as well as down) and then become zero, right of it they become infinite. This toy, with 1024 tokens and a vocabulary of 256, hardly needs one. In bf16, with fp32's range, no scale matters; its error is larger, because it has fewer digits.
#
# Nobody knows the window beforehand, so `GradScaler` tries: it doubles the scale after 2000 steps without an overflow; at an infinity it halves the scale and skips the step.

# %% [markdown] sections="S3, 19.2.3"
# ### An overflow on one rank
#
# Who skips, if there are several ranks? In step 3, rank 1 meets a bad batch: its loss is a million times too large. Does rank 0 update its weights in this step?

# %%
takes = lab.guess("rank 0 updates its weights in step 3", choices=("yes", "no"))


# %%
def overflow(num_steps=6):
    torch.manual_seed(0)
    ddp, log = DDP(model.Transformer(2, 32, 2, max_len=32)), []
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    moved, device = watched_run.Moved(ddp.parameters()), torch.get_default_device().type
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12, growth_interval=3)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
        bad = (step, dist.get_rank()) == (3, 1)
        with autocast(torch.float16):
            loss = model.loss(ddp(tokens), targets) * (1e6 if bad else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        log.append((scaler.get_scale(), "yes" if moved.now() else "no"))
        scaler.update()
        optimizer.zero_grad()
    return log


# %%
run = lab.launch(overflow)
rows = [(step, *mine, *other) for step, (mine, other) in enumerate(zip(*run))]
heads = ["loss scale, rank 0", "updated, rank 0", "loss scale, rank 1"]
lab.table(rows, heads=["step", *heads, "updated, rank 1"])

# %%
takes.score(run[0][3][1])

# %% [markdown] sections="19.2.3"
# Infinity plus anything is infinity or NaN, so after the all-reduce every rank sees it, and `GradScaler` does the same on all. (Here it doubles the scale after three steps.)

# %% [markdown] sections="S3, S9"
# ### Where to clip
#
# Clip as in `overflow`, after the all-reduce and `unscale_`. Before `unscale_` the norm is too large by the scale, so every gradient would be clipped, and then divided by the scale. With SGD hardly an update would be left; Adam, which divides a constant factor out again, hides most of it. Before the all-reduce each rank would clip by its own factor.

# %% [markdown] sections="S3"
# ### Exercise 4. A scaler of your own
#
# Do what `GradScaler` does after a backward, on one rank. Some weights have no `.grad`; the other gradients are fp32, still multiplied by `scale`.
#
# - All finite: divide by `scale` and let the optimizer step.
# - `num_good` counts such steps in a row; at `interval` double the scale.
# - Otherwise skip the step and halve the scale.
# - A new scale begins with `num_good` at 0.


# %%
def my_scaler_step(optimizer, scale, num_good, interval):
    """Steps or skips; returns the next scale and the next num_good."""
    ### BEGIN SOLUTION
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if not all(grad.isfinite().all() for grad in grads):
        return scale / 2, 0
    for grad in grads:
        grad.div_(scale)
    optimizer.step()
    return (scale * 2, 0) if num_good + 1 == interval else (scale, num_good + 1)
    ### END SOLUTION


# %%
check.scaler_step(my_scaler_step)

# %%
check.hint("scaler_step")

# %% [markdown] sections="S3"
# ## Messages in 16 bits
#
# DDP sends gradients. What autocast casts are the inputs of operators, so its messages are as large as those of fp32. A [communication hook](GLOSSARY.md#communication-hook) can send them in fp16:

# %%
from labkit.measure import traffic
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def sent_bytes(kind):
    tokens, targets = model.story_tokens(8, 32)
    net = model.Transformer(2, 32, 2, max_len=32)
    ddp = DDP(net.bfloat16() if kind == "bf16 model" else net)
    if kind == "autocast, hook":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    with autocast(enabled=kind.startswith("autocast")):
        loss = model.loss(ddp(tokens).float(), targets)
    with traffic.count() as counted:
        loss.backward()
    return {"way": kind, "sent_bytes": counted.payload_bytes["all_reduce"]}


# %%
kinds = ("fp32", "autocast", "autocast, hook", "bf16 model")
lab.table([lab.launch(sent_bytes, kind)[0] for kind in kinds])

# %% [markdown] sections="S3"
# If messages are in fp16, the sum of all ranks is, too, and fp16 ends at 65504: two gradients of 40000 add up to infinity. So DDP divides before it sums; but then a small gradient may become zero. bf16 has neither trouble, but fewer digits in the sum. With NCCL take `bf16_compress_hook`; a torch built without NCCL refuses to register it.

# %% [markdown] sections="10.2.3"
# ## Sums in 16 bits
#
# What does a sum in 16 bits lose? The gradients of 64 microbatches, rounded to bf16, are added up in bf16 or in fp32:

# %%
grads = [gradient(*model.story_tokens(2, 32, seed=seed)) for seed in range(64)]


def sum_error(dtype, num):
    """The error of a sum of num bf16 gradients, which is kept in dtype."""
    total = torch.zeros_like(grads[0], dtype=dtype)
    for grad in grads[:num]:
        total += grad.bfloat16()
    return off(total, sum(grad.double() for grad in grads[:num]))


# %%
nums = (1, 2, 4, 8, 16, 32, 64)
lines = {
    name: {num: sum_error(FORMATS[name], num) for num in nums}
    for name in ("bf16", "fp32")
}
axes = {"x": "microbatches", "y": "error", "log_x": True, "log_y": True, "joined": True}
lab.curves(measured=lines, **axes, title="Error of an accumulated gradient")

# %% [markdown]
# In bf16 the error grows with the number of microbatches; in fp32 the roundings of the parts average out. How much is it beside the noise of a batch? We take the gradient of half of the microbatches for that of all:

# %%
off(2 * sum(grads[:32]), sum(grads))

# %% [markdown]
# The noise is some twenty times larger than bf16's error at 64. But noise averages out over steps; whether this error does, we have not measured. Megatron's weights are bf16, so it keeps a **[main gradient](GLOSSARY.md#main-gradient)** in fp32: two bytes more than `mixed` for each parameter.

# %% [markdown] sections="S4"
# ## torch's way of recomputing
#
# Why the argument `use_reentrant=False`? Here the first four of five layers are recomputed, and the input is data, which needs no gradient. With our class, how many layers get one?

# %%
reached_by = lab.guess("layers of five that get a gradient, with ours", between=(0, 5))


# %%
def layers_with_gradient(way):
    layers = [torch.nn.Linear(4, 4) for _ in range(5)]
    x = torch.randn(2, 4)
    for layer in layers[:-1]:
        x = way(layer, x)
    layers[-1](x).sum().backward()
    return sum(layer.weight.grad is not None for layer in layers)


# %%
ways = {"ours": Recompute.apply, "torch": partial(checkpoint, use_reentrant=False)}
layers = {name: layers_with_gradient(way) for name, way in ways.items()}
lab.table([layers])

# %%
reached_by.score(layers["ours"])

# %% [markdown] sections="S4, 19.4.2"
# Autograd calls our backward only if an input of `apply` needs a gradient, and a block's weights are no inputs of `apply`; so `batch` in *Recomputation* had `requires_grad=True`. Torch's old way (`use_reentrant=True`) has the same fault and only warns, so always write `use_reentrant=False`.

# %% [markdown] sections="S4, 19.4.2"
# And the price, should 3 become 4? We count the products of the wide block, in multiples of a step that keeps all:


# %%
from torch.utils.flop_counter import FlopCounterMode


def products(way):
    with FlopCounterMode(display=False) as counted:
        way(wide, x).sum().backward()
    return counted.get_total_flops()


# %%
keep = products(lambda block, x: block(x))
lab.table([{name: products(way) / keep for name, way in ways.items()}])

# %% [markdown]
# torch stops as soon as it has all that the backward needs, and no backward needs the result of a block's last product. (Attention's own products are not counted.)

# %% [markdown] sections="19.2.3"
# ## Sharded gradients: the others must be told
#
# With ZeRO and FSDP (chapters 06 and 07) a rank gets the sum of its own **slice** of the gradients only. Who sees an infinity now? The owner of its slice alone. If it alone skips the step, its slice stays behind the others; if it alone halves its scale, a later sum over the ranks means nothing.

# %% [markdown] sections="10.7.4"
# ### Exercise 5. One step of sharded mixed precision
#
# Make one step of SGD.
#
# - `grad`: this rank's slice of the gradient, in fp16, averaged over the ranks already, and still multiplied by the loss scale `scale`.
# - `master`: the same slice of the weights, in fp32. Slices differ in length, and one may be empty.
# - `rate`: the learning rate; `max_norm`: the limit for the norm of the gradient of **all** ranks, without the scale.
# - If any rank has an infinity or a NaN, no rank updates, and the scale is halved; otherwise it stays.
# - Each rank may send at most 64 bytes.


# %%
def my_scaled_step(master, grad, scale, rate, max_norm):
    """Updates master in place; returns the next scale."""
    ### BEGIN SOLUTION
    grad = grad.float() / scale  # in fp16 the division itself would lose the small ones
    squares = grad.square().sum()
    dist.all_reduce(squares)  # one rank's infinity or NaN reaches all
    if not squares.isfinite():
        return scale / 2
    master -= rate * min(1.0, max_norm / float(squares.sqrt() + 1e-12)) * grad
    return scale
    ### END SOLUTION


# %%
check.scaled_step(my_scaled_step)

# %%
check.hint("scaled_step")

# %% [markdown]
# ## Summary
#
# - An update under half a gap is lost; an fp32 master keeps it.
# - Mixed precision saves activations, but no states.
# - (Optional end) fp16 may need a loss scale. With DDP the all-reduce carries an infinity to every rank, so all skip that step.
# - (Optional end) The order: all microbatches, all-reduce, unscale, clip, step.
# - Accumulation equals the big batch if the loss is divided by all of its tokens, the sum is in fp32, and no layer looks across the batch or draws masks.
# - A recomputed block keeps only its input; the price is up to one more forward. Write `use_reentrant=False`.
#
# **Words learned**: [master weights](GLOSSARY.md#master-weights), [recipe](GLOSSARY.md#recipe), [mixed precision](GLOSSARY.md#mixed-precision), [autocast](GLOSSARY.md#autocast), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [activation checkpointing](GLOSSARY.md#activation-checkpointing); in the optional end [loss scale](GLOSSARY.md#loss-scale), [main gradient](GLOSSARY.md#main-gradient).
#
# **Next**: chapter 06 shards the states.

# %% [markdown] sections="8.1.1, 19.2.3, 19.4.2, S4, S9"
# ## Errata of the textbook
#
# They correct a textbook that many readers know; if you don't, you lose nothing here.
#
# <details><summary>Five boxes</summary>
#
# <details><summary>Erratum 8.1.1: "14 + 56 + 14 GB" for 7 B parameters</summary>
#
# The textbook's bill of mixed precision has weights, Adam and gradients, and no line for the masters, another 28 GB: `sum(bill["mixed"].values())` is 112 GB, and 84 without them.
#
# </details>
#
# <details><summary>Erratum 19.2.3: "all GPUs roll back"</summary>
#
# Nothing is rolled back. The gradients are looked at before the update, so the step has not been made yet: in the table of *An overflow on one rank* step 3 has not updated.
#
# </details>
#
# <details><summary>Erratum 19.4.2: checkpoints every √L layers</summary>
#
# That is the answer of Chen et al. for a chain in which a layer keeps as much as its input. A transformer's block keeps some 16 times its input, so a segment is best a quarter as long. For 32 blocks `(32 * batch.nbytes / kept_by(chain[0], batch)) ** 0.5` is below 2: up to there, pairs of blocks keep no less than each alone.
#
# </details>
#
# <details><summary>Erratum S9: an update every four microbatches, ten in an epoch</summary>
#
# The textbook's loop steps when `(i + 1) % 4 == 0`, and the two microbatches left over go into the first update of the next epoch: `[i for i in range(20) if (i % 10 + 1) % 4 == 0]` gives 3, 7, 13 and 17 (counted from 0): the third update holds six microbatches. Step also at the end of an epoch, divided by as many as are left; or drop them.
#
# </details>
#
# <details><summary>Erratum S4: <code>checkpoint(layer, x)</code></summary>
#
# Without `use_reentrant` torch takes the old way, and warns: `layers_with_gradient(checkpoint)` is 1 of 5.
#
# </details>
#
# </details>
#
# <details><summary>Further reading</summary>
#
# - Micikevicius et al. 2017, *Mixed Precision Training*, [arXiv 1710.03740](https://arxiv.org/abs/1710.03740); 2022, *FP8 Formats for Deep Learning*, [arXiv 2209.05433](https://arxiv.org/abs/2209.05433)
# - Touvron et al. 2023, *LLaMA*, the rates of its training, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
# - Kalamkar et al. 2019, on bf16, [arXiv 1905.12322](https://arxiv.org/abs/1905.12322)
# - Dettmers et al. 2022, *8-bit Optimizers via Block-wise Quantization*, [arXiv 2110.02861](https://arxiv.org/abs/2110.02861)
# - Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, [arXiv 1604.06174](https://arxiv.org/abs/1604.06174)
# - Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - [`torch.compile`](https://docs.pytorch.org/docs/stable/torch.compiler.html) merges small operators into one: it gains time where memory traffic is the bottleneck.
#
# </details>

# %%
check.status()
