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
# *An hour; half an hour more for the optional end, and an hour for the exercises. You need chapters 03 and 07, and no GPU.*
#
# In 54 days of training on 16,384 GPUs, Llama 3 was interrupted 419 times unexpectedly. That is once in three hours, and each time all ranks stop.
#
# So we save a [checkpoint](GLOSSARY.md#checkpoint) now and then. We assume that a save stops training for a minute, and that it takes five to come back after a failure. Save too often, and you do little else; save too seldom, and each failure costs hours:

# %%
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import labkit as lab
from labkit import model, recovery, widgets
from labkit.recovery import check, checkpoint, how_often, saving_run

lab.begin("en")
FOLDER = Path(tempfile.mkdtemp())

# %%
mtbf_s = how_often.mtbf_s(16_384)  # seconds between two failures
given = {"save_s": 60, "mtbf_s": mtbf_s, "restart_s": 300}
lost = {
    "every minute": how_often.lost_share(interval_s=60, **given),
    "every three hours": how_often.lost_share(interval_s=3 * 3600, **given),
}
lab.bars(lost, unit="share", title="Share of all time lost", badge="predicted")

# %% [markdown]
# This is calculated by Daly's formula (a box below has it) for GPUs that fail as often as Llama 3's. How many minutes between two checkpoints lose the least time?
#
# **When you are done** you can write a checkpoint that no crash can spoil, resume training so that nobody can tell, and say how often to save.

# %% [markdown]
# ## By hand
#
# What must a checkpoint hold, so that training goes on as if nothing had happened? We train a small model with Adam and a learning rate that warms up.


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
# We train thirty steps, save a checkpoint, and train ten more. Then a new model does the last ten again, from the file. The file holds model, optimizer and learning rate; the data position we pass by hand. Each rank writes a file of its own.


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
# At which step, if any, does the loss from the file first differ from the undisturbed loss, if only in the last bit?

# %%
parting = lab.guess("first step whose loss differs (40: none)", between=(30, 40))

# %%
losses = lab.launch(by_hand, FOLDER, ranks=2)[0]
resumed, undisturbed = losses["from the file"], losses["undisturbed"]
differ = [step for step in resumed if resumed[step] != undisturbed[step]]
parting.score(min(differ, default=40))

# %%
apart = {"resumed - undisturbed": {i: resumed[i] - undisturbed[i] for i in resumed}}
axes = {"x": "training step", "y": "difference of the loss", "marks": {"the same": 0}}
lab.curves(measured=apart, **axes, title="Step 30 and on, rank 0")

# %% [markdown] sections="10.5.1"
# They part at the first step, step 30, although weights, Adam and data are right. Dropout draws random numbers, and after the restart it draws those of the beginning again. If even a correct restart changes the losses, you can't see when a restart is wrong. So the generators become one more part.


# %%
class RandomNumbers:
    """This rank's generators, the CPU's and the accelerator's, for a checkpoint."""

    def __init__(self):
        device = torch.accelerator.current_accelerator(check_available=True)
        self.of = [torch, torch.get_device_module(device)] if device else [torch]

    def state_dict(self):
        return [each.get_rng_state() for each in self.of]

    def load_state_dict(self, states):
        for each, state in zip(self.of, states):
            each.set_rng_state(state)


# %%
def with_random_numbers(folder):
    return by_hand(folder, random_numbers=RandomNumbers())


losses = lab.launch(with_random_numbers, FOLDER, ranks=2)[0]
losses["undisturbed"] == losses["from the file"]

# %% [markdown] sections="10.5.1"
# Now it is the same training, to the bit. On a GPU you also need deterministic kernels (`torch.use_deterministic_algorithms(True)`).

# %% [markdown] sections="10.5.1"
# ### What if one is forgotten?
#
# From here on `checkpoint.save(folder, step, net, optimizer, extra)` saves model, optimizer, step and each rank's generators (Python's and numpy's, too). What else you need, here the schedule, goes into `extra`. `checkpoint.load` returns `step` and `extra`.
#
# `resume` forgets one part at a time.


# %%
def go_on(net, optimizer, rate, first):
    """The loss on the same 1,024 passages, after each of twenty steps."""
    tokens, targets = model.story_tokens(1024, 8, seed=10**6)
    losses = []
    for position in range(first, first + 20):
        train(net.train(), optimizer, rate, [position])
        with torch.no_grad():
            loss = nn.functional.cross_entropy(net.eval()(tokens), targets[:, -1])
        losses.append(loss.item())
    return torch.tensor(losses)


