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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.model import SharedModel
from privbo_plugins.algorithms.dp_fts_de.prior import PopulationPrior
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.algorithms.search import argmaxes, maximiser
from privbo_plugins.models.kernels import RBF
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

_DESIGNS, _POINTS = 64, 1024
"""At least so many designs, and where they are small so many points in all."""

_INDUCING = 256
_RANK_TOLERANCE = 1e-9

_ALIKE, _FADES, _FEW = math.log(4.0), 0.5, 3
"""Logarithm of the odds that the broadcasts describe an agent, and by how much it falls with each
point of its own beyond the first few. Chosen on the synthetic families of
``benchmarks.federated --parts likeness``, on other draws than its figures are from."""

_JITTER = 1e-9

_AT_ONCE = 2**18
"""Numbers that are held at once where many agents act: 2 MB."""


class Shared:
    """m as a linear function of few unknowns: m(x) = phi(x)ᵀ u, u ~ N(0, I) at first.

    Evenly spread points carry it; what they cannot tell of m keeps its prior variance.

    Args:
        prior: Assumptions.
        space: What is tuned.
        seed: Public.
    """

    def __init__(self, prior: PopulationPrior, space: Space, seed: int) -> None:
        self._s2, self._kernel = prior.shared_sd**2, RBF(prior.shared_lengthscale)
        self._points = space.embed(space.spread(_INDUCING, seed))
        values, vectors = np.linalg.eigh(self._kernel.k(self._points, self._points))
        keep = values > _RANK_TOLERANCE * values[-1]
        self._basis = vectors[:, keep] * np.sqrt(self._s2 / values[keep])
        self.rank = int(keep.sum())
        """U, number of unknowns."""

    def phi(self, A: Array) -> Array:
        """Features of embedded points, shape (a, U)."""
        return np.asarray(self._kernel.k(A, self._points) @ self._basis)

    def k(self, A: Array, B: Array) -> Array:
        """k_m before any broadcast, shape (a, b)."""
        return np.asarray(self._s2 * self._kernel.k(A, B))


