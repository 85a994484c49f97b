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
# *Sections 8.11.1, 8.11.2, 10.5.2 and 19.9 of the source material. About 75 minutes. No GPU is needed.*
#
# A distributed program breaks in ways that a single process cannot. One rank goes wrong, and another one complains, or all wait in silence, or all go on with wrong numbers. The questions are always the same: **which rank, which line, why?**
#
# Here you break real runs on purpose. Each fault is run, the report is read, the fault is cured, and the cure is run. At the end six broken programs are yours.

# %%
import labkit as lab

lab.begin("en")
import os
import time

import torch
import torch.distributed as dist
from labkit.pictures import bytes_held, curves
from labkit.debugging import faults, health
from labkit.devices.place import synchronize
from labkit.measure import memory, traffic
from labkit import model, sharding, widgets
from labkit.debugging import check
from labkit.launching.verdicts.outcome import FAULTS
from labkit.units import format_bytes
from labkit.words import say
from torch.nn.parallel import DistributedDataParallel as DDP

# %% [markdown] sections="10.5.2"
# ## How a run ends
#
# Four ranks add up the lengths of four words. One of the words is missing. **Predict:** which ranks raise an exception of their own, and what do the others see?

# %%
my_ranks = None


# %%
def mean_length():
    words = ["data", "model", None, "loss"]
    length = torch.tensor(float(len(words[dist.get_rank()])))
    dist.all_reduce(length)
    return length.item() / dist.get_world_size()


try:
    lab.launch(mean_length, ranks=4, timeout_s=40)
except lab.LaunchError as error:
    widgets.report(error)
    finding = error.finding
    print(
        f"{my_ranks = }; fault: {finding.fault}, ranks: {finding.ranks}, line: {finding.where['text']}"
    )

# %% [markdown]
# A report has a row per rank. Only one raised an exception of its own: its row is marked, with the error and the line. The others were waiting in the all-reduce for it; when it left, some of them, or all, were told that a connection was gone. Such an error is an **echo**: it says that another rank failed, not why. Under torchrun all of these tracebacks come mixed into one terminal. The first thing to find is the one that is not an echo.
#
# Left alone in a cell, the exception draws the same report above its text. It is caught here so that the notebook goes on. From now on a small function does that:


# %%
def fails(fn, *args, **options):
    """Launches a run that is expected to fail, draws its report, and returns the verdict."""
    try:
        run = lab.launch(fn, *args, timeout_s=40, **options)
    except lab.LaunchError as error:
        widgets.report(error)
        return error
    raise AssertionError(f"this run was expected to fail, and returned {list(run)}")


# %% [markdown]
# A rank ends in one of four ways: it returned, it raised, it died, or it is stuck. All four in one run:


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


error = fails(four_ways, ranks=4)
print([ending.how for ending in error.outcomes])

# %% [markdown] sections="8.11.2, 19.9"
# ## Hang lab: collectives that do not match
#
# Trap 1 of section 19.9: rank 0 broadcasts, the others reduce. The comment there says "deadlock". **Predict** what happens to the values if nobody looks: an exception, a hang, or wrong numbers?

# %%
my_guess = None


# %%
def trap_one(mended):
    x = torch.full((4,), dist.get_rank() + 1.0)
    if dist.get_rank() == 0 and not mended:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)
    return x[0].item()


error = fails(trap_one, False, ranks=4)
print(f"{my_guess = }\n{type(error).__name__}: {error}")
print("mended:", *lab.launch(trap_one, True, ranks=4, timeout_s=40))

# %% [markdown]
# A hang, and torch says nothing: by default it would wait half an hour with gloo, ten minutes with NCCL. labkit asks each rank where it is and reads torch's **flight recorder**, which numbers the collectives of every group. Same number, other operation: that proves it, and the majority tells who is odd.
#
# Section 8.11.2 has the second kind: a barrier that only rank 0 reaches. Rank 0 "saves" first. **Predict** which ranks the report marks: 0, or 1 and 2?

# %%
my_marked = None


# %%
def save_and_wait(mended):
    if dist.get_rank() == 0:
        print("saved")
        if not mended:
            dist.barrier()
    if mended:
        dist.barrier()


error = fails(save_and_wait, False, ranks=3)
print(f"{my_marked = }; marked: {error.finding.ranks}\n{error}")
print("mended:", list(lab.launch(save_and_wait, True, ranks=3, timeout_s=40).logs))

# %% [markdown] sections="19.9"
# The rank that waits has done nothing wrong yet; those that never come are marked. The arrow points from who waits to whom it waits for. Read the line it waits in, go up to the nearest `if`, and you have the fault.
#
# ### The wrong group
#
# Trap 2: two of four ranks make a group and forget to pass it. (The example of section 19.9 makes a group of the first four ranks: forgetting it changes nothing on 4 ranks and hangs on 5.)


# %%
def trap_two(mended):
    x, group = (
        torch.ones(1),
        dist.new_group([0, 1]),
    )  # every rank must call new_group, members or not
    if dist.get_rank() in (0, 1):
        dist.all_reduce(x, group=group if mended else None)
    return x.item()


error = fails(trap_two, False, ranks=4)
print(error.finding.text)
print("mended:", *lab.launch(trap_two, True, ranks=4, timeout_s=40))

# %% [markdown]
# ### One batch less
#
# A hang that comes with the last batch: one rank runs out of data first. Rank 0 has three batches, rank 1 four. DDP has a cure, `join()`: a rank that is done takes part in the others' all-reduces with zeros.


