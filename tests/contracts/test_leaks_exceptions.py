"""What is raised holds no data: texts, notes, causes, contexts, attributes and frames.

Every way of the zoo out of every system's objective, and errors inside the engine while it holds
the data.
"""

import contextlib
import functools
import gc
import pickle
import sqlite3
import warnings
import weakref

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution

from optuna_samplers import (
    DPFTSDESampler,
    FederatedServer,
    LDPGPUCBSampler,
    answer_trials,
    ldp_objective,
)
from optuna_samplers._local import LocalObjective
from privbo_plugins.errors import (
    BudgetExceededError,
    FederationError,
    PrivacyError,
    SpaceChangedError,
    VaultError,
)
from privbo_plugins.federation import connect
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.transaction import Transaction
from tests.drivers import ON_STUDIES
from tests.leaks import exception_leaks, hostile
from tests.leaks.evidence import Evidence
from tests.leaks.hostile import Odd
from tests.leaks.scanner import links
from tests.leaks.secrets import N_RECORDS, Secrets
from tests.systems import (
    N_ROWS,
    Rows,
    federation_config,
    make_federation,
    objective_of,
    records_sampler,
    turns_of,
)

pytestmark = pytest.mark.usefixtures("quiet")

PLAY = "privbo:play"


def caught(call):
    try:
        call()
    except BaseException as error:
        return error
    return None


def raised(call, kind=BaseException):
    error = caught(call)
    assert isinstance(error, kind)
    return error


def clean(error, *secrets):
    """It came from nowhere, and nobody's data are in it."""
    assert list(links(error)) == [error]
    for own in secrets:
        assert exception_leaks(error, own.scanner) == []


# Every way out of every objective ---------------------------------------------------------------


def _hosted(system, own, ways):
    hosted = ON_STUDIES[system]()
    return hosted.sampler, hosted.private(objective_of(own, ways))


_records = functools.partial(_hosted, "records")
_rewards = functools.partial(_hosted, "any sampler, local")


def _rows(own, ways):
    each = list(ways.values())
    curator = own.curator(lambda row: each[row](own.told_of(row)))

    def objective(trial):
        trial.suggest_int("row", trial.number, trial.number)
        return float(curator.evaluate(trial.number))

    return optuna.samplers.RandomSampler(seed=0), objective


ABORTS, OPTUNA = hostile.ABORTS, hostile.OPTUNA
FAILS = {
    "records": (_records, hostile.VECTOR_FAILS | OPTUNA | ABORTS),
    "rewards": (_rewards, hostile.REWARD_FAILS | OPTUNA | ABORTS),
    "duets": (functools.partial(_hosted, "duets"), hostile.REWARD_FAILS | OPTUNA | ABORTS),
    "rows": (_rows, hostile.RAISED | hostile.UNUSABLE | hostile.ODD_ENTRIES | hostile.ODD_SCALARS),
}
"""System to (sampler and objective that go these ways, the ways)."""


def secrets_of(system):
    return Rows() if system == "rows" else Secrets(size=N_RECORDS if system == "records" else None)


def _cases():
    """Every way once, and every fourth in threads; DUETS shares its code with rewards."""
    cases = []
    for system, (_, ways) in FAILS.items():
        for i, way in enumerate(ways):
            if system != "duets" or i % 4 == 1:
                cases.append((system, way, 1))
            if i % 4 == 0 and system != "rows":
                cases.append((system, way, 2))
    return cases


