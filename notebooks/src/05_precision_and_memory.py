# ---
# jupyter:
#   labkit:
#     sections: ["19.2.3", "19.4.2", "10.2.3", "10.7.4", "S3", "S4", "S9"]
#     needs: ["two CPU cores"]
#     minutes: 60
# ---

# %% [markdown]
# # Precision and memory
#
# *Sections 10.2.3, 10.7.4, 19.2.3, 19.4.2, S3, S4 and S9 of the source material. About 60 minutes. No GPU is needed.*
#
# Half the bits are half the bytes and, on a GPU with units for it, more speed as well. They also lose small updates, small gradients and, when a number grows too large, the whole step. On several ranks one thing more is asked: all of them must agree that the step is lost.
#
# First the three formats and what each loses; then masters, `autocast` and loss scaling on real ranks. After that the two ways to save memory that change no result: gradient accumulation and activation checkpointing.

# %% [markdown] lang="zh" of="291ef869"
# # 精度与显存
#
# *对应原资料 10.2.3、10.7.4、19.2.3、19.4.2、S3、S4、S9 各节，约 60 分钟。不需要 GPU。*
#
# 位数减半，字节就减半；GPU 上若有专门的计算单元，还会更快。代价是：小的更新会丢，小的梯度会丢；数一旦太大，整步都要作废。多个 rank 一起训练时还多一个要求：这一步作废与否，大家必须意见一致。
#
# 先看三种格式各会丢什么，再在真实的 rank 上做主权重（master weights）、`autocast` 和损失缩放（loss scaling）。然后是两种不改变结果的省显存办法：梯度累积（gradient accumulation）与激活检查点（activation checkpointing）。

# %%
import labkit as lab

lab.warm()  # starts the process that forks ranks, while the rest loads
import contextlib
import itertools
import torch
import torch.distributed as dist
import torch.nn.functional as F
from labkit.pictures import curves
from labkit.sharding import states
from labkit.measure import memory
from labkit import model, widgets
from labkit.pictures.curves import Series
from labkit.precision import check
from labkit.units import format_bytes, format_share

LANGUAGE = "en"
check.language(LANGUAGE)
torch.set_num_threads(
    1
)  # here in the notebook: its models are tiny, and ranks want the other cores


