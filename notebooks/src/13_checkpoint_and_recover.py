# ---
# jupyter:
#   labkit:
#     sections: ["10.5.1", "19.6.4", "19.8.5"]
#     needs: ["chapters 03 and 07"]
#     minutes: 60
# ---

# %% [markdown]
# # Checkpoint and recover
#
# *About an hour, and another for the exercises. You need chapters 03 and 07. No GPU is needed.*
#
# In 54 days of training on 16,384 GPUs, Llama 3 was interrupted 419 times unexpectedly. That is once in three hours. A device fails, a machine is taken away, a cable comes loose, and each time all ranks stop. Had nothing been saved, training would hardly ever have got past its first day.
#
# So we save a [checkpoint](GLOSSARY.md#checkpoint) now and then. Save too seldom, and each failure costs hours; save too often, and you do nothing else. Let a save stop training for a minute, and let it take five minutes to come back (we assume both). How many minutes between two checkpoints lose the least time?

# %%
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import labkit as lab
from labkit import model, recovery, widgets
from labkit.recovery import check, checkpoint, how_often

lab.begin("en")
FOLDER = Path(tempfile.mkdtemp())
interval = lab.guess("minutes between two checkpoints", between=(0, 180))

# %%
mtbf_s = how_often.mtbf_s(16_384)
interval.score(how_often.cheapest_s(60, mtbf_s) / 60)

# %%
widgets.how_often()

# %% [markdown]
# This is calculated, for GPUs that fail as often as Llama 3's. On the left saving eats the time, on the right failures do, and even at best an eighth of all time is lost. For your own cluster, move the first slider.
#
# **When you are done** you can write a checkpoint that no crash can spoil, resume a training so that nobody can tell, and say how often to save.

# %% [markdown]
# ## By hand
#
# Let's train something small, with dropout, Adam and a learning rate that warms up, because all of these remember things.


# %%
def warm_up(step):
    """The learning rate of a step, as a share of the whole."""
    return min(1.0, 0.1 + 0.09 * step)


# %%
def start():
    """Model, optimizer and learning rate of a new run."""
    torch.manual_seed(dist.get_rank())  # DDP gives rank 0's weights to all
    layers = [nn.Embedding(256, 16), nn.Flatten(), nn.Linear(128, 64), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(64, 256))
    net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return net, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)


# %%
def train(net, optimizer, rate, positions):
    """Trains on the given batches; the loss of each, on this rank."""
    losses = {}
    for position in positions:
        seed = position * dist.get_world_size() + dist.get_rank()
        tokens, targets = model.story_tokens(32, 8, seed=seed)
        loss = nn.functional.cross_entropy(net(tokens), targets[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        losses[position] = loss.item()
    return losses


# %% [markdown] sections="10.5.1"
# Thirty steps, a checkpoint, ten more. Then the last ten once again, from the file, in a new model, with the batches from 30 on. We save what one thinks of first: model, optimizer and learning rate.


# %%
def save(file, **parts):
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)


# %%
def load(file, **parts):
    for name, state in torch.load(file).items():
        parts[name].load_state_dict(state)


# %%
def by_hand(folder, **more):
    file = folder / f"rank{dist.get_rank()}.pt"
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(30))
    save(file, model=net, optimizer=optimizer, rate=rate, **more)
    undisturbed = train(net, optimizer, rate, range(30, 40))

    net, optimizer, rate = start()
    load(file, model=net, optimizer=optimizer, rate=rate, **more)
    resumed = train(net, optimizer, rate, range(30, 40))
    return {"undisturbed": undisturbed, "from the file": resumed}


# %% [markdown]
# Are the losses after the file the same as those without it, to the last bit?

# %%
same = lab.guess("the same losses, to the last bit?", choices=["yes", "no"])

# %%
losses = lab.launch(by_hand, FOLDER, ranks=2)[1]
is_same = losses["undisturbed"] == losses["from the file"]
same.score("yes" if is_same else "no")

# %%
lab.curves(
    measured=losses, x="training step", y="loss of rank 1", title="Step 30 and on"
)

# %% [markdown] sections="10.5.1"
# Compare the two points of one step, since each step has another batch. They part at the very first one, although weights, Adam and data are right. What did we forget? Look at `start` once more before you read on.
#
# Dropout draws random numbers, and after the restart it draws those of the beginning again. The model is fine. But if healthy restarts change the losses, you can't tell a broken one from them. So the random generators become one more part. On a GPU these are two: dropout draws from the GPU's, and most DataLoaders shuffle with the CPU's.


# %%
class RandomNumbers:
    """This rank's generators, the CPU's and its device's, for a checkpoint."""

    def __init__(self):
        kind = torch.get_default_device().type
        self.of = [torch] if kind == "cpu" else [torch, torch.get_device_module(kind)]

    def state_dict(self):
        return [each.get_rng_state() for each in self.of]

    def load_state_dict(self, states):
        for each, state in zip(self.of, states):
            each.set_rng_state(state)


