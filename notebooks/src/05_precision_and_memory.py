# ---
# jupyter:
#   labkit:
#     sections: ["19.2.3", "19.4.2", "10.2.3", "10.7.4", "S3", "S4", "S9"]
#     needs: ["two CPU cores"]
#     minutes: 60
# ---

# %% [markdown]
# # Precision and memory
#
# *Sections 10.2.3, 10.7.4, 19.2.3, 19.4.2, S3, S4 and S9 of the source material. About 60 minutes. No GPU is needed.*
#
# Half the bits are half the bytes and, on a GPU with units for it, more speed as well. They also lose small updates, small gradients and, when a number grows too large, the whole step. On several ranks one thing more is asked: all of them must agree that the step is lost.
#
# First the three formats and what each loses; then masters, `autocast` and loss scaling on real ranks. After that the two ways to save memory that change no result: gradient accumulation and activation checkpointing.

# %%
import labkit as lab

lab.begin("en")
import contextlib
import itertools
import torch
import torch.distributed as dist
import torch.nn.functional as F
from labkit.pictures import curves
from labkit.sharding import states
from labkit.measure import memory
from labkit import model, widgets
from labkit.pictures.curves import Series
from labkit.precision import check
from labkit.units import format_bytes, format_share

torch.set_num_threads(
    1
)  # here in the notebook: its models are tiny, and ranks want the other cores


