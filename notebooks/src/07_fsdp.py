# ---
# jupyter:
#   labkit:
#     sections: ["8.4.1", "8.4.2", "8.4.3", "8.4.4", "8.10", "8.11.1", "S6", "D-fsdp"]
#     needs: ["chapters 02 and 05"]
#     minutes: 75
# ---

# %% [markdown]
# # FSDP
#
# *About 75 minutes. You need chapters 02 and 05; chapter 06 helps. No GPU is needed.*
#
# We rent eight cards of 80 GB for our 7 B model, 640 GB in all. Data parallelism dies on them before the first step, because weights, gradients and Adam take 112 GB, and it wants all of them on every card. What hurts is the waste: seven of the eight copies are the same numbers once more.
#
# Fully sharded data parallelism (FSDP) keeps one copy, an eighth of it on each card, 14 GB. But how can a card compute with an eighth of a layer? Here is one step on four ranks. Move the slider from left to right.

# %%
import labkit as lab
from labkit import devices, fsdp, model, planner, sharding

lab.begin("en")
import math
import torch
import torch.distributed as dist
from labkit.fsdp import check
from labkit.measure import memory, traffic
from torch.distributed.fsdp import fully_shard

sharding.Step(engine="fsdp", ranks=4).board()

# %% [markdown]
# Watch the upper picture: a layer is whole only while it computes, and then every rank throws away what is not its own. The bars below are the bytes of one rank at that moment, predicted by theory. The button trains the small model for real.
#
# **When you are done** you can write FSDP yourself in fifty lines, use torch's `fully_shard` with the right units, types and loop, and say what it costs in messages, time and memory before you rent anything.

# %% [markdown] sections="8.4.1"
# ## What a rank holds
#
# Data parallelism, in torch [DDP](GLOSSARY.md#ddp), keeps all [model states](GLOSSARY.md#model-states) on every rank: parameters, gradients, and Adam's two moments. FSDP cuts each of them into [shards](GLOSSARY.md#shard), one for each rank. We train the same small transformer with both on four ranks, two microbatches in a step. Between the two microbatches we look at what each rank holds.
#
# What share of a DDP rank's bytes does an FSDP rank hold?

# %%
share = lab.guess("an FSDP rank's bytes, as a share of a DDP rank's", between=(0, 1))

# %%
ddp, full = (sharding.Step(engine=name, ranks=4) for name in ("ddp", "fsdp"))
ddp_run, full_run = ddp.run(), full.run()
ddp_bytes = ddp.measured(ddp_run).rank_bytes[0]
full_bytes = full.measured(full_run).rank_bytes[0]
share.score(full_bytes / ddp_bytes)

# %% [markdown]
# A quarter, but for some padding. What is it made of, and does theory know it? The third row needs no rank at all:


# %%
def parts(shards):
    """What rank 0 holds, by part."""
    return {part: held[0] for part, held in shards.bytes_by("category").items()}


rows = {"DDP": parts(ddp.measured(ddp_run)), "FSDP": parts(full.measured(full_run))}
rows["FSDP, predicted"] = parts(full.predict())
lab.bars(rows, unit="bytes", badge="measured / predicted", title="Held by one of four")

# %% [markdown]
# Every part is cut, and the prediction is right to the byte. (`full.compare()` draws which slice of which tensor lies on which rank.)

# %% [markdown] sections="8.4.1"
# ### And while it computes?
#
# That was between two computations. What is the highest point of a step? Here is the same run, moment by moment: `F3` is the forward of layer 3, `B3` its backward. It is the second microbatch, so gradients of the first are there from the start.

# %%
full_run[0]["footprint"]

# %% [markdown] sections="8.4.1"
# Look at the peak. The states are the even floor of the picture. On top come [activations](GLOSSARY.md#activations), which nobody shards, and some copies of the largest layer. Its weights are *gathered for a while*. What the picture calls *temporary* is its gradients, the next layer, which is gathered already, and the buffer from which gradients are reduced. At `step` a rank on a device has one more copy, because AdamW updates all tensors in one go there.
#
# So FSDP is as lean as its largest unit allows. You choose how large a unit is; we come to that.
#
# <details><summary>Erratum 8.4.1: "O(M/N) memory for each rank"</summary>
#
# The textbook's table gives a DDP rank O(M) and an FSDP rank O(M/N). That holds for the states and leaves out the activations and the gathered layers, which don't shrink when ranks are added. Run it: `full.footprint().peak_bytes / ddp.footprint().peak_bytes` is well above a quarter.
#
# </details>
#
# ## By hand
#
# A layer needs three moves: **[all-gather](GLOSSARY.md#all-gather)** the slices into the whole, **compute**, **[reduce-scatter](GLOSSARY.md#reduce-scatter)** the gradient. The last one sums the gradients of all ranks and leaves each rank its own slice of the sum. There is a pretty fact in it: the third move is the derivative of the first. So we tell autograd just that.


# %%
class Gather(torch.autograd.Function):
    """Slices in, the whole out; backward: a gradient in, my slice of the mean out."""

    @staticmethod
    def forward(ctx, mine):
        whole = mine.new_empty(mine.numel() * dist.get_world_size())
        dist.all_gather_single(whole, mine)
        ctx.storage = whole.untyped_storage()
        return whole

    @staticmethod
    def backward(ctx, gradient):
        ctx.storage.resize_(0)  # the last use of these weights is over
        mine = gradient.new_empty(gradient.numel() // dist.get_world_size())
        dist.reduce_scatter_single(mine, gradient)
        return mine / dist.get_world_size()


# %% [markdown]
# (`all_gather_single` and `reduce_scatter_single` are the names of torch 2.13. Older code says `all_gather_into_tensor` and `reduce_scatter_tensor`.)
#
# Now a layer. We lay its parameters behind each other in one flat tensor, pad it so that it divides, and keep one part. That part is the only parameter that the optimizer sees: the layer itself stands in a list, where torch does not look for parameters. In the forward the layer works on views into the gathered tensor.


# %%
class Kept(torch.nn.Module):
    """Gathered in the forward, whole until its backward is over."""

    def __init__(self, layer):
        super().__init__()
        flat = torch.cat([each.detach().flatten() for each in layer.parameters()])
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))
        part = flat.chunk(dist.get_world_size())[dist.get_rank()]
        self.mine = torch.nn.Parameter(part.clone())
        self.shapes = {name: each.shape for name, each in layer.named_parameters()}
        self.layer = [layer.to("meta")]  # its code without its bytes, hidden in a list

    def views(self, flat):
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = flat[: sum(sizes)].split(sizes)
        return {name: p.view(s) for p, (name, s) in zip(parts, self.shapes.items())}

    def forward(self, x):
        whole = Gather.apply(self.mine)
        return torch.func.functional_call(self.layer[0], self.views(whole), (x,))


