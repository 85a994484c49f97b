# ---
# jupyter:
#   labkit:
#     sections: ["8.10", "10.6.2", "10.7.1", "10.7.5", "19.6.1", "19.6.2", "19.6.3"]
#     needs: ["by case, chapters 05 to 09, 11, 18 and 19", "DeepSpeed and transformers (installed with labkit)"]
#     minutes: 80
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
# It doesn't: each card would have to hold 59 GB. This is predicted, nothing has run. What hangs over the line is too much. With "recipe fp32" the states stay in fp32, though matrix products are in bf16.
#
# **Each case can be read alone** after the cell above, but 4 goes on with the net of 3, and 2 and 5 use the table of "Who runs a layout?".
#
# **In all tables** a layout fits if it leaves a tenth of the card free, since the planner's peak was about 5 % off in chapter 19's rehearsal. "fit" counts those that do, "held" is what the fullest card holds, and "over" by how much that exceeds nine tenths of the card. In the pictures the line is the whole card.
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
# It takes 2 sequences at a time, of 1,024 tokens, say: 2 x 16 x 4 cards = 128 a step. What would save it?
#
# The usual advice is fewer tokens. One sequence of 512 is a quarter of them: how many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB saved by taking only a quarter of the tokens", between=(0, 20))

# %%
cures = case_studies.llama.cures()
saved.score((case.held_bytes - cures[1].held_bytes) / 1e9)

# %% [markdown] sections="8.10"
# Next to nothing, 1.1 GB: activations are not what is too much. FSDP keeps weights, gradients and both moments in fp32, 4 + 4 + 8 bytes. 16 bytes x 13 billion parameters, a quarter on each card, is 52 GB of states alone.
#
# ### Plan: what would cure it?
#
# Four other changes: bf16 for Adam too, Adam on the host, eight cards, or cards of 80 GB. By the plan, how many of them fit?

# %%
fitting = lab.guess("how many of the four fit", choices=("0", "1", "2", "3", "4"))

# %%
fitting.score(str(sum(cure.over_bytes < 0 for cure in cures[2:])))

# %%
lab.show(case_studies.drawn(cures))

# %% [markdown] sections="8.10"
# All four do, as planned, at a price. With bf16 throughout, small updates get lost (chapter 05). With ZeRO 3, Adam on the host needs DeepSpeed: FSDP's own offload moves the weights too, in each step. DeepSpeed sends each gradient to the host as it arises, so the host holds 12 bytes for Adam (moments and weights in fp32) and 4 + 2 for gradients: 18 x 13 = 234 GB.
#
# ### Run: the same script, small
#
# We give the script a Llama of two layers and run it with the real Trainer on two real ranks: by FSDP, by FSDP with one line more (`sync_each_batch`), and by DeepSpeed's ZeRO 3, for which `fsdp=` becomes `deepspeed=` (chapters 06 and 07). Between two microbatches we count the gradients that a rank keeps ("gradients", and their "type"). All three run at once with transformers 5.23, which may take half a minute.

# %%
lab.table(case_studies.trained_by())

