"""Tables: one list of rows, as HTML for a notebook and as text for a terminal, in the language in
use."""

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from reprlib import repr as brief

from labkit import words
from labkit.shown import Said
from labkit.units import UNITS, alike, check_word, columns_of, format_number, unit_of

FOLD = 20
"""A table shows this many rows; the others are folded away."""
_NAMES = (
    ("returned", "column|returned"),
    ("peak memory", "peak memory"),
    ("chapter", "chapter"),
    ("exercise", "exercise"),
    ("state", "state"),
    ("attempts", "attempts"),
    ("guess", "guess"),
    ("answer", "answer"),
    ("off by", "off by"),
    ("question", "question"),
    ("name", "name"),
    ("value", "value"),
    ("predicted", "predicted"),
    ("measured", "measured"),
    ("simulated", "simulated"),
    ("difference", "difference"),
    ("ranks", "ranks"),
    ("microbatches", "microbatches"),
    ("schedule", "schedule"),
    ("strategy", "strategy"),
    ("time", "time"),
    ("compute", "compute"),
    ("communication", "communication"),
    ("idle", "idle"),
    ("idle share", "idle share"),
    ("bubble", "bubble"),
    ("bytes", "bytes"),
    ("sent", "sent"),
    ("handed in", "handed in"),
    ("on the wire", "on the wire"),
    ("hook", "hook"),
    ("last loss", "last loss"),
    ("held", "held"),
    ("kept", "kept"),
    ("stated", "stated"),
    ("microbatch", "microbatch"),
    ("accumulate", "accumulate"),
    ("recompute", "recompute"),
    ("target", "target"),
    ("met", "column|met"),
    ("efficiency share", "efficiency"),
    ("saved share", "saved"),
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer"),
    ("step", "step"),
    ("total", "total"),
    ("model", "model"),
    ("published", "published"),
    ("quantity", "quantity"),
    ("fitted", "fitted"),
    ("error", "error"),
    ("regret", "regret"),
    ("memory", "column|memory"),
    ("fits", "fits"),
    ("mfu share", "MFU"),
    ("layout", "layout"),
    ("stack", "constants of"),
    ("gpus", "GPUs"),
    ("gpu", "GPU model"),
    ("planned", "planned"),
    ("rehearsed", "rehearsed"),
    ("as tensors are cut", "as tensors are cut"),
    ("planned / rehearsed", "planned / rehearsed"),
    ("days", "days"),
    ("part", "part"),
    ("fewest", "fewest"),
    ("best", "best"),
    ("yours", "yours"),
    ("questions", "questions"),
    ("median", "median"),
    ("naive median", "naive median"),
    ("naive p90", "naive p90"),
    ("tokens per s and gpu", "tokens per s and gpu"),
    ("yes", "yes"),
    ("no", "no"),
    ("{} more rows", "{} more rows"),
    ("no rows", "no rows"),
)
"""Heads that a table may have without saying them: (head, what it says)"""
WHOLE_COLUMNS = 14
"""A cell of no more characters is not broken into lines."""
_TABLE = "border-collapse:collapse;color:inherit;margin:.2em 0"
_ROW = "background:none;border:0"
_CELL = "padding:.2em .8em;color:inherit;vertical-align:baseline;max-width:40em"
_LINE = "border:0;border-bottom:1px solid color-mix(in srgb,currentColor 25%,transparent)"
_CAPTION = "caption-side:top;text-align:left;font-weight:bold;padding:.3em .8em;color:inherit"


