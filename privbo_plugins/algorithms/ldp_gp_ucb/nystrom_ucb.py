"""The base of ATA and MoMA: a Nyström embedding that follows the data (Algorithm 4)."""

from __future__ import annotations

import abc

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.ucb import Predictor, RewardUCB
from privbo_plugins.algorithms.search import place
from privbo_plugins.models.nystrom import NystromEmbedding, sampled

Array = NDArray[np.float64]

_EVERY = 32
"""Up to so many distinct points the dictionary is drawn after each evaluation, as published.
Beyond, ``dictionary="tenth"`` draws it each time their number has grown by a tenth, which keeps an
evaluation affordable. The theorems do not cover that: what the dictionary does not span keeps its
prior variance."""


class NystromUCB(RewardUCB):
    """UCB on the posterior of a linear model over Nyström features.

    Points that are evaluated again are one row: Z holds the distinct ones, N how often each was
    evaluated, in the order of their first evaluation.
    """

    def _begin(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._Z: Array = np.empty((0, 0))
        self._N: Array = np.empty(0)
        self._coins = self.seed
        self._drawn: Array = np.empty((0, 0))
        self._drawn_at = 0
        self._stale = False
        self._theta: Array = np.empty(0)
        self._embed(np.empty((0, 0)), np.empty(0))

    @property
    def m(self) -> int:
        """Dimension of the embedding."""
        return self._embedding.m

    @abc.abstractmethod
    def _weights(self) -> Array:
        """Theta from the features Phi of the distinct points and V."""

    def _count(self, z: Array) -> int:
        """Counts one evaluation and returns the point's number."""
        number = self._numbers.setdefault(place(z), len(self._N))
        if number == len(self._N):
            self._Z = np.vstack([self._Z, z]) if number else z[None]
            self._N = np.append(self._N, 0.0)
        self._N[number] += 1.0
        return number

    def _follow(self) -> None:
        """Lines 6 to 8, after every evaluation: reading must not change what is learnt."""
        n = len(self._N)
        always = self.config.dictionary == "paper" or n <= _EVERY
        if always or n >= 1.1 * self._drawn_at:
            self._draw()
            self._drawn_at = n
        self._extend()
        self._stale = True

    def _draw(self) -> None:
        """Algorithm 4, with the variances of the round before."""
        phi = self._embedding.features(self._Z)
        s2 = self._sigma(self._Z, phi, _inverse(self._V)) ** 2
        rng = np.random.default_rng([self._coins, 3, self.t])
        D = self._Z[sampled(self.config.q, s2, self._N, rng)]
        if not np.array_equal(D, self._drawn):
            self._drawn = D
            self._embed(D, self.domain.prior(D))

    def _embed(self, D: Array, prior: Array) -> None:
        """Starts anew with another dictionary."""
        self._embedding = NystromEmbedding(self.domain.k, D, prior)
        self._Phi: Array = np.empty((0, self.m))  # features of the distinct points, (n, m)
        self._leverage: Array = np.empty(0)
        self._V: Array = self.config.lam * np.eye(self.m)
        self._counted: Array = np.empty(0)

    def _extend(self) -> None:
        """Adds to Phi and V what was evaluated since the last time."""
        first, n = len(self._counted), len(self._N)
        self._Phi = np.vstack([self._Phi, self._embedding.features(self._Z[first:])])
        new = self._N - np.append(self._counted, np.zeros(n - first))
        evaluated = np.flatnonzero(new)
        Phi = self._Phi[evaluated]
        self._V = self._V + (Phi.T * new[evaluated]) @ Phi
        if n > first:
            leverage = _form(self._Phi[first:], _inverse(self._V))
            self._leverage = np.append(self._leverage, np.sqrt(np.maximum(leverage, 0.0)))
        self._counted = self._N.copy()

    def _sigma(self, Z: Array, phi: Array, A: Array) -> Array:
        """Line 13: what the embedding does not span keeps its prior variance."""
        left = self.domain.prior(Z) - np.einsum("ij,ij->i", phi, phi)
        variance = left + self.config.lam * _form(phi, A)
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def _predictor(self, pending: Array) -> Predictor:
        """Lines 9 to 11, when they are asked for."""
        if self._stale:
            self._stale = False
            self._theta = self._weights()
        seen = self._embedding.features(pending)
        A = _inverse(self._V + seen.T @ seen)

        def predict(Z: Array) -> tuple[Array, Array]:
            phi = self._embedding.features(Z)
            return phi @ self._theta, self._sigma(Z, phi, A)  # lines 12 and 13

        return predict


def _inverse(V: Array) -> Array:
    return np.asarray(np.linalg.inv(V), dtype=float)


def _form(Phi: Array, A: Array) -> Array:
    """phiᵀ A phi of each row."""
    return np.asarray(np.einsum("ij,ij->i", Phi @ A, Phi))
