# ---
# jupyter:
#   labkit:
#     sections: ["D-verify"]
#     needs: []
#     minutes: 5
# ---

# %% [markdown]
# # Start here: is this machine ready?
#
# *Section D-verify of the source material. Five minutes.*
#
# You will see what this machine is, start four real processes from a cell, watch them wait for each other, and check that torch.distributed, Accelerate and DeepSpeed work here. No GPU is needed: without one, the processes talk through gloo on the CPU.

# %% [markdown] lang="zh" of="b90a7511"
# # 从这里开始：这台机器准备好了吗？
#
# *对应原资料的 D-verify 一节，约五分钟。*
#
# 这一章先看清这台机器有什么，再从一个单元格里启动四个真实的进程，看它们怎样互相等待，最后检查 torch.distributed、Accelerate 和 DeepSpeed 在这里能不能用。没有 GPU 也可以：进程之间改用 CPU 上的 gloo 通信。

# %%
import labkit as lab
from labkit.machine import doctor
from labkit.machine import resources
from labkit import widgets

LANGUAGE = "en"
lab.warm()  # starts the process that forks ranks, while you read on

# %% [markdown]
# ## What this machine is
#
# Each row is looked up now. A row that is not well says what to do about it.

# %% [markdown] lang="zh" of="c53bbc9e"
# ## 这台机器是什么样的
#
# 下面每一行都是现查的。哪一行不正常，它就会写明该怎么办。

# %%
doctor.examine()

# %% [markdown]
# ## The first launch
#
# `launch` runs a function in several processes at once. Each is called a *rank* and has a number. All of them run the same code; only the number differs.

# %% [markdown] lang="zh" of="a77b5bcc"
# ## 第一次启动
#
# `launch` 让同一个函数在几个进程里同时运行。每个进程叫一个 rank，各有一个编号（rank 这个词也指编号本身）。大家跑的代码完全一样，不一样的只有编号。


# %%
def hello():
    import os

    return f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, process {os.getpid()}"


run = lab.launch(hello, ranks=4)
list(run)

# %% [markdown]
# Four process numbers: these are four programs, not four threads of this notebook. Each has its own memory. A variable that a rank changes does not change here.

# %% [markdown] lang="zh" of="995ecc9a"
# 四个不同的进程号：它们是四个独立的程序，不是这个笔记本里的四个线程，各有各的内存。rank 里改了一个变量，这边的变量不会跟着变。

# %%
count = 0


def add_one():
    global count
    count += 1
    return count


list(lab.launch(add_one, ranks=4)), count

# %% [markdown]
# ## Predict
#
# Ranks 0 to 3 each hold a tensor with their own number. `all_reduce` adds the four tensors and gives the sum to everyone. Write down what rank 2 will hold.

# %% [markdown] lang="zh" of="88de753b"
# ## 先猜
#
# rank 0 到 3 各有一个张量，里面就是自己的编号。`all_reduce`（全归约）把四个张量加起来，再把和发给每一个 rank。请先写下：rank 2 最后拿到几？

# %%
my_guess = None  # a number

# %% [markdown]
# ## Run
#
# To see the waiting, rank r first multiplies matrices, r + 1 times as many as rank 0. `trace.record` notes what the rank does.

# %% [markdown] lang="zh" of="e8402511"
# ## 运行
#
# 为了看得见等待，rank r 先做一阵矩阵乘法，次数是 rank 0 的 r + 1 倍。`trace.record` 记下这个 rank 做了什么。


# %%
def add_up():
    import torch
    import torch.distributed as dist
    from labkit.measure import trace

    x, square = torch.tensor([float(dist.get_rank())]), torch.randn(400, 400)
    dist.barrier()  # all start together
    with trace.record():
        for _ in range(25 * (dist.get_rank() + 1)):
            square @ square
        dist.all_reduce(x)
    return x.item()


run = lab.launch(add_up, ranks=4)
list(run), my_guess

# %% [markdown]
# ## Compare
#
# Everyone holds the sum. The picture shows its price: rank 0 had the least to do, called `all_reduce` first, and waited for rank 3. A collective ends when the slowest rank arrives.

# %% [markdown] lang="zh" of="76399c94"
# ## 对照
#
# 每个 rank 都拿到了和。图里是它的代价：rank 0 活最少，最先调用 `all_reduce`，然后一直等到 rank 3。集合通信（collective）要等最慢的那个 rank 到齐才会结束。

# %%
widgets.timeline(run, language=LANGUAGE)

# %% [markdown] sections="D-verify"
# ## A check that cannot fail checks nothing
#
# Section D-verify prints "success" when a script reaches its end. This is its logic. It starts no process group, so it has one rank and skips the only line that would communicate.

# %% [markdown] lang="zh" of="9b2e85a2"
# ## 不会失败的检查等于没查
#
# D-verify 一节的脚本只要跑到结尾就打印“成功”。下面就是它的逻辑：它没有建立进程组，所以只看到一个 rank，唯一一行真正通信的代码被跳过了。


# %%
def vacuous(reduce):
    import torch.distributed as dist

    world_size = dist.get_world_size() if dist.is_initialized() else 1
    if world_size > 1:
        reduce()
    return "success"


vacuous(reduce=lambda: 1 / 0)  # even a reduction that always fails is a success

