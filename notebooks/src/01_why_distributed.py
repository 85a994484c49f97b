# ---
# jupyter:
#   labkit:
#     sections: ["8.1.1", "8.1.2", "10.1.1", "10.1.2", "10.1.3", "D-faq"]
#     needs: ["two CPU cores"]
#     minutes: 60
# ---

# %% [markdown]
# # Why distributed
#
# *Sections 8.1.1, 8.1.2, 10.1.1, 10.1.2 and 10.1.3 of the source material, and the questions at the end of its demo project. About 60 minutes. No GPU is needed.*
#
# A model is trained on many devices because one is too small, too slow, or both. This chapter writes the bill of one device, byte by byte, and reads the same bill out of real processes. Then it looks at the ways to share it: what each device holds, what it has to send, and how long it stands idle.
#
# The chapters after this one take these ways one at a time.

# %% [markdown] lang="zh" of="833255a0"
# # 为什么要分布式
#
# *对应原资料 8.1.1、8.1.2、10.1.1、10.1.2、10.1.3 各节，以及演示项目末尾的常见问题，约 60 分钟。不需要 GPU。*
#
# 模型要放到许多设备上训练，是因为一个设备太小，或者太慢，或者又小又慢。本章先给一个设备逐字节地算账，再从真实的进程里把同一份账单读出来。然后看有哪些分担的办法：每个设备存什么，要发什么，闲多久。
#
# 后面各章再把这些办法逐个展开。

# %%
import labkit as lab

lab.warm()  # starts the process that forks ranks, while the rest loads
import time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from labkit.pictures import curves
from labkit.sharding import states as sharding_states
from labkit.measure import memory
from labkit import model, widgets
from labkit.pictures.curves import Series
from labkit.planner import check
from labkit.collectives.algorithms import Move, Plan, plan, sent_bytes, validate
from labkit.units import format_bytes, format_share, format_us
from labkit.planner import need_run, strategies_run
from labkit.planner.models import DEVICES, MODELS, TFLOPS

LANGUAGE = "en"
check.language(LANGUAGE)

# %% [markdown] sections="8.1.1"
# ## The memory bill
#
# Section 8.1.1 lists models, the size of their weights in 16 bit, and whether an A100 with 80 GB can train them. LLaMA-7B: 14 GB, "barely (needs optimizing)". But training holds more than weights. The usual recipe, mixed precision with Adam, keeps for every parameter: itself and its gradient in 16 bit, and three numbers in fp32: a copy of the parameter that the updates are added to, and Adam's two moments. All this together is called the **model states**.
#
# **Predict.** How many GB of model states does a model of 7 billion parameters have with this recipe?

# %% [markdown] lang="zh" of="8c3f4f39"
# ## 显存账单
#
# 8.1.1 节列了几个模型、它们 16 位权重的大小，以及一块 80 GB 的 A100 能否训练。LLaMA-7B：14 GB，“勉强（需优化）”。可是训练时要存的不只是权重。最常用的配方是混合精度加 Adam，每个参数都要存：16 位的参数本身和梯度，再加三个 fp32 的数，即参数的一份副本（更新就加在它上面）和 Adam 的两个矩。这些合起来叫模型状态（model states）。
#
# **先猜。** 按这个配方，70 亿参数的模型有多少 GB 的模型状态？

# %%
my_state_gb = None

# %%
kinds = sharding_states.state_bytes(7e9, recipe_name="mixed")
textbook = {"parameter": 14e9, "gradient": 14e9, "exp_avg": 28e9, "exp_avg_sq": 28e9}
print(f"{my_state_gb = }\n\n{'':12} computed   section 8.1.1")
for kind, num_bytes in [*kinds.items(), ("together", sum(kinds.values()))]:
    said = sum(textbook.values()) if kind == "together" else textbook.get(kind, 0)
    print(f"{kind:<12} {format_bytes(num_bytes):>8} {format_bytes(said):>15}")

# %% [markdown]
# The section adds 10 GB of activations and says 94 GB; the fp32 copy (`master`), which section 8.5 of the same chapter does count, is missing. The states alone exceed 80 GB: without sharding or offloading, this recipe does not train 7B on that card. Now the whole list, with the parameter counts as published ("7B" is 6.7 billion). `ZeRO 3` is the fewest cards if all states are cut in parts; activations are not in it yet.

# %% [markdown] lang="zh" of="c66ae87d"
# 那一节再加 10 GB 激活，得出 94 GB；它漏了 fp32 副本（`master`），而同一章的 8.5 节是算了的。单是状态就超过 80 GB：不分片、不卸载的话，这块卡用这个配方训练不了 7B。下面是整张表，参数量取论文公布的数（“7B”是 67 亿）。`ZeRO 3` 一列是把所有状态切开时最少要几块卡；激活还没算进去。

# %%
card = DEVICES["A100 80 GB"]
print(f"{'':<13} weights    states   on one A100 80 GB   ZeRO 3")
for each in MODELS.values():
    states = sum(sharding_states.state_bytes(each.params).values())
    verdict = (
        f"{format_share(states / card)} of it"
        if states < card
        else f"{states / card:.1f} x too large"
    )
    print(
        f"{each.name:<12} {format_bytes(2 * each.params):>8} {format_bytes(states):>9} {verdict:>19}"
        f" {sharding_states.ranks_needed(each.params, card, 3):>8}"
    )

# %% [markdown]
# ### Is it true?
#
# Sixteen bytes per parameter is a claim, so look. Two ranks train a small transformer by four recipes: plain torch in fp32 with Adam, the same with SGD and momentum, everything in bf16, and the mixed recipe as DeepSpeed implements it. After a backward, `meter.shards` lists every tensor that model, engine and optimizer hold.

# %% [markdown] lang="zh" of="2546ffa5"
# ### 真是这样吗？
#
# 每个参数十六字节只是一种说法，得看一看。两个 rank 用四种配方训练一个小 transformer：普通 torch 的 fp32 加 Adam、fp32 加带动量的 SGD、全用 bf16，以及 DeepSpeed 实现的混合精度配方。反向之后，`meter.shards` 列出模型、引擎和优化器手里的每个张量。


# %%
def four_recipes():
    return {
        recipe: need_run.train(recipe, 1, False) for recipe in ("fp32", "sgd", "bf16", "mixed")
    }


run = lab.launch(four_recipes, ranks=2, backend="gloo", timeout_s=50)
for recipe, result in run[0].items():
    held, num_params = result["shards"].bytes_by("kind"), result["num_params"]
    listed = " + ".join(
        f"{kind} {num_bytes[0] / num_params:.3g}" for kind, num_bytes in held.items()
    )
    total = sum(num_bytes[0] for num_bytes in held.values()) / num_params
    print(
        f"{recipe:<5}: {total:.3f} bytes per parameter, by theory {sharding_states.recipe(recipe).bytes_per_parameter}"
        f"\n       {listed}"
    )