# %%
def with_random_numbers(folder):
    return by_hand(folder, random_numbers=RandomNumbers())


losses = lab.launch(with_random_numbers, FOLDER, ranks=2)[1]
losses["undisturbed"] == losses["from the file"]

# %% [markdown] sections="10.5.1"
# Now it is the same training. If you draw from Python's `random` or NumPy, their generators are parts, too.

# %% [markdown] sections="10.5.1"
# ### What if one is forgotten?
#
# From here on we let `checkpoint.save` do it. It takes model and optimizer, keeps the random generators of each rank, and stores whatever you pass as `extra`. Now we forget one part at a time, and train twenty steps. Which one takes the weights furthest from those of undisturbed training?

# %%
parts = ["nothing", "Adam", "learning rate", "data position", "random numbers"]
worst = lab.guess("what takes the weights furthest if forgotten", choices=parts[1:])


# %%
def resume(folder, without):
    net, optimizer, rate = start()
    wanted = None if without == "Adam" else optimizer
    found = checkpoint.load(folder, net, wanted)
    if without != "learning rate":
        rate.load_state_dict(found["extra"])
        optimizer.param_groups[0]["lr"] = rate.get_last_lr()[0]
    if without == "random numbers":
        torch.manual_seed(99)
    first = 0 if without == "data position" else found["step"]
    train(net, optimizer, rate, range(first, first + 20))
    return nn.utils.parameters_to_vector(net.parameters())


# %%
def leave_out(folder):
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(20))
    checkpoint.save(folder, 20, net, optimizer, extra=rate.state_dict())
    begun = nn.utils.parameters_to_vector(net.parameters()).clone()
    train(net, optimizer, rate, range(20, 40))
    weights = nn.utils.parameters_to_vector(net.parameters())
    off = {part: torch.dist(resume(folder, part), weights).item() for part in parts}
    return off, torch.dist(begun, weights).item()


# %%
off, way = lab.launch(leave_out, FOLDER / "parts", ranks=2)[0]
worst.score(max(off, key=off.get))

# %%
lab.bars(
    off,
    title="Distance from undisturbed weights, 20 steps after the checkpoint",
    marks={"20 undisturbed steps": way},
)

# %% [markdown]
# The dashed line is how far the weights move in these twenty steps when nothing is disturbed. Adam begins anew with a step of the full learning rate for every weight that has a gradient, however small: without old moments, the step is gradient over size of gradient. But other random numbers alone take the weights some way, too, though nothing is wrong with them. So a distance doesn't tell you whether something is broken. With nothing left out it is 0, and then you need not ask.
#
# <details><summary>A trap: a schedule that multiplies what it finds</summary>
#
# Our schedule says what the rate *is* at each step. torch's `LinearLR(optimizer, 0.1, total_iters=10)` multiplies the rate that it finds in the optimizer, from a tenth to the whole in ten steps. Come back with the optimizer and without this schedule, and it finds the whole rate, multiplies it as often, and stays at *ten times* the rate for ever. Forget the optimizer instead, and the rate stays at a tenth. Try both in `start`, and print `optimizer.param_groups[0]["lr"]`.
#
# </details>

# %% [markdown] sections="10.5.1"
# ### A file that is read, not run
#
# Sometimes you open somebody else's checkpoint. A file of `torch.save` holds a pickle, and a pickle is a program: who wrote it decides what runs when you open it.


# %%
class Trap:
    def __reduce__(self):
        return print, ("this line was run by torch.load",)


file = FOLDER / "trap.pt"
torch.save({"step": 20, "args": Trap()}, file)
found = torch.load(file, weights_only=False)

# %% [markdown] sections="10.5.1"
# That is how old versions of torch load. Since 2.6, `torch.load(file)` by default reads only tensors, numbers, strings, lists and dicts, and refuses the trap. `torch.distributed.checkpoint` still unpickles its file `.metadata`. Our `checkpoint` lets it write safetensors files instead, in which names, shapes and bare numbers stand, and nothing to run.
#
# <details><summary>Erratum 10.5.1: what a checkpoint holds</summary>
#
# The textbook's list has model, optimizer, scheduler, epoch and step. Two things are missing: the random generators, of every rank, and the place *within* the epoch. Our first run lacked only the first of them, and `is_same` was False. (With a `DataLoader`, torchdata's `StatefulDataLoader` keeps the place: it has a `state_dict`.)
#
# </details>
#
# <details><summary>Erratum 10.5.1: command-line arguments in the checkpoint</summary>
#
# The textbook puts `args`, an `argparse.Namespace`, into the file. `torch.load` refuses it like our trap: try `torch.load(file)`. `vars(args)` is a dict of the same content, and is harmless.
#
# </details>