# %% [markdown]
# A check must be able to fail. This one sends a different number from every rank through three collectives and compares with arithmetic done alone.

# %% [markdown] lang="zh" of="84037aad"
# 检查必须有可能失败。下面这个让每个 rank 发出不同的数，走三种集合通信，再和单独算出来的结果比较。


# %%
def check_torch(spoil=False):
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    parts = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(parts, torch.tensor([float(rank) + spoil]))
    word = torch.tensor([float(rank * 7)])
    dist.broadcast(word, src=size - 1)
    assert total.item() == size * (size + 1) / 2, f"all_reduce gave {total.item()}"
    assert [p.item() for p in parts] == list(range(size)), f"all_gather gave {parts}"
    assert word.item() == 7 * (size - 1), f"broadcast gave {word.item()}"
    return "all_reduce, all_gather and broadcast are right"


lab.launch(check_torch, ranks=4)[0]

# %% [markdown]
# Now spoil the data. The check fails, and the launch says on which rank and at which line.

# %% [markdown] lang="zh" of="95973c3d"
# 现在故意弄坏数据。检查失败了，并且说清楚是哪个 rank、哪一行。

# %%
try:
    lab.launch(check_torch, spoil=True, ranks=2)
except lab.RankFailed as verdict:
    print(verdict)

# %% [markdown]
# ## Accelerate
#
# Every rank trains on its own half of the data. If Accelerate averages the gradients, both ranks end with the weights that one process gets from the whole batch.

# %% [markdown] lang="zh" of="c3c3cad1"
# ## Accelerate
#
# 每个 rank 只用自己那一半数据训练。如果 Accelerate 真的把梯度取了平均，两个 rank 最后的权重就应该和一个进程用整批数据训练出来的一样。


# %%
def one_step(use_accelerate):
    import torch

    torch.manual_seed(0)
    model, data = torch.nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if use_accelerate:
        from accelerate import Accelerator

        accelerator = Accelerator()
        model, optimizer = accelerator.prepare(model, optimizer)
        data = data.chunk(accelerator.num_processes)[accelerator.process_index]
    loss = model(data).square().mean()
    accelerator.backward(loss) if use_accelerate else loss.backward()
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


whole = lab.launch(one_step, False, ranks=1)[0]
halves = lab.launch(one_step, True, ranks=2)
differences = [(halves[r] - whole).abs().max().item() for r in range(2)]
assert max(differences) < 1e-6, "Accelerate did not average the gradients"
differences

# %% [markdown]
# ## DeepSpeed
#
# The same question to a DeepSpeed engine under ZeRO stage 1, where each rank keeps only half of the optimizer's state.

# %% [markdown] lang="zh" of="51c6f66b"
# ## DeepSpeed
#
# 同样的问题再问 DeepSpeed：用 ZeRO 第 1 阶段（ZeRO stage 1），每个 rank 只保存一半的优化器状态。


# %%
def deepspeed_step():
    import deepspeed
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model, data = torch.nn.Linear(4, 1), torch.randn(8, 4)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}
    config |= {
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }  # plain SGD; clips at 1.0 if not told
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    mine = data.chunk(dist.get_world_size())[dist.get_rank()].to(engine.device)
    engine.backward(engine(mine).square().mean())
    engine.step()
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


halves = lab.launch(deepspeed_step, ranks=2)
differences = [(halves[r] - whole).abs().max().item() for r in range(2)]
assert max(differences) < 1e-6, "DeepSpeed took another step than one process with the whole batch"
differences

# %% [markdown]
# ## When ranks wait for ever
#
# The commonest mistake of the field: one rank leaves, the others still wait for it. Elsewhere this hangs for half an hour. Here it is a verdict, in less than a second, and the notebook goes on.

# %% [markdown] lang="zh" of="0c7eebfa"
# ## 永远等下去的时候
#
# 这个领域里最常见的错误：一个 rank 先走了，其他 rank 还在等它。在别处，程序会卡上半个小时；在这里不到一秒就得到一个判定，笔记本可以接着用。


# %%
def leave_early():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        return
    dist.all_reduce(torch.ones(1))


try:
    lab.launch(leave_early, ranks=3)
except lab.Deadlock as verdict:
    print(verdict)

# %% [markdown]
# ## Summary
#
# - A rank is a process with a number. All ranks run the same function.
# - A collective ends when the last rank arrives.
# - A check must be able to fail. All three checks above compare with a result computed alone.
# - A launch ends in a result or in a verdict, and leaves no process behind. The stop button works, too.
#
# Next: [why distributed](01_why_distributed.ipynb).
#
# Sources: the documentation of [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), [Accelerate](https://huggingface.co/docs/accelerate) and [DeepSpeed](https://www.deepspeed.ai).

# %% [markdown] lang="zh" of="0431545e"
# ## 小结
#
# - rank 是有编号的进程，所有 rank 运行同一个函数。
# - 集合通信要等最后一个 rank 到了才结束。
# - 检查必须有可能失败。上面三个检查都是和单独算出的结果比较。
# - 一次启动要么得到结果，要么得到判定，不会留下任何进程。停止按钮同样有效。
#
# 下一章：[为什么要分布式](01_why_distributed.ipynb)。
#
# 参考：[torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html)、[Accelerate](https://huggingface.co/docs/accelerate) 和 [DeepSpeed](https://www.deepspeed.ai) 的文档。
