# ---
# jupyter:
#   labkit:
#     sections: ["8.9.2", "10.4.3", "10.7.3", "19.1.3", "19.2.2b", "19.8.2", "S10"]
#     needs: ["chapters 02, 03 and 06"]
#     minutes: 90
# ---

# %% [markdown]
# # Communication: hide it, and send less
#
# *About an hour and a half. You need chapters 02, 03 and 06. No GPU is needed.*
#
# Our 7 B model trains on eight A100s in eight machines, with an Ethernet of 10 Gbit/s between them. A step of 64 sequences computes for three seconds. Then the cards exchange 27 GB of gradients and 13.5 GB of parameters, by our planner's count for 71 seconds. We bought eight cards, and got a very expensive network test.
#
# There are four ways out: hide the messages under the computing, send them less often, send fewer bytes, or use better links. What does each leave of the 71 seconds, and how long do the cards still wait? First a toy, small enough to see: four layers on three ranks.

# %%
import torch
import torch.distributed as dist

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
# Each row is a rank: forward, backward, and in the thin strip below its messages. Here all messages come after the backward, and every card waits.
#
# **When you are done** you can say how much of the gradients' time the backward hides, compress gradients without spoiling the training, and tell when neither is worth the trouble.

# %% [markdown] sections="19.8.2"
# ## The bill
#
# What are the 71 seconds made of? We ask the planner of chapter 18. Under ZeRO 1 ([stage](GLOSSARY.md#zero-stage) 1, chapter 06) each of the eight ranks keeps the optimizer states of an eighth of the parameters. It [reduce-scatters](GLOSSARY.md#reduce-scatter) the gradients, here in fp32, updates its eighth, and all-gathers the parameters in bf16.

# %%
small = planner.Plan(
    model="LLaMA 7B", gpus=8, per_node=1, nic_gb_per_s=1.25, zero=1, batch=64
)
gradients_s, parameters_s = (us / 1e6 for us in small.time().data.values())
messages_s = gradients_s + parameters_s
computing_s = small.time().step_us / 1e6 - messages_s
bill_s = {
    "computing": computing_s,
    "gradients": gradients_s,
    "parameters": parameters_s,
}
lab.bars(bill_s, unit="s", title="A step of 64 sequences", badge="predicted")

# %% [markdown]
# This is our bill: of 74 seconds the cards wait 96 %.
#
# - **Computing:** 8 sequences of 2,048 tokens on each card, at two thirds of an A100's peak.
# - **The cable:** the planner counts on two fifths of its 1.25 GB/s, as fitted to another cluster's runs. A rank sends 7/8 of the gradients: 27 × 7/8 / 0.5, 47 seconds.
# - **The gradients:** in bf16, as they are often sent, they would leave a step of 50 seconds.

# %% [markdown] sections="8.9.2, 10.4.3, 19.1.3"
# ## Hide the messages
#
# DDP sends its gradients in [buckets](GLOSSARY.md#bucket), from the last layer down, each as soon as it is complete (chapter 03). Our `step` trains by real DDP:
#
# ```python
# ddp = DDP(net, bucket_cap_mb=0.9)
# ddp(inputs).sum().backward()  # the buckets leave in here
# ```
#
# Layers and links are [paced](GLOSSARY.md#paced): each layer has 10 ms of forward, 20 ms of backward and 1 MB of gradients in a bucket of its own, on a link of 80 MB/s.
#
# What lies under computing of the same rank is called [hidden](GLOSSARY.md#overlap-to-hide-communication), the rest is [exposed](GLOSSARY.md#exposed-communication), and you pay for the exposed part only. On the board four layers computed for 120 ms, and then all 78 ms of messages were exposed. Now take six layers, with overlap. How many milliseconds should a step take?

# %%
with_overlap = lab.guess("a step of six layers with overlap", unit="ms")

# %%
hidden = step.but(layers=6, overlap=True).compare()
with_overlap.score(hidden.readings["predicted"] / 1000)

# %%
hidden

