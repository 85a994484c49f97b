# ---
# jupyter:
#   labkit:
#     sections: ["8.5.1", "8.5.2", "8.5.3", "10.2.5", "10.7.2", "19.4.1", "S5", "D-train"]
#     needs: ["two CPU cores", "DeepSpeed"]
#     minutes: 120
# ---

# %% [markdown]
# # ZeRO with DeepSpeed
#
# *Two hours, and one more for the exercises, in two halves: by hand, then DeepSpeed. You need chapters 00, 02, 03 and 05. No GPU is needed.*
#
# While it trains, our 7 B model needs 112 GB for its parameters, its gradients and the states of Adam. A card has 80. So we rent eight cards and train data parallel, as in chapter 03. Now we pay for 640 GB of memory, and the run still dies at step 0, because each card has to hold the same 112 GB. The eight cards would hold 896 GB, and 784 of it are copies.
#
# ZeRO gets rid of the copies in three stages, 1 to 3; stage 0 is what we have. First, play with them:

# %%
import labkit as lab

lab.begin("en")
import torch
import torch.distributed as dist
from labkit import collectives, model, planner
from labkit.zero import check, order_picture, stages

stages.Stages(stage=0, ranks=8, model="7B").board()

# %% [markdown]
# Each row is what one card holds. Set the stage to 1, then to 2 and 3. Which colour shrinks first, and what happens to the number on the right?
#
# **When you are done** you can
#
# - write each of the three stages by hand, and say what it saves and what it sends before you run it;
# - hand the same work to DeepSpeed, and see what it really sends;
# - say what it costs to move states to the host, and measure it.

# %% [markdown] sections="8.5.1"
# ## The bill
#
# Let's count what a rank holds for each [parameter](GLOSSARY.md#parameter), in 16-bit training with Adam: 2 bytes for the parameter, 2 for its gradient, and 12 for the optimizer (a copy in fp32, the momentum and the variance). Together they are the [model states](GLOSSARY.md#model-states), 16 bytes. Under data parallelism every rank has all of them.
#
# ZeRO (the *zero redundancy optimizer*) keeps one copy for everybody, and each rank holds one part of it, its [shard](GLOSSARY.md#shard). There are three [stages](GLOSSARY.md#zero-stage): first only the optimizer is sharded, then the gradients too, and in the end the parameters as well.


# %%
def held(ranks, stage, weight=2, gradient=2, optimizer=12):
    """Bytes that each rank holds for one parameter of the model."""
    weights = weight / (ranks if stage >= 3 else 1)
    gradients = gradient / (ranks if stage >= 2 else 1)
    return weights + gradients + optimizer / (ranks if stage >= 1 else 1)


# %% [markdown]
# On eight cards stage 1 leaves 38.5 GB on each (the board at stage 1). Suppose we rent eight times as many. How many GB does each of the 64 cards hold?

# %%
first = lab.guess("ZeRO 1, 7 B on 64 cards, GB on each", between=(0, 112))

# %%
first.score(7 * held(ranks=64, stage=1))

# %% [markdown] sections="8.5.1, 10.2.5, S5"
# Eight times the cards, and not even a quarter less: only the 12 bytes of the optimizer are divided; parameters and gradients, 4 bytes or 28 GB, stay whole on every card.
#
# So "4 times" for stage 1 and "8 times" for stage 2, which you will often read, are limits: 16/4 and 16/2. Only stage 3 saves as many times as there are ranks.

# %% [markdown] sections="19.4.1"
# ## By hand
#
# How can a rank update a model of which it has only a part? We need two [collectives](GLOSSARY.md#collective) of chapter 02. A [reduce-scatter](GLOSSARY.md#reduce-scatter) adds up a tensor over all ranks and leaves each of them its own part of the sum. An [all-gather](GLOSSARY.md#all-gather) puts the parts together again, so that everyone has all of them. Here is a step of a model with two layers, 0 and 1, under each stage:

# %%
lab.show(order_picture.drawn())

# %% [markdown]
# The boxes show the order, not the time; only messages are as long as what they send. ZeRO 1 takes the all-reduce apart and updates in between. ZeRO 2 reduces each layer as soon as its gradient is there. ZeRO 3 gathers a layer whenever it is needed. (Ours gathers layer 1 twice in a row; a real engine can keep it.)
#
# ### Stage 0: everyone has everything
#
# First plain data parallelism, to compare with. Each rank has the same small transformer and passages of its own from the story:


# %%
def story():
    """The model, the same on all ranks, and a batch of this rank's own."""
    torch.manual_seed(0)
    net = model.Transformer(2, max_len=32)
    return net, *model.story_tokens(2, 32, seed=dist.get_rank())


def all_reduce(tensor):
    """The mean over all ranks, on all ranks."""
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


# %%
def plain(num_steps):
    net, tokens, targets = story()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = model.loss(net(tokens), targets)
        loss.backward()
        for weight in net.parameters():
            all_reduce(weight.grad)
        optimizer.step()
        losses.append(loss.item())
    return losses, net, optimizer


