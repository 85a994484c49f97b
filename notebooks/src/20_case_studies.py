# ---
# jupyter:
#   labkit:
#     sections: ["8.10", "10.6.2", "10.7.1", "10.7.5", "19.6.1", "19.6.2", "19.6.3"]
#     needs: ["by case, chapters 05 to 09, 11, 18 and 19", "DeepSpeed and transformers (installed with labkit)"]
#     minutes: 90
# ---

# %% [markdown]
# # Case studies
#
# *Five cases of 10 to 30 minutes; choose those that concern you. Cases 1, 2 and 5 need chapters 03, 05 to 09, 18 and 19, cases 3 and 4 need 03, 08, 09 and 11. No GPU is needed.*
#
# A textbook calls a script complete: it trains all weights of LLaMA 13B on four cards of 40 GB. It shards everything, computes in bf16, and keeps only the input of each layer. Does it fit?

# %%
import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# It doesn't: each card would have to hold 59 GB. This is predicted, nothing has run. What hangs over the line is too much.
#
# **Each case can be read alone** after the cell above, but case 4 goes on with the net of case 3. Cases 2 and 5 use case 1's table "Who runs a layout?", and case 2 its line `sync_each_batch`.
#
# **In all tables** a layout fits if it leaves a tenth of the card free (in chapter 19 the planner was about 5 % off). "fit" counts such layouts, "held" is what the fullest card holds, "over" how much too much that is.
#
# **When you are done** you can judge a plan before anything is rented: plan it, then run it small.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# **Question.** The script uses Hugging Face's Trainer with FSDP. These are the lines that count:
#
# ```python
# TrainingArguments(
#     per_device_train_batch_size=2, gradient_accumulation_steps=16, bf16=True,
#     gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# It takes 2 sequences at a time, of 1,024 tokens, say: 2 x 16 x 4 cards = 128 a step. The usual advice is fewer tokens, say one sequence of 512, a quarter. How many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB saved by taking only a quarter of the tokens", between=(0, 20))

# %%
cures = case_studies.llama.cures()
saved.score((case.held_bytes - cures[1].held_bytes) / 1e9)

# %% [markdown] sections="8.10"
# Next to nothing, 1.1 GB. FSDP keeps weights, gradients and both moments in fp32, 4 + 4 + 8 bytes. 16 bytes x 13 billion parameters, a quarter on each card, is 52 GB of states alone.
#
# ### Plan: what would cure it?
#
# Four other changes: bf16 for Adam too, Adam on the host, eight cards, or cards of 80 GB. By the plan, how many of them fit? A bar has to end before nine tenths of its card, 36 or 72 GB; the line is the whole card.

# %%
fitting = lab.guess("how many of the four fit", choices=("0", "1", "2", "3", "4"))

# %%
fit = [cure.held_bytes < 0.9 * cure.plan.cluster.device_bytes for cure in cures]
fitting.score(str(sum(fit[2:])))

# %%
lab.show(case_studies.drawn(cures))

# %% [markdown] sections="8.10"
# All four do, at a price. With bf16 throughout, small updates get lost (chapter 05). For Adam on the host we take DeepSpeed; FSDP's offload moves the weights too. The host then holds 12 bytes for Adam (moments and weights in fp32) and 4 + 2 for gradients, as it adds them up in bf16 and updates with them in fp32: 18 x 13 = 234 GB.
#
# ### Run: the same script, small
#
# We give the script a Llama of two layers and run it with the real Trainer (transformers 5.23) on two real ranks: by FSDP, by FSDP with one line more (`sync_each_batch`), and by DeepSpeed's ZeRO 3. Look at "gradients": of how many weights a rank keeps them between two microbatches.

# %%
lab.table(case_studies.trained_by())