# %% [markdown]
# Exactly what theory says; `step` is Adam's counter, 4 bytes per tensor. Two recipes come to 16 by different ways, so halving the bits saves no model states as long as fp32 copies are kept. It saves activations and traffic.
#
# ### Activations
#
# What the forward keeps for the backward. Section 8.1.1 takes $b\,s\,h\,L \cdot 4$ bytes: 4 for each token, layer and unit of width. A layer keeps more than one tensor. Korthikanti et al. (2022) count, in 16 bit with dropout, $34\,s\,b\,h$ bytes per layer, and $5\,a\,s^2 b$ more if the attention matrix is stored ($a$ heads). Here is such a block, with a dropout that keeps its mask in one byte per element, as a GPU does:

# %% [markdown] lang="zh" of="c69e375c"
# 与理论完全一致；`step` 是 Adam 的步数计数，每个张量 4 字节。有两种配方都是 16，来路却不同：只要还留着 fp32 的副本，位数减半并不能省下模型状态。省的是激活和通信量。
#
# ### 激活
#
# 激活是前向为反向留下的东西。8.1.1 节取 $b\,s\,h\,L \cdot 4$ 字节：每个 token、每层、每个宽度单位 4 字节。可是一层留下的张量不止一个。Korthikanti 等（2022）按 16 位、带 dropout 来数：每层 $34\,s\,b\,h$ 字节；如果存下注意力矩阵，再加 $5\,a\,s^2 b$（$a$ 个头）。下面就是这样的一块，其中的 dropout 像 GPU 上那样，每个元素用一字节存掩码：


# %%
def dropout(x):
    return x * (torch.rand_like(x) > 0.1) / 0.9


class GptBlock(model.Block):
    """model.Block with dropout, and with the attention matrix stored if wanted."""

    stored = False

    def forward(self, x):
        q, k, v = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = (
            dropout((q @ k.mT).softmax(-1)) @ v
            if self.stored
            else F.scaled_dot_product_attention(q, k, v)
        )
        x = x + dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + dropout(self.down(F.gelu(self.up(self.norm2(x)))))


# %%
class LlamaBlock(GptBlock):
    """The same without dropout, with RMSNorm and SwiGLU; rotary positions left out: they add nothing to keep."""

    def __init__(self, dim, num_heads):
        super().__init__(dim, num_heads)
        self.norm1, self.norm2 = torch.nn.RMSNorm(dim), torch.nn.RMSNorm(dim)
        hidden = 43 * dim // 16  # LLaMA 7B: 11008 for 4096
        self.gate, self.up = torch.nn.Linear(dim, hidden), torch.nn.Linear(dim, hidden)
        self.down = torch.nn.Linear(hidden, dim)

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


# %% [markdown]
# **Predict.** For these blocks in bf16: how many bytes per token and unit of width does autograd keep? The textbook's 4, the paper's 34, or something else?

# %% [markdown] lang="zh" of="be40f8f6"
# **先猜。** 这几种块用 bf16 时，autograd 为每个 token、每个宽度单位留下多少字节？是教材的 4，论文的 34，还是别的？

# %%
my_bytes = None


# %%
def kept(block, batch, length, dim):
    """Bytes that autograd keeps, per token and unit of width."""
    held = memory.Activations(block.bfloat16().parameters())
    x = torch.randn(batch, length, dim, dtype=torch.bfloat16, requires_grad=True)
    with held.chunk(0):
        y = block(x)
    assert y.shape == x.shape
    return held.num_bytes / (batch * length * dim)


print(f"{my_bytes = }\n\n length   GPT flash   GPT stored  (34 + 5 a s/h)   LLaMA")
for length in (64, 256, 512):
    stored = GptBlock(128, 4)
    stored.stored = True
    found = [
        kept(block, 2, length, 128) for block in (GptBlock(128, 4), stored, LlamaBlock(128, 4))
    ]
    print(
        f"{length:7} {found[0]:11.1f} {found[1]:12.1f} {34 + 5 * 4 * length / 128:15.1f} {found[2]:9.1f}"
    )

# %% [markdown]
# The paper's count, but for a few statistics of norms and softmax. So the textbook is off by a factor of 8 or more, and with a stored attention matrix there is no fixed factor at all: it grows with the length. The block of LLaMA has no masks but four wide tensors in its MLP; how much its norm keeps depends on whether it is one kernel. For it, 34 is an estimate; below it is used as one.
#
# Turn the knobs. The dashed line is the device. The button trains the small model by the chosen recipe on two ranks and puts its bill, measured, under the predicted one; here `board.run()` has pressed it.

# %% [markdown] lang="zh" of="4c1361cd"
# 与论文数的一致，只多出归一化和 softmax 的一点统计量。所以教材差了 8 倍以上；如果存注意力矩阵，连固定的倍数都没有：它随长度增长。LLaMA 的块没有掩码，但 MLP 里有四个宽张量；它的归一化留多少，取决于是不是一个算子做完。对它来说 34 是个估计，下面也只当估计用。
#
# 转一转旋钮。虚线是设备的容量。按钮会在两个 rank 上按所选配方训练小模型，把实测的账单放在预测的下面；这里的 `board.run()` 已经替你按过了。

# %%
board = widgets.training_need(LANGUAGE, recipe="fp32")
board.run()
board

# %% [markdown]
# Three things to try. Which models does a T4 hold, and with which recipe? LLaMA 13B on cards of 40 GB: what does ZeRO 1 lack? GPT-3 on 80 GB: no number of cards is enough with one sequence each; what helps?
#
# ### More bills of the textbook
#
# Section 8.8.1 cuts 175 billion parameters over 8 x 4 x 2 devices (data, pipeline, tensor) and divides 16 bytes per parameter by 64. But data parallelism divides only what ZeRO shards. Section 8.10 trains LLaMA-13B on four cards of 40 GB; section 19.8.4 puts 10 billion parameters on eight. Each line computed, the textbook's number last:

# %% [markdown] lang="zh" of="1708fda1"
# 试三件事。T4 放得下哪些模型，用哪种配方？在 40 GB 的卡上训练 LLaMA 13B，ZeRO 1 差在哪里？在 80 GB 的卡上训练 GPT-3，每块卡一条序列，多少块都不够；什么办法管用？
#
# ### 教材里的另外几份账单
#
# 8.8.1 节把 1750 亿参数分到 8 x 4 x 2 个设备上（数据、流水线、张量），用每参数 16 字节直接除以 64。可是数据并行只能除掉 ZeRO 分片的那部分。8.10 节在四块 40 GB 的卡上训练 LLaMA-13B；19.8.4 节把 100 亿参数放到八块卡上。逐行算一遍，最后是教材的数：

# %%
for stage in range(4):
    states = sharding_states.state_bytes(175e9 / (4 * 2), 8, stage)
    print(
        f"8.8.1  175B, PP 4 x TP 2, DP 8 with stage {stage}: {format_bytes(sum(states.values())):>8}   (43.75 GB)"
    )
for name, recipe in (("fp32 copy", "mixed"), ("bf16 throughout", "bf16")):
    states = sharding_states.state_bytes(13e9, 4, 3, recipe)
    print(f"8.10   13B, FSDP on 4 x 40 GB, {name}: {format_bytes(sum(states.values()))}")
