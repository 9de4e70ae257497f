"""Columns of pandas tables, typed as :mod:`sklearn_search._types` says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privbo_plugins.convert import as_floats, as_labels, objects_of
from privbo_plugins.sanitize import forgiven
from sklearn_search._types import NUMBERS, are_numbers, are_whole, as_read, finite


def own_columns(records: Any) -> Any:
    """Type training records as they would be, had they been read without the others."""
    return _with_columns(records, map(_own, _columns(records)))


def fitting_columns(known: Any, records: Any) -> Any:
    """Convert validation records to the types of training records, which have these columns."""
    if known.ndim != records.ndim or not _names(known).equals(_names(records)):
        return records  # the estimator says so
    pairs = zip(_columns(known), _columns(records), strict=True)
    return _with_columns(records, (_fitting(*pair) for pair in pairs))


def _names(records: Any) -> Any:
    return records.columns if records.ndim == 2 else pd.Index([])


def _columns(records: Any) -> list[Any]:
    return (
        [records] if records.ndim == 1 else [records.iloc[:, k] for k in range(records.shape[1])]
    )


def _with_columns(records: Any, columns: Iterable[Any]) -> Any:
    """A copy with other columns, and rows that are numbered: an index would have a type, too."""
    table = records.to_frame() if records.ndim == 1 else records.copy(deep=False)
    table.index = range(len(table))
    for place, column in enumerate(list(columns)):
        table.isetitem(place, column)
    return table.iloc[:, 0].rename(records.name) if records.ndim == 1 else table


def _own(column: Any) -> Any:
    if not hasattr(column, "cat"):
        return _retyped(column, texts=True).array
    column = column.cat.remove_unused_categories()
    told = [_told(name) for name in column.cat.categories.tolist()]
    names = _retyped(pd.Series(told), texts=False).tolist()
    kept, ordered = list(dict.fromkeys(names)), column.cat.ordered  # large ones may be one float
    place_of = {name: place for place, name in enumerate(kept if ordered else _sorted(kept))}
    codes = [place_of[names[code]] if code >= 0 else -1 for code in column.cat.codes]
    return pd.Categorical.from_codes(codes, list(place_of), ordered=ordered)


def _sorted(names: list[Any]) -> list[Any]:
    """Categories in their order; those of several kinds by kind, numbers first."""
    with suppress(TypeError):
        return sorted(names)
    kinds = ("" if isinstance(name, Real) else type(name).__name__ for name in names)
    pairs = zip(kinds, names, strict=True)
    return [name for _, name in sorted(pairs, key=lambda p: (p[0], str(p[1]) if p[0] else p[1]))]


def _retyped(column: Any, *, texts: bool) -> Any:
    """A column in the type of its entries; with texts, those of numbers are read as such.

    A type of pandas' own is one that a file with another entry has not, and so are whole numbers
    that are large, truths, and how fine times are.
    """
    if isinstance(column.dtype, pd.SparseDtype):
        known = column.dtype.subtype.kind in NUMBERS
        column = column if known else _retyped(pd.Series(np.asarray(column)), texts=texts)
        numbers = known or column.dtype.kind in NUMBERS
        return column.astype(pd.SparseDtype(np.float64, 0.0)) if numbers else column
    column = _plain(column)
    column = _in_one_unit((_truths(column) if texts else column).infer_objects())
    if column.isna().all():  # only records that are scored could say of what type it is
        return pd.Series(np.full(len(column), math.nan))
    cells = np.asarray(column, dtype=object)
    read = texts or not any(isinstance(cell, str) for cell in cells)
    if column.dtype.kind in "Oc" and read and are_numbers(cells):
        column = pd.Series(_read(column))
    own = isinstance(column.dtype, np.dtype) and column.dtype != np.float32
    if not own or column.dtype.kind not in "iuf":
        return column
    return column.astype(np.int64 if are_whole(column.to_numpy()) else np.float64)


_TRUTHS = {text: text.lower() == "true" for text in "True TRUE true False FALSE false".split()}
"""As pandas reads a file's column in which there is nothing else."""


