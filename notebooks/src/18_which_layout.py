# ---
# jupyter:
#   labkit:
#     sections: ["8.8.1", "8.12", "10.6.1", "19.8.4"]
#     needs: ["chapters 01 and 06 to 10", "DeepSpeed and transformers (installed with labkit)"]
#     minutes: 150
# ---

# %% [markdown]
# # Which layout for which model and cluster
#
# *About two and a half hours and Exercise 3, with three places to rest. You need chapters 01 and 06 to 10. No GPU is needed.*
#
# A paper (Narayanan et al. 2021) times a 175 B model twice, on the same 1,536 GPUs. For 300 billion tokens one run would take 23 days, the other 74. At 2 dollars a GPU hour, the 51 days cost 3.8 million. The cards are the same. What differs is the **layout** (who holds which part of the model, who works on which part of the batch), and the program that runs it. Keep the program in mind.
#
# On eight GPUs our 7 B model has hundreds of layouts, too many to try. But what each would hold, and how long it would take, can be computed. A planner does that. Here is ours:

# %%
from dataclasses import replace

import labkit as lab
from labkit import planner
from labkit.planner import plan_check as check
from labkit.planner.models import DATA, MODELS

lab.begin("en")
planner.board()

# %% [markdown]
# Nothing runs here: all numbers are predicted. For now look at the step and the memory; MFU, "constants" and the lines below come later. Set the pipeline stages to 4, and look at the grey hatched stretches of the timeline at the bottom, where GPUs are paid for and wait. Then go back to 1 stage: what stays grey there is the wait for gradients and for updated parameters. (Four microbatches are drawn, so all grey looks larger than in the whole step; the bar above counts all.) Is there still room on the card with ZeRO at stage 0?
#
# **When you are done** you can say what a layout holds and about how long its step takes before you rent anything, you can make a short list from a thousand layouts in a second, and you know when not to believe the answer.

# %% [markdown] sections="8.12"
# ## The knobs
#
# You met most of these in earlier chapters. Each has a price:
#
# | knob | what it does | what it costs |
# | --- | --- | --- |
# | data parallelism, `dp` | copies the model, divides the batch | gradients travel once a step |
# | `zero` 1, 2, 3 | shards what the copies have in common: Adam, then gradients, then parameters | with 3, parameters are gathered again for every microbatch |
# | tensor parallelism, `tp` | cuts every layer | messages in the middle of every layer |
# | `sp`, beside `tp` | cuts the activations between the layers too | nothing, or nearly |
# | pipeline, `pp` | cuts the stack of layers into stages | stages wait for each other: the bubble |
# | chunks, `vpp` | gives each stage several thin slices, for less bubble | more messages |
# | microbatch, `mbs` | sequences at a time; larger products are faster | more activations |
# | `recompute` | forgets activations and computes them again | about a third more computing |
# | `batch` | sequences in a step, of 2,048 tokens each | the larger, the fewer updates from the same data |
#
# A layout is one value for each of them but the last. `tp` x `pp` x `dp` is the number of GPUs, because each GPU has a place on every axis (the board's `cp`, chapter 09, is 1 here). So `dp` is what the other two leave over.

# %% [markdown] sections="8.8.1"
# ## The memory, by hand
#
# Does it fit? Chapter 01 wrote the bill of one parameter: 2 bytes for itself, 2 for its gradient and 12 for Adam. How much of that lies on one GPU?
#
# Tensor and pipeline parallelism cut the model, so they divide all 16 bytes. Data parallelism copies, so it divides only what ZeRO shards: the 12 bytes with ZeRO 1, the gradient too with ZeRO 2, everything with ZeRO 3.
#
# Now take 175 billion parameters on 64 GPUs, with `tp` 2 and `pp` 4. That leaves `dp` 8, so there are eight copies, each cut in eight parts. Nothing is sharded. How many GB of states does one GPU hold? Its card has 80.

# %%
held = lab.guess("GB of states on each GPU", between=(0, 1000))

# %%
held.score(16 * 175 / (2 * 4))

# %% [markdown]
# That is more than four cards' worth, for an eighth of the model. Since the same eighth lies on eight GPUs, sharding helps. The planner adds what a bill leaves out, activations and buffers, and draws it against the card (`recipe="mixed"` says that a parameter has those 16 bytes):

# %%
big = planner.Plan(model="GPT-3 175B", gpus=64, tp=2, pp=4, recipe="mixed")
bars = {f"ZeRO {zero}": big.but(zero=zero) for zero in (0, 1, 3)}
bars["recompute"] = big.but(zero=3, recompute="full")
lab.show(planner.memory_bars(bars))

# %% [markdown]
# What hangs over the line is too much. With ZeRO 3 the states have room on the card, and then the activations come on top. The last row is ZeRO 3 as well, but keeps hardly any activations and computes them again. Now it fits, on paper. (Purple is what ZeRO 3 gathers for as long as a layer computes.)
#
# Few programs run ZeRO 3 together with a pipeline. ZeRO 2 and 3 add gradients up over the ranks after each microbatch; a pipeline keeps them to the end of the step. So people take more GPUs, or a larger `tp` and `pp`.
#
# ### The fullest stage, by hand
#
# The thin bars in that picture are the four stages of the pipeline, in its first row. Why is stage 0 the fullest? With 1F1B it starts `pp` microbatches before the first of them comes back (chapter 08), so it keeps the activations of all of those. By hand: a layer keeps 10 + 24 / `tp` bytes for each token and each hidden dimension, where the scores of attention are not kept, as with FlashAttention (Korthikanti et al. 2022). That is 22 x 2,048 x 12,288 bytes, or 0.55 GB, times 96 / 4 layers, times 4 microbatches: 53 GB. (The first stage and the last have the embedding and the output layer as well, some 5 GB of states each.)

