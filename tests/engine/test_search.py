"""Maximising a score over a space, and what it asks of spaces: embedding, spreading, describing.

Everything is seeded, so nothing is random; bounds are five standard deviations of what they bound.
"""

import copy
import itertools
import json
import math

import numpy as np
import pytest

from privbo_plugins.algorithms.search import argmax, maximiser
from privbo_plugins.spaces import Categorical, Float, Int, Space

from .helpers import cube

LINE = cube(1)
SQUARE = cube(2)
BIG_GRID = Space({"a": Int(0, 400), "b": Int(1, 900, step=3)})
LOGS = Space({"a": Float(1e-6, 10.0, log=True), "b": Int(1, 5000, log=True)})
MIXED = Space(
    {
        "a": Float(-2.0, 5.0), "b": Categorical(("x", "y", None)), "c": Int(0, 60),
        "d": Float(0.0, 1.0, step=0.1),
    }
)  # fmt: skip
SWITCHES = Space({f"s{j:02d}": Categorical((False, True)) for j in range(12)})
CONSTANTS = Space({"a": Float(2.0, 2.0), "b": Float(0.0, 1.0), "c": Categorical(("only",))})
SPACES = {
    "line": LINE, "square": SQUARE, "grid": BIG_GRID, "logs": LOGS, "mixed": MIXED,
    "switches": SWITCHES, "constants": CONSTANTS,
}  # fmt: skip
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def rng_of(seed):
    return np.random.default_rng(seed)


def nowhere(space):
    return np.empty((0, len(space)))


def assert_evaluated(space, X):
    """What the host evaluates there lies there."""
    for x in X:
        np.testing.assert_allclose(space.encode(space.decode(x)), x, atol=1e-12)


class Peak:
    """-|embed(x) - embed(x*)|, the points it was asked for, and how often."""

    def __init__(self, space, seed):
        self.space, self.asked = space, []
        self.best = space.uniform(1, rng_of(seed))

    def __call__(self, X):
        self.asked.append(X.copy())
        away = self.space.embed(X) - self.space.embed(self.best)
        return -np.asarray(np.linalg.norm(away, axis=1))


# The search -----------------------------------------------------------------------------------


@each_space
@pytest.mark.parametrize("n", [0, 3])
def test_it_scores_points_that_hosts_evaluate_and_few_of_them(space, n):
    score = Peak(space, 99)
    near = space.uniform(n, rng_of(5))
    found = maximiser(space, score, near, rng_of(0))
    assert found.shape == (len(space),)
    assert found.dtype == np.float64
    assert_evaluated(space, found[None])
    assert len(score.asked) <= 6
    assert sum(len(X) for X in score.asked) <= 512 + n + 4 * (4 + 4 * 32)
    for X in score.asked:
        assert X.shape[1] == len(space)
        assert_evaluated(space, X[::7])


@each_space
def test_one_peak_is_found(space):
    """Within two hundredths of the cube's side, wherever it lies."""
    for seed in range(12):
        score = Peak(space, seed)
        found = maximiser(space, score, nowhere(space), rng_of(seed + 1000))
        assert score(found[None])[0] > -0.02


@pytest.mark.parametrize("d", [1, 2, 3])
def test_several_peaks_against_a_dense_grid(d):
    """Sums of 3 d bumps of width 0.15: at most a hundredth of the range is lost."""
    axis = np.linspace(0, 1, {1: 4001, 2: 121, 3: 33}[d])
    dense = np.array(list(itertools.product(axis, repeat=d)))
    for seed in range(8):
        rng = rng_of(seed)
        centres, weights = rng.random((3 * d, d)), rng.uniform(0.3, 1, 3 * d)

        def score(X, c=centres, w=weights):
            return np.asarray(np.exp(-((X[:, None] - c) ** 2).sum(2) / 0.045) @ w)

        found = score(maximiser(cube(d), score, nowhere(cube(d)), rng_of(seed))[None])[0]
        values = score(dense)
        assert found >= values.max() - 0.01 * np.ptp(values)


def test_a_needle_among_the_last_points_told_is_kept():
    near = SQUARE.uniform(700, rng_of(3))
    for needle in (near[-1], near[-512]):

        def score(X, at=needle):
            return (X == at).all(1).astype(float)

        np.testing.assert_array_equal(maximiser(SQUARE, score, near, rng_of(0)), needle)


def test_it_avoids_what_is_ruled_out():
    """Minus infinity where it was already: what is next to it is best, never the point itself."""
    for seed in range(5):
        near = SQUARE.uniform(20, rng_of(seed))

        def score(X, near=near):
            away = np.abs(X[:, None] - near[None]).max(2).min(1)
            return np.where(away < 1e-9, -np.inf, -away)

        found = maximiser(SQUARE, score, near, rng_of(seed))
        assert -0.03 < score(found[None])[0] < 0


def test_choices_that_interact_are_found():
    """Exclusive-or of three pairs: no single change helps from half of all points."""

    def score(X):
        return sum(((X[:, 2 * j] != X[:, 2 * j + 1]).astype(float) for j in range(3)), X[:, 6])

    for seed in range(10):
        found = maximiser(SWITCHES, score, nowhere(SWITCHES), rng_of(seed))
        assert score(found[None])[0] == 4.0


# Ties -----------------------------------------------------------------------------------------


def test_equal_values_are_equally_likely():
    values, rng = np.array([0.0, 1.0, 1.0 - 1e-14, -5.0, 1.0]), rng_of(0)
    seen = np.bincount([argmax(values, rng) for _ in range(3000)], minlength=5)
    assert seen[[0, 3]].sum() == 0
    assert np.abs(seen[[1, 2, 4]] / 3000 - 1 / 3).max() < 5 * math.sqrt(2 / 9 / 3000)


