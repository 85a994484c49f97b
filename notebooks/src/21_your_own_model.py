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
# *Forty minutes with our model, and then again with yours; half an hour more for the optional end. Needs chapters 05 to 09 and 18, and no GPU.*
#
# So far the planner knew every model by its formulas. Nobody has written formulas for yours, so now it looks at the module itself. Our example is GPT-2 XL of transformers, with 6 GB of weights. Can it be trained on eight cards of 40 GB, each with four sequences at a time? Tensors are in fp32, products in TF32, and NVLink joins the cards.

# %%
from functools import partial

import torch

import labkit as lab
from labkit import planner, your_own
from labkit.your_own import check

lab.begin("en", deadline_s=60)

# %% [markdown]
# `small` gives a small module and a batch, `large` the size that we want to train:


# %%
from transformers import GPT2Config, GPT2LMHeadModel


def gpt2(sequences, length, **sizes):
    # ids that a small vocabulary has too, and no cache, which only serving needs
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = GPT2Config(n_positions=length, **ends, **sizes)
    tokens = torch.randint(config.vocab_size, (sequences, length))
    # eval(): without dropout, which would keep its masks too
    return GPT2LMHeadModel(config).eval(), {"input_ids": tokens}


def small(**more):
    sizes = {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000}
    return gpt2(4, 64, **sizes, **more)


def large(**more):
    return gpt2(4, 1024, n_layer=48, n_embd=1600, n_head=25, **more)


# %% [markdown]
# At first each card keeps a whole copy. `batch` counts all cards' sequences, 8 x 4. Does the bar end left of the line, the card's memory? We count that as 40e9 bytes, to be careful.

# %%
machine = {"gpu": "A100 40 GB", "gpus": 8, "batch": 32}
whole = your_own.Step(make=large).plan(**machine, zero=0)  # a step, planned
lab.show(planner.memory_bars({"copies": whole}))

# %% [markdown]
# It doesn't: a copy needs 63.1 GB, and the thick frame shows what is too much. The largest part is yellow, 36.1 GB of activations. Pink, 2.06 GB, are the logits and what a loss makes of them.
#
# For this the planner sent the batch through the module once, with fake tensors, which have a shape and no bytes. It put what it counted into the formulas of [chapter 18](18_which_layout.ipynb).
#
# **When you are done** you can plan a module that nobody has written formulas for, make it keep less, run it in shards, and say which of a plan's numbers you still have to measure.

# %% [markdown] sections="8.12"
# ## Plan it without running it
#
# ### Shards or stages?
#
# One cure is shards. Each card then keeps an eighth of the parameters, the gradients and Adam's two numbers, the first three parts of the bar. The activations stay, because each card still computes the whole model for its own sequences. How much does a card hold then, compared with a copy?

# %%
held = lab.guess("memory with shards, over memory with copies", between=(0, 1))

# %%
shards = whole.but(zero=3)  # the same plan in shards
held.score(shards.memory().peak_bytes / whole.memory().peak_bytes)

# %% [markdown]
# The other cure is to cut the model into eight stages, one a card. The 32 sequences of all cards then go through every stage, four at a time. Compare the yellow parts of the three bars:

# %%
stages = whole.but(pp=8)
lab.show(planner.memory_bars({"copies": whole, "shards": shards, "stages": stages}))

# %% [markdown]
# By the plan neither cure is enough, because all three bars have the same activations. How can a first stage of 6 layers keep as much as all 48? Under 1F1B it starts eight forwards before its first backward (chapter 08), and 8 x 6 layers are 48 again.
#
# ### What helps?
#
# The activations have to shrink. A card can take its sequences two at a time and add up the gradients, or compute activations again in the backward (chapter 05). For stages we choose one at a time.
#
# A plan leaves out what CUDA, NCCL and gaps between tensors take. As a rule of thumb it should leave a tenth free, and so end by 36 GB. Which bars end left of this dashed line?

# %%
tries = {"shards, two at a time": shards.but(mbs=2)}  # mbs: of a microbatch
tries["shards, recompute"] = shards.but(recompute="full")
tries["stages, one at a time"] = stages.but(mbs=1)
lab.show(planner.memory_bars({"shards, too large": shards, **tries}, spare=0.1))

