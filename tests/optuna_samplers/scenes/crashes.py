"""A study that kills its process in the middle of a release, and one that resumes after it.

Draws are counted in a file that is
written, and synced, before each draw.
"""

import json
import os
import signal
import warnings
from contextlib import contextmanager

import optuna

from optuna_samplers import PrivateSampler, private_objective
from privbo_plugins.scores import predictions
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import Vault
from tests.drivers import TWO_SCORES
from tests.inside import fail, watch_draws, watch_releases_of_records
from tests.optuna_samplers import runs
from tests.optuna_samplers.runs import RECORDS, make_sampler, squares
from tests.sixth import SixthConfig
from tests.worker import append

SPACE = {"x": optuna.distributions.FloatDistribution(0, 1)}

POINTS = (
    "before charge", "after charge", "after draw", "after store", "before commit",
    "after commit", "before publish", "after publish",
)  # fmt: skip


class CountingNoise:
    """Writes down each draw of this process's secure noise before it, and its outcome after.

    Put where OpenDP is called: a run with an injected source is never called private.
    """

    def __init__(self, folder):
        self.label = ("", "")

        def counted(draw, value):
            append(folder / "draws", self.label)
            noisy = draw(value)
            append(folder / "outcomes", [*self.label, noisy])
            return noisy

        watch_draws(counted)


class Killer:
    """Kills the process at one point of one release.

    Args:
        point: One of :data:`POINTS`; None never kills.
        kind: Of the release.
        key: Of the release; None for the release number ``nth`` of its kind in this process.
        nth: See ``key``.
    """

    def __init__(self, point, kind, key, nth=0):
        self.point, self.kind, self.key, self.nth = point, kind, key, nth
        self.stored = self.committed = False
        self._seen = {}

    def strike(self, point):
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def meant(self, point, kind, key):
        if kind != self.kind or self.point is None:
            return False
        if self.key is not None:
            return key == self.key
        self._seen[point] = self._seen.get(point, -1) + 1
        return self._seen[point] == self.nth

    def at(self, point, release):
        if self.meant(point, release.kind, release.key):
            self.strike(point)

    def install(self, noise):
        """Puts the points into the engine and the adapter of this process."""
        self._install_before_store(noise)
        self._install_from_store()

    def _install_before_store(self, noise):
        def _charge(charge, query):
            self.at("before charge", query)
            charge()
            self.at("after charge", query)

        def _draw(draw, query):
            noise.label = (query.kind, query.key)
            noisy = draw()
            self.at("after draw", query)
            return noisy

        watch_releases_of_records(_charge, _draw)

    def _install_from_store(self):
        store, transaction = Transaction.release, Vault.transaction
        after_trial = PrivateSampler.after_trial

        def _store(tx, kind, key, payload):
            text = store(tx, kind, key, payload)
            if self.meant("after store", kind, key):
                self.stored = True
                self.strike("after store")
            return text

        @contextmanager
        def _transaction(vault, run_id):
            with transaction(vault, run_id) as tx:
                yield tx
                if self.stored:
                    self.strike("before commit")
            if self.stored:
                self.committed = True
                self.strike("after commit")

        def _after_trial(sampler, *args):
            if self.committed:
                self.strike("before publish")
            after_trial(sampler, *args)

        Transaction.release, Vault.transaction = _store, _transaction
        PrivateSampler.after_trial = _after_trial


def stepwise(vault, **more):
    """Two start points, two steps, and two or three points to compare."""
    return make_sampler(batch_size=2, search_space=SPACE, vault=vault, **more)


def of_persons(vault):
    """The same of forty persons with one to five rows."""
    return stepwise(vault, groups=[i % 40 if i < 80 else i % 10 for i in range(len(RECORDS))])


def of_blocks(vault):
    """The same of scores of blocks."""
    deal = (4 * len(RECORDS), len(RECORDS), 0)
    sampler = stepwise(vault, records_in_blocks=deal)
    sampler.private = runs.of_blocks(sampler.private, deal)
    return sampler


STEPWISE = (stepwise, of_persons, of_blocks)


def from_outside(vault):
    """An algorithm that the product has never heard of: six values."""
    return PrivateSampler(SixthConfig(1.0, 6), search_space=SPACE, seed=3, vault=vault)


class OfScores(optuna.samplers.RandomSampler):
    """Six trials of a private objective: two scores and a constraint, with a sampler's verbs."""

    def __init__(self, vault):
        super().__init__(seed=3)
        self.objective = private_objective(
            lambda trial: predictions(squares(trial)), scores=TWO_SCORES, mu=1.0, n_trials=6,
            constraints={"half": 0.4}, vault=vault,
        )  # fmt: skip

    def private(self, _objective):
        return self.objective

    def __getattr__(self, name):
        return getattr(vars(self)["objective"], name)


def _open(folder, killer, make=stepwise):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    noise = CountingNoise(folder)
    killer.install(noise)
    sampler = make(f"sqlite:///{folder}/vault.db")
    storage = f"sqlite:///{folder}/study.db"
    study = optuna.create_study(
        storage=storage, study_name="s", sampler=sampler, load_if_exists=True
    )
    return sampler, study


def crash(folder, point, kind, key, nth=0, make=stepwise):
    """Runs the study until the point is reached; returns only if it never is."""
    killer = Killer(point, kind, key, nth)
    sampler, study = _open(folder, killer, make)
    _recover(sampler, study)

    def published(study, trial):
        if killer.committed:
            killer.strike("after publish")

    study.optimize(sampler.private(squares), callbacks=[published])


def crash_at_attribute(folder, attribute):
    """Kills the process when the study is about to store one of its attributes."""
    sampler, study = _open(folder, Killer(None, "", None))
    set_user_attr = optuna.Study.set_user_attr

    def fatal(study, key, value):
        if key == attribute:
            os.kill(os.getpid(), signal.SIGKILL)
        set_user_attr(study, key, value)

    optuna.Study.set_user_attr = fatal
    study.optimize(sampler.private(squares))


def _recover(sampler, study):
    """Replays what is released, and retries the rest as Optuna's heartbeat does."""
    replayed = sampler.replay(study)
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        fail(study, trial)
        retry(study, study.trials[trial.number])
    return replayed


def finish(folder, make=stepwise):
    """Resumes in this process, runs to the end and writes what the study shows."""
    sampler, study = _open(folder, Killer(None, "", None), make)
    replayed = _recover(sampler, study)
    replayed_values = [study.trials[number].value for number in replayed]
    if not sampler.finished(study):
        study.optimize(sampler.private(squares))
    shown = {
        "replayed": replayed,
        "replayed_values": replayed_values,
        "finished": sampler.finished(study),
        "protected": sampler.guarantee(study).protected,
        "mu_spent": sampler.guarantee(study).mu_spent,
        "recommended": sampler.recommend(study),
    }
    (folder / "shown.json").write_text(json.dumps(shown))
