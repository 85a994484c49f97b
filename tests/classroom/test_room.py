"""Laws of the room: who is where, what is stuck, and that no learner decides for the room."""

import json
from html.parser import HTMLParser

import pytest
from classroom.seats import NOW_S, seat, tried
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import words
from labkit.check import chapters
from labkit.check.shared import content, mistakes
from labkit.classroom import room_picture
from labkit.classroom.room import LATELY_S, MOST_GUESSES, STUCK_ATTEMPTS, Learner, Left, room

KIND = "TypeError"
LONG = "{case}: {place} is {ours!r}; the best order has {theirs!r}\n{fault}"
NAMES = [name for names in chapters.exercises().values() for name in names]


def learners(*seats: content.Shared, accounts: str = "") -> list[Learner]:
    """Each in an account of its own, unless all share one."""
    found = []
    for number, each in enumerate(seats):
        account = accounts or f"account{number}"
        found.append(Learner(key=f"{number:03}", account=account, shared=each))
    return found


def seen(*seats: content.Shared, **options: object):
    return room(learners(*seats), NOW_S, **options)


def test_chapters_are_those_that_somebody_has_begun():
    found = seen(seat("Ada", better_order=tried("passed")), seat("Bo"))
    assert list(found.chapters) == ["08 pipeline"]
    ada, bo = found.rows
    place = found.chapters["08 pipeline"].index("better_order")
    assert (ada.name, ada.cells[0].states[place], ada.cells[0].attempts) == ("Ada", "passed", 1)
    assert (bo.name, set(bo.cells[0].states), bo.cells[0].attempts) == ("Bo", {"not attempted"}, 0)


def test_an_exercise_counts_learners():
    found = seen(
        seat("Ada", better_order=tried("passed", 1)),
        seat("Bo", better_order=tried("wrong", 3, mistakes={"NameError": 1})),
        seat("Cy", better_order=tried("over budget", 9, mistakes={"NameError": 2})),
    )
    (exercise,) = found.exercises
    assert (exercise.passed, exercise.tried, exercise.attempts) == (1, 3, 3)
    assert (exercise.mistake, exercise.mistaken) == ("NameError", 2)


def test_one_learner_does_not_decide_which_mistake_is_common():
    loud = seat("Loud", better_order=tried(mistakes={"TypeError": content.MOST_ATTEMPTS}))
    quiet = [seat(each, better_order=tried(mistakes={"NameError": 1})) for each in ("Ada", "Bo")]
    assert seen(loud, *quiet).exercises[0].mistake == "NameError"
    many = seat("Many", guesses={"08": {"far": content.MOST_ATTEMPTS}}, better_order=tried())
    assert seen(many).guesses == {"08": {"far": MOST_GUESSES}}


def test_stuck_is_who_tried_often_and_lately_and_has_not_passed():
    often = STUCK_ATTEMPTS
    late_s = NOW_S - LATELY_S - 1
    found = seen(
        seat("Ada", better_order=tried("wrong", often)),
        seat("Bo", better_order=tried("over budget", often + 4)),
        seat("Cy", better_order=tried("wrong", often - 1)),
        seat("Di", better_order=tried("passed", often)),
        seat("Ed", better_order=tried("wrong", often, last_s=late_s)),
        seat("Flo", real_pipeline=tried("wrong", often)),
    )
    assert [each.exercise.name for each in found.stuck] == ["better_order", "real_pipeline"]
    assert [each.name for each in found.stuck[0].learners] == ["Bo", "Ada"]
    assert found.stuck[0].learners[0].since_s == 600


def test_a_time_to_come_is_now():
    ahead = tried("wrong", 5, began_s=NOW_S + 10**8, last_s=NOW_S + 10**9)
    (stuck,) = seen(seat("Ada", better_order=ahead)).stuck
    assert stuck.learners[0].since_s == 0


def test_two_of_one_name_are_told_apart():
    two = seat("Ada"), seat("ada"), seat("Bo")
    names = [row.name for row in room(learners(*two), NOW_S).rows]
    assert names == ["Ada (account0)", "ada (account1)", "Bo"]
    names = [row.name for row in room(learners(*two, accounts="all"), NOW_S).rows]
    assert names == ["Ada (1)", "ada (2)", "Bo"]


def test_nobody_is_a_room_too():
    assert "Nobody is here yet" in room_picture.page(seen(), NOW_S, live=True)
    assert "Ada" in room_picture.page(seen(seat("Ada")), NOW_S, live=True)


