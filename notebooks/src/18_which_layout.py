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
# Our 7 B model is to learn a trillion tokens on 64 GPUs. If every GPU keeps a copy, and they share out the optimizer, our planner predicts 40 days. If we cut the model, poorly on purpose, into 64 parts (`tp` 8, `pp` 8) and recompute all activations, it predicts 105. At 2 dollars a GPU hour the 65 days between them cost 200,000 dollars.
#
# What differs is the **layout**: which GPU holds which part of the model and works on which part of the batch. There are about a thousand, too many to try. But we can compute what each holds and how long its step takes. This board begins with one machine of eight GPUs. Look at the memory on top, then the time:

# %%
import labkit as lab
from labkit import planner
from labkit.planner import plan_check as check
from labkit.planner.models import MODELS

lab.begin("en")
planner.board()

# %% [markdown]
# Set the pipeline stages to 4. The memory shrinks, but in the lowest picture, which draws only a few of the step's microbatches, more grey hatched stretches appear. So far those were messages at the step's end. Now stages wait for each other too.
#
# **When you are done** you can say what a layout holds and about how long its step takes, draw up a short list, and tell when two layouts are so close that only a run can choose.

# %% [markdown] sections="8.12"
# ## The knobs
#
# A layout is made up of the following knobs, and each has its price:
#
# | knob | what it does | what it costs |
# | --- | --- | --- |
# | data parallelism, `dp` | copies the model, divides the batch | gradients travel once a step |
# | `zero` 1, 2, 3 | shards what the copies share: Adam, then gradients, then parameters | from 2 on gradients travel with every microbatch, with 3 parameters are gathered for it too |
# | tensor parallelism, `tp` | cuts every layer | messages in the middle of every layer |
# | `sp`, beside `tp` | cuts the activations between the layers too | nothing, or nearly |
# | pipeline, `pp` | cuts between layers, into stages | stages wait for each other: the bubble |
# | chunks, `vpp` | gives each stage several thin slices, for less bubble | more messages, somewhat more activations |
# | microbatch, `mbs` | sequences at a time; larger products are faster | more activations, and a longer bubble |
# | `recompute` | forgets activations and computes them again | about a third more computing |
#
# The number of GPUs is `tp` x `pp` x `dp`, so the board works out `dp` from the other two. The board's `cp`, for long sequences, stays 1 here.
#
# Try `tp`, `pp` and `zero` on the board, one at a time. Which takes much off the 62.8 GB of the beginning for the least time? Leave `zero` 3 for later.
#
# <details><summary>Answer</summary>
#
# `zero` 2 takes off 24 GB, because each GPU keeps only an eighth of the gradients, and inside a machine that costs no time. `tp` 8 takes off the most, and it costs the most time.
#
# </details>

# %% [markdown] sections="8.8.1"
# ## The memory, by hand
#
# Why does one knob take off more than another? Chapter 01 wrote the bill of one parameter: 2 bytes for itself, 2 for its gradient and 12 for Adam. How much of these states lies on one GPU?
#
# Tensor and pipeline parallelism cut the model, so they divide all 16 bytes. Data parallelism only copies the model, so `dp` divides nothing but what ZeRO shards.
#
# Take 175 billion parameters on 64 GPUs, with `tp` 2 and `pp` 4. That leaves `dp` 8: eight copies, each cut in eight parts, and nothing is sharded yet. In the code `recipe="mixed"` stands for our 16 bytes. How many GB of states does one GPU hold?

# %%
held = lab.guess("GB of states on each GPU", between=(0, 1000))

# %%
big = planner.Plan(model="GPT-3 175B", gpus=64, tp=2, pp=4, batch=32, recipe="mixed")
states = ("parameters", "gradients", "optimizer")
held.score(sum(big.memory().parts[name] for name in states) / 1e9)

# %% [markdown]
# By hand it is 16 x 175 / (2 x 4) = 350 GB, because a GPU holds an eighth of the model and nothing divides it further. The planner's first stage has the embedding too, so it says 353. But the same eighth lies on eight GPUs, so we can shard it among them.
#
# The picture has ZeRO at stages 0, 1 and 3, and then stage 3 with all activations recomputed. Look at what hangs over the line of 80 GB:

# %%
bars = {f"ZeRO {zero}": big.but(zero=zero) for zero in (0, 1, 3)}
bars["recompute"] = big.but(zero=3, recompute="full")
lab.show(planner.memory_bars(bars))

# %% [markdown]
# With ZeRO 3 the states have room at last. But 53 GB of activations come on top, and ZeRO can't shard those, because each copy makes its own from its own sequences. So only the fourth row fits, which forgets them and computes them again.
#
# The thin bars are the four stages of the first row. The first one is the fullest, because it keeps the activations of four microbatches (chapter 08).

# %% [markdown] sections="19.8.4"
# ### Recipes
#
# Not every program keeps these 16 bytes. What it keeps of a parameter, and in how many bytes, is its **recipe**. The 16 bytes are FSDP's. Megatron, NVIDIA's program for models that are cut, keeps gradients in fp32, because it adds up many microbatches in them. That makes 18, so the board showed 27 GB of gradients beside 13.5 GB of parameters.
#
# Here is a whole bill: 10 billion parameters on 8 cards of 40 GB, with `tp` 2, `pp` 2, `dp` 2 and ZeRO 1, all activations recomputed. At 16 bytes each GPU has 16 x 10 / 4 = 40 GB of states. Adam's part of that is 30 GB, and two copies share it, so 25 GB are left. Look at what the planner adds:

# %%
ten = planner.Shape(name="10B", layers=48, hidden=4096, heads=32)
small = planner.Plan(model=ten, gpu="A100 40 GB", gpus=8, tp=2, pp=2, zero=1)
lab.show(planner.memory_bars({"tp 2, pp 2": small.but(recompute="full")}))

# %% [markdown]
# It says 34 GB, because Megatron's gradients have 5 GB more, and buffers are assumed to take 3 GB. The rest is activations, the inputs of the layers.

# %% [markdown]
# ## Exercise 1. Mend a published bill
#
# Here is a bill from a published calculator (EleutherAI's [cookbook](https://github.com/EleutherAI/cookbook), `calc/calc_transformer_mem.py`; the rules are theirs, the words ours), with 4 bytes for a gradient. Each row is a stage of ZeRO:


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
# No card holds 700 GB of gradients, so the first two rows can't be right. With the 10 B model we went two steps: first `tp` x `pp` divided everything, and then `dp` divided what ZeRO 1 shards, which was Adam alone. Each of the three lines breaks with that at some stages. Mend them, and return the three numbers as a tuple.


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
# The bill says which layouts fit. How fast could the best of them be? Training takes about 6 FLOPs for each parameter and token, 2 in the forward and 4 in the backward, so the shortest possible time is one division:


# %%
def days(params, tokens, gpus, peak_tflops, share=1.0):
    """Days of training, where so large a share of the peak is reached."""
    return 6 * params * tokens / (gpus * 1e12 * peak_tflops * share) / 86_400


llama = MODELS["LLaMA 7B"]
round(days(llama.params, llama.train_tokens, gpus=8, peak_tflops=312), 1)

# %% [markdown]
# Those are the days for a trillion tokens on eight A100, at the speed of their data sheet. The `share` of it that a run really reaches is its **MFU**, model FLOPs utilization: the FLOPs that the model needs, over those that the cards could have done meanwhile.
#
# The authors of LLaMA write that their 7 B took 82,432 GPU hours. Which MFU did these experts reach?

# %%
reached = lab.guess("MFU of LLaMA 7B", between=(0, 1))

# %%
at_peak = 24 * days(llama.params, llama.train_tokens, gpus=1, peak_tflops=312)
reached.score(at_peak / llama.a100_hours)

# %% [markdown]
# More than half of what they paid for went elsewhere. To see where, we take a step apart.
#
# ## Predict
#
# The planner has a formula for each part of a step. You give it a `Plan`, which is a model, a cluster and a layout. LLaMA's paper tells of cuts, but not of how many, so we assume something simpler: plain FSDP, which is ZeRO 3, on 2,048 cards, one sequence on each. Messages that hide behind computing are not drawn. Look at the blue part:

# %%
plan = planner.Plan(model="LLaMA 7B", gpus=2048, zero=3, batch=2048)
lab.show(planner.time_bars({"LLaMA 7B": plan}))

# %% [markdown]
# The blue part and the attention beside it are the useful work, and yet most of what is lost is inside the blue. At the peak its products would take 265 of these 433 ms, so FSDP's products reach some 60 % of the peak. A card reaches its peak only while all its units multiply, and no program keeps them all busy.
#
# By this plan a trillion tokens take about 74,000 GPU hours, and LLaMA took 82,432, a tenth more. The planner's MFU counts attention's FLOPs too, which are 6 % more here, so its 51.3 % are 48 % by our division.
#
# ### Constants
#
# No data sheet has such a share, because it belongs to a program on a kind of card. We call it a **constant**. The planner has four, and the four of a program are its **stack**:
#
# - `matmul` is the share of the peak that large matrix products reach, the blue part. Small ones fill the card less well.
# - `attention` is the same for attention, the green part.
# - `nic` is the share of the network cards' speed that messages between machines get.
# - `layer` is a fixed time for each layer and microbatch, the grey part, for starting small jobs.
#
# All else, such as the speed of NVLink, belongs to the machine. The last column is the error: nine of ten of the runs behind Megatron's constants are predicted within it.

# %%
stacks = [planner.STACKS[name].row() for name in ("fsdp-a100", "megatron-a100")]
shares = dict.fromkeys(("matmul", "attention", "nic", "error"), "share")
lab.table(stacks, units=shares)

# %% [markdown]
# Megatron's constants were fitted on published tables, whose best run reached an MFU of 56 %. So the board's 70 % were hopeful. FSDP's come from our own trials on published runs that we didn't keep, so nobody can check its 20 %. LLaMA may have been among them, so a miss of a tenth proves little. A plan that names no stack gets FSDP's stack and recipe for ZeRO 3, else Megatron's.

# %% [markdown] sections="8.12"
# ## What tensor parallelism costs
#
# Now we turn one knob at a time. We begin with `tp`, on 8 GPUs with NVLink, where messages are as fast as they get, and with `sp` wherever `tp` cuts. With `tp` 1 there are eight copies and ZeRO 1. How many times as long is a step with `tp` 8?

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
# Most of the growth is "tensor parallel", which is waiting for messages. In every microbatch each layer waits for the other ranks four times, twice in the forward and twice in the backward. In 32 layers and 512 microbatches that makes 4 x 32 x 512 waits, so 19.9 s are 0.3 ms a wait. `sp` adds nothing, because its gather and scatter are the halves of an all-reduce. The blue part grows a little too, because narrower products fill the card less well.
#
# So take little tensor parallelism, and keep it inside a machine, because between machines each wait is longer (chapter 09).
#
# ## What stages cost, and computing twice
#
# Stages send little, but they wait. Take 64 sequences, one at a time, and 8 stages. If all are equally slow, the bubble is 7 / (64 + 7), a tenth of the step (chapter 08), and chunks make it smaller. Recomputing waits for nobody, but it goes through every forward twice. Which of the three costs least time?

# %%
batch64 = node.but(batch=64)
ways = {"pp 1": batch64, "pp 8": batch64.but(pp=8)}
ways["pp 8, vpp 4"] = batch64.but(pp=8, vpp=4)
ways["recompute"] = batch64.but(recompute="full")
lab.show(planner.time_bars(ways))

# %% [markdown]
# Stages with chunks cost least, because with thin slices the last stage gets its first work sooner, and the bubble shrinks. Recomputing costs most, because a second forward adds 2 to 6 FLOPs, which is a third. The bars show the last stage. It has the output layer too, so its blue part is longer than with `pp` 1, and the other, faster stages keep it waiting a little less than our tenth.

