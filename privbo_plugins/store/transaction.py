"""What one transaction reads and writes of a vault: the log of events, and who evaluates what.

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
    host           the host's key      -                 the run's identity
    run            the host's key      -                 settings
    frozen         0, 1, ...           -                 what the first trial fixed
    charge         kind/key            population        [mu, sensitivity, scale]
    paid           trial               person            [epsilon, delta]
    release        kind/key            -                 what was released, [value] of rewards
    rows           table/block         -                 numbers of a released table
    token/trial    the token           -                 -
    =============  ==================  ================  ==================================
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.ledger import Charge

Array = NDArray[np.float64]

HOST, RUN, FROZEN, CHARGE, PAID, RELEASE, ROWS, TOKEN = (
    *("host", "run", "frozen", "charge", "paid", "release", "rows", "token"),
)
"""Kinds of events."""

UNPROTECTED, NOTE = "unprotected", "note"
"""Kinds of facts: why nothing may be claimed, and what a guarantee reports."""

EVALUATION = "evaluation"
"""Kind of the releases of privatised rewards."""

_LONGEST_FACT = 512

BLOCK = 2**16
"""Records in one stored block; statistics stream over blocks, so memory does not grow with n."""

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


@dataclass(frozen=True)
class TrialRow:
    """What the vault knows of one trial."""

    trial: str
    role: str
    step: int
    slot: int
    x: Array
    state: str
    value: float | None


_TRIAL = tuple(TrialRow.__annotations__)


def _vector(stored: Any) -> Array:
    """Numbers as they were stored; what a database of untyped columns may hold is checked."""
    if not isinstance(stored, bytes | memoryview) or len(stored) % 8:
        raise VaultError(DAMAGED)
    return np.frombuffer(bytes(stored))


def _stored(numbers: Array) -> bytes:
    return np.ascontiguousarray(numbers, dtype=float).tobytes()


def _parsed(payload: Any, kind: type) -> Any:
    try:
        found = json.loads(payload)
    except (TypeError, ValueError, RecursionError):
        found = None  # raised below: the parser's own error holds the text
    if not isinstance(found, kind):
        raise VaultError(DAMAGED)
    return found


def _numbers(payload: Any, n: int) -> list[float]:
    """The numbers of a charge."""
    found: list[float] = _parsed(payload, list)
    if len(found) != n or not all(isinstance(number, float) for number in found):
        raise VaultError(DAMAGED)
    return found


def _cost(*numbers: float) -> str:
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


class _Rows:
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


class _Log(_Rows):
    """The events of a vault, and the chain of hashes in which each of them is."""

    _end: LogHead | None = None

    def head(self) -> LogHead:
        """The end of the vault's log."""
        if self._end is not None:  # this transaction has written it, so nobody else can
            return self._end
        found = self._fetch("last_event")
        return LogHead(int(found[0][0]), str(found[0][1])) if found else LogHead()

    def holds(self, head: LogHead) -> bool:
        """Checks whether the log has gone through a head."""
        return head.n == 0 or self._fetch("digest_at", seq=head.n) == [(head.digest,)]

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
        for n, (seq, stored, *event) in enumerate(self._cursor, start=1):
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


