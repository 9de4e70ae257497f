"""The sound transformation: what one row moves, how much noise hides it, and that it is there."""

import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from privbo_plugins.algorithms.po_gp_ucb.gaussian import (
    WIDEST,
    Scaling,
    noise_scale,
    public_projection,
    rows_within,
    sensitivity,
)
from privbo_plugins.privacy.accountant import gdp_mu
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.sessions.tables import checked_bound

ODD = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e154, 1.35e154, 5e-324, -0.0, 0.0, 1e-160]


# Sensitivity --------------------------------------------------------------------------------


def scaled_exactly(row, scaling):
    """A row in the units that distances are measured in, without rounding or clipping."""
    out = []
    for j, x in enumerate(row.tolist()):
        if not math.isfinite(x):
            out.append(Fraction(0))
        elif scaling is None:
            out.append(Fraction(x))
        else:
            low, high = Fraction(scaling.low[j]), Fraction(scaling.high[j])
            out.append((Fraction(x) - (low + high) / 2) / (high - low))
    return out


def squared_distance(a, b):
    return sum(((p - q) ** 2 for p, q in zip(a, b, strict=True)), Fraction(0))


def entries(odd=True):
    usual = st.floats(-3, 3) | st.floats(width=64, allow_nan=False, allow_infinity=False)
    return usual | st.sampled_from(ODD) if odd else usual


@st.composite
def public_settings(draw):
    """Columns, scaling, nu, R and P that a curator accepts."""
    d = draw(st.integers(1, 4))
    scaling = None
    if draw(st.booleans()):
        low = draw(st.lists(st.floats(-1e6, 1e6), min_size=d, max_size=d))
        width = draw(st.lists(st.floats(1e-3, 1e6), min_size=d, max_size=d))
        assume(all(x + w > x for x, w in zip(low, width, strict=True)))
        scaling = Scaling(tuple(low), tuple(x + w for x, w in zip(low, width, strict=True)))
    lengths = st.sampled_from([1e-100, 1e-9, 1e-6, 0.01, 0.3, 1.0, 7.0, 1e5, 1e100])
    nu, R = draw(st.none() | lengths), draw(st.none() | lengths)
    try:
        bound = checked_bound(R, scaling, nu)
    except ValueError:
        assume(False)
    P = public_projection(d, draw(st.integers(1, d)), draw(st.integers(0, 5)))
    return d, scaling, nu, bound, P


def check_neighbours(X, other, row, how):
    _, scaling, nu, R, P = how
    one, two = (rows_within(table, scaling, R) for table in (X, other))
    assert np.isfinite(one).all()
    assert np.isfinite(two).all()
    for rows in (one, two):
        length = np.linalg.norm(rows.astype(np.longdouble) / np.longdouble(R), axis=1)
        assert (length <= 1).all()
    left = np.delete(np.arange(len(X)), row)
    assert np.array_equal(one[left], two[left])
    assert np.array_equal((one @ P)[left], (two @ P)[left])
    moved = ((one @ P)[row] - (two @ P)[row]).astype(np.longdouble)
    largest = np.abs(moved).max()
    length = largest * np.sqrt(((moved / largest) ** 2).sum()) if largest else largest
    assert length <= np.longdouble(sensitivity(nu, R, P)) * SENSITIVITY_SLACK


@given(st.data())
@settings(max_examples=120)
def test_any_two_rows_move_the_release_by_at_most_the_sensitivity(data):
    d, scaling, _, R, P = how = data.draw(public_settings())
    n = data.draw(st.integers(1, 3))
    numbers = st.lists(entries(), min_size=d, max_size=d)
    X = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    row, other = data.draw(st.integers(0, n - 1)), X.copy()
    other[row] = data.draw(numbers)
    check_neighbours(X, other, row, (d, scaling, None, R, P))
    if (
        squared_distance(scaled_exactly(X[row], scaling), scaled_exactly(other[row], scaling))
        <= Fraction(how[2] or 0) ** 2
    ):
        check_neighbours(X, other, row, how)


