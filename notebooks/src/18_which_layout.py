# ---
# jupyter:
#   labkit:
#     sections: ["8.8.1", "8.12", "19.8.4"]
#     needs: ["chapters 01 and 06 to 10"]
#     minutes: 75
# ---

# %% [markdown]
# # Which layout for which model and cluster
#
# *About 75 minutes. You need chapters 01 and 06 to 10. No GPU is needed.*
#
# We want to train our 7 B model on a trillion tokens, with 64 GPUs. If every GPU keeps a copy, and they share out the optimizer, our planner predicts 40 days. If we cut the model, poorly on purpose, into 64 parts and recompute all activations, it predicts 105. At 2 dollars a GPU hour the 65 days between them cost 200,000 dollars. Where do they go?
#
# What differs is the **layout**: which GPU holds which part of the model and works on which part of the batch. There are about a thousand, but we can compute the memory and time of each. This board begins with one machine. Look at the memory, then at the time:

# %%
import labkit as lab
from labkit import planner
from labkit.planner import plan_check as check
from labkit.planner.models import MODELS

lab.begin("en")
planner.board()

# %% [markdown]
# **When you are done** you can say what a layout holds and about how long its step takes, and when only a run can choose.
#
# <details><summary>What the board shows</summary>
#
# `logits` are the model's output, a number for each word of the vocabulary. `memory traffic` is the time of norms and the like, which wait for the memory. The lowest picture shows few of the step's microbatches, so it exaggerates the waiting. At ZeRO 3 the board predicts PyTorch's FSDP, and else NVIDIA's Megatron. `cp`, for long sequences, stays 1 here.
#
# </details>

# %% [markdown] sections="8.12"
# ## The knobs
#
# What can we choose? Each knob of a layout has its price:
#
# | knob | what it does | what it costs |
# | --- | --- | --- |
# | `dp`, data parallelism | copies the model, divides the batch | gradients travel once a step |
# | `zero` 1, 2, 3 | shards what copies share: Adam, then gradients, then parameters | from 2 on messages with every microbatch |
# | `tp`, tensor parallelism | cuts every layer, with `sp` also what lies between | messages in the middle of every layer |
# | `pp`, pipeline | cuts between layers, into stages | stages wait: the bubble |
# | `vpp`, chunks | thinner slices for each stage, for less bubble | more messages, more activations |
# | `mbs`, microbatch | sequences at a time; larger products are faster | more activations, a longer bubble |
# | `recompute` | forgets activations, computes them again | a third more computing |
#
# The number of GPUs is `tp` x `pp` x `dp`, so the board works out `dp`. Try `tp` 8, `pp` 8 and `zero` 2 on the board, one at a time. Which takes much off the 62.8 GB for the least time?
#
# <details><summary>Answer</summary>
#
# `zero` 2 takes off 24 GB, because each GPU keeps only an eighth of the gradients, and inside a machine that costs no time. `tp` 8 takes off the most, and it costs the most time. With `pp` 8 the grey hatching in the lowest picture shows how the stages wait for each other.
#
# </details>
#
# So we need both numbers of a layout, and compute the memory first.

# %% [markdown] sections="8.8.1"
# ## The memory, by hand
#
# What does one GPU hold? Chapter 01 wrote the bill of one parameter: 4 bytes for itself and its gradient, and 12 for Adam. `tp` and `pp` cut the model, so they divide all 16. `dp` copies it, so it divides only what ZeRO shards.
#
# Take 175 billion parameters on 64 GPUs. With `tp` 2 and `pp` 4 there are eight copies, each cut in eight parts, and nothing is sharded yet. How many GB of states does one GPU hold?

# %%
held = lab.guess("GB of states on each GPU", between=(0, 1000))

# %%
# by this recipe a parameter takes our 16 bytes
big = planner.Plan(model="GPT-3 175B", gpus=64, tp=2, pp=4, batch=32, recipe="mixed")
states = ("parameters", "gradients", "optimizer")
held.score(sum(big.memory().parts[name] for name in states) / 1e9)

