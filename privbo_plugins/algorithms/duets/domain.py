"""Where all agents look: finitely many points, or a region that points are proposed in."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.spaces import Categorical, Space

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Domain(Protocol):
    """A region with a uniform distribution."""

    complete: bool
    """Whether :meth:`points` lists every point there is."""

    def points(self, n: int, seed: int) -> Array:
        """About n points, evenly over the region, or all of them; shape (n, D)."""
        ...

    def near(self, X: Array, width: Array, rng: np.random.Generator) -> Array:
        """One random step from each point (n, D), by a symmetric rule."""
        ...

    def contains(self, X: Array) -> Mask:
        """Which points lie in the region, shape (n,)."""
        ...

    def inputs(self, X: Array) -> Array:
        """Points as the kernel sees them, shape (n, p)."""
        ...


class FinitePoints:
    """A finite domain.

    Args:
        X: Its points, shape (M, D).

    Raises:
        ValueError: If it is not a finite matrix with at least one row.
    """

    complete = True

    def __init__(self, X: Array) -> None:
        self._X = np.asarray(X, dtype=float)
        if self._X.ndim != 2 or not len(self._X) or not np.isfinite(self._X).all():
            raise ValueError(
                "A finite domain needs a finite matrix with one row a point, got shape "
                f"{self._X.shape}."
            )

    def points(self, n: int, seed: int) -> Array:
        """All of them."""
        return self._X

    def near(self, X: Array, width: Array, rng: np.random.Generator) -> Array:
        """The same points: there is nothing to refine."""
        return X

    def contains(self, X: Array) -> Mask:
        """All that it is asked for are its own."""
        return np.ones(len(X), dtype=bool)

    def inputs(self, X: Array) -> Array:
        """The points."""
        return X


_MOST_LISTED = 4096
"""A space with at most so many points is listed whole."""

_OTHER_CHOICE = 0.2
"""Probability that a step draws a choice anew."""


class SpaceDomain:
    """A search space on the unit cube.

    Args:
        space: The space.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._grid = space.grid(_MOST_LISTED)
        self.complete = self._grid is not None

    def points(self, n: int, seed: int) -> Array:
        """Every point of a small space, or a scrambled Sobol sequence."""
        return self._space.spread(n, seed) if self._grid is None else self._grid

    def near(self, X: Array, width: Array, rng: np.random.Generator) -> Array:
        """A Gaussian step on the numeric coordinates; a choice changes now and then.

        Steps are reflected at the ends: clipped ones would pile up there.
        """
        steps = np.maximum(width, self._space.resolution) * rng.standard_normal(X.shape)
        moved = X + np.where(self._space.numeric, steps, 0.0)
        moved = np.where(self._space.numeric, 1.0 - np.abs(1.0 - np.abs(moved) % 2.0), moved)
        for j, dim in enumerate(self._space.values()):
            if isinstance(dim, Categorical):
                other = rng.random(len(X)) < _OTHER_CHOICE
                moved[other, j] = rng.integers(len(dim.choices), size=int(other.sum()))
        return self._space.snap_all(moved)

    def contains(self, X: Array) -> Mask:
        """All snapped points do."""
        return np.ones(len(X), dtype=bool)

    def inputs(self, X: Array) -> Array:
        """Points with choices as corners of a simplex."""
        return self._space.embed(X)
