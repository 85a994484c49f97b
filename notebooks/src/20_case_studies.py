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
# *Five cases of 10 to 30 minutes; read those that concern you. No GPU is needed.*
#
# A textbook prints a script that trains all weights of LLaMA 13B on four cards of 40 GB, and calls it complete. The script is meant to shard everything, computes in bf16, and keeps only the input of each layer. Does that fit? The bar is what each card would hold, the line what it has.

# %%
import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# It doesn't fit: each card would have to hold 59 GB, which is 19 GB too much. So says chapter 18's planner; nothing has run yet.
#
# - [Case 1](#case-1): what makes that script fit?
# - [Case 2](#case-2): is a layout slow, or its program?
# - [Case 3](#case-3): should each part of a net have its own ranks?
# - [Case 4](#case-4): should layers send gradients in different ways?
# - [Case 5](#case-5): how few small cards train 7 billion weights?
#
# **Each case can be read alone**, but case 4 needs case 3.
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
# So a step has 2 x 16 x 4 = 128 sequences, of 1,024 tokens, we assume.
#
# The usual advice is a smaller batch. How many of the missing 19 GB does one sequence at a time save, cut to 512 tokens?

# %%
saved = lab.guess("GB saved by one sequence of 512 tokens", between=(0, 20))

# %%
script = case.plan
less = script.but(mbs=1, seq=512).memory().peak_bytes
saved.score((script.memory().peak_bytes - less) / 1e9)

# %% [markdown] sections="8.10"
# Fewer tokens only shrink activations and logits, and the script keeps few of those. The states fill the cards: FSDP keeps weights, gradients and Adam's two moments in fp32, 4 + 4 + 8 = 16 bytes a parameter. For 13 billion on four cards that is 52 GB on each.
#
# ### Plan: four cures
#
# A cure has to change the states or the cards. Planned memory was about 5 % off in chapter 19, so a layout **fits** if its bar ends left of the dashed line, where a tenth stays free.

# %%
cures = {
    # recipe: in which formats the states are kept
    "bf16 throughout, Adam too": script.but(recipe="bf16"),
    "eight cards": script.but(gpus=8),
    "cards of 80 GB": script.but(gpu="A100 80 GB"),
}
by_fsdp = {"as written": script} | cures
# by DeepSpeed; 16 sequences at a time mean fewer trips to the host
on_host = script.but(offload="optimizer", recipe="mixed", mbs=16)
lab.show(planner.memory_bars(by_fsdp | {"Adam on the host": on_host}, spare=0.1))

# %% [markdown] sections="8.10"
# By the plan all four fit. But bf16 rounds small updates away (chapter 05). Adam on the host needs 18 x 13 = 234 GB there, by DeepSpeed.
#
# ### Run: the same script, small
#
# The plan takes it for granted that everything is sharded. Now the real Trainer runs a Llama of two layers on two ranks. For what share of the weights does a rank keep gradients between two microbatches?

# %%
whole = lab.guess("share of the weights that a rank has gradients of", between=(0, 1))

# %%
ran = case_studies.trained_by()
whole.score(ran[0]["gradients"] / ran[0]["weights"])

# %% [markdown] sections="8.10"
# "kept" counts the weights that stay on one rank, "gradients" those that it has gradients of. "type" is the format of these.

# %%
shown = ("engine", "weights", "kept", "gradients", "type")
lab.table({column: row[column] for column in shown} for row in ran)

# %% [markdown] sections="8.10"
# ### One line is missing
#
# In the first row a rank has gradients of *all* weights: this Trainer (torch 2.13, transformers 5.23, accelerate 1.15) doesn't shard everything. To save messages, ranks add gradients up only with a step's last microbatch (`no_sync`, chapter 03). Until then each keeps its own sums, whole and in bf16.
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
# In our small run it prints 41,632, which is all weights, and 0 with the option below.
#
# </details>
#
# Our plans counted only a shard. If each card keeps 2 bytes for all 13 billion weights, how many of the three cures by FSDP fit?

# %%
still = lab.guess("cures by FSDP that fit", choices=("0", "1", "2", "3"))

