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
# *Three quarters of an hour, a quarter more for the optional end; exercises come on top. You need chapter 00. No GPU is needed.*
#
# We want to train LLaMA 7B. In 16 bits its weights take 13.4 GB, and a card has 80 GB, so there should be plenty of room. But the usual way of training needs 116 GB and more, even if the card takes its text one sequence at a time and adds up the gradients.
#
# So one card is not enough. How many do we need, and what will they cost us?

# %%
import torch
import torch.distributed as dist

import labkit as lab
from labkit import planner, your_own
from labkit.measure import traffic
from labkit.planner import check

lab.begin("en")
need = planner.Need(model="LLaMA 7B")  # one sequence of text at a time
sizes = {"its weights": 2 * 6.7e9, "what training needs": sum(need.bill().values())}
title = "LLaMA 7B on one card"
card = {"the card": need.device_bytes}
lab.bars(sizes, unit="bytes", marks=card, badge="computed", title=title)

# %% [markdown]
# **When you are done** you can say how much memory a model takes to train, how many cards hold it, and what each way to run in parallel sends.
#
# ## A run dies
#
# To see what fills a card, we watch a small run die: a network trained with Adam, eight layers of 1024 by 1024 in fp32, so 32 MiB of weights. Its [pretend device](GLOSSARY.md#pretend-device) has 100 MiB, and enforces that. At which line will it run out of memory?

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


# %%
try:
    lab.launch(train, 1024, ranks=1, devices=lab.pretend(memory_mib=100))
except lab.RankFailed as failed:
    report = failed
dies_at.score(report.finding.where["text"])

# %%
print(report)

# %% [markdown]
# At its first step Adam makes two numbers of its own for every weight, 64 MiB. With 32 MiB of weights and 32 of gradients that would be 128, too many. So some runs die only after their first backward.

# %% [markdown] sections="8.1.1"
# ## The bytes of one parameter, by hand
#
# How many bytes does a card hold for each parameter of a large model? A usual [recipe](GLOSSARY.md#recipe) is [mixed precision](GLOSSARY.md#mixed-precision) with weights and gradients in 16 bits, so that the matrix products are quick. For small updates 16 bits are too coarse: `torch.tensor(1.0).bfloat16() + 0.001` is still 1, and in fp16 (`half()`) so is 1 + 0.0004. So there is a second copy of the weights in fp32, and Adam's two numbers are fp32 as well.
#
# In the small network everything is fp32: 4 bytes for the weight, 4 for its gradient, 8 for Adam's two numbers. How many of these 16 does the recipe save?

# %%
saved = lab.guess("bytes of states saved per parameter", between=(0, 12))

# %% [markdown]
# Here is one step of the recipe:


# %%
def mixed_step():
    net = torch.nn.Linear(1024, 1024, bias=False).bfloat16()
    weight, copy = net.weight, net.weight.detach().float()
    adam = torch.optim.Adam([copy])
    loss = net(torch.randn(8, 1024, dtype=torch.bfloat16)).square().mean()
    loss.backward()
    copy.grad = weight.grad.float()  # 4 bytes more, for a moment
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
saved.score(16 - sum(held.values()))

# %%
lab.bars(held, title="Bytes per parameter, held after a step")

# %% [markdown] sections="8.1.1, D-faq"
# All four together are the [model states](GLOSSARY.md#model-states). The fp32 copy takes as many bytes as the 16-bit weights and gradients have saved.
#
# So the rule is **16 bytes of states for each parameter** in both recipes. LLaMA 7B has 6.7 billion parameters, which makes 107 of the 116 GB.
#
# <details><summary>With autocast? And at the peak of a step?</summary>
#
# This is the recipe of the ZeRO paper. Torch's autocast keeps weights and gradients in fp32, which makes 16 bytes, too.
#
# A run dies at its peak, and while Adam works our step also holds the gradient in fp32, 20 bytes in all. DeepSpeed converts it part by part; we count 16.
#
# </details>

# %% [markdown]
# ## Exercise 1. Read the bill
#
# A *bill* says which part of the training takes how many bytes. Write a function that reads the bill after a step, while the gradients are still there. Here is a model to try it on, and what Adam keeps for its only weight:

# %%
net = torch.nn.Linear(1000, 1000, bias=False)
adam = torch.optim.Adam(net.parameters())
net(torch.randn(8, 1000)).sum().backward()
adam.step()
{name: each.nbytes for name, each in adam.state[net.weight].items()}

