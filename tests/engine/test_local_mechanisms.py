"""Local mechanisms: exact output distributions, privacy, variances, tails and what is refused.

The bounded mechanisms have finitely many outputs. They are run with a source that takes every
branch once and keeps its probability as a fraction, so their distributions are exact: nothing is
sampled there, and the privacy loss of a pair of inputs is the logarithm of a ratio of fractions.
The published closed forms are written here a second time. Tests that draw from the system's
entropy state their error rate; all of this file's together accuse correct code with probability
below 1e-7.
"""

import functools
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from privbo_plugins.privacy import local
from privbo_plugins.privacy.local import (
    LOCAL_MECHANISMS,
    PIECEWISE_FROM,
    Duchi,
    Hybrid,
    RewardPrivacy,
    make_mechanism,
)
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.privacy.reward_noise import RewardNoise, sub_weibull_radius
from tests.crosses import crossed

from .oracles import gaussian_delta, gaussian_mu

EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0, 40.0)
RANGES = ((-1.0, 1.0), (0.0, 1.9), (-3.0, -2.5), (1e6, 1e6 + 4.0))
BOUNDED = ("duchi", "piecewise", "hybrid")
DELTA = 1e-6
ALARM = 1e-9
"""False alarm of one test that draws from the system's entropy."""

CARRIED_OUT = 30.0
"""The bounded mechanisms carry out no larger epsilon."""

FEW = 2**6
"""Outputs of the piecewise mechanism where every one of them is looked at."""


def mechanism_of(name, epsilon, low=-1.0, high=1.0):
    delta = DELTA if name == "gaussian" else None
    return make_mechanism(epsilon, value_range=(low, high), mechanism=name, delta=delta)


# Every branch of a mechanism ----------------------------------------------------------------


class Uniform:
    """A uniform integer in [low, high) that decides comparisons branch by branch."""

    def __init__(self, source, low, high):
        self.source, self.low, self.high = source, low, high

    def __lt__(self, bound):
        cut = min(max(math.ceil(bound), self.low), self.high)
        below = Fraction(cut - self.low, self.high - self.low)
        if self.source.branch(below):
            self.high = cut
            return True
        self.low = cut
        return False

    def __ge__(self, bound):
        return not self < bound

    def __add__(self, shift):
        return Uniform(self.source, self.low + shift, self.high + shift)

    __radd__ = __add__

    def __sub__(self, shift):
        return np.arange(self.low, self.high) - shift


class EveryBranch:
    """A noise source that follows a script of branches, then always the first possible one."""

    def __init__(self, script):
        self.script, self.taken = script, []
        self.probability = Fraction(1)
        self.untried = []

    def branch(self, probability):
        assert 0 <= probability <= 1
        done = len(self.taken)
        choice = self.script[done] if done < len(self.script) else probability > 0
        if done >= len(self.script) and 0 < probability < 1:
            self.untried.append((*self.taken, not choice))
        self.taken.append(choice)
        self.probability *= probability if choice else 1 - probability
        return choice

    def flip(self, probability):
        assert 0.5 <= probability < 1  # what the engine's coin accepts
        return self.branch(Fraction(probability))

    def integer(self, n):
        assert n > 0
        return Uniform(self, 0, n)


def branches(mechanism, y, worst):
    """(probability, equally likely outputs) of every way through the mechanism."""
    scripts = [()]
    while scripts:
        source = EveryBranch(scripts.pop())
        outputs = mechanism.randomize(y, source, worst)
        yield source.probability, np.atleast_1d(outputs)
        scripts += source.untried


def exact_pmf(mechanism, y, worst):
    pmf = {}
    for probability, outputs in branches(mechanism, y, worst):
        each = probability / len(outputs)
        for value in outputs.tolist():
            pmf[value] = pmf.get(value, Fraction(0)) + each
    return pmf


