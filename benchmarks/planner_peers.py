"""What do other planners say of the published runs that ours is judged by?

    python benchmarks/planner_peers.py [--json] [--python PYTHON] [--seeds 10]

PYTHON, or ``$PEERS_PYTHON``, is one of an environment of its own that holds llm-analysis 0.2.2
(``pip install llm-analysis==0.2.2``; it asks for transformers 4). Without it nothing is asked and
the last result stands. The same rows of data/published/ as in ``planner``, the same quarters by the
same seeds, errors in the same quantity; a cell is the median over the seeds. ``skill``: how many
times the median goes into that of one constant TFLOP/s.

``planner`` is ours; two of the stacks that it may begin at were fitted on these very tables, so
their rows are not new to it. ``planner, stacks from elsewhere`` leaves those two out. Both move one
constant for every two rows of the quarter, four at most. ``llm-analysis`` is told layers, hidden
size, heads, vocabulary, sequence, tp, pp, dp, whether sequences are parallel, the ZeRO stage,
microbatch, batch, recomputation, plain or flash attention, its own description of the GPU, and an
efficiency: the share of the peak at which the middle row of the quarter comes out right. It has no
word for chunks of a rank (vpp) and nodes, which are left unsaid; nor for context parallelism,
schedules other than 1F1B, an MLP that is not 4 h wide, and half-way recomputation: such rows would
be skipped and named; here are none. Its step is the FLOPs over that share of the peak: no bubble,
no message, so layouts of one model that recompute the same are alike to it (a table of these alone
has ``spearman`` 0, and the ``regret`` of its mean layout). It uses the ZeRO stage for memory alone;
of memory these rows say nothing.

Calculon (Isaev et al. 2023) was not asked: it has no release on PyPI, where the name belongs to a
library of producers and consumers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from planner import sources
from report import tell

from labkit import planner
from labkit.planner.plan.stacks import STACKS, Stack
from labkit.planner.trust import fit as fitting
from labkit.planner.trust import judge, validate
from labkit.planner.trust.rows import Row

HERE = Path(__file__).resolve().parent
PEER_FILE = HERE / "peer_llm_analysis.py"
FITTED_HERE = ("megatron-a100", "zero3-2021-a100")
"""Stacks whose constants come from tables of data/published/."""
SHARE = 0.25
DIGITS = 9
"""Of a peer's seconds; the others are rounding, and no order."""
Predict = Callable[[Row], float]
"""Microseconds of a row's step."""
Who = Callable[[Sequence[Row]], Predict]
"""From the rows it may see to what it predicts."""


def question(row: Row, efficiency: float) -> dict:
    """What the peer is told of a row."""
    layout = row.layout
    return {
        "id": row.id,
        "gpu": row.cluster.gpu.name,
        "layers": row.shape.layers,
        "hidden": row.shape.hidden,
        "heads": row.shape.heads,
        "kv_heads": row.shape.num_kv_heads,
        "vocab": row.shape.vocab,
        "seq": layout.seq,
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "sp": layout.sp,
        "zero": layout.zero,
        "mbs": layout.mbs,
        "gbs": layout.gbs,
        "recompute": layout.recompute,
        "flash": layout.flash,
        "efficiency": efficiency,
    }


def untold(row: Row) -> str:
    """Why the peer has no word for a row; empty where it has."""
    if row.layout.cp > 1:
        return "context parallelism"
    if row.layout.schedule != "1f1b":
        return f"the schedule {row.layout.schedule}"
    if row.shape.glu or row.shape.ffn_width != 4 * row.shape.hidden:
        return "an MLP that is not 4 h wide"
    if row.shape.experts > 1 or row.layout.precision not in ("fp16", "bf16"):
        return "experts, or another precision than 16 bit"
    return "" if row.layout.recompute in ("none", "selective", "full") else row.layout.recompute


def ask(python: str, rows: Sequence[Row], efficiency: float) -> list[float | None]:
    """Its seconds for each row."""
    told = json.dumps([question(row, efficiency) for row in rows])
    line = [python, str(PEER_FILE)]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        line, input=told, stdout=subprocess.PIPE, text=True, check=True, timeout=300, env=bare
    )
    return json.loads(ended.stdout)


def answers(python: str, rows: Sequence[Row]) -> tuple[dict[str, float], list[str]]:
    """(row -> seconds at the whole peak, what was skipped and why)."""
    kept = [row for row in rows if not untold(row)]
    skipped = [f"{row.id}: {untold(row)}" for row in rows if untold(row)]
    whole = ask(python, kept, 1.0)
    half = ask(python, kept, 0.5)
    found = {}
    for row, seconds, twice in zip(kept, whole, half, strict=True):
        if seconds is None:
            skipped.append(f"{row.id}: it raises")
            continue
        if twice is None or abs(twice / seconds - 2) > 1e-9:
            raise RuntimeError(f"{row.id}: its seconds do not go as one over its efficiency")
        found[row.id] = float(f"{seconds:.{DIGITS}g}")
    return found, skipped


# --- who predicts ---


