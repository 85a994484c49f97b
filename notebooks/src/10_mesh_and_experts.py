# ---
# jupyter:
#   labkit:
#     sections: ["8.8.1", "8.8.2", "10.3.3", "19.3.3"]
#     needs: ["chapters 07, 08 and 09", "DeepSpeed (installed with labkit)"]
#     minutes: 100
# ---

# %% [markdown]
# # All axes on one mesh, and experts
#
# *An hour and forty minutes. You need chapters 07, 08 and 09. No GPU is needed.*
#
# Our 7 B model now has 64 cards, eight in each of eight machines. We keep eight copies of it and cut each copy's layers in eight slices. One line of code says so: `init_device_mesh("cuda", (8, 8), mesh_dim_names=("dp", "tp"))`. A colleague types `("tp", "dp")`. Nothing fails, and the loss falls as before. But by our planner's reckoning a step now takes about thirty seconds instead of seven, on 64 cards that somebody rents.
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
# Each box in the upper picture is a card. Move the slider *lit* on to `tp`, `dp_shard` and `pp`: cards of one colour talk to each other along that axis. (A machine is called *node* there.) Which axis crosses from machine to machine?
#
# **When you are done** you can lay ranks out on named axes, train along three of them at once with torch's own tools, decide which axis belongs inside a machine, and share a layer's experts out among ranks.

# %% [markdown] sections="8.8.1, 10.3.3"
# ## Eight ranks, three numbers each
#
# Eight ranks, three ways to divide work: two pipeline stages (`pp`), two shares of the batch (`dp`; the boards say `dp_shard`, because FSDP shards the weights along it), two slices of each layer (`tp`). 2 x 2 x 2 makes 8, so every rank has one place on each [axis](GLOSSARY.md#axis). Such a grid of ranks with named axes is a [mesh](GLOSSARY.md#mesh).
#
# We count as one counts minutes and seconds: `tp` runs fastest. So a neighbour along `tp` is one rank away, along `dp` two, along `pp` four. Which rank is the partner of rank 5 along `dp`?

# %%
partner = lab.guess("rank 5's partner along dp", between=(0, 7))

# %% [markdown]
# Along an axis we need a [process group](GLOSSARY.md#process-group) for each pair. Every rank finds its partners below by adding up rank numbers with them, three times:


# %%
def meet_partners():
    rank = dist.get_rank()
    row = {"rank": rank}
    for axis, apart in {"pp": 4, "dp": 2, "tp": 1}.items():
        row[axis] = rank // apart % 2
        firsts = [each for each in range(8) if each // apart % 2 == 0]
        for first in firsts:
            members = [first, first + apart]
            group = dist.new_group(members)  # everybody calls it, members or not
            if rank in members:
                both = torch.tensor(rank)
                dist.all_reduce(both, group=group)
                row[f"partner along {axis}"] = both.item() - rank
    return row


# %%
met = lab.launch(meet_partners, ranks=8)
lab.table(list(met))

# %%
partner.score(met[5]["partner along dp"])

# %% [markdown]
# `new_group` is a collective of the whole world, so all eight ranks have to call it for all twelve groups, in the same order; or the job hangs.

# %% [markdown] sections="8.8.1"
# ## Exercise 1. All groups of an axis
#
# Axes need not have two ranks each. Write the function that lists the groups along one axis of any mesh. `sizes` names the axes with their sizes, the one whose neighbours are farthest apart first: `{"pp": 4, "dp_shard": 8, "tp": 2}`. Return a list of lists of ranks.


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

# %%
check.hint("groups")

# %% [markdown]
# ## The same in one line
#
# torch has all of that in `init_device_mesh`. It makes the groups of all axes, and `mesh["dp"]` is the part of the mesh along one of them. We ask it twice, with the names in two orders:


# %%
def groups_of(names):
    kind = torch.get_default_device().type  # cuda, where there are GPUs
    mesh = init_device_mesh(kind, (2, 2, 2), mesh_dim_names=names)
    return {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in names}


# %%
orders = [("pp", "dp", "tp"), ("tp", "dp", "pp")]
rows = [lab.launch(groups_of, names, ranks=8)[5] for names in orders]
lab.table(
    {"order": " ".join(names), **row} for names, row in zip(orders, rows, strict=True)
)

# %% [markdown]
# These are the groups of rank 5. With `tp` named last, its partner is the rank beside it. With `tp` named first it is rank 1, and if a machine has four cards, that is another machine. Both are correct meshes, and both train to the same loss. But launchers number ranks machine by machine, so the order of the names is a statement about your cables: **the last axis gets the fastest ones**.

# %% [markdown] sections="10.3.3"
# ## Two axes: FSDP and tensor parallelism
#
# Now we train on a mesh. Two libraries that you know each take one of its axes: `parallelize_module` (chapter 09) cuts layers along `tp`, then `fully_shard` (chapter 07) shards what is left of each parameter along `dp`. To keep the plan short, we cut only the MLPs and leave attention whole:


# %%
def cut(stage, mesh):
    plan = {}
    for name, layer in stage.named_children():
        if isinstance(layer, model.Block):
            plan[f"{name}.up"] = parallel.ColwiseParallel()
            plan[f"{name}.down"] = parallel.RowwiseParallel()
    parallel.parallelize_module(stage, mesh["tp"], plan)
    for layer in stage.children():
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(stage, mesh=mesh["dp"])


# %% [markdown]
# The order matters: first slices, then shards, because FSDP shards the slices. The training loop knows nothing of this. One thing is new: the ranks of a `tp` group read the same share of the batch.


# %%
def train(net, tokens, targets):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


# %%
def on_two_axes(dp, tp):
    torch.manual_seed(0)
    kind = torch.get_default_device().type
    mesh = init_device_mesh(kind, (dp, tp), mesh_dim_names=("dp", "tp"))
    (net,) = model.split(model.Transformer(4), 1)  # one stage: all layers
    cut(net, mesh)
    place = mesh["dp"].get_local_rank()
    tokens, targets = (each.chunk(dp)[place] for each in model.story_tokens(8, 32))
    losses = train(net, tokens, targets)
    dist.all_reduce(losses, group=mesh["dp"].get_group())
    up = net[1].up.weight
    return losses / dp, up.shape, up.to_local().shape


# %%
def on_one():
    torch.manual_seed(0)
    return train(model.Transformer(4), *model.story_tokens(8, 32))


one = lab.launch(on_one, ranks=1)[0]
losses, whole, mine = lab.launch(on_two_axes, 2, 2, ranks=4)[0]
lab.difference(losses, one), whole, mine

# %% [markdown]
# The four losses are those of one process, up to rounding. And of `up`, a weight of 256 x 64 numbers, each rank keeps 64 x 64 between its steps: half by `tp`, and half of that by `dp`.
#
# `dp` itself may be two axes ([HSDP](GLOSSARY.md#hsdp)): shards inside a machine (`dp_shard`), copies between machines (`dp_replicate`). Then only gradients cross between machines. The price is memory, because each machine holds all the weights.

# %% [markdown] sections="8.8.1, 10.3.3"
# ## Three axes
#
# One axis is missing. Chapter 08 gave each rank a stage of the model. A stage is a module like any other, so `cut` can slice and shard it. Only the loop changes: as in chapter 08, the schedule does forward and backward.


# %%
def on_three_axes():
    torch.manual_seed(0)
    device = torch.get_default_device()
    stages, shards, slices, microbatches = 2, 2, 2, 2
    names, shape = ("pp", "dp", "tp"), (stages, shards, slices)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    pp, dp = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    layers = model.split(model.Transformer(4), stages)[pp]
    cut(layers, mesh)
    stage = PipelineStage(layers, pp, stages, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, microbatches, loss_fn=model.loss)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-2)
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
    dist.all_reduce(means, group=mesh["dp"].get_group())
    return {"stage": pp, "losses": means / shards}


# %%
eight = lab.launch(on_three_axes, ranks=8)
lab.difference(eight[7]["losses"], one)

# %% [markdown]
# The losses agree with one process again. From here on we let `mesh_3d.Step` do all this. It is the same program on a smaller model, with a longer plan, which cuts attention too. Eight ranks share the parameters. Does each hold an eighth of them, which is 12.5 %? Or more, or less?