def moments(mechanism, y):
    """Mean and variance over every branch, centred so that nothing cancels."""
    ways = list(branches(mechanism, y, mechanism.low))
    middle = mechanism.middle
    mean = math.fsum(float(p) * float((v - middle).mean()) for p, v in ways)
    centred = (float(p) * float(((v - middle - mean) ** 2).mean()) for p, v in ways)
    return middle + mean, math.fsum(centred)


def privacy_loss(p, q):
    """The largest ln p/q, from exact ratios."""
    ratios = {(a, q[value]) for value, a in p.items()}
    return max(exact_log(a / b) for a, b in ratios)


def exact_log(ratio):
    near = Fraction(1, 2) < ratio < 2
    return math.log1p(float(ratio - 1)) if near else math.log(ratio)


def inputs(low, high):
    """Rewards that are unlike each other, most of them far outside of the range."""
    width = high - low
    inside = [low + share * width for share in (0.0, 1e-17, 1e-9, 0.3, 0.5, 0.7183, 1.0)]
    beside = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf), low - width]
    odd = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -5e-324, 0.0, -0.0]
    return inside + beside + odd


def unit(mechanism, y, worst):
    """The clipped reward in half-ranges, through fractions."""
    y = y if math.isfinite(y) else worst
    inside = min(max(Fraction(y), Fraction(mechanism.low)), Fraction(mechanism.high))
    low, width = Fraction(mechanism.low), Fraction(mechanism.high) - Fraction(mechanism.low)
    return float(2 * (inside - low) / width - 1)


@pytest.fixture
def few_cells(monkeypatch):
    monkeypatch.setattr(local, "_CELLS", FEW)


# Published closed forms, in half-ranges -----------------------------------------------------


def duchi_largest(eps):
    return (math.exp(eps) + 1) / (math.exp(eps) - 1)


def piecewise_largest(eps):
    return (math.exp(eps / 2) + 1) / (math.exp(eps / 2) - 1)


def duchi_variance(eps, u):
    return duchi_largest(eps) ** 2 - u**2


def piecewise_variance(eps, u):
    root = math.exp(eps / 2)
    return u**2 / (root - 1) + (root + 3) / (3 * (root - 1) ** 2)


def hybrid_variance(eps, u):
    """Wang et al., eq. 8 and its threshold."""
    if eps <= threshold_of_wang():
        return duchi_variance(eps, u)
    root = math.exp(eps / 2)
    first = (root + 3) / (3 * root * (root - 1))
    return first + (math.exp(eps) + 1) ** 2 / (root * (math.exp(eps) - 1) ** 2)


def laplace_variance(eps, u):
    return 2 * (2 / eps) ** 2


def gaussian_variance(eps, u):
    return (2.0 / gaussian_mu(eps, DELTA)) ** 2


PUBLISHED = {
    "laplace": laplace_variance, "duchi": duchi_variance, "piecewise": piecewise_variance,
    "hybrid": hybrid_variance, "gaussian": gaussian_variance,
}  # fmt: skip


def threshold_of_wang():
    root = 405 * math.sqrt(241)
    return math.log((-5 + 2 * math.cbrt(6353 - root) + 2 * math.cbrt(6353 + root)) / 27)


def carried_out(name, epsilon):
    return min(epsilon, CARRIED_OUT) if name in BOUNDED else epsilon


