"""Gaussian process regression against scikit-learn, dense formulas and exact limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as reference

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.models.gaussian_process import GaussianProcess
from privbo_plugins.models.kernels import RBF, Kernel, Matern52, Polynomial2

from .helpers import cube, run_steps, start

SCALES = np.array([0.3, 0.5, 0.9])
CASES = {
    "rbf": (RBF(SCALES), reference.RBF(SCALES)),
    "matern52": (Matern52(SCALES), reference.Matern(SCALES, nu=2.5)),
    "polynomial2": (Polynomial2(), reference.DotProduct(1.0) ** 2),
}
each_kernel = pytest.mark.parametrize(("kernel", "theirs"), CASES.values(), ids=CASES.keys())
S2 = 1e-3


def data(m: int, seed: int = 0, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(m, d)), rng.standard_normal(m)


def fitted(kernel: Kernel, X: np.ndarray, s2: float = S2) -> GaussianProcess:
    gp = GaussianProcess(kernel, s2)
    gp.append(X)
    return gp


def mean(gp: GaussianProcess, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Posterior mean at X."""
    return np.asarray(gp.kernel.k(X, gp.D) @ gp.solve(y))


@each_kernel
@pytest.mark.parametrize("splits", [(1, 1, 1, 9), (4, 4, 4), (11, 1)])
def test_a_growing_factor_equals_one_made_at_once(
    kernel: Kernel, theirs: object, splits: tuple[int, ...]
) -> None:
    X, _ = data(12)
    growing = GaussianProcess(kernel, S2)
    for part in np.split(X, np.cumsum(splits)[:-1]):
        growing.append(part)
    dense = np.linalg.cholesky(kernel.k(X, X) + S2 * np.eye(12))
    assert growing.L is not None
    assert_allclose(growing.L, dense, atol=1e-9)
    assert np.array_equal(growing.D, X)


@each_kernel
def test_posterior_mean_is_that_of_scikit_learn_and_its_slope_the_weights(
    kernel: Kernel, theirs: object
) -> None:
    X, y = data(10)
    new, _ = data(6, seed=1)
    oracle = GaussianProcessRegressor(theirs, alpha=S2, optimizer=None).fit(X, y)
    gp, theta, h = fitted(kernel, X), np.array([0.4, 0.6, 0.3]), 1e-5 * np.eye(3)
    assert_allclose(mean(gp, new, y), oracle.predict(new), atol=1e-8)
    numeric = (mean(gp, theta + h, y) - mean(gp, theta - h, y)) / 2e-5
    assert_allclose(y @ gp.gradient_weights(theta), numeric, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), splits=st.sampled_from([(8,), (4, 4), (1,) * 8, (5, 3)]))
@example(seed=0, splits=(4, 4))
def test_repeated_points_without_noise_give_the_interpolant_of_the_distinct_ones(
    seed: int, splits: tuple[int, ...]
) -> None:
    """The minimum-norm interpolant does not know how often a point was repeated."""
    distinct, y = data(4, seed)
    rows = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), 2))
    gp = GaussianProcess(RBF(0.3), 0.0)
    for part in np.split(distinct[rows], np.cumsum(splits)[:-1]):
        gp.append(part)
    theta = np.array([0.4, 0.6, 0.3])
    once = fitted(RBF(0.3), distinct, 0.0)
    expected = y @ once.gradient_weights(theta)
    assert_allclose(y[rows] @ gp.gradient_weights(theta), expected, rtol=1e-4, atol=1e-4)
    assert_allclose(mean(gp, distinct, y[rows]), y, atol=1e-4)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    splits=st.sampled_from([(14,), (10, 4), (7, 7), (1,) * 14, (3, 3, 3, 5)]),
)
def test_polynomial_kernel_is_exact_on_quadratics_beyond_its_rank(
    seed: int, splits: tuple[int, ...]
) -> None:
    """In d=3 the kernel has rank 10; 14 points make the Gram matrix singular."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(14, 3))
    Q, c = rng.standard_normal((3, 3)), rng.standard_normal(3)
    gp = GaussianProcess(Polynomial2(), 0.0)
    for part in np.split(X, np.cumsum(splits)[:-1]):
        gp.append(part)
    y = np.einsum("ij,jk,ik->i", X, Q, X) + X @ c + 0.7
    theta = rng.uniform(size=3)
    exact = (Q + Q.T) @ theta + c
    assert_allclose(y @ gp.gradient_weights(theta), exact, atol=1e-5)


def test_quadratic_gradient_is_exact_to_eight_digits() -> None:
    """A well-spread design that determines a quadratic: 10 monomials, 12 points, d = 3."""
    grid = np.vstack([np.eye(3), -np.eye(3), np.zeros((1, 3)), 1 - np.eye(3), np.ones((2, 3))])
    theta = np.array([0.3, 0.6, 0.2])
    y = ((grid - [0.1, 0.5, 0.9]) ** 2).sum(1) / 2
    slope = y @ fitted(Polynomial2(), grid, 0.0).gradient_weights(theta)
    assert_allclose(slope, theta - [0.1, 0.5, 0.9], atol=1e-8)


def test_algorithm_without_noise_reaches_the_exact_gradient() -> None:
    """Every point remembered, mu infinite, lambda zero: the estimate ends at the truth."""
    config = GIBOConfig(
        mu=math.inf,
        n_steps=12,
        n_starts=0,
        clipping_norm=math.inf,
        value_share=0.0,
        kernel="polynomial2",
        noise_ratio=0.0,
        step_rule="sgd",
        step_size=0.3,
        memory=-1,
        batch_size=3,
        centring=False,
    )
    a = np.random.default_rng(0).uniform(size=(20, 3))
    algorithm = start(config, cube(3), 20)
    gradients = run_steps(algorithm, lambda x: 0.5 * ((x - a) ** 2).sum(1))
    path = np.array(algorithm.state.path)
    for theta, g in list(zip(path, gradients, strict=False))[6:]:
        assert_allclose(g, theta - a.mean(0), atol=1e-8)
    assert_allclose(path[-1], a.mean(0), atol=0.1)


def test_interpolation_adds_nothing_to_the_diagonal() -> None:
    X, y = data(5)
    assert_allclose(mean(fitted(RBF(0.4), X, 0.0), X, y), y, atol=1e-9)


@pytest.mark.parametrize("s2", [-1e-9, np.nan, np.inf])
def test_bad_noise_is_refused(s2: float) -> None:
    with pytest.raises(ValueError, match="s2 must be a finite variance"):
        GaussianProcess(RBF(1.0), s2)
