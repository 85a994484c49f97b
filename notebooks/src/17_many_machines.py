# ---
# jupyter:
#   labkit:
#     sections: ["S13", "D-setup"]
#     needs: ["chapters 02, 04 and 13"]
#     minutes: 60
# ---

# %% [markdown]
# # Many machines
#
# *About an hour. You need chapters 02, 04 and 13. No GPU is needed.*
#
# The 128 cards of our story stand in sixteen machines. One evening the job doesn't start: 120 ranks wait, and nobody says for whom. It is a machine whose name the others can't look up. Once it runs, each step takes twice as long as planned, because one cable has fallen back to a tenth of its speed. Three hours later a machine dies.
#
# None of that can be practised on one machine as it is. So we build a second one: a *practice cluster* on yours, two [nodes](GLOSSARY.md#node) joined by a link far slower than the inside of a machine, with the scheduler of real clusters.

# %%
import time

import numpy as np
import torch
import torch.distributed as dist

import labkit as lab
from labkit import cluster, planner
from labkit.cluster import check, two_level

lab.begin("en", deadline_s=120)
cluster.renew(bandwidth="200Mbit", latency="1ms")

# %%
where = cluster.place()
links = cluster.examine(on=where, ranks=4)
links

# %% [markdown]
# Two ranks run on each node. A row is the [rank](GLOSSARY.md#rank) that sends, a column the one that receives. Where are the fast boxes, and what do the others have in common?
#
# **When you are done** you can check a cluster before you train on it, start ranks on it in three ways, say what a slow link costs, and lose a machine without losing the training.

# %% [markdown] sections="D-setup"
# ## Who answered?
#
# `renew` gave each node a network of its own (a *network namespace* of Linux), joined by a link that carries 200 Mbit/s and takes 1 ms. If it printed that this machine can't have them, which takes Linux and the rights of root, your nodes share the machine's own network, and everything below still runs, only without a slow link.
#
# `examine` is the check to do before any training: each rank of each node says who it is, and sends to each other rank in turn.

# %%
links.table()

# %% [markdown]
# What should you look for? All ranks are there, on the hosts that you think. They have the same Python and the same torch. And their clocks agree, or a timeline of both would lie: `offset` is how far a rank's clock is from rank 0's, measured by messages to and fro. Our nodes share one machine's clock, so what you see there is mostly the error of that measurement. On real machines it is what labkit subtracts.
#
# Now the links. You know what ours carries, 200 Mbit/s, and that it takes 1 ms. How long does 1 MB take from node to node?

# %%
slow = lab.guess("1 MB from node to node takes, in ms", between=(0, 200))

# %%
links.links()

# %%
took_ms = 1000 / links.mb_per_s + links.latency_us / 1000
slow.score(np.median(took_ms[:2, 2:]))  # of all pairs from node 0 to node 1

# %% [markdown]
# A byte has eight bits, so the link carries at most 25 MB/s, and the latency comes on top. (The score is the median of all pairs of ranks: a single box of the matrix can stand out, even above that, after a busy moment.)
#
# ### Find the slow one
#
# In a cluster of sixteen machines there are 16 × 15 = 240 pairs to measure, and a slow one in the ring holds everybody up: there each message waits for the one before it. Nobody reads 240 numbers, so let a program do it.
#
# ## Exercise 1. The slow link
#
# `mb_per_s` is the matrix above: what rank [row] sent to rank [column], nan on the diagonal. `hosts` names each rank's host. A link goes from one host to another; its speed is the median over its pairs of ranks. Return a list of (from, to) with every link that is slower than half of the median of all links. (Of an even number, the median is the mean of the two in the middle.)


