"""ATA-GP-UCB and LDP-ATA-GP-UCB: truncation in the space of Nyström features (Algorithm 1).

Notation:

    ======  ==================================================================  =========
    symbol  meaning                                                             shape
    ======  ==================================================================  =========
    phi     Nyström features of a point                                         (m,)
    Phi     features of the distinct points evaluated (played, in the paper)    (n, m)
    V       Phiᵀ N Phi + lambda I, N the counts of the points                   (m, m)
    U       V^{-1/2} Phiᵀ, rows u_i; equal for all evaluations of a point       (m, n)
    b       truncation point sqrt(v / ln(...))                                  scalar
    r       r_i = sum over evaluations of u_i y where |u_i y| <= b              (m,)
    theta   V^{-1/2} r                                                          (m,)
    ======  ==================================================================  =========

Line 10 of the algorithm prints the indicator with b_tau; all past rewards are truncated anew each
round with the current b_t, as in Chowdhury and Gopalan 2019 (and in Theorem 2, whose b_t holds
the current m_t). Line 6, a new embedding each round, is followed with ``dictionary="paper"``; by
default beyond 32 distinct points it is drawn less often.
"""

from __future__ import annotations

import bisect
import math

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.config import FAILURE
from privbo_plugins.algorithms.ldp_gp_ucb.nystrom_ucb import NystromUCB
from privbo_plugins.algorithms.protocols import Evaluation

Array = NDArray[np.float64]


class TruncatedSums:
    """Sums of one point's rewards, of those that are not larger than a threshold.

    Rewards are kept sorted by size with their running sums, so a threshold costs O(log n).
    """

    def __init__(self) -> None:
        self._sizes: list[float] = []
        self._rewards: list[float] = []
        self._running: Array | None = None
        self.total, self.largest = 0.0, 0.0

    def add(self, y: float) -> None:
        """One more reward."""
        place = bisect.bisect(self._sizes, abs(y))
        self._sizes.insert(place, abs(y))
        self._rewards.insert(place, y)
        self.total += y
        self.largest = self._sizes[-1]
        self._running = None

    def up_to(self, thresholds: Array) -> Array:
        """Sums of the rewards with ``|y| <= threshold``, shape of ``thresholds``."""
        if self._running is None:
            self._running = np.concatenate([[0.0], np.cumsum(self._rewards)])
        return self._running[np.searchsorted(self._sizes, thresholds, side="right")]


class ATAGPUCB(NystromUCB):
    """Truncates all rewards anew, in every feature, after each evaluation."""

    name = "ata-gp-ucb"

    def _begin(self) -> None:
        super()._begin()
        self._sums: list[TruncatedSums] = []

    def _log(self) -> float:
        """The logarithm in b and beta: ln(4 m T / delta), order-wise ln((m + 1) T)."""
        c = self.config
        if c.constants == "theorem":
            return math.log(4 * max(self.m, 1) * c.T / FAILURE)
        return math.log((self.m + 1) * c.T)

    @property
    def b(self) -> float:
        """Truncation point (Theorem 2; for moments 1 + alpha, Chowdhury and Gopalan, Thm 4)."""
        c = self.config
        growth = max(self.t, 1) ** ((1 - c.alpha) / (2 * (1 + c.alpha)))
        return float((c.v / self._log()) ** (1 / (1 + c.alpha)) * growth)

    @property
    def beta(self) -> float:
        """Width (Theorem 2; order-wise B + sqrt(m v L) for alpha = 1)."""
        c = self.config
        growth = max(self.t, 1) ** ((1 - c.alpha) / (2 * (1 + c.alpha)))
        spread = c.v ** (1 / (1 + c.alpha)) * self._log() ** (c.alpha / (1 + c.alpha)) * growth
        noise = math.sqrt(self.m) * spread
        if c.constants == "theorem":
            bias = c.norm * (1 + 1 / math.sqrt(1 - c.accuracy))
            return float(c.beta_scale * (bias + 4 * noise / math.sqrt(c.lam)))
        return float(c.beta_scale * (c.norm + noise))

    def _take(self, evaluation: Evaluation, z: Array, reward: float) -> None:
        number = self._count(z)
        if number == len(self._sums):
            self._sums.append(TruncatedSums())
        self._sums[number].add(reward)
        self._follow()

    def _weights(self) -> Array:
        values, vectors = scipy.linalg.eigh(self._V)
        root = (vectors / np.sqrt(values)) @ vectors.T  # V^{-1/2}
        return np.asarray(root @ self._truncated(root))  # line 11

    def _truncated(self, root: Array) -> Array:
        """R (line 10): most points have no reward large enough to be cut in any feature.

        No |u_i| of a point exceeds the leverage |V^{-1/2} phi| that it had when it was added,
        because V only grows; so only points whose largest reward might be cut are looked at.
        """
        totals = np.array([s.total for s in self._sums])
        largest = np.array([s.largest for s in self._sums])
        r, b = root @ (self._Phi.T @ totals), self.b
        suspects = np.flatnonzero(self._leverage * largest > b)
        U = root @ self._Phi[suspects].T  # line 9
        size = np.maximum(np.abs(U), 1e-300)
        for column in np.flatnonzero(size.max(0, initial=0.0) * largest[suspects] > b):
            number = suspects[column]
            kept = self._sums[number].up_to(b / size[:, column])
            r += U[:, column] * (kept - totals[number])
        return np.asarray(r)
