# ---
# jupyter:
#   labkit:
#     sections: ["8.9.2", "10.4.3", "10.7.3", "19.1.3", "19.2.2b", "19.8.2", "S10"]
#     needs: ["chapters 02, 03 and 06"]
#     minutes: 120
# ---

# %% [markdown]
# # Communication: hide it, and send less
#
# *An hour with two exercises; another hour for all of the optional end. You need chapters 02, 03 and 06. No GPU is needed.*
#
# Our 7 B model trains on eight A100s in eight machines, joined by an Ethernet of 10 Gbit/s. A step of 64 sequences computes for three seconds. Then the cards exchange 27 GB of gradients and 13.5 GB of parameters, and by our planner's count that takes 71 seconds.
#
# There are four ways out: hide the messages under the computing, send them less often, send fewer bytes, or use a faster network. What does each leave of the 71 seconds?
#
# **When you are done** you can say what a backward hides, accumulate gradients right, send them in half the bytes, and choose among the four ways.

# %%
import torch
import torch.distributed as dist

import labkit as lab
from labkit import collectives, data_parallel, planner
from labkit.communication import check, compressed_run
from labkit.pictures import scene

lab.begin("en")
small = planner.Plan(
    model="LLaMA 7B", gpus=8, per_node=1, nic_gb_per_s=1.25, zero=1, batch=64
)

# %%
scale = {"span_us": 84e6, "messages": True}
lab.show(scene.timeline(small.predict(), title="A step of 64 sequences", **scale))

# %% [markdown] sections="19.8.2"
# ## The bill
#
# That is one of the eight cards, to scale. The thin stripes at the left are its computing. Then come the gradients (marked e) and the parameters (g), and the card waits for messages, 96 % of 74 seconds. A single card, if the model fitted, would compute these 64 sequences in 26. The run uses ZeRO 1 (chapter 06): the ranks [reduce-scatter](GLOSSARY.md#reduce-scatter) the gradients, here in fp32, each updates its eighth of the parameters, and then they all-gather these in bf16.
#
# - **Computing:** each card has 8 sequences of 2,048 tokens. It takes them one at a time, as 8 microbatches, and exchanges once at the end.
# - **The cable:** 10 Gbit/s are 1.25 GB/s. The planner reckons with two fifths of it, 0.5 GB/s, a share fitted to InfiniBand, so a guess for our Ethernet. At the full rate the 71 s are 28.
# - **Gradients:** a rank sends 7/8 of the 27 GB at 0.5 GB/s, which takes 47 seconds. The parameters are half as many bytes.
#
# <details><summary>What the count assumes</summary>
#
# The cards reach two thirds of an A100's peak, by constants fitted to published runs (`small.trust()`). For one sequence at a time that may be optimistic.
#
# </details>

# %%
bill = small.time()
gradients_s = bill.data["reduce_scatter"] / 1e6
parameters_s = bill.data["all_gather"] / 1e6
messages_s = gradients_s + parameters_s
computing_s = bill.step_us / 1e6 - messages_s
seconds = {"computing": computing_s, "gradients": gradients_s}
lab.table([seconds | {"parameters": parameters_s}], title="A step, in seconds")

# %% [markdown] sections="8.9.2, 10.4.3, 19.1.3"
# ## Hide the messages
#
# Must the cards wait for their messages? We try it on a small step, six layers on three ranks: first the prediction, and further down a run of real DDP, whose computing and messages are [paced](GLOSSARY.md#paced). Each layer takes 10 ms for its forward and 20 ms for its backward. Its gradients, 1 MiB (1.05 MB), are a [bucket](GLOSSARY.md#bucket) of their own, and the link carries 80 MB/s.

# %%
link = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.08)
step = data_parallel.Step(
    layers=6, layer_mb=1, bucket_mb=1, ranks=3, link=link, overlap=False
)
step.predict()

# %% [markdown] sections="8.9.2, 10.4.3, 19.1.3"
# Each row is a rank: its forward, its backward, and in a thin strip its messages. They all come after the backward. But a backward makes the last layer's gradients first.
#
# So with overlap DDP sends each bucket as soon as it is complete. What lies under computing of the same rank is [hidden](GLOSSARY.md#overlap-to-hide-communication). The rest is [exposed](GLOSSARY.md#exposed-communication), and only the exposed part costs time. By chapter 02 a ring of three ranks takes 4/3 × 1.05 MB / 80 MB/s + 4 × 0.5 ms for a bucket, 19.5 ms. How many milliseconds is a step with overlap?