# %%
def epoch(joined):
    torch.manual_seed(0)
    net, rank = DDP(torch.nn.Linear(4, 1)), dist.get_rank()
    with net.join(enable=joined):
        for number, batch in enumerate(torch.ones(3 + rank, 2, 4), start=1):
            net(batch).sum().backward()
    return number


error = fails(epoch, False, ranks=2)
print(error.finding.text)
print("with join(), batches:", *lab.launch(epoch, True, ranks=2, timeout_s=40))

# %% [markdown] sections="8.11.2"
# ## Hang lab: messages in a circle
#
# Section 8.11.2: both ranks send, then both receive. **Predict** how many bytes a message may have before it blocks. It is tried here with one number, 4 bytes.

# %%
my_bytes = None


# %%
def cycle():
    other, got = 1 - dist.get_rank(), torch.zeros(1)
    dist.send(torch.ones(1), dst=other)
    dist.recv(got, src=other)


error = fails(cycle, ranks=2, hang_s=0.7)
print(f"{my_bytes = }\n{error}")

# %% [markdown]
# gloo's `send` waits for the receiver whatever the size. The section's cure is right if all of it is done: `isend` and `irecv` return at once, and **both** requests must be waited for, on both ranks. Here rank 1 starts 0.2 s late; rank 0 looks at what it got before and after the wait:


# %%
def no_cycle():
    rank, got = dist.get_rank(), torch.zeros(1)
    time.sleep(0.2 * rank)
    requests = [
        dist.isend(torch.full((1,), rank + 1.0), dst=1 - rank),
        dist.irecv(got, src=1 - rank),
    ]
    before = got.item()
    for request in requests:
        request.wait()
    return before, got.item()


before, after = lab.launch(no_cycle, ranks=2, timeout_s=40)[0]
print(f"rank 0: {before:g} before the wait, {after:g} after it")

# %% [markdown] sections="8.11.2"
# ## Timeouts: where they are set
#
# The third cause in section 8.11.2 sets the environment variables `NCCL_TIMEOUT` and `NCCL_ASYNC_ERROR_HANDLING`. torch ships the header in which its NCCL backend names the variables that it reads, and its default time limit:

# %%
import re
from pathlib import Path

header = (
    Path(torch.__file__).parent
    / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
)
text = header.read_text()
names = re.findall(r'"((?:TORCH_)?NCCL_[A-Z_]+)"', text)
minutes = re.search(
    r"NCCLDefaultTimeout =\s+std::chrono::milliseconds\((\d+) \* 60 \* 1000\)", text
)[1]
print(f"{len(names)} variables; NCCL_TIMEOUT among them: {'NCCL_TIMEOUT' in names}")
print(*(name for name in names if "TIMEOUT" in name or "ASYNC_ERROR" in name), sep="\n")
print(
    f"default time limit: NCCL {minutes} min; gloo {dist.constants.default_pg_timeout} (h:min:s)"
)

# %% [markdown]
# `NCCL_TIMEOUT` is not among them, so nothing reads it. Of the other two spellings, the one with `TORCH_` is current and the short one is kept for old scripts; what it turns on has long been the default. What counts is the `timeout=` of `init_process_group` and of `new_group`. In the next run rank 1 is 0.3 s late, once in the default group, once in a group with a timeout of 0.1 s. **Predict** after how many seconds rank 0 is through, in each.

# %%
my_seconds = {"default group": None, "timeout=0.1 s": None}


# %%
def late():
    from datetime import timedelta

    hasty, waited = dist.new_group(timeout=timedelta(seconds=0.1)), {}
    for name, group in (("default group", None), ("timeout=0.1 s", hasty)):
        dist.barrier()
        began, how = time.perf_counter(), "done"
        time.sleep(0.3 * dist.get_rank())
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            how = "RuntimeError: " + str(error).partition("] ")[2]
        waited[name] = time.perf_counter() - began, how
    return waited


# %%
run = lab.launch(
    late, ranks=2, devices="cpu", timeout_s=40
)  # gloo raises, NCCL ends the process
print(f"{my_seconds = }")
for name, (seconds, how) in run[0].items():
    print(f"{name:<14} {seconds:.1f} s  {how}")

# %% [markdown]
# A timeout cures no hang. It ends it, and a longer one only makes you wait longer. Raise it where a rank is really that slow (one loads or compiles for half an hour); otherwise look for the rank that never comes.
#
# ## Same calls in another order
#
# The worst mismatch: rank 1 reduces y before x. Both have the same shape. x is 1 and y is 10 on each of three ranks. **Predict** what rank 0 gets.

# %%
my_x, my_y = None, None


# %%
def swapped():
    x, y = torch.tensor([1.0]), torch.tensor([10.0])
    if dist.get_rank() != 1:
        dist.all_reduce(x)
    dist.all_reduce(y)
    if dist.get_rank() == 1:
        dist.all_reduce(x)
    return x.item(), y.item()


run = lab.launch(swapped, ranks=3, timeout_s=40)
print(f"{(my_x, my_y) = }; rank 0 got {run[0]}, right is {(3 * 1.0, 3 * 10.0)}")
check.trace(run)

# %% [markdown]
# Nothing hung, nothing failed, and both sums are wrong. Only the order of the calls tells, and `check.trace(run)` compares it: by the line of each call. That is also its limit. If the two tensors are reduced by **one** line, in a loop whose order differs, the calls look alike and the trace passes:


# %%
def swapped_in_a_loop():
    sums = {"loss": torch.tensor([1.0]), "count": torch.tensor([10.0])}
    for name in sorted(sums, reverse=dist.get_rank() == 1):
        dist.all_reduce(sums[name])
    return {name: value.item() for name, value in sums.items()}


