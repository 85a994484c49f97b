"""Laws of attention over a cut sequence on real ranks: output and gradients are those of one
process, bytes are the predicted ones, a stated pace is kept."""

import pytest
import torch

from labkit.long_context import Attention, ring_run
from labkit.timeline import busy_us

SMALL = Attention(ranks=2, sequence=32, heads=2, head_dim=8, pair_ms=1.0)


@pytest.mark.a_few(3)
@pytest.mark.parametrize(
    "attention",
    [
        SMALL,
        SMALL.but(ranks=4, balanced=False, batch=2),
        SMALL.but(ranks=3, sequence=36, causal=False),
        SMALL.but(way="ulysses"),
        SMALL.but(way="ulysses", ranks=4, heads=8, causal=False),
        SMALL.but(way="ulysses", engine="deepspeed", heads=4, batch=2),
    ],
    ids=["ring", "neighbours", "everywhere", "ulysses", "ulysses everywhere", "deepspeed"],
)
def test_it_is_one_processs_and_every_byte_is_predicted(attention):
    if reason := attention.refusal("en"):
        pytest.skip(reason)
    run = attention.run()
    assert "paced" in run.notes
    for result in run:
        assert result["output_difference"] < 2e-6 and result["gradient_difference"] < 4e-6
        payload = result["payload_bytes"]
        assert {name: payload[name] for name in attention.payload()} == attention.payload()
        assert set(payload) <= {*attention.payload(), "recv"}
        if attention.way == "ring":
            assert result["held_bytes"] == attention.kept_bytes()


def test_labels_say_whose_keys_a_round_has():
    line = SMALL.but(ranks=4, sequence=32, balanced=False).run().timeline()
    labels = [
        label
        for rank, kind, label in zip(line.rank, line.kind, line.label, strict=True)
        if rank == 2 and kind == "forward"
    ]
    assert labels == ["F2", "F1", "F0", "F3"]


@pytest.mark.alone
def test_the_simulation_is_near():
    attention = Attention(ranks=4, balanced=False, pair_ms=30.0)
    found = attention.compare().readings
    assert found["measured"] == pytest.approx(found["predicted"], rel=0.1)
    busy = busy_us(attention.compare().measured)
    assert busy == pytest.approx(busy_us(attention.predict()), rel=0.1)


def test_two_softmaxes_are_joined_exactly():
    torch.manual_seed(0)
    asked = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    values = torch.randn(2, 3, 8, 4, dtype=torch.float64)
    halves = []
    for part in (slice(0, 3), slice(3, 8)):
        lse = asked[..., part].logsumexp(-1)
        halves += [(asked[..., part] - lse.unsqueeze(-1)).exp() @ values[..., part, :], lse]
    out, lse = ring_run.joined(*halves)
    assert torch.allclose(out, asked.softmax(-1) @ values)
    assert torch.allclose(lse, asked.logsumexp(-1))


def test_a_piece_sees_only_what_comes_before():
    q = torch.randn(1, 1, 4, 2)
    k = torch.randn(1, 1, 4, 2)
    seen = ring_run.scores(q, k, same=True).isfinite()[0, 0]
    assert seen.tolist() == torch.ones(4, 4).tril().bool().tolist()
    assert ring_run.scores(q, k, same=False).isfinite().all()


def test_compare_draws_both_and_says_why_they_differ():
    found = SMALL.compare()
    total = found.readings["measured"] - found.readings["predicted"]
    assert found.difference().total == pytest.approx(total, abs=1e-6)
    assert "image/svg+xml" in found.bundle() or "text/html" in found.bundle()
