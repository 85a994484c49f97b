# ---
# jupyter:
#   labkit:
#     sections: ["8.10", "10.6.2", "10.7.1", "10.7.5", "19.6.1", "19.6.2", "19.6.3"]
#     needs: ["by case, chapters 05 to 09, 11 and 18", "DeepSpeed and transformers (installed with labkit)"]
#     minutes: 80
# ---

# %% [markdown]
# # Case studies
#
# *Five cases of 10 to 20 minutes; choose those that are yours. Cases 1, 2 and 5 need chapters 05 to 09 and 18, case 3 needs 08 and 09, case 4 needs 11. No GPU is needed.*
#
# A textbook prints a script as a complete configuration: LLaMA 13B, all its weights, on four cards of 40 GB. It shards everything, computes in bf16, and keeps only the input of each layer, so nothing seems left to save. It would start, and die in its first update: each card would have to hold 59 GB. Could one have known?

# %%
from statistics import median

import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# Yes: nothing has run here. All of it is predicted, and what hangs over the line is too much.
#
# **The cases do not need each other.** 1 and 2 are large models, 3 and 4 a net of unequal parts, 5 a few cards as people buy them for games. Each has a question, your guess, a plan, a run where one is possible, and a verdict.
#
# **When you are done** you can judge a plan that somebody gives you before anything is rented.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# **Question.** These lines of the script matter. It is Hugging Face's Trainer, with FSDP:
#
# ```python
# TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=16,
#                   bf16=True, gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# It takes 2 sequences at a time, of 1,024 tokens, say, and 16 times a step. What would save it?
#
# The usual advice is fewer tokens. With 1 sequence of 512 there are a quarter as many: how many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB that a quarter of the tokens saves", between=(0, 20))

# %%
cures = case_studies.llama.cures()
saved.score((case.held_bytes - cures[1].held_bytes) / 1e9)

# %% [markdown] sections="8.10"
# Next to nothing, because activations are not what is too much. By hand: 16 bytes x 13 billion parameters, a quarter on each card, is 52 GB of states alone.
#
# ### Plan: what would cure it?
#
# Below are that change and four more, one at a time. Before you look: bf16 for Adam too, Adam on the host, eight cards, or cards of 80 GB, which of these fit?

# %%
lab.show(case_studies.drawn(cures))

# %% [markdown] sections="8.10"
# All four do, each at a price. With bf16 throughout, small updates get lost (chapter 05). With Adam on the host (chapter 06), the host needs 156 GB for it, the step waits, and it takes DeepSpeed, since FSDP can't send Adam alone. The last two cost money.
#
# What if any layout is allowed, not only FSDP? Here is the fastest on four cards of each size (24 GB: the A10G, slower and without NVLink), or, where none fits, the lightest. "fit" counts those that fit, of all tried:

# %%
lab.table(case_studies.llama.on_four_cards())

# %% [markdown] sections="8.10"
# On cards of 24 and 40 GB nothing fits with Adam on the card, however you cut: four times 40 GB are less than the states. On 80 GB 105 layouts fit, and a pipeline is the fastest. With Adam on the host every size will do, but 23.1 of 24 GB is a "perhaps".
#
# You can weigh layouts of your own in the same way, by the constants of a program that runs them:

# %%
four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
mine = (four.but(pp=4), four.but(zero=3), four.but(tp=4, sp=True))
lab.table(plan.row() for plan in mine)

# %% [markdown] sections="8.10"
# Four plain stages are nearly as fast as the best found. ZeRO 3 takes a fifth longer, `tp` 4 still longer.
#
# ### Run: the same script, small
#
# A script does not know how large its model is. So we give this one a Llama of two layers and run it on two real ranks, with the real Trainer: once with FSDP, once with ZeRO 3 of DeepSpeed, which takes one argument, `deepspeed=` in place of `fsdp=` (chapters 06 and 07). The cell takes about a minute.

# %%
lab.table(case_studies.trained_by())

# %% [markdown] sections="8.10"
# "trained by" is the class that the Trainer put around the model: so it really was FSDP, and really DeepSpeed. Each rank keeps half of the weights, and the losses agree.
#
# **Verdict.** The script is right and the cards are too small: 52 GB of states don't go into 40. Put Adam on the host if it has 156 GB to spare, or take larger cards, or more of them.

