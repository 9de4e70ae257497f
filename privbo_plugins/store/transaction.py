"""What one transaction reads and writes of a vault: the ledger, its chain, and who evaluates what.

Notation of the chain:

    ======  ==================================================================
    symbol  meaning
    ======  ==================================================================
    n       number of lines in the vault
    h_n     digest of the chain after n of them, h_0 = "":
            h_n = SHA-256(h_{n-1} | run | kind | key | salt | what the line says)
    ======  ==================================================================

A salt is drawn for each line, so that two vaults that went different ways never have one chain,
also if both say the same; and a digest, which hosts show, tells nothing of a line without the
vault: its 128 bits cannot be tried out.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.ledger import Charge

Array = NDArray[np.float64]

UNPROTECTED, NOTE = "unprotected", "note"
"""Kinds of marks: why nothing may be claimed, and what a guarantee reports."""

PLAY = "play"
"""Kind of the releases of privatised rewards."""

_CHARGE, _PAID, _MARK = "charge", "paid", "mark"
"""Kinds of lines that are no releases."""

_LONGEST_MARK = 512

Line = tuple[str, str, str]
"""Run, kind and key of what the chain holds: charges, releases, evaluations, marks."""

BLOCK = 2**16
"""Records in one stored block; statistics stream over blocks, so memory does not grow with n."""

DAMAGED = (
    "The vault holds what was never stored in it: another program has changed it, or its file is "
    "damaged. Nothing is released from it: start another run, in another vault."
)

_NOT_ITS_CHAIN = (
    "The vault is damaged: its ledger does not match its chain of hashes. Nothing more can be "
    "released with it."
)

_EVERY = {"run_id": None}
"""Where rows of all runs are read."""


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
_COST = "kind", "key", "mu", "sensitivity", "scale", "population"
_EVALUATION = "trial", "person", "epsilon", "delta", "value"


def _vector(stored: Any) -> Array:
    """Numbers as they were stored; what a database of untyped columns may hold is checked."""
    if not isinstance(stored, bytes | memoryview) or len(stored) % 8:
        raise VaultError(DAMAGED)
    return np.frombuffer(bytes(stored))


def _stored(numbers: Array) -> bytes:
    return np.ascontiguousarray(numbers, dtype=float).tobytes()


def _object(stored: Any) -> dict[str, Any]:
    try:
        found = json.loads(stored)
    except (TypeError, ValueError, RecursionError):
        found = None  # raised below: the parser's own error holds the text
    if not isinstance(found, dict):
        raise VaultError(DAMAGED)
    return found


def hashed(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _linked(digest: str, line: Line, salt: str, text: str) -> str:
    """The digest of a chain that ended in one, after one more line."""
    return hashed(json.dumps([digest, *line, salt, text]))


def _cost(*parts: float | str) -> str:
    return json.dumps([part if isinstance(part, str) else float(part) for part in parts])


Compile = Callable[[tuple[Any, ...]], tuple[str, tuple[str, ...] | None]]
"""From an operation, a table and names of columns to SQL text and the order of its parameters."""


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
        text, positions = self._compiled(statement)
        params["run_id"] = self.run_id
        bound = params if positions is None else tuple([params[p] for p in positions])
        return self._cursor.execute(text, bound)

    def _fetch(self, *statement: Any, **params: Any) -> list[tuple[Any, ...]]:
        self._execute(*statement, **params)
        return list(self._cursor.fetchall())

    def _select(self, table: str, *columns: str, **where: Any) -> list[tuple[Any, ...]]:
        everywhere = where == _EVERY
        names = () if everywhere else ("run_id", *where)
        at = {} if everywhere else {f"at_{name}": value for name, value in where.items()}
        return self._fetch("select", table, columns, names, **at)

    def _count(self, table: str, **where: Any) -> int:
        at = {f"at_{name}": value for name, value in where.items()}
        return int(self._fetch("count", table, (), ("run_id", *where), **at)[0][0])

    def _insert(self, table: str, **values: Any) -> None:
        new = {f"new_{name}": value for name, value in values.items()}
        self._execute("insert", table, tuple(values), (), **new)

    def _update(self, table: str, values: Mapping[str, Any], **where: Any) -> None:
        new = {f"new_{name}": value for name, value in values.items()}
        at = {f"at_{name}": value for name, value in where.items()}
        self._execute("update", table, tuple(values), ("run_id", *where), **new, **at)

    def _delete(self, table: str, **where: Any) -> None:
        at = {f"at_{name}": value for name, value in where.items()}
        self._execute("delete", table, (), ("run_id", *where), **at)

    def _put_blocks(self, table: str, numbers: Array, **key: str) -> None:
        for block, start in enumerate(range(0, len(numbers), BLOCK)):
            data = _stored(numbers[start : start + BLOCK])
            self._insert(table, **key, block=block, data=data)


class _Chain(_Rows):
    """The chain of hashes in which every line of the ledger is."""

    def head(self) -> LogHead:
        """The vault's newest link."""
        found = self._fetch("last_link")
        return LogHead(int(found[0][0]), str(found[0][1])) if found else LogHead()

    def holds(self, head: LogHead) -> bool:
        """Checks whether the chain has gone through a head."""
        return head.n == 0 or self._fetch("link_at", seq=head.n) == [(head.digest,)]

    def lines_since(self, seq: int) -> list[Line]:
        """Lines of all runs whose links come after one."""
        return [(run, kind, key) for run, kind, key in self._fetch("links_since", after=seq)]

    def link(self, kind: str, key: str, text: str) -> None:
        """Adds a link for a line of this run; a second one violates a constraint."""
        self._lock_vault()
        last, salt = self.head(), secrets.token_hex(16)
        digest = _linked(last.digest, (self.run_id, kind, key), salt, text)
        self._insert("chain", seq=last.n + 1, kind=kind, key=key, salt=salt, digest=digest)

    def _lock_vault(self) -> None:
        """Holds up other runs until the end of the transaction."""
        if not self._single_writer:
            self._fetch("lock_vault")

    def links(self) -> list[tuple[Line, str, str]]:
        """(line, salt, digest) of every link of the vault, in order."""
        rows = self._fetch("links")
        if not all(isinstance(part, str) for row in rows for part in row):
            raise VaultError(DAMAGED)
        return [((run, kind, key), salt, digest) for run, kind, key, salt, digest in rows]

    def lines(self) -> dict[Line, str]:
        """Returns what every line says that the chain must hold, of all runs of the vault."""
        said: dict[Line, str] = {}
        for run, kind, key, *cost in self._select("ledger", "run_id", *_COST, **_EVERY):
            said[run, _CHARGE, f"{kind}/{key}"] = _cost(*cost)
        releases = "run_id", "kind", "key", "payload"
        for run, kind, key, payload in self._select("releases", *releases, **_EVERY):
            said[run, kind, key] = str(payload)
        for run, trial, person, epsilon, delta, value in self._select(
            "plays", "run_id", *_EVALUATION, **_EVERY
        ):
            said[run, _PAID, trial] = _cost(person, epsilon, delta)
            if value is not None:
                said[run, PLAY, trial] = repr(float(value))
        for run, kind, text in self._select("marks", "run_id", "kind", "text", **_EVERY):
            said[run, _MARK, hashed(f"{kind}/{text}")] = text
        return said

    def check_chain(self) -> None:
        """Compares the chain with what the vault holds.

        Raises:
            VaultError: If they do not fit.
        """
        lines, digest = self.lines(), ""
        for line, salt, stored in self.links():
            text = lines.pop(line, None)
            if text is None or (digest := _linked(digest, line, salt, text)) != stored:
                raise VaultError(_NOT_ITS_CHAIN)
        if lines:
            raise VaultError(_NOT_ITS_CHAIN)


