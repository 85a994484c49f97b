"""What chapter 07 says outside of its cells holds: the script for torchrun trains and saves,
Accelerate's plugin shards, and only on GPUs, recomputing costs no gather."""

import re
from pathlib import Path

import pytest
import torch

import labkit as lab
from labkit import model
from labkit.measure import memory, traffic

SOURCE = Path(__file__).resolve().parents[2] / "notebooks/src/07_fsdp.py"
RECOMPUTED = """
from functools import partial
from torch.utils.checkpoint import checkpoint

for block in net.layers[1:-1]:
    block.forward = partial(checkpoint, block.forward, use_reentrant=False)
"""
MINE = """
from labkit import model
from labkit.model import loss

def Model():
    return model.Transformer(2, 32, 2, max_len=32)

def batches(rank, ranks):
    return [model.story_tokens(2, 32, seed=step * ranks + rank) for step in range(3)]
"""
PLUGIN = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    reshard_after_forward=True,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["Block"],
)
accelerator = Accelerator(fsdp_plugin=plugin)
net, optimizer = accelerator.prepare(net, optimizer)
accelerator.backward(loss(net(inputs), targets))
accelerator.clip_grad_norm_(net.parameters(), 1.0)
optimizer.step()
"""


def box(begins):
    """The fenced program of the chapter that begins so."""
    programs = re.findall(r"^# ```python\n(.*?)^# ```$", SOURCE.read_text(), re.DOTALL | re.M)
    (found,) = [each for each in programs if each.startswith(f"# {begins}\n")]
    return re.sub("^# ?", "", found, flags=re.M)


def function(name):
    """A function of the chapter's cells."""
    return re.search(rf"^def {name}\(.*?(?=\n\n\n)", SOURCE.read_text(), re.DOTALL | re.M)[0]


@pytest.mark.again
@pytest.mark.real
def test_the_script_trains_and_saves(tmp_path):
    cells = "\n\n".join([function("sharded"), function("setup_fsdp_model")])
    script = box("import os").replace("\n...\n", f"\n{cells}\n")
    assert cells in script
    (tmp_path / "my_model.py").write_text(MINE)
    moved = f"import os, sys; sys.path.insert(0, {str(tmp_path)!r}); os.chdir(sys.path[0])\n"
    seed = "import torch; torch.manual_seed(0)\n"
    (tmp_path / "train.py").write_text(moved + seed + script)
    lab.launch_script(tmp_path / "train.py", ranks=2, timeout_s=120, show=False)
    saved = torch.load(tmp_path / "weights.pt")
    torch.manual_seed(0)
    begun = model.Transformer(2, 32, 2, max_len=32).state_dict()
    assert {name: each.shape for name, each in saved.items()} == {
        name: each.shape for name, each in begun.items()
    }
    assert all(each.isfinite().all() for each in saved.values())
    moves = [(each - begun[name]).abs().max() for name, each in saved.items()]
    assert min(moves) > 0 and max(moves) < 0.01  # three steps of AdamW with a rate of 3e-4


def by_the_plugin(told):
    from accelerate import DistributedType, PartialState

    state = PartialState(cpu=True)
    if told:
        state.distributed_type = DistributedType.MULTI_GPU
    net = model.Transformer(2, 32, 2, max_len=32)
    inputs, targets = model.story_tokens(2, 32, seed=torch.distributed.get_rank())
    names = {"net": net, "inputs": inputs, "targets": targets, "loss": model.loss}
    names["optimizer"] = torch.optim.SGD(net.parameters(), 0.1)
    exec(PLUGIN, names)
    whole = sum(each.numel() for each in names["net"].parameters())
    parts = (getattr(each, "to_local", lambda e=each: e)() for each in names["net"].parameters())
    return type(names["net"]).__name__, sum(each.numel() for each in parts) / whole


@pytest.mark.real
@pytest.mark.parametrize("told", [True, False])
def test_accelerates_plugin_shards_where_it_is_told_to(told):
    """Without a GPU it is ignored, as the chapter says."""
    run = lab.launch(by_the_plugin, told, ranks=2, devices="cpu")
    assert list(run) == 2 * [("FSDPTransformer", 0.5) if told else ("DistributedDataParallel", 1)]


def recomputed(program, sharded):
    """All-gathers and peak of a step without and with these lines before ``sharded``."""
    from torch.distributed.fsdp import fully_shard

    found = []
    for lines in ("", program):
        names = {"net": model.Transformer(4, 64, 4, max_len=32), "fully_shard": fully_shard}
        tokens, targets = model.story_tokens(8, 32, seed=torch.distributed.get_rank())
        with memory.watch() as watched, traffic.count() as counted:
            exec(f"{sharded}\n{lines}\nsharded(net)", names)
            watched.mark("step")
            model.loss(names["net"](tokens), targets).backward()
        found.append((counted.calls["all_gather"], watched.footprint().peak_bytes))
    return found


@pytest.mark.real
def test_recomputing_costs_no_gather_and_lowers_the_peak():
    run = lab.launch(recomputed, RECOMPUTED, function("sharded"))
    for (gathers, peak), (again, lower) in run:
        assert gathers == again == 12
        assert lower < 0.7 * peak
