"""``python -m labkit classroom``: each action is a module of this folder, ``NAME_command``."""

import argparse
import importlib
from types import ModuleType

ACTIONS = (
    ("assignments", "write chapters as a course for nbgrader, graded by their checks"),
    ("hub", "a JupyterHub for a room: every learner a folder of their own, and one gate for all"),
    ("board", "how far everybody is, and where they are stuck, as a live page on this machine"),
)
"""name, and what it does"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """A subcommand for each action, with its own options."""
    actions = parser.add_subparsers(dest="action", required=True)
    for name, words in ACTIONS:
        _module(name).add_options(actions.add_parser(name, help=words, description=words))


def main(chosen: argparse.Namespace) -> int:
    """Does the action."""
    return _module(chosen.action).main(chosen)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"labkit.classroom.{name}_command")
