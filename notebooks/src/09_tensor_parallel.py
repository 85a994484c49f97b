# ---
# jupyter:
#   labkit:
#     sections: ["8.7.1", "8.7.2", "10.3.1", "19.3.1", "19.8.3", "S8"]
#     needs: ["chapters 02 and 08", "megatron-core (make env installs it)"]
#     minutes: 90
# ---

# %% [markdown]
# # Tensor parallelism, and long sequences
#
# *An hour and a half, without the two optional exercises. You need chapters 02 and 08. No GPU is needed.*
#
# We now train our 7 B model on 512 cards, in 64 machines of eight. A step has 256 sequences; suppose that a larger batch would hardly teach it more. So each machine gets four. With data parallelism, half of the cards get no sequence at all. With a pipeline of eight stages and four microbatches, each card waits in 7 of 11 slots. That is 64 % of what we pay.
#
# There are too few sequences to go round. So let's cut inside the layers: each card takes a part of every matrix, and all eight work on the same tokens at the same moment. What do they have to tell each other?

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F

import labkit as lab
from labkit import long_context, planner, tensor_parallel, timeline
from labkit.long_context import check as ring_check
from labkit.tensor_parallel import check

lab.begin("en", deadline_s=60)
tensor_parallel.Layer(ranks=2).board()

# %% [markdown]
# Blue is the part of [rank](GLOSSARY.md#rank) 0, orange that of rank 1, and grey means: the same on both ranks. From left to right: the weights of queries, keys and values, what attention gives, its output projection, the summands (Σ), and the same again for the MLP. (*Handed in* is what a rank gives to a call; what is *sent* for it depends on the algorithm, chapter 02. This layer is tiny: nearly all of a message's time is latency, and the ranks mostly wait.) Step through the moments, and follow the tokens $X$ through a layer and back. At which of them does a rank need what only the other one has?
#
# **When you are done** you can cut a layer among cards, forward and backward, and say what it sends; you can cut a long sequence as well; and you know for which links each of the two is made.

# %% [markdown] sections="8.7.1, 19.3.1"
# ## Columns, or rows
#
# A linear layer is a product: $Y = XA$, with a row of $X$ for each token and a column for each feature. There are two ways to cut $A$. Give each rank some of its *columns*, and it computes some features of $Y$, from all of $X$. Side by side they are $Y$:

# %%
x, a = torch.randn(4, 8), torch.randn(8, 16)
left, right = a.chunk(2, dim=1)
lab.difference(torch.cat([x @ left, x @ right], dim=1), x @ a)

# %% [markdown]
# Or give each rank some *rows* of $A$. A row only ever meets one feature of $X$, so a rank needs just those features. But what it gets is as wide as $Y$, and each number is only a summand:

# %%
top, bottom = a.chunk(2, dim=0)
x_left, x_right = x.chunk(2, dim=1)
lab.difference(x_left @ top + x_right @ bottom, x @ a)

# %% [markdown] sections="8.7.1, 19.3.1"
# Both are $Y$, up to rounding. The first is called [column parallel](GLOSSARY.md#column-parallel), the second [row parallel](GLOSSARY.md#row-parallel). (torch stores a weight transposed, as features out by features in. There the columns are dimension 0.)
#
# <details><summary>Erratum 19.3.1: columns written as W[:h/2]</summary>
#
# The textbook draws a product cut by columns and gives the two GPUs `W[:h/2]` and `W[h/2:]`, which are rows. All of X doesn't fit them: `x @ a[:4]` raises a RuntimeError about the shapes. Columns are `W[:, :h/2]`.
#
# </details>

# %% [markdown] sections="8.7.1, 8.7.2"
# ## A column, then a row
#
# The MLP of a transformer is two products with a GELU between them. Cut the first by columns. Each rank then has some of the inner features, and because GELU takes one number at a time, it needs nobody else's. Those features meet just some rows of the second matrix, so nobody has to say anything until the very end:


# %%
def mlp(x, a, b):
    return F.gelu(x @ a) @ b


def column_then_row():
    torch.manual_seed(0)
    x, a, b = torch.randn(4, 8), torch.randn(8, 16), torch.randn(16, 8)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    y = mlp(x, a.chunk(ranks, dim=1)[rank], b.chunk(ranks, dim=0)[rank])
    before = lab.difference(y, mlp(x, a, b))
    dist.all_reduce(y)
    return {"off before": before, "off after": lab.difference(y, mlp(x, a, b))}


