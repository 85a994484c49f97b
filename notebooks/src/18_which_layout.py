# ---
# jupyter:
#   labkit:
#     sections: ["8.8.1", "8.12", "10.6.1", "10.7.1", "19.8.4"]
#     needs: ["chapters 01, 06 and 08"]
#     minutes: 60
# ---

# %% [markdown]
# # Which layout for which model and cluster
#
# *About an hour. You need chapters 01, 06 and 08. No GPU is needed.*
#
# A paper trains the same 175 B model twice, on the same 1,536 GPUs. One run will be done in 23 days, the other in 74. Nobody bought a better card for the first one; only the **layout** differs, which means who holds which part of the model, and who works on which part of the batch. At 2 dollars for a GPU's hour, those 51 days are 3.8 million.
#
# So how do you choose, when even eight GPUs have hundreds of layouts? Here is one of them, a step of a 7 B model: each row is a stage of the pipeline.

# %%
import labkit as lab

lab.begin("en")
from labkit import planner
from labkit.planner import plan_check as check
from labkit.planner.models import DATA, MODELS

# %%
planner.Plan(model="LLaMA 7B", gpus=8, tp=2, pp=4, batch=8).predict()

# %% [markdown]
# Look at the hatched parts. All GPUs are paid for there, and some of them wait.
#
# **When you are done** you can say what a layout holds and how long its step takes, before you rent anything; you can find the best of some thousand layouts in a second; and you know when not to believe the answer.

# %%
planner.board()

# %% [markdown] sections="8.8.1"
# ## The memory, by hand
#
# Chapter 01 wrote the bill of one parameter: 2 bytes for itself, 2 for its gradient, 12 for Adam. Which part of that does one GPU have? Tensor parallelism (`tp`) cuts each layer, and a pipeline (`pp`) cuts the stack of layers, so these two divide everything. Data parallelism (`dp`) copies, and divides only what ZeRO shards. That is all of it:


# %%
def state_gb(params, tp, pp, dp, zero):
    """Parameters, gradients and Adam on one GPU."""
    held = params / (tp * pp) / 1e9
    weights = 2 * held / (dp if zero >= 3 else 1)
    gradients = 2 * held / (dp if zero >= 2 else 1)
    adam = 12 * held / (dp if zero >= 1 else 1)
    return weights + gradients + adam


# %% [markdown]
# Now 175 billion parameters on 64 GPUs: eight copies, each cut in four stages and each stage in two. Nothing is sharded. How many GB does a GPU hold? A card has 80.

# %%
held = lab.guess("175 B, tp 2, pp 4, dp 8, ZeRO 0: GB", between=(0, 1000))

# %%
held.score(state_gb(175e9, tp=2, pp=4, dp=8, zero=0))

# %%
lab.table([{"zero": zero, "GB": state_gb(175e9, 2, 4, 8, zero)} for zero in range(4)])

# %% [markdown]
# Only the last row has room on the card. Yet a pipeline wants stage 1: it holds its gradients over many microbatches, so there is nothing to give away in between, and with stage 3 it would gather all parameters anew for each of them.
#
# <details><summary>Erratum 8.8.1: "43.75 GB, runs on an A100 with 80 GB"</summary>
#
# The textbook divides all 16 bytes by tp, pp and dp. But dp divides only what is sharded. Its own configuration uses ZeRO 1, and that is the second row of the table above: 120 GB. 43.75 GB would take ZeRO 3, or tp 8 with pp 8 and no copies: `state_gb(175e9, 8, 8, 1, 0)`.
#
# </details>
#
# And states are not everything. The planner adds activations, logits and a fixed part. With 1F1B the first stage keeps the activations of `pp` microbatches, so it is the fullest:

# %%
big = planner.Plan(model="GPT-3 175B", gpus=64, tp=2, pp=4, zero=1, recipe="mixed")
big.footprint()

# %% [markdown]
# `recipe="mixed"` are the 16 bytes of chapter 01. The planner's usual recipe is Megatron's, which adds gradients up in fp32: 18 bytes. Which recipe your engine has is the first thing to ask it.

# %% [markdown] sections="19.8.4"
# ### Ten billion on eight cards of 40 GB
#
# Let's take a smaller machine: 8 cards of 40 GB, and a vision model of 10 billion parameters with tp 2, pp 2, dp 2 and ZeRO 1. Does it fit? First by hand, then by the planner, with full recomputation:

