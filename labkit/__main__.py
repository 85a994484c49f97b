"""``python -m labkit``: look at this machine, build what is compiled, run the demo, measure what
this machine does, run a script on pretend devices, record one, start a practice cluster, write
assignments, list saved runs."""

import argparse
import os
import sys
from pathlib import Path

from labkit import words
from labkit.devices import on_pretend
from labkit.words import say, to_say


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. The exit code: 0 done, 1 something is missing or failed, 2 the command
    makes no sense."""
    chosen = _parser().parse_args(arguments)
    words.use(chosen.language)
    try:
        code = chosen.run(chosen)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who read it has read enough, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        print(f"labkit {chosen.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\n" + say("command|stopped"), file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m labkit", description=__doc__.partition(": ")[2]
    )
    parser.add_argument(
        "--language", choices=words.LANGUAGES, default="en", help="what it speaks (%(default)s)"
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="|".join(name for name, *_ in _COMMANDS)
    )
    for name, run, text in _COMMANDS:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if name == "measure":
            _measure_options(command)
        if name == "plan":
            _plan_options(command)
        if name == "record":
            _record_options(command)
        if name == "cluster":
            _cluster_options(command)
        if name == "classroom":
            _classroom_options(command)
        if name in ("runs", "demo"):
            command.add_argument(
                "folder", nargs="?", default="out", help="which folder (default: %(default)s)"
            )
        if name == "pretend":
            command.add_argument(
                "--ranks", type=int, default=2, help="how many, each with its device (%(default)s)"
            )
            on_pretend.add_options(command)
    return parser


def _doctor(_: argparse.Namespace) -> int:
    from labkit.devices import library
    from labkit.machine import doctor

    found = doctor.examine()
    report = doctor.Report(rows=(*found.rows, library.row()))
    print(report)
    return 0 if report.ok else 1


def _ops(_: argparse.Namespace) -> int:
    from labkit.devices import library
    from labkit.machine import ops

    jobs = {}
    stopped = False
    kinds = {
        ops: (
            to_say("DeepSpeed's ops are built"),
            to_say("DeepSpeed's ops are not built: {reason}"),
        ),
        library: (
            to_say("the devices' libraries are built"),
            to_say("the devices' libraries are not built: {reason}"),
        ),
    }
    for kind, (built, not_built) in kinds.items():
        if not kind.missing():
            print(say(built))
        elif reason := kind.obstacle():
            stopped = True
            print(say(not_built, reason=reason))
        else:
            jobs |= kind.jobs()
    code = 0 if not jobs or ops.build(jobs, _tell) else 1
    if stopped:
        print(
            say(
                "The course opens without them, and a cell that needs one says so. To build them "
                "later: make env (conda: python -m labkit ops)"
            )
        )
    return code


def _tell(text: str) -> None:
    print(text, end="", flush=True)


def _demo(chosen: argparse.Namespace) -> int:
    from labkit.pipeline import demo

    demo.main(chosen.folder)
    return 0


def _plan_options(command: argparse.ArgumentParser) -> None:
    from labkit.planner.plan.command import add_options

    add_options(command)


def _measure_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--minutes", type=float, default=10.0, help="at most (%(default)g)")
    command.add_argument("--out", type=Path, help="a new folder (default: out/measure, or -2, ...)")
    command.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="of device,collectives,data_parallel,sharding,pipeline (default: all)",
    )
    command.add_argument("--ranks", type=int, help="how many (default: one per GPU, or 4)")
    command.add_argument("--read", type=Path, help="write the report of this folder anew")


def _measure(chosen: argparse.Namespace) -> int:
    from labkit.survey import command

    return command.main(chosen)


def _plan(chosen: argparse.Namespace) -> int:
    from labkit.planner.plan import command

    return command.main(chosen)


def _pretend(chosen: argparse.Namespace) -> int:
    from labkit.launching import script

    devices = on_pretend.wanted(chosen)
    return script.run_here(chosen.script, *chosen.arguments, ranks=chosen.ranks, devices=devices)


def _record_options(command: argparse.ArgumentParser) -> None:
    from labkit.profiling.recording.command import add_options

    add_options(command)


def _record(chosen: argparse.Namespace) -> int:
    from labkit.profiling.recording import command

    return command.main(chosen)


def _cluster_options(command: argparse.ArgumentParser) -> None:
    from labkit.cluster.command import add_options

    add_options(command)


def _cluster(chosen: argparse.Namespace) -> int:
    from labkit.cluster import command

    return command.main(chosen)


def _classroom_options(command: argparse.ArgumentParser) -> None:
    from labkit.classroom.command import add_options

    add_options(command)


def _classroom(chosen: argparse.Namespace) -> int:
    from labkit.classroom import command

    return command.main(chosen)


def _runs(chosen: argparse.Namespace) -> int:
    from labkit.launching.run import Run

    folder = Path(chosen.folder)
    if not folder.is_dir():
        raise ValueError(
            f"runs are listed from a folder; {folder} is none. Name one: python -m labkit runs "
            "data/runs"
        )
    found = sorted(path.parent for path in folder.rglob("run.json"))
    for path in found:
        print(f"{path}  {Run.load(path)!r}")
    if not found:
        print(say("no saved run in {folder}; run.save(folder) writes one", folder=folder))
    return 0


_COMMANDS = (
    ("doctor", _doctor, "what this machine has and lacks, and what to do about it"),
    (
        "ops",
        _ops,
        "build DeepSpeed's three CPU ops and our devices ahead of time (about 140 s, once)",
    ),
    (
        "demo",
        _demo,
        "train on real ranks; the measured beside the predicted bubble, printed and drawn",
    ),
    (
        "measure",
        _measure,
        "the course's headline experiments on this machine, saved, with a one-page report",
    ),
    (
        "plan",
        _plan,
        "what training a model on a cluster takes: memory, time, days, and the best layout",
    ),
    ("pretend", _pretend, "run a script written for GPUs on pretend devices, by torchrun"),
    (
        "record",
        _record,
        "record a script of your own: where its time goes, and what would help",
    ),
    (
        "cluster",
        _cluster,
        "a practice cluster on this machine: Slurm and a network of its own; up, status, down",
    ),
    (
        "classroom",
        _classroom,
        "for one who teaches a room: graded assignments, and a board of how far all are",
    ),
    ("runs", _runs, "list the runs saved in a folder"),
)


if __name__ == "__main__":
    sys.exit(main())
