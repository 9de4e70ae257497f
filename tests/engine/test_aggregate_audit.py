"""Empirical audits of rounds whose sum alone the server sees, from what it can read.

The adversary is the server together with c agents: it knows all that was sent to it, the other
agents' vectors, and the keys and noise of those that collude. Each audit asks how well it tells
whether the canary, agent 0, sent its vector or zeros, from one thing that it sees:

    ========  =====================================================================  ==========
    view      what it looks at                                                       claim
    ========  =====================================================================  ==========
    sum       the opened sum, without the colluders' shares of the noise             epsilon(z)
    raw       the canary's masked vector                                             0
    sent      the same without the masks it knows of                                 0
    lost      the same once the canary counts as lost, and its key was given back    0
    twice     the difference of its masked vectors in two rounds                     0
    ========  =====================================================================  ==========

Lower bounds on epsilon and their confidence are those of ``test_federated_audit``; keys and noise
come from seeds, so an audit draws the same numbers in every run. Mutants are built here, and every
one of them must be found out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="needs the federation extra")

from privbo_plugins.algorithms.dp_fts_de import FederationConfig, Measure
from privbo_plugins.algorithms.dp_fts_de.shares import share_scale
from privbo_plugins.federation import masking
from privbo_plugins.federation.masking import Keys, Words
from privbo_plugins.privacy.mechanisms import FRACTION_BITS
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.privacy.subsampling import pld_epsilon
from privbo_plugins.sealing import Meeting
from privbo_plugins.store.release import draw_share

from .test_federated_audit import DELTA, audited_epsilon

pytestmark = pytest.mark.slow  # all of them together

N, C, T = 6, 2, 5
CONFIG = FederationConfig(
    N, z=1.0, trust="aggregate", colluding=C, min_present=T, population="explore", n_features=3,
    clipping_norm=3.0,
)  # fmt: skip
CANARY = np.array([1e3, 0.0, 0.0])
RUNS, RUNS_OF_THE_SUM = 400, 20_000
PRESENT = range(T)
"""One agent is lost, as may be; agents 1, ..., C collude."""

Masked = Callable[..., Words]
Noise = Callable[[int, int, float, InsecureNoise], Any]


def own_share(_agent, d, scale, noise):
    return draw_share(d, scale, noise)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What agents do; the mutants replace parts of it."""

    masked: Masked = masking.masked
    noise: Noise = own_share
    scale: float = share_scale(CONFIG)
    new_keys: bool = True


def seeded(rng):
    return Keys(*(rng.bytes(masking.SEED) for _ in range(3)))


@dataclasses.dataclass
class View:
    """What an adversary may look at, from one round after the other."""

    protocol: Protocol
    rng: np.random.Generator

    def __post_init__(self):
        self.source = InsecureNoise(int(self.rng.integers(2**31)))
        self.keys = [seeded(self.rng) for _ in PRESENT]
        self.measure = Measure(CONFIG, 1)
        self.parts = {}

    def x(self, n, w):
        """What an agent masks; its part is the same in every round, but for the noise."""
        if (n, *w) not in self.parts:
            self.parts[n, *w] = self.measure.part(n, w)
        return (self.parts[n, *w] + self.share(n, self.measure.d)).view(np.uint64)

    def share(self, n, d):
        return self.protocol.noise(n, d, self.protocol.scale, self.source)

    def y(self, n, w, t):
        others = {v: self.keys[v].public for v in PRESENT if v != n}
        return self.protocol.masked(self.x(n, w), n, self.keys[n], others, f"round {t}")

    def new_round(self):
        if self.protocol.new_keys:
            self.keys = [seeded(self.rng) for _ in PRESENT]

    def pair(self, v, t):
        met = Meeting(self.keys[0].s, self.keys[v].public.s)
        return masking.pair_mask(met, 0, v, f"round {t}", self.measure.d)


def seen_sums(view, w, runs):
    """Masks cancel exactly in a sum, so it is taken without them; a round is a coordinate here."""
    total = np.full(runs, view.measure.part(0, w)[0])  # all others send zeros
    for n in PRESENT:
        if not 1 <= n <= C:
            total += view.share(n, runs)
    return total / 2**FRACTION_BITS


