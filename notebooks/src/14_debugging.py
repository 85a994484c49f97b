# ---
# jupyter:
#   labkit:
#     sections: ["8.11.1", "8.11.2", "10.5.2", "19.9"]
#     needs: ["two CPU cores"]
#     minutes: 150
# ---

# %% [markdown]
# # Debugging
#
# *Two sessions of 75 minutes, after chapters 02, 03, 05 and 07. No GPU is needed.*
#
# It is three in the morning, and our 7 B model trains on 64 cards. The loss line stops. There is no error, and every card reports that it is busy. Ten minutes later 64 error messages run through one terminal, and nearly all say that a collective timed out. That wait took more than ten hours of card time. Which rank was it, and which line?
#
# We begin with an easier failure. Four ranks add up the lengths of four words, and one word is missing. How many of the four will raise an error of their own?

# %%
import labkit as lab
from labkit import model
from labkit.debugging import check, cure_run
from labkit.debugging.broken_run import numbered, places, verdict

# whatever takes longer than 90 s is ended
lab.begin("en", deadline_s=90)
import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


# %%
def mean_length():
    words = ["data", "model", None, "loss"]
    length = torch.tensor(float(len(words[dist.get_rank()])))
    dist.all_reduce(length)
    return length.item() / dist.get_world_size()


verdict(mean_length, ranks=4)

# %% [markdown]
# This is a report, with a row per [rank](GLOSSARY.md#rank). Only the framed one, the **suspect**, raised an exception of its own. The others waited for it in the all-reduce, until the connection was gone. Such an error is an **echo**: it says that another rank failed, but not why.
#
# **When you are done** you can find the rank and the line that broke a run here, and on a cluster you know where to look: first in runs that hang, then in wrong numbers and a full memory.
#
# ## How a run ends
#
# A rank that no longer works has returned, raised, died, or waits for ever (an echo counts as raised). Which of the four do you notice? (`verdict(f)` runs f and returns its failure as an object, the **[verdict](GLOSSARY.md#verdict)**; shown, it is the report.)


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

# %% [markdown] sections="8.11.2, 19.9"
# Rank 1 is the suspect because it failed first. But the rank that waits says nothing: no message, no exit code. So what do you look for when all of them wait?
#
# <details><summary>Exit codes, and returned ranks</summary>
#
# A rank that dies with exit code -9 or 137 was often ended by the system, because the host's memory was full.
#
# Rank 0 has *returned*, and still rank 3 waits for it: labkit keeps a returned rank's process until all are done. In a script that ends there, the process is gone, and gloo gives rank 3 an echo instead.
#
# </details>
#
# ## Collectives that do not match
#
# Ranks that wait for something that never comes **[hang](GLOSSARY.md#hang)**. Who is to blame, if nobody failed? Here rank 0 broadcasts, while the others reduce:


# %%
def two_minds():
    x = torch.full((4,), dist.get_rank() + 1.0)
    if dist.get_rank() == 0:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)


verdict(two_minds, ranks=4)

# %% [markdown]
# All four wait, and torch says nothing before its timeout: by default half an hour with [gloo](GLOSSARY.md#gloo), ten minutes with [NCCL](GLOSSARY.md#nccl). labkit reads torch's **[flight recorder](GLOSSARY.md#flight-recorder)** instead, which numbers the [collectives](GLOSSARY.md#collective) of every group. Number 1 is a broadcast on one rank and an all-reduce on the others, so they don't meet. labkit frames the minority; that is a guess. (Where only shapes differ, gloo ends a process; NCCL may hang, or mix up memory.)
#
# Next, a barrier that only rank 0 reaches, after it has saved a file:


# %%
def save_and_wait():
    if dist.get_rank() == 0:
        print("saved")
        dist.barrier()


verdict(save_and_wait, ranks=3)

# %% [markdown]
# The suspects are those that never come, because the `if` leads them past the barrier. So read the line that somebody waits in, and go up to the nearest `if` or loop: here the barrier must move out of the `if`.
#
# ### Two wait, two have returned
#
# This time you find the suspects. `places` only lists where each rank is:


# %%
def pairs():
    x = torch.ones(1)
    group = dist.new_group([0, 1])  # every rank must call it, members or not
    if dist.get_rank() in (0, 1):
        dist.all_reduce(x)