def worded(english: str, language: str | None = None) -> str:
    """A short English text in a language: what is known is translated, the rest stays."""
    return words.translated(dict(_NAMES).get(english, english), words.spoken_in(language))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Table:
    """Rows of text under heads. ``str(table)`` is the text for a terminal."""

    heads: tuple[str, ...]
    """what stands above each column"""
    cells: tuple[tuple[str, ...], ...]
    """the text of each cell, row by row"""
    numeric: tuple[bool, ...]
    """which columns hold numbers: those stand at the right"""
    title: str = ""
    """what the table is about"""
    language: str = "en"
    """of the few words that the table itself says: "en" or "zh\""""

    def __str__(self) -> str:
        shown = self.cells[:FOLD]
        columns = zip(self.heads, *shown, strict=True)
        widths = [max(map(columns_of, column)) for column in columns]
        lines = [self.title] if self.title else []
        lines += [self._line(row, widths) for row in (self.heads, *shown)]
        return "\n".join([*lines, *self._note()])

    def __repr__(self) -> str:
        return str(self)

    def bundle(self, *, title: Said = "") -> dict[str, str]:
        """The table by mime type, under another title if one is given."""
        named = dataclasses.replace(self, title=_said(title, self.language)) if title else self
        return {"text/html": named._repr_html_(), "text/plain": str(named)}

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        padded = []
        for cell, width, number in zip(row, widths, self.numeric, strict=True):
            room = " " * (width - columns_of(cell))
            padded.append(room + cell if number else cell + room)
        return "  ".join(padded).rstrip()

    def _note(self) -> list[str]:
        """What is said below: that there are no rows, or more than are shown."""
        if not self.cells:
            return [worded("no rows", self.language)]
        left = len(self.cells) - FOLD
        return [worded("{} more rows", self.language).format(left)] if left > 0 else []

    def _repr_html_(self) -> str:
        """The table in the page's own colours; the first column names its row."""
        style = f"{_CAPTION};min-width:min({min(48, columns_of(self.title))}ch,80vw)"
        caption = f'<caption style="{style}">{html.escape(self.title)}</caption>'
        parts = [self._part(self.cells[:FOLD], caption if self.title else "")]
        for note in map(html.escape, self._note()):
            rest = self.cells[FOLD:]
            folded = f"<details><summary>{note}</summary>{self._part(rest)}</details>"
            parts.append(folded if rest else f"<div>{note}</div>")
        return f'<div class="labkit-table" style="overflow-x:auto">{"".join(parts)}</div>'

    def _part(self, rows: Sequence[tuple[str, ...]], caption: str = "") -> str:
        heads = [
            _html_cell("th", head, number, "col")
            for head, number in zip(self.heads, self.numeric, strict=True)
        ]
        head = f'<thead><tr style="{_ROW}">{"".join(heads)}</tr></thead>'
        body = "".join(map(self._html_row, rows))
        return f'<table style="{_TABLE}">{caption}{head}<tbody>{body}</tbody></table>'

    def _html_row(self, row: Sequence[str]) -> str:
        cells = []
        for place, (text, number) in enumerate(zip(row, self.numeric, strict=True)):
            cells.append(_html_cell("td", text, number, "" if place else "row"))
        return f'<tr style="{_ROW}">{"".join(cells)}</tr>'


def _html_cell(tag: str, text: str, number: bool, scope: str) -> str:
    side = "right;white-space:nowrap;font-variant-numeric:tabular-nums" if number else "left"
    if tag == "td" and not number and columns_of(text) <= WHOLE_COLUMNS:
        side += ";white-space:nowrap"  # a short name stays in one line
    weight = "bold;white-space:normal" if tag == "th" else "normal"  # heads wrap, numbers do not
    style = f"{_CELL};{_LINE};text-align:{side};font-weight:{weight}"
    if not scope:
        return f'<td style="{style}">{html.escape(text)}</td>'
    return f'<th scope="{scope}" style="{style}">{html.escape(text)}</th>'


def table(
    rows: Iterable,
    *,
    heads: Mapping[str, Said] | Sequence[str] | None = None,
    units: Mapping[str, str] | None = None,
    title: Said = "",
    language: str | None = None,
) -> Table:
    """A table of rows: dicts, dataclasses or tuples. It shows itself; ``print`` gives the text.

    Columns are the keys of the rows. ``heads`` gives them other names, or chooses and names them
    where rows are tuples. A number is written in the unit that its column's name ends with
    (``_us``, ``_ms``, ``_s``, ``_bytes``, ``_share``, ...), or in that of ``units[name]``. A key
    that a row lacks is an empty cell.
    """
    found = [*_iterated(rows)]
    names, records = _records(found, heads)
    units = _checked_units(units or {}, names)
    language = words.spoken_in(language)
    said = heads if isinstance(heads, Mapping) else {}
    values = [list(map(record.get, names)) for record in records]
    written = [units.get(name, unit_of(name)) for name in names]
    cells = alike([_texts(row, written, language) for row in values])
    return Table(
        heads=tuple(_head(said.get(name, ""), name, language) for name in names),
        cells=tuple(cells),
        numeric=tuple(map(_is_numeric, _columns(values, names))),
        title=_said(title, language),
        language=language,
    )