# %% [markdown]
# ### What does each cost?
#
# All three ways fit, so their times decide. Two at a time makes the products smaller, recomputation adds a second forward, and stages have a bubble. Which step is the longest?

# %%
longest = lab.guess("the way with the longest step", choices=tuple(tries))

# %%
longest.score(max(tries, key=lambda way: tries[way].time().step_us))

# %% [markdown]
# Compare each way with the first row:

# %%
lab.show(planner.time_bars({"shards, too large": shards, **tries}))

# %% [markdown]
# Recomputation adds a third: a backward has two products for each one of a forward, so a second forward is a third of a step. Stages add more than their bubble. Products of one sequence use a card less well, and the last stage also computes the output layer.
#
# Torch uses TF32 only after `torch.set_float32_matmul_precision("high")`. Without it the blue parts may take six times as long. The constants come from other programs and machines, so each time may be off by a fifth or more.
#
# ### What are the activations?
#
# Can a card also simply keep less? That depends on what the activations are. The table lists what one forward of four sequences keeps, by the operator that made it. Look at the rows that are 6,400 wide, four times the model's 1,600:

# %%
lab.table(your_own.kept(your_own.Step(make=large)))

# %% [markdown]
# ### What does GELU keep?
#
# The four rows of this width hold more than two thirds of all bytes. Each of the 48 layers has five such tensors: the input of one small function, GELU, its result, and three in between.
#
# $$\text{GELU}(x) = 0.5\,x\,\bigl(1 + \tanh(c\,(x + 0.0447\,x^3))\bigr), \qquad c = \sqrt{2/\pi}$$
#
# The library writes it in plain operators. Each of them keeps what its own backward needs: a product of two tensors keeps both, and tanh keeps its result. Torch has the same function as one operator, whose backward computes all that again from x. Behind both stands a matrix product, `down`. How many tensors are kept with the one operator?

# %%
from torch.nn import GELU, Linear, Sequential
from transformers.activations import NewGELUActivation

down = Linear(8, 8)
both_gelus = {
    "as it is": Sequential(NewGELUActivation(), down),
    "one operator": Sequential(GELU("tanh"), down),
}

# %% [markdown]
# By hand: autograd calls a hook for each tensor that it keeps. We count each storage once, and leave out the weight of `down`:


# %%
def num_kept(function):
    found = {}

    def keep(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor  # held, so no address twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        function(torch.randn(4, 8, requires_grad=True))
    return len(found.keys() - {down.weight.untyped_storage().data_ptr()})


lab.table([{name: num_kept(way) for name, way in both_gelus.items()}])

# %% [markdown]
# The plain operators keep five tensors, the one operator two. Which are they? The upper row is the formula in its order: x, 0.5x, x³, times 0.0447, plus x, times c, tanh, plus 1, and the product of both factors; `down` is called addmm. A box is yellow if a backward needs its result:

# %%
lab.show(
    your_own.operators(
        {name: your_own.recorded(way) for name, way in both_gelus.items()}
    )
)

# %% [markdown]
# The power keeps x, but a sum, or a product with a plain number, keeps nothing. GELU's result is kept in both rows, because the addmm behind it needs it. In the large model each yellow box of the upper row takes 5.03 GB over all layers. Which share of the 36.1 GB does one operator save?

# %%
saved = lab.guess("share of the activations that one operator saves", between=(0, 1))

# %% [markdown]
# GPT-2 has a setting for that operator:

# %%
leaner = {"activation_function": "gelu_pytorch_tanh"}
in_leaner = your_own.Step(make=partial(large, **leaner)).plan(**machine, zero=3)
kept = [plan.memory().parts["activations"] for plan in (shards, in_leaner)]
saved.score(1 - kept[1] / kept[0])

# %% [markdown]
# The third bar is chapter 18's plan of GPT-2 XL, by formulas alone:

# %%
both_ways = {"as it is": shards, "leaner": in_leaner}
by_formulas = {"by formulas": shards.but(model="GPT-2 XL")}
lab.show(planner.memory_bars(both_ways | by_formulas, spare=0.1))

# %% [markdown]
# It fits, at 27.2 GB: three of the five boxes are gone, 3 x 5.03 = 15.1 GB. The formulas count only GELU's input and result, so they are close to `leaner`, and far from the module as it is.
#
# ### Is it slower?
#
# The one operator computes the inside of GELU twice, but it moves less memory. In the forward, eight plain operators read one wide tensor and write one, and two of them read a second: 8 + 8 + 2 = 18 passes. The one operator has two. We time GELU alone, forward and backward, on one CPU core. How long does the one operator take, compared with the plain ones?

# %%
slower = lab.guess("time of one operator, over the plain ones", between=(0, 2))

# %%
from torch.utils.benchmark import Timer

wide = torch.randn(512, 6400, requires_grad=True)
torch.testing.assert_close(GELU("tanh")(wide), NewGELUActivation()(wide))  # alike
took = []
for act in (NewGELUActivation(), GELU("tanh")):
    timer = Timer("act(wide).sum().backward()", globals={"act": act, "wide": wide})
    took.append(timer.timeit(5).mean)
slower.score(took[1] / took[0])

# %% [markdown]
# So the passes that it saves outweigh what it computes twice. How much is that on our GPU? Compare the memory traffic in the plan:

# %%
lab.show(planner.time_bars(both_ways))

# %% [markdown]
# The plan counts twice as many passes for the backward, so 16 + 32 = 48 are saved. Each moves 5.03 GB over all layers. At 1,244 GB/s, 80 % of the card's 1,555, they take 194 ms.
#
# So by the plan `leaner` is faster than all four rows before. It saves a quarter of the step, or less than a tenth without TF32.
#
# <details><summary>What a module doesn't show</summary>
#
# - **What `torch.compile` makes of it.** It fuses such operators: of this GELU it keeps `x` alone (tried with torch 2.13). A plan is for the module as it is written.
# - **Whether attention is causal.** This can halve attention's 57.8 ms, about 5 % of the step with `leaner`. If yours is, use `plan.but(model=planner.measured(module, batch, causal=True))`. Under `torch.device("meta")`, `large()` gives both without their 6 GB.
# - **How a layer's products could be cut.** So it plans no tensor parallelism (chapter 09).
# - **How long a step takes on your cards.** You fit the constants to four runs of your own ([chapter 22](22_your_own_machine.ipynb)).
#
# `lab.table(your_own.doubts(step))` lists these of your module.
#
# </details>

# %% [markdown]
# ## Run it and count
#
# Can we believe the plan's bytes? We plan the small module in the same way and run it, in shards by FSDP on two real [ranks](GLOSSARY.md#rank).
#
# In a script of your own, these lines of `torch.distributed.fsdp` do it:
#
# ```python
# for layer in (*module.transformer.h, module):  # each layer, then the whole
#     fully_shard(layer)
# optimizer = torch.optim.Adam(module.parameters())  # now of shards
# ```
#
# To train we need a loss. It gets the first tensor of floats in the output, here the logits, and the batch:


# %%
def next_token(logits, batch):
    wanted = batch["input_ids"][:, 1:]
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), wanted.flatten()
    )


# %% [markdown]
# With `split=True` each rank gets half of the batch, two sequences. `compare()` plans the bytes, trains three steps, and draws both at four moments: before the third step, and at the highest points of its forward, backward and update. The left bar of a pair is the plan, the right one the run. Where do they differ most?

# %%
step = your_own.Step(make=small, loss=next_token, engine="fsdp", ranks=2, split=True)
sharded = step.compare()
sharded

# %% [markdown]
# Before the step there are only states, and the plan is right. Then it is too high, but 0.5 MB too low at the update. There labkit's Adam makes two more tensors, each as large as this rank's half of the largest weight, 500 x 128 x 4 B. On a GPU torch's default (`foreach`) can need as much as all of this rank's parameters, but the activations are gone by then. The peak is in the backward:

# %%
lab.table(your_own.beside(sharded, "backward"))

# %% [markdown]
# ### Why is the plan too high?
#
# The plan is 23 % too high, 20.2 MB where this run has 16.4. Of the 3.8 MB between them:
#
# - **1.9 are gradients**. The plan has all of them. The run is highest early in the backward, when nearly all activations are still there and no gradient is finished.
# - **1.4 are in "gathered" and "temporary" together**. The plan has whole gradients there, one layer's and the output layer's, before they are cut into shards. The run has none yet. (The layer that FSDP is fetching is temporary in the run, and gathered in the plan.)
# - **0.5 are activations**. The run has let some go by then, and the rest we have not traced.
#
# Trust a plan's parameters and optimizer, but measure the peak: call `torch.cuda.max_memory_allocated()` after the third step. CUDA, NCCL and gaps are not in that number either, so it too should end by 36 GB.

