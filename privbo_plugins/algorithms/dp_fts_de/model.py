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

SEED = 0
"""Public seed of features and designs."""

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
        """Makes an agent's message, shape (M,)."""

    @abc.abstractmethod
    def propose(
        self,
        X: Array,
        y: Array,
        t: int,
        broadcasts: Sequence[Broadcast],
        rng: np.random.Generator,
    ) -> Array:
        """Chooses an agent's next point in its own round t, shape (D,)."""
