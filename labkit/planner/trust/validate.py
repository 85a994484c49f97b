"""Predictions beside published rows: fitted on a part of them, judged on the others."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from labkit.planner.models import DATA
from labkit.planner.plan import memory
from labkit.planner.plan.stacks import STACKS, Stack
from labkit.planner.trust import fit as fitting
from labkit.planner.trust import judge
from labkit.planner.trust.fit import Engine, Fit
from labkit.planner.trust.judge import Judged
from labkit.planner.trust.rows import Row, load
from labkit.units import check_real, check_whole

GIB = 2**30
MEMORY_RECIPES = ("megatron", "mixed", "accumulate", "fp32", "bf16")
"""Recipes that a row may have been trained by: it does not say."""
MEGATRON_TABLES = {
    "megatron_sc21_table1": "Narayanan 2021",
    "megatron_sc21_table2": "Narayanan 2021",
    "korthikanti_table5": "Korthikanti 2022",
}
"""Files of data/published/ and their papers; ZeRO 3's rows of the second are of another stack."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What ``--validate`` prints."""

    rows: tuple[Judged, ...]
    """every quantity of every row, fitted ones too"""
    naive: tuple[float, ...]
    """errors of unseen rows, were all as fast as the fitted ones' median"""
    spearman: float | None
    """how alike the published and the predicted order of layouts are; None where no model has
    enough"""
    regret: float | None
    """how much slower than the best the layout is that would be picked"""
    constants: dict[str, float | str]
    """what was fitted, or the shipped stack"""
    refused: tuple[tuple[str, str], ...]
    """(id, why) of rows that can't be read"""

    def errors(self, in_memory: bool = False) -> list[float]:
        """Errors of unseen rows, of their times, or of their memory if ``in_memory``."""
        return [
            each.error
            for each in self.rows
            if not each.fitted and (each.quantity == "mem_gib") == in_memory
        ]

    def curves(
        self, names: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, dict[int, float]]]:
        """``measured``, ``fitted`` and ``predicted`` for ``lab.curves``, of rows whose names end
        with a number of GPUs: {name: {GPUs: what was published}}, of rows that the fit saw in
        ``fitted``, and {name: {GPUs: what is predicted}}. ``names`` are words for the rows' own:
        {"z3_175B": "175 B, ZeRO 3"}."""
        found: dict[str, dict] = {"measured": {}, "fitted": {}, "predicted": {}}
        for each in self.rows:
            name, _, gpus = each.id.partition("_")[2].rpartition("_")
            name = (names or {}).get(name, name)
            dots = found["fitted" if each.fitted else "measured"]
            dots.setdefault(name, {})[int(gpus)] = each.published
            found["predicted"].setdefault(name, {})[int(gpus)] = each.predicted
        return found

    def to_json(self) -> dict:
        """One object, as planner.md's command prints it."""
        rows = [{**asdict(each), "error": each.error} for each in self.rows]
        times = self.errors(in_memory=False)
        sizes = self.errors(in_memory=True)
        return {
            "rows": rows,
            "median": judge.median(times),
            "p90": judge.p90(times),
            "naive_median": judge.median(self.naive),
            "naive_p90": judge.p90(self.naive),
            "memory_median": judge.median(sizes),
            "memory_p90": judge.p90(sizes),
            "spearman": self.spearman,
            "regret": self.regret,
            "constants": self.constants,
            "refused": [{"id": name, "why": why} for name, why in self.refused],
        }


def validate(
    rows: Sequence[Row],
    share: float | None = None,
    seed: int = 0,
    refused: Sequence[tuple[str, str]] = (),
) -> Validation:
    """Fits on a ``share`` of the rows, chosen by ``seed``, and predicts all; without a share, by
    the shipped stack that fits best. Raises ValueError for no rows, none left to predict, or a
    share that is none."""
    if not rows:
        why = f"; the first is refused: {refused[0][1]}" if refused else ""
        raise ValueError(f"a validation needs rows; there are none that can be read{why}")
    is_chosen = chosen(len(rows), share, seed)
    seen = [row for row, is_seen in zip(rows, is_chosen, strict=True) if is_seen]
    found = shipped(rows) if share is None else _fitted(seen, rows)
    memories = fit_memory(seen, found)
    judged = []
    for row, is_seen in zip(rows, is_chosen, strict=True):
        judged += _judged(row, found, memories, is_seen)
    unseen = [row for row, is_seen in zip(rows, is_chosen, strict=True) if not is_seen]
    timed = [row for row in unseen if row.step_us()]
    known = [row for row in (seen or rows) if row.step_us()]
    tokens_per_us = [
        row.tokens / fitting.predicted_us(row, found.stack(row)) / row.cluster.num_gpus
        for row in timed
    ]
    spearman, regret = judge.order(timed, tokens_per_us)
    constants: dict[str, float | str] = {**found.constants()}
    for each, stack in found.stacks.items():
        constants[f"{fitting.label(each)}: stack"] = stack.name
    for each, (recipe, fixed_gb) in memories.items():
        constants[f"{fitting.label(each)}: fixed_gb, {recipe}"] = fixed_gb
    return Validation(
        rows=tuple(judged),
        naive=tuple(judge.naive_errors(timed, judge.naive_tflops(known)) if known else ()),
        spearman=spearman,
        regret=regret,
        constants=constants,
        refused=tuple(refused),
    )