# %%
whole_bytes = 2 * script.shape.params  # gradients of all weights, in bf16
num_fit = 0
for plan in cures.values():
    memory = plan.memory()
    held = memory.peak_bytes - memory.parts["gradients"] + whole_bytes
    num_fit += held < 0.9 * plan.cluster.device_bytes
still.score(str(num_fit))

# %%
lab.show(planner.memory_bars(by_fsdp, spare=0.1, found={"gradients": whole_bytes}))

# %% [markdown] sections="8.10"
# The orange part is now 26 GB, on eight cards as on four, and cards of 80 GB just miss our tenth. The option of the table's second row helps:
#
# ```python
# accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}
# ```
#
# With it the ranks add up after each microbatch, and keep only their shards. DeepSpeed does so by itself. Gradients now travel 16 times a step. What does that cost?

# %%
# planned with the messages of all microbatches
time = cures["cards of 80 GB"].time()
lab.table([{"step_us": time.step_us, "waits for messages_us": time.parts()["gather"]}])

# %% [markdown] sections="8.10"
# By the plan, computing hides nearly all messages. So the first picture holds again.
#
# <details><summary>Run it: advice for this script</summary>
#
# `case_studies.mended()` records the small script on two ranks and asks `lab.advise` what makes it slow. Each batch is read only when it is due, so the advice is to read ahead. So it runs the script again with `dataloader_num_workers=1`. In a cell it draws the steps of both runs, and says how much time the advice foretold to save and how much the second run saved. (Seconds of reading and computing are stated.)
#
# </details>
#
# **Verdict.**
#
# | cards | what to do | planned |
# | --- | --- | --- |
# | eight of 40 GB | add the option; `gradient_accumulation_steps=8` keeps the batch at 128 | 33.4 GB |
# | four of 80 GB | add the option | 59.4 GB |
# | four of 40 GB | Adam on the host: DeepSpeed, or four stages of Megatron-LM | 24.3 or 29.8 GB |
#
# Our small run tested the option, but not Adam on the host.
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
# Find a rule for all cards: for a card and a sequence's length, a layout of LLaMA 13B on four such cards. The layout says the program, as in the table: `zero` 3 is FSDP with the option, or DeepSpeed with `offload`, and all else is Megatron-LM.
#
# - A tenth of the card stays free.
# - Adam goes to the host only where nothing fits without.
# - The step is at most a quarter longer than the fastest that keeps these two rules.

# %%
# the step leaves out what Adam on the host takes
four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
shards = four.but(zero=3, mbs=4, recompute="full")
tried = {"FSDP": shards, "DeepSpeed": shards.but(offload="optimizer")}
tried["Megatron-LM"] = four.but(pp=4)  # does it fit with seq=4096?
shown = ("layout", "memory_bytes", "step_us")
lab.table(
    {"program": name, "states_bytes": plan.memory().state_bytes}
    | {column: plan.row()[column] for column in shown}
    for name, plan in tried.items()
)


# %%
def my_four_cards(card, seq):
    """A layout, like {"zero": 3, "mbs": 2, "recompute": "full"}.

    card: "A100 80 GB", "A100 40 GB" or "A10G 24 GB"; seq: 512, 1024 or 4096.
    Some of tp, sp, pp, zero, mbs (1, 2, 4, 8, 16), recompute, offload ("optimizer").
    """
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
# <a id="case-2" style="scroll-margin-top: 5rem"></a>**Question.** When one layout is slower than another, is that the layout's doing, or its program's? A model of 10 billion parameters trains on eight A100 of 80 GB. We compare shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), and eight stages (`pp` 8), planned as if Megatron-LM ran them all. All three fit. Which is the *slowest*?

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
machine = {"gpu": "A100 80 GB", "gpus": 8}
# stack: whose constants time the step; recipe: the formats of its states
megatron = {"stack": "megatron-a100", "recipe": "megatron"}
story = planner.Plan(model=shape, **machine, batch=512, seq=2048, **megatron)
cuts = {"ZeRO 3": story.but(zero=3), "tp 8": story.but(tp=8, sp=True)}
cuts["pp 8"] = story.but(pp=8)
slowest = lab.guess("the slowest for 10 B on eight cards", choices=tuple(cuts))

