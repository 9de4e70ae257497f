"""The vault's tables, statements and connections: everything of it that needs SQLAlchemy.

Statements are compiled once a dialect and run through the driver's own cursor. Importing this
module takes a third of a second, so :mod:`privbo_plugins.store.vault` does it when a vault is
opened.
"""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from privbo_plugins.errors import VaultError

metadata = sa.MetaData()
vault_table = sa.Table(
    "privbo_vault",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),  # always 1: one identity
    sa.Column("vault_id", sa.String(32), nullable=False),
)
_runs = sa.Table(
    "privbo_runs",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("host_key", sa.String(512), unique=True, nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("frozen", sa.Text),
)
_marks = sa.Table(
    "privbo_marks",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("text", sa.String(512), primary_key=True),
)
_trials = sa.Table(
    "privbo_trials",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("trial", sa.String(128), primary_key=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("x", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.String(8), nullable=False),
    sa.Column("value", sa.Double),
    sa.Index("privbo_trials_step", "run_id", "step"),
)
_losses = sa.Table(
    "privbo_losses",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("trial", sa.String(128), primary_key=True),
    sa.Column("block", sa.Integer, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
_ledger = sa.Table(
    "privbo_ledger",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("key", sa.String(160), primary_key=True),
    sa.Column("mu", sa.Double, nullable=False),
    sa.Column("sensitivity", sa.Double, nullable=False),
    sa.Column("scale", sa.Double, nullable=False),
    sa.Column("population", sa.String(16), nullable=False),
)
_releases = sa.Table(
    "privbo_releases",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("key", sa.String(160), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.UniqueConstraint("run_id", "kind", "key"),
)
_tables = sa.Table(
    "privbo_tables",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("table_name", sa.String(16), primary_key=True),
    sa.Column("block", sa.Integer, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
_plays = sa.Table(
    "privbo_plays",
    metadata,
    sa.Column("run_id", sa.String(32), primary_key=True),
    sa.Column("trial", sa.String(128), primary_key=True),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("value", sa.Double),
    sa.Index("privbo_plays_person", "person"),
)


def _b(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name)


# Constants are written into the text: only what the caller passes is a parameter.
_DONE: sa.ColumnElement[str] = sa.literal_column("'done'")
_OUT: sa.ColumnElement[str] = sa.literal_column("'out'")
_GONE: sa.ColumnElement[str] = sa.literal_column("'gone'")
_FAILED: sa.ColumnElement[str] = sa.literal_column("'failed'")
_ZERO: sa.ColumnElement[float] = sa.literal_column("0.0", sa.Double)


def _of_run(table: sa.Table) -> sa.ColumnElement[bool]:
    return table.c.run_id == _b("run_id")


STATEMENTS: dict[str, Any] = {
    "vault": sa.select(vault_table.c.vault_id),
    "identify": sa.insert(vault_table),
    "run": sa.select(_runs.c.host_key, _runs.c.settings, _runs.c.frozen).where(_of_run(_runs)),
    "run_by_host": sa.select(_runs.c.run_id).where(_runs.c.host_key == _b("host_key")),
    "hosts": sa.select(_runs.c.host_key),
    "lock": sa.select(_runs.c.run_id).where(_of_run(_runs)).with_for_update(),
    "new_run": sa.insert(_runs),
    "freeze": sa.update(_runs).where(_of_run(_runs)).values(frozen=_b("new_frozen")),
    "mark": sa.insert(_marks),
    "marks": sa.select(_marks.c.kind, _marks.c.text).where(_of_run(_marks)),
    "has_mark": sa.select(_marks.c.kind).where(
        _of_run(_marks), _marks.c.kind == _b("kind"), _marks.c.text == _b("text")
    ),
    "new_trial": sa.insert(_trials),
    "trial": sa.select(
        _trials.c.role,
        _trials.c.step,
        _trials.c.slot,
        _trials.c.x,
        _trials.c.state,
        _trials.c.value,
    ).where(_of_run(_trials), _trials.c.trial == _b("trial")),
    "step_trials": sa.select(_trials.c.trial, _trials.c.slot, _trials.c.state).where(
        _of_run(_trials), _trials.c.step == _b("step")
    ),
    "done_points": sa.select(_trials.c.trial, _trials.c.x)
    .where(_of_run(_trials), _trials.c.step == _b("step"), _trials.c.state == _DONE)
    .order_by(_trials.c.slot, _trials.c.trial),
    "finish": sa.update(_trials)
    .where(_of_run(_trials), _trials.c.trial == _b("t"))
    .values(state=_DONE, x=_b("new_x"), value=_b("new_value")),
    "fail": sa.update(_trials)
    .where(_of_run(_trials), _trials.c.trial == _b("t"), _trials.c.state == _OUT)
    .values(state=_FAILED),
    "reopen": sa.update(_trials)
    .where(_of_run(_trials), _trials.c.trial == _b("t"))
    .values(state=_GONE),
    "forget": sa.delete(_trials).where(
        _of_run(_trials), _trials.c.trial == _b("t"), _trials.c.state == _FAILED
    ),
    "count": sa.select(sa.func.count())
    .select_from(_trials)
    .where(_of_run(_trials), _trials.c.state == _b("state")),
    "out": sa.select(_trials.c.trial).where(_of_run(_trials), _trials.c.state == _OUT),
    "all_trials": sa.select(
        _trials.c.trial, _trials.c.role, _trials.c.step, _trials.c.value
    ).where(_of_run(_trials), _trials.c.value.is_not(None)),
    "put": sa.insert(_losses),
    "block": sa.select(_losses.c.data).where(
        _of_run(_losses), _losses.c.trial == _b("trial"), _losses.c.block == _b("block")
    ),
    "held": sa.select(_losses.c.trial).where(_of_run(_losses)).distinct(),
    "drop": sa.delete(_losses).where(_of_run(_losses), _losses.c.trial == _b("trial")),
    "drop_all": sa.delete(_losses).where(_of_run(_losses)),
    "charge": sa.insert(_ledger),
    "charges": sa.select(
        _ledger.c.kind,
        _ledger.c.key,
        _ledger.c.mu,
        _ledger.c.sensitivity,
        _ledger.c.scale,
        _ledger.c.population,
    ).where(_of_run(_ledger)),
    "spent": sa.select(sa.func.coalesce(sa.func.sum(_ledger.c.mu * _ledger.c.mu), _ZERO)).where(
        _of_run(_ledger), _ledger.c.population == _b("population")
    ),
    "release": sa.insert(_releases),
    "release_by_key": sa.select(_releases.c.payload).where(
        _of_run(_releases), _releases.c.kind == _b("kind"), _releases.c.key == _b("key")
    ),
    "put_table": sa.insert(_tables),
    "table": sa.select(_tables.c.data)
    .where(_of_run(_tables), _tables.c.table_name == _b("table_name"))
    .order_by(_tables.c.block),
    "charge_play": sa.insert(_plays),
    "store_play": sa.update(_plays)
    .where(_of_run(_plays), _plays.c.trial == _b("t"))
    .values(value=_b("new_value")),
    "play": sa.select(_plays.c.value, _plays.c.person).where(
        _of_run(_plays), _plays.c.trial == _b("trial")
    ),
    "plays_of": sa.select(_plays.c.run_id, _plays.c.epsilon).where(
        _plays.c.person == _b("person")
    ),
    "plays_of_everybody": sa.select(_plays.c.person, _plays.c.run_id, _plays.c.epsilon),
    "lock_vault": sa.select(vault_table.c.one).with_for_update(),
    "all_plays": sa.select(
        _plays.c.trial, _plays.c.person, _plays.c.epsilon, _plays.c.delta, _plays.c.value
    ).where(_of_run(_plays)),
    "since": sa.select(_releases.c.seq, _releases.c.kind, _releases.c.key, _releases.c.payload)
    .where(_of_run(_releases), _releases.c.seq > _b("after"))
    .order_by(_releases.c.seq),
}


Compiled = dict[str, tuple[str, tuple[str, ...] | None]]
"""SQL text and parameter order (None for named parameters) of every statement, by name."""

_COMPILED: dict[str, Compiled] = {}


def compiled_for(engine: sa.Engine) -> Compiled:
    """Every statement for the driver's cursor, compiled once a dialect and driver."""
    key = f"{engine.dialect.name}+{engine.dialect.driver}"
    if key not in _COMPILED:
        _COMPILED[key] = {
            name: _compile(statement, engine.dialect) for name, statement in STATEMENTS.items()
        }
    return _COMPILED[key]


def _compile(statement: Any, dialect: Any) -> tuple[str, tuple[str, ...] | None]:
    compiled = statement.compile(dialect=dialect)
    return str(compiled), tuple(compiled.positiontup) if compiled.positional else None


def driver_errors(engine: sa.Engine) -> tuple[type[Exception], ...]:
    """What connecting to a database or reading it may raise."""
    return sa.exc.SQLAlchemyError, engine.dialect.loaded_dbapi.Error


def parse(text: str) -> sa.URL:
    """A database URL.

    Raises:
        ValueError: If it is none. The text never repeats it: it may hold a password.
    """
    try:
        url = sa.make_url(text)
        url.render_as_string(hide_password=False)  # as every driver is told it
        return url
    except (sa.exc.ArgumentError, ValueError):  # the latter quotes what stands for a port
        raise ValueError(
            "vault must be None, 'memory', a database URL such as 'sqlite:///private.db', or "
            "'env:NAME' for the URL in an environment variable."
        ) from None


def identity_seen_by(engine: sa.Engine) -> str | None:
    """The identity of the vault whose tables an engine sees, however its URL is spelt."""
    if not sa.inspect(engine).has_table(vault_table.name):
        return None
    with engine.connect() as connection:
        return connection.execute(sa.select(vault_table.c.vault_id)).scalar()


def dispose(engine: sa.Engine, pid: int) -> None:
    """Closes the connections of a vault that nobody holds any longer.

    A forked child only forgets them: closing would end its parent's.
    """
    engine.dispose(close=os.getpid() == pid)


def make_engine(url: str | None) -> sa.Engine:
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
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite":
            engine = sa.create_engine(
                parsed, poolclass=NullPool, connect_args={"timeout": 60.0}, hide_parameters=True
            )
        else:
            engine = _make_server_engine(parsed)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _configure_sqlite)
    return engine


def _make_server_engine(url: sa.URL) -> sa.Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:
        return sa.create_engine(url, pool_pre_ping=True, hide_parameters=True)
    except (ImportError, sa.exc.NoSuchModuleError):
        raise VaultError(
            f"No driver for a vault on {url.drivername!r} is installed. SQLite and PostgreSQL are "
            "supported; the latter needs pip install 'privbo-plugins[postgres]'."
        ) from None


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # BEGIN and COMMIT are ours
    cursor = connection.cursor()
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA temp_store=MEMORY")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
