"""``strategies()``: data parallel, sharded, by layers, hybrid: who holds what and sends what,
computed for a large model; then the same strategy on real ranks with a small one."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from labkit.launching.job import Job
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.planner import strategies_run
from labkit.planner.models import DEVICES, MODELS, PARTS
from labkit.planner.picture import BILL_WORDS, architectures, holders, stacked
from labkit.planner.strategies import STRATEGIES, Expected, Setting, num_params, predicted
from labkit.units import format_bytes, format_share
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors
from labkit.words import WORDS, speaking, spoken_in

__all__ = ["architectures", "strategies"]

MAX_REAL_RANKS = 4
MAX_REAL_BATCH = 16
_OPTIONS = {
    "strategy": STRATEGIES,
    "model": tuple(MODELS),
    "device": tuple(DEVICES),
    "ranks": (4, 8),
    "batch": (16, 64, 256),
}
_WORDS = (
    *BILL_WORDS,
    ("strategy", "strategy"),
    ("ranks", "ranks"),
    ("batch", "sequences per step"),
    ("data", "data parallel"),
    ("sharded", "states sharded"),
    ("layers", "model parallel"),
    ("hybrid", "hybrid, 2 stages"),
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
        "microbatches of one sequence, GPipe.",
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
    ("many", "real runs take up to {} ranks"),
    ("long", "real runs take up to {} sequences"),
)


class StrategiesBoard(Trial):
    """The widget: a page per strategy; ``run()`` trains a small model by it on real ranks."""

    options = _OPTIONS
    setting_type = Setting

    def __init__(self, language: str | None = None, **first: object) -> None:
        language = spoken_in(language)
        words = spoken(_WORDS, language)
        shown = {"strategy": words.get}
        dropdowns = ("model", "device")
        super().__init__(language, _WORDS, selectors(_OPTIONS, first, words, shown, dropdowns))

    def predict(self, setting: Setting) -> list[Expected]:
        """What each rank should hold and hand over of the small model."""
        return predicted(setting.strategy, setting.num_ranks, setting.batch)

    def predicts_by(self, setting: Setting) -> tuple:
        """What a run depends on."""
        return self.key(setting)

    def key(self, setting: Setting) -> tuple:
        """A run depends on these: the model is the small one."""
        return setting.strategy, setting.num_ranks, setting.batch

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return _drawn(self.setting, self.language)

    def page(self, setting: Setting) -> str:
        """Who holds what, the four strategies beside each other, and what was measured of the small
        model."""
        say = self._words
        every = [_like(setting, strategy) for strategy in STRATEGIES]
        bills = stacked(
            [(say[each.strategy], each.bill()) for each in every],
            say,
            title=say["each"],
            badge=say["computed"],
            mark=(setting.device, DEVICES[setting.device]),
            code=self.language,
        )
        page = "".join(
            (
                svg.html(_drawn(setting, self.language)),
                svg.html(bills),
                _table(every, setting.strategy, say),
                paragraphs(say["how"].format(setting.batch)),
            )
        )
        results = self.runs.get(self.key(setting))
        if results is None:
            return page
        expected = self.prediction(setting)
        compared = _compared(setting.strategy, expected, results, say, self.language)
        return (
            page + svg.html(compared) + paragraphs(_handed(expected, results, say, self.language))
        )

    def reason(self, setting: Setting) -> str | None:
        """Two cores bear so much."""
        if setting.num_ranks > MAX_REAL_RANKS:
            return self._words["many"].format(MAX_REAL_RANKS)
        if setting.batch > MAX_REAL_BATCH:
            return self._words["long"].format(MAX_REAL_BATCH)
        return None

    def begin(self, setting: Setting) -> Job:
        """The strategy on real ranks."""
        return strategies_run.start(setting.strategy, setting.num_ranks, setting.batch)


def strategies(
    language: str | None = None,
    *,
    strategy: str = "data",
    model: str = "LLaMA 7B",
    device: str = "A100 80 GB",
    num_ranks: int = 4,
    batch: int = 16,
) -> StrategiesBoard:
    """Data, sharded, model and hybrid parallelism: memory, bytes sent and idle time; in English or
    "zh"."""
    return StrategiesBoard(
        language, strategy=strategy, model=model, device=device, ranks=num_ranks, batch=batch
    )


def _like(setting: Setting, strategy: str) -> Setting:
    """The same with another strategy."""
    return replace(setting, strategy=strategy)


def _drawn(setting: Setting, language: str) -> Sketch:
    """Who holds what, in a language and in English."""

    def build(words: dict[str, str]) -> Sketch:
        return holders(setting, spoken(_WORDS, words["code"]), words["code"])

    return speaking(language, build)


def _table(every: Sequence[Setting], chosen: str, say: dict[str, str]) -> str:
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