# %% [markdown]
# We average each gradient. (To average the loss instead is a common mistake: then no rank learns from the others.)
#
# ### Stage 1: the optimizer is sharded
#
# Now rank r becomes the [owner](GLOSSARY.md#owner) of the r-th part of every weight. Three helpers, for the part and for the two collectives:


# %%
def part(tensor):
    """This rank's part of a tensor: a view of it, flat."""
    return tensor.view(-1).chunk(dist.get_world_size())[dist.get_rank()]


def reduce_scatter(tensor):
    """Fills this rank's part with the mean over all ranks, and returns it."""
    # before torch 2.13: reduce_scatter_tensor, and all_gather_into_tensor below
    dist.reduce_scatter_single(part(tensor), tensor.view(-1))
    return part(tensor).div_(dist.get_world_size())


def all_gather(tensor):
    """Fills the tensor from everybody's part of it."""
    dist.all_gather_single(tensor.view(-1), part(tensor))


# %% [markdown]
# With them, three places of the program change. The optimizer is given this rank's parts and nothing else, so it makes momentum and variance only for those. The [all-reduce](GLOSSARY.md#all-reduce) becomes a reduce-scatter. And after the update an all-gather brings the other ranks' parts.


# %%
def zero1(num_steps):
    net, tokens, targets = story()
    # new: this rank's part of each weight, a view of it
    mine = {w: torch.nn.Parameter(part(w.data)) for w in net.parameters()}
    optimizer = torch.optim.AdamW(mine.values(), lr=0.01)
    losses = []
    for step in range(num_steps):
        net.zero_grad()
        optimizer.zero_grad()  # own.grad is a view: it keeps the old gradient alive
        loss = model.loss(net(tokens), targets)
        loss.backward()
        for weight, own in mine.items():
            own.grad = reduce_scatter(weight.grad)  # new
        optimizer.step()
        for weight in net.parameters():
            all_gather(weight.data)  # new
        losses.append(loss.item())
    return losses, net, optimizer


# %% [markdown]
# ### Exercise 1. When sizes do not divide
#
# Our `part` only works because all sizes here are multiples of the number of ranks. Write a sharded AdamW that works for any model; the check runs it on 2, 3 and 4 ranks.
#
# - **Input**: `backward(step)` runs this rank's batch, and *adds* its gradients to `.grad`.
# - **Result**: after `num_steps` steps on the mean gradient of all ranks, with `lr=0.01`, every rank has the weights of one process with everybody's data.
# - **Memory**: a rank has momentum and variance for 1/N of the parameters; one weight over is allowed.
# - **Traffic**: a step sends what an all-reduce of the gradients would; 5 % over is allowed.
#
# You may cut weights, or give whole ones to owners, with `dist.reduce` and `dist.broadcast`.


# %%
def my_sharded_adamw(net, backward, num_steps):
    """Leaves in net the weights after num_steps steps."""
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    weights = list(net.parameters())
    total = sum(weight.numel() for weight in weights)
    owners, before = {}, 0
    for weight in weights:
        owners[weight] = before * size // total
        before += weight.numel()
    mine = [weight for weight in weights if owners[weight] == rank]
    optimizer = torch.optim.AdamW(mine, lr=0.01)
    for step in range(num_steps):
        backward(step)
        for weight, owner in owners.items():
            dist.reduce(weight.grad, owner)
            weight.grad /= size
        optimizer.step()
        for weight, owner in owners.items():
            dist.broadcast(weight.data, owner)
        net.zero_grad()
    ### END SOLUTION


# %%
check.shard_adamw(my_sharded_adamw)

# %%
check.hint("shard_adamw")

# %% [markdown] sections="10.2.5, 19.4.1"
# ### Stage 2: gradients too
#
# A gradient is needed whole only until it is reduced. So why wait for the end of the backward? torch can call us as soon as a gradient is complete: such a function is a *hook*, and `register_post_accumulate_grad_hook` puts it on a weight. In it we reduce the gradient, clone our own part (a view would keep the whole gradient alive) and let go of the rest.


# %%
def zero2(num_steps):
    net, tokens, targets = story()
    mine = {w: torch.nn.Parameter(part(w.data)) for w in net.parameters()}

    def reduce(weight):  # new
        mine[weight].grad = reduce_scatter(weight.grad).clone()
        weight.grad = None  # the other parts are not kept

    for weight in net.parameters():
        weight.register_post_accumulate_grad_hook(reduce)
    optimizer = torch.optim.AdamW(mine.values(), lr=0.01)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        for weight in net.parameters():
            all_gather(weight.data)
        losses.append(loss.item())
    return losses, net, optimizer


# %% [markdown] sections="10.2.5"
# ### Stage 3: parameters too
#
# Now no rank has the whole model. Before a layer computes, its weights are gathered; afterwards they are freed (the last row of the picture).
#
# How can we free weights that the backward still needs? autograd keeps the tensors that the forward has used, so we leave these alone and resize their *storage*: `resize_(0)` gives the bytes back, and before the backward we fill the same storage again.
#
# That storage belongs to `whole`, a tensor with a layer's weights end to end, so that a layer needs one message and not one per weight. The weights then lie in it. (An ordinary view shares its counter of changes with `whole`, so after a gather autograd would refuse it. `vector_to_parameters` sets `weight.data`, which keeps the counters apart.)


