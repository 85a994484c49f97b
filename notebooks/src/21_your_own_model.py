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
# So far every model was ours. Now you bring one. We show it with GPT-2 XL of the library transformers, whose weights are a file of 6 GB. There are eight cards of 40 GB, and each takes four sequences at a time. Does it train?

# %%
from functools import partial

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.your_own import check

lab.begin("en", deadline_s=60)

# %% [markdown]
# **Go through once with this model. Then come back, put yours into the next cell and your cards into the one after it, and go through again.** `small` gives a small module and a batch for it, `large` the size that you are after, and `next_token` is the loss. `leaner` comes later.


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
# Each card has a copy of everything, in fp32. Together the eight take 32 sequences in a step. The upright line is a card's memory:

# %%
machine = {"gpu": "A100 40 GB", "gpus": 8, "batch": 32}
whole = your_own.Step(make=large).plan(**machine, zero=0)
lab.show(planner.memory_bars({"copies": whole}))

# %% [markdown]
# What stands right of the line, in a thick frame, is too much. It does not train in this way. (The 36.1 GB are all activations, on both sides of the line.)
#
# Nothing has run so far, and nothing of 6 GB was built. `Step` is a training step of your module, and its `plan` is one of chapter 18.
#
# <details><summary>What to bring, and a second example</summary>
#
# - `small` and `large` can be called without arguments and return the module and a batch: a tensor, a tuple of them, or a dict by the names that `forward` takes, samples first. Chapter 22 calls `small(layers, sequences)`.
# - `eval()` leaves dropout out, so that losses can be compared. `train()` plans its masks too.
# - As layers the longest row of modules that are alike is taken.
# - Leave out what the loss doesn't reach (a head that is not trained, say), or DDP raises an error.
# - If you have no loss, write `next_token = None`: then an output of one number is the loss, and for any other the mean of its squares.
# - `leaner` is what `large` is given to keep less. Begin with `leaner = {}`; all cells work with it.
# - `machine` names the card ("H100 80 GB"; a wrong name raises an error that lists all), how many there are, and the samples of a step, of all cards together.
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
# The planner sent the batch once through the module, with fake tensors, which have a shape and no bytes. It counted parameters, operations and what the backward needs, and put them into the formulas of [chapter 18](18_which_layout.ipynb).
#
# ### Shards or stages?
#
# One cure is to shard. On eight cards each keeps an eighth of the parameters, gradients and Adam's two numbers for each parameter. How much does a card hold then, compared with copies?

# %%
held = lab.guess("memory with shards, over memory with copies", between=(0, 1))

# %%
shards = whole.but(zero=3)
held.score(shards.memory().peak_bytes / whole.memory().peak_bytes)

# %% [markdown]
# Another cure is eight stages, one a card. They take the same 32 sequences, four at a time. Compare the yellow parts:

# %%
stages = whole.but(pp=8)
lab.show(planner.memory_bars({"copies": whole, "shards": shards, "stages": stages}))

# %% [markdown]
# Both help, and neither is enough. Sharding the states makes activations no smaller. The first stage has 6 of the 48 layers, but it keeps eight microbatches, as many as there are stages (1F1B, chapter 08), and 6 x 8 are 48 again.
#
# Stages are only 403 MB above the line, and a plan can be off by more. Nor does it count what CUDA, NCCL and gaps between tensors take. So let a tenth of the card stay free.
#
# ### What helps?
#
# Bf16 would, and you would take it anyway. We set it aside, to see what else there is. One way is fewer sequences at a time. Another is recomputation: activations are thrown away, and computed again in the backward (chapter 05). Which would you try first?

