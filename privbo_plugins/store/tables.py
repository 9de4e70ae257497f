"""The vault's tables, statements and connections: everything of it that needs SQLAlchemy.

Statements are compiled once a dialect and run through the driver's own cursor. Importing this
module takes a third of a second, so :mod:`privbo_plugins.store.vault` does it when a vault is
opened.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from privbo_plugins.errors import NO_HANDLE, VaultError
from privbo_plugins.store.log import (
    DAMAGED,
    DRAWN,
    EVALUATION,
    PAID,
    RELEASE,
    RUN,
    Compile,
    Compiled,
)

SCHEMA = 5
"""Number of the tables. A vault with another number is refused untouched: this version would leave
out what the other relies on."""

_PREFIX = "privbo_"

metadata = sa.MetaData()
_identity = sa.Table(
    f"{_PREFIX}identity",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),  # always 1: one identity
    sa.Column("vault_id", sa.String(32), nullable=False),
    sa.Column("schema", sa.Integer, nullable=False),
)
_events = sa.Table(
    f"{_PREFIX}events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("run", sa.String(32), nullable=False),
    sa.Column("kind", sa.String(160), nullable=False),
    sa.Column("key", sa.String(512), nullable=False),
    sa.Column("payer", sa.String(64), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("salt", sa.String(32), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.UniqueConstraint("run", "kind", "key"),
    sa.Index(f"{_PREFIX}events_kind", "run", "kind", "seq"),
    sa.Index(f"{_PREFIX}events_payer", "payer", "kind"),
)
_board = sa.Table(
    f"{_PREFIX}board",
    metadata,
    sa.Column("run", sa.String(32), primary_key=True),
    sa.Column("trial", sa.String(128), primary_key=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("x", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.String(8), nullable=False),
    sa.Column("value", sa.Double),
    sa.Index(f"{_PREFIX}board_step", "run", "step", "state"),
    sa.Index(f"{_PREFIX}board_state", "run", "state"),
)
_losses = sa.Table(
    f"{_PREFIX}losses",
    metadata,
    sa.Column("run", sa.String(32), primary_key=True),
    sa.Column("trial", sa.String(128), primary_key=True),
    sa.Column("block", sa.Integer, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


def _of_run(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return table.c.run == sa.bindparam("run")


def _without(table: sa.Table, name: sa.ColumnElement[Any], fact: Any) -> sa.Select[Any]:
    """Names of which a run has no fact of a kind."""
    facts = _events.alias("facts")
    noted = facts.c.run == table.c.run, facts.c.kind == sa.bindparam("kind")
    known = sa.exists().where(*noted, fact(facts.c.key) == name)
    return sa.select(name).where(_of_run(table), ~known)


_begun = _events.alias("begun")
_counted_by = _events.c.payer, _events.c.run, _begun.c.payload, _events.c.payload
_counted = (
    sa.select(*_counted_by, sa.func.count())
    .select_from(
        _events.outerjoin(_begun, (_begun.c.run == _events.c.run) & (_begun.c.kind == RUN))
    )
    .where(_events.c.kind == PAID)
    .group_by(*_counted_by)
)
"""How many evaluations of which cost, and the settings of the run that says what they were."""

_of_kind = _of_run(_events), _events.c.kind == sa.bindparam("kind")
_all = _events.c.run, _events.c.kind, _events.c.key, _events.c.payer, _events.c.payload

STATEMENTS: dict[str, Any] = {
    "identity": sa.select(_identity.c.vault_id, _identity.c.schema),
    "lock": sa.select(_events.c.seq)
    .where(_of_run(_events), _events.c.kind == RUN)
    .with_for_update(),
    "lock_vault": sa.select(_identity.c.one).with_for_update(),
    "uncompared trials": _without(_board, _board.c.trial, lambda key: key).where(
        _board.c.value.is_not(None)
    ),
    "uncompared rewards": _without(
        _events, _events.c.key, lambda key: sa.literal(f"{EVALUATION}/").concat(key)
    ).where(_events.c.kind == RELEASE, _events.c.key.startswith(f"{EVALUATION}/")),
    "standing": _without(_events, _events.c.key, lambda key: key).where(_events.c.kind == DRAWN),
    "charges_by_cost": sa.select(_events.c.payer, _events.c.payload, sa.func.count())
    .where(*_of_kind)
    .group_by(_events.c.payer, _events.c.payload),
    "releases_after": sa.select(_events.c.seq, _events.c.key, _events.c.payload)
    .where(*_of_kind, _events.c.seq > sa.bindparam("after"))
    .order_by(_events.c.seq),
    "newest": sa.select(_events.c.key, _events.c.payload)
    .where(*_of_kind)
    .order_by(_events.c.seq.desc())
    .limit(1),
    "counted": _counted,
    "counted_of": _counted.where(_events.c.payer == sa.bindparam("person")),
    "last_event": sa.select(_events.c.seq, _events.c.digest)
    .order_by(_events.c.seq.desc())
    .limit(1),
    "digest_at": sa.select(_events.c.digest).where(_events.c.seq == sa.bindparam("seq")),
    # by number alone: SQLite would rather look through all charges of a run
    "events_since": sa.select(*_all)
    .where(_events.c.seq > sa.bindparam("after"))
    .order_by(_events.c.seq),
    "whole_log": sa.select(_events.c.seq, _events.c.digest, *_all, _events.c.salt).order_by(
        _events.c.seq
    ),
}
"""Statements that are more than the rows of one table at equal columns."""


def _statement(how: str, table: str = "", columns: Sequence[str] = (), where: Any = ()) -> Any:
    """A statement by its name, or rows of a table at equal columns; events in their order."""
    if how in STATEMENTS:
        return STATEMENTS[how]
    of = metadata.tables[_PREFIX + table]
    at = [of.c[name] == sa.bindparam(f"at_{name}") for name in where]
    new: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in columns}
    if "run" in of.c:
        at.append(_of_run(of))
        new.setdefault("run", sa.bindparam("run"))
    if how == "insert":
        return sa.insert(of).values(new)
    if how == "update":
        return sa.update(of).where(*at).values(new)
    if how == "delete":
        return sa.delete(of).where(*at)
    if how == "count":
        return sa.select(sa.func.count()).select_from(of).where(*at)
    found = sa.select(*(of.c[name] for name in columns)).where(*at)
    return found.order_by(of.c.seq) if of is _events else found


class WriteAheadError(VaultError):
    """A vault's file cannot be switched back from write-ahead mode, for now."""