# %%
with_overlap = lab.guess("a step of six layers with overlap", unit="ms")

# %%
hidden = step.but(overlap=True).compare()
with_overlap.score(hidden.readings["predicted"] / 1000)

# %%
hidden

# %% [markdown]
# The prediction is 60 ms of forward, 120 ms of backward, and 19.5 ms for the last bucket, the only one that sticks out. The line under the picture says what made the measured step longer: late messages, boxes that [overran](GLOSSARY.md#overran), gaps. What does overlap save? Here is the step without it, too:

# %%
late = step.compare()
steps = {"without overlap": late.readings, "with overlap": hidden.readings}
where = "predicted / measured, paced links"
lab.bars(steps, unit="us", title="A step of six layers", badge=where)

# %% [markdown] sections="19.1.3"
# By the prediction overlap saves 97 ms, the time of five buckets. Measured, it is near that on a quiet machine. On a busy one it can be more, because without overlap every late message costs time.
#
# ### A link that can't keep up
#
# On our bill gradients take 47 s, and all backwards about two. So that our small step resembles it, we slow the link to 30 MB/s, and the buckets queue up. Which bucket size makes the shortest step?

# %%
narrow = collectives.Link(alpha_us=500, bandwidth_gb_per_s=0.03)
step.but(overlap=True, link=narrow).board()

# %% [markdown]
# With these six layers, the smallest: with a layer to a bucket a step takes 372 ms, with two layers 386. Overlap can hide only the backward that is left when the first bucket is full, at most five layers, 100 ms, and a larger bucket fills later. Choose 24 small layers, and a size in the middle wins, because each bucket also costs 2 ms of latency.
#
# ### And on our bill?
#
# Each kind of message can hide under one pass only:
#
# | messages | can hide under | why there |
# | --- | --- | --- |
# | gradients | the last microbatch's backward | only there their sum gets complete |
# | parameters | the next step's first forward | it needs them layer by layer |
#
# A microbatch computes for 3.2 / 8 = 0.4 s, so at best 74 seconds become 73.6. With all 8 sequences in one microbatch, all computing could hide messages. Then **a step takes the longer of forward and parameters, plus the longer of backward and gradients**. On our cable messages are longer both times, so it takes 71 seconds. Less must go over the cable.

# %% [markdown] sections="8.9.2, 10.4.3"
# ## Send them less often
#
# Our run already exchanges once for 8 microbatches. By [gradient accumulation](GLOSSARY.md#gradient-accumulation) it can exchange once for m batches of 64 sequences (`no_sync()` in chapter 03). Here m = 4:

# %%
four_batches = scene.timeline(small.but(batch=256).predict(), title="m = 4", **scale)
lab.show(four_batches)

# %% [markdown] sections="8.9.2, 10.4.3"
# Four batches take 84 s instead of 4 × 74. Each pays a quarter of the messages, 18 of the 71 seconds. But the four make one update instead of four.

# %% [markdown] sections="8.9.2, 19.8.2"
# ### Exercise 1. Accumulate right
#
# How do you get the right gradients with **one** all-reduce? `ddp` is a `DistributedDataParallel`, and `microbatches` is a list of pairs (inputs, targets). The pairs may differ in size, but all ranks hold the same number of samples, and `ddp` holds no gradients yet. Leave in `ddp` the gradients of the mean squared error of the **whole** batch, over all microbatches and ranks.
#
# <details><summary>An attempt that fails</summary>
#
# Let each `loss` be rightly weighted. Then this is still wrong:
#
# ```python
# with ddp.no_sync():
#     for loss in losses:
#         loss.backward()
#         for weight in ddp.parameters():
#             dist.all_reduce(weight.grad)
# for weight in ddp.parameters():
#     weight.grad /= dist.get_world_size()
# ```
#
# What was summed once is summed again in each later round. With two ranks the first of four microbatches counts 16 / 2 = 8 times. Divided after each all-reduce it is right, but it sends four times as much as necessary.
#
# </details>


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
# ### What does an exchange buy?
#
# Does an update teach more by four batches than by one? `compressed_run.launch` trains a small transformer (30,000 parameters, SGD at a rate of 0.3) on two ranks. Each run sees 64 batches, m for each exchange. At m = 1, this is its loss after 16 exchanges:

