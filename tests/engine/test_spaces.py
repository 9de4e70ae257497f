"""Search spaces: encoding, rounding to what the host evaluates, and what is refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose

from privbo_plugins.spaces import Categorical, Float, Int, Space

unit = st.floats(0, 1)
bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-2, 1e6)).map(lambda b: (b[0], b[0] + b[1]))
positive = st.tuples(st.floats(1e-12, 1e6), st.floats(1.001, 1e9)).map(
    lambda b: (b[0], b[0] * b[1])
)
floats = bounds.map(lambda b: Float(*b))
log_floats = positive.map(lambda b: Float(*b, log=True))
stepped_floats = st.builds(
    lambda low, step, k, rest: Float(low, low + step * (k + rest), step=step),
    st.integers(-1000, 1000).map(float),
    st.sampled_from([0.1, 0.25, 0.3, 1.0, 2.5]),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.4, 0.9]),
)
ints = st.tuples(st.integers(-1000, 1000), st.integers(0, 3000)).map(lambda b: Int(b[0], sum(b)))
stepped_ints = st.builds(
    lambda low, step, k, rest: Int(low, low + step * k + rest % step, step=step),
    st.integers(-1000, 1000),
    st.integers(1, 17),
    st.integers(0, 200),
    st.integers(0, 16),
)
log_ints = st.tuples(st.integers(1, 1000), st.integers(1, 10**5)).map(
    lambda b: Int(b[0], sum(b), log=True)
)
CHOICES = (1, True, 1.0, None, "1", [1, 2], {"a": 1}, (1, 2), 0, False)
categoricals = st.lists(st.sampled_from(range(len(CHOICES))), min_size=1, unique=True).map(
    lambda picked: Categorical(tuple(CHOICES[i] for i in picked))
)
numeric = st.one_of(floats, log_floats, stepped_floats, ints, stepped_ints, log_ints)
dimensions = st.one_of(numeric, categoricals)

ODD_DIMENSIONS = {
    "float": Float(-3.0, 7.1), "log": Float(1e-5, 10.0, log=True), "int": Int(-4, 9),
    "log int": Int(1, 300, log=True), "stepped int": Int(0, 10, step=5),
    "uneven int": Int(0, 10, step=4), "stepped": Float(0.0, 1.0, step=0.1),
    "uneven": Float(0.0, 1.0, step=0.3), "stepped log": Float(0.5, 3.0, log=True, step=0.5),
    "wide step": Float(0.0, 1.0, step=5.0), "one float": Float(2.0, 2.0), "one int": Int(3, 3),
    "one log int": Int(3, 3, log=True), "one stepped": Float(2.0, 2.0, step=0.5),
    "one choice": Categorical(("only",)), "choices": Categorical(("a", "b", "c")),
}  # fmt: skip
"""Of every kind one, with its edges: an uneven step, one value, a step beyond the range."""


def same(a, b):
    return type(a) is type(b) and a == b


@given(dim=floats | log_floats, u=unit)
def test_a_scale_against_its_formula_and_back(dim, u):
    value, size = dim.decode(u), max(abs(dim.low), abs(dim.high))
    assert dim.low <= value <= dim.high
    if dim.log:
        assert value == pytest.approx(dim.low ** (1 - u) * dim.high**u, rel=1e-9)
    else:
        assert value == pytest.approx(dim.low + u * (dim.high - dim.low), abs=1e-12 * size)
    assert dim.decode(dim.encode(value)) == pytest.approx(value, rel=1e-9, abs=1e-9 * size)


@given(dim=stepped_floats, u=unit)
def test_stepped_floats_take_the_nearest_grid_value(dim, u):
    assert dim.step is not None
    count = math.floor((dim.high - dim.low) / dim.step + 1e-9)
    grid = np.minimum(dim.low + np.arange(count + 1) * dim.step, dim.high)
    target, value = dim.low + u * (dim.high - dim.low), dim.decode(u)
    assert np.abs(grid - value).min() <= 1e-9 * max(1.0, abs(dim.high))
    assert abs(value - target) <= np.abs(grid - target).min() + 1e-9 * max(1.0, abs(dim.high))
    assert same(dim.decode(dim.encode(value)), value)


@given(dim=st.one_of(ints, stepped_ints, log_ints), u=unit, data=st.data())
def test_integers_take_the_nearest_grid_value_and_each_round_trips(dim, u, data):
    chosen = data.draw(st.sampled_from(range(dim.low, dim.high + 1, dim.step)))
    assert 0 <= dim.encode(chosen) <= 1
    assert same(dim.decode(dim.encode(chosen)), chosen)
    target = dim.low ** (1 - u) * dim.high**u if dim.log else dim.low + u * (dim.high - dim.low)
    grid = np.arange(dim.low, dim.high + 1, dim.step)
    value = dim.decode(u)
    assert type(value) is int
    assert value in grid
    assert abs(value - target) <= np.abs(grid - target).min() + 1e-6 * max(1, abs(dim.high))


def test_choices_that_compare_equal_are_told_apart():
    dim = Categorical((1, True, 1.0, None, [1], {"a": 2}))
    assert [dim.encode(v) for v in (1, True, 1.0, None, [1], {"a": 2})] == [0, 1, 2, 3, 4, 5]
    assert [dim.encode(v) for v in (np.int64(1), 1 + 0j)] == [0, 0]
    assert same(Categorical((2.0, "x")).decode(0.0), 2.0)
    assert Categorical((2.0, "x")).encode(2) == 0
    first, second = np.arange(3), np.arange(3) + 1
    assert Categorical((first, second)).encode(second) == 1.0


def test_an_unknown_choice_is_refused_without_quoting_it():
    with pytest.raises(ValueError, match="none of the 2 declared choices") as caught:
        Categorical(("a", "b")).encode("Jane Doe")
    assert "Jane" not in str(caught.value)


@given(dims=st.lists(dimensions, min_size=1, max_size=5), data=st.data())
def test_snap_is_idempotent_and_evaluates_to_itself(dims, data):
    space = Space({f"p{i}": dim for i, dim in enumerate(dims)})
    x = np.array([data.draw(unit if dim.numeric else st.floats(0, len(dim.choices) - 1))
                  for dim in dims])  # fmt: skip
    once = space.snap(x)
    assert_allclose(space.snap(once), once, atol=1e-7)
    assert np.all(once[space.numeric] >= 0)
    assert np.all(once[space.numeric] <= 1)
    for name, dim in space.items():
        if isinstance(dim, Int | Categorical) or dim.step is not None:
            assert same(space.decode(once)[name], space.decode(x)[name])


@given(dim=numeric, u=st.floats(-5, 6), beyond=st.floats(0, 1e9))
def test_what_lies_outside_is_projected(dim, u, beyond):
    assert dim.decode(u) == dim.decode(min(max(u, 0.0), 1.0))
    assume(dim.high > dim.low)
    assert dim.encode(dim.high + beyond) == pytest.approx(1.0)
    assert dim.encode(dim.low - beyond) == pytest.approx(0.0, abs=1e-12)


def test_constant_dimensions_stay_constant():
    for dim in (Float(2.0, 2.0), Int(3, 3), Float(2.0, 2.0, log=True), Float(2, 2, step=0.5)):
        assert dim.encode(dim.low) == 0.5
        assert dim.resolution == 0.0
        assert {dim.decode(u) for u in (0.0, 0.3, 1.0)} == {dim.low}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(1, 0), "low <= high"), (lambda: Float(0, math.inf), "finite"),
        (lambda: Float(math.nan, 1), "finite"), (lambda: Float(0, 1, log=True), "low > 0"),
        (lambda: Float(0, 1, step=0), "step > 0"),
        (lambda: Float(0, 1, step=math.inf), "step > 0"), (lambda: Int(2, 1), "low <= high"),
        (lambda: Int(0, 5, log=True), "low > 0"), (lambda: Int(0, 5, step=0), "step >= 1"),
        (lambda: Categorical(()), "at least one choice"),
        (lambda: Space({}), "at least one parameter"),
    ],
)  # fmt: skip
def test_senseless_dimensions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("dim", "grid"),
    [
        (Float(0.5, 3.0, log=True, step=0.5), [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]),
        (Int(3, 24, log=True, step=3), list(range(3, 25, 3))),
    ],
)
def test_a_step_on_a_log_scale_visits_its_grid_and_nothing_else(dim, grid):
    visited = {dim.decode(u) for u in np.linspace(0, 1, 2001)}
    assert sorted(visited) == grid
    assert [dim.decode(dim.encode(value)) for value in grid] == grid
    assert dim.encode(grid[1]) == pytest.approx(
        math.log(grid[1] / grid[0]) / math.log(grid[-1] / grid[0])
    )
    gaps = np.diff([dim.encode(value) for value in grid])
    assert dim.resolution == pytest.approx(gaps.max())


def test_space_orders_names_so_that_every_process_agrees():
    a, b = Float(0, 1), Categorical(("u", "v"))
    one, two = Space({"b": b, "a": a}), Space({"a": a, "b": b})
    assert one.names == two.names == ("a", "b")
    assert list(one.numeric) == [True, False]
    assert (one.d, len(one)) == (1, 2)
    assert one.to_dict() == two.to_dict()


def test_description_travels_in_json_and_tells_spaces_apart():
    spaces = [
        Space({"x": dim})
        for dim in (
            Float(0, 1), Float(0, 2), Float(0, 1, step=0.5), Float(0.5, 1, log=True), Int(0, 1),
            Categorical((0, 1)), Categorical((0, True)), Categorical(([1], None)),
        )
    ]  # fmt: skip
    described = [json.loads(json.dumps(s.to_dict())) for s in spaces]
    assert [s.to_dict() for s in spaces] == described
    assert len({json.dumps(d) for d in described}) == len(spaces)


@pytest.mark.parametrize("dim", [Float(1e-300, 1e300, log=True), Float(-1e308, 1e308)])
def test_ranges_whose_width_overflows_still_round_trip(dim):
    for u in (0.0, 0.25, 0.75, 1.0):
        assert dim.encode(dim.decode(u)) == pytest.approx(u, abs=1e-9)


# Many points at once --------------------------------------------------------------------------


def between_values(dim, u):
    """Whether rounding errors may decide which of two neighbours is evaluated."""
    if isinstance(dim, Categorical) or dim.step is None or dim.high == dim.low:
        return False
    u = min(max(u, 0.0), 1.0)
    steps = ((1 - u) * dim.low + u * dim.high - dim.low) / dim.step
    return not dim.log and abs(steps % 1.0 - 0.5) < 1e-6


def rounding(dim):
    """How far floats move a place: values of a narrow range far from zero lie coarsely."""
    if not dim.numeric or dim.high == dim.low:
        return 1e-9
    return max(1e-9, 2 * np.spacing(max(abs(dim.low), abs(dim.high))) / (dim.high - dim.low))


of_every_kind = dimensions | st.sampled_from(list(ODD_DIMENSIONS.values()))


@given(dims=st.lists(of_every_kind, min_size=1, max_size=4), data=st.data())
@example(dims=list(ODD_DIMENSIONS.values()), data=None)
@example(dims=[Float(524288.0, 524288.01)], data=None)
def test_snapping_many_points_is_snapping_each(dims, data):
    space = Space({f"p{i}": dim for i, dim in enumerate(dims)})
    tops = [1.0 if dim.numeric else len(dim.choices) - 0.5 for dim in space.values()]
    if data is None:
        U = np.linspace(-0.2, 1.2, 1237)[:, None] + np.zeros(len(space)) + 1e-5
    else:
        shape = (data.draw(st.integers(0, 12)), len(space))
        U = data.draw(hnp.arrays(float, shape, elements=st.floats(-0.5, 1.5)))
    X = np.where(space.numeric, U, np.clip(U, 0, 1)) * tops
    for x in X:
        assume(not any(between_values(*pair) for pair in zip(space.values(), x, strict=True)))
    before = X.copy()
    ours = space.snap_all(X)
    assert np.array_equal(X, before)
    assert ours.shape == X.shape
    assert_allclose(space.snap_all(ours), ours, atol=1e-7)
    finest = [rounding(dim) for dim in space.values()]
    for x, snapped in zip(X, ours, strict=True):
        assert (np.abs(snapped - space.snap(x)) <= finest).all()
        for dim, one, two in zip(space.values(), snapped, space.snap(x), strict=True):
            if not dim.numeric or dim.step is not None:
                assert same(dim.decode(one), dim.decode(two))


finite = st.one_of(
    stepped_floats,
    ints.map(lambda dim: Int(dim.low, min(dim.high, dim.low + 40))),
    stepped_ints,
    log_ints.map(lambda dim: Int(dim.low, min(dim.high, dim.low + 40), log=True)),
    categoricals,
    st.sampled_from([dim for dim in ODD_DIMENSIONS.values()
                     if not dim.numeric or dim.step is not None]),
)  # fmt: skip


def all_values(dim):
    if isinstance(dim, Categorical):
        return list(dim.choices)
    if isinstance(dim, Int):
        return list(range(dim.low, dim.high + 1, dim.step))
    values, k = [], 0
    while dim.low + k * dim.step <= dim.high + 1e-9 * dim.step:
        values.append(min(dim.low + k * dim.step, dim.high))
        k += 1
    return values


@given(dims=st.lists(finite, min_size=1, max_size=3))
def test_the_grid_lists_every_value_once(dims):
    space = Space({f"p{i}": dim for i, dim in enumerate(dims)})
    axes = [all_values(dim) for dim in dims]
    size = math.prod(map(len, axes))
    assume(size <= 3000)
    grid = space.grid(size)
    assert grid.shape == (size, len(dims))
    assert space.grid(size - 1) is None
    for j, (dim, values) in enumerate(zip(dims, axes, strict=True)):
        column = np.unique(grid[:, j])
        assert len(column) == len(values)
        for u, value in zip(column, values, strict=True):
            assert dim.decode(u) == (value if dim.numeric and isinstance(dim, Int) else
                                     pytest.approx(value) if dim.numeric else value)  # fmt: skip
    assert len({tuple(row) for row in grid.tolist()}) == size
    assert_allclose(space.snap_all(grid), grid, atol=1e-9)
    for row in grid[:: max(size // 20, 1)]:
        assert_allclose(space.snap(row), row, atol=1e-9)


def test_constants_have_a_grid_of_one_point():
    space = Space({"a": Float(2.0, 2.0), "b": Int(3, 3), "c": Float(2.0, 2.0, log=True)})
    assert np.array_equal(space.grid(1), [[0.5, 0.5, 0.5]])
    assert space.grid(0) is None
    with_choice = Space({"a": Float(2.0, 2.0), "b": Categorical(("u", "v"))}).grid(2)
    assert np.array_equal(with_choice, [[0.5, 0.0], [0.5, 1.0]])
