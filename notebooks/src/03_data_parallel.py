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
# *An hour and a half, and half an hour for the exercises. You need chapters 00 and 02. No GPU is needed.*
#
# Our 7 B model wants to read a trillion tokens. At some 42 GFLOPs a token, a card that really does 548 TFLOP/s would need **887 days**. So we give 64 cards the same model and each a part of every batch, and hope for two weeks. But after every backward each card has 27 GB of gradients (in fp32) that must become one mean, and on a slow network that takes longer than the computing. When should the messages travel?

# %%
import labkit as lab
import torch
import torch.distributed as dist
from labkit import collectives, data_parallel, model, planner
from labkit.data_parallel import check, server_run
from labkit.measure import traffic
from torch.nn.parallel import DistributedDataParallel as DDP

lab.begin("en")
data_parallel.Step(layers=24, layer_mb=1, forward_ms=2, ranks=2, bucket_mb=25).board()

# %% [markdown]
# Each rank computes (above) and sends gradients in pieces called [buckets](GLOSSARY.md#bucket) (below). Here it is a single bucket, so it waits for the end of the backward. Make the buckets smaller. When do they slip under the backward, and when does the step end soonest?
#
# <details><summary>The answer</summary>
#
# From 16 MiB down a part of the messages lies under the backward. The step ends soonest with buckets of 4 MiB, after 160 ms in place of 230. Still smaller ones make it longer again, up to 184 ms: there are more messages, and each takes the link's latency.
#
# </details>
#
# **When you are done** you can
#
# - train a model on several ranks, and say why the result is that of one process;
# - choose when gradients travel, by buckets and by accumulation;
# - deal the data, log and save in a script of your own.

# %% [markdown] sections="10.2.1, 19.2.1"
# ## Training with DDP
#
# Is training on four ranks still the same training? In **[data parallelism](GLOSSARY.md#data-parallelism)** every rank holds the whole model and takes its own part of the [batch](GLOSSARY.md#batch):

# %%
lab.show(data_parallel.scheme())

# %% [markdown]
# torch's class for this is `DistributedDataParallel`, [DDP](GLOSSARY.md#ddp) for short. Only two things differ from a loop on a single device: the line with `DDP`, and `my_part`.


