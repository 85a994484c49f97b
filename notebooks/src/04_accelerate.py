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
# *An hour and a half, half an hour more for the optional end. You need chapters 00, 02 and 03. No GPU is needed.*
#
# Our training script works on one card, and its loss ends at 3.5. We change a few lines for Hugging Face Accelerate, start the same file on four ranks, and it runs to its end without an error. But now the loss ends at 4.9. Accelerate promises one file for one card, many cards, FSDP and DeepSpeed, and keeps its promise. So what has changed, and how could we have known before the first update?
#
# Here are 16 samples in batches of 2, in one process and on four ranks:

# %%
import inspect
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
dealt = {
    "one process": lab.launch(ours.deal, 16, 2, ranks=1),
    "four ranks": lab.launch(ours.deal, 16, 2, ranks=4),
}
lab.show(ours.draw_deal(dealt))

# %% [markdown]
# Samples and batch size are the same in both. What is different? The first guess asks for it.
#
# We will meet four runs that differ from what was meant. In the end a few lines stop all four before the first update.
#
# **When you are done** you can write one loop for every engine, say what each of Accelerate's calls did to your objects, and stop a run that isn't what you meant.

# %% [markdown] sections="8.2.1"
# ## From one process to two
#
# What changes when a loop gets a second rank? Here is one process: a small model, its optimizer, 64 passages of our story, and a loop through them, an *epoch*.


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


# %%
def final_loss(weights):  # on all 64 passages
    net, _, data = setup()
    net.load_state_dict(weights)
    tokens, targets = data.tensors
    return model.loss(net(tokens), targets).item()


# %%
one = lab.launch(alone, 8, ranks=1)[0]["weights"]
round(final_loss(one), 2)

# %% [markdown]
# That is the 3.5 of the opening. For several [ranks](GLOSSARY.md#rank) chapter 03 wrapped the model in [DDP](GLOSSARY.md#ddp), dealt out the samples, and took the wrapper off in the end. Here `prepare` does the first two, and `unwrap_model` the third. `accelerator.backward(loss)` replaces `loss.backward()`. `ours.accelerator()` is `Accelerator()` with the [pretend device](GLOSSARY.md#pretend-device) that labkit lends to a rank without a GPU.


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
# One process with a batch size of 8 makes 8 updates. And an epoch of *two* ranks with the same batch size? (*apart* is the largest difference of a weight from one process.)

# %%
updates = lab.guess("updates of two ranks, batch size 8", between=(1, 16))


# %%
def both_sizes():
    return {"batch size 8": by_accelerate(8), "batch size 4": by_accelerate(4)}


# %%
runs = lab.launch(both_sizes)[0]
rows = ours.beside(runs, {"weights": one}, loss=final_loss)
lab.show(lab.table(rows, heads=("start", "updates", "apart", "loss")))
updates.score(rows[0]["updates"])

# %% [markdown]
# <details><summary>Why</summary>
#
# A batch size is *each rank's own*. With a batch size of 8, two ranks take 16 passages per update, so there are half as many updates, and the loss is higher. That is how the opening got its 4.9: on four ranks there are only two updates. With a batch size of 4 the model is that of one process, but for rounding: 2.38e-07 is 2⁻²², the last bit of a weight between 2 and 4.
#
# </details>

# %% [markdown] sections="8.2.1"
# ## A script and a command
#
# In real life a command starts a script. Ours also accumulates and clips:

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
# `accumulate` lets the gradients of several batches add up to a mean before the weights change, which is called [gradient accumulation](GLOSSARY.md#gradient-accumulation). `Accelerator(gradient_accumulation_steps=...)` or a variable of the environment says of how many, else it is one. In the last of them `sync_gradients` is True. `clip_grad_norm_` shortens a gradient that is longer than 0.5.

