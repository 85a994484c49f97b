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
# *Five cases of 10 to 30 minutes each; read those that concern you. No GPU is needed.*
#
# A textbook prints a script that trains all weights of LLaMA 13B on four cards of 40 GB, and calls it complete. The script is meant to shard everything, computes in bf16, and keeps only the input of each layer. Does that fit? The bar is what each card would hold, and the line is what it has.

# %%
import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# It doesn't fit: each card would have to hold 59 GB, which is 19 GB too much. The bar is a prediction by chapter 18's planner, and nothing has run yet. The five cases ask:
#
# - [Case 1](#case-1): what makes that script fit?
# - [Case 2](#case-2): is a layout slow, or the program that runs it?
# - [Case 3](#case-3): should each part of a net have ranks of its own?
# - [Case 4](#case-4): should each kind of layer send gradients in its own way?
# - [Case 5](#case-5): how few small cards can train 7 billion weights?
#
# **Each case can be read alone** after the cell above, but case 4 goes on from case 3. Cases 1, 2 and 5 need chapters 03, 05 to 09, 18 and 19; cases 3 and 4 need 03, 08, 09 and 11.
#
# **When you are done** you can judge a plan before anything is rented.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# <a id="case-1" style="scroll-margin-top: 5rem"></a>**Question.** What has to change so that the model fits? These lines count, for Hugging Face's Trainer with FSDP:
#
# ```python
# TrainingArguments(
#     per_device_train_batch_size=2, gradient_accumulation_steps=16, bf16=True,
#     gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# So a step has 2 x 16 x 4 = 128 sequences. We assume 1,024 tokens in each.
#
# The usual advice is a smaller batch, so let us go far: one sequence at a time, cut to 512 tokens. How many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB saved by one sequence of 512 tokens", between=(0, 20))

# %%
script = case.plan
less = script.but(mbs=1, seq=512).memory().peak_bytes
saved.score((script.memory().peak_bytes - less) / 1e9)

# %% [markdown] sections="8.10"
# Fewer tokens only shrink activations and logits, and the script already keeps few of those. The states fill the cards: FSDP keeps weights, gradients and Adam's two moments in fp32, which is 4 + 4 + 8 = 16 bytes a parameter. For 13 billion parameters on four cards that is 52 GB on each, whatever the batch.
#
# ### Plan: what would cure it?
#
# So a cure has to change the states or the cards: bf16 for all states, Adam on the host, eight cards, or cards of 80 GB. Planned memory was about 5 % off in chapter 19, so here a layout **fits** only if it leaves a tenth of its card free. How many of the four fit?

# %%
fitting = lab.guess(
    "how many of the four fit, by the plan", choices=("0", "1", "2", "3", "4")
)

# %%
cures = {
    "bf16 throughout, Adam too": script.but(recipe="bf16"),
    "Adam on the host": script.but(offload="optimizer", recipe="mixed"),
    "eight cards": script.but(gpus=8),
    "cards of 80 GB": script.but(gpu="A100 80 GB"),
}
held = {name: plan.memory().peak_bytes for name, plan in cures.items()}
room = {name: 0.9 * plan.cluster.device_bytes for name, plan in cures.items()}
fitting.score(str(sum(held[name] < room[name] for name in cures)))

# %% [markdown] sections="8.10"
# A layout fits if its bar ends left of the dashed line. Compare its states (blue, orange, green) with the first row's.

# %%
lab.show(planner.memory_bars({"as written": script} | cures, spare=0.1))

# %% [markdown] sections="8.10"
# By the plan all four fit, and each has its price. More or larger cards cost money. bf16 rounds small updates away (chapter 05). With Adam on the host, DeepSpeed keeps 18 bytes a parameter there, which is 18 x 13 = 234 GB.
#
# ### Run: the same script, small
#
# The plan takes it for granted that everything is sharded. Does the real Trainer do so? We give the script a Llama of two layers and two real ranks, so each rank should keep a half. For what share of the weights does it keep gradients between two microbatches?

# %%
whole = lab.guess("share of the weights that a rank has gradients of", between=(0, 1))

# %%
ran = case_studies.trained_by()
whole.score(ran[0]["gradients"] / ran[0]["weights"])

# %% [markdown] sections="8.10"
# ### What a rank keeps
#
# The script ran by FSDP, by FSDP with one line more, and by DeepSpeed's ZeRO 3. "kept" says how many weights stay on one rank, "gradients" for how many it keeps gradients, and "type" in which format it adds those up.

