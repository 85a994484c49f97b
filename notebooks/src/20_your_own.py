# ---
# jupyter:
#   labkit:
#     sections: ["8.12", "19.7", "19.8.6", "D-next"]
#     needs: ["chapters 06 to 08, 15 and 18; for a cluster 10 and 13", "transformers (installed with labkit)"]
#     minutes: 100
# ---

# %% [markdown]
# # Your own
#
# *100 minutes with ours, half an hour for the exercises, and then again with yours. You need chapters 06 to 08, 15 and 18. No GPU is needed.*
#
# So far all was ours. Now bring yours: a module, a script, a machine, a cluster. Say that it is GPT-2 XL, from the library transformers. Its weights are a file of 6 GB. Four sequences at a time, on a card of 40 GB: does it train?

# %%
import tempfile
from functools import partial
from pathlib import Path

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.footprint import PARTS
from labkit.profiling.recording import record
from labkit.your_own import check

lab.begin("en", deadline_s=60)

# %% [markdown]
# **Go through once with ours. Then come back, replace the next cell, and go through again, cell by cell.** `mine` gives a small module and a batch for it, `large` the size that you are after, and `next_token` is the loss. One cell raises an error on purpose, and "run all" stops there.


# %%
from transformers import GPT2Config, GPT2LMHeadModel


# the fit in "A machine" calls mine(layers, sequences)
def mine(layers=4, sequences=4, width=128, heads=4, vocab=1000, length=64, **more):
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, **more}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = GPT2Config(vocab_size=vocab, n_positions=length, **sizes, **ends)
    return GPT2LMHeadModel(config).eval(), {
        "input_ids": torch.randint(vocab, (sequences, length))
    }


def large(**more):
    return mine(48, width=1600, heads=25, vocab=50257, length=1024, **more)


# labkit hands it the first tensor of floats of the output
def next_token(logits, batch):
    wanted = batch["input_ids"][:, 1:]
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), wanted.flatten()
    )


# %% [markdown]
# The plan is for a machine of eight such cards, each with a copy of everything, in fp32.

# %%
whole = your_own.Step(make=large).plan(gpu="A100 40 GB", gpus=8, zero=0)
lab.show(planner.memory_bars({"copies": whole}))

# %% [markdown]
# Nothing has run so far, and nothing of 6 GB was built. The upright line is the card's memory, and what stands right of it, in a thick frame, is too much. So ours does not train in this way.
#
# `Step` is a training step of a module that you give. These are its methods:
#
# | method | what it does |
# | --- | --- |
# | `run()` | trains three steps on real ranks, and counts bytes |
# | `predict()` | says how many bytes such a run should hold |
# | `compare()` | predicts, runs, and draws both |
# | `but(...)` | gives the same step with something changed |
# | `plan(...)` | plans it for cards that you name, as in chapter 18: a plan has `memory()`, `time()`, `warnings()`, and a `but(...)` for its layout (`zero`, `pp`, `mbs`) |
#
# <details><summary>What to bring, and a second example</summary>
#
# - `mine` and `large` can be called without arguments and return the module and a batch: a tensor, a tuple of them, or a dict by the names that `forward` takes. Samples lie along the first dimension. The sections on a machine call `mine(layers, sequences)`.
# - The cells on GELU and on four readers are for ours alone: skip them with yours, or adapt them.
# - Layers need no names: the longest row of modules that are alike is taken.
# - `next_token` is the loss: of the output's first tensor of floats, and the batch. If you have none, delete `loss=next_token` below: then an output that is a single number is the loss, and for any other a stand-in is.
# - `gpu=` takes a card by its name ("H100 80 GB", "A10G 24 GB"); a wrong one raises an error that lists all.
#
# A picture model, for instance:
#
# ```python
# from transformers import ViTConfig, ViTModel
#
# def mine(layers=4, sequences=4, width=128, heads=4, size=64):
#     sizes = {"num_hidden_layers": layers, "hidden_size": width}
#     sizes |= {"num_attention_heads": heads, "intermediate_size": 4 * width}
#     pictures = torch.randn(sequences, 3, size, size)
#     module = ViTModel(ViTConfig(image_size=size, **sizes)).eval()
#     return module, {"pixel_values": pictures}
#
# def large():
#     return mine(32, 16, width=1280, heads=16, size=224)
# ```
#
# </details>
#
# **When you are done** you can plan a module that nobody has written formulas for, shard it and cut it, find what a script of yours waits for, and say what of all this you still have to measure.

# %% [markdown] sections="8.12"
# ## A module
#
# The planner sent the batch once through the module, with fake tensors, which have a shape and no bytes. It counted parameters, operations and what the backward needs, and put them into the formulas of [chapter 18](18_which_layout.ipynb). `eval()` leaves dropout out, so that we can compare losses below.
#
# <details><summary>What the plan leaves out</summary>
#
# Masks of dropout need memory too: to plan a training with dropout, give `module.train()`. The card's line is at 40 x 10⁹ bytes. Its 40 GiB are 7 % more, and CUDA, NCCL and gaps between tensors need some of that.
#
# </details>
#
# One cure is to shard. On eight cards each would keep an eighth of the parameters, gradients and moments of Adam. How much does a card hold then, compared with copies?

