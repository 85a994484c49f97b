"""Where do the minutes of ``make test`` go?

    python benchmarks/suite.py [--json]

Each step of it by itself, one after another, in the order of the Makefile; the environment is made
before. Seconds are on the wall; ``cpu`` are those of all processes that the step waited for, which
leaves out what ended by itself (Chromium's, some ranks'); ``passed`` is what pytest counted at the
ends of its runs in the step. What the steps print goes to stderr once each is over.

What was taken out, on 2026-11-22 and 23, by single files on the same machine while others worked on
its two cores; CPU seconds, ranks and Chromium included, unless said otherwise:

- A rank that imports a check imported matplotlib too: 0.39, now 0.06. The stubs of all exercises,
  41 tests: 32, now 15; the check cells of chapter 07: 11.5 s on a quiet machine, now 7.0 s beside
  a load of 4.
- Ranks imported the test file, and pytest with it: the reference of ``elastic`` took 10.8, with
  the file's functions sent by value 2.5. All of ``test_recovery_check`` takes 30, and 22 s.
- axe on the two themes of chapter 07: 16.9, with the alike words of code merged 3.4; chapter 05:
  11.3, now 2.6; chapter 08, most of it pictures: 6.3, now 5.4.
- Answers that hang for ever were waited for 10 s each, now 4 s: four cases.
- Two notebooks at once, not three, prove that none sees another's ranks: 14.3, now 9.5. The limit
  of a pretend device's memory is met by one rank, not two: 7.5, now 6.4 with a zygote's start.
- Threads of ranks and of notebooks that share cores wait asleep (OMP_WAIT_POLICY): a launch of one
  rank that computes 1.1, now 0.3.
- DeepSpeed, and the compiler that it imports, are imported ahead once a launch names it: 1.3 to 2.8
  a notebook. Chapters start fewer scripts: 07 took 76, now 47; 05 45, now 27; 03 53, now 37.
- On 2026-11-28: the right answers of exercises, which the chapters' own solutions are already; a
  hang and a swarm of processes under nbgrader; about half of what has many cases (rubbish, boards
  of the gallery, pages of books, experiments on pretend devices).
- On 2026-11-29: a grammar that newer versions of jsonschema parse in whatever imports nbformat
  (pytest, nbmake, JupyterLab): 2.5 s of each such process, now 0.3. Four tests at a time, not
  three. What tests walk they gather when they run, not in each worker that collects them.
- The same day: the hub, nbgrader's grading and a survey's run, half of the gallery's boards, and
  second instances of a law, which ``make test-all`` has.
- ``make test-all`` has what says a law once more (marked ``again``): the gallery, the pages and the
  guesses in Chinese, chapter 08 from top to bottom in JupyterLab, 40 pieces of rubbish for each
  function where ``make test`` has four, a crowd of notebooks.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from report import tell

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("test-quick", "test-notebooks", "test-parallel", "test-alone")
LIMIT_S = 3600.0


def rows() -> Iterator[dict]:
    """One per step: its name, seconds, the processor's too, and how many tests passed and
    failed."""
    subprocess.run(["make", "env"], cwd=ROOT, check=True, capture_output=True)
    for step in STEPS:
        began = time.monotonic()
        cpu_s = _cpu_s()
        done = subprocess.run(
            ["make", "--no-print-directory", step],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        print(done.stdout, done.stderr, file=sys.stderr, flush=True)
        counts = {word: 0 for word in ("passed", "failed")}
        for ending in re.findall(r"^=*(.* in [\d.]+s.*?)=*$", done.stdout, re.MULTILINE):
            for number, word in re.findall(r"(\d+) (passed|failed)", ending):
                counts[word] += int(number)
        spent = {"seconds": round(time.monotonic() - began), "cpu": round(_cpu_s() - cpu_s)}
        yield {"step": step, **spent, **counts}


def _cpu_s() -> float:
    """Seconds of the processor that finished children took so far."""
    used = os.times()
    return used.children_user + used.children_system


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON at the end")
    tell(rows(), parser.parse_args().json)


if __name__ == "__main__":
    main()
