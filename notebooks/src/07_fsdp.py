# ---
# jupyter:
#   labkit:
#     sections: ["8.4.1", "8.4.2", "8.4.3", "8.4.4", "S6", "D-fsdp"]
#     needs: ["two CPU cores"]
#     minutes: 75
# ---

# %% [markdown]
# # FSDP
#
# *Sections 8.4.1 to 8.4.4, S6 and the FSDP set-up of the demo project (D-fsdp) of the source material. About 75 minutes. No GPU is needed.*
#
# Data parallelism keeps the whole model, its gradients and its optimizer states on every rank. Fully sharded data parallelism (FSDP) keeps a slice of them on each, and puts a layer together only while it computes.
#
# You will write it by hand in fewer than fifty lines, read its collectives from a trace, and replace it by `fully_shard` (FSDP2). Then the names of `FullyShardedDataParallel` (FSDP1) that the source uses, each beside what does the same today; wrapping, mixed precision, offload and activation checkpointing, measured; and the same through Accelerate.

# %%
import labkit as lab

lab.begin("en")
import math
import torch
import torch.distributed as dist
from labkit.pictures import bytes_held, curves, scene
from labkit import footprint
from labkit.sharding import states
from labkit import model, sharding, timeline, widgets
from labkit.pictures.curves import Series
from labkit.fsdp import check
from labkit.units import format_bytes

# %% [markdown] sections="8.4.1"
# ## What a rank holds
#
# Section 8.4.1 has a table: a DDP rank needs O(M) memory, an FSDP rank O(M/N). Below a small transformer, AdamW in fp32, on four ranks, read out of the live engines while all gradients are there: `sharding.Step` is one training step of two microbatches, and this is the moment between them. **Predict** the bytes of an FSDP rank, as a share of a DDP rank's.

# %%
my_share = lab.guess(
    {
        "en": "what an FSDP rank holds, as a share of a DDP rank's bytes",
        "zh": "一个 FSDP rank 所持的字节，占 DDP rank 的几成",
    },
    between=(0, 1),
)

# %%
steps = {name: sharding.Step(engine=name, ranks=4) for name in ("ddp", "fsdp")}
runs = {name: step.run() for name, step in steps.items()}
held = {name: step.measured(runs[name]) for name, step in steps.items()}
for name, shards in held.items():
    parts = {
        part: per_rank[0] for part, per_rank in shards.bytes_by("category").items()
    }
    print(
        f"{name:<5}",
        *(f"{part} {format_bytes(num_bytes):<9}" for part, num_bytes in parts.items()),
        "ranks:",
        *(format_bytes(num_bytes) for num_bytes in shards.rank_bytes),
    )
my_share.score(held["fsdp"].rank_bytes.max() / held["ddp"].rank_bytes.max())

# %% [markdown]
# Parameters, gradients and both of Adam's moments: all of it a quarter, but for some padding. Which rank holds what, predicted beside measured:

# %%
steps["fsdp"].compare()

# %% [markdown]
# But that is what lies there **between** two computations. Activations are no part of M, and to compute, a layer must be whole. The same run over its step: each bar is the highest point of a moment, `F3` the forward of layer 3, `B3` its backward. It is the second microbatch, so the gradients of the first are there from the start. At `step` more is measured than predicted wherever the ranks have a device: there AdamW updates all its tensors in one go and needs copies of them for a moment; on the CPU it takes one after the other, and that is what is predicted.

# %%
predicted = steps["fsdp"].footprint()
widgets.show(
    bytes_held.footprint(predicted, runs["fsdp"][0]["footprint"], title="FSDP")
)

# %%
largest = 4 * max(unit.num_params for unit in steps["fsdp"].units())
print(
    f"at the peak   states   activations   the rest, in largest layers ({format_bytes(largest)})   all   predicted, at"
)
for name, step in steps.items():
    found, expected = runs[name][0]["footprint"], step.footprint()
    parts = dict(zip(footprint.PARTS, found.num_bytes[found.totals.argmax()]))
    rest = parts["gathered"] + parts["temporary"]
    print(
        f"{name:<11} {format_bytes(found.peak_bytes - rest - parts['activations']):>8} {format_bytes(parts['activations']):>13} "
        f"{rest / largest:20.1f} {format_bytes(found.peak_bytes):>23} {format_bytes(expected.peak_bytes):>10}, {expected.peak}"
    )

# %% [markdown] sections="8.4.1"
# So O(M/N) is right for the states. The peak has activations on top, and about four times the largest layer: its weights, its gradients, the next layer, which is gathered already, and the copy out of which gradients are reduced. How large a "layer" is, you decide; see *wrapping*.
#
# ## By hand
#
# One layer, three moves: **all-gather** its slices into the whole, **compute**, **reduce-scatter** the gradient. Autograd can be told that the second is the derivative of the first:


# %%
class Gather(torch.autograd.Function):
    """Forward: everybody's slice in, the whole out. Backward: the whole gradient in, my slice of the mean out."""

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
# A layer's parameters lie behind each other in one flat tensor, padded to a multiple of the number of ranks; each rank keeps one part of it, and that is its only parameter. In the forward the layer works on views into the gathered tensor.