# %% [markdown] sections="8.10"
# "trained by" is the class of the prepared model: it really was FSDP, and DeepSpeed. Each rank keeps half of the weights ("kept"), and after four steps the losses agree.
#
# ### One line is missing
#
# The first row keeps gradients of *all* weights. The Trainer adds them up over ranks only after the last microbatch (`no_sync`, chapter 03). The second row keeps half of them. (As they are in fp32, that saves bytes only from three ranks on.)
#
# By the same rule, 13 B have 26 GB of gradients in bf16 on each card. The plans above counted shards only. By hand, once Adam has its moments, a card would hold, in GB:
#
# | cards | weights | moments | gradients | all else, as planned | together | planned |
# | --- | --- | --- | --- | --- | --- | --- |
# | 4, as written | 13 | 26 | 26 | 7.4 | 72.4 | 59.4 |
# | 8 | 6.5 | 13 | 26 | 7.4 | 52.9 | 33.4 |
# | 4, bf16 throughout | 6.5 | 13 | 26 | 7.4 | 52.9 | 33.4 |
#
# So neither eight cards of 40 GB nor bf16 will do, and by our rule cards of 80 GB are just too small. The cure is **case 1's line**. With it only shards are kept, and every gradient travels in each microbatch:
#
# ```python
# accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}
# ```
#
# **Verdict.** The script lacks this line, and its cards are too small. Either stay with FSDP, add the line, and take eight cards or cards of 80 GB. Or take DeepSpeed, which needs no such line, and put Adam on the host, if that has 234 GB to spare.

# %% [markdown] sections="8.10"
# ### Who runs a layout?
#
# The program that runs a layout decides its bytes, and whose constants a plan takes.
#
# | layout | run by | bytes a parameter | constants |
# | --- | --- | --- | --- |
# | ZeRO 3 | FSDP | 16 | FSDP's |
# | ZeRO 3, Adam on the host | DeepSpeed, without `tp` or `pp` | 2; its host has 18 | FSDP's, as for all of ZeRO 3 |
# | all others | Megatron-LM | 18: it adds gradients up in fp32; with Adam on the host 6 | Megatron's |
#
# For four cards of each size, here is the fastest layout that fits, of 220 tried, and where none fits the lightest. Cards of 24 GB are A10G; we assume that they reach the same shares of their peak as A100.

# %%
lab.table(case_studies.llama.on_four_cards())

# %% [markdown] sections="8.10"
# With Adam on the card nothing fits into 24 or 40 GB, however you cut: four times 40 GB are less than the states. On 80 GB a pipeline is the fastest. With Adam on the host every size will do.
#
# Does the choice matter? Three plain layouts on 80 GB, the second with case 1's line:

# %%
four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
mine = (four.but(pp=4), four.but(zero=3), four.but(tp=4, sp=True))
lab.table(plan.row() for plan in mine)

# %% [markdown] sections="8.10"
# Four plain stages are nearly as fast as the best found. ZeRO 3 takes a fifth longer, and `tp` 4 takes 43 % longer.

# %% [markdown] sections="8.10"
# ### Exercise 1. Four cards
#
# Your function gets a card ("A100 80 GB", "A100 40 GB" or "A10G 24 GB") and the tokens of a sequence (512, 1,024 or 4,096). It returns a layout for LLaMA 13B on four such cards, 128 sequences a step: some of `tp`, `sp`, `pp`, `zero`, `mbs`, `recompute` ("full") and `offload` ("optimizer"). A rule will do, or a search. Predict first: do four stages (`pp` 4) still fit on 80 GB with 4,096 tokens?
#
# - A tenth of the card stays free.
# - Adam goes to the host only where it has to.
# - The step is at most a quarter longer than that of the fastest layout that keeps the first two rules. That one has `tp` and `pp` 1, 2 or 4, `zero` 0, 1 or 3, `mbs` 1, 2, 4, 8 or 16, `sp` with `tp`, and no `vpp`.
#
# All nine pairs have one. `four` is the plan of the cell above: `plan = four.but(gpu=card, seq=seq, pp=4)` plans one, by the table "Who runs a layout?", and raises ValueError where it can't be. `plan.memory().peak_bytes` is what its fullest card holds, of `plan.cluster.device_bytes`, and `plan.time().step_us` its step.


# %%
def my_four_cards(card, seq):
    """A layout, written like {"zero": 3, "mbs": 2, "recompute": "full"}."""
    ### BEGIN SOLUTION
    lightest = {"zero": 3, "mbs": 4, "recompute": "full"}
    for offload in ("none", "optimizer"):
        for layout in ({"pp": 4}, {"tp": 4, "sp": True}, lightest):
            plan = four.but(gpu=card, seq=seq, offload=offload, **layout)
            if plan.memory().peak_bytes <= 0.9 * plan.cluster.device_bytes:
                return layout | {"offload": offload}
    ### END SOLUTION