lab.launch(column_then_row, ranks=4)

# %% [markdown] sections="S8, 19.3.1"
# Before the sum, each of the four ranks is far from the right output; after it, only rounding is left. One [all-reduce](GLOSSARY.md#all-reduce) did for two products. (Rows first would need a sum *before* the GELU too, because the GELU of a sum is not the sum of GELUs.)
#
# Could each layer be cut by itself? Yes, with a gather after every column-parallel layer: a message for each product, where the pair needs one for two. The bias of a column-parallel layer is cut as its features are; that of a row-parallel one is added once, after the sum, or four ranks would add it four times.
#
# <details><summary>Erratum S8: a layer that gathers its input along the features</summary>
#
# The source's TensorParallelLinear gathers its input, which each rank already has whole, so two ranks have twice as many features as the weight, and it raises at its first call: `F.linear(torch.cat([x, x], dim=-1), left.T)` raises a RuntimeError about the shapes. In a column-parallel layer the input is whole and is not gathered. What comes out stays cut, or is gathered along the features where all of it is wanted.
#
# </details>

# %% [markdown]
# ## And back
#
# In the backward, the gradient of a sum is the gradient of each of its summands. So every rank begins with the whole gradient of $Y$ and goes back through its rows, the GELU and its columns, without a word to anybody. One of three gradients comes out wrong that way: of the input `x`, of the columns `a`, or of the rows `b`. Which?

# %%
wrong = lab.guess("which gradient is wrong?", choices=("x", "a", "b"))


# %%
def gradients():
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = [torch.randn(4, 8), torch.randn(8, 16), torch.randn(16, 8)]
    x, a, b = [each.clone().requires_grad_() for each in whole]
    mlp(x, a, b).sum().backward()
    right = [x.grad, a.grad.chunk(ranks, dim=1)[rank], b.grad.chunk(ranks)[rank]]
    parts = [whole[0], whole[1].chunk(ranks, dim=1)[rank], whole[2].chunk(ranks)[rank]]
    mine = [each.clone().requires_grad_() for each in parts]
    mlp(*mine).sum().backward()
    off = [lab.difference(one.grad, other) for one, other in zip(mine, right)]
    return dict(zip("xab", off))


backward = lab.launch(gradients, ranks=2)
backward

# %%
wrong.score(max(backward[0], key=backward[0].get))

# %% [markdown]
# The table says how far each gradient is from that of one process. `x` went into the columns of every rank, and each rank knows only the gradient through its own. So these are summands too, and have to be added: one all-reduce in the backward, where the pair *begins*.

# %% [markdown] sections="8.7.1, 19.3.1"
# ## Exercise 1. One all-reduce each way
#
# Now write the pair so that it can be trained: linear, GELU, linear. Weights are stored as torch stores them. Each rank gets the whole `x` and `down_bias`, and its own part of `up`, `up_bias` and `down`. Return the whole output, and let its backward leave the right gradients everywhere. Your budget is one collective forward and one backward. `dist.all_reduce` knows nothing of autograd, so you will want a `torch.autograd.Function` or two.


