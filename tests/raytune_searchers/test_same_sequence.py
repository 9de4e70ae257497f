"""Optuna and Ray Tune propose the same points, and show the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from ray import tune

from optuna_samplers import DPGIBOSampler
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy.noise import InsecureNoise
from raytune_searchers import DPGIBOSearch
from tests.raytune_searchers.hosts import evaluation
from tests.raytune_searchers.runs import RECORDS, SETTINGS

SHARED = {name: value for name, value in SETTINGS.items() if name not in ("metric", "mode")} | {
    "mu": 1.0,
    "n_starts": 3,
    "n_steps": 3,
}

IN_OPTUNA = {
    "y": FloatDistribution(-2.0, 2.0),
    "lr": FloatDistribution(1e-4, 1e-1, log=True),
    "k": IntDistribution(1, 6),
}

IN_TUNE = {
    "y": tune.uniform(-2.0, 2.0),
    "lr": tune.loguniform(1e-4, 1e-1),
    "k": tune.randint(1, 7),
}


def losses(y: float, lr: float, k: int) -> np.ndarray:
    distance = (y / 4 + 0.5 - RECORDS) ** 2 + (np.log10(lr) / 3 + 1) ** 2 / 4 + abs(k - 4) / 20
    return np.asarray(np.clip(distance, 0.0, 1.0))


def _in_optuna() -> list[tuple[dict[str, Any], float]]:
    sampler = DPGIBOSampler(**SHARED, search_space=IN_OPTUNA, noise=InsecureNoise(5))

    def objective(trial: Any) -> np.ndarray:
        y, lr = (
            trial.suggest_float("y", -2.0, 2.0),
            trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        )
        return losses(y, lr, trial.suggest_int("k", 1, 6))

    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective))
    return [(trial.params, trial.value) for trial in study.trials]


def _in_tune() -> list[tuple[dict[str, Any], float]]:
    search = DPGIBOSearch(**SHARED, metric="loss", mode="min", noise=InsecureNoise(5))
    assert search.set_search_properties(None, None, dict(IN_TUNE), num_samples=-1)
    trials = evaluation(search, search.private(lambda config: losses(**config)))
    assert not any(trial.error for trial in trials)
    search.close()
    return [(trial.config, trial.metrics["loss"]) for trial in trials]


@pytest.mark.usefixtures("local_hosts")
def test_one_algorithm_in_two_hosts() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        expected = _in_optuna()
    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        found = _in_tune()
    assert len(found) == len(expected) == 3 + 3 * 4 + 1
    assert [config for config, _ in found] == [params for params, _ in expected]
    assert [value for _, value in found] == [value for _, value in expected]
    assert len({config["k"] for config, _ in found}) > 1