class OtherVersionError(VaultError):
    """A vault was written by another version: nothing that a second look would change."""


def prepare(engine: sa.Engine) -> None:
    """Creates the tables of a new vault.

    Raises:
        OtherVersionError: If another version has written the vault; nothing is changed then.
    """
    there = check_version(engine)
    with engine.begin() as connection:
        for table in metadata.tables.values():  # the identity is the first
            if table.name not in there:
                table.create(connection, checkfirst=False)


def check_version(engine: sa.Engine) -> list[str]:
    """Checks that no other version has written a vault, and returns the tables that there are.

    Raises:
        OtherVersionError: If one has.
    """
    names = sa.inspect(engine).get_table_names()
    if _identity.name in names:
        with engine.connect() as connection:
            number = connection.execute(sa.select(_identity.c.schema)).scalar()
        if number is not None:  # None: another process has just made the tables
            check_schema(number)
    elif any(name.startswith(_PREFIX) for name in names):  # the identity is made first
        check_schema(0)
    return names


def check_schema(number: object) -> None:
    """Checks that a vault has the tables of this version.

    Args:
        number: Of the vault's tables; 0 for a vault that holds none.

    Raises:
        OtherVersionError: If it has not.
        VaultError: If no version has written such a number.
    """
    if not isinstance(number, int):
        raise VaultError(DAMAGED)
    if number != SCHEMA:
        raise OtherVersionError(
            "This vault was written by another version of privbo-plugins: its tables have the "
            f"number {number}, and this version knows number {SCHEMA} alone. Nothing was changed. "
            "Use the version that wrote it, on all workers."
        )


_COMPILED: dict[str, dict[tuple[Any, ...], Compiled]] = {}


def compiler(engine: sa.Engine) -> Compile:
    """Makes SQL of statements, once a dialect and driver; None stands for named parameters."""
    dialect = engine.dialect
    known = _COMPILED.setdefault(f"{dialect.name}+{dialect.driver}", {})

    def compiled(statement: tuple[Any, ...]) -> Compiled:
        if statement not in known:
            made: Any = _statement(*statement).compile(dialect=dialect)
            constants = {name: value for name, value in made.params.items() if value is not None}
            positions = tuple(made.positiontup) if made.positional else None
            known[statement] = str(made), positions, constants
        return known[statement]

    return compiled


def driver_errors(engine: sa.Engine) -> tuple[type[Exception], ...]:
    """Returns what connecting to a database or reading it may raise."""
    return sa.exc.SQLAlchemyError, engine.dialect.loaded_dbapi.Error


def parse(text: str) -> sa.URL:
    """A database URL, or that of a file whose absolute path is given, to the letter.

    Raises:
        ValueError: If it is none. The text never repeats it: it may hold a password.
    """
    if os.path.isabs(text):
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
        url.render_as_string(hide_password=False)  # as every driver gets it
        return url
    except (sa.exc.ArgumentError, ValueError):  # the latter quotes what stands for a port
        raise ValueError(NO_HANDLE) from None


