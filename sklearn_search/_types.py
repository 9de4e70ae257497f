"""Types of records: what trains is typed by itself, and what is scored in the same types.

A type that is found over all records is found by each of them: one text in a column of numbers
makes all of it text. So the training records alone decide what a column holds, or what the user
declares (a pandas category, numbers of single precision), and an entry of a validation record
that does not fit is missing. The index of a pandas table reaches no model.
"""

from __future__ import annotations

import math
from datetime import date, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.convert import TRUTHS, as_floats, as_labels, as_rows, as_said, unmasked
from privbo_plugins.sanitize import forgiven

NUMBERS = "biuf"
"""Kinds of types of numbers."""


def of_training(records: Any, *, labels: bool = False) -> Any:
    """Type training records by themselves.

    Args:
        records: A table, a series, an array, or anything else, which stays as it is.
        labels: Whether they are classes: whole numbers stay whole, and what is in an array is
            numbers or texts.
    """
    if hasattr(records, "iloc"):
        from sklearn_search._columns import own_columns

        return own_columns(records)
    if isinstance(records, list) and _width(records) and not are_numbers(_cells(records)):
        return _cells(records)
    if not isinstance(records, np.ndarray) or not records.size:
        return records
    records = as_objects(records)
    if records.dtype.kind == "V" or (records.dtype == np.float32 and not labels):  # declared
        return records
    numbers = _without_truths(records)
    if are_numbers(numbers):
        floats = np.asarray(as_floats(numbers))
        return floats.astype(np.int64) if labels and are_whole(floats) else floats
    if not labels:
        kinds = {type(cell) for cell in records.flat}
        if complex in kinds and str not in kinds:  # as given: an estimator says that it takes none
            return np.array([_complex(cell) for cell in records.flat]).reshape(records.shape)
        columns = records.T if records.ndim == 2 else [records]
        typed = [_own_cells(column) for column in columns]
        return np.stack(typed, axis=1) if records.ndim == 2 else typed[0]
    return _texts(records).astype(str)


def as_in_training(known: Any, records: Any, missing: Any = None, *, labels: bool = False) -> Any:
    """Convert validation records to the types of the training records.

    Args:
        known: What :func:`of_training` has made of those that train.
        records: Those that are scored; sparse tables, and tables of packages other than pandas,
            stay as they are.
        missing: What stands for a text that is none, where each record is one text.
        labels: Whether they are classes, as in :func:`of_training`.
    """
    if hasattr(known, "iloc") and hasattr(records, "iloc"):
        from sklearn_search._columns import fitting_columns

        return fitting_columns(known, records)
    arrays = [given.to_numpy() if hasattr(given, "iloc") else given for given in (known, records)]
    if not all(isinstance(given, np.ndarray | list | tuple) for given in arrays):
        return unmasked(records)
    cells = arrays[0] if isinstance(arrays[0], np.ndarray) else _cells(arrays[0])
    each = labels or cells.ndim == 1  # is a text
    texts = each and any(isinstance(cell, str | bytes) for cell in cells.flat)
    texts_too = texts or not are_numbers(cells)
    if isinstance(arrays[1], np.ndarray):
        own = as_objects(arrays[1])
        arrays[1] = _texts(own) if texts else own if texts_too else _without_truths(own)
    found = _fitting_cells(cells, arrays[1], missing, texts_too)
    return unmasked(records) if found is None else found


def as_objects(array: NDArray[Any]) -> NDArray[Any]:
    """Returns cells as objects that say the same in an array of any type, None under a mask.

    NumPy gives them a type by all of them, and times the finest unit of all.
    """
    array = unmasked(array)
    if array.dtype.kind in f"{NUMBERS}V":
        return array
    cells = array.ravel() if array.dtype.kind in "mM" else array.ravel().tolist()
    truths = bool, np.bool_  # texts, as beside a text
    told = (str(c) if type(c) in truths else _in_seconds(as_read(c)) for c in cells)
    return np.fromiter(told, dtype=object, count=len(cells)).reshape(array.shape)


def as_read(cell: Any) -> Any:
    """A text in place of bytes, and a number in place of a complex one that is real."""
    if type(cell) is bytes:
        cell = cell.decode("utf8", "backslashreplace")
    if type(cell) is str and cell.endswith("j)"):  # as NumPy writes it beside a text
        with forgiven:
            cell = complex(cell)
    if issubclass(type(cell), complex | np.complexfloating):
        cell = _complex(cell)
        return cell.real if cell.imag == 0 or np.isnan(cell) else cell
    return cell


def _complex(cell: Any) -> complex:
    with forgiven:  # what its own code says may quote it
        return complex(cell)
    return complex(math.nan)


def _in_seconds(cell: Any) -> Any:
    """A date, since 1970, or a span of time as a number; what is not a time is missing."""
    span = issubclass(type(cell), np.timedelta64 | timedelta)
    if not span and not issubclass(type(cell), np.datetime64 | date):
        return cell
    with forgiven:  # what its own code says may quote it
        time = np.timedelta64(cell, "us") if span else np.datetime64(cell, "us")
        return math.nan if np.isnat(time) else float(time.astype(np.int64)) / 1e6
    return math.nan


