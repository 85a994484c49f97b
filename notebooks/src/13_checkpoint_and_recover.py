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

# %% [markdown] lang="zh" of="49f44ea4"
# # 检查点与恢复
#
# *对应原资料 10.5.1、19.6.4 两节和练习 19.8.5，约 60 分钟。不需要 GPU。*
#
# 训练时间一长，总会死：设备坏了，机器被收走了，内存用光了。能留下来的，只有磁盘上的东西。本章要弄清：磁盘上该有些什么，怎样写才不会写坏，怎样边训练边写，回来时 rank 少了怎么办，以及隔多久存一次才划算。
#
# 这里会真的杀掉 rank，有的死在一步中间，有的死在存盘中间。全章的要求很高：恢复之后，损失要与没出过事的训练一位不差。

# %%
import labkit as lab

lab.warm()  # starts the process that forks ranks, while the rest loads
import argparse, os, signal, tempfile, time
from math import sqrt
from pathlib import Path
import torch
import torch.distributed as dist
from labkit.pictures import curves
from labkit.recovery import checkpoint
from labkit import model, widgets
from labkit.launching import script
from labkit.pictures.curves import Series
from labkit.recovery import check

LANGUAGE = "en"
check.language(LANGUAGE)
scratch = tempfile.TemporaryDirectory()
FOLDER = Path(scratch.name)

# %% [markdown] sections="10.5.1"
# ## What a checkpoint must hold
#
# A training run is more than its weights. This one has five parts: a model with dropout under DDP, Adam, a learning rate that warms up, a position in the data, and random generators, one in each rank.

# %% [markdown] lang="zh" of="12c7fdd6"
# ## 检查点里要有什么
#
# 一次训练不只是权重。下面这次训练有五个部分：DDP 下带 dropout 的模型，Adam，先升后平的学习率，读到数据的哪里，还有随机数生成器（每个 rank 一个）。


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
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10)),
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

# %% [markdown] lang="zh" of="0cb1f62d"
# 训练二十步，存一个检查点，再训练二十步。然后在新模型里从检查点出发，把后二十步重做几遍，每遍漏掉一个部分。`checkpoint.save` 收下模型和优化器，自己记下随机数生成器的状态，其余的放在 `extra` 里一起存。**先猜。** 漏掉哪一部分，损失坏得最厉害？

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
    checkpoint.save(folder, 20, net, optimizer, extra={"rate": rate.state_dict(), "position": 20})
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
ran = lab.launch(leave_out_each, FOLDER / "parts", ranks=2, backend="gloo", timeout_s=40)
apart = {part: [abs(a - b) for a, b in zip(*ran[1][part])] for part in PARTS}
widgets.show(
    curves.curves(
        [
            Series({"en": part, "zh": PARTS[part]}, range(1, 21), apart[part], points=True)
            for part in list(PARTS)[1:]
        ],
        title={
            "en": "How far the losses leave the undisturbed run",
            "zh": "损失偏离未受干扰的训练多少",
        },
        x_name={"en": "steps after the checkpoint", "zh": "检查点之后的步数"},
        y_name={"en": "difference of the losses", "zh": "损失之差"},
        badge="measured, gloo",
        language=LANGUAGE,
    )
)
print(f"{my_worst = }\nleft out          mean difference over 20 steps, rank 1")
for part in PARTS:
    print(f"{part:<17} {sum(apart[part]) / 20:g}")

# %% [markdown]
# With nothing left out the difference is 0: not small, zero. Without the optimizer Adam has no moments and takes its first steps blindly. Without the learning rate the warm-up comes a second time. Without the position the same data are seen again (the losses are then those of other batches, and most of the difference is that). Without the random numbers dropout drops other cells; that is no mistake of the model, but nobody can tell such a run from a broken one.
#
# The list in section 10.5.1 has model, optimizer, scheduler, epoch and step. Two are missing there: the random generators, of every rank, and the place within the epoch.

