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
# *An hour and a half, half an hour more for the optional end, and one for the exercises. You need chapters 00, 02, 03 and 05, and no GPU.*
#
# While it trains, our 7 B model needs 112 GB for its parameters, its gradients and the states of Adam. A card has 80. So we rent eight cards and train data parallel, as in chapter 03, but the run still dies at step 0: each card has to hold the same 112 GB. Of the 896 GB on all eight, 784 would be copies.
#
# How do we get rid of the copies, and what does it cost? ZeRO does it in three stages; stage 0 is what we have. Play with them:

# %%
import labkit as lab

lab.begin("en")
import torch
import torch.distributed as dist
from labkit import collectives, model
from labkit.zero import check, order_picture, part_picture, picture, stages

stages.Stages(stage=0, ranks=8, model="7B").board()

# %% [markdown]
# A row is what one card holds. Set the stage to 1, 2 and 3. Which colour shrinks first?
#
# **When you are done** you can
#
# - read each stage as a short training loop, and say what it saves and sends;
# - hand the same work to DeepSpeed, and see what it sends;
# - choose a stage for a model and its network.

# %% [markdown] sections="8.5.1"
# ## The bill
#
# What does each card have to hold? In 16-bit training with Adam a [parameter](GLOSSARY.md#parameter) takes 2 bytes, its gradient 2, and the optimizer 12 (an fp32 copy, momentum and variance). Under data parallelism every rank has all of these [model states](GLOSSARY.md#model-states), 16 bytes.
#
# ZeRO (the *zero redundancy optimizer*) keeps one copy for everybody, of which each rank holds a part, its [shard](GLOSSARY.md#shard). In [stage](GLOSSARY.md#zero-stage) 1 only the optimizer is sharded, in stage 2 the gradients too, in stage 3 the parameters as well.


# %%
def held(ranks, stage, weight=2, gradient=2, optimizer=12):
    """Bytes that each rank holds for one parameter of the model."""
    weights = weight / (ranks if stage >= 3 else 1)
    gradients = gradient / (ranks if stage >= 2 else 1)
    return weights + gradients + optimizer / (ranks if stage >= 1 else 1)


# %% [markdown]
# On eight cards stage 1 leaves 38.5 of 112 GB on each, 2.9 times less. And on a thousand?

# %%
first = lab.guess("ZeRO 1 on 1,000 cards, times less on each", between=(1, 1000))

# %%
first.score(held(1, 0) / held(ranks=1000, stage=1))

# %% [markdown] sections="8.5.1, 10.2.5, S5"
# Only the optimizer's 12 bytes are divided; 4 stay whole. So stage 1 never saves more than 16/4 = 4 times, and stage 2 never more than 8. Only stage 3 saves as many times as there are ranks.

# %% [markdown] sections="19.4.1"
# ## By hand
#
# How can a rank update the model if it has the optimizer's states of only a part? With two [collectives](GLOSSARY.md#collective) of chapter 02: a [reduce-scatter](GLOSSARY.md#reduce-scatter) leaves each rank its own part of the sum over all ranks, and an [all-gather](GLOSSARY.md#all-gather) puts the parts together for everyone. Between them each rank updates its own part:

# %%
lab.show(part_picture.drawn())

# %% [markdown]
# How much does stage 1 send, if stage 0 with its [all-reduce](GLOSSARY.md#all-reduce) sends 1?

# %%
volume = lab.guess("ZeRO 1 sends, in multiples of ZeRO 0", between=(0, 4))

# %%
one = 3 / 4  # models that a reduce-scatter or an all-gather sends, on a ring of 4
volume.score((one + one) / (2 * one))

# %% [markdown]
# Not a byte more: on a ring an all-reduce is a reduce-scatter and an all-gather (chapter 02), and stage 1 updates between the two. A whole step of two layers, 0 and 1, under each stage:

# %%
lab.show(order_picture.drawn())

# %% [markdown]
# A message's width shows its bytes; the other boxes have no scale.
#
# ### Stage 0: everyone has everything
#
# ZeRO 0 is plain data parallelism. Each rank has the same small transformer and passages of its own from the story:


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
def zero0(num_steps):
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
# ### Stage 1: the optimizer is sharded
#
# Now rank r becomes the [owner](GLOSSARY.md#owner) of the r-th part of every weight. Three helpers:


# %%
def part(tensor):
    """This rank's part of a tensor: a view of it, flat."""
    return tensor.view(-1).chunk(dist.get_world_size())[dist.get_rank()]


def reduce_scatter(tensor):
    """Fills this rank's part with the mean over all ranks, and returns it."""
    # in place: the result lies in this rank's part of the input
    # before torch 2.13: reduce_scatter_tensor, and all_gather_into_tensor below
    dist.reduce_scatter_single(part(tensor), tensor.view(-1))
    return part(tensor).div_(dist.get_world_size())


def all_gather(tensor):
    """Fills the tensor from everybody's part of it."""
    dist.all_gather_single(tensor.view(-1), part(tensor))


# %% [markdown]
# Three things of `zero0` change. The optimizer is given this rank's parts alone, so it makes momentum and variance only for those. The all-reduce becomes a reduce-scatter. After the update an all-gather brings the other parts.


