"""The sound transformation: a public projection and Gaussian noise on every row.

Notation:

    ======  ======================================================  ========
    symbol  meaning                                                 shape
    ======  ======================================================  ========
    X       the curator's rows, scaled by public bounds, clipped    (n, d)
    R       public bound on a row's norm                            scalar
    P       public projection: identity, or seeded                  (d, r)
    nu      how far neighbouring tables may differ, in one row      scalar
    Delta   sensitivity, min(nu, 2 R) |P|_2                         scalar
    sigma   standard deviation of the noise, Delta / mu             scalar
    Z       what is released, X P + sigma N(0, I)                   (n, r)
    ======  ======================================================  ========

Rows are clipped by projecting them on a ball, which moves no two rows apart, so neighbours that
differ by nu still do afterwards. Nothing here looks at more than one row: no mean, no singular
value of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins.privacy.mechanisms import clip_rows, gaussian_scale

Array = NDArray[np.float64]

WIDEST = 2.0**20
"""Largest norm bound in units of nu: rounding then stays far below the sensitivity's slack."""

_NORM_SLACK = 1.0 + 1e-9
"""Covers the rounding of a computed spectral norm."""


@dataclass(frozen=True)
class Scaling:
    """Public bounds of the columns: column j becomes (x - middle) / (high - low), in [-1/2, 1/2].

    Args:
        low: Lower bounds, one a column, from public knowledge.
        high: Upper bounds, > low.

    Raises:
        ValueError: If they or their distances are not finite, differ in length, or hold
            low >= high.

    Example:
        >>> Scaling((18.0, 0.0), (98.0, 1.0)).apply(np.array([[58.0, 0.25], [200.0, np.nan]]))
        array([[ 0.  , -0.25],
               [ 0.5 ,  0.  ]])
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or not self.low:
            raise ValueError(
                "bounds needs one (low, high) a column, got "
                f"{len(self.low)} lower and {len(self.high)} upper bounds."
            )
        for j, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not (low < high and math.isfinite(high - low)):
                raise ValueError(
                    f"bounds needs finite low < high, got ({low}, {high}) for column {j}."
                )

    def apply(self, X: Array) -> Array:
        """Scaled rows; what is no number becomes the middle, 0."""
        low, high = np.array(self.low), np.array(self.high)
        with np.errstate(all="ignore"):  # a warning would tell of an extreme entry
            scaled = (np.clip(X, low, high) - low) / (high - low) - 0.5
        return np.where(np.isfinite(X), scaled, 0.0)

    @property
    def radius(self) -> float:
        """The largest norm of a scaled row, sqrt(d) / 2."""
        return math.sqrt(len(self.low)) / 2


def checked_scaling(bounds: ArrayLike | None, d: int) -> Scaling | None:
    """Bounds as one (low, high) a column.

    Raises:
        ValueError: If there is not one pair a column.
    """
    if bounds is None:
        return None
    pairs = np.asarray(bounds, dtype=float)
    if pairs.shape == (2,) and d == 1:
        pairs = pairs[None]
    if pairs.shape != (d, 2):
        raise ValueError(
            f"bounds must hold one (low, high) for each of the {d} columns, shape ({d}, 2), got "
            f"{pairs.shape}."
        )
    return Scaling(tuple(pairs[:, 0].tolist()), tuple(pairs[:, 1].tolist()))


def rows_within(X: Array, scaling: Scaling | None, R: float) -> Array:
    """Rows scaled by public bounds and projected on the ball of radius R; always finite."""
    rows = np.where(np.isfinite(X), X, 0.0) if scaling is None else scaling.apply(X)
    return clip_rows(rows, R)


def public_projection(d: int, r: int, seed: int) -> Array:
    """P, shape (d, r): the identity for r = d, otherwise seeded orthogonal directions.

    Scaled by sqrt(d / r), so that distances keep their size on average (Johnson and
    Lindenstrauss); the sensitivity grows by the same factor.

    Raises:
        ValueError: Unless 1 <= r <= d: more columns than X has hold nothing more.
    """
    if not 1 <= r <= d:
        raise ValueError(f"r must lie between 1 and the table's {d} columns, got {r}.")
    if r == d:
        return np.eye(d)
    G = np.random.default_rng([seed, d, r]).standard_normal((d, r))
    Q, upper = np.linalg.qr(G)
    return np.asarray(Q * np.sign(np.diag(upper)) * math.sqrt(d / r))


def sensitivity(nu: float | None, R: float, P: Array) -> float:
    """Delta: how far one row's change moves the released rows; nu = None for any change."""
    moved = 2 * R if nu is None else min(nu, 2 * R)
    return moved * float(np.linalg.norm(P, 2)) * _NORM_SLACK


def noise_scale(delta_2: float, mu: float) -> float:
    """Sigma for a mu-GDP release of sensitivity ``delta_2``."""
    return gaussian_scale(delta_2, mu)
