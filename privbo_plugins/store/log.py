"""The log of a vault: its events, and the chain of hashes that they form.

Everything that a run may never forget is an event of one log that only grows: what was charged to
whom, what was released, which facts were noted, and with which settings a run began. Notation of
the log's chain:

    ======  ==================================================================
    symbol  meaning
    ======  ==================================================================
    n       number of events in the vault, of all its runs
    h_n     digest of the log after n of them, h_0 = "":
            h_n = SHA-256(h_{n-1}, run, kind, key, payer, payload, salt), joined by
            NUL bytes
    ======  ==================================================================

A salt is drawn for each event, so that two vaults that went different ways never have one chain,
also if both hold the same; and a digest, which hosts show, tells nothing of an event without the
vault: its 128 bits cannot be tried out.

Kinds of events, beside the facts that :meth:`Transaction.mark` notes under kinds of their own:

    =============  ==================  ================  ==================================
    kind           key                 payer             payload
    =============  ==================  ================  ==================================
    vault          its identity        -                 -
    host           the host's key      -                 the run's identity
    run            the host's key      -                 settings
    frozen         name                -                 what the first trial fixed
    charge         kind/key            population        [mu, sensitivity, scale]
    paid           trial               person            [epsilon, delta]
    release        kind/key            -                 what was released, [value] of rewards
    rows           table/block         -                 numbers of a released table
    token/trial    the token           -                 -
    =============  ==================  ================  ==================================
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead

Array = NDArray[np.float64]

VAULT, HOST, RUN, FROZEN, CHARGE, PAID, DRAWN, RELEASE, ROWS, TOKEN = (
    *("vault", "host", "run", "frozen", "charge", "paid", "drawn", "release", "rows", "token"),
)
"""Kinds of events."""

UNPROTECTED, NOTE = "unprotected", "note"
"""Kinds of facts: why nothing may be claimed, and what a guarantee reports."""

SPLIT = "privbo:split"
"""Kind of facts: which of its records a search for scikit-learn has held out."""

EVALUATION = "evaluation"
"""Kind of the releases of privatised rewards."""

DAMAGED = (
    "The vault holds what was never stored in it: another program has changed it, or its file is "
    "damaged. Nothing is released from it: start another run, in another vault."
)


class Event(NamedTuple):
    """One line of the log.

    Attributes:
        run: Whose; empty for a host's key, which is one for the whole vault.
        kind: Of the event; run, kind and key name it.
        key: Which one of its kind.
        payer: A charge's population or person; else empty.
        payload: What else it says, as text.
    """

    run: str
    kind: str
    key: str
    payer: str = ""
    payload: str = ""


def vector(stored: Any) -> Array:
    """Numbers as they were stored; what a database of untyped columns may hold is checked."""
    if not isinstance(stored, bytes | memoryview) or len(stored) % 8:
        raise VaultError(DAMAGED)
    return np.frombuffer(bytes(stored))


def stored_bytes(numbers: Array) -> bytes:
    """Numbers as a vault keeps them."""
    return np.ascontiguousarray(numbers, dtype=float).tobytes()


def parsed(payload: Any, kind: type) -> Any:
    """Reads a payload as one type.

    Raises:
        VaultError: If it is no such JSON.
    """
    try:
        found = json.loads(payload)
    except (TypeError, ValueError, RecursionError):
        found = None  # raised below: the parser's own error holds the text
    if not isinstance(found, kind):
        raise VaultError(DAMAGED)
    return found


def costs_of(payload: Any, n: int) -> list[float]:
    """Reads the numbers of a charge: none is negative or NaN, which no budget would refuse.

    Raises:
        VaultError: If there are not so many.
    """
    found = numbers_of(payload, n)
    if not all(number >= 0 for number in found):
        raise VaultError(DAMAGED)
    return found


def numbers_of(payload: Any, n: int) -> list[float]:
    """Reads so many numbers.

    Raises:
        VaultError: If there are not so many.
    """
    found: list[float] = parsed(payload, list)
    if len(found) != n or not all(isinstance(number, float) for number in found):
        raise VaultError(DAMAGED)
    return found


def cost_text(*numbers: float) -> str:
    """Writes the numbers of a charge."""
    return json.dumps([float(number) for number in numbers])


def hashed(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(last: str, *parts: str) -> str:
    """The digest of a log that ended in one, after one more event and its salt.

    Raises:
        VaultError: If a part is no text or holds a NUL byte, which stands between parts.
    """
    try:
        text = "\0".join((last, *parts))
    except TypeError:
        raise VaultError(DAMAGED) from None
    if text.count("\0") != len(parts):
        raise VaultError("A vault keeps no NUL byte in a name or a text. Nothing was stored.")
    return hashed(text)


Compiled = tuple[str, tuple[str, ...] | None, dict[str, Any]]
"""SQL text, the order of its parameters (None if they are named), and its own constants."""

Compile = Callable[[tuple[Any, ...]], Compiled]
"""From an operation, a table and names of columns to SQL."""


class Rows:
    """Rows of the vault's tables, through the driver's own cursor.

    Args:
        cursor: Of the open transaction.
        compiled: As :func:`privbo_plugins.store.tables.compiler` makes it.
        run_id: The run; rows are its own unless a call says otherwise.
        single_writer: Whether the database lets one transaction in at a time, as SQLite does.
    """

    def __init__(
        self, cursor: Any, compiled: Compile, run_id: str, single_writer: bool = True
    ) -> None:
        self._cursor, self._compiled, self.run_id = cursor, compiled, run_id
        self._single_writer = single_writer

    def _execute(self, *statement: Any, **params: Any) -> Any:
        text, positions, constants = self._compiled(statement)
        params = {"run": self.run_id} | constants | params
        bound = params if positions is None else tuple([params[p] for p in positions])
        return self._cursor.execute(text, bound)

    def _fetch(self, *statement: Any, **params: Any) -> list[tuple[Any, ...]]:
        self._execute(*statement, **params)
        return list(self._cursor.fetchall())

    def _select(self, table: str, *columns: str, **where: Any) -> list[tuple[Any, ...]]:
        names, at = _equal(where)
        return self._fetch("select", table, columns, names, **at)

    def _count(self, table: str, **where: Any) -> int:
        names, at = _equal(where)
        return int(self._fetch("count", table, (), names, **at)[0][0])

    def _insert(self, table: str, **values: Any) -> None:
        new = {f"new_{name}": value for name, value in values.items()}
        self._execute("insert", table, tuple(values), (), **new)

    def _update(self, table: str, values: Mapping[str, Any], **where: Any) -> None:
        new = {f"new_{name}": value for name, value in values.items()}
        names, at = _equal(where)
        self._execute("update", table, tuple(values), names, **new, **at)

    def _delete(self, table: str, **where: Any) -> None:
        names, at = _equal(where)
        self._execute("delete", table, (), names, **at)


def _equal(where: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the columns that are compared, and the parameters; rows are a run's own anyhow."""
    at = {name if name == "run" else f"at_{name}": value for name, value in where.items()}
    return tuple(name for name in where if name != "run"), at