@pytest.mark.parametrize(("system", "way", "n_jobs"), _cases())
def test_exceptions_out_of_a_private_objective_hold_no_data(system, way, n_jobs):
    own, (build, ways) = secrets_of(system), FAILS[system]
    good = (lambda told: 0.5) if system == "rows" else (lambda told: told.y)
    sampler, private = build(own, {"good": good, way: ways[way], "again": ways[way]})
    study = optuna.create_study(sampler=sampler)
    error = caught(lambda: study.optimize(private, n_trials=1 + n_jobs, n_jobs=n_jobs))
    assert n_jobs > 1 or (error is None) == (way == "pruned")
    if error is not None:
        clean(error, own)
        assert not isinstance(error, Odd | BaseExceptionGroup)
        assert getattr(error, "code", 1) == 1


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
@pytest.mark.parametrize("way", ["text", "cause", "context", "note", "class", "group", "odd"])
@pytest.mark.parametrize("size", [None, N_RECORDS])
def test_control_exceptions_of_a_plain_objective_are_found_out(way, size):
    own = Secrets(size=size)
    objective = objective_of(own, {way: (hostile.RAISED | ABORTS)[way]})
    study = optuna.create_study(sampler=records_sampler() if size else None)
    leaks = exception_leaks(raised(lambda: study.optimize(objective, n_trials=1)), own.scanner)
    assert any(leak.startswith("exception") for leak in leaks)
    assert any(leak.startswith("printed") for leak in leaks)


def test_control_the_exceptions_of_an_open_outcome_are_found_out():
    own = Rows()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    def outcome(trial):
        return float(hostile.RAISED["text"](own.told_of(trial.suggest_int("row", 0, 5))))

    assert exception_leaks(raised(lambda: study.optimize(outcome, n_trials=1)), own.scanner)


@pytest.mark.parametrize("way", [*hostile.UNUSABLE, *hostile.ODD_SCALARS, *hostile.NO_VECTOR])
def test_errors_of_tell_private_hold_no_data(way):
    own, sampler = Secrets(size=N_RECORDS), records_sampler()
    study = optuna.create_study(sampler=sampler)
    for losses in (own.vector(), hostile.VECTOR_FAILS[way](own.told())):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        error = caught(functools.partial(sampler.tell_private, trial, losses))
    assert isinstance(error, ValueError)
    clean(error, own)


@pytest.mark.parametrize("way", [w for w in FAILS["rewards"][1] if "conversion" not in w])
def test_what_a_user_function_raises_is_withheld(way):
    own, ran = Secrets(), []

    def who(trial):
        told = own.told(trial)
        returned = FAILS["rewards"][1][way](told)
        raise ValueError(f"{returned!r} {told.text}")

    private = ldp_objective(
        lambda trial: ran.append(1) or 0.5, epsilon=1.0, bound=1.0, user_id=who
    )
    error = raised(lambda: private(optuna.create_study().ask()))
    assert exception_leaks(error, own.scanner) == []
    assert not ran


def test_a_user_whose_budget_is_used_up_is_in_no_frame():
    own = Secrets()
    private = ldp_objective(
        lambda trial: 0.5, epsilon=1.0, bound=1.0, user_id=lambda trial: own.user, user_budget=1.0
    )
    study = optuna.create_study()
    private(study.ask())
    error = raised(lambda: private(study.ask()), BudgetExceededError)
    clean(error, own)


class _Name(str):
    __slots__ = ()

    def __repr__(self):
        raise ValueError(f"no name {self!s}")


NAMED = {
    "a number": lambda told: told.y, "an object": hostile.Shown,
    "a list": lambda told: [told.y, told.y], "not to be shown": lambda told: _Name(told.token),
}  # fmt: skip


@pytest.mark.parametrize("how", NAMED)
def test_a_user_that_is_none_or_cannot_be_shown_is_not_quoted(how):
    own = Secrets()
    private = ldp_objective(
        objective_of(own, {}), epsilon=1.0, bound=1.0, user_id=lambda t: NAMED[how](own.told(t))
    )
    error = caught(lambda: private(optuna.create_study().ask()))
    assert how == "not to be shown" or isinstance(error, ValueError)
    assert error is None or own.scanner.hits(str(error).encode()) == []


def test_what_the_curator_refuses_quotes_no_row():
    own = Rows()
    curator = own.curator(None)
    assert own.scanner.hits(f"{raised(lambda: own.curator(None, bounds=[]))}".encode()) == []
    for low in (1, 0):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.ask().suggest_int("row", low, low + N_ROWS - 1)
        error = raised(lambda s=study: answer_trials(s, curator), ValueError)
        assert own.scanner.hits(f"{error} {error!r}".encode()) == []


# Errors of the engine while it holds data -------------------------------------------------------

KINDS = [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError, Odd]


