"""Covariance functions with the derivatives that gradient posteriors need.

Notation, all points in the unit cube with one length-scale a coordinate:

    ======  ============================================  ==========
    symbol  meaning                                       shape
    ======  ============================================  ==========
    A, B    two sets of points                            (a, d), (b, d)
    l       length-scales                                 (d,)
    q       squared scaled distance |(a - b) / l|²        (a, b)
    k       covariance k(a, b)                            (a, b)
    dk      ∂k(a, b)/∂a                                   (a, b, d)
    d2k     ∂²k(a, b)/∂a∂bᵀ                               (a, b, d, d)
    ======  ============================================  ==========

``dk_dot`` and ``d2k_dot`` contract the derivatives with weights without forming d2k.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class Kernel(abc.ABC):
    """A twice differentiable covariance function."""

    @abc.abstractmethod
    def k(self, A: Array, B: Array) -> Array:
        """Covariance matrix, shape (a, b)."""

    @abc.abstractmethod
    def dk(self, A: Array, B: Array) -> Array:
        """First derivative in the first argument, shape (a, b, d)."""

    @abc.abstractmethod
    def dk_dot(self, A: Array, B: Array, W: Array) -> Array:
        """``sum_j W_ij ∂k(a_i, b_j)/∂a_i`` for W of shape (a, b); shape (a, d)."""

    @abc.abstractmethod
    def d2k_dot(self, A: Array, theta: Array, V: Array) -> Array:
        """``sum_q ∂²k(a_i, theta)/∂a_i ∂theta_q V_iq`` for V of shape (a, d); shape (a, d)."""

    @abc.abstractmethod
    def prior_trace(self, theta: Array) -> float:
        """Tr(∇k(theta, theta)∇ᵀ): the variance of the gradient before any evaluation."""

    def jacobian(self, D: Array, theta: Array) -> Array:
        """k(D, theta)∇ᵀ, derivative in theta, shape (m, d)."""
        return np.asarray(self.dk(theta[None, :], D)[0])


@dataclass(frozen=True)
class Isotropic(Kernel):
    """Kernels that depend on the scaled distance only.

    Args:
        lengthscale: One positive number, or one a coordinate; unit-cube units.

    Raises:
        ValueError: If a length-scale is not positive and finite.
    """

    lengthscale: ArrayLike = 1.0

    def __post_init__(self) -> None:
        length = np.asarray(self.lengthscale, dtype=float)
        if length.ndim > 1 or not np.all(np.isfinite(length)) or not np.all(length > 0):
            raise ValueError(f"lengthscale must be positive, got {self.lengthscale}.")

    @abc.abstractmethod
    def kappa(self, q: Array) -> tuple[Array, Array, Array]:
        """Profile and its first two derivatives in q = |u|², u the scaled difference."""

    @property
    def _l(self) -> Array:
        return np.asarray(self.lengthscale, dtype=float)

    def _q(self, A: Array, B: Array) -> Array:
        a, b = A / self._l, B / self._l
        aa, bb = (a * a).sum(-1)[..., :, None], (b * b).sum(-1)[..., None, :]
        q, inner = np.asarray(aa + bb), a @ b.swapaxes(-1, -2)
        inner *= 2.0  # in place: most of the time goes where new memory is written
        q -= inner
        return np.asarray(np.maximum(q, 0.0, out=q))

    def _u(self, A: Array, B: Array) -> Array:
        return np.asarray((A[:, None, :] - B[None, :, :]) / self._l)

    def k(self, A: Array, B: Array) -> Array:
        """Covariance matrix, shape (a, b); of stacks of points (..., a, d), a stack of them."""
        return self.kappa(self._q(A, B))[0]

    def dk(self, A: Array, B: Array) -> Array:
        """First derivative in the first argument, shape (a, b, d)."""
        u = self._u(A, B)
        _, k1, _ = self.kappa((u * u).sum(-1))
        return np.asarray(2.0 * k1[..., None] * u / self._l)

    def dk_dot(self, A: Array, B: Array, W: Array) -> Array:
        """``sum_j W_ij ∂k(a_i, b_j)/∂a_i``, shape (a, d)."""
        _, k1, _ = self.kappa(self._q(A, B))
        weights = 2.0 * W * k1
        return np.asarray((weights.sum(1)[:, None] * A - weights @ B) / self._l**2)

    def d2k_dot(self, A: Array, theta: Array, V: Array) -> Array:
        """``sum_q ∂²k(a_i, theta)/∂a_i ∂theta_q V_iq``, shape (a, d)."""
        v = (A - theta) / self._l**2
        _, k1, k2 = self.kappa((((A - theta) / self._l) ** 2).sum(1))
        along = -4.0 * k2 * (v * V).sum(1)
        return np.asarray(along[:, None] * v - 2.0 * k1[:, None] * V / self._l**2)

    def prior_trace(self, theta: Array) -> float:
        """Tr(∇k∇ᵀ) = -2 κ'(0) Σ 1/l²; d/l² for the RBF kernel."""
        _, k1, _ = self.kappa(np.zeros(1))
        return float(-2.0 * k1[0] * np.sum(np.broadcast_to(self._l, theta.shape) ** -2.0))


