"""What tests must read or reach inside an object, each thing once and by name.

Tests ask through the public interface. What no public name tells stands here, so that whoever
changes the inside of a class finds the one place where tests look into it. Imports stand in the
functions: workers of Ray load this module too, and what a trial imports is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import numpy as np

    from privbo_plugins.federation.history import AgentHistory
    from privbo_plugins.federation.listening import Listener
    from privbo_plugins.sessions.records import Session
    from privbo_plugins.store.vault import Vault

# Samplers, searches and their settings ----------------------------------------------------------


def settings_of(made: Any) -> Any:
    """What a sampler or a search was made with, as its algorithm takes it."""
    rows = getattr(made, "_rows", None)  # of a search on a released table
    if hasattr(rows, "config"):
        return rows.config()
    return made._rows_config() if hasattr(made, "_rows_config") else made._config


def session_of(sampler: Any, study: Any) -> Session:
    """What holds the records of a study: charges, releases, held losses."""
    found: Session = sampler._state(study).session
    return found


def algorithm_of(sampler: Any, study: Any) -> Any:
    """What a sampler on rewards or rows has learnt of a study."""
    return sampler._state(study).scheduler.algorithm


def looked_at(sampler: Any, study: Any) -> set[int]:
    """Numbers of the trials whose contents have been accounted for."""
    return set(sampler._state(study).audit.seen)


def algorithm_in(session: Session) -> Any:
    """The algorithm of a session on records, after all releases that its vault holds."""
    return session._known().algorithm


def vault_of(holder: Any) -> Vault:
    """The vault that a sampler, a curator or a loop has opened."""
    found: Vault = holder._vault
    return found


@contextmanager
def read_only(sampler: Any) -> Iterator[None]:
    """The vault of a sampler cannot be written meanwhile."""
    vault = vault_of(sampler)
    connect = vault._connect

    def connected() -> Any:
        connection = connect()
        connection.cursor().execute("PRAGMA query_only=ON")
        return connection

    with mock.patch.object(vault, "_connect", connected):
        yield


# What a vault's log holds, as tables for SQLite -------------------------------------------------

_NAME = "substr(key, 1, instr(key, '/') - 1) AS kind, substr(key, instr(key, '/') + 1) AS key"

LEDGER = (
    f"(SELECT run, seq, {_NAME}, payer AS population, json_extract(payload, '$[0]') AS mu "
    "FROM privbo_events WHERE kind = 'charge')"
)

RELEASES = f"(SELECT run, seq, {_NAME}, payload FROM privbo_events WHERE kind = 'release')"

EVALUATIONS = (
    "(SELECT paid.run, paid.seq, paid.key AS trial, paid.payer AS person, host.key AS host_key, "
    "json_extract(paid.payload, '$[0]') AS epsilon, json_extract(told.payload, '$[0]') AS value "
    "FROM privbo_events paid LEFT JOIN privbo_events told ON told.run = paid.run "
    "AND told.kind = 'release' AND told.key = 'evaluation/' || paid.key "
    "LEFT JOIN privbo_events host ON host.kind = 'host' AND host.payload = paid.run "
    "WHERE paid.kind = 'paid')"
)


# Optuna -----------------------------------------------------------------------------------------


def storage_of(study: Any) -> Any:
    """The storage that another worker would open."""
    return study._storage


def fail(study: Any, trial: Any) -> None:
    """Marks a trial as failed, as the heartbeat of a worker that died does."""
    from optuna.trial import TrialState

    storage_of(study).set_trial_state_values(trial._trial_id, TrialState.FAIL)


def close_storage(study: Any) -> None:
    """Closes the connections of a study's database."""
    storage_of(study)._backend.engine.dispose()


def allows(distribution: Any, value: Any) -> bool:
    """Whether a value is one of an Optuna distribution's."""
    return bool(distribution._contains(distribution.to_internal_repr(value)))


# Ray Tune ---------------------------------------------------------------------------------------


def channel_of(search: Any) -> Any:
    """The driver's channel to the host of a search, which is begun if need be."""
    return search._open()


def call_host(search: Any, operation: str, *args: Any) -> Any:
    """What the host of a search answers its driver."""
    return search._call(operation, *args)


def tell(channel: Any, trial: str, x: Any, losses: Any, index: str | None = None) -> float:
    """What a trial is told that sends these losses to its host."""
    return float(channel.call_sealed("tell", trial, (losses, index), x)[0])


@contextmanager
def refusing(search: Any, refused: str, error: Exception) -> Iterator[Callable[..., Any]]:
    """An operation of the host fails meanwhile; yields what calls the host all the same."""
    call = search._call

    def failing(operation: str, *args: Any) -> Any:
        if operation == refused:
            raise error
        return call(operation, *args)

    with mock.patch.object(search, "_call", failing):
        yield call


