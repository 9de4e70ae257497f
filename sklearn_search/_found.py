"""What a backend hands back: releases, and what was made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from privbo_plugins.privacy.guarantee import Guarantee
from sklearn_search._space import Parameters


class Found(NamedTuple):
    """Everything that a search shows.

    Attributes:
        values: The recommended ones, by parameter, as a host stores them.
        guarantee: What may be claimed.
        trials: In order, of each its values by parameter, the loss that its row shows (an estimate
            from all releases, or the release itself), and its noisy draw, NaN if it has none.
        shown: What else the fitted search has, by attribute.
    """

    values: Mapping[str, Any]
    guarantee: Guarantee
    trials: Sequence[tuple[Mapping[str, Any], float, float]]
    shown: Mapping[str, Any]


def table_of(found: Found, parameters: Parameters) -> dict[str, Any]:
    """Columns for ``pandas.DataFrame``: releases, and the parameters that they are of."""
    params = [parameters.decoded(values) for values, *_ in found.trials]
    columns: dict[str, Any] = {"params": params}
    for name in parameters.dimensions:
        column = columns[f"param_{name}"] = np.empty(len(params), dtype=object)
        for place, given in enumerate(params):  # one entry a trial, also where they are sequences
            column[place] = given.get(name)
    released = np.array([shown for _, *shown in found.trials], dtype=float).reshape(-1, 2)
    return columns | {"loss": released[:, 0], "release": released[:, 1]}
