"""DP-HyPO of the map of methods: its accounting by brute force, and its candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.baselines import dp_hypo
from benchmarks.baselines.private_selection import (
    DELTA,
    adaptive_charge,
    selection_epsilon,
    selection_mu,
)
from privbo_plugins.privacy.accountant import gdp_epsilon

Array = NDArray[np.float64]

ORDERS = np.array([1.5, 2.0, 5.0, 20.0, 300.0, 5000.0])


# Accounting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Discrete:
    """A mechanism small enough for every probability to be known.

    A candidate is an option and a bit, 1 with a probability that depends on the data (randomised
    response). The density of the next option depends on the bits so far: on their sum, a walk
    that stops at its ends. Released is the highest of a geometric number of candidates.

    Attributes:
        base: Probabilities of options without adaptation, shape (k,).
        densities: Over the base, by place of the walk, shape (s, k).
        ranks: Of (option, bit), higher is better, all different, shape (k, 2).
        e0: Log odds of the bit.
        gamma: Of the geometric number.
    """

    base: Array
    densities: Array
    ranks: NDArray[np.int_]
    e0: float
    gamma: float

    def released(self, data: int) -> Array:
        """Probabilities of all outcomes by rank, a linear system over (place, best)."""
        s, k = self.densities.shape
        up = 1 / (1 + math.exp(-self.e0 if data else self.e0))
        step = np.zeros((s, 2 * k + 1, s, 2 * k + 1))  # the last best is none as yet
        for place in range(s):
            for option in range(k):
                for bit, chance in enumerate((1 - up, up)):
                    p = self.base[option] * self.densities[place, option] * chance
                    after = min(max(place + 2 * bit - 1, 0), s - 1)
                    rank = self.ranks[option, bit]
                    for best in range(2 * k + 1):
                        held = -1 if best == 2 * k else best
                        step[place, best, after, max(held, rank)] += p
        P = step.reshape(s * (2 * k + 1), -1)
        start = np.zeros(len(P))
        start[(s // 2) * (2 * k + 1) + 2 * k] = 1.0
        visits = np.linalg.solve(np.eye(len(P)) - (1 - self.gamma) * P.T, P.T @ start)
        out: Array = self.gamma * visits.reshape(s, -1).sum(0)[: 2 * k]
        return out

    def divergence(self) -> Array:
        """Exact, the larger of both directions, at ORDERS."""
        p, q = self.released(1), self.released(0)
        assert p.sum() == pytest.approx(1)
        return np.maximum(_renyi(p, q), _renyi(q, p))

    def bound(self) -> Array:
        """Of candidates that depend on nothing: Papernot and Steinke 2022, Theorem 2."""
        hats = np.geomspace(1.0001, 1e6, 400)
        p = np.array([1 / (1 + math.exp(self.e0)), 1 / (1 + math.exp(-self.e0))])
        own, other = (_renyi(p, p[::-1], at) for at in (ORDERS, hats))
        surprise = math.log(1 / self.gamma)
        rest = 2 * ((1 - 1 / hats) * other + surprise / hats)
        return np.asarray(own + rest.min() + surprise / (ORDERS - 1))


def _renyi(p: Array, q: Array, orders: Array = ORDERS) -> Array:
    a = orders[:, None]
    terms = a * np.log(p) + (1 - a) * np.log(q)
    most = terms.max(1, keepdims=True)
    log_sum = most[:, 0] + np.log(np.exp(terms - most).sum(1))
    return np.asarray(log_sum / (orders - 1))


def _any(rng: np.random.Generator, low: float, high: float) -> Discrete:
    """Any base and any rule within the bounds: mixtures of extremes, one for each place."""
    k, s = 4, 9
    base = rng.dirichlet(np.ones(k))
    scores = rng.random((s, k)).round(1)
    return Discrete(
        base, np.array([_tilt(base, row, low, high) for row in scores]),
        rng.permutation(2 * k).reshape(k, 2), rng.choice([0.05, 0.5, 1.5]),
        rng.choice([0.5, 0.05, 0.002]),
    )  # fmt: skip


def _tilt(base: Array, scores: Array, low: float, high: float) -> Array:
    """As much mass as may be on the least scores."""
    density, spare = np.full(len(base), low), 1 - low
    for option in np.argsort(scores):
        density[option] += min(high - low, spare / base[option])
        spare -= (density[option] - low) * base[option]
    return density


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (0.5, 2.0), (0.8, 1.25), (0.9, 4.0)])
def test_no_rule_within_the_bounds_costs_more_than_is_charged(low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        case = _any(rng, low, high)
        assert case.densities.min() >= low - 1e-12
        assert case.densities.max() <= high + 1e-12
        assert case.densities @ case.base == pytest.approx(np.ones(9))
        charged = case.bound() + adaptive_charge(ORDERS, low, high)
        assert (case.divergence() <= charged + 1e-9).all()


def _worst(low: float, high: float) -> Discrete:
    """A rule that learns the data, and then hides one rare outcome or puts it forward.

    Options: one that beats it, the rare one, and the rest.
    """
    base = np.array([1e-5, 1e-7, 1 - 1e-5 - 1e-7])
    forward, hidden = (np.array([a, b, 0.0]) for a, b in ((low, high), (high, low)))
    for density in (forward, hidden):
        density[2] = (1 - density[:2] @ base[:2]) / base[2]
    densities = np.array([hidden] * 41 + [forward] * 40)
    return Discrete(base, densities, np.array([[4, 5], [2, 3], [0, 1]]), 0.3, 1e-8)


@pytest.mark.parametrize(
    ("dropped", "exceeds"),
    [("nothing", False), ("everything", True), ("the rise", True), ("the fall", True),
     ("one of the two", True)],
)  # fmt: skip
def test_no_part_of_the_charge_can_be_dropped(dropped: str, exceeds: bool) -> None:
    """The worst rule comes close to the charge, so that whoever forgets a part is caught."""
    low, high = 0.25, 4.0
    rise, fall = ORDERS / (ORDERS - 1) * math.log(high), -math.log(low)
    less = {
        "nothing": 0.0,
        "everything": adaptive_charge(ORDERS, low, high),
        "the rise": rise,
        "the fall": fall,
        "one of the two": math.log(high / low),
    }[dropped]
    case = _worst(low, high)
    charged = case.bound() + adaptive_charge(ORDERS, low, high) - less
    assert bool((case.divergence() > charged).any()) is exceeds


def test_the_charge_is_never_more_than_the_one_that_was_published() -> None:
    """Wang et al. 2023, Theorem 1: (l / (l - 1) + 2) log(high / low) for K geometric."""
    for low, high in [(1.0, 1.0), (0.5, 1.0), (1.0, 3.0), (0.75, 4 / 3)]:
        published = (ORDERS / (ORDERS - 1) + 2) * math.log(high / low)
        own = adaptive_charge(ORDERS, low, high)
        assert (own <= published + 1e-12).all()
        assert (own >= 3 * math.log(high / low) - 1e-12).all()


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_search_gets_the_epsilon_of_gdp_and_no_more(mu: float) -> None:
    wanted = gdp_epsilon(mu, DELTA)
    low, high = dp_hypo.density_bounds(wanted)
    spent = selection_epsilon(selection_mu(mu, 92, DELTA, low, high), 92, DELTA, low, high)
    assert low < 1 < high
    assert wanted * (1 - 1e-6) < spent <= wanted
    assert selection_mu(mu, 92, DELTA, low, high) < selection_mu(mu, 92, DELTA)


# Candidates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (0.5, 2.0), (0.9, 1.1), (0.1, 1.5)])
@pytest.mark.parametrize("m", [2, 7, 64])
def test_chances_of_points_stay_within_the_bounds_and_sum_to_one(
    low: float, high: float, m: int
) -> None:
    scores = np.random.default_rng(0).random((5, m))
    chances = dp_hypo.tilted(scores, low, high)
    assert chances.sum(1) == pytest.approx(np.ones(5))
    assert chances.min() * m >= low - 1e-12
    assert chances.max() * m <= high + 1e-12
    assert (np.diff(np.take_along_axis(chances, scores.argsort(1), 1), axis=1) <= 1e-12).all()
    if 1 < m * (1 - low) / max(high - low, 1e-9) < m - 1:
        assert chances.max() * m == pytest.approx(high)
        assert chances.min() * m == pytest.approx(low)


def test_candidates_come_where_earlier_values_were_low_as_far_as_the_bounds_allow() -> None:
    """Low values lie in a tenth of the line: at most ``high`` times as many candidates do."""
    seen: list[Array] = []

    def value(U: Array) -> Array:
        seen.append(U[:, 0])
        return np.asarray((U[:, 0] > 0.1).astype(float))

    shares = {}
    for high in (1.0, 2.0, 4.0):
        seen.clear()
        for seed in range(3):
            rng = np.random.default_rng(seed)
            dp_hypo.search(value, 1, 400, 0.05, (1 / high, high), rng)
        x = np.concatenate(seen)
        assert len(x) == 3 * 400
        shares[high] = float((x < 0.1).mean())
    assert shares[1.0] == pytest.approx(0.1, abs=0.02)
    assert 0.15 < shares[2.0] < 0.2 + 0.03
    assert 0.25 < shares[4.0] < 0.4 + 0.03


@pytest.mark.parametrize("n_candidates", [1, 3, 8, 9, 50])
def test_the_best_of_exactly_so_many_candidates_is_released(n_candidates: int) -> None:
    seen: list[Array] = []

    def value(U: Array) -> Array:
        seen.append(U)
        return U.sum(1)

    x = dp_hypo.search(value, 2, n_candidates, 0.0, (0.5, 2.0), np.random.default_rng(0))
    U = np.vstack(seen)
    assert len(U) == n_candidates
    assert (x == U[U.sum(1).argmin()]).all()