def ledger_of(private: Any) -> list[Any]:
    """Rows of the ledger of an ``ldp_trainable``."""
    return list(private.guarantee.__self__._connect().call("ledger"))


def report_of(search: Any) -> dict[str, Any]:
    """What the host of a search says of its run, or has said last."""
    return dict(search._report())


def published_by(search: Any) -> dict[str, float]:
    """Released value by trial."""
    return dict(report_of(search)["published"])


def host_name(search: Any) -> str:
    """The name under which trials find the host of a search."""
    return str(search._actor_name)


def agent_hosts(search: Any) -> list[str]:
    """Names of the hosts of a federation's agents."""
    return list(dict.fromkeys(search._hosts.names))


def history_of_agent(host: Any, agent: int) -> AgentHistory:
    """What a host of agents keeps of one of them."""
    found: AgentHistory = host.session._members[agent].history
    return found


def _anchor(search: Any) -> Any:
    return search._anchor


def holds_a_host(search: Any) -> bool:
    """Whether this process has begun the host of a search."""
    return _anchor(search).actor is not None


def kill_host(search: Any) -> None:
    """The host of a search dies, and its driver is not told."""
    import ray

    ray.kill(_anchor(search).actor)


def end_host(search: Any) -> None:
    """The driver ends the host of a search without a last word."""
    _anchor(search).end()


def end_forgotten_hosts() -> None:
    """Ends the vaults in memory that no search of this process knows any more."""
    from raytune_searchers.hosts import actors
    from raytune_searchers.hosts.losses import VAULT

    for name in actors.forgotten():
        actors.anchor(name, VAULT).end()


def give_noise(search: Any, noise: Any) -> None:
    """The host of a restored search will draw from here, once this process begins it."""
    _anchor(search).noise = noise


def space_of(search: Any) -> Any:
    """The space of a search that knows everything that a run needs."""
    return search._ready()


def model_of(search: Any) -> Any:
    """What a search on rewards has learnt so far."""
    assert search._model is not None
    return search._model.algorithm


def converted(returned: Any) -> tuple[Any, Any]:
    """(losses, error) of what a private trainable returned."""
    from raytune_searchers import _trainable

    private, error = _trainable._converted(returned, _trainable._losses_and_index)
    return (None if private is None else private[0]), error


# Noise and releases -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """A draw of OpenDP that is about to be made.

    Attributes:
        kind: Of the measurement, or the length of a vector of normal numbers.
        parameter: Its scale or probability.
        measurement: What draws.
    """

    kind: int | str
    parameter: float
    measurement: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return self.measurement(value)


def watch_draws(around: Callable[[Draw, Any], Any]) -> None:
    """Puts a call around each draw of OpenDP in this process, for good.

    A run with an injected source is never called private, so the source stays and OpenDP is
    watched.

    Args:
        around: Gets the draw and the value, and returns the noisy value.
    """
    from privbo_plugins.privacy import noise

    measurement = noise._measurement

    def watched(kind: int | str, parameter: float) -> Callable[[Any], Any]:
        draw = Draw(kind, parameter, measurement(kind, parameter))
        return lambda value: around(draw, value)

    noise._measurement = watched  # type: ignore[assignment]


def watch_releases_of_records(
    around_charge: Callable[[Callable[[], None], Any], None],
    around_draw: Callable[[Callable[[], Any], Any], Any],
) -> None:
    """Puts calls around each charge and each draw of all records' sessions, for good.

    Args:
        around_charge: Gets what charges and the query.
        around_draw: Gets what draws and the query, and returns what was drawn.
    """
    from privbo_plugins.sessions.records import Session

    charge, draw = Session._charge, Session._draw

    def charged(session: Session, tx: Any, query: Any, scale: float) -> None:
        around_charge(lambda: charge(session, tx, query, scale), query)

    def drawn(session: Session, query: Any, *args: Any) -> Any:
        return around_draw(lambda: draw(session, query, *args), query)

    Session._charge, Session._draw = charged, drawn  # type: ignore[method-assign]


@contextmanager
def draws_through(around: Callable[[Draw, Any], Any]) -> Iterator[None]:
    """:func:`watch_draws`, for a while."""
    from privbo_plugins.privacy import noise

    with mock.patch.object(noise, "_measurement", noise._measurement):
        watch_draws(around)
        yield


def noise_of(session: Session) -> Any:
    """Where a session's releases take their noise from."""
    return session._outlet._noise


# What a vault keeps, and who holds a ledger -----------------------------------------------------


