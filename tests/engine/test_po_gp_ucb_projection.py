"""The published projection is reproduced as it stands, and two attacks show what it gives away.

The attacks are run beside the sound mechanism, against which they may tell no more than its
epsilon and delta allow. Random numbers are numpy's, seeded: nothing about a run is random. Stated
error rates are those of another seed.
"""

import functools
import math

import numpy as np
import pytest

from privbo_plugins.algorithms.po_gp_ucb.attack import recovered_rows, residual, told_apart
from privbo_plugins.algorithms.po_gp_ucb.projection import (
    centred,
    largest_r,
    lifted,
    omega,
    smallest_singular_value,
    transform,
)
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.store.vault import open_vault

DELTA = 1e-5


@functools.cache
def grid(side=100):
    """The paper's synthetic domain, centred, with rows of norm at most 25."""
    axis = np.linspace(-1.0, 1.0, side)
    X = np.array(np.meshgrid(axis, axis)).reshape(2, -1).T
    X = X - X.mean(0)
    return np.asarray(X * 25.0 / np.linalg.norm(X, axis=1).max())


def normal(seed, d, r):
    return np.random.default_rng(seed).standard_normal((d, r))


# The condition ------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [1, 10, 15])
@pytest.mark.parametrize("epsilon", [0.5, math.exp(1.1), 8.0])
@pytest.mark.parametrize("delta", [1e-5, 0.1])
def test_omega_is_line_5(r, epsilon, delta):
    root = (r * (math.log(2) - math.log(delta))) ** 0.5
    expected = 16 * root * (math.log(16) + math.log(r) - math.log(delta)) / epsilon
    assert omega(r, epsilon, delta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("power", "r", "papers"), [(1.1, 11, 10), (1.3, 15, 15), (1.5, 22, 20)])
def test_the_papers_grid_allows_the_papers_r(power, r, papers):
    """The paper varies r in steps; its largest is the largest multiple of five here."""
    least = smallest_singular_value(grid())
    assert least == pytest.approx(1030.9, abs=0.05)
    epsilon = math.exp(power)
    assert largest_r(least, epsilon, DELTA) == r
    assert omega(r, epsilon, DELTA) <= least < omega(r + 1, epsilon, DELTA)
    assert r // 5 * 5 == papers


def test_a_lifted_table_has_singular_values_sqrt_s2_plus_omega2_and_the_same_vectors():
    X = centred(np.random.default_rng(0).normal(size=(40, 3)) * [5.0, 1.0, 0.1])
    U, before, Vt = np.linalg.svd(X, full_matrices=False)
    V, after, Wt = np.linalg.svd(lifted(X, 2.5), full_matrices=False)
    np.testing.assert_allclose(after, np.sqrt(before**2 + 2.5**2), rtol=1e-12)
    assert after.min() >= 2.5
    np.testing.assert_allclose(np.abs(U.T @ V), np.eye(3), atol=1e-10)
    np.testing.assert_allclose(np.abs(Vt @ Wt.T), np.eye(3), atol=1e-10)


