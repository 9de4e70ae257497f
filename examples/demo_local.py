"""Each user's answer is privatised on their own device: 900 users, one bit each.

A support vector classifier for handwritten digits has two settings to choose. Each of 900 users
tries one setting on one image of their own and says whether it was read correctly; that bit goes
through randomised response before it leaves the user's process, so neither the tuner nor the
study ever sees it. Run it with ``make demo-local`` or ``python -m examples.demo_local``; it
writes ``demo-local.db`` (the study, safe to share).
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray

from examples.digits import N_VALID, losses
from optuna_samplers import LDPGPUCBSampler

LOG_C, LOG_GAMMA = (-2, 3), (-5, 2)


@cache
def correct(log_C: int, log_gamma: int) -> NDArray[np.bool_]:
    """Whether a setting reads each user's image, shape (900,); on the users' side."""
    return np.asarray(losses(10.0**log_C, 10.0**log_gamma) == 0)


def ask_user(trial: Any) -> float:
    """One user's reward; user number ``trial.number`` has image number ``trial.number``."""
    log_C = trial.suggest_int("log10_C", *LOG_C)
    log_gamma = trial.suggest_int("log10_gamma", *LOG_GAMMA)
    return float(correct(log_C, log_gamma)[trial.number])


def main() -> None:
    """Asks every user once, then compares with what privacy forbids to look at."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epsilon", type=float, default=1.0, help="of one user's reward")
    parser.add_argument("--seed", type=int, default=0, help="drives candidates, never noise")
    parser.add_argument("--trials", type=int, default=N_VALID, help="users to ask, at most 900")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the study")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "demo-local.db"
    path.unlink(missing_ok=True)

    sampler = LDPGPUCBSampler(arguments.epsilon, value_range=(0, 1), seed=arguments.seed)
    print(sampler.plan(arguments.trials))
    print("Single values carry that noise and may lie outside [0, 1].", end="\n\n")
    study = optuna.create_study(
        study_name="demo-local",
        storage=f"sqlite:///{path}",
        direction="maximize",
        sampler=sampler,
    )
    private = sampler.private(ask_user, user_id=lambda trial: trial.number)
    study.optimize(private, n_trials=min(arguments.trials, N_VALID), show_progress_bar=True)

    recommended = sampler.recommend(study)
    print("\nRecommended:", recommended)
    print("\nGuarantee:", private.guarantee(study))
    print_truth(study, recommended)


def print_truth(study: optuna.Study, recommended: dict[str, int]) -> None:
    """The settings' true accuracies."""
    grid = [
        float(correct(c, g).mean())
        for c in range(LOG_C[0], LOG_C[1] + 1)
        for g in range(LOG_GAMMA[0], LOG_GAMMA[1] + 1)
    ]
    shown = [correct(t.params["log10_C"], t.params["log10_gamma"]).mean() for t in study.trials]
    chosen = correct(recommended["log10_C"], recommended["log10_gamma"]).mean()
    print("\nNOT PRIVATE, shown because this is a demo on public data:")
    print(f"  true accuracy of the recommendation:        {chosen:.4f}")
    print(f"  best of the {len(grid)} settings:                    {max(grid):.4f}")
    print(f"  mean over what the users were shown:        {np.mean(shown):.4f}")
    print(f"  mean over all settings (uniform play):      {np.mean(grid):.4f}")


if __name__ == "__main__":
    main()
