# ---
# jupyter:
#   labkit:
#     sections: ["8.9.2", "10.4.3", "10.7.3", "19.1.3", "19.2.2b", "19.8.2", "S10"]
#     needs: ["chapters 02 and 03"]
#     minutes: 75
# ---

# %% [markdown]
# # Communication: hide it, and send less
#
# *About 75 minutes. You need chapters 02 and 03. No GPU is needed.*
#
# Our 7 B model trains on eight cards in eight machines, with an Ethernet of 10 Gbit/s between them. A step computes for three seconds. Then the cards exchange their gradients, and that takes 71 seconds (both predicted by the planner of chapter 18). We bought eight cards, and what we have is a very expensive network test.
#
# There are four ways out: hide the messages under the computing, send them less often, send fewer bytes, or send them over better links. What does each of them really save?

# %%
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import labkit as lab
from labkit import collectives, data_parallel, model, planner, timeline
from labkit.communication import check, compressed_run, jobs

lab.begin("en", deadline_s=60)
link = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.08)
four = {"layers": 4, "layer_mb": 1, "ranks": 3, "bucket_mb": 0.9, "num_steps": 2}
step = data_parallel.Step(**four, link=link, overlap=False)
step.board()

# %% [markdown]
# Each row is a rank: forward, backward, and in the thin strip below its messages. Switch overlap on. Where do the messages go, and what is left of them at the end?
#
# **When you are done** you can overlap gradients with the backward by hand, compress them without spoiling the training, and tell when neither is worth the trouble.

# %% [markdown]
# ## Hide it, by hand
#
# A backward ends with the first layer. But when is the gradient of the *last* layer ready? Long before, and nobody will change it any more, so it can already travel. torch calls a hook of ours as soon as a gradient is complete, and `async_op=True` starts a message without waiting for it. That is all we need:


# %%
def overlapped():
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    left, under_way = [], []

    def send_when_ready(name):
        def hook(weight):
            left.append(name)
            under_way.append(dist.all_reduce(weight.grad, async_op=True))

        return hook

    for name, weight in net.named_parameters():
        weight.register_post_accumulate_grad_hook(send_when_ready(name))
    net(torch.randn(64, 512)).square().mean().backward()
    for work in under_way:
        work.wait()
    return {"first to leave": left[0], "last to leave": left[-1]}


# %% [markdown]
# Four layers, named 0 to 3. Whose gradient leaves first?

# %%
first = lab.guess("the layer whose gradient leaves first", choices=["0", "3"])

# %%
by_hand = lab.launch(overlapped, ranks=2)
first.score(by_hand[0]["first to leave"][0])

# %%
by_hand

# %% [markdown]
# The order is reversed: last layer first. And the wait stands at the very end, so everything that has arrived by then cost nothing.
#
# `DistributedDataParallel` (DDP) does the same, but it first collects gradients in [buckets](GLOSSARY.md#bucket), because many small messages are slower than one large one (chapter 03).

# %% [markdown] sections="8.9.2, 10.4.3, 19.1.3"
# ## Predict, run, compare
#
# Now real DDP, with times that we can compare. Layers and links are [paced](GLOSSARY.md#paced): four layers, each with 10 ms of forward, 20 ms of backward and 1 MB of gradients, in a bucket of its own. Messages are really sent, and then wait until a link of 80 MB/s would have carried them. A bar of the measured picture begins and ends where the clock said so.

# %%
step.compare()

# %% [markdown]
# Without overlap a step takes the sum of computing and sending. How many milliseconds does it take with overlap?

# %%
with_overlap = lab.guess("a step with overlap", unit="ms")

# %%
hidden = step.but(overlap=True).compare()
hidden

# %%
with_overlap.score(timeline.step_us(hidden.measured) / 1000)

# %% [markdown]
# What lies under computing of the same rank is called [hidden](GLOSSARY.md#overlap-to-hide-communication), the rest is [exposed](GLOSSARY.md#exposed-communication). You pay for the exposed part only:

# %%
plain = step.compare()
exposed_ms = {
    "no overlap": max(timeline.exposed_comm_us(plain.measured)) / 1000,
    "overlap": max(timeline.exposed_comm_us(hidden.measured)) / 1000,
}
lab.bars(exposed_ms, unit="ms", title="Exposed communication of a step")

# %% [markdown] sections="19.1.3"
# Something always stays: the last bucket belongs to the first layer, whose gradient comes at the very end. Here the link is a little faster than the backward. What if it were slower? Then the buckets queue up behind one another, and overlap hides less and less:

# %%
narrow = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.03)
data_parallel.Step(**four, link=narrow).predict()

# %% [markdown] sections="19.1.3"
# <details><summary>Erratum 19.1.3: hooks hide communication "almost entirely"</summary>
#
# At best they hide all buckets but one, and only where the link keeps up with the backward. Run it: `timeline.hidden_comm(hidden.predicted)` for our link, and `timeline.hidden_comm(data_parallel.Step(**four, link=narrow).predict())` for the narrow one.
#
# </details>
#
# <details><summary>Erratum 19.1.3: a chart of overlap in which nothing overlaps</summary>
#
# The textbook draws one row: compute layer N, all-reduce the gradient of N-1, compute layer N+1. The boxes follow one another, so what is hidden is 0. The order is not that of a backward either, which goes from the last layer down: while layer N-1 computes, the gradient of layer N is on its way. `hidden.predicted` draws it as it happens.
#
# </details>

# %% [markdown] sections="8.9.2, 10.4.3"
# ## Pay less often
#
# A batch that does not fit is cut into microbatches, whose gradients add up in `.grad` ([gradient accumulation](GLOSSARY.md#gradient-accumulation)). DDP would all-reduce in each backward. Inside `no_sync()` it does not. But then somebody has to all-reduce at some point. Here are three ways that people have tried, on two ranks with four microbatches each:


# %%
def accumulate(way):
    torch.manual_seed(0)
    net = nn.Linear(100, 10)
    ddp = DDP(net)
    inputs, targets = torch.randn(2, 4, 8, 100), torch.randn(2, 4, 8, 10)
    nn.functional.mse_loss(net(inputs), targets).backward()
    right = net.weight.grad.clone()  # the whole batch, on one process
    net.zero_grad()
    for x, y in zip(inputs[dist.get_rank()], targets[dist.get_rank()]):
        with ddp.no_sync():
            (nn.functional.mse_loss(ddp(x), y) / 4).backward()
        if way != "never reduced":
            dist.all_reduce(net.weight.grad)
        if way == "reduced and divided each time":
            net.weight.grad /= 2
    return (net.weight.grad - right).abs().max().item() / right.abs().max().item()


# %%
ways = ["never reduced", "reduced each time", "reduced and divided each time"]
off = {way: lab.launch(accumulate, way, ranks=2)[0] for way in ways}
lab.bars(off, unit="share", title="How far the gradient is off the whole batch's")

# %% [markdown]
# - **Never reduced.** Every rank keeps its own gradients and trains a model of its own.
# - **Reduced each time.** What has been summed once is summed again in the next round, so the result is far off.
# - **Reduced and divided each time.** This is right, because the mean of what is already equal doesn't change it. But it sends four times as much as necessary.
#
# <details><summary>Erratum 8.9.2: an all-reduce in every microbatch</summary>
#
# The textbook puts `no_sync()` around all microbatches and all-reduces every gradient inside, which is the second bar: `off["reduced each time"]`. (Its code in 10.4.3 forgets to divide by the number of ranks as well.) Its all-reduce is asynchronous too, so it would still be on its way while the next backward adds to the same tensor.
#
# </details>

# %% [markdown] sections="8.9.2, 19.8.2"
# ## Exercise 1. Accumulate right
#
# So what is the right way? `ddp` is a `DistributedDataParallel`, `microbatches` a list of pairs (inputs, targets) of one size. Leave in `ddp` the gradients of the mean squared error of the **whole** batch, over all microbatches and ranks, and let them be all-reduced once. The check makes three updates with them: training then converges as it does with the large batch.


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

# %% [markdown] sections="19.1.3, 10.4.3, 19.8.2"
# ### What it saves
#
# With k microbatches a rank communicates once instead of k times. Two layers on the same link; each microbatch has 8 samples. How much time does a *sample* take?


