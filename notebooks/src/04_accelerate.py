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
import labkit as lab

# ranks load torch while this kernel does
lab.begin("en")

import torch
from labkit import accelerate as ours

dealt = {
    "one process": lab.launch(ours.deal, 16, 2, ranks=1),
    "four ranks": lab.launch(ours.deal, 16, 2, ranks=4),
}
lab.show(ours.draw_deal(dealt))

# %% [markdown]
# Samples and batch size are the same in both. What is different, and what would four ranks need to train like one process? We begin with two.
#
# **When you are done** you can write one loop for every engine, say what each of Accelerate's calls did to your objects, and stop a run that isn't what you meant.

# %% [markdown] sections="8.2.1"
# ## From one process to two
#
# What changes when a loop gets a second rank? Here is one process: a small model, its optimizer, 64 passages of our story, and a loop through them, an *epoch*.

# %%
from torch.utils.data import DataLoader, Subset, TensorDataset
from labkit import model
from labkit.accelerate import check


# %%
def build():
    torch.manual_seed(0)
    return model.Transformer(2, 32, 2, max_len=32)


def setup():
    net = build()
    # a large eps, so that rounding stays small
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
    net = build()
    net.load_state_dict(weights)
    tokens, targets = model.story_tokens(64, 32)
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
# One process with a batch size of 8 makes 8 updates. Which batch size makes the weights of *two* ranks end like those of one process?

# %%
sizes = ("batch size 16", "batch size 8", "batch size 4")
size = lab.guess("two ranks train like one process with", choices=sizes)

# %% [markdown]
# We try all three. *apart* is the largest difference of a weight from one process:


# %%
def all_sizes():
    return {
        "batch size 16": by_accelerate(16),
        "batch size 8": by_accelerate(8),
        "batch size 4": by_accelerate(4),
    }


# %%
runs = lab.launch(all_sizes)[0]
rows = ours.beside(runs, {"weights": one}, loss=final_loss)
lab.show(lab.table(rows, heads=("start", "updates", "apart", "loss")))
closest = min(rows, key=lambda row: row["apart"])
size.score(closest["start"])

# %% [markdown]
# A batch size is *each rank's own*. So with 4 passages on each of two ranks, an update takes the 8 of one process, and the weights are the same but for rounding. With 16 each, an update takes 32, and only two updates are left. Four ranks with a batch size of 8 do the same: that is the opening's 4.9.

# %% [markdown] sections="8.2.1"
# ## A script and a command
#
# In real life a command starts a script. Ours has three parts, so that we can exchange one later. First it makes the Accelerator:

# %%
MAKE = """
from accelerate import Accelerator

accelerator = Accelerator()
"""

# %% [markdown]
# Then come the objects, as in `setup`, and `prepare`:

# %%
OBJECTS = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from labkit import model

print(accelerator.state)
torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
loader = DataLoader(TensorDataset(*model.story_tokens(64, 32)), int(sys.argv[1]))
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
"""

# %% [markdown]
# The loop accumulates and clips:

# %%
LOOP = """
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

# %% [markdown]
# In [gradient accumulation](GLOSSARY.md#gradient-accumulation) several batches make one update. `Accelerator(gradient_accumulation_steps=...)` or a variable of the environment sets their number, 1 by default.
#
# - `accelerator.backward` divides each loss by it, so the gradients add up to a mean.
# - `accumulate` lets the weights change only in the last of these batches, in which `sync_gradients` is True.
# - `clip_grad_norm_` shortens a gradient that is longer than 0.5.

# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
script = folder / "train.py"
_ = script.write_text(MAKE + OBJECTS + LOOP)

# %% [markdown] sections="8.2.3"
# ### The configuration file
#
# What wraps the model and moves the gradients, DDP, FSDP or DeepSpeed, is called the *engine*. Which engine shall it be, and on how many ranks? The command `accelerate launch` reads that from a file, which `accelerate config` writes from your answers. `MULTI_GPU` is DDP, and `num_processes` counts the processes of all machines:

# %%
import yaml

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
# Keep the quotes around `'no'`: without them it means False in YAML, and the command stops with an error. For several machines there are `machine_rank`, `main_process_ip`, `main_process_port`, `rdzv_backend` and `same_network`; `gpu_ids` picks GPUs, and `downcast_bf16` is for TPUs. A flag such as `--num_processes` wins over the file.
#
# </details>
#
# Now the command starts `train.py` on two ranks. (labkit writes the file as JSON, which is YAML too, and where ranks run on CPUs, sets `ACCELERATE_USE_CPU=true`.) Rank 1 prints its `accelerator.state`:

# %%
started = lab.launch_script(script, "4", using="accelerate", config=fp32)
print(started.logs[1].strip())

# %% [markdown]
# The file is the one that GPUs need; on CPUs that variable turns it into `MULTI_CPU`, DDP without a GPU.

# %% [markdown] sections="8.2.1, 8.2.2"
# ## One file, six ways
#
# Do other engines train the same model? The script stays, and each engine gets a file. [FSDP](GLOSSARY.md#fsdp) (chapter 07) leaves each rank a part of every weight, and gathers one layer at a time, so its file names the class of the layers, `Block`. (Version 2 is the FSDP of today.) DeepSpeed's `zero_stage: 2` (chapter 06) splits gradients and the optimizer's state among the ranks.

# %%
bf16 = {**fp32, "mixed_precision": "bf16"}
wrapping = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
}
fsdp = {**fp32, "distributed_type": "FSDP", "fsdp_config": wrapping}
zero = {"zero_stage": 2, "gradient_clipping": 0.5}
deepspeed = {**fp32, "distributed_type": "DEEPSPEED", "deepspeed_config": zero}

# %% [markdown]
# From here on `start(script, ranks, batch size, config=...)` takes the command's place. It runs the script on pretend devices, and sets the variables of the environment that the command makes of the file. In all six runs an update takes 8 passages:

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
def look(runs):
    rows = ours.beside(runs, ways["one process"], loss=final_loss)
    return lab.table(rows, heads=("start", "type", "model", "updates", "apart", "loss"))


# %%
look(ways)

# %% [markdown]
# Why `MULTI_CPU`? No rank has a GPU here. FSDP and DeepSpeed need one in Accelerate, so for them labkit pretends that there is.
#
# <details><summary>Who tells Accelerate so</summary>
#
# Accelerate knows no pretend devices. So labkit itself tells it of ranks and devices, without a variable: for DDP what `ACCELERATE_USE_CPU=true` would tell, for FSDP and DeepSpeed that the devices are GPUs.
#
# </details>

# %% [markdown] sections="8.2.1, 8.2.2"
# On these devices the promise is kept: in fp32 all train the model of one process. They differ by 2.4e-07, which is rounding. From here on we call an fp32 run right if it is within 1e-4. bf16 has only two or three digits of each number, and is off by 0.003. Is that rounding, or a mistake? A distance alone doesn't tell, so in the end we check settings, the precision among them.
#
# <details><summary>Why our <code>eps</code> is large</summary>
#
# With AdamW's usual `eps` the rounding grows to 0.0003, and right runs would miss the 1e-4.
#
# </details>

# %% [markdown] sections="8.2.2"
# ### What the promise does not cover
#
# The file runs everywhere. But is the run what its author meant? We look at four starts. Here are two:
#
# - Run 1 is the opening's: four ranks, and still a batch size of 8.
# - Run 2 uses DeepSpeed, and its author wrote `gradient_clip` instead of `gradient_clipping`. The script still asks for 0.5.
#
# Each is a function, because in the end we start all four again, with a script that checks itself.

# %%
wrong_key = {"zero_stage": 2, "gradient_clip": 0.5}
misspelt = {**deepspeed, "deepspeed_config": wrong_key}


# %%
def run_1(file):
    return start(file, 4, "8")


def run_2(file):
    return start(file, 2, "4", config=misspelt)


# %%
first_two = {"1. batch size 8": run_1(script), "2. a wrong key": run_2(script)}
look(first_two)

# %% [markdown]
# Neither stops with an error. Run 1 makes too few updates, and its loss shows it. In run 2 only the weights are wrong, 0.0111 apart. It differs from the DeepSpeed run above by the key alone, so nothing has clipped at 0.5.
#
# The file's 0.5 got lost in the command, which refuses an unknown key at the top of a file, but not in `deepspeed_config`. These are the variables that it sets, without a word of clipping. (Where the script's 0.5 got lost we see below.)

# %%
ours.environment(misspelt)

# %% [markdown]
# Run 3 is plain DDP with a batch size of 4 on two ranks. The file asks for GPUs, but the processes find none, for instance because a driver is broken, and nobody has set `ACCELERATE_USE_CPU`. (`gpus=False` takes the pretend devices away.) How many updates does rank 0 make?

# %%
third = lab.guess("3. updates of rank 0", between=(1, 32))


# %%
def run_3(file):
    return start(file, 2, "4", config=fp32, gpus=False)


# %%
alone_each = run_3(script)
lab.show(look({"3. no GPU": alone_each}))
third.score(alone_each["updates"])

