"""Numbers as a text writes them, in English and in Chinese: 3.2 ms, 4,096, 67 亿, 3.5 万; and which
of them say how much."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

CUT = re.compile(
    r"(?ms)^ *```.*?^ *```"  # a block of code
    r"|\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]*`"  # formulas and code
    r"|\bdoi [\d./]+|\]\([^)\s]*\)|https?://\S+|<!--.*?-->|<[^>\n]+>"  # addresses, marks
)
"""What is no prose."""
UNITS = {
    **dict.fromkeys(("s", "second", "seconds", "秒"), ("time", 1.0)),
    **dict.fromkeys(("ms", "毫秒"), ("time", 1e-3)),
    **dict.fromkeys(("us", "µs", "μs", "微秒"), ("time", 1e-6)),
    **dict.fromkeys(("ns",), ("time", 1e-9)),
    **dict.fromkeys(("min", "minute", "minutes", "分钟"), ("time", 60.0)),
    **dict.fromkeys(("h", "hour", "hours", "小时"), ("time", 3600.0)),
    **dict.fromkeys(("day", "days", "天"), ("time", 86400.0)),
    **dict.fromkeys(("B", "byte", "bytes", "字节"), ("bytes", 1.0)),
    **{f"{prefix}B": ("bytes", 1000.0**power) for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": ("bytes", 1024.0**power) for power, prefix in enumerate("KMGT", start=1)},
    **{f"{each}FLOP": ("flops", 1000.0**power) for power, each in enumerate(["", *"kMGTP"])},
    **{f"{each}FLOPs": ("flops", 1000.0**power) for power, each in enumerate(["", *"kMGTP"])},
    **dict.fromkeys(("teraFLOP", "teraFLOPs"), ("flops", 1e12)),
    **dict.fromkeys(("%", "percent"), ("share", 0.01)),
}
"""The word after a number -> what it measures, and how much of its unit."""
WORDS = "|".join(sorted(UNITS, key=len, reverse=True))
MANY = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
MANY_CHINESE = {"万亿": 1e12, "亿": 1e8, "万": 1e4, "千": 1e3}
NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.,-])(?P<digits>\d+(?:,\d{3})*(?:\.\d+)?)(?![\d_]|[.,]\d)"
    r"(?:x(?![A-Za-z])|(?:st|nd|rd|th)\b)?"
    r"(?:[ \xa0]?(?P<many>thousand|million|billion|trillion|万亿|亿|万|千(?!字节)))?"
    rf"(?:(?:[ \xa0](?=[sBh]\b)|[ \xa0]?(?![sBh]\b))(?P<unit>{WORDS})(?![A-Za-z]))?"
    r"(?![A-Za-z])"
)
"""Letters directly before or after make a name of it: H100, 7B, ZeRO-3, 1F1B."""
SERIES = re.compile(
    r"(?:, \d[\d.]*)*,? (?:and|or|to) \d[\d.]* (?P<many>thousand|million|billion|trillion)"
)
"""What follows a number that shares the last one's word: 5, 10 and 20 billion."""
ROUGH = re.compile(
    r"(?i)(?:about|some|nearly|almost|roughly|around|over|more than|less than|under|hardly|below|"
    r"up to|at least|at most|~|以上|约|近|大约|将近|不到|超过)\s*$"
)


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number of a text."""

    text: str
    """as it is written, with its unit"""
    value: float
    """in seconds, bytes, operations or shares where it has such a unit"""
    half: float
    """half of its last digit: what rounds to it lies so near"""
    kind: str
    """time, bytes, flops, share; "" for none"""
    start: int
    """where it begins in its text"""
    rough: bool = False
    """whether the text says "about" """
    plain: float = 0.0
    """without its unit"""
    unit: str = ""
    """the word of its unit"""


NAMED = re.compile(
    r"(?i)(?:\b(?:chapters?|sections?|exercises?|erratum|tables?|figures?|equations?|algorithms?|"
    r"appendix|pages?|versions?|issues?|stages?|ranks?|zero|torch|pcie|python|accelerate|"
    r"deepspeed|transformers|llama|seeds?|arxiv|doi|ACM|biology|systems|rtx)[ \n]+|\[)"
    r"(?:\d[\d.]*(?:,| and| to| or)[ \n]+)*$"
)
"""What stands before a number that is a name: chapter 03, ranks 0 and 1, table 15."""
YEAR = re.compile(r"19[6-9]\d|200[1-9]|20[12]\d")
OTHERS = (
    re.compile(r"(?s)<summary>.*?</summary>"),  # what the source material says
    re.compile(r'"[^"\n]{1,200}"'),  # what somebody says
    re.compile(r"(?m)^\*Sections .*$"),  # the line that names sections
    re.compile(r"\A# .+\n\n\*About .*"),  # how long a chapter takes
    re.compile(r"(?m)^\d+\. "),  # the places of a list
    re.compile(r"\d+(?:\.\d+){2,}|\d{4}\.\d{5}|\b0\d\b"),  # sections, papers, chapters
    re.compile(r"\b\d{1,3} ?B\b(?= (?:model|paramet))|\b\d{1,3} B\b"),  # what a model is called
)
"""Numbers of a prose cell that are nobody's claim."""


def without_code(text: str) -> str:
    """Prose with blanks in place of code, formulas and addresses: places stay the same."""
    return CUT.sub(_blank, text)


def _blank(found: re.Match) -> str:
    return re.sub(r"[^\n]", "\0", found[0])


def numbers(text: str) -> Iterator[Number]:
    """Every number of a text, in its order."""
    for found in NUMBER.finditer(text):
        digits = found["digits"]
        series = SERIES.match(text, found.end()) or found
        many = MANY.get(series["many"]) or MANY_CHINESE.get(series["many"], 1.0)
        kind, factor = UNITS.get(found["unit"], ("", 1.0))
        decimals = len(digits.partition(".")[2])
        plain = float(digits.replace(",", ""))
        yield Number(
            text=found[0].strip(),
            value=plain * many * factor,
            half=0.5 * 10.0**-decimals * many * factor,
            kind=kind,
            start=found.start(),
            rough=bool(ROUGH.search(text[max(0, found.start() - 12) : found.start()])),
            plain=plain * many,
            unit=found["unit"] or "",
        )


def claims(prose: str) -> list[Number]:
    """The numbers of an English prose cell that say how much: no chapters, years, versions, names,
    quotations."""
    text = prose
    for pattern in OTHERS[:4]:
        text = pattern.sub(_blank, text)
    text = without_code(text)
    for pattern in OTHERS[4:]:
        text = pattern.sub(_blank, text)
    found = []
    for number in numbers(text):
        before = text[max(0, number.start - 60) : number.start].replace("\0", "")
        if not (YEAR.fullmatch(number.text) or NAMED.search(before)):
            found.append(number)
    return found
