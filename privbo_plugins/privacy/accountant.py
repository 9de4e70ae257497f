"""From charges to (epsilon, delta).

Gaussian differential privacy composes in closed form: mu_total² = Σ mu_i² (paper, Theorem 2.5),
also when each release is chosen after seeing the earlier ones, because every mu_i is fixed in
advance. mu-GDP is equivalent to (epsilon, delta(epsilon))-DP for all epsilon >= 0 with

    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)      (Dong et al. 2022, Cor. 2.13)

Every epsilon-DP release is a post-processing of randomised response (Kairouz, Oh and Viswanath
2015), so pure and Gaussian releases compose exactly: with L the privacy loss of all the randomised
responses and mu of all the Gaussian releases,

    delta(eps) = E[delta_mu(eps - L)]

Releases on a sample are composed by dp-accounting's privacy loss distributions. An event describes
the pair of output distributions; the sensitivity under the neighbouring relation is already in its
noise multiplier, so no relation is ever passed on. delta(0) is the total variation between two
neighbours, so (1 + delta(0)) / 2 is the best chance to tell them apart.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

_LOST = 2.0**-48
"""More than the relative error of a logarithm of the normal distribution function."""

_STEP = 1e-9
"""By which a root is moved to the safe side, again until it is there."""

_INTERVAL = 1e-3
"""Grid of privacy losses of releases on a sample: costs less than 1e-4 in epsilon, towards
privacy, and saves minutes."""

_OUTCOMES = 2**16
"""Outcomes of randomised responses that are kept apart; those beyond count as Gaussian."""


def compose_mu(mus: Iterable[float], counts: Iterable[float] | None = None) -> float:
    """Mu of several releases to the same records together: their squares add up.

    Args:
        mus: Mu of each.
        counts: How many there are of each; None for one.

    Example:
        >>> compose_mu([3.0, 4.0]), compose_mu([1.0], [4])
        (5.0, 2.0)
    """
    squares = (mu**2 for mu in mus)
    pairs = squares if counts is None else map(operator.mul, counts, squares)
    return math.sqrt(math.fsum(pairs))


def gdp_delta(mu: float, epsilon: float) -> float:
    """Delta of a mu-GDP mechanism at ``epsilon`` >= 0, in [0, 1], rounded up.

    Stable in the tails; where the two terms cancel, what rounding may have taken is added.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    return float(_deltas(mu, np.array(float(epsilon))))


