"""A private search for one number, on 1000 secret records."""

import numpy as np
import optuna
import optunahub

module = optunahub.load_module("samplers/dp_gibo")
records = np.random.default_rng(0).normal(0.7, 0.1, size=1000)


def losses(trial: optuna.Trial) -> np.ndarray:
    """One loss a record: never their mean."""
    return (trial.suggest_float("x", 0, 1) - records) ** 2


sampler = module.DPGIBOSampler(mu=1, n_trials=30, seed=0)
study = optuna.create_study(sampler=sampler)
study.optimize(sampler.private(losses))
print(sampler.recommend(study))
print(sampler.guarantee(study))
