# ---
# jupyter:
#   labkit:
#     sections: ["8.9.2", "10.4.3", "10.7.3", "19.1.3", "19.2.2b", "19.8.2", "S10"]
#     needs: ["two CPU cores"]
#     minutes: 75
# ---

# %% [markdown]
# # Communication: hide it, and send less
#
# *Sections 8.9.2, 10.4.3, 10.7.3, 19.1.3, 19.2.2 (compression), 19.8.2 and S10 of the source material. About 75 minutes. No GPU is needed.*
#
# Data parallel ranks exchange their gradients in every step. That time can be **hidden** under computation, paid **less often**, made shorter by sending **fewer bytes**, or sent over **better links**. This chapter does all four, and counts what each really saves.

# %%
import labkit as lab

lab.begin("en")
from labkit import timeline
from labkit.data_parallel import buckets
from labkit.pictures import curves, scene
from labkit.collectives import algorithms, network, network_picture
from labkit import collectives, data_parallel, widgets
from labkit.machine import resources
from labkit.communication import check
from labkit.collectives.network import Link
from labkit.timeline import exposed_comm_us, from_rows, hidden_comm, straggler


def draw(timeline, title, **options):
    widgets.show(scene.timeline(timeline, title=title, **options))


# %% [markdown] sections="8.9.2, 10.4.3"
# ## Hide it: all-reduce under the backward
#
# The backward ends with the first layer, but the gradient of the last layer is there long before. `DistributedDataParallel` (DDP) puts gradients into buckets and starts a bucket's all-reduce as soon as it is full, while earlier layers still compute.
#
# A model of four layers on three ranks. A layer takes 10 ms forward and 20 ms backward and has 1 MB of gradients; each layer is a bucket. The link is slow: `link` below gives its latency and bandwidth, and the all-reduce of one bucket takes the ring's time on it. **Paced** means: layers and links take stated times; processes, messages, DDP and its hooks are real.

# %%
layers = [
    buckets.Layer(name=f"layer {i}", num_bytes=1_000_000, forward_us=10_000)
    for i in range(4)
]
link = Link(alpha_us=500, bandwidth_gb_per_s=0.08)
bucket_us = data_parallel.ring_us(3, link)(1_000_000)
print(
    f"compute {4 * 30} ms; all-reduce of one bucket {bucket_us / 1000:.1f} ms, of four {4 * bucket_us / 1000:.1f} ms"
)

# %% [markdown]
# **Predict.** Without overlap a step takes the sum. How many milliseconds does it take with overlap?

# %%
my_step_ms = lab.guess({"en": "a step with overlap", "zh": "有重叠的一步"}, unit="ms")

# %%
step = data_parallel.Step(layers=layers, ranks=3, bucket_mb=0.9, link=link, num_steps=2)
compared = {}
for overlap in (False, True):
    compared[overlap] = both = step.but(overlap=overlap).compare()
    title = {
        "en": f"DDP, overlap {'on' if overlap else 'off'}",
        "zh": f"DDP，{'' if overlap else '不'}重叠",
    }
    widgets.show(scene.compare(both.predicted, both.measured, title=title))

# %%
print(f"{'':<24} step       hidden   exposed")
for overlap, both in compared.items():
    for origin, line in (("simulated", both.predicted), ("measured", both.measured)):
        print(
            f"overlap {'on ' if overlap else 'off'} {origin:<11} {timeline.step_us(line) / 1000:6.1f} ms "
            f"{hidden_comm(line):8.0%}   {max(exposed_comm_us(line)) / 1000:6.1f} ms"
        )
my_step_ms.score(timeline.step_us(compared[True].measured) / 1000)

# %% [markdown] sections="19.1.3"
# *Hidden* is the share of communication time that lies under compute of the same rank; *exposed* is the rest, in milliseconds. Exposed time is what a step pays.
#
# Section 19.1.3 says that hooks hide communication "almost entirely". At best they hide all buckets but one: the last bucket belongs to the first layer, whose gradient comes at the very end of the backward. Here the link is also a little faster than the backward. Make it slower than the backward (a smaller bandwidth above), and the buckets queue up behind each other.

# %% [markdown] sections="19.1.3"
# ### The chart of section 19.1.3
#
# The section draws the pattern as a row: compute layer N, all-reduce the gradient of N-1, compute layer N+1, and writes "can overlap" under it. Here are the boxes as drawn, with an invented 20 ms and 16 ms:

# %%
boxes = [
    ("compute", "compute", "N", 0, 20),
    ("comm", "all_reduce", "grad N-1", 20, 36),
    ("compute", "compute", "N+1", 36, 56),
]
rows = [
    (rank, *box[:3], 1000 * box[3], 1000 * box[4], 0)
    for rank in range(2)
    for box in boxes
]
as_drawn = from_rows(rows, num_ranks=2, origin="simulated", notes=["drawn"])
draw(as_drawn, "19.1.3")

# %% [markdown]
# Nothing overlaps: the boxes follow one another, and the share of hidden communication is 0. The order is not that of a backward either, which goes from the last layer down. Drawn as it happens: while layer N-1 computes its gradient, the gradient of layer N is on its way. B2 is the backward of the last of three layers:

# %%
three = [
    buckets.Layer(name=f"layer {i}", num_bytes=4, forward_us=0, backward_us=20_000)
    for i in range(3)
]
redrawn = buckets.simulate(
    three, [(2,), (1,), (0,)], lambda num_bytes: 16_000, num_ranks=2
)
draw(redrawn.select(redrawn.kind != "forward"), "19.1.3 (B2 B1 B0)")
print(
    f"hidden: {hidden_comm(as_drawn):.0%} as drawn, {hidden_comm(redrawn):.0%} redrawn"
)