# %% [markdown] sections="10.5.1"
# ## Does training wait?
#
# The checkpoint of a large model is large. If rank 0 collected all of it (*plain*), it might not fit into its memory. So each rank writes what it holds (*sharded*). Must training wait until the files are on the disk? In an *asynchronous* save it waits only until the states are copied, so that the next step can't change them, and a thread writes the copy.
#
# We try it with [FSDP](GLOSSARY.md#fsdp), where each of two ranks holds half of the parameters and of Adam's two moments.


# %%
def sharded_model(dim=128):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = model.Transformer(1, dim, 4, max_len=32)
    for layer in [*net.layers, net]:
        fully_shard(layer)
    return net, torch.optim.Adam(net.parameters(), lr=0.001)


# %%
def one_step(net, optimizer, seed):
    tokens, targets = model.story_tokens(4, 32, seed=seed)
    optimizer.zero_grad()
    logits = net(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    optimizer.step()


# %% [markdown]
# Twelve steps, and a sharded save after two of them. Once training waits until the save is done, and once the thread writes beside the steps. What share of the first stop is the second?

# %%
stop = lab.guess("the stop without waiting, over the stop with it", unit="share")


# %%
def steps_and_a_save(folder, waits):
    """Twelve steps with a save after two of them, as rank 0 spent the time."""
    net, optimizer = sharded_model()
    for step in range(3):  # warm-up, not timed
        one_step(net, optimizer, step)
        checkpoint.save_async(folder, step, net, optimizer).result()
    steps_s = []
    for step in range(12):
        began_s = time.perf_counter()
        one_step(net, optimizer, step)
        steps_s.append((began_s, time.perf_counter()))
        if step == 1:
            saving = checkpoint.save_async(folder, 3, net, optimizer)
            if waits:
                saving.result()
    saving.result()
    return checkpoint.beside(steps_s)


# %%
waiting = lab.launch(steps_and_a_save, FOLDER / "waits", True, ranks=2)[0]
beside = lab.launch(steps_and_a_save, FOLDER / "beside", False, ranks=2)[0]
stop_us = [line.start_us[2] - line.end_us[1] for line in (waiting, beside)]
stop.score(stop_us[1] / stop_us[0])

# %%
lab.show(waiting, title="Training waits for the save")

# %%
lab.show(beside, title="Training goes on")

# %% [markdown] sections="10.5.1"
# Above are the steps, below the thread. Where training waits, the gap lasts until the thread is done: `write` writes the files, and `seal` makes them a checkpoint (we come to that). Where it goes on, only the gap for the copy is left. But the thread shares the cores with the steps above it, and what the gap has lost comes back in part as longer steps. How much differs from run to run; it is least where a GPU trains and the CPU has time to write.
#
# The price is memory for the copy. And if a rank dies while the thread writes, the newest checkpoint is the one before.

# %% [markdown] sections="19.6.4"
# ### What incremental saves
#
# A save writes 12 bytes for each parameter, 4 for the weight and 8 for Adam's two moments. An *incremental* save writes only what has changed since the last one. How much of the first save is written again in the second, if all is trained, and if all but the head, the last layer, is frozen?


# %%
def what_changes(folder, frozen):
    torch.manual_seed(0)
    net = model.Transformer(2, 64, 4, max_len=32)
    net.layers[:-1].requires_grad_(not frozen)
    trained = [weight for weight in net.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.001)
    written = []
    for step in range(2):
        one_step(net, optimizer, step)
        path = checkpoint.save(folder, step, net, optimizer, kind="incremental")
        written.append(checkpoint.about(path)["written_bytes"])
    return written[1] / written[0]


# %%
every = lab.launch(what_changes, FOLDER / "every", False, ranks=1)[0]
last = lab.launch(what_changes, FOLDER / "last", True, ranks=1)[0]
again = {"all is trained": every, "only the head": last}
lab.bars(again, unit="share", title="What the second save writes, over the first")

# %% [markdown] sections="19.6.4"
# When all is trained, nothing is spared: Adam moves every trained parameter in every step, with its moments and its count of steps. What is frozen has no state of Adam, so it costs 4 bytes the first time and none the second. Incremental saves are for fine-tuning a part of a model.
#
# <details><summary>Erratum 19.6.4: store only the changed parameters "to reduce I/O"</summary>
#
# When all of a model is trained, all of it changes (the first bar above). The textbook's code also keeps a second copy of the model to compare with, and each of its deltas needs all the ones before. A digest of each tensor (a short number made from all of its bytes) needs no copy, and here every checkpoint is complete: what has not changed is a hard link, a second name of the same file.
#
# </details>

# %% [markdown] sections="19.6.4"
# ## A rank dies
#
# Thirty steps, a checkpoint after every tenth. After 25 steps rank 1 is killed, as the system does when memory runs out. The function begins where the newest checkpoint ends; that is all it knows of recovery. (The error below is meant.)


# %%
def train_and_save(folder, die_at=None):
    net, optimizer, rate = start()
    first = 0
    if checkpoint.checkpoints(folder):
        found = checkpoint.load(folder, net, optimizer)
        rate.load_state_dict(found["extra"])
        first = found["step"]
    for position in range(first, 30):
        if position == die_at and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        losses = train(net, optimizer, rate, [position])
        if dist.get_rank() == 0:
            print(position, losses[position], flush=True)
        if position % 10 == 9:
            extra = rate.state_dict()
            checkpoint.save(folder, position + 1, net, optimizer, extra=extra)


# %% tags=["raises-exception"]
try:
    lab.launch(train_and_save, FOLDER / "dying", 25, ranks=2)
except lab.RankFailed as error:
    killed = error
    raise

# %% [markdown]
# The same call again, without the kill, is the whole recovery. (Chapter [14](14_debugging.ipynb) has more of these verdicts.)


# %%
def printed(logs):
    """What rank 0 printed, as {step: loss}."""
    words = [line.split() for line in logs[0].splitlines()]
    return {int(step): float(loss) for step, loss in words}


# %%
after = lab.launch(train_and_save, FOLDER / "dying", ranks=2)
before, recovered = printed(killed.logs), printed(after.logs)

# %%
run = lab.launch(train_and_save, FOLDER / "calm", ranks=2)
undisturbed = printed(run.logs)
[undisturbed[step] - loss for step, loss in recovered.items()]

# %%
work = {
    "with a kill": dict(enumerate([*before, *recovered])),
    "undisturbed": dict(enumerate(undisturbed)),
}
lab.curves(
    measured=work,
    joined=True,
    x="steps computed",
    y="training step",
    at={"rank 1 is killed": 25},
    title="The way to the end of training",
)

# %% [markdown] sections="19.6.4"
# From step 20 on, the losses are those of undisturbed training, to the last bit: every difference is 0. Training falls back to the checkpoint and does five steps again, and that is all that is lost here.
#
# In real life somebody must notice first. Here that takes milliseconds, because the dead rank's connections close; ranks on GPUs may wait in a collective until a watchdog ends them, ten minutes later by default. So shorten that timeout, or our five minutes to come back won't do: with a failure every three hours, ten minutes alone are 5 % of all time. Then a new machine must be found, torch imported, a hundred gigabytes read.

# %% [markdown]
# ### A rank dies while it saves
#
# The dangerous moment is the save itself. If `torch.save` writes onto the only good file and is killed half-way, you have nothing. So a save writes under another name, here one that begins with a dot, and gets its real name by one `rename`, when every rank's files are written. Rank 0 has saved step 5, and is killed in the save of step 10: at its first `fsync`, just before the `rename`, and just after it. How many of the three come back to step 10?

# %%
to_ten = lab.guess("how many come back to step 10", between=(0, 3))


# %%
def die_at(call, is_done):
    """Lets os's function of this name kill: instead of its work, or after it."""
    whole = getattr(os, call)

    def deadly(*args):
        if is_done:
            whole(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, call, deadly)


# %%
def die_in_the_save(folder, call, is_done):
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(5))
    checkpoint.save(folder, 5, net, optimizer)
    train(net, optimizer, rate, range(5, 10))
    if dist.get_rank() == 0:
        die_at(call, is_done)
    checkpoint.save(folder, 10, net, optimizer)


