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
# *About an hour. You need chapters 03 and 07. No GPU is needed.*
#
# Llama 3 was trained on 16,384 GPUs for 54 days, and in these days it was interrupted 419 times without anybody's wish. That is once in three hours. A device fails, a machine is taken away, a cable comes loose, and each time all ranks stop. Had nothing been saved, the training would never have got past its first day.
#
# So we save a [checkpoint](GLOSSARY.md#checkpoint) now and then. Save too seldom, and each failure costs hours; save too often, and you do nothing else. How bad is it?

# %%
import os
import signal
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import labkit as lab
from labkit import model
from labkit.recovery import check, checkpoint

lab.begin("en", deadline_s=58)
FOLDER = Path(tempfile.mkdtemp())
SAVE_S, FAILURE_S, RESTART_S = 60, 54 * 86_400 / 419, 300
minutes = [2 * 1.25**i for i in range(19)]
costs = {m: check.slowdown(60 * m, SAVE_S, FAILURE_S, RESTART_S) for m in minutes}
lab.curves(
    predicted={"time over useful time": costs},
    x="minutes between two checkpoints",
    y="time over useful time",
    log_x=True,
    title="What saving and failing cost",
)

# %% [markdown]
# This is predicted, for Llama 3's failures, a save that stops training for a minute, and five minutes to come back. Look at both ends: on the left saving eats the time, on the right failures do. Where would you work?
#
# **When you are done** you can write a checkpoint that no crash can spoil, resume a training so that nobody can tell, and say how often to save.

# %% [markdown]
# ## By hand
#
# Let's train something small. It has dropout, Adam and a learning rate that warms up, because all of these remember things.


# %%
def start():
    """Model, optimizer and learning rate of a new run."""
    torch.manual_seed(dist.get_rank())  # DDP gives rank 0's weights to all
    net = nn.Sequential(
        nn.Embedding(256, 16),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(64, 256),
    )
    net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    return net, optimizer, warmup


# %%
def train(net, optimizer, rate, positions):
    """Trains on the given batches; the loss of each, on this rank."""
    losses = []
    for position in positions:
        seed = position * dist.get_world_size() + dist.get_rank()
        tokens, targets = model.story_tokens(32, 8, seed=seed)
        loss = nn.functional.cross_entropy(net(tokens), targets[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        losses.append(loss.item())
    return losses


# %% [markdown] sections="10.5.1"
# Twenty steps, a checkpoint, twenty more. Then the last twenty once again, from the file, in a new model. We save what one thinks of first: model, optimizer, learning rate, and the position in the data.


# %%
def by_hand(folder):
    file = folder / f"rank{dist.get_rank()}.pt"
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(20))
    parts = {"model": net, "optimizer": optimizer, "rate": rate}
    saved = {name: part.state_dict() for name, part in parts.items()}
    torch.save(saved | {"position": 20}, file)
    undisturbed = train(net, optimizer, rate, range(20, 40))

    net, optimizer, rate = start()
    saved = torch.load(file)
    for name, part in {"model": net, "optimizer": optimizer, "rate": rate}.items():
        part.load_state_dict(saved[name])
    first = saved["position"]
    resumed = train(net, optimizer, rate, range(first, first + 20))
    return {"undisturbed": undisturbed, "resumed": resumed}


# %% [markdown]
# Are the losses after the file the same as those without it, to the last bit?

# %%
same = lab.guess("the same losses, to the last bit?", choices=["yes", "no"])

# %%
ran = lab.launch(by_hand, FOLDER, ranks=2)
losses = {name: torch.tensor(each) for name, each in ran[1].items()}
apart = lab.difference(losses["undisturbed"], losses["resumed"])
same.score("no" if apart else "yes")

# %% [markdown] sections="10.5.1"
# Something is missing. The weights are right, Adam is right, the data are right. But dropout draws random numbers, and after the restart it draws those of the beginning once more. That is no mistake of the model. Yet nobody can tell such a run from a broken one, and so you can't find the broken ones.
#
# <details><summary>Erratum 10.5.1: what a checkpoint holds</summary>
#
# The textbook's list has model, optimizer, scheduler, epoch and step. Two things are missing: the random generators, of every rank, and the place *within* the epoch. The run above lacks only the first of them, and `apart` is not 0.
#
# </details>

# %% [markdown] sections="10.5.1"
# ### What each part is worth
#
# From here on we let `checkpoint.save` do it. It takes model and optimizer, keeps the random generators of each rank, and lays by what else you give it in `extra`. Now we leave out one part at a time. Which one, if it is forgotten, spoils the losses most?

# %%
parts = ["nothing", "optimizer", "learning rate", "data position", "random numbers"]
worst = lab.guess("what spoils most if forgotten", choices=parts[1:])


# %%
def leave_out(folder, part):
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(20))
    extra = {"rate": rate.state_dict(), "position": 20}
    checkpoint.save(folder / part, 20, net, optimizer, extra=extra)
    undisturbed = train(net, optimizer, rate, range(20, 40))

    net, optimizer, rate = start()
    wanted = None if part == "optimizer" else optimizer
    extra = checkpoint.load(folder / part, net, wanted)["extra"]
    if part != "learning rate":
        rate.load_state_dict(extra["rate"])
    if part == "random numbers":
        torch.manual_seed(99)
    first = 0 if part == "data position" else extra["position"]
    resumed = train(net, optimizer, rate, range(first, first + 20))
    return sum(abs(a - b) for a, b in zip(undisturbed, resumed)) / 20