# %% [markdown]
# That is complete, and correct. But is it lean? From a layer's forward to its backward its weights stay whole, and when the forward ends, all layers are.
#
# We can do better. Autograd has saved *views* of the gathered tensor. It does not notice when the memory under them goes away in between, as long as it is back in time:


# %%
class Freed(Kept):
    """The same, freed after the forward and gathered again for the backward."""

    def forward(self, x):
        whole = Gather.apply(self.mine)
        output = torch.func.functional_call(self.layer[0], self.views(whole), (x,))
        storage, data, num_bytes = whole.untyped_storage(), whole.data, whole.nbytes

        def again(gradient):
            storage.resize_(num_bytes)
            dist.all_gather_single(data, self.mine.data)

        output.register_hook(again)  # runs when the gradient of the output is there
        storage.resize_(0)
        return output


# %% [markdown]
# We train with both, and with DDP beside them: three steps of SGD with momentum on three ranks. `memory.watch` counts every byte that torch makes on the rank in the last step.


# %%
def wrapped_ddp(net):
    return torch.nn.parallel.DistributedDataParallel(net)


def train(wrapper, num_steps=3):
    torch.manual_seed(0)
    with memory.watch() as watched:
        net = engine = model.Transformer(4, 64, 4, max_len=32)
        if wrapper is wrapped_ddp:
            engine = wrapped_ddp(net)
        else:
            net.layers = torch.nn.ModuleList(wrapper(layer) for layer in net.layers)
        optimizer = torch.optim.SGD(engine.parameters(), lr=0.1, momentum=0.9)
        for step in range(num_steps):
            if step == num_steps - 1:
                watched.layers(net.layers)
            tokens, targets = model.story_tokens(2, 32, seed=3 * step + dist.get_rank())
            loss = model.loss(engine(tokens), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    weights = [
        torch.cat([each.detach().flatten() for each in layer.parameters()])
        for layer in net.layers
    ]
    return weights, watched.footprint()


# %% [markdown]
# How far will the weights of the two be from DDP's, at most? And which of the three curves climbs highest?

# %%
apart = lab.guess(
    "difference to DDP's weights", choices=("none at all", "rounding", "more than that")
)

# %%
runs = {each.__name__: lab.launch(train, each, ranks=3) for each in (Kept, Freed)}
runs["DDP"] = lab.launch(train, wrapped_ddp, ranks=3)


def whole(run):
    """Each layer's weights: the ranks' slices behind each other."""
    return [torch.cat(slices) for slices in zip(*(weights for weights, _ in run))]


right = runs["DDP"][0][0]
mine = [flat[: len(true)] for flat, true in zip(whole(runs["Freed"]), right)]
off = lab.difference(mine, right)
apart.score(
    "none at all" if off == 0 else "rounding" if off < 1e-5 else "more than that"
)

# %%
peaks = {name: run[0][1].totals for name, run in runs.items()}
lab.curves(
    measured={name: dict(enumerate(map(int, each))) for name, each in peaks.items()},
    x="moment of the step",
    y="rank 0",
    unit="bytes",
    title="Bytes over a step, by hand",
)

# %% [markdown]
# The weights are equal to rounding. Moments 0 to 5 are the forwards of the six layers; then come their backwards, in the opposite order. `Kept` climbs to the whole model and comes down again. `Freed` climbs only by the activations.
#
# These two are FSDP's two main strategies, and in torch's older names they are called **SHARD_GRAD_OP** and **FULL_SHARD**. The lower curve has a price, one more all-gather for each layer. How much is that?

# %% [markdown] sections="8.4.1"
# ## What a step sends
#
# DDP [all-reduces](GLOSSARY.md#all-reduce) the gradients once. On a ring each rank sends $2\frac{N-1}{N}M$ bytes for that, if the gradients have $M$ bytes. FSDP gathers the parameters twice, and reduces and scatters the gradients once. How many times DDP's bytes is that?

# %%
ratio = lab.guess("FSDP's bytes, in multiples of DDP's", unit="ratio")


# %%
def ring_bytes(payload, ranks):
    """What a rank of a ring sends for collectives that were handed these bytes."""
    gathered = (ranks - 1) * payload.get("all_gather", 0)
    scattered = (ranks - 1) / ranks * payload.get("reduce_scatter", 0)
    reduced = 2 * (ranks - 1) / ranks * payload.get("all_reduce", 0)
    return gathered + scattered + reduced


# %%
ENGINES = {"DDP": "ddp", "FULL_SHARD": "fsdp", "SHARD_GRAD_OP": "fsdp_grad_op"}
steps = {
    name: sharding.Step(engine=engine, microbatches=1).run()[0]
    for name, engine in ENGINES.items()
}
sent = {name: ring_bytes(each["payload_bytes"], 2) for name, each in steps.items()}
ratio.score(sent["FULL_SHARD"] / sent["DDP"])

# %%
lab.table(
    {
        "engine": name,
        "payload_ratio": sent[name] / sent["DDP"],
        "wire_ratio": (found["sent_bytes"] or float("nan")) / sent["DDP"],
        "calls": str(dict(found["calls"])),
    }
    for name, found in steps.items()
)

# %% [markdown] sections="8.4.1"
# There are two counts, and both are true. The [payload](GLOSSARY.md#payload) is what was handed to the collectives that were *called*, turned into what a ring sends for it. By that count FSDP sends 1.5 times as much. With the parameters kept it sends as much as DDP, because an all-reduce *is* a reduce-scatter and an all-gather.
#
# The [wire](GLOSSARY.md#wire) is what really left the process (counted on Linux, over TCP). Why is it more? [gloo](GLOSSARY.md#gloo) has no reduce-scatter of its own and runs an all-reduce instead, which sends twice as much. [NCCL](GLOSSARY.md#nccl), the library of GPUs, has one. (DDP's two broadcasts are a few bytes: after its first step it orders its buckets anew, and rank 0 tells the others how.)
#
# ## `fully_shard`
#
# Enough by hand. torch does it with one function, called on each part of the model and then on the whole:


# %%
def sharded(net, **options):
    """Every layer is a unit; the root takes what is left."""
    for layer in [*net.layers, net]:
        fully_shard(layer, **options)
    return net


# %% [markdown]
# It changes the module in place. Each parameter becomes a `DTensor`, cut along its first dimension, and names and shapes stay as they were. (The older class `FullyShardedDataParallel`, FSDP1, wraps the module and flattens its parameters, as our `Kept` did. So this one is called FSDP2.) What does a rank hold when 64 rows don't divide by three?


# %%
def my_slices():
    net = sharded(model.Transformer(2, 64, 4, max_len=32))
    block = dict(net.layers[1].named_parameters())
    names = ("qkv.weight", "out.weight", "norm1.bias")
    return {name: str(tuple(block[name].to_local().shape)) for name in names}


lab.launch(my_slices, ranks=3)

# %% [markdown]
# Rows 0 to 21, 22 to 43, and what remains, as `torch.chunk` cuts. The shorter part is padded for the message.
#
# ### Who comes when
#
# Our `Freed` gathers a layer at the moment when it is needed, so everybody waits for the message. torch can gather the next layer early, which is called [prefetch](GLOSSARY.md#prefetch). We record two steps and look at the second one:


# %%
def fsdp_step(prefetch):
    net = sharded(model.Transformer(3, 128, 4, max_len=64))
    layers = list(net.layers)
    for layer, following in zip(layers, layers[1:]):
        if prefetch:
            layer.set_modules_to_forward_prefetch([following])
    tokens, targets = model.story_tokens(4, 64, seed=dist.get_rank())
    for _ in range(2):
        model.loss(net(tokens), targets).backward()


plain = lab.launch(fsdp_step, False, record=True).timeline()
fsdp.by_layer(plain)

# %% [markdown]
# The picture is measured. A rank's upper row is what it computes, forward in blue and backward in orange; the thin row below is its messages, which gather weights or reduce gradients. Hatched is waiting, and there is a lot of it, because layers as small as these are computed faster than messages are handled. In the forward the order is simple: gather, compute, next. But what happens in the backward? Five layers have the numbers 0 to 4. When is layer 2 gathered again: before layer 3 computes its backward, or after it?

# %%
when = lab.guess("layer 2 is gathered again", choices=("before B3", "after B3"))

# %%
moves = fsdp.order(plain)
again = moves.index("g2", moves.index("F4"))
when.score("before B3" if again < moves.index("B3") else "after B3")

# %% [markdown]
# Before. In the backward FSDP prefetches without being asked. In the forward one has to ask, with `set_modules_to_forward_prefetch`. Here are both orders. `g3` gathers layer 3, `F3` and `B3` are its forward and backward, and `r3` reduces its gradients:

# %%
early = fsdp.order(lab.launch(fsdp_step, True, record=True).timeline())
orders = [("plain", " ".join(moves)), ("prefetch", " ".join(early))]
lab.table(orders, heads=["forward", "order of rank 0"])

# %% [markdown]
# Each layer ahead is one more whole layer in memory. What does it buy? Time under which a message can [hide](GLOSSARY.md#overlap-to-hide-communication), and for that the message must run beside the computation. Look at the picture above once more: no message lies over a computation, and its upper line says "communication hidden 0.0 %". With gloo the thread that issues an all-gather waits for it. With NCCL, and a GPU for each rank, it goes to a stream of its own while the computation runs on. So on this backend prefetch changes the order, and gains nothing.
#
# (A small waste: `g4` comes again right after `F4`, because the last layer is freed and gathered again at once. If the root has parameters of its own, `fully_shard` keeps those.)

# %% [markdown] sections="8.4.2"
# ## What is a unit?
#
# Each call of `fully_shard` makes its module a **unit**: all of its parameters that no inner call has taken before. A unit is gathered with one message and freed as one. That is why children come first and the root last. Here is a model of eight layers (an embedding, six blocks and a head), wrapped in four ways. Which one has the lowest peak?

# %%
UNITS = {
    "the root alone": lambda net: [],
    "pairs of layers": lambda net: [
        list(net.layers[i : i + 2]) for i in range(0, 8, 2)
    ],
    "each layer": lambda net: list(net.layers),
    "each Linear": lambda net: [m for m in net.modules() if type(m) is torch.nn.Linear],
}


def in_units(way):
    with memory.watch() as watched, traffic.count() as counted:
        net = model.Transformer(6, 64, 4, max_len=32)
        for unit in [*UNITS[way](net), net]:
            fully_shard(unit)
        watched.mark("step")
        tokens, targets = model.story_tokens(1, 32, seed=dist.get_rank())
        model.loss(net(tokens), targets).backward()
    return watched.footprint().peak_bytes, counted.calls["all_gather"]


# %%
leanest = lab.guess("the way with the lowest peak", choices=tuple(UNITS))

# %%
found = {way: lab.launch(in_units, way)[0] for way in UNITS}
leanest.score(min(found, key=lambda way: found[way][0]))

# %%
lab.table(
    {"way": way, "peak_bytes": peak, "all-gathers": gathers}
    for way, (peak, gathers) in found.items()
)

# %% [markdown]
# With the root alone, everything is gathered at once and stays, because a root is not freed after its forward: one message and the highest peak. With each `Linear` by itself there are many small messages, and each of them pays its latency. What it saves beyond whole layers is little, because the activations are still there. So one unit for each block is the usual choice.
#
# ### Exercise 1. Wrap within a budget
#
# `net` is an `nn.Sequential` of layers of different sizes. Call `fully_shard` so that never more than `budget_bytes` of parameters are gathered at a time (each layer alone fits). Use as few all-gathers as you can; a unit is made of consecutive layers, as in `pairs of layers` above. Gradients must come out right, and every parameter must be sharded.


# %%
def my_wrap(net, budget_bytes):
    """Shards net in place."""
    ### BEGIN SOLUTION
    units, room = [], 0
    for layer in net:
        num_bytes = sum(weight.nbytes for weight in layer.parameters())
        if num_bytes > room:
            units.append([])
            room = budget_bytes
        units[-1].append(layer)
        room -= num_bytes
    for unit in units:
        fully_shard(unit, reshard_after_forward=True)
    fully_shard(net)
    ### END SOLUTION


# %%
check.wrap_within(my_wrap)

# %%
check.hint("wrap_within")

# %% [markdown] sections="8.4.2, S6"
# ## Mixed precision
#
# `MixedPrecisionPolicy(param_dtype, reduce_dtype)` says in which type parameters are gathered and used, and in which type gradients are reduced. The slices themselves stay in fp32, and so does the optimizer. They are the [master weights](GLOSSARY.md#master-weights) of chapter 05, sharded. What does bf16 do to the bytes of an all-gather?

# %%
factor = lab.guess("all-gather in bf16, as a share of fp32's bytes", between=(0, 1))


# %%
def in_16_bit(params, reduced):
    torch.manual_seed(0)
    policy = torch.distributed.fsdp.MixedPrecisionPolicy(params, reduced)
    net = sharded(model.Transformer(2, 64, 4, max_len=32), mp_policy=policy)
    tokens, targets = model.story_tokens(8, 32, seed=dist.get_rank())
    with traffic.count() as counted:
        (model.loss(net(tokens).float(), targets) / 1024).backward()
    grads = [each.grad.full_tensor().flatten() for each in net.parameters()]
    held = sum(each.to_local().nbytes for each in net.parameters())
    return torch.cat(grads), held, dict(counted.payload_bytes)


# %%
bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
pairs = [(fp32, fp32), (bf16, fp32), (bf16, bf16), (fp16, fp16)]
found = [lab.launch(in_16_bit, *pair)[0] for pair in pairs]
gathered = [payload["all_gather"] for _, _, payload in found]
factor.score(gathered[1] / gathered[0])

# %%
right = found[0][0]
lab.table(
    {
        "types": f"{params}, {reduced}".replace("torch.", ""),
        "gathered_bytes": payload["all_gather"],
        "reduced_bytes": payload["reduce_scatter"],
        "held_bytes": held,
        "became_zero_share": ((grad == 0) & (right != 0)).float().mean().item(),
    }
    for (params, reduced), (grad, held, payload) in zip(pairs, found)
)

# %% [markdown] sections="8.4.2, S6"
# Messages halve, and what a rank holds does not. Look at the last column. The loss was divided by 1024, as if we accumulated so many microbatches, and in fp16 part of the gradients became zero. fp16 needs the [loss scale](GLOSSARY.md#loss-scale) of chapter 05; bf16 does not. bf16 for both types is sound, and fp32 for a sum over many ranks is sounder.
#
# <details><summary>Erratum S6: fp16 without a loss scale</summary>
#
# The FSDP loop of section S6, and the demo project, set `param_dtype=torch.float16` and never scale the loss. Small gradients are lost without a word: see the last row above. Take bf16, or `torch.amp.GradScaler`.
#
# </details>
#
# ## The four strategies
#
# Papers and configuration files speak of FSDP1's strategies. Each has its counterpart in `fully_shard`: whether a unit is freed after the forward, and on which **mesh** of ranks it is cut. A mesh of 2 × 2 shards within a pair of ranks and replicates between the pairs.

# %%
STRATEGIES = {
    "FULL_SHARD": ((4,), True),
    "SHARD_GRAD_OP": ((4,), False),
    "HYBRID_SHARD": ((2, 2), True),
    "NO_SHARD": ((4, 1), True),
}


def new_way(shape, freed):
    names = ("replicate", "shard")[-len(shape) :]
    device = torch.get_default_device().type
    mesh = dist.init_device_mesh(device, shape, mesh_dim_names=names)
    net = model.Transformer(1, 64, 4, max_len=32)
    return one_step(sharded(net, mesh=mesh, reshard_after_forward=freed))


def one_step(net):
    """The bytes of states that this rank holds after a step, and what it called."""
    optimizer = torch.optim.AdamW(net.parameters())
    tokens, targets = model.story_tokens(2, 32, seed=dist.get_rank())
    with traffic.count() as counted:
        model.loss(net(tokens), targets).backward()
    optimizer.step()
    held = sharding.shards(net, optimizer).rank_bytes[dist.get_rank()]
    return int(held), str(dict(counted.calls))


# %% [markdown]
# Under FULL_SHARD each of four ranks holds a quarter of the states. How many quarters does it hold under NO_SHARD?

# %%
quarters = lab.guess("quarters of the states under NO_SHARD", between=(1, 4))

# %%
new = {name: lab.launch(new_way, *how, ranks=4)[0] for name, how in STRATEGIES.items()}
quarters.score(new["NO_SHARD"][0] / new["FULL_SHARD"][0])

# %%
lab.table(
    {"strategy": name, "held_bytes": held, "calls": calls}
    for name, (held, calls) in new.items()
)

# %% [markdown] sections="8.4.2"
# - **FULL_SHARD** is our `Freed`, and the same as ZeRO 3 of chapter 06.
# - **SHARD_GRAD_OP** is our `Kept`. It resembles ZeRO 2, but between two steps its parameters are sharded as well.
# - **HYBRID_SHARD** holds half of the states here. The pairs exchange slices of gradients by an all-reduce. On a cluster the group that shards is one machine, because its links are fast.
# - **NO_SHARD** is DDP: everything on every rank, and gradients that are all-reduced, one message for each unit where DDP fills buckets.
#
# No strategy does what ZeRO 1 does, which is to shard the optimizer alone. torch has `ZeroRedundancyOptimizer` for that.
#
# <details><summary>Erratum S6: NO_SHARD as "Stage 1", SHARD_GRAD_OP as "Stage 2"</summary>
#
# NO_SHARD shards nothing, so it is stage 0: the table above has the whole states in its last row. SHARD_GRAD_OP is nearly stage 2.
#
# </details>
#
# ### The old class, and its names
#
# Does FSDP1 really do the same? We wrap the model in the old class, with three of the four strategies. HYBRID_SHARD is left out, because its default makes one group for each machine, and here there is one machine:


# %%
def old_way(name):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    net = model.Transformer(1, 64, 4, max_len=32)
    policy = ModuleWrapPolicy({type(layer) for layer in net.layers})
    net = FullyShardedDataParallel(
        net,
        device_id=torch.get_default_device(),
        sharding_strategy=ShardingStrategy[name],
        auto_wrap_policy=policy,
    )
    return one_step(net)


# %%
names = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
old = {name: lab.launch(old_way, name, ranks=4)[0] for name in names}
lab.table(
    {"strategy": name, "FSDP1_bytes": old[name][0], "FSDP2_bytes": new[name][0]}
    for name in names
)

# %% [markdown] sections="8.4.2, S6"
# To the byte. The other arguments have other names today:
#
# | FSDP1 | FSDP2 |
# | --- | --- |
# | `auto_wrap_policy=` | `fully_shard` on each unit, then on the root |
# | `MixedPrecision(param_dtype, reduce_dtype, buffer_dtype)` | `MixedPrecisionPolicy(param_dtype, reduce_dtype)`; buffers: `net.to(...)` |
# | `backward_prefetch=BACKWARD_PRE` | always; more by `set_modules_to_backward_prefetch` |
# | `forward_prefetch=True` | `set_modules_to_forward_prefetch` |
# | `cpu_offload=CPUOffload(offload_params=True)` | `offload_policy=CPUOffloadPolicy()` |
# | `device_id=` | the mesh's device |
# | `no_sync()` | `set_requires_gradient_sync(False)` |
# | `net.clip_grad_norm_(1.0)` | `clip_grad_norm_(net.parameters(), 1.0)` of `torch.nn.utils` |
#
# `reshard_after_forward=` may also be a whole number, a compromise: after the forward a unit is kept in slices for so many ranks.

# %% [markdown] sections="S6"
# ## The training loop
#
# The loop is torch's own, but four places matter. They are numbered below: a mistake in any of them trains nothing, or something else, and no error tells you.


# %%
from torch.distributed.checkpoint import state_dict


def fsdp_loop(num_steps):
    torch.manual_seed(0)
    net = sharded(model.Transformer(2, 32, 2, max_len=32))  # 1 children, then the root
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)  # 2 of the slices
    log = {}
    for step in range(num_steps):
        batch = model.story_tokens(8, 32, seed=step)
        parts = (each.chunk(dist.get_world_size()) for each in batch)
        tokens, targets = (each[dist.get_rank()] for each in parts)
        optimizer.zero_grad()
        loss = model.loss(net(tokens), targets)
        loss.backward()
        own = [each.grad.to_local().norm() for each in net.parameters()]
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)  # 3 of all ranks
        optimizer.step()
        log = {"loss": loss.item(), "own norm": torch.stack(own).norm().item()}
        log["norm"] = norm.full_tensor().item()
    options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = state_dict.get_model_state_dict(net, options=options)  # 4 called by all
    return {**log, "tensors to save": len(weights)}