def _truths(column: Any, *, alone: bool = True) -> Any:
    """Truths in place of their texts; ``alone`` where all cells are such, or missing."""
    if column.dtype.kind not in "OT":
        return column
    cells = np.asarray(column, dtype=object)
    plain = np.asarray(as_labels(cells)).tolist()
    known = [type(cell) is str and cell in _TRUTHS for cell in plain]
    if alone and not all(yes or cell is None for cell, yes in zip(plain, known, strict=True)):
        return column
    cells = cells.copy()
    cells[known] = [_TRUTHS[cell] for cell, yes in zip(plain, known, strict=True) if yes]
    return pd.Series(cells, dtype=object)


def _plain(column: Any) -> Any:
    """A column without types of pandas' own but categories; intervals are texts."""
    if not isinstance(column.dtype, np.dtype):
        cells = np.array(objects_of(column))  # which may be the column's own
        cells[pd.isna(cells)] = None
        column = pd.Series(cells, dtype=object)
    if column.dtype.kind in "Oc":
        column = pd.Series([_told(cell) for cell in np.asarray(column)], dtype=object)
    return _in_one_unit(column)


def _told(cell: Any) -> Any:
    """A cell as read; an interval as text, and a text as one that can be encoded.

    Ends of intervals are floats: whether they are whole, all of them decide.
    """
    cell = as_read(cell)
    if type(cell) is pd.Interval:
        ends = cell.left, cell.right
        if all(isinstance(end, Real) for end in ends):
            cell = pd.Interval(*map(float, ends), closed=cell.closed)
        return str(cell)
    return cell.encode("utf-8", "backslashreplace").decode() if type(cell) is str else cell


def _in_one_unit(column: Any) -> Any:
    """Times in microseconds: how fine they are, the finest of all decides."""
    return column.dt.as_unit("us") if column.dtype.kind in "Mm" else column


def _fitting(known: Any, column: Any) -> Any:
    """A column of validation records in the type of the one that trains."""
    column = _plain(column)
    if known.dtype.kind in NUMBERS:
        return finite(_read(_truths(column, alone=False)), known.dtype)
    names = known.cat.categories.to_series() if hasattr(known, "cat") else known.dropna()
    place_of = {key: place for place, key in reversed(list(enumerate(_keys(names))))}
    if known.dtype.kind == "O" and None not in place_of:
        own = dict(zip(place_of, names.iloc[list(place_of.values())].tolist(), strict=True))
        cells = [own.get(key, _text(key, known)) for key in _keys(column)]
        return pd.Series(cells, dtype=known.dtype)
    if column.dtype == known.dtype:
        return column.array
    cells = [_cell(cell, known.dtype) for cell in np.asarray(column, dtype=object)]
    return pd.concat(cells, ignore_index=True).array


def _text(key: Any, known: Any) -> Any:
    """A text that no training record has; a category of that kind is missing."""
    return math.nan if key is None or hasattr(known, "cat") else str(key)


def _cell(cell: Any, dtype: Any) -> Any:
    with forgiven:  # what it says may quote a record
        return pd.Series([cell], dtype=dtype)
    return pd.Series([None], dtype=dtype)


def _read(column: Any) -> NDArray[np.float64]:
    """Numbers of a column; texts as pandas reads them from a file in which all are numbers."""
    if column.dtype.kind in NUMBERS:
        return np.asarray(column.to_numpy(dtype=float, na_value=math.nan))
    cells = np.asarray(column, dtype=object)
    numbers, plain = np.asarray(as_floats(cells)), np.asarray(as_labels(cells))
    texts = np.array([isinstance(cell, str) for cell in plain], dtype=bool)
    numbers[texts] = pd.to_numeric(pd.Series(plain[texts], dtype=object), errors="coerce")
    return numbers


def _keys(column: Any) -> list[Any]:
    """Returns what tells a column's entries apart: a number or a text; None of other types."""
    plain = np.asarray(as_labels(np.asarray(column, dtype=object))).tolist()
    numbers = zip(_read(column).tolist(), plain, strict=True)
    return [number if math.isfinite(number) else cell for number, cell in numbers]