print(f"8.10   effective batch: 2 per card x 16 accumulated x 4 cards = {2 * 16 * 4}   (32)")
parts = sharding_states.by_category(sharding_states.state_bytes(10e9 / (2 * 2), 2, 1))
print(
    "19.8.4 10B, TP 2 x PP 2, DP 2 with stage 1:",
    ", ".join(f"{k} {format_bytes(v)}" for k, v in parts.items()),
)
print(
    f"       fp16 weights of 10B: {format_bytes(2 * 10e9)}   (10 GB); "
    f"states per GPU {format_bytes(sum(parts.values()))}, activations come on top   (20 GB with them)"
)

# %% [markdown]
# 43.75 GB holds for stage 3 alone; the section's own configuration says stage 1, and that exceeds 80 GB. Four cards of 40 GB do not hold the states of 13B with an fp32 copy. And section 19.8.4 leaves the gradients out.

# %% [markdown] lang="zh" of="c7c20ce5"
# 43.75 GB 只对阶段 3 成立；那一节自己的配置写的是阶段 1，那就超过 80 GB 了。四块 40 GB 的卡放不下带 fp32 副本的 13B 状态。19.8.4 节则漏了梯度。

# %% [markdown] sections="10.1.1"
# ## Five reasons
#
# Section 10.1.1 gives five. Each with a number.
#
# **1. Models do not fit.** The section's example is right: GPT-3 has 700 GB of weights in fp32. **2. Too much to compute.** A training run takes about 6 operations per parameter and token (Kaplan et al. 2020). The papers of LLaMA say how many hours of A100 they used, so that the share of the peak they reached can be computed, and so can the years that one card would take:

# %% [markdown] lang="zh" of="c0df53dd"
# ## 五个理由
#
# 10.1.1 节给了五个理由，下面每个配一个数。
#
# **1. 模型放不下。** 那一节的例子是对的：GPT-3 的 fp32 权重有 700 GB。**2. 算不过来。** 训练一次，每个参数、每个 token 大约要 6 次运算（Kaplan 等，2020）。LLaMA 的论文写了用掉多少 A100 小时，于是能算出达到了峰值的几成，也能算出只用一块卡要多少年：

# %%
gpt3 = MODELS["GPT-3 175B"]
print(
    f"GPT-3 in fp32: {format_bytes(4 * gpt3.params)} of weights, {4 * gpt3.params / card:.2f} cards of 80 GB\n"
)
peak = 1e12 * TFLOPS["A100 80 GB"]
for each in (model_ for model_ in MODELS.values() if model_.a100_hours):
    reached = 6 * each.params * each.train_tokens / (3600 * each.a100_hours) / peak
    print(
        f"{each.name:<12} {each.a100_hours:9,.0f} A100 hours: {format_share(reached)} of the peak, "
        f"{each.a100_hours / 24 / 365:5.1f} years on one card"
    )

# %% [markdown]
# This is arithmetic on published numbers; whatever else those hours were spent on is in it.
#
# **3. Too much data.** Text must be read and cut into tokens before a GPU sees it. How fast does one process do that with a byte-pair encoding (here trained on our small story), how fast do two, and how long would it take for the tokens of LLaMA 7B? Ranks share this work without a word to each other, so it is as many times as fast as there are free cores:

# %% [markdown] lang="zh" of="54a27e0a"
# 这些只是对公布的数做算术；那些小时里如果还做了别的事，也都算在内。
#
# **3. 数据太多。** 文本在进 GPU 之前要先读出来、切成 token。一个进程用字节对编码（byte-pair encoding，这里在我们的小故事上训练）做得多快，两个进程呢？LLaMA 7B 的那些 token 要切多久？这件事各个 rank 分头做就行，不用说一句话，有几个空闲的核就快几倍：


# %%
def tokens_per_second():
    import time
    from labkit import model
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    text, bpe = model.STORY.read_text(encoding="utf-8"), Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    bpe.train_from_iterator([text], trainers.BpeTrainer(vocab_size=1000, show_progress=False))
    rates = []
    for _ in range(15):
        began = time.perf_counter()
        rates.append(len(bpe.encode(text).ids) / (time.perf_counter() - began))
    return sorted(rates)[-4]  # the machine may do other things meanwhile


for size in (1, 2):
    rate = sum(lab.launch(tokens_per_second, ranks=size, backend="gloo", timeout_s=30))
    days = MODELS["LLaMA 7B"].train_tokens / rate / 86400
    print(
        f"{size} process{'es' * (size - 1)}: {rate / 1e6:.2f} million tokens per second, {days:.1f} days for 10^12"
    )

# %% [markdown]
# **4. Reliability**, says the section: a distributed system tolerates faults. That is the wrong way round, at first. If one card fails once in $M$ hours, $N$ cards together fail once in $M/N$. The Llama 3 report (section 3.3.4) counts 419 unexpected interruptions in 54 days on 16,384 GPUs. If they come independently of each other:

# %% [markdown] lang="zh" of="83d4b0da"
# **4. 可靠性。** 那一节说，分布式系统能容错。起初恰恰相反：如果一块卡每 $M$ 小时坏一次，$N$ 块卡合起来每 $M/N$ 小时就坏一次。Llama 3 的报告（3.3.4 节）记了 16,384 块 GPU 在 54 天里的 419 次意外中断。假定它们互不相干：

# %%
from math import exp

hours_per_failure = 54 * 24 * 16384 / 419  # of one GPU
for num_gpus in (1, 8, 1024, 16384):
    between = hours_per_failure / num_gpus
    print(
        f"{num_gpus:6} GPUs: {between:9,.1f} hours between interruptions, "
        f"{format_share(exp(-24 / between))} of days without one"
    )

# %% [markdown]
# What a distributed system does bring is that a run can survive: many devices hold copies, and a checkpoint starts it again. That takes work; chapter 13 is about it.
#
# **5. More experiments.** Hours per run decide how many ideas one can try. With $N$ cards a run is at best $N$ times as fast. Communication and whatever is not shared (Amdahl 1967) hold it back:

# %% [markdown] lang="zh" of="9ba0ca13"
# 分布式系统真正带来的是：训练能撑过去。多个设备上有副本，检查点能让它重新开始。但这要花功夫，第 13 章专讲这个。
#
# **5. 试得更多。** 一次训练几小时，决定了能试多少个想法。$N$ 块卡最多快 $N$ 倍，通信和不能分担的部分（Amdahl，1967）会拖住它：

# %%
counts = [2**power for power in range(13)]
days = MODELS["LLaMA 7B"].a100_hours / 24
series = [
    Series(
        {"en": f"{share:g} not shared", "zh": f"{share:g} 不能分担"},
        counts,
        [30 / days / (share + (1 - share) / n) for n in counts],
    )
    for share in (0.0, 0.001, 0.01)
]
widgets.show(
    curves.curves(
        series,
        title={"en": "Runs of LLaMA 7B in 30 days", "zh": "30 天里能训练几次 LLaMA 7B"},
        x_name={"en": "A100 cards", "zh": "A100 数量"},
        log_x=True,
        log_y=True,
        badge="computed",
        language=LANGUAGE,
    )
)