def ours(begun: Sequence[Stack]) -> Who:
    """Our planner, its constants begun at some stacks."""

    def see(rows: Sequence[Row]) -> Predict:
        found = planner.fit(rows, begun)

        def predict(row: Row) -> float:
            stack = found.stacks.get(fitting.engine(row)) or _usual(row, begun)
            return fitting.predicted_us(row, stack)

        return predict

    return see


def _usual(row: Row, begun: Sequence[Stack]) -> Stack:
    """The stack of an engine that no seen row has."""
    shipped = fitting.nearest(row.cluster.gpu.name, row.layout.zero)
    return shipped if shipped in begun else STACKS["deepspeed-a100"]


def peer(seconds: dict[str, float]) -> Who:
    """llm-analysis, its efficiency from the middle of the seen rows."""

    def see(rows: Sequence[Row]) -> Predict:
        shares = [1e6 * seconds[row.id] / row.step_us() for row in rows]
        efficiency = statistics.median(shares)
        return lambda row: 1e6 * seconds[row.id] / efficiency

    return see


def constant(rows: Sequence[Row]) -> Predict:
    """One TFLOP/s for all."""
    tflops = judge.naive_tflops(rows)
    return lambda row: row.step_flops() / tflops / 1e6 / row.cluster.num_gpus


def judged(predict: Predict, unseen: Sequence[Row]) -> dict:
    """Errors and order of rows that were not seen."""
    errors = {}
    speeds = []
    for row in unseen:
        step_us = predict(row)
        quantity = row.quantity()
        errors[row.id] = row.read(quantity, step_us) / row.told[quantity] - 1
        speeds.append(float(f"{row.tokens / step_us / row.cluster.num_gpus:.{DIGITS}g}"))
    spearman, regret = judge.order(unseen, speeds)
    sizes = list(errors.values())
    return {
        "median": judge.median(sizes),
        "p90": judge.p90(sizes),
        "spearman": spearman,
        "regret": regret,
        "errors": errors,
    }


# --- the table ---


def row(part: str, what: str, who: str, found: Sequence[dict], naive: Sequence[dict]) -> dict:
    """One line: the median over runs."""
    line = {"part": part, "what": what, "who": who, "rows": len(found[0]["errors"])}
    for name in ("median", "p90", "spearman", "regret"):
        there = [each[name] for each in found if each[name] is not None]
        line[name] = round(statistics.median(there), 4) if there else None
    base = statistics.median([each["median"] for each in naive])
    line["skill"] = round(base / statistics.median([each["median"] for each in found]), 2)
    errors: dict[str, list[float]] = {}
    for each in found:
        for name, error in each["errors"].items():
            errors.setdefault(name, []).append(error)
    middle = {name: statistics.median(values) for name, values in errors.items()}
    worst = max(middle, key=lambda name: abs(middle[name]))
    line["furthest"] = f"{worst} {middle[worst]:+.0%}"
    return line


def compared(python: str, seeds: int) -> Iterator[dict]:
    """Every source by everyone: fitted on a quarter, and left out."""
    read = sources()
    everything = [each for kept in read.values() for each in kept if each.step_us()]
    seconds, skipped = answers(python, everything)
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    everything = [each for each in everything if each.id in seconds]
    files = {}
    for name, kept in read.items():
        files[name] = [each for each in kept if each.id in seconds]
    elsewhere = [stack for name, stack in STACKS.items() if name not in FITTED_HERE]
    everyone: dict[str, Who] = {
        "planner": ours(list(STACKS.values())),
        "planner, stacks from elsewhere": ours(elsewhere),
        "llm-analysis 0.2.2": peer(seconds),
        "one constant TFLOP/s": constant,
    }
    for what, rows in (*files.items(), ("all together", everything)):
        yield from _told("fit on a quarter", what, everyone, _quarters(rows, seeds))
    for what, rows in files.items():
        others = [each for each in everything if each not in rows]
        yield from _told("left out", what, everyone, [(others, rows)])


def _quarters(rows: Sequence[Row], seeds: int) -> list[tuple[list[Row], list[Row]]]:
    """(seen, unseen) by each seed, as ``planner.validate`` chooses them."""
    pairs = []
    for seed in range(seeds):
        marked = list(zip(rows, validate.chosen(len(rows), SHARE, seed), strict=True))
        seen = [each for each, is_seen in marked if is_seen]
        pairs.append((seen, [each for each, is_seen in marked if not is_seen]))
    return pairs


def _told(
    part: str,
    what: str,
    everyone: dict[str, Who],
    pairs: Sequence[tuple[Sequence[Row], Sequence[Row]]],
) -> Iterator[dict]:
    naive = [judged(constant(seen), unseen) for seen, unseen in pairs]
    for name, who in everyone.items():
        yield row(part, what, name, [judged(who(seen), unseen) for seen, unseen in pairs], naive)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON at the end")
    parser.add_argument("--python", default=os.environ.get("PEERS_PYTHON", ""))
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    if not given.python:
        print("no peer was asked: name a Python that has llm-analysis 0.2.2", file=sys.stderr)
        tell([], given.json)
        return
    tell(compared(given.python, given.seeds), given.json)


if __name__ == "__main__":
    main()
