"""Kernels against finite differences, dense loops and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import kernels as reference

from privbo_plugins.models.kernels import KERNELS, RBF, Kernel, Matern52, Polynomial2

D = 3
SCALES = np.array([0.3, 0.7, 1.9])
CASES = {
    "rbf": RBF(0.4),
    "rbf-ard": RBF(SCALES),
    "matern52": Matern52(0.4),
    "matern52-ard": Matern52(SCALES),
    "polynomial2": Polynomial2(),
    "polynomial2-c": Polynomial2(0.3),
}
each_kernel = pytest.mark.parametrize("kernel", CASES.values(), ids=CASES.keys())


def points(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.2, 1.2, (n, D))


def central(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, h: float) -> np.ndarray:
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
def test_values_are_those_of_scikit_learn(ours: Kernel, theirs: object) -> None:
    A, B = points(5, 0), points(4, 1)
    assert_allclose(ours.k(A, B), theirs(A, B), rtol=1e-11)


@each_kernel
def test_first_derivative_against_finite_differences(kernel: Kernel) -> None:
    A, B = points(4, 2), points(5, 3)
    numeric = np.array([central(lambda a: kernel.k(a[None], B)[0], a, 1e-3) for a in A])
    assert_allclose(kernel.dk(A, B), numeric, atol=1e-7)


@each_kernel
def test_cross_derivative_against_finite_differences(kernel: Kernel) -> None:
    A, B = points(3, 4), points(4, 5)

    def derivative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return central(lambda x: kernel.dk(a[None], x[None])[0, 0], b, 1e-3)

    numeric = [[derivative(a, b) for b in B] for a in A]
    assert_allclose(kernel.d2k(A, B), numeric, atol=1e-6)


@each_kernel
def test_cross_derivative_where_the_points_coincide(kernel: Kernel) -> None:
    x = points(1, 6)[0]
    # Second order only: a Matern-5/2 kernel has no fourth derivative at zero distance.
    h = 1e-4
    numeric = np.empty((D, D))
    for q, e in enumerate(h * np.eye(D)):
        upper, lower = kernel.dk(x[None], (x + e)[None]), kernel.dk(x[None], (x - e)[None])
        numeric[:, q] = (upper - lower)[0, 0] / (2 * h)
    assert_allclose(kernel.d2k(x[None], x[None])[0, 0], numeric, atol=1e-4)
    assert_allclose(kernel.dk(x[None], x[None])[0, 0], central_diagonal(kernel, x) / 2, atol=1e-6)


def central_diagonal(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    """Derivative of x to k(x, x), twice that in the first argument by symmetry."""
    return central(lambda a: kernel.k(a[None], a[None])[0, 0], x, 1e-3)


@each_kernel
def test_cross_derivative_is_symmetric_under_swapping(kernel: Kernel) -> None:
    A, B = points(3, 7), points(4, 8)
    assert_allclose(kernel.d2k(A, B), kernel.d2k(B, A).transpose(1, 0, 3, 2), atol=1e-12)


@each_kernel
def test_contractions_against_dense_loops(kernel: Kernel) -> None:
    rng = np.random.default_rng(9)
    A, B, theta = points(4, 10), points(5, 11), points(1, 12)[0]
    W, V = rng.standard_normal((4, 5)), rng.standard_normal((4, D))
    dk, d2k = kernel.dk(A, B), kernel.d2k(A, theta[None])
    first, second = np.zeros((4, D)), np.zeros((4, D))
    for i in range(4):
        for j in range(5):
            first[i] += W[i, j] * dk[i, j]
        second[i] = d2k[i, 0] @ V[i]
    assert_allclose(kernel.dk_dot(A, B, W), first, atol=1e-11)
    assert_allclose(kernel.d2k_dot(A, theta, V), second, atol=1e-11)


@each_kernel
def test_contractions_where_points_coincide(kernel: Kernel) -> None:
    A = points(3, 13)
    W, V = np.ones((3, 3)), np.ones((3, D))
    assert_allclose(kernel.dk_dot(A, A, W), kernel.dk(A, A).sum(1), atol=1e-11)
    assert_allclose(
        kernel.d2k_dot(A[:1], A[0], V[:1])[0], kernel.d2k(A[:1], A[:1])[0, 0].sum(1), atol=1e-11
    )


@each_kernel
def test_prior_trace_is_the_trace_of_the_cross_derivative(kernel: Kernel) -> None:
    for theta in points(4, 14):
        dense = np.trace(kernel.d2k(theta[None], theta[None])[0, 0])
        assert kernel.prior_trace(theta) == pytest.approx(dense, rel=1e-12)


@each_kernel
def test_jacobian_is_the_derivative_in_the_second_argument(kernel: Kernel) -> None:
    A, theta = points(5, 15), points(1, 16)[0]
    numeric = central(lambda t: kernel.k(A, t[None])[:, 0], theta, 1e-3)
    assert_allclose(kernel.jacobian(A, theta), numeric, atol=1e-7)


@each_kernel
def test_gram_matrices_are_positive_semidefinite(kernel: Kernel) -> None:
    A = points(12, 17)
    eigenvalues = np.linalg.eigvalsh(kernel.k(A, A))
    assert eigenvalues[0] > -1e-12 * eigenvalues[-1]


def test_isotropic_kernels_are_at_most_one_far_and_near() -> None:
    near, far = np.zeros((1, 2)), np.full((1, 2), 1e6)
    for kernel in (RBF(0.1), Matern52(0.1)):
        assert kernel.k(near, near)[0, 0] == 1.0
        assert kernel.k(near, far)[0, 0] == 0.0
        assert np.all(kernel.dk(near, far) == 0.0)


def test_one_scale_equals_the_same_scale_for_every_coordinate() -> None:
    A, B = points(3, 18), points(3, 19)
    for kind in (RBF, Matern52):
        assert_allclose(kind(0.4).d2k(A, B), kind(np.full(D, 0.4)).d2k(A, B), atol=1e-13)


@pytest.mark.parametrize("kind", [RBF, Matern52])
@pytest.mark.parametrize(
    "bad", [0.0, -1.0, np.nan, np.inf, [0.5, 0.0], [1.0, np.nan], [[1.0, 1.0]]]
)
def test_bad_length_scales_are_refused(kind: type, bad: object) -> None:
    with pytest.raises(ValueError, match="lengthscale must be positive"):
        kind(bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_constants_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="c must be positive"):
        Polynomial2(bad)


def test_the_names_that_users_type() -> None:
    assert set(KERNELS) == {"rbf", "matern52", "polynomial2"}
