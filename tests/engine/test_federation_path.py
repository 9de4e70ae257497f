"""Who is on the path between an agent and its server, or reaches its port: what they get."""

import base64
import gc
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest import mock

import grpc
import numpy as np
import pytest

from privbo_plugins.errors import FederationError
from privbo_plugins.federation import connect, listening
from privbo_plugins.privacy.noise import InsecureNoise
from tests import inside, wires
from tests.worker import PATIENCE

from .listeners import PLAIN, PUBLIC, M, eventually, locally, serving, traces
from .scenes import SPACE, as_json, vector

pytestmark = pytest.mark.filterwarnings("ignore:This federation adds no noise")


class Relay:
    """A machine between agent and server that records, and may change what it passes on.

    Args:
        invitation: Whose address it stands for.
        change: Makes of a direction ("up" to the server, "down"), the number of bytes passed so
            before and the next bytes those that are passed on.
    """

    def __init__(self, invitation, change=lambda _way, _n, data: data):
        self._there, self._change = wires.address_in(invitation), change
        self._invited = invitation
        self.passed = {"up": bytearray(), "down": bytearray()}
        self._sockets = []
        self._threads = []

    def __enter__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        host, port = self._listening.getsockname()[:2]
        there = "{}:{}".format(*self._there)
        self.invitation = self._invited.replace(there, f"{host}:{port}")
        self._begin(self._accept)
        return self

    def __exit__(self, *_):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(PATIENCE)
        for sock in self._sockets:
            sock.close()

    def _begin(self, *call):
        self._threads.append(threading.Thread(target=call[0], args=call[1:], daemon=True))
        self._threads[-1].start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                far = socket.create_connection(self._there)
                self._sockets += [near, far]
                self._begin(self._pass_on, "up", near, far)
                self._begin(self._pass_on, "down", far, near)

    def _pass_on(self, way, source, to):
        with suppress(OSError):
            while data := source.recv(2**16):
                changed = self._change(way, len(self.passed[way]), data)
                self.passed[way] += data
                to.sendall(changed)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


def test_a_machine_on_the_path_reads_nothing(server):
    """No vector, no secret, no name; the search finds all of them where nothing is encrypted."""
    sent = vector(M, 0)
    assert traces(wires.packed(sent).encode()) != []
    with Relay(server.invitation(0)) as relay:
        with closing(connect(relay.invitation)) as link:
            link.join(PUBLIC.to_dict())
            assert link.submit(sent) == 1
            assert link.collect(1) is not None
    seen = bytes(relay.passed["up"] + relay.passed["down"])
    secret = wires.secret_in(server.invitation(0))
    assert len(seen) > 8 * M
    assert traces(seen) == []
    for known in (secret, base64.b64encode(secret)[:-2], b"privbo-agent", b"submit", b"n_agents"):
        assert known not in seen


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("place", [0, 3, 40, 300, 700, 1000, 1500, 1900])
def test_a_machine_on_the_path_changes_nothing(way, place):
    """One bit of the first connection is turned: what arrives is right, or an error."""
    changed = []

    def turn(direction, n, data):
        if direction != way or changed or not n <= place < n + len(data):
            return data
        changed.append(place)
        return data[: place - n] + bytes([data[place - n] ^ 1]) + data[place - n + 1 :]

    with serving(1, deadline=None) as server, Relay(server.invitation(0), turn) as relay:
        with suppress(FederationError):
            with closing(connect(relay.invitation)) as link:
                t = link.submit(vector(M, 0))
                assert t is not None
                found = link.collect(t)
                assert as_json(found) == locally(1, [0])
        for broadcast in server.broadcasts():
            assert as_json(broadcast)[1:] == locally(1, [0])[1:]
        assert len(server.broadcasts()) <= 1
    assert changed


def test_a_recorded_session_cannot_be_played_again(server):
    with Relay(server.invitation(0)) as relay:
        with closing(connect(relay.invitation)) as link:
            assert link.submit(vector(M, 0)) == 1
    with socket.create_connection(wires.address_in(server.invitation(0)), PATIENCE) as sock:
        with suppress(OSError):
            sock.sendall(relay.passed["up"])
            while sock.recv(2**16):
                pass
    with closing(connect(server.invitation(0))) as link:
        assert len(link.broadcasts()) == 1
        assert link.submit(vector(M, 1)) == 2


CROWD = """
import resource, socket, ssl, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
host, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = []
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
for i in range(n):
    held.append(socket.create_connection((host, port), 60))
    if i % 2:
        held[-1].sendall(bytes([22, 3, 1]))  # the beginning of a handshake
    elif i % 20 == 0:
        held[-1] = context.wrap_socket(held[-1])  # all of it, and no request
print(len(held), flush=True)
sys.stdin.read()
"""