# %%
shown = ("engine", "weights", "kept", "gradients", "type", "last loss")
lab.table({column: row[column] for column in shown} for row in ran)

# %% [markdown] sections="8.10"
# ### One line is missing
#
# In the first row a rank has gradients of *all* weights, so this Trainer (torch 2.13, transformers 5.23, accelerate 1.15) doesn't shard everything. To save messages, ranks add gradients up only with the last microbatch of a step (`no_sync`, chapter 03). Until then each keeps its own sums, whole and in bf16.
#
# <details><summary>Count it in your own Trainer</summary>
#
# FSDP 2 keeps whole gradients in private fields:
#
# ```python
# from torch.distributed.fsdp import FSDPModule
# from transformers import TrainerCallback
#
# class Kept(TrainerCallback):
#     def on_substep_end(self, args, state, control, model=None, **kwargs):
#         sharded = [each for each in model.modules() if isinstance(each, FSDPModule)]
#         groups = {each._get_fsdp_state()._fsdp_param_group for each in sharded} - {None}
#         whole = [each._unsharded_param for group in groups for each in group.fsdp_params]
#         print(sum(each.numel() for each in whole if each.grad is not None))
#
# trainer.add_callback(Kept())
# ```
#
# In our small run it prints 41,632, which is all weights, and 0 with the line.
#
# </details>
#
# Our plans counted only a shard, but each card keeps 2 bytes for all 13 billion, however many cards there are. In GB:
#
# | change | planned | shard of gradients | whole gradients | so a card holds |
# | --- | --- | --- | --- | --- |
# | as written | 59.4 | 13 | 26 | 72.4 |
# | eight cards, or bf16 | 33.4 | 6.5 | 26 | 52.9 |
#
# Now neither eight cards of 40 GB nor bf16 will do, and cards of 80 GB just miss our tenth. The second row's line helps:
#
# ```python
# accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}
# ```
#
# With it the ranks add up after each microbatch and keep only their shards, in fp32. Gradients travel 16 times a step in place of once, but the price is small: the planner counts all these messages, and computing hides all but 0.1 of 19.5 s. DeepSpeed does this by itself, in bf16.
#
# <details><summary>Run it: advice for this script</summary>
#
# `case_studies.mended()` records the small script on two ranks and asks `lab.advise` what makes it slow. Each batch is read only when it is due, so the advice is to read ahead. So it runs the script again with `dataloader_num_workers=1`. In a cell it draws the steps of both runs, and says how much time the advice foretold to save and how much the second run saved. (Seconds of reading and computing are stated.)
#
# </details>

# %% [markdown] sections="8.10"
# ### So what fits?
#
# **Verdict**, by the cards that you have:
#
# | cards | what to do | a card then holds |
# | --- | --- | --- |
# | eight of 40 GB | add the line, and set `gradient_accumulation_steps=8`, so that the batch stays 128 | 33.4 GB |
# | four of 80 GB | add the line (four stages of Megatron-LM are planned faster: exercise 1) | 59.4 GB |
# | four of 40 GB | put Adam on the host: four stages by Megatron-LM, or DeepSpeed with 16 x 2 sequences | 29.8 or 24.3 GB, by the fold's plans |
#
# With the line, bf16 throughout fits there too (33.4 GB), but rounds small updates away.
#
# <details><summary>Plans with Adam on the host</summary>
#
# The planner's step leaves the host out. We add it, and assume that PCIe carries 25 GB/s for each card, and that the host's memory moves 200 GB/s for all:
#
# | layout on four cards of 40 GB | a card holds | on the host | step | of which the host |
# | --- | --- | --- | --- | --- |
# | four stages, Megatron-LM | 29.8 GB | 156 GB | 15.9 s | 2.7 s |
# | DeepSpeed, 2 x 16 sequences | 13.9 GB | 234 GB | 30.5 s | 11.1 s |
# | DeepSpeed, 16 x 2 | 24.3 GB | 234 GB | 22.4 s | 3.8 s |
#
# With 2 x 16 sequences DeepSpeed sends gradients to the host after each of 16 microbatches, with 16 x 2 only twice. That is 7.3 of the 8.1 s between them. On the host DeepSpeed keeps gradients in bf16 and fp32, Adam's moments, and weights in fp32.
#
# For DeepSpeed, give the Trainer `deepspeed=` with a file in place of `fsdp=`. The file gets the batch by "auto" (chapter 06):
#
# ```python
# "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
# "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
# "bf16": {"enabled": "auto"},
# ```
#
# </details>

