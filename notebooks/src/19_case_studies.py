# ---
# jupyter:
#   labkit:
#     sections: ["8.10", "10.6.2", "10.7.1", "10.7.5", "19.6.1", "19.6.2", "19.6.3"]
#     needs: ["chapters 05, 06, 08, 11 and 18", "DeepSpeed and transformers (installed with labkit)"]
#     minutes: 80
# ---

# %% [markdown]
# # Case studies
#
# *Four cases of about 20 minutes; choose those that are yours. You need chapters 05, 06, 08, 11 and 18. No GPU is needed.*
#
# A textbook prints a script as a complete configuration: LLaMA 13B, all its weights, on four cards of 40 GB. It shards everything, computes in bf16, and keeps no activations but computes them again, so nothing seems left to save. It starts, and dies in its first update: each card would have to hold 59 GB. Could one have known?

# %%
from statistics import median

import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# Yes: nothing has run here. What hangs over the line is predicted, and too much.
#
# **The cases do not need each other.** Case 1 is a model too large for its cards, case 2 one that tells stories, case 3 a net of unequal parts, case 4 a few cards as people buy them for games. Each has a question, your guess, a plan, where it can be a run, and a verdict.
#
# **When you are done** you can judge a plan that somebody gives you before anything is rented.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# **Question.** Here are the lines of the script that matter. It is the Trainer of Hugging Face, with FSDP:
#
# ```python
# TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=16,
#                   bf16=True, gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# (Newer transformers want `fsdp=True` and an `fsdp_config`.) So it takes 2 sequences at a time, 16 times a step. We say 1,024 tokens a sequence, since the script doesn't. What would save it?
#
# The usual first advice is a smaller microbatch and shorter sequences. Say 1 sequence of 512 tokens, a quarter of the tokens. How many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB that a quarter of the tokens saves", between=(0, 20))

# %%
cures = case_studies.llama.cures()
saved.score((case.held_bytes - cures[1].held_bytes) / 1e9)

# %% [markdown] sections="8.10"
# Next to nothing, because activations are not what is too much. By hand: 16 bytes x 13 billion parameters, a quarter of it on each card, is 52 GB. So the states alone are more than the card.
#
# ### Plan: what would cure it?
#
# Here are five changes, one at a time. Before you look: bf16 for Adam too, Adam on the host, eight cards, or cards of 80 GB, which of these fit?

# %%
lab.show(case_studies.drawn(cures))

# %% [markdown] sections="8.10"
# All four do, each at a price. With bf16 throughout, small updates get lost (chapter 05). With Adam on the host (chapter 06; DeepSpeed can put it there alone, FSDP can not), the host needs 156 GB for it, and the step waits. The last two cost money.
#
# What if any layout is allowed, not only FSDP? For each size of card, here is the fastest on four of them, all at 16 bytes a parameter. Where none fits, it is the lightest, without a step:

# %%
lab.table(case_studies.llama.on_four_cards())

# %% [markdown] sections="8.10"
# On cards of 24 and 40 GB nothing fits with Adam on the card, however you cut: four times 40 GB are less than the states. On 80 GB a pipeline does. ("fit" has how many of the tried layouts fit. The card of 24 GB is an A10G, a slower one without NVLink, hence its long step. Four stages would fit there only with all recomputed, which is slower still. At 23.9 of 24 GB read it as "perhaps".)
#
# ### Run: the same script, small
#
# A script does not know how large its model is. So we give this one a Llama of two layers and run it on two real ranks: the real Trainer, once with FSDP, once with ZeRO 3 of DeepSpeed. In the script, that is one argument: `deepspeed=` a configuration, in place of `fsdp=` (chapters 06 and 07).

# %%
lab.table(case_studies.trained_by())

# %% [markdown] sections="8.10"
# The second column is the class that the Trainer has put around the model: so it really was FSDP, and really DeepSpeed. Each rank keeps half of the weights, and the losses agree.
#
# **Verdict.** The script is right and the cards are too small: 52 GB of states don't go into 40. Put Adam on the host if it has 156 GB to spare, or take larger cards, or more of them. Nothing that saves activations helps.
#
# <details><summary>Is the script fast, at least?</summary>
#
# It reads a batch when the batch is due. Say that reading and tokenising a sample takes 15 ms: then two of them are 30 ms, beside 60 ms of computing, and a third of each microbatch's 90 ms is reading. `case_studies.mended("fsdp")` records the script, lets chapter 15's advice simulate a reader that runs ahead, and runs it once more with `dataloader_num_workers=1`. It takes about half a minute.
#
# </details>

# %% [markdown] sections="8.10"
# ## Exercise 1. Four cards
#
# Your function gets the name of a card and the tokens of a sequence. Choose a layout for LLaMA 13B on four such cards, 128 sequences a step, so that a tenth of the fullest card stays free. Adam goes to the host (`offload="optimizer"`) only where it has to. The check asks for cards of 80, 40 and 24 GB.


