# ---
# jupyter:
#   labkit:
#     sections: ["8.11.1", "8.11.2", "10.5.2", "19.9"]
#     needs: ["two CPU cores"]
#     minutes: 75
# ---

# %% [markdown]
# # Debugging
#
# *About 75 minutes. You need chapters 03 and 05. No GPU is needed.*
#
# It is three in the morning, and our 7 B model trains on 64 cards. The loss line stops. There is no error, and every card reports that it is busy. Ten minutes later, when NCCL's patience is over, 64 tracebacks run through one terminal: more than ten hours of card time for a wait. One of the 64 says why.
#
# Here is the same on four small ranks. They add up the lengths of four words, and one word is missing. How many of the four will raise an error of their own?

# %%
import labkit as lab
from labkit import model
from labkit.debugging import check, cure_run, faults, health
from labkit.debugging.broken_run import meanings, places, verdict
from labkit.measure import memory

lab.begin("en", deadline_s=40)
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def mean_length():
    words = ["data", "model", None, "loss"]
    length = torch.tensor(float(len(words[dist.get_rank()])))
    dist.all_reduce(length)
    return length.item() / dist.get_world_size()


error = verdict(mean_length, ranks=4)
error

# %% [markdown]
# This is a report, with a row per [rank](GLOSSARY.md#rank). Look for the marked row: only that rank raised an exception of its own. The others waited for it in the all-reduce. When it left, some of them were told that a connection was gone. Such an error is an **echo**: it says that another rank failed, but not why.
#
# **When you are done** you can find the one rank and the one line that broke a run; you can mend hangs, silent wrong sums, NaN and full memories; and you know what to prepare before a run, so that the search is short.
#
# ## How a run ends
#
# `lab.launch` raises when a run fails. In this chapter nearly every run does, so `verdict` launches it and gives back what was raised, the **[verdict](GLOSSARY.md#verdict)**. A cell that ends in one shows the report.
#
# A rank can end in four ways: it returned, it raised, it died, or it is stuck. Here are all four in one run. Which of them tells us the least?


# %%
def four_ways():
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(0.3)
        raise ValueError("sample 17 has no label")
    if rank == 2:
        time.sleep(0.4)
        os._exit(3)  # leaves without a word
    if rank == 3:
        dist.recv(torch.zeros(1), src=0)


verdict(four_ways, ranks=4)

# %% [markdown]
# The stuck one tells least, because it has done nothing wrong yet: it waits. That is the hardest kind of failure, so we begin with it.

# %% [markdown] sections="8.11.2, 19.9"
# ## Collectives that do not match
#
# When ranks wait for something that never comes, we call it a **[hang](GLOSSARY.md#hang)**. The simplest way to get one: rank 0 broadcasts, while the others reduce. What will you see, if nobody looks after the ranks?

# %%
sees = lab.guess(
    "rank 0 broadcasts, the others all-reduce",
    choices=("an error", "a hang", "wrong numbers"),
)


# %%
def two_minds(mended):
    x = torch.full((4,), dist.get_rank() + 1.0)
    if dist.get_rank() == 0 and not mended:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)
    return {"x": x[0].item()}


error = verdict(two_minds, False, ranks=4)
error

# %%
sees.score({"Deadlock": "a hang", "RankFailed": "an error"}[type(error).__name__])

# %% [markdown]
# torch itself says nothing. By default it would wait half an hour with [gloo](GLOSSARY.md#gloo), and ten minutes with [NCCL](GLOSSARY.md#nccl). The verdict comes sooner because labkit asks each rank where it is, and reads torch's **[flight recorder](GLOSSARY.md#flight-recorder)**, which numbers the [collectives](GLOSSARY.md#collective) of every group. Different operations under the same number prove a mismatch, and the majority tells who is odd. The cure is that all make the same call:

# %%
lab.launch(two_minds, True, ranks=4)

# %% [markdown]
# The second kind is a barrier that only rank 0 reaches, after it has saved a file. Rank 0 will hang. Whom should the report mark?

# %%
marked = lab.guess("whom the report marks", choices=("rank 0", "ranks 1 and 2"))


# %%
def save_and_wait(mended):
    if dist.get_rank() == 0:
        print("saved")
        if not mended:
            dist.barrier()
    if mended:
        dist.barrier()


error = verdict(save_and_wait, False, ranks=3)
error

# %%
marked.score("rank 0" if error.finding.ranks == (0,) else "ranks 1 and 2")

# %% [markdown]
# The rank that waits is innocent; those that never come are marked. The arrow points from who waits to whom it waits for. So read the line it waits in, go up to the nearest `if`, and you have the fault.
#
# ### The wrong group
#
# Two of four ranks make a [process group](GLOSSARY.md#process-group) of their own, and forget to pass it. Where do they wait, and for whom?


# %%
def forgotten_group(mended):
    x = torch.ones(1)
    group = dist.new_group([0, 1])  # every rank must call it, members or not
    if dist.get_rank() in (0, 1):
        dist.all_reduce(x, group=group if mended else None)
    return {"x": x.item()}


verdict(forgotten_group, False, ranks=4)

# %%
lab.launch(forgotten_group, True, ranks=4)

# %% [markdown] sections="19.9"
# Without `group=` the call goes to all four ranks, so two wait for two that never heard of it.
#
# <details><summary>Erratum 19.9: a forgotten group of the first four ranks hangs</summary>
#
# The example makes a group of ranks 0 to 3 and forgets it. On four ranks that is the default group anyway, and nothing happens; only from five ranks on does it hang. Run it: `verdict(forgotten_group, False, ranks=4)` has a group of two, and `ranks=2` would end well.
#
# </details>
#
# ### One batch less
#
# A hang that comes with the last batch: one rank runs out of data first. Rank 0 has three batches, and rank 1 has four. DDP has a cure, `join()`: a rank that is done takes part in the others' all-reduces with zeros.