# %% [markdown] sections="8.10"
# "trained by" is the class of the prepared model: it really was FSDP, and DeepSpeed. Each rank keeps half of the weights ("kept", of "weights", in elements), and the losses agree.
#
# ### One line is missing
#
# The first row keeps gradients of *all* weights. The Trainer adds them up over ranks only after the last microbatch (`no_sync`, chapter 03), and until then none is a shard. For 13 B in bf16 they are 26 GB on each card, on four as on eight; shards in fp32 would be 13 and 6.5 GB. On two ranks whole gradients in bf16 and half of them in fp32 have as many bytes, so we counted elements.
#
# The plans above took it for granted that only shards are kept. By hand, a card holds this, in GB, with FSDP's 4 + 8 bytes for weights and moments (2 + 4 in the last row):
#
# | cards, step | weights | moments | gradients | all else, as planned | together | planned |
# | --- | --- | --- | --- | --- | --- | --- |
# | 4 x 40 GB, first step, before Adam | 13 | - | 26 | 7.4 | 46.4 | 59.4 |
# | 8 x 40 GB, second step | 6.5 | 13 | 26 | 7.4 | 52.9 | 33.4 |
# | 4 x 80 GB, second step | 13 | 26 | 26 | 7.4 | 72.4 | 59.4 |
# | 4 x 40 GB, bf16 throughout, second step | 6.5 | 13 | 26 | 7.4 | 52.9 | 33.4 |
#
# Row 1 is too much even without moments: by this count the script dies in its first step. From the second step on a card holds the moments and the whole gradients, so the plans of rows 2 to 4 were too kind. Only the small run showed that. Neither eight cards nor bf16 save the script, and cards of 80 GB miss our margin by 0.4 GB. One of the four changes remains, by the plan and by a small run, in which 2.1 bytes a parameter stayed (case 5): Adam on the host.
#
# This is **case 1's line**. With it only shards of the gradients are kept, and every gradient travels in each microbatch:
#
# ```python
# accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}
# ```
#
# **Verdict.** The script lacks this line, and its cards are too small: 52 GB of states don't go into 40. Either stay with FSDP, add the line, and take eight cards or cards of 80 GB; bf16 throughout would fit too (33.4 GB), but small updates get lost. Or take DeepSpeed, which needs no such line, and put Adam on the host, if that has 234 GB to spare. By the plan its step takes 1.6 times as long as FSDP's on four cards of 80 GB. On four of 40 GB Megatron's stages do better, with Adam on the host: see the next table.

# %% [markdown] sections="8.10"
# ## Who runs a layout?
#
# Who runs a layout decides its bytes, and whose constants a plan takes.
#
# | layout | run by | bytes a parameter | constants |
# | --- | --- | --- | --- |
# | ZeRO 3 | FSDP | 16 | FSDP's |
# | ZeRO 3, Adam on the host | DeepSpeed, without `tp` or `pp` | 2; its host has 18 | FSDP's, as for all of ZeRO 3 |
# | all others | Megatron-LM | 18: it adds gradients up in fp32; with Adam on the host 6 | Megatron's |
#
# Here is the best for four cards of each size. Those of 24 GB are A10G, without NVLink; their steps rest on A100's constants.

# %%
lab.table(case_studies.llama.on_four_cards())

# %% [markdown] sections="8.10"
# *"layout": the fastest of those that fit, of 220 tried, in the words of chapter 18's knobs; where none does, the lightest, without a step.*
#
# With Adam on the card nothing fits into 24 or 40 GB, however you cut: four times 40 GB are less than the states. On 80 GB a pipeline is the fastest. With Adam on the host every size will do.
#
# Does the choice matter? Three plain layouts on cards of 80 GB, the second by FSDP's constants and with case 1's line:

# %%
four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
mine = (four.but(pp=4), four.but(zero=3), four.but(tp=4, sp=True))
lab.table(plan.row() for plan in mine)

# %% [markdown] sections="8.10"
# Four plain stages are nearly as fast as the best found. ZeRO 3 takes a fifth longer, and `tp` 4 takes 43 % longer.

# %% [markdown] sections="8.10"
# ## Exercise 1. Four cards
#
# Your function gets a card ("A100 80 GB", "A100 40 GB" or "A10G 24 GB") and the tokens of a sequence (512, 1,024 or 4,096). It returns a layout for LLaMA 13B on four such cards: some of `tp`, `sp`, `pp`, `zero`, `mbs`, `recompute` ("full") and `offload` ("optimizer"). A rule will do, or a search.
#
# - A tenth of the card stays free.
# - Adam goes to the host only where it has to.
# - The step is at most a quarter longer than that of the fastest layout that keeps the first two rules, of all `tp`, `pp`, `zero` 0, 1 and 3, and `mbs` 1, 2, 4, 8 and 16, with `recompute` or without (no `vpp`).
#
# All nine pairs have one. A step has 128 sequences, and ZeRO 3 counts with case 1's line. `four` is the plan of the cell above: `plan = four.but(gpu=card, seq=seq, pp=4)` plans one in milliseconds, and raises ValueError where it can't be. It takes bytes and constants from "Who runs a layout?" by itself, also DeepSpeed's for ZeRO 3 with `offload`; `dp` is what `tp` and `pp` leave. `plan.memory().peak_bytes` is what its fullest card holds, of `plan.cluster.device_bytes`, and `plan.time().step_us` its step.


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
# **Question.** A model of 10 billion parameters is to tell stories, on eight A100 of 80 GB in one machine. A step has 512 sequences of 2,048 tokens. Shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), or eight stages (`pp` 8): which is the fastest? First we plan as if one program, Megatron, ran all three, one sequence at a time, so that only the layouts differ.

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

