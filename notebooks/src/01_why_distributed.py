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

# %%
import labkit as lab

lab.begin("en")
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
from labkit.collectives.algorithms import plan
from labkit.collectives.plans import Message, Plan, sent_bytes, validate
from labkit.units import format_bytes, format_share, format_us
from labkit.planner import need_run, strategies_run
from labkit.planner.models import DEVICES, MODELS, TFLOPS

# %% [markdown] sections="8.1.1"
# ## The memory bill
#
# Section 8.1.1 lists models, the size of their weights in 16 bit, and whether an A100 with 80 GB can train them. LLaMA-7B: 14 GB, "barely (needs optimizing)". But training holds more than weights. The usual recipe, mixed precision with Adam, keeps for every parameter: itself and its gradient in 16 bit, and three numbers in fp32: a copy of the parameter that the updates are added to, and Adam's two moments. All this together is called the **model states**.
#
# **Predict.** How many GB of model states does a model of 7 billion parameters have with this recipe?

# %%
my_state_gb = lab.guess(
    {"en": "model states of 7 billion parameters", "zh": "70 亿参数的模型状态"},
    unit="gb",
)

# %%
kinds = sharding_states.state_bytes(7e9, recipe_name="mixed")
textbook = {"parameter": 14e9, "gradient": 14e9, "exp_avg": 28e9, "exp_avg_sq": 28e9}
print(f"{'':12} computed   section 8.1.1")
for kind, num_bytes in [*kinds.items(), ("together", sum(kinds.values()))]:
    said = sum(textbook.values()) if kind == "together" else textbook.get(kind, 0)
    print(f"{kind:<12} {format_bytes(num_bytes):>8} {format_bytes(said):>15}")
my_state_gb.score(sum(kinds.values()) / 1e9)

# %% [markdown]
# The section adds 10 GB of activations and says 94 GB; the fp32 copy (`master`), which section 8.5 of the same chapter does count, is missing. The states alone exceed 80 GB: without sharding or offloading, this recipe does not train 7B on that card. Now the whole list, with the parameter counts as published ("7B" is 6.7 billion). `ZeRO 3` is the fewest cards if all states are cut in parts; activations are not in it yet.

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

# %% [markdown] sections="8.1.1"
# ### Is it true?
#
# Sixteen bytes per parameter is a claim, so look. Two ranks train a small transformer by four recipes: plain torch in fp32 with Adam, the same with SGD and momentum, everything in bf16, and the mixed recipe as DeepSpeed implements it. After a backward, `sharding.shards` lists every tensor that model, engine and optimizer hold.


# %%
def four_recipes():
    return {
        recipe: need_run.train(recipe, 1, False)
        for recipe in ("fp32", "sgd", "bf16", "mixed")
    }


run = lab.launch(four_recipes, ranks=2, devices="deepspeed", timeout_s=50)
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

# %% [markdown] sections="8.1.1"
# Exactly what theory says; `step` is Adam's counter, 4 bytes per tensor. Two recipes come to 16 by different ways, so halving the bits saves no model states as long as fp32 copies are kept. It saves activations and traffic.
#
# ### Activations
#
# What the forward keeps for the backward. Section 8.1.1 takes $b\,s\,h\,L \cdot 4$ bytes: 4 for each token, layer and unit of width. A layer keeps more than one tensor. Korthikanti et al. (2022) count, in 16 bit with dropout, $34\,s\,b\,h$ bytes per layer, and $5\,a\,s^2 b$ more if the attention matrix is stored ($a$ heads). Here is such a block, with a dropout that keeps its mask in one byte per element, as a GPU does:


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


class LlamaWithLayerNorm(LlamaBlock):
    """With a norm that is one operator in torch."""

    def __init__(self, dim, num_heads):
        super().__init__(dim, num_heads)
        self.norm1, self.norm2 = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)


# %% [markdown]
# **Predict.** For these blocks in bf16: how many bytes per token and unit of width does autograd keep? The textbook's 4, the paper's 34, or something else?

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


print(
    f"{my_bytes = }\n\n length   GPT flash   GPT stored  (34 + 5 a s/h)   LLaMA   with LayerNorm"
)
for length in (64, 256, 512):
    stored = GptBlock(128, 4)
    stored.stored = True
    blocks = (GptBlock(128, 4), stored, LlamaBlock(128, 4), LlamaWithLayerNorm(128, 4))
    found = [kept(block, 2, length, 128) for block in blocks]
    print(
        f"{length:7} {found[0]:11.1f} {found[1]:12.1f} {34 + 5 * 4 * length / 128:15.1f}"
        f"{found[2]:10.1f} {found[3]:16.1f}"
    )