# %% [markdown] sections="8.2.3"
# ### The configuration file
#
# Which *engine* does the work under Accelerate, and on how many ranks? The command `accelerate launch` reads that from a file, which `accelerate config` writes from your answers. `MULTI_GPU` is DDP, and `num_processes` counts the processes of all machines:

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
# Keep the quotes around `'no'`: without them it means False in YAML, and the command stops with an error. labkit writes the file as JSON, which is YAML too. For several machines there are `machine_rank`, `main_process_ip`, `main_process_port`, `rdzv_backend` and `same_network`; `gpu_ids` picks GPUs, and `downcast_bf16` is for TPUs. A flag such as `--num_processes` wins over the file.
#
# </details>
#
# Now the command starts it on two ranks. Rank 1 prints its `accelerator.state`:

# %%
started = lab.launch_script(script, "4", using="accelerate", config=fp32)
print(started.logs[1])

# %% [markdown]
# The file is the one that GPUs need; `ACCELERATE_USE_CPU=true` turns it into `MULTI_CPU`, DDP without a GPU.

# %% [markdown] sections="8.2.1, 8.2.2"
# ## One file, six ways
#
# Do other engines train the same model? The script stays, and each engine gets a file. [FSDP](GLOSSARY.md#fsdp) (chapter 07) leaves each rank a part of every weight, and gathers one layer at a time, so its file names the layers' class, `Block`. DeepSpeed's `zero_stage: 2` (chapter 06) splits gradients and the optimizer's state among the ranks.

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
# `start(script, ranks, batch size, config=...)` is the command for a notebook: on labkit's pretend devices it sets the same variables of the environment. In all six runs an update takes 8 passages:

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

# %% [markdown] sections="8.2.1, 8.2.2"
# On these devices the promise is kept: all six train the model of one process. In fp32 they differ by 2.4e-07, which is rounding; below, a run is right within 1e-4. (Our `eps` is large, because with AdamW's usual one this rounding grows to 0.0003, and a right run would fail.) bf16 is off by 0.003. Is that rounding, or a mistake? A distance alone doesn't tell, so in the end we check settings.

# %% [markdown] sections="8.2.2"
# ### What the promise does not cover
#
# Here are four more runs; the first is the opening's. Will the others end with the right weights, with wrong ones, or with an error?
#
# 1. Four ranks, and still a batch size of 8.
# 2. DeepSpeed, with `gradient_clip` in its configuration instead of `gradient_clipping`. Is an unknown key refused? And does the script's `clip_grad_norm_` clip?
# 3. Two ranks on a machine without GPUs (`gpus=False` takes the pretend device away). Does Accelerate stop?
# 4. The same machine, told to use CPUs, and a file that asks for FSDP, which needs a GPU for each rank.

# %%
ends = ("right weights", "wrong weights", "an error")
second = lab.guess("2. a wrong key", choices=ends)
third = lab.guess("3. no GPU, and not told", choices=ends)
fourth = lab.guess("4. FSDP without GPUs", choices=ends)

# %%
wrong_key = {"zero_stage": 2, "gradient_clip": 0.5}
misspelt = {**deepspeed, "deepspeed_config": wrong_key}
cpus = {"variables": {"ACCELERATE_USE_CPU": "true"}, "gpus": False}

four = {
    "batch size 8 on four ranks": lambda file: start(file, 4, "8"),
    "a wrong key": lambda file: start(file, 2, "4", config=misspelt),
    "no GPU, and not told": lambda file: start(file, 2, "4", config=fp32, gpus=False),
    "FSDP without GPUs": lambda file: start(file, 2, "4", config=fsdp, **cpus),
}

# %%
traps = {name: run(script) for name, run in four.items()}
rows = ours.beside(traps, ways["one process"], loss=final_loss)
columns = ("start", "type", "processes", "updates", "apart", "loss")
lab.show(lab.table(rows, heads=columns))

# %%
ended = [ends[0] if row["apart"] < 1e-4 else ends[1] for row in rows]
second.score(ended[1])

# %%
third.score(ended[2])

# %%
fourth.score(ended[3])

# %% [markdown]
# None ends with an error, and only the first, with too few updates, has a loss that one would notice. What the others asked for gets lost on its way:
#
# |way|task|lost here|
# |---|---|---|
# |file|says what you want||
# |command|turns what it knows into variables|run 2: `gradient_clip`|
# |environment|brings them to each rank||
# |`Accelerator()`|reads them, looks for devices|run 3: the other rank, without a GPU; run 4: FSDP, on CPUs|
# |engine|trains|run 2: the script's 0.5; DeepSpeed clips by its configuration|
#
# Run 2's environment says nothing of clipping:

# %%
ours.environment(misspelt)

# %% [markdown]
# <details><summary>Unknown keys, lone ranks, and which switch works on CPUs</summary>
#
# At the top level of the file the command refuses an unknown key; in `deepspeed_config` it does not. (`start` reads the file by the command's own code.) In run 3 each rank trains alone, 16 updates of 4 passages. Run 4 is plain DDP, with right weights, and no memory saved.
#
# To train on CPUs set the variable `ACCELERATE_USE_CPU=true`, as labkit did in the command above. `use_cpu: true` in the file does not reach the ranks, and the flag `--cpu` starts a single process.
#
# </details>
#
# First we cure two of them.

# %% [markdown] sections="8.2.2"
# ## What prepare does
#
# Here are the objects of a larger model on rank 0 of two, before `prepare` and after it:

# %%
engines = {"DDP": "ddp", "FSDP": "fsdp", "DeepSpeed": "zero2"}
pairs = {
    name: ours.Update(engine=engine, accumulation=2).compare()
    for name, engine in engines.items()
}

# %%
rows = [{"engine": "before prepare", **pairs["DDP"].run[0]["before"]}]
rows += [{"engine": name, **pair.run[0]["after"]} for name, pair in pairs.items()]
columns = ("engine", "model", "optimizer", "batches", "weights")
lab.table(rows, heads=columns)

# %% [markdown]
# Model and optimizer get a wrapper, and of 12 batches the rank keeps 6. Of these three only FSDP cuts the weights.
#
# ### How the loader deals
#
# All ranks draw the same order of samples, shuffled or not, and deal the batches out in turn. All take equally many batches, so the first samples fill the gap at the end. Draw on paper how four ranks deal the samples 0 to 9 in batches of 2. How many numbers do you write?

# %%
samples = lab.guess("samples of an epoch, all four ranks", between=(0, 40))

# %%
dealt = lab.launch(ours.deal, 10, 2, ranks=4)  # prepares a loader, lists its batches
lab.show(ours.draw_deal({"batches of 2": dealt}))
samples.score(sum(len(batch) for batches in dealt for batch in batches))

# %% [markdown]
# How do we cure the first run? With `split_batches=True` the batch size is that of all ranks together, and must be a multiple of their number. Here are 32 samples:


# %%
def both_ways():
    return ours.deal(32, 8), ours.deal(32, 8, split_batches=True)


# %%
each_own, split = zip(*lab.launch(both_ways, ranks=4), strict=True)
lab.show(ours.draw_deal({"8 for each rank": each_own, "split_batches=True": split}))

# %% [markdown]
# One update of 32 becomes four of 8. And the run itself?

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
# A batch size of 2 would cure the updates as well. And the learning rate? Let it fall from 1 to 0 in 8 steps. After two updates it is 0.75 in one process. And on four ranks?

# %%
rate = lab.guess("learning rate of four ranks after two updates", between=(0, 2))


# %%
def rates(steps):
    accelerator = ours.accelerator()
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    optimizer, falling = accelerator.prepare(optimizer, falling)
    seen = {0: falling.get_last_lr()[0]}
    for update in range(1, 9):
        optimizer.step()
        falling.step()
        seen[update] = falling.get_last_lr()[0]
    return seen


# %%
wanted = {"wanted": {update: 1 - update / 8 for update in range(9)}}
axes = {"x": "number of updates", "y": "learning rate", "joined": True}
four_rates = lab.launch(rates, 8, ranks=4)[0]
drawn = {"four ranks": four_rates}
title = "A schedule of 8 steps"
lab.show(lab.curves(predicted=wanted, measured=drawn, **axes, title=title))
rate.score(four_rates[2])

