# ---
# jupyter:
#   labkit:
#     sections: ["8.10", "10.6.2", "10.7.1", "10.7.5", "19.6.1", "19.6.2", "19.6.3"]
#     needs: ["chapters 05, 06, 11, 15 and 18", "DeepSpeed and transformers (installed with labkit)"]
#     minutes: 75
# ---

# %% [markdown]
# # Case studies
#
# *About 75 minutes: four cases of 15 to 20. You need chapters 05, 06, 11, 15 and 18. No GPU is needed.*
#
# Somebody has a script, four cards of 40 GB and a model of 13 billion parameters. A textbook prints it as a complete configuration. It shards everything, computes in bf16, forgets all activations and computes them again: nothing more can be saved, it seems. It starts, and dies before the first update is done. How many GB were missing on each card, and could one have known?

# %%
from statistics import median

import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# Predicted, without a card: what hangs over the line is too much.
#
# **The cases do not need each other.** Choose the one that is yours: a model too large for its cards, a model that tells stories, a net of unequal parts, or a handful of cards as people buy them for games. Each has a question, your guess, a plan, and a verdict.
#
# **When you are done** you have judged four plans that somebody made before anything was rented, and you can do the same with the next one.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# The first is a script as many have written it: LLaMA 13B, all its weights trained, by the Trainer of Hugging Face with FSDP, on four A100 of 40 GB. These are the lines that matter:
#
# ```python
# TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=16,
#                   bf16=True, gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# (Newer transformers want `fsdp=True` and an `fsdp_config`.) So it computes in bf16 with Adam in fp32, recomputes every layer, and takes 2 sequences at a time, 16 times a step. We say 1,024 tokens a sequence, since the script doesn't. How many GB too much does each card have to hold? (If you think that it fits, say 0.)

# %%
over = lab.guess("GB too much on each card", between=(0, 60))

# %%
over.score(case.over_bytes / 1e9)

# %%
case

# %% [markdown] sections="8.10"
# By hand: 16 bytes x 13 billion parameters, a quarter of it on each card, is 52 GB. So it dies of its states, in Adam's first step at the latest, where the moments are made. What recomputation saves doesn't matter.
#
# ### What would cure it?
#
# Here are five changes, one at a time: one sequence of 512 tokens; bf16 for Adam too; Adam on the host; eight cards; cards of 80 GB. Before you look, which stay over the line?

# %%
lab.show(case_studies.drawn(case_studies.llama.cures()))

# %% [markdown] sections="8.10"
# Smaller microbatches and shorter sequences, the usual first advice, save next to nothing, because activations are not what is too much. The other four fit, each at a price. With bf16 throughout, small updates get lost (chapter 05). With Adam on the host (chapter 06; DeepSpeed can put it there alone, FSDP can not), 156 GB lie there, and the step waits for it. The last two cost money.
#
# What if any layout is allowed, not only FSDP? For each size of card, here is the fastest on four of them, all at 16 bytes a parameter. Where none fits, it is the lightest:

# %%
lab.table(case_studies.llama.on_four_cards())

# %% [markdown] sections="8.10"
# On cards of 24 and 40 GB nothing fits with Adam on the card, however you cut: four times 40 GB are less than the states. On 80 GB a pipeline does. ("fit" has how many of the tried layouts fit. The card of 24 GB is an A10G, a slower one without NVLink, hence its long steps.)
#
# ### The same script, small
#
# A script does not know how large its model is. So we give this one a Llama of two layers and run it on two real ranks: the real Trainer, once with FSDP, once with ZeRO 3 of DeepSpeed. In the script, that is one argument: `deepspeed=` a configuration, in place of `fsdp=` (chapters 06 and 07).

# %%
lab.table(case_studies.trained_by())

# %% [markdown] sections="8.10"
# The second column is the class that the Trainer has put around the model: so it really was FSDP, and really DeepSpeed. Each rank keeps half of the weights, and the losses nearly agree.
#
# ### Follow the advice
#
# Is the script fast, at least? It reads a batch when the batch is due. We say that reading and tokenising a sample takes 15 ms, and a microbatch of two samples computes for 60 ms (both are paced). `lab.advise` (chapter 15) will look at a recording of it. By which share of the step does reading ahead shorten it, in the advice's simulation?

