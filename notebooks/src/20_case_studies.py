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
# *An hour; half an hour more for the optional end. No GPU is needed.*
#
# A textbook prints a script that trains all weights of LLaMA 13B on four cards of 40 GB. The script is meant to shard everything, computes in bf16 with states in fp32, and keeps only the input of each layer. Does that fit? The bar is what each card would hold, the line what it has.

# %%
import labkit as lab
from labkit import case_studies, planner
from labkit.case_studies import check

lab.begin("en")
case = case_studies.llama.as_written()
case

# %% [markdown]
# It doesn't fit: 59 GB a card are 19 GB too much. So says chapter 18's planner; nothing has run yet. Can you trust a plan that says what would fit?
#
# - [Case 1](#case-1): what makes that script fit?
# - [Case 2](#case-2): how few small cards train 7 billion weights?
# - [Case 3](#case-3): should each part of a net have its own ranks?
# - Optional: is a layout slow, or its program ([case 4](#case-4))? Should layers send gradients differently ([case 5](#case-5))?
#
# **Read case 1 before case 2**, and case 3 before case 5.
#
# **When you are done** you know what a plan can tell, and what to run first.

# %% [markdown] sections="8.10"
# ## Case 1: 13 billion on four cards
#
# <a id="case-1" style="scroll-margin-top: 5rem"></a>**Question.** What has to change so that the model fits? These lines of the script matter:
#
# ```python
# TrainingArguments(
#     per_device_train_batch_size=2, gradient_accumulation_steps=16, bf16=True,
#     gradient_checkpointing=True, fsdp="full_shard auto_wrap")
# ```
#
# A step has 2 x 16 x 4 = 128 sequences. We assume 1,024 tokens each.
#
# Begin with what is easy to change. Take one sequence at a time, not two, and 512 tokens of it. How many of the missing 19 GB does that save?

# %%
saved = lab.guess("GB saved by one sequence of 512 tokens", between=(0, 20))

# %%
script = case.plan
less = script.but(mbs=1, seq=512).memory().peak_bytes
saved.score((script.memory().peak_bytes - less) / 1e9)

# %% [markdown] sections="8.10"
# Fewer tokens only shrink activations and logits, and the script keeps few of those. The states fill the cards. The plan counts weights, gradients and Adam's two moments in fp32: 4 + 4 + 8 = 16 bytes a parameter. For 13 billion parameters on four cards that is 52 GB on each.
#
# ### Plan: four cures
#
# So the states need smaller shards, or more room. FSDP's planned tensors were about 5 % off in chapter 19, so a layout **fits** if its bar ends left of the dashed line, where a tenth stays free.

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
# By the plan all four fit. But bf16 rounds small updates away (chapter 05). With Adam on the host, DeepSpeed keeps all this there: gradients as they arrive (bf16) and as Adam needs them (fp32), Adam's moments, and weights in fp32. They take 2 + 4 + 8 + 4 = 18 bytes a parameter. That is 18 x 13 = 234 GB.
#
# ### Run: the same script, small
#
# The real Trainer, of Hugging Face, trains a Llama of two layers on two ranks, and each rank keeps half of the weights. Of what share of the weights does it have gradients between two microbatches?

# %%
whole = lab.guess("share of the weights that a rank has gradients of", between=(0, 1))

# %%
ran = case_studies.trained_by()
whole.score(ran[0]["gradients"] / ran[0]["weights"])

# %% [markdown] sections="8.10"
# Each row is an engine: the script's FSDP, FSDP with an option, DeepSpeed's ZeRO 3. "kept" counts the weights that stay on one rank, "gradients" those that it has gradients of. We counted after the first of two microbatches, with torch 2.13 (FSDP 2), transformers 5.23 and accelerate 1.15.

# %%
lab.table(case_studies.kept(ran))