# %%
def views(flat, shapes):
    """The parameters in a flat tensor, by name."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    return {
        name: part.view(shape)
        for (name, shape), part in zip(shapes.items(), flat[: sum(sizes)].split(sizes))
    }


# %%
class Kept(torch.nn.Module):
    """A layer that is gathered in its forward, and stays whole until its backward is over."""

    def __init__(self, layer):
        super().__init__()
        size, flat = (
            dist.get_world_size(),
            torch.cat([weight.detach().flatten() for weight in layer.parameters()]),
        )
        self.shapes = {name: weight.shape for name, weight in layer.named_parameters()}
        parts = torch.nn.functional.pad(flat, (0, -len(flat) % size)).chunk(size)
        self.mine, self.layer = (
            torch.nn.Parameter(parts[dist.get_rank()].clone()),
            [layer.to("meta")],
        )

    def gather(self):
        return Gather.apply(self.mine)

    def forward(self, x):
        return torch.func.functional_call(
            self.layer[0], views(self.gather(), self.shapes), (x,)
        )


# %% [markdown]
# That is complete, and correct. But from the forward of a layer to its backward its weights lie there whole, and at the end of the forward that is the whole model. Autograd has saved views of them; it does not notice if the memory under them goes away in between and comes back:


# %%
class Freed(Kept):
    """The same, freed after the forward and gathered again when its backward begins."""

    def fill(self, whole):
        dist.all_gather_single(whole, self.mine.data)

    def forward(self, x):
        whole = self.gather()
        output = torch.func.functional_call(
            self.layer[0], views(whole, self.shapes), (x,)
        )
        storage, data, num_bytes = whole.untyped_storage(), whole.data, whole.nbytes

        def again(gradient):
            storage.resize_(num_bytes)
            self.fill(data)

        output.register_hook(again)  # runs when the gradient of the output is there
        storage.resize_(0)
        return output


# %% [markdown]
# **Predict.** After three steps of SGD with momentum, how far are the weights of `Kept` and `Freed` from DDP's? And where in the step will each of the three need the most memory?

# %%
my_difference = None


# %%
def train(wrapper, num_steps):
    """The weights of each layer as one tensor, and the bytes of the last step."""
    import torch
    import torch.distributed as dist
    from labkit.measure import memory
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    with memory.watch() as watched:
        net = engine = model.Transformer(4, 64, 4, max_len=32)
        if wrapper is DDP:
            engine = DDP(net)
        else:
            net.layers = torch.nn.ModuleList(wrapper(layer) for layer in net.layers)
        optimizer = torch.optim.SGD(engine.parameters(), lr=0.1, momentum=0.9)
        for step in range(num_steps):
            if step == num_steps - 1:
                watched.layers(net.layers)
            batch = model.story_tokens(6, 32, seed=step)
            tokens, targets = (
                part.chunk(dist.get_world_size())[dist.get_rank()].clone()
                for part in batch
            )
            loss = model.loss(engine(tokens), targets)
            loss.backward()
            optimizer.step(), optimizer.zero_grad()
    whole = [
        torch.cat(
            [
                Gather.apply(each).detach()
                if wrapper is not DDP
                else each.detach().flatten()
                for each in layer.parameters()
            ]
        )
        for layer in net.layers
    ]
    return whole, watched.footprint()


# %%
from torch.nn.parallel import DistributedDataParallel as DDP

launched = {
    wrapper.__name__: lab.launch(train, wrapper, 3, ranks=3, timeout_s=40)
    for wrapper in (DDP, Kept, Freed)
}
by_hand = {name: run[0] for name, run in launched.items()}
right = by_hand["DistributedDataParallel"][0]
print(f"{my_difference = }")
for name, (weights, _) in by_hand.items():
    off = max(
        (ours[: len(theirs)] - theirs).abs().max().item()
        for ours, theirs in zip(weights, right)
    )
    print(f"{name:<23} off DDP's weights by up to {off:.0e}")

# %%
labels = by_hand["Freed"][1].labels
widgets.show(
    curves.curves(
        [
            Series(name, range(len(labels)), found.totals.tolist())
            for name, (_, found) in by_hand.items()
        ],
        title={"en": "Bytes of rank 0 over a step", "zh": "rank 0 在一步之内的字节"},
        badge=", ".join(("measured", *launched["Freed"].notes)),
        x_format=lambda x: labels[round(x)],
        y_format=format_bytes,
    )
)

# %% [markdown]
# Equal to rounding. `Kept` climbs through the forward to the whole model and comes down through the backward; `Freed` climbs only by the activations. These two are FSDP's two main strategies: **SHARD_GRAD_OP** and **FULL_SHARD**. The price of the lower curve is one more all-gather per layer.

# %% [markdown] sections="8.4.1"
# ## What a step sends
#
# DDP all-reduces the gradients once: $2\frac{N-1}{N}M$ bytes sent per rank. FSDP gathers the parameters twice and reduce-scatters the gradients once. **Predict:** how many times DDP's bytes does FSDP send?

# %%
my_ratio = lab.guess(
    {
        "en": "FSDP's payload, in multiples of DDP's",
        "zh": "FSDP 的有效载荷是 DDP 的几倍",
    },
    unit="ratio",
)

# %% [markdown]
# Two counts, and both are true. **Payload**: the bytes handed to the collectives that were *called*, turned into what a ring sends for them (an all-gather of slices of $b$ bytes: $(N-1)b$; a reduce-scatter of $b$: $\frac{N-1}{N}b$; an all-reduce: twice that). **Wire**: what really went into TCP (counted on Linux; what NCCL sends over NVLink or PCIe is not in it).


# %%
def ring_bytes(payload, n):
    """What a rank of a ring sends for these collectives."""
    factors = {
        "all_gather": n - 1,
        "reduce_scatter": (n - 1) / n,
        "all_reduce": 2 * (n - 1) / n,
    }
    return sum(factors[name] * payload.get(name, 0) for name in factors)


one = {
    name: sharding.Step(engine=name, ranks=2, microbatches=1).run()[0]
    for name in ("ddp", "fsdp", "fsdp_grad_op")
}
num_bytes = 4 * sum(unit.num_params for unit in sharding.Step().units())
sent = {}
print(f"in multiples of DDP's ring ({2 * (2 - 1) / 2 * num_bytes:,.0f} bytes):")
for name, found in one.items():
    theory = states.step_volume(
        num_bytes, 2, 0 if name == "ddp" else 3, reshard=name == "fsdp"
    )
    sent[name] = ring_bytes(found["payload_bytes"], 2)
    sums = [sum(theory.values()), sent[name], found["sent_bytes"] or math.nan]
    print(
        f"{name:<13} predicted {sums[0] / num_bytes:.3f}   payload {sums[1] / num_bytes:.3f}   "
        f"wire {sums[2] / num_bytes:.3f}   calls {found['calls']}"
    )
my_ratio.score(sent["fsdp"] / sent["ddp"])

# %% [markdown] sections="8.4.1"
# By payload 1.5 times, exactly, and with the parameters kept (`fsdp_grad_op`) as much as DDP: an all-reduce *is* a reduce-scatter and an all-gather. The wire says 2.0 and 1.5, and that is gloo's doing: it has no reduce-scatter of its own and runs an all-reduce instead, which sends twice as much. NCCL has one. (A DDP step may also broadcast some hundred bytes: the order of its buckets.)
#
# ### In which order
#
# `fully_shard` labels its doings in a trace. In the line printed for each run, `g3` is the all-gather of layer 3, `F3` and `B3` the ends of its forward and backward, `r3` the reduction of its gradients. The second run has `set_modules_to_forward_prefetch`, the third looks two layers ahead in the backward, too.


# %%
def recorded(forward_ahead, backward_ahead):
    """A step of FSDP2 that gathers some layers early. Returns the highest points of forward and backward, in bytes."""
    import torch
    import torch.distributed as dist
    from labkit.measure import memory, trace
    from labkit import model
    from torch.distributed.fsdp import fully_shard

    net = model.Transformer(3, 64, 4, max_len=32)
    tokens, targets = model.story_tokens(2, 32, seed=dist.get_rank())
    for layer in [*net.layers, net]:
        fully_shard(layer)
    layers = list(net.layers)
    for index, layer in enumerate(layers):
        if forward_ahead:
            layer.set_modules_to_forward_prefetch(
                layers[index + 1 : index + 1 + forward_ahead]
            )
        if backward_ahead:
            layer.set_modules_to_backward_prefetch(
                layers[max(0, index - backward_ahead) : index][::-1]
            )
    model.loss(net(tokens), targets).backward()
    dist.barrier()
    with trace.record(operators=False):
        model.loss(net(tokens), targets).backward()
    with memory.watch() as watched:
        watched.mark("forward")
        loss = model.loss(net(tokens), targets)
        watched.mark("backward")
        loss.backward()
    return watched.footprint().totals.tolist()


# %%
import re

LETTERS = {
    "all_gather": "g",
    "post_forward": "F",
    "post_backward_accumulate": "B",
    "post_backward_reduce": "r",
}


def order(timeline):
    """What rank 0 did, in order."""
    rows = sorted(zip(timeline.start_us, timeline.label, timeline.rank))
    found = [
        re.fullmatch(r"FSDP::(\w+) \(layers\.(\d)\)", label)
        for _, label, rank in rows
        if rank == 0
    ]
    return " ".join(
        LETTERS[each[1]] + each[2] for each in found if each and each[1] in LETTERS
    )


traces = {
    ahead: lab.launch(recorded, *ahead, ranks=2, timeout_s=40)
    for ahead in ((0, 0), (1, 0), (1, 2))
}
for ahead, run in traces.items():
    print(
        f"ahead {ahead}: forward {format_bytes(run[0][0])}, backward {format_bytes(run[0][1])} beside the states\n"
        f"  {order(run.timeline())}"
    )

# %% [markdown]
# Read the first line. Forward: gather, compute, next. In the backward `g` stands *before* `B` of the layer above: FSDP gathers the next layer before it computes this one, without being asked. That is prefetch, and FSDP1 calls it `BackwardPrefetch.BACKWARD_PRE`. In the forward it must be asked for (FSDP1: `forward_prefetch=True`). Each layer ahead is one more whole layer in memory. (The forward is highest in the last block, and the layer ahead of that is the head, a small one.)
#
# (The last layer is gathered again right after its forward, for nothing; the root, if it has parameters, is not: `fully_shard` keeps it.)
#
# What prefetch gains is time under which a message can hide. It needs messages that run beside the computation. Here they do not:


# %%
def waited_for(timeline):
    """All-gathers that lie wholly inside the call that issued them, and all of them."""
    inside = [
        (start, end)
        for start, end, label in zip(timeline.start_us, timeline.end_us, timeline.label)
        if label.startswith("FSDP::all_gather (")
    ]
    gathers = timeline.select(timeline.kind == "all_gather")
    done = [
        any(a <= start and end <= b for a, b in inside)
        for start, end in zip(gathers.start_us, gathers.end_us)
    ]
    return sum(done), len(done)


step = traces[0, 0].timeline()
print("all-gathers for which the caller waited: %d of %d" % waited_for(step))
print("messages in the trace:", sorted(set(step.kind[step.lane == "comm"].tolist())))

# %% [markdown]
# With gloo the thread that issues an all-gather waits for it. With NCCL, on GPUs of their own, it goes to a stream of its own, and the computation runs on. And once more: with gloo no reduce-scatter is in the trace. It was called; what ran is an all-reduce. The step as a picture; a layer computes between two doings of FSDP:


# %%
def with_compute(line):
    """The messages of a recorded step, and what lies between two of FSDP's labels."""
    columns = (
        line.rank,
        line.lane,
        line.kind,
        line.label,
        line.start_us,
        line.end_us,
        line.num_bytes,
    )
    rows = [
        row for row in zip(*(column.tolist() for column in columns)) if row[1] == "comm"
    ]
    for rank in range(line.num_ranks):
        mine, done = line.select(line.rank == rank), 0.0
        for start, end, label in sorted(
            zip(mine.start_us.tolist(), mine.end_us.tolist(), mine.label.tolist())
        ):
            if found := re.fullmatch(
                r"FSDP::post_(forward|backward_accumulate) \(layers\.(\d)\)", label
            ):
                kind = "forward" if found[1] == "forward" else "backward"
                rows.append(
                    (rank, "compute", kind, kind[0].upper() + found[2], done, start, 0)
                )
            done = max(done, end) if "(layers." in label else done
    began = min(row[4] for row in rows)
    rows.append(
        (0, "compute", "forward", "", began, began, 0)
    )  # of no length: the axis begins with the first message
    return timeline.from_rows(
        rows, num_ranks=line.num_ranks, origin="measured", notes=line.notes
    )


