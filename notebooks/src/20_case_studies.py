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
# A textbook prints a script that trains all weights of LLaMA 13B on four cards of 40 GB, and calls it complete. The script is meant to shard everything, computes in bf16, and keeps only the input of each layer. Does that fit? In the picture the bar is what each card would hold, and the line is what it has.

# %%
import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# It doesn't fit: each card would have to hold 59 GB, which is 19 GB too much. Nothing has run yet: the bar is a prediction by chapter 18's planner. The five cases:
#
# - [Case 1](#case-1): what makes that script fit?
# - [Case 2](#case-2): is a layout slow, or the program that runs it?
# - [Case 3](#case-3): should each part of a net have ranks of its own?
# - [Case 4](#case-4): should each kind of layer send gradients in its own way? (with case 3's net)
# - [Case 5](#case-5): how few small cards can train 7 billion weights?
#
# **Each case can be read alone** after the cell above, except that case 4 goes on from case 3. Small runs can confirm what ranks keep, and which way is faster at stated times, but not a GPU's seconds.
#
# **When you are done** you can judge a plan before anything is rented, and you know what to try small first.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# <a id="case-1" style="scroll-margin-top: 5rem"></a>**Question.** What has to change so that the model fits? These are the lines that count, for Hugging Face's Trainer with FSDP:
#
# ```python
# TrainingArguments(
#     per_device_train_batch_size=2, gradient_accumulation_steps=16, bf16=True,
#     gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# So in a step the four cards see 2 x 16 x 4 = 128 sequences. We assume that each has 1,024 tokens.
#
# The usual advice is a quarter of the tokens at a time, one sequence of 512. How many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB saved by taking only a quarter of the tokens", between=(0, 20))

# %%
cures = case_studies.llama.cures()
saved.score((case.held_bytes - cures[1].held_bytes) / 1e9)

# %% [markdown] sections="8.10"
# It saves next to nothing, 1.1 GB. Fewer tokens only shrink activations and logits, and the script already keeps few of those. What fills the cards are the states: FSDP keeps weights, gradients and Adam's two moments in fp32, which is 4 + 4 + 8 = 16 bytes a parameter. For 13 billion parameters on four cards that is 52 GB on each, whatever the batch.
#
# ### Plan: what would cure it?
#
# So a cure has to change the states or the cards: bf16 for all states, Adam on the host, eight cards, and cards of 80 GB. Since planned memory was about 5 % off in chapter 19, a layout **fits** on this page only if it leaves a tenth of its card free. By the plan, how many of the four fit?

# %%
fitting = lab.guess(
    "how many of the four fit, by the plan", choices=("0", "1", "2", "3", "4")
)

# %%
fit = [cure.held_bytes < 0.9 * cure.plan.cluster.device_bytes for cure in cures]
fitting.score(str(sum(fit[2:])))

# %% [markdown] sections="8.10"
# A bar fits if it ends left of its dashed line. Compare the states, which are blue, orange and green, with the first row's.

# %%
lab.show(case_studies.drawn(cures))

# %% [markdown] sections="8.10"
# By the plan all four fit, and each has its price. More or larger cards cost money. bf16 halves the states, but it keeps only two to three digits, so a small update is rounded away (chapter 05).
#
# Adam on the host only moves the problem. DeepSpeed, which we take for that, leaves 2-byte weights on the card. The host gets gradients in bf16 and fp32, 6 bytes a parameter, and 12 more for Adam's moments and weights in fp32. For 13 billion that is 18 x 13 = 234 GB.
#
# ### Run: the same script, small
#
# The plan takes it for granted that everything is sharded. Does the real Trainer do that? We give the script a Llama of two layers and two real ranks, for up to a minute. If everything is sharded, a rank keeps half of the weights. For what share of them does it keep gradients between two microbatches?

# %%
whole = lab.guess("share of the weights that a rank has gradients of", between=(0, 1))

