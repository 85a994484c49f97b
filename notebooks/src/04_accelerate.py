# ---
# jupyter:
#   labkit:
#     sections: ["8.2.1", "8.2.2", "8.2.3", "8.2.4"]
#     needs: ["two CPU cores"]
#     minutes: 60
# ---

# %% [markdown]
# # Accelerate
#
# *Sections 8.2.1 to 8.2.4 of the source material. About 60 minutes. No GPU is needed.*
#
# Hugging Face Accelerate promises one script for one process, many, mixed precision, DeepSpeed and FSDP. You will write such a script, run it in six ways without touching it, and check that the weights come out the same. Then you will open the calls it is made of, and see what each of them did: `prepare`, `backward`, `accumulate`, `clip_grad_norm_`, `gather`, `save_state`.
#
# The promise is about the code. What is trained can still change without a word; each section has an example.

# %%
import labkit as lab

lab.begin("en")
import tempfile
from pathlib import Path

import torch
from labkit import accelerate as accelerated, model, widgets
from labkit.accelerate import check

folder = tempfile.TemporaryDirectory()


def difference(ours, theirs):
    """The largest difference between two dicts of tensors."""
    return max(
        (ours[name].float() - theirs[name].float()).abs().max().item()
        for name in theirs
    )


# %% [markdown] sections="8.2.1"
# ## One script
#
# An ordinary script, and what Accelerate adds to it: an `Accelerator`, `prepare` around the objects, `accelerator.backward` in place of `loss.backward`. `accumulate`, `sync_gradients` and `clip_grad_norm_` are explained below. The batch size is the script's argument. (AdamW divides by the size of a gradient; the larger `eps` keeps it from blowing up rounding where that is nearly 0.) The first half sets up:

# %%
SET_UP = """\
import os, sys, torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from labkit import model

accelerator = Accelerator()
torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
loader = DataLoader(TensorDataset(*model.story_tokens(64, 32)), batch_size=int(sys.argv[1]))
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
"""

# %% [markdown]
# The second half trains one epoch on 64 passages:

# %%
LOOP = """
for tokens, targets in loader:
    with accelerator.accumulate(net):
        loss = model.loss(net(tokens), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(f"rank {accelerator.process_index} of {accelerator.num_processes}, {accelerator.mixed_precision}, {loss.item():.6f}")
if "TORCHELASTIC_RUN_ID" in os.environ: accelerator.end_training()
"""
script = Path(folder.name, "train.py")
print(script.write_text(SET_UP + LOOP), "characters")

# %% [markdown] sections="8.2.3"
# ## The configuration file
#
# `accelerate config` asks questions and writes the answers to a file of YAML; any editor can write it, too. `distributed_type` says which engine; `num_processes` counts the processes of all machines together; `mixed_precision` is a default for the script. Section 8.2.3 lists more keys: `machine_rank`, `main_process_ip`, `main_process_port`, `rdzv_backend` and `same_network` matter for several machines, `gpu_ids` picks GPUs, `downcast_bf16` is for TPUs. Three files:

# %%
COMMON = "compute_environment: LOCAL_MACHINE\nnum_machines: 1\nnum_processes: 2\n"
CONFIGS = {
    "bf16": "distributed_type: MULTI_GPU\nmixed_precision: bf16\n",
    "fsdp": "distributed_type: FSDP\nmixed_precision: 'no'\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Block\n"
    "  fsdp_cpu_ram_efficient_loading: false\n",
    "zero2": "distributed_type: DEEPSPEED\nmixed_precision: 'no'\ndeepspeed_config:\n  zero_stage: 2\n"
    "  gradient_clipping: 1.0\n",
}
for name, text in CONFIGS.items():
    Path(folder.name, f"{name}.yaml").write_text(COMMON + text)
print(Path(folder.name, "fsdp.yaml").read_text())

# %% [markdown]
# Read back by Accelerate's own reader, with four variants that look harmless:

# %%
from accelerate.commands.config import load_config_from_file