# %%
def my_slow_links(mb_per_s, hosts):
    """[(from, to), ...] of the links below half of the usual."""
    ### BEGIN SOLUTION
    speeds = {}
    for source, start in enumerate(hosts):
        for target, end in enumerate(hosts):
            if start != end:
                speeds.setdefault((start, end), []).append(mb_per_s[source, target])
    medians = {
        link: torch.tensor(found).quantile(0.5) for link, found in speeds.items()
    }
    usual = torch.tensor(list(medians.values())).quantile(0.5) if medians else 0
    return [link for link, speed in medians.items() if speed < 0.5 * usual]
    ### END SOLUTION


# %%
check.slow_link(my_slow_links)

# %%
check.hint("slow_link")

# %% [markdown]
# Then try it on your practice cluster: `cluster.slow(1, "20Mbit")` makes node 1 send at a tenth of its speed, and `cluster.examine(on=where, ranks=4)` shows it. (Put it back with `cluster.slow(1, "200Mbit")`.)

# %% [markdown] sections="S13"
# ## By hand: one command on each machine
#
# What does it take to start ranks on two machines? On one machine, `torchrun` started them all. It can't start anything elsewhere, so somebody runs it on every machine. Here is a script; it says where it runs, and with how many others.

# %%
SCRIPT = """
import socket
import torch
import torch.distributed as dist

dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} on {socket.gethostname()}, of {int(total)}")
dist.barrier()  # nobody leaves while others still talk
dist.destroy_process_group()
"""

# %% [markdown]
# `run_on_nodes` types a line on every node of the practice cluster, and shows what each printed. In the line, {node} stands for the node's number, {first} for the first node's address, and {port} for a free port. How many ranks will there be in all?

# %%
LINE = """torchrun --nnodes=2 --nproc-per-node=1 --node-rank={node} \
--master-addr={first} --master-port={port} train.py"""
world = lab.guess("ranks in all", choices=("1", "2", "4"))

# %%
answered = cluster.run_on_nodes(LINE, files={"train.py": SCRIPT})
answered

# %%
world.score(str(str(answered).count("rank ")))

# %% [markdown]
# Two machines, a rank each. The lines differ in one word only, the number of the node. Each flag can go wrong:
#
# | the flag | what it says | when it is wrong |
# | --- | --- | --- |
# | `--nnodes` | how many machines to wait for | too large: all wait for one that never comes |
# | `--nproc-per-node` | how many ranks to start here, one per GPU | too many: an error; too few: GPUs stay idle |
# | `--node-rank` | which machine this is | two claim the same ranks |
# | `--master-addr`, `--master-port` | where all ranks meet: on the first machine | nobody meets |
#
# ### What about FSDP and DeepSpeed?
#
# FSDP needs no other command: it is a line of the *script* (`fully_shard`), and `torchrun` starts it as above. DeepSpeed has its own launcher. It reads the machines from a file, and goes to each by ssh, or is run on each by hand, as here. Both are below; they take half a minute.
#
# <details><summary>DeepSpeed with a hostfile, and FSDP, on both nodes</summary>
#
# ```python
# HOSTS = "node0 slots=1\nnode1 slots=1\n"  # name, and ranks to start there
# LINE = """deepspeed --hostfile=hosts --no_ssh --node_rank={node} \
# --master_addr={first} --master_port={port} train.py"""
# ENGINE = """
# import deepspeed, torch
# deepspeed.init_distributed(dist_backend="gloo")
# adam = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
# config = {"train_micro_batch_size_per_gpu": 2, "optimizer": adam}
# config["zero_optimization"] = {"stage": 1}
# engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 1), config=config)
# engine.backward(engine(torch.ones(2, 4)).sum())
# engine.step()
# print(f"rank {torch.distributed.get_rank()} took a step")
# torch.distributed.barrier()
# """
# cluster.run_on_nodes(LINE, files={"train.py": ENGINE, "hosts": HOSTS})
# ```
#
# For FSDP add `from torch.distributed.fsdp import fully_shard` and `net = fully_shard(torch.nn.Linear(4, 1))` to the first script, and start it by the first line. (`accelerate launch` has a flag `--use_fsdp`, which `torchrun` has not; with GPUs it starts several machines as well, `--machine_rank` on each.)
#
# </details>

