# ---
# jupyter:
#   labkit:
#     sections: ["D-verify"]
#     needs: []
#     minutes: 30
# ---

# %% [markdown]
# # Start here
#
# *Half an hour. You need Python, and have trained something with torch. No GPU is needed.*
#
# The paper of LLaMA 7B says how long its training took: 82,432 hours of an A100. On one card that is nine years and five months. Nobody waited for so long, because many cards shared the work. Had 1,024 cards shared it without any loss, it would have taken less than three and a half days.
#
# But cards do lose time on each other. They wait, they send, and they keep copies of what others have as well. This course is about that: how many cards work together as one, what it costs, and how to pay less. Here is the way through it.

# %%
import os
import time

import torch
import torch.distributed as dist
from accelerate import Accelerator

import labkit as lab
from labkit.accelerate import find_device
from labkit.debugging import start_check as check
from labkit.machine import doctor

lab.begin("en")
lab.course()

# %% [markdown]
# Each row is a question, and the chapters beside it answer it. The number of a chapter fills with colour as you pass its exercises. Read from the top. After chapter 02 you may take the rows in any order.
#
# **When you are done** with this first chapter, you can start several programs from one cell, you can say who waits for whom, and you can tell a check that checks something from one that does not.
#
# ## What this machine is
#
# First, is everything here that we need? Each row below is looked up now. If one of them fails, its last column tells you the fix.

# %%
doctor.examine()

# %% [markdown]
# ## Four programs, by hand
#
# `lab.launch` runs one function in several processes at once. Each of these processes is called a [rank](GLOSSARY.md#rank), and it has a number, counted from 0. All ranks run the same code, so the number is all that tells them apart.


# %%
def hello():
    return {
        "rank": dist.get_rank(),
        "of": dist.get_world_size(),
        "process": os.getpid(),
        "device": str(torch.get_default_device()),
    }


lab.table(list(lab.launch(hello, ranks=4)))

# %% [markdown]
# Four process numbers: these are four programs, and not four threads of this notebook. That matters more than it seems to. Look at the next cell before you run it. Every rank adds 1 to `count`, and there are four ranks. What will `count` be here, in the notebook, when they are done?
#
# Make your guess in the field and press Enter. Guesses are kept on your machine and scored when the answer is there. Nobody else sees them, and you may always go on without one.

# %%
left_here = lab.guess("count in the notebook, after four ranks", between=(0, 8))

# %%
count = 0


def add_one():
    global count
    count += 1
    return count


run = lab.launch(add_one, ranks=4)
left_here.score(count)

# %%
run

# %% [markdown]
# Each rank got a copy of `count` and changed its copy, which you see in the table. Nobody shares a variable with anybody. If ranks want to know something of each other, they have to send it.
#
# ## They add up
#
# The simplest way to send is a [collective](GLOSSARY.md#collective): one call that all ranks make together. `dist.all_reduce(x)` adds up the `x` of all ranks and gives the sum to everyone. It's the most important call of this course, since data parallel training makes it for every gradient.
#
# Ranks 0 to 3 each hold a tensor with their own number in it. What will rank 2 hold afterwards?

# %%
holds = lab.guess("what rank 2 holds", between=(0, 100))

# %% [markdown]
# So that there is something to see, the ranks are not equally busy: before it calls `all_reduce`, rank 0 multiplies 25 matrices, rank 1 multiplies 50, and so on. Who will wait the longest?

# %%
waits_longest = lab.guess("the rank that waits the longest", between=(0, 3))


# %%
def add_up():
    rank = dist.get_rank()
    x = torch.tensor([float(rank)])
    square = torch.randn(400, 400)
    for _ in range(25 * (rank + 1)):
        (square @ square).sum().item()
    began = time.perf_counter()
    dist.all_reduce(x)
    total = x.item()
    return {
        "rank": rank,
        "holds": total,
        "waited_ms": 1000 * (time.perf_counter() - began),
    }


run = lab.launch(add_up, ranks=4, record=True)
holds.score(run[2]["holds"])

# %%
lab.table(list(run))

# %%
waits_longest.score(max(run, key=lambda each: each["waited_ms"])["rank"])

# %%
run.timeline()

# %% [markdown]
# Both are measured, the table by a clock around the call, the picture by torch's profiler. Look at the bars of the all-reduce: they end together, and the rank with the least work has the longest one. It called first and then waited for rank 3, which came last.
#
# A collective ends when the last rank arrives. It follows that a profile can mislead you. It shows rank 0 as busy with communication, yet what it lacks is not a faster network. The load is uneven.