VARIANTS = {
    "as written": "",
    "one key more": "gradient_accumulation_steps: 4\n",
    "MULTI-GPU": "distributed_type: MULTI-GPU\n",
    "no": "mixed_precision: no\n",
    "'no'": "mixed_precision: 'no'\n",
}
for name, more in VARIANTS.items():
    variant = Path(folder.name, "variant.yaml")
    variant.write_text(
        COMMON + CONFIGS["bf16"] + more
    )  # a key given twice: the later one counts
    try:
        config = load_config_from_file(str(variant))
        print(
            f"{name:13} {config.distributed_type.value}, mixed_precision {config.mixed_precision!r}"
        )
    except ValueError as error:
        print(
            f"{name:13} ValueError: {str(error).partition(' had ')[2].partition(', please')[0] or error}"
        )

# %% [markdown]
# A key that the file does not know is refused: accumulation is no top-level key. And `no` without quotes is YAML's word for False, not the string that `mixed_precision` needs: the file is read without complaint.
#
# What does `accelerate launch` do with a file? It turns it into environment variables and starts the script under torch's own launcher. The function below asks the launcher's own code for those variables:

# %%
from accelerate.commands import launch
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env


def handed_over(name, *flags):
    """What `accelerate launch --config_file name.yaml ... train.py` puts into the environment of each rank."""
    line = [
        "--config_file",
        f"{folder.name}/{name}.yaml",
        "--main_process_port",
        "0",
        *flags,
        "train.py",
    ]
    args, defaults, _ = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(line)
    )
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    given = (
        prepare_deepspeed_cmd_env(args)[1]
        if args.use_deepspeed
        else prepare_multi_gpu_env(args)
    )
    return {
        key: value
        for key, value in given.items()
        if key.startswith(("ACCELERATE_", "FSDP_"))
    }


quiet = ("DYNAMO", "false", "CONFIG_DS")
for name, flags in (
    ("bf16", ()),
    ("bf16", ("--mixed_precision", "no")),
    ("fsdp", ()),
    ("zero2", ()),
):
    given = [f"   {key}={value}" for key, value in handed_over(name, *flags).items()]
    print(
        " ".join((name, *flags)),
        *(each for each in given if not any(word in each for word in quiet)),
        sep="\n",
    )

# %%
variant.write_text(COMMON + CONFIGS["bf16"] + VARIANTS["no"])
try:
    handed_over("variant")
except AttributeError as error:
    print("no without quotes: AttributeError:", error)

# %% [markdown]
# A flag counts for more than the file. The script never sees the file; it sees variables, and `Accelerator()` reads them.
#
# Now the real command. Without GPUs one more variable is needed, `ACCELERATE_USE_CPU`; `launch_script` sets and shows it. It takes several seconds, most of them imports, in the launcher and again in each rank. So it runs beside the next cells, and we look at it when it is done:

# %%
from concurrent.futures import ThreadPoolExecutor

command = ThreadPoolExecutor().submit(
    lab.launch_script,
    script,
    "4",
    ranks=2,
    using="accelerate",
    config=f"{folder.name}/bf16.yaml",
    timeout_s=55,
)

# %% [markdown] sections="8.2.1, 8.2.2"
# ## Six ways
#
# From here on ranks start in the notebook, in a fraction of a second. (The first runs take longer: they share the cores with the command.) Each runs the same file with the variables that `accelerate launch` would have set. Without a GPU for each of them, Accelerate 1.15 needs a push: it uses FSDP only where it has found GPUs, and starts DeepSpeed in the belief that there is one process. So it is told of the ranks and of this rank's device before it looks: `accelerated.find_device()`, here and below. Where each rank has a GPU, that line changes nothing.


# %%
def run_as(path, batch_size, environment, alone=False, told=True):
    import os, runpy, sys, torch

    torch.set_num_threads(1)  # what `accelerate launch` asks for, by OMP_NUM_THREADS
    sys.argv = [path, str(batch_size)]
    os.environ.update(environment)
    if alone:  # as `python train.py` starts it: it is told nothing of ranks
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
    if told:
        accelerated.find_device()
    names = runpy.run_path(path)
    accelerator, net, optimizer = (
        names[name] for name in ("accelerator", "net", "optimizer")
    )
    weights = accelerator.get_state_dict(net)
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    steps = {int(state["step"]) for state in optimizer.state.values()}
    return {
        "type": accelerator.distributed_type.value,
        "net": type(net).__name__,
        "batches": len(names["loader"]),
        "updates": max(steps),
        "weights": weights,
        "loss": names["loss"].item(),
        "size": accelerator.num_processes,
    }