# %%
def off(ours, theirs):
    """How far a gradient is from another: the length of the difference in lengths of the other."""
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def flat(tensors):
    """Many tensors as one long copy."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# %% [markdown]
# ## Three formats
#
# A float has a sign, an exponent (the range) and a fraction (the precision). torch knows the numbers:

# %% [markdown] lang="zh" of="9de8ed76"
# ## 三种格式
#
# 浮点数由符号、指数和尾数组成：指数决定范围，尾数决定精度。具体数字 torch 都知道：

# %%
from math import log2

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
print(
    "        bits = sign + exponent + fraction   largest   smallest normal   smallest   next after 1"
)
for name, dtype in TYPES.items():
    info = torch.finfo(dtype)
    fraction = round(-log2(info.eps))
    print(
        f"{name} {info.bits:7} {1:6} {info.bits - 1 - fraction:10} {fraction:10} {info.max:9.1e} "
        f"{info.smallest_normal:17.1e} {info.smallest_normal * info.eps:10.1e}   1 + {info.eps:.1e}"
    )

# %% [markdown]
# bf16 has the range of fp32 and few digits; fp16 has more digits and a small range. The same as a picture: the gap between a number and the next larger one, read out of the bit patterns. A number moves only if it is pushed by at least half the gap on that side.

# %% [markdown] lang="zh" of="b9a15b35"
# bf16 的范围与 fp32 相同，但有效数字少；fp16 的有效数字多一些，范围却小。画成图：一个数与下一个更大的数之间的间隔，直接从位模式里读出来。一次推动若不到那一侧间隔的一半，这个数就纹丝不动。


# %%
def gaps(dtype):
    """Powers of two that the format has, and the gap above each."""
    x = torch.tensor([2.0**power for power in range(-30, 20)]).to(dtype)
    x = x[(x > 0) & x.isfinite()]
    bits = x.view(torch.int32 if dtype == torch.float32 else torch.int16)
    return x.tolist(), ((bits + 1).view(dtype).double() - x.double()).tolist()


widgets.show(
    curves.curves(
        [Series(name, *gaps(dtype)) for name, dtype in TYPES.items()],
        log_x=True,
        log_y=True,
        title={"en": "Gap to the next number", "zh": "到下一个数的间隔"},
        y_name={"en": "gap", "zh": "间隔"},
        x_name={"en": "number", "zh": "数"},
        badge="measured",
        language=LANGUAGE,
    )
)

# %% [markdown]
# fp16 ends early on the right, where infinity begins, and flattens on the left: below its smallest normal number the gap no longer shrinks, and below half of that gap everything is zero.
#
# **Predict.** A weight of 0.1 gets 100 updates of -0.0001 each. What is it afterwards in each format?

# %% [markdown] lang="zh" of="8f7d4d04"
# fp16 在右边早早到头，再大就是无穷；在左边变平：比最小的正规数（normal number）还小时，间隔不再缩小，不到这个间隔一半的数全都成了零。
#
# **先猜**：一个等于 0.1 的权重，连着更新 100 次，每次 -0.0001。三种格式下它最后各是多少？

# %%
my_weight = {"fp32": None, "bf16": None, "fp16": None}

# %%
for name, dtype in TYPES.items():
    weight = torch.tensor(0.1, dtype=dtype)
    for _ in range(100):
        weight -= torch.tensor(0.0001, dtype=dtype)
    print(f"{name}: {weight.item():.4f}   you: {my_weight[name]}")

# %% [markdown] sections="19.2.3"
# ## fp32 masters
#
# In bf16 the weight never moved: each update is under half a gap. In fp16 each was rounded to whole gaps. Section 19.2.3 keeps an fp32 copy of the weights on every GPU, the **master**: 16 bits compute, the optimizer updates the master, and the weights are rounded anew from it. In one update:

# %% [markdown] lang="zh" of="78533831"
# ## fp32 主权重
#
# bf16 的权重一动没动，因为每次更新都不到半个间隔；fp16 则把每次更新都舍入成整数个间隔。19.2.3 节让每块 GPU 另存一份 fp32 权重，叫主权重（master weights）：计算用 16 位，优化器更新主权重，再从主权重重新舍入出 16 位的权重。更新一次就是这样：


# %%
def update(weights, masters, optimizer):
    """One step of an optimizer that owns the masters."""
    for weight, master in zip(weights, masters):
        gradient, weight.grad = weight.grad, None
        master.grad = gradient.to(master.dtype)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            weight.copy_(master)


# %% [markdown]
# Now a real training on two ranks, four times with the same data: everything in fp32; everything in bf16, the optimizer as well; bf16 weights and an optimizer that computes in fp32, but keeps no master; bf16 with fp32 masters. In the last step it is also counted how many weights with a gradient the optimizer left exactly as they were. **Predict** that share for pure bf16.

# %% [markdown] lang="zh" of="65e73ad5"
# 下面在两个 rank 上真正训练四遍，数据相同：全部 fp32；全部 bf16，包括优化器；bf16 权重，优化器用 fp32 算，但不留主权重；bf16 加 fp32 主权重。最后一步还数一数：有梯度的权重里，有多少被优化器更新之后一点没变。**先猜**全部 bf16 时这个比例是多少。

# %%
my_share = None


# %%
def train(kinds, num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    found = {}
    for kind in kinds:
        torch.manual_seed(0)
        net, losses = model.Transformer(1, 32, 2, max_len=32), []
        ddp = DDP(net if kind == "fp32" else net.bfloat16())
        weights = list(net.parameters())
        masters = (
            weights if kind in ("fp32", "bf16") else [weight.detach().float() for weight in weights]
        )
        optimizer = torch.optim.AdamW(masters, lr=5e-4)
        for step in range(num_steps):
            tokens, targets = model.story_tokens(4, 32, seed=2 * step + dist.get_rank())
            losses.append(model.loss(ddp(tokens).float(), targets))
            losses[-1].backward()
            before, has_grad = flat(masters), flat([weight.grad for weight in weights]) != 0
            update(weights, masters, optimizer)
            for weight, master in zip(weights, masters) if kind == "bf16, fp32 Adam" else ():
                master.copy_(weight.detach())  # forgets what was rounded away
        dist.all_reduce(losses := torch.stack(losses).detach())
        found[kind] = (
            losses / dist.get_world_size(),
            (before == flat(masters))[has_grad].float().mean().item(),
        )
    return found


# %%
found = lab.launch(
    train,
    ("fp32", "bf16", "bf16, fp32 Adam", "bf16 + masters"),
    84,
    ranks=2,
    backend="gloo",
    timeout_s=55,
)[0]
means = {
    kind: losses.unflatten(0, (-1, 12)).mean(1) for kind, (losses, _) in found.items()
}  # of 12 steps each
widgets.show(
    curves.curves(
        [
            Series(
                {"en": kind, "zh": kind.replace(", ", "，").replace("masters", "主权重")},
                range(12, 85, 12),
                (line - means["fp32"]).tolist(),
                points=True,
            )
            for kind, line in means.items()
            if kind != "fp32"
        ],
        title={"en": "Loss above that of fp32", "zh": "损失比 fp32 高多少"},
        badge="measured, gloo",
        x_name={"en": "step", "zh": "步"},
        y_name={"en": "mean of 12 steps", "zh": "12 步的平均"},
        language=LANGUAGE,
    )
)
print(f"{my_share = }\n                 loss of the last 12 steps   unchanged by the last step")
for kind, (_, share) in found.items():
    print(f"{kind:<16} {means[kind][-1]:25.3f} {format_share(share):>28}")

# %% [markdown]
# With masters bf16 trains as fp32 does: what hurts is not the digits that the forward and backward lack. Adam in fp32 alone wins back the smaller part: what hurts most is the rounding of the weight after each update. The smaller the learning rate, the more updates fall under half a gap.
#
# What do masters cost? The bytes of one parameter on one rank, by recipe, nothing sharded, and 7 billion of them (computed; nothing was allocated):

# %% [markdown] lang="zh" of="5dc19132"
# 加了主权重，bf16 训练得和 fp32 一样好，可见有害的不是前向和反向里少掉的有效数字。只让 Adam 用 fp32，补回的是一小部分：害处主要来自每次更新后对权重的舍入。学习率越小，不到半个间隔的更新就越多。
#
# 主权重要花多少字节？下面按配方列出不分片时一个 rank 上一个参数的字节数，以及 70 亿个参数的总数（算出来的，并没有真的分配）：

# %%
print(f"{'recipe':<10} {'bytes':>5}  {'7 B parameters':>14}   {'without masters':>15}")
for name in ("fp32", "bf16", "mixed", "megatron", "accumulate"):
    kinds = states.state_bytes(7e9, recipe_name=name)
    bare = sum(kinds.values()) - kinds.get("master", 0)
    print(
        f"{name:<10} {states.RECIPES[name].bytes_per_parameter:5}  {format_bytes(sum(kinds.values())):>14}   "
        f"{format_bytes(bare):>15}   {states.RECIPES[name].what}"
    )

# %% [markdown]
# Mixed precision does not make the states smaller: weight, gradient, master and two moments take as much as fp32 with Adam. It saves activations, messages and time. The bill of section 8.1.1 for 7 B parameters, "14 + 56 + 14 GB", has no line for the masters: it is the column "without masters" of "mixed", and the column before it is right.
#
# ### All-reduce in 16 bits
#
# "All-reduce in FP16 or FP32", says section 19.2.3. 16 bits halve the bytes. The sum of N ranks is N times as large as a gradient, and fp16 has little room above. **Predict** the mean of 40000 and 40000 on two ranks in fp16, summed first and divided first. And which of the two does DDP do?

# %% [markdown] lang="zh" of="59730905"
# 混合精度（mixed precision）并不能让模型状态变小：权重、梯度、主权重加两个动量，与 fp32 加 Adam 一样多。它省的是激活、消息和时间。8.1.1 节给 70 亿参数算的账是“14 + 56 + 14 GB”，里面没有主权重这一项：那是“mixed”一行的“without masters”列，它前面一列才对。
#
# ### 用 16 位做 all-reduce
#
# 19.2.3 节说“AllReduce 在 FP16 或 FP32 空间进行”。用 16 位，字节减半；可是 N 个 rank 的和是单个梯度的 N 倍，而 fp16 上面没有多少余地。**先猜**：两个 rank 上各有一个 40000，用 fp16 求平均，先加后除是多少？先除后加呢？DDP 用的是哪一种？

# %%
my_mean = {"sum, divide": None, "divide, sum": None, "DDP": None}


# %%
def mean_in_fp16():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    late, early = (torch.tensor([40000.0], dtype=torch.float16) for _ in range(2))
    dist.all_reduce(late)
    early /= dist.get_world_size()
    dist.all_reduce(early)
    line = torch.nn.Linear(1, 1, bias=False, dtype=torch.float16)
    DDP(line)(
        torch.tensor([[40000.0]], dtype=torch.float16)
    ).sum().backward()  # a gradient of 40000
    return {
        "sum, divide": (late / dist.get_world_size()).item(),
        "divide, sum": early.item(),
        "DDP": line.weight.grad.item(),
    }


print(
    f"{my_mean = }\n     run = {lab.launch(mean_in_fp16, ranks=2, backend='gloo', timeout_s=40)[0]}"
)

# %% [markdown]
# DDP divides first. That costs at the other end of the range: a small gradient, divided by N, may fall below the smallest normal number and lose digits. bf16 has the range of fp32 and knows neither trouble, at the price of fewer digits in the sum.

# %% [markdown] lang="zh" of="cdc094f9"
# DDP 是先除后加，代价在范围的另一头：小的梯度除以 N 之后，可能比最小的正规数还小，就会丢有效数字。bf16 的范围和 fp32 一样，两头都没有这个麻烦，只是和的有效数字少。

# %% [markdown] sections="S3"
# ## autocast
#
# Section S3's way is the reverse: the weights stay fp32 (they are the masters), and `autocast` casts the inputs of the operators that gain by it. (`torch.cuda.amp` is the old name; it is `torch.amp` now, with the device as an argument.) What comes out of each module of one block:

# %% [markdown] lang="zh" of="e4adb7f6"
# ## autocast
#
# S3 节的做法反过来：权重保持 fp32（它们自己就是主权重），由 `autocast` 在合适的算子前把输入转成 16 位。（`torch.cuda.amp` 是旧名字，现在是 `torch.amp`，设备作为参数传入。）先看一个 block 里每个模块输出什么类型：

# %%
torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
tokens, targets = model.story_tokens(8, 32)
seen = {}
for name, module in [
    *net.layers[1].named_children(),
    ("block", net.layers[1]),
    ("head", net.layers[-1]),
]:
    module.register_forward_hook(
        lambda module, inputs, output, name=name: seen.update({name: output.dtype})
    )
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = model.loss(net(tokens), targets)
loss.backward()
short = {dtype: name for name, dtype in TYPES.items()}
print(*(f"{name} {short[dtype]}" for name, dtype in {**seen, "loss": loss.dtype}.items()), sep=", ")
print(
    "weight:", net.layers[1].up.weight.dtype, "  its gradient:", net.layers[1].up.weight.grad.dtype
)

# %% [markdown]
# Matrix products in bf16; norms, the residual stream, loss, weights and gradients in fp32. **Predict.** How many bytes does the forward keep for the backward, and how many does DDP's all-reduce carry, in shares of fp32? The third row has a communication hook that sends 16 bits (fp16; torch refuses `bf16_compress_hook` with gloo); the fourth is a model converted to bf16 as above.

# %% [markdown] lang="zh" of="55ccea5e"
# 矩阵乘法用 bf16；归一化、残差流、损失、权重和梯度都是 fp32。**先猜**：与 fp32 相比，前向为反向留下的字节是几成？DDP 的 all-reduce 传的字节是几成？第三行加了一个以 16 位发送的通信钩子（communication hook；这里用 fp16，因为 torch 不让 `bf16_compress_hook` 搭配 gloo）；第四行是像上面那样整个转成 bf16 的模型。

# %%
my_activations, my_messages = None, None  # of autocast


# %%
def kept_and_sent():
    import torch
    from labkit.measure import memory, traffic
    from labkit import model
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    tokens, targets = model.story_tokens(8, 32)
    found = {}
    for kind in ("fp32", "autocast", "autocast, hook", "bf16 model"):
        net = model.Transformer(2, 32, 2, max_len=32).to(
            torch.bfloat16 if kind == "bf16 model" else torch.float32
        )
        ddp, held = DDP(net), memory.Activations(net.parameters())
        if kind == "autocast, hook":
            ddp.register_comm_hook(None, fp16_compress_hook)
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind.startswith("autocast")),
            held.chunk(0),
        ):
            loss = model.loss(ddp(tokens), targets)
        with traffic.count() as counted:
            loss.backward()
        found[kind] = held.peak_bytes, counted.payload_bytes["all_reduce"]
    return found


# %%
found = lab.launch(kept_and_sent, ranks=2, backend="gloo", timeout_s=40)[0]
print(f"{my_activations = }, {my_messages = }")
for kind, numbers in found.items():
    kept, sent = (
        f"{format_bytes(num):>8} ({format_share(num / whole):>7})"
        for num, whole in zip(numbers, found["fp32"])
    )
    print(f"{kind:<14} kept for the backward {kept}   handed to all_reduce {sent}")

# %% [markdown]
# autocast saves less than half: the norms and the stream stay in fp32, and the casts of the weights are kept, too (their share falls as the batch grows). And the messages stay whole, because the gradients are fp32; the hook rounds them for the journey (chapter 11 has more of these).
#
# ## Small gradients and the loss scale
#
# In fp16 the backward has another trouble. The loss is a mean over all tokens, so the more tokens there are, the smaller each gradient is. Here the model is trained a little; then one backward of 2048 tokens is run under `autocast` in fp16, the loss multiplied by a scale beforehand. (A scale of 1/2 does what twice as many tokens would do.) Counted are zeros in the gradient of the logits that are none in fp32, and infinities and NaNs in the gradients of the weights. **Predict** a scale at which there is neither.

# %% [markdown] lang="zh" of="7e542f95"
# autocast 省不到一半：归一化和残差流还是 fp32，权重转换出来的副本也要留着（批越大，这部分占比越小）。消息则一点没少，因为梯度是 fp32；通信钩子只在路上把它舍入成 16 位（第 11 章还有别的钩子）。
#
# ## 小梯度与损失缩放
#
# 用 fp16 做反向还有一个麻烦。损失是对所有 token 求平均，token 越多，每个梯度就越小。下面先把模型训练一会儿，再在 fp16 的 `autocast` 下对 2048 个 token 做一次反向，事先给损失乘上一个缩放系数（scale）。（系数取 1/2，就相当于 token 多一倍。）数两样东西：logits 的梯度里，fp32 时不为零、这里却成了零的；权重的梯度里，成了无穷或 NaN 的。**先猜**一个两样都没有的缩放系数。

# %%
my_scale = None


# %%
def scaled_gradients(scale, dtype=torch.float16):
    """The gradient of the logits and of all weights, for a loss times ``scale``."""
    found, (tokens, targets) = [], model.story_tokens(64, 32, seed=1000)
    net.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        logits = net(tokens)
        logits.register_hook(found.append)
        loss = model.loss(logits, targets)
    (loss * scale).backward()
    return found[0], flat([weight.grad for weight in net.parameters()])


optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(100):
    optimizer.zero_grad()
    model.loss(net((batch := model.story_tokens(4, 32, seed=step))[0]), batch[1]).backward()
    optimizer.step()

# %%
right, scales = scaled_gradients(1, torch.float32), [2.0**power for power in range(-9, 31, 3)]
zeros, broken, wrong = [], [], []
for scale in scales:
    logits, weights = scaled_gradients(scale)
    zeros.append(((logits == 0) & (right[0] != 0)).float().mean().item())
    broken.append((~weights.isfinite()).float().mean().item())
    wrong.append(off(weights / scale, right[1]))
names = (
    {"en": "logits: became zero", "zh": "logits：变成零"},
    {"en": "weights: inf or NaN", "zh": "权重：inf 或 NaN"},
)
widgets.show(
    curves.curves(
        [
            Series(names[0], scales, zeros, points=True),
            Series(names[1], scales, broken, points=True),
        ],
        title={"en": "Gradients lost, by loss scale", "zh": "丢掉的梯度与缩放系数"},
        log_x=True,
        x_name={"en": "loss scale", "zh": "缩放系数"},
        y_format=format_share,
        badge="measured",
        language=LANGUAGE,
    )
)
print(
    f"{my_scale = }\noff the fp32 gradient:",
    *(f"2^{log2(scale):.0f}: {error:.3f}" for scale, error in list(zip(scales, wrong))[1::2]),
    sep="  ",
)

# %% [markdown]
# There is a window, and more tokens move it to the right. So the scale is found by trying: double it now and then, halve it when an infinity turns up, and throw that step away. This is **dynamic loss scaling**, and `torch.amp.GradScaler` does it. bf16 needs none of it: its range is that of fp32.

# %% [markdown] lang="zh" of="d349e20a"
# 可用的是中间一个窗口，token 越多，它越靠右。所以缩放系数要靠试：隔一阵加倍；一出现无穷就减半，并作废那一步。这叫动态损失缩放（dynamic loss scaling），由 `torch.amp.GradScaler` 来做。bf16 完全用不着，它的范围与 fp32 相同。

# %% [markdown] sections="S3, 19.2.3"
# ## An overflow on one rank
#
# The loop of S3 on two ranks with DDP: `scale`, backward, `unscale_`, clip, `step`, `update`. In step 3, rank 1 meets a bad batch: its loss is multiplied by a million. A communication hook looks at each rank's own gradients just before the all-reduce. **Predict.** Rank 0 saw nothing unusual. Does it take step 3?

# %% [markdown] lang="zh" of="9c013692"
# ## 一个 rank 溢出
#
# 在两个 rank 上用 DDP 跑 S3 的循环：`scale`、反向、`unscale_`、裁剪、`step`、`update`。第 3 步里 rank 1 遇到一批坏数据：它的损失被乘上一百万。通信钩子在 all-reduce 之前看一眼每个 rank 自己的梯度。**先猜**：rank 0 没看到什么异常，第 3 步它走不走？

# %%
rank_0_takes_step_3 = None


# %%
def overflow(num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    ddp, rank, own, log = DDP(model.Transformer(2, 32, 2, max_len=32)), dist.get_rank(), [], []

    def look(group, bucket):
        own.append(bool(bucket.buffer().isfinite().all()))
        return allreduce_hook(group, bucket)

    ddp.register_comm_hook(None, look)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=2 * step + rank)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model.loss(ddp(tokens), targets) * (1e6 if (step, rank) == (3, 1) else 1)
        scale, before = scaler.get_scale(), flat(ddp.parameters())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=1.0)
        scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
        log.append(
            (
                scale,
                own[-1],
                norm.isfinite().item(),
                not torch.equal(before, flat(ddp.parameters())),
            )
        )
    return log, flat(ddp.parameters())


# %%
run = lab.launch(overflow, 8, ranks=2, backend="gloo", timeout_s=40)
print(
    f"{rank_0_takes_step_3 = }\nstep rank   scale   own gradients finite   after all-reduce   stepped"
)
for step, both in enumerate(zip(run[0][0], run[1][0])):
    for rank, (scale, own, reduced, stepped) in enumerate(both):
        print(f"{step:4} {rank:4} {scale:7.0f}   {own!s:>20} {reduced!s:>18} {stepped!s:>9}")
print("weights of both ranks the same:", torch.equal(run[0][1], run[1][1]))

# %% [markdown]
# Infinity plus anything is infinity or NaN. So the all-reduce of the gradients carries the news to everybody, and all skip, and all halve, without one extra message. Nothing is rolled back ("all GPUs roll back", says section 19.2.3): the step has not been made yet.
#
# ### Sharded gradients: the others must be told
#
# With ZeRO and FSDP each rank gets the sum of its own **part** of the gradient only (chapters 06 and 07). Then an infinity reaches just the rank that owns it. By hand: a reduce-scatter, a step on this rank's slice of the masters, an all-gather. In step 2 one element, in the slice of rank 1, overflows. Once without a word between the ranks, once with one all-reduce (MAX) of one number.

# %% [markdown] lang="zh" of="862a48d4"
# 无穷加上任何数，不是无穷就是 NaN。所以梯度的 all-reduce 自己就把消息带给了所有人：大家都跳过，都减半，一条额外的消息也不用发。也没有什么要“回滚”的（19.2.3 节说“所有 GPU 回滚”）：这一步根本还没走。
#
# ### 梯度分片之后必须互相通知
#
# ZeRO 和 FSDP 里，每个 rank 只拿到梯度中属于自己**那一段**的和（第 06、07 章），无穷也就只到达拥有它的那个 rank。下面手写：reduce-scatter，各自更新主权重里自己的那一段，再 all-gather。第 2 步里，有一个落在 rank 1 那一段里的元素溢出。一遍不通气，一遍用一次只含一个数的 all-reduce（MAX）通气。


# %%
def sharded(agree, num_steps):
    import torch
    import torch.distributed as dist
    from labkit import model

    torch.manual_seed(0)
    (rank, size), scale, log = (dist.get_rank(), dist.get_world_size()), 2.0**12, []
    net = model.Transformer(2, 32, 2, max_len=32)
    masters = flat(net.parameters()).chunk(size)[rank].clone()
    for step in range(num_steps):
        tokens, targets = model.story_tokens(4, 32, seed=size * step + rank)
        net.zero_grad()
        (scale * model.loss(net(tokens), targets)).backward()
        whole, part = flat([weight.grad for weight in net.parameters()]), torch.empty_like(masters)
        if step == 2:
            whole[-1] = float("inf")
        dist.reduce_scatter_single(part, whole)
        found_inf = torch.tensor(float(not part.isfinite().all()))
        if agree:
            dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        log.append((scale, bool(found_inf)))
        if found_inf:
            scale /= 2
        else:
            masters -= 0.1 * part / scale / size
        dist.all_gather_single(whole, masters)
        torch.nn.utils.vector_to_parameters(whole, net.parameters())
    return log, whole


# %%
runs = {
    agree: lab.launch(sharded, agree, 5, ranks=2, backend="gloo", timeout_s=40)
    for agree in (False, True)
}
print("step   alone: rank 0        rank 1   agreed: rank 0         rank 1")
for step in range(5):
    cells = [run[rank][0][step] for run in runs.values() for rank in range(2)]
    print(f"{step:4} ", *(f"{scale:10.0f} {'skip' if found else 'step'}" for scale, found in cells))
torch.manual_seed(0)
start = flat(model.Transformer(2, 32, 2, max_len=32).parameters())
moved = [run[0][1] - start for run in runs.values()]
print(f"alone, what the training moved is off by {format_share(off(*moved))}")

# %% [markdown]
# Alone, rank 0 updates its half of the model in step 2 and rank 1 does not. From then on their scales differ, and every sum adds gradients of two scales: in each half of the model the two ranks have unequal weight, and nothing says so. One number cures it. FSDP2 sends it by itself; here an infinity stands in the slice of rank 1 only, and plain `GradScaler` is used. (For the older FSDP1 there is `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`.)

# %% [markdown] lang="zh" of="d74b6d74"
# 不通气时，第 2 步里 rank 0 更新了它那一半模型，rank 1 没有。从此两边的缩放系数不同，每次求和都把两种系数的梯度加在一起：在模型的每一半里，两个 rank 的分量都不相等，而且没有任何提示。一个数就能治好。FSDP2 会自己发这个数：下面只在 rank 1 的那一段里放一个无穷，用的是普通的 `GradScaler`。（更早的 FSDP1 则有 `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`。）


# %%
def fsdp2_agrees():
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(torch.nn.Linear(8, 4), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(net(torch.ones(2, 8)).sum()).backward()
    if dist.get_rank() == 1:
        net.weight.grad.to_local()[0, 0] = float("inf")
    with traffic.count() as counted:
        scaler.step(optimizer), scaler.update()
    return f"scale {scaler.get_scale():.0f} afterwards; {dict(counted.calls)}, {counted.payload_bytes.total()} bytes"


for rank, words in enumerate(lab.launch(fsdp2_agrees, ranks=2, backend="gloo", timeout_s=40)):
    print(f"rank {rank}: {words}")

# %% [markdown] sections="10.2.3, 19.4.2"
# ## Accumulation equals the big batch
#
# A backward adds to `.grad`. So a batch can be taken in microbatches, one after the other: each loss divided by their number, one update at the end. Sections 10.2.3 and 19.4.2 say that this equals the big batch. On N ranks: DDP averages over the ranks, and all but the last microbatch go into `no_sync` (chapter 03).
#
# 16 sequences on 1, 2 and 4 ranks, in 1, 2 and 4 microbatches, against one process with all 16. A small difference may be rounding, or a small mistake: so the same in fp64. **Predict** the order of magnitude of both differences.

# %% [markdown] lang="zh" of="7e593577"
# ## 累积等于大批次
#
# 反向是往 `.grad` 上加的。所以一批数据可以拆成几个微批次（microbatch）先后算：每个损失除以微批次的个数，最后更新一次。10.2.3 和 19.4.2 两节说这等价于大批次。有 N 个 rank 时，DDP 负责在 rank 间求平均，除最后一个微批次外都放进 `no_sync`（第 03 章）。
#
# 16 条序列，分给 1、2、4 个 rank，各拆成 1、2、4 个微批次，与一个进程一次算完 16 条比较。很小的差别可能是舍入误差，也可能是个小错，所以再用 fp64 算一遍。**先猜**两种差别各是什么数量级。

# %%
my_difference = {"fp32": None, "fp64": None}


# %%
def accumulate(num_microbatches, dtype, quiet=True):
    import contextlib
    import torch
    import torch.distributed as dist
    from labkit.measure import memory, traffic
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    ddp = DDP(model.Transformer(2, 32, 2, max_len=32).to(dtype))
    mine = (
        part.chunk(dist.get_world_size())[dist.get_rank()] for part in model.story_tokens(16, 32)
    )
    microbatches = list(zip(*(part.chunk(num_microbatches) for part in mine)))
    held = memory.Activations(ddp.parameters())
    with traffic.count() as counted:
        for number, (tokens, targets) in enumerate(microbatches, start=1):
            last = number == num_microbatches
            with ddp.no_sync() if quiet and not last else contextlib.nullcontext():
                with held.chunk(number):
                    loss = model.loss(ddp(tokens), targets) / num_microbatches
                loss.backward()
    return (
        flat([weight.grad for weight in ddp.parameters()]),
        held.peak_bytes,
        counted.payload_bytes["all_reduce"],
    )


def both_types(num_microbatches):
    return [
        accumulate(num_microbatches, dtype) for dtype in (torch.float32, torch.float64)
    ], accumulate(num_microbatches, torch.float32, quiet=False)


def table(counts):
    return {num: both_types(num) for num in counts}


# %%
found = {
    ranks: lab.launch(table, (1, 2, 4), ranks=ranks, backend="gloo", timeout_s=40)[0]
    for ranks in (1, 2, 4)
}
(whole32, _, _), (whole64, _, _) = found[1][1][0]  # one process, one microbatch: the big batch
print(
    f"{my_difference = }\nranks microbatches   off it in fp32   in fp64   kept at once   sent, no_sync   without"
)
for ranks, rows in found.items():
    for num, ((single, double), loud) in rows.items():
        print(
            f"{ranks:5} {num:12} {off(single[0], whole32):16.1e} {off(double[0], whole64):9.1e} "
            f"{format_bytes(single[1]):>14} {format_bytes(single[2]):>15} {format_bytes(loud[2]):>9}"
        )

# %% [markdown]
# In fp64 the difference is some $10^8$ times smaller, as the gap between two numbers is ($2^{29}$). A wrong formula would stay as wrong as it was. So it is equal, and the activations kept at one time fall with the size of a microbatch. (One rank hands its gradients to the all-reduce as well; nothing travels.)
#
# ### Where it is not equal
#
# Three things break it. First, layers that look at the whole batch. BatchNorm normalises with the mean and variance of what it is given: four microbatches, four means. LayerNorm looks at one token.

# %% [markdown] lang="zh" of="9451ae9c"
# 换成 fp64，差别小了约 $10^8$ 倍，两种格式的间隔也差这么多（$2^{29}$ 倍）。要是公式错了，换什么格式都一样错。所以确实相等；而同一时刻留着的激活随微批次变小。（只有一个 rank 时也照样把梯度交给 all-reduce，只是什么都不用传。）
#
# ### 什么时候不相等
#
# 有三种情形会破坏它。第一，有的层要看整批数据。BatchNorm 用拿到的数据算均值和方差来归一化：四个微批次就有四组均值。LayerNorm 只看一个 token。

# %%
for norm in (torch.nn.LayerNorm, torch.nn.BatchNorm1d):
    grads = []
    for num in (1, 4):
        torch.manual_seed(0)
        small = torch.nn.Sequential(torch.nn.Linear(8, 16), norm(16), torch.nn.Linear(16, 1))
        x, y = torch.randn(32, 8), torch.randn(32, 1)
        for part, want in zip(x.chunk(num), y.chunk(num)):
            (F.mse_loss(small(part), want) / num).backward()
        grads.append(flat([weight.grad for weight in small.parameters()]))
    print(f"{norm.__name__:<12} accumulated, off the big batch: {off(*reversed(grads)):.1e}")

# %% [markdown]
# Second, unequal microbatches: the mean of means of chapter 03, and with text nobody sees it, because the number of *sequences* is equal. Passages have different lengths and are padded; the loss is the mean over real tokens. Two ranks, two microbatches of four sequences each; the lengths are what differs. **Predict** how far the usual formula is off the mean over all tokens.

# %% [markdown] lang="zh" of="71dabb08"
# 第二，微批次不等大：这就是第 03 章的“平均值的平均值”。文本训练时很难察觉，因为*序列*的条数是相等的。各段长短不一，要补齐（padding），损失只对真正的 token 求平均。下面有两个 rank，各两个微批次，每个四条序列，只是长度不同。**先猜**通常的写法与全体 token 的平均差多少。

# %%
my_error = None


# %%
def padded(num_sequences, length, seed):
    """Sequences of 32 tokens, of which ``length`` are real; the targets of the others are -100, which no loss counts."""
    tokens, targets = model.story_tokens(num_sequences, 32, seed=seed)
    targets = targets.clone()
    targets[:, length:] = -100
    return tokens, targets


def mean_of_means(lengths):
    """Each rank takes its row of ``lengths``, one microbatch per length, in the usual way."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    ddp, mine = DDP(model.Transformer(2, 32, 2, max_len=32)), lengths[dist.get_rank()]
    for number, length in enumerate(mine):
        tokens, targets = padded(4, length, seed=10 * dist.get_rank() + number)
        (
            model.loss(ddp(tokens), targets) / len(mine)
        ).backward()  # every one reduced: only bytes are wasted
    return flat([weight.grad for weight in ddp.parameters()])