# %%
off = {
    part: lab.launch(leave_out, FOLDER / "parts", part, ranks=2)[1] for part in parts
}
lab.bars(off, title="Mean difference of the losses, 20 steps after the checkpoint")

# %%
worst.score(max(off, key=off.get))

# %% [markdown]
# With nothing left out the difference is 0: not small, zero. Without its two moments Adam takes its first steps blindly. Without the learning rate the warm-up comes a second time. Without the position the same data are seen again (these losses belong to other batches, and that is most of the difference).

# %% [markdown] sections="10.5.1"
# ### A file that is read, not run
#
# A file of `torch.save` is a pickle, and a pickle is a program. Who wrote it decides what runs when you open it:


# %%
class Trap:
    def __reduce__(self):
        return print, ("this line was run by torch.load",)


file = FOLDER / "trap.pt"
torch.save({"step": 20, "args": Trap()}, file)
opened = torch.load(file, weights_only=False)

# %% [markdown]
# So `torch.load` by default reads only what needs no program: tensors, numbers, strings, lists and dicts.

# %%
import pickle

try:
    torch.load(file)
except pickle.UnpicklingError as error:
    print(next(line for line in str(error).splitlines() if "Unsupported" in line))

# %% [markdown] sections="10.5.1"
# <details><summary>Erratum 10.5.1: arguments in the checkpoint</summary>
#
# The textbook puts `args`, an `argparse.Namespace`, into the file. `torch.load` refuses it like our trap. `vars(args)` is a dict that says the same, and is harmless.
#
# </details>
#
# `torch.distributed.checkpoint` has such a place too: its usual `FileSystemWriter` pickles the `.metadata` that it reads first. Our `checkpoint` lets it write safetensors files instead, and refuses an `extra` that would have to be unpickled.

# %% [markdown] sections="10.5.1"
# ## Four kinds
#
# There are four kinds of checkpoints:
#
# - **plain**: rank 0 collects everything and writes one file;
# - **sharded**: each rank writes what it holds;
# - **asynchronous**: the states are copied, and a thread writes the copy while training goes on;
# - **incremental**: what has not changed is not written again.
#
# We try them with [FSDP](GLOSSARY.md#fsdp), where each of two ranks holds half of the parameters and of Adam's two moments.


# %%
def sharded_model(num_layers=4, dim=128):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = model.Transformer(num_layers, dim, 4, max_len=32)
    for layer in [*net.layers, net]:
        fully_shard(layer)
    return net, torch.optim.Adam(net.parameters(), lr=0.001)