# %% [markdown]
# ## Exercise 1. Who waits how long?
#
# Now several steps, one after the other. In each of them the ranks compute, rank `r` for `seconds[r][step]`, and then all call `all_reduce`, which itself takes no time. How many seconds does each rank wait in all? Return a list with one number per rank.


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
# ## What a rank stands on
#
# In the first table each rank had a **device**, which is what it computes on. Where there are as many GPUs as ranks, that is a GPU for each. Where there are not, it is something else. There are five rungs, and the same cell runs on the first four:

# %%
lab.ladder()

# %% [markdown]
# The rung with the thick edge is the one that launches take on this machine. From the top down:
#
# - **A GPU for each rank.** Messages are carried by [NCCL](GLOSSARY.md#nccl), NVIDIA's library. Everything is real.
# - **A shared GPU**, only if you ask for it. Messages go through the host, by [gloo](GLOSSARY.md#gloo).
# - **A [pretend device](GLOSSARY.md#pretend-device).** The CPU computes, but tensors lie in a memory of their own with CUDA's rules and CUDA's error messages. Its numbers are right and its bytes are counted; only its speed is a CPU's.
# - **The CPU**, where everything lies in one memory and many mistakes go unnoticed.
# - **A recording.** Nothing runs. We look at what somebody measured on a machine that we don't have, and say so.
#
# Every picture carries a word that says where its numbers come from, such as *measured* or *predicted*, so that you always know on which rung you stand.
#
# ### What a pretend device is good for
#
# The commonest mistake on the way to a GPU is a tensor left behind on the CPU. The CPU forgives it, because there is only one memory anyway. A pretend device refuses, just as a GPU would:


# %%
def left_behind():
    weights = torch.ones(3)  # on the rank's device
    batch = torch.ones(3).cpu()  # on the host, where a DataLoader leaves it
    return weights + batch


try:
    lab.launch(left_behind, ranks=1, devices="pretend")
except lab.RankFailed as verdict:
    print(verdict)

# %% [markdown]
# <details><summary>What it cannot show, and how to choose another rung</summary>
#
# A pretend device does one thing after another and gives freed memory back at once, while CUDA's allocator keeps it for the next tensor. So it shows neither a GPU's speed, nor its streams and the races between them, nor fragmented memory, nor NCCL.
#
# `devices="pretend"` chooses a rung for one launch. The environment variable `LABKIT_DEVICE` (`cuda`, `shared`, `pretend` or `cpu`), set before the notebook starts, chooses it for all of them. DeepSpeed does not know pretend devices, so a launch whose code names it takes a GPU for each rank, or else the CPU.
#
# </details>

# %% [markdown] sections="D-verify"
# ## A check that can't fail
#
# Before you trust a machine with nine years of work, you check it. Many scripts do that in the way of the next cell. This one is handed a reduction that always fails: `1 / 0`. What does it say?


# %%
def vacuous(reduce):
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size > 1:
        reduce()
    return "success"


# %%
said = lab.guess("what the check says", choices=("success", "failure"))

# %%
said.score(vacuous(reduce=lambda: 1 / 0))

# %% [markdown]
# It started no process group, so it has one rank, and with one rank it skips the only line that would communicate.
#
# <details><summary>Erratum D-verify: "success" when the script reaches its end</summary>
#
# The demo project's verification script prints its success whenever it gets to the last line, and its logic is that of the cell above. A check has to be able to fail. Run it: `vacuous(reduce=lambda: 1 / 0)` gives `'success'`.
#
# </details>
#
# A check that can fail sends a different number from every rank, and compares with a result that was worked out alone:


# %%
def check_gather(spoil=0.0):
    rank = dist.get_rank()
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([rank + spoil]))
    got = [part.item() for part in parts]
    assert got == list(range(len(parts))), f"all_gather gave {got}"
    return "all_gather is right"


lab.launch(check_gather, ranks=4)

# %% [markdown]
# Now we spoil the data on purpose, to see whether it notices. The launch says which rank failed, and at which line:

# %%
try:
    lab.launch(check_gather, 0.5, ranks=2)
except lab.RankFailed as verdict:
    print(verdict)

# %% [markdown]
# ## Exercise 2. An honest check
#
# Your turn: check `dist.all_reduce`. `my_check` is called on every rank. It should simply return where the sum is right, and raise an AssertionError on at least one rank where it is not. We will break `all_reduce` in five ways and see whether you notice each of them.


# %%
def my_check():
    """Raises AssertionError on some rank where all_reduce does not add."""
    ### BEGIN SOLUTION
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.tensor([float(rank + 1)])
    dist.all_reduce(x)
    assert x.item() == size * (size + 1) / 2, f"all_reduce gave {x.item()}"
    ### END SOLUTION


# %%
check.honest_check(my_check)

# %%
check.hint("honest_check")