# %%
steps_us = {name: plan.time().step_us for name, plan in cuts.items()}
slowest.score(max(steps_us, key=steps_us.get))

# %% [markdown] sections="10.6.2"
# The fourth bar is ZeRO 3 by FSDP's own constants. Compare its blue part with the first bar's.

# %%
by_fsdp_too = story.but(zero=3, stack="fsdp-a100", recipe="fp32")  # 16 bytes
lab.show(planner.time_bars(cuts | {"ZeRO 3, FSDP": by_fsdp_too}))

# %% [markdown] sections="10.6.2"
# ### Layout or program?
#
# `tp` 8 waits for messages in every layer. Even without its 29.9 s of messages it would take 45.5 s, because narrow pieces take longer to compute and to launch.
#
# Which of the others is faster, **the plan can't tell**. By Megatron's constants ZeRO 3 is 13 % ahead of the pipeline, by FSDP's 7 % behind. Planned times may be 20 % off (chapter 18), and no run has tested ZeRO 3 by Megatron's constants.
#
# By FSDP's constants a matrix product reaches at most 63 % of the cards' peak, by Megatron's 79 %. Each share was fitted to its program's usual layouts, with whatever slowed those. So the plan can't separate layout and program.
#
# **Verdict.** Drop `tp` 8, and measure the two others, each by its program. To learn whether it's the layout, let one program run both.
#
# <details><summary>Larger microbatches, uneven stages, the textbook's models</summary>
#
# With 16 sequences at a time `tp` 8 is planned at 52 s. It is still the last, though now within 20 % of the pipeline.
#
# `pp` 8 has 48 layers to cut, and an output layer that takes as long as one. So one stage has the work of 7, and the others wait for it: the blue part is that of the slowest stage.
#
# The textbook puts Adam on the host for 5 B, and recomputes everything for 20 B. On A100 of 40 GB neither is needed (for 5 B with case 1's option): `lab.show(planner.memory_bars(case_studies.stories.plans()))`.
#
# `case_studies.Story().run()[0]["text"]` is what a Llama of 151,872 weights makes of 500 characters, cut by a [tokenizer](GLOSSARY.md#tokenizer) ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)).
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# <a id="case-3" style="scroll-margin-top: 5rem"></a>**Question.** A car's camera, LiDAR and radar each have an encoder that makes features of what they see. A [fusion](GLOSSARY.md#fusion) mixes them, and two output heads say where things are. A textbook gives each part ranks of its own (*apart*). Is that a good idea?

# %%
lab.show(case_studies.net_on(case_studies.placements()))

# %% [markdown] sections="19.6.1, 19.6.2"
# *Apart*, features and their gradients travel in four messages, and the encoders' own gradients in three. The two other ways:
#
# - *Together*: only the fusion is cut (tensor parallel). Each quarter needs the whole batch, so features travel here too, and gradients take four messages.
# - *Copied*: each rank has the whole net, as in DDP.
#
# *Apart*, what do the others do while one computes?