# %%
def all_tokens(lengths):
    """One process, one mean over every real token."""
    torch.manual_seed(0)
    whole = model.Transformer(2, 32, 2, max_len=32)
    batches = [
        padded(4, length, seed=10 * rank + number)
        for rank, row in enumerate(lengths)
        for number, length in enumerate(row)
    ]
    tokens, targets = map(torch.cat, zip(*batches))
    model.loss(whole(tokens), targets).backward()
    return flat([weight.grad for weight in whole.parameters()])


print(f"{my_error = }")
for lengths in (((32, 32), (32, 32)), ((32, 24), (16, 8)), ((32, 32), (32, 2))):
    grad = lab.launch(mean_of_means, lengths, ranks=2, backend="gloo", timeout_s=40)[0]
    print(
        f"real tokens per sequence {lengths}: off by {format_share(off(grad, all_tokens(lengths)))}"
    )

# %% [markdown]
# The cure is one number from each rank, and the first exercise.
#
# Third, the type of the sum. When the running sum is much larger than what is added, bf16 loses the small one. So DeepSpeed and Megatron can keep a **main gradient** in fp32. Here real gradients of up to 256 microbatches are rounded to bf16 and added up in bf16, or in fp32, and held against the sum of the unrounded ones in fp64.

# %% [markdown] lang="zh" of="956b2524"
# 治法是每个 rank 出一个数，这就是第一道练习。
#
# 第三，累加所用的类型。累加的和比要加的数大得多时，bf16 会把小的那个丢掉。所以 DeepSpeed 和 Megatron 都能另存一份 fp32 的主梯度（main gradient）。下面取多达 256 个微批次的真实梯度，先舍入成 bf16，再分别用 bf16 和 fp32 累加，与未舍入的梯度用 fp64 求的和比较。


