# ---
# jupyter:
#   labkit:
#     sections: ["8.2.1", "8.2.2", "8.2.3", "8.2.4"]
#     needs: ["two CPU cores"]
#     minutes: 90
# ---

# %% [markdown]
# # Accelerate
#
# *An hour and a half, and an hour for the exercises. You need chapters 00, 02 and 03. No GPU is needed.*
#
# Our training script works on one card. We change a few lines for Hugging Face Accelerate, start the same file on four ranks, and it runs to its end without an error. But the loss ends at 4.9 instead of 3.5. Accelerate promises one file for one card, many cards, FSDP and DeepSpeed, and it keeps that promise. So what has changed, and how could we have known before the first step? This is the loop:
#
# ```python
# for tokens, targets in loader:
#     with accelerator.accumulate(net):
#         loss = f(net(tokens), targets)
#         accelerator.backward(loss)
#         if accelerator.sync_gradients:
#             accelerator.clip_grad_norm_(net.parameters(), 0.5)
#         optimizer.step()
#         optimizer.zero_grad()
# ```

# %%
import tempfile
from pathlib import Path
import labkit as lab
import torch
import yaml
from torch.utils.data import DataLoader, Subset, TensorDataset
from labkit import accelerate as ours, model
from labkit.accelerate import check
from labkit.measure import traffic

lab.begin("en")
ours.Update(engine="ddp", accumulation=2).board()

# %% [markdown]
# This is one update of the loop: a row for each of its five calls, a column for each batch. `accumulate` adds up the gradients of two batches before the weights change, which is called [gradient accumulation](GLOSSARY.md#gradient-accumulation). `sync_gradients` is True in the last of them, and until then Accelerate makes `step` and `zero_grad` do nothing. A white box does nothing; a coloured one says which [collectives](GLOSSARY.md#collective) its line calls, here one for each bucket of gradients.
#
# The *engine* does the work under Accelerate. Set it from DDP to DeepSpeed (chapter 06). Which line changes the weights now?
#
# <details><summary>Answer</summary>
#
# The thick edge moves to `accelerator.backward(loss)`: DeepSpeed makes the whole update there, and `optimizer.step()` does nothing.
#
# </details>
#
# **When you are done** you can
#
# - turn a plain loop into one that trains the same model under every engine;
# - say what each of Accelerate's calls did to your objects;
# - find out before the first step which engine, ranks, precision and batch a run has.

# %% [markdown] sections="8.2.1"
# ## From one process to two
#
# What changes when a loop gets a second rank? We begin with one process: a small model, its optimizer, 64 passages of our story, and a loop that goes through them once, an *epoch*.


# %%
def setup():
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
    return net, optimizer, TensorDataset(*model.story_tokens(64, 32))


# %%
def alone(batch_size):
    net, optimizer, data = setup()
    for tokens, targets in DataLoader(data, batch_size):
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": net.state_dict()}


# %% [markdown]
# `final_loss` is the loss that trained weights have on all 64 passages:


# %%
def final_loss(weights):
    net, _, data = setup()
    net.load_state_dict(weights)
    tokens, targets = data.tensors
    return model.loss(net(tokens), targets).item()


# %%
one = lab.launch(alone, 8, ranks=1)[0]["weights"]
round(final_loss(one), 2)

# %% [markdown]
# That is the 3.5 of the opening. For several [ranks](GLOSSARY.md#rank) chapter 03 wrapped the model in [DDP](GLOSSARY.md#ddp), dealt out the samples, and took the wrapper off in the end. Here `prepare` does the first two and moves everything to the rank's GPU, and `unwrap_model` does the third. `accelerator.backward(loss)` replaces `loss.backward()`. `ours.accelerator()` is `Accelerator()` with the [pretend device](GLOSSARY.md#pretend-device) that labkit lends to a rank without a GPU.


