"""Mechanisms that privatise one bounded reward where it arises (local differential privacy).

Notation:

    ======  ======================================================================  =========
    symbol  meaning                                                                 unit
    ======  ======================================================================  =========
    y       a user's raw reward                                                     reward
    ybar    what the mechanism lets out, E[ybar | y] = clip(y)                      reward
    lo, hi  public range that y is clipped to; B + R = hi where it is symmetric     reward
    u       2 (clip(y) - lo) / (hi - lo) - 1, in [-1, 1]                            half-range
    L       scale of the Laplace noise, (hi - lo) / eps (paper: 2 (B + R) / eps)    reward
    C       largest output of the bounded mechanisms                                half-range
    ======  ======================================================================  =========

Every mechanism is eps-LDP, or (eps, delta)-LDP, for **all** pairs of inputs: the clipping is part
of it, and NaN and infinity become a constant before anything else happens. Continuous outputs
would betray the input through the floating-point numbers they cannot reach, so the bounded
mechanisms have finitely many outputs that do not depend on the input, drawn with exact
probabilities, and the unbounded ones are OpenDP's on a fixed grid.

Sources: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Curator 1 (laplace);
Duchi, Jordan and Wainwright (duchi); Wang et al. 2019, *Collecting and Analyzing
Multidimensional Data with Local Differential Privacy* (piecewise, hybrid); Balle and Wang 2018
(the analytic Gaussian mechanism).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from privbo_plugins.privacy.accountant import Cost, gdp_mu
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK, check_share, gaussian_scale
from privbo_plugins.privacy.reward_noise import RewardNoise, Tail
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.settings import again, named, setting, settings

_ROUNDING_BITS = 53
"""A reward is rounded to the mechanism's inputs by a coin of so many bits, without bias."""

_CELLS = 2**20
"""Outputs of the piecewise mechanism."""

_TOWARDS_PRIVACY = 1.0 - 2.0**-40, 2.0**-50
"""Factor and distance by which log odds stay below epsilon: far more than a logarithm's error."""

_SMALLEST_EPSILON = 1e-6
"""Below, coins could not be told from fair ones."""

_LARGEST_EPSILON = 30.0
"""Larger ones are carried out as this one: the probability of a lie must not round to zero."""

_LAST_DIGITS = 1e-9
"""At the smallest epsilon, the last digit of a probability is so much of C."""

_NARROWEST, _WIDEST = 1e-100, 1e100
"""Ranges for which no variance over- or underflows."""

_ROOT = 405.0 * math.sqrt(241.0)
PIECEWISE_FROM = math.log(
    (-5.0 + 2.0 * math.cbrt(6353.0 - _ROOT) + 2.0 * math.cbrt(6353.0 + _ROOT)) / 27.0
)
"""The hybrid mechanism uses the piecewise one above this epsilon, .609 (Wang et al., eq. 7)."""