# %%
step = mesh_3d.Step(pp=2, dp_shard=2, tp=2, microbatches=2)
lab.show(mesh_3d.parts(step))

# %% [markdown]
# In each row the six boxes are the whole model, and what is coloured lies on this rank. `pp` decides which layers, `dp` left or right, `tp` top or bottom. On the right you see that each rank holds more than an eighth. Compare rows 0 and 1, one `tp` group, to see why: both hold the same half of the embedding, and the same sliver of norms and biases in each block. `dp` cuts everything, but `tp` only what the plan names; the rest it copies.

# %% [markdown] sections="10.3.3"
# ## Who sits next to whom
#
# Along `tp` every layer all-reduces its activations, twice forward and twice backward, and each time between two products: nobody can go on before it ends. Along `dp_replicate` gradients travel once a step (with FSDP the weights too, but ahead of the layer that needs them), and along `pp` only what one stage hands to the next. So it matters which cable each axis gets, which is called [placement](GLOSSARY.md#placement).
#
# Let's put two copies of two slices into two machines, with cables inside that are twelve times as fast as those between. Computing and links are [paced](GLOSSARY.md#paced): a message takes the time that its bytes would need there (or longer, where the machine can't keep up: *overran*). First `tp` lies inside a machine, as it should:

# %%
cables = {"node_size": 2, "node_mb_per_s": 12, "nic_mb_per_s": 1}
size = {"microbatches": 1, "layers": 2, "sequence": 256, "batch": 8}
size["forward_ms"] = 120
near = mesh_3d.Step(pp=1, dp_replicate=2, tp=2, **size, **cables)
lab.show(near.compare(), title="tp inside a machine")

# %% [markdown]
# Now the colleague's order, with `dp` inside and `tp` across. The same ranks send the same bytes. How many times as long does the step take, by the prediction?

# %%
slower = lab.guess("predicted step, tp across machines / tp inside", between=(1, 20))

# %%
far = near.but(inside="dp_replicate")
lab.show(far.compare(), title="tp across machines")

# %%
slower.score(far.predict().end_us.max() / near.predict().end_us.max())

# %% [markdown]
# Look at the predicted rows. In the first picture the eight all-reduces along `tp` are narrow, and only the one along `dp`, at the very end, is wide. In the second the eight are wide, and all ranks stand still meanwhile. The one along `dp` comes once a step, and engines even hide it behind the backward (chapter 03).
#
# Measured, the ratio is smaller as a rule (divide the spans behind the arrows): late processes and the optimizer lengthen both steps, and weigh more in the short one. *Overran* says that computing, too, took longer than stated.

# %% [markdown]
# ### Our colleague's step
#
# And with 64 real cards? A planner that knows their speeds can say, for both orders of the names:

# %%
tensor = planner.Plan(model="LLaMA 7B", gpus=64, tp=8, sp=True, zero=1, batch=512)
swapped = tensor.but(per_node=1)  # every neighbour in another machine
lab.show(planner.time_bars({"dp, tp": tensor, "tp, dp": swapped}))

# %% [markdown]
# Predicted, for A100, by constants fitted to published runs. Tensor parallelism is all of the difference. (For the second bar the planner puts each card in a machine of its own. The true mesh would have its `dp` inside one, which saves 0.4 s at most.)
#
# From this follows the usual order, farthest apart first: `pp`, `dp_replicate`, `dp_shard`, `cp` (the context parallelism of chapter 09), `tp`. What sends seldom may go far; what everybody waits for in every layer stays near.
#
# (DeepSpeed's pipeline engine does the same. Its code, and its command for eight machines, stand folded at the end of the chapter.)

