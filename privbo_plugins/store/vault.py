"""The vault: a small transactional store for what must not leave the evaluating side.

It holds raw per-record losses until they are no longer needed, the ledger, and the releases;
of privatised rewards it holds the ledger and the releases, never a raw one.
One implementation over SQLAlchemy serves three places:

- ``None`` or ``"memory"``: inside this process, gone with it;
- ``sqlite:///path``: a file, created with mode 0600, for processes of one machine; one that is
  somebody else's, or was emptied or cut, is refused;
- ``postgresql://...``: for several machines;
- ``env:NAME``: the URL that an environment variable holds, so that no pickle carries a password.

A release is charged, drawn and stored in one transaction, and a unique constraint on its kind and
key makes two workers commit one release. Rows are read and written through the driver's own
cursor with statements compiled once: SQLAlchemy's loggers, which print rows at DEBUG level, never
see them. SQLite overwrites deleted rows (``secure_delete``) and keeps no temporary files;
PostgreSQL keeps them in its files and logs until it vacuums.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import random
import secrets
import stat
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.ledger import Charge

if TYPE_CHECKING:
    import sqlalchemy as sa

Array = NDArray[np.float64]

UNPROTECTED, NOTE = "unprotected", "note"
"""Kinds of marks: why nothing may be claimed, and what a guarantee reports."""

PLAY = "play"
"""Kind of the releases of privatised rewards."""

_CHARGE, _PAID, _MARK = "charge", "paid", "mark"
"""Kinds of lines that are no releases."""

_SALT = 16

_LONGEST_MARK = 512

Line = tuple[str, str, str]
"""Run, kind and key of what the chain holds: charges, releases, evaluations, marks."""

BLOCK = 2**16
"""Records in one stored block; statistics stream over blocks, so memory does not grow with n."""


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


DAMAGED = (
    "The vault holds what was never stored in it: another program has changed it, or its file is "
    "damaged. Nothing is released from it: start another run, in another vault."
)


def _vector(stored: Any) -> Array:
    """Numbers as they were stored; what a database of untyped columns may hold is checked."""
    if not isinstance(stored, bytes | memoryview) or len(stored) % 8:
        raise VaultError(DAMAGED)
    return np.frombuffer(bytes(stored))


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


def salted(text: str, salt: str) -> str:
    """A salt and a hash of it and a text, 64 characters.

    Two vaults that went different ways never have one chain, also if both say the same.
    """
    return salt + hashed(salt + text)[:-_SALT]


def says(content: str, text: str) -> bool:
    """Whether a link's content is that of a text."""
    return content == salted(text, content[:_SALT])


def linked(digest: str, line: Line, content: str) -> str:
    """The digest of a chain that ended in one, after one more line."""
    return hashed(json.dumps([digest, *line, content]))


def _cost(*parts: float | str) -> str:
    return json.dumps([part if isinstance(part, str) else float(part) for part in parts])