def one_step(net, optimizer, seed):
    tokens, targets = model.story_tokens(4, 32, seed=seed)
    optimizer.zero_grad()
    model.loss(net(tokens), targets).backward()
    optimizer.step()


# %% [markdown]
# Say a sharded save takes 1. For how long does training stand still in an asynchronous one?

# %%
stop = lab.guess("an asynchronous save over a sharded one", between=(0, 2))


# %%
def save_twice(folder, kind):
    net, optimizer = sharded_model()
    stood_ms, done_ms = [], []
    for step in range(2):
        one_step(net, optimizer, step)
        dist.barrier()
        began = time.perf_counter()
        if kind == "asynchronous":
            saving = checkpoint.save_async(folder / kind, step, net, optimizer)
        else:
            path = checkpoint.save(folder / kind, step, net, optimizer, kind=kind)
        stood_ms.append(1e3 * (time.perf_counter() - began))
        if kind == "asynchronous":
            path = saving.result()
        done_ms.append(1e3 * (time.perf_counter() - began))
    return {
        "stands still": stood_ms[1],
        "on the disk": done_ms[1],
        "about": checkpoint.about(path),
        "spent": checkpoint.spent_s(),
    }


# %%
kinds = {}
for kind in (*checkpoint.KINDS, "asynchronous"):
    run = lab.launch(save_twice, FOLDER / "kinds", kind, ranks=2)
    kinds[kind] = run[0]
stop.score(kinds["asynchronous"]["stands still"] / kinds["sharded"]["stands still"])

# %%
shown = ("stands still", "on the disk")
times = {kind: {name: told[name] for name in shown} for kind, told in kinds.items()}
lab.bars(times, unit="ms", title="The second save of each kind", badge=run.badge)

# %% [markdown]
# The first bar of each pair is what training pays, the second one when the checkpoint is safe. Plain also gathers everything in the memory of rank 0, which a large model does not survive.

# %% [markdown] sections="10.5.1"
# ### Where does the time go?
#
# An asynchronous save still stops the training. What for? Each part was timed by the clock, in the same run:

# %%
spent_ms = {part: 1e3 * s for part, s in kinds["asynchronous"]["spent"].items()}
title = "An asynchronous save, part by part"
lab.bars(spent_ms, unit="ms", title=title, badge=run.badge)

# %% [markdown]
# Training waits for two of them only. In `list` the rank puts its tensors and Adam's into one table by their names, and in `copy` it copies them, so that the next step can't change what is being written. (`group`, made once in the first save, lets the thread talk to other ranks by itself.) The rest belongs to the thread: `write` are the files, and `seal` are the digests, the wait for the disk and the final rename.
#
# The price is memory for the copy, and a thread that competes with the training for the cores. Now compare what was written:

# %%
rows = []
for kind, told in kinds.items():
    about = told["about"]
    written = {
        "files written": len(about["files"]),
        "written_bytes": about["written_bytes"],
    }
    rows.append({"kind": kind} | written)
lab.table(rows)

# %% [markdown] sections="19.6.4"
# The bytes are the same but for names and headers: 12 for each parameter, since Adam has touched everything. So what does *incremental* save? It writes a file for each tensor, waits for the disk after each, and here it saves nothing.
#
# ### What incremental saves
#
# It helps only where something stays as it was. What share of the bytes is written again if everything is trained, and what if only the last layer is?

# %%
again = lab.guess("bytes written again, only the last layer trained", between=(0, 1))


# %%
def what_changes(folder, frozen):
    torch.manual_seed(0)
    net = model.Transformer(2, 64, 4, max_len=32)
    net.layers[:-1].requires_grad_(not frozen)
    trained = [weight for weight in net.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.001)
    written = []
    for step in range(3):
        one_step(net, optimizer, step)
        path = checkpoint.save(folder, step, net, optimizer, kind="incremental")
        written.append(checkpoint.about(path)["written_bytes"])
    return written