# %%
def off(ours, theirs):
    """How far a gradient is from another: the length of the difference in lengths of the other."""
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def flat(tensors):
    """Many tensors as one long copy."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# %% [markdown]
# ## Three formats
#
# A float has a sign, an exponent (the range) and a fraction (the precision). torch knows the numbers:

# %%
from math import log2

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
print(
    "        bits = sign + exponent + fraction   largest   smallest normal   smallest   next after 1"
)
for name, dtype in TYPES.items():
    info = torch.finfo(dtype)
    fraction = round(-log2(info.eps))
    print(
        f"{name} {info.bits:7} {1:6} {info.bits - 1 - fraction:10} {fraction:10} {info.max:9.1e} "
        f"{info.smallest_normal:17.1e} {info.smallest_normal * info.eps:10.1e}   1 + {info.eps:.1e}"
    )

# %% [markdown]
# bf16 has the range of fp32 and few digits; fp16 has more digits and a small range. The same as a picture: the gap between a number and the next larger one, read out of the bit patterns. A number moves only if it is pushed by at least half the gap on that side.


# %%
def gaps(dtype):
    """Powers of two that the format has, and the gap above each."""
    x = torch.tensor([2.0**power for power in range(-30, 20)]).to(dtype)
    x = x[(x > 0) & x.isfinite()]
    bits = x.view(torch.int32 if dtype == torch.float32 else torch.int16)
    return x.tolist(), ((bits + 1).view(dtype).double() - x.double()).tolist()


widgets.show(
    curves.curves(
        [Series(name, *gaps(dtype)) for name, dtype in TYPES.items()],
        log_x=True,
        log_y=True,
        title={"en": "Gap to the next number", "zh": "到下一个数的间隔"},
        y_name={"en": "gap", "zh": "间隔"},
        x_name={"en": "number", "zh": "数"},
        badge="measured",
    )
)

# %% [markdown]
# fp16 ends early on the right, where infinity begins, and flattens on the left: below its smallest normal number the gap no longer shrinks, and below half of that gap everything is zero.
#
# **Predict.** A weight of 0.1 gets 100 updates of -0.0001 each. What is it afterwards in each format?

# %%
my_weight = {"fp32": None, "bf16": None, "fp16": None}

# %%
for name, dtype in TYPES.items():
    weight = torch.tensor(0.1, dtype=dtype)
    for _ in range(100):
        weight -= torch.tensor(0.0001, dtype=dtype)
    print(f"{name}: {weight.item():.4f}   you: {my_weight[name]}")

# %% [markdown] sections="19.2.3"
# ## fp32 masters
#
# In bf16 the weight never moved: each update is under half a gap. In fp16 each was rounded to whole gaps. Section 19.2.3 keeps an fp32 copy of the weights on every GPU, the **master**: 16 bits compute, the optimizer updates the master, and the weights are rounded anew from it. In one update:


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
# Now a real training on two ranks, four times with the same data; `model.Transformer(1, 32, 2)` is one block of width 32 with two heads, between an embedding and a head. In turn: everything in fp32; everything in bf16, the optimizer as well; bf16 weights and an optimizer that computes in fp32, but keeps no master; bf16 with fp32 masters. In the last step it is also counted how many weights with a gradient the optimizer left exactly as they were. **Predict** that share for pure bf16.

# %%
my_share = lab.guess(
    {
        "en": "share of the weights that pure bf16 left as they were",
        "zh": "纯 bf16 原样未动的权重占比",
    },
    between=(0, 1),
)


# %%
def train(kinds, num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    found = {}
    for kind in kinds:
        torch.manual_seed(0)
        net, losses = model.Transformer(1, 32, 2, max_len=32), []
        ddp = DDP(net if kind == "fp32" else net.bfloat16())
        weights = list(net.parameters())
        masters = (
            weights
            if kind in ("fp32", "bf16")
            else [weight.detach().float() for weight in weights]
        )
        optimizer = torch.optim.AdamW(masters, lr=5e-4)
        for step in range(num_steps):
            tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
            losses.append(model.loss(ddp(tokens).float(), targets))
            losses[-1].backward()
            before, has_grad = (
                flat(masters),
                flat([weight.grad for weight in weights]) != 0,
            )
            update(weights, masters, optimizer)
            for weight, master in (
                zip(weights, masters) if kind == "bf16, fp32 Adam" else ()
            ):
                master.copy_(weight.detach())  # forgets what was rounded away
        dist.all_reduce(losses := torch.stack(losses).detach())
        found[kind] = (
            losses / dist.get_world_size(),
            (before == flat(masters))[has_grad].float().mean().item(),
        )
    return found


# %%
kinds = ("fp32", "bf16", "bf16, fp32 Adam", "bf16 + masters")
run = lab.launch(train, kinds, 84, ranks=2, timeout_s=55)
found = run[0]
means = {
    kind: losses.unflatten(0, (-1, 12)).mean(1) for kind, (losses, _) in found.items()
}  # of 12 steps each
widgets.show(
    curves.curves(
        [
            Series(
                {
                    "en": kind,
                    "zh": kind.replace(", ", "，").replace("masters", "主权重"),
                },
                range(12, 85, 12),
                (line - means["fp32"]).tolist(),
                points=True,
            )
            for kind, line in means.items()
            if kind != "fp32"
        ],
        title={"en": "Loss above that of fp32", "zh": "损失比 fp32 高多少"},
        badge=", ".join((run.origin, *run.notes)),
        x_name={"en": "step", "zh": "步"},
        y_name={"en": "mean of 12 steps", "zh": "12 步的平均"},
    )
)
print("                 loss of the last 12 steps   unchanged by the last step")
for kind, (_, share) in found.items():
    print(f"{kind:<16} {means[kind][-1]:25.3f} {format_share(share):>28}")
my_share.score(found["bf16"][1])

# %% [markdown]
# With masters bf16 trains as fp32 does: what hurts is not the digits that the forward and backward lack. Adam in fp32 alone wins back the smaller part: what hurts most is the rounding of the weight after each update. The smaller the learning rate, the more updates fall under half a gap.
#
# What do masters cost? The bytes of one parameter on one rank, by recipe, nothing sharded, and 7 billion of them (computed; nothing was allocated):

# %%
print(f"{'recipe':<10} {'bytes':>5}  {'7 B parameters':>14}   {'without masters':>15}")
for name in ("fp32", "bf16", "mixed", "megatron", "accumulate"):
    kinds = states.state_bytes(7e9, recipe_name=name)
    bare = sum(kinds.values()) - kinds.get("master", 0)
    print(
        f"{name:<10} {states.RECIPES[name].bytes_per_parameter:5}  {format_bytes(sum(kinds.values())):>14}   "
        f"{format_bytes(bare):>15}   {states.RECIPES[name].what}"
    )

# %% [markdown] sections="19.2.3"
# Mixed precision does not make the states smaller: weight, gradient, master and two moments take as much as fp32 with Adam. It saves activations, messages and time. The bill of section 8.1.1 for 7 B parameters, "14 + 56 + 14 GB", has no line for the masters: it is the column "without masters" of "mixed", and the column before it is right.
#
# ### All-reduce in 16 bits
#
# "All-reduce in FP16 or FP32", says section 19.2.3. 16 bits halve the bytes. The sum of N ranks is N times as large as a gradient, and fp16 has little room above. **Predict** the mean of 40000 and 40000 on two ranks in fp16, summed first and divided first. And which of the two does DDP do?

# %%
my_mean = {"sum, divide": None, "divide, sum": None, "DDP": None}


# %%
def mean_in_fp16():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    late, early = (torch.tensor([40000.0], dtype=torch.float16) for _ in range(2))
    dist.all_reduce(late)
    early /= dist.get_world_size()
    dist.all_reduce(early)
    line = torch.nn.Linear(1, 1, bias=False, dtype=torch.float16)
    DDP(line)(
        torch.tensor([[40000.0]], dtype=torch.float16)
    ).sum().backward()  # a gradient of 40000
    return {
        "sum, divide": (late / dist.get_world_size()).item(),
        "divide, sum": early.item(),
        "DDP": line.weight.grad.item(),
    }


print(f"{my_mean = }\n     run = {lab.launch(mean_in_fp16, ranks=2, timeout_s=40)[0]}")

# %% [markdown]
# DDP divides first. That costs at the other end of the range: a small gradient, divided by N, may fall below the smallest normal number and lose digits. bf16 has the range of fp32 and knows neither trouble, at the price of fewer digits in the sum.

# %% [markdown] sections="S3"
# ## autocast
#
# Section S3's way is the reverse: the weights stay fp32 (they are the masters), and `autocast` casts the inputs of the operators that gain by it. (`torch.cuda.amp` is the old name; it is `torch.amp` now, with the device as an argument.) What comes out of each module of one block:

# %%
torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
tokens, targets = model.story_tokens(8, 32)
seen = {}
for name, module in [
    *net.layers[1].named_children(),
    ("block", net.layers[1]),
    ("head", net.layers[-1]),
]:
    module.register_forward_hook(
        lambda module, inputs, output, name=name: seen.update({name: output.dtype})
    )
with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
    loss = model.loss(net(tokens), targets)
loss.backward()
short = {dtype: name for name, dtype in TYPES.items()}
print(
    *(f"{name} {short[dtype]}" for name, dtype in {**seen, "loss": loss.dtype}.items()),
    sep=", ",
)
print(
    "weight:",
    net.layers[1].up.weight.dtype,
    "  its gradient:",
    net.layers[1].up.weight.grad.dtype,
)

# %% [markdown]
# Matrix products in bf16; norms, the residual stream, loss, weights and gradients in fp32. **Predict.** How many bytes does the forward keep for the backward, and how many does DDP's all-reduce carry, in shares of fp32? The third row has a communication hook that sends 16 bits (fp16; what torch says to its hook for bf16 is printed last); the fourth is a model converted to bf16 as above. `memory.Activations` is the meter: inside `chunk` it counts the bytes that autograd saves for the backward, parameters left out. `traffic.count` counts the bytes handed to a collective (chapter 02).

# %%
my_activations, my_messages = None, None  # of autocast


# %%
def kept_and_sent():
    import torch
    from labkit.measure import memory, traffic
    from labkit import model
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel as DDP

    tokens, targets = model.story_tokens(8, 32)
    found = {}
    for kind in ("fp32", "autocast", "autocast, hook", "bf16 model"):
        net = model.Transformer(2, 32, 2, max_len=32).to(
            torch.bfloat16 if kind == "bf16 model" else torch.float32
        )
        ddp, held = DDP(net), memory.Activations(net.parameters())
        if kind == "autocast, hook":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        with (
            torch.autocast(
                torch.get_default_device().type,
                dtype=torch.bfloat16,
                enabled=kind.startswith("autocast"),
            ),
            held.chunk(0),
        ):
            loss = model.loss(ddp(tokens), targets)
        with traffic.count() as counted:
            loss.backward()
        found[kind] = held.peak_bytes, counted.payload_bytes["all_reduce"]
    try:
        said = DDP(torch.nn.Linear(1, 1)).register_comm_hook(
            None, default_hooks.bf16_compress_hook
        )
    except TypeError as error:
        said = error
    return found, f"bf16_compress_hook: {said or 'accepted'}"


# %%
found, said = lab.launch(kept_and_sent, ranks=2, timeout_s=40)[0]
print(f"{my_activations = }, {my_messages = }")
for kind, numbers in found.items():
    kept, sent = (
        f"{format_bytes(num):>8} ({format_share(num / whole):>7})"
        for num, whole in zip(numbers, found["fp32"])
    )
    print(f"{kind:<14} kept for the backward {kept}   handed to all_reduce {sent}")
print(said)

# %% [markdown] sections="S3, 19.2.3"
# autocast saves less than half: the norms and the stream stay in fp32, and the casts of the weights are kept, too (their share falls as the batch grows). And the messages stay whole, because the gradients are fp32; the hook rounds them for the journey (chapter 11 has more of these).
#
# ## Small gradients and the loss scale
#
# In fp16 the backward has another trouble. The loss is a mean over all tokens, so the more tokens there are, the smaller each gradient is. Here the model is trained a little; then one backward of 2048 tokens is run under `autocast` in fp16, the loss multiplied by a scale beforehand. (A scale of 1/2 does what twice as many tokens would do.) Counted are zeros in the gradient of the logits that are none in fp32, and infinities and NaNs in the gradients of the weights. **Predict** a scale at which there is neither.

# %%
my_scale = None


# %%
def scaled_gradients(scale, dtype=torch.float16):
    """The gradient of the logits and of all weights, for a loss times ``scale``."""
    found, (tokens, targets) = [], model.story_tokens(64, 32, seed=1000)
    net.zero_grad()
    with torch.autocast(
        torch.get_default_device().type, dtype=dtype, enabled=dtype != torch.float32
    ):
        logits = net(tokens)
        logits.register_hook(found.append)
        loss = model.loss(logits, targets)
    (loss * scale).backward()
    return found[0], flat([weight.grad for weight in net.parameters()])


optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(100):
    optimizer.zero_grad()
    model.loss(
        net((batch := model.story_tokens(4, 32, seed=step))[0]), batch[1]
    ).backward()
    optimizer.step()

# %%
right, scales = (
    scaled_gradients(1, torch.float32),
    [2.0**power for power in range(-9, 31, 3)],
)
zeros, broken, wrong = [], [], []
for scale in scales:
    logits, weights = scaled_gradients(scale)
    zeros.append(((logits == 0) & (right[0] != 0)).float().mean().item())
    broken.append((~weights.isfinite()).float().mean().item())
    wrong.append(off(weights / scale, right[1]))
names = (
    {"en": "logits: became zero", "zh": "logits：变成零"},
    {"en": "weights: inf or NaN", "zh": "权重：inf 或 NaN"},
)
widgets.show(
    curves.curves(
        [
            Series(names[0], scales, zeros, points=True),
            Series(names[1], scales, broken, points=True),
        ],
        title={"en": "Gradients lost, by loss scale", "zh": "丢掉的梯度与缩放系数"},
        log_x=True,
        x_name={"en": "loss scale", "zh": "缩放系数"},
        y_format=format_share,
        badge="measured",
    )
)
print(
    f"{my_scale = }\noff the fp32 gradient:",
    *(
        f"2^{log2(scale):.0f}: {error:.3f}"
        for scale, error in list(zip(scales, wrong))[1::2]
    ),
    sep="  ",
)

# %% [markdown]
# There is a window, and more tokens move it to the right. So the scale is found by trying: double it now and then, halve it when an infinity turns up, and throw that step away. This is **dynamic loss scaling**, and `torch.amp.GradScaler` does it. bf16 needs none of it: its range is that of fp32.

# %% [markdown] sections="S3, 19.2.3"
# ## An overflow on one rank
#
# The loop of S3 on two ranks with DDP: `scale`, backward, `unscale_`, clip, `step`, `update`. In step 3, rank 1 meets a bad batch: its loss is multiplied by a million. A communication hook looks at each rank's own gradients just before the all-reduce. **Predict.** Rank 0 saw nothing unusual. Does it take step 3?

# %%
rank_0_takes_step_3 = None


# %%
def overflow(num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    ddp, rank, own, log = (
        DDP(model.Transformer(2, 32, 2, max_len=32)),
        dist.get_rank(),
        [],
        [],
    )

    def look(group, bucket):
        own.append(bool(bucket.buffer().isfinite().all()))
        return allreduce_hook(group, bucket)

    ddp.register_comm_hook(None, look)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(
        torch.get_default_device().type, init_scale=2.0**12, growth_interval=3
    )
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + rank)
        with torch.autocast(torch.get_default_device().type, dtype=torch.float16):
            loss = model.loss(ddp(tokens), targets) * (
                1e6 if (step, rank) == (3, 1) else 1
            )
        scale, before = scaler.get_scale(), flat(ddp.parameters())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
        scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
        log.append(
            (
                scale,
                own[-1],
                norm.isfinite().item(),
                not torch.equal(before, flat(ddp.parameters())),
            )
        )
    return log, flat(ddp.parameters())


# %%
run = lab.launch(overflow, 8, ranks=2, timeout_s=40)
print(
    f"{rank_0_takes_step_3 = }\nstep rank   scale   own gradients finite   after all-reduce   stepped"
)
for step, both in enumerate(zip(run[0][0], run[1][0])):
    for rank, (scale, own, reduced, stepped) in enumerate(both):
        print(
            f"{step:4} {rank:4} {scale:7.0f}   {own!s:>20} {reduced!s:>18} {stepped!s:>9}"
        )
print("weights of both ranks the same:", torch.equal(run[0][1], run[1][1]))

# %% [markdown] sections="19.2.3"
# Infinity plus anything is infinity or NaN. So the all-reduce of the gradients carries the news to everybody, and all skip, and all halve, without one extra message. Nothing is rolled back ("all GPUs roll back", says section 19.2.3): the step has not been made yet.
#
# ### Sharded gradients: the others must be told
#
# With ZeRO and FSDP each rank gets the sum of its own **part** of the gradient only (chapters 06 and 07). Then an infinity reaches just the rank that owns it. By hand: a reduce-scatter, a step on this rank's slice of the masters, an all-gather. In step 2 one element, in the slice of rank 1, overflows. Once without a word between the ranks, once with one all-reduce (MAX) of one number.


# %%
def sharded(agree, num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model

    torch.manual_seed(0)
    (rank, size), scale, log = (dist.get_rank(), dist.get_world_size()), 2.0**12, []
    net = model.Transformer(2, 32, 2, max_len=32)
    masters = flat(net.parameters()).chunk(size)[rank].clone()
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=size * step + rank)
        net.zero_grad()
        (scale * model.loss(net(tokens), targets)).backward()
        whole, part = (
            flat([weight.grad for weight in net.parameters()]),
            torch.empty_like(masters),
        )
        if step == 2:
            whole[-1] = float("inf")
        dist.reduce_scatter_single(part, whole)
        found_inf = torch.tensor(float(not part.isfinite().all()))
        if agree:
            dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        log.append((scale, bool(found_inf)))
        if found_inf:
            scale /= 2
        else:
            masters -= 0.1 * part / scale / size
        dist.all_gather_single(whole, masters)
        torch.nn.utils.vector_to_parameters(whole, net.parameters())
    return log, whole


# %%
runs = {
    agree: lab.launch(sharded, agree, 5, ranks=2, timeout_s=40)
    for agree in (False, True)
}
print("step   alone: rank 0        rank 1   agreed: rank 0         rank 1")
for step in range(5):
    cells = [run[rank][0][step] for run in runs.values() for rank in range(2)]
    print(
        f"{step:4} ",
        *(f"{scale:10.0f} {'skip' if found else 'step'}" for scale, found in cells),
    )
torch.manual_seed(0)
start = flat(model.Transformer(2, 32, 2, max_len=32).parameters())
moved = [run[0][1] - start for run in runs.values()]
print(f"alone, what the training moved is off by {format_share(off(*moved))}")

# %% [markdown]
# Alone, rank 0 updates its half of the model in step 2 and rank 1 does not. From then on their scales differ, and every sum adds gradients of two scales: in each half of the model the two ranks have unequal weight, and nothing says so. One number cures it. FSDP2 sends it by itself; here an infinity stands in the slice of rank 1 only, and plain `GradScaler` is used. (For the older FSDP1 there is `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`.)


# %%
def fsdp2_agrees():
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=1024.0)
    scaler.scale(net(torch.ones(2, 8)).sum()).backward()
    if dist.get_rank() == 1:
        net.weight.grad.to_local()[0, 0] = float("inf")
    with traffic.count() as counted:
        scaler.step(optimizer), scaler.update()
    return f"scale {scaler.get_scale():.0f} afterwards; {dict(counted.calls)}, {counted.payload_bytes.total()} bytes"


for rank, words in enumerate(lab.launch(fsdp2_agrees, ranks=2, timeout_s=40)):
    print(f"rank {rank}: {words}")

# %% [markdown] sections="10.2.3, 19.4.2"
# ## Accumulation equals the big batch
#
# A backward adds to `.grad`. So a batch can be taken in microbatches, one after the other: each loss divided by their number, one update at the end. Sections 10.2.3 and 19.4.2 say that this equals the big batch. On N ranks: DDP averages over the ranks, and all but the last microbatch go into `no_sync` (chapter 03).
#
# 16 sequences on 1, 2 and 4 ranks, in 1, 2 and 4 microbatches, against one process with all 16. A small difference may be rounding, or a small mistake: so the same in fp64. **Predict** the order of magnitude of both differences.

# %%
my_difference = {"fp32": None, "fp64": None}


# %%
def accumulate(num_microbatches, dtype, quiet=True):
    import contextlib
    import torch
    import torch.distributed as dist
    from labkit.measure import memory, traffic
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32).to(dtype))
    mine = (
        part.chunk(dist.get_world_size())[dist.get_rank()]
        for part in model.story_tokens(16, 32)
    )
    microbatches = list(zip(*(part.chunk(num_microbatches) for part in mine)))
    held = memory.Activations(ddp.parameters())
    with traffic.count() as counted:
        for number, (tokens, targets) in enumerate(microbatches, start=1):
            last = number == num_microbatches
            with ddp.no_sync() if quiet and not last else contextlib.nullcontext():
                with held.chunk(number):
                    loss = model.loss(ddp(tokens), targets) / num_microbatches
                loss.backward()
    return (
        flat([weight.grad for weight in ddp.parameters()]),
        held.peak_bytes,
        counted.payload_bytes["all_reduce"],
    )


def both_types(num_microbatches):
    return [
        accumulate(num_microbatches, dtype) for dtype in (torch.float32, torch.float64)
    ], accumulate(num_microbatches, torch.float32, quiet=False)


def table(counts):
    return {num: both_types(num) for num in counts}


# %%
found = {
    ranks: lab.launch(table, (1, 2, 4), ranks=ranks, timeout_s=40)[0]
    for ranks in (1, 2, 4)
}
(whole32, _, _), (whole64, _, _) = found[1][1][
    0
]  # one process, one microbatch: the big batch
print(
    f"{my_difference = }\nranks microbatches   off it in fp32   in fp64   kept at once   sent, no_sync   without"
)
for ranks, rows in found.items():
    for num, ((single, double), loud) in rows.items():
        print(
            f"{ranks:5} {num:12} {off(single[0], whole32):16.1e} {off(double[0], whole64):9.1e} "
            f"{format_bytes(single[1]):>14} {format_bytes(single[2]):>15} {format_bytes(loud[2]):>9}"
        )

# %% [markdown] sections="10.2.3"
# In fp64 the difference is some $10^8$ times smaller, as the gap between two numbers is ($2^{29}$). A wrong formula would stay as wrong as it was. So it is equal, and the activations kept at one time fall with the size of a microbatch. (One rank hands its gradients to the all-reduce as well; nothing travels.)
#
# ### Where it is not equal
#
# Three things break it. First, layers that look at the whole batch. BatchNorm normalises with the mean and variance of what it is given: four microbatches, four means. LayerNorm looks at one token.

# %%
for norm in (torch.nn.LayerNorm, torch.nn.BatchNorm1d):
    grads = []
    for num in (1, 4):
        torch.manual_seed(0)
        small = torch.nn.Sequential(
            torch.nn.Linear(8, 16), norm(16), torch.nn.Linear(16, 1)
        )
        x, y = torch.randn(32, 8), torch.randn(32, 1)
        for part, want in zip(x.chunk(num), y.chunk(num)):
            (F.mse_loss(small(part), want) / num).backward()
        grads.append(flat([weight.grad for weight in small.parameters()]))
    print(
        f"{norm.__name__:<12} accumulated, off the big batch: {off(*reversed(grads)):.1e}"
    )

# %% [markdown]
# Second, unequal microbatches: the mean of means of chapter 03, and with text nobody sees it, because the number of *sequences* is equal. Passages have different lengths and are padded; the loss is the mean over real tokens. Two ranks, two microbatches of four sequences each; the lengths are what differs. **Predict** how far the usual formula is off the mean over all tokens.

# %%
my_error = None


# %%
def padded(num_sequences, length, seed):
    """Sequences of 32 tokens, of which ``length`` are real; the targets of the others are -100, which no loss counts."""
    tokens, targets = model.story_tokens(num_sequences, 32, seed=seed)
    targets = targets.clone()
    targets[:, length:] = -100
    return tokens, targets


def mean_of_means(lengths):
    """Each rank takes its row of ``lengths``, one microbatch per length, in the usual way."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    ddp, mine = DDP(model.Transformer(2, 32, 2, max_len=32)), lengths[dist.get_rank()]
    for number, length in enumerate(mine):
        tokens, targets = padded(4, length, seed=10 * dist.get_rank() + number)
        (
            model.loss(ddp(tokens), targets) / len(mine)
        ).backward()  # every one reduced: only bytes are wasted
    return flat([weight.grad for weight in ddp.parameters()])