# Distributions of the bounded mechanisms ----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "epsilon", "bounds"), crossed(itertools.product(BOUNDED, EPSILONS, RANGES), axes=2)
)
def test_exact_distribution_of_a_bounded_mechanism(name, epsilon, bounds, few_cells):
    """One support, probabilities that add up, no bias, and epsilon for every pair of inputs."""
    mechanism = mechanism_of(name, epsilon, *bounds)
    low, high = bounds
    pmfs = {}
    for worst in (low, high):
        for y in inputs(low, high):
            pmf = exact_pmf(mechanism, y, worst)
            pmfs[tuple(pmf.items())] = pmf
            assert sum(pmf.values()) == 1
            mean = sum(p * Fraction(value) for value, p in pmf.items())
            claimed = mechanism.middle + mechanism.half * unit(mechanism, y, worst)
            scale = mechanism.half * max(abs(mechanism.tail.radius / mechanism.half), 1)
            assert abs(float(mean - Fraction(claimed))) <= 1e-9 * scale
    supports = {frozenset(pmf) for pmf in pmfs.values()}
    assert len(supports) == 1
    assert all(p > 0 for pmf in pmfs.values() for p in pmf.values())
    assert len(pmfs) >= 5  # the mechanism does look at its input
    losses = [privacy_loss(p, q) for p, q in itertools.permutations(pmfs.values(), 2)]
    assert max(losses) <= epsilon
    # It spends what it may (the piecewise window of whole points costs it nothing either).
    assert max(losses) == pytest.approx(carried_out(name, epsilon), rel=1e-2)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("u", [-1.0, -0.3, 0.0, 0.77, 1.0])
def test_piecewise_has_the_published_density(epsilon, u):
    """The exact distribution function on 2**20 points against the continuous one's.

    Eq. 5 of Wang et al.; a cell of the grid has probability below 2e-5 here.
    """
    largest, E = piecewise_largest(epsilon), math.exp(epsilon)
    left = (largest + 1) / 2 * u - (largest - 1) / 2
    right = left + largest - 1
    p = (E - math.sqrt(E)) / (2 * math.sqrt(E) + 2)
    mechanism = mechanism_of("piecewise", epsilon)
    points = np.linspace(-largest, largest, 2001)
    exact = np.zeros_like(points)
    for probability, outputs in branches(mechanism, u, 0.0):
        assert np.all(np.diff(outputs) > 0)
        exact += float(probability) * np.searchsorted(outputs, points, "right") / len(outputs)
    inside = np.clip(points, left, right) - left
    published = p * inside + p / E * (points + largest - inside)
    assert np.abs(exact - published).max() < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 5.0, 40.0])
def test_piecewise_on_all_of_its_points(epsilon):
    """2**20 of them: one support to the last bit, and epsilon at every one of them."""
    mechanism = mechanism_of("piecewise", epsilon, 0.0, 1.9)
    supports, densities = set(), []
    for y in (0.0, 0.61, 1.9, math.nan):
        ways = list(branches(mechanism, y, 1.2345))
        support = np.unique(np.concatenate([v for _, v in ways]))
        density = np.zeros(len(support))
        for probability, outputs in ways:
            density[np.searchsorted(support, outputs)] += float(probability / len(outputs))
        supports.add(support.tobytes())
        densities.append(density)
        assert len(support) == 2**20
        assert math.fsum(density) == pytest.approx(1, abs=1e-12)
    assert len(supports) == 1
    losses = [math.log((p / q).max()) for p, q in itertools.permutations(densities, 2)]
    assert max(losses) <= epsilon
    assert max(losses) == pytest.approx(min(epsilon, CARRIED_OUT), rel=1e-9)


def public_loss(mechanism):
    """The loss that the truth, or the window, has by the floats that the coin is given."""
    if isinstance(mechanism, Duchi):
        truth = Fraction(mechanism.truth)
        return exact_log(truth / (1 - truth))
    inside, w, K = Fraction(mechanism.inside), mechanism.w, local._CELLS
    return exact_log(inside * (K - w) / (w * (1 - inside)))


