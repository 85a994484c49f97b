"""The main job without a browser: real ranks under two schedules, predicted beside measured,
written to a folder.

python -m labkit demo [folder]
"""

import shutil
import sys
from pathlib import Path

from labkit.launching.job import Job, listeners
from labkit.launching.run import Run
from labkit.measure import trace
from labkit.pictures.painters import mpl, svg, text
from labkit.pictures.sketch import origin
from labkit.pipeline.schedules import TITLES
from labkit.pipeline.simulation import in_flight
from labkit.pipeline.step import Step
from labkit.timeline import Timeline, bubble
from labkit.units import columns_of, format_bytes, format_share, format_us, padded
from labkit.words import WORDS, language, say

NUM_RANKS = 4
NUM_MICROBATCHES = 8
FORWARD_MS = 50.0
NAMES = ("gpipe", "1f1b")
THEMES = "<style>svg{color:#24292f}@media (prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"


def main(folder: str | Path = "out") -> Path:
    """Runs GPipe and 1F1B on four real ranks; prints a table and writes pictures, traces and runs.
    Returns the folder.

    The forward of a microbatch is stated (paced), so that four ranks need not have four cores; the
    message cost of the prediction comes from a run of its own.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tell(say("measuring what a message between {ranks} ranks costs here ...", ranks=NUM_RANKS))
    step = Step(
        schedule=NAMES[0],
        ranks=NUM_RANKS,
        microbatches=NUM_MICROBATCHES,
        forward_ms=FORWARD_MS,
    ).calibrated()
    costs = {"message_us": format_us(1e3 * step.message_ms), "gap_us": format_us(1e3 * step.gap_ms)}
    tell("  " + say("{message_us}, and {gap_us} between two actions", **costs))
    listeners.append(live)
    try:
        rows = [one(step.but(schedule=name), folder) for name in NAMES]
    finally:
        listeners.remove(live)
    print_table(rows)
    files = ", ".join(sorted(path.name for path in folder.iterdir()))
    tell(say("written to {folder}: {files}", folder=folder, files=files))
    return folder


def one(step: Step, folder: Path) -> tuple[str, Timeline, Timeline, Run]:
    """One schedule: simulated, run, drawn and saved. Returns its name, both timelines and the
    run."""
    name = step.schedule
    tell(
        say(
            "{schedule}: {ranks} real ranks train the small transformer, {microbatches} "
            "microbatches ...",
            schedule=TITLES[name],
            ranks=NUM_RANKS,
            microbatches=NUM_MICROBATCHES,
        )
    )
    predicted = step.predict()
    run = step.run()
    measured = run.timeline()
    loss = run[NUM_RANKS - 1]["losses"][-1]
    tell("  " + say("{seconds:.1f} s, loss {loss:.3f}", seconds=run.seconds, loss=loss))
    picture = step.drawn(predicted, measured)
    head, body = svg.render(picture).split(">", 1)
    (folder / f"{name}.svg").write_text(f"{head}>{THEMES}{body}", encoding="utf-8")
    mpl.save(picture, folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(text.render(picture), encoding="utf-8")
    trace.merge_chrome(run.folder, folder / f"{name}.trace.json")
    run.save(unused(folder / "runs", name))
    return name, predicted, measured, run


def unused(folder: Path, name: str) -> Path:
    """name-1, or the first number after it that the folder does not hold yet."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"


def print_table(rows: list[tuple[str, Timeline, Timeline, Run]]) -> None:
    """Predicted beside measured: bubble, peak activations (microbatches and bytes on rank 0), step
    time."""
    both = (say("predicted"), say("measured"))
    step = (say("step"), "")
    held = (say("held on rank 0"), "", "")
    lines = [
        (say("schedule"), say("bubble"), "", say("difference"), *held, *step),
        ("", *both, say("percentage points|points"), *both, say("bytes"), *both),
    ]
    for name, predicted, measured, run in rows:
        theory = bubble(predicted)
        seen = bubble(measured)
        lines.append(
            (
                TITLES[name],
                format_share(theory),
                format_share(seen),
                f"{100 * (seen - theory):+.1f}",
                str(in_flight(predicted)[0]),
                str(in_flight(measured)[0]),
                format_bytes(run[0]["peak_activation_bytes"]),
                format_us(predicted.span_us),
                format_us(measured.span_us),
            )
        )
    widths = [max(map(columns_of, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        tell("  ".join(map(padded, line, widths)).rstrip())
    words = WORDS[language()]
    badges = {origin(measured.badge, words) for _, _, measured, _ in rows}
    tell(
        say(
            "predicted: simulated. measured: {badges}. Bubble: idle share of total time.",
            badges="; ".join(sorted(badges)),
        )
    )


def live(job: Job) -> None:
    """The live line of a terminal: what each rank is doing, once a launch has taken a second;
    cleared at its end."""
    if job.seconds < 1 or not sys.stderr.isatty():
        return
    rows = [] if job.done else job.progress
    told = "   ".join(
        f"rank {row['rank']} {say(row['state'])} {say('step')} {row.get('step', '-')}"
        for row in rows
    )
    line = told[: shutil.get_terminal_size().columns - 1]
    print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)


def tell(line: str) -> None:
    """Prints at once: some of this takes seconds."""
    print(line, flush=True, file=sys.stdout)
