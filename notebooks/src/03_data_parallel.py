# ---
# jupyter:
#   labkit:
#     sections: ["8.3.1", "19.2.1", "19.2.2a", "10.2.1", "10.2.2", "10.2.4", "S1", "S2", "S12"]
#     needs: ["two CPU cores"]
#     minutes: 90
# ---

# %% [markdown]
# # Data parallelism
#
# *About an hour and a half. You need chapters 00 and 02. No GPU is needed.*
#
# Our 7 B model wants to read a trillion tokens. A token costs it some 42 GFLOPs, and a card that really does 400 TFLOP/s would need **more than three years**. So we take 64 cards, give each the same model and a part of every batch, and hope for three weeks. But after every backward each card has 14 GB of gradients that must become one mean. If they wait for that, much of the gain is gone. When should the messages travel?

# %%
import statistics
import time

import labkit as lab
import torch
import torch.distributed as dist
from labkit import collectives, data_parallel, model, planner
from labkit.data_parallel import check
from labkit.measure import pace, traffic
from torch.nn.parallel import DistributedDataParallel as DDP

lab.begin("en")
data_parallel.Step(layers=24, layer_mb=1, ranks=2, bucket_mb=4).board()

# %% [markdown]
# Each rank computes (above) and sends gradients in pieces called [buckets](GLOSSARY.md#bucket) (below). Move the size of the buckets. Where do the messages lie under the backward, and when does the step end? This board is a prediction; in the notebook its button trains with real ranks.
#
# **When you are done** you can
#
# - train a model on several ranks with a few more lines, and say why the result is that of one process;
# - choose a bucket size, deal the data, accumulate gradients, log and save without the usual mistakes;
# - say what you give up when ranks no longer wait for each other.

# %% [markdown] sections="10.2.1, 19.2.1"
# ## Training with DDP
#
# In **[data parallelism](GLOSSARY.md#data-parallelism)** every rank holds the whole model and takes its own part of the [batch](GLOSSARY.md#batch). torch's class for it is `DistributedDataParallel`, [DDP](GLOSSARY.md#ddp) for short. This is a real training loop. Two things differ from a loop on a single device: the line with `DDP`, and `chunk(size)[rank]`, which takes this rank's part of the batch.


