"""Types of records: what trains is typed by itself, and what is scored in the same types.

A type that is found over all records is found by each of them: one text in a column of numbers
makes all of it text. So the training records alone decide what a column holds, or what the user
declares (a pandas category, the type of an array of numbers), and an entry of a validation record
that does not fit is missing. The index of a pandas table reaches no model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.convert import as_floats, as_labels, as_rows, unmasked

NUMBERS = "biuf"
"""Kinds of types of numbers."""


def of_training(records: Any, *, labels: bool = False) -> Any:
    """Type training records by themselves.

    Args:
        records: A table, a series, an array, or anything else, which stays as it is.
        labels: Whether they are classes: whole numbers stay whole, and texts that stand among
            objects stay texts. An array of texts may be one of numbers but for one record.
    """
    if hasattr(records, "iloc"):
        from sklearn_search._columns import own_columns

        return own_columns(records)
    if isinstance(records, list) and _width(records) and not are_numbers(_cells(records)):
        return _cells(records)
    if not isinstance(records, np.ndarray) or not records.size:
        return records
    kind = records.dtype.kind  # a mask makes objects of texts, too
    records = unmasked(_decoded(records) if labels else records)
    texts = labels and kind == "O" and isinstance(records.ravel()[0], str | bytes)
    if records.dtype.kind in "OSUc" and not texts and are_numbers(records):
        records = as_floats(records)
    if labels and records.dtype.kind == "f" and are_whole(records):
        return records.astype(np.int64)
    if records.dtype.kind in "SU":
        width = np.char.str_len(records).max(initial=1)
        return records.astype(f"{records.dtype.kind}{width}")
    return records


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
    records = unmasked(_decoded(records) if labels else records)
    arrays = [given.to_numpy() if hasattr(given, "iloc") else given for given in (known, records)]
    if not all(isinstance(given, np.ndarray | list | tuple) for given in arrays):
        return records
    cells = arrays[0] if isinstance(arrays[0], np.ndarray) else _cells(arrays[0])
    texts = labels and isinstance(next(iter(cells.flat), None), str | bytes)
    found = _fitting_cells(cells, arrays[1], missing, texts or not are_numbers(cells))
    return records if found is None else found


def _decoded(labels: Any) -> Any:
    """Texts in place of bytes: an array of bytes is one of texts where one record has a text."""
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "S":
        decoded = np.char.decode(np.ma.getdata(labels), "utf8", "backslashreplace")
        if not isinstance(labels, np.ma.MaskedArray):
            return decoded
        return np.ma.array(decoded, mask=labels.mask)
    return labels


def _fitting_cells(known: NDArray[Any], records: Any, missing: Any, texts_too: bool) -> Any:
    if not texts_too:
        numbers = as_rows(records, known.shape[1]) if known.ndim == 2 else as_floats(records)
        return None if numbers is None else finite(numbers, known.dtype)
    if known.ndim == 2:
        rows = as_rows(records, known.shape[1], labels=True)
        none = np.array(None, dtype=object)
        return None if rows is None else np.where(rows == none, math.nan, rows)
    texts = as_labels(records) if isinstance(known.ravel()[0], str | bytes) else None
    if texts is None:
        return None
    kept = [text if isinstance(text, str | bytes) else missing for text in texts.tolist()]
    return np.array(kept, dtype=object)


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
    return all(str(cell) in ("nan", "None", "<NA>") for cell in cells[np.isnan(numbers)])


def are_whole(numbers: NDArray[Any]) -> bool:
    """Checks whether all are whole numbers that a float can tell apart."""
    return bool(np.all((np.abs(numbers) < 2.0**53) & (numbers == np.trunc(numbers))))


def finite(numbers: NDArray[Any], known: Any) -> NDArray[Any]:
    """Numbers as precise as those that train; what is too large for them is missing."""
    with np.errstate(all="ignore"):
        numbers = numbers.astype(np.float32 if known == np.float32 else np.float64)
    return np.where(np.isfinite(numbers), numbers, numbers.dtype.type(math.nan))