@pytest.mark.parametrize(
    ("low", "high"), [(1e-6, 1e-4), (1e-4, 1.0), (1.0, 13.0), (13.0, 27.0), (27.0, 30.0)]
)
@pytest.mark.parametrize("name", ["duchi", "piecewise"])
def test_no_epsilon_is_exceeded_by_the_rounding_of_a_probability(name, low, high):
    """Near 1 the float nearest to a probability may lie above it, and cost 1e-3 of epsilon."""
    for epsilon in [*np.geomspace(low, high, 200).tolist(), low, high]:
        mechanism = mechanism_of(name, epsilon)
        assert public_loss(mechanism) <= epsilon
        assert public_loss(mechanism) == pytest.approx(epsilon, rel=1e-4)
        if isinstance(mechanism, Duchi):  # and it is still unbiased, for the probability it has
            assert (2 * Fraction(mechanism.truth) - 1) * Fraction(mechanism.C) == pytest.approx(
                1, rel=1e-9
            )


def test_the_hybrid_begins_where_wang_et_al_say():
    """To their two digits; there the piecewise mechanism begins to beat Duchi's at zero."""
    assert pytest.approx(threshold_of_wang(), abs=5e-5) == PIECEWISE_FROM
    assert round(PIECEWISE_FROM, 2) == 0.61

    def gain(eps):
        return piecewise_variance(eps, 0.0) - duchi_variance(eps, 0.0)

    assert optimize.brentq(gain, 0.1, 2.0) == pytest.approx(threshold_of_wang(), abs=1e-9)
    assert Hybrid(PIECEWISE_FROM, 0.0, 1.0).alpha == 0
    assert Hybrid(0.6113, 0.0, 1.0).alpha == pytest.approx(1 - math.exp(-0.6113 / 2))


# Mean and variance --------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", BOUNDED)
def test_moments_on_all_points(name, epsilon):
    """Unbiased to 1e-9; the claimed variance is the exact one, or above it."""
    mechanism = mechanism_of(name, epsilon, 0.0, 1.9)
    for y in (-7.0, 0.0, 0.61, 0.95, 1.9):
        inside = min(max(y, 0.0), 1.9)
        mean, variance = moments(mechanism, y)
        assert mean == pytest.approx(inside, abs=1e-9 * max(1.0, mechanism.tail.radius))
        # Rounding to a point of the grid never counts; a window of few whole points does.
        assert variance <= mechanism.variance(y) * (1 + 1e-9)
        assert variance <= mechanism.worst_variance * (1 + 1e-9)
        if epsilon <= 5:
            assert variance == pytest.approx(mechanism.variance(y), rel=2e-5)


@functools.cache
def published_worst(name, eps):
    return max(PUBLISHED[name](eps, u) for u in np.linspace(-1, 1, 101))


@pytest.mark.parametrize(
    ("name", "epsilon", "bounds"),
    crossed(itertools.product(LOCAL_MECHANISMS, EPSILONS, RANGES), axes=2),
)
def test_variances_are_the_published_ones(name, epsilon, bounds):
    mechanism = mechanism_of(name, epsilon, *bounds)
    half = (bounds[1] - bounds[0]) / 2
    eps = carried_out(name, epsilon)
    for share in (-3.0, -1.0, -0.5, 0.0, 0.2, 1.0, 40.0):
        u = min(max(share, -1.0), 1.0)
        y = bounds[0] + half + share * half
        expected = half**2 * PUBLISHED[name](eps, u)
        assert mechanism.variance(y) == pytest.approx(expected, rel=3e-6)
    assert mechanism.worst_variance == pytest.approx(
        half**2 * published_worst(name, eps), rel=3e-6
    )
    assert mechanism.noise == RewardNoise(
        mechanism.worst_variance, mechanism.total_variance, mechanism.tail
    )


