"""The page of a board: a room as HTML, in the language in use. Everything that a learner has
written is escaped, and the page may load and run nothing but its own style and its own script."""

import base64
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from labkit import words
from labkit.check import chapters
from labkit.check.shared import mistakes
from labkit.check.verdict import STATES
from labkit.classroom.room import (
    LATELY_S,
    STUCK_ATTEMPTS,
    Cell,
    Exercise,
    Left,
    Room,
    Stuck,
    Waiting,
)
from labkit.words import say, say_number, to_say

EVERY_S = 5
"""how often a browser that runs no script asks for the page anew"""
_MOST_STUCK = 6
"""exercises in which people are stuck, told one by one; the table below has all"""
_MOST_NAMES = 12
"""of those who are stuck in one exercise"""
_CLASSES = {"passed": "passed", "wrong": "wrong", "over budget": "over"}
_HERE = Path(__file__).parent


def page(room: Room, now_s: float, *, live: bool) -> str:
    """The whole page; a live one asks for itself again, by its script or without."""
    title = say("The classroom")
    language = "zh-Hans" if words.language() == "zh" else "en"
    policy = escape(content_policy())
    again = f"<noscript><meta http-equiv='refresh' content='{EVERY_S}'></noscript>" if live else ""
    script = f"<script>{_part('room.js')}</script>" if live else ""
    late = escape(say("Not up to date: the board's command has ended, or does not answer."))
    return (
        f"<!DOCTYPE html><html lang='{language}'><head><meta charset='utf-8'>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{policy}\">"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<meta name='referrer' content='no-referrer'>{again}<title>{escape(title)}</title>"
        f"<style>{_part('room.css')}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><span id='stamp' role='status' aria-live='off' "
        f"data-late='{late}'>{_stamp(now_s)}</span></header>"
        f"<main id='room'>{_main(room)}</main>{script}</body></html>"
    )


