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
# In 54 days of training on 16,384 GPUs, Llama 3 was interrupted 419 times unexpectedly. That is once in three hours, and each time all ranks stop. Had nothing been saved, training would hardly ever have got past its first day.
#
# So we save a [checkpoint](GLOSSARY.md#checkpoint) now and then. Save too seldom, and each failure costs hours; save too often, and you do nothing else. Let a save stop training for a minute, and let it take five minutes to come back (we assume both). How many minutes between two checkpoints lose the least time?

# %%
import contextlib
import inspect
import os
import pickle
import signal
import statistics
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
# This is calculated, for GPUs that fail as often as Llama 3's. On the left saving eats the time, on the right failures do, and even at best an eighth of all time is lost. The five minutes to come back only lift the curve; they don't move its lowest point.
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
resumed, undisturbed = losses["from the file"], losses["undisturbed"]
apart = {"resumed - undisturbed": {i: resumed[i] - undisturbed[i] for i in resumed}}
axes = {"x": "training step", "y": "difference of the loss", "marks": {"the same": 0}}
lab.curves(measured=apart, **axes, title="Step 30 and on, rank 1")

# %% [markdown] sections="10.5.1"
# They part at the very first step, although weights, Adam and data are right. What did we forget? Look at `start` once more before you read on.
#
# Dropout draws random numbers, and after the restart it draws those of the beginning again. The model is fine. But if healthy restarts change the losses, you can't tell a broken one from them. So the random generators become one more part. On a GPU these are two: dropout draws from the GPU's, and a plain `DataLoader` shuffles with the CPU's. (DDP's `DistributedSampler` needs neither: it draws from seed + epoch.)


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
# Now it is the same training, to the bit. That holds on a CPU; some GPU kernels differ from run to run, unless you ask for deterministic ones. If you draw from Python's `random` or NumPy, their generators are parts, too.

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
# The dashed line is how far undisturbed weights move in these steps. Adam begins anew with a step of the full learning rate for every weight that has a gradient, however small: without old moments, the step is gradient over size of gradient. But other random numbers take the weights some way, too, though nothing is wrong with them. So only a distance of 0 tells you that nothing is broken.
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

# %%
try:
    torch.load(file)
except pickle.UnpicklingError as error:
    print(str(error).split("WeightsUnpickler error: ")[1].split(". ")[0])

# %% [markdown] sections="10.5.1"
# The first call loads as old versions of torch did. The second is the default since 2.6: it reads only tensors, numbers, strings, lists and dicts. `torch.distributed.checkpoint` still unpickles its file `.metadata`, so our `checkpoint` lets it write safetensors files instead, in which there is nothing to run.

# %% [markdown] sections="10.5.1"
# ## Does training wait?
#
# A large checkpoint might not fit into rank 0's memory, so each rank writes what it holds (*sharded*). Must training wait until the files are on the disk? In an *asynchronous* save it waits only until the states are copied, and a thread writes the copy.
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
# We save after every fourth step. In one run training waits until each save is done, in the other the thread writes beside the steps. How long does training stand still in the second, as a share of the first?

# %%
stop = lab.guess("standing still for the copy, over the whole save", unit="share")


# %%
def saves(folder, waits):
    """How long training stood still for each save, and a picture of the last steps."""
    net, optimizer = sharded_model()
    steps_s, still_s = [], []
    for step in range(24):
        began_s = time.perf_counter()
        one_step(net, optimizer, step)
        steps_s.append((began_s, time.perf_counter()))
        if step % 4 == 0:
            saving = checkpoint.save_async(folder, step, net, optimizer)
            if waits:
                saving.result()
            still_s.append(time.perf_counter() - steps_s[-1][1])
    saving.result()
    return still_s[1:], checkpoint.beside(steps_s[-6:])  # the first save warms up


# %%
waiting = lab.launch(saves, FOLDER / "waits", True, ranks=2)
beside = lab.launch(saves, FOLDER / "beside", False, ranks=2)
whole_s = statistics.median(waiting[0][0] + waiting[1][0])
copy_s = statistics.median(beside[0][0] + beside[1][0])
stop.score(copy_s / whole_s)

# %%
still = {"the whole save": 1000 * whole_s, "only the copy": 1000 * copy_s}
lab.bars(still, unit="ms", title="Training stands still: median of ten, on two ranks")

# %%
lab.show(beside[0][1], title="A thread writes beside the steps")

