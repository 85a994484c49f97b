# ---
# jupyter:
#   labkit:
#     sections: ["8.9.2", "10.4.3", "10.7.3", "19.1.3", "19.2.2b", "19.8.2", "S10"]
#     needs: ["chapters 02 and 03"]
#     minutes: 90
# ---

# %% [markdown]
# # Communication: hide it, and send less
#
# *About an hour and a half. You need chapters 02 and 03. No GPU is needed.*
#
# Our 7 B model trains on eight cards in eight machines, with an Ethernet of 10 Gbit/s between them. A step computes for three seconds. Then the cards exchange 27 GB of gradients and 13.5 GB of parameters, and that takes 71 seconds by the count of our planner (28, if the cable were always full). We bought eight cards, and what we have is a very expensive network test.
#
# There are four ways out: hide the messages under the computing, send them less often, send fewer bytes, or use better links. What does each leave of the 71 seconds? First a toy, small enough to see: four layers on three ranks.

# %%
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import labkit as lab
from labkit import collectives, data_parallel, planner
from labkit.communication import check, compressed_run

lab.begin("en")
link = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.08)
step = data_parallel.Step(
    layers=4, layer_mb=1, bucket_mb=0.9, ranks=3, num_steps=2, link=link, overlap=False
)
step.board()

# %% [markdown]
# Each row is a rank: forward, backward, and in the thin strip below its messages. In the notebook, switch overlap on. Where do the messages go, and what is left of them at the end?
#
# **When you are done** you can say how much of the gradients' time the backward hides, compress gradients without spoiling the training, and tell when neither is worth the trouble.

# %% [markdown] sections="19.8.2"
# ## The bill
#
# First, what are the 71 seconds made of? The planner of chapter 18 knows our model. Under ZeRO 1 ([stage](GLOSSARY.md#zero-stage) 1, chapter 06) a rank [reduce-scatters](GLOSSARY.md#reduce-scatter) the gradients in fp32, and all-gathers the parameters in bf16. (Chapter 06 kept gradients in 2 bytes. Here they are kept and added up in fp32, 4 bytes.)

# %%
small = planner.Plan(
    model="LLaMA 7B", gpus=8, per_node=1, nic_gb_per_s=1.25, zero=1, batch=64
)
gradients_s, parameters_s = (us / 1e6 for us in small.time().data.values())
messages_s = gradients_s + parameters_s
computing_s = small.time().step_us / 1e6 - messages_s
step_s = {
    "computing": computing_s,
    "gradients": gradients_s,
    "parameters": parameters_s,
}
lab.bars(step_s, unit="s", title="A step of 64 sequences", badge="predicted")

# %% [markdown]
# This is our bill, 74 seconds in all. (The planner counts on two fifths of the 1.25 GB/s, a figure fitted to another cluster's runs.)

# %% [markdown] sections="8.9.2, 10.4.3, 19.1.3"
# ## Hide the messages
#
# DDP sends its gradients in [buckets](GLOSSARY.md#bucket), from the last layer down, each as soon as it is complete (chapter 03). How much time does that hide? Our `step` trains by real DDP:
#
# ```python
# ddp = DDP(net, bucket_cap_mb=0.9)
# ddp(inputs).sum().backward()  # the buckets leave in here
# ```
#
# Layers and links are [paced](GLOSSARY.md#paced): each layer has 10 ms of forward, 20 ms of backward and 1 MB of gradients, in a bucket of its own. Messages are sent, and then wait until a link of 80 MB/s would have carried them.
#
# Without overlap, as on the board above, four layers compute for 120 ms, then send for 78, and the step takes 198 ms. Now take six layers, with overlap. What lies under computing of the same rank is called [hidden](GLOSSARY.md#overlap-to-hide-communication), the rest is [exposed](GLOSSARY.md#exposed-communication), and you pay for the exposed part only. How many milliseconds should such a step take, if all keep to their times?

# %%
with_overlap = lab.guess("a step of six layers with overlap", unit="ms")

# %%
hidden = step.but(layers=6, overlap=True).compare()
with_overlap.score(hidden.readings["predicted"] / 1000)

# %%
hidden

