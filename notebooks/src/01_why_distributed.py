# ---
# jupyter:
#   labkit:
#     sections: ["8.1.1", "8.1.2", "10.1.1", "10.1.2", "10.1.3", "D-faq"]
#     needs: ["chapter 00"]
#     minutes: 60
# ---

# %% [markdown]
# # Why distributed
#
# *About an hour, the exercises not counted. You need chapter 00. No GPU is needed.*
#
# We want to train LLaMA 7B. In 16 bits its weights take 13.4 GB, and our card has 80 GB, so there should be plenty of room. We start it, and before the first step is over it is out of memory: it needs 116 GB.
#
# Where does the rest come from, and what can more cards do about it?

# %%
from math import exp

import torch
import torch.distributed as dist

import labkit as lab
from labkit import planner
from labkit.planner import check

lab.begin("en")
need = planner.Need(model="LLaMA 7B")  # one step, with a single sequence of text
sizes = {"its weights": 2 * 6.7e9, "what a step needs": sum(need.bill().values())}
title = "LLaMA 7B on one card"
card = {"the card": need.device_bytes}
lab.bars(sizes, unit="bytes", marks=card, badge="computed", title=title)

# %% [markdown]
# The card counts as 80 billion bytes on this page. That is on the careful side: on an A100 with 80 GB torch can use about 85 billion.
#
# **When you are done** you can say how much memory a model takes to train, which of the usual reasons for many cards are good ones, and what each of four ways to run in parallel has to send.
#
# ## It dies, for real
#
# What asks for so much memory, and when? Below is a small network: eight layers of 1024 by 1024 in fp32, so 32 MiB of weights. Its [pretend device](GLOSSARY.md#pretend-device) has 100 MiB, and enforces that. At which line will it run out of memory?

# %%
dies_at = lab.guess(
    "the line at which it dies",
    choices=(
        "loss = net(batch).square().mean()",
        "loss.backward()",
        "optimizer.step()",
    ),
)


# %%
def train(width):
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        batch = torch.randn(8, width)
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return "trained"


try:
    lab.launch(train, 1024, ranks=1, devices=lab.pretend(memory_mib=100))
except lab.RankFailed as verdict:
    report = verdict
print(report)
dies_at.score(report.finding.where["text"])

# %% [markdown]
# <details><summary>Why there?</summary>
#
# The weights take 32 MiB and the gradients as much again, and both fit. But at its first step Adam makes two numbers of its own for every weight, 64 MiB more, and 128 MiB are too many. That is why some runs die only after their first backward.
#
# </details>

# %% [markdown] sections="8.1.1"
# ## The bytes of one parameter, by hand
#
# How many bytes does a large model hold for each parameter? The usual [recipe](GLOSSARY.md#recipe) is [mixed precision](GLOSSARY.md#mixed-precision): weights and gradients have 16 bits, so that the matrix products are quick. That is too coarse to add small updates to, so there is a second copy of the weights in fp32, and Adam's two numbers are fp32 as well.
#
# In the small network everything is fp32: 4 bytes for the weight, 4 for its gradient, 8 for Adam's two numbers. How many of these 16 does the recipe save?

# %%
saved = lab.guess("bytes of states saved per parameter", between=(0, 12))

# %% [markdown]
# Here is one step of the recipe. At the end the rank counts what it holds.


# %%
def mixed_step():
    net = torch.nn.Linear(1024, 1024, bias=False).bfloat16()
    weight, copy = net.weight, net.weight.detach().float()
    adam = torch.optim.Adam([copy])
    loss = net(torch.randn(8, 1024, dtype=torch.bfloat16)).square().mean()
    loss.backward()
    copy.grad = weight.grad.float()  # 4 bytes more; DeepSpeed converts part by part
    adam.step()
    copy.grad = None
    weight.data.copy_(copy)
    state = adam.state[copy]
    held = {
        "16-bit weights": weight.nbytes,
        "16-bit gradients": weight.grad.nbytes,
        "fp32 copy": copy.nbytes,
        "Adam, two numbers": state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes,
    }
    return {name: num_bytes / weight.numel() for name, num_bytes in held.items()}


