"""Posteriors updated evaluation by evaluation against equations (2) and (3), written out."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from privbo_plugins.models import reward_posterior
from privbo_plugins.models.kernels import RBF, Matern52
from privbo_plugins.models.reward_posterior import ArmsPosterior, FeaturePosterior, MixedPosterior
from tests.inside import features_of

from .oracles import conditioned, covariance

TOLERANCE = 1e-4
"""What :class:`GrowingFeatures` leaves unexplained of a point that was told."""

KERNELS = {"rbf": RBF(0.3), "matern52": Matern52(0.3)}
each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
each_noise = pytest.mark.parametrize("lam", [0.01, 1.0, 7.0])


def dense(K, cross, prior, y, lam):
    """Mean (2) and standard deviation (3): every evaluation its own row, no aggregation."""
    mean, variance = conditioned(K, cross, prior, y, lam)
    return mean, np.sqrt(np.maximum(variance, 0.0))


def dense_arms(K, arms, y, lam):
    return dense(K[np.ix_(arms, arms)], K[:, arms], np.diag(K), y, lam)


def numbers(arms):
    return np.asarray(arms, dtype=float)[:, None]


def told(posterior, Z, y):
    for z, value in zip(Z, y, strict=True):
        posterior.tell(z, float(value))
    return posterior


def evaluations(n, arms, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(arms, size=n), 3.0 * rng.standard_normal(n)


# Arms ---------------------------------------------------------------------------------------


@each_noise
@pytest.mark.parametrize("rank", [None, 3, 1], ids=["full", "rank3", "rank1"])
@pytest.mark.parametrize("n", [0, 1, 5, 60])
@pytest.mark.parametrize("refresh", [2000, 3])
def test_arms_follow_the_dense_formula(monkeypatch, refresh, n, rank, lam):
    """With repeats, which 60 evaluations of 7 arms cannot avoid, and in the order asked for."""
    monkeypatch.setattr(reward_posterior, "_REFRESH", refresh)
    K, order = covariance(7, rank=rank), np.array([3, 0, 3, 6, 5, 4, 2, 1])
    arms, y = evaluations(n, 7)
    ours = told(ArmsPosterior(K, lam), numbers(arms), y).predict(numbers(order))
    mean, sd = dense_arms(K, arms, y, lam)
    assert_allclose(ours[0], mean[order], atol=1e-8)
    assert_allclose(ours[1] ** 2, sd[order] ** 2, atol=1e-8)


@pytest.mark.parametrize("refresh", [2000, 2])
def test_imagined_evaluations_equal_telling_the_own_mean_and_leave_the_original_alone(
    monkeypatch, refresh
):
    """Neither its covariances nor what they are recomputed from are the original's."""
    monkeypatch.setattr(reward_posterior, "_REFRESH", refresh)
    K, (arms, y), pending = covariance(6), evaluations(15, 6), [2, 2, 5]
    posterior, everything = ArmsPosterior(K, 0.4), numbers(np.arange(6))
    told(posterior, numbers(arms), y)
    mean, sd = posterior.predict(everything)
    imagined = posterior.imagining(numbers(np.array(pending)))
    _, expected = dense_arms(K, np.append(arms, pending), np.append(y, mean[pending]), 0.4)
    assert_allclose(imagined.predict(everything)[0], mean, atol=1e-9)
    assert_allclose(imagined.predict(everything)[1], expected, atol=1e-9)
    told(imagined, numbers([1, 1]), np.array([100.0, 100.0]))
    for one, two in zip(posterior.predict(everything), (mean, sd), strict=True):
        assert np.array_equal(one, two)
    told(posterior, numbers([0, 3]), np.array([1.0, -1.0]))
    later = dense_arms(K, np.append(arms, [0, 3]), np.append(y, [1.0, -1.0]), 0.4)
    for one, two in zip(posterior.predict(everything), later, strict=True):
        assert_allclose(one, two, atol=1e-9)


# A continuum --------------------------------------------------------------------------------


def gap(kernel, Z, y, new, lam):
    """How far the features' mean and variance are from (2) and (3)."""
    ours = told(FeaturePosterior(kernel.k, lam), Z, y).predict(new)
    mean, sd = dense(kernel.k(Z, Z), kernel.k(new, Z), np.ones(len(new)), y, lam)
    return np.abs(ours[0] - mean), np.abs(ours[1] ** 2 - sd**2)


@each_kernel
@each_noise
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("refresh", [2000, 3])
def test_features_are_exact_while_points_are_few_and_apart(monkeypatch, refresh, kernel, n, lam):
    """Every point becomes a pivot, and the features reproduce the covariance."""
    monkeypatch.setattr(reward_posterior, "_REFRESH", refresh)
    grid = np.stack(np.meshgrid([0.0, 0.5, 1.0], [0.0, 0.5, 1.0]), -1).reshape(-1, 2)[:n]
    new = np.random.default_rng(3).uniform(size=(20, 2))
    rows = np.random.default_rng(4).integers(n, size=5 * n)
    Z, y = np.vstack([grid, grid[rows]]), np.random.default_rng(5).standard_normal(6 * n)
    posterior = told(FeaturePosterior(kernel.k, lam), Z, y)
    assert features_of(posterior).m == n
    for error in gap(kernel, Z, y, new, lam):
        assert error.max() < 1e-9