# %% [markdown] sections="S13"
# ## A scheduler types it for you: Slurm
#
# Nobody types lines on 256 machines. And others want them too. A *scheduler* keeps the list of machines, gives you some when they are free, and starts your program there. Most clusters have [Slurm](GLOSSARY.md#slurm). You hand it a shell script: `sbatch job.sh`. The lines that begin with `#SBATCH` say what you want; the others run on the *first* machine that you are given. `srun` is what goes from there to all machines. This is the one that labkit writes for a function:


# %%
def report():
    return {"rank": dist.get_rank()}


print(lab.Slurm(nodes=2).script(report, ranks=4))

# %% [markdown]
# Read it from the end: `srun` starts one `torchrun` per machine, with `$SLURM_NODEID` for the number that we typed by hand. `scontrol show hostnames` tells the first machine's name, where all ranks meet.
#
# ## Exercise 2. Write the script
#
# Write your own. `command` is a script with its arguments; run it by `torchrun` on `nodes` machines, `ranks_per_node` ranks each. It is read first; and where the practice cluster has Slurm, it is run there, and every rank has to answer.


# %%
def my_script(nodes, ranks_per_node, command):
    """The text for sbatch."""
    ### BEGIN SOLUTION
    return f"""#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes={nodes} --nproc-per-node={ranks_per_node} \\
    --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d \\
    --rdzv-endpoint=$first:29500 {command}
"""
    ### END SOLUTION


# %%
check.sbatch_script(my_script)

# %%
check.hint("sbatch_script")

# %% [markdown]
# ## From a cell: two nodes in one picture
#
# `lab.launch(..., on=where)` does all of this, and brings results and recording back to the notebook. `where` is `lab.Slurm(nodes=2)`, or, without Slurm, `lab.Hosts()`, a `torchrun` on each node. On machines that you reach by ssh write `lab.Hosts(names=("a", "b"))`.
#
# What shall they do? Chapter 02 predicted that an [all-reduce](GLOSSARY.md#all-reduce) over two levels of network should go in three steps: add up inside each node, then let one rank of each talk across, then hand the sum out inside. By hand:


# %%
def in_three_steps(message, node, first, leaders):
    dist.reduce(message, dst=first, group=node)
    if dist.get_rank() == first:
        dist.all_reduce(message, group=leaders)
    dist.broadcast(message, src=first, group=node)


# %%
def both_ways():
    first = dist.get_rank() // 2 * 2  # the first rank of this node
    nodes = {0: dist.new_group([0, 1]), 2: dist.new_group([2, 3])}
    leaders = dist.new_group([0, 2])
    message = torch.ones(1_000_000)  # 4 MB
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(message)
    flat_s = time.perf_counter() - start
    dist.barrier()
    start = time.perf_counter()
    in_three_steps(message, nodes[first], first, leaders)
    three_s = time.perf_counter() - start
    return {"flat_ms": 1000 * flat_s, "three_ms": 1000 * three_s}


# %% [markdown]
# How long will each take? Count what crosses from node 0 to node 1. In the flat way all four ranks form one ring, 0 → 1 → 2 → 3 → 0, in which each rank passes on one and a half times the message. (Why? See [chapter 02](02_collectives.ipynb).) In three steps only the two first ranks talk across.

# %%
gain = lab.guess("flat, as a multiple of three steps", between=(0.5, 5))

# %%
run = lab.launch(both_ways, ranks=4, on=where, record=True)
seen = run.timeline()
talking = seen.select(seen.lane == "comm")
lab.show(talking, title="An all-reduce of 4 MB, flat, then in three steps")

# %% [markdown]
# Node by node, on one clock. The long bars come twice: the first all-reduce is flat, and in it all four ranks wait for the link. In the second only the two first ranks do, while the others wait for their broadcast. Between the two all ranks wait for the last one, in a barrier.