# %% [markdown]
# ## What ZeRO 3 costs
#
# One more way to buy memory needs no cut. With ZeRO 3 a GPU keeps a shard of each layer, and gathers the rest just before it needs it. These messages can hide while the layer before it computes. How fast must the network be for that?
#
# ### The network, by hand
#
# Take 64 GPUs in eight machines, with two sequences of 2,048 tokens at a time. Computing takes 6 x 6.7 billion x 2 x 2,048 FLOPs. At six tenths of 312 TFLOP/s these need 0.9 s.
#
# Meanwhile a machine has to fetch 13.5 GB of parameters twice, for the forward and for the backward, and to send 13.5 GB of gradients once. Its eight network cards share that, and we assume that each reaches half of its data sheet. So the data sheet must promise 3 x 13.5 / 0.9 / 8 / 0.5 = 11.25 GB/s.
#
# The cards of a usual A100 machine have 25, so there the messages hide. But 40 Gb/s Ethernet has 5 GB/s. How many times as long is a step with it?

# %%
network = lab.guess("step on 5 GB/s, over step on 25 GB/s", between=(0.1, 10))

# %%
wide = planner.Plan(model="LLaMA 7B", gpus=64, zero=3, mbs=2, batch=512)
slow = wide.but(nic_gb_per_s=5)
network.score(slow.time().step_us / wide.time().step_us)

# %% [markdown]
# By hand it is 11.25 / 5 = 2.25 times, because the messages take that much longer than computing. The planner says less, because it counts attention as well. Look at what sticks out in the second bar, where by hand all just hides, and in the third:

# %%
by_hand = 3 * 13.5 / 0.9 / 8 / 0.5
cards = {f"{gb:g} GB/s": wide.but(nic_gb_per_s=gb) for gb in (25, by_hand, 5)}
lab.show(planner.time_bars(cards))

# %% [markdown]
# In the second bar two things stick out. The embedding and the output layer are gathered before anything computes and scattered after all has, so nothing hides them. And where a message takes about as long as the computing beside it, the planner lets some of it stick out, because the two seldom keep in step. With one sequence at a time we would need twice the network.

# %% [markdown]
# ## Search
#
# A good layout turns several knobs at once, so we let `search` compute every layout of our 7 B model on 64 GPUs. In the picture each dot is a layout: the further left the faster, and the lower the lighter. Look at the line along the bottom:

# %%
search = planner.search(planner.Plan(model="LLaMA 7B", gpus=64, batch=512))
search

# %% [markdown]
# Of 1,094 layouts 982 fit, and those are drawn. The line is the **frontier**: the layouts that no other beats in both time and memory. Here are its first five:

# %%
lab.table(plan.row() for plan in search.frontier_plans())

# %% [markdown]
# ### What is a tie?
#
# The lower rows need much less memory, and their steps are hardly longer. Should we still take the first? That depends on how far off the numbers are, so we ask the plan:

# %%
print(search.best.trust(), *search.best.warnings(), sep="\n")

# %% [markdown]
# `trust()` says whose constants these are, and that nine of ten of the runs that they were fitted on are within 12 %. `warnings()` says where a plan lies outside of those runs: this one hopes for a higher MFU than any of them reached.
#
# The five rows are by one program's constants, and they are closer together than 12 %. We call that a **tie**: the plan can't tell which is faster, so choose by something else, such as memory. In the picture the copies and cuts left of the dashed line all tie with the fastest. The shards there are by another program's constants, so about them it says less.
#
# ### ZeRO 3, one sequence at a time
#
# Many would try plain FSDP first, with one sequence on each GPU. By hand its messages just hide, because they need 2 x 11.25 = 22.5 of 25 GB/s. How much slower than the best is it, as a share? That share is its **regret**.

# %%
usual = lab.guess("regret of ZeRO 3 on 64 GPUs", between=(0, 1))

# %%
single = search.plan.but(zero=3)
usual.score(search.regret(single))

# %% [markdown]
# Here many messages stick out, for the two reasons above, mostly because they take nearly as long as the computing beside them. Two sequences are our `wide` plan:

# %%
round(search.regret(wide), 3)

# %% [markdown]
# Most of the regret is gone, so take two sequences before you give up ZeRO 3. The rest doesn't say who wins: it is less than FSDP's error, and between two programs, whose products reach 63 and 79 % of the peak.

