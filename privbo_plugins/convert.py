"""The one door for what comes in per record: losses, targets, labels, predictions, rows, ids.

It converts entry by entry: what one record holds decides nothing about the entry of another one,
a type, a shape or a refusal. An entry that does not fit is missing. Public, and so allowed to
decide, are the number of records, the type and shape of an array, and what the caller declares
(how wide a row is). Of a list nothing but its length is public.

Converting runs the code of the objects, whose errors and warnings may quote data: nothing of them
gets out, and no message here repeats a value. It needs numpy alone, because trials convert in
processes of their own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import NotARewardError, NotLossesError
from privbo_plugins.sanitize import forgiven, unheard

Array = NDArray[np.float64]
T = TypeVar("T")


def as_losses(values: Any) -> Array:
    """One value a record as a float vector, shape (n,).

    Entries that are no real number become NaN. Non-finite values pass: the mechanism turns them
    into a constant.

    Raises:
        NotLossesError: If it is not a non-empty vector, for any entries; a ValueError
            whose message never quotes a value.

    Example:
        >>> as_losses([0.25, "n/a", None, 0.5 + 1j, [0.5], "0.5"]).tolist()
        [0.25, nan, nan, nan, nan, 0.5]
    """
    several = issubclass(type(values), tuple)  # return losses, accuracy
    array = None if several else as_floats(values)
    if array is None or array.ndim == 0:
        raise NotLossesError(
            "A private objective must return one value per validation record, shape "
            "(n_records,); these must be real numbers in an array, list, series or tensor. It "
            "returned something else, a tuple of several results, or a single number. Return the "
            "vector before averaging it, and nothing beside it."
        )
    if array.ndim != 1 or array.size == 0:
        raise NotLossesError(
            "Per-record losses must be a non-empty vector of shape (n_records,), got an array of "
            f"{array.ndim} dimension(s){' without entries' if array.size == 0 else ''}. Return "
            "one number for each record: losses.ravel() where they are a column."
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
    if type(returned) is np.ndarray and returned.dtype == np.float64:
        return np.array(returned)
    return _silently(lambda: _converted(_unwrapped(returned)))


def as_rows(given: Any, width: int, *, labels: bool = False) -> NDArray[Any] | None:
    """Floats of shape (n, width) of a list of rows; what is no row of that width is all NaN.

    An array keeps its own shape instead, which its type makes public. A vector of objects counts
    as a list.

    Args:
        given: A list of rows, or an array.
        width: Entries of a row; public, and never taken from the rows.
        labels: Whether entries are labels, as of :func:`as_labels`; what is none is None then.

    Returns:
        None for what has no shape.

    Example:
        >>> as_rows([[1, 2], [3], "n/a", [4, None]], 2).tolist()
        [[1.0, 2.0], [nan, nan], [nan, nan], [4.0, nan]]
    """
    return _silently(lambda: _rows(_unwrapped(given), width, _labels if labels else _converted))


def _rows(
    rows: Any, width: int, convert: Callable[[Any], NDArray[Any] | None]
) -> NDArray[Any] | None:
    if isinstance(rows, np.ndarray) and not (rows.ndim == 1 and rows.dtype == object):
        return convert(rows)
    if not _is_sequence(rows):
        return None
    found = np.full((len(rows), width), None if convert is _labels else math.nan)
    for place, row in enumerate(_entries(rows, len(rows))):
        found[place] = _safely(lambda row: _row(row, width, convert), row, found[place])
    return found


class BlockScores(np.ndarray):
    """A vector with the score of each block, shape (K,), that knows how records were dealt.

    What is computed of it, sorted or cut out of it knows nothing: there a record may touch several
    entries, as where vectors of two deals are added.

    Attributes:
        dealt: Number of records, of blocks, seed, and 1 where whole persons are dealt; empty for
            what was made of scores.
    """

    dealt: tuple[int, ...] = ()

    @classmethod
    def of(cls, scores: Array, dealt: tuple[int, ...]) -> BlockScores:
        """Makes one of the scores of all blocks."""
        made = scores.view(cls)
        made.dealt, made.flags.writeable = dealt, False
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockScores.of, (np.asarray(self), self.dealt)

    def __array_function__(self, *call: Any) -> Any:
        """Lets what NumPy's functions make of scores be such that no run takes."""
        made = super().__array_function__(*call)
        return made.view(BlockScores) if type(made) is np.ndarray else made