# %%
def per_sample(k):
    """Milliseconds of a sample, predicted and measured."""
    both = two_layers.but(accumulate=k).compare()
    times = {"predicted": both.predicted, "measured": both.measured}
    return {name: timeline.step_us(each) / 8000 / k for name, each in times.items()}


two_layers = data_parallel.Step(layers=2, layer_mb=1, bucket_mb=0.9, ranks=2, link=link)
times = {k: per_sample(k) for k in (1, 2, 4, 8)}
lab.curves(
    predicted={"time": {k: each["predicted"] for k, each in times.items()}},
    measured={"time": {k: each["measured"] for k, each in times.items()}},
    x="microbatches per step",
    y="time per sample",
    unit="ms",
    title="Accumulation: the time of a sample",
)

# %% [markdown]
# Bytes per sample fall as 1/k. The time can fall no further than the computing, so most is won from 1 to 4.
#
# ### What it costs
#
# Nothing is free. k microbatches are one large batch: fewer updates, each from a better estimate. Take the same 64 microbatches on each of two ranks, with k = 1, 4 and 8. What happens to the loss if you leave the learning rate as it is, and what if you multiply it by k?


# %%
def converge(k, learning_rate):
    torch.manual_seed(0)
    ddp = DDP(model.Transformer(1, 32, 2, max_len=32))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=learning_rate)
    for number in range(0, 64, k):
        for part in range(number, number + k):
            seed = 1000 * part + dist.get_rank()
            tokens, targets = model.story_tokens(8, 32, seed=seed)
            last = part == number + k - 1
            with nullcontext() if last else ddp.no_sync():
                (model.loss(ddp(tokens), targets) / k).backward()
        optimizer.step()
        optimizer.zero_grad()
    tokens, targets = model.story_tokens(64, 32, seed=99)
    return model.loss(ddp.module(tokens), targets).item()


# %%
losses = {}
for k in (1, 4, 8):
    same = lab.launch(converge, k, 0.3, ranks=2)[0]
    scaled = lab.launch(converge, k, 0.3 * k, ranks=2)[0]
    losses[f"k = {k}"] = {"same rate": same, "rate times k": scaled}
lab.bars(losses, title="Loss after 64 microbatches")

# %% [markdown]
# With one learning rate, fewer updates get less far. A larger rate makes up for most of it, as long as training stays stable: look at the last bar. Whoever wants to send less often and still update often uses [Local SGD](GLOSSARY.md#local-sgd) (chapter 03).

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Send fewer bytes
#
# DDP lets a [communication hook](GLOSSARY.md#communication-hook) take the place of its all-reduce: `ddp.register_comm_hook(state, hook)`. The hook gets a bucket of gradients and returns a Future of their mean over all ranks. The simplest one halves the bytes, and the library has it:


# %%
def fp16(state, bucket):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return default_hooks.fp16_compress_hook(None, bucket)


# %% [markdown]
# `compressed_run.launch` trains a small transformer on two ranks under such a hook, over a slow paced link, and counts. `sent_bytes` is what a step hands to collectives (the [payload](GLOSSARY.md#payload)). `wire_bytes` is what the system counted on the sockets, headers included.


# %%
def report(*names):
    """What a step sends, how long it takes, and where the loss ends."""
    keys = ("sent_bytes", "wire_bytes", "step_ms", "last_loss")
    rows = [
        {"hook": name} | {key: results[name][key] for key in keys} for name in names
    ]
    return lab.table(rows)


results = {"all-reduce": compressed_run.launch()[0]}
results["fp16"] = compressed_run.launch(fp16)[0]
report("all-reduce", "fp16")

# %% [markdown] sections="19.2.2b"
# ### PowerSGD
#
# A weight's gradient is a matrix, and often a thin product of two matrices is close to it. PowerSGD sends such factors, of a stated rank r: for m rows and n columns that is $r(m+n)$ numbers instead of $mn$. What the factors miss is added to the next gradient. Biases and norms, and matrices that would not at least halve, are sent whole.
#
# At rank 1, what share of the bytes is left for our small model?