# %% [markdown]
# For this model your bill is `{"parameters": 4_000_000, "gradients": 4_000_000, "optimizer": 8_000_004}`: Adam's count of steps is a tensor, too.


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
# The last 9 GB are [activations](GLOSSARY.md#activations), what the forward keeps because the backward will need it. They grow with the text that you feed at once. We count them for a block of GPT, the simplest; LLaMA's own keeps more and comes at the end.
#
# Such a block is a norm, attention, dropout and an addition, then a norm, an MLP, dropout and an addition:
#
# - a norm, a matrix product and GELU each keep their input (GELU's input and output are four times as wide as the block),
# - flash attention keeps Q, K, V and its output,
# - dropout keeps a mask of one byte for each number. An addition keeps nothing.
#
# Numbers are bf16, 2 bytes, and a tensor that two operators keep counts once. How many bytes does the block keep for each token and each unit of its [width](GLOSSARY.md#width), the hidden size?

# %%
block_keeps = lab.guess("bytes a block keeps", between=(1, 100))

# %%
# the bill has 32 blocks, 4096 wide, and 2048 tokens
block_keeps.score(need.bill()["activations"] / (32 * 4096 * 2048))

# %%
attention = {"input": 2, "norm": 2, "Q": 2, "K": 2, "V": 2}
attention |= {"attended": 2, "product": 0, "mask": 1}
mlp = {"sum": 2, "norm": 2, "4 x wide": 8, "GELU": 8}
mlp |= {"product": 0, "mask": 1, "next sum": 0}
by_hand = sum(attention.values()) + sum(mlp.values())
lab.show(your_own.operators({"attention": attention, "MLP": mlp}, counted=True))

# %% [markdown]
# A box is a tensor, in the order in which they arise; of dropout it is the mask. A yellow one is as wide as the bytes kept of it. The MLP keeps 21 of the 34, because GELU's input and output are so wide. The last sum is counted as the next block's input.
#
# ## What autograd keeps
#
# Does torch keep as much? Autograd calls a hook for each tensor that it saves. We count every storage once, without the weights; `planner.block` makes the block:


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


lab.table([{"by hand": by_hand, "kept": per_unit("gpt", 256)}])

# %% [markdown]
# The 0.2 more, at this width of 128, are statistics of norms and attention. With GPT's 34 bytes LLaMA 7B's 32 blocks of width 4,096 keep $34 \cdot 2048 \cdot 4096 \cdot 32$ bytes of our sequence of 2,048 tokens: the 9 GB.
#
# <details><summary>The forward of this block</summary>
#
# ```python
# q, k, v = (
#     each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
#     for each in self.qkv(self.norm1(x)).chunk(3, -1)
# )
# y = F.scaled_dot_product_attention(q, k, v)
# x = x + _dropout(self.out(y.transpose(1, 2).flatten(2)))
# return x + _dropout(self.down(F.gelu(self.up(self.norm2(x)))))
# ```
#
# How a block is written decides what it keeps. `_dropout(x)` is `x * mask / 0.9`, as a GPU's operator keeps it: a mask of one byte. All is in `labkit/planner/real/blocks_run.py`.
#
# </details>

# %% [markdown] sections="10.1.2"
# ## Two models instead of one
#
# Two cards can share two things, the work and the memory. We begin with the work: each card takes its own sequence, and for now each holds all 116 GB. Do they still train one model?
#
# Two ranks begin with the same weights and train a small network for five steps, on different data. After each backward they average their gradients. How far apart are the weights in the end, where they differ most?

# %%
answers = ("exactly 0", "a rounding error or more")
apart = lab.guess("largest difference, with averaging", choices=answers)


# %%
def five_steps(average):
    torch.manual_seed(0)
    net = torch.nn.Linear(512, 512)
    torch.manual_seed(1 + dist.get_rank())
    with traffic.count() as counted:
        for _ in range(5):
            net(torch.randn(8, 512)).square().mean().backward()
            for weight in net.parameters():
                if average:
                    dist.all_reduce(weight.grad)  # the sum, on every rank
                    weight.grad /= dist.get_world_size()
                weight.data -= 0.5 * weight.grad
                weight.grad = None
    handed = counted.payload_bytes["all_reduce"]
    sent = {"payload_bytes": handed, "wire_bytes": counted.sent_bytes}
    return {"weights": net.state_dict(), "sent": sent}


