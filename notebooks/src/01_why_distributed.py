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
# We want to train a model with 7 billion parameters. Its weights are a file of 14 GB, and our card has 80 GB, so there should be plenty of room. We start it, and before the first step is over it is out of memory. Even without a byte of activations, it needs 112 GB.
#
# Where do 112 GB come from? The picture writes the bill of the published model, LLaMA 7B, which has 6.7 billion parameters, so 107 GB of states (weights, gradients and what the optimizer keeps), and adds 9 GB of activations for one sequence (what the forward keeps for the backward). The dashed line is the card.

# %%
from math import exp

import torch
import torch.distributed as dist

import labkit as lab
from labkit import planner
from labkit.planner import check

lab.begin("en")
planner.Need(model="LLaMA 7B").board()

# %% [markdown]
# This is a [board](GLOSSARY.md#board): turn its controls and the bill is written anew. The first row is one card with everything on it; below, two cards share it (chapter 06). Try other models: which is the largest that fits on one card of 80 GB? (A table near the end answers.)
#
# **When you are done** you can say how much memory the states of any model take, you can tell which of the five usual reasons for many cards are good ones, and you know what each of four ways to run in parallel has to send.
#
# ## It dies, for real
#
# Below is a small network: eight layers of 1024 by 1024 in fp32, so 32 MiB of weights. Its [pretend device](GLOSSARY.md#pretend-device) has 100 MiB, three times as much; the bytes are counted, and the limit is enforced. At which line will it run out of memory?

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
# The weights fit, and so did the gradients, which are as large again. Then Adam, at its first step, wanted two numbers of its own for every weight. That is why so many runs die after the first backward, when everything seemed to be well.

# %% [markdown] sections="8.1.1"
# ## The bytes of one parameter, by hand
#
# The usual [recipe](GLOSSARY.md#recipe) for large models is [mixed precision](GLOSSARY.md#mixed-precision): weights and gradients have 16 bits, so that the matrix products are quick. But 16 bits are too coarse to add small updates to, so there is a second copy of the weights in fp32, and Adam's two numbers are fp32 as well. With everything in fp32 a parameter takes 4 + 4 + 8 bytes. How many of them does this recipe save?

# %%
saved = lab.guess("bytes of states saved per parameter", between=(0, 12))

# %% [markdown]
# Here is one step of it, with nothing hidden. At the end the rank counts what it holds.


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
# None: it is sixteen again, by another way: 2 + 2 + 4 + 8 (the first picture's *optimizer* is the last two, 12 bytes per parameter). All this together is called the [model states](GLOSSARY.md#model-states). The fp32 copy took back what the halves had given; what the recipe does save is activations, time and traffic.
#
# So the rule is: **7 billion parameters times 16 bytes are 112 GB.** (With bf16 for everything it is 8, at the price of updates that get lost in rounding; [chapter 05](05_precision_and_memory.ipynb) shows how.)

# %% [markdown]
# ## Exercise 1. Read the bill of a rank
#
# Return the bytes that **this rank** holds: `{"parameters": ..., "gradients": ..., "optimizer": ...}`. Your function is called between a backward and a step, on models wrapped in different ways. Some are cut by `fully_shard`, so that their parameters are DTensors: each says how large the whole is, and `to_local()` gives the part that lies here (`from torch.distributed.tensor import DTensor`). Two layers may share one weight, a parameter may be frozen, and not everything has 4 bytes. Count every tensor of the optimizer's state, also the small ones.
#
# The check tries your function on cases that you don't see, and says where it is wrong. `check.hint` has a first hint, and a further one after each attempt.


# %%
def my_bill(model, optimizer):
    """Bytes on this rank: {"parameters": ..., "gradients": ..., "optimizer": ...}."""
    ### BEGIN SOLUTION
    from torch.distributed.tensor import DTensor

    def num_bytes(tensors):
        here = [
            each.to_local() if isinstance(each, DTensor) else each for each in tensors
        ]
        return sum(each.nbytes for each in here)

    weights = list(model.parameters())
    states = [each for state in optimizer.state.values() for each in state.values()]
    return {
        "parameters": num_bytes(weights),
        "gradients": num_bytes(each.grad for each in weights if each.grad is not None),
        "optimizer": num_bytes(states),
    }
    ### END SOLUTION


# %%
check.held_bytes(my_bill)

# %%
check.hint("held_bytes")