# %% [markdown]
# The paper's count, but for a few statistics of norms and softmax. So the textbook is off by a factor of 8 or more, and with a stored attention matrix there is no fixed factor at all: it grows with the length. The block of LLaMA has no masks but four wide tensors in its MLP, 21.5 bytes. The last two columns differ by 12 bytes, and that is the norm alone: torch's RMSNorm on a CPU is several operations, which keep two tensors in fp32, 8 bytes per element; a norm that is one operator keeps its input in 16 bit, 2 bytes; a block has two norms. So what LLaMA's block keeps depends on the kernels. For it, 34 is an estimate; below it is used as one.
#
# Turn the knobs. The dashed line is the device. The button trains the small model by the chosen recipe on two ranks and puts its bill, measured, under the predicted one; here `board.run()` has pressed it.

# %%
board = widgets.training_need(recipe="fp32")
board.run()
board

# %% [markdown]
# Three things to try. Which models does a T4 hold, and with which recipe? LLaMA 13B on cards of 40 GB: what does ZeRO 1 lack? GPT-3 on 80 GB: no number of cards is enough with one sequence each; what helps?
#
# ### More bills of the textbook
#
# Section 8.8.1 cuts 175 billion parameters over 8 x 4 x 2 devices (data, pipeline, tensor) and divides 16 bytes per parameter by 64. But data parallelism divides only what ZeRO shards. Section 8.10 trains LLaMA-13B on four cards of 40 GB; section 19.8.4 puts 10 billion parameters on eight. Each line computed, the textbook's number last:

# %%
for stage in range(4):
    states = sharding_states.state_bytes(175e9 / (4 * 2), 8, stage)
    print(
        f"8.8.1  175B, PP 4 x TP 2, DP 8 with stage {stage}: {format_bytes(sum(states.values())):>8}   (43.75 GB)"
    )
for name, recipe in (("fp32 copy", "mixed"), ("bf16 throughout", "bf16")):
    states = sharding_states.state_bytes(13e9, 4, 3, recipe)
    print(
        f"8.10   13B, FSDP on 4 x 40 GB, {name}: {format_bytes(sum(states.values()))}"
    )
print(
    f"8.10   effective batch: 2 per card x 16 accumulated x 4 cards = {2 * 16 * 4}   (32)"
)
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

# %% [markdown] sections="10.1.1"
# ## Five reasons
#
# Section 10.1.1 gives five. Each with a number.
#
# **1. Models do not fit.** The section's example is right: GPT-3 has 700 GB of weights in fp32. **2. Too much to compute.** A training run takes about 6 operations per parameter and token (Kaplan et al. 2020). The papers of LLaMA say how many hours of A100 they used, so that the share of the peak they reached can be computed, and so can the years that one card would take:

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


# %%
def tokens_per_second():
    import time
    from labkit import model
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    text, bpe = model.STORY.read_text(encoding="utf-8"), Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    bpe.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=1000, show_progress=False)
    )
    rates = []
    for _ in range(15):
        began = time.perf_counter()
        rates.append(len(bpe.encode(text).ids) / (time.perf_counter() - began))
    return sorted(rates)[-4]  # the machine may do other things meanwhile


for size in (1, 2):
    rate = sum(lab.launch(tokens_per_second, ranks=size, timeout_s=30))
    days = MODELS["LLaMA 7B"].train_tokens / rate / 86400
    print(
        f"{size} process{'es' * (size - 1)}: {rate / 1e6:.2f} million tokens per second, {days:.1f} days for 10^12"
    )

# %% [markdown]
# **4. Reliability**, says the section: a distributed system tolerates faults. That is the wrong way round, at first. If one card fails once in $M$ hours, $N$ cards together fail once in $M/N$. The Llama 3 report (section 3.3.4) counts 419 unexpected interruptions in 54 days on 16,384 GPUs. If they come independently of each other:

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