# %% [markdown] sections="8.10"
# ### One line is missing
#
# In the script's row weights and moments are in fp32, as planned, but a rank has gradients of *all* weights. To save messages, ranks add gradients up only at a step's last microbatch (`no_sync`, chapter 03). Until then each keeps its own sums, whole and in bf16, which rounds them. The plan was told that everything is sharded, and believed it.
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
# In our small run it prints 41,632, all weights, and 0 with the option below. Without accumulation a rank keeps a shard: `case_studies.Script(accumulation=1).run()[0]`.
#
# </details>
#
# Our plan for eight cards counted a shard, 6.5 GB of 33.4. What does each card hold if it keeps 2 bytes for all 13 billion weights?

# %%
still = lab.guess("GB that each of eight cards holds", between=(0, 100))

# %%
whole_bytes = 2 * script.shape.params  # gradients of all weights, in bf16
eight = cures["eight cards"].memory()
held_bytes = eight.peak_bytes - eight.parts["gradients"] + whole_bytes
still.score(held_bytes / 1e9)

# %%
lab.show(planner.memory_bars(by_fsdp, spare=0.1, found={"gradients": whole_bytes}))

# %% [markdown] sections="8.10"
# **The spare tenth covers a plan's usual error, not a part counted four times too small**, as the gradients were on eight cards. While the Trainer accumulates, none of these FSDP plans fits on 40 GB, and on 80 GB it is too close to call.
#
# The option of the table's second row helps:
#
# ```python
# accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}
# ```
#
# With it the ranks add up after each microbatch, and keep only their shards, in the weights' format. So the picture of the four cures holds. (For "bf16 throughout" also leave out `bf16=True`, since with it Accelerate keeps weights in fp32.) DeepSpeed by itself keeps only shards.
#
# ### What does it cost?
#
# Of 128 sequences, each of eight cards takes 16, 2 at a time. So with the option it sends gradients 8 times a step. How long does it wait?

# %%
lab.table(case_studies.llama.with_option(cures["eight cards"]))

# %% [markdown] sections="8.10"
# By the plan a card waits 63 ms for messages, in a step of 9.8 s. Without the option it waits for less, so the option costs at most that. (The planner can't time that row: it counts messages in every microbatch. It assumes NVLink, and we timed nothing.)
#
# ### What makes it fit
#
# **Verdict.** The cure depends on your cards:
#
# - **Eight cards of 40 GB** (33.4 GB each), **or four of 80 GB:** add the option. On eight, `gradient_accumulation_steps=8` keeps the batch.
# - **Four cards of 40 GB:** put Adam on the host, by DeepSpeed (24.3 GB a card; the same Trainer, with `deepspeed=` and a file in place of `fsdp=`) or, with the layers in four pipeline stages, by Megatron-LM (another script). FSDP can offload to the CPU too, but our planner doesn't know what that costs.
#
# Our small run tested the option, but not Adam on the host.
#
# <details><summary>Adam on the host: what it costs, what is assumed, and how to do it by DeepSpeed</summary>
#
# Planned on four cards of 40 GB:
#
# | program, sequences a microbatch | memory | on the host | step | the host's part |
# | --- | --- | --- | --- | --- |
# | DeepSpeed, 16 | 24.3 GB | 234 GB | 22.4 s | 3.8 s |
# | Megatron-LM in four stages, 1 | 29.8 GB | 156 GB | 15.9 s | 2.7 s |
#
# Don't rank the programs by this (case 4): Megatron-LM's row recomputes nothing, and keeps gradients on the cards.
#
# For the host's part we assume that PCIe carries 25 GB/s for each card, the host's memory moves 200 GB/s for all, and computing hides neither.
#
# DeepSpeed's row has two microbatches. With the script's 2 x 16 a step is planned at 30.5 s, of which the host takes 11.1. DeepSpeed then sends gradients to the host after each of 16 microbatches, not of two.
#
# The file for `deepspeed=` gets the batch by "auto" (chapter 06):
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
# What would you choose on other cards? `layouts(card, seq)` lists how four of them can train LLaMA 13B, with 128 sequences a step: the fastest first, whether they fit or not. "room" leaves a tenth of the card free. Every fortieth row for 80 GB:

# %%
rows = case_studies.llama.layouts("A100 80 GB", 1024)
lab.table(rows[::40])

# %% [markdown] sections="8.10"
# Take ten minutes. Write a function that chooses a row by three rules, in order, and returns its `layout`:
#
# 1. It fits in the room.
# 2. Adam goes to the host only where nothing fits without.
# 3. Of what is left, it's the fastest.
#
# Planned times may be 20 % off: measure what you find. Which cards will need the host?


# %%
def my_four_cards(card, seq):
    """The layout of one row of case_studies.llama.layouts(card, seq).

    card: "A100 80 GB", "A100 40 GB" or "A10G 24 GB"; seq: 512, 1024 or 4096.
    A row is a dict of memory_bytes, room_bytes, step_us, layout and offload, which
    is "none" or "optimizer".
    """
    ### BEGIN SOLUTION
    rows = case_studies.llama.layouts(card, seq)
    fit = [row for row in rows if row["memory_bytes"] <= row["room_bytes"]]
    on_cards = [row for row in fit if row["offload"] == "none"]
    fastest = min(on_cards or fit, key=lambda row: row["step_us"])
    return fastest["layout"]
    ### END SOLUTION


# %%
check.four_cards(my_four_cards)

# %%
check.hint("four_cards")

# %% [markdown] sections="8.10"
# <details><summary>When you have solved it: what is the fastest, and why?</summary>
#
# The states alone are 16 x 13 / 4 = 52 GB, so 40 and 24 GB need the host. Four stages are the fastest. Where their activations don't fit (40 GB, 4,096 tokens), each layer is cut in four. On 24 GB only DeepSpeed's shards fit.
#
# </details>

# %% [markdown] sections="10.7.5"
# ## Case 2: 7 billion on small cards
#
# <a id="case-2" style="scroll-margin-top: 5rem"></a>**Question.** Adam on the host helped four cards. How few cards of 24 GB (RTX 4090) can then train all 6.74 billion weights of LLaMA 7B?
#
# A step has 64 sequences of 1,024 tokens, a tenth of each card stays free, and Adam stays in fp32.
#
# Begin with one card. DeepSpeed puts Adam on the host, as in case 1. How many GB of states stay on the card?

# %%
one_card = lab.guess("GB of states on one card, Adam on the host", between=(0, 50))

# %%
small_plans = case_studies.small.cases()
held = small_plans[0].plan.memory().parts
states_bytes = held["parameters"] + held["gradients"] + held["optimizer"]
one_card.score(states_bytes / 1e9)

# %% [markdown] sections="10.7.5"
# The fastest plans that fit on 1, 2, 4 and 8 cards, and last a second one for eight. With up to four cards, Adam lies on the host. Which bars have no gradients, and why?

# %%
lab.show(case_studies.drawn(small_plans))

# %% [markdown] sections="10.7.5"
# On one card and on two, DeepSpeed's ZeRO 3 moves the gradients to the host too. So one card keeps only the weights: 2 bytes for 6.74 billion parameters are 13.5 GB.
#
# ### What does that cost?
#
# One card has room for 4 sequences at a time, each of two for 16, since half of the 13.5 GB moves away. Which part of a step shrinks most from one card to two?

# %%
waits = case_studies.small.seconds()
one, two, *others = waits.values()
shrinks = lab.guess("what shrinks most from one card to two", choices=tuple(one))

# %%
times_as_short = {part: one[part] / two[part] for part in one}
shrinks.score(max(times_as_short, key=times_as_short.get))

# %%
lab.bars(
    waits, stacked=True, unit="us", title="A step of 64 sequences", badge="predicted"
)

