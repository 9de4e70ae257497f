"""The vault: a small transactional store for what must not leave the evaluating side.

It holds raw per-record losses until they are no longer needed, the ledger, and the releases;
of privatised rewards it holds the ledger and the releases, never a raw one.
One implementation over SQLAlchemy serves three places:

- ``None`` or ``"memory"``: inside this process, gone with it;
- ``sqlite:///path`` or the path itself: a file, created with mode 0600, for processes of one
  machine; one that is somebody else's, or was emptied or cut, is refused;
- ``postgresql://...``: for several machines;
- ``env:NAME``: the URL that an environment variable holds, so that no pickle carries a password.

A release is charged, drawn and stored in one transaction, and a unique constraint on its kind and
key makes two workers commit one release. Rows are read and written through the driver's own
cursor with statements compiled once: SQLAlchemy's loggers, which print rows at DEBUG level, never
see them. SQLite overwrites deleted rows (``secure_delete``) and keeps no temporary files;
PostgreSQL keeps them in its files and logs until it vacuums.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import re
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from privbo_plugins.errors import NO_HANDLE, VaultError
from privbo_plugins.files import variable
from privbo_plugins.store.log import DAMAGED
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault_file import prepare_file

if TYPE_CHECKING:
    import sqlalchemy as sa

_NO_STORE = (
    "This database is no vault: it holds no ledger. Check its path or URL (a study's database is "
    "none); if a run has its vault here, put the database back: nothing is released without its "
    "ledger."
)

_NO_DATABASE = (
    "This file is no SQLite database, and so no vault. Check the path; if a run has its vault "
    "here, the file was overwritten: put it back, because nothing is released without its ledger."
)

_NOT_OPENED = (
    "The vault cannot be opened for writing ({}). Check that the database exists, is whole and "
    "reachable, and that this user may write it."
)

_REFUSED = (
    "The vault refused an operation ({}). Nothing of it was kept. See that its file or server is "
    "where it was and can be written, and go on."
)

_PATH = re.compile(r"/.*|[^:]*[./\\][^:]*", re.DOTALL)
"""A text that is a path: URLs and handles have a colon, and "Memory" is meant to be no file."""

_MEMORY: weakref.WeakValueDictionary[str, Vault] = weakref.WeakValueDictionary()


def _pause(attempt: int) -> None:
    time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1.0))  # two that collided must not again


class Vault:
    """A private store; open it with :func:`open_vault`.

    Attributes:
        handle: What a sampler or searcher may pickle: a URL, or the name of an in-memory vault.
        vault_id: Identity of the store; a run knows in which store its ledger lies.
    """

    def __init__(self, url: sa.URL | None, *, create: bool = True, writes: bool = True) -> None:
        from privbo_plugins.store import tables  # SQLAlchemy: not before a vault is opened

        self.in_memory = url is None
        self._pid = os.getpid()
        self._lock, self._busy = threading.RLock(), False
        if url is not None and url.get_backend_name() == "sqlite":
            prepare_file(str(url.database), create)
        self._sql: Any = tables
        self._engine = tables.make_engine(url, writes=writes)
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        weakref.finalize(self, tables.dispose, self._engine, os.getpid()).atexit = False
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        self._compiled = tables.compiler(self._engine)
        if not create:
            self._check_store()
        self.vault_id = self._create() if writes else str(tables.identity_seen_by(self._engine))
        if self._is_sqlite and not self.in_memory:
            self._check_length()
        self.handle = f"memory:{self.vault_id}"

    def __repr__(self) -> str:
        return f"Vault({self._engine.url.render_as_string(hide_password=True)!r})"

    def __reduce__(self) -> Any:
        return open_vault, (self.handle,)

    def _create(self) -> str:
        """Makes the tables where there are none, and the store's identity; returns the latter."""
        errors = (VaultError, *self._sql.driver_errors(self._engine))
        for attempt in range(5):
            try:
                self._sql.prepare(self._engine)
                return self._identify()
            except self._sql.OtherVersionError:
                raise
            except errors as error:
                if _is_no_database(error):
                    raise VaultError(_NO_DATABASE) from None
                own = isinstance(error, self._sql.WriteAheadError) or str(error) == DAMAGED
                if attempt == 4 and own:
                    raise
                if attempt == 4:
                    raise VaultError(_NOT_OPENED.format(type(error).__name__)) from None
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

    def _check_store(self) -> None:
        """Checks that the database holds a store of this version, which has an identity."""
        try:
            self._sql.check_version(self._engine)
            known = self._sql.identity_seen_by(self._engine)
        except self._foreign_errors as error:
            raise VaultError(self._explain(error, _NOT_OPENED)) from None
        if known is None:
            raise VaultError(_NO_STORE)

    def _identify(self) -> str:
        """The identity of the store; the first process that opens it gives it one."""
        with self.transaction("") as tx:
            known = tx.identity()
            if known is None:
                return tx.identify(uuid.uuid4().hex, self._sql.SCHEMA)
            self._sql.check_schema(known[1])
            return known[0]

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
                with closing(connection.cursor()) as cursor:  # half read, it keeps SQLite's lock
                    if self._is_sqlite:
                        cursor.execute(self._begin)
                    tx = Transaction(cursor, self._compiled, run_id, self._is_sqlite)
                    if run_id and not self._is_sqlite:
                        tx.lock()
                    yield tx
                self._check_open(connection)
                connection.commit()
            except BaseException as error:
                self._roll_back(connection)
                own = self._engine.dialect.loaded_dbapi.Error, UnicodeDecodeError
                if isinstance(error, own):  # a guard's errors, which SQLAlchemy may raise, are not
                    raise VaultError(self._explain(error)) from None
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
                gc.collect()  # an interruption leaves transactions behind that no frame holds
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
        """Checks that all was written in one transaction."""
        if self._is_sqlite and not connection.driver_connection.in_transaction:
            raise VaultError("The vault's transaction was ended by somebody else.")

    @property
    def _foreign_errors(self) -> tuple[type[Exception], ...]:
        """Lists what a database raises, or its driver of damaged text."""
        return *self._sql.driver_errors(self._engine), UnicodeDecodeError

    def _connect(self) -> Any:
        for attempt in range(5):
            try:
                return self._engine.raw_connection()
            except self._sql.WriteAheadError:
                if attempt == 4:
                    raise
            except self._foreign_errors as error:
                raise VaultError(self._explain(error)) from None
            _pause(attempt)  # another worker may be switching the file back
        raise VaultError("The vault cannot be opened.")

    @staticmethod
    def _roll_back(connection: Any) -> None:
        try:
            connection.rollback()
        except Exception:  # the connection is already gone, and with it the transaction
            connection.invalidate()

    def _explain(self, error: BaseException, said: str = _REFUSED) -> str:
        if isinstance(error, UnicodeDecodeError):  # whose text quotes what is damaged
            return DAMAGED
        if _is_no_database(error):
            return _NO_DATABASE
        # SQLite's own messages, which have a code, never quote values; those of drivers may: that
        # of Python's quotes a text that cannot be decoded. Only their type shows.
        text = str(error) if hasattr(error, "sqlite_errorname") else type(error).__name__
        return said.format(text)

    def place(self) -> str:
        """Returns where the vault lies: what tells two copies of it apart, and nothing more."""
        with self.transaction("") as tx:
            where = "" if self.in_memory else self._sql.place_of(self._engine, tx._cursor)
        return hashlib.sha256(f"{self.vault_id}/{where}".encode()).hexdigest()[:24]

    def lies_in(self, engine: sa.Engine) -> bool:
        """Checks whether another engine, under any spelling of its URL, sees these tables."""
        return not self.in_memory and self._sql.identity_seen_by(engine) == self.vault_id

    def lies_beside(self, *names: str) -> bool:
        """Checks whether its database holds tables of somebody else's, all of these names."""
        import sqlalchemy as sa

        return not self.in_memory and set(names) <= set(sa.inspect(self._engine).get_table_names())

    def close(self) -> None:
        """Closes every connection; an in-memory vault is gone then."""
        self._engine.dispose()