# %% [markdown]
# ## So can it be trained?
#
# By the plan GPT-2 XL can, in shards, with `leaner` and without dropout. It needs 27.2 GB of the 36 that our rule allows. Our loss takes 12 bytes for each logit in fp32, where the plan counts 10, so 0.4 GB more. Then 8 GB are still free.
#
# Without `leaner` the verdict is less sure. If this plan were as much too high as the small module's, shards alone would just fit. But that error was mostly gradients and gathered layers, a small part here. Nothing was run at this size.
#
# ## A second module, and yours
#
# Does every module want the same cure? Here is one without attention:


# %%
class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def mlp(layers, width, samples):
    blocks = [Block(width) for _ in range(layers)]
    return torch.nn.Sequential(*blocks), torch.randn(samples, width)


# %% [markdown]
# The large one has 24 layers and 4,096 samples a card. A layer has 134 million parameters, so its states are 2.1 GB. Its samples keep 0.4 GB. In GPT-2 a layer has 0.5 GB of states and keeps 0.75. Which of these is the fastest that leaves a tenth free?

# %%
ways_out = ("copies", "shards", "shards, recompute", "stages")
cure = lab.guess("the fastest way for the MLP", choices=ways_out)

# %%
mlp_plan = your_own.Step(make=partial(mlp, 24, 4096, samples=4096))
mlp_plan = mlp_plan.plan(**machine | {"batch": 8 * 4096}, zero=0)
mlp_ways = {"copies": mlp_plan, "shards": mlp_plan.but(zero=3)}
mlp_ways["shards, recompute"] = mlp_plan.but(zero=3, recompute="full")
mlp_ways["stages"] = mlp_plan.but(pp=8)
fit = [way for way, plan in mlp_ways.items() if plan.memory().peak_bytes < 36e9]
cure.score(min(fit, key=lambda way: mlp_ways[way].time().step_us))

# %% [markdown]
# The first picture shows what fits, the second how long it takes:

# %%
lab.show(planner.memory_bars(mlp_ways, spare=0.1))

# %%
lab.show(planner.time_bars(mlp_ways))

# %% [markdown]
# ### Now yours
#
# **Your turn**: write your module into `my_model`, your sizes below it, and your cards into `machine`. As it stands it is a transformer's encoder:


# %%
def my_model(layers, width, samples):
    # your own module instead, and a batch for it, samples first
    layer = partial(torch.nn.TransformerEncoderLayer, dropout=0.0, batch_first=True)
    encoder = [layer(width, 8, 4 * width) for _ in range(layers)]
    return torch.nn.Sequential(*encoder), torch.randn(samples, 64, width)


my_step = your_own.Step(make=partial(my_model, 4, 64, samples=8), split=True)
my_plan = your_own.Step(make=partial(my_model, 24, 2048, samples=128))
my_plan = my_plan.plan(**machine | {"batch": 8 * 128}, zero=0)

# %% [markdown]
# The repeated layers must be modules of one class and size, side by side, and at least as many as you have cards, or stages are left out. Give your loss to `Step` as `loss=`, like `next_token`. Without one labkit takes the mean of the output's squares.
#
# `columns` takes each module through this page. Its six plans are copies, shards (also half as many samples at a time, or recomputation), and stages (also a quarter as many). It also trains the small module in shards and in stages, and compares three losses with those of one process. What doesn't work for a module is skipped with a reason:

# %%
mlp_step = your_own.Step(make=partial(mlp, 4, 128, samples=256), split=True)
modules = {"GPT-2": (step, whole), "MLP": (mlp_step, mlp_plan)}
lab.table(your_own.columns(modules | {"yours": (my_step, my_plan)}))

