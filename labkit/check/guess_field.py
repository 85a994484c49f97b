"""The field that a guess is typed into. In a saved notebook and in the book it is a plain field of
the page, that holds what is typed and does nothing."""

from html import escape

import ipywidgets as w

from labkit import words
from labkit.check.guesses import Guess
from labkit.pictures import mime
from labkit.widgets.picture import Board, answer_anytime, in_notebook
from labkit.words import say


class Field(Board):
    """A question, a field, and a line that says what was kept."""

    def __init__(self, guess: Guess) -> None:
        self.language = words.language()
        self.guess = guess
        self.told = w.HTML()
        if guess.choices:
            self.control = w.RadioButtons(
                options=guess.choices,
                value=guess.value,
                description=say("your guess"),
                layout=w.Layout(width="auto"),
            )
        else:
            self.control = w.Text(
                value=guess.written(guess.value),
                placeholder=guess.range(),
                description=say("your guess"),
                continuous_update=False,
                style={"description_width": "auto"},
                layout=w.Layout(width="22em", max_width="100%"),
            )
        super().__init__([w.HTML(f"<b>{escape(guess.question)}</b>"), self.control, self.told])
        self.control.observe(self._take, "value")
        answer_anytime(self.control)
        self._tell(guess.value is not None)

    def scene(self) -> None:
        """It has no picture."""
        return None

    def _take(self, change: dict) -> None:
        """Keeps what was typed, or says what can be."""
        if not change["new"]:
            return
        try:
            self.guess.put(change["new"])
        except ValueError as error:
            self.told.value = f"<span role='status'>{escape(str(error))}</span>"
        else:
            self._tell(True)

    def _tell(self, kept: bool) -> None:
        mine = self.guess.written(self.guess.value)
        note = say("Kept: {mine}.", mine=mine)
        if not kept:
            note = say("{range}; Enter keeps it.", range=self.guess.range())
            if self.guess.choices:
                note = say("Choose one.")
        self.told.value = f"<span role='status'>{escape(note)}</span>"

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        data = w.VBox._repr_mimebundle_(self, **kwargs)
        data |= {"text/html": plain_field(self.guess), "text/plain": repr(self.guess)}
        if mime.book():
            data[mime.OFFLINE] = data["text/html"]
        return data


def plain_field(guess: Guess) -> str:
    """The field as HTML that needs neither kernel nor script."""
    style = "font:inherit;color:inherit;background:transparent;border:1px solid currentColor"
    question = escape(guess.question)
    if guess.choices:
        options = [_option(each, each == guess.value) for each in guess.choices]
        control = f'<select style="{style}"><option>…</option>{"".join(options)}</select>'
    else:
        shown = (
            f'placeholder="{escape(guess.range())}" value="{escape(guess.written(guess.value))}"'
        )
        control = f'<input type="text" style="{style}" {shown}>'
    told = say("your guess")
    return (
        f'<div class="labkit-guess"><div><b>{question}</b></div>'
        f"<label>{told} {control}</label></div>"
    )


def _option(name: str, chosen: bool) -> str:
    return f"<option{' selected' if chosen else ''}>{escape(name)}</option>"


_shown: dict[int, int] = {}
"""Guess's id -> the number of the cell that showed it last"""


def display_once(guess: Guess) -> None:
    """Shows the field in the notebook, once per cell; elsewhere nothing."""
    if not in_notebook():
        return
    from IPython import get_ipython
    from IPython.display import display

    cell = getattr(get_ipython(), "execution_count", 0)
    if _shown.get(id(guess)) != cell:
        _shown[id(guess)] = cell
        display(Field(guess))