# %% [markdown]
# Each `falling.step()` takes one step for each rank, because Accelerate assumes a schedule for one process *of the same batch size*. With a batch size of 2 that process makes 32 updates and four ranks make 8; 8 × 4 = 32, so 32 is the length to give.
#
# So take `len(loader)` *before* `prepare`, divide it by `gradient_accumulation_steps`, and prepare everything in one call. With accumulation `scheduler.step()` stands inside `accumulate`, after `optimizer.step()`: it, too, acts only in the last batch of an update.
#
# <details><summary>Filled-up loaders, and a second call of prepare</summary>
#
# Where a loader is filled up, four ranks take a few steps more: ten samples in batches of 2 are 5 batches, and four ranks take 2 × 4 = 8 steps. Exercise 1 counts them. With `split_batches` a call takes one step, and the same length is right.
#
# Don't prepare the scheduler in a second call: under DeepSpeed Accelerate 1.15 then gives it back as it is, and it takes one step at a time.
#
# </details>

# %% [markdown] sections="8.2.2"
# ### Exercise 1. An epoch in numbers
#
# 1,000 samples, four ranks, a batch size of 8 and two batches per update: how many samples has an update, how many updates has the epoch, how many steps does a prepared schedule take? Find the numbers on paper, then write the function. `split_batches` is off, and the last update takes what is left.


# %%
def my_epoch_numbers(num_samples, batch_size, ranks, accumulation):
    """A dict of "samples" of a full update, "updates" and steps of the "schedule"."""
    ### BEGIN SOLUTION
    from math import ceil

    batches = ceil(ceil(num_samples / batch_size) / ranks)
    updates = ceil(batches / accumulation)
    return {
        "samples": batch_size * ranks * accumulation,
        "updates": updates,
        "schedule": updates * ranks,
    }
    ### END SOLUTION


# %%
check.epoch_numbers(my_epoch_numbers)

# %%
check.hint("epoch_numbers")

# %% [markdown] sections="8.2.4"
# ## Backward, accumulate, clip, step
#
# Now the second run, the wrong key. Here is an update of two batches under DDP, predicted and measured, with a row for each call of the loop.

# %%
pairs["DDP"]

# %% [markdown]
# Until the last batch Accelerate makes `step` and `zero_grad` do nothing. A box names the [collectives](GLOSSARY.md#collective) that its line calls, here one for each bucket of gradients. The weights change in `optimizer.step()`. And under DeepSpeed?

# %%
lines = ("backward", "clip", "step")
changes = lab.guess("what changes the weights under DeepSpeed", choices=lines)

# %%
last = pairs["DeepSpeed"].run[0]["lines"][-1]
changes.score(next(line for line in lines if last[line]["moved"]))

# %%
pairs["DeepSpeed"]

# %% [markdown]
# ZeRO-2 reduces gradients in every batch. In the last, `accelerator.backward` also calls the engine's `step`, which agrees on the norm (the second all-reduce), clips, updates, and gathers the weights. Nothing is left for the lines below.
#
# ### Clip once, and where DeepSpeed looks
#
# What if we clip without `if accelerator.sync_gradients`, or under DeepSpeed? We make one update of two batches with SGD and learning rate 1, so the weights move by exactly the gradient. Ten times the loss makes it longer than any limit here. (`get_state_dict`, called on all ranks, gives rank 0 the whole weights; ZeRO 3 needs a key for that, see *Saving*.)


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
def both_clips():
    return clipped("ddp"), clipped("ddp", guard=False)


# %%
guarded, unguarded = lab.launch(both_clips)[0]
clips = {
    "DDP": guarded,
    "DDP without the if": unguarded,
    "DeepSpeed": lab.launch(clipped, "zero2")[0],
    "DeepSpeed configured": lab.launch(clipped, "zero2", configured=0.01)[0],
}

# %%
moves = ours.moved(setup()[0].state_dict(), clips)
lab.show(lab.table(moves))
length.score(moves[2]["length"])

# %% [markdown]
# <details><summary>Why the run without the <code>if</code> goes another way</summary>
#
# `degrees` is the angle to the first row's move. Without the `if`, each rank clips its first batch's gradient to 0.01, adds the second's at full length, and clips again. So the first batch hardly counts here, where the limit is far below the gradient's length.
#
# </details>
#
# When the script clips, DeepSpeed has already changed the weights. So only the limit in its own configuration counts. Write it in both places, as our script and `zero` do, and the second run is cured.
#
# <details><summary>Why this length</summary>
#
# Where its own file or a plugin has no limit, Accelerate writes 1 into DeepSpeed's configuration. A JSON file of DeepSpeed's that you wrote yourself stays as it is: without the key nothing is clipped.
#
# </details>