# %% [markdown]
# By hand it is 16 x 175 / (2 x 4) = 350 GB. The planner says a little more, because the first stage has the embedding too.
#
# Eight GPUs hold the same, so they can shard it. The last row also recomputes all activations. Look at what hangs over the line of 80 GB:

# %%
bars = {f"ZeRO {zero}": big.but(zero=zero) for zero in (0, 1, 3)}
bars["recompute"] = big.but(zero=3, recompute="full")
lab.show(planner.memory_bars(bars))

# %% [markdown]
# With ZeRO 1 the eight copies share Adam's 265 GB, so each keeps 33. With ZeRO 3 the states have room at last. But 53 GB of activations come on top, which ZeRO can't shard, because each copy makes them from its own sequences. So only the fourth row fits.
#
# <details><summary>The thin bars, and other bills</summary>
#
# The thin bars are the first row's stages: the first keeps the most microbatches. "Gathered for a while" is what ZeRO 3 holds in full: the parameters of two layers, one in use and one on its way, the gradients of one, and the embedding.
#
# Megatron keeps 18 bytes instead of 16, because it adds up the gradients of many microbatches in fp32. So the board showed twice as many GB of gradients as of parameters. FSDP usually keeps 16 too, but as 4 + 4 + 8: parameters and gradients in fp32, and Adam's two moments.
#
# </details>

# %% [markdown]
# ## Exercise 1. Mend a published bill
#
# Here is the bill of a published calculator, with 4 bytes for a gradient (EleutherAI's [cookbook](https://github.com/EleutherAI/cookbook), `calc/calc_transformer_mem.py`, in our words):


# %%
def published_bill(params, tp, pp, dp, zero):
    """Parameters, gradients and Adam in GB; something is wrong with it."""
    gpus = tp * pp * dp
    weights = 2 * params / (tp * pp) / (gpus if zero == 3 else 1)
    gradients = 4 * params / (gpus if zero >= 2 else 1)
    adam = 12 * params / (gpus if zero >= 1 else 1)
    return {
        "zero": zero,
        "weights_gb": weights / 1e9,
        "gradients_gb": gradients / 1e9,
        "adam_gb": adam / 1e9,
    }


lab.table([published_bill(175e9, tp=8, pp=12, dp=4, zero=zero) for zero in range(4)])

# %% [markdown]
# Each GPU holds a 96th of this model, but in the first two rows all 700 GB of gradients, which can't be right. By the rule, `tp` x `pp` divides everything, then `dp` what ZeRO shards, at stage 1 Adam alone. Each of the three lines breaks it at some stages. Mend them, and return three numbers as a tuple.


# %%
def my_bill(params, tp, pp, dp, zero):
    """(parameters, gradients, Adam) of one GPU in GB: 2, 4 and 12 bytes."""
    ### BEGIN SOLUTION
    held = params / (tp * pp) / 1e9
    weights = 2 * held / (dp if zero == 3 else 1)
    gradients = 4 * held / (dp if zero >= 2 else 1)
    return weights, gradients, 12 * held / (dp if zero >= 1 else 1)
    ### END SOLUTION


# %%
check.mended_bill(my_bill)

# %%
check.hint("mended_bill")

# %% [markdown]
# ## The time, by hand
#
# How fast could a layout that fits be? Training takes about 6 FLOPs for each parameter and token, so the shortest possible time is:


# %%
def days(params, tokens, gpus, peak_tflops, share=1.0):
    """Days of training, where so large a share of the peak is reached."""
    return 6 * params * tokens / (gpus * 1e12 * peak_tflops * share) / 86_400


llama = MODELS["LLaMA 7B"]
round(days(llama.params, llama.train_tokens, gpus=8, peak_tflops=312), 1)

# %% [markdown]
# Those are the days for a trillion tokens on eight A100 at the speed of their data sheet. The share of it that a run reaches is its MFU (chapter 01). The authors of LLaMA write that their 7 B took 82,432 GPU hours. Which MFU did these experts reach?

# %%
reached = lab.guess("MFU of LLaMA 7B", between=(0, 1))

