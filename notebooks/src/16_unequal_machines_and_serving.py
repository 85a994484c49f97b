# ---
# jupyter:
#   labkit:
#     sections: ["19.5.1", "19.5.2", "19.6.6"]
#     needs: ["chapters 03, 08 and 09"]
#     minutes: 75
# ---

# %% [markdown]
# # Unequal machines, and serving
#
# *About an hour and a quarter. You need chapters 03, 08 and 09. No GPU is needed.*
#
# Our model of 7 billion parameters trains on 128 A100s, and 128 H100s come free. On paper an H100 computes three times as fast, so all of them together could do four times the work. We start the old script on 256 cards, and it goes only twice as fast: each H100 is done after a third of the step, and then waits for the A100s.
#
# Later the model is trained, and people ask it things. Now the cards wait again, for something else: while an A100 writes an answer, token by token, it uses less than a hundredth of what it can compute. Where does the rest go?

# %%
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import labkit as lab
from labkit import heterogeneous, planner, serving, timeline, widgets
from labkit.heterogeneous import check
from labkit.serving import check as serving_check

lab.begin("en", deadline_s=60)
widgets.unequal_machines()

# %% [markdown]
# Two ranks share a batch equally, though one is three times as fast. Grey, hatched boxes are waiting. Now *deal* the batch by speed, then move the speeds: which rank decides how long the step takes?
#
# **When you are done** you can train on cards of unlike speed and get the same weights as one process, say what an answer waits for, and serve many requests at once.

# %% [markdown] sections="19.5.2"
# ## By hand: one batch, two speeds
#
# A small regression stands for the model. Both ranks have the batch of 64, and each takes its own samples. We haven't got two kinds of cards here, so we state how fast they are: rank 0 sleeps 3 ms for each sample, rank 1 only 1 ms. Everything else is real.

# %%
SPEEDS = (1, 3)


def batch():
    torch.manual_seed(0)  # every rank draws the same
    x = torch.randn(64, 8)
    return x, x.sum(dim=1)


def loss(w, x, y):
    return (x @ w - y).square().mean()


# %% [markdown]
# `shares[r]` is the weight of rank r's gradient in the sum. At the end each rank computes the gradient of the whole batch as well, to see how far the sum is off.


# %%
def step(samples, shares):
    me = dist.get_rank()
    x, y = batch()
    w = torch.zeros(8, requires_grad=True)
    first = sum(samples[:me])
    mine = slice(first, first + samples[me])
    loss(w, x[mine], y[mine]).backward()  # once unclocked: the first is slow
    w.grad = None
    dist.all_reduce(torch.zeros(8))
    dist.barrier()
    start = time.perf_counter()
    time.sleep(samples[me] * 3e-3 / SPEEDS[me])
    loss(w, x[mine], y[mine]).backward()
    message = shares[me] * w.grad
    dist.all_reduce(message)
    took_ms = 1e3 * (time.perf_counter() - start)
    (whole,) = torch.autograd.grad(loss(w, x, y), w)
    off = lab.difference(message, whole)
    return {"its samples": samples[me], "time_ms": took_ms, "off by": off}


# %%
lab.launch(step, (32, 32), (1 / 2, 1 / 2), ranks=2)

# %% [markdown]
# Both ranks need the time of the slow one, and the gradient is right. How long does the step take if rank 0 has 16 samples and rank 1 has 48?

# %%
faster = lab.guess("a step of 16 and 48 samples, in ms", between=(0, 150), unit="ms")

# %%
run = lab.launch(step, (16, 48), (1 / 2, 1 / 2), ranks=2)
lab.show(run)

# %%
faster.score(max(told["time_ms"] for told in run))

# %% [markdown]
# On paper 48 ms instead of 96, since now both are done at the same time; the gradient and the all-reduce take some more in either run. But look at the last column: the gradient is wrong! Each rank has the mean over its *own* samples, and we counted both means alike. So each of rank 0's 16 samples weighs three times as much as one of rank 1's 48. What should rank 0's mean count, if rank 1's counts the rest?

# %%
shares = {"1/4": 1 / 4, "1/3": 1 / 3, "1/2": 1 / 2, "3/4": 3 / 4}
counted = lab.guess("what rank 0's mean counts", choices=list(shares))