# %%
plain = compressed_run.launch()
by_exchange = {"m = 1": plain[0]["loss_by_exchange"]}
round(by_exchange["m = 1"][16], 2)

# %% [markdown]
# A run at m = 4 has seen all 64 batches by then. What is its loss?

# %%
of_four = lab.guess("the loss of m = 4 after 16 exchanges", between=(3, 5))

# %%
fewer = compressed_run.launch(num_steps=16, accumulate=4)
by_exchange["m = 4"] = fewer[0]["loss_by_exchange"]
of_four.score(by_exchange["m = 4"][16])

# %%
loss = "loss of held-out text"
lab.curves(measured=by_exchange, x="exchanges", y=loss, title="For each exchange")

# %% [markdown]
# After 8 and 16 exchanges both stand at nearly the same loss (one run each). But for each exchange m = 4 computes four times as much. So here they are for equal computing, by the batches seen:

# %%
of_four_seen = {4 * number: each for number, each in by_exchange["m = 4"].items()}
by_batch = by_exchange | {"m = 4": of_four_seen}
lab.curves(measured=by_batch, x="batches", y=loss, joined=True, title="For each batch")

# %% [markdown]
# Now m = 4 is behind: after all 64 batches it stands at 3.9, and m = 1 at 3.3. A larger rate does not close the gap: at 1.2 we got 3.5 with m = 4, but 2.8 with m = 1.
#
# Accumulation averages the noise out of a gradient, so it helps where noise holds training back (chapter 12). This early in training our toy's batches seem to agree, so there is little noise to average out. For a 7 B model our batch is small, though: LLaMA 7B was trained with 4 million tokens in a step, thirty times ours.

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Send fewer bytes
#
# Two thirds of our 71 seconds are gradients in fp32. If they travel in bf16, which is faster with our 64 sequences, the eight cards or a single one?

# %%
choices = ["eight cards", "one card"]
in_bf16 = lab.guess("the faster with gradients in bf16", choices=choices)

# %%
takes_s = {"one card": 8 * computing_s}
takes_s["eight cards"] = computing_s + gradients_s / 2 + parameters_s
in_bf16.score(min(takes_s, key=takes_s.get))

# %% [markdown] sections="19.2.2b, 10.4.3"
# The single card, with its 26 s. Gradients and parameters now take 23.6 s each, because both travel in two bytes, so 47 of the 71 seconds are left.
#
# ### Does training bear the rounding?
#
# With ZeRO 1, as in our run, bf16 is a switch (Megatron-LM's `--grad-reduce-in-bf16`). We try it in plain DDP, where a [communication hook](GLOSSARY.md#communication-hook) can replace the all-reduce: `ddp.register_comm_hook(state, hook)`. It gets a bucket of gradients, and returns a Future, a promise of their mean over all ranks. Ours halves the bytes (the library has it as `bf16_compress_hook`):


# %%
def bf16(state, bucket):
    half = bucket.buffer().bfloat16() / dist.get_world_size()
    work = dist.all_reduce(half, async_op=True)
    # when the sum is there, make it float32; DDP waits at the end of backward()
    return work.get_future().then(lambda done: done.value()[0].float())


# %% [markdown]
# *Handed in* is what a rank gives to collectives in a step (the [payload](GLOSSARY.md#payload)). *On the wire* is what the system counted on its sockets, headers included. The last row joins two ways: DDP adds up four batches in fp32, and calls the hook only in the last backward.

# %%
runs = {"all-reduce": plain, "bf16": compressed_run.launch(bf16), "m = 4": fewer}
runs["bf16, m = 4"] = compressed_run.launch(bf16, num_steps=16, accumulate=4)
compressed_run.report(runs)

# %% [markdown]
# The bytes are halved, and the losses end where they do without bf16 (one run each). A step of m = 4 serves four batches, so in the last row a batch hands in an eighth. But each addition in a ring rounds, once with two ranks and seven times with eight. So try it on your own model.