# %% [markdown] sections="10.1.2"
# ## Six challenges
#
# | challenge (section 10.1.2) | what it is | where you meet it |
# | --- | --- | --- |
# | communication | bytes, and time to wait for them | chapters 02, 03, 11 |
# | load balance | all wait for the slowest | chapters 03, 08 |
# | consistency | all must hold the same weights | chapter 03 |
# | memory | copies of everything on every rank | chapters 05, 06, 07 |
# | faults | one fails, all stop | chapter 13 |
# | complexity | a bug may hang, or give wrong numbers silently | chapter 14 |
#
# A first look at each, on two real ranks. Rank 1 is slower by 50 ms, and reads other data.

# %% [markdown] lang="zh" of="50c4aff1"
# ## 六个挑战
#
# | 挑战（10.1.2 节） | 是什么 | 在哪里会遇到 |
# | --- | --- | --- |
# | 通信 | 字节，以及等它们的时间 | 第 02、03、11 章 |
# | 负载均衡 | 大家都等最慢的 | 第 03、08 章 |
# | 一致性 | 所有 rank 的权重必须相同 | 第 03 章 |
# | 内存 | 每个 rank 上什么都有一份 | 第 05、06、07 章 |
# | 容错 | 一个出错，全体停下 | 第 13 章 |
# | 复杂性 | 一个错误可能让大家卡住，或悄悄算错 | 第 14 章 |
#
# 先在两个真实的 rank 上各看一眼。rank 1 慢 50 毫秒，读的数据也不同。


# %%
def first_look(averaged):
    import time
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.measure import traffic

    rank, waited = dist.get_rank(), 0.0
    torch.manual_seed(0)
    net = model.Transformer(2, 64, 4, max_len=32)
    with traffic.count() as counted:
        for step in range(5):
            tokens, targets = model.story_tokens(
                4, 32, seed=2 * step + rank
            )  # other data on each rank
            net.zero_grad()
            model.loss(net(tokens), targets).backward()
            time.sleep(0.05 * rank)  # rank 1 is slower
            began = time.perf_counter()
            for weight in net.parameters() if averaged else ():
                dist.all_reduce(weight.grad)
                weight.grad /= 2
            waited += time.perf_counter() - began
            with torch.no_grad():
                for weight in net.parameters():
                    weight -= 0.5 * weight.grad
    return (
        torch.cat([weight.detach().flatten() for weight in net.parameters()]),
        waited / 5,
        counted,
    )


# %%
for averaged in (True, False):
    run = lab.launch(first_look, averaged, ranks=2, backend="gloo", timeout_s=40)
    (mine, waited, counted), (other, slow_waited, _) = run
    print(
        f"gradients {'averaged' if averaged else 'kept apart'}: {counted.payload_bytes.total() // 5:,} bytes in "
        f"{counted.calls.total() // 5} all-reduces per step; waited in them: rank 0 {1e3 * waited:.0f} ms, "
        f"rank 1 {1e3 * slow_waited:.0f} ms"
    )
    num_distinct = len(mine) + int((mine != other).sum())
    print(
        f"   ranks differ by up to {(mine - other).abs().max():.1g} in a weight; "
        f"{2 * len(mine):,} weights are held, {num_distinct:,} of them distinct"
    )

# %% [markdown]
# Rank 0 does its waiting for rank 1 inside the all-reduce: a profile shows communication where the cause is load. Without averaging nobody waits, and there are two models instead of one.
#
# Faults and complexity. In the first run rank 1 raises an error. In the second, a bug: rank 1 returns before the last all-reduce. labkit turns both into a verdict. With bare processes rank 0 would see no more than a closed connection; and where rank 1 lives on and does something else, rank 0 would wait for half an hour, torch's default time limit for gloo.

# %% [markdown] lang="zh" of="6005cb3d"
# rank 0 是在 all-reduce 里面等 rank 1 的：性能剖析上看是通信，原因却在负载。不求平均就没人要等，只是一个模型变成了两个。
#
# 再看容错和复杂性。第一次运行，rank 1 抛出一个错误；第二次是个 bug：rank 1 在最后一次 all-reduce 之前就返回了。labkit 对两者都给出判定。换成裸进程，rank 0 只会看到连接被关闭；如果 rank 1 还活着、在忙别的，rank 0 就要等上半小时，那是 torch 给 gloo 的默认时限。


# %%
def fails(how):
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        if how == "error":
            raise ValueError("a bad sample in the data of rank 1")
        return
    dist.all_reduce(torch.ones(1))


for how in ("error", "bug"):
    began = time.perf_counter()
    try:
        lab.launch(fails, how, ranks=2, backend="gloo", timeout_s=30)
    except lab.LaunchError as verdict:
        first = str(verdict).split("\n\n")[0]  # what follows is a traceback
        print(f"--- after {time.perf_counter() - began:.1f} s: {type(verdict).__name__}\n{first}\n")

# %% [markdown] sections="8.1.2"
# ## Three strategies
#
# Section 8.1.2 names three. **Data parallel**: every rank holds the whole model and takes a part of the batch; gradients are averaged. **Model parallel**: every rank holds some of the layers, and activations travel. **Hybrid**: both. To these the board adds a fourth that section 8.1.2 leaves to later: data parallel with the **states sharded** (ZeRO, FSDP).
#
# **Predict**, for LLaMA 7B on 4 ranks: which of the four sends the fewest bytes? Which two hold the same?

# %% [markdown] lang="zh" of="1d037789"
# ## 三种策略
#
# 8.1.2 节列了三种。**数据并行**（data parallel）：每个 rank 有整个模型，分一份数据；梯度求平均。**模型并行**（model parallel）：每个 rank 只有一部分层，激活在 rank 之间走。**混合**（hybrid）：两者都用。下面的组件还多一种，8.1.2 节留到后面才讲：**状态分片**的数据并行（ZeRO、FSDP）。
#
# **先猜**：LLaMA 7B，4 个 rank，四种里哪种发的字节最少？哪两种存得一样多？

# %%
my_fewest, my_equal = None, (None, None)

# %%
board = widgets.strategies(LANGUAGE, strategy="layers")
board.run()
print(f"{my_fewest = }, {my_equal = }")
board

# %% [markdown]
# By layers sends least by far, and holds as little as full sharding does. What it pays is idle time, and that is why more microbatches are wanted (chapter 08); and the cut must leave every rank equally much to do, while sharding needs no such care. Move the batch: data parallelism sends the same whatever the batch, model parallelism in proportion to it.
#
# Is it the same training? The two losses of two steps, by three strategies, on the same 16 sequences, from the same weights:

# %% [markdown] lang="zh" of="7e2a6f43"
# 按层切分发得最少，差得很远，存的又和完全分片一样少。代价是空闲，所以它希望微批次多一些（第 08 章）；而且切法必须让每个 rank 的活一样多，分片就不用操这个心。改一改批大小：数据并行发的量与批无关，模型并行则与批成正比。
#
# 训练还是同一个训练吗？同样的 16 条序列、同样的初始权重，三种策略各走两步，看两步的损失：


# %%
def three_strategies():
    return {
        strategy: strategies_run.train(strategy, 16, False)
        for strategy in ("data", "layers", "hybrid")
    }


