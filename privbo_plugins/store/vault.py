"""The vault: a small transactional store for what must not leave the evaluating side.

It holds raw per-record losses until they are no longer needed, the ledger, and the releases;
of privatised rewards it holds the ledger and the releases, never a raw one.
One implementation over SQLAlchemy serves three places:

- ``None`` or ``"memory"``: inside this process, gone with it;
- ``sqlite:///path``: a file, created with mode 0600, for processes of one machine;
- ``postgresql://...``: for several machines;
- ``env:NAME``: the URL that an environment variable holds, so that no pickle carries a password.

A release is charged, drawn and stored in one transaction, and a unique constraint on its kind and
key makes two workers commit one release. Rows are read and written through the driver's own
cursor with statements compiled once: SQLAlchemy's loggers, which print rows at DEBUG level, never
see them. SQLite overwrites deleted rows (``secure_delete``) and keeps no temporary files;
PostgreSQL keeps them in its files and logs until it vacuums.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.privacy.ledger import Charge

if TYPE_CHECKING:
    import sqlalchemy as sa

Array = NDArray[np.float64]

BLOCK = 2**16
"""Records in one stored block; statistics stream over blocks, so memory does not grow with n."""


@dataclass(frozen=True)
class TrialRow:
    """What the vault knows of one trial."""

    role: str
    step: int
    slot: int
    x: Array
    state: str
    value: float | None


DAMAGED = (
    "The vault holds what was never stored in it: another program has changed it, or its file is "
    "damaged. Nothing is released from it: begin another run, in another vault."
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

    # Runs ---------------------------------------------------------------------------------

    def run(self) -> tuple[str, dict[str, Any], dict[str, Any] | None] | None:
        """Host key, settings and, once known, the frozen facts of the run."""
        row = self._one("run")
        if row is None:
            return None
        return row[0], _object(row[1]), _object(row[2]) if row[2] else None

    def run_of_host(self, host_key: str) -> str | None:
        """The run that a host key began, if any."""
        row = self._one("run_by_host", host_key=host_key)
        return None if row is None else str(row[0])

    def hosts(self) -> list[str]:
        """Host keys of all runs in the vault."""
        return [str(row[0]) for row in self._all("hosts")]

    def new_run(self, host_key: str, settings: Mapping[str, Any]) -> None:
        """Begins this transaction's run."""
        self._run("new_run", host_key=host_key, settings=json.dumps(settings), frozen=None)

    def freeze(self, frozen: Mapping[str, Any]) -> None:
        """Fixes what is known from the first record vector on (n, space, plan)."""
        self._run("freeze", new_frozen=json.dumps(frozen))

    def mark(self, kind: str, text: str) -> None:
        """Notes a fact about the run, once; marks are never removed."""
        if self._one("has_mark", kind=kind, text=text[:512]) is None:
            self._run("mark", kind=kind, text=text[:512])

    def marks(self, kind: str) -> tuple[str, ...]:
        """All marks of a kind, sorted."""
        return tuple(sorted(text for k, text in self._all("marks") if k == kind))

    # Trials -------------------------------------------------------------------------------

    def trial(self, trial: str) -> TrialRow | None:
        """One trial, or None."""
        row = self._one("trial", trial=trial)
        if row is None:
            return None
        return TrialRow(row[0], row[1], row[2], _vector(row[3]), row[4], row[5])

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

    def step_trials(self, step: int) -> list[tuple[str, int, str]]:
        """(trial, slot, state) of every trial of a step."""
        return [(t, slot, state) for t, slot, state in self._all("step_trials", step=step)]

    def done_points(self, step: int) -> tuple[list[str], list[Array]]:
        """Trials of a step that are done, with the points they evaluated."""
        rows = self._all("done_points", step=step)
        return [r[0] for r in rows], [_vector(r[1]) for r in rows]

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

    def count(self, state: str) -> int:
        """Number of trials in a state."""
        row = self._one("count", state=state)
        return int(row[0]) if row else 0

    def published(self) -> dict[str, tuple[str, int, float]]:
        """(role, step, published value) of every trial that is done."""
        return {t: (role, step, value) for t, role, step, value in self._all("all_trials")}

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

    def charges(self) -> list[Charge]:
        """The whole ledger of the run."""
        return [Charge(*row) for row in self._all("charges")]

    def spent_mu2(self, population: str) -> float:
        """Sum of squared mu charged to a population."""
        row = self._one("spent", population=population)
        return float(row[0]) if row else 0.0

    def release(self, seq: int, kind: str, key: str, payload: Mapping[str, Any]) -> None:
        """Stores a release; a second one of its number, or kind and key, violates a constraint."""
        self._run("release", seq=seq, kind=kind, key=key, payload=json.dumps(payload))

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

    # Privatised rewards --------------------------------------------------------------------

    def charge_play(self, trial: str, person: str, epsilon: float, delta: float) -> None:
        """Charges a person for a play whose release is not drawn yet."""
        self._run(
            "charge_play", trial=trial, person=person, epsilon=epsilon, delta=delta, value=None
        )

    def store_play(self, trial: str, value: float) -> None:
        """Stores the release of a charged play."""
        self._run("store_play", t=trial, new_value=value)

    def play(self, trial: str) -> float | None:
        """The stored release of a play, if any."""
        row = self._one("play", trial=trial)
        return None if row is None or row[0] is None else float(row[0])

    def payer(self, trial: str) -> str | None:
        """Who was charged for a play, released or not."""
        row = self._one("play", trial=trial)
        return None if row is None else str(row[1])

    def plays_of(self, person: str) -> list[tuple[str, float]]:
        """(run, epsilon) of every play of a person, in any run of the vault.

        Holds up other runs until the end of the transaction, which may charge the same person.
        """
        if not self._single_writer:
            self._all("lock_vault")
        return [(run, epsilon) for run, epsilon in self._all("plays_of", person=person)]

    def plays_of_everybody(self) -> list[tuple[str, str, float]]:
        """(person, run, epsilon) of every play in the vault."""
        return [(who, run, epsilon) for who, run, epsilon in self._all("plays_of_everybody")]

    def plays(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, person, epsilon, delta, release or None) of every play that was charged."""
        return [(t, who, eps, delta, y) for t, who, eps, delta, y in self._all("all_plays")]


_NO_STORE = (
    "The vault is not where it was: its database holds no ledger. Nothing can be released without "
    "the ledger that the run began with. Put the database back."
)

_MEMORY: weakref.WeakValueDictionary[str, Vault] = weakref.WeakValueDictionary()


class Vault:
    """A private store; open it with :func:`open_vault`.

    Attributes:
        handle: What a sampler or searcher may pickle: a URL, or the name of an in-memory vault.
        vault_id: Identity of the store; a run knows in which store its ledger lies.
    """

    def __init__(self, url: str | None, *, create: bool = True) -> None:
        self.in_memory = url is None
        self._pid = os.getpid()
        self._lock = threading.RLock()
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
            if not create and not os.path.exists(path):
                raise VaultError(_NO_STORE)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
                warnings.warn(
                    f"The vault file {path} can be read by other users: chmod 600 it.",
                    PrivacyWarning,
                    stacklevel=2,
                )
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
                database.metadata.create_all(self._engine)
                return self._identify()
            except errors as error:
                if attempt == 4:
                    raise VaultError(
                        f"The vault cannot be opened for writing ({type(error).__name__}). Check "
                        "that the database exists, is reachable, and that this user may write it."
                    ) from None
                time.sleep(0.1 * 2**attempt)  # another process may be creating the tables
        raise VaultError("The vault cannot be opened.")

    def _known_identity(self) -> str:
        """The identity of a store that exists; nothing is created."""
        with self.transaction("") as tx:
            row = tx._one("vault")
        if row is None:
            raise VaultError(_NO_STORE)
        return str(row[0])

    def _identify(self) -> str:
        """The identity of the store; whoever opens it first gives it one."""
        with self.transaction("") as tx:
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
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @contextmanager
    def transaction(self, run_id: str) -> Iterator[Transaction]:
        """One serialised transaction on a run: commits at the end, rolls back on any exception.

        Raises:
            VaultError: If the store cannot be read or written. Nothing is kept then.
        """
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
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

    @property
    def _driver_error(self) -> type[BaseException]:
        return self._engine.dialect.loaded_dbapi.Error

    def _connect(self) -> Any:
        from privbo_plugins.store import tables as database

        try:
            return self._engine.raw_connection()
        except database.driver_errors(self._engine) as error:
            raise VaultError(self._explain(error)) from None
        except UnicodeDecodeError:  # SQLite quotes a damaged schema
            raise VaultError(DAMAGED) from None

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

    def lies_in(self, engine: sa.Engine) -> bool:
        """Whether another engine, however its URL is spelt, sees this vault's own tables."""
        from privbo_plugins.store import tables as database

        return not self.in_memory and database.identity_seen_by(engine) == self.vault_id

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
        VaultError: If it cannot be opened or written, or was in memory and is gone.
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
