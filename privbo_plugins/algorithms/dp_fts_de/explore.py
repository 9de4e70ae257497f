"""The published agent: shared random features, Thompson draws, and the population's draw.

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

One step is not the paper's. Where an agent relies on itself (line 6) the paper draws a function
from the agent's own Gaussian process, exact, its deviation widened by beta_t. Here that draw comes
from the posterior of the M shared features too, as w_n does, and is not widened: an approximation,
which is worse the fewer features there are for the length-scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.model import SEED, SharedModel
from privbo_plugins.algorithms.dp_fts_de.regions import chance_of_own
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.models.random_features import FourierFeatures, posterior_sample
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_OPEN = 1e-9
_CANDIDATES, _REFINED = 1000, 3
"""Random candidates of a maximisation, as in the paper, and how many L-BFGS-B starts from."""


class FeatureModel(SharedModel):
    """Random features and sub-regions (Algorithm 2, but for the draws of its line 6).

    Args:
        config: Public settings.
        space: What all agents tune.
    """

    def __init__(self, config: FederationConfig, space: Space) -> None:
        super().__init__(config, space)
        d = space.embed(space.uniform(1, np.random.default_rng(0))).shape[1]
        self.features = FourierFeatures(config.message_length, d, config.lengthscale, SEED)
        self._refine = bool(space.numeric.all())

    def clipping_norm(self, t: int) -> float:  # noqa: ARG002 - the same in all rounds
        """S."""
        return self.config.norm

    def message(
        self,
        X: Array,
        y: Array,
        broadcasts: Sequence[Broadcast],  # noqa: ARG002 - the published agent sends its own draw
        rng: np.random.Generator,
    ) -> Array:
        """w_n ~ N(Sigma^-1 Phiᵀ y, s2 Sigma^-1), shape (M,) (eq. 2)."""
        return posterior_sample(self.phi(X), y, self.config.noise_variance, rng)

    def propose(
        self,
        X: Array,
        y: Array,
        t: int,
        broadcasts: Sequence[Broadcast],
        rng: np.random.Generator,
    ) -> Array:
        """Its own draw with probability p_t, else the population's (lines 5 to 8).

        Its own is drawn from the features' posterior, where line 6 has the exact one.
        """
        if not broadcasts or rng.random() < chance_of_own(t, self.config.power):
            return self.argmax(self.message(X, y, (), rng)[None], rng)
        return self.argmax(broadcasts[-1].weights, rng)

    @cached_property
    def _searched(self) -> tuple[Array, Array, NDArray[np.int64]] | None:
        """All points of a small finite space, their features and regions."""
        X = self.grid
        return None if X is None else (X, self.phi(X), self.regions.index(X))

    def phi(self, X: Array) -> Array:
        """Features of points (n, D), shape (n, M)."""
        return self.features(self.space.embed(X))

    def argmax(self, W: Array, rng: np.random.Generator) -> Array:
        """The x that maximises phi(x)ᵀ w^(i[x]), shape (D,); W has one row, or one a region.

        Finite spaces of at most 1000 points are searched through; otherwise uniform candidates,
        the best of which are refined within their regions by L-BFGS-B.
        """
        if self._searched is not None:
            X, Phi, region = self._searched
        else:
            X = self.space.uniform(_CANDIDATES, rng)
            Phi, region = self.phi(X), self.regions.index(X)
        scores = np.einsum("ij,ij->i", Phi, W[region]) if len(W) > 1 else Phi @ W[0]
        if self._searched is not None or not self._refine:
            return np.asarray(X[np.argmax(scores)])
        best = np.argsort(scores)[-_REFINED:]
        refined = [self._climb(X[i], W, int(region[i])) for i in best]
        first = float(scores[best[-1]]), X[best[-1]]
        return np.asarray(max([first, *refined], key=lambda found: found[0])[1])

    def _climb(self, x: Array, W: Array, p: int) -> tuple[float, Array]:
        """A local maximum of region p's function next to x, as the host evaluates it."""
        w = W[p] if len(W) > 1 else W[0]
        lower, upper = np.zeros(len(x)), np.ones(len(x))
        if len(W) > 1:
            lower, upper = self.regions.lower[p], self.regions.upper[p]
            upper = np.where(upper < 1.0, upper - _OPEN, upper)  # the end belongs to the next one

        def descend(at: Array) -> tuple[float, Array]:
            value, slope = self.features.value_and_slope(at, w)
            return -value, -slope

        found = scipy.optimize.minimize(
            descend, x, jac=True, method="L-BFGS-B", bounds=scipy.optimize.Bounds(lower, upper)
        )
        snapped = self.space.snap(found.x)
        there = W[self.regions.index(snapped[None])[0]] if len(W) > 1 else w  # a step may cross
        return float(self.phi(snapped[None])[0] @ there), snapped
