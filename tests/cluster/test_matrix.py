"""Who answered, how fast they reach each other, and which link is slow."""

import numpy as np
import pytest

from labkit.cluster import examine_run, matrix
from labkit.cluster.matrix import Matrix

HOSTS = ["a", "a", "b", "b", "c"]


def between(speed: float, **slow: float) -> np.ndarray:
    """Speeds of ranks: 900 inside a host, ``speed`` between them, but for ``a_b=``."""
    found = np.full((len(HOSTS), len(HOSTS)), 900.0)
    for source, start in enumerate(HOSTS):
        for target, end in enumerate(HOSTS):
            if start != end:
                found[source, target] = slow.get(f"{start}_{end}", speed)
    np.fill_diagonal(found, np.nan)
    return found


def test_a_slow_link_is_found_in_its_direction():
    assert matrix.slow_links(between(100.0, b_a=10.0), HOSTS) == [("b", "a")]
    assert matrix.slow_links(between(100.0), HOSTS) == []
    found = matrix.slow_links(between(100.0, c_a=10.0, c_b=12.0), HOSTS)
    assert sorted(found) == [("c", "a"), ("c", "b")]


def test_a_single_host_has_no_link():
    assert matrix.slow_links(np.array([[np.nan, 1.0], [900.0, np.nan]]), ["a", "a"]) == []


def made(speeds: np.ndarray) -> Matrix:
    ranks = tuple({"host": host} for host in HOSTS)
    return Matrix(ranks=ranks, mb_per_s=speeds, latency_us=speeds, notes=("gloo",))


def test_it_shows_itself_with_the_slow_link_marked():
    found = made(between(100.0, b_a=10.0))
    picture = found.picture()
    boxes = [shape for shape in picture.shapes if hasattr(shape, "marked")]
    assert len(boxes) == 20 and sum(box.marked for box in boxes) == 4
    assert max(box.fill for box in boxes) == 1.0
    shares = {box.texts[0]: box.fill for box in boxes}
    assert shares["10"] == pytest.approx(10 / 900)
    assert (
        "b → a" in found.bundle()["text/plain"]
        and "慢链路" in found.bundle(language="zh")["text/plain"]
    )
    assert len(found.links().cells) == 6 and len(found.table().cells) == 5


def test_a_matrix_has_a_number_for_every_two_ranks():
    with pytest.raises(ValueError, match="its shape is"):
        Matrix(ranks=({"host": "a"},), mb_per_s=np.zeros((2, 2)), latency_us=np.zeros((1, 1)))


def test_too_many_ranks_are_left_to_the_table():
    ranks = tuple({"host": f"h{rank}"} for rank in range(17))
    many = Matrix(ranks=ranks, mb_per_s=np.ones((17, 17)), latency_us=np.ones((17, 17)))
    with pytest.raises(ValueError, match="16 ranks at most"):
        many.picture()


def test_a_short_message_is_taken_off_unless_it_is_most_of_the_time():
    assert examine_run._mb_per_s(10**6, long_s=0.011, short_s=0.001) == pytest.approx(100)
    for short_s in (0.006, 0.010, 0.5):  # noise: the link is at least so fast
        assert examine_run._mb_per_s(10**6, long_s=0.010, short_s=short_s) == pytest.approx(100)