# %%
def my_pair(x, up, up_bias, down, down_bias):
    """This rank's part of an MLP: the whole output on every rank."""

    ### BEGIN SOLUTION
    class Begin(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            total = grad.clone()
            dist.all_reduce(total)
            return total

    class End(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            total = x.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, grad):
            return grad

    inner = F.gelu(F.linear(Begin.apply(x), up, up_bias))
    return End.apply(F.linear(inner, down)) + down_bias
    ### END SOLUTION


# %%
check.column_then_row(my_pair)

# %%
check.hint("column_then_row")

# %% [markdown] sections="8.7.2, 10.3.1"
# ## A whole layer
#
# Megatron's paper calls your two functions **f** and **g**: f stands where a pair begins and sums in the backward, g stands where it ends and sums in the forward.
#
# Attention is such a pair as well. A [head](GLOSSARY.md#attention-head) is some columns of the queries, keys and values, and no head ever looks into another. So give each rank whole heads, and let the output projection be row parallel. (Step through the board at the top once more: you now know why each block is cut the way it is.)
#
# How many all-reduces does a step of our 7 B model make in its 32 layers? Take one microbatch, forward and backward.

# %%
sums = lab.guess("all-reduces in a step of 32 layers", between=(0, 1000))

# %%
layer = tensor_parallel.Layer(ranks=2, heads=8)
sums.score(32 * layer.run()[0]["calls"]["all_reduce"])

# %% [markdown] sections="10.3.1"
# Two forward and two backward in each layer. Each is as large as the [activations](GLOSSARY.md#activations) between two layers, 17 MB for a sequence of 2048 tokens, and in the forward the next product can't start until it is done.
#
# <details><summary>Erratum 10.3.1: attention that gathers keys and values</summary>
#
# The textbook gathers K and V of all ranks along the features and multiplies each rank's queries by all of that. The shapes don't fit: `torch.ones(4, 32) @ torch.ones(4, 64).T` raises a RuntimeError. And nothing needs gathering, because heads are cut whole: the run above counted 4 all-reduces in a layer and nothing else.
#
# </details>

# %% [markdown] sections="10.3.1"
# ## Exercise 2, optional. Which slice?
#
# Which rows of a weight belong to a rank, where several heads of queries share one head of keys and values ([grouped queries](GLOSSARY.md#grouped-queries))?
#
# <details><summary>The task</summary>
#
# LLaMA-2 70B has 64 heads of queries, and 8 of keys. On more than eight ranks, then, some heads of keys lie on several.
#
# One weight often holds all three: the rows of all heads' queries, then those of the keys, then those of the values. Which of its rows belong to a rank? Deal the heads of queries as evenly as you can; the first ranks get the ones left over (`divmod` helps). A rank holds the keys and values that its queries look at, and no others. Return three ranges.
#
# </details>


# %%
def my_rows(heads, kv_heads, head_dim, num_ranks, rank):
    """Three pairs (start, stop): queries, keys, values."""
    ### BEGIN SOLUTION
    each, more = divmod(heads, num_ranks)
    first = rank * each + min(rank, more)
    stop, group = first + each + (rank < more), heads // kv_heads
    keys = first // group, (stop - 1) // group + 1
    found = [(first * head_dim, stop * head_dim)]
    for begin in (heads, heads + kv_heads):
        found.append(tuple((begin + at) * head_dim for at in keys))
    return found
    ### END SOLUTION


# %%
check.which_slice(my_rows)

# %%
check.hint("which_slice")

# %% [markdown] sections="19.8.3"
# ## The vocabulary
#
# The embedding is a large matrix as well, with a row for each word. Cut it by words. A rank that doesn't have a word looks up zeros instead, and the sum has them all:


# %%
def look_up():
    torch.manual_seed(0)
    table, tokens = torch.randn(12, 4), torch.randint(12, (2, 5))
    mine = table.chunk(dist.get_world_size())[dist.get_rank()]
    place = tokens - len(mine) * dist.get_rank()
    others = (place < 0) | (place >= len(mine))
    rows = F.embedding(place.masked_fill(others, 0), mine)
    rows = rows.masked_fill(others[..., None], 0)
    dist.all_reduce(rows)
    return lab.difference(rows, table[tokens])


lab.launch(look_up, ranks=2)[0]

# %% [markdown]
# At the other end, each rank has the logits of its own words. Must they be gathered for the loss? Cross-entropy only wants the largest logit of a token, the sum of the exponentials, and the logit of the right word. Those are three numbers for each token in place of 32,000. This is called [vocabulary parallel](GLOSSARY.md#vocabulary-parallel).

# %% [markdown] sections="8.7.2"
# ## In torch
#
# In torch you write a model as for one card, and a plan says how each weight is cut. The `-1` in `unflatten` lets each rank have as many heads as it holds:


# %%
class Block(torch.nn.Module):
    def __init__(self, width=64, head_dim=8):
        super().__init__()
        self.head_dim = head_dim
        self.q, self.k, self.v = (torch.nn.Linear(width, width) for _ in range(3))
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


# %%
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
plan |= {name: RowwiseParallel() for name in ("out", "down")}

# %% [markdown]
# `CommDebugMode` counts collectives. Will it be four all-reduces again? The queries, keys and values of this layer are three weights.


# %%
def by_torch():
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 16, 64, requires_grad=True)
    whole = block(x).detach()
    device = torch.get_default_device().type
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    parallelize_module(block, mesh, plan)
    with CommDebugMode() as comm:
        y = block(x)
        forward = comm.get_total_counts()
        y.sum().backward()
    both = {"forward": forward, "in all": comm.get_total_counts()}
    return {"off by": lab.difference(y.detach(), whole), **both}


