"""Private selection: the best of many candidates by a noisy comparison.

Report-noisy-min (permute-and-flip, McKenna and Sheldon 2020) reveals the index alone, so its
cost does not grow with the number of candidates. :func:`noisy_argmin` does it; the rest of this
module accounts for three relatives, which are simulated in :mod:`benchmarks.map`.

Notation:

    ========  ====================================================================
    symbol    meaning
    ========  ====================================================================
    eps       width of the range of the privacy loss
    p, q      probability of an outcome of loss t under the one and the other data
    K         random number of candidates, geometric with P(K = k) = gamma (1 - gamma)^(k-1)
    mu_b      Gaussian DP parameter of one candidate's noisy value
    l, l_hat  orders of Rényi divergences
    ========  ====================================================================
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.privacy.accountant import gdp_epsilon
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK

Array = NDArray[np.float64]

DELTA = 1e-5
"""At which a selection with a random number of candidates has mu-GDP's epsilon."""


def noisy_argmin(values: Array, sensitivity: float, mu: float) -> int:
    """Index of a nearly least value, mu-GDP (through pure epsilon-DP).

    Args:
        values: One mean of clipped losses a candidate, finite, shape (m,).
        sensitivity: How much replacing one record changes any of them.
        mu: Gaussian DP parameter, > 0.

    Raises:
        ValueError: If there are no values, one is not finite, or an argument is not positive.

    Example:
        >>> noisy_argmin(np.array([1.0, 0.0, 1.0]), sensitivity=1e-6, mu=1.0)
        1
    """
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("noisy_argmin needs at least one value, all of them finite.")
    if not (sensitivity > 0 and mu > 0):
        raise ValueError(f"sensitivity and mu must be positive, got {sensitivity} and {mu}.")
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_max
    from opendp.measures import max_divergence
    from opendp.metrics import linf_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    domain = vector_domain(atom_domain(T=float, nan=False))
    scale = 2.0 * sensitivity * SENSITIVITY_SLACK / pure_from_gdp(mu)
    select = make_noisy_max(
        domain, linf_distance(T=float), max_divergence(), scale=scale, negate=True
    )
    return int(select(values.tolist()))


def gdp_from_bounded_range(eps: float) -> float:
    """The mu for which report-noisy-min with Gumbel noise is mu-GDP.

    With noise of scale 2 sensitivity / eps it is the exponential mechanism, whose privacy loss
    lies between t - eps and t for some t in [0, eps] (Dong, Durfee and Rogers 2020, Lemma 3.2 and
    Theorem 3). The worst such mechanism has two outcomes, t of probability
    p = (e^eps - e^t) / (e^eps - 1) under the one data and q = p e^-t under the other. Its
    trade-off function has one kink, (q, 1 - p), so that it is mu-GDP for
    mu = Phi^-1(p) - Phi^-1(q). The largest over t is at eps / 2, where q = 1 - p.

    Example:
        >>> round(gdp_from_bounded_range(1.614), 3)
        1.0
    """
    return float(-2.0 * scipy.special.ndtri_exp(-np.logaddexp(0.0, eps / 2)))


def pure_from_gdp(mu: float) -> float:
    """The epsilon whose every mechanism is mu-GDP, the inverse of ``gdp_from_pure``."""
    return float(scipy.special.log_ndtr(mu / 2) - scipy.special.log_ndtr(-mu / 2))


def bounded_range_from_gdp(mu: float) -> float:
    """The inverse of :func:`gdp_from_bounded_range`: twice the pure epsilon."""
    return 2.0 * pure_from_gdp(mu)


def geometric_gamma(mean: float) -> float:
    """Gamma of a geometric K of that mean."""
    return 1.0 / mean


def adaptive_charge(order: Array, low: float, high: float) -> Array:
    """What candidates that depend on earlier values add to the Rényi divergence, by order.

    Wang et al. 2023 (DP-HyPO), Theorem 1, for K geometric. There a candidate's density over its
    base lies between low <= 1 and high >= 1, and (l / (l - 1) + 2) log(high / low) is added. The
    proof gives somewhat less. Let w be the probability, without any adaptation, of a candidate
    that beats an outcome z. The density of z as the best of K, over that of one candidate, is at
    most high f'(1 - low w) and at least low f'(1 - high w), with f the generating function of K
    and f'(1 - w) = E[K] (gamma / (gamma + (1 - gamma) w))^2. The outer factors contribute
    (l log(high) - (l - 1) log(low)) / (l - 1), and the inner ones, of which that at high w is at
    least (low / high)^2 times that at low w, 2 log(high / low). What remains is the bound for
    candidates that do not depend on anything, of which low w is a probability as well as w.

    Args:
        order: Rényi orders l, > 1.
        low: Least density of a candidate over its base, in (0, 1].
        high: Largest one, >= 1.

    Example:
        >>> adaptive_charge(np.array([2.0]), 1.0, 1.0)
        array([0.])
    """
    rise, fall = math.log(high), -math.log(low)
    return order / (order - 1.0) * rise + fall + 2.0 * (rise + fall)


def selection_epsilon(
    mu_b: float, mean: float, delta: float, low: float = 1.0, high: float = 1.0
) -> float:
    """Epsilon at delta of the best of K candidates, K geometric.

    Papernot and Steinke 2022, Theorem 2 with eta = 1: for a candidate that is (l, l mu_b² / 2)-
    and (l_hat, l_hat mu_b² / 2)-RDP the selection is (l, e)-RDP with

        e = l mu_b² / 2 + 2 (1 - 1 / l_hat) l_hat mu_b² / 2 + 2 log(1 / gamma) / l_hat
            + log E[K] / (l - 1),

    plus :func:`adaptive_charge` where the candidates depend on earlier values. The best l_hat is
    sqrt(2 log(1 / gamma)) / mu_b, at least 1. From RDP to epsilon by Canonne, Kamath and Steinke
    2020, Proposition 12, the least over a grid of l.
    """
    surprise = math.log(1.0 / geometric_gamma(mean))
    l_hat = max(math.sqrt(2.0 * surprise) / mu_b, 1.0)
    other = (l_hat - 1.0) * mu_b**2 + 2.0 * surprise / l_hat
    order = 1.0 + np.geomspace(1e-3, 1e5, 4000)
    e = order * mu_b**2 / 2 + other + math.log(mean) / (order - 1.0)
    e = e + adaptive_charge(order, low, high)
    e = e + np.log1p(-1.0 / order) - (math.log(delta) + np.log(order)) / (order - 1.0)
    return max(float(e.min()), 0.0)


@cache
def selection_mu(
    mu: float, mean: float, delta: float, low: float = 1.0, high: float = 1.0
) -> float:
    """Mu_b with which the selection's epsilon at delta is at most that of mu-GDP."""
    wanted = gdp_epsilon(mu, delta)
    below, above = 0.0, mu
    for _ in range(60):
        middle = (below + above) / 2
        fits = middle > 0 and selection_epsilon(middle, mean, delta, low, high) <= wanted
        below, above = (middle, above) if fits else (below, middle)
    return below