# %%
def my_four_cards(card, seq):
    """A layout, such as {"zero": 3, "mbs": 2, "recompute": "full"}."""
    ### BEGIN SOLUTION
    layout = {"zero": 3, "mbs": 1, "recompute": "full"}
    if "80 GB" not in card:
        layout |= {"tp": 4, "offload": "optimizer"}
    return layout
    ### END SOLUTION


# %%
check.four_cards(my_four_cards)

# %%
check.hint("four_cards")

# %% [markdown] sections="10.7.1"
# ## Case 2: models that tell stories
#
# **Question.** A model of stories is needed, and somebody proposes three sizes: 5, 10 and 20 billion parameters. Begin with 10 B on eight A100 of 80 GB in one machine, 512 stories a step. Shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), or eight stages (`pp` 8): which is the fastest? We name one program for all, so that only the layouts differ.

# %%
names = ("ZeRO 3", "tp 8", "pp 8")
quickest = lab.guess("the fastest for 10 B on eight cards", choices=names)

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
story = planner.Plan(model=shape, gpus=8, batch=512, stack="megatron-a100")
cuts = (story.but(zero=3), story.but(tp=8, sp=True), story.but(pp=8))
steps_us = {name: plan.time().step_us for name, plan in zip(names, cuts, strict=True)}
quickest.score(min(steps_us, key=steps_us.get))

# %%
tries = (story, story.but(zero=1), *cuts)
lab.table(plan.row() for plan in tries)

# %% [markdown] sections="10.6.2"
# Plain copies don't fit, and neither do copies with ZeRO 1 (their steps only say what they would take). ZeRO 3 fits, and it is the fastest of those that do, because NVLink hides nearly all that it gathers. With `tp` 8 every layer waits for its messages, and the step is nearly twice as long. In the pipeline the last stage has the output layer as well as its own layers, so all others wait for it. (All of it is by Megatron's constants: good to compare, but nobody runs ZeRO 3 so.)
#
# ### Two printed layouts
#
# For 5 B and 20 B a textbook prints its layouts: 5 B with ZeRO 3 and Adam on the host, 20 B with `tp` 4, `pp` 4, ZeRO 1 and all recomputed. It names no cards; we take 8 and 32 A100 of 40 GB. Which two of these measures are not needed?

# %%
lab.show(planner.memory_bars(case_studies.stories.plans()))

# %% [markdown] sections="10.6.2"
# The host, for one thing. Plain copies of 5 B don't fit by far, but ZeRO 3 fits with Adam on the card, so why send it away? And 20 B fits with its activations kept. To recompute them would be about a third more computing, for memory that nobody needs.
#
# **Verdict.** Shard the 10 B in its one machine; and leave out the host and the recomputation, until a plan says that you need them.
#
# <details><summary>And does a model that was trained so tell stories?</summary>
#
# `case_studies.Story().run()[0]` trains a real Llama of two layers, 151,872 weights, by DeepSpeed's ZeRO 3 on two ranks: 45 steps on the first 500 characters of our story, which a [tokenizer](GLOSSARY.md#tokenizer) has cut in pieces (`case_studies.tokenizer()`, 400 of them, by byte pairs; [Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)). Its loss falls from about 6, which is ln 400, to well below 1, and its `"text"` reads well. But the text is the page that it saw, more or less word for word: `"right"` says how much of it. A loss on the training text says that the program works, no more.
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# **Question.** Not every model is a stack of equal layers. A car has a camera, a LiDAR and a radar, each with an encoder of its own: convolutions, a net for points, a net for graphs. A [fusion](GLOSSARY.md#fusion) lets the camera's features ask all others (cross-attention), and two heads say where things are. A textbook deals the parts out to eight ranks: 0 to 3 encode, by data parallelism, 4 and 5 fuse, by tensor parallelism, 6 and 7 have the heads, by data parallelism again. Is that a good idea?

# %%
apart = case_studies.Perception(placement="apart", ranks=8)
apart.predict()

# %% [markdown] sections="19.6.1, 19.6.2"
# Do you see the staircase? While one group computes, the two others wait: first for the features of the encoders, then, on the way back, for the gradients of the heads. (The pink strips are waiting more than sending, because every rank joins each collective.)
#
# The other way is that each rank does a part of everything. A laptop can run four ranks, and four can have the same groups (two, one and one). How many times as long is the step with groups apart?

# %%
groups = lab.guess("step apart, over step together", between=(0.2, 5))

# %%
together = case_studies.Perception()
four = together.but(placement="apart")
groups.score(four.step_us() / together.step_us())

# %%
found = []
for placement, each in {"together": together, "apart": four}.items():
    steps_us = each.run()[0]["step_us"]
    row = {"predicted_us": each.step_us(), "measured_us": median(steps_us)}
    found.append({"placement": placement} | row)
lab.table(found)

# %% [markdown] sections="19.6.1, 19.6.2"
# Both ran on four real ranks, with paced computing and links, and the table has the median of four steps. With you, too, the measured steps are probably longer than predicted, and the measured ratio is probably smaller than the predicted one: on two cores four ranks disturb each other, and a message is over when the slowest of them is there. What takes so much longer? Look at the last step, together:

# %%
together.compare()

# %% [markdown] sections="19.6.1, 19.6.2"
# Predicted above, measured below. The line under the picture says how much the two differ, and of what the difference is made. So a ratio of predictions says which way is better; how much better, you have to measure.
#
# **Verdict.** Do not deal the parts out to groups while one batch goes through after the other. With microbatches they would be a pipeline (chapter 08), whose stages differ in length.

# %% [markdown] sections="19.6.3"
# ### A policy for each kind of layer
#
# The same textbook lets the gradients of different layers travel in different ways: those of convolutions exactly, linear layers by top-k (the largest sixteenth of them, chapter 11), norms late (every fourth step the weights are averaged). That is "per layer" here. It sends about a third of the bytes; fp16 for all sends half, and "top-k all" an eighth, in twice as many messages. We take a smaller batch, and a link of 10 MB/s with 3 ms a message. Which of the four has the *longest* step?

# %%
policies = case_studies.foreseen()
names = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=names)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %%
lab.table(policies)

# %% [markdown] sections="19.6.3"
# The fewest bytes are the slowest. Top-k sends values *and* places, so eight messages in place of four, and on small layers a message costs more than its bytes. And the textbook's advice is no faster than fp16 for all. On a link of 1 MB/s it is another matter:

# %%
lab.table(case_studies.foreseen(mb_per_s=1))

# %% [markdown] sections="19.6.3"
# Now the plain way is the slowest, and "per layer" the fastest. (About 170 ms of each are computing and features, the same for all four.)
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
# "Last loss" is the mean of eight steps. With so few steps the differences say little. `lab.table(case_studies.policies())` runs it anew, in some twenty seconds.
#
# </details>

# %% [markdown] sections="19.6.3"
# ## Exercise 2. A policy
#
# You get the number of weights of each kind of layer and a link, `latency_ms` a message and `mb_per_s`. Choose a way for each kind, "exact", "fp16" or "top-k", so that the gradients are there as soon as possible. A weight has 4 bytes, 2 as fp16. Top-k sends a sixteenth of them twice, values and places, 4 bytes each. The check has three links, and trains once on real ranks, where the loss may end at most 0.1 above the plain way's.


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
# ## Case 4: one to eight cards
#
# **Question.** What if all you have is a machine or two with cards of 24 GB, as people buy them for games (RTX 4090)? Our 7 B model, 1,024 tokens a sequence, 64 sequences a step: on how few such cards can all its weights be trained, with Adam on the host if need be?

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fit = [row["cards"] for row in clusters if row["fit"]]
small_cluster.score(str(min(fit)))

# %%
lab.table(clusters)

# %% [markdown] sections="10.7.5"
# By hand, why not one? 2 + 2 bytes for 6.7 billion parameters and their gradients are 27 GB, even with Adam on the host. (The table is by the recipe of 16 bytes.) And the host needs 80 GB for Adam, 12 bytes a parameter: for an owner of such cards that may be the real limit.
#
# On eight cards, waiting for the host costs more than its larger microbatch gains: compare the last two rates. (They count 25 GB/s to the host and 200 GB/s for its memory, both stated.)
#
# And look how full the cards are. With everything on eight of them, less than half a GB is left. In chapter 18's rehearsal the planner's peak was about 5 % off, which would be more than that: read it as "perhaps". (The planner takes 24 GB as 24 x 10⁹ bytes. If your card has 24 x 2³⁰, that is 7 % more, of which the driver keeps a part.)
#
# ### Verdict: so what do you do?
#
# | cards | what to do |
# | --- | --- |
# | 1 | Not with Adam alone on the host. With parameters there too it can be done, slowly. Else a smaller model, or only a few new weights beside frozen ones (adapters), which need no Adam for the rest. |
# | 2 | Adam on the host, the stack of layers cut in two. Little room is left: measure the peak first. |
# | 4 | Adam on the host, four stages, and room for a larger microbatch. |
# | 8 | Perhaps all of it on the cards, in eight stages: it fits barely. Measure it, and keep Adam on the host for the case that it doesn't. |
#
# Most such cards have no NVLink, so tensor parallelism would cost still more than in case 1, where on 40 and 80 GB the pipeline won already. And whatever you have: first run a small model on your own cluster and count, as in case 1, whether two ranks hold half of what one does. (`lab.table(case_studies.ran())` does so here, on one to four ranks.)

# %% [markdown]
# ## Summary
#
# - Count the states before anything else: what is too much there, no smaller batch cures.
# - Leave out what a plan doesn't need: the host and recomputation have a price, too.
# - Parts of a net on ranks of their own wait for each other, while one batch follows the other.
# - The fewest bytes may be the slowest way: count messages too.
# - Adam on the host needs the host's memory, 12 bytes a parameter.
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
# The textbook prints this script as a complete configuration. Its states alone are larger than the cards. Run it: `case.told()` says how much is too much.
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
