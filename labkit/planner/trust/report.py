"""A validation as text, and as a page of Markdown."""

from labkit.planner.trust.validate import Validation
from labkit.words import say

TOLD = ("median", "p90", "naive_median", "naive_p90", "memory_median", "memory_p90")
"""Shares."""


def _numbers(found: Validation) -> list[tuple[str, str]]:
    """(what, number) of all but the rows."""
    told = found.to_json()
    rows = [(name, f"{told[name]:.1%}") for name in TOLD if told[name] is not None]
    if found.spearman is not None:
        rows.append(("spearman", f"{found.spearman:.3f}"))
        rows.append(("regret", f"{found.regret:.1%}"))
    for name, value in found.constants.items():
        rows.append((name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    return rows


def report(found: Validation) -> str:
    """Lines of text: a row for each quantity of each published row, then the numbers."""
    wide = max(len(each.id) for each in found.rows)
    lines = []
    for each in found.rows:
        seen = say("fitted") if each.fitted else ""
        lines.append(
            f"{each.id:<{wide}}  {each.quantity:<11}{each.published:>10.4g}{each.predicted:>10.4g}"
            f"{each.error:>8.1%}  {seen}".rstrip()
        )
    lines.append("")
    lines += [f"{name}: {number}" for name, number in _numbers(found)]
    lines += [say("{row} is refused: {why}", row=name, why=why) for name, why in found.refused]
    return "\n".join(lines)


def markdown(found: Validation) -> str:
    """The same as a page: the numbers first, then the rows, the largest errors first."""
    lines = ["| | |", "| --- | --- |"]
    lines += [f"| {name} | {number} |" for name, number in _numbers(found)]
    lines += ["", "| row | quantity | published | predicted | error | |"]
    lines.append("| --- | --- | ---: | ---: | ---: | --- |")
    for each in sorted(found.rows, key=lambda each: -abs(each.error)):
        seen = say("fitted") if each.fitted else ""
        lines.append(
            f"| {each.id} | {each.quantity} | {each.published:.4g} | {each.predicted:.4g} | "
            f"{each.error:.1%} | {seen} |"
        )
    lines += [f"- {name}: {why}" for name, why in found.refused]
    return "\n".join(lines)