def _is_no_database(error: BaseException) -> bool:
    """Checks whether SQLite found a file of another kind."""
    return getattr(getattr(error, "orig", error), "sqlite_errorname", "") == "SQLITE_NOTADB"


def open_vault(
    handle: str | PathLike[str] | None = None, *, create: bool = True, writes: bool = True
) -> Vault:
    """Opens a vault.

    Args:
        handle: None or "memory" for a new one in this process, the ``handle`` of a living
            in-memory vault, the path of a file, a database URL, or ``env:NAME`` for the URL in an
            environment variable.
        create: Whether a database without a vault gets one; False if there must be one.
        writes: Whether its file may be changed at all, the journal of a crash included; False
            needs ``create=False``.

    Raises:
        VaultError: If it cannot be opened or written, was written by a later version, or was in
            memory and is gone.
        ValueError: If the handle is neither a path nor a URL that SQLAlchemy understands.

    Example:
        >>> vault = open_vault()
        >>> open_vault(vault.handle) is vault
        True
    """
    handle = as_handle(handle)
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
    url = resolve_url(handle)
    vault = Vault(url, create=create, writes=writes)
    vault.handle = handle if handle.startswith("env:") else handle_of(url)
    return vault


def as_handle(given: object) -> str | None:
    """Returns what names a vault as a text that may be pickled: of a path the absolute one.

    Args:
        given: A path (one with a dot or a slash, if it is a text), or a handle, which stays.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> as_handle("/tmp/100%.db"), as_handle("env:VAULT"), as_handle("memory")
        ('/tmp/100%.db', 'env:VAULT', 'memory')
    """
    if given is None or (isinstance(given, str) and not _PATH.fullmatch(given)):
        return given
    if not isinstance(given, str | PathLike):
        raise ValueError(f"{NO_HANDLE} Got a {type(given).__name__}.")
    return os.path.abspath(os.path.expanduser(os.fsdecode(given)))