# %% [markdown]
# The last two rows say how far the losses are apart at most. Here that is rounding, and alike in both, because both take the mean of two halves.
#
# GPT-2 stands here without `leaner`. The MLP needs shards alone, because most of it is states. What its relu keeps, the next product needs anyway, so another activation function would save nothing.
#
# <details><summary>What to bring</summary>
#
# - The batch is a tensor, a tuple of them, or a dict by the names that `forward` takes.
# - If the output is one number, labkit takes it as the loss.
# - If there are several rows of layers, labkit takes the one with the most parameters.
# - Leave out what the loss doesn't reach, such as an untrained head, or DDP stops.
# - `machine` names the card, how many there are, and the samples of a step of all cards. If NVLink joins only some of them, add `per_node=4`, and with `nic_gb_per_s=12.5` the GB/s out of a node for each card.
#
# </details>
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
# This MLP has the activation function of CLIP, QuickGELU, and torch has no operator of that name:


# %%
def wordy(up, down, x):
    size = x.square().mean(-1, keepdim=True).sqrt()
    h = up(x / size)  # four times as wide as x
    return x + down(h * (1 / (1 + torch.exp(-1.702 * h))))


# %% [markdown]
# Here `up` and `down` are `torch.nn.Linear`. Five tensors as wide as `h` and two as wide as `x` are kept, 5 x 4 + 2 = 22 numbers for each number of `x`.
#
# <details><summary>Which five?</summary>
#
# They are `h`, the result of `exp`, the two results of `1 / t`, which is a reciprocal and then a product with 1, and the input of `down`. `your_own.recorded` shows them, if you give it the activation function alone.
#
# </details>
#
# Write a forward that keeps half of that, 11 at most:
#
# - Output and gradients stay what they are.
# - No matrix product is computed twice.


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
# ## Summary
#
# - You plan a module from one forward with fake tensors, before you rent anything.
# - You trust a plan's parameters and optimizer, leave a tenth of the card free, and measure the peak and the time.
# - Before you choose a cure, you look at the largest part and at what your module keeps, because shards help states and not activations.
# - From the optional end: when you shard or cut a module, you compare its losses with one process's, after updates too, and with SGD.
#
# **Words of this page**: [shard](GLOSSARY.md#shard), [stage](GLOSSARY.md#stage), [microbatch](GLOSSARY.md#microbatch), [activations](GLOSSARY.md#activations). **Further reading**: [torch.distributed.pipelining](https://docs.pytorch.org/docs/stable/distributed.pipelining.html), [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
#
# **Next:** [your own machine](22_your_own_machine.ipynb): what a script waits for, and plans with constants of your own.

# %% [markdown]
# ---
#
# *Here ends what most people need. The rest is about copies and about two stages, and optional.*

# %% [markdown]
# ## Is a plan of copies as far off?
#
# In shards the run reached 0.81 of the plan. Now we run the same module in copies (`engine="ddp"`). How much is it here?

# %%
reached = lab.guess("measured peak of copies, over their plan", between=(0.5, 1.5))

# %%
copies = step.but(engine="ddp").compare()
reached.score(copies.measured.peak_bytes / copies.predicted.peak_bytes)

# %% [markdown]
# Here are both runs beside their plans, and a third in copies with `leaner`:

# %%
copies_leaner = step.but(engine="ddp", make=partial(small, **leaner)).compare()
found = {"shards": sharded, "copies": copies, "copies, leaner": copies_leaner}
looks = {"title": "The highest point of a step", "badge": "predicted / measured"}
lab.bars(your_own.peaks(found), unit="bytes", **looks)

# %% [markdown]
# Copies gather nothing, and DDP keeps all gradients all the time, so both causes are gone. `leaner` saves about as much in the run as in the plan.
#
# The plan of copies is close in sum. In the backward its activations are too low and its temporary tensors too high. Whether the run counts one tensor under another name, we have not traced:

# %%
lab.table(your_own.beside(copies, "backward"))

# %% [markdown]
# <details><summary>Gradients twice</summary>
#
# DDP sends gradients in buckets, which always stay. With `gradient_as_bucket_view=True`, as labkit sets it, the gradients are these buckets. Without it you need their bytes once more.
#
# </details>

# %% [markdown]
# ## Cut it in two
#
# We cut the small module into two [stages](GLOSSARY.md#stage). But GPT-2's embedding and its output layer are one table of 1,000 x 128 numbers ("tied weights"), and they lie at opposite ends. The whole module has 0.93 million parameters. How many do both stages hold together, as a multiple of that?

