"""MoMA-GP-UCB and LDP-MoMA-GP-UCB: median of means over k replays (Algorithm 3).

Notation:

    ======  ==================================================================  =========
    symbol  meaning                                                             shape
    ======  ==================================================================  =========
    k       evaluations (plays in the paper) of one point in an epoch           integer
    n       epochs that are complete                                            integer
    phi     Nyström features of a point                                         (m,)
    V       sum of phi phiᵀ over the epochs + lambda I                          (m, m)
    S       sums of the j-th rewards of every distinct point                    (points, k)
    Theta   V⁻¹ Phiᵀ S: one least-squares estimate a column                     (m, k)
    r_j     median distance of estimate j to the others in the norm of V        (k,)
    c       bound on the (1 + alpha)th moment of the noise                      scalar
    ======  ==================================================================  =========

The replays of an epoch may run in parallel. What fails is replayed; what comes beyond k, because
several workers asked at once, is not used. Line 7, a new embedding each epoch, is followed with
``dictionary="paper"``; by default beyond 32 distinct points it is drawn less often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.nystrom_ucb import NystromUCB
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.algorithms.search import place

Array = NDArray[np.float64]
Group = tuple[int, bytes]


class MoMAGPUCB(NystromUCB):
    """Evaluates each point k times and takes the estimate closest to most of the others."""

    name = "moma-gp-ucb"

    def _begin(self) -> None:
        super()._begin()
        self.k = self.config.k
        self.n = 0
        self._open: dict[Group, tuple[Array, list[float]]] = {}  # point and rewards
        self._S: list[Array] = []

    @property
    def gamma(self) -> float:
        """(9 m c)^{1/(1+alpha)} n^{(1-alpha)/(2(1+alpha))} (Lemma 10; order-wise without 9)."""
        c, n = self.config, max(self.n, 1)
        factor = 9 if c.constants == "theorem" else 1
        growth = n ** ((1 - c.alpha) / (2 * (1 + c.alpha)))
        return float((factor * self.m * c.c) ** (1 / (1 + c.alpha)) * growth)

    @property
    def beta(self) -> float:
        """Width of the next epoch (eq. 9; order-wise B + gamma)."""
        c = self.config
        if c.constants == "theorem":
            bias = c.norm * (1 + 1 / math.sqrt(1 - c.accuracy))
            return c.beta_scale * (bias + 3 * self.gamma / math.sqrt(c.lam))
        return c.beta_scale * (c.norm + self.gamma)

    def ask(
        self, key: int, pending: Sequence[Evaluation] = (), *, may_wait: bool = False
    ) -> Evaluation | None:
        """Another replay of an epoch that is not complete, or the point of the next epoch."""
        out = [evaluation for evaluation in pending if evaluation.epoch == self.n]
        group = self._current(out)
        if group is None:
            return Evaluation(self._maximiser(key, ()), self.n)
        if may_wait and self._held(group, out) >= self.k:
            return None
        points = [self._open[group][0]] if group in self._open else []
        points += [evaluation.x for evaluation in out if _group(evaluation) == group]
        return Evaluation(points[0], group[0])

    def _current(self, out: Sequence[Evaluation]) -> Group | None:
        """The open epoch; several workers may have started it at different points."""
        groups = {_group(evaluation): None for evaluation in out}
        groups |= {group: None for group in self._open if group[0] == self.n}
        return max(groups, key=lambda group: self._held(group, out), default=None)

    def _held(self, group: Group, out: Sequence[Evaluation]) -> int:
        """Rewards that an epoch has or is waiting for."""
        told = len(self._open[group][1]) if group in self._open else 0
        return told + sum(_group(evaluation) == group for evaluation in out)

    def _take(self, evaluation: Evaluation, z: Array, reward: float) -> None:
        """Line 6; an epoch is taken in when its k rewards are there."""
        if evaluation.epoch is None or evaluation.epoch < self.n:
            return
        _, rewards = self._open.setdefault(_group(evaluation), (evaluation.x, []))
        rewards.append(reward)
        if len(rewards) < self.k:
            return
        number = self._count(z)
        if number == len(self._S):
            self._S.append(np.zeros(self.k))
        self._S[number] = self._S[number] + rewards
        self._open.clear()
        self.n += 1
        self._follow()

    def _weights(self) -> Array:
        S = np.array(self._S)
        Theta = np.asarray(np.linalg.solve(self._V, self._Phi.T @ S), dtype=float)  # line 10
        return np.asarray(Theta[:, median_of_means(Theta, self._V)])


def median_of_means(Theta: Array, V: Array) -> int:
    """k*: the estimate with the smallest median distance to the others (lines 11 and 12).

    Args:
        Theta: One estimate a column, shape (m, k).
        V: The norm, shape (m, m).

    Returns:
        The column's number.

    Example:
        >>> median_of_means(np.array([[0.0, 0.1, 9.0]]), np.eye(1))
        1
    """
    k = Theta.shape[1]
    if k == 1:
        return 0
    W = np.linalg.cholesky(V).T @ Theta
    distances = np.linalg.norm(W[:, :, None] - W[:, None, :], axis=0)
    others = distances[~np.eye(k, dtype=bool)].reshape(k, k - 1)
    return int(np.argmin(np.median(others, axis=1)))


def _group(evaluation: Evaluation) -> Group:
    epoch = -1 if evaluation.epoch is None else evaluation.epoch
    return epoch, place(evaluation.x)
