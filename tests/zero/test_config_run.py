"""What DeepSpeed reads out of configurations, and what a step does, asked on real ranks."""

import pytest
import torch

import labkit as lab
from labkit import model
from labkit.zero import config_run

pytest.importorskip("deepspeed")


def test_a_row_says_what_deepspeed_will_use_or_why_it_refuses():
    batch = {"train_batch_size": 8, "gradient_accumulation_steps": 2}
    files = {
        "right": batch | {"zero_optimization": {"stage": 2}},
        "inside": batch | {"zero_optimization": {"stage": 2, "reduce_bucket": 1}},
        "at the top": batch | {"zero_optimisation": {"stage": 2}},
    }
    rows = lab.launch(config_run.read, files, ranks=2)[0]
    assert rows == [
        {"file": "right", "stage": "2", "micro": 2, "clipping": 1.0},
        {"file": "inside", "why": "ValidationError"},
        {"file": "at the top", "stage": "0", "micro": 2, "clipping": 1.0},
    ]


def _story():
    torch.manual_seed(0)
    return model.Transformer(1, 32, 2, max_len=16), *model.story_tokens(2, 16)


def _fp32(stage, accumulate=1, **zero):
    return {
        "gradient_accumulation_steps": accumulate,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage} | zero,
    }


def test_a_second_step_is_counted_in_models_and_bytes_per_parameter():
    configs = {"plain": _fp32(0), "two": _fp32(2), "three": _fp32(3, **config_run.KEEP_NOTHING)}
    found = lab.launch(config_run.second_steps, _story, configs, ranks=2)[0]
    assert found["handed"]["two"] == {"all_reduce": 1, "all_gather": 1}
    assert found["sends"] == pytest.approx({"plain": 1, "two": 1.5, "three": 1.5}, abs=0.01)
    # parameters + gradients + (fp32 copy, momentum, variance): whole, or in two parts
    due = {"plain": 4 + 4 + 8, "two": 4 + 2 + 6, "three": 2 + 2 + 6}
    assert found["held"] == pytest.approx(due, abs=0.8)


def test_under_accumulation_stage_1_keeps_whole_gradients_and_stage_2_its_part():
    configs = {stage: _fp32(stage, accumulate=2) for stage in range(3)}
    held = lab.launch(config_run.second_steps, _story, configs, ranks=2)[0]["held"]
    assert held == pytest.approx({1: 4 + 4 + 6, 2: 4 + 2 + 6}, abs=0.8)
