"""Accountants that the product's own is compared with, for rounds on a Poisson sample of agents.

Rényi DP with its modern conversion, and the moments accountant as the paper of DP-FTS-DE used it.
Symbols are those of :mod:`privbo_plugins.privacy.subsampling`; alpha is the order of a Rényi
divergence, an integer in the moments accountant.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from privbo_plugins.privacy.subsampling import check_sampling

_LARGEST_ORDER = 256

_ORDERS = [1.9 + k / 10 for k in range(91)] + list(range(11, _LARGEST_ORDER + 1))
"""Rényi orders; below these dp-accounting's series often does not converge."""


def rdp_epsilon(q: float, z: float, T: int, delta: float) -> float:
    """Epsilon at ``delta`` of T rounds by dp-accounting's Rényi accountant.

    Arguments and errors as for :func:`pld_epsilon`.

    Example:
        >>> round(rdp_epsilon(0.35, 1.0, 60, 1 / 29), 1)
        13.1
    """
    check_sampling(q, z, T, delta)
    if T == 0 or z == 0:
        return 0.0 if T == 0 else math.inf
    import dp_accounting  # a second to import

    accountant = dp_accounting.rdp.RdpAccountant(_ORDERS)
    event = dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, event), T)
    return float(accountant.get_epsilon(delta))


def moments_epsilon(q: float, z: float, T: int, delta: float) -> float:
    """Epsilon by the moments accountant with integer moments, as the paper prints it.

    min over alpha of T ln A(alpha) / (alpha - 1) + ln(1/delta) / (alpha - 1), where
    A(alpha) = sum_k C(alpha, k) (1 - q)^(alpha - k) q^k exp(k (k - 1) / (2 z²)).
    Arguments and errors as for :func:`pld_epsilon`.

    Example:
        >>> round(moments_epsilon(0.35, 1.0, 60, 29**-1.1), 2)
        15.17
    """
    check_sampling(q, z, T, delta)
    if T == 0 or z == 0:
        return 0.0 if T == 0 else math.inf
    bounds = []
    for alpha in range(2, _LARGEST_ORDER + 1):
        k = np.arange(alpha + 1)
        log_binomial = (
            scipy.special.gammaln(alpha + 1)
            - scipy.special.gammaln(k + 1)
            - scipy.special.gammaln(alpha - k + 1)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            left_out = np.where(k == alpha, 0.0, (alpha - k) * np.log1p(-q))
        log_a = scipy.special.logsumexp(
            log_binomial + left_out + k * math.log(q) + k * (k - 1) / (2 * z * z)
        )
        bounds.append((T * float(log_a) - math.log(delta)) / (alpha - 1))
    return min(bounds)