# %%
class Sharded:
    """A layer that is whole only while it computes; a rank keeps its own part."""

    def __init__(self, layer):
        self.layer = layer
        weights = list(layer.parameters())
        self.whole = torch.nn.utils.parameters_to_vector(weights).detach()
        torch.nn.utils.vector_to_parameters(self.whole, weights)  # now in it
        self.own = torch.nn.Parameter(part(self.whole).clone())
        self.free()

    def gather(self):
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        part(self.whole).copy_(self.own.data)
        all_gather(self.whole)

    def free(self):
        self.whole.untyped_storage().resize_(0)


# %% [markdown]
# After a layer's backward its gradients are laid end to end, too, and reduced:


# %%
def reduce_layer(sharded):
    """Leaves this rank's part of the mean gradient in own.grad."""
    gradients = [weight.grad for weight in sharded.layer.parameters()]
    flat = torch.nn.utils.parameters_to_vector(gradients)
    sharded.own.grad = reduce_scatter(flat).clone()
    sharded.layer.zero_grad()


# %% [markdown]
# `net(tokens)` is nothing but its layers one after the other, so we call these ourselves. To run each layer's backward by itself, we cut the graph between two layers with `detach`. So each value exists twice: `outputs` has it with its graph; `inputs` has it cut off, and there the next layer's backward leaves the gradient.


# %%
def forward(layers, tokens):
    """What came out of each layer, and what went in, first the tokens."""
    inputs, outputs = [tokens], []
    for sharded in layers:
        sharded.gather()
        outputs.append(sharded.layer(inputs[-1]))
        sharded.free()
        inputs.append(outputs[-1].detach().requires_grad_())
    return inputs, outputs


def backward(layers, inputs, outputs):
    """Back again; the last of inputs has the gradient for the last of outputs."""
    for sharded in reversed(layers):
        sharded.gather()
        outputs.pop().backward(inputs.pop().grad)
        sharded.free()
        reduce_layer(sharded)


# %%
def zero3(num_steps):
    net, tokens, targets = story()
    layers = [Sharded(layer) for layer in net.layers]
    optimizer = torch.optim.AdamW([layer.own for layer in layers], lr=0.01)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        inputs, outputs = forward(layers, tokens)
        loss = model.loss(inputs[-1], targets)
        loss.backward()  # fills inputs[-1].grad
        backward(layers, inputs, outputs)
        optimizer.step()
        losses.append(loss.item())
    return losses, net, optimizer, layers


# %% [markdown]
# After the update nothing has to be sent, because the next forward gathers anyway. (To gather the *next* layer while this one computes is called [prefetch](GLOSSARY.md#prefetch); ours does without.)
#
# ### Run all four
#
# The models train in fp32: 4 bytes for a parameter, 4 for its gradient, 8 for momentum and variance. So on 4 ranks stage 3 should leave 16/4 = 4 on each, and stage 1 should leave 4 + 4 + 8/4 = 10. Does it? We run two steps, because only in the second does a forward meet Adam's states. `memory.watch` reads every storage that torch holds, and `traffic.count` counts what is sent.


# %%
import gc

from labkit.measure import memory, traffic


# %%
def watched(stage):
    with memory.watch() as seen, traffic.count() as sent:
        seen.mark("training")
        losses, *kept = stage(2)
        gc.collect()
        live_bytes = seen.live_bytes
    return {
        "losses": torch.tensor(losses),
        "live_bytes": live_bytes,
        "peak_bytes": seen.footprint().peak_bytes,
        "wire_bytes": sent.sent_bytes,
    }


# %%
by_hand = (plain, zero1, zero2, zero3)
four = lab.launch(lambda: {each.__name__: watched(each) for each in by_hand}, ranks=4)
runs = four[0]

# %%
count = sum(weight.numel() for weight in model.Transformer(2, max_len=32).parameters())
due = [held(4, stage, weight=4, gradient=4, optimizer=8) for stage in range(4)]
lab.bars(
    {
        name: {
            "predicted": bytes_due,
            "measured": run["live_bytes"] / count,
            "measured, peak": round(run["peak_bytes"] / count, 1),
        }
        for bytes_due, (name, run) in zip(due, runs.items())
    },
    title="Live bytes per parameter, rank 0 of 4",
    badge="predicted / measured",
)

# %% [markdown]
# The first two bars of each stage are equally long: the formula holds for real ranks. The third is the highest point of a step, and this is what has to fit. Here it hardly falls from stage 1 to stage 3. Do stages 2 and 3 save nothing, then?
#
# At the peak of `zero1` and `zero2`, the end of the forward, there are 4 bytes for the parameter, 2 for Adam and no gradient yet. The other 5.6 of the 11.6 are activations, which ZeRO does not touch. At the peak of `zero3`, in the backward, there are activations too, and one whole block with its gradients. These hide the savings, because our model is small beside its batch. For a large model the first bars decide.
#
# But did we still train the same model? The second loss comes after an update, so let's compare:

# %%
max(lab.difference(run["losses"], runs["plain"]["losses"]) for run in runs.values())

# %% [markdown] sections="10.2.5, D-train"
# The losses of all four are equal to the last bit, the second ones too.

# %% [markdown] sections="8.5.1, 19.4.1"
# ## What it sends
#
# What does the saved memory cost in messages? In a ring a reduce-scatter sends almost one model, an all-gather too, and an all-reduce is both. Count the calls in `zero1` and in `zero3`. How much does stage 3 send, if plain data parallelism is 1?

# %%
volume = lab.guess("ZeRO 3 sends, in multiples of DDP", between=(0, 4))

# %% [markdown]
# We count three times: what the *method* needs, then what the *backend* carries, and in the second half what a *library* asks for.
#
# For the method we put our own ring of chapter 02 in the place of torch's calls, and count the bytes handed to each message, its [payload](GLOSSARY.md#payload). The four programs call these names, so they need no change.


# %%
def around(name, tensor):
    """One collective, message by message around the ring."""
    plan = collectives.plan(name, "ring", dist.get_world_size())
    collectives.execute(plan, tensor.view(-1))


def all_reduce(tensor):
    around("all_reduce", tensor)
    tensor /= dist.get_world_size()


def reduce_scatter(tensor):
    around("reduce_scatter", tensor)
    return part(tensor).div_(dist.get_world_size())


def all_gather(tensor):
    around("all_gather", tensor)


# %%
def sent_by(stage):
    with traffic.count() as counted:
        stage(1)
    return counted.payload_bytes["send"]


# %%
four = lab.launch(lambda: {each.__name__: sent_by(each) for each in by_hand}, ranks=4)
sent = four[0]
volume.score(sent["zero3"] / sent["plain"])

# %% [markdown]
# Half as much again: stage 3 gathers once more, for the backward (Rajbhandari et al. 2020, section 7).
#
# ### What goes over the wire
#
# Does the network agree? With torch's own calls, `runs` has counted what went over the [wire](GLOSSARY.md#wire). In multiples of `plain`:

# %%
ddp = runs["plain"]
lab.table(
    {
        "program": name,
        "our ring": sent[name] / sent["plain"],
        "wire": run["wire_bytes"] / ddp["wire_bytes"],
    }
    for name, run in runs.items()
)

# %% [markdown] sections="8.5.1, 10.2.5, S5"
# On our ring stages 1 and 2 are free, because a reduce-scatter and an all-gather *are* an all-reduce. (So rows 0 to 2 of the picture end at the same place: a message's box is as long as what it sends.) But the wire has carried more, because of the [backend](GLOSSARY.md#backend): [gloo](GLOSSARY.md#gloo) has no reduce-scatter of its own and runs a whole all-reduce in its place. (NCCL has a real one.) For stage 1 that makes (2 + 1)/2 = 1.5, for stage 3 (2 + 1 + 1)/2 = 2. (Measured is 1.9: every message carries some extra bytes, and `zero3`, with one message per layer, sends fewer messages.)
#
# ## DeepSpeed
#
# *The second half. A good place for a pause.*
#
# In real life [DeepSpeed](https://www.deepspeed.ai/) does it for you: it takes the model and a configuration, and gives back an *engine*.


# %%
def config(stage, accumulate=1, **zero):
    """A configuration of plain fp32."""
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulate,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage} | zero,
    }


# %% [markdown]
# `engine.backward(loss)` makes the gradients and reduces them; `engine.step()` updates and clears them. With [gradient accumulation](GLOSSARY.md#gradient-accumulation) both are called for each microbatch: DeepSpeed divides the loss by their number, and knows which is the last.


# %%
def train(settings):
    import deepspeed

    net, tokens, targets = story()
    engine, *_ = deepspeed.initialize(model=net, config=settings)
    for step in range(3):  # ZeRO 3 needs two steps to settle
        with traffic.count() as sent:
            for microbatch in range(engine.gradient_accumulation_steps()):
                loss = model.loss(engine(tokens), targets)
                engine.backward(loss)
                engine.step()
    told = {"loss": f"{loss.item():.5f}", "calls": sent.calls.total()}
    return told | dict(sent.payload_bytes)


# %% [markdown]
# Stage 2 has to reduce gradients so that each rank gets its own part. Which collective does DeepSpeed call for that? (`KEEP_NOTHING` makes stage 3 behave like our `zero3`.)

# %%
# no weight stays whole, none is gathered early, none is kept for the backward
KEEP_NOTHING = {
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
}
configs = {f"ZeRO {stage}": config(stage) for stage in range(3)}
for stage in (1, 2):
    each_part = config(stage, use_multi_rank_bucket_allreduce=False)
    configs[f"ZeRO {stage}, reduce"] = each_part
configs["ZeRO 3"] = config(3, **KEEP_NOTHING)
rows = lab.launch(lambda: {name: train(each) for name, each in configs.items()})[0]

# %% [markdown]
# The bytes that the last step handed to each collective:

# %%
lab.table({"configuration": name} | row for name, row in rows.items())