def handle_of(url: sa.URL) -> str:
    """Returns the handle of a URL: of a plain file its path, which needs no escapes."""
    if url.get_backend_name() == "sqlite" and not url.query:
        return str(url.database)
    return url.render_as_string(hide_password=False)


def masked(text: str) -> str:
    """Returns a handle, or another URL, as it may be shown: itself, if it holds no password.

    Example:
        >>> masked("private.db"), masked("postgresql://ann:secret@host/db?sslpassword=secret")
        ('private.db', 'postgresql://ann:***@host/db?sslpassword=hidden')
        >>> masked("host=h password=secret"), masked("postgresql:ann:secret@host/db")
        ('***', '***')
    """
    if "://" not in text:
        odd = "password=" in text or (":" in text and "@" in text and not os.path.isabs(text))
        return "***" if odd else text
    from privbo_plugins.store import tables

    try:
        url = tables.parse(text)
    except ValueError:  # a password may stand anywhere in it
        return "***"
    known = [name for name in url.query if "pass" in name.lower() or "secret" in name.lower()]
    if url.password is None and not known:
        return text
    return url.update_query_dict(dict.fromkeys(known, "hidden")).render_as_string()


def refuse_password(handle: str, shown: str) -> None:
    """Refuses a handle that a host would show or store with the password in it.

    Raises:
        ValueError: It says where the password would be shown.
    """
    if masked(handle) != handle:
        raise ValueError(
            f"The vault's URL holds a password, which {shown}. Put the URL into an environment "
            "variable of this process and pass vault='env:NAME_OF_THE_VARIABLE', or keep the "
            "password in ~/.pgpass."
        )


def resolve_url(handle: str | PathLike[str]) -> sa.URL:
    """The database URL behind a handle.

    Raises:
        ValueError: If it is none, or names an environment variable that is not set. The text
            never repeats the URL, which may hold a password.
    """
    from privbo_plugins.store import tables

    text = str(as_handle(handle))
    if text.startswith("env:"):
        name = text.removeprefix("env:")
        text = str(as_handle(variable(name)))
        if not text and name.isidentifier():  # others may hold a password
            raise ValueError(
                f"vault='env:{name}' takes its URL from the environment variable {name!r}, which "
                "is not set in this process."
            )
    url = tables.parse(text)
    if url.get_backend_name() != "sqlite":
        return url
    _check_sqlite_path(url.database or "")
    return url.set(database=os.path.abspath(url.database or ""))  # a later folder moves no vault


def _check_sqlite_path(path: str) -> None:
    if not path or path.startswith((":", "file:")):
        raise ValueError(
            "A SQLite vault needs a plain path, such as vault='sqlite:///private.db', so that it "
            "can be created for this user alone; None keeps the vault in memory."
        )
    odd = re.search(r"[\0-\x1f\x7f]|\s$|(?<=/)\s(?=[^/]*$)", path)
    if odd:
        raise ValueError(
            "The path of a vault may hold no control character, and its file's name no blank at "
            f"its beginning or end, got one with {odd[0]!r}: that is another file than the one "
            "that it looks like, and so another ledger. Give it without."
        )