widgets.trace(with_compute(step), title="fully_shard")

# %% [markdown]
# No message runs under a computation here. The board shows the three moves, moment by moment, with the bytes below; its button runs the setting.

# %%
widgets.fsdp_sharding()

# %% [markdown] sections="8.4.2"
# ## fully_shard
#
# torch has two of them. `FullyShardedDataParallel` (FSDP1) wraps a module and flattens its parameters, as `Kept` did. `fully_shard` (FSDP2) changes the module in place and cuts every parameter along its first dimension into a `DTensor`; names and shapes stay. The source uses FSDP1; this chapter uses FSDP2 and maps the names. Three ranks, so that not everything divides:


# %%
def look():
    from labkit import model
    from torch.distributed.fsdp import fully_shard

    net = model.Transformer(2, 64, 4, max_len=32)
    for layer in net.layers:
        fully_shard(layer)
    fully_shard(net)
    weight = net.layers[1].qkv.weight
    return (
        type(weight).__name__,
        str(weight.placements),
        {
            name: (tuple(each.shape), tuple(each.to_local().shape))
            for name, each in net.layers[1].named_parameters()
        },
    )


found = lab.launch(look, ranks=3, timeout_s=40)
print(*found[0][:2])
for name in ("qkv.weight", "out.weight", "norm1.bias"):
    print(
        f"{name:<11} {found[0][2][name][0]!s:<10} on ranks 0, 1, 2:",
        *(rank[2][name][1] for rank in found),
    )

# %% [markdown] sections="8.4.2"
# It cuts as `torch.chunk` does: the last part may be shorter, and is padded for the message.
#
# ### Wrapping
#
# Each call makes its module a **unit**: all of its parameters that no inner call has taken. A unit is gathered with one message, and freed as one. So children first, the root last. Section 8.4.2 does it by `auto_wrap_policy`; `fully_shard` takes a loop. Four ways for a model of six blocks. **Predict:** which needs the least memory, and which the fewest messages?

# %%
my_leanest, my_quietest = None, None


# %%
def wrapped(ways):
    import torch
    import torch.distributed as dist
    from labkit.measure import memory, traffic
    from labkit import model
    from torch.distributed.fsdp import fully_shard

    found = {}
    for way in ways:
        torch.manual_seed(0)
        tokens, targets = (
            each.clone() for each in model.story_tokens(1, 32, seed=dist.get_rank())
        )
        with memory.watch() as watched:
            net = model.Transformer(6, 64, 4, max_len=32)
            units = {
                "the root": [],
                "pairs of layers": [
                    list(net.layers[i : i + 2]) for i in range(0, 8, 2)
                ],
                "each layer": net.layers,
                "each Linear": [
                    each for each in net.modules() if type(each) is torch.nn.Linear
                ],
            }
            for unit in [*units[way], net]:
                fully_shard(unit)
            watched.layers(net.layers)
            for step in range(2):
                watched.mark("step")
                with traffic.count() as counted:
                    model.loss(net(tokens), targets).backward()
            sharding.claim(watched, net)
        table = watched.footprint().num_bytes[1:]
        found[way] = (
            table.sum(1).max(),
            table[:, 4].max(),
            counted.calls["all_gather"],
            counted.payload_bytes["all_gather"],
        )
    return found