# %%
def all_tokens(lengths):
    """One process, one mean over every real token."""
    torch.manual_seed(0)
    whole = model.Transformer(2, 32, 2, max_len=32)
    batches = [
        padded(4, length, seed=10 * rank + number)
        for rank, row in enumerate(lengths)
        for number, length in enumerate(row)
    ]
    tokens, targets = map(torch.cat, zip(*batches))
    model.loss(whole(tokens), targets).backward()
    return flat([weight.grad for weight in whole.parameters()])


print(f"{my_error = }")
for lengths in (((32, 32), (32, 32)), ((32, 24), (16, 8)), ((32, 32), (32, 2))):
    grad = lab.launch(mean_of_means, lengths, ranks=2, timeout_s=40)[0]
    print(
        f"real tokens per sequence {lengths}: off by {format_share(off(grad, all_tokens(lengths)))}"
    )

# %% [markdown]
# The cure is one number from each rank, and the first exercise.
#
# Third, the type of the sum. When the running sum is much larger than what is added, bf16 loses the small one. So DeepSpeed and Megatron can keep a **main gradient** in fp32. Here real gradients of up to 256 microbatches are rounded to bf16 and added up in bf16, or in fp32, and held against the sum of the unrounded ones in fp64.


# %%
def microbatch_gradients(num_microbatches):
    """Gradients of one weight matrix of the net that was trained above, in fp32."""
    for number in range(num_microbatches):
        net.zero_grad()
        tokens, targets = model.story_tokens(2, 32, seed=5000 + number)
        model.loss(net(tokens), targets).backward()
        yield net.layers[1].up.weight.grad.clone()


