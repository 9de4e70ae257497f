"""Gaussian process regression against scikit-learn and exact limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as reference

from privbo_plugins.models.gaussian_process import gradient_weights
from privbo_plugins.models.kernels import RBF, Matern52, Polynomial2

SCALES = np.array([0.3, 0.5, 0.9])
CASES = {
    "rbf": (RBF(SCALES), reference.RBF(SCALES)),
    "matern52": (Matern52(SCALES), reference.Matern(SCALES, nu=2.5)),
    "polynomial2": (Polynomial2(), reference.DotProduct(1.0) ** 2),
}
S2 = 1e-3


@pytest.mark.parametrize(("kernel", "theirs"), CASES.values(), ids=CASES.keys())
def test_weights_are_the_slope_of_scikit_learns_posterior_mean(kernel, theirs):
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(10, 3)), rng.standard_normal(10)
    oracle = GaussianProcessRegressor(theirs, alpha=S2, optimizer=None).fit(X, y)
    theta, h = np.array([0.4, 0.6, 0.3]), 1e-5 * np.eye(3)
    numeric = (oracle.predict(theta + h) - oracle.predict(theta - h)) / 2e-5
    assert_allclose(y @ gradient_weights(kernel, X, theta, S2), numeric, rtol=1e-5, atol=1e-5)


@given(seed=st.integers(0, 10**6))
def test_repeated_points_without_noise_give_the_interpolant_of_the_distinct_ones(seed):
    """The minimum-norm interpolant does not know how often a point was repeated."""
    rng = np.random.default_rng(seed)
    distinct, y = rng.uniform(size=(4, 3)), rng.standard_normal(4)
    rows, theta = rng.permutation(np.repeat(np.arange(4), 2)), np.array([0.4, 0.6, 0.3])
    expected = y @ gradient_weights(RBF(0.3), distinct, theta, 0.0)
    found = y[rows] @ gradient_weights(RBF(0.3), distinct[rows], theta, 0.0)
    assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@given(seed=st.integers(0, 10**6))
def test_polynomial_kernel_is_exact_on_quadratics_beyond_its_rank(seed):
    """In d=3 the kernel has rank 10; 14 points make the Gram matrix singular."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(14, 3))
    Q, c = rng.standard_normal((3, 3)), rng.standard_normal(3)
    y = np.einsum("ij,jk,ik->i", X, Q, X) + X @ c + 0.7
    theta = rng.uniform(size=3)
    exact = (Q + Q.T) @ theta + c
    assert_allclose(y @ gradient_weights(Polynomial2(), X, theta, 0.0), exact, atol=1e-5)