# %% [markdown] sections="8.1.1"
# ## Activations, by hand
#
# The states stay the same size, however much text you feed at once. The [activations](GLOSSARY.md#activations) grow with it: they are what the forward keeps because the backward will need it. How much does one block of a transformer keep? Say it in bytes for each token and each unit of its [width](GLOSSARY.md#width), the hidden size. In bf16 a number has 2 bytes, and surely it keeps more than one tensor.

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
# `planner.block` has blocks as the papers count them. What happens when the sequence gets longer?

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
# The lines are the formula of Korthikanti et al. (2022): a GPT block keeps $34\,s\,b\,h$ bytes for $b$ sequences of $s$ tokens and width $h$, and $5\,a\,s^2 b$ more if it stores the attention matrix of its $a$ heads. The dots are our count. Only with a stored attention matrix does this number grow with the length; flash attention doesn't store it. A LLaMA block keeps more, 49.7 here, and the first picture counts it with 34: its 9 GB are a low estimate (box).
#
# <details><summary>Where do LLaMA's bytes come from?</summary>
#
# It has no dropout, hence no masks, but a wider MLP, whose four tensors of 43/16 of the width take 21.5 bytes. The attention's Q, K, V and its output, and the outputs of the two norms, are six tensors in 16 bits, 12 bytes. Each norm keeps 8 bytes more where it is made of several operators, as here, which makes 49.5, and 2 where it is one, which makes 37.5: `per_unit("llama_fused", 256)` gives 37.7. (The rest are a few statistics; hence 34.2 for GPT, too, and not 34.) The boards use 34 for all large models; with 37.7 the 9 GB of the first picture would be 10, with 49.7 13.
#
# </details>
#
# %% [markdown] sections="10.1.1"
# ## Five reasons, and which of them are good
#
# Five reasons are usually given for many cards. Let us compute each.
#
# ### 1. The model does not fit
#
# 112 GB do not fit into 80. But each card can hold a part of the states: that trick is called [ZeRO](06_zero_deepspeed.ipynb), and chapter 06 builds it.
#
# ### 2. It takes too long
#
# Training takes about 6 operations for each parameter and token (Kaplan et al. 2020): 2 in the forward, 4 in the backward. LLaMA-2 70B was trained on 2 trillion tokens, and an A100 really did about 1.4e14 operations a second. How many years would that be on one card? (The answer takes the card hours that the paper reports, so it comes out a little higher than these numbers.)

# %%
years = lab.guess("years on one card, LLaMA-2 70B", between=(0, 10_000))

# %%
timed = [each for each in planner.MODELS.values() if each.a100_hours]
years.score(timed[-1].a100_hours / 24 / 365)

# %%
peak_per_hour = 312e12 * 3600
rows = []
for each in timed:
    reached = 6 * each.params * each.train_tokens / (peak_per_hour * each.a100_hours)
    rows.append(
        {
            "name": each.name,
            "A100 hours": round(each.a100_hours),
            "years": each.a100_hours / 8760,
            "reached": reached,
        }
    )
lab.table(rows, units={"reached": "share"})

# %% [markdown]
# `reached` is the share of the card's peak, 312 TFLOP/s, that the run got: its [MFU](GLOSSARY.md#mfu). Chapter 18 asks where the rest went.
#
# ### 3. There is too much data
#
# More tokens to train on take longer: that is reason 2 again. Reading and tokenizing them is work for CPU cores, where more cards do not help.
#
# ### 4. Reliability?
#
# Is a cluster of 1,024 cards safer than one card? The Llama 3 report (section 3.3.4) counts 419 unexpected interruptions in 54 days on 16,384 cards, one every three hours. If they come independently, then what share of days passes without any, on 1,024 cards?

# %%
quiet_days = lab.guess("days without an interruption, 1,024 cards", between=(0, 1))


# %%
def quiet_share(num_gpus):
    hours_of_one = 54 * 24 * 16_384 / 419
    return exp(-24 * num_gpus / hours_of_one)


quiet_days.score(quiet_share(1024))

# %% [markdown]
# More devices fail more often. That is a price, and chapter 13 is about paying it.
#
# ### 5. More experiments
#
# Days per run decide how many ideas you can try. With $N$ cards a run is at best $N$ times as fast, and the serial part takes as long as before (Amdahl 1967). LLaMA 7B took 82,432 hours of a card; how many such runs fit into 30 days on 4,096 cards if 1 % of the work is serial?


# %%
def runs_in_30_days(cards, serial):
    days = timed[0].a100_hours / 24
    return 30 / (days * (serial + (1 - serial) / cards))