def resident():
    """Bytes of memory that this process holds; 0 where the system does not say."""
    facts = Path("/proc/self/statm")
    return int(facts.read_text().split()[1]) * 4096 if facts.exists() else 0


@pytest.mark.slow
def test_ten_thousand_connections_that_say_nothing_keep_nobody_out():
    """They are held by another process; agents are served, by few threads, in bounded memory.

    Half say nothing, others begin a handshake, and 500 finish it and say nothing then.
    """
    resource = pytest.importorskip("resource", reason="needs limits on open files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = 10_000
    if hard < n + 1000:
        pytest.skip(f"the system allows {hard} open files, and this needs {n + 1000}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with serving(1, deadline=None) as server:
            host, port = wires.address_in(server.invitation(0))
            before, held = threading.active_count(), resident()
            command = [sys.executable, "-c", CROWD, host, str(port), str(n)]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as crowd:
                assert crowd.stdout.readline().strip() == str(n)
                with closing(connect(server.invitation(0))) as link:
                    assert link.submit(vector(M, 0)) == 1
                    assert as_json(link.collect(1)) == locally(1, [0])
                assert threading.active_count() < before + 20
                assert resident() < held + n * 2**16
                crowd.communicate("", timeout=PATIENCE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Silent:
    """Calls whose bodies never come, on a channel of their own."""

    def __init__(self, invitation, *, proves):
        self._end = threading.Event()
        self._stranger = wires.Stranger(invitation).__enter__()
        shown = wires.shown(invitation) if proves else ()
        ask = self._stranger.channel.stream_unary(f"/{wires.SERVICE}/greet")
        self.calls = [ask.future(self._never(), metadata=shown) for _ in range(80)]

    def _never(self):
        self._end.wait()  # until it is closed: else it would end by itself while a test waits
        yield from ()

    def close(self):
        for call in self.calls:
            call.cancel()
        self._end.set()
        self._stranger.__exit__()


@pytest.mark.parametrize("proves", [False, True])
def test_calls_whose_bodies_never_come_take_no_threads_from_others(proves):
    with serving(2, deadline=None) as server:
        silent = [Silent(server.invitation(0), proves=proves) for _ in range(2)]
        try:
            time.sleep(0.3)
            with closing(connect(server.invitation(1))) as link:
                assert link.submit(np.ones(M)) == 1
        finally:
            for calls in silent:
                calls.close()


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(listening, "_BODY", 0.1)
    monkeypatch.setattr(listening, "_POLL", 0.1)
    with serving(1) as server:
        silent = Silent(server.invitation(0), proves=True)
        try:
            eventually(lambda: all(call.done() for call in silent.calls))
        finally:
            silent.close()


# What can be told from outside of a value or a coin ---------------------------------------------

SAMPLED = PLAIN | {"q": 0.5, "z": 1.0}
VALUES = {
    "zeros": np.zeros(M), "huge": np.full(M, 1e308), "tiny": np.full(M, -5e-324),
    "no numbers": np.resize([np.nan, np.inf, -np.inf], M),
    "drawn": np.random.default_rng(0).normal(size=M),
}  # fmt: skip


@contextmanager
def tossed(coin, n_agents):
    """A server whose open round has this coin for agent 0; the last agent has sent."""
    for seed in range(100):
        noise = InsecureNoise(seed)
        with serving(n_agents, deadline=None, settings=SAMPLED, noise=noise) as server:
            assert server.connect(n_agents - 1).submit(np.ones(M)) == 1
            if inside.chosen_in(inside.sum_of_open_round(server))[0] == coin:
                yield server
                return
    raise AssertionError("no seed tosses this coin")


class Scales:
    """A channel whose messages are weighed in both directions, as they are on the wire."""

    def __init__(self, channel, weighed):
        self._channel, self._weighed = channel, weighed

    def unary_unary(self, path):
        ask = self._channel.unary_unary(path)

        def asked(request, **how):
            reply = ask(request, **how)
            self._weighed.append((path, len(request), len(reply)))
            return reply

        return asked

    def close(self):
        self._channel.close()


def weights_of_messages(value, *, coin):
    """Of all messages of an agent that takes part in a round."""
    weighed = []
    create = grpc.secure_channel
    with tossed(coin, 2) as server:
        with mock.patch.object(
            grpc, "secure_channel", lambda *args, **how: Scales(create(*args, **how), weighed)
        ):
            with closing(connect(server.invitation(0))) as link:
                link.join(SPACE.to_dict())
                assert link.submit(value) == 1
                assert link.collect(1) is not None
                assert len(link.broadcasts()) == 1
                link.leave()
    return weighed


def test_no_message_is_longer_or_shorter_for_a_value_or_a_coin():
    found = {
        (name, coin): weights_of_messages(value, coin=coin)
        for name, value in VALUES.items()
        for coin in (False, True)
    }
    calls = [path.rpartition("/")[2] for path, _, _ in found["zeros", False]]
    assert calls == ["greet", "join", "submit", "collect", "broadcasts", "leave"]
    assert len({tuple(weighed) for weighed in found.values()}) == 1


def steps_of(value, *, coin):
    """Every line that the server runs for a vector."""
    steps = []

    def trace(frame, event, _argument):
        if event == "line":
            steps.append((frame.f_code.co_filename, frame.f_lineno))
        return trace

    with tossed(coin, 3) as server:
        link, before = server.connect(0), sys.gettrace()
        gc.collect()
        gc.disable()  # what ends with somebody's garbage would run, and count, in between
        sys.settrace(trace)
        try:
            t = link.submit(value)
        finally:
            sys.settrace(before)
            gc.enable()
        assert t == 1
    return steps


def test_the_server_does_the_same_for_a_vector_whatever_its_coin():
    """Lines are counted, not seconds; the round stays open meanwhile."""
    steps_of(np.zeros(M), coin=True)  # what is imported or cached once is not what is compared
    for value in VALUES.values():
        assert steps_of(value, coin=False) == steps_of(value, coin=True)
    assert any(file.endswith("dp_fts_de/server.py") for file, _ in steps_of(value, coin=True))


# Older protocols --------------------------------------------------------------------------------

WEAK = ("TLS 1.1", "no ALPN", "plaintext")
ENOUGH = "TLS 1.3 and HTTP/2"
"""What both sides ask of each other: here the test sees that others do fail for what they lack."""
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client begins: the preface, and settings that change nothing."""
SETTINGS = HTTP_2[-9:]


def lowered(context, way):
    """The same, but as somebody wants it who means no good."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if way == "TLS 1.1":
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    if way != "no ALPN":
        context.set_alpn_protocols(["h2"])
    return context


class Weak:
    """Has the server's own key, and offers less than a server does; what agents then tell it."""

    def __init__(self, way, folder):
        self._way, self.heard, self.met = way, bytearray(), 0
        own = wires.impostor()
        (folder / "own.pem").write_bytes(own.key + own.chain)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "own.pem")
        lowered(self._context, way)

    def __enter__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listening.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                self.met += 1
                near.settimeout(PATIENCE)
                with near, suppress(OSError):
                    self._hear(near)

    def _hear(self, near):
        if self._way == "plaintext":
            near.sendall(SETTINGS)
            self._listen(near)
            return
        with self._context.wrap_socket(near, server_side=True) as secured:
            secured.sendall(SETTINGS)
            self._listen(secured)

    def _listen(self, sock):
        while data := sock.recv(2**16):
            self.heard += data
            if self._way == ENOUGH:
                return


@pytest.mark.parametrize("way", [*WEAK[:2], ENOUGH])
def test_what_offers_less_finds_others_who_accept_it(way, tmp_path):
    """Else the tests below would show no more than that such a handshake is not possible here."""
    with Weak(way, tmp_path) as weak, socket.create_connection(weak.address, PATIENCE) as plain:
        with lowered(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), way).wrap_socket(plain) as sock:
            assert sock.recv(len(SETTINGS)) == SETTINGS
            assert (sock.version() == "TLSv1.1") == (way == "TLS 1.1")


@pytest.mark.parametrize("way", [*WEAK, ENOUGH])
def test_an_agent_tells_nothing_to_a_server_that_offers_less(way, tmp_path):
    secret = bytes(range(32))
    with Weak(way, tmp_path) as weak:
        with pytest.raises(FederationError):
            connect(wires.invitation(weak.address, 0, secret))
    assert weak.met >= 1
    if way != ENOUGH:
        named = (b"privbo-agent", b"privbo-secret", b"greet")
        for private in (secret, base64.b64encode(secret)[:40], *named):
            assert private not in weak.heard
    if way != "plaintext":  # there it heard how a handshake begins
        assert weak.heard.startswith(HTTP_2[:24]) == bool(weak.heard) == (way == ENOUGH)


@pytest.mark.parametrize("way", [*WEAK, ENOUGH])
def test_a_server_answers_nothing_to_whoever_offers_less(way, server):
    """Nothing at all; whoever offers what an agent does hears the server's settings."""
    heard = b""
    with socket.create_connection(wires.address_in(server.invitation(0)), PATIENCE) as plain:
        with suppress(OSError):  # ssl.SSLError is one
            context = lowered(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), way)
            sock = plain if way == "plaintext" else context.wrap_socket(plain)
            with sock:
                sock.sendall(HTTP_2)
                heard = sock.recv(2**16)
    assert bool(heard) == (way == ENOUGH)
