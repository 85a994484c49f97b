"""Laws of the boards that predict and run: each setting is predicted once, positions become
settings."""

import threading
from dataclasses import dataclass

from labkit.widgets import trial
from labkit.widgets.trial import Trial, selectors

TOSSES = {"shown": (0, 1, 2), "sides": (2, 6)}


def _drawn(timeout_s=20):
    """Waits until every page is drawn."""
    for thread in threading.enumerate():
        if thread.name == "labkit-draw":
            thread.join(timeout_s)


@dataclass(frozen=True, kw_only=True)
class Toss:
    """One position of the controls of ``Toy``."""

    shown: int
    sides: int


class Toy(Trial):
    """A board of two controls that says what it predicts twice on each page."""

    options = TOSSES
    setting_type = Toss

    def __init__(self):
        self.asked = []
        words = {name: name for name in self.options}
        controls = selectors(self.options, {"shown": 0, "sides": 2}, words, {})
        super().__init__("en", (), controls)

    def predict(self, setting):
        if setting.sides == 6 and setting.shown == 1:
            raise ValueError("no such toss")
        self.asked.append(self.predicts_by(setting))
        return 100 * setting.sides

    def page(self, setting):
        try:
            return f"{setting.shown}: {self.prediction(setting)}, {self.prediction(setting)}"
        except ValueError as error:
            return str(error)


class Shared(Toy):
    """The same, where all pages of a flipbook have one prediction."""

    def predicts_by(self, setting):
        return setting.sides


def test_a_board_predicts_each_page_once_and_remembers_the_pages_it_has_shown():
    board = Toy()
    assert [page.value for page in board.book.pages] == [
        "0: 200, 200",
        "1: 200, 200",
        "2: 200, 200",
    ]
    assert [(toss.shown, toss.sides) for toss in board.asked] == [(0, 2), (1, 2), (2, 2)]
    board.controls["sides"].value = 6
    _drawn()
    assert [page.value for page in board.book.pages] == [
        "0: 600, 600",
        "no such toss",
        "2: 600, 600",
    ]
    board.controls["sides"].value = 2
    _drawn()
    assert len(board.asked) == 5 and board.prediction(board.setting) == 200


def test_pages_that_differ_in_what_is_shown_alone_share_a_prediction():
    board = Shared()
    board.controls["sides"].value = 6
    _drawn()
    assert board.asked == [2, 6]


def test_a_board_forgets_predictions_beyond_a_flipbook(monkeypatch):
    monkeypatch.setattr(trial, "MAX_PAGES", 2)
    board = Toy()
    assert board.prediction(Toss(shown=0, sides=2)) == 200
    assert len(board.asked) == 4 and len(board._predictions) == 2
