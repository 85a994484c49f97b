"""The language that labkit speaks, the one catalogue of its Chinese, and the words of pictures.

English stands in the code, where it is read: ``say("rank {rank} sent {sent} bytes", rank=1,
sent=8)``. Its Chinese stands in ``labkit/locale/zh.po``, the one file for a translator. That is
gettext's way and gettext's format, so any editor of .po files opens it; a key of our own for each
text would have hidden what a line says from who reads the code. What we do without is the compiled
.mo (a binary that goes stale, or a build step that an editable install does not have): the lines
below read the .po when Chinese is first spoken, in some 10 ms. Babel reads it as well, but takes
five times as long to be imported alone.

``tests/house/test_catalogue.py`` walks the code and finds every text without Chinese, every entry
that nothing says, and every place that one language fills and the other does not; ``python
tests/house/spoken.py`` writes the entries that are missing.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

LANGUAGES = ("en", "zh")
CATALOGUE = Path(__file__).parent / "locale" / "zh.po"
_PURPOSE = re.compile(r"^[a-z ]*[a-z]\|")
"""what a text is for, where it begins with that"""
_language = "en"
_meanwhile: ContextVar[str] = ContextVar("language", default="")
"""of a ``with`` block"""


def use(language: str) -> None:
    """Pictures, tables, verdicts and hints speak English ("en") or Chinese ("zh") from now on.
    Raises ValueError for another language."""
    global _language
    _language = spoken_in(language)


def language() -> str:
    """The language in use: "en" or "zh"."""
    return _meanwhile.get() or _language


@contextmanager
def meanwhile(spoken: str) -> Iterator[None]:
    """Another language in use within the block, in this thread alone: that of one board. Raises
    ValueError for a language that labkit does not speak."""
    token = _meanwhile.set(spoken_in(spoken))
    try:
        yield
    finally:
        _meanwhile.reset(token)


def spoken_in(language: str | None) -> str:
    """The language asked for; the one in use where none is. Raises ValueError for one that labkit
    does not speak."""
    wanted = _meanwhile.get() or _language if language is None else language
    if wanted not in LANGUAGES:
        raise ValueError(f"a language is one of {', '.join(LANGUAGES)}; got {wanted!r}")
    return wanted


# --- the catalogue ---


def say(text: str, /, **values: object) -> str:
    """An English text in the language in use, its {places} filled with values by name. One that the
    catalogue lacks stays English.

    A text may begin with what it is for, and a bar, where one English text has two Chinese ones:
    ``say("list|, ")``. English leaves that out.
    """
    told = translated(text, language())
    return told.format(**values) if values else told


def say_number(one: str, many: str, number: int, /, **values: object) -> str:
    """The same of one of two English texts: the first for exactly one thing, else the second."""
    return say(one if number == 1 else many, **values)


def to_say(text: str, /) -> str:
    """The text itself: it is said later, by a name, and the catalogue has it."""
    return text


def both(text: str, /, **values: object) -> dict[str, str]:
    """A text in each language, its places filled: a title that a picture can also show where no
    font has Chinese."""
    told = {code: translated(text, code) for code in LANGUAGES}
    return {code: words.format(**values) if values else words for code, words in told.items()}


def translated(text: str, language: str) -> str:
    """An English text in a language, its places still open."""
    chinese = _chinese().get(text) if language == "zh" else None
    return chinese or _PURPOSE.sub("", text)


@functools.cache
def _chinese() -> dict[str, str]:
    """English text -> Chinese text."""
    return dict(entries(CATALOGUE.read_text(encoding="utf-8")))


def entries(po: str) -> Iterable[tuple[str, str]]:
    """(English, Chinese) of each entry of a .po file: msgid "...", msgstr "...", each followed by
    more of it in lines that begin with a quote. The file's own header is left out."""
    found: list[list[str]] = []
    for line in po.splitlines():
        word, quote, _ = line.partition('"')
        if not quote or line.startswith("#"):
            continue
        part = json.loads(line[len(word) :])
        if word == "msgid ":
            found.append([part])
        elif word == "msgstr ":
            found[-1].append(part)
        else:
            found[-1][-1] += part
    return [(english, chinese) for english, chinese in found if english]


class Table(Mapping[str, dict[str, str]]):
    """Language -> words by their key. Chinese is looked up when it is first asked for."""

    def __init__(self, rows: Iterable[tuple[str, ...]]) -> None:
        self._rows = tuple(rows)
        self._words: dict[str, dict[str, str]] = {}

    def __getitem__(self, language: str) -> dict[str, str]:
        if spoken_in(language) not in self._words:
            self._words[language] = dict(self._spoken(language))
        return self._words[language]

    def __iter__(self) -> Iterator[str]:
        return iter(LANGUAGES)

    def __len__(self) -> int:
        return len(LANGUAGES)

    def _spoken(self, language: str) -> Iterator[tuple[str, str]]:
        """(key, words) of each row."""
        for key, english, *chinese in self._rows:
            given = chinese[0] if chinese and language == "zh" else ""
            yield key, given or translated(english, language)


def catalogue(rows: Iterable[tuple[str, ...]]) -> Table:
    """Words by their key from rows (key, English), their Chinese from the catalogue; or from rows
    that still have it beside them, (key, English, Chinese)."""
    return Table(rows)


