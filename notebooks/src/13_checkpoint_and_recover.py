# ---
# jupyter:
#   labkit:
#     sections: ["10.5.1", "19.6.4", "19.8.5"]
#     needs: ["two CPU cores"]
#     minutes: 60
# ---

# %% [markdown]
# # Checkpoint and recover
#
# *Sections 10.5.1, 19.6.4 and exercise 19.8.5 of the source material. About 60 minutes. No GPU is needed.*
#
# Long trainings die: a device fails, a machine is taken away, memory runs out. What survives is what lies on the disk. This chapter asks what must lie there, how to write it without harm, how to write it while training goes on, how to come back with fewer ranks, and how often all this is worth its time.
#
# Ranks are really killed here, in the midst of a step and in the midst of a save. The claim throughout is a strong one: after recovery the losses are the same to the last bit.

# %%
import labkit as lab

lab.begin("en", deadline_s=50)
import argparse, os, signal, tempfile, time
from math import sqrt
from pathlib import Path
import torch
import torch.distributed as dist
from labkit.pictures import curves
from labkit.recovery import checkpoint
from labkit import model, widgets, words
from labkit.launching import script
from labkit.pictures.curves import Series
from labkit.recovery import check

scratch = tempfile.TemporaryDirectory()
FOLDER = Path(scratch.name)

# %% [markdown] sections="10.5.1"
# ## What a checkpoint must hold
#
# A training run is more than its weights. This one has five parts: a model with dropout under DDP, Adam, a learning rate that warms up, a position in the data, and random generators, one in each rank.


# %%
def start():
    """Model, optimizer and learning rate of a new run."""
    from torch import nn

    torch.manual_seed(
        dist.get_rank()
    )  # DDP gives rank 0's weights to all; dropout stays each rank's own
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
    return (
        net,
        optimizer,
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1, (step + 1) / 10)
        ),
    )


# %%
def train(net, optimizer, rate, positions):
    """Trains on the given batches; the loss of each, on this rank."""
    losses = []
    for position in positions:
        tokens, targets = model.story_tokens(
            32, 8, seed=position * dist.get_world_size() + dist.get_rank()
        )
        loss = torch.nn.functional.cross_entropy(net(tokens), targets[:, -1])
        optimizer.zero_grad(), loss.backward(), optimizer.step(), rate.step()
        losses.append(loss.item())
    return losses


# %% [markdown]
# Twenty steps, a checkpoint, twenty more. Then the last twenty once again, from the checkpoint, in a new model; and each time one part is left out. `checkpoint.save` takes model and optimizer, keeps the states of the random generators, and lays by what else it is given in `extra`. **Predict.** Which part, if it is forgotten, spoils the losses most?

# %%
my_worst = None


# %%
PARTS = {
    "nothing": "无",
    "optimizer": "优化器",
    "learning rate": "学习率",
    "data position": "数据位置",
    "random numbers": "随机数",
}


def leave_out(folder, part):
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(20))
    checkpoint.save(
        folder, 20, net, optimizer, extra={"rate": rate.state_dict(), "position": 20}
    )
    undisturbed = train(net, optimizer, rate, range(20, 40))
    net, optimizer, rate = start()
    found = checkpoint.load(folder, net, None if part == "optimizer" else optimizer)
    if part != "learning rate":
        rate.load_state_dict(found["extra"]["rate"])
    if part == "random numbers":
        torch.manual_seed(99)
    first = 0 if part == "data position" else found["extra"]["position"]
    return undisturbed, train(net, optimizer, rate, range(first, first + 20))


def leave_out_each(folder):
    return {part: leave_out(folder / part, part) for part in PARTS}


