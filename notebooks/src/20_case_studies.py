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
# A textbook prints a script that trains all weights of LLaMA 13B on four cards of 40 GB, and calls it complete. The script shards everything, computes in bf16, and keeps only the input of each layer. Does that fit? In the picture the bar is what each card would hold, and the line is what it has.

# %%
import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# It doesn't fit: each card would have to hold 59 GB, and what hangs over the line is the 19 GB too much. Nothing has run yet: the bar is a prediction by chapter 18's planner.
#
# In each case we predict what becomes of somebody's plan. All but case 2 have small runs, which can confirm what ranks keep and which way is faster, not a GPU's seconds. **Each case can be read alone** after the cell above; only case 4 goes on with the net of case 3.
#
# **When you are done** you can judge a plan before anything is rented, and you know what to try small first.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# **Question.** What has to change so that the model fits? The script uses Hugging Face's Trainer with FSDP, and these are the lines that count:
#
# ```python
# TrainingArguments(
#     per_device_train_batch_size=2, gradient_accumulation_steps=16, bf16=True,
#     gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# A card takes 2 sequences at a time, 16 times a step, so the four cards see 2 x 16 x 4 = 128 sequences. The script doesn't say how long; we assume 1,024 tokens.
#
# The usual advice is to take fewer tokens at a time, say one sequence of 512, which is a quarter. How many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB saved by taking only a quarter of the tokens", between=(0, 20))

# %%
cures = case_studies.llama.cures()
saved.score((case.held_bytes - cures[1].held_bytes) / 1e9)

# %% [markdown] sections="8.10"
# It saves next to nothing, 1.1 GB, because fewer tokens only shrink the activations, and the script already keeps few of those. What fills the cards are the states. FSDP keeps weights, gradients and Adam's two moments in fp32, which is 4 + 4 + 8 = 16 bytes for each of 13 billion parameters. Divided among four cards that is 52 GB on each, whatever the batch.
#
# ### Plan: what would cure it?
#
# So a cure has to change the states or the cards. We try four: bf16 for all states, Adam on the host, eight cards, and cards of 80 GB. Since the planner was about 5 % off in chapter 19, a layout **fits** on this page only if it leaves a tenth of its card free. How many of the four fit?

# %%
fitting = lab.guess("how many of the four fit", choices=("0", "1", "2", "3", "4"))

# %%
fit = [cure.held_bytes < 0.9 * cure.plan.cluster.device_bytes for cure in cures]
fitting.score(str(sum(fit[2:])))

# %% [markdown] sections="8.10"
# Right of each bar you see what is left of the card. Compare the states, which are blue, orange and green, with the first row's.

# %%
lab.show(case_studies.drawn(cures))

# %% [markdown] sections="8.10"
# All four fit, and each has its price. More cards, or larger ones, cost money. bf16 halves the states, but it keeps only two to three digits, so a small update is rounded away (chapter 05). And Adam on the host only moves the problem: DeepSpeed, which we take for that, leaves only 2-byte weights on the card and sends gradients to the host too, which then has 18 bytes for each of 13 billion parameters, 234 GB in all.
#
# ### Run: the same script, small
#
# The plan takes it for granted that everything is sharded. Does the real Trainer do that? We give the script a Llama of two layers and run it three times on two real ranks: by FSDP, by FSDP with one line more (`sync_each_batch`), and by DeepSpeed's ZeRO 3. Give them a minute.
#
# "trained by" is the class that did the work. "kept" says how many of the model's "weights" stay on one rank, "gradients" how many of its gradients do between two microbatches, and "type" their dtype. If everything is sharded, each rank has a half of both.

# %%
lab.table(case_studies.trained_by())

# %% [markdown] sections="8.10"
# ### One line is missing
#
# Every row halves the weights, but in the first row a rank has gradients of *all* of them. To save messages, the Trainer adds gradients up over the ranks only after the last microbatch of a step (`no_sync`, chapter 03). Until then a rank keeps its own part of every sum.
#
# Our plans counted only a shard. In truth each card keeps 2 bytes for all 13 billion, which is 26 GB, however many cards there are. The tenth left free is for small errors, not for a wrong assumption. By hand, in GB:
#
# | change | planned | shard of gradients | whole gradients | so a card holds |
# | --- | --- | --- | --- | --- |
# | as written | 59.4 | 13 | 26 | 72.4 |
# | eight cards | 33.4 | 6.5 | 26 | 52.9 |
# | bf16 for all states | 33.4 | 6.5 | 26 | 52.9 |
#
# Now neither eight cards of 40 GB nor bf16 will do, and even cards of 80 GB are just too small, since 72.4 GB leave less than a tenth. What helps is the line of the run's second row:
#
# ```python
# accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}
# ```
#
# With it the ranks add up after each microbatch, and keep only their shards, in fp32 as planned. The price is that gradients travel 16 times a step in place of once. DeepSpeed does this by itself, as the last row shows.