run = lab.launch(swapped_in_a_loop, ranks=3, timeout_s=40)
print(run[0])
check.trace(run)

# %% [markdown]
# So never reduce in the order of a set, or of a dict that was filled in another order: sort the names. (Each interpreter salts the hash of a string anew, so the order of a set of names differs between ranks under torchrun.)
#
# ### TORCH_DISTRIBUTED_DEBUG=DETAIL
#
# torch itself can compare the calls before it makes them, if this variable is set when the ranks start. Then no rank hangs: each refuses the call with an error that names its own operation and another rank's. Trap 1 once more, then the swapped order:

# %%
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
error = fails(trap_one, False, ranks=3)
run = lab.launch(swapped, ranks=3, timeout_s=40)
del os.environ["TORCH_DISTRIBUTED_DEBUG"]
print(
    f"{error}\n\nswapped order: no complaint; rank 0 got {run[0]}, right is (3.0, 30.0)"
)

# %% [markdown]
# The operations are named at once, in the ranks themselves; labkit has only put them together. What is compared is operation, size and type, so the swapped order passes here too. The price is a comparison before every call, so it is for a search, not for training. A sum of one number, 200 times:


# %%
def small_calls():
    one = torch.ones(1)
    dist.all_reduce(one)  # connects the ranks
    began = time.perf_counter()
    for _ in range(200):
        dist.all_reduce(one)
    synchronize()  # a GPU works on while Python goes ahead
    return (time.perf_counter() - began) / 200


plain_s = max(lab.launch(small_calls, ranks=2, timeout_s=40))
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
compared_s = max(lab.launch(small_calls, ranks=2, timeout_s=40))
del os.environ["TORCH_DISTRIBUTED_DEBUG"]
print(
    f"{1e6 * plain_s:.0f} us a call; under DETAIL {1e6 * compared_s:.0f} us, "
    f"{compared_s / plain_s:.1f} times as long"
)

# %% [markdown] sections="10.5.2, 19.9"
# ## Numbers that go wrong
#
# Rank 2's batch holds one NaN. **Predict** which ranks have NaN gradients before the all-reduce, and which after it.

# %%
my_before, my_after = None, None


# %%
def one_nan():
    batch = torch.rand(2, 4)  # other numbers on every rank
    if dist.get_rank() == 2:
        batch[0, 0] = float("nan")
    net = torch.nn.Linear(4, 1)
    net(batch).sum().backward()
    own, gradients = (
        health.statistics(net.weight.grad),
        {"weight": net.weight.grad, "bias": net.bias.grad},
    )
    before = health.finite(
        gradients.items()
    )  # asks all ranks; a collective, so every rank must call it
    for gradient in gradients.values():
        dist.all_reduce(gradient)
    return own, before, health.finite(gradients.items())


run = lab.launch(one_nan, ranks=4, timeout_s=40)
print(
    f"{(my_before, my_after) = }; before: {run[0][1].ranks}, after: {run[0][2].ranks}"
)
for rank, (own, *_) in enumerate(run):
    print(
        f"rank {rank}:",
        *(f"{name} {own[name]}" for name in ("shape", "dtype", "num_nan", "num_inf")),
        *(f"{name} {own[name]:.2f}" for name in ("min", "max", "mean", "std")),
    )

# %% [markdown]
# After the all-reduce all are ill, and nobody can say where it came from. So look before it. `health.statistics` is what `debug_tensor` of section 10.5.2 does, with NaN and Inf counted apart from the rest (its `min` and `mean` would be NaN as well, and say nothing more). For DDP, which reduces on its own, `health.guard` looks at each bucket just before it leaves:


# %%
def guarded():
    torch.manual_seed(0)
    net = DDP(torch.nn.Linear(4, 1))
    health.guard(net)
    batch = torch.rand(2, 4)
    if dist.get_rank() == 2:
        batch[0, 0] = float("nan")
    net(batch).sum().backward()


error = fails(guarded, ranks=4)
print(error.finding.fault, error.finding.ranks, error.finding.where["text"])

# %% [markdown] sections="19.9"
# ### Overflow in fp16
#
# Trap 7: fp16 ends at 65504. Here the layer's output is larger. Section 19.9 cures it by `autocast` and a gradient scaler. **Predict** which of the three rows below learns.

# %%
my_row = None


# %%
def train_16bit(dtype, autocast, num_steps=8):
    """The losses, how many steps the scaler skipped, and whether the weights are still finite."""
    device = torch.get_default_device()
    net, inputs, targets = (
        torch.nn.Linear(16, 1),
        torch.full((8, 16), 50.0),
        torch.zeros(8, 1),
    )
    torch.nn.init.constant_(net.weight, 100.0)  # outputs of 80000
    if not autocast:
        net.to(dtype), (inputs := inputs.to(dtype)), (targets := targets.to(dtype))
    optimizer, losses, skipped = torch.optim.SGD(net.parameters(), lr=1e-5), [], 0
    scaler = torch.amp.GradScaler(
        device.type, enabled=autocast and dtype == torch.float16
    )
    for _ in range(num_steps):
        with torch.autocast(device.type, dtype=dtype, enabled=autocast):
            loss = torch.nn.functional.mse_loss(net(inputs), targets)
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
        losses, skipped = [*losses, loss.item()], skipped + (scaler.get_scale() < scale)
    return f"loss {losses[0]:8.2g} to {losses[-1]:8.2g}   skipped {skipped}   finite weights {net.weight.isfinite().all()}"


