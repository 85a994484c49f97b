# ---
# jupyter:
#   labkit:
#     sections: ["8.2.1", "8.2.2", "8.2.3", "8.2.4"]
#     needs: ["two CPU cores"]
#     minutes: 75
# ---

# %% [markdown]
# # Accelerate
#
# *About an hour and a quarter. You need chapters 00, 02 and 03. No GPU is needed.*
#
# Our training script works on one card. We change a few lines for Hugging Face Accelerate, start the same file on four cards, and it just runs: the loss goes down, and nobody complains. Only the model comes out different, because it had a quarter of the updates. Accelerate promises one file for one card, many cards, FSDP and DeepSpeed, and it keeps that promise. But the promise is about the code. What you train can change without any message.

# %%
import tempfile
from pathlib import Path
import labkit as lab
import torch
from labkit import accelerate as ours, model
from labkit.accelerate import check
from labkit.measure import traffic

lab.begin("en")
ours.Update(engine="ddp", accumulation=2).board()

# %% [markdown]
# An update takes two batches here, whose gradients are added up: [gradient accumulation](GLOSSARY.md#gradient-accumulation). Each row is a line of the usual training loop, each column a batch, and `sync_gradients` is True in the last batch of an update. The picture predicts which [collectives](GLOSSARY.md#collective) a line calls (*all_reduce 2* are two calls, one for each bucket of gradients), and which line changes the weights: its box has a thick edge. Where a box is white, nothing happens.
#
# The *engine* is what does the work under Accelerate. DDP you know: each rank has the whole model. FSDP (chapter 07) lets each rank keep a part of every weight, and gathers them when they are needed. DeepSpeed (chapter 06) cuts the optimizer's state and the gradients (`zero2`), or the weights as well (`zero3`).
#
# Set the engine to `zero2`. In which line do the weights change now? (The button runs it on two ranks, and sets what it finds beside the prediction.)
#
# **When you are done** you can
#
# - turn a plain loop into one that trains the same model on one process, DDP, FSDP and DeepSpeed;
# - say what `prepare`, `backward`, `accumulate`, `clip_grad_norm_`, `gather` and `save_state` did to your objects;
# - find out in ten seconds whether a run is what you have asked for.

# %% [markdown] sections="8.2.1"
# ## By hand
#
# A small model, its optimizer, and the data: 64 passages of our story. Below is the loop of one process; you have written it many times. It goes once through the data, which is an *epoch*. (`eps` is larger than usual: where a gradient is all but zero, Adam would blow up its rounding to a whole step.)


# %%
def setup():
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
    return net, optimizer, torch.utils.data.TensorDataset(*model.story_tokens(64, 32))


# %%
def alone(batch_size):
    net, optimizer, data = setup()
    for tokens, targets in torch.utils.data.DataLoader(data, batch_size):
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": net.state_dict()}


# %% [markdown]
# For several [ranks](GLOSSARY.md#rank) we did three things by hand in chapter 03: wrap the model in [DDP](GLOSSARY.md#ddp), deal out the samples, and take the wrapper off again in the end. Model and batches also go to the rank's GPU, in a script by `.to(int(os.environ["LOCAL_RANK"]))`, the rank within its machine. Accelerate does all of that. `prepare` takes your objects and gives back others, and `accelerator.backward` stands in the place of `loss.backward`. (`ours` is labkit's module for this chapter. `ours.accelerator()` is `Accelerator()`, after telling it of the [pretend device](GLOSSARY.md#pretend-device) that labkit lends to a rank without a GPU.)


