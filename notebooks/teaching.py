"""The parts of TEACHING.md and TEACHING.zh.md that are made: two plans, and an entry for each
chapter. ``build.py`` writes them between markers.

What an entry says stands in ``src/teaching.toml``; minutes, sections, guesses, exercises and the
number of errata are read from the chapters, and every sum is counted.
"""

import tomllib
from pathlib import Path

import builds
import errata
import outline
from chapter import Chapter, heading

from labkit.check import chapters as checked

SOURCE = Path("notebooks", "src", "teaching.toml")
PAGES = {"en": "TEACHING.md", "zh": "TEACHING.zh.md"}
MARKERS = ("day", "term", "chapters")
BEGINS_MINUTES = 9 * 60
"""when a day in the room begins"""
FIELDS = {"points": 3, "wrong": 2, "ask": 2}
"""what an entry has, and at least how much of it"""


def told(root: Path) -> dict:
    """What the source says; {} where there is none."""
    path = root / SOURCE
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def parts(root: Path, chapters: list[Chapter], language: str) -> dict[str, str]:
    """What stands between the markers of a page. Raises ValueError for a chapter without an entry,
    an entry without a chapter, or one that says too little."""
    source = told(root)
    if not source:
        raise ValueError(f"{PAGES[language]} is made from {SOURCE}, which is not there")
    if found := faults(source, chapters):
        raise ValueError("\n".join(f"{SOURCE.name}: {fault}" for fault in found))
    say = source["words"][language]
    known = {each.name[:2]: each for each in chapters}
    entries = [
        entry(each, source["chapter"][number][language], say, language)
        for number, each in known.items()
    ]
    return {
        "day": _table(say["day"], _day(source["day"], known, language)),
        "term": _table(say["term"], _term(source["term"], known, language)),
        "chapters": "\n\n".join(entries),
    }


def faults(source: dict, chapters: list[Chapter]) -> list[str]:
    """What is wrong with the source, as sentences."""
    numbers = {each.name[:2] for each in chapters}
    entries = source.get("chapter", {})
    found = [
        f"chapter {number} has no entry. Write [chapter.{number}.en] and [chapter.{number}.zh], "
        "each with points, wrong and ask, as the chapters there have"
        for number in sorted(numbers - set(entries))
    ]
    found += [f"there is no chapter {number}" for number in sorted(set(entries) - numbers)]
    for row in source["day"]:
        if ("chapter" in row) == ("minutes" in row):
            found.append(f"a row of the day has a chapter or minutes of its own: {row['en']}")
    named = [row["chapter"] for row in source["day"] if "chapter" in row]
    for row in source["term"]:
        named += row["chapters"]
    found += [f"a plan names a chapter {each}" for each in sorted(set(named) - numbers)]
    for number, entry in entries.items():
        for language in PAGES:
            for field, least in FIELDS.items():
                if len(entry.get(language, {}).get(field, ())) < least:
                    found.append(f"chapter {number}, {language}: {field} has {least} or more")
        if len({len(entry[each].get("ask", ())) for each in PAGES if each in entry}) > 1:
            found.append(f"chapter {number}: both languages have the same questions")
    return found


def _table(heads: list[str], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "| " + " | ".join(["---"] * len(heads)) + " |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _day(rows: list[dict], known: dict[str, Chapter], language: str) -> list[tuple[str, ...]]:
    """Each block of the day with its beginning and its end."""
    found = []
    begins = BEGINS_MINUTES
    for row in rows:
        minutes = row.get("minutes") or known[row["chapter"]].header["minutes"]
        ends = begins + minutes
        said = row[language]
        if "chapter" in row:
            said = f"**{_linked(known[row['chapter']], language)}** {said}"
        found.append((_clock(begins), _clock(ends), str(minutes), said))
        begins = ends
    return found


def _clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"


def _term(rows: list[dict], known: dict[str, Chapter], language: str) -> list[tuple[str, ...]]:
    """Each week with the minutes of its chapters."""
    found = []
    for week, row in enumerate(rows, start=1):
        chosen = [known[number] for number in row["chapters"]]
        linked = "<br>".join(_linked(each, language) for each in chosen)
        minutes = sum(each.header["minutes"] for each in chosen)
        found.append((str(week), linked, str(minutes), row[language]))
    return found


def _linked(chapter: Chapter, language: str) -> str:
    """A chapter's number and title, as a link to its notebook."""
    folder = builds.FOLDERS[language, "learner"]
    path = Path("notebooks", folder, f"{chapter.name}.ipynb").as_posix()
    return f"[{chapter.name[:2]} {_title(chapter, language)}]({path})"


def _title(chapter: Chapter, language: str) -> str:
    first = chapter.cells[0]
    return heading(first.chinese if language == "zh" else first.source)


def entry(chapter: Chapter, entry: dict, say: dict, language: str) -> str:
    """What a teacher needs of a chapter, as Markdown."""
    number = chapter.name[:2]
    minutes = say["minutes"].format(chapter.header["minutes"])
    comma = say["separator"]
    lines = [
        f"### {_linked(chapter, language)}",
        "",
        f"{minutes}{comma}{say['deck'].format(number, number)}",
        "",
        f"**{say['sections']}**",
        "",
        comma.join(outline.sections(chapter, language)),
        "",
        *_list(say["points"], entry["points"]),
        *_list(say["guesses"], [each.question for each in outline.guesses(chapter, language)]),
        *_list(say["exercises"], _exercises(chapter, say, language)),
        *_list(say["wrong"], entry["wrong"]),
        *_list(say["ask"], [f"{question} *{answer}*" for question, answer in entry["ask"]]),
    ]
    if count := len(list(errata.boxes(chapter, language))):
        lines.append(say["errata"].format(count))
    return "\n".join(lines).rstrip()


def _list(title: str, rows: list[str]) -> list[str]:
    """A list under its title; nothing where it is empty."""
    return [f"**{title}**", "", *(f"- {row}" for row in rows), ""] if rows else []


def _exercises(chapter: Chapter, say: dict, language: str) -> list[str]:
    hints = checked.hints()
    return [
        say["exercise"].format(each.check, each.title, len(hints.get(each.check, {}).get("en", ())))
        for each in outline.exercises(chapter, language)
    ]
