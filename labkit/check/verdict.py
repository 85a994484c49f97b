"""What becomes of an answer, in the learner's language."""

import html
from dataclasses import dataclass
from typing import NamedTuple

from labkit import words


class _State(NamedTuple):
    """How a state of an answer is shown."""

    sign: str
    """one letter"""
    colour: str
    """of the edge beside it"""
    chinese: str
    """its name in Chinese; in English it is the state itself"""
    means: tuple[str, str]
    """what it means, in English and Chinese"""


STATES = {
    "not attempted": _State(
        "○",
        "#8a8f98",
        "未作答",
        ("Replace the stub's line by your own.", "请把占位的那一行换成你的。"),
    ),
    "wrong": _State("✗", "#d9534f", "不对", ("This case goes wrong:", "下面的情形不对：")),
    "over budget": _State(
        "△",
        "#d98e04",
        "超出预算",
        ("Right, but it costs more than it must:", "正确，但代价超出必要："),
    ),
    "passed": _State(
        "✓",
        "#2e9e6b",
        "通过",
        ("Right, and within budget, in all hidden cases.", "所有情形都正确且不超预算。"),
    ),
}
"""The worst first"""


def language(code: str) -> None:
    """Verdicts and hints speak English ("en") or Chinese ("zh") from now on. Raises ValueError for
    another code."""
    words.use(code)


def spoken() -> str:
    """The chosen language: "en" or "zh"."""
    return words.language()


def say(en: str, zh: str) -> str:
    """The one of two texts that is in the chosen language."""
    return zh if words.language() == "zh" else en


def titled(state: str) -> str:
    """A state's sign and name."""
    return f"{STATES[state].sign} {say(state, STATES[state].chinese)}"


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

    def __post_init__(self) -> None:
        if not self.message:
            object.__setattr__(self, "message", say(*STATES[self.state].means))

    def __repr__(self) -> str:
        lines = [f"{titled(self.state)}: {self.message}"]
        if self.counterexample:
            lines.append(self.counterexample)
        if self.hint:
            lines.append(f"{say('hint', '提示')}: {self.hint}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same for a notebook: words in the page's colour, which every theme can show; the hint
        folded away."""
        parts = [f"<b>{titled(self.state)}</b> {html.escape(self.message)}"]
        if self.counterexample:
            case = html.escape(self.counterexample)
            parts.append(f"<pre style='background:none;color:inherit'>{case}</pre>")
        if self.hint:
            name = say("hint", "提示")
            parts.append(f"<details><summary>{name}</summary>{html.escape(self.hint)}</details>")
        edge = f"border-left:4px solid {STATES[self.state].colour};padding:.2em .8em"
        return f"<div style='{edge}'>{''.join(parts)}</div>"
