"""The paper's worked examples (Appendix E.3 and E.4) through the algorithm, on fixed seeds.

Every run remembers all its points, as Algorithm 1 does. The box of the original problem is the
unit cube here, so the gradient and with it the clipping norm scale by the box's width.
"""

import functools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, make_plan
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.spaces import Float, Space

from .helpers import run_steps

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
LOW, HIGH = -1.0, 3.0
WIDTH = HIGH - LOW


def box(d):
    return Space({f"theta{j}": Float(LOW, HIGH) for j in range(d)})


def raw(x):
    return LOW + WIDTH * np.asarray(x)


def descend(losses, d, n, seed, **settings):
    """Path (T + 1, d) in the original box from the origin, and the released gradients there."""
    config = GIBOConfig(
        **{"n_starts": 0, "value_share": 0.0, "memory": -1, "step_rule": "sgd",
           "as_published": True} | settings
    )  # fmt: skip
    space = box(d)
    engine = DPGIBO(config, space, seed=seed, plan=make_plan(config, space, n))
    engine._begin(space.encode({name: 0.0 for name in space.names}).tolist())
    gradients = run_steps(engine, losses, InsecureNoise(seed))
    return raw(np.array(engine.state.path)), np.array(gradients) / WIDTH


# Location of a normal model -----------------------------------------------------------------


@functools.cache
def normal_data():
    return 1.0 + np.random.default_rng(0).standard_normal((50, 5))


def normal_losses(x):
    return 0.5 * ((normal_data() - raw(x)) ** 2).sum(1)


@functools.cache
def normal_path(mu):
    """Polynomial kernel, b = 3 < d + 1, n = 50, T = 150, B = 1 in the units of the paper."""
    path, _ = descend(
        normal_losses, 5, 50, seed=1, mu=mu, n_steps=150, batch_size=3, clipping_norm=WIDTH,
        kernel="polynomial2", noise_ratio=1e-6, step_size=0.2 / WIDTH**2,
    )  # fmt: skip
    return path


def clipped_optimum():
    """Where the mean of clipped gradients vanishes: Huber's location of the sample."""
    x = normal_data()

    def huber(theta):
        r = np.linalg.norm(x - theta, axis=1)
        return float(np.where(r <= 1, r**2 / 2, r - 0.5).sum())

    return np.asarray(minimize(huber, x.mean(0), tol=1e-10).x)


def test_private_estimates_of_a_location_move_to_the_maximum_likelihood_estimate():
    """Four times the noise: the spread round the estimate grows by about as much."""
    mle = normal_data().mean(0)
    assert_allclose(clipped_optimum(), mle, atol=0.2)
    path, noisier = (normal_path(mu)[50:] for mu in (2.0, 0.5))
    assert_allclose(normal_path(2.0)[0], np.zeros(5), atol=1e-12)
    assert np.linalg.norm(path.mean(0) - mle) < 0.35 * np.linalg.norm(mle)
    assert_allclose(path.mean(0), clipped_optimum(), atol=0.3)
    assert noisier.std(0).mean() > 1.7 * path.std(0).mean()
    away, near = (np.linalg.norm(part - mle, axis=1).mean() for part in (noisier, path))
    assert away > 1.2 * near


def test_location_without_privacy_reaches_the_estimate_exactly():
    path, gradients = descend(
        normal_losses, 5, 50, seed=1, mu=math.inf, n_steps=60, batch_size=3,
        clipping_norm=math.inf, kernel="polynomial2", noise_ratio=0.0, step_size=0.2 / WIDTH**2,
    )  # fmt: skip
    mle = normal_data().mean(0)
    assert_allclose(path[-1], mle, atol=1e-4)
    # Once the 21 monomials are determined the bias of the gradient vanishes.
    assert_allclose(gradients[20:], path[20:-1] - mle, atol=1e-6)


# Linear regression with Huber's loss --------------------------------------------------------

TRUTH = np.ones(4)


@functools.cache
def regression_data():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((100, 4))
    y = X @ TRUTH + rng.standard_normal(100)
    return X, y, np.minimum(1.0, 2.0 / (X**2).sum(1))


def regression_losses(x):
    X, y, weight = regression_data()
    r = np.abs(y - X @ raw(x))
    return np.where(r <= 1, r**2 / 2, r - 0.5) * weight


def regression_gradient(theta):
    X, y, weight = regression_data()
    return -(np.clip(y - X @ theta, -1, 1) * weight) @ X / len(y)


@functools.cache
def regression_optimum():
    found = minimize(
        lambda t: regression_losses((t - LOW) / WIDTH).mean(), TRUTH, jac=regression_gradient
    )
    assert np.linalg.norm(regression_gradient(found.x)) < 1e-5
    return np.asarray(found.x)


@functools.cache
def regression_path(mu, seed):
    """RBF kernel, b = 2 < d + 1, n = 100, T = 100, B = 1 in the units of the paper."""
    return descend(
        regression_losses, 4, 100, seed=seed, mu=mu, n_steps=100, batch_size=2,
        clipping_norm=WIDTH * (1.0 if mu < math.inf else math.inf), kernel="rbf",
        lengthscale=0.5, noise_ratio=1e-4, step_size=0.5 / WIDTH**2,
    )  # fmt: skip


@pytest.mark.slow
def test_private_regression_converges_near_the_optimum():
    path, _ = regression_path(1.0, 2)
    assert_allclose(path[0], np.zeros(4), atol=1e-12)
    late = path[50:].mean(0)
    assert np.linalg.norm(late - regression_optimum()) < 0.3 * np.linalg.norm(regression_optimum())
    assert_allclose(late, TRUTH, atol=0.5)
