# ---
# jupyter:
#   labkit:
#     sections: ["8.12", "19.7", "19.8.6", "D-next"]
#     needs: ["chapters 06, 08, 15 and 18", "transformers (installed with labkit)"]
#     minutes: 45
# ---

# %% [markdown]
# # Your own
#
# *About 45 minutes. You need chapters 06, 08, 15 and 18. No GPU is needed.*
#
# So far every model was ours. Now bring yours: a module, a script, a machine, a cluster. Say that it is GPT-2 XL, as the library transformers has it. Its weights are a file of 6 GB. Four sequences at a time, on a card of 40 GB: does it train?
#
# First what every cell needs:

# %%
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import labkit as lab
from labkit import planner, your_own
from labkit.planner.real.here_run import speeds
from labkit.profiling.recording import record

lab.begin("en", deadline_s=60)

# %% [markdown]
# **Replace the next cell, and only this one.** `mine` gives a small module and a batch for it, samples first. `large` gives the same at the size that you are after.


# %%
def mine(layers=4, width=128, heads=4, vocab=1000, length=64):
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = GPT2Config(vocab_size=vocab, n_positions=length, **sizes, **ends)
    return GPT2LMHeadModel(config).eval(), {"input_ids": torch.ones(4, length).long()}


def large():
    return mine(layers=48, width=1600, heads=25, vocab=50257, length=1024)


# %% [markdown]
# The plan is for eight such cards, with a copy of everything on each.

# %%
whole = your_own.Step(make=large).plan(gpu="A100 40 GB", gpus=8, zero=0)
lab.show(planner.memory_bars({"copies": whole}))

# %% [markdown]
# Predicted: nothing has run. The upright line is the card's memory, and what stands right of it, in a thick frame, is too much. So ours does not train in this way.
#
# **When you are done** you can plan a module that nobody has written formulas for, shard it and cut it, find what a script of yours waits for, and say what of all this you still have to measure.

# %% [markdown] sections="8.12"
# ## A module
#
# The planner sent the batch once through the module, with tensors that have a shape and no bytes. It counted parameters, operations and what the backward needs ([chapter 18](18_which_layout.ipynb)). `eval()` leaves dropout out, so that we can compare losses below. (With `train()` the plan has a few GB more.)
#
# One cure is to shard. On eight cards each would keep an eighth of the parameters, gradients and moments of Adam. What is left of the memory of a card?

# %%
left = lab.guess("memory with shards, over memory with copies", between=(0, 1))

# %%
shards = whole.but(zero=3)
left.score(shards.memory().peak_bytes / whole.memory().peak_bytes)

# %%
stages = whole.but(pp=8, batch=32)
lab.show(planner.memory_bars({"copies": whole, "shards": shards, "stages": stages}))

# %% [markdown]
# If you kept ours: much is left, because the largest part are the activations, and no sharding of states makes those smaller. Nor do stages: they have fewer layers each, but the first one keeps them for eight microbatches. What helps is a smaller microbatch, or recomputation. Which would you try first?

# %%
tries = {"one sequence": shards.but(mbs=1, batch=32)}
tries["recompute"] = shards.but(recompute="full")
tries["copies, one"] = whole.but(mbs=1, batch=32)
lab.show(planner.memory_bars({"shards": shards, **tries}))

# %%
times = {name: plan.time().step_us for name, plan in tries.items()}
lab.table({"plan": name, "step_us": step_us} for name, step_us in times.items())

# %% [markdown]
# All three fit, if the module is ours. Recomputing takes the longest, because the forward is computed twice. And look at the last row: with one sequence at a time (`mbs=1`, four of them one after the other) even plain copies fit. The microbatch was too much, not the copies.

# %% [markdown]
# ### What labkit can't know of it
#
# A module says what it computes, and not what it means. Here is what had to be left open:

# %%
lab.table(your_own.doubts(your_own.Step(make=large)))

# %% [markdown]
# Read this table before you believe a plan. For a module like a ResNet a row more appears: most of its parameters lie outside of equal layers, and then the planner has hardly anything to cut. Of the rows here, the loss matters most. Nobody has read yours: if the module gives a number first, labkit takes that, else the mean square of the output. Give yours as `loss=`, a function of the first tensor of the output, and the batch.

