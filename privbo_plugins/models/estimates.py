"""Estimates of a trial's exact mean, given all releases so far, which dashboards show.

Notation:

    ======  =============================================================  ========
    symbol  meaning                                                        shape
    ======  =============================================================  ========
    X, y    evaluated points, embedded by the space, and released values;  (m, p), (m,)
            values and sigma in units of the range that losses are
            clipped to
    sigma   standard deviation of the values' noise                        scalar
    f, s    posterior mean and standard deviation at the trial's point     scalars
            (:class:`~privbo_plugins.models.smoothing.GrowingSmoother`)
    ======  =============================================================  ========

The best of m noisy values is the luckiest draw, and the best of m posterior means is still a
lucky one: what a host has stored of an early trial is never corrected. Two things keep the best
of the estimates honest. The exact mean lies in [0, 1], so the estimate is the mean of N(f, s²)
within it: what little is known of an early trial keeps its estimate away from the end of the
range. And it lies a part of s on the worse side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.models.smoothing import GrowingSmoother, Scales, Smoother
from privbo_plugins.spaces import Space

Point = Sequence[float] | NDArray[np.float64]

Told = tuple[Point, float]

CAUTION = 0.25
"""Distance of an estimate to the worse side of the mean, in posterior standard deviations."""

WINDOW = 192
"""Most values that an estimate reads, the latest, so that a trial of a long run costs no more."""

_BLOCK = 64
"""Values that leave the window at once: the factor of the others is then made anew."""

_FEW, _FEW_SEARCHED = 8, 16
"""So few values say so little of the scales that each new one may change them much: for the
estimates, and where values choose points."""

FITTED = 96
"""Values that the scales are fitted to, the latest."""

FARTHEST = 4.0
"""Largest distance of an estimate from the trial's own draw, in deviations of the noise: where
the model fits badly, a draw with little noise is the better estimate."""

ROUGH = 0.01
"""Least noise that is assumed, in standard deviations of the values: losses at one point may
differ, by the randomness of training, by more than a release's noise."""

_NARROW = 1e-6
"""A range of so few standard deviations: within it, nothing tells one value from another."""


class Estimator:
    """Estimates of exact means in one run, from its releases alone.

    Args:
        space: The search space.
        bounds: Range that losses are clipped to.
        sigma: Standard deviation of a released value's noise, > 0.
        maximize: Whether large values are good.
    """

    def __init__(
        self, space: Space, bounds: tuple[float, float], sigma: float, *, maximize: bool
    ) -> None:
        self._space = space
        self._low, high = bounds
        self.width = high - self._low
        self._sigma, self._sign = sigma / self.width, -1.0 if maximize else 1.0
        self._scales: dict[int, Scales] = {}
        self._grown: tuple[int, GrowingSmoother] | None = None

    def at(self, x: Point, told: Sequence[Told], own: Told | None = None) -> float:
        """The estimate at a trial's point.

        Args:
            x: The point, shape (D,).
            told: (point, value) of all releases so far in order.
            own: The trial's own release; None if it has none, or is the last of those told.

        Returns:
            A number within the bounds.
        """
        newest = told[-1] if own is None else own
        f, s = self._posterior_at(x, told, len(told) - (own is None), newest)
        shown = mean_within(f, s) + self._sign * CAUTION * s
        if own is not None:
            y = (own[1] - self._low) / self.width
            shown = min(max(shown, y - FARTHEST * self._sigma), y + FARTHEST * self._sigma)
        return self._low + self.width * min(max(shown, 0.0), 1.0)

    def smoother(self, told: Sequence[Told], believed: Sequence[Told] = ()) -> Smoother:
        """The posterior of the exact means, in widths of the range above its lower end.

        Args:
            told: (point, value) of all releases so far in order, at least one.
            believed: More of them that were not released; they do not change the length-scale.
        """
        n, lengths = len(told), None
        if n >= _FEW_SEARCHED:  # fitted anew whenever an eighth to a half more is told
            n -= n % (1 << (n.bit_length() - (3 if n < _BLOCK else 2)))
            lengths = (self._scales_of(told, n).lengthscale,)
        return self._smoother([*told, *believed][-WINDOW:], lengths)

    def values(self, smoother: Smoother, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Posterior means at X (m, D) in the units of released values, shape (m,)."""
        return self._low + self.width * smoother.posterior(self._space.embed(X))[0]

    def _posterior_at(
        self, x: Point, told: Sequence[Told], committed: int, newest: Told
    ) -> tuple[float, float]:
        """Returns f and s given the committed values and the newest one.

        The newest has no part in what is kept here: its transaction may still fail.
        """
        at = self._space.embed(np.array([x]))
        if committed < _FEW:
            mean, sd = self._smoother([*told[:committed], newest], None).posterior(at)
            return float(mean[0]), float(sd[0])
        grown = self._grown_to(told, committed)
        own, y = self._scaled([newest])
        return grown.posterior(at[0], own[0], float(y[0]))

    def _grown_to(self, told: Sequence[Told], committed: int) -> GrowingSmoother:
        """The posterior given the committed values in the window.

        It is made anew at each block and for new scales, so that it follows from the values
        alone, and not from when this process began. Scales are fitted when values have doubled.
        """
        n = 1 << (committed.bit_length() - 1)
        scales = self._scales_of(told, n)
        block = committed // _BLOCK * _BLOCK
        start = max(0, block + _BLOCK - WINDOW)
        if self._grown is None or self._grown[0] != block or self._grown[1].scales is not scales:
            bulk = max(block, n)
            self._grown = block, GrowingSmoother(scales, *self._scaled(told[start:bulk]))
        grown = self._grown[1]
        X, y = self._scaled(told[start + grown.m : committed])
        for x, value in zip(X, y, strict=True):
            grown.add(x, float(value))
        return grown

    def _scaled(self, told: Sequence[Told]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        X = np.array([x for x, _ in told]).reshape(len(told), len(self._space))
        y = np.array([value for _, value in told])
        return self._space.embed(X), (y - self._low) / self.width

    def _smoother(self, latest: Sequence[Told], lengths: Sequence[float] | None) -> Smoother:
        X, y = self._scaled(latest)
        sigma = max(self._sigma, ROUGH * float(np.std(y)))
        return Smoother(X, y, sigma, lengths)

    def _scales_of(self, told: Sequence[Told], n: int) -> Scales:
        """The scales, fitted to the first n values, of many to the last of these."""
        if n not in self._scales:
            self._scales[n] = self._smoother(told[max(n - FITTED, 0) : n], None).scales
        return self._scales[n]


def mean_within(f: float, s: float) -> float:
    """Mean of N(f, s²) within [0, 1].

    Example:
        >>> mean_within(0.5, 0.1), round(mean_within(-1.0, 0.1), 3), mean_within(3.0, 1e9)
        (0.5, 0.01, 0.5)
    """
    if s == 0.0:
        return min(max(f, 0.0), 1.0)
    if f > 0.5:  # the end that is nearer, or missed by less, comes first
        return 1.0 - mean_within(1.0 - f, s)
    a, b = -f / s, (1.0 - f) / s
    if b - a < _NARROW:
        return 0.5
    log_a, log_b = scipy.special.log_ndtr([-a, -b])  # of the tails beyond the two ends
    mass = log_a + math.log(-math.expm1(log_b - log_a))
    at_a, at_b = (math.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - mass) for z in (a, b))
    return min(max(f + s * (at_a - at_b), 0.0), 1.0)
