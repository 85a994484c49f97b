# ---
# jupyter:
#   labkit:
#     sections: ["8.3.2", "8.9.1", "19.1.1", "19.1.2", "19.8.1", "S11"]
#     needs: ["two CPU cores"]
#     minutes: 75
# ---

# %% [markdown]
# # Collectives
#
# *Sections 8.3.2, 8.9.1, 19.1.1, 19.1.2, 19.8.1 and S11 of the source material. About 75 minutes. No GPU is needed.*
#
# Ranks that train one model exchange gradients, weights and activations all the time. A **collective** is such an exchange in which all of them take part: everybody gets the sum, everybody gets a part, one sends to all.
#
# You will run every collective on real processes and count its bytes, write the ring all-reduce by hand, let it race against a parameter server and against trees, and fit a cost model of two numbers that then predicts times it has not seen.

# %%
import labkit as lab

lab.begin("en")
from labkit.collectives import calibrate_run as calibrate, network, network_picture
from labkit.collectives import published, topology_picture
from labkit.pictures import curves as pictures_curves, scene
from labkit import collectives, widgets
from labkit.machine import hardware
from labkit.pictures.curves import Series
from labkit.collectives import check
from labkit.collectives.algorithms import ALGORITHMS, lower_bound_bytes, plan
from labkit.collectives.plans import sent_bytes
from labkit.words import TITLES
from labkit.collectives.network import (
    Link,
    crossover_bytes,
    formula_us,
    time_us,
    uniform,
)
from labkit.words import WORDS, called
from labkit.units import format_bytes, format_us


def curves(series, title, badge, **options):
    widgets.show(
        pictures_curves.curves(
            series, title=title, badge=badge, log_x=True, log_y=True, **options
        )
    )


# %% [markdown] sections="19.1.1"
# ## What messages travel on
#
# A collective is as fast as the slowest link it crosses. So NCCL begins by asking the system what is connected with what: GPUs and their NVLinks, PCIe, the NUMA nodes of the CPUs, network cards. This is the machine you are on, asked the same way; without GPUs the ranks are processes on its cores, and messages go through its memory.

# %%
widgets.show(topology_picture.topology(hardware.topology()))

# %% [markdown]
# Section 19.1.1 draws a DGX A100: four GPUs under one NVSwitch, four under another, "NVLink 600 GB/s" and "PCIe Gen4 64 GB/s". Some arithmetic with the data sheets' numbers: 12 NVLinks per GPU of 25 GB/s in each direction; 16 PCIe lanes of 16 GT/s, 128 bits of every 130 being data; 36 ports on an NVSwitch of that generation.

# %%
pcie_gb_per_s = 16 * 16e9 * 128 / 130 / 8 / 1e9
for name, one_way in (("PCIe 4 x16", pcie_gb_per_s), ("12 NVLinks", 12 * 25)):
    print(
        f"{name}: {one_way:5.1f} GB/s in each direction, {2 * one_way:5.1f} in both together"
    )
print(
    f"8 GPUs have {8 * 12} NVLinks; 2 switches have {2 * 36} ports, 6 switches {6 * 36}"
)
print(
    f"NVLink over PCIe: {12 * 25 / pcie_gb_per_s:.1f} times; 300 over 64 would be {300 / 64:.1f} times"
)

# %% [markdown]
# - 600 and 64 count both directions. A message travels in one: 300 and 32. Section 19.1.3 sets 300 (one direction) beside 64 (both) and so makes PCIe look twice as good as it is.
# - Two switches do not have the ports. A DGX A100 has six, and each GPU has two links to each of them (NVIDIA's white paper of that machine). So there are no two groups: every pair of GPUs is equally near, and `nvidia-smi topo -m` prints `NV12` in every cell.

# %% [markdown] sections="8.9.1, S11"
# ## The collectives, one by one
#
# Four processes. To see where every number comes from, rank r brings 1, 2, 3, 4 times $10^r$. So rank 2 brings `0100 0200 0300 0400`: the **digit** says which of its four numbers it is, its **place** says from whom it comes.


# %%
def primitives():
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(1, size + 1) * 10**rank
    copied, reduced, summed, gathered, exchanged = (mine.clone() for _ in range(5))
    part = torch.empty_like(mine[:1])
    dist.broadcast(copied, src=0)
    dist.reduce(reduced, dst=0)
    dist.all_reduce(summed)
    dist.all_gather_single(gathered, mine[rank : rank + 1])
    dist.reduce_scatter_single(part, mine)
    dist.all_to_all_single(exchanged, mine)
    results = {
        "(before)": mine,
        "broadcast": copied,
        "reduce": reduced,
        "all_reduce": summed,
        "all_gather": gathered,
        "reduce_scatter": part,
        "all_to_all": exchanged,
    }
    return {name: tensor.tolist() for name, tensor in results.items()}