# %% [markdown] sections="10.4.3"
# ### Exercise 2. Up to which link?
#
# Compressing takes time. **A hidden message costs nothing, so shrinking it saves nothing.** So compression pays only if the link is slower than some speed. Find this speed, in GB/s: there a step takes as long with compression as without. You are given
#
# - `times_ms`, what compressing took, measured often. The first few are slow, and now and then one is disturbed, so take the typical time. It is never hidden: all of it costs.
# - `before_mb` and `after_mb`, the message without and with compression.
# - `hidden_ms`, the computing that it can hide under. Of its time on the link only what exceeds this costs.
#
# By hand: 10 MB become 5, in 5 ms, with 8 ms to hide under. At 0.77 GB/s, or MB per ms, both cost the same:
#
# | | on the link | exposed | compressing |
# | --- | --- | --- | --- |
# | 10 MB | 13 ms | 13 - 8 = 5 ms | 0 |
# | 5 MB | 6.5 ms | 0 | 5 ms |
#
# If nothing could be hidden, the answer would be 1 GB/s.


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
# The fourth way is a faster network: at 200 Gbit/s the 71 seconds are 3.5. We assume that it reaches two fifths of its rate, too.
#
# One function counts the seconds for each 64 sequences. At m = 4 it should give a quarter of the 84 s above:


# %%
def step_s(m=1, gradients=1.0, speed=1.0):
    """For each 64 sequences, if m such batches share one exchange"""
    messages = (gradients * gradients_s + parameters_s) / speed / m
    return {"computing": computing_s, "waiting": messages}


round(sum(step_s(m=4).values()), 1)

# %% [markdown] sections="10.7.3, 19.8.2"
# *Hidden at best* means a card's 8 sequences in one microbatch. That fits only with recomputation (chapter 05), which computes each forward twice. A third more work would take 4.3 s instead of 3.2, but a larger microbatch runs a little faster:

# %%
whole = small.but(mbs=8, recompute="full")  # a card's 8 sequences in one microbatch
whole_s = whole.time().step_us / 1e6 - messages_s
round(whole_s, 2)

# %%
one_card = {"computing": 8 * computing_s}
each_way = {
    "one card": one_card,
    "as it is": step_s(),
    "hidden at best": {"computing": whole_s, "waiting": messages_s - whole_s},
    "m = 4": step_s(m=4),
    "gradients in bf16": step_s(gradients=1 / 2),
    "200 Gbit/s": step_s(speed=20),
}
forecast = {"unit": "s", "stacked": True, "badge": "predicted"}
lab.bars(each_way, title="Time for each 64 sequences, each way", **forecast)

# %% [markdown] sections="10.7.3, 19.8.2"
# Only two ways beat the single card: the fast network, and m = 4 **if** training uses the larger batch.
#
# ### Two ways at once
#
# On our cable, with gradients in bf16, we want to wait 2 seconds at most for each 64 sequences (of 2,048 tokens). So we let m such batches share an exchange, as one large batch. How many million tokens does it have?

# %%
large_batch = lab.guess("tokens in the large batch, in millions", between=(0.1, 100))

# %%
smallest_m = next(m for m in range(1, 100) if step_s(m, 1 / 2)["waiting"] <= 2)
large_batch.score(smallest_m * 64 * 2048 / 1e6)

# %% [markdown] sections="10.7.3, 19.8.2"
# (23.6 + 23.6)/m seconds of waiting are left, so m is 24: a batch of 3.1 million tokens, while LLaMA had 4 million. Here are that m, a small one, and the cable at its full rate:

# %%
our_cable = {
    "one card": one_card,
    "bf16, m = 3": step_s(3, 1 / 2),
    "bf16, m = 24": step_s(24, 1 / 2),
    "bf16, full 10 Gbit/s": step_s(1, 1 / 2, speed=5 / 2),
}
lab.bars(our_cable, title="Two ways at once, our cable", **forecast)

# %% [markdown] sections="10.7.3, 19.8.2"
# On our cable bf16 and m = 24 leave 2 of the 71 seconds. Then 64 sequences take 5.2 s, and eight cards are worth five. But our toy got nothing from a fourfold batch, so try on your model how large an m it bears. From m = 3 on eight cards beat one.
#
# And the fast network? There gradients fit under the backward. The parameters take 23.6 / 20 = 1.2 s, and the forward, with recomputation a quarter of the 4.0 s, only 1.0. So, hidden at best, 0.2 s of them stick out:

# %%
fast = {
    "200 Gbit/s": step_s(speed=20),
    "hidden at best": {
        "computing": whole_s,
        "waiting": parameters_s / 20 - whole_s / 4,
    },
    "m = 4": step_s(4, speed=20),
    "bf16, m = 4": step_s(4, 1 / 2, speed=20),
}
lab.bars(fast, title="Two ways at once, at 200 Gbit/s", **forecast)

# %% [markdown] sections="10.7.3, 19.8.2, 19.1.3, 10.4.3"
# It needs no larger batch: at m = 1 it takes 6.7 s, and hidden at best 4.2. So if we can have it, we take it. On our cable we send in bf16, and accumulate as much as training bears. All this is predicted.
#
# ### In which order?
#
# 1. **Measure the cable.** NVIDIA's `all_reduce_perf` prints its speed in GB/s as *busbw*. Our bill has 0.5, so put yours in: `step_s(speed=busbw / 0.5)`.
# 2. **Keep overlap on**, which is DDP's default.
# 3. **Send gradients in bf16**, if your loss stays the same.
# 4. **Accumulate, if a larger batch still helps training.** Sum in fp32, and cast once, as `no_sync()` with our hook does.
# 5. **Get a faster network, or compress further**, if the cards still wait.
#
# <details><summary>The switches, and two that don't go together</summary>
#
# - **Overlap:** Megatron-LM's `--overlap-grad-reduce` and `--overlap-param-gather`. Messages and matmuls share a GPU's processors and its memory bandwidth, which our count leaves out.
# - **bf16:** FSDP2 does it already if `MixedPrecisionPolicy` names `param_dtype=torch.bfloat16` and no `reduce_dtype`; ask for `reduce_dtype=torch.float32` if you don't want it.
# - **bf16 with accumulation:** by its switch Megatron-LM also adds up the microbatches in bf16. At m = 24 these are 8 × 24, 192 terms, and one below about 1/256 of the sum is lost. So don't combine the two there unchecked.
# - **Accumulation under FSDP's full sharding** gathers the parameters for each microbatch all the same.
#
# </details>
#
# <details><summary>What the charts leave out</summary>
#
# - **Casting** to bf16 and back takes about 0.04 s (an estimate: some 80 GB read and written at 2 TB/s). By exercise 2 bf16 then pays up to 7/8 × 13.5 / 0.04, some 300 GB/s.
# - **One microbatch of 8 sequences** takes 63 GB with recomputation, instead of 128.
# - **[Local SGD](GLOSSARY.md#local-sgd)** (chapter 03) does not fit: each card keeps all optimizer states, 81 GB instead of 10, so 63 + 71, 134 GB.
#
# </details>

# %% [markdown]
# ## Summary
#
# - Only exposed messages cost time. At best a step takes the longer of forward and parameters, plus the longer of backward and gradients: our 74 seconds become 71.
# - Accumulation divides the messages by m. It pays if training uses the larger batch.
# - Gradients in bf16 leave 47 of the 71 seconds, because the parameters remain. With m = 24 they leave 2. A network twenty times as fast leaves 3.5.
# - If nothing is hidden, compression pays where the link is slower than (bytes saved) / (time to compress).
#
# **Words:** [exposed communication](GLOSSARY.md#exposed-communication), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [communication hook](GLOSSARY.md#communication-hook), [payload](GLOSSARY.md#payload).
#
# <details><summary>Further reading</summary>
#
# - LLaMA, and its batch of 4 million tokens: Touvron et al. 2023, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
# - DDP, buckets and hooks: Li et al. 2020, [arXiv 2006.15704](https://arxiv.org/abs/2006.15704); [DDP communication hooks](https://pytorch.org/docs/stable/ddp_comm_hooks.html)
# - Error feedback: Stich et al. 2018, [arXiv 1809.07599](https://arxiv.org/abs/1809.07599)
# - Stochastic rounding of gradients (QSGD): Alistarh et al. 2016, [arXiv 1610.02132](https://arxiv.org/abs/1610.02132). In two steps, and with Adam: 1-bit Adam, Tang et al. 2021, [arXiv 2102.02888](https://arxiv.org/abs/2102.02888)
# - The share of the cable: Narayanan et al. 2021, [arXiv 2104.04473](https://arxiv.org/abs/2104.04473), and Korthikanti et al. 2022, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198). Gradients in fp32: [Megatron-LM's arguments](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py)
# - ZeRO++: Wang et al. 2023, [arXiv 2306.10209](https://arxiv.org/abs/2306.10209). Local SGD for language models (DiLoCo): Douillard et al. 2023, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105)
# - PowerSGD: Vogels et al. 2019, [arXiv 1905.13727](https://arxiv.org/abs/1905.13727). When compression pays: Agarwal et al. 2021, [arXiv 2103.00543](https://arxiv.org/abs/2103.00543)
# - Jobs that take turns on a link: CASSINI, Rajasekaran et al. 2023, [arXiv 2308.00852](https://arxiv.org/abs/2308.00852)
# - The order of machines: [NVIDIA/nccl, issue 1340](https://github.com/NVIDIA/nccl/issues/1340). NVIDIA, NCCL user guide: [environment variables](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), [logging](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html)
#
# </details>
#
# **Next:** [large batches](12_large_batches.ipynb), and how large a batch the training bears.
#
# ---
#
# *Here ends what most people need. The rest is about compressing further and about shared cables, and optional.*

