# ---
# jupyter:
#   labkit:
#     sections: ["8.5.1", "8.5.2", "8.5.3", "10.2.5", "10.7.2", "19.4.1", "S5", "D-train"]
#     needs: ["two CPU cores", "DeepSpeed", "transformers"]
#     minutes: 75
# ---

# %% [markdown]
# # ZeRO with DeepSpeed
#
# *Sections 8.5.1, 8.5.2, 8.5.3, 10.2.5, 10.7.2, 19.4.1, S5 and D-train of the source material. About 75 minutes. No GPU is needed.*
#
# Under data parallelism every rank holds the same parameters, gradients and optimizer states. ZeRO keeps one copy of them and deals it out: the states first (stage 1), then the gradients (2), then the parameters (3).
#
# You will work out what that saves, write each stage by hand in some twenty lines, count what it sends, and then read the same out of a live DeepSpeed engine. After that: the JSON file field by field, the launchers, the HF Trainer, and offload to the host. The source material's numbers for ZeRO are wrong in several places; each is computed or run here.

# %%
import labkit as lab

lab.begin("en")
import itertools
import torch
import torch.distributed as dist
from labkit.pictures import bytes_held, scene
from labkit import collectives, model, sharding, shards, widgets
from labkit.sharding import states as sharding_states
from labkit.measure import memory, traffic
from labkit.machine import ops
from labkit.zero import check
from labkit.collectives.algorithms import plan
from labkit.units import format_bytes


def difference(ours, theirs):
    """The largest difference between two dicts of tensors."""
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


# %% [markdown] sections="8.5.1"
# ## The bill
#
# Training with Adam in 16 bit, as the ZeRO paper counts it: per parameter 2 bytes for itself, 2 for its gradient, 12 for the optimizer (an fp32 copy, momentum, variance). 16 in all, on every rank. **Predict.** 7 billion parameters on 4 ranks: how many GB does a rank hold under each stage?

# %%
my_gb = {"ZeRO 1": None, "ZeRO 2": None, "ZeRO 3": None}

# %%
STAGES = ("DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3")
textbook = dict(zip(STAGES, (112, 28, 14.5, 7)))  # section 8.5.1
print(
    f"{my_gb = }\n7B, 4 ranks   parameters   gradients   optimizer   together   textbook"
)
for stage, name in enumerate(STAGES):
    parts = sharding_states.by_category(
        sharding_states.state_bytes(7e9, num_ranks=4, stage=stage)
    )
    cells = "".join(
        f"{num_bytes / 1e9:9.1f} GB"
        for num_bytes in (*parts.values(), sum(parts.values()))
    )
    print(f"{name:<10}{cells}{textbook[name]:8} GB")

# %% [markdown]
# DDP agrees. For the others the section's own formulas are right, and its arithmetic is not. Its first two lines, and what it does to the third:

# %%
M, N = 7, 4
print(f"ZeRO 1: (16 - 12 + 12/N) M = {(16 - 12 + 12 / N) * M:g}    the text says 28")
print(f"ZeRO 2: (16 - 14 + 14/N) M = {(16 - 14 + 14 / N) * M:g}  the text says 14.5")
print(
    f"ZeRO 3:            16 M/N  = {16 * M / N:g}    the text divides by N once more: {16 * M / N / N:g}"
)

# %% [markdown] sections="8.5.1, 10.2.5, S5"
# ### 4x, 8x, 64x, 16x
#
# The tables of savings in sections 8.5.1, 10.2.5 and S5 have one number per stage: about 4x, 8x, and for stage 3 "64x", "near-linear" and "~16x". The saving depends on the number of ranks:


# %%
def saving(num_ranks, stage):
    """A rank of DDP over a rank of this stage."""
    return sum(sharding_states.state_bytes(1).values()) / sum(
        sharding_states.state_bytes(1, num_ranks, stage).values()
    )


print("      N   ZeRO 1   ZeRO 2   ZeRO 3")
for num_ranks in (2, 4, 8, 16, 64, 1024):
    print(
        f"{num_ranks:7}"
        + "".join(f"{saving(num_ranks, stage):8.2f}x" for stage in (1, 2, 3))
    )

# %% [markdown]
# 4x and 8x are what stages 1 and 2 come near to with very many ranks: 16/4 and 16/2, for the 4 or 2 bytes that they do not deal out stay. Stage 3 saves N times: 64x with 64 ranks, 16x with 16. (16 is also the number of bytes per parameter, which is no saving.)
#
# Turn the knobs. The button trains the small model with a real DeepSpeed engine, and lays what its ranks hold under what they should:

# %%
widgets.zero_stages()

# %% [markdown] sections="19.4.1"
# ## By hand
#
# Section 19.4.1 draws the owners: rank r owns the r-th part. Below every weight is flattened and cut into N equal parts; here all sizes divide. Two collectives do everything. A **reduce-scatter** leaves each rank the sum of its own part; an **all-gather** puts the parts together again. Each can also go message by message around our own ring (chapter 02), which will matter when we count.


# %%
def part(flat):
    """This rank's part of a flat tensor, as a view."""
    return flat.chunk(dist.get_world_size())[dist.get_rank()]


def reduce_scatter(flat, ring):
    """The mean over the ranks of this rank's part."""
    if ring:
        collectives.execute(plan("reduce_scatter", "ring", dist.get_world_size()), flat)
    else:
        dist.reduce_scatter_single(part(flat), flat)
    return part(flat).div_(dist.get_world_size())


def all_gather(flat, ring):
    """Fills a flat tensor from everybody's part of it."""
    if ring:
        collectives.execute(plan("all_gather", "ring", dist.get_world_size()), flat)
    else:
        dist.all_gather_single(flat, part(flat))


# %% [markdown]
# First plain data parallelism, to compare with. `live_bytes` is read just before the update, when gradients and optimizer states are all there. It is a count of every storage that torch holds, not a formula.