# %%
def by_accelerate(batch_size):
    accelerator = ours.accelerator()
    net, optimizer, data = setup()
    loader = DataLoader(data, batch_size)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for tokens, targets in loader:
        loss = model.loss(net(tokens), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    weights = accelerator.unwrap_model(net).state_dict()
    return {"weights": weights, "updates": len(loader)}


# %% [markdown]
# One process with a batch size of 8 makes 8 updates. Two ranks run this loop with the same batch size. How many updates does their epoch have? (*apart* will be the largest difference of a weight from one process.)

# %%
updates = lab.guess("updates of two ranks, batch size 8", between=(1, 16))

# %%
runs = {
    "batch size 8": lab.launch(by_accelerate, 8)[0],
    "batch size 4": lab.launch(by_accelerate, 4)[0],
}

# %%
rows = ours.beside(runs, {"weights": one}, loss=final_loss)
lab.show(lab.table(rows, heads=("start", "updates", "apart", "loss")))
updates.score(rows[0]["updates"])

# %% [markdown]
# <details><summary>Why</summary>
#
# A batch size is *each rank's own*. With 8, two ranks take 16 passages per update, so there are half as many updates, and the loss is higher. With 4 the model is that of one process, but for rounding: 2.38e-07 is 2⁻²², the last bit of a weight between 2 and 4. Adam's usual `eps` would magnify rounding to 0.0003, so ours is larger.
#
# </details>

# %% [markdown] sections="8.2.1"
# ## A script and a command
#
# In real life the loop stands in a script, and a command starts it:

# %%
TRAIN = """
import sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from labkit import model

accelerator = Accelerator()
print(accelerator.state)
torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
loader = DataLoader(TensorDataset(*model.story_tokens(64, 32)), int(sys.argv[1]))
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for tokens, targets in loader:
    with accelerator.accumulate(net):
        loss = model.loss(net(tokens), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
"""

# %%
folder = Path(tempfile.mkdtemp())
script = folder / "train.py"
_ = script.write_text(TRAIN)

# %% [markdown]
# `accumulate` adds up as many batches as `Accelerator(gradient_accumulation_steps=...)` or the variable `ACCELERATE_GRADIENT_ACCUMULATION_STEPS` says, else one, and `clip_grad_norm_` shortens a gradient that is longer than 0.5.

# %% [markdown] sections="8.2.3"
# ### The configuration file
#
# The command `accelerate launch` reads the engine and the number of ranks from a file, which `accelerate config` writes from your answers. In it `MULTI_GPU` is DDP, and `num_processes` counts the processes of all machines. Here is one:

# %%
fp32 = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "num_machines": 1,
    "num_processes": 2,
    "mixed_precision": "no",
}
print(yaml.safe_dump(fp32, sort_keys=False))

# %% [markdown]
# <details><summary>Its quotes and other keys</summary>
#
# Keep the quotes around `'no'`: without them it means False in YAML, and the command stops with an error. labkit writes the file as JSON, which is YAML too. For several machines there are `machine_rank`, `main_process_ip`, `main_process_port`, `rdzv_backend` and `same_network`; `gpu_ids` picks GPUs, and `downcast_bf16` is for TPUs.
#
# </details>
#
# Now the command starts the script on two ranks. Rank 1 prints its `accelerator.state`:

# %%
started = lab.launch_script(script, "4", using="accelerate", config=fp32)
print(started.logs[1])

# %% [markdown]
# `MULTI_CPU` is DDP without a real GPU.

# %% [markdown] sections="8.2.1, 8.2.2"
# ## One file, six ways
#
# Do other engines train the same model? The script stays, and each engine gets a file. FSDP, fully sharded data parallel (chapter 07), leaves each rank a part of every weight, and gathers one layer at a time, so its file names the class of our layers, `Block`. DeepSpeed's `zero_stage: 2` splits gradients and the optimizer's state among the ranks.

# %%
bf16 = {**fp32, "mixed_precision": "bf16"}
wrapping = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
    "fsdp_cpu_ram_efficient_loading": False,  # every rank builds the model
}
fsdp = {**fp32, "distributed_type": "FSDP", "fsdp_config": wrapping}
zero = {"zero_stage": 2, "gradient_clipping": 0.5}
deepspeed = {**fp32, "distributed_type": "DEEPSPEED", "deepspeed_config": zero}

# %% [markdown]
# `accelerate launch` passes the engine on in these environment variables; others carry the rank and the number of ranks:

# %%
ours.environment(deepspeed)

# %% [markdown]
# So `start(script, ranks, batch size, config=...)` does the same in the notebook, on labkit's pretend devices, and returns the weights.
#
# In all six starts an update takes 8 passages:

# %%
start = ours.start_script
accumulated = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}
ways = {
    "one process": start(script, 1, "8"),
    "four ranks": start(script, 4, "2"),
    "accumulation": start(script, 2, "2", variables=accumulated),
    "bf16": start(script, 2, "4", config=bf16),
    "DeepSpeed": start(script, 2, "4", config=deepspeed),
    "FSDP": start(script, 2, "4", config=fsdp),
}

# %%
rows = ours.beside(ways, ways["one process"], loss=final_loss)
lab.table(rows, heads=("start", "type", "model", "updates", "apart", "loss"))

# %% [markdown]
# So on these devices the promise is kept: all train the model of one process, [FSDP](GLOSSARY.md#fsdp) too, but for rounding: in fp32 to within 1e-4, in bf16, which has fewer digits, to 0.003.

# %% [markdown] sections="8.2.2"
# ### What the promise does not cover
#
# What can still go wrong? Each of these starts differs from what its author meant:
#
# 1. four ranks, and still a batch size of 8;
# 2. DeepSpeed with a wrong key: `gradient_clip`, not `gradient_clipping`;
# 3. two ranks without GPUs (`gpus=False` takes the pretend device away);
# 4. the same, told to use CPUs, but with a file that asks for FSDP.
#
# How many still end with the right weights?

# %%
right = lab.guess("how many of the four end with the right weights", between=(0, 4))

# %%
misspelt = {**deepspeed, "deepspeed_config": {"zero_stage": 2, "gradient_clip": 0.5}}
on_cpu = {"ACCELERATE_USE_CPU": "true"}
traps = {
    "batch size 8 on four ranks": start(script, 4, "8"),
    "a wrong key": start(script, 2, "4", config=misspelt),
    "no GPU, and not told": start(script, 2, "4", config=fp32, gpus=False),
    "FSDP without GPUs": start(
        script, 2, "4", config=fsdp, variables=on_cpu, gpus=False
    ),
}

# %%
rows = ours.beside(traps, ways["one process"], loss=final_loss)
columns = ("start", "type", "processes", "updates", "apart", "loss")
lab.show(lab.table(rows, heads=columns))
right.score(sum(row["apart"] < 1e-4 for row in rows))

# %% [markdown]
# None ends with an error, and only the first has a loss that one would notice. What happened:
#
# 1. This is the 4.9 of the opening: an update takes 32 passages, so there are a quarter of the updates.
# 2. An unknown key in `deepspeed_config` is ignored, so DeepSpeed clips at another length.
# 3. No rank finds a GPU, so each trains alone, 16 updates of 4 passages. The variable `ACCELERATE_USE_CPU=true` cures that.
# 4. The file's FSDP is ignored: plain DDP, and no memory saved.
#
# <details><summary>Training on CPUs: which switch works</summary>
#
# The variable does, and labkit put it in front of the command above. `use_cpu: true` in the file does not reach the ranks, and the flag `--cpu` starts a single process.
#
# </details>

# %% [markdown] sections="8.2.2"
# ## What prepare does to loader and schedule
#
# How do we cure the first start? `prepare` deals batches to the ranks in turn. Take the samples 0 to 9, four ranks, and batches of 2. All ranks take equally many steps, so the first samples fill the gap at the end. Draw it on paper, a row for each rank and a column for each step. How many numbers do you write?

# %%
samples = lab.guess("samples of an epoch, all four ranks", between=(0, 40))

# %%
from accelerate import DataLoaderConfiguration


def deal(num_samples, batch_size, split=False):
    config = DataLoaderConfiguration(split_batches=split)
    accelerator = ours.accelerator(dataloader_config=config)
    loader = accelerator.prepare(DataLoader(range(num_samples), batch_size))
    return [batch.tolist() for batch in loader]


# %%
dealt = lab.launch(deal, 10, 2, ranks=4)
lab.show(ours.draw_deal({"batches of 2": dealt}))
samples.score(sum(len(batch) for batches in dealt for batch in batches))