# %%
def my_part(step):
    """This rank's part of a batch of 8 sequences."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return [part.chunk(size)[rank] for part in model.story_tokens(8, 32, seed=step)]


# %%
def with_ddp(num_steps):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    ddp = DDP(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for step in range(num_steps):
        tokens, targets = my_part(step)
        loss = model.loss(ddp(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.state_dict()


# %% [markdown]
# With one rank this is ordinary training on the whole batch. **Guess**: after three steps, how do the weights of 4 ranks differ from those of one rank? (`lab.difference` gives the largest absolute difference.)

# %%
answers = ["equal to the bit", "by rounding", "by far more than rounding"]
apart = lab.guess("Weights of four ranks and of one", choices=answers)

# %%
alone = lab.launch(with_ddp, 3, ranks=1)[0]
four = lab.launch(with_ddp, 3, ranks=4)
lab.table(
    {
        "rank": rank,
        "from one process": lab.difference(weights, alone),
        "from rank 0": lab.difference(weights, four[0]),
    }
    for rank, weights in enumerate(four)
)

# %%
off = lab.difference(four[0], alone)
apart.score(answers[(off > 0) + (off > 1e-5)])

# %% [markdown] sections="10.2.1, 19.2.1"
# Four ranks add up the same sum in another order. Between the ranks there is no difference, because all get the same bytes from the [all-reduce](GLOSSARY.md#all-reduce).
#
# ## What DDP does, by hand
#
# What does the line with `DDP` do? Here is the same without it. Only the fifth of the six parts is new.


# %%
def by_hand(num_steps):
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)  # 1 the same weights everywhere
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(num_steps):
        tokens, targets = my_part(step)  # 2 different data
        loss = model.loss(net(tokens), targets)  # 3 forward
        optimizer.zero_grad()
        loss.backward()  # 4 backward
        for weight in net.parameters():  # 5 the mean of the gradients
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()  # 6 the same update everywhere
    return net.state_dict()


# %%
mine = lab.launch(by_hand, 3, ranks=4)
lab.table([{"by hand, from DDP": lab.difference(mine[0], four[0])}])

# %% [markdown] sections="10.2.1, 19.2.1"
# This is DDP but for rounding. It is slow for two reasons: it sends a message per weight, and it sends nothing before the backward is over. We mend one after the other.

# %% [markdown] sections="19.2.2a"
# ## Fewer messages: buckets
#
# How do we send fewer messages? Each one pays the [latency](GLOSSARY.md#latency), so a bucket puts several gradients into one. This function takes the mean of any number of tensors at once:


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
def prepared():
    torch.manual_seed(0)
    net = model.Transformer(4, 64, 4, max_len=32)
    return net, *model.story_tokens(4, 32, seed=dist.get_rank())


def per_weight():
    net, tokens, targets = prepared()
    model.loss(net(tokens), targets).backward()
    with traffic.count() as counted:
        for weight in net.parameters():
            average([weight.grad])
    return net, counted


# %% [markdown]
# Against a message per weight we put DDP with buckets of a quarter of a MiB. The model has 53 parameter tensors and 0.94 MB of gradients. **Guess** how many all-reduces DDP makes in a step.

# %%
num_calls = lab.guess("All-reduces of DDP in a step", between=(1, 53))


# %%
def in_buckets():
    net, tokens, targets = prepared()
    ddp = DDP(net, bucket_cap_mb=0.25)
    for _ in range(3):  # DDP has settled its buckets after the first step
        net.zero_grad()
        with traffic.count() as counted:
            model.loss(ddp(tokens), targets).backward()
    return net, counted


# %%
rows = data_parallel.compare_ways(per_weight, in_buckets)  # on two ranks
lab.table(rows)

# %%
num_calls.score(rows[1]["all-reduces"])

# %% [markdown]
# The gradients are the same, and nearly so are the bytes on the [wire](GLOSSARY.md#wire): buckets save messages.

# %% [markdown]
# ## Sending during the backward
#
# How can a message leave before the backward is over? Autograd has a hook that fires as soon as a gradient is complete, and `async_op=True` returns at once, with a handle to wait for. This is how [overlap](GLOSSARY.md#overlap-to-hide-communication) is made:


# %%
def during_the_backward():
    net, under_way = model.Transformer(4, 64, 4, max_len=32), []
    for name, weight in net.named_parameters():

        def send(weight, name=name):
            under_way.append((name, dist.all_reduce(weight.grad, async_op=True)))

        weight.register_post_accumulate_grad_hook(send)
    tokens, targets = model.story_tokens(4, 32)
    model.loss(net(tokens), targets).backward()
    for _, work in under_way:
        work.wait()  # to train with it, divide by the number of ranks here
    return {"calls": len(under_way), "first": under_way[0][0], "last": under_way[-1][0]}


lab.launch(during_the_backward, ranks=2)

# %% [markdown] sections="19.2.2a"
# Hooks started all 53 messages, from the model's output to its input, because a backward walks through the model from its end.
#
# DDP does the same with buckets. Here are 12 layers of 0.5 MiB, in buckets of 1.5 MiB:

# %%
lab.show(
    data_parallel.filling(data_parallel.Step(layers=12, layer_mb=0.5, bucket_mb=1.5))
)

# %% [markdown] sections="19.2.2a"
# <details><summary>DDP's defaults, and its first step</summary>
#
# By default a bucket closes at 25 MiB, and the first one already at 1 MiB, so that something is under way early. (Name a size, and it counts for the first one, too.) In its first step DDP does not know the order yet and sends a single bucket. So our runs below begin with warm-up steps, which are not drawn.
#
# </details>

# %% [markdown] sections="19.2.2a"
# ## How large should a bucket be?
#
# Now the link takes time: it has 0.04 GB/s and 15 ms of latency, so slow that two cores can play it. Two ranks train 12 layers of 0.5 MiB, each with 10 ms of forward and 20 ms of backward. **Guess** which bucket size gives the shortest *predicted* step.

# %%
sizes_mb = (0.5, 1, 2, 4, 8)
size = lab.guess("The best bucket size, in MiB", choices=[str(mb) for mb in sizes_mb])

# %% [markdown]
# The curve is a prediction: a bucket's all-reduce starts when its last gradient is there and the link is free. The dots are real DDP, **[paced](GLOSSARY.md#paced)**: layers and all-reduces sleep until their stated times are over. On busy cores that takes longer: if the dots don't follow the curve, run the cell again when the machine is quiet.
#
# <details><summary>How to read this picture and the next two</summary>
#
# - *overran*: the machine was too busy to keep to some stated times, so the dots lie above the curve.
# - *[pretend device](GLOSSARY.md#pretend-device)*: the CPU played the GPU.
# - *exposed*: communication while this rank computes nothing. *nothing under way*: neither of the two.
# - The dashed line is the predicted end.
# - Two rows of messages on a measured rank: their boxes overlap in time.
#
# </details>

# %%
link = collectives.Link(alpha_us=15_000, bandwidth_gb_per_s=0.04)
step = data_parallel.Step(
    layers=12, layer_mb=0.5, forward_ms=10, ranks=2, bucket_mb=2, link=link, num_steps=1
)
by_size = lab.sweep(
    step,
    bucket_mb=sizes_mb,
    run=[0.5, 2, 8],
    title="Time of a step by bucket size",
    x="bucket size, MiB",
)
by_size

# %%
size.score(str(min(by_size.line, key=by_size.line.get)))

# %% [markdown]
# In the answer above, the curve is high at both ends. First the small one: a message takes 43 ms, 30 of them latency (two sends of 15), but the backward yields a new one every 20 ms. So they queue.

# %%
step.but(bucket_mb=0.5).compare()

# %% [markdown]
# One large bucket pays the latency once, but starts only when the backward is over. The best lies in between:

# %%
step.but(bucket_mb=2).compare()

# %% [markdown]
# Three buckets pay the latency only three times, and most of their time lies under the backward. The last bucket is never hidden, because its last gradient ends the backward.
#
# In a ring, a bucket's bytes take longer than its latency if there are more than N × latency × bandwidth, here 1.2 MB. So take larger buckets, but still several in a step, so that the last is small. DDP's default of 25 MiB is a good start: 64 ranks over the InfiniBand of chapter 02 need 8 MB.
#
# ### Exercise 1: build the buckets
#
# Average the gradients of all ranks in at most $\lceil$ bytes of all gradients / `bucket_bytes` $\rceil$ messages. Every gradient travels once, and no message is longer than `bucket_bytes` plus its last gradient. Two layers of `net` share a weight, and some parameters are frozen. You may use `average`.


# %%
def my_buckets(net, bucket_bytes):
    """Replaces every gradient by its mean over the ranks."""
    ### BEGIN SOLUTION
    weights = reversed(list(net.parameters()))
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
# ## How much faster do N ranks get?
#
# N ranks share one batch, so each computes 1/N of it. But messages do not shrink: a ring sends one to two times the gradients, however many ranks there are. Take layers that compute twice as fast, on the link of the first picture (0.3 GB/s, 1 ms); one rank computes 180 ms for the whole batch. Each N gets the best of our five bucket sizes. **Guess** the predicted speed-up of 4 ranks.

# %%
speedup = lab.guess("Speed-up of 4 ranks", between=(1, 4), unit="ratio")

# %%
whole_step = step.but(forward_ms=5, link=data_parallel.LINK)
counts = (1, 2, 3, 4, 6, 8)
shared, grown = data_parallel.speedup(whole_step, counts, sizes_mb)
lines = {
    "ideal": {n: n for n in counts},
    "one batch, shared": shared,
    "the batch grows with N": grown,
}
lab.curves(predicted=lines, x="ranks", y="speed-up", title="Speed-up")

# %%
speedup.score(shared[4])

# %% [markdown] sections="10.2.1, S1"
# In the answer above, the shared batch's curve stops rising at three ranks: the messages stay as long, and less and less computing is left to hide them. If instead the batch grows with N, every rank computes as much as one rank did, and the samples per second stay near the ideal. So large clusters take large batches. (How large a batch still learns well is asked in [chapter 12](12_large_batches.ipynb).) What if they do not fit?
#
# <details><summary>Why not nn.DataParallel?</summary>
#
# torch's own documentation advises against this older class. A single process drives all GPUs, in threads, and Python's lock, the GIL, lets only one of them run Python at a time. In each step the first GPU hands out all weights and takes in all gradients, with nothing to hide them under.
#
# </details>

# %% [markdown] sections="10.2.4"
# ## Several backwards, one all-reduce
#
# Where a batch does not fit, you add up the gradients of several [microbatches](GLOSSARY.md#microbatch) before one update ([gradient accumulation](GLOSSARY.md#gradient-accumulation)). Only the last backward has to communicate, so `ddp.no_sync()` turns the all-reduces off inside its block. Here are three ways for four microbatches and a single bucket; the third puts only the backward into the block. **Guess** how many all-reduces it makes.

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
    return ddp, counted


# %%
ways = plain, all_in_no_sync, backward_in_no_sync
rows = data_parallel.compare_ways(*ways, through=accumulate)
lab.table(rows)

# %%
quiet.score(rows[2]["all-reduces"])

# %% [markdown]
# The forward belongs in the block, too, because DDP decides in the forward whether the coming backward communicates. The price of one all-reduce is that only the *last* microbatch's backward can hide it.

# %% [markdown]
# ## When is it worth it?
#
# What becomes of our 887 days? Here is a prediction for one GPU, which takes all 512 sequences of a batch, and for 64, which take 8 each. Each accumulates, one sequence at a time, and has a network card of 50 GB/s.

# %%
one = planner.Plan(model="LLaMA 7B", gpu="H200 141 GB", gpus=1, batch=512)
planner.card(one, one.but(gpus=64))

# %% [markdown]
# 64 GPUs are 56 times as fast as one, which makes 15.7 days. Where does the rest go? Here is their step, one with a single sequence per GPU, and one where eight GPUs share a network card of 25 GB/s:

# %%
many = one.but(gpus=64)
plans = {
    "8 sequences per GPU": many,
    "1 sequence per GPU": many.but(batch=64),
    "8, on a slow network": many.but(nic_gb_per_s=25 / 8),
}
lab.show(planner.time_bars(plans))

# %% [markdown]
# *Data parallel* is the exposed part of the all-reduce, in which a machine's eight network cards carry 27 GB together. Only the last microbatch can hide it, which has one sequence in either case. So it does not shrink with the batch, nor does the update (*optimizer*). So with one sequence the two are half of the step, and 64 GPUs are only 31 times as fast as one. On the slow network it is longer than all computing.
#
# So when should the messages travel? During the backward, in buckets that leave as soon as their gradients are there: large enough that latency is the smaller part, small enough that little is left after the backward. Where much is still exposed, give each rank a larger batch, or accumulate.
#
# Memory has not changed, because every GPU holds everything: [chapter 06](06_zero_deepspeed.ipynb) mends that.

# %% [markdown] sections="10.2.1, 19.2.1"
# *Here the first half ends. If you want a break, take it now. The second half is about what your own script must get right.*
#
# ## A mean of means
#
# DDP takes the mean of the ranks' gradients. Is that always the mean over the batch? Let rank 0 have six of eight sequences and rank 1 two. How much more does each of these two count?


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
factors = {"1/2 and 1/2": [1 / 2, 1 / 2], "6/8 and 2/8": [6 / 8, 2 / 8]}
found = lab.launch(
    lambda: {by: with_shares([6, 2], each) for by, each in factors.items()}, ranks=2
)
lab.table(
    {"factors": by, "from the whole batch": lab.difference(grads, whole)}
    for by, grads in found[0].items()
)

# %% [markdown]
# Dividing by the number of ranks gives rank 1's two sequences as much weight as rank 0's six, so each of them counts three times. Only weighting by the shares gives the gradients of the whole batch.

# %%
each = {
    "1/2 and 1/2": {"on rank 0": 1 / 2 / 6, "on rank 1": 1 / 2 / 2},
    "6/8 and 2/8": {"on rank 0": 6 / 8 / 6, "on rank 1": 2 / 8 / 2},
}
lab.bars(each, unit="share", title="What one sequence counts", badge="computed")

# %% [markdown]
# <details><summary>If the loss averages over tokens</summary>
#
# A language model's does. If padding leaves ranks or microbatches with different numbers of tokens, weight by tokens. With DDP, which divides by N, multiply this rank's loss by N × its tokens / all tokens.
#
# </details>
#
# ### Exercise 2: unequal shares
#
# The gradients in `net` are those of the mean loss over this rank's `num_samples`. On a rank without samples they are None. Frozen parameters (`requires_grad=False`) have None everywhere, and keep it. Leave on every rank the gradient of the mean loss over all samples of all ranks, and send little more than the gradients once.


# %%
def my_average(net, num_samples):
    """Leaves in net the gradient of the mean over all samples of all ranks."""
    ### BEGIN SOLUTION
    total = torch.tensor([float(num_samples)])
    dist.all_reduce(total)
    for weight in net.parameters():
        if weight.requires_grad:
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            weight.grad = grad * (num_samples / total.item())
            dist.all_reduce(weight.grad)
    ### END SOLUTION


# %%
check.average_uneven(my_average)

# %%
check.hint("average_uneven")

# %% [markdown] sections="8.3.1"
# ## Different data on each rank
#
# How does each rank get data of its own? torch's `DistributedSampler` gives it its indices. Here are 8 samples on 2 ranks for three epochs, with `set_epoch` and without it:

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


# %%
rows = [{"epoch": n, "with": deal(8, 2, n), "without": deal(8, 2)} for n in range(3)]
lab.table(rows, heads={"with": "set_epoch(n)"})

# %% [markdown] sections="8.3.1, 10.2.4"
# Without `set_epoch` every epoch has the same order. In both columns the two ranks share no sample within an epoch, because the sampler knows its `rank`.
#
# ### Ten samples on four ranks
#
# And if the samples can't be dealt equally? Every rank must take the same number of steps, or the all-reduces would not match. So the sampler gives at most N − 1 samples out twice, or drops as many. Let a model be right on all of 10 samples but the first, the second and the last. What does an evaluation measure?

# %%
shares = {
    "padded (the default)": deal(10, 4, shuffle=False),
    "drop_last=True": deal(10, 4, shuffle=False, drop_last=True),
    "range(rank, 10, 4)": [list(range(rank, 10, 4)) for rank in range(4)],
}
right = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 1, 0], dtype=torch.float64)
rows = [
    {
        "name": name,
        "accuracy_share": right[sum(dealt, [])].mean().item(),
        "shares": dealt,
    }
    for name, dealt in shares.items()
]
lab.table(rows, heads={"accuracy_share": "accuracy"})

# %% [markdown]
# Seven of ten are right, as only the last row says. So evaluate on uneven shares, by `ddp.module` (the wrapper's forward may communicate), and all-reduce two numbers at the end: correct and count.

# %% [markdown]
# ### Exercise 3, if you like: deal the samples
#
# Write the sampler that torch lacks: it neither pads nor drops. List the samples of one rank in one epoch. Every sample goes to exactly one rank; shares differ by one at most; every epoch is dealt anew. No communication, and leave torch's and Python's global random generators as they are.


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

# %% [markdown] sections="10.2.4, S12"
# ## A whole training script
#
# What does a whole script look like? This one logs the loss of *all* ranks, and lets rank 0 save the weights (to resume, also save the optimizer: [chapter 13](13_checkpoint_and_recover.ipynb)).


# %%
def train(num_epochs, path, device="cpu"):
    torch.manual_seed(dist.get_rank())  # other dropout; DDP sends rank 0's weights
    data = TensorDataset(*model.story_tokens(64, 32))  # the same on every rank
    sampler = DistributedSampler(data)  # asks the process group for rank and size
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32).to(device))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    logged = []
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        losses = []
        for tokens, targets in loader:
            loss = model.loss(ddp(tokens.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean() / dist.get_world_size()
        dist.all_reduce(mean)  # for the log; DDP has averaged the gradients
        logged.append({"last batch": loss.item(), "of all": mean.item()})
    if dist.get_rank() == 0:
        # the names in the wrapper's own state_dict() begin with "module."
        torch.save(ddp.module.state_dict(), path)
    dist.barrier()  # nobody looks for the file before it is there
    return logged


# %%
import inspect
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
by_launch = lab.launch(train, 3, folder / "last.pt", ranks=2, devices="cpu")
lab.table(
    {"rank": rank, "epoch": epoch, **row}
    for rank in (0, 1)
    for epoch, row in enumerate(by_launch[rank])
)

# %% [markdown] sections="10.2.4, S12"
# Which column would you log? *last batch* is one batch of one rank, so the ranks disagree. *of all* is the mean of all batches of the epoch, and both know it.

# %% [markdown] sections="S2, S12"
# <details><summary>If your model has BatchNorm</summary>
#
# On GPUs, call `torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)` before `DDP`, or each rank normalizes by its own part of the batch.
#
# </details>
#
# ### The same under torchrun
#
# How does it run as a script? `torchrun` starts the processes and tells each by environment variables who it is. `init_process_group` reads what it needs of them, and the script itself `LOCAL_RANK`.

# %%
SCRIPT = """
import os, sys

