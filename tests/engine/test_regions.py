"""Sub-regions, who explores which, and how much each agent counts there."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from privbo_plugins.algorithms.dp_fts_de import Regions, Temperature
from privbo_plugins.algorithms.dp_fts_de.regions import dealt, region_weights
from privbo_plugins.spaces import Categorical, Float, Int, Space

from .helpers import cube

CONTINUOUS = st.sampled_from([Float(0.0, 1.0), Float(-5.0, 3.0), Float(1e-4, 10.0, log=True)])
STEPPED = st.sampled_from([
    Int(0, 7), Int(1, 1000, log=True), Int(0, 30, step=5), Float(0.0, 1.0, step=0.1),
    Float(0.0, 1.0, step=0.3),
])  # fmt: skip
CHOICES = st.sampled_from([Categorical(("a", "b", "c")), Categorical((None,))])


@st.composite
def spaces(draw, numeric):
    """One to three numeric parameters and up to two choices, in any order of names."""
    dims = draw(st.lists(numeric, min_size=1, max_size=3)) + draw(st.lists(CHOICES, max_size=2))
    names = draw(st.permutations([f"x{i}" for i in range(len(dims))]))
    return Space(dict(zip(names, dims, strict=True)))


def points(space, regions, seed):
    """Random points, all corners of the regions' boxes, and points that the host evaluates."""
    rng = np.random.default_rng(seed)
    X = np.vstack([rng.random((50, len(space))), regions.lower, regions.upper])
    for j, dim in enumerate(space.values()):
        if isinstance(dim, Categorical):
            X[:, j] = rng.integers(len(dim.choices), size=len(X))
    return np.vstack([X, space.uniform(30, rng)])


def holds(regions, space, X, slack):
    """Whether a region's box has a point: lower end in, upper end out but at 1; shape (n, P)."""
    x, numeric = X[:, None, :], space.numeric
    last = regions.upper == 1.0
    inside = (x >= regions.lower - slack) & ((x < regions.upper + slack) | (last & (x <= 1.0)))
    return np.asarray(inside[:, :, numeric].all(2))


@given(space=spaces(st.one_of(CONTINUOUS, STEPPED)), P=st.integers(1, 40), seed=st.integers(0, 99))
def test_every_point_lies_in_exactly_one_region(space, P, seed):
    """Ends are met to 1e-9; away from them a point lies in a single box, and it is its own."""
    regions = Regions(space, P)
    X = points(space, regions, seed)
    index = regions.index(X)
    assert index.shape == (len(X),)
    assert index.min() >= 0
    assert index.max() < P
    assert holds(regions, space, X, 1e-9)[np.arange(len(X)), index].all()
    assert (holds(regions, space, X[:50], 0.0).sum(1) == 1).all()


@given(space=spaces(st.one_of(CONTINUOUS, STEPPED)), P=st.integers(1, 60))
def test_regions_have_equal_volumes_that_add_up(space, P):
    regions = Regions(space, P)
    assert regions.lower.shape == regions.upper.shape == (P, len(space))
    sides = regions.upper - regions.lower
    np.testing.assert_allclose(sides.prod(1), 1 / P, rtol=1e-9)
    assert (sides[:, ~space.numeric] == 1.0).all()
    assert len(np.unique(regions.lower, axis=0)) == P