# %%
def zero1(num_steps):
    net, tokens, targets = story()
    # new: a view of this rank's part, so updating it updates the weight
    mine = {w: torch.nn.Parameter(part(w.data)) for w in net.parameters()}
    optimizer = torch.optim.AdamW(mine.values(), lr=0.01)
    losses = []
    for step in range(num_steps):
        net.zero_grad()
        optimizer.zero_grad()  # both, because own.grad is a view of weight.grad
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
# Does it still train the same model? `after_three` takes three steps, in fp32 and in fp64. We compare the third step's loss on rank 0, and the weights on all ranks:

# %%
from labkit.zero import by_hand_run, ring_bytes

right = lab.launch(by_hand_run.after_three, zero0, ranks=4)

# %%
ran = lab.launch(by_hand_run.after_three, zero1, ranks=4)
by_hand_run.beside(right, ran)

# %% [markdown] sections="10.2.5, 19.4.1"
# No bit differs, because in place of the reduce-scatter gloo runs the same all-reduce of the same tensor (chapter 02). A real one may add in another order, and round differently; it comes below, with our ring.
#
# ### Stage 2: gradients too
#
# A gradient is needed whole only until it is reduced. So why wait for the end of the backward? A *hook* is a function that torch calls as soon as a weight's gradient is complete. In it we reduce the gradient, clone our own part (a view would keep all of it alive) and let go of the rest.


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


# %%
ran = lab.launch(by_hand_run.after_three, zero2, ranks=4)
by_hand_run.beside(right, ran)

# %% [markdown]
# What did the hook save? Each time a gradient arises we count the bytes of all that are alive, and keep the most:


# %%
def most(program):
    return lab.launch(by_hand_run.most_gradient_bytes, program, ranks=4)[0]


alive = {"zero1": most(zero1), "zero2": most(zero2)}
title = "Most gradient bytes during a backward, rank 0 of 4"
lab.bars(alive, unit="bytes", title=title, badge="measured")

# %% [markdown] sections="10.2.5"
# `zero1` ends the backward with all gradients. `zero2` has a quarter of what is already reduced, and the gradient that it is about to reduce.
#
# ### Stage 3: parameters too
#
# Can the weights be sharded, too? Then each layer is gathered before it computes, and freed afterwards. But autograd holds on to the weights that the forward has used. How do we free them?
#
# A tensor is a shape over a *storage*, which holds the bytes. We leave the tensor, and empty its storage. One layer shows it; `parts` stands for what all ranks together keep of its weight:

# %%
layer = torch.nn.Linear(64, 64)
storage = layer.weight.untyped_storage()
parts = layer.weight.detach().clone()

# %%
# whoever wants the gradient of the inputs needs the weight in the backward
inputs = torch.randn(8, 64, requires_grad=True)
outputs = layer(inputs)
storage_bytes = {"gathered": storage.nbytes()}
storage.resize_(0)
storage_bytes["freed"] = storage.nbytes()
layer.weight.shape  # the tensor is still there

# %% [markdown]
# The backward will need the bytes again. Suppose that we put them into a new tensor, and make that the layer's weight. What does the backward do?

# %%
second = lab.guess("the backward", choices=("an error", "zeros", "right gradients"))

# %%
layer.weight.data = parts
try:
    outputs.sum().backward()
    came = "right gradients" if inputs.grad.any() else "zeros"
except RuntimeError as error:
    came = "an error"
    print(error)
second.score(came)

# %% [markdown]
# An error: the backward looks into the storage that the forward has used. So the bytes have to come back into that one, and this is stage 3's second gather:

# %%
storage.resize_(parts.nbytes)
storage.copy_(parts.untyped_storage())
outputs.sum().backward()
storage_bytes["gathered again"] = storage.nbytes()
storage_bytes

# %% [markdown]
# `Sharded` does this with a whole layer:
#
# ```
# whole: [ weight | bias | ... ]   end to end in one storage; weights are pieces of it
# own:   [ a quarter ]             a copy of this rank's part, and all that it keeps
# ```
#
# One storage holds all its weights, so one `resize_` frees or brings back all of them. `reduce` lays the gradients end to end, too:


# %%
class Sharded:
    """A layer that is whole only while it computes; a rank keeps its own part."""

    def __init__(self, layer):
        self.layer = layer
        weights = list(layer.parameters())
        self.whole = torch.nn.utils.parameters_to_vector(weights).detach()
        torch.nn.utils.vector_to_parameters(self.whole, weights)  # now pieces of it
        self.own = torch.nn.Parameter(part(self.whole).clone())
        self.free()

    def gather(self):
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        part(self.whole).copy_(self.own.data)
        all_gather(self.whole)

    def free(self):
        self.whole.untyped_storage().resize_(0)

    def reduce(self):
        gradients = [weight.grad for weight in self.layer.parameters()]
        flat = torch.nn.utils.parameters_to_vector(gradients)
        self.own.grad = reduce_scatter(flat).clone()
        self.layer.zero_grad()


