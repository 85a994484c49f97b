"""``strategies()``: data parallel, sharded, by layers, hybrid, tensor: who holds what and sends
what, computed for a large model; then the same strategy on real ranks with a small one."""

from collections.abc import Sequence
from html import escape
from typing import ClassVar

from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.planner import strategies_run
from labkit.planner.models import DEVICES, MODELS, PARTS
from labkit.planner.picture import BILL_WORDS, architectures, holders, stacked
from labkit.planner.strategies import STRATEGIES, Expected, Strategy, num_params
from labkit.units import format_bytes, format_share
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial
from labkit.words import WORDS, speaking

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
        "fp32 with Adam. The same {} sequences in every row. Sent: collectives at their lower "
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
                paragraphs(say["how"].format(step.batch)),
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
