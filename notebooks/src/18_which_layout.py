# ---
# jupyter:
#   labkit:
#     sections: ["8.8.1", "8.12", "10.6.1", "19.8.4"]
#     needs: ["chapters 01 and 06 to 09", "DeepSpeed and transformers (installed with labkit)"]
#     minutes: 90
# ---

# %% [markdown]
# # Which layout for which model and cluster
#
# *About 90 minutes. You need chapters 01 and 06 to 09. No GPU is needed.*
#
# A paper times a 175 B model twice, on the same 1,536 GPUs. For 300 billion tokens one run would take 23 days, the other 74. At 2 dollars for an hour of a GPU, the 51 days between them cost 3.8 million. The cards are the same. What differs is the **layout** (who holds which part of the model, who works on which part of the batch), and the program that runs it. Keep the second in mind.
#
# So how do you choose? On eight GPUs our 7 B model has hundreds of layouts, and a trial costs a cluster. But what each would hold, and how long it would take, can be computed. A program that does so is called a planner. Here is ours:

# %%
from dataclasses import replace

import torch
from torch import nn

import labkit as lab
from labkit import planner
from labkit.planner import plan_check as check
from labkit.planner.models import DATA, MODELS

lab.begin("en")
planner.board()

# %% [markdown]
# Nothing runs here: all numbers are predicted. Set the pipeline stages to 4, and look at the grey hatched stretches of the timeline at the bottom, where GPUs are paid for and wait. Then go back to 1 stage. Is there still room on the card with ZeRO at stage 0?
#
# **When you are done** you can say what a layout holds and how long its step takes before you rent anything, you can find the best of a thousand layouts in a second, and you know when not to believe the answer. We go four steps: the bill, by hand; the time, by hand and by the planner; is it true? And then: choose.

# %% [markdown] sections="8.12"
# ## The knobs
#
# You met most of these in earlier chapters. Each divides something, and each has a price:
#
# | knob | what it does | what it costs |
# | --- | --- | --- |
# | data parallelism, `dp` | copies the model, divides the batch | gradients travel once a step |
# | `zero` 1, 2, 3 | shards what the copies have in common: Adam, then gradients, then parameters | at stage 3 parameters are gathered again for every microbatch |
# | tensor parallelism, `tp` | cuts every layer | messages in the middle of every layer |
# | `sp`, beside `tp` | cuts the activations between the layers too | nothing, or nearly |
# | context parallelism, `cp` | cuts every sequence, where they are long | keys and values travel in every layer |
# | pipeline, `pp` | cuts the stack of layers into stages | stages wait for each other: the bubble |
# | chunks, `vpp` | gives each stage several thin slices | less bubble, more messages |
# | microbatch, `mbs` | sequences at a time | larger products are faster, but keep more activations |
# | `recompute` | forgets activations and computes them again | about a third more computing |
# | `offload` | keeps Adam in the memory of the host | the step waits for the host |
#
# A layout is one value for each of them. `tp` x `cp` x `pp` x `dp` is always the number of GPUs, because everyone has a place on each axis. So `dp` is what the others leave over. Our sequences are short enough to leave `cp` at 1 from here on.

# %% [markdown] sections="8.8.1"
# ## The memory, by hand
#
# Let's begin with a question that needs no planner: does it fit? Chapter 01 wrote the bill of one parameter, 2 bytes for itself, 2 for its gradient and 12 for Adam. Which part of that does one GPU have?
#
# Tensor and pipeline parallelism cut the model, so these two divide all 16 bytes. Data parallelism copies, so it divides nothing at all, except what ZeRO shards: the 12 bytes from stage 1 on, the gradient from stage 2, everything at stage 3.
#
# Now take 175 billion parameters on 64 GPUs, with `tp` 2 and `pp` 4. That leaves `dp` 8, so there are eight copies, each cut in eight parts. Nothing is sharded. How many GB of states does one GPU hold? Its card has 80.

# %%
held = lab.guess("GB of states on each GPU", between=(0, 1000))

# %%
held.score(16 * 175 / (2 * 4))

# %% [markdown]
# That is more than four cards' worth, for an eighth of the model. Since the same eighth lies on eight GPUs, sharding helps. The planner adds what a bill leaves out, activations and buffers, and draws it against the card:

# %%
big = planner.Plan(model="GPT-3 175B", gpus=64, tp=2, pp=4, recipe="mixed")
bars = {f"ZeRO {zero}": big.but(zero=zero) for zero in (0, 1, 3)}
bars["recompute"] = big.but(zero=3, recompute="full")
lab.show(planner.memory_bars(bars))

# %% [markdown]
# What hangs over the line is too much. Only at stage 3 do the states alone have room on the card, and then the activations come on top of them. The last row is stage 3 as well, but keeps hardly any activations and computes them again. Now it fits. (Purple are the parameters of a layer or two, which stage 3 gathers for as long as they compute. Few programs run ZeRO 3 together with a pipeline, since it would gather for every microbatch. Here it only shows what shards.)
#
# The thin bars below are the four stages of the first row. Why is stage 0 the fullest, although all have the same number of layers? With 1F1B it starts `pp` microbatches before the first of them comes back (chapter 08), so it keeps the activations of all of those.

# %% [markdown] sections="19.8.4"
# ### Recipes
#
# The planner was told `recipe="mixed"`, which means the 16 bytes of chapter 01. Left alone, it uses Megatron's recipe, which adds gradients up in fp32. That makes 18 bytes, an eighth more. Ask your engine first which recipe it has.
#
# See what it does on a smaller machine, with 8 cards of 40 GB. A vision model of 10 billion parameters is to be trained with `tp` 2, `pp` 2, `dp` 2 and ZeRO 1, and it recomputes all activations. By hand, at 16 bytes, there are 16 x 10 / 4 = 40 GB of states, of which Adam's 30 are halved. That makes 25 GB:

# %%
vision = planner.Shape(name="vision 10B", layers=48, hidden=4096, heads=32)
small = planner.Plan(model=vision, gpu="A100 40 GB", gpus=8, tp=2, pp=2, zero=1)
lab.show(planner.memory_bars({"vision 10B": small.but(recompute="full")}))

# %% [markdown]
# It is more, for three reasons that you can see in the picture: the gradients are larger than the parameters by this recipe, some activations stay even so, and every process holds buffers that no bill knows of. It fits, but not by much.

# %% [markdown]
# ## Exercise 1. Mend a published bill
#
# Here is the same bill as a calculator that many people use has written it (EleutherAI's cookbook, `calc_transformer_mem.py`; the rules are theirs, the words ours). Gradients have 4 bytes there. We give it a layout by which the paper of our first lines trained 175 B on cards of 80 GB:


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
# One row for each stage of ZeRO. The first can't be right, since that run did fit. Even at stage 1, the calculator's own default, the gradients alone are 700 GB. Each of the three lines of code is right at some stages and wrong at others. Find out which, and write all three so that they are always right.


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
# Those are the days for the 1 T tokens of our 7 B model on eight A100, if they always computed as fast as their data sheet says. They never do, so everything hangs on `share`. It has a name: **MFU**, model FLOPs utilization. That is the FLOPs that the model needs, over those that the cards could have done meanwhile.
#
# The people who trained LLaMA 7B are experts, and their paper says how many hours of a GPU it took. Which MFU did they reach, do you think?

# %%
reached = lab.guess("MFU of LLaMA 7B", between=(0, 1))

# %%
at_peak = 24 * days(llama.params, llama.train_tokens, gpus=1, peak_tflops=312)
reached.score(at_peak / llama.a100_hours)

# %% [markdown]
# More than half of what was paid for went elsewhere. Where did it go? Now we need the planner, because it answers that part by part.
#
# ## Predict
#
# A `Plan` is a model, a cluster and a layout. It has a formula for each thing that takes time: matrix products, attention, reading and writing memory, every kind of message, the bubble, the optimizer. The paper used 2,048 cards but doesn't tell its layout, so we take plain FSDP, which is ZeRO 3:

# %%
plan = planner.Plan(model="LLaMA 7B", gpus=2048, zero=3, batch=2048)
lab.show(planner.time_bars({"LLaMA 7B": plan}))

# %% [markdown]
# The blue part is what the model is about, and most of what was lost is inside it: FSDP's products reach 63 % of the peak. Which part they reach depends on the program, so it is one of the planner's constants. The other colours are the rest of the loss.
#
# At a price of 1 for an hour, the cost of a plan *is* its hours. So here is the planner's number beside the published one:

# %%
predicted = plan.cost(llama.train_tokens, price_per_gpu_hour=1)
lab.table([{"predicted": round(predicted), "published": llama.a100_hours}])