@contextmanager
def statements_counted() -> Iterator[dict[str, int]]:
    """Statements of all vaults of this process meanwhile, and rows that they have fetched."""
    from privbo_plugins.store.transaction import Transaction

    count = {"statements": 0, "rows": 0}
    run, every = Transaction._execute, Transaction._fetch

    def ran(tx: Transaction, *statement: Any, **params: Any) -> Any:
        count["statements"] += 1
        return run(tx, *statement, **params)

    def fetched(tx: Transaction, *statement: Any, **params: Any) -> Any:
        rows = every(tx, *statement, **params)
        count["rows"] += len(rows)
        return rows

    with mock.patch.multiple(Transaction, _execute=ran, _fetch=fetched):
        yield count


@contextmanager
def database_steps() -> Iterator[list[int]]:
    """Instructions that SQLite carries out meanwhile, in all vaults of this process in files."""
    from privbo_plugins.store.vault import Vault

    taken = [0]
    connect = Vault._connect

    def step() -> None:
        taken[0] += 1

    def connected(vault: Vault) -> Any:
        connection = connect(vault)
        connection.driver_connection.set_progress_handler(step, 1)
        return connection

    with mock.patch.object(Vault, "_connect", connected):
        yield taken


def cursor_of(tx: Any) -> Any:
    """The database's cursor of a transaction."""
    return tx._cursor


def engine_of(vault: Vault) -> Any:
    """SQLAlchemy's engine of a vault."""
    return vault._engine


def lock_of(vault: Vault) -> Any:
    return vault._lock


def run_of(curator: Any) -> Any:
    """The run of a curator's release."""
    return curator._run


def answers_of(curator: Any) -> Any:
    """The ledger of a curator's answers, where they are randomised."""
    assert curator._answers is not None
    return curator._answers


def pseudonym(ledger: Any, run: str, user: Any) -> str:
    """Under which name a ledger keeps a user."""
    return str(ledger._pseudonym(run, user))


def session_in(loop: Any) -> Session:
    """What holds the records of ``examples/any_loop.py``."""
    found: Session = loop._session
    return found


def rewards_in(loop: Any) -> tuple[Any, Any]:
    """(ledger, algorithm) of rewards in ``examples/any_loop.py``."""
    return loop._ledger, loop._learned()


# Algorithms -------------------------------------------------------------------------------------


def weights_of_a_step(engine: Any, X: np.ndarray) -> np.ndarray:
    """What DP-GIBO makes a gradient of losses at X with, while nothing is remembered."""
    from privbo_plugins.models.gaussian_process import gradient_weights

    return gradient_weights(
        engine.batches.kernel, X, engine.batches.current().centre, engine.config.noise_ratio
    )


def scores_of(algorithm: Any, pending: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Upper confidence bounds at X while others are evaluated at ``pending``."""
    import numpy as np

    return np.asarray(algorithm._score(pending)(X))


def features_of(posterior: Any) -> Any:
    """The features in which a posterior is kept."""
    return posterior._features


def imagining(model: Any, rows: list[int]) -> Any:
    """The modeler's posterior while rows are out."""
    return model._model(rows)


def sum_of_open_round(server: Any) -> Any:
    """What a federation's server has added up in the round that is open."""
    assert server.rounds.current is not None
    return server.rounds.current.total


def chosen_in(total: Any) -> list[bool]:
    """Whose vectors count in a round."""
    return [bool(coin) for coin in total._chosen]


# A federation's connections ---------------------------------------------------------------------


def read_message(data: bytes) -> dict[str, Any]:
    """What either side makes of the bytes of a message."""
    from privbo_plugins.federation import messages

    return messages.decoded(data)


def read_vector(text: Any) -> np.ndarray:
    from privbo_plugins.federation import messages

    return messages.unpacked(text)


def read_invitation(text: str) -> Any:
    """Address, agent and secret, without going there."""
    from privbo_plugins.federation.identity import invitation_from

    return invitation_from(text)


def told_by(
    listener: Listener, call: str, metadata: list[tuple[str, Any]], request: bytes
) -> tuple[str, bytes]:
    """Status and reply of a server, in the caller's thread."""
    act = getattr(listener, f"_{call}")
    code, reply = listener._told(act, metadata, iter([request]), lambda: None)
    return code.name, reply


def secret_of(listener: Listener, agent: int) -> bytes:
    """An agent's secret."""
    return listener._identity.secret_of(listener._run, agent)


def close_history(history: AgentHistory) -> None:
    """Lets go of an agent's database."""
    history._run.vault.close()


# The search for scikit-learn ---------------------------------------------------------------------


def search_space_of(given: Any) -> Any:
    """The space of a search over these parameters, with what its labels stand for."""
    from sklearn_search._space import to_parameters

    return to_parameters(given, known=list(given))


def losses_of_searches() -> list[str]:
    """Names that a search's ``loss`` may have."""
    from sklearn_search._losses import NAMED

    return list(NAMED)