# %% [markdown]
# With `split_batches=True` the batch size counts for all ranks together, and must be a multiple of their number. Here are 32 samples and a batch size of 8; a step is an update:

# %%
eight = {
    "8 for each rank": lab.launch(deal, 32, 8, ranks=4),
    "split_batches=True": lab.launch(deal, 32, 8, True, ranks=4),
}
lab.show(ours.draw_deal(eight))

# %% [markdown]
# One update of 32 becomes four of 8. Does that cure the first start?

# %%
SPLIT = "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))"
cured = folder / "cured.py"
_ = cured.write_text(
    "from accelerate import DataLoaderConfiguration\n"
    + TRAIN.replace("Accelerator()", SPLIT)
)

# %%
name = "batch size 8 on four ranks"
again = {name: traps[name], "split_batches=True": start(cured, 4, "8")}
rows = ours.beside(again, ways["one process"], loss=final_loss)
lab.table(rows, heads=("start", "updates", "apart", "loss"))

# %% [markdown] sections="8.2.2"
# ### The learning rate's schedule
#
# The updates are cured. Had we cured them by a batch size of 2 instead, would the learning rate be right as well? Let it fall from 1 to 0 in 8 steps. After two updates it is 0.75 in one process. And on four ranks?

# %%
rate = lab.guess("learning rate of four ranks after two updates", between=(0, 2))


# %%
def rates():
    accelerator = ours.accelerator()
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8)
    optimizer, falling = accelerator.prepare(optimizer, falling)
    seen = {0: falling.get_last_lr()[0]}
    for update in range(1, 9):
        optimizer.step()
        falling.step()
        seen[update] = falling.get_last_lr()[0]
    return seen


# %%
four_rates = lab.launch(rates, ranks=4)[0]
rate.score(four_rates[2])

# %%
lab.curves(
    predicted={"one process": {update: 1 - update / 8 for update in range(9)}},
    measured={"four ranks": four_rates},
    x="number of updates",
    y="learning rate",
    title="A schedule of 8 steps",
    joined=True,
)

# %% [markdown]
# Each `falling.step()` takes four steps, one for each rank, because Accelerate assumes that you wrote the schedule for one process. So its length for an epoch is `len(loader) * accelerator.num_processes`, counted after `prepare`. With `split_batches` a call takes one step, and the length is `len(loader)`.
#
# <details><summary>Before prepare, and with accumulation</summary>
#
# `len(loader)` *before* `prepare` is the number as well, unless the loader is filled up: ten samples in batches of 2 are 5 batches, and four ranks take 2 × 4 = 8 steps.
#
# With accumulation an epoch has `math.ceil(len(loader) / accelerator.gradient_accumulation_steps)` updates; take that for `len(loader)`. Call `scheduler.step()` behind `optimizer.step()` inside `accumulate`; it, too, acts only in the last batch of an update.
#
# </details>

# %% [markdown] sections="8.2.4"
# ## Backward, accumulate, clip, step
#
# Here is the first picture under FSDP, predicted and measured:

# %%
ours.Update(engine="fsdp", accumulation=2).compare()

# %% [markdown]
# FSDP has cut the weights of the picture's larger model, so each rank holds half. The forward gathers them in 3 calls: two blocks, and the rest, which stays gathered until its backward is done. So the backward gathers only the blocks again. The gradients are reduced in the last batch alone, so until then each rank holds the gradient of the *whole* model. Clipping adds an all-reduce, because no rank has the whole norm.

# %% [markdown] sections="8.2.2, 8.2.4"
# ### What accelerator.backward adds
#
# Two ranks, `gradient_accumulation_steps=4`, and a model of one weight whose gradient is 1. We call the backward in two ways. What is different, the collectives or the gradient?


# %%
def two_backwards():
    accelerator = ours.accelerator(accumulation=4)
    net = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
    rows = []
    for backward in (torch.Tensor.backward, accelerator.backward):
        net.zero_grad()
        loss = net(torch.ones(1, 1)).mean()
        with traffic.count() as counted:
            backward(loss)
        grad = net.module.weight.grad.item()
        rows.append({"call": backward.__qualname__, "gradient": grad, **counted.calls})
    return rows