# %%
def microbatch_gradients(num_microbatches):
    """Gradients of one weight matrix of the net that was trained above, in fp32."""
    for number in range(num_microbatches):
        net.zero_grad()
        tokens, targets = model.story_tokens(2, 32, seed=5000 + number)
        model.loss(net(tokens), targets).backward()
        yield net.layers[1].up.weight.grad.clone()


# %%
types, errors = {"bf16 into bf16": torch.bfloat16, "bf16 into fp32": torch.float32}, []
sums, exact = {name: 0 for name in types}, 0
for number, grad in enumerate(microbatch_gradients(256), start=1):
    exact = exact + grad.double()
    sums = {name: total + grad.bfloat16().to(types[name]) for name, total in sums.items()}
    if number & (number - 1) == 0:  # a power of two
        errors.append((number, *(off(total, exact) for total in sums.values())))
numbers, *columns = zip(*errors)
widgets.show(
    curves.curves(
        [
            Series({"en": name, "zh": name.replace("into", "累加到")}, numbers, column, points=True)
            for name, column in zip(types, columns)
        ],
        title={"en": "Error of an accumulated gradient", "zh": "累积梯度的误差"},
        log_x=True,
        log_y=True,
        x_name={"en": "microbatches", "zh": "微批次数"},
        badge="measured",
        language=LANGUAGE,
        y_name={"en": "relative to fp64", "zh": "相对于 fp64"},
    )
)

