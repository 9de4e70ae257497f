"""Finite features of a kernel: the Nyström embedding, and a dictionary that grows with the data.

Notation:

    ======  ==============================================================  ========
    symbol  meaning                                                         shape
    ======  ==============================================================  ========
    D       dictionary: some of the points that were evaluated              (m, p)
    K_D     k(D, D)                                                         (m, m)
    phi     k_D(x)ᵀ (K_D^{-1/2})†, the features of x                        (m,)
    V       sum of phi phiᵀ over all evaluations + lambda I                 (m, m)
    s2      k(x, x) - phiᵀphi + lambda phiᵀ V⁻¹ phi, posterior variance     scalar
    ======  ==============================================================  ========

Source: Zhou and Tan, Algorithm 4, after Chowdhury and Gopalan 2019 and Calandriello et al. 2019.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
Covariance = Callable[[Array, Array], Array]

RANK_TOLERANCE = 1e-8
"""A point closer than this to the span of a dictionary adds nothing to it (variance units)."""


def sampled(q: float, s2: Array, counts: Array, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draws the distinct points that enter the dictionary (Algorithm 4, lines 4 and 5).

    Each of a point's ``counts`` evaluations is kept with probability min(q s2, 1); one suffices.

    Args:
        q: Oversampling factor.
        s2: Posterior variances of the distinct points before this round, shape (n,).
        counts: How often each was evaluated, shape (n,).
        rng: Source of the coins; public.

    Returns:
        Mask of shape (n,).
    """
    p = np.minimum(q * s2, 1.0)
    return np.asarray(rng.random(len(s2)) < 1.0 - (1.0 - p) ** counts)


def independent_rows(
    k: Covariance, Z: Array, prior: Array, tolerance: float = RANK_TOLERANCE
) -> IntArray:
    """Rows of Z whose features span those of all rows, by pivoted Cholesky.

    Args:
        k: Covariance function.
        Z: Points, shape (n, p).
        prior: Their variances k(z, z), shape (n,).
        tolerance: Residual variance below which a point is taken to lie in the span.

    Returns:
        Row numbers, sorted, shape (m,).
    """
    n = len(Z)
    residual = prior.copy()
    floor = tolerance * float(residual.max(initial=0.0))
    columns = np.empty((n, 0))
    chosen: list[int] = []
    while len(chosen) < n:
        pivot = int(np.argmax(residual))
        if residual[pivot] <= floor:
            break
        column = k(Z, Z[pivot : pivot + 1])[:, 0] - columns @ columns[pivot]
        column = column / np.sqrt(residual[pivot])
        columns = np.hstack([columns, column[:, None]])
        residual = np.maximum(residual - column * column, 0.0)
        residual[pivot] = 0.0
        chosen.append(pivot)
    return np.array(sorted(chosen), dtype=np.int64)


def inverse_root(K: Array) -> Array:
    """(K^{-1/2})†, the symmetric pseudo-inverse root, shape (m, m)."""
    values, vectors = scipy.linalg.eigh(K)
    keep = values > RANK_TOLERANCE * 1e-4 * max(float(values[-1]), 1e-300)
    root = vectors[:, keep] / np.sqrt(values[keep])
    return np.asarray(root @ vectors[:, keep].T)


class NystromEmbedding:
    """phi(x) = (K_D^{-1/2})† k_D(x) (Algorithm 4, line 7).

    Args:
        k: Covariance function.
        D: Dictionary, shape (m, p).
        prior: Their variances, shape (m,): points in the span of others are left out then, so
            that m is the number of independent ones; None keeps all.
    """

    def __init__(self, k: Covariance, D: Array, prior: Array | None = None) -> None:
        self._k = k
        self.D = D if prior is None or not len(D) else D[independent_rows(k, D, prior)]
        self._root = inverse_root(k(self.D, self.D)) if len(self.D) else np.empty((0, 0))
        self.m = len(self.D)
        """Number of features."""

    def features(self, Z: Array) -> Array:
        """Phi at each of the points, shape (n, m)."""
        if self.m == 0:
            return np.empty((len(Z), 0))
        return np.asarray(self._k(Z, self.D) @ self._root)


class GrowingFeatures:
    """Features of a dictionary that takes in every point it does not yet span.

    The Newton basis of the pivots in the order of their arrival: phi = L⁻¹ k_D(x) with L the
    Cholesky factor of K_D. Exact up to the tolerance, and all sums stay incremental.

    Args:
        k: Covariance function.
        tolerance: Residual variance (k(x, x) = 1) that a new pivot must exceed.
        max_rank: The most pivots; beyond, what they do not span is left to the residual.
    """

    def __init__(self, k: Covariance, tolerance: float = 1e-4, max_rank: int = 256) -> None:
        self._k, self._tolerance, self._max_rank = k, tolerance, max_rank
        self.D: Array = np.empty((0, 0))
        self._L: Array = np.empty((0, 0))

    @property
    def m(self) -> int:
        """Number of features."""
        return len(self.D)

    def features(self, Z: Array) -> Array:
        """Phi at each of the points, shape (n, m)."""
        if self.m == 0:
            return np.empty((len(Z), 0))
        return np.asarray(scipy.linalg.solve_triangular(self._L, self._k(self.D, Z), lower=True).T)

    def grow(self, z: Array) -> bool:
        """Takes a point (p,) as a new pivot if it is not spanned; True if it was taken."""
        prior = float(self._k(z[None], z[None])[0, 0])
        phi = self.features(z[None])[0]
        residual = prior - float(phi @ phi)
        if self.m >= self._max_rank or residual <= self._tolerance * prior:
            return False
        m = self.m
        L = np.zeros((m + 1, m + 1))
        L[:m, :m], L[m, :m], L[m, m] = self._L, phi, np.sqrt(residual)
        self._L = L
        self.D = z[None] if m == 0 else np.vstack([self.D, z])
        return True
