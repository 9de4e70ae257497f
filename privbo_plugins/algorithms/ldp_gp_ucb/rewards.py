"""Rewards of distinct points, summed up so that repeats cost nothing."""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def place(x: Array) -> bytes:
    """A name of a point: hosts give points back with a rounding error."""
    return (np.round(x, 9) + 0.0).tobytes()


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