# %% [markdown] sections="19.3.3"
# ## Experts: more parameters, no more computing
#
# *(A good place for a break: what follows starts afresh, with one layer on one rank.)*
#
# So far we cut a model because it was too large. Now we make it larger on purpose: in each layer we replace the MLP by eight, called [experts](GLOSSARY.md#expert), and every token goes through one or two. The model has several times the parameters, and a token costs about as much as before. Who decides where a token goes? A [router](GLOSSARY.md#router), which is a linear layer with one output per expert:


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
# Each token takes its likeliest expert, and what comes out is weighted by the router's probability. That weight is not decoration: it is the only way for gradients to reach the router, because the index that `max` returns has none.
#
# ## Left alone, one expert wins
#
# Let's train eight experts on 256 tokens for 120 steps, on one rank for now. An even share would be an eighth of the tokens for each. How large is the share of the busiest expert at the end, if nobody interferes?

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
# Far more than an eighth. An expert that is chosen a little more often learns more, so it is chosen more often still. (Later it loses some tokens again, as the next picture shows, but keeps most.)
#
# The cure stands in the code already. `uneven` is 1 when all experts get as much, and 8 when one gets everything; and it has a gradient, because it weighs each expert's probability with the tokens that it got. Added to the loss with a small weight, it is called the [auxiliary loss](GLOSSARY.md#auxiliary-loss):

# %%
even = lab.launch(train_router, 0.1, ranks=1)[0]
lab.curves(
    measured={"alone": alone["busiest"], "with auxiliary loss": even["busiest"]},
    x="step",
    y="share of the busiest expert",
    title="The busiest of eight experts",
)

# %% [markdown]
# With it, the share falls to about an eighth. Does that cost accuracy? Here is the error at the end, without and with it:

# %%
alone["error"], even["error"]

# %% [markdown]
# It is smaller, too, most likely because all eight experts now have tokens to learn from. (This is one seed.)

# %% [markdown] sections="19.3.3"
# ## The tokens travel
#
# Where do the experts live? We deal them out, which is **expert parallelism**: here four experts on four ranks. Now a token has to travel to its expert and back, and every rank has something for every other one. That is an [all-to-all](GLOSSARY.md#all-to-all). How many tokens will come? The ranks tell each other first:


# %%
@torch.no_grad()  # torch's plain collectives carry no gradient
def travel():
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    router, mlps = expert_layer(ranks)  # this rank uses only mlps[rank]
    everyones = torch.randn(ranks * 64, 16)
    tokens = everyones.chunk(ranks)[rank]
    weight, chosen = router(tokens).softmax(-1).max(-1)
    order = chosen.argsort(stable=True)  # tokens by the rank of their expert
    leaving = torch.bincount(chosen, minlength=ranks)
    coming = torch.empty_like(leaving)
    dist.all_to_all_single(coming, leaving)
    sizes = coming.tolist(), leaving.tolist()
    guests, home = tokens.new_empty(sum(sizes[0]), 16), torch.empty_like(tokens)
    dist.all_to_all_single(guests, tokens[order], *sizes)
    dist.all_to_all_single(home, mlps[rank](guests), *sizes[::-1])
    out = torch.empty_like(tokens)
    out[order] = home
    out = weight[:, None] * out
    expected = through_experts(router, mlps, everyones).chunk(ranks)[rank]
    off = lab.difference(out, expected)
    return {"rank": rank, "guests": len(guests), "difference": off}


# %%
lab.table(list(lab.launch(travel, ranks=4)))

# %% [markdown]
# The last column compares with one process. Now look at the *guests*: each rank sent off 64 tokens, but they did not get 64 each.

# %% [markdown] sections="19.3.3"
# ## The busiest rank holds up all
#
# What does an uneven load cost? `experts.Layer` is the same on real ranks with two experts each, forward and backward, and paced: a token takes 0.2 ms in an expert. Its router likes some experts better, as a text likes some words better. Which share of their time will the four ranks wait, taken together?

# %%
idle = lab.guess("predicted idle share of 4 ranks (0 to 1)", between=(0, 1))

# %%
layer = experts.Layer(ranks=4, experts=8, top_k=1)
layer.compare()

# %% [markdown]
# Predicted above, measured below; a box says how many tokens a rank's experts get. In the upper picture, find the long boxes of rank 0: nobody goes on before each of them ends. The strips in the measured rows are the all-to-alls: nearly all of their length is waiting for rank 0.

# %%
taken = layer.taken()  # tokens that each rank's experts get
idle.score(1 - taken.mean() / taken.max())

# %% [markdown]
# Rank 0 has the favourites, so it works while the others wait in the all-to-all: on average a rank is busy for `mean / max` of the time.
#
# ### A capacity
#
# An engine can give each expert a [capacity](GLOSSARY.md#capacity), say 1.25 times an even share of a rank's tokens. Those that come later are **dropped**: they skip the layer. With this router, how many choices is that? (A *choice* is a token at one of its experts.)