# %%
ahead = lab.guess("share that reading ahead saves", between=(0, 1))

# %%
proof = case_studies.mended("fsdp")
ahead.score(proof.predicted)

# %%
proof

# %% [markdown] sections="8.10"
# Above is the script as it is, below with `dataloader_num_workers=1`, one argument more. A third of a microbatch's 90 ms is reading, so that is the most that reading ahead can save. The advice simulates less, because other work in a step stays as long as it is.
#
# If your second run saves *more* than a third, as some do, something else has changed too. Compare the boxes C of both, and the gaps that are not reading: on a busy machine boxes get longer and gathers wait. That part of the gain is not the loader's. ("Overran" in a title says that some box lasted longer than it was told to.) So the order to work in is: record, let a simulation choose, change one thing, record again, and check that nothing else has moved.

# %% [markdown] sections="10.7.1"
# ## Case 2: models that tell stories
#
# A model of stories is needed, and somebody proposes three sizes: 5, 10 and 20 billion parameters. Begin with 10 B on eight A100 of 80 GB, 512 stories a step. Which layout: data parallelism, layers cut in eight (`tp`), or eight stages (`pp`)? We name one program for all, so that only the layouts differ:

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
story = planner.Plan(model=shape, gpus=8, batch=512, stack="megatron-a100")
tries = [story.but(zero=zero) for zero in (0, 1, 3)]
tries += [story.but(tp=8, sp=True), story.but(pp=8)]
lab.table(plan.row() for plan in tries)

# %% [markdown] sections="10.6.2"
# Plain copies don't fit, with ZeRO 1 they don't either. ZeRO 3 does, and it is the fastest of those that fit, because NVLink hides nearly all that it gathers. Cut in eight, every layer waits for its messages, and the step is nearly twice as long. In the pipeline the last stage has the output layer as well as its own layers, so all others wait for it.
#
# For 5 B and 20 B a textbook prints its layouts: 5 B with ZeRO 3 and Adam on the host, 20 B with `tp` 4, `pp` 4 and ZeRO 1. It names no cards; we take 8 and 32 A100 of 40 GB. Which of these measures are not needed?

# %%
lab.show(planner.memory_bars(case_studies.stories.plans()))

# %% [markdown] sections="10.6.2"
# The host, for one thing. Plain copies of 5 B don't fit by far, but ZeRO 3 fits with Adam on the card, so why send it away? And 20 B fits with its activations kept. To recompute them would be about a third more computing (rule 4), for memory that nobody needs.
#
# <details><summary>And does a model that was trained so tell stories?</summary>
#
# `case_studies.Story().run()[0]` trains a real Llama of two layers, 151,872 weights, by DeepSpeed's ZeRO 3 on two ranks: 45 steps on the first 500 characters of our story, which a [tokenizer](GLOSSARY.md#tokenizer) has cut in pieces (`case_studies.tokenizer()`, 400 of them, by byte pairs; [Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)). Its loss falls from about 6, which is ln 400, to well below 1, and its `"text"` reads well. But the text is the page that it saw, more or less word for word: `"right"` says how much of it. A loss on the training text says that the program works, no more.
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# Not every model is a stack of equal layers. A car has a camera, a LiDAR and a radar, each with an encoder of its own: convolutions, a net for points, a net for graphs. A [fusion](GLOSSARY.md#fusion) lets the camera's features ask all others (cross-attention), and two heads say where things are. A textbook deals the parts out to eight ranks: 0 to 3 encode, by data parallelism, 4 and 5 fuse, by tensor parallelism, 6 and 7 have the heads, by data parallelism again.

# %%
apart = case_studies.Perception(placement="apart", ranks=8)
apart.predict()

# %% [markdown] sections="19.6.1, 19.6.2"
# Do you see the staircase? (The pink strips are waiting more than sending: every rank joins each collective, and those with nothing to give wait in it.) Whoever fuses waits for those who encode, and these wait for the heads' gradients, for nobody has anything else to do. A laptop can run four ranks, and four can have the same groups (two, one and one). Or each of the four does a part of everything. How many times as long is the step with groups apart?

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
# Both ran on four real ranks, with paced computing and links, and the table has the middle one of four steps. Every rank that is not apart encodes a quarter of the scenes, has one of four attention heads in the fusion, and a quarter of the scenes again for the heads. Here is the last of its steps:

# %%
together.compare()

# %% [markdown] sections="19.6.1, 19.6.2"
# Predicted above, measured below. If a rank begins late, the others wait for it in the first message. The line under the picture says how much the two differ, and of what the difference is made.
#
# ### Are groups apart always worse?
#
# They are where one batch goes through after the other. With microbatches they would be a pipeline (chapter 08), whose stages differ in length.

# %% [markdown] sections="19.6.3"
# ### A policy for each kind of layer
#
# Gradients of different layers could travel in different ways: exactly, as fp16, as top-k (the largest sixteenth of them, chapter 11), or late (every fourth step the weights are averaged). The textbook advises convolutions exactly, linear layers compressed, norms late. That is "per layer" here. fp16 halves the bytes, "per layer" sends about a third of them, and "top-k all" an eighth, in twice as many messages. Which of the four has the *longest* step, on a link of 10 MB/s with 3 ms a message?

# %%
policies = case_studies.foreseen()
names = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=names)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %%
lab.table(policies)

# %% [markdown] sections="19.6.3"
# The fewest bytes are the slowest. Top-k sends values *and* places, so eight messages in place of four, and on small layers a message costs more than its bytes. (The late ones of "per layer" go every fourth step, which makes a quarter of a message.) Elsewhere it is another matter. Here is a link of 1 MB/s:

# %%
lab.table(case_studies.foreseen(mb_per_s=1))

# %% [markdown] sections="19.6.3"
# Now the plain way is the slowest, and the two that send least are nearly level. (About 170 ms of each are computing and features, the same for all four.) So no policy is good in itself: count messages and bytes for your link first. And the loss?
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
# "Last loss" is the mean of eight steps. With so few steps the differences say little, but no policy spoils the training. `lab.table(case_studies.policies())` runs it anew, in some twenty seconds.
#
# </details>

# %% [markdown] sections="19.6.3"
# ## Exercise 1. A policy
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
# And what if all you have is a machine or two with cards of 24 GB, as people buy them for games (RTX 4090)? Our 7 B model, 1,024 tokens a sequence, 64 sequences a step: on how few such cards can all its weights be trained, with Adam on the host if need be?

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fit = [row["cards"] for row in clusters if row["fit"]]
small_cluster.score(str(min(fit)))

# %%
lab.table(clusters)

# %% [markdown] sections="10.7.5"
# By hand, why not one? 2 + 2 bytes for 6.7 billion parameters and their gradients are 27 GB, even with Adam on the host. And the table is by the recipe of 16 bytes. The rates count the time of Adam on the host, with 25 GB/s to the host and 200 GB/s for its memory, both stated. On eight cards that takes longer than the room on the card saves.
#
# And look how full the cards are. With everything on eight of them, less than half a GB is left. In the rehearsal the planner's peak was 5 % off, which would be more than that: read it as "perhaps". (The planner takes 24 GB as 24 x 10⁹ bytes. If your card has 24 x 2³⁰, that is 7 % more, of which the driver keeps a part.)
#
# ### So what do you do?
#
# | cards | what to do |
# | --- | --- |
# | 1 | Not this model with all its weights. A smaller one, or only a few new weights beside frozen ones (adapters), which need no Adam for the rest. |
# | 2 | Adam on the host, the stack of layers cut in two. Little room is left: measure the peak first. |
# | 4 | Adam on the host, four stages, and room for a larger microbatch. |
# | 8 | Perhaps all of it on the cards, in eight stages: it fits barely. Measure it, and keep Adam on the host for the case that it doesn't. |
#
# Most such cards have no NVLink, so tensor parallelism would cost still more than in case 1, where on 40 and 80 GB the pipeline won already. And whatever you have: first run a small model on your own cluster and count, as in case 1, whether two ranks hold half of what one does. (`lab.table(case_studies.ran())` does so here, on one to four ranks.)

# %% [markdown]
# ## Summary
#
# - Count the states before anything else: what is too much there, no smaller batch cures.
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
