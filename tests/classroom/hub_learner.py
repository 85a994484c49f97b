"""A learner at a hub, as their browser: logs in, has a server started, runs cells in a kernel."""

import json
import time
import uuid

import requests
import websocket

ANSWER_S = 120
"""how long one answer of the hub, or one cell, may take"""


class Learner:
    """One name at a hub, with the cookies of its browser."""

    def __init__(self, url, name):
        self.url, self.name = url, name
        self.session = requests.Session()
        self.kernel = ""

    def log_in(self, password):
        """Fills in the page; returns whether the hub let them in."""
        self.session.get(f"{self.url}/hub/login", timeout=ANSWER_S)
        filled = {"username": self.name, "password": password, "_xsrf": self._xsrf()}
        page = self.session.post(
            f"{self.url}/hub/login?next=/hub/home", data=filled, timeout=ANSWER_S
        )
        return page.ok and page.url.endswith("/hub/home")

    def _xsrf(self):
        return next(each.value for each in self.session.cookies if each.name == "_xsrf")

    def spawn(self):
        """Opens the page that starts their server, and waits until that answers."""
        made = self.session.post(
            f"{self.url}/hub/api/users/{self.name}/tokens",
            headers={"X-XSRFToken": self._xsrf(), "Referer": f"{self.url}/hub/home"},
            timeout=ANSWER_S,
        )
        made.raise_for_status()
        self.session.get(f"{self.url}/hub/spawn", timeout=ANSWER_S).raise_for_status()
        self.session.headers["Authorization"] = f"token {made.json()['token']}"
        deadline = time.monotonic() + ANSWER_S
        while not self.ask("get", "api/status", check=False).ok:
            assert time.monotonic() < deadline, f"the server of {self.name} did not start"
            time.sleep(0.2)

    def ask(self, verb, path, *, check=True, **content):
        """Asks their server."""
        answer = self.session.request(
            verb, f"{self.url}/user/{self.name}/{path}", timeout=ANSWER_S, **content
        )
        if check:
            answer.raise_for_status()
        return answer

    def run(self, code):
        """Runs a cell, in a kernel that is started for the first one. Returns what it printed."""
        if not self.kernel:
            self.kernel = self.ask("post", "api/kernels", json={}).json()["id"]
        place = f"{self.url.replace('http', 'ws', 1)}/user/{self.name}/api/kernels/{self.kernel}"
        socket = websocket.create_connection(
            f"{place}/channels",
            header=[f"Authorization: {self.session.headers['Authorization']}"],
            timeout=ANSWER_S,
        )
        try:
            asked = _request(code)
            socket.send(json.dumps(asked))
            return _answer(socket, asked["header"]["msg_id"])
        finally:
            socket.close()


def _request(code):
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3"}
    header |= {"username": "", "session": uuid.uuid4().hex, "date": ""}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
    content |= {"allow_stdin": False, "stop_on_error": True}
    parts = {"parent_header": {}, "metadata": {}, "channel": "shell", "buffers": []}
    return {"header": header, "content": content, **parts}


def _answer(socket, asked):
    """What the cell printed. Raises AssertionError where it failed."""
    printed = ""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        message = json.loads(socket.recv())
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream":
            printed += content["text"]
        elif kind == "error":
            raise AssertionError("\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return printed
    raise AssertionError(f"no answer within {ANSWER_S} s")
