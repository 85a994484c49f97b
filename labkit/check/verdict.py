"""What becomes of an answer, in the learner's language."""

import html
from dataclasses import dataclass
from typing import NamedTuple

from labkit import words
from labkit.words import say, to_say


class _State(NamedTuple):
    """How a state of an answer is shown."""

    sign: str
    """one letter"""
    colour: str
    """of the edge beside it"""
    means: str
    """what it means"""


STATES = {
    to_say("not attempted"): _State("○", "#8a8f98", to_say("Replace the stub's line by your own.")),
    to_say("wrong"): _State("✗", "#d9534f", to_say("This case goes wrong:")),
    to_say("over budget"): _State("△", "#d98e04", to_say("Right, but it costs more than it must:")),
    to_say("passed"): _State("✓", "#2e9e6b", to_say("Right in all hidden cases.")),
}
"""The worst first"""


def spoken() -> str:
    """The chosen language: "en" or "zh"."""
    return words.language()


def titled(state: str) -> str:
    """A state's sign and name."""
    return f"{STATES[state].sign} {say(state)}"


class NotPassed(ValueError):
    """An answer has not passed where it had to; it says the verdict."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """What became of an answer."""

    state: str
    """"not attempted", "wrong", "over budget" (correct, but it costs more than it must) or
    "passed\""""
    message: str = ""
    """what the state means, if nothing else is said"""
    counterexample: str = ""
    """the first case in which the answer falls short, as text of fixed width"""
    hint: str = ""
    """a little more with each attempt"""
    mistake: str = ""
    """which one it is, in words that hold nothing of the answer: what ``mistakes`` makes of it"""
    graded: bool = True
    """whether an answer was judged; of a run that is looked at, the sign alone stands there"""

    def __post_init__(self) -> None:
        if not self.message:
            object.__setattr__(self, "message", say(STATES[self.state].means))

    def require(self) -> None:
        """Raises NotPassed, which says the verdict, unless the answer has passed: for a grader that
        takes a cell that raises as failed, as nbgrader does."""
        if self.state != "passed":
            raise NotPassed(repr(self))

    def __repr__(self) -> str:
        lines = [f"{self._head()}{say(': ') if self.graded else ' '}{self.message}"]
        if self.counterexample:
            lines.append(self.counterexample)
        if self.hint:
            lines.append(f"{say('hint')}{say(': ')}{self.hint}")
        return "\n".join(lines)

    def _head(self) -> str:
        """The sign, and the state's name where an answer was judged."""
        return titled(self.state) if self.graded else STATES[self.state].sign

    def _repr_html_(self) -> str:
        """The same for a notebook: words in the page's colour, which every theme can show; the hint
        folded away."""
        parts = [f"<b>{self._head()}</b> {html.escape(self.message)}"]
        if self.counterexample:
            case = html.escape(self.counterexample)
            parts.append(f"<pre style='background:none;color:inherit'>{case}</pre>")
        if self.hint:
            name = say("hint")
            parts.append(f"<details><summary>{name}</summary>{html.escape(self.hint)}</details>")
        edge = f"border-left:4px solid {STATES[self.state].colour};padding:.2em .8em"
        return f"<div style='{edge}'>{''.join(parts)}</div>"
