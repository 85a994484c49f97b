# ---
# jupyter:
#   labkit:
#     sections: ["8.11.1", "8.11.2", "10.5.2", "19.9"]
#     needs: ["two CPU cores"]
#     minutes: 120
# ---

# %% [markdown]
# # Debugging
#
# *About two hours, half of them for the cases. You need chapters 02, 03 and 05; from 06 to 08 only a word or two. No GPU is needed.*
#
# It is three in the morning, and our 7 B model trains on 64 cards. The loss line stops. There is no error, and every card reports that it is busy. Ten minutes later, when NCCL's patience is over, 64 tracebacks run through one terminal, and nearly all of them say the same: a collective timed out. That was more than ten hours of card time for a wait. Which rank was it, and which line?
#
# We begin with an easier failure, on four small ranks, where one rank does say why. They add up the lengths of four words, and one word is missing. How many of the four will raise an error of their own?

# %%
import labkit as lab
from labkit import model
from labkit.debugging import check, cure_run
from labkit.debugging.broken_run import numbered, places, verdict

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


verdict(mean_length, ranks=4)

# %% [markdown]
# This is a report, with a row per [rank](GLOSSARY.md#rank). Look for the marked row: only that rank raised an exception of its own. The others waited for it in the all-reduce. When it left, they were told that a connection was gone. Such an error is an **echo**: it says that another rank failed, but not why.
#
# **When you are done** you can find the one rank and the one line that broke a run, here and on a cluster; you can mend hangs, silent wrong sums, NaN and full memories; and you know what to prepare before a run, so that the search is short.
#
# ## How a run ends
#
# `lab.launch` raises when a run fails. In this chapter nearly every run does, so `verdict` launches it and gives back what was raised, the **[verdict](GLOSSARY.md#verdict)**. A cell that ends in one shows the report.
#
# A rank can end in four ways: it returned, it raised, it died, or it waits for ever. Here are all four in one run. Which of them would tell you least, if you only saw the terminal?


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
# The one that waits: no message, no exit code. The report knows its line only because labkit asked it. Rank 1 is marked because it was the first to fail; rank 2 died a moment later.
#
# Often a rank dies without a word because the system's OOM killer took it, when the host's memory was full (`dmesg` on that machine tells).
#
# ## Collectives that do not match
#
# When ranks wait for something that never comes, we call it a **[hang](GLOSSARY.md#hang)**. The simplest way to get one: rank 0 broadcasts, while the others reduce. What would you see with plain torchrun?

# %%
sees = lab.guess(
    "rank 0 broadcasts, the others all-reduce",
    choices=("an error", "a hang", "wrong numbers"),
)


# %%
def two_minds():
    x = torch.full((4,), dist.get_rank() + 1.0)
    if dist.get_rank() == 0:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)


verdict(two_minds, ranks=4)

# %%
sees.score("a hang")

# %% [markdown]
# torch itself says nothing. By default it would wait half an hour with [gloo](GLOSSARY.md#gloo), and ten minutes with [NCCL](GLOSSARY.md#nccl). The verdict comes sooner because labkit asks each rank where it is, and reads torch's **[flight recorder](GLOSSARY.md#flight-recorder)**, which numbers the [collectives](GLOSSARY.md#collective) of every group. Different operations under the same number of one group prove a mismatch. (`[4]` is the shape of the tensor.)
#
# A wrong *shape* is a mismatch, too. Here rank 1 brings 64 numbers, and the others 4:


# %%
def other_shape():
    num = 64 if dist.get_rank() == 1 else 4
    dist.all_reduce(torch.ones(num))


verdict(other_shape, ranks=3)

# %% [markdown]
# gloo notices the size and ends a process, not always the guilty one. NCCL compares nothing: it may hang, or mix up memory.
#
# The next kind is a barrier that only rank 0 reaches, after it has saved a file. Rank 0 will hang. Whom does the report mark?

# %%
marked = lab.guess("whom the report marks", choices=("rank 0", "ranks 1 and 2"))


# %%
def save_and_wait():
    if dist.get_rank() == 0:
        print("saved")
        dist.barrier()


verdict(save_and_wait, ranks=3)