def without_pairs(known):
    """The canary's vector as it is sent, without its masks with these agents."""

    def seen(view, w):
        view.new_round()
        y = view.y(0, w, 1)
        for v in known:
            y = y - view.pair(v, 1)
        return float(y.view(np.int64)[0])

    return seen


def seen_twice(view, w):
    view.new_round()
    first = view.y(0, np.zeros(3), 1)
    view.new_round()
    return float((view.y(0, w, 1) - first).view(np.int64)[0])


SEEN = {
    "raw": without_pairs(()), "sent": without_pairs(range(1, C + 1)),
    "lost": without_pairs(PRESENT[1:]), "twice": seen_twice,
}  # fmt: skip


def audited(what, protocol):
    """A lower bound on epsilon at DELTA, from many rounds with the canary and without it."""
    worlds = []
    for world, w in enumerate((CANARY, np.zeros(3))):
        view = View(protocol, np.random.default_rng([11, world, len(what)]))
        if what == "sum":
            worlds.append(seen_sums(view, w, RUNS_OF_THE_SUM))
        else:
            worlds.append(np.array([SEEN[what](view, w) for _ in range(RUNS)]))
    return audited_epsilon(*worlds)


def claim(what):
    return pld_epsilon(1.0, 1.0, 1, DELTA) if what == "sum" else 0.0


@pytest.mark.parametrize("what", ["sum", *SEEN])
def test_what_the_server_and_those_that_collude_see_is_as_private_as_is_claimed(what):
    """And of the sum the audit finds most of the epsilon that there is."""
    bound = audited(what, Protocol())
    assert 0.4 * claim(what) <= bound <= claim(what)


# Mutants ----------------------------------------------------------------------------------------


def no_mask(x, *_args):
    return x


def no_own_mask(x, u, keys, others, purpose):
    return masking.masked(x, u, keys, others, purpose) - masking.stream(keys.b, len(x))


def no_masks_of_pairs(x, _u, keys, _others, _purpose):
    return x + masking.stream(keys.b, len(x))


def masks_for_colluders_alone(x, u, keys, others, purpose):
    known = {v: public for v, public in others.items() if v <= C}
    return no_own_mask(x, u, keys, known, purpose)


def canary_alone(agent, d, scale, noise):
    return draw_share(d, scale if agent == 0 else 0.0, noise)


def colluders_alone(agent, d, scale, noise):
    return draw_share(d, scale if 1 <= agent <= C else 0.0, noise)


MUTANTS = {
    "missing mask": ("raw", Protocol(masked=no_mask)),
    "missing mask of its own": ("lost", Protocol(masked=no_own_mask)),
    "masks that colluders know": ("sent", Protocol(masked=masks_for_colluders_alone)),
    "reused mask": ("twice", Protocol(new_keys=False)),
    "missing share of the noise": ("sum", Protocol(noise=canary_alone)),
    "noise of those that collude alone": ("sum", Protocol(noise=colluders_alone)),
    "shares for all agents, and none for those that collude": (
        "sum",
        Protocol(scale=share_scale(CONFIG) * math.sqrt((T - C) / N)),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found_out(name):
    what, protocol = MUTANTS[name]
    assert audited(what, protocol) > claim(what)


def test_masks_of_pairs_protect_an_agent_whose_own_mask_is_known():
    """Its seed comes back in every round that is opened; without pairs its vector is read."""
    view = View(Protocol(masked=no_masks_of_pairs, scale=0.0), np.random.default_rng(5))
    y = view.y(0, CANARY, 1) - masking.stream(view.keys[0].b, 3)
    assert (y.view(np.int64) == view.measure.part(0, CANARY)).all()
    whole = View(Protocol(scale=0.0), np.random.default_rng(5))
    y = whole.y(0, CANARY, 1) - masking.stream(whole.keys[0].b, 3)
    for v in range(1, C + 1):
        y = y - whole.pair(v, 1)
    assert abs(int(y.view(np.int64)[0])) > 2 ** (FRACTION_BITS + 8)