@pytest.mark.parametrize(
    ("language", "titles"),
    [
        ("en", ("Start here", "Unequal machines, and serving · serving")),
        ("zh", ("从这里开始", "快慢不一的机器，以及推理服务 · serving")),
    ],
)
def test_a_chapter_is_called_as_its_page_calls_it(language, titles):
    found = seen(seat("Ada", waits=tried("wrong", 3), cache_budget=tried()))
    words.use(language)
    try:
        page = room_picture.page(found, NOW_S, live=False)
    finally:
        words.use("en")
    for number, title in zip(("00", "16"), titles, strict=True):
        assert f"{number}<small>{title}</small>" in page
        assert f"<td class='place'>{number} {title}</td>" in page
    assert f"<li><strong>00 {titles[0]} · <code>waits</code>" in page
    assert "debugging" not in page


class Elements(HTMLParser):
    """The elements of a page, their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def elements(page: str) -> Elements:
    found = Elements()
    found.feed(page)
    return found


counts = st.integers(1, content.MOST_ATTEMPTS)
times = st.integers(0, 4 * 10**9)
exercise_st = st.builds(
    content.Tried,
    state=st.sampled_from(content.STATES),
    attempts=counts,
    began_s=times,
    last_s=times,
    mistakes=st.dictionaries(st.sampled_from(["NameError", KIND, LONG]), counts, max_size=3),
)
seat_st = st.builds(
    content.Shared,
    name=st.text(max_size=content.MOST_LETTERS),
    exercises=st.dictionaries(st.sampled_from(NAMES), exercise_st, max_size=4),
    guesses=st.dictionaries(
        st.sampled_from(["00", "08"]),
        st.dictionaries(st.sampled_from(content.GRADES), counts, max_size=4),
        max_size=2,
    ),
)
BODY = {"main", "header", "h1", "h2", "p", "span", "ul", "li", "strong", "code", "div", "bdi"}
BODY |= {"table", "thead", "tbody", "tfoot", "tr", "th", "td", "small", "i"}
HEAD = {"html", "head", "meta", "title", "style", "script", "body", "noscript"}
ATTRIBUTES = {"id", "class", "role", "tabindex", "scope", "title", "aria-labelledby"}
ATTRIBUTES |= {"aria-hidden", "aria-live", "data-late"}


@given(st.lists(seat_st, max_size=3), st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_no_name_makes_an_element_or_an_attribute(seats, account):
    left = [Left(account=account, strange=1, many=0)]
    page = room_picture.page(seen(*seats, left=left), NOW_S, live=True)
    found = elements(page)
    for tag, attributes in found.found:
        assert tag in BODY | HEAD
        assert tag in HEAD or attributes.keys() <= ATTRIBUTES
    assert [tag for tag, _ in found.found].count("script") == 1
    for each in seats:
        if each.name.isprintable():
            assert each.name in found.text


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
KEYS = st.sampled_from(["version", "name", "exercises", "guesses", "state", "attempts", "mistakes"])
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_any_json_is_read_or_refused(value):
    for each in (value, {"version": 1, "name": "Ada", "exercises": value, "guesses": {}}):
        refused_or_whole(json.dumps(each).encode())


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(value):
    refused_or_whole(value)


def refused_or_whole(text: bytes) -> None:
    """It raises ValueError and nothing else, or gives what could have been written."""
    try:
        found = content.read(text)
    except ValueError:
        return
    assert content.read(content.written(found)) == found


@given(seat_st, st.sampled_from(["attempts", "began_s", "last_s", "state", "mistakes"]), JSON)
@settings(max_examples=150, deadline=None)
def test_a_changed_field_is_read_or_refused(shared, field, value):
    made = json.loads(content.written(shared))
    for entry in made["exercises"].values():
        entry[field] = value
    refused_or_whole(json.dumps(made).encode())


@given(seat_st)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(shared):
    try:
        content.checked_name(shared.name)
    except ValueError:
        with pytest.raises(ValueError):
            content.read(content.written(shared))
        return
    found = content.read(content.written(shared))
    assert (found.exercises, found.guesses) == (shared.exercises, shared.guesses)


@pytest.mark.parametrize("language", words.LANGUAGES)
def test_the_page_says_it_all(language):
    words.use(language)
    try:
        seats = (
            seat("Ada", {"08": {"close": 2}}, better_order=tried("passed", 2)),
            seat("Bo", better_order=tried("wrong", 5, mistakes={LONG: 4})),
        )
        left = [Left(account="eve", strange=2, many=1997)]
        text = elements(
            room_picture.page(seen(*seats, left=left, crowded=True), NOW_S, live=False)
        ).text
        assert mistakes.worded(LONG) in text
    finally:
        words.use("en")
    expected = {
        "en": ["Bo", "1 / 2", "5 attempts, for 10 min", "2 close", "eve: 1997 files", "more files"],
        "zh": ["Bo", "1 / 2", "试了 5 次，已有 10 分钟", "2 很接近", "账户 eve：", "太多"],
    }
    for each in expected[language]:
        assert each in text
