"""Where do the minutes of ``make test`` go?

    python benchmarks/suite.py [--json]

Each step of it by itself, one after another, in the order of the Makefile; the environment is made
before. Seconds are on the wall; ``passed`` is what pytest counted at the end of the step.
"""

import argparse
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from report import tell

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("test-quick", "test-notebooks", "test-parallel", "test-alone")
LIMIT_S = 3600.0


def rows() -> Iterator[dict]:
    """One per step: its name, seconds, and how many tests passed and failed."""
    subprocess.run(["make", "env"], cwd=ROOT, check=True, capture_output=True)
    for step in STEPS:
        began = time.monotonic()
        done = subprocess.run(
            ["make", step], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
        )
        counts = {word: 0 for word in ("passed", "failed")}
        for number, word in re.findall(r"(\d+) (passed|failed)", done.stdout[-300:]):
            counts[word] = int(number)
        yield {"step": step, "seconds": round(time.monotonic() - began), **counts}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON at the end")
    tell(rows(), parser.parse_args().json)


if __name__ == "__main__":
    main()
