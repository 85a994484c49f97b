"""How near is the planner to published runs, to this machine's ranks, and to torch's own count?

    python benchmarks/planner.py [--json] [--only WORD] [--seeds 10]

Published rows (data/published/, those with the runs' header): fitted on a quarter, judged on the
others, over ten seeds; a cell is the median over the seeds. ``naive``: what one constant TFLOP/s
from the same quarter is wrong by; ``skill``: how many times the planner's median goes into it.
Of the shipped stacks at which a fit begins, megatron-a100 and zero3-2021-a100 were fitted on these
very tables: ``planner_peers`` has the same without those two, and another planner beside it. The
tail hangs on the quarters: of all together, ``--seeds 20`` has a ``p90`` more than twice as large.
``left out``: fitted on all other sources, judged on this one, in the quantity that it gives. There
ZeRO-3 is far off: ``bus_gb_per_s`` is what these runs would have had, had they done nothing but
send (three times 2 bytes a parameter). Those with 1 sequence a GPU take as long as those with 2 on
half the GPUs, in both models: messages bind them, by bandwidth, not by latency, at less than one of
a node's eight cards of 25 GB/s gives. Megatron's rows send no parameters and can't say that; a plan
of that kind carries a warning. ``schedules``: the bubbles of Qi et al. 2023, table 5, simulated
from their profiled times, gaps as shares of a step (of the rank that works longest, as there);
ZB-1p and ZB-2p by ``pipeline.automatic``, whose M_W / M_B is that of heads of 128 and 1,024 tokens.
The interleaved schedule has the chunks that come nearest in all rows
of a model. ``search``: every layout of a model on 1,024 GPUs. ``rehearsal``: rank 0 of 1,024 with
fake tensors, the planner's bytes over torch's. ``here``: real steps of the small transformer on
this machine's ranks; two steps of DDP and two of FSDP are fitted (one constant each), the others
predicted; all ranks read their speeds at once. ``missed`` names what is further off than 10 %
(schedules: half a point; rehearsal: 5 %; here: 15 %). ``needs_quiet``: the numbers are times, and
stand here as they came.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import table5
from report import tell

from labkit import planner
from labkit.planner.trust import fit as fitting
from labkit.planner.trust import judge
from labkit.planner.trust.rows import Row

CHUNKS = range(2, 9)
PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "published"
SHARE = 0.25
TIME_BOUND = 0.1
BUBBLE_BOUND = 0.005
MOST_NAMED = 4


def sources() -> dict[str, list[Row]]:
    """File -> its rows, of every file with the runs' header."""
    found = {}
    for path in sorted(PUBLISHED.glob("*.csv")):
        first = path.read_text(encoding="utf-8").partition("\n")[0].split(",")
        if {"n_gpus", "flops_kind", "gbs"} <= set(first):
            found[path.stem] = planner.load(path)[0]
    return found


def row(
    part: str, what: str, *, quiet: bool = False, missed: Sequence[str] = (), **numbers
) -> dict:
    """One line of the table: the same columns for every part."""
    columns = ("median", "p90", "naive", "skill", "spearman", "regret")
    found = {"part": part, "what": what}
    for name in columns:
        number = numbers.pop(name, None)
        found[name] = None if number is None else round(float(number), 4)
    found["numbers"] = ", ".join(f"{name} {value}" for name, value in numbers.items())
    shown = ", ".join(missed[:MOST_NAMED])
    more = len(missed) - MOST_NAMED
    found["missed"] = f"{shown} and {more} more" if more > 0 else shown
    found["needs_quiet"] = quiet
    return found