# %%
def weights_and_data():
    torch.manual_seed(0)
    return model.Transformer(2, 64, 4, max_len=32), model.story_tokens(
        2, 32, seed=dist.get_rank()
    )


def plain(ring=False, num_steps=3):
    with memory.watch() as watched:
        net, (tokens, targets) = weights_and_data()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for step in range(num_steps):
            with traffic.count() as counted:
                model.loss(net(tokens), targets).backward()
                for weight in net.parameters():
                    if ring:
                        collectives.execute(
                            plan("all_reduce", "ring", dist.get_world_size()),
                            weight.grad.view(-1),
                        )
                    else:
                        dist.all_reduce(weight.grad)
                    weight.grad /= dist.get_world_size()
                live_bytes = watched.live_bytes
                optimizer.step()
            optimizer.zero_grad()
    return dict(net.named_parameters()), live_bytes, counted


# %% [markdown]
# **Stage 1.** The optimizer is given this rank's parts and nothing else, so it makes states for those alone. The all-reduce falls into its two halves, with the update in between.


# %%
def zero1(ring=False, num_steps=3):
    with memory.watch() as watched:
        net, (tokens, targets) = weights_and_data()
        mine = {
            weight: torch.nn.Parameter(part(weight.data.view(-1)))
            for weight in net.parameters()
        }  # views
        optimizer = torch.optim.AdamW(mine.values(), lr=0.01)
        for step in range(num_steps):
            with traffic.count() as counted:
                model.loss(net(tokens), targets).backward()
                for weight in mine:
                    mine[weight].grad = reduce_scatter(weight.grad.view(-1), ring)
                live_bytes = watched.live_bytes
                optimizer.step()
                for weight in mine:
                    all_gather(weight.data.view(-1), ring)
            optimizer.zero_grad(), net.zero_grad()
    return dict(net.named_parameters()), live_bytes, counted


# %% [markdown] sections="10.2.5, 19.4.1"
# **Stage 2.** As soon as a gradient is complete it is reduced, and only this rank's part is kept. Section 10.2.5 says that stage 2 "collects whole gradients during the backward". Nobody collects: each rank makes a whole gradient of its own data, one weight at a time, and lets go of it.


# %%
def zero2(ring=False, num_steps=3):
    def reduce(weight):
        mine[weight].grad = reduce_scatter(weight.grad.view(-1), ring).clone()
        weight.grad = None  # the other parts are not kept

    with memory.watch() as watched:
        net, (tokens, targets) = weights_and_data()
        mine = {
            weight: torch.nn.Parameter(part(weight.data.view(-1)))
            for weight in net.parameters()
        }
        optimizer = torch.optim.AdamW(mine.values(), lr=0.01)
        for weight in mine:
            weight.register_post_accumulate_grad_hook(reduce)
        for step in range(num_steps):
            with traffic.count() as counted:
                model.loss(net(tokens), targets).backward()
                live_bytes = watched.live_bytes
                optimizer.step()
                for weight in mine:
                    all_gather(weight.data.view(-1), ring)
            optimizer.zero_grad()
    return dict(net.named_parameters()), live_bytes, counted


# %% [markdown]
# **Stage 3.** A layer's weights are gathered before its forward, freed after it, and gathered again before its backward. After the update nothing has to be sent: the next forward gathers.


# %%
def zero3(ring=False, num_steps=3):
    def gather(layer, *_):
        for weight in layer.parameters():
            weight.untyped_storage().resize_(weight.nbytes)
            part(weight.data.view(-1)).copy_(mine[weight].data)
            all_gather(weight.data.view(-1), ring)

    def free(layer, *_):
        for weight in layer.parameters():
            weight.untyped_storage().resize_(0)

    def reduce(weight):
        mine[weight].grad, weight.grad = (
            reduce_scatter(weight.grad.view(-1), ring).clone(),
            None,
        )
        weight.untyped_storage().resize_(0)

    with memory.watch() as watched:
        net, (tokens, targets) = weights_and_data()
        mine = {
            weight: torch.nn.Parameter(part(weight.data.view(-1)).clone())
            for weight in net.parameters()
        }
        for weight in mine:
            weight.register_post_accumulate_grad_hook(reduce)
        for layer in net.layers:
            (
                free(layer),
                layer.register_forward_pre_hook(gather),
                layer.register_forward_hook(free),
            )
            layer.register_full_backward_pre_hook(gather)
        optimizer = torch.optim.AdamW(mine.values(), lr=0.01)
        for step in range(num_steps):
            with traffic.count() as counted:
                model.loss(net(tokens), targets).backward()
            live_bytes = watched.live_bytes
            optimizer.step(), optimizer.zero_grad()
        for layer in net.layers:
            gather(layer)  # whole once more, to be looked at
    return dict(net.named_parameters()), live_bytes, counted


# %% [markdown]
# These models train in fp32: 4 bytes for a parameter, 4 for its gradient, 8 for momentum and variance. **Predict** the bytes per parameter that are live on a rank of 4, and how far the weights are from plain data parallelism after three steps.

# %%
my_bytes = {"DDP": None, "ZeRO 1": None, "ZeRO 2": None, "ZeRO 3": None}
my_difference = None

# %%
options = {"ranks": 4, "timeout_s": 40}
runs = dict(
    zip(
        STAGES,
        (
            lab.launch(plain, **options),
            lab.launch(zero1, **options),
            lab.launch(zero2, **options),
            lab.launch(zero3, **options),
        ),
    )
)
num_params = sum(weight.numel() for weight in runs["DDP"][0][0].values())
print(
    f"{my_bytes = }, {my_difference = }\nbytes per parameter   live   predicted   weights off by"
)
for stage, (name, run) in enumerate(runs.items()):
    weights, live_bytes, _ = run[0]
    due = sum(sharding_states.state_bytes(1, 4, stage, "fp32").values())
    print(
        f"{name:<16} {live_bytes / num_params:9.3f} {due:11.3f} {difference(weights, runs['DDP'][0][0]):16.0e}"
    )

