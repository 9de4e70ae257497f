"""Workers on PostgreSQL that are killed at random, again and again."""

import json
import random
import time
import warnings
from collections import Counter, defaultdict

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

from optuna_samplers import ldp_objective
from optuna_samplers._local import RUN_ATTR
from optuna_samplers._study import key_of
from privbo_plugins.store.vault import open_vault
from tests.inside import close_storage
from tests.worker import child

BEAT = 2
"""Seconds between two signs of life of a worker; after three of them its trial is tried again."""


def open_study(url, name):
    """A study that all workers share."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    storage = optuna.storages.RDBStorage(
        url,
        engine_kwargs={"pool_pre_ping": True},
        heartbeat_interval=BEAT,
        grace_period=3 * BEAT,
        failed_trial_callback=RetryHeartbeatStaleTrialCallback(),
    )
    sampler = optuna.samplers.RandomSampler()
    return optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, load_if_exists=True
    )


def private_at(vault):
    """An objective of which each trial asks one of a hundred users."""
    return ldp_objective(
        lambda trial: trial.suggest_float("x", 0, 1) - 0.5,
        epsilon=1.0,
        bound=1.0,
        user_id=lambda trial: int(trial.suggest_float("x", 0, 1) * 100),
        vault=vault,
    )


def work(url, name, vault, n_trials):
    """One worker, to the end of the study or of itself."""
    study = open_study(url, name)
    enough = MaxTrialsCallback(n_trials, states=(TrialState.COMPLETE,))
    study.optimize(private_at(vault), callbacks=[enough])


def hammer(url, vault, n_trials, n_workers, every, n_studies=1):
    """Runs studies over one vault, one after another, and kills one of the workers ever so often.

    Several studies, because a worker that begins reads all trials of its study.

    Args:
        url: Database of the studies.
        vault: Database of the vault.
        n_trials: Complete trials in all.
        n_workers: Processes at a time.
        every: Seconds between two kills.
        n_studies: Number of studies.

    Returns:
        What happened: kills, and what :func:`compared` counts, added up.
    """
    found = Counter()
    for number in range(n_studies):
        name = f"s{number}"
        found["kills"] += _hammered(url, name, vault, n_trials // n_studies, n_workers, every)
        study = open_study(url, name)
        drain(study, vault)
        found.update(compared(study, vault))
        close_storage(study)
        if n_studies > 1:
            print(json.dumps({"study": number} | found), flush=True)
    return dict(found)


def _hammered(url, name, vault, n_trials, n_workers, every):
    study, draw, kills = open_study(url, name), random.Random(name), 0
    private_at(vault).guarantee(study)  # begins the run
    workers = []
    while count(study) < n_trials:
        workers = [worker for worker in workers if worker.is_alive()]
        while len(workers) < n_workers:
            workers.append(child(work, url, name, vault, n_trials))
        time.sleep(every)
        draw.choice(workers).kill()
        kills += 1
    for worker in workers:
        worker.kill()
        worker.join()
    close_storage(study)
    return kills


def count(study):
    """Trials that are over, without those that repeat another one."""
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))


def drain(study, vault):
    """Has everything that the killed workers left tried again; nobody else is alive.

    Optuna finds stale trials by their signs of life; some were killed before the first one, and
    some workers between the moment when they fail a stale trial and that when it is queued again.
    """
    private, again = private_at(vault), RetryHeartbeatStaleTrialCallback()
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    alive = {key_of(t) for t in study.trials if t.state != TrialState.FAIL}
    failed = {key_of(t): t for t in study.trials if t.state == TrialState.FAIL}
    for trial in (trial for key, trial in failed.items() if key not in alive):
        again(study, trial)
    while waiting := study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.optimize(private, n_trials=len(waiting))


def compared(study, vault):
    """Compares what the study shows with the ledger: how many of what went wrong."""
    shown = defaultdict(set)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        assert trial.value is not None
        shown[key_of(trial)].add(trial.value)
    run = study.user_attrs[RUN_ATTR]["run"]
    store = open_vault(vault)
    with store.transaction("") as tx:
        tx.run_id = tx.run_of_host(f"optuna-ldp/{run}") or ""
        evaluations = {trial: value for trial, _, _, _, value in tx.evaluations()}
        links = tx.released_since(0).count(tx.run_id)
    store.close()
    released = {trial: value for trial, value in evaluations.items() if value is not None}
    return {
        "trials": len(shown),
        "charged": len(evaluations),
        "links": links,
        "lost": len(set(released) - set(shown)),
        "double": sum(len(values) > 1 for values in shown.values()),
        "not as released": sum(values != {released.get(key)} for key, values in shown.items()),
        "charged and not released": len(set(evaluations) - set(released)),
    }