# %%
def off_by(shares):
    """How far the gradient is off, by what rank 0 counts."""
    found = {}
    for name, share in shares.items():
        found[name] = step((16, 48), (share, 1 - share))["off by"]
    return found


# %%
off = lab.launch(off_by, shares, ranks=2)[0]
lab.bars(off, title="How far the gradient is off, by what rank 0 counts")

# %%
counted.score(min(off, key=off.get))

# %% [markdown] sections="19.5.2"
# The right answer is its share of the samples: a rank with b of B samples counts b / B. Then every sample weighs the same, whoever computed it. Count what the loss averages over: for a language model b and B are tokens that are not padding ([chapter 03](03_data_parallel.ipynb)).
#
# ### With DDP
#
# By default DDP divides by the number of ranks N, however many samples each had. So multiply the loss by N b / B, and DDP's division leaves b / B:


# %%
def with_ddp(samples):
    me = dist.get_rank()
    x, y = batch()
    ddp = DistributedDataParallel(nn.Linear(8, 1, bias=False))
    w = ddp.module.weight
    first = sum(samples[:me])
    mine = slice(first, first + samples[me])
    scale = dist.get_world_size() * samples[me] / len(x)
    error = ddp(x[mine]).squeeze(1) - y[mine]
    (scale * error.square().mean()).backward()
    (whole,) = torch.autograd.grad(loss(w[0], x, y), w)
    return {"its samples": samples[me], "off by": lab.difference(w.grad, whole)}


# %%
lab.launch(with_ddp, (16, 48), ranks=2)

# %% [markdown]
# With DDP, too, the gradient is that of one process. (Sometimes ranks have unlike *numbers* of batches. Then train inside `with ddp.join():`, and a rank that has run out goes on with zeros, instead of leaving the others in an all-reduce until the timeout. DDP still divides by N then, unless you say `divide_by_initial_world_size=False`.)
#
# ### Who says how fast a rank is?
#
# Nobody does, as a rule. So measure: each rank times eight samples, and all tell one another.
#
# ```python
# start = time.perf_counter()  # on a GPU, before each: torch.cuda.synchronize()
# loss(w, x[:8], y[:8]).backward()
# speed = 8 / (time.perf_counter() - start)
# dist.all_gather_object(speeds, speed)
# ```
#
# Below, `split="probed"` does so three times and takes the shortest. The classifier of digits from chapter 12 trains at a stated [pace](GLOSSARY.md#paced), and its weights are held against one process:

# %%
probed = heterogeneous.Step(speeds=(1, 2, 4), batch=56, sample_ms=20.0, split="probed")
run = probed.run()
computing = timeline.busy_us(run.timeline())
lab.table(
    {
        "its samples": told["samples"],
        "computing_us": each,
        "weights off by": told["weight_difference"],
    }
    for told, each in zip(run, computing, strict=True)
)

# %% [markdown]
# All compute about equally long, though rank 2 has about four times the samples of rank 0. On a busy machine the probe can be wrong, and then the shares are too. But the weights stay those of one process, because the averaging uses the samples that each rank really had.
#
# ## Exercise 1. Deal by speed
#
# Now both halves together. Every rank has the whole batch; rank r passes `speeds[r]` rows a millisecond through `model`. Leave in `model` the gradient of `mse_loss(model(inputs), targets)` over the whole batch, with one collective, and let the step take at most 5 % longer than the best deal. A rank may get no row at all; it must still take part in the collective. Samples are whole: are rounded shares always best? Try speeds 1 and 10, and eight rows.


# %%
def my_deal(model, inputs, targets, speeds):
    """Leaves the gradient of the whole batch in the model."""
    ### BEGIN SOLUTION
    me = dist.get_rank()
    rows = [0] * len(speeds)
    for _ in range(len(inputs)):
        done = [(num + 1) / speed for num, speed in zip(rows, speeds, strict=True)]
        rows[done.index(min(done))] += 1
    mine = slice(sum(rows[:me]), sum(rows[: me + 1]))
    if rows[me]:
        error = (model(inputs[mine]) - targets[mine]).square().sum()
        (error / targets.numel()).backward()
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    message = torch.cat([weight.grad.flatten() for weight in weights])
    sizes = [weight.numel() for weight in weights]
    dist.all_reduce(message)
    for weight, part in zip(weights, message.split(sizes), strict=True):
        weight.grad = part.view_as(weight)
    ### END SOLUTION