# %% [markdown] sections="8.9.2"
# ## Pay less often: `no_sync` in the right place
#
# A batch that does not fit is cut into microbatches whose gradients add up in `.grad`. DDP would all-reduce in every backward; `no_sync()` switches that off. Section 8.9.2 puts `no_sync()` around **all** microbatches and calls an all-reduce of its own inside, for every gradient that is ready. Four ways, on two ranks with four microbatches:


# %%
def accumulate(form, num_microbatches=4):
    import contextlib
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic
    from torch import nn

    torch.manual_seed(0)
    net, rank, size = nn.Linear(100, 10), dist.get_rank(), dist.get_world_size()
    inputs, targets = (
        torch.randn(size, num_microbatches, 8, 100),
        torch.randn(size, num_microbatches, 8, 10),
    )
    nn.functional.mse_loss(
        net(inputs), targets
    ).backward()  # the whole batch on one process
    right, ddp = net.weight.grad.clone(), nn.parallel.DistributedDataParallel(net)
    net.zero_grad()
    with traffic.count() as counted:
        for k in range(num_microbatches):
            with (
                contextlib.nullcontext()
                if form == "last" and k == num_microbatches - 1
                else ddp.no_sync()
            ):
                (
                    nn.functional.mse_loss(ddp(inputs[rank, k]), targets[rank, k])
                    / num_microbatches
                ).backward()
            for weight in net.parameters() if form in ("sum", "mean") else ():
                dist.all_reduce(weight.grad)
                weight.grad /= size if form == "mean" else 1
    off = (net.weight.grad - right).abs().max() / right.abs().max()
    return (
        counted.calls["all_reduce"],
        counted.payload_bytes["all_reduce"],
        off.item(),
        net.weight.grad,
    )


# %%
WAYS = {
    "none": "no_sync around all, nothing else",
    "sum": "and all_reduce after every microbatch",
    "mean": "the same, divided by the ranks",
    "last": "no_sync for all but the last",
}
runs = {form: lab.launch(accumulate, form, ranks=2, timeout_s=30) for form in WAYS}
print(f"{'':<40} calls    bytes   off the whole batch   ranks differ by")
for form, (first, second) in runs.items():
    print(
        f"{WAYS[form]:<40} {first[0]:5} {first[1]:8,} {first[2]:21.1%} {(first[3] - second[3]).abs().max():17.1e}"
    )

# %% [markdown] sections="8.9.2, 10.4.3"
# - `no_sync` around everything, and nothing else: nothing is ever reduced, and every rank trains a model of its own.
# - An all-reduce of the running sum after every microbatch, as printed: what has been summed once is summed again. The result is wrong (`all_reduce` adds; 10.4.3's code does not divide either).
# - Divided each time it is right, for four times the bytes: the mean of what is already equal on all ranks does not change it.
# - `no_sync` for all but the last: one all-reduce, from DDP's own hooks, which overlap with the last backward.
#
# We waited for each all-reduce. The section's asynchronous one would still be on its way while the next backward adds to the same tensor.

# %% [markdown] sections="19.1.3, 10.4.3, 19.8.2"
# ## Accumulation is delayed communication
#
# With k microbatches per step, a rank communicates once instead of k times. The same model with two layers and the same slow link, one microbatch of 8 samples:

# %%
two_layers = data_parallel.Step(layers=layers[:2], ranks=2, link=link, num_steps=1)
print(" k   all-reduces   bytes a sample   time a sample: simulated   measured")
for k in (1, 2, 4, 8):
    both = two_layers.but(accumulate=k).compare()
    times_ms = [
        timeline.step_us(each) / 1000 / (8 * k)
        for each in (both.predicted, both.measured)
    ]
    print(
        f"{k:2}   1 in {8 * k:2} samples {sum(both.run[0]['bucket_bytes']) / (8 * k):12,.0f}   "
        f"{times_ms[0]:18.2f} ms {times_ms[1]:10.2f} ms"
    )
draw(both.measured, "k = 8")

# %% [markdown]
# Messages and bytes per sample fall as 1/k. The time can fall no further than computation, so most is gained from k = 1 to 4.
#
# What does it do to **convergence** (19.8.2)? k microbatches are one large batch: fewer updates, each from a better estimate. The same 64 microbatches on each of two ranks, once with one learning rate for all, once with the rate times k (linear scaling):


# %%
def converge(settings, num_microbatches=64):
    import contextlib
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    held_out, its_targets = model.story_tokens(64, 32, seed=99)
    losses = []
    for k, learning_rate in settings:
        torch.manual_seed(0)
        net = DDP(model.Transformer(1, 32, 2, max_len=32))
        optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
        for number in range(num_microbatches):
            last = number % k == k - 1
            tokens, targets = model.story_tokens(
                8, 32, seed=1000 * number + dist.get_rank()
            )
            with contextlib.nullcontext() if last else net.no_sync():
                (model.loss(net(tokens), targets) / k).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        losses.append(model.loss(net.module(held_out), its_targets).item())
    return losses


# %%
settings = [(1, 0.3), (4, 0.3), (8, 0.3), (4, 4 * 0.3), (8, 8 * 0.3)]
losses = lab.launch(converge, settings, ranks=2, timeout_s=50)[0]
print(" k   rate   updates    loss")
for (k, rate), loss in zip(settings, losses):
    print(f"{k:2}   {rate:4.1f}   {64 // k:7}   {loss:5.2f}")