# %% [markdown]
# In bf16 the error grows with the number of microbatches. In fp32 the roundings of the parts average out instead, and the sum is better than any part.

# %% [markdown] lang="zh" of="fa86dcfe"
# 用 bf16 累加，误差随微批次数增长。用 fp32 累加则相反：各部分的舍入误差互相抵消，总和比任何一个部分都准。

# %% [markdown] sections="S9"
# ## Clipping, once and at the right place
#
# Section S9 accumulates, clips and steps. Its loop has a slip at the end of an epoch: ten microbatches, an update every four. Which gradients are in which update? One weight per microbatch shows it:

# %% [markdown] lang="zh" of="93612733"
# ## 裁剪：只做一次，放对地方
#
# S9 节先累积，再裁剪，再更新。它的循环在 epoch 结尾有个疏漏：十个微批次，每四个更新一次。哪些梯度进了哪次更新？给每个微批次配一个权重，一看便知：

# %%
weight = torch.zeros(10, requires_grad=True)
for epoch in range(2):
    for i in range(10):
        (weight[i] / 4).backward()  # the gradient of microbatch i
        if (i + 1) % 4 == 0:
            print(
                f"epoch {epoch}, update with microbatches",
                weight.grad.nonzero().flatten().tolist(),
                f"sum of their shares {weight.grad.sum():g}",
            )
            weight.grad = None

# %% [markdown]
# The last two wait for the next epoch and make its first update half as large again. So step on the last microbatch as well, divided by as many as there were, or drop the rest.
#
# Where does the clipping go? The order of S3 and S9 together: all microbatches, the all-reduce, `unscale_`, clip, `step`. Three other orders, two ranks, four microbatches, fp16 with a scale of 4096, a limit of 0.5 for the norm. **Predict** the length of the gradient that reaches the optimizer in each.

# %% [markdown] lang="zh" of="ee1b6b83"
# 最后两个等到下一个 epoch，让那里的第一次更新大了一半。所以到了最后一个微批次也要更新，除数用实际的个数；不然就把余下的丢掉。
#
# 裁剪放在哪里？把 S3 和 S9 合起来，次序是：所有微批次、all-reduce、`unscale_`、裁剪、`step`。另外再试三种次序：两个 rank，四个微批次，fp16，缩放系数 4096，范数上限 0.5。**先猜**每种次序下，到达优化器的梯度有多长。

# %%
my_lengths = {
    "right": None,
    "before unscale_": None,
    "each microbatch": None,
    "before the all-reduce": None,
}


# %%
def clipped(order):
    import torch
    import torch.distributed as dist
    from labkit import model

    torch.manual_seed(0)
    local = model.Transformer(2, 32, 2, max_len=32)
    weights, size, seen = list(local.parameters()), dist.get_world_size(), []
    optimizer, scaler = (
        torch.optim.SGD(weights, lr=0.1),
        torch.amp.GradScaler("cpu", init_scale=4096.0),
    )

    def clip():
        seen.append(torch.nn.utils.clip_grad_norm_(weights, max_norm=0.5).item())

    for number in range(4):
        tokens, targets = model.story_tokens(4, 32, seed=4 * dist.get_rank() + number)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model.loss(local(tokens), targets) / 4
        (loss if order == "each microbatch" else scaler.scale(loss)).backward()
        if order == "each microbatch":
            clip()
    if order == "before the all-reduce":
        scaler.unscale_(optimizer), clip()
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= size
    if order == "right":
        scaler.unscale_(optimizer), clip()
    if order == "before unscale_":
        clip(), scaler.unscale_(optimizer)
    return seen, flat([weight.grad for weight in weights])


# %%
found = {
    order: lab.launch(clipped, order, ranks=2, backend="gloo", timeout_s=40) for order in my_lengths
}
right = found["right"][0][1]
print(
    f"{my_lengths = }\n{'order':<22} {'length':>8}   off the right one   norms that clipping saw: rank 0 | rank 1"
)
for order, run in found.items():
    norms = " | ".join(" ".join(f"{norm:.3f}" for norm in seen) for seen, _ in run)
    print(f"{order:<22} {run[0][1].norm():8.2g} {off(run[0][1], right):15.2f}       {norms}")