run = lab.launch(three_strategies, ranks=4, backend="gloo", timeout_s=50)
for strategy in run[0]:
    results = [result[strategy] for result in run]
    losses = torch.tensor([result["losses"] for result in results])
    losses = (
        losses[~losses[:, 0].isnan()].mean(0).tolist()
    )  # only a rank with the last layer knows its loss
    sent = sum(
        result["payload_bytes"].get(name, 0)
        for result in results
        for name in ("all_reduce", "send")
    )
    print(
        f"{strategy:<7} losses {losses[0]:.5f} {losses[1]:.5f}   handed over by all ranks: {format_bytes(sent)}"
    )

# %% [markdown]
# ### Tensor parallelism sends more, not less
#
# The summary in section 8.12 says of tensor parallelism, which cuts every layer instead of the stack of layers, that it reduces communication. Each rank has some of the hidden units of an MLP; what comes out of its half is only a part of the sum. So a forward needs an all-reduce of the activations, and a backward one of their gradients. Written by hand, counted, and compared with the whole MLP:

# %% [markdown] lang="zh" of="03317e4d"
# ### 张量并行发得更多，不是更少
#
# 8.12 节的小结说，张量并行（tensor parallelism，不是切层的堆叠，而是把每一层切开）减少通信。每个 rank 只有 MLP 的一部分隐藏单元，它算出来的只是和的一部分。所以前向要对激活做一次 all-reduce，反向要对激活的梯度再做一次。手写一遍，数一数，并与整个 MLP 比较：


# %%
def half_an_mlp(batch, length, dim):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from labkit.measure import traffic

    torch.manual_seed(0)
    x, up, down = (
        torch.randn(batch, length, dim, requires_grad=True),
        torch.randn(dim, 4 * dim),
        torch.randn(4 * dim, dim),
    )
    whole = F.gelu(x @ up) @ down
    (right,) = torch.autograd.grad(whole.sum(), x)
    rank, size = dist.get_rank(), dist.get_world_size()
    with traffic.count() as counted:
        part = F.gelu(x @ up.chunk(size, 1)[rank]) @ down.chunk(size, 0)[rank]
        total = part.detach().clone()
        dist.all_reduce(total)
        (gradient,) = torch.autograd.grad(part.sum(), x)
        dist.all_reduce(gradient)
    off = (
        ((total - whole).abs().max() / whole.abs().max()).item(),
        ((gradient - right).abs().max() / right.abs().max()).item(),
    )
    return counted.calls["all_reduce"], counted.payload_bytes["all_reduce"], off


calls, num_bytes, off = lab.launch(half_an_mlp, 2, 32, 48, ranks=2, backend="gloo", timeout_s=40)[0]
print(
    f"{calls} all-reduces, {num_bytes} bytes = {num_bytes / (2 * 32 * 48 * 4):g} x the activations; off by {max(off):.0e}"
)

# %% [markdown]
# Attention needs two more, so a layer has four in a step. With LLaMA 7B over 8 ranks in 16 bit, one sequence of 2048 tokens per microbatch, beside the one all-reduce of data parallelism:

# %% [markdown] lang="zh" of="ea6af667"
# 注意力还要两次，所以一层一步共四次。LLaMA 7B 分在 8 个 rank 上，16 位，每个微批次一条 2048 个 token 的序列；旁边是数据并行的那一次 all-reduce：

# %%
llama, ring = (
    MODELS["LLaMA 7B"],
    2 * (8 - 1) / 8,
)  # what a rank sends in a ring all-reduce, in buffers
print(f"data parallel: {format_bytes(ring * 2 * llama.params)} per step, whatever the batch")
for num_sequences in (1, 4, 16, 64):
    activations = 2 * num_sequences * llama.seq_len * llama.dim
    print(
        f"tensor parallel, {num_sequences:2} sequences: {4 * llama.layers} all-reduces, "
        f"{format_bytes(ring * 4 * llama.layers * activations)} per step"
    )

# %% [markdown]
# And none of the tensor-parallel bytes can hide under a backward, since the next operation waits for them. It is for the fastest links, inside one machine. What it saves is memory, and waiting for a pipeline.

# %% [markdown] lang="zh" of="7af17746"
# 而且张量并行的字节没有一个能藏在反向底下，因为下一步运算就等着它们。它要用在最快的链路上，也就是一台机器之内。它省的是显存，还有等流水线的时间。

# %% [markdown] sections="10.1.3"
# ## Four architectures
#
# Section 10.1.3 draws how ranks can be connected to average gradients. **Parameter server**: one rank collects and answers. **Ring**: each talks to its two neighbours. **Hierarchical**: in groups first, then between groups. **Hybrid**: one way inside a machine and another between machines, for example shared memory inside, an all-reduce between representatives. The first three are plans of labkit: lists of messages. The hybrid is put together here from pieces:

# %% [markdown] lang="zh" of="ca46a683"
# ## 四种架构
#
# 10.1.3 节画了各 rank 怎样连起来求梯度平均。**参数服务器**（parameter server）：一个 rank 收齐再回复。**环**（ring）：各自只与两个邻居说话。**分层**（hierarchical）：先在组内，再在组间。**混合**（hybrid）：机器内一种办法，机器间另一种，例如机器内用共享内存，机器间由代表做 all-reduce。前三种是 labkit 现成的计划，即消息的清单；混合的在这里用零件拼出来：


# %%
def hybrid(num_ranks, island_size):
    """Each island's first rank adds up its island, rings with the other firsts, and hands the sums out."""
    firsts = range(0, num_ranks, island_size)
    whole = tuple(range(len(firsts)))  # one chunk per island: the ring passes them on one by one
    adds = [
        [Move(first + i, first, whole, "add") for first in firsts] for i in range(1, island_size)
    ]
    between = [
        [Move(firsts[src], firsts[dst], chunks, op) for src, dst, chunks, op in step]
        for step in plan("all_reduce", "ring", len(firsts)).steps
    ]
    copies = [
        [Move(first, first + i, whole, "copy") for first in firsts] for i in range(1, island_size)
    ]
    made = Plan(
        primitive="all_reduce",
        algorithm="hybrid",
        num_ranks=num_ranks,
        num_chunks=len(firsts),
        steps=tuple(map(tuple, [*adds, *between, *copies])),
    )
    validate(made)  # every rank ends with the sum of all, no port is used twice in a step
    return made


# %%
def four(num_ranks, island_size):
    return {
        name: plan("all_reduce", name, num_ranks, **options)
        if name != "hybrid"
        else hybrid(num_ranks, island_size)
        for name, options in (
            ("parameter_server", {}),
            ("ring", {}),
            ("hierarchical", {"island_size": island_size}),
            ("hybrid", {}),
        )
    }


names = (
    {"en": "Parameter server", "zh": "参数服务器"},
    {"en": "Ring", "zh": "环"},
    {"en": "Hierarchical", "zh": "分层"},
    {"en": "Hybrid", "zh": "混合"},
)
widgets.show(widgets.architectures(list(zip(names, four(8, 4).values())), 4, language=LANGUAGE))