@dataclass(frozen=True)
class LocalMechanism(abc.ABC):
    """Privatises one reward.

    Args:
        epsilon: Privacy parameter of one reward, > 0.
        low: Lower end of the public range.
        high: Upper end, > low.

    Raises:
        ValueError: If epsilon is not positive and finite, or the range is empty.

    Example:
        >>> from privbo_plugins.privacy.noise import SecureNoise
        >>> duchi = Duchi(epsilon=1.0, low=0.0, high=1.0)
        >>> round(abs(duchi.randomize(0.3, SecureNoise(), worst=0.0) - 0.5), 4)
        1.082
    """

    epsilon: float
    low: float
    high: float
    delta: float = field(default=0.0, kw_only=True)
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= _SMALLEST_EPSILON):
            raise ValueError(
                f"epsilon must be a finite number > 0 (at least {_SMALLEST_EPSILON:g}), got "
                f"{self.epsilon}."
            )
        _check_range(self.low, self.high)
        self._check_delta()

    def _check_delta(self) -> None:
        if self.delta:
            raise ValueError(
                f"{self.name} gives pure epsilon-LDP; delta={self.delta} has no use. Leave it out."
            )

    @property
    def width(self) -> float:
        """``high - low``: the sensitivity."""
        return self.high - self.low

    @property
    def half(self) -> float:
        """Half of the range."""
        return self.width / 2

    @property
    def middle(self) -> float:
        """Middle of the range."""
        return self.low + self.half

    def clip(self, y: float, worst: float) -> float:
        """The input in half-ranges, u in [-1, 1]; NaN and infinity count as ``worst``."""
        y = y if math.isfinite(y) else worst
        return min(max((y - self.low) / self.half - 1.0, -1.0), 1.0)

    def randomize(self, y: float, noise: NoiseSource, worst: float) -> float:
        """One private release of a reward.

        Args:
            y: The raw reward; any float.
            noise: Where the randomness comes from.
            worst: What NaN and infinity become, in [low, high].

        Returns:
            ``ybar``, unbiased for the clipped reward.
        """
        return self.middle + self.half * self._release(self.clip(y, worst), noise)

    def could_release(self, value: float) -> bool:
        """Tells whether the mechanism, for any reward, could have let this out."""
        return math.isfinite(value)

    @abc.abstractmethod
    def _release(self, u: float, noise: NoiseSource) -> float:
        """From u in [-1, 1] to an unbiased release in half-ranges."""

    @abc.abstractmethod
    def unit_variance(self, u: float) -> float:
        """Var[release | u], in squared half-ranges; convex or constant in |u|."""

    def variance(self, y: float) -> float:
        """Var[ybar | y] for a finite y, in squared reward units."""
        return self.half**2 * self.unit_variance(self.clip(y, self.middle))

    @property
    def worst_variance(self) -> float:
        """The largest Var[ybar | y] over all y."""
        return self.half**2 * max(self.unit_variance(0.0), self.unit_variance(1.0))

    @property
    def total_variance(self) -> float:
        """The largest Var[ybar] over all distributions of y in the range.

        ``E[ybar²]`` is largest where y sits at the ends, which also makes its mean zero.
        """
        ends = self.unit_variance(1.0) + 1.0
        return self.half**2 * max(ends, self.unit_variance(0.0))

    @property
    @abc.abstractmethod
    def tail(self) -> Tail:
        """Bounds how far ``ybar`` strays from ``clip(y)``."""

    @property
    def noise(self) -> RewardNoise:
        """Collects what an algorithm may know of it, all public."""
        return RewardNoise(self.worst_variance, self.total_variance, self.tail)

    @property
    def evaluation(self) -> Cost:
        """One evaluation, as an accountant knows it."""
        return Cost(self.epsilon)

    def parameters(self) -> dict[str, Any]:
        """Public, JSON-ready."""
        return {
            "mechanism": self.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "low": self.low,
            "high": self.high,
        }


def _check_range(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"The reward range needs finite low < high, got ({low}, {high}).")
    if not _NARROWEST <= high - low <= _WIDEST:
        raise ValueError(
            f"The reward range ({low}, {high}) must be between {_NARROWEST:g} and {_WIDEST:g} "
            "wide. Measure rewards in another unit."
        )


class Laplace(LocalMechanism):
    """CTL(eps), Curator 1: ``clip(y) + Laplace(L)``; variance 2 L²."""

    name = "laplace"

    @property
    def scale(self) -> float:
        """L, in reward units; a hair larger than (high - low) / eps, for the grid."""
        return self.width * SENSITIVITY_SLACK / self.epsilon

    def _release(self, u: float, noise: NoiseSource) -> float:
        return noise.add_laplace(u, self.scale / self.half)

    def unit_variance(self, u: float) -> float:
        """2 L², for every u."""
        return 2.0 * (self.scale / self.half) ** 2

    @property
    def tail(self) -> Tail:
        """L ln t (Algorithm 2, line 4)."""
        return Tail(self.scale, theta=1.0)


class _Bounded(LocalMechanism):
    """Mechanisms whose outputs lie in [-C, C] half-ranges."""

    @property
    def eps(self) -> float:
        """The epsilon that is carried out, a hair smaller."""
        factor, distance = _TOWARDS_PRIVACY
        return min(self.epsilon, _LARGEST_EPSILON) * factor - distance

    @property
    @abc.abstractmethod
    def C(self) -> float:
        """Largest output."""

    def could_release(self, value: float) -> bool:
        """Tells whether a value lies within C half-ranges of the middle."""
        return abs(value - self.middle) <= self.half * self.C + self._rounding

    @property
    def _rounding(self) -> float:
        """Bounds how far a value may lie off: logarithms differ in the last digit by machine."""
        reach = self.half * self.C
        return _LAST_DIGITS * reach + 4.0 * math.ulp(abs(self.middle) + reach)

    @property
    def tail(self) -> Tail:
        """All of it is within C of the middle, and clip(y) within 1."""
        return Tail(self.half * (self.C + 1.0), theta=0.0)


