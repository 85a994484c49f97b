"""The command writes a room; a room that is not safe, or can't be, is refused."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from jupyterlab_server.config import get_page_config
from traitlets.config import PyFileConfigLoader

from labkit.__main__ import main
from labkit.classroom import hub_command, hub_run, seat_run
from labkit.classroom.hub_run import PASSWORD, TEACHER_PASSWORD, Room

CONFIGS = "JUPYTER_CONFIG_PATH"


@pytest.fixture
def room(tmp_path):
    """A furnished room without accounts."""
    room = Room(folder=tmp_path / "room", notebooks=hub_command.NOTEBOOKS, as_root=True)
    hub_run.furnish(room)
    return room


@pytest.fixture
def installed(monkeypatch):
    """Nothing is missing, whatever this machine has."""
    monkeypatch.setattr(hub_run, "missing", list)
    monkeypatch.setattr(hub_run, "proxy", lambda: "/bin/true")


def mode(path):
    """A file's permissions."""
    return oct(path.stat().st_mode & 0o7777)


def load(folder):
    """What a written configuration tells JupyterHub."""
    return PyFileConfigLoader(hub_command.CONFIG, path=str(folder)).load_config()


def test_the_command_writes_a_room_and_says_how_to_start_it(tmp_path, installed):
    words = [sys.executable, "-m", "labkit", "classroom", "hub", tmp_path / "room", "--as-root"]
    done = subprocess.run(
        [*words, "--names", "ann", "bob", "--port", "9000"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "room"
    config = folder / "jupyterhub_config.py"
    assert f"-m jupyterhub -f {config}" in done.stdout
    assert "http://127.0.0.1:9000" in done.stdout
    found = load(folder)
    assert found.JupyterHub.bind_url == "http://127.0.0.1:9000"
    assert found.Authenticator.allowed_users == {"ann", "bob"}
    assert not found.Authenticator.allow_all
    config.write_text("mine\n")
    again = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0 and config.read_text() == "mine\n"
    assert "stays as it is" in again.stdout


def test_a_room_that_is_there_is_told_as_it_is(tmp_path, capsys):
    folder = str(tmp_path / "room")
    assert main(["classroom", "hub", folder, "--port", "9000"]) == 0
    capsys.readouterr()
    assert main(["classroom", "hub", folder, "--ip", "", "--plain-http", "--port", "9000"]) == 0
    told = capsys.readouterr().out
    assert "changes nothing: --ip, --plain-http\n" in told
    assert "http://127.0.0.1:9000" in told
    assert main(["classroom", "hub", folder]) == 0
    assert "changes nothing" not in capsys.readouterr().out


def test_a_room_on_a_network_is_told_by_the_machines_name(tmp_path, capsys):
    assert main(["classroom", "hub", str(tmp_path / "room"), "--ip", "", "--plain-http"]) == 0
    told = capsys.readouterr().out
    assert f"http://{socket.gethostname()}:8000" in told and "*" not in told
    assert "a letter first" in told


def test_a_board_in_a_room_needs_no_more_than_its_folder(tmp_path, installed, capsys):
    folder = tmp_path / "room"
    assert main(["classroom", "hub", str(folder), "--as-root"]) == 0
    assert "LABKIT_BOARD" not in load(folder).Spawner.environment
    capsys.readouterr()
    assert main(["classroom", "board", str(folder / "board"), "--make"]) == 0
    assert "from its next start on" in capsys.readouterr().out
    assert load(folder).Spawner.environment["LABKIT_BOARD"] == str(folder / "board")


def test_nobody_is_asked_whether_to_fetch_news(room, installed, monkeypatch):
    hub_command.write(room)
    monkeypatch.setenv(CONFIGS, load(room.folder).Spawner.environment[CONFIGS])
    assert hub_run.NEWS in get_page_config([])["disabledExtensions"]
    monkeypatch.delenv(CONFIGS)
    assert hub_run.NEWS not in get_page_config([])["disabledExtensions"]


def test_passwords_are_random_and_only_the_owner_reads_what_the_hub_keeps(room):
    texts = {(room.folder / name).read_text().strip() for name in (PASSWORD, TEACHER_PASSWORD)}
    assert len(texts | {hub_run.easy_password()}) == 3
    assert [mode(room.folder / name) for name in (PASSWORD, TEACHER_PASSWORD)] == ["0o600"] * 2
    assert [mode(room.folder / name) for name in ("hub", "gate")] == ["0o700", "0o1777"]
    assert mode(room.folder) == "0o700"
    before = texts
    hub_run.furnish(room)
    assert {(room.folder / name).read_text().strip() for name in (PASSWORD, TEACHER_PASSWORD)} == (
        before
    )


@pytest.mark.parametrize("text", ["", "\n", "short\n", "1234567"])
def test_an_empty_or_short_password_is_refused(room, installed, text):
    hub_command.write(room)
    assert load(room.folder).SharedPasswordAuthenticator.user_password
    (room.folder / PASSWORD).write_text(text)
    with pytest.raises(ValueError, match="at least 8 characters"):
        load(room.folder)


def test_a_password_that_others_may_read_is_refused(room):
    (room.folder / PASSWORD).chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        hub_run.password(room.folder, PASSWORD)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ip": "0.0.0.0"}, "without https"),
        ({"ip": ""}, "without https"),
        ({"ip": "10.0.0.1", "certificate": "c"}, "a certificate and its key"),
        ({"learners": 0}, "learners"),
        ({"port": 65535}, "port"),
        ({"language": "fr"}, "en, zh"),
        ({"idle_minutes": 0}, "idle_minutes"),
    ],
)
def test_a_room_that_cannot_be_is_refused(tmp_path, fields, words):
    with pytest.raises(ValueError, match=words):
        Room(folder=tmp_path, notebooks=tmp_path, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"ip": "::1"},
        {"ip": "0.0.0.0", "plain_http": True},
        {"ip": "", "certificate": "c", "key": "k"},
    ],
)
def test_a_room_that_can_be_is_made(tmp_path, fields):
    assert Room(folder=tmp_path, notebooks=tmp_path, **fields)


