# ---
# jupyter:
#   labkit:
#     sections: ["8.8.1", "8.8.2", "10.3.3", "19.3.3"]
#     needs: ["chapters 07, 08 and 09", "DeepSpeed (installed with labkit)"]
#     minutes: 90
# ---

# %% [markdown]
# # All axes on one mesh, and experts
#
# *An hour and a half. You need chapters 07, 08 and 09. No GPU is needed.*
#
# Our 7 B model now has 64 cards, eight in each of eight machines. We keep eight copies of it and cut each copy's layers in eight slices. One line of code says so: `init_device_mesh("cuda", (8, 8), mesh_dim_names=("dp", "tp"))`. A colleague types `("tp", "dp")`. Nothing fails, and the loss falls as before. But by our planner's reckoning a step now takes about thirty seconds instead of seven.
#
# What does that line decide, and how could two swapped names cost so much?

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import parallel

import labkit as lab
from labkit import experts, mesh_3d, model, planner
from labkit.experts import check as router_check
from labkit.mesh_3d import check

lab.begin("en", deadline_s=60)
mesh_3d.Step(pp=2, dp_shard=2, tp=2, node_size=4).board()

# %% [markdown]
# Each box is a card. Move the slider *lit* on to `tp`, `dp_shard` and `pp`: cards of one colour talk to each other along that axis. Which axis crosses from machine to machine (*node* in the picture), so that its lines are dashed?
#
# **When you are done** you can lay ranks out on named axes, train along three of them at once with torch's own tools, decide which axis belongs inside a machine, and share a layer's experts out among ranks.

# %% [markdown] sections="8.8.1, 10.3.3"
# ## Eight ranks, three numbers each
#
# Three ways to divide work: two pipeline stages (`pp`), two shares of the batch (`dp_shard`), two slices of each layer (`tp`). 2 x 2 x 2 makes 8, so every rank has one place on each [axis](GLOSSARY.md#axis). Such a grid of ranks with named axes is a [mesh](GLOSSARY.md#mesh).
#
# Data parallelism comes in two kinds: along `dp_shard` the weights are sharded, as FSDP does, and along `dp_replicate` they are copied, as DDP does. We begin with `dp_shard`.
#
# We count as one counts minutes and seconds: `tp` runs fastest. So a neighbour along `tp` is one rank away, along `dp_shard` two, along `pp` four. Which rank is the partner of rank 5 along `dp_shard`?

# %%
partner = lab.guess("rank 5's partner along dp_shard", between=(0, 7))

# %% [markdown]
# ### One line makes the mesh
#
# Ranks that talk to each other along an axis are a [process group](GLOSSARY.md#process-group). torch's `init_device_mesh` makes the groups of all axes at once. Here are the groups of rank 5, with the names in two orders:


# %%
def groups_in_two_orders():
    kind = torch.get_default_device().type  # cuda, where there are GPUs
    rows = []
    for names in (("pp", "dp_shard", "tp"), ("tp", "dp_shard", "pp")):
        mesh = init_device_mesh(kind, (2, 2, 2), mesh_dim_names=names)
        groups = {
            axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in names
        }
        rows.append({"order": " ".join(names), **groups})
    return rows


# %%
both = lab.launch(groups_in_two_orders, ranks=8)[5]
lab.table(both)

# %%
partner.score(both[0]["dp_shard"][1])  # of rank 5's group

# %% [markdown]
# In binary 5 is 101, and `dp_shard` is the middle digit in both orders: its partner is 111, or 7. With `tp` named last, the partner along `tp` is 4, the rank beside it. With `tp` named first it is 1.
#
# Now the first screen. In its mesh of (8, 8), the `tp` group of rank 0 was 0 to 7, all in one machine. With the names swapped it is 0, 8, 16 and so on to 56: one card in each machine.
#
# Both meshes train to the same loss. But launchers number ranks machine by machine, so the order of the names says which cables each axis gets: **the last axis gets the fastest ones**.