# %%
check.deal_by_speed(my_deal)

# %%
check.hint("deal_by_speed")

# %% [markdown] sections="19.5.1"
# ## Don't wait at all?
#
# Chapter 03 had another cure for a slow rank. A [parameter server](GLOSSARY.md#parameter-server) holds the weights, often in a CPU's memory, and workers send it gradients. Asynchronously, nobody waits, but gradients are late. We train the digits for one second with three workers, one of them four times slower: synchronously with equal shares, asynchronously, and synchronously with shares by speed. With equal shares, how many times as many gradients are used if nobody waits?

# %%
slow = {"speeds": (4, 4, 1), "seconds": 1.0, "rate": 0.3}
ways = {
    "equal, all wait": heterogeneous.Training(**slow),
    "equal, nobody waits": heterogeneous.Training(way="asynchronous", **slow),
    "by speed, all wait": heterogeneous.Training(split="by speed", **slow),
}
more = lab.guess("times as many gradients, if nobody waits", between=(1, 5))

# %%
trained = {name: training.run()[0] for name, training in ways.items()}
used = {name: told["updates"] for name, told in trained.items()}
more.score(used["equal, nobody waits"] / used["equal, all wait"])

# %%
lab.table(
    {
        "way": name,
        "gradients used": told["updates"],
        "late by (mean)": told["mean lateness"],
        "last loss": list(told["losses"].values())[-1],
    }
    for name, told in trained.items()
)

# %% [markdown] sections="19.5.2"
# While the slow worker computes one gradient, a fast one can compute four. So up to nine can be used where three were. Messages take time as well, so here it is less. The loss falls much further. Dealt by speed, hardly anybody waits either; which of these two ends lower may change from run to run. (Computing is paced, losses are real. A fourth rank, the server, holds the weights.)
#
# Then why not always asynchronously? Look at the column "late by": its gradients are about two updates late. With more workers they are later, and [chapter 03](03_data_parallel.ipynb) showed that lateness bounds the learning rate. Dealing by speed gets almost as much from the machines, with the same weights as one process. But it needs speeds that stay. Where any rank may be slow for one step, let workers run a few steps ahead, within the bound of chapter 03.
#
# ### Back to the 256 cards
#
# Their speeds stay, so we share by speed. An H100 has no more memory than our A100, so it takes three microbatches where the A100 takes one. (That needs DDP or ZeRO 1, and `no_sync` until the last microbatch. With FSDP each microbatch has collectives, and unequal numbers hang: there deal samples within a microbatch.) Then all do 128 × (1 + 3) = 512 units of work where equal shares did 128 × 2 = 256. The messages must keep up, though: an all-reduce goes at the pace of the slowest link.
#
# <details><summary>More: a device and a cloud</summary>
#
# What if one machine is *very* slow, and the link as well? A camera's small processor, called the *edge*, is twenty times slower than a cloud behind a radio link. Then share the *layers* of a trained network: the edge computes the first ones and sends what these give, and the cloud computes the others. `heterogeneous.every_cut(heterogeneous.Cut())` predicts when the answer comes, for each number of layers on the edge; `heterogeneous.Cut(after=2).run()` measures one of them on two ranks over a paced link.
#
# The first convolution gives *more* values than it gets, so with values of 32 bits it is best to cut after the first pooling layer, where they are few again. With values of 8 bits, `heterogeneous.Cut(form="int8")`, the best cut is none at all: send the frames, whose pixels have 8 bits anyhow. So there is no rule for the place of the cut: predict them all and take the best, as Neurosurgeon does (Kang et al. 2017). (Rounding the values of a later layer to 8 bits also costs some accuracy, which the prediction does not know.)
#
# </details>

# %% [markdown] sections="19.6.6"
# ## Answers, token by token
#
# Our model of 7 billion parameters is trained now, and answers too. It gives one token after another, and each new token looks at all before it. Computing the keys and values of all these anew each time would be a waste: no token looks ahead, so they don't change. So attention keeps them: the [KV cache](GLOSSARY.md#kv-cache). Here is one head:


# %%
def attend(token, cache, qkv):
    q, k, v = (token @ qkv).chunk(3)
    cache.append((k, v))
    keys, values = (torch.stack(each) for each in zip(*cache, strict=True))
    return torch.softmax(keys @ q / len(q) ** 0.5, dim=0) @ values