error = verdict(pairs, ranks=4)
lab.table(places(error), title="Two wait, two have returned")

# %%
halves = {(0, 1): "ranks 0 and 1", (2, 3): "ranks 2 and 3"}
suspects = lab.guess("the suspects", choices=list(halves.values()))

# %%
error

# %%
suspects.score(halves[error.finding.ranks])

# %% [markdown] sections="19.9"
# <details><summary>Why these two?</summary>
#
# Without `group=` the call goes to all four ranks. Ranks 0 and 1 are exactly the members of a [process group](GLOSSARY.md#process-group) that was made, so they probably forgot to pass it. `dist.all_reduce(x, group=group)` mends it. No log of a cluster guesses that for you.
#
# </details>
#
# Whom labkit frames here is a guess, too. So check first in which group a line calls, then who reaches it.
#
# ### At the end of an epoch
#
# A loop can part the ranks, too. Here three steps go well, and then:


# %%
def epoch():
    net = DDP(torch.nn.Linear(4, 1))
    num_batches = 3 + dist.get_rank()
    for _ in range(num_batches):
        net(torch.ones(2, 4)).sum().backward()
    return {"batches": num_batches}


verdict(epoch)

# %% [markdown]
# Rank 1 waits in its fourth backward, where DDP reduces the gradients of four weights and a bias, `[5]`. Rank 0 has no fourth batch. A `DistributedSampler` gives all the same number.
#
# <details><summary>Where batches can't be equal</summary>
#
# The sampler by default repeats some samples; with `drop_last=True` it drops the rest. For data without a sampler DDP has `with net.join():`, where a rank that is done brings zeros. By default the sum is still divided by **all** ranks, so the last batch of rank 1 would count half; with `divide_by_initial_world_size=False` it is divided by those that still bring a batch.
#
# </details>

# %% [markdown]
# ## Case one: the log
#
# A **case** is an exercise with a broken run. Every rank should return the means over the ranks of every second loss, and rank 0 alone should print them. Whom do you suspect?


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

# %% [markdown]
# First find three things, then mend the function, with at most one collective for each mean:
#
# - the suspect **rank**, or a tuple of several;
# - a piece of the **line** that ranks wait in, or of the one above it that is to blame;
# - the **fault**, a name of this table.
#
# | what the ranks do | the suspects | fault |
# | --- | --- | --- |
# | one raises by itself | that one; of several, the first | `exception` |
# | they call different operations | the minority | `mismatched_op` |
# | some never make a call that others wait in | those who never come | `missing_rank` |
# | a group's members alone wait, in a call of all ranks | the members | `wrong_group` |
# | some run out of batches first | those with fewer | `uneven_inputs` |
#
# <details><summary>Names for later cases</summary>
#
# | what the ranks do | the suspects | fault |
# | --- | --- | --- |
# | one makes a NaN, and gives it to all | that one | `nan` |
# | they bring different shapes | the minority | `mismatched_shape` |
# | they make the same calls in another order | the minority | `swapped_order` |
# | they send to each other, in a circle | all in the circle | `send_cycle` |
# | their replicas differ | whoever's weights are not the ones meant | `diverged_replica` |
#
# </details>
#
# For our first run it would be `return 2, "len(words[", "exception"`. The check runs your function on other data and ranks.


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
# ## Same calls in another order
#
# Does every mismatch hang? On each of three ranks x is 1 and y is 10, so the sums should be 3 and 30. But rank 1 reduces y before x. What does rank 0 get for x?

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
run

# %%
gets.score(run[0]["x"])

# %% [markdown]
# <details><summary>Why?</summary>
#
# 12 is 1 + 10 + 1: rank 1's y went into the others' x.
#
# </details>
#
# Nothing hung, because calls are paired by their order on each rank; nothing compares names. But the flight recorder also notes each call's line. Read this table by rows:

# %%
lab.table(numbered(run), title="Call by call")

# %% [markdown] sections="8.11.2"
# A healthy run usually has one line all along a row. But tensors may be mixed up even where the lines agree.
#
# ## Case two: the dashboard
#
# Every rank should return the means of loss and accuracy over the ranks. The run ends well, each row of `numbered(run)` has one line, but the accuracy is above 1. Budget: two collectives. (The fault is in the folded table of case one.)

