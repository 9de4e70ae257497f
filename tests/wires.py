"""The protocol of a federation, written a second time: tests speak it beside the product.

A connection carries frames, four bytes of length (big-endian) and a JSON object. The server begins
with its protocol and a nonce, the agent proves that it knows its secret, and so does the server.
Vectors are base64 of little-endian float64. An invitation holds address, agent and secret.
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import struct
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from privbo_plugins.algorithms.dp_fts_de import Broadcast

PROTOCOL = "privbo-federation/1"
NONCE = "0" * 32
"""Of whoever speaks in a test."""

PATIENCE = 15.0
"""Seconds for an answer; a server ends a connection that is silent after twice as many."""

TOLD = (
    "BudgetExceededError",
    "FederationError",
    "PrivacyError",
    "SpaceChangedError",
    "ValueError",
)
"""Errors that a server tells by name and text."""


def frame(content: bytes) -> bytes:
    return struct.pack("!I", len(content)) + content


def say(sock: Any, **message: Any) -> None:
    sock.sendall(frame(json.dumps(message).encode()))


def hear(sock: Any) -> dict[str, Any]:
    """The next frame."""
    (size,) = struct.unpack("!I", _exactly(sock, 4))
    return dict(json.loads(_exactly(sock, size)))


def _exactly(sock: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def packed(numbers: np.ndarray) -> str:
    return base64.b64encode(np.asarray(numbers, dtype="<f8").tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f8")


def told(broadcast: Broadcast) -> dict[str, Any]:
    """A broadcast as a server sends it."""
    weights, noise = packed(broadcast.weights), packed(broadcast.noise)
    return {"round": broadcast.round, "weights": weights, "noise": noise}


# Secrets ----------------------------------------------------------------------------------------


def proof(secret: bytes, side: str, agent: int, asked: str, asking: str) -> str:
    """What only a holder of the secret can say; ``side`` is "agent" or "server"."""
    return hmac.digest(secret, f"{side} {agent} {asked} {asking}".encode(), "sha256").hex()


def invitation(address: tuple[str, int] | str, agent: int, secret: bytes) -> str:
    key = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    if isinstance(address, str):
        return f"privbo+unix://{urllib.parse.quote(address)}/{agent}#{key}"
    host, port = address
    return f"privbo://{f'[{host}]' if ':' in host else host}:{port}/{agent}#{key}"


def secret_in(invitation: str) -> bytes:
    return base64.urlsafe_b64decode(invitation.rpartition("#")[2] + "=")


def agent_in(invitation: str) -> int:
    return int(invitation.rpartition("#")[0].rpartition("/")[2])


def address_in(invitation: str) -> tuple[str, int]:
    """Of a server that listens to the network."""
    parts = urllib.parse.urlsplit(invitation)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


# The two sides ----------------------------------------------------------------------------------


@contextmanager
def stranger(invitation: str) -> Iterator[socket.socket]:
    """A connection to whoever gave an invitation, to which nothing has been said yet."""
    with socket.create_connection(address_in(invitation), timeout=PATIENCE) as sock:
        yield sock


def introduce(sock: socket.socket, invitation: str, agent: int | None = None) -> dict[str, Any]:
    """Proves with the secret of an invitation to be an agent; what the server answers."""
    number = agent_in(invitation) if agent is None else agent
    asked = hear(sock)["nonce"]
    proven = proof(secret_in(invitation), "agent", number, asked, NONCE)
    say(sock, agent=number, nonce=NONCE, proof=proven)
    return hear(sock)


def greet(sock: Any) -> None:
    """The first words of a server."""
    say(sock, protocol=PROTOCOL, nonce=NONCE)


def proven(greeting: dict[str, Any], secret: bytes, hello: dict[str, Any]) -> dict[str, Any]:
    """A server's answer to an agent's proof."""
    return greeting | {"proof": proof(secret, "server", hello["agent"], hello["nonce"], NONCE)}


@contextmanager
def dialled() -> Iterator[list[socket.socket]]:
    """The connections to the network that this process opens meanwhile, in order."""
    opened: list[socket.socket] = []
    create = socket.create_connection

    def recorded(*args: Any, **kwargs: Any) -> socket.socket:
        opened.append(create(*args, **kwargs))
        return opened[-1]

    with mock.patch.object(socket, "create_connection", recorded):
        yield opened


@contextmanager
def meeting(peer: Callable[[], Any]) -> Iterator[None]:
    """Whoever this process calls over the network meanwhile is a peer that is made so."""
    with mock.patch.object(socket, "create_connection", side_effect=lambda *_, **__: peer()):
        yield
