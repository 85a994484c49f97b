# ---
# jupyter:
#   labkit:
#     sections: ["8.4.1", "8.4.2", "8.4.3", "8.4.4", "8.10", "8.11.1", "S6", "D-fsdp"]
#     needs: ["chapters 02, 03, 05 and 06"]
#     minutes: 100
# ---

# %% [markdown]
# # FSDP
#
# *50 minutes, and 50 for the optional end; the exercises add 85 minutes, 35 of them in that end. You need chapters 02, 03, 05 and 06, and no GPU.*
#
# We rent eight cards of 80 GB for our 7 B model. Data parallelism dies on them in its first step: weights, gradients and Adam take 112 GB, and it wants them on every card.
#
# Fully sharded data parallelism (FSDP; ZeRO 3 in chapter 06) keeps one copy, an eighth of it on each card: 112 / 8 = 14 GB of states. But how can a card compute with an eighth of a layer? This page runs on four ranks. Here is one step: move the slider *moment*.

# %%
import math

import labkit as lab
import torch
import torch.distributed as dist
from labkit import fsdp, model, planner, sharding
from labkit.fsdp import check
from torch.distributed.fsdp import fully_shard

lab.begin("en", deadline_s=120, ranks=4)
fsdp.moments()

# %% [markdown]
# `F3` is the forward of layer 3, `B3` its backward; 0 is the embedding, 5 the head. A layer is gathered for its computation and freed after it; in the backward the next one comes early.
#
# **When you are done** you have written FSDP's step, can train with torch's `fully_shard`, and say what it costs in memory, messages and time.

# %% [markdown] sections="8.4.1"
# ## What a rank holds
#
# Our 14 GB are [model states](GLOSSARY.md#model-states) alone: parameters, gradients, and what Adam keeps, two moments and a copy of the weights in fp32. Data parallelism, in torch [DDP](GLOSSARY.md#ddp), keeps them all on every rank. FSDP cuts each into [shards](GLOSSARY.md#shard), so each of four ranks holds a quarter. Is the highest point of a step a quarter, too?
#
# We measure a small transformer. Its states are 3.8 MB in all, its [activations](GLOSSARY.md#activations) up to 0.6 MB, and a whole block 0.2 MB. It is a step's second microbatch, so gradients of the first already lie there.

# %%
share = lab.guess("an FSDP rank's peak, as a share of a DDP rank's", between=(0, 1))

# %%
full, ddp = (sharding.Step(engine=name, ranks=4) for name in ("fsdp", "ddp"))
in_fsdp, in_ddp = (step.run()[0]["footprint"] for step in (full, ddp))
share.score(in_fsdp.peak_bytes / in_ddp.peak_bytes)

# %%
peaks = {"FSDP": in_fsdp.peak_bytes, "DDP": in_ddp.peak_bytes}
lab.bars(peaks, unit="bytes", title="The highest point of rank 0")

# %%
title = "Rank 0 in a second microbatch, beside the gradients of the first"
lab.show(in_fsdp.picture(title=title))

# %% [markdown] sections="8.4.1"
# Not all is states. At `B3` three things lie above them. *Gathered for a while* is block 3; block 2, already on its way, lies in *temporary*. FSDP doesn't shard the activations. *Temporary*, the largest, also has whole gradients. So at its peak a rank holds its share of the states, its activations and a few whole blocks. Our toy has four blocks. In our 7 B model, which has 32, a few weigh far less.
#
# <details><summary>Which blocks lie in <em>temporary</em></summary>
#
# At `B3`:
#
# - Block 2: a gathered layer lands in a buffer, and is copied from there.
# - The gradients of block 3 are whole.
# - The gradients of block 4 are in the buffer from which they are reduced.
#
# </details>
#
# ## By hand
#
# A card has one slice of a layer, and computes in three moves: **[all-gather](GLOSSARY.md#all-gather)** the slices into the whole, **compute**, **[reduce-scatter](GLOSSARY.md#reduce-scatter)** the gradient, so that each rank gets its own slice of the mean.

# %%
fsdp.ThreeMoves(ranks=4)

# %% [markdown]
# A row is a rank. The optimizer works number by number, so in its step each rank needs its own slice alone.
#
# The third move is the backward of the first, so we tell autograd just that. It gives the sum over the ranks; for the mean we divide.


# %%
class Gather(torch.autograd.Function):
    """Slices in, the whole out; backward: a gradient in, my slice of the mean out."""

    @staticmethod
    def forward(ctx, mine):
        whole = mine.new_empty(mine.numel() * dist.get_world_size())
        dist.all_gather_single(whole, mine)  # all_gather_into_tensor before torch 2.13
        ctx.storage = whole.untyped_storage()
        return whole

    @staticmethod
    def backward(ctx, gradient):
        ctx.storage.resize_(0)  # frees the weights after their last use
        mine = gradient.new_empty(gradient.numel() // dist.get_world_size())
        dist.reduce_scatter_single(mine, gradient)  # reduce_scatter_tensor before 2.13
        return mine / dist.get_world_size()


# %% [markdown]
# Now we lay a layer's parameters into one flat tensor, pad it, and keep one part, the only parameter that the optimizer sees. `functional_call` runs the layer's code with the gathered weights. So the layer's own can go to `meta`, a device of shapes without bytes.


# %%
class Kept(torch.nn.Module):
    """Gathered in the forward, whole until its backward is over."""

    def __init__(self, layer):
        super().__init__()
        flat = torch.cat([each.detach().flatten() for each in layer.parameters()])
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))
        part = flat.chunk(dist.get_world_size())[dist.get_rank()]
        self.mine = torch.nn.Parameter(part.clone())
        self.shapes = {name: each.shape for name, each in layer.named_parameters()}
        self.layer = [layer.to("meta")]  # its code without its bytes, hidden in a list

    def views(self, flat):
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = flat[: sum(sizes)].split(sizes)
        return {name: p.view(s) for p, (name, s) in zip(parts, self.shapes.items())}

    def forward(self, x):
        whole = Gather.apply(self.mine)
        return torch.func.functional_call(self.layer[0], self.views(whole), (x,))


# %% [markdown]
# `fsdp.train` takes three steps of SGD with DDP and with ours, from the same weights. It counts the bytes that a rank holds, and hands to collectives. How far apart are two weights at most?

# %%
DDP = torch.nn.parallel.DistributedDataParallel
ways = {"DDP": DDP, "Kept": fsdp.each_layer(Kept)}
lab.table(lab.launch(fsdp.train, ways)[0].apart())

# %% [markdown]
# `Kept` is correct, up to rounding: *untrained* shows how far three steps moved the weights. But when the forward ends, all layers are whole. `Freed` gives the bytes back in between.


