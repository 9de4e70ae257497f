"""Designs: points whose losses tell most about the gradient at one point.

Notation:

    ======  ====================================================  ==========
    symbol  meaning                                               shape
    ======  ====================================================  ==========
    theta   centre, the point whose gradient is sought            (d,)
    D       points evaluated before and remembered                (m, d)
    Z       the new batch                                         (b, d)
    A       K(D ∪ Z) + s2 I                                       (m+b, m+b)
    J       k(D ∪ Z, theta)∇ᵀ                                     (m+b, d)
    V       A⁻¹ J                                                 (m+b, d)
    value   Tr(Jᵀ A⁻¹ J) = -alpha(Z; D, theta) of the paper       scalar
    trace   Tr(∇k(theta, theta)∇ᵀ) - value                        scalar
    lambda  s2 over the signal variance (the kernels have 1)      scalar
    r       radius of a symmetric design in length-scales         scalar
    ======  ====================================================  ==========

For an isotropic kernel without remembered points the best b = d + 1 points form a regular simplex
around theta and b = 2d points look like +- pairs; both have closed forms, so that choosing them
costs nothing. Everything else goes through :func:`optimise_batch`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.models.kernels import Isotropic, Kernel

Array = NDArray[np.float64]

_JITTER = 1e-10


@lru_cache(maxsize=32)
def simplex(d: int) -> Array:
    """Vertices of the regular simplex on the unit sphere, shape (d + 1, d)."""
    centred = np.eye(d + 1) - 1.0 / (d + 1)
    basis: Array = np.linalg.svd(centred)[2][:d]  # orthonormal, orthogonal to the all-ones vector
    vertices = centred @ basis.T
    return np.asarray(vertices / np.linalg.norm(vertices, axis=1, keepdims=True))


def cross_polytope(d: int) -> Array:
    """The 2d points +- e_j, pairs adjacent, shape (2d, d)."""
    return np.asarray(np.repeat(np.eye(d), 2, axis=0) * np.tile([1.0, -1.0], d)[:, None])


def rotation(d: int, rng: np.random.Generator) -> Array:
    """A Haar-distributed orthogonal matrix, shape (d, d)."""
    Q, R = np.linalg.qr(rng.standard_normal((d, d)))
    return np.asarray(Q * np.sign(np.diag(R)))


def closed_form_value(kernel: Isotropic, d: int, b: int, r: float, lam: float) -> float:
    """Value of the symmetric design of radius r, in units of 1/length-scale².

    Simplex (b = d + 1): (d+1) 4κ'(r²)² r² / (1 - κ(2r²(1 + 1/d)) + lambda), for the RBF kernel
    e^{-r²} (d+1) r² / (1 - e^{-r²(1+1/d)} + lambda). Pairs (b = 2d): the same with 4r² as the
    squared distance of a pair.
    """
    apart = 2.0 * r * r * (1.0 + 1.0 / d) if b == d + 1 else 4.0 * r * r
    _, k1, _ = kernel.kappa(np.array([r * r]))
    k0, _, _ = kernel.kappa(np.array([apart]))
    return float(b * 4.0 * k1[0] ** 2 * r * r / (1.0 - k0[0] + lam))


@lru_cache(maxsize=256)
def best_radius(kind: type[Isotropic], d: int, b: int, lam: float) -> float:
    """Radius, in length-scales, that maximises :func:`closed_form_value`; b is d+1 or 2d."""
    kernel = kind()

    def negative_value(log_r: float) -> float:
        return -closed_form_value(kernel, d, b, float(np.exp(log_r)), lam)

    found = scipy.optimize.minimize_scalar(
        negative_value, bounds=(np.log(1e-4), np.log(3.0)), method="bounded"
    )
    return float(np.exp(found.x))


def structured_directions(d: int, b: int, rng: np.random.Generator) -> Array:
    """A simplex, pairs, or as many of these unit directions as b allows; shape (b, d)."""
    if b == d + 1:
        return np.asarray(simplex(d) @ rotation(d, rng))
    if b <= d:
        flat = simplex(b - 1) if b > 1 else np.ones((1, 1))
        return np.asarray(flat @ rotation(d, rng)[: flat.shape[1]])
    rounds = [cross_polytope(d) @ rotation(d, rng) for _ in range(-(-b // (2 * d)))]
    return np.vstack(rounds)[:b]


def inward_centre(theta: Array, offsets: Array) -> Array:
    """The point nearest to theta around which all offsets stay in the unit cube, shape (d,).

    Coordinates in which the offsets are wider than the cube go to its middle.
    """
    low, high = -offsets.min(0), 1.0 - offsets.max(0)
    middle = 0.5 * (low + high)
    inside = np.minimum(np.maximum(theta, low), high)
    return np.asarray(np.where(low <= high, inside, middle))


def batch_value(kernel: Kernel, D: Array, theta: Array, s2: float) -> float:
    """Tr(Jᵀ A⁻¹ J) of the points D, shape (m, d), for the gradient at theta."""
    if len(D) == 0:
        return 0.0
    J = kernel.jacobian(D, theta)
    return float((J * scipy.linalg.cho_solve(_factor(kernel, D, s2), J)).sum())


def gradient_trace(kernel: Kernel, D: Array, theta: Array, s2: float) -> float:
    """Trace of the posterior gradient covariance at theta after evaluating D."""
    return kernel.prior_trace(theta) - batch_value(kernel, D, theta, s2)


def _factor(kernel: Kernel, X: Array, s2: float) -> tuple[Array, bool]:
    A = kernel.k(X, X)
    A[np.diag_indices_from(A)] += s2 + _JITTER * float(np.max(np.diag(A)))
    factor, lower = scipy.linalg.cho_factor(A, lower=True)
    return np.asarray(factor), bool(lower)


def batch_value_and_grad(
    kernel: Kernel, Z: Array, D: Array, theta: Array, s2: float
) -> tuple[float, Array]:
    """Value of D ∪ Z and its gradient in Z, shape (b, d).

    With V = A⁻¹ J: ∂value/∂z_i = 2 Σ_q V_iq ∂²k(z_i, theta)/∂z_i∂theta_q
    - 2 Σ_k (V Vᵀ)_ik ∂k(z_i, x_k)/∂z_i.
    """
    X = np.vstack([Z, D]) if len(D) else Z
    J = kernel.jacobian(X, theta)
    V = np.asarray(scipy.linalg.cho_solve(_factor(kernel, X, s2), J))
    b = len(Z)
    direct = kernel.d2k_dot(Z, theta, V[:b])
    through_gram = kernel.dk_dot(Z, X, V[:b] @ V.T)
    return float((J * V).sum()), 2.0 * (direct - through_gram)


def optimise_batch(
    kernel: Kernel, start: Array, D: Array, theta: Array, s2: float, max_iter: int = 60
) -> Array:
    """Locally best batch in the unit cube from a start, shape (b, d) (paper, line 5)."""
    shape = start.shape

    def negative(flat: Array) -> tuple[float, Array]:
        value, grad = batch_value_and_grad(kernel, flat.reshape(shape), D, theta, s2)
        return -value, -grad.ravel()

    found = scipy.optimize.minimize(
        negative,
        np.clip(start, 0.0, 1.0).ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * start.size,
        options={"maxiter": max_iter},
    )
    return np.asarray(found.x).reshape(shape)


def fewest_points(
    kernel: Kernel,
    D: Array,
    theta: Array,
    s2: float,
    *,
    tolerance: float,
    most: int,
    offsets: Callable[[int], Array],
) -> int | None:
    """The least b up to ``most`` whose best batch brings the trace under a tolerance.

    Line 4 of the paper. None if none does.

    Args:
        kernel: Covariance function.
        D: Remembered points, shape (m, d).
        theta: The centre, shape (d,).
        s2: Noise variance.
        tolerance: For the whole trace.
        most: Points that are tried.
        offsets: From b to the design around the centre that the search starts from, (b, d).
    """
    for b in range(1, most + 1):
        Z = optimise_batch(kernel, theta + offsets(b), D, theta, s2)
        if gradient_trace(kernel, np.vstack([Z, D]), theta, s2) <= tolerance:
            return b
    return None


def next_probe(kernel: Kernel, D: Array, theta: Array, s2: float, directions: Array) -> Array:
    """One more point for the same centre, given the points D already out; shape (d,).

    Starts from the most valuable of a few structured candidates and polishes it.
    """
    candidates = np.clip(theta + directions, 0.0, 1.0)
    values = [batch_value(kernel, np.vstack([D, c[None]]), theta, s2) for c in candidates]
    start = candidates[int(np.argmax(values))][None]
    return np.asarray(optimise_batch(kernel, start, D, theta, s2, max_iter=20)[0])