# %%
ran = case_studies.trained_by()
whole.score(ran[0]["gradients"] / ran[0]["weights"])

# %% [markdown] sections="8.10"
# ### What a rank keeps
#
# Here are three runs: by FSDP, by FSDP with one line more, and by DeepSpeed's ZeRO 3. "kept" says how many of the "weights" stay on one rank, "gradients" for how many it keeps gradients, and "type" is their dtype.

# %%
lab.table(ran)

# %% [markdown] sections="8.10"
# ### One line is missing
#
# All three end at the same loss, but the Trainer doesn't shard everything: every row halves the weights, but in the first row a rank has gradients of *all* of them. To save messages, it adds gradients up only with the last microbatch of a step (`no_sync`, chapter 03). Until then each rank keeps its own part of every sum.
#
# Our plans counted only a shard. By the same rule each card keeps 2 bytes for all 13 billion, which is 26 GB, however many cards there are. By hand, in GB:
#
# | change | planned | shard of gradients | whole gradients | so a card holds |
# | --- | --- | --- | --- | --- |
# | as written | 59.4 | 13 | 26 | 72.4 |
# | eight cards, or bf16 | 33.4 | 6.5 | 26 | 52.9 |
#
# Now neither eight cards of 40 GB nor bf16 will do. Cards of 80 GB only just miss our tenth: 72.4 GB are more than 72. What helps is the line of the run's second row:
#
# ```python
# accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}
# ```
#
# With it the ranks add up after each microbatch, and keep only their shards, in fp32 as planned. (Whole gradients were bf16, so 16 microbatches were added up with its rounding.) The price is that gradients travel 16 times a step in place of once. DeepSpeed does this by itself: in the last row each rank keeps only its shard (here in bf16).
#
# <details><summary>What does labkit advise for this script?</summary>
#
# `proof = case_studies.mended()` records it at this size, with stated times for reading and computing. A third of a step waits for data. So labkit advises to read ahead, and `dataloader_num_workers=1` follows the advice. In our run a step took three tenths less time, where a quarter was predicted. `proof` shows yours.
#
# </details>

# %% [markdown] sections="8.10"
# ### Which layout is the fastest?
#
# *A place to rest: what fits is answered.*
#
# Once it fits, we want it fast. On cards of 80 GB we compare four stages, ZeRO 3, and each layer cut in four (`tp` 4). FSDP runs ZeRO 3, with the line above, and the plan counts the messages that this line adds. Megatron-LM runs the other two, and keeps 18 bytes a parameter: 6 of weights and gradients, 12 of Adam. All take one sequence at a time, and recompute nothing.
#
# "constants of" names the program whose speed was assumed.

# %%
four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
mine = (four.but(pp=4), four.but(zero=3), four.but(tp=4, sp=True))
lab.table(plan.row() for plan in mine)

# %% [markdown] sections="8.10"
# By the plan four stages are the fastest. ZeRO 3 takes a fifth longer, which may be its program's doing (case 2). `tp` 4 takes 43 % longer; there the cards exchange messages in every layer.
#
# ### And on four cards of 40 GB?
#
# There Adam goes to the host: in four stages by Megatron-LM, by DeepSpeed with the script's 2 x 16 sequences on each card, and by DeepSpeed with 16 x 2. "host" is what lies there. "step" counts its part too, at a speed that we only assume.

# %%
stages = four.but(gpu="A100 40 GB", pp=4, offload="optimizer")
sharded = cures[3].plan
lab.table(case_studies.llama.with_host([stages, sharded, sharded.but(mbs=16)]))