lab.launch(by_torch, ranks=2)

# %% [markdown] sections="8.7.2"
# Two forward, as before. But backward there are four: one where the MLP begins, and one each for queries, keys and values, because torch sums each one's gradient over the ranks before it adds the three up. A single weight for all three would spare us two of them. (But then its rows must lie head by head: an even cut through stacked queries, keys and values gives ranks the wrong heads.)
#
# <details><summary>The pair in Megatron's words</summary>
#
# In Megatron the two kinds of layers are classes, and you build the model of them:
#
# ```python
# up = ColumnParallelLinear(768, 3072, config=config, init_method=normal_,
#                           bias=True, gather_output=False)
# down = RowParallelLinear(3072, 768, config=config, init_method=normal_,
#                          bias=True, input_is_parallel=True, skip_bias_add=False)
# inner, _ = up(x)
# y, _ = down(F.gelu(inner))
# ```
#
# Each returns its output and a bias that you may still have to add (here `None`, because `skip_bias_add=False` has it added). In torch's weights columns are dimension 0 and rows dimension 1, so both are cut as by hand.
#
# </details>
#
# <details><summary>Erratum 8.7.2: layers without a configuration</summary>
#
# The textbook gives `ColumnParallelLinear` its sizes and `gather_output`, and `RowParallelLinear` its sizes and `input_is_parallel`. Both also want a `config` and an `init_method`, and the second its `bias` and `skip_bias_add`. Import it and run it: `ColumnParallelLinear(768, 3072)` raises a TypeError that names what is missing.
#
# </details>

# %% [markdown]
# ## Sequence parallelism
#
# Between the pairs, at norms and residuals, all ranks hold the same activations and compute the same numbers. Why not cut those too, along the tokens? A norm looks at one token at a time.
#
# Then a column-parallel layer first needs the tokens of all ranks gathered, and after a row-parallel one each rank wants the sum of its own tokens only, which is a [reduce-scatter](GLOSSARY.md#reduce-scatter). In the backward they change places. This is called [sequence parallelism](GLOSSARY.md#sequence-parallelism). Where a layer had four all-reduces, it now has four all-gathers and four reduce-scatters. How much more does a rank send, or how much less?

# %%
ratio = lab.guess("bytes sent, with the tokens cut / without", between=(0, 4))


# %%
def sent_bytes(payload, ranks):
    """What a ring sends for what a rank hands in."""
    share = (ranks - 1) / ranks
    sends = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": ranks - 1}
    return sum(sends[name] * num_bytes for name, num_bytes in payload.items())


llama = tensor_parallel.Layer(ranks=8, hidden=4096, heads=32, sequence=2048)
cut = llama.but(sequence_parallel=True)
ratio.score(sent_bytes(cut.payload(), 8) / sent_bytes(llama.payload(), 8))

# %% [markdown]
# It is the same, because an all-reduce *is* a reduce-scatter and an all-gather (chapter 02). We have only pulled its two halves apart and put the norm between them. Two things are new. A norm's weights, and a bias after the sum, meet only a rank's own tokens now, so their (small) gradients are summands and have to be added up. And there are twice as many messages: on the first board, where latency counts, the cut layer's step takes longer.
#
# What do we get for it? Here is what a small layer keeps for its backward, as its ranks counted it. By hand, a cut layer keeps the tokens that it gathered. Megatron's doesn't, and gathers them anew in the backward. (Megatron takes a while to start.)

# %%
whole = tensor_parallel.Layer(ranks=2)
layers = {"whole": whole, "cut": whole.but(sequence_parallel=True)}
kept = {"2 ranks": {}, "4 ranks": {}}
for each, layer in layers.items():
    kept["2 ranks"][each] = layer.run()[0]["activation_bytes"]
    kept["4 ranks"][each] = layer.but(ranks=4).run()[0]["activation_bytes"]