# %%
print(f"{my_row = }")
print("fp16                    ", train_16bit(torch.float16, autocast=False))
print("autocast fp16 and scaler", train_16bit(torch.float16, autocast=True))
print("autocast bf16           ", train_16bit(torch.bfloat16, autocast=True))

# %% [markdown] sections="10.5.2"
# The scaler keeps the weights clean by skipping every step, and so nothing is learned: it guards against overflow of **gradients**, which a smaller scale cures (chapter 05). The **forward** overflows here, and no scale changes that. bf16 has the range of fp32. (Or make the activations smaller: a norm, another initial scale.)
#
# ## Replicas that drift apart
#
# DDP starts equal and stays equal, if all ranks make the same update. Section 10.5.2 compares the replicas by `hash(param...tobytes())`. Here is that line in a script under torchrun, beside a digest, on two ranks with equal weights:

# %%
import tempfile

folder = tempfile.TemporaryDirectory()
script = Path(folder.name, "compare.py")
script.write_text("""
import hashlib, numpy
from labkit.launching import rank

weight = numpy.arange(8, dtype=numpy.float32)
rank.current().give((hash(weight.tobytes()), hashlib.blake2b(weight.tobytes(), digest_size=8).hexdigest()))
""")
for rank, (hashed, digest) in enumerate(
    lab.launch_script(script, ranks=2, timeout_s=50)
):
    print(f"rank {rank}: hash {hashed:21}   BLAKE2b {digest}")
print("health.digest of the same tensor:", health.digest(torch.arange(8.0)))

# %% [markdown]
# The bytes are equal and the hashes are not: Python salts `hash` in each interpreter. The section's check would cry wolf on every healthy run. (Ranks started by `lab.launch` come from one interpreter and happen to agree, which is worse: the fault shows only under torchrun.) A digest such as BLAKE2b depends on the bytes alone. `health.compare` gathers the digests, 16 characters for each tensor, and votes. Now rank 1 makes a tiny update alone:


# %%
def one_update_alone(alone):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    if alone and dist.get_rank() == 1:
        with torch.no_grad():
            net[1].bias += 1e-6
    return health.compare(net.named_parameters())


for alone in (False, True):
    print(lab.launch(one_update_alone, alone, ranks=3, timeout_s=40)[0])

# %% [markdown] sections="19.9"
# ## Four more traps
#
# ### Trap 3: no zero_grad
#
# Section 19.9 says that gradients pile up "until memory overflows". **Predict** both columns for four steps: the norm of the gradient, and the bytes that are alive.

# %%
my_norms, my_live_bytes = None, None


# %%
def four_steps(fault):
    """(norm of the gradient, live bytes) after each of four steps."""
    torch.manual_seed(0)
    net, kept, rows = torch.nn.Linear(64, 64), [], []
    with memory.watch() as watched:
        for _ in range(4):
            loss = net(torch.ones(8, 64)).square().mean()
            if fault == "keeps losses":
                kept.append(loss)  # for a mean at the end, and never calls backward
            else:
                loss.backward()
            del loss
            rows.append(
                (
                    0.0 if net.weight.grad is None else net.weight.grad.norm().item(),
                    watched.live_bytes,
                )
            )
            if fault != "no zero_grad":
                net.zero_grad()
    return rows


# %%
columns = {
    name: four_steps(name) for name in ("healthy", "no zero_grad", "keeps losses")
}
print(
    f"{(my_norms, my_live_bytes) = }\nstep" + "".join(f"{name:>26}" for name in columns)
)
for step, row in enumerate(zip(*columns.values())):
    print(
        f"{step:4}"
        + "".join(f"{norm:10.3f} {num_bytes:9,} bytes" for norm, num_bytes in row)
    )

# %% [markdown] sections="19.9"
# Gradients are added in place: the values grow, the memory does not. The training goes wrong (each update uses the sum of all gradients so far), and nothing runs out. What does grow is the third column: losses that are kept as tensors, in an evaluation without `torch.no_grad()`. Each one holds its whole graph. Keep `loss.item()`.
#
# ### Trap 4: torch.save(model)
#
# Section 19.9 says that the file then holds the "CUDA context". Look into it: a checkpoint is a zip with the tensors' bytes and one pickle. Sizes, and the names that the pickle looks up when it is read:

# %%
import pickletools
import zipfile


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(100, 100)


def looked_up(path):
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(
            next(name for name in archive.namelist() if name.endswith("data.pkl"))
        )
    return [
        str(name).replace(" ", ".")
        for code, name, _ in pickletools.genops(pickled)
        if code.name == "GLOBAL"
    ]


# %%
net, whole, weights = (
    Net(),
    Path(folder.name, "whole.pt"),
    Path(folder.name, "weights.pt"),
)
torch.save(net, whole), torch.save(net.state_dict(), weights)
print(f"tensors {sum(weight.nbytes for weight in net.parameters()):,} bytes")
for path in (whole, weights):
    print(
        f"{path.name:<10} {path.stat().st_size:,} bytes; looks up {', '.join(looked_up(path))}"
    )

# %% [markdown]
# No context; both are the tensors and a little more. The difference is `__main__.Net`: the class is stored as a name. The harm comes when the file is read. **Predict** what happens with torch's default, and what after the class has moved:

# %%
my_load, my_load_after_the_move = None, None