# %% [markdown] sections="8.10"
# With the script's 2 x 16 sequences DeepSpeed takes almost twice as long as the stages, mostly since gradients go to the host after each of 16 microbatches. With 16 sequences at a time they go there twice a step. Then DeepSpeed takes only 41 % longer, partly because it recomputes.
#
# **Verdict**, by the cards that you have:
#
# | cards | what to do | a card then holds |
# | --- | --- | --- |
# | eight of 40 GB | add the missing line | 33.4 GB |
# | four of 80 GB | add the line; measure ZeRO 3 without recomputation, and four stages | 65.0 and 69.8 GB |
# | four of 40 GB | put Adam on the host, in four stages or by DeepSpeed with 16 x 2 | 29.8 and 24.3 GB |
#
# We don't take bf16 for all states, because it rounds small updates away. To run the last row by DeepSpeed, give the Trainer `deepspeed=` with a file in place of `fsdp=`. The file gets the batch by "auto" (chapter 06):
#
# ```python
# "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
# "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
# "bf16": {"enabled": "auto"},
# ```

# %% [markdown] sections="8.10"
# ### Exercise 1. Four cards
#
# By hand, four stages have 18 x 13 / 4 = 58.5 GB of states on average, too many for 40 GB. Without Adam 6 x 13 / 4 = 19.5 GB remain. All else makes it the table's 29.8 GB, and nine tenths of the card are 36 GB.
#
# Now find a rule for all cards. Your function gets a card ("A100 80 GB", "A100 40 GB" or "A10G 24 GB") and the tokens of a sequence (512, 1,024 or 4,096). It returns a layout for LLaMA 13B on four such cards: a dict with some of `tp`, `sp`, `pp`, `zero`, `mbs` (1, 2, 4, 8 or 16), `recompute` ("full") and `offload` ("optimizer").
#
# - A tenth of the card stays free.
# - Adam goes to the host only where it has to.
# - The step (`plan.time().step_us`) is at most a quarter longer than the fastest that keeps these two rules. If it is longer, the check tells you the fastest. The host's part isn't counted, as its speed is only assumed.
#
# Write down three or four layouts in the order of trying. `plan = four.but(gpu=card, seq=seq, ...)` plans one, `plan.memory().peak_bytes` is what its fullest card holds, of `plan.cluster.device_bytes`. Try first: do four stages still fit on 80 GB with 4,096 tokens?


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
# <a id="case-2" style="scroll-margin-top: 5rem"></a>**Question.** When one layout is slower than another, is that the layout's doing, or that of the program that runs it? We want a model of 10 billion parameters that tells stories, and train it on one machine with eight A100 of 80 GB. A step has 512 sequences of 2,048 tokens.
#
# We compare three layouts: shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), and eight stages (`pp` 8). To see the layouts alone, we plan as if Megatron-LM ran all three. First, do they fit?

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
machine = {"gpu": "A100 80 GB", "gpus": 8}
megatron = {"stack": "megatron-a100", "recipe": "megatron"}  # its 18 bytes
story = planner.Plan(model=shape, **machine, batch=512, seq=2048, **megatron)
cuts = {"ZeRO 3": story.but(zero=3), "tp 8": story.but(tp=8, sp=True)}
cuts["pp 8"] = story.but(pp=8)
lab.show(planner.memory_bars(cuts))

# %% [markdown] sections="10.6.2"
# They do. Now think of what each of them waits for in a step. Which is the fastest?

# %%
quickest = lab.guess("the fastest for 10 B on eight cards", choices=tuple(cuts))

# %%
steps_us = {name: plan.time().step_us for name, plan in cuts.items()}
quickest.score(min(steps_us, key=steps_us.get))

# %% [markdown] sections="10.6.2"
# Where does each spend its step? The fourth bar is ZeRO 3 once more, by FSDP's own constants. Compare its blue part with that of the first bar.

# %%
by_fsdp = story.but(zero=3, stack="fsdp-a100", recipe="fp32")  # 16 bytes
lab.show(planner.time_bars(cuts | {"ZeRO 3, FSDP": by_fsdp}))