# %%
def resume(folder, without):
    net, optimizer, rate = start()
    wanted = None if without == "Adam" else optimizer
    found = checkpoint.load(folder, net, wanted)
    if without != "learning rate":
        rate.load_state_dict(found["extra"])
        # needed where Adam's state, which holds the rate, was not loaded
        optimizer.param_groups[0]["lr"] = rate.get_last_lr()[0]
    if without == "random numbers":
        torch.manual_seed(99)
    first = 0 if without == "data position" else found["step"]
    return go_on(net, optimizer, rate, first)


# %%
parts = ["nothing", "Adam", "learning rate", "data position", "random numbers"]


def leave_out(folder):
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(100))
    checkpoint.save(folder, 100, net, optimizer, extra=rate.state_dict())
    undisturbed = go_on(net, optimizer, rate, 100)
    return {part: resume(folder, part) - undisturbed for part in parts}


# %% [markdown]
# We come back at step 100 and train twenty steps. What has raised the loss most at the end, against undisturbed training?

# %%
worst = lab.guess("what raises the loss most if forgotten", choices=parts[1:])

# %%
more = lab.launch(leave_out, FOLDER / "parts", ranks=2)[0]
worst.score(max(more, key=lambda part: more[part][-1]))

# %%
lab.curves(
    measured={part: dict(enumerate(more[part].tolist(), 1)) for part in parts},
    joined=True,
    x="steps after the restart",
    y="loss - undisturbed",
    title="What a forgotten part costs",
)

# %% [markdown] sections="10.5.1"
# - **Adam**: its first steps are too large: the very first is a full step for every weight that has a gradient, however small, and the next ones shrink only slowly.
# - **Data position**: training sees old batches again and learns them by heart, so the loss on other passages rises.
# - **Learning rate**: Adam's state holds the old rate, so one step runs at the full rate, and the next at 0.1 + 0.09 = 0.19 of it.
# - **Random numbers**: dropout drops other units. Chance alone makes that difference; here, the learning rate's curve ends no higher.
# - **Nothing**: only a difference that stays 0 says that nothing is broken.
#
# Each ran once; twenty steps can't tell how far Adam and the position recover.
#
# <details><summary>A trap: a schedule that multiplies what it finds</summary>
#
# Our schedule says what the rate *is* at each step. torch's `LinearLR(optimizer, 0.1, total_iters=10)` multiplies the rate that it finds in the optimizer, from a tenth to the whole in ten steps. Come back with the optimizer and without this schedule, and it finds the whole rate, multiplies it as often, and stays at *ten times* the rate for ever.
#
# </details>
#
# <details><summary>The place in a real data loader</summary>
#
# Our data position is a number that we pass. With a `DataLoader`, which shuffles and whose workers read ahead, torchdata's [StatefulDataLoader](https://docs.pytorch.org/data/0.8/torchdata.stateful_dataloader.html) keeps it: its `state_dict` is one more part for the file, each rank's own (not run here).
#
# </details>

# %% [markdown] sections="19.6.4"
# ## A rank dies
#
# We train thirty steps, with a checkpoint after every tenth. After 25 steps rank 1 is killed. Each start loads the newest checkpoint and goes on from its step. (The error below is meant; its line 9 is in `train`.)


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
# The same call again, without the kill, is the whole recovery:


# %%
def printed(logs):
    """What rank 0 printed, as {step: loss}."""
    words = [line.split() for line in logs[0].splitlines()]
    return {int(step): float(loss) for step, loss in words}


# %%
again = lab.launch(train_and_save, FOLDER / "dying", ranks=2)
calm = lab.launch(train_and_save, FOLDER / "calm", ranks=2)
runs = {"until the kill": killed, "started again": again, "undisturbed": calm}
losses = {name: printed(run.logs) for name, run in runs.items()}

# %%
steps = range(18, 28)
lab.table(
    [{"training step": i} | {run: losses[run].get(i) for run in runs} for i in steps]
)

# %%
[losses["undisturbed"][i] - loss for i, loss in losses["started again"].items()]

# %% [markdown] sections="19.6.4"
# These are rank 0's losses. Training falls back to step 20 and does five steps again, and from there on every difference is 0. Outside of a notebook, `torchrun --max-restarts` does this: when a rank dies, it ends the others, and starts all anew.