# %%
# so slow that delays of real processes weigh little
apart = case_studies.Perception(placement="apart").slowed(3)
lab.show(apart.predict(), title="Apart, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# They wait. The fusion needs the encoders, the heads need the fusion, and backward climbs back up, so only one group computes at a time. (Pink is mostly waiting.)
#
# ### Do all at once
#
# One rank alone would need 360 ms for the encoders, 180 for the fusion and 90 for the heads. A message takes 12 ms, and 0.6 ms more for each kB. With the first picture's messages and kB, how many steps *together* fit into one step *apart*?

# %%
groups = lab.guess("steps together in one step apart", between=(0.2, 5))

# %%
together = apart.but(placement="together")
groups.score(apart.step_us() / together.step_us())

# %% [markdown] sections="19.6.1, 19.6.2"
# By hand:
#
# | placement | computing | messages |
# | --- | --- | --- |
# | apart | 360 / 2 + 180 + 90 = 450 ms | 7 x 12 + 175.6 x 0.6 = 189 ms |
# | together | (360 + 180 + 90) / 4 = 157.5 ms | 8 x 12 + 180.5 x 0.6 = 204 ms |
# | copied | the same | 12 + 57.7 x 0.6 = 46.6 ms |
#
# On the same axis as *apart*: who waits now, and for what?

# %%
copied = apart.but(placement="copied")
for step, title in ((together, "Together, 4 ranks"), (copied, "Copied, 4 ranks")):
    lab.show(step.drawn(step.predict(), span_us=apart.step_us()), title=title)

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Do real ranks agree?
#
# All wait for messages only, no longer for another's turn. Real ranks now go all three ways, at imposed speeds: the run tests turns and messages.

# %%
lab.table(case_studies.placed(slowed=3))

# %% [markdown] sections="19.6.1, 19.6.2"
# The order holds. All takes longer, by other amounts in each run, because the ranks share this machine's cores. *Copied* sends one message in place of *together*'s eight, and a third of the bytes. With its gradients in one message *together* would save 3 x 12 ms, and still take 326.
#
# **Verdict.** At these costs the textbook's way isn't a good idea. If the net fits on each rank, copy it. If one part is too large, cut that part.
#
# <details><summary>When would it be otherwise?</summary>
#
# *Apart* is a pipeline with one microbatch. Give it four (chapter 08): the first passes all three groups in a quarter of 450 ms, and each of the others ends one turn of the slowest group later. So it computes for (450 + 3 x 180) / 4 = 247.5 ms, which is less than a whole step *together*. But gradients still take three messages, 3 x 12 + 36.4 x 0.6 = 57.8 ms, and features now take 16. If all of those hide behind computing, a step takes 305 ms, between *together* and *copied*; if none hides, *apart* is behind both. We didn't run that.
#
# If only the fusion grows, *copied* falls behind *together* when its message takes longer than 204 ms: 12 + 0.6 x = 204 gives x = 320 kB, where now it is 57.7. *Together* still sends for 204 ms, because its quarters of the fusion send no gradients.
#
# </details>

# %% [markdown] sections="19.6.3"
# ## Case 4: a policy for each kind of layer
#
# <a id="case-4" style="scroll-margin-top: 5rem"></a>**Question.** If case 3's fusion is too large for one rank, we need *together*. Its gradients are four messages, one for each kind of layer. Should each kind travel in its own way? Of four **policies** the textbook advises "per layer":
#
# | policy | how gradients travel | bytes handed in |
# | --- | --- | --- |
# | plain | all exactly | 41 kB |
# | fp16 | all as fp16 | a half |
# | per layer | linear layers by top-k, norms late, others exactly | about a third |
# | top-k all | all by top-k | an eighth |
#
# Top-k sends only the largest sixteenth (chapter 11), in two messages: values and places. "Late" averages a norm's weights every fourth step instead. The link is quicker than case 3's: 3 ms a message, 10 MB/s. Which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
choices = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=choices)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %% [markdown] sections="19.6.3"
# ### Messages or bytes?
#
# The bars leave out what is the same in all. "messages" is 3 ms for each, "bytes" what carrying takes. The last bar sends all exactly, in one message.

