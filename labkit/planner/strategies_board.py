"""``strategies()``: data parallel, sharded, by layers, hybrid, tensor: who holds what and sends
what, computed for a large model; then the same strategy on real ranks with a small one. ``ways``
draws several of them beside each other."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import ClassVar

from labkit.pictures.painters import svg
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend, moved
from labkit.planner import strategies_run
from labkit.planner.models import DEVICES, MODELS, PARTS
from labkit.planner.picture import (
    BILL_WORDS,
    HELD,
    SEQUENCES,
    architectures,
    holders,
    layers_of,
    sequences_of,
    stacked,
)
from labkit.planner.strategies import STRATEGIES, Expected, Strategy, num_params
from labkit.units import check_whole, format_bytes, format_share
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial
from labkit.words import WORDS, sentence, speaking

__all__ = ["architectures", "strategies"]

_WORDS = (
    *BILL_WORDS,
    ("strategy", "strategy"),
    ("ranks", "ranks"),
    ("batch", "sequences per step"),
    ("data", "data parallel"),
    ("sharded", "states sharded"),
    ("layers", "model parallel"),
    ("hybrid", "hybrid, 2 stages"),
    ("tensor", "tensor parallel"),
    ("all_layers", "layers"),
    ("share", "sequences"),
    ("holds", "a rank holds"),
    ("sends", "sends per step"),
    ("idle", "idle"),
    ("heading", "{}, {} ranks, {}"),
    ("each", "The busiest rank of each"),
    (
        "how",
        "{}. The same {} sequences in every row. Sent: collectives at their lower "
        "bound, and messages of activations. Idle: (p-1)/(m+p-1), for p equal stages and m "
        "microbatches of one sequence, GPipe. Tensor parallel: 4 all-reduces of the activations "
        "per layer; every rank waits for each.",
    ),
    ("small", "The small model, run here: {}"),
    ("predicted_rank", "rank {}, predicted"),
    ("measured_rank", "rank {}, measured"),
    (
        "handed",
        "Not the model above: {} parameters. Bytes of tensors that rank {} handed over in a step: "
        "{} (predicted: {}). On the wire, headers and gloo's ways included: {}.",
    ),
    ("uncounted", "not counted on this system"),
    ("fp32", "fp32, Adam"),
    ("mixed", "16 bit, fp32 copy, Adam"),
    ("ways", "Who holds what, and what travels between ranks"),
)


class StrategiesBoard(Trial):
    """The widget: a page per strategy; ``run()`` trains a small model by it on real ranks."""

    options: ClassVar = {
        "strategy": STRATEGIES,
        "model": tuple(MODELS),
        "device": tuple(DEVICES),
        "ranks": (4, 8),
        "batch": (16, 64, 256),
    }
    dropdowns = ("strategy", "model", "device")
    words = _WORDS

    def predicts_by(self, step: Strategy) -> Strategy:
        """The small model is predicted."""
        return step.as_run()

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return _drawn(self.step, self.language)

    def page(self, step: Strategy, at: None) -> str:
        """Who holds what, the strategies beside each other, and what was measured of the small
        model."""
        say = self._words
        every = [step.but(strategy=strategy) for strategy in STRATEGIES]
        bills = stacked(
            [(say[each.strategy], each.bill()) for each in every],
            say,
            title=say["each"],
            badge=say["computed"],
            mark=(step.device, DEVICES[step.device]),
            code=self.language,
        )
        page = "".join(
            (
                svg.html(_drawn(step, self.language)),
                svg.html(bills),
                _table(every, step.strategy, say),
                paragraphs(say["how"].format(say[step.recipe], step.batch)),
            )
        )
        results = self.found(step)
        if results is None:
            return page
        expected = self.prediction(step)
        compared = _compared(step.strategy, expected, results, say, self.language)
        return (
            page + svg.html(compared) + paragraphs(_handed(expected, results, say, self.language))
        )


def board(step: Strategy, language: str | None = None) -> StrategiesBoard:
    """The widget of a strategy."""
    return StrategiesBoard(step, language)


def strategies(
    language: str | None = None,
    *,
    strategy: str = "data",
    model: str = "LLaMA 7B",
    device: str = "A100 80 GB",
    num_ranks: int = 4,
    batch: int = 16,
) -> StrategiesBoard:
    """Data, sharded, model, hybrid and tensor parallelism: memory, bytes sent and idle time; in
    English or "zh"."""
    step = Strategy(strategy=strategy, model=model, device=device, ranks=num_ranks, batch=batch)
    return StrategiesBoard(step, language)


def _drawn(step: Strategy, language: str) -> Sketch:
    """Who holds what, in a language and in English."""

    def build(words: dict[str, str]) -> Sketch:
        return holders(step, spoken(_WORDS, words["code"]), words["code"])

    return speaking(language, build)


def _table(every: Sequence[Strategy], chosen: str, say: dict[str, str]) -> str:
    """The strategies in numbers, a row each; a mark stands before the chosen one."""
    head = [_cell("th", say[key]) for key in ("holds", "sends", "idle")]
    rows = [[_cell("td", ""), _cell("td", ""), *head]]
    for each in every:
        figures = (
            "▸" if each.strategy == chosen else "",
            say[each.strategy],
            format_bytes(sum(each.bill().values())),
            format_bytes(each.sent_bytes()),
            format_share(each.idle),
        )
        rows.append([_cell("td", words) for words in figures])
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table style='color:inherit'>{lines}</table>"


def _cell(tag: str, words: str) -> str:
    return f"<{tag} style='text-align:left;padding-right:1.2em'>{escape(words)}</{tag}>"


def _compared(
    strategy: str,
    expected: Sequence[Expected],
    results: Sequence[dict],
    say: dict[str, str],
    language: str,
) -> Sketch:
    """The small model's bill on each rank, the measured one under the predicted one."""
    rows = []
    off = 0.0
    for rank, (bill, _) in enumerate(expected):
        held = strategies_run.held(results, rank)
        rows.append((say["predicted_rank"].format(rank), bill))
        rows.append((say["measured_rank"].format(rank), held))
        off = max(off, *(abs(bill[part] - held[part]) for part in PARTS))
    return stacked(
        rows,
        say,
        title=say["small"].format(say[strategy]),
        badge=say["both"],
        numbers=((say["apart"], format_bytes(off)),),
        code=language,
    )