# %%
marked.score("ranks 1 and 2")

# %% [markdown]
# (A rank that returned keeps its connections until the run ends, as if its script went on to other work. Where its process really ends, you may see an echo in place of a hang.)
#
# The arrow points from who waits to whom it waits for. Here the rank that waits only did what the code told it: the fault is the `if` above the barrier, which lets it in alone. So for a missing rank, read the line that somebody waits in, and go up to the nearest `if` or loop. The mend is to take the barrier out of the `if`, so that every rank reaches it:


# %%
def save_and_meet():
    if dist.get_rank() == 0:
        print("saved")
    dist.barrier()


lab.launch(save_and_meet, ranks=3)

# %% [markdown]
# ### The wrong group
#
# Four ranks make a [process group](GLOSSARY.md#process-group) for two of them, and these two forget to pass it. For whom do they wait?

# %%
waits_for = lab.guess("ranks 0 and 1 wait for", choices=("each other", "ranks 2 and 3"))


# %%
def forgotten_group():
    x = torch.ones(1)
    group = dist.new_group([0, 1])  # every rank must call it, members or not
    if dist.get_rank() in (0, 1):
        dist.all_reduce(x)


verdict(forgotten_group, ranks=4)

# %%
waits_for.score("ranks 2 and 3")

# %% [markdown] sections="19.9"
# Without `group=` the call goes to all four ranks, so two wait for two that never heard of it. The mend is `dist.all_reduce(x, group=group)`. This time the `if` was right and the call was wrong. So first check in which group a line calls, then who reaches it.
#
# (A box called *erratum*, like the next one, corrects a text on which this course was first based. Skip them on a first reading.)
#
# <details><summary>Erratum 19.9: a forgotten group of the first four ranks hangs</summary>
#
# The example makes a group of ranks 0 to 3 and forgets it. On four ranks that is the default group anyway, and nothing happens; only from five ranks on does it hang. Run it with our group of two: `lab.launch(forgotten_group, ranks=2)` ends well, because there the group is everybody.
#
# </details>
#
# ### One batch less
#
# A hang that comes with the last batch: one rank runs out of data first. Rank 0 has three batches, and rank 1 has four.


# %%
def epoch():
    net = DDP(torch.nn.Linear(4, 1))
    num_batches = 3 + dist.get_rank()
    for _ in range(num_batches):
        net(torch.ones(2, 4)).sum().backward()
    return {"batches": num_batches}


verdict(epoch)

# %% [markdown]
# (Rank 1 waits with five numbers: four weights and a bias, in one [bucket](GLOSSARY.md#bucket).) Usually a sampler gives every rank as many batches: `drop_last=True` drops the rest; by default it repeats some samples. DDP has another cure, `join()`: a rank that is done takes part in the others' all-reduces with zeros.


# %%
def joined_epoch():
    net = DDP(torch.nn.Linear(4, 1))
    num_batches = 3 + dist.get_rank()
    with net.join():
        for _ in range(num_batches):
            net(torch.ones(2, 4)).sum().backward()
    return {"batches": num_batches}


lab.launch(joined_epoch)

# %% [markdown]
# The sum is still divided by the number of **all** ranks, as documented, so the last batch of rank 1 counts half.
#
# ## Case one: the log
#
# Now you. In this chapter an exercise is a **case**: a broken run. First find three things, then mend the function:
#
# - the odd **rank**: a number, or a tuple of several;
# - the **line**, a piece of its text: the one that ranks wait in, the condition that keeps others from it, or the one that makes a wrong number;
# - the **fault**, a name from this table. You have met half of them, and the others come below:
#
# | what the ranks do | marked | fault |
# | --- | --- | --- |
# | one raises by itself | that one; of several, the first | `exception`, `out_of_memory`, `nan` |
# | one dies without a word | that one | `sigkill`, `unclean_exit` |
# | they call different operations | the minority | `mismatched_op` |
# | they bring different shapes | the minority | `mismatched_shape` |
# | they make the same calls in another order | the minority | `swapped_order` |
# | some never make a call that others wait in | those who never come | `missing_rank` |
# | some run out of batches first | those with fewer | `uneven_inputs` |
# | a group's members alone wait, in a call of all ranks | the members | `wrong_group` |
# | they send to each other, in a circle | all in the circle | `send_cycle` |
# | their replicas differ | whoever's weights are not the ones meant | `diverged_replica` |
#
# Where there is no majority, as between two ranks, both are marked. The mark says where to look, not what to change. If rank 0 alone calls a barrier, the others are marked, and yet the right mend may be to delete rank 0's call.
#
# For our first run it would be `return 2, "len(words[", "exception"`. The cases do not show you the report, because it would tell. You get what a colleague could see from outside: where each rank is. The check runs your function on real ranks with other data and other numbers of ranks. It must return what the broken one was meant to return; hiding the fault does not count.
#
# Meant: every rank returns the means over the ranks of every second loss; rank 0 alone prints them. Budget: one message for each mean.


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


