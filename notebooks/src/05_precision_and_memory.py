# ---
# jupyter:
#   labkit:
#     sections: ["8.1.1", "19.2.3", "19.4.2", "10.2.3", "10.7.4", "S3", "S4", "S9"]
#     needs: ["chapters 01 and 03"]
#     minutes: 80
# ---

# %% [markdown]
# # Precision and memory
#
# *About 80 minutes, in two halves. You need chapters 01 and 03. No GPU is needed.*
#
# Our 7 B model takes 112 GB in fp32, and a card has 80. "Train in 16 bits," everybody says, "that is half of it." So we turn all numbers into bf16 and start. It fits, and it learns worse than before: at every update many weights do not move by a single bit.
#
# Where do their updates go? The picture shows the gap between a number and the next larger one, for five formats. A weight moves only if it is pushed by at least half a gap.

# %%
import labkit as lab
from labkit import model, planner

lab.begin("en")
import torch
import torch.distributed as dist
import torch.nn.functional as F
from labkit.measure import memory, traffic
from labkit.precision import check
from labkit.sharding import states
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)  # tiny models here, and the ranks want the other cores
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS |= {"fp8 e4m3": torch.float8_e4m3fn, "fp8 e5m2": torch.float8_e5m2}


def gaps(dtype):
    """Powers of two that the format has, and the gap above each."""
    bits = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[dtype.itemsize]
    x = (2.0 ** torch.arange(-24, 16)).to(dtype)
    x = x[(x.double() > 0) & (x.double() < torch.finfo(dtype).max)]
    above = (x.view(bits) + 1).view(dtype)
    return dict(zip(x.tolist(), (above.double() - x.double()).tolist()))


lines = {name: gaps(dtype) for name, dtype in FORMATS.items()}
axes = {"x": "number", "y": "gap", "log_x": True, "log_y": True}
lab.curves(measured=lines, **axes, title="The gap to the next number")

# %% [markdown]
# Read it at the weight 0.1. In fp32 the gap is a hundred-millionth; in bf16 it is about 0.0005. And each format ends somewhere: on the right at its largest number, on the left where the gap no longer shrinks.
#
# **When you are done** you can choose a format for weights, sums and messages, and say what each loses; you can train in 16 bits on several ranks without losing a step; and you can cut the memory of a step, by autocast, accumulation and recomputation, and know the price of each.
#
# ## The formats
#
# A float has a sign, an exponent, which gives its range, and a fraction, which gives its digits. torch knows the numbers:

# %%
lab.table(
    {
        "format": name,
        "bits": torch.finfo(dtype).bits,
        "largest": f"{torch.finfo(dtype).max:.3g}",
        "smallest normal": f"{torch.finfo(dtype).smallest_normal:.3g}",
        "step after 1": torch.finfo(dtype).eps,
    }
    for name, dtype in FORMATS.items()
)

# %% [markdown]
# bf16 has the range of fp32 and few digits. fp16 has more digits and a small range. The two fp8 formats split eight bits in the same two ways. Now a weight of 0.1 gets 100 updates of -0.0001. It should end at 0.09. Where does it end in bf16?

# %%
ends = lab.guess("0.1 after 100 updates of -0.0001, in bf16", between=(0.08, 0.11))


# %%
def pushed(dtype):
    weight, update = torch.tensor(0.1, dtype=dtype), torch.tensor(0.0001, dtype=dtype)
    for _ in range(100):
        weight = weight - update
    return weight.item()


ends.score(pushed(torch.bfloat16))

# %%
lab.table([{name: pushed(FORMATS[name]) for name in ("fp32", "fp16", "bf16")}])

# %% [markdown] sections="19.2.3"
# In bf16 it never moved, because each update is under half a gap. In fp16 each was rounded to whole gaps, so it ends too low.
#
# ## Master weights, by hand
#
# The cure is as old as mixed precision: keep a copy of the weights in fp32, the **[master weights](GLOSSARY.md#master-weights)**. 16 bits compute, the optimizer updates the masters, and the weights are rounded anew from them.


# %%
def update(weights, masters, optimizer):
    """One step of an optimizer that owns the masters."""
    for weight, master in zip(weights, masters):
        gradient, weight.grad = weight.grad, None
        master.grad = gradient.to(master.dtype)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            weight.copy_(master)


# %% [markdown]
# We train a small transformer on two ranks with DDP, four times with the same data: all in fp32; all in bf16, the optimizer too; bf16 weights with an optimizer that computes in fp32 but keeps no masters; and bf16 with fp32 masters. In the last step we also count the weights that the optimizer left exactly as they were, although they had a gradient.