@dataclass(frozen=True)
class RBF(Isotropic):
    """Squared exponential, k = exp(-q / 2).

    Example:
        >>> RBF(0.5).prior_trace(np.zeros(3))
        12.0
    """

    def k(self, A: Array, B: Array) -> Array:
        """:meth:`Isotropic.k` without the derivatives."""
        q = self._q(A, B)
        q *= -0.5
        return np.asarray(np.exp(q, out=q))

    def kappa(self, q: Array) -> tuple[Array, Array, Array]:
        """κ = exp(-q/2), κ' = -κ/2, κ'' = κ/4."""
        k0 = np.exp(-0.5 * q)
        return k0, -0.5 * k0, 0.25 * k0


@dataclass(frozen=True)
class Matern52(Isotropic):
    """Matern with nu = 5/2, k = (1 + ρ + ρ²/3) exp(-ρ), ρ = sqrt(5 q).

    Example:
        >>> round(Matern52(1.0).prior_trace(np.zeros(3)), 12)
        5.0
    """

    def kappa(self, q: Array) -> tuple[Array, Array, Array]:
        """κ, κ' = -5/6 (1 + ρ) e^-ρ, κ'' = 25/12 e^-ρ."""
        rho = np.sqrt(5.0 * q)
        e = np.exp(-rho)
        return (1.0 + rho + rho * rho / 3.0) * e, -5.0 / 6.0 * (1.0 + rho) * e, 25.0 / 12.0 * e


@dataclass(frozen=True)
class Polynomial2(Kernel):
    """Degree-two polynomial, k = (aᵀb + c)² (paper, Appendix E.3 with c = 1).

    Args:
        c: The constant, positive.

    Raises:
        ValueError: If c is not positive.

    Example:
        >>> Polynomial2().k(np.array([[1.0, 1.0]]), np.array([[0.5, 0.5]]))
        array([[4.]])
    """

    c: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.c) and self.c > 0):
            raise ValueError(f"c must be positive, got {self.c}.")

    def _inner(self, A: Array, B: Array) -> Array:
        return np.asarray(A @ B.T + self.c)

    def k(self, A: Array, B: Array) -> Array:
        """Covariance matrix, shape (a, b)."""
        return self._inner(A, B) ** 2

    def dk(self, A: Array, B: Array) -> Array:
        """First derivative in the first argument, shape (a, b, d)."""
        return np.asarray(2.0 * self._inner(A, B)[..., None] * B[None, :, :])

    def dk_dot(self, A: Array, B: Array, W: Array) -> Array:
        """``sum_j W_ij ∂k(a_i, b_j)/∂a_i``, shape (a, d)."""
        return np.asarray(2.0 * (W * self._inner(A, B)) @ B)

    def d2k_dot(self, A: Array, theta: Array, V: Array) -> Array:
        """``2 theta (aᵀV) + 2 (aᵀtheta + c) V``, shape (a, d)."""
        inner = A @ theta + self.c
        return np.asarray(2.0 * ((A * V).sum(1)[:, None] * theta + inner[:, None] * V))

    def prior_trace(self, theta: Array) -> float:
        """Tr(2 theta thetaᵀ + 2 (|theta|² + c) I)."""
        square = float(theta @ theta)
        return 2.0 * square + 2.0 * (square + self.c) * theta.size


KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "matern52": Matern52, "polynomial2": Polynomial2}
"""Kernels by the name a user gives."""


def kernel_on_cube(name: str, lengthscale: float | None, D: int) -> Kernel:
    """The kernel of a name, "rbf" or "matern52"; without a length-scale with 0.2 sqrt(D)."""
    length = 0.2 * math.sqrt(D) if lengthscale is None else lengthscale
    return KERNELS[name](length)  # type: ignore[call-arg]