@given(st.data())
@settings(max_examples=120)
def test_rows_that_differ_by_nu_move_the_release_by_at_most_the_sensitivity(data):
    """Distances are measured exactly, in rational numbers."""
    d, scaling, nu, R, _ = how = data.draw(public_settings())
    assume(nu is not None)
    places = st.floats(-2, 2) | st.sampled_from(ODD)
    unit = R if scaling is None else 1.0
    X = np.array([data.draw(st.lists(places, min_size=d, max_size=d)) for _ in range(2)])
    X[np.abs(X) <= 2] *= unit
    direction = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=d, max_size=d)))
    assume(np.linalg.norm(direction) > 1e-3)
    step = nu * direction / np.linalg.norm(direction)
    other = X.copy()
    if scaling is None:
        other[1] += step
    else:
        with np.errstate(over="ignore"):
            X[1] = np.array(scaling.low) + (X[1] + 0.5) * np.subtract(scaling.high, scaling.low)
        other[1] = X[1] + step * np.subtract(scaling.high, scaling.low)
    pair = [scaled_exactly(table[1], scaling) for table in (X, other)]
    assume(squared_distance(*pair) <= Fraction(nu) ** 2 * Fraction(1 + 1e-9))
    assume([math.isfinite(x) for x in X[1]] == [math.isfinite(x) for x in other[1]])
    check_neighbours(X, other, 1, how)


@pytest.mark.parametrize("d", [1, 3, 200])
def test_the_sensitivity_is_attained(d):
    """By rows on opposite sides of the ball, along the direction that P stretches most."""
    P = public_projection(d, max(1, d // 3), 1)
    u, _, _ = np.linalg.svd(P)
    X = np.array([1e9 * u[:, 0], -1e9 * u[:, 0]])
    exact = rows_within(X, None, 2.0) @ P
    claimed = sensitivity(None, 2.0, P)
    assert 0.999999 * claimed < np.linalg.norm(exact[0] - exact[1]) <= claimed


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ({"norm_bound": 1e156, "neighbor_distance": 1e150}, "must"),
        ({"norm_bound": 1e-200}, "norm_bound must"),
        ({"norm_bound": 2.0, "neighbor_distance": 1e-6}, "neighbor_distance must"),
        ({"bounds": [(0, 1)], "neighbor_distance": 1e-7}, "neighbor_distance must"),
        ({"bounds": [(0, 1)], "neighbor_distance": 1e-20}, "neighbor_distance"),
        ({}, "neighbor_distance"),
    ],
)  # fmt: skip
def test_lengths_at_which_rounding_outgrows_the_sensitivity_are_refused(how, names):
    with pytest.raises(ValueError, match=names):
        Curator(np.zeros((3, 1)), epsilon=1.0, delta=1e-5, **how)


# Scaling and clipping -----------------------------------------------------------------------


def test_columns_are_scaled_by_public_bounds_alone():
    scaling = Scaling((0.0, 10.0), (4.0, 30.0))
    X = np.array([[0.0, 10.0], [4.0, 30.0], [1.0, 20.0], [-9.0, 1e308], [np.nan, np.inf]])
    expected = [[-0.5, -0.5], [0.5, 0.5], [-0.25, 0.0], [-0.5, 0.5], [0.0, 0.0]]
    assert scaling.apply(X).tolist() == expected
    for row, alone in zip(X, scaling.apply(X), strict=True):
        assert np.array_equal(scaling.apply(row[None])[0], alone)  # no row changes another
    assert scaling.radius == pytest.approx(math.hypot(0.5, 0.5))


def test_rows_beyond_are_moved_to_the_nearest_point_of_the_ball():
    X = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, -5.0], [1e308, 1e308], [np.inf, 0.0]])
    rows = rows_within(X, None, 1.0)
    root = math.sqrt(0.5)
    expected = [[0.6, 0.8], [0.3, 0.4], [0.0, -1.0], [root, root], [0.0, 0.0]]
    np.testing.assert_allclose(rows, expected, rtol=1e-11, atol=0)


# The public matrix --------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "r"), [(5, 5), (5, 2), (50, 7), (3, 1)])
def test_the_matrix_is_public_orthogonal_and_of_known_norm(d, r):
    P = public_projection(d, r, 3)
    assert np.array_equal(P, public_projection(d, r, 3))
    np.testing.assert_allclose(P.T @ P, d / r * np.eye(r), atol=1e-12)
    claimed = sensitivity(1.0, 1e3, P)
    largest = math.sqrt(np.linalg.eigvalsh(P.T @ P).max())
    assert claimed >= largest
    assert claimed == pytest.approx(math.sqrt(d / r), rel=1e-8)
    if r == d:
        assert np.array_equal(P, np.eye(d))
    else:
        assert not np.array_equal(P, public_projection(d, r, 4))