# %% [markdown]
# The same training, in fewer bytes. (The few thousandths beside the prediction are the batch and single numbers.) What a stage adds **for a while** is not in this count: whole gradients in stage 2 and whole layers in stage 3, one at a time. Chapter 05 counts activations, which ZeRO leaves alone.

# %% [markdown] sections="8.5.1, 19.4.1"
# ## What it sends
#
# Section 8.5.1: stage 1 sends as much as DDP, stage 2 1.5 times, stage 3 2 times. **Predict** from the code above: which collectives, of how many bytes? With a ring, a reduce-scatter and an all-gather of the model send (N-1)/N of it each, and an all-reduce is both.

# %%
my_volume = {"ZeRO 1": None, "ZeRO 2": None, "ZeRO 3": None}  # in multiples of DDP


# %%
def on_our_ring():
    return [
        function(ring=True, num_steps=1)[2].payload_bytes["send"]
        for function in (plain, zero1, zero2, zero3)
    ]


sent = dict(zip(STAGES, lab.launch(on_our_ring, **options)[0]))
wire = {
    name: run[0][2].sent_bytes or float("nan") for name, run in runs.items()
}  # only Linux counts it
print(
    f"{my_volume = }\n            sent on our ring  predicted         {runs['DDP'].backend}'s wire  handed to it, in models"
)
for stage, (name, run) in enumerate(runs.items()):
    due = sum(sharding_states.step_volume(1, 4, stage).values()) / sum(
        sharding_states.step_volume(1, 4, 0).values()
    )
    payload = {
        kind: f"{num / 4 / num_params:g}"
        for kind, num in run[0][2].payload_bytes.items()
    }
    print(
        f"{name:<7} {sent[name]:12,} = {sent[name] / sent['DDP']:.2f}x {due:9.2f}x {wire[name]:11,} = "
        f"{wire[name] / wire['DDP']:.2f}x  {payload}"
    )

# %% [markdown]
# Stages 1 and 2: a reduce-scatter and an all-gather are one all-reduce. 1x. Stage 3 gathers once more: 1.5x (Rajbhandari et al. 2020, section 7). Our ring sends exactly that.
#
# gloo's wire shows 1.5x for stages 1 and 2 and 2x for stage 3: the section's numbers for stages 2 and 3, and for stage 1 half as much again as it says. None of them is the method's. gloo has no reduce-scatter of its own and runs a whole all-reduce in its place: 2 + 1 for stages 1 and 2, 1 + 1 + 2 for stage 3, over 2. NCCL has a real reduce-scatter. So keep two counts apart: the **payload** handed to collectives, which belongs to the method, and the bytes on the **wire**, which belong to the backend. An all-gather is handed a rank's own part only, so 0.25 models of payload are 0.75 to send.
#
# ### In which order
#
# One step of `zero3`, recorded; below, the calls of rank 0 in order. In the forward each layer is gathered. In the backward it is gathered again, and its gradients are reduced. What the recording calls `all_reduce` is gloo's stand-in for the reduce-scatter.


# %%
def recorded():
    from labkit.measure import trace

    zero3(num_steps=1)  # connects the ranks
    with trace.record(operators=False):
        zero3(num_steps=1)


step = lab.launch(recorded, **options).timeline()
step = step.select(step.lane == "comm")
widgets.show(scene.timeline(step, title="ZeRO 3"))
mine = step.select(step.rank == 0)
calls = sorted(zip(mine.start_us.tolist(), mine.kind.tolist(), mine.num_bytes.tolist()))
for kind, group in itertools.groupby(calls, key=lambda call: call[1]):
    sizes = [num_bytes for _, _, num_bytes in group]
    print(f"{len(sizes):2} x {kind:<11} {sum(sizes):8,} bytes")

# %% [markdown]
# The first row is the forward, and the head's second gather. Then, from the last layer to the first, a layer's gradients are reduced and the layer before it is gathered. (The last row is the gather at the end of `zero3`, for the look.)

# %% [markdown] sections="10.2.5, S5"
# ## The same with DeepSpeed
#
# DeepSpeed takes the model and a configuration and gives back an engine; the loop has two lines of its own. `engine.backward(loss)` divides by the accumulation steps, makes the gradients and reduces them. `engine.step()` updates at the end of an accumulation and does nothing before it. No `zero_grad`, no `all_reduce`: where the parts lie and what is sent is the configuration's business. The workflow of section 10.2.5 is the four stages that you have just written.


# %%
def config(stage, accumulate=2, **zero):
    """A configuration as JSON has it. Buckets are small, as the model is."""
    zero = {
        "stage": stage,
        "reduce_bucket_size": 50_000,
        "allgather_bucket_size": 50_000,
        **zero,
    }
    if stage == 3:  # gather every parameter when it is used, and keep none
        zero |= {
            "stage3_prefetch_bucket_size": 0,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        }
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulate,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    }


# %%
def train(configs):
    import time
    import deepspeed
    import torch
    import torch.distributed as dist
    from labkit.measure import traffic
    from labkit import model

    found = {}
    for name, settings in configs.items():
        torch.manual_seed(0)
        engine, optimizer, _, _ = deepspeed.initialize(
            model=model.Transformer(2, 64, 4, max_len=32), config=settings
        )
        tokens, targets = model.story_tokens(2, 32, seed=dist.get_rank())
        for step in range(2):
            dist.barrier()
            began = time.perf_counter()
            for index in range(engine.gradient_accumulation_steps()):
                with (
                    traffic.count() as counted
                ):  # in the end: the last microbatch and the update
                    loss = model.loss(engine(tokens).float(), targets)
                    engine.backward(loss)
                    held = (
                        held if index else sharding.shards(engine)
                    )  # after the first microbatch
                    engine.step()
        found[name] = loss.item(), held, counted, 1000 * (time.perf_counter() - began)
    return found