# %% [markdown]
# One process and five others. The batch size is a rank's own; it is chosen so that every update takes 8 passages: 8 in one process, 2 on each of four ranks, and so on. **Predict**: how many updates has the epoch of 64 passages in each way, and which weights equal those of the one process, up to rounding?

# %%
my_updates, my_equal_ways = None, None

# %%
WAYS = {  # ranks, batch size, variables
    "one process": (1, 8, {}),
    "four ranks": (4, 2, {}),
    "accumulation": (2, 2, {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}),
    "bf16": (2, 4, handed_over("bf16")),
    "FSDP": (2, 4, handed_over("fsdp")),
    "DeepSpeed": (2, 4, handed_over("zero2")),
}
runs = {
    name: lab.launch(
        run_as, str(script), size, given, ranks == 1, ranks=ranks, timeout_s=50
    )
    for name, (ranks, size, given) in WAYS.items()
}
reference = runs["one process"][0]["weights"]

# %%
print(
    f"{my_updates = }; {my_equal_ways = }\n{'':14}{'type':12}{'net':26}batches  updates  from one process"
)
for name, (run, *_) in runs.items():
    far = difference(run["weights"], reference)
    print(
        f"{name:14}{run['type']:12}{run['net']:26}{run['batches']:7}  {run['updates']:7}  {far:16.1e}"
    )

# %% [markdown]
# The same file each time. Four ranks, accumulation, FSDP and DeepSpeed train the model that one process trains; bf16 computes with 8 bits of mantissa, and is off by more.
#
# And the real command? `result()` waits for it, if it still runs. The last loss of each rank, beside that of the way "bf16" above, which had the same variables and the same batch size:

# %%
launched = command.result()
for rank, log in enumerate(launched.logs):
    print(
        "accelerate launch:",
        log.strip(),
        "  in the notebook:",
        f"{runs['bf16'][rank]['loss']:.6f}",
    )

# %% [markdown] sections="8.2.2"
# ### What the promise does not cover
#
# Section 8.2.2 calls the loop "identical to a single GPU's". The code is. But keep the batch size of 8 as well, start four ranks, and every update takes 32 passages: a quarter of the updates, another model. Or start two ranks on a machine without GPUs, but forget `ACCELERATE_USE_CPU`. Or do not forget it, and ask for FSDP or DeepSpeed:

# %%
CPU = {"ACCELERATE_USE_CPU": "true"}
TRAPS = {
    "batch size 8 on four ranks": (4, 8, CPU),
    "no GPU, no variable": (2, 4, {}),
    "FSDP's file, the variable": (2, 4, CPU | handed_over("fsdp")),
    "DeepSpeed's, the variable": (2, 4, CPU | handed_over("zero2")),
}
for name, (ranks, size, given) in TRAPS.items():
    run = lab.launch(
        run_as,
        str(script),
        size,
        given,
        told=False,
        ranks=ranks,
        devices="cpu",
        timeout_s=40,
    )  # a machine without GPUs is what this cell is about
    far = difference(run[0]["weights"], reference)
    print(
        f"{name:27} {run[0]['type']:10} {run[0]['net']:24} {run[0]['updates']:2} updates, {far:.1e} from one process; "
        f"num_processes {[each['size'] for each in run]}"
    )

# %% [markdown]
# In the second, each rank believes that it is alone (where Accelerate finds GPUs, it takes them and counts them). Nothing is averaged: the job costs twice as much and trains the same model two times. In the last two the type says it: plain DDP, whatever the file asked for. No warning in any of them. Print `accelerator.state` at the start of a script and read it.

# %% [markdown]
# One more. What the script passes to `Accelerator(...)` and what the launcher sets may differ. **Predict** who wins:

# %%
my_winners = {"mixed_precision": None, "gradient_accumulation_steps": None}


# %%
def who_wins():
    import os
    from accelerate import Accelerator

    os.environ |= {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
    }
    accelerator = Accelerator(mixed_precision="no", gradient_accumulation_steps=4)
    return accelerator.mixed_precision, accelerator.gradient_accumulation_steps