# %%
ways = ("the root", "pairs of layers", "each layer", "each Linear")
print(
    f"{my_leanest = }, {my_quietest = }\n\nunits              peak    gathered at once   all-gathers   their payload"
)
for way, numbers in lab.launch(wrapped, ways, ranks=2, timeout_s=50)[0].items():
    print(
        f"{way:<16} {format_bytes(numbers[0]):>7} {format_bytes(numbers[1]):>14} {numbers[2]:15} "
        f"{format_bytes(numbers[3]):>15}"
    )

# %% [markdown] sections="8.4.2"
# With the root alone everything is gathered at once, and stays (a root is not freed after the forward): one message, the most memory. The demo project's set-up comes to this: it names no layers. Each `Linear` alone saves little more, for the activations are still there, and every small message pays its latency. One unit per block is the usual choice. `fully_shard` also takes a list of modules as one unit (`pairs of layers`); the second exercise is about that.
#
# ### Mixed precision
#
# `MixedPrecisionPolicy(param_dtype, reduce_dtype)`: in which type the parameters are gathered and computed with, and in which the gradients are reduced. The slices, and so the optimizer, stay in fp32: this is the master copy, and it is sharded. The loss is divided by 1024, as in an accumulation of so many microbatches. **Predict** what bf16 does to the bytes of an all-gather, and to those of the states.

# %%
my_gather_factor, my_state_factor = None, None


# %%
def in_16_bit(policies):
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic
    from labkit import model
    from torch.distributed.fsdp import fully_shard

    found, right = {}, None
    for name, policy in policies.items():
        torch.manual_seed(0)
        net, seen = model.Transformer(2, 64, 4, max_len=32), []
        for layer in [*net.layers, net]:
            fully_shard(layer, mp_policy=policy)
        net.layers[1].up.register_forward_hook(
            lambda layer, given, made: seen.append((layer.weight.dtype, made.dtype))
        )
        tokens, targets = model.story_tokens(8, 32, seed=dist.get_rank())
        with traffic.count() as counted:
            (model.loss(net(tokens).float(), targets) / 1024).backward()
        whole = torch.cat(
            [weight.grad.full_tensor().flatten() for weight in net.parameters()]
        )
        right = whole if right is None else right
        lost = ((whole == 0) & (right != 0)).sum() / (right != 0).sum()
        found[name] = (
            str(seen[0][0])[6:],
            net.layers[1].up.weight.dtype,
            counted.payload_bytes,
            sharding.shards(net).rank_bytes,
            ((whole - right).norm() / right.norm()).item(),
            lost.item(),
        )
    return found


# %%
from torch.distributed.fsdp import MixedPrecisionPolicy

half, bf16, fp32 = torch.float16, torch.bfloat16, torch.float32
policies = {
    "none": MixedPrecisionPolicy(),
    "bf16, fp32": MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32),
    "bf16, bf16": MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16),
    "fp16, fp16": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half),
}
print(f"{my_gather_factor = }, {my_state_factor = }\n")
print(
    "params, reduce   computes in  keeps     all-gather  reduce-scatter  states    gradient off by   became 0"
)
for name, numbers in lab.launch(in_16_bit, policies, ranks=2, timeout_s=50)[0].items():
    sent = [format_bytes(numbers[2][each]) for each in ("all_gather", "reduce_scatter")]
    print(
        f"{name:<16} {numbers[0]:<12} {str(numbers[1])[6:]:<9} {sent[0]:<11} {sent[1]:<15} "
        f"{format_bytes(numbers[3][0]):<9} {numbers[4]:<17.1%} {numbers[5]:.3%}"
    )

# %% [markdown] sections="8.4.2, S6"
# Messages halve, states do not. The last column matters for S6 and the demo project, which take fp16: many gradients fall below fp16's smallest number and become 0. fp16 needs a loss scaler (chapter 05), and neither has one; bf16 does not. Section 8.4.2's bf16 for both is sound, and fp32 for the sum over many ranks sounder.
#
# ## FSDP1's names
#
# Section 8.4.2 lists four strategies. Beside each the arguments of `fully_shard` that do the same (a mesh of two axes: replicate, shard); four ranks train with both, and we compare live bytes (with AdamW), calls and payload. S6 calls NO_SHARD "Stage 1", which is wrong, and SHARD_GRAD_OP "Stage 2", which is nearly right. **Predict:** how many quarters of the states does a rank hold under NO_SHARD?

# %%
my_quarters = None
FSDP2 = {
    "FULL_SHARD": {"reshard_after_forward": True},
    "SHARD_GRAD_OP": {"reshard_after_forward": False},
    "NO_SHARD": {"mesh": (4, 1)},
    "HYBRID_SHARD": {"mesh": (2, 2), "reshard_after_forward": True},
}


# %%
def both(strategies):
    import torch, warnings, torch.distributed as dist
    from labkit.measure import traffic
    from labkit import model
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        ShardingStrategy,
        fully_shard,
    )
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    found, said, tokens = {}, "", model.story_tokens(2, 32, seed=dist.get_rank())
    for name, version in [(name, version) for name in strategies for version in (1, 2)]:
        torch.manual_seed(0)
        net, options = model.Transformer(1, 64, 4, max_len=32), dict(strategies[name])
        shape = options.pop("mesh", (4,))
        mesh = dist.init_device_mesh(
            torch.get_default_device().type,
            shape,
            mesh_dim_names=("replicate", "shard")[-len(shape) :],
        )
        if version == 1:
            with warnings.catch_warnings(record=True) as caught:
                net = FullyShardedDataParallel(
                    net,
                    device_id=torch.get_default_device(),
                    sharding_strategy=ShardingStrategy[name],
                    device_mesh=mesh if name == "HYBRID_SHARD" else None,
                    auto_wrap_policy=ModuleWrapPolicy(
                        {type(layer) for layer in net.layers}
                    ),
                )
            said = str(caught[0].message) if caught else said
        else:
            for layer in [*net.layers, net]:
                fully_shard(layer, mesh=mesh, **options)
        optimizer = torch.optim.AdamW(net.parameters())
        with traffic.count() as counted:
            model.loss(net(tokens[0]), tokens[1]).backward()
        optimizer.step()
        held = sharding.shards(net, optimizer).rank_bytes[dist.get_rank()]
        found[name, version] = held, counted.calls, counted.payload_bytes
    return found, said


# %%
found, said = lab.launch(both, FSDP2, ranks=4, timeout_s=55)[0]
whole = found["NO_SHARD", 2][0]
print(f"{my_quarters = }\n")
for name, arguments in FSDP2.items():
    (one, *sent), (two, *same) = found[name, 1], found[name, 2]
    print(
        f"{name:<14} {4 * one / whole:.2f} quarters, {dict(sent[0])}\n    fully_shard(..., "
        f"{', '.join(f'{key}={value}' for key, value in arguments.items())}): {4 * two / whole:.2f} quarters, "
        f"calls and payload {'the same' if sent == same else 'others: ' + str(same)}"
    )
print(
    "ZeRO stages 0 to 3:",
    *(
        f"{4 * sum(states.state_bytes(1, 4, stage, 'fp32').values()) / 16:.2f}"
        for stage in range(4)
    ),
)
print(f"torch on NO_SHARD: {said}")

