"""A real JupyterLab in a real Chromium, for the tests marked ``browser``, for screenshots and for
benchmarks.

The server listens on loopback at a free port with a token, keeps every setting in a temporary
folder, and serves a copy of the notebooks it is given: neither the user's Jupyter nor the
repository is touched. Every wait has an end.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

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
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
}
KERNEL_IDLE = """() => {
  const panel = window.jupyterapp.shell.currentWidget, context = panel?.context?.sessionContext;
  const running = [...document.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.textContent.includes('*'));
  return context?.session?.kernel?.status === 'idle' && !running;
}"""


def chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running JupyterLab."""

    url: str
    """where it listens, without a trailing slash"""
    token: str
    """its secret"""
    root: Path
    """the folder it serves"""
    env: dict[str, str]
    """the environment it runs in: its settings and trust database live there"""

    def trust(self, name: str) -> None:
        """Marks a notebook as trusted, as ``jupyter trust`` does."""
        subprocess.run(
            [sys.executable, "-m", "jupyter", "trust", str(self.root / name)],
            env=self.env,
            check=True,
            capture_output=True,
            timeout=60,
        )


@contextmanager
def serve(*notebooks: Path, dark: bool = False, settings: dict | None = None) -> Iterator[Server]:
    """Starts JupyterLab over copies of ``notebooks``, with these settings too; ends it and its
    kernels on leaving."""
    with tempfile.TemporaryDirectory(
        prefix="labkit-jupyter-", ignore_cleanup_errors=True
    ) as folder:
        home, root = Path(folder) / "home", Path(folder) / "root"
        root.mkdir()
        for notebook in notebooks:
            shutil.copy(notebook, root)
        theme = (
            {"@jupyterlab/apputils-extension/themes": {"theme": "JupyterLab Dark"}} if dark else {}
        )
        for name, setting in (SETTINGS | theme | (settings or {})).items():
            path = home / "settings" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(setting))
        token, port = secrets.token_hex(16), _free_port()
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--ip=127.0.0.1",
            "--allow-root",
            f"--port={port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={root}",
            f"--IdentityProvider.token={token}",
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.news_url=",
            "--LabApp.extension_manager=readonly",
        ]
        env = _environment(home)
        with (Path(folder) / "server.log").open("w") as log:
            process = subprocess.Popen(
                command, env=env, cwd=root, stdout=log, stderr=log, start_new_session=True
            )
        try:
            server = Server(url=f"http://127.0.0.1:{port}", token=token, root=root, env=env)
            _await_server(server, process, Path(folder) / "server.log")
            yield server
        finally:
            _end(process)


class Page:
    """One notebook, open in JupyterLab in Chromium. ``page`` is Playwright's."""

    def __init__(self, page: object, server: Server, name: str, timeout_s: float = 120) -> None:
        self.page, self.server = page, server
        page.set_default_timeout(30_000)
        page.goto(
            f"{server.url}/lab/tree/{name}?reset&token={server.token}", timeout=timeout_s * 1000
        )
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=timeout_s * 1000)
        page.wait_for_function(KERNEL_IDLE, timeout=timeout_s * 1000)
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
        self.page.wait_for_function(KERNEL_IDLE, timeout=timeout_s * 1000)

    def execute(self, code: str) -> None:
        """Has the kernel run code as a cell would, without waiting for its end."""
        self.page.evaluate(
            """code => { window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel
            .requestExecute({code}) }""",
            code,
        )

    def save(self) -> None:
        """Saves the notebook and waits until it is on disk."""
        self.command("docmanager:save")
        self.page.wait_for_function(
            "() => !window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=30_000
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

    def screenshots(
        self, folder: Path, prefix: str = "", width_px: int = 1280, height_px: int = 1400
    ) -> list[Path]:
        """Screenshots of the whole notebook from top to bottom, in pieces of the window's
        height."""
        folder.mkdir(parents=True, exist_ok=True)
        self.page.set_viewport_size({"width": width_px, "height": height_px})
        self.page.wait_for_timeout(500)
        paths, top = [], 0
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
    """A Chromium of Playwright's, one at a time."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium(), args=CHROMIUM_ARGS, timeout=60_000
        )
        try:
            yield running
        finally:
            running.close()


@contextmanager
def browse(running: object, server: Server, name: str) -> Iterator[Page]:
    """Opens a notebook of ``server`` in a browser without memory of earlier ones."""
    context = running.new_context(viewport={"width": 1280, "height": 1000})
    try:
        yield Page(context.new_page(), server, name)
    finally:
        context.close()


def _environment(home: Path) -> dict[str, str]:
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        **{name: str(home / place) for name, place in places.items()},
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await_server(
    server: Server, process: subprocess.Popen, log: Path, timeout_s: float = 90
) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{server.url}/api/status?token={server.token}", timeout=5)
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(
        f"JupyterLab did not answer within {timeout_s:.0f} s (exit status {process.poll()}):\n"
        f"{log.read_text()[-3000:]}"
    )


def _end(process: subprocess.Popen) -> None:
    """Ends the server and the kernels it started, and nothing else; what has not ended in 3 s is
    killed."""
    if process.poll() is None:
        started = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
        for kernel in psutil.wait_procs(started, timeout=1)[1]:
            kernel.kill()