# %% [markdown]
# Predicted above, measured below. The strips are buckets 0 to 5 from left to right; bucket 0 holds the gradients of layer 5. By the prediction six layers with overlap take hardly longer than four without: they compute for 180 ms, and only the last bucket's 19.5 ms stick out. Measured, it is more, because three processes share a few cores (*overran*: too busy to keep to the stated times). A message that begins before the last one has ended is drawn one line lower.

# %% [markdown] sections="19.1.3"
# ### A link that can't keep up
#
# Our link was a little faster than the backward. What if it carried only 30 MB/s? Then the buckets queue up behind one another.

# %%
narrow = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.03)
step.but(overlap=True, link=narrow).predict()

# %% [markdown] sections="19.1.3"
# Overlap can hide no more than there is backward left to hide under: here 60 ms, however slow the link. By the prediction that is most of the 78 ms of messages at 80 MB/s (58 ms), and less than a third of 194 ms at 30 MB/s.
#
# And on our bill? Let everything hide under the 3 seconds of computing, gradients under the backward and parameters under the next forward, and 71 seconds remain. Overlap costs next to nothing (on a GPU its messages take a few processors away from the backward), but here there is too little to hide under.

# %% [markdown] sections="19.1.3"
# ### Whom do the others wait for?
#
# An all-reduce cannot end before the slowest rank has brought its part. In this run one rank, drawn by lot, needs 1.5 times as long for every layer. You see only the messages. Which rank is it? (Here *busy* counts only messages, and *sent* is what a rank gives to its all-reduces.)

# %%
slow_rank = torch.randint(3, ()).item()
slowed = step.but(overlap=True, slow={slow_rank: 1.5}).run().timeline()
slowed.select(slowed.lane == "comm")

# %%
waits = lab.guess("the slow rank", choices=["rank 0", "rank 1", "rank 2"])

# %%
waits.score(f"rank {slow_rank}")

# %% [markdown] sections="19.1.3"
# The all-reduces of the others begin early and mostly last longer, because they wait in them. The slow one comes late, and finds everybody there. Such a rank is called a [straggler](GLOSSARY.md#straggler).
#
# (A box called *erratum* corrects a text on which this course was first based. You lose nothing if you skip it.)
#
# <details><summary>Erratum 19.1.3: hooks hide communication "almost entirely"</summary>
#
# At best they hide all buckets but one, and only where the link keeps up with the backward. Run it: after `from labkit import timeline`, `timeline.hidden_comm(hidden.predicted)` for our link, and `timeline.hidden_comm(step.but(overlap=True, link=narrow).predict())` for the narrow one.
#
# </details>
#
# <details><summary>Erratum 19.1.3: a chart of overlap in which nothing overlaps</summary>
#
# The textbook draws one row: compute layer N, all-reduce the gradient of N-1, compute layer N+1. The boxes follow one another, so nothing is hidden, and the order is not that of a backward: while layer N-1 computes, the gradient of layer N is on its way. `hidden.predicted` draws it as it happens.
#
# </details>

# %% [markdown] sections="8.9.2, 10.4.3"
# ## Send them less often
#
# In chapter 03 several microbatches shared one all-reduce, by `no_sync()` ([gradient accumulation](GLOSSARY.md#gradient-accumulation)). Inside it DDP does not communicate, but then somebody must. Here are three ways that people have tried, on two ranks with four microbatches each:


# %%
def accumulate(way):
    torch.manual_seed(0)
    net = nn.Linear(100, 10, bias=False)
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
    if way == "reduced each time":
        net.weight.grad /= 2  # once, at the end
    return (net.weight.grad - right).abs().max().item() / right.abs().max().item()


# %%
ways = ["never reduced", "reduced each time", "reduced and divided each time"]
off = lab.launch(lambda: {way: accumulate(way) for way in ways}, ranks=2)[0]
lab.bars(off, unit="share", title="Largest error, over the largest right gradient")