# %% [markdown]
# <details><summary>Why <code>vector_to_parameters</code>, and not a view?</summary>
#
# A view shares its counter of changes with `whole`. A gather writes into `whole`, and autograd would refuse a weight that has changed since the forward. `vector_to_parameters` sets `weight.data`, which has a counter of its own.
#
# </details>
#
# To run one layer's backward at a time, we call the layers (embedding, two blocks, head) ourselves, and cut the graph between them:
#
# ```
# inputs[0] → layer 0 → outputs[0]  ✂  inputs[1] → layer 1 → outputs[1]  ✂  inputs[2] → loss
# ```
#
# The backward right of a cut leaves a gradient in `inputs[1]`; we hand it to `outputs[0]`, and the left side goes on from there.


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
    """Runs the layers' backwards, last first."""
    for sharded in reversed(layers):
        sharded.gather()
        gradient = inputs.pop().grad  # left by the next layer, at first by the loss
        outputs.pop().backward(gradient)
        sharded.free()
        sharded.reduce()


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


# %%
ran = lab.launch(by_hand_run.after_three, zero3, ranks=4)
by_hand_run.beside(right, ran)

# %% [markdown] sections="10.2.5, D-train"
# In fp64 the difference all but disappears, so it is rounding. Stages 1 and 2 had none, because they sent each weight by itself, as `zero0` does. Here a whole layer is one message, which adds a weight's four gradients in another order, we think. In fp32 it looks large because, we think, Adam divides a gradient by its own size, even one of almost 0.
#
# How much of the model is ever whole? `after_three` has also followed the storages that are resized, over the last step:

# %%
lab.show(picture.whole_layers(ran[0]["whole_bytes"]))

# %% [markdown] sections="10.2.5, D-train"
# Each rise is a gather, each fall a free: embedding, block, block and head in the forward, then head to embedding in the backward. No two are ever whole together. After the update nothing is sent: the next forward gathers anyway. Libraries do it in hooks, cut no graph, and gather the *next* layer while this one computes ([prefetch](GLOSSARY.md#prefetch)). Our `zero3` builds the whole model first; they need not.
#
# ### Run all four
#
# What does a rank hold now? In fp32 a parameter takes 4 bytes, its gradient 4, Adam 8: again 16 by chance, but only 8 of them belong to the optimizer. So on 4 ranks stage 1 should leave 4 + 4 + 8/4 = 10 on each. `live_bytes` counts every storage that torch holds after a step:

# %%
by_hand = {"ZeRO 0": zero0, "ZeRO 1": zero1, "ZeRO 2": zero2, "ZeRO 3": zero3}
count = right[0]["fp32"].numel()  # parameters


# %%
def per_parameter():
    counted = by_hand_run.live_bytes
    return {name: counted(program) / count for name, program in by_hand.items()}


# %%
live = lab.launch(per_parameter, ranks=4)[0]
bill = {"weight": 4, "gradient": 4, "optimizer": 8}
due = {name: held(4, stage, **bill) for stage, name in enumerate(by_hand)}
title = "Live bytes per parameter after a step, rank 0 of 4"
rows = ring_bytes.in_rows({"predicted": due, "measured": live})
lab.bars(rows, title=title, badge="predicted / measured")

# %% [markdown]
# At rest the formula holds, in fp32; the 16-bit bill we don't run. During a step activations come on top (chapter 07), and in stage 3 one whole layer and its gradients.

# %% [markdown] sections="8.5.1, 19.4.1"
# ## What it sends
#
# What does the saved memory cost in messages? In a ring a reduce-scatter sends almost one model, an all-gather too, and an all-reduce is both. So stage 3, which gathers twice, should send 3/2 = 1.5 times what ZeRO 0 does.
#
# Does it? We put our own ring of chapter 02 in the place of torch's calls, and count the bytes handed to each message, its [payload](GLOSSARY.md#payload). We define the three calls anew. `zero0` to `zero3` stay as they are, and from here on call the new ones:


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
from labkit.measure import traffic


def on_ring(program):
    with traffic.count() as counted:
        losses, *_ = program(2)
    return {"sent_bytes": counted.payload_bytes["send"], "loss": f"{losses[-1]:.5f}"}


# %%
runs = lab.launch(lambda: {way: on_ring(by_hand[way]) for way in by_hand}, ranks=4)[0]
sent = {name: run["sent_bytes"] for name, run in runs.items()}
ours = {name: sent[name] / sent["ZeRO 0"] for name in sent}
lab.table(
    {"two steps of": name, "times ZeRO 0": ours[name]} | runs[name] for name in runs
)

