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

The frequencies come from a public seed: with it, anybody can evaluate a function from its
weights, and nothing about anybody's data is in them (Dai et al. 2021, section 2; Rahimi and
Recht 2007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def posterior_means(Phi: Array, y: Array, s2: float, gram: Array | None = None) -> Array:
    """Sigma^-1 Phiᵀ y of many agents, shape (a, M): the mean weights after n observations.

    Args:
        Phi: Features, shape (a, n, M).
        y: Observations, shape (a, n).
        s2: Noise variance, > 0; the prior of the weights is N(0, I).
        gram: Phi Phiᵀ where it is known, shape (a, n, n).
    """
    n, M = Phi.shape[1:]
    Phi_T = Phi.swapaxes(1, 2)
    if n <= M:  # the same matrix from its smaller side
        K = Phi @ Phi_T if gram is None else gram
        alpha = np.linalg.solve(K + s2 * np.eye(n), y[:, :, None])
        return np.asarray((Phi_T @ alpha)[:, :, 0])
    Sigma = Phi_T @ Phi + s2 * np.eye(M)
    return np.asarray(np.linalg.solve(Sigma, Phi_T @ y[:, :, None])[:, :, 0])


def posterior_samples(
    Phi: Array,
    y: Array,
    s2: float,
    rngs: Sequence[np.random.Generator],
    gram: Array | None = None,
) -> Array:
    """Draws from N(Sigma^-1 Phiᵀ y, s2 Sigma^-1), one an agent, shape (a, M) (eq. 2).

    With fewer observations than features by Matheron's rule: a draw from the prior, corrected by
    the mean weights of what it leaves unexplained, has exactly this law at the cost of n² M.

    Args:
        Phi: Features, shape (a, n, M).
        y: Observations, shape (a, n).
        s2: Noise variance, > 0.
        rngs: Where each agent's draw comes from.
        gram: Phi Phiᵀ where it is known, shape (a, n, n).
    """
    n, M = Phi.shape[1:]
    rngs = list(rngs)  # each is drawn from twice
    w = np.array([rng.standard_normal(M) for rng in rngs])  # (a, M)
    if n <= M:
        noise = math.sqrt(s2) * np.array([rng.standard_normal(n) for rng in rngs])
        return w + posterior_means(Phi, y - (Phi @ w[:, :, None])[:, :, 0] - noise, s2, gram)
    lower = np.linalg.cholesky(Phi.swapaxes(1, 2) @ Phi + s2 * np.eye(M))
    spread = np.linalg.solve(lower.swapaxes(1, 2), w[:, :, None])[:, :, 0]
    return posterior_means(Phi, y, s2) + math.sqrt(s2) * spread