# %% [markdown]
# - **NO_SHARD** is DDP, stage 0: everything whole, one all-reduce per unit. No strategy has the 2.5 quarters of ZeRO-1: FSDP has no such thing; torch's is `ZeroRedundancyOptimizer`.
# - **SHARD_GRAD_OP** resembles ZeRO-2: from forward to backward the parameters are whole. Between steps they are not, and that ZeRO-2 does not do.
# - **HYBRID_SHARD** shards within a group (a node, with its fast links) and replicates between groups: half of the states here, and an all-reduce of the slices between the groups. `reshard_after_forward=` a whole number is the variant in between: after the forward, slices for so many ranks.
# - FSDP1's `HYBRID_SHARD` here got its mesh by hand; by default it makes one group per node.
#
# The remaining arguments of section 8.4.2 and S6, by name:
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

# %% [markdown] sections="S6"
# ## The loop of section S6
#
# Section S6 uses five names that its imports do not bring, and the demo project one (the last line). Each is tried on a real rank:


# %%
def tried():
    import torch
    from labkit import model
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import ShardingStrategy

    fsdp_model, said = (
        FSDP(model.Transformer(1, 32, 2), device_id=torch.get_default_device()),
        {},
    )
    for line in (
        "from torch.distributed.fsdp.wrap import default_auto_wrap_policy",
        "MixedPrecision",
        "from torch.distributed.fsdp import BackwardPrefetch; BackwardPrefetch.PRE_FORWARD",
        "fsdp_model.backward",
        "fsdp_model.step",
        "SHARD_GRAD_OP",
    ):
        try:
            exec(line, {"fsdp_model": fsdp_model})
        except Exception as error:
            said[line] = f"{type(error).__name__}: {str(error).partition(' (')[0]}"
    return said


for line, error in lab.launch(tried, ranks=1, timeout_s=40)[0].items():
    print(f"{line}\n    {error}")

# %% [markdown]
# `backward` and `step` are methods of a DeepSpeed engine. With FSDP the loop is torch's own: `loss.backward()`, `optimizer.step()`. Four places matter, numbered below.