# %%
class Freed(Kept):
    """The same, freed after the forward and gathered again for the backward."""

    def forward(self, x):
        whole = Gather.apply(self.mine)  # 1 gather
        output = torch.func.functional_call(self.layer[0], self.views(whole), (x,))
        storage, data, num_bytes = whole.untyped_storage(), whole.data, whole.nbytes
        storage.resize_(0)  # 2 free

        def again(gradient):  # 3 fill again
            storage.resize_(num_bytes)
            dist.all_gather_single(data, self.mine.data)  # autograd does not see it

        output.register_hook(again)  # runs when the gradient of the output is there
        return output


# %% [markdown]
# At 2 all bytes go: autograd has saved *views* of the gathered tensor, and they share one storage. At 3 a hook, which autograd calls before the layer's backward, fills it again, in place. Autograd notices an ordinary in-place write, because the tensor's version number grows, and raises an error. It does not notice a write through `.data`.
#
# ### Beside torch's own
#
# torch does it with one function, called on each part of the model and then on the whole. A call makes a **[unit](GLOSSARY.md#unit)**: all parameters that no inner call has taken, gathered by one message and freed together. Each parameter of the module is replaced by a new one, a `DTensor`: it holds this rank's slice (`to_local()`) and can gather the whole (`full_tensor()`).


# %%
def sharded(net, **options):
    """Every layer is gathered and freed by itself; the root takes what is left."""
    for layer in [*net.layers, net]:
        fully_shard(layer, **options)
    return net


# %%
ways |= {"Freed": fsdp.each_layer(Freed), "fully_shard": sharded}
runs = lab.launch(fsdp.train, ways)[0]
lab.table(runs.apart())

# %% [markdown]
# And the memory? At each moment we take the highest of the three steps. Batches here have two sequences, not one, so the peaks don't compare with the 2.06 MB above.

# %%
held = {way: runs[way].footprint for way in ("Kept", "Freed", "fully_shard")}
lines = {way: dict(enumerate(each.totals)) for way, each in held.items()}
peaks = {each.peak: each.totals.argmax() for each in held.values()}
title = "Memory of rank 0 over a step, and where it peaks"
axes = {"x": "0 to 5: F0 to F5; 6 to 11: B5 to B0", "y": "memory of rank 0"}
lab.curves(measured=lines, at=peaks, title=title, unit="bytes", joined=True, **axes)

# %% [markdown]
# `Kept` climbs by the activations and the whole model, and peaks in `F5`. `Freed` climbs by the activations alone, with one whole layer on top, and peaks in `B4`, where that layer's gradients are whole, too. `fully_shard` lies above `Freed`, by its buffers.
#
# <details><summary>How much higher</summary>
#
# In the forward a block, the buffer through which it gathers. In the backward up to two, because the next one is there early.
#
# </details>
#
# In torch's older names `Freed` and `fully_shard` are **FULL_SHARD**, and `Kept` is **SHARD_GRAD_OP**, today `fully_shard(..., reshard_after_forward=False)`.
#
# ### Exercise 1. A step in slices
#
# Build FSDP's step without an `autograd.Function` of your own, for rows that don't divide. About 30 minutes.
#
# - `shards[i]` are this rank's rows of weight i, as `torch.chunk` and `fully_shard` cut `num_rows[i]` rows: five rows on four ranks are cut into 2, 2, 1 and 0. You get them unpadded, and return gradients of their shapes. To send them on N ranks, pad to `ceil(num_rows[i] / N)` rows, here 2.
# - `x` is this rank's own batch. A layer is `x = torch.tanh(x @ weight.T)`, and a rank's loss is the mean square of its last `x`.
# - Keep the inputs. In the backward compute each layer again from its input, and then its gradients with `torch.autograd.grad`: every weight is gathered twice, and only one is whole at a time.


# %%
def my_step(shards, num_rows, x):
    """The gradient of each shard: the mean over all ranks."""
    ### BEGIN SOLUTION
    size = dist.get_world_size()

    def padded(rows_of_rank, num):
        return torch.nn.functional.pad(rows_of_rank, (0, 0, 0, num - len(rows_of_rank)))

    def whole(mine, rows):
        most = math.ceil(rows / size)
        everyone = mine.new_empty(most * size, mine.shape[1])
        dist.all_gather_single(everyone, padded(mine, most))
        return everyone[:rows]

    inputs = [x]
    for mine, rows in zip(shards, num_rows):
        inputs.append(torch.tanh(inputs[-1] @ whole(mine, rows).T))
    gradient = 2 * inputs[-1] / inputs[-1].numel()
    found = []
    for index in reversed(range(len(shards))):
        mine, rows = shards[index], num_rows[index]
        weight = whole(mine, rows).requires_grad_()
        given = inputs[index].detach().requires_grad_()
        output = torch.tanh(given @ weight.T)
        to_weight, gradient = torch.autograd.grad(output, (weight, given), gradient)
        out = mine.new_empty(math.ceil(rows / size), mine.shape[1])
        dist.reduce_scatter_single(out, padded(to_weight, len(out) * size))
        found.insert(0, out[: len(mine)] / size)
    return found
    ### END SOLUTION


# %%
check.sharded_step(my_step)

# %%
check.hint("sharded_step")

# %% [markdown] sections="8.4.1"
# ## What a step sends
#
# DDP [all-reduces](GLOSSARY.md#all-reduce) the gradients once. FSDP gathers the parameters twice, and reduce-scatters the gradients once. We count the [payload](GLOSSARY.md#payload), the bytes handed to collectives, and turn it into what a ring sends. How many times DDP's bytes is that?

# %%
ratio = lab.guess("FSDP's bytes, in multiples of DDP's", unit="ratio")


# %%
def ring_bytes(payload, ranks):
    """What a rank of a ring sends for collectives that were handed these bytes."""
    gathered = (ranks - 1) * payload.get("all_gather", 0)  # handed one slice of N
    scattered = (ranks - 1) / ranks * payload.get("reduce_scatter", 0)
    reduced = 2 * (ranks - 1) / ranks * payload.get("all_reduce", 0)
    return gathered + scattered + reduced


counts = {name: run.counted for name, run in runs.items()}
sent = {name: ring_bytes(each.payload_bytes, 4) for name, each in counts.items()}

# %%
ratio.score(sent["Freed"] / sent["DDP"])

# %%
lab.table(
    {"way": name, "sent_bytes": sent[name], **each.calls}
    for name, each in counts.items()
)

# %% [markdown] sections="8.4.1"
# `Kept` sends as much as DDP, because an all-reduce *is* a reduce-scatter and an all-gather. `Freed` and `fully_shard` pay for the memory with a second all-gather of each layer.
#
# ## When messages hide
#
# Bytes cost little time if they travel while the card computes. `Freed` gathers a layer when it is needed, so everybody waits. torch asks for the next layer early: [prefetch](GLOSSARY.md#prefetch). We record a step of a model of three blocks, so of five layers, 0 to 4, and write rank 0's order in letters: `g3` gathers layer 3, `F3` and `B3` compute it, `r3` reduces its gradients.