# %%
METRICS = [{"loss": 2.0, "accuracy": 0.75}, {"loss": 3.0, "accuracy": 1.0}]
METRICS += [{"accuracy": 0.25, "loss": 4.0}, {"loss": 5.0, "accuracy": 0.5}]


def dashboard(metrics):
    means = {}
    for name, value in metrics.items():
        mean = torch.tensor(value)
        dist.all_reduce(mean)
        means[name] = mean.item() / dist.get_world_size()
    return {"loss": means["loss"], "accuracy": means["accuracy"]}


lab.launch(lambda: dashboard(METRICS[dist.get_rank()]), ranks=4)


# %%
def my_two(metrics):
    """The means over the ranks, by name."""
    ### BEGIN SOLUTION
    names = sorted(metrics)
    means = torch.tensor([metrics[name] for name in names])
    dist.all_reduce(means)
    return dict(zip(names, (means / dist.get_world_size()).tolist()))
    ### END SOLUTION


def finding_two():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return 2, "metrics.items()", "swapped_order"
    ### END SOLUTION


# %%
check.case_two(my_two, finding=finding_two)

# %%
check.hint("case_two")

# %% [markdown] sections="8.11.2"
# ## The same on a real cluster
#
# Is a rank in the line that it waits in? Here it is, because gloo holds Python there. But NCCL queues a kernel, which keeps the card "busy", and Python goes on to the first line that needs a number, often `loss.item()`. (From torch's documentation, not from a run.)
#
# So on NCCL trust the **numbers** of the collectives, not the stacks. After its timeout torch's [watchdog](GLOSSARY.md#watchdog), a thread of each rank, prints the number that its rank waits in (recent torch: also the last one queued, and the last completed), and ends the process: hence our 64 messages. Here are two such lines, from a training that hung at the end of an epoch ([public report](https://github.com/NVIDIA/nccl/issues/1409) of 2024, shortened; say that both are of one group).
#
# ```text
# [Rank 7] Watchdog caught collective operation timeout:
#          WorkNCCL(SeqNum=80078, OpType=BROADCAST, NumelIn=5056, ...
# [Rank 3] Watchdog caught collective operation timeout:
#          WorkNCCL(SeqNum=80078, OpType=ALLREDUCE, NumelIn=2106881, ...
# ```

# %%
looks = ("the stack", "the memory", "the line of call 80078", "the load of the card")
look = lab.guess("what you look up next, of each rank", choices=looks)

# %%
look.score(looks[2])

# %% [markdown] sections="8.11.2"
# **Why** two operations stand under one number, the lines do not tell. The end of an epoch hints at a rank with one batch fewer, which went on to its next call.
#
# <details><summary>Why that one; "raise the timeout"</summary>
#
# The stacks show where Python has gone on to, every card is "busy", and the memory knows no calls. Only the line that queued 80078 leads to the `if` or the loop where the ranks parted.
#
# A longer timeout is the first advice that one finds, but a hang then only ends later. It helps where a rank is really that slow, say while it saves: `init_process_group(timeout=timedelta(minutes=30))`.
#
# </details>

# %% [markdown] sections="8.11.2, 10.5.2"
# ## Prepare before you need it
#
# On a cluster nobody asks the ranks where they are. So before the start arrange:
#
# - **A log of each rank**, with rank and time in every line: `torchrun --redirects 3 --log-dir logs`.
# - **The flight recorder's files**: with `TORCH_NCCL_DUMP_ON_TIMEOUT=1` and `TORCH_FR_DUMP_TEMP_FILE=/shared/trace_` each rank writes one after a timeout, with the line of each call.
# - **A clock for Python**: `faulthandler.dump_traceback_later(300)` at the start of every step shows the stack if it takes five minutes, say in a rank that is stuck in its data or a file.
#
# <details><summary>More on these, and more helpers</summary>
#
# - Logs: each rank gets a `stdout.log` and a `stderr.log`.
# - Recorder: `torchfrtrace -p trace_ /shared` compares operations, shapes and types in the files, but not the lines, so it would pass `swapped`.
# - Clock: each call winds it anew. While a run hangs, `py-spy dump --pid` shows the same.
# - Who failed first: put `@record` of `torch.distributed.elastic.multiprocessing.errors` above `main`, and torchrun reports it.
# - An error in place of a hang: with `TORCH_DISTRIBUTED_DEBUG=DETAIL` torch compares operation, size and type before each call. That is for a search, not for training.
# - Who never comes to a barrier: `dist.monitored_barrier(wait_all_ranks=True)` on a group of gloo names them.
# - Which network and which ring NCCL took: `NCCL_DEBUG=INFO`.
# - Only rank 0 on the console: make the console's *handler* quieter on the other ranks, `console.setLevel("WARNING")`. The logger stands before all handlers, so a quieter logger would empty the files as well.
# - The flight recorder is on by default, and keeps the last 2000 calls (`TORCH_FR_BUFFER_SIZE`). With `TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_`, a write to `/tmp/fr_<rank>.pipe` asks for its file at any time. Before torch 2.9 the two `TORCH_FR` names were `TORCH_NCCL_TRACE_BUFFER_SIZE` and `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`.
#
# </details>