# %%
configs = {f"zero{stage}": config(stage) for stage in range(4)}
configs["zero2, reduce"] = config(2, use_multi_rank_bucket_allreduce=False)
configs |= {
    f"fp32, zero{stage}": config(stage) | {"bf16": {"enabled": False}}
    for stage in (0, 3)
}
cpu = {"device": "cpu"}  # the last two are for the section on offload
configs |= {
    "offload optimizer": config(3, offload_optimizer=cpu),
    "offload all": config(3, offload_optimizer=cpu, offload_param=cpu),
}
engines = lab.launch(train, configs, ranks=2, timeout_s=58)
for name, (loss, _, _, _) in engines[0].items():
    print(f"{name:<17} second loss of rank 0: {loss:.5f}")

# %% [markdown]
# In fp32 the loss after an update is the same to the last digit, nothing sharded or everything. In 16 bit the sharded stages agree, to rounding, and stage 0 takes other steps: DeepSpeed hands it to another class, its `FP16_Optimizer`. Compare trainings within the sharded stages, or in fp32.

# %% [markdown] sections="8.5.1, 19.4.1"
# ### Who holds what
#
# `sharding.shards` reads the engine's own tensors. Below them, what stage and number of ranks should give, slice by slice:

# %%
print(
    "bytes per parameter, mean\n       parameters  gradients  optimizer   together  formula   slices off"
)
for stage in range(4):
    held = shards.join(result[f"zero{stage}"][1] for result in engines)
    predicted = sharding.Step(engine=f"zero{stage}", layers=2).predict()
    used = held.select(
        (held.kind != "buffer")
        & (held.tensor != shards.PADDING)
        & (held.tensor != shards.UNUSED)
    )
    parts = [num.mean() / num_params for num in used.bytes_by("category").values()]
    due = sum(sharding_states.state_bytes(1, 2, stage).values())
    print(
        f"ZeRO {stage}",
        "".join(f"{each:11.2f}" for each in (*parts, sum(parts))),
        f"{due:8.2f}",
        f"{len(shards.differences(predicted, held)):12}",
    )

# %%
held = shards.join(result["zero2"][1] for result in engines)
widgets.show(
    bytes_held.shards(
        sharding.Step(engine="zero2", layers=2).predict(),
        held,
        title="ZeRO 2",
    )
)

# %% [markdown] sections="8.5.1"
# The engine's bytes are those of the formulas, and not those of the textbook. What the table leaves out is grey in the picture: padding, and gradients that DeepSpeed keeps whole where a rank needs only a slice. Its stage 3 also has a bucket of a size that the configuration states.
#
# ### What DeepSpeed sends
#
# The last microbatch of a step and the update: the payload by collective (in models of 16 bit), and the wire of both ranks in multiples of stage 0. **Predict** first: which collective does stage 2 call for its gradients?

# %%
CALLED = ("all_reduce", "reduce", "reduce_scatter")
my_collective = lab.guess(
    {"en": "what stage 2 calls for its gradients", "zh": "stage 2 为梯度调用的操作"},
    choices=CALLED,
)

# %%
wire = {
    name: sum(result[name][2].sent_bytes or float("nan") for result in engines)
    for name in configs
}  # Linux only
for name in [name for name in configs if name.startswith("zero")]:
    counted = engines[0][name][2]
    payload = {
        kind: f"{num / 2 / num_params:.2f}"
        for kind, num in counted.payload_bytes.items()
        if num > 4000
    }
    print(f"{name:<13}  wire {wire[name] / wire['zero0']:4.2f}x   {payload}")
carried = engines[0]["zero2"][2].payload_bytes
my_collective.score(max(CALLED, key=lambda kind: carried.get(kind, 0)))

# %% [markdown]
# Stages 1 and 2 call **all-reduce**, and then gather: 1.5x, on any backend. It is a choice of DeepSpeed (0.19): `use_multi_rank_bucket_allreduce` is true unless you say otherwise, since one all-reduce of a bucket has fewer messages than a reduce for each owner in it. With `false` (the row "zero2, reduce") each slice is reduced to its owner alone. That is the paper's 1x in payload (a reduce and an all-gather together are an all-reduce); gloo's reduce sends somewhat more than it must.
#
# So "ZeRO 2 sends 1.5x" is true of this setting of this library, and not of ZeRO 2. Stage 3 does call reduce-scatter, and gathers twice: 1.5x with a backend that has one.

# %% [markdown] sections="8.5.2, S5"
# ## The JSON, field by field
#
# What the sections' files contain, and what it does:
#
# | field | meaning |
# | --- | --- |
# | `train_batch_size` | samples per update, all ranks together |
# | `train_micro_batch_size_per_gpu` | samples of a rank in one forward and backward |
# | `gradient_accumulation_steps` | microbatches per update; batch = microbatch x steps x ranks, so two of the three are enough |
# | `gradient_clipping` | largest norm of all gradients together; **1.0 if you say nothing**, 0 is off |
# | `bf16.enabled`, `fp16.enabled` | train in 16 bit, with fp32 masters; one of the two. A CPU has no fp16 here |
# | `fp16.loss_scale`, `initial_scale_power` | 0: a dynamic scale, which begins at 2 to that power (chapter 05) |
# | `zero_optimization.stage` | 0 to 3 |
# | `reduce_bucket_size`, `allgather_bucket_size` | elements (not bytes) per message of the reduction and of stages 1 and 2's gather |
# | `reduce_scatter`, `allgather_partitions` | true: send gradients towards their owners, and gather in one call instead of N broadcasts |
# | `overlap_comm` | reduce while the backward still runs |
# | `contiguous_gradients` | copy gradients into one buffer as they come, against fragmented memory |
# | `offload_optimizer`, `offload_param` | where the states, or stage 3's parameters, lie: `cpu` or `nvme`; `pin_memory` for faster copies |
# | `sub_group_size` | stage 3 updates so many elements at a time |
# | `stage3_prefetch_bucket_size` | elements to gather ahead of their use |
# | `stage3_param_persistence_threshold` | a parameter smaller than this stays whole once it has been gathered |
# | `stage3_max_live_parameters`, `stage3_max_reuse_distance` | when not to free what was gathered |
# | `stage3_gather_16bit_weights_on_model_save` | put the weights together for a checkpoint |
# | `optimizer`, `scheduler` | a name and its arguments; or pass objects to `initialize` |
#
# DeepSpeed's parser reads the file and fills in the rest. Four ranks; the file of section 8.5.2 (without offload) with some changes. **Predict** which are refused.

