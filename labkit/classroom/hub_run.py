"""The hub of a room: what JupyterHub is told, so that thirty learners share one machine.

``jupyterhub_config.py``, which ``python -m labkit classroom hub`` writes, says what is particular
to a room and calls ``configure``. Each learner has a server of their own, started by ``seat_run``,
and all launches go through one gate (``labkit.launching.gate``).
"""

import importlib.util
import ipaddress
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.launching import gate
from labkit.machine import resources
from labkit.units import check_real, check_whole
from labkit.words import LANGUAGES

PASSWORD, TEACHER_PASSWORD = "password", "teacher_password"
"""The files of a room's folder that hold them, where learners have no accounts."""
SHORTEST = {PASSWORD: 8, TEACHER_PASSWORD: 32}
"""what JupyterHub asks of them, in characters"""
CONFIG, BOARD = "jupyterhub_config.py", "board"
"""in a room's folder: what the hub is told, and the board's folder, where there is one"""
LAB = "lab"
"""The folder of what JupyterLab is told in this room."""
NEWS = "@jupyterlab/apputils-extension:announcements"
"""asks whether to fetch news from the network, in every new home"""
NAME = r"^[a-z][a-z0-9._-]{0,31}$"
"""What a learner may be called: it names a folder."""
LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""of a password that is written on a board: none looks like another"""
START_S = 300
"""How long a server may take to start: with thirty at once on two cores, each waits for cores."""
PROXY = Path("hub", "node_modules", ".bin", "configurable-http-proxy")
"""where ``make hub`` puts the proxy, in the environment"""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is particular to one room."""

    folder: Path
    """what the hub keeps: its passwords and database, the gate, learners' folders"""
    notebooks: Path
    """of the course: every learner gets a copy"""
    language: str = "en"
    """of the page that a learner sees first"""
    accounts: str = ""
    """the group of learners who have accounts on this machine and log in with them; empty: all
    learners work as the user who starts the hub, and log in with the room's password"""
    names: tuple[str, ...] = ()
    """who may log in where there are no accounts; empty: any name"""
    teachers: tuple[str, ...] = ()
    """who may look after the others' servers; empty: nobody, and without accounts ``teacher``"""
    learners: int = 40
    """how many may work at once"""
    ip: str = "127.0.0.1"
    """where the hub listens; "" everywhere"""
    port: int = 8000
    """for browsers; the two after it are the hub's own, on the loopback"""
    certificate: str = ""
    """a file, for https"""
    key: str = ""
    """its key, a file"""
    plain_http: bool = False
    """whether passwords may travel unencrypted on a network"""
    as_root: bool = False
    """whether everybody may be root, in a room without accounts"""
    idle_minutes: float = 120.0
    """after which a kernel that does nothing is ended, and a server without kernels"""

    def __post_init__(self) -> None:
        check_whole(1, 10**4, learners=self.learners)
        check_whole(1, 65533, port=self.port)
        check_real(1, 1e5, idle_minutes=self.idle_minutes)
        if self.language not in LANGUAGES:
            raise ValueError(f"language is one of {', '.join(LANGUAGES)}; got {self.language!r}")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("https needs a certificate and its key; got one of them")
        if not (_is_loopback(self.ip) or self.certificate or self.plain_http):
            raise ValueError(
                f"passwords travel readably on a network without https; got ip {self.ip!r}. Give "
                "a certificate and its key, leave the hub on 127.0.0.1 behind a server that has "
                "them, or allow plain http"
            )

    @property
    def admins(self) -> tuple[str, ...]:
        """Who may look after the others' servers."""
        return self.teachers or (() if self.accounts else ("teacher",))

    @property
    def url(self) -> str:
        """Where browsers find it."""
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{self.ip or '*'}:{self.port}"


def missing() -> list[str]:
    """What a hub needs and is not installed; ``make hub`` installs it."""
    lacks = [] if importlib.util.find_spec("jupyterhub") else ["jupyterhub"]
    return lacks if proxy() else [*lacks, "configurable-http-proxy"]