print(
    f'{my_winners = }\nthe launcher says ("bf16", 2), the script ("no", 4):',
    lab.launch(who_wins, ranks=1, timeout_s=40)[0],
)

# %% [markdown]
# The script for the precision, the launcher for the accumulation. Say each in one place only.

# %% [markdown] sections="8.2.2"
# ## What prepare changed
#
# `accelerator.prepare` returns other objects than it was given. The same model, optimizer and loader before and after, on rank 0 of two, with `mixed_precision="bf16"`; "inside" is what a block computes in:

# %%
found = {
    engine: lab.launch(accelerated.step, engine, "bf16", ranks=2, timeout_s=40)[0]
    for engine in ("ddp", "fsdp", "zero2")
}
print(f"{'':14}{'before':26}" + "".join(f"{engine:28}" for engine in found))
for row, before in found["ddp"]["before"].items():
    print(
        f"{row:14}{before:26}"
        + "".join(f"{result['after'][row]:28}" for result in found.values())
    )

# %% [markdown]
# The model is wrapped (DDP, DeepSpeed) or its weights are cut (FSDP: a `DTensor`, half of the elements here). The loader deals batches out, so it is half as long. What is not yet on the rank's device has been moved there: `batch on`.
#
# "Mixed precision" is three things. With DDP the weights stay in fp32, `autocast` computes in bf16, and the output is turned back into fp32. FSDP keeps its shards in fp32 and gathers, computes and returns bf16. DeepSpeed keeps bf16 weights, and an fp32 copy in its optimizer. What is sent differs, too. **Predict** for DDP and FSDP: is the payload of a rank in bf16 half of that in fp32?

# %%
my_halves = {"ddp": None, "fsdp": None}


# %%
def payload(result):
    return sum(
        sum(line["payload_bytes"].values())
        for batch in result["lines"]
        for line in batch.values()
    )


print(f"{my_halves = }\nbytes of an update{'no':>12}{'bf16':>12}")
for engine in my_halves:
    full = lab.launch(accelerated.step, engine, "no", ranks=2, timeout_s=40)[0]
    print(f"{engine:18}{payload(full):12,}{payload(found[engine]):12,}")
fp16 = lab.launch(
    accelerated.step, "ddp", "fp16", ranks=2, devices="cpu", timeout_s=40
)[0]
print(
    f'mixed_precision="fp16" on the CPU: a block computes in {fp16["after"]["inside"]}'
)

# %% [markdown] sections="8.2.2"
# With DDP the gradients stay fp32, and so do the messages: mixed precision there saves compute and activations, not communication. FSDP gathers and reduces in bf16. And `--mixed_precision fp16`, the flag of section 8.2.2, does nothing at all on a CPU, without a word. On a GPU it adds a `GradScaler` (chapter 05).
#
# ### Which samples a rank gets
#
# Four ranks, batches of 2, samples 0 to 9. **Predict**: how many samples do the four ranks work through in an epoch?

# %%
my_samples = lab.guess(
    {
        "en": "samples of an epoch, all four ranks",
        "zh": "一轮里四个 rank 共处理的样本数",
    }
)


# %%
def deal(num_samples, num_epochs=1, batch_size=2, shuffle=False, options=None):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader

    accelerated.find_device()
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(**(options or {}))
    )
    loader = accelerator.prepare(
        DataLoader(range(num_samples), batch_size=batch_size, shuffle=shuffle)
    )
    return [[batch.tolist() for batch in loader] for _ in range(num_epochs)]


num_samples = []
for size, options in (
    (2, {}),
    (2, {"even_batches": False}),
    (8, {"split_batches": True}),
):
    dealt = [
        each[0]
        for each in lab.launch(deal, 10, 1, size, False, options, ranks=4, timeout_s=40)
    ]
    num_samples.append(sum(len(batch) for batches in dealt for batch in batches))
    print(f"batch size {size}, {options}: {num_samples[-1]} samples")
    print(
        *(f"   rank {rank}: {batches}" for rank, batches in enumerate(dealt)), sep="\n"
    )