class Duchi(_Bounded):
    """Two outputs, ±C with C = (e^eps + 1) / (e^eps - 1); variance C² - u².

    The reward is rounded to an end of the range without bias, and that bit goes through
    randomised response: the privacy rests on the latter alone.
    """

    name = "duchi"

    @property
    def truth(self) -> float:
        """Probability of an honest bit, e^eps / (1 + e^eps)."""
        return _coin(self.eps)

    @property
    def C(self) -> float:
        """1 / (2 truth - 1), for the truth as a float."""
        return 1.0 / (2.0 * self.truth - 1.0)

    def could_release(self, value: float) -> bool:
        """Tells whether a value is one of the two."""
        off = abs(abs(value - self.middle) - self.half * self.C)
        return off <= self._rounding

    def _release(self, u: float, noise: NoiseSource) -> float:
        upper = _rounded_up((u + 1.0) / 2.0, noise)
        return self.C if noise.flip(self.truth) == upper else -self.C

    def unit_variance(self, u: float) -> float:
        """C² - u²; largest in the middle."""
        return self.C**2 - u * u


class Piecewise(_Bounded):
    """A window around the reward is likelier by e^eps than what lies outside of it.

    In the continuum C = (e^{eps/2} + 1) / (e^{eps/2} - 1) and the variance is
    ``u² / (e^{eps/2} - 1) + (e^{eps/2} + 3) / (3 (e^{eps/2} - 1)²)``. Here the outputs are 2**20
    points; the window covers ``w`` of them and starts at ``s``, to which the reward is rounded
    without bias.
    """

    name = "piecewise"

    @cached_property
    def w(self) -> int:
        """Points in the window: K / (e^{eps/2} + 1), rounded up."""
        return math.ceil(_CELLS / (math.exp(self.eps / 2) + 1.0))

    @cached_property
    def inside(self) -> float:
        """Probability of the window; its points are e^eps times as likely as the others."""
        return _coin(self.eps - math.log((_CELLS - self.w) / self.w))

    @cached_property
    def step(self) -> float:
        """Distance of two outputs: what makes the mean equal to u."""
        slope = self.inside - (1.0 - self.inside) * self.w / (_CELLS - self.w)
        return 2.0 / ((_CELLS - self.w) * slope)

    @property
    def C(self) -> float:
        """The outermost output."""
        return self.step * (_CELLS - 1) / 2

    def _release(self, u: float, noise: NoiseSource) -> float:
        position = (u + 1.0) / 2.0 * (_CELLS - self.w)
        s = math.floor(position)
        s += _rounded_up(position - s, noise)
        if noise.flip(self.inside):
            index = s + noise.integer(self.w)
        else:
            index = noise.integer(_CELLS - self.w)
            index += self.w if index >= s else 0
        return self.step * (index - (_CELLS - 1) / 2)

    def unit_variance(self, u: float) -> float:
        """The closed form of the continuum; 2**20 points have no more (at eps = 5: 1e-5 less)."""
        e = math.expm1(self.eps / 2)
        return u * u / e + (e + 4.0) / (3.0 * e * e)


