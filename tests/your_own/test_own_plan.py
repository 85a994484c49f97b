"""What is said of a module that nobody here wrote, before anything runs."""

from types import SimpleNamespace

import pytest
import strangers
import torch
from torch import nn

from labkit import planner, your_own
from labkit.footprint import PARTS
from labkit.pictures.sketch import Box, Words
from labkit.your_own.holds import OUTPUTS, bill

TRIED = (strangers.gpt2, strangers.t5, strangers.transformer, strangers.vit)


def at(footprint, moment: str) -> dict[str, int]:
    """The parts of a moment."""
    row = footprint.num_bytes[footprint.labels.index(moment)].tolist()
    return dict(zip(PARTS, row, strict=True))


@pytest.mark.parametrize("make", TRIED)
def test_the_states_of_a_plan_are_four_numbers_a_parameter(make):
    num_params = sum(each.numel() for each in make()[0].parameters())
    step = your_own.Step(make=make, ranks=2)
    assert step.shape().params == num_params
    held = at(step.predict(), "update")
    states = ("parameters", "gradients", "optimizer")
    assert [held[part] for part in states] == [2 * num_params, 2 * num_params, 4 * num_params]
    copies = at(step.but(engine="ddp").predict(), "before")
    assert sum(copies.values()) == 16 * num_params


def test_the_backward_begins_with_the_output_and_all_that_was_kept():
    step = your_own.Step(make=strangers.gpt2, engine="ddp")
    found = step.predict()
    shape = step.shape()
    moment = 3 * 4 * (4 * 32) * 64  # three tensors as wide as the model, in a norm's backward
    assert at(found, "forward")["temporary"] == moment
    assert at(found, "backward")["temporary"] == OUTPUTS * 4 * 500 * 4 * 32 + moment
    kept = shape.layers * shape.kept_bytes(4 * 32, 4) + 4 * 32 * shape.outer_kept_bytes
    assert at(found, "forward")["activations"] == round(kept)
    assert found.peak == "backward"


def test_stages_hold_the_whole_and_tied_weights_twice():
    step = your_own.Step(make=strangers.gpt2, engine="pipeline", ranks=4, microbatches=4)
    held = [at(step.but(rank=rank).predict(), "before")["parameters"] for rank in range(4)]
    assert sum(held) == 4 * (step.shape().params + 500 * 64)


def test_a_plan_at_another_size_has_the_same_module():
    step = your_own.Step(make=strangers.vit)
    plan = step.plan(gpus=64, zero=1)
    assert plan.shape is step.shape()
    assert plan.layout.dp == 64 and plan.layout.mbs == 4


def test_the_module_is_built_on_the_meta_device_where_it_can_be():
    devices = []

    def watched():
        net, batch = strangers.transformer()
        devices.append(next(net.parameters()).device.type)
        return net, batch

    def reads():
        net, batch = strangers.transformer()
        assert float(next(net.parameters()).detach().sum()) < 1e9
        return net, batch

    your_own.Step(make=watched).shape()
    assert devices == ["meta"]
    assert your_own.Step(make=reads).shape().layers == 4


def said(make, **fields) -> str:
    """All doubts together."""
    return "\n".join(
        row["not known"] for row in your_own.doubts(your_own.Step(make=make, **fields))
    )


def test_doubts_are_those_of_the_module():
    assert "tied" in said(strangers.gpt2) and "causal" in said(strangers.gpt2)
    assert "tied" not in said(strangers.transformer)
    assert "outside" in said(strangers.transformer)  # the encoder
    assert "99%" in said(strangers.resnet) and "causal" not in said(strangers.resnet)
    assert "no loss" in said(strangers.vit)
    assert "no loss" not in said(strangers.vit, loss=lambda output, batch: output.mean())


def none_of_both():
    return nn.Linear(2, 2)