# %%
def compared(ranks, average):
    first, second = lab.launch(five_steps, average, ranks=ranks)[:2]
    most = lab.difference(first["weights"], second["weights"])
    row = {"ranks": ranks, "averaged": average, "apart": most}
    return row | first["sent"]


rows = [compared(2, False), compared(2, True), compared(4, True)]
apart.score("exactly 0" if rows[1]["apart"] == 0 else "a rounding error or more")

# %%
lab.table(rows)

# %% [markdown] sections="10.1.3"
# The table compares the first two ranks. Without averaging there are soon two models. With it they keep one, since both get the same sums, bit for bit. Up to rounding, it is the model of one card with both batches: the mean over two equal batches is the mean of their means. The three lines from `if average` on are the heart of *data parallelism* (chapter 03).
#
# The payload is what a rank hands to `all_reduce`, the gradients of five steps. With two ranks each sends it once, with four 1.5 times, plus some headers. Why? In a [ring](GLOSSARY.md#ring) the gradients are cut into as many parts as there are ranks. They go round twice, once to be summed and once to hand out the sums. To reach all ranks a part takes one hop fewer than there are ranks, and in each hop every rank sends one part: in a round all parts but one. With two ranks that is $2 \cdot \frac{1}{2}$ of the gradients, with four $2 \cdot \frac{3}{4}$.
#
# <details><summary>Other ways to average</summary>
#
# A [parameter server](GLOSSARY.md#parameter-server) collects and answers, or the ranks average hierarchically, inside each machine first. [Chapter 02](02_collectives.ipynb) lets them race.
#
# </details>

# %% [markdown] sections="10.1.1, D-faq"
# ## Can two cards share it?
#
# Now the memory: which of the 116 GB can be shared? [ZeRO](06_zero_deepspeed.ipynb), the zero redundancy optimizer, leaves each card its own sequence, and with it the activations, but cuts the states. **ZeRO 1** cuts what the optimizer adds (the fp32 copy and Adam's two numbers). How can a card train with half of that? It updates only half of the weights, in three moves:
#
# 1. In one round of the ring each card gets the summed gradients of its half.
# 2. It updates this half, with its part of the fp32 copy and of Adam's numbers.
# 3. In a second round both cards hand out their new weights.
#
# **ZeRO 2** cuts the gradients too: of the sums a card keeps only its own part. **ZeRO 3** cuts the parameters too: the cards gather each layer when they need it, and let it go again.

# %%
need.board()

# %% [markdown]
# This is a [board](GLOSSARY.md#board): when you turn its controls, it computes the bill again. By this bill two cards are enough for ZeRO 1, with 4 GB to spare. What it leaves out comes later.
#
# ### A larger model
#
# Now LLaMA 13B, with 14.3 GB of activations. How many cards does ZeRO 1 need?

# %%
cards_of_13b = lab.guess("cards for LLaMA 13B, ZeRO 1", between=(1, 64))

# %%
cards_of_13b.score(planner.Need(model="LLaMA 13B").needed(1))

# %% [markdown]
# <details><summary>By hand</summary>
#
# Parameters and gradients stay whole, 4 bytes for each of 13 billion, so 52 GB. Of the card's 80 GB, 80 - 14.3 - 52 = 13.7 are left. The optimizer's 12 x 13 = 156 GB, divided by the number of cards, must fit into these: 156 / 13.7 is 11.4, so 12 cards.
#
# This holds by our bill, and a few GB change it a lot. Torch can use about 85 billion bytes of an A100; then 18.7 GB are left, and 9 cards do. With gradients in fp32, 26 GB more, no number does: 92.3 GB stay on each card.
#
# </details>

# %% [markdown]
# ## Exercise 2. How many cards?
#
# Count the cards for any model, with the mixed recipe and `activation_bytes` on each card. Try all stages of ZeRO, from 0 (nothing sharded) to 3. Return `(stage, num_ranks)` with the fewest ranks whose cards hold it; on a tie, the lowest stage. Exactly full is a fit. Return None if not even 4096 ranks are enough.
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

# %% [markdown] sections="8.1.2"
# ## Four ways to run in parallel
#
# Here are four ways to share the work, for LLaMA 7B, with 4 ranks and 16 sequences a step. A blue box is four of the 32 layers; in ZeRO 3 a rank has a sliver of each. Orange boxes are its sequences, and lines show what travels:

# %%
data = planner.Strategy(ranks=4, batch=16, recipe="mixed", one_by_one=True)
every = {
    "data parallel": data,
    "by layers": data.but(strategy="layers"),
    "hybrid of both": data.but(strategy="hybrid"),
    "ZeRO 3": data.but(strategy="sharded"),
}
lab.show(planner.ways(every))

# %% [markdown]
# - **[Data parallel](GLOSSARY.md#data-parallelism)**: every rank has the whole model and a part of the batch.
# - **By layers** (chapter 08: a *pipeline*): activations go from layer to layer, their gradients back.
# - **Hybrid**: both. The layers are cut into stages, and each stage has several copies.
# - **ZeRO 3**: data parallel, with all states cut.
#
# A fifth way, [tensor parallelism](GLOSSARY.md#tensor-parallelism), cuts every layer itself (chapter 09).
#
# ## What each way sends
#
# Every rank takes its sequences one by one, as *microbatches*. By layers a middle rank hands on the activations of each of the 16 sequences (2,048 tokens, 4,096 wide, 2 bytes), and their gradients back. How many MB does it send in a step?

# %%
by_layers = lab.guess("MB that a middle rank sends by layers", between=(1, 100_000))

# %%
by_layers.score(every["by layers"].sent_bytes() / 1e6)

# %%
planner.costs(every | {"ZeRO 1": data.but(shard_optimizer=True)})

# %% [markdown]
# Only data parallel doesn't fit. (What ZeRO 3 gathers for a moment is left out.)
#
# By layers sends least. A quarter of the states is 26.8 GB, but the first rank holds 35.9. Why? Its first sequence must pass all four ranks before the backward comes back, and meanwhile it begins three more. From then on each backward frees one before the next begins. So it keeps four times a quarter of the activations: all 9.1 GB.
#
# Where layers are cut, ranks also wait for each other. By layers a rank has 16 turns of forward and backward, and waits for 3 more: 3/19, or 15.8 %, is *bubble* (chapter 08).
#
# In hybrid two copies of a stage average the gradients of half of the layers, 6.7 GB. So each sends $2 \cdot \frac{1}{2} \cdot 6.7$ GB of gradients, and 0.13 of activations: 6.83.
#
# ### Our choice: ZeRO 1
#
# ZeRO 1 is the last row. Its two rounds of the ring send as much as those of data parallel: $2 \cdot \frac{3}{4} \cdot 13.4 = 20.1$ GB.
#
# By layers sends less, and holds less, too, since ZeRO 1 leaves weights and gradients whole. Yet we take ZeRO 1: it fits, the model stays whole, and between the cards of one machine it is quicker. For four A100s labkit's planner estimates 1.7 seconds a step, of which ZeRO 1's messages take 0.1. By layers it is 2.0 seconds, and 0.3 of them are bubble. (With many more sequences than our 16 neither counts for much, and what decides is that the model stays whole.)

# %% [markdown]
# ## Exercise 3. What a rank sends
#
# Write a function for LLaMA 7B: bytes that the busiest rank sends in a step. `way` is `"data"`, `"layers"` or `"sharded"` (ZeRO 3), and `sequences`, taken one by one, are those of all ranks together. Two rules are these, for 4 ranks and 16 sequences:
#
# - Data parallel: 2 x 3/4 of 13.4 GB of gradients, once after all sequences.
# - By layers: 16 sequences x 2,048 tokens x 4,096 wide x 2 bytes of activations to the next rank, and their gradients back. The first and the last rank have only one neighbour, so with two ranks both send in one direction.
#
# Find the third: for each of its sequences a rank of ZeRO 3 gathers all parameters in the forward, gathers them again in the backward, and sums the gradients. Each of these is one round of a ring.
#
# `my_sent("layers", 4, 16)` is 536,870,912. The check tries other numbers of ranks, even one.


# %%
def my_sent(way, ranks, sequences):
    """Bytes that the busiest rank sends in a step."""
    ### BEGIN SOLUTION
    part = 13.4e9 * (ranks - 1) / ranks
    if way == "data":
        return 2 * part
    if way == "sharded":
        return 3 * part * sequences / ranks
    return min(2, ranks - 1) * 2048 * 4096 * 2 * sequences
    ### END SOLUTION


# %%
check.rank_sends(my_sent)

# %%
check.hint("rank_sends")