# %% [markdown]
# Predicted above, measured below. The strips are the buckets. By the prediction only the last bucket sticks out: 60 + 120 + 19.5 ms. Without overlap all six would: 297 ms. Measured, it is more, probably because three processes share a few cores (*overran*: too busy for the stated times).

# %% [markdown] sections="19.1.3"
# ### A link that can't keep up
#
# Our link was a little faster than the backward. At 30 MB/s the buckets queue up:

# %%
narrow = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.03)
step.but(overlap=True, link=narrow).predict()

# %% [markdown] sections="19.1.3"
# Overlap can hide no more than there is backward left to hide under: here 60 ms, however slow the link. At 30 MB/s that is less than a third.
#
# And on our bill? Let gradients hide under the backward and parameters under the next forward: of the 71 seconds 68 remain, because there are only three to hide under.
#
# <details><summary>What that takes</summary>
#
# A card's 8 sequences must be one microbatch, since messages leave with the last one. By the planner that is 63 GB, with recomputation. Our count leaves out the 0.8 s that this adds to the computing. On our slow network the messages are still longer and would hide them; on the fast one computing would be the longer of the two.
#
# </details>

# %% [markdown] sections="19.1.3"
# ### Whom do the others wait for?
#
# An all-reduce cannot end before the slowest rank has brought its part. In this run one rank, drawn by lot, needs 1.5 times as long for every layer. You see only the messages. Which rank is it? (*Busy*: the share of time with messages.)

# %%
slow_rank = torch.randint(3, ()).item()
slowed = step.but(overlap=True, slow={slow_rank: 1.5}).run().timeline()
slowed.select(slowed.lane == "comm")

# %%
waits = lab.guess("the slow rank", choices=["rank 0", "rank 1", "rank 2"])

# %%
waits.score(f"rank {slow_rank}")

# %% [markdown] sections="19.1.3"
# The others begin early and wait in their all-reduces. The slow rank comes late and finds everybody there. So the shortest all-reduces belong to the [straggler](GLOSSARY.md#straggler), the longest to a victim.

# %% [markdown] sections="8.9.2, 10.4.3"
# ## Send them less often
#
# In chapter 03 several microbatches shared one all-reduce, by `no_sync()` ([gradient accumulation](GLOSSARY.md#gradient-accumulation)). A common mistake is to all-reduce by hand after each of them. Let two ranks do so with four microbatches. Microbatch i adds 1 to entry i, so that we see how often each one counts:


# %%
def counted(each_time=1, at_end=1):
    """How often each of four microbatches is in the gradient"""
    gradient = torch.zeros(4)
    for number in range(4):
        gradient[number] += 1  # the backward of this microbatch, under no_sync()
        dist.all_reduce(gradient)
        gradient /= each_time
    return (gradient / at_end).tolist()


# %%
ways = lab.launch(lambda: (counted(at_end=2), counted(each_time=2)), ranks=2)[0]
often = {}
for name, late, early in zip(("first", "second", "third", "last"), *ways):
    often[name] = {"divided at the end": late, "divided each time": early}
lab.bars(often, title="How often a microbatch is counted")

# %% [markdown]
# - **Divided at the end.** What was summed is summed again in each later round, so the microbatches count 8 : 4 : 2 : 1.
# - **Divided each time.** Right, since what was averaged before is equal on all ranks. But it sends four times as much as necessary.

# %% [markdown] sections="8.9.2, 19.8.2"
# ### Exercise 1. Accumulate right
#
# So how do you get the right gradients with **one** all-reduce? `ddp` is a `DistributedDataParallel`, `microbatches` a list of pairs (inputs, targets). They may differ in size, but a list has as many samples in all on every rank. Leave in `ddp` the gradients of the mean squared error of the **whole** batch, over all microbatches and ranks, and let them be all-reduced once.
#
# (*Over budget* in a verdict means right, but wasteful.)


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
# Our toy again, on the narrow link and with overlap, communicates once in m microbatches:

# %%
queued = step.but(overlap=True, link=narrow)
per_microbatch = {}
for m in (1, 4, 8):
    whole_step = queued.but(accumulate=m).predict()
    per_microbatch[f"m = {m}"] = whole_step.end_us.max() / m