# %%
def epoch(joined):
    torch.manual_seed(0)
    net, rank = DDP(torch.nn.Linear(4, 1)), dist.get_rank()
    with net.join(enable=joined):
        for number, batch in enumerate(torch.ones(3 + rank, 2, 4), start=1):
            net(batch).sum().backward()
    return {"batches": number}


verdict(epoch, False)

# %%
lab.launch(epoch, True)

# %% [markdown]
# ## Case one: the log
#
# Now you. In this chapter an exercise is a **case**: a broken run. First find the odd **rank** (a number, or a tuple of several), the **line** (a piece of its text, such as `"dist.barrier()"`) and the **fault**, a name from this table. Then mend the function.

# %%
lab.table(meanings(), title="Faults and their names")

# %% [markdown]
# The cases do not show you the report, because it would tell. You get what a colleague could see from outside: where each rank is. The check runs your function on real ranks with other data and other numbers of ranks. It must return what the broken one was meant to return; hiding the fault does not count.
#
# Meant: every rank returns the means over the ranks of every second loss; rank 0 alone prints them. Rank 0 needs the sum only to print, and so its author thought that only rank 0 needs to call it.


# %%
def log_losses(losses):
    rank, means = dist.get_rank(), []
    for step, loss in enumerate(losses):
        mean = torch.tensor(loss)
        if rank == 0 and step % 2 == 0:
            dist.all_reduce(mean)
            means.append(mean.item() / dist.get_world_size())
            print(f"step {step}: mean loss {means[-1]:.2f}")
    return means


error = verdict(lambda: log_losses([4.0 + dist.get_rank(), 3.0, 2.0]), ranks=3)
lab.table(places(error), title="Case one")


# %%
def my_one(losses):
    """Means over the ranks of every second loss, on every rank; rank 0 prints."""
    ### BEGIN SOLUTION
    means = []
    for step, loss in enumerate(losses):
        if step % 2 == 0:
            mean = torch.tensor(loss)
            dist.all_reduce(mean)
            means.append(mean.item() / dist.get_world_size())
            if dist.get_rank() == 0:
                print(f"step {step}: mean loss {means[-1]:.2f}")
    return means
    ### END SOLUTION


def finding_one():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return (1, 2), "dist.all_reduce(mean)", "missing_rank"
    ### END SOLUTION


# %%
check.case_one(my_one, finding=finding_one)

# %%
check.hint("case_one")

# %% [markdown] sections="8.11.2"
# ## Messages in a circle
#
# Not only collectives hang. Here both ranks first send and then receive, a single number of 4 bytes. Will it pass, because the message is so small?

# %%
passes = lab.guess(
    "both send 4 bytes, then both receive", choices=("a hang", "a good end")
)


# %%
def cycle():
    other, got = 1 - dist.get_rank(), torch.zeros(1)
    dist.send(torch.ones(1), dst=other)
    dist.recv(got, src=other)


error = verdict(cycle, hang_s=2)
error

# %%
passes.score("a hang" if error.finding.fault == "send_cycle" else "a good end")

# %% [markdown]
# It hangs whatever the size, because gloo's `send` waits for the receiver. The cure is `isend` and `irecv`, which return at once. But **both** requests must be waited for, on both ranks. Here rank 1 starts 0.2 s late. Look at what rank 0 has before the wait and after it. (Nothing proves such a hang but silence. `hang_s=2` above said how long labkit listened.)


# %%
def no_cycle():
    rank, got = dist.get_rank(), torch.zeros(1)
    time.sleep(0.2 * rank)
    sent = dist.isend(torch.full((1,), rank + 1.0), dst=1 - rank)
    received = dist.irecv(got, src=1 - rank)
    before = got.item()
    for request in (sent, received):
        request.wait()
    return {"before the wait": before, "after the wait": got.item()}


lab.launch(no_cycle)

# %% [markdown] sections="8.11.2"
# ## Timeouts
#
# "Raise the timeout" is the first advice that one finds for a hang. Where is it set? Many scripts export two environment variables. torch ships the header in which its NCCL backend lists the names that it reads, so we can look:

# %%
from pathlib import Path

folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
header = (folder / "ProcessGroupNCCL.hpp").read_text()
NAMES = ["NCCL_TIMEOUT", "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
lab.table({"variable": name, "torch reads it": f'"{name}"' in header} for name in NAMES)

# %% [markdown] sections="8.11.2"
# What counts is the argument `timeout=` of `init_process_group` and of `new_group`.
#
# <details><summary>Erratum 8.11.2: NCCL_TIMEOUT and NCCL_ASYNC_ERROR_HANDLING</summary>
#
# Nothing reads `NCCL_TIMEOUT`: `'"NCCL_TIMEOUT"' in header` is False. Of the other name the spelling with `TORCH_` is current, and the short one is kept for old scripts; what it turns on has long been the default.
#
# </details>
#
# In the next run rank 1 is 0.3 s late, once in the default group, and once in a group with a timeout of 0.1 s. How long does rank 0 wait in the second?

# %%
waits = lab.guess("how long rank 0 waits, with a timeout of 0.1 s", unit="s")


# %%
def late(timeout_s):
    from datetime import timedelta

    group = dist.new_group(timeout=timedelta(seconds=timeout_s))
    dist.barrier()
    began, how = time.perf_counter(), "done"
    time.sleep(0.3 * dist.get_rank())
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        how = "RuntimeError"
    return {"waited_s": time.perf_counter() - began, "how": how}


# %%
patient, hasty = [lab.launch(late, limit, devices="cpu") for limit in (1800, 0.1)]
waits.score(hasty[0]["waited_s"])

# %%
lab.table(
    {"timeout_s": limit, **run[0]} for limit, run in ((1800, patient), (0.1, hasty))
)

# %% [markdown]
# gloo raises an error that one may catch (these two ran on the CPU for that); NCCL would end the process. Either way a timeout cures no hang. It ends it, and a longer one only makes you wait longer. So raise it where a rank is really that slow, because it loads or compiles for half an hour. Otherwise look for the rank that never comes.
#
# ## Same calls in another order
#
# Now the worst mismatch: rank 1 reduces y before x, and both have the same shape. On each of three ranks x is 1 and y is 10, so the sums should be 3 and 30. What does rank 0 get for x?

# %%
gets = lab.guess("x on rank 0, if rank 1 reduces y first", between=(0, 40))


# %%
def swapped():
    x, y = torch.tensor([1.0]), torch.tensor([10.0])
    if dist.get_rank() != 1:
        dist.all_reduce(x)
    dist.all_reduce(y)
    if dist.get_rank() == 1:
        dist.all_reduce(x)
    return {"x": x.item(), "y": y.item()}


run = lab.launch(swapped, ranks=3)
gets.score(run[0]["x"])

# %%
check.trace(run)

# %% [markdown]
# Nothing hung, nothing failed, and both sums are wrong. Only the order of the calls tells, and `check.trace(run)` compares it, by the line of each call. That is also its limit. If **one** line reduces both tensors, in a loop whose order differs, the calls look alike:


# %%
def swapped_in_a_loop():
    sums = {"loss": torch.tensor([1.0]), "count": torch.tensor([10.0])}
    for name in sorted(sums, reverse=dist.get_rank() == 1):
        dist.all_reduce(sums[name])
    return {name: value.item() for name, value in sums.items()}


looped = lab.launch(swapped_in_a_loop, ranks=3)
looped

# %%
check.trace(looped)

# %% [markdown]
# So sort the names, and never reduce in the order of a set, or of a dict that was filled in another order. (Each Python process salts the hash of a string anew. So under torchrun the order of a set of names differs between ranks.)
#
# ### Let torch compare
#
# torch can compare the calls before it makes them, if `TORCH_DISTRIBUTED_DEBUG=DETAIL` is set when the ranks start. Then no rank hangs, because each refuses the call. First the broadcast against the all-reduce, then the swapped order:

# %%
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
verdict(two_minds, False, ranks=3)

# %%
lab.launch(swapped, ranks=3)

# %% [markdown]
# The operations are named at once. But torch compares operation, size and type, so the swapped order passes here as well. And it costs a comparison before every call. How much? We time a sum of one number with it and without:


# %%
def small_calls(num=200):
    one = torch.ones(1)
    dist.all_reduce(one)  # connects the ranks
    began = time.perf_counter()
    for _ in range(num):
        dist.all_reduce(one)
    one.item()  # a GPU works on while Python goes ahead
    return 1e6 * (time.perf_counter() - began) / num


compared_us = max(lab.launch(small_calls))
del os.environ["TORCH_DISTRIBUTED_DEBUG"]
plain_us = max(lab.launch(small_calls))
lab.bars({"plain": plain_us, "DETAIL": compared_us}, unit="us", title="A small sum")

# %% [markdown] sections="10.5.2"
# So it is for a search, not for training.
#
# ## Numbers that go wrong
#
# The next runs neither hang nor fail; they learn nothing. Rank 2's batch holds one NaN. How many of the four ranks have NaN gradients after the all-reduce?

# %%
ill = lab.guess("ranks with NaN gradients after the all-reduce", between=(0, 4))


# %%
def one_nan():
    batch = torch.rand(2, 4)  # other numbers on every rank
    if dist.get_rank() == 2:
        batch[0, 0] = float("nan")
    net = torch.nn.Linear(4, 1)
    net(batch).sum().backward()
    own = health.statistics(net.weight.grad)
    before = health.finite([("weight", net.weight.grad)])  # every rank must call it
    dist.all_reduce(net.weight.grad)
    after = health.finite([("weight", net.weight.grad)])
    return {"before": before.ranks, "after": after.ranks, "own": own}


run = lab.launch(one_nan, ranks=4)
ill.score(len(run[0]["after"]))

# %%
KEYS = ("shape", "dtype", "num_nan", "min", "max", "mean", "std")
lab.table({"rank": r, **{k: run[r]["own"][k] for k in KEYS}} for r in range(4))

# %% [markdown]
# After the all-reduce all are ill, and nobody can say where it came from. So look **before** it, as this table does: `health.statistics` counts NaN apart, so that the other columns still say something. DDP reduces on its own, so there `health.guard` looks at each [bucket](GLOSSARY.md#bucket) just before it leaves:


# %%
def guarded():
    torch.manual_seed(0)
    net = DDP(torch.nn.Linear(4, 1))
    health.guard(net)
    batch = torch.rand(2, 4)
    if dist.get_rank() == 2:
        batch[0, 0] = float("nan")
    net(batch).sum().backward()


verdict(guarded, ranks=4)

# %% [markdown] sections="19.9"
# The right rank raises, with the name of its gradient. The others wait for it, or have lost their peer.
#
# ### Overflow in fp16
#
# fp16 ends at 65504, and this layer's output is larger. The usual advice is `autocast` and a [loss scale](GLOSSARY.md#loss-scale). Which of three ways will learn?

# %%
learns = lab.guess(
    "which way learns", choices=("pure fp16", "fp16 with a scaler", "autocast bf16")
)


# %%
def train_16bit(dtype, autocast):
    x, y = torch.full((8, 16), 50.0), torch.zeros(8, 1)
    net = torch.nn.Linear(16, 1)
    torch.nn.init.constant_(net.weight, 100.0)  # outputs of 80000
    if not autocast:
        net, x, y = net.to(dtype), x.to(dtype), y.to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
    has_scaler = autocast and dtype == torch.float16
    scaler = torch.amp.GradScaler(x.device.type, enabled=has_scaler)
    losses = []
    for _ in range(8):
        with torch.autocast(x.device.type, dtype, enabled=autocast):
            loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    finite = bool(net.weight.isfinite().all())
    return {"losses": losses, "finite weights": finite, "scale": scaler.get_scale()}


# %%
ways = {
    "pure fp16": train_16bit(torch.float16, autocast=False),
    "fp16 with a scaler": train_16bit(torch.float16, autocast=True),
    "autocast bf16": train_16bit(torch.bfloat16, autocast=True),
}
learned = [way for way, got in ways.items() if got["losses"][-1] < got["losses"][0]]
learns.score(*learned)

# %%
lab.table(
    {
        "way": way,
        "first loss": f"{got['losses'][0]:.2g}",
        "last loss": f"{got['losses'][-1]:.2g}",
        "finite weights": got["finite weights"],
        "loss scale": got["scale"],
    }
    for way, got in ways.items()
)

# %% [markdown] sections="10.5.2, 19.9"
# The scaler keeps the weights clean, because it skips every step whose gradients are not finite. It halves its scale from 65536, eight times, and nothing is learned.
#
# <details><summary>Erratum 19.9: autocast and a gradient scaler cure an overflow in fp16</summary>
#
# They cure an overflow of **gradients**, which a smaller scale mends (chapter 05). Here the **forward** overflows, and no scale changes that: `ways["fp16 with a scaler"]` has no finite loss. bf16 has the range of fp32; or make the activations smaller, by a norm or another initial scale.
#
# </details>
#
# ## Replicas that drift apart
#
# DDP's replicas start equal and stay equal, if all ranks make the same update. To check that, each rank takes a short fingerprint of its weights and compares. Python has one at hand, `hash`. Here two Python processes hash the same eight numbers, as two ranks of torchrun would:

# %%
import subprocess
import sys

TEXT = "import array; print(hash(array.array('f', range(8)).tobytes()))"
command = [sys.executable, "-c", TEXT]
lab.table({"rank": r, "hash": int(subprocess.check_output(command))} for r in range(2))

# %% [markdown] sections="10.5.2"
# The bytes are equal and the hashes are not, since Python salts `hash` in each process.
#
# <details><summary>Erratum 10.5.2: replicas are compared by hash(param...tobytes())</summary>
#
# Under torchrun that check cries wolf on every healthy run: the two rows of `lab.table` above hold the same bytes. (Ranks of `lab.launch` come from one process and happen to agree, which is worse, because the fault shows only elsewhere.) A digest such as BLAKE2b depends on the bytes alone.
#
# </details>
#
# `health.compare` takes a digest of each tensor, 16 characters, and lets the ranks vote. In the next run rank 1 makes a tiny update alone:


# %%
def one_update_alone():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    if dist.get_rank() == 1:
        with torch.no_grad():
            net[1].bias += 1e-6
    return health.compare(net.named_parameters())


print(lab.launch(one_update_alone, ranks=3)[0])

# %% [markdown] sections="19.9"
# ## Four traps of every day
#
# ### No zero_grad
#
# Forget `zero_grad` and the gradients pile up. What grows with them? Four steps with the same batch: how large is the last gradient, in lengths of the first?

# %%
longer = lab.guess("length of the fourth gradient, no zero_grad", unit="ratio")


# %%
def four_steps(fault):
    torch.manual_seed(0)
    net, kept, norms, alive = torch.nn.Linear(64, 64), [], [], {}
    with memory.watch() as watched:
        for step in range(1, 5):
            loss = net(torch.ones(8, 64)).square().mean()
            if fault == "keeps losses":
                kept.append(loss)  # for a mean at the end, and never calls backward
            else:
                loss.backward()
                norms.append(net.weight.grad.norm().item())
            del loss
            alive[step] = watched.live_bytes
            if fault != "no zero_grad":
                net.zero_grad()
    return norms, alive


# %%
found = {name: four_steps(name) for name in ("healthy", "no zero_grad", "keeps losses")}
norms = found["no zero_grad"][0]
longer.score(norms[-1] / norms[0])

# %%
alive = {name: alive for name, (_, alive) in found.items()}
lab.curves(measured=alive, x="step", unit="bytes", title="Bytes alive after each step")

# %% [markdown]
# Gradients are added in place: the values grow, and the bytes do not. Two of the three rows of dots lie on each other. The training goes wrong, because each update uses the sum of all gradients so far. What does grow is the line of the losses that are kept as tensors, in an evaluation without `torch.no_grad()`. Each of them holds its whole graph, so keep `loss.item()`.
#
# <details><summary>Erratum 19.9: without zero_grad gradients pile up until memory overflows</summary>
#
# The values pile up, the bytes do not: `alive["no zero_grad"]` stays level, while the norm is four times as large after four steps.
#
# </details>
#
# ### torch.save(model)
#
# It is tempting to save the whole model instead of its `state_dict`. A saved file is a zip with the tensors' bytes and one pickle. Here are the sizes, and the names that the pickle looks up when it is read:

# %%
import pickletools
import tempfile
import zipfile

scratch = tempfile.TemporaryDirectory()
whole, weights = Path(scratch.name, "whole.pt"), Path(scratch.name, "weights.pt")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(100, 100)


def looked_up(path):
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        opcodes = list(pickletools.genops(archive.read(name)))
    return ", ".join(str(arg) for code, arg, _ in opcodes if code.name == "GLOBAL")


# %%
torch.save(Net(), whole)
torch.save(Net().state_dict(), weights)
lab.table(
    {"file": path.name, "size_bytes": path.stat().st_size, "looks up": looked_up(path)}
    for path in (whole, weights)
)

# %% [markdown] sections="19.9"
# Both are 40 kB of tensors and a little more. The difference is `__main__ Net`: the class is stored as a name. What does `torch.load(whole)` give?

# %%
gives = lab.guess("torch.load of the whole model", choices=("the model", "refusal"))


# %%
def opened(path, **options):
    try:
        return type(torch.load(path, **options)).__name__
    except Exception as error:
        return type(error).__name__


by_default = opened(whole)
gives.score("the model" if by_default == "Net" else "refusal")

# %%
trusting = opened(whole, weights_only=False)
del Net  # the class is renamed, or moved to another file
moved = opened(whole, weights_only=False)
row = {"default": by_default, "weights_only=False": trusting, "class gone": moved}
lab.table([row | {"state_dict": opened(weights)}])

# %% [markdown]
# With `weights_only=False` it works until the class is renamed or moved. And torch refuses for a reason: such a file may name any function, and reading it calls that function.


# %%
class Surprise:
    def __reduce__(self):
        return print, ("this line was printed by reading the file",)


torch.save({"line.weight": torch.zeros(1), "extra": Surprise()}, whole)
torch.load(whole, weights_only=False).keys()

# %% [markdown] sections="19.9"
# The `state_dict` has neither trouble, so save that (chapter 13).
#
# <details><summary>Erratum 19.9: torch.save(model) stores the CUDA context</summary>
#
# It stores no context: `looked_up(whole)` names classes and functions, and the two files differ by a few bytes of names.
#
# </details>
#
# ### Many small messages
#
# One all-reduce per parameter, or the same bytes in buckets? We send 200 gradients of 16 kB, and take the best of three. How many times as long do single messages take?

# %%
my_ratio = lab.guess("one all-reduce per parameter, over buckets", unit="ratio")


# %%
def in_messages_of(num):
    gradients, times_ms = torch.ones(200, 4096), []
    for _ in range(3):
        dist.barrier()
        began = time.perf_counter()
        for some in gradients.split(num):
            dist.all_reduce(some)
        gradients[0, 0].item()  # waits for a GPU
        times_ms.append(1e3 * (time.perf_counter() - began))
    return min(times_ms)


single, bucketed = lab.launch(in_messages_of, 1)[0], lab.launch(in_messages_of, 50)[0]
my_ratio.score(single / bucketed)

# %%
times = {"200 messages": single, "4 messages": bucketed}
lab.bars(times, unit="ms", title="The same bytes, summed")

# %% [markdown] sections="19.9"
# The same bytes, but fewer waits. DDP does this by itself (chapter 03).
#
# ### Data that moves too often
#
# A new batch has to be copied to the device once; that is no fault. What costs is to copy it **twice**, and to wait for the copy. We count the copies of three ways to get a batch there as fp16:

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Copies(TorchDispatchMode):
    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += str(func) == "aten._to_copy.default"
        return func(*args, **(kwargs or {}))


def counted(move):
    with Copies() as copies:
        move()
    return copies.num


# %%
def copied(batch):
    device = torch.get_default_device()
    there = batch.to(device)
    return {
        "already there": counted(lambda: there.to(device)),
        "in one step": counted(lambda: batch.to(device, torch.float16)),
        "in three steps": counted(lambda: batch.to(device).double().half()),
    }


lab.launch(copied, torch.ones(4, 4), ranks=1)

# %% [markdown] sections="19.9"
# <details><summary>Erratum 19.9: batch.cuda() in the loop is the fault</summary>
#
# A new batch must be copied once, wherever the call stands: `copied` counts one copy in one step, and none of what is already there. What costs is a second copy, and a wait for the first.
#
# </details>
#
# The wait needs a GPU to be seen. From pinned host memory, which the system never moves, a copy with `non_blocking=True` runs beside the computation, so the program goes on at once. Without a GPU the next cell only says so:


# %%
def until_we_go_on(pinned):
    """Milliseconds that a copy to the GPU keeps the program."""
    batch = torch.ones(8, 1_000_000)
    batch = batch.pin_memory() if pinned else batch
    torch.accelerator.synchronize()
    began = time.perf_counter()
    batch.to(torch.accelerator.current_accelerator(), non_blocking=pinned)
    return 1e3 * (time.perf_counter() - began)


if torch.accelerator.is_available():
    print({pinned: until_we_go_on(pinned) for pinned in (False, True)})
else:
    print("no GPU here: nothing is copied")

# %% [markdown]
# One more trap makes no noise at all: a sampler whose `set_epoch` is forgotten. Nothing fails, and every epoch has the order of the first (chapter 03). Give `health.same_order` the indices of two epochs:

# %%
from torch.utils.data import DistributedSampler

sampler = DistributedSampler(range(32), num_replicas=2, rank=0)
print(health.same_order({epoch: list(sampler) for epoch in range(2)}))

# %% [markdown] sections="8.11.1"
# ## Out of memory
#
# Next, the failure that everybody meets. Each rank gets a [pretend device](GLOSSARY.md#pretend-device) of 40 MiB: a memory of its own, with a GPU's rules and a GPU's words when it is full. Rank 1's batch is too large for it, rank 0's is not. In which line will it fail, the forward or the backward?

# %%
fails_in = lab.guess("where rank 1 runs out", choices=("forward", "backward"))


# %%
def too_large(num_microbatches):
    net = model.Transformer(4, 128, 4, max_len=128)
    tokens, targets = model.story_tokens(12 if dist.get_rank() == 1 else 2, 128)
    parts = zip(tokens.chunk(num_microbatches), targets.chunk(num_microbatches))
    for some, theirs in parts:
        loss = model.loss(net(some), theirs) / num_microbatches
        loss.backward()
    dist.all_reduce(loss.detach())
    return "done"


small = lab.pretend(memory_mib=40)
error = verdict(too_large, 1, devices=small)
error

# %%
line = error.finding.where["text"]
fails_in.score("backward" if "backward" in line else "forward")

# %%
lab.launch(too_large, 6, devices=small)

# %% [markdown]
# The error names the tensor that found no room. That is the last straw, not the load. With six [microbatches](GLOSSARY.md#microbatch) the same batch fits. But was that the right cure?
#
# ### Read the snapshot first
#
# What filled the memory is asked of a **snapshot**: who holds how much, at the highest moment. `cure_run.steps` counts every byte that torch makes over one step of this model on each of two ranks, on any device: the forward of each layer (F), the loss, the backward (B), the update. What will be the largest part?

# %%
PARTS = ("parameters", "gradients", "optimizer", "activations")
largest = lab.guess("the largest part at the peak", choices=PARTS)

# %%
tried = lab.launch(cure_run.steps)[0]
plain = tried[""].footprint
plain

# %%
peak = plain.num_bytes[plain.totals.argmax()]
held = dict(zip(("parameters", "gradients", "optimizer", "", "", "activations"), peak))
largest.score(max(PARTS, key=held.get))

# %% [markdown]
# On a GPU torch keeps such a history itself: `torch.cuda.memory._record_memory_history(max_entries=100_000)` before the step, `_dump_snapshot(file)` after it. The page https://pytorch.org/memory_viz draws the file in your browser. Is `enabled=True` as good? The two functions behind the name keep so many events:

# %%
import inspect

cuda = torch.cuda.memory
old = inspect.signature(cuda._record_memory_history_legacy).parameters
new = inspect.signature(cuda._record_memory_history_impl).parameters
kept = {
    "enabled=True": old["trace_alloc_max_entries"],
    "max_entries": new["max_entries"],
}
lab.table([{name: each.default for name, each in kept.items()}])

# %% [markdown] sections="8.11.1"
# <details><summary>Erratum 8.11.1: _record_memory_history(enabled=True)</summary>
#
# torch sends a bool to an older function, which keeps one event: `old["trace_alloc_max_entries"].default` is 1. So say `max_entries=`.
#
# </details>
#
# ### Which cure first?
#
# Five cures, one at a time, on the model and batch of the snapshot. What decides their order is the price. First come those that cost time only and leave the update as it is, then those that change the numbers. Which one lowers the peak most here?

# %%
best = lab.guess("the cure that saves most", choices=cure_run.CURES)

# %%
peaks = {cure or "none": got.footprint.peak_bytes for cure, got in tried.items()}
best.score(min(cure_run.CURES, key=peaks.get))

# %%
lab.bars(peaks, unit="bytes", title="Peak of a rank, one cure at a time")

# %% [markdown]
# And the price: the time, in times of the plain step, and how far the new weights are from those of the plain step.

# %%
seconds, weights = tried[""].seconds, tried[""].weights
lab.table(
    {
        "cure": cure or "none",
        "time": got.seconds / seconds,
        "weights differ by": f"{lab.difference(got.weights, weights):.0e}",
    }
    for cure, got in tried.items()
)

# %% [markdown] sections="8.11.1"
# Adam moves a weight by about its learning rate, 1e-3, in each of two steps. So a difference of that size is another update, and one far below it is rounding. The times are of one try on this machine; only a GPU can tell a GPU's, most of all for bf16.
#
# Here activations fill the memory, so what divides them helps. Microbatches with [accumulation](GLOSSARY.md#gradient-accumulation) and [activation checkpointing](GLOSSARY.md#activation-checkpointing) leave the update as it was. [FSDP](GLOSSARY.md#fsdp) divides parameters, gradients and optimizer states, the smaller part here. With a large model and a small batch it would be the other way round. bf16 and shorter sequences change the training. [Offload](GLOSSARY.md#offload) comes last, because it moves the states over the bus in each step (measured in chapter 06).
#
# <details><summary>Erratum 8.11.1: seven cures in a fixed order</summary>
#
# The list runs from batch 1, accumulation, checkpointing, FSDP and offload to lower precision and shorter sequences. The first two are one cure, and FSDP has no fixed place: `lab.bars(peaks, unit="bytes")` shows that it saves little where activations are the load. Precision and length are no matter of memory alone, since they change the update.
#
# </details>
#
# <details><summary>Erratum 8.11.1: fsdp_cpu_ram_efficient_loading is named as offload</summary>
#
# It is about loading: only the first process reads the weights, and the others get them from it. Offload is `cpu_offload`. The next cell prints Accelerate's own words for the two.
#
# </details>

# %%
import dataclasses

from accelerate import FullyShardedDataParallelPlugin

fields = {
    each.name: each for each in dataclasses.fields(FullyShardedDataParallelPlugin)
}
for name in ("cpu_offload", "cpu_ram_efficient_loading"):
    print(name, fields[name].metadata["help"].partition(". ")[0], sep=": ")

# %% [markdown] sections="10.5.2"
# ## Prepare before you need it
#
# ### Logs of every rank
#
# A run shows what each rank printed. In a long training each rank writes a file, and only rank 0 speaks on the console. Here is a usual set-up, with the level lowered on all ranks but 0. What stands in each rank's file after one `logging.info`?


# %%
def with_logs(folder, mended):
    import logging

    file = logging.FileHandler(f"{folder}/{dist.get_rank()}.log", mode="w")
    console = logging.StreamHandler()
    logging.basicConfig(level=logging.INFO, handlers=[file, console], force=True)
    if dist.get_rank() != 0:
        quiet = console if mended else logging.getLogger()
        quiet.setLevel(logging.WARNING)
    logging.info("step 0 is done")
    return {"in its file": Path(file.baseFilename).read_text().strip()}


lab.launch(with_logs, scratch.name, False, ranks=3)

# %%
lab.launch(with_logs, scratch.name, True, ranks=3)

# %% [markdown] sections="10.5.2"
# <details><summary>Erratum 10.5.2: a level for all handlers</summary>
#
# The level of the root logger stands before every handler, so the files of all ranks but 0 stay empty: the very ones that a search needs. Run it: `lab.launch(with_logs, scratch.name, False, ranks=3)`. Put the level on the console's handler only, as the second run does.
#
# </details>
#
# ### The same run twice
#
# A fault that comes and goes is the hardest. So go up in steps: one rank, two, four; the first size that fails is the smallest run to study. Fix the seeds, refuse operations that may differ from run to run, and compare the weights after three steps. Will a second run have the same bits? And four ranks instead of two, on the same eight sequences?


# %%
def three_steps():
    torch.use_deterministic_algorithms(True)  # raises where there is no such form
    torch.manual_seed(0)
    net = DDP(model.Transformer(1, 32, 2, max_len=32))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, targets = [part.chunk(size)[rank] for part in model.story_tokens(8, 32)]
    for _ in range(3):
        optimizer.zero_grad()
        model.loss(net(tokens), targets).backward()
        optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in net.parameters()])