# %%
state_gb(10e9, tp=2, pp=2, dp=2, zero=1)

# %%
vision = planner.Shape(name="vision 10B", layers=48, hidden=4096, heads=32)
small = planner.Plan(model=vision, gpu="A100 40 GB", gpus=8, tp=2, pp=2, zero=1)
small.but(recompute="full").footprint()

# %% [markdown]
# <details><summary>Erratum 19.8.4: "about 20 GB in all, ample room on 40 GB"</summary>
#
# The textbook counts 10 GB for the parameters (at 2 bytes it is 20, over all GPUs), 20 GB for Adam (it is 120), and no gradients. Divided by tp 2 and pp 2 there are 5 GB of parameters, 5 of gradients (10 if they are added up in fp32), and Adam's 30, which ZeRO 1 halves to 15. That is 25 or 30 GB, as above. With the 10 GB of activations that the textbook itself allows, it is 35 to 40: at the limit.
#
# </details>

# %% [markdown]
# ## Exercise 1. Mend a published bill
#
# This is how a calculator that many people use has written the same bill (EleutherAI's cookbook, `calc_transformer_mem.py`; the rules are theirs, the words ours). Gradients have 4 bytes there.


# %%
def published_bill(params, tp, pp, dp, zero):
    """Parameters, gradients and Adam in GB; something is wrong with it."""
    gpus = tp * pp * dp
    weights = 2 * params / (tp * pp) / (gpus if zero == 3 else 1)
    gradients = 4 * params / (gpus if zero >= 2 else 1)
    adam = 12 * params / (gpus if zero >= 1 else 1)
    return weights / 1e9, gradients / 1e9, adam / 1e9


published_bill(175e9, tp=8, pp=12, dp=4, zero=0)

# %% [markdown]
# With this layout the paper of the first lines trained 175 B, on cards of 80 GB. So it can't be. Even with `zero=1`, the calculator's own default, the gradients alone are 700 GB. Find what is wrong, and write it right. Each of the three lines is right at some stages of ZeRO and wrong at others.


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
# It takes about 6 FLOPs to train one parameter on one token: 2 in the forward, 4 in the backward. So the shortest possible time is one division:


# %%
def days(params, tokens, gpus, peak_tflops, share=1.0):
    """Days of training, where so large a share of the peak is reached."""
    return 6 * params * tokens / (gpus * 1e12 * peak_tflops * share) / 86_400


llama = MODELS["LLaMA 7B"]
days(llama.params, llama.train_tokens, gpus=8, peak_tflops=312)

# %% [markdown]
# Everything hangs on `share`. It has a name, **MFU** (model FLOPs utilization): the FLOPs that the model needs, over those that the cards could have done meanwhile. LLaMA 7B was trained by people who know their trade, and its paper tells the GPU hours. Which MFU did they reach?

# %%
reached = lab.guess("MFU, LLaMA 7B", between=(0, 1))

# %%
at_peak = 24 * days(llama.params, llama.train_tokens, gpus=1, peak_tflops=312)
reached.score(at_peak / llama.a100_hours)

# %% [markdown]
# More than half of what was paid for went elsewhere. Where to? A planner has to answer that part by part.
#
# ## Predict
#
# A `Plan` is a model, a cluster and a layout. It times the matrix products, attention, memory traffic, every kind of message, the bubble and the optimizer, each by its own formula:

# %%
plan = planner.Plan(model="LLaMA 7B", gpus=2048, zero=3, batch=2048)
spent = plan.time().parts()
lab.table([{"part": part, "time_us": us} for part, us in spent.items() if us])

# %% [markdown]
# At a price of 1 for an hour, the cost *is* the GPU hours. So this is the planner's number beside the published one:

# %%
plan.cost(llama.train_tokens, price_per_gpu_hour=1), llama.a100_hours

# %%
plan.trust()

# %% [markdown]
# The planner is somewhat too cheerful here: the real run also saved checkpoints, failed, restarted and was evaluated, and nobody says by which layout it ran. The last line is worth a habit. Every plan says whose constants it used and how far off those usually are; a number without that line is a guess with decimals.
#
# ### MFU has conventions
#
# Two people may quote different MFUs for one run, and both be right. Is attention counted in full, or only the half that a causal mask leaves? Are recomputed FLOPs counted (then it is called *hardware* FLOPs utilization)? And which peak stands below: a data sheet of an H100 shouts 1,979 TFLOP/s, which is with sparsity. Dense, it is half:

# %%
plan.mfu(), plan.mfu(causal=True), planner.gpu("H100").tflops

# %% [markdown] sections="8.12"
# ## What each axis costs
#
# Let's turn one knob at a time, on one machine with 8 GPUs and NVLink. What do you expect of tensor parallelism: does it make the step shorter or longer, compared with plain data parallelism on the same eight cards?

# %%
tensor = lab.guess("tp 8 / tp 1", between=(0.1, 10))

# %%
node = planner.Plan(model="LLaMA 7B", gpus=8, zero=1, sp=True, batch=512)
tensor.score(node.but(tp=8).time().step_us / node.time().step_us)

# %%
lab.sweep(node, tp=[1, 2, 4, 8])

# %% [markdown]
# Each layer now needs its neighbours four times a microbatch, and nobody can compute meanwhile. In return each GPU holds an eighth of everything. Tensor parallelism buys memory with messages, so you take as little of it as you need, and keep it inside a machine.
#
# <details><summary>Erratum 8.12: "tensor parallelism: less communication"</summary>
#
# It adds two all-reduces a layer in the forward and two in the backward, on the critical path; `node.but(tp=8).time().parts()["tensor"]` says how long they take. Pipelines are what sends little.
#
# </details>
#
# ZeRO 3 buys memory with messages as well, but these can hide behind the computing, as long as the network is fast enough. How fast is that? The next picture has 64 GPUs in eight machines. Along the axis is what the network cards give each GPU, in GB/s:

# %%
wide = planner.Plan(model="LLaMA 7B", gpus=64, zero=3, mbs=2, batch=512)
lab.sweep(wide, nic_gb_per_s=[1.5625, 3.125, 6.25, 12.5, 25])

# %% [markdown]
# On the right the curve is nearly flat: almost everything is hidden. From some point on to the left, each halving doubles the step. The same layout is fine on one cluster and a disaster on the other. That is what happened in our two runs of 175 B: ZeRO 3 over 1,536 GPUs had so little to compute between two gathers that it could not go faster than its network.
#
# ## Compare: is any of this true?
#
# Those runs are a published table: Narayanan et al. 2021, table 2. Let's fit the planner's constants on a quarter of the rows and predict the others, which it has not seen.

# %%
rows, refused = planner.load(DATA / "published" / "megatron_sc21_table2.csv")
found = planner.validate(rows, share=0.25, seed=0)
judged = [vars(each) | {"error": each.error} for each in found.rows]
lab.table(judged, units={"error": "share"})

# %% [markdown]
# The names with `z3` in them are the ZeRO runs. See how their TFLOP/s fall from 144 to 44 while more GPUs share the same batch: the two runs of our first lines end these two groups of the table.
#
# Is a few per cent good? Ask what somebody gets who knows nothing, and says one constant TFLOP/s for all:

# %%
told = found.to_json()
kinds = ("median", "p90", "naive_median", "naive_p90", "spearman", "regret")
lab.table([{kind: told[kind] for kind in kinds}])

# %% [markdown]
# `p90` is what nine of ten errors stay below. `spearman` asks whether the layouts are in the right order (1 is perfect), and `regret` how much slower the layout is that the planner would have picked than the best one in the table. Those last two are what a planner is for. An error of 4 % in the seconds harms nobody, but a wrong order picks the wrong run.
#
# ### Constants do not travel
#
# Now the table's ZeRO run on 1,536 GPUs, predicted with another program's constants: those of FSDP as people run it today, on the same cards. Call the real step 1. How long is the predicted one?

# %%
travel = lab.guess("predicted over real", between=(0, 5))

# %%
last = next(row for row in rows if row.id == "sc21t2_z3_175B_1536")
travel.score(planner.predicted_us(last, planner.STACKS["fsdp-a100"]) / last.step_us())

# %% [markdown]
# Same cards, same model, and the step is predicted to take about a quarter of what it took. Where each GPU has more to compute, on 384 GPUs, it would have been four fifths: there the network hardly matters. Products reach three quarters of the peak in one program and half of it in another, and a network gives what it gives. If you remember one thing of this chapter, let it be this: **measure two runs of your own, then plan**, and let the two differ in what you want to know. Two are enough to begin:

# %%
fitted = planner.fit(rows[:2])
fitted.constants()