def deal_of(index: str | None) -> list[int] | None:
    """Reads how records were dealt into the blocks of a vector; None of other vectors.

    Args:
        index: As of :func:`index_of`.
    """
    n, _, dealt = (index or "").partition(_BLOCKS)
    return [int(number) for number in dealt.split(",") if number] if n.isdigit() else None


_BLOCKS = ":blocks:"


def as_records(given: Any) -> list[Any]:
    """The entries of all records; none of what has no entries.

    An array of numbers or texts has a type, which is public; what is in a list, or an array of
    objects, has one by itself.

    Example:
        >>> as_records(np.array([0.5, 1.0]))[1].dtype, as_records(["a", 1])[1]
        (dtype('float64'), 1)
    """
    return _silently(lambda: _records(unmasked(_unwrapped(given)))) or []


def _records(array: Any) -> list[Any]:
    if isinstance(array, np.ndarray) and array.ndim:
        typed = array.dtype.kind in "biufSU"
        rows = list(array if typed else array.tolist())
        return [row.copy() for row in rows] if typed else rows  # a view would hold all records
    return _entries(array, len(array)) if _is_vector(array) else []


def index_of(returned: Any) -> str | None:
    """Fingerprint of the labels that a pandas Series gives its entries, or blocks, in their order.

    Returns:
        As of :func:`fingerprint`; None for what has no index of its own.

    Example:
        >>> index_of([0.5, 0.25]) is None
        True
    """
    if type(returned) is BlockScores and returned.ndim:
        return f"{len(returned)}{_BLOCKS}{','.join(map(str, returned.dealt))}"
    with unheard, forgiven:  # its text may quote labels
        labels = getattr(returned, "index", None)
        known = hasattr(type(labels), "to_numpy")  # a list's index is a method
        return fingerprint(labels) if known else None
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
    given = _unwrapped(labels)
    n = _silently(lambda: _is_vector(given) and len(given))
    if not n:
        raise ValueError(
            "record_ids must list one label per validation record, in the order of the losses: "
            "strings or numbers, such as the keys of a table."
        )
    digest = hashlib.sha256(np.array(n).tobytes())
    for entry in given.tolist() if isinstance(given, np.ndarray) else _entries(given, n):
        text = _safely(str, entry, "")
        digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))
    return f"{n}:{digest.hexdigest()}"


def as_labels(given: Any) -> NDArray[Any] | None:
    """Labels, numbers or texts, in the outer shape of what was given; of a list, one an entry.

    Returns:
        An array of numbers or texts as it is. Otherwise an array of objects: Python's own
        numbers, texts and bytes, and None for a label that is none of these. None for what has
        no shape.

    Example:
        >>> as_labels(["cat", 1, ["dog"], None]).tolist(), as_labels(np.array([0, 1])).tolist()
        (['cat', 1, None, None], [0, 1])
    """
    return _silently(lambda: _labels(_unwrapped(given)))


def as_said(label: Any) -> Any:
    """Reads a label of :func:`as_labels` as what it says, as a number or as NumPy writes it.

    One odd label makes texts of all labels in an array. So a number, and the text that NumPy
    writes of it, are one label, and so are a text and its bytes; None is missing.

    Example:
        >>> [as_said(label) for label in np.array([0, 1.5, True, "01"]).tolist()]
        [0, 1.5, 1, '01']
    """
    text = label.decode("utf8", "backslashreplace") if isinstance(label, bytes) else label
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        number: float = _safely(kind, text, math.nan)
        if math.isfinite(number) and str(number) == text:
            return number
    return TRUTHS.get(text, text)


