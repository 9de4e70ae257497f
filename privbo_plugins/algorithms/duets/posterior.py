"""The posterior of all agents' rewards from what they send: the Nyström projection.

Notation:

    ======  =====================================================================  ========
    symbol  meaning                                                                shape
    ======  =====================================================================  ========
    D       points that were evaluated in an epoch, by all agents                  (n, p)
    S       inducing set: some of them                                             (m, p)
    z_S(x)  K_SS^{-1/2} k_S(x)                                                     (m,)
    Z       z_S at the points of D                                                 (n, m)
    G       ZᵀZ                                                                    (m, m)
    v       ZᵀY, the projected rewards                                             (m,)
    lam     noise variance over signal variance                                    scalar
    v_bar   (lam I + G)⁻¹ v                                                        (m,)
    s       standard deviation of the signal                                       scalar
    c       the rewards' level, which is taken off before everything else          scalar
    ======  =====================================================================  ========

Equation (4) is the variance; equation (6) as printed is that divided by lam. Here sigma is always
equation (4), in the unit of the rewards: at no data sigma = s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.models.kernels import Kernel
from privbo_plugins.models.nystrom import NystromEmbedding, independent_rows

Array = NDArray[np.float64]

SPAN = 1e-3
"""What is closer than this to the span of an inducing set adds no point to it (variances)."""

_EXACT = 1e-6
"""The same where a variance is wanted as it is."""

_LAMS = np.geomspace(1e-3, 1.0, 13)
"""Ratios of noise to signal that are tried; below the first the posterior would trust anything."""

_LARGE_LAMS = np.geomspace(1e-3, 1e3, 25)
"""The same where the noise is known, and may be larger than any signal."""


def spanning(kernel: Kernel, D: Array, tolerance: float = SPAN) -> Array:
    """Points of D whose span holds all others up to a variance, shape (m, p)."""
    distinct = np.unique(D, axis=0)
    return distinct[independent_rows(kernel.k, distinct, np.ones(len(distinct)), tolerance)]


def sampled(p: float, D: Array, rng: np.random.Generator) -> Array:
    """Each point of D with probability p, shape (m, p); at least one, so that there is a model."""
    kept = D[rng.random(len(D)) < p]
    return kept if len(kept) else D[:1]


def variance(kernel: Kernel, D: Array, X: Array, lam: float) -> Array:
    """sigma² at X (n, p) given evaluations at D (eq. 4), shape (n,); exact to four digits."""
    inducing = NystromEmbedding(kernel.k, spanning(kernel, D, _EXACT))
    Z = inducing.features(D)
    return _variance(
        inducing.features(X), scipy.linalg.cho_factor(Z.T @ Z + lam * np.eye(Z.shape[1])), lam
    )


def _variance(z: Array, factor: Any, lam: float) -> Array:
    """k(x, x) - zᵀG (lam I + G)⁻¹ z = 1 - zᵀz + lam zᵀ (lam I + G)⁻¹ z (eq. 6, times lam)."""
    left = np.einsum("ij,ij->i", z, scipy.linalg.cho_solve(factor, z.T).T)
    return np.asarray(np.maximum(1.0 - np.einsum("ij,ij->i", z, z) + lam * left, 0.0))


@dataclass(frozen=True)
class Scale:
    """What the rewards are measured in.

    Attributes:
        lam: Noise variance over signal variance.
        s: Standard deviation of the signal, in reward units.
        c: Their level, in reward units.
    """

    lam: float
    s: float = 1.0
    c: float = 0.0


@dataclass(frozen=True)
class Sums:
    """What the server needs of the rewards.

    Attributes:
        n: Their number.
        v: ZᵀY, shape (m,).
        one: Sum of Y.
        two: Sum of Y².
    """

    n: int
    v: Array
    one: float
    two: float


def fitted(
    G: Array, ones: Array, sums: Sums, noise: float | None, c: float | None = None
) -> Scale:
    """The scale of largest marginal likelihood of Y = c + N(0, s² ZZᵀ + lam s² I).

    Args:
        G: ZᵀZ, shape (m, m).
        ones: Zᵀ1, shape (m,).
        sums: Of the rewards.
        noise: Variance of their noise, if it is known.
        c: Their level, if it is known; None for their mean.
    """
    c = sums.one / sums.n if c is None else c
    values, Q = np.linalg.eigh(G)
    values = np.maximum(values, 0.0)
    projected = (Q.T @ (sums.v - c * ones)) ** 2
    square = sums.two - 2 * c * sums.one + sums.n * c * c
    square = max(square, 1e-12 * max(sums.two, 1e-300))
    lams = _LAMS if noise is None else _LARGE_LAMS
    best = max((_likelihood(lam, values, projected, square, sums.n, noise), lam) for lam in lams)[
        1
    ]
    left = _misfit(best, values, projected, square)
    s2 = left / sums.n if noise is None else noise / best
    return Scale(float(best), math.sqrt(max(s2, 1e-300)), c)


def _misfit(lam: float, values: Array, projected: Array, square: float) -> float:
    """Yᵀ (ZZᵀ + lam I)⁻¹ Y of centred rewards, by the Woodbury identity."""
    return max((square - float((projected / (values + lam)).sum())) / lam, 1e-300)


def _likelihood(
    lam: float, values: Array, projected: Array, square: float, n: int, noise: float | None
) -> float:
    """Logarithm of the marginal likelihood, up to a constant; s² is profiled out if unknown."""
    misfit = _misfit(lam, values, projected, square)
    determinant = n * math.log(lam) + float(np.log1p(values / lam).sum())
    if noise is None:
        return -0.5 * (n * math.log(misfit / n) + determinant)
    s2 = noise / lam
    return -0.5 * (n * math.log(s2) + misfit / s2 + determinant)


class SparsePosterior:
    """mu and sigma from v_bar (eq. 5 and 6).

    Args:
        inducing: z_S.
        v_bar: Shape (m,).
        scale: What the rewards are measured in.
        G: ZᵀZ, shape (m, m); None where only the server knows it, and then there is a mean
            only.
    """

    def __init__(
        self, inducing: NystromEmbedding, v_bar: Array, scale: Scale, G: Array | None = None
    ) -> None:
        self.inducing, self.v_bar, self.scale = inducing, v_bar, scale
        self._factor = (
            None if G is None else scipy.linalg.cho_factor(G + scale.lam * np.eye(len(G)))
        )

    def mean(self, X: Array) -> Array:
        """Posterior mean at points (n, p), shape (n,), in reward units."""
        return self.scale.c + self.inducing.features(X) @ self.v_bar  # eq. 5

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Posterior mean and deviation at points (n, p), both of shape (n,), in reward units.

        Raises:
            ValueError: If the covariance is not known here.
        """
        if self._factor is None:
            raise ValueError(
                "Only the posterior mean is known here, not the deviation: the coins are private. "
                "Ask the server."
            )
        z = self.inducing.features(X)
        sigma = self.scale.s * np.sqrt(_variance(z, self._factor, self.scale.lam))
        return self.scale.c + z @ self.v_bar, sigma


def posterior_of(
    kernel: Kernel, D: Array, Y: Array, scale: Scale | None, noise: float | None
) -> SparsePosterior:
    """The posterior of rewards that are all in one place.

    Args:
        kernel: Covariance function.
        D: Points, shape (n, p).
        Y: Rewards, shape (n,).
        scale: Their scale; None fits it.
        noise: Variance of their noise, if it is known.
    """
    inducing = NystromEmbedding(kernel.k, spanning(kernel, D))
    Z = inducing.features(D)
    G, ones = Z.T @ Z, Z.sum(0)
    sums = Sums(len(Y), Z.T @ Y, float(Y.sum()), float(Y @ Y))
    known = fitted(G, ones, sums, noise) if scale is None else scale
    return SparsePosterior(inducing, solved(G, ones, sums, known), known, G)


def solved(G: Array, ones: Array, sums: Sums, scale: Scale) -> Array:
    """v_bar = (lam I + ZᵀZ)⁻¹ (v - c Zᵀ1) (eq. 8), shape (m,)."""
    A = G + scale.lam * np.eye(len(G))
    return np.asarray(np.linalg.solve(A, sums.v - scale.c * ones))