# %%
types, errors = {"bf16 into bf16": torch.bfloat16, "bf16 into fp32": torch.float32}, []
sums, exact = {name: 0 for name in types}, 0
for number, grad in enumerate(microbatch_gradients(256), start=1):
    exact = exact + grad.double()
    sums = {
        name: total + grad.bfloat16().to(types[name]) for name, total in sums.items()
    }
    if number & (number - 1) == 0:  # a power of two
        errors.append((number, *(off(total, exact) for total in sums.values())))
numbers, *columns = zip(*errors)
widgets.show(
    curves.curves(
        [
            Series(
                {"en": name, "zh": name.replace("into", "累加到")},
                numbers,
                column,
                points=True,
            )
            for name, column in zip(types, columns)
        ],
        title={"en": "Error of an accumulated gradient", "zh": "累积梯度的误差"},
        log_x=True,
        log_y=True,
        x_name={"en": "microbatches", "zh": "微批次数"},
        badge="measured",
        y_name={"en": "relative to fp64", "zh": "相对于 fp64"},
    )
)

# %% [markdown]
# In bf16 the error grows with the number of microbatches. In fp32 the roundings of the parts average out instead, and the sum is better than any part.

# %% [markdown] sections="S9"
# ## Clipping, once and at the right place
#
# Section S9 accumulates, clips and steps. Its loop has a slip at the end of an epoch: ten microbatches, an update every four. Which gradients are in which update? One weight per microbatch shows it:

# %%
weight = torch.zeros(10, requires_grad=True)
for epoch in range(2):
    for i in range(10):
        (weight[i] / 4).backward()  # the gradient of microbatch i
        if (i + 1) % 4 == 0:
            print(
                f"epoch {epoch}, update with microbatches",
                weight.grad.nonzero().flatten().tolist(),
                f"sum of their shares {weight.grad.sum():g}",
            )
            weight.grad = None

# %% [markdown] sections="S3, S9"
# The last two wait for the next epoch and make its first update half as large again. So step on the last microbatch as well, divided by as many as there were, or drop the rest.
#
# Where does the clipping go? The order of S3 and S9 together: all microbatches, the all-reduce, `unscale_`, clip, `step`. Three other orders, two ranks, four microbatches, fp16 with a scale of 4096, a limit of 0.5 for the norm. **Predict** the length of the gradient that reaches the optimizer in each.

# %%
my_lengths = {
    "right": None,
    "before unscale_": None,
    "each microbatch": None,
    "before the all-reduce": None,
}


# %%
def clipped(order):
    import torch
    import torch.distributed as dist
    from labkit import model

    torch.manual_seed(0)
    local = model.Transformer(2, 32, 2, max_len=32)
    weights, size, seen = list(local.parameters()), dist.get_world_size(), []
    optimizer, scaler = (
        torch.optim.SGD(weights, lr=0.1),
        torch.amp.GradScaler(torch.get_default_device().type, init_scale=4096.0),
    )

    def clip():
        seen.append(torch.nn.utils.clip_grad_norm_(weights, max_norm=0.5).item())

    for number in range(4):
        tokens, targets = model.story_tokens(4, 32, seed=4 * dist.get_rank() + number)
        with torch.autocast(torch.get_default_device().type, dtype=torch.float16):
            loss = model.loss(local(tokens), targets) / 4
        (loss if order == "each microbatch" else scaler.scale(loss)).backward()
        if order == "each microbatch":
            clip()
    if order == "before the all-reduce":
        scaler.unscale_(optimizer), clip()
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= size
    if order == "right":
        scaler.unscale_(optimizer), clip()
    if order == "before unscale_":
        clip(), scaler.unscale_(optimizer)
    return seen, flat([weight.grad for weight in weights])


# %%
found = {
    order: lab.launch(clipped, order, ranks=2, timeout_s=40) for order in my_lengths
}
right = found["right"][0][1]
print(
    f"{my_lengths = }\n{'order':<22} {'length':>8}   off the right one   norms that clipping saw: rank 0 | rank 1"
)
for order, run in found.items():
    norms = " | ".join(" ".join(f"{norm:.3f}" for norm in seen) for seen, _ in run)
    print(
        f"{order:<22} {run[0][1].norm():8.2g} {off(run[0][1], right):15.2f}       {norms}"
    )

# %% [markdown]
# After the all-reduce both ranks see one norm, the same. Before `unscale_` it is 4096 times too large, so everything is clipped and the update nearly vanishes. The last two clip parts, each by a factor of its own, and their sum is another gradient.
#
# Where the gradient is sharded, a rank knows the norm of its slice only. The squares add up, the norms do not: one more all-reduce of one number.

# %%
slices = right.chunk(2)
norms = torch.stack([each.norm() for each in slices])
print(
    f"norms of the slices: {norms[0]:.4f} {norms[1]:.4f}, their sum: {norms.sum():.4f}; "
    f"root of the sum of squares: {norms.square().sum().sqrt():.4f}, whole: {right.norm():.4f}"
)

# %% [markdown] sections="19.4.2"
# ## Activation checkpointing
#
# A block keeps about 16 numbers per token and unit of width for its backward. Its input is one of them. **Checkpointing** keeps the input only and runs the forward again when the backward arrives. By hand, with the meter from above (`memory.Activations`) inside, so that the recomputation is counted as well:


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
# Eight blocks, the first k of them checkpointed. Two formulas, before anything runs. Kept when the forward ends: k inputs and the rest whole. The peak of the whole step: when the backward is at block i, it needs block i in full and what is still held of the blocks before it. **Predict.** Is it worth checkpointing all eight?

