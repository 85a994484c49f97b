"""An update of an Accelerate loop as a table of boxes: a row per line of code, a column per batch,
predicted and measured calls in each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from labkit.accelerate.update import LINES, Row, Update
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend, origin
from labkit.pictures.style import KINDS
from labkit.words import catalogue, speaking

CODE = {
    "forward": "loss = f(net(tokens))",
    "backward": "accelerator.backward(loss)",
    "clip": "clip_grad_norm_(...)",
    "step": "optimizer.step()",
    "zero_grad": "optimizer.zero_grad()",
}
"""each of LINES as the loop has it"""
NAMES = (
    ("one process", "one process"),
    ("ddp", "DDP"),
    ("fsdp", "FSDP2"),
    ("zero2", "DeepSpeed ZeRO-2"),
    ("no", "no (fp32)"),
    ("bf16", "bf16"),
    ("fp16", "fp16"),
)
"""what engines and precisions are called"""
_WORDS = (
    *NAMES,
    ("heading", "One update: {}, {}, {}"),
    ("many", "{} ranks"),
    ("one", "one process"),
    ("batch", "batch {}"),
    ("sync", "sync_gradients {}"),
    ("quiet", "no message"),
    ("skip", "does nothing"),
    ("out", "not called"),
    ("update", "weights change"),
    ("skipped", "skipped: a gradient is infinite"),
    ("scaled", "loss × scale"),
    ("scales", "loss × {:,.0f}"),
    ("unscales", "gradients ÷ {:,.0f}"),
    ("scale", "scale {:,.0f} → {:,.0f}"),
    ("clear", "gradients dropped"),
    ("reads", "reads the norm only"),
    ("done", "done in backward"),
    ("guess", "collectives predicted"),
    ("seen", "measured"),
    ("key", "n = n: predicted = measured"),
    ("thick", "thick edge: the line changed the weights"),
    ("thick ahead", "thick edge: the line changes the weights"),
    ("is forward", "forward"),
    ("is backward", "backward"),
    ("is update", "update of the weights"),
    ("is gradients", "other work on the gradients"),
    ("is nothing", "changes nothing"),
)
_COLOURS = {
    "forward": KINDS["F"].colour,
    "backward": KINDS["B"].colour,
    "clip": KINDS["wait"].colour,
    "step": KINDS["optimizer"].colour,
    "zero_grad": KINDS["wait"].colour,
}
_LEFT_PX = 196.0
_GAP_PX = 6
_ROW_PX = 34.0
_WORDS_PX = 22.0
"""of each of a cell's words, where a row has several"""


class Cell(NamedTuple):
    """A line in a batch."""

    words: list[str]
    """what it called, what it did"""
    does: bool
    """whether it does anything"""
    moved: bool
    """whether it changes the weights"""


def update(
    update: Update,
    rows: Sequence[Row],
    found: Sequence[Row] | None,
    language: str,
    notes: Sequence[str] = (),
) -> Sketch:
    """The predicted rows of an update, and beside them what was measured, once it was: ``notes``
    are the run's."""

    def build(base: dict[str, str]) -> Sketch:
        code = base["code"]
        say = catalogue(_WORDS)[code]
        ranks = say["one"] if update.num_ranks == 1 else say["many"].format(update.num_ranks)
        shapes = _heads(rows, say)
        table = [("", *(say["batch"].format(index + 1) for index in range(len(rows))))]
        y = 96.0
        for line in LINES:
            cells = _cells(update, line, rows, found, say)
            high = max(_ROW_PX, *(_WORDS_PX * len(cell.words) for cell in cells))
            shapes.append(Words(0, y + high / 2 + 2, CODE[line]))
            for index, cell in enumerate(cells):
                shapes += _drawn(cell, line, index, len(rows), (y, high), say["update"])
            table.append((CODE[line], *("; ".join(cell.words) for cell in cells)))
            y += high + _GAP_PX
        totals = [(say["guess"], str(_num_calls(rows)))]
        if found:
            totals.append((say["seen"], str(_num_calls(found))))
        thick = (Box(0, -7, 22, 14, marked=True),), say["thick" if found else "thick ahead"]
        keys = [*_colour_key(say), thick, *([((), say["key"])] if found else [])]
        legends, end_px = legend(keys, 0, y)
        shapes += legends
        return Sketch(
            shapes=tuple(shapes),
            height_px=end_px,
            heading=say["heading"].format(say[update.engine], ranks, number_type(update)),
            badge=origin(", ".join(("measured", *notes)), base)
            if found
            else base["predicted"].lower(),
            numbers=tuple(totals),
            language=code,
            table=tuple(table),
        )

    return speaking(language, build)


def number_type(update: Update) -> str:
    """What its gradients are, as a reader calls it."""
    return {"no": "fp32"}.get(update.precision, update.precision)


