"""Empirical audits of a federation's rounds: is one agent in or out, and how well can one tell?

A round is run many times with an agent, the canary, and without it. The adversary knows every
vector, the weights and the noise's scale, and projects what was broadcast on what the canary would
add. An event "the score lies beyond a threshold" is chosen on half the runs; Clopper-Pearson
bounds on its two probabilities over the other half turn into a lower bound on epsilon at the
claimed delta:

    eps >= ln((P[event | one world] - delta) / P[event | the other])

Everything goes through :class:`RoundSum`, whose sum is a function of the coins. Noise and coins
are numpy's, seeded: audits draw the same numbers in every run, nothing about them is random. For
another seed the two bounds of an audit hold with confidence .9999, so correct code would be
accused once in 10**4 audits. Claims are those of privacy loss distributions. Mutants are built
here, never in the engine, and every one of them must be found out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from privbo_plugins.algorithms.dp_fts_de import FederationConfig, RoundSum, Temperature
from privbo_plugins.algorithms.dp_fts_de import server as server_module
from privbo_plugins.algorithms.dp_fts_de.regions import region_weights
from privbo_plugins.privacy.mechanisms import FRACTION_BITS
from privbo_plugins.privacy.noise import InsecureNoise, choose
from privbo_plugins.privacy.subsampling import pld_epsilon
from privbo_plugins.settings import evolve

from . import auditing

pytestmark = [  # all of them together
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:delta = 0.05 is large"),
]

RUNS = {1.0: 21_000, 0.35: 51_000}
"""Runs of a round in each of the two worlds, for correct code; the smaller claim needs more."""

MUTANT_RUNS = 4000
DELTA = 0.05
Z = 1.0
CANARY = 1
UNIFORM = Temperature(0.0, 0, 1)
"""Where all agents count alike one agent adds its full norm; else it adds less."""


# The audit --------------------------------------------------------------------------------------


def audited_epsilon(a, b, delta=DELTA):
    """At the claimed delta, with thresholds farther out."""
    far = np.linspace(0.005, 0.995, 100)
    return max(0.0, auditing.audited_epsilon(a, b, delta=delta, quantiles=far))


@pytest.mark.parametrize(("q", "z"), [(1.0, 1.0), (1.0, 0.7), (0.35, 1.0)])
def test_the_audit_itself_is_sound_and_has_power(q, z):
    """On numpy's own Gaussians, 8 audits each, none may accuse."""
    rng = np.random.default_rng(int(100 * q * z))
    claim, bounds = pld_epsilon(q, z, 1, DELTA), []
    for _ in range(8):
        out = z * rng.standard_normal(RUNS[q])
        into = (rng.random(RUNS[q]) < q) + z * rng.standard_normal(RUNS[q])
        bounds.append(audited_epsilon(into, out))
    assert max(bounds) <= claim
    assert min(bounds) >= 0.4 * claim


# Rounds -----------------------------------------------------------------------------------------


def fresh_coins(noise, config, present):
    return [choose(noise, config.q) for _ in range(config.n_agents)]