# %%
layer.but(capacity=1.25).board()

# %% [markdown]
# Each bar is an expert, its colours are the ranks that its tokens come from, and the last one is what the capacity drops: 102 choices of 256, two in five. Set the capacity to "all that come", and back. With 1.25 the step gets shorter (the sentences below the pictures say by how much), because in this layer nobody works for the dropped tokens. Turn the router's unevenness down to 0 instead, and 15 are dropped: a good router is worth more than a capacity.

# %% [markdown] sections="19.3.3"
# ## Exercise 2. A router that keeps its experts busy
#
# Pick `top_k` experts for each token. `scores` has a row for each token and a column for each expert. Return the experts of each token, as whole numbers, all different; their weights, which sum to 1 for each token (with one expert that would be a constant, without a gradient; the check has two); and a number that is added to the loss as it is, so you choose its weight: any that keeps the error within the limit. Write this number yourself, without `experts.auxiliary_loss`: what grows when few experts get many tokens, and has a gradient?
#
# <details><summary>What the check asks for</summary>
#
# Layers of eight experts, some of them favourites at first, are trained with it for 120 steps: on two ranks and on four, with `top_k` 2. In the last ten steps the busiest expert may get 1.3 times an even share, and a capacity of 1.25 may drop 2 % of all choices. Tokens dealt out in turn are even and learn little, so the error of the output counts as well: at most 0.12 of the targets' mean square. A wrong answer is drawn as the load of each expert.
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
    return chosen, weights / weights.sum(-1, keepdim=True), uneven
    ### END SOLUTION


# %%
router_check.busy_router(my_router)

# %%
router_check.hint("busy_router")

# %% [markdown] sections="19.3.3"
# ## An axis that borrows
#
# Expert parallelism is an axis as well, `ep`, but it needs no cards of its own. It borrows those of `dp_shard`. With `dp_shard` 8 and `ep` 4, ranks 0 to 3 hold one set of experts between them, and ranks 4 to 7 another. Attention, beside them, still runs data parallel on all eight. Expert 0 then has two copies, on ranks 0 and 4, which add up their gradients. An all-to-all in every layer wants fast cables too, so a group of `ep` lies inside a machine.
#
# By their documentation the libraries have it as one number: `MoE(..., ep_size=4)` in DeepSpeed, `--expert-model-parallel-size 4` in Megatron, the mesh axis `ep` in torchtitan.
#
# <details><summary>What it buys: Mixtral on our 64 cards</summary>
#
# Mixtral is much like our 7 B model, but with eight larger MLPs in each layer, two of which see each token. Compare ZeRO 3, which gathers all experts for everybody, with experts that stay at home, eight ranks to a set:
#
# ```python
# mixtral = planner.Plan(model="Mixtral 8x7B", gpus=64, zero=3, mbs=2, batch=512)
# planner.card(mixtral, mixtral.but(zero=1, mbs=1, ep=8))
# ```
#
# The predicted step takes little more than half as long, for more memory: moving tokens is cheaper than moving eight MLPs. Each side has the microbatch that suits it: ZeRO 3 gathers half as often with two, and with the experts at home only one fits. (The planner gives every expert an even share.)
#
# </details>

# %% [markdown] sections="8.8.1, 10.3.3"
# ## When is it worth it?
#
# Does our 7 B model want three axes, or even two? Here is our plan of the first screen, and below it the simplest one that fits. (MFU is the share of the cards' peak that the model's own products use.)

# %%
lab.table(plan.row() for plan in (tensor, tensor.but(tp=1, sp=False)))

# %% [markdown]
# No: nothing is as cheap as not cutting, so the layout of the first screen was not a good one for 7 B, in either order. (Both have microbatches of one sequence. Larger ones make `tp` cheaper, as in chapter 09, but not cheap enough.) Ten times the model is another matter: LLaMA-2 70B on the same 64 cards, cut in eight in three ways. Which is the fastest of those that fit into 80 GB, to the last gigabyte?

