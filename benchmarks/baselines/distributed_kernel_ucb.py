"""GP-UCB by N agents: on their own, sharing every evaluation, or a Nyström summary of them.

Notation, with the equations of DUETS (Pavlovic, Salgia and Zhao 2024, section 2), which carry the
noise variance once; Li, Wang, Wang and Wang 2022, whose algorithms these are, divide sigma² by
lambda, and where one of their thresholds or probabilities needs that, the division is written out:

    ========  ===========================================================  ==========
    symbol    meaning                                                      shape
    ========  ===========================================================  ==========
    N, d      number of agents, dimension of a point
    U         candidates, known to all                                     (M, d)
    lam       lambda of eq. 3, the variance of the noise                   scalar
    mu, s2    posterior mean and variance of an agent, eq. 3 and 4         (M,), (M,)
    S         covariance of the candidates, given what all agents know     (M, M)
    J         an agent's evaluations since the last synchronisation        (n,)
    P         (S_JJ + lam I)⁻¹                                             (n, n)
    c, b      number of evaluations of each candidate, sum of their rewards      (M,), (M,)
    D         threshold of the event trigger                               scalar
    Z         features K_SS^{-1/2} k_S(U) of the dictionary, eq. 5         (M, m)
    V         lam I + Zᵀ diag(c) Z, eq. 5                                  (m, m)
    ========  ===========================================================  ==========

What all agents know is kept once, as mu and S; an agent adds its evaluations since the last
synchronisation by rank-one updates. Posteriors are exact at the cost of M² numbers of memory:
meant for some thousand candidates.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.messages import Communication
from privbo_plugins.models.kernels import Kernel
from privbo_plugins.models.nystrom import NystromEmbedding

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class _Known:
    """What every agent knows since the last synchronisation.

    ``rest`` is the variance outside the span of the dictionary, which no evaluation reduces (eq.
    6); zero where there is no dictionary.
    """

    mu: Array
    S: Array
    rest: Array


class _Agent:
    """One agent: what all know, and its own evaluations since then."""

    def __init__(self, known: _Known, lam: float) -> None:
        self._known, self._lam = known, lam
        self.mu = known.mu.copy()
        self._s2 = np.diag(known.S).copy()
        self.J: list[int] = []
        self.y: list[float] = []
        self.log_det = 0.0
        self._P: Array = np.empty((0, 0))
        self._rows: dict[int, int] = {}  # the distinct candidates among J, numbered
        self._at: list[int] = []

    @property
    def s2(self) -> Array:
        """Posterior variances, shape (M,)."""
        return np.asarray(np.maximum(self._s2, 0.0) + self._known.rest)

    def tell(self, i: int, y: float) -> None:
        """Takes the reward y of candidate i (rank-one update of eq. 3 and 4)."""
        S = self._known.S
        w = self._P @ S[i, self.J]
        v = S[i] - self._combined(w)  # posterior covariance of i with all candidates
        gain = max(float(v[i]), 0.0) + self._lam
        # log det(I + K/lam) grows by log(1 + s2/lam), s2 the variance before the evaluation.
        self.log_det += math.log(gain / self._lam)
        self.mu += v * ((y - self.mu[i]) / gain)
        self._s2 -= v * v / gain
        self._P = _bordered(self._P, w, gain)
        self._at.append(self._rows.setdefault(i, len(self._rows)))
        self.J.append(i)
        self.y.append(y)

    def _combined(self, w: Array) -> Array:
        """``w @ S[J]``; agents repeat themselves, so each distinct row is read once."""
        weights = np.bincount(self._at, w, len(self._rows)) if self.J else w
        return np.asarray(weights @ self._known.S[list(self._rows)])


def _bordered(P: Array, w: Array, gain: float) -> Array:
    """The inverse of a matrix bordered by one row, from its inverse P, shape (n + 1, n + 1)."""
    n = len(P)
    grown = np.empty((n + 1, n + 1))
    grown[:n, :n] = P + np.outer(w, w / gain)
    grown[n, :n] = grown[:n, n] = -w / gain
    grown[n, n] = 1.0 / gain
    return grown


def _checked(U: Array, n_agents: int, beta: float, lam: float) -> Array:
    """The candidates; raises ValueError as the classes document."""
    U = np.array(U, dtype=float) + 0.0  # -0.0 is 0.0, so that equal points have equal bytes
    if U.ndim != 2 or U.size == 0 or not np.isfinite(U).all():
        raise ValueError(f"U must be finite, of shape (M, d), got shape {U.shape}; reshape it.")
    if n_agents < 1:
        raise ValueError(f"n_agents must be at least 1, got {n_agents}; one agent works alone.")
    if not (math.isfinite(beta) and beta >= 0):
        raise ValueError(f"beta must be finite and >= 0, got {beta}; the paper tries .2 to 5.")
    if not (math.isfinite(lam) and lam > 0):
        raise ValueError(f"lam must be finite and > 0, got {lam}; give the noise variance.")
    return U


class _KernelUCB(abc.ABC):
    """What the three have in common: N agents, each a GP-UCB over the same candidates."""

    def __init__(
        self,
        kernel: Kernel,
        U: Array,
        n_agents: int,
        *,
        beta: float,
        lam: float,
        rng: np.random.Generator,
    ) -> None:
        self._U = _checked(U, n_agents, beta, lam)
        self._kernel, self._beta, self._lam, self._rng = kernel, beta, lam, rng
        # Equal candidates are one candidate.
        self._number = {x.tobytes(): i for i, x in reversed(list(enumerate(self._U)))}
        self.communication = Communication(n_agents)
        self._share(self._prior())

    @abc.abstractmethod
    def _prior(self) -> _Known:
        """What agents know before any evaluation."""

    @abc.abstractmethod
    def end_round(self) -> None:
        """To be called when all agents have evaluated a time step."""

    @property
    def d(self) -> int:
        """Dimension of a point."""
        return int(self._U.shape[1])

    def ask(self, agent: int) -> Array:
        """The candidate of largest mu + beta sigma; ties are settled at random.

        Args:
            agent: 0 to N - 1.

        Returns:
            Shape (d,).

        Raises:
            ValueError: If there is no such agent.
        """
        mu, s2 = self.posterior(agent)
        ucb = mu + self._beta * np.sqrt(s2)
        best = np.flatnonzero(ucb == ucb.max())
        return np.array(self._U[self._rng.choice(best)])

    def tell(self, agent: int, x: Array, y: float) -> None:
        """Gives an agent the reward of its evaluation.

        Args:
            agent: 0 to N - 1.
            x: One of the candidates, shape (d,).
            y: Its reward, finite; larger is better.

        Raises:
            ValueError: If there is no such agent, x is no candidate or y is not finite.
        """
        i = self._number.get((np.asarray(x, dtype=float) + 0.0).tobytes())
        if i is None:
            raise ValueError(f"x must be one of the candidates, got {x}; tell what ask gave.")
        if not math.isfinite(y):
            raise ValueError(f"y must be finite, got {y}; leave out failed evaluations.")
        self._of(agent).tell(i, float(y))
        self._record(agent, i, float(y))

    def posterior(self, agent: int) -> tuple[Array, Array]:
        """Mean and variance of f at the candidates given what the agent knows (eq. 3 and 4).

        Args:
            agent: 0 to N - 1.

        Returns:
            mu and s2, both of shape (M,).

        Raises:
            ValueError: If there is no such agent.
        """
        known = self._of(agent)
        return known.mu.copy(), known.s2

    def _of(self, agent: int) -> _Agent:
        if not 0 <= agent < len(self._agents):
            raise ValueError(
                f"agent must be in 0 to {len(self._agents) - 1}, got {agent}; count from 0."
            )
        return self._agents[agent]

    @abc.abstractmethod
    def _record(self, agent: int, i: int, y: float) -> None:
        """Keeps what a synchronisation will need of an evaluation."""

    def _share(self, known: _Known) -> None:
        """All agents start afresh from what all of them know."""
        self._known = known
        self._agents = [_Agent(known, self._lam) for _ in range(self.communication.n_agents)]

    def _exact_prior(self) -> _Known:
        M = len(self._U)
        return _Known(np.zeros(M), self._kernel.k(self._U, self._U), np.zeros(M))


class NKernelUCB(_KernelUCB):
    """N agents on their own: GP-UCB each, and nothing is sent.

    Args:
        kernel: Prior covariance.
        U: Candidates, finite, shape (M, d); equal rows are one candidate.
        n_agents: N, at least 1.
        beta: Width of the confidence bound mu + beta sigma, >= 0, sigma as in eq. 4.
        lam: Variance of the noise, > 0 (lambda of eq. 3).
        rng: Settles ties, such as the first evaluation.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> from privbo_plugins.models.kernels import RBF
        >>> U = np.linspace(0.0, 1.0, 11)[:, None]
        >>> team = NKernelUCB(RBF(0.2), U, 2, beta=1.0, lam=0.01, rng=np.random.default_rng(0))
        >>> for _ in range(20):
        ...     for agent in range(2):
        ...         x = team.ask(agent)
        ...         team.tell(agent, x, -abs(float(x[0]) - 0.3))
        ...     team.end_round()
        >>> team.ask(0).round(1), team.communication.per_agent
        (array([0.3]), 0.0)
    """

    def end_round(self) -> None:
        """Nothing: nobody hears of the others."""

    def _prior(self) -> _Known:
        return self._exact_prior()

    def _record(self, agent: int, i: int, y: float) -> None:
        """Nothing is kept for others."""


class _Triggered(_KernelUCB):
    """Agents that synchronise when a function of one agent's new evaluations exceeds D."""

    def __init__(
        self,
        kernel: Kernel,
        U: Array,
        n_agents: int,
        *,
        beta: float,
        lam: float,
        D: float,
        rng: np.random.Generator,
    ) -> None:
        if not D >= 0:
            raise ValueError(f"D must be >= 0, got {D}; math.inf never synchronises.")
        super().__init__(kernel, U, n_agents, beta=beta, lam=lam, rng=rng)
        self._D = D
        self.n_synchronisations = 0

    @abc.abstractmethod
    def trigger(self, agent: int) -> float:
        """What is compared with D."""

    @abc.abstractmethod
    def _synchronise(self) -> None:
        """Uploads, aggregation, broadcast; counts them."""

    def end_round(self) -> None:
        """Synchronises all agents if the trigger of any exceeds D.

        To be called when all agents have evaluated a time step.
        """
        if any(self.trigger(n) > self._D for n in range(len(self._agents))):
            self._synchronise()
            self.n_synchronisations += 1