@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
@given(
    epsilon=st.floats(0.05, 30),
    points=st.lists(st.tuples(st.floats(-1, 1), st.floats(1e-3, 1)), min_size=1, max_size=3),
    half=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_total_variance_dominates_every_distribution_of_rewards(name, epsilon, points, half):
    mechanism = mechanism_of(name, epsilon, 2.0, 2.0 + 2 * half)
    u, weights = (np.array(column) for column in zip(*points, strict=True))
    weights /= weights.sum()
    own = weights @ u**2 - (weights @ u) ** 2
    added = sum(w * PUBLISHED[name](epsilon, x) for w, x in zip(weights, u, strict=True))
    assert half**2 * (own + added) <= mechanism.total_variance * (1 + 1e-9)
    reached = half**2 * max(1 + PUBLISHED[name](epsilon, 1.0), PUBLISHED[name](epsilon, 0.0))
    assert mechanism.total_variance == pytest.approx(reached, rel=1e-5)


# Laplace and Gaussian noise -----------------------------------------------------------------


def releases(mechanism, y, n):
    noise = SecureNoise()
    return np.array([mechanism.randomize(y, noise, mechanism.low) for _ in range(n)])


def laws(name, epsilon, inside):
    """What is drawn on (0, 1.9), and the same one scale away."""
    if name == "gaussian":
        scale = 1.9 / gaussian_mu(epsilon, DELTA)
        return stats.norm(inside, scale), stats.norm(inside + scale, scale)
    scale = 1.9 / epsilon
    return stats.laplace(inside, scale), stats.laplace(inside + scale, scale)


@pytest.mark.parametrize(("name", "epsilon", "y", "inside"), [
    ("laplace", 0.1, 7.0, 1.9), ("laplace", 1.0, 0.61, 0.61), ("laplace", 2.0, math.nan, 0.0),
    ("laplace", 40.0, -1e308, 0.0), ("gaussian", 0.5, 7.0, 1.9), ("gaussian", 5.0, math.inf, 0.0),
])  # fmt: skip
def test_noise_is_the_one_that_was_asked_for(name, epsilon, y, inside):
    """Kolmogorov-Smirnov over 1500 secure draws; false alarm 1e-9."""
    mechanism = mechanism_of(name, epsilon, 0.0, 1.9)
    if name == "laplace":
        assert 1.9 / epsilon * (1 + 2**-21) <= mechanism.scale <= 1.9 / epsilon * (1 + 2e-6)
    drawn = releases(mechanism, y, 1500)
    law, moved = laws(name, epsilon, inside)
    assert stats.kstest(drawn, law.cdf).pvalue > ALARM
    assert stats.kstest(drawn, moved.cdf).pvalue < ALARM


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("u", [-1.0, 0.3])
def test_secure_draws_follow_the_exact_distribution(name, u, few_cells):
    """Dvoretzky-Kiefer-Wolfowitz over 1500 secure draws; false alarm 1e-9."""
    mechanism = mechanism_of(name, 1.0)
    pmf = exact_pmf(mechanism, u, 0.0)
    support = np.array(sorted(pmf))
    exact = np.cumsum([float(pmf[v]) for v in support.tolist()])
    drawn = np.sort(releases(mechanism, u, 1500))
    assert set(drawn.tolist()) <= set(pmf)
    distance = np.abs(np.searchsorted(drawn, support, "right") / len(drawn) - exact).max()
    assert distance <= math.sqrt(math.log(2 / ALARM) / (2 * len(drawn)))


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-2])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_gaussian_sigma_is_the_analytic_one(epsilon, delta):
    mechanism = make_mechanism(
        epsilon, value_range=(-3.0, -2.5), mechanism="gaussian", delta=delta
    )
    expected = 0.5 / gaussian_mu(epsilon, delta)
    assert mechanism.sigma == pytest.approx(expected, rel=3e-6)
    assert gaussian_delta(0.5 / mechanism.sigma, epsilon) <= delta
    assert mechanism.mu * mechanism.sigma == pytest.approx(0.5, rel=2e-6)


