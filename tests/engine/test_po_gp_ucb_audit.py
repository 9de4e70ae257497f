"""Empirical audits of the released table: it may not tell neighbours apart better than it claims.

A table and its neighbour, which differ in one row by the most that the settings allow, are each
released many times. The adversary knows both and projects what was released on the difference of
its expectations, the most telling score there is. A threshold is chosen on half the runs;
Clopper-Pearson bounds on its two error rates over the other half turn into a lower bound on mu.
Noise is numpy's, seeded, so nothing about a run is random; for another seed the bounds hold with
confidence .9999, so each audit of correct code would accuse it once in 10**4. Mutants are built
here, never in the engine, and every one of them must be found out.
"""

import math

import numpy as np
import pytest

from privbo_plugins.algorithms.po_gp_ucb.gaussian import public_projection
from privbo_plugins.privacy.accountant import gdp_epsilon
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions import tables as curator_module
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.store.vault import open_vault

from .auditing import audited_mu
from .helpers import Recorded

RUNS = 20_000
MUTANT_RUNS = 8000
MU = 1.0
EPSILON, DELTA = gdp_epsilon(MU, 1e-5), 1e-5


def curator_of(X, **settings):
    noise = Recorded(0)
    return Curator(X, epsilon=EPSILON, delta=DELTA, noise=noise, **settings), noise


def drawn(exact, scale, noise):
    return noise.add_gaussian(exact, scale)


def audit(X, other, runs, draw=drawn, **settings):
    """A lower bound on mu from what a curator hands to its noise source."""
    curators = [curator_of(table, **settings) for table in (X, other)]
    hidden = []
    for curator, noise in curators:
        made = curator.release().manifest
        assert made.mu == pytest.approx(MU, abs=1e-6)
        hidden.append((noise.exact, noise.scales[-1]))
    direction = hidden[1][0] - hidden[0][0]
    source = InsecureNoise(1)
    scores = [[float(direction @ draw(*pair, source)) for _ in range(runs)] for pair in hidden]
    return audited_mu(*scores)


def pair(n=3, d=2, distance=10.0):
    """Tables whose first rows lie on opposite sides of the origin; the other rows are there."""
    X = np.random.default_rng(0).uniform(-0.2, 0.2, size=(n, d))
    X[0] = 0.0
    X[0, 0] = distance / 2
    other = X.copy()
    other[0] = -X[0]
    return X, other


# Correct code -------------------------------------------------------------------------------

SEEDED = public_projection(3, 1, 0)[:, 0]
ALONG = SEEDED / np.linalg.norm(SEEDED)


def along(distance):
    """The pair that the seeded matrix moves farthest."""
    X, other = np.zeros((2, 3)), np.zeros((2, 3))
    X[0], other[0] = distance / 2 * ALONG, -distance / 2 * ALONG
    return X, other


def corners():
    """Far beyond opposite corners of the bounds."""
    X = np.zeros((3, 2))
    X[0] = 1e308
    return X, -X


CASES = {
    "any two rows": (pair(distance=1e3), {"norm_bound": 1.0}),
    "nu": (pair(distance=0.5), {"norm_bound": 4.0, "neighbor_distance": 0.5}),
    "nu beyond the ball": (pair(distance=5.0), {"norm_bound": 1.0, "neighbor_distance": 5.0}),
    "bounds": (corners(), {"bounds": [(-1, 1)] * 2}),
    "seeded matrix": (along(7.0), {"norm_bound": 1.0, "r": 1}),
    "seeded matrix, nu": (along(0.5), {"norm_bound": 4.0, "neighbor_distance": 0.5, "r": 1}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_released_table_is_as_private_as_it_claims_and_no_more(case):
    (X, other), settings = case
    assert 0.75 * MU <= audit(X, other, RUNS, **settings) <= MU


@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf, 1e308, 1.35e154])
def test_odd_entries_tell_no_more(entry):
    X, other = pair()
    other[0] = [entry, 0.3]
    for settings in ({"norm_bound": 1.0}, {"bounds": [(-1, 1)] * 2}):
        assert audit(X, other, 2000, **settings) <= MU


# Whole curators -----------------------------------------------------------------------------


@pytest.mark.slow
def test_tables_from_whole_curators_are_as_private_as_they_claim():
    """With a vault, a ledger and a manifest: 800 runs a table, so the bound is wider.

    A vault looks at all of its tables before it releases another, so few share one.
    """
    vault, noise, scores = open_vault(), InsecureNoise(3), []
    for X in pair(distance=1e3):
        scores.append([])
        for i in range(800):
            vault = vault if i % 10 else open_vault()
            curator = Curator(X, epsilon=EPSILON, delta=DELTA, norm_bound=1.0, noise=noise,
                              vault=vault.handle, run_name=str(i))  # fmt: skip
            scores[-1].append(float(-curator.release().Z[0, 0]))
    assert 0.4 * MU <= audited_mu(*scores) <= MU


# Mutants ------------------------------------------------------------------------------------


def flagged(X, other, draw=drawn, **settings):
    return audit(X, other, MUTANT_RUNS, draw, **settings) > MU


def half(exact, scale, noise):
    return noise.add_gaussian(exact, scale / 2)


def seeded(exact, scale, noise):
    return InsecureNoise(0).add_gaussian(exact, scale)