# %%
def fsdp_step():
    net = sharded(model.Transformer(3, 128, 4, max_len=64))
    tokens, targets = model.story_tokens(4, 64, seed=dist.get_rank())
    for _ in range(2):  # the order is that of the second; the first warms up
        model.loss(net(tokens), targets).backward()


# %%
moves = fsdp.order(lab.launch(fsdp_step, record=True).timeline())
lab.table([("0", " ".join(moves))], heads=["rank", "order"])

# %% [markdown]
# In the backward FSDP prefetches without being told to: `g2` comes before `B3`. On GPUs messages have a [stream](GLOSSARY.md#stream), a queue of work beside others, so a message can [hide](GLOSSARY.md#overlap-to-hide-communication) under computation.
#
# Our record is from CPUs. On a GPU, Python asks far ahead of the card, and each queue keeps only its own order. So gathers of the forward start early, too.
#
# We replay this order on two simulated queues, each layer as long as a block of our 7 B model. On an assumed card of 200 TFLOP/s a block's forward of 2,048 tokens takes 4 ms, its backward 8. On a link of 200 GB/s a message of 0.4 GB takes 2 ms. How many of the 15 messages stand alone, with no computation beside them?

# %%
alone = lab.guess("messages that stand alone", between=(0, 15))

# %%
queues = fsdp.replay(moves, forward_us=4_000, message_us=2_000)
computing_us = 5 * 12_000
alone.score((queues.end_us.max() - computing_us) / 2_000)

# %%
queues

# %% [markdown] sections="8.4.2"
# <details><summary>Which ones, and why</summary>
#
# The first gather, the second `g4`, and the last reduce. Layer 4, here the head, is freed after `F4` and gathered anew at once; `reshard_after_forward=False` for the last layer saves that message.
#
# Two buffers take turns, so the first `g4` waits until `F2` begins, at 10 ms: only then has layer 2 left its buffer.
#
# A deeper model has no more such messages: with 32 blocks the idle share falls from 9.1 % to about 1.5 %.
#
# </details>
#
# So most messages hide in this replay; on a GPU they can slow the computation. How many tokens does that take? A weight costs 2 FLOPs for each token in the forward, and in bf16 2 bytes on the link, so the twos cancel. The backward has twice the FLOPs and two messages, so the same bound. Messages hide if each card's microbatch has $t$ tokens, and
#
# $$t \ge \frac{\text{FLOP/s of a card}}{\text{bytes/s of its link}}$$
#
# At 200 TFLOP/s our link wants 200,000 GFLOP/s / 200 GB/s = 1,000 tokens, and a network of 25 GB/s wants 8,000.
#
# <details><summary>The replay's numbers</summary>
#
# A block of our 7 B model has 0.2 B parameters, so we replayed gathers of 0.4 GB, and a forward of 2 × 0.2 B × 2,048 = 0.8 TFLOP.
#
# </details>

# %% [markdown] sections="S6"
# ## The training loop
#
# A sharded model trains like any other if five things are right. Four are numbered in the code. The fifth is the first weights: DDP copies those of rank 0 to all, but FSDP cuts what each rank has. So if only rank 0 has loaded weights, the other slices are noise: seed all ranks alike, or load from rank 0.

# %%
from torch.distributed.checkpoint import state_dict


def sharded_first():
    torch.manual_seed(0)
    net = sharded(model.Transformer(2, 32, 2, max_len=32))  # 1 children, then the root
    return net, torch.optim.SGD(net.parameters(), lr=0.1)  # 2 after sharding


def optimizer_first():
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return sharded(net), optimizer


# %% [markdown]
# The second function makes the optimizer *before* `fully_shard`. We train four steps on one batch. What do we get?

# %%
outcomes = ("a falling loss", "the same loss", "an error")
does = lab.guess("with the optimizer made first", choices=outcomes)


# %%
def fsdp_loop(made):
    net, optimizer = made()
    mine = slice(dist.get_rank(), None, dist.get_world_size())  # this rank's rows
    tokens, targets = model.story_tokens(8, 32, seed=0)
    losses = []
    for _ in range(4):
        net.zero_grad()
        loss = model.loss(net(tokens[mine]), targets[mine])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)  # 3 over all ranks
        optimizer.step()
        losses.append(loss.item())
    options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = state_dict.get_model_state_dict(net, options=options)  # 4 on every rank
    return losses[0], losses[-1], norm.full_tensor().item(), len(weights)


# %%
four, one = (lab.launch(fsdp_loop, sharded_first, ranks=num) for num in (4, 1))
wrong = lab.launch(fsdp_loop, optimizer_first)
first_loss, last_loss, *_ = wrong[0]

# %%
does.score("the same loss" if first_loss == last_loss else "a falling loss")

# %%
rows = [("sharded first", 4, rank, *four[rank]) for rank in range(4)]
rows += [("sharded first", 1, 0, *one[0]), ("optimizer first", 4, 0, *wrong[0])]
heads = ["first loss", "last loss", "last norm", "tensors to save"]
lab.table(rows, heads=["way", "ranks", "rank", *heads])

# %% [markdown]
# *norm* is that of the whole gradient before clipping, the same on four ranks as on one; *loss* is that of a rank's own rows. All ranks call `get_model_state_dict`, and rank 0 alone receives the tensors. And if the root comes first?


# %%
def root_first():
    net = model.Transformer(2, 32, 2, max_len=32)
    try:
        for layer in [net, *net.layers]:
            fully_shard(layer)
    except TypeError as error:
        return f"TypeError: {error}"


lab.launch(root_first)[0]

# %% [markdown] sections="8.4.4, S6"
# The root's call has already cut all weights. The call on a layer takes cut weights for those of another kind of parallelism, doesn't find what that needs, and gives up.
#
# The other three, done wrong; the last two we did not run:
#
# - An optimizer made first holds the old, whole parameters, which never get a gradient. Fresh batches hide that, so test on one batch.
# - If you clip by your own slices' norm, each rank clips by a factor of its own, without an error.
# - If only rank 0 calls `get_model_state_dict`, it waits until the group's timeout ends the run.
#
# ### Exercise 2. Repair a training
#
# About 20 minutes. The loop below has four mistakes, two of them new, and raises no error. `steps` holds, for each update, a list of this rank's microbatches, whose gradients add up. Write it right: the same SGD on the mean `mse_loss` over microbatches and ranks, the gradient clipped as a whole to `max_norm`. `net` is an `nn.Sequential`, alike on all ranks.


