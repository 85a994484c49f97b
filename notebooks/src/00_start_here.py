# ---
# jupyter:
#   labkit:
#     sections: ["D-verify"]
#     needs: []
#     minutes: 45
# ---

# %% [markdown]
# # Start here
#
# *Three quarters of an hour, of some 31 hours in all, with the exercises. You need Python, and have trained something with torch; no GPU. `make lab`, in the folder of the course's README, installs it and opens JupyterLab, where cells run and exercises are checked.*
#
# Training LLaMA's 7B model took 82,432 hours of A100 cards, says its paper. On one card that is nine years and five months; 1,024 cards would spend as many hours in less than three and a half days.
#
# But in any such run the cards also wait for each other, send messages, and fill memory with copies of what others have. This course is about that: how a thousand cards work as one, what it costs, and how to pay less.
#
# The first cell looks at your machine. Where something that you need is missing, its row says what to do.

# %%
import labkit as lab
from labkit.debugging import picture
from labkit.debugging import start_check as check
from labkit.machine import doctor

lab.begin("en")
doctor.examine()

# %% [markdown]
# **When you are done** with this chapter, you can start several programs from one cell, say who waits for whom, and tell a check that checks something from one that does not.
#
# ## Four programs from one cell
#
# `lab` is this course's own small library; nearly all the rest is plain torch. `lab.launch` runs one function in several processes at once. Each of these processes is called a [rank](GLOSSARY.md#rank), and it has a number, counted from 0. All ranks run the same code, so it is by the number that the code tells them apart.

# %%
import os

import torch
import torch.distributed as dist


def hello():
    return {
        "rank": dist.get_rank(),
        "world size": dist.get_world_size(),
        "process": str(os.getpid()),
        "device": str(torch.get_default_device()),
    }


lab.table(list(lab.launch(hello, ranks=4)))

# %% [markdown]
# Four process numbers: these are four programs, not four threads. The *world size* is how many there are. Without a GPU for each rank, the *device* is the CPU, pretending to be GPUs.
#
# Outside a notebook, `torchrun` starts several processes of a script, and `dist.init_process_group` joins them to a [process group](GLOSSARY.md#process-group), so that they can talk; without GPUs, [gloo](GLOSSARY.md#gloo) carries the messages. `lab.launch` does both for one function.
#
# The next function adds 1 to `count`:


# %%
count = 0


def add_one():
    global count
    count += 1
    return count


# %% [markdown]
# We launch it on four ranks. What will `count` be here, in the notebook, when they are done?
#
# Type your guess and press Enter. It stays on your machine, and you may always go on without one.

# %%
left_here = lab.guess("count in the notebook, after four ranks", between=(0, 8))

# %%
run = lab.launch(add_one, ranks=4)
left_here.score(count)

# %%
run

# %% [markdown]
# Each rank started with a copy of what the function uses, and added 1 to its own `count`; nobody touched the notebook's. Only what a rank returns comes back. Ranks share no variable, so what one wants to know of another has to be sent.
#
# ## They add up
#
# In training, ranks mostly talk by [collectives](GLOSSARY.md#collective): a collective is one call that all ranks make together. By default, `dist.all_reduce(x)` adds up the `x` of all ranks, and overwrites each of them with the sum. Data parallel training (chapter 03) adds up its gradients with it.
#
# Ranks 0 to 3 each hold their own number, and will not be equally busy: before it calls `all_reduce`, rank 0 does one matrix product, rank 1 five, rank 2 nine, and rank 3 thirteen. Who will wait the longest?

# %%
waits_longest = lab.guess("the rank that waits the longest", between=(0, 3))

# %%
import time


def add_up():
    rank = dist.get_rank()
    x = torch.tensor([float(rank)])
    before = x.item()
    square = torch.ones(1000, 1000)
    for _ in range(1 + 4 * rank):
        (square @ square).sum().item()
    began = time.perf_counter()
    dist.all_reduce(x)
    after = x.item()  # on a GPU, this is what waits for the sum
    waited_ms = round(1000 * (time.perf_counter() - began))
    return {"rank": rank, "before": before, "after": after, "waited, ms": waited_ms}


run = lab.launch(add_up, ranks=4, record=True)

# %%
waits_longest.score(max(run, key=lambda each: each["waited, ms"])["rank"])