marks = {"computing alone": 120_000}
title = "Time per microbatch"
lab.bars(per_microbatch, unit="us", title=title, badge="predicted", marks=marks)

# %% [markdown] sections="19.1.3, 10.4.3, 19.8.2"
# Messages leave in the last microbatch only. So 134 ms stick out once in a step, and each microbatch pays 134/m. With m = 4, a batch of 256 sequences, 18 of our 71 seconds would remain for each 64.
#
# ### What it costs
#
# m microbatches are one large batch: fewer updates. `compressed_run.launch` trains a small transformer (30,000 parameters, SGD with rate 0.3) on two ranks, on the same 64 microbatches each time.


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
# Fewer updates get less far. A larger learning rate makes up for more than half of it. And with m = 8 and 8 times the rate?

# %%
print("loss:", round(ends_at(8, 8 * 0.3), 1))

# %% [markdown] sections="8.9.2, 10.4.3"
# Training has diverged (one run, no warm-up; see chapter 12): a model that knows nothing has ln 256 = 5.5. [Local SGD](GLOSSARY.md#local-sgd) (chapter 03) sends less often and still updates often: each rank alone, with the weights averaged every few steps.

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Send fewer bytes
#
# Two thirds of our 71 seconds are gradients. Without any, 24 would still remain, so this way is for links where nothing else helps. Do fewer bytes really leave, and does training bear it?
#
# DDP lets a [communication hook](GLOSSARY.md#communication-hook) take the place of its all-reduce: `ddp.register_comm_hook(state, hook)`. It gets a bucket of gradients and returns a Future, a promise of their mean over all ranks. The simplest one halves the bytes (the library's `bf16_compress_hook`; FSDP takes no hooks of DDP):


# %%
def bf16(state, bucket):
    half = bucket.buffer().bfloat16() / dist.get_world_size()
    work = dist.all_reduce(half, async_op=True)
    # when the sum is there, make it float32; DDP waits at the end of backward()
    return work.get_future().then(lambda done: done.value()[0].float())


# %% [markdown]
# `compressed_run.launch` takes such a hook. "Handed in" is what a step gives to collectives (the [payload](GLOSSARY.md#payload)), "on the wire" what the system counted on the sockets, headers included.

# %%
runs = {"all-reduce": plain, "bf16": compressed_run.launch(bf16)}
compressed_run.report(runs)

# %% [markdown]
# Half the bytes, and the same loss. (With eight seeds, where this was written, the plain run ended between 3.29 and 3.37.)

# %% [markdown] sections="19.2.2b, 10.4.3"
# ### Few bits, and how to round
#
# Quantisation maps values to whole numbers: with 8 bits from -127 to 127, with three levels to -1, 0 and 1. How would you round? Take a value of 0.3 that comes in ten steps running:
#
# | rounding | what is sent | sum |
# | --- | --- | --- |
# | to the **nearest** | 0 0 0 0 0 0 0 0 0 0 | 0 |
# | **stochastic**: up with a probability of 0.3 | 0 1 0 0 0 1 0 0 1 0, say | 3 on average |


# %%
def rounded(gradient, most, stochastic=True):
    """Whole numbers from -most to most, and the size of a level"""
    scale = gradient.abs().max().clamp(min=1e-30) / most
    up_from = torch.rand_like(gradient) if stochastic else 0.5
    numbers = torch.floor(gradient / scale + up_from)
    return numbers.clamp(-most, most).to(torch.int8), scale


# %% [markdown]
# An all-reduce adds in the type that it sends, and 100 + 100 does not fit into a signed byte (127 at most). So our hook gathers everybody's bytes and scales, and adds up as floats:


# %%
def ready(mean):
    """A Future whose value is there"""
    future = torch.futures.Future()
    future.set_result(mean)
    return future