verdict(cycle, hang_s=1)

# %%
passes.score("a hang")

# %% [markdown] sections="8.11.2"
# It hangs whatever the size, because gloo's `send` waits for the receiver. (Other back ends may let a small message pass, and hang with a large one.) The cure for two ranks: one of them receives first. For many, `isend` and `irecv` return at once; but what was asked for is not there yet, so **both** requests must be waited for.
#
# ## Timeouts
#
# "Raise the timeout" is the first advice that one finds for a hang. What counts is the argument `timeout=` of `init_process_group` and of `new_group`.
#
# <details><summary>Erratum 8.11.2: NCCL_TIMEOUT and NCCL_ASYNC_ERROR_HANDLING</summary>
#
# torch does not read `NCCL_TIMEOUT`. Its header lists the names that its NCCL back end reads; run it: `'"NCCL_TIMEOUT"' in (Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp").read_text()` is False. Of the other name the spelling with `TORCH_` is current, and the short one is kept for old scripts; what it turns on has long been the default.
#
# </details>
#
# A timeout cures no hang, it ends it: the rank that gives up leaves the call, and all that come later get an echo. So raise it where a rank is really that slow, because it loads or compiles for half an hour. Otherwise look for the rank that never comes.
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
run

# %%
gets.score(run[0]["x"])

# %% [markdown]
# 12 is 1 + 10 + 1: rank 1's y went into the others' x. Nothing hung, nothing failed, and both sums are wrong, because torch does not know the names of our tensors. It pairs the calls by their numbers alone. The flight recorder also notes for each call the line that it came from:

# %%
lab.table(numbered(run), title="The collectives of each rank")

# %% [markdown]
# Each row is one collective. In a healthy run all ranks show the same line in a row. `check.trace(run)` compares them for us, and so finds the odd rank:

# %%
check.trace(run)

# %% [markdown]
# But if **one** line reduces both tensors, in a loop whose order differs, the calls look alike:


# %%
def swapped_in_a_loop():
    sums = {"loss": torch.tensor([1.0]), "count": torch.tensor([10.0])}
    if dist.get_rank() == 1:
        sums = {"count": sums["count"], "loss": sums["loss"]}
    for value in sums.values():
        dist.all_reduce(value)
    return {"loss": sums["loss"].item(), "count": sums["count"].item()}


looped = lab.launch(swapped_in_a_loop, ranks=3)
looped

# %%
check.trace(looped)

# %% [markdown]
# So never reduce in the order of a dict that each rank fills by itself, or of a set. Sort the names, or better send one tensor with all the numbers: what has no order cannot be swapped.
#
# ### Let torch compare
#
# torch can compare the calls before it makes them, if `TORCH_DISTRIBUTED_DEBUG=DETAIL` is set when the ranks start. Then no rank hangs, because each refuses the call. First the broadcast against the all-reduce, then the swapped order:

# %%
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
verdict(two_minds, ranks=3)

# %%
compared = lab.launch(swapped, ranks=3)
os.environ.pop("TORCH_DISTRIBUTED_DEBUG")
compared

