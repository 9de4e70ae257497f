"""Tells monitoring whether a server does its work: public facts, as JSON over HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = "/health"


@contextmanager
def told(address: tuple[str, int] | None, state: Callable[[], dict[str, Any]]) -> Iterator[Any]:
    """Answers ``GET /health`` meanwhile: 200 if ``state()["able"]``, else 503.

    Args:
        address: Host and port (0 for any that is free); None for no server.
        state: Public facts.

    Yields:
        Host and port that are listened to, or None.

    Raises:
        OSError: If the address cannot be used.

    Example:
        >>> with told(None, dict) as where:
        ...     where is None
        True
    """
    if address is None:
        yield None
        return
    with _Server(address, state) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        try:
            yield server.server_address[:2]
        finally:
            server.shutdown()  # returns once it serves no more


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], state: Callable[[], dict[str, Any]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.state = state
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that are closed early: they are no fact of the federation."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10  # seconds for a request

    def do_GET(self) -> None:
        if self.path != PATH:
            self.send_error(404)
            return
        facts = self.server.state()
        body = json.dumps(facts).encode()
        self.send_response(200 if facts["able"] else 503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no request: the asker is no fact of the federation."""

    def version_string(self) -> str:
        return "privbo"
