"""What tests must read or reach inside an object, each thing once and by name.

Tests ask through the public interface. What no public name tells stands here, so that whoever
changes the inside of a class finds the one place where tests look into it. Imports stand in the
functions: workers of Ray load this module too, and what a trial imports is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    pass

# Samplers, searches and their settings ----------------------------------------------------------


def settings_of(made):
    """What a sampler or a search was made with, as its algorithm takes it."""
    rows = getattr(made, "_rows", None)  # of a search on a released table
    return rows.config if hasattr(rows, "config") else made._config


def session_of(sampler, study):
    """What holds the records of a study: charges, releases, held losses."""
    found = sampler._state(study).session
    return found


def n_compared(releases):
    """Trials of a run's comparison: a plan has one more where values name no further point."""
    return sum(1 + len(release.values) for release in releases if release.kind == "comparison")


def unspent(plan, compared):
    """Square of the mu that is left where a plan has places for more points than are compared."""
    return (plan.n_last - compared) * plan.mu_value**2 + (compared == 0) * plan.mu_comparison**2


def algorithm_of(sampler, study):
    """What a sampler on rewards or rows has learnt of a study."""
    return sampler._state(study).scheduler.algorithm


def looked_at(sampler, study):
    """Numbers of the trials whose contents have been accounted for."""
    return set(sampler._state(study).audit.seen)


def algorithm_in(session):
    """The algorithm of a session on records, after all releases that its vault holds."""
    return session._known().algorithm


def vault_of(holder):
    """The vault that a sampler, a curator or a loop has opened."""
    found = holder._vault
    return found


@contextmanager
def read_only(sampler):
    """The vault of a sampler cannot be written meanwhile."""
    vault = vault_of(sampler)
    connect = vault._connect

    def connected():
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


def storage_of(study):
    """The storage that another worker would open."""
    return study._storage


def fail(study, trial):
    """Marks a trial as failed, as the heartbeat of a worker that died does."""
    from optuna.trial import TrialState

    storage_of(study).set_trial_state_values(trial._trial_id, TrialState.FAIL)


def close_storage(study):
    """Closes the connections of a study's database."""
    storage_of(study)._backend.engine.dispose()


def allows(distribution, value):
    """Whether a value is one of an Optuna distribution's."""
    return bool(distribution._contains(distribution.to_internal_repr(value)))


# Ray Tune ---------------------------------------------------------------------------------------


def channel_of(search):
    """The driver's channel to the host of a search, which is begun if need be."""
    return search._open()


def call_host(search, operation, *args):
    """What the host of a search answers its driver."""
    return search._call(operation, *args)


def tell(channel, trial, x, losses, index=None):
    """What a trial is told that sends these losses to its host."""
    return float(channel.call_sealed("tell", trial, (losses, index), x)[0])


@contextmanager
def refusing(search, refused, error):
    """An operation of the host fails meanwhile; yields what calls the host all the same."""
    call = search._call

    def failing(operation, *args):
        if operation == refused:
            raise error
        return call(operation, *args)

    with mock.patch.object(search, "_call", failing):
        yield call


def ledger_of(private):
    """Rows of the ledger of an ``ldp_trainable``."""
    return list(private.guarantee.__self__._connect().call("ledger"))


def report_of(search):
    """What the host of a search says of its run, or has said last."""
    return dict(search._report())


def published_by(search):
    """Released value by trial."""
    return dict(report_of(search)["published"])


def host_name(search):
    """The name under which trials find the host of a search."""
    return str(search._actor_name)


def agent_hosts(search):
    """Names of the hosts of a federation's agents."""
    return list(dict.fromkeys(search._hosts.names))


def history_of_agent(host, agent):
    """What a host of agents keeps of one of them."""
    return host.session[agent].history


def _anchor(search):
    return search._anchor


def holds_a_host(search):
    """Whether this process has begun the host of a search."""
    return _anchor(search).actor is not None


def kill_host(search):
    """The host of a search dies, and its driver is not told."""
    import ray

    ray.kill(_anchor(search).actor)


def end_host(search):
    """The driver ends the host of a search without a last word."""
    _anchor(search).end()


def end_forgotten_hosts():
    """Ends the vaults in memory that no search of this process knows any more."""
    from raytune_searchers.hosts import actors
    from raytune_searchers.hosts.losses import LossHost

    for name in actors.forgotten():
        actors.anchor(name, LossHost).end()


def give_noise(search, noise):
    """The host of a restored search will draw from here, once this process begins it."""
    _anchor(search).noise = noise


def space_of(search):
    """The space of a search that knows everything that a run needs."""
    return search._ready()


def model_of(search):
    """What a search on rewards has learnt so far."""
    assert search._model is not None
    return search._model.algorithm


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

    def __call__(self, value):
        return self.measurement(value)


def watch_draws(around):
    """Puts a call around each draw of OpenDP in this process, for good.

    A run with an injected source is never called private, so the source stays and OpenDP is
    watched.

    Args:
        around: Gets the draw and the value, and returns the noisy value.
    """
    from privbo_plugins.privacy import noise

    measurement = noise._measurement

    def watched(kind, parameter):
        draw = Draw(kind, parameter, measurement(kind, parameter))
        return lambda value: around(draw, value)

    noise._measurement = watched


