"""All layouts that a search found: time against memory, the frontier drawn, the best named."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

from labkit.pictures.axes import Mark
from labkit.pictures.curves import Series, curves
from labkit.pictures.sketch import Sketch
from labkit.planner.plan.layout import written
from labkit.planner.plan.search import Candidate, Search, evaluate
from labkit.units import format_bytes, format_us
from labkit.words import catalogue, speaking

WORDS = catalogue(
    [
        ("copies", "copies"),
        ("shards", "shards (ZeRO 3)"),
        ("cut", "cut by tp or pp"),
        ("cut cp", "cut by tp, pp or cp"),
        ("too_large", "layouts, all too large"),
        ("frontier", "frontier"),
        ("first fitting", "fastest: {}"),
        ("first too_large", "nearest to fitting: {}"),
        ("title", "Layouts of {} on {} x {}"),
        ("fit", "fit"),
        ("large", "too large"),
        ("refused", "do not divide"),
        ("constants", "constants of"),
        ("x", "time of a step, logarithmic"),
        ("y", "memory of the fullest GPU"),
        ("error", "{:.0%} slower: the error"),
        ("nothing", "No layout divides"),
        ("layout", "on the frontier"),
        ("time", "time of a step"),
    ]
)
_KINDS = ("cut", "shards", "copies")
"""the most common first: later dots lie over earlier ones"""
_DOTS = 60
"""dots that can be told apart along the axis of memory, and along a factor of e in time"""


def layouts(search: Search, *, language: str | None = None) -> Sketch:
    """Every layout that fits: time of a step against memory, coloured by what it does with the
    model, the frontier as a line, the fastest named, and how far its error reaches. Where none
    fits: those that are too large, and the nearest to fitting. The table beside it lists the
    frontier: of hundreds of dots it would not say which is what."""
    shown = search.fitting or search.too_large
    if not shown:
        return _nothing(search, language)
    plan = search.plan
    found = "fitting" if search.fitting else "too_large"
    counts = (len(search.fitting), len(search.too_large), search.num_refused)

    def build(words: dict[str, str]) -> Sketch:
        say = WORDS[words["code"]]
        told = zip(("fit", "large", "refused"), counts, strict=True)
        drawn = curves(
            _series(search, shown, found, say),
            title=say["title"].format(plan.shape.name, plan.gpus, plan.cluster.gpu.name),
            badge="predicted",
            x_name=say["x"],
            y_name=say["y"],
            x_format=format_us,
            y_format=format_bytes,
            log_x=True,
            marks=_limits(search, shown, say),
            numbers=[
                *((say[key], f"{count:,}") for key, count in told),
                (say["constants"], ", ".join(sorted({each.stack for each in shown}))),
            ],
            language=words["code"],
        )
        rows = [
            (written(each.layout), format_us(each.step_us), format_bytes(each.peak_bytes))
            for each in search.frontier()
        ]
        heads = (say["layout"], say["time"], say["y"])
        return replace(drawn, table=(heads, *rows)) if rows else drawn

    return speaking(language, build)


def _series(
    search: Search, shown: Sequence[Candidate], found: str, say: Mapping[str, str]
) -> list[Series]:
    """All, the frontier, the plans that are marked, and the first of all."""
    others = shown[1:] or shown
    kinds: dict[str, list[Candidate]] = {kind: [] for kind in _KINDS}
    for each in others:
        kinds.setdefault(each.layout.kind if search.fitting else found, []).append(each)
    names = {**say, "cut": say["cut cp"]} if any(each.layout.cp > 1 for each in shown) else say
    series = [_of(names[kind], _thinned(some), points=True) for kind, some in kinds.items() if some]
    if frontier := search.frontier():
        series.append(_of(say["frontier"], frontier))
    for name, plan in search.marked.items():
        series.append(_of(name, [evaluate(plan, plan.layout)], points=True))
    named = say[f"first {found}"].format(written(shown[0].layout))
    return [*series, _of(named, shown[:1], points=True)]


def _limits(search: Search, shown: Sequence[Candidate], say: Mapping[str, str]) -> list[Mark]:
    """What a GPU has, across; upright the time up to which a layout is as fast as the fastest, by
    the error of its constants."""
    has = Mark(search.plan.cluster.gpu.name, shown[0].device_bytes)
    if not search.fitting:
        return [has]
    best = search.fitting[0]
    spread = search.plan.stack_for(best.layout.zero).spread
    error = Mark(say["error"].format(spread), (1 + spread) * best.step_us, True, low=True)
    return [has, error]


def _of(name: str, found: Sequence[Candidate], *, points: bool = False) -> Series:
    times = [each.step_us for each in found]
    return Series(name, times, [each.peak_bytes for each in found], points)


def _thinned(found: Sequence[Candidate]) -> list[Candidate]:
    """One layout for each dot that can be told from the others."""
    longest = max(each.step_us for each in found)
    most = max(each.peak_bytes for each in found)
    seen = {}
    for each in found:
        place = round(_DOTS * log(longest / each.step_us)), round(_DOTS * each.peak_bytes / most)
        seen.setdefault(place, each)
    return list(seen.values())


def _nothing(search: Search, language: str | None) -> Sketch:
    """Words alone: no layout divides."""

    def build(words: dict[str, str]) -> Sketch:
        say = WORDS[words["code"]]
        refused = (say["refused"], f"{search.num_refused:,}")
        return Sketch(
            shapes=(),
            height_px=50,
            heading=say["nothing"],
            badge=words["computed"],
            numbers=(refused,),
            table=(("", ""), refused),
            language=words["code"],
        )

    return speaking(language, build)