def proxy() -> str:
    """The command of the hub's proxy; "" where there is none."""
    own = Path(sys.prefix) / PROXY
    return str(own) if own.exists() else shutil.which(PROXY.name) or ""


def furnish(room: Room) -> None:
    """Makes what the hub needs in its folder: a gate that all may use, a place for its own files
    and, in a room without accounts, passwords. What is there stays."""
    room.folder.mkdir(parents=True, exist_ok=True)
    room.folder.chmod(0o711 if room.accounts else 0o700)
    for name, mode in (("gate", 0o1777), ("hub", 0o700)):
        place = room.folder / name
        place.mkdir(exist_ok=True)
        place.chmod(mode)
    _quieten(room.folder / LAB)
    if room.accounts:
        return
    (room.folder / "learners").mkdir(mode=0o700, exist_ok=True)
    for name, made in ((PASSWORD, easy_password), (TEACHER_PASSWORD, secrets.token_urlsafe)):
        if not (room.folder / name).exists():
            file = os.open(room.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as opened:
                opened.write(made() + "\n")


def _quieten(folder: Path) -> None:
    """JupyterLab in this room does not ask each learner whether to fetch its news."""
    inner = folder / "labconfig"
    inner.mkdir(parents=True, exist_ok=True)
    file = inner / "page_config.json"
    if not file.exists():
        file.write_text(json.dumps({"disabledExtensions": {NEWS: True}}) + "\n", "utf-8")
    for path, mode in ((folder, 0o755), (inner, 0o755), (file, 0o644)):
        path.chmod(mode)


def easy_password() -> str:
    """Twelve random letters and digits in groups of four: 60 bits."""
    letters = "".join(secrets.choice(LETTERS) for _ in range(12))
    return "-".join((letters[:4], letters[4:8], letters[8:]))


def password(folder: Path, name: str) -> str:
    """A password as its file has it. Raises ValueError for one that is missing or too short, or
    that others may read."""
    path = folder / name
    if not path.is_file():
        raise ValueError(
            f"the hub needs a password in {path}, and it is not there. Write a new one"
        )
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"only you may read {path}; others can. Run: chmod 600 {path}")
    text = path.read_text(encoding="utf-8").strip()
    if len(text) < SHORTEST[name]:
        raise ValueError(
            f"the password in {path} has at least {SHORTEST[name]} characters; got {len(text)}. "
            "Delete the file: the command that wrote it writes a new one"
        )
    return text


def configure(c: Mapping, room: Room) -> None:
    """Tells JupyterHub all of it: ``c`` is the configuration that it gives its file. Raises
    ValueError for a room that can't be, or is not safe."""
    if lacks := missing():
        raise ValueError(f"a hub needs {' and '.join(lacks)}. Install what it needs: make hub")
    furnish(room)
    _set_addresses(c, room)
    _set_limits(c, room)
    if room.accounts:
        _set_accounts(c, room)
    else:
        _set_shared(c, room)
    c.Authenticator.username_pattern = NAME
    c.Authenticator.admin_users = set(room.admins)
    c.Spawner.cmd = [sys.executable, "-m", "labkit.classroom.seat_run", str(room.notebooks)]
    c.Spawner.default_url = f"/lab/tree/{'zh/' if room.language == 'zh' else ''}index.ipynb"
    c.Spawner.environment = environment(room)
    c.Spawner.env_keep = [*_KEPT, "LABKIT_DEVICE"]