# %% [markdown]
# The operations are named at once. But torch compares operation, size and type, so the swapped order passes here as well. And it compares before every call, however small the message is. So it is for a search, not for training.
#
# ## The same on a real cluster
#
# So far a rank stood in the line that it waited in, because gloo (and a [pretend device](GLOSSARY.md#pretend-device)) blocks there. With NCCL the call only queues work for the card. Python goes on, and stops at the first line that needs a number, often `loss.item()`. So a stack shows that line, and the guilty call lies above it. On NCCL trust the **numbers** of the collectives, not the stacks.
#
# After its timeout NCCL's [watchdog](GLOSSARY.md#watchdog), a thread of each rank, prints a line with that number. Here are two ranks of a training that stood still at the end of an epoch, shortened from a [public report](https://github.com/NVIDIA/nccl/issues/1409) of 2024. What do they tell?
#
# ```text
# [Rank 7] Watchdog caught collective operation timeout:
#          WorkNCCL(SeqNum=80078, OpType=BROADCAST, NumelIn=5056, ...
# [Rank 3] Watchdog caught collective operation timeout:
#          WorkNCCL(SeqNum=80078, OpType=ALLREDUCE, NumelIn=2106881, ...
# ```

# %%
told = lab.guess(
    "what the two lines prove by themselves",
    choices=("one rank is dead", "one has a batch less", "the calls differ"),
)

# %%
told.score("the calls differ")

# %% [markdown] sections="8.11.2"
# If both are of the same group (newer versions print its name), number 80078 is a broadcast on one rank and an all-reduce on the other, so they made different calls, as in `two_minds`. **Why**, the lines do not tell. As it happened at the end of an epoch, a first suspect would be a rank with one batch less, which went on to its next call. If instead all lines show the same operation under the same number, look for the rank that printed none.
#
# What labkit does here, you do there:
#
# | here | on your cluster |
# | --- | --- |
# | the report | the watchdog's lines of all ranks, sorted by `SeqNum` |
# | the flight recorder, read by labkit | it is on by default (`TORCH_FR_BUFFER_SIZE`, 2000 calls). `TORCH_NCCL_DUMP_ON_TIMEOUT=1` and `TORCH_FR_DUMP_TEMP_FILE=/shared/trace_` leave a file per rank. (Before torch 2.9 the two `TORCH_FR` names were `TORCH_NCCL_TRACE_BUFFER_SIZE` and `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) |
# | `check.trace(run)` | `torchfrtrace -p trace_ /shared` compares these files; it comes with torch |
# | where each rank is, `job.stacks()` | `py-spy dump --pid`, on every node; or `faulthandler.dump_traceback_later(900)` when the script begins |
# | who never comes to a barrier | `dist.monitored_barrier()` on a group of gloo names them |
# | the echo and the cause | `@record` of `torch.distributed.elastic`: torchrun then reports the rank that failed first |
# | what each rank printed | `torchrun --redirects 3 --log-dir logs`: a file per rank |
# | (no network to look at) | `NCCL_DEBUG=INFO`: which network and which ring NCCL took |

# %% [markdown]
# ### A run that hangs now
#
# To look into a run while it hangs, start it with `lab.start`, which returns at once. `places` then says in which line each rank is. Why does this one hang?


# %%
def waits_forever():
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)
    dist.all_reduce(torch.ones(1))


job = lab.start(waits_forever, ranks=3)
lab.table(places(job), title="Where they are")

# %% [markdown]
# Rank 1 waits for a message that rank 0 never sends: rank 0 is one line further, and waits there for rank 1. Either a `send` is missing or the `recv` is one too many. (`job.stacks()` has the whole Python stack of each rank, also where it is deep in C++; `py-spy dump --pid` prints the same.) Now end it:

# %%
job.stop()

# %% [markdown]
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
    before = net.weight.grad.isnan().any().item()
    dist.all_reduce(net.weight.grad)
    return {"NaN before": before, "NaN after": net.weight.grad.isnan().any().item()}


run = lab.launch(one_nan, ranks=4)
run

# %%
ill.score(sum(rank["NaN after"] for rank in run))

# %% [markdown]
# After the all-reduce every rank has NaN, and nobody can say where it came from. So look **before** it. DDP reduces on its own, but it lets us in: a [communication hook](GLOSSARY.md#communication-hook) gets each [bucket](GLOSSARY.md#bucket) just before it leaves, and has to send it.

