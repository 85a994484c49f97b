"""Jobs that share a link: alone at full speed, together at a part of it, in turns at full speed."""

import pytest

from labkit.communication import jobs


def ends_ms(starts_ms, **options):
    timeline = jobs.shared_link(starts_ms, **options)
    return [
        float(timeline.end_us[timeline.rank == job].max()) / 1e3 for job in range(len(starts_ms))
    ]


def test_a_job_alone_takes_its_own_time():
    assert ends_ms([0]) == [4 * (30 + 20)]
    assert ends_ms([7], num_steps=1) == [57]


@pytest.mark.parametrize("num_jobs", [2, 3])
def test_jobs_that_send_together_share_the_link(num_jobs):
    assert ends_ms([0] * num_jobs) == pytest.approx([4 * (30 + 20 * num_jobs)] * num_jobs)


def test_jobs_that_take_turns_lose_nothing():
    assert ends_ms([0, 25]) == pytest.approx([200, 225])


def test_a_part_of_a_message_is_shared():
    """Job 1 begins to send when job 0 has sent half: both then have half of the link."""
    assert ends_ms([0, 10], num_steps=1) == pytest.approx([60, 70])


def test_what_can_t_be_is_refused():
    with pytest.raises(ValueError, match="jobs"):
        jobs.shared_link([])
    with pytest.raises(ValueError, match="start_ms"):
        jobs.shared_link([-1])