# %% [markdown]
# ### A rank dies while it saves
#
# If a rank dies in the middle of a save, is there still something to come back to? `checkpoint.save` writes a draft under another name, which begins with a dot. When every rank's files are written, one `rename` gives it the real name. We compare it with a `torch.save` that overwrites the only good file:


# %%
def overwrite(folder):
    net, optimizer, rate = start()
    for first in (0, 10):
        train(net, optimizer, rate, range(first, first + 10))
        if dist.get_rank() == 0:
            save(folder / "last.pt", model=net, optimizer=optimizer, rate=rate)


# %%
runs = {
    "half-way, in place": (overwrite, "half-way"),
    "half-way, in the draft": (train_and_save, "half-way"),
    "before the rename": (train_and_save, "rename"),
    "after the rename": (train_and_save, "renamed"),
}

# %% [markdown]
# In each of these runs rank 0 is killed in its second save, that of step 20 (half-way: `torch.save` has written half a file). How many of the 4 · 20 steps are lost, the four runs together?

# %%
all_lost = lab.guess("steps lost, the four runs together", between=(0, 80))

# %%
kills = []
num_lost = 0
for name, (training, moment) in runs.items():
    left, step = recovery.left_by_a_kill(training, FOLDER / name, moment)
    kills.append({"killed": name, "in the folder": left, "step that loads": step})
    num_lost += 20 - step if isinstance(step, int) else 20  # or an error
all_lost.score(num_lost)

# %%
lab.table(kills)

# %% [markdown]
# The overwriting has left half of a file, which torch can't read: all 20 steps are lost. A rename happens or does not. So wherever we killed the save of a draft, a whole checkpoint is there. If rank 1 died while writing (not run), rank 0 would never rename: it waits for all ranks.
#
# ### When the power goes
#
# When a write returns, its bytes may still be in the operating system's cache, and a power cut loses them. So before the rename, `os.fsync` waits until they are on the disk:
#
# ```python
# with open(draft, "wb") as stream:
#     torch.save(state, stream)
#     stream.flush()
#     os.fsync(stream.fileno())
# ```
#
# The new name is safe after an `fsync` of its folder (opened by `os.open`).
#
# <details><summary>Where there is no rename</summary>
#
# An object store has none. There, write a small index last, and count only checkpoints that have one.
#
# </details>

# %% [markdown]
# ## Exercise 1. A save that does no harm
#
# Write `my_save`. Every rank calls it; `net` is wrapped in DDP, `file` is a `Path`, `args` an `argparse.Namespace`. It leaves one file. `torch.load(file, weights_only=True)` reads from it a dict of six keys:
#
# - `model` (names without `module.`), `optimizer` and `scheduler`, a `state_dict` each;
# - `step`, `args` (a dict) and `rng` (a list: `torch.get_rng_state()` of every rank, the CPU's generator).
#
# If any rank is killed at any moment, or the power is cut, `file` is the old checkpoint or the new one, whole.
#
# `torch.load` refuses what could run code, a `Namespace` too. The check kills ranks, and looks for an `os.fsync`.


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
# Yours is one file by one rank. For a folder and many ranks, `checkpoint.save` does the same:
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

# %% [markdown] sections="10.5.1"
# ## Does training wait?
#
# Now the file is safe, but all ranks stand still until it is on the disk. Must they? In an *asynchronous* save training waits only until the states are copied, and a thread writes the copy.
#
# We try it with [FSDP](GLOSSARY.md#fsdp) on two ranks, and a transformer of one layer and 268,160 parameters. With 12 bytes for each, a save writes 3.2 MB. Each rank writes the half that it holds (*sharded*).


# %%
def saves(training, folder, waits):
    training.begin()
    for step in range(8):
        training.step(step)
        if step % 4 == 0:
            net, optimizer = training.net, training.optimizer
            saving = checkpoint.save_async(folder, step, net, optimizer)
            if waits:
                saving.result()
    saving.result()
    return training.end()


# %%
ways = {"training waits": True, "a thread writes": False}


def in_turns(folder):
    training = saving_run.Training()
    saves(training, folder / "first", True)  # warms up
    runs = {way: [] for way in ways}
    for turn in range(3):
        for way, waits in ways.items():
            runs[way].append(saves(training, folder / f"{turn} {way}", waits))
    return runs


# %% [markdown]
# The two ways take turns: three pairs of runs. With the thread, training still waits for the copy in memory, but not for the disk. What share of standing still does the thread take away, the three pairs together (0.5 is half)?