# %% [markdown]
# The planner is somewhat too cheerful. The published hours may count more than steps: saved checkpoints, failures, restarts, evaluation. But how far off may it be, then? Ask it:

# %%
print(plan.trust())

# %% [markdown]
# Make it a habit to ask for that line. Every plan says whose constants it used and how far off those usually are, because a number without it is a guess with decimals.
#
# ### MFU has conventions
#
# Two people may quote different MFUs for one run, and both may be right. Is attention counted in full, only the half that a causal mask leaves, or not at all, as in the 43.4 % above? Are recomputed FLOPs counted as well (then it is called *hardware* FLOPs utilization)? And which peak stands below? A data sheet of an H100 shows 1,979 TFLOP/s, but that is with sparsity; dense, it is half. So say your convention with the number. This is our plan's, by three of them:

# %%
counted = {"not at all": at_peak / predicted}
counted |= {"in full": plan.mfu(), "causal": plan.mfu(causal=True)}
lab.table({"attention": name, "mfu_share": mfu} for name, mfu in counted.items())

# %% [markdown] sections="8.12"
# ## What tensor parallelism costs
#
# Now let's turn one knob at a time. We take one machine with 8 GPUs and NVLink, where messages are as fast as they get. What do you expect of tensor parallelism: does it make the step shorter or longer, compared with plain data parallelism on the same eight cards?

# %%
tensor = lab.guess("step with tp 8, over step with tp 1", between=(0.1, 10))

# %%
node = planner.Plan(model="LLaMA 7B", gpus=8, zero=1, sp=True, batch=512)
tensor.score(node.but(tp=8).time().step_us / node.time().step_us)

# %%
lab.show(planner.time_bars({f"tp {tp}": node.but(tp=tp) for tp in (1, 2, 4, 8)}))

# %% [markdown] sections="8.12"
# The products stay nearly the same, since they are only dealt out in another way. What grows most is the part named after tensor parallelism: each layer needs the other ranks four times a microbatch, and in the forward nobody can compute meanwhile. (Grey, the launches, grows too. With `tp` 8 there is one copy, so each card runs eight times as many microbatches.)
#
# In return each GPU holds an eighth of every layer. So tensor parallelism buys memory with messages. You take as little of it as you need, and you keep it inside a machine.

# %% [markdown]
# ## What ZeRO 3 costs
#
# ZeRO 3 buys memory with messages as well. But these can hide, because the next layer's parameters are gathered while the present one computes. How fast must the network be for that?
#
# ### The network, by hand
#
# Take 64 GPUs in eight machines, two sequences at a time. Those two compute for about 0.9 s. Meanwhile a machine has to fetch 13.5 GB of parameters twice, and to send as much in gradients once. It has eight network cards, one for each GPU. A card reaches half of what its data sheet says. So what must the data sheet promise? (For comparison: 100 Gb/s Ethernet is 12.5 GB/s, and the cards of a usual A100 machine have 25.)

# %%
network = lab.guess("GB/s of a network card", between=(1, 100))

# %%
network.score(3 * 13.5 / 0.9 / 8 / 0.5)

# %% [markdown]
# Does the planner agree? Along the axis is what the network card of each GPU promises, in GB/s:

# %%
wide = planner.Plan(model="LLaMA 7B", gpus=64, zero=3, mbs=2, batch=512)
lab.sweep(wide, nic_gb_per_s=[1.5625, 3.125, 6.25, 12.5, 25])

# %% [markdown]
# On the right the curve is nearly flat, since almost everything is hidden. To the left of the number by hand, each halving of the network doubles the step: now everybody waits for it. So the same layout is fine on one cluster and a disaster on another.
#
# The slow run of 175 B was such a disaster: ZeRO 3 on 1,536 GPUs had so little to compute between two gathers that it could go no faster than its network. But which network, the cards' or the program's? We come back to that.
#
# ## Is the time true?
#
# All this was arithmetic so far. The two runs of 175 B stand in a published table (Narayanan et al. 2021, table 2), with ten more. Let's fit the planner's constants on a quarter of the rows, three, and let it predict all of them. A dot (the legend calls it measured) is what was published, a line is what the planner says:

# %%
runs, refused = planner.load(DATA / "published" / "megatron_sc21_table2.csv")
found = planner.validate(runs, share=0.25, seed=0)
words = {"x": "number of GPUs", "y": "TFLOP/s of a GPU", "title": "Table 2"}
words["badge"] = "published / predicted"
lab.curves(**found.curves(), log_x=True, **words)

