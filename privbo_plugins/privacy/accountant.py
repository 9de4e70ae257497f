"""From charges to (epsilon, delta).

Gaussian differential privacy composes in closed form: mu_total² = Σ mu_i² (paper, Theorem 2.5),
also when each release is chosen after seeing the earlier ones, because every mu_i is fixed in
advance. mu-GDP is equivalent to (epsilon, delta(epsilon))-DP for all epsilon >= 0 with

    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)      (Dong et al. 2022, Cor. 2.13)

Whatever is not Gaussian is composed by dp-accounting's privacy loss distributions. An event
describes the pair of output distributions; the sensitivity under the neighbouring relation is
already in its noise multiplier, so no relation is ever passed on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

_LOST = 2.0**-48
"""More than the relative error of a logarithm of the normal distribution function."""

_STEP = 1e-9
"""By which a root is moved to the safe side, again until it is there."""


def gdp_delta(mu: float, epsilon: float) -> float:
    """Delta of a mu-GDP mechanism at ``epsilon`` >= 0, in [0, 1], rounded up.

    Stable in the tails; where the two terms cancel, what rounding may have taken is added.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    a = float(scipy.special.log_ndtr(-epsilon / mu + mu / 2))
    b = epsilon + float(scipy.special.log_ndtr(-epsilon / mu - mu / 2))
    gap = max(a - b, 0.0) + _LOST * (abs(a) + abs(b) + epsilon)
    at_zero = math.erf(mu / math.sqrt(8.0)) * (1.0 + _LOST)  # delta falls with epsilon
    return min(math.exp(a) * -math.expm1(-gap) * (1.0 + _LOST), at_zero, 1.0)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon with ``gdp_delta(mu, epsilon) <= delta``, rounded up.

    Args:
        mu: Gaussian DP parameter, >= 0.
        delta: In (0, 1).

    Raises:
        ValueError: If delta is outside (0, 1).

    Example:
        >>> round(gdp_epsilon(1.0, 1e-5), 3)
        4.377
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}.")
    if math.isinf(mu):
        return math.inf
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    upper = 1.0
    while gdp_delta(mu, upper) > delta:
        upper *= 2.0
    root = scipy.optimize.brentq(
        lambda e: gdp_delta(mu, e) - delta, 0.0, upper, xtol=1e-12, rtol=1e-12
    )
    found = float(root) * (1.0 + _STEP) + _STEP
    while gdp_delta(mu, found) > delta:
        found = found * (1.0 + _STEP) + _STEP
    return found


