# ---
# jupyter:
#   labkit:
#     sections: ["10.4.1", "10.4.2"]
#     needs: ["chapters 03 and 06"]
#     minutes: 90
# ---

# %% [markdown]
# # Large batches
#
# *About an hour and a half. You need chapters 03 and 06. No GPU is needed.*
#
# Our model of 7 billion parameters trains on 128 cards, and we are given 512. Each card keeps its work, so the batch is four times as large; a step takes 3.7 seconds as before, says the planner, so we see four times as many tokens a second. The bill for each hour is four times as large, too. Is the model done in a quarter of the time?
#
# Not by itself. In the small trainings below, four times the batch, 128 samples instead of 32, saved a third of the steps. So four times the cards would have made it one and a half times as fast, and most of what the new cards did was for nothing. What decides that, and can we know before we pay?

# %%
import math

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import labkit as lab
from labkit import large_batch, planner, widgets
from labkit.large_batch import check, recorded

lab.begin("en", deadline_s=180)
widgets.large_batch(batch=64)

# %% [markdown]
# Each dot of the first picture is a training that was recorded: how many steps it took, at a learning rate. Those that were given up lie at the top. Move the batch from 2 to 1,024. Which way does the best rate move, and from which batch on do the steps hardly fall any more? (Of equally good rates, the smaller is marked.)
#
# **When you are done** you can choose a learning rate for a larger batch, read from the gradients how large a batch is worth its cards, and write LARS for layers that are dealt out over ranks.

# %% [markdown]
# ## By hand: 64 samples, then 1,024
#
# The data are real: 1,437 handwritten digits to train on and 360 to test, and a classifier of 26 thousand weights. Two ranks train it together, each on half of every batch. First, the gradients of all ranks are averaged, in one message:


# %%
def average(tensors):
    message = parameters_to_vector(tensors)
    dist.all_reduce(message)
    vector_to_parameters(message / dist.get_world_size(), tensors)


# %% [markdown]
# Every rank shuffles alike, because `classifier(seed)` below seeds torch on all of them alike, and takes its share of each batch. (The last batch of an epoch is smaller.)


# %%
def deal(batch, epochs=20):
    for _ in range(epochs):
        for samples in torch.randperm(1437).split(batch):
            yield samples[dist.get_rank() :: dist.get_world_size()]


# %%
def accuracy(net):
    test = large_batch.digits("test")
    return (net(test.x).argmax(dim=1) == test.y).float().mean().item()


# %% [markdown]
# And this is all of the training, plain SGD. The seed decides about the weights at the start and the order of the samples; `factor` is for a schedule later, and until then it is 1:


# %%
def train(batch, rate, seed, factor=lambda share: 1.0):
    net = large_batch.classifier(seed)
    data = large_batch.digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    num_steps = 20 * math.ceil(1437 / batch)
    for step, mine in enumerate(deal(batch)):
        for group in optimizer.param_groups:
            group["lr"] = rate * factor(step / num_steps)
        optimizer.zero_grad()
        cross_entropy(net(data.x[mine]), data.y[mine]).backward()
        average([weight.grad for weight in net.parameters()])
        optimizer.step()
    return accuracy(net)


# %%
NAMES = ("seed 0", "seed 1", "seed 2")


def by_seed(batch, rate, factor=lambda share: 1.0, seeds=2):
    """Seed -> accuracy."""
    return {NAMES[n]: train(batch, rate, n, factor) for n in range(seeds)}


# %% [markdown]
# With a batch of 64 and a rate of 0.2 (half the best rate of the board above, so that there is some room) some 94 % of the test images come out right. Now take a batch of 1,024, and change nothing else: the same rate, the same 20 epochs. How many are right?

# %%
larger = lab.guess("accuracy with a batch of 1,024, the same rate", between=(0, 1))


# %%
def first():
    return by_seed(64, 0.2, seeds=3), by_seed(1024, 0.2, seeds=3)


of_64, of_1024 = lab.launch(first, ranks=2)[0]
rows = {"batch 64": of_64, "batch 1,024": of_1024}
lab.bars(rows, unit="share", title="Accuracy after 20 epochs, by seed")

# %%
larger.score(sum(of_1024.values()) / 3)

