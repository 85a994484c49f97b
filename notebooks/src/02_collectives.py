# ---
# jupyter:
#   labkit:
#     sections: ["8.3.2", "8.9.1", "19.1.1", "19.1.2", "19.8.1", "S11"]
#     needs: ["two CPU cores"]
#     minutes: 75
# ---

# %% [markdown]
# # Collectives
#
# *Sections 8.3.2, 8.9.1, 19.1.1, 19.1.2, 19.8.1 and S11 of the source material. About 75 minutes. No GPU is needed.*
#
# Ranks that train one model exchange gradients, weights and activations all the time. A **collective** is such an exchange in which all of them take part: everybody gets the sum, everybody gets a part, one sends to all.
#
# You will run every collective on real processes and count its bytes, write the ring all-reduce by hand, let it race against a parameter server and against trees, and fit a cost model of two numbers that then predicts times it has not seen.

# %% [markdown] lang="zh" of="0f20e64c"
# # 集合通信
#
# *对应原资料 8.3.2、8.9.1、19.1.1、19.1.2、19.8.1 和 S11 各节，约 75 分钟。不需要 GPU。*
#
# 一起训练一个模型的各个 rank 不停地交换梯度、权重和激活。所有 rank 都参加的交换叫集合通信（collective）：人人得到总和，或者各得一份，或者一个发给全体。
#
# 本章在真实进程上运行每一种集合通信并数清字节；手写环形 all-reduce，让它与参数服务器和树赛跑；最后拟合一个只有两个数的代价模型，去预测它没见过的时间。

# %%
import labkit as lab

lab.warm()  # starts the process that forks ranks, while the rest loads
from labkit.collectives import calibrate_run as calibrate, network, network_picture
from labkit.collectives import topology_picture
from labkit.pictures import curves as pictures_curves, scene
from labkit import collectives, widgets
from labkit.machine import hardware, resources
from labkit.pictures.curves import Series
from labkit.collectives import check
from labkit.collectives.algorithms import ALGORITHMS, lower_bound_bytes, plan
from labkit.collectives.plans import sent_bytes
from labkit.words import TITLES
from labkit.collectives.network import Link, crossover_bytes, formula_us, time_us, uniform
from labkit.words import WORDS, called
from labkit.units import format_bytes, format_us

LANGUAGE = "en"
check.language(LANGUAGE)


def curves(series, title, badge, **options):
    widgets.show(
        pictures_curves.curves(
            series, title=title, badge=badge, log_x=True, log_y=True, language=LANGUAGE, **options
        )
    )


# %% [markdown] sections="19.1.1"
# ## What messages travel on
#
# A collective is as fast as the slowest link it crosses. So NCCL begins by asking the system what is connected with what: GPUs and their NVLinks, PCIe, the NUMA nodes of the CPUs, network cards. This is the machine you are on, asked the same way; without GPUs the ranks are processes on its cores, and messages go through its memory.

# %% [markdown] lang="zh" of="b9ae2dd3"
# ## 消息走的是什么路
#
# 集合通信有多快，要看它经过的最慢的那条链路。所以 NCCL 一开始就向系统打听谁与谁相连：GPU 和它们的 NVLink、PCIe、CPU 的 NUMA 节点、网卡。下面用同样的办法打听你这台机器；没有 GPU 时，rank 就是核上的进程，消息走内存。

# %%
widgets.show(topology_picture.topology(hardware.topology(), language=LANGUAGE))

# %% [markdown]
# Section 19.1.1 draws a DGX A100: four GPUs under one NVSwitch, four under another, "NVLink 600 GB/s" and "PCIe Gen4 64 GB/s". Some arithmetic with the data sheets' numbers: 12 NVLinks per GPU of 25 GB/s in each direction; 16 PCIe lanes of 16 GT/s, 128 bits of every 130 being data; 36 ports on an NVSwitch of that generation.

# %% [markdown] lang="zh" of="d30c1e25"
# 19.1.1 节画了一台 DGX A100：四块 GPU 接一个 NVSwitch，另外四块接另一个，“NVLink 600 GB/s”，“PCIe Gen4 64 GB/s”。用数据手册上的数算一算：每块 GPU 有 12 条 NVLink，每条每个方向 25 GB/s；PCIe 是 16 条通道，每条 16 GT/s，每 130 位里有 128 位是数据；那一代的 NVSwitch 有 36 个端口。

# %%
pcie_gb_per_s = 16 * 16e9 * 128 / 130 / 8 / 1e9
for name, one_way in (("PCIe 4 x16", pcie_gb_per_s), ("12 NVLinks", 12 * 25)):
    print(f"{name}: {one_way:5.1f} GB/s in each direction, {2 * one_way:5.1f} in both together")
print(f"8 GPUs have {8 * 12} NVLinks; 2 switches have {2 * 36} ports, 6 switches {6 * 36}")
print(
    f"NVLink over PCIe: {12 * 25 / pcie_gb_per_s:.1f} times; 300 over 64 would be {300 / 64:.1f} times"
)

# %% [markdown]
# - 600 and 64 count both directions. A message travels in one: 300 and 32. Section 19.1.3 sets 300 (one direction) beside 64 (both) and so makes PCIe look twice as good as it is.
# - Two switches do not have the ports. A DGX A100 has six, and each GPU has two links to each of them (NVIDIA's white paper of that machine). So there are no two groups: every pair of GPUs is equally near, and `nvidia-smi topo -m` prints `NV12` in every cell.

# %% [markdown] lang="zh" of="15416a41"
# - 600 和 64 都是两个方向加在一起。一条消息只走一个方向：300 和 32。19.1.3 节把 300（单向）和 64（双向）并排写，PCIe 看上去就比实际好了一倍。
# - 两个交换芯片的端口根本不够。DGX A100 有六个，每块 GPU 与每个芯片各有两条链路（见 NVIDIA 那台机器的白皮书）。所以并没有两组之分：任意两块 GPU 一样近，`nvidia-smi topo -m` 每一格都印 `NV12`。

# %% [markdown] sections="8.9.1, S11"
# ## The collectives, one by one
#
# Four processes. To see where every number comes from, rank r brings 1, 2, 3, 4 times $10^r$. So rank 2 brings `0100 0200 0300 0400`: the **digit** says which of its four numbers it is, its **place** says from whom it comes.

# %% [markdown] lang="zh" of="860a3eba"
# ## 逐个来看
#
# 四个进程。为了看清每个数的来历，rank r 带来 1、2、3、4 乘以 $10^r$。比如 rank 2 带来 `0100 0200 0300 0400`：**数字**是几，就是它的第几个数；**站在哪一位**，就来自哪个 rank。