# %%
found = {}
trusting = {"weights_only": False}
for title, options in (
    ("as is", {}),
    ("weights_only=False", trusting),
    ("and Net is gone", trusting),
):
    if title == "and Net is gone":
        del Net
    try:
        found[title] = type(torch.load(whole, **options)).__name__
    except Exception as error:
        found[title] = f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"
print(f"{(my_load, my_load_after_the_move) = }")
print(*(f"{title:<19} {how}" for title, how in found.items()), sep="\n")
print(f"{'state_dict':<19} {', '.join(torch.load(weights))}")

# %% [markdown]
# With `weights_only=False` it works until the class is renamed or moved. And torch refuses for a reason: such a file may name any function, and reading it calls that function.


# %%
class Surprise:
    def __reduce__(self):
        return print, ("this line was printed by reading the file",)


torch.save({"line.weight": torch.zeros(1), "extra": Surprise()}, whole)
torch.load(whole, weights_only=False).keys()

# %% [markdown] sections="19.9"
# The state_dict has neither trouble. Save that (chapter 13).
#
# ### Trap 5: many small messages
#
# One all-reduce per parameter, or the same bytes in buckets. 200 gradients of 16 kB on two ranks, the best of three. **Predict** the ratio of the times.

# %%
my_ratio = lab.guess(
    {
        "en": "one all-reduce per parameter, over buckets",
        "zh": "逐参数 all-reduce 的用时是分桶的几倍",
    },
    unit="ratio",
)


# %%
def small_messages(per_message):
    gradients, seconds = torch.ones(200, 4096), []
    for _ in range(3):
        dist.barrier()
        began = time.perf_counter()
        with traffic.count() as counted:
            for some in gradients.split(per_message):
                dist.all_reduce(some)
            synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds), counted


each, buckets = (
    lab.launch(small_messages, num, ranks=2, timeout_s=40)[0] for num in (1, 50)
)
for seconds, counted in (each, buckets):
    print(
        f"{counted.calls['all_reduce']:3} calls, {counted.payload_bytes['all_reduce']:,} bytes, {1e3 * seconds:5.1f} ms"
    )
my_ratio.score(each[0] / buckets[0])

# %% [markdown] sections="19.9"
# The same bytes, fewer waits. DDP does this by itself (chapter 03).
#
# ### Trap 6: data that moves
#
# Section 19.9 blames `batch.cuda()` in the loop. A new batch has to be copied once; that is no fault. What costs: copying what is already there, or copying **twice**, and waiting for the copy. The first two can be counted anywhere:

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Copies(TorchDispatchMode):
    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += str(func) == "aten._to_copy.default"
        return func(*args, **(kwargs or {}))


def copied(batch):
    device, num_copies = torch.get_default_device(), {}
    there = batch.to(device)
    for title, move in (
        ("already there", lambda: there.to(device)),
        ("in one step", lambda: batch.to(device, torch.float16)),
        ("in three steps", lambda: batch.to(device).to(torch.float64).half()),
    ):
        with Copies() as copies:
            move()
        num_copies[title] = copies.num
    return num_copies


for title, num in lab.launch(copied, torch.ones(4, 4), ranks=1)[0].items():
    print(f"{title:<14} {num} copies")

# %% [markdown]
# The wait needs a GPU to be seen: from pinned memory a copy with `non_blocking=True` runs beside the computation. Without one, torch says so itself:

# %%
import warnings

from torch.utils.data import DataLoader

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    batch = next(
        iter(DataLoader(torch.ones(8, 1_000_000), batch_size=8, pin_memory=True))
    )
print(f"pinned: {batch.is_pinned()};", *(str(one.message) for one in said))
if torch.accelerator.is_available():
    for title, source in (("pinned, non_blocking", batch), ("pageable", batch.clone())):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        source.to(
            torch.accelerator.current_accelerator(), non_blocking=source.is_pinned()
        )
        print(
            f"{title:<20} the program goes on after {1e3 * (time.perf_counter() - began):.2f} ms"
        )

# %% [markdown]
# An eighth trap, which section 19.9 leaves out: a sampler whose `set_epoch` is forgotten. Nothing fails, and every epoch has the order of the first (chapter 03). `health.same_order` is asked with the indices of two epochs:

# %%
from torch.utils.data import DistributedSampler

for told in (False, True):
    sampler, epochs = DistributedSampler(range(32), num_replicas=2, rank=0), {}
    for number in range(2):
        if told:
            sampler.set_epoch(number)
        epochs[number] = list(sampler)
    print(health.same_order(epochs))

# %% [markdown] sections="8.11.1"
# ## Out-of-memory lab
#
# Here each rank gets a pretend device of 40 MiB: a memory of its own, with a GPU's rules and a GPU's words when it is full. Rank 1's batch is too large for it, rank 0's is not. **Predict:** in which line does it fail, the forward or the backward?

# %%
my_line = None


# %%
def too_large(num_micro_batches):
    net = model.Transformer(4, 128, 4, max_len=128)
    tokens, targets = model.story_tokens(12 if dist.get_rank() == 1 else 2, 128)
    for some, theirs in zip(
        tokens.chunk(num_micro_batches), targets.chunk(num_micro_batches)
    ):
        loss = model.loss(net(some), theirs) / num_micro_batches
        loss.backward()
    dist.all_reduce(loss.detach())
    return "done"


small = lab.pretend(memory_mib=40)
error = fails(too_large, 1, ranks=2, devices=small)
print(
    f"{my_line = }\n{error.finding.fault}, rank {error.finding.ranks}, {error.finding.where['text']}"
)
print(error.outcomes[1].error["message"])
print(
    "in 6 microbatches:",
    *lab.launch(too_large, 6, ranks=2, devices=small, timeout_s=40),
)