# %% [markdown]
# Each bar is a training of its own. Look at how far those of one batch lie apart: that is chance, and a smaller difference means nothing. Between the two batches it is far larger. And yet the larger batch saw every image as often. What did it lack?
#
# It lacked steps. An epoch of 1,437 images has 23 batches of 64 and only two of up to 1,024. A step along a better gradient is still one step, and no longer than before.

# %% [markdown] sections="10.4.1"
# ## A longer step
#
# Why not make the step as much longer? Think of four small steps in a row. As long as the weights have hardly moved, the four gradients are nearly those of one place, so the four steps add up to one step along their mean, four times as long. That is [linear scaling](GLOSSARY.md#linear-scaling): with k times the batch, k times the learning rate (Goyal et al. 2017). The other rule in use is the square root of k. It keeps the random part of a step as long as it was, and is also what theory finds for Adam (Malladi et al. 2022).
#
# Linear scaling needs "hardly moved". From 64 samples and a rate of 0.2, the rate for 1,024 would be 3.2. What is the largest batch at which the rule still gives 90 %?

# %%
tried = ["256", "512", "1024"]
breaks = lab.guess("largest batch with 90 % under the linear rule", choices=tried)


# %%
def by_rule(power, batches=(256, 512, 1024)):
    """Batch -> mean accuracy of two seeds."""
    means = {}
    for batch in batches:
        rate = 0.2 * (batch / 64) ** power
        means[batch] = sum(by_seed(batch, rate).values()) / 2
    return means


# %%
def ruled_by():
    rules = {"× √k": by_rule(0.5), "× k": by_rule(1)}
    return rules | {"unchanged": by_rule(0, (256, 512))}


ruled = lab.launch(ruled_by, ranks=2)[0]
same_seeds = list(of_1024.values())[:2]
ruled["unchanged"][1024] = sum(same_seeds) / 2  # trained above

# %%
axes = {"x": "batch (samples)", "y": "accuracy", "unit": "share"}
title = "Three rates for a larger batch"
back = {"batch 64": sum(of_64.values()) / 3}
lab.curves(measured=ruled, **axes, title=title, marks=back, log_x=True, joined=True)

# %%
fine = [batch for batch, share in ruled["× k"].items() if share >= 0.9]
breaks.score(str(max(fine)))

# %% [markdown] sections="10.4.1"
# At 256 the linear rule still holds: 93 %, nearly what the batch of 64 had. Then it falls off a cliff: at a rate of 1.6 little more than guessing is left, and even the unchanged rate does far better. The square root is never a disaster here.
#
# ### Warm-up and cosine
#
# Goyal et al. suspect the *first* steps, since the network changes rapidly at the start. So they begin with a small rate and raise it in a line: a [warm-up](GLOSSARY.md#warm-up). At the end small steps help, because with a long step the weights only jump about around the minimum. A cosine down to nothing does that (Loshchilov and Hutter 2017). Here are both, as a factor of the rate:


# %%
def rising(share):
    """The factor, when this share of the steps is done."""
    return min(1.0, share / 0.1 + 1 / 6)  # 1/6, 2/6, ... of 60 steps


def falling(share):
    return 0.5 * (1 + math.cos(math.pi * share))


# %% [markdown]
# With a batch of 512 there are 60 steps, and the rate rises over the first six. (torch has nearly the same: `LinearLR`, then `CosineAnnealingLR`, chained by `SequentialLR`.) What brings back the trainings that the linear rule lost?

# %%
tried = ["warm-up", "cosine"]
rescue = lab.guess("what helps more at batch 512, rate 1.6", choices=tried)


# %%
def rescued():
    """Schedule -> seed -> accuracy."""
    return {
        "warm-up": by_seed(512, 1.6, rising, seeds=3),
        "cosine": by_seed(512, 1.6, falling, seeds=3),
        "both": by_seed(
            512, 1.6, lambda share: rising(share) * falling(share), seeds=3
        ),
        "half the rate": by_seed(512, 0.8, seeds=3),
    }


# %%
ended = lab.launch(rescued, ranks=2)[0]
lab.bars(ended, unit="share", title="Accuracy at batch 512, by seed")

# %%
rescue.score(max(tried, key=lambda name: sum(ended[name].values())))

# %% [markdown]
# The warm-up alone brings next to nothing back. What helps is to come down from 1.6, by a cosine or by half the rate from the start; a warm-up before the cosine adds nothing. So in this small net the first steps aren't to blame: 1.6 is simply too much. Neither gets back to what a batch of 64 had. In deep networks the start is the delicate part, so nearly everybody warms up, and then comes down. (Where the batch grows on the way, as in many large trainings, a schedule counts samples, because a step is no fixed amount of work any more.)

