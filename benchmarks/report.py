"""Runs benchmarks, and keeps their last results.

They lie in ``results/NAME.json``; the tables of README.md are written from them.

    python benchmarks/report.py [NAME ...]     all of them if none is named
    python benchmarks/report.py --tables       only rewrites README.md
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from labkit.machine import resources

HERE = Path(__file__).resolve().parent
NAMES = (
    "launch",
    "nodes",
    "bubble",
    "tracing",
    "collectives",
    "overlap",
    "memory",
    "zero",
    "tensor_parallel",
    "long_context",
    "experts",
    "mesh",
    "large_batch",
    "heterogeneous",
    "serving",
    "advice",
    "scaling",
    "checkpoint",
    "widget",
    "soak",
    "crowd",
    "room",
    "grading",
    "viewer",
    "pretend",
    "truth",
    "notebooks",
    "suite",
    "mutate",
    "planner",
    "planner_peers",
    "forecast",
)
HEAD = """# Benchmarks

Written by `benchmarks/report.py` from the files in `results/`: each benchmark's last result, the
machine, the date. Run one with `python benchmarks/NAME.py`; keep its result with
`python benchmarks/report.py NAME`; all: `make bench`.
"""


def tell(rows: Iterable[dict], as_json: bool) -> None:
    """For a benchmark that takes minutes: each row on stderr once it is there; all on stdout as
    JSON, if asked."""
    kept = []
    for row in rows:
        kept.append(row)
        print(
            "  ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True
        )
    if as_json:
        print(json.dumps(kept, indent=1))


def keep(name: str) -> None:
    """Runs one benchmark and writes its rows with the machine and the date; where it has none, for
    want of what it compares with, its last result stands."""
    print(f"{name} ...", flush=True)
    line = [sys.executable, HERE / f"{name}.py", "--json"]
    ended = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    rows = json.loads(ended.stdout)
    rows = rows if isinstance(rows, list) else [rows]
    if not rows:
        print(f"{name} found nothing to run with: its last result stands", flush=True)
        return
    result = {"date": time.strftime("%Y-%m-%d"), "machine": resources.summary(), "rows": rows}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / f"{name}.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )


def table(name: str) -> str:
    """One benchmark's section: what it asks, and its rows."""
    file = HERE / "results" / f"{name}.json"
    source = (HERE / f"{name}.py").read_text(encoding="utf-8")
    question = source.removeprefix('"""').partition('"""')[0]
    title, _, about = question.partition("\n")
    about = "\n".join(line for line in about.strip().splitlines() if not line.startswith("    "))
    if not file.exists():
        return f"## {name}\n\n{title}\n{about}\n\nNo result yet.\n"
    result = json.loads(file.read_text(encoding="utf-8"))
    columns = list(result["rows"][0])
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for row in result["rows"]:
        cells = [_cell(row.get(column)) for column in columns]
        lines.append(f"| {' | '.join(cells)} |")
    where = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    return "\n".join(
        [
            f"## {name}",
            "",
            f"**{title}**",
            "",
            about,
            "",
            f"{result['date']}: {where}",
            "",
            *lines,
            "",
        ]
    )


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def main(arguments: list[str]) -> None:
    """Runs what is named, then writes README.md."""
    for name in () if arguments == ["--tables"] else arguments or NAMES:
        keep(name)
    (HERE / "README.md").write_text("\n".join([HEAD, *map(table, NAMES)]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