# %% [markdown] sections="19.8.4"
# ### Recipes
#
# What a program keeps of each parameter, and in how many bytes, is its **recipe**. The planner was told `recipe="mixed"`, the 16 bytes of chapter 01. Left alone, it takes the usual one of the program. FSDP's, at ZeRO 3, has 16 bytes too; Megatron's adds gradients up in fp32, which makes 18, an eighth more. So find out first which recipe your program has.
#
# Take 8 cards of 40 GB, and a model of 10 billion parameters with `tp` 2, `pp` 2, `dp` 2 and ZeRO 1 that recomputes all activations. By hand, at 16 bytes, there are 16 x 10 / 4 = 40 GB of states, of which Adam's 30 are halved. That makes 25 GB. The planner says:

# %%
ten = planner.Shape(name="10B", layers=48, hidden=4096, heads=32)
small = planner.Plan(model=ten, gpu="A100 40 GB", gpus=8, tp=2, pp=2, zero=1)
lab.show(planner.memory_bars({"tp 2, pp 2": small.but(recompute="full")}))

# %% [markdown]
# The planner says more, and the picture shows why: the gradients are in fp32, some activations stay, and every process holds buffers that no bill knows of (3 GB, assumed).

# %% [markdown]
# ## Exercise 1. Mend a published bill
#
# Here is such a bill from a published calculator (EleutherAI's cookbook, `calc_transformer_mem.py`; the rules are theirs, the words ours). Gradients have 4 bytes there. We give it a layout by which the paper of our first lines timed 175 B on cards of 80 GB:


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
# One row for each stage of ZeRO. The first two can't be right: no card holds 700 GB. Each of the three lines of code is wrong at some stages. Write them so that they are always right, and return the three numbers as a tuple.


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
# What fits may still be slow. How fast can it be at best? It takes about 6 FLOPs to train one parameter on one token, 2 in the forward and 4 in the backward. So the shortest possible time is one division:


# %%
def days(params, tokens, gpus, peak_tflops, share=1.0):
    """Days of training, where so large a share of the peak is reached."""
    return 6 * params * tokens / (gpus * 1e12 * peak_tflops * share) / 86_400


llama = MODELS["LLaMA 7B"]
round(days(llama.params, llama.train_tokens, gpus=8, peak_tflops=312), 1)

# %% [markdown]
# Those are the days for 1 T tokens on eight A100, if they always computed as fast as their data sheet says. They never do, so everything hangs on `share`. Its name is **MFU**, model FLOPs utilization: the FLOPs that the model needs, over those that the cards could have done meanwhile.
#
# The paper of LLaMA 7B says how many hours of a GPU it took. Which MFU did these experts reach, do you think?

# %%
reached = lab.guess("MFU of LLaMA 7B", between=(0, 1))

# %%
at_peak = 24 * days(llama.params, llama.train_tokens, gpus=1, peak_tflops=312)
reached.score(at_peak / llama.a100_hours)

# %% [markdown]
# More than half of what was paid for went elsewhere. Where did it go? The planner answers that part by part.
#
# ## Predict
#
# A `Plan` is a model, a cluster and a layout. It has a formula for each part of a step, with the constants of the program that usually runs such a layout: FSDP for ZeRO 3, Megatron for the others. LLaMA's paper names 4 M tokens a step and 2,048 cards (those of its largest model), but no layout. So we take those, one sequence a card, and plain FSDP, which is ZeRO 3:

# %%
plan = planner.Plan(model="LLaMA 7B", gpus=2048, zero=3, batch=2048)
lab.show(planner.time_bars({"LLaMA 7B": plan}))

# %% [markdown]
# The blue part is what the model is about, and most of what was lost is inside it: FSDP's products reach at most 63 % of the peak. At the peak they would take 273 of these 433 ms. ("Memory traffic" are operations that only read and write, such as norms; "launches, short kernels" is what a layer takes beside its work.)
#
# ### Constants
#
# That 63 % is a **constant**: a number that no data sheet has, because it belongs to a program on a kind of card. The planner has four for each program: the share that products reach of the peak, that attention reaches of it, and that messages reach of the network, and a fixed time for each layer. Together they are the program's `stack`.
#
# At a price of 1 for an hour, the cost of a plan *is* its hours. Here they are beside the published ones:

# %%
predicted = plan.cost(llama.train_tokens, price_per_gpu_hour=1)
hours = {"predicted GPU hours": round(predicted)}
lab.table([hours | {"published": llama.a100_hours}])

# %% [markdown]
# The planner is somewhat too cheerful. That it comes near proves little, since the layout was our guess. How far off may it be? Ask it two things:

# %%
print(plan.trust(), f"warnings: {len(plan.warnings())}", sep="\n")

# %% [markdown]
# `trust()` says whose constants these are, and how far off they usually are. `warnings()` says where your plan lies outside of the runs that the constants are from. Here it warns that none of those gathered across machines: FSDP's share of the network is assumed, not fitted, so this step may be several times as long. All plans of this chapter by FSDP's constants on more than one machine have that warning, and you will see its words below.
#
# Make it a habit to ask for both, because a number without them is a guess with decimals.
#
# <details><summary>Can you check these errors?</summary>
#
# FSDP's 20 % you can't: the rows aren't here, so they are our word. Megatron's you can: on the 25 steps that its constants were fitted on nine of ten are within 5 %, and for others the planner promises 12.
#
# </details>
#
# ### MFU has conventions
#
# Two people may quote different MFUs for one run, and both be right. Is attention counted in full, only the half that a causal mask leaves, or not at all, as in the 43.4 % of LLaMA's paper? Are recomputed FLOPs counted (then it is *hardware* FLOPs utilization)? And which peak? A data sheet of an H100 shows 1,979 TFLOP/s, but that is with sparsity; dense, it is half. This is our plan's MFU by three conventions:

# %%
counted = {"not at all": at_peak / predicted}
counted |= {"in full": plan.mfu(), "causal": plan.mfu(causal=True)}
lab.table(
    {"attention counted": name, "mfu_share": mfu} for name, mfu in counted.items()
)