# %%
spared = lab.guess("share of standing still that the thread takes away", unit="share")

# %%
runs = lab.launch(in_turns, FOLDER / "turns", ranks=2)[0]
still_s = {way: sum(run.still_s for run in runs[way]) for way in ways}
spared.score(1 - still_s["a thread writes"] / still_s["training waits"])

# %%
still_s = {f"{i + 1}: {way}": runs[way][i].still_s for i in range(3) for way in ways}
lab.bars(still_s, unit="s", title="Standing still in two saves, rank 0")

# %% [markdown]
# In each pair, the thread makes training stand still less. Is the whole run shorter, too? The thread needs the cores on which the steps run. The seconds in the 8 steps alone:

# %%
{way: [round(run.trained_s, 2) for run in runs[way]] for way in ways}

# %% [markdown]
# Runs of one way may differ as much as the two ways, so three pairs can't tell. On a GPU: measure yours.
#
# ### Inside the gap
#
# What does training still wait for? Here is the first save of the median run, between steps 0 and 1:

# %%
sorted(runs["a thread writes"], key=lambda run: run.still_s)[1]  # the median

# %% [markdown] sections="10.5.1, 19.6.4"
# The gap has three parts: the rank looks up its tensors by name, copies them, and starts the thread. On busy cores any of them may come out longest. Looking up takes time for each tensor, the copy for each byte, so the larger the tensors, the more the copy counts. The thread works beside the next steps: `write`, for which the ranks agree who writes what, and `seal`, which makes the files a checkpoint.
#
# The price of the thread is memory for the copy; and until it is done, the newest checkpoint is the one before.
#
# <details><summary>What incremental saves</summary>
#
# A save writes 12 bytes for each parameter, 4 for the weight and 8 for Adam's two moments. An *incremental* save (`kind="incremental"`) writes only the tensors that have changed since the last one. When all is trained, nothing is spared, because something changes in every trained tensor. When all but the last layer is frozen, and that has 10 % of the parameters, the second save writes 12 · 10 / (12 · 10 + 4 · 90) = 25 % of the first: what is frozen has no state of Adam, so it costs 4 bytes the first time and none the second.
#
# </details>

# %% [markdown]
# ## How often?
#
# The minute and the five stay assumed; measure yours. Let a save stop training for C seconds (the [save time](GLOSSARY.md#save-time); with a thread, only the gap), a failure come every M seconds (the [time between failures](GLOSSARY.md#time-between-failures)), and coming back take R seconds. We save after every T seconds of training:

# %%
recovery.interval()

# %% [markdown]
# So each second of training pays for three things:
#
# - C/T for saves;
# - T/2M for work that is done again, half an interval for each failure;
# - R/M for coming back, however often we save.
#
# With their sum $s$, a second of training takes $1 + s$ seconds, so the share $s / (1 + s)$ of all time is lost. The picture adds Daly's curve, exact if a failure is equally likely in every second. For the cluster of the beginning, with C = 60 and R = 300: how many minutes between two checkpoints lose the least?

# %%
interval = lab.guess("minutes between two checkpoints", between=(0, 180))


# %%
def paid(T, C, M, R):
    """What is paid for training, as shares of all time; all in seconds."""
    each = {"C/T": C / T, "T/2M": T / (2 * M), "R/M": R / M}
    each["their sum"] = sum(each.values())
    return {name: share / (1 + each["their sum"]) for name, share in each.items()}


# %%
C, M, R = 60, mtbf_s, 300
minutes = [2 * 1.25**i for i in range(19)]
costs = paid(60 * torch.tensor(minutes), C, M, R)
daly = [how_often.lost_share(60 * t, C, M, R) for t in minutes]
costs["Daly"] = torch.tensor(daly)

# %%
interval.score(how_often.cheapest_s(C, M) / 60)

# %%
lab.curves(
    predicted={what: dict(zip(minutes, cost.tolist())) for what, cost in costs.items()},
    at={"C/T = T/2M": (2 * C * M) ** 0.5 / 60},
    x="minutes between two checkpoints",
    y="share of all time that is lost",
    unit="share",
    log_x=True,
    title="What saves and failures cost",
)