@dataclass(frozen=True)
class Round:
    """A round with what an adversary knows; the mutants replace parts of it.

    Other agents send vectors that are orthogonal to the canary's, unless ``others`` says more.
    """

    config: FederationConfig
    kind: type[RoundSum] = RoundSum
    coins: Callable[[InsecureNoise, FederationConfig, list[int]], list[bool]] = fresh_coins
    noise_factor: float = 1.0
    seeded: bool = False
    canary: np.ndarray = field(default_factory=lambda: np.array([1e3, 0.0, 0.0]))
    others: np.ndarray = field(default_factory=lambda: np.array([0.0, 5.0, -3.0]))

    def evaluation(self, noise, present, sums):
        """One round; sums of the same coins are the same, so each is made once."""
        coins = tuple(self.coins(noise, self.config, present))
        if coins not in sums:
            sums[coins] = self.kind(self.config, 1, coins)
            for n in present:
                sums[coins].add(n, self.canary if n == CANARY else self.others)
        source = InsecureNoise(0) if self.seeded else noise
        scale = sums[coins].noise_scale * self.noise_factor
        return sums[coins].broadcast(source.add_gaussian(sums[coins].exact(), scale)).weights

    def direction(self):
        """What the canary adds to the joint vector in the units of its noise, length 1."""
        config = self.config
        phi = region_weights(config.n_agents, config.n_regions, config.temperature(1))
        unit = phi.max(1) / config.q
        joint = (phi[:, CANARY] / phi.max(1))[:, None] * self.canary / np.linalg.norm(self.canary)
        return np.asarray(joint / np.linalg.norm(joint) / unit[:, None])

    def scores(self, runs, seed):
        """Scores in units of the clipping norm, with the canary and without it."""
        everyone = list(range(self.config.n_agents))
        noise, direction = InsecureNoise(seed), self.direction() / self.config.clipping_norm
        scores = []
        for present in (everyone, [n for n in everyone if n != CANARY]):
            sums = {}
            evaluations = (self.evaluation(noise, present, sums) for _ in range(runs))
            scores.append(np.array([np.vdot(direction, weights) for weights in evaluations]))
        return scores[0], scores[1]


def config_of(q, *, z=Z, P=2, N=3, **more):
    return FederationConfig(
        n_agents=N, q=q, z=z, n_regions=P, n_features=3, n_rounds=3, delta=DELTA,
        temperature=UNIFORM, population="explore", clipping_norm=22.0,
        **more,
    )  # fmt: skip


@functools.cache
def true_scores(q):
    return Round(config_of(q)).scores(RUNS[q], seed=0)


# Correct rounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1.0, 0.35])
def test_a_round_is_as_private_as_it_claims(q):
    claim = pld_epsilon(q, Z, 1, DELTA)
    assert 0.5 * claim <= audited_epsilon(*true_scores(q)) <= claim


@pytest.mark.parametrize("q", [1.0, 0.35])
@pytest.mark.parametrize("delta", [1e-3, 0.1])
def test_nor_is_it_less_private_at_another_delta(q, delta):
    assert audited_epsilon(*true_scores(q), delta) <= pld_epsilon(q, Z, 1, delta)


@pytest.mark.parametrize("q", [1.0, 0.35])
def test_three_rounds_are_as_private_as_they_claim(q):
    """The adversary adds up the log-likelihood ratios of three rounds."""
    claim = pld_epsilon(q, Z, 3, DELTA)
    ratios = [
        np.log1p(q * np.expm1((scores - 0.5) / Z**2)).reshape(-1, 3).sum(1)
        for scores in true_scores(q)
    ]
    assert 0.5 * claim <= audited_epsilon(*ratios) <= claim


@pytest.mark.parametrize(
    "canary",
    [
        np.array([math.nan, 1.0, 0.0]),
        np.array([math.inf, 0.0, 0.0]),
        np.array([1e308, 1e308, -1e308]),
    ],
    ids=["nan", "inf", "huge"],
)
def test_odd_vectors_tell_no_more(canary):
    aside = Round(config_of(1.0))  # its direction is that of a finite canary

    class Odd(Round):
        def direction(self):
            return aside.direction()

    scores = Odd(config_of(1.0), canary=canary).scores(MUTANT_RUNS, seed=1)
    assert audited_epsilon(*scores) <= pld_epsilon(1.0, Z, 1, DELTA)


@pytest.mark.parametrize("q", [1.0, 0.35])
def test_a_round_at_the_first_temperature_tells_no_more(q):
    config = evolve(config_of(q), temperature=Temperature())
    scores = Round(config).scores(MUTANT_RUNS, seed=2)
    assert audited_epsilon(*scores) <= pld_epsilon(q, Z, 1, DELTA)


