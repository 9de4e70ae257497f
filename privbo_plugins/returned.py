"""What objectives return, as the numbers that a mechanism takes.

Converting runs the code of the object that was returned, whose errors and warnings may quote
data: nothing of them gets out, and no message here repeats a value. Whether something is taken
depends on its outer shape alone, never on what a record or a user looks like. It needs numpy
alone, because trials convert in processes of their own.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sized
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import NotARewardError, NotLossesError

Array = NDArray[np.float64]


def as_losses(values: Any) -> Array:
    """One value a record as a float vector, shape (n,).

    Entries that are no real number become NaN. Non-finite values pass: the mechanism turns them
    into a constant.

    Raises:
        NotLossesError: If it is not a non-empty vector, whatever its entries are; a ValueError
            whose message never quotes a value.

    Example:
        >>> as_losses([0.25, "n/a", None, 0.5 + 1j, [0.5], "0.5"]).tolist()
        [0.25, nan, nan, nan, nan, 0.5]
    """
    array = as_floats(values)
    if array is None or array.ndim == 0:
        raise NotLossesError(
            "A private objective must return one value per validation record, shape "
            "(n_records,); these must be real numbers in an array, list, series or tensor. It "
            "returned something else, or a single number. Return the vector before averaging it."
        )
    if array.ndim != 1 or array.size == 0:
        raise NotLossesError(
            "Per-record losses must be a non-empty vector of shape (n_records,), got an array of "
            f"{array.ndim} dimension(s){' without entries' if array.size == 0 else ''}."
        )
    return array


def as_reward(returned: Any) -> float:
    """One raw reward from what an objective returned: a number, or an array of one number.

    What is no number is NaN, which the mechanism takes for the worst reward: if it were refused,
    a failed trial would tell of its user.

    Raises:
        NotARewardError: If it is a collection of none or several, or nothing was returned at all:
            a forgotten ``return`` would spend every user's privacy on nothing.

    Example:
        >>> as_reward([0.25]), as_reward("n/a")
        (0.25, nan)
    """
    array = None if returned is None else as_floats(returned)
    if array is None or array.size != 1:
        raise NotARewardError(
            "The objective must return one reward, the one user's of this trial; got none or "
            "several numbers. Per-record losses of a whole data set are another setting: "
            "DPGIBOSampler, DPGIBOSearch."
        )
    return float(array.reshape(()))


def as_floats(returned: Any) -> Array | None:
    """Floats in the outer shape of what was given; what is no real number is NaN.

    Of a sequence, an entry that is itself a sequence is no number. Nothing of what the object's
    own code says or warns gets out.

    Returns:
        None for what has no shape: a mapping, a set, an object whose conversion fails.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a warning would tell that some record is odd
        try:
            return _converted(_unwrapped(returned))
        except Exception:  # its text may quote the data
            return None


def index_of(returned: Any) -> str | None:
    """Fingerprint of the labels that a pandas Series gives its entries, in their order.

    Returns:
        As of :func:`fingerprint`; None for what has no index of its own.

    Example:
        >>> index_of([0.5, 0.25]) is None
        True
    """
    labels = getattr(returned, "index", None)
    if not hasattr(type(labels), "to_numpy"):  # a list's index is a method
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fingerprint(labels)
        except Exception:  # its text may quote labels
            return None


def fingerprint(labels: Any) -> str:
    """A digest of labels and their order, and their number.

    It is as private as the labels: who knows all but one can try out the last. It stays in memory
    and goes to the vault, which keeps it under a key.

    Raises:
        ValueError: If there are none, or they are no sequence; quotes none.

    Example:
        >>> fingerprint([3, 1, 2]) == fingerprint(np.array([3, 1, 2])) != fingerprint([1, 2, 3])
        True
    """
    listed = _listed(labels)
    if listed is None:
        raise ValueError(
            "record_ids must list one label per validation record, in the order of the losses: "
            "strings or numbers, such as the keys of a table."
        )
    digest = hashlib.sha256(np.array(len(listed)).tobytes())
    if listed.dtype.kind in "biu":
        digest.update(listed.astype(np.int64).tobytes())
    else:
        for text in map(str, listed.tolist()):
            digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))
    return f"{len(listed)}:{digest.hexdigest()}"