# %% [markdown] sections="8.10"
# ## Exercise 1. Four cards
#
# Your function gets a card ("A100 80 GB", "A100 40 GB" or "A10G 24 GB") and the tokens of a sequence. It returns a layout for LLaMA 13B on four such cards: some of `tp`, `sp`, `pp`, `zero`, `mbs`, `recompute` ("full") and `offload` ("optimizer").
#
# - A tenth of the card stays free.
# - Adam goes to the host only where it has to.
# - The step is at most a quarter longer than the fastest that does both (without `vpp`).
#
# `plan = four.but(gpu=card, seq=seq, pp=4)` plans one; `plan.memory().peak_bytes` is what its fullest card holds, of `plan.cluster.device_bytes`, and `plan.time().step_us` its step.


# %%
def my_four_cards(card, seq):
    """A layout, such as {"zero": 3, "mbs": 2, "recompute": "full"}."""
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
# ## Case 2: 10 billion in one machine
#
# **Question.** A story model of 10 billion parameters is wanted, and there are eight A100 of 80 GB in one machine. Shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), or eight stages (`pp` 8): which is the fastest? All get the constants of one program, so that only the layouts differ.

# %%
names = ("ZeRO 3", "tp 8", "pp 8")
quickest = lab.guess("the fastest for 10 B on eight cards", choices=names)

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
machine = {"gpu": "A100 80 GB", "gpus": 8}
story = planner.Plan(model=shape, **machine, batch=512, seq=2048, stack="megatron-a100")
cuts = (story.but(zero=3), story.but(tp=8, sp=True), story.but(pp=8))
steps_us = {name: plan.time().step_us for name, plan in zip(names, cuts, strict=True)}
quickest.score(min(steps_us, key=steps_us.get))

# %%
by_fsdp = story.but(zero=3, stack="fsdp-a100")
tries = (story, story.but(zero=1), *cuts, by_fsdp)
lab.table(plan.row() for plan in tries)

# %% [markdown] sections="10.6.2"
# Plain copies don't fit, nor with ZeRO 1; their steps only say what they would take. Of the others ZeRO 3 is the fastest, because over NVLink its weights arrive while it still computes. With `tp` 8 every layer waits for its messages.
#
# Why does the pipeline lose here, when it won in case 1? Its last stage has the output layer too, and all others wait for it. Here that is one layer's work beside six layers, there half a layer's beside ten.
#
# But nobody runs ZeRO 3 by Megatron: in the last row it has FSDP's constants, as in case 1, and the pipeline is ahead again.
#
# ### Two printed layouts
#
# For story models of 5 B and 20 B a textbook prints its layouts: 5 B with ZeRO 3 and Adam on the host, 20 B with `tp` 4, `pp` 4, ZeRO 1 and all recomputed. It names no cards; we take 8 and 32 A100 of 40 GB. Which two of these measures are not needed on them?

# %%
lab.show(planner.memory_bars(case_studies.stories.plans()))

# %% [markdown] sections="10.6.2"
# The host, since ZeRO 3 fits with Adam on the card; and recomputing, about a third more work, since 20 B fits with its activations kept. (On cards of 24 GB you would need both.)
#
# **Verdict.** Shard the 10 B if your program shards as quickly as it computes; by FSDP's constants take the stages. The two are only 13 % or 7 % apart, so measure both. And leave out the host and the recomputation, until a plan says that you need them.
#
# <details><summary>And does a model that was trained so tell stories?</summary>
#
# `case_studies.Story().run()[0]` trains a real Llama of 151,872 weights by ZeRO 3 on two ranks: 45 steps on the first 500 characters of our story, cut in pieces by a [tokenizer](GLOSSARY.md#tokenizer) (`case_studies.tokenizer()`, 400 of them, by byte pairs; [Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)). Its loss falls from about 6, which is ln 400, to well below 1. But its `"text"` is more or less the page that it saw: `"right"` says how much. So the loss says that the program works, no more.
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# **Question.** Not every model is a stack of equal layers. A car has a camera, a LiDAR and a radar, each with an encoder of its own. A [fusion](GLOSSARY.md#fusion) lets the camera's features ask all others (cross-attention), and two heads say where things are. A textbook deals the parts out to eight ranks, so that none holds the whole net: 0 to 3 encode, 4 and 5 fuse, 6 and 7 have the heads. Is that a good idea?