# %% [markdown] sections="8.12"
# Say yours with the number. Our tables count attention in full. "Not at all" is 6 FLOPs a parameter, and so counts the embedding, though a lookup is no product.
#
# ## What tensor parallelism costs
#
# Now one knob at a time. We take one machine with 8 GPUs and NVLink, where messages are as fast as they get. Does tensor parallelism make the step shorter or longer there, compared with data parallelism and ZeRO 1?

# %%
tensor = lab.guess("step with tp 8, over step with tp 1", between=(0.1, 10))

# %%
node = planner.Plan(model="LLaMA 7B", gpus=8, zero=1, sp=True, batch=512)
tensor.score(node.but(tp=8).time().step_us / node.time().step_us)

# %%
bars = {f"tp {tp}": node.but(tp=tp) for tp in (1, 2, 4, 8)}
bars["tp 8, mbs 4"] = node.but(tp=8, mbs=4)
lab.show(planner.time_bars(bars))

# %% [markdown] sections="8.12"
# The products grow only a little: they are dealt out in another way, and narrower ones are slower. What grows most is "tensor parallel": in every microbatch each layer waits for the other ranks four times, twice on the way forward and twice on the way back. And the fewer copies there are, the more microbatches each GPU works on: 128 with `tp` 2, and all 512 with `tp` 8. So there are four times as many messages, each among more ranks.
#
# The last bar takes four sequences at a time. That makes a quarter as many waits, for larger messages.
#
# In return each GPU holds an eighth of every layer. It is not an eighth of all, since Adam was in shards before, and buffers stay:

# %%
lab.table(node.but(tp=tp).row() for tp in (1, 8))

# %% [markdown]
# So tensor parallelism buys memory with messages. You take as little of it as you need, and you keep it inside a machine.
#
# ### Are 70 % MFU to be believed?
#
# `node.warnings()` doubts them: no run that Megatron's constants are from had more than 56. All of those runs recompute something, and this layout nothing, so part of the gap may be real. Still, where a table of this chapter, or its first board, shows more than 56 % by Megatron's constants, the step may well be longer.
#
# ## What stages cost, and computing twice
#
# Stages send little, and wait. With 64 sequences, one at a time, a pipeline of 8 stages has 64 microbatches, and by hand a bubble of 7 / (64 + 7), a tenth of the step (chapter 08). With chunks it is less. Recomputing goes through every forward twice:

# %%
batch64 = node.but(batch=64)
ways = {"pp 1": batch64, "pp 8": batch64.but(pp=8)}
ways["pp 8, vpp 4"] = batch64.but(pp=8, vpp=4)
ways["recompute"] = batch64.but(recompute="full")
lab.show(planner.time_bars(ways))

# %%
lab.table(plan.row() for plan in ways.values())

# %% [markdown]
# With chunks the stages wait less, and send more. Both stages and recomputing buy memory: a stage has an eighth of the layers, and recomputing leaves next to no activations. (Not an eighth of the memory: the first stage keeps eight microbatches, and without copies ZeRO 1 shards nothing.)
#
# The bars are of the slowest stage, the last. It has the output layer as well, so its products take longer. Here that costs about as much as the bubble, which is a little shorter than by hand.

# %% [markdown]
# ## What ZeRO 3 costs
#
# ZeRO 3 buys memory with messages as well. But these can hide, because the next layer's parameters are gathered while the present one computes. How fast must the network be for that?
#
# ### The network, by hand
#
# Take 64 GPUs in eight machines, two sequences of 2,048 tokens at a time. By hand, 6 x 6.7 billion x 2 x 2,048 FLOPs at six tenths of 312 TFLOP/s (nearly the 63 % from above) take 0.9 s. Meanwhile a machine has to fetch 13.5 GB of parameters twice, an eighth through each of its eight network cards, and to send as much in gradients once. FSDP's constants assume that a card reaches half of what its data sheet says.
#
# So what must the data sheet promise? For comparison: 100 Gb/s Ethernet is 12.5 GB/s, and the cards of a usual A100 machine have 25.

# %%
network = lab.guess("GB/s of a network card", between=(1, 100))

# %%
network.score(3 * 13.5 / 0.9 / 8 / 0.5)

# %% [markdown]
# The size of the model cancels here: only the tokens count that a GPU takes at a time. One sequence needs twice as much, whatever the model.
#
# Does the planner agree? Along the axis is what the network card of each GPU promises:

# %%
wide = planner.Plan(model="LLaMA 7B", gpus=64, zero=3, mbs=2, batch=512)
cards_gb = [25 / 2 ** (i / 4) for i in range(17)]
slower = {gb: wide.but(nic_gb_per_s=gb) for gb in cards_gb}
steps_s = {gb: plan.time().step_us / 1e6 for gb, plan in slower.items()}
title = {
    "title": "Step time and network speed",
    "x": "GB/s of a network card",
    "y": "seconds per step",
}
plot = {"log_x": True, "log_y": True, "at": {"by hand": 11.2}}
lab.curves(predicted={"step": steps_s}, **plot, **title)

# %% [markdown]
# On the right the curve is nearly flat: almost everything is hidden, and the four microbatches of a step take about four times the 0.9 s. Well to the left of 11.2, the number by hand, each halving of the network doubles the step: now everybody waits for it. At 11.2 itself the step is still a seventh longer than at 25, since the planner assumes that messages as long as the computing don't hide completely. So the same layout is fine on one cluster and a disaster on another.
#
# Was the slow run of 175 B such a disaster? 1,536 GPUs shared a batch of 1,536, so each gathered 350 GB of parameters, twice, for a single sequence. Was the network too slow for that, or did the program get too little out of it? Let's look at what was measured.

