"""Private selection: the best of many candidates by a noisy comparison.

Report-noisy-min (permute-and-flip, McKenna and Sheldon 2020) reveals the index alone, so its
cost does not grow with the number of candidates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.privacy.accountant import pure_from_gdp
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK

Array = NDArray[np.float64]


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