class DisKernelUCB(_Triggered):
    """Agents that share all evaluations whenever one has learnt enough (Li et al. 2022, Alg. 1).

    Agent n asks for a synchronisation when

        (t - t_last) log[ det(I + K_t / lam) / det(I + K_last / lam) ] > D,

    K_t the kernel matrix of all evaluations the agent knows, K_last of those it knew after the
    last synchronisation, t - t_last the number of its own since. Every agent then uploads its new
    evaluations, d + 1 real numbers each (the point and the reward), and the server broadcasts all
    new evaluations, again d + 1 each: each evaluation goes up once and down once. An agent's own
    evaluations are in the broadcast too, since one broadcast serves all.

    Args:
        kernel: Prior covariance.
        U: Candidates, finite, shape (M, d); equal rows are one candidate.
        n_agents: N, at least 1.
        beta: Width of the confidence bound mu + beta sigma, >= 0, sigma as in eq. 4.
        lam: Variance of the noise, > 0 (lambda of eq. 3).
        D: Threshold, >= 0; 0 synchronises in every round, ``math.inf`` never.
        rng: Settles ties, such as the first evaluation.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> from privbo_plugins.models.kernels import RBF
        >>> U = np.linspace(0.0, 1.0, 11)[:, None]
        >>> rng = np.random.default_rng(0)
        >>> team = DisKernelUCB(RBF(0.2), U, 2, beta=1.0, lam=0.01, D=0.0, rng=rng)
        >>> for agent in range(2):
        ...     team.tell(agent, team.ask(agent), 1.0)
        >>> team.end_round()  # two numbers up from each agent, four down
        >>> team.communication.up, team.communication.down
        (4, 4)
    """

    def trigger(self, agent: int) -> float:
        """The left-hand side of the event, >= 0.

        Args:
            agent: 0 to N - 1.

        Raises:
            ValueError: If there is no such agent.
        """
        of = self._of(agent)
        return len(of.J) * of.log_det

    def _prior(self) -> _Known:
        return self._exact_prior()

    def _record(self, agent: int, i: int, y: float) -> None:
        """The agent has its new evaluations already."""

    def _synchronise(self) -> None:
        J = np.array([i for of in self._agents for i in of.J])
        y = np.array([value for of in self._agents for value in of.y])
        self.communication.up += len(J) * (self.d + 1)
        self.communication.down += len(J) * (self.d + 1)
        self._share(_conditioned(self._known, J, y, self._lam))