megatron = layers["cut"].but(ranks=4, engine="megatron")
kept["4 ranks"]["gathered twice"] = megatron.run()[0]["activation_bytes"]
lab.bars(kept, unit="bytes", title="Kept for the backward on a rank")

# %% [markdown]
# Look at how much each bar shrinks when the ranks double. *Whole*, by a third only, because what lies between the pairs is on every rank. *Cut*, by two fifths, for the same bytes sent. *Gathered twice* keeps least. Its price is six all-gathers in place of four, so a quarter more bytes.

# %% [markdown] sections="19.8.3"
# ## When is it worth it?
#
# Tensor parallelism has no bubble and needs no microbatches. But it speaks four times in a layer. Forward, nothing hides that, because the next product needs the sum. Backward, Megatron multiplies the gradient of the weight meanwhile, and hides a part.
#
# Take our machine with its eight cards, NVLink between them (300 GB/s each way), and four sequences. Now put the same eight cards into two machines of four, with 25 GB/s for each card between the machines. How many times as long is the step? We ask the planner. In a plan `tp` is how many slices a layer has, `sp` sequence parallelism, and `mbs` the sequences in a microbatch:

# %%
longer = lab.guess("step in two machines / step in one", between=(1, 10))

# %%
machine = planner.Plan(model="LLaMA 7B", gpus=8, batch=4, tp=8, sp=True, mbs=4)
machines = {
    "8 cards in a machine": machine,
    "4 cards in a machine": machine.but(per_node=4),
}
one, two = [plan.time().step_us for plan in machines.values()]
longer.score(two / one)

# %%
lab.show(planner.time_bars(machines))

# %% [markdown]
# Predicted, by constants fitted to published runs of Megatron. The planner hides none of these messages. Only one part of the bar grows. So tensor parallelism stays inside a machine. There it can cut into eight parts at most, and fewer parts speak less.
#
# Here is our machine with its four sequences: eight stages before, each layer cut in eight after:

# %%
planner.card(planner.Plan(model="LLaMA 7B", gpus=8, batch=4, pp=8), machine)

# %% [markdown]
# Of these 309 ms, 93 are messages (in the bars above): we wait 30 % of the time, where the pipeline waited 64 %. (It is the step of one machine alone. What the 64 tell each other is for chapter 10.) Two cards for each sequence are another way (try `machine.but(tp=2, mbs=1, zero=1)`, four copies of the model): which mixture is best is the question of chapter 10. With many more sequences the pipeline would win (try `batch=64` in both plans), because its bubble would shrink and the messages of the layers would not.
#
# *A good place to stop. What follows cuts something else, and needs only the ring of [chapter 02](02_collectives.ipynb).*
#
# ## What also grows: the sequence
#
# Next, our model is to read whole books. So our eight cards get one sequence at a time, but a long one. Tensor and sequence parallelism are on:

# %%
book = planner.Plan(model="LLaMA 7B", gpus=8, tp=8, sp=True, batch=1)
books = {
    "2,048 tokens": book,
    "32,768 tokens": book.but(seq=32768),
    "131,072 tokens": book.but(seq=131072),
    "262,144, recomputed": book.but(seq=262144, recompute="full"),
}
lab.show(planner.memory_bars(books))

# %% [markdown]
# The states stay as they are, and the activations grow with the tokens. At 131,072 they don't fit any more. (In the last row the logits are freed before a layer is recomputed in their place. Drawn as logits is only what they need beyond it.) Recomputing everything makes room even for twice as many ([chapter 05](05_precision_and_memory.ipynb)). But it does every forward twice, and attention's work grows with the square of the tokens. We want more cards, for room and for time. Along the slow links between machines cut layers would wait, and a pipeline would have a single microbatch. What else can be cut?
#
# The *sequence*, for the whole of a layer. Products, norms and GELU take each token alone, so they send nothing. Only attention looks from one token to others. This is [context parallelism](GLOSSARY.md#context-parallelism). (Sequence parallelism cuts the tokens only between the pairs, and gathers them before each. Context parallelism leaves them cut in the products too. Its ranks have the same weights, and add up their gradients once a step, as in data parallelism.)
#
# ## A softmax that is not finished
#
# Say a rank has its queries and half of the keys and values. How could the other half come later, when a softmax divides by a sum over *all* keys? If we keep the logarithm of each half's sum (`lse`, for log-sum-exp), we can weigh the two outputs $o$ afterwards, with $l$ for `lse`:
#
# $$o = \frac{e^{l_1} o_1 + e^{l_2} o_2}{e^{l_1} + e^{l_2}}$$