# %% [markdown]
# - **Never reduced.** Every rank keeps its own gradients and trains a model of its own.
# - **Reduced each time.** What has been summed once is summed again in the next round.
# - **Reduced and divided each time.** This is right, because the mean of what is already equal doesn't change it. But it sends four times as much as necessary.
# %% [markdown] sections="8.9.2, 19.8.2"
# ### Exercise 1. Accumulate right
#
# So how do you get the right gradients with **one** all-reduce? `ddp` is a `DistributedDataParallel`, `microbatches` a list of pairs (inputs, targets). They may differ in size, but a list has as many samples in all on every rank. Leave in `ddp` the gradients of the mean squared error of the **whole** batch, over all microbatches and ranks, and let them be all-reduced once.
#
# (*Over budget* in a verdict means right, but wasteful. `check.hint(name)` helps, here and in the later exercises.)


# %%
def my_accumulation(ddp, microbatches):
    """The gradients of the whole batch stay in ddp's parameters."""
    ### BEGIN SOLUTION
    from torch.nn.functional import mse_loss

    total = sum(len(x) for x, _ in microbatches)
    with ddp.no_sync():
        for x, y in microbatches[:-1]:
            (mse_loss(ddp(x), y) * len(x) / total).backward()
    x, y = microbatches[-1]
    (mse_loss(ddp(x), y) * len(x) / total).backward()
    ### END SOLUTION


# %%
check.accumulate(my_accumulation)

# %%
check.hint("accumulate")

# %% [markdown] sections="19.1.3, 10.4.3, 19.8.2"
# ### What it saves
#
# With m microbatches a rank communicates once instead of m times. Take two layers on the narrow link, on two ranks with overlap: by the prediction they compute for 60 ms, and 52 ms of messages stick out (`step.but(layers=2, ranks=2, link=narrow, overlap=True).predict()` draws it). In a step of m microbatches each pays 52/m of them: 112 ms alone, 73 with m = 4, 66.5 with 8. So most is won from 1 to 4.
#
# ### What it costs
#
# m microbatches are one large batch: fewer updates. `compressed_run.launch` trains a small transformer (30,000 parameters, SGD with rate 0.3) on two ranks, on the same 64 microbatches each time. What happens to the loss if m grows, and what if the learning rate grows with it?