# %%
first, again, four = [lab.launch(three_steps, ranks=ranks)[0] for ranks in (2, 2, 4)]
lab.table(
    {
        "run": name,
        "digest": health.digest(weights),
        "differs by": f"{lab.difference(weights, first):.0e}",
    }
    for name, weights in (("2 ranks", first), ("again", again), ("4 ranks", four))
)

# %% [markdown]
# Same ranks, same bits. Other ranks, other bits, but by rounding only, because the sum over the batch is added up in another order. So compare bits between runs of one size, and with a tolerance between sizes. (CUDA needs more: `CUBLAS_WORKSPACE_CONFIG`, and a fixed NCCL algorithm.)
#
# ## A run that hangs now
#
# You need not wait for a verdict. `lab.start` returns at once, and `job.progress` says in which line each rank is.


# %%
def waits_forever():
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)
    dist.all_reduce(torch.ones(1))


job = lab.start(waits_forever, ranks=3)
while sum("text" in row["where"] for row in job.progress) < 3 and not job.done:
    time.sleep(0.05)  # until each tells where it is
lab.table({"rank": row["rank"], "line": row["where"]["text"]} for row in job.progress)

# %% [markdown]
# `job.stacks()` has the whole Python stack of each rank, also where it is deep in C++. For a job of torchrun, `py-spy dump --pid` does the same.