@pytest.mark.parametrize(("epsilon", "raised"), [(math.exp(1.1), False), (0.5, True)])
def test_the_transformation_is_algorithm_1(epsilon, raised):
    X, M = grid() + np.array([3.0, -7.0]), normal(0, 2, 10)
    Z, was_raised = transform(X, M, epsilon, DELTA)
    assert was_raised is raised
    U, s, Vt = np.linalg.svd(X - X.mean(0), full_matrices=False)
    least = omega(10, epsilon, DELTA) if raised else 0.0
    expected = U @ np.diag(np.sqrt(s**2 + least**2)) @ Vt @ M / math.sqrt(10)
    np.testing.assert_allclose(Z, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("r", [1, 2, 10])
def test_a_projected_table_has_at_most_d_dimensions(r):
    for epsilon in (math.exp(1.1), 0.1):
        Z, _ = transform(grid(20), normal(r, 2, r), epsilon, DELTA)
        assert np.linalg.matrix_rank(Z, tol=1e-9 * np.linalg.norm(Z)) <= 2
        assert residual(Z, grid(20)) < 1e-12


def test_distances_keep_their_size_on_average():
    """|z - z'|² / |x - x'|² has mean 1 and variance 2/r: five deviations of 400 draws, 6e-7."""
    X, r, draws = grid(), 10, 400
    pairs = [X[0] - X[1], X[0] - X[9999], X[17] - X[4242]]
    ratios = np.zeros(3)
    for seed in range(draws):
        Z, raised = transform(X[[0, 1, 9999, 17, 4242]], normal(seed, 2, r), 1e9, 0.5)
        assert not raised
        moved = [Z[0] - Z[1], Z[0] - Z[2], Z[3] - Z[4]]
        ratios += [float(m @ m / (p @ p)) for m, p in zip(moved, pairs, strict=True)]
    np.testing.assert_allclose(ratios / draws, 1.0, atol=5 * math.sqrt(2 / (r * draws)))


def test_the_projection_of_a_curator_takes_the_largest_r_and_says_whether_it_raised():
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        curator = Curator(
            grid(), epsilon=math.exp(1.1), delta=DELTA, norm_bound=25.0, mechanism="projection"
        )
    table = curator.release()
    assert table.Z.shape == (10_000, 11)
    assert table.manifest.projection == {"kind": "secret", "singular_values_raised": False}
    with pytest.warns(PrivacyWarning):
        small = Curator(grid(5), epsilon=1.0, delta=DELTA, norm_bound=25.0, mechanism="projection")
    table = small.release()
    assert table.Z.shape == (25, 2)
    assert table.manifest.projection == {"kind": "secret", "singular_values_raised": True}


# Which of two tables was it? ----------------------------------------------------------------


def neighbours(X, distance=1.0):
    """Two tables that differ in one row by a distance."""
    other = X.copy()
    other[3] += np.array([0.6, 0.8] + [0.0] * (X.shape[1] - 2)) * distance
    return X, other


def gaussian_release(X, seed, **settings):
    """A table that a curator releases with seeded noise; what it tells is audited elsewhere."""
    noise = InsecureNoise(seed)
    return np.asarray(Curator(X, delta=DELTA, noise=noise, **settings).release().Z)


def test_one_look_tells_neighbours_apart_after_the_published_projection():
    """20 of 20, which a coin would do once in a million; on the paper's own grid."""
    tables = neighbours(grid())
    for i in range(20):
        secret = i % 2
        Z, _ = transform(tables[secret], normal(i, 2, 10), 1.0, DELTA)
        assert told_apart(Z, *tables) == secret
        assert residual(Z, tables[secret]) < 1e-12
        assert residual(Z, tables[1 - secret]) > 1e-5


def test_noise_on_every_row_lies_off_the_column_space():
    X = np.random.default_rng(0).uniform(-1, 1, size=(300, 3))
    Z = gaussian_release(X, 0, epsilon=1.0, norm_bound=2.0)
    for table in neighbours(X):
        assert residual(Z, table) > 0.9


# From few rows to all -----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e6, 0.5], ids=["as they are", "raised"])
@pytest.mark.parametrize("d", [2, 5])
def test_whoever_knows_d_plus_1_rows_knows_them_all_after_the_published_projection(d, epsilon):
    X = np.random.default_rng(0).uniform(18, 90, size=(200, d))
    Z, raised = transform(X, normal(1, d, 10), epsilon, DELTA)
    assert raised is (epsilon == 0.5)
    rows = np.arange(d + 1)
    np.testing.assert_allclose(recovered_rows(Z, X[rows], rows), X, rtol=1e-6)


def test_whoever_knows_all_other_rows_still_errs_by_about_sigma_after_gaussian_noise():
    """60 draws of 3 coordinates: the mean square has deviation .11 sigma², 1/3 is six away."""
    X = np.random.default_rng(0).uniform(-1, 1, size=(60, 3))
    settings = {"epsilon": 2.0, "delta": DELTA, "norm_bound": 2.0, "neighbor_distance": 0.01}
    sigma, errors = 0.0, []
    rows = np.arange(1, 60)
    vault, noise = open_vault(), InsecureNoise(5)
    for run in range(60):
        table = Curator(
            X, vault=vault.handle, run_name=str(run), noise=noise, **settings
        ).release()
        sigma = table.manifest.noise_sd
        errors.append(recovered_rows(table.Z, X[rows], rows)[0] - X[0])
    assert 0.01 < sigma < 0.1  # the noise is far smaller than the rows, the attack fits well
    assert np.mean(np.square(errors)) > sigma**2 / 3


def test_a_few_known_rows_tell_less_of_the_others_than_their_mean_after_gaussian_noise():
    X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(200, 3))
    Z = gaussian_release(X, 7, epsilon=1.0, norm_bound=1.0)
    rows = np.arange(4)
    error = recovered_rows(Z, X[rows], rows)[4:] - X[4:]
    assert np.mean(error**2) > np.mean((X[4:] - X[4:].mean(0)) ** 2)
