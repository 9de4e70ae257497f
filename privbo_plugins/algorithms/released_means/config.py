"""Settings of a run that releases one noisy mean a trial, checked once and stored with it."""

from __future__ import annotations

import math
from typing import ClassVar, Self

from privbo_plugins.algorithms.values import LossBound, value_range
from privbo_plugins.privacy.mechanisms import check_share
from privbo_plugins.privacy.settings import EpsilonSettings
from privbo_plugins.settings import (
    Count,
    evolve,
    setting,
    settings,
)

_ENDLESS = 10**9


@settings
class MeansConfig(EpsilonSettings):
    """Settings of one run; everything here is public.

    {settings}

    Raises:
        ValueError: For every value outside its range.
    """

    algorithm: ClassVar[str] = "released-means"
    trials_given: ClassVar[bool] = True

    n_trials: Count = setting(
        "How many trials are released, N >= 1; each gets mu / sqrt(N). The run ends with them."
    )
    loss_bound: LossBound = setting(
        "Values are clipped to [0, loss_bound], or (low, high), before they are averaged.",
        default=1.0,
    )

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_share(self.mu / math.sqrt(self.n_trials))

    @property
    def value_range(self) -> tuple[float, float]:
        """(low, high) that values are clipped to before they are averaged."""
        return value_range(self.loss_bound)

    def with_trials(self, n_trials: int | None) -> Self:
        """The same settings with another number of trials; None leaves it as it is."""
        return self if n_trials is None else evolve(self, n_trials=n_trials)

    def plain(self) -> Self:
        """Settings of an unprotected run: no noise, no clipping, no end."""
        return evolve(self, mu=math.inf, epsilon=None, delta=None, n_trials=_ENDLESS)