# %% [markdown]
# The error names the tensor that found no room. That is the last straw, not the load. One cure is shown already, but which one is right? What filled the memory is asked of a **snapshot**: who holds how much, at the highest moment. `memory.watch` counts every storage that torch makes, on any device; here of a step that fits: forward of each layer (F), loss, backward (B), update. **Predict** the largest part.

# %%
my_part = None


# %%
def one_step(cure=""):
    """A training step on two ranks, the optimizer's states made before; its bytes, its time, its new weights."""
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    net, length, num = (
        model.Transformer(4, 128, 4, max_len=128),
        64 if cure == "half the length" else 128,
        1,
    )
    batch = [
        part[:, :length] for part in model.story_tokens(4, 128, seed=dist.get_rank())
    ]
    if cure == "microbatches":
        num = 4
    if cure == "checkpointing":
        for block in net.layers[1:-1]:
            block.forward = lambda x, forward=block.forward: checkpoint(
                forward, x, use_reentrant=False
            )
    with memory.watch() as watched:
        if cure == "FSDP":
            for layer in (*net.layers, net):
                fully_shard(layer)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        train(net, optimizer, batch, num, watched, cure)
        began = time.perf_counter()
        watched.layers(
            net.layers
        )  # from here on, a moment for each layer's forward and backward
        train(net, optimizer, batch, num, watched, cure, marks=True)
        synchronize()
        seconds = time.perf_counter() - began
    weights = [
        getattr(w, "full_tensor", lambda w=w: w)().detach().flatten()
        for w in net.parameters()
    ]
    return watched.footprint(), seconds, torch.cat(weights)


# %%
def train(net, optimizer, batch, num, watched, cure, marks=False):
    """One step in ``num`` microbatches; gradients averaged over the ranks, by FSDP or by hand."""
    for tokens, targets in zip(*(part.chunk(num) for part in batch)):
        with torch.autocast(
            tokens.device.type, dtype=torch.bfloat16, enabled=cure == "bf16"
        ):
            loss = model.loss(net(tokens), targets) / num
        sharding.claim(watched, net, optimizer), watched.kept()
        if marks:
            watched.mark("loss")
        loss.backward()
    sharding.claim(watched, net, optimizer)
    for weight in net.parameters() if cure != "FSDP" else ():
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    if marks:
        watched.mark("step")
    optimizer.step(), sharding.claim(watched, net, optimizer), optimizer.zero_grad()


# %%
run = lab.launch(one_step, ranks=2, timeout_s=40)
plain, seconds, weights = run[0]
widgets.show(
    bytes_held.footprint(
        plain, title={"en": "A rank over a step", "zh": "一步之内的一个 rank"}
    )
)
print(
    f"{my_part = }; the highest moment is {plain.peak}, {format_bytes(plain.peak_bytes)}"
)

# %% [markdown]
# On a GPU the allocator keeps a history itself. Section 8.11.1 calls `_record_memory_history(enabled=True)`. torch sends a bool to an older function; how many events do the two keep?

# %%
import inspect

old = (
    inspect.signature(torch.cuda.memory._record_memory_history_legacy)
    .parameters["trace_alloc_max_entries"]
    .default
)
new = (
    inspect.signature(torch.cuda.memory._record_memory_history_impl)
    .parameters["max_entries"]
    .default
)
print(f"enabled=True keeps {old:,}; max_entries is {new:,} if nothing else is said")

# %% [markdown]
# So say `max_entries=`. The snapshot goes into a file that https://pytorch.org/memory_viz draws, in your browser. The next cell needs a GPU with torch's CUDA build; without one it does nothing:

# %%
if torch.cuda.is_available():
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    held = torch.ones(1_000_000, device="cuda")
    torch.cuda.memory._dump_snapshot(Path(folder.name, "snapshot.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)  # stop
    print(torch.cuda.memory_summary(abbreviated=True))
else:
    print("no GPU here: torch.cuda.memory records nothing on a CPU")

# %% [markdown] sections="8.11.1"
# ### The order of cures
#
# Section 8.11.1 has seven cures in an order: batch 1, accumulation, checkpointing, FSDP, offload, lower precision, shorter sequences. What should decide the order is the price: first what costs time only and leaves the update as it is, then what changes the numbers. Measure both. The model and batch are those of the snapshot; one cure at a time. **Predict** the cure that saves most here, and the two that change the new weights.

# %%
my_best, my_changing = None, None

# %%
CURES = {
    "microbatches": "微批次",
    "checkpointing": "激活重计算",
    "FSDP": "FSDP",
    "bf16": "bf16",
    "half the length": "长度减半",
}


def one_by_one():
    return {cure: one_step(cure) for cure in CURES}


tried = {
    "none": (plain, seconds, weights),
    **lab.launch(one_by_one, ranks=2, timeout_s=40)[0],
}
rows = [
    ({"en": cure, "zh": CURES.get(cure, "不用")}, footprint.peak_bytes)
    for cure, (footprint, *_) in tried.items()
]
widgets.show(
    curves.bars(
        rows,
        unit_format=format_bytes,
        title={
            "en": "Peak of a rank, one cure at a time",
            "zh": "一个 rank 的峰值，每次一种解法",
        },
        badge=run.badge,
    )
)
print(
    f"{(my_best, my_changing) = }\n{'':<16} saves     time   new weights differ by up to"
)
for cure, (footprint, took, changed) in tried.items():
    saved = 1 - footprint.peak_bytes / plain.peak_bytes
    print(
        f"{cure:<16} {saved:5.0%} {took / seconds:7.1f}x   {(changed - weights).abs().max():.0e}"
    )

# %% [markdown] sections="8.11.1"
# Adam moves a weight by about its learning rate, 1e-3, in each of the two steps; a difference of that size is another update, and one far below is rounding. The times are of one try; only a GPU can tell a GPU's, most of all for bf16.
#
# Read the snapshot first: here activations fill the memory, so what divides them helps. Microbatches with accumulation (cures 1 and 2 are one) and checkpointing leave the update as it was. FSDP divides parameters, gradients and optimizer states, the smaller part here, so it saves less. With a large model and a small batch it would be the other way round. bf16 and shorter sequences change the training. FSDP is therefore no fixed "number 4", and precision no "number 6".
#
# ### Offload comes last
#
# It moves the states to the host's memory, and sends them over the bus in each step. Here is the prediction only; chapter 06 holds such predictions against DeepSpeed's own ranks, byte for byte. ZeRO-3, a model of this size on two ranks, what each keeps where:

# %%
for offload in ("none", "optimizer", "all"):
    step = sharding.Step(engine="zero3", ranks=2, layers=4, dim=128, offload=offload)
    held = step.predict().bytes_by("device")
    device, host = (
        format_bytes(held[place][0]) if place in held else "0 B"
        for place in ("device", "host")
    )
    print(f"predicted, offload {offload:<10} device {device:<8} host {host}")

# %% [markdown]
# Section 8.11.1 writes `fsdp_cpu_ram_efficient_loading` for offload. It is another thing. Accelerate's own words for the two settings:

# %%
import dataclasses

from accelerate import FullyShardedDataParallelPlugin

for field in dataclasses.fields(FullyShardedDataParallelPlugin):
    if field.name in ("cpu_offload", "cpu_ram_efficient_loading"):
        print(f"{field.name}: {field.metadata['help'].partition('. ')[0]}.\n")

# %% [markdown] sections="10.5.2"
# ## Logs of every rank, in one place
#
# `run.logs[r]` is what rank r printed. Section 10.5.2 sets up a file per rank, and then one level for all handlers. **Predict** what stands in each rank's file after one `logging.info`.

# %%
my_files = None


# %%
def with_logs(folder, mended):
    import logging

    rank = dist.get_rank()
    console, file = (
        logging.StreamHandler(),
        logging.FileHandler(f"{folder}/rank_{rank}.log", mode="w"),
    )
    logging.basicConfig(
        level=logging.INFO,
        format=f"[rank {rank}] %(message)s",
        handlers=[file, console],
        force=True,
    )
    if rank != 0:
        (console if mended else logging.getLogger()).setLevel(logging.WARNING)
    logging.info("step 0 is done")


# %%
print(f"{my_files = }")
for mended in (False, True):
    run = lab.launch(with_logs, folder.name, mended, ranks=3, timeout_s=40)
    print(f"\n{'mended' if mended else 'section 10.5.2'}:")
    for rank in range(3):
        print(
            f"rank {rank}: file {Path(folder.name, f'rank_{rank}.log').read_text()!r:<28} console {run.logs[rank]!r}"
        )

# %% [markdown] sections="10.5.2"
# The level of the root logger stands before every handler, so the files of all other ranks stay empty: the very ones that a search needs. Put the level on the console's handler only.
#
# ## The same run twice
#
# A fault that comes and goes is the hardest. Go up in steps: one rank, two, four; the first size that fails is the smallest run to study. Fix the seeds (labkit seeds rank r with `seed + r`), refuse operations that may differ from run to run, and compare digests of the weights after three steps. **Predict**: does a second run give the same bits? And 4 ranks instead of 2, on the same 8 sequences?

# %%
my_second_run, my_four_ranks = None, None


# %%
def three_steps():
    torch.use_deterministic_algorithms(
        True
    )  # raises where an operation has no deterministic form
    torch.manual_seed(0)
    net = DDP(model.Transformer(1, 32, 2, max_len=32))
    tokens, targets = (
        part.chunk(dist.get_world_size())[dist.get_rank()]
        for part in model.story_tokens(8, 32)
    )
    for _ in range(3):
        net.zero_grad()
        model.loss(net(tokens), targets).backward()
        with torch.no_grad():
            for weight in net.parameters():
                weight -= 0.1 * weight.grad
    return torch.cat([weight.detach().flatten() for weight in net.parameters()])


# %%
found = [lab.launch(three_steps, ranks=ranks, timeout_s=40)[0] for ranks in (2, 2, 4)]
print(f"{(my_second_run, my_four_ranks) = }")
for title, weights in zip(("2 ranks", "2 ranks again", "4 ranks"), found):
    print(
        f"{title:<14} {health.digest(weights)}   differs by up to {(weights - found[0]).abs().max():.0e}"
    )

# %% [markdown]
# Same ranks, same bits. Other ranks, other bits, by rounding only: the sum over the batch is added up in another order. So compare bits between runs of one size, and with a tolerance between sizes. (CUDA needs more: `CUBLAS_WORKSPACE_CONFIG`, and a fixed NCCL algorithm.)
#
# ## A run that hangs now
#
# The verdict comes when `hang_s` is over. You need not wait for it: `lab.start` returns at once, `job.progress` says in which line each rank is, `job.stacks()` its whole Python stack, also where it is deep in C++. (For a torchrun job, `py-spy dump --pid` does the same.)


# %%
def waits_forever():
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)
    dist.all_reduce(torch.ones(1))


job = lab.start(waits_forever, ranks=3, timeout_s=40)
while (
    sum("text" in row["where"] for row in job.progress) < 3 and not job.done
):  # each tells where it is
    time.sleep(0.05)
for row in job.progress:
    print(f"rank {row['rank']}: {row['where']['call']} at {row['where']['text']}")
installed = f"{Path(torch.__file__).parents[1]}/"
print(*job.stacks()[1].replace(installed, "").splitlines()[:5], sep="\n")
job.stop()
print("stopped:", job.done)

# %% [markdown]
# ## Gallery
#
# Faults on purpose: `faults.run(name)` breaks a real run with rank 1 as the odd one, and returns what is found. Four that were not above; try the others. Asked for, found, on which ranks:

# %%
for name in ("sigkill", "crash", "mismatched_shape", "straggler"):
    finding = faults.run(name, ranks=4)
    print(f"{name:<17} {finding.fault:<17} {str(finding.ranks):<7} {say(FAULTS[name])}")

# %% [markdown]
# ## Exercises
#
# Six broken runs. For each, find the odd **rank** (a number, or a tuple of several), the **line** (a piece of its text, such as `"dist.barrier()"`), and the **fault**, a key of `FAULTS`:

# %%
print(*(f"{name:<17} {say(means)}" for name, means in FAULTS.items()), sep="\n")

# %% [markdown]
# Then mend the function. The check runs it on real ranks with other data and other numbers of ranks. A mended function must return what the broken one was meant to return; hiding the fault does not.
#
# ### Case one: the log
#
# Meant: every rank returns the means over the ranks of every second loss; rank 0 alone prints them. Rank 0 needs the reduction only to print, and so its author thought that only rank 0 needs to call it.


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


error = fails(lambda: log_losses([4.0 + dist.get_rank(), 3.0, 2.0]), ranks=3)
print(error)


# %%
def my_one(losses):
    """The means over the ranks of every second loss, on every rank; rank 0 prints them."""
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

# %% [markdown]
# ### Case two: the dashboard
#
# Meant: the means of loss and accuracy over the ranks, on every rank. The run ends well; the dashboard shows an accuracy above 1. Budget: two messages.


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
    lambda: dashboard(losses[dist.get_rank()], accuracies[dist.get_rank()]),
    ranks=4,
    timeout_s=40,
)
print(*run, sep="\n")
print("right:", (sum(losses) / 4, sum(accuracies) / 4))
check.trace(run)


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