# %% [markdown]
# `z3` are the runs with ZeRO 3, `ptd` those with pipeline, tensor and data parallelism. More GPUs share the same batch to the right. See how the ZeRO runs fall from 144 to 44 TFLOP/s while the others hardly lose anything: our first lines are the right ends of the two 175 B curves. (All these TFLOP/s count recomputed FLOPs.)
#
# Are errors of a few per cent good? Compare with somebody who knows nothing, and says the same TFLOP/s for all runs: "naive". Both rows are of the nine runs that were not fitted. `p90` is what nine of ten errors stay below.

# %%
told = found.to_json()
errors = [
    {"who": "planner", "median": told["median"], "p90": told["p90"]},
    {"who": "naive", "median": told["naive_median"], "p90": told["naive_p90"]},
]
lab.table(errors, units={"median": "share", "p90": "share"})

# %% [markdown]
# The naive answer gives itself away in its worst errors, where it says nearly three times what was reached: it can't see ZeRO slow down. So judge a planner by those, and not by its median.
#
# And by the order, because an error of 4 % in the seconds harms nobody, but a wrong order picks the wrong run:

# %%
order = [{"spearman": told["spearman"], "regret": told["regret"]}]
lab.table(order, units={"regret": "share"})

# %% [markdown]
# `spearman` is 1 where all runs are in the right order. `regret` is how much slower the run that the planner would have picked is than the best one. (Here that is an easy choice, among four or five runs of one model.)
#
# ### Constants do not travel
#
# Here is a trap. We predict the ZeRO run on 1,536 GPUs once more, but with the constants of another program: FSDP as people run it today, on the same cards. Call the real step 1. How long is the predicted one?

# %%
travel = lab.guess("predicted step, over the real one", between=(0, 5))

# %%
last = next(run for run in runs if run.id == "sc21t2_z3_175B_1536")
today = planner.STACKS["fsdp-a100"]
travel.score(planner.predicted_us(last, today) / last.step_us())

# %% [markdown]
# Same cards, same model, and still the planner says about a quarter of what it took. Which constant is to blame? Here are two of each program's: the share of the peak for their matrix products, and the share of the network for their messages:

# %%
then = planner.STACKS["zero3-2021-a100"]
constants = [
    {"program": each.name, "products": each.matmul, "network": each.nic}
    for each in (then, today)
]
lab.table(constants, units={"products": "share", "network": "share"})

# %% [markdown]
# The products are not far apart. But that early ZeRO 3 ran as if its messages got less than a tenth of what the network could carry, and FSDP's get half of it. (As if: a fitted constant takes in whatever the formula leaves out.) On 1,536 GPUs hardly anything else counts. No data sheet has such a number: it belongs to one program on one cluster.
#
# ### Measure two runs
#
# If you remember one thing of this chapter, let it be this: **measure two runs of your own, then plan**, and let the two differ in what you want to know. `planner.fit` takes rows like these, or dicts with the same columns. Two are enough to begin. So let's fit the ZeRO runs of 175 B on 384 and 768 GPUs. How far off is it on the third, which it has not seen?

# %%
early = [run for run in runs if run.id.startswith("sc21t2_z3_175B")]
fitted = planner.fit(early[:2])
lab.table(
    {
        "GPU": run.cluster.num_gpus,
        "published_us": run.step_us(),
        "predicted_us": planner.predicted_us(run, fitted.stack(run)),
    }
    for run in early
)

# %% [markdown]
# Twice the cards, and the step is no shorter. The planner is short by some six per cent there, but it has seen this coming from two runs, where halving the second step would have said 33 s.

# %% [markdown]
# ## Exercise 2. The third run, by hand
#
# Five minutes, and you can do without a planner: two runs differ in nothing but the number of microbatches on each GPU. Each is given as (microbatches, seconds). How long will a third run take? Two of the check's cases are published runs.


# %%
def my_third_run(first, second, num_microbatches):
    """Seconds of a step, from two runs (microbatches, seconds)."""
    ### BEGIN SOLUTION
    each_s = (second[1] - first[1]) / (second[0] - first[0])
    return first[1] + each_s * (num_microbatches - first[0])
    ### END SOLUTION


# %%
check.third_run(my_third_run)

# %%
check.hint("third_run")