# %% [markdown]
# <details><summary>The rules of all five ways</summary>
#
# | way | activations of | the busiest rank sends |
# | --- | --- | --- |
# | data parallel | 1 sequence | 2 x 3/4 of 13.4 GB of gradients, once |
# | by layers | 4 sequences, a quarter of the layers | activations of 16 sequences in both directions |
# | hybrid of both | 2 sequences, half of the layers | 2 x 1/2 of 6.7 GB of gradients, and 8 sequences in one direction |
# | ZeRO 3 | 1 sequence | 3 x 3/4 of 13.4 GB for each of its four sequences |
# | ZeRO 1 | 1 sequence | as data parallel: a round sums the gradients, a round hands out new parameters |
#
# </details>

# %% [markdown] sections="D-faq"
# ## How many cards, then?
#
# What does the bill leave out? Gradients are better added up in fp32, since 16 bits are coarse for sums, too. LLaMA's own block keeps more than GPT's (optional end). The logits are 2,048 x 32,000 numbers, with 10 bytes each (2 in 16 bits, 4 in fp32, 4 of gradient). And labkit's planner estimates 3 GB for the process: CUDA's context, NCCL's buffers, gaps in memory.

# %%
left_out = {
    "gradients, 2 bytes more": 2 * 6.7e9,
    "LLaMA's block": (per_unit("llama", 256) - by_hand) * 2048 * 4096 * 32,
    "logits": 10 * 2048 * 32_000,
    "process": 3e9,
}
lab.bars(left_out, unit="bytes", badge="computed", title="What the bill leaves out")


# %%
more = sum(left_out.values())
rows = {}
for name, cards in {"2 cards": 2, "4 cards": 4, "8 cards": 8}.items():
    bill = sum(need.bill(cards, stage=1).values())
    rows[name] = {"the bill": bill, "left out": more}
title = "What one card holds with ZeRO 1"
lab.bars(rows, stacked=True, unit="bytes", marks=card, badge="computed", title=title)

# %% [markdown]
# Two cards hold the bill, but not what it leaves out. **Four cards hold that, too**: with 77.3 GB on each, 2.7 of the 80 are left. (On an A100 torch can use about 85 billion bytes; then 7.7 GB are left.) But each of these numbers may be off by a few GB. We take eight, because a machine has eight.
#
# ## How long, and at what cost?
#
# Training takes about 6 operations for each parameter and token, 2 forward and 4 backward (Kaplan et al. 2020). An A100 does at most 3.12e14 a second. LLaMA 7B saw 1 trillion tokens, so at this peak one card would need this many days:

# %%
llama = planner.MODELS["LLaMA 7B"]
peak_days = 6 * llama.params * llama.train_tokens / 312e12 / 3600 / 24
round(peak_days)

# %% [markdown]
# LLaMA's paper says that its A100s really took 82,432 hours. What share of the peak did they reach?

# %%
reached = lab.guess("share of the peak, in percent", between=(1, 100))

# %%
card_days = 82_432 / 24  # LLaMA's paper, table 15
reached.score(100 * peak_days / card_days)

# %% [markdown]
# This share is the [MFU](GLOSSARY.md#mfu), model FLOPs utilization. The products themselves stay below the peak, and norms, attention, messages, waiting and, where there is some, recomputation take time as well. Labkit's planner is more hopeful: its step for four cards would reach 61 % of the peak. So we let it compare plans, but count days by the paper's hours, and assume a price:

# %%
price = 2  # dollars for an hour of a card: put in yours
rows = [{"cards": n, "days": card_days / n, "card-days": card_days} for n in (4, 8, 64)]
lab.table([row | {"dollars": 24 * price * row["card-days"]} for row in rows])

# %% [markdown]
# So eight cards train LLaMA 7B in 14 months, for about 165,000 dollars. The table takes the same MFU for any number. But let a step have 512 sequences. If 64 cards share them instead of eight, each computes an eighth as long, and sends as many bytes over slower links. Labkit's planner predicts that they end 7.3 times sooner, for a tenth more card-days.
#
# <details><summary>What the planner predicts, and what it counts differently</summary>
#
# Run `planner.Plan(model="LLaMA 7B", gpus=8, zero=1, recipe="mixed", batch=512, precision="fp16").days(1e12)`: 282 days, which is 66 % of the peak, for steps of 512 sequences. LLaMA took about 2,000 a step.
#
# This is probably too quick. The constants come from published runs of Megatron on A100s. All of them recomputed activations, all but the smallest were tensor parallel, too, and the best reached 56 %, with the products of attention; counted so, the planner's 66 % are 70 %. Our plan neither recomputes nor cuts the model, so it goes beyond those runs.
#
# The planner sends gradients in 16 bits, as in the bill; with fp32 64 cards take 15 % more card-days than eight.
#
# </details>
#
# ---
#
# *Here ends what most people need. The rest is optional: larger batches, other models and blocks, the reasons for many cards, the bill of one rank.*

