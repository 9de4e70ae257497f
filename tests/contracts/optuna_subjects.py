"""The six systems of the Optuna matrix, each as a run that any process can begin or go on with."""

from __future__ import annotations

import abc
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from optuna_samplers import DPFTSDESampler, FederatedServer, FederationConfig, POGPUCBSampler
from optuna_samplers._study import key_of
from privbo_plugins.sessions.rows import Curator
from tests.drivers import N_ROWS, hosted
from tests.inside import EVALUATIONS, LEDGER
from tests.leaks.secrets import N_RECORDS
from tests.optuna_samplers.runs import rows

TOKEN = "patient-5f2c9e1ab7d04e68"
"""A text that stands for a record; no system may repeat it."""


class Ground:
    """Where a run lies: what anybody may read, and what stays with whoever holds the secret.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder):
        self.shared, self.private = folder / "shared", folder / "private"
        self.shared.mkdir(exist_ok=True)
        self.private.mkdir(exist_ok=True)
        self.vault = f"sqlite:///{self.private}/vault.db"
        self._rng = np.random.default_rng()

    def numbers(self, size):
        """Secrets, which are remembered for whoever looks for them afterwards."""
        found = self._rng.uniform(0.11, 0.88, size)
        with (self.private / "secrets").open("a") as file:  # one write: workers share it
            file.write(json.dumps(found.tolist()) + "\n")
        return found

    def secrets(self):
        """All numbers of all processes."""
        path = self.private / "secrets"
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )

    def stored(self, sql):
        """Rows of the vault, read beside the product."""
        return rows(self.private / "vault.db", sql)


class Subject(abc.ABC):
    """One system in one process.

    Attributes:
        sampler: The study's.
        ground: Where the run lies.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    """Of ``tests.drivers.SYSTEMS``."""
    settings: ClassVar[dict[str, Any]] = {}
    named: ClassVar[dict[str, str]] = {}
    direction: ClassVar[str] = "minimize"
    n_trials: ClassVar[int] = 8
    guarded: ClassVar[bool] = True
    """Whether an objective sees a guarded trial, whose outputs need ``public=True``."""
    own_study: ClassVar[bool] = False
    """Whether the study itself is the secret of whoever runs it."""
    space: ClassVar[dict[str, BaseDistribution]] = {"x": FloatDistribution(0.0, 1.0)}
    sampler: Any

    def __init__(self, ground):
        self.ground = ground
        self._begin()

    def _begin(self):
        """Makes the sampler, and what makes objectives private."""
        made = hosted(self.key, vault=self.ground.vault, **self.settings)
        self.sampler, self._private = made.sampler, made.private

    # An objective ---------------------------------------------------------------------------

    @property
    def public(self):
        """What vouches for an output."""
        return {"public": True} if self.guarded else {}

    def suggest(self, trial):
        """The parameter that matters."""
        return trial.suggest_float("x", 0.0, 1.0)

    def objective(self, act=None):
        """A private objective that does something beside its evaluation."""

        def plain(trial):
            point = self.suggest(trial)
            if act is not None:
                act(trial)
            return self.outcome(point)

        return self.private(plain)

    def private(self, plain):
        """The objective as the system's users wrap it."""
        return self._private(plain, **self.named)

    @abc.abstractmethod
    def outcome(self, point):
        """A secret."""

    # What can be told afterwards ------------------------------------------------------------

    def guarantee(self, study):
        """What is claimed."""
        return self.sampler.guarantee(study)

    def done(self, study):
        """Whether the plan is used up."""
        return bool(self.sampler.finished(study))

    @abc.abstractmethod
    def released(self, study, trial):
        """What a trial may show as its value, by what the holder of the secret remembers."""

    @abc.abstractmethod
    def check_charges(self, study, *, done):
        """The ledger holds what was declared, and nothing twice."""

    def charges(self):
        """Every line of the ledger, of all studies."""
        charged = "SELECT * FROM privbo_events WHERE kind IN ('charge', 'paid')"
        return self.ground.stored(charged)

    def close(self):  # noqa: B027
        """Gives the run free for another process; most have nothing to give."""


def completed(study):
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