# %%
def broken(net, steps, max_norm):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for layer in [*net, net]:
        fully_shard(layer)
    for microbatches in steps:
        for x, y in microbatches:
            torch.nn.functional.mse_loss(net(x), y).backward()
        own = [weight.grad.to_local() for weight in net.parameters()]
        factor = max_norm / torch.stack([each.norm() for each in own]).norm()
        for each in own:
            each *= factor.clamp(max=1)
        optimizer.step()


# %%
def my_training(net, steps, max_norm):
    """Shards net in place, and trains it."""
    ### BEGIN SOLUTION
    for layer in [*net, net]:
        fully_shard(layer)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for microbatches in steps:
        optimizer.zero_grad()
        for x, y in microbatches:
            (torch.nn.functional.mse_loss(net(x), y) / len(microbatches)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
    ### END SOLUTION


# %%
check.train_sharded(my_training)

# %%
check.hint("train_sharded")

# %% [markdown] sections="8.4.3, 8.4.4, 8.10, 8.11.1, D-fsdp"
# ## When is it worth it?
#
# Back to our eight cards of 80 GB, in one machine with NVLink. The model, really 6.74 B parameters, takes 64 sequences in a step, on each card eight microbatches of one. ZeRO 1 (chapter 06) cuts only what the optimizer keeps, ZeRO 2 the gradients, too, and FSDP all. Which fit?

# %%
before = planner.Plan(model="LLaMA 7B", gpus=8, batch=64, recipe="mixed")
sharded_plan = before.but(zero=3)  # the planner's FULL_SHARD
cut = {"ZeRO 1": before.but(zero=1), "ZeRO 2": before.but(zero=2)}
lab.show(planner.memory_bars({"DDP": before, **cut, "FULL_SHARD": sharded_plan}))

# %% [markdown]
# All but DDP. FULL_SHARD's 2 GB *gathered for a while* are two blocks, a block's gradients, embedding, and head with its gradients. ZeRO 1 sends gradients and weights once a step. ZeRO 2 sends gradients in each of the eight microbatches. FULL_SHARD sends gradients once and weights twice in each. In whole models:
#
# | a step of | gradients | weights | both |
# | --- | --- | --- | --- |
# | ZeRO 1 | 1 | 1 | 2 |
# | ZeRO 2 | 8 | 1 | 9 |
# | FULL_SHARD | 8 | 16 | 24 |
#
# How many times as long as ZeRO 1's step does FULL_SHARD's take?

# %%
longer = lab.guess("FULL_SHARD's step, over ZeRO 1's", unit="ratio")

# %%
in_one = fsdp.ways(before)
in_two = fsdp.ways(before, machines=2, gb_per_s=25)  # the network of each
longer.score(in_one["FULL_SHARD"].step_us / in_one["ZeRO 1"].step_us)

# %%
rows = [(way, *cost, in_two[way].step_us) for way, cost in in_one.items()]
heads = ["memory_bytes", "sent_bytes", "one machine_us", "two machines_us"]
lab.table(rows, heads=["way", *heads])

# %% [markdown] sections="8.4.3, 8.4.4, 8.10, 8.11.1, D-fsdp"
# All this is planned. *Gathered once* is SHARD_GRAD_OP whose weights stay whole over all eight microbatches.
#
# Inside one machine the plan has a tie: steps differ by less than 2 %. They are longer than the replay's 12 ms × 32 × 8 = 3.1 s, because the plan also counts attention, head and small operations. Messages hide, because a microbatch, one sequence, has 2,048 tokens, and a link of 200 GB/s wants only 1,000 (*When messages hide*). FULL_SHARD's spare memory counts once the model, sequences or microbatches grow.
#
# The last column has the same eight cards, four in each of two machines. A ring leaves a machine once, so the shared network carries only what one card sends, at 25 GB/s. It wants 8,000 tokens, so messages no longer hide, and the order is that of the bytes. FULL_SHARD's step is hardly more than its messages: 283 GB / 25 GB/s = 11.3 s. But a published run that gathered between machines took 3.8 times as long as predicted ([chapter 19](19_how_far_to_trust_a_plan.ipynb)), so 11.4 s may be too little.
#
# So over slow links take the lowest stage that fits: ZeRO 1 if whole gradients do, ZeRO 2 if only whole weights do. FULL_SHARD is for fast links, and where whole weights leave no room.
#
# <details><summary>SHARD_GRAD_OP, and <em>gathered once</em></summary>
#
# SHARD_GRAD_OP frees after each backward, so it gathers in every microbatch: 8 × 2 = 16 times the model. *Gathered once* adds `set_reshard_after_backward(False)` until the last microbatch: 1 + 8 = 9 times, which are ZeRO 2's messages. Both take more memory than ZeRO 2: slices beside whole weights.
#
# </details>
#
# <details><summary>And if memory is still short?</summary>
#
# - If activations are too much, [recompute them](GLOSSARY.md#activation-checkpointing). Set up *before* `fully_shard`, as in the script of the optional end, that costs no message: a block's second forward runs while it is gathered for its backward anyway.
# - If even an $N$-th of the states is too much, [offload](GLOSSARY.md#offload) helps: with `offload_policy=CPUOffloadPolicy()` slices, gradients and optimizer lie in the host's memory, at the price that [chapter 06](06_zero_deepspeed.ipynb) measures.
#
# </details>

# %% [markdown] sections="8.4.3, 8.4.4, 8.10, 8.11.1, D-fsdp"
# ## Summary
#
# - FSDP is data parallelism with slices: all-gather a unit, compute, free it, reduce-scatter its gradient. At the peak a rank also holds activations and a few units.
# - `fully_shard` children first, the root last; then the optimizer; clip over all ranks.
# - If all messages have one type, FULL_SHARD sends 1.5 times DDP's bytes in one microbatch, and 12 times in eight, since DDP can send once.
# - A gather hides if a microbatch has enough tokens for the link. If it doesn't, take the lowest stage that fits.
#
# Words learned: [shard](GLOSSARY.md#shard), [unit](GLOSSARY.md#unit), [stream](GLOSSARY.md#stream), [prefetch](GLOSSARY.md#prefetch) and [payload](GLOSSARY.md#payload).
#
# Next: chapter 08 cuts the model into stages, and sends only activations and their gradients.

# %% [markdown]
# ---
#
# *Here ends what most people need. The rest is about units, what real trainings add, and slow links, and optional.*

# %% [markdown]
# ## How large should a unit be?
#
# Until now each layer was a unit of its own. A call of `fully_shard` can also take a list of modules: they become one unit.
#
# Here is a model of six blocks, wrapped in four ways. Smaller units mean more messages, each with a fixed cost (chapter 02). We assume 20 us. How many times as high is the peak of *the root alone* as that of *each layer*?

# %%
from labkit.measure import memory, traffic

WRAPS = {
    "the root alone": lambda net: [],
    "pairs of layers": lambda net: [  # embedding, six blocks, head
        list(net.layers[i : i + 2]) for i in range(0, 8, 2)
    ],
    "each layer": lambda net: list(net.layers),
    "each Linear": lambda net: [m for m in net.modules() if type(m) is torch.nn.Linear],
}

# %%
more = lab.guess("the peak of the root alone, over each layer's", unit="ratio")


# %%
def one_step(way):
    """A step of the model in these units: its peak, and how often it gathers."""
    with memory.watch() as watched, traffic.count() as counted:
        net = model.Transformer(6, 64, 4, max_len=32)
        for unit in [*WRAPS[way](net), net]:
            fully_shard(unit)
        watched.mark("step")
        tokens, targets = model.story_tokens(1, 32, seed=dist.get_rank())
        model.loss(net(tokens), targets).backward()
    gathers = counted.calls["all_gather"]
    peak_bytes = watched.footprint().peak_bytes
    return {"peak_bytes": peak_bytes, "all-gathers": gathers, "fixed_us": 20 * gathers}


# %%
found = lab.launch(lambda: {way: one_step(way) for way in WRAPS})[0]

# %%
more.score(found["the root alone"]["peak_bytes"] / found["each layer"]["peak_bytes"])

# %%
lab.table({"way": way, **row} for way, row in found.items())

# %% [markdown]
# With the root alone, all is gathered at once and stays, because a root is not freed after its forward. With smaller units less is whole at a time, and messages cost more. *Each Linear* pays three times as much as *each layer* for a peak that is 15 % lower. So one unit for each block is usual.
#
# ### Exercise 3. Wrap within a budget
#
# About 15 minutes. `net` is an `nn.Sequential` of layers of different sizes, each within `budget_bytes`. Call `fully_shard` so that no unit's whole parameters take more, with as few units as you can. Units are made of consecutive layers. The root comes last, and no layer is left to it.


# %%
def my_wrap(net, budget_bytes):
    """Shards net in place."""
    ### BEGIN SOLUTION
    units, room = [], -1
    for layer in net:
        num_bytes = sum(weight.nbytes for weight in layer.parameters())
        if num_bytes > room:
            units.append([])
            room = budget_bytes
        units[-1].append(layer)
        room -= num_bytes
    for unit in units:
        fully_shard(unit)
    fully_shard(net)
    ### END SOLUTION


# %%
check.wrap_within(my_wrap)

# %%
check.hint("wrap_within")

# %% [markdown] sections="8.4.4"
# ## In practice: accumulation, types, loading
#
# ### Accumulation
#
# In [gradient accumulation](GLOSSARY.md#gradient-accumulation) DDP sends once, with `no_sync`. FSDP splits that in two: `set_requires_gradient_sync(False)` leaves the gradients of a microbatch unreduced, and `set_reshard_after_backward(False)`, with `reshard_after_forward=False`, leaves the weights whole.
#
# With four microbatches and five units: 20 reduce-scatters and 40 all-gathers. If we only put off the reducing to the last microbatch, how many of the 60 messages are left?

# %%
left = lab.guess("messages of four microbatches, reduced once", between=(0, 60))


# %%
def accumulate(reduce_once, gather_once):
    tokens, targets = model.story_tokens(4, 32, seed=dist.get_rank())
    with memory.watch() as watched, traffic.count() as counted:
        net = model.Transformer(3, 64, 4, max_len=32)
        sharded(net, reshard_after_forward=not gather_once)
        watched.mark("step")
        for k in range(4):
            net.set_requires_gradient_sync(k == 3 or not reduce_once)
            net.set_reshard_after_backward(k == 3 or not gather_once)
            (model.loss(net(tokens[k : k + 1]), targets[k : k + 1]) / 4).backward()
    calls, peak_bytes = counted.calls, watched.footprint().peak_bytes
    return calls["all_gather"], calls["reduce_scatter"], peak_bytes


# %%
ONCE = {
    "neither": (0, 0),
    "reduced": (1, 0),
    "gathered": (0, 1),
    "reduced and gathered": (1, 1),
}
found = lab.launch(lambda: {name: accumulate(*how) for name, how in ONCE.items()})[0]

# %%
left.score(sum(found["reduced"][:2]))

# %%
rows = [(name, *row) for name, row in found.items()]
lab.table(rows, heads=["once", "gathers", "reduce-scatters", "peak_bytes"])

# %% [markdown] sections="8.4.2, S6"
# All gathers remain, since each unit is freed again. If nothing is freed, each unit is gathered once, and messages are those of ZeRO 2 (*gathered*) or ZeRO 1 (*reduced and gathered*). The price is memory: in our 7 B model 28 GB for whole gradients in fp32, and 14 GB for whole weights in 16 bits.
#
# ### Mixed precision
#
# `MixedPrecisionPolicy(param_dtype, reduce_dtype)` names the type for gathering and computing, and the type for reducing. The slices keep the type in which the model was built: in fp32 they are the [master weights](GLOSSARY.md#master-weights) of chapter 05, sharded.
#
# We divide the loss by 1024, so that fp16 visibly fails, and count the gradients that are zero, in the embedding's table of tokens and elsewhere:


# %%
from torch.distributed.fsdp import MixedPrecisionPolicy


def step_in(params, reduced):
    torch.manual_seed(0)
    policy = MixedPrecisionPolicy(params, reduced)
    net = sharded(model.Transformer(2, 64, 4, max_len=32), mp_policy=policy)
    tokens, targets = model.story_tokens(8, 32, seed=dist.get_rank())
    with traffic.count() as counted:
        (model.loss(net(tokens).float(), targets) / 1024).backward()
    grads = (each.grad.full_tensor() for each in net.parameters())
    table, *others = ((each == 0).sum().item() for each in grads)
    sent = ring_bytes(counted.payload_bytes, dist.get_world_size())
    return {"sent_bytes": sent, "zeros of tokens": table, "elsewhere": sum(others)}


# %%
fp32, bf16, fp16 = torch.float32, torch.bfloat16, torch.float16
TYPES = {
    "fp32, fp32": (fp32, fp32),
    "bf16, fp32": (bf16, fp32),
    "bf16, bf16": (bf16, bf16),
    "fp16, fp32": (fp16, fp32),
    "fp16, fp16": (fp16, fp16),
}
found = lab.launch(lambda: {name: step_in(*types) for name, types in TYPES.items()})[0]

# %%
rows = [{"types": name, **row} for name, row in found.items()]
weights = model.Transformer(2, 64, 4, max_len=32).parameters()
in_ddp = ring_bytes({"all_reduce": sum(each.nbytes for each in weights)}, ranks=4)
lab.table([*rows, {"types": "DDP, fp32", "sent_bytes": in_ddp}])

# %% [markdown] sections="8.4.2, S6, 8.11.1"
# In fp32 only tokens that did not occur have zeros: 11,008 / 64 = 172 of the table's 256 rows. bf16 loses hardly more. fp16 loses thousands, and needs the [loss scale](GLOSSARY.md#loss-scale) of chapter 05. The usual recipe is *bf16, fp32*, because a sum over many ranks rounds less in fp32; four ranks don't show that. It sends as much as DDP in fp32: the factor of 1.5 holds only if all messages have one type.
#
# ### Loading from rank 0
#
# If every rank reads the file of our 7 B model, eight copies of 28 GB stand in the host's memory. Instead all shard the model on `meta`, make room (`to_empty`), and get their slices from rank 0. Rank 0 alone reads, with `torch.load(path, mmap=True)`; here it makes random weights. A rank's bytes, on host and device:


# %%
def setup_fsdp_model(build):
    """A sharded model whose weights rank 0 alone has made."""
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        net = sharded(build(), mp_policy=policy)
    net.to_empty(device=torch.get_default_device())
    with torch.device("cpu"):  # whole in the host's memory alone
        weights = build().state_dict() if dist.get_rank() == 0 else {}
    options = state_dict.StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True
    )
    state_dict.set_model_state_dict(net, weights, options=options)
    return net