# %% [markdown]
# So it does. Stages 1 and 2 send no byte more, because the weights have as many bytes as the gradients. Here the reduce-scatter was real, and the losses agree.
#
# ### Exercise 1. When sizes do not divide
#
# Our `part` needs multiples of the number of ranks: on 4 it cuts ten elements into 3, 3, 3 and 1, but the collectives want equal parts. Write a sharded AdamW (`lr=0.01`, mean gradient of all ranks) for any sizes. A rank may own a part of every weight, or some weights whole. It keeps momentum and variance of its own alone, and sends no more than an all-reduce would. All ranks start with the same net, and `backward(step)` runs a rank's own batch and *adds* its gradients to `.grad`.
#
# <details><summary>What is checked</summary>
#
# - **Result**: after `num_steps` steps on the mean gradient of all ranks, with `lr=0.01`, every rank has the weights of one process with everybody's data, to within 2 · 10⁻⁴.
# - **Memory**: a rank has momentum and variance for 1/N of the parameters, and for one weight tensor more at most.
# - **Traffic**: on average a rank sends at most 5 % more than an all-reduce of the gradients, $2\frac{N-1}{N}S$ bytes. Each call counts as on a ring, a reduce or broadcast as half an all-reduce.
#
# </details>


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

# %% [markdown]
# *Here the first half ends.*
#
# ## DeepSpeed
#
# Does a library do the same? [DeepSpeed](https://www.deepspeed.ai/) takes the model and a configuration, and gives back an *engine*. The training loop is short:


# %%
def bare(settings):
    import deepspeed

    net, tokens, targets = story()
    engine, *_ = deepspeed.initialize(model=net, config=settings)
    for step in range(3):
        loss = model.loss(engine(tokens), targets)
        engine.backward(loss)  # also reduces the gradients
        engine.step()  # also clears them
    return {"loss": f"{loss.item():.5f}", "clipping": engine.gradient_clipping()}


# %% [markdown]
# The command `deepspeed train.py` would start it; here `lab.launch` does, under stage 2, and we look at the third step's loss. The configuration is a dict:


# %%
def config(stage, accumulate=1, **zero):
    """A configuration of plain fp32."""
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulate,
        # weight_decay: 0.01 is torch's default
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
        "zero_optimization": {"stage": stage} | zero,
    }


# %%
NO_CLIPPING = {"gradient_clipping": 0.0}
both = {"DeepSpeed": config(2), "DeepSpeed, clipping off": config(2) | NO_CLIPPING}
engines = lab.launch(lambda: {name: bare(both[name]) for name in both}, ranks=4)[0]
rows = {"zero0": {"loss": f"{right[0]['loss']:.5f}"}} | engines
lab.table({"program": name} | row for name, row in rows.items())

# %% [markdown]
# DeepSpeed (0.19) clips gradients unasked, to a norm of 1. With clipping off (0) the loss is that of `zero0`, so it stays off.
#
# ### Stages 1 and 2: which collective?
#
# In stage 2 each rank needs only its own part of the gradients. Does DeepSpeed call a reduce-scatter for it? `second_steps` runs the same loop for two steps, and counts what the second hands to each collective (with `traffic.count`, as we did). We also try stage 2 with one setting changed:

# %%
from labkit.zero import config_run


def counted(configs):
    unclipped = {name: configs[name] | NO_CLIPPING for name in configs}
    return lab.launch(config_run.second_steps, story, unclipped, ranks=4)[0]


# %%
TO_OWNERS = {"use_multi_rank_bucket_allreduce": False}
configs = {f"ZeRO {stage}": config(stage) for stage in range(3)}
configs["ZeRO 2, to owners"] = config(2, **TO_OWNERS)
low = counted(configs)
rows = [{"program": name} | row for name, row in low["handed"].items()]
lab.table(rows, title="Models handed to each collective")

# %% [markdown]
# No: by default it calls an all-reduce. Only with `TO_OWNERS` each part of a [bucket](GLOSSARY.md#bucket) of gradients goes to its owner alone, by a `reduce`. So a bucket takes up to four calls in place of one, with fewer bytes on a ring. There, how much does stage 2 send by default, if ZeRO 0 is 1?

# %%
reducing = lab.guess("ZeRO 2 by default, on a ring", between=(0, 4))

# %%
reducing.score(low["sends"]["ZeRO 2"])

# %% [markdown] sections="10.7.2"
# On a ring an all-reduce sends two models, any other call one. So under stages 1 and 2 the *library* sends (2 + 1)/2 = 1.5 times what ZeRO 0 does, and to owners (1 + 1)/2 = 1.
#
# <details><summary>Why an all-reduce, if a rank needs only its part?</summary>
#
# DeepSpeed's [source](https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/zero/config.py) says that one call replaces several reduces, which helps a small model on many GPUs.
#
# </details>
#
# ### Stage 3: how often does it gather?
#
# By default stage 3 keeps weights of less than 100,000 elements whole until the update. All of ours are that small; the large matrices of a 7 B model are not. `KEEP_NOTHING` sets this threshold to 0, so that it frees ours, too. The other three settings let it gather ahead ([prefetch](GLOSSARY.md#prefetch)), and keep a layer that it soon needs again, by default up to a billion parameters. With 0 they don't:

# %%
none_whole = config(3, **config_run.KEEP_NOTHING)
high = counted({"ZeRO 3": config(3), "ZeRO 3, none whole": none_whole})
config_run.KEEP_NOTHING

# %%
columns = {"the method, our ring": ours, "DeepSpeed": low["sends"] | high["sends"]}
title = "What a step would send on a ring, in multiples of ZeRO 0"
rows = dict(sorted(ring_bytes.in_rows(columns).items()))
lab.bars(rows, title=title, badge="measured / computed")

