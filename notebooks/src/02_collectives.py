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
# *An hour and a quarter with three exercises; an hour more for the optional end. You need chapter 00, but no GPU.*
#
# Eight machines with one card each train our 7 B model, each on its own data. After every backward each card has 14 GB of gradients (in bf16, two bytes each), and all need the sum. The first idea is that card 0 collects everything, adds it up and sends it back. Over a network of 25 GB/s that takes almost **eight seconds**, in every training step. There is a much faster way, in fifteen lines of code.
#
# An exchange in which all [ranks](GLOSSARY.md#rank) take part is a [collective](GLOSSARY.md#collective). Here are the six that this course uses, before and after:

# %%
import labkit as lab
import torch
import torch.distributed as dist
from labkit import collectives
from labkit.collectives import check
from labkit.measure import traffic

lab.begin("en")
collectives.Six(ranks=4)

# %% [markdown]
# Each column is a rank, and each box is a quarter of its buffer. The number says which quarter it is, and the colour whose. Stripes are the sum of all four, and their row says of which quarter. What does rank 3, the last column, know at the end of each?
#
# **When you are done** you can
#
# - say what each of the six does;
# - write an all-reduce from `send` and `recv`, and say what any all-reduce must send at least, and under which assumptions;
# - estimate how long an all-reduce takes, and choose between a ring and a tree.

# %% [markdown] sections="8.9.1"
# ## The six, on real ranks
#
# On four real processes, let rank r bring 1, 2, 3 and 4 times $10^r$. Rank 2 brings `[100, 200, 300, 400]`: the *digit* says which of its four numbers it is, the *place* from which rank it comes.
#
# **Guess** before you read the code. In an all-to-all nobody adds. What does rank 2 end up with?

# %%
exchanged = lab.guess(
    "Rank 2 after the all-to-all",
    choices=["[100, 200, 300, 400]", "[1, 20, 300, 4000]", "[3, 30, 300, 3000]"],
)


# %%
def six():
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(1, size + 1) * 10**rank
    part = torch.empty_like(mine[:1])
    names = ["broadcast", "reduce", "all_reduce", "all_gather", "all_to_all"]
    after = {name: mine.clone() for name in names}
    # these three change the tensor that they are given
    dist.broadcast(after["broadcast"], src=0)
    dist.reduce(after["reduce"], dst=0)
    dist.all_reduce(after["all_reduce"])
    # these write into their first; torch 2.13 has these names, older ones are
    # all_gather_into_tensor and reduce_scatter_tensor
    dist.all_gather_single(after["all_gather"], mine[rank : rank + 1])
    dist.all_to_all_single(after["all_to_all"], mine)
    dist.reduce_scatter_single(part, mine)
    after["reduce_scatter"] = part
    return {name: tensor.tolist() for name, tensor in after.items()}


# %%
run = lab.launch(six, ranks=4)
exchanged.score(str(run[2]["all_to_all"]))

# %%
lab.table(
    {"name": name, **{f"rank {r}": run[r][name] for r in range(4)}} for name in run[0]
)

# %% [markdown] sections="8.9.1"
# - **Broadcast**: all have what rank 0 brought.
# - **Reduce**: rank 0, the *root*, has the sum. Don't use what the others hold: partial sums that gloo left there.
# - **All-reduce**: all have the sum. Plain data parallelism (DDP, chapter 03) adds its gradients with it.
# - **All-gather**: rank r gave its number r, counted from 0, and all have these four. FSDP collects its weights this way (chapter 07).
# - **All-to-all**: rank r gets everyone's number r: rank 2 has 3, 30, 300 and 3000. Mixtures of experts need it.
# - **Reduce-scatter**: the sum, but rank r keeps only its number r. FSDP adds gradients this way.
#
# A reduce-scatter and then an all-gather give an all-reduce.

# %% [markdown] sections="S11"
# ## Messages: send and recv
#
# Any collective can be made of messages: one rank calls `send`, another `recv`. With gloo each waits for the other; with NCCL only the GPU's [stream](GLOSSARY.md#stream) waits. A first message:


# %%
def pass_it_on():
    tensor = torch.full((2,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    return tensor.tolist()


lab.launch(pass_it_on, ranks=2)

# %% [markdown]
# With two ranks it works. **Guess**: how many of three return?

# %%
returning = lab.guess("Ranks that return, of three", between=(0, 3))


# %%
def stuck(function, ranks):
    """Launches a function; returns the error if it hangs."""
    try:
        # two seconds without a sign of life count as a hang
        lab.launch(function, ranks=ranks, hang_s=2)
    except lab.Timeout as error:
        return error


verdict = stuck(pass_it_on, ranks=3)
returning.score(sum(each.how == "returned" for each in verdict.outcomes))

# %% tags=["raises-exception"]
raise verdict

# %% [markdown] sections="S11"
# One rank still waits for a message that nobody sends: every `recv` needs its `send`.
#
# ### Exercise 1: broadcast in few steps
#
# Copy the tensor of rank `root` to all ranks with `send` and `recv`. If only the root sends, that takes N - 1 steps; how can others help? Your budget is $\lceil\log_2 N\rceil$ steps (8 ranks: 3), and every rank but the root receives exactly once. In one step a rank sends or receives one message.


# %%
def my_broadcast(rank, num_ranks, tensor, root):
    """Leaves in tensor what the root has in its own."""
    ### BEGIN SOLUTION
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

# %% [markdown] sections="8.3.2"
# ## An all-reduce by hand: the ring
#
# If rank 0 does all the work, the others wait for it. So share the work. Put the ranks in a circle, a [ring](GLOSSARY.md#ring): each sends to its right neighbour, and then receives from its left one. Every `send` has its `recv`. Is that enough?


# %%
def first_send():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(1)
    dist.send(tensor, (rank + 1) % size)
    dist.recv(tensor, (rank - 1) % size)


# %%
verdict = stuck(first_send, ranks=4)
print(verdict.finding.text)
verdict

# %% [markdown] sections="8.3.2"
# So nobody gets to its `recv`. We take `isend`: it starts a send and returns, and `wait` waits for its end. With NCCL a `send` returns at once, but the waiting only moves to the GPUs' streams: each has its send first, and the receive behind it, so they may still wait in a circle. There `batch_isend_irecv` starts both as one.


# %%
def pass_on(tensor):
    """Sends a tensor to the right; returns what comes from the left."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % size)
    dist.recv(received, (rank - 1) % size)
    sending.wait()
    return received


# %% [markdown] sections="8.3.2"
# But *what* should they send? A first try: whole buffers go round. What arrives is added to a rank's own sum, and passed on as it came.


# %%
def whole_buffers():
    rank, size = dist.get_rank(), dist.get_world_size()
    gradients = torch.arange(1, size + 1) * 10**rank
    passing = gradients.clone()
    with traffic.count() as counted:
        for _ in range(size - 1):
            passing = pass_on(passing)
            gradients += passing
    buffers = counted.payload_bytes["send"] / gradients.nbytes  # handed to send
    return {"sums": gradients.tolist(), "buffers sent": buffers}


lab.launch(whole_buffers, ranks=4)

# %% [markdown] sections="8.3.2"
# The sums are right, but each rank sends three whole buffers, because each makes every sum itself.
#
# ### Chunks
#
# One rank per sum is enough. So cut each buffer into four chunks, and let rank r make the sum of chunk r only. Then four sums are under way at once, and each link carries a quarter of the buffer per step. When they are finished, they go round once more, now only copied.
#
# A colour is now a chunk. Move the step, and follow one.

# %%
collectives.Call(algorithm="ring", ranks=4).board().plain().turn_to(1)

# %% [markdown] sections="8.3.2"
# ### Which chunk, in which step?
#
# In the first half a rank always sends the chunk that it has just added to. Rank r sends chunk r - 1 first. So chunk r sets out from rank r + 1, and its last stop is rank r. **Guess**: in a ring of *eight*, which chunk does rank 0 send in step 3?

# %%
third = lab.guess("The chunk that rank 0 of eight sends in step 3", between=(0, 7))

# %%
steps = collectives.plan("all_reduce", "ring", 8).steps
third.score(steps[2][0].chunks[0])  # the third step, rank 0's message

# %% [markdown] sections="8.3.2"
# In step s rank r sends chunk $(r - s) \bmod N$. What comes from rank r - 1 is added to its own copy of chunk r - 1 - s. After N - 1 steps the sum of chunk r is finished on rank r: that was a reduce-scatter.
#
# N - 1 more steps hand the finished sums round, which is an all-gather. Each rank first sends its own finished chunk, and then always the one that has just arrived.
#
# ### Exercise 2: finish the ring
#
# Here is the reduce-scatter. Write the all-gather, in which what arrives takes the place of a rank's own copy.


# %%
def my_ring(rank, size, tensor):
    """Leaves the sum over all ranks in tensor; size divides its length."""
    chunks = tensor.chunk(size)
    for step in range(1, size):
        received = pass_on(chunks[(rank - step) % size])
        chunks[(rank - 1 - step) % size].add_(received)
    ### BEGIN SOLUTION
    for step in range(1, size):
        received = pass_on(chunks[(rank + 1 - step) % size])
        chunks[(rank - step) % size].copy_(received)
    ### END SOLUTION


# %%
check.ring_all_reduce(my_ring)

# %%
check.hint("ring_all_reduce")

# %% [markdown] sections="8.3.2"
# `pass_on` and a finished `my_ring` are the fifteen lines of the first scene, without their docstrings. Does a library send less? Here a ring of the package and `dist.all_reduce` add 4 MB, and `traffic.count` counts what leaves a rank's process.


# %%
def ring_and_library():
    rank, size = dist.get_rank(), dist.get_world_size()
    ours = torch.full((1_000_000,), 10.0**rank)
    library = ours.clone()
    with traffic.count() as by_ring:
        # once yours passes: my_ring(rank, size, ours) instead
        collectives.execute(collectives.plan("all_reduce", "ring", size), ours)
    with traffic.count() as by_library:
        dist.all_reduce(library)
    return {
        "same sums": torch.equal(ours, library),
        "buffers sent by the ring": round(by_ring.sent_bytes / ours.nbytes, 2),
        "by the library": round(by_library.sent_bytes / ours.nbytes, 2),
    }


lab.launch(ring_and_library, ranks=4)

# %% [markdown] sections="19.8.1"
# ## Can anything send less than the ring?
#
# With four ranks both send one and a half buffers. Let only ranks add and copy: no switch adds for them, the network makes no copies, and nothing is compressed. **Guess**: how many buffers must the busiest of 100 ranks send at least?

# %%
least = lab.guess("Least that the busiest of 100 ranks sends, in buffers")

# %%
least.score(collectives.lower_bound_bytes("all_reduce", 100, 1.0))

# %% [markdown] sections="19.8.1"
# Why? Take four ranks, and one number of the buffer. Say rank 0 is the first to know the sum of this number. (Messages that arrive at the same moment we put in any order.)
#
# - By then each of ranks 1, 2 and 3 has sent its part, alone or in a sum, in a message that has arrived somewhere: 3 messages.
# - At that moment none of the three knows the sum, so each must still receive one: 3 more.
#
# So each number is in at least 6 messages, and the buffer of S bytes causes at least 6 S bytes of messages. Four ranks share them, so the busiest sends at least 1.5 S. With N ranks there are N - 1 messages before and N - 1 after, and the busiest sends at least
#
# $$2\,\frac{N-1}{N}\,S.$$
#
# In the ring *every* rank sends exactly that: it takes $2(N-1)$ steps, with $S/N$ in each (Patarasuk and Yuan 2009).

# %% [markdown] sections="8.3.2"
# ## The race: server, ring and tree
#
# Is the way that sends least also the fastest? Three ways race. The first is our first idea, a naive [parameter server](GLOSSARY.md#parameter-server): all send whole buffers to rank 0, one after the other, and it sends the sum back. The second is the ring.
#
# The third is a **tree**. The ranks first add in pairs; those that now hold a sum add in pairs again, and so on up. The way down is a broadcast as in exercise 1, though yours may pair other ranks, and the way up is its reverse. Each message is a whole buffer, in one piece. The numbers are steps:

# %%
collectives.Ways(algorithms=["parameter_server", "ring", "tree"])

# %% [markdown] sections="8.3.2"
# One machine has no slow link, so we use **[paced links](GLOSSARY.md#paced-links)**: processes and messages are real, but a message of n bytes takes at least $T(n) = \alpha + n/B$. Here the [latency](GLOSSARY.md#latency) $\alpha$ is 10 ms, and the [bandwidth](GLOSSARY.md#bandwidth) $B$ is 0.1 GB/s. A rank can send one message and receive another at the same time, but no more. Steps times $T(n)$ is the prediction:
#
# |way|steps|bytes of a message|time|
# |---|---|---|---|
# |server|$2(N-1)$|$S$|$2(N-1)\,(\alpha + S/B)$|
# |ring|$2(N-1)$|$S/N$|$2(N-1)\,(\alpha + S/(N B))$|
# |tree|$2\lceil\log_2 N\rceil$|$S$|$2\lceil\log_2 N\rceil\,(\alpha + S/B)$|
#
# **Guess**: four ranks, 4 MB. By prediction, how many times as long as the ring does the server take?

# %%
slower = lab.guess("Parameter server over ring, 4 ranks, 4 MB", unit="ratio")

# %%
link = collectives.Link(alpha_us=10_000, bandwidth_gb_per_s=0.1)
base = collectives.Call(algorithm="ring", ranks=4, num_bytes=4e6, network=link)
server = base.but(algorithm="parameter_server")
slower.score(server.formula_us() / base.formula_us())

# %%
server.compare()

# %% [markdown]
# Rank 0 is busy nearly all the time; the others stand in line. *Overran* means that some message took longer than its link states.
#
# The ring takes six steps, too, but in each step all ranks send at once, and only a quarter. Mind the axis, which ends sooner. In brackets is the chunk; only rank 0's messages are named:

# %%
base.compare()

# %% [markdown]
# In all our runs the ring was further off its prediction than the server. We suspect the two cores of our machine: in the server one pair of ranks is busy at a time, in the ring all four are. And a message begins only when both its ends are ready, so one that is late holds up the next ones: those are the gaps. Here are all three:

# %%
names = ["parameter_server", "ring", "tree"]
race = lab.sweep(base, algorithm=names, run=names)
title = "All-reduce of 4 MB, 4 ranks"
lab.bars(race.readings, unit="us", title=title, badge=race.badge)

# %%
round(race.measured["parameter_server"] / race.measured["ring"], 2)

# %% [markdown]
# That is server over ring in this run; the prediction is 2.5. In six earlier runs on two cores the server took between 1.9 and 2.4 times as long as the ring; on a busy machine it may be less. The times $T(n)$ are built into the links, so the race tests who sends in which step, not $T(n)$.

# %% [markdown] sections="8.3.2, 19.1.2"
# ## A small buffer changes the order
#
# With 4 MB the ring beats the tree. But it takes more steps. **Guess**: a ring of 2 ranks takes 20 ms for 4 kB. How many times as long does a ring of 64 take, by prediction?

# %%
grows = lab.guess("A ring with 4 kB: 64 ranks over 2 ranks", unit="ratio")

# %%
small = base.but(num_bytes=4e3)
ranks = [2, 4, 8, 16, 32, 64]
ring = lab.sweep(small, ranks=ranks, run=[2, 8])
tree = lab.sweep(small.but(algorithm="tree"), ranks=ranks, run=[2, 8])
grows.score(ring.line[64] / ring.line[2])

# %%
predicted = {"a ring": ring.line, "a tree": tree.line}
measured = {"a ring": ring.measured, "a tree": tree.measured}
axes = {"x": "ranks", "unit": "us", "log_x": True, "log_y": True, "badge": ring.badge}
title = "All-reduce of 4 kB"
lab.curves(predicted=predicted, measured=measured, **axes, title=title)

# %% [markdown] sections="8.3.2, 19.1.2"
# With so few bytes a step takes little more than $\alpha$, so the number of steps decides. A ring is optimal in *bandwidth*, and the price is *latency*. By the formulas the tree wins with 4 kB from four ranks on.
#
# With 8 real ranks the tree wins, too. But both took longer than predicted, the ring in one run three times as long. We suspect the two cores again: each step of the ring needs all eight ranks, and one that gets its turn late holds up its neighbours. So trust the order here, not the times. Real machines have their own cores, so next we use the formula, as an estimate.

# %% [markdown]
# ## The eight seconds
#
# So which way should our eight machines take? The network has 25 GB/s, and we assume a latency of 5 microseconds. **Guess**: by prediction, how many seconds does the ring take?

# %%
seconds = lab.guess("14 GB in a ring of eight machines, in seconds")

# %%
infiniband = collectives.Link(alpha_us=5, bandwidth_gb_per_s=25)
scene = base.but(ranks=8, num_bytes=14e9, network=infiniband)
seconds.score(scene.formula_us() / 1e6)

# %%
ways = {name: scene.but(algorithm=name) for name in names}
lab.table(
    {
        "way": name,
        "8 machines (s)": call.formula_us() / 1e6,
        "64 machines (s)": call.but(ranks=64).formula_us() / 1e6,
    }
    for name, call in ways.items()
)

# %% [markdown]
# These are the eight seconds, by the formulas; nothing of that size was run. Rank 0 receives 14 GB from each of seven ranks, one after the other, and sends as much: $2\cdot7\cdot\frac{14}{25}$ seconds. In the ring each rank sends seven eighths of 14 GB twice, and all send at once: $2\cdot\frac78\cdot\frac{14}{25}$ seconds. With 64 machines the ring takes little longer: each of its ranks sends less than two buffers, however many there are.
#
# <details><summary>How good is such a formula? For eight A100 it says 6.29 ms where 8.20 were measured</summary>
#
# For 1.07 GB on eight A100, joined by NVLink (taken as 2 us and 300 GB/s), the ring's says 6.29 ms. Others ([Stas Bekman](https://github.com/stas00/ml-engineering)) measured 8.20; which algorithm NCCL took, they do not say. With small buffers it is further off (optional end).
#
# </details>
#
# **When is a ring worth it?** It is when most of the time goes to bytes, as with gradients. If most goes to steps, as for a single number such as a loss, take a tree. In your own program you call `dist.all_reduce`, and the library chooses. Set `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING`, and NCCL prints what it chose.

# %% [markdown]
# ### Exercise 3: which way, and how long?
#
# Given $\alpha$, $B$, N and S, return the faster all-reduce, `"ring"` or `"tree"`, and its time in microseconds.


# %%
def my_prediction(alpha_us, bandwidth_gb_per_s, num_ranks, num_bytes):
    """The faster way and its time in microseconds; 1 GB/s is 1000 bytes per us."""

    ### BEGIN SOLUTION
    def message_us(size):
        return alpha_us + size / (1000 * bandwidth_gb_per_s)

    ring_us = 2 * (num_ranks - 1) * message_us(num_bytes / num_ranks)
    tree_us = 2 * (num_ranks - 1).bit_length() * message_us(num_bytes)
    return ("ring", ring_us) if ring_us < tree_us else ("tree", tree_us)
    ### END SOLUTION


# %%
check.predicted_all_reduce(my_prediction)

# %%
check.hint("predicted_all_reduce")

# %% [markdown]
# ---
#
# *Here ends what most people need. The rest, about what a library sends and about real networks, is optional.*

# %% [markdown] sections="8.9.1"
# ## How many bytes does the library send?
#
# The library's all-reduce sent as little as a ring. Do its other collectives? Two numbers tell. The [payload](GLOSSARY.md#payload) is what a rank hands to the collective. The bytes on the [wire](GLOSSARY.md#wire) are those that really leave its process: Linux counts them per TCP socket, and `traffic.count` reads the counts.
#
# **Guess**: four ranks broadcast 4 MB. The library, gloo, does it by a tree like that of exercise 1. How much does the root send over the wire?

# %%
roots = lab.guess("What the root sends to broadcast 4 MB, in MB", unit="mb")


# %%
def bytes_of_each(num_bytes):
    whole = torch.zeros(num_bytes // 4)
    part, other = torch.zeros(num_bytes // 16), torch.empty_like(whole)
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
        counts[name] = (counted.payload_bytes[name], counted.sent_bytes)
    return counts


# %%
counts = lab.launch(bytes_of_each, 4_000_000, ranks=4)
roots.score(counts[0]["broadcast"][1] / 1e6)

# %%
lab.table(
    {
        "name": name,
        "payload_bytes": counts[0][name][0],
        "wire_bytes": max(rank[name][1] for rank in counts),
        "least_bytes": collectives.lower_bound_bytes(name, 4, 4e6),
    }
    for name in counts[0]
)

# %% [markdown] sections="8.9.1"
# The column *wire* has what the busiest rank sends. Four of the six send no more than they must; the all-reduce's 6 MB are our ring's one and a half buffers. Two send more:
#
# - **broadcast**: in its tree the root sends the whole buffer to two ranks.
# - **reduce_scatter**: it sends *twice* its bound. gloo as torch uses it has no reduce-scatter, so torch runs a whole all-reduce and keeps a quarter.
#
# <details><summary>Why these are the least</summary>
#
# S is the whole buffer: what was gathered, or what goes into a reduce-scatter. A broadcast and a reduce need S: in the one the root sends each number once, in the other everyone else does. In an all-gather and a reduce-scatter each number needs N - 1 messages, which N ranks share. In an all-to-all each rank sends all but its own part. So these three need $\frac{N-1}{N}S$.
#
# </details>

# %% [markdown]
# ### Exercise 4: which algorithm was it?
#
# You know how many bytes each rank sent in one all-reduce. Was it a `"ring"`, a `"tree"` or a `"parameter_server"`? N is at least 4, and any rank may be the root.


# %%
def my_algorithm(num_bytes, sent_bytes):
    """The name of the algorithm; sent_bytes has a number per rank."""
    ### BEGIN SOLUTION
    in_order = sorted(sent_bytes)
    if in_order[0] == in_order[-1]:
        return "ring"
    return "parameter_server" if in_order[-2] == num_bytes else "tree"
    ### END SOLUTION


# %%
check.which_algorithm(my_algorithm)

# %%
check.hint("which_algorithm")

# %% [markdown] sections="19.1.2"
# ## Where ring and tree cross
#
# With small buffers fewer steps win, with large ones fewer bytes. Where does one turn into the other? Four ranks in a ring take $6\alpha + 1.5\,S/B$, in a tree $4\alpha + 4\,S/B$. These are equal at $S = 0.8\,\alpha B$. If one kind of link joins all N ranks, then by the formulas the ring wins from so many bytes on:

# %%
links = {
    "NVLink: 2 us, 300 GB/s": collectives.Link(alpha_us=2, bandwidth_gb_per_s=300),
    "InfiniBand: 5 us, 25 GB/s": infiniband,
    "Ethernet: 50 us, 1.25 GB/s": collectives.Link(
        alpha_us=50, bandwidth_gb_per_s=1.25
    ),
}


def ring_wins_from(link):
    ranks = (2, 8, 64, 512)
    return {f"N={n}_bytes": collectives.crossover_bytes(n, link) for n in ranks}


lab.table({"link": name, **ring_wins_from(link)} for name, link in links.items())

# %% [markdown] sections="19.1.2"
# So no fixed size separates the two. Nor are these NCCL's thresholds: its trees are pipelined, and our latencies are assumed.
#
# If N is a power of two, there is a way that is in this model never slower than either. It is halving and doubling, and you write it in exercise 5. Why does anyone use a ring, then? It takes any N, and each rank sends to its neighbour only. In a real network far partners share links, which this model leaves out.
#
# <details><summary>More ways, and what your cluster chooses</summary>
#
# A **double tree** runs two trees at once, each with half of the buffer, cut into four pieces that follow one another. A rank that adds in one tree is a leaf in the other, so the work is spread, though with four pieces links still idle half of the time. For 64 ranks on InfiniBand it is simulated as faster than both ring and tree from about 0.35 to about 5 MB; exercise 5's way would be faster still. Run it: `collectives.Call(algorithm="double_tree", ranks=64, num_bytes=1e6, network=infiniband).predict()`.
#
# On newer NVSwitches there is NVLS: the switch itself adds. A rank sends it S, and once its finished part, so $\frac{N+1}{N}S$. The ring's $2\frac{N-1}{N}S$ is less for two ranks, the same for three, and more from four on.
#
# `nvidia-smi topo -m` prints the links inside a machine as a table.
#
# </details>

# %% [markdown] sections="8.9.1"
# ## Bandwidth, as libraries report it
#
# NCCL's benchmark, nccl-tests, calls size over time *algbw*. Times $2\frac{N-1}{N}$, for an all-reduce, it is the [busbw](GLOSSARY.md#busbw): what a link carried if the algorithm was a ring. Here are eight A100, recorded by others ([Stas Bekman](https://github.com/stas00/ml-engineering)), beside the prediction for a ring over NVLink:

# %%
sizes, times_us = collectives.published.all_reduce_times("8xA100 NVLink3")
nvlink = collectives.Link(alpha_us=2, bandwidth_gb_per_s=300)
eight_cards = base.but(ranks=8, network=nvlink)
lab.table(
    {
        "size_bytes": size,
        "predicted_us": eight_cards.but(num_bytes=size).formula_us(),
        "measured_us": time_us,
        "algbw (GB/s)": round(size / time_us / 1e3, 1),
        "busbw (GB/s)": round(2 * 7 / 8 * size / time_us / 1e3, 1),
    }
    for size, time_us in list(zip(sizes, times_us))[::3]
)

# %% [markdown]
# Small buffers use almost nothing of the link, large ones nearly eight tenths of its 300 GB/s. The prediction is too short everywhere, and from 0.26 to 17 MB by more than half. NVLink's crossing for eight ranks, 1.13 MB, lies in that range, so take it as rough.

# %% [markdown] sections="19.1.1"
# ## Fast inside, slow between
#
# In a cluster, each machine is often an [island](GLOSSARY.md#island) of cards: NVLink inside, a slower network between. Here are two, with the link of the race inside and a tenth of its bandwidth between:

# %%
between = collectives.Link(alpha_us=10_000, bandwidth_gb_per_s=0.01)
islands = collectives.islands(4, 2, inside=link, between=between)
islands

# %% [markdown] sections="19.1.1"
# Two of the ring's four links now lie inside. **Guess**: compared with four slow links, how many times as fast is the ring with 4 MB?

# %%
gain = lab.guess("The ring: time on four slow links over time on two", unit="ratio")

# %%
slow, apart = base.but(network=between), base.but(network=islands)
gain.score(slow.formula_us() / apart.predict().span_us)

# %% [markdown] sections="19.1.1"
# The ring crosses in each of its six steps, so it always waits for a slow link. A **hierarchical** all-reduce works in groups: a reduce-scatter inside each, an all-reduce between them, an all-gather inside. Here partners first exchange halves and add. Then each exchanges quarters with a partner in the other group. The same steps lead back. In the picture, 0 keeps the first half of 0 + 1, and 1 the second.

# %%
collectives.Ways(algorithms=["hierarchical"])

# %% [markdown] sections="19.1.1"
# Must the groups be the islands? We also try 0 with 2, and 1 with 3.

# %%
right = apart.but(algorithm="hierarchical")
ways = {"ring": apart, "groups 01, 23": right}
ways["groups 02, 13"] = right.but(order=(0, 2, 1, 3))
runs = {name: call.compare() for name, call in ways.items()}
badge = max((each.measured.badge for each in runs.values()), key=len)
took = {name: each.readings for name, each in runs.items()}
title = "All-reduce of 4 MB on two islands"
lab.bars(took, unit="us", title=title, badge=f"simulated / {badge}")

# %% [markdown] sections="19.1.1"
# If the groups are the islands, halves stay inside and take 30 ms a step. Quarters cross and take 110 ms a step: $2\cdot30+2\cdot110=280$ ms. If not, halves cross: $2\cdot210+2\cdot20=460$ ms. So says the model, and in a quiet run the right groups win clearly, too. A *topology-aware* library chooses groups by the links.
#
# <details><summary>If the islands share one network card</summary>
#
# Here each pair of ranks has its own link. What if all messages from one island to the other queue for one network card? In the model the right groups still win, but by less, and the wrong ones now lose to the ring. Run it: `shared = collectives.islands(4, 2, inside=link, between=between, shared=True)`, then `{name: call.but(network=shared).predict().span_us for name, call in ways.items()}`.
#
# </details>

# %% [markdown]
# ### Exercise 5: halving and doubling, which has both
#
# A ring takes many steps; a tree sends too much. If N is a power of two, there is an all-reduce with $2\log_2 N$ steps and no more than $2\frac{N-1}{N}S$ bytes from any rank. For four ranks you have seen it: the hierarchical one. Write it for all, with `send`, `recv`, `isend` or `irecv`. Let near partners come first, because the first messages are the largest.


# %%
def my_all_reduce(rank, num_ranks, tensor):
    """Leaves the sum in tensor; num_ranks is a power of two and divides its length."""

    ### BEGIN SOLUTION
    def swap(outgoing, place, partner):
        incoming = torch.empty_like(place)
        sending = dist.isend(outgoing.clone(), partner)
        dist.recv(incoming, partner)
        sending.wait()
        return incoming

    part, path, distance = tensor, [], 1
    while distance < num_ranks:
        lower, upper = part.chunk(2)
        mine, theirs = (upper, lower) if rank & distance else (lower, upper)
        mine += swap(theirs, mine, rank ^ distance)
        path.append((rank ^ distance, mine, theirs))
        part, distance = mine, distance * 2
    for partner, mine, theirs in reversed(path):
        theirs.copy_(swap(mine, theirs, partner))
    ### END SOLUTION


# %%
check.halving_all_reduce(my_all_reduce)

# %%
check.hint("halving_all_reduce")

# %% [markdown]
# ## Summary
#
# - An all-reduce can be made of a reduce-scatter and an all-gather. In a ring both are messages between neighbours. Every `recv` needs its `send`. If all ranks of a ring send first, blocking sends wait for each other: use `isend`, or let one rank receive first.
# - If only ranks add and copy, and nothing is compressed, the busiest rank of an all-reduce sends at least $2\frac{N-1}{N}S$. The ring sends just that, in $2(N-1)$ steps.
# - A tree that sends its buffer in one piece takes only $2\lceil\log_2 N\rceil$ steps, but sends whole buffers. So of these two the ring is for large buffers, the tree for small ones.
# - A message takes $\alpha + n/B$, so the time of each way can be estimated. By this model the server takes eight seconds for our 14 GB, and the ring one. The links of our race were paced by this very model. So its runs tested who sends in which step, not the model; the order held, and measured times were longer.
# - From the optional end: by the model, if links are fast inside machines and slow between them, add inside first, so that only small parts cross.
#
# **Words learned**: [collective](GLOSSARY.md#collective), [ring](GLOSSARY.md#ring), [parameter server](GLOSSARY.md#parameter-server), [latency](GLOSSARY.md#latency), [bandwidth](GLOSSARY.md#bandwidth), [paced links](GLOSSARY.md#paced-links); in the optional end [payload](GLOSSARY.md#payload), [wire](GLOSSARY.md#wire), [busbw](GLOSSARY.md#busbw), [island](GLOSSARY.md#island).
#
# <details><summary>Further reading</summary>
#
# - The ring and its bound: Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
# - Trees, halving and doubling, and what they cost: Thakur, Rabenseifner and Gropp 2005, *Optimization of collective communication operations in MPICH*
# - Two trees: Sanders, Speck and Träff 2009, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*
# - algbw and busbw: nccl-tests, [PERFORMANCE.md](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)
#
# </details>
#
# **Next**: chapter 03 hides its all-reduces under the backward.

# %% [markdown] sections="8.3.2, 8.9.1, 19.1.1, 19.1.2, 19.8.1, S11"
# ## Errata of the textbook
#
# <details><summary>Seven errata, for readers of that textbook</summary>
#
# <details><summary>Erratum S11: the example receives on every other rank</summary>
#
# The demo project's example says `if rank == 0: send(tensor, dst=1)`, `else: recv(tensor, src=0)`. That is right for two ranks only. Say `elif rank == 1`. Run it: `lab.launch(pass_it_on, ranks=3, hang_s=2)` ends in the error of section *Messages*.
#
# </details>
#
# <details><summary>Erratum 8.3.2: the pseudocode of the ring never passes anything on</summary>
#
# The textbook's pseudocode sends `gradients[chunk_size * rank : ...]` in every step and adds what arrives to `gradients[...]`. Suppose that `...` is the left neighbour's chunk:
#
# ```python
# def own_chunk():
#     rank, size = dist.get_rank(), dist.get_world_size()
#     gradients = torch.arange(1, size + 1) * 10**rank
#     chunks = gradients.chunk(size)
#     for _ in range(size - 1):
#         chunks[(rank - 1) % size].add_(pass_on(chunks[rank]))
#     return gradients.tolist()
# ```
#
# Run it: `lab.launch(own_chunk, ranks=4)`. No rank has a finished sum. The first number of rank 1 is 13: its own 10, and rank 0's 1, *three times*. Nobody passes on what they received. To the letter it is worse, because one chunk is added to all of them: write `gradients.add_(...)` instead of `chunks[(rank - 1) % size].add_(...)`. The second half, which should hand the sums round, is `pass`.
#
# </details>
#
# <details><summary>Erratum 19.8.1: at least M, and a ring's 2M "reaches the optimum"</summary>
#
# The textbook's answer says that each GPU has to send and receive at least M, the buffer, and that a ring comes near 2M and so is optimal. Both cannot be, because what reaches a bound is equal to it. The bound is $2\frac{N-1}{N}M$. Run it: `collectives.lower_bound_bytes("all_reduce", 1024, 1.0)` gives 1.998.
#
# </details>
#
# <details><summary>Erratum 8.9.1: "O(N)", "O(2N)" and "O(N×P)"</summary>
#
# The textbook's table has "O(N)" beside most collectives, "O(2N)" beside the all-reduce and "O(N×P)" beside the all-gather. It does not say whether that is per rank or in all, nor whether N is the buffer before or after. Per rank, and with S the whole buffer, nothing grows without bound. Run it: `collectives.lower_bound_bytes("all_gather", 1024, 1.0)` gives 0.999.
#
# </details>
#
# <details><summary>Erratum 8.3.2: the ring has a "low latency", hence it suits "large-scale training"</summary>
#
# The textbook compares a parameter server, "O(2N × P)" and high latency, with a ring, "O(2N)" and low latency. But a ring has as many steps as the server, and their number grows with the cluster; that of a tree grows with its logarithm. Run it: `small.but(algorithm="ring", ranks=64).formula_us()` gives 1,260,079 us, or 1.26 s, and with `"tree"` it is 0.12 s.
#
# </details>
#
# <details><summary>Erratum 19.1.2: "usually trees below 256 kB, rings above"</summary>
#
# The crossing is proportional to $\alpha B$ and grows with N. Run it: `collectives.crossover_bytes(512, links["NVLink: 2 us, 300 GB/s"])` gives 38 MB, and with 2 ranks it gives 0.
#
# NCCL has no such limit today. According to its developers it estimates for every size the time of each algorithm and protocol on the topology that it found, and takes the least ([issue 457](https://github.com/NVIDIA/nccl/issues/457)); with growing size that may change from tree to ring and back several times ([issue 754](https://github.com/NVIDIA/nccl/issues/754)). A threshold that one could set, `NCCL_TREE_THRESHOLD`, came with version 2.4 and left with 2.5; in 2.4 trees were used between nodes only ([issue 211](https://github.com/NVIDIA/nccl/issues/211)).
#
# </details>
#
# <details><summary>Erratum 19.1.1: NVLink "600 GB/s", PCIe "64 GB/s", and two groups of four GPUs</summary>
#
# The textbook draws a DGX A100 as four GPUs under one NVSwitch and four under another. Two things are wrong. First, 600 and 64 count both directions, while a message travels in one: 300 and 32 GB/s. (Section 19.1.3 then sets 300, one direction, beside 64, both, which makes PCIe look twice as good as it is.) Run it: `16 * 16e9 * 128 / 130 / 8 / 1e9` gives 31.5, for 16 lanes of 16 GT/s of which 128 bits in 130 are data; `12 * 25` gives 300, for 12 NVLinks. Second, two switches do not have the ports: 8 GPUs have 96 NVLinks, two switches of that generation 72 ports. A DGX A100 has six, with two links from each GPU to each of them (NVIDIA's white paper). So every pair of GPUs is equally near, and the matrix says `NV12` everywhere.
#
# </details>
#
# </details>

# %%
check.status()
