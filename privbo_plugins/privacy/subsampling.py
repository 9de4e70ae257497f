"""Accounting for rounds of a Gaussian release on a Poisson sample of agents.

Notation (Dai et al. 2021, proposition 1; Abadi et al. 2016):

    ======  ====================================================
    symbol  meaning
    ======  ====================================================
    q       probability with which each agent is chosen, (0, 1]
    z       noise multiplier: standard deviation over clip norm
    T       number of rounds that release something
    ======  ====================================================

Neighbours differ by one agent's participation with everything it ever sends (add or remove): the
sensitivity of a sum of vectors clipped to norm S is S. Claims rest on privacy loss distributions,
the tightest there are.
"""

from __future__ import annotations

import math

from privbo_plugins.privacy.accountant import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    compose_epsilon,
    gdp_delta,
)
from privbo_plugins.privacy.figures import two_decimals

_LARGEST_Z = 4096

_TOLERANCE = 1e-3
"""Noise multipliers are found to a thousandth and rounded up."""


def check_sampling(q: float, z: float, T: int, delta: float) -> None:
    """Refuses what no accountant can take.

    Raises:
        ValueError: If a number lies outside its range.
    """
    if not 0 < q <= 1:
        raise ValueError(f"q must lie in (0, 1], got {q}.")
    if not z >= 0:
        raise ValueError(f"z must not be negative, got {z}.")
    if T < 0:
        raise ValueError(f"The number of rounds must not be negative, got {T}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}.")


def pld_epsilon(q: float, z: float, T: int, delta: float) -> float:
    """Epsilon at ``delta`` of T rounds by privacy loss distributions; an upper bound.

    Without sampling (q = 1) the closed form of Gaussian differential privacy.

    Args:
        q: Sampling probability, in (0, 1].
        z: Noise multiplier, >= 0; 0 gives infinity.
        T: Rounds, >= 0; 0 gives 0.
        delta: In (0, 1).

    Raises:
        ValueError: If a number lies outside its range.

    Example:
        >>> round(pld_epsilon(0.35, 1.0, 60, 1 / 29), 1)
        9.8
    """
    check_sampling(q, z, T, delta)
    if T == 0 or z == 0:
        return 0.0 if T == 0 else math.inf
    return compose_epsilon(rounds_of(q, z, T), delta)


def rounds_of(q: float, z: float, T: int) -> dict[Event, int]:
    """T rounds, T >= 1 and z > 0, as an accountant composes them."""
    if q == 1:
        return {GaussianEvent(math.sqrt(T) / z): 1}
    return {PoissonGaussianEvent(z, q): T}


def calibrate(*, epsilon: float, delta: float, n_rounds: int, q: float = 1.0) -> float:
    """The least noise multiplier z for which so many rounds stay within (epsilon, delta).

    What blurs the mean over agents is z / q: sampling hides who was asked, but leaves fewer
    vectors in the sum. For a fixed budget z / q is least at q = 1, so that is the default; a
    smaller q saves messages, not noise.

    Args:
        epsilon: Budget, > 0; infinity gives z = 0.
        delta: In (0, 1).
        n_rounds: Rounds that release something, >= 1.
        q: Sampling probability, in (0, 1].

    Raises:
        ValueError: If a number lies outside its range, or no noise up to z = 4096 is enough.

    Example:
        >>> z = calibrate(epsilon=4.0, delta=0.02, n_rounds=3)
        >>> pld_epsilon(1.0, z, 3, 0.02) <= 4.0
        True
    """
    check_sampling(q, 1.0, n_rounds, delta)
    if not epsilon > 0 or n_rounds < 1:
        raise ValueError(
            f"calibrate needs epsilon > 0 and n_rounds >= 1, got epsilon={epsilon}, "
            f"n_rounds={n_rounds}."
        )
    if math.isinf(epsilon):
        return 0.0
    low, high = 0.0, 1.0
    while _exceeds(q, high, n_rounds, epsilon, delta):
        low, high = high, 2.0 * high
        if high > _LARGEST_Z:
            raise ValueError(
                f"epsilon={epsilon} at delta={delta} cannot be kept over {n_rounds} rounds at "
                f"q={q}: not even z={_LARGEST_Z} is noise enough. Ask for fewer rounds or more "
                "epsilon."
            )
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        if _exceeds(q, middle, n_rounds, epsilon, delta):
            low = middle
        else:
            high = middle
    return high


def _exceeds(q: float, z: float, T: int, epsilon: float, delta: float) -> bool:
    """Tells whether T rounds cost more than the budget as it is shown, rounded up.

    Cheap bounds come first, for tiny z they suffice.
    """
    if gdp_delta(q / z, epsilon) > delta and q == 1:
        return True
    if z < 0.1:
        return True  # privacy loss distributions of so little noise would not fit into memory
    return float(two_decimals(pld_epsilon(q, z, T, delta))) > epsilon