class Log(Rows):
    """The events of a vault, and the chain of hashes in which each of them is."""

    _end: LogHead | None = None

    def head(self) -> LogHead:
        """The end of the vault's log."""
        if self._end is not None:
            return self._end
        found = self._fetch("last_event")
        end = LogHead(int(found[0][0]), str(found[0][1])) if found else LogHead()
        if self._single_writer:  # others write when this transaction has ended
            self._end = end
        return end

    def holds(self, head: LogHead) -> bool:
        """Checks whether the log has gone through a head."""
        if head.n == 0 or (self._single_writer and head == self.head()):
            return True
        return self._fetch("digest_at", seq=head.n) == [(head.digest,)]

    def events_since(self, seq: int) -> list[Event]:
        """Events of all runs after the first ``seq``, in order."""
        return [Event(*row) for row in self._fetch("events_since", after=seq)]

    def append(self, event: Event) -> int:
        """Adds an event, and returns its number; a second one of a name violates a constraint."""
        self._lock_vault()
        last, salt = self.head(), secrets.token_hex(16)
        end = LogHead(last.n + 1, _digest(last.digest, *event, salt))
        self._insert("events", seq=end.n, **event._asdict(), salt=salt, digest=end.digest)
        self._end = end
        return end.n

    def _lock_vault(self) -> None:
        """Holds up other runs until the end of the transaction."""
        if not self._single_writer and self._end is None:
            self._fetch("lock_vault")

    def check_chain(self) -> None:
        """Compares every event with the chain.

        Raises:
            VaultError: If they do not fit.
        """
        self._execute("whole_log")
        digest = ""
        for n, (seq, stored, *event) in enumerate(iter(self._cursor.fetchone, None), start=1):
            digest = _digest(digest, *event)
            if digest != stored or seq != n:
                raise VaultError(DAMAGED)

    def _said(self, kind: str, key: str) -> str | None:
        """The payload of an event of the run, if there is such an event."""
        found = self._select("events", "payload", kind=kind, key=key)
        return found[0][0] if found else None

    def _add(self, kind: str, key: str, payload: str = "", payer: str = "") -> int:
        return self.append(Event(self.run_id, kind, key, payer, payload))

    def _newest(self, kind: str) -> tuple[str, str] | None:
        """(key, payload) of the run's last event of a kind."""
        found = self._fetch("newest", kind=kind)
        return (found[0][0], found[0][1]) if found else None

    def identity(self) -> tuple[str, Any] | None:
        """Identity of the store and number of its tables; None before it has any.

        Raises:
            VaultError: If it is not the one that the log began with.
        """
        found, begun = self._fetch("identity"), self._select("events", "key", run="", kind=VAULT)
        if [found[0][0]] != [key for (key,) in begun] if found else self.head().n:
            raise VaultError(DAMAGED)
        return (str(found[0][0]), found[0][1]) if found else None

    def identify(self, vault_id: str, schema: int) -> str:
        """Gives the store an identity, with which its log begins, and the number of its tables."""
        self._insert("identity", one=1, vault_id=vault_id, schema=schema)
        self.append(Event("", VAULT, vault_id))
        return vault_id

    def lock(self) -> None:
        """Holds up other transactions on the run until the end of this one."""
        self._fetch("lock")