# %% [markdown] sections="8.10"
# ### Exercise 1. Four cards
#
# Find a rule for all cards. Your function gets a card ("A100 80 GB", "A100 40 GB" or "A10G 24 GB") and the tokens of a sequence (512, 1,024 or 4,096). It returns a layout for LLaMA 13B on four such cards: a dict with some of `tp`, `sp`, `pp`, `zero`, `mbs` (1, 2, 4, 8 or 16), `recompute` ("full") and `offload` ("optimizer"). Here `zero` 3 means FSDP with case 1's line, or DeepSpeed with `offload`; all else means Megatron-LM, with 18 bytes a parameter, 12 of them Adam's.
#
# - A tenth of the card stays free.
# - Adam goes to the host only where nothing fits without.
# - The step (`step_us`, without the host's part, to keep it simple) is at most a quarter longer than the fastest that keeps these two rules. If yours is longer, the check shows both times.
#
# The cell below compares two layouts on 80 GB, of which nine tenths are 72. Write down three or four in the order in which you try them. Try first: do four stages still fit with 4,096 tokens (`four.but(pp=4, seq=4096)`)?


# %%
four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
tried = {"ZeRO 3": four.but(zero=3, mbs=4, recompute="full"), "pp 4": four.but(pp=4)}
held_bytes = {name: plan.memory().peak_bytes for name, plan in tried.items()}
step_us = {name: plan.time().step_us for name, plan in tried.items()}
lab.table(
    {"layout": name, "held_bytes": held_bytes[name], "step_us": step_us[name]}
    for name in tried
)


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
# <a id="case-2" style="scroll-margin-top: 5rem"></a>**Question.** When one layout is slower than another, is that the layout's doing, or that of the program that runs it? Take a model of 10 billion parameters on one machine with eight A100 of 80 GB, and 512 sequences of 2,048 tokens a step. We compare shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), and eight stages (`pp` 8). To see the layouts alone, we plan as if Megatron-LM ran them all. Does each fit?

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
machine = {"gpu": "A100 80 GB", "gpus": 8}
megatron = {"stack": "megatron-a100", "recipe": "megatron"}  # its 18 bytes
story = planner.Plan(model=shape, **machine, batch=512, seq=2048, **megatron)
cuts = {"ZeRO 3": story.but(zero=3), "tp 8": story.but(tp=8, sp=True)}
cuts["pp 8"] = story.but(pp=8)
{name: plan.fits for name, plan in cuts.items()}

# %% [markdown] sections="10.6.2"
# They all fit. Now think of what each waits for in a step. Which is the fastest?

# %%
quickest = lab.guess("the fastest for 10 B on eight cards", choices=tuple(cuts))

# %%
steps_us = {name: plan.time().step_us for name, plan in cuts.items()}
quickest.score(min(steps_us, key=steps_us.get))

# %% [markdown] sections="10.6.2"
# The fourth bar is ZeRO 3 once more, by FSDP's own constants. Compare its blue part with that of the first bar.

# %%
by_fsdp = story.but(zero=3, stack="fsdp-a100", recipe="fp32")  # 16 bytes
lab.show(planner.time_bars(cuts | {"ZeRO 3, FSDP": by_fsdp}))