# %% [markdown]
# R/M is the same for every T (its curve bends only by the division). So is the product of the other two, C/2M. Two numbers with a fixed product have the least sum when they are equal, and the share grows with the sum. This is Young's result (1974):
#
# $$T = \sqrt{2\,C\,M}$$
#
# For our cluster it gives 19.3 minutes. Daly's curve lies higher, because he also counts failures while we save, do work again, or come back. It is lowest at 18.6. The valley is flat: half or twice the best interval loses some 2 percentage points more.
#
# Even at best, an eighth of all time is lost. If training waited only 5 s, for a copy, it would be less than half of that, provided that the interval is longer than the write. Try your own:

# %%
widgets.how_often(save_s=5.0)

# %% [markdown]
# <details><summary>Daly's formula</summary>
#
# Daly (2006) lets failures come at any time, also while we save, do work again, or come back. One second of training then takes $M e^{R/M}(e^{(T+C)/M}-1)/T$ seconds. The share of all time that is lost is 1 - 1 / that: `how_often.lost_share`. It is exact if a failure is equally likely in every second; real ones may come in clusters.
#
# </details>

# %% [markdown]
# ## Exercise 2. From how many GPUs on?
#
# Is asynchronous saving worth it on a small cluster? Training waits `write_s` seconds for one kind of save and `copy_s` for the other, each at its own best interval. `my_num_gpus` gives the fewest GPUs, as reliable as Llama 3's, on which the second loses one percentage point less.
#
# The answer is always below a million; yours passes within 3 %, or within one GPU. Leave out the time to come back, and treat a checkpoint as safe once it is copied. For 30 s and 2 s, it is 559 GPUs by `how_often.lost_share` (our three terms give more, sometimes too many).
#
# <details><summary>What <code>how_often</code> has, and a first hint</summary>
#
# `how_often.mtbf_s(num_gpus)`, `how_often.cheapest_s(save_s, mtbf_s)` (the best interval) and `how_often.lost_share(interval_s, save_s, mtbf_s)`.
#
# Young's short form of the loss, $\sqrt{2C/M}$ (his T put into C/T + T/2M), is near enough where `copy_s` is at most a third of `write_s`.
#
# Write a function of `num_gpus` first: the share lost with `write_s`, less the share lost with `copy_s`. What is it for 100 GPUs, for 10,000?
#
# </details>


# %%
def my_num_gpus(write_s, copy_s):
    """The fewest GPUs on which the second loses one percentage point less."""
    ### BEGIN SOLUTION
    too_few, enough = 0, 1_000_000

    def lost(save_s, num_gpus):
        mtbf_s = how_often.mtbf_s(num_gpus)
        best_s = how_often.cheapest_s(save_s, mtbf_s)
        return how_often.lost_share(best_s, save_s, mtbf_s)

    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if lost(write_s, middle) - lost(copy_s, middle) < 0.01:
            too_few = middle
        else:
            enough = middle
    return enough
    ### END SOLUTION


# %%
check.num_gpus(my_num_gpus)

# %% [markdown] sections="10.5.1, 19.6.4"
# ## Come back with fewer ranks
#
# One failure is left: a machine that is gone for good. A sharded checkpoint says of every part where in the whole tensor it belongs. So each reader takes the rows that it needs, from whichever files have them ([resharding](GLOSSARY.md#resharding)).
#
# Four ranks have saved a weight of 64 rows, 16 in each file. Three ranks load it. From how many files does the middle one read?

# %%
opened = lab.guess("files that the middle one of three ranks reads", between=(1, 4))

# %%
file_of_row = torch.arange(64) // 16
opened.score(len(file_of_row.chunk(3)[1].unique()))

# %%
recovery.Resharding(rows=64, writers=4, readers=3)

# %% [markdown] sections="10.5.1, 19.6.4"
# ## In torch: dcp
#
# Are the tensors that three ranks load the ones that four have saved, to the bit? torch's own `dcp` saves sharded and asynchronously, and it reshards. Its thread sends messages, so it gets a process group of its own. Four ranks save weights and Adam's moments and train on; three ranks load. `dcp.load` only fills tensors, so a new Adam gets its moments first:

# %%
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


# %%
def save_shards(folder):
    training = saving_run.Training(dim=64)
    training.step(0)
    saved = checkpoint.whole(training.net, training.optimizer)  # all tensors, on rank 0
    weights, moments = get_state_dict(training.net, training.optimizer)
    states = {"model": weights, "optimizer": moments}
    group = checkpoint.thread_group()  # dist.new_group(backend="gloo"), made once
    saving = dcp.async_save(states, checkpoint_id=folder, process_group=group)
    training.step(1)
    saving.result()
    return saved