# Tails --------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1.0, 2.0, 10.0, 1e3, 1e9])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_tails_bound_how_often_noise_strays(epsilon, t):
    laplace = mechanism_of("laplace", epsilon, 0.0, 1.9)
    exceeded = 2 * stats.laplace.sf(laplace.tail(t), scale=laplace.scale)
    assert exceeded == pytest.approx(1 / t, rel=1e-9)  # exactly the paper's L ln t
    gaussian = mechanism_of("gaussian", epsilon, 0.0, 1.9)
    exceeded = 2 * stats.norm.sf(gaussian.tail(t), scale=gaussian.sigma)
    assert 0.05 / t <= exceeded <= 1 / t


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_noise_never_strays_farther_than_its_radius(name, epsilon, few_cells):
    mechanism = mechanism_of(name, epsilon, 0.0, 1.9)
    strays = [
        abs(value - inside)
        for inside in (0.0, 0.61, 0.95, 1.9)
        for value in exact_pmf(mechanism, inside, 0.0)
    ]
    radii = {mechanism.tail(t) for t in (1.0, 2.0, 1e9)}
    assert len(radii) == 1
    assert max(strays) <= radii.pop() * (1 + 1e-12)
    assert max(strays) == pytest.approx(mechanism.tail(1.0), rel=1e-9)


def test_sub_weibull_radius_holds_normal_noise():
    for sigma, horizon, delta in ((1.0, 1000, 0.01), (0.3, 10, 0.1), (5.0, 10**6, 1e-6)):
        radius = sub_weibull_radius(0.5, horizon, delta, b=1 / (2 * sigma**2))
        assert radius == pytest.approx(sigma * math.sqrt(2 * math.log(2 * horizon / delta)))
        assert 0.05 * delta <= horizon * 2 * stats.norm.sf(radius, scale=sigma) <= delta
    assert sub_weibull_radius(0.5, 1, 0.5, a=0.1) == 0.0  # noise that never leaves zero


@pytest.mark.parametrize("name", ["theta", "horizon", "delta", "a", "b"])
def test_sub_weibull_radius_refuses_with_rule_and_value(name):
    for value in (0.0, -1.0, math.nan, *([1.0] if name == "delta" else [])):
        arguments = {"theta": 0.5, "horizon": 10, "delta": 0.1} | {name: value}
        with pytest.raises(ValueError, match=rf"needs theta, a, b > 0, .*{name}={value}"):
            sub_weibull_radius(**arguments)


# Clipping -----------------------------------------------------------------------------------

EXTREME = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1.7976931348623157e308, 5e-324, -0.0]
anything = st.sampled_from(EXTREME) | st.floats() | st.floats(-3, 3)
ends = st.floats(-4e99, 4e99) | st.floats(-5, 5)


@settings(max_examples=250)
@given(y=anything, low=ends, high=ends, share=st.floats(0, 1))
@example(y=math.nan, low=0.0, high=1.9, share=0.0)
@example(y=1e308, low=-4e99, high=4e99, share=1.0)
@example(y=math.nextafter(1.9, 0), low=0.0, high=1.9, share=1.0)
def test_any_float_becomes_an_input_within_the_range(y, low, high, share):
    assume(1e-100 <= high - low <= 1e100)
    worst = min(max(low + share * (high - low), low), high)
    mechanism = mechanism_of("hybrid", 1.0, low, high)
    u = mechanism.clip(y, worst)
    assert -1.0 <= u <= 1.0
    # The middle and the half are rounded once: to a unit in the last place of the larger end.
    rounding = 4 * math.ulp(max(abs(low), abs(high))) / mechanism.half + 1e-15
    assert u == pytest.approx(unit(mechanism, y, worst), abs=rounding)


@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
@given(y=anything, seed=st.integers(0, 10))
def test_no_reward_makes_a_mechanism_fail_or_warn(name, y, seed):
    mechanism = mechanism_of(name, 1.0, 0.0, 1.9)
    with np.errstate(all="raise"):
        value = mechanism.randomize(y, InsecureNoise(seed), 0.0)
    assert type(value) is float
    assert math.isfinite(value)


# What is refused ----------------------------------------------------------------------------