# %%
my_number_of_checkpoints = None
L, B, T, D, H = 8, 4, 64, 64, 4
whole, inputs = states.block_activation_bytes(B, T, D, H), B * T * D * 4
torch.manual_seed(0)
blocks, batch = (
    torch.nn.ModuleList(model.Block(D, H) for _ in range(L)),
    torch.randn(B, T, D),
)


def formulas(k):
    """Bytes kept at the end of the forward, and the peak of the step."""
    held = [inputs if i < k else whole for i in range(L)]
    return sum(held), max(sum(held[:i]) + whole for i in range(L))


# %%
def step(run, k=L):
    """Kept bytes, peak bytes and gradients of one forward and backward; run(block, held, x) runs the first k blocks."""
    held, x = memory.Activations(blocks.parameters()), batch.clone().requires_grad_()
    blocks.zero_grad()
    with held.chunk("forward"):
        for i, block in enumerate(blocks):
            x = run(block, held, x) if i < k else block(x)
        loss = x.sum()  # keeps nothing
    kept = held.num_bytes
    loss.backward()
    return kept, held.peak_bytes, flat([weight.grad for weight in blocks.parameters()])


# %%
plain, measured = step(None, 0), [step(Recompute.apply, k) for k in range(L + 1)]
predicted = [formulas(k) for k in range(L + 1)]
names = (
    {"en": "kept after forward", "zh": "前向后留着"},
    {"en": "peak of the step", "zh": "整步的峰值"},
)
widgets.show(
    curves.curves(
        [
            Series(
                name, range(L + 1), [row[n] for row in rows], points=rows is measured
            )
            for rows in (predicted, measured)
            for n, name in enumerate(names)
        ],
        title={"en": "Bytes of activations", "zh": "激活的字节"},
        y_format=format_bytes,
        x_name={"en": "blocks checkpointed", "zh": "做重计算的 block 数"},
        badge="measured / computed",
    )
)
gap = max(
    abs(mine - true)
    for row, formula in zip(measured, predicted)
    for mine, true in zip(row, formula)
)
print(
    f"{my_number_of_checkpoints = }; largest difference to the formulas: {gap} bytes;",
    f"gradients the same: {all(torch.equal(row[2], plain[2]) for row in measured)}",
)

# %% [markdown] sections="S4"
# Equal to the byte, and not one gradient differs. The last block saves nothing: when the backward begins, its recomputation is needed at once, and in full. Seven of eight is the best, and section S4 does just that.
#
# ### torch's checkpoint, and S4
#
# `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` does the same without the extra class. (The meter cannot see into its recomputation, so only what is kept is compared.)

# %%
from torch.utils.checkpoint import checkpoint

theirs = step(lambda block, held, x: checkpoint(block, x, use_reentrant=False), L - 1)
print(
    f"kept: ours {format_bytes(measured[L - 1][0])}, torch's {format_bytes(theirs[0])}, without {format_bytes(plain[0])};"
    f" gradients the same: {torch.equal(theirs[2], plain[2])}"
)

# %% [markdown] sections="S4"
# S4 calls `checkpoint(layer, x)` without `use_reentrant`, and its input is data, which needs no gradient. **Predict.** Which of its five layers get a gradient?

# %%
my_layers = None

# %%
import warnings


def s4(**options):
    """Which layers get a gradient, and what torch says."""
    five, x = (
        torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(5)),
        torch.randn(2, 4),
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i, layer in enumerate(five):
            x = checkpoint(layer, x, **options) if i < len(five) - 1 else layer(x)
    x.sum().backward()
    return [layer.weight.grad is not None for layer in five], *sorted(
        {str(each.message).partition(". ")[0] for each in said}
    )


# %%
print(f"{my_layers = }\nas in S4:", *s4(), sep="\n  ")
print("use_reentrant=False:", *s4(use_reentrant=False), sep="\n  ")

# %% [markdown] sections="19.4.2"
# The old, reentrant way finds no input that needs a gradient and cuts the graph: four of five layers are never trained, with a warning and without an error. Always say `use_reentrant=False`.
#
# ### Square root of L?
#
# One can keep even fewer inputs: one per **segment** of s blocks. Then a whole segment is recomputed at once. The well-known answer is s = $\sqrt L$ (Chen et al. 2016), for a chain in which a layer keeps as much as its input. A transformer block keeps some 16 times its input. **Predict** the best s for eight blocks.

# %%
my_segment = None


# %%
def segments(size):
    """The peak of a step in which every segment of ``size`` blocks is checkpointed."""
    held, x = memory.Activations(blocks.parameters()), batch.clone().requires_grad_()
    with held.chunk("forward"):
        for start in range(0, L, size):
            x = Recompute.apply(
                torch.nn.Sequential(*blocks[start : start + size]), held, x
            )
    x.sum().backward()
    return held.peak_bytes


for size in (1, 2, 4, 8):
    print(
        f"s = {size}: formula {format_bytes((L // size - 1) * inputs + size * whole)}, measured {format_bytes(segments(size))}"
    )
print(f"{my_segment = }\n    L   sqrt(L)   least for this block")
for layers in (8, 32, 96, 256):
    print(f"{layers:5} {layers**0.5:9.1f} {(layers * inputs / whole) ** 0.5:10.1f}")

# %% [markdown] sections="19.4.2"
# The peak is (L/s - 1) inputs and s blocks; it is least at s = $\sqrt{L \cdot input / block}$, a quarter of $\sqrt L$ for a transformer. Up to some 32 blocks it is best to checkpoint each alone.
#
# ### The time paid
#
# One more forward. A backward takes about two forwards, so 4 instead of 3 if all is recomputed, and for k of L blocks the part k/L of that. Six wide blocks and few tokens, so that arithmetic outweighs calls and memory; k = 0, 3, 6 take turns, and the best of each counts. It is time on the processor, so that other programs count less. The prediction is made from the forward and backward of the same run. **Predict** the ratio for all six.

# %%
my_ratio = lab.guess(
    {
        "en": "time of a step with all six checkpointed, over none",
        "zh": "六个块全设检查点时，一步用时是都不设的几倍",
    },
    unit="ratio",
)


# %%
def paid(ways, num_tries):
    import time
    import torch
    from labkit import model
    from labkit.devices.place import synchronize
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    def now():
        synchronize()  # a GPU works on while Python goes ahead
        return time.process_time()

    def seconds(k, stops_early):
        y, began = x, now()
        with set_checkpoint_early_stop(stops_early):
            for i, block in enumerate(chain):
                y = checkpoint(block, y, use_reentrant=False) if i < k else block(y)
        middle = now()
        y.sum().backward()
        return middle - began, now() - middle

    chain, x = (
        [model.Block(256, 4) for _ in range(6)],
        torch.randn(2, 64, 256, requires_grad=True),
    )
    tries = [{way: seconds(*way) for way in ways} for _ in range(num_tries)]
    return {way: min((each[way] for each in tries), key=sum) for way in ways}