def once_a_column(exact, scale, noise):
    """The same noise for every row: the difference of two rows has none at all."""
    return exact + np.tile(noise.add_gaussian(np.zeros(2), scale), exact.size // 2)


def least_of_five(exact, scale, noise):
    """Released anew whenever it is asked for; whoever asks five times takes the mean."""
    return np.mean([noise.add_gaussian(exact, scale) for _ in range(5)], axis=0)


@pytest.mark.parametrize("draw", [half, seeded, least_of_five])
def test_the_audit_flags_broken_noise(draw):
    assert flagged(*pair(distance=1e3), draw, norm_bound=1.0)


def test_the_audit_flags_noise_that_rows_share():
    """The score is then the difference of the row that moved and one that did not."""
    curators = [curator_of(X, norm_bound=1.0) for X in pair(distance=1e3)]
    source, scores = InsecureNoise(1), []
    for curator, noise in curators:
        curator.release()
        Z = [once_a_column(noise.exact, noise.scales[-1], source) for _ in range(1000)]
        scores.append([float(z[2] - z[0]) for z in Z])
    assert audited_mu(*scores) > MU


clipped = curator_module.rows_within


def distance(mistaken):
    return "sensitivity", lambda nu, R, P: mistaken(nu, R) * (1 + 1e-9)


def rows(mistaken):
    return "rows_within", lambda X, scaling, R: mistaken(X, R)


MISTAKES = {
    "no clipping": (pair(distance=4.0), {"norm_bound": 1.0}, rows(lambda X, R: X)),
    "clipping by coordinate": (
        (np.eye(2, 1) * np.full(4, 5.0), np.eye(2, 1) * np.full(4, -5.0)),
        {"norm_bound": 1.0},
        rows(lambda X, R: np.clip(X, -R, R)),
    ),
    # Neighbours a hair apart land on opposite sides of the ball.
    "norms made equal": (
        pair(distance=0.1),
        {"norm_bound": 1.0, "neighbor_distance": 0.1},
        rows(lambda X, R: R * X / np.linalg.norm(X, axis=1, keepdims=True)),
    ),
    # One far row drags the mean, and all others, clipped afterwards, change sides: four rows lie
    # within the ball, the fifth moves by 10 and the others by 2.
    "centring by the data's mean": (
        (20.0 * np.eye(5, 1), -20.0 * np.eye(5, 1)),
        {"norm_bound": 1.0},
        rows(lambda X, R: clipped(X - X.mean(0), None, R)),
    ),
    # The largest entry scales all rows; the others move by more than it does.
    "scaling by the data's range": (
        (np.full((6, 1), 0.1), np.full((6, 1), 0.1) + 0.5 * np.eye(6, 1)),
        {"norm_bound": 1.0, "neighbor_distance": 0.5},
        rows(lambda X, R: clipped(X / np.abs(X).max(), None, R)),
    ),
    # A seeded matrix of 3 to 1 columns stretches by sqrt(3).
    "without the matrix's norm": (
        along(7.0), {"norm_bound": 1.0, "r": 1}, distance(lambda nu, R: 2 * R)
    ),
    # The neighbours are as far apart as nu and the ball's diameter.
    **{
        f"{name} for nu": (
            pair(distance=2.5), {"norm_bound": 1.25, "neighbor_distance": 2.5}, distance(mistake)
        )
        for name, mistake in {
            "the radius": lambda nu, R: R,
            "the lesser of nu and the radius": lambda nu, R: min(nu, R),
            "half": lambda nu, R: nu / 2,
        }.items()
    },
    "a nu for any two rows": (
        pair(distance=1e3), {"norm_bound": 1.0}, distance(lambda nu, R: 0.5 * R)
    ),
}  # fmt: skip
"""Neighbours, settings, and what a curator takes in the place of a function of its own."""


@pytest.mark.parametrize("name", MISTAKES)
def test_the_audit_flags_a_mistake(name, monkeypatch):
    (X, other), settings, (function, mistaken) = MISTAKES[name]
    assert not flagged(X, other, **settings)
    monkeypatch.setattr(curator_module, function, mistaken)
    assert flagged(X, other, **settings)


def test_the_audit_flags_noise_for_the_rows_that_goes_through_the_matrix(monkeypatch):
    """Noise for X, then times a matrix: harmless, unless the matrix was scaled after the fact.

    (X + N) P has the privacy of X + N whatever P is. It is broken where sigma is that of the rows
    and the matrix meets the noise with a smaller norm than the rows: here without sqrt(d / r).
    """
    X, other = along(7.0)
    P, settings = public_projection(3, 1, 0), {"norm_bound": 1.0, "r": 1}

    def through(shrunk):
        def draw(exact, scale, noise):
            sigma = scale / math.sqrt(3)  # for the rows themselves
            mixed = noise.add_gaussian(np.zeros((2, 3)), sigma) @ P * shrunk
            return exact + mixed.ravel()

        return draw

    assert not flagged(X, other, through(1.0), **settings)
    assert flagged(X, other, through(1 / math.sqrt(3)), **settings)


def test_all_of_these_audits_would_have_seen_more_than_is_claimed_at_half_the_noise():
    """The power of the audit: every correct case is flagged once its noise is halved."""
    for (X, other), settings in CASES.values():
        assert flagged(X, other, half, **settings)