# %%
def joined(out, lse, more, more_lse):
    """Attention over two sets of keys, from attention over each."""
    total = torch.logaddexp(lse, more_lse)
    weight, more_weight = (lse - total).exp(), (more_lse - total).exp()
    return weight[..., None] * out + more_weight[..., None] * more, total


def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


# %%
q, k, v = torch.randn(3, 4, 32, 16)  # each 4 heads, 32 tokens, 16 features
first, second = attend(q, k[:, :16], v[:, :16]), attend(q, k[:, 16:], v[:, 16:])
lab.difference(joined(*first, *second)[0], F.scaled_dot_product_attention(q, k, v))

# %% [markdown]
# So keys may come in pieces.
#
# ## Ring attention
#
# Queries stay where they are. Keys and values go round, from each rank to the next, and after a full turn everybody has met all of them:


# %%
def passed_on(tensor):
    """To the next rank; what comes from the one before."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(tensor)
    calls = [
        dist.P2POp(dist.isend, tensor, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks),
    ]
    for request in dist.batch_isend_irecv(calls):
        request.wait()
    return arriving


# %%
def ring():
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    q, k, v = torch.randn(3, 4, 32, 16)
    mine = q.chunk(ranks, dim=1)[rank]
    kv = torch.stack([k, v]).chunk(ranks, dim=2)[rank].contiguous()
    out, lse = attend(mine, *kv)
    for _ in range(ranks - 1):
        kv = passed_on(kv)
        out, lse = joined(out, lse, *attend(mine, *kv))
    whole = F.scaled_dot_product_attention(q, k, v)
    return {"off by": lab.difference(out, whole.chunk(ranks, dim=1)[rank])}


lab.launch(ring, ranks=4)

# %% [markdown]
# No rank ever holds all keys: only a quarter, and one more while it arrives. (Real programs let the next keys travel while these are multiplied.)
#
# <details><summary>And backward?</summary>
#
# Keys and values go round once more, and their gradients travel too: each rank adds its summand and passes them on, one hop further than the keys, so that they end where the keys live.
#
# </details>
#
# ### Half of the work is gone. And half of the time?
#
# A language model only looks back. So pairs of a token with later keys need not be computed, which is half of all work. Cut the sequence in eight pieces, and let each of four ranks hold two neighbours. What share of the time do the four stand idle, all together?

# %%
idle = lab.guess("idle share of this ring, 4 ranks", between=(0, 1))

# %%
uneven = long_context.Attention(ranks=4, balanced=False)
idle.score(timeline.bubble(uneven.predict()))

# %%
uneven.board()

# %% [markdown]
# Step through the rounds. The last rank has something to do in each, the first only in its own: the front of a sequence makes little work, the back much. What if each rank has one piece from the front and one from the back?

# %%
balanced = uneven.but(balanced=True)
balanced.compare()

# %% [markdown]
# In theory nobody waits any more. The last rank of the uneven ring had 14 pairs of pieces in all rounds together, where each now has 8, so that ring takes 14 / 8 as long. If tokens looked at later ones too, each would have 16: so the uneven ring saves an eighth of the time, the balanced one half. Measured, it takes longer: products overrun, and messages and late processes are waited for.
#
# (`F2` is the forward with the keys of rank 2. The durations are stated ([paced](GLOSSARY.md#paced)), the messages and the waiting are real. *Overran*: some took longer than stated. A send bar ends when its rank comes back to look, after computing.)

# %% [markdown]
# ## Exercise 3. A causal ring
#
# Build it. Here the sequence has twice as many blocks as there are ranks. `take(i, j)` hands your rank blocks i and j, one after the other, as `(q, k, v)`, each of the shape (heads, tokens, head_dim). Return the output of those tokens. A token sees itself and all before it. Use `passed_on` and `joined`, if you like. (`attend` has no mask. And where all keys of a row are masked, a softmax gives NaN: leave such blocks out.) Your budget: keys and values go round once, and no rank multiplies more than an even share of the pairs of blocks, plus one. (A block with itself counts as one here, because your code multiplies all of it; the picture counts it half.)


# %%
def my_ring(take):
    """Causal attention of this rank's two blocks."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    q, k, v = take(rank, 2 * ranks - 1 - rank)
    size = q.shape[1] // 2
    kv = torch.stack([k, v])
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:-1], -torch.inf)
    for turn in range(ranks):
        other = (rank - turn) % ranks
        for i, mine in enumerate((rank, 2 * ranks - 1 - rank)):
            for j, theirs in enumerate((other, 2 * ranks - 1 - other)):
                if theirs > mine:
                    continue
                at, there = (
                    slice(i * size, (i + 1) * size),
                    slice(j * size, (j + 1) * size),
                )
                scores = (
                    q[:, at] @ kv[0][:, there].transpose(-2, -1) / q.shape[-1] ** 0.5
                )
                if theirs == mine:
                    later = torch.ones(size, size, dtype=torch.bool).triu(1)
                    scores = scores.masked_fill(later, -torch.inf)
                more = scores.softmax(-1) @ kv[1][:, there], scores.logsumexp(-1)
                out[:, at], lse[:, at] = joined(out[:, at], lse[:, at], *more)
        if turn < ranks - 1:
            kv = passed_on(kv)
    return out
    ### END SOLUTION