# %% [markdown] sections="8.8.1"
# ## Exercise 1. All groups of an axis
#
# Write the function that lists the groups along one axis of any mesh. `sizes` names the axes with their sizes, the one whose neighbours are farthest apart first: `{"pp": 4, "dp_shard": 8, "tp": 2}`. Return a list of lists of ranks, the groups in any order: `my_groups({"a": 2, "b": 2}, "a")` is `[[0, 2], [1, 3]]`. (`check.hint("groups")` gives a hint.)


# %%
def my_groups(sizes, axis):
    """All groups along an axis: lists of ranks."""
    ### BEGIN SOLUTION
    ranks = torch.arange(torch.tensor(list(sizes.values())).prod().item())
    at = list(sizes).index(axis)
    return ranks.view(*sizes.values()).movedim(at, -1).reshape(-1, sizes[axis]).tolist()
    ### END SOLUTION


# %%
check.groups(my_groups)

# %% [markdown] sections="8.8.1, 10.3.3"
# ## Training on three axes
#
# Three tools that you know each take one axis of the mesh. Chapter 08 gave each rank a stage, and a stage is a module like any other. So `parallelize_module` (chapter 09) can cut its layers along `tp`, and then `fully_shard` (chapter 07) can shard the slices along `dp_shard`. The other way round it fails, because `parallelize_module` needs weights that are still whole.
#
# To keep the plan short, we cut only the MLPs and leave attention whole:


# %%
def cut(stage, mesh):
    plan = {}
    for name, layer in stage.named_children():
        if isinstance(layer, model.Block):
            plan[f"{name}.up"] = parallel.ColwiseParallel()
            plan[f"{name}.down"] = parallel.RowwiseParallel()
    parallel.parallelize_module(stage, mesh["tp"], plan)
    for layer in stage.children():
        fully_shard(layer, mesh=mesh["dp_shard"])
    fully_shard(stage, mesh=mesh["dp_shard"])


# %% [markdown]
# For comparison, four steps of the whole model on one rank:


# %%
def on_one():
    torch.manual_seed(0)
    net = model.Transformer(4)
    tokens, targets = model.story_tokens(8, 32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


one = lab.launch(on_one, ranks=1)[0]

# %% [markdown]
# On eight ranks the schedule does forward and backward, as in chapter 08. New are the lines with `mesh`, and one rule: the ranks of a `tp` group read the same share of the batch.


# %%
def on_three_axes():
    torch.manual_seed(0)
    device = torch.get_default_device()
    stages, shards, slices, microbatches = 2, 2, 2, 2
    names, shape = ("pp", "dp_shard", "tp"), (stages, shards, slices)
    # the mesh, and my place on it
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    pp, dp = mesh["pp"].get_local_rank(), mesh["dp_shard"].get_local_rank()
    # my layers, cut and sharded
    layers = model.split(model.Transformer(4), stages)[pp]
    cut(layers, mesh)
    stage = PipelineStage(layers, pp, stages, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, microbatches, loss_fn=model.loss)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
    # my share of the batch
    tokens, targets = (each.chunk(shards)[dp] for each in model.story_tokens(8, 32))
    means = torch.zeros(4)
    for step in range(4):
        losses = []
        inputs = [tokens] if pp == 0 else []
        schedule.step(*inputs, target=targets, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        total = sum(each.item() for each in losses)  # stage 0 has none
        means[step] = total / microbatches
    dist.all_reduce(means, group=mesh["dp_shard"].get_group())
    up = layers[1].up.weight
    return means / shards, up.shape, up.to_local().shape


# %%
eight = lab.launch(on_three_axes, ranks=8)
losses, whole, mine = eight[7]  # rank 7 is on the last stage, which knows the loss
print(whole, mine)
pairs = zip(one.tolist(), losses.tolist(), strict=True)
lab.table({"one rank": alone, "eight ranks": together} for alone, together in pairs)

# %% [markdown]
# Step by step, the losses are those of one process. And of `up`, a weight of 256 x 64 numbers, rank 7 keeps 64 x 64 between its steps: half by `tp`, and half of that by `dp_shard`.
#
# From here on `mesh_3d.Step` does all this, with a longer plan that cuts attention too, on a smaller model. Eight ranks share its parameters. Which share does rank 0 hold?

# %%
share = lab.guess("rank 0's share of the parameters (0 to 1)", between=(0, 1))

# %%
step = mesh_3d.Step(pp=2, dp_shard=2, tp=2, microbatches=2)
lab.show(mesh_3d.parts(step))

# %%
on_one_rank = step.but(pp=1, dp_shard=1, tp=1)
here, total = (each.states().bytes_by()["parameter"] for each in (step, on_one_rank))
share.score(here[0] / total[0])

# %% [markdown]
# In each row the six boxes are the whole model, and what is coloured lies on this rank. `pp` decides which layers, `dp_shard` left or right, `tp` top or bottom. But each rank holds more than an eighth. Rows 0 and 1, one `tp` group, show why: both hold the same half of the embedding, and in each block the same sliver: the norms, and the biases of the layers cut by rows. `dp_shard` cuts everything, but `tp` only what the plan names; the rest it copies.

# %% [markdown] sections="10.3.3"
# ## Who sits next to whom
#
# How often does each axis talk, and who waits for it?
#
# | axis | what travels | how often | who waits |
# | --- | --- | --- | --- |
# | `tp` | activations and their gradients | four times a layer and microbatch | everybody |
# | `dp_shard` | weights, gradients | layer by layer | nobody, while computing hides it (chapter 07) |
# | `dp_replicate` | gradients | once a step | nobody, while the backward hides it; everybody for the last bucket |
# | `pp` | activations and their gradients | once a microbatch | the neighbouring stage |
#
# So it matters which cable each axis gets. That is called [placement](GLOSSARY.md#placement).
#
# Let's simulate both orders on a small model, without overlap: two copies (`dp_replicate`) of two slices each (`tp`), in two machines. Cables inside a machine are twelve times as fast as those between. First `tp` lies inside, then `dp_replicate`, as with the colleague. The same ranks send the same bytes. What becomes of the step?

# %%
cables = {"node_size": 2, "node_mb_per_s": 12, "nic_mb_per_s": 1}
size = {"microbatches": 1, "layers": 2, "sequence": 256, "batch": 8, "forward_ms": 120}
near = mesh_3d.Step(pp=1, dp_replicate=2, tp=2, **size, **cables)
far = near.but(inside="dp_replicate")
orders = {"tp inside a machine": near, "tp across machines": far}
lab.show(mesh_3d.beside(orders, title="Two orders of the names"))

# %% [markdown]
# The step takes 2.4 times as long. A layer is two blue boxes, because it all-reduces twice. The thin strips under the boxes are messages. In the upper panel the eight along `tp` are short, and only the one along `dp_replicate`, at the very end, is long. In the lower panel it is the other way round: each of the eight takes twelve times as long, and all ranks stand still meanwhile. The one at the end got cheap, but there is only one of it.

# %% [markdown]
# ### Our colleague's step
#
# And with 64 real cards? The planner knows their speeds:

# %%
tensor = planner.Plan(model="LLaMA 7B", gpus=64, tp=8, sp=True, zero=1, batch=512)
swapped = tensor.but(per_node=1)  # each card in a machine of its own
lab.show(planner.time_bars({"dp, tp": tensor, "tp, dp": swapped}))

# %% [markdown]
# In this estimate, which leaves `dp` between machines, tensor parallelism is all of the difference: 25.6 s instead of 2.5.
#
# ### Five axes in their order
#
# What sends little may go far; what everybody waits for stays near. So the usual order is, farthest apart first: `pp`, `dp_replicate`, `dp_shard`, `cp` (the context parallelism of chapter 09), `tp`.
#
# `dp_replicate` with `dp_shard` inside a machine is called [HSDP](GLOSSARY.md#hsdp), in code `fully_shard(layer, mesh=mesh["dp_replicate", "dp_shard"])`. Each machine holds all the weights, in shards, and only gradients cross.
#
# <details><summary>How far to trust the two bars</summary>
#
# The planner's constants are fitted to published runs on A100, and none of these has `tp` across machines. It also puts each card of the second bar in a machine of its own; the true mesh has its `dp` inside one, which saves 0.4 s at most.
#
# </details>
#
# <details><summary>The same by DeepSpeed</summary>
#
# DeepSpeed's pipeline engine does two of the three axes of `on_three_axes`, on what it calls a *topology*, with [ZeRO](GLOSSARY.md#zero-stage) 1 where we had FSDP:
#
# ```python
# topology = PipeModelDataParallelTopology(num_pp=2, num_mp=1, num_dp=2)
# net = PipelineModule(layers, topology=topology, loss_fn=model.loss)
# engine, *_ = deepspeed.initialize(model=net, config=settings)
# loss = engine.train_batch(iter(microbatches))
# ```
#
# `num_mp` counts slices, the third axis; Megatron's layers provide them. `mesh_3d.Step(engine="deepspeed", pp=2, dp_shard=2, tp=1, zero=1).run()` runs it.
#
# </details>

# %% [markdown] sections="8.8.1, 10.3.3"
# ## When are several axes worth it?
#
# Does our 7 B model want `tp` at all? Here is the plan of the first screen, and below it the same without `tp`. (MFU is the share of the cards' peak that the model's own products use.)

# %%
lab.table(plan.row() for plan in (tensor, tensor.but(tp=1, sp=False)))

# %% [markdown]
# No: without `tp` it takes more memory, but that fits, and the step is much faster. So the layout of the first screen was not a good one, in either order.
#
# Ten times the model is another matter. On 128 cards we cut each copy of LLaMA-2 70B in eight, in three ways. Below is what a card holds, and how much of it is activations. Which is the fastest of those that fit into 80 GB?

# %%
large = planner.Plan(model="LLaMA-2 70B", gpus=128, zero=1, batch=512)
plans = {
    "tp 8": large.but(tp=8, sp=True),
    "tp 4, pp 2": large.but(tp=4, pp=2, sp=True),
    "tp 2, pp 4": large.but(tp=2, pp=4, sp=True),
}


def held(plan):
    memory = plan.memory()
    kept = memory.parts["activations"]
    return {"memory_bytes": memory.peak_bytes, "activations_bytes": kept}


lab.table({"layout": name, **held(plan)} for name, plan in plans.items())

# %%
fastest = lab.guess("the fastest layout of 70 B that fits", choices=tuple(plans))

# %%
step_us = {name: plan.time().step_us for name, plan in plans.items() if plan.fits}
fastest.score(min(step_us, key=step_us.get))

# %%
lab.table(plan.row() for plan in plans.values())

# %% [markdown]
# The less `tp`, the faster, because `tp` pays for messages in every layer. The bubble of `pp` costs less: with 32 microbatches it is 1/32 of the work for two stages, 3/32 for four.
#
# But the less `tp`, the more memory. With `pp` stages a card has 1/`pp` of the layers, but the first stage keeps the activations of `pp` microbatches (chapter 08). These two cancel, so only `tp` makes activations smaller, as the first table shows, and the fastest row doesn't fit. So take as much `tp` as memory demands, and leave the rest to `pp`.
#
# ### And ZeRO 3 alone?
#
# It needs no cut in the model. Here it is beside the fastest layout that fits, first with the planner's 25 GB/s between machines, then with half of that:

# %%
best, sharded = plans["tp 4, pp 2"], large.but(zero=3)
slow = (plan.but(nic_gb_per_s=12.5) for plan in (best, sharded))
lab.table({**plan.row(), **held(plan)} for plan in (best, sharded, *slow))

# %% [markdown]
# With the fast cables the two are closer than the planner can tell, since their constants come from FSDP's runs and from Megatron's. With the slow ones ZeRO 3 loses, because every card gathers all the weights for each microbatch. So with fast cables try ZeRO 3 first, and measure. ([Chapter 18](18_which_layout.ipynb) searches all layouts.)

# %% [markdown] sections="19.3.3"
# *Here the first half ends. If you want a break, take it now.*
#
# ## Experts: more parameters, of which a token uses few
#
# So far we cut a model because it was too large. Now we make it larger on purpose, because a model with more parameters usually learns more from the same tokens. In each layer we replace the MLP by eight, called [experts](GLOSSARY.md#expert), and send every token through one or two of them. The parameters multiply, but with one expert a token the computing stays the same; with two, it is one MLP more.
#
# Who decides where a token goes? A [router](GLOSSARY.md#router), which is a linear layer with one output per expert:


# %%
def expert_layer(num_experts, width=16):
    router = torch.nn.Linear(width, num_experts)
    mlps = torch.nn.ModuleList()
    for _ in range(num_experts):
        up, down = torch.nn.Linear(width, 64), torch.nn.Linear(64, width)
        mlps.append(torch.nn.Sequential(up, torch.nn.GELU(), down))
    return router, mlps


def through_experts(router, mlps, tokens):
    weight, chosen = router(tokens).softmax(-1).max(-1)
    out = torch.zeros_like(tokens)
    for number, mlp in enumerate(mlps):
        mine = chosen == number
        out[mine] = weight[mine, None] * mlp(tokens[mine])
    return out


# %% [markdown]
# Each token takes its likeliest expert, and what comes out is weighted by the router's probability. Only through that weight can the error's gradients reach the router, because the index that `max` returns has none.
#
# ## Left alone, a router picks favourites
#
# Let's train eight experts on 256 tokens for 120 steps, on one rank for now. The tokens have something in common (`+ 1`). (`uneven` is for later: with `balance` 0 it changes nothing.) An even share would be an eighth of the tokens for each. How large is the share of the busiest expert at the end, if nobody interferes?

# %%
busiest = lab.guess("share of the busiest of 8 experts (0 to 1)", between=(0, 1))


# %%
def train_router(balance, num_experts=8):
    torch.manual_seed(0)
    router, mlps = expert_layer(num_experts)
    tokens = torch.randn(256, 16) + 1
    targets = torch.tanh(tokens @ torch.randn(16, 16))
    optimizer = torch.optim.Adam([*router.parameters(), *mlps.parameters()], lr=1e-2)
    shares = {}
    for step in range(120):
        probabilities = router(tokens).softmax(-1)
        chosen = probabilities.argmax(-1, keepdim=True)
        uneven = experts.auxiliary_loss(probabilities, chosen)
        error = F.mse_loss(through_experts(router, mlps, tokens), targets)
        (error + balance * uneven).backward()
        optimizer.step()
        optimizer.zero_grad()
        shares[step] = chosen.flatten().bincount().max().item() / len(tokens)
    return {"busiest": shares, "error": error.item()}


# %%
alone = lab.launch(train_router, 0, ranks=1)[0]
busiest.score(alone["busiest"][119])

# %% [markdown]
# Far more than an eighth. The usual explanation: an expert that is chosen a little more often learns more, so it is chosen more often still.
#
# The cure stands in the code already. `uneven` is 1 when all experts get the same number of tokens, and grows to 8 when one gets all of them with probability 1. It has a gradient, because each expert's share of the tokens is multiplied by its mean probability. Added to the loss with a small weight, it is called the [auxiliary loss](GLOSSARY.md#auxiliary-loss):

# %%
even = lab.launch(train_router, 0.1, ranks=1)[0]
runs = {"alone": alone, "with auxiliary loss": even}
named = {f"{name} ({run['error']:.3f})": run["busiest"] for name, run in runs.items()}
lab.curves(
    measured=named,
    x="step",
    y="share of the busiest expert",
    title="The busiest of eight experts (in brackets the error at the end)",
    marks={"even share": 1 / 8},
)

# %% [markdown]
# Alone, one expert takes most tokens, though near the end a few less. With the auxiliary loss the share falls to about an eighth. With this seed the error in the brackets is smaller, too, most likely because all eight experts now have tokens to learn from.

# %% [markdown] sections="19.3.3"
# ## The tokens travel
#
# Where do the experts live? We deal them out, which is **expert parallelism**: here four experts on four ranks. Now a token has to travel to its expert and back, and every rank has something for every other one. That is an [all-to-all](GLOSSARY.md#all-to-all).
#
# In `travel` below each rank
#
# 1. sorts its tokens by the rank of their expert,
# 2. tells every rank how many will come,
# 3. sends them, and lets its one expert work on its guests,
# 4. sends the results home and undoes the sort.
#
# Steps 2, 3 and 4 are an all-to-all each.


# %%
@torch.no_grad()  # torch's plain collectives carry no gradient
def travel():
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    router, mlps = expert_layer(ranks)  # this rank uses only mlps[rank]
    everyones = torch.randn(ranks * 64, 16)
    tokens = everyones.chunk(ranks)[rank]
    weight, chosen = router(tokens).softmax(-1).max(-1)
    order = chosen.argsort(stable=True)  # 1: by the rank of their expert
    leaving = chosen.bincount(minlength=ranks)  # 2: tokens that I send to each rank
    coming = torch.empty_like(leaving)  # tokens that each rank sends me
    dist.all_to_all_single(coming, leaving)
    come, leave = coming.tolist(), leaving.tolist()
    guests = tokens.new_empty(sum(come), 16)
    # output, input, then how the output and the input are split
    dist.all_to_all_single(guests, tokens[order], come, leave)  # 3: there
    home = torch.empty_like(tokens)
    dist.all_to_all_single(home, mlps[rank](guests), leave, come)  # 4: and back
    out = torch.empty_like(tokens)
    out[order] = home
    out = weight[:, None] * out

    # is it the same as on one process?
    expected = through_experts(router, mlps, everyones).chunk(ranks)[rank]
    torch.testing.assert_close(out, expected)
    return come


# %%
came = lab.launch(travel, ranks=4)
names = [f"rank {number}" for number in range(4)]
bars = [dict(zip(names, come, strict=True)) for come in came]
lab.bars(
    dict(zip(names, bars, strict=True)),
    title="Tokens that come to each rank, by the rank that sent them",
    marks={"even share": 64},
    stacked=True,
)

# %% [markdown]
# The numbers in the first bar are `coming` on rank 0. Those of rank 0's colour, down the four bars, are its `leaving`: they sum to 64. So each rank sent off 64 tokens, but they did not get 64 each. And no `assert_close` complained, so the results are those of one process. (To train, each all-to-all needs a backward: one the other way round. `experts.Layer` has it.)

# %% [markdown] sections="19.3.3"
# ## The busiest rank holds everyone up
#
# What does an uneven load cost? This layer has two experts on each of four ranks, and a router with favourites. It is [paced](GLOSSARY.md#paced): a token takes at least 0.2 ms in an expert. Below is how many of the 256 tokens each rank's experts get.
#
# Nobody goes on before the busiest rank is done. Which share of their time do the four ranks wait, taken together?

# %%
layer = experts.Layer(ranks=4, experts=8, top_k=1)
taken = layer.taken()  # tokens that each rank's experts get
print(taken.tolist())
idle = lab.guess("predicted idle share of 4 ranks (0 to 1)", between=(0, 1))

# %%
layer.compare()

# %% [markdown]
# Predicted above, measured below; a box says how many tokens a rank's experts get. The strips in the measured rows are the all-to-alls. The long ones on ranks 1 to 3 are waiting for rank 0. (The prediction counts computing only; messages come on top. On a busy machine the picture says *overran*.)

# %%
idle.score(1 - taken.mean() / taken.max())

# %% [markdown]
# Rank 0 has the favourites. On average a rank is busy for `mean / max` of the time.
#
# ### A capacity
#
# An engine can give each expert a [capacity](GLOSSARY.md#capacity), say 1.25 times an even share. Each rank has 64 tokens for eight experts, so an even share is 8, and a rank may send at most 10 to one expert. Those that come later are **dropped**: only the residual connection carries them past the layer.

# %%
layer.but(capacity=1.25).board()

# %% [markdown]
# Each bar is an expert, its colours are the ranks that its tokens come from, and the last colour is what the capacity drops: 85 and 17 make 102 tokens of 256, two in five.
#
# Set the capacity to "all that come", and back: with 1.25 the predicted step falls from 109 to 48 ms, because no expert computes the dropped tokens. Now turn the router's unevenness down to 0. Only 15 are dropped: by chance some rank still has more than 10 for an expert. So a capacity only limits the damage, and the router must learn.

# %% [markdown] sections="19.3.3"
# ## An axis that borrows
#
# Expert parallelism is an axis as well, `ep`, but it borrows its cards from `dp_shard`. With `dp_shard` 8 and `ep` 4, ranks 0 to 3 hold one set of experts between them, and ranks 4 to 7 another. Attention still runs data parallel on all eight.
#
# | ranks | 0 1 2 3 | 4 5 6 7 |
# | --- | --- | --- |
# | experts | 0 1 2 3 | 0 1 2 3 |
# | who adds up an expert's gradients | a b c d | a b c d |
# | who adds up attention's | A A A A | A A A A |
#
# Ranks with the same letter add up. So expert 0 has two copies, on ranks 0 and 4. In code it is a second mesh over the same ranks: `init_device_mesh(kind, (2, 4), mesh_dim_names=("copies", "ep"))`. All-to-alls in every layer want fast cables too, so a group of `ep` stays inside a machine while it fits.
#
# In the libraries' documentation it is called: `MoE(..., ep_size=4)` in DeepSpeed, `--expert-model-parallel-size 4` in Megatron, the mesh axis `ep` in torchtitan.

# %% [markdown] sections="19.3.3"
# ## Exercise 2. A router that keeps its experts busy
#
# Pick `top_k` experts for each token. `scores` are the outputs of the router's linear layer, before the softmax: a row for each token, a column for each expert. Return three things:
#
# - the experts of each token, as whole numbers, all different;
# - their weights: the probabilities of the chosen experts, divided by their sum;
# - a number that is added to the loss: an auxiliary loss times a weight of your choice.
#
# Write it without `experts.auxiliary_loss`. What grows when few experts get many tokens, and has a gradient? Start with weight 0.1, as above; 120 steps are few, so a larger one may be needed. (`router_check.hint("busy_router")` gives a hint.)
#
# (The check takes `top_k` 2. With `top_k` 1 the divided weight is always 1 and has no gradient, so our layer did not divide.)
#
# <details><summary>What the check asks for</summary>
#
# Layers of eight experts, some of them favourites at first, are trained with it for 120 steps: on two ranks and on four. In the last ten steps the busiest expert may get 1.3 times an even share, and a capacity of 1.25 may drop 2 % of all choices. (A *choice* is a token at one of its experts.) Tokens dealt out in turn learn little, so the error of the output counts as well: at most 0.12 of the targets' mean square.
#
# </details>


# %%
def my_router(scores, top_k):
    """(experts of each token, their weights, what is added to the loss)."""
    ### BEGIN SOLUTION
    num_experts = scores.shape[1]
    probabilities = scores.softmax(-1)
    weights, chosen = probabilities.topk(top_k, -1)
    taken = F.one_hot(chosen, num_experts).sum((0, 1)) / chosen.numel()
    uneven = num_experts * (taken * probabilities.mean(0)).sum()
    # weight 1: the check has only 120 steps
    return chosen, weights / weights.sum(-1, keepdim=True), uneven
    ### END SOLUTION


# %%
router_check.busy_router(my_router)

# %% [markdown]
# ## Summary
#
# - A mesh gives each rank a place on every axis, and each axis divides the ranks into groups.
# - Order is placement: ranks along the last axis are neighbours. Tensor parallelism goes there, inside a machine.
# - `parallelize_module`, `fully_shard` and `PipelineStage` each take their axis. First slices, then shards, then the schedule; the result is that of one process.
# - Don't cut what fits. Then try ZeRO 3; where the cables are too slow for its gathers, as much `tp` as memory demands, inside a machine, and the rest `pp`.
# - Experts add parameters. With one expert a token the computing stays the same; with two, it is one MLP more. Experts stay at home, and tokens travel. Left alone, a router picks favourites, and the busiest rank holds everyone up.
#
# **Words:** [axis](GLOSSARY.md#axis), [mesh](GLOSSARY.md#mesh), [placement](GLOSSARY.md#placement), [process group](GLOSSARY.md#process-group), [HSDP](GLOSSARY.md#hsdp), [expert](GLOSSARY.md#expert), [router](GLOSSARY.md#router), [auxiliary loss](GLOSSARY.md#auxiliary-loss), [capacity](GLOSSARY.md#capacity), [expert parallelism](GLOSSARY.md#expert-parallelism), [all-to-all](GLOSSARY.md#all-to-all).
#
# **Next:** [communication](11_communication.ipynb), where we hide messages under computing and send fewer bytes.

# %% [markdown] sections="8.8.1, 8.8.2, 10.3.3"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Three errata</summary>
#
# <details><summary>Erratum 8.8.2: a batch of 512 with one accumulation step and microbatches of 2</summary>
#
# The textbook's JSON has `"gradient_accumulation_steps": 1`, and its command `--micro-batch-size 2`. With `dp` 8 these make a batch of 16, so it should be 32 steps. DeepSpeed refuses numbers that contradict each other; import `DeepSpeedConfig` from `deepspeed.runtime.config` and run it: `DeepSpeedConfig({"train_batch_size": 512, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})` raises an AssertionError.
#
# </details>
#
# <details><summary>Erratum 8.8.2: --num_gpus 64 --num_nodes 8</summary>
#
# `--num_gpus` counts the GPUs of one machine. 64 of them in each of 8 machines are 512; for 64 in all it is `--num_gpus 8`. Run it: `deepspeed --help` says "Max number of GPUs to use on each node".
#
# </details>
#
# <details><summary>Erratum 8.8.1: 175 B on 64 GPUs take 43.75 GB each</summary>
#
# The textbook divides all 16 bytes of a parameter by `tp`, `pp` and `dp`: 16 x 175 / 64. But its settings have ZeRO stage 1, where `dp` divides only Adam's 12 bytes, so it is (4 + 12 / 8) x 175 / 8, or 120 GB; 43.75 GB needs stage 3, or `tp` 8 with `pp` 8. Run it: `planner.Plan(model="GPT-3 175B", gpus=64, tp=2, pp=4, zero=1, recipe="mixed").memory().parts`.
#
# </details>
#
# </details>
#
# ## Further reading
#
# - All axes on thousands of GPUs: Narayanan et al. 2021 (Megatron), [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - One mesh for all of torch's axes: Liang et al. 2024 (torchtitan), [arXiv 2410.06511](https://arxiv.org/abs/2410.06511)
# - Experts, capacity, auxiliary loss: Lepikhin et al. 2020 (GShard), [arXiv 2006.16668](https://arxiv.org/abs/2006.16668); Fedus et al. 2021 (Switch), [arXiv 2101.03961](https://arxiv.org/abs/2101.03961)
# - Experts without drops: Gale et al. 2022 (MegaBlocks), [arXiv 2211.15841](https://arxiv.org/abs/2211.15841)
# - [Getting started with DeviceMesh](https://docs.pytorch.org/tutorials/recipes/distributed_device_mesh.html)

# %%
check.status()
