"""What objectives return, as the numbers that a mechanism takes.

Converting runs the code of the object that was returned, whose errors and warnings may quote
data: nothing of them gets out, and no message here repeats a value. It needs numpy alone, because
trials convert in processes of their own.
"""

from __future__ import annotations

import math
import warnings
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def as_losses(values: Any) -> Array:
    """One value a record as a float vector, shape (n,).

    Non-finite values pass: the mechanism turns them into a constant.

    Raises:
        ValueError: If it is not a non-empty vector of real numbers. The message never quotes
            a value.
    """
    array = _quietly_as_vector(values)
    if array is None:
        raise ValueError(
            "Per-record losses must be real numbers in an array, list or series (a torch tensor "
            "as .detach().cpu().numpy()); something else was given."
        )
    if array.ndim == 0:
        raise ValueError(
            "A private objective must return one value per validation record, shape "
            "(n_records,); it returned a single number. Return the vector before averaging it."
        )
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            "Per-record losses must be a non-empty vector of shape (n_records,), got an array of "
            f"{array.ndim} dimension(s){' without entries' if array.size == 0 else ''}."
        )
    return array


def _quietly_as_vector(values: Any) -> Array | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning would tell that some record is odd
            return _as_vector(values)
    except Exception:  # its text may quote the data
        return None


def _as_vector(values: Any) -> Array | None:
    if isinstance(values, np.ma.MaskedArray):  # what is masked was not scored
        values = np.ma.filled(values.astype(np.float64), math.nan)
    array = np.asarray(values)
    if array.dtype.kind not in "biufO":
        return None
    if array.dtype.kind == "O" and array.ndim == 1:
        numbers = [_entry_or_none(entry) for entry in array]
        if all(number is None for number in numbers):
            return None
        array = np.array([math.nan if number is None else number for number in numbers])
    with np.errstate(all="ignore"):
        return np.array(array, dtype=np.float64)


def _entry_or_none(entry: Any) -> float | None:
    """One record's value, or None; a single odd record must not fail the trial."""
    try:
        return float(entry)
    except Exception:
        return None


class NotARewardError(ValueError):
    """An objective returned something else than one number; the text never quotes it."""


def as_reward(returned: Any) -> float:
    """One raw reward from what an objective returned: a number, or an array of one number.

    Raises:
        NotARewardError: If it is none.
    """
    array = _as_numbers(returned)
    if array is None:
        raise NotARewardError(
            f"The objective must return one reward, a number; got {_a(type(returned))}."
        )
    if array.size != 1:
        raise NotARewardError(
            "The objective must return one reward, the one user's of this trial; got none or "
            "several numbers. Per-record losses of a whole data set are another setting: "
            "DPGIBOSampler, DPGIBOSearch."
        )
    return float(array.reshape(()))


def _as_numbers(returned: Any) -> Array | None:
    """None for what is no number; converting may run the code of what was returned."""
    try:
        if hasattr(returned, "detach"):
            returned = returned.detach().cpu().numpy()
        if isinstance(returned, np.ma.MaskedArray) or returned is None:
            return None
        array = np.asarray(returned)
        if array.dtype.kind == "O":  # Python's own integers and fractions of any size
            return np.array([_as_reward_entry(entry) for entry in array.ravel()])
        with np.errstate(all="ignore"):  # a warning would tell that the reward is extreme
            return array.astype(float) if array.dtype.kind in "biuf" else None
    except Exception:  # what it says may quote data
        return None


def _as_reward_entry(entry: Any) -> float:
    if isinstance(entry, str | bytes | bytearray):
        raise TypeError
    try:
        return float(entry)
    except (OverflowError, ValueError):
        if isinstance(entry, Number):  # too large for a float, or a NaN that signals
            return math.nan
        raise


def _a(kind: type) -> str:
    known = (str, bytes, bytearray, type(None), dict, list, tuple)
    return kind.__name__ if kind in known else "something else"