counts = [2**n for n in range(13)]
shares = {"all parallel": 0, "0.1 % serial": 0.001, "1 % serial": 0.01}
runs = {name: {n: runs_in_30_days(n, shares[name]) for n in counts} for name in shares}
title = "Runs of LLaMA 7B in 30 days"
lab.curves(predicted=runs, x="cards", y="runs", log_x=True, log_y=True, title=title)

# %% [markdown] sections="10.1.1"
# Follow the lowest curve. It bends at about a hundred cards, and even 4,096 cards don't finish one run in the month. Several chapters are about keeping that serial share small.
#
# So the verdict on the five: *it does not fit*, *it takes too long* and *more experiments* are good reasons. *Too much data* either means too much time or asks for CPU cores, and reliability speaks against many cards.
#
# %% [markdown] sections="10.1.2"
# ## What makes it hard
#
# Six difficulties come with the cards:
#
# | difficulty | what it is | chapters |
# | --- | --- | --- |
# | communication | bytes to send, and time to wait for them | 02, 03, 11 |
# | load balance | all wait for the slowest | 00, 03, 08 |
# | consistency | all must hold the same weights | 03 |
# | memory | copies of everything on every rank | 05, 06, 07 |
# | faults | one fails, all stop | 13 |
# | complexity | a bug may hang, or give wrong numbers silently | 00, 14 |
#
# Here is a first look at consistency. Two ranks begin with the same weights and train five steps on different data. If nobody averages the gradients, how far apart are the two models in the end?


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
alone = lab.launch(five_steps, False, ranks=2)
together = lab.launch(five_steps, True, ranks=2)
apart = [lab.difference(*each) for each in (alone, together)]
lab.table([dict(zip(("no averaging", "averaged"), apart))])

# %% [markdown]
# The first number is the largest difference of a weight without averaging: there are two models instead of one. The second is zero, because one `all_reduce` per gradient has kept them equal. With equal weights at the start and different data, the three lines from `if average` on are all of data parallelism, and chapter 03 makes them fast.

# %% [markdown] sections="8.1.2"
# ## Ways to run in parallel
#
# - **[Data parallel](GLOSSARY.md#data-parallelism)**: every rank has the whole model and takes a part of the batch; gradients are averaged.
# - **By layers** (model parallel; chapter 08 makes a *pipeline* of it): every rank has some of the layers, and activations travel from one to the next.
# - **Hybrid**: the layers are cut into stages, and each stage has several copies.
# - **States sharded**: data parallel, but each rank keeps only a part of the states (chapters 06 and 07).
#
# LLaMA 7B on 4 ranks, all in fp32 for once, 16 sequences a step: which of the four sends the fewest bytes?

# %%
strategies = {
    "data parallel": "data",
    "by layers": "layers",
    "hybrid of both": "hybrid",
    "states sharded": "sharded",
}
fewest = lab.guess("which sends the fewest bytes", choices=list(strategies))

# %%
every = {name: planner.Strategy(strategy=word) for name, word in strategies.items()}
sent = {name: each.sent_bytes() for name, each in every.items()}
fewest.score(min(sent, key=sent.get))

# %%
rows = [
    {
        "way": name,
        "a rank holds_bytes": sum(each.bill().values()),
        "a rank sends per step_bytes": sent[name],
        "idle": each.idle,
    }
    for name, each in every.items()
]
lab.table(rows, units={"idle": "share"})

# %% [markdown]
# Look at *a rank sends per step*. Splitting by layers sends far fewer bytes than the others, and each rank holds a quarter of the states, as little as with full sharding. It pays with idle time: even with the batch cut into 16 pieces it is 15.8 % (chapter 08). What it sends also grows with the batch, while data parallel always sends the same. A fifth way cuts not between layers but every layer itself: [tensor parallelism](GLOSSARY.md#tensor-parallelism), in chapter 09. (All four rows still exceed 80 GB, because in each some 71 GB are activations: by layers too, if all pieces go forward before the first goes backward. Chapter 08 does better, and chapter 05 makes them smaller.)

# %% [markdown] sections="10.1.3"
# Where gradients are averaged, the ranks can be connected in several ways. A **[parameter server](GLOSSARY.md#parameter-server)** is one rank that collects and answers; in a **[ring](GLOSSARY.md#ring)** each talks to its two neighbours only; **hierarchical** works inside each machine first, then between them. All ranks together send the same each time. What differs is who sends, and over which link: [chapter 02](02_collectives.ipynb) lets them race.

# %% [markdown] sections="D-faq"
# ## When is it worth it?
#
# Rules of thumb go by size, but the recipe, the length of the sequence and the card matter as much, so it is better to compute it. With one sequence on each card of 80 GB, as long as the model was trained on (LLaMA 2,048 tokens, LLaMA-2 4,096), how many cards does each model need?