# %% [markdown] sections="10.6.2"
# ### Layout or program?
#
# By Megatron's constants ZeRO 3 is 13 % ahead of the pipeline, and by FSDP's 7 % behind. Both gaps lie within the 20 % by which planned times may be off (chapter 18). So **the plan can't tell which of the two is faster**. Bar by bar:
#
# - ZeRO 3 shares the work evenly, and the next layer's weights mostly arrive while this one computes.
# - `pp` 8 has 48 layers to cut, and an output layer that takes as long as one. So one stage has the work of 7, and the others wait for it: the blue part is that of the slowest stage.
# - `tp` 8 waits for messages in every layer, and narrow pieces use a card less well.
# - FSDP's ZeRO 3 does the same work, but by its constants a matrix product reaches at most 63 % of the cards' peak, by Megatron's 79 %. Each share was fitted to the program's usual layouts, so it takes in whatever slowed those: the plan can't separate layout and program.
#
# **Verdict.** Measure ZeRO 3 by FSDP and the pipeline by Megatron-LM, as you would run them. To learn whether it's the layout, let one program run both. `tp` 8 is too far behind.
#
# <details><summary>The textbook's own story models</summary>
#
# It puts Adam on the host for 5 B, and recomputes everything for 20 B. On A100 of 40 GB neither is needed (for 5 B with case 1's line): `lab.show(planner.memory_bars(case_studies.stories.plans()))`.
#
# `case_studies.Story().run()[0]["text"]` is what a Llama of 151,872 weights makes of 500 characters, cut by a [tokenizer](GLOSSARY.md#tokenizer) ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)).
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# <a id="case-3" style="scroll-margin-top: 5rem"></a>**Question.** A car's camera, LiDAR and radar each have an encoder that makes features of what they see. A [fusion](GLOSSARY.md#fusion) mixes them, and two output heads say where things are. A textbook gives each part of this net to ranks of its own (*apart*). Is that a good idea, with 16 scenes a step?

# %%
lab.show(case_studies.net_on(case_studies.placements()))

# %% [markdown] sections="19.6.1, 19.6.2"
# The two other ways:
#
# - *Together*: only the fusion is cut in four (tensor parallel). Each quarter of the fusion needs the whole batch, so features travel in four messages, and gradients in four more.
# - *Copied*: each rank has the whole net and a quarter of the batch, as in DDP. Only gradients travel.
#
# *Apart*, what do the others do while one computes?