# %% [markdown]
# *A place to rest. About half an hour is left.*

# %% [markdown] sections="8.12"
# ## Which strategy when?
#
# Without a planner you need a rule, so let us ask what a layout does with the model: it copies it, shards it (ZeRO 3), or cuts it by `tp` and `pp`. We take five models, three on 8 GPUs, the 70 B on 64 and the 175 B on 128, all by Megatron's constants. `searched` computes all layouts of a model, and `slower` says how far the best of each kind is behind the best of all:

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
# For how many of the five models do the kinds differ by more than 12 %, the planner's error?

# %%
unlike = lab.guess("models whose kinds differ by more than the error", between=(0, 5))

# %%
sizes = {"GPT-2 XL": 8, "LLaMA 7B": 8, "LLaMA 13B": 8}
sizes |= {"LLaMA-2 70B": 64, "GPT-3 175B": 128}
searches = {model: searched(model, gpus) for model, gpus in sizes.items()}
behind = {model: slower(found) for model, found in searches.items()}
spread = planner.STACKS["megatron-a100"].spread
unlike.score(sum(max(each.values()) > spread for each in behind.values()))

# %% [markdown]
# The fastest kind of each model is at zero, and where a bar is missing nothing fits. Look at the dashed line:

# %%
lab.bars(
    behind,
    marks={"planner's error": spread},
    unit="share",
    title="Slower than the fastest by",
    badge="predicted",
)

# %% [markdown]
# Only sharding the 70 B crosses it, and barely, so all else is a tie. In one machine the kinds are alike, because over NVLink the messages of the shards hide. What holds the shards of the large models back? Here are the best of each kind:

# %%
large = [*searches["LLaMA-2 70B"].by_kind().values()]
large += searches["GPT-3 175B"].by_kind().values()
lab.table(plan.row() for plan in large)

# %% [markdown]
# Both sharded layouts recompute. To hide their messages across machines they take several sequences at a time, which don't fit otherwise. For the cuts a little `tp` and many stages are enough. The 175 B's cut fits `perhaps`, because it holds 78.6 of 80 GB, and no plan is so exact.
#
# So in one machine choose what is simple, and across machines try a cut first: in published runs cuts kept their speed there, and shards by one early program lost it (chapter 19).
#
# ### Four rules
#
# 1. Copy the model if it fits, because that is the simplest, but on a slow network only inside a machine. Shard the optimizer in any case, since ZeRO 1 costs next to nothing (chapter 06).
# 2. If it does not fit, shard everything inside a machine (ZeRO 3). Across machines do so only if you have measured that the messages hide.
# 3. Else cut a little: into stages with chunks between machines, and by `tp` 2 or 4 inside a machine, as the large models' best layouts do.
# 4. If that is not enough, recompute, which costs a third. `tp` 8 comes last, because it made the step of our 7 B twice as long.

# %% [markdown]
# ## Exercise 2. Choose a layout
#
# Now write these rules as a function, for models and clusters not yet seen. It may ask about six layouts only, so `my_bill` of exercise 1 comes first, which costs no question.
#
# For example, take 13 B on 8 cards of 80 GB, with Megatron's 6 bytes for a parameter and its gradient, and 12 for Adam. Copies with ZeRO 1 hold 6 x 13 + 12 x 13 / 8 = 97.5 GB, so we needn't ask. With ZeRO 3 a card holds 18 x 13 / 8 = 29.25 GB, and rule 2 says to ask that first. Two stages leave `dp` 4 and hold 6 x 13 / 2 + 12 x 13 / 2 / 4 = 58.5 GB. They may fit too, so we ask.
#
# Your function gets the numbers of parameters and GPUs, the GB of a card, and `ask`. It returns a layout that fits, with a step at most a tenth longer than the best.
#
# - `said = ask(tp=2, pp=4, zero=1)` has `said.step_s`, `said.memory_gb` and `said.fits`, by Megatron's constants for that card.
# - What you leave out is as in `ask(tp=1, pp=1, vpp=1, zero=0, sp=False, mbs=1, recompute="none")`.
# - A layout that does not divide raises a `ValueError`, and counts as a question. `tp` 2, 4, 8 and `pp` 2, 4, 8, 16 divide in all cases that have as many GPUs.
#
# The cases have 8 to 64 GPUs. In one the network is slow, which only asking can tell.


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
# Here is your regret in each case. In the book, `yours` is one solution's. A row without a network has one machine, and the 13 B and 70 B have twice our 512 sequences:

# %%
shown = ["model", "gpus", "gpu", "network", "best_s", "yours_s", "regret", "questions"]
lab.table(check.regrets(my_layout), heads=shown, units={"regret": "share"})

# %% [markdown]
# ## Our 7 B model, before and after
#
# Now we can explain the 65 days of our first lines. Look first at the memory that the fine cut and the search's best leave:

# %%
fine = search.plan.but(tp=8, pp=8, sp=True, recompute="full")
planner.card(fine, search.best)

# %% [markdown]
# The fine cut leaves most of each card empty. What does it pay for that? Here are both steps, and between them the fine cut without recomputing:

# %%
bars = {"fine cut": fine, "not recomputed": fine.but(recompute="none")}
lab.show(planner.time_bars(bars | {"best": search.best}))

# %% [markdown]
# Most of the 65 days are the messages of `tp`, some of which recomputing sends again. The next are products, mostly of the second forward and the output layer. The bubble is thin, about 7 / (512 + 7), because the only copy has 512 microbatches. And 40 days are hopeful, as that plan's warning said.
#
# So which would we run? The frontier's third row, with two stages of two chunks, is 2.8 % slower than the best, and saves 27 GB. That is a tie, so run both for a few minutes, and if they come out alike, take the simpler copies.

# %% [markdown]
# ## Summary
#
# - You can write the bill of a layout by hand: `tp` and `pp` divide all states, `dp` only what ZeRO shards. Activations come on top.
# - You can say how long a step takes at best; the rest needs constants, which no data sheet has.
# - You know where to begin: copy if it fits, else shard inside a machine and cut a little across machines, and recompute if that is not enough.
# - You ask a plan for its error and warnings. Two plans by one program that differ by less are a tie, so you run both.
#
# Words that were new: [layout](GLOSSARY.md#layout), [recipe](GLOSSARY.md#recipe), [MFU](GLOSSARY.md#mfu), [constant](GLOSSARY.md#constant), [stack](GLOSSARY.md#stack), [frontier](GLOSSARY.md#frontier), [tie](GLOSSARY.md#tie), [regret](GLOSSARY.md#regret).
#
# ## Further reading
#
# - Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - Touvron et al. 2023, *LLaMA: Open and Efficient Foundation Language Models*, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
# - Chowdhery et al. 2022, *PaLM*, [arXiv 2204.02311](https://arxiv.org/abs/2204.02311): MFU
#
# **Next:** [how far to trust a plan](19_how_far_to_trust_a_plan.ipynb): two published runs, and a plan that picks the slower one.

# %% [markdown] sections="8.12, 19.8.4"
# ## Errata of the textbook
#
# <details><summary>Five boxes, for readers of that textbook</summary>
#
# <details><summary>Erratum 19.8.4: 10 B parameters in 16 bit are 10 GB</summary>
#
# At 2 bytes each they are 20 GB. Cut by `tp` 2 and `pp` 2, each card has 5. Run it: `small.memory().parts["parameters"]`.
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
# It adds two all-reduces a layer in the forward and two in the backward, and those of the forward nothing can hide. Run it: `node.but(tp=8).time().parts()["tensor"]`. Pipelines are what sends little.
#
# </details>
#
# <details><summary>Erratum 8.12: "DDP up to 7 B; 30 to 100 B by ZeRO 3 with --num_gpus 8"</summary>
#
# 16 bytes a parameter end at 5 B on 80 GB, and 70 B doesn't fit on eight cards. Run it: `planner.Plan(model="LLaMA-2 70B", gpus=8, zero=3).fits`.
#
# </details>
#
# </details>
#
# *Sections 8.8.1, 8.12 and 19.8.4 of the source material.*

# %%
check.status()