# %%
rows = []
for name, model in planner.MODELS.items():
    need = planner.Need(model=name)
    rows.append(
        {
            "name": name,
            "states_gb": 16 * model.params / 1e9,
            "one card": need.needed(0) == 1,
            "optimizer sharded": need.needed(1),
            "all sharded": need.needed(3),
            "all, recomputed": need.but(attention="recompute").needed(3),
        }
    )
lab.table(rows)

# %% [markdown]
# An empty cell says that no number of cards is enough: what is left on each card is too large already. (*All sharded* leaves out the layer that is gathered for a moment.) Sharding states does nothing for activations, so, where every card computes all layers whole, the two largest models need recomputation (chapter 05) as well. In this order, then:
#
# 1. It fits on one card and is fast enough: use one card.
# 2. It fits but is slow: data parallel, with DDP (chapter 03).
# 3. The states don't fit: shard them, the optimizer first, because that costs no byte more than DDP, then gradients, then parameters (half as many bytes again; chapters 06 and 07).
# 4. The activations don't fit: recompute, take a smaller microbatch, then cut the layers themselves, inside one machine (chapter 09).
# 5. There are many machines with slow links between them: cut by layers (chapter 08), because that sends little as long as the batch is small, and shard inside the machines.
#
# So our 7 B model does not fit on one card. Two would hold it; we take eight, one machine. Look at what is missing on the left and left over on the right, then at the days: it fits, but it is still slow. (`dp 8` is data parallel on eight ranks. The plan counts 6.74 billion parameters instead of 6.7 billion; the 4 GB more than in the first picture are mostly logits and what a process takes for itself.) The numbers are predicted, the times by constants from published runs of Megatron and FSDP on A100s, and optimistic: by LLaMA's own 82,432 hours of a card, eight cards would take 429 days. Chapter 19 tells how far to trust them.

# %%
before = planner.Plan(model="LLaMA 7B", gpus=1, recipe="mixed", batch=512)
planner.card(before, before.but(gpus=8, zero=3))

# %% [markdown]
# ## Exercise 2. How many cards?
#
# Write the rule behind the table as a function, for any model: the mixed recipe, plus `activation_bytes` on each card. Optimizer states may be sharded (stage 1), gradients too (stage 2), parameters too (stage 3), or nothing (stage 0). Return `(stage, num_ranks)` with the fewest ranks whose cards hold it; of several stages that need so many, the lowest. Return None if not even 4096 ranks are enough.


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

# %% [markdown]
# ## Summary
#
# - Training with Adam holds 16 bytes of states per parameter, in fp32 and in mixed precision. The file of weights says little about whether a model can be trained.
# - A GPT block keeps 34 bytes of activations per token and unit of width in 16 bits, and with a stored attention matrix more, the longer the sequence.
# - Sharding divides states. To keep fewer activations, a rank has to take fewer sequences or fewer layers (or a slice of each layer), or recompute.
# - Splitting by layers sends little as long as the batch is small, and waits; data parallel sends the gradients, whatever the batch.
# - More devices fail more often. That is a price, not a reason.
#
# **Words learned**: [model states](GLOSSARY.md#model-states), [recipe](GLOSSARY.md#recipe), [mixed precision](GLOSSARY.md#mixed-precision), [activations](GLOSSARY.md#activations), [data parallelism](GLOSSARY.md#data-parallelism), [tensor parallelism](GLOSSARY.md#tensor-parallelism), [parameter server](GLOSSARY.md#parameter-server), [ring](GLOSSARY.md#ring), [MFU](GLOSSARY.md#mfu).
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
# **To read on**: Rajbhandari et al. 2020, *ZeRO* ([arXiv 1910.02054](https://arxiv.org/abs/1910.02054)) on model states; Korthikanti et al. 2022 ([arXiv 2205.05198](https://arxiv.org/abs/2205.05198)) on activations; Kaplan et al. 2020 ([arXiv 2001.08361](https://arxiv.org/abs/2001.08361)) on the 6 operations; *The Llama 3 Herd of Models* ([arXiv 2407.21783](https://arxiv.org/abs/2407.21783)) on interruptions. `data/models.csv` and `data/hardware.csv` name a source in each row.
#
# Where you stand:

# %%
check.status()

# %% [markdown]
# *Sections 8.1.1, 8.1.2, 10.1.1, 10.1.2 and 10.1.3, and D-faq of the source material.*