# %% [markdown]
# Without a GPU and without that variable Accelerate doesn't look for other ranks, so each process believes that it is alone. It deals all 64 passages to itself, in 16 updates of 4. The weights are wrong, and the loss looks even better.
#
# In run 4 the variable is set, on the same machine. But the file asks for FSDP, which Accelerate gives only to ranks with a GPU. What becomes of it?

# %%
types = ("FSDP", "MULTI_CPU", "an error")
fourth = lab.guess("4. FSDP without GPUs", choices=types)

# %%
cpus = {"variables": {"ACCELERATE_USE_CPU": "true"}, "gpus": False}


def run_4(file):
    return start(file, 2, "4", config=fsdp, **cpus)


# %%
on_cpus = run_4(script)
lab.show(look({"4. FSDP without GPUs": on_cpus}))
fourth.score(on_cpus["type"])

# %% [markdown]
# Plain DDP: the weights are right, but nothing is cut, so no memory is saved. None of the four ends with an error, and only run 1 has a loss that one would notice. Run 1 lost nothing on its way: it got the batch size that it asked for. Where did the others lose what they asked for?
#
# |station|task|lost here|
# |---|---|---|
# |file|says what you want||
# |command|turns what it knows into variables|run 2: `gradient_clip`|
# |environment|brings them to each rank||
# |`Accelerator()`|reads them, looks for devices|run 3: the other rank; run 4: FSDP|
# |engine|trains|run 2: the script's 0.5|
#
# <details><summary>Which switch works on CPUs</summary>
#
# Set the variable `ACCELERATE_USE_CPU=true`, as labkit did in the command above. `use_cpu: true` in the file does not reach the ranks, and the flag `--cpu` starts a single process.
#
# </details>

# %% [markdown] sections="8.2.2"
# ## What prepare does
#
# To cure runs 1 and 2 we must know what the calls do, `prepare` first. Here are our objects on rank 0 of two, with a batch size of 4, before `prepare` and after it; `zero2` is DeepSpeed's stage 2:


# %%
def objects(engine, prepare=True):
    accelerator = ours.accelerator(engine)
    net, optimizer, data = setup()
    loader = DataLoader(data, 4)
    if prepare:
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    return {
        "model": type(net).__name__,
        "optimizer": type(optimizer).__name__,
        "batches": len(loader),
        "weights": ours.numel(dict(net.named_parameters())),
    }


# %%
rows = [{"engine": "before prepare", **lab.launch(objects, "ddp", False)[0]}]
for engine in ("ddp", "fsdp", "zero2"):
    rows.append({"engine": engine, **lab.launch(objects, engine)[0]})
lab.table(rows)

# %% [markdown]
# Model and optimizer get a wrapper, and of 16 batches the rank keeps 8. `prepare` also moves the model and each batch to the rank's device. Of these three only FSDP cuts the weights. It makes new ones for that, and an optimizer that is not prepared together with the model would still hold the old ones.
#
# When you want the whole weights, *all* ranks call `accelerator.get_state_dict(net)`, because under FSDP it gathers them. Rank 0 gets them, under the bare model's names.
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
# How do we cure run 1? With `split_batches=True` the batch size is that of all ranks together, and must be a multiple of their number. Here are 32 samples:


# %%
def both_ways():
    return ours.deal(32, 8), ours.deal(32, 8, split_batches=True)


# %%
each_own, split = zip(*lab.launch(both_ways, ranks=4), strict=True)
lab.show(ours.draw_deal({"8 for each rank": each_own, "split_batches=True": split}))

# %% [markdown]
# One update of 32 becomes four of 8. In the script the first part changes:

# %%
SPLIT = """
from accelerate import Accelerator, DataLoaderConfiguration

split = DataLoaderConfiguration(split_batches=True)
accelerator = Accelerator(dataloader_config=split)
"""

# %%
cured = folder / "cured.py"
cured.write_text(SPLIT + OBJECTS + LOOP)
look({"split_batches=True": start(cured, 4, "8")})

# %% [markdown] sections="8.2.2"
# ### The learning rate's schedule
#
# So run 1 is cured: 8 updates, and the weights of one process. A batch size of 2 would cure it as well. And a schedule of the learning rate? Let it fall from 1 to 0 in 8 steps. After two updates it is 0.75 in one process. But each call of a prepared schedule's `step()` takes one step *for each rank*. How large is the rate on four ranks?

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
title = "The learning rate of four ranks, by the schedule's length"
eight, longer = lab.launch(lambda: (rates(8), rates(32)), ranks=4)[0]
lab.show(lab.curves(predicted=wanted, measured={"8 steps": eight}, **axes, title=title))
rate.score(eight[2])