# %%
thin = lab.guess("bytes that PowerSGD sends, rank 1", between=(0, 1))


# %%
def power_sgd(state, bucket):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as library

    if "power" not in state:
        state["power"] = library.PowerSGDState(
            None, matrix_approximation_rank=state["rank"], start_powerSGD_iter=2
        )
    return library.powerSGD_hook(state["power"], bucket)


results["PowerSGD"] = compressed_run.launch(power_sgd, {"rank": 1})[0]
thin.score(results["PowerSGD"]["sent_bytes"] / results["all-reduce"]["sent_bytes"])

# %%
report("all-reduce", "PowerSGD")

# %% [markdown] sections="10.4.3, S10"
# ### Top-k, and how it is often written
#
# The largest few values of a gradient matter most. Why not send only these? Here is a hook that keeps the largest 1 % and writes zeros over the rest. How many bytes does it save?


# %%
def zeros_elsewhere(state, bucket):
    gradient = bucket.buffer()
    places = gradient.abs().topk(len(gradient) // 100).indices
    sparse = torch.zeros_like(gradient).index_copy_(0, places, gradient[places])
    work = dist.all_reduce(sparse, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


results["zeros"] = compressed_run.launch(zeros_elsewhere)[0]
report("all-reduce", "zeros")

# %% [markdown] sections="10.4.3, S10"
# None at all. A zero is a number like any other, and it is sent like any other.
#
# <details><summary>Erratum 10.4.3: a sparse gradient in a dense all-reduce</summary>
#
# That was the textbook's code, as a hook. It saves nothing: compare `results["zeros"]["sent_bytes"]` with the line above. It also forgets to divide by the number of ranks, which doubles the learning rate here.
#
# </details>
#
# <details><summary>Erratum S10: decompress by dividing by the mask</summary>
#
# The source returns the gradient times a mask, still as many bytes, and then divides by the mask. Where the mask is 0 that is 0 / 0. Run it: `torch.tensor([3.0, 0.0]) / torch.tensor([1.0, 0.0])` gives 3 and NaN.
#
# </details>

# %% [markdown] sections="19.2.2b, 10.4.3"
# ### Top-k that saves bytes
#
# Only k values may go out, and k places with them, because each rank chooses others. That is no all-reduce any more. It is an [all-gather](GLOSSARY.md#all-gather), after which each rank adds up what it got:


# %%
def top_k(state, bucket):
    gradient, size = bucket.buffer(), dist.get_world_size()
    chosen = gradient.abs().topk(len(gradient) // 100).indices
    values = gradient.new_empty(size * len(chosen))
    places = gradient.new_empty(len(values), dtype=torch.int32)
    dist.all_gather_single(values, gradient[chosen])
    dist.all_gather_single(places, chosen.int())
    answer = torch.futures.Future()
    mean = torch.zeros_like(gradient)
    answer.set_result(mean.index_add_(0, places.long(), values / size))
    return answer


# %% [markdown]
# Again 1 % of the values. What share of the bytes does a rank save, of what it hands in?

# %%
saved = lab.guess("bytes that top-1 % saves", between=(0, 1))

# %%
results["top-1 %"] = compressed_run.launch(top_k)[0]
share = results["top-1 %"]["sent_bytes"] / results["all-reduce"]["sent_bytes"]
saved.score(1 - share)

# %% [markdown]
# A place costs four bytes, like a value, so 2 % is handed in. And an all-gather passes everybody's part on to everybody. So look at the wire, with two ranks and with four:

# %%
rows = []
for hook in (None, top_k):
    for ranks in (2, 4):
        run = compressed_run.launch(hook, ranks=ranks, num_steps=30, link=None)
        told = {"hook": "top-1 %" if hook else "all-reduce", "ranks": ranks}
        rows.append(told | {"wire_bytes": run[0]["wire_bytes"]})
lab.table(rows)

# %% [markdown] sections="19.2.2b"
# A rank sends $(N-1)$ times 8k bytes, where a ring all-reduce of n values sends $2(N-1)/N$ times 4n. The ratio is $Nk/n$. (Messages this small carry their headers too, so the counted ratio is a little higher.)
#
# <details><summary>Erratum 19.2.2: the top 1 % saves "more than 99 %"</summary>
#
# It saves 98 % of what a rank hands in, because places travel too: `1 - share`. Of what it sends, it saves 92 % with eight ranks, and with a hundred ranks nothing.
#
# </details>

# %% [markdown] sections="19.2.2b"
# ## Exercise 2. Lose nothing
#
# A small gradient is never among the largest, so top-k never sends it, however long it points the same way. The cure is **error feedback**: keep what was not sent, and add it to the next gradient. Then what was sent and what is kept always make up all gradients; some of it is merely late.
#
# Build it. Every rank calls this function in every step with its own gradient. Return the mean that all ranks use, and the memory that you want back in the next call (zeros in the first). A rank may hand in 8 bytes for each of k values per call, no more. The check trains on real ranks, compares with training without compression, and adds up what was sent and what is kept.


# %%
def my_reduce(gradient, memory, k):
    """(mean of what the ranks send, the new memory)"""
    ### BEGIN SOLUTION
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
# The package has such a hook as well, so that you can see what it does to the loss:

# %%
feedback = compressed_run.top_k_feedback
results["top-1 %, feedback"] = compressed_run.launch(feedback, {"share": 0.01})[0]
report("top-1 %", "top-1 %, feedback")

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Eight bits, and how to round
#
# Quantisation divides by the largest value, maps to the whole numbers from -127 to 127, and sends one byte for each. But how do you round? To the **nearest**, everything below half a step becomes 0, every time. **Stochastic** rounding goes up with a probability equal to the remainder, so 0.3 becomes 1 in three of ten cases. Which of them is right on average?

# %%
value = torch.tensor(0.3).expand(100_000)
rounded = {
    "nearest": torch.round(value).mean().item(),
    "stochastic": torch.floor(value + torch.rand(len(value))).mean().item(),
}
lab.bars(rounded, title="Mean of 0.3, rounded 100,000 times", marks={"right": 0.3})

# %% [markdown]
# There is one more obstacle: bytes can't be all-reduced. On two ranks, what is 100 + 100?


# %%
def add_bytes():
    hundred = torch.tensor([100], dtype=torch.int8)
    dist.all_reduce(hundred)
    return hundred.item()


lab.launch(add_bytes, ranks=2)[0]

# %% [markdown]
# The sum does not fit into eight bits. So the bytes are gathered, those of each rank with its own scale, and added up as floats. With 7 levels the numbers would fit into four bits (here they still travel as bytes; packed two by two, it would be half).


# %%
def quantised(state, bucket):
    gradient, size = bucket.buffer(), dist.get_world_size()
    scale = gradient.abs().max() / state["levels"]
    if state["stochastic"]:
        numbers = torch.floor(gradient / scale + torch.rand_like(gradient))
    else:
        numbers = torch.round(gradient / scale)
    scales = gradient.new_empty(size)
    everyone = gradient.new_empty(size * len(numbers), dtype=torch.int8)
    dist.all_gather_single(scales, scale.view(1))
    dist.all_gather_single(everyone, numbers.to(torch.int8))
    answer = torch.futures.Future()
    answer.set_result((everyone.view(size, -1) * scales[:, None]).mean(0))
    return answer


# %%
for name, levels, stochastic in (
    ("8 bits", 127, True),
    ("4 bits, nearest", 7, False),
    ("4 bits, stochastic", 7, True),
):
    state = {"levels": levels, "stochastic": stochastic}
    results[name] = compressed_run.launch(quantised, state)[0]
report("8 bits", "4 bits, nearest", "4 bits, stochastic")

# %% [markdown]
# At four bits, rounding to the nearest loses most of the gradient, and stochastic rounding does not.
#
# Gathering has its price here too: the more ranks, the more is passed on. Against a ring all-reduce of floats, gathered bytes cost N/8 of it, so with eight ranks nothing is saved. 1-bit Adam avoids that in two steps: an [all-to-all](GLOSSARY.md#all-to-all) of bytes, add up, quantise again, an all-gather of bytes. That is a quarter for any number of ranks.

# %% [markdown]
# ### All of them
#
# The loss by what a rank has sent until then: further left is cheaper, lower is better. Which one would you take?

# %%
shown = ("all-reduce", "8 bits", "PowerSGD", "top-1 %", "top-1 %, feedback")
lab.curves(
    measured={name: results[name]["loss"] for name in shown},
    x="MB sent by a rank",
    y="loss of held-out text",
    log_x=True,
    title="Loss and bytes sent",
)

# %%
report(*results)

# %% [markdown] sections="10.4.3"
# These are single runs, and other seeds move them a little. But there is a pattern: what drops small values in every step and never makes up for it stays behind. fp16 and stochastic rounding lose bits as well, with little or no bias.
#
# ### When compression does not pay
#
# Compressing takes time too. It pays as long as the link needs longer for the saved bytes than the processor for compressing. Here it is timed with 4 million values, on two cores or whatever you have:

# %%
from torch.utils import benchmark

gradient = torch.randn(4_000_000)
works = {
    "fp16": ("g.half().float()", 0.5),
    "8 bits": ("(g / 0.04).round().to(torch.int8)", 0.75),
    "top-1 %": ("g.index_fill(0, g.abs().topk(40_000).indices, 0)", 0.98),
}
pays = {}
for name, (code, less) in works.items():
    took = benchmark.Timer(code, globals={"g": gradient, "torch": torch}).timeit(3)
    pays[name] = less * gradient.nbytes / took.median / 1e9
lab.bars(pays, title="Pays on links slower than, GB/s", marks={"10 Gbit/s": 1.25})

# %% [markdown]
# NVLink carries hundreds of GB/s, so nothing here would pay on it from this processor. A GPU compresses faster, but its links are faster as well: measure both. And what overlap hides already can't be saved a second time.

# %% [markdown] sections="19.1.3, 10.4.3"
# ## Better links
#
# Two machines of four cards each: fast links inside, and **one** cable between them, which all messages from one machine to the other share. A ring may go through the ranks in any order.

# %%
inside = collectives.Link(alpha_us=100, bandwidth_gb_per_s=0.05)
between = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.01)
machines = collectives.islands(8, 4, inside=inside, between=between, shared=True)
machines

# %% [markdown]
# Which ring is faster, 0 1 2 3 4 5 6 7 or 0 4 1 5 2 6 3 7? And how many times as long does the worse one take?

# %%
longer = lab.guess("the worse ring over the better one", unit="ratio")

# %%
odd = (0, 4, 1, 5, 2, 6, 3, 7)
plans = {
    "0 1 2 3 4 5 6 7": collectives.plan("all_reduce", "ring", 8),
    "0 4 1 5 2 6 3 7": collectives.plan("all_reduce", "ring", 8, order=odd),
    "in two levels": collectives.plan("all_reduce", "hierarchical", 8, island_size=4),
}
took = {}
for name, plan in plans.items():
    run = collectives.launch(plan, 800_000, network=machines)
    predicted_us = collectives.time_us(plan, machines, 800_000)
    seconds = max(max(rank["seconds"]) for rank in run)
    took[name] = {"predicted": predicted_us / 1e3, "measured": 1e3 * seconds}
longer.score(took["0 4 1 5 2 6 3 7"]["measured"] / took["0 1 2 3 4 5 6 7"]["measured"])

# %%
lab.bars(
    took,
    unit="ms",
    title="All-reduce of 0.8 MB over two machines",
    badge="predicted / measured, paced links",
)

# %% [markdown]
# In the first ring two of the eight links cross the cable, one in each direction. In the second all eight do, and the cable carries them one after another: the same [payload](GLOSSARY.md#payload) per rank, four times the traffic on the cable. The third plan is **hierarchical**: reduce-scatter inside each machine, all-reduce across, all-gather inside, and it takes even less over the cable. NCCL, as documented, searches for such orders by itself when it starts.
#
# And if every pair had a cable of its own? Predicted:

# %%
cables = collectives.islands(8, 4, inside=inside, between=between)
alone = {name: collectives.time_us(plan, cables, 8e5) for name, plan in plans.items()}
lab.bars(
    alone, unit="us", title="The same with a cable for each pair", badge="predicted"
)

# %% [markdown]
# Then the order doesn't matter, as long as there is a slow link in the ring at all, because in each step all ranks wait for the slowest.

# %% [markdown] sections="10.4.3"
# ### Take turns
#
# Two jobs may also share a link. Each computes for 30 ms and then sends for 20 ms, if it has the link to itself. Started together, both always send at the same time, at half the speed (simulated; a row stands for a job):

# %%
jobs.shared_link([0, 0])

# %% [markdown]
# What if the second one starts 25 ms later?

# %%
jobs.shared_link([0, 25])

# %% [markdown] sections="19.1.3"
# They never meet, and both run at full speed. That is why schedulers of large clusters keep messages of different groups apart.
#
# ### Whom do the others wait for?
#
# An all-reduce ends when the slowest rank has brought its part. In this run one rank takes half as long again for every layer. Look at the strips of the messages: can you tell which?

# %%
slowed = step.but(overlap=True, slow={1: 1.5}).run()
lab.show(slowed.timeline(), title="One of three ranks is slow")

# %%
waits = lab.guess("the slow rank", choices=["rank 0", "rank 1", "rank 2"])

# %%
rank, waited_us = timeline.straggler(slowed.timeline())
waits.score(f"rank {rank}")

# %% [markdown] sections="8.9.2"
# The all-reduces of the others begin early and last long, because they wait in them. Such a rank is called a [straggler](GLOSSARY.md#straggler).
#
# ## NCCL's settings
#
# On GPUs, [NCCL](GLOSSARY.md#nccl) carries the messages. It reads environment variables when its first communicator is made; set later, they do nothing. These come up most (after NVIDIA's documentation):
#
# | variable | what it does | unset |
# | --- | --- | --- |
# | `NCCL_DEBUG` | WARN, INFO, ...: what NCCL says about itself | silent |
# | `NCCL_DEBUG_SUBSYS` | which parts speak under INFO | INIT, BOOTSTRAP, ENV |
# | `NCCL_SOCKET_IFNAME` | prefixes of the network interfaces to use | chosen; lo and docker only if there is no other |
# | `NCCL_IB_DISABLE` | 1 forbids InfiniBand and RoCE | allowed |
# | `NCCL_P2P_LEVEL` | how far apart two GPUs may be for direct messages | chosen |
# | `NCCL_ALGO` | which algorithms: Ring, Tree, NVLS, ... | chosen by size and topology |
# | `NCCL_PROTO` | which protocols: LL, LL128, Simple | chosen; LL128 forced where unsupported can corrupt data |
# | `NCCL_NVLS_ENABLE` | reduction inside the NVLink switch | 2: where supported |
#
# NVIDIA lists all but the interface and the debug ones under debugging: fine for an experiment, not to be left in a script.
#
# <details><summary>Erratum 8.9.2: four settings that "optimise" NCCL</summary>
#
# `NCCL_IB_DISABLE=0` changes nothing, since InfiniBand is used where there is one. `NCCL_SOCKET_IFNAME=eth0` guesses the interface, and it is a prefix, so it also selects eth01; `=eth0` is the name. `NCCL_P2P_LEVEL=NVL` is nearly the strictest level: pairs with NVLink have direct messages anyway, and all other pairs lose theirs. `NCCL_DEBUG=INFO` is right for looking and too much for every day. All of this is NVIDIA's documentation, not a run; your interfaces are `[name for _, name in socket.if_nameindex()]`.
#
# </details>
#
# To see what NCCL really does, let it speak, and look for the network ("Using network"), the variables that it has read ("set by environment") and its rings and trees. The next cell does that where there is a GPU:


# %%
def speak():
    import os

    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV,GRAPH,TUNING"
    os.environ["NCCL_DEBUG_FILE"] = "/dev/stdout"
    dist.all_reduce(torch.ones(1 << 20))  # the first collective makes the communicator
    torch.accelerator.synchronize()


if torch.cuda.is_available():
    print(lab.launch(speak, ranks=1, devices="cuda").logs[0][:2000])
else:
    print("No GPU here: NCCL was not run, and there is nothing to show.")

# %% [markdown] sections="19.8.2"
# ## When is it worth it?
#
# Back to our eight machines. A step had 64 sequences and spent 71 of its 74 seconds on messages. With accumulation it has 4,096, and sends as much as before. How many times as many tokens do we train in a second?

# %%
more = lab.guess("tokens per second, 4,096 over 64 sequences", between=(1, 64))

# %%
small = planner.Plan(
    model="LLaMA 7B", gpus=8, per_node=1, nic_gb_per_s=1.25, zero=1, batch=64
)
large = small.but(batch=4096)
more.score(64 * small.time().step_us / large.time().step_us)

# %%
planner.card(small, large)

# %% [markdown]
# But a batch of 4,096 sequences learns less from each of them. Would a better network do? This is the old batch on 200 Gbit/s:

# %%
planner.card(small, small.but(nic_gb_per_s=25))

# %% [markdown]
# Both are predicted. In practice you do it in this order: overlap first, because it costs nothing; then accumulate as far as the training allows; then look at the order of your rings and who shares your cables; and compress only if the link is still the slowest part.

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown and gives the first case that goes wrong; *over budget* means right, but wasteful. `check.hint(name)` tells more after each attempt.
#
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

    rings = ((0, *rest) for rest in permutations(range(1, len(bandwidths))))
    return list(max(rings, key=quality))
    ### END SOLUTION


# %%
check.ring_order(my_ring)

# %%
check.hint("ring_order")

# %% [markdown] sections="10.7.3"
# ### 4. An experiment
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
# - Overlap hides all buckets but the last, if the link keeps up with the backward.
# - Accumulation divides messages and bytes per sample by k. It is a larger batch, with fewer updates.
# - Bytes are saved only when fewer are sent: a dense tensor full of zeros saves nothing. Gathered messages grow with the number of ranks.
# - Error feedback makes a biased compression converge; stochastic rounding has no bias to begin with.
# - On uneven links the order decides: cross the slow one as rarely as you can. Everybody waits for the slowest rank.
# - Compression pays on slow links. Measure first.
#
# **Words:** [exposed communication](GLOSSARY.md#exposed-communication), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [communication hook](GLOSSARY.md#communication-hook), [payload](GLOSSARY.md#payload), [wire](GLOSSARY.md#wire), [straggler](GLOSSARY.md#straggler), [paced links](GLOSSARY.md#paced-links).
#
# **Further reading**
#
# - DDP, buckets and hooks: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704); [DDP communication hooks](https://pytorch.org/docs/stable/ddp_comm_hooks.html)
# - Error feedback: Stich et al. 2018, [arXiv 1809.07599](https://arxiv.org/abs/1809.07599); Karimireddy et al. 2019, [arXiv 1901.09847](https://arxiv.org/abs/1901.09847). Top-k in practice: Lin et al. 2017, [arXiv 1712.01887](https://arxiv.org/abs/1712.01887)
# - Stochastic rounding of gradients (QSGD): Alistarh et al. 2016, [arXiv 1610.02132](https://arxiv.org/abs/1610.02132). Reduction in two steps of compressed messages: 1-bit Adam, Tang et al. 2021, [arXiv 2102.02888](https://arxiv.org/abs/2102.02888)
# - PowerSGD: Vogels et al. 2019, [arXiv 1905.13727](https://arxiv.org/abs/1905.13727). When compression pays: Agarwal et al. 2021, [arXiv 2103.00543](https://arxiv.org/abs/2103.00543)
# - Jobs that take turns on a link: CASSINI, Rajasekaran et al. 2023, [arXiv 2308.00852](https://arxiv.org/abs/2308.00852)
# - NVIDIA, NCCL user guide: [environment variables](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), [logging](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html)
#
# **Next:** [checkpoint and recover](13_checkpoint_and_recover.ipynb), for when one of these cards dies.
#
# *Sections 8.9.2, 10.4.3, 10.7.3, 19.1.3, 19.2.2 (compression), 19.8.2 and S10 of the source material.*

# %%
check.status()