# %%
def come_back(folder):
    net, optimizer, _ = start()
    found = checkpoint.load(folder, net, optimizer)
    return {
        "step": found["step"],
        "skipped": [Path(why).name for why in found["skipped"]],
    }


# %%
def after_a_kill(name, call, is_done):
    folder = FOLDER / name
    try:
        lab.launch(die_in_the_save, folder, call, is_done, ranks=2)
    except lab.RankFailed:
        names = sorted(path.name for path in folder.iterdir())
    step = lab.launch(come_back, folder, ranks=2)[0]["step"]
    return {"killed": name, "in the folder": ", ".join(names), "back to step": step}


# %%
kills = [
    after_a_kill("at an fsync", "fsync", False),
    after_a_kill("before the rename", "rename", False),
    after_a_kill("after the rename", "rename", True),
]
to_ten.score(sum(kill["back to step"] == 10 for kill in kills))

# %%
lab.table(kills)

# %% [markdown]
# The rename happens or does not, so at every moment a whole checkpoint is there. A draft with a dot is not even looked at.
#
# What is `fsync` for, then? A killed process loses nothing that it has handed to the operating system, but a power cut does, and that we can't show here. `fsync` waits until the bytes are on the disk, so it must come before the rename. The new name itself is safe after an `fsync` of its folder. All this is `seal`.
#
# Disks sometimes return other bytes than were written, without an error. So a checkpoint keeps a [digest](GLOSSARY.md#digest) of each of its files, a short number made from all of its bytes. Even one flipped bit is found and named, and the checkpoint before it is taken:

# %%
newest = checkpoint.checkpoints(FOLDER / "calm")[0]
file = max(newest.glob("shard*"))
content = bytearray(file.read_bytes())
content[-1] ^= 1
file.write_bytes(content)
lab.launch(come_back, FOLDER / "calm", ranks=2)[0]

# %% [markdown] sections="19.6.4"
# <details><summary>Erratum 19.6.4: catch the error and go on</summary>
#
# The textbook catches an `NCCLError` and continues in the same process. torch has no such class; it raises `DistBackendError`: `hasattr(torch.distributed, "NCCLError")` is False. And when a rank is gone, the others stand deep in a collective, in an unknown state. To end all of them and start anew is what torchrun does, too.
#
# </details>

# %% [markdown]
# ## Exercise 1. A save that does no harm
#
# Now write one. Every rank calls your function; `net` is wrapped in DDP, `file` is a `Path`, `args` an `argparse.Namespace`. It leaves one file,
#
# - that `torch.load(file, weights_only=True)` reads, as a dict of six keys:
#   - `model` (names without `module.`), `optimizer` and `scheduler`, a `state_dict` each,
#   - `step`, `args` (a dict) and `rng` (a list: `torch.get_rng_state()` of every rank, the CPU's generator);
# - that is the old one or the new one, whole, if any rank is killed at any moment, or the power is cut.
#
# The check kills ranks. It can't cut the power, so it looks for an `os.fsync` before the rename. `check.hint(name)` tells more after each attempt.


# %%
def my_save(file, net, optimizer, scheduler, step, args):
    """Replaces file by a checkpoint of this moment."""
    ### BEGIN SOLUTION
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    if dist.get_rank() > 0:
        return
    saved = {
        "model": net.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "step": step,
        "args": vars(args),
        "rng": states,
    }
    part = file.with_suffix(".part")
    with open(part, "wb") as stream:
        torch.save(saved, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, file)
    ### END SOLUTION


# %%
check.safe_save(my_save)

# %%
check.hint("safe_save")

# %% [markdown]
# <details><summary>When you are done: how <code>checkpoint.save</code> does it</summary>
#
# Yours is one file by one rank. `checkpoint.save` does the same for a folder and many ranks. Its skeleton, with all that protects:
#
# ```python
# write(draft / f"shard-{rank}", my_part)  # draft is the folder ".step-10"
# fsync(draft / f"shard-{rank}")
# dist.barrier()  # now all parts are on the disk
# if rank == 0:
#     write_index(draft)  # a digest of each file, and fsync
#     fsync(draft)  # a folder's names are on the disk only after this
#     os.rename(draft, folder / "step-10")
#     fsync(folder)
# ```
#
# </details>

# %% [markdown] sections="10.5.1, 19.6.4"
# ## Come back with fewer ranks
#
# What if a machine is gone for good? A sharded checkpoint says of every part where in the whole tensor it belongs. So whoever loads takes the rows that it needs, from whichever files have them. This is called [resharding](GLOSSARY.md#resharding):

# %%
recovery.Resharding(rows=64, writers=4, readers=3)

# %% [markdown]
# With three readers, files 1 and 2 are each read by two ranks.
#
# ### With torch's own dcp
#
# Without labkit it is `dcp` that reshards. Four ranks of FSDP save weights and Adam's moments; a script at work would add step, learning rate and random generators.

# %%
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict


# %%
def state_of(net, optimizer, **options):
    options = state_dict.StateDictOptions(**options)
    weights, moments = state_dict.get_state_dict(net, optimizer, options=options)
    return {"model": weights, "optimizer": moments}


# %%
def whole(net, optimizer):
    """Every tensor, whole, on rank 0."""
    state = state_of(net, optimizer, full_state_dict=True, cpu_offload=True)
    return [state["model"], state["optimizer"].get("state")]


# %%
def save_shards(folder):
    net, optimizer = sharded_model(64)
    one_step(net, optimizer, 0)
    dcp.save(state_of(net, optimizer), checkpoint_id=folder)
    return whole(net, optimizer)


# %% [markdown]
# Two ranks load, and into DDP. `dcp.load` fills the tensors that it is given. So we take the state of the new model, let it be filled, and put it back. We take it by `get_state_dict`, because this names every tensor, Adam's moments too, as the bare model would, so another wrapper can read them.