# %%
my_refused = None  # some of the names below


# %%
def read(files):
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig

    deepspeed.init_distributed()  # it asks how many ranks there are
    said = {}
    for name, file in files.items():
        try:
            c = DeepSpeedConfig(file)
            said[name] = (
                f"batch {c.train_batch_size} = {c.train_micro_batch_size_per_gpu} x "
                f"{c.gradient_accumulation_steps} x 4 ranks, clipping {c.gradient_clipping}, "
                f"stage {int(c.zero_optimization_stage)}"
            )
        except Exception as error:
            said[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return said


# %%
book = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 2,
        "allgather_bucket_size": 2e8,
        "reduce_bucket_size": 2e8,
        "overlap_comm": True,
    },
}
files = {
    "8.5.2": book,
    "+ microbatch 8": book | {"train_micro_batch_size_per_gpu": 8},
    "8 x 1 x 4": book
    | {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1},
    "+ fp16": book | {"fp16": {"enabled": True}},
    "D-train": book | {"train_batch_size": "auto"},
    "no clipping": {
        key: value for key, value in book.items() if key != "gradient_clipping"
    },
    "typo inside": book | {"zero_optimization": {"stage": 2, "reduce_bucket": 2e8}},
    "S5": book
    | {"activation_checkpointing": {"enabled": True, "checkpoints_per_rank": 10}},
    "typo on top": {
        "zero_optimisation" if key.startswith("zero") else key: value
        for key, value in book.items()
    },
}
said = lab.launch(read, files, ranks=4, timeout_s=40)[0]
print(
    f"{my_refused = }", *(f"{name:<15} {text}" for name, text in said.items()), sep="\n"
)

# %% [markdown] sections="8.5.2, D-train, S5"
# - 32 with 4 accumulation steps on 4 ranks is a microbatch of **2**. The section gives it to a Trainer with 8: 8 x 4 x 4 is 128. With 8, the accumulation must be 1.
# - `"train_batch_size": "auto"` (section D-train) is not DeepSpeed's. It is for the HF Trainer, which writes the numbers in; DeepSpeed alone divides a word.
# - Inside `zero_optimization` an unknown field is refused. On top it is **ignored**: one letter, and the training runs at stage 0. Some sections ignore, too: DeepSpeed has no `enabled` and no `checkpoints_per_rank` under `activation_checkpointing`, and says nothing to S5's. Print `engine.zero_optimization_stage()` in your scripts.

# %% [markdown] sections="8.5.2, D-train"
# ## The launchers
#
# Section D-train starts a script by `deepspeed train.py --deepspeed_config FILE`. The script, on a small decoder like OPT (pre-norm, learned positions). `deepspeed.initialize(args=...)` takes the file from the arguments; the command adds `--local_rank` to them.

# %%
TRAIN = """import argparse, deepspeed, os, torch
import torch.distributed as dist
from labkit import model
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())  # --deepspeed_config FILE
parser.add_argument("--local_rank", type=int)  # the command adds it
net = model.Transformer(2, 64, 4, max_len=32)  # all ranks get rank 0's weights
adamw = torch.optim.AdamW(net.parameters(), lr=0.001)  # or by name in the file
engine, *_ = deepspeed.initialize(args=parser.parse_args(), model=net, optimizer=adamw)
for step in range(3):
    tokens, targets = (each.to(engine.device) for each in model.story_tokens(2, 32, seed=2 * step + dist.get_rank()))
    engine.backward(loss := model.loss(engine(tokens).float(), targets)), engine.step()
    dist.all_reduce(mean := loss.detach() / dist.get_world_size())  # for the log
    words = f"| stage {engine.zero_optimization_stage()}, step {step}, loss {mean.item():.4f}"
    if dist.get_rank() == 0: print(words, flush=True)
dist.destroy_process_group()"""

# %% [markdown]
# `dist.all_reduce` of the loss is for the log. Section D-train has it between `backward` and `optimizer.step()` of a plain model, under the comment "gradient synchronisation". It averages a number. Two ranks with their own data, three steps:


# %%
def synchronise(what):
    net, (tokens, targets) = weights_and_data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        loss = model.loss(net(tokens), targets)
        loss.backward()
        for tensor in {
            "loss": [loss.detach()],
            "gradients": [weight.grad for weight in net.parameters()],
        }[what]:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
        optimizer.step(), optimizer.zero_grad()
    return net.state_dict()


for what in ("loss", "gradients"):
    run = lab.launch(synchronise, what, ranks=2, timeout_s=40)
    print(
        f"all_reduce of the {what:<10} weights of the two ranks differ by {difference(run[0], run[1]):.0e}"
    )

# %% [markdown] sections="8.5.2"
# ### HF Trainer, and accelerate launch
#
# The Trainer takes the file as `deepspeed=`. It also has batch size, accumulation and precision of its own, so it checks the file against them. Three files: section 8.5.2's (fp16, in a Trainer with `bf16=True`); the same with bf16; and one in which everything that the Trainer knows says "auto". OPT again, the real class, at toy size.