# %%
def first_look(averaged):
    import time
    import torch
    import torch.distributed as dist
    from labkit import model
    from labkit.devices.place import synchronize
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
            synchronize()  # a GPU works on while Python goes ahead
            time.sleep(0.05 * rank)  # rank 1 is slower
            began = time.perf_counter()
            for weight in net.parameters() if averaged else ():
                dist.all_reduce(weight.grad)
                weight.grad /= 2
            synchronize()
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
    run = lab.launch(first_look, averaged, ranks=2, timeout_s=40)
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
        lab.launch(fails, how, ranks=2, timeout_s=30)
    except lab.LaunchError as verdict:
        first = str(verdict).split("\n\n")[0]  # what follows is a traceback
        print(
            f"--- after {time.perf_counter() - began:.1f} s: {type(verdict).__name__}\n{first}\n"
        )

# %% [markdown] sections="8.1.2"
# ## Three strategies
#
# Section 8.1.2 names three. **Data parallel**: every rank holds the whole model and takes a part of the batch; gradients are averaged. **Model parallel**: every rank holds some of the layers, and activations travel. **Hybrid**: both. To these the board adds a fourth that section 8.1.2 leaves to later: data parallel with the **states sharded** (ZeRO, FSDP).
#
# **Predict**, for LLaMA 7B on 4 ranks: which of the four sends the fewest bytes? Which two hold the same?

# %%
my_fewest, my_equal = None, (None, None)

# %%
board = widgets.strategies(strategy="layers")
board.run()
print(f"{my_fewest = }, {my_equal = }")
board

# %% [markdown]
# By layers sends least by far, and holds as little as full sharding does. What it pays is idle time, and that is why more microbatches are wanted (chapter 08); and the cut must leave every rank equally much to do, while sharding needs no such care. Move the batch: data parallelism sends the same whatever the batch, model parallelism in proportion to it.
#
# Is it the same training? The two losses of two steps, by three strategies, on the same 16 sequences, from the same weights:


# %%
def three_strategies():
    return {
        strategy: strategies_run.train(strategy, 16, False)
        for strategy in ("data", "layers", "hybrid")
    }


run = lab.launch(three_strategies, ranks=4, timeout_s=50)
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
# ### What tensor parallelism sends
#
# The summary in section 8.12 says of tensor parallelism, which cuts every layer instead of the stack of layers, that it reduces communication. Less than what? Each rank has some of the hidden units of an MLP; what comes out of its half is only a part of the sum. So a forward needs an all-reduce of the activations, and a backward one of their gradients. Written by hand, counted, and compared with the whole MLP:


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


calls, num_bytes, off = lab.launch(half_an_mlp, 2, 32, 48, ranks=2, timeout_s=40)[0]
print(
    f"{calls} all-reduces, {num_bytes} bytes = {num_bytes / (2 * 32 * 48 * 4):g} x the activations; off by {max(off):.0e}"
)

# %% [markdown]
# Attention needs two more, so a layer has four in a step. With LLaMA 7B over 8 ranks in 16 bit, microbatches of one sequence of 2048 tokens, beside the one all-reduce of data parallelism:

# %%
llama, ring = (
    MODELS["LLaMA 7B"],
    2 * (8 - 1) / 8,
)  # what a rank sends in a ring all-reduce, in buffers
print(
    f"data parallel: {format_bytes(ring * 2 * llama.params)} per step, whatever the batch"
)
for num_sequences in (1, 4, 16, 64):
    activations = 2 * num_sequences * llama.seq_len * llama.dim
    print(
        f"tensor parallel, {num_sequences:2} sequences: {4 * llama.layers * num_sequences:5,} all-reduces, "
        f"{format_bytes(ring * 4 * llama.layers * activations)} per step"
    )

# %% [markdown]
# Tensor parallelism sends less than data parallelism with one sequence or four, and more with 16 or 64: its bytes grow with the batch. And they are harder to hide. In the forward the next operation waits for the sum. In the backward there is something to do meanwhile: a weight's gradient does not need the sum of the input's gradients, and Megatron-LM computes it while that all-reduce runs (`LinearWithGradAccumulationAndAsyncCommunication`; chapter 08 splits a backward in the same two parts). It is for the fastest links, inside one machine. What it saves is memory, and waiting for a pipeline.

# %% [markdown] sections="10.1.3"
# ## Four architectures
#
# Section 10.1.3 draws how ranks can be connected to average gradients. **Parameter server**: one rank collects and answers. **Ring**: each talks to its two neighbours. **Hierarchical**: in groups first, then between groups. **Hybrid**: one way inside a machine and another between machines, for example shared memory inside, an all-reduce between representatives. The first three are plans of labkit: lists of messages. The hybrid is put together here from pieces:


# %%
def hybrid(num_ranks, island_size):
    """Each island's first rank adds up its island, rings with the other firsts, and hands the sums out."""
    firsts = range(0, num_ranks, island_size)
    whole = tuple(
        range(len(firsts))
    )  # one chunk per island: the ring passes them on one by one
    adds = [
        [Message(first + i, first, whole, "add") for first in firsts]
        for i in range(1, island_size)
    ]
    between = [
        [Message(firsts[src], firsts[dst], chunks, op) for src, dst, chunks, op in step]
        for step in plan("all_reduce", "ring", len(firsts)).steps
    ]
    copies = [
        [Message(first, first + i, whole, "copy") for first in firsts]
        for i in range(1, island_size)
    ]
    made = Plan(
        primitive="all_reduce",
        algorithm="hybrid",
        num_ranks=num_ranks,
        num_chunks=len(firsts),
        steps=tuple(map(tuple, [*adds, *between, *copies])),
    )
    validate(
        made
    )  # every rank ends with the sum of all, no port is used twice in a step
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
widgets.show(widgets.architectures(list(zip(names, four(8, 4).values())), 4))

# %% [markdown]
# Two machines of four ranks; S is the size of the gradients. **Predict**: which of the four sends the most bytes, all ranks taken together?

# %%
my_most = None

# %%
from labkit.collectives.network import Link, islands, time_us
from labkit.planner.links import crossing_bytes

fast, slow = (
    Link(alpha_us=2, bandwidth_gb_per_s=300),
    Link(alpha_us=5, bandwidth_gb_per_s=25),
)
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

# %% [markdown] sections="10.1.2, 10.1.3"
# All four send the same: $2(N-1)S$. Every other rank's part is added once and its sum comes back once: where only ranks add, no way sends less in all (chapter 02). There are ways that send more: with recursive doubling, in each of $\log_2 N$ steps every rank exchanges the whole buffer with another, $N \log_2 N \cdot S$ in all, 24 S against 14 S for 8 ranks. And where the switch adds (NVLS, SHARP), ranks send less. What differs between these four is **who** sends and **over which link**. The server does half of all the sending itself. The ring shares it equally but crosses between the machines as if that link were like any other. Hierarchical shares equally and crosses least; the hybrid crosses as little, and leaves the work to the representatives.
#
# How does it grow? Section 10.1.2 says that communication increases with the number of devices. For the busiest rank, in islands of four:

# %%
counts = (8, 16, 32, 64)
sweep = {
    count: [sent_bytes(each, 1).max() for each in four(count, 4).values()]
    for count in counts
}
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
    )
)

# %% [markdown]
# For the ring and for hierarchical it stays below 2 S, whatever N. (Their curves are one: 2(N-1)/N in both.) What grows with N there is the sum over all links, and the number of steps, that is, latency.
#
# Now on four real ranks, two "machines" of two. The plans run message by message; then the same two-level idea with torch's own collectives in groups (`new_group`). 800 kB, counted in each rank: what was handed to `send`, and what went out on the wire.


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
run = lab.launch(on_four_ranks, plans, num_bytes, ranks=4, timeout_s=40)
print(f"{'':<17} {'predicted':^29}   {'handed to send':^29}   on the wire, busiest")
for name in run[0]:
    theory = (
        sent_bytes(plans[name], num_bytes).astype(int).tolist()
        if name in plans
        else ["-"] * 4
    )
    sent, wire, right = zip(*(result[name] for result in run))
    wire = "unknown" if None in wire else f"{max(wire):,}"  # only Linux counts it
    print(
        f"{name:<17} {' '.join(f'{each!s:>7}' for each in theory)}   {' '.join(f'{each:7}' for each in sent)}"
        f"   {wire:>9}   {'right' if all(right) else 'WRONG'}"
    )

# %% [markdown]
# The plans send what was predicted, to the byte; the wire adds headers. With `new_group` nothing is handed to `send`, and the wire has more than the plan "hierarchical": gloo runs a reduce-scatter as an all-reduce (chapter 02). Which architecture does torch use? On GPUs NCCL decides, as documented, by size and topology between rings, trees and others (chapter 02 has the sources). What you choose is the groups.

# %% [markdown] sections="D-faq"
# ## Which strategy when
#
# The demo project's first question. Its answer, and section 8.12's, go by size: DDP below 10 billion parameters, FSDP up to 100, and so on. Size alone can't say: the recipe, the sequence and the card matter as much. Computed instead: the least sharding that fits, for one sequence per card, activations by the estimate above.