def gdp_mu(epsilon: float, delta: float) -> float:
    """Largest mu with ``gdp_delta(mu, epsilon) <= delta``, rounded down.

    The analytic Gaussian mechanism (Balle and Wang 2018): noise of standard deviation
    sensitivity / mu is (epsilon, delta)-DP.

    Args:
        epsilon: Finite, > 0.
        delta: In (0, 1).

    Raises:
        ValueError: If epsilon or delta lies outside its range.

    Example:
        >>> round(gdp_mu(1.0, 1e-5), 4)
        0.2681
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon must be a finite number > 0, got {epsilon}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}.")
    high = 1.0
    while gdp_delta(high, epsilon) <= delta:
        high *= 2.0
    low = high / 2.0
    while gdp_delta(low, epsilon) > delta:
        low /= 2.0
    # Where epsilon is tiny, gdp_delta is a little rough: the best bracket so far is good enough.
    root, _ = scipy.optimize.brentq(
        lambda m: gdp_delta(m, epsilon) - delta,
        low,
        high,
        xtol=min(1e-14, 1e-14 * low),
        full_output=True,
        disp=False,
    )
    found = float(root) * (1.0 - _STEP)
    while gdp_delta(found, epsilon) > delta:
        found *= 1.0 - _STEP
    return found


def chosen_mu(mu: float | None, epsilon: float | None, delta: float | None) -> float:
    """The mu of a run that was said as mu, or as epsilon and delta.

    Args:
        mu: Gaussian DP parameter, checked by whoever takes it.
        epsilon: Finite, > 0.
        delta: In (0, 1).

    Returns:
        ``mu``, or the largest one with delta(epsilon; mu) <= ``delta``, rounded down.

    Raises:
        ValueError: If both are given, or neither, or half of the second.

    Example:
        >>> chosen_mu(1.0, None, None), round(chosen_mu(None, 4.0, 1e-5), 3)
        (1.0, 0.925)
    """
    if mu is None and epsilon is None and delta is None:
        raise ValueError(
            "Nothing says how much privacy: give mu=1, or epsilon=4 with delta=1e-5 (well below "
            "one over the number of records)."
        )
    if mu is not None:
        if epsilon is not None or delta is not None:
            raise ValueError(
                "mu= and epsilon= with delta= say the same thing: give one of them. The guarantee "
                "tells epsilon at any delta."
            )
        return mu
    if epsilon is None or delta is None:
        missing = "delta" if delta is None else "epsilon"
        raise ValueError(
            f"epsilon= is meant at a delta=, and {missing}= is missing: for example epsilon=4, "
            "delta=1e-5, with delta well below one over the number of records."
        )
    return gdp_mu(_number("epsilon", epsilon), _number("delta", delta))


def _number(name: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise ValueError(f"{name} must be a number, got {given!r} ({type(given).__name__}).")
    return float(given)


def gdp_compose(mus: Iterable[float]) -> float:
    """sqrt(Σ mu²)."""
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def gdp_from_pure(epsilon: float) -> float:
    """The mu for which every epsilon-DP mechanism is mu-GDP.

    The trade-off function of epsilon-DP has its kink at alpha* = 1 / (1 + e^epsilon) on the
    diagonal; the Gaussian curve through that point lies below it everywhere, hence
    mu = -2 Phi^{-1}(alpha*).

    Example:
        >>> round(gdp_from_pure(0.807), 3)
        1.0
    """
    return float(-2.0 * scipy.special.ndtri_exp(-np.logaddexp(0.0, epsilon)))


def pure_from_gdp(mu: float) -> float:
    """The epsilon whose every mechanism is mu-GDP, the inverse of :func:`gdp_from_pure`."""
    return float(scipy.special.log_ndtr(mu / 2) - scipy.special.log_ndtr(-mu / 2))


@dataclass(frozen=True)
class GaussianEvent:
    """A Gaussian release: mu-GDP, that is noise multiplier 1/mu."""

    mu: float


@dataclass(frozen=True)
class PureEvent:
    """A pure epsilon-DP release."""

    epsilon: float


@dataclass(frozen=True)
class PoissonGaussianEvent:
    """A Gaussian release of noise multiplier z on a Poisson sample of rate q (add/remove)."""

    z: float
    q: float


@dataclass(frozen=True)
class ApproximateEvent:
    """An (epsilon, delta)-DP release of which nothing else is known: it counts as the worst one.

    That one tells everything with probability delta, and is randomised response otherwise.
    """

    epsilon: float
    delta: float


Event = GaussianEvent | PureEvent | PoissonGaussianEvent | ApproximateEvent


def _loss_distribution(event: Event, interval: float) -> Any:
    """The event's pessimistic privacy loss distribution."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(event, GaussianEvent):
        return pld.from_gaussian_mechanism(1.0 / event.mu, value_discretization_interval=interval)
    if isinstance(event, PureEvent | ApproximateEvent):
        return pld.from_privacy_parameters(
            common.DifferentialPrivacyParameters(event.epsilon, getattr(event, "delta", 0.0)),
            value_discretization_interval=interval,
        )
    return pld.from_gaussian_mechanism(
        event.z, sampling_prob=event.q, value_discretization_interval=interval
    )


def compose_epsilon(events: Iterable[Event], delta: float, *, interval: float = 1e-4) -> float:
    """Epsilon at ``delta`` of a sequence of releases.

    Closed form where every release is Gaussian, otherwise dp-accounting's pessimistic privacy
    loss distributions (an upper bound).

    Args:
        events: The releases; at least one.
        delta: In (0, 1).
        interval: Width of the grid of privacy losses; a wider one is quicker, and still a bound.

    Raises:
        ValueError: If delta is outside (0, 1) or there is no event.

    Example:
        >>> compose_epsilon([PureEvent(0.5), PureEvent(0.5)], 1e-6) <= 1.0 + 1e-3
        True
    """
    listed = list(events)
    if not listed:
        raise ValueError("compose_epsilon needs at least one event, got none.")
    mu = gdp_compose(e.mu for e in listed if isinstance(e, GaussianEvent))
    rest: list[Event] = [e for e in listed if not isinstance(e, GaussianEvent)]
    if not rest:
        return gdp_epsilon(mu, delta)
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}.")
    # One Gaussian of the composed mu is tighter and quicker than many.
    merged = [*rest, GaussianEvent(mu)] if mu > 0 else rest
    parts = [_loss_distribution(e, interval).self_compose(k) for e, k in Counter(merged).items()]
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return float(total.get_epsilon_for_delta(delta))