def unequal_rows():
    return strangers.transformer()[0], (torch.zeros(4, 8, 64), torch.zeros(3, 8, 64))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"make": nn.Linear(2, 2)}, None),
        ({"make": 3}, "function without arguments"),
        ({"make": strangers.vit, "engine": "zero9"}, "engine"),
        ({"make": strangers.vit, "rank": 2}, "rank"),
        ({"make": strangers.vit, "engine": "pipeline", "ranks": 1}, "two stages"),
    ],
)
def test_what_can_not_be_is_refused(fields, words):
    if words is None:
        with pytest.raises((ValueError, TypeError)):
            your_own.Step(**fields).shape()
        return
    with pytest.raises(ValueError, match=words):
        your_own.Step(**fields)


def test_a_batch_is_split_over_copies_and_shards_alone():
    step = your_own.Step(make=strangers.gpt2, split=True)
    rows = step.but(split=False).rows()
    assert step.rows() == step.plan().mbs == rows // 2
    assert step.but(engine="pipeline").rows() == rows
    with pytest.raises(ValueError, match=f"3 ranks as many samples; got a batch of {rows}"):
        step.but(ranks=3).run()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (none_of_both, "return net, batch"),
        (unequal_rows, "as many rows"),
        (strangers.lstm, "which layers repeat"),
    ],
)
def test_a_module_that_can_not_be_planned_says_why(make, words):
    with pytest.raises(ValueError, match=words):
        your_own.Step(make=make).predict()


def test_a_bill_is_of_a_measured_module():
    with pytest.raises(ValueError, match="measured module"):
        bill(planner.Plan(gpus=8, zero=3))