# %%
def least_sharding(each, device_bytes, num_ranks, attention="flash"):
    """The lowest ZeRO stage that fits, in words."""
    for stage, name in enumerate(("DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3 / FSDP")):
        if (
            sum(
                each.bill(
                    1, attention=attention, num_ranks=num_ranks, stage=stage
                ).values()
            )
            <= device_bytes
        ):
            return name
    return "recompute?" if attention == "flash" else "cut the model too"


print(
    f"{'':<13} {'8 x A100 40':<15} {'8 x H100 80':<15} {'64 x H100 80':<15} 64 x H100 80, all recomputed"
)
for each in MODELS.values():
    row = [
        least_sharding(each, device, num)
        for device, num in ((40e9, 8), (80e9, 8), (80e9, 64))
    ]
    row.append(least_sharding(each, 80e9, 64, "recompute"))
    print(f"{each.name:<13}", *(f"{cell:<15}" for cell in row))
print(
    f"\nstates of 10B, nothing sharded: {format_bytes(sum(sharding_states.state_bytes(10e9).values()))}; largest model whose states"
    f" fit: A100 40 GB {sharding_states.largest_model(40e9) / 1e9:.1f}B, H100 80 GB {sharding_states.largest_model(80e9) / 1e9:.1f}B"
)

# %% [markdown] sections="D-faq"
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
    autocast = torch.autocast(
        torch.get_default_device().type, torch.bfloat16, enabled=way == "autocast"
    )
    num_microbatches = 4 if way == "accumulate 4" else 1
    with traffic.count() as counted:
        for index in range(num_microbatches):
            tokens, targets = model.story_tokens(
                2, 32, seed=4 * dist.get_rank() + index
            )
            with (
                net.no_sync()
                if index < num_microbatches - 1
                else contextlib.nullcontext(),
                autocast,
            ):
                model.loss(net(tokens).float(), targets).backward()
    return counted.payload_bytes["all_reduce"] / (2 * num_microbatches)


# %%
ways = ("plain", "fp16 hook", "accumulate 4", "autocast")
counted = {way: lab.launch(ddp_bytes, way, ranks=2, timeout_s=40)[0] for way in ways}
print(f"{my_useless = }")
for way, num_bytes in counted.items():
    print(
        f"{way:<13} {num_bytes:10,.0f} bytes per sequence and rank: {num_bytes / counted['plain']:.2f} of plain"
    )

# %% [markdown]
# Autocast computes in 16 bit, but weights and gradients stay fp32, and that is what DDP sends. It is the model's own type (the "mixed" recipe of the bill) or a hook that halves the bytes. Accumulating divides them by the number of microbatches, at the price of fewer updates (chapter 12, to come).

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown, on real ranks where there is something to hold or send, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. The states of a rank
#
# GB of model states on each of `num_ranks` ranks. `recipe` is `"sgd"`, `"fp32"`, `"mixed"`, `"bf16"` as measured above, or `"accumulate"`: mixed, with a second set of gradients in fp32 to add up in. `stage` shards nothing (0), the optimizer (1), gradients too (2), parameters too (3); `"accumulate"` counts both its sets as gradients. No calls of `labkit.sharding.states`, of course.


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


# %%
def my_cards(num_params, activation_bytes, device_bytes):
    """(stage, num_ranks), or None."""
    ### BEGIN SOLUTION
    found = []
    for stage in range(4):
        for num_ranks in range(1, 4097):
            if (
                1e9 * my_states(num_params, "mixed", stage, num_ranks)
                + activation_bytes
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


# %%
def my_traffic(architecture, num_ranks, num_bytes, island_size):
    """What the busiest rank sends, and what goes between islands."""
    ### BEGIN SOLUTION
    num_islands, each = (
        num_ranks // island_size,
        2 * (num_ranks - 1) / num_ranks * num_bytes,
    )
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


# %%
def my_bill(model, optimizer):
    """Bytes on this rank: {"parameters": ..., "gradients": ..., "optimizer": ...}."""
    ### BEGIN SOLUTION
    from torch.distributed.tensor import DTensor

    def num_bytes(tensors):
        return sum(
            (each.to_local() if isinstance(each, DTensor) else each).nbytes
            for each in tensors
        )

    weights = list(model.parameters())
    return {
        "parameters": num_bytes(weights),
        "gradients": num_bytes(
            weight.grad for weight in weights if weight.grad is not None
        ),
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
# - An all-reduce in which only ranks add sends $2(N-1)S$ in all, or more. Architectures differ in who sends it over which link.
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

# %%
check.status()
