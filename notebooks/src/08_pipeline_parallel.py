# ---
# jupyter:
#   labkit:
#     sections: ["8.6.1", "8.6.2", "10.3.2", "19.3.2", "S7"]
#     needs: ["DeepSpeed (installed with labkit)"]
#     minutes: 60
# ---

# %% [markdown]
# # Pipeline parallelism
#
# *Sections 8.6.1, 8.6.2, 10.3.2, 19.3.2 and S7 of the source material. About an hour. No GPU is needed.*
#
# A model too large for one device can be cut into **stages**, one per device. Activations travel forward through the stages, gradients travel back. Whenever a device waits for another, it is idle; that idle time is the **bubble**.
#
# You will build a pipeline from send and recv, predict the bubble of seven schedules, run each of them on real processes, and lay both on one time axis. At the end, PipeDream, which has no bubble and pays for it in another coin.

# %% [markdown] lang="zh" of="12463949"
# # 流水线并行
#
# *对应原资料 8.6.1、8.6.2、10.3.2、19.3.2 和 S7 各节，约一小时。不需要 GPU。*
#
# 流水线并行（pipeline parallelism）把一台设备放不下的模型切成几段，每段叫一个 stage，一台设备放一段。激活沿着各段往前传，梯度再一段段传回来。设备等待别人的时候是空闲的，这段空闲就叫气泡（bubble）。
#
# 本章先用 send 和 recv 手写一条流水线；再预测七种调度的气泡，逐一在真实进程上运行，把预测和实测画在同一条时间轴上。最后看 PipeDream：它没有气泡，但代价出在别处。

# %%
import labkit as lab

lab.warm()  # starts the process that forks ranks, while the rest loads
from labkit import model, pipeline, widgets
from labkit.pipeline import pipedream_run
from labkit.pictures import scene
from labkit.pipeline import check
from labkit.pipeline.schedules import SCHEDULES, TITLES, gpipe, one_f_one_b, parse, validate
from labkit.pipeline.simulation import Cost, bubble_formula, in_flight, simulate
from labkit.timeline import bubble

LANGUAGE = "en"
check.language(LANGUAGE)


def draw(timeline, title, **options):
    widgets.show(scene.timeline(timeline, title=title, language=LANGUAGE, **options))


# %% [markdown] sections="S7"
# ## Two stages by hand
#
# Rank 0 holds the first half of a small transformer, rank 1 the second half. For each microbatch: rank 0 computes and sends, rank 1 computes forward and backward and sends the gradient back, rank 0 computes backward. `Paced` makes a stage take a stated time; more about it below.

# %% [markdown] lang="zh" of="7190795c"
# ## 手写两段流水线
#
# rank 0 拿小 transformer 的前一半，rank 1 拿后一半。每个微批次（microbatch）都这样走一遍：rank 0 算前向并发送；rank 1 算前向和反向，把梯度发回；rank 0 再算反向。`Paced` 让一个 stage 恰好花掉规定的时间，下文会细说。


# %%
def two_stages(num_microbatches, forward_us):
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.measure import pace, trace
    from torch.profiler import record_function as name

    torch.manual_seed(0)
    me = dist.get_rank()
    half = model.split(model.Transformer(2, 32, 2), 2)[me]
    stage = pace.Paced(half, forward_us=forward_us)
    tokens, targets = model.story_tokens(num_microbatches, 32)
    dist.barrier()
    with trace.record():
        for k in range(num_microbatches):
            x, grad = torch.empty(1, 32, 32), torch.empty(1, 32, 32)
            if me == 0:
                with name(f"0F{k}"):
                    y = stage(tokens[k : k + 1])
                dist.send(y.detach(), 1), dist.recv(grad, 1)
                with name(f"0B{k}"):
                    y.backward(grad)
            else:
                dist.recv(x, 0)
                with name(f"1F{k}"):
                    loss = model.loss(stage(x.requires_grad_()), targets[k : k + 1])
                with name(f"1B{k}"):
                    (loss / num_microbatches).backward()
                dist.send(x.grad, 0)
    return {f"layers.{key}": weight.grad for key, weight in half.named_parameters()}


# %%
by_hand = lab.launch(two_stages, 2, 20_000, ranks=2, backend="gloo", timeout_s=40)
draw(by_hand.timeline(), "send / recv")

# %% [markdown]
# No two boxes lie above each other: rank 0 waits for the gradient of microbatch 0 before it starts microbatch 1. Each rank is idle half of the time.
#
# The gradients are right, though. The largest difference from the same batch on one process, over all weights:

# %% [markdown] lang="zh" of="bb04eaa5"
# 没有哪两个方块上下重叠：rank 0 要等到微批次 0 的梯度回来，才开始微批次 1。每个 rank 有一半时间闲着。
#
# 不过梯度是对的。同一批数据在单个进程上再算一遍，所有权重的梯度最多相差：

# %%
import torch

torch.manual_seed(0)
whole = model.Transformer(2, 32, 2)
tokens, targets = model.story_tokens(2, 32)
model.loss(whole(tokens), targets).backward()
gradients = by_hand[0] | by_hand[1]
max((gradients[name] - weight.grad).abs().max().item() for name, weight in whole.named_parameters())

# %% [markdown]
# ### The hand-written pipeline of S7
#
# S7 puts two stages on two devices, drives both from **one** process, and calls `output.backward(micro)`. First the loop as printed (smaller sizes; the CPU stands for both devices). It does not survive its first backward: what `backward` takes is a gradient of the output's shape, and `micro` is the input.

# %% [markdown] lang="zh" of="f339fe0b"
# ### S7 的手写流水线
#
# S7 把两个 stage 放在两台设备上，由**一个**进程驱动，并调用 `output.backward(micro)`。先原样运行（尺寸改小，两台设备都由 CPU 代替）。它过不了第一次反向：`backward` 要的是与输出同形状的梯度，`micro` 却是输入。