# %%
def ends_at(m, rate):
    """The loss of held-out text after 64 microbatches on each of two ranks."""
    run = compressed_run.launch(num_steps=64 // m, accumulate=m, learning_rate=rate)
    return run[0]["last_loss"]


# %%
plain = compressed_run.launch()  # 64 steps of one microbatch, rate 0.3
losses = {
    "m = 1": plain[0]["last_loss"],
    "m = 4": ends_at(4, 0.3),
    "m = 4, 4 times the rate": ends_at(4, 4 * 0.3),
}
lab.bars(losses, title="Loss after 64 microbatches")

# %% [markdown]
# With one learning rate, fewer updates get less far. A larger rate makes up for more than half of it. Does that go on, with m = 8 and 8 times the rate?

# %%
print("loss:", round(ends_at(8, 8 * 0.3), 1))

# %% [markdown] sections="8.9.2, 10.4.3"
# Training has diverged (one run, without warm-up; chapter 12 does it with care): a model that knows nothing has ln 256 = 5.5. Whoever wants to send less often and still update often uses [Local SGD](GLOSSARY.md#local-sgd) (chapter 03).
#
# <details><summary>Erratum 8.9.2: an all-reduce in every microbatch</summary>
#
# The textbook puts `no_sync()` around all microbatches and all-reduces every gradient inside, which is the second bar: `off["reduced each time"]`. (Its code in 10.4.3 forgets to divide by the number of ranks as well.) The all-reduce is asynchronous too, so it would still be on its way while the next backward adds to the same tensor.
#
# </details>

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Send fewer bytes
#
# Two thirds of our 71 seconds are gradients. Of each way to make them smaller we ask: do fewer bytes really leave, and does training bear it?
#
# DDP lets a [communication hook](GLOSSARY.md#communication-hook) take the place of its all-reduce: `ddp.register_comm_hook(state, hook)`. The hook gets a bucket of gradients and returns a Future, a promise of their mean over all ranks. The simplest one halves the bytes (the library has it as `bf16_compress_hook`):


# %%
def bf16(state, bucket):
    half = bucket.buffer().bfloat16() / dist.get_world_size()
    work = dist.all_reduce(half, async_op=True)
    # when the sum is there, make it float32; DDP waits at the end of backward()
    return work.get_future().then(lambda done: done.value()[0].float())


# %% [markdown]
# `compressed_run.launch` takes such a hook, and it counts. "Handed in" is what a step gives to collectives (the [payload](GLOSSARY.md#payload)). "On the wire" is what the system counted on the sockets, headers included.

# %%
runs = {"all-reduce": plain, "bf16": compressed_run.launch(bf16)}
compressed_run.report(runs)

# %% [markdown]
# Half the bytes, and the same loss. (With other seeds the plain run ended between 3.29 and 3.37 on the machine this was written on, so smaller differences mean nothing.)

# %% [markdown] sections="19.2.2b, 10.4.3"
# ### Few bits, and how to round
#
# Quantisation maps values to the whole numbers from -127 to 127, a byte each. How would you round? To the **nearest**, everything below half a step becomes 0, every time. **Stochastic** rounding goes up with a probability equal to the remainder: 0.3 becomes 1 in three of ten cases.
#
# There is one obstacle: an all-reduce adds in the type that it sends, and 100 + 100 does not fit into a signed byte (127 at most). So the bytes are gathered, those of each rank with its own scale, and added up as floats. We go to the extreme: three levels, -1, 0 and 1. They would fit into two bits; our code sends a byte for each, so the table will show a quarter of the bytes, not a sixteenth.


# %%
def quantised(state, bucket):
    gradient, size, most = bucket.buffer(), dist.get_world_size(), state["levels"]
    scale = gradient.abs().max().clamp(min=1e-30) / most
    if state["stochastic"]:
        numbers = torch.floor(gradient / scale + torch.rand_like(gradient))
    else:
        numbers = torch.round(gradient / scale)
    scales = gradient.new_empty(size)
    everyone = gradient.new_empty(size * len(numbers), dtype=torch.int8)
    # all_gather_single is called all_gather_into_tensor before torch 2.13
    dist.all_gather_single(scales, scale.view(1))
    dist.all_gather_single(everyone, numbers.clamp(-most, most).to(torch.int8))
    answer = torch.futures.Future()
    answer.set_result((everyone.view(size, -1) * scales[:, None]).mean(0))
    return answer


# %%
nearest = {"levels": 1, "stochastic": False}
stochastic = {"levels": 1, "stochastic": True}
runs["3 levels, nearest"] = compressed_run.launch(quantised, nearest)
runs["3 levels, stochastic"] = compressed_run.launch(quantised, stochastic)
compressed_run.report(runs)

# %% [markdown]
# Rounding to the nearest turns nearly all entries into zeros, so training stays far behind. Stochastic rounding makes zeros of most of them, too, but by lot: on average nothing is lost.
#
# But a gather passes everybody's part on to everybody: with N ranks, gathered bytes cost N/8 of a ring all-reduce of floats, so with eight nothing is saved. The cure is what a ring does, too, in two steps. First an [all-to-all](GLOSSARY.md#all-to-all): each rank gets one slice from everybody, adds it up, and quantises the sum. Then an all-gather of these sums. A rank of many sends about 2 bytes for each value, and not 8: a quarter, with any number of ranks.

# %% [markdown] sections="19.2.2b, 10.4.3, S10"
# ### Top-k
#
# Most entries of a gradient are small. Why not send only the largest 1 %? To write zeros over the rest saves nothing: zeros are numbers, and are sent.
#
# Only the chosen values go out, and their places with them, because each rank chooses others. They are gathered, and each rank adds up what it got. What share of the bytes that a rank hands in is saved?

# %%
saved = lab.guess("bytes that top-1 % saves", between=(0, 1))


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


# %%
runs["top-1 %"] = compressed_run.launch(top_k)
handed_in = plain[0]["handed_in_bytes"]
share = runs["top-1 %"][0]["handed_in_bytes"] / handed_in
saved.score(1 - share)

# %% [markdown]
# A place costs four bytes, like a value, so 2 % is handed in. And on the wire, with two ranks and with four?

# %%
plain_four = compressed_run.launch(ranks=4, num_steps=8)
four = compressed_run.launch(top_k, ranks=4, num_steps=8)
on_the_wire = {
    "all-reduce, 2 ranks": plain[0]["on_the_wire_bytes"],
    "top-1 %, 2 ranks": runs["top-1 %"][0]["on_the_wire_bytes"],
    "all-reduce, 4 ranks": plain_four[0]["on_the_wire_bytes"],
    "top-1 %, 4 ranks": four[0]["on_the_wire_bytes"],
}
lab.bars(on_the_wire, unit="bytes", title="What a rank sends in a step")

# %% [markdown] sections="19.2.2b, 10.4.3, S10"
# A rank sends its k values and places to each of the N - 1 others, 8k bytes each time. A ring all-reduce of n values sends $2(N-1)/N$ times 4n, which never exceeds twice 4n. The ratio is $Nk/n$: 2 % with two ranks, 4 % with four, half with fifty. (The bars have somewhat more, because headers come on top.)
#
# <details><summary>Erratum 10.4.3: a sparse gradient in a dense all-reduce</summary>
#
# The textbook's hook writes zeros over the small entries and all-reduces the whole tensor: as many bytes as before. It also forgets to divide by the number of ranks, which would double the learning rate on two. Run it: `torch.zeros(1000).nbytes` is what 1,000 other numbers take.
#
# </details>
#
# <details><summary>Erratum S10: decompress by dividing by the mask</summary>
#
# The textbook returns the gradient times a mask, still as many bytes, and then divides by the mask. Where the mask is 0 that is 0 / 0. Run it: `torch.tensor([3.0, 0.0]) / torch.tensor([1.0, 0.0])` gives 3 and NaN.
#
# </details>
#
# <details><summary>Erratum 19.2.2: the top 1 % saves "more than 99 %"</summary>
#
# It saves 98 % of what a rank hands in, because places travel too: `1 - share`. Of what it sends, it saves 92 % with eight ranks, and with a hundred ranks nothing.
#
# </details>

# %% [markdown] sections="19.2.2b"
# ### Exercise 2. Lose nothing
#
# A small gradient is never among the largest, so top-k never sends it, however long it points the same way. The cure is **error feedback**: keep what was not sent, and add it to the next gradient.
#
# Build it. Every rank calls this function in every step with its own gradient. Return the mean that all ranks use, and the memory to be handed to your next call (zeros in the first). A rank may hand in 8 bytes for each of k values per call, no more.


# %%
def my_reduce(gradient, memory, k):
    """(mean of what the ranks send, the new memory)"""
    ### BEGIN SOLUTION
    corrected, size = gradient + memory, dist.get_world_size()
    chosen = corrected.abs().topk(k).indices
    values = gradient.new_empty(size * k)
    places = gradient.new_empty(size * k, dtype=torch.int32)
    dist.all_gather_single(values, corrected[chosen])
    dist.all_gather_single(places, chosen.int())
    mean = torch.zeros_like(gradient).index_add_(0, places.long(), values / size)
    return mean, corrected.index_fill(0, chosen, 0)
    ### END SOLUTION


# %%
check.error_feedback(my_reduce)

# %% [markdown] sections="19.2.2b"
# ### Loss and bytes
#
# `with_feedback` makes a hook of your function. (Until you have written it, the package's own runs in its place.) Here is the loss by what a rank has handed in until then: further left is cheaper, lower is better. Which one would you take?

# %%
feedback = compressed_run.with_feedback(my_reduce)
runs["top-1 %, feedback"] = compressed_run.launch(feedback)
shown = ("all-reduce", "3 levels, stochastic", "top-1 %", "top-1 %, feedback")
lab.curves(
    measured={name: runs[name][0]["loss"] for name in shown},
    x="MB handed in by a rank",
    y="loss of held-out text",
    log_x=True,
    joined=True,
    title="Loss and bytes",
)

# %% [markdown]
# At two ranks we would take top-1 % with feedback: a fiftieth of the bytes handed in, for a loss that ends close to that of the plain all-reduce. (Three levels in two bits would still lie right of it.) What drops small values for good stays behind; what makes up for it later, or drops them by lot, does not.
#
# <details><summary>PowerSGD: two thin factors instead of a matrix</summary>
#
# A weight's gradient with a rows and b columns is often close to a product of two matrices with r columns each: $r(a+b)$ numbers instead of $ab$. PowerSGD finds such factors by one step of power iteration, and feeds back what they miss. It comes with torch:
#
# ```python
# from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as library
#
# def power_sgd(state, bucket):
#     if "power" not in state:
#         state["power"] = library.PowerSGDState(
#             None, matrix_approximation_rank=1, start_powerSGD_iter=2
#         )
#     return library.powerSGD_hook(state["power"], bucket)
#
# runs["PowerSGD"] = compressed_run.launch(power_sgd)
# compressed_run.report(runs)
# ```
#
# On the machine this was written on it hands in 5.4 % of the bytes and ends at a loss of 3.37. But `runs["PowerSGD"][0]["hook_ms"]` is several times that of the all-reduce: three small all-reduces, one after another, and in between matrices to multiply and to make orthogonal. Bytes are not time.
#
# </details>

# %% [markdown] sections="10.4.3"
# ### And is it faster?
#
# It pays as long as the link needs longer for the saved bytes than the processor for compressing. On our network it should: an A100 reads and writes 2,000 GB/s, and the network sends 1.25, so a rounding takes next to no time; to find the largest 1 % takes more. Inside a machine, where links carry hundreds of GB/s, the same rounding may cost more than it saves. We measured bytes here, not times: measure where you train. And a message that was hidden anyway saves no time if it gets smaller.
#
# Now the bill. Compression shrinks the gradients alone. ZeRO 1 only reduce-scatters them, so an all-to-all straight to the rank that adds them up will do, and 8 bits are a quarter. What is left of the 74 seconds?

# %%
eight_bits = lab.guess("a step with gradients in 8 bits", unit="s")

# %%
eight_bits.score(computing_s + gradients_s / 4 + parameters_s)

# %% [markdown]
# More than half of it, because the 24 seconds of parameters stay. (ZeRO++, a form of ZeRO 3, gathers them in 8 bits, and sends gradients in 4. With 8 for both, 3.2 + 47 / 4 + 24 / 2, 27 seconds, would be left here.)

# %% [markdown] sections="19.1.3, 10.4.3"
# ## Use the links well
#
# The fourth way, better links, costs money. First: are those that we have used well? Take two machines (*islands* in the picture) of three cards each: fast links inside, and **one** cable between them, which all messages share. A ring may go through the ranks in any order. Above it goes 0 1 2 3 4 5, below to and fro:

# %%
inside = collectives.Link(alpha_us=100, bandwidth_gb_per_s=0.01)
between = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.002)
machines = collectives.islands(6, 3, inside=inside, between=between, shared=True)
straight = collectives.Call(ranks=6, num_bytes=600_000, network=machines)
zigzag = straight.but(order=(0, 3, 1, 4, 2, 5))
lab.show([straight.way(), zigzag.way()])

