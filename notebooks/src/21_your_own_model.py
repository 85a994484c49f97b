# ---
# jupyter:
#   labkit:
#     sections: ["8.12"]
#     needs: ["chapters 05 to 09 and 18", "transformers (installed with labkit)"]
#     minutes: 60
# ---

# %% [markdown]
# # Your own model
#
# *An hour with our model, and then again with yours. Needs chapters 05 to 09 and 18, and no GPU.*
#
# So far the planner knew every model by its formulas. Nobody has written formulas for yours, so now it looks at the module itself. Ours is GPT-2 XL of transformers, with 6 GB of weights. Can it be trained on eight cards of 40 GB, each with four sequences at a time?

# %%
from functools import partial

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.your_own import check

lab.begin("en", deadline_s=60)

# %% [markdown]
# **Go through once with this model. Then come back with your model and your cards.** `small` gives a small module and a batch, and `large` the size that you want to train. Both are in `eval()`, without dropout. `next_token` is the loss, `leaner` comes later.


# %%
from transformers import GPT2Config, GPT2LMHeadModel


def gpt2(layers, sequences, width, heads, vocab, length, **more):
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, **more}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = GPT2Config(vocab_size=vocab, n_positions=length, **sizes, **ends)
    # eval(): without dropout, which would keep its masks too
    return GPT2LMHeadModel(config).eval(), {
        "input_ids": torch.randint(vocab, (sequences, length))
    }


def small(layers=4, sequences=4, **more):
    sizes = {"width": 128, "heads": 4, "vocab": 1000, "length": 64}
    return gpt2(layers, sequences, **sizes, **more)


def large(**more):
    sizes = {"width": 1600, "heads": 25, "vocab": 50257, "length": 1024}
    return gpt2(48, 4, **sizes, **more)


# labkit calls it with the first tensor of floats in the output
def next_token(logits, batch):
    wanted = batch["input_ids"][:, 1:]
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), wanted.flatten()
    )


leaner = {"activation_function": "gelu_pytorch_tanh"}

# %% [markdown]
# At first each card keeps a whole copy in fp32. `batch` counts all cards' sequences, 8 x 4. Does the bar end left of the line, the card's memory?

# %%
machine = {"gpu": "A100 40 GB", "gpus": 8, "batch": 32}
whole = your_own.Step(make=large).plan(**machine, zero=0)
lab.show(planner.memory_bars({"copies": whole}))

# %% [markdown]
# It doesn't: a copy needs 63.1 GB (a GB is a billion bytes), and the thick frame shows what is too much. The largest part is yellow, 36.1 GB of activations.
#
# For this plan nothing of 6 GB was built. The planner sent the batch through the module once, with fake tensors, which have a shape and no bytes. It counted parameters, operations and what the backward needs, and put them into the formulas of [chapter 18](18_which_layout.ipynb).
#
# `Step` is one training step of your module, and its `plan(...)` plans it for your cards:
#
# | of a plan | what it gives |
# | --- | --- |
# | `memory()`, `time()` | bytes of the fullest card, and time of a step |
# | `but(zero=3)` | the same plan in shards (0: copies) |
# | `but(pp=8)` | in eight stages |
# | `but(mbs=2)` | two sequences at a time |
# | `but(recompute="full")` | with recomputation |
#
# <details><summary>What to bring</summary>
#
# ```python
# def small(layers=4, sequences=4):
#     return Mine(layers), torch.randn(sequences, 128)
#
# def large(**more):
#     return Mine(48, **more), torch.randn(4, 128)
# ```
#
# - Both return the module and a batch: a tensor, a tuple of them, or a dict by the names that `forward` takes, samples first.
# - Layers are modules of one class and size, side by side. If there are several such rows, labkit takes the one with the most parameters. `large` needs at least as many layers as you have cards.
# - Leave out what the loss doesn't reach, such as an untrained head, or DDP stops.
# - Without a loss, write `next_token = None`: then an output of one number is the loss, else the mean of its squares.
# - The plan is in fp32 without autocast, and products are in TF32, the short format that `torch.set_float32_matmul_precision("high")` turns on.
# - `machine` names the card, how many there are, and the samples of a step of all cards.
#
# </details>
#
# **When you are done** you can plan a module that nobody has written formulas for, shard it, cut it, and say which of a plan's numbers you still have to measure.