# %%
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def refuse_nan(group, bucket):
    if not bucket.buffer().isfinite().all():
        raise FloatingPointError(f"rank {dist.get_rank()}: its own gradient")
    return allreduce_hook(group, bucket)


# %%
def guarded():
    net = DDP(torch.nn.Linear(4, 1))
    net.register_comm_hook(dist.group.WORLD, refuse_nan)
    batch = torch.rand(2, 4)
    if dist.get_rank() == 2:
        batch[0, 0] = float("nan")
    net(batch).sum().backward()


verdict(guarded, ranks=4)

# %% [markdown] sections="19.9"
# The right rank raises, and the others only lose their peer. `health.guard(net)` of `labkit.debugging` is this hook, and names the weight. Where the NaN was made inside the step, `torch.autograd.set_detect_anomaly(True)` names the line of the forward. It is slow: switch it on for one step.
#
# <details><summary>Erratum 19.9: autocast and a gradient scaler cure an overflow in fp16</summary>
#
# They cure an overflow of **gradients**, which a smaller scale mends (chapter 05). Where the **forward** overflows, no scale of the loss changes that: `torch.tensor(80000.0).half()` is inf, because fp16 ends at 65504. The scaler then skips every step, and nothing is learned. bf16 has the range of fp32; or make the activations smaller, by a norm or another initial scale.
#
# </details>
#
# ## Replicas that drift apart
#
# DDP's replicas start equal and stay equal, if all ranks make the same update. Here rank 1 adds a millionth to its bias, alone. Each rank returns its loss, rounded to four digits, and a **digest** of its weights: 16 characters that change with any bit. What shows the difference?

# %%
shows = lab.guess(
    "what shows the difference", choices=("the loss", "the digest", "both")
)

# %%
import hashlib


def one_update_alone():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    if dist.get_rank() == 1:
        net.bias.data += 1e-6
    weights = torch.cat([net.weight.flatten(), net.bias]).detach().cpu()
    digest = hashlib.blake2b(weights.numpy().tobytes(), digest_size=8).hexdigest()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, digest)
    loss = f"{net(torch.ones(1, 4)).item():.4f}"
    return {"loss": loss, "digest": digest, "with me": everyone.count(digest)}


lab.launch(one_update_alone, ranks=3)

# %%
shows.score("the digest")

# %% [markdown] sections="10.5.2, 19.9"
# Sixteen bytes of each rank travel, and the last column counts who has the same. `health.compare(net.named_parameters())` does this for each tensor, and names the first that differs. But beware: a vote finds who differs, not who is right. Two ranks may agree and both be wrong.
#
# <details><summary>Erratum 10.5.2: replicas are compared by hash(param...tobytes())</summary>
#
# Under torchrun that check cries wolf on every healthy run, since Python salts `hash` of bytes anew in each process: run `python -c "print(hash(b'weights'))"` twice. (Ranks of `lab.launch` come from one process and happen to agree, which is worse, because the fault shows only elsewhere.) A digest such as BLAKE2b depends on the bytes alone.
#
# </details>
#
# ## Everyday traps
#
# Three small ones need no search once you know them:
#
# - A sampler whose `set_epoch` is forgotten fails nowhere, and every epoch has the order of the first (chapter 03).
# - `torch.save(model)` stores the class as a name, and reading it back may call any function. Save the `state_dict`, and load with `weights_only=True`, the default (chapter 13).
# - One all-reduce per weight pays the latency each time. DDP's buckets exist for that (chapter 03).
#
# <details><summary>Erratum 19.9: without zero_grad gradients pile up until memory overflows</summary>
#
# Gradients are added in place: the values pile up, the bytes do not. Run it: `net = torch.nn.Linear(4, 1)`, then twice `net(torch.ones(2, 4)).sum().backward(); net.weight.grad.norm(), net.weight.grad.nbytes`. The norm doubles from 4 to 8, the bytes stay 16.
#
# </details>
#
# <details><summary>Erratum 19.9: torch.save(model) stores the CUDA context</summary>
#
# It stores no context, but tensors, and names of classes and functions. Run it: `buffer = io.BytesIO(); torch.save(torch.nn.Linear(100, 100), buffer); buffer.tell()` is less than 44,000 bytes, of which 40,400 are the tensors. What is wrong with it is the name of the class, which may move.
#
# </details>
#
# <details><summary>Erratum 19.9: batch.cuda() in the loop is the fault</summary>
#
# A new batch must be copied once, wherever the call stands, and for what is already there `to` copies nothing: `batch.to(batch.device) is batch` is True. What costs is a second copy, and a wait for the first.
#
# </details>