# %% [markdown]
# After the all-reduce both ranks see one norm, the same. Before `unscale_` it is 4096 times too large, so everything is clipped and the update nearly vanishes. The last two clip parts, each by a factor of its own, and their sum is another gradient.
#
# Where the gradient is sharded, a rank knows the norm of its slice only. The squares add up, the norms do not: one more all-reduce of one number.

# %% [markdown] lang="zh" of="37de35ec"
# all-reduce 之后，两个 rank 看到的是同一个范数。放在 `unscale_` 之前，它大了 4096 倍，什么都会被裁，更新几乎归零。最后两种是分别裁各个部分，各乘各的系数，加起来就是另一个梯度了。
#
# 梯度分片之后，每个 rank 只知道自己那一段的范数。能相加的是平方，不是范数：所以还要一次只含一个数的 all-reduce。

# %%
slices = right.chunk(2)
norms = torch.stack([each.norm() for each in slices])
print(
    f"norms of the slices: {norms[0]:.4f} {norms[1]:.4f}, their sum: {norms.sum():.4f}; "
    f"root of the sum of squares: {norms.square().sum().sqrt():.4f}, whole: {right.norm():.4f}"
)

# %% [markdown] sections="19.4.2"
# ## Activation checkpointing
#
# A block keeps about 16 numbers per token and unit of width for its backward. Its input is one of them. **Checkpointing** keeps the input only and runs the forward again when the backward arrives. By hand, with the meter from above (`meter.Activations`) inside, so that the recomputation is counted as well:

# %% [markdown] lang="zh" of="1e3808f9"
# ## 激活检查点
#
# 一个 block 为反向留下的东西，按每个 token、每单位宽度算，约有 16 个数，输入只占其中一个。激活检查点（activation checkpointing）只留输入，等反向走到这里再做一遍前向。下面手写一个，把上面用过的计量器（`meter.Activations`）放在里面，重算时留下的也一并计入：


# %%
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, held, x):
        ctx.block, ctx.held = block, held
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), ctx.held.chunk("again"):
            y = ctx.block(x)
        y.backward(grad)
        return None, None, x.grad


# %% [markdown]
# Eight blocks, the first k of them checkpointed. Two formulas, before anything runs. Kept when the forward ends: k inputs and the rest whole. The peak of the whole step: when the backward is at block i, it needs block i in full and what is still held of the blocks before it. **Predict.** Is it worth checkpointing all eight?

# %% [markdown] lang="zh" of="e0083eec"
# 八个 block，对前 k 个做检查点。运行之前先有两个公式。前向结束时留着的：k 个输入，加上其余 block 的全部。整步的峰值：反向走到第 i 个 block 时，需要它的全部，外加它前面各 block 还留着的。**先猜**：八个全做检查点，值不值？

# %%
my_number_of_checkpoints = None
L, B, T, D, H = 8, 4, 64, 64, 4
whole, inputs = states.block_activation_bytes(B, T, D, H), B * T * D * 4
torch.manual_seed(0)
blocks, batch = torch.nn.ModuleList(model.Block(D, H) for _ in range(L)), torch.randn(B, T, D)


def formulas(k):
    """Bytes kept at the end of the forward, and the peak of the step."""
    held = [inputs if i < k else whole for i in range(L)]
    return sum(held), max(sum(held[:i]) + whole for i in range(L))


# %%
def step(run, k=L):
    """Kept bytes, peak bytes and gradients of one forward and backward; run(block, held, x) runs the first k blocks."""
    held, x = memory.Activations(blocks.parameters()), batch.clone().requires_grad_()
    blocks.zero_grad()
    with held.chunk("forward"):
        for i, block in enumerate(blocks):
            x = run(block, held, x) if i < k else block(x)
        loss = x.sum()  # keeps nothing
    kept = held.num_bytes
    loss.backward()
    return kept, held.peak_bytes, flat([weight.grad for weight in blocks.parameters()])


# %%
plain, measured = step(None, 0), [step(Recompute.apply, k) for k in range(L + 1)]
predicted = [formulas(k) for k in range(L + 1)]
names = (
    {"en": "kept after forward", "zh": "前向后留着"},
    {"en": "peak of the step", "zh": "整步的峰值"},
)
widgets.show(
    curves.curves(
        [
            Series(name, range(L + 1), [row[n] for row in rows], points=rows is measured)
            for rows in (predicted, measured)
            for n, name in enumerate(names)
        ],
        title={"en": "Bytes of activations", "zh": "激活的字节"},
        y_format=format_bytes,
        x_name={"en": "blocks checkpointed", "zh": "做检查点的 block 数"},
        badge="measured / computed",
        language=LANGUAGE,
    )
)
gap = max(
    abs(mine - true)
    for row, formula in zip(measured, predicted)
    for mine, true in zip(row, formula)
)
print(
    f"{my_number_of_checkpoints = }; largest difference to the formulas: {gap} bytes;",
    f"gradients the same: {all(torch.equal(row[2], plain[2]) for row in measured)}",
)

# %% [markdown]
# Equal to the byte, and not one gradient differs. The last block saves nothing: when the backward begins, its recomputation is needed at once, and in full. Seven of eight is the best, and section S4 does just that.
#
# ### torch's checkpoint, and S4
#
# `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` does the same without the extra class. (The meter cannot see into its recomputation, so only what is kept is compared.)

# %% [markdown] lang="zh" of="5f158b6d"
# 一个字节都不差，梯度也分毫不差。最后一个 block 什么也省不下：反向一开始就要用它，而且要用全部。八个里做七个最划算，S4 节正是这样做的。
#
# ### torch 的 checkpoint 与 S4
#
# `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` 做的是同一件事，不用另写类。（计量器看不到它重算的内部，所以只比较留着的字节。）

# %%
from torch.utils.checkpoint import checkpoint

theirs = step(lambda block, held, x: checkpoint(block, x, use_reentrant=False), L - 1)
print(
    f"kept: ours {format_bytes(measured[L - 1][0])}, torch's {format_bytes(theirs[0])}, without {format_bytes(plain[0])};"
    f" gradients the same: {torch.equal(theirs[2], plain[2])}"
)

# %% [markdown] sections="S4"
# S4 calls `checkpoint(layer, x)` without `use_reentrant`, and its input is data, which needs no gradient. **Predict.** Which of its five layers get a gradient?

# %% [markdown] lang="zh" of="bf79c51e"
# S4 调用 `checkpoint(layer, x)` 时没有给 `use_reentrant`，而且输入是数据，不需要梯度。**先猜**：五层里哪几层得到了梯度？

# %%
my_layers = None

# %%
import warnings


