"""What a Trainer of transformers is given: a net that learns, and passages of one length."""

import pytest

import labkit as lab
from labkit.zero import opt_run

pytest.importorskip("transformers")


def test_the_net_takes_the_passages_and_has_a_loss():
    net, passages = opt_run.net_and_data()
    assert len(passages) == 48
    assert {len(each["input_ids"]) for each in passages} == {32}
    first = {name: values[None] for name, values in passages[0].items()}
    assert (first["input_ids"] == first["labels"]).all()
    loss = net(**first).loss
    assert 4 < loss.item() < 8  # nothing learned yet: about ln 256
    loss.backward()


@pytest.mark.again
def test_a_trainer_refuses_a_file_that_contradicts_it_and_fills_in_what_says_auto(tmp_path):
    pytest.importorskip("deepspeed")
    file = {
        "train_batch_size": 32,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    }
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    auto |= {"gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}

    def trained(file):
        from transformers import Trainer, TrainingArguments

        sizes = {"per_device_train_batch_size": 8, "max_steps": 1, "save_strategy": "no"}
        arguments = TrainingArguments(
            str(tmp_path), deepspeed=file, bf16=True, use_cpu=True, **sizes
        )
        net, passages = opt_run.net_and_data()
        trainer = Trainer(net, arguments, train_dataset=passages)
        try:
            trainer.train()
        except ValueError as error:
            return str(error)
        return type(trainer.model_wrapped).__name__

    refused, filled = lab.launch(
        lambda: [trained(file), trained(file | auto)], ranks=2, backend="gloo", timeout_s=120
    )[0]
    assert "ds gradient_accumulation_steps=4 vs hf gradient_accumulation_steps=1" in refused
    assert "ds train_batch_size=32" in refused and filled == "DeepSpeedEngine"