# %% [markdown] sections="10.5.2, 19.9"
# ## Three in the morning
#
# Back to the 64 cards: which rank was it, and which line? Five steps narrow it down. Step 2 needs a run that still hangs.
#
# 1. **Is a process gone?** A rank that ended *before* the timeout is the first suspect. (Exit codes -15, by which torchrun ends the others, and -6, right after a watchdog's line, are echoes.)
# 2. **Slow or stuck?** Look twice at something that counts: the step in a log, or the recorder's highest number. If it moves, the run is only slow.
# 3. **Do the numbers agree?** Group by group, take the lowest number that is not completed. Whose last queued number is lower? If all queued it, is it one operation everywhere? 80078 was two.
# 4. **Which line is it?** The recorder's files have it for each call of yours; for DDP's backward on GPUs go by size and neighbouring numbers. Go from there up to the nearest `if`, loop, group or dict. A rank that never came may be stuck in its data or a file: see its clock.
# 5. **Make it small**: the fewest ranks that still fail.

# %% [markdown]
# *Here the first half ends. If you want a break, take it now. The second half is about wrong numbers and a full memory.*
#
# ## Numbers that go wrong
#
# Which rank made a NaN? NaN plus anything is NaN, so after the all-reduce all ranks have it, and whose it was shows only **before**. The cheapest look is at each rank's own loss: `loss.isfinite()`.
#
# But here the losses are fine. Rank 2's batch has a row of zeros, and the loss is the root of a square, whose gradient at zero is NaN. So we look at the gradients, in a [communication hook](GLOSSARY.md#communication-hook): it gets each of DDP's [buckets](GLOSSARY.md#bucket) just before it leaves, and has to send it.

# %%
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def refuse_nan(group, bucket):
    if not bucket.buffer().isfinite().all():
        raise FloatingPointError(f"rank {dist.get_rank()}: its own gradient")
    return allreduce_hook(group, bucket)


# %%
def guarded():
    net = DDP(torch.nn.Linear(4, 1, bias=False))
    net.register_comm_hook(dist.group.WORLD, refuse_nan)
    batch = torch.rand(2, 4)  # other numbers on every rank
    if dist.get_rank() == 2:
        batch[0] = 0
    loss = net(batch).square().sqrt().sum()
    print(f"loss {loss.item():.2f}")
    loss.backward()


error = verdict(guarded, ranks=4)
print(error.logs[2])
error

# %% [markdown] sections="19.9"
# The right rank raises, although its loss is a number. On NCCL the others would wait until their timeout. Each look makes the host wait for the device, so look only when you repeat steps, and not with a `GradScaler` (chapter 05), where infinite gradients are normal.
#
# <details><summary>Why NaN; other tools</summary>
#
# At zero the root is infinitely steep and the square is flat, and infinity times zero is NaN.
#
# | you see | take |
# | --- | --- |
# | a rank's own **loss** is NaN: the forward made it | `isfinite` in a forward hook of each layer |
# | the loss is fine, a **gradient** is not | our hook |
# | a NaN, but not the **operation** that made it | `torch.autograd.set_detect_anomaly(True)`: it names the line of the forward whose backward gave NaN, and is slow, because it checks every operation |
#
# </details>
#
# ## Replicas that drift apart
#
# If nothing is NaN, are the replicas still equal? Here each rank leaves a step out where its **own** loss is high, and rank 1's batch is ten times as large. Each rank returns what its net makes of ones, rounded, and a **digest** of its weights: 16 characters that change with any bit.