# %% [markdown]
# Two machines of four ranks; S is the size of the gradients. **Predict**: which of the four sends the most bytes, all ranks taken together?

# %% [markdown] lang="zh" of="421c3d4a"
# 两台机器，各四个 rank；S 是梯度的大小。**先猜**：把所有 rank 发的加在一起，四种里哪种最多？

# %%
my_most = None

# %%
from labkit.collectives.network import Link, islands, time_us
from labkit.planner.links import crossing_bytes

fast, slow = Link(alpha_us=2, bandwidth_gb_per_s=300), Link(alpha_us=5, bandwidth_gb_per_s=25)
network = islands(
    8, 4, inside=fast, between=slow, shared=True
)  # one wire each way between the machines
print(
    f"{my_most = }\n\n{'8 ranks, S = 1 GB':<18} all ranks   busiest   between machines   steps   simulated"
)
for name, each in four(8, 4).items():
    across = crossing_bytes(each, 4, 1e9)
    print(
        f"{name:<18} {format_bytes(sent_bytes(each, 1e9).sum()):>9} {format_bytes(sent_bytes(each, 1e9).max()):>9}"
        f" {format_bytes(across):>18} {len(each.steps):7} {format_us(time_us(each, network, 1e9)):>11}"
    )

# %% [markdown]
# All send the same: $2(N-1)S$. Every other rank's part must be added once and come back once, by whatever way. What differs is **who** sends and **over which link**. The server does half of all the sending itself. The ring shares it equally but crosses between the machines as if that link were like any other. Hierarchical shares equally and crosses least; the hybrid crosses as little, and leaves the work to the representatives.
#
# How does it grow? Section 10.1.2 says that communication increases with the number of devices. For the busiest rank, in islands of four:

# %% [markdown] lang="zh" of="5624da9d"
# 总量都一样：$2(N-1)S$。别的每个 rank 的那一份都要加进来一次、再送回去一次，走哪条路都如此。不同的是**谁**来发、走**哪条链路**。服务器一个人发了总量的一半。环让大家一样多，但过机器之间的链路时，把它当成普通链路。分层也是大家一样多，跨机器却最少；混合跨得一样少，但活都压给了代表。
#
# 随规模怎样增长？10.1.2 节说通信量随设备数量增加而增加。看最忙的 rank，岛的大小为四：

# %%
counts = (8, 16, 32, 64)
sweep = {count: [sent_bytes(each, 1).max() for each in four(count, 4).values()] for count in counts}
widgets.show(
    curves.curves(
        [
            Series(name, counts, [sweep[count][i] for count in counts])
            for i, name in enumerate(names)
        ],
        title={"en": "What the busiest rank sends", "zh": "最忙的 rank 发多少"},
        badge="simulated",
        x_name="N",
        y_name={"en": "sizes of the gradients (S)", "zh": "梯度大小（S）的倍数"},
        log_y=True,
        language=LANGUAGE,
    )
)

# %% [markdown]
# For the ring and for hierarchical it stays below 2 S, whatever N. (Their curves are one: 2(N-1)/N in both.) What grows with N there is the sum over all links, and the number of steps, that is, latency.
#
# Now on four real ranks, two "machines" of two. The plans run message by message; then the same two-level idea with torch's own collectives in groups (`new_group`). 800 kB, counted in each rank: what was handed to `send`, and what went out on the wire.

# %% [markdown] lang="zh" of="f9052e83"
# 环和分层不管 N 多大，都不到 2 S。（两条曲线重合：都是 2(N-1)/N。）在那里随 N 增长的，是所有链路的总和，还有步数，也就是延迟。
#
# 再放到四个真实的 rank 上，两台“机器”各两个。计划逐条消息地执行；然后用 torch 自己的集合通信在分组（`new_group`）里做同样的两级办法。800 kB，在每个 rank 里数：交给 `send` 的，和线路上真正发出去的。


