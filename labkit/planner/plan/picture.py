"""Drawings of plans: what a GPU holds against what it has, where a step's time goes, one plan
beside another, and where the ranks lie."""

from collections.abc import Callable, Mapping, Sequence

from labkit.mesh import Mesh
from labkit.pictures.bar_groups import BAR_PX, Bar, dashed, has, pieces, told
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Said, Shape, Sketch, Words, legend, said, short
from labkit.pictures.slices import LOOKS
from labkit.pictures.style import IDLE, KINDS, clipped, text_px
from labkit.planner.plan import memory, steptime
from labkit.planner.plan.plan import Plan
from labkit.units import check_real, format_bytes, format_share, format_us
from labkit.words import both, catalogue, sentence, speaking

WORDS = catalogue(
    [
        ("parameters", "parameters"),
        ("gradients", "gradients"),
        ("optimizer", "optimizer"),
        ("gathered", "gathered for a while"),
        ("activations", "activations"),
        ("logits", "logits"),
        ("temporary", "other temporary tensors"),
        ("fixed", "context, buffers, gaps"),
        ("products", "matrix products"),
        ("attention", "attention"),
        ("memory", "memory traffic"),
        ("overhead", "launches, short kernels"),
        ("tensor", "tensor parallel"),
        ("context", "context parallel"),
        ("expert", "expert parallel"),
        ("gather", "messages of ZeRO 2, 3"),
        ("pipeline", "between stages"),
        ("bubble", "bubble"),
        ("data", "data parallel"),
        ("rest", "all else, not told apart"),
        ("badge", "predicted by the constants of {}"),
        ("tf32", "{}; products in TF32"),
        ("part", "part"),
        ("card", "GPU"),
        ("stage", "stage {}"),
        ("stages", "stages of"),
        ("all", "all rows"),
        ("of", "{} of {}"),
        ("free", "{} left"),
        ("over", "{} too much"),
        ("spare", "up to here {:.0%} stay free"),
        ("found", "{}: computed from what a run keeps; the rest: {}"),
        ("rate", "{:,.0f} tokens/s"),
        ("step", "step"),
        ("mfu", "MFU"),
        ("memory title", "What the fullest GPU holds"),
        ("time title", "Where the time of a step goes"),
    ]
)
MEMORY_LOOKS = {
    **{part: LOOKS[part] for part in memory.PARTS if part in LOOKS},
    "gathered": (LOOKS["gathered"][0], ""),  # hatched, it is too dark for a number in it
    "logits": ("#ec9aac", "/"),
    "fixed": LOOKS["buffers"],
}
"""Colour and hatch of each part of a GPU's memory."""
TIME_LOOKS = {
    "products": ("#4f9fe3", ""),
    "attention": ("#95b552", "\\"),
    "memory": ("#6fb7b7", "."),
    "overhead": ("#a3a8b0", "-"),
    "tensor": ("#e0788f", ""),
    "context": ("#cf8fc2", ""),
    "expert": ("#9a8fdc", ""),
    "gather": ("#bfa45f", "|"),
    "pipeline": ("#f6cf65", ""),
    "bubble": ("#d4d7dc", KINDS[IDLE].hatch),  # without a colour it would have no hatch
    "data": ("#f2954b", "+"),
    "optimizer": (KINDS["optimizer"].colour, KINDS["optimizer"].hatch),
}
"""Colour and hatch of each part of a step."""
THIN_PX = 13.0
"""a stage's bar"""
MOST_STAGES = 16
"""of more, some are drawn: the first, the last, the fullest, and others between them"""
_RIGHT_PX = 132.0
_TOP_PX = 62.0
_SEEN_PX = 2.0  # a part that is thinner in every bar is not in the legend
Plans = Sequence[tuple[Said, Plan]] | Mapping[str, Plan]
"""plans, each under its name"""


def badge(plans: Plans, code: str) -> str:
    """That numbers are predicted, and by whose constants."""
    names = dict.fromkeys(plan.used.called(code) for _, plan in plans)
    return WORDS[code]["badge"].format(", ".join(names))


def _time_badge(plans: Plans, code: str) -> str:
    """The same, and whether a GPU multiplies fp32 as TF32."""
    is_tf32 = any(plan.precision == "fp32" and plan.cluster.gpu.sms for _, plan in plans)
    return (WORDS[code]["tf32"] if is_tf32 else "{}").format(badge(plans, code))


# --- memory ---


def mesh(plan: Plan) -> Mesh:
    """Where the ranks of a plan lie: ``mesh(plan).groups("tp")`` draws it. Data parallelism is
    dp_shard where ZeRO shards something, else dp_replicate."""
    dp = {"dp_shard" if plan.zero else "dp_replicate": plan.layout.dp}
    return Mesh(pp=plan.pp, cp=plan.cp, tp=plan.tp, node_size=plan.cluster.node_size, **dp)