# %%
def skip_high_losses():
    torch.manual_seed(0)
    net = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    batch = torch.ones(2, 4) * (10 if dist.get_rank() == 1 else 1)
    loss = net(batch).square().mean()
    loss.backward()
    if loss < 10:
        optimizer.step()
    output = round(net(torch.ones(1, 4)).item(), 3)
    weights = torch.cat([weight.detach().flatten() for weight in net.parameters()])
    digest = hashlib.blake2b(weights.cpu().numpy(), digest_size=8).hexdigest()
    return {"output": output, "digest": digest}


lab.launch(skip_high_losses, ranks=3)

# %% [markdown] sections="10.5.2, 19.9"
# The outputs look alike, but the digests differ, because rank 1 took no step. All ranks must decide alike, so reduce the loss before you look at it. (In a script `dist.all_gather_object` collects the digests. They tell who differs, not who is right.)

# %% [markdown] sections="8.11.1, 19.9"
# ## Out of memory
#
# Each rank has a [pretend device](GLOSSARY.md#pretend-device) of 14 MiB: it counts the bytes of tensors, and refuses as a GPU does. The model has two blocks of width 128. Each rank has four sequences, and rank 1's are four times as long. Where will rank 1 fail?

# %%
moments = ["step 1, forward", "step 1, update", "step 2, forward", "step 2, update"]
fails_in = lab.guess("where rank 1 runs out", choices=moments)


# %%
def two_steps():
    net = model.Transformer(2, 128, 4, max_len=128)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    tokens, targets = model.story_tokens(4, 128 if dist.get_rank() == 1 else 32)
    for step in (1, 2):
        print(f"step {step}: forward")
        loss = model.loss(net(tokens), targets)
        loss.backward()
        for weight in net.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        print(f"step {step}: update")
        optimizer.step()
        optimizer.zero_grad()


full = verdict(two_steps, devices=lab.pretend(memory_mib=14))
full

# %%
begun = full.logs[1].splitlines()
print(*begun, sep="\n")
fails_in.score(moments[len(begun) - 1])

# %% [markdown] sections="8.11.1, 19.9"
# <details><summary>Why there?</summary>
#
# Adam makes its momentum and variance only in the first update, and from then on they stay. So the second forward, where activations pile up until the loss, is the first that finds them there.
#
# </details>

# %% [markdown]
# ### Read the snapshot first
#
# The message names the last straw, not the load. A **snapshot** tells who holds how much at each moment. `cure_run.steps` makes our two steps without a limit and with long sequences on both ranks: once as they are, and once with each of five cures.
#
# Here is the second step as it is. F0 to F3 are the forward, from the embedding to the head, B3 to B0 the backward, `step` the update. *Temporary* is what lives inside one operation.

# %%
tried = lab.launch(cure_run.steps)[0]
tried["none"].footprint

# %% [markdown] sections="8.11.1"
# Activations are more than half of the highest bar: they grow through the forward, and the backward frees them. Adam's states come with the first update, so one step that passes proves nothing: try two, with the longest batch.
#
# <details><summary>Step 1 by hand; GPUs</summary>
#
# Step 1 had no states of Adam yet, so its peak should be 16.3 MB − 3.8 MB = 12.5 MB. The device has 14 MiB, which is 14.7 MB: enough for 12.5, too little for 16.3.
#
# On a GPU torch keeps a history of memory: `torch.cuda.memory._record_memory_history(max_entries=100_000)` before the step, `_dump_snapshot(file)` after it; https://pytorch.org/memory_viz draws the file.
#
# The message's last number is room that torch holds in pieces too small to use; where that is large, `PYTORCH_ALLOC_CONF=expandable_segments:True` often helps. (In older torch the name is `PYTORCH_CUDA_ALLOC_CONF`.) Where memory climbs with every step, look for a loss that is kept as a tensor, with its whole graph; keep `loss.item()`.
#
# </details>
#
# ### Which cure first?
#
# Each cure changes a line. Which one lowers the peak most?
#
# | cure | the line | the update |
# | --- | --- | --- |
# | [microbatches](GLOSSARY.md#microbatch) | `for some in tokens.chunk(4):` | the same, up to rounding |
# | checkpointing | `x = checkpoint(block, x, use_reentrant=False)` | the same |
# | FSDP | `for layer in (*net.layers, net): fully_shard(layer)` | the same |
# | bf16 | `with torch.autocast(device, torch.bfloat16):` | rounded more coarsely |
# | half the length | `tokens = tokens[:, :64]` | of another training |