def quantised(state, bucket):
    numbers, scale = rounded(bucket.buffer(), **state)
    scales = scale.new_empty(dist.get_world_size())
    everyone = numbers.new_empty(len(scales) * len(numbers))
    # all_gather_single is called all_gather_into_tensor before torch 2.13
    dist.all_gather_single(scales, scale.view(1))
    dist.all_gather_single(everyone, numbers)
    return ready((everyone.view(len(scales), -1) * scales[:, None]).mean(0))


# %%
few_bits = {
    "3 levels, nearest": {"most": 1, "stochastic": False},
    "3 levels, stochastic": {"most": 1},
    "8 bits, stochastic": {"most": 127},
}
for name, state in few_bits.items():
    runs[name] = compressed_run.launch(quantised, state)
compressed_run.report({name: runs[name] for name in few_bits})

# %% [markdown]
# Rounded to the nearest, what is smaller than half a level is never sent, so training stays far behind. Stochastic rounding sends it now and then, and on average nothing is lost. The finer 8 bits end like the plain run.

# %% [markdown] sections="19.2.2b, 10.4.3"
# ### Who gets the bytes?
#
# A gather gives everything to everybody. An [all-to-all](GLOSSARY.md#all-to-all) gives each rank only its slice, to be added up there. What does rank 0 of four send for a million values?

# %%
others = ("to rank 1", "to rank 2", "to rank 3")
sent = {
    "floats, all-reduce": {"to rank 1": 2 * 3 / 4 * 4e6},
    "bytes, gather": dict.fromkeys(others, 1e6),
    "floats, reduce-scatter": {"to rank 1": 3 / 4 * 4e6},
    "bytes, all-to-all": dict.fromkeys(others, 1e6 / 4),
}
title = "What rank 0 of four sends for a million values"
lab.bars(sent, unit="bytes", stacked=True, title=title, badge="predicted")

# %% [markdown]
# (The floats go around a ring.) A gather grows with the ranks: with eight it sends as much as the floats. An all-to-all stays at a quarter of a reduce-scatter.
#
# <details><summary>For an all-reduce: two steps</summary>
#
# After the all-to-all each rank quantises the sum of its slice, and the sums are gathered. (Counted, not run.)
#
# | bytes that a rank sends for each value | 2 ranks | 8 ranks | 64 ranks |
# | --- | --- | --- | --- |
# | gathered bytes: N - 1 | 1 | 7 | 63 |
# | a ring of floats: 8(N - 1)/N | 4 | 7 | 7.88 |
# | bytes in two steps: 2(N - 1)/N | 1 | 1.75 | 1.97 |
#
# </details>

# %% [markdown] sections="19.2.2b, 10.4.3, S10"
# ### Top-k
#
# Most entries of a gradient are small. Why not send only the largest 1 %? Zeros in place of the rest would be sent, too. So each rank gathers the chosen values and their places, and adds up what it got. What share of the bytes that a rank hands in is saved?

# %%
saved = lab.guess("bytes that top-1 % saves", between=(0, 1))