# %% [markdown] sections="10.5.1, 19.6.4"
# Above are the steps, below the thread: `write` writes the files, and `seal` makes them a checkpoint. Of the wait only a small gap is left, for the copy. The thread shares the cores with the steps above it, and may slow them; but steps on a busy machine vary too much to tell, so we compare only the gaps. The price is memory for the copy. And if a rank dies while the thread writes, the newest checkpoint is the one before.
#
# <details><summary>What incremental saves</summary>
#
# A save writes 12 bytes for each parameter, 4 for the weight and 8 for Adam's two moments. An *incremental* save (`kind="incremental"`) writes only the tensors that have changed since the last one. When all is trained, nothing is spared, because something changes in every trained tensor. When all but the last layer is frozen, and that has 10 % of the parameters, the second save writes 12 · 10 / (12 · 10 + 4 · 90) = 25 % of the first: what is frozen has no state of Adam, so it costs 4 bytes the first time and none the second. So incremental saves are for fine-tuning a part of a model.
#
# </details>

# %% [markdown]
# ## When is it worth it?
#
# What a save costs is the time for which training stands still. Call it C seconds (the [save time](GLOSSARY.md#save-time)), and let a failure come every M seconds (the [time between failures](GLOSSARY.md#time-between-failures)). With a checkpoint every T seconds we pay twice:
#
# - Each interval pays one save: C/T of the time.
# - Each failure loses half an interval on average: T/2 of M seconds, or T/2M of the time.

# %%
minutes = [2 * 1.25**i for i in range(19)]
saving = {t: 1 / t for t in minutes}  # C is one minute, as in the first picture
redone = {t: 60 * t / (2 * mtbf_s) for t in minutes}
both = {t: saving[t] + redone[t] for t in minutes}
exact = {t: how_often.lost_share(60 * t, 60, mtbf_s) for t in minutes}

# %%
young = (2 * 60 * mtbf_s) ** 0.5 / 60
lab.curves(
    predicted={"C/T": saving, "T/2M": redone, "their sum": both, "exact": exact},
    at={"C/T = T/2M": young},
    x="minutes between two checkpoints",
    y="share of all time that is lost",
    unit="share",
    log_x=True,
    title="What saves and failures cost",
)

# %% [markdown]
# The sum is least where both are equal, which is Young's result (1974):
#
# $$T = \sqrt{2\,C\,M}$$
#
# That makes 19.3 minutes; the exact curve, that of the first picture without the time to come back, has its lowest point at 18.6. They part on the left, because Young counts a save beside the time of training alone, and the curve shows its share of all time. And the valley is flat: twice or half of the best interval costs some 2 percentage points more. Of 16,384 GPUs, though, that is more than 300.
#
# <details><summary>The exact formula</summary>
#
# Young leaves out that a failure may come while we save, or come back. Daly (2006) does not: one second of training takes $M e^{R/M}(e^{(T+C)/M}-1)/T$ seconds, where R is the time to come back, and `how_often.lost_share` is 1 - 1 / that. He takes failures to come at random; real ones may come in clusters.
#
# </details>
#
# ### Llama 3's own saves
#
# So what was C? The largest Llama 3 has 405 B parameters, with 12 bytes to save for each (the weight and Adam's moments), so 4.9 TB. Its storage takes 2 TB/s, and no GPU has more than 4 GB to save (both from the paper). Say that a rank alone writes 2 GB/s, and copies 20 GB/s to its host's memory. Then one rank writes for 40 minutes, all ranks together for 2.4 s, and each copies for 0.2 s at most. With five minutes to come back, as before, how much of the time is lost when all ranks write, and training waits?

# %%
least = lab.guess("share of all time lost, when all ranks write", unit="share")

# %%
save_s = {"one rank": 4860 / 2, "all ranks": 4.86 / 2, "all, asynchronous": 4 / 20}
lost = {}
for name, each_s in save_s.items():
    best_s = how_often.cheapest_s(each_s, mtbf_s)
    lost[name] = how_often.lost_share(best_s, each_s, mtbf_s, 300)
least.score(lost["all ranks"])

# %%
lab.bars(
    lost,
    unit="share",
    title="Time lost at the best interval",
    marks={"Llama 3 says: less than": 0.1},
    badge="predicted",
)

# %% [markdown]
# The paper reports "higher than 90% effective training time", so less than 10 % was lost. Saves by all ranks agree with that; the minute of our first picture, with an eighth lost, does not. What the last two bars lose is mostly the time to come back: 300 s in every three hours are 2.7 %. So let's turn to that.

