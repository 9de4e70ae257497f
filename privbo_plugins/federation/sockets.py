"""Addresses as gRPC takes them, and what stands in the way of listening at one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from privbo_plugins.errors import FederationError
from privbo_plugins.federation.identity import Address, place
from privbo_plugins.federation.link import NEEDED

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else strangers' failures fill the error stream
try:
    import grpc
except ImportError:
    raise ImportError(NEEDED.format("grpcio")) from None

__all__ = ["OPTIONS", "SERVICE", "bound", "grpc"]

SERVICE = "privbo.Federation"
OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
"""A port is one server's, and a machine that is gone is noticed within half a minute."""


def bound(address: Address, bind: Callable[[str], int]) -> Address:
    """Binds a server, and returns its address with the port that was chosen.

    Raises:
        FederationError: If it cannot listen there; says why.
    """
    failure = ""
    try:
        return address[0], bind(place(address))
    except RuntimeError:
        failure = _obstacle(address)
    raise FederationError(
        f"The server cannot listen on {place(address)}: {failure}. Give another address=, or end "
        "what uses it."
    )


def _obstacle(address: Address) -> str:
    """Finds the reason for which gRPC could not bind, which it does not name."""
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        socket.create_server(address, family=family).close()
    except OSError as error:
        return error.strerror or str(error.args[0])
    return "the network library refuses it"
