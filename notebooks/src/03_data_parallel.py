# ---
# jupyter:
#   labkit:
#     sections: ["8.3.1", "19.2.1", "19.2.2a", "10.2.1", "10.2.2", "10.2.4", "S1", "S2", "S12"]
#     needs: ["two CPU cores"]
#     minutes: 75
# ---

# %% [markdown]
# # Data parallelism
#
# *Sections 8.3.1, 10.2.1, 10.2.2, 10.2.4, 19.2.1, the buckets and asynchronous part of 19.2.2, S1, S2 and S12 of the source material. About 75 minutes. No GPU is needed.*
#
# Every rank holds the whole model and works on its own part of the batch. The gradients are averaged, and every rank makes the same update. That is all; the rest of this chapter is about doing it in few messages, under the backward, on the right data, and without waiting for the slowest.
#
# You will write it by hand, replace it piece by piece by `DistributedDataParallel`, run a complete training script under `torchrun`, and then give up waiting: a parameter server with late gradients, and Local SGD.

# %%
import labkit as lab

lab.begin("en")
import torch
import torch.distributed as dist
from labkit import timeline
from labkit.pictures import curves, scene
from labkit import data_parallel, model, widgets
from labkit.machine import resources
from labkit.pictures.curves import Series
from labkit.data_parallel import check
from labkit.collectives.network import Link
from labkit.units import format_bytes


def difference(ours, theirs):
    """The largest difference between two dicts of tensors."""
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


# %% [markdown] sections="10.2.1, 19.2.1"
# ## Six steps by hand
#
# Section 10.2.1 lists six steps; section 19.2.1 draws them. Here they are as one rank function, numbered. Each rank computes the mean loss of its own share, so the gradients are summed over the ranks and divided by their number.