# %%
def textbook_s7(as_printed):
    import torch
    from labkit.measure import pace, trace
    from torch import nn
    from torch.profiler import record_function as name

    stage1 = pace.Paced(nn.Sequential(nn.Linear(16, 32), nn.ReLU()), forward_us=20_000)
    stage2 = pace.Paced(
        nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10)), forward_us=20_000
    )
    microbatches, outputs = torch.randn(8, 16).split(2), []
    with trace.record():
        for k, micro in enumerate(microbatches):
            with name(f"0F{k}"):
                x = stage1(micro)
            with name(f"1F{k}"):
                outputs.append(stage2(x))
    for output, micro in reversed(list(zip(outputs, microbatches))):
        if as_printed:
            output.backward(micro)
        else:
            output.square().mean().backward()  # a scalar loss needs no gradient from outside


# %%
try:
    lab.launch(textbook_s7, True, ranks=1, backend="gloo", timeout_s=30)
except lab.RankFailed as verdict:
    print(str(verdict).partition("\n")[0])

# %% [markdown]
# With a loss it runs. Here are its forwards, one row for each of the two **devices** (both are driven by the one process): cut into microbatches, and yet the devices take turns. Microbatches help only if a stage starts the next one while the other stage still works on the last. Which stage does what when is a **schedule**, and schedules are what this chapter is about. (On two GPUs, where a call returns before its work is done, some forwards may happen to overlap; nothing in this loop sees to it.)

# %% [markdown] lang="zh" of="cf9ca19c"
# 换成损失函数就能跑了。下面是它的前向，每行是一台**设备**（都由同一个进程驱动）：虽然切成了微批次，两台设备还是轮流干活。微批次要有用，就得让一个 stage 在另一个还在算上一个微批次时，先开始下一个。谁在什么时候做什么，叫作调度（schedule），也就是这一章要讲的事。（换成两块 GPU，调用不等算完就返回，有些前向可能碰巧重叠；但这个循环里没有任何安排。）

# %%
from dataclasses import replace


def boxes(run):
    """What a run computed, without its messages."""
    timeline = run.timeline()
    return timeline.select(timeline.lane == "compute")


s7 = boxes(lab.launch(textbook_s7, False, ranks=1, backend="gloo", timeout_s=30))
stage_of_box = torch.tensor([int(label[0]) for label in s7.label]).numpy()
draw(
    replace(s7, rank=stage_of_box, num_ranks=2),
    {
        "en": "S7: one process, rank 0 = dev0, rank 1 = dev1",
        "zh": "S7：一个进程，rank 0 = dev0，rank 1 = dev1",
    }[LANGUAGE],
)

# %% [markdown] sections="8.6.1"
# ## Four stages, one microbatch at a time
#
# **What "paced" means.** Four ranks on two cores would fight for the cores, and the picture would show that fight. So every stage does its real work and then sleeps until a stated time has passed: here a forward takes `FORWARD_US` microseconds and a backward twice that. Processes, messages and order are real; only the durations are stated. Every picture says "paced" where that was done.
#
# The thin strips below a rank are its messages. A send lasts until somebody looks whether it has arrived; torch looks late.
#
# This is the **naive** pipeline: one microbatch in flight. How many of four ranks work at any moment?

# %% [markdown] lang="zh" of="44efb30d"
# ## 四段，一次只走一个微批次
#
# **什么是“定速”（paced）。** 四个 rank 挤在两个核上会抢核，画出来的就是抢核的样子。所以每个 stage 先做真实的计算，再睡到规定的时间：这里前向是 `FORWARD_US` 微秒，反向是它的两倍。进程、消息、顺序都是真的，只有时长是规定的。凡是这样做过的图都标着“定速”。
#
# 每个 rank 下方的细条是它的消息。发送条一直画到有人去确认它已送达为止，而 torch 确认得很晚。
#
# 下面是朴素（naive）流水线：同一时刻只有一个微批次在路上。四个 rank 里，任一时刻有几个在干活？

# %%
FORWARD_US = 25_000
runs = {"naive": pipeline.launch("naive", 4, 2, forward_us=FORWARD_US, timeout_s=50)}
draw(runs["naive"].timeline(), "naive, p = 4")

# %% [markdown]
# One of p ranks works, so the bubble is $(p-1)/p$. The 75 % of section 8.6.1 is right, and more microbatches do not change it:

# %% [markdown] lang="zh" of="f80a1746"
# p 个 rank 里只有一个在干活，气泡就是 $(p-1)/p$。8.6.1 节说的 75% 是对的，微批次再多也不变：

# %%
for m in (1, 2, 8):
    naive = SCHEDULES["naive"](4, m)
    print(f"m = {m}   (p-1)/p = {3 / 4:.3f}   simulated {bubble(simulate(naive)):.3f}")
print(f"measured, m = 2: {bubble(runs['naive'].timeline()):.3f}")

# %% [markdown] sections="8.6.1, 19.3.2"
# ## GPipe: predict, simulate, run, compare
#
# GPipe cuts the batch into m microbatches and sends all of them forward before the first goes back. Four stages, eight microbatches, backward twice as long as forward.
#
# **Predict.** What share of the ranks' time is idle? Write it down as a number from 0 to 1.

# %% [markdown] lang="zh" of="b5daf46d"
# ## GPipe：先猜，再模拟、运行、对照
#
# GPipe 把一批数据切成 m 个微批次，全部前向做完，才开始第一个反向。四个 stage，八个微批次，反向时长是前向的两倍。
#
# **先猜。** 各 rank 的时间里空闲占多少？写一个 0 到 1 之间的数。

# %%
my_bubble = None

# %% [markdown]
# **Simulate.** A schedule is only an order per rank: `2F0` means stage 2, forward, microbatch 0. Give each action a duration, start it as soon as its rank is free and its input is there, and the order becomes a timeline.

