"""Bounded statistics of per-record values, and their Gaussian release.

Notation:

    ======  ===========================================================  ========
    symbol  meaning                                                      shape
    ======  ===========================================================  ========
    G       one vector a record                                          (n, d)
    B       clipping norm                                                scalar
    y       one value a record                                           (n,)
    C       width of the range that values are clipped to                scalar
    ======  ===========================================================  ========

Guarantees rest on the clipping in this module and on nothing else. Sums are taken over integers
(fixed point with 36 fractional bits, rounded towards zero), so they do not depend on the order
or the block size in which records are read, and replacing one record changes them by at most
twice the bound **exactly**: floating-point sums do not have this property.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.privacy.settings import SMALLEST_MU

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

FRACTION_BITS = 36
"""Fixed-point resolution relative to the bound; sums stay exact up to 2**27 records."""

MAX_RECORDS = 2**26
"""Largest number of records a statistic accepts."""

SENSITIVITY_SLACK = 1.0 + 2.0**-20
"""Covers the rounding of the final division to a float; the noise is this much larger."""


def clip_rows(G: Array, B: float) -> Array:
    """Rows scaled to L2 norm at most B; a row with NaN or infinity becomes zero.

    Args:
        G: One vector a record, shape (n, d).
        B: Clipping norm, from 1e-300. ``math.inf`` clips nothing (non-finite rows still become
            zero).

    Returns:
        Clipped rows, shape (n, d), every norm at most B.
    """
    with np.errstate(all="ignore"):  # a warning would tell that some record is extreme
        units, lengths, largest = _rescaled(G)
        bound = (1.0 - 1e-12) * B
        short = largest * lengths <= bound
        units *= (bound / lengths)[:, None]
        clipped = np.where(short[:, None], G, units)
        return np.where(np.isfinite(largest)[:, None], clipped, 0.0)


def _rescaled(G: Array) -> tuple[Array, Array, Array]:
    """Rows over their largest entries, the norms of these, and the entries: U, |U|, max |G|.

    No square over- or underflows then at any magnitude; all rows are treated alike.
    """
    largest = np.abs(G.T, order="C").max(axis=0, initial=0.0)  # quicker than along short rows
    units = G / np.where(largest > 0, largest, 1.0)[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", units, units))
    return units, np.where(largest > 0, lengths, 1.0), largest


def clip_values(y: Array, low: float, high: float, worst: float) -> Array:
    """Measures how far values lie above ``low``, clipped to [0, high - low].

    Distances from the bound are returned, and released, because adding a bound far from zero
    before the noise would round differently for neighbouring data sets.

    Args:
        y: One value a record, any shape.
        low: Lower bound.
        high: Upper bound, > low.
        worst: What NaN and infinities become, in [low, high].

    Returns:
        Shape of ``y``.
    """
    with np.errstate(all="ignore"):
        above = np.where(np.isfinite(y), y, worst) - low
        return np.asarray(np.clip(above, 0.0, high - low))


def fixed_point_sum(values: Array, bound: float) -> IntArray:
    """Exact sum over the first axis in units of ``bound / 2**36``, rounded towards zero.

    Rounding towards zero never lengthens a row, so a bound on norms holds for the integers. No
    entry counts for more than the bound, clipped before or not.
    """
    one = 2.0**FRACTION_BITS
    with np.errstate(all="ignore"):
        units = np.fmax(np.fmin(np.trunc(values / bound * one), one), -one)
    return np.asarray(units.astype(np.int64).sum(0))


@dataclass
class BoundedMean:
    """Accumulates an exact mean of bounded contributions, block by block.

    Args:
        bound: Largest L2 norm of one record's contribution.

    Example:
        >>> mean = BoundedMean(1.0)
        >>> mean.add(np.array([[0.25], [0.75]]))
        >>> mean.result()
        array([0.5])
    """

    bound: float
    n: int = 0
    total: IntArray | None = None
    _float_total: Array | None = None

    def add(self, contributions: Array) -> None:
        """Adds one block, shape (n_block, d), already clipped to the bound.

        Raises:
            ValueError: If the number of records exceeds what the exact sum can hold.
        """
        self.n += len(contributions)
        if self.n > MAX_RECORDS:
            raise ValueError(f"At most {MAX_RECORDS} records are supported, got more.")
        if math.isinf(self.bound):
            block = contributions.sum(0)
            self._float_total = block if self._float_total is None else self._float_total + block
            return
        part = fixed_point_sum(contributions, self.bound)
        self.total = part if self.total is None else self.total + part

    def result(self) -> Array:
        """The mean, shape (d,)."""
        if self._float_total is not None:
            return np.asarray(self._float_total / self.n)
        if self.total is None:
            raise ValueError("A mean of no records is not defined.")
        return np.asarray(self.total.astype(float) * (self.bound / 2.0**FRACTION_BITS) / self.n)


def mean_of_clipped_rows(blocks: Iterable[Array], B: float) -> Array:
    """Mean over records of rows clipped to norm B; replace-one L2 sensitivity 2B/n.

    Args:
        blocks: Blocks of per-record vectors, shape (n_block, d) each.
        B: Clipping norm, > 0; infinity for no clipping (mu = infinity only).

    Returns:
        Shape (d,).
    """
    mean = BoundedMean(B)
    for G in blocks:
        mean.add(clip_rows(G, B))
    return mean.result()


def mean_of_clipped_values(
    blocks: Iterable[Array], low: float, high: float, worst: float
) -> Array:
    """Mean over records of :func:`clip_values`; replace-one sensitivity (high - low)/n.

    Args:
        blocks: Blocks of values, shape (n_block, 1) each.
        low: Lower bound.
        high: Upper bound.
        worst: What NaN and infinities become.

    Returns:
        Distance of the clipped mean from ``low``, shape (1,).
    """
    mean = BoundedMean(high - low)
    for y in blocks:
        mean.add(clip_values(y, low, high, worst))
    return mean.result()


def fraction_within(blocks: Iterable[Array], B: float) -> Array:
    """Fraction of records whose vector has norm at most B; replace-one sensitivity 1/n.

    Args:
        blocks: Blocks of per-record vectors, shape (n_block, d) each.
        B: The norm.

    Returns:
        Shape (1,).
    """
    mean = BoundedMean(1.0)
    for G in blocks:
        with np.errstate(all="ignore"):
            _, lengths, largest = _rescaled(G)
            within = largest * lengths <= B
        mean.add(within.astype(float)[:, None])
    return mean.result()


def check_share(mu: float) -> None:
    """Checks that the noise of one release can keep its mu.

    Raises:
        ValueError: If it is below :data:`SMALLEST_MU`.
    """
    if not mu >= SMALLEST_MU:
        raise ValueError(
            f"One release would have mu={mu}, and mu may not be below {SMALLEST_MU:g}: so much "
            "noise lies on a grid too coarse for it. Plan fewer releases or a larger budget."
        )


def gaussian_scale(sensitivity: float, mu: float) -> float:
    """Standard deviation sensitivity / mu of a mu-GDP Gaussian release (paper, Theorem 2.4).

    Rounded towards privacy by :data:`SENSITIVITY_SLACK`; 0 for mu = infinity.

    Raises:
        ValueError: If mu is below :data:`SMALLEST_MU`.
    """
    check_share(mu)
    return 0.0 if math.isinf(mu) else sensitivity * SENSITIVITY_SLACK / mu
