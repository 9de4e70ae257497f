"""What a user's function returned, made into losses or a reward."""

import builtins
import copy
import math
import pickle
import warnings
from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from privbo_plugins.convert import (
    as_labels,
    as_losses,
    as_records,
    as_reward,
    as_rows,
    fingerprint,
    index_of,
)
from privbo_plugins.errors import ObjectiveFailedError
from privbo_plugins.sanitize import withheld
from privbo_plugins.sessions.tables import checked_outcomes

RECORDS = np.array([0.25, 0.5, 0.75])


class Chatters:
    """An object whose conversion to an array warns about a record."""

    def __array__(self, *_, **__):
        warnings.warn(f"record {RECORDS[0]} looks odd", UserWarning, stacklevel=1)
        return RECORDS


def test_what_a_returned_object_warns_of_is_not_heard():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(as_losses(Chatters()), RECORDS)


class Talkative:
    """Quotes itself wherever it can."""

    def __repr__(self):
        return "Jane 0.123456"

    def __float__(self):
        raise ValueError("Jane 0.123456")

    def __array__(self, *_, **__):
        raise RuntimeError("Jane 0.123456")

    def detach(self):
        return self

    cpu = detach
    numpy = __array__


class Rude(float):
    """A number whose own code quotes it."""

    def __float__(self):
        raise SystemExit(f"Jane {self!r}")


ODD_RECORDS = [
    (None, math.nan), ("n/a", math.nan), ("0.5", 0.5), (b"n/a", math.nan), (1j, math.nan),
    (0.5 + 0j, 0.5), (np.complex128(0.5 + 1j), math.nan), ([0.5], math.nan),
    ((0.5, 0.25), math.nan), ({"loss": 0.5}, math.nan), (10**400, math.nan),
    (np.datetime64("2020-01-01"), math.nan), (np.timedelta64(3, "s"), math.nan),
    (np.ma.masked, math.nan), (Talkative(), math.nan), (Rude(0.5), math.nan), (math.inf, math.inf),
]  # fmt: skip
"""What one record may be, and what it counts as."""


def _objects(entries):
    array = np.empty(len(entries), dtype=object)
    for place, entry in enumerate(entries):
        array[place] = entry
    return array


@pytest.mark.parametrize("outer", [list, deque, _objects], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("odd", "number"), ODD_RECORDS, ids=lambda value: type(value).__name__)
def test_one_record_of_any_kind_changes_its_own_entry_only(odd, number, outer):
    for place in (0, 2):
        entries = [0.25, 0.5, 0.75]
        entries[place] = odd
        expected = [0.25, 0.5, 0.75]
        expected[place] = number
        assert np.array_equal(as_losses(outer(entries)), expected, equal_nan=True)