# %% [markdown] sections="10.7.2, 8.5.1, 19.4.1"
# So by default our small model is gathered only once: (1 + 1)/2. With no weight whole, DeepSpeed's stage 3 sends what ours does.
#
# ### Why is there a stage 2?
#
# Unlike our `zero1`, DeepSpeed's stage 1 also reduces at once and keeps only its part of the gradients. So it sends and, as we count below, holds what its stage 2 does. Then what is stage 2 for? For [gradient accumulation](GLOSSARY.md#gradient-accumulation): `engine.step()` follows each microbatch, but only the last one updates. With four microbatches, how much does stage 2 send by default, if ZeRO 0, which reduces only in the last, is 1?

# %%
four_times = lab.guess("ZeRO 2 with 4 microbatches, on a ring", between=(0, 8))

# %%
configs = {f"ZeRO {stage}": config(stage, accumulate=4) for stage in range(3)}
configs["ZeRO 3, none whole"] = config(3, accumulate=4, **config_run.KEEP_NOTHING)
in_four = counted(configs)
four_times.score(in_four["sends"]["ZeRO 2"])

# %%
title = "Four microbatches, on a ring, in multiples of ZeRO 0"
lab.bars(in_four["sends"], title=title, badge="computed")

# %% [markdown] sections="10.7.2"
# ZeRO 2 all-reduces in each microbatch, and gathers once: (4 x 2 + 1)/2. ZeRO 3, with no weight whole, in each microbatch reduces once and gathers twice.
#
# What does stage 2 gain? We count what a rank holds after each backward of the second step, buckets aside, and keep the most:

# %%
rows = {}
for name in ("ZeRO 1", "ZeRO 2"):
    rows[name] = {"one microbatch": low["held"][name], "four": in_four["held"][name]}
title = "Most live bytes per parameter after a backward, rank 0 of 4"
lab.bars(rows, title=title, badge="measured")

# %% [markdown] sections="10.7.2"
# With one microbatch they hold the same: 4 bytes of weights, 1 of the gradient's part, 2 of Adam, and 1 because DeepSpeed copies its part of the weights, even in fp32. With four microbatches stage 1 adds up whole gradients until the last one, 4 bytes in place of 1: 8 + 3 = 11. The hundredths we have not explained.

# %% [markdown]
# ## When is it worth it?
#
# Which stage do we choose for our eight cards? A message costs time only where nothing is computed meanwhile: there it is *exposed*. Suppose that a library hides all that each stage allows:
#
# | stage | behind the forward | behind the backward | behind nothing |
# | --- | --- | --- | --- |
# | 0 | | an all-reduce | |
# | 1, 2 | | a reduce-scatter | an all-gather |
# | 3 | a gather | a gather, a reduce-scatter | |
#
# Such a library begins to reduce during the backward, as DDP does (chapter 03). The all-gather of stages 1 and 2 comes after the update, and we assume that the next forward waits for it, as in `zero1`. A card computes at 150 TFLOP/s, a number takes 2 bytes, and a forward 2 operations per parameter and token:


# %%
def exposed(stage, num_params, ranks, link_bytes_per_s, tokens):
    """Seconds of messages that nothing hides, in a step of one microbatch."""
    once = 2 * num_params * (ranks - 1) / ranks / link_bytes_per_s  # one all-gather
    forward = 2 * num_params * tokens / 150e12
    backward = 2 * forward
    if stage == 0:  # the all-reduce, behind the backward
        return max(0, 2 * once - backward)
    if stage == 3:  # a gather behind the forward; a gather, a reduce-scatter
        return max(0, once - forward) + max(0, 2 * once - backward)
    return max(0, once - backward) + once  # assumed: nothing hides the all-gather


# %% [markdown]
# We assume 2,048 tokens per card, and links of 300 GB/s in one machine, or 25 between machines with one card each. Between machines, how many times as long as computing alone is a step of stage 3?
#
# <details><summary>Where do these numbers come from?</summary>
#
# 150 TFLOP/s is about half of what the data sheet of an A100 promises, 300 its NVLink in one direction, and 25 half of a card of 400 Gb/s.
#
# </details>

# %%
slowest = lab.guess("stage 3 between machines, times computing", between=(1, 10))


# %%
def step(stage, link_bytes_per_s):
    """Seconds of a step of our model on eight cards."""
    waiting = exposed(stage, 7e9, 8, link_bytes_per_s, tokens=2048)
    return {"computing": 6 * 7e9 * 2048 / 150e12, "exposed": waiting}


slow = step(3, 25e9)
slowest.score(sum(slow.values()) / slow["computing"])

# %%
links = {"in one machine": 300e9, "between machines": 25e9}
rows = {}
for link in links:
    for stage in range(4):
        rows[f"ZeRO {stage}, {link}"] = step(stage, links[link])
title = "A step of the 7 B model, and what nothing hides"
lab.bars(rows, unit="s", title=title, badge="predicted", stacked=True)

# %% [markdown]
# Between machines stage 3 is the slowest. (Stage 0 is there to compare: it doesn't fit.) Stages 0 to 2 are alike: all send two models, of which the backward hides 382 ms. But that holds for 2,048 tokens. More tokens mean more computing, and no more messages:

# %%
waits = {}
for stage, name in ((0, "ZeRO 0"), (1, "ZeRO 1 and 2"), (3, "ZeRO 3")):
    waits[name] = {n: exposed(stage, 7e9, 8, 25e9, n) for n in range(1000, 7001, 50)}
axes = {"x": "tokens per card", "y": "exposed", "unit": "s"}
lab.curves(predicted=waits, **axes, title="Between machines, what nothing hides")

# %% [markdown]
# From 3,500 tokens on stage 3 is faster than stages 1 and 2, and from 5,250 on all of it is hidden, while they still wait for their all-gather.
#
# ### Does DeepSpeed hide so much?
#
# That was the method. In DeepSpeed's stage 3 `overlap_comm` is on by default. In stages 1 and 2 it is off, so nothing hides their all-reduce and their gather. At 2,048 tokens, between machines, the same formula gives for them, and for stage 3:

# %%
once = 2 * 7e9 * 7 / 8 / 25e9  # one all-gather
backward_s = slow["computing"] * 2 / 3
waiting = {
    "1 and 2, by default": 3 * once,  # an all-reduce counts twice, and a gather
    "1 and 2, overlap_comm true": max(0, 2 * once - backward_s) + once,
    "1 and 2, TO_OWNERS as well": max(0, once - backward_s) + once,
    "3, by default": slow["exposed"],
}
lab.table(
    {"stages": each, "step_s": slow["computing"] + waiting[each]} for each in waiting
)

# %% [markdown]
# By default stages 1 and 2 would be slower than stage 3, and with `overlap_comm` alone as well. With `TO_OWNERS` too they would be faster, if its many calls cost little. So set both, and time a step with `TO_OWNERS` and without it.
#
# ### Which stage first?
#
# In one machine the formula prefers stage 3 to stage 1, by 7 %. Between machines, with 5,250 tokens, it does so by a third: 1.47 s against 1.47 + 0.49. But stage 3 has that only with a perfect prefetch, and stage 1 is slower only if nothing hides its gather. And accumulation multiplies stage 3's messages. So we start with
#
# - **stage 0** if everything fits;
# - **stage 1** if stage 0 does not fit: it reduces only once per update;
# - **stage 2** if stage 1 does not fit and you accumulate. Its price: it reduces in every microbatch. (If you don't accumulate, DeepSpeed's stage 1, unlike our `zero1`, holds no more than stage 2.)
# - **stage 3** if nothing else fits. Time it, too, where links are fast or a card has many tokens.
#
# Our model starts with stage 1: its states take 38.5 of 80 GB by the formula; activations and buffers come on top. We have not run it.
#
# ### Exercise 2. Choose a stage
#
# Follow the formula alone, now for several microbatches: return the fastest stage whose 16-bit states fit into `room_bytes` on a card, the lowest of equally fast ones; if none fits, None.
#
# A step has one or more microbatches of `tokens` each. Stages 0 and 1 reduce in the last backward alone, stage 2 in every one, and stage 3 does everything in each. All else is as in `exposed`.


# %%
def my_choice(num_params, ranks, room_bytes, link_bytes_per_s, tokens, microbatches):
    """The fastest stage of ZeRO that fits, 0 to 3, or None."""
    ### BEGIN SOLUTION
    once = 2 * num_params * (ranks - 1) / ranks / link_bytes_per_s
    forward = 2 * num_params * tokens / 150e12
    reducing = max(0, once - 2 * forward)
    all_reducing = max(0, 2 * once - 2 * forward)
    exposed_s = {
        0: all_reducing,
        1: reducing + once,
        2: microbatches * reducing + once,
        3: microbatches * (max(0, once - forward) + all_reducing),
    }
    fits = [
        stage for stage in range(4) if num_params * held(ranks, stage) <= room_bytes
    ]
    return min(fits, key=exposed_s.get, default=None)
    ### END SOLUTION


# %%
check.choose_stage(my_choice)

# %%
check.hint("choose_stage")

# %% [markdown]
# ---
#
# *Here ends what most people need. The rest is about what DeepSpeed holds, the configuration file and a single card, and optional.*

# %% [markdown] sections="10.7.2"
# ## What else DeepSpeed holds
#
# And under all stages, with one microbatch, just before the update?

# %%
columns = {"predicted": due, "DeepSpeed": low["held"] | high["held"]}
title = "Live bytes per parameter before the update, rank 0 of 4"
badge = "predicted / measured"
lab.bars(ring_bytes.in_rows(columns), title=title, badge=badge)

# %% [markdown] sections="10.7.2, 8.5.1"
# A sharded stage keeps an fp32 copy of its part of the weights even in fp32: 1 byte more. Stage 1 holds what stage 2 does, as above: 3 bytes less. Stage 3 by default has the whole weights beside its part, so here it holds more than stage 2.
#
# <details><summary>What the bars leave out: DeepSpeed's buckets</summary>
#
# A rank also holds buckets, in which gradients wait for their message. Stage 3 allocates one of 500 million elements at the start, whatever the model: 2 GB in fp32. Under accumulation stage 1 held one, too, between the microbatches. `reduce_bucket_size` makes it smaller.
#
# </details>

