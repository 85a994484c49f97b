"""The picture of a server at a few settings, with its reading: ``benchmarks/truth.py``."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from browser.exhibits import Case
from browser.painted import Painted
from browser.readings import Pairs

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Sketch, Words
from labkit.serving import Load, picture
from labkit.serving.served import Served

LEFT_PX, RIGHT_PX = 66.0, 10.0
"""of the axis of time"""


def slots(painted: Painted, drawn: Sketch, panels: Sequence[Served]) -> Pairs:
    """Slots: the share of the axis that each one's prefills and decodes take, read above the
    numbers that stand in them."""
    looks = {part: [picture.LOOKS[part][0]] for part in ("prefill", "decode")}
    rows = [words for words in drawn.only(Words) if words.text.startswith("slot ")]
    ends_us = []
    for panel in panels:
        ends_us += [each.left_us for each in panel.visits]
    end_us = max(ends_us)
    at = iter(rows)
    for panel in panels:
        for slot in range(panel.slots):
            y = next(at).y_px - 4  # the middle
            found = painted.shares(looks, LEFT_PX, WIDTH_PX - RIGHT_PX, y - 8, y - 6)
            mine = [each for each in panel.visits if each.slot == slot]
            prefill_us = sum(each.first_us - each.admitted_us for each in mine)
            decode_us = sum(each.last_us - each.first_us for each in mine)
            yield found["prefill"], prefill_us / end_us
            yield found["decode"], decode_us / end_us


def _servers() -> Iterator[Case]:
    for load in (Load(), Load(policy="static"), Load(slots=8, rate=20.0, prompt=24)):
        panels = [load.predict()]
        drawn = picture.slots(*panels, language="en")
        yield Case(drawn, partial(slots, drawn=drawn, panels=panels))
    both = [Load(policy=policy).predict() for policy in ("static", "continuous")]
    drawn = picture.slots(*both, language="en")
    yield Case(drawn, partial(slots, drawn=drawn, panels=both))


QUEUES: dict[str, Callable[[], Iterator[Case]]] = {"serving.slots": _servers}
"""Cases by the function that makes the picture."""