# %%
by_fsdp = story.but(zero=3, stack="fsdp-a100", recipe="fp32")  # 16 bytes
tries = (story, story.but(zero=1), *cuts, by_fsdp)
lab.table(plan.row() for plan in tries)

# %%
bars = {**dict(zip(names, cuts, strict=True)), "ZeRO 3, FSDP": by_fsdp}
lab.show(planner.time_bars(bars))

# %% [markdown] sections="10.6.2"
# With Megatron's 18 bytes plain copies don't fit, nor ZeRO 1, whose fp32 gradients are whole on each card. Of the others:
#
# - ZeRO 3 is the fastest: by the plan its weights arrive over NVLink while it still computes.
# - `pp` 8 has 49 layers' worth on 8 stages, as the output layer takes as long as a layer. One stage has 7, an even share is 6.1, and all others wait for it. The bar is of that stage, so their wait is in its longer matrix products, not in "bubble".
# - `tp` 8 waits for messages in every layer, its smaller products run at a lower rate, and each card starts the kernels of all layers for all sequences (3.7 s).
#
# One sequence at a time, ZeRO 3 is 13 % ahead of the pipeline by the same constants, and takes 7 % longer by FSDP's own, used above for four cards. With the best microbatches, and chunks for the pipeline, all stay in this order; `tp` 8 gains most, from 75 to 52 s, and is still last. So the program may decide: measure.

# %% [markdown] sections="10.6.2"
# ### Two printed layouts
#
# A textbook prints two layouts, but names no cards. A story model of 5 B has ZeRO 3 and Adam on the host; one of 20 B has `tp` 4, `pp` 4, ZeRO 1, and recomputes everything. We plan the 5 B on 8 A100 of 40 GB, with 4 sequences of 1,024 tokens at a time, and the 20 B on 32 of them, with one of 2,048. Do they need host and recomputation?

# %%
lab.show(planner.memory_bars(case_studies.stories.plans()))

# %% [markdown] sections="10.6.2"
# On these cards they don't. ZeRO 3 fits with Adam on the card, given case 1's line; plain copies (DDP, the third row) are far too much. And the 20 B fits with its activations kept.
#
# **Verdict.** Measure ZeRO 3 and the pipeline, each with its program. Leave out the host and the recomputation until a plan, or a measured peak, says that you need them.
#
# <details><summary>And does a model that was trained so tell stories?</summary>
#
# `case_studies.Story().run()[0]` trains a Llama of 151,872 weights by ZeRO 3 on 500 characters of our story, cut by a [tokenizer](GLOSSARY.md#tokenizer) (byte pairs, [Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)). Its loss falls well below 1, but its `"text"` is more or less that page.
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# **Question.** A car has a camera, a LiDAR and a radar, each with an encoder of its own. A [fusion](GLOSSARY.md#fusion) lets the camera's features ask all others (cross-attention), and two output heads, small networks of their own, say where things are. A textbook gives each part to some of eight ranks: 0 to 3 encode, 4 and 5 fuse, 6 and 7 have the output heads ("E", "F" and "H" below). Is that a good idea? Computing and links are paced here: they take stated times. A message takes 4 ms, and its bytes pass at 5 MB/s. Predicted on the textbook's eight ranks (all later ones are on four):

