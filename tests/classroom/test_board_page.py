"""The board's page is for the instructor alone: on loopback, by its token, and nothing else runs in
it."""

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import psutil
import pytest
from classroom.seats import folder_in, put, seat, tried

from labkit import words
from labkit.__main__ import main
from labkit.classroom import page_run, room_picture
from labkit.classroom.page_run import MOST_CONNECTIONS, Site


@pytest.fixture(autouse=True)
def english_again():
    """Whatever language a command has spoken."""
    yield
    words.use("en")


@pytest.fixture
def folder(tmp_path):
    """A board's folder in which Ada is."""
    folder = folder_in(tmp_path)
    put(folder, seat("Ada", better_order=tried("passed", 2)))
    return folder


@pytest.fixture
def site():
    """A site whose page says how often it was made."""
    made = []

    def make() -> str:
        made.append(1)
        return f"<!DOCTYPE html><p>made {len(made)} times"

    with Site(make, room_picture.content_policy()) as site:
        worker = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05})
        worker.start()
        yield site
        site.shutdown()
        worker.join(10)


def ask(site: Site, path: str, **headers: str) -> tuple[int, str, dict]:
    """Status, text and headers of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{site.server_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def test_the_address_opens_the_page_and_nothing_else_does(site):
    address = urlsplit(site.address)
    right = f"/?{address.query}"
    status, text, headers = ask(site, right)
    assert status == 200 and "made 1 times" in text
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy
    for wrong in ("", "?token=", "?token=x", "?token=%ff", "?token=%E4%B8%AD"):
        status, text, headers = ask(site, f"/{wrong}")
        assert status == 403 and "made" not in text and site.token not in text
    for path in (f"{right}x", right[:-1]):
        status, text, headers = ask(site, path)
        assert status == 403 and "made" not in text and site.token not in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert ask(site, f"/other?{address.query}")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "", "localhost:1"])
def test_a_browser_that_was_sent_here_by_another_site_is_refused(site, host):
    assert ask(site, f"/?{urlsplit(site.address).query}", Host=host)[0] == 403


def test_other_methods_change_nothing(site):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        connection = http.client.HTTPConnection("127.0.0.1", site.server_port, timeout=10)
        connection.request(method, f"/?{urlsplit(site.address).query}")
        assert connection.getresponse().status == 501
        connection.close()


def test_each_site_has_a_token_of_its_own():
    tokens = set()
    for _ in range(3):
        with Site(str, "") as site:
            tokens.add(site.token)
    assert len(tokens) == 3 and min(map(len, tokens)) >= 43


def test_a_page_is_made_once_a_second_at_most(site):
    texts = {ask(site, f"/?{urlsplit(site.address).query}")[1] for _ in range(10)}
    assert len(texts) <= 3


def test_connections_that_say_nothing_do_not_stay(site, monkeypatch):
    monkeypatch.setattr(page_run._Answer, "timeout", 0.5)
    with contextlib.ExitStack() as held:
        for _ in range(3 * MOST_CONNECTIONS):
            silent = socket.create_connection(("127.0.0.1", site.server_port), timeout=5)
            held.enter_context(silent)
        assert threading.active_count() < 2 * MOST_CONNECTIONS
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                if ask(site, f"/?{urlsplit(site.address).query}")[0] == 200:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_garbage_ends_nothing(site):
    for garbage in (b"\x00\xff\r\n\r\n", b"GET " + b"x" * 70_000, b"GET / HTTP/9.9\r\n\r\n", b""):
        connection = socket.create_connection(("127.0.0.1", site.server_port), timeout=5)
        with connection, contextlib.suppress(OSError):
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert ask(site, f"/?{urlsplit(site.address).query}")[0] == 200


def test_the_command_listens_on_loopback_and_ends_by_ctrl_c(folder):
    command = [sys.executable, "-m", "labkit", "classroom", "board", str(folder)]
    # who runs the tests in the background may have Ctrl-C ignored, by children too
    heeding = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, heeding)
    with process:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())[
                0
            ]
            process.stdout.readline()
            ends = psutil.Process(process.pid).net_connections(kind="inet")
            assert [end.laddr.ip for end in ends] == ["127.0.0.1"]
            assert address.partition("token=")[2] not in " ".join(
                psutil.Process(process.pid).cmdline()
            )
            with urllib.request.urlopen(address, timeout=20) as answer:
                assert "Ada" in answer.read().decode()
            put(folder, seat("Bo"))
            deadline = time.monotonic() + 20
            while "Bo" not in urllib.request.urlopen(address, timeout=20).read().decode():
                assert time.monotonic() < deadline
                time.sleep(0.2)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 130


def test_a_folder_that_goes_keeps_the_site(tmp_path, folder):
    from labkit.classroom.board_command import _site
    from labkit.classroom.room_run import Folder

    with _site(Folder(folder), 0) as site:
        worker = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05})
        worker.start()
        try:
            assert ask(site, f"/?{urlsplit(site.address).query}")[0] == 200
            folder.rename(tmp_path / "away")
            time.sleep(page_run.FRESH_S + 0.1)
            status, text, _ = ask(site, f"/?{urlsplit(site.address).query}")
            assert status == 503 and "folder" in text
            (tmp_path / "away").rename(folder)
            assert ask(site, f"/?{urlsplit(site.address).query}")[0] == 200
        finally:
            site.shutdown()
            worker.join(10)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_once_writes_a_page_that_asks_for_nothing(folder, tmp_path, language, capsys):
    page = tmp_path / "page.html"
    assert main(["classroom", "board", str(folder), "--in", language, "--once", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "Ada" in text and "<script" not in text and "refresh" not in text
    assert {"en": "The classroom", "zh": "教室进度板"}[language] in text
    assert "http://" not in text and "https://" not in text


def test_make_makes_the_folder_and_says_what_to_set(tmp_path, capsys):
    folder = tmp_path / "new"
    assert main(["classroom", "board", str(folder), "--make"]) == 0
    assert f"LABKIT_BOARD={folder.resolve()}" in capsys.readouterr().out
    assert folder.stat().st_mode & 0o7777 == 0o3733
    assert folder.stat().st_gid == os.getegid()


def test_what_makes_no_sense_says_the_way_out(tmp_path, folder, capsys):
    assert main(["classroom", "board", str(tmp_path / "nowhere")]) == 2
    assert "--make" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["classroom", "board", str(folder), "--port", str(port)]) == 2
        assert "Name another, or 0" in capsys.readouterr().err
    for port in ("-1", "70000"):
        assert main(["classroom", "board", str(folder), f"--port={port}"]) == 2
    assert main(["classroom", "board", str(folder), "--per-account", "0"]) == 2