class Hybrid(_Bounded):
    """Piecewise with probability 1 - e^{-eps/2}, else Duchi; Duchi alone below .61.

    Which of the two is chosen does not depend on the reward, so the mixture is eps-LDP.
    """

    name = "hybrid"

    @cached_property
    def duchi(self) -> Duchi:
        """One component."""
        return Duchi(self.epsilon, self.low, self.high)

    @cached_property
    def piecewise(self) -> Piecewise:
        """The other."""
        return Piecewise(self.epsilon, self.low, self.high)

    @property
    def alpha(self) -> float:
        """Share of the piecewise mechanism."""
        return -math.expm1(-self.eps / 2) if self.epsilon > PIECEWISE_FROM else 0.0

    @property
    def C(self) -> float:
        """The outermost output of either."""
        return self.piecewise.C if self.alpha > 0 else self.duchi.C

    def _release(self, u: float, noise: NoiseSource) -> float:
        chosen = self.piecewise if _rounded_up(self.alpha, noise) else self.duchi
        return chosen._release(u, noise)

    def unit_variance(self, u: float) -> float:
        """The mixture of both, which have the same mean."""
        parts = self.piecewise.unit_variance(u), self.duchi.unit_variance(u)
        return self.alpha * parts[0] + (1.0 - self.alpha) * parts[1]


