"""Clipping, exact sums and noise: what every guarantee rests on."""

import math
import pickle
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose
from scipy import stats

from privbo_plugins.privacy import mechanisms
from privbo_plugins.privacy.mechanisms import (
    SENSITIVITY_SLACK,
    BoundedMean,
    clip_rows,
    clip_values,
    fixed_point_sum,
    fraction_within,
    gaussian_scale,
    mean_of_clipped_rows,
    mean_of_clipped_values,
)
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise, is_secure

EXTREME = [np.nan, np.inf, -np.inf, 1e308, -1e308, 1e300, 1e-300, 5e-324, 0.0, -0.0]
anything = st.sampled_from(EXTREME) | st.floats() | st.floats(-2, 2)
norms = st.sampled_from([1e-6, 0.1, 0.3, 1.0, 3.0, 1e6]) | st.floats(1e-3, 1e3)


def rows(least=1, most=12):
    shape = st.tuples(st.integers(least, most), st.integers(1, 5))
    return shape.flatmap(lambda s: hnp.arrays(float, s, elements=anything))


def pairs(width=None):
    """Two data sets that differ in one record, both arbitrary."""

    def neighbour(G):
        def replaced(new):
            other = G.copy()
            other[new[0]] = new[1]
            return G, other

        record = hnp.arrays(float, G.shape[1], elements=anything)
        return st.tuples(st.integers(0, len(G) - 1), record).map(replaced)

    shape = st.tuples(st.integers(1, 12), st.integers(1, 5) if width is None else st.just(width))
    return shape.flatmap(lambda s: hnp.arrays(float, s, elements=anything)).flatmap(neighbour)


def exact_norm(row):
    """Euclidean norm without overflow or underflow."""
    return math.hypot(*row.tolist())


# Clipping -----------------------------------------------------------------------------------


@settings(max_examples=150)
@given(G=rows(), B=norms)
@example(G=np.array([[1e300, 1e300], [1e308, -1e308], [3.0, 4.0]]), B=1.0)
def test_clipped_rows_are_short_enough_and_keep_their_direction(G, B):
    before = G.copy()
    rows_clipped = clip_rows(G, B)
    assert np.array_equal(G, before, equal_nan=True)
    for row, clipped in zip(G, rows_clipped, strict=True):
        assert exact_norm(clipped) <= B
        if not np.isfinite(row).all():
            assert np.all(clipped == 0)
        elif exact_norm(row) <= B * (1 - 1e-9):
            assert np.array_equal(clipped, row)
        else:
            unit = row / np.abs(row).max()
            unit /= exact_norm(unit)
            assert_allclose(clipped, B * unit, rtol=1e-9, atol=1e-12 * B)


@given(y=hnp.arrays(float, st.integers(1, 20), elements=anything), low=st.floats(-5, 5))
def test_clipped_values_are_distances_from_the_lower_bound(y, low):
    clipped = clip_values(y, low, low + 1.5, low + 1.0)
    for value, result in zip(y, clipped, strict=True):
        inside = min(max(value, low), low + 1.5) if math.isfinite(value) else low + 1.0
        assert 0 <= result <= (low + 1.5) - low
        assert result == pytest.approx(inside - low, abs=1e-15)


# Sensitivity --------------------------------------------------------------------------------


def squared_distance(one, two):
    """Exactly: floats are fractions."""
    exact = zip(one.tolist(), two.tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in exact), Fraction(0))


ONE_OF_THREE = np.array([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]])


@st.composite
def bounds_and_pairs(draw):
    """A norm of any magnitude, and two data sets that differ in one record of any magnitude."""
    B = 10.0 ** draw(st.floats(-300, 300))
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    near = st.floats(-1e9, 1e9).map(lambda part: part * B)
    entries = near | anything | st.floats(-170, -150).map(lambda e: 10.0**e)
    G = draw(hnp.arrays(float, (n, d), elements=entries))
    other = G.copy()
    other[0] = draw(hnp.arrays(float, d, elements=entries))
    return B, G, other


@settings(max_examples=300)
@given(made=bounds_and_pairs())
@example(made=(1e-163, -ONE_OF_THREE * 1e-162, ONE_OF_THREE * 1e-162))
@example(made=(1e-180, np.zeros((3, 2)), ONE_OF_THREE * 1e-172))
@example(made=(1e-300, -ONE_OF_THREE, ONE_OF_THREE))
@example(made=(1e300, -ONE_OF_THREE * 1e308, ONE_OF_THREE * 1e308))
def test_no_magnitude_of_norm_or_record_moves_the_mean_farther(made):
    B, G, other = made
    one, two = (mean_of_clipped_rows([rows], B) for rows in (G, other))
    farthest = 2 * Fraction(B) / len(G) * Fraction(SENSITIVITY_SLACK)
    assert squared_distance(one, two) <= farthest**2
    for row in clip_rows(other, B):
        assert squared_distance(row, np.zeros(len(row))) <= Fraction(B) ** 2