# %% [markdown] lang="zh" of="7f5ad306"
# **模拟。** 调度只是每个 rank 的动作顺序：`2F0` 表示 stage 2、前向、微批次 0。给每个动作一个时长，rank 有空、输入也到了就立刻开始，顺序就变成了时间线。

# %%
print(gpipe(4, 8))
predicted = simulate(gpipe(4, 8), pipeline.cost(1, forward_us=FORWARD_US))
draw(predicted, "GPipe, p = 4, m = 8")
print(
    f"{my_bubble = }, simulated {bubble(predicted):.3f}, formula {bubble_formula(gpipe(4, 8)):.3f}"
)

# %% [markdown]
# **Run.** Four processes train the small transformer through `torch.distributed.pipelining`. **Compare.** Prediction above, measurement below, one axis; the dashed line is the predicted end.

# %% [markdown] lang="zh" of="40886f6f"
# **运行。** 四个进程用 `torch.distributed.pipelining` 训练这个小 transformer。**对照。** 上面是预测，下面是实测，共用一条时间轴；虚线是预测的终点。

# %%
runs["gpipe"] = pipeline.launch("gpipe", 4, 8, forward_us=FORWARD_US, timeout_s=50)
measured = runs["gpipe"].timeline()
widgets.show(scene.compare(predicted, measured, title="GPipe, p = 4, m = 8", language=LANGUAGE))

# %% [markdown]
# Where does the difference come from? All ranks together were idle this much longer than predicted, cause by cause: actions that took other than their stated time (*durations*), messages (predicted to be free), ranks that began late (*start-up*), and work between actions such as the loss (*runtime*).

# %% [markdown] lang="zh" of="ac28f200"
# 差别从哪里来？所有 rank 合计比预测多空闲了这么久，按原因分开：动作实际用时与规定的不同（durations），消息（预测时当作不花时间，messages），rank 开始得晚（start-up），动作之间的杂务，比如算损失（runtime）。

# %%
for cause, more_us in pipeline.residual(predicted, measured).items():
    print(f"{cause:>10} {more_us / 1000:+7.1f} ms")

# %% [markdown]
# See for yourself, in the **trace viewer**. Point at a box: its times, and the same action in the other half. Click a message: an arrow to the one that receives it. Drag over a window: what each rank did in it. After a click `+ - 0`, the arrow keys, `n` and `p` work too.

# %% [markdown] lang="zh" of="374f7e3a"
# 用**轨迹查看器**（trace viewer）自己看看。指着一个方块，会显示它的起止时间，并标出另一半里的同一个动作；点一条消息，会有箭头指向接收它的那条；拖选一段时间，会列出各 rank 在这段里做了什么。点过图之后，也可以用 `+ - 0`、方向键和 `n`、`p`。

# %%
widgets.trace(predicted, measured, title="GPipe, p = 4, m = 8", language=LANGUAGE)

# %% [markdown]
# Each rank works for m microbatches and waits for p - 1. Over **total** time that is $(p-1)/(m+p-1)$; over the **ideal** time, without waiting, it is $(p-1)/m$. Say which one you mean: section 8.6.1 gives "about 50 %" for four stages and four microbatches, and neither is 50 %.

# %% [markdown] lang="zh" of="fdfc3a48"
# 每个 rank 干 m 个微批次的活，等 p - 1 个。以**总时间**为分母，是 $(p-1)/(m+p-1)$；以不等待的**理想时间**为分母，是 $(p-1)/m$。说气泡时要讲清是哪一个：8.6.1 节说四个 stage、四个微批次“约 50%”，两种算法都不是 50%。

# %%
print("  m   of total  simulated   of ideal")
for m in (1, 2, 3, 4, 8, 16, 32):
    order = gpipe(4, m)
    print(
        f"{m:3}   {bubble_formula(order):8.1%} {bubble(simulate(order)):10.1%} {bubble_formula(order, over='ideal'):10.1%}"
    )

# %% [markdown] sections="10.3.2, 19.3.2"
# ## 1F1B: the same bubble, less memory
#
# GPipe keeps the activations of all m microbatches until their backwards. 1F1B (PipeDream-Flush in section 10.3.2) lets a rank run p - 1 - r forwards to fill the pipeline, and then one forward, one backward in turn: every backward frees an activation.
#
# **Predict.** Section 19.3.2 says 1F1B reduces the bubble. What will it be with four ranks and eight microbatches?

# %% [markdown] lang="zh" of="b583a372"
# ## 1F1B：气泡不变，内存变小
#
# GPipe 要把 m 个微批次的激活全都留到各自的反向。1F1B（即 10.3.2 节的 PipeDream-Flush）让 rank r 先做 p - 1 - r 个前向把流水线填满，然后一个前向、一个反向交替：每做一个反向就释放一份激活。
#
# **先猜。** 19.3.2 节说 1F1B 能减少气泡。四个 rank、八个微批次时，它是多少？

# %%
my_bubble = None

# %%
predicted = simulate(one_f_one_b(4, 8), pipeline.cost(1, forward_us=FORWARD_US))
runs["1f1b"] = pipeline.launch("1f1b", 4, 8, forward_us=FORWARD_US, timeout_s=50)
widgets.show(
    scene.compare(predicted, runs["1f1b"].timeline(), title="1F1B, p = 4, m = 8", language=LANGUAGE)
)
print(
    f"{my_bubble = }, simulated {bubble(predicted):.3f}, measured {bubble(runs['1f1b'].timeline()):.3f}"
)

# %% [markdown]
# It has not moved: filling and draining a pipeline costs p - 1 microbatches in any order that waits for the last gradient. What changed is the bar at the right of each row: the microbatches whose activations a rank holds at its peak. Simulated from the order, and measured, in the very same runs, as the bytes that autograd kept:

# %% [markdown] lang="zh" of="e0fab041"
# 没有变：只要等最后一个梯度，填满和排空流水线就要花 p - 1 个微批次的时间，怎么排顺序都一样。变的是每行右边的条：一个 rank 在峰值时留着几个微批次的激活。下面左边由顺序算出，右边是在同样两次运行里测到的、autograd 留住的字节数：