# %%
# so slow that delays of real processes weigh little
apart = case_studies.Perception(placement="apart").slowed(3)
lab.show(apart.predict(), title="Apart, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# They wait. The fusion needs the encoders, the heads need the fusion, and backward climbs back up, so only one group computes at a time. (Pink is our all-reduce, and mostly waiting in it; with send and recv they would take the same turns.)
#
# ### Do all at once
#
# On one rank alone the encoders take 360 ms, the fusion 180 and the heads 90, forward and backward. A message takes 12 ms, and 0.6 ms more for each kB. With the picture's messages and kB, how many steps *together* fit into one step *apart*?

# %%
groups = lab.guess("steps together in one step apart", between=(0.2, 5))

# %%
together = apart.but(placement="together")
groups.score(apart.step_us() / together.step_us())

# %% [markdown] sections="19.6.1, 19.6.2"
# Who waits now, and for what?

# %%
lab.show(together.predict(), title="Together, 4 ranks")
lab.show(apart.but(placement="copied").predict(), title="Copied, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Do real ranks agree?
#
# Nobody waits for another's turn any more, only for messages. Now real ranks go all three ways, at the stated pace. "measured" is the fastest of four steps, which was disturbed least.

# %%
lab.table(case_studies.placed(slowed=3))

# %% [markdown] sections="19.6.1, 19.6.2"
# The order holds, at the same stated pace. All takes longer, by other amounts in each run: processes share this machine's cores, and one that finds none free is late. *Copied* is first because it sends fewer messages, and a third of the bytes of *together*.
#
# **Verdict.** No: the textbook's way isn't a good idea as it stands. (In four microbatches it might get ahead of *together*; we didn't run that.) If the net fits on each rank, copy it, unless a far larger fusion makes that message too long. If one part is too large, cut that part, as *together* does.
#
# <details><summary>By hand: three placements, microbatches, a larger fusion</summary>
#
# | placement | computing | messages |
# | --- | --- | --- |
# | apart | 360 / 2 + 180 + 90 = 450 ms | 7 x 12 + 175.6 x 0.6 = 189 ms |
# | together | (360 + 180 + 90) / 4 = 157.5 ms | 8 x 12 + 180.5 x 0.6 = 204 ms |
# | copied | the same | 12 + 57.7 x 0.6 = 46.6 ms |
#
# *Apart* is a pipeline with one microbatch. Give it four (chapter 08): the first passes all three groups in a quarter of 450 ms, and each of the others ends one turn of the slowest group later. So it computes for (450 + 3 x 180) / 4 = 247.5 ms, which is less than a whole step *together*. But gradients still take three messages, 3 x 12 + 36.4 x 0.6 = 57.8 ms, and features now take 16. If all of those hide behind computing, a step takes 305 ms, between *together* and *copied*; if none hides, *apart* is behind both. So measure it.
#
# If only the fusion grows, *copied* falls behind *together* when its message takes longer than 204 ms: 12 + 0.6 x = 204 gives x = 320 kB, where now it is 57.7. *Together* still sends for 204 ms, because its quarters of the fusion send no gradients.
#
# </details>

# %% [markdown] sections="19.6.3"
# ## Case 4: a policy for each kind of layer
#
# <a id="case-4" style="scroll-margin-top: 5rem"></a>**Question.** If case 3's fusion is too large for one rank, we need *together*. Its gradients are four messages, one for each kind of layer: convolutions, linear layers, norms and output heads. Should each kind travel in its own way? Of four **policies** the textbook advises "per layer":
#
# | policy | how gradients travel | bytes a rank hands in |
# | --- | --- | --- |
# | plain | all exactly | 41 kB |
# | fp16 | all as fp16 | a half |
# | per layer | convolutions and heads exactly, linear layers by top-k, norms late | about a third |
# | top-k all | all by top-k | an eighth |
#
# Top-k sends only the largest sixteenth of the gradients (chapter 11), in two messages: values and places. "Late" means that a norm's weights are averaged every fourth step, in place of gradients. Here a message takes 3 ms, and the link carries 10 MB/s. Which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
choices = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=choices)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %% [markdown] sections="19.6.3"
# ### Messages or bytes?
#
# Compare the two right parts of each bar: "messages" is 3 ms for each, "bytes" what carrying them takes. The last bar sends all gradients exactly, but in one message.

# %%
parts = case_studies.policy_parts()
title = {"title": "A step, link of 10 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# The policy with the fewest bytes is the slowest. "top-k all" saves most of the 4.1 ms that bytes take "plain", but it needs eight messages in place of four, 12 ms more. "per layer" saves less than it seems, because it needs 1 + 1 + 2 + 1/4 messages a step. So here you should save messages, as the last bar does (as fp16 it would save another 2.1 ms).
#
# **Verdict.** For this net on this link the gradients needn't travel in different ways. A message takes as long as 30 kB here; with megabytes of gradients, the bytes would matter more. So count both before you compress.
#
# <details><summary>Run it: each policy on real ranks</summary>
#
# `lab.table(case_studies.policies())` runs 48 steps of each policy on four real ranks. When we recorded it, "top-k all" was the slowest there too. The other three were too close for an order, and all four learned nearly alike. (All is quicker than in case 3, so that many real steps take seconds.)
#
# What a rank hands in isn't all that a link carries. Sums of a ring carry 2 x 3/4 of it on four ranks, but what by top-k is gathered goes to three others. So "top-k all" really carries 3/8 / 1.5, a quarter of plain.
#
# </details>

# %% [markdown] sections="19.6.3"
# ### Exercise 2. Shared messages
#
# Now kinds that go the same way share their messages. By top-k, the largest gradients also have to be chosen, in each kind for itself:
#
# | way | messages | bytes of each message | choosing |
# | --- | --- | --- | --- |
# | "exact" | 1 | 4 a weight | |
# | "fp16" | 1 | 2 a weight | |
# | "top-k" | 2 | 4 x weights / 16 | 3 ms a kind |
#
# Let us count for two kinds, of 1,000 and 10,000 weights, where a message takes 1 ms and a millisecond carries 1,000 bytes (1 MB/s):
#
# - Both as fp16: 1 + 22 = 23 ms.
# - Both by top-k: 2 x (1 + 2.75) + 6 = 13.5 ms.
# - The small kind as fp16, the large one by top-k: (1 + 2) + 2 x (1 + 2.5) + 3 = 13 ms.
#
# Your function gets the weights of each kind of layer, and a link: a message takes `latency_ms`, and a millisecond more for each 1,000 x `mb_per_s` bytes. It returns a way for each kind, so that choosing and all messages, one by one, are over soonest. The check tries three links, and trains once to see that the loss still falls.


# %%
def my_policy(weights, latency_ms, mb_per_s):
    """{kind of layer: way} for weights such as {"linear": 7520, ...}."""
    ### BEGIN SOLUTION
    from itertools import product

    def took_ms(ways):
        took = 3 * list(ways.values()).count("top-k")  # choosing
        for way, num_messages, num_bytes in (("fp16", 1, 2), ("top-k", 2, 4 / 16)):
            total = sum(weights[kind] for kind in ways if ways[kind] == way)
            carried = latency_ms + num_bytes * total / (1e3 * mb_per_s)
            took += num_messages * carried if total else 0
        return took

    tries = product(("fp16", "top-k"), repeat=len(weights))
    return min((dict(zip(weights, each)) for each in tries), key=took_ms)
    ### END SOLUTION


# %%
check.policy(my_policy)

# %%
check.hint("policy")

# %% [markdown] sections="19.6.3"
# <details><summary>When you have solved it: what does a mix win by?</summary>
#
# We stated that choosing takes 3 ms, for a small kind as for a large one. By that, large kinds go by top-k and small ones share one fp16 message: a kind's size counts, and not what its layers are. Where messages are slow, three cost too much, and one way for all is best.
#
# </details>

# %% [markdown] sections="10.7.5"
# ## Case 5: 7 B on one to eight small cards
#
# <a id="case-5" style="scroll-margin-top: 5rem"></a>**Question.** How few cards of 24 GB can train all weights of LLaMA 7B? The cards were bought for games (RTX 4090), and talk to each other over PCIe. A step has 64 sequences of 1,024 tokens, Adam and gradients may lie on the host, and a tenth of each card stays free.

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fewest = min(row["cards"] for row in clusters if row["fit"])
small_cluster.score(str(fewest))

# %% [markdown] sections="10.7.5"
# "layout" is the fastest one that fits, "held" is what its fullest card holds, and "token rate" is tokens a second, of all cards together.

# %%
shown = ("cards", "Adam", "layout", "held_bytes", "token_rate")
fitting_rows = [row for row in clusters if row["fit"]][:4]
lab.table({column: row[column] for column in shown} for row in fitting_rows)

# %% [markdown] sections="10.7.5"
# With Adam on the host one card will do. With Adam on the cards, and 16 bytes a parameter, it takes eight: on four, the states alone are 16 x 6.7 / 4 = 27 GB a card. Even with eight, the fastest layout is only 0.1 GB below nine tenths of a card, which are 21.6 GB.
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
# The price is time. One card has room for 4 sequences at a time. After each microbatch it sends all gradients to the host, in bf16. How many GB does it send in a step of 64 sequences?

# %%
traffic = lab.guess("GB of gradients that one card sends in a step", between=(0, 400))

# %%
one_card = case_studies.small.cases()[0].plan
traffic.score(one_card.layout.num_microbatches * 2 * one_card.shape.params / 1e9)

# %% [markdown] sections="10.7.5"
# Each of two cards has room for 16 sequences at a time, so it sends gradients only twice a step, and half of them. That is a sixteenth, so two cards do more than twice as much as one. On four cards Megatron-LM's pipeline fits, and its gradients go to the host only once a step. Believe only large differences: these speeds are assumed, and between the cards they are planned too high, because RTX 4090s [have no peer-to-peer](https://github.com/NVIDIA/nccl/issues/1127).
#
# <details><summary>What is assumed</summary>
#
# To its host each card sends at 25 GB/s, the host's memory moves 200 GB/s for all, and the cards reach an A100's shares of their peak. They send to each other at PCIe's full 32 GB/s, while in fact their messages go through the host.
#
# </details>
#
# **Verdict**, by the number of cards:
#
# | cards | what to do |
# | --- | --- |
# | 1 | DeepSpeed: Adam and gradients on the host (121 GB of its memory), recomputation, as large a microbatch as fits. |
# | 2 | The same, in shards, with a larger microbatch. |
# | 4 | Megatron-LM: Adam on the host, and four stages. |
# | 8 | Try the table's layout first, which needs no memory of the host. If it fails, add `recompute="full"`. |
#
# <details><summary>Run it: the same division on real ranks</summary>
#
# `lab.table(case_studies.ran())` takes a step of a small net on 1, 2 and 4 real ranks. A row has the states of rank 0, predicted and counted, and the bytes that it hands in. One rank keeps everything, more keep shards of everything, so the states halve from row to row, as predicted.
#
# </details>

# %% [markdown]
# ## Summary
#
# - You count the states first, because no smaller batch will cure what is too much there.
# - You test a plan by a small run that counts what each rank keeps.
# - Where two layouts are closer than a plan's error, you measure both.
# - Where groups of ranks take turns, you copy or cut the net instead, or cut the batch into microbatches.
# - Before you compress, you count messages and bytes.
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