@pytest.mark.parametrize("odd", [1e308, -1e308, math.inf, -math.inf, math.nan])
def test_no_entry_of_a_sum_counts_for_more_than_the_bound(odd):
    """Beyond 2**63 a cast to integers would be anything."""
    (units,) = fixed_point_sum(np.array([[odd]]), 1e-12)
    assert abs(int(units)) == 2**mechanisms.FRACTION_BITS


def test_the_fraction_within_a_tiny_norm_is_counted():
    G = np.array([[3e-171, 4e-171], [3e-170, 4e-170], [0.0, 0.0], [math.nan, 0.0]])
    assert fraction_within([G], 1e-170)[0] == pytest.approx(0.5)


@settings(max_examples=250)
@given(
    neighbours=pairs(1),
    low=st.floats(-10, 10),
    width=st.sampled_from([0.01, 0.1, 1.0, 7.0]),
    worst=st.floats(0, 1),
)
def test_mean_of_values_never_moves_more_than_its_sensitivity(neighbours, low, width, worst):
    high = low + width
    constant = min(max(low + worst * width, low), high)
    one, two = (mean_of_clipped_values([y], low, high, constant)[0] for y in neighbours)
    assert abs(one - two) <= (high - low) / len(neighbours[0]) * SENSITIVITY_SLACK


@settings(max_examples=150)
@given(neighbours=pairs(), B=norms)
def test_fraction_never_moves_more_than_its_sensitivity(neighbours, B):
    one, two = (fraction_within([G], B)[0] for G in neighbours)
    assert abs(one - two) <= 1 / len(neighbours[0]) * SENSITIVITY_SLACK
    assert 0 <= one <= 1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_worst_pair_of_rows_reaches_the_sensitivity(sign):
    n, B = 1000, 0.3
    G = np.zeros((n, 2))
    G[0] = sign * np.array([1e9, 0.0])
    moved = mean_of_clipped_rows([G], B) - mean_of_clipped_rows([G * [-1, 1]], B)
    assert np.linalg.norm(moved) == pytest.approx(2 * B / n, rel=1e-9)


@pytest.mark.parametrize("n", [100, 12_345])
def test_a_range_far_from_zero_does_not_widen_the_sensitivity(n):
    """Rounding at 1e9 is coarse next to 1/n; it must not come on top of the sensitivity."""
    low, high = 1e9, 1e9 + 1.0
    rng = np.random.default_rng(0)
    excess = []
    for _ in range(200):
        y = low + rng.uniform(size=(n, 1))
        y[0], other = low, y.copy()
        other[0] = high
        one, two = (mean_of_clipped_values([v], low, high, high)[0] for v in (y, other))
        excess.append(abs(one - two) / ((high - low) / n * SENSITIVITY_SLACK))
    assert max(excess) <= 1.0


@settings(max_examples=150)
@given(G=rows(), B=norms)
@example(G=np.array([[0.6, 0.8], [1 / 3, 2 / 3]]), B=1.0)
def test_rounding_to_integers_never_lengthens_a_row(G, B):
    for row in clip_rows(G, B):
        units = fixed_point_sum(row[None], B)
        exact = row / B * 2.0**mechanisms.FRACTION_BITS
        assert np.all(np.abs(units) <= np.abs(exact))
        assert np.all(np.abs(units - exact) < 1)
        assert sum(int(u) ** 2 for u in units) <= 4**mechanisms.FRACTION_BITS


# Sums ---------------------------------------------------------------------------------------


def statistics(G):
    return {
        "rows": lambda blocks: mean_of_clipped_rows(blocks, 0.7),
        "values": lambda blocks: mean_of_clipped_values([b[:, :1] for b in blocks], -1, 2, 2),
        "fraction": lambda blocks: fraction_within(blocks, 0.7),
    }


@settings(max_examples=100)
@given(G=rows(2, 30), data=st.data())
def test_order_and_blocks_do_not_matter_to_the_last_bit(G, data):
    order = data.draw(st.permutations(range(len(G))))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(G) - 1), max_size=5, unique=True)))
    for statistic in statistics(G).values():
        whole = statistic([G])
        split = statistic(np.split(G[list(order)], cuts))
        assert whole.tobytes() == split.tobytes()


def test_means_agree_with_a_high_precision_sum():
    G = np.random.default_rng(1).normal(size=(1000, 3))
    clipped = G / np.maximum(np.linalg.norm(G, axis=1, keepdims=True), 1.0)
    expected = [math.fsum(column) / 1000 for column in clipped.T]
    assert_allclose(mean_of_clipped_rows([G], 1.0), expected, atol=1e-10)
    y = np.random.default_rng(2).normal(size=(1000, 1))
    mean = math.fsum(np.clip(y[:, 0], -0.5, 1.5) + 0.5) / 1000
    assert_allclose(mean_of_clipped_values([y], -0.5, 1.5, 1.5), [mean], atol=1e-10)
    within = sum(np.linalg.norm(g) <= 1.3 for g in G) / 1000
    assert_allclose(fraction_within([G], 1.3), [within], atol=1e-10)