def _handed(
    expected: Sequence[Expected], results: Sequence[dict], say: dict[str, str], language: str
) -> str:
    """What the busiest rank handed over, in words."""
    sent = [sum(strategies_run.payload(each).values()) for each in results]
    busiest = sent.index(max(sent))
    wire_bytes = results[busiest]["sent_bytes"]
    return say["handed"].format(
        f"{num_params():,}",
        busiest,
        _listed(strategies_run.payload(results[busiest]), language),
        _listed(expected[busiest].payload, language),
        say["uncounted"] if wire_bytes is None else f"{wire_bytes:,}",
    )


def _listed(payload: dict[str, float], language: str) -> str:
    return WORDS[language]["comma"].join(
        f"{name} {round(num):,}" for name, num in payload.items() if num
    )


# --- several strategies beside each other ---

ROW_PX = 24
LAYERS_PX, SEQUENCES_PX, TRAVEL_PX = 52.0, 238.0, 396.0
LINE_PX = 16
"""between lines"""
_TRAVELLING = {"activations": "#cf8fc2", "gradients": "#43b08a", "parameters": HELD}


def ways(steps: Mapping[str, Strategy], *, language: str | None = None) -> Sketch:
    """Strategies of at most 8 ranks by name, two beside each other: what each rank holds and takes,
    and as lines what travels between ranks. Raises ValueError for none, or for more ranks."""
    check_whole(1, 8, **{"number of ways": len(steps)})
    most = max(step.ranks for step in steps.values())
    check_whole(1, 8, ranks=most)

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        say = spoken(_WORDS, code)
        tall_px = 30 + ROW_PX * most
        shapes: list[Shape] = []
        table = [("", say["all_layers"], say["share"], *(say[kind] for kind in _TRAVELLING))]
        for number, (name, step) in enumerate(steps.items()):
            x = number % 2 * (WIDTH_PX / 2 + 8)
            y = 62 + number // 2 * tall_px
            shapes += [moved(shape, x, y) for shape in _way(name, step)]
            found = {kind for kind, _ in _travelling(step)}
            told = ["●" if kind in found else "" for kind in _TRAVELLING]
            held = f"1/{step.num_stages * step.num_slices}"
            table.append((name, held, f"1/{step.num_replicas}", *told))
        keys, end_px = legend(_keys(say), 0, 56 + -(-len(steps) // 2) * tall_px)
        return Sketch(
            shapes=(*shapes, *keys),
            height_px=end_px,
            heading=say["ways"],
            badge=say["computed"],
            table=tuple(table),
            summary=sentence(say["ways"], [row[:3] for row in table[1:]], say["computed"], code),
            language=code,
        )

    return speaking(language, build)


def _travelling(step: Strategy) -> list[tuple[str, list[int]]]:
    """What travels, and between which ranks: from one to the next, or among all of them."""
    ranks = range(step.ranks)
    if step.strategy == "tensor":
        return [("activations", [*ranks])]
    stages = step.num_stages
    pairs = [[rank, rank + 1] for rank in ranks if rank + 1 in ranks and (rank + 1) % stages]
    found = [("activations", pair) for pair in pairs]
    if step.num_replicas > 1:
        found += [("gradients", [*ranks[stage::stages]]) for stage in range(stages)]
    if step.zero_stage == 3:
        found.append(("parameters", [*ranks]))
    return found


def _way(name: str, step: Strategy) -> list[Shape]:
    """One strategy: its name, a row for each rank, and the lines between them."""
    shapes: list[Shape] = [Words(0, 0, name, bold=True)]
    for rank in range(step.ranks):
        y = 8.0 + ROW_PX * rank
        replica = rank // step.num_stages % step.num_replicas
        shapes.append(Words(LAYERS_PX - 8, y + 15, f"rank {rank}", "end"))
        shapes += layers_of(step, rank, LAYERS_PX, y, SEQUENCES_PX - LAYERS_PX - 8)
        shapes += sequences_of(step, replica, SEQUENCES_PX, y, TRAVEL_PX - SEQUENCES_PX - 12)
    x = TRAVEL_PX
    before = None
    for kind, ranks in _travelling(step):
        one_by_one = kind == "activations" and before == kind
        x += LINE_PX * (before is not None and not one_by_one)
        shapes += _between(kind, ranks, x, arrow=kind == "activations" and len(ranks) == 2)
        before = kind
    return shapes


def _between(kind: str, ranks: Sequence[int], x: float, *, arrow: bool) -> list[Shape]:
    """A line from the first to the last of some ranks, with a dot at each; or an arrow to
    the next, and one back, for its gradients."""
    colour = _TRAVELLING[kind]
    at = [(x, 18.0 + ROW_PX * rank) for rank in ranks]
    if arrow:
        down = ((x - 3, at[0][1] + 2), (x - 3, at[1][1] - 2))
        up = ((x + 4, at[1][1] - 2), (x + 4, at[0][1] + 2))
        return [
            Line(down, colour, width_px=2.4, arrow=True),
            Line(up, colour, width_px=2.4, arrow=True),
        ]
    return [Line((at[0], at[-1]), colour, width_px=3), Line(at, colour, width_px=2, mark="o")]


def _keys(say: Mapping[str, str]) -> list[tuple[list[Shape], str]]:
    """The legend: boxes are held or taken, lines travel."""
    held = (("all_layers", HELD), ("share", SEQUENCES))
    keys: list[tuple[list[Shape], str]] = [
        ([Box(0, -7, 22, 14, colour)], say[name]) for name, colour in held
    ]
    for kind in _TRAVELLING:
        keys.append(([Line(((0, 0), (22, 0)), _TRAVELLING[kind], width_px=3)], say[kind]))
    return keys
