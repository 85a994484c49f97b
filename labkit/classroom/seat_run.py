"""A learner's place in a room: ``python -m labkit.classroom.seat_run NOTEBOOKS [options]``.

The hub starts it as the learner. It lays the course's notebooks into their folder, and becomes
JupyterHub's server for one user. What lies there already is the learner's and stays as it is.
DeepSpeed's ops are made one's own: torch lays a lock beside them while a rank loads one, and the
lock of a rank that was stopped then would hold up the whole room.
"""

import contextlib
import os
import secrets
import shutil
import sys
from pathlib import Path

from labkit.machine import ops

LAID = ("*.ipynb", "*.md", "pictures/*", "zh/*.ipynb", "zh/*.md", "zh/pictures/*")
"""What of the course's folder a learner gets; solutions are not among it."""
NOT_LAID = ("README.md", "COVERAGE.md")
"""files for who writes the course"""


def lay(notebooks: Path, folder: Path) -> list[Path]:
    """Copies what is not there yet; returns the new files. A copy is whole or not there."""
    laid = []
    for pattern in LAID:
        for source in sorted(notebooks.glob(pattern)):
            target = folder / source.relative_to(notebooks)
            if source.name in NOT_LAID or not source.is_file() or os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            half = target.with_name(f".{secrets.token_hex(4)}")
            shutil.copyfile(source, half)
            os.replace(half, target)
            laid.append(target)
    return laid


def own_ops(home: Path) -> dict[str, str]:
    """The environment that names a learner's own folder of DeepSpeed's ops: links to those that are
    built, without the locks that were left. Nothing where none are built."""
    built = ops.folder()
    if not built.is_dir() or ops.missing():
        return {}
    own = home / ".cache" / "labkit" / built.name
    for source in built.glob("*/*"):
        target = own / source.relative_to(built)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in (".so", ".o"):
            with contextlib.suppress(FileExistsError):
                target.symlink_to(source)
        elif source.name != "lock" and not target.exists():
            shutil.copyfile(source, target)
    for lock in own.glob("*/lock"):
        lock.unlink()
    return {"TORCH_EXTENSIONS_DIR": str(own)}


def main(arguments: list[str]) -> None:
    """Does not return: this process is the server from then on."""
    notebooks, *options = arguments
    folder = Path(os.environ["JUPYTERHUB_ROOT_DIR"]).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    lay(Path(notebooks), folder)
    os.environ.update(own_ops(Path.home()))
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", *options])


if __name__ == "__main__":
    main(sys.argv[1:])