def _middle(values: Sequence[float | None]) -> float | None:
    """The median of those that there are."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def fitted(seeds: int) -> Iterator[dict]:
    """A row for each source, and one for all of them together."""
    files = sources()
    together = _timed(files)
    for name, rows in (*files.items(), ("all together", together)):
        found = [planner.validate(rows, share=SHARE, seed=seed) for seed in range(seeds)]
        told = [each.to_json() for each in found]
        median = _middle([each["median"] for each in told])
        naive = _middle([each["naive_median"] for each in told])
        yield row(
            "fit on a quarter",
            name,
            rows=len(rows),
            seeds=seeds,
            median=median,
            p90=_middle([each["p90"] for each in told]),
            naive=naive,
            skill=naive / median,
            spearman=_middle([each["spearman"] for each in told]),
            regret=_middle([each["regret"] for each in told]),
            missed=_missed([each.rows for each in found]),
        )


def _timed(files: dict[str, list[Row]], left_out: str = "") -> list[Row]:
    """Rows with a time of all sources but one."""
    found = []
    for name, rows in files.items():
        found += [each for each in rows if name != left_out and each.step_us()]
    return found


def _missed(runs: Sequence[Sequence[judge.Judged]]) -> list[str]:
    """Rows that the median seed misses by more than TIME_BOUND, the worst first."""
    errors: dict[str, list[float]] = {}
    for judged in runs:
        for each in judged:
            if not each.fitted and each.quantity != "mem_gib":
                errors.setdefault(each.id, []).append(each.error)
    middle = {name: statistics.median(its_errors) for name, its_errors in errors.items()}
    worst = sorted(middle, key=lambda name: -abs(middle[name]))
    return [f"{name} {middle[name]:+.0%}" for name in worst if abs(middle[name]) > TIME_BOUND]


def left_out() -> Iterator[dict]:
    """Each source predicted by constants that were fitted on the others."""
    files = sources()
    for name, rows in files.items():
        others = _timed(files, left_out=name)
        found = planner.fit(others)
        errors = {}
        timed = _timed({"": rows}, left_out=name)
        for each in timed:
            quantity = each.quantity()
            predicted = each.read(quantity, fitting.predicted_us(each, found.stack(each)))
            errors[each.id] = predicted / each.told[quantity] - 1
        naive = judge.median(judge.naive_errors(timed, judge.naive_tflops(others)))
        median = judge.median(list(errors.values()))
        worst = sorted(errors, key=lambda each: -abs(errors[each]))
        yield row(
            "left out",
            name,
            rows=len(timed),
            median=median,
            p90=judge.p90(list(errors.values())),
            naive=naive,
            skill=naive / median,
            missed=[f"{each} {errors[each]:+.0%}" for each in worst if abs(errors[each]) > 0.1],
            **_bound(timed),
        )


def _bound(rows: Sequence[Row]) -> dict[str, str]:
    """The bus bandwidth of ZeRO-3 runs, had they done nothing but send; nothing for others."""
    speeds = []
    for each in rows:
        if each.layout.zero == 3:
            num_bytes = 3 * each.layout.itemsize * each.shape.params * each.layout.num_microbatches
            speeds.append(num_bytes / each.step_us() / 1e3)
    told = " ".join(f"{speed:.1f}" for speed in sorted(speeds))
    return {"bus_gb_per_s": told} if told else {}


def schedules() -> Iterator[dict]:
    """A row for each schedule, the interleaved one for each model and its number of chunks."""
    rows = table5.rows()
    for column in ("1F1B", "ZB-H1", "ZB-H2", *table5.ROOM):
        gaps = {}
        for times, rates in rows:
            name = f"{times['model']} p {times['p']} m {times['m']}"
            gaps[name] = table5.simulated(times, column) - float(rates[column])
        yield _schedule_row(column, gaps)
    for model in dict.fromkeys(times["model"] for times, _ in rows):
        mine = [pair for pair in rows if pair[0]["model"] == model]
        by_chunks = {chunks: table5.interleaved_gaps(mine, chunks) for chunks in CHUNKS}
        worst = {chunks: max(map(abs, gaps.values())) for chunks, gaps in by_chunks.items()}
        best = min(worst, key=lambda chunks: worst[chunks])
        yield _schedule_row(f"1F1B-I, {model}", by_chunks[best], chunks=best)


def _schedule_row(what: str, gaps: dict[str, float], **numbers: object) -> dict:
    """Gaps are shares of the step, as the table has them."""
    sizes = [abs(gap) for gap in gaps.values()]
    return row(
        "schedules",
        what,
        median=statistics.median(sizes),
        p90=float(np.quantile(sizes, 0.9)),
        rows=len(gaps),
        largest=round(max(sizes), 4),
        missed=[f"{name} {gap:+.4f}" for name, gap in gaps.items() if abs(gap) > BUBBLE_BOUND],
        **numbers,
    )


def searches() -> Iterator[dict]:
    """All layouts on 1,024 GPUs: how long, and how high this process's memory has gone."""
    for model in ("LLaMA 7B", "LLaMA-2 70B", "GPT-3 175B"):
        plan = planner.Plan(model=model, gpu="H100", gpus=1024, batch=2048)
        began = time.process_time()
        found = planner.search(plan)
        yield row(
            "search",
            f"{model}, 1,024 GPUs",
            quiet=True,
            cpu_s=round(time.process_time() - began, 2),
            process_peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            fitting=len(found.fitting),
            too_large=len(found.too_large),
            do_not_divide=found.num_refused,
        )