my_samples.score(num_samples[0])

# %% [markdown]
# Batches are dealt out like cards, rank 0 the first. What is missing at the end is filled up with the first samples, so that all ranks do equally many steps: an epoch of 10 samples has 16. Without that (`even_batches=False`) ranks do unlike numbers of steps, and training needs `accelerator.join_uneven_inputs`, or one waits for another that has finished. With `split_batches=True` the batch size is that of all ranks together: then the number of updates no longer depends on the ranks.
#
# With `shuffle=True` all ranks shuffle alike. Rank 0 sends its generator's state around at the start of every epoch:

# %%
# on the CPU: that is where this version of Accelerate looks for a loader's random numbers
dealt = lab.launch(deal, 16, 2, 2, True, ranks=4, devices="cpu", timeout_s=40)
for epoch in range(2):
    order = [
        sample for step in range(2) for rank in dealt for sample in rank[epoch][step]
    ]
    print(f"epoch {epoch}: {order}, each once: {sorted(order) == list(range(16))}")

# %% [markdown] sections="8.2.4"
# ## backward, accumulate, clip, step
#
# The board shows what each line of the loop does in one update: choose the engine, the precision, the number of batches per update, and press the button. Before a run it predicts; afterwards each cell has both numbers. Here it has been run for DDP with two batches per update.

# %%
board = widgets.accelerate_workflow(engine="ddp", accumulation=2)
board.run()
board

# %% [markdown] sections="8.2.2, 8.2.4"
# Section 8.2.2 says that `accelerator.backward` synchronises the gradients. With DDP it does not: DDP's own hooks do. What `accelerator.backward` adds is a division by the number of accumulated batches, and fp16's scaling. Two ranks, `gradient_accumulation_steps=4`, one batch:


# %%
def two_backwards():
    from accelerate import Accelerator
    from labkit import model
    from labkit.measure import traffic

    accelerated.find_device()
    accelerator, found = Accelerator(gradient_accumulation_steps=4), {}
    net = accelerator.prepare(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(2, 32, seed=accelerator.process_index)
    for name in ("loss.backward()", "accelerator.backward(loss)"):
        net.zero_grad()
        loss = model.loss(net(tokens), targets)
        with traffic.count() as counted:
            loss.backward() if name == "loss.backward()" else accelerator.backward(loss)
        norm = (
            sum(weight.grad.square().sum() for weight in net.parameters()).sqrt().item()
        )
        found[name] = dict(counted.calls), norm
    return found


for name, (calls, norm) in lab.launch(two_backwards, ranks=2, timeout_s=40)[0].items():
    print(f"{name:27} {calls}, gradient norm {norm:.4f}")

# %% [markdown] sections="8.2.4"
# With DeepSpeed the difference is larger: `accelerator.backward` makes the whole update, and `optimizer.step()` does nothing (choose DeepSpeed on the board). So a loop that is to run on every engine calls `accelerator.backward`.
#
# ### When the batches do not divide
#
# `accumulate` also makes an update at the end of the loader, however few batches are left. The loss below has gradient 1 in every batch, the learning rate is 1; there are 6 batches and 4 are accumulated. The first update moves the weight by 1. **Predict** the second:

# %%
my_second_move = lab.guess(
    {
        "en": "how far the second update moves the weight",
        "zh": "第二次更新把权重移动多少",
    }
)


# %%
def moves(num_batches, accumulation):
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerated.find_device()
    accelerator = Accelerator(gradient_accumulation_steps=accumulation)
    net = torch.nn.Linear(1, 1, bias=False)
    loader = DataLoader(torch.ones(num_batches * accelerator.num_processes, 1))
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=1.0), loader
    )
    places = [next(net.parameters()).item()]
    for inputs in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            places.append(next(net.parameters()).item())
    return [before - after for before, after in zip(places, places[1:])]


moved = lab.launch(moves, 6, 4, ranks=2, timeout_s=40)[0]
print("moves:", moved)
my_second_move.score(moved[1])

