"""Gaussian process regression against scikit-learn and exact limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as reference

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.models.gaussian_process import gradient_weights
from privbo_plugins.models.kernels import RBF, Kernel, Matern52, Polynomial2

from .helpers import cube, run_steps, start

SCALES = np.array([0.3, 0.5, 0.9])
CASES = {
    "rbf": (RBF(SCALES), reference.RBF(SCALES)),
    "matern52": (Matern52(SCALES), reference.Matern(SCALES, nu=2.5)),
    "polynomial2": (Polynomial2(), reference.DotProduct(1.0) ** 2),
}
S2 = 1e-3


@pytest.mark.parametrize(("kernel", "theirs"), CASES.values(), ids=CASES.keys())
def test_weights_are_the_slope_of_scikit_learns_posterior_mean(
    kernel: Kernel, theirs: object
) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(10, 3)), rng.standard_normal(10)
    oracle = GaussianProcessRegressor(theirs, alpha=S2, optimizer=None).fit(X, y)
    theta, h = np.array([0.4, 0.6, 0.3]), 1e-5 * np.eye(3)
    numeric = (oracle.predict(theta + h) - oracle.predict(theta - h)) / 2e-5
    assert_allclose(y @ gradient_weights(kernel, X, theta, S2), numeric, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_repeated_points_without_noise_give_the_interpolant_of_the_distinct_ones(
    seed: int,
) -> None:
    """The minimum-norm interpolant does not know how often a point was repeated."""
    rng = np.random.default_rng(seed)
    distinct, y = rng.uniform(size=(4, 3)), rng.standard_normal(4)
    rows, theta = rng.permutation(np.repeat(np.arange(4), 2)), np.array([0.4, 0.6, 0.3])
    expected = y @ gradient_weights(RBF(0.3), distinct, theta, 0.0)
    found = y[rows] @ gradient_weights(RBF(0.3), distinct[rows], theta, 0.0)
    assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_polynomial_kernel_is_exact_on_quadratics_beyond_its_rank(seed: int) -> None:
    """In d=3 the kernel has rank 10; 14 points make the Gram matrix singular."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(14, 3))
    Q, c = rng.standard_normal((3, 3)), rng.standard_normal(3)
    y = np.einsum("ij,jk,ik->i", X, Q, X) + X @ c + 0.7
    theta = rng.uniform(size=3)
    exact = (Q + Q.T) @ theta + c
    assert_allclose(y @ gradient_weights(Polynomial2(), X, theta, 0.0), exact, atol=1e-5)


def test_quadratic_gradient_is_exact_to_eight_digits() -> None:
    """A well-spread design that determines a quadratic: 10 monomials, 12 points, d = 3."""
    grid = np.vstack([np.eye(3), -np.eye(3), np.zeros((1, 3)), 1 - np.eye(3), np.ones((2, 3))])
    theta = np.array([0.3, 0.6, 0.2])
    y = ((grid - [0.1, 0.5, 0.9]) ** 2).sum(1) / 2
    slope = y @ gradient_weights(Polynomial2(), grid, theta, 0.0)
    assert_allclose(slope, theta - [0.1, 0.5, 0.9], atol=1e-8)


def test_algorithm_without_noise_reaches_the_exact_gradient() -> None:
    """Every point remembered, mu infinite, lambda zero: the estimate ends at the truth."""
    config = GIBOConfig(
        mu=math.inf, n_steps=12, n_starts=0, clipping_norm=math.inf, value_share=0.0,
        kernel="polynomial2", noise_ratio=0.0, step_rule="sgd", step_size=0.3, memory=-1,
        batch_size=3, as_published=True,
    )  # fmt: skip
    a = np.random.default_rng(0).uniform(size=(20, 3))
    algorithm = start(config, cube(3), 20)
    gradients = run_steps(algorithm, lambda x: 0.5 * ((x - a) ** 2).sum(1))
    path = np.array(algorithm.state.path)
    for theta, g in list(zip(path, gradients, strict=False))[6:]:
        assert_allclose(g, theta - a.mean(0), atol=1e-8)
    assert_allclose(path[-1], a.mean(0), atol=0.1)