# %%
stack = job.stacks()[1].replace(str(Path(torch.__file__).parents[1]), "")
job.stop()
print(*stack.splitlines()[:5], sep="\n")

# %% [markdown]
# ### A gallery of faults
#
# `faults.run(name)` breaks a real run on purpose, with rank 1 as the odd one, and returns what is found. Four that were not above; try the others:

# %%
NAMES = ("sigkill", "crash", "mismatched_shape", "straggler")
findings = {name: faults.run(name, ranks=4) for name in NAMES}
lab.table(
    {"asked for": name, "found": finding.fault, "on rank": str(finding.ranks)}
    for name, finding in findings.items()
)

# %% [markdown]
# ## Exercises
#
# Five more cases. Again you get no report, only what one sees from outside. Find rank, line and fault; then mend.
#
# ### Case two: the dashboard
#
# Meant: the means of loss and accuracy over the ranks, on every rank. The run ends well, but the dashboard shows an accuracy above 1. Budget: two messages.


# %%
def dashboard(loss, accuracy):
    loss, accuracy = torch.tensor(loss), torch.tensor(accuracy)
    late = accuracy < 0.5  # a rank that is still bad at it sends its loss first
    if not late:
        dist.all_reduce(accuracy)
    dist.all_reduce(loss)
    if late:
        dist.all_reduce(accuracy)
    return loss.item() / dist.get_world_size(), accuracy.item() / dist.get_world_size()