# %%
before, after = [each["before"] for each in run], [each["after"] for each in run]
lab.show(picture.all_reduced(before, after))

# %%
lab.table(list(run))

# %% [markdown]
# All ranks hold the sum, but some waited long for it. In the picture, a red bar is an all-reduce; at the top right stands where the numbers come from, here *measured*:

# %%
run.timeline()

# %% [markdown]
# The red bars end at almost the same time, and the rank with the least work has the longest one (rank 3's may be too short to see). An all-reduce can't end before the last rank has arrived.
#
# Rank 0 was not sending all that time: each rank brought 4 bytes, and rank 3, who came last, was done almost at once. The rest is waiting, hatched in the picture. A faster network wouldn't help: the load is uneven. (With more ranks than cores, they take turns, so twice the work needn't take twice as long.)
#
# <details><summary>More about the picture</summary>
#
# *Span* is the time from the first operation's start to the last one's end. The last one is `x.item()`, after the all-reduce, and too short to be seen. *Communication hidden* is the share of the red time in which the same rank also computes. A dark line stands where one operation ends and the next begins; the ranks don't all start at the same moment.
#
# </details>

# %% [markdown]
# ## Exercise 1. Who waits how long?
#
# Now several steps, one after the other. In each of them the ranks compute, rank `r` for `seconds[r][step]`, and then all call `all_reduce`, which itself takes no time. How many seconds does each rank wait in all? Return a list with one number per rank. For `[[1, 2], [3, 1]]` it is `[2, 1]`. Each failed attempt earns you another hint.


# %%
def my_waits(seconds):
    """Seconds that each rank waits; seconds[rank][step] is what it computes."""
    ### BEGIN SOLUTION
    ends = [max(step) for step in zip(*seconds, strict=True)]
    return [sum(ends) - sum(mine) for mine in seconds]
    ### END SOLUTION


# %%
check.waits(my_waits)

# %%
check.hint("waits")

# %% [markdown]
# ## When a rank never comes
#
# Ten batches are dealt to three ranks, with one call for each batch:


# %%
def one_call_a_batch():
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(10)[rank::size]:
        dist.all_reduce(torch.ones(1))


# %% [markdown]
# How many of the three ranks will wait for an answer that never comes?

# %%
stuck = lab.guess("ranks that wait in vain", between=(0, 3))

# %%
try:
    lab.launch(one_call_a_batch, ranks=3)
except lab.Deadlock as error:
    verdict = error

# %%
stuck.score(3 - len(verdict.finding.ranks))  # all but those that stayed away

# %%
print(verdict)

# %% [markdown]
# `lab.launch` looks where each rank stands, so you get this [verdict](GLOSSARY.md#verdict) after a moment. Here are the calls. The *n*-th call of one rank meets the *n*-th call of every other; what the calls are for doesn't count:

# %%
lab.show(picture.calls(verdict.outcomes))

# %% [markdown]
# Nobody answers rank 0's fourth call. What if a call meant for something else does? Two ranks share five batches for two epochs; the odd batch goes to rank 0 first, and then to rank 1. After each epoch they add up their losses:


# %%
def two_epochs():
    rank, sums = dist.get_rank(), []
    for epoch in range(2):
        for _ in range(5)[(rank + epoch) % 2 :: 2]:
            batch = torch.ones(1)
            dist.all_reduce(batch)
        loss = torch.tensor([0.5])
        dist.all_reduce(loss)
        sums.append(loss.item())
    return sums


# %% [markdown]
# What sum of losses does rank 0 get first, if it gets one?

# %%
first_sum = lab.guess("rank 0's first sum of losses", between=(0, 3))

# %%
run = lab.launch(two_epochs, ranks=2)
first_sum.score(run[0][0])

# %%
run

# %%
lab.show(picture.calls(run.calls()))

