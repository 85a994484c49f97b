"""What chapter 22 says in prose of a machine that it makes up."""

import pytest
import torch

ROWS = ((4, 4), (2, 4), (4, 8), (2, 8))
"""layers and sequences of the four fitted steps"""


def took_ms(layers: int, sequences: int) -> float:
    """The made-up machine: by itself, by layers, by sequences in layers."""
    return 24 + 15 * layers + 0.6 * layers * sequences


def test_the_best_fit_without_a_steps_own_time_is_what_the_table_says():
    parts = torch.tensor([[n, n * s] for n, s in ROWS], dtype=torch.float64)
    took = torch.tensor([[took_ms(*row)] for row in ROWS], dtype=torch.float64)
    layer_ms, sequence_ms = torch.linalg.lstsq(parts, took).solution[:, 0].tolist()

    def fitted_ms(layers, sequences):
        return layer_ms * layers + sequence_ms * layers * sequences

    assert [round(took_ms(*row)) for row in ROWS] == [94, 59, 103, 64]
    assert [round(fitted_ms(*row)) for row in ROWS] == [98, 49, 108, 54]
    assert round(took_ms(6, 12)) == 157 and round(fitted_ms(6, 12)) == 176
    # far out, with the sequences of the exercise
    assert fitted_ms(48, 16) / took_ms(48, 16) == pytest.approx(1.27, abs=0.01)