losses, accuracies = (2.0, 3.0, 4.0, 5.0), (0.75, 1.0, 0.25, 0.5)
run = lab.launch(
    lambda: dashboard(losses[dist.get_rank()], accuracies[dist.get_rank()]), ranks=4
)
run


# %%
def my_two(loss, accuracy):
    """The means of both over the ranks."""
    ### BEGIN SOLUTION
    both = torch.tensor([loss, accuracy])
    dist.all_reduce(both)
    return (both / dist.get_world_size()).tolist()
    ### END SOLUTION


def finding_two():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return 2, "dist.all_reduce(loss)", "swapped_order"
    ### END SOLUTION


# %%
check.case_two(my_two, finding=finding_two)

# %%
check.hint("case_two")

# %% [markdown]
# ### Case three: the last batch
#
# Meant: each step takes the mean gradient over the ranks **that still have a batch**; every batch of every rank counts, and every rank returns the same weight. (A batch is one number, the gradient is the weight less that number.)


# %%
def one_epoch(batches):
    weight = 0.0
    for x in batches:
        grad = torch.tensor(weight - x)
        dist.all_reduce(grad)
        weight -= 0.5 * grad.item() / dist.get_world_size()
    return weight


batches = ([3.0, 2.0, 6.0], [1.0, 4.0], [3.0, 2.0, 6.0])
error = verdict(lambda: one_epoch(batches[dist.get_rank()]), ranks=3)
lab.table(places(error), title="Case three")