# %%
best = lab.guess("the cure that saves most", choices=cure_run.CURES)

# %%
peaks = {cure: got.footprint.peak_bytes for cure, got in tried.items()}
limit = {"the limit": 14 * 2**20}
lab.bars(peaks, unit="bytes", marks=limit, title="Peak of a rank, one cure at a time")

# %%
best.score(min(peaks, key=peaks.get))

# %% [markdown] sections="8.11.1"
# <details><summary>Why these peaks?</summary>
#
# Activations are the load, and microbatches divide them by four; the gradients then stay through the later forwards. [Checkpointing](GLOSSARY.md#activation-checkpointing) keeps one block's at a time, and here there are only two blocks. [FSDP](GLOSSARY.md#fsdp) divides the states of the model, which are the smaller part, and a block's whole weights come on top while it works; so on two ranks it ends a hair below the device's limit. Microbatches and checkpointing leave the update as it is, and microbatches save more here. What they cost in time we have not measured.
#
# </details>
#
# So ask which cures touch the largest part of the highest bar, and which of them leave the update as it is.
#
# ## Case three: full again
#
# The same two steps, with blocks of width 256 and one sequence of 32 tokens on each rank. The snapshot without a cure:

# %%
sizes = dict(width=256, num_sequences=1, length=32)
wide = lab.launch(lambda: cure_run.steps(["none"], **sizes))[0]["none"].footprint
wide

# %% [markdown] sections="8.11.1"
# Which of the five cures lowers this peak and leaves the update as it is? And how many bytes will a rank then hold at the update, `step`? Predict them by hand, to 5 %. (The parts are in the table below the picture; there *temporary* is what AdamW makes for all weights at once.)


# %%
def my_three():
    """(cure, bytes at step)"""
    ### BEGIN SOLUTION
    return "FSDP", wide.peak_bytes / 2
    ### END SOLUTION


# %%
check.case_three(my_three)

# %%
check.hint("case_three")

# %% [markdown] sections="10.5.2, 19.9"
# *Here ends what most people need. The rest, a comparison of runs and three more cases, is optional.*
#
# ## The same run twice
#
# Fix the seeds, refuse operations that may differ from run to run, and compare the weights after three steps. A second run of two ranks should have the same bits. What will four ranks give, on the same eight sequences?

# %%
bits = lab.guess(
    "four ranks instead of two", choices=("the same bits", "rounding", "other weights")
)


# %%
def three_steps():
    torch.use_deterministic_algorithms(True)  # refuses what has no deterministic form
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
runs = {"2 ranks, again": again, "4 ranks": four}
lab.table(
    {"run": name, "largest difference": lab.difference(weights, first)}
    for name, weights in runs.items()
)

# %%
moved = lab.difference(four, first)
bits.score(
    "the same bits" if not moved else "rounding" if moved < 1e-5 else "other weights"
)

# %% [markdown] sections="10.5.2, 19.9"
# <details><summary>Why, and on a GPU</summary>
#
# Four ranks add up the sum over the batch in another order.
#
# To get the same bits twice on a GPU, set `CUBLAS_WORKSPACE_CONFIG=:4096:8` before the start, or the first matrix product may raise.
#
# </details>
#
# So compare bits between runs of one size, and with a tolerance between sizes: after more steps the gap may grow.

# %% [markdown] sections="8.11.2"
# ## Messages in a ring
#
# Every rank should hand x to the next one and return what it got from the one before. Here all first send 16 bytes and then receive. How does this end?

# %%
passes = lab.guess("three ranks send first", choices=("a hang", "a good end"))