# %%
check.four_cards(my_four_cards)

# %%
check.hint("four_cards")

# %% [markdown] sections="10.7.1"
# ## Case 2: models that tell stories
#
# **Question.** A model of 10 billion parameters is to tell stories. We have eight A100 of 80 GB in one machine, and 512 sequences of 2,048 tokens a step. Shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), or eight stages (`pp` 8): which is the fastest? First we plan as if one program, Megatron, ran all three, one sequence at a time, so that only the layouts differ.

# %%
names = ("ZeRO 3", "tp 8", "pp 8")
quickest = lab.guess("the fastest for 10 B on eight cards", choices=names)

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
machine = {"gpu": "A100 80 GB", "gpus": 8}
megatron = {"stack": "megatron-a100", "recipe": "megatron"}  # its 18 bytes
story = planner.Plan(model=shape, **machine, batch=512, seq=2048, **megatron)
cuts = (story.but(zero=3), story.but(tp=8, sp=True), story.but(pp=8))
steps_us = {name: plan.time().step_us for name, plan in zip(names, cuts, strict=True)}
quickest.score(min(steps_us, key=steps_us.get))

# %% [markdown] sections="10.6.2"
# In the table plain copies and ZeRO 1 are the first rows, ZeRO 3 by FSDP's own bytes and constants is the last. Which fit?

# %%
by_fsdp = story.but(zero=3, stack="fsdp-a100", recipe="fp32")  # 16 bytes
tries = (story, story.but(zero=1), *cuts, by_fsdp)
lab.table(plan.row() for plan in tries)

# %% [markdown] sections="10.6.2"
# Plain copies don't, nor does ZeRO 1, whose fp32 gradients are whole on each card. Where do the others spend their time?

# %%
bars = {**dict(zip(names, cuts, strict=True)), "ZeRO 3, FSDP": by_fsdp}
lab.show(planner.time_bars(bars))

# %% [markdown] sections="10.6.2"
# - ZeRO 3 is the fastest that fits: by the plan its weights arrive while it still computes.
# - `pp` 8 shares 48 layers and an output layer that takes as long as one. So one stage has 7, and the others wait for it. The bar is the step of that stage.
# - `tp` 8 waits for messages in every layer, and its smaller products run at a lower rate.
#
# ZeRO 3 is 13 % ahead of the pipeline by the same constants, and takes 7 % longer by FSDP's own. So the program may decide.

# %% [markdown] sections="10.6.2"
# ### Two printed layouts
#
# A textbook prints two layouts, but names no cards. A story model of 5 B has ZeRO 3 and Adam on the host; one of 20 B has `tp` 4, `pp` 4, ZeRO 1, and recomputes everything. We plan the 5 B on 8 A100 of 40 GB, 4 sequences of 1,024 tokens at a time, and the 20 B on 32. Are the host and the recomputation needed?

# %%
lab.show(planner.memory_bars(case_studies.stories.plans()))

# %% [markdown] sections="10.6.2"
# No. ZeRO 3 fits with Adam on the card, given `sync_each_batch`, and the 20 B fits with its activations kept.
#
# **Verdict.** Measure ZeRO 3 and the pipeline, each with its program. Leave out the host and the recomputation until a plan says that you need them.
#
# <details><summary>And does a model that was trained so tell stories?</summary>
#
# `case_studies.Story().run()[0]` trains a Llama of 151,872 weights by ZeRO 3 on 500 characters of our story, cut by a [tokenizer](GLOSSARY.md#tokenizer) (byte pairs, [Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)). Its `"text"` is more or less that page.
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# **Question.** A car has a camera, a LiDAR and a radar, each with an encoder. A [fusion](GLOSSARY.md#fusion) lets the camera's features ask all others (cross-attention). Two output heads, small networks, say where things are. A textbook gives each part to some of eight ranks: 0 to 3 encode, 4 and 5 fuse, 6 and 7 have the output heads ("E", "F" and "H" below). Is that a good idea?
#
# Computing and links are paced here: they take stated times. A message takes 4 ms, and its bytes pass at 5 MB/s. Look at what the other ranks do while some compute:

# %%
apart = case_studies.Perception(placement="apart", ranks=8)
lab.show(apart.predict(), title="Apart, 8 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# Do you see the staircase? While one group computes, the two others wait. The pink strips are mostly waiting, too. Features are handed over by all-reduces that all ranks join; who has none gives zeros.
#
# ### Two other ways
#
# From here on there are four ranks.
#
# | placement | encoders | fusion | output heads |
# | --- | --- | --- | --- |
# | apart | ranks 0 and 1, half of the batch each | rank 2 | rank 3 |
# | together | every rank, a quarter of the batch | every rank, a quarter of it | every rank, a quarter of the batch |
# | copied | every rank, a quarter of the batch | the same | the same |
#
# *Copied* is DDP: only weight gradients travel, in one message. *Together* cuts the fusion in four (tensor parallel). Look how often all ranks wait for a message then:

# %%
together = case_studies.Perception()
lab.show(together.predict(), title="Together, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# Before the fusion an all-reduce collects all features: each rank gives its own, and zeros for the rest. After it another adds up its parts. On the way back the same happens to gradients. At the end the weight gradients of the copies are added up, in four messages.
#
# <details><summary>What does a rank call?</summary>
#
# ```python
# whole = torch.zeros(batch, places, width)
# whole[mine] = encoders(scenes[mine])  # my share; elsewhere 0
# dist.all_reduce(whole)
#
# fused = fusion(whole)  # my quarter of the fusion
# dist.all_reduce(fused)  # the sum of the quarters
# loss = heads(fused[mine], boxes[mine])
# ```
#
# </details>
#
# ### Which is the fastest?
#
# *Together*, forward takes 10 ms for the encoders, 5 for the fusion and 2.5 for the output heads, and back twice as long. By the prediction, a step *apart* takes how many times as long as a step *together*?

# %%
groups = lab.guess("step apart, over step together", between=(0.2, 5))

# %%
ways = {way: together.but(placement=way) for way in ("together", "apart", "copied")}
placed_us = {way: step.step_us() for way, step in ways.items()}
groups.score(placed_us["apart"] / placed_us["together"])

# %% [markdown] sections="19.6.1, 19.6.2"
# *Together*, a step is 52.5 ms of computing and 68 ms of messages. *Apart*, encoders, fusion and output heads take 60 + 60 + 30 = 150 ms, since only one group computes at a time. That alone is more than a whole step *together*, so no quicker way to send would help. *Copied* computes for 52.5 ms again, and has one message of 57.7 kB, 15.5 ms. Compare the length of its step with the one above:

# %%
lab.show(ways["copied"].predict(), title="Copied, 4 ranks")

# %%
title = {"title": "A step on four ranks, to scale", "badge": "predicted"}
lab.bars(placed_us, unit="us", **title)

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Does it come out so?
#
# All three run on four real ranks, for four steps. "delay" is how much longer than predicted the fastest was. Where the slowest step of one is shorter than the fastest of another, their order is clear. Is *copied* clearly first, and *together* clearly before *apart*?

# %%
lab.table(case_studies.placed())

# %% [markdown] sections="19.6.1, 19.6.2"
# If two overlap, only the prediction orders them. All are slower than predicted, as nothing can be quicker than its pace. Where does the time go? A step *together* of another run, predicted above, measured below; the last line says what the difference is made of:

# %%
together.compare()

# %% [markdown] sections="19.6.1, 19.6.2"
# **Verdict.** If the net fits on each rank, copy all of it (DDP). Only weight gradients travel then; here they are 57.7 kB, where *together* sends 181 kB, mostly features. With many more weights the order may turn round: count both bytes. If one part is too large, cut that one, as *together* does with the fusion. Groups of ranks with a part each are the slowest by the prediction, as long as batches go through one at a time. With microbatches they would be a pipeline (chapter 08).

# %% [markdown] sections="19.6.3"
# ## Case 4: a policy for each kind of layer
#
# **Question.** Should all gradients travel alike? The net of case 3, placed *together*, has four kinds of layers: convolutions, linear layers, norms and output heads ("heads"). The gradients of a kind are one message. How they travel is a **policy**, and the textbook advises "per layer":
#
# | policy | how gradients travel | bytes |
# | --- | --- | --- |
# | plain | all exactly | all |
# | fp16 | all as fp16 | a half |
# | per layer | convolutions and heads exactly, linear layers by top-k, norms *late* | about a third |
# | top-k all | all by top-k | an eighth |
#
# - Top-k sends the largest sixteenth (chapter 11), in two messages: values and places.
# - *Late*: the gradients of norms don't travel; their weights are averaged every fourth step, so they count as a quarter of a message.
# - Bytes are those that a rank hands in. With top-k it also *receives* what all others send; that isn't counted.
#
# A step now has 21 ms of computing, the link 10 MB/s, and a message takes 3 ms. Which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
choices = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=choices)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %%
lab.table(policies)

# %% [markdown] sections="19.6.3"
# The fewest bytes are the slowest here. Split each step: the messages of gradients, 3 ms each, then their bytes, and all else. What makes top-k of everything the slowest?

# %%
parts = case_studies.policy_parts()
title = {"title": "A step, link of 10 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# Its messages: eight in place of four, and on small layers a message costs more than its bytes. In "plain, one message" all kinds share it. By this prediction that alone beats all four policies, and *copied* is far ahead, as no features travel.
#
# ### Which policy, then?
#
# Do real steps agree, and does a policy spoil the training? Recorded, 48 steps by each on four real ranks; "measured" is the median step, "last loss" the mean of the last eight:
#
# | policy | step, predicted | step, measured | last loss | steps until the loss is below 0.8 |
# | --- | --- | --- | --- | --- |
# | plain | 63.1 ms | 98.5 ms | 0.500 | 20 |
# | fp16 | 61.0 ms | 95.7 ms | 0.498 | 20 |
# | per layer | 61.1 ms | 102 ms | 0.535 | 20 |
# | top-k all | 71.4 ms | 132 ms | 0.515 | 22 |
#
# No step is as short as predicted: the first three take 35 to 41 ms longer, top-k of everything, with twice the messages, 61 ms. Its messages may be why, or choosing the largest, or the bytes that are received: this table can't tell. Still, top-k of everything is the slowest, as predicted. The first three are as good as equal: in a second run they took 99, 98 and 96 ms. No policy clearly spoils the training. `lab.table(case_studies.policies())` runs it anew.
#
# **Verdict.** The advised "per layer" gains nothing that could be measured on this link. So count messages and bytes for yours, send less of what costs most, and run it. (Joined messages were not run here.)

# %% [markdown] sections="19.6.3"
# ### Exercise 2. A policy
#
# You get the number of weights of each kind of layer, and a link. Choose the quickest way for each kind: "exact", "fp16" or "top-k". Messages go one after the other. Each takes `latency_ms`, and a millisecond more for each 1,000 x `mb_per_s` bytes.
#
# | way | messages of a kind | bytes of each message |
# | --- | --- | --- |
# | exact | 1 | 4 a weight |
# | fp16 | 1 | 2 a weight |
# | top-k | 2 | 4 x weights / 16 |
#
# By this count one of the three never wins: which? And from how many weights on is top-k sooner than fp16? The check has three links, and trains once to see that the loss still falls.


# %%
def my_policy(weights, latency_ms, mb_per_s):
    """{kind of layer: way} for weights such as {"linear": 7520, ...}."""
    ### BEGIN SOLUTION
    ways = {}
    for kind, count in weights.items():
        as_fp16 = latency_ms + 2 * count / (1e3 * mb_per_s)
        as_top_k = 2 * latency_ms + 2 * 4 * count / 16 / (1e3 * mb_per_s)
        ways[kind] = "top-k" if as_top_k < as_fp16 else "fp16"
    return ways
    ### END SOLUTION


# %%
check.policy(my_policy)

# %%
check.hint("policy")

# %% [markdown] sections="10.7.5"
# ## Case 5: 7 B on one to eight small cards
#
# **Question.** What if all you have is cards of 24 GB, bought for games (RTX 4090)? All weights of LLaMA 7B are to be trained, on 64 sequences of 1,024 tokens a step. How few cards will do, with Adam and the gradients on the host if need be?

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fewest = min(row["cards"] for row in clusters if row["fit"])
small_cluster.score(str(fewest))

# %%
lab.table(clusters)

# %% [markdown] sections="10.7.5"
# With all on it, one card would hold 125 GB by Megatron's 18 bytes a parameter; FSDP's 16 would be too many as well. With Adam on the host one card will do.
#
# ### How does it fit on one?
#
# Look at the colours of the first bar: which of the states are left? Adam is on the cards where that fits.

# %%
lab.show(case_studies.drawn(case_studies.small.cases()))

# %% [markdown] sections="10.7.5"
# Only the weights: 2 bytes of 6.7 billion parameters are 13.5 GB. ("ZeRO 3" on one card only means DeepSpeed's offload.) A small run, ZeRO 3 on one pretend device, counted this after each backward (recorded):
#
# | Adam | bytes a parameter on the device |
# | --- | --- |
# | on the device | 16.1 |
# | on the host | 2.1 |
#
# The price is the host: by DeepSpeed it holds 18 bytes a parameter, 121 GB in all. By Megatron the gradients stay on the card: 6 bytes, 40 GB, too much for one.
#
# ### What does that cost?
#
# Time ("token rate" in the table: tokens a second, of all cards together): DeepSpeed's gradients go to the host in each microbatch. Two cards split this traffic and take larger microbatches, so they do more than twice as much. On four, Megatron's gradients cross once a step. On eight, all fits on the cards, in the fastest layout only just.
#
# These cards are assumed to reach A100's shares of their peak, and nobody measured the links: believe the large differences, not the digits.
#
# <details><summary>What the rates assume</summary>
#
# 32 GB/s between the cards (all that PCIe has), 25 GB/s to the host and 200 GB/s for its memory (a server's): rather too good, but nothing is hidden behind computing. DeepSpeed's buckets are left out.
#
# </details>
#
# ### So what do you do?
#
# **Verdict**, by the number of cards:
#
# | cards | what to do |
# | --- | --- |
# | 1 | DeepSpeed: Adam and gradients on the host, recomputation, as large a microbatch as fits. If the host is too small, or it takes too long: freeze the weights, and train only small new matrices beside them (adapters). |
# | 2 | The same, now in shards, with a larger microbatch. |
# | 4 | Megatron-LM: Adam on the host, and four stages, best with two chunks each. |
# | 8 | All on the cards, if the measured memory allows it. Else Adam on the host: by the table hardly slower. |
#
# First run a small model on your cluster. Where you shard, count that two ranks keep half of the states each, as `lab.table(case_studies.ran())` does.

# %% [markdown]
# ## Summary
#
# - Count the states before anything else: what is too much there, no smaller batch will cure.
# - A plan doesn't know what a trainer does between microbatches. Run it small, and count elements.
# - Where two layouts are close, their programs may decide: measure.
# - Parts of a net on ranks of their own wait for each other if batches go through one at a time.
# - The fewest bytes may be the slowest way: count messages too.
#
# Words that were new: [fusion](GLOSSARY.md#fusion), and policy (case 4).
#
# **Next:** [your own model](21_your_own_model.ipynb): bring a module, and see what it needs.

# %% [markdown] sections="8.10"
# ## Errata of the textbook
#
# They correct a textbook; if you don't know it, skip them.
#
# <details><summary>On the script of LLaMA 13B</summary>
#
# <details><summary>Erratum 8.10: LLaMA-13B by FSDP on four A100 of 40 GB</summary>
#
# Its states alone are larger than the cards. Run it: `case.told()` says how much is too much. And until a step's last microbatch the Trainer's FSDP keeps whole gradients, 26 GB of them. Run it: `case_studies.trained_by()` counts them.
#
# </details>
#
# <details><summary>Erratum 8.10: an "effective batch of 32"</summary>
#
# 2 sequences, accumulated 16 times, are 32 on each card. There are four cards, so the optimizer sees 128. Run it: `case.plan.batch` gives 128.
#
# </details>
#
# </details>
#
# *Sections 8.10, 10.6.2, 10.7.1, 10.7.5 and 19.6.1 to 19.6.3 of the source material.*

# %%
check.status()