def _conditioned(known: _Known, J: IntArray, y: Array, lam: float) -> _Known:
    """Eq. 3 and 4 on top of ``known``; c evaluations of a candidate: one of variance lam / c."""
    rows, at, c = np.unique(J, return_inverse=True, return_counts=True)
    mean = np.bincount(at, y) / c
    S = known.S
    L = scipy.linalg.cholesky(S[np.ix_(rows, rows)] + np.diag(lam / c), lower=True)
    X = scipy.linalg.solve_triangular(L, S[rows], lower=True)
    innovation = scipy.linalg.solve_triangular(L, mean - known.mu[rows], lower=True)
    return _Known(known.mu + X.T @ innovation, S - X.T @ X, known.rest)


class ApproxDisKernelUCB(_Triggered):
    """Agents that share a Nyström summary of their evaluations (Li et al. 2022, Alg. 2).

    Agent n asks for a synchronisation when the sum over its evaluations since the last one of
    s2_last(x) / lam exceeds D, s2_last the variance everyone had right after the last. Then

    1. every agent keeps each of *all* its evaluations so far with probability
       min(1, q s2_last / lam) and uploads the distinct points it kept: d real numbers each;
    2. the server broadcasts their union, the dictionary: m d numbers (it leaves out points that
       lie numerically in the span of the others, so m is the number of features);
    3. every agent uploads ZᵀZ, which is symmetric, and ZᵀY of all its evaluations so far in the
       new features: m (m + 1) / 2 + m numbers;
    4. the server broadcasts the two sums: m (m + 1) / 2 + m numbers.

    Nothing else is sent. A point that is in the dictionary again is sent again, as a dictionary
    is drawn afresh each time. Until the first synchronisation the dictionary is empty: agents
    have the prior and evaluate at random. Posteriors are those of eq. 5 and 6.

    Args:
        kernel: Prior covariance.
        U: Candidates, finite, shape (M, d); equal rows are one candidate.
        n_agents: N, at least 1.
        beta: Width of the confidence bound mu + beta sigma, >= 0, sigma as in eq. 4.
        lam: Variance of the noise, > 0 (lambda of eq. 3).
        D: Threshold, >= 0; ``math.inf`` never synchronises: agents evaluate at random.
        q: Oversampling of the dictionary, finite, > 0.
        rng: Settles ties and draws the dictionary.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> from privbo_plugins.models.kernels import RBF
        >>> U = np.linspace(0.0, 1.0, 11)[:, None]
        >>> rng = np.random.default_rng(0)
        >>> team = ApproxDisKernelUCB(RBF(0.2), U, 2, beta=1.0, lam=0.01, D=1.0, q=2.0, rng=rng)
        >>> for agent, x in enumerate(U[[2, 7]]):
        ...     team.tell(agent, x, 1.0)
        >>> team.end_round()  # a point each and 3 + 2 statistics of m = 2 features
        >>> team.communication.up, team.communication.down
        (12, 7)
    """

    def __init__(
        self,
        kernel: Kernel,
        U: Array,
        n_agents: int,
        *,
        beta: float,
        lam: float,
        D: float,
        q: float,
        rng: np.random.Generator,
    ) -> None:
        if not (math.isfinite(q) and q > 0):
            raise ValueError(f"q must be finite and > 0, got {q}; a large q keeps all points.")
        super().__init__(kernel, U, n_agents, beta=beta, lam=lam, D=D, rng=rng)
        self._q = q
        self._evaluations: list[list[int]] = [[] for _ in range(n_agents)]
        self._c, self._b = np.zeros(len(self._U)), np.zeros(len(self._U))

    def trigger(self, agent: int) -> float:
        """The left-hand side of the event, >= 0.

        Args:
            agent: 0 to N - 1.

        Raises:
            ValueError: If there is no such agent.
        """
        return float(self._leverage[self._of(agent).J].sum())

    def _prior(self) -> _Known:
        M = len(self._U)
        self._k0: Array = np.diag(self._kernel.k(self._U, self._U)).copy()
        return _Known(np.zeros(M), np.zeros((M, M)), self._k0)

    def _record(self, agent: int, i: int, y: float) -> None:
        self._evaluations[agent].append(i)
        self._c[i] += 1.0
        self._b[i] += y

    def _share(self, known: _Known) -> None:
        super()._share(known)
        self._leverage: Array = self._agents[0].s2 / self._lam

    def _synchronise(self) -> None:
        embedding = self._dictionary()
        m = embedding.m
        statistics = m * (m + 1) // 2 + m
        self.communication.up += len(self._agents) * statistics
        self.communication.down += m * self.d + statistics
        Z = embedding.features(self._U)
        self._share(_embedded(Z, self._c, self._b, self._k0, self._lam))

    def _dictionary(self) -> NystromEmbedding:
        """Step 1, and the server's part of step 2."""
        kept = [
            self._kept(np.array(evaluations, dtype=np.int64)) for evaluations in self._evaluations
        ]
        self.communication.up += sum(len(points) for points in kept) * self.d
        union = np.unique(np.concatenate(kept))
        return NystromEmbedding(self._kernel.k, self._U[union], self._k0[union])

    def _kept(self, evaluations: IntArray) -> IntArray:
        """An agent's distinct points, by one coin per evaluation."""
        return np.unique(
            evaluations[self._rng.random(len(evaluations)) < self._q * self._leverage[evaluations]]
        )


def _embedded(Z: Array, c: Array, b: Array, k0: Array, lam: float) -> _Known:
    """Eq. 5 and 6 for the sums of all agents' statistics, k0 the prior variances (M,)."""
    evaluated = np.flatnonzero(c)
    z = Z[evaluated]
    # Candidates repeat: the sums over evaluations are sums over candidates, weighted by c.
    L = scipy.linalg.cholesky(lam * np.eye(Z.shape[1]) + (z.T * c[evaluated]) @ z, lower=True)
    X = scipy.linalg.solve_triangular(L, Z.T, lower=True)
    mu = X.T @ scipy.linalg.solve_triangular(L, z.T @ b[evaluated], lower=True)
    return _Known(mu, lam * (X.T @ X), np.maximum(k0 - (Z * Z).sum(1), 0.0))