# %%
def largest(gradient):
    """The largest 1 %: values and places"""
    places = gradient.abs().topk(len(gradient) // 100).indices
    return gradient[places], places.int()


def top_k(state, bucket):
    mean, size = torch.zeros_like(bucket.buffer()), dist.get_world_size()
    mine = largest(bucket.buffer())
    values, places = (each.new_empty(size * len(each)) for each in mine)
    dist.all_gather_single(values, mine[0])
    dist.all_gather_single(places, mine[1])
    return ready(mean.index_add_(0, places.long(), values / size))


# %%
runs["top-1 %"] = compressed_run.launch(top_k)
handed_in = plain[0]["handed_in_bytes"]
share = runs["top-1 %"][0]["handed_in_bytes"] / handed_in
saved.score(1 - share)

# %% [markdown] sections="19.2.2b, 10.4.3, S10"
# A place costs four bytes, like a value. This gather grows with the ranks, too: two send 2 % of an all-reduce, plus headers, and fifty send half.
#
# <details><summary>Where the ratio comes from</summary>
#
# A rank sends its k values and places to each of the N - 1 others, 8k bytes each time. A ring all-reduce of n values sends $2(N-1)/N$ times 4n. The ratio is $Nk/n$.
#
# </details>

# %% [markdown] sections="19.2.2b"
# ### Lose nothing
#
# An entry whose gradient stays small is never among the largest, so top-k never sends it, however long it points the same way. The cure is **error feedback**: keep what was not sent, and add it to the next gradient.
#
# By hand: the gradient is 5, 2, 2, 2 in every step, and one value may be sent (k = 1). In which step is a small entry sent for the first time?

# %%
first_small = lab.guess("the step that sends a small entry", between=(1, 20))

# %%
gradient, memory = torch.tensor([5.0, 2, 2, 2]), torch.zeros(4)
for number in range(1, 20):
    memory += gradient
    place = memory.abs().argmax()
    if place > 0:
        break
    memory[place] = 0
first_small.score(number)

# %% [markdown] sections="19.2.2b"
# <details><summary>Step by step</summary>
#
# | step | gradient + memory | sent | kept |
# | --- | --- | --- | --- |
# | 1 | 5 2 2 2 | 5 | 0 2 2 2 |
# | 2 | 5 4 4 4 | 5 | 0 4 4 4 |
# | 3 | 5 6 6 6 | 6, the second entry | 5 0 6 6 |
# | 4 | 10 2 8 8 | 10, twice 5 | 0 2 8 8 |
#
# Each entry leaves late, but whole: 6 is three times 2.
#
# </details>
#
# ### Exercise 2. Error feedback
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

# %%
check.hint("error_feedback")

# %% [markdown] sections="19.2.2b"
# ### Loss and bytes
#
# `with_feedback` makes a hook of your function (or of the package's own, until you have written it). Each mark is eight steps: further left is cheaper, lower is better. Which one would you take?

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

# %%
compressed_run.report({name: runs[name] for name in shown})

# %% [markdown]
# At two ranks we would take top-1 % with feedback: a fiftieth of the bytes, and a loss behind the all-reduce's at every mark. The gap shrinks, but with each of eight seeds 0.04 to 0.06 were left. Without feedback small values are dropped for good, and the loss ends well above.
#
# The memory costs a float for each entry of a gradient: on our 7 B model 27 GB. With the planner's 63 that is 90 GB a card, more than an A100 has.
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
# Only if the link needs longer for the saved bytes than the processor for compressing. So we time compressing alone, without messages, and add what two ranks' link needs for what is left of 4 MB. First at 50 MB/s:

# %%
from torch.utils import benchmark

gradient = torch.randn(1_000_000)
of_bytes = {"all-reduce": 1, "bf16": 1 / 2, "8 bits": 1 / 4, "top-1 %": 1 / 50}
code = ("pass", "gradient.bfloat16()", "rounded(gradient, 127)", "largest(gradient)")
took_s = {}
for name, line in zip(of_bytes, code):
    timer = benchmark.Timer(line, globals=globals())
    took_s[name] = timer.blocked_autorange().median


# %%
def at(gb_per_s):
    """Seconds on such a link, and before it"""
    rows = {}
    for name, part in of_bytes.items():
        link_s = part * gradient.nbytes / (gb_per_s * 1e9)
        rows[name] = {"link": link_s, "compressing": took_s[name]}
    return rows


# %%
looks = {"unit": "s", "stacked": True, "badge": "predicted / measured"}
lab.bars(at(0.05), title="4 MB at 50 MB/s", **looks)

# %% [markdown]
# Here all three win. And at 2 GB/s?

# %%
lab.bars(at(2), title="4 MB at 2 GB/s", **looks)

# %% [markdown] sections="10.4.3"
# Now rounding and choosing take longer than the link needs for all of the floats; only the cast to bf16 is cheap enough. (This is a CPU. A GPU compresses faster, so its limit is a faster link.)
#
# (Our gathering hooks also wait, and lose the overlap; a production hook goes on in `.then`.) And **to shrink a message that was hidden anyway saves no time.**
#
# ### Exercise 3. Up to which link?
#
# Compressing delays a message by what it takes, but a message can hide: of its time on the link only what exceeds `hidden_ms` costs anything. Find the speed, in GB/s, at which a step takes as long with compression as without. A message has `before_mb`, compressed `after_mb`. `times_ms` is what compressing took, measured: the first few are slow, and now and then one is disturbed.


# %%
def my_break_even(times_ms, before_mb, after_mb, hidden_ms):
    """The speed of the link, in GB/s (MB per ms), up to which compression pays"""
    ### BEGIN SOLUTION
    from statistics import median

    took_ms = median(times_ms)
    both_stick_out = (before_mb - after_mb) / took_ms
    one_is_hidden = before_mb / (hidden_ms + took_ms)
    return min(both_stick_out, one_is_hidden)
    ### END SOLUTION


# %%
check.break_even(my_break_even)

# %%
check.hint("break_even")

# %% [markdown] sections="19.1.3, 10.4.3"
# ## Use the links well
#
# The fourth way, better links, costs money. Do we use well those that we have? One large all-reduce, measured, tells how full a cable gets: at four fifths, half of the 71 seconds would go.
#
# A ring's order can waste a cable. Take two machines (*islands* in the picture) of three cards: fast links inside, and **one** cable between them, shared by all messages in one direction. This ring goes 0 1 2 3 4 5:

# %%
inside = collectives.Link(alpha_us=100, bandwidth_gb_per_s=0.01)
between = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.002)
machines = collectives.islands(6, 3, inside=inside, between=between, shared=True)
straight = collectives.Call(ranks=6, num_bytes=600_000, network=machines)
straight.way()

