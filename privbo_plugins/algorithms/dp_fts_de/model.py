"""What all agents of a federation have in common: a model's public part."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.regions import Regions
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

GRID = 1000
"""Finite spaces of at most so many points are searched through."""


class SharedModel(abc.ABC):
    """How histories become messages, and histories and broadcasts the next point.

    It holds nothing of any agent: the server and all agents build the same one from public
    settings.

    Args:
        config: Public settings.
        space: What all agents tune.
    """

    def __init__(self, config: FederationConfig, space: Space) -> None:
        self.config, self.space = config, space
        self.regions = Regions(space, config.n_regions)
        self.grid = space.grid(GRID)
        """All points of a small finite space, shape (n, D); None for others."""

    @abc.abstractmethod
    def clipping_norm(self, t: int) -> float:
        """S in the server's round t."""

    @abc.abstractmethod
    def message(
        self, X: Array, y: Array, broadcasts: Sequence[Broadcast], rng: np.random.Generator
    ) -> Array:
        """What an agent sends, shape (M,)."""

    def messages(
        self,
        X: Array,
        y: Array,
        broadcasts: Sequence[Broadcast],
        rngs: Sequence[np.random.Generator],
    ) -> Array:
        """:meth:`message` of many agents with as many points each, shape (a, M).

        Args:
            X: Their points, shape (a, n, D).
            y: Their values, shape (a, n).
            broadcasts: Everything released so far.
            rngs: One an agent.
        """
        each = zip(X, y, rngs, strict=True)
        return np.array([self.message(X_n, y_n, broadcasts, rng) for X_n, y_n, rng in each])

    def proposals(
        self,
        X: Array,
        y: Array,
        t: int,
        broadcasts: Sequence[Broadcast],
        rngs: Sequence[np.random.Generator],
    ) -> Array:
        """:meth:`propose` of many agents, shape (a, D); arguments as for :meth:`messages`."""
        each = zip(X, y, rngs, strict=True)
        return np.array([self.propose(X_n, y_n, t, broadcasts, rng) for X_n, y_n, rng in each])

    @abc.abstractmethod
    def propose(
        self,
        X: Array,
        y: Array,
        t: int,
        broadcasts: Sequence[Broadcast],
        rng: np.random.Generator,
    ) -> Array:
        """Where an agent evaluates next in its own round t, shape (D,)."""
