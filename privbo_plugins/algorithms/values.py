"""Released values of trials: what settings say of them, and the query that releases one.

Notation:

    ======  ===========================================================  ========
    symbol  meaning                                                      shape
    ======  ===========================================================  ========
    y       one loss (or score) a record                                 (n,)
    C       width of the range that values are clipped to                scalar
    ======  ===========================================================  ========

A released value is the mean of y clipped to the range, plus Gaussian noise of C / (n mu).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import Query
from privbo_plugins.privacy.mechanisms import SMALLEST_MU, mean_of_clipped_values

Array = NDArray[np.float64]

LossBound = float | tuple[float, float]
"""Values lie in [0, loss_bound], or in (low, high)."""

SMALLEST = 1e-100
"""Bounds below it would underflow inside the mechanisms."""

LARGEST = 1e150
"""Bounds beyond it would overflow there, in sums over records or squares, as the data decide."""


def check_positive(name: str, value: Any, *, allow_inf: bool = False) -> None:
    """That a setting is a positive number.

    Raises:
        ValueError: If it is not.
    """
    fine = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if not fine or not (allow_inf or math.isfinite(value)):
        kind = f" ({type(value).__name__})" if isinstance(value, str) else ""
        raise ValueError(f"{name} must be a positive number, got {value!r}{kind}.")


def check_mu(name: str, value: Any, *, allow_inf: bool = False) -> None:
    """That a setting is a Gaussian DP parameter that noise can keep, and its square a number.

    Raises:
        ValueError: If it is not.
    """
    check_positive(name, value, allow_inf=allow_inf)
    if math.isfinite(value) and not SMALLEST_MU <= value <= 1 / SMALLEST:
        raise ValueError(f"{name} must lie in [{SMALLEST_MU:g}, {1 / SMALLEST:g}], got {value!r}.")


def check_count(name: str, value: Any, least: int, *, optional: bool = True) -> None:
    """That a setting is a whole number, or None where that stands for a default.

    Raises:
        ValueError: If it is not.
    """
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not whole and not (optional and value is None):
        also = " or None" if optional else ""
        raise ValueError(f"{name} must be an integer >= {least}{also}, got {value!r}.")


def value_range(loss_bound: Any) -> tuple[float, float]:
    """(low, high) that values are clipped to before they are released.

    Raises:
        ValueError: If the bound is no positive number or no range, or beyond :data:`LARGEST`.

    Example:
        >>> value_range(2.0), value_range((-1, 1))
        ((0.0, 2.0), (-1.0, 1.0))
    """
    if isinstance(loss_bound, tuple | list):
        if len(loss_bound) != 2 or any(isinstance(b, str) for b in loss_bound):
            raise ValueError(f"loss_bound needs two numbers, got {loss_bound!r}.")
        _check_largest(*loss_bound)
        low, high = float(loss_bound[0]), float(loss_bound[1])
    else:
        _check_largest(loss_bound)
        check_positive("loss_bound", loss_bound)
        low, high = 0.0, float(loss_bound)
    if not (math.isfinite(high - low) and high - low >= SMALLEST):
        raise ValueError(
            f"loss_bound must be a positive number or (low, high) with low < high, "
            f"got {loss_bound!r}."
        )
    return low, high


def _check_largest(*ends: Any) -> None:
    for end in ends:
        if isinstance(end, int | float) and LARGEST < abs(end) < math.inf:
            raise ValueError(
                f"loss_bound may not go beyond {LARGEST:g}, got {end!r}: it would depend on the "
                "data whether their sum is a number. Measure losses in another unit."
            )


def as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings or a plan as JSON takes them: infinities as the string "inf"."""
    told = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    return {k: "inf" if v == math.inf else v for k, v in told.items()}


def from_json(told: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`as_json`."""
    fields = {k: math.inf if v == "inf" else v for k, v in told.items()}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def value_query(
    trial: str,
    bounds: tuple[float, float],
    *,
    n_records: int,
    mu: float,
    private: bool,
    maximize: bool,
    meta: Mapping[str, Any],
    kind: str = "value",
    key: str | None = None,
) -> Query:
    """Makes the query that releases the mean of one trial's clipped losses.

    Args:
        trial: Whose losses are read.
        bounds: The range that they are clipped to.
        n_records: n.
        mu: Gaussian DP parameter to spend on it.
        private: False for a run that promises nothing: then nothing is clipped.
        maximize: Whether values are scores; what is not finite counts as the worse bound.
        meta: Public facts stored with the release.
        kind: See :class:`~privbo_plugins.algorithms.protocols.Release`.
        key: There too; None for the trial's name.
    """
    low, high = bounds
    worst = low if maximize else high

    def statistic(blocks: Iterable[Array]) -> Array:
        if private:
            return mean_of_clipped_values(blocks, low, high, worst)
        return _mean(blocks, worst, maximize=maximize)

    return Query(
        kind=kind,
        key=trial if key is None else key,
        statistic=statistic,
        sensitivity=(high - low) / n_records,
        mu=mu,
        trials=(trial,),
        offset=low if private else 0.0,
        meta=meta,
    )


def _mean(blocks: Iterable[Array], worst: float, *, maximize: bool) -> Array:
    """Mean where mu = infinity promises nothing and clips nothing.

    What is not finite counts as the worst there is: the worse bound, or a worse value.
    """
    y = np.concatenate([block[:, 0] for block in blocks])
    finite = np.isfinite(y)
    seen = np.append(y[finite], worst)
    return np.array([np.where(finite, y, seen.min() if maximize else seen.max()).mean()])