# %% [markdown]
# With one learning rate, fewer updates get less far. A larger rate makes up for most of it, as long as training stays stable: look at the last line. To send less often and still update often is what *Local SGD* does: every rank updates by itself, and now and then they average their weights. Chapter 03 runs it.

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Send less: compression
#
# DDP lets a **communication hook** take the place of its all-reduce: `hook(state, bucket)` gets a bucket of gradients and returns a Future of their mean. Below, one function trains a small transformer on two ranks under any hook, over a slow link (paced), and counts what every step sends. *Handed in* is the size of the tensors given to collectives, *wire* what the system counted on the sockets, gloo's headers included. With two ranks, ring all-reduce and all-gather both send as much as is handed in.


# %%
def train(hook, state, num_steps, link):
    import time
    from statistics import median
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.devices.place import synchronize
    from labkit.measure import pace, traffic
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    net, sent, wire, seconds, losses = (
        DDP(model.Transformer(1, 32, 2, max_len=32)),
        [0],
        [],
        [],
        [],
    )
    pace.link(
        net,
        link and link.us,
        hook=hook,
        state=state,
        sent_bytes=lambda bucket: sent[-1],
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    held_out, its_targets = model.story_tokens(64, 32, seed=99)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(8, 32, seed=1000 * step + dist.get_rank())
        began = time.perf_counter()
        with traffic.count() as counted:
            model.loss(net(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize()  # a GPU works on while Python goes ahead
        seconds.append(time.perf_counter() - began)
        sent.append(counted.payload_bytes.total()), wire.append(counted.sent_bytes)
        if step % 10 == 9:
            losses.append(model.loss(net.module(held_out), its_targets).item())
    return {
        "loss": losses,
        "sent": sent[1:],
        "wire": wire[-1],
        "ms": 1000 * median(seconds),
    }


# %%
SLOW, NUM_STEPS, results = Link(alpha_us=200, bandwidth_gb_per_s=0.015), 80, {}


def compress(name, hook, **state):
    """Trains under a hook, keeps the result, returns a line about it."""
    run = lab.launch(train, hook, state, NUM_STEPS, SLOW, ranks=2, timeout_s=50)
    results[name] = result = run[0] | {"badge": run.badge}
    wire = (
        "  unknown" if result["wire"] is None else f"{result['wire']:9,}"
    )  # only Linux counts it
    return (
        f"{name:<26} a step: {result['sent'][-1]:8,} bytes handed in,{wire} on the wire, {result['ms']:5.1f} ms   "
        f"loss {sum(result['loss'][-3:]) / 3:.2f}"
    )


print(compress("all-reduce, float32", None))

# %% [markdown] sections="19.2.2b"
# ### From the library: fp16 and PowerSGD
#
# `fp16_compress_hook` reduces in half precision. PowerSGD sees a weight's gradient as a matrix and sends two thin factors of it, of a stated rank; what they miss goes into the next step (error feedback, below). Its first two steps are plain all-reduces.


# %%
def fp16(state, bucket):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
        fp16_compress_hook,
    )

    return fp16_compress_hook(None, bucket)


def power_sgd(state, bucket):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as library

    if "power" not in state:
        state["power"] = library.PowerSGDState(
            None, matrix_approximation_rank=state["rank"], start_powerSGD_iter=2
        )
    return library.powerSGD_hook(state["power"], bucket)


# %%
print(compress("fp16", fp16), compress("PowerSGD, rank 1", power_sgd, rank=1), sep="\n")

# %% [markdown]
# A weight of m rows and n columns costs r (m + n) numbers at rank r, instead of m n. Biases and norms, which are vectors, are sent whole; so is a matrix that this would not at least halve. From the model's shapes, beside the count above for rank 1:

# %%
from labkit import model

shapes = [
    weight.shape for weight in model.Transformer(1, 32, 2, max_len=32).parameters()
]
for rank in (1, 2, 4, 8):
    numbers = sum(
        rank * sum(shape)
        if len(shape) == 2 and 2 * rank * sum(shape) < shape.numel()
        else shape.numel()
        for shape in shapes
    )
    counted = (
        f"   counted {results['PowerSGD, rank 1']['sent'][-1]:,}" if rank == 1 else ""
    )
    print(f"rank {rank}: {4 * numbers:7,} bytes a step{counted}")

# %% [markdown] sections="10.4.3, S10"
# ### Top-k as the sources write it
#
# Top-k keeps only the largest k values of a gradient. Section 10.4.3 writes them into a tensor full of zeros and all-reduces that tensor. Here as a hook, with 1 %:


# %%
def textbook_10_4_3(state, bucket):
    import torch
    import torch.distributed as dist

    gradient = bucket.buffer()
    _, indices = torch.topk(gradient.abs(), max(1, int(gradient.numel() * 0.01)))
    sparse = torch.zeros_like(gradient)
    sparse.scatter_(0, indices, gradient[indices])
    return (
        dist.all_reduce(sparse, async_op=True)
        .get_future()
        .then(lambda done: done.value()[0])
    )


# %%
print(compress("top-1 %, 10.4.3", textbook_10_4_3))

# %% [markdown]
# As many bytes as without compression: a zero is sent like any other number. And the sum is not divided by the number of ranks, which doubles the learning rate here.
#
# S10 returns the gradient times a mask, and decompresses by **dividing by the mask**:

# %%
import torch

gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
mask = torch.zeros(1000)
mask[gradient.abs().topk(10).indices] = 1
compressed = gradient * mask
decompressed = compressed / mask
print(f"{decompressed.isnan().sum()} of {len(gradient)} values are NaN: 0 / 0")
print(
    f"the other {(decompressed == gradient).sum()} were whole before the division; still {compressed.nbytes} bytes"
)

# %% [markdown] sections="19.2.2b, 10.4.3"
# ### Top-k that sends fewer bytes
#
# Only k values go out, and k indices with them, because every rank chooses other places. That is no all-reduce: it is an all-gather, after which every rank adds up what it got.
#
# **Predict.** Section 19.2.2 says that the top 1 % saves "more than 99 %". What share does it save of what one rank hands in? And of what it sends among eight ranks?

# %%
my_saving_handed_in, my_saving_on_8_ranks = None, None


# %%
def top_k_bytes(num_values, share):
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic

    gradient, size = torch.randn(num_values), dist.get_world_size()
    chosen = gradient.abs().topk(int(share * num_values)).indices
    gathered = {torch.float32: gradient[chosen], torch.int32: chosen.int()}
    dist.barrier()
    with traffic.count() as dense:
        dist.all_reduce(gradient)
    with traffic.count() as sparse:
        for dtype, mine in gathered.items():
            dist.all_gather_single(torch.empty(size * len(mine), dtype=dtype), mine)
    return [(one.payload_bytes.total(), one.sent_bytes) for one in (dense, sparse)]


# %%
runs = {
    size: lab.launch(top_k_bytes, 1_000_000, 0.01, ranks=size, timeout_s=30)
    for size in (2, 4)
}
print(f"{my_saving_handed_in = }, {my_saving_on_8_ranks = }\n")
print(
    "ranks   handed in: dense    top-1 %   saved     sent: dense    top-1 %   saved   by formula"
)
for size, run in runs.items():
    dense, sparse = run[0]
    cells = [
        f"{full:15,} {few:10,} {1 - few / full:7.1%}"
        if full
        else f"{'not counted here':>34}"
        for full, few in zip(dense, sparse)
    ]
    print(f"{size:5}   {'   '.join(cells)}   {1 - size * 0.01:10.0%}")
print(f"    8   {'not run':>71}   {1 - 8 * 0.01:10.0%}")

# %% [markdown]
# Four bytes of value and four of index for 1 % of the values: 2 % is handed in, 98 % saved. But an all-gather passes everybody's part on to everybody: a rank sends $(N-1)$ times 8k bytes, where a ring all-reduce of n values sends $2(N-1)/N$ times 4n. The ratio is $Nk/n$: with eight ranks 8 % remains, 92 % is saved, and with a hundred ranks nothing.

# %% [markdown] sections="19.2.2b"
# ### Error feedback
#
# A small gradient is never among the largest, so top-k never sends it, however long it points the same way. **Error feedback** keeps what was not sent and adds it to the next gradient. Then what has been sent, plus what is kept, is the sum of all gradients: nothing is lost, some of it is late.


# %%
def top_k(state, bucket):
    import torch
    import torch.distributed as dist

    gradient, size, answer = (
        bucket.buffer(),
        dist.get_world_size(),
        torch.futures.Future(),
    )
    if state["feedback"]:
        gradient = gradient + state.get("kept", 0)
    chosen = gradient.abs().topk(int(state["share"] * len(gradient))).indices
    values, places = (
        gradient.new_empty(size * len(chosen)),
        gradient.new_empty(size * len(chosen), dtype=torch.int32),
    )
    dist.all_gather_single(values, gradient[chosen])
    dist.all_gather_single(places, chosen.int())
    state["kept"] = gradient.index_fill(0, chosen, 0)
    answer.set_result(
        torch.zeros_like(gradient).index_add_(0, places.long(), values / size)
    )
    return answer


# %%
print(
    compress("top-1 %", top_k, share=0.01, feedback=False),
    compress("top-1 %, error feedback", top_k, share=0.01, feedback=True),
    sep="\n",
)

# %% [markdown] sections="19.2.2b, 10.4.3"
# ### Eight bits, and how to round
#
# Quantisation divides by the largest value, maps to the whole numbers from -127 to 127, and sends one byte each. How to round? To the **nearest**, everything below half a step becomes 0, every time. **Stochastic** rounding goes up with a probability equal to the remainder: 0.3 becomes 1 in three of ten cases. One rounding is worse, the mean of many is right:

# %%
values = torch.tensor([0.1, 0.3, 0.5, 2.7, -0.2])
many = values.expand(100_000, 5)
stochastic = torch.floor(
    many + torch.rand(many.shape, generator=torch.Generator().manual_seed(0))
)
print("value, in steps       ", *(f"{x:7.2f}" for x in values))
print("nearest, mean of many ", *(f"{x:7.2f}" for x in torch.round(many).mean(0)))
print("stochastic, mean      ", *(f"{x:7.2f}" for x in stochastic.mean(0)))

# %% [markdown]
# Bytes of eight bits cannot be all-reduced: their sum does not fit into eight bits. On two real ranks, 100 + 100:


# %%
def add_bytes():
    import torch
    import torch.distributed as dist

    hundred = torch.tensor([100], dtype=torch.int8)
    dist.all_reduce(hundred)
    return hundred.item()


# %%
lab.launch(add_bytes, ranks=2, timeout_s=30)[0]

# %% [markdown]
# So the bytes are gathered, each rank's with its own scale, and added up as floats. With `levels=7` the numbers would fit into four bits (they are sent as bytes here; packed two by two it would be half).


# %%
def quantised(state, bucket):
    import torch
    import torch.distributed as dist

    gradient, size, answer = (
        bucket.buffer(),
        dist.get_world_size(),
        torch.futures.Future(),
    )
    scale = gradient.abs().max() / state["levels"]
    numbers = gradient / scale
    numbers = (
        torch.floor(numbers + torch.rand_like(numbers))
        if state["stochastic"]
        else torch.round(numbers)
    )
    scales, all_numbers = (
        gradient.new_empty(size),
        gradient.new_empty(size * len(numbers), dtype=torch.int8),
    )
    dist.all_gather_single(scales, scale.view(1))
    dist.all_gather_single(all_numbers, numbers.to(torch.int8))
    answer.set_result((all_numbers.view(size, -1) * scales[:, None]).mean(0))
    return answer


# %%
print(
    compress("8 bits, stochastic", quantised, levels=127, stochastic=True),
    compress("4 bits, nearest", quantised, levels=7, stochastic=False),
    compress("4 bits, stochastic", quantised, levels=7, stochastic=True),
    sep="\n",
)

# %% [markdown]
# At four bits, rounding to the nearest loses most of the gradient, and stochastic rounding does not. (At eight bits, try it: either will do for a model as small as this.)
#
# Gathering has its price again: the more ranks, the more is passed on. Sent bytes per rank, as a share of a float32 ring all-reduce (formulas). "In two steps" is how 1-bit Adam does it: all-to-all of bytes, add up, quantise again, all-gather of bytes.

# %%
print("ranks   top-1 %   8 bits gathered   8 bits in two steps")
for size in (2, 4, 8, 16, 64):
    print(f"{size:5}   {size * 0.01:7.0%}   {size / 8:15.0%}   {2 / 8:19.0%}")

# %% [markdown]
# ### All of them
#
# Loss against bytes sent: further left is cheaper, lower is better.


# %%
def sent_so_far(result):
    return [sum(result["sent"][:step]) / 1e6 for step in range(10, NUM_STEPS + 1, 10)]


SHOWN = {
    "all-reduce, float32": "all-reduce，float32",
    "8 bits, stochastic": "8 位，随机舍入",
    "PowerSGD, rank 1": "PowerSGD，秩 1",
    "top-1 %": "top-1 %",
    "top-1 %, error feedback": "top-1 %，误差反馈",
}
series = [
    curves.Series(
        {"en": name, "zh": zh}, sent_so_far(results[name]), results[name]["loss"]
    )
    for name, zh in SHOWN.items()
]
widgets.show(
    curves.curves(
        series,
        title={"en": "Loss against bytes sent", "zh": "损失与发送字节数"},
        x_name={"en": "MB sent by a rank", "zh": "一个 rank 发出的 MB"},
        y_name={"en": "loss", "zh": "损失"},
        log_x=True,
        badge=results["top-1 %"]["badge"],
    )
)

# %%
print(f"{'':<26} bytes a step   of dense   loss   ms a step on the slow link")
dense_bytes = results["all-reduce, float32"]["sent"][-1]
for name, result in results.items():
    print(
        f"{name:<26} {result['sent'][-1]:12,} {result['sent'][-1] / dense_bytes:10.1%} "
        f"{sum(result['loss'][-3:]) / 3:6.2f} {result['ms']:11.1f}"
    )

# %% [markdown] sections="10.4.3"
# The time includes the small model's computation. The loss is that of one run, a mean over its last three readings. Other seeds move it. What drops small values in every step and never makes up for it (10.4.3, top-1 % without feedback, four bits to the nearest) is behind. fp16 and stochastic rounding lose bits as well, but with little or no bias.
#
# ### When compression does not pay
#
# Compressing takes time too. It pays as long as the link needs longer for the saved bytes than the processor for compressing. The compressing is timed here, in the notebook's own process, with 4 million values; the bytes saved are those of two ranks:

# %%
import time
from statistics import median

gradient = torch.randn(4_000_000)
works = {
    "fp16": (lambda: gradient.half().float(), 0.5),
    "8 bits": (lambda: (gradient / 0.04).round().to(torch.int8), 0.75),
    "top-1 %": (
        lambda: gradient.index_fill(0, gradient.abs().topk(40_000).indices, 0),
        0.98,
    ),
}
for name, (work, saved) in works.items():
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    gb_per_s = saved * gradient.nbytes / median(seconds) / 1e9
    print(
        f"{name:<8} {1000 * median(seconds):6.1f} ms   pays on links slower than about {gb_per_s:5.2f} GB/s"
    )

# %% [markdown] sections="19.1.3"
# Ten-gigabit Ethernet carries 1.25 GB/s; section 19.1.3 gives 300 GB/s for NVLink, one way. A GPU compresses faster than this processor, but its links are faster as well: measure both. What overlap hides already cannot be saved a second time.

# %% [markdown] sections="19.1.3, 10.4.3"
# ## Better links: the order of a ring
#
# Two machines of four GPUs each: fast links inside, **one** cable between them, which all messages from one machine to the other share. (Stated speeds, slow enough to be paced here.)

# %%
inside, between = (
    Link(alpha_us=100, bandwidth_gb_per_s=0.05),
    Link(alpha_us=500, bandwidth_gb_per_s=0.01),
)
two_machines = network.islands(8, 4, inside=inside, between=between, shared=True)
widgets.show(network_picture.network(two_machines))

# %% [markdown]
# The ring may go through the ranks in any order. Which is faster, 0 1 2 3 4 5 6 7 or 0 4 1 5 2 6 3 7? A third way is **hierarchical**: reduce-scatter inside each machine, all-reduce across, all-gather inside. An all-reduce of 0.8 MB, simulated, and run on real processes over paced links:
#
# **Predict:** how many times as long does the worse ring take?

# %%
my_times_longer = lab.guess(
    {"en": "the worse ring over the better one", "zh": "较慢的环用时是较快的环的几倍"},
    unit="ratio",
)

# %%
ORDERS = ("0 1 2 3 4 5 6 7", "0 4 1 5 2 6 3 7")
PLANS = {
    "ring 0 1 2 3 4 5 6 7": algorithms.plan("all_reduce", "ring", 8),
    "ring 0 4 1 5 2 6 3 7": algorithms.plan(
        "all_reduce", "ring", 8, order=(0, 4, 1, 5, 2, 6, 3, 7)
    ),
    "hierarchical": algorithms.plan("all_reduce", "hierarchical", 8, island_size=4),
}
runs = {
    name: collectives.launch(plan, 800_000, network=two_machines, timeout_s=40)
    for name, plan in PLANS.items()
}
print(f"{'':<22} over the cable, one way   simulated    measured   off the sum by")
for (name, plan), run in zip(PLANS.items(), runs.values()):
    crossing = sum(
        len(move.chunks)
        for step in plan.steps
        for move in step
        if move.src < 4 <= move.dst
    )
    print(
        f"{name:<22} {crossing * 100_000:19,} bytes {network.time_us(plan, two_machines, 800_000) / 1000:8.0f} ms "
        f"{1000 * max(max(rank['seconds']) for rank in run):8.0f} ms {max(rank['max_error'] for rank in run):16.0e}"
    )
widgets.show(network_picture.network(two_machines, order=(0, 4, 1, 5, 2, 6, 3, 7)))
better, worse = (
    max(max(rank["seconds"]) for rank in runs[f"ring {each}"]) for each in ORDERS
)
my_times_longer.score(worse / better)

# %% [markdown]
# In the first ring two of the eight links cross, one in each direction. In the second all eight do, four in each direction, and the cable carries them one after another: the same payload per rank, four times the traffic on the cable. The hierarchical plan takes even less over the cable. NCCL, as documented, searches for such orders by itself when it starts (`NCCL_DEBUG_SUBSYS=GRAPH` prints what it found).
#
# And if every pair had a cable of its own? Simulated:

# %%
many_cables = network.islands(8, 4, inside=inside, between=between)
for name, plan in PLANS.items():
    print(f"{name:<22} {network.time_us(plan, many_cables, 800_000) / 1000:4.0f} ms")

# %% [markdown]
# Then the order of the ring does not matter, as long as there is a slow link in it at all: in every step all ranks wait for the slowest.

# %% [markdown] sections="10.4.3"
# ### Taking turns
#
# Section 10.4.3 also names scheduling: keep messages of different groups apart. Two jobs share one link. Each computes for 30 ms and then sends for 20 ms, if it has the link to itself. Started together, both send at the same time at half the speed. Started 25 ms apart, they never meet (simulated; a rank stands for a job):


# %%
def two_jobs(shift_ms, compute_ms=30, send_ms=20, num_steps=4):
    assert shift_ms == 0 or send_ms <= shift_ms <= compute_ms, (
        "only these cases are worked out"
    )
    took_ms = (
        send_ms if shift_ms else 2 * send_ms
    )  # two at a time have half of the link each
    rows = []
    for job in range(2):
        for step in range(num_steps):
            begin_us = 1000 * (job * shift_ms + step * (compute_ms + took_ms))
            middle_us, end_us = (
                begin_us + 1000 * compute_ms,
                begin_us + 1000 * (compute_ms + took_ms),
            )
            rows += [
                (job, "compute", "compute", str(step), begin_us, middle_us, 0),
                (job, "comm", "all_reduce", str(step), middle_us, end_us, 0),
            ]
    return from_rows(rows, num_ranks=2, origin="simulated")


# %%
together, apart = two_jobs(0), two_jobs(25)
for shift_ms, jobs in ((0, together), (25, apart)):
    draw(jobs, f"two_jobs({shift_ms})", span_us=together.end_us.max())
    print(
        f"started {shift_ms} ms apart: the last job ends after {jobs.end_us.max() / 1000:.0f} ms"
    )

# %% [markdown] sections="19.1.3"
# ### Whom do the others wait for?
#
# An all-reduce ends when the slowest rank has brought its part. Rank 1 takes half as long again for every layer. In the picture the all-reduces of the others begin early and last long: they wait in them.

# %%
slowed = step.but(slow={1: 1.5}).run().timeline()
draw(slowed, "slow = {1: 1.5}")
rank, waited_us = straggler(slowed)
print(
    f"the others wait for rank {rank}: {waited_us / 1000:.0f} ms in all; a step takes "
    f"{timeline.step_us(slowed) / 1000:.0f} ms, without it {timeline.step_us(compared[True].measured) / 1000:.0f} ms"
)

# %% [markdown] sections="8.9.2"
# ## NCCL's settings
#
# NCCL reads environment variables when its first communicator is made; set later, they do nothing. Those of section 8.9.2, and some more (after NVIDIA's documentation, see the sources):
#
# | variable | what it does | unset | in 8.9.2 |
# | --- | --- | --- | --- |
# | `NCCL_DEBUG` | WARN, INFO, ...: what NCCL says about itself | silent | INFO is right for looking, too much for every day |
# | `NCCL_IB_DISABLE` | 1 forbids InfiniBand and RoCE | allowed | 0 changes nothing: InfiniBand is used where there is one |
# | `NCCL_SOCKET_IFNAME` | prefixes of the network interfaces to use | chosen: lo and docker only if there is no other | `eth0` is a guess at this machine's interfaces, and a prefix; `=eth0` is the name |
# | `NCCL_P2P_LEVEL` | how far apart two GPUs may be for direct (P2P) messages | chosen | NVL enables nothing: pairs without NVLink lose P2P |
# | `NCCL_ALGO` | which algorithms: Ring, Tree, NVLS, ... | chosen by size and topology | not used |
# | `NCCL_PROTO` | which protocols: LL, LL128, Simple | chosen | not used; LL128 forced where unsupported can corrupt data |
# | `NCCL_NVLS_ENABLE` | reduction inside the NVLink switch | 2: where supported | not used |
# | `NCCL_DEBUG_SUBSYS` | which parts speak under INFO | INIT, BOOTSTRAP, ENV | not used |
#
# NVIDIA lists all of these but the interface and the debug ones under debugging: fine for an experiment, not to be left in a script. For two of the section's four, the rule that the user guide states is written out here in a few lines; NCCL itself is not asked. What would `NCCL_SOCKET_IFNAME` select on this machine, as documented?

# %%
import socket


def selected(setting, names):
    """The rule of NVIDIA's documentation: prefixes, after "^" to exclude, after "=" whole names."""
    excludes, setting = setting.startswith("^"), setting.removeprefix("^")
    whole, words = setting.startswith("="), setting.removeprefix("=").split(",")
    matches = [
        any(name == word if whole else name.startswith(word) for word in words)
        for name in names
    ]
    return [name for name, match in zip(names, matches) if match != excludes]


here = [name for _, name in socket.if_nameindex()]
print("interfaces of this machine:", *here)
for setting in ("eth0", "=eth0", "^lo,docker"):
    print(
        f"{setting:<11} selects {selected(setting, here) or 'nothing'}; "
        f"among eth0, eth01, ib0: {selected(setting, ['eth0', 'eth01', 'ib0'])}"
    )

# %% [markdown]
# And what does `NCCL_P2P_LEVEL=NVL` do, as documented? A level permits direct messages between GPUs that are no farther apart than it says. Applied to four GPUs as `nvidia-smi topo -m` might print them (invented): two pairs with NVLink, the pairs on two PCIe switches of one CPU.

# %%
TOPOLOGY = """GPU0   X    NV4  PHB  PHB
              GPU1  NV4   X   PHB  PHB
              GPU2  PHB  PHB   X   NV4
              GPU3  PHB  PHB  NV4   X"""
DISTANCE = ["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"]  # the levels, from near to far
paths = [
    ["NVL" if word.startswith("NV") else word for word in row.split()[1:]]
    for row in TOPOLOGY.splitlines()
]
for level in ("LOC", "NVL", "PHB", "SYS"):
    pairs = [
        f"{a}-{b}"
        for a in range(4)
        for b in range(a)
        if DISTANCE.index(paths[a][b]) <= DISTANCE.index(level)
    ]
    print(f"NCCL_P2P_LEVEL={level}: direct between {', '.join(pairs) or 'no pair'}")

# %% [markdown]
# By that rule NVL is nearly the strictest level: it gives the NVLink pairs nothing that a wider level would not, and takes P2P from the others. That is the documentation, not a run.
#
# How to see what NCCL really does: set `NCCL_DEBUG=INFO`, with `NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING`, and look for the lines on the network ("Using network"), the variables it has read ("set by environment"), and rings and trees ("Channel", "Ring", "Trees"). The next cell does that if there is a GPU.


# %%
def speak():
    import os
    import torch
    import torch.distributed as dist

    os.environ |= {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING",
        "NCCL_DEBUG_FILE": "/dev/stdout",
    }
    dist.all_reduce(torch.ones(1 << 20))  # the first collective makes the communicator
    torch.accelerator.synchronize()


# %%
if resources.num_gpus():
    run = lab.launch(
        speak, ranks=min(2, resources.num_gpus()), devices="cuda", timeout_s=50
    )
    lines = [line for line in run.logs[0].splitlines() if "NCCL INFO" in line]
    wanted = [
        line
        for line in lines
        if any(
            word in line for word in ("Using network", "environment", "Ring", "Trees")
        )
    ]
    print(
        f"{len(lines)} lines of NCCL INFO from rank 0; among them:",
        *wanted[:12],
        sep="\n",
    )
else:
    print("No GPU here: NCCL was not run, and there is nothing to show.")

# %% [markdown] sections="19.8.2"
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown and gives the first case that goes wrong; *over budget* means right, but wasteful. `check.hint(name)` tells more after each attempt.
#
# ### 1. Accumulate (19.8.2)
#
# `ddp` is a `DistributedDataParallel`, `microbatches` a list of pairs (inputs, targets) of one size. Leave in `ddp` the gradients of the mean squared error of the **whole** batch, over all microbatches and ranks, and let them be all-reduced once. The check makes three updates with them: training converges as it does with the large batch.


# %%
def my_accumulation(ddp, microbatches):
    """The gradients of the whole batch stay in ddp's parameters."""
    ### BEGIN SOLUTION
    from torch.nn.functional import mse_loss

    with ddp.no_sync():
        for x, y in microbatches[:-1]:
            (mse_loss(ddp(x), y) / len(microbatches)).backward()
    x, y = microbatches[-1]
    (mse_loss(ddp(x), y) / len(microbatches)).backward()
    ### END SOLUTION


# %%
check.accumulate(my_accumulation)

# %%
check.hint("accumulate")

# %% [markdown]
# ### 2. Error feedback that converges
#
# Every rank calls this function in every step with its own gradient. Return the mean that all ranks use, and the memory that you want to get back in the next call (zeros in the first). A rank may hand in 8 bytes for each of k values per call, no more. The check trains on real ranks and compares with training without compression; and it adds up what was sent and what is kept.


# %%
def my_reduce(gradient, memory, k):
    """(mean of what the ranks send, the new memory)"""
    ### BEGIN SOLUTION
    import torch
    import torch.distributed as dist

    corrected, size = gradient + memory, dist.get_world_size()
    chosen = corrected.abs().topk(k).indices
    values, places = torch.empty(size * k), torch.empty(size * k, dtype=torch.int32)
    dist.all_gather_single(values, corrected[chosen])
    dist.all_gather_single(places, chosen.int())
    mean = torch.zeros_like(gradient).index_add_(0, places.long(), values / size)
    return mean, corrected.index_fill(0, chosen, 0)
    ### END SOLUTION


# %%
check.error_feedback(my_reduce)

# %%
check.hint("error_feedback")

# %% [markdown]
# ### 3. The order of a ring
#
# `bandwidths[a][b]` is the bandwidth between ranks a and b in GB/s, each pair with a link of its own. Return the ranks in the order of a ring whose slowest link is as fast as possible, and which has as few links of that speed as possible. At most eight ranks.


# %%
def my_ring(bandwidths):
    """All ranks, each once, in the order of the ring."""
    ### BEGIN SOLUTION
    from itertools import permutations

    def quality(ring):
        links = [bandwidths[a][b] for a, b in zip(ring, ring[1:] + ring[:1])]
        return min(links), -links.count(min(links))

    return list(
        max(
            ((0, *rest) for rest in permutations(range(1, len(bandwidths)))),
            key=quality,
        )
    )
    ### END SOLUTION


# %%
check.ring_order(my_ring)

# %%
check.hint("ring_order")

# %% [markdown] sections="10.7.3"
# ### 4. An experiment (10.7.3)
#
# Which combination of compression and accumulation gives the most samples per second? `settings` is a list of dicts like `{"accumulate": 2, "compression": "fp16"}`; a step works through `accumulate` microbatches of 8 samples. `measure(setting)` runs one step and returns its microseconds. As on a real machine, the first three steps of a setting are slow, times vary, and now and then a step is disturbed. Measure no setting more than 25 times, and return the best. (Its clock is simulated, so that the check knows the truth.)


# %%
def my_experiment(measure, settings):
    """The setting with the most samples per second."""
    ### BEGIN SOLUTION
    from statistics import median

    def rate(setting):
        times_us = [measure(setting) for _ in range(18)]
        return setting["accumulate"] * 8 / median(times_us[3:])

    return max(settings, key=rate)
    ### END SOLUTION


# %%
check.experiment(my_experiment)

# %%
check.hint("experiment")

# %% [markdown]
# ## Summary
#
# - Overlap hides all buckets but the last, if the link keeps up with the backward. `no_sync` belongs around all microbatches but the last.
# - Accumulation divides messages and bytes per sample by k; it is a larger batch, with fewer updates.
# - Bytes are saved only when fewer are sent: a dense tensor full of zeros saves nothing. Gathered messages grow with the number of ranks.
# - Error feedback makes a biased compression converge; stochastic rounding has no bias to begin with.
# - On uneven links the order decides: cross the slow one as rarely as you can. Everybody waits for the slowest rank.
# - Compression pays on slow links. Measure first.
#
# ## Sources
#
# - DDP, buckets and hooks: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704); [DDP communication hooks](https://pytorch.org/docs/stable/ddp_comm_hooks.html)
# - Error feedback: Stich et al. 2018, [arXiv 1809.07599](https://arxiv.org/abs/1809.07599); Karimireddy et al. 2019, [arXiv 1901.09847](https://arxiv.org/abs/1901.09847). Top-k in practice: Lin et al. 2017, [arXiv 1712.01887](https://arxiv.org/abs/1712.01887)
# - Stochastic rounding of gradients (QSGD): Alistarh et al. 2016, [arXiv 1610.02132](https://arxiv.org/abs/1610.02132). Reduction in two steps of compressed messages: 1-bit Adam, Tang et al. 2021, [arXiv 2102.02888](https://arxiv.org/abs/2102.02888)
# - PowerSGD: Vogels et al. 2019, [arXiv 1905.13727](https://arxiv.org/abs/1905.13727). When compression pays: Agarwal et al. 2021, [arXiv 2103.00543](https://arxiv.org/abs/2103.00543)
# - Jobs that take turns on a link: CASSINI, Rajasekaran et al. 2023, [arXiv 2308.00852](https://arxiv.org/abs/2308.00852)
# - NVIDIA, NCCL user guide: [environment variables](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), [logging](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html)
#
# Where you stand:

# %%
check.status()