def environment(room: Room) -> dict[str, str]:
    """What every learner's kernels find."""
    told = {
        gate.VARIABLE: str(room.folder / "gate"),
        "JUPYTER_CONFIG_PATH": str(room.folder / LAB),
        "OMP_NUM_THREADS": str(max(1, resources.cores() // room.learners)),  # a kernel's own
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        **resources.WAITING,
    }
    board = room.folder / BOARD
    return {**told, "LABKIT_BOARD": str(board)} if board.is_dir() else told


_KEPT = ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_ROOT", "CONDA_DEFAULT_ENV", "LANG", "LC_ALL")


def _set_addresses(c: Mapping, room: Room) -> None:
    own = room.folder / "hub"
    c.JupyterHub.bind_url = room.url.replace("*", "")
    c.JupyterHub.ssl_cert = room.certificate
    c.JupyterHub.ssl_key = room.key
    c.JupyterHub.hub_ip = "127.0.0.1"
    c.JupyterHub.hub_port = room.port + 2
    c.JupyterHub.db_url = f"sqlite:///{own / 'jupyterhub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(own / "cookie_secret")
    c.ConfigurableHTTPProxy.command = [proxy()]
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{room.port + 1}"
    c.ConfigurableHTTPProxy.pid_file = str(own / "proxy.pid")


def _set_limits(c: Mapping, room: Room) -> None:
    """How many at once, how long a start may take, and when what is idle ends."""
    idle_s = round(60 * room.idle_minutes)
    c.JupyterHub.active_server_limit = room.learners + len(room.admins)
    c.JupyterHub.concurrent_spawn_limit = room.learners
    c.Spawner.start_timeout = START_S
    c.Spawner.http_timeout = START_S
    c.Spawner.args = [
        f"--MappingKernelManager.cull_idle_timeout={idle_s}",
        "--MappingKernelManager.cull_connected=True",
        f"--ServerApp.shutdown_no_activity_timeout={idle_s}",
    ]


def _set_accounts(c: Mapping, room: Room) -> None:
    """Learners are users of this machine: the hub runs as root and becomes each of them."""
    if os.geteuid():
        raise ValueError(
            f"a hub for the accounts of the group {room.accounts!r} is started by root, which "
            "becomes each learner. Start it so, or leave accounts empty"
        )
    for path in (Path(sys.prefix), Path(sys.base_prefix), room.notebooks):
        if closed := _closed(path):
            raise ValueError(
                f"learners read {path}, and can't enter {closed}. Put the course where all may "
                "read it (/opt, /srv), or open that folder"
            )
    c.JupyterHub.authenticator_class = "pam"
    c.JupyterHub.spawner_class = "localprocess"
    c.LocalAuthenticator.allowed_groups = {room.accounts}
    c.Authenticator.allowed_users = set(room.admins)
    c.PAMAuthenticator.open_sessions = False
    c.Spawner.notebook_dir = "~/labkit"


def _set_shared(c: Mapping, room: Room) -> None:
    """All learners are one user of this machine, each with a folder as home."""
    if not os.geteuid() and not room.as_root:
        raise ValueError(
            "in a room without accounts everybody is the user who starts the hub; that is root "
            "now. Start it as a user made for this, or, in a container that holds nothing else, "
            "say as_root=True"
        )
    c.JupyterHub.authenticator_class = "shared-password"
    c.JupyterHub.spawner_class = "simple"
    c.SharedPasswordAuthenticator.user_password = password(room.folder, PASSWORD)
    c.SharedPasswordAuthenticator.admin_password = password(room.folder, TEACHER_PASSWORD)
    c.Authenticator.allowed_users = set(room.names)
    c.Authenticator.allow_all = not room.names
    c.SimpleLocalProcessSpawner.home_dir_template = str(room.folder / "learners" / "{username}")
    c.Spawner.notebook_dir = "~/course"
    if not os.geteuid():
        c.Spawner.args = [*c.Spawner.args, "--allow-root"]


def _is_loopback(ip: str) -> bool:
    return ip == "localhost" or (bool(ip) and ipaddress.ip_address(ip).is_loopback)


def _closed(path: Path) -> Path | None:
    """The folder on the way to a path that not everybody may enter; None where all may."""
    resolved = path.resolve()
    for each in (resolved, *resolved.parents):
        if not each.stat().st_mode & stat.S_IXOTH:
            return each
    return None