# %%
large = planner.Plan(model="LLaMA-2 70B", gpus=64, zero=1, batch=512)
plans = {
    "tp 8": large.but(tp=8, sp=True),
    "tp 4, pp 2": large.but(tp=4, pp=2, sp=True),
    "tp 2, pp 4": large.but(tp=2, pp=4, sp=True),
}
fastest = lab.guess("the fastest layout of 70 B that fits", choices=tuple(plans))

# %%
step_us = {name: plan.time().step_us for name, plan in plans.items() if plan.fits}
fastest.score(min(step_us, key=step_us.get))

# %%
lab.table(plan.row() for plan in (*plans.values(), large.but(zero=3)))

# %% [markdown]
# The less `tp`, the faster, because `tp` pays for messages in every layer. But also the more memory, because the first of `pp` stages keeps the activations of `pp` microbatches (chapter 08); so the fastest row doesn't fit. Take as much `tp` as memory demands, and leave the rest to `pp`. (Real cards want a tenth free, which none of these rows leaves. So one would also recompute, or take more cards.)
#
# And ZeRO 3 alone? It takes about as little memory as `tp` 8, needs no cut in the model, and is a tenth slower than the fastest row that fits. That is less than the planner can tell, since its constants come from FSDP runs and the others' from Megatron's. So try ZeRO 3 first, and measure. ([Chapter 18](18_which_layout.ipynb) lets the planner search all layouts, and has an exercise on it.)

# %% [markdown]
# ## Summary
#
# - A mesh gives each rank a place on every axis, and each axis divides the ranks into groups. Every rank has to make every group.
# - Order is placement: ranks along the last axis are neighbours. Tensor parallelism goes there, inside a machine.
# - `parallelize_module`, `fully_shard` and `PipelineStage` each take their axis of one `DeviceMesh`. First slices, then shards, then the schedule; the result is that of one process.
# - Don't cut what fits. Then try ZeRO 3; where its gathers take too long, as much `tp` as memory demands, inside a machine, and the rest `pp`.
# - Experts add parameters, but hardly any computing per token. They stay at home, and tokens travel. Left alone, a router picks favourites, and the busiest rank holds up all.
#
# **Words:** [axis](GLOSSARY.md#axis), [mesh](GLOSSARY.md#mesh), [placement](GLOSSARY.md#placement), [process group](GLOSSARY.md#process-group), [HSDP](GLOSSARY.md#hsdp), [expert](GLOSSARY.md#expert), [router](GLOSSARY.md#router), [auxiliary loss](GLOSSARY.md#auxiliary-loss), [capacity](GLOSSARY.md#capacity), [expert parallelism](GLOSSARY.md#expert-parallelism), [all-to-all](GLOSSARY.md#all-to-all).
#
# **Next:** [communication](11_communication.ipynb), where we hide messages under computing and send fewer bytes.

# %% [markdown] sections="8.8.1, 8.8.2, 10.3.3"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Three errata, and the same by DeepSpeed</summary>
#
# <details><summary>The same by DeepSpeed: its code, and the command for eight machines</summary>
#
# DeepSpeed's pipeline engine does what `on_three_axes` did, on what it calls a *topology*, with [ZeRO](GLOSSARY.md#zero-stage) 1 along `dp` where we had FSDP:
#
# ```python
# topology = PipeModelDataParallelTopology(num_pp=2, num_mp=1, num_dp=2)
# net = PipelineModule(layers, topology=topology, loss_fn=model.loss)
# engine, *_ = deepspeed.initialize(model=net, config=settings)
# loss = engine.train_batch(iter(microbatches))
# ```
#
# `num_mp` counts slices, which Megatron's layers provide. To run it: `mesh_3d.Step(engine="deepspeed", pp=2, dp_shard=2, tp=1, zero=1).run()`. On real machines a *hostfile* lists them with their GPUs, a line like `node0 slots=8` for each, and one command starts all processes: `deepspeed --hostfile hostfile --num_nodes 8 --num_gpus 8 train.py --deepspeed_config settings.json`. In the settings three numbers belong together, of which two are enough: the batch is microbatch x accumulation x `dp`.
#
# </details>
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
#
# *Sections 8.8.1, 8.8.2, 10.3.3 and 19.3.3 of the source material.*

# %%
check.status()
