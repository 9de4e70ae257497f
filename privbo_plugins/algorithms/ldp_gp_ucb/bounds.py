"""The figures of the regret bounds that can be computed: gamma_T and the rates.

The paper gives regret bounds up to constants that it does not state; the functions that return
rates therefore return the expression inside its O or Omega, for comparing settings, never a bound
on a run's regret.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def information_gain(K: ArrayLike, T: int, lam: float = 1.0) -> float:
    """gamma_T over finitely many arms, by the greedy choice (section 2, after equation 3).

    The information gain is submodular, so what the greedy choice finds is at least 1 - 1/e of
    the maximum: divide by that for an upper bound.

    Args:
        K: Covariance of the arms, shape (N, N).
        T: Number of evaluations; an arm may be evaluated again.
        lam: Noise variance lambda.

    Returns:
        ``1/2 ln det(I + K_A / lam)`` of the greedy A.

    Raises:
        ValueError: If T is negative or lam not positive.

    Example:
        >>> round(information_gain(np.eye(2), T=2), 4) == round(math.log(2.0), 4)
        True
    """
    if T < 0 or not lam > 0:
        raise ValueError(f"information_gain needs T >= 0 and lam > 0, got T={T}, lam={lam}.")
    C = np.array(K, dtype=float)
    gain = 0.0
    for _ in range(T):
        arm = int(np.argmax(np.diag(C)))
        variance = max(float(C[arm, arm]), 0.0)
        gain += 0.5 * math.log1p(variance / lam)
        C -= np.outer(C[:, arm], C[arm]) / (variance + lam)
    return gain


def lower_rate(
    kernel: str,
    T: int,
    *,
    epsilon: float,
    d: int,
    B: float = 1.0,
    v: float = 1.0,
    alpha: float = 1.0,
    nu: float = 2.5,
) -> float:
    """Lower bound on the regret of any LDP algorithm, up to a constant (Theorem 1).

    Args:
        kernel: "rbf" (the paper's SE) or "matern".
        T: Number of evaluations.
        epsilon: Privacy parameter.
        d: Dimension of the domain.
        B: Bound on the norm of f.
        v: Bound on the (1 + alpha)th moment of the rewards.
        alpha: In (0, 1].
        nu: Smoothness of the Matérn kernel.

    Returns:
        The expression inside Omega.

    Raises:
        ValueError: If the kernel is another one.

    Example:
        >>> ratio = lower_rate("matern", 100, epsilon=0.01, d=1, nu=1e9) / 10.0
        >>> round(ratio * math.expm1(0.01), 3)  # sqrt(T) / eps for a very smooth kernel
        1.0
    """
    zeta = math.expm1(epsilon)
    if kernel == "rbf":
        rate = (v * T) ** (1 / (1 + alpha)) * zeta ** (-2 * alpha / (1 + alpha))
        inside = B ** ((1 + alpha) / alpha) * T * zeta**2 / v ** (1 / alpha)
        return float(rate * max(math.log(inside), 0.0) ** (d * alpha / (2 + 2 * alpha)))
    if kernel != "matern":
        raise ValueError(f"kernel must be 'rbf' or 'matern', got {kernel!r}.")
    total = nu * (1 + alpha) + d * alpha
    power = -2 * alpha / (1 + alpha) + 2 * d * alpha**2 / ((1 + alpha) * total)
    scale = v ** (nu / total) * B ** (d * alpha / total) * zeta**power
    return float(scale * T ** ((nu + d * alpha) / total))


def upper_rate(gamma: float, T: int, *, epsilon: float, B: float, R: float) -> float:
    """gamma_T sqrt(T) (B + R) / eps: all three algorithms up to logarithms (Remarks 2 to 4).

    Args:
        gamma: gamma_T.
        T: Number of evaluations.
        epsilon: Privacy parameter.
        B: Bound on the norm of f.
        R: Bound on the raw noise.
    """
    return gamma * math.sqrt(T) * (B + R) / epsilon