# %% [markdown]
# ## How noisy is a gradient?
#
# Why do longer steps stop helping? A larger batch only makes the gradient *better*: nearer to that of all the data. Call the true gradient G. The gradient of one sample lies around it with a variance, summed over all weights, of $V$. The mean of B samples has $V/B$, so its squared length is, on average,
#
# $$|g_B|^2 = |G|^2 + V/B$$
#
# While $V/B$ is the larger part, more samples help. Once it is small, the gradient is as good as exact, and more samples buy nothing. The two parts are equal at $B = V/|G|^2$, which is called the [gradient noise scale](GLOSSARY.md#gradient-noise-scale) (McCandlish et al. 2018).
#
# ### Two batches at once
#
# Nobody has the gradient of all the data. But data-parallel ranks have something nearly as good: gradients of *two* batch sizes, their own and the mean. Two lengths, two unknowns. All it costs is one number more in the message:


# %%
def average_and_listen(net):
    gradients = [weight.grad for weight in net.parameters()]
    mine = parameters_to_vector(gradients)
    message = torch.cat([mine, mine.square().sum()[None]])
    dist.all_reduce(message)
    message /= dist.get_world_size()
    vector_to_parameters(message[:-1], gradients)
    return message[-1].item(), message[:-1].square().sum().item()


# %%
def listen(rate=0.4, seed=0):
    net = large_batch.classifier(seed)
    data = large_batch.digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    heard = []
    for mine in deal(32, epochs=4):
        optimizer.zero_grad()
        cross_entropy(net(data.x[mine]), data.y[mine]).backward()
        heard.append(average_and_listen(net))
        optimizer.step()
    return heard


# %% [markdown]
# A batch of 32 on two ranks, four epochs: each of the 180 steps has a squared length of 16 samples and one of 32. (On the board a batch of 32 needs 145 steps at its best rate.) `large_batch.noise` solves the two equations; you will do it yourself in exercise 1. What noise scale will come out, in samples?

# %%
noisy = lab.guess("gradient noise scale of the digits, in samples", between=(0, 1000))


# %%
def scale(noises):
    """Mean variance over mean square."""
    return sum(each.variance for each in noises) / sum(each.square for each in noises)


# %%
heard = lab.launch(listen, ranks=2)[0]
# the last batch of an epoch has 29 samples, but is taken for 32
noises = [large_batch.noise(small, large, 16, 32) for small, large in heard]
windows = {step: scale(noises[step - 40 : step]) for step in range(40, len(noises))}
lines = {"measured": {"of 40 steps": windows}, "marks": {"of all steps": scale(noises)}}
title = "The noise scale while it trains"
lab.curves(**lines, x="step", y="noise scale (samples)", title=title)

# %%
noisy.score(scale(noises))

# %% [markdown]
# From step 50 or so on it rises as the training goes on, about threefold. (The drop before that and the other jumps are single noisy steps that leave or enter the window of 40.) Early on nearly all samples pull the same way. Later most are right already and the others disagree, so |G|² shrinks beside V. That is one reason why large trainings let the batch grow.
#
# One step alone tells nothing: its two estimates are right on average only, and $|G|^2$ can even come out negative (count them: `sum(each.square < 0 for each in noises)`). So average both, and divide last.

# %% [markdown]
# ## Exercise 1. Ranks with unlike shares
#
# The last batch of an epoch, or a machine of unlike cards, gives the ranks different numbers of samples. Write `average_and_listen` for that case. `gradient`, flat, is the mean over this rank's own `num_samples`. Overwrite it with the mean over the samples of all ranks, and return (variance, square). One collective, and at most four floats more than the gradient. What does the mean of the ranks' squared lengths contain, if their batches differ?


# %%
def my_noise(gradient, num_samples):
    """The variance V of a sample's gradient, and the square |G|² of the true one."""
    ### BEGIN SOLUTION
    square = gradient.square().sum()
    extra = [torch.as_tensor(float(num_samples)), square, torch.tensor(1 / num_samples)]
    message = torch.cat([num_samples * gradient, torch.stack(extra)])
    dist.all_reduce(message)
    total, small, inverse = message[-3:]
    gradient.copy_(message[:-3] / total)
    large = gradient.square().sum()
    ranks = dist.get_world_size()
    variance = (small / ranks - large) / (inverse / ranks - 1 / total)
    return variance.item(), (large - variance / total).item()
    ### END SOLUTION


