"""What a broadcast tells an agent: the population's mean function as a prior for its own.

The published algorithm broadcasts a hundred random weights and lets agents maximise them; the
noise of a private release is then many times larger than what is shared. Here agents send a
few numbers instead, what their models say at M public points, and read the noisy mean of them
as an observation of a function that all agents share.

Notation (values in units of the public range, 1 is best):

    =========  =============================================================  ==========
    symbol     meaning                                                        shape
    =========  =============================================================  ==========
    f_n        an agent's function, level + c_n + m + g_n
    c_n        how good the agent's own values are, ~ N(0, s_c²)              scalar
    m          what all agents share, ~ GP(0, k_m)
    g_n        what is the agent's own, ~ GP(0, k_g)
    s_n        standard deviation of an observation's noise                   scalar
    L          public points where agents are asked, and P = I - 11ᵀ/M        (M, p)
    X, y       an agent's points and values                                   (n, p), (n,)
    A_X        P k(L, X) (k(X, X) + s_n² I)⁻¹, with k = k_m + k_g + s_c²      (M, n)
    v_n        A_X (y - mean): the message                                    (M,)
    B          the broadcast, mean of clipped v_n plus N(0, sigma² I)         (M,)
    phi, u     m(x) = phi(x)ᵀ u, u ~ N(0, I) before anything is heard         (., U), (U,)
    Z          Cov(u, B), averaged over designs that agents may have          (U, M)
    C          Cov(B)                                                         (M, M)
    C_0        Cov(B) if agents have nothing in common                        (M, M)
    w          probability that the broadcasts describe an agent, given y, B  scalar
    =========  =============================================================  ==========

Given B, u has mean Z C⁻¹ B and covariance I - Z C⁻¹ Zᵀ (the linear estimator of least mean
squared error; clipping is ignored). Everything except B is public and the same for everybody:
designs are drawn from a public seed, and the clipping norm is the root mean square of |v_n| under
the prior. All that agents do with B is post-processing. An agent may be unlike all others: it
weighs the model that heard B against the same model that did not by how well each explains y.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig, PopulationPrior
from privbo_plugins.algorithms.dp_fts_de.model import SEED, SharedModel
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.algorithms.search import argmax, maximiser
from privbo_plugins.models.kernels import RBF
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_DESIGNS, _POINTS = 64, 1024
"""At least so many designs, and where they are small so many points in all."""

_INDUCING = 256
_RANK_TOLERANCE = 1e-9

_ALIKE, _FADES, _FEW = math.log(4.0), 0.5, 3
"""Logarithm of the odds that the broadcasts describe an agent, and by how much it falls with each
point of its own beyond the first few. Chosen on the synthetic families of
``benchmarks.federated --parts likeness``, on other draws than its figures are from."""

_JITTER = 1e-9


class Belief:
    """What is known of m after some broadcasts: u ~ N(mu, V), of which V is public.

    m is a linear function of few unknowns: evenly spread points carry it. What they cannot tell of
    m keeps its prior variance.

    Args:
        prior: Assumptions.
        space: What is tuned.
        M: Number of public points where agents are asked.
        seed: Public.
    """

    def __init__(self, prior: PopulationPrior, space: Space, M: int, seed: int) -> None:
        self.prior, self.space, self.seed = prior, space, seed
        self._shared, self._own = RBF(prior.shared_lengthscale), RBF(prior.own_lengthscale)
        self._points = space.embed(space.spread(_INDUCING, seed))
        values, vectors = np.linalg.eigh(self._shared.k(self._points, self._points))
        keep = values > _RANK_TOLERANCE * values[-1]
        self._basis = vectors[:, keep] * np.sqrt(prior.shared_sd**2 / values[keep])
        self.L = space.embed(space.spread(M, seed))
        self.phi_L = self.phi(self.L)
        self._sure: Array = np.eye(int(keep.sum()))
        """Covariance of u if the prior fits."""
        self.gains: tuple[Array, ...] = ()
        """G_j, shape (U, M) each: mu = sum_j G_j B_j."""
        self.norms: tuple[float, ...] = ()
        """Clipping norms of the rounds behind them."""
        self.covariances: tuple[tuple[Array, Array], ...] = ()
        """(C, C_0) of each round."""

    @property
    def V(self) -> Array:
        """Covariance of u, with the doubt whether the prior fits, shape (U, U)."""
        doubt = self.prior.doubt if self.gains else 0.0
        return np.asarray((1.0 - doubt) * self._sure + doubt * np.eye(len(self._sure)))

    def phi(self, A: Array) -> Array:
        """Features of embedded points, shape (a, U)."""
        return np.asarray(self._shared.k(A, self._points) @ self._basis)

    def k(
        self, A: Array, B: Array, phi_A: Array | None = None, phi_B: Array | None = None
    ) -> Array:
        """Covariance of an agent's own function, shape (a, b); features where they are known.

        Of stacks of points (..., a, p) and (..., b, p) it is a stack.
        """
        own = self.prior.own_sd**2 * self._own.k(A, B) + self.prior.level_sd**2
        before = self.prior.shared_sd**2 * self._shared.k(A, B) + own
        if not self.gains:
            return np.asarray(before)
        phi_A = self.phi(A) if phi_A is None else phi_A
        phi_B = self.phi(B) if phi_B is None else phi_B
        known = (np.eye(len(self._sure)) - self.V) @ phi_B.swapaxes(-1, -2)
        return np.asarray(before - phi_A @ known)

    def variance(self, phi: Array) -> Array:
        """Variance of an agent's own function where the features are given, shape (a,)."""
        prior = self.prior
        total = prior.shared_sd**2 + prior.own_sd**2 + prior.level_sd**2
        learnt = np.einsum("ij,ij->i", phi @ (np.eye(len(self._sure)) - self.V), phi)
        return np.asarray(np.full(len(phi), total) - learnt)

    def mean(self, phi: Array, broadcasts: Sequence[Array]) -> Array:
        """Mean of an agent's own function before its own data, shape (a,).

        Args:
            phi: Features, shape (a, U).
            broadcasts: B_j, shape (M,) each.
        """
        mu = np.zeros(len(self._sure))
        for G, B in zip(self.gains, broadcasts, strict=True):
            mu = mu + G @ B
        return np.asarray(self.prior.level + phi @ mu)

    def operators(self, X: Array, phi: Array) -> tuple[Array, Array]:
        """(A_X, K_X + s_n² I) of points (..., n, p) whose features are known."""
        K = self.noisy(self.k(X, X, phi, phi))
        return _operator(K, self.k(X, self.L, phi, self.phi_L)), K

    def noisy(self, K: Array) -> Array:
        """K + s_n² I, the covariance of observations, shape (..., n, n)."""
        return np.asarray(K + self.prior.noise_sd**2 * np.eye(K.shape[-1]))

    def after(self, n: int, noise: float, q: float, N: int, S: float | None = None) -> Belief:
        """The belief once a broadcast was read; what it said is given to :meth:`mean`.

        Args:
            n: Number of points that agents have in that round.
            noise: z / (q N): standard deviation of the broadcast's noise over the clipping norm.
            q: Sampling probability.
            N: Agents on the roster.
            S: Clipping norm; None for the root mean square of |v_n| under the prior.
        """
        M, rng = len(self.L), np.random.default_rng([self.seed, n])
        T = min(max(_DESIGNS, _POINTS // n), _POINTS)
        X = self.space.embed(self.space.uniform(T * n, rng))
        phi = self.phi(X)
        A, K = self.operators(X.reshape(T, n, -1), phi.reshape(T, n, -1))
        side_by_side = np.swapaxes(A, 0, 1).reshape(M, T * n)
        W: Array = np.swapaxes(A @ K, 0, 1).reshape(M, T * n) @ side_by_side.T / T  # E[v vᵀ]
        H: Array = side_by_side @ phi / T  # E[A_X phi(X)]
        rms = math.sqrt(float(np.trace(W)))
        norm = rms if S is None else S
        Z = self._sure @ H.T  # Cov(u, B), (U, M)
        both = H @ Z  # Cov of two agents' messages, (M, M)
        noisy = ((noise * norm) ** 2 + _JITTER * rms**2) * np.eye(M)
        C, C_0 = both + (W / q - both) / N + noisy, W / (q * N) + noisy
        G: Array = np.asarray(np.linalg.solve((C + C.T) / 2, Z.T).T, dtype=float)
        later = copy.copy(self)
        later._sure = np.asarray(self._sure - G @ Z.T, dtype=float)
        later.gains, later.norms = (*self.gains, G), (*self.norms, norm)
        later.covariances = (*self.covariances, ((C + C.T) / 2, (C_0 + C_0.T) / 2))
        return later

    def likeness(self, broadcasts: Sequence[Array]) -> float:
        """Log p(B_1 | agents share m) - log p(B_1 | they share nothing), clipping ignored.

        Messages of strangers cancel in the mean. Those of later rounds tell what earlier
        broadcasts left open, so the first one says it.
        """
        shared, none = (_log_normal(broadcasts[0], C) for C in self.covariances[0])
        return shared - none


class PopulationModel(SharedModel):
    """The default: the population's mean function as a prior, then the largest optimistic value.

    Args:
        config: Public settings.
        space: What all agents tune.
    """

    def __init__(self, config: FederationConfig, space: Space) -> None:
        super().__init__(config, space)
        first = Belief(config.prior, space, config.message_length, SEED)
        self._beliefs = [first]
        self._lock = threading.Lock()
        self._on_grid: Array | None = None
        if self.grid is not None:
            self._embedded = space.embed(self.grid)
            self._on_grid = first.phi(self._embedded)

    def belief(self, j: int) -> Belief:
        """Computes the belief about m after j broadcasts."""
        config = self.config
        noise = config.heard_multiplier / (config.q * config.n_agents)
        with self._lock:  # the server and all agents of a process share this object
            while len(self._beliefs) <= j:
                n = config.n_startup + len(self._beliefs) - 1
                last = self._beliefs[-1]
                self._beliefs.append(
                    last.after(n, noise, config.q, config.n_agents, config.clipping_norm)
                )
            return self._beliefs[j]

    def clipping_norm(self, t: int) -> float:
        """S in round t: as given, or the root mean square of |v_n| under the prior."""
        return self.belief(t).norms[t - 1]

    def message(
        self,
        X: Array,
        y: Array,
        broadcasts: Sequence[Broadcast],
        rng: np.random.Generator,  # noqa: ARG002 - nothing is drawn
    ) -> Array:
        """v_n = A_X (y - mean), shape (M,)."""
        belief, told = self.belief(len(broadcasts)), _vectors(broadcasts)
        Z = self.space.embed(X)
        phi = belief.phi(Z)
        A_X, _ = belief.operators(Z, phi)
        return np.asarray(A_X @ (y - belief.mean(phi, told)))

    def propose(
        self,
        X: Array,
        y: Array,
        t: int,  # noqa: ARG002 - the posterior knows how much has been seen
        broadcasts: Sequence[Broadcast],
        rng: np.random.Generator,
    ) -> Array:
        """The x with the largest mean + beta sd that was not evaluated yet, shape (D,)."""
        Z = self.space.embed(X)
        posterior = self._posterior(Z, y, _vectors(broadcasts))

        def optimistic(A: Array, phi: Array) -> Array:
            mean, variance = posterior(A, phi)
            scores = mean + self.config.beta * np.sqrt(variance)
            return np.where(_among(A, Z), -np.inf, scores)

        def score(points: Array) -> Array:
            A = self.space.embed(points)
            return optimistic(A, self.belief(0).phi(A))

        if self.grid is None or self._on_grid is None:
            return maximiser(self.space, score, X, rng)
        return np.asarray(self.grid[argmax(optimistic(self._embedded, self._on_grid), rng)])

    def _posterior(self, Z: Array, y: Array, told: Sequence[Array]) -> Posterior | Mixture:
        """Fits an agent's own function, with the broadcasts as far as they agree with its data."""
        alone = Posterior(self.belief(0), (), Z, y)
        if not told:
            return alone
        belief = self.belief(len(told))
        return Mixture(alone, Posterior(belief, told, Z, y), len(y), belief.likeness(told))


class Posterior:
    """An agent's own function after its data.

    Args:
        belief: What broadcasts say of m, and how surely.
        told: The broadcasts behind it.
        Z: The agent's points, embedded, shape (n, p).
        y: Their values, shape (n,).
    """

    def __init__(self, belief: Belief, told: Sequence[Array], Z: Array, y: Array) -> None:
        self._belief, self._told, self._Z, self._phi = belief, told, Z, belief.phi(Z)
        lower = np.linalg.cholesky(belief.noisy(belief.k(Z, Z, self._phi, self._phi)))
        self._inverse = np.linalg.inv(lower)  # (n, n)
        self._white = self._inverse @ (y - belief.mean(self._phi, told))
        volume = 2.0 * np.log(np.diagonal(lower)).sum()
        self.evidence = -0.5 * float(self._white @ self._white + volume)
        """log p(y), but for a constant that depends on n alone."""

    def __call__(self, A: Array, phi: Array) -> tuple[Array, Array]:
        """Means and variances at embedded points (g, p) whose features are given, both (g,)."""
        S = self._inverse @ self._belief.k(self._Z, A, self._phi, phi)  # (n, g)
        mean = self._belief.mean(phi, self._told) + self._white @ S
        variance = self._belief.variance(phi) - np.einsum("ng,ng->g", S, S)
        return mean, np.maximum(variance, 0.0)


class Mixture:
    """An agent that is like the others with probability w, and unlike all others otherwise.

    w / (1 - w) = odds of n points * p(y | B) / p(y): broadcasts lose their say where an agent's
    own data contradict them, and the sooner the more it has of its own.

    Args:
        alone: Without the broadcasts.
        heard: With them.
        n: Number of the agent's points.
        likeness: What the broadcast itself says of whether agents are alike, log odds.
    """

    def __init__(self, alone: Posterior, heard: Posterior, n: int, likeness: float) -> None:
        self._heard, self._alone = heard, alone
        prior = min(_ALIKE, _ALIKE + likeness) - _FADES * max(n - _FEW, 0)
        self.w = float(scipy.special.expit(prior + heard.evidence - alone.evidence))
        """w, in [0, 1]."""

    def __call__(self, A: Array, phi: Array) -> tuple[Array, Array]:
        """Means and variances, as of :class:`Posterior`."""
        mean_0, variance_0 = self._alone(A, phi)
        w, (mean, variance) = self.w, self._heard(A, phi)
        apart = mean - mean_0
        return (
            mean_0 + w * apart,
            variance_0 + w * (variance - variance_0 + (1.0 - w) * apart * apart),
        )


def _operator(K: Array, k: Array) -> Array:
    """A_X, shape (..., M, n), from K_X + s_n² I and k(X, L) (..., n, M)."""
    solved = np.linalg.solve(K, k - k.mean(-1, keepdims=True))
    return np.asarray(solved.swapaxes(-1, -2))


def _log_normal(x: Array, C: Array) -> float:
    """Log N(x; 0, C), but for a constant."""
    factor = scipy.linalg.cho_factor(C, lower=True)
    fit, volume = x @ scipy.linalg.cho_solve(factor, x), 2.0 * np.log(np.diag(factor[0])).sum()
    return -0.5 * float(fit + volume)


def _vectors(broadcasts: Sequence[Broadcast]) -> list[Array]:
    return [broadcast.weights[0] for broadcast in broadcasts]


def _among(A: Array, Z: Array) -> NDArray[np.bool_]:
    """Which rows of A are rows of Z, shape (a,)."""
    return np.asarray((np.abs(A[:, None] - Z[None]).max(2) < 1e-9).any(1))