# %% [markdown] sections="8.10"
# ### Which layout is the fastest?
#
# Once it fits, we want it fast, and other layouts count too. Each is planned for the program that usually runs it, which decides the bytes:
#
# | layout | run by | bytes a parameter, all cards together |
# | --- | --- | --- |
# | ZeRO 3 | FSDP | 16: weights 4, gradients 4, Adam 8 |
# | ZeRO 3, Adam on the host | DeepSpeed | weights 2; on the host gradients 6 (2 as they come, 4 in fp32), Adam 12 (8, and weights in fp32) |
# | all others | Megatron-LM | 18: weights 2, gradients 4, Adam 12 (may be on the host) |
#
# Here are four stages, ZeRO 3 with the line above, and each layer cut in four, on cards of 80 GB, one sequence at a time and nothing recomputed. "constants of" names the program whose speed was assumed.

# %%
four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
mine = (four.but(pp=4), four.but(zero=3), four.but(tp=4, sp=True))
lab.table(plan.row() for plan in mine)

# %% [markdown] sections="8.10"
# Four stages are predicted to be the fastest. ZeRO 3 takes a fifth longer, mostly because of its program's constants, which may be that far off (case 2). `tp` 4 takes 43 % longer, because it waits for messages in every layer.
#
# ### And on four cards of 40 GB?
#
# With the line bf16 fits again, but rounds small updates away. So Adam goes to the host, by Megatron-LM in four stages, or by DeepSpeed in the script. "host" is what lies there, and "step" counts its part.

# %%
stages = four.but(gpu="A100 40 GB", pp=4, offload="optimizer")
lab.table(case_studies.llama.with_host([stages, cures[3].plan]))

# %% [markdown] sections="8.10"
# DeepSpeed takes almost twice as long, since the script recomputes every layer, and gradients go to the host after each of 16 microbatches. Megatron-LM's go once a step.
#
# **Verdict.** With FSDP, add the line, and take eight cards or cards of 80 GB. With only these four, put Adam on the host, by DeepSpeed if you keep the Trainer, else in four stages. On cards of 80 GB measure four stages and ZeRO 3.

# %% [markdown] sections="8.10"
# ### Exercise 1. Four cards
#
# Let us do the table's first row by hand. With four stages a card has 18 x 13 / 4 = 58.5 GB of states, so on 40 GB Adam had to go. Then 6 x 13 / 4 = 19.5 GB remain. With activations and buffers that makes the table's 29.8 GB, which fits, since nine tenths of the card are 36 GB.
#
# Now find a rule for all cards. Your function gets a card ("A100 80 GB", "A100 40 GB" or "A10G 24 GB") and the tokens of a sequence (512, 1,024 or 4,096). It returns a layout for LLaMA 13B on four such cards: a dict with some of `tp`, `sp`, `pp`, `zero`, `mbs`, `recompute` ("full") and `offload` ("optimizer").
#
# - A tenth of the card stays free.
# - Adam goes to the host only where it has to.
# - The step (`plan.time().step_us`, the host left out) is at most a quarter longer than that of the fastest layout of these fields that keeps the first two rules.
#
# You learn most from a list of three or four layouts, in the order of trying. `plan = four.but(gpu=card, seq=seq, ...)` plans one, `plan.memory().peak_bytes` is what its fullest card holds, and `plan.cluster.device_bytes` what that has. Try it first: do four stages still fit on 80 GB with 4,096 tokens?


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