# %%
check.noise_scale(my_noise)

# %%
check.hint("noise_scale")

# %% [markdown]
# ## The critical batch, predicted and measured
#
# What does that say about steps? Noise doesn't point downhill, so the best step along $g_B$ is shorter, and gains less, by the share of the signal in $|g_B|^2$ (if the loss curves alike in all directions):
#
# $$\frac{|G|^2}{|G|^2 + V/B} = \frac{1}{1 + B_\text{crit}/B}, \qquad B_\text{crit} = \frac{V}{|G|^2}$$
#
# If each step gains less by this factor, a training needs more of them by its inverse:
#
# $$S = S_\text{min}\left(1 + \frac{B_\text{crit}}{B}\right)$$
#
# Here $S_\text{min}$ is what an exact gradient would need. With a tiny batch, twice the batch means half the steps: all cards pay. With a huge one S stays at $S_\text{min}$: no card pays. In between lies the [critical batch](GLOSSARY.md#critical-batch), which needs twice the fewest steps and twice the fewest samples. It should be the noise scale, roughly. At four critical batches, doubling the batch saves only a tenth of the steps.

# %% [markdown]
# ### Held against 300 trainings
#
# These trainings were recorded: ten batches, six rates, five seeds, each until the loss of the whole training set was below 0.15, or until it was given up. A triangle is the median of five at the best rate of its batch. The solid line is the law fitted to these medians. The dashed one takes its fewest steps from that fit; only its critical batch is what we heard.

# %%
medians = {batch: recorded.best(batch).median for batch in recorded.batches()}
fitted = large_batch.fit(list(medians), list(medians.values()))
foretold = fitted._replace(critical_batch=scale(noises))
lines = {
    "fitted": {batch: fitted.steps(batch) for batch in medians},
    "noise scale just heard": {batch: foretold.steps(batch) for batch in medians},
}

# %%
lab.curves(
    measured={"trainings": medians},
    predicted=lines,
    x="batch (samples)",
    y="steps",
    title="Steps to the same loss",
    badge="recorded / predicted",
    log_x=True,
    log_y=True,
    at={"critical batch": fitted.critical_batch},
)

# %% [markdown]
# The law stays within a sixth of every triangle, over nine doublings. And the one number from the gradients of *one* training (19.7; the 16 of the board is of five that ended sooner) lands near the critical batch that the recorded trainings gave (22.9; fits of a seed each, `recorded.law(seed)`, give 20 to 27). Don't count on more than the order of magnitude, which is all that McCandlish et al. claim: the noise scale moves while it trains, so another average gives another number. But it does tell 20 from 2,000.
#
# ### The best rate, too
#
# The best step is shorter by the same factor. So the law foretells the best rate as well (McCandlish et al. 2018, section 2.2):
#
# $$\text{best rate} = \frac{\text{largest rate}}{1 + B_\text{crit}/B}$$
#
# Far below the critical batch that is in proportion to B, as the linear rule has it. Far above it no batch stands a longer step. We take the critical batch from the fit, and as the largest rate the best one of 1,024 samples. Do the other nine fit? And where does the linear rule cross the curve?

# %%
best = {batch: recorded.best(batch).rate for batch in medians}
rates = {each: best[1024] / (1 + fitted.critical_batch / each) for each in best}
rule = {each: 0.2 * each / 64 for each in best}  # as we began above
lab.curves(
    measured={"trainings": best},
    predicted={"law": rates, "linear rule": rule},
    x="batch (samples)",
    y="best learning rate",
    title="The best rate of each batch",
    badge="recorded / predicted",
    log_x=True,
    log_y=True,
)

# %% [markdown]
# They fit as well as they can: rates were tried in steps of two, and none is off by a whole step. The linear rule began at half of the best rate, and crosses the curve near 256. At 512 it asks for 1.6, twice what any batch stands: that was the cliff. And from 256 samples on, eleven critical batches, the steps no longer fall either.

# %% [markdown]
# ## When is it worth it?
#
# Back to 128 cards and our 7 B model. We may give 512 cards the batch of 1,024 sequences that we have, so each card has less to do, or a batch of 4,096. The planner knows the time of a step:

# %%
before = planner.Plan(model="LLaMA 7B", gpus=128, zero=1, batch=1024)
kept = before.but(gpus=512)
grown = before.but(gpus=512, batch=4096)
plans = (before, kept, grown)
lab.table({"batch": f"{plan.batch:,}", **plan.row()} for plan in plans)

# %% [markdown]
# ### Steps, not tokens
#
# By tokens a second the larger batch wins: four times as many in the same 3.7 s, where the old batch still takes 1.3 s, a third. But a training is done after enough *steps*, and the law knows their number. With which batch is the training done first, if the critical one is 1,000 sequences?

# %%
both = {"batch 1,024": kept, "batch 4,096": grown}
pays = lab.guess("done first, at a critical batch of 1,000", choices=tuple(both))


# %%
def gain(after, critical):
    """How much sooner the training is done than before, at this critical batch."""
    steps = large_batch.rules.Critical(fewest_steps=1, critical_batch=critical).steps
    now = steps(after.batch) * after.time().step_us
    return steps(before.batch) * before.time().step_us / now


# %%
criticals = [2**power for power in range(6, 17)]
lab.curves(
    predicted={
        name: {each: gain(plan, each) for each in criticals}
        for name, plan in both.items()
    },
    x="critical batch (sequences)",
    y="times as fast as 128 cards",
    title="How much sooner 512 cards are done than 128",
    at={"GPT-3 6.7B's batch": 2e6 / 2048},
    log_x=True,
)

# %%
gains = {name: gain(plan, 1000) for name, plan in both.items()}
pays.score(max(gains, key=gains.get))

# %% [markdown]
# The batch that stays gains the same everywhere: less than four, because each card has less work behind which its messages could hide. The larger batch gains nearly fourfold where the critical batch is far above it, and next to nothing where it lies far below. The lines cross between 4,096 and 8,192 sequences.
#
# And our 7 B model? The authors of GPT-3 let the noise scale of their gradients guide them, and trained 6.7 billion parameters with 2 million tokens a batch (Brown et al. 2020); the upright line shows where that is. If our critical batch is like it, that is the case that you guessed. A batch of 4,096 makes the training 1.6 times as fast, so more than half of the cards are wasted; the batch that stays makes it 2.8 times as fast.

# %% [markdown] sections="10.4.2"
# ## LARS and LAMB: a step for each layer
#
# The linear rule made steps that were too long. But were they too long for all layers alike? One rate serves them all, while the length of a layer over that of its gradient differs widely in deep nets. **LARS** ([layer-wise rates](GLOSSARY.md#lars), You et al. 2017) multiplies each layer's step by this *trust ratio*, and by a small constant (`trust` below), so every layer moves by the same share of its own length. By hand, without momentum and decay:


# %%
@torch.no_grad()
def lars_step(net, rate, trust=0.01):
    for weight in net.parameters():
        step = rate * weight.grad
        if weight.dim() > 1:  # biases move as in SGD
            step *= trust * weight.norm() / weight.grad.norm()
        weight -= step


# %% [markdown] sections="10.4.2"
# torch has neither LARS nor LAMB; `pytorch_optimizer` has both. **LAMB** (You et al. 2020) does the same to Adam: compute Adam's update, add the weight decay (a pull towards 0) to it, and stretch the sum to the length of the layer.
#
# ### Does it help?
#
# Five optimizers trained on 28 full batches of 1,024, which is 20 epochs of samples, with warm-up and cosine and each at its best rate:

# %%
reached = {}
for each in recorded.optimizers():
    if each.batch == 1024:
        low, high = min(each.accuracies), max(each.accuracies)
        ends = {"worst seed": low, "mean": each.mean, "best seed": high}
        reached[each.optimizer] = ends
title = "Accuracy at batch 1,024, five seeds"
lab.bars(reached, unit="share", title=title, badge="recorded")

# %% [markdown]
# Plain SGD falls behind, and momentum gains most of that back. LARS, which has momentum too, ends below it: its best seed is worse than momentum's worst. LAMB's worst seed is above momentum's best; but LAMB is Adam with a length for each layer, and Adam's seeds overlap its own. So a length of step for each layer hurt SGD with momentum here, and whether it helped Adam, five seeds can't tell.
#
# This is a toy, though: 1,024 samples are 71 % of all the data, so we mostly see too few steps. LARS was made for deep convolutional nets and LAMB for BERT, both with batches of tens of thousands. Even there, momentum and Adam did as well once they were tuned as carefully (Nado et al. 2021), and the large language models of today are mostly trained with AdamW. So try momentum or AdamW with a schedule first, and these two only where that falls behind.