# %%
slowest = {way: max(each[way] for each in run.results) for way in run[0]}
gain.score(slowest["flat_ms"] / slowest["three_ms"])

# %% [markdown]
# ### Beside the prediction
#
# The bandwidths of the matrix and the latencies measured with them are all that chapter 02's simulation asks for. It simulates every message of either way, and messages between the same two nodes share the link.

# %%
foretold = two_level.predict(links, 2, 4e6)
ways = {"flat": ("ring", "flat_ms"), "three steps": ("hierarchical", "three_ms")}
lab.bars(
    {
        way: {"predicted": foretold[name] / 1000, "measured": slowest[key]}
        for way, (name, key) in ways.items()
    },
    unit="ms",
    title="All-reduce over two levels",
    badge="predicted / measured",
)

# %% [markdown]
# The flat ring sends half as much again over the slow link, so by the prediction it takes half as long again, if your nodes have a slow link. Measured, both may take longer than predicted, so the gain may be smaller. Without a slow link, three steps in a row are no gain. What would be worst? A ring in which each neighbour is on the *other* node sends three times the message across; the order of ranks decides. That is why launchers by default number the ranks of a machine one after the other, and why NCCL looks for the machines' borders itself. (`cluster.all_reduces(on=where)` measures all three.)

# %% [markdown]
# ## A machine dies
#
# [Chapter 13](13_checkpoint_and_recover.ipynb) lost ranks. Now a whole node goes, with everything on it. What is needed so that training goes on?
#
# - A checkpoint that the others can read.
# - A launcher that goes on with fewer machines ([elastic launch](GLOSSARY.md#elastic-launch)). `torchrun --nnodes=1:2 --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint=...` says "from one to two". With `--master-addr`, as above, it is not elastic.
# - Somebody who notices. Here the other end of the link is gone, so the next all-reduce of the ranks that are left fails, and their `torchrun` starts them anew, as a smaller world. First its meeting point (torchrun says *rendezvous*) has to miss the dead machine's sign of life for two seconds, as we set it here. (A real machine that dies closes no connection: the ranks then wait for a timeout, with NCCL ten minutes if you don't set it. And if the first machine dies, where all meet, only a new start helps.)
#
# `lose_node` trains on both nodes with a checkpoint at every step, and kills node 1. How many seconds pass until the next step is done?

# %%
away = lab.guess("seconds from the kill to the next step", between=(0, 60))

# %%
lost = cluster.lose_node(steps=5, kill_after=2)
lab.table([lost.row()])

# %%
away.score(lost.recovery_s)

# %% [markdown]
# Two seconds of that are the waiting, and most of the rest is Python: the new ranks import torch, meet, and load the checkpoint. (Where a step is missing between the two in the table: it ended, and was saved, while the node was being killed.) The world is smaller now. A step with half the ranks has half the batch, or takes twice as long; which one is for the script to say.
#
# On a real cluster the scheduler has a say, too. When Slurm gives a node up, after its own patience (`SlurmdTimeout`), it ends the whole job, elastic or not. With `#SBATCH --no-kill` (and `srun --no-kill`, without `--kill-on-bad-exit`) the other machines stay yours, and elastic `torchrun` goes on with them. With `#SBATCH --requeue` the job goes back to the queue, and starts again when there are enough machines. Either way the script begins at the last checkpoint.
#
# ## Exercise 3. Go on
#
# Every rank calls your function at every start. Go on from the last checkpoint in `folder` (at the first start there is none), call `train_step(step)` for each step up to `steps`, and save after each. We kill a rank in the middle of a step and start those that are left. No step may be left out, and none that was saved may be done again; net must end with the weights, and optimizer with the state, of an undisturbed training.


# %%
def my_training(folder, net, optimizer, train_step, steps):
    ### BEGIN SOLUTION
    file = folder / "last.pt"
    done = 0
    if file.exists():
        state = torch.load(file, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
    for step in range(done, steps):
        train_step(step)
        if dist.get_rank() == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"done": step + 1}, folder / "draft.pt")
            (folder / "draft.pt").replace(file)
        dist.barrier()  # nobody begins the next step before the file is there
    ### END SOLUTION