# %%
def flat(tensors):
    """Many tensors as one long copy."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def train(kind, num_steps=72):
    torch.manual_seed(0)
    net = model.Transformer(1, 32, 2, max_len=32)
    ddp = DDP(net if kind == "fp32" else net.bfloat16())
    weights = masters = list(net.parameters())
    if kind in ("bf16 + masters", "bf16, fp32 Adam"):
        masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=5e-4)
    losses = []
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
        loss = model.loss(ddp(tokens).float(), targets)
        loss.backward()
        losses.append(loss.detach())
        before = flat(masters)
        has_grad = flat([weight.grad for weight in weights]) != 0
        update(weights, masters, optimizer)
        for weight, master in zip(weights, masters):
            if kind == "bf16, fp32 Adam":
                master.copy_(weight.detach())  # forgets what was rounded away
    still = (before == flat(masters))[has_grad].float().mean().item()
    return torch.stack(losses).tolist(), still


# %% [markdown]
# What share of the weights does pure bf16 leave as they were?

# %%
still = lab.guess(
    "share of the weights that pure bf16 left as they were", between=(0, 1)
)

# %%
KINDS = ("fp32", "bf16", "bf16, fp32 Adam", "bf16 + masters")
runs = {kind: lab.launch(train, kind) for kind in KINDS}
still.score(runs["bf16"][0][1])


# %%
def smooth(run):
    """Step -> mean loss of 12 steps and both ranks."""
    means = torch.tensor([losses for losses, _ in run]).mean(0).unflatten(0, (-1, 12))
    return dict(zip(range(12, 73, 12), means.mean(1).tolist()))


losses = {kind: smooth(run) for kind, run in runs.items()}
above = {
    kind: {step: loss - losses["fp32"][step] for step, loss in losses[kind].items()}
    for kind in KINDS[1:]
}
lab.curves(measured=above, x="step", y="difference", title="Loss above that of fp32")

# %% [markdown]
# With masters, bf16 trains as fp32 does: those dots stay on zero. Pure bf16 falls behind, further with every step. An optimizer in fp32 without masters falls behind as well. So what hurts is not the digits that forward and backward lack. It is the rounding of the weight after each update. The smaller the learning rate, the more updates fall under half a gap.
#
# ### What masters cost
#
# So did 16 bits halve our 112 GB? Here is the bill of 7 billion parameters by [recipe](GLOSSARY.md#recipe), nothing sharded (computed; nothing was allocated):

# %%
RECIPES = ("fp32", "mixed", "megatron", "bf16")
bills = {name: states.state_bytes(7e9, recipe_name=name) for name in RECIPES}
rows = {name: sum(bill.values()) for name, bill in bills.items()}
looks = {"marks": {"one card": 80e9}, "badge": "predicted"}
lab.bars(rows, unit="bytes", **looks, title="States of 7 B parameters")

# %% [markdown] sections="19.2.3, 8.1.1"
# Not a byte was saved. Weight, gradient, master and two moments are 2 + 2 + 4 + 4 + 4 bytes in `mixed`, as many as fp32 takes with Adam. Only pure bf16 is half as large, and that is the one that falls behind. (`megatron` keeps its gradients in fp32; we come to the reason.) What [mixed precision](GLOSSARY.md#mixed-precision) saves is [activations](GLOSSARY.md#activations), messages and time.
#
# <details><summary>Erratum 8.1.1: "14 + 56 + 14 GB" for 7 B parameters</summary>
#
# The textbook's bill of mixed precision has weights, Adam and gradients, and no line for the masters, another 28 GB: `bills["mixed"]` is 112 GB, and 84 without them.
#
# </details>
#
# ## Eight bits
#
# GPUs since the H100 multiply in fp8, twice as fast as in bf16. But look at the table again: e4m3 has a largest number of 448, and after 1 comes 1.125. Can one train with that? The trick is a **scale**: before a tensor is rounded it is multiplied by a number that brings its largest value near 448, and the product is divided by it afterwards. We round real numbers, the gradient of a weight matrix, with different scales:


# %%
def rounded(x, dtype, scale=1.0):
    """Through a format and back, the largest values cut off at its end."""
    most = torch.finfo(dtype).max
    return (x * scale).clamp(-most, most).to(dtype).float() / scale


def off(ours, theirs):
    """The length of the difference, in lengths of the right one."""
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
model.loss(net(model.story_tokens(8, 32)[0]), model.story_tokens(8, 32)[1]).backward()
grad = net.layers[1].up.weight.grad.cpu()

# %%
scales = [2.0**power for power in range(-6, 25, 2)]
errors = {
    name: {scale: off(rounded(grad, FORMATS[name], scale), grad) for scale in scales}
    for name in ("bf16", "fp8 e4m3", "fp8 e5m2")
}
axes = {"x": "scale", "y": "error", "log_x": True, "log_y": True}
lab.curves(measured=errors, **axes, title="A gradient, rounded with a scale")

# %% [markdown]
# Look at the left end: there all of the gradient has become zero in e4m3, and at a scale of 1, which is none, much of it still has. On the right it runs into the largest number. In between is a window in which the error is a few percent, which is the format's own step. bf16 needs no window, because its range is that of fp32.
#
# e5m2 has a wider window and a larger step, so it was meant for gradients, and e4m3 for weights and activations. What does a matrix product with both inputs in e4m3, each with the scale of its own largest value, do to the result?

# %%
worse = lab.guess("error of an e4m3 product, in errors of a bf16 product", unit="ratio")


# %%
def product_error(dtype):
    torch.manual_seed(0)
    x, w = torch.randn(256, 512), torch.randn(512, 256) / 512**0.5
    scales = [torch.finfo(dtype).max / each.abs().max() for each in (x, w)]
    scales = [1.0, 1.0] if dtype == torch.bfloat16 else scales
    low = [rounded(each, dtype, scale) for each, scale in zip((x, w), scales)]
    return off(low[0] @ low[1], x @ w)


e4m3, bf16 = (product_error(FORMATS[name]) for name in ("fp8 e4m3", "bf16"))
worse.score(e4m3 / bf16)

# %% [markdown]
# Sixteen times, or so: the ratio of the steps, 0.125 to 0.0078. That is why fp8 training keeps sums in fp32, masters in fp32, and scales for each tensor, or finer, for each block of 128 numbers. (On a CPU we can round to fp8 and not multiply in it. A GPU does, with `torch._scaled_mm`; torchao and Transformer Engine call it for you.)

# %% [markdown] sections="S3"
# ## autocast
#
# torch's own way begins at the other end. The weights stay fp32, so they *are* the masters, and `autocast` casts the inputs of the operators that gain by it. (`torch.cuda.amp` is its old name.) Which type comes out of which module?

# %%
seen = {}
parts = {**dict(net.layers[1].named_children()), "head": net.layers[-1]}
for name, module in parts.items():
    module.register_forward_hook(
        lambda module, given, made, name=name: seen.update({name: made.dtype})
    )
tokens, targets = model.story_tokens(8, 32)
with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
    loss = model.loss(net(tokens), targets)
seen["loss"] = loss.dtype
rows = [(name, str(dtype)[6:]) for name, dtype in seen.items()]
lab.table(rows, heads=["module", "type"])

# %% [markdown]
# Products come out in bf16; norms and the loss in fp32. How many bytes does a forward keep for the backward under autocast, as a share of fp32's? And what does DDP send? The third way has a [communication hook](GLOSSARY.md#communication-hook), which rounds gradients to 16 bits for the journey. Two meters help: `memory.Activations` counts the bytes that autograd saves inside `chunk`, and `traffic.count` what is handed to collectives.

# %%
kept = lab.guess(
    "activations kept under autocast, as a share of fp32's", between=(0, 1)
)


# %%
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def kept_and_sent(kind):
    tokens, targets = model.story_tokens(8, 32)
    net = model.Transformer(2, 32, 2, max_len=32)
    ddp = DDP(net.bfloat16() if kind == "bf16 model" else net)
    if kind == "autocast, hook":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    held, device = memory.Activations(net.parameters()), torch.get_default_device().type
    low = torch.autocast(device, torch.bfloat16, enabled=kind.startswith("autocast"))
    with low, held.chunk(0):
        loss = model.loss(ddp(tokens), targets)
    with traffic.count() as counted:
        loss.backward()
    sent = counted.payload_bytes["all_reduce"]
    return {"ways": kind, "kept_bytes": held.peak_bytes, "sent_bytes": sent}


# %%
WAYS = ("fp32", "autocast", "autocast, hook", "bf16 model")
rows = [lab.launch(kept_and_sent, kind)[0] for kind in WAYS]
kept.score(rows[1]["kept_bytes"] / rows[0]["kept_bytes"])

# %%
lab.table(rows)

# %% [markdown]
# autocast saves less than half, because norms and the stream between the blocks stay in fp32, and the casts of the weights are kept, too. And the messages stay whole, since the gradients are fp32; only the hook, or a model in bf16, halves them.
#
# ### Sums in 16 bits
#
# If messages are 16 bits, the sum of all ranks is, too. It is N times as large as a gradient, and fp16 ends at 65504. Two ranks have a gradient of 40000 each. The mean is 40000, of course. What comes out, if one sums first and then divides?


# %%
def mean_in_fp16():
    late = torch.tensor([40000.0], dtype=torch.float16)
    dist.all_reduce(late)
    late /= dist.get_world_size()
    line = torch.nn.Linear(1, 1, bias=False, dtype=torch.float16)
    DDP(line)(torch.tensor([[40000.0]], dtype=torch.float16)).sum().backward()
    return {"sum, then divide": late.item(), "DDP": line.weight.grad.item()}


lab.launch(mean_in_fp16)

# %% [markdown] sections="S3, 19.2.3"
# Infinity. DDP is wiser and divides first. That costs at the other end, for a small gradient divided by N may lose its digits. bf16 has neither trouble, at the price of fewer digits in the sum.
#
# ## The loss scale
#
# In fp16 the backward has a trouble of its own. The loss is a mean over all tokens, so the more tokens, the smaller each gradient, and the better the model, the smaller as well. What falls below the smallest number is zero. So we train a little first, and look at the loss:

# %%
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(80):
    tokens, targets = model.story_tokens(4, 32, seed=step)
    optimizer.zero_grad()
    loss = model.loss(net(tokens), targets)
    loss.backward()
    optimizer.step()
lab.table([{"step": step, "loss": loss.item()}])

# %% [markdown]
# The cure is a [loss scale](GLOSSARY.md#loss-scale): multiply the loss by a number before the backward, and divide the gradients by it afterwards. How large should it be?


# %%
def lost(scale):
    """Shares of the logits' gradient that became zero, of the weights' inf or NaN."""
    found = []
    tokens, targets = model.story_tokens(32, 32, seed=1000)
    net.zero_grad()
    with torch.autocast(torch.get_default_device().type, dtype=torch.float16):
        logits = net(tokens)
        logits.register_hook(found.append)
        loss = model.loss(logits, targets)
    (loss * scale).backward()
    grads = flat([weight.grad for weight in net.parameters()])
    zeros = (found[0] == 0).float().mean().item()
    return zeros, (~grads.isfinite()).float().mean().item()


scales = [2.0**power for power in range(-8, 33, 4)]
shares = [lost(scale) for scale in scales]
names = ("logits: zero", "weights: inf or NaN")
lines = {name: dict(zip(scales, each)) for name, each in zip(names, zip(*shares))}
axes = {"x": "loss scale", "y": "lost", "unit": "share", "log_x": True}
lab.curves(measured=lines, **axes, title="Gradients lost, by loss scale")

# %% [markdown]
# There is a window. A scale of 1/256 does what 256 times as many tokens would do, so a larger batch moves the window to the right. So the scale is found by trying: double it now and then, halve it when an infinity turns up, and throw that step away. This is **dynamic loss scaling**, and `torch.amp.GradScaler` does it. bf16 needs none of it.

# %% [markdown] sections="S3, 19.2.3"
# ### An overflow on one rank
#
# On several ranks a new question comes up. The usual loop is `scale`, backward, `unscale_`, clip, `step`, `update`. In step 3, rank 1 meets a bad batch: its loss is a million times too large. Rank 0 saw nothing unusual. Does rank 0 take step 3?

# %%
takes = lab.guess("rank 0 takes step 3", choices=("yes", "no"))


# %%
def overflow(num_steps=6):
    torch.manual_seed(0)
    ddp, log = DDP(model.Transformer(2, 32, 2, max_len=32)), []
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    device = torch.get_default_device().type
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12, growth_interval=3)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
        bad = (step, dist.get_rank()) == (3, 1)
        with torch.autocast(device, dtype=torch.float16):
            loss = model.loss(ddp(tokens), targets) * (1e6 if bad else 1)
        scale, before = scaler.get_scale(), flat(ddp.parameters())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = not torch.equal(before, flat(ddp.parameters()))
        log.append({"step": step, "scale": scale, "moved": "yes" if moved else "no"})
    return log


# %%
run = lab.launch(overflow)
takes.score(run[0][3]["moved"])

# %%
lab.table(run[0])

# %% [markdown] sections="19.2.3"
# Nobody takes it, and both halve their scale. Infinity plus anything is infinity or NaN, so the all-reduce of the gradients carries the news to everybody, without one extra message.
#
# <details><summary>Erratum 19.2.3: "all GPUs roll back"</summary>
#
# Nothing is rolled back. The gradients are looked at before the update, so the step has not been made yet: in the table above the row of step 3 has not moved.
#
# </details>
#
# ### Sharded gradients: the others must be told
#
# With ZeRO and FSDP a rank gets the sum of its own **part** of the gradient only (chapters 06 and 07). Then an infinity reaches just the rank that owns it. If that rank skips the step and the others take it, their scales differ from then on, and the model is trained by a sum that means nothing. One number mends it: an all-reduce (MAX) of "I have seen an infinity". torch's FSDP2 sends it by itself, and the plain `GradScaler` is enough:


# %%
def fsdp2_agrees():
    net = torch.distributed.fsdp.fully_shard(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=1024.0)
    scaler.scale(net(torch.ones(2, 8)).sum()).backward()
    if dist.get_rank() == 1:
        net.weight.grad.to_local()[0, 0] = float("inf")
    with traffic.count() as counted:
        scaler.step(optimizer)
        scaler.update()
    return {"scale": scaler.get_scale(), "called": str(dict(counted.calls))}


lab.launch(fsdp2_agrees)

# %% [markdown] sections="10.7.4"
# The infinity stood in rank 1's slice only, and rank 0 halved its scale as well.
#
# ### Exercise 1. One step of sharded mixed precision
#
# Build it yourself. `grad` is this rank's slice of the gradient, in fp16, already averaged over the ranks, and still multiplied by the loss scale `scale`. `master` is its slice of the weights, in fp32. Slices differ in length, and one may be empty. Make one step of SGD with learning rate `rate`, in place, on the gradient clipped to `max_norm` (the norm of the gradient of **all** ranks, without the scale). If any rank has an infinity or a NaN, nobody moves, and the scale is halved. Return the scale of the next step. Send no more than a few numbers.


# %%
def my_scaled_step(master, grad, scale, rate, max_norm):
    """Updates master in place; returns the next scale."""
    ### BEGIN SOLUTION
    grad = grad.float() / scale  # in fp16 the division itself would lose the small ones
    squares = grad.square().sum()
    dist.all_reduce(squares)  # an infinity of one rank makes it infinite for all
    if not squares.isfinite():
        return scale / 2
    master -= rate * min(1.0, max_norm / float(squares.sqrt() + 1e-12)) * grad
    return scale
    ### END SOLUTION


# %%
check.scaled_step(my_scaled_step)

# %%
check.hint("scaled_step")

# %% [markdown] sections="10.2.3, 19.4.2"
# ## Accumulation: the big batch in small pieces
#
# That was precision. Now memory, in two ways that change no result. The first is [gradient accumulation](GLOSSARY.md#gradient-accumulation). A backward *adds* to `.grad`. So we can take a batch in [microbatches](GLOSSARY.md#microbatch), one after the other, with each loss divided by their number, and update once at the end. With DDP all but the last go into `no_sync` (chapter 03).
#
# 16 sequences in fp32 on two ranks, in 1, 2 and 4 microbatches. How far is the gradient from the one of all 16 at once?

# %%
apart = lab.guess(
    "the accumulated gradient is off", choices=("not at all", "by rounding", "by more")
)


# %%
import contextlib


def accumulate(num_microbatches, dtype=torch.float32):
    torch.manual_seed(0)
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32).to(dtype))
    batch = (each.chunk(dist.get_world_size()) for each in model.story_tokens(16, 32))
    tokens, targets = (each[dist.get_rank()] for each in batch)
    pieces = list(zip(tokens.chunk(num_microbatches), targets.chunk(num_microbatches)))
    held = memory.Activations(ddp.parameters())
    for number, (tokens, targets) in enumerate(pieces, start=1):
        last = number == num_microbatches
        with contextlib.nullcontext() if last else ddp.no_sync():
            with held.chunk(number):
                loss = model.loss(ddp(tokens), targets) / num_microbatches
            loss.backward()
    return flat([weight.grad for weight in ddp.parameters()]), held.peak_bytes


# %%
double = torch.float64
whole = lab.launch(accumulate, 1, ranks=1)[0][0]
whole_64 = lab.launch(accumulate, 1, double, ranks=1)[0][0]
found = {num: lab.launch(accumulate, num)[0] for num in (1, 2, 4)}
error = off(found[4][0], whole)
apart.score(
    "not at all" if error == 0 else "by rounding" if error < 1e-5 else "by more"
)

# %%
lab.table(
    {
        "microbatches": num,
        "off in fp32": off(grad, whole),
        "off in fp64": off(lab.launch(accumulate, num, double)[0][0], whole_64),
        "kept_bytes": kept,
    }
    for num, (grad, kept) in found.items()
)

# %% [markdown] sections="10.2.3"
# How do we know that this is rounding, and not a small mistake? We ran it in fp64 as well. There the difference is some $10^8$ times smaller, as the gap between two numbers is. A wrong formula would stay as wrong as it was. And the activations kept at one time fall with the size of a microbatch.
#
# ### Where it is not equal
#
# Two things break it. First, layers that look across the batch. BatchNorm takes the mean and variance of what it is given, and four microbatches have four means; LayerNorm looks at one token.


# %%
def norm_error(norm):
    grads = []
    for num in (1, 4):
        torch.manual_seed(0)
        small = torch.nn.Sequential(torch.nn.Linear(8, 16), norm(16))
        x, y = torch.randn(32, 8), torch.randn(32, 16)
        for part, want in zip(x.chunk(num), y.chunk(num)):
            (F.mse_loss(small(part), want) / num).backward()
        grads.append(flat([weight.grad for weight in small.parameters()]))
    return off(grads[1], grads[0])


norms = (torch.nn.LayerNorm, torch.nn.BatchNorm1d)
lab.table({"layer": norm.__name__, "off": norm_error(norm)} for norm in norms)

# %% [markdown]
# Second, unequal microbatches. With text nobody sees it, because the number of *sequences* is equal. But passages are padded, and the loss is the mean over real tokens, so the mean of means is another number. Four sequences with 32 real tokens each, and four with 4. How far is the usual formula off the mean over all tokens?

# %%
wrong = lab.guess("error of the mean of means, lengths 32 and 4", unit="share")


# %%
def padded(length, seed):
    """Four sequences of 32 tokens, of which the first ``length`` count."""
    tokens, targets = model.story_tokens(4, 32, seed=seed)
    targets = targets.clone()
    targets[:, length:] = -100  # no loss counts these
    return tokens, targets


def gradient(batches):
    """The usual way: each loss a mean, divided by their number."""
    net.zero_grad()
    for tokens, targets in batches:
        (model.loss(net(tokens), targets) / len(batches)).backward()
    return flat([weight.grad for weight in net.parameters()])


batches = [padded(32, seed=0), padded(4, seed=1)]
together = tuple(torch.cat(parts) for parts in zip(*batches))
wrong.score(off(gradient(batches), gradient([together])))

# %% [markdown]
# That is not rounding: a share of 100 % is an error as long as the gradient itself. The cure is one number from each rank, and the exercise below.
#
# A third thing is quieter, the type of the sum. When the running sum is much larger than what is added, bf16 loses the small one. Here are the gradients of 64 microbatches, rounded to bf16 and added up in bf16 or in fp32:

# %%
grads = []
for number in range(64):
    grads.append(gradient([model.story_tokens(2, 32, seed=5000 + number)]))


def sum_error(name, num):
    """Of the sum of so many bf16 gradients, kept in a format."""
    total = torch.zeros_like(grads[0], dtype=FORMATS[name])
    for grad in grads[:num]:
        total += grad.bfloat16()
    return off(total, sum(grad.double() for grad in grads[:num]))


nums = (1, 2, 4, 8, 16, 32, 64)
lines = {name: {n: sum_error(name, n) for n in nums} for name in ("bf16", "fp32")}
axes = {"x": "microbatches", "y": "error", "log_x": True, "log_y": True}
lab.curves(measured=lines, **axes, title="Error of an accumulated gradient")

# %% [markdown]
# In bf16 the error grows with the number of microbatches; in fp32 the roundings of the parts average out. So DeepSpeed and Megatron keep a **main gradient** in fp32. That is the `megatron` recipe above, and its two bytes more.
#
# ### Exercise 2. The mean over all real tokens
#
# `ddp` is a model in DDP, `microbatches` a list of (tokens, targets) of this rank, as many on every rank. Targets of -100 do not count, and a microbatch may have no others. Leave in the weights the gradient of the mean loss over **all** real tokens of all microbatches of all ranks. Send the gradients once, and keep the activations of one microbatch at a time.


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

# %% [markdown] sections="S3, S9"
# ### Clipping, once and at the right place
#
# Where does the clipping go? The right order is: all microbatches, the all-reduce, `unscale_`, clip, `step`. Suppose we clip *before* `unscale_`, with a loss scale of 4096 and a limit of 0.5. How long is the gradient that reaches the optimizer?

# %%
length = lab.guess("length of the gradient, clipped before unscale_", between=(0, 0.5))


# %%
def clipped(order):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    weights = list(net.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4096.0)
    for number in range(4):
        tokens, targets = model.story_tokens(4, 32, seed=4 * dist.get_rank() + number)
        scaler.scale(model.loss(net(tokens), targets) / 4).backward()
    actions = {
        "unscale_": lambda: scaler.unscale_(optimizer),
        "clip": lambda: torch.nn.utils.clip_grad_norm_(weights, max_norm=0.5),
        "all-reduce": lambda: [dist.all_reduce(w.grad.div_(2)) for w in weights],
    }
    for action in order:
        actions[action]()
    return flat([weight.grad for weight in weights])


# %%
ORDERS = {
    "right": ("all-reduce", "unscale_", "clip"),
    "before unscale_": ("all-reduce", "clip", "unscale_"),
    "before the all-reduce": ("unscale_", "clip", "all-reduce"),
}
grads = {name: lab.launch(clipped, order)[0] for name, order in ORDERS.items()}
length.score(grads["before unscale_"].norm().item())

# %%
lab.table(
    {"clipped": name, "length": grad.norm().item(), "off": off(grad, grads["right"])}
    for name, grad in grads.items()
)

# %% [markdown] sections="S9"
# Before `unscale_` the norm is 4096 times too large, so everything is clipped and the update nearly vanishes. Before the all-reduce each rank clips by a factor of its own, and the sum is another gradient. Where gradients are sharded, a rank knows the norm of its slice only; the *squares* add up, one more all-reduce of one number.
#
# <details><summary>Erratum S9: an update every four microbatches, ten in an epoch</summary>
#
# The section's loop steps when `(i + 1) % 4 == 0`. Two microbatches remain at the end of an epoch, wait for the next one, and make its first update half as large again. Step on the last microbatch as well, divided by as many as there were, or drop the rest. The next cell shows who is in which update.
#
# </details>

# %%
weight, updates = torch.zeros(10, requires_grad=True), []
for i in [*range(10), *range(10)]:
    (weight[i] / 4).backward()  # the gradient of microbatch i
    if (i + 1) % 4 == 0:
        updates.append({"in it": str(weight.grad.nonzero().flatten().tolist())})
        weight.grad = None
lab.table(updates)

# %% [markdown] sections="19.4.2"
# ## Recomputation
#
# This is the second way. A block of our transformer keeps about 16 numbers per token and unit of width for its backward, and its input is one of them. [Activation checkpointing](GLOSSARY.md#activation-checkpointing), or recomputation, keeps the input only and runs the forward again when the backward arrives. By hand it is an autograd function:


# %%
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, held, x):
        ctx.block, ctx.held = block, held
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), ctx.held.chunk("again"):
            y = ctx.block(x)
        y.backward(grad)
        return None, None, x.grad


# %% [markdown]
# (`held` is the meter of activations again, so that we can count what the second forward saves.) Eight blocks, the first k of them recomputed. When the backward is at block i, it needs that block in full, and what is still held of the blocks before it. That is a formula for the peak of the step:

# %%
L, B, T, D, H = 8, 4, 64, 64, 4
full, inputs = states.block_activation_bytes(B, T, D, H), B * T * D * 4


def peak(k):
    """Bytes at the highest point of a step with the first k blocks recomputed."""
    held = [inputs if i < k else full for i in range(L)]
    return max(sum(held[:i]) + full for i in range(L))


# %% [markdown]
# Is it worth recomputing all eight? How many would you choose?

# %%
best = lab.guess("blocks to recompute, of eight", between=(0, 8))


# %%
def measured_peak(k):
    held, x = memory.Activations(blocks.parameters()), batch.clone().requires_grad_()
    with held.chunk("forward"):
        for i, block in enumerate(blocks):
            x = Recompute.apply(block, held, x) if i < k else block(x)
        loss = x.sum()
    loss.backward()
    return held.peak_bytes


blocks = torch.nn.ModuleList(model.Block(D, H) for _ in range(L))
batch = torch.randn(B, T, D)
measured = {k: measured_peak(k) for k in range(L + 1)}
best.score(min(measured, key=measured.get))

# %%
lab.curves(
    measured={"peak": measured},
    predicted={"peak": {k: peak(k) for k in range(L + 1)}},
    x="blocks recomputed",
    y="activations",
    unit="bytes",
    title="The peak of a step",
)

# %% [markdown] sections="S4"
# The dots lie on the line, to the byte. The last block saves nothing: when the backward begins, its recomputation is needed at once, and in full. So seven of eight is the best.
#
# torch does the same in one line, `checkpoint(block, x, use_reentrant=False)`. Does that keyword matter? Here are four layers recomputed and a fifth that is not, and the input is data, which needs no gradient. Which of the five get one?

# %%
trained = lab.guess("layers that get a gradient without the keyword", between=(0, 5))

# %%
import warnings
from torch.utils.checkpoint import checkpoint


def layers_with_gradient(**options):
    layers = [torch.nn.Linear(4, 4) for _ in range(5)]
    x = torch.randn(2, 4)
    with warnings.catch_warnings(action="ignore"):
        for layer in layers[:-1]:
            x = checkpoint(layer, x, **options)
    layers[-1](x).sum().backward()
    return sum(layer.weight.grad is not None for layer in layers)


trained.score(layers_with_gradient(use_reentrant=True))

# %% [markdown] sections="S4, 19.4.2"
# With `use_reentrant=False` it is `layers_with_gradient(use_reentrant=False)`, all five. The old, reentrant way finds no input that needs a gradient and cuts the graph: four layers are never trained. torch gives a warning, which the cell has hidden, and no error.
#
# <details><summary>Erratum S4: <code>checkpoint(layer, x)</code></summary>
#
# The section leaves the keyword out, and its input is data. The torch that it was written for took the reentrant way then: one layer of five is trained, see the score above. Always say `use_reentrant=False`.
#
# </details>
#
# <details><summary>Erratum 19.4.2: checkpoints every √L layers</summary>
#
# That is the answer of Chen et al. for a chain in which a layer keeps as much as its input. A transformer's block keeps some 16 times its input, so the best segment is $\sqrt{L \cdot input / block}$ blocks, a quarter of $\sqrt L$. Run it: `(32 * inputs / full) ** 0.5` is below two, so up to some 32 blocks it is best to recompute each alone.
#
# </details>
#
# ### The price
#
# One more forward. A backward takes about two forwards, so a step costs 4 instead of 3 if everything is recomputed. Six wide blocks on two ranks, with and without, in turn; it is time on the processor, so that other programs count less. What is the ratio?

# %%
ratio = lab.guess("a step with all six recomputed, over none", unit="ratio")


# %%
import time


def paid(num_tries=5):
    chain = [model.Block(512, 4) for _ in range(6)]
    x = torch.randn(2, 64, 512, requires_grad=True)
    seconds = {"keep": [], "recompute": []}
    for way in num_tries * list(seconds):  # in turn: what else runs here meets both
        began, y = time.process_time(), x
        for block in chain:
            again = way == "recompute"
            y = checkpoint(block, y, use_reentrant=False) if again else block(y)
        y.sum().backward()
        seconds[way].append(time.process_time() - began)
    return {way: min(each) for way, each in seconds.items()}


# %%
took = lab.launch(paid, devices=lab.pretend())[0]
ratio.score(took["recompute"] / took["keep"])

# %% [markdown]
# On a quiet machine that is near 4/3 = 1.33, below it for wide blocks and above it for narrow ones. Why below? torch stops computing again as soon as it has all that the backward needs, and no backward needs the result of a block's last product. Why above? Its bookkeeping takes the same time however small a block is.
#
# One more thing must be computed again in the same way: dice. Dropout draws random numbers, and the second forward must draw the same ones. `checkpoint` saves the state of the generator for that. It can be switched off, and then the gradient belongs to another network than the loss:

# %%
layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5))


def diced(preserve):
    torch.manual_seed(0)
    layer.zero_grad()
    options = {"use_reentrant": False, "preserve_rng_state": preserve}
    y = layer(x) if preserve is None else checkpoint(layer, x, **options)
    y.square().sum().backward()
    return layer[0].weight.grad.clone()


x = torch.ones(8, 64)
plain = diced(None)
lab.table([{"saved": off(diced(True), plain), "not saved": off(diced(False), plain)}])

# %% [markdown]
# ## On a device that is full
#
# All bytes so far were counted tensor by tensor. A device counts by itself, and when it is full, training ends. Let's see that happen. Ranks stand on **[pretend devices](GLOSSARY.md#pretend-device)** now, even where there are GPUs: real tensors, in a memory of their own that we can make as small as we like. A pretend device follows a GPU's rules and uses its words. It can't show a GPU's speed, its streams, or fragmentation.


# %%
from functools import partial


def device_step(sequences, recompute, num_steps=2):
    """The peak of the device's memory."""
    net = model.Transformer(8, 128, 4, max_len=64)
    for block in net.layers[1:-1] if recompute else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(net.parameters())
    tokens, targets = model.story_tokens(sequences, 64)
    for _ in range(num_steps):
        model.loss(net(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.accelerator.max_memory_allocated()


# %% [markdown]
# The device has 48 MiB, and the batch sixteen sequences:

# %% tags=["raises-exception"]
small = lab.pretend(memory_mib=48)
lab.launch(device_step, 16, False, ranks=1, devices=small)

# %% [markdown]
# This is CUDA's message, with "pretend" in place of "CUDA": what was asked for, how much there is, how much is free. The request that failed may be a small one; it is only the one that came last. Now with recomputation, and with two other batches. For which batch does recomputation gain most?

# %%
gain = lab.guess("sequences for which it gains most", choices=("2", "8", "16"))

# %%
free, sizes = lab.pretend(), (2, 8, 16)
peaks = {
    name: {
        n: lab.launch(device_step, n, again, ranks=1, devices=free)[0] for n in sizes
    }
    for name, again in (("keep", False), ("recompute", True))
}
gain.score(str(max(sizes, key=lambda n: peaks["keep"][n] - peaks["recompute"][n])))

# %%
names = {"x": "sequences", "y": "peak", "unit": "bytes"}
lab.curves(measured=peaks, **names, title="The peak of a device, 1.6 M parameters")

# %% [markdown]
# Sixteen sequences stay below 48 MiB (50.3 MB) with recomputation. And look at two sequences: there it gains nothing. Two moments can be the highest of a step. When the backward begins there are weights, Adam's moments and all activations. In the update there are no activations, but gradients and one more copy of the weights. Where the update is the higher one, recomputation can't help.
#
# ### Large models
#
# For a GPT layer in 16 bits, Korthikanti et al. count $34\,sbh + 5\,as^2b$ bytes of activations: s tokens, b sequences, h width, a heads. *Selective* recomputation repeats only the attention matrix, the term with $s^2$; flash attention never stores it. *Full* recomputation keeps the input alone. All layers of GPT-3, one sequence of 2048 tokens (computed):

# %%
kept = {
    way: 96 * states.layer_activation_bytes(2048, 1, 12288, 96, recompute=way)
    for way in states.RECOMPUTE
}
marks = {"one card": 80e9}
title = "GPT-3 175B, activations of one sequence"
lab.bars(kept, unit="bytes", marks=marks, badge="predicted", title=title)

# %% [markdown]
# ## Faster, not smaller: torch.compile and MFU
#
# We have paid time for memory. Is there time to be won? Two words that you will meet everywhere:
#
# **`torch.compile(model)`** reads your Python once and writes new kernels, in which several small operators are one. A GELU after a bias after a product reads and writes its tensor three times; fused, once. So it gains where memory traffic and Python are the bottleneck, and nothing inside a large product. The first step takes up to a minute, which is why no cell here runs it; chapter 15, to come, will.
#
# **[MFU](GLOSSARY.md#mfu)** says how well a machine is used: the FLOPs that the model needs, $6P$ for each token, over those that the machine could have done in that time. Recomputed FLOPs don't count, so recomputation lowers it. We measure it here, on one core: first what this machine can do in a large product, then what a training step makes of it. What will be left?

# %%
mfu = lab.guess("MFU of a small training step on one core", between=(0, 1))


# %%
def best_seconds(work, num_tries=5):
    seconds = []
    for _ in range(num_tries):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


# %%
a, net = torch.randn(1024, 1024), model.Transformer(4, 128, 4, max_len=64)
tokens, targets = model.story_tokens(8, 64)
peak_flops = 2 * 1024**3 / best_seconds(lambda: a @ a)
num_params = sum(weight.numel() for weight in net.parameters())
step_s = best_seconds(lambda: model.loss(net(tokens), targets).backward())
mfu.score(6 * num_params * tokens.numel() / step_s / peak_flops)

# %% [markdown]
# (Measured in processor time, forward and backward. The embedding is counted as if it were a product, so it is a little too high.) What is missing went into norms, softmax, GELU and Python, in which nothing is multiplied. Published runs on thousands of GPUs report less than half: PaLM 46 %, Llama 3 405B 38 to 43 %.

# %% [markdown] sections="10.7.4"
# ## Everything together
#
# How do you combine distributed training with mixed precision? On two ranks: DDP, bf16 `autocast`, four microbatches with one all-reduce, all blocks but the last recomputed, one clipping at the end. This is the loop to copy:


# %%
def everything(num_microbatches, recompute, num_steps=10):
    torch.manual_seed(0)
    net, losses = model.Transformer(4, 32, 2, max_len=32), []
    for block in net.layers[1:-2] if recompute else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    ddp, held = DDP(net), memory.Activations(net.parameters())
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    low = torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16)
    for step in range(num_steps):
        batch = model.story_tokens(16, 32, seed=2 * step + dist.get_rank())
        pieces = zip(*(each.chunk(num_microbatches) for each in batch))
        for number, (tokens, targets) in enumerate(pieces, start=1):
            last = number == num_microbatches
            with contextlib.nullcontext() if last else ddp.no_sync():
                with low, held.chunk(number):
                    loss = model.loss(ddp(tokens), targets) / num_microbatches
                loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() * num_microbatches)
    return held.peak_bytes, torch.tensor(losses)


