"""``python -m labkit plan``: a plan's numbers, the search, the check on published rows.

python -m labkit plan llama-7b --gpus 8 --gpu A100-80 --zero 3 --mbs 2 --batch 64
python -m labkit plan llama-7b --gpus 64 --gpu H100 --batch 512 --search
python -m labkit plan --validate FILE.csv --fit 0.25 --seed 0 --json
"""

import argparse
import json
from dataclasses import fields
from pathlib import Path

from labkit import tables
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import search
from labkit.planner.trust import rows as published
from labkit.planner.trust.report import markdown, report
from labkit.planner.trust.validate import validate
from labkit.units import format_bytes, format_us
from labkit.words import say

GIVEN = ("tp", "cp", "pp", "vpp", "ep", "zero", "mbs", "batch", "seq", "per_node")
"""Whole numbers that are options by their names."""
WORDS = ("recompute", "offload", "precision", "recipe", "schedule", "stack")
"""Words that are."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What ``python -m labkit plan`` takes."""
    usual = {each.name: each.default for each in fields(Plan)}
    parser.add_argument("model", nargs="?", help="a name, or the path of a config.json")
    parser.add_argument("--gpu", default=usual["gpu"], help="which (%(default)s)")
    parser.add_argument("--gpus", type=int, default=usual["gpus"], help="how many (%(default)s)")
    for name in GIVEN:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=usual[name], help="(%(default)s)")
    for name in WORDS:
        parser.add_argument(f"--{name}", default=usual[name], help="(%(default)s)")
    parser.add_argument("--nic", type=float, default=0.0, help="GB/s out of a node for each GPU")
    parser.add_argument("--sp", action="store_true", help="sequence parallel")
    parser.add_argument("--no-flash", action="store_true", help="attention stores its matrix")
    parser.add_argument("--tokens", type=float, help="of the whole training: days are told")
    parser.add_argument("--price", type=float, help="of a GPU's hour: money is told, with --tokens")
    parser.add_argument("--search", action="store_true", help="find the layout")
    parser.add_argument("--validate", type=Path, metavar="FILE", help="predict published rows")
    parser.add_argument("--fit", type=float, metavar="SHARE", help="fit on this share of the rows")
    parser.add_argument("--seed", type=int, default=0, help="which rows these are (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--markdown", action="store_true", help="a report, for --validate")


def main(chosen: argparse.Namespace) -> int:
    """The exit code: 0 done, 1 nothing fits. Raises ValueError for what makes no sense."""
    if chosen.validate is not None:
        return _validated(chosen)
    if chosen.model is None:
        raise ValueError("name a model (llama-7b, or a config.json), or a file to --validate")
    plan = _plan(chosen)
    return _searched(plan, chosen) if chosen.search else _told(plan, chosen)


def _plan(chosen: argparse.Namespace) -> Plan:
    same = {name: getattr(chosen, name) for name in ("model", "gpu", "gpus", *GIVEN, *WORDS)}
    return Plan(**same, sp=chosen.sp, flash=not chosen.no_flash, nic_gb_per_s=chosen.nic)


def _validated(chosen: argparse.Namespace) -> int:
    rows, refused = published.load(chosen.validate)
    found = validate(rows, chosen.fit, chosen.seed, refused)
    if chosen.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        print(markdown(found) if chosen.markdown else report(found))
    return 0


def numbers(plan: Plan, tokens: float | None = None, price: float | None = None) -> dict:
    """All of a plan, as the command prints it with --json."""
    time = plan.time()
    held = plan.memory()
    found = {
        "title": plan.title(),
        "params": plan.shape.params,
        "step_s": time.step_us / 1e6,
        "tokens_per_s": plan.tokens_per_s(),
        "mfu": plan.mfu(),
        "mfu_causal": plan.mfu(causal=True),
        "time_us": time.parts(),
        "memory_bytes": held.parts,
        "peak_bytes": held.peak_bytes,
        "stage_bytes": held.stage_bytes,
        "device_bytes": plan.cluster.device_bytes,
        "fits": plan.fits,
        "trust": plan.trust(),
        "warnings": plan.warnings(),
    }
    if tokens is not None:
        found["days"] = plan.days(tokens)
        if price is not None:
            found["cost"] = plan.cost(tokens, price)
    return found


def _told(plan: Plan, chosen: argparse.Namespace) -> int:
    found = numbers(plan, chosen.tokens, chosen.price)
    print(json.dumps(found, indent=1) if chosen.json else "\n".join(_lines(plan, found)))
    return 0 if plan.fits else 1


def _lines(plan: Plan, found: dict) -> list[str]:
    """The numbers as lines of text."""
    lines = [found["title"], ""]
    step_us = 1e6 * found["step_s"]
    lines.append(
        say(
            "step {step}, {tokens:,.0f} tokens/s, MFU {mfu:.1%} (attention in full; causal "
            "{causal:.1%})",
            step=format_us(step_us),
            tokens=found["tokens_per_s"],
            mfu=found["mfu"],
            causal=found["mfu_causal"],
        )
    )
    for part, time_us in found["time_us"].items():
        if time_us > 0:
            lines.append(f"  {part:<12}{format_us(time_us):>12}{time_us / step_us:>8.1%}")
    verdict = say("fits") if found["fits"] else say("does not fit")
    lines.append("")
    lines.append(
        say(
            "memory {held} of {device}: {verdict}",
            held=format_bytes(found["peak_bytes"]),
            device=format_bytes(found["device_bytes"]),
            verdict=verdict,
        )
    )
    for part, num_bytes in found["memory_bytes"].items():
        if num_bytes > 0:
            lines.append(f"  {part:<12}{format_bytes(num_bytes):>12}")
    if "days" in found:
        lines += ["", say("{days:,.1f} days, nothing failing", days=found["days"])]
    if "cost" in found:
        lines.append(say("{cost:,.0f} at that price", cost=found["cost"]))
    lines += ["", found["trust"], *found["warnings"]]
    return lines


def _searched(plan: Plan, chosen: argparse.Namespace) -> int:
    found = search(plan)
    rows = found.rows()
    if chosen.json:
        content = {
            "fitting": len(found.fitting),
            "too_large": len(found.too_large),
            "refused": found.num_refused,
            "rows": rows,
            "frontier": [each.row(plan.tokens, plan.gpus) for each in found.frontier()],
        }
        print(json.dumps(content, indent=1))
        return 0 if found.fitting else 1
    print(
        say(
            "{fitting} layouts fit, {large} are too large, {refused} do not divide",
            fitting=len(found.fitting),
            large=len(found.too_large),
            refused=found.num_refused,
        )
    )
    print(tables.table(rows))
    if found.fitting:
        print(
            "\n".join(["", *_lines(found.best, numbers(found.best, chosen.tokens, chosen.price))])
        )
    return 0 if found.fitting else 1