# %% [markdown]
# Both rings send the same bytes per rank. How many times as long does the second one take?

# %%
longer = lab.guess("the second ring over the first one", unit="ratio")

# %%
longer.score(zigzag.predict().span_us / straight.predict().span_us)

# %% [markdown]
# Count the lines along the cable. In the first ring two of the six links cross it, one in each direction. In the second all six do: three times the traffic. Can it be less? A **hierarchical** all-reduce goes in two levels: reduce-scatter inside each machine, all-reduce across with what is left, all-gather inside. All three on real ranks:

# %%
levels = straight.but(algorithm="hierarchical", island_size=3)
calls = {"0 1 2 3 4 5": straight, "0 3 1 4 2 5": zigzag, "in two levels": levels}
took = {name: call.compare().readings for name, call in calls.items()}
title = "All-reduce of 0.6 MB over two machines"
lab.bars(took, unit="us", title=title, badge="predicted / measured, paced links")

# %% [markdown] sections="10.4.3"
# By the bytes, yes: in the ring 1 MB crosses the cable in each direction, in two levels 0.6 MB do, because each machine first adds up its own. The price is three collectives in the place of one, and small messages may not win it back.
#
# ### Who sees to the order?
#
# [NCCL](GLOSSARY.md#nccl), which carries the messages on GPUs, finds a good order by itself **inside** a machine. Machines it joins in the order in which their ranks are numbered. So two things stay your job: sort the ranks by rack, then by machine, so that the ring crosses each cable as seldom as possible; and let those ranks that talk most share a machine (chapter 18).
#
# <details><summary>Two jobs that share a cable: let them take turns</summary>
#
# Each of two jobs computes for 30 ms and then sends for 20 ms, if it has the link to itself. Started together, both always send at the same time, at half the speed. If the second one starts 25 ms later, they never meet, and both run at full speed. Simulated: `from labkit.communication import jobs`, then `jobs.shared_link([0, 0])` and `jobs.shared_link([0, 25])`; a row stands for a job. Schedulers in research shift jobs so (CASSINI, below).
#
# </details>