# %%
print("rank   GPipe: held   measured     1F1B: held   measured")
for rank in range(4):
    cells = [
        f"{in_flight(SCHEDULES[name](4, 8))[rank]:11} {runs[name][rank]['peak_activation_bytes'] / 1000:8.0f} kB"
        for name in ("gpipe", "1f1b")
    ]
    print(f"{rank:4}   {'    '.join(cells)}")

# %% [markdown]
# Rank r of 1F1B holds at most min(m, p - r) microbatches, however large m is. So the bubble can be made small by a large m, which memory would forbid under GPipe. This 1F1B updates once per batch and needs no versions of the weights; those belong to PipeDream, below.

# %% [markdown] lang="zh" of="fdb81a93"
# 1F1B 的 rank r 最多留 min(m, p - r) 个微批次，m 再大也一样。于是可以用大 m 把气泡压小，而 GPipe 的内存不允许。这种 1F1B 每批只更新一次，不需要多个权重版本；需要版本的是后面的 PipeDream。

# %% [markdown] sections="8.6.1, 10.3.2, 19.3.2"
# ## The textbook's charts, judged
#
# Below are four charts of the sources, a box per step, microbatches counted from 0. First the "naive" one of 8.6.1. If it were naive, one rank would work at a time.

# %% [markdown] lang="zh" of="680168e2"
# ## 审一审教材里的图
#
# 下面是原资料里的四张图，一格一步，微批次从 0 数起。先看 8.6.1 节的“朴素”图。如果真是朴素流水线，每一步应当只有一个 rank 在干活。

# %%
CHARTS = {
    "8.6.1 naive": "F0 .  F1 .  F2 .  F3 .  .  . | .  F0 .  F1 .  F2 .  F3 .  . |"
    ".  .  F0 .  F1 .  F2 .  F3 . | .  .  .  F0 .  F1 .  F2 .  F3",
    "8.6.1 GPipe": "F0 F1 F2 F3 . B0 B1 B2 B3 | . F0 F1 F2 F3 B0 B1 B2 B3 |"
    ". . F0 F1 F2 F3 B0 B1 B2 B3 | . . . F0 F1 F2 F3 B0 B1 B2 B3",
    "10.3.2 1F1B": "|".join(". " * rank + "F0 F1 F2 F3 B0 B1 B2 B3" for rank in range(4)),
    "19.3.2 GPipe": "|".join(". " * rank + "F0 F1 F2 F3 B3 B2 B1 B0" for rank in range(4)),
}
rows = [row.split() for row in CHARTS["8.6.1 naive"].split("|")]
at_work = [sum(box != "." for box in step) for step in zip(*rows)]
print(f"ranks at work in each step: {at_work}, idle as drawn: {1 - sum(at_work) / 40:.0%}")

# %% [markdown]
# Two ranks work at once: that chart is a pipeline already (without backward), and its bubble is not the 75 % written under it.
#
# The other three have backwards. `validate` asks whether each rank's order can run at all. `simulate` then says in which step each box can stand at the earliest, if forward and backward take one step each. A box drawn before that is impossible.

# %% [markdown] lang="zh" of="a0de869a"
# 同一步里有两个 rank 在干活：这张图已经是流水线了（还没有反向），气泡不是图下写的 75%。
#
# 另外三张图有反向。`validate` 检查每个 rank 的顺序到底能不能跑通；`simulate` 再算出每一格最早能站在第几步（前向、反向各占一步）。画得比这更早的格子，就不可能。


# %%
def judge(chart):
    rows = [row.split() for row in chart.split("|")]
    drawn = {
        f"{rank}{box}": step
        for rank, row in enumerate(rows)
        for step, box in enumerate(row)
        if box != "."
    }
    orders = [
        " ".join(f"{rank}{box}" for box in row if box != ".") for rank, row in enumerate(rows)
    ]
    order = parse("\n".join(f"rank {rank}: {text}" for rank, text in enumerate(orders)))
    validate(order)
    possible = simulate(order, Cost(forward_us=1, backward_us=1))
    starts = dict(zip(possible.label.tolist(), possible.start_us.astype(int).tolist()))
    early = sorted((step, box) for box, step in drawn.items() if step < starts[box])
    print(
        f"drawn too early: {len(early)} of {len(drawn)} boxes; microbatches held: {in_flight(order)}"
    )
    print(
        *(
            f"first of them: {box} in step {step}, possible in step {starts[box]}"
            for step, box in early[:1]
        )
    )
    return possible


# %%
for title in ("8.6.1 GPipe", "10.3.2 1F1B", "19.3.2 GPipe"):
    print(title)
    possible = judge(CHARTS[title])

# %% [markdown]
# The orders can run; the times cannot. In all three, stage 0 starts a backward before stage 1 has done its own: the backward has to begin on the **last** stage and march to stage 0. The chart that 10.3.2 calls 1F1B holds four microbatches on every rank, so it is GPipe's order. The last chart with its boxes where they can stand:

# %% [markdown] lang="zh" of="257a7cd0"
# 顺序跑得通，时间却不可能。三张图里，stage 0 的反向都抢在 stage 1 之前：反向必须从**最后**一个 stage 开始，一步步走回 stage 0。10.3.2 称为 1F1B 的那张，每个 rank 都留着四个微批次，其实是 GPipe 的顺序。把最后一张图的格子放到可能的位置：

# %%
draw(
    replace(possible, start_us=possible.start_us * 1000, end_us=possible.end_us * 1000),
    "19.3.2, 1 step = 1 ms",
)

# %% [markdown] sections="8.6.1"
# ## All schedules in one table
#
# What does shrink the bubble? *Interleaved 1F1B* gives each rank two smaller stages: filling takes half as long. *Zero bubble* splits a backward into I (gradient of the input, for which the previous stage waits) and W (gradient of the weights, for which nobody waits) and fills the gaps with W. *ZBV* does both, its stages laid out in a V.

