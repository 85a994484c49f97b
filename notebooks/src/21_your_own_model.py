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
# So far the planner knew every model by its formulas. Nobody has written formulas for yours, so now it looks at the module itself, here at GPT-2 XL of the library transformers, a file of 6 GB. Does that train on eight cards of 40 GB, if each takes four sequences at a time?

# %%
from functools import partial

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.your_own import check

lab.begin("en", deadline_s=60)

# %% [markdown]
# **Go through once with this model, then come back and put yours into the next cell and your cards into the one after it.** Here `small` gives a small module and a batch, `large` the size that you want to train, and `next_token` is the loss. `leaner` is for later.


# %%
from transformers import GPT2Config, GPT2LMHeadModel


def small(layers=4, sequences=4, width=128, heads=4, vocab=1000, length=64, **more):
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, **more}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = GPT2Config(vocab_size=vocab, n_positions=length, **sizes, **ends)
    # eval(): without dropout, which would keep its masks too
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
# At first each card keeps a whole copy in fp32. Does the bar end left of the card's memory, the upright line?

# %%
machine = {"gpu": "A100 40 GB", "gpus": 8, "batch": 32}
whole = your_own.Step(make=large).plan(**machine, zero=0)
lab.show(planner.memory_bars({"copies": whole}))

# %% [markdown]
# It doesn't: a copy needs 63.1 GB, and what stands in a thick frame is too much. The largest part is yellow, 36.1 GB of activations.
#
# Nothing of 6 GB was built for this. The planner sent the batch once through the module with fake tensors, which have a shape and no bytes, and counted parameters, operations and what the backward needs for the formulas of [chapter 18](18_which_layout.ipynb). `Step` is one training step of your module, with these methods:
#
# | method | what it does |
# | --- | --- |
# | `plan(...)` | plans the step for cards that you name; a plan has `memory()` and `time()` |
# | `but(...)` | the same with something changed; of a plan: `zero` (0 copies, 3 shards), `pp` (stages), `mbs` (sequences at a time), `recompute` |
# | `run()` | trains three steps on real ranks, and counts the bytes of each tensor as torch makes and drops it |
# | `predict()` | says by the planner how many bytes such a run should hold |
# | `compare()` | does both and draws them; what it returns has `.predicted`, `.measured` and `.run`, with an entry for each rank |
#
# <details><summary>What to bring</summary>
#
# - `small` and `large` can be called without arguments and return the module and a batch: a tensor, a tuple of them, or a dict by the names that `forward` takes, samples first. Chapter 22 calls `small(layers, sequences)`.
# - The longest row of modules that are alike is taken as the layers, and `large` needs at least as many as you have cards.
# - Leave out what the loss doesn't reach, such as an untrained head, or DDP raises an error.
# - Without a loss, write `next_token = None`: then an output of one number is the loss, else the mean of its squares.
# - `leaner` is what `large` is given to keep less. Ours is a setting of GPT-2, so begin with `leaner = {}`.
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
# One cure is to share the states out. On eight cards each then keeps an eighth of the parameters, of the gradients and of Adam's two numbers, which are the first three parts of the bar. The activations stay, because each card still computes the whole model for its own sequences. How much does a card hold then, compared with a copy?

# %%
held = lab.guess("memory with shards, over memory with copies", between=(0, 1))

# %%
shards = whole.but(zero=3)
held.score(shards.memory().peak_bytes / whole.memory().peak_bytes)

# %% [markdown]
# The other cure is to cut the model into eight stages, one a card. The 32 sequences of all cards then go through every stage, four at a time. Compare the yellow parts of the three bars:

# %%
stages = whole.but(pp=machine["gpus"])
lab.show(planner.memory_bars({"copies": whole, "shards": shards, "stages": stages}))

# %% [markdown]
# Both cures help, and neither is enough, because the 36.1 GB of activations are the same in all three bars. The first stage has only 6 of the 48 layers, but under 1F1B it starts eight microbatches before the first one comes back, and 6 x 8 are 48 again (chapter 08).
#
# Stages are only 403 MB above the line, but a plan can be off by more. It also leaves out what CUDA, NCCL and gaps between tensors take, so as a rule of thumb we keep a tenth of the card free for these.
#
# ### What helps?
#
# So it is the activations that have to shrink. One way is to take fewer sequences at a time, and another is recomputation, which throws activations away and computes them again in the backward (chapter 05). Which would you try first? Look for bars that end well left of the line:

# %%
tries = {"shards, two at a time": shards.but(mbs=2)}
tries["shards, recompute"] = shards.but(recompute="full")
tries["copies, recompute"] = whole.but(recompute="full")
tries["stages, one at a time"] = stages.but(mbs=1)
lab.show(planner.memory_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# All four ways fit, with more than a tenth of the card to spare. Even copies do, although they keep all of their states. So now it is a question of time.
#
# ### What does each cost?
#
# Recomputation with shards leaves the most room, and it pays for that with a second forward. If a backward takes about twice as long as a forward, how many times as long does the step get?

# %%
longer = lab.guess("step with recomputation, over step without", between=(1, 2))

# %%
recomputed = tries["shards, recompute"].time().step_us
longer.score(recomputed / shards.time().step_us)

# %% [markdown]
# A forward is a third of a step, so a second one makes the step about a third longer. The constants of the picture come from other programs and machines, so compare its rows, and expect other milliseconds:

# %%
lab.show(planner.time_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# - **Two at a time** costs little: smaller matrices are multiplied at a lower rate, and layers are gathered twice as often.
# - **Copies** gather nothing, but each card updates all of the parameters, and the update then takes 37.6 ms, not 4.70.
# - **Stages** are the slowest, because they wait for each other, and because one sequence at a time makes small matrices.
#
# ### What are the activations?
#
# Each of these cures costs time, so before we choose one, let us see what the activations are. The table lists what one forward of four sequences keeps: the operator whose result it is, the shape, how many such tensors there are, and their bytes. Look at the rows that are 6,400 wide, four times the model's 1,600:

# %%
lab.table(your_own.kept(your_own.Step(make=large)))

# %% [markdown]
# These four rows hold more than two thirds of all bytes. Each of the 48 layers has five such tensors, two of them under "mul", and all belong to one small function, GELU. The library writes it out in plain operators, each of which keeps what its own backward needs:
#
# | made by | what it is | kept for |
# | --- | --- | --- |
# | addmm | GELU's input, x | the cube |
# | mul | x / 2 | the final mul |
# | tanh | the tanh | its own backward |
# | add | 1 + the tanh | the final mul |
# | mul | GELU's result | the next matrix product |
#
# Torch has the same function as one operator. It keeps only x, because its backward can compute the rest from it, and GELU's result stays for the next product. So three of the five tensors go. In the list above, 48 wide tensors are 5.03 GB, so which share of the 36.1 GB does one operator save?

# %%
saved = lab.guess("share of the activations that one operator saves", between=(0, 1))

# %% [markdown]
# `leaner`, beside the model above, asks GPT-2 for that operator:

# %%
lean = your_own.Step(make=partial(large, **leaner)).plan(**machine, zero=3)
kept = [plan.memory().parts["activations"] for plan in (shards, lean)]
saved.score(1 - kept[1] / kept[0])

# %% [markdown]
# Now look at the lower bar, which has as many sequences and recomputes no layer:

# %%
both_ways = {"as it is": shards, "leaner": lean}
lab.show(planner.memory_bars(both_ways))

# %% [markdown]
# It fits, and at 27.2 GB far more than a tenth of the card stays free.
#
# ### Is it slower?
#
# The one operator computes the inside of GELU a second time, so you might expect a longer step. Compare the memory traffic of both:

# %%
lab.show(planner.time_bars(both_ways))

# %% [markdown]
# By the plan the step even gets shorter. Each of the plain operators reads wide tensors from memory and writes another, which takes far longer than its arithmetic. One operator reads and writes once, so of 255 ms of memory traffic 60.4 ms are left.
#
# So here the best cure is one word, `gelu_pytorch_tanh`. That is why you look at what your module keeps before you pay for room with time.

# %% [markdown]
# ### What labkit can't know of it
#
# All of this was read off the module, which says what it computes, and not what it is for. Here are the questions that stay open, each with a way out:

# %%
lab.table(your_own.doubts(your_own.Step(make=large)))

# %% [markdown]
# The row on attention changes our numbers. GPT-2's attention is causal, and in a run the library says so to torch, which then does half of the work. But fake tensors have no values to look at, so here the library makes masks. The plan therefore has the whole attention, 57.8 ms, and 0.8 GB of masks that a run doesn't keep.

# %% [markdown]
# ## Run it, read it out
#
# Can we believe the rest? To find out, we plan the small module in the same way and run it, on two real [ranks](GLOSSARY.md#rank) in shards by FSDP. In your own script these lines would do it:
#
# ```python
# for layer in (*module.transformer.h, module):  # each layer, then the whole
#     fully_shard(layer)
# optimizer = torch.optim.Adam(module.parameters())  # now of shards
# ```
#
# `Step` writes them for you. A run also needs a loss, which a plan never calls, and with `split=True` each rank gets half of the batch, two sequences. In the picture the left bars are planned and the right ones counted, at four moments of the third step: before the forward, at its end, at the backward's highest point, and at the update. Where do they differ most?

# %%
step = your_own.Step(make=small, loss=next_token, engine="fsdp", ranks=2, split=True)
sharded = step.compare()
sharded

# %% [markdown]
# The plan is near at both ends of the step, where there is little but states, because these only depend on how many parameters there are. In the middle it is too high. Here is the backward, part by part:

# %%
lab.table(your_own.beside(sharded, "backward"))

# %% [markdown]
# ### Where was the plan off?
#
# Altogether the plan has 20.2 MB and the run 16.4 MB, so the plan is 23 % too high. Two rows cause nearly all of it:
#
# - **Gradients**: the plan has 1.86 MB and the run none, because at its highest point no gradient was finished.
# - **Gathered for a while**: the plan has 3.44 - 1.34 = 2.1 MB more. The run had gathered one layer and what lies outside of the layers, while the plan adds the next layer, as if on its way, and gradients that are not shared out yet.
#
# So the plan adds up what in the run took turns, as gradients come when activations go. That is why you can trust the size of a plan's states, and have to measure its peak.
#
# Is the large plan of 42.3 GB 23 % too high as well? These two rows can't make it so, since there they are 0.78 + 1.02 = 1.8 GB. Without them 40.5 GB remain, and without the 0.8 GB of masks 39.7 GB. That is too near to 40 for a verdict, while the lean module's 27.2 GB are not.
#
# ### Does leaner keep less in a run?
#
# By the plan `leaner` saves 41.9 % of the large module's activations. Here are those of the small module at the end of the forward, and in the last column the share that is saved:

# %%
lighter = step.but(make=partial(small, **leaner)).compare()
lab.table(your_own.saved({"as it is": sharded, "leaner": lighter}))

# %% [markdown]
# Both shares are close to the large module's, because a layer keeps the same kinds of tensors at any width. So this part of the plan holds.

# %% [markdown]
# ## Cut it in two
#
# After shards we try stages, and cut the small module, as it is, in two [stages](GLOSSARY.md#stage). Torch traces it for that: it follows one forward to find what the second half needs of the first. But GPT-2's embedding and its output layer are one table ("tied weights"), and they lie at opposite ends. How many parameters do both stages hold together, compared with the whole?

# %%
both = lab.guess("parameters of both stages, over the whole", between=(0.5, 2))

# %%
cut = step.but(engine="pipeline")
halves = cut.run()
in_both = sum(rank["parameters_bytes"] for rank in halves)
both.score(in_both / (step.shape().itemsize * step.shape().params))

# %% [markdown]
# The table has 1,000 x 128 numbers and lies on both stages, which adds 14 % to this small module and would add 5 % to the large one. Each stage finds only its own part of the table's gradient. So before each update the two parts have to be added, or the copies drift apart. Torch leaves that to you, and labkit's cut does it.

# %% [markdown]
# ### Is it still the same module?
#
# Shards and stages should change where numbers lie, and not what they are. Since every process began with the same seed, all losses should agree: one process takes the batch whole, shards take a half on each rank, and stages take two halves one after the other. We also look at the third, because a wrong gradient only shows after an update, and at the largest difference from one process:

# %%
one = step.but(engine="ddp", ranks=1).run()[0]
ran = {"one process": one, "shards": sharded.run[0], "stages": halves[1]}
lab.table(your_own.losses(ran))

# %% [markdown]
# The differences are rounding, so it is still the same module. If yours differ by more, look for one of these causes first; exercise 2 asks for a fourth.
#
# 1. Something in your module is random, as dropout is, which `small` therefore switches off with `eval()`.
# 2. The loss leaves padding out, so that halves with unequal numbers of tokens count alike.
# 3. The cut has lost something, such as a counter that one half changes and the other reads.

# %% [markdown]
# ## Where does it run out of memory?
#
# A plan is there to say what fits. So as a last test we make a pretend card, whose memory we can choose, on which copies should die and shards should train.
#
# How many MB are planned for copies of the small module at their peak? Their states are 16 bytes for each of 0.93 million parameters. Add the 7.62 MB of activations and the 1.73 MB of temporary tensors from the table above, since each rank takes as many sequences.

# %%
smallest = lab.guess("MB at the peak, copies", between=(0, 100))

# %%
copies = step.but(engine="ddp")
planned = [each.predict().peak_bytes for each in (copies, step)]
smallest.score(planned[0] / 1e6)

# %% [markdown]
# The card's memory shall lie midway between the planned peaks of copies and of shards. Do copies die on it?

# %%
card = lab.pretend(memory_mib=sum(planned) / 2 / 2**20)
died = None
try:
    copies.but(devices=card).run()
except lab.RankFailed as verdict:
    died = verdict
died

# %% [markdown]
# Copies die, in the printed run at one of GELU's wide tensors. Can shards train on the same card?

# %%
step.but(devices=card).run()[0]["losses"]

# %% [markdown]
# They can, with the losses from above, so the plan was right about both. That doesn't make its numbers exact, because any card between the two real peaks would have given these verdicts.
#
# **The second time through**, with yours:
#
# 1. Put your model in place of ours, and your cards into `machine`.
# 2. If your module can't be cut, leave out what uses `stages` or `halves`.
# 3. If your module has a setting that keeps less, put it into `leaner`.
# 4. Note the part that is farthest from its plan, and find out why.
#
# <details><summary>What does not work?</summary>
#
# We tried GPT-2, BERT, T5, ViT, Mamba, Mixtral, ResNet and Whisper (transformers 5.23), `nn.Transformer` and `nn.LSTM`. Four of them need care:
#
# - LSTM: its layers are no modules, so it is not run in parts.
# - ResNet: its first convolutions keep most, so its first stage is planned far too low.
# - Mixtral: set `config._experts_implementation = "batched_mm"`, keep to fp32, and don't cut it in stages.
# - Whisper: to cut it, set `use_cache=False`, leave `labels` out and give a `loss=`.
#
# </details>

# %% [markdown]
# ## Exercise 1. Keep less
#
# GELU was written out, although torch has an operator for it. For the activation function of CLIP, which stands in this MLP, torch has none of that name:


# %%
def wordy(up, down, x):
    size = x.square().mean(-1, keepdim=True).sqrt()
    h = up(x / size)  # four times as wide as x
    return x + down(h * (1 / (1 + torch.exp(-1.702 * h))))


# %% [markdown]
# Here `up` and `down` are `torch.nn.Linear`. What is kept can be found as for GELU, operator by operator. The backward of `exp`, for instance, needs its result, which is as wide as `h`, so it keeps 4 numbers for each number of `x`, and all together keep 22.
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
# Two stages get the batch in halves, and for GPT-2 that changed nothing. It treats each sample by itself, and its loss is a mean: that of 1, 3, 5 and 7 is 4, and so is that of 2 and 6, the means of the halves. Write a module whose first loss in two stages differs from that in one process by more than rounding:
#
# - It is a `torch.nn.Sequential` of four layers of the same build, which labkit cuts in the middle, and nothing in it is random.
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
# You get an engine for two ranks and see only its losses. It is one of four kinds, if the gradient of a weight is 2 on one rank and 4 on the other:
#
# - `"right"`: both ranks update with the mean, 3.
# - `"sum"`: both ranks update with the sum, 6.
# - `"local"`: each rank updates with its own, 2 or 4.
# - `"forward"`: the engine computes another loss to begin with.
#
# You can call `compare(optimizer, same)` twice. It simulates three steps with `"sgd"` or `"adam"`, where `same=True` gives both ranks the same samples and `same=False` samples of their own, and returns two lists of losses: of one process with the whole batch, and of the engine. Which two comparisons tell you the kind?


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
# With the same samples on both ranks, gradients that nobody averaged are right anyway, so only the sum shows. With samples of their own, what nobody averaged shows too. And it has to be SGD, because Adam divides a gradient by its size and hardly notices gradients all twice as large.
#
# </details>

# %% [markdown]
# ## Summary
#
# - You can plan a module from one forward without bytes. You can trust its states almost to the byte, its peak roughly, and its time with constants that you measured.
# - Before you choose a cure, you look at the largest part and at what your module keeps, because shards help states and not activations.
# - You leave a tenth of the card free in a plan, and then you measure.
# - When you shard or cut a module, you compare its losses with those of one process, after updates too.
#
# **Words of this page**: [shard](GLOSSARY.md#shard), [stage](GLOSSARY.md#stage), [microbatch](GLOSSARY.md#microbatch), [activations](GLOSSARY.md#activations). **Further reading**: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
#
# **Next:** [your own machine](22_your_own_machine.ipynb): what a script waits for, and plans with constants of your own.
#
# *Section 8.12 of the source material.*

# %%
check.status()