@given(space=spaces(CONTINUOUS), P=st.integers(1, 40), seed=st.integers(0, 10_000))
def test_what_is_drawn_from_a_region_lies_in_it(space, P, seed):
    regions, rng = Regions(space, P), np.random.default_rng(seed)
    for p in {0, P // 2, P - 1}:
        X = regions.draw(p, 5, rng)
        assert X.shape == (5, len(space))
        assert (regions.index(X) == p).all()
        np.testing.assert_array_equal(X, space.snap_all(X))


@given(space=spaces(STEPPED), P=st.integers(1, 12), seed=st.integers(0, 10_000))
def test_what_is_drawn_from_a_grid_is_what_the_host_evaluates(space, P, seed):
    """And lies at most half a step beside its region."""
    regions, rng = Regions(space, P), np.random.default_rng(seed)
    for p in {0, P - 1}:
        X = regions.draw(p, 5, rng)
        np.testing.assert_allclose(X, space.snap_all(X), atol=1e-12)
        beyond = np.maximum(regions.lower[p] - X, X - regions.upper[p])[:, space.numeric]
        assert (beyond <= space.resolution[space.numeric] + 1e-9).all()


def test_draws_are_uniform_in_their_region():
    """Seeded; each of the eight tests would fail for one seed in ten thousand."""
    space = Space({"a": Float(0, 1), "b": Float(1, 100, log=True), "c": Categorical(("u", "v"))})
    regions, rng = Regions(space, 4), np.random.default_rng(0)
    for p in range(4):
        X = regions.draw(p, 2000, rng)
        for j in (0, 1):
            side = regions.upper[p, j] - regions.lower[p, j]
            assert kstest((X[:, j] - regions.lower[p, j]) / side, "uniform").pvalue > 1e-4
        assert abs(X[:, 2].mean() - 0.5) < 5 * 0.5 / math.sqrt(2000)


def boxes(regions):
    return {
        tuple((round(float(a), 12), round(float(b), 12)) for a, b in zip(low, high, strict=True))
        for low, high in zip(regions.lower, regions.upper, strict=True)
    }


def test_the_papers_regions():
    """Appendix B: halves and thirds of a line, four quarters of a square, 2 x 2 x 1 of a cube."""
    half, whole = [(0.0, 0.5), (0.5, 1.0)], (0.0, 1.0)
    assert boxes(Regions(cube(1), 1)) == {(whole,)}
    assert boxes(Regions(cube(1), 2)) == {(side,) for side in half}
    thirds = [(0.0, round(1 / 3, 12)), (round(1 / 3, 12), round(2 / 3, 12)), (round(2 / 3, 12), 1)]
    assert boxes(Regions(cube(1), 3)) == {(side,) for side in thirds}
    assert boxes(Regions(cube(2), 4)) == {(a, b) for a in half for b in half}
    assert boxes(Regions(cube(3), 4)) == {(a, b, whole) for a in half for b in half}


@pytest.mark.parametrize(
    ("d", "P", "cuts"),
    [(2, 2, [2, 1]), (2, 6, [3, 2]), (2, 12, [3, 4]), (3, 8, [2, 2, 2]), (3, 7, [7, 1, 1])],
)
def test_the_coordinate_cut_least_is_cut_next(d, P, cuts):
    regions = Regions(cube(d), P)
    sides = 1 / (regions.upper - regions.lower)[0]
    np.testing.assert_allclose(sides, cuts)


def test_choices_are_never_cut():
    space = Space({"a": Categorical(("u", "v", "w")), "b": Float(0, 1), "c": Categorical((1, 2))})
    regions = Regions(space, 3)
    X = np.array([[a, b, c] for a in range(3) for b in (0.1, 0.5, 0.9) for c in range(2)])
    assert regions.index(X).tolist() == [p for _ in range(3) for p in range(3) for _ in range(2)]
    with pytest.raises(ValueError, match="needs a numeric parameter"):
        Regions(Space({"a": Categorical(("u", "v"))}), 2)
    only = Regions(Space({"a": Categorical(("u", "v"))}), 1)
    assert only.index(np.array([[0.0], [1.0]])).tolist() == [0, 0]


# Weights --------------------------------------------------------------------------------------


@given(N=st.integers(1, 60), data=st.data(), a_t=st.floats(0, 700))
def test_weights_are_the_softmax_of_who_explores(N, data, a_t):
    P = data.draw(st.integers(1, N))
    phi, explores = (
        region_weights(N, P, a_t),
        dealt(np.arange(N), P)[None] == np.arange(P)[:, None],
    )
    assert phi.shape == (P, N)
    assert (phi > 0).all() or a_t > 600
    np.testing.assert_allclose(phi.sum(1), 1.0, rtol=1e-12)
    for p in range(P):
        own, others = phi[p, explores[p]], phi[p, ~explores[p]]
        assert len(set(own)) == 1
        if len(others):
            assert len(set(others)) == 1
            np.testing.assert_allclose(
                np.log(own[0]) - np.log(others[0]), a_t, rtol=1e-9, atol=1e-9
            )


@given(N=st.integers(1, 200), data=st.data())
def test_regions_are_dealt_evenly(N, data):
    P = data.draw(st.integers(1, N))
    counts = np.bincount(dealt(np.arange(N), P), minlength=P)
    assert len(counts) == P
    assert counts.max() - counts.min() <= 1


# Schedules ------------------------------------------------------------------------------------


def test_the_papers_temperature():
    """15 for ten rounds, then linearly to nothing in thirty more."""
    a = Temperature()
    assert [a(t) for t in range(1, 11)] == [15.0] * 10
    np.testing.assert_allclose([a(t) for t in range(11, 41)], 15 * (1 - np.arange(1, 31) / 30))
    assert [a(t) for t in (40, 41, 60, 10_000)] == [0.0] * 4