# %%
def load_shards(folder):
    training = saving_run.Training(dim=64)
    net, optimizer = training.net, training.optimizer
    # also makes a new Adam's moments, all 0, which dcp.load then fills
    weights, moments = get_state_dict(net, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    states = {"model_state_dict": weights, "optim_state_dict": moments}
    # puts back what is no tensor: Adam's learning rate, say
    set_state_dict(net, optimizer, **states)
    return checkpoint.whole(net, optimizer)


# %%
saved = lab.launch(save_shards, FOLDER / "shards", ranks=4)[0]
loaded = lab.launch(load_shards, FOLDER / "shards", ranks=3)[0]
all(torch.equal(saved[name], loaded[name]) for name in saved)

# %% [markdown] sections="10.5.1, 19.6.4"
# They are, although training went on. Your script adds step, learning rate and random generators. `dcp.load` unpickles a file `.metadata`, so load only what you trust. Take a new folder for each step.
#
# ## What belongs to ranks
#
# Tensors carry over. What belongs to ranks does not:
#
# - **Generators**: there are more in the file than ranks. Seed anew from (seed, step, rank).
# - **Data**: `train` draws by rank: seed = position · ranks + rank. On three ranks, step 20 would draw seeds 60 to 62, which four ranks have seen at step 15. So draw one batch of 128 (4 · 32) for each step, cut into 43, 43 and 42. DDP averages over ranks, so multiply each loss by 3 · its samples / 128:
#
# ```python
# tokens, targets = model.story_tokens(128, 8, seed=position)  # the same on all ranks
# tokens = tokens.tensor_split(num_ranks)[rank]
# targets = targets.tensor_split(num_ranks)[rank]
# loss = nn.functional.cross_entropy(net(tokens), targets[:, -1])
# loss = loss * num_ranks * len(tokens) / 128
# ```
#
# Train so from the first step on: with seeds by rank, step 5 has used up seed 20 (5 · 4 + 0). Without dropout, losses should then agree closely, not to the bit (not run here).

# %% [markdown] sections="19.8.5"
# ## Exercise 3. A training that outlives its ranks
#
# In the check one of three things happens to `training`. In the notebook each looks the same, a `lab.RankFailed`:
#
# - A rank is killed, in a step or in a save, and can come back: launch again.
# - A machine is gone for good: launch on the ranks that are left, `training.ranks_left()`.
# - A bug raises in every start: after `training.max_restarts` restarts in all let the `lab.RankFailed` through.
#
# Write two functions. `my_rank(training)` runs in every rank: it trains from the newest checkpoint to the end, saves after every `training.every` steps, and returns the trained `state_dict` (names with `module.` or without). `my_elastic(training)` runs in the notebook: it launches `my_rank` until it is done, and returns the last run. What `training` has:
#
# - `training.build()`: a model in DDP and its Adam.
# - `training.step(net, optimizer, step)`: one of `training.num_steps` steps. It cuts the batch and weighs the losses, as above, for any number of ranks, and needs no generators.
# - `training.folder`: for `checkpoint.save` and `checkpoint.load`, which reshards; `checkpoint.checkpoints(training.folder)` lists what is there.
# - `training.launch(my_rank, training, ranks=...)`: `lab.launch`.
#
# It passes if the weights agree closely with undisturbed training, and no failure costs more than `training.every` steps.
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
# ---
#
# *Here ends what most people need. The rest is about files that run programs, other libraries, Llama 3's own saves, restarts and disks, and optional.*

# %% [markdown] sections="10.5.1"
# ## A file that is read, not run
#
# Why does exercise 1 ask for `weights_only=True`? A file of `torch.save` holds a pickle, and a pickle is a program: who wrote it decides what runs when you open it.


# %%
import pickle


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
# The first call loads as old versions of torch did. The second is the default since 2.6, and refuses.
#
# <details><summary>What it reads, and strangers' weights</summary>
#
# It reads tensors, numbers, strings, lists, dicts and a few other harmless types. For strangers' weights prefer [safetensors](https://huggingface.co/docs/safetensors), a format without a pickle.
#
# </details>

# %% [markdown] sections="19.6.4"
# ## Other libraries, and a real cluster
#
# Which library does what, and what else does a script at work need?
#
# <details><summary>Accelerate and DeepSpeed</summary>
#
# | library | save | load | other ranks | generators |
# | --- | --- | --- | --- | --- |
# | torch | `dcp.save`, `dcp.async_save` | `dcp.load` | yes | add them |
# | Accelerate | `save_state` | `load_state` | as what it runs on: DDP, FSDP, DeepSpeed | each rank's |
# | DeepSpeed | `save_checkpoint` | `load_checkpoint` | after a conversion | add them |
#
# DeepSpeed's `engine.save_checkpoint(path)` makes a folder below `path`, `global_step20` say. This makes one for any number of ranks:
#
# `python -m deepspeed.checkpoint.ds_to_universal --input_folder path/global_step20 --output_folder path/universal --inject_missing_state`
#
# (The last option adds a note that files of ZeRO 1 and 2 lack.) Then `engine.load_checkpoint(path)` reads it with any number of ranks, where the configuration has `"checkpoint": {"load_universal": true}`.
#
# </details>
#
# <details><summary>On a real cluster: delete old ones, save when asked to leave</summary>
#
# **Delete the old ones.** All ranks of Llama 3, saving every 3.9 minutes, would write 1.8 PB a day. Keep two at least, in case the newest can't be read.
#
# **Save when you are asked to leave.** Slurm, if set so, and many cheap machines send SIGTERM some time before they kill. A signal sets a flag, and an all-reduce tells all ranks after the same step (a sketch, not run here):
#
# ```python
# asked = torch.zeros(1)
# signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
# for step in range(first, last):
#     train_step(step)
#     seen = asked.clone()  # a signal may arrive during the call; with NCCL, add .cuda()
#     dist.all_reduce(seen)
#     if seen > 0:
#         checkpoint.save(folder, step + 1, net, optimizer, extra=rate.state_dict())
#         break
# ```
#
# </details>


# %% [markdown]
# ## Llama 3's own saves
#
# How long does a save of the largest Llama 3 take? It has 405 B parameters. With 12 bytes for each (the weight and Adam's moments) that makes 4.9 TB.
#
# | who saves | bytes | per second | training waits |
# | --- | --- | --- | --- |
# | one rank, if it could hold all | 4.9 TB | 2 GB, assumed | 40 min |
# | all ranks, at the storage's rate | 4.9 TB | 2 TB, paper | 2.4 s |
# | each rank copies to its host, a thread writes | 4 GB at most per rank, paper | 20 GB, assumed | 0.2 s |
#
# With five minutes to come back, how much of all time is lost when all ranks write, and training waits (0.1 is 10 %)?

# %%
least = lab.guess("share of all time lost, when all ranks write", unit="share")

# %%
save_s = {"one rank": 4860 / 2, "all ranks": 4.86 / 2, "all, asynchronous": 4 / 20}
lost, best_min = {}, {}
for name, each_s in save_s.items():
    best_s = how_often.cheapest_s(each_s, mtbf_s)
    share = how_often.lost_share(best_s, each_s, mtbf_s)
    back = how_often.lost_share(best_s, each_s, mtbf_s, 300) - share
    lost[name] = {"saving, doing again": share, "coming back": back}
    best_min[name] = round(best_s / 60, 1)
least.score(sum(lost["all ranks"].values()))

# %%
lab.bars(
    lost,
    unit="share",
    stacked=True,
    title="Time lost at the best interval",
    marks={"Llama 3 says: less than": 0.1},
    badge="predicted",
)

# %%
best_min

# %% [markdown]
# The paper reports "higher than 90% effective training time". With our five minutes, saves by all ranks, one every 3.9 minutes, keep within that.
#
# The third bar counts only the copy. An interval can't be shorter than its write, but here that takes only 2.4 s.

# %% [markdown] sections="19.6.4"
# ## Where do the seconds go?
#
# What fills the time to come back? `recovery.restart_s` runs the training of "A rank dies" under `torchrun --max-restarts`, and kills rank 1 after 25 steps again.
#
# From the kill until training is back there: which part is longest?

# %%
names = ["notice, end all, start Python", "imports", "find each other"]
names += ["build and load", "five steps again"]
longest = lab.guess("what takes longest from the kill to the same point", choices=names)

# %%
needs = (warm_up, start, train)  # what train_and_save calls
parts_s = recovery.restart_s(train_and_save, FOLDER / "restarted", 25, needs=needs)
recovery_s = dict(zip(names, parts_s, strict=True))
longest.score(max(recovery_s, key=recovery_s.get))

# %%
title = "From the kill to the same point again"
lab.bars({"rank 1 is killed": recovery_s}, stacked=True, unit="s", title=title)

# %% [markdown]
# Each rank is a new Python, which has to import torch and labkit first. On a cluster other things may fill the minutes: replacing a machine, connecting thousands of ranks, reading the checkpoint, compiling. If a rank hangs instead of dying, the others wait for it, with NCCL ten minutes by default.
#
# <details><summary>When a rank hangs instead of dying</summary>
#
# If every failure were a hang of ten minutes, and one came every three hours, 5 % of all time would go. So set `init_process_group(timeout=...)` to more than your slowest collective or wait at a save, two minutes for example.
#
# </details>
#
# <details><summary>A variable that repairs torchrun, and fewer machines</summary>
#
# `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is a repair: torch 2.13 keeps one store for all starts, and a new rank may find the address of a dead one there, and wait for it ([pytorch issue 135712](https://github.com/pytorch/pytorch/issues/135712)).
#
# torchrun also goes on with *fewer* machines. Then there is one torchrun on each, `--nnodes 1:2` says that one or two of them are enough, and when one is gone, the others meet again.
#
# </details>

# %% [markdown]
# ## A disk that changes a bit
#
# Disks sometimes return other bytes than were written. So a checkpoint keeps a [digest](GLOSSARY.md#digest) of each file, a short number made from all its bytes. Let's flip one bit of the newest checkpoint, and begin again:

# %%
newest = checkpoint.checkpoints(FOLDER / "calm")[0]
file = max(newest.glob("shard*"))
content = bytearray(file.read_bytes())
content[-1] ^= 1
file.write_bytes(content)
after = lab.launch(train_and_save, FOLDER / "calm", ranks=2)
min(printed(after.logs))

# %% [markdown]
# The bit is found, so training begins at step 20, from the checkpoint before. It was still there because `checkpoint.save` keeps the newest two (`keep=2`).

# %% [markdown]
# ## Summary
#
# - A checkpoint holds model, optimizer, learning rate, data position and every rank's random generators. On as many ranks, with deterministic operations, resumed training is then undisturbed training, to the bit.
# - Recovery is a new start: end all ranks, launch what is left, load. On fewer ranks the tensors of a sharded checkpoint are the same to the bit; random numbers, and data drawn by rank, are not.
# - Write under another name, `fsync`, then one `rename`: a killed save never costs the checkpoint before.
# - An asynchronous save stops training for a short gap, not for the write. Whether the whole run is shorter depends on who needs the cores: measure it.
# - Save every $\sqrt{2CM}$ seconds, where C is the time for which training stands still. This holds while C is short beside M, and the interval is longer than the write.
# - From the optional end: a disk may change a file. A digest of each file shows that. Then you need the checkpoint before, so keep two.
#
# **Words:** [checkpoint](GLOSSARY.md#checkpoint), [save](GLOSSARY.md#save), [save time](GLOSSARY.md#save-time), [time between failures](GLOSSARY.md#time-between-failures), [shard](GLOSSARY.md#shard), [resharding](GLOSSARY.md#resharding), [digest](GLOSSARY.md#digest).
#
# <details><summary>Further reading</summary>
#
# - Young 1974, *A first order approximation to the optimum checkpoint interval*, Communications of the ACM 17 (9)
# - Daly 2006, *A higher order estimate of the optimum checkpoint interval for restart dumps*, Future Generation Computer Systems 22 (3)
# - Interruptions, storage, effective training time: Llama Team 2024, *The Llama 3 Herd of Models*, [arXiv 2407.21783](https://arxiv.org/abs/2407.21783), sections 3.3.1 and 3.3.4
# - [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), [DeepSpeed's universal checkpoints](https://www.deepspeed.ai/tutorials/universal-checkpointing/)
#
# </details>
#
# **Next:** [debugging](14_debugging.ipynb), for trainings that neither die nor live.

# %% [markdown] sections="10.5.1, 19.6.4"
# ## Errata of the textbook
#
# <details><summary>Four errata, for readers of that textbook</summary>
#
# <details><summary>Erratum 10.5.1: what a checkpoint holds</summary>
#
# The textbook's list has model, optimizer, scheduler, epoch and step. Two things are missing: the random generators, of every rank, and the place *within* the epoch. Our first run lacked only the first of them, and its losses parted at once.
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

# %%
check.status()