# %%
def with_ddp(num_steps):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    ddp = DDP(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(num_steps):
        batch = model.story_tokens(8, 32, seed=step)
        tokens, targets = (part.chunk(size)[rank] for part in batch)
        loss = model.loss(ddp(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.state_dict()


# %% [markdown]
# With one rank this is ordinary training on the whole batch of 8. **Guess**: after three steps, how do the weights of 2 and of 4 ranks differ from those of the one?

# %%
apart = lab.guess(
    "Weights of several ranks and of one",
    choices=["equal to the bit", "by rounding", "by far more than rounding"],
)

# %%
runs = {size: lab.launch(with_ddp, 3, ranks=size) for size in (1, 2, 4)}
lab.table(
    {
        "ranks": size,
        "from one process": lab.difference(run[0], runs[1][0]),
        "between ranks": lab.difference(run[size - 1], run[0]),
    }
    for size, run in runs.items()
)

# %%
apart.score("by rounding")

# %% [markdown] sections="10.2.1, 19.2.1"
# Only rounding is left: a sum of four parts is added up in another order. Between the ranks there is no difference at all, because all of them get the same bytes from the [all-reduce](GLOSSARY.md#all-reduce). So equal weights stay equal, and DDP has to send them round only once, when it wraps the model.
#
# ## What DDP does, by hand
#
# Now let us do the same without DDP. A step has six parts, and only the fifth is new.


# %%
def by_hand(num_steps):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)  # 1 the same weights everywhere
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(num_steps):
        batch = model.story_tokens(8, 32, seed=step)
        tokens, targets = (part.chunk(size)[rank] for part in batch)  # 2 other data
        loss = model.loss(net(tokens), targets)  # 3 forward
        optimizer.zero_grad()
        loss.backward()  # 4 backward
        for weight in net.parameters():  # 5 the mean of the gradients
            dist.all_reduce(weight.grad)
            weight.grad /= size
        optimizer.step()  # 6 the same update everywhere
    return net.state_dict()


# %%
lab.difference(lab.launch(by_hand, 3, ranks=4)[0], runs[4][0])

# %% [markdown] sections="10.2.1, 19.2.1"
# This is DDP but for rounding. It is correct, and it is slow in two ways: it sends one message per weight, and it sends nothing before the backward is over. We will mend both.
#
# ## A mean of means
#
# The gradients are summed and divided by the number of ranks. Is that always the mean over the batch? Let rank 0 have six of eight sequences and rank 1 two. **Guess**: how much more does a sequence on rank 1 count than one on rank 0?

# %%
weight = lab.guess("A sequence of rank 1 over one of rank 0", unit="ratio")


# %%
def with_shares(shares, factors):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    rank = dist.get_rank()
    tokens, targets = (part.split(shares)[rank] for part in model.story_tokens(8, 32))
    model.loss(net(tokens), targets).backward()
    for weight in net.parameters():
        weight.grad *= factors[rank]
        dist.all_reduce(weight.grad)
    return {name: weight.grad for name, weight in net.named_parameters()}


# %%
whole = lab.launch(with_shares, [8], [1], ranks=1)[0]
alike = lab.launch(with_shares, [6, 2], [1 / 2, 1 / 2], ranks=2)[0]
weighed = lab.launch(with_shares, [6, 2], [6 / 8, 2 / 8], ranks=2)[0]
lab.bars(
    {
        "both by 1/2": lab.difference(alike, whole),
        "by 6/8 and 2/8": lab.difference(weighed, whole),
    },
    title="How far the gradient is from that of the whole batch",
)

# %%
weight.score((1 / 2 / 2) / (1 / 2 / 6))

# %% [markdown]
# Dividing by the number of ranks gives both ranks the same say. So rank 1's two sequences share a half, and rank 0's six share the other half: each on rank 1 counts three times as much. Weighing by the shares is right.
#
# ### Exercise 1: unequal shares
#
# The backward is done: the gradients in `model` are those of the mean loss over this rank's `num_samples`. A rank may have no sample at all; then it did no backward, and its gradients are None. Frozen parameters (`requires_grad=False`) have None everywhere, and keep it. Leave on every rank the gradient of the mean loss over all samples of all ranks, and send little more than the gradients once.
#
# A check never stops the notebook. It tries your answer at sizes that are not shown, and gives the first case that goes wrong.


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

# %% [markdown] sections="S1"
# ## Why not nn.DataParallel?
#
# torch has an older class, `nn.DataParallel`, and it needs only one line: `net = nn.DataParallel(net)`. A single process then drives all GPUs. In every forward it copies the weights to each of them, runs the copies in threads, and collects the outputs on the first GPU. Its own documentation advises against it, and we can count two reasons anywhere.
#
# The first is that threads of one Python process take turns, because one lock, the GIL, lets only one of them run Python code. Below are two equal shares of pure Python work, as they happen between the torch calls of a forward.


# %%
import threading


def think():
    return sum(i * i for i in range(600_000))


def seconds_of(work):
    tries = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        tries.append(time.perf_counter() - began)
    return min(tries)


def in_two_threads():
    threads = [threading.Thread(target=think) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# %%
lab.bars(
    {
        "one share": 1e3 * seconds_of(think),
        "two threads": 1e3 * seconds_of(in_two_threads),
        "two ranks": 1e3 * max(lab.launch(seconds_of, think, ranks=2)),
    },
    unit="ms",
    title="Two shares of Python work, the best of five",
)

# %% [markdown]
# With two free cores, two threads take about twice as long as one share, and two ranks take as long as one.
#
# The second reason is the first GPU. It hands out the weights before any forward can begin and takes in all gradients, and none of that lies under the backward. In multiples of the model, this is what it sends and receives when it copies GPU by GPU, beside a rank of a ring:

# %%
gpus = range(2, 17)
traffic_of = {
    "the first GPU": {n: 2 * (n - 1) for n in gpus},
    "each rank of a ring": {n: 4 * (n - 1) / n for n in gpus},
}
title = "Sent and received in a step, in models"
lab.curves(predicted=traffic_of, x="GPUs", y="models", title=title)

# %% [markdown] sections="19.2.2a"
# ## Fewer messages: buckets
#
# Back to our two slownesses. `by_hand` sends one message per weight, and each pays the [latency](GLOSSARY.md#latency). A bucket is several gradients in one message. This function takes the mean of any number of tensors at once:


# %%
def average(tensors):
    """Replaces tensors by their means over the ranks; returns the message's bytes."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces):
        tensor.copy_(piece.view_as(tensor))
    return flat.nbytes


# %%
def one_by_one(grads):
    for grad in grads:
        average([grad])


def halves(grads):
    average(grads[: len(grads) // 2])
    average(grads[len(grads) // 2 :])


WAYS = {"per weight": one_by_one, "two buckets": halves}

# %% [markdown]
# We compare both with a third way, DDP with buckets of a quarter of a MiB. The model has 53 weights and 0.94 MB of gradients. **Guess** how many all-reduces DDP makes in a step.

# %%
num_calls = lab.guess("All-reduces of DDP in a step", between=(1, 53))


# %%
def step_by(name):
    """A model, and a function that does one step of it but for the update."""
    tokens, targets = model.story_tokens(4, 32, seed=dist.get_rank())
    torch.manual_seed(0)
    net = model.Transformer(4, 64, 4, max_len=32)
    run = DDP(net, bucket_cap_mb=0.25) if name == "DDP" else net

    def step():
        net.zero_grad()
        model.loss(run(tokens), targets).backward()
        if name != "DDP":
            WAYS[name]([weight.grad for weight in net.parameters()])
        next(net.parameters()).grad.sum().item()  # a GPU may still be at work

    return net, step


# %% [markdown]
# Now we count the messages of a step and take its time, by the clock and by the CPU.


# %%
def count_and_time(name):
    net, step = step_by(name)
    wall_ms, cpu_ms = [], []
    for _ in range(12):
        dist.barrier()
        began, worked = time.perf_counter(), time.process_time()
        with traffic.count() as counted:
            step()
        wall_ms.append(1e3 * (time.perf_counter() - began))
        cpu_ms.append(1e3 * (time.process_time() - worked))
    grads = {name: weight.grad for name, weight in net.named_parameters()}
    counts = {
        "all-reduces": counted.calls["all_reduce"],
        "payload_bytes": counted.payload_bytes["all_reduce"],
        "wire_bytes": counted.sent_bytes,
        "step_ms": statistics.median(wall_ms[2:]),  # the first two are warm-up
        "CPU_ms": statistics.median(cpu_ms[2:]),
    }
    return grads, counts


# %%
ways = (*WAYS, "DDP")
found = {name: lab.launch(count_and_time, name, ranks=2)[0] for name in ways}
lab.table({"name": name, **counts} for name, (_, counts) in found.items())

# %%
num_calls.score(found["DDP"][1]["all-reduces"])

# %%
lab.difference(found["DDP"][0], found["per weight"][0])

# %% [markdown]
# The payload is the same in each row, and so are the gradients but for rounding. What differs is the number of messages: on the wire each adds a header. (Ring or tree is not DDP's choice, it is the backend's; chapter 02.)
#
# ### Should DDP not win clearly?
#
# DDP sends its buckets while the backward still runs, so you may have expected it to win clearly. Between ranks on the CPU it does not: with two free cores it takes about as long as two buckets by hand, and often longer. The column *CPU* tells why. It is how long a rank's core worked in a step, and on free cores that is nearly the whole step: the core was hardly ever idle. (If other programs keep your cores busy, *step* is much longer than *CPU*, and its order may be chance.)
#
# Between processes of one machine a message is moved and added up by the same cores that compute the backward. So there is no idle time to hide it in, and DDP's bookkeeping comes on top. Where links take time of their own, overlap wins. We will measure that two sections further down.

# %% [markdown]
# ## Sending during the backward
#
# How does DDP know when a gradient is ready? Autograd has a hook that fires as soon as a gradient is complete. With it, [overlap](GLOSSARY.md#overlap-to-hide-communication) by hand takes a few lines. `async_op=True` returns at once, with a handle to wait for.


# %%
def during_the_backward():
    net, under_way = model.Transformer(4, 64, 4, max_len=32), []
    for name, weight in net.named_parameters():

        def send(weight, name=name):
            under_way.append((name, dist.all_reduce(weight.grad, async_op=True)))

        weight.register_post_accumulate_grad_hook(send)
    tokens, targets = model.story_tokens(4, 32)
    model.loss(net(tokens), targets).backward()
    started = len(under_way)  # before anybody waited
    for _, work in under_way:
        work.wait()
    names = [name for name, _ in under_way]
    return {"started": started, "first": names[0], "last": names[-1]}


# %%
lab.launch(during_the_backward, ranks=2)

# %% [markdown] sections="19.2.2a"
# All 53 were under way when the backward ended. The first is near the model's output and the last is its input, because a backward walks through the model from its end. That is the order in which buckets should be filled.
#
# ### Which gradients share a bucket?
#
# A [communication hook](GLOSSARY.md#communication-hook) sees each bucket of DDP as it leaves, and sends it. By default a bucket closes with the gradient that takes it to 25 MiB, and the first one already at 1 MiB. We watch three steps of a somewhat larger model.


# %%
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def watch_buckets(num_steps):
    net, seen = model.Transformer(2, 192, 4, max_len=32), []
    names = {weight.data_ptr(): name for name, weight in net.named_parameters()}
    ddp = DDP(net)

    def watch(state, bucket):
        inside = [names[weight.data_ptr()] for weight in bucket.parameters()]
        size, ends = bucket.buffer().nbytes, {"first": inside[0], "last": inside[-1]}
        seen.append(
            {"step": step, "size_bytes": size, "gradients": len(inside), **ends}
        )
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, watch)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(2, 32, seed=dist.get_rank())
        model.loss(ddp(tokens), targets).backward()
    return seen


# %%
lab.table(lab.launch(watch_buckets, 3, ranks=2)[0])

# %% [markdown] sections="19.2.2a"
# In step 0 DDP knows nothing of the model's order and sends one bucket. It notes in which order gradients became ready, rank 0 tells the others, and from step 1 on the buckets follow that order. The first bucket is kept small, so that something is under way early.
#
# ## How large should a bucket be?
#
# Now with links that take time. Let us make up a step that is small enough to draw: 12 layers with 0.5 MiB of gradients each, 3 ms forward and 6 ms backward a layer, two ranks, a link of 0.08 GB/s with 2.5 ms of latency. **Guess** which bucket size gives the shortest step.

# %%
sizes_mb = (0.5, 1, 2, 3, 6)
size = lab.guess("The best bucket size, in MiB", choices=[str(mb) for mb in sizes_mb])

# %% [markdown]
# The curve is a prediction: a bucket's all-reduce starts when its last gradient is there and the link is free. The dots are runs of real DDP, with real gradients of these sizes. They are **[paced](GLOSSARY.md#paced)**, which means that layers sleep until their stated times are over, and each real all-reduce until its time on such a link is. (Where a picture says *overran*, the machine was too busy to keep to these times.)

# %%
link = collectives.Link(alpha_us=2500, bandwidth_gb_per_s=0.08)
step = data_parallel.Step(
    layers=12, layer_mb=0.5, forward_ms=3, ranks=2, bucket_mb=2, link=link, num_steps=1
)
by_size = lab.sweep(step, bucket_mb=sizes_mb, run=[0.5, 2, 6])
by_size

# %%
best = min(by_size.rows(), key=lambda row: row["predicted"])["bucket_mb"]
size.score(str(best))

# %% [markdown]
# The curve has two ends, and each has its own reason. Here is the small one. The link is busy all the time, mostly with latency:

# %%
step.but(bucket_mb=0.5).compare()

# %% [markdown]
# And here is one large bucket. It can only start when the backward is over, so nothing overlaps at all:

# %%
step.but(bucket_mb=6).compare()

# %% [markdown]
# ## How much faster do N ranks get?
#
# N ranks share one batch, so each computes 1/N of it. Ideally that is N times as fast. The messages do not shrink, though: a ring sends nearly twice the gradients whatever N is. We make up a step again: 12 layers, 180 ms for the whole batch on one rank, and a link of 0.3 GB/s and 0.2 ms. **Guess** the speed-up of 4 ranks.

# %%
speedup = lab.guess("Speed-up of 4 ranks", between=(1, 4), unit="ratio")

# %%
link = collectives.Link(alpha_us=200, bandwidth_gb_per_s=0.3)
step = data_parallel.Step(layers=12, layer_mb=0.5, forward_ms=5, bucket_mb=1, link=link)
counts = (1, 2, 3, 4, 6, 8)
shared = {n: step.but(ranks=n, forward_ms=5 / n) for n in counts}
shared_us = {n: lab.sweep(shared[n], ranks=[n]).predicted[0] for n in counts}
grown_us = dict(zip(counts, lab.sweep(step, ranks=counts).predicted))
times_us = {n: min(shared[n].run()[0]["step_us"]) for n in (1, 2, 4)}

# %%
lab.curves(
    predicted={
        "ideal": {n: n for n in counts},
        "one batch, shared": {n: shared_us[1] / us for n, us in shared_us.items()},
        "the batch grows with N": {
            n: n * grown_us[1] / us for n, us in grown_us.items()
        },
    },
    measured={"one batch, shared": {n: times_us[1] / us for n, us in times_us.items()}},
    x="ranks",
    y="speed-up",
    title="Speed-up",
    badge="measured, paced / simulated",
)

# %%
speedup.score(times_us[1] / times_us[4])

# %% [markdown] sections="10.2.1"
# Look at the curve that bends. Compute shrinks with N and messages do not, so at some N there is nothing left to hide them under. From there on more ranks gain nothing. If every rank keeps its share instead, the backward stays long enough, and the samples per second stay near the ideal. That is why large clusters take large batches.

# %% [markdown] sections="8.3.1"
# ## Other data on each rank
#
# `chunk(size)[rank]` was fine for a toy. A real data set is dealt by torch's `DistributedSampler`, which gives each rank its indices. Here are 8 samples on 2 ranks for three epochs, with `set_epoch` and without it:

# %%
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def deal(num_samples, num_ranks, epoch=None, **options):
    """The indices of every rank."""
    dealt = []
    for rank in range(num_ranks):
        sampler = DistributedSampler(range(num_samples), num_ranks, rank, **options)
        if epoch is not None:
            sampler.set_epoch(epoch)
        dealt.append(list(sampler))
    return dealt


epochs = range(3)
lab.table(
    {"epoch": n, "set_epoch(n)": deal(8, 2, n), "without": deal(8, 2)} for n in epochs
)

# %% [markdown] sections="8.3.1, 10.2.4"
# Without `set_epoch` every epoch has the same order. Compare the two ranks in each column: they never share a sample. The sampler's `rank` sees to that.
#
# <details><summary>Erratum 10.2.4: set_epoch "so that different processes use different data"</summary>
#
# That is not what it does. It makes *epochs* differ; processes differ with it and without it. Run it: `deal(8, 2)` gives two lists that share nothing.
#
# </details>
#
# ### If you forget the sampler
#
# Nothing fails. Every rank then draws the same batch. **Guess**: two ranks, four sequences each, no sampler. Of which batch is the averaged gradient?

# %%
forgotten = lab.guess(
    "The averaged gradient without a sampler is that of",
    choices=["all 8 sequences", "the first 4", "none of both"],
)


# %%
def first_gradient(batch_size, with_sampler):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    data = TensorDataset(*model.story_tokens(8, 32))
    sampler = DistributedSampler(data, shuffle=False) if with_sampler else None
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    tokens, targets = next(iter(loader))
    ddp = DDP(net)
    model.loss(ddp(tokens), targets).backward()
    return {name: weight.grad for name, weight in net.named_parameters()}


# %%
dealt = lab.launch(first_gradient, 4, True, ranks=2)[0]
same = lab.launch(first_gradient, 4, False, ranks=2)[0]
alone = {n: lab.launch(first_gradient, n, False, ranks=1)[0] for n in (8, 4)}
lab.table(
    {
        "name": name,
        "from all 8": lab.difference(grads, alone[8]),
        "from the first 4": lab.difference(grads, alone[4]),
    }
    for name, grads in (("with a sampler", dealt), ("without", same))
)

# %%
forgotten.score("the first 4")

# %% [markdown]
# Without a sampler both ranks worked on the same four sequences. You paid for two ranks and got the result of one with half the batch, and no message told you.
#
# ### Ten samples on four ranks
#
# Every rank must take the same number of steps, or the all-reduces would not match. So the sampler pads with samples that it gives out twice, or drops some. In training that hardly matters. In evaluation it makes the number wrong. Let a model be right on all of 10 samples but the first, the second and the last: what do we measure?

# %%
right = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 1, 0], dtype=torch.float64)
shares = {
    "padded (the default)": deal(10, 4, shuffle=False),
    "drop_last=True": deal(10, 4, shuffle=False, drop_last=True),
    "range(rank, 10, 4)": [list(range(rank, 10, 4)) for rank in range(4)],
}
lab.table(
    {
        "name": name,
        "accuracy_share": right[sum(dealt, [])].mean().item(),
        "shares": dealt,
    }
    for name, dealt in shares.items()
)

# %% [markdown]
# Seven of ten are right, so only the last row tells the truth. So this is how to evaluate: let shares be uneven, since no gradients have to match, and all-reduce two numbers at the end, (correct, count).

# %% [markdown] sections="10.2.4"
# ## Several backwards, one all-reduce
#
# Sometimes the batch that you want does not fit, so you add up the gradients of several [microbatches](GLOSSARY.md#microbatch) before one update ([gradient accumulation](GLOSSARY.md#gradient-accumulation)). Only the sum is needed, so only the last backward has to communicate. `ddp.no_sync()` turns the all-reduces off inside its block. Below are three ways to accumulate four microbatches; the third puts only the backward into the block. **Guess** how many all-reduces that one makes. (The model fits in one bucket.)

# %%
quiet = lab.guess("All-reduces with only the backward in no_sync", between=(0, 8))

# %%
from contextlib import nullcontext


def plain(ddp, x, y, is_last):
    loss = model.loss(ddp(x), y) / 4
    loss.backward()


def all_in_no_sync(ddp, x, y, is_last):
    with nullcontext() if is_last else ddp.no_sync():
        loss = model.loss(ddp(x), y) / 4
        loss.backward()


def backward_in_no_sync(ddp, x, y, is_last):
    loss = model.loss(ddp(x), y) / 4
    with nullcontext() if is_last else ddp.no_sync():
        loss.backward()


# %%
def accumulate(way):
    torch.manual_seed(0)
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(8, 32, seed=dist.get_rank())
    with traffic.count() as counted:
        for k, (x, y) in enumerate(zip(tokens.chunk(4), targets.chunk(4))):
            way(ddp, x, y, is_last=k == 3)
    grads = {name: weight.grad for name, weight in ddp.named_parameters()}
    return counted.calls["all_reduce"], counted.payload_bytes["all_reduce"], grads


# %%
ways = {
    "plain": plain,
    "no_sync": all_in_no_sync,
    "backward only": backward_in_no_sync,
}
found = {name: lab.launch(accumulate, way, ranks=2)[0] for name, way in ways.items()}
lab.table(
    {
        "name": name,
        "all-reduces": calls,
        "sent_bytes": num_bytes,
        "from plain": lab.difference(grads, found["plain"][2]),
    }
    for name, (calls, num_bytes, grads) in found.items()
)

# %%
quiet.score(found["backward only"][0])

# %% [markdown]
# The forward belongs into the block, too, because it is in the forward that DDP decides whether the coming backward communicates.

# %% [markdown] sections="10.2.4, S12"
# ## A whole training script
#
# Here is a template that you can take home: seed, data, sampler, loader, DDP, optimizer; a loop that logs the loss of *all* ranks, and lets rank 0 save. (Mixed precision is chapter 05's subject.)


# %%
def train(num_epochs, path):
    torch.manual_seed(0)
    data = TensorDataset(*model.story_tokens(64, 32))
    sampler = DistributedSampler(data)  # asks the process group for rank and size
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    logged = []
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        losses = []
        with torch.device("cpu"):  # a sampler shuffles on the host
            batches = list(DataLoader(data, batch_size=8, sampler=sampler))
        for tokens, targets in batches:
            loss = model.loss(ddp(tokens), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean() / dist.get_world_size()
        dist.all_reduce(mean)  # for the log; DDP has averaged the gradients
        logged.append({"last batch": loss.item(), "of all": mean.item()})
    if dist.get_rank() == 0:
        torch.save(ddp.module.state_dict(), path)
    dist.barrier()  # nobody looks for the file before it is there
    return logged


# %%
import inspect
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
by_launch = lab.launch(train, 3, folder / "last.pt", ranks=2)
lab.table({"rank": rank, **row} for rank in (0, 1) for row in by_launch[rank])

# %% [markdown] sections="10.2.4, S12"
# Which column would you log? *last batch* is the loss of one batch of one rank, and the two ranks disagree. *of all* is the epoch's, and both know it.
#
# <details><summary>Erratum 10.2.4: the loss that is printed is one rank's</summary>
#
# The textbook prints `loss.item()` on rank 0. That is the column *last batch*: one batch of one rank. Run it: the cell above. (S12's `torch.cuda.amp` is today's `torch.amp`; chapter 05.)
#
# </details>
#
# We saved `ddp.module.state_dict()`. What if you save the wrapper's instead?


# %%
def names_of_the_wrapper():
    return next(iter(DDP(model.Transformer(1, 32, 2, max_len=32)).state_dict()))


# %%
lab.launch(names_of_the_wrapper, ranks=2)

# %% [markdown] sections="S12"
# Every name begins with `module.`, so the bare model does not take such a file. Ours it does:

# %%
saved = torch.load(folder / "last.pt", map_location=torch.get_default_device())
model.Transformer(2, 32, 2, max_len=32).load_state_dict(saved)

# %% [markdown] sections="S2"
# ### The same under torchrun
#
# As a script, the function needs what `lab.launch` did for it: a process group. `torchrun` starts the processes and tells each who it is by environment variables: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. `init_process_group` reads them. With GPUs each process takes its own.

# %%
HEAD = """
import os
import sys

import torch
import torch.distributed as dist
from labkit import model
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""
MAIN = """
if torch.accelerator.is_available():
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device(torch.accelerator.current_accelerator())
dist.init_process_group()
for row in train(3, sys.argv[1]):
    if dist.get_rank() == 0:
        print(f"{row['of all']:.3f}", flush=True)
dist.destroy_process_group()
"""

# %%
script = folder / "train.py"
script.write_text(HEAD + inspect.getsource(train) + MAIN)
by_torchrun = lab.launch_script(script, str(folder / "again.pt"), ranks=2)
print(by_torchrun.logs[0])

# %% [markdown] sections="S2, S12"
# These are the same three means. On several machines you run the same command on each, and one number differs. This is the first of two; the second says `--node_rank=1`:
#
# ```
# torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 \
#     --master_addr=10.0.0.1 --master_port=29500 train.py
# ```
#
# There are 16 ranks now. `RANK` counts over all machines, `LOCAL_RANK` within one: on the second machine local rank 3 is rank 11.
#
# Which of the two should decide who prints and who saves? Here are two torchruns with one rank each, as on two machines. (The long options only let them find each other on one machine.)

# %%
WHO = """
import os
import torch.distributed as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
print("rank", rank, "of", size, "is local rank", os.environ["LOCAL_RANK"])
dist.destroy_process_group()
"""
script = folder / "who.py"
script.write_text(WHO)
nodes = lab.launch_script(script, ranks=2, nodes=(2, 2))
print(*nodes.logs, sep="\n")

# %% [markdown] sections="S2, S12, 8.3.1"
# It is one job of two ranks, and *both* are local rank 0. So choose the GPU by `LOCAL_RANK`, and the writer by `RANK`.
#
# <details><summary>Erratum S2, S12: printing and saving if local_rank == 0</summary>
#
# The demo project prints, and S12 also saves, `if local_rank == 0`. With two machines every line comes twice, and two processes write one file. Run it: the cell above, where both say `is local rank 0`.
#
# </details>
#
# <details><summary>Erratum 8.3.1: mp.spawn with init_method="env://"</summary>
#
# The textbook starts its processes by `mp.spawn` and calls `init_process_group(init_method="env://", rank=rank, world_size=world_size)`. But `mp.spawn` gives its children no `MASTER_ADDR` and no `MASTER_PORT`, so the call fails until you set both. Run it: `dist.init_process_group("gloo", init_method="env://", rank=0, world_size=2)` raises a ValueError that names `MASTER_ADDR`.
#
# </details>

# %% [markdown] sections="10.2.2, 19.2.2a"
# ## Without waiting: asynchronous training
#
# So far every step waits for the slowest rank. What if nobody waited? One rank holds the weights and *serves*, as a [parameter server](GLOSSARY.md#parameter-server). A worker sends it a gradient, gets the newest weights back, and goes on.
#
# How far ahead may a fast worker run? That is one number, the **bound**. With 0 all wait for all, which is synchronous training. Without a bound the server answers at once, which is asynchronous. In between it is called stale-synchronous (Ho et al. 2013). The weights carry a version number, and a gradient that was computed with version 5 and arrives at version 8 is late by 3. That is its **[staleness](GLOSSARY.md#staleness)**. Here are the messages, the server and a worker:


# %%
def stamped(vector, version):
    """A vector and a version in one message."""
    return torch.cat([vector, torch.tensor([float(version)])])


# %%
def serve(weights, total, bound):
    """Takes `total` gradients of three workers; returns how late each of them was."""
    steps = dict.fromkeys(range(1, dist.get_world_size()), 0)
    waiting, late, version, message = [], [], 0, stamped(weights, 0)
    while True:
        worker = dist.recv(message)  # from whoever comes first
        weights -= 0.5 / 3 * message[:-1]
        late.append(version - int(message[-1]))
        steps[worker] += 1
        waiting.append(worker)
        if len(late) == total:
            break
        go = [each for each in waiting if steps[each] - min(steps.values()) <= bound]
        if go:
            version += 1
        for each in go:
            waiting.remove(each)
            dist.send(stamped(weights, version), each)
    while len(waiting) < len(steps):  # what is still under way is not used
        waiting.append(dist.recv(message))
    for each in waiting:
        dist.send(stamped(weights, -1), each)  # the end
    return late


# %%
def work(net, paced):
    """Sends gradients and takes weights until the server says that it is over."""
    version, step, rank = 0, 0, dist.get_rank()
    while version >= 0:
        tokens, targets = model.story_tokens(4, 32, seed=3 * step + rank)
        net.zero_grad()
        model.loss(paced(tokens), targets).backward()
        message = stamped(
            torch.cat([w.grad.flatten() for w in net.parameters()]), version
        )
        dist.send(message, 0)
        dist.recv(message, 0)
        torch.nn.utils.vector_to_parameters(message[:-1], net.parameters())
        version, step = int(message[-1]), step + 1


# %% [markdown]
# Three workers. A step takes 24 ms, and on worker 3 four times as long: a [straggler](GLOSSARY.md#straggler). In each mode the server takes 24 gradients in all. **Guess**: how long does that take if all wait for all?

# %%
waits = lab.guess("24 gradients, synchronously", between=(1, 5000), unit="ms")


# %%
def serve_or_work(total, bound):
    torch.manual_seed(0)
    net = model.Transformer(1, 32, 2, max_len=32)
    slow = 4 if dist.get_rank() == 3 else 1
    paced = pace.Paced(net, forward_us=8_000 * slow, name=str(dist.get_rank()))
    weights = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    paced(model.story_tokens(4, 32)[0]).sum().backward()  # warm up
    dist.barrier()
    began = time.perf_counter()
    if dist.get_rank() > 0:
        return work(net, paced)
    late = serve(weights, total, bound)
    took_ms = 1e3 * (time.perf_counter() - began)
    return {"took_ms": took_ms, "mean lateness": sum(late) / total, "latest": max(late)}


# %%
bounds = {"synchronous": 0, "bound 2": 2, "asynchronous": 10**6}
# on the CPU: NCCL can't receive from whoever comes first
runs = {
    name: lab.launch(serve_or_work, 24, bound, ranks=4, devices="cpu", record=True)
    for name, bound in bounds.items()
}
lab.table({"name": name, **run[0]} for name, run in runs.items())

# %%
waits.score(runs["synchronous"][0]["took_ms"])

# %% [markdown]
# Without messages the synchronous way takes 8 steps of 96 ms, 768 ms, and the asynchronous one 256 ms and a last step of rank 3. Here is each as a picture (a warm-up comes first, and rank 0 is the server). Look at ranks 1 and 2: they wait for rank 3 in every step.

# %%
runs["synchronous"].timeline()

# %% [markdown]
# Now nobody waits for anybody, but at the end, where the server lets the last gradients arrive and drops them:

# %%
runs["asynchronous"].timeline()

# %% [markdown] sections="10.2.2, 19.2.2a"
# The price stands in the other columns of the table: gradients are late. A bound limits both, the waiting and the lateness. (The bound counts a worker's own steps. Lateness counts versions, and while one gradient is computed, each of the others may make one or more. So the latest may be later than the bound.)
#
# ### What do late gradients do?
#
# For 24 updates at a modest learning rate they do little. On the simplest of all losses, $x^2/2$, we can compute more: gradient descent whose gradients are `late` updates old. The learning rate must stay below $2\sin\frac{\pi}{4\,late+2}$ (Levin and May 1976), or $|x|$ grows.


# %%
def descend(rate, late, num_updates=100):
    xs = [1.0] * (late + 1)
    for _ in range(num_updates):
        xs.append(xs[-1] - rate * xs[-1 - late])
    return {update: abs(x) + 1e-9 for update, x in enumerate(xs[late:])}


paths = {f"late by {late}": descend(0.2, late) for late in (0, 2, 11)}
title = "Learning rate 0.2, late gradients"
lab.curves(predicted=paths, x="updates", y="|x|", title=title, log_y=True)

# %% [markdown] sections="10.2.2, 19.2.2a"
# Each dip is a place where $x$ changes its sign; look at the arches between them. With gradients 11 updates late, as with a dozen workers, the same learning rate makes $|x|$ grow. The limit is 0.14 there, about 1/15 of what it is without lateness. *Hogwild!* goes one step further and drops even the server's order: workers write into shared weights without locks. The proof that this converges needs updates that each touch few of the weights. Where every update touches all of them, as here, it promises nothing. (We do not run it.)

# %% [markdown] sections="19.2.2a"
# ## Talking less often: Local SGD and DiLoCo
#
# There is another way not to wait: keep all ranks in step, but let them talk rarely. In **[Local SGD](GLOSSARY.md#local-sgd)** every rank trains alone for H steps, and then the *weights* are averaged. The bytes fall by a factor of H. What happens to the loss?
#
# **[DiLoCo](GLOSSARY.md#diloco)** (2023) is a refinement that trains large models over slow links. It does not simply jump to the mean of the weights. It takes the way from the old weights to the mean as if it were a gradient, and gives it to an *outer optimizer*, SGD with Nesterov momentum. With an outer learning rate of 1 and no momentum this is Local SGD again, so one function does both. The model is a small MLP that guesses a byte from the eight before it.


# %%
def passages(num_passages, seed, capitals=False):
    """Eight bytes of the story, and the next one."""
    tokens, targets = model.story_tokens(num_passages, 8, seed=seed)
    text = torch.cat([tokens, targets[:, -1:]], dim=1)
    if capitals:
        text = torch.where((text >= ord("a")) & (text <= ord("z")), text - 32, text)
    return text[:, :-1], text[:, -1]


def small_mlp():
    torch.manual_seed(0)
    layers = torch.nn.Embedding(256, 16), torch.nn.Flatten(), torch.nn.Linear(128, 64)
    return torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(64, 256))


# %%
def train_locally(every, outer_rate, momentum, capitals):
    net, rank, sent_bytes = small_mlp(), dist.get_rank(), 0
    inner = torch.optim.SGD(net.parameters(), lr=0.5)
    old = [weight.detach().clone() for weight in net.parameters()]
    outer = torch.optim.SGD(
        old, lr=outer_rate, momentum=momentum, nesterov=momentum > 0
    )
    for step in range(1, 129):
        x, y = passages(16, 2 * step + rank, capitals and rank == 1)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        inner.zero_grad()
        loss.backward()
        inner.step()
        if step % every == 0:
            for before, now in zip(old, net.parameters()):
                before.grad = before - now.detach()
            sent_bytes += average([before.grad for before in old])
            outer.step()
            torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(old), net.parameters()
            )
    return sent_bytes, loss_on_other_passages(net, capitals)


def loss_on_other_passages(net, capitals):
    kinds = (False, True) if capitals else (False,)
    tests = [passages(1000, 10**6, kind) for kind in kinds]
    losses = [torch.nn.functional.cross_entropy(net(x), y).item() for x, y in tests]
    return sum(losses) / len(losses)


# %% [markdown]
# We train for 128 steps with H = 1, 8 and 64, always with the same samples. Both ranks read the same story. **Guess**: how much higher is the loss of Local SGD at H = 64 than at H = 1? (At the start it is 5.5.)

# %%
higher = lab.guess("Loss at H = 64 minus loss at H = 1", between=(-1, 3))


# %%
def both_methods(capitals):
    methods = {"Local SGD": (1.0, 0.0), "DiLoCo": (0.7, 0.6)}
    return {
        name: [train_locally(every, *outer, capitals) for every in (1, 8, 64)]
        for name, outer in methods.items()
    }


# %%
same_story = lab.launch(both_methods, False, ranks=2)[0]
lab.curves(
    measured={name: dict(of) for name, of in same_story.items()},
    x="bytes handed to all_reduce",
    y="loss",
    title="Both ranks read the same story",
    log_x=True,
)

# %%
(_, often), _, (_, rarely) = same_story["Local SGD"]
higher.score(rarely - often)

# %% [markdown]
# Read it from the right: H is 1, then 8, then 64, and the bytes fall each time. With alike data a large H costs little. DiLoCo lies lower nearly everywhere. Be careful with the reason, though: it lies lower at H = 1, too. With momentum 0.6 its outer steps add up to $0.7/(1-0.6) = 1.75$ times the way, so part of what we see is simply a larger step.
#
# Now rank 1 reads the story in capitals, and the loss is the mean over both kinds:

# %%
own_story = lab.launch(both_methods, True, ranks=2)[0]
lab.curves(
    measured={name: dict(of) for name, of in own_story.items()},
    x="bytes handed to all_reduce",
    y="loss",
    title="Each rank reads its own",
    log_x=True,
)

# %% [markdown]
# When the data differ, the ranks drift apart between two averages, and a long H costs more. So one of the conditions under which talking rarely works is that all ranks see alike data. (Accumulating the gradients of H batches sends just as little. But it makes H times fewer updates, so at the same learning rate it learns more slowly.)

# %% [markdown]
# ## When is it worth it?
#
# Data parallelism is the first thing to try, because it changes no line of the model. Here is our running story before and after: one GPU, and 64 of them, each with the whole model and 8 sequences of every batch. We need GPUs of 141 GB for it, because the states alone do not fit into 80. Everything here is predicted; chapter 18 shows from what.

# %%
one = planner.Plan(model="LLaMA 7B", gpu="H200 141 GB", gpus=1, batch=512)
planner.card(one, one.but(gpus=64))

# %% [markdown]
# Years have become weeks. (The planner expects more of this GPU than the 400 TFLOP/s of our first estimate, so it needs fewer days.) But look at the bars of memory: they have not changed at all. Every GPU holds everything, so more of them do not help where one is too small. [Chapter 06](06_zero_deepspeed.ipynb) deals the states among the ranks.
#
# - It is worth it as long as the backward is long enough to hide the messages under it. Otherwise take a larger batch per rank, or accumulate.
# - It needs alike ranks, because all wait for the slowest.
# - It does not help if one GPU cannot hold the model.

# %% [markdown]
# ## Exercises
#
# ### 2. Deal the samples
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
# ### 3. Build the buckets
#
# `two buckets` above was a lazy division. Now build what DDP has: average the gradients of all ranks in at most $\lceil$ bytes of all gradients / `bucket_bytes` $\rceil$ messages. Every gradient travels once, and none waits in a message that is longer than `bucket_bytes` by a whole gradient. Two layers of `model` share a weight, and some parameters are frozen. You may use `average`.


# %%
def my_buckets(model, bucket_bytes):
    """Replaces every gradient by its mean over the ranks."""
    ### BEGIN SOLUTION
    weights = reversed(list(model.parameters()))
    grads = [weight.grad for weight in weights if weight.grad is not None]
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
# - Same weights, other data, averaged gradients: that equals one process with the whole batch, if the shares are equal. Otherwise weigh them.
# - Buckets save messages, not bytes. DDP fills them in the order in which gradients become ready, and sends them under the backward. Too small pays latency, too large loses overlap.
# - `DistributedSampler` gives each rank other data, `set_epoch` gives each epoch another order. Padded samples spoil an accuracy.
# - `no_sync` around forward and backward of all microbatches but the last: one all-reduce per step.
# - A log needs the mean over all ranks. A checkpoint needs one writer, by `RANK`, and names without `module.`.
# - Asynchronous training does not wait, and its gradients are late. Local SGD and DiLoCo talk H times less often.
#
# **Words learned**: [data parallelism](GLOSSARY.md#data-parallelism), [DDP](GLOSSARY.md#ddp), [bucket](GLOSSARY.md#bucket), [communication hook](GLOSSARY.md#communication-hook), [paced](GLOSSARY.md#paced), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [straggler](GLOSSARY.md#straggler), [staleness](GLOSSARY.md#staleness), [Local SGD](GLOSSARY.md#local-sgd), [DiLoCo](GLOSSARY.md#diloco).
#
# **Further reading**
#
# - Data parallelism in PyTorch: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704)
# - Stale-synchronous: Ho et al. 2013, *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NIPS
# - Hogwild!: Niu, Recht, Ré and Wright 2011, [arXiv 1106.5730](https://arxiv.org/abs/1106.5730)
# - Local SGD: Stich 2018, [arXiv 1805.09767](https://arxiv.org/abs/1805.09767)
# - DiLoCo: Douillard et al. 2023, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105)
# - The limit with late gradients: Levin and May 1976, *A note on difference-delay equations*, Theoretical Population Biology 9
#
# **Next**: [chapter 04](04_accelerate.ipynb) lets Accelerate write these lines for you.
#
# The cell below says where you stand.
#
# *Sections 8.3.1, 10.2.1, 10.2.2, 10.2.4, 19.2.1, 19.2.2 (buckets and asynchronous training), S1, S2 and S12 of the source material.*

# %%
check.status()