# %%
def my_three(batches):
    """The weight after all batches of all ranks."""
    ### BEGIN SOLUTION
    weight, step = 0.0, 0
    while True:
        has = step < len(batches)
        both = torch.tensor([weight - batches[step] if has else 0.0, float(has)])
        dist.all_reduce(both)
        if both[1] == 0:
            return weight
        weight -= 0.5 * (both[0] / both[1]).item()
        step += 1
    ### END SOLUTION


def finding_three():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return 1, "dist.all_reduce(grad)", "uneven_inputs"
    ### END SOLUTION


# %%
check.case_three(my_three, finding=finding_three)

# %%
check.hint("case_three")

# %% [markdown]
# ### Case four: the ring
#
# Meant: every rank hands x to the next one and returns what it got from the one before. Budget: x is sent once.


# %%
def pass_on(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before, got = (rank + 1) % size, (rank - 1) % size, torch.empty_like(x)
    dist.send(x, dst=after)
    dist.recv(got, src=before)
    return got


error = verdict(lambda: pass_on(torch.ones(4)), ranks=3, hang_s=2)
lab.table(places(error), title="Case four")


# %%
def my_four(x):
    """What the rank before had."""
    ### BEGIN SOLUTION
    rank, size, got = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    sent = dist.isend(x, dst=(rank + 1) % size)
    received = dist.irecv(got, src=(rank - 1) % size)
    for request in (sent, received):
        request.wait()
    return got
    ### END SOLUTION


def finding_four():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return (0, 1, 2), "dist.send(x, dst=after)", "send_cycle"
    ### END SOLUTION


# %%
check.case_four(my_four, finding=finding_four)

# %%
check.hint("case_four")

# %% [markdown]
# ### Case five: clipped
#
# Meant: less the mean gradient, shortened to `limit` if it is longer; every rank returns the same weight. Nothing hangs and nothing is NaN, and yet the ranks no longer agree.


# %%
def update(weight, grad, limit):
    norm = grad.norm()
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
    if norm > limit:
        grad *= limit / norm
    return weight - grad


grads = ([0.5, 0.5], [9.0, 12.0], [0.5, 0.5])
lab.launch(
    lambda: update(torch.ones(2), torch.tensor(grads[dist.get_rank()]), 2.0).tolist(),
    ranks=3,
)


# %%
def my_five(weight, grad, limit):
    """The weight after one update with the clipped mean gradient."""
    ### BEGIN SOLUTION
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
    norm = grad.norm()
    return weight - (grad * (limit / norm) if norm > limit else grad)
    ### END SOLUTION


def finding_five():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return 1, "grad *= limit / norm", "diverged_replica"
    ### END SOLUTION


# %%
check.case_five(my_five, finding=finding_five)

# %%
check.hint("case_five")

# %% [markdown]
# ### Case six: the mean of all
#
# Meant: the mean over all losses of all ranks. The ranks have different numbers of losses, here three, two and none. Budget: two messages.


# %%
def mean_of_all(losses):
    mean = losses.mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


lab.launch(lambda: mean_of_all(torch.ones((3, 2, 0)[dist.get_rank()])), ranks=3)


# %%
def my_six(losses):
    """The mean over all losses of all ranks, as a number."""
    ### BEGIN SOLUTION
    both = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
    ### END SOLUTION


def finding_six():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return 2, "losses.mean()", "nan"
    ### END SOLUTION


# %%
check.case_six(my_six, finding=finding_six)

# %%
check.hint("case_six")

# %% [markdown]
# ## Summary
#
# - A failed run has a cause and its echoes. Find the rank whose error is its own; of ranks that wait, find the one that they wait for.
# - Every rank of a group calls the same collectives in the same order with the same shapes. An `if rank`, a shorter loop, another group or a set's order break that. Other operations hang; another order gives wrong numbers in silence.
# - A timeout is an argument of the group. It ends a hang and cures none.
# - NaN: look before the all-reduce. Replicas: compare digests, not `hash`. A forgotten `zero_grad` makes values grow, kept losses make memory grow.
# - Out of memory: first the snapshot, then the cure for the largest part, and of these first what costs time only.
# - Prepare before you need them: logs of every rank, seeds, and two runs of one size that agree bit for bit.
#
# Words learned: [hang](GLOSSARY.md#hang), [verdict](GLOSSARY.md#verdict), [flight recorder](GLOSSARY.md#flight-recorder).
#
# You have come to the end of the first part. Next: chapter 18 plans a training before it is run.
#
# ## Further reading
#
# - The flight recorder: PyTorch tutorial, *Flight Recorder for Debugging Stuck Jobs*
# - `join()`: PyTorch, *Distributed Training with Uneven Inputs Using the Join Context Manager*
# - Reproducibility: PyTorch notes, *Reproducibility*
# - Memory snapshots: PyTorch, *Understanding CUDA Memory Usage*
# - Mixed precision: Micikevicius et al. 2017, [arXiv 1710.03740](https://arxiv.org/abs/1710.03740)
#
# *Sections 8.11.1, 8.11.2, 10.5.2 and 19.9 of the source material.*

# %%
check.status()
