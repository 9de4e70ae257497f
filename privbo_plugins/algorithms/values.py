"""Released values of trials: what settings and plans say of them, and the query that releases one.

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

import abc
import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import ATTEMPTS, CentralAlgorithm, NoisyPlan, Query
from privbo_plugins.privacy.figures import not_below
from privbo_plugins.privacy.mechanisms import mean_of_clipped_values
from privbo_plugins.privacy.settings import EpsilonSettings
from privbo_plugins.settings import Rule, is_range, plain, setting, settings

Array = NDArray[np.float64]

SMALLEST = 1e-100
"""Bounds below it would underflow inside the mechanisms."""

LARGEST = 1e150
"""Bounds beyond it would overflow there, in sums over records or squares, as the data decide."""


SURE = 1.64
"""Standard deviations above zero at which the incumbent is left: once in twenty without a gain,
and the end of a run is seldom worse."""


def value_range(loss_bound: Any) -> tuple[float, float]:
    """(low, high) that values are clipped to before they are released.

    Raises:
        ValueError: If the bound is no positive number or no range, or beyond :data:`LARGEST`.

    Example:
        >>> value_range(2.0), value_range((-1, 1))
        ((0.0, 2.0), (-1.0, 1.0))
    """
    pair = loss_bound if isinstance(loss_bound, tuple | list) else (0.0, loss_bound)
    if any(isinstance(end, int | float) and LARGEST < abs(end) < math.inf for end in pair):
        raise ValueError(
            f"loss_bound may not go beyond {LARGEST:g}, got {loss_bound!r}: it would depend on "
            "the data whether their sum is a number. Measure losses in another unit."
        )
    if not (is_range(pair) and pair[1] - pair[0] >= SMALLEST):
        raise ValueError(
            f"loss_bound must be a positive number or (low, high) with low < high, "
            f"got {loss_bound!r}."
        )
    return float(pair[0]), float(pair[1])


LossBound = Annotated[
    float | tuple[float, float], lambda _settings, _field, bound: value_range(bound)
]
"""Values lie in [0, loss_bound], or in (low, high); as a setting it is checked."""


def _is_plain(given: Any) -> bool:
    """Checks whether values by name are a dictionary that JSON can hold."""
    if not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        return False
    try:
        json.dumps(dict(given), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


Incumbent = Annotated[
    Mapping[str, Any],
    Rule("a dictionary of names to values, which JSON can hold,", _is_plain),
]


@settings
class LossSettings(EpsilonSettings):
    """Settings that all algorithms on per-record losses have."""

    incumbent: Incumbent | None = setting(
        "Public parameters that you use today, by name: evaluated first, and recommended unless "
        "the releases say that another point is better. Those that are not named lie in the "
        "middle, or are the first choice. None for the first point that you enqueue, if any.",
        default=None,
        converter=lambda given: (
            {name: plain(value) for name, value in given.items()}
            if isinstance(given, Mapping)
            else given
        ),
    )


class LossPlan(NoisyPlan):
    """Plan of a run on per-record losses, a dataclass with these fields."""

    n_trials: Any
    training_mu: float | None

    @property
    def training_total(self) -> float:
        """Cost of the planned trainings for the training records, if none is tried again."""
        return (self.training_mu or 0.0) * math.sqrt(self.n_trials)

    @property
    def training_most(self) -> float:
        """Most that trainings can cost the training records, failed attempts included."""
        return (self.training_mu or 0.0) * math.sqrt(ATTEMPTS * self.n_trials)

    @abc.abstractmethod
    def _lines(self) -> list[str]:
        """Describes releases and their noise."""

    def __str__(self) -> str:
        lines = self._lines()
        if self.training_mu is not None:
            lines.append(
                f"  {self.n_trials} trainings declared {not_below(self.training_mu, 4)}-GDP each "
                f"compose to {not_below(self.training_total, 4)}-GDP for the training records;\n"
                "  every further attempt of a trial adds one; after "
                f"{ATTEMPTS * self.n_trials} ({not_below(self.training_most, 4)}-GDP) the run ends"
            )
        return "\n".join([*lines, *self._last_lines()])


def value_query(algorithm: CentralAlgorithm, trial: str, meta: Mapping[str, Any]) -> Query:
    """Makes the query that releases the mean of one trial's clipped losses.

    A run with mu = infinity promises nothing and clips nothing. What is not finite counts as the
    worse bound.

    Args:
        algorithm: With a plan that has a share of mu for it.
        trial: Whose losses are read.
        meta: Public facts stored with the release.
    """
    low, high = algorithm.config.value_range
    plan, maximize = algorithm.plan, algorithm.maximize
    worst, private = low if maximize else high, not math.isinf(plan.mu)
    clipped = {"low": low, "high": high, "worst": worst}
    return Query(
        kind="value",
        key=trial,
        statistic=mean_of_clipped_values if private else mean_of_values,
        settings=clipped if private else {"worst": worst, "maximize": maximize},
        sensitivity=(high - low) / plan.n_records,
        mu=plan.mu_value,
        trials=(trial,),
        offset=low if private else 0.0,
        meta=meta,
    )


def mean_of_values(blocks: Iterable[Array], worst: float, *, maximize: bool) -> Array:
    """Mean where mu = infinity promises nothing and clips nothing.

    What is not finite counts as the worst there is: the worse bound, or a worse value.
    """
    y = np.concatenate([block[:, 0] for block in blocks])
    finite = np.isfinite(y)
    seen = np.append(y[finite], worst)
    return np.array([np.where(finite, y, seen.min() if maximize else seen.max()).mean()])