# %% [markdown]
# The losses add up to 1, but in the framed columns a batch's 1 met a loss. Each rank makes seven calls in all, so nobody is left waiting, and neither the ranks nor `lab.launch` notice.
#
# Without a verdict, what rank 0 gets depends on the others:
#
# | the others | rank 0 | how we know |
# | --- | --- | --- |
# | go on to another `all_reduce` of the same size and type | a wrong sum, no error | the run above, gloo |
# | have ended | gloo: `Connection closed by peer`; NCCL: perhaps nothing until its limit | gloo: tried with `torchrun`; NCCL: not tried |
# | are busy elsewhere | an error at its limit: 30 minutes with gloo, 10 with NCCL | torch's defaults |
#
# Neither of gloo's errors names the ranks that stayed away.
#
# <details><summary>gloo's two errors</summary>
#
# Tried with `torchrun` and a limit of 4 seconds; each begins with the line of gloo's source that raised it.
#
# - `Connection closed by peer [127.0.0.1]:9130. This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error.` (The number is a port, not a rank.)
# - `Timed out waiting 4000ms for recv operation to complete`
#
# </details>

# %% [markdown]
# ## Exercise 2. The mean of what there is
#
# Each rank has a list of numbers, with which it calls `my_mean`. Some lists may be empty, but not all of them. Return the mean over all numbers of all ranks, on every rank. One easy program hangs, one gives NaN, and one gives a plausible number that is wrong. Before the check, launch it yourself.


# %%
def my_mean(numbers):
    """The mean over all ranks' numbers, a float; this rank may have none."""
    ### BEGIN SOLUTION
    both = torch.tensor([sum(numbers), float(len(numbers))])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
    ### END SOLUTION


def trial():
    return my_mean([[1, 2], [], [6]][dist.get_rank()])


# your launch of trial, on three ranks: each should return 3


# %%
check.mean_of_all(my_mean)

# %%
check.hint("mean_of_all")

# %% [markdown] sections="D-verify"
# ## Does it really add?
#
# Before you give a machine nine GPU-years of work, you check that `all_reduce` adds. Here is a check that says "success" when it reaches its end, with a reduction that always fails:


# %%
def verify(reduce):
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size > 1:
        reduce()
    return "success"


verify(reduce=lambda: 1 / 0)

# %% [markdown]
# Without a launch, `size` is 1 and `reduce` is never called. In a launch, `1 / 0` would stop it, but a wrong sum would not. So let's compare: ranks 0 to 3 send their own numbers, and expect 6. This reduction leaves out rank 0:


# %%
def without_rank_0(x):
    if dist.get_rank() == 0:
        x.zero_()
    dist.all_reduce(x)


def compare_with_6(reduce):
    x = torch.tensor([float(dist.get_rank())])
    reduce(x)
    return {"sum": x.item(), "as expected": x.item() == 6}


# %% [markdown]
# Does any rank notice?

# %%
noticed = lab.guess("whether a rank notices", choices=("yes", "no"))

# %%
run = lab.launch(compare_with_6, without_rank_0, ranks=4)
noticed.score("no" if all(each["as expected"] for each in run) else "yes")

# %%
run

# %% [markdown] sections="D-verify"
# All four got what they expected, because nobody misses a 0. A check must be able to fail, and on this fault ours can't. So every rank sends a different number, none of them 0, and compares with a result that it has worked out without asking the others. No likely mistake may give that result: for a sum, 1, 2 and 3 won't do either, since their product is 6 as well.
#
# `all_reduce` will be your exercise, so here is `all_gather`: it gives every rank a list of all ranks' tensors. There 1, 2 and 3 do, since each has its place.


# %%
def check_gather(gather):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.zeros(1) for _ in range(size)]
    gather(parts, torch.tensor([rank + 1.0]))
    got = [part.item() for part in parts]
    assert got == list(range(1, size + 1)), f"it gave {got}"
    return "it gathers"


lab.launch(check_gather, dist.all_gather, ranks=4)

# %% [markdown]
# Does it notice a gather that gets the order wrong? The launch names the rank whose error came first (yours may say 0), and the line:


# %%
def backwards(parts, x):
    dist.all_gather(parts, x)
    parts.reverse()


try:
    lab.launch(check_gather, backwards, ranks=2)
except lab.RankFailed as error:
    print(str(error).splitlines()[0])  # without its traceback

# %% [markdown]
# ## Exercise 3. An honest check
#
# Your turn: check `dist.all_reduce`. Call it by that name, since we replace it. `my_check` is called on every rank, of which there are two or more. If the sum is right, it returns. If not, it raises an AssertionError on at least one rank. We will break `all_reduce` in six ways and see whether you notice each.