def memory_bars(
    plans: Plans,
    *,
    spare: float = 0.0,
    found: Mapping[str, float] | None = None,
    language: str | None = None,
) -> Sketch:
    """What the fullest GPU of each plan holds, by part, against what it has; then every stage of
    the first plan, where it has several. A dashed line stands where ``spare`` of a GPU is left, a
    share. ``found``: the bytes of parts that a run showed to be others than planned, on every GPU.
    Beside the heading stands what the only plan is, or what all have in common. Raises ValueError
    for a plan whose layout can't be, a share that is none, and a part that is none."""
    plans = _pairs(plans)
    check_real(0, 0.99, spare=spare)
    found = _found(found or {})

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        heading = WORDS[code]["memory title"]
        bars = [held(said(name, code), plan, code, found) for name, plan in plans]
        badge = words["predicted"].lower()
        if found:
            parts = words["comma"].join(WORDS[code][part] for part in found)
            badge = WORDS[code]["found"].format(parts, badge)
        names = [_unsaid(bars, at) for at in range(len(bars))]
        bars = [bar._replace(limit_name=name) for bar, name in zip(bars, names, strict=True)]
        bars = [bar._replace(spare=spare * bar.limit) for bar in bars]
        bars += _stages(plans[0][1], code)
        shapes, end_px = drawn(bars, MEMORY_LOOKS, code, format_bytes)
        return Sketch(
            shapes=tuple(shapes),
            height_px=end_px,
            heading=heading,
            badge=badge,
            numbers=_memory_numbers(plans, bars[0].label, code),
            summary=in_words(heading, bars[: len(plans)], badge, code),
            table=in_rows(bars, memory.PARTS, code, format_bytes),
            language=code,
        )

    return speaking(language, build)


def _found(found: Mapping[str, float]) -> Mapping[str, float]:
    """Parts of a GPU's memory and their bytes; raises ValueError for others."""
    if not isinstance(found, Mapping) or not set(found) <= set(memory.PARTS):
        raise ValueError(f"found are bytes of some of {', '.join(memory.PARTS)}; got {found!r:.80}")
    check_real(0, 1e18, **found)
    return found


def _memory_numbers(plans: Plans, first: str, code: str) -> tuple[tuple[str, str], ...]:
    """What the only plan is; of several what all have in common, and whose stages are drawn."""
    plan = plans[0][1]
    if len(plans) == 1:
        return ((first, plan.title(code)),)
    return _in_all(plans, code) + (((WORDS[code]["stages"], first),) if plan.pp > 1 else ())


def _in_all(plans: Plans, code: str) -> tuple[tuple[str, str], ...]:
    """Model and machines of all plans, and their batch, as far as they are the same."""
    machines = {plan.titles(code)[0] for _, plan in plans}
    batches = {both("batch {count}", count=plan.layout.gbs)[code] for _, plan in plans}
    same = [some.pop() for some in (machines, batches) if len(some) == 1]
    return ((WORDS[code]["all"], ", ".join(same)),) if same else ()


def held(label: str, plan: Plan, code: str, found: Mapping[str, float] | None = None) -> Bar:
    """The fullest GPU of a plan, some parts as they were found."""
    parts = plan.memory().parts | dict(found or {})
    peak = sum(parts.values())
    has = plan.cluster.device_bytes
    say = WORDS[code]
    apart = say["free" if peak <= has else "over"].format(format_bytes(abs(has - peak)))
    told = say["of"].format(format_bytes(peak), short(format_bytes(has)))
    return Bar(label, parts, (told, apart), has, plan.cluster.gpu.name)


def _unsaid(bars: Sequence[Bar], at: int) -> str:
    """The name of a bar's limit, unless the bar above has the same."""
    same = at > 0 and bars[at - 1][3:5] == bars[at][3:5]
    return "" if same else bars[at].limit_name


def _stages(plan: Plan, code: str) -> list[Bar]:
    """The stages of a pipeline, or some of them."""
    found = plan.memory()
    count = len(found.stages)
    if count == 1:
        return []
    shown = {0, count - 1, found.fullest}
    shown |= {round(at * (count - 1) / (MOST_STAGES - 1)) for at in range(MOST_STAGES)}
    bars = []
    for rank in sorted(shown if count > MOST_STAGES else range(count)):
        label = WORDS[code]["stage"].format(rank)
        told = (format_bytes(found.stage_bytes[rank]),)
        limit = plan.cluster.device_bytes
        bars.append(Bar(label, found.stages[rank], told, limit, thick_px=THIN_PX))
    return bars


# --- time ---


