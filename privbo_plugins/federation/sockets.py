"""Addresses as gRPC takes them, and what stands in the way of listening at one."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import urllib.parse
from collections.abc import Callable

from privbo_plugins.errors import FederationError
from privbo_plugins.federation.identity import Address, place
from privbo_plugins.federation.link import NEEDED

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else strangers' failures fill the error stream
try:
    import grpc
except ImportError:
    raise ImportError(NEEDED.format("grpcio")) from None

__all__ = ["OPTIONS", "SERVICE", "bound", "grpc", "remove", "target"]

SERVICE = "privbo.Federation"
OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
"""A port is one server's, and a machine that is gone is noticed within half a minute."""


def target(address: Address) -> str:
    """Writes an address as gRPC takes it."""
    if isinstance(address, str):
        return f"unix://{urllib.parse.quote(os.path.abspath(address))}"
    return place(address)


def bound(address: Address, bind: Callable[[str], int]) -> Address:
    """Binds a server, and returns its address with the port that was chosen.

    Raises:
        FederationError: If it cannot listen there; says why.
    """
    failure = ""
    try:
        if isinstance(address, str):
            return _bound_unix(address, bind)
        return address[0], bind(target(address))
    except RuntimeError:
        failure = _obstacle(address)
    except OSError as error:
        failure = error.strerror or "the system refuses it"
    raise FederationError(
        f"The server cannot listen on {place(address)}: {failure}. Give another address=, or end "
        "what uses it."
    )


def _bound_unix(path: str, bind: Callable[[str], int]) -> str:
    """A socket that only this user can connect to, in place of one that a dead server left."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    if os.path.exists(path) and not _is_left_over(path):
        raise FileExistsError(0, "something is there already")
    # Under a name of its own first: gRPC removes the name that it was given when it ends, which
    # may be another server's by then.
    own = f"{path}.{secrets.token_hex(4)}"
    bind(target(own))
    os.chmod(own, 0o600)
    os.rename(own, path)
    return path


def _is_left_over(path: str) -> bool:
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) != 0


def _obstacle(address: Address) -> str:
    """Finds the reason for which gRPC could not bind, which it does not name."""
    try:
        if isinstance(address, str):
            own = f"{address}.{secrets.token_hex(4)}"
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(own)
            os.unlink(own)
        else:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            socket.create_server(address, family=family).close()
    except OSError as error:
        return error.strerror or str(error.args[0])
    return "the network library refuses it"


def file_of(address: Address) -> tuple[int, int] | None:
    """Which file a Unix socket is; None for a port, or if it is gone."""
    try:
        facts = os.stat(address) if isinstance(address, str) else None
    except OSError:
        return None
    return None if facts is None else (facts.st_dev, facts.st_ino)


def remove(address: Address, file: tuple[int, int] | None) -> None:
    """Removes what a server that has ended left in the file system, unless it is another's now."""
    if isinstance(address, str) and file is not None and file_of(address) == file:
        os.unlink(address)
