"""What a user's function returned, made into losses or a reward."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from privbo_plugins.returned import as_losses
from privbo_plugins.scrub import attempt

RECORDS = np.array([0.25, 0.5, 0.75])


class Chatters:
    """An object whose conversion to an array warns about a record."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        warnings.warn(f"record {RECORDS[0]} looks odd", UserWarning, stacklevel=1)
        return RECORDS


def test_what_a_returned_object_warns_of_is_not_heard() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(as_losses(Chatters()), RECORDS)


def test_masked_records_count_as_not_scored() -> None:
    losses = as_losses(np.ma.array([0.1, 0.2, 0.9], mask=[False, True, False]))
    assert np.isnan(losses).tolist() == [False, True, False]


def test_one_odd_record_does_not_fail_the_others() -> None:
    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("Jane Doe")

    losses = as_losses([0.5, Odd(), 0.25])
    assert np.isnan(losses).tolist() == [False, True, False]
    assert attempt(lambda: as_losses([0.5, Odd()]), lambda _: None)[1] is None