# %%
both = lab.guess("parameters of both stages, over the whole", between=(0.5, 2))

# %%
cut = step.but(engine="pipeline", optimizer="sgd")
halves = cut.run()  # an entry for each rank
in_stages = sum(rank["parameters_bytes"] for rank in halves)
in_shards = sum(rank["parameters_bytes"] for rank in sharded.run)  # the whole, once
both.score(in_stages / in_shards)

# %% [markdown]
# Each stage has the table, so what is its gradient? We compute it for the whole module first, and then with the two ends untied, as they are after the cut. A bar is the norm of the whole gradient less one stage's, and the last bar less both:

# %%
module, batch = small()
table = module.lm_head.weight  # and module.transformer.wte.weight
next_token(module(**batch).logits, batch).backward()
whole_grad = table.grad

# %%
module.zero_grad()
module.lm_head.weight = torch.nn.Parameter(table.detach().clone())  # untied
next_token(module(**batch).logits, batch).backward()
first, second = table.grad, module.lm_head.weight.grad
missing = {"stage 0, embedding": (whole_grad - first).norm().item()}
missing["stage 1, output layer"] = (whole_grad - second).norm().item()
missing["both, added"] = (whole_grad - first - second).norm().item()
lab.bars(missing, title="Norm of what is missing of the table's gradient")

# %% [markdown]
# Added, both parts are the whole gradient up to rounding, so what one stage lacks is the other's part. Before each update they have to be added. Torch leaves that to you, and labkit's cut does it.
#
# <details><summary>Two stages in your script</summary>
#
# Here `tokens` is the tensor of the batch, `table` this stage's copy of the table, `losses` an empty list, and `loss` takes the output and tokens:
#
# ```python
# point = {"transformer.h.2": SplitPoint.BEGINNING}
# pipe = pipeline(module, (), {"input_ids": tokens[:2]}, split_spec=point)
# stage = pipe.build_stage(rank, device)
# schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss)
# if rank == 0:
#     schedule.step(input_ids=tokens)
# else:
#     schedule.step(target=tokens, losses=losses)
# dist.all_reduce(table.grad)  # before each optimizer.step()
# ```
#
# </details>

# %% [markdown]
# ### Is it still the same module?
#
# From the same seed, shards and stages should have the losses of one process. A wrong gradient only shows after an update, so we look at three losses. We train with SGD. Adam would hide gradients that are all twice as large, because it divides each gradient by its size.

# %%
sgd = step.but(optimizer="sgd")
one = sgd.but(engine="ddp", ranks=1).run()[0]
one["losses"]

# %% [markdown]
# How far are the other runs from that? In the last row we don't add the two parts:

# %%
ran = {"one process": one, "shards": sgd.run()[0]}  # shards: the mean over both ranks
ran["stages"] = halves[1]  # only the last stage has a loss
ran["stages, not added"] = cut.but(add_tied=False).run()[1]
lab.table(your_own.losses(ran), title="Losses, less those of one process")

# %% [markdown]
# The first two rows agree up to rounding. Between 4 and 8, neighbouring numbers of fp32 are 4.77e-07 apart, and a mean of two halves can lie half of that off. So it is the same module, as far as three losses can show.
#
# In the last row the first loss is right as well, but after an update it is off by far more than rounding. The third is closer only because the difference changes its sign.
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
# ## Exercise 2. A module whose loss changes in two stages
#
# Two stages get the batch in halves. For GPT-2 that changed nothing, because it treats each sample by itself, and its loss is a mean. Write a module whose first loss in two stages differs from that in one process by more than rounding:
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
# An engine of one of four kinds runs on two ranks. You see only its losses. Say that a weight's gradient is 2 on one rank and 4 on the other:
#
# - `"right"`: both ranks update with the mean, 3.
# - `"sum"`: both ranks update with the sum, 6.
# - `"local"`: each rank updates with its own, 2 or 4.
# - `"forward"`: the engine computes another loss to begin with.
#
# You can call `compare(optimizer, same)` twice. It simulates three steps with `"sgd"` or `"adam"`, and `same=True` gives both ranks the same samples. It returns two lists of losses: those of one process with the whole batch, and those of the engine, each the mean over both ranks. Which two comparisons tell you the kind?


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

# %%
check.status()
