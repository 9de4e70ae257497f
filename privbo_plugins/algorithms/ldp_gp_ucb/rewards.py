"""Rewards of distinct points, summed up so that repeats cost nothing."""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def place(x: Array) -> bytes:
    """A name of a point: hosts give points back with a rounding error."""
    return (np.round(x, 9) + 0.0).tobytes()


class Distinct:
    """Distinct inputs in the order of their first evaluation, and how often each was evaluated."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._Z: list[Array] = []
        self._counts: list[int] = []
        self._stacked: Array | None = None

    def __len__(self) -> int:
        return len(self._Z)

    def add(self, z: Array) -> int:
        """Counts one evaluation and returns the point's number."""
        number = self._numbers.setdefault(place(z), len(self._Z))
        if number == len(self._Z):
            self._Z.append(z)
            self._counts.append(0)
            self._stacked = None
        self._counts[number] += 1
        return number

    @property
    def Z(self) -> Array:
        """Inputs, shape (n, p)."""
        if self._stacked is None:
            self._stacked = np.array(self._Z)
        return self._stacked

    @property
    def counts(self) -> Array:
        """Number of evaluations of each point, shape (n,)."""
        return np.array(self._counts, dtype=float)


class GrowingRows:
    """A matrix to which rows are appended in amortised constant time."""

    def __init__(self, columns: int) -> None:
        self._buffer, self._n = np.empty((16, columns)), 0

    def append(self, rows: Array) -> None:
        """More rows, shape (n, columns)."""
        n = self._n + len(rows)
        if n > len(self._buffer):
            larger = np.empty((max(n, 2 * len(self._buffer)), self._buffer.shape[1]))
            larger[: self._n] = self.all
            self._buffer = larger
        self._buffer[self._n : n] = rows
        self._n = n

    @property
    def all(self) -> Array:
        """Every row so far, shape (n, columns)."""
        return self._buffer[: self._n]


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