def s4(**options):
    """Which layers get a gradient, and what torch says."""
    five, x = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(5)), torch.randn(2, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i, layer in enumerate(five):
            x = checkpoint(layer, x, **options) if i < len(five) - 1 else layer(x)
    x.sum().backward()
    return [layer.weight.grad is not None for layer in five], *sorted(
        {str(each.message).partition(". ")[0] for each in said}
    )


# %%
print(f"{my_layers = }\nas in S4:", *s4(), sep="\n  ")
print("use_reentrant=False:", *s4(use_reentrant=False), sep="\n  ")

# %% [markdown]
# The old, reentrant way finds no input that needs a gradient and cuts the graph: four of five layers are never trained, with a warning and without an error. Always say `use_reentrant=False`.
#
# ### Square root of L?
#
# One can keep even fewer inputs: one per **segment** of s blocks. Then a whole segment is recomputed at once. The well-known answer is s = $\sqrt L$ (Chen et al. 2016), for a chain in which a layer keeps as much as its input. A transformer block keeps some 16 times its input. **Predict** the best s for eight blocks.

# %% [markdown] lang="zh" of="bcd983e2"
# 旧的可重入（reentrant）写法发现没有一个输入需要梯度，就把计算图断开了：五层里有四层永远得不到训练，只有警告，没有报错。所以一定要写 `use_reentrant=False`。
#
# ### 根号 L？
#
# 还可以留得更少：每**段**（segment）s 个 block 只留一个输入，重算时整段一起算。常见的答案是 s = $\sqrt L$（Chen 等，2016），前提是链上每层留下的和它的输入一样大。而 transformer 的一个 block 留下的约是输入的 16 倍。**先猜**八个 block 时最好的 s。

# %%
my_segment = None


# %%
def segments(size):
    """The peak of a step in which every segment of ``size`` blocks is checkpointed."""
    held, x = memory.Activations(blocks.parameters()), batch.clone().requires_grad_()
    with held.chunk("forward"):
        for start in range(0, L, size):
            x = Recompute.apply(torch.nn.Sequential(*blocks[start : start + size]), held, x)
    x.sum().backward()
    return held.peak_bytes


for size in (1, 2, 4, 8):
    print(
        f"s = {size}: formula {format_bytes((L // size - 1) * inputs + size * whole)}, measured {format_bytes(segments(size))}"
    )
print(f"{my_segment = }\n    L   sqrt(L)   least for this block")
for layers in (8, 32, 96, 256):
    print(f"{layers:5} {layers**0.5:9.1f} {(layers * inputs / whole) ** 0.5:10.1f}")

# %% [markdown]
# The peak is (L/s - 1) inputs and s blocks; it is least at s = $\sqrt{L \cdot input / block}$, a quarter of $\sqrt L$ for a transformer. Up to some 32 blocks it is best to checkpoint each alone.
#
# ### The time paid
#
# One more forward. A backward takes about two forwards, so 4 instead of 3 if all is recomputed, and for k of L blocks the part k/L of that. Six wide blocks and few tokens, so that arithmetic outweighs calls and memory; k = 0, 3, 6 take turns, and the best of each counts. It is time on the processor, so that other programs count less. The prediction is made from the forward and backward of the same run. **Predict** the ratio for all six.

# %% [markdown] lang="zh" of="ef551968"
# 峰值是 (L/s - 1) 个输入加 s 个 block，在 s = $\sqrt{L \cdot 输入 / block}$ 处最小，对 transformer 就是 $\sqrt L$ 的四分之一。32 个 block 以内，逐个做检查点最好。
#
# ### 付出的时间
#
# 多做一次前向。反向约等于两次前向，所以全部重算时是 4 比 3；L 个 block 里只重算 k 个，就只付其中的 k/L。下面换六个宽的 block，token 取少些，使矩阵运算的时间远大于调用和内存的开销；k = 0、3、6 轮流跑，各取最快的一次；计的是处理器时间，少受其他程序干扰。预测用的是同一次运行里测得的前向和反向时间。**先猜**六个全做时的倍数。

# %%
my_ratio = None


# %%
def paid(counts, num_tries):
    import time
    import torch
    from labkit import model
    from torch.utils.checkpoint import checkpoint

    def seconds(k):
        y, began = x, time.thread_time()
        for i, block in enumerate(chain):
            y = checkpoint(block, y, use_reentrant=False) if i < k else block(y)
        middle = time.thread_time()
        y.sum().backward()
        return middle - began, time.thread_time() - middle

    chain, x = [model.Block(256, 4) for _ in range(6)], torch.randn(2, 64, 256, requires_grad=True)
    tries = [{k: seconds(k) for k in counts} for _ in range(num_tries)]
    return {k: min((each[k] for each in tries), key=sum) for k in counts}


# %%
taken = lab.launch(paid, (0, 3, 6), 5, ranks=2, backend="gloo", timeout_s=50)[
    0
]  # two ranks: one thread each
forward, backward = taken[0]
for k, parts in taken.items():
    print(
        f"{k} of 6: measured {sum(parts) / (forward + backward):.2f}, "
        f"predicted {1 + k / 6 * forward / (forward + backward):.2f}"
    )
print(f"{my_ratio = }; the backward took {backward / forward:.2f} forwards")

# %% [markdown]
# ### The same dice again
#
# Dropout draws random numbers, and the second forward must draw the same ones. `checkpoint` saves the state of the generator for it; that can be switched off, and then the gradient belongs to another network than the loss.

# %% [markdown] lang="zh" of="ee32808d"
# ### 再掷一次，点数要一样
#
# Dropout 要抽随机数，第二次前向必须抽到同样的数。`checkpoint` 为此保存随机数生成器的状态；这可以关掉，但关掉之后，梯度和损失就不是同一个网络的了。

# %%
layer, grads = (
    torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1)),
    {},
)
for name, run in {
    "plain": layer,
    "checkpoint": lambda x: checkpoint(layer, x, use_reentrant=False),
    "state not saved": lambda x: checkpoint(
        layer, x, use_reentrant=False, preserve_rng_state=False
    ),
}.items():
    torch.manual_seed(0)
    layer.zero_grad()
    run(torch.ones(8, 64)).sum().backward()
    grads[name] = flat([weight.grad for weight in layer.parameters()])
    print(f"{name:<16} off the plain gradient: {off(grads[name], grads['plain']):.2f}")

# %% [markdown]
# ### Large models, computed
#
# For a GPT layer in 16 bits with dropout, Korthikanti et al. count $34\,sbh + 5\,as^2b$ bytes: s tokens, b sequences, h width, a heads. *Selective* recomputation repeats only the attention matrix, the term with $s^2$; flash attention never stores it. *Full* keeps the input. All layers of four models of that paper, s = 2048, b = 1, on one device (computed, not run):

# %% [markdown] lang="zh" of="68e4982a"
# ### 大模型，算出来的
#
# 对于 16 位、带 dropout 的一层 GPT，Korthikanti 等数出 $34\,sbh + 5\,as^2b$ 字节：s 个 token，b 条序列，宽 h，a 个头。选择性重算（selective）只重算注意力矩阵，即带 $s^2$ 的那一项；flash attention 根本不存它。完全重算（full）只留输入。下面是该论文中四个模型的全部层，s = 2048，b = 1，放在一个设备上（是算出来的，没有运行）：

# %%
print("model   layers   keep all   selective      full   16-bit weights")
for name, num_layers, hidden, heads in (
    ("22B", 48, 6144, 64),
    ("175B", 96, 12288, 96),
    ("530B", 105, 20480, 128),
    ("1T", 128, 25600, 160),
):
    kept = (
        num_layers * states.layer_activation_bytes(2048, 1, hidden, heads, recompute=recompute)
        for recompute in states.RECOMPUTE
    )
    weights = 2 * 12 * num_layers * hidden**2  # 12 h^2 parameters a layer
    print(
        f"{name:>5} {num_layers:8}"
        + "".join(f"{format_bytes(num):>11}" for num in kept)
        + f"{format_bytes(weights):>16}"
    )

# %% [markdown] sections="10.7.4"
# ## Everything together
#
# Exercise 10.7.4 asks how to combine distributed training with mixed precision. On two ranks: DDP, bf16 `autocast`, four microbatches with one all-reduce, all blocks but the last checkpointed, one clipping at the end. Beside it the same training without microbatches, without checkpoints, without both. **Predict** how far the two savings change a loss.

# %% [markdown] lang="zh" of="1d8f7219"
# ## 合在一起
#
# 练习 10.7.4 问：分布式训练怎样与混合精度结合。下面在两个 rank 上：DDP，bf16 的 `autocast`，四个微批次只做一次 all-reduce，除最后一个外所有 block 都做检查点，最后裁剪一次。旁边是同一个训练，但不分微批次、不做检查点，或者两样都不用。**先猜**这两种省法会让损失改变多少。

# %%
my_change = {"checkpoints": None, "microbatches": None}


# %%
def everything(num_microbatches, checkpointed, num_steps=10):
    import contextlib, functools
    import torch
    import torch.distributed as dist
    from labkit.measure import memory
    from labkit import model
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    net, losses = model.Transformer(4, 32, 2, max_len=32), []
    for block in net.layers[1:-2] if checkpointed else ():
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    ddp, optimizer = DDP(net), torch.optim.AdamW(net.parameters(), lr=3e-3)
    held = memory.Activations(net.parameters())
    for step in range(num_steps):
        batch = model.story_tokens(16, 32, seed=2 * step + dist.get_rank())
        for number, (tokens, targets) in enumerate(
            zip(*(part.chunk(num_microbatches) for part in batch)), start=1
        ):
            with contextlib.nullcontext() if number == num_microbatches else ddp.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16), held.chunk(number):
                    losses.append(model.loss(ddp(tokens), targets) / num_microbatches)
                losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
        optimizer.step(), optimizer.zero_grad()
    return held.peak_bytes, torch.stack(losses).detach().unflatten(0, (num_steps, -1)).sum(1)


# %%
rows = {
    (num, with_checkpoints): lab.launch(
        everything, num, with_checkpoints, ranks=2, backend="gloo", timeout_s=40
    )[0]
    for num in (1, 4)
    for with_checkpoints in (False, True)
}
print(
    f"{my_change = }\nmicrobatches   checkpoints   kept by a forward   loss of step 1    of step 10   largest change"
)
for (num, with_checkpoints), (kept, losses) in rows.items():
    print(
        f"{num:12} {with_checkpoints!s:>13} {format_bytes(kept):>19} {losses[0]:16.4f} {losses[-1]:13.4f} "
        f"{(losses - rows[1, False][1]).abs().max():16.1e}"
    )