# %% [markdown] sections="10.4.2"
# ## Exercise 2. LARS where each rank has a part
#
# With ZeRO 1 ([chapter 06](06_zero_deepspeed.ipynb)) each rank updates a part of the weights. LARS and LAMB need one thing more where a layer is cut: the length of the whole layer.
#
# Each rank holds a part of every layer, flat and perhaps empty, with the same part of the averaged gradient. Do one update of LARS in place. A layer whose whole length, or whose gradient's, is 0 moves as in SGD. One collective is enough for all layers: which numbers of the parts may be added up?


# %%
def my_lars(weights, gradients, rate, trust):
    """Updates this rank's parts, a list with an entry per layer."""
    ### BEGIN SOLUTION
    squares = torch.stack([each.square().sum() for each in weights + gradients])
    dist.all_reduce(squares)
    lengths, slopes = squares.sqrt().chunk(2)
    for at, weight in enumerate(weights):
        both = lengths[at] > 0 and slopes[at] > 0
        scale = trust * lengths[at] / slopes[at] if both else 1.0
        weight -= rate * scale * gradients[at]
    ### END SOLUTION


# %%
check.lars_on_shards(my_lars)

# %%
check.hint("lars_on_shards")

# %% [markdown]
# ## Fewer messages: a larger batch, or Local SGD?
#
# A larger batch has another merit: for the same samples it sends fewer messages. (Beyond the critical batch it needs more samples, so that merit goes too.) [Chapter 03](03_data_parallel.ipynb) named a second way to send fewer. In [Local SGD](GLOSSARY.md#local-sgd) each rank makes H steps alone, then the *weights* are averaged. ([DiLoCo](GLOSSARY.md#diloco) gives their averaged change to one more optimizer, with momentum.) These two send about once in 64 H samples:
#
# - one step of a batch of 64 H, at half the linear rule's rate, the best that we found at 512;
# - H local steps of each rank on its half of a batch of 64, and one average.


# %%
def train_locally(every, rate, seed):
    net = large_batch.classifier(seed)
    data = large_batch.digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for step, mine in enumerate(deal(64), start=1):
        optimizer.zero_grad()
        cross_entropy(net(data.x[mine]), data.y[mine]).backward()
        optimizer.step()
        if step % every == 0 or step == 460:  # 20 epochs
            with torch.no_grad():
                average(list(net.parameters()))
    return accuracy(net)


# %% [markdown]
# At H = 8 the larger batch is 512, and "half the rate" above has trained it already, in 60 messages. Local SGD sends 58. What will it reach?

# %%
locally = lab.guess("accuracy of Local SGD, an average every 8 steps", between=(0, 1))


# %%
def local_sgd():
    """Seed -> accuracy."""
    return {name: train_locally(8, 0.2, n) for n, name in enumerate(NAMES)}


# %%
ways = {"batch 64, 460 messages": of_64, "larger batch": ended["half the rate"]}
ways["Local SGD"] = lab.launch(local_sgd, ranks=2)[0]
lab.bars(ways, unit="share", title="Accuracy and messages: 460, then about 60")

# %%
locally.score(sum(ways["Local SGD"].values()) / 3)

# %% [markdown]
# Local SGD does as well as the batch of 64 did, with an eighth of its messages, and better than the larger batch. It still makes all 460 small steps, where the larger batch makes 60; and both ranks see the same kind of data, so averaging their weights does little harm. With unlike data the copies drift apart, which we don't show here.

# %% [markdown]
# ## Exercise 3. A batch that grows
#
# The noise scale rises while it trains, so many large trainings enlarge their batch on the way. A schedule that counts steps is wrong then, because a step is no fixed amount of work. Write one that counts samples. `seen` is how many samples were seen before this step, and `batch` how many it has itself. `base_rate` is right for `base_batch`, and the linear rule holds. The warm-up rises with the samples that are seen at the *end* of the step, and is over once `warmup` of them were. A step that begins there or later follows a cosine of `seen`, from the full rate at `warmup` down to nothing at `total`.