class Belief:
    """What is known of m after some broadcasts: u ~ N(mu, V), of which V is public.

    Args:
        prior: Assumptions.
        space: What is tuned.
        M: Number of public points where agents are asked.
        seed: Public.
    """

    def __init__(self, prior: PopulationPrior, space: Space, M: int, seed: int) -> None:
        self.prior, self.space, self.seed = prior, space, seed
        self.shared = Shared(prior, space, seed)
        self.L = space.embed(space.spread(M, seed))
        self.phi_L = self.shared.phi(self.L)
        self._own = RBF(prior.own_lengthscale)
        self._sure: Array = np.eye(self.shared.rank)
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
        return self.shared.phi(A)

    def k(
        self, A: Array, B: Array, phi_A: Array | None = None, phi_B: Array | None = None
    ) -> Array:
        """Covariance of an agent's own function, shape (a, b); features where they are known.

        Of stacks of points (..., a, p) and (..., b, p) it is a stack.
        """
        own = self.prior.own_sd**2 * self._own.k(A, B) + self.prior.level_sd**2
        before = self.shared.k(A, B) + own
        if not self.gains:
            return before
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

    def _operators(self, X: Array, phi: Array) -> tuple[Array, Array]:
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
        X = self.space.embed(self.space.uniform_sets(T, n, rng).reshape(T * n, -1))
        phi = self.phi(X)
        A, K = self._operators(X.reshape(T, n, -1), phi.reshape(T, n, -1))
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
        first = Belief(config.prior, space, config.message_length, config.feature_seed)
        self._beliefs = [first]
        self._lock = threading.Lock()
        self._on_grid: Array | None = None
        if self.grid is not None:
            self._embedded = space.embed(self.grid)
            self._on_grid = first.phi(self._embedded)

    def belief(self, j: int) -> Belief:
        """What is known of m after j broadcasts."""
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
        self, X: Array, y: Array, broadcasts: Sequence[Broadcast], rng: np.random.Generator
    ) -> Array:
        """v_n = A_X (y - mean), shape (M,)."""
        return np.asarray(self.messages(X[None], y[None], broadcasts, [rng])[0])

    def messages(
        self,
        X: Array,
        y: Array,
        broadcasts: Sequence[Broadcast],
        rngs: Sequence[np.random.Generator],  # noqa: ARG002 - nothing is drawn
    ) -> Array:
        """v_n of many agents, shape (a, M)."""
        belief, told, found = self.belief(len(broadcasts)), _vectors(broadcasts), []
        M = len(belief.L)
        for own, some in self._alike(X):
            known = Known(belief, told, own.A, own.phi)
            k = known.k(belief.L, belief.phi_L)
            for i, where in _chunks(own.where, M):
                A_X = _operator(known.K(where), k[where])
                found.append((A_X @ (y[some][i] - known.mean[where])[:, :, None])[:, :, 0])
        return np.concatenate(found)

    def propose(
        self,
        X: Array,
        y: Array,
        t: int,
        broadcasts: Sequence[Broadcast],
        rng: np.random.Generator,
    ) -> Array:
        """The x with the largest mean + beta sd that was not evaluated yet, shape (D,)."""
        return np.asarray(self.proposals(X[None], y[None], t, broadcasts, [rng])[0])

    def proposals(
        self,
        X: Array,
        y: Array,
        t: int,  # noqa: ARG002 - the posterior knows how much has been seen
        broadcasts: Sequence[Broadcast],
        rngs: Sequence[np.random.Generator],
    ) -> Array:
        """:meth:`propose` of many agents, shape (a, D)."""
        find = self._best_anywhere if self.grid is None else self._best_on_grid
        found = [
            find(own, X[some], y[some], _vectors(broadcasts), rngs[some])
            for own, some in self._alike(X)
        ]
        return np.concatenate(found)

    def _alike(self, X: Array) -> Iterator[tuple[Own, slice]]:
        """Many agents' points (a, n, D), those together that lie on the same grid.

        What is public of a point is then computed once, whoever evaluated it.
        """
        a, n = X.shape[:2]
        places = self.places(X)
        if self._on_grid is not None and (places >= 0).all():
            which, where = np.unique(places, return_inverse=True)
            own = Own(self._embedded[which], self._on_grid[which], where.reshape(a, n), places)
            yield own, slice(0, a)
            return
        for i in range(a):
            Z = self.space.embed(X[i])
            some = slice(i, i + 1)
            yield Own(Z, self.belief(0).phi(Z), np.arange(n)[None], places[some]), some

    def _priors(self, own: Own, told: Sequence[Array]) -> list[Known]:
        """What is known before anybody's own data: without the broadcasts, and with them."""
        alone = Known(self.belief(0), (), own.A, own.phi)
        return [alone, Known(self.belief(len(told)), told, own.A, own.phi)] if told else [alone]

    def _best_on_grid(
        self,
        own: Own,
        X: Array,  # noqa: ARG002 - their places say it
        y: Array,
        told: Sequence[Array],
        rngs: Sequence[np.random.Generator],
    ) -> Array:
        """The best point of the grid for each of many agents, shape (a, D)."""
        assert self.grid is not None
        assert self._on_grid is not None
        priors, found = self._priors(own, told), []
        views = [prior.at(self._embedded, self._on_grid) for prior in priors]
        for i, where in _chunks(own.where, len(self.grid)):
            scores = self._optimistic(_posterior(priors, where, y[i]), views)
            agent, j = np.nonzero(own.places[i] >= 0)
            scores[agent, own.places[i][agent, j]] = -np.inf
            found.append(argmaxes(scores, rngs[i]))
        return np.asarray(self.grid[np.concatenate(found)])

    def _best_anywhere(
        self,
        own: Own,
        X: Array,
        y: Array,
        told: Sequence[Array],
        rngs: Sequence[np.random.Generator],
    ) -> Array:
        """The best point of a large space for one agent, shape (1, D)."""
        priors = self._priors(own, told)
        posterior = _posterior(priors, own.where, y)

        def score(points: Array) -> Array:
            A = self.space.embed(points)
            phi = self.belief(0).phi(A)
            scores = self._optimistic(posterior, [prior.at(A, phi) for prior in priors])[0]
            return np.where(_among(A, own.A), -np.inf, scores)

        return maximiser(self.space, score, X[0], rngs[0])[None]

    def _optimistic(self, posterior: Mixture, views: Sequence[View]) -> Array:
        """Mean + beta sd, shape (a, g)."""
        mean, variance = posterior(views)
        return np.asarray(mean + self.config.beta * np.sqrt(variance))


@dataclass(frozen=True)
class Own:
    """Agents' own points.

    Attributes:
        A: Those that differ, embedded, shape (u, p).
        phi: Their features, shape (u, U).
        where: Which of them each agent's are, shape (a, n).
        places: Where they stand in the grid, -1 where they do not, shape (a, n).
    """

    A: Array
    phi: Array
    where: IntArray
    places: IntArray


@dataclass(frozen=True)
class View:
    """What is known of g points before agents' own data, the same for all agents.

    Attributes:
        k: Covariance of own points and these, shape (u, g).
        mean: Shape (g,).
        variance: Shape (g,).
    """

    k: Array
    mean: Array
    variance: Array