# %%
def load():
    with memory.watch() as watched:
        watched.mark("load")
        setup_fsdp_model(lambda: model.Transformer(4, 64, 4))
    return watched.footprint().peak_bytes


model_bytes = sum(each.nbytes for each in model.Transformer(4, 64, 4).parameters())
rows = [(rank, peak, model_bytes) for rank, peak in enumerate(lab.launch(load))]
lab.table(rows, heads=["rank", "peak_bytes", "whole model_bytes"])

# %% [markdown] sections="8.4.2, 8.11.1, S6, D-fsdp"
# Rank 0 has the whole model for a moment, beside its own slices. Rank 1 never has more than one tensor whole, because they are sent one by one.
#
# <details><summary>The whole as a script for <code>torchrun</code></summary>
#
# Start: `torchrun --nproc-per-node 8 train.py`. Put `sharded` and `setup_fsdp_model` where `...` stands. `Model`, `loss` and `batches`, which yields tensors on the device, are your own. Buffers outside the state dict stay undefined: fill them after `to_empty`.
#
# ```python
# import os
# from functools import partial
# import torch
# import torch.distributed as dist
# from my_model import Model, batches, loss
# from torch.distributed.checkpoint import state_dict
# from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
# from torch.utils.checkpoint import checkpoint
#
# ...
#
# def build():
#     net = Model()
#     for block in net.layers:  # recompute the activations
#         block.forward = partial(checkpoint, block.forward, use_reentrant=False)
#     return net
#
# if torch.cuda.is_available():
#     torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
#     torch.set_default_device("cuda")
# dist.init_process_group()
# net = setup_fsdp_model(build)
# optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
# for inputs, targets in batches(dist.get_rank(), dist.get_world_size()):
#     optimizer.zero_grad()
#     loss(net(inputs).float(), targets).backward()  # the output is bf16
#     torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
#     optimizer.step()
# options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
# weights = state_dict.get_model_state_dict(net, options=options)  # every rank calls it
# if dist.get_rank() == 0:
#     torch.save(weights, "weights.pt")
# dist.destroy_process_group()
# ```
#
# </details>