def _heads(rows: Sequence[Row], say: Mapping[str, str]) -> list[Shape]:
    """A head over each batch."""
    wide = (WIDTH_PX - _LEFT_PX) / len(rows)
    shapes: list[Shape] = []
    for index, row in enumerate(rows):
        middle = _LEFT_PX + wide * (index + 0.5)
        number = say["batch"].format(index + 1)
        synchronised = say["sync"].format("clip" in row)
        shapes.append(Words(middle, 68, number, "middle", bold=True))
        shapes.append(Words(middle, 86, synchronised, "middle", 12, opacity=0.85))
    return shapes


def _cells(
    update: Update,
    line: str,
    rows: Sequence[Row],
    found: Sequence[Row] | None,
    say: Mapping[str, str],
) -> list[Cell]:
    """A line in every batch."""
    measured = found or [{}] * len(rows)
    cells = []
    for row, seen in zip(rows, measured, strict=True):
        cell = _cell(update.engine, line, row, seen.get(line), say)
        told = _scaling(update, line, row, seen or row, say)
        cells.append(cell._replace(words=[*told, *cell.words]) if told else cell)
    return cells


def _scaling(
    update: Update, line: str, row: Row, seen: Mapping, say: Mapping[str, str]
) -> list[str]:
    """What fp16 adds to a line: ``seen`` is what was measured of the batch, or its prediction."""
    if update.precision != "fp16":
        return []
    if line == "backward" and "clip" not in row:
        return [say["scaled"]]
    if line not in ("backward", "clip", "step") or "clip" not in row:
        return []
    before, after = seen["step"]["scale"]
    if line == "backward":
        return [say["scales"].format(before)]
    if line == "clip":
        return [say["unscales"].format(before)]
    told = [say["scale"].format(before, after)]
    return told if seen["step"]["moved"] else [say["skipped"], *told]


def _cell(engine: str, line: str, row: Row, seen: Mapping | None, say: Mapping[str, str]) -> Cell:
    """A line in one batch; ``seen`` is what was measured of it."""
    if line not in row:
        return Cell([say["out"]], False, False)
    moved = (seen or row[line])["moved"]
    words = _counts(row[line]["calls"], seen["calls"] if seen else None)
    updates = "clip" in row
    if line in ("step", "zero_grad") and not updates:
        return Cell([*words, say["skip"]], False, moved)
    if line in ("step", "zero_grad") and engine == "zero2":
        return Cell([*words, say["done"]], False, moved)
    if line == "clip" and engine == "zero2":
        return Cell([*words, say["reads"]], False, moved)
    if moved:  # before the new weights are gathered
        gathers = [index for index, word in enumerate(words) if word.startswith("all_gather")]
        words.insert(min(gathers, default=len(words)), say["update"])
    if line == "step" and not moved:
        return Cell(words, True, moved)
    if line == "zero_grad":
        words.append(say["clear"])
    return Cell(words or [say["quiet"]], True, moved)


def _counts(guess: Mapping[str, int], seen: Mapping[str, int] | None) -> list[str]:
    """Collectives with their number: "all_reduce 2 = 2" once it was measured."""
    if seen is None:
        return [f"{name} {count}" for name, count in guess.items()]
    words = []
    for name in {**guess, **seen}:
        expected = guess.get(name, 0)
        counted = seen.get(name, 0)
        sign = "=" if expected == counted else "≠"
        words.append(f"{name} {expected} {sign} {counted}")
    return words


def _drawn(
    cell: Cell, line: str, index: int, num: int, row: tuple[float, float], update: str
) -> list[Shape]:
    """A box for each of the cell's words, in the column ``index`` of ``num`` and a row of this y
    and height; what says ``update`` has its own colour. One around all of them where the weights
    change."""
    wide = (WIDTH_PX - _LEFT_PX) / num - 8
    y, high = row
    x = _LEFT_PX + index * (wide + 8) + 4
    part = high / len(cell.words)
    colour = _COLOURS[line] if cell.does else ""
    shapes: list[Shape] = []
    for place, text in enumerate(cell.words):
        own = _COLOURS["step"] if text == update else colour
        shapes.append(Box(x, y + place * part, wide, part, own, texts=(text,)))
    if cell.moved:
        shapes.append(Box(x, y, wide, high, marked=True))
    return shapes


def _colour_key(say: Mapping[str, str]) -> list[tuple[tuple[Shape, ...], str]]:
    """What the boxes' colours mean, for ``legend``."""
    kinds = {
        "forward": _COLOURS["forward"],
        "backward": _COLOURS["backward"],
        "update": _COLOURS["step"],
        "gradients": _COLOURS["clip"],
        "nothing": "",
    }
    return [((Box(0, -7, 22, 14, colour),), say[f"is {kind}"]) for kind, colour in kinds.items()]


def _num_calls(rows: Sequence[Row]) -> int:
    """Collectives of a whole update."""
    total = 0
    for row in rows:
        total += sum(sum(line["calls"].values()) for line in row.values())
    return total
