"""A function that names DeepSpeed or a Trainer is known by its code; one that does not is left
alone. Without DeepSpeed a launch for it is refused in words."""

import functools
import importlib.util

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import labkit as lab
from labkit import sharding
from labkit.launching.engines import (
    given_deepspeed,
    imports_deepspeed,
    names_a_wrapper,
    names_deepspeed,
    names_trainer,
)
from labkit.machine import resources
from labkit.sharding import run as sharding_run


def imports_it():
    import deepspeed

    return deepspeed


def imports_a_part():
    from deepspeed.pipe import PipelineModule

    return PipelineModule


def calls_one_that_does(config):
    return imports_it(), config


def names_a_plugin(accelerate):
    return accelerate.DeepSpeedPlugin()


def has_one_inside():
    def inner():
        return imports_it()

    return inner()


def gives_a_word(args):
    return args(deepspeed={"stage": 2})


def only_talks_about_it():
    """Says that deepspeed is slow."""
    return "deepspeed is another matter"


def calls_itself(depth):
    return calls_itself(depth - 1) if depth else 0


def has_a_trainer(net):
    from transformers import Trainer

    return Trainer(net)


def calls_one_that_has(net):
    return [has_a_trainer(each) for each in net]


WITH = (imports_it, imports_a_part, calls_one_that_does, names_a_plugin, has_one_inside)


@pytest.mark.parametrize("fn", [*WITH, gives_a_word, functools.partial(imports_it)])
def test_a_function_that_trains_with_deepspeed_is_known(fn):
    assert names_deepspeed(fn)


@pytest.mark.parametrize("fn", [only_talks_about_it, calls_itself, print, len, functools.partial])
def test_any_other_function_is_left_alone(fn):
    assert not names_deepspeed(fn)


@pytest.mark.parametrize(
    "args", [("zero2",), (3, "DeepSpeed"), ({"ACCELERATE_USE_DEEPSPEED": "1"},)]
)
def test_an_argument_that_names_deepspeed_is_known(args):
    assert given_deepspeed(args)


@pytest.mark.parametrize("args", [(), ("ddp", 2), ("zeros",), ("about deepspeed, a word",), ({},)])
def test_any_other_argument_is_left_alone(args):
    assert not given_deepspeed(args)


@pytest.mark.parametrize(
    "fn", [has_a_trainer, calls_one_that_has, functools.partial(has_a_trainer)]
)
def test_a_function_that_trains_with_a_trainer_is_known(fn):
    assert names_trainer(fn) and not names_deepspeed(fn)


@pytest.mark.parametrize("fn", [only_talks_about_it, imports_it, print, functools.partial])
def test_one_without_a_trainer_is_not(fn):
    assert not names_trainer(fn)


def unwraps(accelerator, net):
    return accelerator.unwrap_model(net)


def test_accelerate_imports_deepspeed_to_unwrap_a_model():
    assert imports_deepspeed(unwraps) and not names_deepspeed(unwraps)
    assert not imports_deepspeed(has_a_trainer)


def wraps(net):
    return torch.nn.parallel.DistributedDataParallel(net)


def shards(nets):
    return [fully_shard(each) for each in nets]


def updates(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


def calls_one_that_wraps(net):
    return wraps(net)


@pytest.mark.parametrize(
    "fn",
    [wraps, shards, updates, calls_one_that_wraps, functools.partial(wraps), sharding_run._train],
)
def test_a_function_that_wraps_a_model_is_known(fn):
    assert names_a_wrapper(fn)


@pytest.mark.parametrize("fn", [unwraps, only_talks_about_it, print, functools.partial])
def test_one_that_wraps_none_is_left_alone(fn):
    assert not names_a_wrapper(fn)


def test_a_launch_for_deepspeed_where_it_is_not_installed_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(lab.Refused, match="DeepSpeed is not installed here: make env"):
        sharding.Step(engine="zero2").start()


def test_deepspeed_without_its_ops_or_a_compiler_is_refused_in_one_line(monkeypatch, tmp_path):
    if resources.num_gpus() >= 2:
        pytest.skip("on GPUs DeepSpeed needs none of these ops")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        lab.Refused, match=r"ops are not built here.*apt-get install g\+\+"
    ) as caught:
        lab.launch(print, ranks=2, devices="deepspeed")
    assert "\n" not in str(caught.value)