def _listed(labels: Any) -> NDArray[Any] | None:
    """Labels as a vector; None for what is none, or holds nothing."""
    if isinstance(labels, str | bytes | bytearray | Mapping) or not isinstance(labels, Sized):
        return None
    try:
        given = _unwrapped(labels)
        array = given if isinstance(given, np.ndarray) else np.asarray(list(given))
    except Exception:  # rows of unequal length; what it says may quote them
        return None
    return array if array.ndim == 1 and array.size else None


def as_labels(given: Any) -> NDArray[Any] | None:
    """Labels, numbers or strings, in the outer shape of what was given; what is masked is None.

    Returns:
        An array; of objects unless all entries of a list are numbers, or all strings. None for
        what has no shape.

    Example:
        >>> as_labels(["cat", "dog"]).dtype.kind, as_labels([0, True]).tolist()
        ('U', [0.0, 1.0])
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return _labels(_unwrapped(given))
        except Exception:  # its text may quote the data
            return None


def _labels(given: Any) -> NDArray[Any] | None:
    if isinstance(given, np.ma.MaskedArray):
        labels = np.array(given.data, dtype=object)
        labels[np.ma.getmaskarray(given)] = None
        return labels
    if isinstance(given, np.ndarray):
        return given
    if not isinstance(given, Sized) or isinstance(given, str | bytes | bytearray | Mapping):
        return None
    entries = [given[i] for i in range(len(given))]  # type: ignore[index]
    for kinds, dtype in (((str, np.str_), str), ((int, float, np.number, np.bool_), float)):
        if entries and all(isinstance(entry, kinds) for entry in entries):
            return np.array(entries, dtype=dtype)
    if entries and all(isinstance(entry, list | tuple | np.ndarray) for entry in entries):
        several = np.array(entries, dtype=object)
        return several if several.ndim > 1 else None  # rows of unequal length are no labels
    labels = np.empty(len(entries), dtype=object)
    for i, entry in enumerate(entries):
        labels[i] = entry
    return labels


def _unwrapped(returned: Any) -> Any:
    """Tensors, series and numpy's scalars as an array; everything else as it is."""
    try:
        if hasattr(returned, "detach"):
            return _detached(returned)
        if hasattr(type(returned), "__array__") or isinstance(returned, memoryview):
            return np.asanyarray(returned)  # keeps the mask of a masked array
    except Exception:  # what it says may quote data; a record may be the cause
        pass
    return returned


def _detached(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no bfloat16
        return tensor.double().numpy()


def _converted(returned: Any) -> Array | None:
    """Floats in the outer shape of what was returned; None for a collection without an order."""
    if isinstance(returned, np.ndarray):
        return _of_array(returned)
    if isinstance(returned, str | bytes | bytearray) or not isinstance(returned, Sized):
        return np.array(_number(returned))
    if isinstance(returned, Mapping) or not hasattr(type(returned), "__getitem__"):
        return None
    return _of_sequence(returned, len(returned))


def _of_sequence(entries: Any, n: int) -> Array:
    """Entry by entry: numpy would let one odd record decide the type of all."""
    numbers: list[float] = []
    try:
        numbers.extend(map(_number, islice(entries, n)))
    except Exception:  # a sequence that stops at some record; the others count
        pass
    return np.array(numbers + [math.nan] * (n - len(numbers)))


def _of_array(array: NDArray[Any]) -> Array:
    data, kind = np.asarray(np.ma.getdata(array)), array.dtype.kind
    if kind in "biuf":
        numbers = np.array(data, dtype=np.float64)
    elif kind == "c":
        numbers = np.where(data.imag == 0, data.real, math.nan).astype(np.float64)
    elif kind in "OSTU":
        listed = data.ravel().tolist()
        numbers = _of_sequence(listed, len(listed)).reshape(data.shape)
    else:  # dates and structures
        return np.full(data.shape, math.nan)
    if isinstance(array, np.ma.MaskedArray):  # what is masked was not scored
        numbers[np.ma.getmaskarray(array)] = math.nan
    return numbers


def _number(entry: Any) -> float:
    """One record's value; NaN if it is no real number, whatever its own code does."""
    if type(entry) is float:
        return entry
    try:
        if isinstance(entry, complex | np.complexfloating):
            return float(entry.real) if entry.imag == 0 else math.nan
        if isinstance(entry, np.datetime64 | np.timedelta64):
            return math.nan
        return float(entry)
    except KeyboardInterrupt:
        raise
    except BaseException:  # what it says may quote data
        return math.nan