_NUMBERS = (math.nan, math.inf, -1.0, 0.0)
BAD = [
    *(({"epsilon": value}, "epsilon must be a finite number > 0") for value in _NUMBERS),
    *(({"bound": value}, "bound must be a finite number > 0, got") for value in _NUMBERS),
    ({"bound": None}, r"Give bound= .* or value_range=\(low, high\), one of them"),
    ({"value_range": (0.0, 1.0)}, r"Give bound= .* or value_range=\(low, high\), one of them"),
    *(
        ({"bound": None, "value_range": ends}, r"finite low < high, got \(")
        for ends in ((1.0, 0.0), (1.0, 1.0), (math.nan, 1.0), (0.0, math.inf))
    ),
    *(
        ({"bound": None, "value_range": ends}, "wide. Measure rewards in another unit")
        for ends in ((-1e308, 1e308), (0.0, 5e-324))
    ),
    *(
        ({"bound": None, "value_range": ends}, r"two numbers \(low, high\), got")
        for ends in ((0.0, 1.0, 2.0), (0.5,), 1.5, "ab", (None, 1.0))
    ),
    *(({"mechanism": name}, "must be one of laplace, duchi") for name in ("gauss", "", [])),
    *(({"delta": delta}, "duchi gives pure .* delta=.* has no use") for delta in (1e-6, math.nan)),
    *(
        ({"mechanism": "gaussian", **more}, r"delta in \(0, 1\), got .*Give delta=")
        for more in ({}, *({"delta": value} for value in (0.0, 1.0, -0.1, math.nan)))
    ),
    *(({"epsilon": value}, "epsilon must be a number") for value in ("1", None)),
    ({"epsilon": 10**400}, "epsilon must be a finite number"),
    ({"bound": "1"}, "bound must be a number"), ({"bound": 10**400}, "bound must be a finite"),
    ({"mechanism": "gaussian", "delta": "tiny"}, "delta must be a number"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "words"), BAD, ids=[str(bad)[:40] for bad, _ in BAD])
def test_senseless_arguments_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        make_mechanism(**({"epsilon": 1.0, "bound": 1.0} | bad))


@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
def test_settings_make_a_mechanism_and_public_facts_on_it(name):
    delta = DELTA if name == "gaussian" else None
    for how in ({"value_range": (-2.0, 2.0)}, {"bound": 2}):
        made, facts = RewardPrivacy(0.5, mechanism=name, delta=delta, **how).made()
        assert made == mechanism_of(name, 0.5, -2.0, 2.0)
        assert facts == {"low": -2.0, "high": 2.0, "noise": made.noise}
    for low, high in ((-4e99, 4e99), (0.0, 2e-100)):  # the widest range, and the narrowest
        assert 0 < mechanism_of(name, 1.0, low, high).noise.variance < math.inf


def test_an_infinite_epsilon_is_no_mechanism():
    nothing = {"low": None, "high": None, "noise": None}
    assert RewardPrivacy(math.inf).made() == (None, nothing)
    known = {"low": -2.0, "high": 2.0, "noise": None}
    assert RewardPrivacy(math.inf, bound=2.0).made() == (None, known)
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0"):
        RewardPrivacy(-math.inf, bound=1.0).made()
    with pytest.raises(ValueError, match="finite low < high"):
        RewardPrivacy(math.inf, value_range=(1.0, 0.0)).made()


@pytest.mark.parametrize("epsilon", [5e-324, 1e-200, 1e-17, 9.9e-7])
@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
def test_an_epsilon_too_small_to_be_carried_out_is_refused(name, epsilon):
    with pytest.raises(ValueError, match=r"at least 1e-06\), got"):
        mechanism_of(name, epsilon)
    assert mechanism_of(name, 1e-6).worst_variance > 1e5


# Floats that betray the reward --------------------------------------------------------------

NEAR = 2.0**-5
COARSE = 54


