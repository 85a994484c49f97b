"""What chapter 13 says of DeepSpeed's universal checkpoints: they go on with other ranks."""

import argparse

import pytest
import torch

import labkit as lab


def with_deepspeed(folder, stage, universal, steps):
    """Losses of some ZeRO steps, summed over the ranks' shares; without ``universal`` it saves
    before step 3."""
    import deepspeed
    import torch.distributed as dist

    from labkit import model
    from labkit.sharding import run
    from labkit.sharding.step import Step

    setting = Step(engine=f"zero{stage}", ranks=dist.get_world_size(), microbatches=1)
    config = run.deepspeed_config(setting) | {
        "bf16": {"enabled": False},
        "checkpoint": {"load_universal": universal},
    }
    torch.manual_seed(universal)
    engine = deepspeed.initialize(model=model.Transformer(2, 64, 4, max_len=32), config=config)[0]
    if universal:
        engine.load_checkpoint(folder)
    losses = []
    for step in steps:
        if step == 3 and not universal:
            engine.save_checkpoint(folder)
        tokens, targets = (
            each.chunk(setting.ranks)[dist.get_rank()] for each in model.story_tokens(4, 32, step)
        )
        loss = model.loss(engine(tokens), targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def to_universal(folder):
    """What the command ds_to_universal does. ZeRO 1 and 2 need a note in the checkpoint, which it
    injects."""
    from deepspeed.checkpoint import ds_to_universal

    tag = (folder / "latest").read_text()
    ds_to_universal.main(
        argparse.Namespace(
            input_folder=str(folder / tag),
            output_folder=str(folder / "universal"),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )


@pytest.mark.a_few(1)
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeeds_universal_format_goes_on_with_other_ranks(stage, tmp_path):
    def together(ranks):
        return torch.tensor(list(ranks)).mean(0)

    undisturbed = together(
        lab.launch(
            with_deepspeed, tmp_path, stage, False, range(6), ranks=2, backend="gloo", timeout_s=50
        )
    )
    lab.launch(to_universal, tmp_path, ranks=1, backend="gloo", timeout_s=50)
    for num_ranks in (1, 4):
        resumed = together(
            lab.launch(
                with_deepspeed,
                tmp_path,
                stage,
                True,
                range(3, 6),
                ranks=num_ranks,
                backend="gloo",
                timeout_s=50,
            )
        )
        torch.testing.assert_close(resumed, undisturbed[3:], rtol=0, atol=1e-5)
    assert (undisturbed[3:] - undisturbed[:3]).abs().min() > 1e-2