# %% [markdown]
# Checkpoints change nothing at all. Microbatches change the order of the sums, and in bf16 that can be seen in the last digits, no more. The savings multiply. On a GPU the loop is the same, with `"cuda"` in `autocast`; with fp16, add the scaler.
#
# ## Exercises
#
# A check never stops the notebook. It tries your answer on real ranks, at sizes that are not shown, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. The mean over all real tokens
#
# `ddp` is a model in DDP, `microbatches` a list of (tokens, targets) of this rank, as many on every rank. Targets of -100 do not count, and a microbatch may have no others. Leave in the weights the gradient of the mean loss over **all** real tokens of all microbatches of all ranks. Send the gradients once, and keep the activations of one microbatch at a time.

# %% [markdown] lang="zh" of="5fe0e966"
# 检查点不改变任何数。微批次改变求和的次序，在 bf16 里末几位看得出来，仅此而已。两种办法省下的倍数相乘。在 GPU 上循环不变，只是 `autocast` 里写 `"cuda"`；若用 fp16，再加上 `GradScaler`。
#
# ## 练习
#
# 检查不会中断笔记本。它在真实的 rank 上、用没有展示过的规模试你的答案，并给出第一个不对的情形。每试一次，`check.hint(名字)` 会多说一点。
#
# ### 1. 对所有真正的 token 求平均
#
# `ddp` 是用 DDP 包好的模型，`microbatches` 是本 rank 的一列 (tokens, targets)，各 rank 个数相同。等于 -100 的 target 不算数，有的微批次可能全是 -100。请让权重里的梯度等于所有 rank、所有微批次中**全部**真正 token 的平均损失的梯度。梯度只能发一次，同一时刻只留一个微批次的激活。


# %%
def my_accumulate(ddp, microbatches):
    """Leaves in ddp's weights the gradient of the mean over all real tokens of all ranks."""
    ### BEGIN SOLUTION
    total = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)))
    dist.all_reduce(total)
    for number, (tokens, targets) in enumerate(microbatches, start=1):
        with contextlib.nullcontext() if number == len(microbatches) else ddp.no_sync():
            loss = F.cross_entropy(ddp(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
            (loss * dist.get_world_size() / total).backward()  # DDP divides by the number of ranks
    ### END SOLUTION


# %%
check.accumulate_tokens(my_accumulate)

# %%
check.hint("accumulate_tokens")

# %% [markdown] sections="10.7.4"
# ### 2. One step of sharded mixed precision
#
# `grad` is this rank's slice of the gradient, in fp16, already averaged over the ranks, and still multiplied by the loss scale `scale`. `master` is its slice of the weights, in fp32. Slices differ in length, and one may be empty. Make one step of SGD with learning rate `rate`, in place, on the gradient clipped to `max_norm` (the norm of the gradient of **all** ranks, without the scale). If any rank has an infinity or a NaN, nobody moves, and the scale is halved. Return the scale of the next step. Send no more than a few numbers.

# %% [markdown] lang="zh" of="2a3012b0"
# ### 2. 分片混合精度的一步
#
# `grad` 是本 rank 那一段梯度，fp16，已在各 rank 间平均过，但还乘着缩放系数 `scale`。`master` 是它那一段权重，fp32。各段长短不一，有的可能是空的。请以学习率 `rate` 原地做一步 SGD，梯度先裁剪到 `max_norm`（指**所有** rank 合起来、去掉缩放系数之后的范数）。只要有一个 rank 出现无穷或 NaN，谁都不动，缩放系数减半。返回下一步的缩放系数。发送的只能是寥寥几个数。


# %%
def my_scaled_step(master, grad, scale, rate, max_norm):
    """Updates master in place; returns the next scale."""
    ### BEGIN SOLUTION
    grad = grad.float() / scale  # in fp16 the division itself would lose the small ones
    squares = grad.square().sum()
    dist.all_reduce(squares)  # an infinity of one rank makes it infinite, or NaN, for all
    if not squares.isfinite():
        return scale / 2
    master -= rate * min(1.0, max_norm / float(squares.sqrt() + 1e-12)) * grad
    return scale
    ### END SOLUTION


# %%
check.scaled_step(my_scaled_step)

# %%
check.hint("scaled_step")

# %% [markdown]
# ### 3. Checkpoints within a budget
#
# Block i keeps `kept_bytes[i]`, among them its input, `input_bytes[i]`; checkpointed, it keeps its input only. The blocks differ. List the blocks to checkpoint such that the peak of the step is at most `budget_bytes`, recomputing as few blocks as possible; `None` if that can't be done. At most eight blocks. Your choice is run, and its live bytes are measured.

# %% [markdown] lang="zh" of="d3ad063e"
# ### 3. 在预算内做检查点
#
# 第 i 个 block 留下 `kept_bytes[i]` 字节，其中输入占 `input_bytes[i]`；做了检查点就只留输入。各个 block 大小不同。请列出要做检查点的 block，使整步的峰值不超过 `budget_bytes`，且重算的 block 尽量少；做不到就返回 `None`。最多八个 block。你的选择会真的运行，并实测它占用的字节。


# %%
def my_blocks(kept_bytes, input_bytes, budget_bytes):
    """The numbers of the blocks to checkpoint, as a list; or None."""
    ### BEGIN SOLUTION
    blocks = range(len(kept_bytes))
    for num in range(len(kept_bytes) + 1):
        for chosen in itertools.combinations(blocks, num):
            held = [input_bytes[i] if i in chosen else kept_bytes[i] for i in blocks]
            if max(sum(held[:i]) + kept_bytes[i] for i in blocks) <= budget_bytes:
                return list(chosen)
    return None
    ### END SOLUTION


# %%
check.checkpoint_blocks(my_blocks)

# %%
check.hint("checkpoint_blocks")

# %% [markdown]
# ## Summary
#
# - bf16: the range of fp32, 8 binary digits. fp16: 11 digits, a small range. An update under half a gap is lost; an fp32 master keeps it.
# - `autocast` keeps the weights in fp32: the states are not smaller, the messages neither; activations are.
# - fp16 needs a loss scale, found by trying. A full all-reduce tells every rank of an infinity; with sharded gradients one number must do it.
# - Accumulation equals the big batch, if the loss is divided by what is in the whole batch, and no layer looks across the batch. Add up in fp32.
# - All microbatches, all-reduce, unscale, clip, step. The norm is that of the whole gradient.
# - A checkpointed block keeps its input, about a sixteenth; the price is one more forward. The last block gains nothing, and `use_reentrant=False` always.
#
# ## Sources
#
# - Mixed precision, masters and loss scaling: Micikevicius et al. 2017, [arXiv 1710.03740](https://arxiv.org/abs/1710.03740)
# - bf16 in training: Kalamkar et al. 2019, [arXiv 1905.12322](https://arxiv.org/abs/1905.12322)
# - Checkpointing: Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, [arXiv 1604.06174](https://arxiv.org/abs/1604.06174)
# - Activations of a transformer: Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - States by recipe: Rajbhandari et al. 2020, *ZeRO*, [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
#
# Where you stand:

# %% [markdown] lang="zh" of="2740ebe4"
# ## 小结
#
# - bf16 的范围与 fp32 相同，有 8 位二进制有效数字；fp16 有 11 位，范围却小。不到半个间隔的更新会丢失，fp32 主权重能留住它。
# - `autocast` 让权重保持 fp32：状态不会变小，消息也不会，变小的是激活。
# - fp16 需要损失缩放，系数靠试出来。完整的 all-reduce 会把无穷告诉每个 rank；梯度分片时，要专门发一个数。
# - 累积等于大批次，条件是：损失除以整批的数目，而且没有哪一层要跨样本看整批。累加用 fp32。
# - 次序是：所有微批次、all-reduce、去掉缩放、裁剪、更新。范数指整个梯度的范数。
# - 做了检查点的 block 只留输入，约十六分之一；代价是多一次前向。最后一个 block 做了也白做；`use_reentrant=False` 一定要写。
#
# ## 出处
#
# - 混合精度、主权重与损失缩放：Micikevicius 等，2017，[arXiv 1710.03740](https://arxiv.org/abs/1710.03740)
# - 用 bf16 训练：Kalamkar 等，2019，[arXiv 1905.12322](https://arxiv.org/abs/1905.12322)
# - 检查点：Chen 等，2016，*Training Deep Nets with Sublinear Memory Cost*，[arXiv 1604.06174](https://arxiv.org/abs/1604.06174)
# - transformer 的激活：Korthikanti 等，2022，*Reducing Activation Recomputation in Large Transformer Models*，[arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - 各配方的状态：Rajbhandari 等，2020，*ZeRO*，[arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
#
# 你做到了哪里：

# %%
check.status()