# %%
tokens, qkv = torch.randn(6, 8), torch.randn(8, 24)
cache = []
one_by_one = torch.stack([attend(token, cache, qkv) for token in tokens])
parts = [each[None] for each in (tokens @ qkv).chunk(3, dim=-1)]
lab.difference(one_by_one, scaled_dot_product_attention(*parts, is_causal=True)[0])

# %% [markdown]
# The same numbers, and no token was computed twice. The price is memory. Our model has 32 layers, keys and values of 4,096 numbers each (32 heads of 128), two bytes a number. How much does it keep of *one* token?

# %%
model = planner.Plan(model="LLaMA 7B").shape
card = planner.gpu("A100-80")
serving.kv_cache.token_bytes(model)

# %% [markdown]
# In bytes: half a megabyte, so a conversation of 2,000 tokens takes 1.05 GB. How many of them fit on an A100 of 80 GB, if a tenth of it stays free and the weights take 13.5 GB?

# %%
serving.kv_cache.room(model, 80e9, 2000, ranks=1)

# %% [markdown]
# Where the model is cut among cards, its cache is too: by heads ([tensor parallelism](GLOSSARY.md#tensor-parallelism)) or by layers, as a pipeline. Then each of N ranks keeps 1/N, while there are heads or layers enough. (`serving.Generation(way="tensor", ranks=2).run()` holds the answers against one process.)
#
# ### Prefill and decode
#
# An answer has two phases. The [prefill](GLOSSARY.md#prefill) takes the whole prompt at once, and gives the first token. Each step of the [decode](GLOSSARY.md#decode) then takes one token and gives the next. Both read all 13.5 GB of weights, and compute about two FLOPs a weight for each token, and some for attention. An A100 can do 312 teraFLOPs a second and reads 2 TB a second. What does either phase wait for?

# %%
phases = {
    "prefill": serving.phases.prefill(model, 1024, card),
    "decode": serving.phases.decode(model, 1024, card),
}
parts = {
    name: {"computing": each.compute_us, "reading memory": each.memory_us}
    for name, each in phases.items()
}
title = "7 B on an A100: 1,024 tokens of a prompt, then one token"
lab.bars(parts, unit="us", title=title, badge="predicted")

# %% [markdown]
# The decode computes for less than a hundredth of its time: it waits for memory. The prefill waits for computing, since it uses each weight that it reads for 1,024 tokens at once. That answers the question of the opening, and shows the way out. The weights are read once per *step*, however many requests are in it; the cache of each request is read for that request alone. Now 32 requests of 1,024 tokens each are served at once. How many times as many tokens a second is that as with one?

# %%
gain = lab.guess("times the tokens, 32 requests at once", between=(1, 32))

# %%
speeds = {}
for num in (1, 4, 8, 16, 32, 48, 64):
    speeds[num] = 1e6 / serving.phases.decode(model, 1024, card, batch=num).token_us
axes = {"x": "requests at once", "y": "tokens a second"}
title = "Decode of the 7 B model on one A100"
lab.curves(predicted={"all together": speeds}, **axes, title=title)

# %%
gain.score(speeds[32] / speeds[1])

# %% [markdown]
# Some fifteen times as many, not 32. Each request brings its own cache, and soon all of these take longer to read than the weights. (No kernel is faster than this bound, the *roofline*; real ones reach a part of it.)
#
# ## Exercise 2. How many fit?
#
# So the memory of the cards decides how many requests are served at once. Return their number on `ranks` cards, which share the weights evenly, and the heads of keys and values too (newer models have fewer of these than heads of queries: *grouped-query attention*). Round both up: no rank can have a part of a head, so of 32 heads on 3 ranks some keep 11, and of 8 heads on 16 ranks each keeps a whole one. Weights and cache take two bytes a number, and a tenth of each card stays free for everything else. Where the weights alone don't fit, the answer is 0.


