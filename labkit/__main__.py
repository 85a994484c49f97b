"""``python -m labkit``: look at this machine, build DeepSpeed's ops, run the demo, run a script on
pretend devices, list saved runs."""

import argparse
import sys
from pathlib import Path

from labkit import words
from labkit.devices import on_pretend
from labkit.words import say


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. The exit code: 0 done, 1 something is missing or failed, 2 the command
    makes no sense."""
    chosen = _parser().parse_args(arguments)
    words.use(chosen.language)
    try:
        return chosen.run(chosen)
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
    from labkit.machine import doctor

    report = doctor.examine()
    print(report)
    return 0 if report.ok else 1


def _ops(_: argparse.Namespace) -> int:
    from labkit.machine import ops

    if not ops.missing():
        print(say("DeepSpeed's ops are built"))
        return 0
    if reason := ops.obstacle():
        print(say("DeepSpeed's ops are not built: {reason}", reason=reason))
        return 0
    return 0 if ops.build(lambda text: print(text, end="", flush=True)) else 1


def _demo(chosen: argparse.Namespace) -> int:
    from labkit.pipeline import demo

    demo.main(chosen.folder)
    return 0


def _pretend(chosen: argparse.Namespace) -> int:
    from labkit.launching import script

    devices = on_pretend.wanted(chosen)
    return script.run_here(chosen.script, *chosen.arguments, ranks=chosen.ranks, devices=devices)


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
    ("ops", _ops, "build DeepSpeed's three CPU ops ahead of time (about 100 s, once)"),
    (
        "demo",
        _demo,
        "train on real ranks; the measured beside the predicted bubble, printed and drawn",
    ),
    ("pretend", _pretend, "run a script written for GPUs on pretend devices, by torchrun"),
    ("runs", _runs, "list the runs saved in a folder"),
)


if __name__ == "__main__":
    sys.exit(main())