# %% [markdown]
# ## Is the memory true?
#
# Nobody has 1,024 GPUs on a laptop. But what one rank of them would hold, torch itself can tell: with **fake tensors**, which have a shape and no bytes, and a fake process group of 1,024 ranks in which nothing is sent. We call that a rehearsal. FSDP really wraps the model, really shards it, and really steps the optimizer, only without data. Eight of the 32 layers of LLaMA 7B will do, since all are alike. So how many MB of parameters does rank 0 keep, of 7.5 GB in fp32?

# %%
kept = lab.guess("MB of parameters on rank 0", between=(0, 1000))

# %%
eight = replace(plan.shape, layers=8)
thousand = planner.Plan(model=eight, gpus=1024, zero=3, recipe="fp32")
rehearsal = planner.rehearse(thousand)
kept.score(rehearsal.held["parameters"] / 1e6)

# %%
lab.table(rehearsal.rows())

# %% [markdown]
# The column "planned" is the planner's, "rehearsed" is what torch did, and the last one is their ratio. The rows in the middle are the bytes that a microbatch sends through collectives, in bf16: each layer is gathered twice, once for the forward and once for the backward, and its gradient is scattered once. (Embedding and head are gathered once.)
#
# States differ a little, because torch cuts every tensor by its rows: "as tensors are cut" allows for that.
#
# Look at the last row, too. The peak is the hardest number on the list, since it depends on what a program keeps alive for a moment. If you plan to the last GB, measure it. (What a process holds beside its tensors, 3 GB in every bar of ours, the rehearsal can't see.)

# %% [markdown]
# ## From here on, choose: your own model
#
# Until here we predicted and checked. But so far every model had a name. You probably have an `nn.Module`, and nobody has written its formulas. Here is one such, in plain torch, with a twist that no table knows: attention and MLP work beside each other, not one after the other.


