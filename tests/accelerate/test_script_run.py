"""A script of Accelerate's on the ranks of a launch: the variables are the launcher's own, and the
script finds itself where it was told to be."""

import pytest
import torch

import labkit as lab
from labkit import accelerate as accelerated

SCRIPT = """
import sys
import torch
from accelerate import Accelerator
accelerator = Accelerator()
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(net.parameters())
net, optimizer = accelerator.prepare(net, optimizer)
loss = net(torch.ones(int(sys.argv[1]), 2, device=accelerator.device)).mean()
accelerator.backward(loss)
optimizer.step()
accelerator.end_training()
"""


def config(**more):
    return {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": 2} | more


def test_the_environment_is_the_launchers():
    found = accelerated.environment(config(distributed_type="MULTI_GPU", mixed_precision="bf16"))
    assert found == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    fsdp = config(distributed_type="FSDP", mixed_precision="no", fsdp_config={"fsdp_version": 2})
    found = accelerated.environment(fsdp)
    assert found["ACCELERATE_USE_FSDP"] == "true"
    assert found["FSDP_VERSION"] == "2"
    zero = {"zero_stage": 2, "gradient_clipping": 1.0}
    deepspeed = config(distributed_type="DEEPSPEED", mixed_precision="no", deepspeed_config=zero)
    found = accelerated.environment(deepspeed)
    assert found["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert found["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "2"


def test_a_flag_counts_for_more_than_the_file():
    given = config(distributed_type="MULTI_GPU", mixed_precision="bf16")
    found = accelerated.environment(given, "--mixed_precision", "no")
    assert found["ACCELERATE_MIXED_PRECISION"] == "no"


def test_a_key_that_the_file_does_not_know_is_refused():
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        accelerated.environment(config(distributed_type="NO", gradient_accumulation_steps=4))


def test_a_script_tells_what_became_of_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for rank in lab.launch(accelerated.run_script, script, "3", ranks=2):
        assert (rank["type"], rank["model"]) == ("MULTI_CPU", "DistributedDataParallel")
        assert (rank["processes"], rank["updates"]) == (2, 1)
        assert sorted(rank["weights"]) == ["bias", "weight"]
        environment, processes = rank["state"].splitlines()
        assert environment.endswith("MULTI_CPU  Backend: gloo")
        assert processes == "Num processes: 2"


def test_alone_it_knows_of_no_other(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for rank in lab.launch(accelerated.run_script, script, "3", ranks=2, alone=True):
        assert (rank["type"], rank["model"], rank["processes"]) == ("NO", "Linear", 1)


def test_one_rank_is_alone_as_where_the_command_starts_one_process(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    rank = lab.launch(accelerated.run_script, script, "3", ranks=1)[0]
    assert (rank["type"], rank["model"], rank["processes"]) == ("NO", "Linear", 1)


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("gradient_accumulation_steps: 4", "unknown keys"),
        ("distributed_type: MULTI-GPU", "not a valid DistributedType"),
        ("mixed_precision: no", None),
    ],
)
def test_what_chapter_04_says_of_a_misspelt_file(line, refused, tmp_path):
    from accelerate.commands.config import load_config_from_file

    right = {"distributed_type": "MULTI_GPU", "mixed_precision": "'no'"}
    key, _, value = line.partition(": ")
    lines = [f"{name}: {word}" for name, word in (right | {key: value}).items()]
    file = tmp_path / "config.yaml"
    file.write_text("\n".join(["compute_environment: LOCAL_MACHINE", *lines]))
    if refused:
        with pytest.raises(ValueError, match=refused):
            load_config_from_file(str(file))
    else:
        assert load_config_from_file(str(file)).mixed_precision is False
        with pytest.raises(ValueError, match="lower"):
            accelerated.environment(config(distributed_type="MULTI_GPU", mixed_precision=False))


def test_started_scripts_stand_beside_one_another(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    one = accelerated.start_script(script, 1, "3")
    assert (one["type"], one["processes"]) == ("NO", 1)
    told = config(distributed_type="MULTI_GPU", mixed_precision="bf16")
    two = accelerated.start_script(script, 2, "3", config=told)
    assert two["processes"] == 2
    rows = accelerated.beside({"one": one, "two": two}, one)
    assert [row["start"] for row in rows] == ["one", "two"]
    assert rows[0]["apart"] == 0 and "apart" not in one
    assert rows[1]["apart"] == lab.difference(two["weights"], one["weights"])
    assert rows[1]["updates"] == two["updates"]
    assert accelerated.beside({"one": one}, one, loss=len)[0]["loss"] == 2
    with pytest.raises(ValueError, match="loss is a function"):
        accelerated.beside({"one": one}, one, loss=3)


def sharded():
    from torch.distributed import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(torch.get_default_device().type, (2,))
    return accelerated.numel(
        {"whole": torch.ones(3), "mine": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}
    )


def test_a_rank_holds_its_shards():
    assert [*lab.launch(sharded, ranks=2)] == [5, 5]
    assert accelerated.numel({}) == 0
    for odd in (None, [torch.ones(2)], {"a": 1}):
        with pytest.raises(ValueError, match="tensors by name"):
            accelerated.numel(odd)


def test_what_chapter_04_says_of_a_machine_without_gpus(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    file = config(distributed_type="MULTI_GPU", mixed_precision="no", use_cpu=True)
    assert "ACCELERATE_USE_CPU" not in accelerated.environment(file)
    alone = accelerated.start_script(script, 2, "3", config=file, gpus=False)
    assert (alone["type"], alone["processes"]) == ("NO", 1)
    said = {"ACCELERATE_USE_CPU": "true"}
    both = accelerated.start_script(script, 2, "3", config=file, variables=said, gpus=False)
    assert (both["type"], both["processes"]) == ("MULTI_CPU", 2)


@pytest.mark.parametrize(
    ("engine", "section", "key", "right"),
    [
        ("DEEPSPEED", "deepspeed_config", "gradient_cliping", "ACCELERATE_GRADIENT_CLIPPING"),
        ("FSDP", "fsdp_config", "fsdp_transformer_layer", "FSDP_TRANSFORMER_CLS_TO_WRAP"),
    ],
)
def test_what_chapter_04_says_of_a_misspelt_key_of_an_engine(engine, section, key, right):
    wrong = config(distributed_type=engine, mixed_precision="no", **{section: {key: 0.5}})
    assert right not in accelerated.environment(wrong)


def test_a_script_hands_back_its_report(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert accelerated.start_script(script, 1, "3")["report"] is None
    script.write_text(SCRIPT + "report = {'ranks': accelerator.num_processes}\n")
    assert accelerated.start_script(script, 2, "3")["report"] == {"ranks": 2}
