"""Gaussian process posteriors that an evaluation updates in constant time.

Notation:

    ======  ==========================================================  ========
    symbol  meaning                                                     shape
    ======  ==========================================================  ========
    K       covariance of the arms                                      (N, N)
    C       posterior covariance of the arms                            (N, N)
    mu      posterior mean of the arms                                  (N,)
    lam     variance of an observation's noise                          scalar
    phi     features of a point, see :mod:`privbo_plugins.models.nystrom`  (m,)
    A       (Phi Phiᵀ / lam + I)⁻¹, covariance of the weights           (m, m)
    w       posterior mean of the weights                               (m,)
    v       logarithm of a model's evidence                             scalar
    p       a model's probability given all observations                (models,)
    ======  ==========================================================  ========

The first and the last give equations (2) and (3) of Zhou and Tan, the last up to the tolerance of
its features. The mixture is Bayesian model averaging.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.models.nystrom import Covariance, GrowingFeatures

Array = NDArray[np.float64]

_REFRESH = 2000
"""Rank-one updates after which a covariance is recomputed, before rounding can add up."""


class RewardPosterior(Protocol):
    """A model that the UCB algorithms can use."""

    def tell(self, z: Array, y: float) -> None:
        """Learns one observation at a point (p,)."""
        ...

    def predict(self, Z: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at points (n, p); both of shape (n,)."""
        ...

    def imagining(self, Z: Array) -> Self:
        """A copy that has also been told its own mean at points (n, p)."""
        ...


class ArmsPosterior:
    """Exact posterior of N arms; an evaluation costs O(N²), however many came before.

    Args:
        K: Prior covariance, shape (N, N).
        lam: Noise variance, > 0.
    """

    def __init__(self, K: Array, lam: float) -> None:
        self._K, self.lam = K, lam
        self.C, self.mu = K.copy(), np.zeros(len(K))
        self._counts, self._sums, self._updates = np.zeros(len(K)), np.zeros(len(K)), 0

    def tell(self, z: Array, y: float) -> None:
        """Learns one observation of the arm numbered z[0]."""
        arm = int(z[0])
        self._counts[arm] += 1
        self._sums[arm] += y
        self._updates += 1
        if self._updates % _REFRESH == 0:
            self._recompute()
        else:
            self._update(arm, y - self.mu[arm])

    def _update(self, arm: int, surprise: float) -> None:
        g = self.C[:, arm] / np.sqrt(self.C[arm, arm] + self.lam)
        self.mu = self.mu + g * (surprise / np.sqrt(self.C[arm, arm] + self.lam))
        self.C = self.C - g[:, None] * g

    def _recompute(self) -> None:
        """Equations (2) and (3) from the counts: K (I + N K / lam)⁻¹, N the diagonal of counts."""
        B = np.eye(len(self._K)) + self._counts[:, None] * self._K / self.lam
        C = np.linalg.solve(B.T, self._K).T
        self.C = np.asarray((C + C.T) / 2, dtype=float)
        self.mu = self.C @ self._sums / self.lam

    def predict(self, Z: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the arms numbered Z[:, 0]."""
        arms = Z[:, 0].astype(np.int64)
        return self.mu[arms], np.sqrt(np.maximum(self.C[arms, arms], 0.0))

    def imagining(self, Z: Array) -> Self:
        """A copy that has also been told its own mean."""
        other = copy(self)
        other._counts, other._sums = self._counts.copy(), self._sums.copy()
        for z in Z:
            other.tell(z, float(other.mu[int(z[0])]))
        return other


class MixedPosterior:
    """Several models of the same arms, weighed by how well each foretold what was observed.

    Args:
        models: Posteriors that have learnt nothing; equally likely at first.
        lam: Noise variance, > 0.

    Raises:
        ValueError: If there is no model.
    """

    def __init__(self, models: Sequence[RewardPosterior], lam: float) -> None:
        if not models:
            raise ValueError("A mixture needs at least one model.")
        self._models, self.lam = tuple(models), lam
        self._v = np.zeros(len(self._models))

    @property
    def weights(self) -> Array:
        """p: each model's probability given all observations, shape (models,)."""
        p = np.exp(self._v - self._v.max())
        return np.asarray(p / p.sum())

    def tell(self, z: Array, y: float) -> None:
        """Learns one observation, and which of the models expected it."""
        for i, model in enumerate(self._models):
            mu, sigma = model.predict(z[None])
            variance = float(sigma[0]) ** 2 + self.lam
            self._v[i] -= (math.log(variance) + (y - float(mu[0])) ** 2 / variance) / 2
            model.tell(z, y)

    def predict(self, Z: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the mixture at points (n, p)."""
        found = [model.predict(Z) for model in self._models]
        means, sds = np.array([mu for mu, _ in found]), np.array([sd for _, sd in found])
        mean = self.weights @ means
        spread = self.weights @ (sds**2 + (means - mean) ** 2)
        return np.asarray(mean), np.sqrt(spread)

    def imagining(self, Z: Array) -> Self:
        """A copy whose models have been told their own means; their weights stay."""
        other = copy(self)
        other._models, other._v = tuple(m.imagining(Z) for m in self._models), self._v.copy()
        return other


class FeaturePosterior:
    """Posterior over a continuum through features that grow with the data.

    Args:
        k: Covariance function, stationary: k(z, z) is the same everywhere.
        lam: Noise variance, > 0.
    """

    def __init__(self, k: Covariance, lam: float) -> None:
        self._k, self.lam = k, lam
        self._features = GrowingFeatures(k)
        self._Z: list[Array] = []
        self._y: list[float] = []
        self.A: Array = np.empty((0, 0))
        self.w: Array = np.empty(0)

    def tell(self, z: Array, y: float) -> None:
        """Learns one observation at a point (p,)."""
        self._Z.append(z)
        self._y.append(y)
        if self._features.grow(z) or len(self._y) % _REFRESH == 0:
            self._recompute()
        else:
            phi = self._features.features(z[None])[0]
            self._update(phi, y - float(phi @ self.w))

    def _recompute(self) -> None:
        Phi = self._features.features(np.array(self._Z))
        precision = Phi.T @ Phi / self.lam + np.eye(self._features.m)
        A = np.linalg.inv(precision)
        self.A = np.asarray((A + A.T) / 2, dtype=float)
        self.w = self.A @ (Phi.T @ np.array(self._y)) / self.lam

    def _update(self, phi: Array, surprise: float) -> None:
        g = self.A @ phi
        scale = float(phi @ g) + self.lam
        self.w = self.w + g * (surprise / scale)
        self.A = self.A - g[:, None] * (g / scale)

    def predict(self, Z: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at points (n, p); what is not spanned keeps its prior."""
        Phi = self._features.features(Z)
        prior = 1.0 if len(Z) == 0 else float(self._k(Z[:1], Z[:1])[0, 0])
        explained = np.einsum("ij,ij->i", Phi, Phi) - np.einsum("ij,ij->i", Phi @ self.A, Phi)
        return Phi @ self.w, np.sqrt(np.maximum(prior - explained, 0.0))

    def imagining(self, Z: Array) -> Self:
        """A copy that has also been told its own mean."""
        other = copy(self)
        other._features, other._Z, other._y = copy(self._features), [*self._Z], [*self._y]
        for z in Z:
            other.tell(z, float(other.predict(z[None])[0][0]))
        return other