# %%
def by_accelerate(batch_size):
    accelerator = ours.accelerator()
    net, optimizer, data = setup()
    loader = torch.utils.data.DataLoader(data, batch_size)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for tokens, targets in loader:
        loss = model.loss(net(tokens), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    weights = accelerator.unwrap_model(net).state_dict()
    return {"weights": weights, "updates": len(loader)}


# %% [markdown]
# One process takes batches of 8, which makes 8 updates. If each of two ranks takes batches of 8, how many updates does the epoch have?

# %%
updates = lab.guess("updates of two ranks, batches of 8 each", between=(1, 16))

# %%
one = lab.launch(alone, 8, ranks=1)[0]["weights"]
runs = {size: lab.launch(by_accelerate, size)[0] for size in (8, 4)}
lab.table(
    {
        "batch": size,
        "updates": run["updates"],
        "apart": lab.difference(run["weights"], one),
    }
    for size, run in runs.items()
)

# %%
updates.score(runs[8]["updates"])

# %% [markdown]
# *apart* is the largest difference of a weight from that of one process. With 4 only rounding is left. A batch size is *each rank's own*: with 8, two ranks take 16 passages per update, and there are half as many updates.
# %% [markdown] sections="8.2.1"
# ## A script and a command
#
# In real life this is a script, and a command starts it. What is new in it?
#
# - `with accelerator.accumulate(net)` counts the batches. In all but the last of an update it keeps DDP from sending, and makes `step` and `zero_grad` do nothing.
# - `accelerator.sync_gradients` is True in that last batch.
# - `clip_grad_norm_` shortens the whole gradient to a length of 0.5, if it is longer.
# - `end_training` closes what Accelerate has opened.

# %%
TRAIN = """
import sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from labkit import model

accelerator = Accelerator()
torch.manual_seed(0)
net = model.Transformer(2, 32, 2, max_len=32)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-4)
loader = DataLoader(TensorDataset(*model.story_tokens(64, 32)), int(sys.argv[1]))
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for tokens, targets in loader:
    with accelerator.accumulate(net):
        loss = model.loss(net(tokens), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
"""
folder = Path(tempfile.mkdtemp())
script = folder / "train.py"
_ = script.write_text(TRAIN)

# %% [markdown] sections="8.2.3"
# ### The configuration file
#
# The command is `accelerate launch`. `accelerate config` asks you questions, and writes the answers to a file of YAML for it. `distributed_type` names the engine, `num_processes` counts the processes of all machines together, and `mixed_precision` is a default for the script. JSON will do as well, so here it is a dict:

# %%
bf16 = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "num_machines": 1,
    "num_processes": 2,
    "mixed_precision": "bf16",
}

# %% [markdown]
# <details><summary>Its other keys, and a trap of YAML</summary>
#
# For several machines there are `machine_rank`, `main_process_ip`, `main_process_port`, `rdzv_backend` and `same_network`; `gpu_ids` picks GPUs, and `downcast_bf16` is for TPUs.
#
# A misspelt key or value is refused. But in YAML `mixed_precision: no` without quotes is read without complaint, because a bare `no` is YAML's word for False. If a launcher dies of `'bool' object has no attribute 'lower'`, look for a missing quote.
#
# </details>
#
# Before a long run, let the command start a few lines that print what Accelerate has found:

# %%
STATE = """
from accelerate import Accelerator

accelerator = Accelerator()
print(accelerator.state)
accelerator.wait_for_everyone()
accelerator.end_training()
"""
_ = (folder / "state.py").write_text(STATE)

# %%
started = lab.launch_script(folder / "state.py", using="accelerate", config=bf16)
print(started.logs[1])

# %% [markdown]
# That is what rank 1 says: two processes, and the precision that the file asks for. The file's `MULTI_GPU` is DDP with GPUs. Without any it is `MULTI_CPU`, and labkit puts `ACCELERATE_USE_CPU` in front of the command; why that has to be said, we see below. (The ranks wait for each other before they end. Rank 0 keeps the store where ranks find each other, and if it went first, one that is still on its way in would fail.)

# %% [markdown] sections="8.2.1, 8.2.2"
# ## One file, six ways
#
# Another engine is another file, and the same script. For FSDP the file names the class of our model's layers, `Block`: they are gathered one at a time (chapter 07). The last key lets every rank build the model itself.