def test_nobody_is_root_by_accident(room, installed, monkeypatch):
    shared = Room(folder=room.folder, notebooks=room.notebooks)
    accounts = Room(folder=room.folder, notebooks=room.notebooks, accounts="learners")
    config = PyFileConfigLoader("x").config
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ValueError, match="everybody is the user who starts the hub"):
        hub_run.configure(config, shared)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    hub_run.configure(config, shared)
    assert "--allow-root" not in config.Spawner.args
    with pytest.raises(ValueError, match="started by root"):
        hub_run.configure(config, accounts)


def test_accounts_need_folders_that_learners_can_enter(tmp_path, installed, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    config = PyFileConfigLoader("x").config
    room = Room(folder=tmp_path / "room", notebooks=closed, accounts="learners")
    with pytest.raises(ValueError, match=r"can't enter .*closed"):
        hub_run.configure(config, room)
    hub_run.configure(config, Room(folder=room.folder, notebooks=Path("/usr"), accounts="learners"))
    assert config.LocalAuthenticator.allowed_groups == {"learners"}
    assert config.Authenticator.admin_users == set()  # an account "teacher" need not be there
    assert config.JupyterHub.authenticator_class == "pam"
    assert not (room.folder / PASSWORD).exists()
    assert mode(room.folder) == "0o711"  # learners reach the gate, and read nothing


def test_what_is_missing_is_said(room, monkeypatch):
    monkeypatch.setattr(hub_run, "missing", lambda: ["jupyterhub"])
    with pytest.raises(ValueError, match=r"a hub needs jupyterhub\. .*make hub"):
        hub_run.configure(PyFileConfigLoader("x").config, room)
    assert any("make hub" in line for line in hub_command.told(room.folder / "c.py", room))
    monkeypatch.setattr(hub_command, "NOTEBOOKS", room.folder)
    with pytest.raises(ValueError, match="Clone the course"):
        hub_command.room_of(None)


def test_every_kernel_finds_the_gate_and_the_board_where_there_is_one(room):
    assert hub_run.environment(room)["LABKIT_GATE"] == str(room.folder / "gate")
    assert "LABKIT_BOARD" not in hub_run.environment(room)
    (room.folder / "board").mkdir()
    assert hub_run.environment(room)["LABKIT_BOARD"] == str(room.folder / "board")


def test_a_learner_gets_the_notebooks_once(tmp_path):
    laid = seat_run.lay(hub_command.NOTEBOOKS, tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in laid}
    assert {"index.ipynb", "zh/index.ipynb", "08_pipeline_parallel.ipynb", "GLOSSARY.md"} <= names
    assert not any("solutions" in name or "src" in name for name in names)
    mine = tmp_path / "08_pipeline_parallel.ipynb"
    mine.write_text("my answers")
    (tmp_path / "index.ipynb").unlink()
    (tmp_path / "00_start_here.ipynb").unlink()
    (tmp_path / "00_start_here.ipynb").symlink_to(tmp_path / "nowhere")
    assert seat_run.lay(hub_command.NOTEBOOKS, tmp_path) == [tmp_path / "index.ipynb"]
    assert mine.read_text() == "my answers"
    assert not (tmp_path / "nowhere").exists()