# %% [markdown] sections="10.6.2, 10.7.1"
# ## Case 2: is it the layout or the program?
#
# **Question.** When one layout is slower than another, is that the layout's doing, or that of the program that runs it? A model of 10 billion parameters is to tell stories. There are eight A100 of 80 GB in one machine, and 512 sequences of 2,048 tokens a step.
#
# We compare three layouts: shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), and eight stages (`pp` 8). To see the layouts alone, we plan as if Megatron-LM ran all three, one sequence at a time. Which is the fastest?

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
# Where does each spend its step? The fourth bar is ZeRO 3 once more, by FSDP's own constants. Compare its blue part with that of the first bar.

# %%
by_fsdp = story.but(zero=3, stack="fsdp-a100", recipe="fp32")  # 16 bytes
bars = {**dict(zip(names, cuts, strict=True)), "ZeRO 3, FSDP": by_fsdp}
lab.show(planner.time_bars(bars))

# %% [markdown] sections="10.6.2"
# Bar by bar:
#
# - ZeRO 3 is the fastest of the first three, because the weights of the next layer arrive while this one still computes.
# - `pp` 8: 48 layers, and an output layer that takes as long as one, make 49 for eight stages, so one has 7, which is the blue part, and the others wait for it. That is 4.6 of its 5.2 s behind ZeRO 3, the fault of the number 49, not of pipelines or a program.
# - `tp` 8 waits for messages in every layer. Products of narrow pieces use a card less well, so its blue part is longer too.
# - FSDP's ZeRO 3 does the same work as the first bar, but by FSDP's constants a matrix product reaches at most 63 % of the cards' peak, and by Megatron's 79 %.
#
# So by the same constants ZeRO 3 is 13 % ahead of the pipeline, and by FSDP's own it takes 7 % longer. As these may be 20 % off (chapter 18), this plan can't settle which is ahead.
#
# **Verdict.** Measure two of them, ZeRO 3 by FSDP and the pipeline by Megatron-LM. `tp` 8 is too far behind.
#
# <details><summary>The textbook's own story models</summary>
#
# It prints a layout for 5 B (ZeRO 3, Adam on the host) and one for 20 B (`tp` 4, `pp` 4, ZeRO 1, everything recomputed). On A100 of 40 GB, 5 B needs no host (with case 1's line), and 20 B no recomputation: `lab.show(planner.memory_bars(case_studies.stories.plans()))`.
#
# `case_studies.Story().run()[0]["text"]` is what a Llama of 151,872 weights makes of 500 characters, cut by a [tokenizer](GLOSSARY.md#tokenizer) ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)).
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# **Question.** A car has a camera, a LiDAR and a radar. Each has an encoder that turns what it sees into features. A [fusion](GLOSSARY.md#fusion) mixes them, and two output heads say where things are. A textbook gives each part of this net to ranks of its own. Is that a good idea?
#
# In place of its eight ranks we take four, divided alike: ranks 0 and 1 encode half of the batch each (E in the picture), rank 2 fuses (F), and rank 3 has the output heads (H). Computing and links are paced. On one rank, forward and backward take 120 ms for the encoders, 60 for the fusion and 30 for the heads. A message takes 4 ms, and its bytes pass at 5 MB/s. Look at what the other ranks do while one computes.