class Gaussian(LocalMechanism):
    """``clip(y) + N(0, sigma²)`` with the analytic Gaussian mechanism's sigma: (eps, delta)-LDP.

    OpenDP's float Gaussian is a discrete one on a fine grid; (eps, delta) holds up to the width
    of that grid.

    Args:
        delta: In (0, 1).

    Raises:
        ValueError: Also if delta lies outside (0, 1).
    """

    name = "gaussian"

    def _check_delta(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(
                f"The Gaussian mechanism needs delta in (0, 1), got {self.delta}. Give delta=, "
                "for example 1e-6; the other mechanisms need none."
            )
        check_share(self.mu)

    @cached_property
    def mu(self) -> float:
        """Gaussian DP parameter: the largest with delta(eps; mu) <= delta."""
        return gdp_mu(self.epsilon, self.delta)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in reward units."""
        return gaussian_scale(self.width, self.mu)

    def _release(self, u: float, noise: NoiseSource) -> float:
        return float(noise.add_gaussian(np.array([u]), self.sigma / self.half)[0])

    def unit_variance(self, u: float) -> float:
        """sigma², for every u."""
        return (self.sigma / self.half) ** 2

    @property
    def tail(self) -> Tail:
        """Sigma sqrt(2 ln(2 t)): the sub-Weibull rule with theta = 1/2 (eq. 5)."""
        return Tail(self.sigma * math.sqrt(2.0), theta=0.5, a=2.0)

    @property
    def evaluation(self) -> Cost:
        """One evaluation, whose epsilon is known at every delta."""
        return Cost(self.epsilon, self.delta, gaussian=True)


def _coin(log_odds: float) -> float:
    """The largest probability, near 1 / (1 + e^-log_odds), whose log odds are not larger.

    The rounding of a probability near 1 can be worth more privacy than it looks: 1 - p is exact
    for p >= 1/2, so the odds that the coin really has are checked.
    """
    p = 1.0 / (1.0 + math.exp(-log_odds))
    while math.log(p) - math.log(1.0 - p) > log_odds and p > 0.5:
        p = math.nextafter(p, 0.0)
    return p


def _rounded_up(fraction: float, noise: NoiseSource) -> bool:
    """True with probability ``fraction`` in [0, 1], to 53 bits."""
    return noise.integer(2**_ROUNDING_BITS) < fraction * 2.0**_ROUNDING_BITS


LOCAL_MECHANISMS: dict[str, type[LocalMechanism]] = {
    mechanism.name: mechanism for mechanism in (Laplace, Duchi, Piecewise, Hybrid, Gaussian)
}
"""Mechanisms by the name a user gives."""

DEFAULT_MECHANISM = Duchi.name
"""What the benchmarks say is best."""


def make_mechanism(
    epsilon: float,
    *,
    bound: float | None = None,
    value_range: tuple[float, float] | None = None,
    mechanism: str = DEFAULT_MECHANISM,
    delta: float | None = None,
) -> LocalMechanism:
    """A mechanism from what users give.

    Args:
        epsilon: Privacy parameter of one reward, > 0 and finite.
        bound: Rewards are clipped to [-bound, bound]; the paper's B + R.
        value_range: Or to this public range, (low, high). Exactly one of the two.
        mechanism: "laplace", "duchi", "piecewise", "hybrid" or "gaussian".
        delta: For the Gaussian mechanism only.

    Raises:
        ValueError: For every argument outside its range.

    Example:
        >>> make_mechanism(1.0, value_range=(0.0, 1.0), mechanism="laplace").scale
        1.00000095367431...
    """
    if (bound is None) == (value_range is None):
        raise ValueError(
            "Give bound= (rewards are clipped to [-bound, bound]) or value_range=(low, high), "
            "one of them, from public knowledge: the guarantee rests on this clipping alone."
        )
    if not isinstance(mechanism, str) or mechanism not in LOCAL_MECHANISMS:
        raise ValueError(
            f"mechanism must be one of {', '.join(LOCAL_MECHANISMS)}, got {mechanism!r}."
        )
    low, high = _range(bound, value_range)
    more = {} if delta is None else {"delta": _number("delta", delta)}
    return LOCAL_MECHANISMS[mechanism](_number("epsilon", epsilon), low, high, **more)


def stored_mechanism(parameters: Mapping[str, Any]) -> LocalMechanism:
    """The inverse of :meth:`LocalMechanism.parameters`.

    Raises:
        ValueError: If they are none.

    Example:
        >>> coin = Duchi(1.0, 0.0, 1.0)
        >>> stored_mechanism(coin.parameters()) == coin
        True
    """
    try:
        kind = LOCAL_MECHANISMS[parameters["mechanism"]]
        more = {"delta": float(parameters["delta"])} if parameters["delta"] else {}
        epsilon, low, high = (float(parameters[name]) for name in ("epsilon", "low", "high"))
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            "These are no parameters of a mechanism, or those of another version."
        ) from None
    return kind(epsilon, low, high, **more)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got a {type(value).__name__}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a finite number, got a larger one.") from None


def _range(bound: float | None, value_range: tuple[float, float] | None) -> tuple[float, float]:
    if bound is not None:
        half = _number("bound", bound)
        if not (math.isfinite(half) and half > 0):
            raise ValueError(f"bound must be a finite number > 0, got {bound}.")
        return -half, half
    try:
        low, high = value_range  # type: ignore[misc]
        return float(low), float(high)
    except (TypeError, ValueError):
        raise ValueError(
            f"value_range must be two numbers (low, high), got {value_range!r}."
        ) from None


@settings
class RewardPrivacy:
    """How one reward is privatised, in words that users say it in.

    {settings}
    """

    epsilon: float = setting(
        "Privacy parameter of one reward, > 0; ``math.inf`` leaves rewards as they are.",
        kw_only=False,
    )
    bound: float | None = setting(
        "Rewards are clipped to [-bound, bound]; the paper's B + R.",
        default=None,
    )
    value_range: tuple[float, float] | None = setting(
        "Or to (low, high). At most one of the two, from public knowledge; a finite epsilon "
        "needs one.",
        default=None,
    )
    mechanism: str = setting(
        '"laplace" (as the paper publishes), "duchi", "piecewise", "hybrid" or "gaussian".',
        default=DEFAULT_MECHANISM,
    )
    delta: float | None = setting('For "gaussian" only: it is (epsilon, delta)-LDP.', default=None)

    def made(self) -> tuple[LocalMechanism | None, dict[str, Any]]:
        """A mechanism, and what an algorithm may know of it; no mechanism for ``math.inf``.

        Returns:
            The mechanism or None, and ``low``, ``high`` and ``noise`` of an algorithm's settings.

        Raises:
            ValueError: For every setting outside its range.
        """
        if self.epsilon != math.inf:
            made = make_mechanism(self.epsilon, **named(self, RewardPrivacy, but=("epsilon",)))
            return made, {"low": made.low, "high": made.high, "noise": made.noise}
        if self.bound is None and self.value_range is None:
            return None, {"low": None, "high": None, "noise": None}
        known = make_mechanism(1.0, bound=self.bound, value_range=self.value_range)
        return None, {"low": known.low, "high": known.high, "noise": None}


@settings
class AsPublished(RewardPrivacy):
    """The same with the mechanism that Zhou and Tan publish."""

    mechanism: str = again(RewardPrivacy, "mechanism", default=Laplace.name)


@settings
class OptionalRewardPrivacy(RewardPrivacy):
    """The same where nothing is privatised unless an epsilon is given."""

    epsilon: float = again(RewardPrivacy, "epsilon", default=math.inf)