# %% [markdown]
# Autocast is on in all three runs below. With microbatches and recomputation together, what share of the activations is kept?

# %%
together = lab.guess("kept with both savings, as a share of neither", between=(0, 1))

# %%
WAYS = {"neither": (1, False), "recompute": (1, True), "both": (4, True)}
found = {name: lab.launch(everything, *way)[0] for name, way in WAYS.items()}
together.score(found["both"][0] / found["neither"][0])

# %%
lab.difference(found["recompute"][1], found["neither"][1])

# %% [markdown]
# And recomputation changes not one loss: the last line is the largest difference in ten steps. With fp16 in place of bf16, add `GradScaler`.
#
# ## When is it worth it?
#
# bf16 with masters: always, on hardware that has it. It halves activations and messages, and is several times as fast. fp8: where products are large and a library keeps the scales. Accumulation: when the batch that you want doesn't fit, and never for less memory of the states. Recomputation: last, since it makes everything a third dearer.
#
# Here is our 7 B model on eight cards, with the optimizer sharded (chapter 06): in fp32, and in bf16.

# %%
before = planner.Plan(model="LLaMA 7B", gpus=8, zero=1, batch=64, precision="fp32")
planner.card(before, before.but(precision="bf16"))

# %% [markdown]
# It did not fit, and now it does. Every card holds the weights whole, and they are half as large; so are the activations. The masters are new, but sharded, so they add little.
#
# ## Exercise 3. Recompute within a budget
#
# A check never stops the notebook. It tries your answer on real ranks, at sizes that are not shown, and gives the first case that goes wrong.
#
# Block i keeps `kept_bytes[i]`, among them its input, `input_bytes[i]`; recomputed, it keeps its input only. The blocks differ. List the blocks to recompute such that the peak of the step is at most `budget_bytes`, with as few blocks as possible; `None` if that can't be done. At most eight blocks. Your choice is run, and its live bytes are measured.