def test_too_many_records_are_refused_before_a_sum_could_overflow(monkeypatch):
    assert mechanisms.MAX_RECORDS * 2**mechanisms.FRACTION_BITS < 2**63
    monkeypatch.setattr(mechanisms, "MAX_RECORDS", 10)
    mean = BoundedMean(1.0)
    mean.add(np.ones((6, 1)))
    with pytest.raises(ValueError, match="At most 10 records"):
        mean.add(np.ones((6, 1)))
    with pytest.raises(ValueError, match="no records"):
        BoundedMean(1.0).result()


@pytest.mark.parametrize("attitude", ["warn", "raise"])
@given(G=rows(), B=norms)
@example(G=np.array([[5e-324]]), B=0.3)
def test_extreme_records_raise_no_warning(attitude, G, B):
    """A warning would tell that a record is extreme, whatever the caller asked of numpy."""
    with np.errstate(all=attitude):
        mean_of_clipped_rows([G], B)
        mean_of_clipped_values([G[:, :1]], 0.0, 1.0, 1.0)
        fraction_within([G], B)


def test_gaussian_scale():
    assert gaussian_scale(2.0, 0.5) == pytest.approx(4.0, rel=1e-5)
    assert gaussian_scale(2.0, 0.5) > 4.0
    assert gaussian_scale(2.0, math.inf) == 0.0


# Noise --------------------------------------------------------------------------------------


def test_secure_noise_is_the_gaussian_that_was_asked_for():
    """20000 draws: mean, standard deviation and Kolmogorov-Smirnov, false alarm 3e-9 in all."""
    n, scale, shift = 20_000, 0.37, 5.0
    draws = SecureNoise().add_gaussian(np.full(n, shift), scale) - shift
    alarm = 1e-9
    assert abs(draws.mean()) < stats.norm.isf(alarm / 2) * scale / math.sqrt(n)
    low, high = stats.chi2.ppf([alarm / 2, 1 - alarm / 2], n)
    assert low < (draws**2).sum() / scale**2 < high
    assert stats.kstest(draws / scale, "norm").pvalue > alarm


FORKS = r"""
import os, sys
import numpy as np
from privbo_plugins.privacy.noise import SecureNoise
noise = SecureNoise()
def draw():
    coins = "".join("01"[noise.flip(0.5)] for _ in range(128))
    drawn = noise.add_gaussian(np.zeros(2), 1.0).tolist(), noise.add_laplace(0.0, 1.0)
    return f"{coins} {drawn} {noise.integer(2**64)}\n"
draw()  # so that there is a generator, which has been seeded
for _ in range(3):
    if os.fork() == 0:
        os.write(1, draw().encode())
        os._exit(0)
    os.wait()
os.write(1, draw().encode())
"""


def test_forked_processes_draw_other_noise_than_their_parent():
    """Coins, Gaussian, Laplace and integer of each: no two of four are the same."""
    run = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    drawn = [re.split(r"[ ,()\[\]]+", line) for line in run.stdout.splitlines()]
    assert len(drawn) == 4
    for part in range(5):
        assert len({parts[part] for parts in drawn}) == 4


@pytest.mark.parametrize("draw", [
    lambda value, scale: SecureNoise().add_gaussian(np.array([0.0, value]), scale),
    lambda value, scale: SecureNoise().add_laplace(value, scale),
], ids=["gaussian", "laplace"])  # fmt: skip
def test_secure_noise_refuses_what_is_not_finite_and_senseless_scales(draw):
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="clip before noise"):
            draw(value, 1.0)
    for scale in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="noise scale"):
            draw(0.0, scale)


METHODS = ("add_gaussian", "add_laplace", "flip", "integer")


@pytest.mark.parametrize("name", [*METHODS, "anything"])
def test_nothing_can_be_put_into_an_instance_of_secure_noise(name):
    noise = SecureNoise()
    with pytest.raises(AttributeError):
        setattr(noise, name, lambda *_: 0.0)
    assert is_secure(noise)


@pytest.mark.parametrize("name", [*METHODS, "__getattribute__"])
def test_a_patched_class_is_no_secure_noise(name):
    noise = SecureNoise()
    assert is_secure(noise)
    own = vars(SecureNoise).get(name)
    setattr(SecureNoise, name, object.__getattribute__)
    try:
        assert not is_secure(noise)
    finally:
        delattr(SecureNoise, name)
        if own is not None:
            setattr(SecureNoise, name, own)
    assert is_secure(noise)


def test_only_the_class_itself_is_secure_noise():
    class Silent(SecureNoise):
        pass

    class Pretender:
        __class__ = SecureNoise

    assert isinstance(Pretender(), SecureNoise)
    assert not any(is_secure(x) for x in (Silent(), Pretender(), InsecureNoise(0), None))


def test_secure_noise_pickles_without_any_state():
    noise = SecureNoise()
    fresh = pickle.dumps(noise)
    noise.add_gaussian(np.zeros(3), 1.0)
    assert pickle.dumps(noise) == fresh
    copies = [pickle.loads(fresh).add_gaussian(np.zeros(3), 1.0).tobytes() for _ in range(2)]
    assert copies[0] != copies[1]
    assert isinstance(pickle.loads(fresh), SecureNoise)