# %%
run = lab.launch(primitives, ranks=4, timeout_s=30)
print(" " * 16, *(f"rank {rank}".center(19) for rank in range(4)), sep=" | ")
for name in run[0]:
    cells = (" ".join(f"{number:04}" for number in result[name]) for result in run)
    print(f"{name:<16}", *(cell.center(19) for cell in cells), sep=" | ")

# %% [markdown]
# - **Broadcast**: all have what rank 0 brought. For weights at the start.
# - **Reduce**: rank 0 has the sum. On the others stands whatever the library left there; only the root's result is defined.
# - **All-reduce**: all have the sum. For gradients under DDP.
# - **All-gather**: each brought one number (its r-th), all have all four. For the weights of FSDP.
# - **Reduce-scatter**: the sum, but rank r gets only its r-th number. For the gradients of FSDP. An all-gather of these would complete an all-reduce; remember that.
# - **All-to-all**: rank r gets everyone's r-th number: a transposed table. For mixtures of experts.
#
# `dist.all_gather` and `dist.reduce_scatter`, which the sources use, do the same with lists of tensors instead of one large one. The names that end in `_single` are those of torch 2.13; older versions say `all_gather_into_tensor` and `reduce_scatter_tensor`.

# %% [markdown] sections="8.9.1"
# ### How many bytes
#
# **Predict.** Four ranks all-reduce a buffer of 4 MB. How many megabytes must the busiest rank send at the least?

# %%
my_megabytes = lab.guess(
    {
        "en": "megabytes that the busiest rank must send",
        "zh": "最忙的 rank 至少要发多少 MB",
    },
    unit="mb",
)

# %% [markdown]
# **Run.** Two counts. The *payload* is what a rank hands to the collective, exactly. The *wire* is what really left its process, as the system counts it on its sockets, headers included. S is always the whole buffer: the gathered result of an all-gather, what goes into a reduce-scatter.


# %%
def traffic_of_each(num_bytes):
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic

    rank, whole = dist.get_rank(), torch.rand(num_bytes // 4)
    part, other = (
        whole.chunk(dist.get_world_size())[rank].clone(),
        torch.empty_like(whole),
    )
    calls = {
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_single(other, part),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, other),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }
    counts = {}
    for name, call in calls.items():
        with traffic.count() as counted:
            call()
        counts[name] = counted.payload_bytes[name], counted.sent_bytes
    return counts


# %%
run = lab.launch(traffic_of_each, 4_000_000, ranks=4, timeout_s=30)
print(
    f"{'4 ranks, S = 4 MB':<18} payload, rank 0   wire, each rank (MB)     least possible"
)
for name in run[0]:
    wire = " ".join(
        "   -" if sent is None else f"{sent / 1e6:4.2f}"
        for _, sent in (counts[name] for counts in run)
    )
    print(
        f"{name:<18} {run[0][name][0] / 1e6:8.2f} MB        {wire}"
        f" {lower_bound_bytes(name, 4, 4e6) / 1e6:12.2f} MB"
    )
my_megabytes.score(lower_bound_bytes("all_reduce", 4, 4e6) / 1e6)

# %% [markdown] sections="8.9.1"
# Where only the ranks add, no algorithm can beat the last column, see [below](#Why-the-ring-is-optimal): its busiest rank sends or receives at least that. Gloo's all-reduce, all-gather and all-to-all reach it. Its broadcast is a tree: the root sends the whole buffer twice. And its **reduce-scatter** sends twice as much as it must: torch's gloo backend has none of its own, runs an all-reduce, and keeps a quarter of the result. Payload and wire are two questions; say which one you answer.
#
# Section 8.9.1 puts "O(N)" beside most collectives, "O(2N)" beside all-reduce and "O(N×P)" beside all-gather. It is not said whether that is per rank or in all, nor whether N is the buffer before or after. With S as above, per rank, nothing grows without bound:

# %%
print(
    f"{'at least, in units of S':<26}",
    *(f"N = {size:<5}" for size in (2, 4, 8, 64, 1024)),
)
for name in ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"):
    print(
        f"{TITLES[name]:<26}",
        *(
            f"{lower_bound_bytes(name, size, 1.0):<9.4f}"
            for size in (2, 4, 8, 64, 1024)
        ),
    )

# %% [markdown] sections="S11"
# ### send and recv
#
# All of these are made of messages between two ranks. S11 shows one: rank 0 calls `send(tensor, dst=1)`, everyone `else` calls `recv(tensor, src=0)`. **Predict**: with three ranks, which of them return?