# %% [markdown]
# In stages 1 and 2 DeepSpeed (0.19) calls no reduce-scatter but one all-reduce for a whole [bucket](GLOSSARY.md#bucket) of gradients. In the rows "reduce", with `use_multi_rank_bucket_allreduce` set to `false`, each part goes to its owner alone. (The 4 and 8 bytes are norms.)
#
# What would a ring of N ranks send for these calls? For an all-reduce of S bytes 2 S, for a reduce or a reduce-scatter S. An all-gather is handed one part only, so it moves N times the number in the table. (Each of them times (N - 1)/N, which multiples of stage 0 don't show.) These sums are from 2 ranks, and stand here beside the two earlier counts, from 4, in multiples of stage 0:


# %%
def on_a_ring(handed, ranks=2):
    """Bytes that a ring sends for these payloads, up to a common factor."""
    times = {"all_reduce": 2, "reduce_scatter": 1, "reduce": 1, "all_gather": ranks}
    return sum(times[call] * handed.get(call, 0) for call in times)


# %%
def in_models(rows):
    """The sums, in multiples of ZeRO 0."""
    ddp = on_a_ring(rows["ZeRO 0"])
    return {name: on_a_ring(row) / ddp for name, row in rows.items()}


# %%
asked = in_models(rows)
lab.table(
    {
        "stage": f"ZeRO {stage}",
        "our ring": sent[name] / sent["plain"],
        "gloo's wire": run["wire_bytes"] / ddp["wire_bytes"],
        "DeepSpeed": asked[f"ZeRO {stage}"],
        "DeepSpeed, reduce": asked.get(f"ZeRO {stage}, reduce"),
    }
    for stage, (name, run) in enumerate(runs.items())
)

# %% [markdown] sections="10.7.2, 8.5.1, 19.4.1"
# DeepSpeed's 1.5 for stages 1 and 2 is the same sum as gloo's. But now the *library* asks for a whole all-reduce, so no backend can help. The setting does: with `false` we are back at 1.
#
# ### When gradients accumulate
#
# And with four microbatches in a step? Stage 1 keeps whole gradients, stage 2 only its own part. So how much does stage 2 send with DeepSpeed's default, the all-reduce, if ZeRO 0 is 1?

# %%
four_times = lab.guess("ZeRO 2 with 4 microbatches, on a ring", between=(0, 8))

# %%
longer = {f"ZeRO {n}, 4 microbatches": config(n, accumulate=4) for n in (0, 1, 2)}
each_part = config(2, accumulate=4, use_multi_rank_bucket_allreduce=False)
longer["ZeRO 2, reduce, 4 microbatches"] = each_part
longer["ZeRO 3, 4 microbatches"] = config(3, accumulate=4, **KEEP_NOTHING)
more = lab.launch(lambda: {name: train(each) for name, each in longer.items()})[0]
asked = in_models({"ZeRO 0": rows["ZeRO 0"]} | more)
lab.table(
    {"configuration": name, "on a ring": asked[name]} | row
    for name, row in more.items()
)

# %%
four_times.score(asked["ZeRO 2, 4 microbatches"])

# %% [markdown] sections="10.7.2"
# Stages 0 and 1 reduce once a step. Stage 2 must reduce in each microbatch, and gathers once a step. With the default that is (4 x 2 + 1)/2 = 4.5; with `false` it is (4 + 1)/2 = 2.5. Stage 3 has to gather and to reduce in each microbatch: four times 1.5 is 6.
#
# ### Exercise 2. Which stage is running?
#
# A colleague swears that the job runs with ZeRO 2. You have only a row of such a table, for one rank (`{"all_reduce": bytes, ...}`), the number of parameters, and the number of microbatches, two or more. It is DeepSpeed with its defaults, but in bf16, so a gradient has 2 bytes. Which stage ran, 0 to 3? Engines pad and reduce norms, so don't ask for equal bytes.


# %%
def my_stage(payload, num_params, microbatches):
    """The stage of ZeRO that ran: 0, 1, 2 or 3."""
    ### BEGIN SOLUTION
    if "reduce_scatter" in payload:
        return 3
    if "all_gather" not in payload:
        return 0
    reductions = payload["all_reduce"] / (2 * num_params)
    return 2 if round(reductions) == microbatches else 1
    ### END SOLUTION


# %%
check.which_stage(my_stage)

# %%
check.hint("which_stage")

# %% [markdown] sections="8.5.2, S5"
# ## The configuration file
#
# Most people write the configuration as a JSON file. Three of its numbers belong together, because batch = microbatch x accumulation steps x ranks; give two, and DeepSpeed works out the third. Here the batch is 32 on four ranks, with four steps:

# %%
batch = {"train_batch_size": 32, "gradient_accumulation_steps": 4}
zero = {"stage": 2, "overlap_comm": True}
file = batch | {"bf16": {"enabled": True}, "zero_optimization": zero}