# %% [markdown] sections="8.9.2"
# ### NCCL's settings
#
# You will need one environment variable, set before `init_process_group`: `NCCL_DEBUG=INFO` makes NCCL say what it does.
#
# <details><summary>The variables that you will meet in scripts</summary>
#
# After NVIDIA's documentation. All but the interface and the debug ones stand there under debugging: fine for an experiment, not to be left in a script.
#
# | variable | what it does | unset |
# | --- | --- | --- |
# | `NCCL_DEBUG` | WARN, INFO, ...: what NCCL says about itself | silent |
# | `NCCL_DEBUG_SUBSYS` | which parts speak under INFO | INIT, BOOTSTRAP, ENV |
# | `NCCL_SOCKET_IFNAME` | prefixes of the network interfaces to use | chosen; lo and docker only if there is no other |
# | `NCCL_IB_DISABLE` | 1 forbids InfiniBand (and the same over Ethernet, RoCE) | allowed |
# | `NCCL_P2P_LEVEL` | how far apart two GPUs may be for direct messages | chosen |
# | `NCCL_ALGO` | which algorithms: Ring, Tree, NVLS, ... | chosen by size and topology |
# | `NCCL_PROTO` | which protocols: LL, LL128, Simple | chosen; LL128 forced where unsupported can corrupt data |
# | `NCCL_NVLS_ENABLE` | reduction inside the NVLink switch (NVLS) | 2: where supported |
#
# To hear it, launch this on GPUs: `os.environ["NCCL_DEBUG"] = "INFO"`, `os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV,GRAPH,TUNING"`, `os.environ["NCCL_DEBUG_FILE"] = "/dev/stdout"`, then any collective. Its lines stand in the run's `logs`.
#
# </details>
#
# <details><summary>Erratum 8.9.2: four settings that "optimise" NCCL</summary>
#
# After NVIDIA's documentation, not a run: `NCCL_IB_DISABLE=0` changes nothing, and `NCCL_DEBUG=INFO` is right for looking and too much for every day. `NCCL_SOCKET_IFNAME=eth0` guesses the interface, and as a prefix it also selects eth01 (`NCCL_SOCKET_IFNAME==eth0`, with two equals signs, means exactly eth0; yours are `[name for _, name in socket.if_nameindex()]`). `NCCL_P2P_LEVEL=NVL` is nearly the strictest level: pairs with NVLink have direct messages anyway, and all other pairs lose theirs.
#
# </details>