# %% [markdown] lang="zh" of="88ce3a67"
# 什么都不漏，差就是 0：不是很小，是零。漏了优化器，Adam 没有了动量，头几步等于乱走。漏了学习率，预热又来一遍。漏了数据位置，同样的数据再看一遍（比的是另一批数据的损失，差得多主要因为这个）。漏了随机数，dropout 丢的是别的单元；这不算模型的错，但这样的训练和出了毛病的训练，谁也分不清。
#
# 10.5.1 节列了模型、优化器、调度器、epoch 和 step，缺两样：每个 rank 的随机数生成器，以及在 epoch 里读到了哪里。

# %% [markdown]
# ### A file that is read, not run
#
# The same section puts `args`, an `argparse.Namespace`, into the file. A file of `torch.save` is a pickle, and a pickle is a program: whoever wrote it decides what runs when you open it. That is why `torch.load` reads by default only what needs no program: tensors, numbers, strings, lists, dicts.

# %% [markdown] lang="zh" of="78e49aab"
# ### 文件是读的，不是跑的
#
# 同一节把 `args`（一个 `argparse.Namespace`）也放进文件。`torch.save` 的文件是 pickle，而 pickle 是程序：打开它时执行什么，由写它的人决定。所以 `torch.load` 默认只读不需要程序的东西：张量、数、字符串、列表、字典。


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
opened = torch.load(file, weights_only=False)  # what the text's load does in an old torch

# %% [markdown]
# `vars(args)`, a dict, says the same and is harmless. `torch.distributed.checkpoint` has such a place, too: its usual `FileSystemWriter` pickles the `.metadata` that it reads first. `labkit.recovery.checkpoint` lets it write safetensors files instead, and refuses an `extra` that would have to be unpickled.
#
# ## Four kinds
#
# Section 10.5.1 names four: **plain** (rank 0 collects everything, writes one file), **sharded** (each rank writes what it holds), **asynchronous** (the states are copied, and a thread writes the copy while training goes on), **incremental** (what has not changed is not written again). Here with FSDP2: each of two ranks holds half of the parameters and of Adam's two moments. Between two saves there is a training step; the better of two is told. **Predict.** A sharded save takes 1; for how long does training stand still in an asynchronous one?

# %% [markdown] lang="zh" of="07ab507f"
# `vars(args)` 是字典，说的是同样的事，而且无害。`torch.distributed.checkpoint` 里也有这样一处：它常用的 `FileSystemWriter` 用 pickle 写 `.metadata`，读的时候先打开的就是它。`labkit.recovery.checkpoint` 让它改写 safetensors 文件，`extra` 里若有非 unpickle 不可的东西，也不收。
#
# ## 四种检查点
#
# 10.5.1 节列了四种。**基本**（plain）：rank 0 收齐，写一个文件。**分片**（sharded）：每个 rank 写自己手里的。**异步**（asynchronous）：先拷一份状态，由一个线程去写，训练接着走。**增量**（incremental）：没变的不再写。下面用 FSDP2：参数和 Adam 的两个动量，两个 rank 各拿一半。两次存盘之间训练一步，报告两次里较好的一次。**先猜。** 设分片存盘用时为 1，异步存盘会让训练停多久？

# %%
my_stop = None