TRUTHS: Mapping[str, Any] = {"True": 1, "False": 0}
"""What NumPy writes of truths beside a text."""


def _silently(convert: Callable[[], T]) -> T | None:
    """Converts without a warning, which would tell that some record is odd; None if it fails."""
    with unheard, np.errstate(all="ignore"), forgiven:  # its text may quote the data
        return convert()
    return None


def _labels(given: Any) -> NDArray[Any] | None:
    given = unmasked(given)
    if isinstance(given, np.ndarray):
        if given.dtype.kind == "m":  # one span of time makes spans of all numbers
            return given.astype(np.int64)
        typed = given.dtype.kind in "biufSU"
        return given if typed else np.asarray(np.frompyfunc(_label, 1, 1)(given), dtype=object)
    if not _is_sequence(given):
        return None
    return np.array([_label(entry) for entry in _entries(given, len(given))], dtype=object)


def unmasked(given: Any) -> Any:
    """A masked array as one of objects, None under the mask; everything else as it is."""
    if not isinstance(given, np.ma.MaskedArray):
        return given
    known = np.array(given.data, dtype=object)
    known[np.ma.getmaskarray(given)] = None
    return known


def _label(entry: Any) -> Any:
    """A number, text or bytes of Python's own types, whose code tells nothing; else None."""
    return _safely(_plain, entry, None)


def _plain(entry: Any) -> Any:
    if isinstance(entry, str):
        return str.__getitem__(entry, slice(None))  # of a subclass, without its own code
    if isinstance(entry, bytes):
        return bytes.__getitem__(entry, slice(None))
    if isinstance(entry, int | np.integer | np.bool_):
        return int(entry)
    number = _number(entry)
    return number if math.isfinite(number) else None


def _unwrapped(returned: Any) -> Any:
    """Tensors, series and numpy's scalars as an array; everything else as it is.

    A type that knows missing entries gives its entries one by one: as an array of numpy's, all of
    them would have another type if one is missing.
    """
    with forgiven:  # what it says may quote data; a record may be the cause
        if hasattr(returned, "to_pylist"):  # of pyarrow
            return returned.to_pylist()
        types: Any = getattr(returned, "dtypes", getattr(returned, "dtype", None))
        kinds = list(types) if hasattr(types, "iloc") else [types]
        known = all(kind is None or isinstance(kind, np.dtype) for kind in kinds)
        if not known and hasattr(returned, "to_numpy"):
            return objects_of(returned)
        if hasattr(returned, "detach"):
            return _detached(returned)
        if hasattr(type(returned), "__array__") or isinstance(returned, memoryview):
            return np.asanyarray(returned)  # keeps the mask of a masked array
    return returned


def objects_of(given: Any) -> NDArray[Any]:
    """The entries of a pandas column, or table, of types that know missing ones, each by itself.

    Of a category pandas itself makes every number a float where one entry is missing.

    Args:
        given: A series, extension array or index, of n entries; or a table of n rows.

    Returns:
        Objects of shape (n,), of a table (n, columns); an index of several levels gives tuples.
    """
    if getattr(given, "ndim", 1) == 2:
        columns = [objects_of(given.iloc[:, k]) for k in range(given.shape[1])]
        return np.stack(columns, axis=1)
    if getattr(given, "nlevels", 1) > 1:
        levels = [objects_of(given.get_level_values(k)) for k in range(given.nlevels)]
        return np.fromiter(zip(*levels, strict=True), dtype=object, count=len(given))
    categories = getattr(given.dtype, "categories", None)
    if categories is None:
        return np.asarray(given.to_numpy(dtype=object))
    known = np.empty(len(categories) + 1, dtype=object)  # None at first
    known[:-1] = categories.to_numpy(dtype=object)
    return np.asarray(known[getattr(given, "cat", given).codes])  # -1 is the last: missing


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
    if not _is_sequence(returned):
        return None
    return np.array([_number(entry) for entry in _entries(returned, len(returned))], dtype=float)