# %% [markdown]
# Another ring goes to and fro, 0 3 1 4 2 5. Every rank sends as many bytes as before. How many times as long does it take?

# %%
longer = lab.guess("the second ring over the first one", unit="ratio")

# %%
zigzag = straight.but(order=(0, 3, 1, 4, 2, 5))
longer.score(zigzag.predict().span_us / straight.predict().span_us)

# %%
zigzag.way()

# %% [markdown]
# In the first ring two of the six links cross the cable, one in each direction. In the second all six do: three in each direction share the wire. Can the traffic be less than in both? A **hierarchical** all-reduce goes in two levels: reduce-scatter inside each machine, all-reduce across with what is left, all-gather inside. All three on real ranks:

# %%
levels = straight.but(algorithm="hierarchical", island_size=3)
calls = {"0 1 2 3 4 5": straight, "0 3 1 4 2 5": zigzag, "in two levels": levels}
took = {name: call.compare().readings for name, call in calls.items()}
title = "All-reduce of 0.6 MB over two machines"
lab.bars(took, unit="us", title=title, badge="predicted / measured, paced links")

# %% [markdown] sections="8.9.2, 10.4.3"
# By the bytes, yes: in the ring 1 MB crosses the cable in each direction, in two levels 0.6 MB, because each machine first adds up its own. The price is three collectives in the place of one. With one card in each machine, as on our bill, nothing is gained.
#
# ### Whose job is the order?
#
# [NCCL](GLOSSARY.md#nccl), which carries the messages on GPUs, sees which ranks share a machine and chains them, so it avoids the zigzag. But it takes the machines themselves in the order of the ranks (NVIDIA/nccl, issue 1340): number those rack by rack.
#
# <details><summary>Two jobs that share a cable: let them take turns</summary>
#
# Each of two jobs computes for 30 ms and then sends for 20 ms, if it has the link to itself. Started together, both always send at the same time, at half the speed. If the second one starts 25 ms later, they never meet, and both run at full speed. Simulated: `from labkit.communication import jobs`, then `jobs.shared_link([0, 0])` and `jobs.shared_link([0, 25])`; a row stands for a job. Schedulers in research shift jobs so (CASSINI, below).
#
# </details>
#
# <details><summary>NCCL's settings in scripts</summary>
#
# `NCCL_DEBUG=INFO`, set before `init_process_group`, makes NCCL say what it does. After NVIDIA's documentation; all but the interface and the debug ones stand there under debugging: fine for an experiment, not to be left in a script.
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