def _iterated(rows: Iterable) -> Iterable:
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise ValueError(
            f"a table is made of a list of rows, each a dict, a dataclass or a tuple; got "
            f"{brief(rows)}"
        )
    return rows


def _records(rows: list, heads: object) -> tuple[list[str], list[dict]]:
    """The columns' names in order, and each row by name."""
    if heads is not None and not isinstance(heads, (Mapping, list, tuple)):
        raise ValueError(f"heads are a list of names, or name -> words; got {brief(heads)}")
    if rows and all(map(_is_tuple, rows)):
        return _of_tuples(rows, heads)
    records = [_record(row) for row in rows]
    names = dict.fromkeys(heads or ()) if not rows else {}
    for record in records:
        names |= dict.fromkeys(record)
    if rows and isinstance(heads, (list, tuple)):
        names = dict.fromkeys(heads)
    missing = [name for name in (heads or ()) if records and name not in {*names}]
    odd = [name for name in names if not isinstance(name, str)] + missing
    if odd:
        raise ValueError(
            f"a column is named by a word, a key of the rows ({', '.join(map(str, names))}); got "
            f"{brief(odd[0])}"
        )
    return [*names], records


def _is_tuple(row: object) -> bool:
    return isinstance(row, (tuple, list)) and not hasattr(row, "_fields")


def _of_tuples(rows: list[Sequence], heads: object) -> tuple[list[str], list[dict]]:
    names = [*(heads or ())]
    lengths = {len(names), *map(len, rows)}
    if len(lengths) > 1 or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"rows of tuples need heads, one word for each part; got rows of "
            f"{sorted(map(len, rows))[-1]} parts and heads {brief(heads)}"
        )
    return names, [dict(zip(names, row, strict=True)) for row in rows]


def _record(row: object) -> dict:
    """A row as its columns' names and values."""
    if isinstance(row, Mapping):
        return dict(row)
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    if hasattr(row, "_asdict"):
        return row._asdict()
    raise ValueError(
        f"the rows of a table are all dicts, all dataclasses or all tuples; got {brief(row)}"
    )


def _checked_units(units: Mapping[str, str], names: list[str]) -> dict[str, str]:
    if not isinstance(units, Mapping):
        raise ValueError(f'units are a column\'s name -> its unit, "us"; got {brief(units)}')
    for name, unit in units.items():
        check_word(name, names or [name], "a column with a unit")
        check_word(unit, (*UNITS, ""), "a unit")
    return dict(units)


def _head(given: Said, name: str, language: str) -> str:
    """A column's head: the words given for it, or its name as words, without the unit that stands
    in the cells."""
    if given:
        return worded(_said(given, language), language)
    unit = unit_of(name)
    stem = name.removesuffix(f"_{unit}") if unit not in ("", "share", "ratio") else name
    return worded(stem.replace("_", " "), language)


def _said(given: Said, language: str) -> str:
    """Words in a language."""
    told = given.get(language) if isinstance(given, Mapping) else given
    if not isinstance(told, str):
        raise ValueError(
            f"words are a text, or one for each language, {language!r} among them; got "
            f"{brief(given)}"
        )
    return told


def _columns(values: list[list], names: list[str]) -> list[tuple]:
    return list(zip(*values, strict=True)) if values else [()] * len(names)


def _plain(value: object) -> object:
    """A number of numpy's or torch's as Python's own."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def _is_numeric(values: Iterable) -> bool:
    there = [_plain(value) for value in values if value is not None]
    numbers = [isinstance(value, Real) and not isinstance(value, bool) for value in there]
    return bool(there) and all(numbers)


def _texts(row: list, units: list[str], language: str) -> tuple[str, ...]:
    return tuple(_text(each, unit, language) for each, unit in zip(row, units, strict=True))


def _text(value: object, unit: str, language: str) -> str:
    """A value as a cell shows it."""
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return worded("yes" if value else "no", language)
    if isinstance(value, Real):
        return format_number(value, unit)
    if isinstance(value, str):
        return value
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{type(value).__name__}{tuple(value.shape)} {kind}"
    return brief(value)