class _Board(_Rows):
    """Who evaluates what, and the losses that are still needed."""

    def trial(self, trial: str) -> TrialRow | None:
        """One trial, or None."""
        found = self.trials(trial=trial)
        return found[0] if found else None

    def trials(self, **where: Any) -> list[TrialRow]:
        """Trials of the run, by slot: all, or those of a ``state`` or a ``step``."""
        rows = self._select("board", *_TRIAL, **where)
        if not all(isinstance(row[0], str) and isinstance(row[3], int) for row in rows):
            raise VaultError(DAMAGED)
        found = [
            TrialRow(trial, role, step, slot, _vector(x), state, value)
            for trial, role, step, slot, x, state, value in rows
        ]
        return sorted(found, key=lambda row: (row.slot, row.trial))

    def count(self, **where: Any) -> int:
        """Number of trials of a ``state`` or a ``step``."""
        return self._count("board", **where)

    def told(self) -> int:
        """Counts trials that have a value, also those whose losses are gone."""
        return self.count(state="done") + self.count(state="gone")

    def new_trial(self, trial: str, role: str, step: int, slot: int, x: Array) -> None:
        """Hands a slot to a trial."""
        self._insert(
            "board",
            trial=trial,
            role=role,
            step=step,
            slot=slot,
            x=_stored(x),
            state="out",
        )

    def finish(self, trial: str, x: Array, value: float) -> None:
        """Marks a trial done, with the point it evaluated and the value it published."""
        self._update(
            "board",
            {"state": "done", "x": _stored(x), "value": value},
            trial=trial,
        )

    def fail(self, trial: str) -> None:
        """Gives a trial's slot back, unless it is done."""
        self._update("board", {"state": "failed"}, trial=trial, state="out")

    def reopen(self, trial: str) -> None:
        """Gives the slot of a done trial back, because its losses are gone."""
        self._update("board", {"state": "gone"}, trial=trial)

    def forget(self, trial: str) -> None:
        """Removes a failed trial, so that it can be handed a slot again."""
        self._delete("board", trial=trial, state="failed")

    def put_losses(self, trial: str, y: Array) -> None:
        """Stores one value a record, shape (n,), in blocks."""
        for block, start in enumerate(range(0, len(y), BLOCK)):
            data = _stored(y[start : start + BLOCK])
            self._insert("losses", trial=trial, block=block, data=data)

    def blocks(self, trials: Sequence[str], n_records: int) -> Iterator[Array]:
        """Record-major blocks of shape (n_block, m) over the given trials."""
        for block in range(-(-n_records // BLOCK)):
            columns = []
            for trial in trials:
                found = self._select("losses", "data", trial=trial, block=block)
                if not found:
                    raise VaultError(f"The vault no longer holds the losses of trial {trial}.")
                columns.append(_vector(found[0][0]))
            yield np.stack(columns, axis=1)

    def held(self) -> list[str]:
        """Trials whose raw losses are in the vault."""
        return sorted(trial for (trial,) in self._select("losses", "trial", block=0))

    def drop_losses(self, trials: Collection[str] | None = None) -> None:
        """Deletes the raw losses of some trials, or of all; ledger and releases stay."""
        if trials is None:
            self._delete("losses")
        for trial in trials or ():
            self._delete("losses", trial=trial)


class Transaction(_Log, _Board):
    """Statements on one run inside one open transaction; see :meth:`Vault.transaction`."""

    def identity(self) -> tuple[str, Any] | None:
        """Identity of the store and number of its tables; None before it has any."""
        found = self._fetch("identity")
        return (str(found[0][0]), found[0][1]) if found else None

    def identify(self, vault_id: str, schema: int) -> str:
        """Gives the store an identity, and notes the number of its tables."""
        self._insert("identity", one=1, vault_id=vault_id, schema=schema)
        return vault_id

    def lock(self) -> None:
        """Holds up other transactions on the run until the end of this one."""
        self._fetch("lock")

    # Runs ---------------------------------------------------------------------------------

    def run(self) -> tuple[str, dict[str, Any], dict[str, Any] | None] | None:
        """Host key, settings and, once known, the frozen facts of the run."""
        begun, frozen = self._newest(RUN), self._newest(FROZEN)
        if begun is None:
            return None
        facts = None if frozen is None else _parsed(frozen[1], dict)
        return begun[0], _parsed(begun[1], dict), facts

    def run_of_host(self, host_key: str) -> str | None:
        """The run that a host key started, if any."""
        found = self._select("events", "payload", run="", kind=HOST, key=host_key)
        return str(found[0][0]) if found else None

    def hosts(self) -> list[str]:
        """Host keys of all runs in the vault."""
        return [str(key) for (key,) in self._select("events", "key", run="", kind=HOST)]

    def new_run(self, host_key: str, settings: Mapping[str, Any]) -> None:
        """Starts this transaction's run."""
        self.append(Event("", HOST, host_key, payload=self.run_id))
        self._add(RUN, host_key, json.dumps(settings))

    def freeze(self, frozen: Mapping[str, Any]) -> None:
        """Fixes what is known from the first record vector on (n, space, plan)."""
        n = self._count("events", kind=FROZEN)
        self._add(FROZEN, str(n), json.dumps(frozen))

    # Facts --------------------------------------------------------------------------------

    def mark(self, kind: str, text: str) -> None:
        """Notes a fact about the run, once; facts are never removed."""
        if not self.has_mark(kind, text := text[:_LONGEST_FACT]):
            self._add(kind, text)

    def marks(self, kind: str) -> tuple[str, ...]:
        """All facts of a kind, sorted."""
        found = self._select("events", "key", kind=kind)
        return tuple(sorted(str(text) for (text,) in found))

    def has_mark(self, kind: str, text: str | None = None) -> bool:
        """Checks whether a fact was noted, whole; None asks for any fact of the kind."""
        return (self._newest(kind) if text is None else self._said(kind, text)) is not None

    def uncompared(self, kind: str) -> list[str]:
        """Trials with a release that have no fact of a kind, sorted."""
        trials = self._fetch("uncompared trials", kind=kind)
        rewards = self._fetch("uncompared rewards", kind=kind)
        return sorted([*(str(t) for (t,) in trials), *(_key_of(key)[1] for (key,) in rewards)])

    # Ledger and releases ------------------------------------------------------------------

    def charge(self, charge: Charge) -> None:
        """Writes a charge; the budget has been checked by the caller in this transaction."""
        cost = _cost(charge.mu, charge.sensitivity, charge.scale)
        self._add(CHARGE, f"{charge.kind}/{charge.key}", cost, charge.population)

    def charged(self, kind: str, key: str) -> bool:
        """Checks whether a charge of this kind and key was written."""
        return self._said(CHARGE, f"{kind}/{key}") is not None

    def charges(self) -> list[Charge]:
        """The whole ledger of the run, in order."""
        columns = "key", "payload", "payer"
        rows = self._select("events", *columns, kind=CHARGE)
        return [
            Charge(*_key_of(key), mu, sensitivity, scale, who)
            for key, cost, who in rows
            for mu, sensitivity, scale in [_numbers(cost, 3)]
        ]

    def charges_by_mu(self) -> dict[tuple[str, float], int]:
        """Returns how many charges of the run have which (population, mu)."""
        found: dict[tuple[str, float], int] = {}
        for who, cost, n in self._fetch("charges_by_cost", kind=CHARGE):
            key = who, _numbers(cost, 3)[0]
            found[key] = found.get(key, 0) + int(n)
        return found

    def charges_since(self, seq: int) -> list[tuple[str, float]]:
        """(population, mu) of the run's charges after the log's first ``seq`` events."""
        return [
            (event.payer, _numbers(event.payload, 3)[0])
            for event in self.events_since(seq)
            if (event.run, event.kind) == (self.run_id, CHARGE)
        ]

    def released_since(self, seq: int) -> list[str]:
        """Runs of the releases after the first ``seq`` events, each as often as it released."""
        return [event.run for event in self.events_since(seq) if event.kind == RELEASE]

    def release(self, kind: str, key: str, payload: Mapping[str, Any] | float) -> int:
        """Stores a release, and returns its number; a second one of its name is refused."""
        fields = payload if isinstance(payload, Mapping) else [float(payload)]
        return self._add(RELEASE, f"{kind}/{key}", json.dumps(fields))

    def released(self, kind: str, key: str) -> Any:
        """The stored release of a kind and key: its fields, its number, or None."""
        said = self._said(RELEASE, f"{kind}/{key}")
        if said is None:
            return None
        return _numbers(said, 1)[0] if kind == EVALUATION else _parsed(said, dict)

    def releases_after(self, seq: int) -> list[tuple[int, str, str, dict[str, Any]]]:
        """(number, kind, key, fields) of the run's releases after the log's first ``seq``."""
        rows = self._fetch("releases_after", kind=RELEASE, after=seq)
        return [(n, *_key_of(key), _parsed(payload, dict)) for n, key, payload in rows]

    def put_table(self, name: str, Z: Array) -> None:
        """Stores a released table's numbers, in blocks; its release says what shape they have."""
        for block, start in enumerate(range(0, Z.size, BLOCK)):
            numbers = _stored(np.ravel(Z)[start : start + BLOCK])
            self._add(ROWS, f"{name}/{block}", numbers.hex())

    def table(self, name: str) -> Array:
        """The numbers of a released table, in order; none if it was never stored."""
        said = (self._said(ROWS, f"{name}/{block}") for block in itertools.count())
        blocks = itertools.takewhile(lambda text: text is not None, said)
        try:
            parts = [_vector(bytes.fromhex(text or "")) for text in blocks]
        except ValueError:
            raise VaultError(DAMAGED) from None
        return np.concatenate([np.empty(0), *parts])

    # Tokens -------------------------------------------------------------------------------

    def hand_token(self, trial: str) -> str:
        """A token that the next release of an evaluation must show; earlier ones are void."""
        token = uuid.uuid4().hex
        self._add(f"{TOKEN}/{trial}", token)
        return token

    def takes_token(self, trial: str, token: str) -> bool:
        """Checks whether this is the evaluation's newest token."""
        newest = self._newest(f"{TOKEN}/{trial}")
        return newest is not None and newest[0] == token

    # Privatised rewards -------------------------------------------------------------------

    def charge_evaluation(self, trial: str, person: str, epsilon: float, delta: float) -> None:
        """Charges a person for an evaluation whose release is not drawn yet."""
        self._add(PAID, trial, _cost(epsilon, delta), person)

    def payer(self, trial: str) -> str | None:
        """Returns the person who was charged for an evaluation, released or not."""
        found = self._select("events", "payer", kind=PAID, key=trial)
        return str(found[0][0]) if found else None

    def evaluations(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, person, epsilon, delta, release or None) of every charged evaluation."""
        releases = self._select("events", "key", "payload", kind=RELEASE)
        values = {_key_of(key): _numbers(said, 1)[0] for key, said in releases}
        rows = self._select("events", "key", "payer", "payload", kind=PAID)
        return [
            (trial, who, *_numbers(cost, 2), values.get((EVALUATION, trial)))
            for trial, who, cost in rows
        ]

    def n_released(self) -> int:
        """Number of releases of the run."""
        return self._count("events", kind=RELEASE)

    def evaluation_counts(
        self, person: str | None = None
    ) -> list[tuple[str, str, str | None, float, float, int]]:
        """(person, run, mechanism, epsilon, delta, how many) in the whole vault.

        Args:
            person: Whose; other runs, which may charge the same person, are held up until the
                end of the transaction. None for everybody's.
        """
        if person is None:
            rows = self._fetch("counted")
        else:
            self._lock_vault()
            rows = self._fetch("counted_of", person=person)
        return [
            (who, run, _mechanism(settings), *_numbers(cost, 2), int(n))
            for who, run, settings, cost, n in rows
        ]


def _key_of(key: str) -> tuple[str, str]:
    """Kind and key of a charge or a release."""
    kind, _, rest = key.partition("/")
    return kind, rest


@lru_cache(maxsize=256)
def _mechanism(settings: str | None) -> str | None:
    """The mechanism that a run's stored settings name, if they do."""
    name = json.loads(settings).get("mechanism") if settings else None
    return name if isinstance(name, str) else None