# %%
tries = {"shards, two at a time": shards.but(mbs=2)}
tries["shards, recompute"] = shards.but(recompute="full")
tries["copies, recompute"] = whole.but(recompute="full")
tries["stages, one at a time"] = stages.but(mbs=1)
lab.show(planner.memory_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# All rows but the first fit, with a tenth of the card to spare, even plain copies. So it was the activations that had to shrink.
#
# <details><summary>Why do the logits shrink with recomputation?</summary>
#
# The backward begins with the logits. When they have gone, a layer is computed again and takes their place. The picture counts that place once, as activations.
#
# </details>
#
# ### What does each cost?
#
# Recomputation computes the forward twice. How many times as long does a step with shards take then?

# %%
longer = lab.guess("step with recomputation, over step without", between=(1, 2))

# %%
recomputed = tries["shards, recompute"].time().step_us
longer.score(recomputed / shards.time().step_us)

# %% [markdown]
# Here are all rows. The planner's constants are those of other programs and machines, so look at what grows, not at the digits:

# %%
lab.show(planner.time_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# - **Two at a time** cost little: smaller products run at a lower rate, and layers are gathered more often.
# - **Recomputation** takes a third longer, since a forward is about a third of a step.
# - **Copies** gather nothing, but each of the eight cards updates all numbers.
# - **Stages** are the slowest. They wait for each other, and the last one, which is drawn, computes the logits besides.
#
# <details><summary>What do these times take for granted?</summary>
#
# - Products in TF32, as after `torch.set_float32_matmul_precision("high")`. In fp32 an A100 has 19.5 TFLOP/s in place of 156.
# - Messages that are partly hidden behind computing. Only the rest is drawn.
#
# </details>

# %% [markdown]
# ### What are the activations?
#
# There may be a cheaper cure. Here is what one forward of four sequences keeps, by the operator whose result it is. Look at the first four rows:

# %%
lab.table(your_own.kept(your_own.Step(make=large)))

# %% [markdown]
# They are 6,400 wide, four times the model's 1,600, and each of the 48 layers has them. They come from the activation function, GELU. The library writes it out in eight plain operators, which together keep four such tensors. (The fifth, a "mul", is GELU's result, kept by the next product.) Torch has the same function as one operator, and that keeps one, its input.
#
# A layer keeps about 29 numbers in all for each token and dimension, and a wide tensor is 4 of them. Which share of the activations does one operator save?

# %%
saved = lab.guess("share of the activations that one operator saves", between=(0, 1))

# %% [markdown]
# `leaner`, beside the model above, asks GPT-2 for that operator.

# %%
lean = your_own.Step(make=partial(large, **leaner)).plan(**machine, zero=3)
kept = [plan.memory().parts["activations"] for plan in (shards, lean)]
saved.score(1 - kept[1] / kept[0])

# %%
both_ways = {"as it is": shards, "leaner": lean}
numbers = shards.shape.layers * shards.layout.tokens * shards.shape.hidden
lab.table(
    {
        "module": name,
        "kept, a token and dimension": plan.memory().parts["activations"] / 4 / numbers,
        "peak_bytes": plan.memory().peak_bytes,
    }
    for name, plan in both_ways.items()
)

# %% [markdown]
# Twelve of 29 numbers were not needed. Without them four sequences fit.
#
# ### The answer
#
# And the time? Compare the memory traffic:

# %%
lab.show(planner.time_bars(both_ways))

# %% [markdown]
# The step even gets shorter, since fewer operators read and write: 60.4 ms of memory traffic, not 255. (Fewer launches would save a little more. The planner counts them by the layer, so that part stays.)
#
# So in fp32, on eight cards that shard, the answer is one word in the configuration, `gelu_pytorch_tanh`. Look at what your module keeps before you pay for room with time. Below we go on with the module as it is.

# %% [markdown]
# ### What labkit can't know of it
#
# A module says what it computes, and not what it means. So read what the plan had to leave open before you believe it:

# %%
lab.table(your_own.doubts(your_own.Step(make=large)))

# %% [markdown]
# One row needs a word, the loss. A plan never calls one. It took the output for logits, and counted what a loss over them keeps. A run does call one, so the small module gets ours, `next_token`.

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
# `Step` writes them for you. These are its methods:
#
# | method | what it does |
# | --- | --- |
# | `run()` | trains three steps on real ranks, and counts the bytes of each tensor as torch makes and drops it |
# | `predict()` | says how many bytes such a run should hold, by the planner |
# | `compare()` | does both and draws them; what it returns has them as `.predicted`, `.measured` and `.run` (an entry for each rank) |
# | `but(...)` | gives the same step with something changed |
# | `plan(...)` | plans it for cards that you name: a plan has `memory()`, `time()`, `warnings()`, and a `but(...)` for its layout (`zero`, `pp`, `mbs`) |
#
# `split=True` gives each rank half of the batch, two sequences. Left bars are the plan and right ones were counted, at four moments of the third step: before the forward, at its end, at the backward's highest point, and at the update.

# %%
step = your_own.Step(make=small, loss=next_token, engine="fsdp", ranks=2, split=True)
sharded = step.compare()
sharded

# %% [markdown]
# The plan is near at the ends and too high in the middle. Here is the update in numbers:

# %%
lab.table(your_own.beside(sharded, "update"))

# %% [markdown]
# Parameters, gradients and Adam's numbers agree. The update also needs temporary tensors, which labkit's plan doesn't count. And the peak, in the backward?

# %%
lab.table(your_own.beside(sharded, "backward"))

# %% [markdown]
# ### Where was the plan off?
#
# - **Gathered**: the plan has 3.44 - 1.34 = 2.1 MB too much. It gathers two layers where the run had one, and counts whole gradients besides.
# - **Gradients**: it has 1.9 MB too much. At the highest point there was no gradient yet.
# - **Activations**: it has 7.62 - 7.09 = 0.5 MB too much. Some had gone by then.
# - **Temporary tensors**: it has 2.42 - 1.73 = 0.7 MB too little. It doesn't count all that operators set aside in passing.
#
# So the plan adds up all that may be there in the backward. In the run some tensors came only when others had gone. Trust a plan's states, and measure its peak.

# %% [markdown]
# ## Cut it in two
#
# Now cut the module in two [stages](GLOSSARY.md#stage). Torch traces it: it follows one forward operator by operator, and so finds out what the second half needs of the first. GPT-2's embedding and its output layer are one table ("tied weights"), and they lie at opposite ends. So how many parameters do both stages hold together, compared with the whole?

# %%
both = lab.guess("parameters of both stages, over the whole", between=(0.5, 2))

# %%
cut = step.but(engine="pipeline")
halves = cut.compare()
in_both = sum(rank["parameters_bytes"] for rank in halves.run)
both.score(in_both / (step.shape().itemsize * step.shape().params))

# %% [markdown]
# The table has 1,000 x 128 numbers, and they lie on both stages: 14 % of this small module, 5 % of the large one. Once a step, after the last backward and before the update, their two gradients have to be added, or the copies drift apart. Torch leaves that to you; labkit's cut does it.
#
# Here is the first stage, with two microbatches by GPipe. (The eight stages above were planned by 1F1B.) Look at "before":

# %%
halves

# %% [markdown]
# Torch's pipeline keeps some activations between steps (yellow), and labkit's plan doesn't count those. The peak, in the backward, was planned too high again. `cut.but(rank=1).compare()` shows the other stage, with the logits and the loss.
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
# Every process began with the same seed. One takes the batch whole, shards a half on each rank, stages two halves one after the other. So all losses should agree, also after updates. The last column is the largest difference:

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
# It is rounding. But which faults would such a comparison not show? Exercise 3 is about that.
#
# If yours differ, look for one of these first:
#
# 1. Something in your module is random (dropout).
# 2. The loss leaves padding out, so that halves with unequal numbers of tokens count alike.
# 3. The cut has lost something, such as a buffer that only one stage changes.
#
# Exercise 2 asks you for a fourth.

# %% [markdown]
# ## Where does it run out of memory?
#
# A plan is tested by a card on which one way should fit and the other not. Pretend devices have as much memory as you say.
#
# How many MB are planned for copies of the small module, with two sequences each, at their peak? Its states are 16 bytes for each of 0.93 million parameters, and its activations those of the shards.

# %%
smallest = lab.guess("MB at the peak, copies", between=(0, 100))

# %%
copies = step.but(engine="ddp")
planned = [each.predict().peak_bytes for each in (copies, step)]
smallest.score(planned[0] / 1e6)

# %% [markdown]
# Take a card whose memory lies midway between the two planned peaks, of copies and of shards. Do copies die on it?

# %%
card = lab.pretend(memory_mib=sum(planned) / 2 / 2**20)
died = None
try:
    copies.but(devices=card).run()
except lab.RankFailed as verdict:
    died = verdict
died

# %% [markdown]
# Copies die. What did not fit, in the printed run, was one of GELU's wide tensors again. Do shards train on the same card?

# %%
step.but(devices=card).run()[0]["losses"]

# %% [markdown]
# They do, with the losses from above.
#
# ### How near was the plan?
#
# It was right about both. But the test was mild: any card between the two real peaks gives these verdicts. Here they are:

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
# The pretend device's allocator agrees with our count of tensors. The plan is above both, for shards by nearly a quarter. It errs on the safe side here. What labkit can't know is how your allocator fragments, and what your libraries take below torch.
#
# **The second time through**, with yours: which part is farthest from its plan, and why?
#
# <details><summary>What does not work?</summary>
#
# We tried GPT-2, BERT, T5, ViT, Mamba, Mixtral, ResNet and Whisper of transformers, and torch's own `nn.Transformer` and `nn.LSTM`. These need special care (with transformers 5.23):
#
# - LSTM: its layers are no modules, so it is not run in parts.
# - ResNet: its first convolutions keep most, so the plan of its first stage is far too low.
# - Mixtral: set `config._experts_implementation = "batched_mm"`, and keep to fp32 and shards. Stages fail in torch's runtime.
# - Whisper: to cut it, set `use_cache=False`, leave `labels` out of the batch and give a `loss=`.
#
# </details>

# %% [markdown]
# ## Exercise 1. Keep less
#
# For GELU torch had the operator that was wanted. For this MLP, with the activation of CLIP, it has none:


# %%
def wordy(up, down, x):
    size = x.square().mean(-1, keepdim=True).sqrt()
    h = up(x / size)  # four times as wide as x
    return x + down(h * (1 / (1 + torch.exp(-1.702 * h))))


# %% [markdown]
# `up` and `down` are `torch.nn.Linear`. For the backward 22 numbers are kept for each number of `x`. Write a forward that keeps half of that, 11 at most. Output and gradients stay what they are, and no matrix product is computed twice. There is more than one way.


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
# GPT-2's losses agreed. Write a module whose losses do not: in two stages its first loss differs from that in one process, by more than rounding, and yet nothing in it is random. Return it with a batch, a tensor with a sample in each row, an even number of them.
#
# Put four layers of the same build into a `torch.nn.Sequential`: labkit cuts between those, and both halves of the batch go through each stage, one after the other. The module stays in `train()` or `eval()`, as you return it. The loss is the mean of the output's squares.


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
# - A module is planned from one forward without bytes: states almost exactly, the peak roughly, the time only with constants that you measured.
# - Before you choose a cure, look at which part is the largest, and at what your module keeps. ZeRO and FSDP shard states, not activations.
# - Leave a tenth of the card free in a plan, and read memory out beside it.
# - Compare losses, after updates too, with those of one process. Give each rank samples of its own, or a gradient that nobody averaged stays hidden. Use SGD: Adam hardly notices gradients that are all twice as large.
#
# **Words of this page**: [shard](GLOSSARY.md#shard), [stage](GLOSSARY.md#stage), [microbatch](GLOSSARY.md#microbatch), [activations](GLOSSARY.md#activations). **Further reading**: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
#
# **Next:** [your own machine](22_your_own_machine.ipynb): what a script waits for, and plans with constants of your own.
#
# *Section 8.12 of the source material.*

# %%
check.status()
