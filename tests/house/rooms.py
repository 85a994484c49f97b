"""The map of the house in CONTRIBUTING.md: its rooms, floor by floor, and which rooms each imports.

python tests/house/rooms.py          write it
python tests/house/rooms.py --check  write nothing; exit 1 if it is not what the imports say
"""

import re
import sys
from pathlib import Path

import house

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
MARKED = re.compile(r"(?<=<!-- map -->\n).*?(?=<!-- /map -->)", re.DOTALL)
NOUNS = "nouns"
"""The room of what lies in no folder."""

Graph = dict[str, set[str]]


def room(name: str) -> str:
    """The room that a module lies in: its top folder."""
    return name.split(".")[0] if "." in name else NOUNS


def graph(tree: house.Tree) -> Graph:
    """Each room, and the rooms that its modules import, inside functions too. What only passes
    names on (``__init__``, ``__main__``) is left out."""
    found: Graph = {}
    for name in tree:
        if house.role(name) in ("front", "hand"):
            continue
        others = house.imports(name, tree, at_load=False)
        known = {room(other) for other in others if house.role(other) not in ("front", "hand")}
        found.setdefault(room(name), set()).update(known - {room(name)})
    return found


def floors(rooms: Graph) -> dict[str, int]:
    """The floor of each subject: 1 where it imports no other, else one above the highest that it
    imports."""
    heights: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in heights:
            below = [height(other) for other in rooms[name] if other in rooms]
            heights[name] = 1 + max(below, default=0)
        return heights[name]

    for name in rooms:
        height(name)
    return heights


def drawn(tree: house.Tree) -> str:
    """The map as text: subjects from the highest floor down, then the stage, then the nouns."""
    rooms = graph(tree)
    ground = (NOUNS, *house.STAGE)
    subjects = {name: known - set(ground) for name, known in rooms.items() if name not in ground}
    heights = floors(subjects)
    width = max(map(len, rooms))
    lines = []
    for floor in range(max(heights.values(), default=1), 1, -1):
        for name in sorted(name for name in subjects if heights[name] == floor):
            lines.append(_row(floor, name, sorted(subjects[name]), width))
        lines.append("")
    alone = sorted(name for name in subjects if heights[name] == 1)
    lines += [*_wrapped(f"floor 1   {', '.join(alone)}"), ""]
    for name in reversed(house.STAGE):
        known = [other for other in ground if other in rooms.get(name, ())]
        lines.append(_row("stage", name, known, width))
    lines += ["", _row(NOUNS, "", [each for each in ground if each in rooms.get(NOUNS, ())], width)]
    return "\n".join(["```", *(line.rstrip() for line in lines), "```", ""])


def _row(floor: int | str, name: str, known: list[str], width: int) -> str:
    """One room, an arrow, and what it imports."""
    label = f"floor {floor}" if isinstance(floor, int) else floor
    arrow = f"-> {', '.join(known)}" if known else ""
    return f"{label:<10}{name:<{width}} {arrow}"


def _wrapped(text: str) -> list[str]:
    """A long line, broken after a comma, indented below the first word of its second column."""
    lines = []
    while len(text) > 100:
        end = text.rindex(", ", 0, 100) + 1
        lines.append(text[:end])
        text = " " * 10 + text[end:].lstrip()
    return [*lines, text]


def written(text: str, tree: house.Tree) -> str:
    """The page with its map as the imports are now."""
    if len(MARKED.findall(text)) != 1:
        raise ValueError("the page needs the lines <!-- map --> and <!-- /map -->, once each")
    return MARKED.sub(lambda _: drawn(tree), text)


def main(arguments: list[str], page: Path = PAGE) -> int:
    """The command line. Returns the exit status."""
    before = page.read_text(encoding="utf-8")
    after = written(before, house.sources(ROOT / "labkit"))
    if "--check" in arguments:
        return int(before != after)
    page.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