# %% [markdown]
# *A first place to rest.*
#
# ## Is the time true?
#
# All this was predicted so far. The two runs of 175 B stand in a published table (Narayanan et al. 2021, table 2), with ten more. Let's fit the planner on a quarter of the rows, three, and let it predict all of them. A dot is what was published, hollow where the fit saw it; a line is what the planner says:

# %%
runs, _ = planner.load(DATA / "published" / "megatron_sc21_table2.csv")
found = planner.validate(runs, share=0.25, seed=0)
lab.curves(
    **found.curves(),
    log_x=True,
    x="number of GPUs",
    y="TFLOP/s of a GPU",
    title="Table 2 of the paper: what a GPU reached",
    badge="published / predicted",
)

# %% [markdown]
# `z3` are the runs with ZeRO 3, `ptd` those with pipeline, tensor and data parallelism. To the right more GPUs share nearly the same batch. See how ZeRO's 175 B falls from 144 to 44 TFLOP/s while `ptd` hardly loses anything (recomputed FLOPs are counted here): our first lines are the right ends of the two 175 B curves. The three hollow dots were fitted, one of those ends among them, so they count for nothing now.
#
# <details><summary>Which rows, and what did they move?</summary>
#
# The three were chosen by `seed`: the last of `ptd` 175 B, the middle one of `z3` 175 B, the first of `z3` 530 B. A fit moves one constant for every two rows, first the products'. So one constant moved, that of the ZeRO program, which had two of the three rows.
#
# </details>
#
# ### Are the errors small?
#
# Are the errors on the other nine rows small? Compare with somebody who knows nothing, and says the median of the three rows' TFLOP/s for all: "naive". `p90` is what nine of ten errors stay below.

# %%
told = found.to_json()
errors = [
    {"who": "planner", "median": told["median"], "p90": told["p90"]},
    {"who": "naive", "median": told["naive_median"], "p90": told["naive_p90"]},
]
lab.table(errors, units={"median": "share", "p90": "share"})

# %% [markdown]
# The naive answer gives itself away by its large errors, where it says about three times what was reached: it can't see ZeRO slow down. So judge a planner by its `p90`, and not by its median.
#
# But this exam was mild. Only one constant was fitted. The others came with the planner, fitted on these two programs, and we had seen this table. What if nobody had?
#
# ### Constants do not travel
#
# We predict the ZeRO run on 1,536 GPUs once more, but with the constants of another program, which knows nothing of this table: FSDP as people run it today, on the same cards. Call the real step 1. How long is the predicted one?

# %%
travel = lab.guess("predicted step, over the real one", between=(0, 5))

# %%
last = next(run for run in runs if run.id == "sc21t2_z3_175B_1536")
today = planner.STACKS["fsdp-a100"]
travel.score(planner.predicted_us(last, today) / last.step_us())

# %% [markdown]
# Same cards, same model, and still the planner says about a quarter of what it took. Which constant is to blame? Here are two of each program's: the share of its peak that products reach (`matmul`), and the share of its promise that a network card gives (`nic`):

# %%
then = planner.STACKS["zero3-2021-a100"]
constants = [
    {"program": each.name, "matmul": each.matmul, "nic": each.nic}
    for each in (then, today)
]
lab.table(constants, units={"matmul": "share", "nic": "share"})

# %% [markdown]
# The products are not far apart. But that early ZeRO 3 ran as if its messages got less than a tenth of what the network could carry, and for FSDP half of it is assumed. On 1,536 GPUs hardly anything else counts. We say "as if" because a fitted constant takes in whatever the formula leaves out.
#
# ### The slow run, by hand
#
# A machine fetches 350 GB of parameters twice and sends as much in gradients once, an eighth of it through each card of 25 GB/s, at that share of its promise. In seconds, beside the measured step:

# %%
[round(3 * 350 / 8 / (25 * then.nic), 1), round(last.step_us() / 1e6, 1)]

# %% [markdown]
# One division explains nearly all of the 74 days. That is no independent proof, because the share was fitted on this table.
#
# ### Measure four runs
#
# So can the planner find that share by itself, from today's FSDP and a few runs? `planner.fit` moves one constant for every two runs, so that it doesn't fit noise: the products' first, which every run has, then the one that helps most. Let's give it two of the ZeRO runs, then four, and never those on the most GPUs. How far off is it on those?

# %%
z3 = [run for run in runs if "z3" in run.id]
two = planner.fit(z3[:2], begun=[today])
four = planner.fit([*z3[:2], *z3[3:5]], begun=[today])
lab.table(
    {
        "run": run.id,
        "published_us": run.step_us(),
        "by_two_us": planner.predicted_us(run, two.stack(run)),
        "by_four_us": planner.predicted_us(run, four.stack(run)),
    }
    for run in (z3[2], z3[5])
)

# %%
lab.table([four.constants()], units=dict.fromkeys(four.constants(), "share"))

# %% [markdown]
# Two runs moved the products, and miss by a factor of three. Four moved the network too. Now the fit has found how little of it that program reached, and is within a tenth for both runs that it never saw. Each had twice as many GPUs as the largest fitted run of the same model, not ten times.
#
# If you remember one thing of this chapter, let it be this: **measure a few runs of your own that differ in what you want to know, then plan**. If that is the network, let them differ in the number of GPUs. For this planner two constants want four runs. A run of yours is a dict like this one, with the seconds of its step:
#
# ```python
# run = {"gpu": "A100 80 GB", "n_gpus": 16, "layers": 32, "hidden": 4096}
# run |= {"seq": 2048, "gbs": 64, "mbs": 1, "zero": 3, "iter_s": 6.2}
# ```
#
# `gbs` is the batch. `tp`, `pp`, `vpp`, `sp` and `recompute` may stand there too. The fitted constants go into a plan, or a search, as its `stack`: `four.stack(run)` is the one for a run's kind of card and stage of ZeRO. Here is our 7 B model on 64 GPUs, by today's FSDP, and by what four runs told of that early ZeRO 3:

# %%
fitted = four.stack(z3[0])
lab.table(plan.row() for plan in (wide, wide.but(stack=fitted)))

