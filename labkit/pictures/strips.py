"""A timeline's spans as strips of boxes: compute, and in thin strips under it communication, higher
ones where there is one rank; where nobody computes, strips of communication alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.pictures.drawing import Row
from labkit.pictures.figures import Figures
from labkit.pictures.style import IDLE, style
from labkit.timeline import COMM, COMPUTE, Timeline

MOST_TRACKS = 3
"""strips for communication that overlaps"""
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_SAME_US = 1e-6
_ROUNDED_US = 0.0015
"""measured times are whole nanoseconds: by so much two spans may seem to overlap"""
_NAMED_PX = 12
"""rows closer than this are not all named"""
_THIN = 0.3
"""a strip of communication, as a share of compute's height"""
_ALONE = 0.6
"""the same where there is one rank: room for the names of messages"""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A row, and what stands on it."""

    row: Row
    """where it lies"""
    spans: list[int]
    """indices into the timeline's spans"""
    figures: Figures
    """whose spans they are"""


class BoxRow(NamedTuple):
    """One box, as the columns of a Scene have it."""

    row: int
    """index of the strip"""
    kind: str
    """what is done"""
    chunk: int
    """which of the rank's stages"""
    texts: tuple[str, str, str]
    """what may stand in it, the longest first"""
    x0_us: float
    """left edge"""
    x1_us: float
    """right edge"""
    num_bytes: int
    """payload of a message"""


def strips(
    figures: Figures,
    side: list[tuple[float, str]],
    top_px: float,
    height_px: float,
    ranks: Iterable[int] | None = None,
) -> tuple[list[Strip], float]:
    """The strips of a timeline from ``top_px`` on, and where the next panel may begin.

    ``side`` holds the bar of each rank as (length, text); ``ranks``: only these.
    """
    tl = figures.timeline
    computes = COMPUTE in tl.lane or not len(tl)
    every = int(np.ceil(_NAMED_PX / height_px))
    below_px = (_ALONE if tl.num_ranks == 1 else _THIN) * height_px
    found = []
    y_px = top_px
    for rank in range(tl.num_ranks) if ranks is None else ranks:
        of_rank = _communicating(tl, rank)
        if computes:
            of_rank = [_computing(tl, rank), *of_rank]
        elif not of_rank:
            of_rank = [[]]
        for index, spans in enumerate(of_rank):
            first = index == 0
            named = first and rank % every == 0
            length, text = side[rank]
            row = Row(
                name=f"rank {rank}" if named else "",
                rank=rank,
                lane=COMPUTE if computes and first else COMM,
                top_px=y_px,
                height_px=_strip_px(height_px, below_px, computes, first, len(of_rank)),
                side=length if first else 0.0,
                side_text=text if named else "",
            )
            found.append(Strip(row=row, spans=spans, figures=figures))
            y_px += row.height_px + min(1.0, 0.05 * height_px)
        y_px += 0.12 * height_px
    return found, y_px


def _strip_px(
    height_px: float, below_px: float, computes: bool, first: bool, num_strips: int
) -> float:
    """Compute is as high as asked, communication ``below_px``; alone, it shares the room."""
    if not computes:
        return 2 * height_px / (1 + num_strips)
    return height_px if first else max(2.0, below_px)


def _computing(tl: Timeline, rank: int) -> list[int]:
    return np.flatnonzero((tl.rank == rank) & (tl.lane == COMPUTE)).tolist()


def _communicating(tl: Timeline, rank: int) -> list[list[int]]:
    """A rank's communication on as many strips as it takes for none to cover another; sends and
    receives that overlap have a strip each, and reading that overlaps messages has its own."""
    spans = np.flatnonzero((tl.rank == rank) & (tl.lane != COMPUTE))
    spans = spans[np.argsort(tl.start_us[spans], kind="stable")]
    if _are_apart(tl, spans):
        return [spans.tolist()] if len(spans) else []
    reads = tl.kind[spans] == "input"
    if reads.any() and not reads.all():
        return [*_tracks(tl, spans[reads].tolist()), *_tracks(tl, spans[~reads].tolist())]
    sends = spans[tl.kind[spans] == "send"]
    receives = spans[tl.kind[spans] == "recv"]
    pairs_only = len(sends) + len(receives) == len(spans)
    if pairs_only and _are_apart(tl, sends) and _are_apart(tl, receives):
        return [mine.tolist() for mine in (sends, receives) if len(mine)]
    return _tracks(tl, spans.tolist())


def _are_apart(tl: Timeline, spans: np.ndarray) -> bool:
    """Whether each of the spans begins when the one before has ended."""
    gaps_us = tl.start_us[spans[1:]] - tl.end_us[spans[:-1]]
    return bool(gaps_us.min(initial=0) >= -_ROUNDED_US)


def _tracks(tl: Timeline, spans: list[int]) -> list[list[int]]:
    """Each span on the first track that is free again; the last of ``MOST_TRACKS`` takes what finds
    none."""
    tracks: list[list[int]] = []
    for span in spans:
        begins_us = tl.start_us[span] + _ROUNDED_US
        free = [track for track in tracks if tl.end_us[track[-1]] <= begins_us]
        if free:
            free[0].append(span)
        elif len(tracks) < MOST_TRACKS:
            tracks.append([span])
        else:
            tracks[-1].append(span)
    return tracks


def boxes(strip: Strip, index: int) -> list[BoxRow]:
    """One box per span of a strip, and one per idle gap where ranks compute. ``index``: which strip
    of the picture it is."""
    tl = strip.figures.timeline
    spans = np.array(strip.spans, dtype=np.int64)
    spans = spans[np.argsort(tl.start_us[spans], kind="stable")]
    starts_us = tl.start_us[spans].tolist()
    ends_us = tl.end_us[spans].tolist()
    kinds = tl.kind[spans].tolist()
    labels = tl.label[spans].tolist()
    computes = strip.row.lane == COMPUTE
    actions = [_ACTION.fullmatch(label) if computes else None for label in labels]
    stages = sorted({int(action[1]) for action in actions if action})
    found = []
    for at, num_bytes in enumerate(tl.num_bytes[spans].tolist()):
        action = actions[at]
        chunk = stages.index(int(action[1])) if action else 0
        texts = _texts(labels[at], kinds[at], action, len(stages))
        found.append(BoxRow(index, kinds[at], chunk, texts, starts_us[at], ends_us[at], num_bytes))
    if computes:
        found += _idle(index, starts_us, ends_us, strip.figures.span_us)
    return found


def _texts(label: str, kind: str, action: re.Match | None, num_stages: int) -> tuple[str, str, str]:
    """What may stand in a box; a pipeline's action names its stage where the rank has several."""
    if action is None:
        return label, style(kind).letter, ""
    _, letter, microbatch = action.groups()
    if num_stages > 1:
        return label, letter + microbatch, microbatch
    return letter + microbatch, microbatch, ""


def _idle(index: int, starts_us: list[float], ends_us: list[float], span_us: float) -> list[BoxRow]:
    """The gaps between spans, and those before the first and after the last."""
    gaps = []
    since_us = 0.0
    for start_us, end_us in zip(starts_us, ends_us, strict=True):
        if start_us > since_us + _SAME_US:
            gaps.append((since_us, start_us))
        since_us = max(since_us, end_us)
    if since_us < span_us - _SAME_US:
        gaps.append((since_us, span_us))
    return [BoxRow(index, IDLE, 0, ("", "", ""), *gap, 0) for gap in gaps]
