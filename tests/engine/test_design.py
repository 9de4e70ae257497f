"""Designs against brute force, finite differences and the closed forms' limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import check_grad, minimize_scalar

from privbo_plugins.algorithms.dp_gibo import GIBOConfig, design, make_plan
from privbo_plugins.algorithms.dp_gibo.plan import plan_batch
from privbo_plugins.algorithms.protocols import Release
from privbo_plugins.models.kernels import RBF, Matern52, Polynomial2

from .helpers import cube, start

LAM = 0.01
NONE = np.empty((0, 3))


def brute_value(kernel, X, theta, s2):
    """Tr(Jᵀ (K + s2 I)⁻¹ J) with explicit matrices."""
    J = kernel.jacobian(X, theta)
    return float(np.trace(J.T @ np.linalg.inv(kernel.k(X, X) + s2 * np.eye(len(X))) @ J))


def symmetric(d, b):
    return design.simplex(d) if b == d + 1 else design.cross_polytope(d)


def test_rotation_is_orthogonal_and_uniform():
    """First entry's square averages 1/d: 2000 draws, five standard errors (alarm 1e-6)."""
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(2000):
        Q = design.rotation(3, rng)
        assert_allclose(Q @ Q.T, np.eye(3), atol=1e-12)
        squares.append(Q[0, 0] ** 2)
    assert abs(np.mean(squares) - 1 / 3) < 5 * np.sqrt(4 / 45 / 2000)


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("b", range(1, 12))
def test_structured_directions_are_unit_vectors(d, b):
    U = design.structured_directions(d, b, np.random.default_rng(1))
    assert U.shape == (b, d)
    assert_allclose(np.linalg.norm(U, axis=1), np.ones(b), atol=1e-12)


@pytest.mark.parametrize("kernel", [RBF(), Matern52()], ids=["rbf", "matern52"])
@pytest.mark.parametrize("lam", [0.1, LAM, 5e-6])
@pytest.mark.parametrize("d", [2, 3, 15])
@pytest.mark.parametrize("pairs", [False, True])
def test_closed_form_against_kernel_matrices(kernel, lam, d, pairs):
    b = 2 * d if pairs else d + 1
    U, theta = symmetric(d, b), np.zeros(d)
    for r in (0.1, 0.4, 1.3):
        dense = brute_value(kernel, r * U, theta, lam)
        assert design.closed_form_value(kernel, d, b, r, lam) == pytest.approx(dense, rel=1e-6)
    found = minimize_scalar(
        lambda s: -brute_value(kernel, np.exp(s) * U, theta, lam),
        bounds=(np.log(1e-3), np.log(3.0)),
        method="bounded",
        options={"xatol": 1e-8},
    )
    r = design.best_radius(type(kernel), d, b, lam)
    assert r == pytest.approx(np.exp(found.x), rel=2e-2)
    assert design.closed_form_value(kernel, d, b, r, lam) == pytest.approx(-found.fun, rel=1e-5)


@pytest.mark.parametrize("kernel", [RBF([0.3, 0.5, 0.9]), Matern52(0.6), Polynomial2()])
@pytest.mark.parametrize("m", [0, 4])
def test_batch_gradient_against_finite_differences(kernel, m):
    rng = np.random.default_rng(2)
    D, Z, theta = rng.uniform(size=(m, 3)), rng.uniform(size=(3, 3)), np.full(3, 0.45)

    def value(flat):
        return design.batch_value_and_grad(kernel, flat.reshape(3, 3), D, theta, LAM)[0]

    def grad(flat):
        return design.batch_value_and_grad(kernel, flat.reshape(3, 3), D, theta, LAM)[1].ravel()

    size = np.abs(grad(Z.ravel())).max()
    assert check_grad(value, grad, Z.ravel(), epsilon=1e-7) < 1e-4 * max(size, 1.0)
    X = np.vstack([Z, D])
    assert value(Z.ravel()) == pytest.approx(brute_value(kernel, X, theta, LAM), rel=1e-6)
    assert design.batch_value(kernel, X, theta, LAM) == pytest.approx(value(Z.ravel()), rel=1e-9)


@pytest.mark.parametrize("kernel", [RBF(0.5), Matern52(0.5), Polynomial2()])
def test_trace_is_the_prior_trace_less_the_value(kernel):
    X, theta = np.random.default_rng(3).uniform(size=(5, 3)), np.full(3, 0.5)
    dense = np.trace(kernel.d2k_dot(np.tile(theta, (3, 1)), theta, np.eye(3)))
    assert design.gradient_trace(kernel, NONE, theta, LAM) == pytest.approx(dense)
    expected = dense - brute_value(kernel, X, theta, LAM)
    assert design.gradient_trace(kernel, X, theta, LAM) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("pairs", [False, True])