# %% [markdown] sections="10.7.2"
# ## Which stage is running?
#
# What did the four microbatches hand to each collective?

# %%
rows = [{"program": name} | row for name, row in in_four["handed"].items()]
lab.table(rows, title="Models handed to each collective")

# %% [markdown] sections="10.7.2"
# ZeRO 3 calls a reduce-scatter in each microbatch, and where no weight stays whole, it gathers twice in each: 4 x (1 + 2)/2 = 6. With small weights kept whole until the update it would gather once in all: (4 + 1)/2 = 2.5.
#
# ### Exercise 3. From its bytes
#
# A colleague swears that the job runs with ZeRO 2. You have only the bytes that a step has handed over on a rank (`{"all_reduce": bytes, ...}`), the number of parameters, and the number of microbatches, two or more. It is DeepSpeed by default, in bf16, so a gradient has 2 bytes. Which stage ran, 0 to 3? Engines pad, and reduce a few bytes of norms, so compare roughly.


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
# What happens if the configuration has a mistake? Three of its numbers belong together, because batch = microbatch x accumulation steps x ranks; give two, and DeepSpeed works out the third:

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
# | `reduce_scatter` | true if you say nothing. In stages 1 and 2 it calls no reduce-scatter, but lets the next field choose; in stage 3 it does. false: an all-reduce, in all three |
# | `use_multi_rank_bucket_allreduce` | true if you say nothing: an all-reduce per bucket, as above; false: each part goes to its owner alone |
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
# Now two typos. Inside `zero_optimization` we write `reduce_bucket`, without `_size`; in another file, at the top, `zero_optimisation`, with an s. Does DeepSpeed refuse the second, or which stage does it run?

# %%
typo = lab.guess("with zero_optimisation, the stage is", choices=("refused", "0", "2"))


# %%
rest = {name: file[name] for name in file if name != "zero_optimization"}
files = {
    "as above": file,
    "typo inside": file | {"zero_optimization": zero | {"reduce_bucket": 2e8}},
    "typo at the top": rest | {"zero_optimisation": zero},
}

# %%
readings = lab.launch(config_run.read, files, ranks=4)[0]
typo.score(readings[2]["stage"])

# %%
lab.table(readings)

# %% [markdown] sections="D-train, 8.5.2, S5"
# `config_run.read` has handed each file to DeepSpeed's own `DeepSpeedConfig`. Inside `zero_optimization` an unknown field raises an error; at the top level it is ignored. So print `engine.zero_optimization_stage()` in every job.
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
# Without GPUs, put `DS_ACCELERATOR=cpu` in front. Build a model that fits on no rank under `with deepspeed.zero.Init():`. Call `engine.save_checkpoint(folder)` on *all* ranks, because each saves its own part.
#
# A Hugging Face Trainer takes the same file as `deepspeed=`, with "auto" for the three numbers of the batch and for `enabled`: it fills in its own.
#
# </details>

# %% [markdown]
# ### Exercise 4. A configuration that changes nothing
#
# Write DeepSpeed's configuration for ZeRO 3 in fp32, so that training ends with the weights of torch's AdamW in one process. Use the given batch and microbatch, and turn off whatever DeepSpeed does unasked.


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
# And if we can rent only *one* card? Then no stage helps. But the update touches each state only once a step, so the optimizer can live and update in [host memory](GLOSSARY.md#host-memory). In this [offload](GLOSSARY.md#offload) the optimizer gets the host's copy of the weights, and two loops cross the link:


# %%
from labkit.devices import pretend


def on_host(num_steps):
    net, tokens, targets = story()
    # new: a copy on the host
    kept = {weight: weight.detach().cpu() for weight in net.parameters()}
    optimizer = torch.optim.AdamW(kept.values(), lr=0.01)
    losses = []
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
    return losses, net, optimizer, pretend.copied()


# %% [markdown]
# A [pretend device](GLOSSARY.md#pretend-device) counts its memory and its copies:


# %%
def weighed(program):
    losses, net, optimizer, *copied = program(3)
    told = {"program": program.__name__, "loss": f"{losses[-1]:.5f}"}
    told["device_memory_bytes"] = torch.accelerator.memory_allocated()
    for copies in copied:
        told |= {"down_bytes": copies.to_host_bytes, "up_bytes": copies.to_device_bytes}
    return told


# %%
on_one = {"ranks": 1, "devices": lab.pretend()}
lab.table(lab.launch(weighed, each, **on_one)[0] for each in (zero0, on_host))

# %% [markdown]
# The same loss (of one rank's data) with half of the memory, because momentum and variance are gone from the device. What does that cost the 7 B model, with DeepSpeed's `offload_optimizer`, in a step of 2,048 tokens?
#
# | what | per parameter | at |
# | --- | --- | --- |
# | forward and backward, on the card | 6 × 2,048 operations | 150 TFLOP/s |
# | gradients down, during the backward | 4 bytes, in fp32 | 25 GB/s (PCIe 4) |
# | weights up, during the update | 2 bytes | 25 GB/s |
# | the update, on the host | 30 bytes | 100 GB/s |
#
# If computing, link and host overlap within a phase, how many times as long as computing alone is the step?

