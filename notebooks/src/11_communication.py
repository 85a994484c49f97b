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
# Our 7 B model trains on eight A100s in eight machines, with an Ethernet of 10 Gbit/s between them. A step of 64 sequences computes for three seconds. Then the cards exchange 27 GB of gradients and 13.5 GB of parameters, by our planner's count for 71 seconds.
#
# There are four ways out: hide the messages under the computing, send them less often, send fewer bytes, or use better links. What does each leave of the 71 seconds? First a toy: four layers on three ranks.

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
# Each row is a rank: forward, backward, and messages in the thin strip. Here they all come after the backward, and every card waits.
#
# **When you are done** you can say how much of the gradients' time the backward hides, compress gradients without spoiling the training, and tell when neither is worth it.

# %% [markdown] sections="19.8.2"
# ## The bill
#
# What are the 71 seconds made of? Under ZeRO 1 ([stage](GLOSSARY.md#zero-stage) 1, chapter 06) each rank [reduce-scatters](GLOSSARY.md#reduce-scatter) the gradients, here in fp32, updates its eighth of the parameters, and all-gathers them in bf16. The planner of chapter 18 counts:

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
# Of 74 seconds the cards wait 96 %.
#
# - **Computing:** 8 sequences of 2,048 tokens on each card, at two thirds of an A100's peak.
# - **The cable:** a rank sends 7/8 of the gradients: 27 × 7/8 / 0.5, 47 seconds. These 0.5 GB/s are two fifths of 10 Gbit/s, as fitted to another cluster's runs.
# - **Your cable** may do better: filled to four fifths, it halves both message bars. So measure it first: NVIDIA's `all_reduce_perf` (nccl-tests) prints its speed as *busbw*.

# %% [markdown] sections="8.9.2, 10.4.3, 19.1.3"
# ## Hide the messages
#
# DDP sends its gradients in [buckets](GLOSSARY.md#bucket), from the last layer down, each as soon as it is complete (chapter 03). Our `step` trains by real DDP, but [paced](GLOSSARY.md#paced): each layer has 10 ms of forward, 20 ms of backward and 1 MB of gradients in a bucket of its own, on a link of 80 MB/s.
#
# What lies under computing of the same rank is [hidden](GLOSSARY.md#overlap-to-hide-communication), the rest is [exposed](GLOSSARY.md#exposed-communication), and you pay for the exposed part only. On the board it was all 78 ms. Now take six layers, with overlap. How many milliseconds should a step take?

# %%
with_overlap = lab.guess("a step of six layers with overlap", unit="ms")

# %%
hidden = step.but(layers=6, overlap=True).compare()
with_overlap.score(hidden.readings["predicted"] / 1000)

# %%
hidden

# %% [markdown]
# By the prediction only the last bucket sticks out: 60 + 120 + 19.5 ms. Measured, it takes longer where ranks *overran* their stated times: the latest keeps the others waiting. (A strip stands lower where two buckets are under way at once. *Nothing under way*: neither computing nor messages.) What does overlap save?

# %%
late = step.but(layers=6).compare()
saves = {"without overlap": late.readings, "with overlap": hidden.readings}
where = "predicted / measured, paced links"
lab.bars(saves, unit="us", title="A step of six layers", badge=where)

# %% [markdown] sections="19.1.3"
# ### A link that can't keep up
#
# That link was a little faster than the backward. At 30 MB/s the buckets queue up:

# %%
narrow = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.03)
step.but(overlap=True, link=narrow).predict()

# %% [markdown]
# Overlap can hide no more than there is backward left when the first bucket is full: here three layers, 60 ms, however slow the link.
#
# And on our bill? Gradients can hide under the backward, parameters under the next forward (Megatron's `--overlap-grad-reduce` and `--overlap-param-gather`). At the very best 4 seconds hide, so at least 67 of the 71 remain.
#
# <details><summary>Why 4 seconds</summary>
#
# Messages leave with the last microbatch, so a card's 8 sequences must be one. By the planner that takes 128 GB, or 63 with recomputation, which makes the computing 0.8 s longer: 3.2 + 0.8. A little less can hide, as in the toy, because the first bucket must fill and the last one comes too late.
#
# </details>

