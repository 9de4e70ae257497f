"""Why the published theorem is false: two attacks on a released table.

Every column of the published Z = X M / sqrt(r) lies in the column space of the centred table X,
which has at most d of the n dimensions (raising singular values keeps it). So

- an attacker with two candidate tables sees at one look which of them it was (:func:`residual`);
- one who knows d + 1 rows in general position knows M up to the centre, and then all the others
  (:func:`recovered_rows`).

Against noise on every row both are reduced to what its epsilon allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.po_gp_ucb.projection import centred

Array = NDArray[np.float64]


def residual(Z: Array, X: Array) -> float:
    """Measures how much of Z lies off the column space of a candidate table, relative to Z.

    Args:
        Z: A released table, shape (n, r).
        X: A candidate for the secret one, shape (n, d).

    Returns:
        Rounding error for the true table under the published transformation; about
        sqrt(1 - d/n) for any table once every row has noise of its own.
    """
    Q, _ = np.linalg.qr(centred(X))
    off = Z - Q @ (Q.T @ Z)
    return float(np.linalg.norm(off) / np.linalg.norm(Z))


def told_apart(Z: Array, one: Array, other: Array) -> int:
    """Which candidate the released table fits better: 0 or 1."""
    return int(residual(Z, other) < residual(Z, one))


def recovered_rows(Z: Array, known: Array, rows: Array) -> Array:
    """Every row of the secret table, from a few known ones.

    Args:
        Z: A released table, shape (n, r).
        known: What the attacker knows, shape (k, d), k > d.
        rows: Which rows these are, shape (k,).

    Returns:
        The attacker's estimate of all rows, shape (n, d): the affine map from z to x that fits
        the known ones best.
    """
    ones = np.ones((len(Z), 1))
    inputs = np.hstack([Z, ones])
    weights, *_ = np.linalg.lstsq(inputs[rows], known, rcond=1e-9)
    return np.asarray(inputs @ weights)
