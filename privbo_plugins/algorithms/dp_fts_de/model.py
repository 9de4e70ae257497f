"""What all agents of a federation have in common: a model's public part."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.regions import Regions
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

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

    def places(self, X: Array) -> IntArray:
        """Where points (..., D) stand in the grid, shape (...); -1 where they do not.

        Drawn and enumerated points differ by rounding, so they are compared after nine digits.
        """
        found = np.full(X.shape[:-1], -1, dtype=np.int64)
        if self.grid is None:
            return found
        axes, table = self._axes
        at, there = [], np.ones(X.shape[:-1], dtype=bool)
        for axis, column in zip(axes, np.moveaxis(_rounded(X), -1, 0), strict=True):
            at.append(np.minimum(np.searchsorted(axis, column), len(axis) - 1))
            there &= axis[at[-1]] == column
        return np.where(there, table[tuple(at)], found)

    @cached_property
    def _axes(self) -> tuple[list[Array], IntArray]:
        """The values of each coordinate of the grid, and where their combinations stand."""
        assert self.grid is not None
        values = [np.unique(column, return_inverse=True) for column in _rounded(self.grid).T]
        table = np.full([len(axis) for axis, _ in values], -1, dtype=np.int64)
        table[tuple(at for _, at in values)] = np.arange(len(self.grid))
        return [axis for axis, _ in values], table

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


def _rounded(X: Array) -> Array:
    """Points as they are compared."""
    return np.round(X, 9) + 0.0