import torch
import torch.distributed as dist
from labkit import model
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

{train}
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cpu")
if torch.accelerator.is_available():
    torch.accelerator.set_device_index(local_rank)
    device = torch.accelerator.current_accelerator()
dist.init_process_group()
losses = [round(row["of all"], 3) for row in train(3, sys.argv[1], device)]
print("rank", dist.get_rank(), "is local rank", local_rank, "and logs", losses)
dist.destroy_process_group()
"""

# %% [markdown]
# On two machines you run one command each. This is the first's, and the second's says `--node_rank=1`:
#
# ```
# torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 \
#     --master_addr=10.0.0.1 --master_port=29500 train.py last.pt
# ```
#
# `RANK` counts over all 16, `LOCAL_RANK` within one machine: on the second, local rank 3 is rank 11. Which of the two should decide who prints and who saves? We play two machines with one rank each:

# %%
script, path = folder / "train.py", str(folder / "again.pt")
script.write_text(SCRIPT.format(train=inspect.getsource(train)))
nodes = lab.launch_script(
    script, path, ranks=2, nodes=(2, 2), devices="cpu", show=False
)
print(*nodes.logs, sep="\n")

# %% [markdown] sections="S2, S12, 8.3.1, 10.2.4"
# It is one job of two ranks, and *both* are local rank 0. So choose the GPU by `LOCAL_RANK`, and the writer by `RANK`.
#
# ---
#
# *Here ends what most people need. The rest is about not waiting, and optional.*

# %% [markdown] sections="10.2.2, 19.2.2a"
# ## Without waiting: asynchronous training
#
# So far every step waits for the slowest rank. What if nobody waited? One rank holds the weights, as a [parameter server](GLOSSARY.md#parameter-server). A worker sends it a gradient, gets the newest weights back, and goes on, but *starts* another step only if it has finished at most `bound` more than the slowest. A **bound** of 0 is synchronous training, no bound is asynchronous, and in between it is called stale-synchronous:


# %%
def may_start(waiting, steps, bound):
    """Those of the waiting workers that may start another step."""
    return [each for each in waiting if steps[each] - min(steps.values()) <= bound]


# %% [markdown] sections="10.2.2"
# Whenever the server hands out weights, they are a new version. A gradient of version 5 that arrives at version 8 is 3 versions late, which is its **[staleness](GLOSSARY.md#staleness)**.


# %%
def serve(weights, total, bound):
    """Takes `total` gradients; returns how late each was, and which workers wait."""
    steps = dict.fromkeys(range(1, dist.get_world_size()), 0)
    waiting, late, version = [], [], 0
    message = server_run.stamped(weights, version)  # values and a version
    while len(late) < total:
        worker = dist.recv(message)  # from whoever comes first
        late.append(version - int(message[-1]))
        weights -= 0.1 * message[:-1]
        steps[worker] += 1
        waiting.append(worker)
        go = may_start(waiting, steps, bound)
        version += bool(go)
        for each in go:
            waiting.remove(each)
            dist.send(server_run.stamped(weights, version), each)
    return late, waiting


# %% [markdown]
# `server_run.launch` adds three workers. A step takes 24 ms, and on worker 3 four times as long: a [straggler](GLOSSARY.md#straggler). The clock stops when the server has 18 gradients. **Guess**: if nobody waits, how many gradients do the two others deliver while worker 3 computes one?

# %%
meanwhile = lab.guess("Gradients of the others meanwhile", between=(0, 17))

# %%
bounds = {"synchronous": 0, "bound 2": 2, "asynchronous": 10**6}
runs = {name: server_run.launch(serve, 18, bound) for name, bound in bounds.items()}
lab.table({"name": name, **run[0]} for name, run in runs.items())

# %%
meanwhile.score(2 * server_run.SLOW)  # of two workers

# %% [markdown]
# Each of them makes a new version, so on a quiet machine worker 3's gradients are about that late.
#
# The synchronous run waits for worker 3 in each step. With a bound of 2 the fast workers run three steps ahead, and then go at worker 3's speed. Without a bound nobody waits for another worker:

# %%
runs["asynchronous"].timeline()

# %% [markdown]
# <details><summary>How to read this picture</summary>
#
# Rank 0 is the server: it only adds and answers, which is counted as idle. The hatched gaps between steps are this machine's, whose few cores they share. Steps that are under way at the 18th gradient are drawn to their end, and dropped.
#
# </details>

# %% [markdown] sections="10.2.2, 19.2.2a"
# ### The price
#
# What does not waiting cost? In the end slower or diverging training, which this run is too short to show; it shows the lateness, in the table's other columns. A bound trades waiting against lateness. *Latest* may exceed the bound, which counts a worker's own steps, not versions.
#
# <details><summary>How lateness bounds the learning rate</summary>
#
# On the simplest of all losses, $x^2/2$, the learning rate must stay below $2\sin\frac{\pi}{4d+2}$ if every gradient is $d$ updates late (Levin and May 1976). With $d = 4$ that is 0.35, about a sixth of the 2 that gradient descent allows when nothing is late.
#
# </details>
#
# <details><summary>Hogwild!, Local SGD and DiLoCo</summary>
#
# *Hogwild!* drops even the server: workers write into shared weights without locks. Its proof needs updates that each touch few of the weights.
#
# In **[Local SGD](GLOSSARY.md#local-sgd)** every rank trains alone for H steps, and then the *weights* are averaged, so the bytes fall by a factor of H. **[DiLoCo](GLOSSARY.md#diloco)** (2023) gives the step from the old weights to the mean to an *outer optimizer* with momentum, as if it were a gradient. [Chapter 12](12_large_batches.ipynb) runs Local SGD.
#
# </details>

# %% [markdown]
# ## Summary
#
# - Same weights, different data, averaged gradients: with equal shares that is one process with the whole batch, up to rounding.
# - Buckets save messages, not bytes. DDP sends them under the backward. Too small pays latency, too large loses overlap.
# - `no_sync` around forward and backward of all microbatches but the last: one all-reduce per step.
# - `DistributedSampler` gives each rank different data, `set_epoch` reshuffles each epoch. Padded samples shift an accuracy.
# - A log needs the mean over all ranks. A checkpoint needs one writer, by `RANK`.
# - Asynchronous training trades waiting against late gradients, and a bound says how far.
#
# **Words learned**: [data parallelism](GLOSSARY.md#data-parallelism), [DDP](GLOSSARY.md#ddp), [bucket](GLOSSARY.md#bucket), [paced](GLOSSARY.md#paced), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [straggler](GLOSSARY.md#straggler), [staleness](GLOSSARY.md#staleness).
#
# <details><summary>Further reading</summary>
#
# - Data parallelism in PyTorch: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704)
# - Stale-synchronous: Ho et al. 2013, *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NIPS
# - Hogwild!: Niu, Recht, Ré and Wright 2011, [arXiv 1106.5730](https://arxiv.org/abs/1106.5730)
# - Local SGD: Stich 2018, [arXiv 1805.09767](https://arxiv.org/abs/1805.09767)
# - DiLoCo: Douillard et al. 2023, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105)
# - The limit with late gradients: Levin and May 1976, *A note on difference-delay equations*, Theoretical Population Biology 9
#
# </details>
#
# **Next**: [chapter 04](04_accelerate.ipynb) lets Accelerate write these lines for you.

# %% [markdown] sections="8.3.1, 10.2.4, S2, S12"
# ## Errata of the textbook
#
# <details><summary>Four errata, for readers of that textbook</summary>
#
# Where the number has an S, it is the textbook's demo project.
#
# <details><summary>Erratum 10.2.4: set_epoch "so that different processes use different data"</summary>
#
# That is not what it does. It makes *epochs* differ; processes differ with it and without it. Run it: `deal(8, 2)` gives two lists that share nothing.
#
# </details>
#
# <details><summary>Erratum 10.2.4: the loss that is printed is one rank's</summary>
#
# The textbook prints `loss.item()` on rank 0. That is the column *last batch*: one batch of one rank. Run it: the cell that calls `train`.
#
# </details>
#
# <details><summary>Erratum S2, S12: printing and saving if local_rank == 0</summary>
#
# The demo project prints, and S12 also saves, `if local_rank == 0`. With two machines every line comes twice, and on a disk that both share two processes write one file. Run it: the cell with two torchruns, where both say `is local rank 0`.
#
# </details>
#
# <details><summary>Erratum 8.3.1: mp.spawn with init_method="env://"</summary>
#
# The textbook starts its processes by `mp.spawn` and calls `init_process_group(init_method="env://", rank=rank, world_size=world_size)`. But `mp.spawn` gives its children no `MASTER_ADDR` and no `MASTER_PORT`, so the call fails until you set both. Run it: `dist.init_process_group("gloo", init_method="env://", rank=0, world_size=2)` raises a ValueError that names `MASTER_ADDR`.
#
# </details>
#
# </details>

# %%
check.status()