@each_kernel
@each_noise
def test_features_err_by_no_more_than_their_tolerance_allows(kernel, lam):
    """With E = K - Phi Phiᵀ >= 0 and diag(E) <= tol at every point told.

    |mean - (2)| <= |y| (sqrt(n tol) / lam + n tol / (2 lam^{3/2})), from
    (K + lam)⁻¹ - (Q + lam)⁻¹ = -(K + lam)⁻¹ E (Q + lam)⁻¹ and |(Q + lam)⁻¹ Phi| <=
    1 / (2 sqrt(lam)); likewise for the variance with |k_n|, |q_n| in the place of |y|.
    """
    rng, n = np.random.default_rng(6), 150
    Z = rng.uniform(size=(n, 2))
    y = rng.standard_normal(n)
    new = rng.uniform(size=(40, 2))
    posterior = told(FeaturePosterior(kernel.k, lam), Z, y)
    Phi = features_of(posterior).features(Z)
    E = kernel.k(Z, Z) - Phi @ Phi.T
    assert np.diag(E).max() <= TOLERANCE * (1 + 1e-9)
    assert np.linalg.eigvalsh(E)[0] > -1e-9
    outside = np.sqrt(n * TOLERANCE)
    factor = outside / lam + n * TOLERANCE / (2 * lam**1.5)
    mean, variance = gap(kernel, Z, y, new, lam)
    assert np.all(mean <= factor * np.linalg.norm(y))
    assert np.all(variance <= 2 * factor * np.sqrt(n))
    if lam >= 1:  # what it comes to in practice is far less
        assert mean.max() < 0.02
        assert variance.max() < 0.01


@pytest.mark.parametrize("pending", [[[0.5, 0.5]], [[0.2, 0.9], [0.2, 0.9], [0.8, 0.1]]], ids=str)
def test_imagined_points_equal_telling_the_own_mean_and_leave_the_original_alone(pending):
    rng = np.random.default_rng(9)
    Z, y, new = rng.uniform(size=(12, 2)), rng.standard_normal(12), rng.uniform(size=(15, 2))
    kernel = RBF(0.3)
    posterior = told(FeaturePosterior(kernel.k, 0.5), Z, y)
    before = [part.copy() for part in posterior.predict(new)]
    imagined = posterior.imagining(np.array(pending))
    by_hand = told(FeaturePosterior(kernel.k, 0.5), Z, y)
    for z in np.array(pending):
        by_hand.tell(z, float(by_hand.predict(z[None])[0][0]))
    for one, two in zip(imagined.predict(new), by_hand.predict(new), strict=True):
        assert_allclose(one, two, atol=1e-10)
    assert_allclose(imagined.predict(new)[0], before[0], atol=0.02)
    assert imagined.predict(np.array(pending))[1].max() < posterior.predict(new)[1].max()
    told(imagined, rng.uniform(size=(5, 2)), np.full(5, 100.0))
    for one, two in zip(posterior.predict(new), before, strict=True):
        assert np.array_equal(one, two)
    assert features_of(posterior).m <= 12
    z, alone = rng.uniform(size=2), told(FeaturePosterior(kernel.k, 0.5), Z, y)
    for one in (posterior, alone):  # nothing that was imagined comes back with the next one
        one.tell(z, 0.7)
    for one, two in zip(posterior.predict(new), alone.predict(new), strict=True):
        assert_allclose(one, two, atol=1e-12)


# Mixtures -----------------------------------------------------------------------------------


def mixed(covariances, lam):
    return MixedPosterior([ArmsPosterior(K, lam) for K in covariances], lam)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 25), lam=st.sampled_from([0.05, 1.0, 7.0]))
@settings(max_examples=40)
def test_a_mixture_weighs_its_models_by_the_probability_of_all_observations(seed, n, lam):
    """The chain of one-step predictions is the joint density, which scipy knows."""
    covariances = [covariance(5, seed), covariance(5, seed + 1, 2), np.eye(5)]
    arms, y = evaluations(n, 5, seed)
    posterior = mixed(covariances, lam)
    told(posterior, numbers(arms), y)
    joint = [K[np.ix_(arms, arms)] + lam * np.eye(n) for K in covariances]
    evidence = [scipy.stats.multivariate_normal.logpdf(y, cov=C) if n else 0.0 for C in joint]
    p = scipy.special.softmax(evidence)
    assert_allclose(posterior.weights, p, atol=1e-8)
    moments = [dense_arms(K, arms, y, lam) for K in covariances]
    mean = sum(w * mu for w, (mu, _) in zip(p, moments, strict=True))
    second = sum(w * (mu**2 + sd**2) for w, (mu, sd) in zip(p, moments, strict=True))
    ours = posterior.predict(numbers(np.arange(5)))
    assert_allclose(ours[0], mean, atol=1e-7)
    assert_allclose(ours[1] ** 2, second - mean**2, atol=1e-6)


def test_what_a_mixture_imagines_moves_neither_its_means_nor_its_weights():
    arms, y = evaluations(20, 5)
    posterior = mixed([covariance(5), np.eye(5)], 0.5)
    told(posterior, numbers(arms), y)
    before = posterior.predict(numbers(np.arange(5)))
    copy = posterior.imagining(numbers(np.array([1, 1, 4])))
    mean, sd = copy.predict(numbers(np.arange(5)))
    assert_allclose(copy.weights, posterior.weights)
    assert_allclose(mean, before[0], atol=1e-12)
    assert np.all(sd <= before[1] + 1e-12)
    assert sd[1] < before[1][1]
    assert_allclose(posterior.predict(numbers(np.arange(5))), before)  # the original is unmoved