class Records(Subject):
    """DP-GIBO: a vector of losses a trial."""

    name = "DP-GIBO"
    key = "records"
    settings: ClassVar[dict[str, Any]] = {"value_share": 0.2}

    def outcome(self, point):
        return self.ground.numbers(N_RECORDS)

    def _read(self):
        """(values by trial, kind and mu of each charge)."""
        values = self.ground.stored("SELECT trial, value FROM privbo_board WHERE state = 'done'")
        return dict(values), self.ground.stored(f"SELECT kind, mu FROM {LEDGER}")

    def released(self, study, trial):
        values, _ = self._read()
        return [values[key_of(trial)]] if key_of(trial) in values else []

    def check_charges(self, study, *, done):
        _, charges = self._read()
        total, values = sum(mu**2 for _, mu in charges), [mu for k, mu in charges if k == "value"]
        assert total <= 1.0 + 1e-9
        if done:  # what a trial would have cost that was needless is not spent
            needless = self.sampler.status(study)["planned"] - len(values)
            assert needless in (0, 1)
            assert total + needless * values[0] ** 2 == pytest.approx(1.0)


class Rewards(Subject):
    """One privatised number a trial; LDP-GP-UCB."""

    name = "LDP GP-UCB"
    key = "rewards"
    settings: ClassVar[dict[str, Any]] = {"n_trials": 8}
    direction = "maximize"
    epsilon: ClassVar[float] = 0.5

    def outcome(self, point):
        return float(self.ground.numbers(1)[0])

    def evaluations(self, study):
        """(trial, epsilon, value) of each that the ledger holds for a study."""
        run = study.user_attrs["privbo:ldp"]["run"]
        return self.ground.stored(
            f"SELECT trial, epsilon, value FROM {EVALUATIONS} WHERE host_key = 'optuna-ldp/{run}'"
        )

    def released(self, study, trial):
        return [v for t, _, v in self.evaluations(study) if t == key_of(trial) and v is not None]

    def check_charges(self, study, *, done):
        rows = self.evaluations(study)
        assert len(rows) == len({trial for trial, _, _ in rows})
        assert {epsilon for _, epsilon, _ in rows} <= {self.epsilon}
        guarantee = self.guarantee(study)
        assert guarantee.n_evaluations == len(rows)
        shown = {key_of(trial) for trial in completed(study)}
        assert shown <= {trial for trial, _, _ in rows}


class AnySampler(Rewards):
    """``ldp_objective`` under Optuna's default sampler."""

    name = "ldp_objective, TPE"
    key = "any sampler, local"
    settings: ClassVar[dict[str, Any]] = {}
    epsilon = 1.0

    def _begin(self):
        super()._begin()
        self.sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=3)

    def guarantee(self, study):
        return self.objective().guarantee(study)

    def done(self, study):
        return len(completed(study)) >= self.n_trials


class Draws(Rewards):
    """DUETS with privatised rewards."""

    name = "DUETS"
    key = "duets"
    settings: ClassVar[dict[str, Any]] = {"n_trials": 8, "search_space": Subject.space}
    epsilon = 1.0


class Table(Subject):
    """PO-GP-UCB with privatised answers, modeler and curator in one process."""

    name = "PO-GP-UCB"
    direction = "maximize"
    n_trials = 6
    guarded = False
    space: ClassVar[dict[str, BaseDistribution]] = {"row": IntDistribution(0, N_ROWS - 1)}

    def _begin(self):
        ground = self.ground
        rows, file = ground.private / "rows.npy", ground.shared / "table.npz"
        if not rows.exists():
            X = np.stack([ground.numbers(N_ROWS), ground.numbers(N_ROWS)])
            np.save(rows, np.concatenate([X.T, ground.numbers(N_ROWS)[:, None]], axis=1))
        known = np.load(rows)
        self.curator = Curator(
            known[:, :2], epsilon=4.0, delta=1e-6, bounds=[(0.0, 1.0)] * 2,
            outcomes=known[:, 2], outcome_epsilon=1.0, outcome_range=(0.0, 1.0),
            vault=ground.vault,
        )  # fmt: skip
        if not file.exists():
            self.curator.release().save(file)
        self.sampler = POGPUCBSampler(
            file, seed=0, lengthscale=0.5, signal_variance=0.1, noise_variance=1.0
        )

    def suggest(self, trial):
        return trial.suggest_int("row", 0, N_ROWS - 1)

    def private(self, plain):
        return plain

    def outcome(self, point):
        return self.curator.evaluate(point)

    def done(self, study):
        return len(completed(study)) >= self.n_trials

    def released(self, study, trial):
        return [self.curator.evaluate(trial.params["row"])]

    def check_charges(self, study, *, done):
        guarantee = self.guarantee(study)
        assert guarantee.n_answers == len(completed(study))
        assert guarantee.outcomes is not None
        answers = self.ground.stored(f"SELECT trial, epsilon FROM {EVALUATIONS}")
        assert {epsilon for _, epsilon in answers} == {1.0}
        assert len(answers) == len({row for row, _ in answers})