# %%
ran = lab.launch(leave_out_each, FOLDER / "parts", ranks=2)
apart = {part: [abs(a - b) for a, b in zip(*ran[1][part])] for part in PARTS}
widgets.show(
    curves.curves(
        [
            Series(
                {"en": part, "zh": PARTS[part]}, range(1, 21), apart[part], points=True
            )
            for part in list(PARTS)[1:]
        ],
        title={
            "en": "How far the losses leave the undisturbed run",
            "zh": "损失偏离未受干扰的训练多少",
        },
        x_name={"en": "steps after the checkpoint", "zh": "检查点之后的步数"},
        y_name={"en": "difference of the losses", "zh": "损失之差"},
        badge=ran.badge,
    )
)
print(f"{my_worst = }\nleft out          mean difference over 20 steps, rank 1")
for part in PARTS:
    print(f"{part:<17} {sum(apart[part]) / 20:g}")

# %% [markdown]
# With nothing left out the difference is 0: not small, zero. Without the optimizer Adam has no moments and takes its first steps blindly. Without the learning rate the warm-up comes a second time. Without the position the same data are seen again (the losses are then those of other batches, and most of the difference is that). Without the random numbers dropout drops other cells; that is no mistake of the model, but nobody can tell such a run from a broken one.
#
# The list in section 10.5.1 has model, optimizer, scheduler, epoch and step. Two are missing there: the random generators, of every rank, and the place within the epoch.

# %% [markdown] sections="10.5.1"
# ### A file that is read, not run
#
# The same section puts `args`, an `argparse.Namespace`, into the file. A file of `torch.save` is a pickle, and a pickle is a program: whoever wrote it decides what runs when you open it. That is why `torch.load` reads by default only what needs no program: tensors, numbers, strings, lists, dicts.


# %%
class Trap:
    def __reduce__(self):
        return print, ("    this line was run by torch.load",)


file, args = FOLDER / "section-10.5.1.pt", argparse.Namespace(lr=0.01, save_steps=1000)
for name, value in (("Namespace", args), ("Trap", Trap()), ("vars(args)", vars(args))):
    torch.save({"step": 20, "args": value}, file)
    try:
        print(f"{name}: {torch.load(file)}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).partition('.')[0]}")
torch.save({"args": Trap()}, file)
print("Trap, weights_only=False:")
opened = torch.load(
    file, weights_only=False
)  # what the text's load does in an old torch

# %% [markdown] sections="10.5.1"
# `vars(args)`, a dict, says the same and is harmless. `torch.distributed.checkpoint` has such a place, too: its usual `FileSystemWriter` pickles the `.metadata` that it reads first. `labkit.recovery.checkpoint` lets it write safetensors files instead, and refuses an `extra` that would have to be unpickled.
#
# ## Four kinds
#
# Section 10.5.1 names four: **plain** (rank 0 collects everything, writes one file), **sharded** (each rank writes what it holds), **asynchronous** (the states are copied, and a thread writes the copy while training goes on), **incremental** (what has not changed is not written again). Here with FSDP2: each of two ranks holds half of the parameters and of Adam's two moments. Between two saves there is a training step; the better of two is told. **Predict.** A sharded save takes 1; for how long does training stand still in an asynchronous one?

# %%
my_stop = None


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
    optimizer.zero_grad(), model.loss(net(tokens), targets).backward(), optimizer.step()


# %%
def four_kinds(folder):
    (net, optimizer), told = sharded_model(), {}
    for kind in (*checkpoint.KINDS, "asynchronous"):
        times = []
        for step in range(2):
            one_step(net, optimizer, step), dist.barrier()
            began = time.perf_counter()
            if kind == "asynchronous":
                saving = checkpoint.save_async(folder / kind, step, net, optimizer)
            else:
                path = checkpoint.save(folder / kind, step, net, optimizer, kind=kind)
            stood = time.perf_counter() - began
            if kind == "asynchronous":
                path = saving.result()
            times.append((stood, time.perf_counter() - began))
        told[kind] = *map(min, zip(*times)), checkpoint.about(path)
    return told