# %% [markdown] sections="8.2.4"
# Two batches, divided by four: the last update of an epoch is too small. Let the loader's length divide, or drop the rest (`drop_last=True`).
#
# ### Clip once, when the gradient is complete
#
# Section 8.2.4 clips under `if accelerator.sync_gradients`. Why? And does it clip with every engine? One update with SGD and learning rate 1, so that the weights move by the clipped gradient; two accumulated batches, two ranks, `max_norm` 0.01. **Predict** which moves are 0.01 long.

# %%
my_clipped = {
    "ddp": None,
    "ddp, no if": None,
    "fsdp": None,
    "zero2": None,
    "zero2, in the file": None,
}


# %%
def clipped_move(engine, in_file=False, guard=True):
    import torch
    from labkit import accelerate as accelerated, model
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = accelerated.accelerator(
        engine, accumulation=2, max_norm=0.01 if in_file else None
    )
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    start = {name: weight.cpu().clone() for name, weight in net.state_dict().items()}
    net, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=1.0),
        DataLoader(TensorDataset(*model.story_tokens(8, 32)), batch_size=2),
    )
    for tokens, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(model.loss(net(tokens), targets))
            if accelerator.sync_gradients or not guard:
                accelerator.clip_grad_norm_(net.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    weights = accelerator.get_state_dict(net)
    return {
        name: weights[name].cpu() - start[name] for name in weights
    }  # FSDP's are there


# %%
CASES = {
    "ddp": ("ddp",),
    "ddp, no if": ("ddp", False, False),
    "fsdp": ("fsdp",),
    "zero2": ("zero2",),
    "zero2, in the file": ("zero2", True),
}
made = {
    name: lab.launch(clipped_move, *case, ranks=2, timeout_s=40)[0]
    for name, case in CASES.items()
}
print(f"{my_clipped = }")
for name, move in made.items():
    length, apart = (
        sum(each.square().sum() for each in tensors).sqrt().item()
        for tensors in (move.values(), [move[key] - made["ddp"][key] for key in move])
    )
    print(f"{name:19} moved by {length:.4f}, {apart:.4f} away from the first")

# %% [markdown]
# Without the `if`, the first batch's gradient is cut to 0.01 before the second, uncut one is added: the length is right and the direction is not. With DeepSpeed `accelerator.clip_grad_norm_` only reads the norm. It clips if its configuration says so (`gradient_clipping`), at the number that stands there, whatever the script says.

# %% [markdown] sections="8.2.4"
# ## gather, and the main process
#
# Section 8.2.4 prints the loss under `if accelerator.is_main_process`. That is rank 0's loss, not the mean; the mean needs all ranks. `accelerator.print` prints on the main process only. Four ranks:


# %%
def report():
    from accelerate import Accelerator
    from labkit import model

    accelerated.find_device()
    accelerator = Accelerator()
    net = accelerator.prepare(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(2, 32, seed=accelerator.process_index)
    loss = model.loss(net(tokens), targets).detach()
    every = accelerator.gather(loss)  # a collective: all ranks call it
    mean = accelerator.reduce(loss, "mean")
    accelerator.print(
        f"mine {loss:.4f}, mean of gather {every.mean():.4f}, reduce {mean:.4f}"
    )
    return accelerator.is_main_process, loss.item()


run = lab.launch(report, ranks=4, timeout_s=40)
for rank, (main, loss) in enumerate(run):
    print(
        f"rank {rank}, main process: {main}, loss {loss:.4f}, printed: {run.logs[rank].strip()!r}"
    )

# %% [markdown]
# The most frequent mistake is a collective that only the main process calls. The others go on, and it waits:


# %%
def only_the_main_one():
    import torch
    from accelerate import Accelerator

    accelerated.find_device()
    accelerator = Accelerator()
    if accelerator.is_main_process:
        print("mean", accelerator.gather(torch.ones(1)).mean())


try:
    lab.launch(only_the_main_one, ranks=2, hang_s=1.0, timeout_s=40)
except lab.Deadlock as error:
    print(str(error)[:400])

# %% [markdown] sections="8.2.4"
# ### A metric over a padded loader
#
# A classifier gets the first 6 of 10 samples right. Four ranks, batches of 2. `gather` collects all that the ranks have seen, `gather_for_metrics` drops what the loader has added. **Predict** the accuracy by either:

# %%
my_accuracies = {"gather": None, "gather_for_metrics": None}


# %%
def accuracy(name):
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerated.find_device()
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(range(10), batch_size=2))
    hits = torch.cat([getattr(accelerator, name)(samples < 6) for samples in loader])
    return f"{int(hits.sum())} of {len(hits)} = {hits.float().mean().item():.2f}"


print(f"{my_accuracies = }")
for name in my_accuracies:
    print(f"{name:20}", lab.launch(accuracy, name, ranks=4, timeout_s=40)[0])

# %% [markdown] sections="8.2.2"
# ## Saving
#
# Section 8.2.2 unwraps the model and saves it, on every process. With FSDP or ZeRO-3 the unwrapped model has only a part of each weight, or nothing. `accelerator.get_state_dict` gathers. Below, the elements that each of two ranks holds, the first word of their names, and their type:


# %%
def elements(engine):
    import torch
    from labkit import accelerate as accelerated, model
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = accelerated.accelerator(engine, precision="bf16")
    net = model.Transformer(2, 32, 2, max_len=32)
    loader = DataLoader(TensorDataset(*model.story_tokens(8, 32)), batch_size=2)
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters()), loader
    )
    found = (
        net.state_dict(),
        accelerator.unwrap_model(net).state_dict(),
        accelerator.get_state_dict(net),
    )
    told = []
    for weights in found:
        sizes = [
            getattr(each, "_local_tensor", each).numel()
            for each in (weights or {}).values()
        ]
        first = next(iter((weights or {"nothing": None}).items()))
        told.append(
            f"{sum(sizes):6,} {first[0].split('.')[0]} {str(getattr(first[1], 'dtype', ''))[6:]}"
        )
    return told