@dataclass(frozen=True)
class Cost:
    """What a ledger knows of one release of one user's reward.

    Args:
        epsilon: Of this evaluation alone.
        delta: At which that holds; 0 for pure epsilon.
        gaussian: Whether the noise was the analytic Gaussian mechanism's for this pair; its
            epsilon is then known at every delta.
    """

    epsilon: float
    delta: float = 0.0
    gaussian: bool = False

    @property
    def event(self) -> Event:
        """What it is to an accountant."""
        if self.delta == 0:
            return PureEvent(self.epsilon)
        if self.gaussian:
            return GaussianEvent(_gaussian_mu(self.epsilon, self.delta))
        return ApproximateEvent(self.epsilon, self.delta)


_gaussian_mu = lru_cache(maxsize=1024)(gdp_mu)

_STEPS = 2**12
"""A grid of privacy losses has about so many steps up to what simple addition gives."""


def evaluations_delta(evaluations: Mapping[Cost, int], least: float = 0.0) -> float:
    """A delta at which the evaluations of one user can be claimed: 0 if all of them are pure.

    ``least``, or the largest of the Gaussian ones, whose epsilon is finite at every delta, and the
    sum of those of which only a pair is known.
    """
    gaussian = max(
        (evaluation.delta for evaluation, k in evaluations.items() if evaluation.gaussian and k),
        default=0.0,
    )
    return (least or gaussian) + _leaked(evaluations)


def _leaked(evaluations: Mapping[Cost, int]) -> float:
    return math.fsum(
        k * evaluation.delta for evaluation, k in evaluations.items() if not evaluation.gaussian
    )


def evaluations_epsilon(evaluations: Mapping[Cost, int], delta: float) -> float:
    """Epsilon at ``delta`` of one user's evaluations, the least of three bounds that each hold.

    Epsilons and deltas added up; Gaussian evaluations as a single one of mu² = Σ mu_i², and the
    rest added to it; dp-accounting's pessimistic privacy loss distributions where kinds are mixed.

    Args:
        evaluations: How many of each.
        delta: In [0, 1); no less than :func:`evaluations_delta` gives, or infinity may be the
            answer.

    Example:
        >>> evaluations_epsilon({Cost(0.5): 2, Cost(0.25): 4}, 0.0)
        2.0
        >>> round(evaluations_epsilon({Cost(1.0, 1e-5, gaussian=True): 4}, 1e-5), 2)
        2.15
    """
    return _evaluations_epsilon(
        frozenset((evaluation, k) for evaluation, k in evaluations.items() if k), delta
    )


@lru_cache(maxsize=1024)
def _evaluations_epsilon(counted: frozenset[tuple[Cost, int]], delta: float) -> float:
    evaluations = dict(counted)
    if delta >= 1:  # which everything satisfies, and so says nothing
        return math.inf
    declared = math.fsum(k * evaluation.delta for evaluation, k in evaluations.items())
    added = _added(evaluations) if declared <= delta else math.inf
    return min(
        added, _as_one_gaussian(evaluations, delta), _by_loss_distributions(evaluations, delta)
    )


def _added(evaluations: Mapping[Cost, int]) -> float:
    return math.fsum(k * evaluation.epsilon for evaluation, k in evaluations.items())


def _as_one_gaussian(evaluations: Mapping[Cost, int], delta: float) -> float:
    squares = [
        k * p.event.mu**2 for p, k in evaluations.items() if isinstance(p.event, GaussianEvent)
    ]
    rest = {p: k for p, k in evaluations.items() if not isinstance(p.event, GaussianEvent)}
    left = delta - _leaked(rest)
    if not squares or left <= 0:
        return math.inf
    return gdp_epsilon(math.sqrt(math.fsum(squares)), left) + _added(rest)


def _by_loss_distributions(evaluations: Mapping[Cost, int], delta: float) -> float:
    kinds = {type(evaluation.event) for evaluation in evaluations}
    if delta == 0 or kinds <= {PureEvent} or kinds <= {GaussianEvent}:
        return math.inf  # the other bounds are exact
    events = [evaluation.event for evaluation, k in evaluations.items() for _ in range(k)]
    return compose_epsilon(events, delta, interval=_interval(evaluations))


def _interval(evaluations: Mapping[Cost, int]) -> float:
    """A grid on which the smallest epsilon lies exactly, if it can; others are rounded up to it.

    Hence a power of two: an inexact quotient would cost a step of the grid each way.
    """
    target = max(1e-4, _added(evaluations) / _STEPS)
    smallest = min(
        max(target, evaluation.epsilon) for evaluation in evaluations if not evaluation.gaussian
    )
    return math.ldexp(smallest, -math.floor(math.log2(smallest / target)))
