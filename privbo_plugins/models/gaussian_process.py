"""Exact Gaussian process regression: posterior means of gradients.

Notation:

    ======  =============================================  ==========
    symbol  meaning                                        shape
    ======  =============================================  ==========
    D       evaluated points                               (m, d)
    Y       observations, one row a function (record)      (n, m)
    s2      observation noise variance                     scalar
    L       Cholesky factor of K(D, D) + s2 I              (m, m)
    J       k(D, theta)∇ᵀ                                  (m, d)
    W       (K + s2 I)⁻¹ J: the gradient weights           (m, d)
    ======  =============================================  ==========
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.models.kernels import Kernel

Array = NDArray[np.float64]

_RANK_TOLERANCE = 1e-13
"""Eigenvalues below this fraction of the largest count as zero in a singular Gram matrix."""


class GaussianProcess:
    """A zero-mean Gaussian process whose factor grows a point at a time.

    Appending b points to m costs O(m² b + m b² + b³) instead of O((m + b)³). The same factor
    serves every function observed at the same points, so n records cost one factorisation.

    Args:
        kernel: The covariance function.
        s2: Observation noise variance, >= 0. Zero is interpolation: nothing is added to the
            diagonal. Where the Gram matrix is then singular (repeated points, a kernel of finite
            rank) the minimum-norm interpolant of its pseudo-inverse is used.

    Raises:
        ValueError: If s2 is negative or not finite.

    Example:
        >>> from privbo_plugins.models.kernels import RBF
        >>> gp = GaussianProcess(RBF(0.3), s2=1e-6)
        >>> gp.append(np.array([[0.2], [0.8]]))
        >>> slope = np.array([1.0, -1.0]) @ gp.gradient_weights(np.array([0.5]))
        >>> bool(slope[0] < 0)
        True
    """

    def __init__(self, kernel: Kernel, s2: float) -> None:
        if not (np.isfinite(s2) and s2 >= 0):
            raise ValueError(f"s2 must be a finite variance >= 0, got {s2}.")
        self.kernel = kernel
        self.s2 = float(s2)
        self.D: Array = np.empty((0, 0))
        self.L: Array | None = np.empty((0, 0))
        self._root: Array | None = None

    def append(self, X: Array) -> None:
        """Adds evaluated points, shape (b, d), by extending the Cholesky factor."""
        X = np.atleast_2d(np.asarray(X, dtype=float))
        old, self.D = self.D, X if self.D.size == 0 else np.vstack([self.D, X])
        try:
            self.L = self._extended(old, X)
        except scipy.linalg.LinAlgError:
            self.L = None
        self._root = None

    def _extended(self, old: Array, X: Array) -> Array:
        C = self._gram(X)
        if self.L is None:
            raise scipy.linalg.LinAlgError("the Gram matrix was singular before")
        m, b = len(old), len(X)
        L = np.zeros((m + b, m + b))
        if m:
            S = scipy.linalg.solve_triangular(self.L, self.kernel.k(old, X), lower=True)  # (m, b)
            L[:m, :m], L[m:, :m] = self.L, S.T
            C = C - S.T @ S
        L[m:, m:] = scipy.linalg.cholesky(C, lower=True)
        if np.min(np.diag(L)) < np.sqrt(_RANK_TOLERANCE) * float(np.max(np.diag(L))):
            raise scipy.linalg.LinAlgError("numerically singular")
        return L

    def _gram(self, X: Array) -> Array:
        K = self.kernel.k(X, X)
        K[np.diag_indices_from(K)] += self.s2
        return K

    def _pseudo_root(self) -> Array:
        """R with R Rᵀ the pseudo-inverse of the Gram matrix, shape (m, rank)."""
        if self._root is None:
            values, vectors = scipy.linalg.eigh(self._gram(self.D))
            keep = values > _RANK_TOLERANCE * values[-1]
            self._root = np.asarray(vectors[:, keep] / np.sqrt(values[keep]))
        return self._root

    def solve(self, B: Array) -> Array:
        """(K + s2 I)⁻¹ B for B of shape (m, ...)."""
        if self.L is None:
            root = self._pseudo_root()
            return np.asarray(root @ (root.T @ B))
        return np.asarray(scipy.linalg.cho_solve((self.L, True), B))

    def gradient_weights(self, theta: Array) -> Array:
        """W with ``Y @ W`` the posterior mean gradients at theta; shape (m, d). Paper, line 7."""
        return self.solve(self.kernel.jacobian(self.D, theta))