# %%
def load_in_ddp(folder):
    net = nn.parallel.DistributedDataParallel(model.Transformer(1, 64, 4, max_len=32))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    state = state_of(net, optimizer)
    dcp.load(state, checkpoint_id=folder)
    state_dict.set_model_state_dict(net, state["model"])
    state_dict.set_optimizer_state_dict(net, optimizer, state["optimizer"])
    return whole(net, optimizer)


# %%
saved = lab.launch(save_shards, FOLDER / "shards", ranks=4)[0]
loaded = lab.launch(load_in_ddp, FOLDER / "shards", ranks=2)[0]
lab.difference(saved, loaded)

# %% [markdown] sections="19.6.4"
# Tensors carry over to the bit. Random generators do not, because there were four, and now there are two. Nor do the data: our `train` counts steps, and each step takes one batch for each rank. With half the ranks, step 20 would begin at batch 40, which was seen long ago. So count samples, not steps, and keep the global batch, or change the learning rate. Sums are then added in another order, so losses agree closely, and not to the bit.
#
# ### The same in your library
#
# | library | save | load | other ranks | generators |
# | --- | --- | --- | --- | --- |
# | torch | `dcp.save`, `dcp.async_save` | `dcp.load` | yes | add them |
# | Accelerate | `save_state` | `load_state` | as the engine below | each rank's |
# | DeepSpeed | `save_checkpoint` | `load_checkpoint` | after a conversion | add them |
#
# <details><summary>DeepSpeed's conversion, step by step</summary>
#
# DeepSpeed's own files are bound to their number of ranks. `engine.save_checkpoint(path)` makes a folder below `path`, `global_step20` say. This makes one for any number of ranks:
#
# `python -m deepspeed.checkpoint.ds_to_universal --input_folder path/global_step20 --output_folder path/universal --inject_missing_state`
#
# (The last option adds a note that files of ZeRO 1 and 2 lack.) Then `engine.load_checkpoint(path)` reads it with any number of ranks, where the configuration has `"checkpoint": {"load_universal": true}`.
#
# </details>

# %% [markdown] sections="19.6.4"
# ## torchrun restarts
#
# Outside of a notebook, somebody must notice the death and start again. `torchrun --max-restarts` does: when a rank dies it ends the others and starts all of them anew. The script only has to begin where the newest checkpoint ends. This one saves after every third step (to be short, only the weights, and without `fsync`); rank 1 is killed after four steps of the first start.

# %%
TRAIN = """
import os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist

file = Path(sys.argv[1])
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group()
torch.manual_seed(0)
net = torch.nn.Linear(4, 4)
first = 0
if file.exists():
    saved = torch.load(file)
    net.load_state_dict(saved["net"])
    first = saved["step"]
print("begins at step", first, flush=True)
for step in range(first, 6):
    if step == 4 and dist.get_rank() == 1 and is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    net.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    for weight in net.parameters():
        dist.all_reduce(weight.grad)
        weight.data -= 0.01 * weight.grad
    if step % 3 == 2 and dist.get_rank() == 0:
        torch.save({"net": net.state_dict(), "step": step + 1}, f"{file}.part")
        os.replace(f"{file}.part", file)
dist.destroy_process_group()
"""
script = FOLDER / "train.py"
num_written = script.write_text(TRAIN)

# %%
ran = lab.launch_script(script, FOLDER / "last.pt", ranks=2, max_restarts=2)
[line for line in ran.logs[0].splitlines() if "begins" in line]

# %% [markdown]
# The second start began at step 3, after the last save.
#
# <details><summary>The variable in front of the command, and fewer machines</summary>
#
# `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is a repair: torch 2.13 keeps one store for all starts, and a new rank may find the address of a dead one there, and wait for it.
#
# torchrun also goes on with *fewer* machines. Then there is one torchrun on each, `--nnodes 1:2` says that one or two of them are enough, and when one is gone, the others meet again. `launch_script(..., nodes=(1, 2))` lets two torchruns on this machine stand for two; that takes too long for this page.
#
# </details>
#
# ### On a real cluster
#
# - **Save when you are asked to leave.** Slurm, if set so, and many cheap machines send SIGTERM some time before they kill. Let `signal.signal(signal.SIGTERM, ...)` set a flag, all-reduce it so that all ranks agree, and save after the step.
# - **Delete the old ones.** A checkpoint of a 7 B model is 84 GB, 12 bytes for each parameter. Every 19 minutes, the first picture's best, that makes 6 TB a day. Our `checkpoint` keeps the newest two (`keep=2`), in case the first can't be read.
# - **Try it.** Kill a rank yourself, before the cluster does.