# %%
every = lab.launch(what_changes, FOLDER / "every", False, ranks=1)[0]
last = lab.launch(what_changes, FOLDER / "last", True, ranks=1)[0]
again.score(last[2] / last[0])

# %%
lab.bars(
    {"all layers": every[2] / every[0], "only the last layer": last[2] / last[0]},
    unit="share",
    title="Third save over the first, incremental",
)

# %% [markdown] sections="19.6.4"
# Adam moves every trained parameter in every step, with its moments and its count of steps. Only what is frozen stays. So incremental saves are for fine-tuning a part of a model.
#
# <details><summary>Erratum 19.6.4: store only the changed parameters "to reduce I/O"</summary>
#
# When all of a model is trained, all of it changes: `every[2] / every[0]`. The textbook's code also keeps a second copy of the model to compare with, and each of its deltas needs all the ones before. A digest of each tensor needs no copy, and here every checkpoint is complete: what has not changed is a second name of the same file.
#
# </details>

# %% [markdown] sections="19.6.4"
# ## A rank dies
#
# Thirty steps, a checkpoint after every tenth. After step 25 rank 1 is killed, as the system does when memory runs out. The script begins where the newest checkpoint ends; that is all it knows of recovery.


# %%
def train_and_save(folder, die_at=None):
    net, optimizer, rate = start()
    losses, position = {}, 0
    if checkpoint.checkpoints(folder):
        found = checkpoint.load(folder, net, optimizer)
        position = found["step"]
        rate.load_state_dict(found["extra"]["rate"])
    began = time.time()
    while position < 30:
        if position == die_at and dist.get_rank() == 1:
            print(time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        losses[position] = train(net, optimizer, rate, [position])[0]
        position += 1
        if position % 10 == 0:
            extra = {"rate": rate.state_dict()}
            checkpoint.save(folder, position, net, optimizer, extra=extra)
    return {"began": began, "losses": losses}


# %% tags=["raises-exception"]
try:
    lab.launch(train_and_save, FOLDER / "killed", 25, ranks=2)
except lab.RankFailed as error:
    noticed_s = time.time() - float(error.logs[1].split()[-1])
    raise

# %% [markdown]
# The same call again is the whole recovery. How many seconds pass from the kill to the first new step, your reading not counted?

# %%
recovered = lab.guess("from the kill to the first new step", unit="s")

# %%
again_s = time.time()
after = lab.launch(train_and_save, FOLDER / "killed", ranks=2)[0]
launch_s = noticed_s + after["began"] - again_s
recovered.score(launch_s)

# %%
undisturbed = lab.launch(train_and_save, FOLDER / "undisturbed", ranks=2)[0]["losses"]
lab.curves(
    measured={"undisturbed": undisturbed, "after the recovery": after["losses"]},
    x="training step",
    y="loss of rank 0",
    title="Killed after step 25, recovered from step 20",
)

# %%
same_steps = torch.tensor([undisturbed[step] for step in after["losses"]])
lab.difference(same_steps, torch.tensor([*after["losses"].values()]))

# %% [markdown] sections="19.6.4"
# From step 20 on the two lie on each other, to the last bit. What is lost are the steps since the last checkpoint, and nothing else. In real life most of the time goes into what is not here: finding a new machine, importing torch, reading a hundred gigabytes.
#
# <details><summary>Erratum 19.6.4: catch the error and go on</summary>
#
# The textbook catches an `NCCLError` and continues in the same process. torch has no such class; it raises `DistBackendError`: `hasattr(torch.distributed, "NCCLError")` is False. And when a rank is gone, the others stand deep in a collective, in an unknown state. To end all of them and start anew is what torchrun does, too.
#
# </details>

# %% [markdown]
# ### A rank dies while it saves
#
# The dangerous moment is the save itself. If `torch.save` writes onto the only good file and is killed half-way, you have nothing. Here rank 1 is killed when it is about to bring its part to the disk (`fsync`):


# %%
def die_in_the_save(folder):
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(5))
    checkpoint.save(folder, 5, net, optimizer)
    train(net, optimizer, rate, range(5, 10))
    if dist.get_rank() == 1:
        os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
    checkpoint.save(folder, 10, net, optimizer)


