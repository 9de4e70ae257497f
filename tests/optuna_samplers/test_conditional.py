"""A parameter that applies to some choices only: refused with how to flatten, and flattened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution

from optuna_samplers import DPGIBOSampler
from privbo_plugins.errors import SpaceChangedError

PAGE = Path(__file__).parents[2] / "docs" / "dp-gibo.md"
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


def test_the_page_s_flat_space_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (the sklearn extra)")
    section = PAGE.read_text().split("## Choices and conditional spaces")[1]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    defined: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, PAGE.name, "exec"), defined)
    study, sampler = defined["study"], defined["sampler"]
    assert all(set(trial.params) == {"kernel", "C", "gamma"} for trial in study.trials)
    assert len(study.trials) <= 40
    assert sampler.guarantee(study).protected
    assert "kernel" in capsys.readouterr().out
