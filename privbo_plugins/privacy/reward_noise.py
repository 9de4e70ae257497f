"""Public facts on the noise of rewards: what algorithms may know of a mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privbo_plugins.settings import Stored, is_range, setting, settings


@dataclass(frozen=True)
class Tail:
    """A sub-Weibull tail (eq. 5): the radius exceeded with probability at most 1/t.

    Attributes:
        radius: Scale, in reward units.
        theta: Tail parameter: 0 is bounded, 1/2 sub-Gaussian, 1 sub-exponential.
        a: Factor of the tail.

    Example:
        >>> Tail(2.0, theta=1.0)(math.e)  # Laplace: L ln t
        2.0
    """

    radius: float
    theta: float
    a: float = 1.0

    def __call__(self, t: float) -> float:
        """``radius (ln(a t))^theta`` for t >= 1."""
        return float(self.radius * math.log(self.a * t) ** self.theta)


@dataclass(frozen=True)
class RewardNoise:
    """What privatising adds to a reward.

    Attributes:
        variance: The largest variance of the release, given the reward.
        total_variance: The largest variance of the release over all distributions of rewards in
            the range: it holds the reward's own noise too.
        tail: How far a release strays from the clipped reward.
    """

    variance: float
    total_variance: float
    tail: Tail


@settings(eq=False)
class RewardScale(Stored):
    """Settings of everything that learns from rewards: their range, and what privatising adds."""

    low: float | None = setting(
        "Lower end of the rewards' public range; None if none is known.", default=None
    )
    high: float | None = setting("Upper end.", default=None)
    noise: RewardNoise | None = setting(
        "What privatising adds; None for raw rewards.", default=None
    )

    def __attrs_post_init__(self) -> None:
        ends = self.low, self.high
        if ends != (None, None) and not is_range(ends):
            raise ValueError(f"The reward range needs finite low < high, or neither, got {ends}.")


def sub_weibull_radius(
    theta: float, horizon: int, delta: float, *, a: float = 2.0, b: float = 1.0
) -> float:
    """R = ((ln(a T / delta)) / b)^theta: unbounded noise stays within R for T evaluations.

    For noise with ``P(|eta| >= x) <= a exp(-b x^(1/theta))`` (eq. 5) all of T evaluations lie
    within R with probability at least 1 - delta, so ``bound = B + R`` is the paper's rule for
    unbounded noise (section 4.5). There the delta goes into the guarantee, because nothing is
    clipped; here rewards are clipped, the guarantee is pure for every input, and delta only bounds
    the probability that clipping changes any of the T rewards.

    Args:
        theta: Tail parameter, > 0; 1/2 is sub-Gaussian, 1 sub-exponential.
        horizon: Number of evaluations T.
        delta: In (0, 1).
        a: Factor of the tail, > 0.
        b: Rate of the tail, > 0.

    Raises:
        ValueError: For an argument outside its range.

    Example:
        >>> round(sub_weibull_radius(0.5, horizon=1000, delta=0.01, b=0.5), 3)  # N(0, 1)
        4.941
    """
    if not (theta > 0 and horizon >= 1 and 0 < delta < 1 and a > 0 and b > 0):
        raise ValueError(
            "sub_weibull_radius needs theta, a, b > 0, horizon >= 1 and delta in (0, 1), got "
            f"theta={theta}, a={a}, b={b}, horizon={horizon}, delta={delta}."
        )
    return float(max(math.log(a * horizon / delta) / b, 0.0) ** theta)