# %% [markdown] sections="19.6.4"
# ## A rank dies
#
# Thirty steps, a checkpoint after every tenth. After 25 steps rank 1 is killed, as the system does when the host's memory runs out. The function begins where the newest checkpoint ends; that is all it knows of recovery. (The error below is meant.)


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
round(after.seconds, 1)  # from the call to the end

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
# From step 20 on, the losses are those of undisturbed training, to the last bit: every difference is 0. Training falls back to the checkpoint and does five steps again, and that is all the work that is lost here. The second launch took the seconds printed above.
#
# In real life somebody must notice first. Here that takes milliseconds, because the dead rank's connections close. A rank on GPUs that hangs, or whose machine is gone, may keep the others in a collective until a watchdog ends them: ten minutes later by default, 5 % of all time where a failure comes every three hours. So set `init_process_group(timeout=...)`.

# %% [markdown]
# ### A rank dies while it saves
#
# The dangerous moment is the save itself. If `torch.save` writes onto the only good file and is killed half-way, you have nothing. So a save writes under another name, here one that begins with a dot, and gets its real name by one `rename`, when every rank's files are written. (A file system has that; an object store has not.) Rank 0 has saved step 10, and is killed in the save of step 20: at its first `fsync`, just before the `rename`, or just after it. Then we launch again. How many of the three begin at step 20?

# %%
at_20 = lab.guess("how many begin again at step 20", between=(0, 3))


# %%
def die_in_the_save(folder, moment):
    recovery.die_in_save(moment, number=2)  # rank 0, in its second save
    train_and_save(folder)


# %%
kills = []
names = ("at an fsync", "before the rename", "after the rename")
for name, moment in zip(names, ("fsync", "rename", "renamed")):
    with contextlib.suppress(lab.RankFailed):
        lab.launch(die_in_the_save, FOLDER / moment, moment, ranks=2)
    found = ", ".join(sorted(path.name for path in (FOLDER / moment).iterdir()))
    again = lab.launch(train_and_save, FOLDER / moment, ranks=2)
    first = min(printed(again.logs))
    kills.append({"killed": name, "in the folder": found, "begins again": first})
at_20.score(sum(kill["begins again"] == 20 for kill in kills))

# %%
lab.table(kills)

# %% [markdown]
# The rename happens or does not, so at every moment a whole checkpoint is there.
#
# What is `fsync` for, then? A killed process loses nothing that it has handed to the operating system, but a power cut does, and that we can't show here. `fsync` waits until the bytes are on the disk, so it must come before the rename. The new name itself is safe after an `fsync` of its folder. All this is `seal`.
#
# Disks sometimes return other bytes than were written, without an error. So a checkpoint keeps a [digest](GLOSSARY.md#digest) of each of its files, a short number made from all of its bytes. Let's flip one bit in the checkpoint of step 30, and begin again:

# %%
newest = checkpoint.checkpoints(FOLDER / "calm")[0]
file = max(newest.glob("shard*"))
content = bytearray(file.read_bytes())
content[-1] ^= 1
file.write_bytes(content)
again = lab.launch(train_and_save, FOLDER / "calm", ranks=2)
min(printed(again.logs))

# %% [markdown]
# The bit is found, so training begins at step 20, from the checkpoint before.

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
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


# %%
def save_shards(folder):
    net, optimizer = sharded_model(64)
    one_step(net, optimizer, 0)
    weights, moments = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    return checkpoint.whole(net, optimizer)  # all tensors, on rank 0


# %% [markdown]
# Two ranks load, and into DDP. `dcp.load` fills the tensors that it is given, so `get_state_dict` first makes Adam's moments, as zeros. It names every tensor as the bare model would, so another wrapper can read them.