# %%
my_ranks_that_return = None


# %%
def textbook_s11(fixed):
    import torch
    import torch.distributed as dist

    tensor = torch.full((2,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        dist.send(tensor, dst=1)
    elif dist.get_rank() == 1 or not fixed:
        dist.recv(tensor, src=0)
    return tensor.tolist()


# %%
try:
    lab.launch(textbook_s11, False, ranks=3, timeout_s=20, hang_s=1.5)
except lab.Timeout as verdict:
    print(verdict)
fixed = lab.launch(textbook_s11, True, ranks=3, timeout_s=20)
print(f"{my_ranks_that_return = }; fixed:", *fixed)

# %% [markdown] sections="8.9.1"
# The example works with two ranks only. A third one waits for a message that nobody sends. Every `recv` needs its own `send`: say `elif rank == 1`.
#
# ### Every collective, step by step
#
# Choose a collective and an algorithm, and step through it. A colour is a chunk; the fuller its box, the more ranks' contributions it holds. The button does the same on real ranks.

# %%
widgets.collectives()

# %% [markdown] sections="8.3.2"
# ## Ring all-reduce by hand
#
# Section 8.3.2 gives pseudocode: in each of N - 1 steps a rank sends `gradients[chunk_size * rank : ...]` to the right and adds what arrives from the left to `gradients[...]`. Taken at its word, and with the second reading, that `...` means the left neighbour's chunk:


# %%
def textbook_ring(to_the_letter):
    import torch
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    gradients = torch.arange(1, world_size + 1) * 10**rank  # one number per chunk
    for step in range(world_size - 1):
        send_chunk, recv_chunk = (
            gradients[rank : rank + 1].clone(),
            torch.empty(1, dtype=torch.long),
        )
        sending = dist.isend(send_chunk, right)
        dist.recv(recv_chunk, left)
        sending.wait()
        if to_the_letter:
            gradients += recv_chunk
        else:
            gradients[left] += recv_chunk[0]
    return gradients.tolist()


# %%
for to_the_letter in (True, False):
    run = lab.launch(textbook_ring, to_the_letter, ranks=4, timeout_s=30)
    print(*(" ".join(f"{number:05}" for number in result) for result in run), sep="   ")

# %% [markdown]
# Right would be one finished sum on each rank after these steps: a `1111`, a `2222`, a `3333`, a `4444`. To the letter, one chunk is added to all of them. In the second reading rank 1 has `00013` in its first place: its own 1 and rank 0's, three times; of ranks 2 and 3 nothing has arrived. A rank that sends the *same* chunk each time never passes on what it has received, and nothing gets further than one neighbour.
#
# In step s send chunk $(r - s) \bmod N$: the one you added to last. Add what arrives to chunk $(r - s - 1) \bmod N$. After N - 1 steps every rank holds one finished sum (a reduce-scatter); N - 1 more steps hand the sums round (an all-gather, which the pseudocode leaves as `pass`).


# %%
def ring(tensor):  # its length divides by the number of ranks
    import torch
    import torch.distributed as dist

    rank, size, history = dist.get_rank(), dist.get_world_size(), []
    chunks = tensor.chunk(size)  # views: adding to a chunk changes the tensor
    for step in range(2 * (size - 1)):
        outgoing, place = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        incoming = torch.empty_like(place)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        place.copy_(place + incoming if step < size - 1 else incoming)
        history.append(tensor.tolist() if len(tensor) == size else None)
    return history


# %%
def small_ring():
    import torch
    import torch.distributed as dist

    return ring(torch.arange(1, dist.get_world_size() + 1) * 10 ** dist.get_rank())


run = lab.launch(small_ring, ranks=4, timeout_s=30)
for step in range(6):
    print(
        f"step {step}  ",
        *(" ".join(f"{number:04}" for number in history[step]) for history in run),
        sep=" | ",
    )

# %% [markdown]
# Follow chunk 0 (the first number of each rank): the 1 of rank 0 goes to rank 1, `0011` to rank 2, `0111` to rank 3, where `1111` is complete after three steps. Three more, and all have it. At every moment every rank sends and receives one quarter of the buffer: no link is ever idle, none carries more than another.
#
# Is it the library's result, and how many bytes did each rank send? A buffer of 4 MB:


# %%
def ring_and_library(num_bytes):
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic

    tensor = torch.rand(num_bytes // 4)
    right = tensor.clone()
    dist.all_reduce(right)
    with traffic.count() as counted:
        ring(tensor)
    return (tensor - right).abs().max().item(), counted.payload_bytes["send"]


# %%
for size in (2, 4):
    run = lab.launch(ring_and_library, 4_000_000, ranks=size, timeout_s=30)
    print(
        f"N = {size}: largest difference {max(error for error, _ in run):.1e}; each rank sent",
        *(sent for _, sent in run),
        f"bytes; 2(N-1)/N * S = {2 * (size - 1) / size * 4_000_000:.0f}",
    )

# %% [markdown] sections="19.8.1"
# ### Why the ring is optimal
#
# Exercise 19.8.1 asks for the reason, and answers that each GPU has to send and receive at least M, the buffer, and that a ring comes near 2M, "reaching the optimum". Both can't be: what reaches a bound is equal to it.
#
# Let only the ranks add (a switch that adds, below, is another case). Take one number of the buffer, and the rank on which its sum is complete first. Before that, each of the N-1 other ranks has sent something that carries its contribution. After that, each of them still has to receive. No message does both: it would have completed another rank before the first. So every number travels $2(N-1)$ times at least, all M bytes together $2(N-1)M$. There are N ranks to share this; the busiest sends $2\frac{N-1}{N}M$ or more (Patarasuk and Yuan 2009), and in the ring **every** rank sends exactly that. For two ranks it is M; for many it approaches 2M. You will write such bounds as exercise 2.

# %% [markdown] sections="8.3.2"
# ## Parameter server, ring, tree: the race
#
# The same all-reduce can be done in other ways. **Parameter server**: all send their buffer to rank 0, which adds and sends the sum back. **Tree**: neighbours add in pairs, then the ranks that hold those sums, and so on up; then down again. A **double binary tree** runs two trees at once, half of the buffer on each; a rank that adds in one is a leaf in the other. **Hierarchical**: a reduce-scatter inside a group, an all-reduce between the groups, an all-gather inside.
#
# Section 8.3.2 compares volume and latency: parameter server "O(2N × P)" and high, ring "O(2N)" and **low**, hence "large-scale training".
#
# **Predict.** Four ranks, a buffer of 1.6 MB. How many megabytes does rank 0 send as a parameter server? And which way is the fastest for a buffer of only 4 kB?

# %%
my_megabytes, my_fastest = None, None

# %% [markdown]
# **Paced links.** On one machine all messages go through the same memory; there is no slow link to be seen. So here every real message takes the time that its link states, $T(n) = \alpha + n / B$: 10 ms for any message, and 10 ms more for every megabyte. The ranks sleep until it is over. Processes, messages and their order are real; the speed of the link is stated, and every picture says so.
#
# **Simulate, run.** The same plan, the same link: once on paper, once on four processes.

# %%
SLOW = Link(alpha_us=10_000, bandwidth_gb_per_s=0.1)


def race(algorithm, num_bytes, links, **options):
    """A run of an all-reduce, its predicted and its measured time, both in milliseconds; the better of two runs."""
    steps = plan("all_reduce", algorithm, links.num_ranks, **options)
    run = collectives.launch(steps, num_bytes, network=links, num_runs=2, timeout_s=40)
    measured_s = min(max(both) for both in zip(*(rank["seconds"] for rank in run)))
    return run, time_us(steps, links, num_bytes) / 1e3, 1e3 * measured_s


# %%
runs = {}
print(f"{my_megabytes = }, {my_fastest = }\n")
print(
    f"{'4 ranks':<20} sent, 1.6 MB: busiest   all     ms: predicted measured    4 kB: predicted measured"
)
for name in ALGORITHMS["all_reduce"]:
    whole = (
        {"num_segments": 1} if "tree" in name else {}
    )  # a tree sends its buffer, or half, in one piece
    runs[name], predicted, measured = race(name, 1_600_000, uniform(4, SLOW), **whole)
    _, predicted_small, measured_small = race(name, 4_000, uniform(4, SLOW), **whole)
    sent = [rank["sent_bytes"] / 1e6 for rank in runs[name]]
    print(
        f"{TITLES[name]:<20} {max(sent):15.2f} MB {sum(sent):5.2f} MB {predicted:14.0f} {measured:8.0f}"
        f" {predicted_small:16.0f} {measured_small:8.0f}"
    )
print(
    f"least for the busiest {lower_bound_bytes('all_reduce', 4, 1.6):14.2f} MB; largest error",
    f"{max(rank['max_error'] for run in runs.values() for rank in run):.0e}",
)

# %% [markdown]
# The volume of **all** ranks together is the same everywhere, 2(N-1) S. What differs is who carries it. Behind a parameter server it is rank 0: it sends the buffer N - 1 times, and the others stand in line at its door. In the ring all carry the same, exactly the bound.
#
# Small messages are another story. The ring needs as long as the parameter server, 2(N-1) messages one after another; the tree is faster. (Two groups of two, the hierarchical way, have the best of both here: four steps, and small messages.) The parameter server and the ring, predicted above, measured below:


# %%
def titled(name, *more):
    """What an algorithm is called in each language, and more."""
    return {language: called([name], language, *more) for language in WORDS}


for name in ("parameter_server", "ring"):
    predicted, title = (
        network.simulate(plan("all_reduce", name, 4), uniform(4, SLOW), 1_600_000),
        titled(name, "1.6 MB"),
    )
    widgets.show(scene.compare(predicted, runs[name].timeline(), title=title))

# %% [markdown] sections="8.3.2, 19.1.2"
# ### Is the ring's latency low?
#
# A ring has 2(N-1) steps, and a step takes alpha at least, however little there is to send. A tree has $2\lceil\log_2 N\rceil$. Lines are predicted for 4 kB on the slow links, dots measured on real ranks:

# %%
counts, few = [2, 4, 8, 16, 32, 64], [2, 4, 8]
lines = {
    name: [formula_us("all_reduce", name, n, 4_000, SLOW) / 1e3 for n in counts]
    for name in ("ring", "tree")
}
lines["double_tree"] = [
    time_us(
        plan("all_reduce", "double_tree", n, num_segments=1), uniform(n, SLOW), 4_000
    )
    / 1e3
    for n in counts
]
dots = {
    name: [race(name, 4_000, uniform(n, SLOW))[2] for n in few]
    for name in ("ring", "tree")
}
curves(
    [Series(titled(name), counts, times) for name, times in lines.items()]
    + [Series(titled(name), few, times, points=True) for name, times in dots.items()],
    {"en": "All-reduce of 4 kB", "zh": "4 kB 的 all-reduce"},
    "measured, paced links / simulated",
    x_name="N",
    y_name="ms",
)
print(
    *(
        f"{TITLES[name]}: {times[-1] / times[0]:.0f} times as long on 64 ranks as on 2"
        for name, times in lines.items()
    ),
    sep="\n",
)

# %% [markdown]
# The ring's latency grows with N, the trees' with its logarithm. "Low latency, hence large scale" is the wrong way round: what is optimal about a ring is its **bandwidth**, and the price is 2(N-1) alpha. That is why NCCL got trees, in version 2.4, for large clusters.

# %% [markdown] sections="19.1.2"
# ## Where ring and tree cross
#
# Small buffers want few steps, large ones want small messages. Somewhere in between the two cross. With $T(n) = \alpha + n/B$ the ring takes $2(N-1)(\alpha + \frac{S}{NB})$, the tree $2\lceil\log_2 N\rceil(\alpha + \frac{S}{B})$. Where are they equal on four ranks and our slow links? Predicted as lines, measured as dots:

# %%
sizes, tried = [10**5 * 2**k for k in range(7)], [200_000, 800_000, 3_200_000]
lines = {
    name: [formula_us("all_reduce", name, 4, size, SLOW) / 1e3 for size in sizes]
    for name in ("ring", "tree")
}
dots = {
    name: [race(name, size, uniform(4, SLOW))[2] for size in tried] for name in lines
}
curves(
    [Series(titled(name), sizes, times) for name, times in lines.items()]
    + [Series(titled(name), tried, times, points=True) for name, times in dots.items()],
    {"en": "All-reduce on 4 ranks", "zh": "4 个 rank 的 all-reduce"},
    "measured, paced links / simulated",
    x_name="S",
    y_name="ms",
    x_format=format_bytes,
)

# %%
ring_fit, tree_fit = (
    network.fit("all_reduce", 4, tried, [1e3 * ms for ms in dots[name]])
    for name in ("ring", "tree")
)
crossing = (ring_fit.alpha_us - tree_fit.alpha_us) / (
    1 / tree_fit.bandwidth_gb_per_s - 1 / ring_fit.bandwidth_gb_per_s
)
print(
    f"they cross at {format_bytes(crossover_bytes(4, SLOW))} by formula, "
    f"at {format_bytes(crossing * 1e3)} where lines through the measured dots do"
)

# %% [markdown]
# So "usually trees below 256 kB, rings above" (section 19.1.2) can be no constant. The crossing is proportional to $\alpha B$ and grows with N. For three kinds of links, with alphas and bandwidths of the usual order of magnitude:

# %%
links = {
    "NVLink: 2 us, 300 GB/s": (2, 300),
    "InfiniBand: 5 us, 25 GB/s": (5, 25),
    "10G Ethernet: 50 us, 1.25 GB/s": (50, 1.25),
}
print(f"{'ring beats tree from':<32}", *(f"N = {n:<6}" for n in (2, 4, 8, 64, 512)))
for name, (alpha_us, bandwidth) in links.items():
    link = Link(alpha_us=alpha_us, bandwidth_gb_per_s=bandwidth)
    print(
        f"{name:<32}",
        *(f"{format_bytes(crossover_bytes(n, link)):<10}" for n in (2, 4, 8, 64, 512)),
    )

# %% [markdown]
# From nothing to tens of megabytes. What NCCL does, by the word of its developers: for every size it estimates the time of each algorithm in each of its protocols on the topology that it found, and takes the least ([NCCL issue 457](https://github.com/NVIDIA/nccl/issues/457)); with growing size that may change from tree to ring and back several times ([issue 754](https://github.com/NVIDIA/nccl/issues/754)). A threshold that one could set, `NCCL_TREE_THRESHOLD`, existed in version 2.4 and was removed in 2.5; in 2.4 trees were used between nodes only ([issue 211](https://github.com/NVIDIA/nccl/issues/211)). On a machine with NVSwitches of the third generation and later, a further algorithm (NVLS) lets the switch add: a rank then sends its buffer once and receives the sum once, S instead of $2\frac{N-1}{N}S$, and the bound above does not hold. What is chosen on your cluster, `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=TUNING` tells.
#
# The same choice by our model, between ring, tree and a double tree that cuts its halves into as many pieces as is best. 64 ranks on InfiniBand:

# %%
infiniband, sizes = (
    Link(alpha_us=5, bandwidth_gb_per_s=25),
    [8.0**k * 1000 for k in range(7)],
)
lines = {
    name: [formula_us("all_reduce", name, 64, size, infiniband) for size in sizes]
    for name in ("ring", "tree")
}
pieces = [
    plan("all_reduce", "double_tree", 64, num_segments=num_pieces)
    for num_pieces in (1, 4, 16)
]
lines["double_tree"] = [
    min(time_us(each, uniform(64, infiniband), size) for each in pieces)
    for size in sizes
]
curves(
    [Series(titled(name), sizes, times) for name, times in lines.items()],
    {
        "en": "All-reduce on 64 ranks, InfiniBand",
        "zh": "64 个 rank 的 all-reduce，InfiniBand",
    },
    "simulated",
    x_name="S",
    y_name="T",
    x_format=format_bytes,
    y_format=format_us,
)
for size, *times in zip(sizes, *lines.values()):
    print(f"{format_bytes(size):>8}: {TITLES[list(lines)[times.index(min(times))]]}")

# %% [markdown]
# At these sizes the double tree never takes twice as long as the better of the two: it has far fewer steps than a ring when the buffer is small, and both ports of almost every rank are busy when it is large. In the middle it wins.

# %% [markdown] sections="19.1.1"
# ## Topology: fast inside, slow between
#
# So far all links were alike. In a cluster they are not. Two islands of two ranks, links of 1 ms and 1 GB/s inside; what goes from one island to the other shares one slow wire:

# %%
islands = network.islands(
    4, 2, inside=Link(alpha_us=1_000, bandwidth_gb_per_s=1), between=SLOW, shared=True
)
widgets.show(network_picture.network(islands))

# %%
print(f"{'4 MB':<20} crosses between islands   ms: predicted measured")
for name in ("parameter_server", "ring", "tree", "hierarchical"):
    run, predicted, measured = race(name, 4_000_000, islands)
    steps = plan("all_reduce", name, 4)
    crossing = [
        len(move.chunks)
        for step in steps.steps
        for move in step
        if move.src // 2 != move.dst // 2
    ]
    print(
        f"{TITLES[name]:<20} {sum(crossing) * 4 / steps.num_chunks:8.0f} MB in {len(crossing):2} messages"
        f" {predicted:14.0f} {measured:8.0f}"
    )

# %% [markdown]
# Even in the best order, which this is, a ring crosses in every step. The hierarchical way first adds inside the islands: as little crosses as in a tree, and both ways at once. That is what "topology-aware" buys: the same library call, another plan. (A ring whose neighbours sit on different islands crosses more often; chapter 11 tries it.)

# %% [markdown] sections="8.9.1"
# ## A cost model for this machine
#
# Now without stated links: how long does the library's all-reduce take on *this* machine? `calibrate.sweep` calls it on real ranks, 1 kB to 9 MB, and takes the median over three launches: alpha differs from launch to launch.
#
# **Fit.** A whole collective as one line, $T(S) = \alpha + S/B$, through every fourth size. **Predict** the sizes that the fit has not seen. **Compare**: dots on the line?


# %%
def judge(name, num_ranks, sizes, times_us):
    """Fits every fourth size, prints the errors on the other sizes, gives the line and the dots."""
    fitted = network.fit("all_reduce", num_ranks, sizes[3::4], times_us[3::4])
    errors = sorted(
        abs(fitted.us(size) / time - 1)
        for k, (size, time) in enumerate(zip(sizes, times_us))
        if k % 4 != 3
    )
    print(
        f"{name}: alpha {format_us(fitted.alpha_us)}, B {fitted.bandwidth_gb_per_s:.3g} GB/s; off on {len(errors)} unseen "
        f"sizes by {errors[len(errors) // 2]:.0%} in the median, {errors[len(errors) * 9 // 10]:.0%} at the 90th percentile"
    )
    return [
        Series(name, sizes, [fitted.us(size) for size in sizes]),
        Series(name, sizes, times_us, points=True),
    ]


# %%
points = calibrate.sweep("all_reduce", ranks=(2, 4), num_launches=3)
series = []
for num_ranks in (2, 4):
    mine = [point for point in points if point.num_ranks == num_ranks]
    series += judge(
        f"N = {num_ranks}, {', '.join(mine[0].notes)}",
        num_ranks,
        [p.num_bytes for p in mine],
        [p.time_us for p in mine],
    )
curves(
    series,
    "All-reduce: T = alpha + S / B",
    "measured",
    x_name="S",
    y_name="T",
    x_format=format_bytes,
    y_format=format_us,
)

# %% [markdown]
# Two numbers give the times over almost the whole range, to the errors printed. They hold for this machine and for **one** number of ranks: where ranks outnumber the cores they take turns, and alpha grows faster than the ring's 2(N-1) steps.
#
# `calibrate.links()` keeps such fits in your cache folder, with the date and the machine; it measures only what is not there. So a kept line comes from other launches, perhaps of another day. How well does it predict the dots above?

# %%
for num_ranks, cost in calibrate.links((2, 4)).items():
    dots = [point for point in points if point.num_ranks == num_ranks]
    errors = sorted(
        abs(cost.us(dot.num_bytes) / dot.time_us - 1)
        for k, dot in enumerate(dots)
        if k % 4 != 3
    )
    print(
        f"N = {num_ranks}, kept: alpha {format_us(cost.alpha_us)}, B {cost.bandwidth_gb_per_s:.3g} GB/s; off on the "
        f"{len(errors)} dots it has not seen by {errors[len(errors) // 2]:.0%} in the median"
    )

# %% [markdown]
# Where it is far off, the machine was busy then, or is now; `fresh=True` measures again.
#
# ### algbw and busbw
#
# Size over time is called *algbw*. It falls with N even on perfect links, since every rank has to send $2\frac{N-1}{N}S$. Multiplied by that factor it becomes *busbw*: what a link really carried, to be compared with its data sheet. nccl-tests prints both. Here is such a table for eight A100, recorded by others (Stas Bekman, *Machine Learning Engineering*; `data/published/nccl_busbw.csv`): buffers of 32 KiB, 64 KiB, ... 16 GiB.

# %%
a100_sizes, a100_us = published.all_reduce_times("8xA100 NVLink3")
print("     size       time     algbw     busbw (GB/s)")
for size, time in list(zip(a100_sizes, a100_us))[::6]:
    print(
        f"{format_bytes(size):>9} {format_us(time):>10} {network.algbw(size, time):9.1f}"
        f" {network.busbw('all_reduce', 8, size, time):9.1f}"
    )
series = judge("8 x A100", 8, a100_sizes, a100_us)
curves(
    series,
    "All-reduce: T = alpha + S / B",
    "recorded",
    x_name="S",
    y_name="T",
    x_format=format_bytes,
    y_format=format_us,
)

# %% [markdown]
# The busbw of large buffers is to be compared with the 300 GB/s per direction of the beginning, not with 600. And the dots leave the line in places: NCCL changes algorithm and protocol on the way (look at 1 to 4 MB, where four times the bytes cost nothing), and one line is the model of **one** algorithm.

# %% [markdown]
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. Ring all-reduce for any length
#
# The ring above needs a length that divides by the number of ranks; gradients seldom have one. Leave the sum over all ranks in `tensor`, a 1-D tensor of any length, with `send`, `recv`, `isend` or `irecv` of `torch.distributed`. It runs on real ranks. Budget: 2(N-1) steps (messages count in the order in which you post them), and no more bytes than a ring of chunks that are as equal as possible.


# %%
def my_ring(rank, num_ranks, tensor):
    """Leaves in tensor the sum over all ranks."""
    ### BEGIN SOLUTION
    import torch
    import torch.distributed as dist

    chunks = tensor.tensor_split(num_ranks)  # lengths differ by one at most
    for step in range(2 * (num_ranks - 1)):
        outgoing, place = (
            chunks[(rank - step) % num_ranks],
            chunks[(rank - step - 1) % num_ranks],
        )
        incoming = torch.empty_like(place)
        sending = dist.isend(outgoing, (rank + 1) % num_ranks)
        dist.recv(incoming, (rank - 1) % num_ranks)
        sending.wait()
        if step < num_ranks - 1:
            place += incoming
        else:
            place.copy_(incoming)
    ### END SOLUTION


# %%
check.ring_all_reduce(my_ring)

# %%
check.hint("ring_all_reduce")

# %% [markdown] sections="19.8.1"
# ### 2. The least that must be sent
#
# For `"all_reduce"`, `"reduce_scatter"`, `"all_gather"` and `"broadcast"`: how many bytes does the busiest rank have to send or receive at the least, whatever the algorithm, if only the ranks add? `num_bytes` is the whole buffer: the gathered result, what goes into a reduce-scatter. (This is exercise 19.8.1, as a function.)


# %%
def my_least_bytes(primitive, num_ranks, num_bytes):
    """Bytes that the busiest rank has to send or receive at the least."""
    ### BEGIN SOLUTION
    if num_ranks == 1:
        return 0
    if primitive == "broadcast":
        return num_bytes
    share = (num_ranks - 1) / num_ranks * num_bytes
    return 2 * share if primitive == "all_reduce" else share
    ### END SOLUTION


# %%
check.least_bytes(my_least_bytes)

# %%
check.hint("least_bytes")

# %% [markdown]
# ### 3. Broadcast in few steps
#
# Copy the tensor of rank `root` to all ranks with `send` and `recv`. Budget: $\lceil\log_2 N\rceil$ steps, in which a rank sends one message at most; every rank receives once.


# %%
def my_broadcast(rank, num_ranks, tensor, root):
    """Leaves in tensor what the root has in its own."""
    ### BEGIN SOLUTION
    import torch.distributed as dist

    place, reach = (rank - root) % num_ranks, 1
    while reach < num_ranks:
        if place < reach and place + reach < num_ranks:
            dist.send(tensor, (place + reach + root) % num_ranks)
        elif reach <= place < 2 * reach:
            dist.recv(tensor, (place - reach + root) % num_ranks)
        reach *= 2
    ### END SOLUTION


# %%
check.tree_broadcast(my_broadcast)

# %%
check.hint("tree_broadcast")

# %% [markdown]
# ### 4. Choose the algorithm
#
# Return `"ring"` or `"tree"`, whichever all-reduces `num_bytes` sooner on links that take `alpha_us` microseconds and `bandwidth_gb_per_s` GB/s (1 GB/s is 1000 bytes per microsecond). The tree sends the whole buffer along each edge. A threshold of 256 kB is over budget.


# %%
def my_algorithm(num_ranks, num_bytes, alpha_us, bandwidth_gb_per_s):
    """The faster of "ring" and "tree"."""
    ### BEGIN SOLUTION
    from math import ceil, log2

    bytes_per_us = bandwidth_gb_per_s * 1000
    ring_us = 2 * (num_ranks - 1) * (alpha_us + num_bytes / num_ranks / bytes_per_us)
    tree_us = 2 * ceil(log2(num_ranks)) * (alpha_us + num_bytes / bytes_per_us)
    return "ring" if ring_us <= tree_us else "tree"
    ### END SOLUTION


# %%
check.choose_algorithm(my_algorithm)

# %%
check.hint("choose_algorithm")

# %% [markdown]
# ## Summary
#
# - An all-reduce is a reduce-scatter and an all-gather. Where only ranks add, the busiest sends $2\frac{N-1}{N}S$ at least, each half $\frac{N-1}{N}S$; a broadcast needs S.
# - The ring meets that bound and pays 2(N-1) alpha for it. A tree takes $2\lceil\log_2 N\rceil$ alpha, a parameter server leaves all work to one rank.
# - Where they cross depends on alpha, bandwidth and N. No constant is right.
# - Payload is what was asked for, wire bytes are what went out; gloo's reduce-scatter shows the difference.
# - Two numbers per machine and rank count predict a collective. busbw is what to compare with a link.
#
# ## Sources
#
# - Ring and its bound: Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
# - Trees and costs: Thakur, Rabenseifner and Gropp 2005, *Optimization of collective communication operations in MPICH*
# - Two trees: Sanders, Speck and Träff 2009, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*
# - algbw and busbw: nccl-tests, [PERFORMANCE.md](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)
# - The table of eight A100: Bekman, [Machine Learning Engineering](https://github.com/stas00/ml-engineering)
#
# Where you stand:

# %%
check.status()