# %% [markdown] sections="19.8.2"
# ## When is it worth it?
#
# What does each way leave of the 71 seconds? First by hand, for 8 bits: instead of the reduce-scatter of ZeRO 1, bytes go straight to the rank that adds them up. (The framework must offer this; we have not run it.) How many seconds of messages are left?

# %%
in_bytes = lab.guess("messages with gradients in 8 bits", unit="s")

# %%
in_bytes.score(gradients_s / 4 + parameters_s)

# %% [markdown]
# That is 47.2 / 4 + 23.6, because compressed gradients don't touch the parameters. Now all ways, from the bill, without a run. The last two ask more of a card than its 80 GB.
#
# <details><summary>The factors</summary>
#
# | way | factor | why |
# | --- | --- | --- |
# | cable at 4/5 | 1/2 | the planner counts on 2/5 |
# | 200 Gbit/s | 1/20 | filled to 2/5, too |
# | top-1 %, feedback | gradients: 2 % | values and places, to their owners |
# | Local SGD, 16 steps | parameters: 2/16, no gradients | an all-reduce of bf16 weights is as long as two gathers |
#
# </details>


# %%
def left_s(m=1, gradients=1.0, speed=1.0, overlap=False):
    """Seconds of messages for 64 sequences, if m times as many share one exchange."""
    messages = (gradients * gradients_s + parameters_s) / speed
    exposed = max(0, messages - computing_s) if overlap else messages
    return exposed / m


# %%
left = {
    "as it is": left_s(),
    "overlap": left_s(overlap=True),
    "gradients in 8 bits": left_s(gradients=1 / 4),
    "cable at 4/5": left_s(speed=2),
    "16 times the batch": left_s(m=16),
    "200 Gbit/s": left_s(speed=20),
    "200 Gbit/s, overlap": left_s(speed=20, overlap=True),
}
ways = {name: {"fits into 80 GB": seconds} for name, seconds in left.items()}
ways["top-1 %, feedback"] = {"does not fit": left_s(gradients=0.02)}
ways["Local SGD, 16 steps"] = {"does not fit": 2 * parameters_s / 16}
title = "What is left of the 71 seconds"
lab.bars(ways, unit="s", stacked=True, title=title, badge="predicted")

# %% [markdown] sections="10.7.3"
# Compression stays far behind, because it touches the gradients only: with 8 bits the cards still wait 92 % of the time. A batch 16 times as large gives nearly as much as a network twenty times as fast, and for nothing, **if** training bears it. Our toy diverged at 8 times the rate, but LLaMA 7B was trained with twice as many tokens in a step (4 million).
#
# <details><summary>ZeRO++: the parameters, too</summary>
#
# ZeRO++, a form of ZeRO 3, gathers parameters in 8 bits, and sends gradients in 4. With 8 for both, 47 / 4 + 24 / 2, 24 seconds, would be left here.
#
# </details>
#
# So there is an order: overlap, because it costs next to nothing; accumulate as far as training allows; look at your cables; then compress. With overlap and gradients in bf16, which is the smallest m that leaves 2 of the 71 seconds or fewer?

# %%
smallest_m = lab.guess("the smallest m that leaves 2 seconds", between=(1, 100))

# %%
enough = (m for m in range(1, 100) if left_s(m, 1 / 2, overlap=True) <= 2)
smallest_m.score(next(enough))

# %% [markdown] sections="10.7.3"
# Of 23.6 + 23.6 seconds 44 are exposed, and each 64 sequences pay 44/m. That batch has 2.9 million tokens, fewer than LLaMA's.
#
# Each 64 sequences then take 5.2 s instead of 74, and the cards still wait 38 % of the time. Of the ways in the chart only the fast network with overlap keeps them busy: there they wait 10 %.

