"""Where to cut: bytes and times of every cut, one request and a stream of them."""

import pytest

from labkit import heterogeneous
from labkit.collectives.network import Link
from labkit.heterogeneous import edge
from labkit.timeline import COMM, step_us


@pytest.mark.parametrize(
    "num_values, form, num_bytes",
    [(10, "float32", 40), (10, "float16", 20), (10, "int8", 18), (11, "int4", 14), (0, "int4", 8)],
)
def test_bytes_of_a_message(num_values, form, num_bytes):
    assert heterogeneous.packed_bytes(num_values, form) == num_bytes


@pytest.mark.parametrize("after", range(7))
def test_one_request_takes_the_sum_of_its_parts(after):
    cut = heterogeneous.Cut(after=after)
    assert step_us(cut.predict()) == pytest.approx(cut.times().latency_us)
    two = cut.but(requests=2)
    assert step_us(two.predict()) == pytest.approx(2 * cut.times().latency_us)
    sent = two.predict().select(two.predict().kind == "send")
    assert sent.num_bytes[sent.rank == 0].sum() == 2 * cut.message_bytes()


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("form", edge.FORMS)
def test_a_long_stream_goes_as_fast_as_its_slowest_part(after, form):
    cut = heterogeneous.Cut(after=after, form=form, stream=True)
    longer, shorter = (step_us(cut.but(requests=num).predict()) for num in (32, 16))
    assert (longer - shorter) / 16 == pytest.approx(max(cut.times()))


def test_a_link_carries_one_message_at_a_time():
    found = heterogeneous.Cut(after=1, requests=5, stream=True).predict()
    up = found.select((found.lane == COMM) & (found.label == "0>1") & (found.rank == 0))
    assert (up.start_us[1:] >= up.end_us[:-1]).all()


def best(cut):
    """Layers on the edge with which the last answer is there first."""
    found = heterogeneous.every_cut(cut)
    return min(found, key=found.__getitem__)


def test_where_to_cut_depends_on_the_link_and_on_the_form():
    cut = heterogeneous.Cut()
    assert best(cut) == 2
    assert best(cut.but(form="int8")) == 0
    fast = Link(alpha_us=10.0, bandwidth_gb_per_s=1.0)
    assert best(cut.but(link=fast)) == 0
    slow = Link(alpha_us=5000.0, bandwidth_gb_per_s=1e-5)
    assert best(cut.but(link=slow)) == 6
    found = heterogeneous.every_cut(cut)
    assert min(found.values()) == found[2] and len(found) == 7


@pytest.mark.parametrize(
    "options, words",
    [
        ({"after": 7}, "after"),
        ({"form": "int3"}, "a form is one of"),
        ({"frames": 0}, "frames"),
        ({"requests": 33}, "requests"),
        ({"edge_gflops": 0}, "edge_gflops"),
    ],
)
def test_what_is_no_cut_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        heterogeneous.Cut(**options)


def test_titles():
    cut = heterogeneous.Cut(form="int8")
    assert cut.title("en") == "Cut after layer 2 of 6, int8"
    assert cut.but(after=6).title("en") == "All on the edge"
    assert "int8" in cut.but(after=0).title("zh")
