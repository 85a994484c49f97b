# ---
# jupyter:
#   labkit:
#     sections: ["8.12"]
#     needs: ["chapters 06 to 08 and 18", "transformers (installed with labkit)"]
#     minutes: 60
# ---

# %% [markdown]
# # Your own model
#
# *An hour with ours, and then again with yours. You need chapters 06 to 08 and 18. No GPU is needed.*
#
# So far every model was ours. Now you bring one. We show it with GPT-2 XL of the library transformers, whose weights are a file of 6 GB. Four sequences at a time, on a card of 40 GB: does it train?

# %%
from functools import partial

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.your_own import check

lab.begin("en", deadline_s=60)

# %% [markdown]
# **Go through once with this one. Then come back, replace the next cell by yours, and go through again.** `small` gives a small module and a batch for it, `large` the size that you are after, `next_token` is the loss, and `leaner` is explained below.


# %%
from transformers import GPT2Config, GPT2LMHeadModel


def small(layers=4, sequences=4, width=128, heads=4, vocab=1000, length=64, **more):
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, **more}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = GPT2Config(vocab_size=vocab, n_positions=length, **sizes, **ends)
    return GPT2LMHeadModel(config).eval(), {
        "input_ids": torch.randint(vocab, (sequences, length))
    }


def large(**more):
    return small(48, width=1600, heads=25, vocab=50257, length=1024, **more)


# labkit calls it with the first tensor of floats in the output
def next_token(logits, batch):
    wanted = batch["input_ids"][:, 1:]
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), wanted.flatten()
    )


leaner = {"activation_function": "gelu_pytorch_tanh"}

# %% [markdown]
# The plan is for eight such cards, each with a copy of everything, in fp32. Each takes four sequences: 32 in a step.

# %%
machine = {"gpu": "A100 40 GB", "gpus": 8, "batch": 32}
whole = your_own.Step(make=large).plan(**machine, zero=0)
lab.show(planner.memory_bars({"copies": whole}))

# %% [markdown]
# Nothing has run so far, and nothing of 6 GB was built. The upright line is the card's memory. What stands right of it, in a thick frame, is too much, so it does not train in this way. (A tenth of the card should stay free as well, for what no plan knows.)
#
# `Step` is a training step of a module that you give. These are its methods:
#
# | method | what it does |
# | --- | --- |
# | `run()` | trains three steps on real ranks, and counts bytes |
# | `predict()` | says how many bytes such a run should hold, by the planner |
# | `compare()` | does both and draws them; what it returns has them as `.predicted`, `.measured` and `.run` (an entry for each rank) |
# | `but(...)` | gives the same step with something changed |
# | `plan(...)` | plans it for cards that you name, as in chapter 18: a plan has `memory()`, `time()`, `warnings()`, and a `but(...)` for its layout (`zero`, `pp`, `mbs`) |
#
# <details><summary>What to bring, and a second example</summary>
#
# - `small` and `large` can be called without arguments and return the module and a batch: a tensor, a tuple of them, or a dict by the names that `forward` takes. Samples lie along the first dimension. Chapter 22 calls `small(layers, sequences)`.
# - Layers need no names: the longest row of modules that are alike is taken.
# - Leave out what the loss doesn't reach (a head that is not trained, say): DDP waits for its gradients and raises an error.
# - `next_token` is the loss: of the output's first tensor of floats, and the batch. If you have none, write `next_token = None`: then an output that is a single number is the loss, and for any other the mean of its squares.
# - `leaner` is what `large` is given to keep less. Until you know something, write `leaner = {}`; all cells work with it.
# - `machine` names the card ("H100 80 GB", "A10G 24 GB"; a wrong name raises an error that lists all), how many there are, and the samples of a step, of all cards together.
#
# A picture model, for instance:
#
# ```python
# from transformers import ViTConfig, ViTModel
#
# def small(layers=4, sequences=4, width=128, heads=4, size=64):
#     sizes = {"num_hidden_layers": layers, "hidden_size": width}
#     sizes |= {"num_attention_heads": heads, "intermediate_size": 4 * width}
#     pictures = torch.randn(sequences, 3, size, size)
#     config = ViTConfig(image_size=size, **sizes)
#     module = ViTModel(config, add_pooling_layer=False).eval()
#     return module, {"pixel_values": pictures}
#
# def large():
#     return small(32, 16, width=1280, heads=16, size=224)
#
# next_token = None
# leaner = {}
# machine = {"gpu": "A100 40 GB", "gpus": 8, "batch": 128}  # in its own cell
# ```
#
# </details>
#
# **When you are done** you can plan a module that nobody has written formulas for, shard it, cut it, read its bytes out beside the plan, and say which of a plan's numbers you still have to measure.

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
# ### Shards or stages?
#
# One cure is to shard. On eight cards each would keep an eighth of the parameters, gradients and Adam's two numbers for each parameter. How much does a card hold then, compared with copies?