# %% [markdown]
# ## Summary
#
# | way | left of 71 s | cards wait | price | what we ran |
# | --- | --- | --- | --- | --- |
# | overlap | 68 | 96 % | one microbatch must fit | the toy |
# | 8 bits | 35 | 92 % | the framework's support | gathered, two ranks |
# | cable at 4/5 | 35 | 92 % | to measure, and tune | nothing |
# | top-1 %, feedback | 24.5 | 88 % | 90 GB: fits no A100 | gathered, two ranks |
# | 16 times the batch | 4.4 | 58 % | fewer updates | m = 4; 8 at 8 times the rate: diverged |
# | Local SGD | 2.9 | 48 % | 134 GB: fits no A100; another algorithm | nothing |
# | 200 Gbit/s, overlap | 0.3 | 10 % | money | nothing |
#
# - Overlap hides all buckets but the last, if the link keeps up.
# - Accumulation is a larger batch, with fewer updates.
# - Error feedback makes a biased compression converge (Stich et al. 2018); stochastic rounding has no bias.
# - Compression pays up to a speed of the link that you can measure.
#
# **Words:** [exposed communication](GLOSSARY.md#exposed-communication), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [communication hook](GLOSSARY.md#communication-hook), [payload](GLOSSARY.md#payload), [wire](GLOSSARY.md#wire), [straggler](GLOSSARY.md#straggler), [paced links](GLOSSARY.md#paced-links).
#
# <details><summary>Further reading</summary>
#
# - LLaMA, and its batch of 4 million tokens: Touvron et al. 2023, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
# - DDP, buckets and hooks: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704); [DDP communication hooks](https://pytorch.org/docs/stable/ddp_comm_hooks.html)
# - Error feedback: Stich et al. 2018, [arXiv 1809.07599](https://arxiv.org/abs/1809.07599)
# - Stochastic rounding of gradients (QSGD): Alistarh et al. 2016, [arXiv 1610.02132](https://arxiv.org/abs/1610.02132). In two steps: 1-bit Adam, Tang et al. 2021, [arXiv 2102.02888](https://arxiv.org/abs/2102.02888)
# - ZeRO++: Wang et al. 2023, [arXiv 2306.10209](https://arxiv.org/abs/2306.10209). Local SGD for language models (DiLoCo): Douillard et al. 2023, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105)
# - PowerSGD: Vogels et al. 2019, [arXiv 1905.13727](https://arxiv.org/abs/1905.13727). When compression pays: Agarwal et al. 2021, [arXiv 2103.00543](https://arxiv.org/abs/2103.00543)
# - Jobs that take turns on a link: CASSINI, Rajasekaran et al. 2023, [arXiv 2308.00852](https://arxiv.org/abs/2308.00852)
# - The order of machines: [NVIDIA/nccl, issue 1340](https://github.com/NVIDIA/nccl/issues/1340). NVIDIA, NCCL user guide: [environment variables](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), [logging](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html)
#
# </details>
#
# **Next:** [large batches](12_large_batches.ipynb), and how large a batch the training bears.

# %% [markdown] sections="8.9.2, 10.4.3, 19.1.3, 19.2.2b, S10"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Seven errata</summary>
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
#
# <details><summary>Erratum 8.9.2: an all-reduce in every microbatch</summary>
#
# The textbook puts `no_sync()` around all microbatches and all-reduces every gradient inside: `counted(at_end=2)`, the first bar of each pair. (Its code in 10.4.3 forgets to divide by the number of ranks as well.) The all-reduce is asynchronous too, so it would still be on its way while the next backward adds to the same tensor.
#
# </details>
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
#
# <details><summary>Erratum 8.9.2: four settings that "optimise" NCCL</summary>
#
# After NVIDIA's documentation, not a run: `NCCL_IB_DISABLE=0` changes nothing, and `NCCL_DEBUG=INFO` is right for looking and too much for every day. `NCCL_SOCKET_IFNAME=eth0` guesses the interface, and as a prefix it also selects eth01 (`NCCL_SOCKET_IFNAME==eth0`, with two equals signs, means exactly eth0; yours are `[name for _, name in socket.if_nameindex()]`). `NCCL_P2P_LEVEL=NVL` is nearly the strictest level: pairs with NVLink have direct messages anyway, and all other pairs lose theirs.
#
# </details>
#
# </details>
#
# *Sections 8.9.2, 10.4.3, 10.7.3, 19.1.3, 19.2.2 (compression), 19.8.2 and S10 of the source material.*

# %%
check.status()
