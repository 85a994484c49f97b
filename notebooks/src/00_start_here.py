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
# You will see what this machine is, start four real processes from a cell, watch them wait for each other, and check that torch.distributed, Accelerate and DeepSpeed work here. No GPU is needed: without one, the CPU computes, and the processes talk through gloo.

# %%
import labkit as lab
from labkit.machine import doctor
from labkit import widgets

# the language, and how long a launch may take; what forks ranks starts while you read on
lab.begin("en")

# %% [markdown]
# ## What this machine is
#
# Each row is looked up now. A row that is not well says what to do about it.

# %%
doctor.examine()

# %% [markdown]
# ## The first launch
#
# `launch` runs a function in several processes at once. Each is called a *rank* and has a number. All of them run the same code; only the number differs.
#
# Where there are fewer GPUs than ranks, each rank computes on a *pretend device*, which the CPU plays: `pretend:0` in an output below is the device of rank 0. The section "What a rank stands on" says more.


# %%
def hello():
    import os

    return f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, process {os.getpid()}"


run = lab.launch(hello, ranks=4)
list(run)

# %% [markdown]
# Four process numbers: these are four programs, not four threads of this notebook. Each has its own memory. A variable that a rank changes does not change here.

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
# Ranks 0 to 3 each hold a tensor with their own number. `all_reduce` adds the four tensors and gives the sum to everyone. What will rank 2 hold? Type it into the field below and press Enter. A guess is kept, and scored after the run; nobody else sees it, and you may go on without one. In later chapters some questions have such a field, others a line like `my_share = None` that you fill in.

# %%
my_guess = lab.guess({"en": "what rank 2 will hold", "zh": "rank 2 最后拿到的数"})

# %% [markdown]
# ## Run
#
# To see the waiting, rank r first multiplies matrices, r + 1 times as many as rank 0. `trace.record` notes what the rank does.


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
print(list(run))
my_guess.score(run[2])

# %% [markdown]
# ## Compare
#
# Everyone holds the sum. The picture shows its price: rank 0 had the least to do, called `all_reduce` first, and waited for rank 3. A collective ends when the slowest rank arrives.

# %%
widgets.timeline(run)

# %% [markdown] sections="D-verify"
# ## A check that cannot fail checks nothing
#
# Section D-verify prints "success" when a script reaches its end. This is its logic. It starts no process group, so it has one rank and skips the only line that would communicate.


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

# %%
try:
    lab.launch(check_torch, spoil=True, ranks=2)
except lab.RankFailed as verdict:
    print(verdict)

# %% [markdown]
# ## Accelerate
#
# Every rank trains on its own half of the data. If Accelerate averages the gradients, both ranks end with the weights that one process gets from the whole batch.


# %%
import torch
import torch.distributed as dist

torch.manual_seed(0)
model, data = torch.nn.Linear(4, 1), torch.randn(8, 4)


def one_step(use_accelerate):
    device = torch.get_default_device()
    net, mine = model.to(device), data.to(device)  # to where this rank computes
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if use_accelerate:
        from accelerate import Accelerator
        from labkit.accelerate import find_device

        find_device()  # tells Accelerate the ranks and this rank's device
        accelerator = Accelerator()
        net, optimizer = accelerator.prepare(net, optimizer)
        mine = mine.chunk(dist.get_world_size())[dist.get_rank()]
    loss = net(mine).square().mean()
    accelerator.backward(loss) if use_accelerate else loss.backward()
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


whole = lab.launch(one_step, False, ranks=1)[0]
halves = lab.launch(one_step, True, ranks=2)
differences = [(halves[r] - whole).abs().max().item() for r in range(2)]
assert max(differences) < 1e-6, "Accelerate did not average the gradients"
differences

# %% [markdown]
# ## DeepSpeed
#
# The same question to a DeepSpeed engine under ZeRO stage 1, where each rank keeps only half of the optimizer's state.


# %%
def deepspeed_step():
    import deepspeed

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
    return torch.cat([p.detach().flatten() for p in model.parameters()])


halves = lab.launch(deepspeed_step, ranks=2)
differences = [(halves[r] - whole).abs().max().item() for r in range(2)]
assert max(differences) < 1e-6, (
    "DeepSpeed took another step than one process with the whole batch"
)
differences

# %% [markdown]
# ## What a rank stands on
#
# A rank computes on a **device**. There are four kinds, and the same cell runs on each:
#
# - a GPU of its own, where there are as many as ranks; NCCL carries the messages
# - a GPU shared with other ranks; gloo carries the messages through the host
# - a **pretend device**: real tensors in a memory of their own, with CUDA's rules and CUDA's error messages; the CPU computes
# - the CPU
#
# `lab.launch` takes a GPU each where it can, else pretend devices, which `make env` builds, else the CPU. Ranks share a GPU only if you ask for it. DeepSpeed knows no pretend device: a launch whose code names it, as the one above does, takes a GPU each or the CPU. The environment variable `LABKIT_DEVICE` (`cuda`, `shared`, `pretend` or `cpu`), set before the notebook starts, forces one for a whole course; `devices=` says it for one launch. What torch makes in a rank lies on the rank's device.
#
# The commonest mistake on the way to a GPU is a tensor left behind on the CPU. A CPU forgives it, a pretend device refuses it as a GPU does:


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
# What a pretend device can't show: the speed of a GPU, its streams and the races between them, fragmented memory, and NCCL. It does one thing after another, gives freed memory back at once (CUDA's allocator keeps it for the next tensor), and its messages go through gloo.

# %% [markdown]
# ## When ranks wait for ever
#
# The commonest mistake of the field: one rank never calls what the others call. With bare processes they see a closed connection if that rank has ended; if it lives and does something else, they wait until torch's time limit is over, by default 30 minutes with gloo and 10 with NCCL (chapter 14 reads both numbers from torch). Here it is a verdict, in less than a second, and the notebook goes on.


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