def test_optimiser_finds_the_closed_form_from_random_perturbations(d, pairs):
    """Nothing random beats the closed form, and a perturbed start climbs back to it."""
    rng = np.random.default_rng(4)
    b, scale, theta = (2 * d if pairs else d + 1), 0.3, np.full(d, 0.5)
    r = design.best_radius(RBF, d, b, LAM)
    best = design.closed_form_value(RBF(), d, b, r, LAM) / scale**2
    found = []
    for trial in range(8):
        U = symmetric(d, b) @ design.rotation(d, rng) if trial < 4 else rng.normal(size=(b, d))
        Z = theta + r * scale * (U + 0.3 * rng.normal(size=(b, d)))
        Z = design.optimise_batch(RBF(scale), Z, np.empty((0, d)), theta, LAM, max_iter=300)
        found.append(brute_value(RBF(scale), Z, theta, LAM))
        assert np.all((Z >= 0) & (Z <= 1))
    assert max(found) == pytest.approx(best, rel=1e-3)
    assert max(found) <= best * (1 + 1e-6)


@given(
    theta=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    width=st.floats(0.01, 0.49),
    seed=st.integers(0, 1000),
)
def test_inward_centre_keeps_designs_inside_and_moves_no_further_than_needed(theta, width, seed):
    d = len(theta)
    offsets = width * design.structured_directions(d, d + 1, np.random.default_rng(seed))
    t = np.array(theta)
    c = design.inward_centre(t, offsets)
    assert np.all((c + offsets >= -1e-12) & (c + offsets <= 1 + 1e-12))
    outside = np.maximum(-(t + offsets).min(0), (t + offsets).max(0) - 1).clip(min=0)
    assert_allclose(np.abs(c - t), outside, atol=1e-12)


@pytest.mark.parametrize("kernel", [RBF(0.4), Matern52(0.4), Polynomial2()])
def test_next_probe_tells_more_than_its_candidates(kernel):
    rng = np.random.default_rng(6)
    theta, d = np.array([0.5, 0.4, 0.6]), 3
    directions = 0.15 * design.structured_directions(d, d + 1, rng)
    D = theta + directions
    probe = design.next_probe(kernel, D, theta, LAM, directions)
    before = design.batch_value(kernel, D, theta, LAM)
    after = brute_value(kernel, np.vstack([D, probe]), theta, LAM)
    candidates = [brute_value(kernel, np.vstack([D, theta + u]), theta, LAM) for u in directions]
    assert np.all((probe >= 0) & (probe <= 1))
    assert after > before + 1e-6
    assert after >= max(candidates) - 1e-6


def best_trace_by_search(space, config, b):
    """Best of many random starts, without structure or closed form."""
    d, rng, theta = space.d, np.random.default_rng(7), np.full(space.d, 0.5)
    kernel = RBF(np.full(d, config.lengthscale))
    traces = []
    for _ in range(12):
        Z = np.clip(theta + 0.2 * rng.normal(size=(b, d)), 0, 1)
        Z = design.optimise_batch(kernel, Z, np.empty((0, d)), theta, config.noise_ratio, 300)
        traces.append(
            kernel.prior_trace(theta) - brute_value(kernel, Z, theta, config.noise_ratio)
        )
    return min(traces)


def test_batch_by_tolerance_is_the_fewest_points_that_reach_it():
    space, d = cube(2), 2
    loose = {"mu": 1.0, "lengthscale": 0.4, "noise_ratio": LAM}
    searched = {b: best_trace_by_search(space, GIBOConfig(**loose), b) for b in range(1, 7)}
    for b in range(2, 7):
        assert searched[b] < searched[b - 1]
        tolerance = 0.5 * (searched[b] + searched[b - 1])
        config = GIBOConfig(tolerance=tolerance, **loose)
        assert plan_batch(config, space) == b
        assert make_plan(config, space, 100).batch_size == b
    with pytest.raises(ValueError, match="not reached by 8 points"):
        plan_batch(GIBOConfig(tolerance=1e-9, **loose), space)
    assert d + 1 == plan_batch(GIBOConfig(**loose), space)


def test_remembered_points_make_the_next_batch_by_tolerance_smaller():
    config = GIBOConfig(
        mu=1.0, n_starts=0, n_steps=3, memory=-1, tolerance=4.0, lengthscale=0.4,
        noise_ratio=LAM, value_share=0.0, clipping_norm=1.0, step_size=0.01,
    )  # fmt: skip
    algorithm = start(config, cube(2), 50)
    full = next(b for b in range(1, 20) if algorithm.ready(range(b)))
    X = [algorithm.propose(slot).x for slot in range(full)]
    (query,) = algorithm.step_queries([f"t{j}" for j in range(full)], X)
    algorithm.observe(Release("gradient", "0", (0.001, 0.001), query.meta))
    fewer = next(b for b in range(1, 20) if algorithm.ready(range(b)))
    assert 1 <= fewer < full
    old = np.array([x for _, x in algorithm.state.remembered])
    new = np.array([algorithm.propose(slot).x for slot in range(fewer)])
    theta = np.array(algorithm.state.theta)
    reached = RBF(0.4).prior_trace(theta) - brute_value(
        RBF(0.4), np.vstack([new, old]), theta, LAM
    )
    assert reached <= 4.0 + 1e-6
