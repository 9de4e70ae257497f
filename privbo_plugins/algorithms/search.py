"""Maximising a score over a space: random candidates, then search around the best of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.spaces import Categorical, Space

Array = NDArray[np.float64]
Score = Callable[[Array], Array]
"""From points (n, D) to one number each, shape (n,)."""

CANDIDATES, _ROUNDS, _NEAR, _KEPT = 512, 4, 32, 4
"""Uniform candidates on a box (and most earlier points among them); rounds of search around the
best, points a round and kept ones."""


def maximiser(space: Space, score: Score, near: Array, rng: np.random.Generator) -> Array:
    """A point (D,) that nearly maximises a score; ties are broken at random.

    Args:
        space: Where to look.
        score: What to maximise.
        near: Points that are tried as well, shape (n, D); the last 512 of them.
        rng: Where candidates come from.
    """
    X = space.uniform(CANDIDATES, rng)
    X = np.vstack([X, near[-CANDIDATES:]]) if len(near) else X
    values = score(X)
    width = 0.1
    for _ in range(_ROUNDS):
        top = X[np.argsort(values)[-_KEPT:]]
        X = np.vstack([top, _around(space, top, width, rng)])
        values = score(X)
        width *= 0.4
    return np.asarray(X[argmax(values, rng)])


def _around(space: Space, top: Array, width: float, rng: np.random.Generator) -> Array:
    """Steps of the given width, at least one grid step; a choice changes now and then."""
    X = np.repeat(top, _NEAR, axis=0)
    widths = np.maximum(width, space.resolution)
    X = X + np.where(space.numeric, widths, 0.0) * rng.standard_normal(X.shape)
    for j, dim in enumerate(space.values()):
        if isinstance(dim, Categorical):
            other = rng.random(len(X)) < width
            X[other, j] = rng.integers(len(dim.choices), size=int(other.sum()))
    return space.snap_all(X)


def argmax(values: Array, rng: np.random.Generator) -> int:
    """A maximiser, at random among equal ones; the generator is asked only where some tie."""
    ties = np.flatnonzero(values >= values.max() - 1e-12)
    return int(ties[0] if len(ties) == 1 else rng.choice(ties))


def place(x: Array) -> bytes:
    """A name of a point: hosts give points back with a rounding error."""
    return (np.round(x, 9) + 0.0).tobytes()
