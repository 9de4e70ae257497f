"""Random Fourier features and regression over them, against dense formulas.

Draws are seeded: nothing here is random. Bounds are five standard deviations of what they bound,
so that another generator would fail a test of m numbers with probability below 6e-7 m.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from privbo_plugins.models.random_features import FourierFeatures, posterior_mean, posterior_sample


def kernel(X, lengthscale):
    """Squared exponential of all pairs."""
    squares = ((X[:, None] - X[None]) ** 2).sum(2)
    return np.asarray(np.exp(-squares / (2 * lengthscale**2)))


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("lengthscale", [0.1, 0.3, 2.0])
def test_their_products_are_the_kernel(d, lengthscale):
    """At most 210 pairs of points; the variance of one product is at most about 1/M."""
    X = np.random.default_rng(d).random((20, d))
    errors = []
    for M in (400, 40_000):
        Phi = FourierFeatures(M, d, lengthscale, seed=3)(X)
        errors.append(np.abs(Phi @ Phi.T - kernel(X, lengthscale)).max())
        assert errors[-1] < 5 / math.sqrt(M)
    assert errors[1] < errors[0]


@given(seed=st.integers(0, 10_000), d=st.integers(1, 4), lengthscale=st.floats(0.1, 3))
def test_the_gradient_is_that_of_finite_differences(seed, d, lengthscale):
    rng = np.random.default_rng(seed)
    features = FourierFeatures(40, d, lengthscale, seed)
    x, w = rng.random(d), rng.standard_normal(40)
    value, slope = features.value_and_slope(x, w)
    assert value == pytest.approx(float(features(x[None])[0] @ w), rel=1e-12, abs=1e-12)
    h = 1e-5 * lengthscale
    for j in range(d):
        step = h * (np.arange(d) == j)
        ends = features(np.array([x + step, x - step])) @ w
        assert slope[j] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-5)


# Regression ----------------------------------------------------------------------------------


def data(n, M, seed=0):
    rng = np.random.default_rng(seed)
    return FourierFeatures(M, 2, 0.5, seed)(rng.random((n, 2))), rng.random(n)


def sigma(Phi, s2):
    return np.asarray(Phi.T @ Phi + s2 * np.eye(Phi.shape[1]))


@pytest.mark.parametrize("s2", [1e-4, 0.1, 5.0])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 30])
def test_the_mean_is_that_of_the_dense_formula(n, s2):
    """Fewer observations than the 8 features, as many, and more."""
    Phi, y = data(n, 8)
    expected = np.linalg.solve(sigma(Phi, s2), Phi.T @ y)
    np.testing.assert_allclose(posterior_mean(Phi, y, s2), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("s2", [1e-3, 0.2])
@pytest.mark.parametrize("n", [0, 2, 6, 7, 20])
def test_draws_have_the_posteriors_law(n, s2):
    """6000 draws, made independent N(0, I) by the exact mean and covariance."""
    R, M = 6000, 6
    Phi, y = data(n, M, seed=4)
    rng = np.random.default_rng(11)
    draws = np.array([posterior_sample(Phi, y, s2, rng) for _ in range(R)])
    S = sigma(Phi, s2)
    centred = draws - np.linalg.solve(S, Phi.T @ y)
    white = centred @ np.linalg.cholesky(S) / math.sqrt(s2)
    assert np.abs(white.mean(0)).max() < 5 / math.sqrt(R)
    covariance = white.T @ white / R
    assert np.abs(covariance - np.eye(M)).max() < 5 * math.sqrt(2 / R)
    assert kstest((white**2).sum(1), chi2(M).cdf).pvalue > 1e-4