# %%
HF = r"""import os, sys, torch
from transformers import OPTConfig, OPTForCausalLM, Trainer, TrainingArguments as Arguments
from labkit import model, sharding
data = [{"input_ids": row, "labels": row} for row in model.story_tokens(48, 32)[0]]
sizes = OPTConfig(vocab_size=256, hidden_size=64, ffn_dim=256, num_attention_heads=4, num_hidden_layers=2)
common = {"per_device_train_batch_size": 8, "bf16": True, "max_steps": 3, "logging_steps": 1, "save_strategy": "no",
          "report_to": [], "disable_tqdm": True, "use_cpu": not torch.accelerator.is_available()}
for file in sys.argv[2:]:
    try:
        trainer = Trainer(OPTForCausalLM(sizes), Arguments(sys.argv[1], deepspeed=file, **common), train_dataset=data)
        trainer.train()
        engine = trainer.model_wrapped
        momentum = sharding.shards(engine).bytes_by("kind")["exp_avg"].sum() / 4  # numbers in fp32, of this rank
        held = momentum / sum(weight.numel() for weight in engine.parameters())
        said = type(engine).__name__, f"rank 0 holds {held:.2f} of the momentum", [entry["loss"] for entry in trainer.state.log_history[:3]]
    except ValueError as error: said = str(error).splitlines()
    if os.environ["RANK"] == "0": print(f"| {file.split('/')[-1]}:", *said, sep="\n|   ", flush=True)
if torch.distributed.is_initialized(): torch.distributed.destroy_process_group()"""

# %%
import json
import tempfile
from pathlib import Path

folder = tempfile.TemporaryDirectory()
shared = {key: book[key] for key in book if key != "bf16"}
auto = dict.fromkeys(
    (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ),
    "auto",
) | {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}
texts = {
    "fp16.json": json.dumps(shared | {"fp16": {"enabled": True}}),
    "bf16.json": json.dumps(book),
    "auto.json": json.dumps(auto),
    "train.py": TRAIN,
    "hf.py": HF,
    "ours.json": json.dumps(
        {key: value for key, value in config(2).items() if key != "optimizer"}
    ),
}
paths = {name: Path(folder.name, name) for name in texts}
print(
    "wrote",
    *(
        f"{name} ({paths[name].write_text(text)} characters)"
        for name, text in texts.items()
    ),
)

# %% [markdown]
# `accelerate launch` reads what to start from a file of its own, as in the section. First the command `deepspeed` with the script above, then the Trainer, each on two ranks. With GPUs you would type `deepspeed --num_gpus 4 train.py ...`; a machine without is told by `DS_ACCELERATOR=cpu`.

# %%
import os
import subprocess
import sys

from labkit.machine import resources

yaml = Path(folder.name, "accelerate.yaml")
yaml.write_text(f"""distributed_type: DEEPSPEED
deepspeed_config: {{deepspeed_config_file: {paths["auto.json"]}, zero3_init_flag: false}}
num_machines: 1
num_processes: 2
main_process_port: {resources.free_port()}
""")
environment = (
    os.environ
    | ({} if resources.num_gpus() > 1 else ops.environment())
    | {"OMP_NUM_THREADS": "1"}
)
environment |= {"GLOO_SOCKET_IFNAME": name} if (name := resources.loopback()) else {}

# %%
by_deepspeed = lab.launch_script(
    paths["train.py"],
    "--deepspeed_config",
    paths["ours.json"],
    using="deepspeed",
    timeout_s=58,
)
print(
    *(text for text in by_deepspeed.logs[0].splitlines() if text.startswith("|")),
    sep="\n",
)

# %%
words = (
    "--config_file",
    yaml,
    paths["hf.py"],
    folder.name,
    paths["fp16.json"],
    paths["bf16.json"],
    paths["auto.json"],
)
line = [
    sys.executable,
    "-m",
    "accelerate.commands.launch",
    *words,
]  # what the command accelerate launch runs
hf = subprocess.run(line, env=environment, text=True, timeout=58, capture_output=True)
print("$ accelerate launch", *words)
print(*(text for text in hf.stdout.splitlines() if text.startswith("|")), sep="\n")
assert hf.returncode == 0, hf.stderr[-2000:]

# %% [markdown]
# The Trainer refuses the first two, and says what it takes them for. On 4 ranks the batch of 32 would agree (8 x 1 x 4), and the accumulation still would not. "auto" is the cure, and only the Trainer can fill it in. Half of the momentum lies on each rank: stage 2 was in use. The line above names the class that trained: look at it in your own scripts. If it is `DistributedDataParallel`, the file was not used. That happens silently, for instance with `ACCELERATE_USE_CPU=true` in the environment.

# %% [markdown] sections="8.5.3"
# ## Offload
#
# The host has more memory than the device, and an update touches each state once per step. So the optimizer can live on the host and update there; stage 3 can keep its parameters there as well. Without a GPU everything lies in the same memory: **the host stands for the device**. What the engine means to be on the host is real, and is read from it; that anything crossed a link is not, and is computed.

# %%
print(
    "ZeRO 3, rank 0 of 2      device       host   loss      slices off the prediction"
)
for name, result in (
    ("none", "zero3"),
    ("optimizer", "offload optimizer"),
    ("all", "offload all"),
):
    loss, held, _, _ = engines[0][result]
    lies = {device: int(num[0]) for device, num in held.bytes_by("device").items()}
    on_host = lies.pop("host", 0)
    due = sharding.Step(engine="zero3", layers=2, offload=name).predict()
    off = shards.differences(due.select(due.rank == 0), held)
    print(
        f"offload {name:<12} {sum(lies.values()):10,} {on_host:10,}   {loss:.5f} {len(off):6}"
    )

# %% [markdown] sections="8.5.3"
# With both, the device keeps one bucket between two microbatches, and the layer that is being computed. Note the host's column: DeepSpeed also puts the gradients there, in 16 bit and in fp32.
#
# ### What crosses the link
#
# By DeepSpeed's rules, per rank and step; on the right the bytes of the live tensor that each move fills (16-bit gradients, fp32 gradients, parameters), measured in the run above. The times are computed, for a link of 31.5 GB/s each way (PCIe 4 x16, chapter 02) and a model of 7B on 2 ranks.