def test_distances_keep_their_size_on_average_over_matrices():
    """Of a row and its image; |x P|² has mean |x|²; 2000 seeds, five deviations (6e-7)."""
    x = np.random.default_rng(0).normal(size=8)
    ratios = [np.sum((x @ public_projection(8, 3, s)) ** 2) / (x @ x) for s in range(2000)]
    assert np.mean(ratios) == pytest.approx(1.0, abs=5 * np.std(ratios) / math.sqrt(2000))


@pytest.mark.parametrize("r", [0, -1, 4])
def test_a_matrix_with_no_columns_or_more_than_the_table_is_refused(r):
    with pytest.raises(ValueError, match="r must lie between 1 and"):
        public_projection(3, r, 0)


# Noise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_the_noise_is_that_of_the_analytic_gaussian_mechanism(epsilon, delta):
    """Against another library's calibration, and its epsilon of the noise that we add."""
    multiplier = noise_scale(3.0, gdp_mu(epsilon, delta)) / 3.0
    needed = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert multiplier == pytest.approx(needed, rel=1e-4)
    assert dp_accounting.get_epsilon_gaussian(multiplier, delta) <= epsilon


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_release_has_the_delta_that_is_claimed_by_its_loss_distribution(epsilon):
    X = np.zeros((2, 3))
    curator = Curator(X, epsilon=epsilon, delta=1e-5, norm_bound=2.0, r=2)
    made = curator.release().manifest
    # At the worst, one row moves by 4 along the direction that P stretches by sqrt(3/2).
    multiplier = made.noise_sd / (4 * math.sqrt(1.5))
    loss = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=1e-4
    )
    assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(1e-5, rel=2e-3)
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=1e-4, pessimistic_estimate=False
    )
    assert optimistic.get_delta_for_epsilon(epsilon) <= 1e-5


@pytest.mark.parametrize(
    ("how", "worst"),
    [
        ({"norm_bound": 2.0}, 4.0), ({"norm_bound": 2.0, "neighbor_distance": 0.5}, 0.5),
        ({"norm_bound": 2.0, "neighbor_distance": 50.0}, 4.0), ({"bounds": [(0, 9)] * 4}, 2.0),
        ({"bounds": [(0, 9)] * 4, "neighbor_distance": 0.25}, 0.25),
        ({"neighbor_distance": 0.25}, 0.25), ({"neighbor_distance": 0.25, "r": 1}, 0.5),
        ({"norm_bound": 2.0, "r": 2}, 4 * math.sqrt(2)),
    ],
    ids=str,
)  # fmt: skip
def test_a_curator_hides_the_worst_case_of_its_settings(how, worst):
    curator = Curator(np.zeros((3, 4)), epsilon=1.0, delta=1e-5, **how)
    made = curator.release().manifest
    assert made.sensitivity == pytest.approx(worst, rel=1e-8)
    assert made.sensitivity >= worst
    assert made.mu == gdp_mu(1.0, 1e-5)
    needed = worst * dp_accounting.get_sigma_gaussian(1.0, 1e-5)
    assert made.noise_sd == pytest.approx(needed, rel=1e-4)
    assert made.norm_bound <= WIDEST * (how.get("neighbor_distance") or 1.0)


def test_every_entry_has_noise_of_its_own_of_the_claimed_size():
    """Noise of the system's entropy; six deviations or 1e-9 a check, 1e-7 in all."""
    n, d = 5600, 3  # more than one block of draws
    exact = np.tile([[0.3, -0.2, 0.1]], (n, 1))
    curator = Curator(exact, epsilon=1.0, delta=1e-5, norm_bound=1.0, neighbor_distance=0.1)
    table = curator.release()
    noise = (table.Z - exact) / table.manifest.noise_sd
    assert len(np.unique(table.Z)) == n * d
    for part in (noise.ravel(), *noise.T, noise[:2800].ravel(), noise[-100:].ravel()):
        assert 1e-9 < chi2.cdf(np.sum(part**2), part.size) < 1 - 1e-9
        assert abs(part.mean()) < 6 / math.sqrt(part.size)
    for one, two in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:]),
                     (noise[:2800], noise[2800:]), (noise[:138], noise[5461:5599])):  # fmt: skip
        assert abs(np.mean(one * two)) < 6 / math.sqrt(one.size)
    assert np.abs(noise).max() < 8