error = fails(
    lambda: one_epoch([1.0, 4.0] if dist.get_rank() == 1 else [3.0, 2.0, 6.0]), ranks=3
)
print(error)


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


error = fails(lambda: pass_on(torch.ones(4)), ranks=3, hang_s=0.7)
print(error)


# %%
def my_four(x):
    """What the rank before had."""
    ### BEGIN SOLUTION
    rank, size, got = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    requests = [
        dist.isend(x, dst=(rank + 1) % size),
        dist.irecv(got, src=(rank - 1) % size),
    ]
    for request in requests:
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
# Meant: less the mean gradient, shortened to `limit` if it is longer; every rank returns the same weight. Nothing hangs, nothing is NaN, and yet the ranks no longer evaluate alike.


# %%
def update(weight, grad, limit):
    norm = grad.norm()
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
    if norm > limit:
        grad *= limit / norm
    return weight - grad


def update_and_compare():
    grad = torch.tensor([9.0, 12.0] if dist.get_rank() == 1 else [0.5, 0.5])
    weight = update(torch.ones(2), grad, limit=2.0)
    return health.compare({"weight": weight}.items()), weight.tolist()


run = lab.launch(update_and_compare, ranks=3, timeout_s=40)
print(run[0][0], *(weight for _, weight in run), sep="\n")


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
# ### Case six: an empty batch
#
# Meant: the mean over all losses of all ranks. A rank may have none. Budget: two messages.


# %%
def mean_of_all(losses):
    mean = losses.mean()
    everyone = health.finite({"mean": mean}.items())
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size(), everyone


run = lab.launch(
    lambda: mean_of_all(torch.ones((3, 2, 0)[dist.get_rank()])),
    ranks=3,
    timeout_s=40,
)
print([mean for mean, _ in run], run[0][1])


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
# - A run ends in a cause and its echoes. Find the rank whose error is its own; of ranks that wait, find the one that they wait for.
# - Every rank of a group calls the same collectives in the same order with the same shapes. An `if rank`, a shorter loop, another group, a set's order break that. Other operations hang; another order gives wrong numbers in silence.
# - A timeout is an argument of the group. It ends a hang and cures none.
# - NaN: look before the all-reduce. Replicas: compare digests, not `hash`. Forgotten `zero_grad`: values grow, memory does not; kept losses: memory does.
# - Out of memory: snapshot first, then the cure for the largest part; first those that cost only time.
# - Logs of every rank, seeds, and two runs of one size that agree bit for bit: prepare them before you need them.
#
# ## Sources
#
# - The flight recorder: PyTorch tutorial, *Flight Recorder for Debugging Stuck Jobs*
# - `join()`: PyTorch, *Distributed Training with Uneven Inputs Using the Join Context Manager*
# - Reproducibility: PyTorch notes, *Reproducibility*
# - Memory snapshots: PyTorch, *Understanding CUDA Memory Usage*
# - Mixed precision: Micikevicius et al. 2017, [arXiv 1710.03740](https://arxiv.org/abs/1710.03740)
#
# Where you stand:

# %%
check.status()