# %%
def my_budget(params, layers, kv_heads, head_dim, gpu_bytes, tokens, ranks):
    """How many requests of so many tokens fit."""
    ### BEGIN SOLUTION
    heads = -(-kv_heads // ranks)
    request = 2 * layers * heads * head_dim * 2 * tokens
    left = gpu_bytes * 9 // 10 - 2 * -(-params // ranks)
    return max(0, left // request)
    ### END SOLUTION


# %%
serving_check.cache_budget(my_budget)

# %%
serving_check.hint("cache_budget")

# %% [markdown]
# <details><summary>More: a model that fits on no card</summary>
#
# Where the weights alone don't fit, `accelerate` leaves layers on the host or on disk, and fetches each when its turn comes (`dispatch_model`). The answer stays the same, but every token fetches all layers again: 13.5 GB take more than four seconds from a disk that reads 3 GB/s. Try it with a small transformer: `lab.launch(serving.dispatch_run.dispatched, serving.dispatch_run.everywhere("disk"), ranks=1)`, and compare `whole_us` with `dispatched_us`, both for a token. (Files as small as these are still in the host's memory, so what you see is the fetching, hardly the disk.)
#
# </details>

# %% [markdown] sections="19.6.6"
# ## Many requests
#
# Requests arrive at any time, and their answers differ in length. In *static* batching some enter together and leave together, when the longest answer is done. [Continuous batching](GLOSSARY.md#continuous-batching) (Yu et al. 2022) decides before every step: a finished request leaves, and the next one enters.
#
# We serve 16 requests, ten a second on average, in four *slots*: at most four are inside at once (on a real card, as many as their caches fit, exercise 2). A step is paced at 21 to 24 ms, and gives one token to each request inside. Here is the number of tokens in each answer:

# %%
load = {"requests": 16, "rate": 10.0, "slots": 4}
static = serving.Load(policy="static", **load)
continuous = serving.Load(policy="continuous", **load)
[each.output for each in static.coming()]

# %% [markdown]
# A request's *latency* is the time from its arrival until it leaves with its answer, and the median is the one that half of them stay below. With static batching each stays as long as the longest of its batch, and those outside wait for that one too. How many times as long is the median?

# %%
worse = lab.guess("median of static over continuous batching", between=(0.5, 10))

# %%
loads = {"static batching": static, "continuous batching": continuous}
sides = {name: each.compare() for name, each in loads.items()}
medians = [side.measured.figures().latency_p50_us for side in sides.values()]
worse.score(medians[0] / medians[1])

# %% [markdown]
# Both were measured on two ranks that share a small model by heads. Rank 0 has the queue, and says before each step who is in it. Tokens are real, and a step's time is paced. (*Overran*, where it stands below: the machine was busy, and some steps took longer. Then others wait longer too, so trust the predicted medians more, or run again.)

# %%
lab.table(
    {
        "batching": name,
        "predicted_us": side.predicted.figures().latency_p50_us,
        "measured_us": side.measured.figures().latency_p50_us,
    }
    for name, side in sides.items()
)

# %% [markdown]
# ### Where does the time go?
#
# Here is the static run:

# %%
lab.show(sides["static batching"].measured, title="Sixteen requests, static")

# %% [markdown]
# Rows are slots. Look at the empty boxes: answers that are done, and keep their slot until the longest of their batch is done too, while others queue outside. And the same requests, served continuously:

# %%
lab.show(sides["continuous batching"].measured, title="Sixteen requests, continuous")

# %% [markdown]
# No empty boxes: who is done leaves at once, and if somebody waits, the slot is taken again before the next step. (Who waits beside a free slot came in the middle of a step or of another's prefill, and enters after it.) Here, too, far from all of the slots' time is used: at ten requests a second there is often nobody left to serve. So at this load continuous batching saves waiting. What more it can carry, comes next.
#
# Look also at "first token", the time until an answer begins (often called TTFT): it falls most of all, for whoever waits outside waits only until the first slot is free, not until the longest answer of a batch is done.
#
# ### And as the load grows?
#
# Now 200 requests come, simulated, and we look at the 95th percentile of their latency, p95: 19 of 20 take less. There are four slots, and an answer of about ten tokens takes about a quarter of a second: how many requests a second can continuous batching carry at best?

# %%
p95 = {name: {} for name in loads}
for name, each in loads.items():
    for rate in (2, 4, 6, 8, 10, 12, 15, 20):
        served = each.but(rate=rate, requests=200).predict()
        p95[name][rate] = served.figures().latency_p95_us
axes = {"x": "requests a second", "y": "latency p95", "unit": "us"}
lab.curves(predicted=p95, **axes, title="p95 of the latency as the load grows")

# %% [markdown] sections="19.6.6"
# Each line bends where its server is full: static batching between six and eight requests a second, continuous batching near fifteen, as 4 / 0.25 = 16 says. So continuous batching needs fewer cards for the same load. Beyond the bend the queue grows as long as requests come, and p95 says above all how long we looked: at 10 a second our 16 requests were over before the static queue had grown long.
#
# ## Exercise 3. Write the scheduler
#
# It is asked before every step. `waiting` lists the numbers of those outside, the first come first. `owed` is a dict: for the number of each request inside, how many tokens it still gets (0: it is done). `slots` is how many may be inside at once. Return two lists of numbers: who enters, and who leaves. Who leaves goes first, so a slot that is left can be taken in the same call. Yours will serve on two real ranks.


# %%
def my_policy(waiting, owed, slots):
    """(admit, retire): two lists of requests."""
    ### BEGIN SOLUTION
    retire = [number for number, tokens in owed.items() if tokens == 0]
    free = slots - len(owed) + len(retire)
    return waiting[:free], retire
    ### END SOLUTION


# %%
serving_check.continuous_batch(my_policy)

# %%
serving_check.hint("continuous_batch")

# %% [markdown]
# vLLM and its like serve this way, but they learn only from a last token that an answer is over, and they let in as many as there is room for. They also keep the caches in pages, so that hardly any memory is set aside for tokens that never come: less than a page a request (Kwon et al. 2023).
#
# ## When is it worth it?
#
# Now we know both what training waits for and what serving waits for. So which of our 256 cards should do what? With shares by speed, all of them do 512 units of work. The H100s alone do 128 × 3 = 384, a quarter less, and since these are alike, equal shares will do. The A100s are then free to serve. And a decode waits for reading memory, where the H100 is less far ahead:

# %%
tokens = {}
for name in ("A100-80", "H100"):
    each = serving.phases.decode(model, 1024, planner.gpu(name), batch=32)
    tokens[name] = 1e6 / each.token_us
lab.bars(tokens, title="Tokens a second, 32 requests at once", badge="predicted")

# %% [markdown]
# That is 1.6 times as many, though the H100 computes three times as fast. So if you serve people anyway, the A100s do it. If you don't, deal by speed, and training goes a third faster than on the H100s alone. In both cases ask what a card waits for, and share the work so that it waits less: samples by speed in training, many requests at once in serving.
#
# ## Summary
#
# - The slowest rank sets the pace. Deal the batch by speed, in whole samples, and let each rank's mean count b / B; with DDP multiply the loss by N b / B.
# - Speeds are measured by a probe. Where they jump from step to step, let workers run ahead within a bound.
# - A KV cache trades memory for time. The decode waits for memory, so serve many at once.
# - With continuous batching a finished request leaves at once, and latency falls, the wait for the first token most of all.
#
# **Words learned**: [KV cache](GLOSSARY.md#kv-cache), [prefill](GLOSSARY.md#prefill), [decode](GLOSSARY.md#decode), [continuous batching](GLOSSARY.md#continuous-batching).
#
# **Next:** [many machines](17_many_machines.ipynb): how ranks start on them, and what a slow link or a dead machine does.

# %% [markdown] sections="19.6.6"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Erratum 19.6.6: a dynamic batch that waits for 32 requests or 10 ms</summary>
#
# The textbook's `DynamicBatcher` gathers requests until there are 32, or until the first has waited longer than 10 ms. That is a rule for *entering*, and nothing says who leaves: for a network that answers in one pass that is all, but answers of a language model differ in length, and the batch is static. Run it: `serving.Load(policy="static", patience_ms=10).predict().figures()` beside the same with `policy="continuous"` and no patience. (Its `time_since_first_request()` is defined nowhere.)
#
# </details>
#
# ## Further reading
#
# - Bounded staleness: Ho et al. 2013, *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NIPS
# - Device and cloud: Kang et al. 2017, *Neurosurgeon*, ASPLOS
# - Prefill, decode and partitioning: Pope et al. 2022, [arXiv 2211.05102](https://arxiv.org/abs/2211.05102). Paged caches: Kwon et al. 2023, [arXiv 2309.06180](https://arxiv.org/abs/2309.06180)
# - Continuous batching: Yu et al. 2022, *Orca*, OSDI

# %%
check.status()
