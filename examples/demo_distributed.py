"""Eight workers tune one model in one study, and need few numbers to agree.

First without privacy: what an epoch taught is all that travels. Then each trial is another
patient's answer, "was the model wrong about you?", privatised before anybody sees it.

    python -m examples.demo_distributed [--trials 240] [--out .]
"""

from __future__ import annotations

import argparse
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from optuna_samplers import DUETSSampler
from privbo_plugins import PrivacyWarning

AGENTS, EPSILON = 8, 4.0


@cache
def patients() -> tuple[Any, Any, Any, Any]:
    """Half of the patients to learn from; each of the others answers once."""
    X, y = load_breast_cancer(return_X_y=True)
    A, B, a, b = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    return A, B, a, b


def model(trial: optuna.trial.BaseTrial) -> Any:
    """A support vector machine with the trial's parameters."""
    C = trial.suggest_float("C", 1e-3, 1e4, log=True)
    gamma = trial.suggest_float("gamma", 1e-6, 1e1, log=True)
    return make_pipeline(StandardScaler(), SVC(C=C, gamma=gamma))


def error(trial: optuna.Trial) -> float:
    """Error of five-fold cross-validation."""
    A, _, a, _ = patients()
    return 1.0 - float(cross_val_score(model(trial), A, a, cv=5).mean())


def patient_of(trial: optuna.Trial) -> int:
    """Whom a trial asks."""
    return trial.number % len(patients()[1])


def wrong_about_one(trial: optuna.Trial) -> float:
    """Whether the model is wrong about one patient: 0 or 1; would run where that record is."""
    A, B, a, b = patients()
    i = patient_of(trial)
    return float(model(trial).fit(A, a).predict(B[i : i + 1])[0] != b[i])


def main() -> None:
    """Runs both studies and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=240, help="patients who answer, at most 285")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # this part promises nothing
        in_the_open(min(given.trials, 96), given.out)
    in_private(given.trials)


def in_the_open(trials: int, out: Path) -> None:
    """Few numbers, and no privacy."""
    sampler = DUETSSampler(AGENTS, n_trials=trials, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(error, n_trials=trials, n_jobs=AGENTS, show_progress_bar=True)
    found = sampler.recommend(study)  # also brings what the study shows up to date
    told = study.user_attrs["privbo:duets"]
    for epoch in told["epochs"]:
        print(
            f"Epoch {epoch['epoch']}: {epoch['length']} "
            f"{'trial' if epoch['length'] == 1 else 'trials'} an agent; "
            f"{epoch['share']:.1%} of the space is left; an agent has sent or heard "
            f"{epoch['per_agent']:.0f} numbers."
        )
    everything = trials * (len(study.best_params) + 1)
    print(f"Telling everybody of every trial would have been {everything} numbers.")
    print(f"Lowest cross-validated error {study.best_value:.3f} at {_shown(study.best_params)};")
    print(f"the model of all trials expects the best at {_shown(found)}.")
    print(f"Pictures of both: {sampler.report(study, out / 'demo-distributed.html')}")


def in_private(trials: int) -> None:
    """One privatised answer a patient."""
    trials = min(trials, len(patients()[1]))
    sampler = DUETSSampler(
        AGENTS, epsilon=EPSILON, value_range=(0.0, 1.0), n_trials=trials, lengthscale=0.4, seed=0
    )
    study = optuna.create_study(sampler=sampler)
    private = sampler.private(wrong_about_one, user_id=patient_of)
    study.optimize(private, n_trials=trials, n_jobs=AGENTS, show_progress_bar=True)
    found = sampler.recommend(study)
    A, B, a, b = patients()
    lost = 1.0 - model(optuna.trial.FixedTrial(found)).fit(A, a).score(B, b)
    print(f"Recommended: {_shown(found)}.")
    print(private.guarantee(study))
    print(
        "(Only this demo, which evaluates all patients in one process, can know that the "
        f"recommended model is wrong about {lost:.1%} of them: that figure is not private.)"
    )


def _shown(params: dict[str, float]) -> str:
    return ", ".join(f"{name} = {np.format_float_scientific(v, 1)}" for name, v in params.items())


if __name__ == "__main__":
    main()