# %% [markdown]
# ## When ranks wait for ever
#
# So a collective needs all ranks. What if one of them never calls it? Below, rank 1 goes home early. This is the most common mistake of the whole field, and it raises no exception: everyone else just waits. Which rank will the report name?

# %%
named = lab.guess("the rank that the report names", between=(0, 2))


# %%
def leave_early():
    if dist.get_rank() == 1:
        return
    dist.all_reduce(torch.ones(1))


try:
    lab.launch(leave_early, ranks=3)
except lab.Deadlock as verdict:
    report = verdict
print(report)

# %%
named.score(report.finding.ranks[0])

# %% [markdown]
# Here it is a [verdict](GLOSSARY.md#verdict) after a moment, and the notebook goes on. With bare processes you would be less lucky. The others see a closed connection if that rank has ended. If it lives on and does something else, they wait until torch's time limit is over: 30 minutes with gloo, 10 with NCCL, unless you say otherwise. Chapter 14 teaches you to read such a report.

# %% [markdown]
# ## Exercise 3. The mean of what there is
#
# Each rank has a list of numbers, and some lists may be empty. Return the mean over all numbers of all ranks, on every rank. The obvious program hangs, and the second most obvious one is wrong.


# %%
def my_mean(numbers):
    """The mean over all ranks' numbers; this rank's may be none."""
    ### BEGIN SOLUTION
    both = torch.tensor([sum(numbers), float(len(numbers))])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
    ### END SOLUTION


# %%
check.mean_of_all(my_mean)

# %%
check.hint("mean_of_all")

# %% [markdown]
# ## The libraries
#
# Two libraries will do much of this for us later on, so let's check them here. The question is the same for both. If two ranks train one step on half of the data each, do they end with the weights that one process gets from all of it?
#
# First one process alone, with all eight samples:

# %%
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
data = torch.randn(8, 4)


def alone():
    device = torch.get_default_device()
    net = model.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(data.to(device)).square().mean()
    loss.backward()
    optimizer.step()
    return net.state_dict()


whole = lab.launch(alone, ranks=1)[0]
whole

# %% [markdown]
# ### Accelerate
#
# Accelerate wraps the model and the optimizer, and averages the gradients during the backward. `find_device` only tells it on which rung we stand.


# %%
def with_accelerate():
    find_device()
    accelerator = Accelerator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    net, optimizer = accelerator.prepare(model, optimizer)
    mine = data.chunk(accelerator.num_processes)[accelerator.process_index]
    loss = net(mine.to(accelerator.device)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    return accelerator.unwrap_model(net).state_dict()


halves = lab.launch(with_accelerate, ranks=2)
lab.difference(halves[0], whole), lab.difference(halves[1], whole)

# %% [markdown]
# The largest difference of any weight is zero, or some rounding errors of fp32, on both ranks.
#
# ### DeepSpeed
#
# DeepSpeed makes an engine of the model. Here it runs ZeRO stage 1, under which each rank keeps only half of the optimizer's numbers; chapter 06 explains how. We switch off its clipping, since it clips gradients at 1.0 unless told otherwise.


# %%
def with_deepspeed():
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    mine = data.chunk(dist.get_world_size())[dist.get_rank()]
    loss = engine(mine.to(engine.device)).square().mean()
    engine.backward(loss)
    engine.step()
    return engine.module.state_dict()


halves = lab.launch(with_deepspeed, ranks=2)
lab.difference(halves[0], whole), lab.difference(halves[1], whole)

# %% [markdown]
# ## Summary
#
# - A rank is a process with a number and a memory of its own. All ranks run the same function.
# - A collective ends when the last rank arrives, so the quick ones wait inside the call.
# - If one rank never comes, all others wait, and no exception tells you.
# - A check must be able to fail: another number on every rank, and a result worked out alone.
#
# **Words learned**: [rank](GLOSSARY.md#rank), [collective](GLOSSARY.md#collective), [all-reduce](GLOSSARY.md#all-reduce), [device](GLOSSARY.md#device), [pretend device](GLOSSARY.md#pretend-device), [gloo](GLOSSARY.md#gloo), [NCCL](GLOSSARY.md#nccl), [verdict](GLOSSARY.md#verdict).
#
# **To read on**: the documentation of [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html), [Accelerate](https://huggingface.co/docs/accelerate) and [DeepSpeed](https://www.deepspeed.ai); the hours of LLaMA 7B are in [Touvron et al. 2023](https://arxiv.org/abs/2302.13971), table 15.
#
# **Next**: [why distributed](01_why_distributed.ipynb), where our model dies before its first step.
#
# Where you stand:

# %%
check.status()

# %% [markdown]
# *Sections D-verify of the source material.*