# %%
check.resume_after_loss(my_training)

# %%
check.hint("resume_after_loss")

# %% [markdown]
# ## When is it worth it?
#
# The second machine comes with a slow link. So is it worth having? For our 7 B model with a batch of 1,024 sequences, the planner knows what a step takes on one machine of eight A100s, and on two and more. How many times as fast are sixteen machines as one?

# %%
many = lab.guess("times as fast on sixteen machines", between=(0, 16))

# %%
plans = {
    count: planner.Plan(model="LLaMA 7B", gpus=8 * count, zero=1, batch=1024)
    for count in (1, 2, 4, 8, 16)
}
step_us = {count: plan.time().step_us for count, plan in plans.items()}
lab.curves(
    predicted={
        "planned": {count: step_us[1] / each for count, each in step_us.items()},
        "all cards as fast as in one machine": {count: count for count in step_us},
    },
    x="machines of eight cards",
    y="times as fast as one",
    title="LLaMA 7B on more machines",
    log_x=True,
    log_y=True,
)

# %%
many.score(step_us[1] / step_us[16])

# %% [markdown]
# Almost fourteen times, because data parallelism talks across once a step, and has 1,024 sequences to compute meanwhile. Had we cut the layers across machines (tensor parallelism), each layer would talk across, and [chapter 10](10_mesh_and_experts.ipynb) shows what that costs. So what talks most stays inside a machine, and what talks once a step goes across.
#
# At the end, take the practice cluster down. (After that nothing is left; after a crash the next `renew` removes the rest.)

# %%
cluster.down()

# %% [markdown]
# ## Summary
#
# - On each machine something has to start its ranks: you, `deepspeed` by ssh, or a scheduler. The lines differ in one number, the node's; the meeting point is the same in all.
# - `#SBATCH` lines ask Slurm for machines, the rest of the script runs on the first, and `srun` goes to all.
# - Measure every link before you train. One slow link holds all ranks up.
# - Between machines count what crosses. In three steps each node sends the message across once.
# - When a machine dies, the ranks of the others fail too; an elastic `torchrun` starts them as a smaller world, and the script goes on from the last checkpoint.
#
# **Words learned**: [node](GLOSSARY.md#node), [Slurm](GLOSSARY.md#slurm), [elastic launch](GLOSSARY.md#elastic-launch).
#
# **Further reading**
#
# - torchrun, its rendezvous and elastic launches: [the documentation of torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html)
# - [sbatch](https://slurm.schedmd.com/sbatch.html) and [srun](https://slurm.schedmd.com/srun.html); to write jobs in Python, [submitit](https://github.com/facebookincubator/submitit)
# - DeepSpeed's hostfile: [Getting started](https://www.deepspeed.ai/getting-started/)
#
# **Next:** [which layout](18_which_layout.ipynb) for a model and a cluster of your own.

# %% [markdown] sections="S13"
# ## Errata of the textbook
#
# (A box called *erratum* corrects a textbook that many readers have read. If you haven't, skip it.)
#
# <details><summary>Erratum S13: "sbatch --nodes=4 --gpus=8 --ntasks=32", and "torchrun --use_fsdp"</summary>
#
# The collection of commands asks Slurm for four machines with `--gpus=8` and 32 tasks. `--gpus` counts the GPUs of the whole job, so 32 tasks would share eight; right is `--gpus-per-node=8`. And a task that is a `torchrun` starts all ranks of its machine, so there is one per machine, `--ntasks-per-node=1` (32 of them would start 256 ranks). `torchrun` has no flag `--use_fsdp`. Run it: `!torchrun --use_fsdp train.py` says "unrecognized arguments". FSDP stands in the script; the flag is one of `accelerate launch`.
#
# </details>

# %%
check.status()