# %% [markdown] sections="19.2.2b, 10.4.3"
# ## Few bits, and how to round
#
# Our bf16 hook sent 16 bits for each value, and our small training did not mind. How few are enough? Quantisation maps values to whole numbers: with 8 bits to -127 up to 127, with three levels to -1, 0 and 1. Take a value of 0.3 with three levels. Rounding to the **nearest** sends 0. **Stochastic** rounding goes up with a probability of 0.3, so it sends 0.3 in the mean. Let four entries come a hundred times running, and add up what is sent:


# %%
def rounded(gradient, most, stochastic=True):
    """Whole numbers from -most to most, and the size of a level"""
    scale = gradient.abs().max().clamp(min=1e-30) / most
    up_from = torch.rand_like(gradient) if stochastic else 0.5
    numbers = torch.floor(gradient / scale + up_from)
    return numbers.clamp(-most, most).to(torch.int8), scale


# %%
entries = torch.tensor([1.0, 0.6, 0.3, 0.1]).expand(100, 4)  # the same in each step


def arrives(stochastic):
    """The sum of what a hundred steps send, with three levels"""
    numbers, scale = rounded(entries, 1, stochastic)
    return (numbers * scale).sum(0).tolist()


# %%
names = ("gradients", "to the nearest", "stochastically")
sums = zip(entries.sum(0).tolist(), arrives(False), arrives(True))
hundred_steps = {}
for entry, each in zip(("1", "0.6", "0.3", "0.1"), sums):
    hundred_steps[entry] = dict(zip(names, each))
lab.bars(hundred_steps, title="Four entries, a hundred steps", badge="computed")

# %% [markdown]
# Rounding to the nearest sends 0.6 as 1 each time, and 0.3 and 0.1 never. Stochastic rounding is right in the mean; a hundred throws still scatter.
#
# An all-reduce adds in the type that it sends, and 100 + 100 does not fit into a signed byte (127 at most). So our hook gathers the bytes and scales of all ranks, and adds them up as floats. The all-reduce ended at a loss of 3.3. Where do three levels end, rounded stochastically?


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
# Rounded to the nearest, small values are never sent, so training falls behind. Stochastic rounding brings noise instead. Its mean is zero, so over many small steps much of it cancels.
#
# ### More ranks
#
# A gather gives everything to everybody, so it grows with the ranks. Here are four, after 8 steps:

# %%
four = {"ranks": 4, "num_steps": 8}
on_four = {
    "all-reduce, 4 ranks": compressed_run.launch(**four),
    "8 bits, 4 ranks": compressed_run.launch(quantised, {"most": 127}, **four),
}
compressed_run.report(on_four)

# %% [markdown] sections="19.2.2b, 10.4.3"
# On the wire the all-reduce sends half as much again as with two ranks, and the gather three times as much. With eight ranks the gather would send as much as floats in a ring.
#
# <details><summary>Counted for more ranks, and bytes only to those who add up</summary>
#
# | bytes that a rank sends for each value | 2 ranks | 4 ranks | 8 ranks | 64 ranks |
# | --- | --- | --- | --- | --- |
# | gathered bytes: N - 1 | 1 | 3 | 7 | 63 |
# | a ring of floats: 8(N - 1)/N | 4 | 6 | 7 | 7.88 |
# | bytes in two steps: 2(N - 1)/N | 1 | 1.5 | 1.75 | 1.97 |
#
# The two steps are an [all-to-all](GLOSSARY.md#all-to-all), which gives each rank only its slice to add up, and a gather of the sums, rounded again. ZeRO needs only the first step for its gradients: a quarter of a reduce-scatter of floats.
#
# </details>

