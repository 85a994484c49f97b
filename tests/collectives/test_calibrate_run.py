"""Calibration: points from real ranks, the line through them, and what is kept of them on disk."""

import json
from pathlib import Path

import pytest

from labkit.collectives import calibrate_run as calibrate
from labkit.collectives.calibrate_run import Point
from labkit.launching import launcher
from labkit.launching.run import Run
from labkit.machine import resources


def line(primitive, ranks, sizes, **options):
    """A sweep without ranks: exactly 50 us and 2 GB/s."""
    return [
        Point(primitive=primitive, num_ranks=num_ranks, num_bytes=size, time_us=50 + size / 2e3)
        for num_ranks in ranks
        for size in sizes
    ]


@pytest.fixture
def swept(monkeypatch, tmp_path):
    """An empty cache folder, a sweep that is a line, and the numbers of ranks that it was asked
    for."""
    asked = []
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        calibrate,
        "sweep",
        lambda primitive, ranks, sizes: asked.append(ranks) or line(primitive, ranks, sizes),
    )
    return asked


@pytest.mark.real
@pytest.mark.parametrize(
    "primitive",
    [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "all_to_all",
        "send_recv",
    ],
)
def test_a_sweep_times_every_size_on_real_ranks(primitive):
    points = calibrate.sweep(primitive, [2], [4, 1001, 40_000], num_launches=1, num_repeats=2)
    assert [(point.primitive, point.num_ranks, point.num_bytes) for point in points] == [
        (primitive, 2, 8),
        (primitive, 2, 1000),
        (primitive, 2, 40_000),
    ]
    assert all(1 < point.time_us < 5e6 for point in points)


def test_a_point_is_the_slowest_ranks_time_in_the_median_of_launches_and_calls(monkeypatch):
    told = iter(
        [[[[1.0], [9.0]], [[5.0], [2.0]]], [[[1.0], [7.0]], [[3.0], [1.0]]]]
    )  # launch, rank, call, size
    about = {"logs": ("", ""), "seconds": 1.0, "backend": "gloo", "notes": ("gloo", "paced")}
    monkeypatch.setattr(launcher, "launch", lambda *_, **__: Run(results=next(told), **about))
    points = calibrate.sweep("all_reduce", [2], [1000], num_launches=2, num_repeats=2)
    assert [point.time_us for point in points] == [6.0]  # of 5, 9, 3, 7
    assert points[0].notes == ("gloo", "paced")


@pytest.mark.parametrize(
    ("primitive", "ranks", "words"),
    [
        ("gossip", [2], "a primitive is one of broadcast, .*got 'gossip'"),
        ("all_reduce", [0], "number 0 of ranks is a whole .*got 0"),
    ],
)
def test_what_cannot_be_swept_is_refused(primitive, ranks, words):
    with pytest.raises(ValueError, match=words):
        calibrate.sweep(primitive, ranks)
    with pytest.raises(ValueError, match="two sizes or more"):
        calibrate.fit([])


@pytest.mark.alone  # compares times
def test_more_bytes_take_longer_and_the_fit_follows():
    points = calibrate.sweep("all_reduce", [2], [1000, 40e6], num_launches=2, num_repeats=2)
    assert points[0].time_us < points[1].time_us
    fit = calibrate.fit(points)
    assert fit.us(points[0].num_bytes) == pytest.approx(points[0].time_us, rel=1e-3)
    assert fit.link().bandwidth_gb_per_s == pytest.approx(
        fit.bandwidth_gb_per_s
    )  # 2 ranks: a ring's 2(N-1)/N is 1


def test_links_are_measured_once_and_then_read(swept):
    first = calibrate.links((2, 4))
    assert swept == [[2], [4]]
    assert first[4].alpha_us == pytest.approx(50) and first[4].bandwidth_gb_per_s == pytest.approx(
        2
    )
    assert calibrate.links((2, 4)) == first and swept == [[2], [4]]
    calibrate.links([4], fresh=True)
    calibrate.links([4], primitive="broadcast")
    assert swept == [[2], [4], [4], [4]]


def test_a_quarter_of_the_sizes_is_measured_to_the_largest():
    assert 4 * len(calibrate.QUARTER) == len(calibrate.SIZES)
    assert max(calibrate.QUARTER) == max(calibrate.SIZES) and min(calibrate.SIZES) == 1000


def test_what_is_kept_has_its_date_and_machine_and_no_draft_beside_it(swept, tmp_path):
    calibrate.links([2])
    (file,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    kept = json.loads(file.read_text())
    assert kept["machine"].items() >= resources.summary().items() and kept["date"].count("-") == 2
    assert calibrate.stored("all_reduce", 2) == line("all_reduce", [2], calibrate.QUARTER)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: "",
        lambda kept: "[1, 2]",
        lambda kept: json.dumps(kept)[:-20],
        lambda kept: "null",
        lambda kept: json.dumps(kept | {"machine": kept["machine"] | {"cores": 999}}),
        lambda kept: json.dumps(kept | {"points": []}),
        lambda kept: json.dumps(
            kept | {"points": [point | {"time_us": -1} for point in kept["points"]]}
        ),
        lambda kept: json.dumps(kept | {"points": [{"time_us": 1}]}),
        lambda kept: json.dumps(
            kept | {"points": [point | {"time_us": None} for point in kept["points"]]}
        ),
    ],
    ids=["empty", "list", "cut", "null", "machine", "no points", "negative", "fields", "none"],
)
def test_a_damaged_or_foreign_file_is_measured_anew(swept, damage):
    right = calibrate.links([2])
    file = calibrate._file("all_reduce", 2)
    file.write_text(damage(json.loads(file.read_text())))
    assert calibrate.stored("all_reduce", 2) == []
    assert calibrate.links([2]) == right and swept == [[2], [2]]
    assert calibrate.links([2]) == right and swept == [[2], [2]]


def test_the_cache_is_where_the_system_keeps_such_things(monkeypatch, tmp_path):
    monkeypatch.delenv("LABKIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (
        calibrate._file("all_reduce", 4)
        == tmp_path / "labkit" / "calibration" / "all_reduce-4.json"
    )
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(calibrate.sys, "platform", "darwin")
    assert Path.home() / "Library" / "Caches" in calibrate._file("all_reduce", 4).parents