# %% [markdown] sections="10.6.2"
# Bar by bar:
#
# - ZeRO 3 is the fastest of the first three, because its GPUs share the work evenly and its messages mostly hide: the weights of the next layer arrive while this one still computes.
# - `pp` 8 has 48 layers to cut, and an output layer that takes as long as one. So one of the eight stages has the work of 7, and the others wait for it. Cutting into whole layers costs 4.6 of the 5.2 s that `pp` 8 is behind ZeRO 3.
# - `tp` 8 waits for messages in every layer, and narrow pieces use a card less well (the blue part).
# - FSDP's ZeRO 3 does the same work, but by its constants a matrix product reaches at most 63 % of the cards' peak, and by Megatron's 79 %.
#
# So is it the layout or the program? In the plan both count: by the same constants the pipeline takes 13 % longer than ZeRO 3, and by FSDP's own ZeRO 3 takes 7 % longer. As planned times may be 20 % off (chapter 18), only runs can settle which is ahead. (FSDP's constants come from runs with shards, Megatron's from cut models, so even the plan doesn't quite separate the two.)
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
# <a id="case-3" style="scroll-margin-top: 5rem"></a>**Question.** A car has a camera, a LiDAR and a radar. Each has an encoder that makes features of what it sees. A [fusion](GLOSSARY.md#fusion) mixes them, and two output heads say where things are. A textbook gives each part of this net to ranks of its own. Is that a good idea?
#
# We try it on four ranks: 0 and 1 encode half of the batch each (E in the picture), rank 2 fuses (F), and rank 3 has the heads (H). Look at what the others do while one computes.

# %%
# so slow that delays of real processes weigh little
apart = case_studies.Perception(placement="apart").slowed(3)
lab.show(apart.predict(), title="Apart, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# Do you see the staircase? The fusion needs the encoders, the heads need the fusion, and backward climbs back up. So only one group computes at a time, and the others wait, mostly in the all-reduce by which results are handed on (pink).
#
# ### Two other ways
#
# All ranks can compute at the same time, if each gets a part of the batch or of a layer:
#
# - *Copied*: each rank has the whole net and a quarter of the batch, as in DDP. Only gradients travel, in one message.
# - *Together*: only the fusion is cut in four (tensor parallel), all else is copied. A rank's part of the fusion needs the whole batch, so features travel in four messages, and gradients in four more.
#
# On one rank alone the encoders take 360 ms, the fusion 180 and the heads 90, forward and backward. A message takes 12 ms, and 0.6 ms more for each kB. *Together* sends 180 kB in all.
#
# By the prediction, how many steps *together* fit into one step *apart*, the textbook's way?

# %%
groups = lab.guess("steps together in one step apart", between=(0.2, 5))

# %%
steps = case_studies.placements()
placed_us = {name: step.step_us() for name, step in steps.items()}
apart_us, together_us, copied_us = placed_us.values()
groups.score(apart_us / together_us)

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Do real ranks agree?
#
# Computing and messages of these real ranks last at least as long as stated. So the run tests their order. "measured" is the fastest of four steps, which was disturbed least.

# %%
lab.table(case_studies.placed(slowed=3))

# %% [markdown] sections="19.6.1, 19.6.2"
# In our runs they agreed. The reason can be counted by hand:
#
# | placement | computing | messages |
# | --- | --- | --- |
# | apart | 360 / 2 + 180 + 90 = 450 ms | 7 x 12 + 175.6 x 0.6 = 189 ms |
# | together | (360 + 180 + 90) / 4 = 157.5 ms | 8 x 12 + 180 x 0.6 = 204 ms |
# | copied | the same | 12 + 57.7 x 0.6 = 46.6 ms |
#
# *Apart* computes for so long because its groups take turns. The two others share the work evenly, but *together* sends eight messages, while *copied* joins its gradients in one. (With its gradients joined too, *together* would save 36 ms, and still be behind.)
#
# **Verdict.** As it stands it isn't a good idea. (Microbatches would make a pipeline of them, chapter 08; we didn't run that.) If the net fits on each rank, copy it. If one part is too large, cut that part, as *together* does. But count first: many more weights may make *copied* the slower one. If only the fusion grows, from how many kB of gradients on?
#
# <details><summary>Answer</summary>
#
# Its one message must take longer than 204 ms: 12 + 0.6 x = 204 gives x = 320 kB, where now it is 57.7. *Together* still takes 204 ms, since each rank keeps its quarter of the fusion, whose gradients don't travel.
#
# </details>

# %% [markdown] sections="19.6.3"
# ## Case 4: a policy for each kind of layer
#
# <a id="case-4" style="scroll-margin-top: 5rem"></a>**Question.** Suppose that case 3's fusion is too large for one rank, so that we need *together*. Its weight gradients are four messages, one for each kind of layer: convolutions, linear layers, norms and output heads. Should each kind travel in its own way? How they travel is a **policy**. The textbook advises "per layer":
#
# | policy | how gradients travel | bytes |
# | --- | --- | --- |
# | plain | all exactly | 41 kB |
# | fp16 | all as fp16 | a half |
# | per layer | convolutions and heads exactly, linear layers by top-k, norms late | about a third |
# | top-k all | all by top-k | an eighth |
#
# Top-k sends only the largest sixteenth of the gradients (chapter 11), in two messages: values and places. "Late" means that a norm's weights are averaged every fourth step, in place of gradients.
#
# Two things are quicker than in case 3: computing takes 21 ms of a step, where it took 157.5, and the link takes 3 ms a message and carries 10 MB/s. Which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
choices = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=choices)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %% [markdown] sections="19.6.3"
# ### Messages or bytes?
#
# Compare the two parts at the right end of each bar: "messages" is 3 ms for each message of gradients, and "bytes" is what carrying them takes. The last bar sends all gradients exactly, but in one message.