def _fitted(seen: Sequence[Row], rows: Sequence[Row]) -> Fit:
    """The fit on the seen rows; where too few of them have a time, as in a file of memory alone,
    the nearest shipped stacks, and no look at the others."""
    if sum(row.step_us() is not None for row in seen) >= 2:
        return fitting.fit(seen)
    usual = {}
    for row in rows:
        usual[fitting.engine(row)] = fitting.nearest(row.cluster.gpu.name, row.layout.zero)
    return Fit(stacks=usual, moved=(), misfit=float("nan"))


def megatron_runs() -> dict[str, dict[float, float]]:
    """The runs that megatron-a100's constants were fitted to, by paper: {paper: {published step in
    seconds: the predicted step over it}}."""
    found: dict[str, dict[float, float]] = {paper: {} for paper in MEGATRON_TABLES.values()}
    for name, paper in MEGATRON_TABLES.items():
        for row in load(DATA / "published" / f"{name}.csv")[0]:
            if row.layout.zero != 3 and (step_us := row.step_us()):
                ratio = fitting.predicted_us(row, STACKS["megatron-a100"]) / step_us
                found[paper][step_us / 1e6] = ratio
    return found


def chosen(num_rows: int, share: float | None, seed: int) -> list[bool]:
    """Which rows a fit sees, of so many: a ``share`` of them, chosen by ``seed``. Raises ValueError
    where none would be left to predict."""
    check_whole(1, 10**7, num_rows=num_rows)
    if share is None:
        return [False] * num_rows
    check_real(0.0, 1.0, share=share)
    check_whole(0, 2**63 - 1, seed=seed)
    wanted = max(2, round(share * num_rows))
    if wanted >= num_rows:
        raise ValueError(
            f"a fit on {share:g} of {num_rows} rows leaves none to predict: give more rows or a "
            f"smaller share"
        )
    first = set(np.random.default_rng(seed).permutation(num_rows)[:wanted].tolist())
    return [number in first for number in range(num_rows)]


def shipped(rows: Sequence[Row]) -> Fit:
    """For each engine among rows the shipped stack that fits best, nothing moved."""
    engines: dict[Engine, list[Row]] = {}
    for row in rows:
        if row.step_us():
            engines.setdefault(fitting.engine(row), []).append(row)
    stacks = {each: _likeliest(its_rows) for each, its_rows in engines.items()}
    return Fit(stacks=stacks, moved=(), misfit=float("nan"))


def _likeliest(rows: Sequence[Row]) -> Stack:
    def misfit(stack: Stack) -> float:
        return float(np.median(np.abs(fitting.log_errors(rows, stack))))

    return min(STACKS.values(), key=misfit)


# --- memory ---


def predicted_bytes(row: Row, recipe: str, stack: Stack) -> float:
    """What a row's fullest GPU should hold under a recipe."""
    layout = replace(row.layout, recipe=recipe)
    return memory.memory(row.shape, layout, stack).peak_bytes


def fit_memory(seen: Sequence[Row], found: Fit) -> dict[Engine, tuple[str, float]]:
    """For each engine with two seen rows of memory or more: the recipe that explains them best,
    and the additive constant in GB that it leaves."""
    engines: dict[Engine, list[Row]] = {}
    for row in seen:
        if "mem_gib" in row.told:
            engines.setdefault(fitting.engine(row), []).append(row)
    return {
        each: _recipe(its_rows, found) for each, its_rows in engines.items() if len(its_rows) >= 2
    }


def _recipe(rows: Sequence[Row], found: Fit) -> tuple[str, float]:
    """(recipe, fixed GB) with the smallest median error."""
    tried = []
    for recipe in MEMORY_RECIPES:
        bare = [predicted_bytes(row, recipe, found.stack(row).but(fixed_gb=0.0)) for row in rows]
        told = [GIB * row.told["mem_gib"] for row in rows]
        gaps = [have - want for have, want in zip(told, bare, strict=True)]
        fixed = max(0.0, float(np.median(gaps)))
        errors = [(want + fixed) / have - 1 for have, want in zip(told, bare, strict=True)]
        tried.append((float(np.mean(np.abs(errors))), recipe, fixed / 1e9))
    return min(tried)[1:]


def _judged(
    row: Row, found: Fit, memories: dict[Engine, tuple[str, float]], fitted: bool
) -> list[Judged]:
    """What a row gives, predicted."""
    judged = []
    stack = found.stack(row)
    if quantity := row.quantity():
        predicted = row.read(quantity, fitting.predicted_us(row, stack))
        judged.append(
            Judged(
                id=row.id,
                quantity=quantity,
                published=row.told[quantity],
                predicted=predicted,
                fitted=fitted,
            )
        )
    if "mem_gib" in row.told:
        recipe, fixed_gb = memories.get(fitting.engine(row), (row.layout.recipe, stack.fixed_gb))
        predicted = predicted_bytes(row, recipe, stack.but(fixed_gb=fixed_gb)) / GIB
        judged.append(
            Judged(
                id=row.id,
                quantity="mem_gib",
                published=row.told["mem_gib"],
                predicted=predicted,
                fitted=fitted,
            )
        )
    return judged