# %% [markdown] sections="8.4.2, 8.10"
# ## How fast must the link be?
#
# By the rule of *When messages hide*, a network of 25 GB/s wants 8,000 tokens at 200 TFLOP/s, even if eight cards share it.
#
# <details><summary>Gradients in fp32, and several links</summary>
#
# If gradients are reduced in fp32, which is usual, one of the backward's two messages doubles, and it wants 1.5 times the tokens: 12,000.
#
# If a machine has a link for each card, they add up, because NCCL lays several rings, and each leaves by another card's link. All our GB/s are those of a whole machine.
#
# </details>
#
# Here is the step that we replayed, over a network of 25 GB/s, where a message takes 16 ms:

# %%
fsdp.replay(moves, forward_us=4_000, message_us=16_000)

# %% [markdown] sections="8.4.2, 8.10"
# The card waits for its messages three quarters of the time, because it has a quarter of the tokens that this network wants.
#
# ### Do more cards make it faster?
#
# Our step on eight cards has 64 × 2,048 = 131,072 tokens. We grow from one machine of eight cards to eight machines, and the network of each brings our 25 GB/s. All cards share these tokens, and from 16 cards on, each takes its share as one microbatch. Gradients are reduced in 16 bits. How many times as fast is the step?

# %%
faster = lab.guess("a step on 64 cards, how many times as fast as on 8", unit="ratio")