# %% [markdown]
# ## When is it worth it?
#
# Back to the first picture. Let a save take C seconds (the [save time](GLOSSARY.md#save-time)), and let a failure come every M seconds (the [time between failures](GLOSSARY.md#time-between-failures)). With a checkpoint every T seconds we pay twice:
#
# - Each interval pays one save: C/T of the time. That is the left end of the picture.
# - Each failure loses half an interval on average: T/2 of M seconds, or T/2M of the time. That is the right end.
#
# The sum is least where both are equal, which is Young's result (1974):
#
# $$T = \sqrt{2\,C\,M}$$
#
# Both terms take a save as short beside the interval, and the interval as short beside M.
#
# ### What a save costs
#
# What is C? The 7 B model has 84 GB to save. Say that it is sharded over the eight GPUs of a machine, whose ranks write for all machines, since the others hold copies; and that a rank writes 2 GB/s, and copies 20 GB/s to its host's memory. So one rank writes for 42 s, eight ranks for 5 s, and eight ranks copy for half a second. On Llama 3's cluster, with five minutes to come back as before, how much of the time is lost, if only that half second stops training?

# %%
least = lab.guess("share of all time lost, asynchronous", unit="share")

# %%
save_s = {
    "one rank": 84 / 2,
    "eight ranks": 84 / 8 / 2,
    "eight ranks, asynchronous": 84 / 8 / 20,
}
lost = {}
for name, each_s in save_s.items():
    best_s = (2 * each_s * mtbf_s) ** 0.5
    lost[name] = how_often.lost_share(best_s, each_s, mtbf_s, 300)
least.score(lost["eight ranks, asynchronous"])

# %%
lab.bars(
    lost,
    unit="share",
    title="Time lost at the best interval",
    marks={"to come back": 300 / mtbf_s},
    badge="predicted",
)

# %% [markdown]
# A save that stops training for a shorter time may come more often, and then a failure loses less. The asynchronous one comes every 1.8 minutes, which is 67 TB a day: your disks may set the interval before the formula does. And the formula counts neither the seconds until the copy is on the disk nor the longer steps. What remains is the time to come back, which does not move the valley, but lifts it.
#
# ### Is the algebra right?
#
# The first picture, like `lost` above, uses `how_often.lost_share`, Daly's formula of 2006. It needs neither approximation, and also counts the time to come back (exercise 2 prints it). Let's play some thousand intervals through, with failures at random moments, as Daly takes them to be:


# %%
def played(interval_s, save_s=60, restart_s=300, num_intervals=4000):
    """Share of all time lost, with failures at random moments."""
    draw = random.Random(0)
    clock_s, next_s = 0.0, draw.expovariate(1 / mtbf_s)
    for _ in range(num_intervals):
        end_s = clock_s + interval_s + save_s
        while next_s < end_s:  # what was done since the last checkpoint is lost
            end_s = next_s + restart_s + interval_s + save_s
            next_s += draw.expovariate(1 / mtbf_s)
        clock_s = end_s
    return 1 - num_intervals * interval_s / clock_s


# %%
minutes = [2 * 1.25**i for i in range(19)]
young = {m: 1 / m + 60 * m / (2 * mtbf_s) + 300 / mtbf_s for m in minutes}
daly = {m: how_often.lost_share(60 * m, 60, mtbf_s, 300) for m in minutes}
chance = {m: played(60 * m) for m in minutes}
lab.curves(
    predicted={"Young's sum": young, "Daly": daly, "played": chance},
    x="minutes between two checkpoints",
    y="share of all time that is lost",
    unit="share",
    log_x=True,
    title="Two formulas, and random failures",
    badge="calculated, and played with random numbers",
)

# %% [markdown]
# The third line stays within one percentage point of Daly's, so the algebra is right. Whether your failures come at random is another question: real ones may come in clusters. Young's sum, here with the time to come back, is too high at both ends, but its lowest point is in nearly the same place, and that is all we need of it. And the valley is flat: at twice or half of the best interval, some 2 percentage points more of all time are lost. Of 16,384 GPUs, though, that is more than 300.

# %% [markdown]
# ## Exercises
#
# Exercise 1 is above.
#
# ### 2. How often, on your cluster
#
# You have `num_gpus` GPUs, as reliable as Llama 3's, and a save takes `save_s` seconds. How often do you save? `how_often.mtbf_s(num_gpus)` is M, and `how_often.lost_share(interval_s, save_s, mtbf_s)` what you lose. The check takes clusters of up to a million GPUs, and allows a training 1.01 times as long as with the best interval. At the largest sizes, Young's root is no longer good enough.
#
# <details><summary>A first hint, and the formula behind lost_share</summary>
#
# Draw `lost_share` against the interval for a million GPUs: where is its lowest point, and where is Young's root?
#
# Young leaves out that a failure may come while we save, or come back. Daly (2006) does not: one second of training takes $M e^{R/M}(e^{(T+C)/M}-1)/T$ seconds, where R is the time to come back.
#
# </details>