# %% [markdown]
# ## Run it, read it out
#
# The small module is next, on two real [ranks](GLOSSARY.md#rank), in shards by FSDP. Each rank gets the same batch, so the losses should be those of one process. Beside the plan you see what was read out: each tensor's bytes were counted as torch made and dropped it.

# %%
step = your_own.Step(make=mine, engine="fsdp", ranks=2)
sharded = step.compare()
sharded

# %% [markdown]
# Left bars are the plan, right ones were read out. Look at "start" and "step": parameters, gradients and Adam are there to the byte, or nearly, because those are counted. In the middle the two differ. The plan adds up gradients and gathered layers as if all were there at once. In the run some of it came only when other parts had gone, and some was there that no plan knows of. It may err to both sides. Trust a plan's states; measure its peak.
#
# ### Cut it in two
#
# Now cut the module in two [stages](GLOSSARY.md#stage). Torch traces it and finds out by itself what the second half needs of the first. GPT-2's embedding and its output layer are one table, and they lie at opposite ends. So how much do both stages hold together, compared with the whole?

# %%
both = lab.guess("parameters of both stages, over the whole", between=(0.5, 2))

# %%
cut = your_own.Step(make=mine, engine="pipeline", ranks=2)
halves = cut.compare()
held = sum(rank["parameters_bytes"] for rank in halves.run)
both.score(held / (4 * step.shape().params))

# %%
halves

# %% [markdown]
# This is rank 0, which holds the first half; `cut.but(rank=1).compare()` shows the other without a new run. Tied weights lie on both ends, and after each step their two gradients have to be added, or the copies drift apart. Torch leaves that to you; labkit's cut does it.
#
# Is it still the same module? Here is its loss in one piece, and in parts:

# %%
ran = {"shards": sharded.run[0], "stages": halves.run[1]}
lab.table(
    {"way": name, "alone": rank["loss_alone"], "in parts": rank["losses"][0]}
    for name, rank in ran.items()
)

# %% [markdown]
# Equal to rounding. But this is the loss before the first update. Are the updates right, too? Both ways began alike, so all their losses should agree:

# %%
for way, rank in ran.items():
    print(way, *(round(loss, 5) for loss in rank["losses"]))

# %% [markdown]
# If yours differ, something in your module differs from run to run (dropout, batch norm over a part of the batch), or the cut has lost something. Find out before you train for a week.
#
# ### How small may the card be?
#
# A plan is tried best where it fails. Pretend devices have as much memory as you say, and a tensor too many raises the error that you know. Copies first: what is the smallest card, in MiB, on which the small module trains?

# %%
smallest = lab.guess("MiB of the smallest card, copies", between=(0, 100))

# %%
copies = step.but(engine="ddp", devices="pretend").run()
needs = {"copies": copies[0]["allocated_bytes"]}
smallest.score(needs["copies"] / 2**20)

# %%
needs["shards"] = step.but(devices="pretend").run()[0]["allocated_bytes"]
lab.bars(needs, unit="bytes", title="Highest point of the allocator")

# %% [markdown]
# Read from the device's own allocator, not from our count. `step.but(engine="ddp", devices=lab.pretend(memory_mib=30)).run()` gives you a card between the two: copies die on it, shards don't.
#
# **What labkit can't know here**: how your allocator fragments, and what your libraries take below torch. Leave a tenth of the card free.
#
# <details><summary>What does not work?</summary>
#
# We tried GPT-2, BERT, T5, ViT, Mamba, Mixtral, ResNet and Whisper of transformers, and torch's own `nn.Transformer` and `nn.LSTM`. These need a word (with transformers 5.23):
#
# - LSTM: its layers are no modules, so nothing is found that repeats, and it is not run in parts.
# - ResNet: its first convolutions keep far more than its last ones, so a plan of its stages is far too low for the first. Believe what was read out.
# - Mixtral: it is measured and sharded in fp32 only if its experts work as one product (`config._experts_implementation = "batched_mm"`). Cut in stages, it fails in torch's runtime.
# - Whisper: torch can't trace its cache, so set `use_cache=False`. Leave `labels` out of the batch and give a `loss=`: only the first stage is given the batch. Then it is cut.
#
# </details>

# %% [markdown] sections="19.8.6"
# ## A script
#
# A script needs no change at all. This one reads its batches as it goes and trains with DDP. In place of it, put the path of yours:

# %%
script = Path(tempfile.mkdtemp()) / "train.py"
_ = script.write_text("""
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.004)  # to read and decode
        return super().__getitem__(index)

dist.init_process_group()
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in DataLoader(Slow(torch.randn(64, 256)), batch_size=8):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
""")

# %% [markdown]
# In a terminal you write `python -m labkit record train.py --using torchrun --ranks 4`. It starts the script, records every rank, leaves the first steps out, and writes a page. From here it is one call. Which share of its time would the best change save?

# %%
gain = lab.guess("share of the step that the best change saves", between=(0, 1))

# %%
found = record(script, ranks=2, show=False)
gain.score(found.advice.best.gain)

# %%
found

# %%
print(found.told())

# %% [markdown]
# Eight samples of 4 ms make 32 ms for each batch, and little computes meanwhile. The advice names it. But why does it save so little, where so much is waiting? It plays one reader that works ahead, and one reader is still slower than the training. [Chapter 15](15_profiling_and_scaling.ipynb) says how many workers it takes: reading time over the time of a step that reads nothing. (Both ranks read the same samples here, to keep the script short. Yours wants a `DistributedSampler`.) The line "MFU" has the operations of all matrix products, over what this machine could have done ([MFU](GLOSSARY.md#mfu)).
#
# **What labkit can't know**: whether the steps that it saw are like those of an hour later, and what a kernel of your own computes. Convolutions and fused attention have no count here, and then it says "MFU: not known" and why. A script that trains each rank for itself is found out too: "nothing was sent". Accelerate's own `test_sync.py` is one, where torchrun starts it on a CPU. There say `--using accelerate`.

# %% [markdown]
# ## A machine
#
# A plan needs the speed of your machine, and a data sheet has only its peak. `python -m labkit measure` takes the headline experiments of the course on it in ten minutes at most, and puts them on a page beside other machines. Some numbers take only seconds: products, memory, messages. All ranks work at once, as in training.

# %%
link = lab.guess("GB/s of an all-reduce on this machine, two ranks", between=(0, 20))

# %%
here = speeds(2)
link.score(here.node_gb_per_s)

# %%
plans = {"copies": step.plan(gpu=here, zero=0), "shards": step.plan(gpu=here)}
lab.show(planner.time_bars(plans))

# %% [markdown]
# The small module on two ranks of this machine, predicted from what was just measured, with the planner's constants for torch's own operators. Is your network the long part, or the products?
#
# **What labkit can't know**: who else uses the machine. Measure twice, at different hours, and believe the slower one.

# %% [markdown]
# ## A cluster
#
# A cluster changes two things. Between machines a message is slower than inside; and the processes must find each other. The first is a matter of planning. Here is the large module in shards on two machines, by what the network gives each card:

# %%
two = shards.but(gpus=16, mbs=1, batch=16, stack="")
lab.sweep(two, nic_gb_per_s=[1.5625, 3.125, 6.25, 12.5, 25])

# %%
lab.table([{"warnings": each} for each in two.warnings()])

# %% [markdown]
# Read the warning with the curve: it may be far too low. Towards the right the curve flattens, because gathering hides under computing. Towards the left everybody waits for the network, and half the bandwidth takes nearly twice the time. There, shard inside each machine only, and copy between them ([chapter 10](10_mesh_and_experts.ipynb)).
#
# The second is torchrun's work. The same line runs on every machine, with the address of one of them, by hand or from your scheduler's job script:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \
#          --rdzv-id any-name --rdzv-endpoint first-machine:29500 train.py
# ```
#
# Your script reads `LOCAL_RANK` for its card and `RANK` for its place, saves to a disk that all machines see, and begins from the last checkpoint if there is one ([chapter 13](13_checkpoint_and_recover.ipynb)), because machines fail.
#
# **What labkit can't know**: your network's topology, its other users, and which of your machines is slow. Record one step on all ranks before you let it run for a week.