def content_policy() -> str:
    """What the page may load and run: its style and its script by their hashes, and itself."""
    style = _hash(_part("room.css"))
    script = _hash(_part("room.js"))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _part(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _stamp(now_s: float) -> str:
    return escape(say("as of {time}", time=time.strftime("%H:%M:%S", time.localtime(now_s))))


def _main(room: Room) -> str:
    if not room.rows:
        nobody = say(
            "Nobody is here yet. A learner comes in by "
            'lab.progress(share="a name of their choice").'
        )
        return f"<p>{escape(nobody)}</p>{_left(room)}"
    return _stuck(room.stuck) + _table(room) + _exercises(room.exercises) + _left(room)


# --- where people are stuck ---


def _stuck(stuck: Sequence[Stuck]) -> str:
    rows = [_stuck_in(each) for each in stuck[:_MOST_STUCK]]
    more = len(stuck) - _MOST_STUCK
    if more > 0:
        told = say_number(
            "and in one more exercise", "and in {more} more exercises", more, more=more
        )
        rows.append(f"<li class='soft'>{escape(told)}</li>")
    about = say(
        "After {attempts} attempts or more not passed, the last one within {hours} hours.",
        attempts=STUCK_ATTEMPTS,
        hours=LATELY_S // 3600,
    )
    found = f"<ul class='stuck'>{''.join(rows)}</ul>" if rows else f"<p>{say('Nobody.')}</p>"
    heading = escape(say("Where people are stuck"))
    return f"<h2>{heading}</h2><p class='soft'>{escape(about)}</p>{found}"


def _stuck_in(stuck: Stuck) -> str:
    names = [_waiting(each) for each in stuck.learners[:_MOST_NAMES]]
    more = len(stuck.learners) - _MOST_NAMES
    if more > 0:
        names.append(escape(say("and {more} more", more=more)))
    count = len(stuck.learners)
    people = say_number("one person", "{count} people", count, count=count)
    exercise = stuck.exercise
    label = escape(say("the commonest wrong answer") + say(": "))
    mistake = f"<div class='soft'>{label}{_mistake(exercise)}</div>" if exercise.mistake else ""
    return (
        f"<li><strong>{_whole(exercise.place)} · <code>{escape(exercise.name)}</code></strong>"
        f"{say(': ')}{escape(people)}<div>{''.join(names)}</div>{mistake}</li>"
    )


def _waiting(waiting: Waiting) -> str:
    about = say(
        "{attempts} attempts, for {time}", attempts=waiting.attempts, time=_time(waiting.since_s)
    )
    return (
        f"<span class='who'>{_name(waiting.name)} <span class='soft'>{escape(about)}</span></span> "
    )


def _time(seconds: int) -> str:
    if seconds < 3600:
        return say("{minutes} min", minutes=seconds // 60)
    if seconds < 2 * 86400:
        return say("{hours} h {minutes} min", hours=seconds // 3600, minutes=seconds // 60 % 60)
    return say("{days} days", days=seconds // 86400)


def _name(name: str) -> str:
    """A name, whose direction changes nothing around it."""
    return f"<bdi>{escape(name)}</bdi>"


# --- chapters by learners ---


def _table(room: Room) -> str:
    if not room.chapters:
        return "".join(f"<p>{_name(row.name)}</p>" for row in room.rows)
    heads = "".join(_head(place) for place in room.chapters)
    rows = []
    for row in room.rows:
        pairs = zip(room.chapters.values(), row.cells, strict=True)
        cells = "".join(_cell(names, cell) for names, cell in pairs)
        rows.append(f"<tr><th scope='row'>{_name(row.name)}</th>{cells}</tr>")
    count = len(room.rows)
    heading = escape(say_number("One learner", "{count} learners", count, count=count))
    return (
        f"<h2 id='learners'>{heading}</h2>{_key()}"
        "<div class='scroll room' role='region' tabindex='0' aria-labelledby='learners'><table>"
        f"<thead><tr><th scope='col'>{escape(say('learner'))}</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody>{_guesses(room)}</table></div>"
    )


def _head(place: str) -> str:
    return f"<th scope='col'>{escape(place[:2])}<small>{escape(_title(place))}</small></th>"


def _title(place: str) -> str:
    """A chapter as its page calls it, and its subject where it has several."""
    number, _, subject = place.partition(" ")
    title = chapters.titles().get(number, {}).get(words.language())
    if not title:
        return subject
    several = sum(each[:2] == number for each in chapters.exercises()) > 1
    return f"{title} · {subject}" if several else title


def _whole(place: str) -> str:
    """Number and title, "08 Pipeline parallelism"."""
    return escape(f"{place[:2]} {_title(place)}")


def _key() -> str:
    signs = [f"<span>{_sign(state)} {escape(say(state))}</span>" for state in reversed(STATES)]
    number = f"<span>{escape(say('number: attempts'))}</span>"
    return f"<p class='key soft signs'>{''.join(signs)}{number}</p>"


def _cell(names: Iterable[str], cell: Cell) -> str:
    """A sign for each exercise, and the attempts; in words for who does not see them."""
    signs = []
    for name, state in zip(names, cell.states, strict=True):
        signs.append(_sign(state, f"{name}{say(': ')}{say(state)}"))
    told = say(
        "{passed} of {exercises} passed",
        passed=cell.states.count("passed"),
        exercises=len(cell.states),
    )
    attempts = f" {cell.attempts}" if cell.attempts else ""
    spoken = f"<span class='spoken'>{escape(told)}</span>"
    return f"<td class='signs'>{spoken}{''.join(signs)}{attempts}</td>"


def _sign(state: str, title: str = "") -> str:
    named = f" title='{escape(title)}'" if title else ""
    colour = _CLASSES.get(state, "none")
    return f"<i class='{colour}' aria-hidden='true'{named}>{STATES[state].sign}</i>"


def _guesses(room: Room) -> str:
    """How good the guesses of the whole room were, below each chapter."""
    if not room.guesses:
        return ""
    cells = []
    last = ""
    for place in room.chapters:
        grades = room.guesses.get(place[:2], {}) if place[:2] != last else {}
        last = place[:2]
        cells.append(f"<td>{escape(_told(grades))}</td>")
    head = escape(say("guesses of the room"))
    return f"<tfoot><tr><th scope='row'>{head}</th>{''.join(cells)}</tr></tfoot>"


def _told(grades: Mapping[str, int]) -> str:
    named = {
        "close": say("close"),
        "near": say("not far"),
        "far": say("far"),
        "": say("to be scored"),
    }
    return say(", ").join(
        f"{grades[grade]} {name}" for grade, name in named.items() if grade in grades
    )


# --- exercises ---


def _exercises(exercises: Iterable[Exercise]) -> str:
    rows = "".join(map(_exercise, exercises))
    if not rows:
        return ""
    heads = (
        say("chapter"),
        say("exercise"),
        say("passed of those who tried"),
        say("attempts, median"),
        say("the commonest wrong answer"),
    )
    cells = "".join(f"<th scope='col'>{escape(head)}</th>" for head in heads)
    return (
        f"<h2 id='exercises'>{escape(say('Exercises'))}</h2>"
        "<div class='scroll' role='region' tabindex='0' aria-labelledby='exercises'><table>"
        f"<thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _exercise(exercise: Exercise) -> str:
    return (
        f"<tr><td class='place'>{_whole(exercise.place)}</td>"
        f"<th scope='row'><code>{escape(exercise.name)}</code></th>"
        f"<td class='number'>{exercise.passed} / {exercise.tried}</td>"
        f"<td class='number'>{exercise.attempts:g}</td>"
        f"<td class='mistake'>{_mistake(exercise)}</td></tr>"
    )


def _mistake(exercise: Exercise) -> str:
    """The commonest, in labkit's own words, and how many made it."""
    if not exercise.mistake:
        return ""
    told = say(
        "{count} of {tried}: {mistake}",
        count=exercise.mistaken,
        tried=exercise.tried,
        mistake=mistakes.worded(exercise.mistake),
    )
    return escape(told)


# --- what is not shown ---


def _left(room: Room) -> str:
    lines = [_left_of(each) for each in room.left]
    if room.crowded:
        lines.append(
            say(
                "The folder has more files than a board looks at: somebody may be missing here. "
                "Remove those of the accounts above that have most."
            )
        )
    if not lines:
        return ""
    rows = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<h2>{escape(say('Not shown'))}</h2>{rows}"


_ONE_MORE = to_say("one file more than counts (--per-account changes that)")
_MORE = to_say("{files} files more than count (--per-account changes that)")
_ONE_STRANGE = to_say("one file that is no progress")
_STRANGE = to_say("{files} files that are no progress")


def _left_of(left: Left) -> str:
    parts = []
    if left.many:
        parts.append(say_number(_ONE_MORE, _MORE, left.many, files=left.many))
    if left.strange:
        parts.append(say_number(_ONE_STRANGE, _STRANGE, left.strange, files=left.strange))
    return say("Account {account}: ", account=left.account) + say(", ").join(parts)