# %%
lab.table(lab.launch(two_backwards)[0])

# %% [markdown] sections="8.2.2, 8.2.4"
# `accelerator.backward` divides by `gradient_accumulation_steps`, so that the sum of four is a mean. DeepSpeed's engine does that itself, and in the last batch `accelerator.backward` makes its whole update. So a loop for every engine calls it.
#
# ### Clip once, and where DeepSpeed looks
#
# What if we clip without `if accelerator.sync_gradients`, or under DeepSpeed? We make one update of two batches with SGD and learning rate 1, so that the weights move by exactly the gradient. Ten times the loss makes it long enough.


# %%
def clipped(engine, guard=True, configured=None):
    accelerator = ours.accelerator(engine, accumulation=2, max_norm=configured)
    net, _, data = setup()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    loader = DataLoader(Subset(data, range(8)), 2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for tokens, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(10 * model.loss(net(tokens), targets))
            if accelerator.sync_gradients or not guard:
                accelerator.clip_grad_norm_(net.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.get_state_dict(net)


# %% [markdown]
# All four scripts ask for 0.01. How long is DeepSpeed's move where its configuration has no limit?

# %%
length = lab.guess("length of DeepSpeed's move", between=(0, 10))

# %%
clips = {
    "DDP": lab.launch(clipped, "ddp")[0],
    "DDP without the if": lab.launch(clipped, "ddp", guard=False)[0],
    "DeepSpeed": lab.launch(clipped, "zero2")[0],
    "DeepSpeed configured": lab.launch(clipped, "zero2", configured=0.01)[0],
}

# %%
moves = ours.moved(setup()[0].state_dict(), clips)
lab.show(lab.table(moves))
length.score(moves[2]["length"])

# %% [markdown]
# `degrees` is the angle to the first row's move. Without the `if`, each rank clips its first batch's gradient to 0.01, adds the second's at full length, and clips again. So the first batch hardly counts.
#
# By the time the script clips, DeepSpeed's `backward` has already changed the weights: the thick edge of the first picture. So DeepSpeed clips by its own configuration. Write the limit in both places, as our script and `zero` do. That cures the second start.
#
# <details><summary>Why this length</summary>
#
# Where the configuration has no limit, Accelerate writes 1 into it.
#
# </details>

# %% [markdown] sections="8.2.4"
# ### Exercise 1. Accumulate, clip, and the rest
#
# At the end of the loader `accumulate` makes an update of the batches that are left, but `backward` divides by `gradient_accumulation_steps` all the same. Of 6 batches with a gradient of 1, accumulated by 4, the first update has the gradient 4/4, the second 2/4. Write the loop that mends it. All objects are prepared, and `len(loader)` counts the batches of this rank.
#
# - Make one update per `accelerator.gradient_accumulation_steps` batches (it may be 1), and one of those that are left.
# - Its gradient is that of the mean over all its batches and all ranks, clipped to `max_norm`.
# - The check runs DDP with one bucket, and allows one all-reduce per update.
#
# <details><summary>Two other ways out</summary>
#
# Make the number of batches a multiple of the accumulation steps. Or let the accumulation run on into the next epoch, by `GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)`; then what is left of the very last epoch makes no update.
#
# </details>


# %%
def my_training(accelerator, net, optimizer, loader, max_norm):
    """Trains one epoch; the loss is model.loss(net(tokens), targets)."""
    ### BEGIN SOLUTION
    steps = accelerator.gradient_accumulation_steps
    for index, (tokens, targets) in enumerate(loader):
        first = index - index % steps
        in_this_update = min(steps, len(loader) - first)
        with accelerator.accumulate(net):
            loss = model.loss(net(tokens), targets)
            accelerator.backward(loss * steps / in_this_update)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    ### END SOLUTION


# %%
check.accumulate_and_clip(my_training)

# %%
check.hint("accumulate_and_clip")

# %% [markdown] sections="8.2.2"
# ## Ten seconds before the start
#
# How could we have known? Ask the objects before the first batch. *clips at* is DeepSpeed's own limit, 1 if the configuration has none.


# %%
def preflight(accelerator, loader):
    deepspeed = accelerator.state.deepspeed_plugin
    return {
        "type": accelerator.distributed_type.value,
        "ranks": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "batch": loader.total_batch_size * accelerator.gradient_accumulation_steps,
        "clips at": deepspeed and deepspeed.deepspeed_config["gradient_clipping"],
    }


# %%
def prepared(engine, batch_size, precision="no"):
    accelerator = ours.accelerator(engine, precision=precision)
    net, optimizer, data = setup()
    loader = DataLoader(data, batch_size)
    return accelerator, *accelerator.prepare(net, optimizer, loader)


def look(engine, batch_size):
    accelerator, net, optimizer, loader = prepared(engine, batch_size)
    return preflight(accelerator, loader)


# %% [markdown]
# We look at two of the four starts; a wrong key is like no key:

# %%
checks = {
    "batch size 8 on four ranks": lab.launch(look, "ddp", 8, ranks=4)[0],
    "no key": lab.launch(look, "zero2", 4)[0],
}
lab.table({"start": name, **found} for name, found in checks.items())

# %% [markdown]
# The first has 32 passages per update where we want 8, and the second clips at 1 where we want 0.5. *type* and *ranks* would give the others away: NO and 1 in the third, MULTI_CPU in the fourth. So the 4.9 shows before the first step, and our story ends.

# %% [markdown]
# ## Three more calls that a script needs
#
# A script also logs, saves, and goes on after a stop. *All* ranks make these calls.

# %% [markdown] sections="8.2.4"
# ### Gather, and the main process
#
# A log line usually stands under `if accelerator.is_main_process`. But whose loss does it print? `gather(x)` gives every rank the numbers of all ranks, `reduce(x, "mean")` their mean, and `reduce(x)` their *sum*. Tensors lie on `accelerator.device`. Here each rank has one passage, and the trained model:


# %%
def report(weights):
    accelerator = ours.accelerator()
    net, _, _ = setup()
    net.load_state_dict(weights)
    net = accelerator.prepare(net)
    passage = model.story_tokens(1, 32, seed=accelerator.process_index)
    tokens, targets = (each.to(accelerator.device) for each in passage)
    loss = model.loss(net(tokens), targets).detach()
    every = [round(each, 2) for each in accelerator.gather(loss).tolist()]
    mean = accelerator.reduce(loss, "mean").item()
    accelerator.print(f"mean {mean:.2f}")
    return {"mine": loss.item(), "gathered": every, "reduced": mean}


# %%
lab.launch(report, one, ranks=4)

# %% [markdown]
# `mine` of rank 0 is 3.54, and the mean is 3.2. So gather on all ranks, and print on one, as `accelerator.print` does. A `gather` under the `if` waits, under NCCL for 10 minutes by default, or meets another collective of the other ranks.

# %% [markdown] sections="8.2.4"
# ### Exercise 2. An exact accuracy in one message
#
# Four ranks collect our ten samples, batch by batch, in two ways:


# %%
def collected():
    accelerator = ours.accelerator()
    loader = accelerator.prepare(DataLoader(range(10), batch_size=2))
    everything, metrics = [], []
    for batch in loader:
        everything += accelerator.gather(batch).tolist()
        metrics += accelerator.gather_for_metrics(batch).tolist()
    return {"gather": everything, "gather_for_metrics": metrics}


# %%
lab.launch(collected, ranks=4)[0]

# %% [markdown]
# If a classifier gets only the first six right, `gather` counts 12 of 16: 75 % instead of 60 %. `gather_for_metrics` drops what was filled up, but it sends a message in every batch. You may use one collective in all.
#
# `net` maps inputs to one score per class, and the prepared loader gives (inputs, labels), unshuffled; the last batch, too, is full, because it is filled up. Return the share of samples whose highest score is their label, as the same number on every rank. Each sample of `loader.dataset` counts once.


# %%
def my_accuracy(accelerator, net, loader):
    """The share of samples that net gets right, as a float."""
    ### BEGIN SOLUTION
    num_samples = len(loader.dataset)
    hits = torch.zeros((), device=accelerator.device)
    for number, (inputs, labels) in enumerate(loader):
        dealt = number * accelerator.num_processes + accelerator.process_index
        real = num_samples - dealt * len(labels)  # of this batch; the rest is filled up
        right = net(inputs).argmax(-1) == labels
        hits += right[: max(0, real)].sum()
    return accelerator.reduce(hits).item() / num_samples
    ### END SOLUTION


# %%
check.exact_accuracy(my_accuracy)

# %%
check.hint("exact_accuracy")

# %% [markdown] sections="8.2.2"
# ### Saving
#
# You want a file with whole weights. Which rank has them? We count the numbers that `unwrap_model` and `get_state_dict` give under `mixed_precision="bf16"`. `zero3` is DeepSpeed that splits the weights, too.


# %%
def held(engine):
    accelerator, net, _, _ = prepared(engine, 2, "bf16")
    mine = accelerator.unwrap_model(net).state_dict()
    whole = accelerator.get_state_dict(net) or {}
    types = {str(weight.dtype) for weight in whole.values()}
    return {
        "unwrap_model": ours.numel(mine),
        "get_state_dict": ours.numel(whole),
        "type": ", ".join(types),
    }


# %% [markdown]
# The model has 42,880 numbers. How many of them does `unwrap_model` give to rank 1 of two under ZeRO 3?

# %%
own = lab.guess("numbers of unwrap_model on rank 1, ZeRO 3", between=(0, 42_880))

# %%
found = {engine: lab.launch(held, engine) for engine in ("ddp", "fsdp", "zero3")}

# %%
rows = [
    {"engine": engine, "rank": rank, **run[rank]}
    for engine, run in found.items()
    for rank in (0, 1)
]
lab.show(lab.table(rows))
own.score(found["zero3"][1]["unwrap_model"])

# %% [markdown]
# <details><summary>Why, and three kinds of bf16</summary>
#
# DeepSpeed keeps a rank's part in a tensor of its own, and leaves the model's weights empty between two uses.
#
# "bf16" is three kinds of [mixed precision](GLOSSARY.md#mixed-precision): DDP keeps fp32 weights and computes in bf16, FSDP also gathers in bf16, and DeepSpeed holds bf16 weights, with an fp32 copy in its optimizer.
#
# Without the key below ZeRO 3 raises its error in `get_state_dict`, when the training is over. So call it once before the first step.
#
# </details>
#
# Under FSDP and ZeRO 3 only rank 0 gets the whole weights from `get_state_dict`. ZeRO 3's are bf16 here, and it raises an error if its file lacks `zero3_save_16bit_model: true`. With that key, for every engine:
#
# ```python
# weights = accelerator.get_state_dict(net)  # on all ranks: it gathers
# accelerator.save(weights, path)  # writes on the main process only
# accelerator.wait_for_everyone()  # before another rank reads the file
# ```

# %% [markdown] sections="8.2.2"
# ### Exercise 3. One loop for every engine
#
# This loop trains the right model on one process and under DDP. For FSDP or DeepSpeed it is wrong. Before you change a line, say which engine it breaks, and how.


# %%
def ddp_epoch(accelerator, net, optimizer, loader):
    net, loader = accelerator.prepare(net, loader)
    for tokens, targets in loader:
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.unwrap_model(net).state_dict()


# %% [markdown]
# The objects are plain. Your loop must work on every engine, and return on the main process the whole weights under the names of the bare model. The check tries one process, DDP, FSDP and ZeRO 2.


# %%
def my_epoch(accelerator, net, optimizer, loader):
    """Trains one epoch; returns the whole weights on the main process."""
    ### BEGIN SOLUTION
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for tokens, targets in loader:
        accelerator.backward(model.loss(net(tokens), targets))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(net)
    ### END SOLUTION


# %%
check.one_epoch(my_epoch)

# %%
check.hint("one_epoch")

# %% [markdown]
# <details><summary>What was wrong (look after your try)</summary>
#
# - `prepare` without the optimizer: FSDP and DeepSpeed stop with an error.
# - `loss.backward()`: DeepSpeed changes no weight.
# - `unwrap_model`: FSDP gives only this rank's part of each weight.
#
# </details>

# %% [markdown] sections="8.2.2"
# ### To go on later
#
# Can a run stop, and go on as if it had not? `save_state` saves weights, optimizer, a prepared scheduler, and random generators, and all ranks call it. We train 16 batches, and save after 5 of them. Then new ranks load, and train the 11 others:


# %%
def train(place, first=0):
    accelerator, net, optimizer, loader = prepared("ddp", 2)
    if first:
        accelerator.load_state(place)
    rest = accelerator.skip_first_batches(loader, first)
    for number, (tokens, targets) in enumerate(rest, start=first):
        if number == 5 and not first:
            accelerator.save_state(place)
        accelerator.backward(model.loss(net(tokens), targets))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(net)


# %%
place = str(folder / "checkpoint")
straight = lab.launch(train, place)[0]
resumed = lab.launch(train, place, 5)[0]
lab.difference(resumed, straight)

# %%
sorted(each.name for each in Path(place).iterdir())

# %% [markdown]
# Here, with DDP and an unshuffled loader, not a bit is different. By default `save_state` does not know how far into the loader you were, so `skip_first_batches` went there.
#
# <details><summary>Later epochs, and shuffled loaders</summary>
#
# Use the shortened loader only for the first epoch after you load.
#
# All ranks share one shuffled order, a new one in each epoch. Set torch's seed before `prepare` as the first run did, and the new loader begins with the order of its first epoch. For a later epoch add `DataLoaderConfiguration(use_seedable_sampler=True)`, and call `loader.set_epoch(epoch)` after loading.
#
# </details>

# %% [markdown]
# ## Summary
#
# - The batch size is a rank's own: four times the ranks are a quarter of the updates. Without `split_batches`, a prepared scheduler takes as many steps at a time as there are ranks.
# - `accelerator.backward` makes the gradients of an update a mean; with DeepSpeed it also updates. Clip under `sync_gradients`; DeepSpeed clips by its own configuration.
# - All ranks call `gather` and `get_state_dict`.
# - On a machine without GPUs set `ACCELERATE_USE_CPU=true`, or each rank trains alone. Print `preflight` before the first step.
# - Accelerate is worth it for a script that runs under several engines, or on a laptop and a cluster. Otherwise use the engine itself.
#
# **Words learned**: *engine*, [FSDP](GLOSSARY.md#fsdp), [gradient accumulation](GLOSSARY.md#gradient-accumulation).
#
# **Further reading**: [Accelerate](https://huggingface.co/docs/accelerate) (this chapter ran version 1.15), its pages on [gradient accumulation](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation) and on [performance and batch sizes](https://huggingface.co/docs/accelerate/concept_guides/performance).
#
# **Next**: chapter 05 looks at what bf16 and fp16 do to numbers, and at where the memory of a step goes.

# %% [markdown] sections="8.2.2, 8.2.4"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Four errata</summary>
#
# <details><summary>Erratum 8.2.2: the loop is "identical to a single GPU's"</summary>
#
# The code is, but the batch is not: with the same batch size four ranks make an update of 32 passages and not of 8, as in the first row of the table of four starts.
#
# </details>
#
# <details><summary>Erratum 8.2.2: "<code>accelerator.backward</code> synchronises the gradients"</summary>
#
# Under DDP it does not: DDP's own hooks do, whoever calls the backward. In the table of *What accelerator.backward adds* both rows call one all-reduce.
#
# </details>
#
# <details><summary>Erratum 8.2.4: the loss, printed under <code>if accelerator.is_main_process</code></summary>
#
# That is the loss of rank 0 alone, and not the mean. In the table of *Gather, and the main process* `mine` of rank 0 is not the mean that all ranks agree on.
#
# </details>
#
# <details><summary>Erratum 8.2.2: <code>unwrap_model</code>, and save on every process</summary>
#
# Under FSDP and ZeRO 3 the unwrapped model has only a part of each weight, or nothing. And every process would write the same file at the same time.
#
# </details>
#
# </details>
#
# *Sections 8.2.1, 8.2.2, 8.2.3 and 8.2.4 of the source material.*

# %%
check.status()