# %%
third = planner.Plan(
    model=rows[2].shape,
    gpus=1536,
    tp=8,
    pp=12,
    batch=1536,
    precision="fp16",
    recompute="full",
    flash=False,
    stack=fitted.stack(rows[2]),
)
third.time().step_us / rows[2].step_us() - 1

# %% [markdown]
# ### Full recomputation
#
# One more comparison, since it is quoted so often. To recompute the whole forward should make a layer a third slower: 1 + 2 becomes 1 + 1 + 2. Korthikanti et al. measured a layer (table 4):

# %%
import csv

with (DATA / "published" / "korthikanti_table4.csv").open() as file:
    table = csv.DictReader(file)
    layer_ms = {row["experiment"]: float(row["total_ms"]) for row in table}
layer_ms["Baseline with recompute"] / layer_ms["Baseline no recompute"] - 1

# %%
paper = planner.Shape(layers=48, hidden=6144, heads=64, vocab=51_200)
layer = planner.Plan(model=paper, gpus=8, tp=8, mbs=4, batch=4, flash=False)
layer.but(recompute="full").time().step_us / layer.time().step_us - 1

# %% [markdown]
# It was 39 %, because the backward takes less than twice the forward, and the messages of tensor parallelism come again too. Our planner knows the second reason and not the first, and stays some points below.
#
# ## Search
#
# You need not turn the knobs yourself. `search` tries all that divides: tp, pp, chunks, ZeRO's stage, microbatch, recomputation. How many layouts of a 7 B model on 64 GPUs fit?

# %%
search = planner.search(planner.Plan(model="LLaMA 7B", gpus=64, batch=512))
len(search.fitting), len(search.too_large)


# %%
def short(row):
    """The columns of a found layout that we look at here."""
    names = ("tp", "pp", "vpp", "zero", "mbs", "recompute", "step_s", "memory")
    return {name: row[name] for name in names}


lab.table(map(short, search.rows()))

# %%
search.best.footprint()

# %% [markdown]
# The picture is the first row, over a step. The first few rows are within a few per cent of each other, which is less than the planner's own error. So take from among them what your engine does well. And now the choice that many people make without asking, ZeRO 3 and one sequence at a time: how much slower than the best is it here?

# %%
usual = lab.guess("ZeRO 3, 64 GPU: regret", between=(0, 1))

# %%
usual.score(search.regret(search.plan.but(zero=3)))

# %% [markdown]
# What if you want to keep memory free, for a longer sequence perhaps? `frontier` has the layouts that no other beats in both time and memory:

# %%
front = [each.row(search.plan.tokens, 64) for each in search.frontier()]
lab.table(map(short, front[:8]))

# %% [markdown]
# The first steps buy a lot of memory for little time; from then on it gets dearer. Without a notebook it is one command (`--search`, `--json` and `--validate FILE.csv` are others, and in place of the name you may give the path of a Hugging Face `config.json`):

# %%
import subprocess, sys

command = "-m labkit plan llama-7b --gpus 64 --batch 512 --zero 1 --tokens 1e12"
print(subprocess.check_output([sys.executable, *command.split()], text=True))

# %% [markdown] sections="8.12"
# ## Which strategy when?
#
# The textbook closes with a rule by size: DDP below 7 B, FSDP from 7 to 30 B, ZeRO 3 from 30 to 100 B (with `--num_gpus 8`), and tensor and pipeline parallelism above. We can ask. This makes a row of a plan:


# %%
def told(plan):
    """A plan's layout and numbers, as a row of a table."""
    names = ("tp", "pp", "zero", "mbs")
    return {name: getattr(plan, name) for name in names} | {
        "memory_bytes": plan.memory().peak_bytes,
        "fits": plan.fits,
        "step_us": plan.time().step_us,
        "MFU": plan.mfu(),
    }


# %%
rule = {
    "LLaMA 7B": {"gpus": 8, "zero": 0},
    "LLaMA 13B": {"gpus": 8, "zero": 3},
    "LLaMA-2 70B": {"gpus": 8, "zero": 3},
    "GPT-3 175B": {"gpus": 128, "tp": 4, "pp": 8, "zero": 1, "sp": True},
}
ruled = [planner.Plan(model=name, batch=512, **layout) for name, layout in rule.items()]
lab.table({"model": plan.model} | told(plan) for plan in ruled)

# %% [markdown]
# See who does not fit. DDP ends long before 7 B, since a full copy of the states is 18 bytes a parameter: on 80 GB that is 4 B, with nothing left for activations. And 70 B on eight cards has no room even when everything is sharded. Now the planner's choice, with more cards for the 70 B:

# %%
sizes = {
    "GPT-2 XL": 8,
    "LLaMA 7B": 8,
    "LLaMA 13B": 8,
    "LLaMA-2 70B": 64,
    "GPT-3 175B": 128,
}
plans = [planner.Plan(model=name, gpus=n, batch=512) for name, n in sizes.items()]
best = [planner.search(plan).best for plan in plans]
lab.table({"model": plan.model, "gpus": plan.gpus} | told(plan) for plan in best)

# %% [markdown]
# There is a pattern, and it is not about names of libraries:
#
# 1. Copy the model if it fits, and shard the optimizer in any case: ZeRO 1 costs next to nothing.
# 2. If it does not fit, cut it in as few parts as you can. Inside a machine the parts may talk a lot (tensor), between machines they should not (pipeline).
# 3. ZeRO 3 in place of cutting, where each GPU has much to compute between two gathers and the network is fast. It needs no change to the model, and that is worth a lot of people's time.
# 4. Recompute last. It costs a third of everything.

# %% [markdown] sections="10.6.1"
# ## How many GPUs, for how long?
#
# Another textbook has a table of resources for story models: below 1 B, 1 to 8 GPUs and days; 1 to 10 B, 8 to 32 and one or two weeks; 10 to 100 B, 32 to 128 and two to eight weeks; above, 128 or more and months. It doesn't say for how many tokens. We take 20 for each parameter (Hoffmann et al. 2022), and first ask on how few GPUs anything fits:


# %%
def fewest(model):
    """The fewest A100 of 80 GB, doubling, on which some layout fits."""
    gpus = 1
    while not planner.search(planner.Plan(model=model, gpus=gpus, batch=512)).fitting:
        gpus *= 2
    return gpus


# %%
few = lab.guess("LLaMA-2 70B: min GPU", between=(1, 512))

# %%
least = {model: fewest(model) for model in sizes}
few.score(least["LLaMA-2 70B"])

# %%
most = {"GPT-2 XL": 32, "LLaMA 7B": 32, "LLaMA-2 70B": 128, "GPT-3 175B": 128}
answers = []
for model, gpus in most.items():
    plan = planner.search(planner.Plan(model=model, gpus=gpus, batch=512)).best
    span = plan.days(20 * MODELS[model].params)
    row = {"model": model, "fewest": least[model], "gpus": gpus, "days": span}
    answers.append(row)
lab.table(answers)

# %% [markdown]
# The table is careful about memory: it never asks for too few GPUs to *hold* a model. About time it is far too hopeful at the large end. That a model fits doesn't mean that anybody can wait for it, and whoever wants 175 B in months needs a thousand cards, not 128. The strategies that it names will do, though the smaller ones need less: for 7 B on cards of 80 GB, ZeRO 1 is enough.

# %% [markdown] sections="10.7.1"
# ## Three strategies for a story model of 10 B
#
# The same book asks you to compare data, tensor and pipeline parallelism for a story model of 10 billion parameters. Eight GPUs, 512 stories a step; all by one and the same program, so that only the layout differs. Which is fastest of those that fit: data parallelism, plain or sharded (`dp`), layers cut in eight (`tp`), or eight stages (`pp`)?

# %%
fastest = lab.guess("10 B, 8 GPU", choices=("dp", "tp", "pp"))

# %%
model = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
story = planner.Plan(model=model, gpus=8, batch=512, stack="megatron-a100")
copies = [story, story.but(zero=1), story.but(zero=3)]
cut = [story.but(tp=8, sp=True), story.but(pp=8), story.but(tp=2, pp=4, sp=True)]
lab.table(map(told, copies + cut))

# %%
steps = {"dp": copies[2], "tp": cut[0], "pp": cut[1]}
fastest.score(min(steps, key=lambda name: steps[name].time().step_us))

# %% [markdown]
# Plain copies don't fit, and with ZeRO 1 they don't either. ZeRO 3 does, and NVLink hides nearly all that it gathers. Cut in eight, each layer talks nearly as much as it computes. And eight stages? Here they are with 16 microbatches instead of 512, so that there is something to see. What does the last row have that the others don't?

# %%
story.but(pp=8, batch=16).predict()

