"""An agent's part: what it sends, and where it evaluates next.

Notation (Dai et al. 2021, Algorithm 2):

    =========  ===========================================================  ========
    symbol     meaning                                                      shape
    =========  ===========================================================  ========
    t          the agent's own round, 1, 2, ...                             scalar
    X, y       its history: points, and values scaled to [0, 1]             (n, D), (n,)
    w_n        weights drawn from its posterior, sent to the server         (M,)
    w^(p)      what the server broadcast for region p                       (M,)
    i[x]       the region of x                                              scalar
    p_t        chance that the agent relies on itself                       scalar
    =========  ===========================================================  ========

All that an agent does with a broadcast is post-processing. Its draws are functions of its seed,
its number and t, so an agent that is begun again repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.regions import Regions, chance_of_own, deal
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.models.random_features import FourierFeatures, posterior_sample
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_CANDIDATES, _REFINED = 1000, 3
"""Random candidates of a maximisation, as in the paper, and how many L-BFGS-B starts from."""

_START, _MESSAGE, _COIN, _OWN, _SEARCH = range(5)
"""Streams of an agent's randomness."""


class SharedModel:
    """What all agents have in common: features and regions of one space.

    Args:
        config: Public settings.
        space: What all agents tune.
    """

    def __init__(self, config: FederationConfig, space: Space) -> None:
        self.config, self.space = config, space
        self.regions = Regions(space, config.n_regions)
        d = space.embed(space.uniform(1, np.random.default_rng(0))).shape[1]
        self.features = FourierFeatures(
            config.n_features, d, config.lengthscale, config.feature_seed
        )
        self._refine = bool(space.numeric.all())
        self._known: tuple[Array, Array] | None = None

    @cached_property
    def _grid(self) -> tuple[Array, Array, NDArray[np.int64]] | None:
        """All points of a small finite space, their features and regions."""
        X = self.space.grid(_CANDIDATES)
        return None if X is None else (X, self.phi(X), self.regions.index(X))

    def phi(self, X: Array) -> Array:
        """Features of points (n, D), shape (n, M)."""
        return self.features(self.space.embed(X))

    def argmax(self, W: Array, rng: np.random.Generator) -> Array:
        """The x that maximises phi(x)ᵀ w^(i[x]), shape (D,); W has one row, or one a region.

        Finite spaces of at most 1000 points are searched through; otherwise uniform candidates,
        the best of which are refined within their regions by L-BFGS-B.
        """
        if self._grid is not None:
            X, Phi, region = self._grid
        else:
            X = self.space.uniform(_CANDIDATES, rng)
            Phi, region = self.phi(X), self.regions.index(X)
        scores = np.einsum("ij,ij->i", Phi, W[region]) if len(W) > 1 else Phi @ W[0]
        if self._grid is not None or not self._refine:
            return np.asarray(X[np.argmax(scores)])
        best = np.argsort(scores)[-_REFINED:]
        refined = [self._climb(X[i], W, int(region[i])) for i in best]
        first = float(scores[best[-1]]), X[best[-1]]
        return np.asarray(max([first, *refined], key=lambda found: found[0])[1])

    def argmax_crowd(self, W: Array, rng: np.random.Generator) -> Array:
        """:meth:`argmax` of a broadcast, which on a grid is the same for all agents."""
        if self._grid is None:
            return self.argmax(W, rng)
        known = self._known
        if known is None or known[0] is not W:
            known = self._known = W, self.argmax(W, rng)
        return known[1]

    def _climb(self, x: Array, W: Array, p: int) -> tuple[float, Array]:
        """A local maximum of region p's function next to x, as the host evaluates it."""
        w = W[p] if len(W) > 1 else W[0]
        lower, upper = np.zeros(len(x)), np.ones(len(x))
        if len(W) > 1:
            lower, upper = self.regions.lower[p], self.regions.upper[p]

        def descend(at: Array) -> tuple[float, Array]:
            value, slope = self.features.value_and_slope(at, w)
            return -value, -slope

        found = minimize(descend, x, jac=True, method="L-BFGS-B", bounds=Bounds(lower, upper))
        snapped = self.space.snap(found.x)
        return float(self.phi(snapped[None])[0] @ w), snapped


class Agent:
    """One agent; explicit state: its history and the broadcasts are arguments.

    Args:
        model: Shared by all agents of a space.
        number: The agent's number on the roster, from 0.
        maximize: Whether large values are good.
        seed: Drives its points and draws, never noise.
    """

    def __init__(
        self, model: SharedModel, number: int, *, maximize: bool = True, seed: int = 0
    ) -> None:
        self.model, self.config, self.number = model, model.config, number
        self._maximize, self._seed = maximize, seed
        self.region = int(deal(self.config.n_agents, self.config.n_regions)[number])

    def _rng(self, stream: int, t: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self.number, stream, t])

    def units(self, values: Array) -> Array:
        """Values as the model sees them: clipped to the public range, in [0, 1], 1 is best."""
        low, high = self.config.value_range
        y = (np.clip(values, low, high) - low) / (high - low)
        return np.asarray(y if self._maximize else 1.0 - y)

    def start_point(self, i: int) -> Array:
        """The i-th point before the first round, i = 0, 1, ..., uniform in the agent's region."""
        return np.asarray(self.model.regions.draw(self.region, 1, self._rng(_START, i))[0])

    def message(self, X: Array, values: Array, t: int) -> Array:
        """w_n ~ N(Sigma^-1 Phiᵀ y, s2 Sigma^-1), shape (M,) (eq. 2)."""
        return self._draw(X, values, self._rng(_MESSAGE, t))

    def _draw(self, X: Array, values: Array, rng: np.random.Generator) -> Array:
        return posterior_sample(
            self.model.phi(X), self.units(values), self.config.noise_variance, rng
        )

    def propose(self, X: Array, values: Array, t: int, broadcasts: Sequence[Broadcast]) -> Array:
        """The next point, shape (D,) (Algorithm 2, lines 5 to 8).

        Args:
            X: Points evaluated so far, shape (n, D).
            values: What was observed, shape (n,).
            t: The agent's own round, from 1.
            broadcasts: Everything received so far.
        """
        if not broadcasts or self._rng(_COIN, t).random() < chance_of_own(t, self.config.power):
            w = self._draw(X, values, self._rng(_OWN, t))
            return self.model.argmax(w[None], self._rng(_SEARCH, t))
        return self.model.argmax_crowd(broadcasts[-1].weights, self._rng(_SEARCH, t))