class Transaction:
    """Statements on one run inside one open transaction; see :meth:`Vault.transaction`."""

    def __init__(
        self,
        cursor: Any,
        statements: Mapping[str, tuple[str, Any]],
        run_id: str,
        single_writer: bool = True,
    ) -> None:
        self._cursor = cursor
        self._single_writer = single_writer
        self._statements = statements
        self.run_id = run_id

    def _run(self, name: str, **params: Any) -> Any:
        text, positions = self._statements[name]
        params["run_id"] = self.run_id
        bound = params if positions is None else tuple([params[p] for p in positions])
        return self._cursor.execute(text, bound)

    def _all(self, name: str, **params: Any) -> list[tuple[Any, ...]]:
        self._run(name, **params)
        return list(self._cursor.fetchall())

    def _one(self, name: str, **params: Any) -> tuple[Any, ...] | None:
        rows = self._all(name, **params)
        return rows[0] if rows else None

    def number_tables(self) -> None:
        """Notes that the vault has the tables of this version.

        Raises:
            VaultError: If it has those of another one.
        """
        from privbo_plugins.store import tables

        row = self._one("schema")
        if row is None:
            self._run("new_schema", one=1, number=tables.SCHEMA)
            return
        tables.check_schema(row[0])

    # Runs ---------------------------------------------------------------------------------

    def run(self) -> tuple[str, dict[str, Any], dict[str, Any] | None] | None:
        """Host key, settings and, once known, the frozen facts of the run."""
        row = self._one("run")
        if row is None:
            return None
        return row[0], _object(row[1]), _object(row[2]) if row[2] else None

    def run_of_host(self, host_key: str) -> str | None:
        """The run that a host key started, if any."""
        row = self._one("run_by_host", host_key=host_key)
        return None if row is None else str(row[0])

    def hosts(self) -> list[str]:
        """Host keys of all runs in the vault."""
        return [str(row[0]) for row in self._all("hosts")]

    def new_run(self, host_key: str, settings: Mapping[str, Any]) -> None:
        """Starts this transaction's run."""
        self._run("new_run", host_key=host_key, settings=json.dumps(settings), frozen=None)

    def freeze(self, frozen: Mapping[str, Any]) -> None:
        """Fixes what is known from the first record vector on (n, space, plan)."""
        self._run("freeze", new_frozen=json.dumps(frozen))

    def mark(self, kind: str, text: str) -> None:
        """Notes a fact about the run, once; marks are never removed."""
        text = text[:_LONGEST_MARK]
        if not self.has_mark(kind, text):
            self._run("mark", kind=kind, text=text)
            self._linked(_MARK, hashed(f"{kind}/{text}"), text)

    def marks(self, kind: str) -> tuple[str, ...]:
        """All marks of a kind, sorted."""
        return tuple(sorted(str(row[0]) for row in self._all("marks", kind=kind)))

    def has_mark(self, kind: str, text: str | None = None) -> bool:
        """Whether a fact was noted, whole; None asks for any fact of the kind."""
        if text is None:
            return self._one("any_mark", kind=kind) == (1,)
        return self._one("has_mark", kind=kind, text=text) is not None

    # Trials -------------------------------------------------------------------------------

    def trial(self, trial: str) -> TrialRow | None:
        """One trial, or None."""
        found = self._trials("trial", trial=trial)
        return found[0] if found else None

    def trials(self) -> list[TrialRow]:
        """All trials of the run."""
        return self._trials("trials")

    def _trials(self, statement: str, **where: Any) -> list[TrialRow]:
        return [
            TrialRow(trial, role, step, slot, _vector(x), state, value)
            for trial, role, step, slot, x, state, value in self._all(statement, **where)
        ]

    def new_trial(self, trial: str, role: str, step: int, slot: int, x: Array) -> None:
        """Hands a slot to a trial."""
        self._run(
            "new_trial",
            trial=trial,
            role=role,
            step=step,
            slot=slot,
            x=np.ascontiguousarray(x, dtype=float).tobytes(),
            state="out",
            value=None,
        )

    def step_trials(self, step: int) -> list[TrialRow]:
        """Every trial of a step, by slot."""
        return self._trials("step_trials", step=step)

    def finish(self, trial: str, x: Array, value: float) -> None:
        """Marks a trial done, with the point it evaluated and the value it published."""
        point = np.ascontiguousarray(x, dtype=float).tobytes()
        self._run("finish", t=trial, new_x=point, new_value=value)

    def fail(self, trial: str) -> None:
        """Gives a trial's slot back, unless it is done."""
        self._run("fail", t=trial)

    def reopen(self, trial: str) -> None:
        """Gives the slot of a done trial back, because its losses are gone."""
        self._run("reopen", t=trial)

    def forget(self, trial: str) -> None:
        """Removes a failed trial, so that it can be handed a slot again."""
        self._run("forget", t=trial)

    def out(self) -> list[str]:
        """Trials that hold a slot and have not been told."""
        return sorted(row[0] for row in self._all("out"))

    def count(self, *, state: str | None = None, step: int | None = None) -> int:
        """Number of trials in a state, or of a step."""
        row = self._one("count", state=state) if step is None else self._one("n_step", step=step)
        return int(row[0]) if row else 0

    def told(self) -> int:
        """Number of trials that were told, also of those whose losses are gone."""
        row = self._one("told")
        return int(row[0]) if row else 0

    def uncompared(self, kind: str) -> list[str]:
        """Trials with a release that have no mark of a kind, sorted."""
        found = [
            *self._all("uncompared_trials", kind=kind),
            *self._all("uncompared_plays", kind=kind),
        ]
        return sorted(str(row[0]) for row in found)

    # Losses -------------------------------------------------------------------------------

    def put_losses(self, trial: str, y: Array) -> None:
        """Stores one value a record, shape (n,), in blocks."""
        for block, start in enumerate(range(0, len(y), BLOCK)):
            self._run("put", trial=trial, block=block, data=y[start : start + BLOCK].tobytes())

    def blocks(self, trials: Sequence[str], n_records: int) -> Iterator[Array]:
        """Record-major blocks of shape (n_block, m) over the given trials."""
        for block in range(-(-n_records // BLOCK)):
            columns = []
            for trial in trials:
                row = self._one("block", trial=trial, block=block)
                if row is None:
                    raise VaultError(f"The vault no longer holds the losses of trial {trial}.")
                columns.append(_vector(row[0]))
            yield np.stack(columns, axis=1)

    def held(self) -> list[str]:
        """Trials whose raw losses are in the vault."""
        return sorted(row[0] for row in self._all("held"))

    def drop_losses(self, trials: Sequence[str]) -> None:
        """Deletes the raw losses of some trials."""
        for trial in trials:
            self._run("drop", trial=trial)

    def purge(self) -> None:
        """Deletes every raw loss of the run; ledger and releases stay."""
        self._run("drop_all")

    # Ledger and releases ------------------------------------------------------------------

    def charge(self, charge: Charge) -> None:
        """Writes a charge; the budget has been checked by the caller in this transaction."""
        self._run(
            "charge",
            kind=charge.kind,
            key=charge.key,
            mu=charge.mu,
            sensitivity=charge.sensitivity,
            scale=charge.scale,
            population=charge.population,
        )
        cost = _cost(charge.mu, charge.sensitivity, charge.scale, charge.population)
        self._linked(_CHARGE, f"{charge.kind}/{charge.key}", cost)

    def charged(self, kind: str, key: str) -> bool:
        """Whether a charge of this kind and key was written."""
        return self._one("charged", kind=kind, key=key) is not None

    def charges(self) -> list[Charge]:
        """The whole ledger of the run."""
        return [Charge(*row) for row in self._all("charges")]

    def charges_by_mu(self) -> dict[tuple[str, float], int]:
        """How many charges of the run have which (population, mu)."""
        return {(who, float(mu)): int(n) for who, mu, n in self._all("charges_by_mu")}

    def charges_since(self, seq: int) -> list[tuple[str, float]]:
        """(population, mu) of the run's charges whose links come after one.

        Raises:
            VaultError: If a charge in the chain is missing from the ledger.
        """
        found = []
        for run, what, line in self._all("links_since", after=seq):
            if (run, what) != (self.run_id, _CHARGE):
                continue
            kind, _, key = line.partition("/")
            row = self._one("charge_of", kind=kind, key=key)
            if row is None:
                raise VaultError(DAMAGED)
            found.append((str(row[0]), float(row[1])))
        return found

    def released_since(self, seq: int) -> list[str]:
        """Runs of the releases whose links come after one, each as often as it released."""
        kinds = (_CHARGE, _PAID, _MARK)
        return [
            str(run) for run, what, _ in self._all("links_since", after=seq) if what not in kinds
        ]

    def spent_mu2(self, population: str) -> float:
        """Sum of squared mu charged to a population."""
        row = self._one("spent", population=population)
        return float(row[0]) if row else 0.0

    def release(self, kind: str, key: str, payload: Mapping[str, Any]) -> None:
        """Stores a release; a second one of its kind and key is refused."""
        last, text = self._one("last_release"), json.dumps(payload)
        seq = 1 + int((last and last[0]) or 0)
        self._run("release", seq=seq, kind=kind, key=key, payload=text)
        self._linked(kind, key, text)

    def released(self, kind: str, key: str) -> dict[str, Any] | None:
        """The stored release of a kind and key, if any."""
        row = self._one("release_by_key", kind=kind, key=key)
        return None if row is None else _object(row[0])

    def releases_after(self, seq: int) -> list[tuple[int, str, str, dict[str, Any]]]:
        """Releases in order, those with a larger sequence number than ``seq``."""
        rows = self._all("since", after=seq)
        return [(s, kind, key, _object(payload)) for s, kind, key, payload in rows]

    def put_table(self, name: str, Z: Array) -> None:
        """Stores a released table's numbers, in blocks; its release says what shape they have."""
        numbers = np.ascontiguousarray(Z, dtype=float).ravel()
        for block, start in enumerate(range(0, numbers.size, BLOCK)):
            data = numbers[start : start + BLOCK].tobytes()
            self._run("put_table", table_name=name, block=block, data=data)

    def table(self, name: str) -> Array:
        """The numbers of a released table, in order; none if it was never stored."""
        parts = [_vector(row[0]) for row in self._all("table", table_name=name)]
        return np.concatenate([np.empty(0), *parts])

    # The chain ----------------------------------------------------------------------------

    def head(self) -> LogHead:
        """The vault's newest link."""
        row = self._one("last_link")
        return LogHead() if row is None else LogHead(int(row[0]), str(row[1]))

    def holds(self, head: LogHead) -> bool:
        """Whether the chain has gone through a head."""
        return head.n == 0 or self._one("link_at", seq=head.n) == (head.digest,)

    def links(self) -> list[tuple[Line, str, str]]:
        """(line, hash of what it says, digest) of every link of the vault, in order."""
        rows = self._all("links")
        if not all(isinstance(part, str) for row in rows for part in row):
            raise VaultError(DAMAGED)
        return [((run, kind, key), content, digest) for run, kind, key, content, digest in rows]

    def link(self, line: Line, text: str) -> None:
        """Adds a link for a line; a second one violates a constraint."""
        if not self._single_writer:
            self._all("lock_vault")
        last = self.head()
        content = salted(text, secrets.token_hex(_SALT // 2))
        run, kind, key = line
        own, self.run_id = self.run_id, run
        try:
            made = linked(last.digest, line, content)
            self._run("link", seq=last.n + 1, kind=kind, key=key, content=content, digest=made)
        finally:
            self.run_id = own

    def _linked(self, kind: str, key: str, text: str) -> None:
        self.link((self.run_id, kind, key), text)

    def lines(self) -> dict[Line, str]:
        """What every line says that a chain must hold, of all runs of the vault."""
        said: dict[Line, str] = {}
        for run, kind, key, *cost in self._all("every_charge"):
            said[run, _CHARGE, f"{kind}/{key}"] = _cost(*cost)
        for run, kind, key, payload in self._all("every_release"):
            said[run, kind, key] = str(payload)
        for run, trial, person, epsilon, delta, value in self._all("every_play"):
            said[run, _PAID, trial] = _cost(person, epsilon, delta)
            if value is not None:
                said[run, PLAY, trial] = repr(float(value))
        for run, kind, text in self._all("every_mark"):
            said[run, _MARK, hashed(f"{kind}/{text}")] = text
        return said

    # Tokens --------------------------------------------------------------------------------

    def hand_token(self, trial: str) -> str:
        """A token that the next release of an evaluation must show; earlier ones are void."""
        token = uuid.uuid4().hex
        self._run("take_token", t=trial)
        self._run("hand_token", trial=trial, token=token)
        return token

    def take_token(self, trial: str, token: str) -> bool:
        """Whether this is the evaluation's token; it is void from now on."""
        row = self._one("token", trial=trial)
        if row is None or row[0] != token:
            return False
        self._run("take_token", t=trial)
        return True

    # Privatised rewards --------------------------------------------------------------------

    def charge_evaluation(self, trial: str, person: str, epsilon: float, delta: float) -> None:
        """Charges a person for an evaluation whose release is not drawn yet."""
        self._run(
            "charge_evaluation",
            trial=trial,
            person=person,
            epsilon=epsilon,
            delta=delta,
            value=None,
        )
        self._linked(_PAID, trial, _cost(person, epsilon, delta))

    def store_evaluation(self, trial: str, value: float) -> None:
        """Stores the release of a charged evaluation."""
        self._run("store_evaluation", t=trial, new_value=value)
        self._linked(PLAY, trial, repr(float(value)))

    def evaluation(self, trial: str) -> float | None:
        """The stored release of an evaluation, if any."""
        row = self._one("play", trial=trial)
        return None if row is None or row[0] is None else float(row[0])

    def released_evaluations(self) -> int:
        """Number of evaluations that were released."""
        row = self._one("released_evaluations")
        return int(row[0]) if row else 0

    def payer(self, trial: str) -> str | None:
        """Who was charged for an evaluation, released or not."""
        row = self._one("play", trial=trial)
        return None if row is None else str(row[1])

    def evaluations_of(self, person: str) -> list[tuple[str, str | None, float, float, int]]:
        """(run, mechanism, epsilon, delta, how many) of a person's evaluations in the whole vault.

        Holds up other runs until the end of the transaction, which may charge the same person.
        """
        if not self._single_writer:
            self._all("lock_vault")
        rows = self._all("evaluations_of", person=person)
        return [(run, _mechanism(settings), *cost) for run, settings, *cost in rows]

    def evaluations_of_everybody(self) -> list[tuple[str, str, str | None, float, float, int]]:
        """(person, run, mechanism, epsilon, delta, how many) of all evaluations in the vault."""
        rows = self._all("plays_of_everybody")
        return [(who, run, _mechanism(settings), *cost) for who, run, settings, *cost in rows]

    def evaluations(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, person, epsilon, delta, release or None) of every charged evaluation."""
        return [(t, who, eps, delta, y) for t, who, eps, delta, y in self._all("all_plays")]


@lru_cache(maxsize=256)
def _mechanism(settings: str | None) -> str | None:
    """The mechanism that a run's stored settings name, if they do."""
    name = json.loads(settings).get("mechanism") if settings else None
    return name if isinstance(name, str) else None


_NO_STORE = (
    "The vault is not where it was: its database holds no ledger. Nothing can be released without "
    "the ledger that the run started with. Put the database back."
)

_MEMORY: weakref.WeakValueDictionary[str, Vault] = weakref.WeakValueDictionary()

_PATIENCE = 10.0
"""Seconds in which whoever has created a file writes the tables into it."""


def _pause(attempt: int) -> None:
    time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1.0))  # two that collided must not again


# A vault's file ----------------------------------------------------------------------------


def _new_file(path: str) -> bool:
    """Whether there was no file and one was created, for its owner alone."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return False
    return True


def _check_file(path: str) -> None:
    """Looks at a file that is there, without opening it: closing it would drop SQLite's locks.

    Raises:
        VaultError: If it is no plain file, is somebody else's, or has lost its contents.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise VaultError(_dangling(path) if os.path.islink(path) else _no_file(path)) from None
    if not stat.S_ISREG(found.st_mode):
        raise VaultError(f"The vault file {path} is no plain file. Give the path of one.")
    for doubt in _doubts(path, found):
        warnings.warn(doubt, PrivacyWarning, stacklevel=5)  # whoever calls open_vault
    _check_written(path)


def _no_file(path: str) -> str:
    folder, name = os.path.split(path)
    beside = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    near = difflib.get_close_matches(name, beside)
    meant = f" Files of similar names there: {', '.join(map(repr, near))}." if near else ""
    return (
        f"There is no vault file {path}, and none was made.{meant} Check the path; a vault that "
        "was moved or lost has to be put back, because nothing else holds its ledger."
    )


def _dangling(path: str) -> str:
    return (
        f"The vault file {path} is a link to a file that does not exist. Put the file back, or "
        "give the path of the file itself."
    )


def _doubts(path: str, found: os.stat_result) -> Iterator[str]:
    """What others may do with a file; whose it is can read it, and say who else may.

    Raises:
        VaultError: If it is neither this user's nor root's. Root is warned only: in a container
            it often works on files of the user outside.
    """
    owner = found.st_uid
    user = os.geteuid() if hasattr(os, "geteuid") else owner
    whose = f"The vault file {path} belongs to another user (uid {owner}, this is uid {user})"
    if owner not in (user, 0) and user != 0:
        raise VaultError(
            f"{whose}, who can read and change what must stay with this one. Run as its owner, "
            "have it chown'ed, or give a path of your own."
        )
    if owner not in (user, 0):
        yield f"{whose}, who can read and change it: chown it."
    if stat.S_IMODE(found.st_mode) & 0o077:
        yield f"The vault file {path} can be read by other users: chmod 600 it."


def _check_written(path: str) -> None:
    """An empty file had a ledger before it was cut, or somebody is just creating it."""
    deadline = time.monotonic() + _PATIENCE
    while os.stat(path).st_size <= 1:  # SQLite takes one byte for none, too
        if time.monotonic() > deadline:
            raise VaultError(
                f"The vault file {path} is empty: a ledger that it held is lost, and without it "
                "everything would be released anew. Put the file back; if it never was a vault, "
                "delete it."
            )
        time.sleep(0.02)


class Vault:
    """A private store; open it with :func:`open_vault`.

    Attributes:
        handle: What a sampler or searcher may pickle: a URL, or the name of an in-memory vault.
        vault_id: Identity of the store; a run knows in which store its ledger lies.
    """

    def __init__(self, url: str | None, *, create: bool = True) -> None:
        self.in_memory = url is None
        self._pid = os.getpid()
        self._lock, self._busy = threading.RLock(), False
        if url is not None:
            self._prepare_file(url, create)
        from privbo_plugins.store import (
            tables as database,  # SQLAlchemy: not before a vault is opened
        )

        self._engine = database.make_engine(url)
        weakref.finalize(self, database.dispose, self._engine, os.getpid()).atexit = False
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        self._statements = database.compiled_for(self._engine)
        self.vault_id = self._create() if create else self._known_identity()
        if self._is_sqlite and not self.in_memory:
            self._check_length()
        self.handle = f"memory:{self.vault_id}" if url is None else url

    def __repr__(self) -> str:
        return f"Vault({self._engine.url.render_as_string(hide_password=True)!r})"

    def __reduce__(self) -> Any:
        return open_vault, (self.handle,)

    @staticmethod
    def _prepare_file(url: str, create: bool) -> None:
        """Creates a SQLite file with mode 0600 before SQLite would with the umask's."""
        from privbo_plugins.store import tables as database

        parsed = database.parse(url)
        path = parsed.database
        if parsed.get_backend_name() != "sqlite" or not path:
            return
        try:
            if not (create and _new_file(path)):
                _check_file(path)
        except OSError as error:
            raise VaultError(
                f"The vault file {path} cannot be created: {error.strerror}. Give a path in a "
                "directory that this user may write."
            ) from None

    def _create(self) -> str:
        from privbo_plugins.store import tables as database

        errors: tuple[type[Exception], ...] = (VaultError, *database.driver_errors(self._engine))
        for attempt in range(5):
            try:
                database.prepare(self._engine)
                return self._identify()
            except database.OtherVersionError:
                raise
            except errors as error:
                if attempt == 4 and isinstance(error, database.WriteAheadError):
                    raise
                if attempt == 4:
                    raise VaultError(
                        f"The vault cannot be opened for writing ({type(error).__name__}). Check "
                        "that the database exists, is whole and reachable, and that this user may "
                        "write it."
                    ) from None
                _pause(attempt)  # another process may be creating the tables
        raise VaultError("The vault cannot be opened.")

    def _check_length(self) -> None:
        """SQLite takes what is missing of a last page for zeros, and a row in it for none."""
        with self.transaction("") as tx:
            pages, size = (
                tx._cursor.execute(f"PRAGMA {what}").fetchone()[0]
                for what in ("page_count", "page_size")
            )
            if os.stat(self._engine.url.database or "").st_size < pages * size:
                raise VaultError(
                    "The vault's file was cut: its end is missing, and with it a part of the "
                    "ledger. Nothing can be released without it. Put the file back."
                )

    def _known_identity(self) -> str:
        """The identity of a store that exists."""
        with self.transaction("") as tx:
            row = tx._one("vault")
        if row is None:
            raise VaultError(_NO_STORE)
        return self._create()

    def _identify(self) -> str:
        """The identity of the store; whoever opens it first gives it one."""
        with self.transaction("") as tx:
            tx.number_tables()
            row = tx._one("vault")
            if row is None:
                vault_id = uuid.uuid4().hex
                tx._run("identify", one=1, vault_id=vault_id)
                return vault_id
        return str(row[0])

    def _after_fork(self) -> None:
        if self.in_memory:
            raise VaultError(
                "An in-memory vault cannot be shared with a child process. Give the sampler a "
                "vault URL, for example vault='sqlite:///private.db'."
            )
        self._engine.dispose(close=False)
        self._lock, self._busy = threading.RLock(), False
        self._pid = os.getpid()

    @contextmanager
    def transaction(self, run_id: str) -> Iterator[Transaction]:
        """One serialised transaction on a run: commits at the end, rolls back on any exception.

        Raises:
            VaultError: If the store cannot be read or written. Nothing is kept then.
        """
        if self._pid != os.getpid():
            self._after_fork()
        with self._alone():
            connection = self._connect()
            try:
                cursor = connection.cursor()
                if self._is_sqlite:
                    cursor.execute("BEGIN IMMEDIATE")
                tx = Transaction(cursor, self._statements, run_id, self._is_sqlite)
                if run_id and not self._is_sqlite:
                    tx._run("lock")
                    cursor.fetchall()
                yield tx
                self._check_open(connection)
                connection.commit()
            except BaseException as error:
                self._roll_back(connection)
                if isinstance(error, self._driver_error):
                    raise VaultError(self._explain(error)) from None
                if isinstance(error, UnicodeDecodeError):
                    raise VaultError(DAMAGED) from None
                raise
            finally:
                connection.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The lock, which would let its own thread in again: a handler of a signal, for example.

        Raises:
            VaultError: If this thread is inside a transaction already.
        """
        with self._lock:
            if self._busy:
                raise VaultError(
                    "The vault is in the middle of a transaction of this very thread, which a "
                    "handler of a signal or a callback has interrupted. Nothing was done. Set a "
                    "flag in the handler, and ask the vault afterwards."
                )
            try:
                self._busy = True
                yield
            finally:
                self._busy = False

    def _check_open(self, connection: Any) -> None:
        """What was written without a transaction must not look as if it had been in one."""
        if self._is_sqlite and not connection.driver_connection.in_transaction:
            raise VaultError("The vault's transaction was ended by somebody else.")

    @property
    def _driver_error(self) -> type[BaseException]:
        return self._engine.dialect.loaded_dbapi.Error

    def _connect(self) -> Any:
        from privbo_plugins.store import tables as database

        for attempt in range(5):
            try:
                return self._engine.raw_connection()
            except database.WriteAheadError:
                if attempt == 4:
                    raise
            except database.driver_errors(self._engine) as error:
                raise VaultError(self._explain(error)) from None
            except UnicodeDecodeError:  # SQLite quotes a damaged schema
                raise VaultError(DAMAGED) from None
            _pause(attempt)  # another worker may be switching the file back
        raise VaultError("The vault cannot be opened.")

    @staticmethod
    def _roll_back(connection: Any) -> None:
        try:
            connection.rollback()
        except Exception:  # the connection is already gone, and with it the transaction
            connection.invalidate()

    def _explain(self, error: BaseException) -> str:
        # SQLite's messages never quote values; other drivers' may, so only their type is told.
        text = str(error) if self._is_sqlite else type(error).__name__
        return f"The vault refused an operation ({text}). Nothing of it was kept."

    def place(self) -> str:
        """Where the vault lies: what tells two copies of it apart, and nothing more."""
        from privbo_plugins.store import tables

        with self.transaction("") as tx:
            where = tables.place_of(self._engine, tx._cursor) if not self.in_memory else ""
        return hashlib.sha256(f"{self.vault_id}/{where}".encode()).hexdigest()[:24]

    def lies_in(self, engine: sa.Engine) -> bool:
        """Whether another engine, however its URL is spelt, sees this vault's own tables."""
        from privbo_plugins.store import tables as database

        return not self.in_memory and database.identity_seen_by(engine) == self.vault_id

    def lies_beside(self, *names: str) -> bool:
        """Whether its database holds tables of somebody else's, all of these names."""
        import sqlalchemy as sa

        return not self.in_memory and set(names) <= set(sa.inspect(self._engine).get_table_names())

    def close(self) -> None:
        """Closes every connection; an in-memory vault is gone then."""
        self._engine.dispose()


def open_vault(handle: str | None = None, *, create: bool = True) -> Vault:
    """Opens a vault.

    Args:
        handle: None or "memory" for a new one in this process, the ``handle`` of a living
            in-memory vault, a database URL, or ``env:NAME`` for the URL in an environment
            variable.
        create: Whether a database without a vault gets one; False if there must be one.

    Raises:
        VaultError: If it cannot be opened or written, was written by a later version, or was in
            memory and is gone.
        ValueError: If the handle is not a URL that SQLAlchemy understands.

    Example:
        >>> vault = open_vault()
        >>> open_vault(vault.handle) is vault
        True
    """
    if not isinstance(handle, str | None):
        raise ValueError(
            "vault must be None, 'memory' or a database URL such as 'sqlite:///private.db', got a "
            f"{type(handle).__name__}."
        )
    if handle is None or handle == "memory":
        vault = Vault(None)
        _MEMORY[vault.handle] = vault
        return vault
    if handle.startswith("memory:"):
        living = _MEMORY.get(handle)
        if living is None:
            raise VaultError(
                "The vault of this sampler was in the memory of a process or object that has "
                "ended, and with it the ledger. Keep it on disk: vault='sqlite:///private.db'."
            )
        return living
    vault = Vault(resolve_url(handle).render_as_string(hide_password=False), create=create)
    vault.handle = handle
    return vault


def resolve_url(handle: str) -> sa.URL:
    """The database URL behind a handle.

    Raises:
        ValueError: If it is none, or names an environment variable that is not set. The text
            never repeats the URL, which may hold a password.
    """
    from privbo_plugins.store import tables as database

    text = handle
    if handle.startswith("env:"):
        text = _variable(handle.removeprefix("env:"))
        if not text and handle.removeprefix("env:").isidentifier():  # others may hold a password
            raise ValueError(
                f"vault={handle!r} takes its URL from the environment variable "
                f"{handle.removeprefix('env:')!r}, which is not set in this process."
            )
    url = database.parse(text)
    if url.get_backend_name() == "sqlite":
        _check_sqlite_path(url.database or "")
    return url


def _variable(name: str) -> str:
    try:
        return os.environ.get(name, "")
    except ValueError:  # no system could hold this name
        return ""


def _check_sqlite_path(path: str) -> None:
    if not path or path.startswith((":", "file:")):
        raise ValueError(
            "A SQLite vault needs a plain path, such as vault='sqlite:///private.db', so that it "
            "can be created for this user alone; None keeps the vault in memory."
        )
