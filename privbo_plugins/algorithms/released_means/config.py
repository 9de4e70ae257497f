"""Settings of a run that releases one noisy mean a trial, checked once and stored with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar, Self

from privbo_plugins.algorithms.values import (
    LossBound,
    as_json,
    check_count,
    check_mu,
    from_json,
    value_range,
)
from privbo_plugins.privacy.mechanisms import check_share
from privbo_plugins.privacy.settings import EpsilonSettings
from privbo_plugins.settings import setting, settings

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

    mu: float = setting(
        "Total Gaussian DP parameter of all releases, > 0; ``math.inf`` for no privacy.",
        default=None,
        kw_only=False,
    )
    n_trials: int = setting(
        "How many trials are released, N >= 1; each gets mu / sqrt(N). The run ends with them."
    )
    loss_bound: LossBound = setting(
        "Values are clipped to [0, loss_bound], or (low, high), before they are averaged.",
        default=1.0,
    )
    training_mu: float | None = setting(
        "Gaussian DP parameter that one training costs the training records; every attempt "
        "of a trial pays.",
        default=None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mu("mu", self.mu, allow_inf=True)
        check_count("n_trials", self.n_trials, 1, optional=False)
        check_share(self.mu / math.sqrt(self.n_trials))
        value_range(self.loss_bound)
        if self.training_mu is not None:
            check_mu("training_mu", self.training_mu)

    @property
    def value_range(self) -> tuple[float, float]:
        """(low, high) that values are clipped to before they are averaged."""
        return value_range(self.loss_bound)

    def with_trials(self, n_trials: int | None) -> Self:
        """The same settings with another number of trials; None leaves it as it is."""
        return self if n_trials is None else replace(self, n_trials=n_trials)

    def plain(self) -> Self:
        """Settings of an unprotected run: no noise, no clipping, no end."""
        return replace(self, mu=math.inf, epsilon=None, delta=None, n_trials=_ENDLESS)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        return as_json(asdict(self))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Settings from :meth:`to_dict`; what an older version did not know has its default."""
        known = {f.name for f in fields(cls)}
        return cls(**from_json({k: v for k, v in stored.items() if k in known}))
