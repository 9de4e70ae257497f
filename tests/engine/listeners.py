"""Servers that listen, and what tests of a federation's link know of them."""

import base64
import socket
import struct
import threading
import time
from contextlib import contextmanager

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.federation import FederatedServer
from privbo_plugins.spaces import Categorical, Float, Space
from tests.worker import PATIENCE

from .scenes import SENTINEL, SPACE, as_json, vector

M = 20
PLAIN = {
    "population": "explore", "n_rounds": 10, "q": 1.0, "z": 0.0, "clipping_norm": 1e3,
    "n_features": M, "n_startup": 2,
}  # fmt: skip
"""No noise, no sampling, hardly clipping: a broadcast is the average of what was sent."""


PUBLIC = Space({"x": Float(0, 1, log=False), "c": Categorical(("a", 1, None))})


def eventually(condition):
    """Waits until something that is bound to happen has happened."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def free_address():
    """At which one server can listen after the other."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return "127.0.0.1", int(probe.getsockname()[1])


@contextmanager
def serving(n_agents=3, *, address=("127.0.0.1", 0), secret=None, settings=PLAIN, **more):
    more.setdefault("space", SPACE)
    server = FederatedServer(FederationConfig(n_agents=n_agents, **settings), **more)
    before = working()
    server.listen(address, secret=secret)
    try:
        yield server
    finally:
        server.close()
        assert working() <= before


def working():
    """Threads of servers that listen."""
    return {t for t in threading.enumerate() if t.name.startswith("federation")}


def locally(n_agents, seeds):
    """What a server and agents of one process make of the same vectors."""
    server = FederatedServer(FederationConfig(n_agents=n_agents, **PLAIN))
    for n, seed in enumerate(seeds):
        server.connect(n).submit(vector(M, seed))
    server.close_round()
    return as_json(server.broadcasts()[0])


def traces(content):
    """In which forms the sentinel occurs."""
    little, big = struct.pack("<d", SENTINEL), struct.pack(">d", SENTINEL)
    forms = {
        "decimal": repr(SENTINEL)[:14].encode(),
        "hex": SENTINEL.hex()[4:16].encode(),
        "little": little,
        "big": big,
        "hex of bytes": little.hex().encode(),
    }
    for shift in range(3):
        inner = base64.b64encode(b"\0" * shift + little)[4 if shift else 0 : 8]
        rest = base64.b64encode(b"\0" * shift + little)[4 : (8 + shift) // 3 * 4]
        forms[f"base64/{shift}"] = rest if shift else inner
    return [name for name, form in forms.items() if form in content]