class _Board(_Rows):
    """Who evaluates what, and the losses that are still needed."""

    def trial(self, trial: str) -> TrialRow | None:
        """One trial, or None."""
        found = self.trials(trial=trial)
        return found[0] if found else None

    def trials(self, **where: Any) -> list[TrialRow]:
        """Trials of the run, by slot: all, or those of a ``state`` or a ``step``."""
        rows = self._select("trials", *_TRIAL, **where)
        if not all(isinstance(row[0], str) and isinstance(row[3], int) for row in rows):
            raise VaultError(DAMAGED)
        found = [
            TrialRow(trial, role, step, slot, _vector(x), state, value)
            for trial, role, step, slot, x, state, value in rows
        ]
        return sorted(found, key=lambda row: (row.slot, row.trial))

    def count(self, **where: Any) -> int:
        """Number of trials of a ``state`` or a ``step``."""
        return self._count("trials", **where)

    def told(self) -> int:
        """Counts trials that have a value, also those whose losses are gone."""
        return self.count(state="done") + self.count(state="gone")

    def new_trial(self, trial: str, role: str, step: int, slot: int, x: Array) -> None:
        """Hands a slot to a trial."""
        self._insert(
            "trials", trial=trial, role=role, step=step, slot=slot, x=_stored(x), state="out"
        )

    def finish(self, trial: str, x: Array, value: float) -> None:
        """Marks a trial done, with the point it evaluated and the value it published."""
        self._update("trials", {"state": "done", "x": _stored(x), "value": value}, trial=trial)

    def fail(self, trial: str) -> None:
        """Gives a trial's slot back, unless it is done."""
        self._update("trials", {"state": "failed"}, trial=trial, state="out")

    def reopen(self, trial: str) -> None:
        """Gives the slot of a done trial back, because its losses are gone."""
        self._update("trials", {"state": "gone"}, trial=trial)

    def forget(self, trial: str) -> None:
        """Removes a failed trial, so that it can be handed a slot again."""
        self._delete("trials", trial=trial, state="failed")

    def put_losses(self, trial: str, y: Array) -> None:
        """Stores one value a record, shape (n,), in blocks."""
        self._put_blocks("losses", y, trial=trial)

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