# %% [markdown] sections="19.9"
# ## Out of memory
#
# ### A loss that is kept
#
# First a leak. An evaluation, for which somebody forgot `torch.no_grad()`, collects its losses for a mean at the end. Each rank has a [pretend device](GLOSSARY.md#pretend-device) of 14 MiB: a memory of its own, with a GPU's rules and a GPU's words when it is full. We read that memory after each step, once with the losses as tensors and once as numbers. What will the two curves look like?


# %%
def evaluate(keep):
    net, kept, alive = torch.nn.Linear(64, 64), [], {}
    for step in range(1, 21):
        loss = net(torch.ones(8, 64)).square().mean()
        kept.append(keep(loss))
        alive[step] = torch.accelerator.memory_allocated()
    return alive


# %%
small = lab.pretend(memory_mib=14)
keeps = {"loss": lambda loss: loss, "loss.item()": lambda loss: loss.item()}
alive = {
    f"keeps {name}": lab.launch(evaluate, keep, ranks=1, devices=small)[0]
    for name, keep in keeps.items()
}
lab.curves(measured=alive, x="step", unit="bytes", title="Bytes alive after each step")

# %% [markdown]
# Each loss that is a tensor holds its whole graph, so the upper dots climb with every step. Keep `loss.item()`; with `torch.no_grad()` no graph would be made at all.

# %% [markdown] sections="8.11.1"
# ### A batch that is too large
#
# Next, the failure that everybody meets. The model has two blocks of width 128. Each rank has four sequences, and rank 1's are four times as long. In which line will it fail?

# %%
fails_in = lab.guess("where rank 1 runs out", choices=("forward", "backward", "update"))


# %%
def two_steps(num_microbatches):
    net = model.Transformer(2, 128, 4, max_len=128)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    tokens, targets = model.story_tokens(4, 128 if dist.get_rank() == 1 else 32)
    parts = tokens.chunk(num_microbatches), targets.chunk(num_microbatches)
    for _ in range(2):
        for some, theirs in zip(*parts):
            loss = model.loss(net(some), theirs) / num_microbatches
            loss.backward()
        for weight in net.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    return {"peak_bytes": torch.accelerator.max_memory_allocated()}


verdict(two_steps, 1, devices=small)

# %%
fails_in.score("forward")

# %% [markdown]
# In the forward, because activations pile up until the loss. The error names the tensor that found no room. That is the last straw, not the load.
#
# Of the error's two last numbers the first is what tensors hold. The second, "reserved but unallocated", is room that torch has from the card and cannot use, in pieces that are too small. Where that one is large, `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` often helps.
#
# With four [microbatches](GLOSSARY.md#microbatch) the same batch fits:

# %%
lab.launch(two_steps, 4, devices=small)

# %% [markdown]
# But was that the right cure?
#
# ### Read the snapshot first
#
# A **snapshot** tells what filled the memory: who holds how much, at the highest moment. `cure_run.steps` makes these two steps without a limit, with four sequences of 128 tokens on both ranks: first plainly (`tried[""]`), then once with each of five cures, for the next section. It counts every byte of the second step: the forward of the embedding (F0), the two blocks and the head (F3), the loss, the backward (B3 to B0), the update. What lives only inside one operation is *temporary*. What will be the largest part?

# %%
PARTS = ("parameters", "gradients", "optimizer", "activations")
largest = lab.guess("the largest part at the peak", choices=PARTS)

# %%
tried = lab.launch(cure_run.steps)[0]
tried[""].footprint

# %%
largest.score("activations")