# %% [markdown] sections="10.7.5"
# By our count one card sends all gradients to the host, and fetches their sums, in each of 16 microbatches. Two cards do so twice, each with half of them. So PCIe's 18.9 s become 1.9. The microbatches' 17.3 s shrink to a sixteenth, and the 1.6 s of what crosses once (gradients in fp32, new weights) to a half.
#
# Computing only halves, to 18.3 s. On four cards it takes 6.75 s, less than half: the last three bars are Megatron-LM's, which by the planner's constants reaches more of a card's peak (we took an A100's shares), and four stages recompute nothing.
#
# Both layouts for eight cards take 4.7 s: `tp` 2 with `pp` 4 computes for 3.5 s and waits 1.2 between cards, `pp` 8 computes for 4.5, of which its bubble is 0.2, and waits 0.2. We choose `pp` 8, since the planner makes such waits too short: it lets cards reach each other directly, and RTX 4090s [can't](https://github.com/NVIDIA/nccl/issues/1127).
#
# **Verdict.** By the plan one card is enough, if its host has 18 x 6.74 = 121 GB to spare; no run here tested Adam on the host. Of 1, 2, 4 and 8 cards, only eight need no host: on four, the states alone would be 16 x 6.74 / 4 = 27 GB each.
#
# <details><summary>What is assumed</summary>
#
# Four cards hold a pipeline, whose gradients go to the host once a step.
#
# The host's part is assumed as in case 1, with 25 GB/s a card. Cards send to each other at PCIe's 32 GB/s. One card's PCIe takes 16 x 2 x 13.5 / 25 = 17.3 s for microbatches, and (27 + 13.5) / 25 = 1.6 s for what crosses once.
#
# </details>
#
# <details><summary>Run it: the same division on real ranks</summary>
#
# `lab.table(case_studies.ran())` takes a step of a small net on 1, 2 and 4 real ranks: rank 0's states, predicted and counted, and the bytes that it hands in.
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ## Case 3: a car that sees
#
# <a id="case-3" style="scroll-margin-top: 5rem"></a>**Question.** So far memory decided. Where a net fits anywhere, time decides. A car's camera, LiDAR and radar each have an encoder that makes features of what they see. A [fusion](GLOSSARY.md#fusion) mixes them, and two output heads say where things are. A textbook gives each part ranks of its own (*apart*). *Together* cuts only the fusion (tensor parallel), and *copied* gives each rank the whole net, as in DDP. A step has 16 scenes. Is the textbook's way a good idea?

# %%
lab.show(case_studies.net_on(case_studies.placements()))

# %% [markdown] sections="19.6.1, 19.6.2"
# *Apart*, two ranks encode, one fuses, and one has the heads. Features travel before the fusion and after it, and their gradients travel back. The encoders' two ranks also add up gradients of weights, in a message for each kind of layer: convolutions, linear layers, norms (why: case 5).
#
# *Together*, each quarter of the fusion needs the whole batch, so features travel here too; its gradients stay on their rank. The heads count as one kind. *Copied* sends all gradients in one message. In the last column, features are 69.6 kB each way, gradients 36.4 for the encoders, 16.4 for the fusion, 4.9 for the heads.
#
# | placement | messages with features | with their gradients | with gradients of weights | in all | kB |
# | --- | --- | --- | --- | --- | --- |
# | apart | 2 | 2 | 3: encoders | 7 | 175.6 |
# | together | 2 | 2 | 4: encoders 3, heads 1 | 8 | 180.5 |
# | copied | 0 | 0 | 1: all | 1 | 57.7 |
#
# *Apart*, what do the others do while one computes?