# %%
apart = case_studies.Perception(placement="apart", ranks=8)
lab.show(apart.predict(), title="Apart, 8 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# Do you see the staircase? While one group computes, the two others wait. The pink strips are mostly waiting: all ranks join each all-reduce that hands something over, the others with zeros. The last strips add up the weight gradients of copies.
#
# ### Two other ways
#
# The second way is *together*. Every rank has a copy of encoders and output heads, for its share of the batch (data parallel), and some of the fusion's attention heads (tensor parallel). Here on four ranks:

# %%
together = case_studies.Perception()
lab.show(together.predict(), title="Together, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# - Before the fusion, all features are collected, again by an all-reduce with zeros.
# - After it, its parts are added up. On the way back the same happens to gradients.
# - At the end, the weight gradients of the copies are added up.
#
# <details><summary>What does a rank call?</summary>
#
# ```python
# whole = torch.zeros(batch, places, width)
# whole[mine] = encoders(scenes[mine])  # my share; elsewhere 0
# dist.all_reduce(whole)
#
# fused = fusion(whole)  # by my attention head alone
# dist.all_reduce(fused)  # the sum over heads is the fusion's output
# loss = heads(fused[mine], boxes[mine])
# ```
#
# On the way back the same two messages carry gradients.
#
# </details>
#
# A third way is *copied*, which is DDP: every rank has the whole net, for its share of the batch. No features travel; in the end one message adds up all gradients. On four ranks:
#
# | placement | encoders | fusion | output heads |
# | --- | --- | --- | --- |
# | apart | ranks 0 and 1, half of the batch each | rank 2 | rank 3 |
# | together | every rank, a quarter of the batch | every rank, one of four attention heads | every rank, a quarter of the batch |
# | copied | every rank, a quarter of the batch | the same | the same |
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
# *Together*, a step is 52.5 ms of computing and 68 ms of messages. *Apart*, encoders, fusion and output heads, forward and back, take 60 + 60 + 30 = 150 ms, since only one group computes at a time. Messages take 63: one rank alone has the output heads, so their gradients need none. Here is that step:

# %%
lab.show(ways["apart"].predict(), title="Apart, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# Even if features went only to those who need them, the 150 ms alone are more than a whole step *together*. *Copied*, a step is 52.5 ms of computing again, and one message of 57.7 kB, 15.5 ms: 68 in all. *Together* sends its weight gradients in four messages, one for each kind of layer. In one, its step would take about 109 ms, still far more than this:

# %%
lab.show(ways["copied"].predict(), title="Copied, 4 ranks")

# %%
title = {"title": "A step on four ranks, to scale", "badge": "predicted"}
lab.bars(placed_us, unit="us", **title)

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Does it come out so?
#
# Is the order as predicted? All three run on four real ranks, for four steps; "delay" is how much longer than predicted the fastest was. Where the slowest step of one is shorter than the fastest of another, their order is clear in this run.

# %%
quick = case_studies.placed()
lab.table(quick)

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Is the formula wrong, or is something late?
#
# All are late. To see why, slow down all that the formula counts. If it counts too little, the delay grows as well. If something that isn't paced is late, the delay stays, or changes by chance. (Four ranks may share two cores here.) First a step *together* of another run:

# %%
together.compare()

# %% [markdown] sections="19.6.1, 19.6.2"
# Predicted above, measured below. Where computing takes longer than stated, a pace was missed ("overran"). Look where each rank begins: if one begins late, all others wait for it in their first message. That may explain a large part of this step's delay.
#
# Now computing and links are four times as slow. By the formula alone, the delay becomes four times as large. How large will that of *together* be, over the table's?

# %%
delay = lab.guess(
    "delay when all is four times as slow, over delay before", between=(0, 5)
)

# %%
slow = case_studies.placed(slowed=4)
delay.score(slow[0]["delay_us"] / quick[0]["delay_us"])

# %%
lab.table(slow)

# %% [markdown] sections="19.6.1, 19.6.2"
# Compare all three delays. If they stay far below four times, most of the delay isn't in the formula: each step is late by something that it doesn't count. (Below 2.5 times, more than half of a delay is of that kind: it stays, and the rest becomes four times as large.) But delays may scatter by as much as they are, as fastest and slowest steps show. What is late, this doesn't tell.
#
# *Apart* over *together*, first quick, then slow; predicted is 853 / 482 = 1.77. Slowed down, it should come nearer, as a delay that stays weighs less:

# %%
[round(each[1]["fastest_us"] / each[0]["fastest_us"], 2) for each in (quick, slow)]

# %% [markdown] sections="19.6.1, 19.6.2"
# **Verdict.** If the net fits on each rank, copy all of it (DDP). Only weight gradients travel then, in one message; here they are 57.7 kB, where *together* sends 180 kB, mostly features. A net with many more bytes of weights than of features may turn that round: count both. If one part is too large, cut that one, as *together* does with the fusion. Don't give the parts to groups as long as batches go through one at a time. With microbatches they would be a pipeline (chapter 08).

# %% [markdown] sections="19.6.3"
# ## Case 4: a policy for each kind of layer
#
# **Question.** Should all gradients travel alike? The car's net of case 3 has four kinds of layers: convolutions, linear layers, norms and output heads ("heads" below). The gradients of a kind are one message. How they travel is a **policy**, and "per layer" is the one that the textbook advises:
#
# | policy | how gradients travel | bytes |
# | --- | --- | --- |
# | plain | all exactly | all |
# | fp16 | all as fp16 | a half |
# | per layer | convolutions and heads exactly, linear layers by top-k, norms *late* | about a third |
# | top-k all | all by top-k | an eighth |
#
# - The four messages of features, as in case 3, stay as they are.
# - Bytes are those that a rank hands in, and a message's time is counted by them. With top-k each rank also *receives* what all others send. That isn't counted.
# - Top-k sends the largest sixteenth (chapter 11), in two messages: values and places.
# - *Late*: the gradients of norms don't travel; their weights are averaged every fourth step.
#
# The net is placed *together*, on four ranks that compute and send faster than in case 3: 21 ms of computing, 10 MB/s, 3 ms a message. Of the fusion each rank has a part, so its gradients don't travel. Which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
choices = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=choices)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %%
lab.table(policies)

# %% [markdown] sections="19.6.3"
# The fewest bytes are the slowest here. Split each step: 3 ms for each message of gradients, then their bytes, and all else: computing, and the four messages of features.

# %%
parts = case_studies.policy_parts()
title = {"title": "A step, link of 10 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# Eight messages in place of four: on small layers a message costs more than its bytes. "Per layer" sends 1 + 1 + 2 + a quarter of a message, as norms travel in one step of four, and is no faster than fp16. In "plain, one message" all kinds of layers share it, and that alone beats all four policies, by this prediction; as fp16 it is 2 ms better still.
#
# ### And on a link of 1 MB/s?

# %%
parts = case_studies.policy_parts(mb_per_s=1)
title = {"title": "A step, link of 1 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# All bytes take ten times as long, and in the placement *together* most of them are the fusion's features. Now fewer bytes save more ("per layer": 26 ms) than fewer messages ("plain, one message": 9 ms), and fp16 in one message does both. Four messages of fp16, "per layer" and "top-k all" are within 3 %, and this is a prediction: a tie. *Copied* is far ahead, as no features travel.
#
# ### Which policy, then?
#
# Do real steps agree, and does a policy spoil the training? These were recorded, 48 steps by each, on four real ranks:
#
# | policy | step, predicted | step, measured | last loss | steps until the loss is below 0.8 |
# | --- | --- | --- | --- | --- |
# | plain | 63.1 ms | 98.5 ms | 0.500 | 20 |
# | fp16 | 61.0 ms | 95.7 ms | 0.498 | 20 |
# | per layer | 61.1 ms | 102 ms | 0.535 | 20 |
# | top-k all | 71.4 ms | 132 ms | 0.515 | 22 |
#
# "Measured" is the median step. The first three are 35 to 41 ms late and as good as equal: in a second run they took 99, 98 and 96 ms. So a count that has them 2 ms apart can't rank them. Top-k of everything is the slowest, as predicted, and 61 ms late; what it receives and selects isn't counted. "Last loss" is the mean of the last eight steps. No policy clearly spoils it; one training each can't tell more. `lab.table(case_studies.policies())` runs it anew.
#
# **Verdict.** The advised "per layer" gains nothing that could be measured at 10 MB/s. At 1 MB/s it is predicted 3 % ahead of fp16, a tie, and behind fp16 in one message. So first choose the placement. Then join messages where they cost most, and send fewer bytes where those do: count both for your link, and run it, since nobody has run joined messages here. Count ranks too, since what top-k gathers grows with them.

# %% [markdown] sections="19.6.3"
# ## Exercise 2. A policy
#
# You get the number of weights of each kind of layer, and a link. Choose a way for each kind, "exact", "fp16" or "top-k", so that the gradients are there as soon as possible. Messages go one after the other, not joined, as each kind has its own way. Each takes `latency_ms`, and a millisecond more for each 1,000 x `mb_per_s` bytes.
#
# | way | messages of a kind | bytes of each message |
# | --- | --- | --- |
# | exact | 1 | 4 a weight |
# | fp16 | 1 | 2 a weight |
# | top-k | 2 | 4 x weights / 16 |
#
# By this count one of the three never wins: which? And from how many weights on, on a given link, is top-k sooner than fp16? The check has three links, and trains once on real ranks to see that the loss still falls.
#
# To think on: on four ranks each *receives* what three others send by top-k. Would that number of weights rise or fall if you counted it?
#
# <details><summary>An answer</summary>
#
# Rise: top-k's 0.5 bytes a weight sent and 1.5 received are as many as fp16 hands in, so it would never win. But what an all-reduce receives isn't counted either: by a ring, 3 bytes a weight as fp16. Counting only what is received, the number is as before.
#
# </details>


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
# **Question.** What if all you have is cards of 24 GB, bought for games (RTX 4090)? LLaMA 7B, the model of this course's story, 1,024 tokens a sequence, 64 sequences a step: on how few such cards can all its weights be trained, with Adam and the gradients on the host if need be?

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fewest = min(row["cards"] for row in clusters if row["fit"])
small_cluster.score(str(fewest))

# %%
lab.table(clusters)

# %% [markdown] sections="10.7.5"
# ### How does it fit on one?
#
# Here is the fullest card of the fastest layout that fits, with Adam on the cards where any does:

# %%
lab.show(case_studies.drawn(case_studies.small.cases()))

# %% [markdown] sections="10.7.5"
# By hand, the 2 bytes of 6.7 billion parameters are 13.5 GB. With DeepSpeed that is all that stays of the states. A small run on a pretend device, ZeRO 3 on one rank, counted this after each backward (recorded):
#
# | Adam | bytes a parameter on the device |
# | --- | --- |
# | on the device | 16.1 |
# | on the host | 2.1 |
#
# The price is the host: 12 bytes for Adam, 6 for gradients in fp32 and in 16 bit, 121 GB in all, which may be the real limit. With Megatron's `--optimizer-cpu-offload` the host has Adam's 81 GB, and gradients in fp32 stay on the card: 6 bytes, 40 GB, too much for one. On one card "ZeRO 3" only stands for DeepSpeed's offload: the plan's purple part is too large, as there is hardly anything to gather.
#
# ### What does that cost?
#
# It is slow ("token rate": tokens a second, of all cards together), since with DeepSpeed gradients go to the host in each microbatch, and come back to be added up. Two cards split this traffic and have room for larger microbatches, so they do more than twice as much. On four, Megatron's stages will do: its gradients cross once a step, and its products are faster. On eight, all fits on the cards by 77 layouts, by the fastest only just, with 21.5 of the 21.6 GB that we allow. With Adam on the host they are about as fast and have more room, but the host needs memory.
#
# All rates rest on A100's constants and on links that nobody measured: believe the large differences, not the digits.
#
# <details><summary>What the rates and sizes assume</summary>
#
# 32 GB/s between the cards (all that PCIe has), 25 GB/s to the host and 200 GB/s for its memory (a server's), all assumed and rather too good, but nothing of it hidden behind computing; DeepSpeed's buckets left out; 24 GB as 24 x 10⁹ bytes.
#
# </details>
#
# ### So what do you do with 7 B on 24 GB?
#
# **Verdict.** By the number of cards:
#
# | cards | what to do |
# | --- | --- |
# | 1 | DeepSpeed: Adam and gradients on the host, recomputation, as large a microbatch as fits. If the host is too small or it takes too long: train only adapters, a few new weights beside the frozen ones. |
# | 2 | The same, now in shards, with a larger microbatch. |
# | 4 | Megatron-LM: Adam on the host, and four stages, best with two chunks each. |
# | 8 | All on the cards, in a layout with room. If the measured peak is too high, Adam on the host. |
#
# Whatever you have, first run a small model on your own cluster. Where you shard, check whether two ranks hold half of the states that one does, also between two microbatches. Count elements (case 1). `lab.table(case_studies.ran())` does such a check, with all in fp32, so that bytes will do.

# %% [markdown]
# ## Summary
#
# - Count the states before anything else: what is too much there, no smaller batch will cure.
# - A plan doesn't know what a trainer does between microbatches. Run it small, and count elements.
# - Two close layouts may change places with the program: measure.
# - Parts of a net on ranks of their own wait for each other if batches go through one at a time.
# - Is a formula wrong, or something late? Slow down all that it counts, and see whether the difference grows.
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