# %%
print(f"{'':8}{'net.state_dict()':26}{'unwrap_model(net)...':26}get_state_dict(net)")
for engine in ("ddp", "fsdp", "zero3"):
    for rank, told in enumerate(lab.launch(elements, engine, ranks=2, timeout_s=40)):
        print(f"{engine:6}{rank} " + "".join(f"{each:26}" for each in told))

# %% [markdown]
# So the pattern for every engine is: `weights = accelerator.get_state_dict(net)` on all ranks, for it is a collective; then `accelerator.save(weights, path)`, which writes on the main process only. FSDP and ZeRO-3 give the whole weights to rank 0 alone. DeepSpeed hands out its 16-bit weights; its fp32 copy stays in its own checkpoint.
#
# The other ranks do not wait for the one that writes, unless they are told to. Below the disk of the main process is slow; then each rank looks for the file:


# %%
def write_and_look(path, wait):
    import time
    from pathlib import Path
    from accelerate import Accelerator

    accelerated.find_device()
    accelerator = Accelerator()
    if accelerator.is_main_process:
        time.sleep(0.3)  # a slow disk
    accelerator.save({"step": 5}, path)  # the main process only
    if wait:
        accelerator.wait_for_everyone()
    return Path(path).exists()


for wait in (False, True):
    seen = lab.launch(
        write_and_look, f"{folder.name}/{wait}.bin", wait, ranks=3, timeout_s=40
    )
    print(
        f"wait_for_everyone {wait!s:5}: the file is there for rank 0, 1, 2: {list(seen)}"
    )

# %% [markdown]
# `save_state` saves what is needed to go on: weights, optimizer, random generators. It is called on all ranks. Eight batches in one go, and five, save, a new process, load, three more:


# %%
def train_some(first, last, load_from=None, save_to=None):
    import torch
    from accelerate import Accelerator
    from labkit import model
    from torch.utils.data import DataLoader, TensorDataset

    accelerated.find_device()
    accelerator = Accelerator()
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*model.story_tokens(32, 32)), batch_size=2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if load_from:
        accelerator.load_state(load_from)
    for index, (tokens, targets) in enumerate(
        accelerator.skip_first_batches(loader, first), start=first
    ):
        if index == last:
            break
        accelerator.backward(model.loss(net(tokens), targets))
        optimizer.step()
        optimizer.zero_grad()
    if save_to:
        accelerator.save_state(save_to)
    return accelerator.get_state_dict(net)


