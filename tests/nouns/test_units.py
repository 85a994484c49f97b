"""Laws of numbers with units."""

import pytest

from labkit.units import (
    format_bytes,
    format_days,
    format_number,
    format_share,
    format_us,
    unit_of,
)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "0 us"),
        (0.5, "0.50 us"),
        (12.345, "12.3 us"),
        (999, "999 us"),
        (1000, "1.00 ms"),
        (12_345, "12.3 ms"),
        (1_500_000, "1.50 s"),
        (123_456_789, "123 s"),
        (-2500, "-2.50 ms"),
    ],
)
def test_durations_have_three_digits_and_the_unit_that_fits(time_us, text):
    assert format_us(time_us) == text


@pytest.mark.parametrize(
    ("days", "text"),
    [(0, "0 h"), (0.629, "15.1 h"), (1, "1.00 d"), (41.5, "41.5 d"), (365, "1.00 yr")],
)
def test_long_durations_are_hours_days_or_years(days, text):
    assert format_days(days) == format_number(days, "days") == text
    assert unit_of("time_days") == "days" and unit_of("days") == ""


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1024, "1.02 kB"),
        (1_500_000, "1.50 MB"),
        (80e9, "80.0 GB"),
        (2.5e12, "2.50 TB"),
    ],
)
def test_sizes_are_base_ten(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_shares_are_percentages_with_one_decimal():
    assert (format_share(3 / 11), format_share(0), format_share(1)) == (
        "27.3 %",
        "0.0 %",
        "100.0 %",
    )
    assert format_share(-0.0002) == "0.0 %"