def _is_sequence(given: Any) -> bool:
    """Checks whether it has entries in an order."""
    texts = isinstance(given, str | bytes | bytearray | Mapping)
    return isinstance(given, Sized) and hasattr(type(given), "__getitem__") and not texts


def _is_vector(given: Any) -> bool:
    """Checks whether it has entries in an order, on one axis where it is an array."""
    return given.ndim == 1 if isinstance(given, np.ndarray) else _is_sequence(given)


def _entries(given: Any, n: int) -> list[Any]:
    """Its n entries, one by one: of those that cannot be read each is None, and no other one."""
    entries: list[Any] = []
    with forgiven:  # stopped at some record; the others count
        entries.extend(islice(given, n))
    for place in range(len(entries), n):
        entries.append(_safely(given.__getitem__, place, None))
    return entries


def _row(entry: Any, width: int, convert: Callable[[Any], Any]) -> NDArray[Any]:
    """One record's row.

    Raises:
        ValueError: If it is no row of that width.
    """
    row = convert(_unwrapped(entry)) if len(entry) == width else None
    if row is None or row.shape != (width,):
        raise ValueError
    return np.asarray(row)


def _safely(convert: Callable[[Any], T], entry: Any, otherwise: T) -> T:
    """Converts one record's entry; gives ``otherwise`` if the entry's own code raises."""
    with forgiven:  # what it says may quote data
        return convert(entry)
    return otherwise


def _of_array(array: NDArray[Any]) -> Array:
    data, kind = np.asarray(np.ma.getdata(array)), array.dtype.kind
    if kind in "biuf":
        numbers = np.array(data, dtype=np.float64)
    elif kind == "c":
        numbers = np.where(data.imag == 0, data.real, math.nan).astype(np.float64)
    elif kind in "OSTU":
        numbers = np.array([_number(entry) for entry in data.ravel().tolist()], dtype=float)
        numbers = numbers.reshape(data.shape)
    else:  # dates and structures
        return np.full(data.shape, math.nan)
    if isinstance(array, np.ma.MaskedArray):  # what is masked was not scored
        numbers[np.ma.getmaskarray(array)] = math.nan
    return numbers


def _number(entry: Any) -> float:
    """One record's value; NaN if it is no real number, or its own code raises."""
    return entry if type(entry) is float else _safely(_real, entry, math.nan)


def _real(entry: Any) -> float:
    if isinstance(entry, complex | np.complexfloating):
        return float(entry.real) if entry.imag == 0 else math.nan
    return math.nan if isinstance(entry, np.datetime64 | np.timedelta64) else float(entry)


def each_alone(of: Callable[..., Any], parts: Sequence[Any], n: int) -> Any:
    """Asks a user's function about n records; NaN for those that it fails for by themselves.

    One odd record decides nothing about the others then. No warning of it is heard.

    Args:
        of: From parts of records to one row each, as an array (n, ...).
        parts: Of the records, which can be sliced; or None.
        n: How many there are.

    Returns:
        The rows; None if it fails for every record.

    Example:
        >>> each_alone(lambda x: 1.0 / np.array([float(entry) for entry in x]), [["2", "two"]], 2)
        array([0.5, nan])
    """
    with unheard, forgiven:  # what it says may quote a record
        found = of(*parts)
        if len(found) == n:
            return found
    if n < 2:
        return None
    sizes, cut = (n // 2, n - n // 2), (slice(n // 2), slice(n // 2, None))
    parts = [getattr(part, "iloc", part) for part in parts]  # by place; an index has its labels
    halves = [[None if part is None else part[own] for part in parts] for own in cut]
    rows = [each_alone(of, half, size) for half, size in zip(halves, sizes, strict=True)]
    shape = next((known.shape[1:] for known in rows if known is not None), None)
    if shape is None:
        return None
    made = zip(rows, sizes, strict=True)
    return np.concatenate([np.full((m, *shape), np.nan) if r is None else r for r, m in made])
