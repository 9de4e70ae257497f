"""The published transformation of PO-GP-UCB: a secret random projection, and **not private**.

Notation (Kharkovskii, Dai and Low, *Private Outsourced Bayesian Optimization*, Algorithm 1):

    ======  ======================================================  ========
    symbol  meaning                                                 shape
    ======  ======================================================  ========
    X       the curator's rows, centred by their mean               (n, d)
    M       secret standard normal matrix                           (d, r)
    omega   least singular value that the theorem asks for          scalar
    Z       what is released, X M / sqrt(r)                         (n, r)
    ======  ======================================================  ========

Theorem 1 says that Z is (epsilon, delta)-differentially private. It is not for n > d: every column
of Z lies in the column space of X, which has d dimensions in R^n, and a neighbouring table has
another one. Here for the record; see :mod:`privbo_plugins.algorithms.po_gp_ucb.attack`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def centred(X: Array) -> Array:
    """Line 2: the columns' means are subtracted."""
    return np.asarray(X - X.mean(0))


def omega(r: int, epsilon: float, delta: float) -> float:
    """Line 5: 16 sqrt(r ln(2/delta)) / epsilon ln(16 r / delta).

    Example:
        >>> round(omega(10, 3.0041660239464334, 1e-5), 1)  # epsilon = exp(1.1)
        976.1
    """
    return 16.0 * math.sqrt(r * math.log(2 / delta)) / epsilon * math.log(16 * r / delta)


def smallest_singular_value(X: Array) -> float:
    """sigma_min of a centred table, line 6."""
    return float(np.linalg.svd(X, compute_uv=False)[-1])


def largest_r(sigma_min: float, epsilon: float, delta: float, most: int = 1000) -> int:
    """The largest r with sigma_min >= omega (section 3.4's guideline); 0 if there is none."""
    fitting = 0
    while fitting < most and sigma_min >= omega(fitting + 1, epsilon, delta):
        fitting += 1
    return fitting


def lifted(X: Array, least: float) -> Array:
    """Line 9: singular values s become sqrt(s² + omega²)."""
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    return np.asarray((U * np.hypot(s, least)) @ Vt)


def transform(X: Array, M: Array, epsilon: float, delta: float) -> tuple[Array, bool]:
    """Algorithm 1, lines 2 to 10.

    Args:
        X: The rows, shape (n, d).
        M: Standard normal, shape (d, r).
        epsilon: Of the published theorem.
        delta: Of the published theorem.

    Returns:
        Z, shape (n, r), and whether the singular values were raised.
    """
    X, r = centred(X), M.shape[1]
    least = omega(r, epsilon, delta)
    raised = smallest_singular_value(X) < least
    return np.asarray((lifted(X, least) if raised else X) @ M / math.sqrt(r)), raised