# %%
apart = case_studies.Perception(placement="apart")
lab.show(apart.predict(), title="Apart, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# Do you see the staircase? The fusion needs the encoders, the heads need the fusion, and backward climbs back up. So only one group computes at a time, and the others wait.
#
# The pink strips are all-reduces. Four of them hand on features or their gradients: whoever has some puts them in, the others zeros, and the sum goes to all. So all ranks join, and mostly wait. The last three, on ranks 0 and 1, are for gradients of the encoders' weights.
#
# ### Two other ways
#
# All ranks can compute at the same time, if each gets a part of the batch:
#
# - *Copied*: each rank has the whole net, as in DDP, and takes a quarter of the batch. Only weight gradients travel, in one message of 57.7 kB.
# - *Together*: encoders and heads are copied, but the fusion is cut in four (tensor parallel). So features travel too, in four messages with 139 kB in all, and weight gradients in four more, with 41 kB.
#
# By the prediction, how many steps *together* fit into one step *apart*, the textbook's way?

# %%
groups = lab.guess("steps together in one step apart", between=(0.2, 5))

# %%
steps = case_studies.placements()
placed_us = {name: step.step_us() for name, step in steps.items()}
apart_us, together_us, copied_us = placed_us.values()
groups.score(apart_us / together_us)

# %%
title = {"title": "A step on four ranks, to scale", "badge": "predicted"}
lab.bars(placed_us, unit="us", **title)

# %% [markdown] sections="19.6.1, 19.6.2"
# *Apart* is the slowest because of the turns that its groups take: 120 / 2 + 60 + 30 = 150 ms. The two other ways keep all four ranks busy: (120 + 60 + 30) / 4 = 52.5 ms.
#
# These two differ in their messages: the eight of *together* take 8 x 4 + 180 / 5 = 68 ms, and the one of *copied* 4 + 57.7 / 5 = 15.5 ms.
#
# ### Do real ranks agree?
#
# All three run on four real ranks, for four steps each, at a third of the pace, so that the delays of real processes weigh less. The pace is stated, so we test only these delays and the order. "measured" is the fastest step, which was disturbed least. Compare the order and the delays.

# %%
lab.table(case_studies.placed(slowed=3))

# %% [markdown] sections="19.6.1, 19.6.2"
# In our runs the order was as predicted. *Together* was furthest off: it has the most messages, and ranks wait at each.
#
# **Verdict.** Groups with a part each take turns, unless microbatches make a pipeline of them (chapter 08). So if the net fits on each rank, copy all of it. If one part is too large, cut that part, as *together* does. But with many more weights *copied* may become the slower of these two, so count the bytes first.

# %% [markdown] sections="19.6.3"
# ## Case 4: a policy for each kind of layer
#
# **Question.** Suppose that case 3's fusion is too large for one rank, so that we need *together*. Its weight gradients are four messages, one for each kind of layer: convolutions, linear layers, norms and output heads. Should they all travel alike? How they travel is a **policy**. The textbook advises "per layer", and we compare it with three simpler ones:
#
# | policy | how gradients travel | bytes |
# | --- | --- | --- |
# | plain | all exactly | 41 kB |
# | fp16 | all as fp16 | a half |
# | per layer | convolutions and heads exactly, linear layers by top-k, norms late | about a third |
# | top-k all | all by top-k | an eighth |
#
# Top-k sends only the largest sixteenth of the gradients (chapter 11), in two messages: one has their values, one their places. "Late" means that a norm sends no gradients, and its weights are averaged every fourth step.
#
# So that 48 steps take only seconds, a step has 21 ms of computing (in case 3 it was 52.5), a message takes 3 ms (it was 4), and bytes pass at 10 MB/s (it was 5), so features take 26 ms. Which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
choices = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=choices)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %% [markdown] sections="19.6.3"
# "messages" is 3 ms for each message of gradients, and "bytes" is what carrying them takes. The last bar sends all gradients exactly, but in one message. Compare these two parts, at the right end of each bar.