# %%
live = {
    kind: int(num[0])
    for kind, num in engines[0]["offload all"][1].bytes_by("kind").items()
}
small, large = (
    sharding_states.offload_moves(size, 2, 3, "all") for size in (num_params, 7e9)
)
print("                                     small model   its tensor     7B, computed")
for move, more, kind in zip(
    small, large, ("parameter", "parameter", "gradient", "main_grad")
):
    way = "to the host" if move.to_host else "to the device"
    print(
        f"{move.phase:<9} {move.what:<11} {way:<13} {move.num_bytes:10,.0f} {live[kind]:12,} {more.num_bytes / 1e9:10.1f} GB "
        f"in {more.num_bytes / 31.5e9:.2f} s"
    )

# %%
widgets.offload_flow()

# %% [markdown] sections="8.5.3"
# The bytes are per step, whatever the batch. A larger batch has more compute to hide them under; with a small one the link is what you wait for.
#
# ### LLaMA 70B
#
# Section 8.5.3 lists memory per GPU for four set-ups. Model states alone, of devices with 80 GB:

# %%
for name, num_ranks, stage, said in (
    ("DDP", 32, 0, "80 GB, too little"),
    ("ZeRO 2", 8, 2, "78 GB"),
    ("ZeRO 3", 4, 3, "68 GB"),
):
    states = sum(sharding_states.state_bytes(70e9, num_ranks, stage).values()) / 1e9
    least = sharding_states.ranks_needed(70e9, 80e9, stage)
    where = f"it fits from {least} GPUs on" if least else "it fits on no number of GPUs"
    print(
        f"{name}, {num_ranks:2} GPUs: {states:6.1f} GB each; the text says {said}; {where}"
    )
host = (sum(sharding_states.state_bytes(70e9).values()) + 4 * 70e9) / 1e9
print(
    f"ZeRO 3 and offload, 2 GPUs: no states have to stay on the device; {host:,.0f} GB in the host's memory,"
)
print(
    f"  and {sum(move.num_bytes for move in sharding_states.offload_moves(70e9, 2, 3, 'all')) / 31.5e9:.0f} s of transfers per step and link"
)

# %% [markdown]
# That DDP does not fit, the text says itself. The next two are impossible; stage 2 fits on no number of GPUs, since 2 bytes per parameter stay whole. The last one needs what the table leaves out: a host that holds all the states, and DeepSpeed's fp32 gradients besides. The column of speeds cannot be checked without such machines; with seconds of transfers in every step, "45%" needs a very large batch.
#
# ### DeepSpeed's own estimates
#
# DeepSpeed has estimators. For stage 2 its code counts 2P + 18P/N. Its page of documentation says 4P + 16P/N, and prints an example that must be from that older count: t5-3b on 8 GPUs, 15.93 "GB".

# %%
P, N = 2_851_598_336, 8  # t5-3b
code, page = sharding_states.deepspeed_estimate(P, N, stage=2), 4 * P + 16 * P / N
for name, num_bytes in (
    ("code: 2P + 18P/N", code),
    ("page: 4P + 16P/N", page),
    ("ZeRO paper: 2P + 14P/N", 2 * P + 14 * P / N),
):
    print(f"{name:<23} {num_bytes / 1e9:6.2f} GB = {num_bytes / 2**30:6.2f} GiB")


# %%
def estimators():
    from deepspeed.runtime.zero.stage_1_and_2 import (
        estimate_zero2_model_states_mem_needs,
    )

    return estimate_zero2_model_states_mem_needs(
        2_851_598_336, num_gpus_per_node=8, cpu_offload=False
    )[1]


print(
    f"DeepSpeed's function returns {lab.launch(estimators, ranks=1, timeout_s=40)[0]:,}; ours {code:,}"
)

# %% [markdown]
# The example is the page's formula, in GiB, and is called GB. The code counts 4 bytes more per dealt parameter than the paper: gradients accumulated in fp32 beside those in 16 bit.
#
# ### The answer of exercise 19.8.4
#
# 10B parameters, 8 GPUs of 40 GB: 2 pipeline stages, each split in 2 by tensors, and 2 data-parallel copies with ZeRO 1. The answer given says 10 GB of parameters in fp16, 5 GB per GPU; Adam 20 GB, with ZeRO 1 5 GB; activations 10 GB; "about 20 GB, ample room". A gradient does not occur.

# %%
mine = 10e9 / (2 * 2)  # parameters of a GPU
for name in ("mixed", "megatron"):
    parts = sharding_states.by_category(
        sharding_states.state_bytes(mine, num_ranks=2, stage=1, recipe_name=name)
    )
    spoken = ", ".join(
        f"{part} {num_bytes / 1e9:g}" for part, num_bytes in parts.items()
    )
    print(
        f"{sharding_states.recipe(name).what}\n  {spoken}, activations 10: {sum(parts.values()) / 1e9 + 10:g} GB of 40"
    )

# %% [markdown]
# 35 or 40 GB: at the limit, before anything is gathered or fragmented.

# %% [markdown] sections="10.7.2"
# ## ZeRO 3 against plain data parallelism
#
# Exercise 10.7.2: a ZeRO-3 training beside the ordinary one. Both ran above, in fp32, on 2 ranks, from one configuration with one number changed. **Predict** the bytes of states, the calls of collectives and the time of a step, in multiples of stage 0.

# %%
my_times = {"bytes": None, "collectives": None, "time": None}

# %%
print(
    f"{my_times = }\n          loss      states per rank  collectives      payload      step"
)
for stage in (0, 3):
    loss, held, counted, ms = engines[0][f"fp32, zero{stage}"]
    states = int(
        held.num_bytes[(held.kind != "buffer") & (held.kind != "gathered")].sum()
    )
    print(
        f"stage {stage}   {loss:.5f} {states:14,} {counted.calls.total():13} {counted.payload_bytes.total():14,} {ms:7.0f} ms"
    )