# %%
fp32 = {**bf16, "mixed_precision": "no"}
wrapping = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
    "fsdp_cpu_ram_efficient_loading": False,
}
fsdp = {**fp32, "distributed_type": "FSDP", "fsdp_config": wrapping}
zero = {"zero_stage": 2, "gradient_clipping": 0.5}
deepspeed = {**fp32, "distributed_type": "DEEPSPEED", "deepspeed_config": zero}

# %% [markdown]
# What does the command do with a file? It turns it into environment variables, and starts the script under torch's own launcher. We ask the launcher's code for the variables (a flag of the command would override the file):

# %%
files = {"bf16": bf16, "fsdp": fsdp, "zero2": deepspeed}
env = {name: ours.environment(file) for name, file in files.items()}
env["zero2"]

# %% [markdown]
# These variables, the ranks and an address are all that the script is told. So we can run it on ranks of the notebook, and look at the weights afterwards: `start(script, ranks, batch size)` gives the ranks what the command would have told them. Batch sizes are chosen so that every update takes 8 passages. (Six runs: give them up to a minute.) Which of the five others will *not* end with the weights of the one process?

# %%
OTHERS = ("four ranks", "accumulation", "bf16", "DeepSpeed", "FSDP")
odd = lab.guess("the one with other weights", choices=OTHERS)

# %%
start = ours.start_script
accumulated = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}
ways = {
    "one process": start(script, 1, "8"),
    "four ranks": start(script, 4, "2"),
    "accumulation": start(script, 2, "2", variables=accumulated),
    "bf16": start(script, 2, "4", variables=env["bf16"]),
    "DeepSpeed": start(script, 2, "4", variables=env["zero2"]),
    "FSDP": start(script, 2, "4", variables=env["fsdp"]),
}

# %%
one = ways["one process"]
rows = ours.beside(ways, one)
lab.table(rows, heads=("start", "type", "model", "updates", "apart"))

# %%
odd.score(max(rows, key=lambda row: row["apart"])["start"])

# %% [markdown]
# Four ranks, accumulation, DeepSpeed and [FSDP](GLOSSARY.md#fsdp) train the model that one process trains. (DeepSpeed clips as the others do only because its file says the same 0.5: see *Clip once* below.) Only bf16 is further off, since it computes with 8 significant bits. That is rounding, not another model.

# %% [markdown] sections="8.2.2"
# ### What the promise does not cover
#
# Now four starts that go wrong:
#
# 1. four ranks, and still a batch size of 8;
# 2. `python train.py` instead of `accelerate launch`;
# 3. two ranks on a machine without GPUs, and nobody says so;
# 4. the same machine, we say so (`use_cpu: true` in the file, or `--cpu`), and ask for FSDP.
#
# Does one of them end with an error? And how many end with the right weights? (`told=False` hides the pretend devices; start 2 is one rank without any variable, as `python train.py` is.)

# %%
right = lab.guess("how many of the four end with the right weights", between=(0, 4))

# %%
sharded = {**env["fsdp"], "ACCELERATE_USE_CPU": "true"}
traps = {
    "batch size 8 on four ranks": start(script, 4, "8"),
    "python train.py": start(script, 1, "4"),
    "no GPU, and not told": start(script, 2, "4", told=False, devices="cpu"),
    "FSDP without GPUs": start(
        script, 2, "4", variables=sharded, told=False, devices="cpu"
    ),
}
rows = ours.beside(traps, one)
lab.table(rows, heads=("start", "type", "processes", "updates", "apart"))

# %%
right.score(sum(row["apart"] < 1e-4 for row in rows))

# %% [markdown]
# No start ends with an error. In the first row an update takes 32 passages, so there are a quarter of the updates. In the second one process trains with batches of 4, and the other cards are idle. In the third each rank believes that it is alone, so we train the same model twice. In the fourth the weights are right, but the type is plain DDP: what the file says of FSDP was ignored, and no memory is saved.
#
# Three of the four show in the first two lines of `accelerator.state`: print it at the start of a script. For the first, print `math.ceil(len(loader) / accelerator.gradient_accumulation_steps)` after `prepare`, the updates of an epoch.
#
# (A box called *erratum* corrects a text on which this course was first based. You lose nothing if you skip it.)