# %%
two, one = lab.launch(fsdp_loop, 4, ranks=2), lab.launch(fsdp_loop, 4, ranks=1)
lab.table([{"ranks": 2, **two[0]}, {"ranks": 2, **two[1]}, {"ranks": 1, **one[0]}])

# %% [markdown]
# The rows are rank 0 and rank 1 of two, and one process with the whole batch, after four steps. What to look for:
#
# 1. `fully_shard` takes children first, then the root.
# 2. An optimizer made *before* `fully_shard` holds the old, whole parameters, and trains nothing.
# 3. `own norm` differs between the ranks, and `norm` does not: `clip_grad_norm_` on DTensors sums over all ranks, and gives what one process gives.
# 4. Saving gathers, so every rank must call it. The weights arrive on rank 0 alone.
#
# <details><summary>Erratum S6: the loop calls <code>fsdp_model.backward</code> and <code>fsdp_model.step</code></summary>
#
# Those are methods of a DeepSpeed engine; FSDP has neither. Three more names in the section's code don't exist or are never imported, `default_auto_wrap_policy`, `MixedPrecision` and `BackwardPrefetch.PRE_FORWARD`, and the demo project writes `SHARD_GRAD_OP` without its class. The next cell asks torch.
#
# </details>

# %%
from torch.distributed import fsdp as old_fsdp