# %%
def pass_on(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before, got = (rank + 1) % size, (rank - 1) % size, torch.empty_like(x)
    dist.send(x, dst=after)
    dist.recv(got, src=before)
    return got


job = lab.start(lambda: pass_on(torch.ones(4)), ranks=3)
rows, hangs = places(job), not job.done
job.stop()
lab.table(rows, title="Case four")

# %%
passes.score("a hang" if hangs else "a good end")

# %% [markdown] sections="8.11.2"
# <details><summary>Why?</summary>
#
# gloo's `send` waits for the receiver, however small the message is. (Other back ends may let a small one pass, and hang with a large one. A send has no number that labkit could compare, so labkit can only wait for silence.) With NCCL put both calls into one `dist.batch_isend_irecv`.
#
# </details>

# %% [markdown]
# ## Exercises
#
# ### Case four: the ring
#
# Mend `pass_on`, so that every rank returns what the one before had: `isend` and `irecv` return at once. It must hold for 2, 3 and 4 ranks, for one number and for 300,000, and x must be free to change when your function has returned. Budget: x is sent once.


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
# Meant: return `weight` minus the mean gradient, shortened to length `limit` if it is longer; every rank returns the same weight. Nothing hangs, nothing is NaN, and yet the ranks disagree. The second cell computes what is meant, in one process.


# %%
def update(weight, grad, limit):
    norm = grad.norm()
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
    if norm > limit:
        grad *= limit / norm
    return weight - grad


grads = [[0.5, 0.5], [9.0, 12.0], [0.5, 0.5]]
run = lab.launch(
    lambda: update(torch.ones(2), torch.tensor(grads[dist.get_rank()]), 2.0), ranks=3
)
print(*run, sep="\n")

# %%
meant = torch.nn.Parameter(torch.ones(2))
meant.grad = torch.tensor(grads).mean(dim=0)
torch.nn.utils.clip_grad_norm_(meant, max_norm=2.0)
meant.detach() - meant.grad


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
    return (0, 1, 2), "norm = grad.norm()", "diverged_replica"
    ### END SOLUTION


# %%
check.case_five(my_five, finding=finding_five)

# %%
check.hint("case_five")

# %% [markdown]
# ### Case six: not a number
#
# Meant: every rank returns the mean over all losses of all ranks; a rank may have none. Budget: two collectives. Every rank has NaN. Whose was it?


# %%
def mean_of_all(losses):
    mean = losses.mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


losses = [1.0, 5.0, 3.0], [7.0, 2.0], []
lab.launch(lambda: mean_of_all(torch.tensor(losses[dist.get_rank()])), ranks=3)


# %%
def my_six(losses):
    """The mean over all losses of all ranks."""
    ### BEGIN SOLUTION
    both = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
    ### END SOLUTION


def finding_six():
    """(rank, line, fault)"""
    ### BEGIN SOLUTION
    return 2, "mean = losses.mean()", "nan"
    ### END SOLUTION


# %%
check.case_six(my_six, finding=finding_six)

# %%
check.hint("case_six")

# %% [markdown]
# ## Summary
#
# - Most errors are echoes. Look for the rank that ended before the timeout, or never came.
# - Calls are paired by their order. Different operations usually hang; equal ones give wrong sums in silence. So sort a dict's names, or send one tensor with all numbers.
# - NaN: look before the all-reduce. Replicas: compare digests.
# - Out of memory: try two steps, read the snapshot, then take a cure that touches the largest part and leaves the update as it is.
#
# Words learned: [hang](GLOSSARY.md#hang), echo, [verdict](GLOSSARY.md#verdict), [flight recorder](GLOSSARY.md#flight-recorder), [watchdog](GLOSSARY.md#watchdog), digest, snapshot.
#
# Next: [chapter 15](15_profiling_and_scaling.ipynb) asks which rank and which line make a training slow.

# %% [markdown] sections="8.11.1, 8.11.2, 10.5.2, 19.9"
# ## Errata of the textbook
#
# They correct a textbook that many readers know; if you don't, you lose nothing here.
#
# <details><summary>Ten boxes</summary>
#
# <details><summary>Erratum 19.9: "all_reduce(tensor)" after "new_group([0, 1, 2, 3])", which "uses the default group"</summary>
#
# The example makes a group of ranks 0 to 3 and forgets it. On four ranks that is the default group anyway, and nothing happens; only from five ranks on does it hang. Run it with our group of two: `lab.launch(pairs, ranks=2)` ends well, because there the group is everybody.
#
# </details>
#
# <details><summary>Erratum 8.11.2: "NCCL_TIMEOUT" = "7200", and "NCCL_ASYNC_ERROR_HANDLING"</summary>
#
# torch does not read `NCCL_TIMEOUT`. Its header lists the names that its NCCL back end reads; run it: `from pathlib import Path; '"NCCL_TIMEOUT"' in (Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp").read_text()` is False. `TORCH_NCCL_ASYNC_ERROR_HANDLING` is today's name of the other, and what it turns on has long been the default.
#
# </details>
#
# <details><summary>Erratum 19.9: fp16 overflows in the forward, "solution: automatic mixed precision and gradient scaling"</summary>
#
# They cure an overflow of **gradients**, which a smaller scale mends (chapter 05). Where the **forward** overflows, no scale of the loss changes that, and the scaler skips every step: `torch.tensor(80000.0).half()` is inf, because fp16 ends at 65504. bf16 has the range of fp32; or make the activations smaller, by a norm or another initial scale.
#
# </details>
#
# <details><summary>Erratum 10.5.2: "param_hash = hash(param.data.cpu().numpy().tobytes())"</summary>
#
# Under torchrun that check cries wolf on every healthy run, since Python salts `hash` of bytes anew in each process: run `!python -c "print(hash(b'weights'))"` twice. (Ranks of `lab.launch` come from one process and happen to agree, which is worse, because the fault shows only elsewhere.) A digest such as BLAKE2b depends on the bytes alone.
#
# </details>
#
# <details><summary>Erratum 19.9: "torch.save(model)", which "contains the CUDA context"</summary>
#
# It stores no context, but tensors, and names of classes and functions. Run it: `import io; buffer = io.BytesIO(); torch.save(torch.nn.Linear(100, 100), buffer); buffer.tell()` is less than 44,000 bytes, of which 40,400 are the tensors. What is wrong with it is the name of the class, which may move (chapter 13).
#
# </details>
#
# <details><summary>Erratum 19.9: "batch.cuda()" in the loop "copies from the CPU each time"</summary>
#
# A new batch must be copied once, wherever the call stands, and for what is already there `to` copies nothing: `batch = torch.ones(2); batch.to(batch.device) is batch` is True. What costs is a second copy, and a wait for the first.
#
# </details>
#
# <details><summary>Erratum 19.9: without zero_grad "gradients pile up until memory overflows"</summary>
#
# Gradients are added in place: the values pile up, the bytes do not. Run it: `net = torch.nn.Linear(4, 1); [(net(torch.ones(2, 4)).sum().backward(), net.weight.grad.norm().item(), net.weight.grad.nbytes)[1:] for _ in range(2)]`. The norm doubles from 4 to 8, the bytes stay 16.
#
# </details>
#
# <details><summary>Erratum 8.11.1: "_record_memory_history(enabled=True)"</summary>
#
# torch sends a bool to an older function, which keeps one event: `import inspect; inspect.signature(torch.cuda.memory._record_memory_history_legacy).parameters["trace_alloc_max_entries"].default` is 1. So say `max_entries=`.
#
# </details>
#
# <details><summary>Erratum 8.11.1: seven cures, in a "priority" from 1 to 7</summary>
#
# The list runs from batch 1 and accumulation, which are one cure, to lower precision and shorter sequences, which change the update. FSDP has no fixed place in it: `lab.bars(peaks, unit="bytes")` shows that on two ranks it saves little where activations are the load.
#
# </details>
#
# <details><summary>Erratum 10.5.2: "logging.getLogger().setLevel(logging.WARNING)" on all ranks but 0</summary>
#
# The level of the logger stands before every handler, so the files of all ranks but 0 stay empty. Run it: `import logging; quiet = logging.getLogger("quiet"); quiet.setLevel("WARNING"); quiet.isEnabledFor(logging.INFO)` is False, whatever its handlers would take.
#
# </details>
#
# </details>
#
# ## Further reading
#
# - PyTorch tutorial, [*Flight Recorder for Debugging Stuck Jobs*](https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html)
# - PyTorch, [*Distributed Training with Uneven Inputs Using the Join Context Manager*](https://docs.pytorch.org/tutorials/advanced/generic_join.html)
# - PyTorch notes, [*Reproducibility*](https://docs.pytorch.org/docs/stable/notes/randomness.html)
# - PyTorch, [*Understanding CUDA Memory Usage*](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html)

# %%
check.status()