# %%
parts = case_studies.policy_parts()
title = {"title": "Gradients of a step, link of 10 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# The policy with the fewest bytes is the slowest. "top-k all" saves most of the 4.1 ms of bytes, but it needs eight messages in place of four, 12 ms more. "per layer" needs 1 + 1 + 2 + 1/4 messages, so it saves little.
#
# **Verdict.** Not on this link: here you save messages, as the last bar does. A message takes as long as 30 kB; with megabytes of gradients, the bytes would matter more.
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
# Now kinds that go the same way share their messages. "fp16" takes one, of 2 bytes a weight. "top-k" takes two, of 4 x weights / 16 bytes each, and 3 ms a kind to choose the largest.
#
# Two kinds have 1,000 and 10,000 weights. A message takes 1 ms, and a millisecond carries 1,000 bytes:
#
# - Both as fp16: 1 + 22 = 23 ms.
# - The small kind as fp16, the large one by top-k: (1 + 2) + 2 x (1 + 2.5) + 3 = 13 ms.
#
# Find a way for each kind, so that choosing and all messages, one by one, are over soonest.


# %%
def my_policy(weights, latency_ms, mb_per_s):
    """{kind of layer: way} for weights such as {"linear": 7520, ...}.

    A message takes latency_ms, and 1 ms more for each 1000 * mb_per_s bytes.
    The check tries three links, and trains once.
    """
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
# ## Case 5: 7 billion on small cards
#
# <a id="case-5" style="scroll-margin-top: 5rem"></a>**Question.** How few cards of 24 GB (RTX 4090, made for games) can train all weights of LLaMA 7B? A step has 64 sequences of 1,024 tokens, a tenth of each card stays free, and all of chapters 05 to 09 is allowed.

# %%
small_cluster = lab.guess("fewest cards of 24 GB for 7 B", choices=("1", "2", "4", "8"))

# %%
clusters = case_studies.small.rows()
fewest = min(row["cards"] for row in clusters if row["fit"])
small_cluster.score(str(fewest))

# %% [markdown] sections="10.7.5"
# The fastest plans that fit: which states are left in the first bar?

# %%
lab.show(case_studies.drawn(case_studies.small.cases()))

# %% [markdown] sections="10.7.5"
# Only the weights: 2 bytes for 6.7 billion parameters are 13.5 GB. Adam lies on the host, and DeepSpeed's ZeRO 3 moves the gradients there too. With Adam on the cards it takes eight: the states alone would be 16 x 6.7 / 4 = 27 GB on each of four.
#
# ### What does that cost?
#
# One card has room for 4 sequences at a time. So in each of 16 microbatches it sends all gradients to the host, and fetches their sums. That takes 19 of its 57 s. Each of two cards has room for 16, so it does so twice, with half of them. How many times as fast are two cards?

# %%
faster = lab.guess("times as fast: two cards against one", between=(1, 4))

# %%
waits = case_studies.small.seconds()
one_us, two_us, *_ = (sum(parts.values()) for parts in waits.values())
faster.score(one_us / two_us)

# %% [markdown] sections="10.7.5"
# Names begin with the number of cards. Which part shrinks most from one to two?

# %%
title = {"title": "A step of 64 sequences", "badge": "predicted"}
lab.bars(waits, stacked=True, unit="us", **title)

# %% [markdown] sections="10.7.5"
# Computing halves, but what crosses PCIe shrinks to a tenth. Four cards hold a pipeline: its gradients go to the host once a step, and it recomputes nothing.
#
# Eight cards need no host, but by the fastest plan they wait for each other for a quarter of the step. That is planned too short, because RTX 4090s [have no peer-to-peer](https://github.com/NVIDIA/nccl/issues/1127). The last bar's eight stages compute more and send far less.
#
# <details><summary>What is assumed</summary>
#
# The planner counts "gathered" for any ZeRO 3, though one card has nobody to gather from. To its host each card sends at 25 GB/s, the host's memory moves 200 GB/s for all, and the cards reach an A100's shares of their peak. They send to each other at PCIe's full 32 GB/s, while in fact their messages go through the host.
#
# </details>
#
# **Verdict.** One card is enough, if its host has 121 GB to spare: DeepSpeed and recomputation. Two do the same in shards. On more, cut the model into stages by Megatron-LM: four with Adam on the host, eight with recomputation. Slow links hurt `tp` most, so measure before you take it.
#
# <details><summary>Run it: the same division on real ranks</summary>
#
# `lab.table(case_studies.ran())` takes a step of a small net on 1, 2 and 4 real ranks. A row has the states of rank 0, predicted and counted, and the bytes that it hands in. One rank keeps everything, more keep shards of everything, so the states halve from row to row, as predicted.
#
# </details>

# %% [markdown]
# ## Summary
#
# - You count the states first, since no smaller batch shrinks them.
# - You test a plan by a small run that counts what ranks keep.
# - You measure layouts that are closer than a plan's error.
# - You copy or cut a net whose parts would wait for each other.
# - You count messages and bytes before you compress.
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