def _without_truths(cells: NDArray[Any]) -> NDArray[Any]:
    """Cells with numbers in place of the texts that NumPy makes of truths beside a text."""
    if cells.dtype != object:
        return cells
    return np.asarray(np.frompyfunc(_without_truth, 1, 1)(cells), dtype=object)


def _without_truth(cell: Any) -> Any:
    return TRUTHS.get(cell, cell) if type(cell) is str else cell


def _texts(cells: NDArray[Any]) -> NDArray[Any]:
    """Labels as texts, as NumPy makes them of all where one is a text; "nan" of what is none."""
    truths = np.array([type(cell) in (bool, np.bool_) for cell in cells.ravel().tolist()])
    plain = np.asarray(as_labels(cells), dtype=object).ravel()
    plain[truths] = plain[truths].astype(bool)
    told = [_written(cell) for cell in plain.tolist()]
    return np.array(told, dtype=object).reshape(cells.shape)


def _written(cell: Any) -> str:
    """A label as a text; a whole number is one, whether a missing one has made floats of all."""
    number = cell if cell in TRUTHS else as_said(cell)
    whole = isinstance(number, float) and number.is_integer()
    return "nan" if number is None else str(int(number) if whole else number)


def _fitting_cells(known: NDArray[Any], records: Any, missing: Any, texts_too: bool) -> Any:
    if not texts_too:
        numbers = as_rows(records, known.shape[1]) if known.ndim == 2 else as_floats(records)
        return None if numbers is None else finite(numbers, known.dtype)
    if known.ndim == 2:
        rows = as_rows(records, known.shape[1], labels=True)
        pairs = None if rows is None else zip(known.T, rows.T, strict=True)
        return None if pairs is None else np.stack([_fitting(*pair) for pair in pairs], axis=1)
    any_text = any(isinstance(cell, str | bytes) for cell in known)
    texts = as_labels(records) if any_text else None
    if texts is None:
        return None
    none = "nan" if missing is not None else None  # a document; a label may be called so
    kept = [
        text if isinstance(text, str | bytes) and text != none else missing
        for text in texts.tolist()
    ]
    return np.array(kept, dtype=object)


def _own_cells(column: NDArray[Any]) -> NDArray[Any]:
    """A column of an array of texts or objects: numbers, or else texts if there are any."""
    numbers = _without_truths(column)
    return np.asarray(as_floats(numbers)) if are_numbers(numbers) else _beside_texts(column)


def _beside_texts(column: NDArray[Any]) -> NDArray[Any]:
    if not any(isinstance(cell, str) for cell in column):
        return column
    texts = _texts(column)
    return np.where(texts == "nan", math.nan, texts)


def _fitting(known: NDArray[Any], column: NDArray[Any]) -> NDArray[Any]:
    texts = any(isinstance(cell, str) for cell in known)
    if not texts and are_numbers(known):
        return finite(np.asarray(as_floats(_without_truths(column))), known.dtype)
    column = _beside_texts(np.append(column.astype(object), ""))[:-1] if texts else column
    return np.where(column == np.array(None, dtype=object), math.nan, column)


def _width(rows: Any) -> int:
    """Number of cells of each row of a list; 0 if it lists something else."""
    first = rows[0] if len(rows) else None
    flat = isinstance(first, list | tuple | np.ndarray) and np.ndim(first[:1]) == 1
    return len(first) if flat and first is not None else 0


def _cells(records: Any) -> NDArray[Any]:
    """Cells of a list, shape (n, d) of a list of rows and (n,) of another one."""
    cells = as_rows(records, _width(records), labels=True) if _width(records) else None
    if cells is None:
        cells = np.empty(len(records), dtype=object)
        cells[:] = records
    return cells


def are_numbers(cells: NDArray[Any]) -> bool:
    """Tells if all cells of training records are numbers, or texts of numbers, or missing."""
    numbers = as_floats(cells)
    if cells.dtype.kind in NUMBERS or numbers is None or np.isnan(numbers).all():
        return cells.dtype.kind in NUMBERS
    return all(map(_is_missing, cells[np.isnan(numbers)]))


def _is_missing(cell: Any) -> bool:
    with forgiven:  # what its own code says may quote it
        return str(cell) in ("nan", "None", "<NA>", "NaT")
    return False


def are_whole(numbers: NDArray[Any]) -> bool:
    """Checks whether all are whole numbers that a float can tell apart."""
    return bool(np.all((np.abs(numbers) < 2.0**53) & (numbers == np.trunc(numbers))))


def finite(numbers: NDArray[Any], known: Any) -> NDArray[Any]:
    """Numbers as precise as those that train; what is too large for them is missing."""
    with np.errstate(all="ignore"):
        numbers = numbers.astype(np.float32 if known == np.float32 else np.float64)
    return np.where(np.isfinite(numbers), numbers, numbers.dtype.type(math.nan))