def watch_releases_of_records(around_charge, around_draw):
    """Puts calls around each charge and each draw of all records' sessions, for good.

    Args:
        around_charge: Gets what charges and the query.
        around_draw: Gets what draws and the query, and returns what was drawn.
    """
    from privbo_plugins.sessions.records import Session

    charge, draw = Session._charge, Session._draw

    def charged(session, tx, query, scale):
        around_charge(lambda: charge(session, tx, query, scale), query)

    def drawn(session, query, *args):
        return around_draw(lambda: draw(session, query, *args), query)

    Session._charge, Session._draw = charged, drawn


@contextmanager
def draws_through(around):
    """:func:`watch_draws`, for a while."""
    from privbo_plugins.privacy import noise

    with mock.patch.object(noise, "_measurement", noise._measurement):
        watch_draws(around)
        yield


def noise_of(session):
    """Where a session's releases take their noise from."""
    return session._outlet._noise


# What a vault keeps, and who holds a ledger -----------------------------------------------------


@contextmanager
def statements_counted():
    """Statements of all vaults of this process meanwhile, and rows that they have fetched."""
    from privbo_plugins.store.transaction import Transaction

    count = {"statements": 0, "rows": 0}
    run, every = Transaction._execute, Transaction._fetch

    def ran(tx, *statement, **params):
        count["statements"] += 1
        return run(tx, *statement, **params)

    def fetched(tx, *statement, **params):
        rows = every(tx, *statement, **params)
        count["rows"] += len(rows)
        return rows

    with mock.patch.multiple(Transaction, _execute=ran, _fetch=fetched):
        yield count


@contextmanager
def database_steps():
    """Instructions that SQLite carries out meanwhile, in all vaults of this process in files."""
    from privbo_plugins.store.vault import Vault

    taken = [0]
    connect = Vault._connect

    def step():
        taken[0] += 1

    def connected(vault):
        connection = connect(vault)
        connection.driver_connection.set_progress_handler(step, 1)
        return connection

    with mock.patch.object(Vault, "_connect", connected):
        yield taken


def cursor_of(tx):
    """The database's cursor of a transaction."""
    return tx._cursor


def engine_of(vault):
    """SQLAlchemy's engine of a vault."""
    return vault._engine


def lock_of(vault):
    return vault._lock


def run_of(curator):
    """The run of a curator's release."""
    return curator._run


def answers_of(curator):
    """The ledger of a curator's answers, where they are randomised."""
    assert curator._answers is not None
    return curator._answers


def pseudonym(ledger, run, user):
    """Under which name a ledger keeps a user."""
    return str(ledger._pseudonym(run, user))


def session_in(loop):
    """What holds the records of ``examples/any_loop.py``."""
    found = loop._session
    return found


def rewards_in(loop):
    """(ledger, algorithm) of rewards in ``examples/any_loop.py``."""
    return loop._ledger, loop._learned()


# Algorithms -------------------------------------------------------------------------------------


def weights_of_a_step(engine, X):
    """What DP-GIBO makes a gradient of losses at X with, while nothing is remembered."""
    from privbo_plugins.models.gaussian_process import gradient_weights

    return gradient_weights(
        engine.batches.kernel, X, engine.batches.current().centre, engine.config.noise_ratio
    )


def scores_of(algorithm, pending, X):
    """Upper confidence bounds at X while others are evaluated at ``pending``."""
    import numpy as np

    return np.asarray(algorithm._score(pending)(X))


def features_of(posterior):
    """The features in which a posterior is kept."""
    return posterior._features


def imagining(model, rows):
    """The modeler's posterior while rows are out."""
    return model._model(rows)


def sum_of_open_round(server):
    """What a federation's server has added up in the round that is open."""
    assert server.rounds.current is not None
    return server.rounds.current.total


def chosen_in(total):
    """Whose vectors count in a round."""
    return [bool(coin) for coin in total._chosen]


# A federation's connections ---------------------------------------------------------------------


def read_message(data):
    """What either side makes of the bytes of a message."""
    from privbo_plugins.federation import messages

    return messages.decoded(data)


def read_vector(text):
    from privbo_plugins.federation import messages

    return messages.unpacked(text)


def read_invitation(text):
    """Address, agent and secret, without going there."""
    from privbo_plugins.federation.identity import invitation_from

    return invitation_from(text)


def told_by(listener, call, metadata, request):
    """Status and reply of a server, in the caller's thread."""
    act = getattr(listener, f"_{call}")
    code, reply = listener._told(act, metadata, iter([request]), lambda: None)
    return code.name, reply


def secret_of(listener, agent):
    """An agent's secret."""
    return listener._identity.secret_of(listener._run, agent)


def close_history(history):
    """Lets go of an agent's database."""
    history._run.vault.close()


# The search for scikit-learn ---------------------------------------------------------------------


def search_space_of(given):
    """The space of a search over these parameters, with what its labels stand for."""
    from sklearn_search._space import to_parameters

    return to_parameters(given, known=list(given))


def losses_of_searches():
    """Names that a search's ``loss`` may have."""
    from sklearn_search._losses import NAMED

    return list(NAMED)