# Mutants ----------------------------------------------------------------------------------------


def flagged(mutant, claim, runs=MUTANT_RUNS):
    return audited_epsilon(*mutant.scores(runs, seed=7)) > claim


@pytest.mark.parametrize("q", [1.0, 0.35])
def test_the_audit_flags_forgotten_clipping(q, monkeypatch):
    monkeypatch.setattr(server_module, "clip_rows", lambda w, bound: w)
    claim = pld_epsilon(q, Z, 1, DELTA)
    assert not flagged(Round(config_of(q)), claim)  # no entry of a sum counts for more than S

    def unbounded(values, bound):
        return np.asarray(np.trunc(values / bound * 2.0**FRACTION_BITS).astype(np.int64).sum(0))

    monkeypatch.setattr(server_module, "fixed_point_sum", unbounded)
    assert flagged(Round(config_of(q)), claim)


def test_the_audit_flags_clipping_to_the_joint_norm_in_every_region(monkeypatch):
    """S instead of S / sqrt(P): the joint vector is twice as long with four regions."""
    config, original = config_of(1.0, P=4, N=4), server_module.clip_rows
    claim = pld_epsilon(1.0, Z, 1, DELTA)
    assert not flagged(Round(config), claim)
    monkeypatch.setattr(server_module, "clip_rows", lambda w, bound: original(w, 2 * bound))
    assert flagged(Round(config), claim)


class RealisedSize(RoundSum):
    """Mutant: divides by how many agents were added, not by the expected number on the roster."""

    size = 0

    def add(self, n, w):
        super().add(n, w)
        self.size += self._chosen[n]

    def broadcast(self, noisy):
        true, config = super().broadcast(noisy), self.config
        exact = super().broadcast(self.exact()).weights
        share = config.n_agents * config.q / max(self.size, 1)
        return replace(true, weights=share * exact + (true.weights - exact))


def redrawn_coins(noise, config, present):
    """Mutant: draws again until somebody who is there is chosen."""
    while True:
        coins = fresh_coins(noise, config, present)
        if any(coins[n] for n in present):
            return coins


def everybody(noise, config, present):
    """Mutant: takes everybody, and claims to have sampled."""
    return [True] * config.n_agents


OPPOSITE = {"others": np.array([-1e3, 0.0, 0.0])}
BROKEN = {
    # The other agent sends the opposite, which the canary dilutes as well as cancels.
    "the realised size": (1.0, {"P": 1, "N": 2}, {"kind": RealisedSize, **OPPOSITE}, OPPOSITE),
    # With two agents the canary is then in every other round, instead of every twentieth.
    "an empty subset drawn again": (0.05, {"P": 1, "N": 2}, {"coins": redrawn_coins}, {}),
    # S / sqrt(P) instead of S: half the noise.
    "noise for one region of four": (1.0, {"P": 4, "N": 4}, {"noise_factor": 0.5}, {}),
    "noise for one of four, sampled": (0.35, {"P": 4, "N": 4}, {"noise_factor": 0.5}, {}),
    "noise of a seed": (1.0, {}, {"seeded": True}, {}),
    "noise of a seed, sampled": (0.35, {}, {"seeded": True}, {}),
    "sampling that is not done": (0.35, {}, {"coins": everybody}, {}),
    "half the noise": (1.0, {}, {"noise_factor": 0.5}, {}),
    "half the noise, sampled": (0.35, {}, {"noise_factor": 0.5}, {}),
}
"""To each mistake q, further settings, what is broken, and what a correct round has as well."""


@pytest.mark.parametrize("mistake", BROKEN)
def test_the_audit_flags_a_mistake_and_no_correct_round(mistake):
    q, settings, broken, own = BROKEN[mistake]
    config, claim = config_of(q, **settings), pld_epsilon(q, Z, 1, DELTA)
    assert not settings or not flagged(Round(config, **own), claim)
    assert flagged(Round(config, **broken), claim)
