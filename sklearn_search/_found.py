"""What a backend hands back: releases, and what was made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.privacy.guarantee import Guarantee
from sklearn_search._space import Parameters


@dataclass(frozen=True)
class Trial:
    """One trial's public values, as a host stores them.

    Attributes:
        values: By parameter.
        loss: What its row shows: an estimate from all releases, or the release itself.
        release: The noisy draw, NaN where the trial has none of its own.
    """

    values: Mapping[str, Any]
    loss: float
    release: float


@dataclass(frozen=True)
class Found:
    """Everything that a search shows.

    Attributes:
        values: The recommended ones, by parameter, as a host stores them.
        guarantee: What may be claimed.
        trials: In order.
        shown: What else the fitted search has, by attribute.
    """

    values: Mapping[str, Any]
    guarantee: Guarantee
    trials: Sequence[Trial]
    shown: Mapping[str, Any]


def table_of(trials: Sequence[Trial], parameters: Parameters) -> dict[str, Any]:
    """Columns for ``pandas.DataFrame``: releases, and the parameters that they are of."""
    params = [parameters.decoded(trial.values) for trial in trials]
    columns: dict[str, Any] = {"params": params}
    for name in parameters.dimensions:
        columns[f"param_{name}"] = _objects([given.get(name) for given in params])
    columns["loss"] = np.array([trial.loss for trial in trials], dtype=float)
    columns["release"] = np.array([trial.release for trial in trials], dtype=float)
    return columns


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """One entry a value, also where they are sequences."""
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column