lab.table(
    [
        ("backward", hasattr(old_fsdp.FullyShardedDataParallel, "backward")),
        ("step", hasattr(old_fsdp.FullyShardedDataParallel, "step")),
        ("PRE_FORWARD", hasattr(old_fsdp.BackwardPrefetch, "PRE_FORWARD")),
        (
            "default_auto_wrap_policy",
            hasattr(old_fsdp.wrap, "default_auto_wrap_policy"),
        ),
    ],
    heads=["name", "it exists"],
)

# %% [markdown] sections="D-fsdp"
# ### A set-up for a real script
#
# Put together, this is what a script of your own would call. It keeps the parameters from forward to backward, computes in bf16, and sums in fp32:


# %%
def setup_fsdp_model(net):
    """One unit per layer, kept whole from forward to backward; bf16, sums in fp32."""
    policy = torch.distributed.fsdp.MixedPrecisionPolicy(bf16, fp32)
    return sharded(net, mp_policy=policy, reshard_after_forward=False)


def demo(num_steps):
    torch.manual_seed(0)
    net = setup_fsdp_model(model.Transformer(2, 32, 2, max_len=32))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = {}
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
        loss = model.loss(net(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)  # for the log alone
        losses[step] = mean.item() / dist.get_world_size()
    return losses


# %%
losses = lab.launch(demo, 15)[0]
lab.curves(measured={"bf16": losses}, x="step", y="loss", title="FSDP trains")

# %% [markdown] sections="D-fsdp"
# <details><summary>Erratum D-fsdp: <code>setup_fsdp_model</code> of the demo project</summary>
#
# It raises a NameError (`SHARD_GRAD_OP` without `ShardingStrategy`). It names no layers, so there is one unit, gathered at once: the first row of the table of units. It uses fp16 everywhere, and its loop has no scaler. The all-reduce of the *loss* after `backward` is for the log; gradients are reduced without it.
#
# </details>
#
# ### Accumulation
#
# In [gradient accumulation](GLOSSARY.md#gradient-accumulation) several backwards come before one update. DDP then sends once, with `no_sync`. FSDP can do the same: `set_requires_gradient_sync(False)` leaves the gradients of a microbatch unreduced. Four microbatches, five units. How many reduce-scatters, if we wait with all of them until the last microbatch?

# %%
scatters = lab.guess("reduce-scatters of four microbatches, waiting", between=(0, 20))


# %%
def accumulate(each_time):
    torch.manual_seed(0)
    tokens, targets = model.story_tokens(4, 32, seed=dist.get_rank())
    with memory.watch() as watched, traffic.count() as counted:
        net = sharded(model.Transformer(3, 64, 4, max_len=32))
        watched.mark("step")
        for k in range(4):
            net.set_requires_gradient_sync(each_time or k == 3)
            (model.loss(net(tokens[k : k + 1]), targets[k : k + 1]) / 4).backward()
    peak = watched.footprint().peak_bytes
    return {"scatters": counted.calls["reduce_scatter"], "peak_bytes": peak}


# %%
waiting, each = lab.launch(accumulate, False)[0], lab.launch(accumulate, True)[0]
scatters.score(waiting["scatters"])

# %%
lab.table([{"reduced": "each time", **each}, {"reduced": "at the end", **waiting}])

# %% [markdown]
# A quarter of the messages, and a higher peak: until the last microbatch the gradients lie there whole, and that is what sharding was to save. So wait only where messages are what you lack.

# %% [markdown] sections="8.4.4"
# ## What sharding leaves: activations
#
# Sharding does nothing for activations. [Activation checkpointing](GLOSSARY.md#activation-checkpointing), or recomputation, keeps only the input of a block, and runs its forward again in the backward. Chapter 05 measured it on one device. With FSDP two questions are new. Does the second forward gather the weights once more? And what does it cost in time, when messages cost time as well?
#
# A backward takes about two forwards, so by theory a step costs 4 instead of 3, and the ratio is 4/3. We measure the processor's time, on pretend devices (more of them below).

# %%
price = lab.guess("processor time with recomputation, over without", unit="ratio")


# %%
from functools import partial
from torch.utils.checkpoint import checkpoint


def with_blocks(way):
    """The sharded model, its blocks recomputed or not."""
    net = model.Transformer(4, 64, 4, max_len=64)
    for block in net.layers[1:-1] if way == "recompute" else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return sharded(net)


# %%
import time
from statistics import median


def step_of_both(num_rounds=8):
    tokens, targets = model.story_tokens(4, 64, seed=dist.get_rank())
    found = {}
    for way in ("keep", "recompute"):
        net = with_blocks(way)
        torch.accelerator.reset_peak_memory_stats()
        with traffic.count() as counted:
            model.loss(net(tokens), targets).backward()
        peak = torch.accelerator.max_memory_allocated()
        row = {"peak_bytes": peak, "all-gathers": counted.calls["all_gather"]}
        found[way] = net, row, []
        del net
    for way in num_rounds * list(found):  # in turn: what else runs here meets both
        began = time.process_time()
        model.loss(found[way][0](tokens), targets).backward()
        found[way][2].append(time.process_time() - began)
    return {way: (row, median(seconds)) for way, (_, row, seconds) in found.items()}


# %%
found = lab.launch(step_of_both, devices=lab.pretend())[0]
price.score(found["recompute"][1] / found["keep"][1])

# %%
lab.table({"blocks": way, **row} for way, (row, _) in found.items())

# %% [markdown] sections="8.4.4"
# Two answers. The number of all-gathers is the same, because the second forward runs while the block is gathered for its backward anyway. And the peak falls, as it did on one device.
#
# The time has more in it than the formula knows. FSDP and gloo handle messages and do that once, so the ratio falls. On blocks as small as these the bookkeeping of `checkpoint` counts as well, so it rises. In a model that needs FSDP, products outweigh both, and the price comes near to 4/3; chapter 05 measures that case.
#
# <details><summary>Erratum 8.4.4: <code>apply_activation_checkpointing</code></summary>
#
# It lives in a module whose name begins with an underscore, `torch.distributed.algorithms._checkpoint`, so it may change or go. The public way is `torch.utils.checkpoint`, as above; both do the same.
#
# </details>

# %% [markdown] sections="8.4.4"
# ## Offload
#
# And if it still doesn't fit? The host has memory, too. `CPUOffloadPolicy()` [offloads](GLOSSARY.md#offload): it keeps the slices, their gradients and the optimizer in the host's memory. A slice is copied to the device for each all-gather, and its gradient back after the reduce-scatter.
#
# To measure that we need a device with a memory of its own. So here ranks stand on **pretend devices** even where there are GPUs: real tensors in a memory as small as we like, with a GPU's rules and words. Copies to the host are counted. A pretend device can't show how long they take on a GPU's link, so for time we shall use a formula.


# %%
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy


def on_device(way, sequences=1, num_steps=3):
    """The peak of the device's memory, bytes copied in a step, and its loss."""
    torch.manual_seed(0)
    with torch.device("cpu"):  # on the host, for the device may be too small
        net = model.Transformer(6, 256, 4, max_len=64)
    policy = CPUOffloadPolicy() if way == "offload" else OffloadPolicy()
    if way == "whole":
        net.to(torch.get_default_device())
    else:
        sharded(net, offload_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batch = model.story_tokens(sequences, 64, seed=dist.get_rank())
    for _ in range(num_steps):
        devices.pretend.reset_copied()
        loss = model.loss(net(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    peak, copied = torch.accelerator.max_memory_allocated(), devices.pretend.copied()
    moved = {"in_bytes": copied.to_device_bytes, "out_bytes": copied.to_host_bytes}
    return {"peak_bytes": peak, **moved, "loss": loss.item()}


# %% [markdown]
# The model has 4.9 million parameters and trains in fp32, so 16 bytes for each: 78 MB of states. The device has 64 MiB, which is 67 MB. We know what is coming:

# %% tags=["raises-exception"]
large = lab.pretend(memory_mib=64)
lab.launch(on_device, "whole", 4, ranks=1, devices=large)

# %% [markdown]
# These are CUDA's words, with "pretend" in place of "CUDA". Now four such devices with FSDP, a sequence each. What is the peak on one of them?

# %%
peak = lab.guess("peak of a device, FSDP on four, MB", between=(0, 67))

# %%
on_four = lab.launch(on_device, "fsdp", ranks=4, devices=large)
peak.score(on_four[0]["peak_bytes"] / 1e6)

# %% [markdown]
# It fits. And on devices of 24 MiB (25 MB) it would not; there we offload:

# %%
small = lab.pretend(memory_mib=24)
offloaded = lab.launch(on_device, "offload", ranks=4, devices=small)
lab.table(
    [{"states": "sharded", **on_four[0]}, {"states": "on the host", **offloaded[0]}]
)

# %% [markdown]
# The loss is the same to rounding. Every slice went to the device twice, and its gradient came back once: three times 4 bytes for a quarter of the parameters.
#
# Is the saving a constant? Try more sequences, with and without offload, on devices without a limit:

# %%
free = lab.pretend()
sizes = (1, 4, 16)
peaks = {
    way: {
        n: lab.launch(on_device, way, n, 1, devices=free)[0]["peak_bytes"]
        for n in sizes
    }
    for way in ("fsdp", "offload")
}

# %%
saved = {n: 1 - peaks["offload"][n] / peaks["fsdp"][n] for n in sizes}
names = {"x": "sequences on each rank", "y": "saved", "unit": "share"}
lab.curves(
    measured={"two ranks": saved}, **names, title="What offload saves of the peak"
)

# %% [markdown]
# The larger the batch, the smaller the share, because activations stay where they are. It also falls with the number of ranks, since there is less on each to move away.
#
# And the time? Per step $P/N$ parameters go up twice and come down once, 4 bytes each, while a rank computes $6P$ FLOPs for each token. $P$ cancels. With 25 GB/s (PCIe 4), 200 TFLOP/s of real compute and nothing overlapped, the copies take so many times as long as the computation (predicted):


# %%
def copies_over_compute(ranks, tokens):
    return (3 * 4 / ranks / 25e9) / (6 * tokens / 200e12)


tokens = (1024, 4096, 16384, 65536)
lines = {f"N = {n}": {t: copies_over_compute(n, t) for t in tokens} for n in (1, 8, 64)}
names = {"x": "tokens of a rank in a step", "y": "copies over compute"}
lab.curves(predicted=lines, log_x=True, log_y=True, **names, title="Offload: its price")

# %% [markdown] sections="8.4.4, 8.11.1"
# So offload is for many tokens in a step, where its price nearly disappears. The optimizer on the host comes on top.
#
# <details><summary>Erratum 8.4.4: offload "saves another 30 %, 20 to 40 % slower"</summary>
#
# Neither is a constant. The saving is the states' share of the peak (the curve of dots above), and the price depends on the tokens of a rank and on the link (the lines).
#
# </details>
#
# <details><summary>Erratum 8.11.1: <code>fsdp_cpu_ram_efficient_loading</code> as "CPU offload"</summary>
#
# That setting is about *loading*. Only rank 0 reads the weights; the others build the model on the `meta` device, which holds no bytes, and get their slices from rank 0. In training nothing is on the host. The next cell loads both ways.
#
# </details>


# %%
def load(efficient):
    with memory.watch() as watched:
        watched.mark("load")
        reads = dist.get_rank() == 0 or not efficient
        weights = model.Transformer(4, 64, 4).state_dict() if reads else {}
        with torch.device("meta"):
            net = sharded(model.Transformer(4, 64, 4))
        net.to_empty(device=torch.get_default_device())
        options = state_dict.StateDictOptions(
            full_state_dict=True, broadcast_from_rank0=efficient
        )
        state_dict.set_model_state_dict(net, weights, options=options)
        del weights
    return watched.footprint().peak_bytes


# %%
runs = {"all read": lab.launch(load, False), "rank 0 reads": lab.launch(load, True)}
lab.table(
    {"loading": name, "rank 0_bytes": run[0], "rank 1_bytes": run[1]}
    for name, run in runs.items()
)

# %% [markdown] sections="8.4.3"
# ## Through Accelerate
#
# Many people reach FSDP by [Accelerate](https://huggingface.co/docs/accelerate) and a configuration file (chapter 04). Here is such a file, as a dict, and a script that knows nothing of FSDP:

# %%
config = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "Block",
        "fsdp_cpu_ram_efficient_loading": False,
    },
    "mixed_precision": "no",
    "num_processes": 2,
}

# %%
SCRIPT = """\
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedType, PartialState
from labkit import model

state = PartialState(cpu=not torch.cuda.is_available())
print("Accelerate found", state.distributed_type.value)
state.distributed_type = DistributedType.MULTI_GPU  # the trap, see below
accelerator = Accelerator()
torch.manual_seed(0)
net = model.Transformer(4, 64, 4, max_len=32)
net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
batch = model.story_tokens(2, 32, seed=accelerator.process_index)
tokens, targets = (each.to(accelerator.device) for each in batch)
for step in range(2):
    optimizer.zero_grad()
    accelerator.backward(model.loss(net(tokens), targets))
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
held = sum(each.to_local().numel() for each in net.parameters())
whole = sum(each.numel() for each in net.parameters())
print(type(net).__name__, f"holds {held / whole:.0%} of the parameters")
dist.destroy_process_group()
"""

# %%
import tempfile
from pathlib import Path

folder = tempfile.TemporaryDirectory()
script = Path(folder.name, "train.py")
script.write_text(SCRIPT)
done = lab.launch_script(script, using="accelerate", config=config)
print(done.logs[0])

# %% [markdown] sections="8.4.3"
# Rank 0 holds half of the parameters: the file has sharded the model, and the script has not changed.
#
# There is one trap. On a machine without a GPU, Accelerate 1.15 ignores the FSDP part of the file, without a word, and trains with DDP. So the script prints what Accelerate found, and then tells it to treat its ranks as it would GPUs'. With a GPU for each rank that line is not needed.
#
# <details><summary>Erratum 8.4.3: <code>Accelerator(fsdp_plugin={...})</code></summary>
#
# The section gives the settings as a dict. `Accelerator` wants a `FullyShardedDataParallelPlugin`, and for FSDP2 that refuses or changes some of the section's settings: `sharding_strategy` became `reshard_after_forward`, and `forward_prefetch` and `backward_prefetch` are gone. The next cell is the dict.
#
# </details>

# %%
from accelerate import Accelerator

try:
    Accelerator(fsdp_plugin={"sharding_strategy": "FULL_SHARD"})
except TypeError as error:
    print(error)

# %% [markdown]
# ## When is it worth it?
#
# Whenever the states don't fit, and before you cut the model itself: FSDP needs no change to the model's code. What it asks for is bandwidth, half as many bytes again as DDP, in every step. It is the wrong choice for a model that fits whole with room to spare, and across slow links, where the messages take longer than the computation that should hide them.
#
# Does LLaMA-13B fit on four A100 of 40 GB, with FSDP? How many GB of states does each of them hold, at the 16 bytes of chapter 01?

# %%
states = lab.guess(
    "states on each of four cards, 13 B parameters, GB", between=(0, 208)
)

# %%
states.score(13 * 16 / 4)

# %% [markdown] sections="8.10"
# It does not fit: 52 GB, and activations, gathered layers and buffers come on top.
#
# <details><summary>Erratum 8.10: LLaMA-13B on four A100 of 40 GB</summary>
#
# The textbook says that FSDP and activation checkpointing are enough. With master weights it takes six such cards for the states alone, `13 * 16 / 40` is 5.2. In pure bf16 they fit, 8 bytes a parameter, but small updates are lost (chapter 05); or with offload. The same section calls the effective batch 32: two sequences, 16 microbatches and four ranks are $2 \cdot 16 \cdot 4 = 128$.
#
# </details>
#
# Now our own 7 B model on eight cards. Before this chapter each held everything; after it each holds an eighth:

# %%
before = planner.Plan(model="LLaMA 7B", gpus=8, batch=64)
planner.card(before, before.but(zero=3))

# %% [markdown]
# (The planner writes FSDP's FULL_SHARD as `zero=3`. Its usual recipe adds gradients up in fp32, so it counts 18 bytes per parameter and not 16.) The card says "does not fit" on the left; on the right half of the card and more is free, for longer sequences or a larger batch.
#
# ## Exercises
#
# A check never stops the notebook. It runs your answer on real ranks, at sizes that are not shown, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### Exercise 2. A step in slices
#
# Build FSDP's step without autograd functions, for rows that don't divide. `shards[i]` are this rank's rows of weight i, as `torch.chunk` cuts `num_rows[i]` rows: the last ranks may have fewer, or none. A layer is `x = torch.tanh(x @ weight.T)`; the loss is the mean square of the last `x`. Return the gradient of each shard, the mean over all ranks. Two all-gathers and one reduce-scatter for each weight, and never more than a few whole weights alive.


# %%
def my_step(shards, num_rows, x):
    """The gradient of each shard: the mean over all ranks."""
    ### BEGIN SOLUTION
    size, kept, found, pad = dist.get_world_size(), [], [], torch.nn.functional.pad

    def whole(mine, rows):
        most = math.ceil(rows / size)
        everyone = mine.new_empty(most * size, mine.shape[1])
        dist.all_gather_single(everyone, pad(mine, (0, 0, 0, most - len(mine))))
        return everyone[:rows]

    for mine, rows in zip(shards, num_rows):
        kept.append(x)
        x = torch.tanh(x @ whole(mine, rows).T)
    gradient = 2 * x / x.numel()
    for mine, rows, x in reversed(list(zip(shards, num_rows, kept))):
        weight, x = whole(mine, rows).requires_grad_(), x.requires_grad_()
        output = torch.tanh(x @ weight.T)
        to_weight, gradient = torch.autograd.grad(output, (weight, x), gradient)
        out = mine.new_empty(math.ceil(rows / size), len(x.T))
        padded = pad(to_weight, (0, 0, 0, len(out) * size - rows))
        dist.reduce_scatter_single(out, padded)
        found.append(out[: len(mine)] / size)
    return found[::-1]
    ### END SOLUTION


# %%
check.sharded_step(my_step)

# %%
check.hint("sharded_step")

# %% [markdown]
# ### Exercise 3. Repair a training
#
# The loop below has four mistakes. It runs, and trains nothing. `steps` holds, for each update, a list of this rank's microbatches. Write it right: SGD with learning rate 0.1 and momentum 0.9, on the mean of `mse_loss` over microbatches and ranks, the gradient clipped as a whole to `max_norm`. `net` is an `nn.Sequential`, to be sharded in place.


# %%
def broken(net, steps, max_norm):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for layer in [*net, net]:
        fully_shard(layer)
    for microbatches in steps:
        for x, y in microbatches:
            torch.nn.functional.mse_loss(net(x), y).backward()
        own = [weight.grad.to_local() for weight in net.parameters()]
        factor = max_norm / torch.stack([each.norm() for each in own]).norm()
        for each in own:
            each *= factor.clamp(max=1)
        optimizer.step()


# %%
def my_training(net, steps, max_norm):
    """Shards net in place, and trains it."""
    ### BEGIN SOLUTION
    for layer in [*net, net]:
        fully_shard(layer)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for microbatches in steps:
        optimizer.zero_grad()
        for x, y in microbatches:
            (torch.nn.functional.mse_loss(net(x), y) / len(microbatches)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
    ### END SOLUTION


# %%
check.train_sharded(my_training)

# %%
check.hint("train_sharded")

# %% [markdown]
# ## Summary
#
# - FSDP is data parallelism with slices: all-gather a unit, compute, free it, reduce-scatter its gradient. The weights come out as DDP's.
# - Each of N ranks holds an N-th of the states. At the peak it also holds its activations, and some copies of the largest unit. So make each block a unit.
# - FULL_SHARD sends 1.5 times DDP's bytes, SHARD_GRAD_OP as many as DDP. NO_SHARD *is* DDP, and HYBRID_SHARD shards within a group and replicates between groups.
# - `fully_shard` children first, the root last; then the optimizer; then `loss.backward()`, clipping over all ranks, `optimizer.step()`.
# - Mixed precision halves messages and leaves the states. Recomputation takes activations away for up to a third more compute. Offload takes states off the device, and its price depends on the tokens in a step.
#
# Words learned: [shard](GLOSSARY.md#shard), [prefetch](GLOSSARY.md#prefetch), [offload](GLOSSARY.md#offload), [payload](GLOSSARY.md#payload) and [wire](GLOSSARY.md#wire).
#
# Next: chapter 08 cuts the model into stages, and sends only activations.
#
# ## Further reading
#
# - Zhao et al. 2023, *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, [arXiv 2304.11277](https://arxiv.org/abs/2304.11277)
# - Rajbhandari et al. 2020, *ZeRO*, [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
# - [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), in PyTorch's documentation
# - Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, [arXiv 1604.06174](https://arxiv.org/abs/1604.06174)
# - [FSDP1 and FSDP2 in Accelerate](https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2)
#
# *Sections 8.4.1 to 8.4.4, 8.10, 8.11.1, S6 and D-fsdp of the source material.*

# %%
check.status()