# %%
at_peak = 24 * days(llama.params, llama.train_tokens, gpus=1, peak_tflops=312)
reached.score(at_peak / llama.a100_hours)

# %% [markdown]
# More than half of what they paid for went elsewhere.
#
# ## Predict
#
# Where does the time of a step go? The planner has a formula for each part. LLaMA's paper doesn't give its whole layout, so this `Plan` assumes plain FSDP with one sequence on each of 2,048 cards. Messages that hide behind computing are not drawn. Look at the blue part:

# %%
plan = planner.Plan(model="LLaMA 7B", gpus=2048, zero=3, batch=2048)
lab.show(planner.time_bars({"LLaMA 7B": plan}))

# %% [markdown]
# Most of what is lost is inside the blue: at the peak its products would take 265 of these 433 ms. But a card reaches its peak only while all its units multiply, and no program keeps them all busy.
#
# ### Constants
#
# How near the products get to the peak depends on the program, so no data sheet says it. We call such a number a **constant**, and a program's constants its **stack**. `matmul` is the share of the peak that large products reach, and `nic` that of the network cards' speed that messages reach:

# %%
stacks = [planner.STACKS[name].row() for name in ("fsdp-a100", "megatron-a100")]
shares = dict.fromkeys(("matmul", "nic", "error"), "share")
lab.table(stacks, heads=["stack", "matmul", "nic", "error"], units=shares)

# %% [markdown]
# Megatron's constants were fitted to 25 published runs. Is the last column, the error, large enough? Each dot is one of those runs, and at 1 the plan is right:

# %%
lab.curves(
    measured=planner.megatron_runs(),
    marks={"12 % too long": 1.12, "12 % too short": 0.88},
    x="published step",
    x_unit="s",
    y="predicted / published",
    log_x=True,
    title="Runs that Megatron's constants were fitted to",
    badge="published, predicted",
)

# %% [markdown]
# All 25 lie within 8 %. But the fit has seen these runs, so the planner claims less: nine of ten within 12 %, and others may be further off. FSDP's constants we set by hand and kept no record, so nobody can check their 20 %.
#
# <details><summary>More about the constants</summary>
#
# There are two more: `attention` is the share of the peak for attention, the green part, and `layer` a fixed time for each layer and microbatch, the grey part. NVLink has none: its speed is from a published NCCL benchmark on eight A100. All constants for the H100 we set by hand too. A constant also takes up whatever the formulas leave out, so two programs that call the same products can differ in `matmul`. None of Megatron's runs reached an MFU above 56 %, and the board predicted 70 %, so its step may well take longer.
#
# By the plan above a trillion tokens take about 74,000 GPU hours, a tenth less than LLaMA's. That is no test, because LLaMA's run may have been among those by which we set FSDP's constants. (The planner's MFU counts attention's products too, so it is 6 % higher than ours by hand.)
#
# </details>

# %% [markdown] sections="8.12"
# ## What tensor parallelism costs
#
# How much time does `tp` take? On 8 GPUs with NVLink, `tp` 1 means eight copies with ZeRO 1, and a step takes 25.6 s. With `tp` 8 one copy goes through all 512 sequences, and waits four times in each of 32 layers for 16.8 MB, which takes 0.3 ms in an NCCL benchmark. How many times as long is a step with `tp` 8?

# %%
tensor = lab.guess("step with tp 8, over step with tp 1", between=(0.1, 10))

# %%
node = planner.Plan(model="LLaMA 7B", gpus=8, zero=1, sp=True, batch=512)
tensor.score(node.but(tp=8).time().step_us / node.time().step_us)

# %% [markdown]
# Look at the colour that grows from bar to bar:

# %%
bars = {f"tp {tp}": node.but(tp=tp) for tp in (1, 2, 4, 8)}
lab.show(planner.time_bars(bars))