# %%
def sharded_model(num_layers=4, dim=128):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = model.Transformer(num_layers, dim, 4, max_len=32)
    for layer in [*net.layers, net]:
        fully_shard(layer, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
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
kinds = lab.launch(four_kinds, FOLDER / "kinds", ranks=2, backend="gloo", timeout_s=40)[0]
heads = (
    ("training stands still", "until it is on the disk")
    if LANGUAGE == "en"
    else ("训练停住", "写到磁盘为止")
)
names = {"plain": "基本", "sharded": "分片", "incremental": "增量", "asynchronous": "异步"}
rows = [
    ({"en": kind, "zh": names[kind]}, {heads[0]: 1e3 * stood, heads[1]: 1e3 * done})
    for kind, (stood, done, _) in kinds.items()
]
widgets.show(
    curves.bars(
        rows,
        unit_format=lambda ms: f"{ms:.0f} ms",
        title={"en": "Four kinds of saves", "zh": "四种存盘"},
        badge="measured, gloo",
        language=LANGUAGE,
    )
)
print(
    f"{my_stop = }; measured {kinds['asynchronous'][0] / kinds['sharded'][0]:.2f}\n{'':13} files   bytes written"
)
for kind, (_, _, about) in kinds.items():
    print(f"{kind:<13}{len(about['files']):6} {about['written_bytes']:15,}")

# %% [markdown]
# The bytes are the same but for names and headers: 12 per parameter, for Adam has touched everything. The plain one gathers all of it in the memory of rank 0, which a large model does not survive, and the other ranks wait. The asynchronous one stops training for the copy alone; the price is memory for that copy, and a thread that competes with the training for the cores. The incremental one writes a file per tensor and part, waits for the disk after each, and here it saves nothing.
#
# ### What incremental saves
#
# Section 19.6.4 stores the parameters that differ from the last checkpoint, "to reduce I/O". Which ones do not differ? The section's own test, `torch.equal`, on parameters and moments after one more step; and the bytes that the incremental kind then writes. **Predict** the share of the bytes written when everything is trained, and when only the last layer is.

# %% [markdown] lang="zh" of="4d17f3d5"
# 除去名字和文件头，字节数都一样：每个参数 12 字节，因为 Adam 什么都动过。基本那种要把全部状态收到 rank 0 的内存里，大模型受不了，其他 rank 也都在等。异步那种只在拷贝时停一下训练；代价是多一份拷贝的内存，外加一个和训练抢核的线程。增量那种每个张量、每一份写一个文件，每写一个都要等磁盘，而在这里它什么也没省。
#
# ### 增量到底省什么
#
# 19.6.4 节只存与上一个检查点不同的参数，“减少 I/O 开销”。可是哪些没变呢？下面就用那一节自己的办法（`torch.equal`），再走一步之后逐个比较参数和动量；再看增量存盘实际写了多少字节。**先猜**：全部参与训练时，要写的占几成？只训练最后一层时呢？

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
            path = checkpoint.save(folder / name, step, net, optimizer, kind="incremental")
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
changed = lab.launch(what_changes, FOLDER / "changes", ranks=1, backend="gloo", timeout_s=40)[0]
print(f"{my_shares = }\ntrained       tensors unchanged    bytes: first save    third save   share")
for name, (equal, num, written) in changed.items():
    print(
        f"{name:<13} {equal:9} of {num:3} {written[0]:20,} {written[2]:13,} {written[2] / written[0]:7.2f}"
    )

# %% [markdown]
# Adam moves every trained parameter in every step, its moments, and its count of steps. Nothing stays but what is frozen: incremental saves are for fine-tuning a part of a model, not for training one. (Two more prices of the section's code: it keeps a second copy of the model to compare with, and each of its deltas needs all the ones before. A digest of each tensor needs no copy, and here every checkpoint is complete: what has not changed is a second name of the same file.)

# %% [markdown] lang="zh" of="53130a19"
# Adam 每一步都会改动每个参与训练的参数，以及它的动量和步数计数。不变的只有冻结的部分：增量存盘适合只微调模型的一部分，不适合从头训练。（那一节的代码还有两处代价：要另存一份模型用来比较；每个增量都离不开它之前的所有增量。给每个张量算摘要就不用另存一份；这里的每个检查点也都是完整的，没变的张量只是同一个文件的另一个名字。）

# %% [markdown] sections="19.6.4"
# ## A rank dies
#
# Thirty steps, a checkpoint after every tenth. After step 25 rank 1 is killed, as the system does when memory runs out.

# %% [markdown] lang="zh" of="7f4a90e1"
# ## 一个 rank 死了
#
# 训练三十步，每十步存一次。走完第 25 步，rank 1 被杀，就像内存不够时系统会做的那样。


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
            checkpoint.save(folder, position, net, optimizer, extra={"rate": rate.state_dict()})
    return losses


# %%
try:
    lab.launch(train_and_save, FOLDER / "killed", 25, ranks=2, backend="gloo", timeout_s=40)
except lab.RankFailed as error:
    killed_s = float(error.logs[1].split()[-1])
    print(
        error,
        "\n\nleft on the disk:",
        *(path.name for path in checkpoint.checkpoints(FOLDER / "killed")),
    )

# %% [markdown]
# The same call again is the whole recovery. **Predict** how many seconds pass from the kill to the first new step. Chapter 19 of the source material asks for less than five minutes.

# %% [markdown] lang="zh" of="90711ce2"
# 把同样的调用再做一次，就是恢复的全部。**先猜**：从被杀到走出新的一步，要几秒？原资料第 19 章要求少于五分钟。

# %%
my_seconds = None

# %%
after = lab.launch(train_and_save, FOLDER / "killed", ranks=2, backend="gloo", timeout_s=40)[0]
undisturbed = lab.launch(
    train_and_save, FOLDER / "undisturbed", ranks=2, backend="gloo", timeout_s=40
)[0]
launch_s = min(at for at, _ in after.values()) - killed_s
print(
    f"{my_seconds = }; measured {launch_s:.2f} s from the kill to step {min(after) + 1}; the source's limit is 300 s"
)
same = [after[step][1] == undisturbed[step][1] for step in after]
print(f"losses equal to the undisturbed run's, to the last bit: {sum(same)} of {len(same)}")
names = ({"en": "undisturbed", "zh": "未受干扰"}, {"en": "after the recovery", "zh": "恢复之后"})
widgets.show(
    curves.curves(
        [
            Series(
                name, [step + 1 for step in ran], [loss for _, loss in ran.values()], points=True
            )
            for name, ran in zip(names, (undisturbed, after))
        ],
        badge="measured, gloo",
        title={"en": "Loss of rank 0", "zh": "rank 0 的损失"},
        x_name={"en": "step", "zh": "步"},
        y_name={"en": "loss", "zh": "损失"},
        language=LANGUAGE,
    )
)

# %% [markdown]
# What is lost are the steps since the last checkpoint, and nothing else. (Most of the five minutes goes into what is not here: finding a new machine, importing torch, reading a hundred gigabytes.) The section's code catches an `NCCLError` (torch has no such class; it raises `DistBackendError`) and goes on in the same process. But when a rank is gone the others are in an unknown state, deep in a collective. Ending all of them and starting anew is what torchrun does, too.
#
# ### A rank dies while it saves
#
# The dangerous moment is the save itself: `torch.save` onto the only good file, killed half-way, costs everything. Here rank 1 is killed when it is about to bring its part to the disk (`fsync`).

# %% [markdown] lang="zh" of="612010ea"
# 丢掉的只是上个检查点之后的那几步，别的都在。（五分钟大多花在这里没有的事上：找一台新机器，import torch，读上百 GB。）那一节的代码捕获 `NCCLError`（torch 里没有这个类，抛出的是 `DistBackendError`），在同一个进程里接着训练；可是一个 rank 没了之后，其他 rank 还陷在集合通信里，状态说不清。全部结束、重新启动才稳妥，torchrun 也是这样做的。
#
# ### 死在存盘的时候
#
# 危险的正是存盘那一刻：用 `torch.save` 直接写在唯一的好文件上，写到一半被杀，就什么都没了。下面让 rank 1 死在即将把自己那份落盘（`fsync`）的时候。


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
    lab.launch(die_in_the_save, FOLDER / "saving", ranks=2, backend="gloo", timeout_s=40)
except lab.RankFailed as error:
    print(str(error).splitlines()[0])
print("in the folder:", *sorted(path.name for path in (FOLDER / "saving").iterdir()))
print(
    "loaded: step",
    lab.launch(come_back, FOLDER / "saving", ranks=2, backend="gloo", timeout_s=40)[0][0],
)

# %% [markdown]
# The name with the dot was a checkpoint in the making. It gets its real name by one `rename`, which happens or does not, after every rank's files are on the disk; the next save sweeps it away. (The tests kill a save at each touch of the folder, one after the other.)
#
# Disks also forget silently. The index holds a digest of each file, so a flipped bit is found, named, and the checkpoint before it is taken:

# %% [markdown] lang="zh" of="528a81b8"
# 名字带点的是还没写完的检查点。等所有 rank 的文件都落了盘，才用一次 `rename` 给它真名；这一步要么发生，要么没有。下一次存盘会把残留的清掉。（测试里，在存盘过程中每碰一次这个文件夹就杀一次，逐个试过。）
#
# 磁盘也会悄悄出错。索引里有每个文件的摘要，翻转一位就能发现，说出是哪个文件，然后改用前一个检查点：

# %%
file = max(checkpoint.checkpoints(FOLDER / "undisturbed")[0].glob("shard*"))
content = bytearray(file.read_bytes())
content[-1] ^= 1
file.write_bytes(content)
step, skipped = lab.launch(
    come_back, FOLDER / "undisturbed", ranks=2, backend="gloo", timeout_s=40
)[0]
print(f"loaded: step {step}, because {skipped[0].replace(scratch.name, '...')}")

# %% [markdown]
# ## Come back with fewer ranks
#
# A sharded checkpoint says of every part where in the whole tensor it belongs. So whoever loads takes what it needs: **resharding**. The names are those of the bare model, so even the engine may be another. From four ranks of FSDP2:

# %% [markdown] lang="zh" of="414201d4"
# ## 带着更少的 rank 回来
#
# 分片的检查点记着每一份在整个张量里的位置，所以谁来读，就取自己要的那部分，这叫重新分片（resharding）。名字用的是裸模型的，连引擎都可以换。从四个 rank 的 FSDP2 出发：


# %%
def whole(net, optimizer):
    """All parameters and moments, whole."""
    tensors = [
        *net.parameters(),
        *(state[key] for state in optimizer.state.values() for key in sorted(state)),
    ]
    return [
        each.full_tensor() if hasattr(each, "full_tensor") else each.detach() for each in tensors
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
        net = torch.nn.parallel.DistributedDataParallel(model.Transformer(1, 64, 4, max_len=32))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    found = checkpoint.load(folder, net, optimizer)
    return whole(net, optimizer), found["rng"]


# %%
saved = lab.launch(save_shards, FOLDER / "shards", ranks=4, backend="gloo", timeout_s=40)[0]
for engine, num_ranks in (("FSDP2", 2), ("DDP", 2)):
    loaded, rng = lab.launch(
        load_shards, FOLDER / "shards", engine, ranks=num_ranks, backend="gloo", timeout_s=40
    )[0]
    equal = sum(torch.equal(a, b) for a, b in zip(saved, loaded, strict=True))
    print(
        f"{engine:>6}, {num_ranks} ranks: {equal} of {len(saved)} tensors equal; random generators go on: {rng}"
    )

# %% [markdown]
# Tensors carry over to the bit. Random generators do not: there were four, and now there are two. And the same batch is now cut into two parts, so sums are rounded otherwise: with another number of ranks the losses agree closely, not to the bit. What must not depend on the ranks, such as the data, is best drawn from (seed, step).
#
# DeepSpeed's files know the number of their ranks, and it refuses another. Its way is a conversion in between: `engine.save_checkpoint`, then the command `ds_to_universal --inject_missing_state`, then a configuration with `"checkpoint": {"load_universal": true}`. (The tests do that for ZeRO 2 and 3: saved on 2 ranks, trained on with 1 and with 4.)
#
# ## torchrun restarts
#
# Outside of a notebook, somebody must notice the death and start again. `torchrun --max-restarts` does: when a rank dies it ends the others and starts all of them anew. The script only has to begin where the newest checkpoint ends.

# %% [markdown] lang="zh" of="b7120603"
# 张量一位不差地带过来了。随机数生成器不行：原来有四个，现在只有两个。同一批数据现在只切成两份，求和的舍入也不同：rank 数变了，损失会很接近，但不会每一位都相同。凡是不该随 rank 数变化的，比如数据，最好由（种子，步数）抽出来。
#
# DeepSpeed 的文件认得自己有几个 rank，换个数就拒绝。它的办法是中间转换一次：先 `engine.save_checkpoint`，再运行命令 `ds_to_universal --inject_missing_state`，然后在配置里写 `"checkpoint": {"load_universal": true}`。（测试里对 ZeRO 2 和 3 做了：2 个 rank 存，分别用 1 个和 4 个 rank 接着训练。）
#
# ## torchrun 的重启
#
# 离开笔记本，就得有谁来发现死亡并重新启动。`torchrun --max-restarts` 管这件事：一个 rank 死了，它结束其余的，全部重来。脚本只要从最新的检查点接着走就行。

# %%
TRAIN = """import os, pathlib, sys, time, torch, torch.distributed as dist
from labkit import checkpoint, rank
dist.init_process_group("gloo")
optimizer = torch.optim.Adam((net := torch.nn.Linear(4, 4)).parameters())
step = checkpoint.load(sys.argv[1], net, optimizer)["step"] if checkpoint.checkpoints(sys.argv[1]) else 0
rank.current().give((step, time.time()))
while step < 6:
    if step == 4 and dist.get_rank() == 1 and not (killed := pathlib.Path(sys.argv[2])).exists():
        killed.write_text(str(time.time())), os.kill(os.getpid(), 9)
    net(torch.ones(2, 4)).sum().backward()
    for weight in net.parameters(): dist.all_reduce(weight.grad)
    optimizer.step(), optimizer.zero_grad()
    step += 1
    if step % 3 == 0: checkpoint.save(sys.argv[1], step, net, optimizer)
dist.barrier(), os._exit(0)"""

# %%
file = FOLDER / "train.py"
file.write_text(TRAIN)
ran = lab.launch_script(
    file, FOLDER / "torchrun", FOLDER / "killed at", ranks=2, max_restarts=2, timeout_s=50
)
step, began_s = ran[0]
torchrun_s = began_s - float((FOLDER / "killed at").read_text())
print(
    f"went on from step {step}; from the kill to there: torchrun {torchrun_s:.1f} s, lab.launch {launch_s:.2f} s"
)

# %% [markdown]
# Most of torchrun's time is `import torch` in new processes; `lab.launch` forks from one that has it. The environment variable in front is a repair: torch 2.13 keeps one store for all starts, and a new rank may find a dead one's address there, and wait for it.
#
# torchrun also goes on with **fewer** ranks. Then there is one torchrun per machine, `--nnodes 1:2` says that one or two of them are enough, and when a machine is gone with its torchrun, the others meet again. `launch_script(..., nodes=(1, 2))` lets two torchruns on this machine stand for two machines; it takes too long for this page. The lines that it would run:

# %% [markdown] lang="zh" of="e85d03a4"
# torchrun 的时间大半花在新进程里的 `import torch` 上；`lab.launch` 则从已经导入好的进程里 fork。命令前面的环境变量是个补救：torch 2.13 让历次启动共用一个 store，新的 rank 可能在里面找到死者的地址，于是一直等下去。
#
# torchrun 也能带着**更少**的 rank 继续。这时每台机器一个 torchrun，`--nnodes 1:2` 表示有一台或两台就够；一台机器连同它的 torchrun 没了，其余的重新集合。`launch_script(..., nodes=(1, 2))` 用本机上的两个 torchrun 代表两台机器；放在这一页里太慢。它会运行的命令是：

# %%
for node in range(2):
    print(
        *script.command(file, ranks=2, using="torchrun", max_restarts=1, nodes=(1, 2), node=node)[
            :-1
        ],
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

# %% [markdown] lang="zh" of="d70962ac"
# ## 隔多久存一次
#
# 存得勤，时间花在存盘上；存得少，一次故障就丢很多。设存一次要 C 秒，平均每 M 秒出一次故障，Young（1974）给出的最佳间隔是
#
# $$T = \sqrt{2\,C\,M}$$
#
# 设备越多，M 越小。Llama 3 的训练用 16,384 块 GPU，54 天里意外中断了 419 次。就用这个 M，存一次停一分钟，恢复用第 19 章允许的五分钟。**先猜**最佳间隔。

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
        title={"en": "What saving and failing cost", "zh": "存盘与故障的代价"},
        x_name={"en": "minutes between two checkpoints", "zh": "两个检查点之间的分钟数"},
        y_name={"en": "time over useful time", "zh": "总时间 / 有用时间"},
        language=LANGUAGE,
    )
)
print(
    f"{my_minutes = }; a failure every {M / 3600:.1f} h; Young: every {young_min:.1f} minutes, "
    f"{check.slowdown(60 * young_min, C, M, R):.3f} times as long"
)
for name in ("sharded", "asynchronous"):
    print(f"the model above, {name:<12} save: every {sqrt(2 * kinds[name][0] * M):.0f} s")

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

# %% [markdown] lang="zh" of="cdcc9143"
# 公式是 Daly（2006）的完整公式 $M e^{R/M}(e^{(T+C)/M}-1)/T$；旁边是把故障一次次演过来的结果。谷底很平：间隔大一倍或小一半，代价都不大。最佳间隔只随 C 的平方根增长：异步存盘停得短，就可以存得勤些，故障丢的也就少些。恢复时间不会移动谷底，只会把它抬高。
#
# ## 练习
#
# 检查不会中断笔记本。它会杀掉 rank，然后说出第一个不对的情形。每试一次，`check.hint(名字)` 会多说一点。
#
# ### 1. 不会写坏的存盘
#
# 每个 rank 都会调用你的函数；`net` 包在 DDP 里，`args` 是 `argparse.Namespace`。请留下一个 `torch.load(file, weights_only=True)` 能读的文件，内容是字典：`model`（名字不带 `module.`）、`optimizer`、`scheduler`、`step`、`args`（字典）和 `rng`（列表：每个 rank 的 `torch.get_rng_state()`）。不论哪个 rank 何时被杀，`file` 要么是旧的，要么是新的，而且是完整的；断电之后也是。


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

# %% [markdown] lang="zh" of="a96f047d"
# ### 2. 到底隔多久
#
# Young 的平方根只是一阶近似。按 Daly 的公式 `check.slowdown(interval_s, save_s, mtbf_s)` 找出代价最小的间隔，代价的误差不超过 1 %；存一次和故障间隔差不多长的时候也要对。


# %%
def my_interval(save_s, mtbf_s):
    """Seconds between two checkpoints, the save not counted."""
    ### BEGIN SOLUTION
    candidates = [mtbf_s * 10 ** (-5 + 0.005 * i) for i in range(1060)]
    return min(candidates, key=lambda interval_s: check.slowdown(interval_s, save_s, mtbf_s))
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

# %% [markdown] lang="zh" of="a71c40d3"
# ### 3. 一个简单的弹性训练
#
# 练习 19.8.5：设备坏了，训练继续。`training` 是一次会受干扰的训练：rank 会被杀，有的死在一步里，有的死在存盘时；有的能回来，有的再也回不来；还有一次是程序错误，重启多少次也没用。
#
# 写两个函数。`my_rank` 在每个 rank 里运行：`training.build()` 给出 DDP 下的模型和它的 Adam，`training.step(net, optimizer, step)` 训练第 `step` 步，一共 `training.num_steps` 步，每 `training.every` 步该存一次检查点，放在 `training.folder`。它返回训练好的 `state_dict`。（不管有几个 rank，一批数据都是同一批，人少了每人多算一些，所以学习率不用改。）`my_elastic` 在笔记本里运行：`training.launch(my_rank, training, ranks=...)` 就是 `lab.launch`，`training.ranks_left()` 是还剩几个 rank；重启满 `training.max_restarts` 次之后，让异常出去。它返回最后一次运行的结果。


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

# %% [markdown] lang="zh" of="bcaefb2b"
# ## 小结
#
# - 检查点里要有模型、优化器、学习率、数据位置，以及每个 rank 的随机数生成器。都有了，恢复后的训练就与未受干扰的一位不差。
# - 文件是读的，不是跑的：`weights_only=True`，存字典，不存对象。
# - 分片，免得有谁要装下全部；异步，训练只在拷贝时停一下；增量，用在大部分被冻结的时候。
# - 先写在别的名字下，`fsync`，再 `rename` 一次：存盘时被杀也不损失什么。摘要能发现磁盘记错了什么。
# - 恢复就是重新启动：结束所有 rank，用剩下的再启动，读回来并重新分片。重启也没用时，就该放弃。
# - 每 $\sqrt{2CM}$ 秒存一次。
#
# ## 出处
#
# - Young，1974，*A first order approximation to the optimum checkpoint interval*，Communications of the ACM 17 (9)
# - Daly，2006，*A higher order estimate of the optimum checkpoint interval for restart dumps*，Future Generation Computer Systems 22 (3)
# - 中断次数：Llama Team，2024，*The Llama 3 Herd of Models*，[arXiv 2407.21783](https://arxiv.org/abs/2407.21783)
# - [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html)、[torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html)、[DeepSpeed 的通用检查点](https://www.deepspeed.ai/tutorials/universal-checkpointing/)
# - torchrun 重启时共用的 store：[pytorch issue 135712](https://github.com/pytorch/pytorch/issues/135712)
#
# 你做到了哪里：

# %%
check.status()
