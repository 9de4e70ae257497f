"""What a curator is given, checked: no text quotes an entry of the table or an outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins.algorithms.po_gp_ucb.gaussian import WIDEST, Scaling
from privbo_plugins.convert import as_floats, as_rows
from privbo_plugins.privacy.local import LocalMechanism

Array = NDArray[np.float64]

Outcomes = ArrayLike | Callable[[int], float]
"""Outcomes by row, or a function of the row's number."""


def checked_rows(X: ArrayLike, columns: Sequence[str] | None, bounds: ArrayLike | None) -> Array:
    """Convert a table (n, d) to numbers; entries that are none are missing.

    Args:
        X: An array, whose shape is public, or a list of rows.
        columns: Names of the columns; they or the bounds say how wide the rows of a list are.
        bounds: One (low, high) a column.

    Raises:
        ValueError: If it is no table.
    """
    ends = np.shape([] if bounds is None else bounds)
    named = 1 if ends == (2,) else ends[0]
    rows = as_rows(X, named if columns is None else len(columns))
    if rows is None or rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < 1:
        raise ValueError(
            "X must be a table of numbers, shape (n, d), with at least one row and one column: an "
            "array, or a list of rows beside bounds= or columns=, which say how wide it is. "
            "Encode texts and categories as numbers first."
        )
    return rows


def checked_bound(R: float | None, scaling: Scaling | None, nu: float | None) -> float:
    """The norm bound that rows are clipped to, from public knowledge only.

    Raises:
        ValueError: If there is nothing to take it from, or it is too wide for nu.
    """
    if R is not None:
        bound = float(R)
    elif scaling is not None:
        bound = scaling.radius
    elif nu is not None:
        bound = WIDEST * nu
    else:
        raise ValueError(
            "Give bounds= (public ranges of the columns), norm_bound= or neighbor_distance=: "
            "without any of them no finite noise hides a row."
        )
    widest = bound if scaling is None else max(bound, scaling.radius)
    if nu is not None and widest > WIDEST * nu:
        raise ValueError(
            "neighbor_distance must be at least 2^-20 times the largest norm of a row "
            f"(norm_bound, or sqrt(d) / 2 with bounds), got {nu} and {widest}: rounding errors "
            "would be too large for the guarantee."
        )
    return bound


def checked_columns(names: Sequence[str] | None, d: int) -> tuple[str, ...] | None:
    """One name a column.

    Raises:
        ValueError: If there are more or fewer.
    """
    if names is None:
        return None
    listed = tuple(str(name) for name in names)
    if len(listed) != d:
        raise ValueError(f"columns must name {d} columns, got {len(listed)} names.")
    return listed


def checked_outcomes(outcomes: Outcomes | None, n: int) -> Array | Callable[[int], float] | None:
    """Outcomes by row, shape (n,), or a function.

    Raises:
        ValueError: If there is not one number a row.
    """
    if outcomes is None or callable(outcomes):
        return outcomes
    y = as_floats(outcomes)
    if y is None or y.shape != (n,):
        raise ValueError(f"outcomes must be one number for each of the {n} rows, or a function.")
    return y


def checked_row(row: Any, n: int) -> int:
    """A row's number.

    Raises:
        ValueError: If there is no such row.
    """
    whole = isinstance(row, int | np.integer) and not isinstance(row, bool)
    if not (whole and 0 <= row < n):
        raise ValueError(f"row must be an integer from 0 to {n - 1}, got {row!r}.")
    return int(row)


def worst_outcome(mechanism: LocalMechanism | None, maximize: bool) -> float:
    """What NaN and infinity count as."""
    if mechanism is None:
        return math.nan
    return mechanism.low if maximize else mechanism.high