# %%
def my_check():
    """Raises AssertionError on at least one rank if all_reduce does not add."""
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.tensor([float(rank + 1) ** 2])
    dist.all_reduce(x)
    right = sum((each + 1) ** 2 for each in range(size))
    assert x.item() == right, f"all_reduce gave {x.item()}"
    ### END SOLUTION


# %%
check.honest_check(my_check)

# %%
check.hint("honest_check")

# %% [markdown]
# ## What a rank stands on
#
# The table of the four ranks said on what **device** each computes. If you have fewer GPUs than ranks, that is a [pretend device](GLOSSARY.md#pretend-device). The CPU computes, but tensors count as lying in a memory of their own, and much as CUDA does, it refuses to add tensors that lie in two memories.
#
# That helps, because a common mistake on the way to a GPU is a tensor left behind on the CPU:


# %%
def left_behind():
    weights = torch.ones(3)  # on the rank's device
    batch = torch.ones(3).cpu()  # on the host, where a DataLoader leaves it
    return weights + batch


for device in ("cpu", "pretend"):
    try:
        print(lab.launch(left_behind, ranks=1, devices=device)[0])
    except lab.RankFailed as error:
        print(str(error).splitlines()[0])

# %% [markdown]
# The CPU forgives it, because there is only one memory. A cell that runs on a pretend device has passed this test before it meets a GPU. Here are the three; the thick edge marks what launches take on this machine, and [NCCL](GLOSSARY.md#nccl) is NVIDIA's library that carries messages between GPUs:

# %%
lab.ladder()

# %% [markdown]
# <details><summary>What a pretend device cannot show, and how to choose another row</summary>
#
# Its numbers are right, but its speed is a CPU's. It does one thing after another and gives freed memory back at once, so it shows no streams, no races, no fragmented memory and no NCCL.
#
# `torch.ones(3)` lies on the rank's device because `lab.launch` makes that torch's default. In a script of your own, write `.to(device)`.
#
# With one GPU, `devices="shared"` lets all ranks of a launch share it; `devices="pretend"` and `"cpu"` choose the other rows. The environment variable `LABKIT_DEVICE` (`cuda`, `shared`, `pretend` or `cpu`), set before the notebook starts, chooses it for all of them. DeepSpeed does not know pretend devices, so a launch whose code names DeepSpeed takes a GPU for each rank, or else the CPU.
#
# </details>

# %% [markdown]
# ## The way from here
#
# Each row is a question, and the chapters beside it answer it. Read by number; after chapter 02 you may go straight to your question, since each chapter says which others it needs. The numbers fill with colour as you pass exercises.

# %%
lab.course()

# %% [markdown]
# ## Summary
#
# - A rank is a process with a number and a memory of its own. All ranks run the same function.
# - An all-reduce can't end before the last rank has arrived, so the quick ones wait for it.
# - If a rank doesn't come to a call, the others get an error, at once or after many minutes, and `lab.launch` names that rank. If another call of the same size and type answers instead, they get a wrong sum and no error.
# - A check must be able to fail: it compares with a result worked out alone, which no likely mistake gives too. For a sum, no rank sends 0.
#
# **Words learned**: [rank](GLOSSARY.md#rank), [process group](GLOSSARY.md#process-group), [collective](GLOSSARY.md#collective), [all-reduce](GLOSSARY.md#all-reduce), [verdict](GLOSSARY.md#verdict), [device](GLOSSARY.md#device), [pretend device](GLOSSARY.md#pretend-device), [gloo](GLOSSARY.md#gloo), [NCCL](GLOSSARY.md#nccl).
#
# **Next**: [why distributed](01_why_distributed.ipynb), where a model dies before its first step.

# %% [markdown] sections="D-verify"
# ## An erratum of the textbook
#
# It corrects a textbook's demo project. If you haven't read that, skip it.
#
# <details><summary>Erratum D-verify: "success" when the script reaches its end</summary>
#
# The verification script of the textbook's demo project prints its success whenever it gets to the last line, and its logic is that of `verify` above. Run it: `verify(reduce=lambda: 1 / 0)` gives `'success'`.
#
# </details>
#
# **To read on**: the documentation of [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html); the hours of LLaMA 7B are in [Touvron et al. 2023](https://arxiv.org/abs/2302.13971), table 15.

# %%
check.status()