# %% [markdown] sections="8.2.2"
# <details><summary>Erratum 8.2.2: the loop is "identical to a single GPU's"</summary>
#
# The code is, but the batch is not: with the same batch size four ranks make an update of 32 passages and not of 8, as in the first row of the table above.
#
# </details>
# %% [markdown] sections="8.2.2"
# ## What prepare changed
#
# `accelerator.prepare` returns other objects than you gave it. Here are model and loader before, and after it under three engines, on rank 0 of two with `mixed_precision="bf16"`. (The board has a larger model than ours, and 12 batches.) In the table *weights* is type and number of what this rank holds, *inside* what a block computes in, and *output* what the model returns.

# %%
found = {}
for engine in ("ddp", "fsdp", "zero2"):
    found[engine] = ours.Update(engine=engine, precision="bf16").run()[0]

before = found["ddp"]["before"]
lab.table(
    {"what": what, "before": before[what]}
    | {engine: result["after"][what] for engine, result in found.items()}
    for what in ("model", "loader", "batches", "weights", "inside", "output")
)

# %% [markdown]
# DDP and DeepSpeed wrap the model. FSDP cuts its weights instead: each is a `DTensor`, of which this rank has half. The loader deals out batches, so it is half as long.
#
# You can also see that [mixed precision](GLOSSARY.md#mixed-precision) is three different things. Under DDP the weights stay fp32, `autocast` computes in bf16, and the output is turned back. FSDP keeps its shards in fp32, and gathers and computes in bf16. DeepSpeed keeps bf16 weights, with an fp32 copy in its optimizer (not in the table). (And fp16? On a GPU it adds a `GradScaler`, chapter 05.)
#
# ### Exercise 1. One loop for every engine
#
# This loop trains the right model on one process and under DDP. On FSDP or DeepSpeed three of its lines are wrong; `by_accelerate` above still has one of them. Before you mend a line, say which engine it breaks, and how.
#
# Two things that you need: DeepSpeed makes the whole update inside `accelerator.backward` (the first board, engine `zero2`). And `accelerator.get_state_dict(net)`, called on all ranks, gathers whole weights.
#
# (A check never stops the notebook. It tries your answer on real ranks, at sizes that are not shown, against one process.)