# %%
def load_in_ddp(folder):
    net = nn.parallel.DistributedDataParallel(model.Transformer(1, 64, 4, max_len=32))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    weights, moments = get_state_dict(net, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    states = {"model_state_dict": weights, "optim_state_dict": moments}
    set_state_dict(net, optimizer, **states)
    return checkpoint.whole(net, optimizer)


# %%
saved = lab.launch(save_shards, FOLDER / "shards", ranks=4)[0]
loaded = lab.launch(load_in_ddp, FOLDER / "shards", ranks=2)[0]
all(torch.equal(saved[name], loaded[name]) for name in saved)

# %% [markdown] sections="19.6.4"
# Tensors carry over to the bit. Random generators do not, because there were four, and now there are two. Nor does the data position: each step takes one batch for each rank, so with half the ranks step 20 would begin at batch 40, which was seen long ago. So count samples, not steps, and keep the global batch. Sums are then added in another order, so losses agree closely, but not to the bit.
#
# ### The same in your library
#
# | library | save | load | other ranks | generators |
# | --- | --- | --- | --- | --- |
# | torch | `dcp.save`, `dcp.async_save` | `dcp.load` | yes | add them |
# | Accelerate | `save_state` | `load_state` | depends on the backend | each rank's |
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
# Outside of a notebook, somebody must notice the death and start again. `torchrun --max-restarts` does: when a rank dies it ends the others and starts all of them anew. The script is our functions from above, started from outside:

# %%
SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from labkit import model
from labkit.recovery import checkpoint

{functions}
dist.init_process_group()
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
train_and_save(sys.argv[1], 25 if is_first else None)
dist.destroy_process_group()
"""

# %%
functions = map(inspect.getsource, (warm_up, start, train, train_and_save))
script = FOLDER / "train.py"
num_written = script.write_text(SCRIPT.format(functions="\n".join(functions)))
ran = lab.launch_script(script, FOLDER / "restarted", ranks=2, max_restarts=2)
print(*(line.split()[0] for line in ran.logs[0].splitlines() if line[0].isdigit()))

# %% [markdown]
# These are the steps that rank 0 printed. After step 24 the second start begins at 20, the last save.
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
# **Delete the old ones.** A checkpoint of 4.9 TB every 19 minutes makes 370 TB a day; a quicker save, made more often, makes more. Our `checkpoint` keeps the newest two (`keep=2`), in case the first can't be read.
#
# **Save when you are asked to leave.** Slurm, if set so, and many cheap machines send SIGTERM some time before they kill. A signal sets a flag; the all-reduce of a copy lets all ranks see it after the same step (a sketch, not run here; with NCCL the copy goes to the GPU):
#
# ```python
# asked = torch.zeros(1)
# signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
# for step in range(first, last):
#     train_step(step)
#     seen = asked.clone()  # a signal may arrive during the call
#     dist.all_reduce(seen)
#     if seen > 0:
#         checkpoint.save(folder, step + 1, net, optimizer, extra=rate.state_dict())
#         break
# ```


# %% [markdown]
# ## Exercises
#
# Exercise 1 is above.
#
# ### 2. How often, on your cluster
#
# You have `num_gpus` GPUs, as reliable as Llama 3's, and a save takes `save_s` seconds. How often do you save? `how_often.mtbf_s(num_gpus)` is M, and `how_often.lost_share(interval_s, save_s, mtbf_s)` what you lose. The check takes clusters of up to a million GPUs, and allows a training 1.01 times as long as with the best interval. At the largest sizes, Young's root is no longer good enough.
#
# <details><summary>A first hint</summary>
#
# Draw `lost_share` against the interval for a million GPUs: where is its lowest point, and where is Young's root?
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
# - Interruptions, storage, effective training time: Llama Team 2024, *The Llama 3 Herd of Models*, [arXiv 2407.21783](https://arxiv.org/abs/2407.21783), sections 3.3.1 and 3.3.4
# - [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), [DeepSpeed's universal checkpoints](https://www.deepspeed.ai/tutorials/universal-checkpointing/)
# - The shared store of torchrun's restarts: [pytorch issue 135712](https://github.com/pytorch/pytorch/issues/135712)
#
# **Next:** [debugging](14_debugging.ipynb), for trainings that neither die nor live.

# %% [markdown] sections="10.5.1, 19.6.4"
# ## Errata of the textbook
#
# <details><summary>Four errata, for readers of that textbook</summary>
#
# <details><summary>Erratum 10.5.1: what a checkpoint holds</summary>
#
# The textbook's list has model, optimizer, scheduler, epoch and step. Two things are missing: the random generators, of every rank, and the place *within* the epoch. Our first run lacked only the first of them, and `is_same` was False. (With a `DataLoader`, torchdata's `StatefulDataLoader` keeps the place: it has a `state_dict`.)
#
# </details>
#
# <details><summary>Erratum 10.5.1: command-line arguments in the checkpoint</summary>
#
# The textbook puts `args`, an `argparse.Namespace`, into the file. `torch.load(file)` refuses it like our trap. `vars(args)` is a dict of the same content, and is harmless.
#
# </details>
#
# <details><summary>Erratum 19.6.4: store only the changed parameters "to reduce I/O"</summary>
#
# When all of a model is trained, something changes in every tensor. The textbook's code also keeps a second copy of the model to compare with, and each of its deltas needs all the ones before. A digest of each tensor needs no copy, and with `checkpoint.save(..., kind="incremental")` every checkpoint is complete: what has not changed is a hard link, a second name of the same file.
#
# </details>
#
# <details><summary>Erratum 19.6.4: catch the error and go on</summary>
#
# The textbook catches an `NCCLError` and continues in the same process. torch has no such class; it raises `DistBackendError`: `hasattr(torch.distributed, "NCCLError")` is False. And when a rank is gone, the others stand deep in a collective, in an unknown state. To end all of them and start anew is what torchrun does, too.
#
# </details>
#
# </details>
#
# *Sections 10.5.1, 19.6.4 and 19.8.5 of the source material.*

# %%
check.status()