# %% [markdown]
# <details><summary>Fields that you will meet</summary>
#
# | field | meaning |
# | --- | --- |
# | `train_batch_size`, `train_micro_batch_size_per_gpu`, `gradient_accumulation_steps` | samples per update, all ranks together; samples of a rank in one forward and backward; microbatches per update |
# | `gradient_clipping` | largest norm of all gradients together; **1.0 if you say nothing**, 0 is off |
# | `bf16.enabled`, `fp16.enabled` | train in 16 bit with an fp32 copy of the parameters; one of the two |
# | `reduce_bucket_size`, `allgather_bucket_size` | elements (not bytes) per message |
# | `use_multi_rank_bucket_allreduce` | true if you say nothing: an all-reduce per bucket, as measured above; false: each part goes to its owner alone |
# | `overlap_comm` | reduce while the backward still runs |
# | `offload_optimizer`, `offload_param` | where the states, or stage 3's parameters, lie: `cpu` or `nvme`; `pin_memory` for faster copies |
# | `stage3_param_persistence_threshold` | a parameter smaller than this stays whole once it has been gathered |
# | `stage3_gather_16bit_weights_on_model_save` | put the weights together for a checkpoint |
# | `optimizer`, `scheduler` | a name and its arguments; or pass objects to `initialize` |
#
# [DeepSpeed's page](https://www.deepspeed.ai/docs/config-json/) has the others.
#
# </details>
#
# What if we make a mistake? We write `zero_optimisation`, with an s. Does DeepSpeed refuse, or which stage does it run?

# %%
typo = lab.guess("with zero_optimisation, the stage is", choices=("refused", "0", "2"))


# %%
def read(files):
    import deepspeed

    deepspeed.init_distributed()  # DeepSpeedConfig asks how many ranks there are
    rows = []
    for name, content in files.items():
        try:
            found = deepspeed.runtime.config.DeepSpeedConfig(content)
        except Exception as error:
            rows.append({"file": name, "stage": "refused", "why": type(error).__name__})
            continue
        stage = str(int(found.zero_optimization_stage))
        micro, clip = found.train_micro_batch_size_per_gpu, found.gradient_clipping
        rows.append({"file": name, "stage": stage, "micro": micro, "clipping": clip})
    return rows


# %%
rest = {name: file[name] for name in file if name != "zero_optimization"}
files = {
    "as above": file,
    "typo inside": file | {"zero_optimization": zero | {"reduce_bucket": 2e8}},
    "typo on top": rest | {"zero_optimisation": zero},
}
readings = lab.launch(read, files, ranks=4)[0]
lab.table(readings)

# %%
typo.score(readings[2]["stage"])

# %% [markdown] sections="D-train, 8.5.2, S5"
# Inside `zero_optimization` an unknown field is refused. On top it is **ignored**: one wrong letter, and the training runs without ZeRO and says nothing. So print `engine.zero_optimization_stage()`. And look at *clipping*: it is 1, which nobody has asked for.
#
# <details><summary>In a script of your own, or in a Hugging Face Trainer</summary>
#
# `deepspeed train.py --deepspeed_config FILE` starts it, or `accelerate launch` (chapter 04), if its own file says `distributed_type: DEEPSPEED`. The script passes its arguments on:
#
# ```python
# parser.add_argument("--local_rank", type=int)  # the command adds it
# arguments = deepspeed.add_config_arguments(parser).parse_args()
# engine, *_ = deepspeed.initialize(args=arguments, model=net, optimizer=adamw)
# ```
#
# Without GPUs, put `DS_ACCELERATOR=cpu` in front. Build a model that fits on no rank under `with deepspeed.zero.Init():`, and call `engine.save_checkpoint(folder)` on *all* ranks, because each saves its own part.
#
# A Hugging Face Trainer takes the same file as `deepspeed=`, with "auto" for the three numbers of the batch and for `enabled`: it fills in its own.
#
# </details>

# %% [markdown]
# ### Exercise 3. A configuration that changes nothing
#
# Write DeepSpeed's configuration for ZeRO 3 in fp32, so that training ends with the same weights as torch's AdamW in one process. Use the given global batch and microbatch, and turn off whatever DeepSpeed does unasked. The check trains a real engine with it.


# %%
def my_config(num_ranks, global_batch, micro_batch, learning_rate, weight_decay):
    """A configuration as a dict."""
    ### BEGIN SOLUTION
    params = {"lr": learning_rate, "weight_decay": weight_decay}
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "optimizer": {"type": "AdamW", "params": params},
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 3},
    }
    ### END SOLUTION


# %%
check.same_training(my_config)

# %%
check.hint("same_training")

# %% [markdown] sections="8.5.3"
# ## Offload
#
# And if we can rent only *one* card? Then no stage helps, because there is nobody to share with. But the update touches each state only once a step, so the optimizer can live in [host memory](GLOSSARY.md#host-memory), and update there. This is [offload](GLOSSARY.md#offload). Compared with `plain`, two things are new: the host's copy of the weights, which the optimizer gets, and two loops that cross the link. (There is one rank, so nothing is reduced.)


# %%
from labkit.devices import pretend