# %% [markdown] sections="8.11.1"
# On a GPU torch keeps such a history itself: `torch.cuda.memory._record_memory_history(max_entries=100_000)` before the step, `_dump_snapshot(file)` after it. The page https://pytorch.org/memory_viz draws the file in your browser.
#
# <details><summary>Erratum 8.11.1: _record_memory_history(enabled=True)</summary>
#
# torch sends a bool to an older function, which keeps one event: `inspect.signature(torch.cuda.memory._record_memory_history_legacy).parameters["trace_alloc_max_entries"].default` is 1. So say `max_entries=`.
#
# </details>
#
# ### Which cure first?
#
# Five cures, one at a time, on the same model and batch. With "microbatches" each step takes the four sequences one by one; "checkpointing" computes the blocks again in the backward; "bf16" is autocast. Which one lowers the peak most here?

# %%
cures = list(tried)[1:]  # the first is none
best = lab.guess("the cure that saves most", choices=cures)

# %%
peaks = {cure or "none": got.footprint.peak_bytes for cure, got in tried.items()}
lab.bars(peaks, unit="bytes", title="Peak of a rank, one cure at a time")

# %%
best.score(min(cures, key=peaks.get))

# %% [markdown]
# And the price? Some cures cost time, which steps this small would not show. Others change the result. How far are the new weights from those of the plain step?

# %%
weights = tried[""].weights
lab.table(
    {"cure": cure or "none", "weights differ by": lab.difference(got.weights, weights)}
    for cure, got in tried.items()
)

# %% [markdown] sections="8.11.1"
# This is the largest difference of any weight. Adam makes steps of about its rate, 1e-3, even from tiny gradients, so rounding can turn a few of them round. A large value here shows another run, not a worse one.
#
# The price decides the order. First come the cures that cost time only and leave the update as it is, then those that change the numbers. Here activations fill the memory, so what divides them helps: microbatches with [accumulation](GLOSSARY.md#gradient-accumulation) and [activation checkpointing](GLOSSARY.md#activation-checkpointing). [FSDP](GLOSSARY.md#fsdp) divides parameters, gradients and optimizer states, the smaller part here. bf16 changes the numbers, so choose it before a run, and not in the middle of one. Shorter sequences change what is learned. [Offload](GLOSSARY.md#offload) comes last, because it moves the states over the bus in each step (measured in chapter 06).
#
# <details><summary>Erratum 8.11.1: seven cures in a fixed order</summary>
#
# The list runs from batch 1, accumulation, checkpointing, FSDP and offload to lower precision and shorter sequences. The first two are one cure, and FSDP has no fixed place: `lab.bars(peaks, unit="bytes")` shows that it saves little where activations are the load. Precision and length are no matter of memory alone, since they change the update.
#
# </details>
#
# <details><summary>Erratum 8.11.1: fsdp_cpu_ram_efficient_loading is named as offload</summary>
#
# It is about loading: only the first process reads the weights, and the others get them from it. Offload is `cpu_offload`. Accelerate's own words: `accelerate.FullyShardedDataParallelPlugin.__dataclass_fields__["cpu_ram_efficient_loading"].metadata["help"]`.
#
# </details>

# %% [markdown] sections="10.5.2"
# ## Prepare before you need it
#
# ### Logs of every rank
#
# In a long training each rank writes a file, and only rank 0 speaks on the console. In many scripts every rank but 0 raises the level of its logger for that. What stands in each rank's file after one `logging.info`?

# %%
import logging
import tempfile
from pathlib import Path

folder = tempfile.TemporaryDirectory()


def with_logs(quieter):
    rank = dist.get_rank()
    file = logging.FileHandler(f"{folder.name}/{rank}.log", mode="w")
    console = logging.StreamHandler()
    form = f"%(asctime)s rank {rank} %(message)s"
    handlers = [file, console]
    logging.basicConfig(level="INFO", format=form, handlers=handlers, force=True)
    if rank != 0:
        {"logger": logging.getLogger(), "console": console}[quieter].setLevel("WARNING")
    logging.info("step 0 is done")
    return {"in its file": Path(file.baseFilename).read_text().strip()}


lab.launch(with_logs, "logger", ranks=3)

# %%
lab.launch(with_logs, "console", ranks=3)