# %% [markdown]
# The network of that program makes the step more than twice as long. The name in the last column says where the fit began, not whose runs they are. And `warnings()` of the second plan is empty, because its network was measured: theirs, not yours, and on models of 175 and 530 B. Empty doesn't mean safe.

# %% [markdown]
# ## Exercise 2. Four runs of your own
#
# A program that you know nothing of trains our 7 B model by ZeRO 3, on A100. You can rent 64 of them at most, for four runs, and somebody wants to know how it does on 512. `measure(gpus=8, mbs=1, batch=64)` makes one run on 8 GPUs, one sequence at a time, 64 in a step, and returns it as a dict like the one above. Return what `planner.fit` makes of a list of them (`begun`, where a fit starts, may be left out).
#
# The check has three such programs. One has a slow network, one has slow products, one has both, and your function isn't told which it got. Their runs are computed, by the planner's own formulas with constants that nobody shows you, and the clock errs by up to 2 %. On 512 GPUs the fit may be off by a tenth at most, with one sequence at a time and with four. So what must your runs differ in?
#
# Here the formulas are right by construction. A real program's may not be, so don't trust a fit eight times as far out.


# %%
def my_fit(measure):
    """What planner.fit makes of four runs, on at most 64 GPUs."""
    ### BEGIN SOLUTION
    # one machine tells of the products, eight of the network
    settings = ((8, 1), (8, 4), (64, 1), (64, 4))
    return planner.fit([measure(gpus, mbs, batch=256) for gpus, mbs in settings])
    ### END SOLUTION


# %%
check.four_runs(my_fit)

# %%
check.hint("four_runs")

# %% [markdown]
# *A second place to rest.*
#
# ## Is the memory true?
#
# Nobody has 1,024 GPUs on a laptop. But what one rank of them would hold, torch itself can tell: with **fake tensors**, which have a shape and no bytes, and a fake process group of 1,024 ranks in which nothing is sent. We call that a **rehearsal**. FSDP really wraps the model, shards it and steps the optimizer, only without data. Eight of the 32 layers of LLaMA 7B will do, because all are alike. Of their 7.5 GB of parameters in fp32 rank 0 keeps a 1,024th, 7.35 MB. How many GB does it hold at its highest point?

# %%
highest = lab.guess("GB at the peak of rank 0", between=(0, 20))

# %%
eight = replace(plan.shape, layers=8)
thousand = planner.Plan(model=eight, gpus=1024, zero=3, recipe="fp32")
rehearsal = planner.rehearse(thousand)
highest.score(rehearsal.peak_bytes / 1e9)

# %%
lab.table(rehearsal.rows())

# %% [markdown]
# "Planned" is the planner's, "rehearsed" is what torch did, and the last column is their ratio. States differ a little, because torch cuts every tensor by its rows: "as tensors are cut" allows for that. The rows in the middle are the bytes of a microbatch's collectives.
#
# The last row is the peak: nearly all of it is what the ranks gather and compute for a moment. It is the hardest number on the list, because it depends on what a program keeps alive. And neither number has the context, some GB of each process, nor the gaps of an allocator. If you plan to the last GB, measure it.
#
# <details><summary>The bytes of these rows</summary>
#
# Parameters are kept in fp32 here, and sent in bf16: FSDP's 16 bytes are 4 + 4 + 8, which our pictures draw as 2 + 2 + 12. All layers are gathered twice, what lies outside of them once.
#
# </details>
#
# So of FSDP's memory you can believe the states, and by this one rehearsal nearly the peak. Megatron's, with its assumed 3 GB, nobody has rehearsed. Now let the planner choose.

# %% [markdown]
# ## Search
#
# `search` turns these knobs: `tp` (with `sp`), `pp`, chunks, ZeRO's stage, microbatch, recomputation. How many layouts of our 7 B model are there on 64 GPUs, and where are the good ones?

# %%
search = planner.search(planner.Plan(model="LLaMA 7B", gpus=64, batch=512))
search

# %% [markdown]
# Each dot is a layout that fits: the further left, the faster, and the lower, the lighter. Its colour says what becomes of the model: copies, shards, or a cut. The line along the bottom is the **frontier**: the layouts that no other beats in both. Its left end is the shortest step. Go along it to the right, and at first you save a lot of memory for little time; then each GB costs more. Here are the fastest:

# %%
lab.table(plan.row() for plan in search.plans())

# %%
print(search.best.trust(), *search.best.warnings(), sep="\n")

# %% [markdown]
# The first few are within a few per cent of each other, which is less than the error in that line. Two layouts by one program share part of that error, but how much of it nobody has measured. **So take what is closer together than the error for a tie**, and choose what your program does well.
#
# ### ZeRO 3, one sequence at a time
#
# Now for the choice that many people make without asking: ZeRO 3, one sequence at a time. By how much is it slower than the best one here? (That share is its **regret**.)

# %%
usual = lab.guess("regret of ZeRO 3 on 64 GPUs", between=(0, 1))

# %%
usual.score(search.regret(search.plan.but(zero=3)))

# %% [markdown]
# ### Layouts or programs?
#
# In the search's table the last column names a program: you named none, so each layout has its usual one, FSDP for ZeRO 3 and Megatron for the others. So some of that regret is not the layout's doing. How much of it? Name one program for all, and search again:

# %%
same = planner.search(search.plan.but(stack="fsdp-a100"))
single = same.plan.but(zero=3)
regrets = []
for each in (single, single.but(mbs=4)):
    time = each.time()
    row = {"mbs": each.mbs, "regret": same.regret(each), "step_us": time.step_us}
    regrets.append(row | {"not hidden_us": time.parts()["gather"]})
lab.table(regrets, units={"regret": "share"})

