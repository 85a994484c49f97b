"""A real JupyterLab in a real Chromium, for the tests marked ``browser``, for screenshots and for
benchmarks.

The server listens on loopback at a free port with a token, keeps every setting in a temporary
folder, and serves a copy of the notebooks it is given: neither the user's Jupyter nor the
repository is touched. Several pages may be open at once, each with settings of its own. Every wait
has an end; what must come is given half a minute, since other programs may be computing.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from browser.server import PATIENCE_S, Server, serve

__all__ = ["Page", "Server", "browse", "browser", "chromium", "serve"]

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
EVERY_MS = 100
"""How often a page is asked whether its kernel rests: at every frame, as else, is a load."""
KERNEL_IDLE = """() => {
  const context = window.jupyterapp.shell.currentWidget?.context?.sessionContext;
  const prompts = [...document.querySelectorAll('.jp-InputPrompt')];
  const running = prompts.some(prompt => prompt.textContent.includes('*'));
  return context?.session?.kernel?.status === 'idle' && !running;
}"""
KERNEL_BUSY = """() => {
  const context = window.jupyterapp.shell.currentWidget.context.sessionContext;
  return context.session.kernel.status === 'busy';
}"""
OCCUPIED = """from pathlib import Path
import time
while not Path({flag!r}).exists():
    {meanwhile}"""


def chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Page:
    """One notebook, open in JupyterLab in Chromium. ``page`` is Playwright's."""

    def __init__(self, page: object, server: Server, name: str, timeout_s: float = 120) -> None:
        self.page = page
        self.server = server
        self.name = name
        page.set_default_timeout(1000 * PATIENCE_S)
        workspace = secrets.token_hex(8)
        page.goto(
            f"{server.url}/lab/workspaces/{workspace}/tree/{quote(name)}"
            f"?reset&token={server.token}",
            timeout=timeout_s * 1000,
        )
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=timeout_s * 1000)
        page.wait_for_function(KERNEL_IDLE, polling=EVERY_MS, timeout=timeout_s * 1000)
        if page.query_selector("#jp-left-stack:not(.lm-mod-hidden)"):
            self.command("application:toggle-left-area")

    def command(self, name: str) -> None:
        """Runs a JupyterLab command, e.g. ``docmanager:save``, without waiting for what it
        starts."""
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name) }", name)

    def run_all(self, timeout_s: float = 120) -> None:
        """Runs all cells and waits until the kernel is idle again."""
        self.command("notebook:run-all-cells")
        self.page.wait_for_timeout(300)
        self.wait_idle(timeout_s)

    def wait_idle(self, timeout_s: float = 120) -> None:
        """Waits until no cell is running."""
        self.page.wait_for_function(KERNEL_IDLE, polling=EVERY_MS, timeout=timeout_s * 1000)

    def until(self, holds: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits until something holds."""
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, "it did not come"
            self.page.wait_for_timeout(50)

    def execute(self, code: str) -> None:
        """Has the kernel run code as a cell would, without waiting for its end."""
        self.page.evaluate(
            """code => { window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel
            .requestExecute({code}) }""",
            code,
        )

    @contextmanager
    def occupied(self, meanwhile: str = "time.sleep(0.05)") -> Iterator[None]:
        """The kernel is busy, as with a long cell, until the block is left."""
        flag = Path(tempfile.mkdtemp(dir=self.server.root)) / "done"
        self.execute(OCCUPIED.format(flag=str(flag), meanwhile=meanwhile))
        self.page.wait_for_function(KERNEL_BUSY, polling=EVERY_MS)
        try:
            yield
        finally:
            flag.touch()
            self.wait_idle()

    def save(self) -> None:
        """Saves the notebook and waits until it is on disk."""
        self.command("docmanager:save")
        self.page.wait_for_function(
            "() => !window.jupyterapp.shell.currentWidget.context.model.dirty"
        )

    def dark(self, on: bool = True) -> None:
        """Switches the theme."""
        theme = "JupyterLab Dark" if on else "JupyterLab Light"
        self.page.evaluate(
            "theme => { window.jupyterapp.commands.execute('apputils:change-theme', {theme}) }",
            theme,
        )
        self.page.wait_for_selector(
            f"body[data-jp-theme-light='{'false' if on else 'true'}']", state="attached"
        )
        self.page.wait_for_selector(
            "#jupyterlab-splash", state="detached"
        )  # it fades out over the page

    @contextmanager
    def theme(self, dark: bool) -> Iterator[None]:
        """JupyterLab's light or dark theme, and the light one again afterwards."""
        self.dark(dark)
        try:
            yield
        finally:
            self.dark(False)

    def screenshots(
        self, folder: Path, prefix: str = "", width_px: int = 1280, height_px: int = 1400
    ) -> list[Path]:
        """Screenshots of the whole notebook from top to bottom, in pieces of the window's
        height."""
        folder.mkdir(parents=True, exist_ok=True)
        self.page.set_viewport_size({"width": width_px, "height": height_px})
        self.page.wait_for_timeout(500)
        paths = []
        top = 0
        while True:
            total, seen = self.page.evaluate(
                """top => { const box = document.querySelector('.jp-WindowedPanel-outer');
                box.scrollTop = top; return [box.scrollHeight, box.clientHeight] }""",
                top,
            )
            self.page.wait_for_timeout(300)
            paths.append(folder / f"{prefix}{len(paths):02d}.png")
            self.page.screenshot(path=paths[-1])
            top += seen - 40
            if top >= total - 40 or len(paths) >= 60:
                return paths


@contextmanager
def browser() -> Iterator[object]:
    """A Chromium of Playwright's. One at a time: within such a block it is the same one again."""
    if _running:
        yield _running[0]
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium(), args=CHROMIUM_ARGS, timeout=60_000
        )
        _running.append(running)
        try:
            yield running
        finally:
            _running.clear()
            running.close()


_running: list[object] = []


@contextmanager
def browse(
    running: object, server: Server, name: str, settings: dict[str, dict] | None = None
) -> Iterator[Page]:
    """Opens a notebook of ``server`` in a browser without memory of earlier ones, with these
    settings too."""
    server.configure(settings or {})
    context = running.new_context(viewport={"width": 1280, "height": 1000})
    try:
        yield Page(context.new_page(), server, name)
    finally:
        context.close()