# %%
run = lab.launch(four_kinds, FOLDER / "kinds", ranks=2)
kinds = run[0]
heads = (
    ("training stands still", "until it is on the disk")
    if words.language() == "en"
    else ("训练停住", "写到磁盘为止")
)
names = {
    "plain": "基本",
    "sharded": "分片",
    "incremental": "增量",
    "asynchronous": "异步",
}
rows = [
    ({"en": kind, "zh": names[kind]}, {heads[0]: 1e3 * stood, heads[1]: 1e3 * done})
    for kind, (stood, done, _) in kinds.items()
]
widgets.show(
    curves.bars(
        rows,
        unit_format=lambda ms: f"{ms:.0f} ms",
        title={"en": "Four kinds of saves", "zh": "四种保存"},
        badge=run.badge,
    )
)
print(
    f"{my_stop = }; measured {kinds['asynchronous'][0] / kinds['sharded'][0]:.2f}\n{'':13} files   bytes written"
)
for kind, (_, _, about) in kinds.items():
    print(f"{kind:<13}{len(about['files']):6} {about['written_bytes']:15,}")

# %% [markdown] sections="10.5.1, 19.6.4"
# The bytes are the same but for names and headers: 12 per parameter, for Adam has touched everything. The plain one gathers all of it in the memory of rank 0, which a large model does not survive, and the other ranks wait. The asynchronous one stops training while a rank lists its tensors by name and copies them, and no longer: folder, files, digests and the disk are the thread's. (The first one, which also makes a group for the thread's messages, is the worse of the two.) The price is memory for that copy, and a thread that competes with the training for the cores. The incremental one writes a file per tensor and part, waits for the disk after each, and here it saves nothing.
#
# ### What incremental saves
#
# Section 19.6.4 stores the parameters that differ from the last checkpoint, "to reduce I/O". Which ones do not differ? The section's own test, `torch.equal`, on parameters and moments after one more step; and the bytes that the incremental kind then writes. **Predict** the share of the bytes written when everything is trained, and when only the last layer is.

# %%
my_shares = {"all layers": None, "last layer": None}


# %%
def what_changes(folder):
    told = {}
    for name in ("all layers", "last layer"):
        torch.manual_seed(0)
        net = model.Transformer(2, 64, 4, max_len=32)
        net.layers[:-1].requires_grad_(name == "all layers")
        optimizer = torch.optim.Adam(
            [weight for weight in net.parameters() if weight.requires_grad], lr=0.001
        )
        written, states = [], []
        for step in range(3):
            one_step(net, optimizer, step)
            path = checkpoint.save(
                folder / name, step, net, optimizer, kind="incremental"
            )
            written.append(checkpoint.about(path)["written_bytes"])
            kept = [
                *net.parameters(),
                *(state[key] for state in optimizer.state.values() for key in state),
            ]
            states.append([each.detach().clone() for each in kept])
        equal = sum(torch.equal(a, b) for a, b in zip(*states[1:]))
        told[name] = equal, len(states[2]), written
    return told


# %%
changed = lab.launch(what_changes, FOLDER / "changes", ranks=1)[0]
print(
    f"{my_shares = }\ntrained       tensors unchanged    bytes: first save    third save   share"
)
for name, (equal, num, written) in changed.items():
    print(
        f"{name:<13} {equal:9} of {num:3} {written[0]:20,} {written[2]:13,} {written[2] / written[0]:7.2f}"
    )

# %% [markdown]
# Adam moves every trained parameter in every step, its moments, and its count of steps. Nothing stays but what is frozen: incremental saves are for fine-tuning a part of a model, not for training one. (Two more prices of the section's code: it keeps a second copy of the model to compare with, and each of its deltas needs all the ones before. A digest of each tensor needs no copy, and here every checkpoint is complete: what has not changed is a second name of the same file.)

# %% [markdown] sections="19.6.4"
# ## A rank dies
#
# Thirty steps, a checkpoint after every tenth. After step 25 rank 1 is killed, as the system does when memory runs out.