# %% [markdown]
# ## A larger batch: when do layers send more?
#
# Averaged gradients take as many bytes for any batch, and activations grow with it. So at some batch cutting by layers sends more than data parallel:

# %%
batches = (16, 64, 256, 1024, 4096)
gigabytes = {
    name: {n: every[name].but(batch=n).sent_bytes() / 1e9 for n in batches}
    for name in ("data parallel", "by layers")
}
as_much = {
    "both the same": gigabytes["data parallel"][16] / gigabytes["by layers"][16] * 16
}
axes = {"x": "sequences for four ranks", "y": "GB that a rank sends"}
title = "What one of four ranks sends in a step"
lab.curves(predicted=gigabytes, **axes, at=as_much, log_x=True, log_y=True, title=title)

# %% [markdown]
# The lines cross at about 600 sequences for one pipeline of four ranks. LLaMA took 4 million tokens a step (Touvron et al. 2023), about 2,000 sequences, but on many cards. If 64 such pipelines share them, each gets about 31, and by layers a rank sends 1 GB of activations. The pipelines average their gradients, too: at most 2 x 3.35 GB for a rank, which has a quarter of the model. Together it is less than half of data parallel's.
#
# Bytes aren't seconds (chapter 11).

# %% [markdown]
# ## Other models, other blocks, longer sequences
#
# How many cards do other models need, with one sequence each? Where a cell is empty, no number is enough: the activations alone are more than 80 GB. Recomputation helps (chapter 05).

# %%
planner.cards()

# %% [markdown]
# The bill counted 34 bytes, as for GPT's block. LLaMA's block keeps more: 49.7 bytes here. It has no dropout, hence no masks. Between its MLP's three matrices lie four tensors, each 43/16 as wide as the block, instead of GPT's two. Q, K, V, the attention's output and the outputs of the norms are as wide as the block. And each of its two norms is made of several operators, which keep 8 bytes. How many does the block keep if each norm is one operator, which keeps 2?

# %%
fused_keeps = lab.guess("LLaMA's block with fused norms keeps", between=(20, 60))

# %%
fused_keeps.score(per_unit("llama_fused", 256))

# %% [markdown]
# <details><summary>Where do LLaMA's bytes come from?</summary>
#
# The MLP's four tensors take 21.5 bytes, and the six as wide as the block 12. With norms of several operators there are 16 more, which makes 49.5, and with norms of one 4 more, which makes 37.5; the 0.2 are statistics again. The boards use 34 for all large models; with 37.7 their 9 GB would be 10, with 49.7 13.
#
# </details>
#
# And when the sequence gets longer? One of the next three blocks stores the attention matrix, which flash attention doesn't:

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
# The markers are our count, the lines a formula of Korthikanti et al. (2022): for $b$ sequences of $s$ tokens and width $h$ a GPT block keeps $34\,s\,b\,h$ bytes. It keeps $5\,a\,s^2 b$ more if it stores the attention matrix of its $a$ heads.
#
# For LLaMA 7B, with 32 heads, this adds 80 to the 34.

# %% [markdown] sections="10.1.1"
# ## Five reasons for many cards
#
# Five reasons are usually given for many cards. The first, that the model doesn't fit, is true of LLaMA 7B. The second is that training takes too long: by the paper's hours one card would need more than nine years.
#
# If all of the work could be divided, 4,096 cards would need 20 hours. But the part that is serial takes as long as on one card (Amdahl 1967). Assume that 1 % is serial. How many days do 4,096 cards need then?

# %%
days_needed = lab.guess("days on 4,096 cards, 1 % serial", between=(1, 365))


# %%
def days_on(cards, serial):
    return llama.a100_hours / 24 * (serial + (1 - serial) / cards)


counts = [2**n for n in range(13)]
shares = {"all parallel": 0, "0.1 % serial": 0.001, "1 % serial": 0.01}
needed = {name: {n: days_on(n, shares[name]) for n in counts} for name in shares}
axes = {"x": "cards", "y": "days", "log_x": True, "log_y": True}
lab.curves(predicted=needed, **axes, title="Days of training, LLaMA 7B")