# %%
slower = lab.guess("a step with offload, in times of computing alone", between=(1, 20))

# %%
# DeepSpeed offloads under a stage only, so even one card names one
offload = stages.Offload(mode="zero2", model="7B", ranks=1)
phases = offload.predict().phases
computing_us = sum(phase.device_us for phase in phases)
slower.score(sum(phase.hidden_us for phase in phases) / computing_us)

# %%
offload.board()

# %% [markdown] sections="8.5.3"
# By DeepSpeed's rules 14 GB instead of 112 would lie on the card: the weights alone, in 16 bits, because it sends each gradient down as it arises. But in the backward the card waits for the link, and in the update for the host. From 6,000 tokens on, the backward's transfer is hidden, and the update becomes a smaller share. Offload if there is no other way to fit.
#
# <details><summary>Where do the 30 bytes come from?</summary>
#
# The update reads 16 bytes of the host's memory for each parameter (gradient, copy, momentum and variance) and writes 14 (the last three, and the 16-bit parameter). For 7 billion parameters this is 210 GB, or 2.1 s at 100 GB/s.
#
# </details>

# %% [markdown]
# ## Summary
#
# - With Adam in 16 bit a rank holds 16 bytes per parameter, or 4 + 12/N, 2 + 14/N, 16/N under stages 1, 2, 3.
# - Stages 1 and 2 send what data parallelism sends, stage 3 1.5 times as much; with accumulation stage 2 reduces in every microbatch, and stage 3 does everything in each. A library may send more, or less.
# - Stage 3 frees a layer's bytes after the forward, so it has to gather them again for the backward.
# - DeepSpeed (0.19) clips gradients at 1 unless you turn it off.
# - The optional end: at the top level a misspelt field is ignored. Offload saves device memory, and pays with bytes over the link and an update on the CPU.
#
# **Words**: [model states](GLOSSARY.md#model-states), [shard](GLOSSARY.md#shard), [ZeRO stage](GLOSSARY.md#zero-stage), [owner](GLOSSARY.md#owner), [reduce-scatter](GLOSSARY.md#reduce-scatter), [all-gather](GLOSSARY.md#all-gather), [payload](GLOSSARY.md#payload), [prefetch](GLOSSARY.md#prefetch), [offload](GLOSSARY.md#offload).
#
# **Next**: chapter 07 does the same with torch's own FSDP, and watches a step's memory.

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
# The source's script does this between `backward` and `optimizer.step()` of a plain model. It averages one number, for the log at best, and each rank goes on alone, without any error. Run it: with `all_reduce(loss.detach())` instead of the loop in `zero0`, the second losses of two ranks are those of two models.
#
# </details>
#
# <details><summary>Erratum 10.2.5: stage 2 "collects whole gradients during the backward"</summary>
#
# Nobody collects. Each rank makes a whole gradient of its own data, one weight at a time, and gives most of it away. The hook in `zero2` is all there is; the bars below it count the most that is alive.
#
# </details>
#
# <details><summary>Erratum 8.5.1: "stage 1 sends 1 time, stage 2 1.5 times, stage 3 2 times"</summary>
#
# The method needs 1, 1 and 1.5, as our ring measures. Run it: `sent["ZeRO 2"] / sent["ZeRO 0"]` gives 1.0.
#
# </details>
#
# <details><summary>Erratum 8.5.2: a batch of 32 with 4 accumulation steps, and a Trainer with 8 per GPU</summary>
#
# On 4 ranks the file asks for a microbatch of **2** (the row "as above"). The source hands it to a Trainer that has 8, but 8 x 4 x 4 is 128; with 8, the accumulation must be 1. Run it: `lab.launch(config_run.read, {"8": file | {"train_micro_batch_size_per_gpu": 8}}, ranks=4)[0]` is refused.
#
# </details>
#
# <details><summary>Erratum D-train: "train_batch_size": "auto"</summary>
#
# "auto" is meant for the Hugging Face Trainer, which writes the numbers in before DeepSpeed reads them. DeepSpeed alone divides a word by a number. Run it: `lab.launch(config_run.read, {"auto": file | {"train_batch_size": "auto"}})[0]` shows the TypeError.
#
# </details>
#
# <details><summary>Erratum S5: <code>activation_checkpointing</code> with <code>enabled</code> and <code>checkpoints_per_rank</code></summary>
#
# DeepSpeed has neither of these fields, and says nothing about them, so the file changes nothing. Run it: `lab.launch(config_run.read, {"more": file | {"activation_checkpointing": {"enabled": True}}}, ranks=4)[0]` is read like the row "as above".
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
# **Further reading**: Rajbhandari et al., *ZeRO* ([2020](https://arxiv.org/abs/1910.02054)); Ren et al., *ZeRO-Offload* ([2021](https://arxiv.org/abs/2101.06840)); [DeepSpeed in the Trainer](https://huggingface.co/docs/transformers/deepspeed).

# %%
check.status()
