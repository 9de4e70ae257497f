"""A scikit-learn model tuned by eight workers at once, through Optuna and through Ray Tune.

Digits, reduced by a principal component analysis, classified by a support vector machine: three
parameters, a third of a second an evaluation on a free core. What is minimised is the error of
three-fold cross-validation on half of the data; what is reported besides is the error of the
parameters that were found on the other half.
"""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tasks import Row

Array = NDArray[np.float64]

WORKERS, TRIALS = 8, 96

OPTUNA = ("RandomSampler", "TPESampler", "GPSampler", "DUETSSampler")
RAY = ("random", "OptunaSearch (TPE)", "OptunaSearch (GP)", "DUETSSearch")


def contestants() -> list[tuple[str, str]]:
    """Hosts and samplers that are installed."""
    found = [("optuna", kind) for kind in OPTUNA if kind != "GPSampler" or find_spec("torch")]
    if find_spec("ray") is None:
        return found
    return found + [("ray", kind) for kind in RAY if "GP" not in kind or find_spec("torch")]


@cache
def _halves() -> tuple[Array, Array, Array, Array]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    A, B, a, b = train_test_split(X / 16.0, y, test_size=0.5, random_state=0, stratify=y)
    return A, B, a, b


def _model(params: Mapping[str, Any]) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    reduction = PCA(int(params["components"]), random_state=0)
    return make_pipeline(reduction, SVC(C=params["C"], gamma=params["gamma"]))


def loss(params: Mapping[str, Any]) -> float:
    """Error of three-fold cross-validation."""
    from sklearn.model_selection import cross_val_score

    A, _, a, _ = _halves()
    return 1.0 - float(cross_val_score(_model(params), A, a, cv=3).mean())


def held_out(params: Mapping[str, Any]) -> float:
    """Error on the other half."""
    A, B, a, b = _halves()
    return 1.0 - float(_model(params).fit(A, a).score(B, b))


def tuned(host: str, kind: str, seed: int) -> Row:
    """One study or experiment of all trials."""
    loss({"C": 1.0, "gamma": 0.1, "components": 8})  # imports and data are nobody's time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _study(kind, seed) if host == "optuna" else _experiment(kind, seed)


def _row(losses: list[float], params: Mapping[str, Any], seconds: float) -> Row:
    first = np.minimum.accumulate(losses)
    return {
        "seconds": seconds,
        "best after 24": float(first[min(23, len(first) - 1)]),
        "best after 48": float(first[min(47, len(first) - 1)]),
        "best": float(first[-1]),
        "held out": held_out(params),
    }


# Optuna ---------------------------------------------------------------------------------------


def _sampler(kind: str, seed: int) -> Any:
    import optuna

    from optuna_samplers import DUETSSampler

    if kind == "DUETSSampler":
        return DUETSSampler(WORKERS, n_trials=TRIALS, seed=seed)
    if kind == "TPESampler":
        return optuna.samplers.TPESampler(constant_liar=True, seed=seed)
    return getattr(optuna.samplers, kind)(seed=seed)


def _study(kind: str, seed: int) -> Row:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=_sampler(kind, seed))

    def objective(trial: optuna.Trial) -> float:
        return loss(
            {
                "C": trial.suggest_float("C", 1e-3, 1e3, log=True),
                "gamma": trial.suggest_float("gamma", 1e-5, 1e1, log=True),
                "components": trial.suggest_int("components", 2, 64),
            }
        )

    begun = time.perf_counter()
    study.optimize(objective, n_trials=TRIALS, n_jobs=WORKERS)
    seconds = time.perf_counter() - begun
    losses = [trial.value for trial in study.trials if trial.value is not None]
    return _row(losses, study.best_params, seconds)


# Ray Tune -------------------------------------------------------------------------------------


def _search(kind: str, seed: int) -> Any:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    from raytune_searchers import DUETSSearch

    if kind == "DUETSSearch":
        return DUETSSearch(WORKERS, n_trials=TRIALS, seed=seed)
    if kind == "OptunaSearch (TPE)":
        return OptunaSearch(sampler=optuna.samplers.TPESampler(constant_liar=True, seed=seed))
    if kind == "OptunaSearch (GP)":
        return OptunaSearch(sampler=optuna.samplers.GPSampler(seed=seed))
    return None


def _reported(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": loss(config)}


def _experiment(kind: str, seed: int) -> Row:
    import ray
    from ray import tune

    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=200_000_000,
    )
    np.random.seed(seed)  # noqa: NPY002 - what Tune's random search draws from
    space = {
        "C": tune.loguniform(1e-3, 1e3),
        "gamma": tune.loguniform(1e-5, 1e1),
        "components": tune.randint(2, 65),
    }
    with tempfile.TemporaryDirectory() as folder:
        settings = tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=_search(kind, seed),
            num_samples=TRIALS,
            max_concurrent_trials=WORKERS,
            reuse_actors=True,
        )
        run = tune.RunConfig(storage_path=folder, verbose=0)
        fit = tune.Tuner(_reported, param_space=space, tune_config=settings, run_config=run)
        begun = time.perf_counter()
        results = fit.fit()
        seconds = time.perf_counter() - begun
    ray.shutdown()
    shown = [r for r in results if r.metrics and "loss" in r.metrics]
    shown.sort(key=lambda r: float(r.metrics["timestamp"]))
    losses = [float(r.metrics["loss"]) for r in shown]
    if not losses:
        return {"seconds": seconds, "best": math.nan}
    return _row(losses, dict(results.get_best_result().config), seconds)
