"""A JupyterLab of its own for tests: on loopback at a free port with a token, its settings in a
temporary folder, over copies of the notebooks it is given."""

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

PATIENCE_S = 30.0
"""For what must come, however busy the machine is."""
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none", "scrollPastEnd": False},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running JupyterLab."""

    url: str
    """where it listens, without a trailing slash"""
    token: str
    """its secret"""
    root: Path
    """the folder it serves"""
    home: Path
    """where its settings and its trust database live"""
    settings: dict[str, dict]
    """JupyterLab's settings that every page opens with, by plugin"""

    @property
    def env(self) -> dict[str, str]:
        """The environment it runs in."""
        return _environment(self.home)

    def add(self, notebook: Path) -> str:
        """Copies a notebook into a folder of its own, and returns the name that it is served by."""
        folder = Path(tempfile.mkdtemp(dir=self.root))
        shutil.copy(notebook, folder)
        return f"{folder.name}/{notebook.name}"

    def configure(self, settings: dict[str, dict]) -> None:
        """The next page opens with these settings on top of the server's, whatever earlier pages
        have changed."""
        folder = self.home / "settings"
        shutil.rmtree(folder, ignore_errors=True)
        for name, setting in (self.settings | settings).items():
            path = folder / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(setting))

    def trust(self, name: str) -> None:
        """Marks a notebook as trusted, as ``jupyter trust`` does."""
        subprocess.run(
            [sys.executable, "-m", "jupyter", "trust", str(self.root / name)],
            env=self.env,
            check=True,
            capture_output=True,
            timeout=60,
        )

    def end_kernel(self, name: str) -> None:
        """Ends the kernel of a notebook, if it has one."""
        for session in json.loads(self.ask("sessions")):
            if session["path"] == name:
                self.ask(f"sessions/{session['id']}", "DELETE")

    def ask(self, what: str, method: str = "GET") -> bytes:
        """The answer of the server's REST interface."""
        request = urllib.request.Request(
            f"{self.url}/api/{what}",
            headers={"Authorization": f"token {self.token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.read()


@contextmanager
def serve(*notebooks: Path, dark: bool = False, settings: dict | None = None) -> Iterator[Server]:
    """Starts JupyterLab over copies of ``notebooks``, with these settings too; ends it and its
    kernels on leaving."""
    theme = {"@jupyterlab/apputils-extension/themes": {"theme": "JupyterLab Dark"}} if dark else {}
    with tempfile.TemporaryDirectory(
        prefix="labkit-jupyter-", ignore_cleanup_errors=True
    ) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        for notebook in notebooks:
            shutil.copy(notebook, root)
        server = Server(
            url=f"http://127.0.0.1:{_free_port()}",
            token=secrets.token_hex(16),
            root=root,
            home=Path(folder) / "home",
            settings=SETTINGS | theme | (settings or {}),
        )
        server.configure({})
        log = Path(folder) / "server.log"
        process = _start(server, log)
        try:
            _await_server(server, process, log)
            yield server
        finally:
            _end(process)


def _start(server: Server, log: Path) -> subprocess.Popen:
    """The process of JupyterLab."""
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--ip=127.0.0.1",
        "--allow-root",
        f"--port={server.url.rpartition(':')[2]}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={server.root}",
        f"--IdentityProvider.token={server.token}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=",
        "--LabApp.extension_manager=readonly",
    ]
    with log.open("w") as written:
        return subprocess.Popen(
            command,
            env=server.env,
            cwd=server.root,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )


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
            server.ask("status")
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