# %% [markdown] sections="19.2.2b, 10.4.3, S10"
# ## Top-k
#
# If most entries of a gradient are small, the largest 1 % may be enough. Zeros in place of the rest would be sent, too. So each rank gathers the chosen values and their places, and adds up what it got. What share of the bytes that a rank hands in is saved?

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
# A place costs four bytes, like a value. This gather grows with the ranks, too: with two ranks it sends 2 % of an all-reduce, with fifty half. Our gathering hooks wait inside the backward, so they hide nothing; the bf16 hook does not wait.
#
# <details><summary>Where the ratio comes from</summary>
#
# A rank sends its k values and places to each of the N - 1 others, 8k bytes each time. A ring all-reduce of n values sends $2(N-1)/N$ times 4n. The ratio is $Nk/n$.
#
# </details>

# %% [markdown] sections="19.2.2b"
# ## Lose nothing
#
# An entry whose gradient stays small is never sent by top-k, however long it points the same way. The cure is **error feedback**: keep what was not sent, and add it to the next gradient.
#
# By hand: the gradient is 5, 2, 2, 2 in every step, and one value may be sent (k = 1). In which step is a small entry sent for the first time?

# %%
first_small = lab.guess("the step that sends a small entry", between=(1, 20))

# %%
steady = torch.tensor([5.0, 2, 2, 2])


def top_1(num_steps, feedback):
    """The sum of what so many steps send, one value in each"""
    sent, memory = torch.zeros(4), torch.zeros(4)
    for _ in range(num_steps):
        memory = memory * feedback + steady
        place = memory.abs().argmax()
        sent[place] += memory[place]
        memory[place] = 0
    return sent.tolist()


# %%
first_small.score(next(n for n in range(1, 20) if any(top_1(n, feedback=True)[1:])))

# %%
names = ("gradients", "top-1", "top-1, feedback")
sums = zip((12 * steady).tolist(), top_1(12, False), top_1(12, True))
twelve_steps = {}
for number, each in enumerate(sums):
    twelve_steps[str(number)] = dict(zip(names, each))
lab.bars(twelve_steps, title="Four entries, twelve steps", badge="computed")

# %% [markdown] sections="19.2.2b"
# Without memory only the first entry arrives. With it all do; what is still missing is in the memory.
#
# <details><summary>Step by step</summary>
#
# | step | gradient + memory | sent | kept |
# | --- | --- | --- | --- |
# | 1 | 5 2 2 2 | 5 | 0 2 2 2 |
# | 2 | 5 4 4 4 | 5 | 0 4 4 4 |
# | 3 | 5 6 6 6 | 6, the second entry | 5 0 6 6 |
# | 4 | 10 2 8 8 | 10, twice 5 | 0 2 8 8 |
#
# </details>
#
# ### Exercise 3. Error feedback
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
# ## Loss and bytes
#
# `with_feedback` makes a hook of your function, or of the package's own until you have written it. Which one would you take?

# %%
feedback = compressed_run.with_feedback(my_reduce)
runs["top-1 %, feedback"] = compressed_run.launch(feedback)
shown = ("all-reduce", "8 bits, stochastic", "top-1 %", "top-1 %, feedback")
lab.curves(
    measured={name: runs[name][0]["loss"] for name in shown},
    x="MB handed in by a rank",
    y="loss of held-out text",
    log_x=True,
    joined=True,
    title="Loss and bytes",
)

# %% [markdown]
# At two ranks we would take top-1 % with feedback. With each of eight seeds its loss ended 0.04 to 0.06 above that of the all-reduce.
#
# All runs here use plain SGD, and our 7 B model is counted with Adam. Error feedback does not carry over as it is. Adam divides by the root of averaged squares, so a sum sent late is not divided as its parts would have been. 1-bit Adam (Tang et al. 2021) first trains uncompressed, then keeps that divisor fixed.
#
# Feedback also needs a float for each entry, 27 GB on our 7 B model. By the planner a card already holds 63 GB of its 80 with one sequence at a time, so a hook does not fit. A loop of your own would: what was not sent stays in the fp32 gradient buffer (Megatron-LM's `main_grad`). We have not run that.
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
# On the machine this was written on it hands in 5.4 % of the bytes and ends at a loss of 3.37. But its hook takes several times as long: three small all-reduces, one after another, and matrices to multiply.
#
# </details>

