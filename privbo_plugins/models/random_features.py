"""Random Fourier features that several agents share, and linear regression over them.

Notation:

    ======  ==========================================================  ========
    symbol  meaning                                                     shape
    ======  ==========================================================  ========
    X       points                                                      (n, d)
    s, b    frequencies ~ N(0, I / l²) and phases ~ U(0, 2 pi)          (M, d), (M,)
    c       sqrt(2/M) cos(s x + b)                                      (n, M)
    Phi     rows phi(x) = c / |c|                                       (n, M)
    s2      variance of an observation's noise                          scalar
    Sigma   Phiᵀ Phi + s2 I                                             (M, M)
    w       weights of a function f(x) = phi(x)ᵀ w                      (M,)
    ======  ==========================================================  ========

The frequencies come from a public seed: an agent that knows it can evaluate a function from its
weights, and nothing about anybody's data is in them (Dai et al. 2021, section 2; Rahimi and
Recht 2007).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FourierFeatures:
    """Unit-length random features of the squared exponential kernel.

    Args:
        M: Number of features, >= 1.
        d: Dimensions of a point, >= 1.
        lengthscale: Length-scale l of the kernel, > 0.
        seed: Public; the same seed gives the same features everywhere.

    Raises:
        ValueError: If a number lies outside its range.

    Example:
        >>> phi = FourierFeatures(100, 2, 0.3, seed=0)
        >>> bool(np.allclose((phi(np.random.default_rng(0).random((5, 2))) ** 2).sum(1), 1.0))
        True
    """

    M: int
    d: int
    lengthscale: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.M < 1 or self.d < 1:
            raise ValueError(f"Features need M >= 1 and d >= 1, got M={self.M}, d={self.d}.")
        if not (math.isfinite(self.lengthscale) and self.lengthscale > 0):
            raise ValueError(f"lengthscale must be positive, got {self.lengthscale}.")

    @cached_property
    def _frequencies(self) -> tuple[Array, Array]:
        rng = np.random.default_rng(self.seed)
        s = rng.standard_normal((self.M, self.d)) / self.lengthscale
        return s, rng.uniform(0.0, 2.0 * math.pi, self.M)

    def __call__(self, X: Array) -> Array:
        """Phi, shape (n, M)."""
        s, b = self._frequencies
        c = np.cos(X @ s.T + b)
        return np.asarray(c / np.sqrt((c * c).sum(1, keepdims=True)))

    def value_and_slope(self, x: Array, w: Array) -> tuple[float, Array]:
        """f(x) = phi(x)ᵀ w and its gradient, shape (d,)."""
        s, b = self._frequencies
        angle = s @ x + b
        c, dc = np.cos(angle), -np.sin(angle)[:, None] * s
        norm = math.sqrt(float(c @ c))
        value = float(c @ w) / norm
        return value, np.asarray((w @ dc) / norm - value * (c @ dc) / norm**2)


def posterior_mean(Phi: Array, y: Array, s2: float) -> Array:
    """Sigma^-1 Phiᵀ y, shape (M,): the mean weights after n observations.

    Args:
        Phi: Features, shape (n, M).
        y: Observations, shape (n,).
        s2: Noise variance, > 0; the prior of the weights is N(0, I).
    """
    n, M = Phi.shape
    if n <= M:  # the same matrix from its smaller side
        return np.asarray(Phi.T @ np.linalg.solve(Phi @ Phi.T + s2 * np.eye(n), y))
    return np.asarray(np.linalg.solve(Phi.T @ Phi + s2 * np.eye(M), Phi.T @ y))


def posterior_sample(Phi: Array, y: Array, s2: float, rng: np.random.Generator) -> Array:
    """A draw from N(Sigma^-1 Phiᵀ y, s2 Sigma^-1), shape (M,) (eq. 2).

    With fewer observations than features by Matheron's rule: a draw from the prior, corrected by
    the mean weights of what it leaves unexplained, has exactly this law at the cost of n² M.

    Args:
        Phi: Features, shape (n, M).
        y: Observations, shape (n,).
        s2: Noise variance, > 0.
        rng: Where the draw comes from.
    """
    n, M = Phi.shape
    w = rng.standard_normal(M)
    if n <= M:
        noise = math.sqrt(s2) * rng.standard_normal(n)
        return np.asarray(w + posterior_mean(Phi, y - Phi @ w - noise, s2))
    lower = np.linalg.cholesky(Phi.T @ Phi + s2 * np.eye(M))
    spread = np.linalg.solve(lower.T, w)
    return np.asarray(posterior_mean(Phi, y, s2) + math.sqrt(s2) * spread)