# %%
held = lab.guess("memory with shards, over memory with copies", between=(0, 1))

# %%
shards = whole.but(zero=3)
held.score(shards.memory().peak_bytes / whole.memory().peak_bytes)

# %% [markdown]
# Another cure is eight stages, one a card. They take the same 32 samples, four at a time:

# %%
stages = whole.but(pp=8)
lab.show(planner.memory_bars({"copies": whole, "shards": shards, "stages": stages}))

# %% [markdown]
# Shards still hold two thirds. The largest part is the activations, and sharding the states makes those no smaller.
#
# Stages don't help either. The first has 6 of the 48 layers, but it keeps eight microbatches, as many as there are stages (1F1B, chapter 08), and 6 x 8 are 48 again. Both ways stay above the line.
#
# ### What helps?
#
# Bf16 does, and you would take it anyway: by `shards.but(precision="bf16")` a card holds 24 GB. We set it aside, to see what else there is. Fewer sequences at a time is one way, and recomputation another (the activations are thrown away and computed again in the backward, chapter 05). Which would you try first?

# %%
tries = {"shards, two at a time": shards.but(mbs=2)}
tries["shards, one at a time"] = shards.but(mbs=1)
tries["shards, recompute"] = shards.but(recompute="full")
tries["copies, recompute"] = whole.but(recompute="full")
tries["copies, one at a time"] = whole.but(mbs=1)
tries["stages, one at a time"] = stages.but(mbs=1)
lab.show(planner.memory_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# The first row is there to compare. All others fit, even plain copies, if they recompute or take one sequence at a time. (With two they would hold 44 GB.) So it was the activations that had to shrink.
#
# <details><summary>Copies of one sequence: what DDP must be told</summary>
#
# Without `gradient_as_bucket_view=True` DDP's buckets hold all gradients once more, and copies of one sequence don't fit. `Step` sets it.
#
# </details>

# %% [markdown]
# ### What are the activations?
#
# There may be a cheaper cure: look at what is kept. Here it is for one forward of four sequences, by the operator whose result it is:

# %%
lab.table(your_own.kept(your_own.Step(make=large)))

# %% [markdown]
# The first four rows are 6,400 wide, four times the model's 1,600, and they are in each of the 48 layers. They are the activation function, GELU. The library writes it out in eight plain operators, which together keep four such tensors: one "mul", the "addmm", the "tanh" and the "add". (The other "mul" is GELU's result, which the next layer keeps.) Torch has the same function as one operator, and that keeps one, its input.
#
# A layer keeps about 29 numbers in all for each token and dimension, and a wide tensor is 4 of them. Which share of the activations does one operator save?

# %%
saved = lab.guess("share of the activations that one operator saves", between=(0, 1))

# %% [markdown]
# `leaner`, in the first cell, is the word that asks GPT-2 for it.

# %%
lean = your_own.Step(make=partial(large, **leaner)).plan(**machine, zero=3)
kept = [plan.memory().parts["activations"] for plan in (shards, lean)]
saved.score(1 - kept[1] / kept[0])

# %%
numbers = shards.shape.layers * shards.layout.tokens * shards.shape.hidden
lab.table(
    {
        "module": name,
        "kept, a token and dimension": plan.memory().parts["activations"] / 4 / numbers,
        "peak_bytes": plan.memory().peak_bytes,
    }
    for name, plan in {"as it is": shards, "leaner": lean}.items()
)

# %% [markdown]
# Twelve of 29 numbers were not needed. Without them four sequences fit. So look at what your module keeps before you pay for room with time.
#
# ### What does each cost?
#
# Recomputation computes the forward twice. How many times as long does a step with shards take then?

# %%
longer = lab.guess("step with recomputation, over step without", between=(1, 2))

# %%
recomputed = tries["shards, recompute"].time().step_us
longer.score(recomputed / shards.time().step_us)

# %%
every = {"shards, too large": shards, **tries, "shards, leaner": lean}
lab.show(planner.time_bars(every))

# %% [markdown]
# These times are by constants of other programs and machines: look at what grows, not at the digits.
#
# - **Recomputation** takes a third longer, since a forward is about a third of a step.
# - **Fewer sequences at a time** cost less than that. Smaller products run at a lower rate, there are more launches, and layers are gathered more often.
# - **Copies** of one sequence gather nothing, but each of the eight cards updates all numbers.
# - **Stages** are the slowest. They wait for each other, and the last one has more work than the others. (The bar is of that one.)
#
# <details><summary>TF32?</summary>
#
# Products are in TF32, though the rest is fp32. Torch uses it only after `torch.set_float32_matmul_precision("high")`. Without it an A100 has 19.5 TFLOP/s in place of 156.
#
# </details>
#
# ### The answer
#
# The last row wins twice. Four sequences fit, and its step is the shortest of all, since fewer operators read and write (60 ms of memory traffic, not 255). So in fp32, on eight cards that shard, the answer to the first question is one word in the configuration, `gelu_pytorch_tanh`. (Copies would still be too large, with 48 GB.) Of the others that fit, shards with two sequences are the fastest. Below we go on with the module as it is.

# %% [markdown]
# ### What labkit can't know of it
#
# A module says what it computes, and not what it means. So read what the plan had to leave open before you believe it:

# %%
lab.table(your_own.doubts(your_own.Step(make=large)))

# %% [markdown]
# Two rows need a word:
#
# - **The loss.** A plan never calls one. It took the output for logits, and counted what a loss over them keeps ("logits" in the pictures). A run does call one, so below the small module gets ours, `next_token`.
# - **Attention** was counted in full. GPT-2's is causal, and a kernel that skips the masked half needs half of that part of the time. Here it is a small part of the bars.

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
# `Step` writes them. `split=True` gives each rank half of the batch. `compare()` trains three steps, and counts the bytes of each tensor as torch makes and drops it:

# %%
step = your_own.Step(make=small, loss=next_token, engine="fsdp", ranks=2, split=True)
sharded = step.compare()
sharded

# %% [markdown]
# The left bar is the plan, the right one was counted. There are four moments of the third step: before the forward, at the forward's end, at the backward's highest point, and at the update. Here is the update in numbers:

# %%
lab.table(your_own.beside(sharded, "update"))

# %% [markdown]
# Parameters, gradients and Adam's numbers agree. (Adam has a few bytes more, a step counter for each tensor.) The update needs temporary tensors that no plan knows of, so the plan is too low here. And the peak, in the backward?

# %%
lab.table(your_own.beside(sharded, "backward"))

# %% [markdown]
# ### Where was the plan off?
#
# Here the plan is too high in all. It adds up all that may be there in the backward. In the run some tensors came only when others had gone: at the highest point there was no gradient yet. One row is too low, the temporary tensors, since a plan doesn't know all that operators set aside in passing. (A plan knows which of these are logits. A run can't tell them apart, so they are one row.)
#
# <details><summary>What is planned as gathered?</summary>
#
# A layer has 0.79 MB here. Outside of the layers lie 0.55, of which the table of words, which is the output layer too, is 0.51. In the run a layer and the outside were gathered: 0.79 + 0.55. The plan gathers two layers and the outside, and counts whole gradients of a layer and of the output here as well: 2 x 0.79 + 0.55 + 0.79 + 0.51 MB. That is nearly all of this small module.
#
# </details>
#
# In the large one, with 48 layers, what is gathered is 1 of 42 GB. But what operators set aside grows: one more tensor as large as the logits is 0.8 GB there. So trust a plan's states, and measure its peak.

# %% [markdown]
# ## Cut it in two
#
# Now cut the module in two [stages](GLOSSARY.md#stage). Torch traces it, which is to follow one forward operator by operator, and so finds out what the second half needs of the first. GPT-2's embedding and its output layer are one table ("tied weights"), and they lie at opposite ends. So how many parameters do both stages hold together, compared with the whole?

# %%
both = lab.guess("parameters of both stages, over the whole", between=(0.5, 2))

# %%
cut = step.but(engine="pipeline")
halves = cut.compare()
in_both = sum(rank["parameters_bytes"] for rank in halves.run)
both.score(in_both / (step.shape().itemsize * step.shape().params))

# %%
halves

# %% [markdown]
# The table has 1,000 x 128 numbers, and they lie on both stages: 14 % of this small module, 5 % of the large one. Once a step, after the last backward and before the update, their two gradients have to be added, or the copies drift apart. Torch leaves that to you; labkit's cut does it.
#
# On rank 0, drawn here, all moments but the backward were planned too low. Torch's pipeline keeps some activations between steps (yellow, "before"), and at the update there are temporary tensors. No plan knows of either. The peak, in the backward, was planned high again. `cut.but(rank=1).compare()` shows the other stage, with the logits and the loss.
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
# Every process began with the same seed. One process takes the batch whole. Shards take a half on each rank, and their loss is the mean over ranks. Stages take two halves one after the other, and the last stage has the loss. So all losses should agree, also after updates.

# %%
one = step.but(engine="ddp", ranks=1).run()[0]
ran = {"one process": one, "shards": sharded.run[0], "stages": halves.run[1]}
losses = {way: torch.tensor(rank["losses"]) for way, rank in ran.items()}
lab.table(
    {
        "way": way,
        "first loss": float(each[0]),
        "third loss": float(each[2]),
        "off at most": float((each - losses["one process"]).abs().max()),
    }
    for way, each in losses.items()
)

# %% [markdown]
# The last column is the largest difference of the three losses, and it is rounding. A gradient that nobody averaged would show here, since the samples are random and the halves differ. One fault would not show: Adam hardly notices if all gradients are twice as large. (Exercise 3 is about both.)
#
# If yours differ, look for one of these first:
#
# 1. Something in your module is random (dropout).
# 2. The loss leaves padding out. Each half is averaged over its own tokens, and then the halves count alike, even if one has fewer.
# 3. The cut has lost something, such as a buffer that only one stage changes.
#
# Exercise 2 asks you for a fourth.

# %% [markdown]
# ## Where does it run out of memory?
#
# A plan is tested by a card on which one way should fit and the other not. Pretend devices have as much memory as you say, and one tensor too many raises the out-of-memory error that you know. How many MB are planned for copies of the small module, at their peak? Its states are 16 bytes for each of 0.93 million parameters.

# %%
smallest = lab.guess("MB at the peak, copies", between=(0, 100))

# %%
copies = step.but(engine="ddp")
planned = [each.predict().peak_bytes for each in (copies, step)]
smallest.score(planned[0] / 1e6)

# %% [markdown]
# So take a card whose memory lies midway between the two planned peaks, of copies and of shards (in MiB, of 1,048,576 bytes). Copies have not run on two ranks yet. Do they die on it?

# %%
card = lab.pretend(memory_mib=sum(planned) / 2 / 2**20)
died = None
try:
    copies.but(devices=card).run()
except lab.RankFailed as verdict:
    died = verdict
died

# %% [markdown]
# Copies die. What did not fit, for us, was one of GELU's wide tensors again, in the second forward. (The first went well: Adam makes its two numbers only in the first update, and DDP's buckets, in which the gradients lie, stay from then on.) Do shards train on the same card?

# %%
step.but(devices=card).run()[0]["losses"]

# %% [markdown]
# They do, with the losses from above.
#
# ### How near was the plan?
#
# It was right about both. Here is what they really take where there is room enough:

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
# The pretend device's allocator agrees with our count of tensors. The plan is above both, for shards by nearly a quarter. It errs on the safe side here.
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
# ## Exercise 1. Keep less
#
# For GELU torch had the operator that was wanted. For this layer, with the activation of CLIP, it has none:


# %%
def wordy(up, down, x):
    size = x.square().mean(-1, keepdim=True).sqrt()
    h = up(x / size)  # four times as wide as x
    return x + down(h * (1 / (1 + torch.exp(-1.702 * h))))


# %% [markdown]
# `up` and `down` are linear layers. For the backward 22 numbers are kept for each number of `x`. Write a forward that keeps half of that, 11 at most. Output and gradients stay what they are, and no matrix product is computed twice. There is more than one way.


# %%
def my_layer(up, down, x):
    """What wordy(up, down, x) computes, with less kept."""
    ### BEGIN SOLUTION
    size = x.square().mean(-1, keepdim=True).sqrt()
    steep = 1.702 * up(x / size)
    return x + down(torch.nn.functional.silu(steep) / 1.702)  # it keeps steep alone
    ### END SOLUTION


# %%
check.keep_less(my_layer)

# %%
check.hint("keep_less")

# %% [markdown]
# ## Exercise 2. A module whose loss changes in two stages
#
# GPT-2's losses agreed. Write a module whose losses do not: in two stages its first loss differs from that in one process, by more than rounding, and yet nothing in it is random. Return it with a batch, a tensor with a sample in each row. Put four layers of the same build into a `torch.nn.Sequential`: labkit cuts between those, and both halves of the batch go through each stage, one after the other. The loss is the mean of the output's squares.


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

# %% [markdown]
# ## Exercise 3. What is wrong with this engine?
#
# Somebody gives you an engine for two ranks, and all that you see are losses. It is one of four kinds:
#
# - `"right"`;
# - `"forward"`: it computes another loss;
# - `"sum"`: it adds the gradients of the ranks up where it should average them;
# - `"local"`: every rank keeps its own gradients.
#
# `compare(optimizer, same)` trains three steps and returns two lists of losses, of one process with the whole batch and of the engine. `optimizer` is `"sgd"` or `"adam"`. `same=True` gives both ranks the same samples, `same=False` samples of their own. Say which kind it is. You have two comparisons, so which do you make? (The ranks are simulated.)


# %%
def my_diagnosis(compare):
    """Of an engine: "right", "forward", "sum" or "local"."""
    ### BEGIN SOLUTION
    one, engine = map(torch.tensor, compare("sgd", same=True))
    off = (one - engine).abs() > 1e-5
    if off.any():
        return "forward" if off[0] else "sum"
    one, engine = map(torch.tensor, compare("sgd", same=False))
    return "local" if (one - engine).abs().max() > 1e-5 else "right"
    ### END SOLUTION


# %%
check.which_fault(my_diagnosis)

# %%
check.hint("which_fault")

# %% [markdown]
# ## Summary
#
# - A module is planned from one forward without bytes: states to a few bytes, the peak roughly, the time only with constants that you measured.
# - ZeRO and FSDP shard states, not activations. Look at which part is the largest before you choose a cure.
# - Look at what the module keeps before you pay for room with time.
# - Read memory out beside the plan.
# - Compare losses, after updates too, with those of one process, and give each rank samples of its own.
#
# **Words of this page**: [shard](GLOSSARY.md#shard), [stage](GLOSSARY.md#stage), [microbatch](GLOSSARY.md#microbatch), [activations](GLOSSARY.md#activations), [bucket](GLOSSARY.md#bucket). **Further reading**: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
#
# **Next:** [your own machine](22_your_own_machine.ipynb): what a script waits for, and plans with constants of your own.
#
# *Section 8.12 of the source material.*

# %%
check.status()
