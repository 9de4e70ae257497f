"""What ATA and MoMA share: a Nyström embedding that follows the data (Algorithm 4)."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.ldp_gp_ucb.rewards import Distinct
from privbo_plugins.algorithms.ldp_gp_ucb.ucb import RewardUCB
from privbo_plugins.models.nystrom import NystromEmbedding, sampled
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_EVERY = 32
"""Up to so many distinct points the dictionary is drawn after each play, as published; beyond,
each time their number has grown by a tenth, which changes the posterior by no more than the
embedding's accuracy and keeps a play on a box affordable."""


class NystromUCB(RewardUCB):
    """UCB on the posterior of a linear model over Nyström features."""

    def __init__(
        self, config: UCBConfig, space: Space, *, maximize: bool = True, seed: int = 0
    ) -> None:
        super().__init__(config, space, maximize=maximize, seed=seed)
        self.distinct = Distinct()
        self._rng = np.random.default_rng([seed, 3])
        self._embedding = NystromEmbedding(self.domain.k, np.empty((0, 0)), np.empty(0))
        self._theta: Array = np.empty(0)
        self._V: Array = np.empty((0, 0))
        self._Phi: Array = np.empty((0, 0))
        self._drawn: Array = np.empty((0, 0))
        self._drawn_at = 0
        self._stale = False

    @property
    def m(self) -> int:
        """Dimension of the embedding."""
        return self._embedding.m

    @property
    @abc.abstractmethod
    def beta(self) -> float:
        """Width of the confidence interval of the next play."""

    @abc.abstractmethod
    def _weights(self, Phi: Array, V: Array) -> Array:
        """Theta from features of the distinct points and V."""

    def _fit(self) -> None:
        """Lines 6 to 12: embedding, V and theta from all plays; once for all that is new."""
        if not self._stale:
            return
        self._stale = False
        n = len(self.distinct)
        if n <= _EVERY or n >= 1.1 * self._drawn_at:
            self._draw()
            self._drawn_at = n
        if len(self._Phi) != n:
            new = self._embedding.features(self.distinct.Z[len(self._Phi) :])
            self._Phi = np.vstack([self._Phi, new]) if len(self._Phi) else new
        Phi = self._Phi
        self._V = (Phi.T * self.distinct.counts) @ Phi + self.config.lam * np.eye(self.m)
        self._theta = self._weights(Phi, self._V)

    def _draw(self) -> None:
        """Algorithm 4, with the variances of the round before."""
        Z: Array = self.distinct.Z
        s2 = self._sigma(Z, np.empty((0, Z.shape[1]))) ** 2
        kept = sampled(self.config.q, s2, self.distinct.counts, self._rng)
        D = np.asarray(Z[kept])
        if not np.array_equal(D, self._drawn):
            self._drawn = D
            self._embedding = NystromEmbedding(self.domain.k, D, self.domain.prior(D))
            self._Phi = np.empty((0, 0))

    def _sigma(self, Z: Array, pending: Array) -> Array:
        """Line 13: what the embedding does not span keeps its prior variance."""
        prior = self.domain.prior(Z)
        if self._V.shape != (self.m, self.m) or self.m == 0:
            return np.asarray(np.sqrt(prior))
        phi, seen = self._embedding.features(Z), self._embedding.features(pending)
        V = self._V + seen.T @ seen
        explained = np.einsum("ij,ij->i", phi, phi)
        left = np.einsum("ij,ij->i", phi, np.linalg.solve(V, phi.T).T)
        return np.asarray(np.sqrt(np.maximum(prior - explained + self.config.lam * left, 0.0)))

    def _score(self, pending: Array) -> Any:
        self._fit()
        beta = self.beta

        def ucb(Z: Array) -> Array:
            return np.asarray(self.mean(Z) + beta * self._sigma(Z, pending))

        return ucb

    def mean(self, Z: Array) -> Array:
        """Line 12: phi(x)ᵀ theta, in reward units."""
        self._fit()
        return np.asarray(self._embedding.features(Z) @ self._theta)