# %%
ring_check.causal_ring(my_ring)

# %%
ring_check.hint("causal_ring")

# %% [markdown]
# ## Ulysses: heads for tokens
#
# Attention has many heads, and each of them needs all tokens. So before attention, let every rank give away most heads of its tokens, and get the other tokens of a few heads. That is an [all-to-all](GLOSSARY.md#all-to-all) for each of queries, keys and values, and a fourth leads the output back:


# %%
def swapped(x, scatter, gather):
    parts = torch.stack(x.chunk(dist.get_world_size(), scatter))
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts)
    return torch.cat(arrived.unbind(), gather)


# %%
def ulysses():
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    q, k, v = whole = torch.randn(3, 4, 32, 16)
    mine = [each.chunk(ranks, dim=1)[rank] for each in whole]  # all heads, some tokens
    heads = [swapped(each, 0, 1) for each in mine]  # some heads, all tokens
    y = F.scaled_dot_product_attention(*heads, is_causal=True)
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return lab.difference(swapped(y, 1, 0), right.chunk(ranks, dim=1)[rank])


lab.launch(ulysses, ranks=4)[0]

# %% [markdown]
# Attention itself is torch's own, and all ranks have the same work, because a head is a head. (It comes from DeepSpeed-Ulysses; there you wrap your attention in `DistributedAttention`. torch has the balanced ring, for GPUs, as `context_parallel`. We run neither here.)
#
# ### Which of the two?
#
# Here is what a rank *hands in* for one attention, forward and backward, as more ranks share the same sequence. A ring sends all of it. In Ulysses a rank's own part, an N-th, stays at home. The lines are theory, and the dots were counted on real ranks.

# %%
a_ring = long_context.Attention(heads=8)
by_heads = a_ring.but(way="ulysses")
ways = {"a ring": (a_ring, "send"), "Ulysses": (by_heads, "all_to_all")}
predicted, counted = {}, {}
for name, (each, call) in ways.items():
    predicted[name] = {n: each.but(ranks=n).payload()[call] for n in (2, 4, 8)}
    counted[name] = {4: each.run()[0]["payload_bytes"][call]}
lab.curves(
    measured=counted,
    predicted=predicted,
    x="ranks",
    y="handed in by a rank",
    unit="bytes",
    title="One attention over 128 tokens",
)

# %% [markdown]
# In a ring all keys pass by everybody, so what a rank hands in doesn't shrink with more ranks; it even grows a little. In Ulysses it is less and less. (Even on two ranks, where both hand in as much, Ulysses sends only half.)
#
# But a ring's messages can hide behind its products, they only go to a neighbour, and it takes any number of ranks. The all-to-alls come before and after attention, so they hide behind nothing here, and Ulysses can't have more ranks than there are heads. So some do both: Ulysses inside a machine, a ring between machines.