# %%
parts = case_studies.policy_parts()
title = {"title": "A step, link of 10 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# The policy with the fewest bytes is the slowest. For "plain" four messages take 12 ms, and their bytes 4.1 ms. "top-k all" saves most of the 4.1 ms, but needs eight messages, 12 ms more. "per layer" needs 1 + 1 + 2 + 1/4 messages a step, 4.25 x 3 = 12.8 ms. So here you should save messages, as the last bar does.
#
# We recorded 48 steps with each policy on four real ranks. "top-k all" was the slowest there too, 33.5 ms behind "plain", where 8.3 were predicted: messages were delayed or choosing the largest took time, and we didn't measure which. The other three were too close for an order, and all four learned nearly alike. `lab.table(case_studies.policies())` shows yours.
#
# **Verdict.** For this net on this link they needn't travel in different ways: the advised policy gained nothing that we could measure. Here a message takes as long as 30 kB, so messages count. With megabytes of gradients bytes would. So before you compress, count both, and save what takes your link longer. (Our single message was only predicted.)

# %% [markdown] sections="19.6.3"
# ### Exercise 2. Shared messages
#
# Now let kinds that go the same way share their messages:
#
# | way | messages | bytes of each message |
# | --- | --- | --- |
# | "exact" | 1 | 4 a weight |
# | "fp16" | 1 | 2 a weight |
# | "top-k" | 2 | 4 x weights / 16 |
#
# Let us count for two kinds. A message takes 3 ms, and the link carries 1 MB/s, which is 1,000 bytes a millisecond. A kind of 1,000 weights takes 3 + 2 = 5 ms as fp16, and 2 x (3 + 0.25) = 6.5 ms by top-k. A kind of 10,000 weights takes 23 ms as fp16, and 2 x (3 + 2.5) = 11 ms by top-k. If each goes its quickest way, that is 5 + 11 = 16 ms. But there is a policy that takes only 11.5 ms. Which?
#
# Your function gets the weights of each kind of layer, and a link: a message takes `latency_ms`, and a millisecond more for each 1,000 x `mb_per_s` bytes. It returns a way for each kind, so that all messages, one after the other, are over soonest. Choosing the largest costs nothing here. The check tries three links, and trains once to see that the loss still falls.


# %%
def my_policy(weights, latency_ms, mb_per_s):
    """{kind of layer: way} for weights such as {"linear": 7520, ...}."""
    ### BEGIN SOLUTION
    total_ms = sum(weights.values()) / (1e3 * mb_per_s)  # for a byte a weight
    as_fp16 = latency_ms + 2 * total_ms
    as_top_k = 2 * (latency_ms + 4 / 16 * total_ms)  # one kind there: then all
    return dict.fromkeys(weights, "top-k" if as_top_k < as_fp16 else "fp16")
    ### END SOLUTION


# %%
check.policy(my_policy)

# %%
check.hint("policy")

# %% [markdown] sections="19.6.3"
# <details><summary>When you have solved it: can a mix of ways win?</summary>
#
# No. Once one kind goes by top-k, its two messages are paid for, and each other kind is cheaper there too. So with joined messages only the number of all weights and the link decide, and not the kind of layer.
#
# </details>

# %% [markdown] sections="10.7.5"
# ## Case 5: 7 B on one to eight small cards
#
# <a id="case-5" style="scroll-margin-top: 5rem"></a>**Question.** What if you only have cards of 24 GB, bought for games (RTX 4090), that talk to each other over PCIe, at 32 GB/s at best? All weights of LLaMA 7B are to be trained, on 64 sequences of 1,024 tokens a step, if need be with Adam and gradients on the host. A tenth of each card stays free. How few cards will do?

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
# With Adam on the host one card will do. With Adam on the cards four are too few, and eight are just enough. Almost all of the 125 GB on a single card are Megatron-LM's 18 bytes for each of 6.7 billion parameters.
#
# ### How does it fit on one?
#
# Look at the first bar: which states are left?

# %%
lab.show(case_studies.drawn(case_studies.small.cases()))

# %% [markdown] sections="10.7.5"
# Only the weights are left: 2 bytes for each of 6.7 billion parameters are 13.5 GB. Adam lies on the host, and DeepSpeed ("ZeRO 3") moves the gradients there too, after each microbatch. So the host holds 121 GB.
#
# ### What does that cost?
#
# The price is time, so go back to the token rates. One card has room for 4 sequences at a time, and then sends all gradients to the host. Each of two cards has room for 16, and sends only half of the gradients, so two do more than twice as much.
#
# On four cards the pipeline of Megatron-LM fits, and its gradients go to the host only once a step. Eight cards without the host are hardly faster than eight with it. Believe only the large differences: we assume that these cards reach A100's shares of their peak, and how fast the host is. (Adam in 8 bits would keep 2 bytes of moments in place of 8. Our planner doesn't know it.)
#
# ### So what do you do?
#
# **Verdict**, by the number of cards:
#
# | cards | what to do |
# | --- | --- |
# | 1 | DeepSpeed: Adam and gradients on the host (121 GB of its memory), recomputation, as large a microbatch as fits. If that won't do, train only small new matrices beside the weights (adapters). |
# | 2 | The same, now in shards, with a larger microbatch. |
# | 4 | Megatron-LM: Adam on the host, and four stages. |
# | 8 | A tie in speed. All on the cards needs no host memory, so take that if the measured memory allows it. |
#
# Before a long training, `lab.table(case_studies.ran())` counts on a small model, in shards by FSDP, that two ranks keep half of the states each.

# %% [markdown]
# ## Summary
#
# - You count the states first, because no smaller batch will cure what is too much there.
# - You test a plan by a small run that counts what each rank keeps.
# - Where two layouts are close, their programs may decide, so you measure both.
# - You see in a picture when groups of ranks take turns, and copy or cut the net instead.
# - Before you compress, you count messages and bytes: the fewest bytes may be the slowest way.
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
