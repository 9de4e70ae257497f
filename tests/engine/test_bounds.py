"""What of the regret bounds can be computed, against brute force and the paper's formulas."""

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privbo_plugins.algorithms.ldp_gp_ucb import bounds

from .oracles import covariance


def brute_gain(K, T, lam):
    """gamma_T over all multisets of T arms."""
    best = 0.0
    for A in combinations_with_replacement(range(len(K)), T):
        best = max(best, 0.5 * np.linalg.slogdet(np.eye(T) + K[np.ix_(A, A)] / lam)[1])
    return best


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 4),
    T=st.integers(0, 4),
    lam=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_greedy_gain_lies_within_its_factor_of_the_best_multiset(seed, n, T, lam):
    K = covariance(n, seed)
    best, greedy = brute_gain(K, T, lam), bounds.information_gain(K, T, lam)
    assert (1 - 1 / math.e) * best - 1e-9 <= greedy <= best + 1e-9


# Rates ----------------------------------------------------------------------------------------

settings_of_theorem_one = pytest.mark.parametrize(
    "given_", [{"B": 1.0, "v": 1.0, "alpha": 1.0}, {"B": 2.0, "v": 5.0, "alpha": 0.4}], ids=str
)


@settings_of_theorem_one
@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_lower_rate_of_the_se_kernel_is_that_of_theorem_one(given_, d, epsilon):
    B, v, a = given_["B"], given_["v"], given_["alpha"]
    T, zeta = 10**6, math.exp(epsilon) - 1
    expected = (
        v ** (1 / (1 + a))
        * T ** (1 / (1 + a))
        * zeta ** (-2 * a / (1 + a))
        * math.log(B ** ((1 + a) / a) * T * zeta**2 / v ** (1 / a)) ** (d * a / (2 + 2 * a))
    )
    ours = bounds.lower_rate("rbf", T, epsilon=epsilon, d=d, **given_)
    assert ours == pytest.approx(expected, rel=1e-9)


@settings_of_theorem_one
@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("nu", [0.5, 2.5])
def test_lower_rate_of_the_matern_kernel_is_that_of_theorem_one(given_, d, nu):
    B, v, a = given_["B"], given_["v"], given_["alpha"]
    T, zeta = 10**4, math.exp(0.3) - 1
    below = nu * (1 + a) + d * a
    expected = (
        v ** (nu / below)
        * T ** ((nu + d * a) / below)
        * zeta ** (-2 * a / (1 + a) + 2 * d * a**2 / ((1 + a) * below))
        * B ** (d * a / below)
    )
    ours = bounds.lower_rate("matern", T, epsilon=0.3, d=d, nu=nu, **given_)
    assert ours == pytest.approx(expected, rel=1e-9)


def test_too_few_evaluations_promise_no_regret_and_unknown_kernels_are_refused():
    assert bounds.lower_rate("rbf", 10, epsilon=1e-3, d=2) == 0.0
    with pytest.raises(ValueError, match="'rbf' or 'matern', got 'cubic'"):
        bounds.lower_rate("cubic", 10, epsilon=1.0, d=1)


def test_upper_rate_is_that_of_the_remarks():
    for gamma, T, epsilon, B, R in ((0.1, 1, 1e-3, 0.1, 0.0), (3.0, 10**6, 2.0, 1.5, 10.0)):
        rate = bounds.upper_rate(gamma, T, epsilon=epsilon, B=B, R=R)
        assert rate == pytest.approx(gamma * T**0.5 * (B + R) / epsilon)