# %% [markdown]
# By one program the regret is 16 %, and by two it was 21 (4.36 s against 3.60): the difference goes with the program.
#
# Are the 16 % the doing of ZeRO 3? With one sequence at a time they are, for the larger part: by hand it needs twice the 11.2 GB/s from above, nearly all that the network has, so 0.46 s of its messages don't hide ("not hidden"). The rest is that products of one sequence are slower. With four at a time ZeRO 3 is as good as anything. But the share of the network is assumed, so across machines nobody knows how far off these 16 % are: measure.
#
# Many a comparison of strategies that you read compares two programs, and calls the difference a strategy. So if you know your program, name it.

# %% [markdown]
# ### Our first lines again
#
# Were they such a comparison? The two runs of 175 B had two programs. So here are both, as measured, and then as if one program had run both, three times:

# %%
names = {"z3": "sc21t2_z3_175B_1536", "ptd": "sc21t2_ptd_175B_1536"}
pair = {
    name: next(run for run in runs if run.id == each) for name, each in names.items()
}
steps = {"measured": {name: run.step_us() for name, run in pair.items()}}
for program in ("zero3-2021-a100", "megatron-a100", "fsdp-a100"):
    stack = planner.STACKS[program]
    steps[program] = {
        name: planner.predicted_us(run, stack) for name, run in pair.items()
    }
lab.bars(steps, unit="us", title="175 B, 1,536 GPUs", badge="measured / predicted")

# %% [markdown]
# Each pair of bars is the two layouts. Measured, `z3` takes 3.2 times as long as `ptd`. But there the program differs as well. In the other pairs only the layout does: by the constants of the early ZeRO 3 program `z3` takes about twice as long, and by Megatron's or today's FSDP's the order turns round. So how much of the 3.2 is the layout's doing depends on whose constants you take.
#
# Are any of them to be believed here? The planner knows no run by today's FSDP on so many machines, and says so:

# %%
now = planner.Plan(model="GPT-3 175B", gpus=1536, zero=3, batch=1536)
print(*now.warnings())

# %% [markdown]
# The 3.8 times are our slow run itself, as you saw it by FSDP's constants. Megatron's constants know no run with shards, and the early program's know no cut. So what did those 51 days show? That this program with this layout was the wrong choice for 1,536 GPUs. About ZeRO 3 in general they show nothing.

# %% [markdown] sections="8.12"
# *A third place to rest. What is left takes about 40 minutes, and Exercise 3 its own time.*
#
# ## Which strategy when?
#
# A textbook has a rule by size: DDP below 7 B, FSDP from 7 to 30 B, ZeRO 3 from 30 to 100 B on a machine of 8 GPUs, tensor and pipeline parallelism above. Is it any good? Here is one model for each line. LLaMA 7B has 6.7 billion, so by the rule it is about the largest for DDP. FSDP and ZeRO 3 are both ZeRO 3 here. The 13 B gets 8 GPUs, and the 175 B gets 128 and a cut, since the rule names neither:

# %%
rule = {
    "LLaMA 7B": {"gpus": 8, "zero": 0, "recipe": "fp32"},  # torch's DDP
    "LLaMA 13B": {"gpus": 8, "zero": 3},
    "LLaMA-2 70B": {"gpus": 8, "zero": 3},
    "GPT-3 175B": {"gpus": 128, "tp": 4, "pp": 8, "zero": 1, "sp": True},
}
ruled = {
    name: planner.Plan(model=name, batch=512, **layout) for name, layout in rule.items()
}
lab.show(planner.memory_bars(ruled))

# %% [markdown]
# Two do not fit. DDP ends long before 7 B, because a full copy of the states is 16 bytes a parameter: on 80 GB that is 5 B, with nothing left for activations. And 70 B on eight cards has no room even when everything is sharded.
#
# ### By what a layout does
#
# A better rule would look at what a layout does with the model: copies of it, shards (ZeRO 3), or a cut by `tp` and `pp`. Which is the fastest? We ask for five models, by one program.


# %%
def kind(layout):
    """What a layout does with the model."""
    if layout.tp * layout.pp > 1:
        return "cut"
    return "shards" if layout.zero == 3 else "copies"


def fastest(model, gpus, stack):
    """How much slower than the fastest of all the fastest of each kind is."""
    plan = planner.Plan(model=model, gpus=gpus, batch=512, stack=stack)
    fitting = planner.search(plan).fitting
    found = {}
    for each in fitting:
        found.setdefault(kind(each.layout), each.step_us / fitting[0].step_us - 1)
    return {name: found[name] for name in ("cut", "shards", "copies") if name in found}


# %% [markdown]
# For how many of the five do the kinds differ by more than 12 %? That is the planner's error for copies and cuts. For shards, which Megatron's constants never saw, nobody knows it.

# %%
unlike = lab.guess("models whose kinds differ by more than the error", between=(0, 5))

# %%
sizes = {"GPT-2 XL": 8, "LLaMA 7B": 8, "LLaMA 13B": 8}
sizes |= {"LLaMA-2 70B": 64, "GPT-3 175B": 128}
stack = "megatron-a100"
found = {model: fastest(model, gpus, stack) for model, gpus in sizes.items()}
error = planner.STACKS[stack].spread
unlike.score(sum(max(each.values()) > error for each in found.values()))

# %%
error = {"planner's error": error}
lab.bars(
    found,
    marks=error,
    unit="share",
    title="Slower than the fastest by",
    badge="predicted",
)

# %% [markdown]
# Only the 70 B's shards cross the dashed line, and barely. The kind at 0 % is the fastest; where a row is missing, nothing of that kind fits.
#
# - **In one machine** the planner can't tell the best copies, the best shards and the best cut apart. It does see a bad cut, such as `tp` 8 above. Choose by what is simple.
# - **Across machines**, where no copy fits, begin with a cut. Cuts were measured there, in table 2, and kept their speed. Shards were measured too, with one early program, and lost it. Of today's FSDP the planner doesn't know.
#
# <details><summary>Why were shards ahead of a cut under "Our first lines again"?</summary>
#
# There were 1,536 GPUs and as many sequences, and the cut was the paper's, `tp` 8 and `pp` 12, all recomputed. Here there are 128 and 512, and the cut is the best that was found.
#
# </details>
#
# ### In which parts?
#
# How to cut the 70 B? The paper with our two runs advises: tensors first, up to the size of a machine, then stages. Here are the best with `tp` 8 and the best of all. Both hold about 60 GB:

# %%
large = planner.Plan(model="LLaMA-2 70B", gpus=64, batch=512, stack=stack)
found = planner.search(large).plans(1000)
cuts = [next(plan for plan in found if plan.tp == 8), found[0]]
lab.table(plan.row() for plan in cuts)

# %% [markdown]
# The planner prefers little tensor parallelism and many stages: with thin chunks (`vpp`) and a large batch stages hardly wait. But the difference is about its error, and the advice came from measurements: a tie. Try both.
#
# ### Four rules
#
# 1. Copy the model if it fits: it is the simplest, and no layer waits for a message. Shard the optimizer in any case: ZeRO 1 costs next to nothing (chapter 06).
# 2. If it does not fit, shard all of it (ZeRO 3) in one machine, where the network nearly always keeps up. Across machines do so only if you have measured that your program's messages hide. It needs no change to the model.
# 3. Else cut: `tp` inside a machine, stages with chunks between. Begin with `tp` 2, and try `tp` 8 too.
# 4. Recompute before you cut far. It makes a step about a third longer, and frees activations only; above, `tp` 2 or eight stages cost a sixth, `tp` 8 doubled the step.
#
# <details><summary>Two ways that the planner doesn't have</summary>
#
# Where the states fit in one machine, HSDP shards inside a machine and copies across (chapter 10's mesh). Where attention's scores are kept, recompute those first: it costs a few per cent.
#
# </details>

# %% [markdown]
# ## Exercise 3. Choose a layout
#
# Find a layout that fits (it may fill the whole card), and whose step is at most a tenth slower than the best. This is a game against the planner: the check compares its numbers, however small the difference. The four rules say where to begin.
#
# Your function gets the number of GPUs and `ask`, which plans by one program, Megatron, shards included:
#
# - `said = ask(tp=2, pp=4, zero=1)` has `said.step_s`, `said.memory_gb` and `said.fits`.
# - You may ask 16 times, for `tp`, `pp`, `vpp`, `zero`, `sp`, `mbs` and `recompute` ("none" or "full"). What you leave out is 1, 0, False or "none".
# - What does not divide raises a `ValueError`, and counts as a question.
#
# The check has five models and clusters, with 32 to 80 layers and 512 or 1,024 sequences in a step, and on one of them the network is slow. Which one, your function isn't told: it has to ask.


# %%
def my_layout(gpus, ask):
    """A layout, such as {"tp": 2, "pp": 4, "zero": 1}."""
    ### BEGIN SOLUTION
    # the simplest first: copies, shards, then cuts
    sizes = [(1, 1, 1), (1, 1, 3), (1, 2, 1), (2, 1, 3), (1, 4, 1), (2, 2, 1)]
    sizes += [(1, 8, 1), (2, 4, 1), (2, 8, 1), (1, 16, 1), (4, 8, 1)]
    fitting = []
    for tp, pp, zero in sizes:
        if tp * pp <= gpus:
            layout = {"tp": tp, "pp": pp, "zero": zero, "sp": tp > 1}
            asked = ask(**layout)
            if asked.fits:
                fitting.append((asked.step_s, len(fitting), layout))
    step_s, _, layout = min(fitting)
    # two sequences at a time, where they fit and help
    asked = ask(**layout, mbs=2)
    return layout | {"mbs": 2} if asked.fits and asked.step_s < step_s else layout
    ### END SOLUTION


# %%
check.layout_in_budget(my_layout)

# %%
check.hint("layout_in_budget")

# %% [markdown]
# This is your regret, case by case; the book shows that of one solution. (Without `heads=` the table has your layouts too.)

# %%
shown = ["model", "gpus", "batch", "best_s", "yours_s", "regret", "questions"]
lab.table(check.regrets(my_layout), heads=shown, units={"regret": "share"})

# %% [markdown]
# ## Our 7 B model, before and after
#
# What has choosing changed for our 7 B model on 64 GPUs? There is room for more sequences at a time, or for a copy. Torch's copies have parameters and gradients in fp32, and ZeRO 1 shards Adam's two moments, so 4 + 4 bytes stay:

# %%
copied = same.plan.but(zero=1, recipe="fp32")
shards = [single, single.but(mbs=2), single.but(mbs=4)]
lab.table(plan.row() for plan in (*shards, copied, copied.but(mbs=2)))

# %%
planner.card(single, shards[-1])

# %% [markdown]
# A second sequence alone gets most of the gain, and so does a copy alone. Why the copy? It sends less: ZeRO 1 gathers the updated parameters once a step, ZeRO 3 gathers all of them for every microbatch. With four sequences at a time these messages hide. Then shards are as fast as a copy, with two thirds of its memory or less: a tie that rule 1 doesn't see.
#
# The whole gain is small, and across machines the error isn't known: try it. ("Perhaps" stands where less than 5 % of a card is left.)

# %% [markdown] sections="10.6.1"
# ## How many GPUs, for how long?
#
# A rule of thumb goes around for this, too: below 1 B, 1 to 8 GPUs and days; 1 to 10 B, 8 to 32 GPUs and one or two weeks; 10 to 100 B, 32 to 128 and two to eight weeks; above, 128 or more and months. It doesn't say for how many tokens. We take 20 for each parameter (Hoffmann et al. 2022). First, doubling from one: on how few GPUs does anything fit at all?