# %% [markdown] lang="zh" of="7f579e3c"
# ## 所有调度，一张表
#
# 什么才能缩小气泡？交错 1F1B（interleaved 1F1B）给每个 rank 两个更小的 stage，填满流水线只要一半时间。零气泡（zero bubble）把反向拆成两半：I 求输入的梯度，上一个 stage 等着它；W 求权重的梯度，没人等它，于是拿 W 去填空隙。ZBV 两样都用，stage 排成 V 形。

# %%
for name in ("interleaved_1f1b", "zb_h1", "interleaved_zb", "zbv"):
    runs[name] = pipeline.launch(name, 4, 8, forward_us=FORWARD_US, timeout_s=50)
zbv = SCHEDULES["zbv"](4, 8)
widgets.show(
    scene.compare(
        simulate(zbv, pipeline.cost(2, forward_us=FORWARD_US)),
        boxes(runs["zbv"]),
        title="ZBV, p = 4, m = 8",
        language=LANGUAGE,
    )
)

# %%
print(f"{'p = 4, m = 8':<24} formula simulated measured   peak in flight, per rank")
for name, run in runs.items():
    order = SCHEDULES[name](4, 2 if name == "naive" else 8)
    cost = pipeline.cost(order.num_stages // 4, forward_us=FORWARD_US)
    formula = bubble_formula(order, cost=cost)
    print(
        f"{TITLES[name]:<24} {'-' if formula is None else f'{formula:.3f}':>7} {bubble(simulate(order, cost)):9.3f}"
        f" {bubble(run.timeline()):8.3f}   {in_flight(order)} / {order.num_stages // 4}"
    )

# %% [markdown]
# Reading the table:
#
# - In flight counts stage activations; where a rank holds two stages, each is half as large ("/ 2").
# - With two stages per rank, every action is half as long and there are twice as many messages: the measured bubble lies further above the simulated one.
# - ZBV's formula is 0, the simulation's bubble is not. The formula counts each rank from its own first action to its own last; our bubble counts every rank from the first action of all. The ranks start one after another, and that stagger is all there is:

# %% [markdown] lang="zh" of="381ae140"
# 怎么读这张表：
#
# - 激活按“一个 stage 的一份”计数；一个 rank 有两个 stage 时，每份只有一半大（写作“/ 2”）。
# - 一个 rank 两个 stage 时，每个动作短一半，消息多一倍，所以实测比模拟高得更多。
# - ZBV 的公式是 0，模拟的气泡却不是。公式对每个 rank 从它自己的第一个动作数到自己的最后一个；我们的气泡对所有 rank 都从全体的第一个动作数起。各 rank 先后错开启动，差的就是这一点：

# %%
simulated = simulate(zbv, pipeline.cost(2, forward_us=FORWARD_US))
for rank in range(4):
    mine = simulated.select(simulated.rank == rank)
    idle_us = mine.end_us.max() - mine.start_us.min() - (mine.end_us - mine.start_us).sum()
    print(
        f"rank {rank}: starts at {mine.start_us.min() / 1000:4.0f} ms, then idle for {idle_us / 1000:.0f} ms"
    )

# %% [markdown]
# One more thing the stated times hide: stage 0 has no input that wants a gradient, so its real I is empty and torch does all of its backward in W. Here its I takes the stated time like every other.
#
# ### Turn the knobs
#
# Schedule, ranks, microbatches, the backward's length, the price of a message. The button runs the same configuration on real ranks and lays the measurement under the prediction.

# %% [markdown] lang="zh" of="5fd10de1"
# 规定的时长还掩盖了一件事：stage 0 的输入不需要梯度，它真实的 I 是空的，torch 把它的整个反向都放在 W 里做。这里它的 I 和别人一样占满规定的时间。
#
# ### 自己动手调
#
# 调度、rank 数、微批次数、反向的长短、消息的代价都可以调。按钮会在真实的 rank 上运行同样的配置，并把实测画在预测下面。

# %%
widgets.pipeline_parallelism(language=LANGUAGE)

# %% [markdown] sections="8.6.2, 10.3.2"
# ## The libraries
#
# ### torch.distributed.pipelining
#
# Section 10.3.2 imports `torch.distributed.pipeline.sync.Pipe`. It is gone:

# %% [markdown] lang="zh" of="9753e814"
# ## 现成的库
#
# ### torch.distributed.pipelining
#
# 10.3.2 节导入 `torch.distributed.pipeline.sync.Pipe`。它已经被删掉了：

# %%
import importlib.util

for name in ("torch.distributed.pipeline.sync", "torch.distributed.pipelining"):
    try:
        print("found:", importlib.util.find_spec(name).name)
    except ModuleNotFoundError as error:
        print(error)

# %% [markdown]
# Its successor, used directly: wrap this rank's part in a `PipelineStage`, choose a schedule, call `step`. The first rank gives the inputs, the last one the targets.

# %% [markdown] lang="zh" of="b0154972"
# 直接用它的后继者：把本 rank 的那部分模型包进 `PipelineStage`，选一个调度，调用 `step`。第一个 rank 给输入，最后一个给目标。


# %%
def torch_pipeline(num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    rank, size, means = dist.get_rank(), dist.get_world_size(), []
    part = model.split(model.Transformer(4, 32, 2, max_len=32), size)[rank]
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=model.loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(8, 32, seed=step)
        losses = []
        optimizer.zero_grad()
        schedule.step(
            *([tokens] if rank == 0 else []),
            target=targets if rank == size - 1 else None,
            losses=losses,
        )
        optimizer.step()
        means += [sum(losses).item() / 8] if losses else []
    return means


# %%
by_torch = lab.launch(torch_pipeline, 2, ranks=4, backend="gloo", timeout_s=50)
by_torch[3]

# %% [markdown] sections="8.6.2"
# ### DeepSpeed
#
# `PipelineModule` takes the model as a list of layers and cuts it itself; `train_batch` runs its 1F1B. `partition_method` says how to cut. Section 8.6.2 writes that into the JSON configuration; this function can take it either way.

# %% [markdown] lang="zh" of="018fc13d"
# ### DeepSpeed
#
# `PipelineModule` 接收一个层的列表，自己切分；`train_batch` 按它的 1F1B 运行。怎么切由 `partition_method` 决定。8.6.2 节把它写进 JSON 配置；下面这个函数两种写法都能试。


# %%
def deepspeed_pipeline(num_steps, forward_us, config, arguments):
    import deepspeed
    import torch
    from deepspeed.pipe import PipelineModule
    from labkit import model
    from labkit.measure import pace, trace

    deepspeed.init_distributed()
    torch.manual_seed(0)
    layers = model.Transformer(4, 32, 2, max_len=32).layers
    layers = [
        pace.Paced(layer, forward_us=forward_us) if isinstance(layer, model.Block) else layer
        for layer in layers
    ]
    net = PipelineModule(layers=layers, num_stages=4, loss_fn=model.loss, **arguments)
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, **config}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    losses = []
    for step in range(num_steps):
        batch = iter([(x[None], y[None]) for x, y in zip(*model.story_tokens(8, 32, seed=step))])
        with trace.record(engine):  # the last recording stays
            losses.append(engine.train_batch(batch).item())
    return losses, [int(part) for part in net.parts]


# %%
by_deepspeed = lab.launch(
    deepspeed_pipeline, 2, 10_000, {}, {}, ranks=4, backend="gloo", timeout_s=55
)
print(*by_torch[3], "torch", sep="  ")
print(*by_deepspeed[3][0], "DeepSpeed", sep="  ")
draw(by_deepspeed.timeline(), "DeepSpeed PipelineModule (p = 4, m = 8)")

# %% [markdown]
# The same losses, the same order: 1F1B. Now the JSON of section 8.6.2. The list says at which of the six layers each stage begins and where the last one ends.

# %% [markdown] lang="zh" of="f7b38ffb"
# 损失一样，顺序也一样：都是 1F1B。再看 8.6.2 节的 JSON。打印的列表是：六个层里，每个 stage 从第几层开始，最后一个到哪里结束。

# %%
uniform = {"partition_method": "uniform"}
print(f"neither:        {by_deepspeed[0][1]}")
for place, config, arguments in (
    ("in the JSON:", {"pipeline": uniform}, {}),
    ("as an argument:", {}, uniform),
):
    run = lab.launch(
        deepspeed_pipeline, 0, 0, config, arguments, ranks=4, backend="gloo", timeout_s=55
    )
    print(f"{place:<15} {run[0][1]}")

# %% [markdown]
# The entry in the JSON changes nothing; the argument of `PipelineModule` does.
#
# ### Megatron
#
# Section 8.6.2 imports `megatron.model`. In today's Megatron the parts live in `megatron.core`, and there is no `loss.backward()` in the training loop: `get_forward_backward_func()` returns one of three functions (no pipelining, 1F1B, interleaved 1F1B) that runs forward, backward and all messages of a batch. The next cell looks whether it is installed here, and which of the two names exists.

# %% [markdown] lang="zh" of="bcb627a5"
# JSON 里写了等于没写；作为 `PipelineModule` 的参数才有用。
#
# ### Megatron
#
# 8.6.2 节导入 `megatron.model`。现在的 Megatron 把它们放在 `megatron.core` 里，训练循环中也没有 `loss.backward()`：`get_forward_backward_func()` 返回三个函数之一（不分段、1F1B、交错 1F1B），由它跑完一批的前向、反向和所有消息。下面看看这台机器上有没有装，以及两个名字哪一个存在。

# %%
from pathlib import Path

megatron = importlib.util.find_spec("megatron")
for name in ("model", "core/pipeline_parallel"):
    places = [] if megatron is None else list(megatron.submodule_search_locations)
    found = any(
        Path(place, name).is_dir() or Path(place, name + ".py").is_file() for place in places
    )
    print(
        f"megatron.{name.replace('/', '.'):<24}",
        "megatron is not installed" if megatron is None else found,
    )

# %% [markdown] sections="10.3.2, 19.3.2"
# ## PipeDream: no flush, and weights of several versions
#
# PipeDream does not wait for the last gradient of a batch. It runs 1F1B for ever and updates a stage after each of its backwards. Eight microbatches, once without a flush and once with one after every four:

# %% [markdown] lang="zh" of="d96a2240"
# ## PipeDream：不冲刷，权重有好几个版本
#
# PipeDream 不等一批里最后一个梯度。它一直跑 1F1B，每个 stage 每做完一次反向就更新一次。八个微批次，一次不冲刷（flush），一次每四个冲刷一下：

# %%
endless = pipedream_run.launch(4, 8, forward_us=15_000, timeout_s=40)
flushed = pipedream_run.launch(4, 8, flush_every=4, forward_us=15_000, timeout_s=40)
draw(boxes(endless), "PipeDream", span_us=boxes(flushed).span_us)
draw(boxes(flushed), "1F1B + flush, m = 4")

# %% [markdown]
# From rank 0's first backward to its last forward the pipeline is full. In this **steady state** PipeDream has no bubble; what is measured are messages, two of which stand in the way of every microbatch. A flush pays $(p-1)/(m+p-1)$ each time.

# %% [markdown] lang="zh" of="dd100c95"
# 从 rank 0 的第一个反向到它最后一个前向，流水线是满的。在这段稳态（steady state）里，PipeDream 没有气泡；实测到的那一点是消息，每个微批次都要等两条。而每冲刷一次，就要付一次 $(p-1)/(m+p-1)$。

# %%
ideal = simulate(one_f_one_b(4, 8))  # PipeDream's order is that of 1F1B with one endless batch
print(
    f"PipeDream, steady state  simulated {bubble(pipeline.steady(ideal)):.3f}  "
    f"measured {bubble(pipeline.steady(endless.timeline())):.3f}"
)
print(
    f"1F1B with flush, m = 4   simulated {bubble(simulate(one_f_one_b(4, 4))):.3f}  "
    f"measured {bubble(flushed.timeline()):.3f}"
)

# %% [markdown]
# The price: between a microbatch's forward and its backward, the stage has been updated by others. To compute the gradient that belongs to that forward, the stage must keep the weights it used: **weight stashing**. Stage s holds $p-s$ versions, and its gradients come $p-1-s$ updates late:

# %% [markdown] lang="zh" of="61bc1659"
# 代价在这里：一个微批次的前向和反向之间，这个 stage 已经被别的微批次更新过了。要算出与那次前向相配的梯度，就得留着当时用的权重，这叫权重暂存（weight stashing）。stage s 要留 $p-s$ 个版本，它的梯度迟到 $p-1-s$ 次更新：

# %%
print("stage  versions held  p - s   microbatch 7: forward with version, newest at its backward")
for stage in range(4):
    used, newest = endless[stage]["versions"][7]
    print(f"{stage:5}  {endless[stage]['peak_versions']:13}  {4 - stage:5}   {used:12} {newest:5}")

# %% [markdown]
# Look at stage 0: it corrects its newest version with a gradient that was computed for one three updates older. The weights are **stale**. What does that cost? The same 48 microbatches, learning rate 0.3, mean loss of the first and last 16. The first line is one process, where nothing is stale.

# %% [markdown] lang="zh" of="f3fa1f46"
# 看 stage 0：梯度是按三次更新之前的版本算的，却用来改最新的版本。这样的权重是过时（stale）的。这要付出什么？同样的 48 个微批次，学习率 0.3，取最初 16 个和最后 16 个的平均损失。第一行只有一个进程，没有过时可言。

# %%
for name, num_ranks, flush in (
    ("1 process", 1, None),
    ("PipeDream", 4, None),
    ("1F1B + flush", 4, 8),
):
    run = pipedream_run.launch(num_ranks, 48, flush_every=flush, learning_rate=0.3, timeout_s=40)
    losses = run[num_ranks - 1]["losses"]
    print(
        f"{name:<13} {48 // (flush or 1):3} updates   {sum(losses[:16]) / 16:.3f} -> {sum(losses[-16:]) / 16:.3f}"
    )

# %% [markdown]
# With four stages and so small a model staleness makes little difference; updating once per microbatch instead of once per eight makes a large one. But the first two lines are not equal: the result now depends on the number of stages. Megatron's paper keeps the flush for this reason: "strict optimizer semantics".
#
# So there are two methods under the name 1F1B. With flush: the bubble of GPipe, less memory, one version, exact. Without (PipeDream): no bubble once full, p - s versions, stale.

# %% [markdown] lang="zh" of="fe4d122e"
# 只有四个 stage、模型又这么小，过时的影响不大；每个微批次更新一次还是每八个更新一次，差别却很大。但前两行并不相等：结果从此与 stage 的个数有关。Megatron 的论文正因此保留冲刷，称为“严格的优化器语义”（strict optimizer semantics）。
#
# 可见 1F1B 这个名字下有两种方法。有冲刷的：气泡与 GPipe 相同，内存更少，一个版本，结果精确。无冲刷的（PipeDream）：填满之后没有气泡，要 p - s 个版本，权重过时。

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. The order of 1F1B
#
# List the actions of one rank: `my_order(0, 2, 2)` is `["0F0", "0F1", "0B0", "0B1"]`. Rank r holds stage r.

# %% [markdown] lang="zh" of="997900c0"
# ## 练习
#
# 检查不会中断笔记本。它用没有展示过的规模试你的答案，并给出第一个不对的情形。每试一次，`check.hint(名字)` 会多说一点。
#
# ### 1. 1F1B 的顺序
#
# 列出一个 rank 的全部动作：`my_order(0, 2, 2)` 是 `["0F0", "0F1", "0B0", "0B1"]`。rank r 拿 stage r。


# %%
def my_order(rank, num_ranks, num_microbatches):
    """The actions of one rank, in order, as text."""
    ### BEGIN SOLUTION
    forwards = [f"{rank}F{k}" for k in range(num_microbatches)]
    backwards = [f"{rank}B{k}" for k in range(num_microbatches)]
    warmup = min(num_microbatches, num_ranks - 1 - rank)
    pairs = [action for pair in zip(forwards[warmup:], backwards) for action in pair]
    return forwards[:warmup] + pairs + backwards[num_microbatches - warmup :]
    ### END SOLUTION


# %%
check.one_f_one_b_order(my_order)

# %%
check.hint("one_f_one_b_order")

# %% [markdown]
# ### 2. Choose the microbatches
#
# The bubble may be at most `max_bubble` (a share of total time), and no rank may hold more than `max_activations` microbatches. Return `("gpipe", m)` or `("1f1b", m)` with the fewest microbatches, or None where nothing fits.

# %% [markdown] lang="zh" of="a12cd797"
# ### 2. 选微批次数
#
# 气泡不得超过 `max_bubble`（占总时间的比例），每个 rank 保存的微批次不得多于 `max_activations`。返回 `("gpipe", m)` 或 `("1f1b", m)`，m 取最小；都不行就返回 None。


# %%
def my_choice(num_ranks, max_bubble, max_activations):
    """The schedule and its fewest microbatches within both budgets."""
    ### BEGIN SOLUTION
    from math import ceil

    m = max(1, ceil((num_ranks - 1) * (1 - max_bubble) / max_bubble - 1e-9))
    if m <= max_activations:
        return "gpipe", m
    return ("1f1b", m) if min(m, num_ranks) <= max_activations else None
    ### END SOLUTION


# %%
check.choose_microbatches(my_choice)

# %%
check.hint("choose_microbatches")

# %% [markdown]
# ### 3. Find the fault in a chart
#
# A chart is a list of rows, one per rank; a row is a list of boxes, one per step: `"F1"`, `"B1"` or `"."`. Rank r holds stage r. Return `(rank, step)` of the first box that cannot run where it stands (earliest step, then lowest rank), or None.

# %% [markdown] lang="zh" of="e0f214ec"
# ### 3. 找出图里的错
#
# 图是一个列表，每个 rank 一行；每行也是列表，一步一格：`"F1"`、`"B1"` 或 `"."`。rank r 拿 stage r。返回第一个不可能站在那里的格子 `(rank, step)`（先比步，再比 rank），没有就返回 None。


# %%
def my_fault(chart):
    """(rank, step) of the first impossible box, or None."""
    ### BEGIN SOLUTION
    done, last = set(), len(chart) - 1
    for step in range(max(len(row) for row in chart)):
        boxes = [
            (rank, row[step])
            for rank, row in enumerate(chart)
            if step < len(row) and row[step] != "."
        ]
        for rank, box in boxes:
            if box[0] == "F":
                need = (rank - 1, box) if rank else None
            else:
                need = (rank + 1, box) if rank < last else (rank, "F" + box[1:])
            if need is not None and need not in done:
                return rank, step
        done.update(boxes)
    return None
    ### END SOLUTION


# %%
check.chart_fault(my_fault)

# %%
check.hint("chart_fault")

# %% [markdown]
# ### 4. A real pipeline
#
# One training step of two stages on two real ranks. Rank 0 gets its stage and the inputs, rank 1 its stage and the targets, each as a list of microbatches. A message has the shape `(len(microbatch), width)`. Leave in both stages the gradients of the mean squared error (`mse_loss`) of the whole batch, with no larger bubble than GPipe.

# %% [markdown] lang="zh" of="855c907e"
# ### 4. 真实的流水线
#
# 在两个真实的 rank 上做两段流水线的一个训练步。rank 0 得到它的 stage 和输入，rank 1 得到它的 stage 和目标，都是微批次的列表。消息的形状是 `(len(microbatch), width)`。做完之后，两个 stage 里应留下整批均方误差（`mse_loss`）的梯度，气泡不得大于 GPipe。


# %%
def my_step(rank, stage, microbatches, width):
    """Forward and backward of every microbatch; the gradients stay in the stage's parameters."""
    ### BEGIN SOLUTION
    import torch
    import torch.distributed as dist

    kept = []
    for micro in microbatches:
        if rank == 0:
            kept.append(stage(micro))
            dist.send(kept[-1].detach(), 1)
        else:
            x = torch.empty(len(micro), width)
            dist.recv(x, 0)
            loss = torch.nn.functional.mse_loss(stage(x.requires_grad_()), micro) / len(
                microbatches
            )
            kept.append((x, loss))
    for item in kept:
        if rank == 0:
            grad = torch.empty_like(item)
            dist.recv(grad, 1)
            item.backward(grad)
        else:
            item[1].backward()
            dist.send(item[0].grad, 0)
    ### END SOLUTION


# %%
check.real_pipeline(my_step)

# %%
check.hint("real_pipeline")

# %% [markdown]
# ## Summary
#
# - A pipeline idles while it fills and drains: $(p-1)/(m+p-1)$ of total time for GPipe and for 1F1B, $(p-1)/p$ for the naive one.
# - 1F1B holds min(m, p - r) activations on rank r instead of m. Smaller stages (interleaving) and splitting the backward (zero bubble) are what shrink the bubble.
# - PipeDream never flushes: no bubble once full, several versions of the weights, stale gradients.
# - A schedule is an order. A chart can show a correct order at impossible times; simulate it.
#
# ## Sources
#
# - GPipe: Huang et al. 2018, [arXiv 1811.06965](https://arxiv.org/abs/1811.06965)
# - PipeDream: Harlap, Narayanan et al. 2018, [arXiv 1806.03377](https://arxiv.org/abs/1806.03377)
# - 1F1B with flush and interleaved: Narayanan et al. 2021 (Megatron), [arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - Zero bubble, ZB-H1, ZBV: Qi et al. 2023, [arXiv 2401.10241](https://arxiv.org/abs/2401.10241)
# - DualPipe, with a table of bubbles and memory: [deepseek-ai/DualPipe](https://github.com/deepseek-ai/DualPipe)
#
# Where you stand:

# %% [markdown] lang="zh" of="7761db40"
# ## 小结
#
# - 流水线在填满和排空时空闲：GPipe 和 1F1B 都是总时间的 $(p-1)/(m+p-1)$，朴素流水线是 $(p-1)/p$。
# - 1F1B 的 rank r 只留 min(m, p - r) 份激活，而不是 m 份。真正缩小气泡的是更小的 stage（交错）和拆开反向（零气泡）。
# - PipeDream 从不冲刷：填满后没有气泡，要留几个版本的权重，梯度是过时的。
# - 调度只是顺序。一张图可以顺序正确、时间却不可能；模拟一下就知道。
#
# ## 出处
#
# - GPipe：Huang 等，2018，[arXiv 1811.06965](https://arxiv.org/abs/1811.06965)
# - PipeDream：Harlap、Narayanan 等，2018，[arXiv 1806.03377](https://arxiv.org/abs/1806.03377)
# - 带冲刷的 1F1B 与交错 1F1B：Narayanan 等，2021（Megatron），[arXiv 2104.04473](https://arxiv.org/abs/2104.04473)
# - 零气泡、ZB-H1、ZBV：Qi 等，2023，[arXiv 2401.10241](https://arxiv.org/abs/2401.10241)
# - DualPipe，附气泡与内存的对照表：[deepseek-ai/DualPipe](https://github.com/deepseek-ai/DualPipe)
#
# 你做到了哪里：

# %%
check.status()
