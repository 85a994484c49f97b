"""Do the tests notice? Breaks one rule of the package after another, and runs its room's tests.

    python benchmarks/mutate.py [--only WORD ...] [--json]     (make mutate)

The rules stand in ``mutations.toml``: a line of the package, and what is written instead: a sign, a
bound, a rank, a unit, a label or an argument. Each is broken by itself in a copy of the package,
and pytest stops at the first test that fails there: the broken rule is *noticed*. A rule that no
test of its room notices is a *survivor*, and so is one whose tests take longer than 300 s.
``--only`` takes the rules whose file holds one of the words. The last line is the result.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RULES = HERE / "mutations.toml"
COPIED = ("labkit", "tests", "data", "notebooks", "benchmarks", "pyproject.toml", "Makefile")
KINDS = ("sign", "bound", "rank", "unit", "label", "argument")
MOST_S = 300
MARKS = "not alone and not again and not browser and not notebooks"


@dataclass(frozen=True)
class Rule:
    """One rule and how it is broken.

    file: in ``labkit/``. kind: one of KINDS. was: text that stands exactly once in that file.
    becomes: what is written instead. tests: folders or files in ``tests/``.
    """

    file: str
    kind: str
    was: str
    becomes: str
    tests: tuple[str, ...] = ()

    @property
    def rooms(self) -> tuple[str, ...]:
        """Whose tests are run, as paths from the root."""
        return tuple(f"tests/{room}" for room in self.tests or (Path(self.file).parts[0],))


@dataclass(frozen=True)
class Broken:
    """What came of a broken rule. by: the test that noticed, or "". took_s: of the tests."""

    file: str
    kind: str
    was: str
    by: str
    took_s: float


def rules() -> list[Rule]:
    """All rules, as they stand in the file."""
    found = tomllib.loads(RULES.read_text(encoding="utf-8"))["rule"]
    return [Rule(**{**each, "tests": tuple(each.get("tests", ()))}) for each in found]


def faults(rule: Rule) -> Iterator[str]:
    """What is wrong with a rule's entry: a line that is gone, a kind or a room that is not."""
    text = (ROOT / "labkit" / rule.file).read_text(encoding="utf-8")
    if text.count(rule.was) != 1:
        yield f"{rule.file} has {text.count(rule.was)} times {rule.was!r}; it must stand there once"
    if rule.kind not in KINDS:
        yield f"{rule.file}: a kind is one of {KINDS}, and not {rule.kind!r}"
    for room in rule.rooms:
        if not (ROOT / room).exists():
            yield f"{rule.file}: there is no {room}"


def tried(rule: Rule, copy: Path) -> Broken:
    """Break the rule in the copy, run its tests, and mend it again."""
    file = copy / "labkit" / rule.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(rule.was, rule.becomes), encoding="utf-8")
    began = time.monotonic()
    try:
        by = _noticed_by(rule, copy)
    finally:
        file.write_text(whole, encoding="utf-8")
    return Broken(rule.file, rule.kind, rule.was, by, round(time.monotonic() - began, 1))


def _noticed_by(rule: Rule, copy: Path) -> str:
    """The first test that fails, or "" if all pass; one of a broken import is named by its file."""
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", MARKS]
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*line, *rule.rooms],
            cwd=copy,
            env=environ,
            capture_output=True,
            text=True,
            timeout=MOST_S,
        )
    except subprocess.TimeoutExpired:
        return ""
    failed = [each for each in done.stdout.splitlines() if each.startswith(("FAILED", "ERROR"))]
    if done.returncode in (0, 1) and bool(failed) == bool(done.returncode):
        return failed[0].split(" - ")[0].partition(" ")[2] if failed else ""
    raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")


def copied(folder: Path) -> Path:
    """The tree in a folder of its own, where rules can be broken and nobody else reads them."""
    left_out = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=left_out)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def _is_asked(rule: Rule, parts: list[str]) -> bool:
    """Whether the rule's file holds one of the words."""
    return any(part in rule.file for part in parts)


def main() -> None:
    """Break what is asked for; say of each who noticed."""
    parser = argparse.ArgumentParser(prog="python benchmarks/mutate.py")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    chosen = [rule for rule in rules() if _is_asked(rule, asked.only)]
    if wrong := [fault for rule in chosen for fault in faults(rule)]:
        sys.exit("\n".join(wrong))
    found = []
    with tempfile.TemporaryDirectory(prefix="labkit-mutate-") as folder:
        copy = copied(Path(folder))
        for number, rule in enumerate(chosen, 1):
            found.append(tried(rule, copy))
            said = found[-1].by or "SURVIVES"
            if not asked.json:
                print(f"{number}/{len(chosen)} {rule.file} ({rule.kind}): {said}", flush=True)
    rows = by_room(found)
    print(json.dumps(rows if asked.json else rows[0]))


def by_room(found: list[Broken]) -> list[dict]:
    """A row for all rules, then one for each room of the package."""
    rooms: dict[str, list[Broken]] = {"all": found}
    for each in found:
        rooms.setdefault(each.file.partition("/")[0], []).append(each)
    return [_row(room, those) for room, those in rooms.items()]


def _row(room: str, those: list[Broken]) -> dict:
    survivors = [f"{each.file}: {each.was}" for each in those if not each.by]
    return {
        "room": room,
        "broken": len(those),
        "noticed": len(those) - len(survivors),
        "survivors": "; ".join(survivors) or None,
        "took_s": round(sum(each.took_s for each in those)),
    }


if __name__ == "__main__":
    main()
