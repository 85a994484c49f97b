"""Modules that nobody here wrote, on real ranks: sharded and cut they learn what they learn alone,
and hold what was planned."""

import functools
import math

import pytest
import strangers
import torch

import labkit as lab
from labkit import your_own
from labkit.footprint import PARTS
from labkit.launching.verdicts.verdict import RankFailed
from labkit.your_own import run as own_run

pytestmark = pytest.mark.real
again = pytest.mark.again
OTHERS = (strangers.t5, strangers.vit, strangers.transformer, strangers.mamba)
NEAR = {"gpt2": 0.15, "bert": 0.15, "vit": 0.25, "transformer": 0.25, "t5": 0.35, "mamba": 0.35}
"""how far the highest point may be from its plan, as a share"""


def alone(make, loss=None) -> list[float]:
    """Losses of three steps in one process, of the very weights that ranks begin with."""
    step = your_own.Step(make=make, loss=loss)
    torch.manual_seed(0)
    module, batch = make()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    found = []
    for _ in range(3):
        value = own_run.loss_of(step, own_run.called(module, batch), batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(value.item())
    return found


def held(footprint, moment: str) -> list[int]:
    """Parameters and optimizer at a moment."""
    row = footprint.num_bytes[footprint.labels.index(moment)]
    return [int(row[PARTS.index(part)]) for part in ("parameters", "optimizer")]


@pytest.mark.parametrize(
    ("make", "engine"),
    [
        (strangers.gpt2, "fsdp"),
        (strangers.bert, "pipeline"),
        *(pytest.param(each, "fsdp", marks=again) for each in (strangers.bert, *OTHERS)),
        *(pytest.param(each, "ddp", marks=again) for each in (strangers.gpt2, *OTHERS)),
        *(pytest.param(each, "pipeline", marks=again) for each in (strangers.gpt2, *OTHERS)),
    ],
)
def test_a_stranger_learns_in_parts_what_it_learns_alone(make, engine):
    step = your_own.Step(make=make, engine=engine, timed=2)
    found = step.compare()
    results = found.run
    for rank in results:
        assert len(rank["step_us"]) == 2
        for step_us, update_us in zip(rank["step_us"], rank["update_us"], strict=True):
            assert 0 < update_us < step_us
        assert 0 < sum(rank["step_us"]) < 1e6 * results.seconds
    wanted = alone(make)
    assert results[-1]["losses"] == pytest.approx(wanted, rel=1e-4)
    assert results[0]["loss_alone"] == pytest.approx(wanted[0], rel=1e-5)
    assert found.measured.labels == found.predicted.labels
    peaks = {"planned": 0, "read out": 0}
    for rank in range(2):
        of_rank = step.but(rank=rank)
        planned = of_rank.predict()
        read_out = of_rank.measured(results)
        # Adam counts its steps; FSDP cuts by rows, and adds a row where there is one too few
        for mine, other in zip(held(planned, "update"), held(read_out, "update"), strict=True):
            assert other == pytest.approx(mine, rel=0.02)
        peaks["planned"] += planned.peak_bytes
        peaks["read out"] += read_out.peak_bytes
    # together: a plan has what an encoder keeps on the stage of the decoder's end
    assert peaks["read out"] == pytest.approx(peaks["planned"], rel=NEAR[make.__name__])


def summed(output: torch.Tensor, batch: dict) -> torch.Tensor:
    """A loss that reads the batch."""
    logits = output[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())


@again
def test_a_loss_of_ones_own_is_taken_behind_the_last_stage():
    step = your_own.Step(make=strangers.gpt2, loss=summed, engine="pipeline")
    found = step.run()
    assert found[0]["losses"] is None
    assert found[1]["losses"] == pytest.approx(alone(strangers.gpt2, summed), rel=1e-4)
    assert found[1]["losses"][0] == pytest.approx(math.log(500), rel=0.05)


def with_labels():
    net, batch = strangers.gpt2()
    return net, {**batch, "labels": batch["input_ids"]}


@pytest.mark.parametrize("engine", ["fsdp", pytest.param("ddp", marks=again)])
def test_ranks_that_split_a_batch_learn_what_one_process_learns_of_all(engine):
    step = your_own.Step(make=strangers.gpt2, loss=summed, engine=engine, split=True)
    found = step.compare()
    assert found.run[0]["losses"] == found.run[1]["losses"]
    assert found.run[0]["losses"] == pytest.approx(alone(strangers.gpt2, summed), rel=1e-4)
    # each alone learns of its half: what gradients that nobody averaged would look like
    halves = functools.partial(half, strangers.gpt2)
    unaveraged = alone(halves, summed)[2]
    assert abs(found.run[0]["losses"][2] - unaveraged) > 1e-3
    whole = step.but(split=False)
    assert found.predicted.peak_bytes < whole.predict().peak_bytes
    assert 0.7 * found.predicted.peak_bytes < found.measured.peak_bytes


def test_sgd_shows_a_gradient_that_adam_hides():
    step = your_own.Step(make=strangers.gpt2, loss=summed, engine="fsdp", split=True)
    one = step.but(engine="ddp", ranks=1)
    right, parts = (each.but(optimizer="sgd").run()[0]["losses"] for each in (one, step))
    assert parts == pytest.approx(right, rel=1e-5)
    shown = {}
    for optimizer in ("sgd", "adamw"):
        twice = one.but(optimizer=optimizer, loss=doubled).run()[0]["losses"]
        once = one.but(optimizer=optimizer).run()[0]["losses"]
        shown[optimizer] = abs(twice[2] / 2 - once[2])
    assert shown["sgd"] > 1e-2 > 1e-3 > shown["adamw"]


def test_a_table_on_two_stages_goes_astray_if_its_gradients_are_not_added():
    step = your_own.Step(make=strangers.gpt2, loss=summed, engine="pipeline", optimizer="sgd")
    right, apart = (each.run()[1]["losses"] for each in (step, step.but(add_tied=False)))
    assert apart[0] == pytest.approx(right[0], rel=1e-5)
    assert abs(apart[2] - right[2]) > 1e-3


def test_those_that_run_out_of_memory_are_told_by_name():
    step = your_own.Step(make=strangers.gpt2, engine="ddp", ranks=1)
    steps = {"alone": step}
    assert your_own.out_of_memory(steps, lab.pretend(memory_mib=4)) == ["alone"]
    assert your_own.out_of_memory(steps, lab.pretend(memory_mib=512)) == []
    with pytest.raises(RankFailed, match="NaN"):
        your_own.out_of_memory({"alone": step.but(loss=broken)}, lab.pretend(memory_mib=512))
    with pytest.raises(ValueError, match="a name -> a Step"):
        your_own.out_of_memory([step], lab.pretend(memory_mib=4))


def broken(output: torch.Tensor, batch: dict) -> torch.Tensor:
    """No loss."""
    raise RuntimeError("NaN")


def doubled(output: torch.Tensor, batch: dict) -> torch.Tensor:
    """A loss all of whose gradients are twice as large."""
    return 2 * summed(output, batch)


def half(make):
    module, batch = make()
    return module, {name: each[: len(each) // 2] for name, each in batch.items()}


@again
@pytest.mark.parametrize(
    ("make", "words"),
    [(strangers.whisper, "torch.export"), (with_labels, "only the first stage")],
)
def test_what_can_not_be_cut_is_refused_in_words(make, words):
    with pytest.raises(RankFailed, match=words):
        your_own.Step(make=make, engine="pipeline").run()


@again
def test_whisper_is_cut_without_its_cache():
    make = functools.partial(strangers.whisper, use_cache=False)
    found = your_own.Step(make=make, engine="pipeline").run()
    assert found[1]["losses"][0] == pytest.approx(found[1]["loss_alone"], rel=1e-4)


@again
def test_resnet_is_sharded_though_hardly_any_of_it_is_layers():
    found = your_own.Step(make=strangers.resnet).run()
    assert found[0]["losses"][0] == pytest.approx(found[0]["loss_alone"], rel=1e-4)


def test_a_step_is_clocked_and_nothing_else():
    step = your_own.Step(make=strangers.transformer, timed=2, split=True)
    assert 0 < your_own.in_turns([step])[0] < 1e6 * own_run.TIMEOUT_S
    for none in (step.but(timed=0), step.but(engine="pipeline")):
        with pytest.raises(ValueError, match="one of timed=5 or so, of copies or shards"):
            your_own.in_turns([none])


def hurried(step):
    own_run.TURNS_S = 0.0
    return own_run._clocked([step])


def test_when_the_time_is_up_no_further_round_begins():
    step = your_own.Step(make=strangers.transformer, timed=1000, split=True)
    for found in lab.launch(hurried, step, ranks=2, timeout_s=own_run.TIMEOUT_S):
        assert 0 < found[0] < 1e6 * own_run.TIMEOUT_S


def counted_builds(step):
    made = []

    def build():
        made.append(0)
        return strangers.transformer()

    same = step.but(make=build)
    found = own_run._clocked([same, step, same])
    return len(made), len(found)


def test_a_step_that_takes_two_turns_is_made_once():
    step = your_own.Step(make=strangers.transformer, timed=1, split=True)
    run = lab.launch(counted_builds, step, ranks=2, timeout_s=own_run.TIMEOUT_S)
    assert list(run) == [(1, 3)] * 2


def test_steps_of_several_sizes_take_turns():
    step = your_own.Step(make=strangers.transformer, timed=2, split=True)
    found = your_own.in_turns([step, step.but(engine="ddp")])
    assert len(found) == 2 and all(0 < each < 1e6 * own_run.TIMEOUT_S for each in found)
    for unlike in ([], [step, step.but(timed=3)], [step, step.but(ranks=3)]):
        with pytest.raises(ValueError, match="the same ranks, devices and timed"):
            your_own.in_turns(unlike)


def test_a_column_has_the_losses_of_shards_and_stages():
    machine = {"gpu": "A100 40 GB", "gpus": 8, "batch": 32}
    step = your_own.Step(make=strangers.vit, split=True)
    whole = step.plan(**machine, zero=0)
    cells = [row["a"] for row in your_own.columns({"a": (step, whole)})]
    assert cells[2].startswith("copies, ") and float(cells[4]) < 1e-5 and float(cells[5]) < 1e-5