INSIDE = {
    "records": [(Session, "_charge"), (Session, "_draw"), (Transaction, "release"),
                (Transaction, "append")],
    "rewards": [(RewardSession, "_charge"), (LocalMechanism, "randomize"),
                (LocalMechanism, "clip"), (Transaction, "charge_evaluation"),
                (Transaction, "release")],
}  # fmt: skip
"""Where the engine fails while it holds the data, by system."""

BESIDE = [
    (optuna.trial.Trial, "set_user_attr"), (LocalObjective, "_worst"),
    (LocalObjective, "guarantee"), (LocalObjective, "_refresh"),
]  # fmt: skip
"""Where something fails before or after a reward is released."""

FAILING = [
    *((system, *place, kind) for system, places in INSIDE.items()
      for place in places for kind in KINDS),
    *(("rewards", *place, kind) for place in BESIDE
      for kind in (optuna.exceptions.StorageInternalError, KeyboardInterrupt)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("system", "owner", "place", "kind"), FAILING, ids=lambda one: getattr(one, "__name__", one)
)
def test_errors_while_data_are_held_hold_none_of_them(system, owner, place, kind, monkeypatch):
    """Also an interrupt that arrives while the engine holds a vector."""
    own, inside = secrets_of(system), (owner, place) in INSIDE[system]

    def fails(*args, **kwargs):
        raise kind(repr(own.values) if inside else "database is locked")

    sampler, private = FAILS[system][0](own, {})
    study = optuna.create_study(sampler=sampler)
    trial = study.ask()
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, fails)
        error = raised(lambda: private(trial), BaseException if inside else kind)
    assert exception_leaks(error, own.scanner) == []
    if system == "rewards" and inside:
        assert PLAY not in trial.user_attrs
        assert not private.guarantee(study).protected
        assert private(trial) == private(trial)  # nothing of the failed release was kept


@pytest.mark.filterwarnings("always")
def test_a_failing_vault_quotes_no_losses(tmp_path, monkeypatch):
    evidence, own = Evidence(tmp_path), Secrets(size=N_RECORDS)
    evidence.of(own)

    def collides(self, tx, query, scale):
        tx.put_losses("0", own.vector())
        tx.charge(Charge(query.kind, query.key, query.mu, query.sensitivity, scale))
        tx.put_losses("0", own.vector())

    monkeypatch.setattr(Session, "_charge", collides)
    sampler = records_sampler(vault=evidence.vault)
    private = sampler.private(objective_of(own, {}))
    study = optuna.create_study(sampler=sampler)
    with evidence.recorded():
        error = raised(lambda: study.optimize(private, n_trials=1))
    evidence.add_vault()
    assert "vault" in str(error)
    assert exception_leaks(error, own.scanner) == []
    assert "recorded" in evidence.text("log")
    assert evidence.blobs["vault"]
    assert [evidence.hits(sink) for sink in ("log", "console", "vault")] == [[], [], []]


def test_a_failing_vault_quotes_no_reward(tmp_path):
    evidence, own = Evidence(tmp_path), Secrets()
    evidence.of(own)
    private = ldp_objective(
        objective_of(own, {}), epsilon=1.0, bound=1.0, vault=evidence.vault, user_id=own.user
    )
    study = optuna.create_study()
    private(study.ask())
    (evidence.vault_folder / "vault.db").write_bytes(b"no database any more")
    trial = study.ask()
    with evidence.recorded():
        error = raised(lambda: private(trial), VaultError)
    assert own.scanner.hits(str(error).encode()) == []
    assert [evidence.hits(sink) for sink in ("log", "console")] == [[], []]


# Errors of a federation's server ----------------------------------------------------------------

OTHER = {"z": FloatDistribution(0, 1)}

REFUSE = (
    "CREATE TRIGGER refuse BEFORE INSERT ON privbo_events WHEN NEW.kind = 'release' "
    "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:optuna.exceptions.ExperimentalWarning")