def on_host(num_steps):
    net, tokens, targets = story()
    # new: a copy on the host
    kept = {weight: weight.detach().cpu() for weight in net.parameters()}
    optimizer = torch.optim.AdamW(kept.values(), lr=0.01)
    losses, copies_us = [], []
    for step in range(num_steps):
        net.zero_grad()
        loss = model.loss(net(tokens), targets)
        loss.backward()
        losses.append(loss.item())
        pretend.reset_copied()
        for weight, own in kept.items():
            own.grad = weight.grad.cpu()  # new: the gradients go down
        optimizer.step()
        for weight, own in kept.items():
            weight.data.copy_(own)  # new: the weights come up
        copies_us.append(pretend.copied().took_us)
    return losses, net, optimizer, copies_us


# %%
def weighed(program):
    losses, net, optimizer, *copies_us = program(6)
    told = {"program": program.__name__, "loss": f"{losses[-1]:.5f}"}
    told["device_memory_bytes"] = torch.accelerator.memory_allocated()
    return told | {"copies_us": min(copies_us[0])} if copies_us else told


# %% [markdown]
# We run it with the model on a [pretend device](GLOSSARY.md#pretend-device), which has a link of 0.002 GB/s. Each of our 134,912 parameters (`count`) moves 4 bytes down as a gradient and 4 bytes up as a weight. About how many milliseconds do the copies of a step take? (The fastest of six steps counts.)

# %%
crossing = lab.guess("copies of a step over 0.002 GB/s", unit="ms")

# %%
slow = lab.pretend(link_gb_per_s=0.002)
programs = (plain, on_host)
found = [lab.launch(weighed, each, ranks=1, devices=slow)[0] for each in programs]
crossing.score(found[1]["copies_us"] / 1000)

# %%
lab.table(found)

# %% [markdown]
# The same loss, and after the step half of the memory: momentum and variance are gone from the device. The bytes alone take 540 ms (`8 * count / 0.002e9`), and each copy a little more.
#
# And the 7 B model on its one card? With DeepSpeed's `offload_optimizer`, a step of one microbatch looks like this. (25 GB/s is about what PCIe 4 gives.)

# %%
stages.Offload(mode="zero2", model="7B", ranks=1).board()

# %% [markdown] sections="8.5.3"
# Now 14 GB instead of 112 lie on the card, the weights alone, so the model fits. (DeepSpeed sends each gradient down as it arises. Only a bucket of them is on the card at a time.) The price is 1.68 s of link in each step, and an update on the CPU. For each parameter that reads 16 bytes of the host's memory (gradient, copy, momentum and variance) and writes 14 (the last three, and the 16-bit parameter). For 7 billion parameters this is 210 GB, or 2.1 s at 100 GB/s. Neither depends on the microbatch, so make it large: a step then does more for the same price.
#
# ## When is it worth it?
#
# Back to eight cards, in one machine, and LLaMA 7B (6.7 billion parameters). ZeRO 1 (*before*) and ZeRO 3 (*after*) both fit. What does the memory that stage 3 frees cost in step time? The planner of chapter 18 predicts it, with constants measured on FSDP (chapter 07) and A100s:

# %%
cards = planner.Plan(model="LLaMA 7B", gpus=8, batch=64, stack="fsdp-a100")
cards = cards.but(recipe="mixed")  # gradients in 16 bit
planner.card(cards.but(zero=1), cards.but(zero=3))

# %% [markdown]
# Stage 3 frees about 22 GB, and the step takes hardly longer, 3.96 s instead of 3.91: inside one machine the links are fast enough to hide the gathers. And if the eight cards stand in two machines?

# %%
apart = cards.but(per_node=4)
planner.card(apart.but(zero=1), apart.but(zero=3))

# %% [markdown]
# Now stage 3 costs 1.87 s in a step. Real networks can be much slower than predicted, so time it on yours. In short:
#
# - **Stage 1** if it fits: it can send as little as data parallelism.
# - **Stage 2** if stage 1 misses by a little: it saves up to 2 more bytes per parameter, but reduces in every microbatch.
# - **Stage 3** if the parameters themselves are too large, or if you can use the memory, say for longer sequences. In *every* microbatch it sends 1.5 times what data parallelism sends in a step, and computing must hide that.
# - **Offload** if there is no other way to fit, and with large batches.

# %% [markdown]
# ## Summary
#
# - With Adam in 16 bit a rank holds 16 bytes per parameter, or 4 + 12/N, 2 + 14/N, 16/N under stages 1, 2, 3.
# - Stages 1 and 2 send what data parallelism sends, stage 3 1.5 times as much; with accumulation stages 2 and 3 pay in every microbatch. Library and backend may send more: count it.
# - DeepSpeed ignores a misspelt field on top, and clips gradients unless you turn it off. Print the stage.
# - Offload saves device memory, and pays with bytes over the link and an update on the CPU.
#
# **Words**: [model states](GLOSSARY.md#model-states), [shard](GLOSSARY.md#shard), [ZeRO stage](GLOSSARY.md#zero-stage), [owner](GLOSSARY.md#owner), [reduce-scatter](GLOSSARY.md#reduce-scatter), [all-gather](GLOSSARY.md#all-gather), [payload](GLOSSARY.md#payload), [wire](GLOSSARY.md#wire), [prefetch](GLOSSARY.md#prefetch), [offload](GLOSSARY.md#offload).
#
# **Next**: chapter 07 does the same with torch's own FSDP, and watches a step's memory moment by moment.