# %%
def six_steps(num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = model.Transformer(
        2, 32, 2, max_len=32
    )  # 2 the same weights everywhere: the seed is the same
    for step in range(num_steps):
        batch = model.story_tokens(8, 32, seed=step)
        tokens, targets = (
            part.chunk(size)[rank] for part in batch
        )  # 1 other data everywhere
        loss = model.loss(net(tokens), targets)  # 3 forward
        loss.backward()  # 4 backward
        for weight in net.parameters():  # 5 average the gradients
            dist.all_reduce(weight.grad)
            weight.grad /= size
        with torch.no_grad():  # 6 the same update everywhere
            for weight in net.parameters():
                weight -= 0.5 * weight.grad
        net.zero_grad()
    return net.state_dict()


# %% [markdown]
# With `ranks=1` the same function is ordinary training on the whole batch of 8. **Predict.** After three steps, how far are the weights of 2 and of 4 ranks from those of the one process?

# %%
my_difference = None

# %%
runs = {size: lab.launch(six_steps, 3, ranks=size, timeout_s=40) for size in (1, 2, 4)}
torch.manual_seed(0)
start = model.Transformer(2, 32, 2, max_len=32).state_dict()
print(
    f"{my_difference = }; three steps moved a weight by up to {difference(runs[1][0], start):.3f}"
)
for size in (2, 4):
    print(
        f"{size} ranks - 1 process: {difference(runs[size][0], runs[1][0]):.1e}"
        f"   rank {size - 1} - rank 0: {difference(runs[size][size - 1], runs[size][0]):g}"
    )

# %% [markdown] sections="19.2.1"
# Rounding, no more: a sum of four parts is added up in another order. Between ranks there is no difference at all, for all of them got the same bytes from the all-reduce. That is why data parallelism needs no broadcast of weights after the first step.
#
# ### The mean of means
#
# It worked because the shares are equal. Let rank 0 have six of the eight sequences and rank 1 two. `1 / size` gives both ranks the same weight in the mean, hence each sequence of rank 1 three times the weight of one of rank 0. `share / 8` is right.


# %%
def unequal_shares():
    import torch
    import torch.distributed as dist
    from labkit import model

    rank, shares, found = dist.get_rank(), (6, 2), {}
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    batch = model.story_tokens(8, 32)
    for name, factor in (
        ("whole batch", None),
        ("1 / size", 1 / 2),
        ("share / 8", shares[rank] / 8),
    ):
        tokens, targets = (
            part if factor is None else part.split(shares)[rank] for part in batch
        )
        net.zero_grad()
        model.loss(net(tokens), targets).backward()
        for weight in net.parameters() if factor else ():
            weight.grad *= factor
            dist.all_reduce(weight.grad)
        found[name] = {
            name: weight.grad.clone() for name, weight in net.named_parameters()
        }
    return found


# %%
found = lab.launch(unequal_shares, ranks=2, timeout_s=40)[0]
largest = max(grad.abs().max().item() for grad in found["whole batch"].values())
for name in ("1 / size", "share / 8"):
    print(
        f"{name:>9}: off by up to {difference(found[name], found['whole batch']):.1e}, largest gradient {largest:.2f}"
    )

# %% [markdown] sections="S1"
# ## nn.DataParallel, and why not
#
# Section S1 wraps the model in `nn.DataParallel`. It is one process that drives all GPUs: in every forward it copies the weights to each of them, runs the copies in threads and collects the outputs on the first GPU; the gradients come back the same way. What its own documentation says, and what it does on this machine (without at least two GPUs: nothing, it calls the module):

# %%
import inspect

from torch.nn import DataParallel  # not deprecated, but kept only for old code

print(
    " ".join(inspect.getdoc(DataParallel).partition(".. warning::")[2].split()[:18]),
    "...",
)
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.get_default_device()
net = model.Transformer(2, 32, 2, max_len=32).to(device)
wrapped, (tokens, targets) = DataParallel(net), model.story_tokens(8, 32)
same = torch.equal(wrapped(tokens.to(device)), net(tokens.to(device)))
print(
    f"GPUs it uses here: {wrapped.device_ids}; output equal to the bare module's: {same}"
)

# %% [markdown]
# Two reasons against it can be counted anywhere. First, threads of one Python process take turns: one lock, the GIL. Below, two equal shares of pure Python work, as between the torch calls of a forward. The best of seven tries:

# %%
import time
from concurrent.futures import ThreadPoolExecutor


def think():
    """Python work; returns its seconds."""
    began = time.perf_counter()
    sum(i * i for i in range(600_000))
    return time.perf_counter() - began


def best_of_seven(work):
    return min(work() for _ in range(7))


def think_in_rank():
    return best_of_seven(think)


# %%
def two_threads():
    began = time.perf_counter()
    list(ThreadPoolExecutor(2).map(lambda _: think(), range(2)))
    return time.perf_counter() - began


one = best_of_seven(think)
rows = {
    "one after the other": 2 * one,
    "two threads": best_of_seven(two_threads),
    "two ranks": max(lab.launch(think_in_rank, ranks=2, timeout_s=40)),
}
for name, seconds in rows.items():
    print(f"{name:<19} {seconds / one:.1f} times one share")

# %% [markdown]
# Two threads take about as long as one after the other; two ranks, on two free cores, about as long as one. Second, every step begins and ends on the first GPU: it hands out the weights before any forward can start, and takes in all outputs and gradients, and none of that lies under the backward. Bytes of weights out and gradients in, in multiples of the model, if they are copied GPU by GPU (with NCCL, torch calls its broadcast and its reduce instead, which are not counted here), beside what a rank of a ring all-reduce sends and receives:

# %%
from labkit.collectives.algorithms import plan
from labkit.collectives.plans import received_bytes, sent_bytes

print("  N   GPU 0, copy by copy      ring, each rank")
for size in (2, 4, 8):
    star = (
        sent_bytes(plan("broadcast", "star", size), 1)[0]
        + received_bytes(plan("reduce", "star", size), 1)[0]
    )
    ring = plan("all_reduce", "ring", size)
    print(
        f"{size:3} {star:24.2f} {sent_bytes(ring, 1)[0] + received_bytes(ring, 1)[0]:17.2f}"
    )

# %% [markdown] sections="19.2.2a"
# ## From one message per weight to buckets
#
# `six_steps` sends one message per weight, and each pays the latency. A **bucket** is several gradients in one message. Here it closes when it holds `bucket_bytes` or more; it is filled from the last weight to the first, the order in which the backward finishes them.


# %%
def average(tensors):
    """Replaces tensors by their means over the ranks, in one message; returns its bytes."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, piece in zip(
        tensors, flat.split([tensor.numel() for tensor in tensors])
    ):
        tensor.copy_(piece.view_as(tensor))
    return flat.nbytes


# %%
def one_by_one(weights):
    for weight in weights:
        average([weight.grad])


def in_buckets(weights, bucket_bytes=256 * 1024):
    bucket = []
    for weight in reversed(weights):
        bucket.append(weight.grad)
        if sum(grad.nbytes for grad in bucket) >= bucket_bytes or weight is weights[0]:
            average(bucket)
            bucket = []


# %% [markdown]
# The third way is `DistributedDataParallel` with buckets of the same size (`bucket_cap_mb` counts in MiB). All three on the same weights and data, twelve steps each: the last one is counted, and *step* and *CPU* are medians from the third on. **Predict** the number of all-reduces of each. The model has 53 weights and 0.94 MB of gradients.

# %%
my_calls = {"per weight": None, "buckets": None, "DDP": None}


# %%
def three_ways():
    import copy
    import statistics
    import time
    import torch.distributed as dist
    from labkit import model
    from labkit.devices.place import synchronize
    from labkit.measure import traffic
    from torch.nn.parallel import DistributedDataParallel as DDP

    tokens, targets = model.story_tokens(
        4, 32, seed=dist.get_rank()
    )  # other data on each rank
    net, found = model.Transformer(4, 64, 4, max_len=32), {}
    for weight in net.parameters():
        dist.broadcast(weight.detach(), 0)  # the same weights; DDP does it by itself
    for name, afterwards in (
        ("per weight", one_by_one),
        ("buckets", in_buckets),
        ("DDP", None),
    ):
        mine = copy.deepcopy(net)
        run = mine if afterwards else DDP(mine, bucket_cap_mb=0.25)
        steps = []
        for step in range(12):
            mine.zero_grad()
            dist.barrier()
            began, cpu_began = time.perf_counter(), time.process_time()
            with traffic.count() as counted:
                model.loss(run(tokens), targets).backward()
                if afterwards:
                    afterwards(list(mine.parameters()))
            synchronize()  # a GPU works on while Python goes ahead
            steps.append((time.perf_counter() - began, time.process_time() - cpu_began))
        ms = [1e3 * statistics.median(each) for each in zip(*steps[2:])]
        found[name] = (
            counted,
            ms,
            {name: weight.grad for name, weight in mine.named_parameters()},
        )
    return found


# %%
found = lab.launch(three_ways, ranks=2, timeout_s=40)[0]
print(
    f"{my_calls = }\n             all-reduces      payload   on the wire   step    CPU      difference"
)
for name, (counted, ms, grads) in found.items():
    wire = (
        "unknown" if counted.sent_bytes is None else f"{counted.sent_bytes:,}"
    )  # only Linux counts it
    print(
        f"{name:<12} {counted.calls['all_reduce']:11} {counted.payload_bytes['all_reduce']:12,} "
        f"{wire:>13} {ms[0]:3.0f} ms {ms[1]:3.0f} ms {difference(grads, found['per weight'][2]):12.1e}"
    )

# %% [markdown]
# The same bytes, the same gradients. What differs is the number of messages; on the wire each adds a header. (Ring or tree is not DDP's choice but the backend's: chapter 02.) And DDP sends its buckets while the backward still runs. Here that wins little or nothing against buckets by hand: between processes of one machine a message is moved and added up by the cores that also compute the backward. Look at *CPU*, what a rank's core worked in a step: it was hardly ever idle, so there is hardly any time to hide under. Where links take time of their own it wins, as measured further down. Autograd has a hook for that, which fires as soon as a gradient is complete. With it, overlap by hand takes one line:


# %%
def during_the_backward():
    import torch.distributed as dist
    from labkit import model

    net, under_way = model.Transformer(4, 64, 4, max_len=32), []
    tokens, targets = model.story_tokens(4, 32)
    for name, weight in net.named_parameters():
        weight.register_post_accumulate_grad_hook(
            lambda weight, name=name: under_way.append(
                (name, dist.all_reduce(weight.grad, async_op=True))
            )
        )
    model.loss(net(tokens), targets).backward()
    started = len(under_way)  # before anybody waited
    for _, work in under_way:
        work.wait()
    return started, [name for name, _ in under_way]


started, names = lab.launch(during_the_backward, ranks=2, timeout_s=40)[0]
print(f"started when the backward ended: {started} of {len(names)}")
print("first:", *names[:4], "\nlast: ", *names[-4:])

# %% [markdown] sections="19.2.2a"
# ### Which gradients share a bucket
#
# A communication hook sees each bucket as it leaves. DDP's defaults (1 MiB for the first bucket, 25 MiB for the others), a somewhat larger model, three steps:


# %%
def watch_buckets(num_steps):
    import torch.distributed as dist
    from labkit import model
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    net, steps = model.Transformer(2, 192, 4, max_len=32), []
    names = {weight.data_ptr(): name for name, weight in net.named_parameters()}
    tokens, targets = model.story_tokens(2, 32, seed=dist.get_rank())

    def watch(group, bucket):
        steps[-1].append(
            (
                bucket.buffer().nbytes,
                [names[weight.data_ptr()] for weight in bucket.parameters()],
            )
        )
        return allreduce_hook(group, bucket)

    ddp = DDP(net)
    ddp.register_comm_hook(None, watch)
    for _ in range(num_steps):
        steps.append([])
        model.loss(ddp(tokens), targets).backward()
    return steps


# %%
for step, seen in enumerate(lab.launch(watch_buckets, 3, ranks=2, timeout_s=40)[0]):
    for num_bytes, names in seen:
        print(
            f"step {step}: {format_bytes(num_bytes):>8}, {len(names):2} gradients:",
            *names[:2],
            "...",
            *names[-2:],
        )

# %% [markdown] sections="19.2.2a"
# In the first step DDP knows nothing of the model's order and sends one bucket. It notes in which order the gradients became ready, rank 0 tells the others, and from the second step on the buckets follow that order: `logits` before `norm`, which the model registered the other way round. The first bucket is kept small, so that something is under way early.
#
# ### How large should a bucket be?
#
# A stated step, small enough to draw: 12 layers, 0.5 MiB of gradients each; forward 3 ms, backward 6 ms a layer; two ranks on a link of 0.08 GB/s and 2.5 ms latency. **Predict.** Which bucket size gives the shortest step: 0.5, 1, 2, 3 or 6 MiB?

# %%
SIZES_MIB = (0.5, 1, 2, 3, 6)
my_bucket_mb = lab.guess(
    {"en": "the best bucket size, in MiB", "zh": "最好的桶大小（MiB）"},
    choices=[str(size) for size in SIZES_MIB],
)

# %% [markdown]
# **Simulate.** A bucket's all-reduce starts when its last gradient is there and the link is free. **Run.** Real DDP with real gradients of these sizes; layers sleep out their stated times, each real all-reduce its stated time on the link ("paced").

# %%
link = Link(alpha_us=2500, bandwidth_gb_per_s=0.08)
step = data_parallel.Step(
    layers=12, layer_mb=0.5, forward_ms=3, ranks=2, bucket_mb=2, link=link, num_steps=1
)
by_size = lab.sweep(step, bucket_mb=SIZES_MIB, run=[0.5, 2, 6])
best = min(by_size.rows(), key=lambda row: row["predicted"])
display(by_size)
my_bucket_mb.score(str(best["bucket_mb"]))

# %% [markdown]
# **Compare** the two ends. Small buckets: the link is busy all the time, with latency. One large bucket: it can only start when the backward is over.

# %%
for mb in (0.5, 6):
    display(step.but(bucket_mb=mb).compare())

# %% [markdown] sections="8.3.1"
# ### Turn the knobs
#
# Bucket size, layer sizes, link, ranks, overlap on or off. The button runs the same setting with real DDP and lays the measurement under the prediction.

# %%
step.board()

# %% [markdown] sections="8.3.1"
# ## Other data on each rank: DistributedSampler
#
# `DistributedSampler` deals the indices of a dataset. Here are 8 samples on 2 ranks for three epochs, first as in section 8.3.1 with `set_epoch`, then without it:

# %%
from torch.utils.data import DistributedSampler


def deal(num_samples, num_ranks, epoch=None, **options):
    """The indices of every rank."""
    samplers = [
        DistributedSampler(range(num_samples), num_ranks, rank, **options)
        for rank in range(num_ranks)
    ]
    for sampler in samplers:
        if epoch is not None:
            sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


for epoch in range(3):
    print(f"epoch {epoch}   set_epoch: {deal(8, 2, epoch)}   without: {deal(8, 2)}")

# %% [markdown] sections="8.3.1, 10.2.4"
# Without `set_epoch` every epoch has the same order. Section 10.2.4 calls it "so that different processes use different data". That is not what it does: in both columns the two ranks share nothing; the sampler's `rank` sees to that. `set_epoch` makes **epochs** differ.
#
# ### Without a sampler
#
# Nothing fails if it is forgotten. Every rank then draws the same batch. **Predict:** of which batch is the averaged gradient?


# %%
def four_sequences_each(with_sampler):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.manual_seed(0)
    net, data = (
        model.Transformer(2, 32, 2, max_len=32),
        TensorDataset(*model.story_tokens(8, 32)),
    )
    sampler = DistributedSampler(data, shuffle=False) if with_sampler else None
    tokens, targets = next(iter(DataLoader(data, batch_size=4, sampler=sampler)))
    ddp = DDP(
        net
    )  # with its name: nothing but the wrapper keeps the all-reduces alive until the backward
    model.loss(ddp(tokens), targets).backward()
    return {name: weight.grad for name, weight in net.named_parameters()}


# %%
def one_process(batch):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    model.loss(net(batch[0]), batch[1]).backward()
    return {name: weight.grad for name, weight in net.named_parameters()}


eight = model.story_tokens(8, 32)
for with_sampler in (True, False):
    grads = lab.launch(four_sequences_each, with_sampler, ranks=2, timeout_s=40)[0]
    print(
        f"sampler: {with_sampler!s:5}   off the gradient of all 8: {difference(grads, one_process(eight)):.0e}"
        f"   of the first 4: {difference(grads, one_process([part[:4] for part in eight])):.0e}"
    )

# %% [markdown] sections="8.3.1"
# Two ranks at work, and the result of a batch half as large, as if there were one.
#
# ### Ten samples on four ranks
#
# Every rank must take the same number of steps, or the all-reduces do not match. So the sampler pads with samples that it gives out twice, or drops some. In training that hardly matters. In evaluation it makes the number wrong. Let a model be right on all of 10 samples but the first, the second and the last:

# %%
right = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 1, 0])
shares = {
    "padded (default)": deal(10, 4, shuffle=False),
    "drop_last=True": deal(10, 4, shuffle=False, drop_last=True),
    "range(rank, 10, 4)": [list(range(rank, 10, 4)) for rank in range(4)],
}
for name, dealt in shares.items():
    used = sum(dealt, [])
    print(
        f"{name:<19} accuracy {right[used].sum()}/{len(used)} = {right[used].float().mean():.1%}   {dealt}"
    )

# %% [markdown]
# Seven of ten is right. The last line is the cure for evaluation: uneven shares, no gradient, and one all-reduce of two numbers at the end, (correct, count). Training on uneven shares is the second exercise.

# %% [markdown] sections="10.2.4"
# ## no_sync: four microbatches, one all-reduce
#
# With gradient accumulation only the sum of several backwards is needed, so only the last one has to communicate. `ddp.no_sync()` turns the all-reduces off inside its block. Three variants; the third puts only the backward into the block. **Predict** their all-reduces (the model fits in one bucket).


# %%
def accumulate(name):
    import contextlib
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.measure import traffic
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(8, 32, seed=dist.get_rank())
    with traffic.count() as counted:
        for k, (x, y) in enumerate(zip(tokens.chunk(4), targets.chunk(4))):
            quiet = k < 3 and name != "plain"
            with (
                ddp.no_sync()
                if quiet and name == "no_sync"
                else contextlib.nullcontext()
            ):
                loss = model.loss(ddp(x), y) / 4
                with ddp.no_sync() if quiet else contextlib.nullcontext():
                    loss.backward()
    return counted, {name: weight.grad for name, weight in ddp.named_parameters()}


# %%
my_calls = {"plain": None, "no_sync": None, "backward only": None}

# %%
found = {
    name: lab.launch(accumulate, name, ranks=2, timeout_s=40)[0] for name in my_calls
}
for name, (counted, grads) in found.items():
    print(
        f"{name:<14} {counted.calls['all_reduce']} all-reduces, {counted.payload_bytes['all_reduce']:7,} bytes, "
        f"difference {difference(grads, found['plain'][1]):.0e}; I said {my_calls[name]}"
    )

# %% [markdown]
# The forward belongs into the block, too: it is in the forward that DDP decides whether the coming backward communicates.

# %% [markdown] sections="10.2.4, S12"
# ## A whole training run
#
# The template: seed, data, sampler, loader, DDP, optimizer; a loop that logs the loss of **all** ranks and lets rank 0 save. Sections 10.2.4 and S12 have the same frame. (S12's mixed precision is chapter 05's subject; its `torch.cuda.amp` is today's `torch.amp`.)


# %%
def train(num_epochs, folder):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.manual_seed(0)
    data, logged = TensorDataset(*model.story_tokens(64, 32)), []
    sampler = DistributedSampler(
        data
    )  # shuffles; asks the process group for rank and size
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        losses = []
        with torch.device("cpu"):  # a sampler shuffles on the host
            batches = list(DataLoader(data, batch_size=8, sampler=sampler))
        for tokens, targets in batches:
            optimizer.zero_grad()
            losses.append(model.loss(ddp(tokens), targets))
            losses[-1].backward()
            optimizer.step()
        mean = torch.stack(losses).detach().mean()
        dist.all_reduce(mean)  # for the log; gradients have been averaged by DDP
        logged.append((losses[-1].item(), mean.item() / dist.get_world_size()))
        if dist.get_rank() == 0:
            torch.save(
                {"model": ddp.module.state_dict(), "epoch": epoch}, f"{folder}/last.pt"
            )
        dist.barrier()  # nobody goes on, or looks for the file, before it is there
    return logged, next(iter(ddp.state_dict()))


# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

folder = tempfile.TemporaryDirectory()
by_launch = lab.launch(train, 3, folder.name, ranks=2, timeout_s=40)
print("epoch   last batch, rank 0   rank 1   mean of all")
for epoch, (ours, theirs) in enumerate(zip(by_launch[0][0], by_launch[1][0])):
    print(f"{epoch:5} {ours[0]:20.3f} {theirs[0]:8.3f} {ours[1]:13.3f}")

# %% [markdown]
# Section 10.2.4 prints `loss.item()` on rank 0: the first column, the loss of one batch of one rank. The last column is the epoch's.
#
# S12 saves `model.state_dict()` of the wrapped model. Every name in it begins with `module.`, so the bare model does not take it:

# %%
saved = torch.load(
    Path(folder.name, "last.pt"), map_location=torch.get_default_device()
)
print("a name in ddp.state_dict():", by_launch[0][1])
for prefix in ("", "module."):
    weights = {prefix + name: weight for name, weight in saved["model"].items()}
    try:
        said = model.Transformer(2, 32, 2, max_len=32).load_state_dict(weights)
    except RuntimeError as error:
        said = str(error).split("\n\t")[1].split(",")[0]
    print(f"loading {next(iter(weights))}: {said}")

# %% [markdown] sections="S2"
# ### The same under torchrun
#
# As a script, the function needs what `lab.launch` did for it: a process group. `torchrun` starts the processes and sets `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`; `init_process_group` reads them (`env://` is its default). On GPUs each process takes its own, and `init_process_group` takes NCCL.

# %%
MAIN = """
if __name__ == "__main__":
    import os, sys
    import torch, torch.distributed as dist

    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        torch.set_default_device(torch.accelerator.current_accelerator())
    dist.init_process_group()
    logged, _ = train(3, sys.argv[1])
    if dist.get_rank() == 0:
        print(*(f"{mean:.3f}" for _, mean in logged), flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
script = Path(folder.name, "train.py")
script.write_text(inspect.getsource(train) + MAIN)
by_torchrun = lab.launch_script(script, folder.name, ranks=2, timeout_s=55)
print("torchrun:  ", by_torchrun.logs[0].split("\n")[-2])
print("lab.launch:", *(f"{mean:.3f}" for _, mean in by_launch[0][0]))

# %% [markdown]
# On several machines the same command runs on each, with one number different. Section S2's command, read by torchrun's own parser:

# %%
from torch.distributed.run import get_args_parser

COMMAND = "--nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --master_port=29500 train.py"
parser = get_args_parser()
chosen = vars(parser.parse_args(COMMAND.split()))
for action in parser._actions:
    if f"--{action.dest}=" in COMMAND:
        print(
            f"{action.dest:<15} {chosen[action.dest]!s:<10} {' '.join(action.help.split()).partition('. ')[0]}"
        )
print(f"16 ranks: node 1, local rank 3 is rank {1 * 8 + 3}")

# %% [markdown] sections="S2, S12"
# `node_rank` is the number that differs. `RANK` counts over all nodes, `LOCAL_RANK` within one. S2 and S12 print, and S12 saves, `if local_rank == 0`. Here are two nodes on this machine, each with an agent and a rank of its own:

# %%
TWO_NODES = """
import os, torch
import torch.distributed as dist

dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["LOCAL_RANK"] == "0":
    print(f"node {os.environ['GROUP_RANK']}: I am rank {dist.get_rank()}, and we are {total.item():g}")
dist.destroy_process_group()
"""
script = Path(folder.name, "two_nodes.py")
script.write_text(TWO_NODES)
line = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc_per_node=1",
    "--nnodes=2",
    "--master_addr=127.0.0.1",
    f"--master_port={resources.free_port()}",
]  # torchrun is a name for the first three words

# %%
environment = os.environ | (
    {"GLOO_SOCKET_IFNAME": name} if (name := resources.loopback()) else {}
)
nodes = [
    subprocess.Popen(
        [*line, f"--node_rank={node}", script],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    for node in range(2)
]
try:
    print(*(node.communicate(timeout=50)[0] for node in nodes), sep="")
finally:
    for node in nodes:
        node.terminate()  # does nothing where all went well

# %% [markdown]
# One job of two ranks, and both are local rank 0: every line of S2 comes twice, and S12's two processes write one file. Choose the GPU by `LOCAL_RANK`, the writer by `RANK`.

# %% [markdown] sections="8.3.1"
# ### The start of section 8.3.1
#
# Section 8.3.1 starts its processes by `mp.spawn` and calls `init_process_group(init_method="env://", rank=rank, world_size=world_size)`. `mp.spawn` gives its children no `MASTER_ADDR` and no `MASTER_PORT`. Two ranks in that situation; then with both set:


# %%
def by_environment(port):
    import os
    import torch
    import torch.distributed as dist

    rank, size, backend = dist.get_rank(), dist.get_world_size(), dist.get_backend()
    dist.barrier()  # the others have joined the first group before one leaves it
    dist.destroy_process_group()
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    try:
        dist.init_process_group(
            backend, init_method="env://", rank=rank, world_size=size
        )
    except ValueError as error:
        said = str(error)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(backend, init_method="env://", rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    return said, f"with both set, {total.item():g} ranks answer"


print(
    *lab.launch(by_environment, resources.free_port(), ranks=2, timeout_s=40)[0],
    sep="\n",
)

# %% [markdown] sections="10.2.2, 19.2.2a"
# ## Without waiting: a parameter server
#
# So far every step waits for the slowest rank. The alternative of section 10.2.2: one rank holds the weights and **serves**. A worker sends a gradient and gets the newest weights back. Who gets an answer when is one number, the `bound`: how many steps a worker may be ahead of the slowest.
#
# - 0: all wait for all. This is the **synchronous** method.
# - infinite: an answer at once. **Asynchronous**.
# - in between: **stale-synchronous** (Ho et al. 2013).
#
# Weights have a version, the number of times the server has given some out. A gradient that was computed with version 5 and arrives at version 8 is late by 3: its **staleness**.


# %%
def stamped(vector, version):
    """A vector and a version in one message."""
    return torch.cat([vector, torch.tensor([float(version)])])


# %%
def serve(weights, total, bound, learning_rate):
    """Rank 0: adds up `total` gradients; returns how late each of them was."""
    steps, waiting, late, version = (
        dict.fromkeys(range(1, dist.get_world_size()), 0),
        [],
        [],
        0,
    )
    message = stamped(weights, 0)
    while len(late) < total or len(waiting) < len(steps):
        waiting.append(dist.recv(message))  # from whoever comes first
        steps[waiting[-1]] += 1
        if len(late) < total:
            weights -= learning_rate * message[:-1]
            late.append(version - int(message[-1]))
        go = [
            each
            for each in waiting
            if len(late) < total and steps[each] - min(steps.values()) <= bound
        ]
        waiting, version = (
            [each for each in waiting if each not in go],
            version + bool(go),
        )
        for worker in go:
            dist.send(stamped(weights, version), worker)
    return late


# %% [markdown]
# Three workers. A step takes 24 ms, and on worker 3 four times as long (paced): a **straggler**. 24 gradients in all, in every mode. **Predict:** how many milliseconds will that take, synchronously and asynchronously?

# %%
my_ms = {"synchronous": None, "asynchronous": None}


# %%
def serve_or_work(total, bound):
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.measure import pace, trace
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    torch.manual_seed(0)
    rank, net, step, version, late = (
        dist.get_rank(),
        model.Transformer(1, 32, 2, max_len=32),
        0,
        0,
        [],
    )
    paced = pace.Paced(net, forward_us=32_000 if rank == 3 else 8_000, name=str(rank))
    weights = parameters_to_vector(net.parameters()).detach()
    net(model.story_tokens(4, 32)[0]).sum().backward()  # warm up
    dist.barrier()
    with trace.record(operators=False):
        if rank == 0:
            late, version = serve(weights, total, bound, 0.5 / 3), -1
            for worker in (1, 2, 3):
                dist.send(stamped(weights, -1), worker)  # the end
        while version >= 0:
            tokens, targets = model.story_tokens(4, 32, seed=3 * step + rank)
            gradients = torch.autograd.grad(
                model.loss(paced(tokens), targets), list(net.parameters())
            )
            message, step = (
                stamped(
                    torch.cat([gradient.flatten() for gradient in gradients]), version
                ),
                step + 1,
            )
            dist.send(message, 0), dist.recv(message, 0)
            weights, version = message[:-1], int(message[-1])
            vector_to_parameters(weights, net.parameters())
    return late, step, weights


# %%
modes = {"synchronous": 0, "bound 2": 2, "asynchronous": 10**6}
# on the CPU: NCCL can't receive from whoever comes first
runs = {
    name: lab.launch(serve_or_work, 24, bound, ranks=4, devices="cpu", timeout_s=50)
    for name, bound in modes.items()
}
span_us = max(timeline.step_us(run.timeline()) for run in runs.values())
for name, chinese in (("synchronous", "同步"), ("asynchronous", "异步")):
    title = {"en": name, "zh": chinese}
    widgets.show(scene.timeline(runs[name].timeline(), title=title, span_us=span_us))

# %% [markdown]
# Rank 0 serves and computes nothing. Above, ranks 1 and 2 wait for rank 3 in every step; below, nobody waits, until at the end the server lets the gradients still under way arrive, and drops them. The price is the staleness:

# %%
from collections import Counter


def loss_of(weights):
    net, (tokens, targets) = (
        model.Transformer(1, 32, 2, max_len=32),
        model.story_tokens(64, 32, seed=10**6),
    )
    torch.nn.utils.vector_to_parameters(weights, net.parameters())
    return model.loss(net(tokens), targets).item()


print("               span     steps of 1, 2, 3   late by: how many            loss")
for name, run in runs.items():
    late = " ".join(f"{by}:{many}" for by, many in sorted(Counter(run[0][0]).items()))
    print(
        f"{name:<13} {timeline.step_us(run.timeline()) / 1000:5.0f} ms     {[run[rank][1] for rank in (1, 2, 3)]!s:<18} {late:<28} "
        f"{loss_of(run[0][2]):.3f}"
    )
print(
    f"{my_ms = }\nwithout messages: synchronous {8 * 96} ms; asynchronous {24 / (2 / 24 + 1 / 96):.0f} ms, "
    "then up to 96 more until the last gradients, not used, are in"
)

# %% [markdown]
# The bound keeps the straggler from falling behind for ever: nobody may be more than 2 steps ahead. Is the synchronous row really ordinary training? The same 24 batches in one process, three to a step:

# %%
torch.manual_seed(0)
net = model.Transformer(1, 32, 2, max_len=32)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for step in range(8):
    optimizer.zero_grad()
    for worker in (1, 2, 3):
        tokens, targets = model.story_tokens(4, 32, seed=3 * step + worker)
        (model.loss(net(tokens), targets) / 3).backward()
    optimizer.step()
by_one = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
print(
    f"synchronous - one process: {(runs['synchronous'][0][2] - by_one).abs().max():.0e}"
)

# %% [markdown] sections="10.2.2, 19.2.2a"
# ### What late gradients do
#
# In 24 updates at a modest learning rate, little. Section 10.2.2 says that asynchronous training may need a smaller one. On the simplest of all losses, $x^2/2$, it can be computed: gradient descent whose gradients are `late` updates old. Below, $|x|$ after 200 updates from 1. The limit of the learning rate is $2\sin\frac{\pi}{4\,late+2}$ (Levin and May 1976).

# %%
from math import pi, sin


def descend(rate, late, num_updates=200):
    xs = [1.0] * (late + 1)
    for _ in range(num_updates):
        xs.append(xs[-1] - rate * xs[-1 - late])
    return abs(xs[-1])


rates = (0.05, 0.2, 0.5, 0.9, 1.5)
print("late    limit   |x| for learning rate:", *(f"{rate:8}" for rate in rates))
for late in (0, 1, 2, 5, 11):
    print(
        f"{late:4} {2 * sin(pi / (4 * late + 2)):8.3f} {'':24}",
        *(f"{descend(rate, late):8.0e}" for rate in rates),
    )

# %% [markdown]
# Where the learning rate is above the limit, $|x|$ grows. Staleness 11, a dozen workers, takes a learning rate about a fifteenth of the one that works without. *Hogwild!* (section 19.2.2) goes one step further and drops even the server's order: workers write into shared weights without locks, and the proof that this converges needs updates that each touch few of the weights; where every update touches all, as here, it promises nothing (not run here).

# %% [markdown] sections="19.2.2a"
# ## Local SGD: talk less often
#
# Every rank trains alone for H steps; then the **weights** are averaged. H = 1 is ordinary data parallelism (with plain SGD: exactly). The bytes fall by a factor of H. What happens to the loss?
#
# Three experiments, always the same number of samples, model, learning rate and seeds. *shuffled*: both ranks draw from the whole story. *own data*: rank 1 reads the story in capitals, and the loss is the mean over both kinds. *accumulate*: the other way to save bytes, one update with the mean gradient of H batches. The model is a small MLP that guesses a byte from the eight before it.


# %%
def passages(num_passages, seed, capitals):
    """Eight bytes of the story, and the next one."""
    tokens, targets = model.story_tokens(num_passages, 8, seed=seed)
    text = torch.cat([tokens, targets[:, -1:]], dim=1)
    if capitals:
        text = torch.where((text >= ord("a")) & (text <= ord("z")), text - 32, text)
    return text[:, :-1], text[:, -1]


def small_mlp(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Embedding(256, 16),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 256),
    )


# %%
def local_sgd(kind, every, seed, num_steps=64):
    """Bytes handed to all_reduce by this rank, and the weights at the end."""
    net, rank, late, sent_bytes = (
        small_mlp(seed),
        dist.get_rank(),
        kind == "accumulate",
        0,
    )
    optimizer, weights = (
        torch.optim.SGD(net.parameters(), lr=0.5),
        list(net.parameters()),
    )
    for step in range(1, num_steps + 1):
        x, y = passages(
            16, 1000 * seed + 2 * step + rank, capitals=kind == "own data" and rank == 1
        )
        (
            torch.nn.functional.cross_entropy(net(x), y) / (every if late else 1)
        ).backward()
        if late and step % every == 0:
            sent_bytes += average([weight.grad for weight in weights])
        if not late or step % every == 0:
            optimizer.step(), optimizer.zero_grad()
        if not late and step % every == 0:
            sent_bytes += average([weight.detach() for weight in weights])
    return sent_bytes, net.state_dict()


# %%
def sweep(num_seeds):
    return {
        (kind, every): [local_sgd(kind, every, seed) for seed in range(num_seeds)]
        for kind in ("shuffled", "own data", "accumulate")
        for every in (1, 4, 16, 64)
    }


def final_loss(weights, kind):
    """On other passages; for own data, the mean over small letters and capitals."""
    net = small_mlp(0)
    net.load_state_dict(weights)
    tests = [
        passages(1000, 10**6, capitals)
        for capitals in ((False, True) if kind == "own data" else (False,))
    ]
    return sum(
        torch.nn.functional.cross_entropy(net(x), y).item() for x, y in tests
    ) / len(tests)


# %%
run = lab.launch(sweep, 2, ranks=2, timeout_s=55)
swept = run[0]
losses = {
    (kind, every): [final_loss(weights, kind) for _, weights in runs]
    for (kind, every), runs in swept.items()
}
series = {
    kind: [
        (swept[key][0][0] / 1e6, loss)
        for key in swept
        if key[0] == kind
        for loss in losses[key]
    ]
    for kind in ("shuffled", "own data", "accumulate")
}
NAMES = {"shuffled": "打乱", "own data": "各自的数据", "accumulate": "累积"}
widgets.show(
    curves.curves(
        [
            Series({"en": kind, "zh": NAMES[kind]}, *zip(*dots), points=True)
            for kind, dots in series.items()
        ],
        log_x=True,
        title={"en": "Loss against bytes, two seeds", "zh": "损失与字节数，两个种子"},
        x_name={
            "en": "MB handed to all_reduce by a rank",
            "zh": "一个 rank 交给 all_reduce 的 MB",
        },
        y_name={"en": "loss", "zh": "损失"},
        badge=", ".join((run.origin, *run.notes)),
    )
)
print("  H       MB   " + "".join(f"{kind:<16}" for kind in series))
for every in (1, 4, 16, 64):
    spoken = [
        "  ".join(f"{loss:.3f}" for loss in losses[kind, every]) for kind in series
    ]
    print(
        f"{every:3} {swept['shuffled', every][0][0] / 1e6:8.2f}   "
        + "".join(f"{text:<16}" for text in spoken)
    )

# %% [markdown]
# Read downwards. With shuffled data H costs no more than another seed does; the claim of section 19.2.2 holds here. With own data the ranks drift apart between two averages, and a long H costs more: one of the "suitable conditions" is data that is alike on all ranks. Accumulating sends the same bytes and does worst at this learning rate, because it makes H times fewer updates; a larger learning rate would win some of it back (chapter 12, to come).

# %% [markdown] sections="10.2.1"
# ## Ideal and measured speed-up
#
# N ranks share one batch, so each computes 1/N of it. Section 10.2.1: ideally N times as fast, less the communication. A stated step again: 12 layers, 180 ms for the whole batch on one rank; a link of 0.3 GB/s and 0.2 ms. **Predict** the speed-up of 4 ranks.

# %%
my_speedup = lab.guess(
    {"en": "speed-up of 4 ranks", "zh": "4 个 rank 的加速比"}, unit="ratio"
)


# %%
link = Link(alpha_us=200, bandwidth_gb_per_s=0.3)
step = data_parallel.Step(layers=12, layer_mb=0.5, forward_ms=5, bucket_mb=1, link=link)


def shared(n):
    """The step of n ranks that share one batch."""
    return step.but(ranks=n, forward_ms=5 / n)


counts = (1, 2, 3, 4, 6, 8)
fixed = [timeline.step_us(shared(n).predict()) for n in counts]
grown = lab.sweep(step, ranks=counts).predicted
tried = {n: shared(n).run() for n in (1, 2, 4)}
taken = [min(run[0]["step_us"]) for run in tried.values()]  # the best of three steps

# %%
names = (
    {"en": "ideal", "zh": "理想"},
    {"en": "one batch, shared", "zh": "分一批数据"},
    {"en": "batch grows with N", "zh": "批随 N 增大"},
)
widgets.show(
    curves.curves(
        [
            Series(names[0], counts, counts),
            Series(names[1], counts, [fixed[0] / us for us in fixed]),
            Series(names[1], list(tried), [taken[0] / us for us in taken], points=True),
            Series(
                names[2], counts, [n * grown[0] / us for n, us in zip(counts, grown)]
            ),
        ],
        title={"en": "Speed-up", "zh": "加速比"},
        x_name="N",
        badge=", ".join((tried[4].origin, *tried[4].notes)) + " / simulated",
    )
)
print(
    f"4 ranks: simulated {fixed[0] / fixed[3]:.2f}, measured {taken[0] / taken[2]:.2f}, ideal 4"
)
my_speedup.score(taken[0] / taken[2])

# %% [markdown]
# Compute shrinks with N, and the bytes of a ring all-reduce do not: at some N there is nothing left to hide them under, and from then on more ranks gain nothing. That is why large clusters take larger batches: if every rank keeps its share, the backward stays long enough, and the line "batch grows with N" (samples per second) stays near the ideal.

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown, on real ranks where there is something to send, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. Deal the samples
#
# List the samples of one rank in one epoch. Every sample goes to exactly one rank, with no padding and no dropping; shares differ by one at most; every epoch is dealt anew, so that a rank does not see the same samples each time. No communication, and leave torch's and Python's global random generators as they are.


# %%
def my_indices(num_samples, rank, num_ranks, epoch):
    """The samples of this rank, in its order, as a list of whole numbers."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(num_samples, generator=generator)[rank::num_ranks].tolist()
    ### END SOLUTION


# %%
check.shard_indices(my_indices)

# %%
check.hint("shard_indices")

# %% [markdown]
# ### 2. Unequal shares
#
# The backward is done: the gradients in `model` are those of the mean loss over this rank's `num_samples`. A rank may have none; then it did no backward, and its gradients are None. Frozen parameters (`requires_grad=False`) have None everywhere, and keep it. Leave on every rank the gradient of the mean loss over all samples of all ranks, and send little more than the gradients once.


# %%
def my_average(model, num_samples):
    """Leaves in model the gradient of the mean over all samples of all ranks."""
    ### BEGIN SOLUTION
    total = torch.tensor([float(num_samples)])
    dist.all_reduce(total)
    for weight in model.parameters():
        if weight.requires_grad:
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            weight.grad = grad * (num_samples / total.item())
            dist.all_reduce(weight.grad)
    ### END SOLUTION


# %%
check.average_uneven(my_average)

# %%
check.hint("average_uneven")

# %% [markdown]
# ### 3. Buckets within a budget
#
# Average the gradients of all ranks in at most $\lceil$ bytes of all gradients / `bucket_bytes` $\rceil$ messages. Every gradient travels once, and none waits in a message that is longer than `bucket_bytes` by a whole gradient. Two layers of `model` share a weight, and some parameters are frozen. `in_buckets` above is a start; it would not survive these two.


# %%
def my_buckets(model, bucket_bytes):
    """Replaces every gradient by its mean over the ranks."""
    ### BEGIN SOLUTION
    grads = [
        weight.grad
        for weight in reversed(list(model.parameters()))
        if weight.grad is not None
    ]
    bucket = []
    for number, grad in enumerate(grads, start=1):
        bucket.append(grad)
        if sum(each.nbytes for each in bucket) >= bucket_bytes or number == len(grads):
            average(bucket)
            bucket = []
    ### END SOLUTION


# %%
check.bucket_gradients(my_buckets)

# %%
check.hint("bucket_gradients")

# %% [markdown]
# ## Summary
#
# - Same weights, other data, averaged gradients: equal to one process with the whole batch, if the shares are equal. Otherwise weigh them.
# - Buckets save messages, not bytes. DDP fills them in the order in which gradients become ready, and reduces them under the backward. Too small pays latency, too large loses overlap.
# - `DistributedSampler` gives each rank other data, `set_epoch` gives each epoch another order. Padded samples spoil an accuracy.
# - `no_sync` around forward and backward of all microbatches but the last: one all-reduce per step.
# - A log needs the mean over all ranks; a checkpoint needs one writer, by `RANK`, and names without `module.`.
# - Synchronous waits for the slowest. Asynchronous does not, and its gradients are late; a bound limits both. Local SGD sends H times less.
#
# ## Sources
#
# - Data parallelism in PyTorch: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704)
# - Stale-synchronous: Ho et al. 2013, *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NIPS
# - Hogwild!: Niu, Recht, Ré and Wright 2011, [arXiv 1106.5730](https://arxiv.org/abs/1106.5730)
# - Local SGD: Stich 2018, [arXiv 1805.09767](https://arxiv.org/abs/1805.09767)
# - The limit with late gradients: Levin and May 1976, *A note on difference-delay equations*, Theoretical Population Biology 9
#
# Where you stand:

# %%
check.status()