def rehearsals() -> Iterator[dict]:
    """Rank 0 of 1,024: the planner's bytes and the tensors' over torch's own."""
    from labkit.planner.real import tensors

    for tp in (1, 8):
        plan = planner.Plan(model="LLaMA 7B", gpus=1024, tp=tp, zero=3, recipe="fp32")
        began = time.process_time()
        found = planner.rehearse(plan)
        cpu_s = time.process_time() - began
        cut = {**tensors.held_bytes(plan.shape, plan.layout)}
        cut |= tensors.moved_bytes(plan.shape, plan.layout)
        cut["all_reduce"] = tensors.reduced_bytes(plan.shape, plan.layout)
        real = {**found.held, **found.moved}
        errors = {}
        for line in found.rows():
            if line["planned / rehearsed"]:
                errors[line["what"]] = line["planned / rehearsed"] - 1
        yield row(
            "rehearsal",
            f"LLaMA 7B, rank 0 of 1,024, tp {tp}",
            median=judge.median(list(errors.values())),
            p90=judge.p90(list(errors.values())),
            exact_as_tensors_are_cut=cut == real,
            collectives=sum(found.calls.values()),
            cpu_s=round(cpu_s, 1),
            missed=[f"{name} {gap:+.0%}" for name, gap in errors.items() if abs(gap) > 0.05],
        )


def here(rounds: int = 3) -> Iterator[dict]:
    """Real steps on this machine: constants from four of them, the others predicted."""
    from labkit.planner.real import here_run

    seen = []
    for engine in ("ddp", "fsdp"):
        seen += [here_run.Case(engine=engine), here_run.Case(engine=engine, layers=8, mbs=4)]
    unseen = [here_run.Case(**fields) for fields in _UNSEEN]
    sizes = {case.ranks for case in (*seen, *unseen)}
    gpus = {ranks: here_run.speeds(ranks) for ranks in sizes}
    steps_us = here_run.steps([*seen, *unseen], rounds)
    lines = []
    for case, step_us in zip((*seen, *unseen), steps_us, strict=True):
        lines.append(here_run.row(case, gpus[case.ranks], step_us))
    found = planner.fit(lines[: len(seen)])
    tflops = judge.naive_tflops(lines[: len(seen)])
    errors = {}
    for case, line in zip(unseen, lines[len(seen) :], strict=True):
        stack = found.stack(line)
        sizes = f"{case.ranks} ranks, {case.layers} x {case.dim}, {case.microbatches} x {case.mbs}"
        errors[f"{case.engine}: {sizes}"] = fitting.predicted_us(line, stack) / line.step_us() - 1
    for part in ("", *here_run.ENGINES):
        mine = {name: error for name, error in errors.items() if name.startswith(part)}
        pairs = zip(lines[len(seen) :], errors, strict=True)
        its_lines = [line for line, name in pairs if name in mine]
        naive = judge.naive_errors(its_lines, tflops)
        yield row(
            "here",
            part or "all",
            quiet=True,
            median=judge.median(list(mine.values())),
            p90=judge.p90(list(mine.values())),
            naive=judge.median(naive),
            rows=len(mine),
            gflops_each=round(500 * gpus[2].tflops, 1),
            missed=[f"{name} {error:+.0%}" for name, error in mine.items() if abs(error) > 0.15],
        )


_UNSEEN = (
    {"engine": "ddp", "mbs": 8},
    {"engine": "ddp", "layers": 12},
    {"engine": "ddp", "microbatches": 4},
    {"engine": "ddp", "dim": 512},
    {"engine": "ddp", "ranks": 4},
    {"engine": "fsdp", "mbs": 8},
    {"engine": "fsdp", "layers": 12},
    {"engine": "fsdp", "microbatches": 2},
    {"engine": "pipeline", "microbatches": 4},
    {"engine": "pipeline", "microbatches": 8},
    {"engine": "pipeline", "layers": 8, "microbatches": 4, "mbs": 4},
)


PARTS = {
    "fit on a quarter": fitted,
    "left out": left_out,
    "schedules": schedules,
    "search": searches,
    "rehearsal": rehearsals,
    "here": here,
}


def rows(only: str, seeds: int) -> Iterator[dict]:
    """All parts, or those whose name holds a word."""
    for name, part in PARTS.items():
        if only in name:
            yield from part(seeds) if part is fitted else part()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON at the end")
    parser.add_argument("--only", default="", help="parts whose name holds this word")
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    tell(rows(given.only, given.seeds), given.json)


if __name__ == "__main__":
    main()