# %%
def my_rate(seen, batch, base_batch, base_rate, warmup, total):
    """The learning rate of this step."""
    ### BEGIN SOLUTION
    whole = base_rate * batch / base_batch
    if seen < warmup:
        return whole * min(1, (seen + batch) / warmup)
    share = (seen - warmup) / (total - warmup)
    return whole * 0.5 * (1 + math.cos(math.pi * share))
    ### END SOLUTION


# %%
check.growing_batch(my_rate)

# %%
check.hint("growing_batch")

# %% [markdown]
# ## Summary
#
# - With k times the batch and everything else the same, a training makes k times fewer steps, and learns less.
# - Linear scaling makes up for it while weights hardly move in k steps. Past the critical batch the best rate hardly grows. So there smaller rates than the rule's helped, and a warm-up alone did not. For Adam theory finds the square root.
# - Ranks can read the noise of their gradients from one number more in the message. Its scale predicts the critical batch roughly: here it came within a factor of two. Beyond that batch, more cards save few steps.
# - LARS and LAMB give each layer a step in proportion to its length. Here LARS lost to momentum, and LAMB was not clearly better than Adam: try them last.
# - Local SGD sends as little as a larger batch and keeps its steps, as long as data are alike.
#
# **Words learned**: [linear scaling](GLOSSARY.md#linear-scaling), [warm-up](GLOSSARY.md#warm-up), [gradient noise scale](GLOSSARY.md#gradient-noise-scale), [critical batch](GLOSSARY.md#critical-batch), [LARS](GLOSSARY.md#lars), [LAMB](GLOSSARY.md#lamb), [Local SGD](GLOSSARY.md#local-sgd), [DiLoCo](GLOSSARY.md#diloco).
#
# **Further reading**
#
# - Linear scaling and warm-up: Goyal et al. 2017, [arXiv 1706.02677](https://arxiv.org/abs/1706.02677). The cosine: Loshchilov and Hutter 2017, [arXiv 1608.03983](https://arxiv.org/abs/1608.03983). The square root for Adam: Malladi et al. 2022, [arXiv 2205.10287](https://arxiv.org/abs/2205.10287)
# - Noise scale and critical batch: McCandlish et al. 2018, [arXiv 1812.06162](https://arxiv.org/abs/1812.06162)
# - GPT-3's batches: Brown et al. 2020, table 2.1 and section 2.3, [arXiv 2005.14165](https://arxiv.org/abs/2005.14165)
# - LARS: You et al. 2017, [arXiv 1708.03888](https://arxiv.org/abs/1708.03888). LAMB: You et al. 2020, [arXiv 1904.00962](https://arxiv.org/abs/1904.00962). Plain optimizers at large batches: Nado et al. 2021, [arXiv 2102.06356](https://arxiv.org/abs/2102.06356)
# - Local SGD: Stich 2018, [arXiv 1805.09767](https://arxiv.org/abs/1805.09767). DiLoCo: Douillard et al. 2023, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105)
#
# **Next:** [checkpoint and recover](13_checkpoint_and_recover.ipynb), for when one of these cards dies.

# %% [markdown] sections="10.4.1, 10.4.2"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Two errata</summary>
#
# <details><summary>Erratum 10.4.1: "base_lr * (actual_batch_size / base_batch_size)" for Adam, and a warm-up by "last_epoch"</summary>
#
# The textbook scales the rate of *Adam* linearly, from 1e-4 for 32 samples to 0.0256 for 8,192; but the linear rule was found for SGD, and theory has the square root for Adam (0.0016). Its warm-up multiplies by `last_epoch / warmup_steps`, which is 0 in the first step, so the first batch is computed for nothing: `[step / 1000 for step in range(3)]`; count from 1. And `total_steps` in its loop is defined nowhere.
#
# </details>
#
# <details><summary>Erratum 10.4.2: LAMB with "grad.add(p.data, ...)" for the decay, and ".item()" on both norms</summary>
#
# The textbook's LAMB adds the weight decay to the gradient, before Adam's means, so Adam divides it away again: in the first step, where Adam divides a gradient by its own length, `(g + 0.1 * w) / |g + 0.1 * w|` is 1 or -1 whatever the decay. The paper (algorithm 2) adds it to the *update*, before its length is taken, and passes the layer's length through a function φ that may clip it. `.item()` on both norms makes the CPU wait for the GPU twice a layer, and clipping parameter by parameter turns the whole gradient.
#
# </details>
#
# </details>

# %%
check.status()
