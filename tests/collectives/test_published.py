"""Laws of the published table: a time, a size and the bandwidths beside them agree."""

import csv

import pytest

from labkit.collectives import published
from labkit.collectives.network import algbw, busbw


def test_the_times_give_the_bandwidths_that_the_table_prints():
    rows = list(csv.DictReader(published.TABLE.read_text(encoding="utf-8").splitlines()))
    seen = 0
    for machine in published.machines():
        mine = [row for row in rows if row["node"] == machine]
        sizes, times = published.all_reduce_times(machine)
        for row, size, time_us in zip(mine, sizes, times, strict=True):
            printed = float(row["algbw_GBps"]), float(row["busbw_GBps"])
            if printed[0] < 1:  # printed with one or two digits
                continue
            computed = algbw(size, time_us), busbw("all_reduce", int(row["n"]), size, time_us)
            assert computed == pytest.approx(printed, rel=0.02)
            seen += 1
    assert seen > 50


def test_a_machine_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"8xA100 NVLink3.*; got 'DGX'"):
        published.all_reduce_times("DGX")