# %%
def my_interval(save_s, num_gpus):
    """Seconds between two checkpoints, the save not counted."""
    ### BEGIN SOLUTION
    mtbf_s = how_often.mtbf_s(num_gpus)
    candidates = [mtbf_s * 10 ** (-5 + 0.005 * i) for i in range(1060)]

    def lost(interval_s):
        return how_often.lost_share(interval_s, save_s, mtbf_s)

    return min(candidates, key=lost)
    ### END SOLUTION


# %%
check.interval(my_interval)

# %% [markdown] sections="19.8.5"
# ### 3. A training that outlives its ranks
#
# Build an elastic training. `training` is a run that will be disturbed. Ranks are killed, in a step or in a save; some come back, some are gone for good. And one of the disturbances is a bug that comes back after each restart. Write two functions.
#
# `my_rank(training)` runs in every rank, and returns the trained `state_dict` (names with or without `module.`):
#
# - `training.build()` gives a model in DDP and its Adam;
# - `training.step(net, optimizer, step)` trains one step, up to `training.num_steps` of them (its batch is the same for any number of ranks, so the learning rate stays);
# - after every `training.every` steps a checkpoint is due in `training.folder`;
# - `checkpoint.save` and `checkpoint.load` will do, on fewer ranks, too. Nothing here draws random numbers.
#
# `my_elastic(training)` runs in the notebook, and returns the last run:
#
# - `training.launch(my_rank, training, ranks=...)` is `lab.launch`;
# - `training.ranks_left()` is how many ranks there are; a kill may make it smaller, a bug does not;
# - `training.max_restarts` counts all restarts, for whatever reason; after the last one, let the exception through.
#
# <details><summary>A first hint: the skeleton of my_elastic</summary>
#
# ```python
# for start in range(...):  # how many starts are that?
#     try:
#         return training.launch(...)
#     except lab.RankFailed:
#         ...  # was it the last one? raise
# ```
#
# </details>


# %%
def my_rank(training):
    """Trains from the newest checkpoint to the end; returns the state_dict."""
    ### BEGIN SOLUTION
    net, optimizer = training.build()
    step = 0
    if checkpoint.checkpoints(training.folder):
        step = checkpoint.load(training.folder, net, optimizer)["step"]
    while step < training.num_steps:
        training.step(net, optimizer, step)
        step += 1
        if step % training.every == 0:
            checkpoint.save(training.folder, step, net, optimizer)
    return net.module.state_dict()
    ### END SOLUTION


def my_elastic(training):
    """Launches my_rank until it is done; returns the last run."""
    ### BEGIN SOLUTION
    for left in reversed(range(training.max_restarts + 1)):
        try:
            return training.launch(my_rank, training, ranks=training.ranks_left())
        except lab.RankFailed:
            if not left:
                raise
    ### END SOLUTION


# %%
check.elastic(my_elastic)

# %% [markdown]
# ## Summary
#
# - A checkpoint holds model, optimizer, learning rate, data position and the random generators of every rank. With all of them, on the same number of ranks and with deterministic operations, resumed training is undisturbed training, to the bit.
# - A checkpoint should be read, not run: `weights_only=True`, dicts instead of objects.
# - Save it sharded, so that no rank holds everything; asynchronous, so that training stops only for the copy; incremental where much is frozen.
# - Write under another name, `fsync`, one `rename`, `fsync` the folder: a killed save never costs the checkpoint before. A digest finds what the disk has changed.
# - Recovery is a new start: end all ranks, launch what is left, load and reshard. Give up when it does not help.
# - Save every $\sqrt{2CM}$ seconds, while C is short beside M, C being only the time for which training stands still.
#
# **Words:** [checkpoint](GLOSSARY.md#checkpoint), [save](GLOSSARY.md#save), [save time](GLOSSARY.md#save-time), [time between failures](GLOSSARY.md#time-between-failures), [shard](GLOSSARY.md#shard), [resharding](GLOSSARY.md#resharding), [digest](GLOSSARY.md#digest).
#
# **Further reading**
#
# - Young 1974, *A first order approximation to the optimum checkpoint interval*, Communications of the ACM 17 (9)
# - Daly 2006, *A higher order estimate of the optimum checkpoint interval for restart dumps*, Future Generation Computer Systems 22 (3)
# - Interruptions: Llama Team 2024, *The Llama 3 Herd of Models*, [arXiv 2407.21783](https://arxiv.org/abs/2407.21783)
# - [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), [DeepSpeed's universal checkpoints](https://www.deepspeed.ai/tutorials/universal-checkpointing/)
# - The shared store of torchrun's restarts: [pytorch issue 135712](https://github.com/pytorch/pytorch/issues/135712)
#
# **Next:** [debugging](14_debugging.ipynb), for trainings that neither die nor live.
#
# *Sections 10.5.1, 19.6.4 and 19.8.5 of the source material.*

# %%
check.status()