# %%
linked = sharded_plan.but(nic_gb_per_s=2 * 25 / 8)  # per card; half counts as reached
plans = {num: linked.but(gpus=num, mbs=64 // num) for num in (16, 32, 64)}
plans = {8: sharded_plan} | plans
step_us = {num: plan.time().step_us for num, plan in plans.items()}

# %%
faster.score(step_us[8] / step_us[64])

# %%
whole_bytes = 2 * sharded_plan.shape.params  # all weights, or gradients, in 16 bits
lines = {
    "computing alone": {num: step_us[8] * 8 / num for num in range(8, 65, 2)},
    "messages alone": {num: 3 * whole_bytes / 25e3 for num in range(16, 65, 2)},
}
title = "A step of 131,072 tokens on more and more cards"
axes = {"x": "cards", "unit": "us", "at": {"rule": 16, "crossing": 20}}
dots = {"the planner's step": step_us}
lab.curves(predicted=lines, measured=dots, badge="predicted", title=title, **axes)

# %% [markdown] sections="8.10"
# With more cards each computes less, while its messages stay as long. The step follows the higher line. By the rule the messages take over at 131,072 / 8,000 = 16 cards, in the planner's lines at 20. From there the step takes the 1.6 s of its messages, however many cards you add. With a batch that grows along with the cards, the limit moves.
#
# <details><summary>Why 20 and not 16, and why the last dot lies below its line</summary>
#
# The planner's card computes, for 6.74 B parameters, 131,072 × 6 × 6.74 B / 8 = 660 TFLOP in 3.96 s, which is 167 TFLOP/s, not 200. So it wants only 167,000 / 25 = 6,700 tokens.
#
# The line is drawn for all bytes. On 64 cards a ring sends 63/64 of them.
#
# </details>

# %% [markdown] sections="8.4.2, S6"
# ## FSDP between machines: four strategies
#
# Our eight cards stand in two machines now, and a machine's network brings 6 GB/s. A microbatch has 2,048 tokens. How many times as long does a step take?

# %%
slower = lab.guess("a step over the slow network, over one machine's", unit="ratio")

# %%
two_machines = sharded_plan.but(per_node=4, nic_gb_per_s=2 * 6 / 4)  # as above
slower.score(two_machines.time().step_us / sharded_plan.time().step_us)

# %% [markdown] sections="8.4.2, S6"
# <details><summary>Where the number comes from</summary>
#
# A gather hides if a microbatch has as many tokens as the card's FLOP/s over the network's bytes/s (*When messages hide*): 200,000 / 6 = 33,000. Ours has a sixteenth. That it is less than 16 times has two causes: a ring sends only 7/8 of the bytes, and the planner's card computes 167 TFLOP/s instead of 200. This holds for gradients reduced in 16 bits.
#
# The step is 1 % shorter than 283 GB take at 6 GB/s: embedding and head stay whole from the forward to the backward, so in each microbatch they are gathered once, not twice.
#
# </details>
#
# ### The four strategies
#
# Papers and configuration files name four strategies. Each makes two choices: whether a unit is freed after its forward, and on which **[mesh](GLOSSARY.md#mesh)** of ranks it is cut. HYBRID_SHARD takes a mesh of 2 × 2. Ranks 0 and 1 are one machine, ranks 2 and 3 the other. Each machine, a group in the picture, has a whole copy, cut in two. This is `B3`:

# %%
machines = sharding.Step(engine="fsdp_hybrid", ranks=4).board()
machines.controls["moment"].value = 9  # the moment B3
machines

# %% [markdown] sections="8.4.2, S6"
# A layer is gathered inside a machine. The all-reduce adds gradients between machines: rank 0's half to rank 2's, rank 1's to rank 3's.
#
# FULL_SHARD makes one ring of all four ranks. The hop that leaves a machine carries what a rank sends: two gathers and a reduce, each 3/4 of the weights, 9/4 in all. What share of that leaves a machine with HYBRID_SHARD?

# %%
leaves = lab.guess(
    "what would leave a machine, as a share of FULL_SHARD's", between=(0, 1)
)

# %%
STRATEGIES = {  # the mesh, whether a unit is freed after its forward, what it is for
    "FULL_SHARD": ({"shard": 4}, True, "the least memory"),
    "SHARD_GRAD_OP": ({"shard": 4}, False, "whole weights fit on each card"),
    "HYBRID_SHARD": ({"replicate": 2, "shard": 2}, True, "slow links between machines"),
    "NO_SHARD": ({"replicate": 4, "shard": 1}, True, "everything fits on each card"),
}


# %%
def step_on(sizes, freed):
    device, shape = torch.get_default_device().type, tuple(sizes.values())
    mesh = dist.init_device_mesh(device, shape, mesh_dim_names=tuple(sizes))
    with memory.watch() as watched, traffic.count() as counted:
        net = model.Transformer(1, 64, 4, max_len=32)
        sharded(net, mesh=mesh, reshard_after_forward=freed)
        watched.mark("step")
        tokens, targets = model.story_tokens(2, 32, seed=dist.get_rank())
        model.loss(net(tokens), targets).backward()
    held = sum(each.to_local().nbytes for each in net.parameters())
    leaving = fsdp.leaving_bytes(counted.payload_bytes, per_machine=2, **sizes)
    return held, watched.footprint().peak_bytes, leaving


# %%
def all_four():
    return [(name, *step_on(*how), use) for name, (*how, use) in STRATEGIES.items()]


rows = lab.launch(all_four)[0]

# %%
full_row, _, hybrid_row, _ = rows
leaves.score(hybrid_row[3] / full_row[3])

# %%
heads = ["weights between steps_bytes", "peak_bytes", "would leave a machine_bytes"]
lab.table(rows, heads=["strategy", *heads, "for"])

# %% [markdown] sections="8.4.2, S6"
# <details><summary>Why this share</summary>
#
# Each of a machine's two ranks all-reduces its half with one other rank, and sends half of the weights' bytes for it. That is 1 for the machine, and 1 / (9/4) is 4/9.
#
# The payloads are counted, and laid on rings by formula, because our ranks are one machine.
#
# </details>
#
# HYBRID_SHARD keeps the gathers inside, so the states must fit on one machine. SHARD_GRAD_OP holds no more than FULL_SHARD between steps, but its peak is higher.
#
# <details><summary>Scripts with the old class, FSDP1</summary>
#
# FSDP1 flattens a unit and cuts that, as our `Kept` did. The arguments have other names:
#
# | FSDP1 | FSDP2 |
# | --- | --- |
# | `auto_wrap_policy=` | `fully_shard` on each unit, then on the root |
# | `MixedPrecision(param_dtype, reduce_dtype, buffer_dtype)` | `MixedPrecisionPolicy(param_dtype, reduce_dtype)`; buffers: `net.to(...)` |
# | `backward_prefetch=BACKWARD_PRE` | always; more by `set_modules_to_backward_prefetch` |
# | `forward_prefetch=True` | `set_modules_to_forward_prefetch` |
# | `cpu_offload=CPUOffload(offload_params=True)` | `offload_policy=CPUOffloadPolicy()` |
# | `device_id=` | the mesh's device |
# | `no_sync()` | `set_requires_gradient_sync(False)` |
# | `net.clip_grad_norm_(1.0)` | `clip_grad_norm_(net.parameters(), 1.0)` of `torch.nn.utils` |
#
# </details>
#
# ### What helps our two machines
#
# FULL_SHARD has two ways out: a card's whole share as *one microbatch*, or HYBRID_SHARD. As whole weights fit, ZeRO 2 in one microbatch is a third. All messages are in 16 bits. We estimate HYBRID_SHARD's all-reduce by hand, as if nothing of it hid:


# %%
def hybrid(plan):
    """One machine's plan, with its part; microseconds of the all-reduce between all."""
    num = plan.gpus // plan.per_node  # machines
    bytes_per_us = plan.per_node * plan.nic_gb_per_s / 2 * 1e3
    between_us = 2 * (num - 1) / num * 2 * plan.shape.params / bytes_per_us
    return plan.but(gpus=plan.per_node, batch=plan.batch // num), between_us


# %%
def cost(plan, more_us=0):
    planned_us = plan.time().step_us
    return plan.memory().peak_bytes, planned_us, more_us, planned_us + more_us


one_of_eight = {"mbs": 8, "recompute": "full", "stack": "fsdp-a100"}
rows = [
    ("FULL_SHARD", *cost(two_machines)),
    ("one microbatch", *cost(two_machines.but(**one_of_eight))),
    ("HYBRID_SHARD", *cost(*hybrid(two_machines))),
    ("ZeRO 2, one microbatch", *cost(two_machines.but(zero=2, **one_of_eight))),
]
lab.table(
    rows, heads=["way out", "memory_bytes", "planned_us", "by hand_us", "step_us"]
)

# %% [markdown] sections="8.4.2, S6"
# HYBRID_SHARD is a step of one machine, and an all-reduce of 13.5 GB. All three ways out are predicted at 6 to 7 s instead of 46.7 s. ZeRO 2 is the quickest, but wants whole weights on each card. Of the other two, *one microbatch* gathers between machines. The planner says:

# %%
print(two_machines.warnings()[0])

# %% [markdown] sections="8.4.2, S6"
# Both errors favour *one microbatch*: some of the all-reduce can hide, and gathers between machines may take longer. So of these two HYBRID_SHARD is the quicker, by 6 % at least, if these are the only errors.
#
# <details><summary>And with gradients in fp32?</summary>
#
# HYBRID_SHARD's all-reduce then takes 4.5 s, and a step 3.97 + 4.5 = 8.5 s. The reduce-scatter of *one microbatch* grows by 13.5 × 7/8 / 6 = 2.0 s, none of which hides, and its step to 6.62 + 2.0 = 8.6 s. HYBRID_SHARD is ahead by 1 % at least, by the same two errors.
#
# </details>
#
# <details><summary>What each of them needs</summary>
#
# - **One microbatch** has an eighth of the messages; its activations fit only if they are recomputed.
# - **HYBRID_SHARD** needs `set_requires_all_reduce(False)` until the last microbatch. Then 13.5 GB of gradients leave a machine in a step.
#
# </details>
#
# ### Exercise 4. Before you rent
#
# About 20 minutes. Find the quickest of FULL_SHARD and HYBRID_SHARD that fits: strategy, sequences of a microbatch (`mbs`, a divisor of a card's `plan.batch // plan.gpus`), and `recompute`, "none" or "full".
#
# `plan` is FULL_SHARD on several machines, like `two_machines`. Ask `plan.but(mbs=..., recompute=...)` for `.fits` and `.time().step_us`. For HYBRID_SHARD ask the machine that `hybrid(plan)` gives, and add its microseconds.
#
# For `two_machines` the answer is `("HYBRID_SHARD", 4, "none")`.


# %%
def my_strategy(plan):
    """("FULL_SHARD" or "HYBRID_SHARD", mbs, recompute)"""
    ### BEGIN SOLUTION
    machine, between_us = hybrid(plan)
    ways = {"FULL_SHARD": (plan, 0), "HYBRID_SHARD": (machine, between_us)}
    mine = plan.batch // plan.gpus
    step_us = {}
    for mbs in (size for size in range(1, mine + 1) if mine % size == 0):
        for recompute in ("none", "full"):
            for name, (one, more_us) in ways.items():
                each = one.but(mbs=mbs, recompute=recompute)
                if each.fits:
                    step_us[name, mbs, recompute] = each.time().step_us + more_us
    return min(step_us, key=step_us.get)
    ### END SOLUTION


# %%
check.choose_strategy(my_strategy)

# %%
check.hint("choose_strategy")

# %% [markdown] sections="8.4.1, 8.4.3, 8.4.4, 8.10, 8.11.1, S6, D-fsdp"
# ## Errata of the textbook
#
# <details><summary>Nine boxes, for readers of that textbook</summary>
#
# <details><summary>Erratum 8.4.1: "O(M/N) memory for each rank"</summary>
#
# The table gives a DDP rank O(M) and an FSDP rank O(M/N). That holds for the states and leaves out the activations and the gathered layers, which don't shrink when ranks are added. Run it: `full.footprint().peak_bytes / ddp.footprint().peak_bytes` gives 0.47 on four ranks, not a quarter: 2.06 MB beside 4.41 MB.
#
# </details>
#
# <details><summary>Erratum S6: fp16 without a loss scale</summary>
#
# The FSDP loop of section S6, and the demo project, set `param_dtype=torch.float16` and never scale the loss. Small gradients are lost without a word: see the row *fp16, fp16* of the table of types. Take bf16, or `torch.amp.GradScaler`.
#
# </details>
#
# <details><summary>Erratum S6: NO_SHARD as "Stage 1", SHARD_GRAD_OP as "Stage 2"</summary>
#
# NO_SHARD shards nothing, so it is stage 0: in the table of strategies the last row has the whole weights. SHARD_GRAD_OP is nearly stage 2.
#
# </details>
#
# <details><summary>Erratum S6: the loop calls <code>fsdp_model.backward</code> and <code>fsdp_model.step</code></summary>
#
# Those are methods of a DeepSpeed engine; FSDP has neither. The section's `default_auto_wrap_policy` and `BackwardPrefetch.PRE_FORWARD` don't exist, and `MixedPrecision` is never imported. Run it: `hasattr(torch.distributed.fsdp.BackwardPrefetch, "PRE_FORWARD")` gives False.
#
# </details>
#
# <details><summary>Erratum 8.11.1: <code>fsdp_cpu_ram_efficient_loading</code> as "CPU offload"</summary>
#
# That setting is about *loading*: only rank 0 reads the weights, as under *Loading from rank 0*. In training nothing is on the host.
#
# </details>
#
# <details><summary>Erratum D-fsdp: <code>setup_fsdp_model</code> of the demo project</summary>
#
# It raises a NameError (`SHARD_GRAD_OP` without `ShardingStrategy`). It names no layers, so there is one unit, gathered at once: the first row of the table of units. It uses fp16 everywhere, and its loop has no scaler. The all-reduce of the *loss* after `backward` is for the log; gradients are reduced without it.
#
# </details>
#
# <details><summary>Erratum 8.4.4: <code>apply_activation_checkpointing</code></summary>
#
# It lives in a private module, `torch.distributed.algorithms._checkpoint`, so it may go. The public way is `torch.utils.checkpoint`, as in chapter 05; both do the same.
#
# </details>
#
# <details><summary>Erratum 8.4.4: offload "saves another 30 %, 20 to 40 % slower"</summary>
#
# Neither is a constant. The saving is the states' share of the peak, which falls as activations grow. The price depends on the tokens of a rank, on the link and on the host's memory.
#
# </details>
#
# <details><summary>Erratum 8.4.3: <code>Accelerator(fsdp_plugin={...})</code></summary>
#
# The section gives the settings as a dict. `Accelerator` wants a `FullyShardedDataParallelPlugin`, and for FSDP2 that refuses or changes some of the section's settings: `sharding_strategy` became `reshard_after_forward`, and `forward_prefetch` and `backward_prefetch` are gone. Run it: `Accelerator(fsdp_plugin={"sharding_strategy": "FULL_SHARD"})` raises a TypeError. And without a GPU Accelerate 1.15 ignores the plugin without a word, and trains with DDP.
#
# </details>
#
# </details>
#
# ## Further reading
#
# - Zhao et al. 2023, *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, [arXiv 2304.11277](https://arxiv.org/abs/2304.11277)
# - Rajbhandari et al. 2020, *ZeRO*, [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
# - [fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), in PyTorch's documentation

# %%
check.status()
