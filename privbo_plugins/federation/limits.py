"""What one agent may take of its federation's server: calls, threads that wait, time to send."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Crowd:
    """Counts what is under way for each agent.

    Args:
        most: So many of one agent's find room at a time.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._under_way: Counter[int] = Counter()

    @contextmanager
    def one(self, agent: int) -> Iterator[bool]:
        """Counts one more of an agent while it lasts; whether there is room for it."""
        with self._lock:
            room = self._under_way[agent] < self._most
            self._under_way[agent] += 1
        try:
            yield room
        finally:
            with self._lock:
                self._under_way[agent] -= 1


class Bodies:
    """Reads the bodies of requests, and does not wait for ever for those that never come.

    Args:
        seconds: How long one may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._awaited: dict[object, tuple[float, Callable[[], Any]]] = {}

    def read(self, requests: Iterator[bytes], cancel: Callable[[], Any]) -> bytes:
        """The body of a request.

        Args:
            requests: Gives it, once it has come.
            cancel: Ends the call; for :meth:`cancel_late`, from another thread.

        Raises:
            EOFError: If it does not come.
        """
        reading = object()
        with self._lock:
            self._awaited[reading] = time.monotonic() + self._seconds, cancel
        try:
            return next(requests, b"")
        except Exception:  # its sender is gone
            raise EOFError from None
        finally:
            with self._lock:
                del self._awaited[reading]

    def cancel_late(self) -> None:
        """Ends the calls whose bodies are over their time."""
        now = time.monotonic()
        with self._lock:
            late = [cancel for until, cancel in self._awaited.values() if until < now]
        for cancel in late:
            cancel()