# %% [markdown]
# So count all the steps that an epoch takes, **updates × ranks**, here 8 × 4 = 32. (With `split_batches=True` a call takes one step, so count just the updates.)

# %%
both = {"8 steps": eight, "32 steps": longer}
lab.curves(predicted=wanted, measured=both, **axes, title=title)

# %% [markdown]
# Why four steps at a time? Accelerate assumes that you wrote the schedule for one process with *each rank's* batch size. Of batches of 2 that process would make 32 updates. So there is a shortcut: `len(loader)` *before* `prepare`, divided by `gradient_accumulation_steps`. It is right with and without `split_batches`, if all divides evenly.
#
# <details><summary>If it doesn't divide, with accumulation, and a second call of prepare</summary>
#
# Ten samples in batches of 2 are 5 batches, but four ranks make 2 updates, so it takes 2 × 4 = 8 steps.
#
# With accumulation `scheduler.step()` stands inside `accumulate`, after `optimizer.step()`: it, too, acts only in the last batch of an update.
#
# Prepare everything in one call. The scheduler in a second one is a mistake: under DeepSpeed Accelerate 1.15 then gives it back as it is, and it takes one step at a time.
#
# </details>

# %% [markdown] sections="8.2.2"
# ### Exercise 1. An epoch in numbers
#
# 1,000 samples, four ranks, a batch size of 8 and two batches per update: how many samples has an update, how many updates has the epoch, how many steps does a prepared schedule take in it? Find the numbers on paper, then write the function. `split_batches` is off. The loader fills up as above. If the last update lacks a batch, it is made all the same. So count updates × ranks: the shortcut gives 62.5.


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
# In run 2 the file's key was misspelt, but the script still asked for 0.5. Why did that not clip? First we look at DDP, to compare. Here is an update of two batches, with a row for each call of the loop. A box names the [collectives](GLOSSARY.md#collective) that its line calls, and how many, predicted = counted:

# %%
ours.Update(engine="ddp", accumulation=2).compare()

# %% [markdown]
# Until the last batch Accelerate makes `step` and `zero_grad` do nothing. DDP makes two buckets of the gradients of this picture's model, and calls an all-reduce for each. The weights change in `optimizer.step()`.
#
# Under DDP batch 1 sends nothing: a rank keeps its own gradients until batch 2. With DeepSpeed's ZeRO-2 a rank keeps only its part of all ranks' gradients. Does it send in batch 1?

# %%
choices = ("gradients", "no gradients")
sends = lab.guess("what DeepSpeed sends in batch 1", choices=choices)

# %%
under_deepspeed = ours.Update(engine="zero2", accumulation=2).compare()
lab.show(under_deepspeed)
calls = under_deepspeed.measured[0]["backward"]["calls"]
sends.score("gradients" if calls else "no gradients")

# %% [markdown]
# ZeRO-2 reduces gradients in every batch. And in the last, `accelerator.backward` does all the rest as well: it calls the engine's `step`, which agrees on the norm by one more all-reduce, clips, updates, and gathers the weights. Nothing is left for the lines below.
#
# ### Clip once, and where DeepSpeed looks
#
# So what does the script's `clip_grad_norm_` still do, and what if its `if accelerator.sync_gradients` is missing? We compare four scripts that all ask for 0.01: DDP, DDP without the `if`, DeepSpeed, and DeepSpeed with 0.01 in its configuration as well. Each makes one update of two batches with SGD and learning rate 1, so the weights move by exactly the clipped gradient. We take ten times the loss, so that the gradient is much longer than any limit here.


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
    return accelerator.get_state_dict(net)  # whole weights, on rank 0


# %% [markdown]
# In the third script we write no limit into DeepSpeed's configuration, and Accelerate fills in what we leave out. How long is DeepSpeed's move?

# %%
lengths = ("0.01", "1", "not clipped")
length = lab.guess("length of DeepSpeed's move", choices=lengths)


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
moves = ours.moved(build().state_dict(), clips)
lab.show(lab.table(moves))
length.score(f"{moves[2]['length']:.2g}")

# %% [markdown]
# The third move is 1 long: when the script clips, DeepSpeed has already changed the weights. So only its own configuration counts, where Accelerate writes 1 by default if nobody says a limit. Write the limit in both places, as our script and the file with `"gradient_clipping": 0.5` do, and run 2 is cured.
#
# Without the `if` DDP's move has the right length, but it is turned by 24.1 degrees: each rank clips the gradient of batch 1 before that of batch 2 is added, so the two no longer count alike.
#
# <details><summary>More on the missing <code>if</code>, and on the default</summary>
#
# Without the `if`, the sum is clipped a second time. Batch 1 hardly counts here, because it was cut to 0.01, far below the gradient's length, and batch 2 was added whole.
#
# A JSON file of DeepSpeed's that you wrote yourself stays as it is: without the key nothing is clipped.
#
# </details>