# %% [markdown]
# Most of the growth is "tensor parallel", the waits. By hand that is 512 x 32 x 4 x 0.3 ms = 19.7 s. The wider the model, the less they weigh, because computing grows with the square of the width and messages only with the width.
#
# So take little tensor parallelism, and keep it inside a machine, where waits are shortest. The fine cut of the opening has `tp` 8, so some of its days go here.
#
# ## What stages cost, and computing twice
#
# The fine cut also has 8 stages, and recomputes. What do these cost? With 64 sequences, one at a time, stages wait for 7 / (64 + 7) of a step, a tenth, if all are equally slow (chapter 08). Chunks make that less. Recomputing waits for nobody, but computes every forward twice. Which costs least time?

# %%
cheapest = lab.guess(
    "which costs least time", choices=("pp 8", "pp 8, vpp 4", "recompute")
)

# %%
batch64 = node.but(batch=64)
ways = {"pp 8": batch64.but(pp=8), "pp 8, vpp 4": batch64.but(pp=8, vpp=4)}
ways["recompute"] = batch64.but(recompute="full")
cheapest.score(min(ways, key=lambda way: ways[way].time().step_us))

# %% [markdown]
# Compare each with `pp` 1, the uncut model:

# %%
ways = {"pp 1": batch64} | ways
lab.show(planner.time_bars(ways))

# %% [markdown]
# With thin slices the last stage gets its first work sooner, and three quarters of the bubble go. What is left is mostly blue: the last stage has the output layer too, and the others wait for it. And what does each save?

# %%
lab.show(planner.memory_bars(ways))

# %% [markdown]
# Stages cut the states. Recomputing costs most and saves least, because it takes off activations only, a small part here.
#
# <details><summary>Why the third bar is too long</summary>
#
# With chunks the planner counts the first stage's activations on every stage. Here it adds them to the last stage's logits, as if one GPU held both. So `pp` 8, `vpp` 4 holds a little less than its bar.
#
# </details>

# %% [markdown]
# ## Search
#
# Which layout is best? `search` computes our 7 B model on 64 GPUs with every `tp`, `pp` and `vpp` that divides, `zero` 0, 1 and 3, `mbs` up to 16, and `recompute` on and off. Each dot is a layout: the further left the faster, and the lower the lighter. Look at the line along the lower left edge:

# %%
search = planner.search(planner.Plan(model="LLaMA 7B", gpus=64, batch=512))
search

# %% [markdown]
# The line is the frontier: nothing beats its layouts in both time and memory. Here are the first five:

# %%
shown = ["layout", "memory_bytes", "step_us"]
lab.table([plan.row() for plan in search.frontier_plans()], heads=shown)

# %% [markdown]
# ### What is a tie?
#
# The lower rows need much less memory for hardly longer steps. Should we still take the first? We ask the plan how far off it may be:

# %%
print(search.best.trust(), *search.best.warnings(), sep="\n")

# %% [markdown]
# The five rows are closer together than the error of 12 %. We call that a **tie**: the plan can't tell which is faster. Run both if it matters. Else take the simpler one, here the first row's plain copy, unless you need the memory.
#
# <details><summary>How good this rule is</summary>
#
# It is a rule of thumb. Two plans by one program share its constants and err together, so even a small difference may be right. Two plans by two programs may err apart, so there add the two errors. In the picture the upright line at 12 % is Megatron's error. The frontier mixes both programs: the orange squares on it are by FSDP's constants.
#
# </details>

# %% [markdown]
# ## Our 7 B model, before and after
#
# Where do the 65 days go? Look at the memory that the fine cut and the best leave:

# %%
fine = search.plan.but(tp=8, pp=8, sp=True, recompute="full")
planner.card(fine, search.best)

# %% [markdown]
# The fine cut leaves most of each card empty. What does it pay for that? The bar between the two is the fine cut without recomputing:

# %%
bars = {"fine cut": fine, "not recomputed": fine.but(recompute="none")}
lab.show(planner.time_bars(bars | {"best": search.best}))

# %% [markdown]
# Most of the 65 days go into the messages of `tp`, some of which recomputing sends again. Next come the second forward's products. So the fine cut pays for memory that nobody needs.
#
# How sure are we? The best plan hopes for more than any run reached. At the speed of LLaMA's own run the 40 days would be 82,432 / 64 / 24 = 54, and only 105 - 54 = 51 days would lie between. So say, besides the fine cut's own error, 50 to 65 days, and 150,000 to 200,000 dollars.
#
# So which would we run? The frontier's third row, with two stages of two chunks, is 2.8 % slower than the best, and saves 27 GB. That is a tie, so run both for a few minutes. If they come out alike, take the simpler copies, because the memory is not needed.

