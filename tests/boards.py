"""optuna-dashboard as people see it: served to a browser, or asked for its answers alone."""

import base64
import contextlib
import io
import json
import os
import shutil
import socketserver
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.util import setup_testing_defaults

import pytest

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 1280, 900
PATIENCE = 60
"""Seconds that a page has to show what it is waited for."""

_PAGES = "/api/meta", "/api/studies", "/api/studies/{id}", "/csv/{id}"


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format, *args):
        pass


@contextlib.contextmanager
def served(storage):
    """The dashboard's address on this machine."""
    board = pytest.importorskip("optuna_dashboard", reason="it is not installed (dev extra)")
    with make_server("127.0.0.1", 0, board.wsgi(storage), _Server, _Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/dashboard"
        finally:
            server.shutdown()
            thread.join()


def answers(storage, study_id):
    """What the dashboard answers about one study, by path; nothing is served."""
    board = pytest.importorskip("optuna_dashboard", reason="it is not installed (dev extra)")
    app, found = board.wsgi(storage), {}
    for page in _PAGES:
        path = page.format(id=study_id)
        told = []
        request = {"PATH_INFO": path, "wsgi.errors": io.StringIO()}
        setup_testing_defaults(request)
        body = app(request, lambda status, headers, *_, told=told: told.append(status))
        found[path] = b"".join(body)
        assert told == ["200 OK"], (path, told)
    return found


class Browser:
    """A tab of a Chromium without a head, driven by its own debugging protocol.

    Args:
        socket: Connected to the tab.
    """

    def __init__(self, socket):
        self._socket, self._calls = socket, 0

    def _call(self, method, **given):
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": given}))
        while (told := json.loads(self._socket.recv())).get("id") != self._calls:
            pass  # events, of which none was asked for
        assert "error" not in told, told["error"]
        return told["result"]

    def _eval(self, script):
        told = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def text(self, address, *awaited):
        """The text of a page, once it shows all that is waited for."""
        self._call("Page.navigate", url="about:blank")  # nothing of the page before is read
        self._call("Page.navigate", url=address)
        until = time.monotonic() + PATIENCE
        missing = list(awaited)
        while missing:
            assert time.monotonic() < until, f"{address} never showed {missing}: {self._shown()}"
            time.sleep(0.1)
            shown = self._shown()
            missing = [piece for piece in awaited if piece not in shown]
        return self._shown()

    def _shown(self):
        """Texts of HTML and, after it, of pictures, which are cut in lines by their drawer."""
        return str(
            self._eval(
                "document.body ? document.body.innerText + '\\n' + "
                "[...document.querySelectorAll('svg text')].map(t => t.textContent).join('\\n')"
                " : ''"
            )
        )

    def beyond(self, address, width, *, dark=False):
        """How many pixels of a page lie beside a window of that width, as a phone has it."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT,
                   deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=address)
        until = time.monotonic() + PATIENCE
        here = json.dumps(address)
        while not self._eval(f"location.href == {here} && document.readyState == 'complete'"):
            assert time.monotonic() < until, f"{address} was never complete"
            time.sleep(0.05)
        return int(self._eval("document.scrollingElement.scrollWidth")) - width

    def ids(self):
        """Names of the page's elements."""
        return set(self._eval("[...document.querySelectorAll('[id]')].map(e => e.id)"))

    def picture(self, name, first="body"):
        """Keeps a picture of the window for the documentation, where SCREENSHOTS is set."""
        if "SCREENSHOTS" not in os.environ:
            return
        self._eval(
            f"document.querySelector({json.dumps(first)}).scrollIntoView(); scrollBy(0, -130)"
        )  # a bar hides the top of the window
        taken = base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])
        assert len(taken) <= 150_000
        (DOCS / f"{name}.png").write_bytes(taken)


@contextlib.contextmanager
def browser(folder):
    """A browser with a new profile; skips where there is none."""
    websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    with subprocess.Popen(
        [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--remote-debugging-port=0", f"--window-size={WIDTH},{HEIGHT}",
         f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            address = f"http://127.0.0.1:{_port(folder / 'DevToolsActivePort', process)}/json/list"
            with urllib.request.urlopen(address, timeout=PATIENCE) as told:
                tab = next(t for t in json.load(told) if t["type"] == "page")
            socket = websocket.create_connection(
                tab["webSocketDebuggerUrl"], timeout=PATIENCE, suppress_origin=True
            )
            with contextlib.closing(socket):
                yield Browser(socket)
        finally:
            process.terminate()


def _port(file, process):
    """Where the browser listens, once it has written that down."""
    until = time.monotonic() + PATIENCE
    while not (file.exists() and len(file.read_text().splitlines()) > 1):
        assert process.poll() is None, "Chromium ended before it listened"
        assert time.monotonic() < until, "Chromium never said where it listens"
        time.sleep(0.05)
    return int(file.read_text().splitlines()[0])
