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


def gradient_weights(kernel: Kernel, D: Array, theta: Array, s2: float) -> Array:
    """W with ``Y @ W`` the posterior mean gradients at theta of all records; shape (m, d).

    The zero-mean process of the paper's line 7.

    Args:
        kernel: The covariance function.
        D: Evaluated points, shape (m, d).
        theta: Where the gradients are wanted, shape (d,).
        s2: Observation noise variance, >= 0. Zero is interpolation: nothing is added to the
            diagonal. Where the Gram matrix is then singular (repeated points, a kernel of finite
            rank) the minimum-norm interpolant of its pseudo-inverse is used.

    Example:
        >>> from privbo_plugins.models.kernels import RBF
        >>> D = np.array([[0.2], [0.8]])
        >>> W = gradient_weights(RBF(0.3), D, np.array([0.5]), s2=1e-6)
        >>> bool((np.array([1.0, -1.0]) @ W)[0] < 0)
        True
    """
    K = kernel.k(D, D)
    K[np.diag_indices_from(K)] += s2
    J = kernel.jacobian(D, theta)
    try:
        L = scipy.linalg.cholesky(K, lower=True)
        if np.min(np.diag(L)) >= np.sqrt(_RANK_TOLERANCE) * np.max(np.diag(L)):
            return np.asarray(scipy.linalg.cho_solve((L, True), J))
    except scipy.linalg.LinAlgError:
        pass
    values, vectors = scipy.linalg.eigh(K)
    keep = values > _RANK_TOLERANCE * values[-1]
    root = vectors[:, keep] / np.sqrt(values[keep])
    return np.asarray(root @ (root.T @ J))