def test_errors_that_the_server_raises_quote_nobody(tmp_path):
    """Neither their text nor their tracebacks' variables, beside what the caller itself sent."""
    evidence = Evidence(tmp_path)
    server, agents = make_federation(evidence)
    turns_of(agents, 0)
    with contextlib.closing(sqlite3.connect(evidence.vault_folder / "vault.db")) as db, db:
        db.execute(REFUSE)
    for agent in agents[:2]:
        agent.sampler.send(agent.study)
    link = server.connect(2)
    length = link.config.message_length
    failed = raised(lambda: link.submit(np.ones(length)), FederationError)  # completes the round
    for agent in agents:
        agent.remember()
        assert agent.link.sent
    fresh = FederatedServer(server.config).connect(0)
    errors = [
        failed,
        raised(lambda: link.collect(2), FederationError),
        raised(lambda: fresh.submit(np.ones(length + 1)), ValueError),
        raised(lambda: link.join({"z": {}}), SpaceChangedError),
        raised(lambda: DPFTSDESampler(link, search_space=OTHER), SpaceChangedError),
        raised(lambda: server.connect("nobody"), ValueError),
        raised(lambda: pickle.dumps(server), PrivacyError),
        *(raised(lambda a=a: pickle.dumps(a.sampler), PrivacyError) for a in agents),
    ]
    for agent in agents:
        for error in errors:
            assert exception_leaks(error, agent.own.scanner) == []


def test_an_invitation_is_in_no_text():
    """It is a secret too: whoever has it speaks for its agent."""
    server = FederatedServer(federation_config(1), space=Space({"x": Float(0.0, 1.0)}))
    server.listen()
    try:
        invitation, own = server.invitation(0), Secrets()
        own.scanner.add_text("invitation", invitation.rpartition("#")[2])
        assert own.scanner.hits(invitation.encode())
        link = connect(invitation)
        sampler = DPFTSDESampler(link, search_space={"x": FloatDistribution(0, 1)})
        study = optuna.create_study(sampler=sampler)
        with warnings.catch_warnings(record=True):
            study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=3)
        shown = [link, sampler, study, sampler.guarantee(study), study.trials]
        text = "".join(f"{x!r}{x}" for x in shown)
        error = raised(lambda: pickle.dumps(sampler), PrivacyError)
        assert own.scanner.hits(f"{text}{error!r}{error}".encode()) == []
        link.close()
    finally:
        server.close()


# Values and memory ------------------------------------------------------------------------------


class _Reward(float):
    """A float that can be watched."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("fails", [False, True])
def test_the_raw_reward_is_gone_after_the_call(fails):
    watched = []

    def objective(trial):
        reward = _Reward(0.7312345678912345)
        watched.append(weakref.ref(reward))
        trial.suggest_float("x", 0, 1)
        if fails:
            with contextlib.suppress(ValueError):
                trial.suggest_float("y", 2, 1)  # remembered by the guard, frames and all
            raise ValueError(reward)
        return reward

    private = ldp_objective(objective, epsilon=1.0, value_range=(0, 1), user_id="Jane")
    study = optuna.create_study(sampler=LDPGPUCBSampler(1.0, value_range=(0, 1), seed=0))
    error = caught(lambda: study.optimize(private, n_trials=1))
    assert (error is not None) is fails
    gc.collect()
    assert watched[0]() is None


def test_nothing_is_attached_before_the_release(monkeypatch):
    """What the study holds while the objective runs, and while the release is drawn."""
    own, seen = Secrets(), []
    study = optuna.create_study()
    randomize = LocalMechanism.randomize

    def watched(self, y, noise, worst):
        seen.append(pickle.dumps((study.trials, study.user_attrs)))
        return randomize(self, y, noise, worst)

    def objective(trial):
        y = own.told(trial).y
        seen.append(pickle.dumps((study.trials, study.user_attrs)))
        return float(y)

    monkeypatch.setattr(LocalMechanism, "randomize", watched)
    private = ldp_objective(objective, epsilon=1.0, value_range=(0, 1), mechanism="laplace")
    trial = study.ask()
    study.tell(trial, private(trial))
    assert len(seen) == 2
    assert [own.scanner.hits(blob) for blob in seen] == [[], []]
    assert all(PLAY.encode() not in blob for blob in seen)
    assert own.scanner.hits(pickle.dumps({"trials": study.trials, "reward": own.values}))