# %% [markdown] sections="10.5.2"
# The logger stands before its handlers, so a level there empties the files as well. Put it on the console's handler. And put rank and time into each line: 64 files without them cannot be laid side by side.
#
# <details><summary>Erratum 10.5.2: a level for all handlers</summary>
#
# The level of the root logger stands before every handler, so the files of all ranks but 0 stay empty: the very ones that a search needs. Run it: `lab.launch(with_logs, "logger", ranks=3)`. Put the level on the console's handler only, as the second run does.
#
# </details>
#
# ### The same run twice
#
# A fault that comes and goes is the hardest. So go up in steps: one rank, two, four; the first size that fails is the smallest run to study. Fix the seeds, refuse operations that may differ from run to run, and compare the weights after three steps. A second run has the same bits, we hope. And four ranks instead of two, on the same eight sequences?

# %%
bits = lab.guess(
    "four ranks instead of two", choices=("the same bits", "rounding", "other weights")
)


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
runs = {"2 ranks, again": again, "4 ranks": four}
lab.table(
    {"run": name, "differs by": lab.difference(weights, first)}
    for name, weights in runs.items()
)

# %%
bits.score("rounding")

# %% [markdown]
# Another number of ranks gives other bits, but only by rounding, because the sum over the batch is added up in another order. So compare bits between runs of one size, and with a tolerance between sizes.

# %% [markdown]
# ## Exercises
#
# Five more cases; do the last two another day, if you like. Again you get no report, only what one sees from outside. Find rank, line and fault; then mend.
#
# ### Case two: the dashboard
#
# Meant: the means of loss and accuracy over the ranks, on every rank. The run ends well, but the dashboard shows an accuracy above 1. Budget: two messages.

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
# Meant: every rank hands x to the next one and returns what it got from the one before. Budget: x is sent once. This run still hangs while you look, and the next cell ends it.


# %%
def pass_on(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before, got = (rank + 1) % size, (rank - 1) % size, torch.empty_like(x)
    dist.send(x, dst=after)
    dist.recv(got, src=before)
    return got


job = lab.start(lambda: pass_on(torch.ones(4)), ranks=3)
lab.table(places(job), title="Case four")


# %%
job.stop()


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
# Meant: return `weight` minus the mean gradient, clipped to length `limit`; every rank returns the same weight. Nothing hangs and nothing is NaN, and yet the ranks no longer agree. The cell after the run computes what is meant, in one process that has all the gradients. (If replicas differ, the odd ones are those whose weights are not the ones meant.)


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
# ## Three in the morning
#
# Back to the 64 cards, whose loss line stands still. Five things, in this order:
#
# 1. **Is a process gone?** Count the ranks. A dead one, or the first that raised an error of its own, is the cause; the rest are echoes.
# 2. **Slow or stuck?** Take `py-spy dump` of a few ranks twice, a minute apart, and look at the step counter in their logs: a slow run moves, a stuck one does not. (With `TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_`, set before, a write to `/tmp/fr_<rank>.pipe` asks for the flight recorder's file at any time.)
# 3. **Do the numbers agree?** Compare group by group. A rank that is behind never came: its stack shows about where it went instead. One number with two operations is a mismatch.
# 4. **Go to that line, and up to the nearest `if`**, loop, group or dict: every rank of a group calls the same collectives, in the same order, with the same shapes.
# 5. **Make it small**: the fewest ranks that still fail, with seeds, twice.
#
# ## Summary
#
# - Different operations under one number hang; the same operations in another order give wrong sums in silence. A timeout is an argument of the group. It ends a hang and cures none.
# - NaN: look before the all-reduce. Replicas: compare digests; a vote finds who differs, not who is right.
# - Out of memory: first the snapshot, then the cure for the largest part, and of these first what costs time only.
# - Prepare before you need them: logs of every rank with rank and time, the flight recorder's files, seeds, and two runs of one size that agree bit for bit.
#
# Words learned: [hang](GLOSSARY.md#hang), [verdict](GLOSSARY.md#verdict), [flight recorder](GLOSSARY.md#flight-recorder), [watchdog](GLOSSARY.md#watchdog).
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
