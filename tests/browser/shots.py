"""Screenshots of a notebook in real JupyterLab: ``python tests/browser/shots.py NOTEBOOK FOLDER
[--dark]``."""

import argparse
from pathlib import Path

from lab import browse, browser, serve


def main() -> None:
    """Runs the notebook, looks at it from top to bottom, and prints the paths of the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dark", action="store_true", help="use JupyterLab's dark theme")
    parser.add_argument("--no-run", action="store_true", help="show it as it is saved")
    parser.add_argument(
        "--timeout", type=float, default=300, help="seconds that all cells may take together"
    )
    arguments = parser.parse_args()
    with (
        serve(arguments.notebook, dark=arguments.dark) as server,
        browser() as running,
        browse(running, server, arguments.notebook.name) as page,
    ):
        if not arguments.no_run:
            page.run_all(arguments.timeout)
            page.page.wait_for_timeout(1000)
        prefix = f"{arguments.notebook.stem}-{'dark' if arguments.dark else 'light'}-"
        for path in page.screenshots(arguments.folder, prefix):
            print(path)


if __name__ == "__main__":
    main()