class Known:
    """What a belief says of points that agents have evaluated, before their values count.

    Args:
        belief: What broadcasts say of m, and how surely.
        told: The broadcasts behind it.
        A: The points, embedded, shape (u, p).
        phi: Their features, shape (u, U).
    """

    def __init__(self, belief: Belief, told: Sequence[Array], A: Array, phi: Array) -> None:
        self.belief, self._told, self._A, self._phi = belief, told, A, phi
        self.mean = belief.mean(phi, told)
        """Shape (u,)."""
        self._K = belief.k(A, A, phi, phi)

    @property
    def likeness(self) -> float:
        """What the broadcasts themselves say of whether agents are alike, log odds."""
        return self.belief.likeness(self._told)

    def K(self, where: IntArray) -> Array:
        """Covariance of what agents observe at points ``where`` (a, n), shape (a, n, n)."""
        return self.belief.noisy(self._K[where[:, :, None], where[:, None, :]])

    def k(self, A: Array, phi: Array) -> Array:
        """Covariance of their functions at all points and at others (g, p), shape (u, g)."""
        return self.belief.k(self._A, A, self._phi, phi)

    def at(self, A: Array, phi: Array) -> View:
        """What is known of other points (g, p) whose features are given."""
        return View(self.k(A, phi), self.belief.mean(phi, self._told), self.belief.variance(phi))


class Posterior:
    """Agents' own functions after their data.

    Args:
        prior: With the broadcasts or without.
        where: Each agent's points, shape (a, n).
        y: Their values, shape (a, n).
    """

    def __init__(self, prior: Known, where: IntArray, y: Array) -> None:
        self._where = where
        lower = np.linalg.cholesky(prior.K(where))
        self._inverse = np.linalg.inv(lower)  # (a, n, n)
        self._white = (self._inverse @ (y - prior.mean[where])[:, :, None])[:, :, 0]
        fit = (self._white**2).sum(1)
        volume = 2.0 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)
        self.evidence: Array = -0.5 * (fit + volume)
        """log p(y), but for a constant that depends on n alone, shape (a,)."""

    def __call__(self, view: View) -> tuple[Array, Array]:
        """Means and variances at g points, shapes (a, g)."""
        S = self._inverse @ view.k[self._where]  # (a, n, g)
        mean = view.mean + (self._white[:, None, :] @ S)[:, 0]
        return mean, np.maximum(view.variance - np.einsum("ing,ing->ig", S, S), 0.0)


class Mixture:
    """Agents that are like the others with probability w, and like nobody otherwise.

    w / (1 - w) = odds of n points * p(y | B) / p(y): broadcasts lose their say where an agent's
    own data contradict them, and the sooner the more it has of its own.

    Args:
        alone: Without the broadcasts.
        heard: With them; None before the first.
        n: Number of an agent's points.
        likeness: What the broadcast itself says of whether agents are alike, log odds.
    """

    def __init__(
        self, alone: Posterior, heard: Posterior | None = None, n: int = 0, likeness: float = 0.0
    ) -> None:
        self._heard, self._alone = heard, alone
        self.w: Array = np.zeros(len(alone.evidence))
        """w, in [0, 1], shape (a,)."""
        if heard is not None:
            prior = min(_ALIKE, _ALIKE + likeness) - _FADES * max(n - _FEW, 0)
            self.w = scipy.special.expit(prior + heard.evidence - alone.evidence)

    def __call__(self, views: Sequence[View]) -> tuple[Array, Array]:
        """Means and variances, as of :class:`Posterior`; views without and with broadcasts."""
        mean_0, variance_0 = self._alone(views[0])
        if self._heard is None:
            return mean_0, variance_0
        w, (mean, variance) = self.w[:, None], self._heard(views[1])
        apart = mean - mean_0
        return (
            mean_0 + w * apart,
            variance_0 + w * (variance - variance_0 + (1.0 - w) * apart * apart),
        )


def _posterior(priors: Sequence[Known], where: IntArray, y: Array) -> Mixture:
    """What agents know of their own functions: with the broadcasts as far as they fit them."""
    posteriors = [Posterior(prior, where, y) for prior in priors]
    if len(priors) == 1:
        return Mixture(posteriors[0])
    return Mixture(posteriors[0], posteriors[1], where.shape[1], priors[1].likeness)


def _operator(K: Array, k: Array) -> Array:
    """A_X, shape (..., M, n), from K_X + s_n² I and k(X, L) (..., n, M)."""
    solved = np.linalg.solve(K, k - k.mean(-1, keepdims=True))
    return np.asarray(solved.swapaxes(-1, -2))


def _chunks(where: IntArray, g: int) -> Iterator[tuple[slice, IntArray]]:
    """Few agents at a time, so that (agents, n, g) numbers stay in the processor's cache."""
    size = max(1, _AT_ONCE // (max(where.shape[1], 1) * g))
    for i in range(0, len(where), size):
        yield slice(i, i + size), where[i : i + size]


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