# %%
def on_four_ranks(plans, num_bytes):
    import torch
    import torch.distributed as dist
    from labkit import collectives
    from labkit.measure import traffic

    rank, found = dist.get_rank(), {}
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]

    def in_groups(buffer):
        part = torch.empty(len(buffer) // 2)
        dist.reduce_scatter_single(part, buffer, group=inside)
        dist.all_reduce(part, group=across)
        dist.all_gather_single(buffer, part, group=inside)

    ways = {
        name: lambda buffer, each=each: collectives.execute(each, buffer)
        for name, each in plans.items()
    }
    for name, way in {**ways, "new_group": in_groups}.items():
        buffer = torch.full((num_bytes // 4,), float(10**rank))
        dist.barrier()
        with traffic.count() as counted:
            way(buffer)
        found[name] = (
            counted.payload_bytes["send"],
            counted.sent_bytes,
            bool((buffer == 1111).all()),
        )
    return found


# %%
plans, num_bytes = four(4, 2), 800_000
run = lab.launch(on_four_ranks, plans, num_bytes, ranks=4, backend="gloo", timeout_s=40)
print(f"{'':<17} {'predicted':^29}   {'handed to send':^29}   on the wire, busiest")
for name in run[0]:
    theory = sent_bytes(plans[name], num_bytes).astype(int).tolist() if name in plans else ["-"] * 4
    sent, wire, right = zip(*(result[name] for result in run))
    wire = "unknown" if None in wire else f"{max(wire):,}"  # only Linux counts it
    print(
        f"{name:<17} {' '.join(f'{each!s:>7}' for each in theory)}   {' '.join(f'{each:7}' for each in sent)}"
        f"   {wire:>9}   {'right' if all(right) else 'WRONG'}"
    )

# %% [markdown]
# The plans send what was predicted, to the byte; the wire adds headers. With `new_group` nothing is handed to `send`, and the wire has more than the plan "hierarchical": gloo runs a reduce-scatter as an all-reduce (chapter 02). Which architecture does torch use? On GPUs NCCL decides by itself, by size and topology, between rings, trees and others. What you choose is the groups.

# %% [markdown] lang="zh" of="85f498cc"
# 各个计划发的与预测一致，一个字节不差；线路上多了报头。用 `new_group` 时没有东西交给 `send`，而线路上比 “hierarchical” 计划更多：gloo 把 reduce-scatter 当作 all-reduce 来做（第 02 章）。torch 用的是哪种架构？在 GPU 上由 NCCL 自己按大小和拓扑来定，用环、树或别的。你能选的是分组。

# %% [markdown] sections="D-faq"
# ## Which strategy when
#
# The demo project's first question. Its answer, and section 8.12's, go by size: DDP below 10 billion parameters, FSDP up to 100, and so on. Size alone can't say: the recipe, the sequence and the card matter as much. Computed instead: the least sharding that fits, for one sequence per card, activations by the estimate above.

# %% [markdown] lang="zh" of="8570d122"
# ## 什么时候用哪种策略
#
# 这是演示项目的第一个问题。它和 8.12 节都按大小回答：100 亿参数以下用 DDP，到 1000 亿用 FSDP，等等。光看大小说不准：配方、序列长度和卡同样要紧。不如算一算：每块卡一条序列，激活用上面的估计，看最少要分片到什么程度才放得下。


# %%
def least_sharding(each, device_bytes, num_ranks, attention="flash"):
    """The lowest ZeRO stage that fits, in words."""
    for stage, name in enumerate(("DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3 / FSDP")):
        if (
            sum(each.bill(1, attention=attention, num_ranks=num_ranks, stage=stage).values())
            <= device_bytes
        ):
            return name
    return "recompute?" if attention == "flash" else "cut the model too"


print(
    f"{'':<13} {'8 x A100 40':<15} {'8 x H100 80':<15} {'64 x H100 80':<15} 64 x H100 80, all recomputed"
)
for each in MODELS.values():
    row = [least_sharding(each, device, num) for device, num in ((40e9, 8), (80e9, 8), (80e9, 64))]
    row.append(least_sharding(each, 80e9, 64, "recompute"))
    print(f"{each.name:<13}", *(f"{cell:<15}" for cell in row))
print(
    f"\nstates of 10B, nothing sharded: {format_bytes(sum(sharding_states.state_bytes(10e9).values()))}; largest model whose states"
    f" fit: A100 40 GB {sharding_states.largest_model(40e9) / 1e9:.1f}B, H100 80 GB {sharding_states.largest_model(80e9) / 1e9:.1f}B"
)

# %% [markdown]
# So, in this order:
#
# 1. It fits on one card and is fast enough: use one card.
# 2. It fits, but is slow: DDP (chapter 03).
# 3. States do not fit: shard them, the optimizer first (ZeRO 1 costs no bytes more than DDP), then gradients, then parameters (half as many again).
# 4. Activations do not fit: recompute (chapter 05), a smaller microbatch; then cut the sequence or the layer (tensor parallelism, inside a machine).
# 5. Many machines, slow links between them: cut by layers (pipeline, chapter 08), for that sends least, and shard inside the machines.
#
# ### Cutting communication
#
# The demo project's second question names four ways: compression, overlap, accumulation, mixed precision ("fp16 reduces bandwidth"). Overlap hides time and saves no byte (chapters 03, 11). The other three, counted with real DDP, per sequence. **Predict** which of them save nothing.

# %% [markdown] lang="zh" of="5aeec8db"
# 所以，按这个次序：
#
# 1. 一块卡放得下，也够快：就用一块卡。
# 2. 放得下，但慢：DDP（第 03 章）。
# 3. 状态放不下：分片。先分优化器（ZeRO 1 的字节不比 DDP 多），再分梯度，最后分参数（字节多一半）。
# 4. 激活放不下：重算（第 05 章）、更小的微批次；再不行就切序列或切层内（张量并行，在一台机器之内）。
# 5. 机器很多、之间的链路慢：按层切（流水线，第 08 章），因为它发得最少；机器内再分片。
#
# ### 减少通信
#
# 这是演示项目的第二个问题，它列了四种办法：压缩、重叠、累积、混合精度（“FP16 减少带宽需求”）。重叠藏住时间，不省字节（第 03、11 章）。其余三种用真实的 DDP 数一数，按每条序列算。**先猜**其中哪种什么也省不下。

# %%
my_useless = None


# %%
def ddp_bytes(way):
    import contextlib
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.measure import traffic
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel as DDP

    net = DDP(model.Transformer(2, 64, 4, max_len=32))
    if way == "fp16 hook":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    autocast = (
        torch.autocast("cpu", torch.bfloat16) if way == "autocast" else contextlib.nullcontext()
    )
    num_microbatches = 4 if way == "accumulate 4" else 1
    with traffic.count() as counted:
        for index in range(num_microbatches):
            tokens, targets = model.story_tokens(2, 32, seed=4 * dist.get_rank() + index)
            with (
                net.no_sync() if index < num_microbatches - 1 else contextlib.nullcontext(),
                autocast,
            ):
                model.loss(net(tokens).float(), targets).backward()
    return counted.payload_bytes["all_reduce"] / (2 * num_microbatches)


# %%
ways = ("plain", "fp16 hook", "accumulate 4", "autocast")
counted = {
    way: lab.launch(ddp_bytes, way, ranks=2, backend="gloo", timeout_s=40)[0] for way in ways
}
print(f"{my_useless = }")
for way, num_bytes in counted.items():
    print(
        f"{way:<13} {num_bytes:10,.0f} bytes per sequence and rank: {num_bytes / counted['plain']:.2f} of plain"
    )

# %% [markdown]
# Autocast computes in 16 bit, but weights and gradients stay fp32, and that is what DDP sends. It is the model's own type (the "mixed" recipe of the bill) or a hook that halves the bytes. Accumulating divides them by the number of microbatches, at the price of fewer updates (chapter 12, to come).

# %% [markdown] lang="zh" of="d90629ea"
# autocast 用 16 位计算，但权重和梯度仍是 fp32，DDP 发的就是它们。要让字节减半，得靠模型自身的类型（账单里的 “mixed” 配方）或者钩子。累积把字节除以微批次数，代价是更新次数变少（第 12 章，待写）。

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown, on real ranks where there is something to hold or send, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. The states of a rank
#
# GB of model states on each of `num_ranks` ranks. `recipe` is `"sgd"`, `"fp32"`, `"mixed"`, `"bf16"` as measured above, or `"accumulate"`: mixed, with a second set of gradients in fp32 to add up in. `stage` shards nothing (0), the optimizer (1), gradients too (2), parameters too (3); `"accumulate"` counts both its sets as gradients. No calls of `labkit.sharding.states`, of course.

# %% [markdown] lang="zh" of="bc8c0e96"
# ## 练习
#
# 检查不会中断笔记本。它用没有展示过的规模试你的答案，要存要发的就在真实的 rank 上试，并给出第一个不对的情形。每试一次，`check.hint(名字)` 会多说一点。
#
# ### 1. 一个 rank 的状态
#
# 求 `num_ranks` 个 rank 中每个的模型状态，单位 GB。`recipe` 是上面测过的 `"sgd"`、`"fp32"`、`"mixed"`、`"bf16"`，或者 `"accumulate"`：混合精度，另有一份 fp32 的梯度用来累加。`stage`：0 什么也不分，1 分优化器，2 再加梯度，3 再加参数；`"accumulate"` 的两份都算梯度。当然不要调用 `labkit.sharding.states`。


# %%
def my_states(num_params, recipe, stage, num_ranks):
    """GB of model states on each rank."""
    ### BEGIN SOLUTION
    groups = {
        "sgd": (4, 4, 4),
        "fp32": (4, 4, 8),
        "mixed": (2, 2, 12),
        "accumulate": (2, 6, 12),
        "bf16": (2, 2, 4),
    }
    parameter, gradient, optimizer = groups[recipe]
    per_parameter = (
        parameter / (num_ranks if stage >= 3 else 1)
        + gradient / (num_ranks if stage >= 2 else 1)
        + optimizer / (num_ranks if stage >= 1 else 1)
    )
    return num_params * per_parameter / 1e9
    ### END SOLUTION


# %%
check.model_state_gb(my_states)

# %%
check.hint("model_state_gb")

# %% [markdown]
# ### 2. How many cards?
#
# A model by the recipe "mixed", with `activation_bytes` on each device. Return `(stage, num_ranks)`: the fewest ranks whose devices hold it; of several stages that need so many, the lowest. Return None if not even 4096 ranks are enough.

# %% [markdown] lang="zh" of="79fe52f7"
# ### 2. 要几块卡？
#
# 模型用 “mixed” 配方，每个设备上另有 `activation_bytes` 的激活。返回 `(stage, num_ranks)`：放得下所需的最少 rank 数；几个阶段都只要这么多时，取最低的阶段。4096 个 rank 也不够就返回 None。


# %%
def my_cards(num_params, activation_bytes, device_bytes):
    """(stage, num_ranks), or None."""
    ### BEGIN SOLUTION
    found = []
    for stage in range(4):
        for num_ranks in range(1, 4097):
            if (
                1e9 * my_states(num_params, "mixed", stage, num_ranks) + activation_bytes
                <= device_bytes
            ):
                found.append((num_ranks, stage))
                break
    return min(found)[::-1] if found else None
    ### END SOLUTION


# %%
check.fewest_ranks(my_cards)

# %%
check.hint("fewest_ranks")

# %% [markdown]
# ### 3. Traffic of an architecture
#
# An all-reduce of `num_bytes` over `num_ranks` ranks in islands of `island_size` neighbours. Return two numbers: what the busiest rank sends, and what all ranks together send from one island to another. `architecture` is `"parameter_server"` (rank 0 serves and works), `"ring"` (0, 1, 2, ... and back) or `"hierarchical"`.

# %% [markdown] lang="zh" of="da9e5645"
# ### 3. 架构的通信量
#
# 对 `num_bytes` 字节做 all-reduce，共 `num_ranks` 个 rank，每 `island_size` 个相邻的为一个岛。返回两个数：最忙的 rank 发多少；所有 rank 合计从一个岛发往另一个岛多少。`architecture` 是 `"parameter_server"`（rank 0 既服务也干活）、`"ring"`（0、1、2……再回到 0）或 `"hierarchical"`。


# %%
def my_traffic(architecture, num_ranks, num_bytes, island_size):
    """What the busiest rank sends, and what goes between islands."""
    ### BEGIN SOLUTION
    num_islands, each = num_ranks // island_size, 2 * (num_ranks - 1) / num_ranks * num_bytes
    if architecture == "parameter_server":
        return (num_ranks - 1) * num_bytes, 2 * (num_ranks - island_size) * num_bytes
    if architecture == "ring":
        return each, num_islands * each if num_islands > 1 else 0
    return each, 2 * (num_islands - 1) * num_bytes
    ### END SOLUTION


# %%
check.traffic(my_traffic)

# %%
check.hint("traffic")

# %% [markdown]
# ### 4. Read the bill out of a rank
#
# Return the bytes that **this rank** holds, as a dict with `"parameters"`, `"gradients"` and `"optimizer"`. It is called between a backward and a step, on a model in DDP or one cut by `fully_shard`, whose parameters are DTensors: each says how large the whole is, and `to_local()` gives the part that lies here. Two layers may share a weight, a parameter may be frozen, and not everything has 4 bytes.

# %% [markdown] lang="zh" of="afbe5373"
# ### 4. 从 rank 里读出账单
#
# 返回**本 rank** 持有的字节，一个有 `"parameters"`、`"gradients"`、`"optimizer"` 三项的字典。它在反向之后、更新之前被调用；模型或者在 DDP 里，或者用 `fully_shard` 切开过，后者的参数是 DTensor：它报的是整体的大小，`to_local()` 才是存在这里的那一片。可能有两层共用一个权重，可能有参数被冻结，也不是什么都占 4 字节。


# %%
def my_bill(model, optimizer):
    """Bytes on this rank: {"parameters": ..., "gradients": ..., "optimizer": ...}."""
    ### BEGIN SOLUTION
    from torch.distributed.tensor import DTensor

    def num_bytes(tensors):
        return sum(
            (each.to_local() if isinstance(each, DTensor) else each).nbytes for each in tensors
        )

    weights = list(model.parameters())
    return {
        "parameters": num_bytes(weights),
        "gradients": num_bytes(weight.grad for weight in weights if weight.grad is not None),
        "optimizer": num_bytes(
            each for state in optimizer.state.values() for each in state.values()
        ),
    }
    ### END SOLUTION


# %%
check.held_bytes(my_bill)

# %%
check.hint("held_bytes")

# %% [markdown]
# ## Summary
#
# - Training in mixed precision with Adam takes 16 bytes of states per parameter, and so does fp32. Weights alone say little about whether a model can be trained.
# - Activations: about 34 bytes per token, layer and unit of width in 16 bit, and a term with the square of the length if attention is stored.
# - Sharding divides the states. Activations shrink with a rank's share of the batch or of the layers, or by recomputing, not by sharding states.
# - By layers sends least and stands idle; data parallel sends the gradients whatever the batch; tensor parallel sends four activations per layer.
# - Every all-reduce sends $2(N-1)S$ in all. Architectures differ in who sends it over which link.
# - More devices fail more often; that is a price, not a reason.
#
# ## Sources
#
# - Model states: Rajbhandari et al. 2020, *ZeRO*, [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
# - Activations: Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - 6 operations per parameter and token: Kaplan et al. 2020, [arXiv 2001.08361](https://arxiv.org/abs/2001.08361)
# - Interruptions: *The Llama 3 Herd of Models*, 2024, [arXiv 2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.4
# - Models and devices: `data/models.csv` and `data/hardware.csv` name a paper or data sheet in each row
#
# Where you stand:

# %% [markdown] lang="zh" of="bfb2e70c"
# ## 小结
#
# - 混合精度加 Adam，每个参数有 16 字节的状态，fp32 也是。光看权重，说不准一个模型能不能训练。
# - 激活：16 位时，每个 token、每层、每个宽度单位约 34 字节；若存下注意力矩阵，还有一项随长度的平方增长。
# - 分片除的是状态。激活只随一个 rank 分到的数据或层变小，或者靠重算；状态分片对它没有用。
# - 按层切分发得最少，但会空闲；数据并行发的是梯度，与批大小无关；张量并行每层发四次激活。
# - 任何 all-reduce 合计都发 $2(N-1)S$。架构的差别在于谁发、走哪条链路。
# - 设备越多，故障越频繁：这是代价，不是理由。
#
# ## 出处
#
# - 模型状态：Rajbhandari 等，2020，*ZeRO*，[arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
# - 激活：Korthikanti 等，2022，*Reducing Activation Recomputation in Large Transformer Models*，[arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - 每参数每 token 6 次运算：Kaplan 等，2020，[arXiv 2001.08361](https://arxiv.org/abs/2001.08361)
# - 中断次数：*The Llama 3 Herd of Models*，2024，[arXiv 2407.21783](https://arxiv.org/abs/2407.21783)，3.3.4 节
# - 模型与设备：`data/models.csv` 和 `data/hardware.csv` 每一行都写明论文或数据手册
#
# 你做到了哪里：

# %%
check.status()
