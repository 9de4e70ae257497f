"""What a backend hands back: releases, and what was made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from privbo_plugins.plots import History
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.scores.score import Estimate
from privbo_plugins.spaces import Categorical, Float
from sklearn_search._space import Parameters

Scores = Mapping[str, Sequence[float]]


class Found(NamedTuple):
    """Everything that a search shows.

    Attributes:
        values: The recommended ones, by parameter, as a host stores them.
        guarantee: What may be claimed.
        trials: In order, of each its values by parameter, the loss that the host shows (an
            estimate from all releases, or the release itself), what was released of it, NaN
            if nothing was, and its scores by name, each an estimate and its standard deviation.
        shown: What else the fitted search has, by attribute.
        history: What the run has published, for reports.
        status: Where it stands.
        last: The score released last and its standard deviation, if there is one.
    """

    values: Mapping[str, Any]
    guarantee: Guarantee
    trials: Sequence[tuple[Mapping[str, Any], float, float, Scores]]
    shown: Mapping[str, Any]
    history: History
    status: Mapping[str, Any]
    last: Estimate | None = None


def table_of(
    found: Found, parameters: Parameters, *, best: float, sign: float, noise: float,
    ends: tuple[float, float],
) -> dict[str, Any]:  # fmt: skip
    """Columns for ``pandas.DataFrame``: releases, and the parameters that they are of.

    Args:
        found: What the backend hands back.
        parameters: The search space.
        best: Score of a loss of 0.
        sign: 1.0 where released values are maximised, else -1.
        noise: Standard deviation of a released value; NaN where none is planned.
        ends: To which releases are clipped that noise has pushed beyond.
    """
    params = [parameters.decoded(values) for values, *_ in found.trials]
    columns: dict[str, Any] = {"params": params}
    for name, dim in parameters.dimensions.items():
        kind = object if isinstance(dim, Categorical) else float if isinstance(dim, Float) else int
        column = columns[f"param_{name}"] = np.empty(len(params), dtype=kind)
        for place, given in enumerate(params):  # one entry a trial, also where they are sequences
            column[place] = given[name]
    shown = [(loss, release) for _, loss, release, _ in found.trials]
    loss, release = np.array(shown, float).reshape(-1, 2).T
    told = [scores for *_, scores in found.trials]
    names = list(next((scores for scores in told if scores), {}))
    if not names:
        spread = np.full(len(loss), noise)
        release = np.clip(release, *ends) if noise else release
        return columns | _scored("score", best + sign * release, spread) | {"loss": loss}
    pairs = [[scores.get(name, (np.nan, np.nan)) for name in names] for scores in told]
    means, spreads = np.array(pairs, float).transpose(2, 1, 0)
    for name, mean, spread in zip(names, means, spreads, strict=True):
        columns |= _scored(name if len(names) > 1 else "score", sign * mean, spread)
        sign = 1.0  # of the others as they are
    return columns


def _scored(name: str, mean: Any, spread: Any) -> dict[str, Any]:
    """Columns of one score, as scikit-learn names them."""
    ordered = np.where(np.isnan(mean), np.inf, -mean)
    return {
        f"mean_test_{name}": mean,
        f"std_test_{name}": spread,
        f"rank_test_{name}": np.array([1 + np.sum(ordered < own) for own in ordered], np.int32),
    }


def place_of(found: Found, parameters: Parameters) -> int | None:
    """Finds the last trial of the recommended parameters; None if it is no trial's."""
    wanted = parameters.space.encode(found.values)
    told = [parameters.space.encode(values) for values, *_ in found.trials]
    same = [place for place, x in enumerate(told) if np.allclose(x, wanted, 0, 1e-9)]
    return same[-1] if same else None