def in_every(key: str, words: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The words that a table has for a key, in each language."""
    return {language: words[language][key] for language in LANGUAGES}


# --- the words of pictures ---

_WORDS = (
    ("comma", ", "),
    ("colon", ": "),
    ("stop", "{}."),
    ("badged", "{} ({})"),
    ("timeline", "Timeline"),
    ("compare", "Predicted and measured"),
    ("predicted", "Predicted"),
    ("measured", "measured"),
    ("simulated", "simulated"),
    ("recorded", "recorded"),
    ("published", "published"),
    ("fitted", "seen by the fit"),
    ("computed", "computed"),
    ("paced", "paced"),
    ("paced links", "paced links"),
    ("overran", "overran"),
    ("pretend device", "pretend device"),
    ("shared GPU", "shared GPU"),
    ("bubble", "bubble"),
    ("of", "{} of total time"),
    ("span", "span"),
    ("in_flight", "peak in flight"),
    ("hidden", "communication hidden"),
    ("difference", "difference"),
    ("points", "{} points"),
    ("busy", "busy"),
    ("compute", "compute"),
    ("idle", "idle"),
    ("share", "idle share"),
    ("comm", "communication"),
    ("chunk", "lighter: later stage of the rank"),
    ("one rank of each stage", "one rank of each stage"),
    ("nothing", "Nothing to show: no spans."),
    ("table", "The same as a table"),
    ("busiest", "sent by the busiest rank"),
    ("bytes", "bytes"),
    (
        "summary_comm",
        "{ranks} ranks, {span}, {badge}: rank {sender} sends most, {bytes}.",
    ),
    ("plan", "{}: {}, {} ranks"),
    ("num_ranks", "{} ranks"),
    ("step", "step"),
    ("of_steps", "{} of {}"),
    ("nothing_sent", "nothing has been sent yet"),
    ("bound", "lower bound"),
    ("time", "time"),
    ("add", "+ added to the receiver's"),
    ("copy", "copied"),
    (
        "parts",
        "{0}/{1}: holds the parts of {0} of {1} ranks",
    ),
    ("changed", "changed in this step"),
    ("whole", "whole chunks"),
    ("chunk_n", "chunk {}"),
    ("peer", "to, from {}"),
    ("out_in", "out in"),
    ("shared", ", one wire for all"),
    ("stated", "stated"),
    ("drawn", "drawn"),
    ("network", "{} ranks and their links"),
    ("islands", "islands"),
    ("ring_order", "ring"),
    ("crossings", "crossings"),
    ("machine", "This machine"),
    ("reported", "as the system says"),
    ("cores", "cores"),
    ("threads", "hardware threads"),
    ("memory", "memory"),
    ("usable", "usable at once"),
    ("node", "NUMA node {}: {}"),
    ("one_core", "threads of one core"),
    ("one_cache", "one colour: one third-level cache"),
    ("NV", "NVLinks, how many"),
    ("PIX", "at most one PCIe bridge"),
    ("PXB", "several PCIe bridges"),
    ("PHB", "PCIe and a CPU's host bridge"),
    ("NODE", "host bridges of one NUMA node"),
    ("SYS", "between NUMA nodes"),
    ("Parameter server", "Parameter server"),
    ("Ring", "Ring"),
    ("Tree", "Tree"),
    ("Double binary tree", "Double binary tree"),
    ("Hierarchical", "Hierarchical"),
    ("Star", "Star"),
    ("Pairwise", "Pairwise"),
    ("Direct", "Direct"),
    ("Send and receive", "Send and receive"),
    (
        "summary",
        "{ranks} ranks, {span}, {badge}: {bubble} of the ranks' time is idle, most on rank "
        "{worst} ({most}).",
    ),
)


WORDS = catalogue([("code", *LANGUAGES), *_WORDS])
"""Of every picture; "code" is the language itself."""


TITLES: dict[str, str] = {
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_reduce": "All-reduce",
    "all_gather": "All-gather",
    "reduce_scatter": "Reduce-scatter",
    "all_to_all": "All-to-all",
    "send_recv": "Send and receive",
    "parameter_server": "Parameter server",
    "ring": "Ring",
    "tree": "Tree",
    "double_tree": "Double binary tree",
    "hierarchical": "Hierarchical",
    "star": "Star",
    "pairwise": "Pairwise",
    "direct": "Direct",
}
"""Words for every primitive and algorithm"""


def speaking(language: str | None, build: Callable[[dict[str, str]], Any]) -> Any:
    """The picture that ``build`` makes of a language's words (None: the one in use); a Chinese one
    can also make itself ``in_english``.

    Raises ValueError for a language that is neither "en" nor "zh".
    """
    spoken = spoken_in(language)
    picture = build(WORDS[spoken])
    return picture if spoken == "en" else replace(picture, in_english=lambda: build(WORDS["en"]))


def called(names: Iterable[str], language: str | None, *more: str) -> str:
    """What a collective and its algorithm are called, and more: of ("all_reduce", "ring") and
    "N = 4" it is "All-reduce: Ring, N = 4". A name that ``TITLES`` lacks stays."""
    words = WORDS[spoken_in(language)]
    titles = [TITLES.get(name, name) for name in names]
    name = words["colon"].join(words.get(title, title) for title in titles)
    return words["comma"].join((name, *more))


def titled(heading: str, numbers: Iterable[tuple[str, ...]], badge: str, language: str) -> str:
    """What a picture shows, its numbers and where they come from, in one line."""
    words = WORDS[spoken_in(language)]
    told = words["comma"].join(" ".join(pair) for pair in numbers)
    said = words["colon"].join(part for part in (heading, told) if part)
    return words["badged"].format(said, badge)


def sentence(heading: str, parts: Iterable[tuple[str, ...]], badge: str, language: str) -> str:
    """The same as a sentence, for a picture's summary."""
    said = titled(heading, parts, badge, language)
    return WORDS[spoken_in(language)]["stop"].format(said)