# %%
held = lab.guess("memory with shards, over memory with copies", between=(0, 1))

# %%
shards = whole.but(zero=3)
held.score(shards.memory().peak_bytes / whole.memory().peak_bytes)

# %%
stages = whole.but(pp=8, batch=32)
lab.show(planner.memory_bars({"copies": whole, "shards": shards, "stages": stages}))

# %% [markdown]
# Still two thirds, because the largest part is the activations, and sharding the states makes those no smaller. Eight stages, one a card, aren't enough either (`batch=32`: the same 32 samples, four at a time). The first stage has 6 of the 48 layers, but keeps eight microbatches, as many as there are stages (1F1B, chapter 08): 6 x 8 are 48 again. Both are hardly above the line, and a card of 40 GB has a little more than 40 x 10⁹ bytes. But a tenth should stay free for what no plan knows, so both are out.
#
# ### What helps?
#
# Bf16, which you would take anyway: by `shards.but(precision="bf16")` a card holds 24 GB. We stay in fp32, to see what to do when no switch is enough: a smaller microbatch, or recomputation. Which would you try first?

# %%
tries = {"shards, two sequences": shards.but(mbs=2, batch=32)}
tries["shards, one sequence"] = shards.but(mbs=1, batch=32)
tries["shards, recompute"] = shards.but(recompute="full")
tries["copies, recompute"] = whole.but(recompute="full")
tries["copies, one sequence"] = whole.but(mbs=1, batch=32)
tries["stages, one sequence"] = stages.but(mbs=1)
lab.show(planner.memory_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# The first row is there to compare. All others fit, even plain copies, if they recompute or take one sequence at a time (with two they would hold 44 GB). But copies with one sequence fit only with DDP's `gradient_as_bucket_view=True`; otherwise its buckets hold the gradients once more. So it was activations that had to shrink, and what shards buy is room for a second sequence.

# %% [markdown]
# ### What are the activations?
#
# There may be a cheaper cure: look at what is kept. The library writes GPT-2's GELU out in eight plain operators, which together keep four tensors. Torch has the same function as one operator, which keeps one, its input. (With yours, skip this cell.) Each of these tensors is four times as wide as the model: 4 numbers for each token and dimension, in every layer. So how much is saved?

# %%
fused = your_own.Step(make=partial(large, activation_function="gelu_pytorch_tanh"))
gelus = {"as it is": shards}
gelus["one operator"] = fused.plan(gpu="A100 40 GB", gpus=8, zero=3)
numbers = 48 * 4 * 1024 * 1600  # layers, sequences, tokens, dimensions
lab.table(
    {
        "GELU": name,
        "kept, a token and dimension": plan.memory().parts["activations"] / 4 / numbers,
        "peak_bytes": plan.memory().peak_bytes,
    }
    for name, plan in gelus.items()
)

# %% [markdown]
# Twelve of 29 numbers were not needed. Without them four sequences fit. So look at what your module keeps before you pay for room with time. We go on with the module as it is.
#
# ### What does each cost?
#
# These times are by constants of other programs and machines: look at what grows, not at the digits. Products are in TF32, though the rest is fp32. Torch uses it only after `torch.set_float32_matmul_precision("high")`. Without it an A100 has 19.5 TFLOP/s in place of 156.

# %%
steps = {"shards, too large": shards, **tries}
steps["one GELU operator"] = gelus["one operator"]
lab.show(planner.time_bars(steps))

# %% [markdown]
# Recomputing takes a third longer, because the forward is computed twice. Fewer sequences at a time (`mbs=2`: two, then two more) cost less than that: smaller products run at a lower rate, and layers are gathered more often. Of these rows shards with two sequences are the fastest that fit, but for the last: there the same four sequences fit, and fewer operators read and write. Stages hold as little as shards with one sequence, and are the slowest: they wait for each other, and the last has more work than the others; the bar is of that one.

# %% [markdown]
# ### What labkit can't know of it
#
# A module says what it computes, and not what it means. So read what had to be left open before you believe a plan:

# %%
lab.table(your_own.doubts(your_own.Step(make=large)))

# %% [markdown]
# Two rows need a word:
#
# - **The loss.** A plan never calls one. It took the output for logits, and counted what a loss over them keeps ("logits" in the pictures). A run does call one, so the small module gets ours, `next_token`.
# - **Attention** was counted in full. GPT-2's is causal, and a kernel that skips the masked half needs half of that part of the time. We leave it at that: "attention" is a small part of the bars.

# %% [markdown]
# ## Run it, read it out
#
# The small module is next, on two real [ranks](GLOSSARY.md#rank), in shards by FSDP. These are the lines that do it, in your own script too:
#
# ```python
# for layer in (*module.transformer.h, module):  # each layer, then the whole
#     fully_shard(layer)
# optimizer = torch.optim.Adam(module.parameters())  # now of shards
# ```
#
# `Step` writes them. `split=True` gives each rank half of the batch. Beside the plan you see what was counted: each tensor's bytes, as torch made and dropped it.

# %%
step = your_own.Step(make=mine, loss=next_token, engine="fsdp", ranks=2, split=True)
sharded = step.compare()
sharded

# %% [markdown]
# Left bars are the plan, right ones were counted, at four moments of a later step: before the forward, after it ("F"), in the backward ("B"), at the update ("step"). Here are the bytes at the update, then at the peak:


# %%
def beside(found, moment):
    at = found.predicted.labels.index(moment)
    rows = zip(PARTS, found.predicted.num_bytes[at], found.measured.num_bytes[at])
    return lab.table({"part": name, "planned": a, "counted": b} for name, a, b in rows)


beside(sharded, "step")

# %%
beside(sharded, "B")

# %% [markdown]
# At the update, parameters and gradients agree to the byte. Adam has a few bytes more, a step counter for each tensor. The update needs temporary tensors that no plan knows of, so the plan is too low, but this isn't the peak.
#
# At the peak the plan is too high. It adds up all that may be there in the backward, and in the run some tensors came only when others had gone: at the highest point there was no gradient yet.
#
# A layer has 0.79 MB here, what lies outside of layers 0.55, the output layer 0.51. In the run a layer and the outside were gathered. The plan gathers two layers and the outside, and adds whole gradients of a layer and of the output: 2 x 0.79 + 0.55 + 0.79 + 0.51 MB. That is nearly all of this small module, but 1 of 42 GB with 48 layers. So trust a plan's states, and measure its peak.

# %% [markdown]
# ### Cut it in two
#
# Now cut the module in two [stages](GLOSSARY.md#stage). Torch traces it and finds out by itself what the second half needs of the first. GPT-2's embedding and its output layer are one table, and they lie at opposite ends. So how much do both stages hold together, compared with the whole?

# %%
both = lab.guess("parameters of both stages, over the whole", between=(0.5, 2))

# %%
cut = step.but(engine="pipeline")
halves = cut.compare()
in_both = sum(rank["parameters_bytes"] for rank in halves.run)
both.score(in_both / (4 * step.shape().params))

# %%
halves

# %% [markdown]
# The table has 1,000 x 128 numbers, and they lie on both stages: 14 % of this small module, 5 % of the large one. Once a step, after the last backward and before the update, their two gradients have to be added, or the copies drift apart. Torch leaves that to you; labkit's cut does it.
#
# On rank 0, drawn here, all moments but "B" were planned too low. Torch's pipeline keeps some activations between steps (yellow at "start"), and at "step" there are temporary tensors; no plan knows of either. That is the dangerous side, but the peak, at "B", was planned high. `cut.but(rank=1).compare()` shows the other stage, with the logits and the loss.
#
# <details><summary>What does Step write for you here?</summary>
#
# ```python
# points = {"transformer.h.2": SplitPoint.BEGINNING}
# pipe = pipeline(module, (), one_microbatch, split_spec=points)
# schedule = ScheduleGPipe(pipe.build_stage(rank, device), 2, loss_fn=loss)
# schedule.step(**batch) if rank == 0 else schedule.step(target=targets)
# dist.all_reduce(table.grad)  # of tied weights, on both ends
# ```
#
# </details>

# %% [markdown]
# ### Is it still the same module?
#
# Every process began with the same seed. One process took the batch whole, shards took a half on each rank (their loss is the mean over ranks), stages took two halves one after the other (the last has the loss). So all losses should agree, also after updates.

# %%
one = step.but(engine="ddp", ranks=1).run()[0]
ran = {"one process": one, "shards": sharded.run[0], "stages": halves.run[1]}
for way, rank in ran.items():
    print(way, *(format(loss, ".5f") for loss in rank["losses"]))

# %% [markdown]
# Equal to rounding, before the first update, after it, and after the second. A gradient that nobody averaged would show here, since the samples are random and the halves differ. One thing would not show: Adam hardly notices if all gradients are twice as large.
#
# If yours differ, look for one of these first:
#
# 1. Something in your module is random (dropout).
# 2. The loss leaves padding out. Each half is averaged over its own tokens, and then the halves count alike, even if one has fewer.
# 3. The cut has lost something, such as a buffer that only one stage changes.
#
# Exercise 2 asks you for a fourth.

# %% [markdown]
# ### Where does it run out of memory?
#
# A plan is tested by a card on which one way should fit and the other not. Pretend devices have as much memory as you say, and one tensor too many raises the error that you know. How many MB are planned for copies of the small module, at their peak? Its states are 16 bytes for each of 0.9 million parameters.

# %%
smallest = lab.guess("MB at the peak, copies", between=(0, 100))

# %%
copies = step.but(engine="ddp")
planned = [each.predict().peak_bytes for each in (copies, step)]
smallest.score(planned[0] / 1e6)

# %% [markdown]
# So take a card whose memory lies midway between the two planned peaks, of copies and of shards (in MiB, of 1,048,576 bytes). Copies have not run on two ranks yet. Do they die on it, and do shards train?

# %% tags=["raises-exception"]
card = lab.pretend(memory_mib=sum(planned) / 2 / 2**20)
copies.but(devices=card).run()

# %%
step.but(devices=card).run()[0]["losses"]

# %% [markdown]
# Copies die, and shards train, with the losses from above. Copies get through one step, since Adam makes its moments only in the first update. In the second forward these are there, and so are DDP's buckets, which stay between steps.
#
# ### How near was the plan?
#
# It was right to say no. Here is what both really take where there is room enough:

# %%
roomy = copies.compare()
lab.table(
    {
        "way": name,
        "planned_bytes": found.predicted.peak_bytes,
        "counted_bytes": found.measured.peak_bytes,
        "allocator_bytes": found.run[0]["allocated_bytes"],
    }
    for name, found in {"copies": roomy, "shards": sharded}.items()
)

# %% [markdown]
# The pretend device's allocator agrees with our count of tensors, and the plan is above both, for shards by nearly a quarter: it errs on the safe side here.
#
# **What labkit can't know here**: how your allocator fragments, and what your libraries take below torch.
#
# **The second time through**, with yours: which part is farthest from its plan, and why? If the losses differ, for which reason?
#
# <details><summary>What does not work?</summary>
#
# We tried GPT-2, BERT, T5, ViT, Mamba, Mixtral, ResNet and Whisper of transformers, and torch's own `nn.Transformer` and `nn.LSTM`. These need special care (with transformers 5.23):
#
# - LSTM: its layers are no modules, so nothing is found that repeats, and it is not run in parts.
# - ResNet: its first convolutions keep far more than its last ones, so a plan of its stages is far too low for the first. Believe what was read out.
# - Mixtral: it is measured and sharded in fp32 only if its experts work as one product (`config._experts_implementation = "batched_mm"`). Cut in stages, it fails in torch's runtime.
# - Whisper: torch can't trace its cache, so set `use_cache=False`. Leave `labels` out of the batch and give a `loss=`: only the first stage is given the batch. Then it is cut.
#
# </details>

# %% [markdown]
# ## Exercise 1. Few trials
#
# Now without a plan. `trial(microbatch, recompute)` times a made-up step and returns the milliseconds of the whole step, or None where it does not fit. Find the fastest way to take `batch` samples on each rank. In the check it is 16, so there are ten ways: microbatches of 1, 2, 4, 8 or 16, each with `recompute` or without. You have six trials.
#
# - One sample at a time always fits. What fits still fits with a smaller microbatch, or with recomputation.
# - Recomputation takes a third longer. Every microbatch costs something by itself, an amount that differs from test to test.
# - Yours may be 12 % slower than the fastest.


# %%
def my_tuning(trial, batch):
    """(microbatch, recompute) of the fastest that fits."""
    ### BEGIN SOLUTION
    found, microbatch = [], batch
    for recompute in (True, False):  # without it, nothing larger fits
        while (took_ms := trial(microbatch, recompute)) is None:
            microbatch //= 2
        found.append((took_ms, microbatch, recompute))
    return min(found)[1:]
    ### END SOLUTION


# %%
check.tune(my_tuning)

# %%
check.hint("tune")

# %% [markdown]
# ## Exercise 2. A module that changes in two stages
#
# GPT-2's losses agreed. Write a module whose losses do not: in two stages its first loss differs from that in one process, by more than rounding, and yet nothing in it is random. Return it with a batch, a tensor with a sample in each row. Put four layers that are alike into a `torch.nn.Sequential`: labkit cuts between those, and both halves of the batch go through each stage, one after the other. The loss is the mean of the output's squares.


# %%
def my_odd():
    """(module, batch): its loss in two stages is not that of one process."""
    ### BEGIN SOLUTION

    class Centred(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(32, 32)

        def forward(self, x):
            # a stage gets half of the batch at a time, and so another mean
            return self.linear(x - x.mean(dim=0)).relu()

    return torch.nn.Sequential(*(Centred() for _ in range(4))), torch.randn(8, 32)
    ### END SOLUTION


# %%
check.odd_module(my_odd)

# %%
check.hint("odd_module")

# %% [markdown] sections="19.8.6"
# ## A script
#
# *A good place to rest. The module is done; a script, a machine and a cluster take about 50 minutes, exercise 3 included.*
#
# A script needs no change at all. This one reads its batches as it goes and trains with DDP. (To keep it short, both ranks read the same samples; yours wants a `DistributedSampler`.) With yours, replace the whole cell by its path, `script = Path("train.py")`; the file stays as it is:

# %%
script = Path(tempfile.mkdtemp()) / "train.py"
_ = script.write_text("""
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.006)  # to read and decode
        return super().__getitem__(index)

dist.init_process_group()
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in DataLoader(Slow(torch.randn(80, 256)), batch_size=8):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
""")

# %% [markdown]
# In a terminal you write `python -m labkit record train.py --using torchrun --ranks 2`. It starts the script, records seven steps on every rank, of which it leaves out two that warm up, and writes a page. From here it is one call.

# %%
found = record(script, ranks=2, show=False)
found

# %% [markdown]
# Eight samples of 6 ms make 48 ms for each batch, and nothing computes meanwhile. The advice names the reading. (We go on with the average rank, not with the critical path, chapter 15.) Why is so little saved? The advice replays the steps with one reader that works ahead, and a step can then be no shorter than reading a batch.
#
# ### Four readers
#
# With four readers a batch comes every 12 ms on average ([chapter 15](15_profiling_and_scaling.ipynb)). And this is the rest of a step, in ms, without the share that waits for data:

# %%
rest_us = found.step_us * (1 - found.advice.share("input"))
round(rest_us / 1000, 1)

# %% [markdown]
# The longer of the two, 12 ms or the rest, sets the pace, if the rest stays what it was. Which share of the step do four readers save? A cure is proven by a run. With yours, make the change by hand, in a copy, and put `cured = Path("cured.py")` in place of the five lines before the recording.

# %%
gain = lab.guess("share of the step that four readers save", between=(0, 1))

# %%
readers = "num_workers=4, prefetch_factor=1"
cured = script.with_name("cured.py")
_ = cured.write_text(
    script.read_text().replace("batch_size=8", f"batch_size=8, {readers}")
)
again = record(cured, ranks=2, show=False)
gain.score(1 - again.step_us / found.step_us)

# %%
steps_us = {"as it was": found.step_us, "four readers": again.step_us}
quarter_us = found.step_us * found.advice.share("input") / 4
steps_us["the longer of the two"] = max(quarter_us, rest_us)
lab.table({"script": name, "took_us": took_us} for name, took_us in steps_us.items())

# %% [markdown]
# The last row was computed, from a quarter of the recorded wait for data (a little more than 12 ms, since a `sleep` lasts a little longer than it says). How near are the last two? On our two cores they agreed on one day: 56 ms became 12.5. On another 58 became 24.
#
# <details><summary>Why <code>prefetch_factor=1</code>?</summary>
#
# So each reader keeps one batch in hand, not two as usual. With eight batches in hand, most of the seven steps would have been read before the recording. And readers that begin together also deliver together: four batches at once, then a long wait. Five recorded steps may hold one such wait or two, so a step may come out longer or shorter than the rule says.
#
# </details>
#
# ### What is in the way now?
#
# Here is the new recording, and then what a step is made of, before and after:

# %%
again

# %%
lab.table(
    {
        "part": part,
        "before_us": found.step_us * found.advice.share(part),
        "after_us": again.step_us * again.advice.share(part),
    }
    for part in ("input", "compute", "comm", "waiting", "unrecorded")
)

# %% [markdown]
# "input" is waiting for data, "comm" are messages that nothing hides, and "waiting" is for the other rank. Which part is the largest now? Has any grown?
#
# - **"input" is the largest**: a batch every 12 ms still sets the pace. More readers can help until the rest is longer.
# - **All but "input" has grown**: two ranks with four readers each are ten processes, and they share your cores. So it was for us on the second day: computing had more than doubled.
# - **"waiting" has grown**: see in the picture what the late rank does meanwhile, reading or computing.
#
# The advice knows neither readers nor cores, and may promise a step in which no batch can come. It is a guess, until a run proves it.
#
# **What labkit doesn't know**: how many operations are in every kernel that it records. Convolutions have no count here, nor has fused attention, which most transformers use. Then there is no MFU (chapter 18), and `found.told()` says why.
#

# %% [markdown]
# ## A machine
#
# *Another place to rest.*
#
# A plan needs the speed of your machine, and a data sheet has only its peak. `python -m labkit measure` runs the main experiments of the course on it, in ten minutes at most, and puts them on a page beside other machines. The speeds of products, memory and messages take only seconds:

# %%
here = planner.speeds(2)
lab.table(
    [
        {
            "products, TFLOP/s": here.tflops,
            "memory, GB/s": here.hbm_gb_per_s,
            "gathering, GB/s": here.links["all_gather"][1],
        }
    ]
)

# %%
plan = step.plan(gpu=here)
lab.show(planner.time_bars({"shards": plan}))

# %% [markdown]
# A program reaches a part of these speeds. That part is a constant, and the planner's constants were fitted on GPUs. Below, a real step: the fastest of five, on the plain CPU whose speeds we measured (`devices="cpu"`). How near does the plan come?

# %%
near = lab.guess("measured step over planned step", between=(0.2, 5))

# %%
plain = step.but(devices="cpu", timed=5)
run = plain.run()
fastest_us = min(run[0]["step_us"])
near.score(fastest_us / plan.time().step_us)

# %% [markdown]
# ### Where did the time go?
#
# Constants from GPUs don't hold on this machine. Here is one more such step, recorded. It takes up to twice as long, since recording takes time as well. FSDP names its own work in a recording; we leave those marks out.

# %%
seen = run.timeline()
seen.select(seen.lane != "mark")

# %% [markdown]
# In the upper row of each rank blue is computing, and green is the update. In the lower one layers are gathered, forward and backward, and gradients are on their way, by an all-reduce, since gloo has no reduce-scatter of its own. A long message may be a wait for the other rank.
#
# While the upper row is hatched, nothing is computed: there are messages, FSDP's copies in and out, and Python. Of all these the plan counts the messages, and a little for launches. And it counts too little for the update: compare the green part with "optimizer" in its bar.
#
# ### Fit, then plan
#
# [Chapter 18](18_which_layout.ipynb) had a cure: measure four runs that differ in what you want to know, fit the constants, and plan then. `row(...)` writes down a timed step, and `fit` begins with the plan's own constants. Here are four, of 2 and 4 layers, 4 and 8 sequences (each rank takes half of them); the first is the one above:


# %%
def timed(layers, sequences):
    sized = plain.but(make=partial(mine, layers, sequences))
    return sized.row(min(sized.run()[0]["step_us"]), gpu=here)


runs = [plain.row(fastest_us, gpu=here)]
runs += [timed(*each) for each in ((2, 4), (4, 8), (2, 8))]
fitted = planner.fit(runs, begun=[plan.stack])
lab.table([fitted.constants()])

# %% [markdown]
# Two constants are fitted, no more for four runs: what share of the measured speed large products reach ("matmul"; small ones reach less), and a fixed time for each layer ("layer"). All that the plan doesn't know lands in one of these two: messages that wait, FSDP's copies, the update, Python. Which of them takes it differs from run to run. (If your "matmul" is above 1, that is no speed: your clock hardly grew with the sequences, so the fit made products cheap and layers dear.) After a fit the whole is nearer to the clock, but the names of its parts no longer tell.

# %%
by_fit = plan.but(stack=fitted.stack(runs[0]))
lab.show(planner.time_bars({"by GPUs": plan, "by four runs": by_fit}))

# %% [markdown]
# ### Does it hold farther out?
#
# On the four runs even a good fit proves nothing: it was fitted to them. So take a step larger than all of them: 6 layers, 12 sequences. How near does the fitted plan come to that?

# %%
nearer = lab.guess("measured step over fitted plan", between=(0.2, 5))

# %%
runs.append(timed(6, 12))
nearer.score(
    runs[-1].step_us() / planner.predicted_us(runs[-1], fitted.stack(runs[-1]))
)

# %%
lab.table(
    {
        "layers": row.shape.layers,
        "sequences": row.layout.gbs,
        "measured_us": row.step_us(),
        "planned_us": planner.predicted_us(row, plan.stack),
        "fitted_us": planner.predicted_us(row, fitted.stack(row)),
    }
    for row in runs
)

# %% [markdown]
# The first four rows were fitted, the last is the test. Is its "fitted" nearer to "measured" than "planned" is? When this chapter was written it was, in all of seven trials on quiet machines, and never off by more than a quarter. If yours is off by more, something else may be running: time more steps (`timed=20`), or run the cells again from `plain = ...` on.
#
# **What labkit can't know**: who else uses the machine. The fastest of five steps says what your program can do. What you will get on a busy day shows only if you measure at other hours too.

# %% [markdown]
# ### Was a term missing?
#
# If a fit is off on a quiet machine too, a term may be missing in the formula. Look at the four fitted rows of your table: do their errors go by layers or by sequences?
#
# - **By layers**, too low for 2 and too high for 4: a step takes some time by itself, and the planner has no constant for that. The fit presses it into the layers, and far out it is too high.
# - **By sequences**, too low for 4 and too high for 8: twice the sequences took hardly longer on your clock. So don't trust the fit in sequences, even if the fifth row comes near.
# - **Neither**: that is the clock.
#
# Here is a made-up machine of the first kind. A step takes 24 ms by itself, 15 ms for each layer, and 0.6 ms for each sequence in each layer. Beside it stands the best fit that has nothing for the step itself:
#
# | layers | sequences | took | fitted |
# | --- | --- | --- | --- |
# | 4 | 4 | 94 ms | 98 ms |
# | 2 | 4 | 59 ms | 49 ms |
# | 4 | 8 | 103 ms | 108 ms |
# | 2 | 8 | 64 ms | 54 ms |
# | 6 | 12 | ? | 176 ms |
#
# By hand, what does the fifth step take there?
#
# <details><summary>Answer</summary>
#
# 24 + 6 x 15 + 6 x 12 x 0.6 = 157 ms. The fit is a tenth too high, and on 48 layers it would be more than a quarter.
#
# </details>

# %% [markdown]
# ## Exercise 3. Four runs, then far away
#
# Now write the fit. `clock(layers, sequences)` gives the milliseconds of one step, of at most 4 layers and 8 sequences, on a machine that you don't know. As on the made-up one, a step takes some time by itself, some for each layer, and some for each sequence in each layer. The clock errs by up to 1 %. Say what a large step takes, 48 layers and 16 sequences for instance, to within a tenth. You may time four steps. Which four? The machines are made up, and keep to this rule.


# %%
def my_forecast(clock, layers, sequences):
    """Milliseconds of a step that is too large to be tried."""
    ### BEGIN SOLUTION
    tried = [(1, 1), (4, 1), (1, 8), (4, 8)]  # far apart, or the clock's error counts
    parts = torch.tensor([[1.0, n, n * s] for n, s in tried])
    took_ms = torch.tensor([[clock(n, s)] for n, s in tried])
    step, layer, sequence = torch.linalg.lstsq(parts, took_ms).solution[:, 0]
    return step + layer * layers + sequence * layers * sequences
    ### END SOLUTION


# %%
check.forecast(my_forecast)

# %%
check.hint("forecast")

# %% [markdown]
# ## A cluster
#
# A cluster changes two things. Between machines a message is slower than inside; and the processes must find each other. The first is a matter of planning. Take the large module on two machines: 16 cards, with one sequence each, 16 in a step. The plan warns first:

# %%
two = shards.but(gpus=16, mbs=1, batch=16)
lab.table([{"warnings": each} for each in two.warnings()])

# %% [markdown]
# So how long a step of the shards takes is not to be believed. How it depends on the network in this plan is still worth a look (where messages don't hide, it depends more). With a quarter of the bandwidth, 6.25 GB/s for each card in place of 25, how many times as long does a step of the shards take?

# %%
starved = lab.guess("step at 6.25 GB/s, over step at 25", between=(1, 5))

# %%
nic = {gb: two.but(nic_gb_per_s=gb).time().step_us for gb in (6.25, 25)}
starved.score(nic[6.25] / nic[25])

# %% [markdown]
# Not four times as long: in the plan, at 25 GB/s (sold as 200 Gbit/s) most of the messages hide under computing. Here are shards and copies, on networks of five speeds:

# %%
ways = {"shards": two, "copies": two.but(zero=0)}
speeds_gb = [1.5, 3, 6.25, 12.5, 25]
curves = {
    name: {gb: plan.but(nic_gb_per_s=gb).time().step_us / 1e6 for gb in speeds_gb}
    for name, plan in ways.items()
}
axes = {"x": "GB/s for each card", "y": "seconds per step"}
axes |= {"log_x": True, "log_y": True}
lab.curves(predicted=curves, title="A step on two machines, predicted", **axes)

# %% [markdown]
# On the left everybody waits for the network: half the bandwidth takes nearly twice the time. Farther right, gathering hides under computing, and bandwidth helps less. In a step copies send about two models' worth of numbers (an all-reduce), shards three (two gathers and a reduce-scatter); so copies win on slow networks. Each of a machine's eight cards carries an eighth of that to the other machine. These counts hold. The times rest on the planner's assumption that a card reaches half of what its data sheet says. On fast networks copies lose in the plan, because with them every card updates all numbers, and with shards only its own. Don't read off where the curves cross. Where copies don't fit, shard inside each machine and copy between machines ([chapter 10](10_mesh_and_experts.ipynb)); this planner can't show that.

# %% [markdown]
# ### Let them find each other
#
# That is torchrun's work. The same line runs on every machine, with the address of one of them, by hand or from your scheduler's job script:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \
#          --rdzv-id any-name --rdzv-endpoint first-machine:29500 train.py
# ```
#
# Your script calls `init_process_group()`, takes the card `LOCAL_RANK` (`torch.cuda.set_device`), saves to a disk that all machines see, and begins from the last checkpoint if there is one ([chapter 13](13_checkpoint_and_recover.ipynb)), because machines fail, and `--max-restarts` begins anew.
#
# **What labkit can't know**: your network's topology, its other users, and which of your machines is slow. Before you let it run for a week, record it on each machine by itself (`python -m labkit record`), and compare.

# %% [markdown] sections="19.7"
# ## Key ideas of the course
#
# Each has its chapter, and a number to remember it by:
#
# | idea | a number | chapter |
# | --- | --- | --- |
# | In a ring's all-reduce a rank sends less than twice the buffer, among however many ranks. | 2 x 1023 / 1024 = 1.998 buffers for 1,024 ranks | [02](02_collectives.ipynb) |
# | Data parallelism averages gradients over the ranks, while the backward still runs. | 7 B in bf16: 14 GB of gradients in each step | [03](03_data_parallel.ipynb) |
# | Half the bits are not half the memory: Adam and the master weights stay in fp32. | 2 + 2 + 12 = 16 bytes a parameter, as many as in fp32 | [05](05_precision_and_memory.ipynb) |
# | ZeRO and FSDP shard what copies have in common. | 7 B on eight ranks: 112 / 8 = 14 GB of states in place of 112 | [06](06_zero_deepspeed.ipynb), [07](07_fsdp.ipynb) |
# | A pipeline sends little and waits: the bubble. | 3 / 11 = 27 % idle with 4 stages, 8 microbatches | [08](08_pipeline_parallel.ipynb) |
# | Tensor parallelism sends in every layer. | 4 all-reduces a layer, forward and backward together | [09](09_tensor_parallel.ipynb) |
# | Experts add weights, hardly any computing. | DeepSeek-V3: 8 of 256 experts a token, 37 of 671 billion parameters compute | [10](10_mesh_and_experts.ipynb) |
# | Inside a machine links are fast, between machines slow: place the axes accordingly. | our 7 B model with two axes swapped: a step of thirty seconds instead of seven | [10](10_mesh_and_experts.ipynb) |
# | Hide messages, or send fewer, or smaller ones. But fewer bytes in more messages may be slower. | 71 ms with an eighth of the bytes, 63 with all | [11](11_communication.ipynb), [19](19_case_studies.ipynb) |
# | Past a critical batch, more cards save few steps. | chapter 12's small training: 4 times the batch saved a third of the steps | [12](12_large_batches.ipynb) |
# | Machines fail: save, and start again. | on 16,384 GPUs something failed every three hours | [13](13_checkpoint_and_recover.ipynb) |
# | Most errors are echoes: look for the rank that failed first, or never came. | 64 tracebacks, one guilty rank | [14](14_debugging.ipynb) |
# | Watch what a step waits for, and prove a cure. | the script above, with four readers: 12.5 ms a step on one day, 24 on another | [15](15_profiling_and_scaling.ipynb), this one |
# | Unequal machines get unequal shares. | an H100 three times as fast as the A100 beside it: 3 microbatches to 1 do twice the work of equal shares in the same time | [16](16_unequal_machines_and_serving.ipynb) |
# | Between machines count what crosses. | two machines of two ranks: 1.5 buffers cross in a flat ring, one if it is done in three stages | [17](17_many_machines.ipynb) |
# | Choose a layout together with the program that runs it. | 175 B on 1,536 GPUs: 74 days by one program with ZeRO 3, 23 by another with tensors and stages | [18](18_which_layout.ipynb) |

# %% [markdown] sections="D-next"
# ## Where to go from here
#
# You can read the programs themselves now. (Numbers are of arXiv: 2201 is January 2022.)
#
# | program | what it is | where it stands (late 2026) |
# | --- | --- | --- |
# | [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) | NVIDIA's: tensor parallelism comes from here ([1909.08053](https://arxiv.org/abs/1909.08053)); now pipeline, context and expert parallelism too | maintained; its core is a package, `megatron-core`, of which chapter 09 uses 0.16 |
# | [DeepSpeed](https://github.com/deepspeedai/DeepSpeed) | where ZeRO comes from ([1910.02054](https://arxiv.org/abs/1910.02054)); offload, pipelines, experts | maintained; chapters 06 and 10 use 0.19 |
# | [torchtitan](https://github.com/pytorch/torchtitan) | PyTorch's own: all axes by `DeviceMesh`, `fully_shard` and DTensor, in little code ([2410.06511](https://arxiv.org/abs/2410.06511)) | maintained; read it first, since it uses what chapters 07 to 10 used |
# | [FairScale](https://github.com/facebookresearch/fairscale) | Meta's, where FSDP was first | history: by its own README its FSDP went into PyTorch, which one should use |
# | [Colossal-AI](https://github.com/hpcaitech/ColossalAI) | a collection of all axes, with tensors cut in two and three dimensions as well ([2110.14883](https://arxiv.org/abs/2110.14883)) | its newest release on PyPI, 0.5.0, is of June 2025 |
# | [Alpa](https://github.com/alpa-projects/alpa) | a compiler that finds the layout by itself, in JAX ([2201.12023](https://arxiv.org/abs/2201.12023)) | by its own README not actively maintained; its search lives on in XLA |
# | [picotron](https://github.com/huggingface/picotron), [nanochat](https://github.com/karpathy/nanochat) | small programs, written to be read | not meant for large runs |

# %% [markdown]
# ## Summary
#
# - A module is planned from one forward without bytes: states to a few bytes, the peak roughly, the time only with constants that you measured.
# - ZeRO and FSDP shard states, not activations. Look at which part is the largest before you choose a cure.
# - Read memory out beside the plan. Compare losses, after updates too, with those of one process, and give each rank samples of its own.
# - A script is recorded unchanged; a cure is proven by recording again.
# - For a machine and a cluster, measure what no data sheet has.
#
# **Words of this page** are all in the [glossary](GLOSSARY.md). **Further reading**: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
#
# **Next:** your own training. This was the last chapter; come back when a step takes longer than planned.
#
# *Sections 8.12 and 19.8.6 of the source material.*

# %%
check.status()