# %%
def train_and_save(folder, die_at=None):
    net, optimizer, rate = start()
    losses, position = {}, 0
    if checkpoint.checkpoints(folder):
        found = checkpoint.load(folder, net, optimizer)
        position = found["step"]
        rate.load_state_dict(found["extra"]["rate"])
    while position < 30:
        if position == die_at and dist.get_rank() == 1:
            print("killed at", time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        losses[position] = time.time(), train(net, optimizer, rate, [position])[0]
        position += 1
        if position % 10 == 0:
            checkpoint.save(
                folder, position, net, optimizer, extra={"rate": rate.state_dict()}
            )
    return losses


# %%
try:
    lab.launch(train_and_save, FOLDER / "killed", 25, ranks=2)
except lab.RankFailed as error:
    noticed_s = time.time() - float(error.logs[1].split()[-1])
    print(
        error,
        "\n\nleft on the disk:",
        *(path.name for path in checkpoint.checkpoints(FOLDER / "killed")),
    )

# %% [markdown]
# The same call again is the whole recovery. **Predict** how many seconds pass from the kill to the first new step, your reading not counted. Chapter 19 of the source material asks for less than five minutes.

# %%
my_seconds = lab.guess(
    {"en": "from the kill to the first new step", "zh": "从被杀到第一个新的步"},
    unit="s",
)

# %%
again_s = time.time()
after = lab.launch(train_and_save, FOLDER / "killed", ranks=2)[0]
run = lab.launch(train_and_save, FOLDER / "undisturbed", ranks=2)
undisturbed = run[0]
to_first_step_s = min(at for at, _ in after.values()) - again_s
print(
    f"{noticed_s:.2f} s until this notebook knew, {to_first_step_s:.2f} s to step {min(after) + 1}"
)
same = [after[step][1] == undisturbed[step][1] for step in after]
print(
    f"losses equal to the undisturbed run's, to the last bit: {sum(same)} of {len(same)}"
)
names = (
    {"en": "undisturbed", "zh": "未受干扰"},
    {"en": "after the recovery", "zh": "恢复之后"},
)
widgets.show(
    curves.curves(
        [
            Series(
                name,
                [step + 1 for step in ran],
                [loss for _, loss in ran.values()],
                points=True,
            )
            for name, ran in zip(names, (undisturbed, after))
        ],
        badge=run.badge,
        title={"en": "Loss of rank 0", "zh": "rank 0 的损失"},
        x_name={"en": "step", "zh": "步"},
        y_name={"en": "loss", "zh": "损失"},
    )
)
launch_s = noticed_s + to_first_step_s
my_seconds.score(launch_s)

# %% [markdown] sections="19.6.4"
# What is lost are the steps since the last checkpoint, and nothing else. (Most of the five minutes goes into what is not here: finding a new machine, importing torch, reading a hundred gigabytes.) The section's code catches an `NCCLError` (torch has no such class; it raises `DistBackendError`) and goes on in the same process. But when a rank is gone the others are in an unknown state, deep in a collective. Ending all of them and starting anew is what torchrun does, too.
#
# ### A rank dies while it saves
#
# The dangerous moment is the save itself: `torch.save` onto the only good file, killed half-way, costs everything. Here rank 1 is killed when it is about to bring its part to the disk (`fsync`).


# %%
def die_in_the_save(folder):
    net, optimizer, rate = start()
    train(net, optimizer, rate, range(5))
    checkpoint.save(folder, 5, net, optimizer)
    train(net, optimizer, rate, range(5, 10))
    if dist.get_rank() == 1:
        os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
    checkpoint.save(folder, 10, net, optimizer)


def come_back(folder):
    net, optimizer, _ = start()
    found = checkpoint.load(folder, net, optimizer)
    return found["step"], found["skipped"]


# %%
try:
    lab.launch(die_in_the_save, FOLDER / "saving", ranks=2)
except lab.RankFailed as error:
    print(str(error).splitlines()[0])
print("in the folder:", *sorted(path.name for path in (FOLDER / "saving").iterdir()))
print(
    "loaded: step",
    lab.launch(come_back, FOLDER / "saving", ranks=2)[0][0],
)

# %% [markdown]
# The name with the dot was a checkpoint in the making. It gets its real name by one `rename`, which happens or does not, after every rank's files are on the disk; the next save sweeps it away. (The tests kill a save at each touch of the folder, one after the other.)
#
# Disks also forget silently. The index holds a digest of each file, so a flipped bit is found, named, and the checkpoint before it is taken:

# %%
file = max(checkpoint.checkpoints(FOLDER / "undisturbed")[0].glob("shard*"))
content = bytearray(file.read_bytes())
content[-1] ^= 1
file.write_bytes(content)
step, skipped = lab.launch(come_back, FOLDER / "undisturbed", ranks=2)[0]
print(f"loaded: step {step}, because {skipped[0].replace(scratch.name, '...')}")

# %% [markdown] sections="10.5.1, 19.6.4"
# ## Come back with fewer ranks
#
# A sharded checkpoint says of every part where in the whole tensor it belongs. So whoever loads takes what it needs: **resharding**. The names are those of the bare model, so even the engine may be another. From four ranks of FSDP2:


# %%
def whole(net, optimizer):
    """All parameters and moments, whole."""
    tensors = [
        *net.parameters(),
        *(state[key] for state in optimizer.state.values() for key in sorted(state)),
    ]
    return [
        each.full_tensor() if hasattr(each, "full_tensor") else each.detach()
        for each in tensors
    ]


def save_shards(folder):
    net, optimizer = sharded_model(1, 64)
    one_step(net, optimizer, 0)
    checkpoint.save(folder, 1, net, optimizer)
    return whole(net, optimizer)


def load_shards(folder, engine):
    if engine == "FSDP2":
        net, optimizer = sharded_model(1, 64)
    else:
        net = torch.nn.parallel.DistributedDataParallel(
            model.Transformer(1, 64, 4, max_len=32)
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    found = checkpoint.load(folder, net, optimizer)
    return whole(net, optimizer), found["rng"]


# %%
saved = lab.launch(save_shards, FOLDER / "shards", ranks=4)[0]
for engine, num_ranks in (("FSDP2", 2), ("DDP", 2)):
    loaded, rng = lab.launch(load_shards, FOLDER / "shards", engine, ranks=num_ranks)[0]
    equal = sum(torch.equal(a, b) for a, b in zip(saved, loaded, strict=True))
    print(
        f"{engine:>6}, {num_ranks} ranks: {equal} of {len(saved)} tensors equal; random generators go on: {rng}"
    )

# %% [markdown] sections="19.6.4"
# Tensors carry over to the bit. Random generators do not: there were four, and now there are two. And the same batch is now cut into two parts, so sums are rounded otherwise: with another number of ranks the losses agree closely, not to the bit. What must not depend on the ranks, such as the data, is best drawn from (seed, step).
#
# DeepSpeed's files know the number of their ranks, and it refuses another. Its way is a conversion in between: `engine.save_checkpoint`, then the command `ds_to_universal --inject_missing_state`, then a configuration with `"checkpoint": {"load_universal": true}`. (The tests do that for ZeRO 2 and 3: saved on 2 ranks, trained on with 1 and with 4.)
#
# ## torchrun restarts
#
# Outside of a notebook, somebody must notice the death and start again. `torchrun --max-restarts` does: when a rank dies it ends the others and starts all of them anew. The script only has to begin where the newest checkpoint ends.

# %%
TRAIN = """import os, pathlib, sys, time
began = time.time()
import torch, torch.distributed as dist
from labkit.launching import rank
from labkit.recovery import checkpoint
imports_s = time.time() - began
if torch.accelerator.is_available():
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device(torch.accelerator.current_accelerator())
dist.init_process_group()
optimizer = torch.optim.Adam((net := torch.nn.Linear(4, 4)).parameters())
step = checkpoint.load(sys.argv[1], net, optimizer)["step"] if checkpoint.checkpoints(sys.argv[1]) else 0
rank.current().give((step, time.time(), imports_s))
while step < 6:
    if step == 4 and dist.get_rank() == 1 and not (killed := pathlib.Path(sys.argv[2])).exists():
        killed.write_text(str(time.time())), os.kill(os.getpid(), 9)
    net(torch.ones(2, 4)).sum().backward()
    for weight in net.parameters(): dist.all_reduce(weight.grad)
    optimizer.step(), optimizer.zero_grad()
    step += 1
    if step % 3 == 0: checkpoint.save(sys.argv[1], step, net, optimizer)
dist.destroy_process_group()"""

# %%
file = FOLDER / "train.py"
file.write_text(TRAIN)
ran = lab.launch_script(
    file, FOLDER / "torchrun", FOLDER / "killed at", ranks=2, max_restarts=2
)
step, began_s, imports_s = ran[0]
torchrun_s = began_s - float((FOLDER / "killed at").read_text())
print(
    f"went on from step {step}; from the kill to there: torchrun {torchrun_s:.1f} s, lab.launch {launch_s:.2f} s;\n"
    f"of torchrun's, {imports_s:.1f} s are the imports of the new rank 0"
)

# %% [markdown]
# A new process begins with `import torch` and whatever else the script imports: that part of torchrun's time is printed. The rest is the agent, which must notice, stop the others and start again, and the way to the checkpoint. `lab.launch` forks from a process that has the imports. The environment variable in front is a repair: torch 2.13 keeps one store for all starts, and a new rank may find a dead one's address there, and wait for it.
#
# torchrun also goes on with **fewer** ranks. Then there is one torchrun per machine, `--nnodes 1:2` says that one or two of them are enough, and when a machine is gone with its torchrun, the others meet again. `launch_script(..., nodes=(1, 2))` lets two torchruns on this machine stand for two machines; it takes too long for this page. The lines that it would run:

# %%
for node in range(2):
    print(
        *script.command(
            file, ranks=2, using="torchrun", max_restarts=1, nodes=(1, 2), node=node
        )[:-1],
        "train.py &",
    )

# %% [markdown]
# ## How often
#
# Save often, and time goes into saving; save seldom, and a failure costs much. With a save of C seconds and a failure every M seconds on average, Young (1974) finds the best interval
#
# $$T = \sqrt{2\,C\,M}$$
#
# M falls with the number of devices. Llama 3's training had 419 unexpected interruptions in 54 days on 16,384 GPUs. With that M, a save that stops training for one minute and the five minutes of recovery that chapter 19 allows, **predict** the best interval.

# %%
my_minutes = None


# %%
def lived_through(interval_s, save_s, mtbf_s, restart_s, num_intervals=4000):
    """Wall time over useful time, played through with failures at random moments."""
    draw, clock_s = torch.distributions.Exponential(1 / mtbf_s).sample, 0.0
    next_s = draw().item()
    for _ in range(num_intervals):
        end_s = clock_s + interval_s + save_s
        while next_s < end_s:  # what was done since the last checkpoint is lost
            end_s = next_s + restart_s + interval_s + save_s
            next_s += draw().item()
        clock_s = end_s
    return clock_s / (num_intervals * interval_s)


# %%
torch.manual_seed(0)
C, M, R = 60, 54 * 86400 / 419, 300
minutes = [2 * 1.25**i for i in range(19)]
young_min = sqrt(2 * C * M) / 60
names = ({"en": "formula", "zh": "公式"}, {"en": "played through", "zh": "逐次演过"})
widgets.show(
    curves.curves(
        [
            Series(name, minutes, [cost(60 * each, C, M, R) for each in minutes])
            for name, cost in zip(names, (check.slowdown, lived_through))
        ],
        log_x=True,
        badge="simulated",
        title={"en": "What saving and failing cost", "zh": "保存与故障的代价"},
        x_name={
            "en": "minutes between two checkpoints",
            "zh": "两个检查点之间的分钟数",
        },
        y_name={"en": "time over useful time", "zh": "总时间 / 有用时间"},
    )
)
print(
    f"{my_minutes = }; a failure every {M / 3600:.1f} h; Young: every {young_min:.1f} minutes, "
    f"{check.slowdown(60 * young_min, C, M, R):.3f} times as long"
)
for name in ("sharded", "asynchronous"):
    print(
        f"the model above, {name:<12} save: every {sqrt(2 * kinds[name][0] * M):.0f} s"
    )

# %% [markdown]
# The formula is Daly's complete one (2006), $M e^{R/M}(e^{(T+C)/M}-1)/T$; beside it failures are played through, one by one. The valley is flat: twice or half of the best interval costs little. And the interval grows only with the root of C: an asynchronous save, which stops training for a shorter time, may come more often, and then a failure loses less. Recovery time does not move the valley, it lifts it.
#
# ## Exercises
#
# A check never stops the notebook. It kills ranks, and tells the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. A save that does no harm
#
# Every rank calls your function; `net` is wrapped in DDP, `args` is an `argparse.Namespace`. Leave one file that `torch.load(file, weights_only=True)` reads: a dict of `model` (names without `module.`), `optimizer`, `scheduler`, `step`, `args` (a dict) and `rng` (a list: `torch.get_rng_state()` of every rank). Whenever a rank is killed, `file` must be the old one or the new one, whole; also after a power cut.


# %%
def my_save(file, net, optimizer, scheduler, step, args):
    """Replaces file by a checkpoint of this moment."""
    ### BEGIN SOLUTION
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    if dist.get_rank() == 0:
        part = file.with_suffix(".part")
        with open(part, "wb") as stream:
            torch.save(
                {
                    "model": net.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "step": step,
                    "args": vars(args),
                    "rng": states,
                },
                stream,
            )
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, file)
    ### END SOLUTION


# %%
check.safe_save(my_save)

# %%
check.hint("safe_save")

# %% [markdown]
# ### 2. How often, exactly
#
# Young's root is a first approximation. Find the interval that costs least by Daly's formula, `check.slowdown(interval_s, save_s, mtbf_s)`, to 1 % of the cost; also where a save takes as long as the time between failures.


# %%
def my_interval(save_s, mtbf_s):
    """Seconds between two checkpoints, the save not counted."""
    ### BEGIN SOLUTION
    candidates = [mtbf_s * 10 ** (-5 + 0.005 * i) for i in range(1060)]
    return min(
        candidates, key=lambda interval_s: check.slowdown(interval_s, save_s, mtbf_s)
    )
    ### END SOLUTION


# %%
check.interval(my_interval)

# %%
check.hint("interval")

# %% [markdown] sections="19.8.5"
# ### 3. A simple elastic training
#
# Exercise 19.8.5: a device fails, training goes on. `training` is a run that will be disturbed: ranks are killed, in a step or in a save; some come back, some are gone for good; and once it is a bug, which no restart cures.
#
# Write two functions. `my_rank` runs in every rank: `training.build()` gives a model in DDP and its Adam, `training.step(net, optimizer, step)` trains step `step`, there are `training.num_steps`, and a checkpoint is due after every `training.every` steps, in `training.folder`. It returns the trained `state_dict`. (The batch is the same for any number of ranks, each takes a larger part of it; so the learning rate stays.) `my_elastic` runs in the notebook: `training.launch(my_rank, training, ranks=...)` is `lab.launch`, `training.ranks_left()` is how many there are, and after `training.max_restarts` restarts the exception goes out. It returns the last run.


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
# - Sharded, so that no rank holds everything; asynchronous, so that training stops for a copy alone; incremental where much is frozen.
# - Written under another name, `fsync`, one `rename`: a killed save costs nothing. A digest finds what the disk forgot.
# - Recovery is a new start: end all ranks, launch what is left, load and reshard. Give up when it does not help.
# - Save every $\sqrt{2CM}$ seconds.
#
# ## Sources
#
# - Young 1974, *A first order approximation to the optimum checkpoint interval*, Communications of the ACM 17 (9)
# - Daly 2006, *A higher order estimate of the optimum checkpoint interval for restart dumps*, Future Generation Computer Systems 22 (3)
# - Interruptions: Llama Team 2024, *The Llama 3 Herd of Models*, [arXiv 2407.21783](https://arxiv.org/abs/2407.21783)
# - [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html), [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), [DeepSpeed's universal checkpoints](https://www.deepspeed.ai/tutorials/universal-checkpointing/)
# - The shared store of torchrun's restarts: [pytorch issue 135712](https://github.com/pytorch/pytorch/issues/135712)
#
# Where you stand:

# %%
check.status()