# %% [markdown]
# *A place to rest. About half an hour is left.*

# %% [markdown]
# ## What ZeRO 3 costs
#
# Our best layout copies the model. A larger one must be cut or sharded. ZeRO 3 gathers each layer just before it computes, and these messages can hide while another layer computes. How fast must the network be for that?
#
# With two sequences at a time on 64 A100 its data sheet must promise 11.25 GB/s for each GPU (the sum is below). NVIDIA's DGX A100 has 25 GB/s for each GPU, so there the messages hide. In Amazon's p4d eight A100 share 400 Gb/s, which is 6.25 GB/s for each. How many times as long is a step there?
#
# <details><summary>11.25 GB/s, by hand</summary>
#
# Two sequences of 2,048 tokens take 6 x 6.7 billion x 2 x 2,048 FLOPs. At six tenths of the peak of 312 TFLOP/s that takes 0.9 s.
#
# Meanwhile a machine of eight GPUs fetches 13.5 GB of parameters twice, for the forward and the backward, and sends as many GB of gradients once. Its eight network cards share that, and we assume that each reaches half of its data sheet. So this must promise 3 x 13.5 / 0.9 / 8 / 0.5 = 11.25 GB/s.
#
# </details>

# %%
network = lab.guess("step on 6.25 GB/s, over step on 25 GB/s", between=(0.1, 10))

# %%
wide = planner.Plan(model="LLaMA 7B", gpus=64, zero=3, mbs=2, batch=512)
slow = wide.but(nic_gb_per_s=6.25)
network.score(slow.time().step_us / wide.time().step_us)

# %% [markdown]
# By hand it is 11.25 / 6.25 = 1.8 times. The planner's step has attention and memory traffic too, so it says less. In the second bar all messages should just hide:

# %%
by_hand = 3 * 13.5 / 0.9 / 8 / 0.5
cards = {f"{gb:g} GB/s": wide.but(nic_gb_per_s=gb) for gb in (25, by_hand, 6.25)}
lab.show(planner.time_bars(cards))

# %% [markdown]
# Some stick out, because the planner is careful: messages that take as long as computing never hide wholly, and the first and the last never hide. So the network must be faster than 11.25 GB/s, and with one sequence at a time twice as fast, because computing is half as long.

# %% [markdown] sections="8.12"
# ## Which strategy when?
#
# So copy, shard or cut? We compare the three for five models, three in one machine and two on many, each with 512 sequences and by Megatron's constants. How much longer a step is than the best layout's is its **regret**. `slower` computes it for the best of each kind:

# %%
KINDS = {"cut": "cut by tp or pp", "shards": "sharded (ZeRO 3)", "copies": "copied"}


def searched(model, gpus):
    """All layouts of a model, by Megatron's constants."""
    plan = planner.Plan(model=model, gpus=gpus, batch=512, stack="megatron-a100")
    return planner.search(plan)


def slower(found):
    """How much slower than the fastest the best of each kind is."""
    best = found.by_kind()
    return {KINDS[kind]: found.regret(best[kind]) for kind in KINDS if kind in best}


# %% [markdown]
# Which kind is fastest for 70 B parameters on 64 GPUs?

# %%
kind = lab.guess("the fastest kind for 70 B", choices=list(KINDS.values()))

# %%
sizes = {"GPT-2 XL": 8, "LLaMA 7B": 8, "LLaMA 13B": 8}
sizes |= {"LLaMA-2 70B": 64, "GPT-3 175B": 128}
searches = {model: searched(model, gpus) for model, gpus in sizes.items()}
behind = {model: slower(found) for model, found in searches.items()}
kind.score(min(behind["LLaMA-2 70B"], key=behind["LLaMA-2 70B"].get))