# %% [markdown]
# It has the output layer as well, so it takes longer, and the others wait for it in every microbatch. The bubble at both ends becomes small with 512 of them; this waiting doesn't.
#
# So is that the answer? We asked for one program, but nobody runs ZeRO 3 in Megatron. `stack=""` takes the constants of whoever usually runs such a layout:

# %%
usually = [each.but(stack="") for each in (story.but(zero=3), story.but(pp=8))]
lab.table({"stack": plan.used.name} | told(plan) for plan in usually)

# %% [markdown]
# Now the pipeline wins. The layouts are the same, and so is every message; only the share of the peak that each program's products reach is another. Many a comparison of strategies that you read compares two programs, and calls the difference a strategy. `search` has this weakness too, so give it *your* `stack`.

# %% [markdown]
# ## When is a planner worth it, and what can it not know?
#
# It is worth it before you rent, before you change clusters, and when a run is slower than it should be: a step that takes a third longer than planned has a reason. It is not worth it on one GPU, nor to choose between two layouts that it puts 3 % apart. In the tables that this planner was tried on, the same configuration, measured twice, differs by 5.7 % in the median.
#
# What it can't know:
#
# - **your fabric.** Bandwidth on a data sheet is not what a collective reaches among a hundred machines and other people's jobs. That is why it is fitted.
# - **your software's version.** The constants are a program's, in some week of its life.
# - **failures and stragglers.** `days` says: nothing failing. Chapter 13 says what to add.
# - **odd sizes.** 25 heads, or layers that the stages don't divide, make outliers. The plan then has `warnings()`.
# - **whether it learns.** A larger batch makes every layout look better; how many steps you need with it is another matter.

# %%
planner.Plan(model="LLaMA-2 70B", gpus=48, tp=16, pp=3).warnings()

# %%
planner.card(search.plan.but(zero=3), search.best)

# %% [markdown]
# ## Exercise 2. Choose a layout
#
# Find a layout that fits and whose step is at most a tenth slower than the best. Your function gets the number of GPUs and `ask`: `ask(tp=2, pp=4, zero=1)` tells `step_s`, `memory_gb` and `fits`. Budget: 16 questions. The check has five clusters and models; on one of them the network is slow. (`planner.search` would do it at once, by asking hundreds of times. What do you know that it does not?)


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
# And this is your regret, case by case:

# %%
lab.table(check.regrets(my_layout), units={"regret": "share"})

# %% [markdown]
# ## Exercise 3. Two runs, and the third
#
# You have measured two runs of one layout, which differ in the number of microbatches only: because there were more GPUs for the same batch, or a larger batch. Predict a third, to 1 %. Two of the check's cases are the runs of Narayanan et al. You need no planner for it, only the thought what of a step grows with the microbatches, and what does not.


# %%
def my_third(first, second, num_microbatches):
    """Seconds of a step; first and second are (microbatches, seconds)."""
    ### BEGIN SOLUTION
    each_s = (first[1] - second[1]) / (first[0] - second[0])
    return first[1] + each_s * (num_microbatches - first[0])
    ### END SOLUTION


# %%
check.third_run(my_third)

# %%
check.hint("third_run")

# %% [markdown]
# ## Summary
#
# - A layout is how model and batch are divided: tp and pp cut everything, dp copies, and ZeRO shards what dp copies.
# - Memory can be counted to the byte if you know the recipe. Time needs constants that no data sheet has.
# - Copy if it fits; shard the optimizer; cut as little as you can, tensors inside a machine, pipelines between machines; recompute last.
# - MFU without its convention is no number. A prediction without its error is none either.
# - A planner is judged by the order of layouts and by its tail, not by its median. One constant for all has a good median too.
# - Constants do not travel: measure two runs, fit, then plan. And compare layouts by one program, or you compare programs.
#
# ## Sources
#
# - Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - Touvron et al. 2023, *LLaMA: Open and Efficient Foundation Language Models*, [arXiv 2302.13971](https://arxiv.org/abs/2302.13971)
# - Hoffmann et al. 2022, *Training Compute-Optimal Large Language Models*, [arXiv 2203.15556](https://arxiv.org/abs/2203.15556)
# - Chowdhery et al. 2022, *PaLM* (MFU is defined in appendix B), [arXiv 2204.02311](https://arxiv.org/abs/2204.02311)
# - [EleutherAI's cookbook](https://github.com/EleutherAI/cookbook), `calc/calc_transformer_mem.py`
#
# Where you stand:

# %%
check.status()