NUMBERS = [
    (0.25, 0.25), (3, 3.0), (-0.0, 0.0), (True, 1.0), (np.float16(0.5), 0.5), (np.int8(-3), -3.0),
    (np.bool_(True), 1.0), (np.array(0.25), 0.25), (np.array([[[0.25]]]), 0.25), ((0.25,), 0.25),
    (Decimal("0.25"), 0.25), (Fraction(1, 4), 0.25), (-math.inf, -math.inf), (1e308, 1e308),
    # one user's value may arrive as another type than the others'
    (b"1.5", 1.5), (["1.5"], 1.5), (np.array([b"1.5"]), 1.5), ([1.5 + 0j], 1.5),
]  # fmt: skip
NO_NUMBERS = [
    "Jane", bytearray(b"Jane"), np.str_("Jane"), ["Jane"], np.array("Jane"), [[0.123456]],
    np.array(["Jane"], dtype=object), np.complex64(1j), type("Jane0123456", (), {})(),
    lambda: 0.123456, math.nan, Decimal("sNaN"), Fraction(-(10**400)),
    np.ma.array([0.123456], mask=[True]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        *NUMBERS,
        *((thing, math.nan) for thing in NO_NUMBERS),
        *((odd, number) for odd, number in ODD_RECORDS if type(odd) not in (list, tuple, dict)
          and odd is not None),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_one_thing_is_a_reward_and_nan_if_it_is_no_number(returned, reward):
    """Refusing it would tell, by a failed trial, what is odd about this user."""
    value = as_reward(returned)
    assert type(value) is float
    assert value == reward or (math.isnan(value) and math.isnan(reward))


COLLECTIONS = [
    {"Jane": 0.123456}, {0.123456}, {}, ["Jane", 0.123456], np.array([0.123456, 0.2]), [],
    [[0.123456], [0.2, 0.3]], np.arange(37.0),
]  # fmt: skip
"""None or several, whatever they are."""


@pytest.mark.parametrize("returned", COLLECTIONS, ids=str)
def test_what_is_no_reward_is_refused_without_quoting_it(returned):
    """Nor counting it: a user's number of records is theirs."""
    words = "The objective must return one reward.*or several.*DPGIBOSampler, DPGIBOSearch"
    with pytest.raises(ValueError, match=words) as caught:
        as_reward(returned)
    text = str(caught.value) + repr(caught.value)
    assert not any(told in text for told in ("Jane", "123456", "37"))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def _dtypes():
    return [
        np.array(["a", "b"]),
        np.array([b"a", b"b"]),
        np.array([1j, 2j]),
        np.array([None, None]),
        np.array(["2020", "2021"], dtype="datetime64[Y]"),
        np.array([1, 2], dtype="timedelta64[s]"),
        np.zeros(2, dtype=[("loss", float)]),
        np.ma.array([0.5, 0.25], mask=True),
        np.ma.array(np.zeros(2, dtype=[("loss", float)]), mask=[(True,), (False,)]),
    ]


@pytest.mark.parametrize("array", _dtypes(), ids=lambda a: str(a.dtype))
def test_a_vector_of_any_type_passes_for_its_shape(array):
    """Also without a single number: how many records are odd decides nothing."""
    assert np.isnan(as_losses(array)).tolist() == [True, True]
    for other in (array.reshape(2, 1), array[:0], array[0:1].reshape(())):
        with pytest.raises(ValueError, match=r"one value per validation|non-empty vector"):
            as_losses(other)


@pytest.mark.parametrize(
    "series",
    [
        pd.Series([0.25, None, 0.75]), pd.Series([0.25, "n/a", 0.75], dtype=object),
        pd.Series(["0.25", "n/a", "0.75"], dtype="string"),
        pd.Series([0.25, None, 0.75], dtype="Float64"),
        pd.Series([0.25, None, 0.75], dtype="category"),
        pd.Series([0.25, None, 0.75], dtype="Float64").array, pd.Index([0.25, math.nan, 0.75]),
    ],
    ids=lambda s: f"{type(s).__name__} {s.dtype}",
)  # fmt: skip
def test_series_and_extension_arrays_are_vectors(series):
    assert np.array_equal(as_losses(series), [0.25, math.nan, 0.75], equal_nan=True)
    with pytest.raises(ValueError, match="2 dimension"):
        as_losses(pd.DataFrame({"loss": series}))


KNOW_MISSING = {
    "category of integers": (pd.CategoricalDtype([0, 1, 2**53, 2**53 + 1]), [0, 1, 2**53 + 1]),
    "category of truths": (pd.CategoricalDtype([False, True]), [False, True, True]),
    "category of texts": (pd.CategoricalDtype(["a", "b"]), ["a", "b", "a"]),
    "category of intervals": ("category", [*pd.interval_range(0, 2), pd.Interval(0, 1)]),
    "Int64": ("Int64", [0, 1, 2**53 + 1]), "boolean": ("boolean", [False, True, True]),
    "string": ("string", ["a", "b", "a"]), "object": (object, [0, True, "a"]),
}  # fmt: skip
"""Types of pandas in which an entry may be missing, and entries."""


@pytest.mark.parametrize("kind", KNOW_MISSING)
@pytest.mark.parametrize(
    "outer",
    [lambda s: s, lambda s: s.array, lambda s: pd.Index(s), lambda s: s.to_frame(),
     lambda s: pd.DataFrame({"a": s, "b": np.arange(3), "c": s}),
     lambda s: pd.MultiIndex.from_arrays([s, np.arange(3)])],
    ids=["series", "array", "index", "table", "table of several", "index of several"],
)  # fmt: skip
def test_an_entry_that_is_missing_leaves_the_types_of_all_others(kind, outer):
    """Else a function of one record would tell whether another one's is."""
    dtype, entries = KNOW_MISSING[kind]
    whole = as_records(outer(pd.Series(entries, dtype=dtype)))
    gap = as_records(outer(pd.Series([*entries[:2], None], dtype=dtype)))
    assert len(whole) == len(gap) == 3
    for one, other in zip(whole[:2], gap[:2], strict=True):
        assert [(type(a), a) for a in np.ravel([one])] == [(type(b), b) for b in np.ravel([other])]
    assert (
        as_labels(pd.Series(entries, dtype=dtype)).tolist()[:2]
        == as_labels(pd.Series([*entries[:2], None], dtype=dtype)).tolist()[:2]
    )


class _Tensor:
    """What is used of torch; numpy has no bfloat16."""

    def __init__(self, y, half):
        self.y, self.half = y, half

    def detach(self):
        return _Tensor(self.y, self.half)

    cpu = detach

    def double(self):
        return _Tensor(self.y, False)

    def numpy(self):
        if self.half:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.y

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


@pytest.mark.parametrize("half", [False, True])
def test_tensors_are_losses_and_rewards_alike(half):
    assert np.array_equal(as_losses(_Tensor(RECORDS, half)), RECORDS)
    assert as_reward(_Tensor(RECORDS[:1], half)) == RECORDS[0]
    with pytest.raises(ValueError, match="single number"):
        as_losses(_Tensor(np.array(0.5), half))


class _Stored:
    """Records that are read one by one, of which one cannot be."""

    def __len__(self):
        return 3

    def __getitem__(self, place):
        if place == 1:
            raise self.kind("Jane Doe")
        return RECORDS[place]

    def __init__(self, kind):
        self.kind = kind


@pytest.mark.parametrize("kind", [RuntimeError, IndexError])
def test_a_record_that_cannot_be_read_is_missing_alone(kind):
    expected = [RECORDS[0], math.nan, RECORDS[2]]
    assert np.array_equal(as_losses(_Stored(kind)), expected, equal_nan=True)
    assert as_labels(_Stored(kind)).tolist() == [RECORDS[0], None, RECORDS[2]]


@pytest.mark.parametrize(
    "returned",
    [{0.5: 1}, {0.5}, "0.5", b"12", None, object(), iter([0.5]), (RECORDS, RECORDS), (0.5, 0.25)],
)
def test_what_has_no_order_or_no_length_or_is_several_results_is_no_vector(returned):
    with pytest.raises(ValueError, match="one value per validation record"):
        as_losses(returned)


def raising(kind):
    """A container whose code raises something that quotes a record, wherever it is asked."""

    def fails(*_, **__):
        raise kind("Jane 0.123456")

    names = ("__array__", "__len__", "__getitem__", "__iter__", "to_numpy", "to_pylist", "detach")
    own = {**dict.fromkeys(names, fails), "index": property(fails), "dtype": property(fails)}
    return type("Container", (), own)()


DOORS = {
    "losses": as_losses, "a reward": as_reward, "labels": as_labels, "records": as_records,
    "rows": lambda given: as_rows(given, 2), "an index": index_of, "ids": fingerprint,
    "outcomes": lambda given: checked_outcomes(given, 3),
}  # fmt: skip


@pytest.mark.parametrize("kind", [ValueError, SystemExit, GeneratorExit, BaseException])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_what_a_container_raises_passes_no_door(door, kind):
    try:
        assert door(raising(kind)) in (None, [])
    except ValueError as refused:
        assert "Jane" not in str(refused)  # noqa: PT017
        assert refused.__context__ is None  # noqa: PT017


def test_the_losses_given_are_not_changed():
    masked = np.ma.array([0.1, 0.2], mask=[False, True])
    given_array = np.array([0.1, 0.2])
    as_losses(masked)[:] = 7.0
    as_losses(given_array)[:] = 7.0
    assert masked.data.tolist() == given_array.tolist() == [0.1, 0.2]


_KINDS = [
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
]


@pytest.mark.parametrize("name", _KINDS)
def test_a_failure_is_of_the_kind_that_was_raised_and_tells_no_more(name):
    error = withheld(name)
    kind = getattr(builtins, name)
    assert isinstance(error, ObjectiveFailedError)
    unfit = name in {"StopIteration", "StopAsyncIteration"} or "ExceptionGroup" in name
    assert isinstance(error, kind) is not unfit
    assert str(error).startswith(f"The private objective raised {name}. Its message")
    for travelled in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(travelled) is type(error)
        assert str(travelled) == str(error)