# %% [markdown] sections="19.7"
# ## Key ideas of the course
#
# Each has its chapter, and a number to remember it by:
#
# | idea | a number | chapter |
# | --- | --- | --- |
# | In a ring's all-reduce a rank sends less than twice the buffer, among however many ranks. | 2 x 1023 / 1024 = 1.998 buffers for 1,024 ranks | [02](02_collectives.ipynb) |
# | Data parallelism agrees on gradients, under the backward. | 14 GB a step for 7 B in bf16 | [03](03_data_parallel.ipynb) |
# | A pipeline sends little and waits: the bubble. | 3 / 11 = 27 % idle with 4 stages, 8 microbatches | [08](08_pipeline_parallel.ipynb) |
# | Tensor parallelism sends in every layer. | 4 all-reduces a layer | [09](09_tensor_parallel.ipynb) |
# | Experts add weights, hardly any computing. | one or two experts a token | [10](10_mesh_and_experts.ipynb) |
# | ZeRO and FSDP shard what copies have in common. | 112 / 8 = 14 GB of states in place of 112 | [06](06_zero_deepspeed.ipynb), [07](07_fsdp.ipynb) |
# | Unequal machines get unequal shares. | an H100 three times as fast as the A100 beside it: 3 microbatches to 1, twice the work of equal shares | [16](16_unequal_machines_and_serving.ipynb) |
# | Hide messages, send fewer, send smaller ones; more messages of fewer bytes may be slower. | chapter 19, case 3: 71 ms with an eighth of the bytes, 63 with all | [11](11_communication.ipynb) |
# | Inside a machine links are fast, between machines slow: place the axes accordingly. | a step of thirty seconds instead of seven | [10](10_mesh_and_experts.ipynb) |
# | Mix the axes where one isn't enough. | 23 days in place of 74 | [18](18_which_layout.ipynb) |
# | Watch what a step waits for, and prove a cure. | chapter 19, case 1: 30 of 90 ms are reading | [15](15_profiling_and_scaling.ipynb) |
# | Machines fail: save, and start again. | once in three hours on 16,384 GPUs | [13](13_checkpoint_and_recover.ipynb) |

# %% [markdown] sections="D-next"
# ## Where to go from here
#
# You can read the programs themselves now. Their papers are dated by the number of their preprint (2201 is January 2022):
#
# | program | what it is | where it stands |
# | --- | --- | --- |
# | [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) | NVIDIA's: tensor, pipeline, context and expert parallelism in one program ([1909.08053](https://arxiv.org/abs/1909.08053)) | maintained; its core is a package, `megatron-core`, of which chapter 09 uses 0.16 |
# | [DeepSpeed](https://github.com/deepspeedai/DeepSpeed) | where ZeRO comes from ([1910.02054](https://arxiv.org/abs/1910.02054)); offload, pipelines, experts | maintained; chapters 06 and 10 use 0.19 |
# | [torchtitan](https://github.com/pytorch/torchtitan) | PyTorch's own: all axes by `DeviceMesh`, `fully_shard` and DTensor, in little code ([2410.06511](https://arxiv.org/abs/2410.06511)) | maintained; the one to read first |
# | [FairScale](https://github.com/facebookresearch/fairscale) | Meta's, where FSDP was first | history: by its own README its FSDP went into PyTorch, use that |
# | [Colossal-AI](https://github.com/hpcaitech/ColossalAI) | a collection of all axes, with tensors cut in two and three dimensions as well ([2110.14883](https://arxiv.org/abs/2110.14883)) | look at its repository for which versions of PyTorch it supports |
# | [Alpa](https://github.com/alpa-projects/alpa) | a compiler that finds the layout by itself, in JAX ([2201.12023](https://arxiv.org/abs/2201.12023)) | by its own README not actively maintained; its search lives on in XLA |
# | [picotron](https://github.com/huggingface/picotron), [nanochat](https://github.com/karpathy/nanochat) | small programs to read in an evening | for learning |
#
# Alpa's idea is that of chapter 18: let a program choose. Why do most people still choose by hand? You have seen one reason there: constants do not travel.

# %% [markdown]
# ## Summary
#
# - A module is planned from one forward without bytes: states to the byte, the peak roughly, the time only with constants that you measured.
# - Activations are not sharded. Look at which part is the largest before you choose a cure.
# - Read out beside the plan, and compare losses with one process: that finds a wrong cut in a minute.
# - A script is recorded unchanged; read what it says about itself before you read the advice.
# - For a machine and a cluster, measure what no data sheet has.
#
# **Words of this page** are all in the [glossary](GLOSSARY.md). **Further reading**: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
#
# **Next:** your own training. This was the last chapter; come back when a step takes longer than planned.
#
# *Sections 8.12 and 19.8.6 of the source material.*