# %% tags=["raises-exception"]
lab.launch(die_in_the_save, FOLDER / "saving", ranks=2)

# %%
sorted(path.name for path in (FOLDER / "saving").iterdir())

# %% [markdown]
# The name with the dot was a checkpoint in the making. It gets its real name by one `rename`, which happens or does not, and only after every rank's files are on the disk. So what do we find when we come back?


# %%
def come_back(folder):
    net, optimizer, _ = start()
    found = checkpoint.load(folder, net, optimizer)
    return {
        "step": found["step"],
        "skipped": [each.rpartition("/")[2] for each in found["skipped"]],
    }


lab.launch(come_back, FOLDER / "saving", ranks=2)[0]

# %% [markdown]
# Disks also forget silently. An index holds a digest of each file, so even one flipped bit is found and named, and the checkpoint before it is taken:

# %%
newest = checkpoint.checkpoints(FOLDER / "undisturbed")[0]
file = max(newest.glob("shard*"))
content = bytearray(file.read_bytes())
content[-1] ^= 1
file.write_bytes(content)
lab.launch(come_back, FOLDER / "undisturbed", ranks=2)[0]

# %% [markdown]
# ## Exercise 1. A save that does no harm
#
# Now write one. Every rank calls your function; `net` is wrapped in DDP, `args` is an `argparse.Namespace`. Leave one file that `torch.load(file, weights_only=True)` reads: a dict of `model` (names without `module.`), `optimizer`, `scheduler`, `step`, `args` (a dict) and `rng` (a list: `torch.get_rng_state()` of every rank). Whenever a rank is killed, `file` must be the old one or the new one, whole; also after a power cut. The check kills ranks.


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

# %% [markdown] sections="10.5.1, 19.6.4"
# ## Come back with fewer ranks
#
# What if a machine is gone for good? A sharded checkpoint says of every part where in the whole tensor it belongs. So whoever loads takes what it needs. This is called **resharding**. The names are those of the bare model, so even the engine may be another. We save with four ranks of FSDP:


# %%
def whole(net, optimizer):
    """All parameters and Adam's states, whole."""
    states = [state[key] for state in optimizer.state.values() for key in sorted(state)]
    tensors = [*net.parameters(), *states]
    return [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in tensors
    ]


def save_shards(folder):
    net, optimizer = sharded_model(1, 64)
    one_step(net, optimizer, 0)
    checkpoint.save(folder, 1, net, optimizer)
    return [each.detach() for each in whole(net, optimizer)]


saved = lab.launch(save_shards, FOLDER / "shards", ranks=4)[0]

# %% [markdown]
# And load with two, first into FSDP and then into DDP:


# %%
def load_shards(folder, engine):
    net, optimizer = sharded_model(1, 64)
    if engine == "DDP":
        bare = model.Transformer(1, 64, 4, max_len=32)
        net = nn.parallel.DistributedDataParallel(bare)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    found = checkpoint.load(folder, net, optimizer)
    tensors = [each.detach() for each in whole(net, optimizer)]
    return {"tensors": tensors, "random numbers go on": found["rng"]}


rows = []
for engine in ("FSDP", "DDP"):
    told = lab.launch(load_shards, FOLDER / "shards", engine, ranks=2)[0]
    equal = sum(torch.equal(a, b) for a, b in zip(saved, told.pop("tensors")))
    rows.append({"engine": engine, "equal tensors": f"{equal} / {len(saved)}"} | told)
lab.table(rows)