# %% [markdown] sections="19.8.2"
# ## When is it worth it?
#
# Here is the whole bill: each way alone, a network of 200 Gbit/s, and two pairs of ways. (Every bar is the three numbers of the first bill, divided: no run is behind it, and the fast network is taken to be used as badly, two fifths, as the slow one. The top 1 % goes straight to the rank that adds it up, so it is 2 % of the gradients.)

# %%
bill = {
    "as it is": computing_s + messages_s,
    "overlap": max(computing_s, messages_s),
    "16 times the batch": computing_s + messages_s / 16,
    "bf16, 16 times the batch": computing_s + (gradients_s / 2 + parameters_s) / 16,
    "gradients in 8 bits": computing_s + gradients_s / 4 + parameters_s,
    "top-1 %": computing_s + 0.02 * gradients_s + parameters_s,
    "200 Gbit/s": computing_s + messages_s / 20,
    "200 Gbit/s, overlap": max(computing_s, messages_s / 20),
}
marks = {"computing alone": computing_s}
title = "Our step, for 64 sequences"
lab.bars(bill, unit="s", title=title, marks=marks, badge="predicted")

# %% [markdown] sections="10.7.3"
# A network twenty times as fast gives 11 times the tokens per second, and still spends half of the step on messages. With overlap on top, its messages are nearly free. (At best: gradients leave in the last microbatch only, so with several there is less to hide them under.)
#
# A batch 16 times as large (one exchange for 1,024 sequences) gives nearly as much for nothing, **if** the training bears it. Our toy did not bear 8 times, but LLaMA 7B was trained with twice as many tokens in a step (4 million). It was our 64 sequences that were few. With bf16 gradients as well it even beats that network, as long as that has no overlap. Compression alone stays far behind, even if parameters were sent in 8 bits, too.
#
# So there is an order: overlap first, because it costs next to nothing; accumulate as far as the training allows; then look at your cables; and compress if the link is still the slowest part.
#
# In practice gradients are often sent in bf16 already (DDP's `bf16_compress_hook`, FSDP's `reduce_dtype`; DDP's hooks do not work with FSDP).
#
# <details><summary>An exercise more, if you like: an experiment</summary>
#
# Which combination of compression and accumulation gives the most samples per second? Write `my_experiment(measure, settings)` in a cell of your own. `settings` is a list of dicts like `{"accumulate": 2, "compression": "fp16"}`; a step works through `accumulate` microbatches of 8 samples. `measure(setting)` runs one step and returns its microseconds. The first three steps of a setting are slow, times vary, and now and then a step is disturbed. (The clock is simulated.) Measure no setting more than 25 times, return the best, and try it by `check.experiment(my_experiment)`.
#
# </details>