# %%
# three times as slow, so that delays of real processes weigh little
apart = case_studies.Perception(placement="apart").slowed(3)
lab.show(apart.predict(), title="Apart, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# They wait. The fusion needs the encoders, and the heads need the fusion, so only one group computes at a time. Pink is an all-reduce (our program sends features by it too), and the wait for it.
#
# ### Do all at once
#
# Let each rank do a share of every part. At this slow pace one rank alone would need 360 ms for the encoders, 180 for the fusion and 90 for the heads. A message takes 12 ms, and 0.6 ms more for each kB.
#
# By the table above, how many times as fast is *together*?

# %%
groups = lab.guess("times as fast: together against apart", between=(0.2, 5))

# %%
together = apart.but(placement="together")
groups.score(apart.step_us() / together.step_us())

# %% [markdown] sections="19.6.1, 19.6.2"
# By hand:
#
# | placement | computing | messages | step |
# | --- | --- | --- | --- |
# | apart | 360 / 2 + 180 + 90 = 450 ms | 7 x 12 + 175.6 x 0.6 = 189 ms | 639 ms |
# | together | (360 + 180 + 90) / 4 = 157.5 ms | 8 x 12 + 180.5 x 0.6 = 204 ms | 362 ms |
# | copied | the same | 12 + 57.7 x 0.6 = 46.6 ms | 204 ms |
#
# With its four messages of weights' gradients as one, *together* would still take 326 ms.
#
# On the same axis as *apart*: who waits now, and for what?

# %%
copied = apart.but(placement="copied")
same_axis = {"span_us": apart.step_us()}
lab.show(together.drawn(together.predict(), **same_axis), title="Together, 4 ranks")
lab.show(copied.drawn(copied.predict(), **same_axis), title="Copied, 4 ranks")

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Do real ranks agree?
#
# By the plan, *together* and *copied* wait for messages only. Now real ranks run all three placements. We impose the speeds of computing and of the link, so the run tests only turns and messages.

# %%
placed = case_studies.placed(slowed=3)
for row in placed:
    row["measured / predicted"] = row["measured_us"] / row["predicted_us"]
lab.table(placed, units={"measured / predicted": "ratio"})

# %% [markdown] sections="19.6.1, 19.6.2"
# The order holds. Each way takes longer than predicted, as the last column says; we have not found out why.
#
# **Verdict.** At these costs, and with one microbatch a step, the textbook's way isn't a good idea. Copy a net that fits on each rank, unless its one message takes longer than copying saves (exercise 2); cut what is too large. For another net, count by hand.
#
# <details><summary>When would it be otherwise?</summary>
#
# *Apart* is a pipeline with one microbatch. Give it four (chapter 08): the first passes all three groups in a quarter of 450 ms, and each of the others ends one turn of the slowest group later. So it computes for (450 + 3 x 180) / 4 = 247.5 ms. Gradients still take three messages, 3 x 12 + 36.4 x 0.6 = 57.8 ms, and features now take 16. If all hide behind computing, a step takes 305 ms, between *together* and *copied*; if none hides, *apart* is behind both. We didn't run that.
#
# </details>

# %% [markdown] sections="19.6.1, 19.6.2"
# ### Exercise 2. When does copied lose?
#
# If the fusion grows, the message of *copied* grows too. Those of *together* don't. From how many kB on is *copied* slower than the faster of the other two? Take ten minutes, count as by hand, leave computing as it is, and begin with the numbers above.


# %%
def my_limit_kb(ways, latency_ms, ms_per_kb):
    """How many kB make copied as slow as the faster of apart and together.

    ways: {name: (computing in ms, messages, kB)}; in case 3 {"apart":
    (450, 7, 175.6), "together": (157.5, 8, 180.5), "copied": (157.5, 1, 57.7)}.
    A message takes latency_ms, and ms_per_kb more for each kB.
    """
    ### BEGIN SOLUTION

    def step_ms(name):
        computing_ms, messages, kb = ways[name]
        return computing_ms + messages * latency_ms + kb * ms_per_kb

    other_ms = min(step_ms("apart"), step_ms("together"))
    computing_ms, messages, _ = ways["copied"]
    return (other_ms - computing_ms - messages * latency_ms) / ms_per_kb
    ### END SOLUTION


# %%
check.placement(my_limit_kb)

# %%
check.hint("placement")

# %% [markdown]
# <details><summary>When you have solved it: what is a message worth?</summary>
#
# In case 3, *copied* and *together* compute for as long. *Copied* saves seven messages, and each takes as long as 12 / 0.6 = 20 kB, all seven as 7 x 20 = 140. So it may send 180.5 + 140 = 320.5 kB. The more a message costs against a kB, the longer it may be.
#
# </details>

# %% [markdown]
# ## Summary
#
# - You count the states first, since no smaller batch shrinks them.
# - You run first what a plan was only told: small, on two ranks, counting what each keeps.
# - You set `sync_each_batch` where the Trainer's FSDP accumulates, so that gradients stay shards.
# - You put Adam on the host where cards are few, and make microbatches large, since DeepSpeed sends gradients there in each.
# - You copy what fits on a rank while its message costs less than copying saves, and cut what doesn't fit.
#
# Words that were new: [fusion](GLOSSARY.md#fusion), and policy (case 5).
#
# **Next:** [your own model](21_your_own_model.ipynb).

# %% [markdown]
# ---
#
# *Here ends what most people need. The rest is two more cases, and optional.*

# %% [markdown] sections="10.6.2, 10.7.1"
# ## Case 4: is it the layout or the program?
#
# <a id="case-4" style="scroll-margin-top: 5rem"></a>**Question.** When one layout is slower than another, is that the layout's doing, or its program's? A model of 10 billion parameters trains on eight A100 of 80 GB. We compare shards of everything (ZeRO 3), each layer cut in eight (`tp` 8), and eight stages (`pp` 8).
#
# All are planned as if Megatron-LM ran them, one sequence at a time, and all three fit. Which is the *slowest*?

# %%
shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
machine = {"gpu": "A100 80 GB", "gpus": 8}
# stack: whose constants time the step; recipe: the formats of its states
megatron = {"stack": "megatron-a100", "recipe": "megatron"}
story = planner.Plan(model=shape, **machine, batch=512, seq=2048, **megatron)
cuts = {"ZeRO 3": story.but(zero=3), "tp 8": story.but(tp=8, sp=True)}
cuts["pp 8"] = story.but(pp=8)
lab.table(
    {"layout": name, "memory_bytes": cuts[name].memory().peak_bytes} for name in cuts
)

# %%
slowest = lab.guess("the slowest for 10 B on eight cards", choices=tuple(cuts))

# %%
steps_us = {name: plan.time().step_us for name, plan in cuts.items()}
slowest.score(max(steps_us, key=steps_us.get))

# %% [markdown] sections="10.6.2"
# Two more bars are `tp` 8 with 16 sequences at a time, and ZeRO 3 by FSDP's own constants. Compare the first blue part with the last.

# %%
more = {"tp 8, mbs 16": cuts["tp 8"].but(mbs=16)}
more["ZeRO 3, FSDP"] = story.but(zero=3, stack="fsdp-a100", recipe="fp32")
lab.show(planner.time_bars(cuts | more))

# %% [markdown] sections="10.6.2"
# ### Layout or program?
#
# `tp` 8 waits for messages in every layer. With 16 sequences at a time the messages are fewer and larger: now it takes 17 % longer than `pp` 8. Planned times may be 20 % off (chapter 18), so **the plan can't tell** these two apart.
#
# Nor can it tell ZeRO 3 from `pp` 8. By FSDP's constants their order turns round, and no run has tested ZeRO 3 by Megatron's.
#
# The first and the last bar do the same products. Their blue parts differ because each program's constants were fitted to its usual layouts. So the plan can't separate layout and program.
#
# **Verdict.** With one sequence at a time, drop `tp` 8. With 16 it is within a plan's error of `pp` 8, so measure all three, each by its program. To learn whether it's the layout, let one program run them all.
#
# <details><summary>Uneven stages, the textbook's models</summary>
#
# `tp` 8's blue part, one sequence at a time, is longer than ZeRO 3's because its products are smaller. `pp` 8 has 48 layers to cut, and an output layer that takes as long as one. The others wait for the stage that has it, which does 7 layers' work, not 6.
#
# The textbook puts Adam on the host for 5 B, and recomputes everything for 20 B. On A100 of 40 GB neither is needed (for 5 B with case 1's option): `lab.show(planner.memory_bars(case_studies.stories.plans()))`.
#
# `case_studies.Story().run()[0]["text"]` is what a Llama of 151,872 weights makes of 500 characters, cut by a [tokenizer](GLOSSARY.md#tokenizer) ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)).
#
# </details>

# %% [markdown] sections="19.6.3"
# ## Case 5: a policy for each kind of layer
#
# <a id="case-5" style="scroll-margin-top: 5rem"></a>**Question.** If case 3's fusion is too large for one rank, we need *together*. Its gradients are four messages, one for each kind of layer. Should each kind travel in its own way? The textbook advises:
#
# | kind of layer | weights | "per layer" | messages a step |
# | --- | --- | --- | --- |
# | convolutions | 1,384 | exactly | 1 |
# | linear layers | 7,520 | by top-k | 2 |
# | norms | 192 | late | 1/4 |
# | output heads | 1,221 | exactly | 1 |
#
# Top-k sends only the largest sixteenth (chapter 11), in two messages: values and places. "Late" sends no gradients, but averages a norm's weights every fourth step. We compare four **policies**:
#
# - "plain": all exactly, 41 kB
# - "fp16": all as fp16, half the bytes
# - "per layer": as above, about a third
# - "top-k all": all by top-k, an eighth
#
# The link is quicker than case 3's: 3 ms a message, 10 MB/s. Which policy has the *longest* step?

# %%
policies = case_studies.foreseen()
choices = tuple(row["policy"] for row in policies)
longest = lab.guess("policy with the longest step", choices=choices)

# %%
longest.score(max(policies, key=lambda row: row["predicted_us"])["policy"])

# %% [markdown] sections="19.6.3"
# ### Messages or bytes?
#
# The last bar sends all exactly, in one message. The bars leave out what is the same in all, and top-k's choosing, which would make it slower still.

# %%
parts = case_studies.policy_parts()
title = {"title": "Gradients of a step, link of 10 MB/s", "badge": "predicted"}
lab.bars(parts, stacked=True, unit="us", **title)

# %% [markdown] sections="19.6.3"
# "top-k all" saves most of the 4.1 ms of bytes, but its four more messages cost 12 ms. "per layer" has 4 1/4 messages, so it saves little.
#
# **Verdict.** No, not on this link: put all in one message. A message takes as long as 30 kB; with megabytes of gradients, the bytes would matter more. Nor have we run or drawn the best that we know, which is fp16 in one message: by the plan 3 + 2.1 ms.
#
# <details><summary>Run it: each policy on real ranks</summary>
#
# `lab.table(case_studies.policies())` runs 48 steps of each policy on four real ranks. When we recorded it, "top-k all" was the slowest there too. The other three were too close for an order, and all four learned nearly alike.
#
# On four ranks, a ring's sums carry 2 x 3/4 of what a rank hands in, but top-k's values go to three others. So "top-k all" really carries 3/8 / 1.5, a quarter of plain.
#
# </details>

# %% [markdown] sections="19.6.3"
# ### Exercise 3. Shared messages
#
# Now there are only two ways, "fp16" and "top-k", and kinds that go the same way share their messages. "fp16" takes one message, of 2 bytes a weight. "top-k" takes two, of 4 x weights / 16 bytes each, and for each kind 3 ms to choose the largest.
#
# Two kinds have 1,000 and 10,000 weights. A message takes 1 ms, and a millisecond carries 1,000 bytes:
#
# - Both as fp16: 1 + 22 = 23 ms.
# - The small kind as fp16, the large one by top-k: (1 + 2) + 2 x (1 + 2.5) + 3 = 13 ms.
#
# Find a way for each kind that makes the total shortest: all choosing, and all messages one after another.


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

# %% [markdown] sections="8.10"
# ## Errata of the textbook
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

# %%
check.status()