# %%
held = lab.launch(mixed_step, ranks=1)[0]
lab.bars(held, title="Bytes per parameter, held after a step")

# %%
saved.score(16 - sum(held.values()))

# %% [markdown] sections="8.1.1, D-faq"
# All four together are the [model states](GLOSSARY.md#model-states). The fp32 copy takes back what the halves have given; chapter 05 shows what mixed precision does save.
#
# So the rule is **16 bytes of states for each parameter** in both recipes. LLaMA 7B has 6.7 billion parameters, which makes 107 of the 116 GB.

# %% [markdown]
# ## Exercise 1. Read the bill
#
# Write a function that reads such a bill after a step, while the gradients are still there. Here is a model to try it on, and what Adam keeps for its only weight:

# %%
net = torch.nn.Linear(1000, 1000, bias=False)
adam = torch.optim.Adam(net.parameters())
net(torch.randn(8, 1000)).sum().backward()
adam.step()
{name: each.nbytes for name, each in adam.state[net.weight].items()}

# %% [markdown]
# For this model your bill is `{"parameters": 4_000_000, "gradients": 4_000_000, "optimizer": 8_000_004}`: Adam's count of steps is a tensor, too. The check tries other models, and each failed attempt earns you another hint.


# %%
def my_bill(model, optimizer):
    """Bytes: {"parameters": ..., "gradients": ..., "optimizer": ...}."""
    ### BEGIN SOLUTION
    weights = list(model.parameters())
    states = [each for state in optimizer.state.values() for each in state.values()]
    return {
        "parameters": sum(each.nbytes for each in weights),
        "gradients": sum(each.grad.nbytes for each in weights),
        "optimizer": sum(each.nbytes for each in states),
    }
    ### END SOLUTION


# %%
check.held_bytes(my_bill)

# %%
check.hint("held_bytes")

# %% [markdown] sections="8.1.1"
# ## Activations, by hand
#
# Where do the last 9 GB come from? They are [activations](GLOSSARY.md#activations), what the forward keeps because the backward will need it. Unlike the states, they grow with the text that you feed at once.
#
# How much does one block of a transformer keep, in bytes for each token and each unit of its [width](GLOSSARY.md#width), the hidden size? In bf16 a number has 2 bytes, and surely it keeps more than one tensor.

# %%
kept_by_gpt = lab.guess(
    "bytes per token and unit of width, GPT block", between=(0, 100)
)

# %% [markdown]
# Torch tells us, since autograd calls a hook for each tensor that it saves. We count every storage once and leave the weights out:


# %%
def kept_bytes(block, x):
    """Bytes that autograd keeps of a forward."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x)
    weights = {each.untyped_storage().data_ptr() for each in block.parameters()}
    return sum(size for place, size in kept.items() if place not in weights)


# %%
def per_unit(kind, length):
    x = torch.randn(2, length, 128, dtype=torch.bfloat16, requires_grad=True)
    return kept_bytes(planner.block(kind), x) / x.numel()


kept_by_gpt.score(per_unit("gpt", 256))

# %% [markdown]
# `planner.block` writes blocks as the papers do. What happens when the sequence gets longer?

# %%
kinds = {"GPT": "gpt", "GPT, attention stored": "gpt_stored", "LLaMA": "llama"}
lengths = (32, 64, 128, 256)
kept = {name: {n: per_unit(kind, n) for n in lengths} for name, kind in kinds.items()}
with_matrix = {n: 34 + 5 * 4 * n / 128 for n in lengths}  # a = 4, h = 128
formula = {"GPT": dict.fromkeys(lengths, 34), "GPT, attention stored": with_matrix}
axes = {"x": "tokens of a sequence", "y": "bytes per token and unit of width"}
title = "What a block keeps for the backward"
lab.curves(measured=kept, predicted=formula, **axes, title=title)

# %% [markdown]
# The markers are our count, the lines a formula of Korthikanti et al. (2022): a GPT block keeps $34\,s\,b\,h$ bytes for $b$ sequences of $s$ tokens and width $h$ (11 in the attention, 19 in the MLP, 4 in the two norms), and $5\,a\,s^2 b$ more if it stores the attention matrix of its $a$ heads.
#
# LLaMA 7B has 32 blocks of width 4,096, and our sequence has 2,048 tokens, so $34 \cdot 2048 \cdot 4096 \cdot 32$ bytes are the 9 GB. If the attention matrix of its 32 heads is stored, they become 31; flash attention doesn't store it. LLaMA's own block keeps more than GPT's, so 9 GB are a low estimate.
#
# <details><summary>Where do LLaMA's bytes come from?</summary>
#
# It has no dropout, hence no masks, but a wider MLP, whose four tensors of 43/16 of the width take 21.5 bytes. The attention's Q, K, V and its output, and the outputs of the two norms, are six tensors in 16 bits, 12 bytes. Each norm keeps 8 bytes more where it is made of several operators, as here, which makes 49.5, and 2 where it is one, which makes 37.5: `per_unit("llama_fused", 256)` gives 37.7. (The rest are a few statistics; hence 34.2 for GPT, too, and not 34.) The boards use 34 for all large models; with 37.7 the 9 GB of the bill would be 10, with 49.7 13.
#
# </details>
#
# %% [markdown] sections="10.1.1, D-faq"
# ## Can two cards share it?
#
# Now the bill is whole. Which parts of it can cards share? [ZeRO](06_zero_deepspeed.ipynb) leaves each card its own sequence, and with it the activations, but cuts the states: **ZeRO 1** what the optimizer adds (the fp32 copy and Adam's two numbers), **ZeRO 2** the gradients too, **ZeRO 3** the parameters too.

# %%
need.board()

# %% [markdown]
# This is a [board](GLOSSARY.md#board): turn its controls and the bill is written anew (a web page has only its menus). By this bill two cards are enough for ZeRO 1, with 4 GB to spare. But logits, the process itself and LLaMA's own activations take more than that; ZeRO 3 leaves 17 GB for them.
#
# Now LLaMA 13B, with 14.3 GB of activations. How many cards does ZeRO 1 need?

# %%
cards_of_13b = lab.guess("cards for LLaMA 13B, ZeRO 1", between=(1, 64))

# %%
planner.cards()

# %%
cards_of_13b.score(planner.Need(model="LLaMA 13B").needed(1))

# %% [markdown]
# By hand: parameters and gradients stay whole, 4 bytes for each of 13 billion, so 52 GB. Of the card's 80 GB, 80 - 14.3 - 52 = 13.7 are left. The optimizer's 12 x 13 = 156 GB, divided by the number of cards, must fit into these.
#
# An empty cell says that no number of cards is enough: those models' activations alone are 91 and 82 GB, and sharding states does nothing for them. Recomputation does (chapter 05). A few GB matter: with 85 billion bytes a card, LLaMA 13B needs three cards fewer with ZeRO 1, and GPT-3's empty ZeRO 3 cell becomes 980.
#
# So *it does not fit*, the first of five reasons that are usually given for many cards, is a good one.

# %% [markdown]
# ## Exercise 2. How many cards?
#
# Write the rule behind the table as a function of any model: the mixed recipe, plus `activation_bytes` on each card. Try all stages of ZeRO, from 0 (nothing sharded) to 3. Return `(stage, num_ranks)` with the fewest ranks whose cards hold it; of several stages that need so many, the lowest. Return None if not even 4096 ranks are enough.
#
# For LLaMA 13B, `my_cards(13e9, 14.3e9, 80e9)` is `(3, 4)`, since 208 / 4 + 14.3 = 66.3 GB fit, and no stage fits on three cards.


# %%
def my_cards(num_params, activation_bytes, device_bytes):
    """(stage, num_ranks), or None."""
    ### BEGIN SOLUTION
    room = device_bytes - activation_bytes
    found = []
    for stage, whole in enumerate((16, 4, 2, 0)):
        for num_ranks in range(1, 4097):
            if num_params * (whole + (16 - whole) / num_ranks) <= room:
                found.append((num_ranks, stage))
                break
    return min(found)[::-1] if found else None
    ### END SOLUTION


# %%
check.fewest_ranks(my_cards)

# %%
check.hint("fewest_ranks")

# %% [markdown] sections="10.1.1"
# ## How long does one card take?
#
# Suppose that it fits. Training takes about 6 operations for each parameter and token (Kaplan et al. 2020): 2 in the forward, 4 in the backward. LLaMA-2 70B was trained on 2 trillion tokens, and an A100 does at most 3.12e14 operations a second. No program gets all of these. How many years did it take, added up over all cards?

# %%
years = lab.guess("years on one card, LLaMA-2 70B", between=(0, 1000))

# %%
llama = planner.MODELS["LLaMA-2 70B"]
at_peak = 6 * llama.params * llama.train_tokens / 312e12 / 3600 / 24 / 365
really = llama.a100_hours / 24 / 365
both = {"at the card's peak": at_peak, "by the paper's card hours": really}
title = "Years on one card, LLaMA-2 70B"
lab.bars(both, badge="computed / published", title=title)

# %%
years.score(really)

# %% [markdown]
# Nobody waits that long, so *it takes too long* is a good reason, too. *Too much data* is the same one, because tokens are time. The first bar divided by the second, 43 %, is the share of the peak that the run got: its [MFU](GLOSSARY.md#mfu). Chapter 18 asks where the rest went.

# %% [markdown] sections="10.1.1"
# ## Are many cards safer?
#
# *Reliability* is often named as well. The Llama 3 report (section 3.3.4) counts 419 unexpected interruptions in 54 days on 16,384 cards, one every three hours. If they come independently and in proportion to the cards, what share of days passes without any, on 1,024 cards?

# %%
quiet_days = lab.guess("days without an interruption, 1,024 cards", between=(0, 1))


# %%
def days_between(cards):
    return 54 * 16_384 / 419 / cards


def quiet_share(cards):
    return exp(-1 / days_between(cards))


lab.table([{"cards": n, "days between two": days_between(n)} for n in (1, 1024)])

# %%
quiet_days.score(quiet_share(1024))

# %% [markdown]
# One card is interrupted once in almost six years, a thousand cards every other day. So reliability is no reason but a price, and chapter 13 is about paying it.

# %% [markdown] sections="10.1.1"
# ## Are N cards N times as fast?
#
# The last of the usual five reasons is *more experiments*. Those that don't depend on each other need no distributed training, because each can have cards of its own. It is different if one run has to end sooner. Then $N$ cards are at best $N$ times as fast, and the serial part takes as long as before (Amdahl 1967). We assume that 1 % is serial, to see how little spoils it. How many times as fast are 4,096 cards?

# %%
speedup = lab.guess("times as fast: 4,096 cards, 1 % serial", between=(1, 4096))


# %%
def times_as_fast(cards, serial):
    return 1 / (serial + (1 - serial) / cards)


counts = [2**n for n in range(13)]
shares = {"all parallel": 0, "0.1 % serial": 0.001, "1 % serial": 0.01}
fast = {name: {n: times_as_fast(n, shares[name]) for n in counts} for name in shares}
axes = {"x": "cards", "y": "times as fast", "log_x": True, "log_y": True}
lab.curves(predicted=fast, **axes, title="One run on many cards")

# %%
speedup.score(times_as_fast(4096, 0.01))

# %% [markdown]
# However many cards there are, the serial part stays. Messages that nothing hides act like such a part, and several chapters are about them.
#
# So two of the five reasons are good: *it does not fit* and *it takes too long*. *Too much data* and *more experiments* count where they mean too long, and reliability speaks against many cards.

# %% [markdown] sections="10.1.2"
# ## Two models instead of one
#
# Many cards must train one model. Two ranks begin with the same weights, which lie within ±0.125, and train five steps on different data. If nobody averages the gradients, how large is the largest difference of a weight in the end?

# %%
apart = lab.guess("largest difference of a weight", between=(0, 0.25))


# %%
def five_steps(average):
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 64)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(5):
        net(torch.randn(8, 64)).square().mean().backward()
        for weight in net.parameters():
            if average:
                dist.all_reduce(weight.grad)  # the sum over all ranks, on every rank
                weight.grad /= dist.get_world_size()
            weight.data -= 0.5 * weight.grad
            weight.grad = None
    return net.state_dict()


# %%
alone = lab.difference(*lab.launch(five_steps, False, ranks=2))
together = lab.difference(*lab.launch(five_steps, True, ranks=2))
lab.table([{"no averaging": alone, "averaged": together}])

# %%
apart.score(alone)

# %% [markdown]
# Without averaging there are two models instead of one. The second number is zero, because one `all_reduce` per gradient has kept them equal. The three lines from `if average` on are the heart of data parallelism, and chapter 03 makes them fast.

# %% [markdown] sections="8.1.2"
# ## Four ways to run in parallel
#
# What do ranks have to send? That depends on what each of them holds. Here are four usual ways for LLaMA 7B, with 4 ranks and 16 sequences a step. Blue boxes are the layers that a rank holds, orange ones its sequences, and lines show what travels:

# %%
strategies = {
    "data parallel": "data",
    "by layers": "layers",
    "hybrid of both": "hybrid",
    "ZeRO 3": "sharded",
}
every = {
    name: planner.Strategy(strategy=word, recipe="mixed")
    for name, word in strategies.items()
}
lab.show(planner.ways(every))

# %% [markdown]
# - **[Data parallel](GLOSSARY.md#data-parallelism)**: every rank has the whole model and a part of the batch; gradients are averaged.
# - **By layers** (model parallel; in chapter 08 a *pipeline*): activations go from layer to layer, and their gradients back.
# - **Hybrid**: the layers are cut into stages, and each stage has several copies.
# - **ZeRO 3**: data parallel, but a rank keeps only a part of the states, and gathers parameters when it needs them.
#
# Which of the four sends the fewest bytes in a step?

# %%
fewest = lab.guess("which sends the fewest bytes", choices=list(every))

# %%
planner.costs(every)

# %%
fewest.score(min(every, key=lambda name: every[name].sent_bytes()))

# %% [markdown]
# Some 36 GB of each row are activations. In data parallel and ZeRO 3 a rank takes its four sequences at once. Taken one by one, as *microbatches*, 9 GB are enough, but ZeRO 3 then gathers its parameters again for each. Cutting by layers pays with a *bubble*, the time for which ranks wait for each other's layers (chapter 08).
#
# Where do the bytes come from? In data parallel a rank sends 2 x 3/4 of 13.4 GB of gradients (chapter 02 says why), whatever the batch. In ZeRO 3 it is 3 x 3/4, since parameters are gathered twice. By layers it is 16 sequences of 2,048 tokens, 4,096 wide, in 2 bytes, twice: activations, and their gradients back. So this grows with the batch:

# %%
batches = (16, 64, 256, 1024, 4096)
gigabytes = {
    name: {n: every[name].but(batch=n).sent_bytes() / 1e9 for n in batches}
    for name in ("data parallel", "by layers")
}
as_much = {
    "both the same": gigabytes["data parallel"][16] / gigabytes["by layers"][16] * 16
}
axes = {"x": "sequences per step", "y": "GB that a rank sends"}
title = "What a rank sends in a step"
lab.curves(predicted=gigabytes, **axes, at=as_much, log_x=True, log_y=True, title=title)

# %% [markdown] sections="10.1.3"
# The lines cross at about 600 sequences. LLaMA itself was trained with 4 million tokens a step (Touvron et al. 2023), about 2,000 sequences. There, on four ranks, cutting by layers sends more. Data parallel itself does not fit, but ZeRO 1 does with microbatches, and sends no more (chapter 06). So no way is always the best. A fifth one, [tensor parallelism](GLOSSARY.md#tensor-parallelism), cuts every layer itself (chapter 09).
#
# <details><summary>How are gradients averaged?</summary>
#
# By a [parameter server](GLOSSARY.md#parameter-server) that collects and answers, in a [ring](GLOSSARY.md#ring) of neighbours, or hierarchically, inside each machine first. [Chapter 02](02_collectives.ipynb) lets them race.
#
# </details>

# %% [markdown] sections="D-faq"
# ## When is it worth it?
#
# Rules of thumb go by the size of the model, but the recipe, the length of the sequence and the card matter, too. So count, and then, in this order:
#
# 1. One card holds it and is fast enough: use one card.
# 2. One card holds it but is slow: data parallel (chapter 03).
# 3. The states don't fit: shard them (chapters 06 and 07), the optimizer first.
# 4. The activations don't fit: take smaller microbatches, recompute (chapter 05), or cut the model (chapters 08 and 09).
#
# LLaMA 7B is the third case. We take ZeRO 1 on eight cards (`dp 8`), with microbatches of one sequence:

# %%
before = planner.Plan(model="LLaMA 7B", gpus=1, recipe="mixed", batch=512)
after = before.but(gpus=8, zero=1)
planner.card(before, after)

# %% [markdown]
# It fits. But how far can we trust the days? LLaMA 7B really took 82,432 card hours:

# %%
days = {"the plan": after.days(1e12), "by the paper's card hours": 82_432 / 8 / 24}
lab.bars(days, badge="predicted / published", title="Days of training on eight cards")

# %% [markdown]
# The plan is optimistic: it assumes 66 % of the peak, where LLaMA's own run reached 43 %. Chapter 19 tells how far to trust such predictions.
#
# <details><summary>What the plan counts</summary>
#
# The plan counts 6.74 billion parameters, where the paper rounds to 6.7 billion; so 13.4 GB become 13.5. The 4 GB more than in the bill are mostly logits and what a process takes for itself. Its times use constants from published runs of Megatron on A100s; `after.warnings()` says how far it goes beyond them.
#
# </details>
#
# ---
#
# *Here ends what most people need. The rest, an exercise about sharded models, is optional.*

# %% [markdown]
# ## Exercise 3. The bill of one rank
#
# Read the bill again, but now of what lies on **this rank**. Some models are cut by `fully_shard`: then parameters, gradients and most of Adam's tensors are DTensors, which say how large the whole is. `to_local()` gives the part that lies here. In others two layers share a weight, or a parameter is frozen.
#
# If `fully_shard` cuts the model of Exercise 1 for two ranks, each has 2,000,000 bytes of parameters, as many of gradients, and 4,000,004 of the optimizer.


# %%
from torch.distributed.tensor import DTensor


def my_part(model, optimizer):
    """Bytes here: {"parameters": ..., "gradients": ..., "optimizer": ...}."""
    ### BEGIN SOLUTION
    weights = list(model.parameters())
    states = [each for state in optimizer.state.values() for each in state.values()]

    def num_bytes(tensors):
        here = [
            each.to_local() if isinstance(each, DTensor) else each for each in tensors
        ]
        return sum(each.nbytes for each in here)

    return {
        "parameters": num_bytes(weights),
        "gradients": num_bytes(each.grad for each in weights if each.grad is not None),
        "optimizer": num_bytes(states),
    }
    ### END SOLUTION


# %%
check.sharded_bytes(my_part)

# %%
check.hint("sharded_bytes")

# %% [markdown]
# ## Summary
#
# - In the two usual recipes, fp32 and mixed precision, training with Adam holds 16 bytes of states per parameter.
# - A GPT block keeps 34 bytes of activations per token and unit of width in 16 bits, and with a stored attention matrix more, the longer the sequence.
# - Good reasons for many cards are that a model doesn't fit or takes too long. More devices fail more often: that is a price, not a reason.
# - Data parallel sends the gradients, whatever the batch. Splitting by layers sends activations, which grow with the batch, and has a bubble.
# - Sharding divides states. To keep fewer activations, a rank has to take fewer sequences or fewer layers, or recompute.
#
# **Words learned**: [model states](GLOSSARY.md#model-states), [recipe](GLOSSARY.md#recipe), [mixed precision](GLOSSARY.md#mixed-precision), [activations](GLOSSARY.md#activations), [data parallelism](GLOSSARY.md#data-parallelism), [tensor parallelism](GLOSSARY.md#tensor-parallelism), [MFU](GLOSSARY.md#mfu).
#
# **Next**: [collectives](02_collectives.ipynb). All of these ways stand on a few calls, and we will take them apart.

# %% [markdown] sections="8.1.1, 10.1.1, 10.1.2, D-faq"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read, or its demo project. If you haven't, skip it.)
#
# <details><summary>Six errata</summary>
#
# <details><summary>Erratum 8.1.1: "LLaMA-7B: 94 GB in all, barely fits on an A100"</summary>
#
# The textbook counts 14 GB of weights, 14 of gradients, 56 for Adam and 10 of activations, and lets it train on 80 GB "with optimizations". It forgets the fp32 copy, 28 GB, which its own section 8.5 does count. With it the states alone are 112 GB. Run it: `planner.Need(model="LLaMA 7B").bill()` has 107 GB of states for the 6.7 billion parameters of the published model.
#
# </details>
#
# <details><summary>Erratum D-faq: "mixed precision: fp16 reduces the bandwidth"</summary>
#
# Only if the *model* is in 16 bits, as in the mixed recipe above, or if a hook casts the gradients. Torch's own mixed precision, autocast, leaves weights and gradients in fp32, and gradients are what is sent. Section *autocast* of chapter 05 counts what is sent: as many bytes as in fp32.
#
# </details>
#
# <details><summary>Erratum 8.1.1: activations are "b s h L x 4 bytes"</summary>
#
# That is 4 bytes per token, layer and unit of width: two tensors in 16 bits. A block keeps far more than two. Run it: `per_unit("gpt", 256)` gives 34.2, more than eight times as much, and with stored attention there is no constant factor at all.
#
# </details>
#
# <details><summary>Erratum 10.1.1: "reliability: a distributed system tolerates faults"</summary>
#
# At first it is the other way round: if one card fails once in $M$ hours, $N$ cards fail once in $M/N$. Run it: `quiet_share(16384)` gives 0.0004: a quiet day comes once in about 2,300 days. What a distributed system does bring is that a run *can* survive, because others hold copies and a checkpoint starts it again. That takes work.
#
# </details>
#
# <details><summary>Erratum 10.1.2: "communication increases with the number of devices"</summary>
#
# In all, yes, and so does the number of steps. But what one rank sends in a ring is $2(N-1)/N$ times S, which stays below 2 S whatever N (S is the size of the gradients). Import `collectives` from labkit and run it: `collectives.sent_bytes(collectives.plan("all_reduce", "ring", 64), 1).max()` gives 1.97.
#
# </details>
#
# <details><summary>Erratum D-faq: "DDP below 10 billion parameters, FSDP up to 100 billion"</summary>
#
# Ten billion parameters have 160 GB of states, which DDP would put on every card. On 80 GB the limit of DDP with this recipe is 5 billion, before any activation. Run it: `planner.Need(model="LLaMA 7B").needed(0)` gives None: no number of cards is enough without sharding.
#
# </details>
#
# </details>
#
# <details><summary>To read on</summary>
#
# Rajbhandari et al. 2020, *ZeRO* ([arXiv 1910.02054](https://arxiv.org/abs/1910.02054)) on model states; Korthikanti et al. 2022 ([arXiv 2205.05198](https://arxiv.org/abs/2205.05198)) on activations; Kaplan et al. 2020 ([arXiv 2001.08361](https://arxiv.org/abs/2001.08361)) on the 6 operations; *The Llama 3 Herd of Models* ([arXiv 2407.21783](https://arxiv.org/abs/2407.21783)) on interruptions. `data/models.csv` and `data/hardware.csv` name a source in each row.
#
# </details>

# %%
check.status()

# %% [markdown]
# *Sections 8.1.1, 8.1.2, 10.1.1, 10.1.2 and 10.1.3, and D-faq of the source material.*