# %% [markdown] sections="8.5.1, 8.5.2, 8.5.3, 10.2.5, S5, D-train"
# ## Errata of the textbook
#
# They correct a textbook that many readers know; if you don't, you lose nothing here.
#
# <details><summary>Nine boxes</summary>
#
# <details><summary>Erratum 8.5.1: "ZeRO 1: 28 GB, ZeRO 2: 14.5 GB, ZeRO 3: 7 GB" for 7 B on 4 ranks</summary>
#
# The formulas beside these numbers are right, but the arithmetic is not: 28 is 112 divided by 4, as if nothing stayed whole, and 7 is divided by 4 once more. For 14.5 we have found no sum. Run it: `[7 * held(4, stage) for stage in (1, 2, 3)]` gives 49, 38.5 and 28 GB.
#
# </details>
#
# <details><summary>Erratum 8.5.1, 10.2.5, S5: "about 4x, 8x, and 64x (or ~16x)"</summary>
#
# Three tables of the source give one number for each stage, and for stage 3 they say "64x", "near-linear" and "~16x". 4 and 8 are limits for very many ranks, and 64 is right for 64 ranks (the paper's example): stage 3 saves as many times as there are ranks, and 16 is the number of bytes of a parameter. Run it: `16 / held(4, 1)` gives 2.29.
#
# </details>
#
# <details><summary>Erratum D-train: <code>dist.all_reduce(loss)</code> as "gradient synchronisation"</summary>
#
# The source's script does this between `backward` and `optimizer.step()` of a plain model. It averages one number, for the log at best, and each rank goes on alone, without any error. Run it: with `all_reduce(loss.detach())` instead of the loop in `plain`, the second losses of two ranks are those of two models.
#
# </details>
#
# <details><summary>Erratum 10.2.5: stage 2 "collects whole gradients during the backward"</summary>
#
# Nobody collects. Each rank makes a whole gradient of its own data, one weight at a time, and gives most of it away. The hook in `zero2` is all there is; the bars of *Run all four* count what is left.
#
# </details>
#
# <details><summary>Erratum 8.5.1: "stage 1 sends 1 time, stage 2 1.5 times, stage 3 2 times"</summary>
#
# The method needs 1, 1 and 1.5, as our ring measures. The source's numbers for stages 2 and 3 happen to be gloo's wire. Run it: `sent["zero2"] / sent["plain"]` gives 1.0.
#
# </details>
#
# <details><summary>Erratum 8.5.2: a batch of 32 with 4 accumulation steps, and a Trainer with 8 per GPU</summary>
#
# On 4 ranks the file asks for a microbatch of **2** (the row "as above"). The source hands it to a Trainer that has 8, but 8 x 4 x 4 is 128; with 8, the accumulation must be 1. Run it: `lab.launch(read, {"8": file | {"train_micro_batch_size_per_gpu": 8}}, ranks=4)[0]` is refused.
#
# </details>
#
# <details><summary>Erratum D-train: "train_batch_size": "auto"</summary>
#
# "auto" is meant for the Hugging Face Trainer, which writes the numbers in before DeepSpeed reads them. DeepSpeed alone divides a word by a number. Run it: `lab.launch(read, {"auto": file | {"train_batch_size": "auto"}})[0]` shows the TypeError.
#
# </details>
#
# <details><summary>Erratum S5: <code>activation_checkpointing</code> with <code>enabled</code> and <code>checkpoints_per_rank</code></summary>
#
# DeepSpeed has neither of these fields, and says nothing about them, so the file changes nothing. Run it: `lab.launch(read, {"more": file | {"activation_checkpointing": {"enabled": True}}}, ranks=4)[0]` is read like the row "as above".
#
# </details>
#
# <details><summary>Erratum 8.5.3: LLaMA 70B in 78 GB per GPU (ZeRO 2, 8 GPUs) and 68 GB (ZeRO 3, 4 GPUs)</summary>
#
# Neither is possible: `70 * held(8, 2)` gives 262 GB of model states on each GPU, and `70 * held(4, 3)` gives 280. Of GPUs with 80 GB stage 2 fits on no number, since 2 bytes per parameter stay whole (140 GB), and stage 3 needs more than 14. The last row of the source's table (ZeRO 3 with offload on 2 GPUs) is possible only beside a host that holds all the states, 1,120 GB, and its 45 % utilisation only with a very large batch.
#
# </details>
#
# </details>
#
# **Further reading**: Rajbhandari, Rasley, Ruwase and He, *ZeRO* ([2020](https://arxiv.org/abs/1910.02054)); Ren et al., *ZeRO-Offload* ([2021](https://arxiv.org/abs/2101.06840)); [DeepSpeed's configuration](https://www.deepspeed.ai/docs/config-json/) and its [memory page](https://deepspeed.readthedocs.io/en/latest/memory.html); [DeepSpeed in the Trainer](https://huggingface.co/docs/transformers/deepspeed).
#
# *Sections 8.5.1, 8.5.2, 8.5.3, 10.2.5, 10.7.2, 19.4.1, S5 and D-train of the source material.*

# %%
check.status()