# %%
WAYS = (0, True), (3, True), (6, True), (6, False)
run = lab.launch(paid, WAYS, 5, ranks=2, timeout_s=50)  # two: one thread each
taken = run[0]
forward, backward = taken[0, True]
for (k, stops_early), parts in taken.items():
    print(
        f"{k} of 6{'' if stops_early else ', to the end'}: "
        f"measured {sum(parts) / (forward + backward):.2f}, "
        f"predicted {1 + k / 6 * forward / (forward + backward):.2f}"
    )
print(f"the backward took {backward / forward:.2f} forwards")
my_ratio.score(sum(taken[6, True]) / (forward + backward))

# %% [markdown]
# The last two rows differ by what `checkpoint` leaves out: it stops computing again as soon as it has all that the backward needs, and no backward needs the result of a block's last product, which has a third of the block's weights. On the other side stands its own bookkeeping. That is why the measured ratio lies a little beside the predicted one, mostly below it.
#
# ### The same dice again
#
# Dropout draws random numbers, and the second forward must draw the same ones. `checkpoint` saves the state of the generator for it; that can be switched off, and then the gradient belongs to another network than the loss.

# %%
layer, grads = (
    torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1)
    ),
    {},
)
for name, run in {
    "plain": layer,
    "checkpoint": lambda x: checkpoint(layer, x, use_reentrant=False),
    "state not saved": lambda x: checkpoint(
        layer, x, use_reentrant=False, preserve_rng_state=False
    ),
}.items():
    torch.manual_seed(0)
    layer.zero_grad()
    run(torch.ones(8, 64)).sum().backward()
    grads[name] = flat([weight.grad for weight in layer.parameters()])
    print(f"{name:<16} off the plain gradient: {off(grads[name], grads['plain']):.2f}")

# %% [markdown]
# ### On a device that is full
#
# The bytes above were counted tensor by tensor. A device counts by itself: `torch.accelerator.max_memory_allocated()` is the most that its tensors have taken at one time. (A process takes more of a GPU than that: the allocator keeps what was freed, see `torch.accelerator.max_memory_reserved()`, and CUDA needs some for itself.) Below, ranks stand on **pretend devices** even where there are GPUs: real tensors, in a memory of their own that can be made as small as we like. (Without GPUs they stood on such devices above as well: chapter 00.) A pretend device follows a GPU's rules and, when it is full, uses its words. It can't show a GPU's speed, its streams and the races between them, or fragmentation.
#
# A training step of eight blocks with AdamW, once as it is, once with every block checkpointed:


# %%
def device_step(batch, recompute, num_steps=3):
    """The peak of the device's memory, in bytes."""
    import functools
    from torch.utils.checkpoint import checkpoint

    net = model.Transformer(8, 128, 4, max_len=64)
    for block in net.layers[1:-1] if recompute else ():
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False
        )
    optimizer = torch.optim.AdamW(net.parameters())
    tokens, targets = model.story_tokens(batch, 64)
    for _ in range(num_steps):
        model.loss(net(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.accelerator.max_memory_allocated()


# %% [markdown]
# Two moments can be the highest of a step. When the backward begins, there are the weights and Adam's two moments, 12 bytes per parameter, and all activations. In the update there are the gradients as well and one more copy of the weights, which AdamW needs for a moment: 20 bytes per parameter, and no activations.


# %%
def device_peak(batch, recompute):
    """The larger of both moments, in bytes; head and loss are left out."""
    num_params = sum(
        weight.numel() for weight in model.Transformer(8, 128, max_len=64).parameters()
    )
    kept = states.block_activation_bytes(batch, 64, 128, 4)
    activations = kept + 8 * batch * 64 * 128 * 4 if recompute else 8 * kept
    return max(12 * num_params + activations, 20 * num_params)


# %%
cases = list(itertools.product((2, 8, 16), (False, True)))
peaks = [
    lab.launch(device_step, *case, ranks=1, devices=lab.pretend())[0] for case in cases
]
print("batch   recompute   predicted    measured")
for (batch, recompute), measured_bytes in zip(cases, peaks):
    due = format_bytes(device_peak(batch, recompute))
    print(f"{batch:5} {recompute!s:>11} {due:>11} {format_bytes(measured_bytes):>11}")

# %% [markdown]
# What is measured above the prediction is what head, loss and the backward's own gradients hold for a moment. Where the update is the highest moment, recomputation gains nothing; where activations decide, it takes most of them away.
#
# Now the device gets 48 MiB (50.3 MB). **Predict:** which of the six still run?

# %%
my_runs = None

# %%
small = lab.pretend(memory_mib=48)
try:
    lab.launch(device_step, 16, False, ranks=1, devices=small)
except lab.RankFailed as error:
    print(str(error).partition("\n")[0])

# %% [markdown]
# This is CUDA's message, with "pretend" in place of "CUDA": what was asked for, how much there is, how much is free. The request that failed is small; it is only the one that came last. Sixteen sequences do not fit, and with recomputation they do:

# %%
peaks = [
    lab.launch(device_step, batch, True, ranks=1, devices=small)[0]
    for batch in (2, 8, 16)
]
print("recomputed, on 48 MiB:", *map(format_bytes, peaks))

# %% [markdown]
# The price once more, the ways in turn, on pretend devices without a limit. (Without GPUs the ranks of "The time paid" stood on the same, so the ratios should agree with those.) It is processor time again, and only the ratio counts: a pretend device computes as fast as the CPU that plays it.

# %%
taken = lab.launch(paid, WAYS[:3], 5, ranks=2, devices=lab.pretend())[0]
for (k, _), parts in taken.items():
    print(f"{k} of 6 recomputed: {sum(parts) / sum(taken[0, True]):.2f} times the step")

# %% [markdown]
# ### Large models, computed
#
# For a GPT layer in 16 bits with dropout, Korthikanti et al. count $34\,sbh + 5\,as^2b$ bytes: s tokens, b sequences, h width, a heads. *Selective* recomputation repeats only the attention matrix, the term with $s^2$; flash attention never stores it. *Full* keeps the input. All layers of four models of that paper, s = 2048, b = 1, on one device (computed, not run):

# %%
print("model   layers   keep all   selective      full   16-bit weights")
for name, num_layers, hidden, heads in (
    ("22B", 48, 6144, 64),
    ("175B", 96, 12288, 96),
    ("530B", 105, 20480, 128),
    ("1T", 128, 25600, 160),
):
    kept = (
        num_layers
        * states.layer_activation_bytes(2048, 1, hidden, heads, recompute=recompute)
        for recompute in states.RECOMPUTE
    )
    weights = 2 * 12 * num_layers * hidden**2  # 12 h^2 parameters a layer
    print(
        f"{name:>5} {num_layers:8}"
        + "".join(f"{format_bytes(num):>11}" for num in kept)
        + f"{format_bytes(weights):>16}"
    )

# %% [markdown] sections="10.7.4"
# ## Everything together
#
# Exercise 10.7.4 asks how to combine distributed training with mixed precision. On two ranks: DDP, bf16 `autocast`, four microbatches with one all-reduce, all blocks but the last checkpointed, one clipping at the end. Beside it the same training without microbatches, without checkpoints, without both. **Predict** how far the two savings change a loss.

# %%
my_change = {"checkpoints": None, "microbatches": None}


# %%
def everything(num_microbatches, checkpointed, num_steps=10):
    import contextlib, functools
    import torch
    import torch.distributed as dist
    from labkit.measure import memory
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    net, losses = model.Transformer(4, 32, 2, max_len=32), []
    for block in net.layers[1:-2] if checkpointed else ():
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False
        )
    ddp, optimizer = DDP(net), torch.optim.AdamW(net.parameters(), lr=3e-3)
    held = memory.Activations(net.parameters())
    for step in range(num_steps):
        batch = model.story_tokens(16, 32, seed=2 * step + dist.get_rank())
        for number, (tokens, targets) in enumerate(
            zip(*(part.chunk(num_microbatches) for part in batch)), start=1
        ):
            with (
                contextlib.nullcontext()
                if number == num_microbatches
                else ddp.no_sync()
            ):
                with (
                    torch.autocast(
                        torch.get_default_device().type, dtype=torch.bfloat16
                    ),
                    held.chunk(number),
                ):
                    losses.append(model.loss(ddp(tokens), targets) / num_microbatches)
                losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
        optimizer.step(), optimizer.zero_grad()
    return held.peak_bytes, torch.stack(losses).detach().unflatten(
        0, (num_steps, -1)
    ).sum(1)


# %%
rows = {
    (num, with_checkpoints): lab.launch(
        everything, num, with_checkpoints, ranks=2, timeout_s=40
    )[0]
    for num in (1, 4)
    for with_checkpoints in (False, True)
}
print(
    f"{my_change = }\nmicrobatches   checkpoints   kept by a forward   loss of step 1    of step 10   largest change"
)
for (num, with_checkpoints), (kept, losses) in rows.items():
    print(
        f"{num:12} {with_checkpoints!s:>13} {format_bytes(kept):>19} {losses[0]:16.4f} {losses[-1]:13.4f} "
        f"{(losses - rows[1, False][1]).abs().max():16.1e}"
    )

# %% [markdown]
# Checkpoints change nothing at all. Microbatches change the order of the sums, and in bf16 that can be seen in the last digits, no more. The savings multiply. On a GPU the loop is the same; with fp16, add the scaler.
#
# ## Exercises
#
# A check never stops the notebook. It tries your answer on real ranks, at sizes that are not shown, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. The mean over all real tokens
#
# `ddp` is a model in DDP, `microbatches` a list of (tokens, targets) of this rank, as many on every rank. Targets of -100 do not count, and a microbatch may have no others. Leave in the weights the gradient of the mean loss over **all** real tokens of all microbatches of all ranks. Send the gradients once, and keep the activations of one microbatch at a time.


# %%
def my_accumulate(ddp, microbatches):
    """Leaves in ddp's weights the gradient of the mean over all real tokens of all ranks."""
    ### BEGIN SOLUTION
    total = torch.tensor(
        float(sum((targets != -100).sum() for _, targets in microbatches))
    )
    dist.all_reduce(total)
    for number, (tokens, targets) in enumerate(microbatches, start=1):
        with contextlib.nullcontext() if number == len(microbatches) else ddp.no_sync():
            loss = F.cross_entropy(
                ddp(tokens).flatten(0, 1), targets.flatten(), reduction="sum"
            )
            (
                loss * dist.get_world_size() / total
            ).backward()  # DDP divides by the number of ranks
    ### END SOLUTION


# %%
check.accumulate_tokens(my_accumulate)

# %%
check.hint("accumulate_tokens")

# %% [markdown] sections="10.7.4"
# ### 2. One step of sharded mixed precision
#
# `grad` is this rank's slice of the gradient, in fp16, already averaged over the ranks, and still multiplied by the loss scale `scale`. `master` is its slice of the weights, in fp32. Slices differ in length, and one may be empty. Make one step of SGD with learning rate `rate`, in place, on the gradient clipped to `max_norm` (the norm of the gradient of **all** ranks, without the scale). If any rank has an infinity or a NaN, nobody moves, and the scale is halved. Return the scale of the next step. Send no more than a few numbers.


# %%
def my_scaled_step(master, grad, scale, rate, max_norm):
    """Updates master in place; returns the next scale."""
    ### BEGIN SOLUTION
    grad = grad.float() / scale  # in fp16 the division itself would lose the small ones
    squares = grad.square().sum()
    dist.all_reduce(
        squares
    )  # an infinity of one rank makes it infinite, or NaN, for all
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
# ### 3. Checkpoints within a budget
#
# Block i keeps `kept_bytes[i]`, among them its input, `input_bytes[i]`; checkpointed, it keeps its input only. The blocks differ. List the blocks to checkpoint such that the peak of the step is at most `budget_bytes`, recomputing as few blocks as possible; `None` if that can't be done. At most eight blocks. Your choice is run, and its live bytes are measured.


# %%
def my_blocks(kept_bytes, input_bytes, budget_bytes):
    """The numbers of the blocks to checkpoint, as a list; or None."""
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
# - bf16: the range of fp32, 8 binary digits. fp16: 11 digits, a small range. An update under half a gap is lost; an fp32 master keeps it.
# - `autocast` keeps the weights in fp32: the states are not smaller, the messages neither; activations are.
# - fp16 needs a loss scale, found by trying. A full all-reduce tells every rank of an infinity; with sharded gradients one number must do it.
# - Accumulation equals the big batch, if the loss is divided by what is in the whole batch, and no layer looks across the batch. Add up in fp32.
# - All microbatches, all-reduce, unscale, clip, step. The norm is that of the whole gradient.
# - A checkpointed block keeps its input, about a sixteenth; the price is one more forward. The last block gains nothing, and `use_reentrant=False` always.
#
# ## Sources
#
# - Mixed precision, masters and loss scaling: Micikevicius et al. 2017, [arXiv 1710.03740](https://arxiv.org/abs/1710.03740)
# - bf16 in training: Kalamkar et al. 2019, [arXiv 1905.12322](https://arxiv.org/abs/1905.12322)
# - Checkpointing: Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, [arXiv 1604.06174](https://arxiv.org/abs/1604.06174)
# - Activations of a transformer: Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - States by recipe: Rajbhandari et al. 2020, *ZeRO*, [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
#
# Where you stand:

# %%
check.status()
