"""Declares what a source of noise offers. Sources are made in ``noise.py`` alone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


class NoiseSource(Protocol):
    """Draws the noise of every mechanism.

    A privacy claim is made for :class:`SecureNoise` itself and nothing else, not even a subclass
    (:func:`privbo_plugins.privacy.noise.is_secure`).
    """

    def add_gaussian(self, value: Array, scale: float) -> Array:
        """``value + N(0, scale² I)`` for a finite ``value`` of shape (d,), ``scale`` >= 0."""
        ...

    def add_laplace(self, value: float, scale: float) -> float:
        """``value + Laplace(scale)`` for a finite ``value``, ``scale`` > 0."""
        ...

    def flip(self, probability: float) -> bool:
        """True with exactly this probability, in [1/2, 1)."""
        ...

    def integer(self, n: int) -> int:
        """Uniform over 0, ..., n - 1."""
        ...


@runtime_checkable
class ShareSource(Protocol):
    """Draws the noise that agents add in shares."""

    def discrete_gaussian(self, d: int, scale: float) -> IntArray:
        """D draws of N_Z(0, scale²), the Gaussian on the integers, for ``scale`` > 0."""
        ...