# %%
def primitives():
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(1, size + 1) * 10**rank
    copied, reduced, summed, gathered, exchanged = (mine.clone() for _ in range(5))
    part = torch.empty_like(mine[:1])
    dist.broadcast(copied, src=0)
    dist.reduce(reduced, dst=0)
    dist.all_reduce(summed)
    dist.all_gather_single(gathered, mine[rank : rank + 1])
    dist.reduce_scatter_single(part, mine)
    dist.all_to_all_single(exchanged, mine)
    results = {
        "(before)": mine,
        "broadcast": copied,
        "reduce": reduced,
        "all_reduce": summed,
        "all_gather": gathered,
        "reduce_scatter": part,
        "all_to_all": exchanged,
    }
    return {name: tensor.tolist() for name, tensor in results.items()}


# %%
run = lab.launch(primitives, ranks=4, timeout_s=30)
print(" " * 16, *(f"rank {rank}".center(19) for rank in range(4)), sep=" | ")
for name in run[0]:
    cells = (" ".join(f"{number:04}" for number in result[name]) for result in run)
    print(f"{name:<16}", *(cell.center(19) for cell in cells), sep=" | ")

# %% [markdown]
# - **Broadcast**: all have what rank 0 brought. For weights at the start.
# - **Reduce**: rank 0 has the sum. On the others stands whatever the library left there; only the root's result is defined.
# - **All-reduce**: all have the sum. For gradients under DDP.
# - **All-gather**: each brought one number (its r-th), all have all four. For the weights of FSDP.
# - **Reduce-scatter**: the sum, but rank r gets only its r-th number. For the gradients of FSDP. An all-gather of these would complete an all-reduce; remember that.
# - **All-to-all**: rank r gets everyone's r-th number: a transposed table. For mixtures of experts.
#
# `dist.all_gather` and `dist.reduce_scatter`, which the sources use, do the same with lists of tensors instead of one large one.

# %% [markdown] lang="zh" of="f7ce2804"
# - 广播（broadcast）：人人都有 rank 0 带来的数。用于开始时分发权重。
# - 归约（reduce）：rank 0 得到总和。别的 rank 上是库用剩的东西，只有 root 的结果有定义。
# - 全归约（all-reduce）：人人得到总和。用于 DDP 的梯度。
# - 全收集（all-gather）：每个 rank 带来一个数（它的第 r 个），人人都有四个。用于 FSDP 的权重。
# - 归约分发（reduce-scatter）：求和，但 rank r 只得到第 r 个数。用于 FSDP 的梯度。把这些结果再 all-gather 一次，就成了 all-reduce；记住这一点。
# - 全交换（all-to-all）：rank r 得到所有人的第 r 个数，相当于把表转置。用于混合专家模型（MoE）。
#
# 原资料用的 `dist.all_gather` 和 `dist.reduce_scatter` 做的是同样的事，只是用一列张量代替一整块。

# %% [markdown]
# ### How many bytes
#
# **Predict.** Four ranks all-reduce a buffer of 4 MB. How many megabytes must the busiest rank send at the least?

# %% [markdown] lang="zh" of="2976ae7f"
# ### 要搬多少字节
#
# **先猜。** 四个 rank 对 4 MB 的缓冲区做 all-reduce。最忙的 rank 至少要发送多少 MB？

# %%
my_megabytes = None

# %% [markdown]
# **Run.** Two counts. The *payload* is what a rank hands to the collective, exactly. The *wire* is what really left its process, as the system counts it on its sockets, headers included. S is always the whole buffer: the gathered result of an all-gather, what goes into a reduce-scatter.

# %% [markdown] lang="zh" of="8834466a"
# **运行。** 数两样东西。**载荷**（payload）是一个 rank 交给集合通信的字节，精确值。**线上**（wire）是真正离开这个进程的字节，由系统在套接字上计数，含报头。S 总指整个缓冲区：all-gather 收齐后的结果，reduce-scatter 的输入。


# %%
def traffic_of_each(num_bytes):
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic

    rank, whole = dist.get_rank(), torch.rand(num_bytes // 4)
    part, other = whole.chunk(dist.get_world_size())[rank].clone(), torch.empty_like(whole)
    calls = {
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_single(other, part),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, other),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }
    counts = {}
    for name, call in calls.items():
        with traffic.count() as counted:
            call()
        counts[name] = counted.payload_bytes[name], counted.sent_bytes
    return counts


# %%
run = lab.launch(traffic_of_each, 4_000_000, ranks=4, backend="gloo", timeout_s=30)
print(
    f"{my_megabytes = }\n\n{'4 ranks, S = 4 MB':<18} payload, rank 0   wire, each rank (MB)     least possible"
)
for name in run[0]:
    wire = " ".join(
        "   -" if sent is None else f"{sent / 1e6:4.2f}"
        for _, sent in (counts[name] for counts in run)
    )
    print(
        f"{name:<18} {run[0][name][0] / 1e6:8.2f} MB        {wire}"
        f" {lower_bound_bytes(name, 4, 4e6) / 1e6:12.2f} MB"
    )

# %% [markdown]
# The last column no algorithm can beat, see [below](#Why-the-ring-is-optimal): its busiest rank sends or receives at least that. Gloo's all-reduce, all-gather and all-to-all reach it. Its broadcast is a tree: the root sends the whole buffer twice. And its **reduce-scatter** sends twice as much as it must: torch's gloo backend has none of its own, runs an all-reduce, and keeps a quarter of the result. Payload and wire are two questions; say which one you answer.
#
# Section 8.9.1 puts "O(N)" beside most collectives, "O(2N)" beside all-reduce and "O(N×P)" beside all-gather. It is not said whether that is per rank or in all, nor whether N is the buffer before or after. With S as above, per rank, nothing grows without bound:

# %% [markdown] lang="zh" of="4621fb00"
# 最后一列是任何算法都突破不了的，理由见[下文](#环为什么最优)：最忙的 rank 至少要收或发这么多。gloo 的 all-reduce、all-gather 和 all-to-all 正好做到。它的 broadcast 是一棵树，root 把整个缓冲区发了两遍。而它的 **reduce-scatter** 发了必需量的两倍：torch 的 gloo 后端没有自己的 reduce-scatter，先做一次 all-reduce，再留下结果的四分之一。载荷和线上是两个问题，说的时候要讲清是哪一个。
#
# 8.9.1 节给多数操作写“O(N)”，给 all-reduce 写“O(2N)”，给 all-gather 写“O(N×P)”。既没说是每个 rank 还是合计，也没说 N 是操作之前还是之后的缓冲区。按上面的 S、按每个 rank 来算，没有哪个会无限增长：

# %%
print(f"{'at least, in units of S':<26}", *(f"P = {size:<5}" for size in (2, 4, 8, 64, 1024)))
for name in ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"):
    print(
        f"{TITLES[name]:<26}",
        *(f"{lower_bound_bytes(name, size, 1.0):<9.4f}" for size in (2, 4, 8, 64, 1024)),
    )

# %% [markdown] sections="S11"
# ### send and recv
#
# All of these are made of messages between two ranks. S11 shows one: rank 0 calls `send(tensor, dst=1)`, everyone `else` calls `recv(tensor, src=0)`. **Predict**: with three ranks, which of them return?

