"""Odd records that Hypothesis makes, and the array that holds any."""

import functools

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from tests.independence.zoo import QUOTED, ZOO

_SLOTS = (
    "float", "int", "index", "complex", "len", "iter", "getitem", "eq", "ne", "lt", "hash", "bool",
    "str", "repr", "array", "getattribute", "contains", "add", "sub", "mul",
)  # fmt: skip


def _evil(kind):
    """An object whose methods all raise, and quote it."""

    def raises(*_, **__):
        raise kind(QUOTED)

    return type("Evil", (), {f"__{name}__": raises for name in _SLOTS})()


class Long(list):
    """Says that it is longer than it is."""

    def __len__(self):
        return 2**40


def _nested(entries):
    return (
        st.lists(entries, max_size=3)
        | st.lists(entries, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), entries, max_size=2)
    )


PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.complex_numbers(), st.decimals(), st.dates(), st.sampled_from([10**400, -(10**400), 2**63]),
)  # fmt: skip


KINDS = [ValueError, RuntimeError, SystemExit, RecursionError, IndexError, BaseException]
MAKERS = {
    **ZOO,
    **{f"raises {k.__name__}": functools.partial(_evil, k) for k in KINDS},
    **{f"holds what raises {k.__name__}": lambda k=k: [_evil(k)] * 2 for k in KINDS},
    "missing": lambda: pd.NA,
    "half a character": lambda: "caf\ud83d",
    "timestamp": lambda: pd.Timestamp(0),
    "square": lambda: np.zeros((2, 2)),
    "empty array": lambda: np.zeros(0),
    "longer than it is": lambda: Long([0.5, 0.5]),
    "very long": lambda: range(2**40),
    "series": lambda: pd.Series([0.5, 0.5]),
}
"""By name, because Hypothesis runs some of an object's own code."""

ODD = st.one_of(
    st.sampled_from(sorted(MAKERS)).map(MAKERS.__getitem__),
    st.recursive(PLAIN, _nested, max_leaves=5).map(lambda entry: lambda: entry),
)


def of_objects(entries):
    array = np.empty(len(entries), dtype=object)
    for place, entry in enumerate(entries):
        array[place] = entry
    return array