# %% [markdown] sections="19.6.4"
# Tensors carry over to the bit. Random generators do not: there were four, and now there are two. The same batch is also cut into fewer parts, so sums are rounded otherwise. With another number of ranks the losses agree closely, and not to the bit. What must not depend on the ranks, such as the data, is best drawn from (seed, step).
#
# DeepSpeed's own files are bound to their number of ranks, and it refuses another. Its way is a conversion in between: `engine.save_checkpoint`, then the command `ds_to_universal --inject_missing_state`, then a configuration with `"checkpoint": {"load_universal": true}`.

# %% [markdown] sections="19.6.4"
# ## torchrun restarts
#
# Outside of a notebook, somebody must notice the death and start again. `torchrun --max-restarts` does: when a rank dies it ends the others and starts all of them anew. The script only has to begin where the newest checkpoint ends.

# %%
TRAIN = """
import os, signal, sys, time
from pathlib import Path
began = time.time()
import torch
import torch.distributed as dist
from labkit.launching import rank
from labkit.recovery import checkpoint
imports_s = time.time() - began

folder, killed = map(Path, sys.argv[1:])
if torch.accelerator.is_available():
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device(torch.accelerator.current_accelerator())
dist.init_process_group()
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(net.parameters())
step = 0
if checkpoint.checkpoints(folder):
    step = checkpoint.load(folder, net, optimizer)["step"]
rank.current().give((step, time.time(), imports_s))
for step in range(step, 6):
    if step == 4 and dist.get_rank() == 1 and not killed.exists():
        killed.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    net(torch.ones(2, 4)).sum().backward()
    for weight in net.parameters():
        dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 2:
        checkpoint.save(folder, step + 1, net, optimizer)
dist.destroy_process_group()
"""
script = FOLDER / "train.py"
script.write_text(TRAIN)

# %% [markdown]
# It saves after step 3 and is killed after step 4. Which takes longer, `lab.launch` above or torchrun, and how many times?

# %%
slower = lab.guess("torchrun over lab.launch, kill to first step", between=(0.1, 100))

# %%
killed_at = FOLDER / "killed at"
ran = lab.launch_script(script, FOLDER / "torchrun", killed_at, ranks=2, max_restarts=2)
step, began_s, imports_s = ran[0]
torchrun_s = began_s - float(killed_at.read_text())
slower.score(torchrun_s / launch_s)

# %%
lab.bars(
    {"lab.launch": launch_s, "torchrun": torchrun_s, "of these, imports": imports_s},
    unit="s",
    title="From the kill to the first new step",
)

# %% [markdown]
# A new process begins with `import torch` and whatever else the script imports. The rest is the agent, which must notice, stop the others and start again, and the way to the checkpoint. `lab.launch` forks from a process that has the imports already. (The environment variable in front of the command is a repair: torch 2.13 keeps one store for all starts, and a new rank may find the address of a dead one there, and wait for it.)
#
# torchrun also goes on with *fewer* machines. Then there is one torchrun on each, `--nnodes 1:2` says that one or two of them are enough, and when one is gone, the others meet again. `launch_script(..., nodes=(1, 2))` lets two torchruns on this machine stand for two; that takes too long for this page.

# %% [markdown]
# ## When is it worth it?
#
# Back to the first picture. With a save of C seconds (the [save time](GLOSSARY.md#save-time)) and a failure every M seconds (the [time between failures](GLOSSARY.md#time-between-failures)), Young (1974) finds the best interval:
#
# $$T = \sqrt{2\,C\,M}$$
#
# With Llama 3's M and a save of one minute, how many minutes is that?

# %%
best = lab.guess("best interval in minutes", between=(1, 120))

# %%
young_s = (2 * SAVE_S * FAILURE_S) ** 0.5
best.score(young_s / 60)

# %% [markdown]
# Does a formula know what failures do? Let's play some thousand intervals through, with failures at random moments:


# %%
def lived_through(interval_s, num_intervals=4000):
    """Wall time over useful time, with failures at random moments."""
    failures = torch.distributions.Exponential(1 / FAILURE_S)
    clock_s, next_s = 0.0, failures.sample().item()
    for _ in range(num_intervals):
        end_s = clock_s + interval_s + SAVE_S
        while next_s < end_s:  # what was done since the last checkpoint is lost
            end_s = next_s + RESTART_S + interval_s + SAVE_S
            next_s += failures.sample().item()
        clock_s = end_s
    return clock_s / (num_intervals * interval_s)


torch.manual_seed(0)
lab.curves(
    predicted={
        "formula": costs,
        "played through": {m: lived_through(60 * m) for m in minutes},
    },
    x="minutes between two checkpoints",
    y="time over useful time",
    log_x=True,
    title="Formula and random failures",
    badge="simulated",
)

# %% [markdown]
# The formula is Daly's complete one (2006), $M e^{R/M}(e^{(T+C)/M}-1)/T$. Nothing was measured here, both are simulated. The valley is flat: twice or half of the best interval costs little. And the interval grows only with the root of C. So an asynchronous save, which stops training for a shorter time, may come more often, and then a failure loses less. The time to recover, R, does not move the valley. It lifts it.
#
# For the small model above, with the same M:

# %%
stops_s = {
    kind: kinds[kind]["stands still"] / 1000 for kind in ("sharded", "asynchronous")
}
every_s = {kind: (2 * s * FAILURE_S) ** 0.5 for kind, s in stops_s.items()}
lab.bars(
    every_s, unit="s", title="Best interval", badge="predicted from measured saves"
)

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tells the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 2. How often, exactly
#
# Young's root is a first approximation. Where does it fail? Find the interval that costs least by Daly's formula, `check.slowdown(interval_s, save_s, mtbf_s)`, to 1 % of the cost; also where a save takes as long as the time between failures.


# %%
def my_interval(save_s, mtbf_s):
    """Seconds between two checkpoints, the save not counted."""
    ### BEGIN SOLUTION
    candidates = [mtbf_s * 10 ** (-5 + 0.005 * i) for i in range(1060)]

    def cost(interval_s):
        return check.slowdown(interval_s, save_s, mtbf_s)

    return min(candidates, key=cost)
    ### END SOLUTION


# %%
check.interval(my_interval)

# %%
check.hint("interval")

# %% [markdown] sections="19.8.5"
# ### 3. A training that outlives its ranks
#
# Build an elastic training. `training` is a run that will be disturbed: ranks are killed, in a step or in a save; some come back, some are gone for good; and once it is a bug, which no restart cures. Write two functions.
#
# - `my_rank` runs in every rank. `training.build()` gives a model in DDP and its Adam, `training.step(net, optimizer, step)` trains step `step`, there are `training.num_steps`, and a checkpoint is due after every `training.every` steps, in `training.folder`. It returns the trained `state_dict`. (The batch is the same for any number of ranks, so the learning rate stays.)
# - `my_elastic` runs in the notebook. `training.launch(my_rank, training, ranks=...)` is `lab.launch`, `training.ranks_left()` is how many there are, and after `training.max_restarts` restarts the exception goes out. It returns the last run.


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

# %%
check.hint("elastic")

# %% [markdown]
# ## Summary
#
# - A checkpoint holds model, optimizer, learning rate, data position and the random generators of every rank. With all of them, resumed training is undisturbed training, to the bit.
# - A file to be read, not run: `weights_only=True`, dicts instead of objects.
# - Sharded, so that no rank holds everything; asynchronous, so that training stops only for listing and copying; incremental where much is frozen.
# - Written under another name, `fsync`, one `rename`: a killed save costs nothing. A digest finds what the disk forgot.
# - Recovery is a new start: end all ranks, launch what is left, load and reshard. Give up when it does not help.
# - Save every $\sqrt{2CM}$ seconds.
#
# **Words:** [checkpoint](GLOSSARY.md#checkpoint), [save](GLOSSARY.md#save), [save time](GLOSSARY.md#save-time), [time between failures](GLOSSARY.md#time-between-failures), [shard](GLOSSARY.md#shard).
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
