"""Thirty users answer once each; every answer is privatised before the study sees it."""

import numpy as np
import optuna
import optunahub

module = optunahub.load_module("samplers/ldp_gp_ucb")
users = np.random.default_rng(0)


def rating(trial: optuna.Trial) -> float:
    """What one user says of one setting, in [0, 1]."""
    x = trial.suggest_float("x", 0, 1)
    return float(np.clip(1 - abs(x - 0.6) + users.normal(0, 0.1), 0, 1))


sampler = module.LDPGPUCBSampler(epsilon=2, value_range=(0, 1), n_trials=30, seed=0)
study = optuna.create_study(sampler=sampler, direction="maximize")
study.optimize(sampler.private(rating), n_trials=30)
print(sampler.recommend(study))
print(sampler.guarantee(study))