def identity_seen_by(engine: sa.Engine) -> str | None:
    """The identity of the vault whose tables an engine sees, however its URL is spelt."""
    if not sa.inspect(engine).has_table(_identity.name):
        return None
    with engine.connect() as connection:
        return connection.execute(sa.select(_identity.c.vault_id)).scalar()


def place_of(engine: sa.Engine, cursor: Any) -> str:
    """Machine and file of a SQLite database, or cluster and database of a server's."""
    if engine.dialect.name == "sqlite":
        found = os.stat(engine.url.database or "")
        return f"{platform.node()}/{_machine()}/{found.st_dev}/{found.st_ino}"
    parts = _row(
        cursor,
        "SELECT oid, inet_server_addr(), inet_server_port(), "
        "has_function_privilege('pg_control_system()', 'EXECUTE') "
        "FROM pg_database WHERE datname = current_database()",
    )
    if parts[-1]:  # some providers keep it for themselves
        parts += _row(cursor, "SELECT system_identifier FROM pg_control_system()")
    return "/".join(map(str, parts))


def _machine() -> str:
    """Returns what tells a machine from a clone of its disk: when it was started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _row(cursor: Any, text: str) -> tuple[Any, ...]:
    cursor.execute(text)
    return tuple(cursor.fetchone())


def dispose(engine: sa.Engine, pid: int) -> None:
    """Closes the connections of a vault that no object holds any longer.

    A forked child only forgets them: closing would end its parent's.
    """
    engine.dispose(close=os.getpid() == pid)


def make_engine(url: sa.URL | None, *, writes: bool = True) -> sa.Engine:
    """The engine of a vault: None is a database in this process's memory.

    Raises:
        VaultError: If no driver for it is installed.
    """
    if url is None:
        engine = sa.create_engine(
            "sqlite://",
            poolclass=StaticPool,
            connect_args={"check_same_thread": False},
            hide_parameters=True,
        )
    else:
        sqlite = url.get_backend_name() == "sqlite"
        engine = _make_file_engine(url, writes) if sqlite else _make_server_engine(url)
    if engine.dialect.name == "sqlite" and writes:
        sa.event.listen(engine, "connect", _configure_sqlite)
    return engine


def _make_file_engine(url: sa.URL, writes: bool) -> sa.Engine:
    """Its connections never create the file: one that went away would come back without a ledger.

    SQLite would also make it readable for whomever the umask allows.
    """
    engine = sa.create_engine(
        url, poolclass=NullPool, connect_args={"timeout": 60.0}, hide_parameters=True
    )
    how = "mode=rw" if writes else "mode=ro&immutable=1"  # which makes no file beside it
    existing = f"{Path(url.database or '').as_uri()}?{how}"

    def connect(dialect: Any, _record: Any, _arguments: Sequence[Any], options: Any) -> Any:
        return dialect.connect(existing, **{**options, "uri": True})

    sa.event.listen(engine, "do_connect", connect)
    return engine


def _make_server_engine(url: sa.URL) -> sa.Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:  # an isolation that the address or the database sets could end the lock too early
        return sa.create_engine(
            url, pool_pre_ping=True, hide_parameters=True, isolation_level="READ COMMITTED"
        )
    except (ImportError, sa.exc.NoSuchModuleError):
        raise VaultError(
            f"No driver for a vault on {url.drivername!r} is installed. SQLite and PostgreSQL are "
            "supported; for the latter write postgresql:// and pip install "
            "'privbo-plugins[postgres]'."
        ) from None


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # BEGIN and COMMIT are ours
    cursor = connection.cursor()
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA temp_store=MEMORY")
    # FULL leaves the directory unsynced: after a power loss the journal of a commit whose release
    # has been published may be there again, and would take it back.
    cursor.execute("PRAGMA synchronous=EXTRA")
    try:
        _leave_write_ahead(cursor, connection.OperationalError)
    except BaseException:
        cursor.close()  # first: its statement would keep the connection open
        connection.close()  # an open one keeps others from leaving write-ahead mode, too
        raise
    cursor.close()


def _leave_write_ahead(cursor: Any, refusal: type[Exception]) -> None:
    """Takes a file back that some tool has switched to WAL: its log keeps what was deleted."""
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        return
    try:
        (mode,) = cursor.execute("PRAGMA journal_mode=DELETE").fetchone()
    except refusal:
        mode = "wal"
    if mode != "delete":
        raise WriteAheadError(
            "The vault's file is in write-ahead mode (WAL), whose log keeps losses that were "
            "deleted, and another program that has it open keeps it from being switched back. "
            "Close that program, a database browser for example. Nothing was written."
        )