class Transaction(_Chain, _Board):
    """Statements on one run inside one open transaction; see :meth:`Vault.transaction`."""

    def identity(self) -> str | None:
        """Identity of the store; None before it has one."""
        found = self._fetch("identity")
        return str(found[0][0]) if found else None

    def schema(self) -> Any:
        """Number of the store's tables; 0 before it has one."""
        found = self._fetch("schema")
        return found[0][0] if found else 0

    def identify(self, vault_id: str, schema: int) -> str:
        """Gives the store an identity, and notes the number of its tables."""
        self._insert("schema", one=1, number=schema)
        self._insert("vault", one=1, vault_id=vault_id)
        return vault_id

    def lock(self) -> None:
        """Holds up other transactions on the run until the end of this one."""
        self._fetch("lock")

    # Runs ---------------------------------------------------------------------------------

    def run(self) -> tuple[str, dict[str, Any], dict[str, Any] | None] | None:
        """Host key, settings and, once known, the frozen facts of the run."""
        for key, settings, frozen in self._select("runs", "host_key", "settings", "frozen"):
            return key, _object(settings), _object(frozen) if frozen else None
        return None

    def run_of_host(self, host_key: str) -> str | None:
        """The run that a host key started, if any."""
        found = self._fetch("run_by_host", host_key=host_key)
        return str(found[0][0]) if found else None

    def hosts(self) -> list[str]:
        """Host keys of all runs in the vault."""
        return [str(key) for (key,) in self._select("runs", "host_key", **_EVERY)]

    def new_run(self, host_key: str, settings: Mapping[str, Any]) -> None:
        """Starts this transaction's run."""
        self._insert("runs", host_key=host_key, settings=json.dumps(settings))

    def freeze(self, frozen: Mapping[str, Any]) -> None:
        """Fixes what is known from the first record vector on (n, space, plan)."""
        self._update("runs", {"frozen": json.dumps(frozen)})

    # Facts --------------------------------------------------------------------------------

    def mark(self, kind: str, text: str) -> None:
        """Notes a fact about the run, once; marks are never removed."""
        text = text[:_LONGEST_MARK]
        if not self.has_mark(kind, text):
            self._insert("marks", kind=kind, text=text)
            self.link(_MARK, hashed(f"{kind}/{text}"), text)

    def marks(self, kind: str) -> tuple[str, ...]:
        """All marks of a kind, sorted."""
        return tuple(sorted(str(text) for (text,) in self._select("marks", "text", kind=kind)))

    def has_mark(self, kind: str, text: str | None = None) -> bool:
        """Checks whether a fact was noted, whole; None asks for any fact of the kind."""
        if text is None:
            return bool(self._fetch("any_mark", kind=kind)[0][0])
        return bool(self._select("marks", "kind", kind=kind, text=text))

    def uncompared(self, kind: str) -> list[str]:
        """Trials with a release that have no mark of a kind, sorted."""
        trials = self._fetch("uncompared trials", kind=kind)
        return sorted(str(t) for (t,) in [*trials, *self._fetch("uncompared plays", kind=kind)])

    # Ledger and releases ------------------------------------------------------------------

    def charge(self, charge: Charge) -> None:
        """Writes a charge; the budget has been checked by the caller in this transaction."""
        costs = {name: getattr(charge, name) for name in _COST}
        self._insert("ledger", **costs)
        self.link(_CHARGE, f"{charge.kind}/{charge.key}", _cost(*list(costs.values())[2:]))

    def charged(self, kind: str, key: str) -> bool:
        """Checks whether a charge of this kind and key was written."""
        return bool(self._select("ledger", "kind", kind=kind, key=key))

    def charges(self) -> list[Charge]:
        """The whole ledger of the run."""
        return [Charge(*row) for row in self._select("ledger", *_COST)]

    def charges_by_mu(self) -> dict[tuple[str, float], int]:
        """Returns how many charges of the run have which (population, mu)."""
        return {(who, float(mu)): int(n) for who, mu, n in self._fetch("charges_by_mu")}

    def charges_since(self, seq: int) -> list[tuple[str, float]]:
        """(population, mu) of the run's charges whose links come after one.

        Raises:
            VaultError: If the chain names a charge that the ledger does not hold.
        """
        found: list[tuple[str, float]] = []
        for run, kind, name in self.lines_since(seq):
            if (run, kind) == (self.run_id, _CHARGE):
                of, _, key = name.partition("/")
                rows = self._select("ledger", "population", "mu", kind=of, key=key)
                if not rows:
                    raise VaultError(DAMAGED)
                found.append((rows[0][0], float(rows[0][1])))
        return found

    def released_since(self, seq: int) -> list[str]:
        """Runs of the releases whose links come after one, each as often as it released."""
        kinds = (_CHARGE, _PAID, _MARK)
        return [run for run, kind, _ in self.lines_since(seq) if kind not in kinds]

    def release(self, kind: str, key: str, payload: Mapping[str, Any]) -> None:
        """Stores a release; a second one of its kind and key is refused."""
        last, text = self._fetch("last_release")[0][0], json.dumps(payload)
        self._insert("releases", seq=1 + int(last or 0), kind=kind, key=key, payload=text)
        self.link(kind, key, text)

    def released(self, kind: str, key: str) -> dict[str, Any] | None:
        """The stored release of a kind and key, if any."""
        found = self._select("releases", "payload", kind=kind, key=key)
        return _object(found[0][0]) if found else None

    def releases_after(self, seq: int) -> list[tuple[int, str, str, dict[str, Any]]]:
        """Releases in order, those with a larger sequence number than ``seq``."""
        rows = self._fetch("since", after=seq)
        return [(s, kind, key, _object(payload)) for s, kind, key, payload in rows]

    def put_table(self, name: str, Z: Array) -> None:
        """Stores a released table's numbers, in blocks; its release says what shape they have."""
        self._put_blocks("tables", np.ravel(Z), table_name=name)

    def table(self, name: str) -> Array:
        """The numbers of a released table, in order; none if it was never stored."""
        parts = sorted(self._select("tables", "block", "data", table_name=name))
        return np.concatenate([np.empty(0), *(_vector(data) for _, data in parts)])

    # Tokens -------------------------------------------------------------------------------

    def hand_token(self, trial: str) -> str:
        """A token that the next release of an evaluation must show; earlier ones are void."""
        token = uuid.uuid4().hex
        self._delete("tokens", trial=trial)
        self._insert("tokens", trial=trial, token=token)
        return token

    def take_token(self, trial: str, token: str) -> bool:
        """Checks whether this is the evaluation's token; it is void from now on."""
        taken = self._select("tokens", "token", trial=trial) == [(token,)]
        if taken:
            self._delete("tokens", trial=trial)
        return taken

    # Privatised rewards -------------------------------------------------------------------

    def charge_evaluation(self, trial: str, person: str, epsilon: float, delta: float) -> None:
        """Charges a person for an evaluation whose release is not drawn yet."""
        self._insert("plays", trial=trial, person=person, epsilon=epsilon, delta=delta)
        self.link(_PAID, trial, _cost(person, epsilon, delta))

    def store_evaluation(self, trial: str, value: float) -> None:
        """Stores the release of a charged evaluation."""
        self._update("plays", {"value": value}, trial=trial)
        self.link(PLAY, trial, repr(float(value)))

    def evaluation(self, trial: str) -> float | None:
        """The stored release of an evaluation, if any."""
        found = self._select("plays", "value", trial=trial)
        return None if not found or found[0][0] is None else float(found[0][0])

    def payer(self, trial: str) -> str | None:
        """Returns who was charged for an evaluation, released or not."""
        found = self._select("plays", "person", trial=trial)
        return str(found[0][0]) if found else None

    def evaluations(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, person, epsilon, delta, release or None) of every charged evaluation."""
        found = self._select("plays", *_EVALUATION)
        return [(trial, who, eps, delta, y) for trial, who, eps, delta, y in found]

    def released_evaluations(self) -> int:
        """Number of evaluations that were released."""
        return int(self._fetch("released_plays")[0][0])

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
        return [(who, run, _mechanism(settings), *cost) for who, run, settings, *cost in rows]


@lru_cache(maxsize=256)
def _mechanism(settings: str | None) -> str | None:
    """The mechanism that a run's stored settings name, if they do."""
    name = json.loads(settings).get("mechanism") if settings else None
    return name if isinstance(name, str) else None