# %% [markdown] sections="19.1.3"
# ### Whom do the others wait for?
#
# An all-reduce cannot end before the slowest rank has brought its part. Now one rank, drawn by lot, needs 1.5 times as long for every layer. You see only the messages. Which rank is it? (*Busy*: the share of time with messages.)

# %%
slow_rank = torch.randint(3, ()).item()
slowed = step.but(overlap=True, slow={slow_rank: 1.5}).run().timeline()
slowed.select(slowed.lane == "comm")

# %%
waits = lab.guess("the slow rank", choices=["rank 0", "rank 1", "rank 2"])

# %%
waits.score(f"rank {slow_rank}")

# %% [markdown]
# The others begin early and wait. The slow rank comes late and finds everybody there, so the shortest all-reduces belong to the [straggler](GLOSSARY.md#straggler).

# %% [markdown] sections="8.9.2, 10.4.3"
# ## Send them less often
#
# In chapter 03 several microbatches shared one all-reduce, by `no_sync()` ([gradient accumulation](GLOSSARY.md#gradient-accumulation)). A common mistake is to all-reduce by hand after each of them. Let two ranks do so; microbatch i adds 1 to entry i. If we divide by the two ranks only at the end, how often does the first microbatch count?


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
first = lab.guess("how often the first microbatch counts", between=(0, 16))

# %%
both = lab.launch(lambda: (counted(at_end=2), counted(each_time=2)), ranks=2)[0]
first.score(both[0][0])

# %%
for counts in both:
    print(counts)

# %% [markdown]
# - **Divided at the end** (first line). What was summed is summed again in each later round.
# - **Divided each time** (second line). Right, since what was averaged before is equal on all ranks. But it sends four times as much as necessary.

# %% [markdown] sections="8.9.2, 19.8.2"
# ### Exercise 1. Accumulate right
#
# So how do you get the right gradients with **one** all-reduce? `ddp` is a `DistributedDataParallel`, `microbatches` a list of pairs (inputs, targets). They may differ in size, but every rank's list has as many samples in all. Leave in `ddp` the gradients of the mean squared error of the **whole** batch, over all microbatches and ranks, and let them be all-reduced once. (*Over budget*: right, but wasteful.)


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
# ### What it saves, and what it costs
#
# m microbatches share one exchange, so each pays 1/m of it. With m = 4, a batch of 256 sequences, 18 of our 71 seconds remain for each 64. But it is one large batch, with fewer updates. `compressed_run.launch` trains a small transformer (30,000 parameters, SGD) on two ranks, on the same 64 microbatches each time.