# %% [markdown] sections="8.2.2"
# ## Before the first update
#
# How could we have known? After `prepare` the objects themselves say what the run will be. This part of the script comes behind it:

# %%
REPORT = """
from math import ceil

accumulation = accelerator.gradient_accumulation_steps
deepspeed = accelerator.state.deepspeed_plugin
config = deepspeed.deepspeed_config if deepspeed else {}
report = {
    "type": accelerator.distributed_type.value,
    "ranks": accelerator.num_processes,
    "precision": accelerator.mixed_precision,
    "batch": loader.total_batch_size * accumulation,
    "updates": ceil(len(loader) / accumulation),
    "DeepSpeed clips at": config.get("gradient_clipping"),
}
"""


# %% [markdown]
# It tells what Accelerate has made of it all, not what a file asked for. This is what each author meant:

# %%
all_meant = {"precision": "no", "batch": 8, "updates": 8}
meant = {
    "1. batch size 8": {"ranks": 4, **all_meant},
    "2. a wrong key": {"type": "DEEPSPEED", "DeepSpeed clips at": 0.5, **all_meant},
    "3. no GPU": {"ranks": 2, **all_meant},
    "4. FSDP without GPUs": {"type": "FSDP", "ranks": 2, **all_meant},
}

# %% [markdown]
# Where the two differ the script stops:

# %%
STOP = """
for key, value in meant.items():
    assert report[key] == value, f"{key}: {report[key]}, not {value}"
"""

# %% [markdown]
# The new script has both between `prepare` and the loop:


# %%
def checked(meant):
    file = folder / "checked.py"
    file.write_text(MAKE + OBJECTS + REPORT + f"meant = {meant}" + STOP + LOOP)
    return file


# %% [markdown]
# We start all four again, and run 3 also with the variable that cures it:


# %%
def run_3_told(file):
    return start(file, 2, "4", config=fp32, **cpus)


meant["3. told to use CPUs"] = meant["3. no GPU"]
starts = (run_1, run_2, run_3, run_4, run_3_told)

# %%
rows = []
for name, run in zip(meant, starts, strict=True):
    try:
        run(checked(meant[name]))
        stopped = "nothing"
    except lab.RankFailed as failed:
        stopped = failed.outcomes[0].error["message"]
    rows.append({"start": name, "stopped by": stopped})
lab.table(rows)

# %% [markdown]
# All four stop before the first update, and the fifth trains. (Run 2's 1.0 is Accelerate's default again.) Run 4 has no cure without GPUs: let it stop.
#
# The check sees only what `report` has and `meant` names. It would also have stopped the bf16 run above, if its author had meant fp32. A schedule of the wrong length and a clip without its `if` would both pass.
#
# Is an update of 32 wrong? Only where nobody chose it. Often you want it, because it gives every rank enough to do; then the learning rate must change too (chapter 12).

# %% [markdown] sections="8.2.2"
# ## Exercise 2. One loop for every engine
#
# This loop is right on one process and under DDP, and wrong under FSDP or DeepSpeed. For each line that you will change, say first which engine it breaks, and how.


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
# The objects that you get are not prepared. Your loop must work on every engine, and return the whole weights on the main process (rank 0), under the names of the bare model. It need not accumulate or clip.


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
# - A prepared schedule takes a step for each rank. So its length is updates × ranks, or with `split_batches=True` the updates.
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
ours.Update(engine="fsdp", accumulation=2).compare()

# %% [markdown]
# FSDP has cut the weights of the picture's model, so each rank holds half. The forward gathers them in 3 calls: two blocks, and the rest. The gradients are reduced in the last batch alone, so until then each rank holds the gradient of the *whole* model. Clipping adds an all-reduce, because no rank has the whole norm.

# %% [markdown] sections="8.2.2, 8.2.4"
# ## What accelerator.backward adds
#
# Two ranks, `gradient_accumulation_steps=4`, and a model of one weight whose gradient is 1. We call the backward in two ways. What is different, the collectives or the gradient?


# %%
from labkit.measure import traffic


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
# The code is, but the batch is not: with the same batch size four ranks make an update of 32 passages and not of 8, as in run 1 of *What the promise does not cover*.
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

# %%
check.status()