class Federated(Subject):
    """DP-FTS-DE: one agent, whose study is its own, and its server."""

    name = "DP-FTS-DE"
    n_trials = 6
    guarded = False
    own_study = True

    def _begin(self):
        config = FederationConfig(
            n_agents=1, population="explore", n_rounds=3, n_startup=2, n_features=20,
            clipping_norm=22.0, z=2.0,
        )  # fmt: skip
        self.server = FederatedServer(config, vault=self.ground.vault, deadline=30.0)
        self.sampler = DPFTSDESampler(self.server.connect(0), search_space=self.space, seed=0)

    def private(self, plain):
        return plain

    def outcome(self, point):
        return float(self.ground.numbers(1)[0])

    def done(self, study):
        return len(completed(study)) >= self.n_trials and bool(self.sampler.finished())

    def released(self, study, trial):
        return [value for line in self.ground.secrets() for value in line]

    def check_charges(self, study, *, done):
        ledger = self.server.ledger()
        assert len(ledger) == self.guarantee(study).n_released == (3 if done else len(ledger))
        claimed = self.guarantee(study)
        assert claimed.epsilon_spent <= claimed.epsilon

    def close(self):
        self.server.close()


SUBJECTS = {kind.name: kind for kind in (Records, Rewards, AnySampler, Draws, Table, Federated)}


# Studies that several processes share ------------------------------------------------------------


def storage_at(kind, where):
    """Opens a storage, in any process."""
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(where)
        return optuna.storages.JournalStorage(backend)
    if kind == "grpc":
        return optuna.storages.GrpcStorageProxy(host="localhost", port=int(where))
    if kind == "heartbeat":
        return optuna.storages.RDBStorage(
            where,
            heartbeat_interval=1,
            grace_period=3600,  # which a test lets pass in the storage's own table
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
        )
    return optuna.storages.RDBStorage(where)


def go_on(study, subject, act=None, most=80):
    """Trials until the plan is used up, or the sampler says why it stops."""
    objective = subject.objective(act)
    with warnings.catch_warnings(record=True, action="always") as caught:
        while not subject.done(study) and len(study.trials) < most:
            study.optimize(objective, n_trials=1)
            if any("so the study is stopped" in str(w.message) for w in caught):
                break
    for w in caught:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


def _opened(name, folder, kind, where):
    """A run in a process of its own, which has no other output than a file beside the study."""
    subject = SUBJECTS[name](Ground(Path(folder)))
    log = os.open(subject.ground.shared / f"log-{os.getpid()}", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(log, stream)
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    study = optuna.load_study(
        study_name="s", storage=storage_at(kind, where), sampler=subject.sampler
    )
    return study, subject


def finish_there(name, folder, kind, where):
    """Goes on with a study that another process has begun."""
    study, subject = _opened(name, folder, kind, where)
    go_on(study, subject)


def hang_there(name, folder, where):
    """Begins a trial that never ends, and says so in a file."""
    study, subject = _opened(name, folder, "heartbeat", where)

    def hang(trial):
        (subject.ground.private / "hangs").write_text(str(trial.number))
        time.sleep(600)

    study.optimize(subject.objective(hang), n_trials=1)


def serve(url, port):
    """A proxy in front of a database."""
    warnings.simplefilter("ignore")
    storage = optuna.storages.get_storage(url)
    optuna.storages.run_grpc_proxy_server(storage, host="localhost", port=port)