# %%
def trained(m, rate):
    """On each of two ranks by 64 microbatches, m in a step"""
    return compressed_run.launch(num_steps=64 // m, accumulate=m, learning_rate=rate)


def losses(run):
    """Of held-out text, after 8, 16, ... 64 microbatches"""
    return dict(zip(range(8, 65, 8), run[0]["loss"].values()))


# %%
plain = trained(1, 0.3)
by_batch = {
    "m = 1": losses(plain),
    "m = 4": losses(trained(4, 0.3)),
    "m = 4, 4 times the rate": losses(trained(4, 4 * 0.3)),
}
axes = {"x": "microbatches", "y": "loss of held-out text"}
lab.curves(measured=by_batch, joined=True, title="Fewer updates", **axes)

# %% [markdown]
# Fewer updates get less far. With 4 times the rate training jumps, but ends lower. Where does m = 8 end, with 8 times the rate?

# %%
eight = lab.guess("the last loss with m = 8 and 8 times the rate")

# %%
eight.score(trained(8, 8 * 0.3)[0]["last_loss"])

# %% [markdown]
# A model that knows nothing has ln 256 = 5.5, so what ends above that has diverged (one run, without warm-up; see chapter 12). [Local SGD](GLOSSARY.md#local-sgd) (chapter 03) sends less often but updates often: each rank alone, with the weights averaged every few steps.

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Send fewer bytes
#
# Two thirds of our 71 seconds are gradients. Does training bear fewer bytes? DDP lets a [communication hook](GLOSSARY.md#communication-hook) take the place of its all-reduce: `ddp.register_comm_hook(state, hook)`. It gets a bucket of gradients and returns a Future, a promise of their mean over all ranks. The simplest one halves the bytes (the library's `bf16_compress_hook`):


# %%
def bf16(state, bucket):
    half = bucket.buffer().bfloat16() / dist.get_world_size()
    work = dist.all_reduce(half, async_op=True)
    # when the sum is there, make it float32; DDP waits at the end of backward()
    return work.get_future().then(lambda done: done.value()[0].float())


# %% [markdown]
# "Handed in" is what a step gives to collectives (the [payload](GLOSSARY.md#payload)), "on the wire" what the system counted on the sockets, headers included.

# %%
runs = {"all-reduce": plain, "bf16": compressed_run.launch(bf16)}
compressed_run.report(runs)

# %% [markdown]
# Half the bytes, and the same loss. (Eight seeds of the all-reduce, where this was written, ended between 3.29 and 3.37.)

# %% [markdown] sections="19.2.2b, 10.4.3"
# ### Few bits, and how to round
#
# Quantisation maps values to whole numbers: with 8 bits from -127 to 127, with three levels to -1, 0 and 1. Take a value of 0.3 that comes ten times running. Rounded to the **nearest** it is sent as 0 every time. **Stochastic** rounding goes up with a probability of 0.3, so it sends about three times a 1, which is right on average.


# %%
def rounded(gradient, most, stochastic=True):
    """Whole numbers from -most to most, and the size of a level"""
    scale = gradient.abs().max().clamp(min=1e-30) / most
    up_from = torch.rand_like(gradient) if stochastic else 0.5
    numbers = torch.floor(gradient / scale + up_from)
    return numbers.clamp(-most, most).to(torch.int8), scale


# %% [markdown]
# An all-reduce adds in the type that it sends, and 100 + 100 does not fit into a signed byte (127 at most). So our hook gathers everybody's bytes and scales, and adds up as floats. The all-reduce ended at a loss of 3.3. Where do three levels end, rounded stochastically?


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
few = lab.guess("the last loss with 3 levels", between=(3, 6))

# %%
few_bits = {
    "3 levels, nearest": {"most": 1, "stochastic": False},
    "3 levels, stochastic": {"most": 1},
    "8 bits, stochastic": {"most": 127},
}
for name, state in few_bits.items():
    runs[name] = compressed_run.launch(quantised, state)
few.score(runs["3 levels, stochastic"][0]["last_loss"])

# %%
compressed_run.report({name: runs[name] for name in few_bits})

# %% [markdown]
# Rounded to the nearest, what is smaller than half a level is never sent, so training falls behind. Stochastic rounding pays with noise, and 8 bits make less of it. (We send a whole byte for three levels, too; 2 bits would do.)
#
# But a gather gives everything to everybody, so it grows with the ranks: eight of them would send as much as with floats.
#
# <details><summary>Bytes only to those who add up</summary>
#
# An [all-to-all](GLOSSARY.md#all-to-all) gives each rank only its slice, to be added up there. With bytes it sends a quarter of a reduce-scatter of floats, however many ranks there are. For an all-reduce each rank then quantises the sum of its slice, and the sums are gathered. (Counted, not run.)
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

# %% [markdown]
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
# Every rank calls this function in every step with its own gradient. Return the mean that all ranks use, and the memory for your next call (zeros in the first). A rank may hand in 8 bytes for each of k values per call, no more.


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
# `with_feedback` makes a hook of your function (or of the package's own, until you have written it). Further left is cheaper, lower is better. Which one would you take?

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
# At two ranks we would take top-1 % with feedback: a fiftieth of the bytes, and a loss that with each of eight seeds ended 0.04 to 0.06 above. Without feedback small values are dropped for good.
#
# What feedback keeps costs a float for each entry, 27 GB on our 7 B model. For a hook it comes on top of the planner's 63: 90 GB on a card of 80. A loop of your own can do without: what was not sent stays in the fp32 `.grad`, and only what was sent is cleared.
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
# Only if the link needs longer for the saved bytes than the processor for compressing. So we time compressing alone, on one thread, and add what two ranks' link needs for what is left of 4 MB. First at 50 MB/s:

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
# Here all three win. Which is fastest at 2 GB/s?

# %%
fastest = lab.guess("the fastest at 2 GB/s", choices=list(of_bytes))

# %%
at_2_gb = at(2)
fastest.score(min(at_2_gb, key=lambda name: sum(at_2_gb[name].values())))

# %%
lab.bars(at_2_gb, title="4 MB at 2 GB/s", **looks)

# %% [markdown] sections="10.4.3"
# Rounding and choosing now take longer than the link needs for all of the floats, and adding up what arrives comes on top. (A GPU is faster; we estimate it below.)
#
# **To shrink a message that was hidden anyway saves no time**. (Our gathering hooks wait, so nothing hides; a production hook goes on in `.then`.)
#
# ### Exercise 3. Up to which link?
#
# Compressing occupies the processor, so all of it costs. Of a message's time on the link only what exceeds `hidden_ms` costs anything. Find the speed, in GB/s, at which a step takes as long with compression as without. A message has `before_mb`, compressed `after_mb`. `times_ms` is what compressing took, measured: the first few are slow, and now and then one is disturbed.


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

# %% [markdown] sections="10.7.3, 19.8.2"
# ## When is it worth it?
#
# First by hand, for 8 bits: instead of the reduce-scatter of ZeRO 1, bytes go straight to the rank that adds them up, if the framework offers it. How many of the 71 seconds are left?

# %%
in_bytes = lab.guess("messages with gradients in 8 bits", unit="s")

# %%
in_bytes.score(gradients_s / 4 + parameters_s)

# %% [markdown]
# That is 47.2 / 4 + 23.6, because compressed gradients don't touch the parameters. Now all ways, and the fourth, better links: counted, not run.


# %%
whole = small.but(mbs=8, recompute="full")  # a card's 8 sequences in one microbatch
recomputing_s = whole.time().step_us / 1e6 - messages_s


def seconds(m=1, gradients=1.0, speed=1.0, overlap=False):
    """Of a step of 64 sequences, if m times as many share one exchange"""
    messages = (gradients * gradients_s + parameters_s) / speed / m
    if not overlap:
        return {"computing": computing_s, "waiting": messages}
    return {"computing": recomputing_s, "waiting": max(0, messages - recomputing_s)}


# %%
steps = {
    "as it is": seconds(),
    "overlap, at best": seconds(overlap=True),
    "gradients in bf16": seconds(gradients=1 / 2),
    "gradients in 8 bits": seconds(gradients=1 / 4),
    "top-1 %, feedback": seconds(gradients=0.02),
    "16 times the batch": seconds(m=16),
    "200 Gbit/s": seconds(speed=20),
    "Local SGD, 16 steps": seconds(gradients=0, m=16 / 2),
    "200 Gbit/s, overlap": seconds(speed=20, overlap=True),
}
title = "A step of 64 sequences, each way"
lab.bars(steps, unit="s", stacked=True, title=title, badge="predicted")

# %% [markdown]
# Compression stays behind: with 8 bits the cards still wait 92 % of the time. A batch 16 times as large gives nearly as much as a network twenty times as fast, **if** training bears it. Our toy diverged at 8 times the rate, but LLaMA 7B was trained with twice as many tokens in a step (4 million). Overlap comes into its own where messages are about as short as the computing.
#
# <details><summary>What the chart counts</summary>
#
# | way | counted as | why |
# | --- | --- | --- |
# | overlap | computing 4.0 s, and all of it hides messages | recomputation, as above; at best |
# | top-1 %, feedback | gradients: 2 % | values and places, to their owners |
# | 200 Gbit/s | messages: 1/20 | filled to 2/5, too |
# | Local SGD, 16 steps | parameters: 2/16; no gradients | an all-reduce of bf16 weights is as long as two gathers |
#
# Local SGD does not fit: each card keeps all optimizer states, 81 GB instead of 10, so 63 + 71, 134 GB. Compressing itself is left out: to round our 27 GB, an A100 passes over them a few times at 2 TB/s, about 0.1 s (an estimate). ZeRO++ gathers the parameters in fewer bits, too: with 8 for both, 47 / 4 + 24 / 2, 24 seconds of messages would be left.
#
# </details>
#
# So there is an order. Measure the cable, send gradients in bf16, accumulate as far as training allows. Overlap where one microbatch fits, and compress further if you still wait. With bf16, which is the smallest m that leaves 2 seconds of waiting or fewer?

# %%
smallest_m = lab.guess("the smallest m that leaves 2 seconds", between=(1, 100))

# %%
enough = (m for m in range(1, 100) if seconds(m, 1 / 2)["waiting"] <= 2)
smallest_m.score(next(enough))

# %% [markdown]
# For each 64 sequences (23.6 + 23.6)/m seconds are left. That batch has 3.1 million tokens, fewer than LLaMA's. Then 64 sequences take 5.2 s instead of 74, and the cards still wait 38 % of the time.
#
# *Here ends what most people need. The rest is about several cards in each machine, and optional.*

# %% [markdown] sections="19.1.3, 10.4.3"
# ## The order of a ring
#
# Now another cluster: two machines (*islands* in the picture) of three cards. Links inside are fast, and **one** cable between them is shared by all messages in one direction. This ring goes in order:

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
# In the second ring three messages in each direction (green, pink) share the wire. Can the traffic be less than in both? A **hierarchical** all-reduce goes in two levels: reduce-scatter inside each machine, all-reduce across with what is left, all-gather inside. All three on real ranks:

# %%
levels = straight.but(algorithm="hierarchical", island_size=3)
calls = {"0 1 2 3 4 5": straight, "0 3 1 4 2 5": zigzag, "in two levels": levels}
took = {name: call.compare().readings for name, call in calls.items()}
title = "All-reduce of 0.6 MB over two machines"
lab.bars(took, unit="us", title=title, badge=where)

# %% [markdown]
# By the bytes, yes: in the ring 1 MB crosses the cable in each direction, in two levels 0.6 MB, because each machine first adds up its own.
#
# <details><summary>Two jobs that share a cable: let them take turns</summary>
#
# Each of two jobs computes for 30 ms and then sends for 20 ms, if it has the link to itself. Started together, both always send at the same time, at half the speed. If the second one starts 25 ms later, they never meet, and both run at full speed. Simulated: `from labkit.communication import jobs`, then `jobs.shared_link([0, 0])` and `jobs.shared_link([0, 25])`; a row stands for a job. Schedulers in research shift jobs so (CASSINI, below).
#
# </details>
#
# <details><summary>NCCL: the order, and its settings</summary>
#
# [NCCL](GLOSSARY.md#nccl), which carries the messages on GPUs, sees which ranks share a machine and chains them, so it avoids the zigzag. But it takes the machines themselves in the order of the ranks (NVIDIA/nccl, issue 1340): number those rack by rack.
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

# %% [markdown]
# ## Summary
#
# - Overlap hides all buckets but the last, if the link keeps up.
# - Accumulation is a larger batch, with fewer updates.
# - Error feedback makes a biased compression converge (Stich et al. 2018); stochastic rounding has no bias.
# - Compression pays up to a speed of the link. We ran bf16, and 8 bits and top-1 % by gathering; the steps of the bill are counted.
#
# **Words:** [exposed communication](GLOSSARY.md#exposed-communication), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [communication hook](GLOSSARY.md#communication-hook), [payload](GLOSSARY.md#payload), [straggler](GLOSSARY.md#straggler).
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
# The textbook puts `no_sync()` around all microbatches and all-reduces every gradient inside: `counted(at_end=2)`, the first line of the two. (Its code in 10.4.3 forgets to divide by the number of ranks as well.) The all-reduce is asynchronous too, so it would still be on its way while the next backward adds to the same tensor.
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