# %%
apart = case_studies.Perception(placement="apart", ranks=8)
apart.predict()

# %% [markdown] sections="19.6.1, 19.6.2"
# Do you see the staircase? While one group computes, the two others wait: first for features, then, on the way back, for gradients. The pink strips are mostly waiting, since all ranks join each collective: even features are handed over in an all-reduce, to which the others add zeros.
#
# The other way is *together*. Every rank has a copy of encoders and heads, for its share of the batch, and some of the fusion's attention heads. So all features are collected before the fusion, and its parts added up behind it; on the way back the same happens to gradients, and at the end to those of the weights. (Copies of the whole net would send only these last. We keep the fusion cut, as the textbook does, so that only the dealing out differs.)
#
# A laptop can run four ranks; apart, they are two, one and one. How many times as long is a step apart?

# %%
groups = lab.guess("step apart, over step together", between=(0.2, 5))

# %%
together = case_studies.Perception()
four_apart = together.but(placement="apart")
groups.score(four_apart.step_us() / together.step_us())

# %%
found = []
for placement, each in {"together": together, "apart": four_apart}.items():
    steps_us = each.run()[0]["step_us"]
    row = {"placement": placement, "predicted_us": each.step_us()}
    found.append(row | {"measured_us": median(steps_us)})
for row in found:
    for kind in ("predicted", "measured"):
        row[f"{kind} ratio"] = row[f"{kind}_us"] / found[0][f"{kind}_us"]
lab.table(found)

# %% [markdown] sections="19.6.1, 19.6.2"
# Both ran on four real ranks, with paced computing and links; the table has the median of four steps. With you, too, they are probably longer than predicted, and the measured ratio another than the one that you guessed. What takes so much longer? Look at the last step, together:

# %%
together.compare()

# %% [markdown] sections="19.6.1, 19.6.2"
# Predicted above, measured below; the line under the picture splits the difference. Most of it is probably messages, and little is computing: where four ranks share two cores, some come late, and a message waits for the last. So a prediction says which way is better; how much better, you have to measure.
#
# **Verdict.** Do not deal the parts out to groups while one batch goes through after the other. With microbatches they would be a pipeline (chapter 08), whose stages differ in length.

# %% [markdown] sections="19.6.3"
# ## Case 4: a policy for each kind of layer
#
# **Question.** Should all gradients travel in the same way? The car's net of case 3 has four kinds of layers: convolutions, linear layers, norms and heads. The gradients of a kind are one message. "Per layer" is what the textbook advises:
#
# | policy | how gradients travel | bytes |
# | --- | --- | --- |
# | plain | all exactly | all |
# | fp16 | all as fp16 | a half |
# | per layer | convolutions and heads exactly, linear layers by top-k, norms late | about a third |
# | top-k all | all by top-k | an eighth |
#
# Top-k sends the largest sixteenth (chapter 11), in two messages: values and places. Late means that the weights are averaged, every fourth step. With 10 MB/s and 3 ms a message, which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
names = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=names)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %%
lab.table(policies)

# %% [markdown] sections="19.6.3"
# The fewest bytes are the slowest: eight messages in place of four, and on small layers a message costs more than its bytes. "Per layer" has 4.25, as norms travel in one step of four, and it is no faster than fp16. On a link of 1 MB/s it is another matter:

# %%
lab.table(case_studies.foreseen(mb_per_s=1))

# %% [markdown] sections="19.6.3"
# Now the plain way is the slowest. The other three are within 3 %, "per layer" ahead by a hair.
#
# **Verdict.** No policy is good in itself: count messages and bytes for your link first. None of the four spoils the training:
#
# <details><summary>Recorded: 48 steps by each policy on four real ranks</summary>
#
# | policy | bytes a step | last loss | steps until it is below 0.8 |
# | --- | --- | --- | --- |
# | plain | 41.3 kB | 0.609 | 37 |
# | fp16 | 20.6 kB | 0.627 | 37 |
# | per layer | 14.4 kB | 0.675 | 38 |
# | top-k all | 5.15 kB | 0.621 | 37 |
#
# "Last loss" is the mean of eight steps. With so few steps the differences say little. `lab.table(case_studies.policies())` runs it anew.
#
# </details>