# %%
days_needed.score(days_on(4096, 0.01))

# %% [markdown]
# However many cards there are, the serial part stays.
#
# Are many cards more reliable? The Llama 3 report (section 3.3.4) counts 419 unexpected interruptions in 54 days on 16,384 cards. If they come in proportion to the cards, one card is interrupted once in almost six years, and a thousand cards every other day.
#
# | reason | a good one? | why |
# | --- | --- | --- |
# | it doesn't fit | yes | 116 GB on a card of 80 GB |
# | it takes too long | yes | nobody waits for years |
# | too much data | the same reason | tokens are time |
# | more experiments | if one has to end sooner | independent ones can have cards of their own |
# | more reliable | no, a price | more cards fail more often (chapter 13) |

# %% [markdown]
# ## Exercise 4. The bill of one rank
#
# Read the bill again, but now of what lies on **this rank**. Some models are cut by `fully_shard`: then parameters, gradients and most of Adam's tensors are DTensors, which say how large the whole is. `to_local()` gives the part that lies here. In others two layers share a weight, which counts once, or a parameter is frozen and has no gradient.
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
# - In fp32 and in mixed precision, model states with Adam take 16 bytes per parameter.
# - A GPT block in 16 bits, with flash attention, keeps 34 bytes of activations per token and unit of width.
# - Data parallel sends gradients, whatever the batch. By layers, activations are sent, which grow with the sequences of a pipeline. ZeRO 3 sends parameters and gradients for each microbatch.
# - With ZeRO 1 two cards hold LLaMA 7B's bill, and four what it leaves out, too. More cards save time, for somewhat more card-days.
# - MFU is the share of the peak that training gets: 43 % for LLaMA 7B, by its paper's card hours.
#
# Count, then choose in this order:
#
# 1. One card holds it and is fast enough: use one card.
# 2. One card holds it but is slow: data parallel (chapter 03).
# 3. The states don't fit: shard them (chapters 06 and 07), the optimizer first, or, where links are slow, cut by layers (chapter 08), which sends less.
# 4. The activations don't fit: take smaller microbatches, recompute (chapter 05), or cut the layers themselves (chapter 09). (By layers doesn't help here: the first rank keeps as many as before.)
#
# **Words learned**: [model states](GLOSSARY.md#model-states), [recipe](GLOSSARY.md#recipe), [mixed precision](GLOSSARY.md#mixed-precision), [activations](GLOSSARY.md#activations), [data parallelism](GLOSSARY.md#data-parallelism), [ring](GLOSSARY.md#ring), [ZeRO](GLOSSARY.md#zero-stage), [tensor parallelism](GLOSSARY.md#tensor-parallelism), [microbatch](GLOSSARY.md#microbatch), [bubble](GLOSSARY.md#bubble), [MFU](GLOSSARY.md#mfu).
#
# **Next**: [collectives](02_collectives.ipynb). All of these ways stand on a few calls, and we will take them apart.

# %% [markdown] sections="8.1.1, 10.1.1, 10.1.2, D-faq"
# ## Errata of the textbook
#
# (These boxes correct a textbook that many readers have read, and its demo project.)
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
# Only if the *model* is in 16 bits, as in the mixed recipe above, or if a hook casts the gradients. Torch's own mixed precision, autocast, leaves weights and gradients in fp32, and gradients are what is sent. Section *Messages in 16 bits* of chapter 05 counts what is sent: as many bytes as in fp32.
#
# </details>
#
# <details><summary>Erratum 8.1.1: activations are "b s h L x 4 bytes"</summary>
#
# That is 4 bytes per token, layer and unit of width: two tensors in 16 bits. Run it: `per_unit("gpt", 256)` gives 34.2, more than eight times as much, and with stored attention there is no constant factor at all.
#
# </details>
#
# <details><summary>Erratum 10.1.1: "reliability: a distributed system tolerates faults"</summary>
#
# At first it is the other way round: if one card fails once in $M$ hours, $N$ cards fail once in $M/N$. By the Llama 3 report, and if interruptions are independent, the share of quiet days on its 16,384 cards is $e^{-419/54}$ or 0.0004: one in about 2,300 days. What a distributed system does bring is that a run *can* survive, because others hold copies and a checkpoint starts it again.
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