def small_ones(draw, n):
    """Draws so close to zero that their last bits could tell what was added to the noise."""
    drawn = np.array([draw() for _ in range(n)])
    return drawn[np.abs(drawn) < NEAR]


def on_lattice(values, exponent):
    """Share of values that are multiples of 2**exponent."""
    multiples = values * 2.0**-exponent
    return float(np.mean(multiples == np.floor(multiples)))


def test_laplace_releases_lie_on_one_lattice_whatever_the_reward():
    """Inputs 0 and 1/3 of half-ranges, 2500 secure draws each at epsilon 8.

    A float sum ``1/3 + noise`` near zero keeps only the bits that 1/3 has, and ``0 + noise`` all
    of them: that identifies the reward, as the control over a fixed seed shows. Secure draws are
    multiples of 2**-62 for both, which no draw may violate, and for neither do all of those near
    zero have 1/3's bits. Some 80 of them for 1/3 are expected; that fewer than 20 turn up, or all
    lie on the coarse lattice (each with probability below 1/2), happens with probability below
    1e-6.
    """
    scale = mechanism_of("laplace", 8.0).scale
    grid = math.floor(math.log2(scale)) - 60

    def near(noise, n):
        return [small_ones(lambda u=u: noise.add_laplace(u, scale), n) for u in (0.0, 1 / 3)]

    for drawn in near(SecureNoise(), 2500):
        assert len(drawn) >= 20
        assert on_lattice(drawn, grid) == 1.0
        assert on_lattice(drawn, -COARSE) < 1.0
    zero, third = near(InsecureNoise(0), 20_000)
    assert min(len(zero), len(third)) > 200
    assert on_lattice(zero, grid) < 1.0
    assert on_lattice(zero, -COARSE) < 0.5
    assert on_lattice(third, -COARSE) == 1.0


# The secure source --------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.5, 0.75, 0.999, math.nextafter(1.0, 0.0)])
def test_the_secure_coin_has_the_probability_it_is_given(probability):
    """An exact binomial test over 2000 tosses; false alarm 1e-9."""
    noise, n = SecureNoise(), 2000
    heads = sum(noise.flip(probability) for _ in range(n))
    assert stats.binomtest(heads, n, probability).pvalue > ALARM
    assert stats.binomtest(heads, n, probability - 0.2).pvalue < ALARM


@pytest.mark.parametrize("probability", [0.0, 0.49, math.nextafter(0.5, 0), 1.0, 2.0, math.nan])
def test_the_secure_coin_refuses_other_probabilities(probability):
    with pytest.raises(ValueError, match=r"must lie in \[1/2, 1\), got"):
        SecureNoise().flip(probability)


@pytest.mark.parametrize("n", [1, 7, 2**53])
def test_secure_integers_are_uniform(n):
    """Chi-squared over seven classes of 3500 draws; false alarm 1e-9."""
    noise = SecureNoise()
    drawn = [noise.integer(n) for _ in range(3500)]
    assert all(0 <= value < n for value in drawn)
    if n > 1:
        classes = np.bincount([value * 7 // n for value in drawn], minlength=7)
        assert len(classes) == 7
        assert stats.chisquare(classes).pvalue > ALARM


def test_secure_noise_of_rewards_never_repeats_whatever_is_seeded():
    """Forty tosses, integers and Laplace draws a round; chance repeats them with 1e-9 at most."""
    rounds = []
    for _ in range(5):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the legacy seed must not reach the noise
        noise = SecureNoise()
        rounds.append(
            (
                tuple(noise.flip(0.5) for _ in range(40)),
                tuple(noise.integer(2**53) for _ in range(3)),
                noise.add_laplace(0.0, 1.0),
                noise.add_gaussian(np.zeros(2), 1.0).tobytes(),
            )
        )
    for parts in zip(*rounds, strict=True):
        assert len(set(parts)) == len(rounds)