# %%
import itertools


def my_blocks(kept_bytes, input_bytes, budget_bytes):
    """The numbers of the blocks to recompute, as a list; or None."""
    ### BEGIN SOLUTION
    blocks = range(len(kept_bytes))
    for num in range(len(kept_bytes) + 1):
        for chosen in itertools.combinations(blocks, num):
            held = [input_bytes[i] if i in chosen else kept_bytes[i] for i in blocks]
            if max(sum(held[:i]) + kept_bytes[i] for i in blocks) <= budget_bytes:
                return list(chosen)
    return None
    ### END SOLUTION


# %%
check.checkpoint_blocks(my_blocks)

# %%
check.hint("checkpoint_blocks")

# %% [markdown]
# ## Summary
#
# - bf16: the range of fp32, 8 binary digits. fp16: 11 digits, a small range. fp8: 3 or 4 digits, and a scale for each tensor. An update under half a gap is lost; an fp32 master keeps it.
# - `autocast` keeps the weights in fp32: states and messages are not smaller, activations are.
# - fp16 needs a loss scale, found by trying. A full all-reduce tells every rank of an infinity; with sharded gradients one number must do it.
# - Accumulation equals the big batch, if the loss is divided by what is in the whole batch, and no layer looks across the batch.
# - All microbatches, all-reduce, unscale, clip, step. The norm is that of the whole gradient.
# - A recomputed block keeps its input, about a sixteenth; the price is one more forward. The last block gains nothing, and `use_reentrant=False` always.
#
# Words learned: [master weights](GLOSSARY.md#master-weights), [mixed precision](GLOSSARY.md#mixed-precision), [loss scale](GLOSSARY.md#loss-scale), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [activation checkpointing](GLOSSARY.md#activation-checkpointing), [MFU](GLOSSARY.md#mfu).
#
# Next: chapter 06 shards the states that no precision makes smaller.
#
# ## Further reading
#
# - Micikevicius et al. 2017, *Mixed Precision Training*, [arXiv 1710.03740](https://arxiv.org/abs/1710.03740)
# - Kalamkar et al. 2019, on bf16, [arXiv 1905.12322](https://arxiv.org/abs/1905.12322)
# - Micikevicius et al. 2022, *FP8 Formats for Deep Learning*, [arXiv 2209.05433](https://arxiv.org/abs/2209.05433)
# - Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, [arXiv 1604.06174](https://arxiv.org/abs/1604.06174)
# - Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
#
# *Sections 8.1.1, 10.2.3, 10.7.4, 19.2.3, 19.4.2, S3, S4 and S9 of the source material.*

# %%
check.status()