# %%
class Block(nn.Module):
    """A layer whose attention and MLP read the same stream."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, width // 128, batch_first=True)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, stream):
        x = self.norm(stream)
        seen, _ = self.attention(x, x, x, need_weights=False)
        return stream + seen + self.down(nn.functional.gelu(self.up(x)))


# %%
class Mine(nn.Module):
    """Next-token logits."""

    def __init__(self, width=4096, layers=32, vocab=32_000):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


# %% [markdown]
# It is built on the `meta` device, where weights have no bytes, so a laptop can hold it. `planner.measured` sends one example through it, again with fake tensors. It counts the parameters, lets torch count the FLOPs, and listens to what autograd saves for the backward. Where does the time go, beside LLaMA 7B?

# %%
with torch.device("meta"):
    module = Mine()
mine = planner.measured(module, torch.zeros(1, 2048, dtype=torch.long), name="mine")
own = planner.Plan(model=mine, gpus=8, zero=1, batch=512)
both = {"mine": own, "LLaMA 7B": own.but(model="LLaMA 7B")}
lab.show(planner.time_bars(both))

# %% [markdown]
# The second bar is LLaMA 7B on the same machine. Both have nearly as many parameters, so the products take as long. But why does attention take twice as long in yours?
#
# Nobody told `MultiheadAttention` that a token must not look ahead. So it multiplies the whole matrix of scores, not only the half below the diagonal. The planner has counted what your module really does, and what it really does is a bug: this model could read the answer. Apart from that, your model is one like any other now, for the search that follows too.

# %% [markdown]
# ## Search
#
# You need not turn the knobs yourself. `search` tries all values of them: `tp`, `pp`, chunks, ZeRO's stage, microbatch, recomputation. How many layouts of our 7 B model are there on 64 GPUs, and where are the good ones?

# %%
search = planner.search(planner.Plan(model="LLaMA 7B", gpus=64, batch=512))
search

# %% [markdown]
# Each dot is a layout that fits: the further left, the faster, and the lower, the lighter. The dashed line along the bottom is the **frontier**: the layouts that no other beats in both. If you want the shortest step, take its left end. If you want memory left over, for a longer sequence perhaps, go along it to the right: at first you save a lot of memory for little time, then it gets dearer. (The axis of time is logarithmic.)

# %%
lab.table(plan.row() for plan in search.plans())

# %%
print(search.best.trust())

# %% [markdown]
# The first few are within some per cent of each other, which is less than the error in that line. So take from among them what your engine does well.
#
# ### How to read such a table
#
# Two warnings belong to it. First, 63 % MFU? The best run of the published table reaches 171 of 312 TFLOP/s. That is 55 %, recomputed FLOPs counted; as MFU, without them, it is 41 %. Those runs recomputed all activations and cut the model. A layout that does neither lies outside of what the constants were fitted on, so read its step as a lower bound.
#
# Second, where less than 5 % of the card is left, the column says "perhaps", because in the rehearsal the peak was off by about as much. (80 GB are 80 x 10⁹ bytes here. A card of 80 x 2³⁰ has 7 % more.)
#
# And now the choice that many people make without asking: ZeRO 3, one sequence at a time. By how much is it slower than the best one here?

# %%
usual = lab.guess("regret of ZeRO 3 on 64 GPUs", between=(0, 1))

# %%
usual.score(search.regret(search.plan.but(zero=3)))

# %% [markdown]
# ### Layouts or programs?
#
# Look at the last column of the first table once more. Where you name no program, each layout has the constants of the one that usually runs it: FSDP for ZeRO 3, Megatron for the others. So some of that regret is not the layout's doing. Which part of it? Name one program for all, and search again:

# %%
same = planner.search(search.plan.but(stack="fsdp-a100"))
lab.table(plan.row() for plan in same.plans())

# %%
regret = same.regret(same.plan.but(zero=3))
lab.table([{"regret": regret}], units={"regret": "share"})

# %% [markdown]
# What is left is the layout's own doing. Is it because of ZeRO 3? No: in the table, ZeRO 3 with a larger microbatch is as good as anything. It is the one sequence at a time, which leaves too little to compute between two gathers.
#
# The rest was the program. Many a comparison of strategies that you read compares two programs, and calls the difference a strategy. So if you know your program, name it, because that is what `stack` is for.
#
# ### Our first lines again
#
# Were they such a comparison? The two runs of 175 B had two programs. So here are both, first as measured, then by the constants of one program for both, three times:

# %%
names = {"z3": "sc21t2_z3_175B_1536", "ptd": "sc21t2_ptd_175B_1536"}
by_name = {run.id: run for run in runs}
programs = ("zero3-2021-a100", "megatron-a100", "fsdp-a100")
pair = []
for layout, name in names.items():
    row = {"layout": layout, "measured": by_name[name].step_us()}
    for each in programs:
        row[each] = planner.predicted_us(by_name[name], planner.STACKS[each])
    pair.append(row)
lab.table(pair, units=dict.fromkeys(("measured", *programs), "us"))

# %% [markdown]
# Read down a column, where only the layout differs. Measured, `z3` takes 3.2 times as long as `ptd`. If the early ZeRO 3 program had run both, it would be twice as long, and the rest of the 3.2 is the program's doing. By Megatron's or today's FSDP's constants the order even turns round: `z3` would be the faster one.
#
# Is that to be believed? Nobody has measured it on 1,536 cards, and the planner says so itself:

# %%
now = planner.Plan(model="GPT-3 175B", gpus=1536, zero=3, batch=1536)
lab.table([{"warnings": each} for each in now.warnings()])

# %% [markdown]
# So what did those 51 days show? That this program, on this network, was the wrong choice for 1,536 GPUs. They didn't show that ZeRO 3 is.
#
# <details><summary>Without a notebook</summary>
#
# All of this is one command. In place of the name it takes the path of a Hugging Face `config.json`, too:
#
# ```
# python -m labkit plan llama-7b --gpus 64 --batch 512 --search
# python -m labkit plan llama-7b --gpus 64 --batch 512 --zero 1 --tokens 1e12 --price 2
# ```
#
# </details>

# %% [markdown] sections="8.12"
# ## Which strategy when?
#
# You may have heard a rule by size: DDP below 7 B, FSDP from 7 to 30 B, ZeRO 3 from 30 to 100 B on a machine of 8 GPUs, tensor and pipeline parallelism above. Is it any good? We can ask, with one model for each line of the rule:

# %%
rule = {
    "LLaMA 7B": {"gpus": 8, "zero": 0},
    "LLaMA 13B": {"gpus": 8, "zero": 3},
    "LLaMA-2 70B": {"gpus": 8, "zero": 3},
    "GPT-3 175B": {"gpus": 128, "tp": 4, "pp": 8, "zero": 1, "sp": True},
}
ruled = [planner.Plan(model=name, batch=512, **layout) for name, layout in rule.items()]
lab.table(plan.row() for plan in ruled)

# %% [markdown]
# See who does not fit. DDP ends long before 7 B, since a full copy of the states is 18 bytes a parameter: on 80 GB that is 4 B, with nothing left for activations. And 70 B on eight cards has no room even when everything is sharded.
#
# A better rule would look at what a layout does with the model: copies of it, shards (ZeRO 3), or a cut by `tp` and `pp`. Which of the three is the fastest? We ask for five models, with 64 cards for the 70 B and 128 for the 175 B, and each question twice, by one program for all and then by another:


# %%
def kind(layout):
    """What a layout does with the model."""
    if layout.zero == 3:
        return "shards"
    return "cut" if layout.tp * layout.pp > 1 else "copies"


def fastest(model, gpus, stack):
    """Seconds of the fastest step of each kind, where one fits."""
    plan = planner.Plan(model=model, gpus=gpus, batch=512, stack=stack)
    found = {"copies": None, "shards": None, "cut": None}
    for each in reversed(planner.search(plan).fitting):
        found[kind(each.layout)] = round(each.step_us / 1e6, 1)
    return {"model": model, "gpus": gpus} | found | {"stack": stack}


# %%
sizes = {"GPT-2 XL": 8, "LLaMA 7B": 8, "LLaMA 13B": 8}
sizes |= {"LLaMA-2 70B": 64, "GPT-3 175B": 128}
stacks = ("megatron-a100", "fsdp-a100")
lab.table(fastest(*each, stack) for each in sizes.items() for stack in stacks)

# %% [markdown]
# Read along a row. In one machine, the first six rows, copies, shards and cuts differ by some per cent, which is less than the planner's error. With several machines the cut wins, or is as good. Then compare the two rows of a model: the program makes more of a difference than the layout.
#
# ### In which parts?
#
# How did it cut the 70 B? The usual advice, that of the paper with our two runs, is: tensors first, up to the size of a machine, then stages. Here are four cuts, by Megatron's constants:

# %%
large = planner.Plan(model="LLaMA-2 70B", gpus=64, batch=512, stack=stacks[0])
cuts = [(8, 4, 2), (4, 8, 2), (2, 8, 2), (2, 16, 5)]
lab.table(
    large.but(tp=tp, pp=pp, vpp=vpp, zero=1, sp=True).row() for tp, pp, vpp in cuts
)

# %% [markdown]
# The planner says few tensors and many stages, because with thin chunks (`vpp`) and a large batch stages hardly wait. Between 8 and 16 of them it sees no difference, but with 16 more memory is left.
#
# ### Four rules
#
# So these are ours, as far as one program's constants carry them:
#
# 1. Copy the model if it fits, and shard the optimizer in any case, because ZeRO 1 costs next to nothing.
# 2. If it does not fit, shard all of it (ZeRO 3), where each GPU has much to compute between two gathers and the network is fast, as in one machine. It needs no change to the model, and that is worth a lot of people's time.
# 3. Where that is not so, cut, in as few parts as you can: in stages, and where those do not suffice, tensors too, but only inside a machine, where the parts may talk a lot.
# 4. Recompute last, since it makes all computing about a third longer.

# %% [markdown] sections="10.6.1"
# ## How many GPUs, for how long?
#
# Rules of thumb go around for this, too. A typical one says: below 1 B, 1 to 8 GPUs and days; 1 to 10 B, 8 to 32 GPUs and one or two weeks; 10 to 100 B, 32 to 128 and two to eight weeks; above, 128 or more and months. It doesn't say for how many tokens. We take 20 for each parameter (Hoffmann et al. 2022).
#
# First, on how few GPUs does anything fit at all?


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
# And how long would it take, on GPUs as the rule has them for each model?

# %%
most = {"GPT-2 XL": 32, "LLaMA 7B": 32, "LLaMA-2 70B": 128, "GPT-3 175B": 128}
answers = []
for model, gpus in most.items():
    best = planner.search(planner.Plan(model=model, gpus=gpus, batch=512)).best
    span = best.days(20 * MODELS[model].params)
    row = {"model": model, "fewest": fewest(model), "gpus": gpus, "days": span}
    answers.append(row)
lab.table(answers)

# %% [markdown]
# Compare the table with the rule. About memory ("fewest") it is careful: it never asks for too few GPUs to *hold* a model. About time ("days") it is far too hopeful at the large end, because that a model fits doesn't mean that anybody can wait for it. Whoever wants 175 B in months needs a thousand cards and not 128: these are 3.5 T tokens, twelve times those of our first lines.

# %% [markdown]
# ## When is a planner worth it, and what can it not know?
#
# It is worth it before you rent, before you change clusters, and when a run is slower than it should be, because a step that takes a third longer than planned has a reason. It is not worth it on one GPU, nor to choose between two layouts that it puts 3 % apart. One configuration, measured twice, may differ by as much.
#
# What it can't know:
#
# - **your network.** Bandwidth on a data sheet is not what a collective reaches among a hundred machines and other people's jobs. That is why it is fitted.
# - **your software's version.** The constants are a program's, in some week of its life.
# - **failures and stragglers.** `days` says: nothing failing. Chapter 13 says what to add.
# - **whether it learns.** A larger batch makes every layout look better; how many steps you need with it is another matter.
# - **odd sizes.** 25 heads, or layers that the stages don't divide, lie far off in published tables. A plan has `warnings()` where it is of that kind, and this one has all kinds at once:

# %%
odd = planner.Plan(model="LLaMA-2 70B", gpus=48, tp=16, pp=3)
lab.table([{"warnings": each} for each in odd.warnings()])

# %% [markdown]
# And this is what the chapter changed for our 7 B model on 64 GPUs, both sides by one program: the choice that many make without asking, and the best that the search found. Memory that lay idle on the left holds a larger microbatch on the right.

# %%
planner.card(same.plan.but(zero=3), same.best)

# %% [markdown]
# ## Exercise 3. Choose a layout
#
# Find a layout that fits and whose step is at most a tenth slower than the best. Your function gets the number of GPUs and `ask`: `said = ask(tp=2, pp=4, zero=1)` has `said.step_s`, `said.memory_gb` and `said.fits`, and any knob of this chapter may be asked for. You may ask 16 times. The check has five models and clusters, each by one program's constants, and on one of them the network is slow. (`planner.search` asks hundreds of times. You have the four rules above, so you know where to begin.)


# %%
def my_layout(gpus, ask):
    """A layout, such as {"tp": 2, "pp": 4, "zero": 1}."""
    ### BEGIN SOLUTION
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
    asked = ask(**layout, mbs=2)
    return layout | {"mbs": 2} if asked.fits and asked.step_s < step_s else layout
    ### END SOLUTION


# %%
check.layout_in_budget(my_layout)

# %%
check.hint("layout_in_budget")

# %% [markdown]
# And this is your regret, case by case (batch and network differ as well):

# %%
lab.table(check.regrets(my_layout), units={"regret": "share"})

# %% [markdown]
# ## Summary
#
# - A layout is how model and batch are divided: tp and pp cut everything, dp copies, and ZeRO shards what dp copies.
# - States can be counted to the byte if you know the recipe; the peak wants a measurement. Time needs constants that no data sheet has.
# - Copy if it fits; shard the optimizer; shard all of it where the network keeps up; else cut as little as you can, tensors inside a machine, pipelines between machines; recompute last.
# - MFU without its convention is no number. A prediction without its error is none either.
# - A planner is judged by the order of layouts and by its worst errors, not by its median.
# - Constants do not travel: measure two runs, fit, then plan. And compare layouts by one program, or you compare programs.
#
# Words that were new: [layout](GLOSSARY.md#layout), [recipe](GLOSSARY.md#recipe), [MFU](GLOSSARY.md#mfu), [regret](GLOSSARY.md#regret), [frontier](GLOSSARY.md#frontier), [rehearsal](GLOSSARY.md#rehearsal).
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
# The textbook's rule looks at the model alone, and what fits depends on the cluster as much. Run it: `lab.table(plan.row() for plan in ruled)`, where its first and third line don't fit.
#
# </details>
#
# <details><summary>Erratum 10.6.1: "10 to 100 B: 32 to 128 GPUs, two to eight weeks"</summary>
#
# The textbook's table of resources is the rule under "How many GPUs, for how long?". For 70 B and 20 tokens a parameter, 128 A100 take several months; for 175 B it is years. Run it: `lab.table(answers)`. Of its strategies, the smaller models need less than it names: 7 B on cards of 80 GB does with ZeRO 1.
#
# </details>
#
# </details>
#
# *Sections 8.8.1, 8.12, 10.6.1 and 19.8.4 of the source material.*

# %%
check.status()
