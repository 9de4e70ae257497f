"""Workers that share a study, and workers that come back to one."""

import json
import time
import warnings
from pathlib import Path

import optuna

from tests.inside import algorithm_in, session_of
from tests.optuna_samplers.runs import make_sampler, plane


def open_storage(kind, folder):
    """SQLite file, journal file, or the database at a URL."""
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(f"{folder}/study.log")
        return optuna.storages.JournalStorage(backend)
    return database_at(f"sqlite:///{folder}/study.db" if kind == "sqlite" else str(folder))


def database_at(url):
    """A storage whose file is waited for while another process writes."""
    timeout = {"connect_args": {"timeout": 60.0}} if url.startswith("sqlite") else {}
    return optuna.storages.RDBStorage(url, engine_kwargs=timeout)


def slow_plane(trial):
    """Lets the workers' trials overlap."""
    losses = plane(trial)
    time.sleep(0.01)
    return losses


def shown(sampler, study):
    """What a worker believes when it is done."""
    recommended = sampler.recommend(study)
    return {
        "recommended": recommended,
        "finished": sampler.finished(study),
        "releases": [list(r.values) for r in session_of(sampler, study).releases()],
        "state": algorithm_in(session_of(sampler, study)).state_dict(),
        "protected": (guarantee := sampler.guarantee(study)).protected,
        "reasons": list(guarantee.reasons),
        "run": study.user_attrs["privbo:run"]["run"],
    }


def work(name, kind, where, vault, out, settings):
    """Joins a study, works to the end and writes what it believes."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = make_sampler(vault=vault, **settings)
    study = optuna.create_study(
        storage=open_storage(kind, where), study_name="s", sampler=sampler, load_if_exists=True
    )
    study.optimize(sampler.private(slow_plane))
    Path(out, f"shown-{name}.json").write_text(json.dumps(shown(sampler, study)))


def candidates(seed, out):
    """Writes the first candidates of a seeded sampler."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {
        "x": optuna.distributions.FloatDistribution(0, 1),
        "y": optuna.distributions.FloatDistribution(-2, 2),
    }
    with warnings.catch_warnings(action="ignore"):
        sampler = make_sampler(n_starts=8, seed=seed, search_space=space)
        study = optuna.create_study(sampler=sampler)
        points = [study.ask(space).params for _ in range(5)]
    Path(out).write_text(json.dumps(points))