# %% [markdown] sections="8.12"
# ## Plan it without running it
#
# ### Shards or stages?
#
# One cure is shards. Each of the eight cards then keeps an eighth of the parameters, of the gradients and of Adam's two numbers, which are the first three parts of the bar. The activations stay, because each card still computes the whole model for its own sequences. How much does a card hold then, compared with a copy?

# %%
held = lab.guess("memory with shards, over memory with copies", between=(0, 1))

# %%
shards = whole.but(zero=3)
held.score(shards.memory().peak_bytes / whole.memory().peak_bytes)

# %% [markdown]
# Two thirds are left, because of the activations. The other cure is to cut the model into eight stages, one a card. The 32 sequences of all cards then go through every stage, four at a time. Compare the yellow parts of the three bars:

# %%
stages = whole.but(pp=machine["gpus"])
lab.show(planner.memory_bars({"copies": whole, "shards": shards, "stages": stages}))

# %% [markdown]
# Neither cure is enough, because all three bars have the same activations. The first stage has only 6 layers. But under 1F1B it starts eight microbatches before the first one comes back, and 6 x 8 are all 48 again (chapter 08).
#
# The bar of stages ends only 403 MB above the line. But a plan leaves out what CUDA, NCCL and gaps between tensors take, so as a rule of thumb it should leave a tenth of the card free and end by 36 of the 40 GB.
#
# ### What helps?
#
# So the activations have to shrink. A card can take its sequences two at a time and add up the gradients, which is called gradient accumulation. Or it recomputes: it throws activations away and computes them again in the backward (chapter 05). Look for bars that end left of the dashed line, where a tenth stays free:

# %%
tries = {"shards, two at a time": shards.but(mbs=2)}
tries["shards, recompute"] = shards.but(recompute="full")
tries["stages, one at a time"] = stages.but(mbs=1)
lab.show(planner.memory_bars({"shards, too large": shards, **tries}, spare=0.1))

# %% [markdown]
# All three ways fit, so now it is a question of time.
#
# ### What does each cost?
#
# Recomputation leaves the most room, at the price of a second forward. If a backward takes about twice as long as a forward, how many times as long does the step get?

# %%
longer = lab.guess("step with recomputation, over step without", between=(1, 2))

# %%
recomputed = tries["shards, recompute"].time().step_us
longer.score(recomputed / shards.time().step_us)

# %% [markdown]
# A forward is a third of a step, so a second one makes the step about a third longer. Compare the rows:

# %%
lab.show(planner.time_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# The plan's constants come from other programs and machines, on which nine of ten times were within a fifth, so smaller differences don't count. Recomputation takes longer by a quarter than two at a time. Stages are the slowest, because they wait for each other and for the last one, which computes the output layer too. (Stages of two sequences at a time fit as well, and are no faster, because fewer microbatches leave a longer bubble.)
#
# ### What are the activations?
#
# All these cures cost time, so what are the activations? The table lists what one forward of four sequences keeps: the operator that made it, the shape, how many such tensors, and their bytes. Look at the rows that are 6,400 wide, four times the model's 1,600:

# %%
lab.table(your_own.kept(your_own.Step(make=large)))

# %% [markdown]
# The four rows of this width hold more than two thirds of all bytes. Each of the 48 layers has five such tensors, two of them under "mul", and all of them belong to one small function, GELU. The library writes it in plain operators, each of which keeps what its own backward needs:
#
# | made by | what it is | kept for |
# | --- | --- | --- |
# | addmm | GELU's input, x | the cube |
# | mul | x / 2 | the final mul |
# | tanh | the tanh | its own backward |
# | add | 1 + the tanh | the final mul |
# | mul | GELU's result | the next matrix product |
#
# Torch has the same function as one operator. It keeps only x, because its backward can compute the rest from it, and GELU's result stays for the next product. So three of the five tensors go, and each takes 5.03 GB over all layers. Which share of the 36.1 GB does one operator save?

# %%
saved = lab.guess("share of the activations that one operator saves", between=(0, 1))

# %% [markdown]
# `leaner`, beside the model above, asks GPT-2 for that operator:

# %%
lean = your_own.Step(make=partial(large, **leaner)).plan(**machine, zero=3)
kept = [plan.memory().parts["activations"] for plan in (shards, lean)]
saved.score(1 - kept[1] / kept[0])

# %% [markdown]
# The lower bar has as many sequences and recomputes no layer:

# %%
both_ways = {"as it is": shards, "leaner": lean}
lab.show(planner.memory_bars(both_ways, spare=0.1))

# %% [markdown]
# It fits, and at 27.2 GB much of the card stays free.
#
# ### Is it slower?
#
# The one operator computes the inside of GELU twice, so you might expect a longer step. Compare the memory traffic:

# %%
lab.show(planner.time_bars(both_ways))

# %% [markdown]
# By the plan the step even gets shorter. Each plain operator reads wide tensors from memory and writes another, which takes far longer than its arithmetic. The one operator reads and writes once, so of 255 ms of memory traffic 60.4 ms are left. It is the fastest of all that we tried, so look at what a module keeps before you pay for room with time.

# %% [markdown]
# ### What does a module not show?
#
# Some things you have to say or do yourself:

# %%
lab.table(your_own.doubts(your_own.Step(make=large, loss=next_token)))

# %% [markdown]
# For instance, GPT-2's attention is causal: a token looks at earlier ones only, which can halve the work. Under fake tensors labkit can't see this, so the pictures above show up to twice the time that attention takes.

# %% [markdown]
# ## Run it and count
#
# Can we believe the plan's bytes? We plan the small module in the same way and run it, in shards by FSDP on two real [ranks](GLOSSARY.md#rank). In your script these lines would do it:
#
# ```python
# for layer in (*module.transformer.h, module):  # each layer, then the whole
#     fully_shard(layer)
# optimizer = torch.optim.Adam(module.parameters())  # now of shards
# ```
#
# `Step` writes them for you, and has three more methods:
#
# | method | what it does |
# | --- | --- |
# | `predict()` | plans the bytes of each part |
# | `run()` | trains three steps, counts the bytes of all tensors, and returns an entry for each rank |
# | `compare()` | does both and draws them; its `.run` has the entries |
#
# A run also needs a loss, and with `split=True` each rank gets half of the batch, two sequences. In the picture the left bars are planned and the right ones counted: before the third step, and at the highest point of its forward, its backward and its update. Where do they differ most?

# %%
step = your_own.Step(make=small, loss=next_token, engine="fsdp", ranks=2, split=True)
sharded = step.compare()
sharded

# %% [markdown]
# The plan is near at both ends of the step, where there is little but states, because these depend only on the number of parameters. In the middle it is too high, most of all in the backward. Here it is by parts:

# %%
lab.table(your_own.beside(sharded, "backward"))

# %% [markdown]
# ### Why is the plan too high?
#
# The plan has 20.2 MB and the run shown here 16.4 MB, so the plan is 23 % too high. Two rows cause it:
#
# - **Gradients**: the plan has all of them. The run was at its highest point before any was finished.
# - **Gathered for a while**: the plan adds the next layer, which FSDP fetches early, and gradients before they are sent. In the run, what there is of these counts as temporary.
#
# So the plan adds up tensors that are not there at the same time. That is why you measure a peak. You can trust the sizes of the states, which match by the update, but not the moment at which gradients exist.
#
# In the large plan of shards both rows are only 1.8 GB. Without them 40.5 of the 42.3 GB remain. Our rule allows 36, so shards alone don't fit.
#
# ### Does `leaner` keep less in a run?
#
# By the plan `leaner` saves 41.9 % of the large module's activations. Here are those of the small one at the forward's highest point, with the share that is saved:

# %%
lighter = step.but(make=partial(small, **leaner)).compare()
lab.table(your_own.saved({"as it is": sharded, "leaner": lighter}))

# %% [markdown]
# It does, and both shares are close to the large module's, because a layer keeps the same kinds of tensors at any width.

# %% [markdown]
# ## Cut it in two
#
# Next we cut the small module into two [stages](GLOSSARY.md#stage). But GPT-2's embedding and its output layer are one table of 1,000 x 128 numbers ("tied weights"), and they lie at opposite ends. The whole module has 0.93 million parameters. How many do both stages hold together, compared with it?

# %%
both = lab.guess("parameters of both stages, over the whole", between=(0.5, 2))

# %%
cut = step.but(engine="pipeline")
halves = cut.run()
in_both = sum(rank["parameters_bytes"] for rank in halves)
both.score(in_both / (step.shape().itemsize * step.shape().params))

# %% [markdown]
# They hold 14 % more, because the table lies on both stages, and for the large module it would be 5 % more. Each stage finds only its own part of the table's gradient, so before each update the two parts have to be added, or the copies drift apart. Torch leaves that to you, and labkit's cut does it.

# %% [markdown]
# ### Is it still the same module?
#
# Shards and stages should change where numbers lie, and not what they are. Every process began with the same seed, so all losses should agree. Each rank of shards has half of the batch, and `run()` reports the mean of both losses. Stages take the halves in turn, and the last stage has the loss. A wrong gradient only shows after an update, so look at the third loss too:

# %%
one = step.but(engine="ddp", ranks=1).run()[0]
ran = {"one process": one, "shards": sharded.run[0], "stages": halves[1]}
ran["shards, leaner"] = lighter.run[0]
lab.table(your_own.losses(ran))

# %% [markdown]
# They agree up to rounding, as far as three losses under Adam can show, and so does `leaner`. But Adam divides each gradient by its size, so it would hide gradients that are all twice as large. SGD would show them.
#
# <details><summary>What if yours differ by more?</summary>
#
# Look for one of these causes; exercise 2 asks for a fourth.
#
# 1. Something in your module is random, as dropout is without `eval()`.
# 2. The loss leaves padding out, so that halves with unequal numbers of tokens count alike.
# 3. The cut has lost something, such as a counter that one half changes and the other reads.
#
# </details>

# %% [markdown]
# ## Where does it run out of memory?
#
# A plan is there to say what fits. So as a last test we choose the memory of a pretend card, on which copies should die and shards should train. How many MB are planned for copies at their peak? Their states are 16 bytes for each of 0.93 million parameters. Add the 7.62 MB of activations and the 1.73 MB of temporary tensors from the table above, since each rank takes as many sequences.

# %%
smallest = lab.guess("MB at the peak, copies", between=(0, 100))

# %%
copies = step.but(engine="ddp")
planned = [each.predict().peak_bytes for each in (copies, step)]
smallest.score(planned[0] / 1e6)

# %% [markdown]
# First let us see what copies hold in a run. Compare the highest bars:

# %%
copies.compare()

# %% [markdown]
# This time the plan of 24.2 MB is near the 23.9 MB counted in the run shown here, because here DDP keeps its gradients all the time. Part of that is luck: look at the forward, for which too little was planned.
#
# <details><summary>When does it keep them?</summary>
#
# DDP sends gradients in buckets, which always stay. With `gradient_as_bucket_view=True`, as labkit sets it, the gradients are these buckets. Without it they are a second copy, and you need their bytes once more. In the backward the plan has too few activations and too many temporary tensors.
#
# </details>
#
# Now we give the card a memory midway between the planned peaks of copies and shards. Do copies die on it?

# %%
card = lab.pretend(memory_mib=sum(planned) / 2 / 2**20)
died = None
try:
    copies.but(devices=card).run()
except lab.RankFailed as verdict:
    died = verdict
died

# %% [markdown]
# Both ranks die, in the run shown here at one of GELU's wide tensors. (A MiB is 1.05 MB.) Can shards train on it?

# %%
small_card = step.but(devices=card).run()[0]
lab.table(your_own.losses({"one process": one, "shards, small card": small_card}))

# %% [markdown]
# They can, and the losses are those from above. The plan was right about both, because the card lies between the counted peaks too. On one of 18 MB it would have been wrong about shards.
#
# **Can GPT-2 XL be trained on eight cards of 40 GB, with four sequences at a time?** By the plan yes, in shards and with `leaner`: it needs 27.2 GB, and our rule allows 36. (`leaner` alone isn't enough: copies would need 63.1 - 15.1 = 48 GB.)
#
# **The second time through**, with yours:
#
# 1. Put your model in place of ours, and your cards into `machine`.
# 2. `leaner` is a setting of GPT-2. Put in one of yours, or `{}` and recompute, if your layers have no side effects. Batch norm would update its averages twice.
# 3. If your module can't be cut, leave out what uses `stages` or `halves`.
# 4. Note the part that is farthest from its plan, and find out why.
#
# <details><summary>What does not work?</summary>
#
# Of GPT-2, BERT, T5, ViT, Mamba, Mixtral, ResNet and Whisper (transformers 5.23), `nn.Transformer` and `nn.LSTM`, four need care:
#
# | module | what to know |
# | --- | --- |
# | LSTM | its layers are no modules, so it is not run in parts |
# | ResNet | its first convolutions keep most, so its first stage is planned far too low |
# | Mixtral | set `config._experts_implementation = "batched_mm"`, keep to fp32, and don't cut it in stages |
# | Whisper | to cut it, set `use_cache=False`, leave `labels` out and give a `loss=` |
#
# </details>

# %% [markdown]
# ## Exercise 1. Keep less
#
# GELU was written out, although torch has an operator for it. This MLP has the activation function of CLIP, called QuickGELU, and torch has no operator of that name:


# %%
def wordy(up, down, x):
    size = x.square().mean(-1, keepdim=True).sqrt()
    h = up(x / size)  # four times as wide as x
    return x + down(h * (1 / (1 + torch.exp(-1.702 * h))))


# %% [markdown]
# Here `up` and `down` are `torch.nn.Linear`. You can find what is kept as we did for GELU, operator by operator. The backward of `exp` needs its result, which is as wide as `h`, so it keeps 4 numbers for each number of `x`. And `1 / t` is a reciprocal and a product with 1, whose results are both kept. In all that makes five tensors as wide as `h` and two as wide as `x`: 5 x 4 + 2 = 22.
#
# Write a forward that keeps half of that, 11 at most:
#
# - Output and gradients stay what they are.
# - No matrix product is computed twice.
# - A `torch.autograd.Function` is one way of several.


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
# Two stages get the batch in halves, and for GPT-2 that changed nothing. It treats each sample by itself, and its loss is a mean, which is also the mean of the two halves' means. Write a module whose first loss in two stages differs from that in one process by more than rounding:
#
# - It is a `torch.nn.Sequential` of four layers of one class and size, which labkit cuts in the middle, and nothing in it is random.
# - It comes with a batch, a tensor with an even number of samples as rows.
# - It stays in `train()` or `eval()` as you return it, and the loss is the mean of the output's squares.


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
# You see only the losses of an engine for two ranks. It is of one of four kinds. Say that a weight's gradient is 2 on one rank and 4 on the other:
#
# - `"right"`: both ranks update with the mean, 3.
# - `"sum"`: both ranks update with the sum, 6.
# - `"local"`: each rank updates with its own, 2 or 4.
# - `"forward"`: the engine computes another loss to begin with.
#
# You can call `compare(optimizer, same)` twice. It simulates three steps with `"sgd"` or `"adam"`, where `same=True` gives both ranks the same samples and `same=False` samples of their own. It returns two lists of losses, of one process with the whole batch and of the engine. Which two comparisons tell you the kind?


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
# <details><summary>When it has passed: why these two comparisons?</summary>
#
# With the same samples on both ranks, gradients that nobody averaged are right anyway, and only the sum shows. With samples of their own such gradients show too. And Adam would hide the factor.
#
# </details>

# %% [markdown]
# ## Summary
#
# - GPT-2 XL fits on the eight cards in shards and with `leaner`, by a plan of 27.2 GB.
# - You can plan a module from one forward with fake tensors. You trust the sizes of its states, leave a tenth of the card free and measure the peak, and of its times only large differences count.
# - Before you choose a cure, you look at the largest part and at what your module keeps, because shards help states and not activations.
# - When you shard or cut a module, you compare its losses with those of one process, after updates too, and in your own script with SGD.
#
# **Words of this page**: [shard](GLOSSARY.md#shard), [stage](GLOSSARY.md#stage), [microbatch](GLOSSARY.md#microbatch), [activations](GLOSSARY.md#activations). **Further reading**: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
#
# **Next:** [your own machine](22_your_own_machine.ipynb): what a script waits for, and plans with constants of your own.
#
# *Section 8.12 of the source material.*

# %%
check.status()