# %% [markdown] sections="8.2.2"
# ## Ten seconds before the start
#
# How could we have known? After `prepare` the objects themselves say what the run will be:


# %%
def preflight(accelerator, loader):
    accumulation = accelerator.gradient_accumulation_steps
    deepspeed = accelerator.state.deepspeed_plugin
    config = deepspeed.deepspeed_config if deepspeed else {}
    return {
        "type": accelerator.distributed_type.value,
        "ranks": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "batch": loader.total_batch_size * accumulation,
        "updates": -(-len(loader) // accumulation),  # rounded up
        "DeepSpeed clips at": config.get("gradient_clipping"),
    }


# %% [markdown]
# It tells what Accelerate has resolved, not what a file asked for. This is what each author meant:

# %%
all_meant = {"batch": 8, "updates": 8}
meant = {
    "batch size 8 on four ranks": {"ranks": 4, **all_meant},
    "a wrong key": {"type": "DEEPSPEED", "DeepSpeed clips at": 0.5, **all_meant},
    "no GPU, and not told": {"ranks": 2, **all_meant},
    "FSDP without GPUs": {"type": "FSDP", "ranks": 2, **all_meant},
}

# %% [markdown]
# Before its loop the script stops where the two differ:

# %%
CHECK = """
report = preflight(accelerator, loader)
for key, value in meant.items():
    assert report[key] == value, f"{key} is {report[key]}, not {value}"

"""


# %%
def checked(meant):
    begin = f"meant = {meant}\n" + inspect.getsource(preflight)
    file = folder / "checked.py"
    file.write_text(begin + TRAIN.replace("for tokens", CHECK + "for tokens"))
    return file


# %% [markdown]
# We start all four again, and run 3 with the variable that cures it:

# %%
four["no GPU, and told"] = lambda file: start(file, 2, "4", config=fp32, **cpus)
meant["no GPU, and told"] = meant["no GPU, and not told"]

# %%
rows = []
for name, run in four.items():
    try:
        run(checked(meant[name]))
        stopped = "nothing"
    except lab.RankFailed as failed:
        stopped = failed.outcomes[0].error["message"]
    rows.append({"start": name, "stopped by": stopped})
lab.table(rows)

# %% [markdown]
# All four stop before the first update, and the fifth trains: `ACCELERATE_USE_CPU=true` cures run 3, where each process takes itself for the only one. Run 4 has no cure without GPUs: let it stop.
#
# The check sees only what `preflight` reports and `meant` names. A schedule of the wrong length and a clip without its `if` would both pass.
#
# Is an update of 32 wrong? It is where nobody chose it. Often you want it, because it gives every rank enough to do; then the learning rate must change too (chapter 12).

# %% [markdown] sections="8.2.2"
# ## Exercise 2. One loop for every engine
#
# This loop is right on one process and under DDP, and wrong under FSDP or DeepSpeed. Before you change a line, say which engine it breaks, and how.


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
# The objects are plain. Your loop must work on every engine, and return on the main process the whole weights under the names of the bare model.


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

# %% [markdown]
# ## Summary
#
# - The batch size is a rank's own, unless you set `split_batches=True`. A loader that falls short is filled up with its first samples.
# - Write a schedule for one process, of length `len(loader)` before `prepare`, divided by `gradient_accumulation_steps`.
# - `accelerator.backward` also updates under DeepSpeed, which clips by its own configuration. Elsewhere clip under `sync_gradients`.
# - Write down what you meant, and let the script stop where the run is something else.
#
# **Words learned**: *engine*, [FSDP](GLOSSARY.md#fsdp), [gradient accumulation](GLOSSARY.md#gradient-accumulation).
#
# **Next**: chapter 05 looks at what bf16 and fp16 do to numbers, and at where the memory of a step goes.

# %% [markdown]
# ---
#
# *Here ends what most people need. The rest is about FSDP's update, logging, saving and resuming, and optional.*

# %% [markdown] sections="8.2.4"
# ## FSDP's update
#
# Here is the picture of an update under FSDP:

# %%
pairs["FSDP"]

# %% [markdown]
# FSDP has cut the weights of the picture's model, so each rank holds half. The forward gathers them in 3 calls: two blocks, and the rest. The gradients are reduced in the last batch alone, so until then each rank holds the gradient of the *whole* model. Clipping adds an all-reduce, because no rank has the whole norm.

# %% [markdown] sections="8.2.2, 8.2.4"
# ## What accelerator.backward adds
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
# `accelerator.backward` divides by `gradient_accumulation_steps`, so that the sum of four is a mean. DeepSpeed's engine does that itself. So a loop for every engine calls it.

# %% [markdown] sections="8.2.4"
# ### Exercise 3. Accumulate, clip, and the rest
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

# %% [markdown] sections="8.2.4"
# ## Gather, and the main process
#
# A log line usually stands under `if accelerator.is_main_process`. But whose loss does it print? `gather(x)` gives every rank the numbers of all ranks, `reduce(x, "mean")` their mean, and `reduce(x)` their *sum*. All ranks make these calls, and tensors lie on `accelerator.device`. Here each rank has one passage, and the trained model:


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
# ### Exercise 4. An exact accuracy in one message
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
# ## Saving
#
# You want a file with whole weights. Which rank has them? We count the numbers that `unwrap_model` and `get_state_dict` give under `mixed_precision="bf16"`. `zero3` is DeepSpeed that splits the weights, too.


# %%
def prepared(engine, batch_size, precision="no"):
    accelerator = ours.accelerator(engine, precision=precision)
    net, optimizer, data = setup()
    loader = DataLoader(data, batch_size)
    return accelerator, *accelerator.prepare(net, optimizer, loader)


# %%
def held(engine, path):
    accelerator, net, _, _ = prepared(engine, 2, "bf16")
    mine = accelerator.unwrap_model(net).state_dict()
    whole = accelerator.get_state_dict(net) or {}  # on all ranks: it gathers
    accelerator.save(whole, path)  # writes on the main process only
    accelerator.wait_for_everyone()  # before another rank reads the file
    types = {str(weight.dtype) for weight in whole.values()}
    return {
        "unwrap_model": ours.numel(mine),
        "get_state_dict": ours.numel(whole),
        "file": ours.numel(torch.load(path, weights_only=True)),
        "type": ", ".join(types),
    }


# %% [markdown]
# The model has 42,880 numbers. How many of them does `unwrap_model` give to rank 1 of two under ZeRO 3?

# %%
own = lab.guess("numbers of unwrap_model on rank 1, ZeRO 3", between=(0, 42_880))

# %%
path = str(folder / "weights.pt")
found = {each: lab.launch(held, each, path) for each in ("ddp", "fsdp", "zero3")}

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
# Without the key below ZeRO 3 raises its error in `get_state_dict`, when the training is over. So call it once before the first update.
#
# </details>
#
# Under FSDP and ZeRO 3 only rank 0 gets the whole weights from `get_state_dict`, and the file is whole under every engine. ZeRO 3's weights are bf16 here, and `get_state_dict` raises an error if its file lacks `zero3_save_16bit_model: true`.

# %% [markdown] sections="8.2.2"
# ## Resuming
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

# %% [markdown] sections="8.2.2, 8.2.4"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Four errata</summary>
#
# <details><summary>Erratum 8.2.2: the loop is "identical to a single GPU's"</summary>
#
# The code is, but the batch is not: with the same batch size four ranks make an update of 32 passages and not of 8, as in the first row of the table of four runs.
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

# %% [markdown]
# ## Further reading
#
# [Accelerate](https://huggingface.co/docs/accelerate) (this chapter ran version 1.15), its pages on [gradient accumulation](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation) and on [performance and batch sizes](https://huggingface.co/docs/accelerate/concept_guides/performance).
#
# *Sections 8.2.1, 8.2.2, 8.2.3 and 8.2.4 of the source material.*

# %%
check.status()