class Bend(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * 2


def bends():
    return torch.nn.Sequential(Bend(), Bend()), torch.randn(3, 8)


def test_what_is_kept_is_told_by_operator_weights_left_out():
    step = your_own.Step(make=bends)
    rows = [tuple(row.values()) for row in your_own.kept(step)]
    # the last product's result goes to nobody; the batch is kept for the first linear layer
    assert rows == [
        ("tanh", "3 x 8", 2, 192),
        ("what was given", "3 x 8", 1, 96),
        ("mul", "3 x 8", 1, 96),
    ]
    first, rest = your_own.kept(step, most=1)
    assert first["kept_bytes"] == 192 and rest["result_of"] == "all others"
    assert (rest["tensors"], rest["kept_bytes"]) == (2, 192)
    with pytest.raises(ValueError, match="most"):
        your_own.kept(step, most=0)


def test_a_moment_is_told_on_both_sides():
    planned = your_own.Step(make=bends).predict()
    found = SimpleNamespace(predicted=planned, measured=planned)
    rows = your_own.beside(found, "update")
    there = {part: many for part, many in at(planned, "update").items() if many}
    assert {row["part"]: row["planned_bytes"] for row in rows} == there
    assert all(row["counted_bytes"] == row["planned_bytes"] for row in rows)
    names = [row["part"] for row in your_own.beside(found, "backward")]
    assert "logits, other temporary tensors" in names
    with pytest.raises(ValueError, match=r"a moment is one of before, .*; got 'later'"):
        your_own.beside(found, "later")


def test_the_highest_points_of_runs_stand_side_by_side():
    planned = your_own.Step(make=bends).predict()
    copies = your_own.Step(make=bends, engine="ddp").predict()
    found = SimpleNamespace(predicted=planned, measured=copies)
    sides = {"predicted": planned.peak_bytes, "measured": copies.peak_bytes}
    assert your_own.peaks({"a": found}) == {"a": sides}
    for wrong, words in (({}, "by its name"), ({"a": 1}, "compare")):
        with pytest.raises(ValueError, match=words):
            your_own.peaks(wrong)


def test_losses_are_told_by_how_far_they_lie_from_the_first():
    apart = your_own.losses({"one": {"losses": [3, 2, 1]}, "two": {"losses": [3, 1.5, 0.75]}})
    assert apart == [{"run": "two", "first loss": 0, "second loss": -0.5, "third loss": -0.25}]
    for wrong, words in ({"losses": None}, "saw no loss"), ({"losses": [1]}, "one rank"):
        with pytest.raises(ValueError, match=words):
            your_own.losses({"one": {"losses": [3, 2, 1]}, "stages": wrong})
    for none in ([], {"one": {"losses": [3, 2, 1]}}):
        with pytest.raises(ValueError, match="two runs or more"):
            your_own.losses(none)


def test_four_wide_tensors_are_kept_for_gpt2s_gelu():
    step = your_own.Step(make=strangers.gpt2)
    width = step.shape().hidden
    wide = [each for each in step.shape().kept_tensors if each.shape[-1] == 4 * width]
    layers = step.shape().layers
    # and one more, the input of the layer behind
    assert sum(each.count for each in wide) == 5 * layers


def test_operators_are_told_in_their_order_with_what_is_kept():
    bend = your_own.recorded(Bend())
    assert bend == [("x", True), ("addmm", False), ("tanh", True), ("mul", False)]
    assert your_own.recorded(torch.nn.GELU("tanh")) == [("x", True), ("gelu", False)]
    drawn = your_own.operators({"a": bend, "b": [("x", False)]})
    assert drawn.table[1:] == (("a", "x addmm tanh mul", "x tanh"), ("b", "x", ""))
    assert [each.text for each in drawn.only(Words) if each.bold] == ["2 kept", "0 kept"]
    badges = {your_own.operators({"a": bend}, counted=by_hand).badge for by_hand in (False, True)}
    assert badges == {"measured", "computed"}
    bad_sizes = ({"a": {}}, {"a": {"x": -1}}, {"a": {"x": 0.5}}, {"a": {3: 1}})
    bad = (3, {}, {"a": 3}, {"a": []}, {"a": [("x", True)] * 15}, {"a": ["xy"]}, *bad_sizes)
    for none in bad:
        with pytest.raises(ValueError, match="operators at most"):
            your_own.operators(none)
    with pytest.raises(ValueError, match="2 x 8 numbers"):
        your_own.recorded(torch.nn.Linear(5, 5))
    with pytest.raises(ValueError, match="a function of a tensor"):
        your_own.recorded("soap")


def test_operators_are_told_with_the_bytes_kept_of_them():
    drawn = your_own.operators({"a": {"x": 2, "addmm": 0, "tanh": 8}}, counted=True)
    assert drawn.table[1:] == (("a", "x: 2 addmm: 0 tanh: 8", "x: 2 tanh: 8"),)
    assert [each.text for each in drawn.only(Words) if each.bold] == ["10 bytes"]
    narrow, _, wide = [each for each in drawn.only(Box) if each.texts]
    assert wide.width_px == pytest.approx(4 * narrow.width_px)


def test_bytes_are_planned_of_adamw_alone():
    with pytest.raises(ValueError, match="run\\(\\) alone takes 'sgd'"):
        your_own.Step(make=bends, optimizer="sgd").predict()
    with pytest.raises(ValueError, match="an optimizer"):
        your_own.Step(make=bends, optimizer="adagrad")


def test_columns_go_on_where_something_does_not_work(monkeypatch):
    def fails(self):
        raise ValueError("it can't be cut\nand more")

    step = your_own.Step(make=strangers.vit)
    whole = step.plan(gpu="A100 40 GB", gpus=8, batch=32, zero=0)
    for verb in ("run", "compare"):
        monkeypatch.setattr(your_own.Step, verb, fails)
    rows = your_own.columns({"a": (step, whole), "b": (step, whole)})
    cells = [row["a"] for row in rows]
    assert [row["b"] for row in rows] == cells and len({row["quantity"] for row in rows}) == 6
    assert cells[2].startswith("copies, ")
    assert cells[3:] == ["skipped: it can't be cut"] * 3
    for wrong in ((step.but(engine="ddp"), whole), (step, whole.but(zero=3)), (3, whole), step):
        with pytest.raises(ValueError, match=r"shards on two ranks|plan in copies"):
            your_own.columns({"a": wrong})
    with pytest.raises(ValueError, match="modules have names"):
        your_own.columns({})
