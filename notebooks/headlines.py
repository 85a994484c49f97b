"""The measured lines of both READMEs: what stands in ``benchmarks/results``, in words."""

import json
from pathlib import Path

RESULTS = Path("benchmarks", "results")
RANKS = 4
LINES = {
    "en": (
        "**A cell is enough.** {ranks} real ranks start, add up and report in {launch_ms:.0f} ms; "
        "with torchrun it takes {torchrun_s:.1f} s ([launch]({page}#launch)).",
        "**Theory and run stand on one axis.** {schedules} paced pipeline schedules on {ranks} "
        "ranks: no run idled more than {points:.1f} points more or less than simulated "
        "([bubble]({page}#bubble)).",
        "**Memory is known before it is rented.** {settings} settings of DDP, FSDP and DeepSpeed: "
        "model states {states}, the peak of a step within {peak:.1f} % ([memory]({page}#memory)).",
        "**You may break things.** {launches:,} launches, nine in ten of them broken or stopped on "
        "purpose: {wrong} wrong verdicts, {orphans} processes left ([soak]({page}#soak)).",
    ),
    "zh": (
        "**一个单元格就够**：启动 {ranks} 个真实的 rank，求一次和，交回结果，只要 "
        "{launch_ms:.0f} ms；用 torchrun 要 {torchrun_s:.1f} s（[launch]({page}#launch)）。",
        "**理论和实测画在一根轴上**：{ranks} 个 rank、{schedules} 种流水线调度，固定时长，"
        "每次运行的空闲占比与模拟值最多差 {points:.1f} 个百分点（[bubble]({page}#bubble)）。",
        "**租机器之前就知道要多少显存**：DDP、FSDP、DeepSpeed 的 {settings} 种设置："
        "模型状态{states}，一步的峰值误差不超过 {peak:.1f} %（[memory]({page}#memory)）。",
        "**尽管弄坏它**：启动 {launches:,} 次，十次里有九次是故意弄坏或中途停掉的："
        "判错 {wrong} 次，留下的进程 {orphans} 个（[soak]({page}#soak)）。",
    ),
}
EXACT = {
    "en": ("predicted to the byte", "predicted within {off:.2f} %"),
    "zh": ("的预测一个字节不差", "的预测误差不超过 {off:.2f} %"),
}


def lines(root: Path, language: str) -> str:
    """A list, as Markdown."""
    facts = {**_launch(root), **_bubble(root), **_memory(root), **_soak(root)}
    exact, about = EXACT[language]
    off = facts.pop("off")
    states = about.format(off=off) if off else exact
    more = {"page": "benchmarks/README.md", "ranks": RANKS, "states": states}
    return "\n".join(f"- {line.format(**facts, **more)}" for line in LINES[language])


def _rows(root: Path, name: str) -> list[dict]:
    text = (root / RESULTS / f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text)["rows"]


def _launch(root: Path) -> dict[str, float]:
    asked = [row for row in _rows(root, "launch") if row["asked"] == "launch"]
    row = next(row for row in asked if row["ranks"] == RANKS)
    return {"launch_ms": 1000 * row["labkit_s"], "torchrun_s": row["torchrun_s"]}


def _bubble(root: Path) -> dict[str, float]:
    rows = [row for row in _rows(root, "bubble") if row["ranks"] == RANKS]
    worst = max(row["worst"] for row in rows)
    return {"schedules": len({row["schedule"] for row in rows}), "points": 100 * worst}


def _memory(root: Path) -> dict[str, float]:
    rows = _rows(root, "memory")
    off = []
    for row in rows:
        predicted = row["predicted_state_bytes"]
        off.append(abs(predicted / row["measured_state_bytes"] - 1))
    peak = max(abs(row["peak_error"]) for row in rows)
    return {"settings": len(rows), "off": 100 * max(off), "peak": 100 * peak}


def _soak(root: Path) -> dict[str, int]:
    (row,) = _rows(root, "soak")
    return {
        "launches": row["launches"],
        "wrong": row["wrong_verdicts"],
        "orphans": row["orphans"],
    }