# Embedding ------------------------------------------------------------------------------------


@each_space
def test_embedded_distances_written_out(space):
    """Numeric coordinates as they are; two different choices lie one apart."""
    X = space.uniform(7, rng_of(2))
    before, Z = X.copy(), space.embed(X)
    np.testing.assert_array_equal(X, before)
    width = sum(len(d.choices) if isinstance(d, Categorical) else 1 for d in space.values())
    assert Z.shape == (7, width)
    for a, b in itertools.combinations(range(7), 2):
        square = 0.0
        for j, dim in enumerate(space.values()):
            if isinstance(dim, Categorical):
                square += float(X[a, j] != X[b, j])
            else:
                square += (X[a, j] - X[b, j]) ** 2
        assert float(((Z[a] - Z[b]) ** 2).sum()) == pytest.approx(square, abs=1e-12)
    assert space.embed(X[:0]).shape == (0, width)


# Uniform points -------------------------------------------------------------------------------


def test_uniform_means_uniform():
    n = 4000
    X = MIXED.uniform(n, rng_of(1))
    for j, dim in enumerate(MIXED.values()):
        if isinstance(dim, Categorical):
            seen = np.bincount(X[:, j].astype(int), minlength=3) / n
            assert np.abs(seen - 1 / 3).max() < 5 * math.sqrt(2 / 9 / n)
        else:
            below = [(X[:, j] < u).mean() - u for u in (0.249, 0.5, 0.751)]
            rounding = dim.resolution / 2  # at most half a cell is counted on the other side
            assert np.abs(below).max() < rounding + 5 * math.sqrt(0.25 / n)


def test_points_within_a_box():
    lower, upper = np.array([0.2, 0.0, 0.4, 0.3]), np.array([0.3, 1.0, 0.8, 0.5])
    X = MIXED.within(lower, upper, 300, rng_of(0))
    assert_evaluated(MIXED, X[::10])
    half = MIXED.resolution / 2
    numeric = MIXED.numeric
    assert (X >= lower - half - 1e-9)[:, numeric].all()
    assert (X <= upper + half + 1e-9)[:, numeric].all()
    assert set(X[:, 1]) == {0.0, 1.0, 2.0}
    assert np.ptp(X[:, 0]) > 0.09


# Evenly spread points -------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "side"), [(1, 16), (1, 256), (2, 4), (2, 16), (3, 3), (4, 2)])
def test_a_power_is_a_grid(d, side):
    X = cube(d).spread(side**d, seed=3)
    expected = list(itertools.product([i / (side - 1) for i in range(side)], repeat=d))
    np.testing.assert_allclose(X, expected, atol=1e-12)
    np.testing.assert_array_equal(X, cube(d).spread(side**d, seed=4))


@each_space
@pytest.mark.parametrize("n", [1, 5, 16, 27, 256])
def test_spread_points_are_points_that_hosts_evaluate(space, n):
    X = space.spread(n, 0)
    assert X.shape == (n, len(space))
    assert_evaluated(space, X[:30])
    assert X.tobytes() == space.spread(n, 0).tobytes()


@pytest.mark.parametrize("n", [16, 64, 256])
def test_a_power_of_two_leaves_no_gap(n):
    """One point in each of n slices of every axis; choices are as equal as they can be."""
    space = Space({"a": Float(0, 1), "b": Categorical("xyz"), "c": Float(0, 1)})
    for seed in range(4):
        X = space.spread(n, seed)
        for j in (0, 2):
            assert sorted((X[:, j] * n).astype(int)) == list(range(n))
        counts = np.bincount(X[:, 1].astype(int), minlength=3)
        assert np.abs(counts - n / 3).max() <= 1


# Descriptions ---------------------------------------------------------------------------------


@each_space
def test_a_description_gives_the_same_space(space):
    described = json.loads(json.dumps(space.to_dict()))
    before = copy.deepcopy(described)
    again = Space.from_dict(described)
    assert described == before
    assert again.names == space.names
    np.testing.assert_array_equal(again.numeric, space.numeric)
    np.testing.assert_array_equal(again.resolution, space.resolution)
    for name, dim in space.items():
        if isinstance(dim, Categorical):
            assert len(again[name].choices) == len(dim.choices)
        else:
            assert again[name] == dim
            assert type(again[name]) is type(dim)
    for one, two in (
        (space.uniform(20, rng_of(0)), again.uniform(20, rng_of(0))),
        (space.spread(20, 0), again.spread(20, 0)),
        (space.embed(space.spread(9, 1)), again.embed(again.spread(9, 1))),
    ):
        assert one.tobytes() == two.tobytes()
    small, other = space.grid(5000), again.grid(5000)
    assert (small is None) == (other is None)
    if small is not None and other is not None:
        assert small.tobytes() == other.tobytes()


class Unnamed:
    """Choices that look alike, as kernels and schedules do."""

    def __repr__(self):
        return "Unnamed()"


LONG = np.arange(2000)


@pytest.mark.parametrize(
    "choices", [(Unnamed(), Unnamed(), Unnamed()), (LONG, np.where(LONG == 1000, 7, LONG))]
)
def test_choices_that_look_alike_stay_apart_in_json(choices):
    space = Space({"a": Categorical(choices)})
    again = Space.from_dict(json.loads(json.dumps(space.to_dict())))
    assert again.uniform(20, rng_of(0)).tobytes() == space.uniform(20, rng_of(0)).tobytes()
