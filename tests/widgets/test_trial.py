"""Laws of the boards that predict and run: each setting is predicted once, positions become
settings."""

import threading
from dataclasses import dataclass
from typing import ClassVar

from labkit.experiment import Experiment
from labkit.widgets import trial
from labkit.widgets.trial import Trial


def _drawn(timeout_s=20):
    """Waits until every page is drawn."""
    for thread in threading.enumerate():
        if thread.name == "labkit-draw":
            thread.join(timeout_s)


@dataclass(frozen=True, kw_only=True)
class Toss(Experiment):
    """An experiment of two fields that counts how often it is predicted."""

    asked: ClassVar[list] = []

    thrown: int = 0
    sides: int = 2

    def predict(self):
        if self.sides == 6 and self.thrown == 1:
            raise ValueError("no such toss")
        self.asked.append(self)
        return 100 * self.sides


class Toy(Trial):
    """A board of two controls that says what is predicted twice on each page."""

    options: ClassVar = {"thrown": (0, 1, 2), "sides": (2, 6)}
    words = (("thrown", "thrown", "已掷"), ("sides", "sides", "面数"))

    def __init__(self, step=None):
        Toss.asked.clear()
        super().__init__(step or Toss())

    def page(self, step, at):
        try:
            return f"{step.thrown}: {self.prediction(step)}, {self.prediction(step)}"
        except ValueError as error:
            return str(error)


class Viewed(Toy):
    """The same, where the first control only chooses what is looked at."""

    options: ClassVar = {"face": (0, 1, 2), "sides": (2, 6)}
    view = "face"
    words = (("face", "face", "面"), ("sides", "sides", "面数"))

    def page(self, step, at):
        return f"{at}: {self.prediction(step)}"


def test_a_board_predicts_each_page_once_and_remembers_the_pages_it_has_shown():
    board = Toy()
    assert [page.value for page in board.book.pages] == [
        "0: 200, 200",
        "1: 200, 200",
        "2: 200, 200",
    ]
    assert [(toss.thrown, toss.sides) for toss in Toss.asked] == [(0, 2), (1, 2), (2, 2)]
    board.controls["sides"].value = 6
    _drawn()
    assert [page.value for page in board.book.pages] == [
        "0: 600, 600",
        "no such toss",
        "2: 600, 600",
    ]
    board.controls["sides"].value = 2
    _drawn()
    assert len(Toss.asked) == 5 and board.prediction(board.step) == 200


def test_pages_of_one_experiment_share_a_prediction():
    board = Viewed()
    board.controls["sides"].value = 6
    _drawn()
    assert [toss.sides for toss in Toss.asked] == [2, 6]
    assert (board.at, board.step) == (0, Toss(sides=6))


def test_a_value_that_the_controls_do_not_offer_is_added_in_its_place():
    board = Toy(Toss(sides=4, thrown=1))
    assert [value for _, value in board.controls["sides"].options] == [2, 4, 6]
    assert board.step == Toss(sides=4, thrown=1)


def test_a_board_forgets_predictions_beyond_a_flipbook(monkeypatch):
    monkeypatch.setattr(trial, "MAX_PAGES", 2)
    board = Toy()
    assert board.prediction(Toss(thrown=0, sides=2)) == 200
    assert len(Toss.asked) == 4 and len(board._predictions) == 2