# %%
def fewest(model):
    """The fewest A100 of 80 GB, doubling, on which some layout fits."""
    gpus = 1
    while 16 * MODELS[model].params > gpus * 80e9:  # not even the states
        gpus *= 2
    while not planner.search(planner.Plan(model=model, gpus=gpus, batch=512)).fitting:
        gpus *= 2
    return gpus


few = lab.guess("fewest GPUs for LLaMA-2 70B", between=(1, 512))

# %%
few.score(fewest("LLaMA-2 70B"))

# %% [markdown]
# And how long would it take, on the fewest and the most GPUs that the rule has for each model? Of "128 or more" we take our first lines' 1,536 as the most:

# %%
ranges = {"GPT-2 XL": (8, 32), "LLaMA 7B": (8, 32)}
ranges |= {"LLaMA-2 70B": (32, 128), "GPT-3 175B": (128, 1536)}
answers = []
for model, gpus in ((model, each) for model in ranges for each in ranges[model]):
    best = planner.search(planner.Plan(model=model, gpus=gpus, batch=512)).best
    span = best.days(20 * MODELS[model].params)
    row = {"model": model, "fewest": fewest(model), "gpus": gpus, "time_days": span}
    answers.append(row | {"mfu_share": best.mfu()})
lab.table(answers)

# %% [markdown]
# All rows but the last are above 56 % MFU, so they will rather take longer. About memory ("fewest") the rule is careful. About time it is right at one end of its range at most. GPT-2 XL, of 1.5 B, takes days or hours, not a week or two. 7 B takes ten days on 32 GPUs, and five weeks on 8. 70 B takes years on 32 and nine months on 128, not weeks: that a model fits doesn't mean that anybody can wait for it. For 175 B "months" needs some thousand GPUs; on 128 it is years.
#
# <details><summary>Why 237 days here, and 23 in our first lines?</summary>
#
# At 20 tokens a parameter 175 B would see 3.5 T of them, twelve times as many. And 512 sequences are few for 1,536 GPUs: stages wait, and MFU falls.
#
# </details>

# %% [markdown]
# ## When is a planner worth it?
#
# It is worth it before you rent, and before you change clusters. It is also worth it when a run seems slow: if a step takes a third longer than planned, either the program or the plan is wrong, and both are worth knowing. It isn't worth it on one GPU, nor to choose between two layouts that it puts closer together than its error.
#
# It can't know your network and your software's version: that is why you fit. It assumes that nothing fails (chapter 13 says what to add). And a larger batch makes every layout look better, but how many steps you need with it is another matter.

# %% [markdown]
# ## Summary
#
# - tp and pp cut everything, dp copies, and ZeRO shards what dp copies.
# - States can be counted, once the recipe is known; the peak wants a measurement; time needs constants that no data sheet has.
# - Copy if it fits; shard the optimizer; shard all of it where the messages hide; else cut, tensors inside a machine, stages between; recompute before you cut far.
# - MFU without its convention is no number. A prediction without its error and its warnings is none either.
# - Judge a planner by its large errors, not by its median.
# - Constants do not travel: measure four runs, fit, then plan. And compare layouts by one program, or you compare programs.
#
# Words that were new: [layout](GLOSSARY.md#layout), [recipe](GLOSSARY.md#recipe), [MFU](GLOSSARY.md#mfu), [constant](GLOSSARY.md#constant), [stack](GLOSSARY.md#stack), [regret](GLOSSARY.md#regret), [frontier](GLOSSARY.md#frontier), [rehearsal](GLOSSARY.md#rehearsal).
#
# ## Further reading
#
# - Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, [arXiv 2104.04473](https://arxiv.org/abs/2104.04473): the two runs of our first lines
# - Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198): every byte of an activation
# - Touvron et al. 2023, *LLaMA: Open and Efficient Foundation Language Models*, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
# - Hoffmann et al. 2022, *Training Compute-Optimal Large Language Models*, [arXiv 2203.15556](https://arxiv.org/abs/2203.15556): how many tokens
# - Chowdhery et al. 2022, *PaLM*, [arXiv 2204.02311](https://arxiv.org/abs/2204.02311): MFU is defined in appendix B
# - [EleutherAI's cookbook](https://github.com/EleutherAI/cookbook), `calc/calc_transformer_mem.py`
#
# **Next:** [case studies](19_case_studies.ipynb): four models, and what becomes of the plan that somebody made for each.

# %% [markdown] sections="8.12, 10.6.1, 19.8.4"
# ## Errata of the textbook
#
# They correct a textbook that many readers know; if you don't, you lose nothing here.
#
# <details><summary>Six boxes</summary>
#
# <details><summary>Erratum 19.8.4: 10 B parameters in 16 bit are 10 GB</summary>
#
# At 2 bytes each they are 20 GB; 10 GB would be 8 bit. Cut by `tp` 2 and `pp` 2, each card has 5. Run it: `small.memory().parts["parameters"]`.
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
# It adds two all-reduces a layer in the forward and two in the backward, and those of the forward nothing can hide. Run it: `node.but(tp=8).time().parts()["tensor"]` says how long they take. Pipelines are what sends little.
#
# </details>
#
# <details><summary>Erratum 8.12: "DDP up to 7 B; 30 to 100 B by ZeRO 3 with --num_gpus 8"</summary>
#
# The textbook's rule looks at the model alone, and what fits depends on the cluster as much. Run it: `planner.memory_bars(ruled)`, where its first and third line don't fit.
#
# </details>
#
# <details><summary>Erratum 10.6.1: "10 to 100 B: 32 to 128 GPUs, two to eight weeks"</summary>
#
# The textbook's table of resources is the rule under "How many GPUs, for how long?". For 70 B and 20 tokens a parameter, 128 A100 take several months, 32 take years. Run it: `lab.table(answers)`. Of its strategies, the smaller models need less than it names: 7 B on cards of 80 GB does with ZeRO 1.
#
# </details>
#
# </details>
#
# *Sections 8.8.1, 8.12, 10.6.1 and 19.8.4 of the source material.*

# %%
check.status()
