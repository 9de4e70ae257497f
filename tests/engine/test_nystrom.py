"""The Nyström embedding (Algorithm 4) against dense formulas, ranks and matrix roots."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom

from privbo_plugins.models.kernels import RBF, Matern52
from privbo_plugins.models.nystrom import NystromEmbedding, sampled

from .oracles import conditioned

KERNELS = {"rbf": RBF(0.4), "matern52": Matern52(0.4)}
each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


def linear(A, B):
    return np.asarray(A @ B.T)


def squares(Z):
    return np.asarray((Z * Z).sum(1))


def posterior(phi, Phi, y, prior, lam):
    """Lines 12 and 13 of Algorithm 1 without truncation, a row of Phi each evaluation."""
    V = Phi.T @ Phi + lam * np.eye(Phi.shape[1])
    mean = phi @ np.linalg.solve(V, Phi.T @ y)
    left = np.einsum("ij,ij->i", phi, np.linalg.solve(V, phi.T).T)
    return mean, prior - squares(phi) + lam * left


@each_kernel
@pytest.mark.parametrize("lam", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("copies", [1, 3])
def test_all_points_in_the_dictionary_give_the_exact_posterior(kernel, lam, copies):
    """Duplicates in the dictionary add features of nothing, and change nothing."""
    rng = np.random.default_rng(0)
    distinct, new = rng.uniform(size=(8, 2)), rng.uniform(size=(12, 2))
    X = np.repeat(distinct, copies, axis=0)
    y = rng.standard_normal(len(X))
    embedding = NystromEmbedding(kernel.k, X, np.ones(len(X)))
    assert embedding.m == 8
    ours = posterior(embedding.features(new), embedding.features(X), y, np.ones(12), lam)
    theirs = conditioned(kernel.k(X, X), kernel.k(new, X), np.ones(12), y, lam)
    assert_allclose(ours[0], theirs[0], atol=1e-6)
    assert_allclose(ours[1], theirs[1], atol=1e-6)


@each_kernel
def test_a_part_of_the_points_explains_less_and_never_too_much(kernel):
    X = np.random.default_rng(2).uniform(size=(20, 2))
    variances = []
    for m in (0, 2, 6, 20):
        phi = NystromEmbedding(kernel.k, X[:m], np.ones(m)).features(X)
        variances.append(1 - squares(phi))
    assert np.all(np.diff(variances, axis=0) <= 1e-9)
    assert np.min(variances) > -1e-9
    assert np.array_equal(variances[0], np.ones(20))


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (6, 2), (6, 6), (12, 3), (9, 8)])
def test_singular_dictionaries_keep_as_many_points_as_their_rank(n, rank):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, rank + 2))
    X /= np.sqrt(squares(X).max())
    embedding = NystromEmbedding(linear, X, squares(X))
    assert embedding.m == np.linalg.matrix_rank(linear(X, X), hermitian=True) == rank
    Phi = embedding.features(X)
    assert_allclose(Phi @ Phi.T, linear(X, X), atol=1e-7)
    y, new = rng.standard_normal(n), X[::-1] * 0.5
    ours = posterior(embedding.features(new), Phi, y, squares(new), 0.5)
    theirs = conditioned(linear(X, X), linear(new, X), squares(new), y, 0.5)
    assert_allclose(ours[0], theirs[0], atol=1e-6)
    assert_allclose(ours[1], theirs[1], atol=1e-6)


# Who enters the dictionary --------------------------------------------------------------------

ERROR_RATE = 1e-6
"""Two-sided probability that a correct implementation fails one of the comparisons below."""


@pytest.mark.parametrize(
    ("q", "s2", "counts"),
    [(1.0, 0.3, 1), (4.0, 0.05, 1), (4.0, 0.05, 3), (2.0, 0.01, 40), (0.5, 0.5, 2)],
)
def test_a_point_enters_with_the_probability_that_one_of_its_evaluations_does(q, s2, counts):
    n, p = 20_000, 1 - (1 - min(q * s2, 1.0)) ** counts
    rng = np.random.default_rng([5, counts])
    hits = int(sampled(q, np.full(n, s2), np.full(n, float(counts)), rng).sum())
    low, high = binom.ppf([ERROR_RATE / 2, 1 - ERROR_RATE / 2], n, p)
    assert low <= hits <= high
    literal = (np.random.default_rng(6).random((n, counts)) < q * s2).any(1).sum()
    assert low <= literal <= high
