"""Kernels against finite differences, dense loops and scikit-learn."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import kernels as reference

from privbo_plugins.models.kernels import RBF, Matern52, Polynomial2

D = 3
SCALES = np.array([0.3, 0.7, 1.9])
CASES = {
    "rbf": RBF(0.4), "rbf-ard": RBF(SCALES), "matern52": Matern52(0.4),
    "matern52-ard": Matern52(SCALES), "polynomial2": Polynomial2(),
    "polynomial2-c": Polynomial2(0.3),
}  # fmt: skip
each_kernel = pytest.mark.parametrize("kernel", CASES.values(), ids=CASES.keys())


def points(n, seed):
    return np.random.default_rng(seed).uniform(-0.2, 1.2, (n, D))


def central(f, x, h):
    """Fourth-order central differences of f at x, derivative index last."""
    columns = []
    for e in h * np.eye(len(x)):
        near, far = f(x + e) - f(x - e), f(x + 2 * e) - f(x - 2 * e)
        columns.append((8 * near - far) / (12 * h))
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RBF(SCALES), reference.RBF(SCALES)),
        (RBF(0.4), reference.RBF(0.4)),
        (Matern52(SCALES), reference.Matern(SCALES, nu=2.5)),
        (Matern52(0.4), reference.Matern(0.4, nu=2.5)),
        (Polynomial2(0.3), reference.DotProduct(np.sqrt(0.3)) ** 2),
    ],
)
def test_values_are_those_of_scikit_learn(ours, theirs):
    A, B = points(5, 0), points(4, 1)
    assert_allclose(ours.k(A, B), theirs(A, B), rtol=1e-11)


@each_kernel
def test_first_derivative_against_finite_differences(kernel):
    A, B = points(4, 2), points(5, 3)
    numeric = np.array([central(lambda a: kernel.k(a[None], B)[0], a, 1e-3) for a in A])
    assert_allclose(kernel.dk(A, B), numeric, atol=1e-7)
    in_second = central(lambda t: kernel.k(B, t[None])[:, 0], A[0], 1e-3)
    assert_allclose(kernel.jacobian(B, A[0]), in_second, atol=1e-7)


def cross(kernel, a, b, h=1e-3):
    """∂²k(a, b)/∂a∂bᵀ by central differences of the first derivative, shape (d, d)."""
    if not np.array_equal(a, b):
        return central(lambda x: kernel.dk(a[None], x[None])[0, 0], b, h)
    # Second order only: a Matern-5/2 kernel has no fourth derivative at zero distance.
    ends = ((b + e, b - e) for e in 0.1 * h * np.eye(len(b)))
    pairs = [kernel.dk(a[None], np.array(both))[0] for both in ends]
    return np.array([(upper - lower) / (0.2 * h) for upper, lower in pairs]).T


@each_kernel
def test_contractions_against_dense_loops_and_finite_differences(kernel):
    """Also where points coincide."""
    rng = np.random.default_rng(9)
    A, B, theta = points(4, 10), points(5, 11), points(1, 12)[0]
    A[3] = B[2] = theta
    W, V = rng.standard_normal((4, 5)), rng.standard_normal((4, D))
    dk = kernel.dk(A, B)
    first = [sum(W[i, j] * dk[i, j] for j in range(5)) for i in range(4)]
    second = [cross(kernel, A[i], theta) @ V[i] for i in range(4)]
    assert_allclose(kernel.dk_dot(A, B, W), first, atol=1e-11)
    assert_allclose(kernel.d2k_dot(A, theta, V)[:3], second[:3], atol=1e-6)
    assert_allclose(kernel.d2k_dot(A, theta, V)[3], second[3], atol=1e-4)


@pytest.mark.parametrize("kind", [RBF, Matern52])
@pytest.mark.parametrize(
    "bad", [0.0, -1.0, np.nan, np.inf, [0.5, 0.0], [1.0, np.nan], [[1.0, 1.0]]]
)
def test_bad_length_scales_are_refused(kind, bad):
    with pytest.raises(ValueError, match="lengthscale must be positive"):
        kind(bad)