def time_bars(plans: Plans, *, language: str | None = None) -> Sketch:
    """Where the time of each plan's step goes on its slowest stage, by part; beside the heading the
    step and MFU of the only plan, or what all have in common. Raises ValueError for a plan whose
    layout can't be."""
    plans = _pairs(plans)

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        bars = [spent(said(name, code), plan, code) for name, plan in plans]
        shapes, end_px = drawn(bars, TIME_LOOKS, code, format_us)
        heading = WORDS[code]["time title"]
        return Sketch(
            shapes=tuple(shapes),
            height_px=end_px,
            heading=heading,
            badge=_time_badge(plans, code),
            numbers=_first_numbers(plans[0][1], code) if len(plans) == 1 else _in_all(plans, code),
            summary=in_words(heading, bars, _time_badge(plans, code), code),
            table=in_rows(bars, steptime.PARTS, code, format_us),
            language=code,
        )

    return speaking(language, build)


def _first_numbers(plan: Plan, code: str) -> tuple[tuple[str, str], ...]:
    say = WORDS[code]
    step_us = plan.time().step_us
    return ((say["step"], format_us(step_us)), (say["mfu"], format_share(plan.mfu())))


def _pairs(plans: Plans) -> list[tuple[Said, Plan]]:
    """Names and plans; raises ValueError for none, or for what is no plan."""
    pairs = list(plans.items() if isinstance(plans, Mapping) else plans)
    if not pairs or not all(isinstance(plan, Plan) for _, plan in pairs):
        raise ValueError(
            f"bars are of plans, each under a name: {{'now': plan}}; got {plans!r:.80}"
        )
    return pairs


def spent(label: str, plan: Plan, code: str) -> Bar:
    """A plan's step by parts, with its time and its tokens a second beside it."""
    time = plan.time()
    told = (format_us(time.step_us), WORDS[code]["rate"].format(plan.tokens_per_s()))
    return Bar(label, time.parts(), told)


# --- bars ---


def drawn(
    bars: Sequence[Bar],
    looks: Mapping[str, tuple[str, str]],
    code: str,
    form: Callable[[float], str],
) -> tuple[list[Shape], float]:
    """Bars at one scale, one under another, and a legend of what is wide enough to be seen; and
    where all ends."""
    left = 16 + min(230.0, max(1.1 * text_px(bar.label) for bar in bars))
    most = max(max(sum(bar.parts.values()), bar.limit) for bar in bars)
    scale = (WIDTH_PX - left - _RIGHT_PX) / most
    shapes: list[Shape] = []
    y = _TOP_PX
    last_px = THIN_PX
    for bar in bars:
        y += (14 if bar.limit_name else 0) + (8 if bar.thick_px < last_px else 0)
        last_px = bar.thick_px
        shapes.append(Words(left - 8, y + bar.thick_px / 2 + 4, clipped(bar.label, 230), "end"))
        shapes += pieces(bar, looks, form, left, y, scale)
        shapes += told(bar, y)
        if bar.limit_name:
            at = left + bar.limit * scale
            shapes.append(Words(at, y - 9, bar.limit_name, "middle", 11))
        y += bar.thick_px + (12 if bar.thick_px == BAR_PX else 5)
    samples = []
    for part, look in looks.items():
        if any(bar.parts.get(part, 0.0) * scale >= _SEEN_PX for bar in bars):
            samples.append(((Box(0, -7, 22, 14, *look),), WORDS[code][part]))
    for share in {round(bar.spare / bar.limit, 2) for bar in bars if bar.spare}:
        samples.append(((dashed(11, -8, 8),), WORDS[code]["spare"].format(share)))
    keys, end_px = legend(samples, left, y + 4)
    return shapes + keys, end_px


def in_words(heading: str, bars: Sequence[Bar], told_by: str, code: str) -> str:
    """A sentence with the numbers beside each bar."""
    told = [(" ".join((bar.label, *bar.told)),) for bar in bars]
    return sentence(heading, told, told_by, code)


def in_rows(
    bars: Sequence[Bar], parts: Sequence[str], code: str, form: Callable[[float], str]
) -> tuple[tuple[str, ...], ...]:
    """A row for each bar: its parts (empty where it has no such), their sum and the limit."""
    say = WORDS[code]
    found = [part for part in parts if has(bars, part)]
    limits = [form(bar.limit) if bar.limit else "" for bar in bars]
    rows = [(say["part"], *(say[part] for part in found), "Σ", say["card"] if any(limits) else "")]
    for bar, limit in zip(bars, limits, strict=True):
        amounts = [form(bar.parts[part]) if part in bar.parts else "" for part in found]
        rows.append((bar.label, *amounts, form(sum(bar.parts.values())), limit))
    return tuple(rows)