# %%
place = f"{folder.name}/checkpoint"
straight = lab.launch(train_some, 0, 8, ranks=2, timeout_s=40)
lab.launch(train_some, 0, 5, None, place, ranks=2, timeout_s=40)
resumed = lab.launch(train_some, 5, 8, place, ranks=2, timeout_s=40)
print(
    *(
        f"{path.name}: {path.stat().st_size:,} bytes"
        for path in sorted(Path(place).iterdir())
    ),
    sep="\n",
)
print(f"the resumed run is off by {difference(resumed[0], straight[0]):g}")

# %% [markdown]
# Not a bit. The place in the loader is the script's own business: `skip_first_batches`. Chapter 13 saves while ranks fail.
#
# ## Exercises
#
# A check never stops the notebook. It tries your answer on real ranks, at sizes that are not shown, against one process.
#
# ### 1. Make it an Accelerate loop
#
# Below is plain PyTorch. Turn it into a loop that trains on every engine: one process, DDP, FSDP, DeepSpeed. The arguments are an Accelerator and plain objects. Return the whole weights under the names of the bare model; what ranks other than the main one return does not matter.


# %%
def plain_epoch(net, optimizer, loader):
    for tokens, targets in loader:
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def my_epoch(accelerator, net, optimizer, loader):
    """Trains one epoch; returns the whole weights on the main process."""
    ### BEGIN SOLUTION
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for tokens, targets in loader:
        accelerator.backward(model.loss(net(tokens), targets))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(net)
    ### END SOLUTION


# %%
check.one_epoch(my_epoch)

# %%
check.hint("one_epoch")

# %% [markdown]
# ### 2. Accumulate and clip
#
# All objects are prepared. Make one update per `accelerator.gradient_accumulation_steps` batches, with the gradient of the mean over all of them and all ranks, clipped to `max_norm`. The number of batches divides. At most one all-reduce per update.


# %%
def my_training(accelerator, net, optimizer, loader, max_norm):
    """Trains one epoch on (tokens, targets); the loss is model.loss(net(tokens), targets)."""
    ### BEGIN SOLUTION
    for tokens, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(model.loss(net(tokens), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    ### END SOLUTION


# %%
check.accumulate_and_clip(my_training)

# %%
check.hint("accumulate_and_clip")

# %% [markdown]
# ### 3. An exact accuracy
#
# `net` maps inputs to one score per class; the loader gives (inputs, labels). Return the share of samples whose highest score is their label, each sample of the dataset counted once, as the same number on every rank. A rank may hand at most 24 bytes per sample to collectives.


# %%
def my_accuracy(accelerator, net, loader):
    """The share of samples that net gets right, as a float."""
    ### BEGIN SOLUTION
    hits = [
        accelerator.gather_for_metrics(net(inputs).argmax(-1) == labels)
        for inputs, labels in loader
    ]
    return torch.cat(hits).float().mean().item()
    ### END SOLUTION


# %%
check.exact_accuracy(my_accuracy)

# %%
check.hint("exact_accuracy")

# %% [markdown]
# ## Summary
#
# - `accelerate launch` turns a YAML file and flags into environment variables; `Accelerator()` reads them. The script stays as it is.
# - The batch size is a rank's own. Four times the ranks is four times the batch and a quarter of the updates, unless you change it or use `split_batches`.
# - `prepare` wraps or cuts the model, deals out the batches and fills up the last ones.
# - `accelerator.backward` divides by the accumulated batches; with DeepSpeed it also updates. `accumulate` sends only in the last batch. Clip under `sync_gradients`; DeepSpeed clips by its own configuration.
# - `gather`, `get_state_dict`, `save_state` are collectives: all ranks call them. `gather_for_metrics` forgets what the loader added.
# - Without GPUs: `ACCELERATE_USE_CPU`, or each rank is alone; fp16 and the FSDP and DeepSpeed parts of a file are ignored.
#
# ## Sources
#
# - [Accelerate](https://huggingface.co/docs/accelerate), version 1.15: its documentation, and its source for what is not in there
# - [Gradient accumulation](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation) and [performance and batch sizes](https://huggingface.co/docs/accelerate/concept_guides/performance)
#
# Where you stand:

# %%
check.status()
