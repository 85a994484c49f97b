"""Whether a cell's Chinese has the numbers of its English, and the English those of its Chinese.

A number in digits has to stand in the other language as well: in digits with any unit that makes
it the same (6.7 billion, 67 亿; 80 GB, 80), or in words (half, 一半, a third, 三分之一). Whether
both say the same of it, a reader has to judge.
"""

import re
from collections.abc import Iterator

import numerals
from chapter import Chapter
from numerals import Number

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
ENGLISH = {
    **{word: float(value) for value, word in enumerate(SMALL.split())},
    **dict.fromkeys(("half", "halves"), 0.5),
    **dict.fromkeys(("a", "an", "once", "hour", "first", "single"), 1.0),
    **dict.fromkeys(("twice", "double", "doubles", "both", "pair", "second"), 2.0),
    **dict.fromkeys(("third", "thirds"), 3.0),
    **dict.fromkeys(("quarter", "quarters", "fourth"), 4.0),
    **{"fifth": 5.0, "sixth": 6.0, "seventh": 7.0, "eighth": 8.0, "ninth": 9.0, "tenth": 10.0},
    **{"dozen": 12.0, "sixteenth": 16.0, "thirty": 30.0, "forty": 40.0, "fifty": 50.0},
    **{"hundred": 100.0, "thousand": 1e3, "million": 1e6, "billion": 1e9},
}
PHRASES = {"one and a half": 1.5, "hour and a quarter": 75.0}
CHINESE_DIGITS = {word: value for value, word in enumerate("零一二三四五六七八九")} | {"两": 2}
CHINESE = re.compile("[零一二三四五六七八九十两百千]+")
CHINESE_ALONE = {"俩": 2.0, "双": 2.0, "半": 0.5, "万": 1e4, "亿": 1e8}
NAME = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([A-Za-z])|[A-Za-z](\d+)")
"""7B, 2S, bf16: numbers of one language may be such names in the other."""


def readings(number: Number) -> set[float]:
    """What a number may be to the other language: with its unit and without; 7 B is also 7
    billion."""
    found = {number.value, number.plain}
    if number.unit == "B":
        found.add(number.plain * 1e9)
    return {float(f"{each:.9g}") for each in found}


def said(text: str) -> set[float]:
    """What the words and the names of a text may count."""
    found = {ENGLISH[word] for word in re.findall("[a-z]+", text.lower()) if word in ENGLISH}
    found |= {value for phrase, value in PHRASES.items() if phrase in text}
    found |= {value for word, value in CHINESE_ALONE.items() if word in text}
    found |= {float(chinese_value(word)) for word in CHINESE.findall(text)}
    for before, letter, after in NAME.findall(text):
        found.add(float(before or after))
        if letter == "B":
            found.add(float(before) * 1e9)
    return found


def chinese_value(word: str) -> int:
    """A number in Chinese characters below ten thousand: 两千三百 is 2300, 十二 is 12."""
    total = digit = 0
    for character in word:
        if character in CHINESE_DIGITS:
            digit = CHINESE_DIGITS[character]
        else:
            total += (digit or 1) * {"十": 10, "百": 100, "千": 1000}[character]
            digit = 0
    return total + digit


def lacking(text: str, other: str) -> Iterator[Number]:
    """The numbers of a text in one language that the other does not have."""
    prose = numerals.without_code(other)
    there = said(prose)
    for each in numerals.numbers(prose):
        there |= readings(each)
    for each in numerals.numbers(numerals.without_code(text)):
        if not readings(each) & there:
            yield each


def faults(chapter: Chapter) -> Iterator[str]:
    """The numbers that one language has and the other has not, cell by cell."""
    for cell in chapter.cells:
        if cell.kind != "markdown":
            continue
        for text, other, language in (
            (cell.source, cell.chinese, "Chinese"),
            (cell.chinese, cell.source, "English"),
        ):
            for number in lacking(text, other):
                begins = cell.source.strip().partition("\n")[0][:50]
                yield f"{chapter.name[:2]}: {number.text!r} is not in the {language} of {begins!r}"