# %%
parts = case_studies.policy_parts()
title = {"title": "A step, link of 10 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# The policy with the fewest bytes is the slowest. These layers are so small that starting messages takes longer than carrying bytes: for "plain", 12 ms against 4.1 ms. Top-k saves most of the 4.1 ms, but its additional messages cost 12 ms. So save messages, which the last bar does without touching a gradient.
#
# ### Which policy, then?
#
# We recorded 48 steps with each policy on four real ranks, to see whether they agree and still learn. "measured" is the median step, and "last loss" the mean of the last eight.
#
# | policy | step, predicted | step, measured | last loss |
# | --- | --- | --- | --- |
# | plain | 63.1 ms | 98.5 ms | 0.500 |
# | fp16 | 61.0 ms | 95.7 ms | 0.498 |
# | per layer | 61.1 ms | 102 ms | 0.535 |
# | top-k all | 71.4 ms | 132 ms | 0.515 |
#
# The steps took 56 to 85 % longer than predicted, far more than in case 3, where we slowed the pace. Top-k of everything was the slowest here too, but 33.5 ms behind plain, not 8.3: real processes delay each message. The other three lie too close for an order, and one run can't tell whether a loss of 0.535 is worse than 0.500. `lab.table(case_studies.policies())` shows yours.
#
# **Verdict.** The advised policy gained nothing that we could measure. Before you compress, count what takes your link longer, messages or bytes, and send less of that. Then run it: our single message was only predicted.

# %% [markdown] sections="19.6.3"
# ### Exercise 2. A policy
#
# Let us count for 1,000 weights. A message takes 3 ms, and 1 MB/s pass, which is 1,000 bytes a millisecond. As fp16 the gradients are one message of 2,000 bytes, 3 + 2 = 5 ms. By top-k they are two, each with 4 bytes for a sixteenth of the weights, which is 250 bytes: 2 x (3 + 0.25) = 6.5 ms. With ten times the weights fp16 takes 23 ms and top-k 2 x (3 + 2.5) = 11 ms, so now top-k is quicker.
#
# Your function gets the weights of each kind of layer, and a link: a message takes `latency_ms`, and a millisecond more for each 1,000 x `mb_per_s` bytes. It returns the quickest way for each kind. Messages go one after the other, and aren't joined, as each kind may travel in its own way.
#
# | way | messages of a kind | bytes of each message |
# | --- | --- | --- |
# | "exact" | 1 | 4 a weight |
# | "fp16" | 1 | 2 a weight |
# | "top-k" | 2 | 4 x weights / 16 |
#
# Which of the three never wins? And from how many weights on is top-k quicker than fp16? The check tries three links, and trains once to see that the loss still falls.


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
# **Question.** What if you only have cards of 24 GB, bought for games (RTX 4090)? All weights of LLaMA 7B are to be trained, on 64 sequences of 1,024 tokens a step, with Adam and the gradients on the host if need be. A layout fits if it leaves a tenth of each card free. How few cards will do?

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fewest = min(row["cards"] for row in clusters if row["fit"])
small_cluster.score(str(fewest))

# %% [markdown] sections="10.7.5"
# "fit" counts the layouts that fit. "layout" is the fastest of them, else the lightest. "held" is what its fullest card holds, "over" how much that is more than nine tenths of a card, and "token rate" the tokens a second of all cards together. First compare the rows with Adam on the card.

# %%
lab.table(clusters)

# %% [markdown] sections="10.7.5"
# With everything on it, a single card would have to hold 125 GB, mostly Megatron-LM's 18 bytes for each of 6.7 billion parameters. (FSDP's 16, planned only where there is something to shard, wouldn't fit either.) Only eight cards have room for Adam. But with Adam on the host one card will do.
#
# ### How does it fit on one?
#
# Look at the first bar: which states are left?

# %%
lab.show(case_studies.drawn(case_studies.small.cases()))

# %% [markdown] sections="10.7.5"
# Only the weights are left: 2 bytes for each of 6.7 billion parameters are 13.5 GB. Adam lies on the host, and DeepSpeed ("ZeRO 3") moves the gradients there too, after each microbatch. "gathered for a while" is a copy of the layers that are being computed.
#
# A small run of DeepSpeed agrees: with Adam on the host, one pretend device kept 2.1 bytes a parameter (recorded). In exchange the host has 6 of gradients and 12 of Adam, 121 GB in all.
#
# ### What does that cost?
#
# The price is time, so go back to the token rates. One card has room for 4 sequences at a time, and then sends all gradients to the host. Two cards hold half of the weights each, so each takes 16 at a time. Gradients travel less often, and each card sends only half of them, so two do more than twice as much.
#
# On four cards the pipeline of Megatron-LM fits, and its gradients cross to the host only once a step. Eight cards without the host are hardly faster: the fastest layout that fits also cuts each layer in two (`tp` 2).
#
# Believe only the large differences: we assume that these cards reach A100's shares of their peak, and we didn't measure the links.
#
# ### So what do you do?
#
# **Verdict**, by the number of cards:
#
# | cards | what to do |
# | --- | --- |
# | 1 | DeepSpeed: Adam and gradients on the host, recomputation, as large a microbatch as fits. If the host is too small, or it takes too long, freeze the weights and train only small new matrices beside them (adapters). |
# | 2 | The same, now in shards, with a larger microbatch. |
# | 4 | Megatron-LM: Adam on the host, and four stages. |
# | 8 | All on the cards, if the measured memory allows it. Else Adam on the host. |
#
# Before a long training, count on a small model that two ranks keep half of the states each, as `lab.table(case_studies.ran())` does.

# %% [markdown]
# ## Summary
#
# - You count the states first, because no smaller batch will cure what is too much there.
# - You can test a plan by a small run that counts what each rank keeps, as it showed the Trainer's whole gradients.
# - Where two layouts are close, their programs may decide, so you measure both.
# - You see in a picture when groups of ranks take turns, and copy the net or cut it instead.
# - Before you compress, you count messages too, since the fewest bytes may be the slowest way.
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