# %% [markdown] lang="zh" of="6d1b0b71"
# ### send 和 recv
#
# 这些都由两个 rank 之间的消息搭成。S11 给了一个例子：rank 0 调用 `send(tensor, dst=1)`，其余（`else`）调用 `recv(tensor, src=0)`。**先猜**：三个 rank 时，哪几个会返回？

# %%
my_ranks_that_return = None


# %%
def textbook_s11(fixed):
    import torch
    import torch.distributed as dist

    tensor = torch.full((2,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        dist.send(tensor, dst=1)
    elif dist.get_rank() == 1 or not fixed:
        dist.recv(tensor, src=0)
    return tensor.tolist()


# %%
try:
    lab.launch(textbook_s11, False, ranks=3, backend="gloo", timeout_s=20, hang_s=1.5)
except lab.Timeout as verdict:
    print(verdict)
fixed = lab.launch(textbook_s11, True, ranks=3, backend="gloo", timeout_s=20)
print(f"{my_ranks_that_return = }; fixed:", *fixed)

# %% [markdown]
# The example works with two ranks only. A third one waits for a message that nobody sends. Every `recv` needs its own `send`: say `elif rank == 1`.
#
# ### Every collective, step by step
#
# Choose a collective and an algorithm, and step through it. A colour is a chunk; the fuller its box, the more ranks' contributions it holds. The button does the same on real ranks.

# %% [markdown] lang="zh" of="8913b02e"
# 这个例子只在两个 rank 时成立。第三个等着一条没人发的消息。每个 `recv` 都要有自己的 `send`：应写 `elif rank == 1`。
#
# ### 每种集合通信，一步一步看
#
# 选一种集合通信和一种算法，一步一步地走。一种颜色是一块数据；格子越满，里面含有的 rank 的贡献就越多。按钮会在真实的 rank 上做同样的事。

# %%
widgets.collectives(language=LANGUAGE)

# %% [markdown] sections="8.3.2"
# ## Ring all-reduce by hand
#
# Section 8.3.2 gives pseudocode: in each of N - 1 steps a rank sends `gradients[chunk_size * rank : ...]` to the right and adds what arrives from the left to `gradients[...]`. Taken at its word, and with the second reading, that `...` means the left neighbour's chunk:

# %% [markdown] lang="zh" of="63707ee1"
# ## 手写环形 all-reduce
#
# 8.3.2 节给了伪代码：N - 1 步里，每步把 `gradients[chunk_size * rank : ...]` 发给右邻，把左邻发来的加到 `gradients[...]` 上。先照字面运行，再按第二种读法，即 `...` 指左邻的那一块：


# %%
def textbook_ring(to_the_letter):
    import torch
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    gradients = torch.arange(1, world_size + 1) * 10**rank  # one number per chunk
    for step in range(world_size - 1):
        send_chunk, recv_chunk = (
            gradients[rank : rank + 1].clone(),
            torch.empty(1, dtype=torch.long),
        )
        sending = dist.isend(send_chunk, right)
        dist.recv(recv_chunk, left)
        sending.wait()
        if to_the_letter:
            gradients += recv_chunk
        else:
            gradients[left] += recv_chunk[0]
    return gradients.tolist()


# %%
for to_the_letter in (True, False):
    run = lab.launch(textbook_ring, to_the_letter, ranks=4, backend="gloo", timeout_s=30)
    print(*(" ".join(f"{number:05}" for number in result) for result in run), sep="   ")

# %% [markdown]
# Right would be one finished sum on each rank after these steps: a `1111`, a `2222`, a `3333`, a `4444`. To the letter, one chunk is added to all of them. In the second reading rank 1 has `00013` in its first place: its own 1 and rank 0's, three times; of ranks 2 and 3 nothing has arrived. A rank that sends the *same* chunk each time never passes on what it has received, and nothing gets further than one neighbour.
#
# In step s send chunk $(r - s) \bmod N$: the one you added to last. Add what arrives to chunk $(r - s - 1) \bmod N$. After N - 1 steps every rank holds one finished sum (a reduce-scatter); N - 1 more steps hand the sums round (an all-gather, which the pseudocode leaves as `pass`).

# %% [markdown] lang="zh" of="e4d3637c"
# 正确的话，走完这几步，每个 rank 上应各有一块凑齐的和：`1111`、`2222`、`3333`、`4444` 各出现一次。照字面，是把一块加到了所有块上。第二种读法里，rank 1 的第一个数是 `00013`：自己的一个 1，加上 rank 0 的那个 1，重复了三次；rank 2 和 rank 3 的什么也没到。每次都发**同一块**，就从不转交收到的东西，什么也传不出一个邻居之外。
#
# 第 s 步该发块 $(r - s) \bmod N$，也就是刚刚加过的那一块；收到的加进块 $(r - s - 1) \bmod N$。N - 1 步之后，每个 rank 手里有一块的总和（这是 reduce-scatter）；再用 N - 1 步把这些和传一圈（这是 all-gather，伪代码里写的是 `pass`）。


# %%
def ring(tensor):  # its length divides by the number of ranks
    import torch
    import torch.distributed as dist

    rank, size, history = dist.get_rank(), dist.get_world_size(), []
    chunks = tensor.chunk(size)  # views: adding to a chunk changes the tensor
    for step in range(2 * (size - 1)):
        outgoing, place = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        incoming = torch.empty_like(place)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        place.copy_(place + incoming if step < size - 1 else incoming)
        history.append(tensor.tolist() if len(tensor) == size else None)
    return history


# %%
def small_ring():
    import torch
    import torch.distributed as dist

    return ring(torch.arange(1, dist.get_world_size() + 1) * 10 ** dist.get_rank())


run = lab.launch(small_ring, ranks=4, backend="gloo", timeout_s=30)
for step in range(6):
    print(
        f"step {step}  ",
        *(" ".join(f"{number:04}" for number in history[step]) for history in run),
        sep=" | ",
    )

# %% [markdown]
# Follow chunk 0 (the first number of each rank): the 1 of rank 0 goes to rank 1, `0011` to rank 2, `0111` to rank 3, where `1111` is complete after three steps. Three more, and all have it. At every moment every rank sends and receives one quarter of the buffer: no link is ever idle, none carries more than another.
#
# Is it the library's result, and how many bytes did each rank send? A buffer of 4 MB:

# %% [markdown] lang="zh" of="530bd4b6"
# 跟着块 0（每个 rank 的第一个数）走：rank 0 的 1 到了 rank 1，`0011` 到了 rank 2，`0111` 到了 rank 3，三步之后在那里凑齐 `1111`。再过三步，人人都有了。任何时刻，每个 rank 都在发四分之一、收四分之一：没有一条链路闲着，也没有哪条比别的更忙。
#
# 结果与库一致吗？每个 rank 发了多少字节？缓冲区 4 MB：


# %%
def ring_and_library(num_bytes):
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic

    tensor = torch.rand(num_bytes // 4)
    right = tensor.clone()
    dist.all_reduce(right)
    with traffic.count() as counted:
        ring(tensor)
    return (tensor - right).abs().max().item(), counted.payload_bytes["send"]


# %%
for size in (2, 4):
    run = lab.launch(ring_and_library, 4_000_000, ranks=size, backend="gloo", timeout_s=30)
    print(
        f"N = {size}: largest difference {max(error for error, _ in run):.1e}; each rank sent",
        *(sent for _, sent in run),
        f"bytes; 2(N-1)/N * S = {2 * (size - 1) / size * 4_000_000:.0f}",
    )

# %% [markdown] sections="19.8.1"
# ### Why the ring is optimal
#
# Exercise 19.8.1 asks for the reason, and answers that each GPU has to send and receive at least M, the buffer, and that a ring comes near 2M, "reaching the optimum". Both can't be: what reaches a bound is equal to it.
#
# Take one number of the buffer, and the rank on which its sum is complete first. Before that, each of the N-1 other ranks has sent something that carries its contribution. After that, each of them still has to receive. No message does both: it would have completed another rank before the first. So every number travels $2(N-1)$ times at least, all M bytes together $2(N-1)M$. There are N ranks to share this; the busiest sends $2\frac{N-1}{N}M$ or more (Patarasuk and Yuan 2009), and in the ring **every** rank sends exactly that. For two ranks it is M; for many it approaches 2M. You will write such bounds as exercise 2.

# %% [markdown] lang="zh" of="cff1e14b"
# ### 环为什么最优
#
# 练习 19.8.1 问的就是原因。它的答案说：每块 GPU 至少要收发 M（整个缓冲区），而环接近 2M，“达到理论最优”。两句话不能都对：达到下界，就该与下界相等。
#
# 取缓冲区里的一个数，再取它的和最先凑齐的那个 rank。在那之前，其余 N-1 个 rank 每个都发出过带着自己那份贡献的消息；在那之后，它们每个都还要收一次。没有一条消息能身兼两职，否则就有别的 rank 比“最先”还早凑齐。所以每个数至少走 $2(N-1)$ 趟，M 字节合计 $2(N-1)M$。由 N 个 rank 分担，最忙的那个至少发送 $2\frac{N-1}{N}M$（Patarasuk 与 Yuan，2009）；而在环里，**每个** rank 恰好发这么多。两个 rank 时是 M，rank 很多时接近 2M。练习 2 会让你把这样的下界写成函数。

# %% [markdown] sections="8.3.2"
# ## Parameter server, ring, tree: the race
#
# The same all-reduce can be done in other ways. **Parameter server**: all send their buffer to rank 0, which adds and sends the sum back. **Tree**: neighbours add in pairs, then the ranks that hold those sums, and so on up; then down again. A **double binary tree** runs two trees at once, half of the buffer on each; a rank that adds in one is a leaf in the other. **Hierarchical**: a reduce-scatter inside a group, an all-reduce between the groups, an all-gather inside.
#
# Section 8.3.2 compares volume and latency: parameter server "O(2N × P)" and high, ring "O(2N)" and **low**, hence "large-scale training".
#
# **Predict.** Four ranks, a buffer of 1.6 MB. How many megabytes does rank 0 send as a parameter server? And which way is the fastest for a buffer of only 4 kB?

# %% [markdown] lang="zh" of="bfb7a7ca"
# ## 参数服务器、环、树：赛跑
#
# 同一个 all-reduce 有别的做法。参数服务器（parameter server）：大家把缓冲区发给 rank 0，它求和再发回来。树（tree）：两两相加，拿着部分和的 rank 再两两相加，一层层往上，然后一层层往下。双二叉树（double binary tree）：两棵树同时跑，各管一半缓冲区；在一棵里做加法的 rank，在另一棵里是叶子。分层（hierarchical）：组内 reduce-scatter，组间 all-reduce，组内 all-gather。
#
# 8.3.2 节比较了通信量和延迟：参数服务器“O(2N × P)”、延迟高；环“O(2N)”、延迟**低**，因而适合“大规模训练”。
#
# **先猜。** 四个 rank，缓冲区 1.6 MB。rank 0 当参数服务器时要发送多少 MB？如果缓冲区只有 4 kB，哪种做法最快？

# %%
my_megabytes, my_fastest = None, None

# %% [markdown]
# **Paced links.** On one machine all messages go through the same memory; there is no slow link to be seen. So here every real message takes the time that its link states, $T(n) = \alpha + n / B$: 10 ms for any message, and 10 ms more for every megabyte. The ranks sleep until it is over. Processes, messages and their order are real; the speed of the link is stated, and every picture says so.
#
# **Simulate, run.** The same plan, the same link: once on paper, once on four processes.

# %% [markdown] lang="zh" of="1da75d50"
# **定速链路（paced links）。** 在一台机器上，所有消息都走同一块内存，看不到慢链路。所以这里每条真实的消息都要花掉它的链路规定的时间 $T(n) = \alpha + n / B$：每条消息 10 毫秒，每 1 MB 再加 10 毫秒，没到时间 rank 就睡着。进程、消息和次序都是真的，只有链路的速度是规定的；凡是这样的图都会注明。
#
# **模拟，运行。** 同一个方案，同一种链路：纸上走一遍，四个进程上走一遍。


# %%
SLOW = Link(alpha_us=10_000, bandwidth_gb_per_s=0.1)


def race(algorithm, num_bytes, links, **options):
    """A run of an all-reduce, its predicted and its measured time, both in milliseconds; the better of two runs."""
    steps = plan("all_reduce", algorithm, links.num_ranks, **options)
    run = collectives.launch(steps, num_bytes, network=links, num_runs=2, timeout_s=40)
    measured_s = min(max(both) for both in zip(*(rank["seconds"] for rank in run)))
    return run, time_us(steps, links, num_bytes) / 1e3, 1e3 * measured_s


# %%
runs = {}
print(f"{my_megabytes = }, {my_fastest = }\n")
print(
    f"{'4 ranks':<20} sent, 1.6 MB: busiest   all     ms: predicted measured    4 kB: predicted measured"
)
for name in ALGORITHMS["all_reduce"]:
    whole = (
        {"num_segments": 1} if "tree" in name else {}
    )  # a tree sends its buffer, or half, in one piece
    runs[name], predicted, measured = race(name, 1_600_000, uniform(4, SLOW), **whole)
    _, predicted_small, measured_small = race(name, 4_000, uniform(4, SLOW), **whole)
    sent = [rank["sent_bytes"] / 1e6 for rank in runs[name]]
    print(
        f"{TITLES[name]:<20} {max(sent):15.2f} MB {sum(sent):5.2f} MB {predicted:14.0f} {measured:8.0f}"
        f" {predicted_small:16.0f} {measured_small:8.0f}"
    )
print(
    f"least for the busiest {lower_bound_bytes('all_reduce', 4, 1.6):14.2f} MB; largest error",
    f"{max(rank['max_error'] for run in runs.values() for rank in run):.0e}",
)

# %% [markdown]
# The volume of **all** ranks together is the same everywhere, 2(N-1) S. What differs is who carries it. Behind a parameter server it is rank 0: it sends the buffer N - 1 times, and the others stand in line at its door. In the ring all carry the same, exactly the bound.
#
# Small messages are another story. The ring needs as long as the parameter server, 2(N-1) messages one after another; the tree is faster. (Two groups of two, the hierarchical way, have the best of both here: four steps, and small messages.) The parameter server and the ring, predicted above, measured below:

# %% [markdown] lang="zh" of="70fa26a4"
# **所有** rank 加起来，通信量到处都一样，是 2(N-1) S。差别在于由谁来扛。参数服务器全压在 rank 0 上：它要把缓冲区发 N - 1 遍，别人在它门口排队。环里人人一样多，正好等于下界。
#
# 消息小的时候是另一回事。环要的时间与参数服务器一样，2(N-1) 条消息一条接一条；树更快。（两组、每组两个的分层做法在这里两头都占：只有四步，消息也小。）下面是参数服务器和环，各自上面是预测，下面是实测：


# %%
def titled(name, *more):
    """What an algorithm is called in each language, and more."""
    return {language: called([name], language, *more) for language in WORDS}


for name in ("parameter_server", "ring"):
    predicted, title = (
        network.simulate(plan("all_reduce", name, 4), uniform(4, SLOW), 1_600_000),
        titled(name, "1.6 MB"),
    )
    widgets.show(
        scene.compare(predicted, runs[name].timeline(), title=title[LANGUAGE], language=LANGUAGE)
    )

# %% [markdown] sections="8.3.2, 19.1.2"
# ### Is the ring's latency low?
#
# A ring has 2(N-1) steps, and a step takes alpha at least, however little there is to send. A tree has $2\lceil\log_2 N\rceil$. Lines are predicted for 4 kB on the slow links, dots measured on real ranks:

# %% [markdown] lang="zh" of="bc476e82"
# ### 环的延迟低吗？
#
# 环有 2(N-1) 步，每步不管东西多小，至少要 alpha。树有 $2\lceil\log_2 N\rceil$ 步。线是慢链路上 4 kB 的预测，点是真实 rank 上的实测：

# %%
counts, few = [2, 4, 8, 16, 32, 64], [2, 4, 8]
lines = {
    name: [formula_us("all_reduce", name, n, 4_000, SLOW) / 1e3 for n in counts]
    for name in ("ring", "tree")
}
lines["double_tree"] = [
    time_us(plan("all_reduce", "double_tree", n, num_segments=1), uniform(n, SLOW), 4_000) / 1e3
    for n in counts
]
dots = {name: [race(name, 4_000, uniform(n, SLOW))[2] for n in few] for name in ("ring", "tree")}
curves(
    [Series(titled(name), counts, times) for name, times in lines.items()]
    + [Series(titled(name), few, times, points=True) for name, times in dots.items()],
    {"en": "All-reduce of 4 kB", "zh": "4 kB 的 all-reduce"},
    "measured, paced links / simulated",
    x_name="N",
    y_name="ms",
)
print(
    *(
        f"{TITLES[name]}: {times[-1] / times[0]:.0f} times as long on 64 ranks as on 2"
        for name, times in lines.items()
    ),
    sep="\n",
)

# %% [markdown]
# The ring's latency grows with N, the trees' with its logarithm. "Low latency, hence large scale" is the wrong way round: what is optimal about a ring is its **bandwidth**, and the price is 2(N-1) alpha. That is why NCCL got trees, in version 2.4, for large clusters.

# %% [markdown] lang="zh" of="0ff9d426"
# 环的延迟随 N 增长，树的只随 N 的对数增长。“延迟低，所以适合大规模”正好说反了：环最优的是**带宽**，代价是 2(N-1) alpha。NCCL 2.4 正是为了大集群才加入了树。

# %% [markdown] sections="19.1.2"
# ## Where ring and tree cross
#
# Small buffers want few steps, large ones want small messages. Somewhere in between the two cross. With $T(n) = \alpha + n/B$ the ring takes $2(N-1)(\alpha + \frac{S}{NB})$, the tree $2\lceil\log_2 N\rceil(\alpha + \frac{S}{B})$. Where are they equal on four ranks and our slow links? Predicted as lines, measured as dots:

# %% [markdown] lang="zh" of="36e4e161"
# ## 环与树在哪里相交
#
# 小缓冲区要步数少，大缓冲区要每条消息小，中间总有个交点。取 $T(n) = \alpha + n/B$，环要 $2(N-1)(\alpha + \frac{S}{NB})$，树要 $2\lceil\log_2 N\rceil(\alpha + \frac{S}{B})$。在四个 rank、我们的慢链路上，两者在哪里相等？线是预测，点是实测：

# %%
sizes, tried = [10**5 * 2**k for k in range(7)], [200_000, 800_000, 3_200_000]
lines = {
    name: [formula_us("all_reduce", name, 4, size, SLOW) / 1e3 for size in sizes]
    for name in ("ring", "tree")
}
dots = {name: [race(name, size, uniform(4, SLOW))[2] for size in tried] for name in lines}
curves(
    [Series(titled(name), sizes, times) for name, times in lines.items()]
    + [Series(titled(name), tried, times, points=True) for name, times in dots.items()],
    {"en": "All-reduce on 4 ranks", "zh": "4 个 rank 的 all-reduce"},
    "measured, paced links / simulated",
    x_name="S",
    y_name="ms",
    x_format=format_bytes,
)

# %%
ring_fit, tree_fit = (
    network.fit("all_reduce", 4, tried, [1e3 * ms for ms in dots[name]])
    for name in ("ring", "tree")
)
crossing = (ring_fit.alpha_us - tree_fit.alpha_us) / (
    1 / tree_fit.bandwidth_gb_per_s - 1 / ring_fit.bandwidth_gb_per_s
)
print(
    f"they cross at {format_bytes(crossover_bytes(4, SLOW))} by formula, "
    f"at {format_bytes(crossing * 1e3)} where lines through the measured dots do"
)

# %% [markdown]
# So "usually trees below 256 kB, rings above" (section 19.1.2) can be no constant. The crossing is proportional to $\alpha B$ and grows with N. For three kinds of links, with alphas and bandwidths of the usual order of magnitude:

# %% [markdown] lang="zh" of="43f102f2"
# 可见“通常小于 256 kB 用树，更大用环”（19.1.2 节）里的界线不可能是常数。交点与 $\alpha B$ 成正比，还随 N 增长。三种链路，alpha 和带宽取常见的数量级：

# %%
links = {
    "NVLink: 2 us, 300 GB/s": (2, 300),
    "InfiniBand: 5 us, 25 GB/s": (5, 25),
    "10G Ethernet: 50 us, 1.25 GB/s": (50, 1.25),
}
print(f"{'ring beats tree from':<32}", *(f"N = {n:<6}" for n in (2, 4, 8, 64, 512)))
for name, (alpha_us, bandwidth) in links.items():
    link = Link(alpha_us=alpha_us, bandwidth_gb_per_s=bandwidth)
    print(
        f"{name:<32}",
        *(f"{format_bytes(crossover_bytes(n, link)):<10}" for n in (2, 4, 8, 64, 512)),
    )

# %% [markdown]
# From nothing to tens of megabytes. What NCCL does: for every size it estimates the time of each algorithm in each of its protocols on the topology that it found, and takes the least ([NCCL issue 457](https://github.com/NVIDIA/nccl/issues/457)); with growing size that may change from tree to ring and back several times ([issue 754](https://github.com/NVIDIA/nccl/issues/754)). A threshold that one could set, `NCCL_TREE_THRESHOLD`, existed in version 2.4 and was removed in 2.5; in 2.4 trees were used between nodes only ([issue 211](https://github.com/NVIDIA/nccl/issues/211)). On a machine with NVSwitches of the third generation and later, a further algorithm (NVLS) lets the switch add. What is chosen on your cluster, `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=TUNING` tells.
#
# The same choice by our model, between ring, tree and a double tree that cuts its halves into as many pieces as is best. 64 ranks on InfiniBand:

# %% [markdown] lang="zh" of="76a907c5"
# 从零到几十兆字节都有。NCCL 的做法是：对每个大小，在它探测到的拓扑上估算每种算法配每种协议的时间，取最小的（[NCCL issue 457](https://github.com/NVIDIA/nccl/issues/457)）；大小增长时，可能在树和环之间来回换好几次（[issue 754](https://github.com/NVIDIA/nccl/issues/754)）。可以自己设的阈值 `NCCL_TREE_THRESHOLD` 只存在于 2.4，2.5 就删了；而且 2.4 只在节点之间用树（[issue 211](https://github.com/NVIDIA/nccl/issues/211)）。在第三代及以后的 NVSwitch 上，还有一种让交换芯片做加法的算法（NVLS）。你的集群上选了什么，看 `NCCL_DEBUG=INFO` 加 `NCCL_DEBUG_SUBSYS=TUNING`。
#
# 用我们的模型来做同样的选择：环、树，以及把两半切成最合适的段数的双二叉树。InfiniBand 上的 64 个 rank：

# %%
infiniband, sizes = Link(alpha_us=5, bandwidth_gb_per_s=25), [8.0**k * 1000 for k in range(7)]
lines = {
    name: [formula_us("all_reduce", name, 64, size, infiniband) for size in sizes]
    for name in ("ring", "tree")
}
pieces = [
    plan("all_reduce", "double_tree", 64, num_segments=num_pieces) for num_pieces in (1, 4, 16)
]
lines["double_tree"] = [
    min(time_us(each, uniform(64, infiniband), size) for each in pieces) for size in sizes
]
curves(
    [Series(titled(name), sizes, times) for name, times in lines.items()],
    {"en": "All-reduce on 64 ranks, InfiniBand", "zh": "64 个 rank 的 all-reduce，InfiniBand"},
    "simulated",
    x_name="S",
    y_name="T",
    x_format=format_bytes,
    y_format=format_us,
)
for size, *times in zip(sizes, *lines.values()):
    print(f"{format_bytes(size):>8}: {TITLES[list(lines)[times.index(min(times))]]}")

# %% [markdown]
# At these sizes the double tree never takes twice as long as the better of the two: it has far fewer steps than a ring when the buffer is small, and both ports of almost every rank are busy when it is large. In the middle it wins.

# %% [markdown] lang="zh" of="c075802a"
# 在这些大小上，双二叉树的用时从不到较好那个的两倍：缓冲区小时，步数比环少得多；缓冲区大时，几乎每个 rank 的收发端口都忙着。在中间一段它最快。

# %% [markdown] sections="19.1.1"
# ## Topology: fast inside, slow between
#
# So far all links were alike. In a cluster they are not. Two islands of two ranks, links of 1 ms and 1 GB/s inside; what goes from one island to the other shares one slow wire:

# %% [markdown] lang="zh" of="62313149"
# ## 拓扑：内快外慢
#
# 到现在为止，所有链路都一样。集群里不是这样。两个岛，每岛两个 rank，岛内链路 1 ms、1 GB/s；从一个岛到另一个岛的消息共用一根慢线：

# %%
islands = network.islands(
    4, 2, inside=Link(alpha_us=1_000, bandwidth_gb_per_s=1), between=SLOW, shared=True
)
widgets.show(network_picture.network(islands, language=LANGUAGE))

# %%
print(f"{'4 MB':<20} crosses between islands   ms: predicted measured")
for name in ("parameter_server", "ring", "tree", "hierarchical"):
    run, predicted, measured = race(name, 4_000_000, islands)
    steps = plan("all_reduce", name, 4)
    crossing = [
        len(move.chunks) for step in steps.steps for move in step if move.src // 2 != move.dst // 2
    ]
    print(
        f"{TITLES[name]:<20} {sum(crossing) * 4 / steps.num_chunks:8.0f} MB in {len(crossing):2} messages"
        f" {predicted:14.0f} {measured:8.0f}"
    )

# %% [markdown]
# Even in the best order, which this is, a ring crosses in every step. The hierarchical way first adds inside the islands: as little crosses as in a tree, and both ways at once. That is what "topology-aware" buys: the same library call, another plan. (A ring whose neighbours sit on different islands crosses more often; chapter 11 tries it.)

# %% [markdown] lang="zh" of="16eb6844"
# 环即使按最好的顺序排（这里就是），每一步也要跨岛。分层的做法先在岛内相加：跨岛的字节与树一样少，而且两个方向同时走。这就是“拓扑感知”换来的：同一个库调用，背后是另一个方案。（如果环上的邻居不在同一个岛，跨岛会更多；第 11 章会试。）

# %% [markdown] sections="8.9.1"
# ## A cost model for this machine
#
# Now without stated links: how long does the library's all-reduce take on *this* machine? `calibrate.sweep` calls it on real ranks, 1 kB to 9 MB, and takes the median over three launches: alpha differs from launch to launch.
#
# **Fit.** A whole collective as one line, $T(S) = \alpha + S/B$, through every fourth size. **Predict** the sizes that the fit has not seen. **Compare**: dots on the line?

# %% [markdown] lang="zh" of="eb20ce28"
# ## 这台机器的代价模型
#
# 现在不规定链路了：库的 all-reduce 在**这台**机器上要多久？`calibrate.sweep` 在真实的 rank 上调用它，从 1 kB 到 9 MB，启动三次取中位数：每次启动，alpha 都不一样。
#
# **拟合。** 把整个集合通信当成一条直线 $T(S) = \alpha + S/B$，每四个大小取一个来拟合。**预测**拟合没见过的大小。**对照**：点在线上吗？


# %%
def judge(name, num_ranks, sizes, times_us):
    """Fits every fourth size, prints the errors on the other sizes, gives the line and the dots."""
    fitted = network.fit("all_reduce", num_ranks, sizes[3::4], times_us[3::4])
    errors = sorted(
        abs(fitted.us(size) / time - 1)
        for k, (size, time) in enumerate(zip(sizes, times_us))
        if k % 4 != 3
    )
    print(
        f"{name}: alpha {format_us(fitted.alpha_us)}, B {fitted.bandwidth_gb_per_s:.3g} GB/s; off on {len(errors)} unseen "
        f"sizes by {errors[len(errors) // 2]:.0%} in the median, {errors[len(errors) * 9 // 10]:.0%} at the 90th percentile"
    )
    return [
        Series(name, sizes, [fitted.us(size) for size in sizes]),
        Series(name, sizes, times_us, points=True),
    ]


# %%
points = calibrate.sweep("all_reduce", ranks=(2, 4), num_launches=3)
series = []
for num_ranks in (2, 4):
    mine = [point for point in points if point.num_ranks == num_ranks]
    backend = "nccl" if resources.num_gpus() >= num_ranks else "gloo"
    series += judge(
        f"N = {num_ranks}, {backend}",
        num_ranks,
        [p.num_bytes for p in mine],
        [p.time_us for p in mine],
    )
curves(
    series,
    "All-reduce: T = alpha + S / B",
    "measured",
    x_name="S",
    y_name="T",
    x_format=format_bytes,
    y_format=format_us,
)

# %% [markdown]
# Two numbers give the times over almost the whole range, to the errors printed. They hold for this machine and for **one** number of ranks: where ranks outnumber the cores they take turns, and alpha grows faster than the ring's 2(N-1) steps.
#
# `calibrate.links()` keeps such fits in your cache folder, with the date and the machine; it measures only what is not there. So a kept line comes from other launches, perhaps of another day. How well does it predict the dots above?

# %% [markdown] lang="zh" of="bd11ccfb"
# 两个数就给出了几乎整个范围里的用时，误差如上所印。它们只对这台机器、**一种** rank 数成立：rank 比核多时要轮流上核，alpha 长得比环的 2(N-1) 步还快。
#
# `calibrate.links()` 会把这样的拟合连同日期和机器存进缓存文件夹，只测还没有的。所以存下的直线来自别的几次启动，也许是另一天的。用它来预测上面的点，准不准？

# %%
for num_ranks, cost in calibrate.links((2, 4)).items():
    dots = [point for point in points if point.num_ranks == num_ranks]
    errors = sorted(
        abs(cost.us(dot.num_bytes) / dot.time_us - 1) for k, dot in enumerate(dots) if k % 4 != 3
    )
    print(
        f"N = {num_ranks}, kept: alpha {format_us(cost.alpha_us)}, B {cost.bandwidth_gb_per_s:.3g} GB/s; off on the "
        f"{len(errors)} dots it has not seen by {errors[len(errors) // 2]:.0%} in the median"
    )

# %% [markdown]
# Where it is far off, the machine was busy then, or is now; `fresh=True` measures again.
#
# ### algbw and busbw
#
# Size over time is called *algbw*. It falls with N even on perfect links, since every rank has to send $2\frac{N-1}{N}S$. Multiplied by that factor it becomes *busbw*: what a link really carried, to be compared with its data sheet. nccl-tests prints both. Here is such a table for eight A100, recorded by others (Stas Bekman, *Machine Learning Engineering*): time in microseconds for 32 KiB, 64 KiB, ... 16 GiB.

# %% [markdown] lang="zh" of="73877bca"
# 差得很远时，要么当时机器正忙，要么现在正忙；`fresh=True` 会重新测量。
#
# ### algbw 与 busbw
#
# 大小除以时间叫 algbw。即使链路完美，它也随 N 下降，因为每个 rank 要发 $2\frac{N-1}{N}S$。乘上这个系数就是 busbw：链路真正承载的带宽，可以拿去与数据手册对照。nccl-tests 两个都印。下面是八块 A100 的一张表，由别人录得（Stas Bekman，*Machine Learning Engineering*）：32 KiB、64 KiB……16 GiB 的用时，单位微秒。

# %%
A100_US = [
    43.83,
    46.8,
    51.76,
    61.38,
    80.4,
    101.9,
    101.4,
    101.5,
    133.5,
    276.6,
    424.0,
    684.6,
    1327.6,
    2420.6,
    4218.4,
    8203.9,
    16240.0,
    32136.0,
    64074.0,
    127997.0,
]
a100_sizes = [2 ** (15 + k) for k in range(len(A100_US))]
print("     size       time     algbw     busbw (GB/s)")
for size, time in list(zip(a100_sizes, A100_US))[::6]:
    print(
        f"{format_bytes(size):>9} {format_us(time):>10} {network.algbw(size, time):9.1f}"
        f" {network.busbw('all_reduce', 8, size, time):9.1f}"
    )
series = judge("8 x A100", 8, a100_sizes, A100_US)
curves(
    series,
    "All-reduce: T = alpha + S / B",
    "recorded",
    x_name="S",
    y_name="T",
    x_format=format_bytes,
    y_format=format_us,
)

# %% [markdown]
# The busbw of large buffers is to be compared with the 300 GB/s per direction of the beginning, not with 600. And the dots leave the line in places: NCCL changes algorithm and protocol on the way (look at 1 to 4 MB, where four times the bytes cost nothing), and one line is the model of **one** algorithm.

# %% [markdown] lang="zh" of="a3fa0035"
# 大缓冲区的 busbw 应当与本章开头每个方向 300 GB/s 相比，而不是 600。另外，有几处的点离开了直线：NCCL 中途会换算法和协议（看 1 到 4 MB，字节变成四倍，时间一点没多），而一条直线只是**一种**算法的模型。

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. Ring all-reduce for any length
#
# The ring above needs a length that divides by the number of ranks; gradients seldom have one. Leave the sum over all ranks in `tensor`, a 1-D tensor of any length, with `send`, `recv`, `isend` or `irecv` of `torch.distributed`. It runs on real ranks. Budget: 2(N-1) steps (messages count in the order in which you post them), and no more bytes than a ring of chunks that are as equal as possible.

# %% [markdown] lang="zh" of="96c8a09d"
# ## 练习
#
# 检查不会中断笔记本。它用没有展示过的规模试你的答案，并给出第一个不对的情形。每试一次，`check.hint(名字)` 会多说一点。
#
# ### 1. 任意长度的环形 all-reduce
#
# 上面的环要求长度能被 rank 数整除，而真实的梯度不会这么巧。用 `torch.distributed` 的 `send`、`recv`、`isend` 或 `irecv`，把所有 rank 之和留在 `tensor` 里，它是任意长度的一维张量。答案在真实的 rank 上运行。预算：2(N-1) 步（按消息发起的先后计步）；字节不多于“各块尽量相等的环”。


# %%
def my_ring(rank, num_ranks, tensor):
    """Leaves in tensor the sum over all ranks."""
    ### BEGIN SOLUTION
    import torch
    import torch.distributed as dist

    chunks = tensor.tensor_split(num_ranks)  # lengths differ by one at most
    for step in range(2 * (num_ranks - 1)):
        outgoing, place = chunks[(rank - step) % num_ranks], chunks[(rank - step - 1) % num_ranks]
        incoming = torch.empty_like(place)
        sending = dist.isend(outgoing, (rank + 1) % num_ranks)
        dist.recv(incoming, (rank - 1) % num_ranks)
        sending.wait()
        if step < num_ranks - 1:
            place += incoming
        else:
            place.copy_(incoming)
    ### END SOLUTION


# %%
check.ring_all_reduce(my_ring)

# %%
check.hint("ring_all_reduce")

# %% [markdown]
# ### 2. The least that must be sent
#
# For `"all_reduce"`, `"reduce_scatter"`, `"all_gather"` and `"broadcast"`: how many bytes does the busiest rank have to send or receive at the least, whatever the algorithm? `num_bytes` is the whole buffer: the gathered result, what goes into a reduce-scatter. (This is exercise 19.8.1, as a function.)

# %% [markdown] lang="zh" of="0334ee40"
# ### 2. 至少要发多少
#
# 对 `"all_reduce"`、`"reduce_scatter"`、`"all_gather"` 和 `"broadcast"`：不管用什么算法，最忙的 rank 至少要收或发多少字节？`num_bytes` 指整个缓冲区：收齐后的结果，或 reduce-scatter 的输入。（这就是练习 19.8.1，写成函数。）


# %%
def my_least_bytes(primitive, num_ranks, num_bytes):
    """Bytes that the busiest rank has to send or receive at the least."""
    ### BEGIN SOLUTION
    if num_ranks == 1:
        return 0
    if primitive == "broadcast":
        return num_bytes
    share = (num_ranks - 1) / num_ranks * num_bytes
    return 2 * share if primitive == "all_reduce" else share
    ### END SOLUTION


# %%
check.least_bytes(my_least_bytes)

# %%
check.hint("least_bytes")

# %% [markdown]
# ### 3. Broadcast in few steps
#
# Copy the tensor of rank `root` to all ranks with `send` and `recv`. Budget: $\lceil\log_2 N\rceil$ steps, in which a rank sends one message at most; every rank receives once.

# %% [markdown] lang="zh" of="49386957"
# ### 3. 几步完成广播
#
# 用 `send` 和 `recv` 把 rank `root` 的张量拷给所有 rank。预算：$\lceil\log_2 N\rceil$ 步，每步一个 rank 最多发一条消息；每个 rank 只收一次。


# %%
def my_broadcast(rank, num_ranks, tensor, root):
    """Leaves in tensor what the root has in its own."""
    ### BEGIN SOLUTION
    import torch.distributed as dist

    place, reach = (rank - root) % num_ranks, 1
    while reach < num_ranks:
        if place < reach and place + reach < num_ranks:
            dist.send(tensor, (place + reach + root) % num_ranks)
        elif reach <= place < 2 * reach:
            dist.recv(tensor, (place - reach + root) % num_ranks)
        reach *= 2
    ### END SOLUTION


# %%
check.tree_broadcast(my_broadcast)

# %%
check.hint("tree_broadcast")

# %% [markdown]
# ### 4. Choose the algorithm
#
# Return `"ring"` or `"tree"`, whichever all-reduces `num_bytes` sooner on links that take `alpha_us` microseconds and `bandwidth_gb_per_s` GB/s (1 GB/s is 1000 bytes per microsecond). The tree sends the whole buffer along each edge. A threshold of 256 kB is over budget.

# %% [markdown] lang="zh" of="f15078f5"
# ### 4. 选算法
#
# 链路每条消息要 `alpha_us` 微秒，带宽 `bandwidth_gb_per_s` GB/s（1 GB/s 即每微秒 1000 字节）。对 `num_bytes` 字节做 all-reduce，哪个快就返回哪个：`"ring"` 或 `"tree"`。这里的树在每条边上发送整个缓冲区。用 256 kB 当阈值会超出预算。


# %%
def my_algorithm(num_ranks, num_bytes, alpha_us, bandwidth_gb_per_s):
    """The faster of "ring" and "tree"."""
    ### BEGIN SOLUTION
    from math import ceil, log2

    bytes_per_us = bandwidth_gb_per_s * 1000
    ring_us = 2 * (num_ranks - 1) * (alpha_us + num_bytes / num_ranks / bytes_per_us)
    tree_us = 2 * ceil(log2(num_ranks)) * (alpha_us + num_bytes / bytes_per_us)
    return "ring" if ring_us <= tree_us else "tree"
    ### END SOLUTION


# %%
check.choose_algorithm(my_algorithm)

# %%
check.hint("choose_algorithm")

# %% [markdown]
# ## Summary
#
# - An all-reduce is a reduce-scatter and an all-gather. The busiest rank sends $2\frac{N-1}{N}S$ at least, each half $\frac{N-1}{N}S$; a broadcast needs S.
# - The ring meets that bound and pays 2(N-1) alpha for it. A tree takes $2\lceil\log_2 N\rceil$ alpha, a parameter server leaves all work to one rank.
# - Where they cross depends on alpha, bandwidth and N. No constant is right.
# - Payload is what was asked for, wire bytes are what went out; gloo's reduce-scatter shows the difference.
# - Two numbers per machine and rank count predict a collective. busbw is what to compare with a link.
#
# ## Sources
#
# - Ring and its bound: Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
# - Trees and costs: Thakur, Rabenseifner and Gropp 2005, *Optimization of collective communication operations in MPICH*
# - Two trees: Sanders, Speck and Träff 2009, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*
# - algbw and busbw: nccl-tests, [PERFORMANCE.md](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)
# - The table of eight A100: Bekman, [Machine Learning Engineering](https://github.com/stas00/ml-engineering)
#
# Where you stand:

# %% [markdown] lang="zh" of="52e74e60"
# ## 小结
#
# - all-reduce 等于 reduce-scatter 加 all-gather。最忙的 rank 至少发送 $2\frac{N-1}{N}S$，每一半是 $\frac{N-1}{N}S$；广播要 S。
# - 环达到这个下界，代价是 2(N-1) 个 alpha。树只要 $2\lceil\log_2 N\rceil$ 个 alpha；参数服务器把活全压给一个 rank。
# - 它们在哪里相交，取决于 alpha、带宽和 N。没有哪个常数是对的。
# - 载荷是要求搬的字节，线上是真正发出去的字节；gloo 的 reduce-scatter 让你看到两者的差别。
# - 每台机器、每种 rank 数，两个数就能预测一种集合通信。要与链路相比，用 busbw。
#
# ## 出处
#
# - 环及其下界：Patarasuk 与 Yuan，2009，*Bandwidth optimal all-reduce algorithms for clusters of workstations*
# - 树与代价：Thakur、Rabenseifner 与 Gropp，2005，*Optimization of collective communication operations in MPICH*
# - 双树：Sanders、Speck 与 Träff，2009，*Two-tree algorithms for full bandwidth broadcast, reduction and scan*
# - algbw 与 busbw：nccl-tests，[PERFORMANCE.md](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)
# - 八块 A100 的表：Bekman，[Machine Learning Engineering](https://github.com/stas00/ml-engineering)
#
# 你做到了哪里：

# %%
check.status()