# %% [markdown]
# ## And the book?
#
# It gets a second machine. We may cut each layer in 16, or leave that at 8 and cut the sequence in two:

# %%
wide = {"gpus": 16, "seq": 131072}
two = {"tp 16": book.but(tp=16, **wide), "tp 8, cp 2": book.but(cp=2, **wide)}
lab.show(planner.memory_bars(two))

# %% [markdown]
# Both fit now, because each card keeps about half of the activations. Which is faster?

# %%
lab.show(planner.time_bars(two))

# %% [markdown]
# Both divide the computing by 16. But with `tp 16` every layer speaks across the machines, and waits. With `cp 2` layers send only keys and values across (and their gradients), and these hide behind attention, which is most of the bar at this length. (What does not hide is too thin to see. The two machines hold the same parameters then, and add up their gradients once a step.)

# %% [markdown] sections="19.8.3"
# ## Exercise 4, optional. Tensor or pipeline?
#
# Which of the two ends first, for a model and a link of your choice?
#
# <details><summary>The task</summary>
#
# A model of `layers` layers trains in fp32 on `batch` sequences. How many bytes does the busiest rank hand in for a step, if every layer is cut? How many, if the layers are dealt out as stages? And which of the two ends first?
#
# One rank alone would compute for `compute_us`, and both ways divide that by the ranks. All-reduces take a ring over links of `link_gb_per_s` (chapter 02), and nothing hides them. The pipeline's messages hide, but its bubble does not. The check also counts two cases on real ranks, which takes half a minute.
#
# </details>


# %%
def my_choice(
    layers, hidden, sequence, batch, num_ranks, microbatches, link_gb_per_s, compute_us
):
    """(bytes by tensor, bytes by pipeline, which ends first)."""
    ### BEGIN SOLUTION
    stream = 4 * batch * sequence * hidden
    tensor = 4 * layers * stream
    pipeline = stream if num_ranks == 2 else 2 * stream
    alone = compute_us / num_ranks
    by_tensor = alone + 2 * (num_ranks - 1) / num_ranks * tensor / link_gb_per_s / 1e3
    by_pipeline = alone * (microbatches + num_ranks - 1) / microbatches
    return tensor, pipeline, "tensor" if by_tensor < by_pipeline else "pipeline"
    ### END SOLUTION


# %%
check.tensor_or_pipeline(my_choice)

# %%
check.hint("tensor_or_pipeline")

# %% [markdown]
# ## Summary
#
# - A column-parallel layer gives features, a row-parallel one gives summands. The pair needs one all-reduce forward (g) and one backward (f), so a layer needs four.
# - Heads are cut whole, the vocabulary by words.
# - Sequence parallelism cuts what lies between the pairs as well: less memory for the same bytes.
# - Forward, products wait for these messages, so tensor parallelism stays inside a machine. It helps where sequences are few.
# - A long sequence is cut for the whole layer. Within it only attention talks, by a balanced ring or by heads for tokens.
#
# **Words:** [column parallel](GLOSSARY.md#column-parallel), [row parallel](GLOSSARY.md#row-parallel), [grouped queries](GLOSSARY.md#grouped-queries), [vocabulary parallel](GLOSSARY.md#vocabulary-parallel), [sequence parallelism](GLOSSARY.md#sequence-parallelism), [context parallelism](GLOSSARY.md#context-parallelism).
#
# **Further reading**
#
# - Megatron, f and g: Shoeybi et al. 2019, [arXiv 1909.08053](https://arxiv.org/abs/1909.08053)
# - Sequence parallelism: Korthikanti et al. 2022, [arXiv 2205.05198](https://arxiv.org/abs/2205.05198)
# - Ring attention: Liu et al. 2023, [arXiv 2310.01889](https://arxiv.org/abs/2310.01889); another balance (tokens dealt in turn): Brandon et al. 2023, [arXiv 2311.09431](https://arxiv.org/abs/2311.09431)
# - DeepSpeed-Ulysses: Jacobs et al. 2023, [arXiv 2309.14509](https://arxiv.org/abs/2309.14509)
# - [torch's tutorial](https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html) on tensor parallelism
#
# **Next:** [chapter 10](10_mesh_and_experts.ipynb), where all axes stand on one mesh, and experts join them.

# %%
check.status()