# %% [markdown] sections="19.6.3"
# ## Exercise 2. A policy
#
# You get the number of weights of each kind of layer, and a link. Choose a way for each kind, "exact", "fp16" or "top-k", so that the gradients are there as soon as possible. Messages go one after the other; each takes `latency_ms`, and a millisecond more for each 1,000 x `mb_per_s` bytes.
#
# | way | messages of a kind | bytes of each |
# | --- | --- | --- |
# | exact | 1 | 4 a weight |
# | fp16 | 1 | 2 a weight |
# | top-k | 2 | 4 for each sixteenth weight |
#
# By this count one of the three never wins: which? The check has three links, and trains once on real ranks, where the loss may end at most 0.1 above the plain way's.


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
# ## Case 5: one to eight cards
#
# **Question.** What if all you have is a machine with cards of 24 GB, as people buy them for games (RTX 4090)? Our 7 B model, 1,024 tokens a sequence, 64 sequences a step: on how few such cards can all its weights be trained, with Adam on the host if need be?

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fewest = min(row["cards"] for row in clusters if row["fit"])
small_cluster.score(str(fewest))

# %%
lab.table(clusters)

# %% [markdown] sections="10.7.5"
# By hand, why not one? 2 + 2 bytes for 6.7 billion parameters and their gradients are 27 GB, even with Adam on the host. And the host needs 80 GB for Adam, 12 bytes a parameter: for an owner of such cards that may be the real limit.
#
# On eight cards, the best with the host is a fifth slower than the best without ("token rate" is tokens a second). But that one leaves less than half a GB of 24 free, and in chapter 18's rehearsal the planner's peak was about 5 % off: read it as "perhaps". Which is the fastest that leaves a tenth free?

# %%
roomy = case_studies.small.rows(free=0.1)
lab.table(row for row in roomy if row["fit"])

# %% [markdown] sections="10.7.5"
# With two and four cards that costs next to nothing. On eight it costs a sixth of the rate, and the cards are still a little ahead of the host.
#
# <details><summary>What the rates and sizes assume</summary>
#
# 25 GB/s to the host and 200 GB/s for its memory, both assumed, not measured; 16 bytes a parameter; 24 GB as 24 x 10⁹ bytes. If your card has 24 x 2³⁰, that is 7 % more, of which the driver keeps a part.
#
# </details>
#
# ### Verdict: so what do you do?
#
# | cards | what to do |
# | --- | --- |
# | 1 | Not with Adam alone on the host. Take a smaller model, or train only a few new weights beside frozen ones (adapters), which need no Adam for the rest. |
# | 2 | Adam on the host, two stages. |
# | 4 | Adam on the host, four stages, and room for a larger microbatch. |
# | 8 | All of it on the cards, with a tenth free; then try the faster one that fits barely. If the measured peak is too high even so, Adam on the host. |
#
# Whatever you have, first run a small model on your own cluster and count whether two ranks hold half of what one does (`lab.table(case_studies.ran())` does so here).

# %% [markdown]
# ## Summary
#
# - Count the states before anything else: what is too much there, no smaller batch cures.
# - Leave out what a plan doesn't need: the host and recomputation have a price, too.
# - Parts of a net on ranks of their own wait for each other, while one batch follows the other.
# - A prediction ranks plans that are far apart; how much better one is, a run has to say.
# - The fewest bytes may be the slowest way: count messages too.
#
# A word that was new: [fusion](GLOSSARY.md#fusion).
#
# **Next:** [your own](20_your_own.ipynb): bring a module, a script, a machine, and see what they need.

# %% [markdown] sections="8.10"
# ## Errata of the textbook
#
# They correct a textbook that many readers know; if you don't, you lose nothing here.
#
# <details><summary>Two boxes</summary>
#
# <details><summary>Erratum 8.10: LLaMA-13B by FSDP on four A100 of 40 GB</summary>
#
# Its states alone are larger than the cards. Run it: `case.told()` says how much is too much.
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