# %%
def ddp_epoch(accelerator, net, optimizer, loader):
    net, loader = accelerator.prepare(net, loader)
    for tokens, targets in loader:
        loss = model.loss(net(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.unwrap_model(net).state_dict()


# %% [markdown]
# You are given an Accelerator and plain objects. The loop must work on every engine and return the whole weights under the names of the bare model; what ranks other than the main one return does not matter. The check tries one process, DDP, FSDP and ZeRO 2.


# %%
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

# %% [markdown] sections="8.2.2"
# ### Which samples a rank gets
#
# Four ranks, batches of 2, and ten samples, numbered 0 to 9. How many samples do the four ranks work through in an epoch, all together?

# %%
samples = lab.guess("samples of an epoch, all four ranks", between=(0, 40))


# %%
def deal():
    accelerator = ours.accelerator()
    loader = torch.utils.data.DataLoader(range(10), batch_size=2)
    return [batch.tolist() for batch in accelerator.prepare(loader)]


# %%
dealt = lab.launch(deal, ranks=4)
lab.table({"rank": rank, "batches": batches} for rank, batches in enumerate(dealt))

# %%
samples.score(sum(len(batch) for batches in dealt for batch in batches))

# %% [markdown]
# Batches are dealt out in turn, one to each rank, and the gap at the end is filled with the first samples, so that all ranks take equally many steps. (`even_batches=False` leaves the gaps; training then needs `accelerator.join_uneven_inputs`.)
#
# An option makes the batch size that of all ranks together, so that the number of updates does not depend on the ranks any more. In the script it is one line:
#
# `accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))`
#
# (The batch size must then be a multiple of the number of ranks.) Does that cure the failure that this chapter opened with? Our script with this line, with a batch size of 8 on four ranks:

# %%
cured = folder / "cured.py"
option = "dataloader_config=DataLoaderConfiguration(split_batches=True)"
text = TRAIN.replace("Accelerator()", f"Accelerator({option})")
cured.write_text("from accelerate import DataLoaderConfiguration\n" + text)
same_start = {"train.py": traps["batch size 8 on four ranks"]}
rows = ours.beside({**same_start, "cured.py": start(cured, 4, "8")}, one)
lab.table(rows, heads=("start", "updates", "apart"))

# %% [markdown]
# It does. The other way out is to keep the larger batch, and raise the learning rate with it (chapter 12).

# %% [markdown] sections="8.2.2"
# ### The learning rate's schedule
#
# A prepared scheduler hides one more change. Let a rate fall from 1 to 0 in 8 steps. After two updates it is 0.75 in one process. And on four ranks?

# %%
rate = lab.guess("learning rate of four ranks after two updates", between=(0, 2))


# %%
def rates():
    accelerator = ours.accelerator()
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8)
    optimizer, falling = accelerator.prepare(optimizer, falling)
    seen = {0: falling.get_last_lr()[0]}
    for update in range(1, 9):
        optimizer.step()
        falling.step()
        seen[update] = falling.get_last_lr()[0]
    return seen


# %%
one_rate = lab.launch(rates, ranks=1)[0]
four_rates = lab.launch(rates, ranks=4)[0]
lab.curves(
    measured={"one process": one_rate, "four ranks": four_rates},
    x="number of updates",
    y="learning rate",
    title="A schedule of 8 steps",
    joined=True,
)

# %%
rate.score(four_rates[2])

# %% [markdown]
# Each `falling.step()` takes four steps, one for each rank, because Accelerate assumes that you wrote the schedule for the updates of one process. So compute its length from `len(loader)` *before* `prepare`: taken after it, the rate is 0 after a quarter of the training. If you accumulate, divide it by `accelerator.gradient_accumulation_steps`. (With `split_batches` each `step` is one step.)

# %% [markdown] sections="8.2.4"
# ## Backward, accumulate, clip, step
#
# Back to the picture of the first screen, this time under FSDP, predicted and measured:

# %%
ours.Update(engine="fsdp", accumulation=2).compare()

# %% [markdown]
# Every line calls what was predicted. In both batches the weights are gathered in the forward (3 calls), and again in the backward (2, for the two blocks; what lies outside of them is not given back after the forward). The gradients are reduced only in the last batch; the price is that until then each rank holds the gradient of the *whole* model. Clipping adds one all-reduce, because no rank has the whole norm.

# %% [markdown] sections="8.2.2, 8.2.4"
# ### What accelerator.backward adds
#
# Two ranks, `gradient_accumulation_steps=4`, and two ways to call the backward. What is different, the collectives or the gradient?


# %%
def two_backwards():
    accelerator = ours.accelerator(accumulation=4)
    net = accelerator.prepare(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(2, 32, seed=accelerator.process_index)
    rows = []
    for backward in (torch.Tensor.backward, accelerator.backward):
        net.zero_grad()
        loss = model.loss(net(tokens), targets)
        with traffic.count() as counted:
            backward(loss)
        norm = torch.nn.utils.get_total_norm([w.grad for w in net.parameters()])
        call = backward.__qualname__
        rows.append({"call": call, "gradient_norm": norm.item(), **counted.calls})
    return rows


# %%
lab.table(lab.launch(two_backwards)[0])

# %% [markdown] sections="8.2.2, 8.2.4"
# The collectives are the same (both send at once, since no `accumulate` stands around them), and the gradient is a quarter: `accelerator.backward` divides by the number of accumulated batches, and under fp16 it also scales. With DeepSpeed it even makes the whole update, and `optimizer.step()` does nothing (on the first board, with `zero2`, the weights change in the line of `backward`). So a loop for every engine calls `accelerator.backward`.
#
# <details><summary>Erratum 8.2.2: "<code>accelerator.backward</code> synchronises the gradients"</summary>
#
# Under DDP it does not: DDP's own hooks do, whoever calls the backward. In the table above both rows call one all-reduce.
#
# </details>
#
# ### When the batches do not divide
#
# `accumulate` also makes an update at the end of the loader, however few batches are left. In the next cell the gradient is 1 in every batch and the learning rate is 1; there are 6 batches, and 4 are accumulated. The first update moves the weight by 1. How far does the second?


# %%
def places():
    accelerator = ours.accelerator(accumulation=4)
    net = torch.nn.Linear(1, 1, bias=False)
    weight = torch.nn.init.zeros_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    loader = torch.utils.data.DataLoader(torch.ones(6, 1))
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    seen = []
    for inputs in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
        seen.append(weight.item())
    return seen


# %%
seen = lab.launch(places, ranks=1)[0]
lab.table({"batch": batch, "weight": place} for batch, place in enumerate(seen, 1))
# %% [markdown] sections="8.2.4"
# Two batches, divided by four: the last update of each epoch is too small. There are three ways out:
#
# - let the number of batches divide;
# - rescale the last loss yourself, as exercise 2 asks you to;
# - let the accumulation run on into the next epoch: `GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)`.
#
# ### Clip once, when the gradient is complete
#
# Our script clips under `if accelerator.sync_gradients`. Why? We make one update with SGD and learning rate 1, so that the weights move by exactly the clipped gradient: two accumulated batches, two ranks, and a largest norm of 0.01.


# %%
def clipped_move(engine, guard=True, in_file=None, max_norm=0.01):
    accelerator = ours.accelerator(engine, accumulation=2, max_norm=in_file)
    net, _, data = setup()
    start = {name: weight.cpu().clone() for name, weight in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    data = torch.utils.data.Subset(data, range(8))
    loader = torch.utils.data.DataLoader(data, 2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for tokens, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(model.loss(net(tokens), targets))
            if accelerator.sync_gradients or not guard:
                accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    after = accelerator.get_state_dict(net)
    return torch.cat([(after[name].cpu() - start[name]).flatten() for name in after])


# %% [markdown]
# Five cases. Three with DDP: as in our script, without the `if`, and without clipping. Two with DeepSpeed: `zero2`, where only the script asks for 0.01, and one where DeepSpeed's own file asks for it as well. Which of the DDP moves is as long as that of `zero2`?

# %%
cases = {
    "ddp": ("ddp",),
    "ddp without the if": ("ddp", False),
    "ddp, unclipped": ("ddp", True, None, float("inf")),
    "zero2": ("zero2",),
    "zero2, 0.01 in its file": ("zero2", True, 0.01),
}
made = {name: lab.launch(clipped_move, *case)[0] for name, case in cases.items()}
lab.table(
    {"case": name, "length": move.norm(), "from the first": (move - made["ddp"]).norm()}
    for name, move in made.items()
)

# %% [markdown]
# *from the first* is how far the end of a move is from that of `ddp`. Without the `if`, the first batch's gradient is clipped to 0.01 before the second, uncut one is added: the length is right, and the direction is not. DeepSpeed does not heed the script at all: its row is like the unclipped one. It clips by its own configuration (`gradient_clipping`), at the number that stands there; if you write none, Accelerate writes 1, which is more than this gradient has.

# %% [markdown]
# ### Exercise 2. Accumulate, clip, and the rest
#
# All objects are prepared. Make one update per `accelerator.gradient_accumulation_steps` batches, with the gradient of the mean over all of them and all ranks, clipped to `max_norm`. The number of batches need *not* divide, and the last update must average only the batches that it has. (One batch per update is a case, too.) At most one all-reduce per update; the model is small enough for one bucket.


# %%
def my_training(accelerator, net, optimizer, loader, max_norm):
    """Trains one epoch; the loss is model.loss(net(tokens), targets)."""
    ### BEGIN SOLUTION
    steps = accelerator.gradient_accumulation_steps
    for index, (tokens, targets) in enumerate(loader):
        first = index - index % steps
        in_this_update = min(steps, len(loader) - first)
        with accelerator.accumulate(net):
            loss = model.loss(net(tokens), targets)
            accelerator.backward(loss * steps / in_this_update)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    ### END SOLUTION


# %%
check.accumulate_and_clip(my_training)

# %%
check.hint("accumulate_and_clip")

# %% [markdown] sections="8.2.4"
# ## Gather, and the main process
#
# A log line usually stands under `if accelerator.is_main_process`. But whose loss does it print? `gather(x)` gives every rank the numbers of all ranks. `reduce(x, "mean")` gives every rank their mean, and `reduce(x)` their *sum*. All of these are collectives, so all ranks have to call them, with tensors on `accelerator.device` (labkit's ranks create theirs there; in a script you say so):


# %%
def report():
    accelerator = ours.accelerator()
    net = accelerator.prepare(model.Transformer(2, 32, 2, max_len=32))
    tokens, targets = model.story_tokens(2, 32, seed=accelerator.process_index)
    loss = model.loss(net(tokens), targets).detach()
    every = accelerator.gather(loss)
    mean = accelerator.reduce(loss, "mean").item()
    accelerator.print(f"mean {mean:.2f}")
    every = [round(each, 2) for each in every.tolist()]
    return {"mine": loss.item(), "gathered": every, "reduced": mean}


# %%
lab.launch(report, ranks=4)

# %% [markdown]
# So gather on all ranks, and print on one, as `accelerator.print` does above. A frequent mistake is a collective that only the main process calls. It waits for the others, and they are gone:


# %% tags=["raises-exception"]
def only_the_main_one():
    accelerator = ours.accelerator()
    if accelerator.is_main_process:
        print("mean", accelerator.gather(torch.ones(1)).mean())


lab.launch(only_the_main_one, hang_s=1.0)

# %% [markdown] sections="8.2.4"
# <details><summary>Erratum 8.2.4: the loss, printed under <code>if accelerator.is_main_process</code></summary>
#
# That is the loss of rank 0 alone, and not the mean. In the table above the first number of rank 0 is not the mean that all ranks agree on.
#
# </details>
#
# ### Exercise 3. An exact accuracy in one message
#
# The loader filled up ten samples to sixteen (*Which samples a rank gets*). If a classifier gets the first six right, `gather` counts 12 of 16: 75 % instead of 60 %. `gather_for_metrics` drops what was filled up, but sends a message for every batch. You may use one collective in all.
#
# `net` maps inputs to one score per class; the loader is prepared and gives (inputs, labels). Return the share of samples whose highest score is their label, as the same number on every rank. Each sample of `loader.dataset` counts once.
#
# (Batches are dealt out in turn and all have full length, also those that were filled up; sometimes none was. Which position in the data set has sample i of this rank's batch b? Count it only if that position exists.)


# %%
def my_accuracy(accelerator, net, loader):
    """The share of samples that net gets right, as a float."""
    ### BEGIN SOLUTION
    num_samples = len(loader.dataset)
    hits = torch.zeros((), device=accelerator.device)
    for number, (inputs, labels) in enumerate(loader):
        dealt = number * accelerator.num_processes + accelerator.process_index
        real = num_samples - dealt * len(labels)  # of this batch; the rest is filled up
        right = net(inputs).argmax(-1) == labels
        hits += right[: max(0, real)].sum()
    return accelerator.reduce(hits).item() / num_samples
    ### END SOLUTION


# %%
check.exact_accuracy(my_accuracy)

# %%
check.hint("exact_accuracy")

# %% [markdown] sections="8.2.2"
# ## Saving
#
# In the end you want a file with whole weights. Under FSDP or ZeRO 3 (DeepSpeed with the weights cut, too; chapter 06) no rank has them: `unwrap_model` gives this rank's parts under FSDP, and nothing under ZeRO 3. So for every engine:
#
# ```python
# weights = accelerator.get_state_dict(net)  # on all ranks: it gathers
# accelerator.save(weights, path)  # writes on the main process only
# ```
#
# (`accelerator.save_model` does both, into files of safetensors.) FSDP and ZeRO 3 give the whole weights to rank 0 alone. Before another rank reads the file, call `accelerator.wait_for_everyone()`.
#
# Under ZeRO 3 the file has to allow it: `zero3_save_16bit_model: true` in Accelerate's file, `stage3_gather_16bit_weights_on_model_save` in DeepSpeed's own. Otherwise `get_state_dict` raises an error when the training is over. So try it before the first step.

# %% [markdown] sections="8.2.2"
# <details><summary>Erratum 8.2.2: <code>unwrap_model</code>, and save on every process</summary>
#
# Under FSDP and ZeRO 3 the unwrapped model has only a part of each weight, or nothing. And every process would write the same file at the same time.
#
# </details>
#
# ### To go on later
#
# `save_state` saves what is needed to continue: weights, optimizer, random generators. All ranks call it. We train 16 batches, and save after 5 of them. Then new ranks load, and train the 11 others:


# %%
def train(place, first=0):
    accelerator = ours.accelerator()
    net, optimizer, data = setup()
    loader = torch.utils.data.DataLoader(data, 2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if first:
        accelerator.load_state(place)
    rest = accelerator.skip_first_batches(loader, first)
    for number, (tokens, targets) in enumerate(rest, start=first):
        if number == 5 and not first:
            accelerator.save_state(place)
        accelerator.backward(model.loss(net(tokens), targets))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(net)


# %%
place = str(folder / "checkpoint")
straight = lab.launch(train, place)[0]
resumed = lab.launch(train, place, 5)[0]
lab.difference(resumed, straight)

# %%
sorted(each.name for each in Path(place).iterdir())

# %% [markdown]
# Not a bit is different. The list shows the files of a checkpoint: the weights, the optimizer, and each rank's random generators. By default `save_state` does not know how far into the loader you were; `skip_first_batches` goes there (or a stateful loader: `DataLoaderConfiguration(use_stateful_dataloader=True)`). Chapter 13 saves while ranks fail.
#
# ## When is it worth it?
#
# It is worth its few lines when you want to change between engines, or when a script must run on a laptop and on a cluster; transformers' `Trainer` runs on it, so you may be using it already. If you know your engine and want all its switches, use the engine. (What Accelerate itself adds to a step we did not measure.)

# %% [markdown]
# ## Summary
#
# - `accelerate launch` turns a file and flags into environment variables, and `Accelerator()` reads them.
# - The batch size is a rank's own: four times the ranks are a quarter of the updates, unless you change it or use `split_batches`; a prepared scheduler runs four times as fast.
# - `accelerator.backward` divides by the accumulated batches; with DeepSpeed it also updates. Clip under `sync_gradients`; DeepSpeed clips by its own configuration.
# - `gather`, `get_state_dict` and `save_state` are collectives, so all ranks call them. `gather_for_metrics` drops what the loader has added.
# - On a machine without GPUs say `use_cpu: true`, or each rank trains alone. Print `accelerator.state`, and `len(loader)` after `prepare`.
#
# **Words learned**: *engine*, [FSDP](GLOSSARY.md#fsdp), [gradient accumulation](GLOSSARY.md#gradient-accumulation), [mixed precision](GLOSSARY.md#mixed-precision).
#
# **Further reading**: [Accelerate](https://huggingface.co/docs/accelerate) (this chapter ran version 1.15), its pages on [gradient accumulation](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation) and on [performance and batch sizes](https://huggingface.co/docs/accelerate/concept_guides/performance).
#
# **Next**: chapter 05 looks at what bf16 and fp16 do to numbers, and at where the memory of a step goes.
#
# *Sections 8.2.1, 8.2.2, 8.2.3 and 8.2.4 of the source material.*

# %%
check.status()
