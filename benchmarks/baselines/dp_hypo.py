"""DP-HyPO: the best of a random number of candidates that learn from one another.

Wang et al. 2023: noisy values of earlier candidates may shape the density from which the next is
drawn, as long as that lies between ``low`` and ``high`` times the uniform one; only the best is
released. :func:`benchmarks.baselines.private_selection.selection_epsilon` accounts for it.

Here a Gaussian process over the latest noisy values ranks uniform points by its lower confidence
bound, and the best 1 / (1 + high) of the volume has density ``high``, the rest ``low = 1 / high``:
no density between the two says more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.models.smoothing import Smoother

Array = NDArray[np.float64]

SHARE = 0.5
"""Share of epsilon, about, that pays for the density."""

POOL = 64
"""Uniform points of which a candidate is one."""

_FIRST = 8
_LATEST = 100


def density_bounds(epsilon: float) -> tuple[float, float]:
    """Least and largest density, for which the charge is a little more than SHARE of epsilon.

    Example:
        >>> density_bounds(0.0)
        (1.0, 1.0)
    """
    width = SHARE * epsilon / 6.0
    return math.exp(-width), math.exp(width)


def tilted(scores: Array, low: float, high: float) -> Array:
    """Probabilities of uniform points: ``high`` / m for the least scores, ``low`` / m for others.

    One point lies between the two, so that they sum to one. A point drawn in this way from m
    independent uniform ones has a density between low and high, whatever the scores depend on.

    Args:
        scores: Of m points, the least is best; shape (..., m).
        low: In (0, 1].
        high: >= 1.
    """
    m = scores.shape[-1]
    if low == high:
        return np.full(scores.shape, 1.0 / m)
    ranks = scores.argsort(-1).argsort(-1)
    many = m * (1.0 - low) / (high - low)
    return np.asarray((low + (high - low) * np.clip(many - ranks, 0.0, 1.0)) / m)


def search(
    value: Callable[[Array], Array],
    d: int,
    n_candidates: int,
    scale: float,
    bounds: tuple[float, float],
    rng: np.random.Generator,
) -> Array:
    """The candidate with the least noisy value, shape (d,).

    The process is fitted anew whenever half as many candidates more are known.

    Args:
        value: From points (m, d) to their exact values (m,), a secret.
        d: Number of parameters.
        n_candidates: A draw of K, which is a secret too.
        scale: Standard deviation of the noise of one value.
        bounds: Least and largest density.
        rng: Draws points and noise.
    """
    X = rng.random((min(_FIRST, n_candidates), d))
    y = value(X) + scale * rng.standard_normal(len(X))
    while len(y) < n_candidates:
        batch = min(max(4, len(y) // 2), n_candidates - len(y))
        new = _drawn(Smoother(X[-_LATEST:], y[-_LATEST:], scale), batch, d, bounds, rng)
        X = np.vstack([X, new])
        y = np.append(y, value(new) + scale * rng.standard_normal(batch))
    return np.asarray(X[y.argmin()])


def _drawn(
    smoother: Smoother,
    batch: int,
    d: int,
    bounds: tuple[float, float],
    rng: np.random.Generator,
) -> Array:
    """A batch of candidates (batch, d), each from uniform points of its own."""
    U = rng.random((batch, POOL, d))
    mean, deviation = smoother.posterior(U.reshape(-1, d))
    chances = tilted((mean - deviation).reshape(batch, POOL), *bounds)
    chosen = (rng.random((batch, 1)) < chances.cumsum(1)).argmax(1)
    return np.asarray(U[np.arange(batch), chosen])