# %% [markdown]
# The same loss, fewer bytes, and many more messages. (20/N bytes per parameter and not 16/N: DeepSpeed's stage 3 keeps a master copy in fp32, too.) With nothing kept or prefetched, each parameter is gathered twice, in messages of its own. On a model of this size that is what the time goes into. The default thresholds exist for this; they give some of the memory back for fewer messages.
#
# ## Exercises
#
# A check never stops the notebook. It tries your answer at sizes that are not shown, on real ranks, against live bytes, and gives the first case that goes wrong. `check.hint(name)` tells more after each attempt.
#
# ### 1. Shard an optimizer
#
# Train `num_steps` steps of AdamW (`lr=0.01`, torch's defaults otherwise) on the mean gradient of all ranks. `backward(step)` adds this rank's gradients to those in `model`. In the end all ranks have the weights of one process with everybody's data. A rank keeps moments for about 1/N of the parameters, in whole weights or in slices; sizes do not divide. A step sends no more than an all-reduce of the gradients.


# %%
def my_sharded_adamw(model, backward, num_steps):
    """Leaves in model the weights after num_steps steps."""
    ### BEGIN SOLUTION
    weights, rank, size = (
        list(model.parameters()),
        dist.get_rank(),
        dist.get_world_size(),
    )
    starts = [0, *itertools.accumulate(weight.numel() for weight in weights)]
    owners = [start * size // starts[-1] for start in starts[:-1]]
    optimizer = torch.optim.AdamW(
        [weight for weight, owner in zip(weights, owners) if owner == rank], lr=0.01
    )
    for step in range(num_steps):
        backward(step)
        for weight, owner in zip(weights, owners):
            dist.reduce(weight.grad, owner)
            weight.grad /= size
        optimizer.step()
        for weight, owner in zip(weights, owners):
            dist.broadcast(weight.data, owner)
        model.zero_grad()
    ### END SOLUTION


# %%
check.shard_adamw(my_sharded_adamw)

# %%
check.hint("shard_adamw")

# %% [markdown]
# ### 2. What fits?
#
# 16 bytes of states per parameter, and `other_bytes` on every rank for activations and the like. Return `(num_ranks, stage)`: the fewest ranks, at most `most_ranks`, on which some stage fits into `device_bytes`; of the stages that fit there, the lowest. `None` if nothing fits.


# %%
def my_fit(num_params, device_bytes, other_bytes, most_ranks):
    """(num_ranks, stage), or None."""
    ### BEGIN SOLUTION
    for n in range(1, most_ranks + 1):
        for stage, per_parameter in enumerate((16, 4 + 12 / n, 2 + 14 / n, 16 / n)):
            if num_params * per_parameter + other_bytes <= device_bytes:
                return n, stage
    ### END SOLUTION


# %%
check.fit(my_fit)

# %%
check.hint("fit")

# %% [markdown] sections="8.5.1"
# ### 3. The textbook's example, corrected
#
# Write the formulas of section 8.5.1 so that they are right for every stage and number of ranks. The check compares with a live DeepSpeed engine.


# %%
def my_state_bytes(num_params, num_ranks, stage):
    """Bytes of parameters, gradients and optimizer states per rank: 2, 2 and 12 per parameter, sharded by the stage."""
    ### BEGIN SOLUTION
    parts = (
        (12, 1),
        (2, 2),
        (2, 3),
    )  # bytes, and the stage from which they are sharded
    return sum(
        size * num_params / (num_ranks if stage >= first else 1)
        for size, first in parts
    )
    ### END SOLUTION


# %%
check.correct_the_textbook(my_state_bytes)

# %%
check.hint("correct_the_textbook")

# %% [markdown]
# ### 4. A configuration that changes nothing
#
# Write DeepSpeed's configuration for ZeRO 3 in fp32, so that the weights in the end are those of torch's AdamW in one process: the batch given, accumulated from microbatches, and nothing that nobody asked for.


# %%
def my_config(num_ranks, global_batch, micro_batch, learning_rate, weight_decay):
    """A configuration as a dict."""
    ### BEGIN SOLUTION
    adamw = {
        "type": "AdamW",
        "params": {"lr": learning_rate, "weight_decay": weight_decay},
    }
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "optimizer": adamw,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 3},
    }
    ### END SOLUTION


# %%
check.same_training(my_config)

# %%
check.hint("same_training")

# %% [markdown]
# ## Summary
#
# - Per parameter and rank, with Adam in 16 bit: 16 bytes, 4 + 12/N, 2 + 14/N, 16/N. A saving is a function of N.
# - Stages 1 and 2 need to send what DDP sends, stage 3 1.5 times as much. DeepSpeed's stages 1 and 2 call all-reduce by default and send 1.5 times; gloo replaces reduce-scatter by all-reduce. Payload and wire are two counts.
# - `initialize`, `backward`, `step`; the rest is the configuration. batch = microbatch x accumulation x ranks. Clipping is on unless it is turned off. A misspelt field on top is ignored.
# - "auto" is for the HF Trainer, which fills it in and refuses what contradicts it. Look at the class that trains.
# - Offload moves the states to the host, and bytes over the link in each step.
#
# ## Sources
#
# - ZeRO: Rajbhandari, Rasley, Ruwase and He 2020, [arXiv 1910.02054](https://arxiv.org/abs/1910.02054)
# - ZeRO-Offload: Ren et al. 2021, [arXiv 2101.06840](https://arxiv.org/abs/2101.06840)
# - [DeepSpeed's configuration](https://www.deepspeed.ai/docs/config-json/), its [memory page](https://deepspeed.readthedocs.io/en/latest/memory.html), and [DeepSpeed in the HF Trainer](https://huggingface.co/docs/transformers/deepspeed)
#
# Where you stand:

# %%
check.status()