# %% [markdown]
# The fastest kind of each model is at zero, and where a bar is missing nothing fits. Look at the dashed line:

# %%
lab.bars(
    behind,
    marks={"planner's error": planner.STACKS["megatron-a100"].spread},
    unit="share",
    title="Slower than the fastest by",
    badge="predicted",
)

# %% [markdown]
# Only sharding the 70 B crosses it, and barely, so all else is a tie. In one machine the kinds are alike, because over NVLink the messages of the shards hide. What holds the shards of the large models back? Here are the best of each kind:

# %%
large = [*searches["LLaMA-2 70B"].by_kind().values()]
large += searches["GPT-3 175B"].by_kind().values()
shown = ["model", "layout", "memory_bytes"]
lab.table([plan.row() for plan in large], heads=shown)

# %% [markdown]
# Both sharded layouts recompute, and that slows them. To hide their messages across machines they take several sequences at a time, which don't fit otherwise. So choose what is simple in one machine, and across machines measure both.
#
# <details><summary>Shards by FSDP's own constants</summary>
#
# By these the 7 B's shards take a fifth longer than the copies. That is less than the two errors added, 32 %, so a tie too.
#
# </details>
#
# ### Four rules
#
# So without a planner begin like this:
#
# 1. Copy the model if it fits, because that is the simplest, and shard the optimizer, since ZeRO 1 costs next to nothing (chapter 06). On a slow network copy only inside a machine, and put stages between machines, because these send only activations and their gradients.
# 2. If it does not fit, shard everything inside a machine (ZeRO 3). Across machines first measure that the messages hide, because those of one early program did not (chapter 19).
# 3. Else cut a little: into stages with chunks between machines, and by `tp` 2 or 4 inside one.
# 4. If that is not enough, recompute all activations, which costs a third. In a model as narrow as our 7 B `tp` 8 comes last.

# %% [markdown]
# ## Exercise 2. Choose a layout
#
# Now write these rules as a function. It may ask about six layouts only:
#
# 1. List some layouts, the simplest first: copies with ZeRO 1, shards with ZeRO 3, then 2, 4, 8 and 16 stages, and stages with `tp` 2.
# 2. By `my_bill` of exercise 1, which costs no question, leave out what can't fit.
# 3. Ask about the first six of the others.
# 4. Return the fastest of those that fit. Its step may be a tenth longer than the best.
#
# `said = ask(tp=2, pp=4, zero=1)` has `said.step_s`, `said.memory_gb` and `said.fits`. The five cases have 8 to 64 GPUs, eight to a machine. One has a slow network, and only asking can tell.
#
# <details><summary>An example, and more about ask</summary>
#
# Take 13 B on eight cards of 80 GB. Copies with ZeRO 1 hold 6 x 13 + 12 x 13 / 8 = 97.5 GB, so they are out. With ZeRO 3 it is 18 x 13 / 8 = 29.25 GB, so we ask. Our chart says that shards win here, but your function can't see it, so it asks about stages too.
#
# `ask` answers by Megatron's constants for that card. What you leave out is as in `ask(tp=1, pp=1, vpp=1, zero=0, sp=False, mbs=1, recompute="none")`. You can do without `mbs`, `vpp` and `recompute`; take `sp` wherever `tp` is more than 1. An impossible layout raises a `ValueError`, and counts as a question: `tp` times `pp` may not be more than the GPUs. Neighbouring GPUs share a `tp` group, and stages lie furthest apart, so with as many stages as machines, copies lie inside a machine.
#
# </details>


# %%
def my_layout(params, gpus, card_gb, ask):
    """A layout, such as {"tp": 2, "pp": 4, "zero": 1}."""
    ### BEGIN SOLUTION
    # the simplest first: copies, shards, stages, and stages with tp 2
    sizes = [(1, 1, 1), (1, 1, 3), (1, 2, 1), (1, 4, 1), (1, 8, 1), (1, 16, 1)]
    sizes += [(2, 4, 1), (2, 8, 1)]
    layouts = []
    for tp, pp, zero in sizes:
        dp = gpus // (tp * pp)
        # the bill leaves out what can't fit, and costs no question
        if dp and sum(my_bill(params, tp, pp, dp, zero)) < card_gb:
            layouts.append({"tp": tp, "pp": pp, "zero": zero, "sp": tp > 1})
    fitting = {}
    for number, layout in enumerate(layouts[:6]):
        said = ask(**layout)
        if said.fits:
            fitting[number] = said.step_s
    return layouts[min(fitting, key=fitting.get)]
    ### END SOLUTION