def _deltas(mu: float, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for 0 < mu < infinity at many epsilons of either sign."""
    a = scipy.special.log_ndtr(-epsilon / mu + mu / 2)
    b = epsilon + scipy.special.log_ndtr(-epsilon / mu - mu / 2)
    gap = np.fmax(a - b, 0.0) + _LOST * (np.abs(a) + np.abs(b) + np.abs(epsilon))
    at_zero = math.erf(mu / math.sqrt(8.0)) * (1.0 + _LOST)  # delta falls with epsilon
    found = np.exp(a) * -np.expm1(-gap) * (1.0 + _LOST)
    return np.asarray(np.minimum(found, np.where(epsilon >= 0, min(at_zero, 1.0), 1.0)))


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
    return _root_above(lambda e: gdp_delta(mu, e) - delta, upper)


def _root_above(excess: Callable[[float], float], upper: float) -> float:
    """Finds where a function that falls from above 0 is not above it any more, a hair beyond."""
    root = scipy.optimize.brentq(excess, 0.0, upper, xtol=1e-12, rtol=1e-12)
    found = float(root) * (1.0 + _STEP) + _STEP
    while excess(found) > 0:
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
    """Chooses the mu of a run, given as mu or as epsilon and delta.

    Args:
        mu: Gaussian DP parameter, checked by its settings.
        epsilon: Finite, > 0.
        delta: In (0, 1).

    Returns:
        ``mu``, or the largest one whose epsilon at ``delta``, rounded up, is at most ``epsilon``.

    Raises:
        ValueError: If both are given and are not the same, or neither, or half of the second.

    Example:
        >>> chosen_mu(1.0, None, None), round(chosen_mu(None, 4.0, 1e-5), 3)
        (1.0, 0.925)
    """
    if mu is None and epsilon is None and delta is None:
        raise ValueError(
            "Nothing says how much privacy: give mu=1, or epsilon=4 with delta=1e-5 (well below "
            "one over the number of records)."
        )
    if mu is not None and epsilon is None and delta is None:
        return mu
    twice = (
        "mu= and epsilon= with delta= say the same thing: give one of them. The guarantee tells "
        "epsilon at any delta."
    )
    if epsilon is None or delta is None:
        if mu is not None:
            raise ValueError(twice)
        missing = "delta" if delta is None else "epsilon"
        raise ValueError(
            f"epsilon= is meant at a delta=, and {missing}= is missing: for example epsilon=4, "
            "delta=1e-5, with delta well below one over the number of records."
        )
    found, less = gdp_mu(epsilon, delta), _STEP
    while gdp_epsilon(found, delta) > epsilon:
        found, less = found * (1.0 - less), min(2.0 * less, 0.5)
    if mu is not None and not math.isclose(mu, found, rel_tol=1e-6):  # which settings remember
        raise ValueError(twice)
    return found if mu is None else mu


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


Counted = frozenset[tuple[Event, int]]
"""How many releases there are of each kind."""

Releases = Iterable[Event] | Mapping[Event, int]
"""Releases, or how many there are of each."""


def compose_delta(releases: Releases, epsilon: float) -> float:
    """Delta of a sequence of releases at ``epsilon`` >= 0, rounded up.

    At 0 it is the total variation between two neighbours.

    Args:
        releases: The releases.
        epsilon: From 0.

    Example:
        >>> round(compose_delta([PureEvent(1.0)], 0.0), 4)
        0.4621
    """
    counted = frozenset(Counter(releases).items())
    if _sampled(counted):
        return min(1.0, float(_loss_distribution(counted).get_delta_for_epsilon(epsilon)))
    return _composed(counted).delta(epsilon)


def compose_epsilon(releases: Releases, delta: float) -> float:
    """Epsilon at ``delta`` of a sequence of releases, rounded up.

    Args:
        releases: The releases; at least one.
        delta: In (0, 1).

    Raises:
        ValueError: If delta is outside (0, 1) or there is no release.

    Example:
        >>> round(compose_epsilon({PureEvent(0.1): 100}, 1e-6), 2)
        4.77
    """
    counted = frozenset(Counter(releases).items())
    if not counted:
        raise ValueError("compose_epsilon needs at least one event, got none.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}.")
    if _sampled(counted):
        return float(_loss_distribution(counted).get_epsilon_for_delta(delta))
    return _exact_epsilon(counted, delta)


def _sampled(counted: Counted) -> bool:
    return any(isinstance(event, PoissonGaussianEvent) for event, _ in counted)


@lru_cache(maxsize=32)
def _loss_distribution(counted: Counted) -> Any:
    """The pessimistic privacy loss distribution of Gaussian releases, on samples too.

    Raises:
        ValueError: If there are others among them.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    parts = []
    for event, k in counted:
        if not isinstance(event, PoissonGaussianEvent | GaussianEvent):
            raise ValueError("Releases on a sample are composed with Gaussian ones alone.")
        z, q = (event.z, event.q) if isinstance(event, PoissonGaussianEvent) else (1 / event.mu, 1)
        one = pld.from_gaussian_mechanism(
            z, sampling_prob=q, value_discretization_interval=_INTERVAL
        )
        parts.append(one.self_compose(k))
    return reduce(lambda one, other: one.compose(other), parts)


class _Composed(NamedTuple):
    """Gaussian releases, randomised responses and tellings of everything, as one.

    Attributes:
        mu: Of all that is Gaussian.
        leak: Probability that something tells everything.
        losses: Privacy losses of the randomised responses together.
        weights: Their probabilities.
    """

    mu: float
    leak: float
    losses: NDArray[np.float64]
    weights: NDArray[np.float64]

    def delta(self, epsilon: float) -> float:
        """Delta at ``epsilon``, rounded up."""
        if math.isinf(self.mu):
            return 1.0
        above = epsilon - self.losses
        each = _deltas(self.mu, above) if self.mu else -np.expm1(np.minimum(above, 0.0))
        inexact = _STEP if len(self.losses) > 1 else 0.0
        rest = min(float(self.weights @ each) * (1.0 + inexact), 1.0)
        return min((self.leak + (1.0 - self.leak) * rest) * (1.0 + _LOST), 1.0)


@lru_cache(maxsize=16)
def _composed(counted: Counted) -> _Composed:
    """So many of each release, as one."""
    squares = [k * event.mu**2 for event, k in counted if isinstance(event, GaussianEvent)]
    kept = math.fsum(k * math.log1p(-_leak(event)) for event, k in counted)
    losses, weights, told_apart = np.zeros(1), np.ones(1), True
    pure = _pure(counted)
    if math.inf in pure:
        return _Composed(math.inf, 1.0, losses, weights)
    for epsilon, k in sorted(pure.items(), reverse=True):
        told_apart &= len(losses) * (k + 1) <= _OUTCOMES  # once too many, the rest is Gaussian
        if not told_apart:
            squares.append(k * (gdp_from_pure(epsilon) * (1.0 + _STEP)) ** 2)
            continue
        honest = np.arange(k + 1)
        ways = math.lgamma(k + 1) - scipy.special.gammaln([honest + 1, k - honest + 1]).sum(0)
        chances = np.exp(ways - epsilon * (k - honest) - k * math.log1p(math.exp(-epsilon)))
        losses = np.add.outer(losses, epsilon * (2 * honest - k)).ravel()
        weights = np.multiply.outer(weights, chances).ravel()
    losses += _LOST * losses.max()  # more than what was rounded away
    return _Composed(math.sqrt(math.fsum(squares)), -math.expm1(kept), losses, weights)


def _leak(event: Event) -> float:
    """Probability that a release tells everything."""
    return event.delta if isinstance(event, ApproximateEvent) else 0.0


def _pure(counted: Counted) -> Counter[float]:
    """Counts randomised responses by their epsilon."""
    pure: Counter[float] = Counter()
    for event, k in counted:
        if isinstance(event, PureEvent | ApproximateEvent):
            pure[event.epsilon] += k
    return pure


@lru_cache(maxsize=1024)
def _exact_epsilon(counted: Counted, delta: float) -> float:
    composed, most = _composed(counted), _added_epsilon(counted, delta)
    if not _pure(counted) or math.isinf(most) or composed.delta(most) > delta:
        return most
    if composed.delta(0.0) <= delta:
        return 0.0
    return min(most, _root_above(lambda e: composed.delta(e) - delta, most))


def _added_epsilon(counted: Counted, delta: float) -> float:
    """An upper bound: epsilons added to that of all that is Gaussian, at what does not leak."""
    squares = [k * event.mu**2 for event, k in counted if isinstance(event, GaussianEvent)]
    mu, leaked = math.sqrt(math.fsum(squares)), math.fsum(k * _leak(e) for e, k in counted)
    added = math.fsum(k * epsilon for epsilon, k in _pure(counted).items())
    if mu == 0:
        return added if leaked <= delta else math.inf
    return gdp_epsilon(mu, delta - leaked) + added if leaked < delta else math.inf


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
        """Describes it to an accountant."""
        if self.delta == 0:
            return PureEvent(self.epsilon)
        if self.gaussian:
            return GaussianEvent(_gaussian_mu(self.epsilon, self.delta))
        return ApproximateEvent(self.epsilon, self.delta)


_gaussian_mu = lru_cache(maxsize=1024)(gdp_mu)


def evaluations_delta(evaluations: Mapping[Cost, int], least: float = 0.0) -> float:
    """A delta at which the evaluations of one user can be claimed: 0 if all of them are pure.

    ``least``, or the largest of the Gaussian ones, whose epsilon is finite at every delta, and the
    sum of those of which only a pair is known.
    """
    gaussian = max(
        (evaluation.delta for evaluation, k in evaluations.items() if evaluation.gaussian and k),
        default=0.0,
    )
    return (least or gaussian) + math.fsum(
        k * _leak(evaluation.event) for evaluation, k in evaluations.items()
    )


def evaluations_epsilon(evaluations: Mapping[Cost, int], delta: float) -> float:
    """Epsilon at ``delta`` of one user's evaluations.

    At 0 epsilons add up, and what has a delta has no epsilon there. Above 0 it is the least of two
    bounds: epsilons and deltas added up, and the exact composition (:func:`compose_epsilon`).

    Args:
        evaluations: How many of each.
        delta: In [0, 1); no less than :func:`evaluations_delta` gives, or infinity may be the
            answer.

    Example:
        >>> evaluations_epsilon({Cost(0.5): 2, Cost(0.25): 4}, 0.0)
        2.0
        >>> round(evaluations_epsilon({Cost(1.0, 1e-5, gaussian=True): 4}, 1e-5), 2)
        2.15
        >>> round(evaluations_epsilon({Cost(0.1): 100}, 1e-6), 2)
        4.77
    """
    if delta >= 1:  # which everything satisfies, and so says nothing
        return math.inf
    declared = math.fsum(k * evaluation.delta for evaluation, k in evaluations.items())
    added = math.fsum(k * evaluation.epsilon for evaluation, k in evaluations.items())
    added = added if declared <= delta else math.inf
    events = events_of(evaluations)
    exact = compose_epsilon(events, delta) if events and delta else added
    return exact if exact < added * (1.0 - 1e-8) else added  # what was asked for, to the digit


def events_of(evaluations: Mapping[Cost, int]) -> Counter[Event]:
    """Evaluations as an accountant composes them."""
    events: Counter[Event] = Counter()
    for evaluation, k in evaluations.items():
        events[evaluation.event] += k
    return +events