# %%
def s6(num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net, losses = model.Transformer(2, 32, 2, max_len=32), []
    for layer in [*net.layers, net]:
        fully_shard(layer)  # 1 children, then the root
    optimizer = torch.optim.Adam(
        net.parameters(), lr=0.01
    )  # 2 after sharding: of the slices
    for step in range(num_steps):
        batch = model.story_tokens(8, 32, seed=step)
        tokens, targets = (
            part.chunk(dist.get_world_size())[dist.get_rank()] for part in batch
        )
        loss = model.loss(net(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        own = torch.stack(
            [weight.grad.to_local().norm() for weight in net.parameters()]
        ).norm()
        norm = torch.nn.utils.clip_grad_norm_(
            net.parameters(), 0.5
        )  # 3 of the whole gradient
        optimizer.step()
        losses.append((loss.item(), own.item(), norm.full_tensor().item()))
    return losses, get_model_state_dict(
        net, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )  # 4 all ranks


# %%
one, two = (lab.launch(s6, 4, ranks=size, timeout_s=40) for size in (1, 2))
print(
    "step   loss, mean of 2 ranks   1 process   norm of own slices, ranks 0, 1   of all   1 process"
)
for step, ((loss, _, norm), first, second) in enumerate(
    zip(one[0][0], two[0][0], two[1][0])
):
    print(
        f"{step:4} {(first[0] + second[0]) / 2:23.4f} {loss:11.4f} {first[1]:18.4f} {second[1]:8.4f} "
        f"{first[2]:14.4f} {norm:11.4f}"
    )
print(f"weights to save: rank 0 has {len(two[0][1])}, rank 1 has {len(two[1][1])}")

# %% [markdown]
# 2: an optimizer made before `fully_shard` holds the old, whole parameters, and trains nothing. 3: `clip_grad_norm_` on DTensors sums over all ranks; the norm of one's own slices is smaller, and differs between ranks. 4: saving gathers, so every rank must call it; the weights arrive on rank 0 alone. The third exercise repairs a loop.
#
# ### Accumulation
#
# DDP's `no_sync` has a sister: `set_requires_gradient_sync(False)` leaves the gradients of a microbatch unreduced. Four microbatches. **Predict** the reduce-scatters of both, and where the price is paid:

# %%
my_reduce_scatters = {True: None, False: None}


# %%
def accumulate(every):
    import torch
    import torch.distributed as dist
    from labkit.measure import memory, traffic
    from labkit import model
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    tokens, targets = model.story_tokens(4, 32, seed=dist.get_rank())
    with memory.watch() as watched, traffic.count() as counted:
        net = model.Transformer(4, 64, 4, max_len=32)
        for layer in [*net.layers, net]:
            fully_shard(layer)
        watched.mark("step")
        for k in range(4):
            net.set_requires_gradient_sync(every or k == 3)
            (model.loss(net(tokens[k : k + 1]), targets[k : k + 1]) / 4).backward()
    grads = {name: weight.grad.full_tensor() for name, weight in net.named_parameters()}
    return counted.calls, watched.footprint().peak_bytes, grads


# %%
found = {
    every: lab.launch(accumulate, every, ranks=2, timeout_s=40)[0]
    for every in (True, False)
}
print(f"{my_reduce_scatters = }")
for every, (calls, peak, grads) in found.items():
    off = max(
        (grad - found[True][2][name]).abs().max().item() for name, grad in grads.items()
    )
    print(
        f"reduce each: {every!s:5} {dict(calls)}, peak {format_bytes(peak)}, gradients off by {off:.0e}"
    )

# %% [markdown]
# A quarter of the reduce-scatters, and the gradients lie there whole until the last microbatch: that is what sharding was to save.

# %% [markdown] sections="D-fsdp"
# ## The demo project's set-up
#
# The demo project has a function `setup_fsdp_model`. Read it with what was measured above: `SHARD_GRAD_OP` without its class is that NameError; no wrapping, so one unit, gathered at once; fp16 everywhere, and no scaler in its loop. Its loop also all-reduces the *loss* after `backward`: that is for the log, gradients are reduced without it. The same in FSDP2, put right:


# %%
def setup_fsdp_model(net, units):
    """Shards the model in place: one unit per layer, kept whole from forward to backward, bf16 with fp32 sums."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    for unit in [*units, net]:
        fully_shard(
            unit, mp_policy=policy, reshard_after_forward=False
        )  # SHARD_GRAD_OP
    return net


def demo(num_steps):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    net, logged = setup_fsdp_model(net, net.layers), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
        loss = model.loss(net(tokens).float(), targets)
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        logged.append(mean.item() / dist.get_world_size())
    return logged


print(
    "loss:",
    *(f"{loss:.3f}" for loss in lab.launch(demo, 10, ranks=2, timeout_s=40)[0]),
)

# %% [markdown] sections="8.4.4"
# ## Activation checkpointing
#
# Sharding does nothing for activations. **Activation checkpointing** keeps only a block's input, and computes the block again in the backward. Section 8.4.4 uses `apply_activation_checkpointing` from a module whose name begins with an underscore; the public way is `torch.utils.checkpoint`. Both, beside none, on a batch that makes activations the largest part. **Predict** the processor time of forward and backward with checkpointing, in multiples of those without. (A backward costs about two forwards.)

# %%
my_time_factor = None


# %%
def checkpointed(ways, num_rounds=8):
    import functools, time, torch
    import torch.distributed as dist
    from labkit.devices.place import synchronize
    from labkit.measure import memory, traffic
    from labkit import model
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint

    found, nets = {}, {}
    tokens, targets = (
        each.clone() for each in model.story_tokens(4, 64, seed=dist.get_rank())
    )
    for way in ways:
        with memory.watch() as watched, traffic.count() as counted:
            nets[way] = net = model.Transformer(4, 64, 4, max_len=64)
            for block in net.layers[1:-1] if way == "checkpoint" else ():
                block.forward = functools.partial(
                    checkpoint, block.forward, use_reentrant=False
                )
            for layer in [*net.layers, net]:
                fully_shard(layer)
            if way == "apply":
                apply_activation_checkpointing(
                    net, check_fn=lambda layer: isinstance(layer, model.Block)
                )
            watched.mark("forward"), (loss := model.loss(net(tokens), targets))
            (
                watched.kept(),
                watched.mark("kept"),
                watched.mark("backward"),
                loss.backward(),
                sharding.claim(watched, net),
            )
        step = watched.footprint()
        found[way] = (
            step.num_bytes[step.labels.index("kept")][5],
            step.peak_bytes,
            counted.calls,
            [],
        )
    for way in num_rounds * list(
        ways
    ):  # in turn: what else the machine does meets all of them
        began = time.process_time()
        model.loss(nets[way](tokens), targets).backward()
        synchronize()  # a GPU works on while Python goes ahead
        found[way][-1].append(time.process_time() - began)
    return found


# %%
from statistics import median

found = lab.launch(
    checkpointed, ("none", "checkpoint", "apply"), ranks=2, timeout_s=50
)[0]
kept = 4 * states.block_activation_bytes(4, 64, 64, 4)
print(
    f"{my_time_factor = }\ntheory: {kept / 1e6:.2f} MB of the blocks become {4 * 4 * 64 * 64 * 4 / 1e6:.2f} MB, "
    f"the other layers keep theirs; forward and backward of a block 4/3\n\n{'':11} activations   peak      time   calls"
)
for way, (activations, peak, calls, seconds) in found.items():
    factor = median(mine / none for mine, none in zip(seconds, found["none"][-1]))
    print(
        f"{way:<11} {format_bytes(activations):>11} {format_bytes(peak):>9} {factor:8.2f}   {dict(calls)}"
    )

# %% [markdown] sections="8.4.4"
# Most of the activations are gone, and the second computation happens while the block is gathered for its backward anyway, so it costs no all-gather more, in either order of wrapping. But where is the third more? The same model without FSDP, and the forward of its blocks alone, beside the step above:


# %%
def without_fsdp(num_rounds=8):
    import time
    from labkit import model
    from labkit.devices.place import synchronize

    net, (tokens, targets) = (
        model.Transformer(4, 64, 4, max_len=64),
        model.story_tokens(4, 64),
    )
    steps, forwards = [], []
    for _ in range(num_rounds):
        began = time.process_time()
        model.loss(net(tokens), targets).backward()
        synchronize()
        steps.append(time.process_time() - began)
        x = net.layers[0](tokens)
        began = time.process_time()
        for block in net.layers[1:-1]:
            x = block(x)
        synchronize()
        forwards.append(time.process_time() - began)
    return steps, forwards


# %%
whole = median(found["none"][-1])
alone = lab.launch(without_fsdp, ranks=2, timeout_s=50)[0]
for name, seconds in zip(("the model without FSDP", "its blocks' forward"), alone):
    print(
        f"{name:<22} {median(seconds) / whole:4.0%} of a step with FSDP, none checkpointed"
    )

# %% [markdown] sections="8.4.4"
# The blocks' forward is all that is computed again, and it is a small share of this step: FSDP and gloo handle messages for most of the processor's time, and do that once. What the factor has above this share is the bookkeeping of `checkpoint`, which weighs much beside blocks as small as these. In a model that needs FSDP the products outweigh all handling, and the factor comes near to 4/3; chapter 05 measures that.
#
# ## CPU offload
#
# `offload_policy=CPUOffloadPolicy()` keeps slices, their gradients and the optimizer in the host's memory. A slice is copied to the device for each all-gather, its gradient back after the reduce-scatter, and the optimizer runs on the host. Section 8.4.4 says: another 30 % saved, 20 to 40 % slower.
#
# To measure that, a device must have a memory that is not the host's, and a link between the two. So here ranks stand on **pretend devices** even where there are GPUs, as in chapter 05: real tensors in a memory as small as we like, with a GPU's rules and words, and copies between host and device that are counted and take the time of a stated link. They can't show a GPU's speed, copies that run beside the computation, races or fragmentation. The model has 4.9 million parameters. It is built in the host's memory, in case a device is too small for it.


# %%
def on_device(way, batch=4, num_steps=4):
    """The peak of the device's memory, what a step copies each way, the shortest step, the loss."""
    import gc, time
    from labkit.devices import pretend
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    gc.collect()  # what an earlier call has left
    torch.accelerator.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device("cpu"):  # the host
        net = model.Transformer(6, 256, 4, max_len=64)
    policy = CPUOffloadPolicy() if way == "offload" else OffloadPolicy()
    for layer in [*net.layers, net] if way != "whole" else ():
        fully_shard(layer, offload_policy=policy)
    net = net.to(torch.get_default_device()) if way == "whole" else net
    optimizer, seconds = torch.optim.AdamW(net.parameters(), lr=1e-3), []
    batch = model.story_tokens(batch, 64)
    tokens, targets = (
        part.chunk(dist.get_world_size())[dist.get_rank()] for part in batch
    )
    for _ in range(num_steps):
        pretend.reset_copied()
        began = time.perf_counter()
        loss = model.loss(net(tokens), targets)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return (
        torch.accelerator.max_memory_allocated(),
        pretend.copied(),
        min(seconds),
        loss.detach(),
    )


# %% [markdown]
# A batch of four sequences, AdamW, everything in fp32. One device of 64 MiB (67 MB) gets the whole batch; four devices get a sequence each. **Predict** the peak per device, in MB: on one device (if it were large enough), on each of four with FSDP, and on each of four with offload.

# %%
my_peaks = {"whole": None, "fsdp": None, "offload": None}

# %%
large = lab.pretend(memory_mib=64, link_gb_per_s=0.05)
try:
    lab.launch(on_device, "whole", ranks=1, devices=large)
except lab.RankFailed as error:
    print(error)

# %% [markdown]
# The words are CUDA's, with "pretend" for "CUDA". The states alone are 16 bytes per parameter, 78 MB. On four devices each holds a quarter of them:

# %%
small = lab.pretend(memory_mib=24, link_gb_per_s=0.05)
sharded = lab.launch(on_device, "fsdp", ranks=4, devices=large)
print(f"FSDP, 64 MiB: peak {format_bytes(sharded[0][0])}")
try:
    lab.launch(on_device, "fsdp", ranks=4, devices=small)
except lab.RankFailed as error:
    print("FSDP, 24 MiB:", str(error).partition("\n")[0])

# %% [markdown]
# It fits into 64 MiB, and not into 24 (25 MB). There offload saves it:

# %%
offloaded = lab.launch(on_device, "offload", ranks=4, devices=small)
print(
    f"{my_peaks = }\n{'':8} peak      to the device   to the host   shortest step   loss"
)
for name, run in {"fsdp": sharded, "offload": offloaded}.items():
    peak_bytes, copied, seconds, _ = run[0]
    print(
        f"{name:<8} {format_bytes(peak_bytes):<9} {format_bytes(copied.to_device_bytes):<15} "
        f"{format_bytes(copied.to_host_bytes):<13} {seconds * 1000:6.0f} ms       "
        f"{sum(loss.item() for *_, loss in run) / 4:.4f}"
    )
longer_ms = 1000 * (offloaded[0][2] - sharded[0][2])
copied_bytes = offloaded[0][1].to_device_bytes + offloaded[0][1].to_host_bytes
print(
    f"longer by {longer_ms:.0f} ms; at 0.05 GB/s the copies alone take {copied_bytes / 5e4:.0f} ms"
)

# %% [markdown]
# The same loss. Every slice went to the device twice and its gradient came back once: 3 times 4 bytes for a quarter of the parameters. The copies are most of what the step takes longer; the rest is their bookkeeping, and whatever else the machine does. (The stated link is slow because the device is: a CPU plays it.)
#
# Neither the saving nor the price is a constant. Two and four ranks, a small batch and a large one, each with and without offload, on devices without a limit. **Predict** where offload saves the largest share.

# %%
my_largest_saving = None


# %%
def both_ways(batches):
    """Each batch with and without offload."""
    ways = [(batch, way) for batch in batches for way in ("fsdp", "offload")]
    return {each: on_device(each[1], each[0], num_steps=2) for each in ways}


print(
    f"{my_largest_saving = }\nranks   sequences each      peak   with offload   saved   step, times"
)
for ranks in (2, 4):
    found = lab.launch(
        both_ways,
        (ranks, 4 * ranks),
        ranks=ranks,
        devices=lab.pretend(link_gb_per_s=0.05),
    )[0]
    for batch in (ranks, 4 * ranks):
        here, there = found[batch, "fsdp"], found[batch, "offload"]
        print(
            f"{ranks:5} {batch // ranks:16} {format_bytes(here[0]):>9} {format_bytes(there[0]):>14} "
            f"{1 - there[0] / here[0]:7.0%} {there[2] / here[2]:13.2f}"
        )

# %% [markdown]
# What is saved is the share of the states: it falls as the batch grows, for activations stay, and it falls with the number of ranks, for then there is less to move away. What is paid is the copies, which do not grow with the batch, so their share of the step falls as well. Gathered layers stay in any case. Now the time on GPUs, as an estimate: per step $P/N$ parameters go up twice and come down once, 4 bytes each; the compute is $6P$ times the tokens of the rank. $P$ cancels. With a link of 25 GB/s (PCIe 4) and 200 TFLOP/s of real compute, if nothing overlaps (**predicted**):

# %%
print(
    "copies / compute; tokens per rank and step:",
    *(f"{tokens:8}" for tokens in (1024, 4096, 16384, 65536)),
)
for ranks in (1, 4, 8, 64):
    print(
        f"N = {ranks:<3} {'':35}",
        *(
            f"{3 * 4 / ranks / 25e9 / (6 * tokens / 200e12):8.0%}"
            for tokens in (1024, 4096, 16384, 65536)
        ),
    )

# %% [markdown]
# And the optimizer on the host comes on top.
#
# ### What is not offload
#
# Section 8.11.1 offers `fsdp_cpu_ram_efficient_loading` as "CPU offload". It is about **loading**: only rank 0 reads the weights; the others build the model on the `meta` device, which holds no bytes, and get their slices from rank 0. The same by hand, the largest live bytes while loading, and then the states of a training step:


# %%
def load(efficient):
    import torch
    import torch.distributed as dist
    from labkit.measure import memory
    from labkit import model
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    with memory.watch() as watched:
        watched.mark("load")
        torch.manual_seed(0)
        read = dist.get_rank() == 0 or not efficient
        weights = model.Transformer(4, 64, 4, max_len=32).state_dict() if read else {}
        with torch.device("meta"):
            net = model.Transformer(4, 64, 4, max_len=32)
        for layer in [*net.layers, net]:
            fully_shard(layer)
        net.to_empty(device=torch.get_default_device())
        set_model_state_dict(
            net,
            weights,
            options=StateDictOptions(
                full_state_dict=True, broadcast_from_rank0=efficient
            ),
        )
        del weights
    optimizer = torch.optim.AdamW(net.parameters())
    loss = model.loss(net(model.story_tokens(1, 32)[0]), model.story_tokens(1, 32)[1])
    loss.backward(), optimizer.step()
    return (
        watched.footprint().peak_bytes,
        sharding.shards(net, optimizer).rank_bytes[dist.get_rank()],
        loss.item(),
    )


for efficient in (False, True):
    found = lab.launch(load, efficient, ranks=2, timeout_s=40)
    print(
        f"only rank 0 reads: {efficient!s:5}  loading: {format_bytes(found[0][0])} on rank 0, "
        f"{format_bytes(found[1][0])} on rank 1; in training {format_bytes(found[0][1])}; loss {found[0][2]:.4f}"
    )

# %% [markdown] sections="8.4.3"
# ## Through Accelerate
#
# Section 8.4.3 gives the settings to `Accelerator` as a dict. It says:

# %%
from accelerate import Accelerator

try:
    Accelerator(fsdp_plugin={"sharding_strategy": "FULL_SHARD"})
except TypeError as error:
    print("TypeError:", error)

# %% [markdown]
# It takes a `FullyShardedDataParallelPlugin`. What that says to the settings of section 8.4.3 if it is to use FSDP2:

# %%
import logging

from accelerate import FullyShardedDataParallelPlugin

logging.getLogger("accelerate").setLevel(logging.ERROR)  # the table says it
for options in (
    {"sharding_strategy": "FULL_SHARD"},
    {"forward_prefetch": True},
    {"backward_prefetch": "BACKWARD_PRE"},
    {"reshard_after_forward": True, "transformer_cls_names_to_wrap": ["Block"]},
):
    try:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, **options)
        print(f"{options}: becomes {[getattr(plugin, name) for name in options]}")
    except ValueError as error:
        print(f"{options}: {error}")

# %% [markdown]
# Without a plugin, `accelerate launch` hands over what a configuration file says: section 8.4.3's file, for FSDP2.
#
# One trap. On a machine without a GPU, Accelerate 1.15 ignores the FSDP part of the file, without a word, and trains with DDP. The script prints what Accelerate found, and then tells it to treat its ranks as it would GPUs'. (With a GPU for each rank it finds just that by itself; with fewer the command is run without any.)

# %%
CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_cpu_ram_efficient_loading: false
mixed_precision: 'no'
num_machines: 1
num_processes: 2
"""

# %%
SET_UP = """\
import torch, torch.distributed as dist
from accelerate import Accelerator, DistributedType, PartialState
from labkit import model, sharding
from labkit.measure import traffic

state = PartialState(cpu=not torch.cuda.is_available())
seen, state.distributed_type = state.distributed_type, DistributedType.MULTI_GPU
accelerator = Accelerator()
torch.manual_seed(0)
net = model.Transformer(4, 64, 4, max_len=32)
net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))
"""

# %%
LOOP = """\
tokens, targets = (each.to(accelerator.device) for each in model.story_tokens(2, 32, seed=dist.get_rank()))
for step in range(2):
    optimizer.zero_grad()
    with traffic.count() as counted:
        loss = model.loss(net(tokens), targets)
        accelerator.backward(loss)
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
held = sharding.shards(net, optimizer.optimizer).rank_bytes[dist.get_rank()]
accelerator.print(f"found {seen.value}, then {accelerator.distributed_type.value}: {type(net).__name__}, states {held:,} bytes, {dict(counted.calls)}")
dist.destroy_process_group()
"""

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from labkit.machine import resources

folder = tempfile.TemporaryDirectory()
for name, text in (("fsdp.yaml", CONFIG), ("train.py", SET_UP + LOOP)):
    Path(folder.name, name).write_text(text)
line = [
    "-m",
    "accelerate.commands.launch",
    "--config_file",
    f"{folder.name}/fsdp.yaml",
    "--main_process_port",
    str(resources.free_port()),
    f"{folder.name}/train.py",
]  # in a terminal: accelerate launch --config_file ... train.py
loopback = {"GLOO_SOCKET_IFNAME": name} if (name := resources.loopback()) else {}
hidden = (
    {} if torch.cuda.device_count() > 1 else {"CUDA_VISIBLE_DEVICES": ""}
)  # one for each rank
done = subprocess.run(
    [sys.executable, *line],
    capture_output=True,
    text=True,
    timeout=55,
    env=os.environ | loopback | hidden | {"OMP_NUM_THREADS": "1"},
)
print(
    *[said for said in done.stdout.splitlines() if "found" in said]
    or [done.stderr[-2000:]],
    sep="\n",
)

# %% [markdown]
# The FSDP wrapper, the sharded states (half of DDP's on two ranks), and nine all-gathers for five units: `Block` is wrapped four times, the rest is the root, which is not freed after the forward.
#
# ## Does LLaMA-13B fit on four A100 of 40 GB?
#
# Section 8.10 says so, with FSDP and activation checkpointing. **Predict** the states per GPU, in GB. Then count them, for the recipes with 16-bit training:

# %%
my_gigabytes = None

# %%
print(f"{my_gigabytes = }; 13e9 parameters, FSDP, 40 GB")
for name in ("mixed", "bf16"):
    bill_4 = sum(states.state_bytes(13e9, 4, 3, name).values())
    print(
        f"{states.RECIPES[name].bytes_per_parameter:2} bytes ({states.RECIPES[name].what}): {bill_4 / 1e9:.0f} GB on each of 4; "
        f"states alone fit from {states.ranks_needed(13e9, 40e9, 3, name)} GPUs on"
    )

# %% [markdown]
# With a master copy it does not fit, and activations, gathered layers and the reduce-scatter's buffers come on top. It fits in pure bf16, where small updates are lost (chapter 05), with offload, or on more GPUs. (The same section calls the effective batch 32: $2 \cdot 16 \cdot 4 = 128$ sequences.)
#
# ## Exercises
#
# A check never stops the notebook. It runs your answer on real ranks, at sizes that are not shown, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. A step in slices
#
# No autograd function this time, and rows that do not divide. `shards[i]` are this rank's rows of weight i, as `torch.chunk` cuts `num_rows[i]` rows: the last ranks may have fewer, or none. A layer is `x = torch.tanh(x @ weight.T)`; the loss is the mean square of the last `x`. Return the gradient of each shard, the mean over all ranks. Two all-gathers and one reduce-scatter per weight, and never more than a few whole weights alive.


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
        weight, x, out = (
            whole(mine, rows).requires_grad_(),
            x.requires_grad_(),
            mine.new_empty(math.ceil(rows / size), len(x.T)),
        )
        to_weight, gradient = torch.autograd.grad(
            torch.tanh(x @ weight.T), (weight, x), gradient
        )
        dist.reduce_scatter_single(
            out, pad(to_weight, (0, 0, 0, len(out) * size - rows))
        )
        found.append(out[: len(mine)] / size)
    return found[::-1]
    ### END SOLUTION


# %%
check.sharded_step(my_step)

# %%
check.hint("sharded_step")

# %% [markdown]
# ### 2. Wrap within a budget
#
# `net` is an `nn.Sequential` of layers of different sizes. Call `fully_shard` so that never more than `budget_bytes` of parameters are gathered at a time (each layer alone fits), with as few all-gathers per step as units of consecutive layers allow. Gradients must come out right, and every parameter sharded.


# %%
def my_wrap(net, budget_bytes):
    """Shards net in place."""
    ### BEGIN SOLUTION
    from torch.distributed.fsdp import fully_shard

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

# %% [markdown]
# ### 3. Repair a loop
#
# The loop below has four mistakes. It runs, and trains nothing. `steps` holds, for each update, a list of this rank's microbatches. Write it right: SGD with learning rate 0.1 and momentum 0.9, on the mean of `mse_loss` over microbatches and ranks, the gradient clipped as a whole to `max_norm`; `net` an `nn.Sequential`, sharded in place.


# %%
def broken(net, steps, max_norm):
    from torch.distributed.fsdp import fully_shard

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
    from torch.distributed.fsdp import fully_shard

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
# - FSDP is data parallelism with slices: all-gather a unit, compute, free it, reduce-scatter its gradient. Weights come out as DDP's.
# - The states are M/N. The peak is that, plus activations, plus about four times the largest unit. So wrap per block.
# - 1.5 times DDP's bytes with FULL_SHARD, as many as DDP's with SHARD_GRAD_OP. gloo sends more, because it emulates reduce-scatter.
# - NO_SHARD is DDP, SHARD_GRAD_OP is like ZeRO-2, FULL_SHARD like ZeRO-3. HYBRID_SHARD shards and replicates, on a mesh of two axes. There is no ZeRO-1.
# - `fully_shard` children first, the root last; then the optimizer; then `loss.backward()`, clip over all ranks, `optimizer.step()`.
# - Mixed precision halves messages, not states. Checkpointing takes activations away for a second forward: up to a third more compute, less where a step also handles messages. Offload takes states off the device, and what it costs depends on the tokens per step.
#
# ## Sources
#
# - FSDP: Zhao et al. 2023, *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, [arXiv 2304.11277](https://arxiv.org/abs/2304.11277)
# - ZeRO: Rajbhandari et al. 2020, [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
# - [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), in the documentation of PyTorch
# - Checkpointing: Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, [arXiv 1604.06174](https://arxiv.org/abs/1604.06174)
# - [FSDP1 and FSDP2 in Accelerate](https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2)
#
# Where you stand:

# %%
check.status()