# %%
check.layout_in_budget(my_layout)

# %%
check.hint("layout_in_budget")

# %% [markdown]
# Here is your regret in each case (a page of the book has our solution's). A row without a network has one machine:

# %%
shown = ["model", "gpus", "gpu", "network", "regret", "questions"]
lab.table(check.regrets(my_layout), heads=shown, units={"regret": "share"})

# %% [markdown]
# ## Summary
#
# - You can write the bill of a layout by hand: `tp` and `pp` divide all states, `dp` only what ZeRO shards. Activations come on top.
# - You can say how long a step takes at best. For more you need constants.
# - You know where to begin: copy if it fits, else shard inside a machine. Across machines measure shards beside a cut. Recompute if you must.
# - Two plans by one program that differ by less than its error are a tie: run both if it matters, else take the simpler one.
#
# Words that were new: [layout](GLOSSARY.md#layout), [constant](GLOSSARY.md#constant), [stack](GLOSSARY.md#stack), [tie](GLOSSARY.md#tie), [regret](GLOSSARY.md#regret).
#
# ## Further reading
#
# <details><summary>Three papers</summary>
#
# - Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - Touvron et al. 2023, *LLaMA: Open and Efficient Foundation Language Models*, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
#
# </details>
#
# **Next:** [how far to trust a plan](19_how_far_to_trust_a_plan.ipynb): two published runs, and a plan that picks the slower one.

# %% [markdown] sections="8.12, 19.8.4"
# ## Errata of the textbook
#
# <details><summary>Five boxes, for readers of that textbook</summary>
#
# <details><summary>Erratum 19.8.4: 10 B parameters in 16 bit are 10 GB</summary>
#
# At 2 bytes each they are 20 GB. Cut by `tp` 2 and `pp` 2, each card has 5. Run it: `small = planner.Plan(model=planner.Shape(layers=48, hidden=4096, heads=32), gpus=8, tp=2, pp=2, zero=1)`, and then `small.memory().parts["parameters"]`.
#
# </details>
#
# <details><summary>Erratum 19.8.4: Adam takes 20 GB, and ZeRO 1 makes 5 of them</summary>
#
# Adam keeps 12 bytes a parameter (two moments and a copy in fp32), 120 GB in all. `tp` 2 and `pp` 2 leave 30 to a card, and ZeRO 1 with `dp` 2 leaves 15. Run it: `small.memory().parts["optimizer"]`.
#
# </details>
#
# <details><summary>Erratum 19.8.4: about 20 GB in all, ample room on 40 GB</summary>
#
# The gradients are missing: 5 GB, or 10 where they are added up in fp32 (`small.memory().parts["gradients"]`). 5 + 5 + 15 is 25 GB, or 30, and with the textbook's own 10 GB of activations 35 to 40.
#
# </details>
#
# <details><summary>Erratum 8.12: "tensor parallelism: less communication"</summary>
#
# It adds two all-reduces a layer in the forward and two in the backward, and a plain program hides none of those of the forward. Run it: `node.but(tp=8).time().parts()["tensor"]`. It is pipelines that send little.
#
# </details>
#
# <details><summary>Erratum 8.12: "DDP up to 7 B; 30 to 100 B by ZeRO 3 with --num_gpus 8"</summary>
#
# At 16 bytes a parameter 5 B fill 80 GB, and 70 B doesn't fit on eight cards. Run it: `planner.Plan(model="LLaMA-2 70B", gpus=8, zero=3).fits`.
#
# </details>
#
# </details>
#
# *Sections 8.8.1, 8.12 and 19.8.4 of the source material.*

# %%
check.status()