# %% [markdown] sections="10.4.3"
# ## And is it faster?
#
# A compression is faster only if the link needs longer for the saved bytes than the processor needs to compress. So we time the compressing alone, on one thread. To that we add what a link between two ranks needs for what is left of 4 MB. First at 50 MB/s:

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
# Rounding and choosing now take longer than the link needs for all of the floats.
#
# If nothing is hidden, up to which speed does each pay? By the formula of exercise 2 and the times of the two charts, in GB/s:

# %%
pays_up_to = {}
for name in ("bf16", "8 bits", "top-1 %"):
    saved_gb = (1 - of_bytes[name]) * gradient.nbytes / 1e9
    pays_up_to[name] = saved_gb / took_s[name]
lab.table([pays_up_to])

# %% [markdown] sections="10.4.3"
# These limits are of one CPU thread. Where this was written, neither 8 bits nor top-1 % would pay at the bill's 0.5 GB/s. An A100 rounds our 27 GB in about 0.1 s (an estimate: a few passes at 2 TB/s). There 8 bits pay up to 0.75 × 7/8 × 27 / 0.1, some 180 GB/s.

# %% [markdown] sections="10.7.3, 19.8.2"
# ## What compression leaves of the bill
#
# Now the 71 seconds with 8 bits. Instead of the reduce-scatter of ZeRO 1, bytes go straight to the rank that adds them up, if the framework offers it. How many of the 71 seconds are left?

# %%
in_bytes = lab.guess("messages with gradients in 8 bits", unit="s")

# %%
in_bytes.score(gradients_s / 4 + parameters_s)

# %% [markdown]
# That is 47.2 / 4 + 23.6, because compressed gradients don't touch the parameters. Here it is beside bf16 and the largest 1 % of the gradients, of which values and places are sent to their owners:

# %%
further = {
    "gradients in bf16": step_s(gradients=1 / 2),
    "gradients in 8 bits": step_s(gradients=1 / 4),
    "top-1 %, choosing not counted": step_s(gradients=0.02),
}
lab.bars(further, title="Time for each 64 sequences, compressed further", **forecast)

# %% [markdown] sections="10.7.3, 19.8.2"
# With 8 bits the cards still wait 92 % of the time. Top-1 % leaves 25 s, if it trained with Adam, which we have not shown. For choosing 1 % on an A100 we have no estimate, so its bar is too short.
#
# What is left is nearly all parameters. ZeRO++ gathers these in fewer bits, too: with 8 for both, 47 / 4 + 24 / 2, 24 seconds of messages would be left.

# %% [markdown] sections="10.7.3, 19.8.2, 19.1.3, 10.4.3"
# ## Who shares the cable?
#
# So far each machine had one card, and the cable to itself. Two notes for the other cases.
#
# <details><summary>Two jobs that share a cable: let them take turns</summary>
#
# Each of two jobs computes for 30 ms and then sends for 20 ms, if it has the link to itself. Started together, both always send at the same time, at half the speed. If the second one starts 25 ms later, they never meet, and both run at full speed. Simulated: `from labkit.communication import jobs`, then `jobs.shared_link([0, 0])` and `jobs.shared_link([0, 25])`.
#
# </details>
#
# <details><summary>Several cards in each machine: the order of a ring, and what NCCL does</summary>
#
# On the way between two machines, a ring can go in order (0 1 2 3 4 5, three cards in each) or to and fro (0 3 1 4 2 5). To and fro every hop crosses the cable between them, three in each direction instead of one, and the all-reduce takes three times as long. (Predicted, for a cable that all messages in one direction share: `collectives.islands(6, 3, inside=link, between=narrow, shared=True)` is the network of a `collectives.Call`, and `order` is its ring.)
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
# The textbook puts `no_sync()` around all microbatches and all-reduces every gradient inside: the failing attempt of exercise 1. (Its code in 10.4.3 forgets to divide by the number of ranks as well.) The all-reduce is asynchronous too, so it would still be on its way while the next backward adds to the same tensor.
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

# %%
check.status()
