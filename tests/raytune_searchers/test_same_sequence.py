"""Optuna and Ray Tune propose the same points, and show the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
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


SEARCHED: dict[str, Any] = {"mu": 60.0, "seed": 3, "n_trials": 30}
"""With 120 records and two parameters: a search by released values."""


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
    for (config, value), (params, one) in zip(found, expected, strict=True):
        assert config == pytest.approx(params, rel=1e-12)  # sums differ in rounding
        assert value == pytest.approx(one, rel=1e-12)
    assert len({config["k"] for config, _ in found}) > 1


@pytest.mark.usefixtures("local_hosts")
def test_a_search_by_values_is_the_same_in_two_hosts_and_spends_its_budget() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    both = {name: IN_OPTUNA[name] for name in ("y", "lr")}
    sampler = DPGIBOSampler(**SEARCHED, search_space=both, noise=InsecureNoise(5))
    study = optuna.create_study(sampler=sampler)

    def objective(trial: Any) -> np.ndarray:
        y = trial.suggest_float("y", -2.0, 2.0)
        return losses(y, trial.suggest_float("lr", 1e-4, 1e-1, log=True), 4)

    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        study.optimize(sampler.private(objective))
    search = DPGIBOSearch(**SEARCHED, metric="loss", mode="min", noise=InsecureNoise(5))
    space = {name: IN_TUNE[name] for name in both}
    assert search.set_search_properties(None, None, space, num_samples=-1)
    private = search.private(lambda config: losses(**config, k=4))
    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        trials = evaluation(search, private)
    assert sampler.plan(both, len(RECORDS)).n_searched == 21
    assert len(study.trials) == len(trials) == 29
    for theirs, ours in zip(study.trials, trials, strict=True):  # scales differ in rounding
        assert ours.config == pytest.approx(theirs.params, rel=1e-9)
        assert ours.metrics["loss"] == pytest.approx(theirs.value, rel=1e-6)
    assert search.recommend() == pytest.approx(sampler.recommend(study), rel=1e-9)
    assert search.guarantee().mu_spent == pytest.approx(60.0)
    assert sampler.guarantee(study).mu_spent == pytest.approx(60.0)
    search.close()


@pytest.mark.usefixtures("local_hosts")
def test_choices_are_selected_alike_in_two_hosts_within_the_budget() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    given: dict[str, Any] = {"mu": 60.0, "seed": 3, "n_trials": 40}
    space: dict[str, Any] = {
        "kind": CategoricalDistribution(("far", "near", "middle")), "y": IN_OPTUNA["y"]
    }  # fmt: skip
    lifts = {"far": 0.4, "near": 0.0, "middle": 0.2}
    sampler = DPGIBOSampler(**given, search_space=space, noise=InsecureNoise(5))
    study = optuna.create_study(sampler=sampler)

    def kinds(config: Any) -> np.ndarray:
        return np.clip(losses(config["y"], 1e-3, 4) + lifts[config["kind"]], 0.0, 1.0)

    def objective(trial: Any) -> np.ndarray:
        kind = trial.suggest_categorical("kind", ("far", "near", "middle"))
        return kinds({"kind": kind, "y": trial.suggest_float("y", -2.0, 2.0)})

    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        study.optimize(sampler.private(objective))
    search = DPGIBOSearch(**given, metric="loss", mode="min", noise=InsecureNoise(5))
    tuned = {"kind": tune.choice(["far", "near", "middle"]), "y": IN_TUNE["y"]}
    assert search.set_search_properties(None, None, tuned, num_samples=-1)
    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        trials = evaluation(search, search.private(kinds))
    plan = sampler.plan(space, len(RECORDS))
    assert plan.n_searched == plan.n_trials - plan.n_starts - 1 > 0
    assert len(study.trials) == len(trials) == plan.n_trials <= 40
    for theirs, ours in zip(study.trials, trials, strict=True):
        assert ours.config["kind"] == theirs.params["kind"]
        assert ours.config["y"] == pytest.approx(theirs.params["y"], rel=1e-9)
    assert {trial.params["kind"] for trial in study.trials[:3]} == set(lifts)
    assert sampler.recommend(study)["kind"] == search.recommend()["kind"] == "near"
    assert search.guarantee().mu_spent == pytest.approx(60.0)
    assert sampler.guarantee(study).mu_spent == pytest.approx(60.0)
    search.close()