# %% [markdown]
# ## Summary
#
# - Overlap hides all buckets but the last, if the link keeps up with the backward.
# - Accumulation divides the bytes per sample by m. It is a larger batch, with fewer updates.
# - Error feedback makes a biased compression converge; stochastic rounding has no bias to begin with.
# - On a shared cable the order decides. Compression pays on slow links: measure first.
#
# **Words:** [exposed communication](GLOSSARY.md#exposed-communication), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [communication hook](GLOSSARY.md#communication-hook), [payload](GLOSSARY.md#payload), [wire](GLOSSARY.md#wire), [straggler](GLOSSARY.md#straggler), [paced links](GLOSSARY.md#paced-links).
#
# **Further reading**
#
# - LLaMA, and its batch of 4 million tokens: Touvron et al. 2023, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
# - DDP, buckets and hooks: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704); [DDP communication hooks](https://pytorch.org/docs/stable/ddp_comm_hooks.html)
# - Error feedback: Stich et al. 2018, [arXiv 1809.07599](https://arxiv.org/abs/1809.07599).
# - Stochastic rounding of gradients (QSGD): Alistarh et al. 2016, [arXiv 1610.02132](https://arxiv.org/abs/1610.02132). In two steps: 1-bit Adam, Tang et al. 2021, [arXiv 2102.02888](https://arxiv.org/abs/2102.02888)
# - ZeRO++: Wang et al. 2023, [arXiv 2306.10209](https://arxiv.org/abs/2306.10209)
# - PowerSGD: Vogels et al. 2019, [arXiv 1905.13727](https://arxiv.org/abs/1905.13727). When compression pays: Agarwal et al. 2021, [arXiv 2103.00543](https://arxiv.org/abs/2103.00543)
# - Jobs that take turns on a link: CASSINI, Rajasekaran et al. 2023, [arXiv 2308.00852](https://arxiv.org/abs/2308.00852)
# - NVIDIA, NCCL user guide: [environment variables](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), [logging](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html)
#
# **Next:** [large batches](12_large_batches.ipynb), and how large a batch the training bears.
#
# *Sections 8.9.2, 10.4.3, 10.7.3, 19.1.3, 19.2.2 (compression), 19.8.2 and S10 of the source material.*

# %%
check.status()
