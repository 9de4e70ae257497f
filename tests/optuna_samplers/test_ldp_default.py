"""A default that works: the stocks at epsilon = 1, arms as one integer parameter."""

import numpy as np
import optuna
import pytest

from benchmarks.reward_problems import STOCKS, stocks, synthetic
from optuna_samplers import LDPGPUCBSampler
from privbo_plugins.privacy.noise import InsecureNoise


def fraction_of_uniform(problem, seed, T):
    """Cumulative regret of the default sampler over what uniform choice loses."""
    rng = np.random.default_rng([seed, 11])
    sampler = LDPGPUCBSampler(
        1.0, value_range=problem.value_range, kernel_matrix=problem.K, n_trials=T, seed=seed,
        noise=InsecureNoise(seed),  # reproducible; the same distribution
    )  # fmt: skip
    study = optuna.create_study(direction="maximize", sampler=sampler)
    last = len(problem.f) - 1
    objective = sampler.private(lambda t: problem.draw(t.suggest_int("arm", 0, last), rng))
    study.optimize(objective, n_trials=T)
    regret = sum(float(problem.f.max() - problem.f[t.params["arm"]]) for t in study.trials)
    return regret / (T * problem.uniform)


@pytest.mark.soak
@pytest.mark.skipif(not STOCKS.exists(), reason="the stocks data set is not there")
def test_regret_on_the_stocks_is_at_most_half_of_uniform_choice():
    """Three seeds of the benchmark's ten: single ones lay between .1 and .6, the mean at .2."""
    assert np.mean([fraction_of_uniform(stocks(), seed, 3000) for seed in range(3)]) <= 0.5


@pytest.mark.soak
def test_regret_on_a_synthetic_problem_is_at_most_half_of_uniform_choice():
    problems = [(synthetic("rbf", seed), seed) for seed in range(3)]
    assert np.mean([fraction_of_uniform(p, seed, 1000) for p, seed in problems]) <= 0.5
