"""A parameter that applies to some choices only: refused with how to flatten, and flattened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution

from optuna_samplers import DPGIBOSampler
from privbo_plugins.errors import SpaceChangedError

WHOLE: dict[str, Any] = {
    "kernel": CategoricalDistribution(("linear", "rbf")),
    "C": FloatDistribution(0.1, 10.0, log=True),
    "gamma": FloatDistribution(1e-3, 1.0, log=True),
}


@pytest.mark.parametrize("space", [None, WHOLE], ids=["by the first trial", "declared"])
def test_a_branch_is_refused_with_how_to_flatten_it(space: dict[str, Any] | None) -> None:
    sampler = DPGIBOSampler(mu=1, n_trials=40, search_space=space)
    study = optuna.create_study(sampler=sampler)

    def objective(trial: Any) -> np.ndarray:
        kernel = trial.suggest_categorical("kernel", ("linear", "rbf"))
        trial.suggest_float("C", 0.1, 10.0, log=True)
        if kernel == "rbf":
            trial.suggest_float("gamma", 1e-3, 1.0, log=True)
        return np.linspace(0.0, 1.0, 500)

    with pytest.raises(SpaceChangedError, match="used where it applies"):
        study.optimize(sampler.private(objective))
