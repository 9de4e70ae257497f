"""Computes before a run how well n privatised evaluations can tell settings apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privbo_plugins.algorithms.protocols import NoisyPlan
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.reward_noise import RewardScale

_DROWNED = 0.25
"""Fraction of the range below which settings cannot be told apart: then a run is likely lost."""


@dataclass(frozen=True)
class RewardPlan(NoisyPlan):
    """Precision of a mean after a number of evaluations.

    Attributes:
        n_evaluations: Number of evaluations, one user's reward each.
        width: Width of the rewards' public range.
        sd: Largest standard deviation of one privatised reward.

    Example:
        >>> print(RewardPlan(400, width=1.0, sd=1.1))
        400 evaluations: one privatised reward has a standard deviation of up to 1.1 (the range is
        1 wide). If all of them went to one setting, its mean would be known to ±0.11; shared by
        ten settings, to ±0.34 each (95 %).
    """

    n_evaluations: int
    width: float
    sd: float

    @property
    def n_trials(self) -> int:
        """As many as evaluations."""
        return self.n_evaluations

    def known_to(self, evaluations: float) -> float:
        """Half-width of a 95 % interval for the mean of so many evaluations, in reward units."""
        return 1.96 * self.sd / math.sqrt(evaluations)

    @property
    def noise_dominates(self) -> bool:
        """Tells if a setting's mean stays unknown even if all evaluations go to it."""
        return self.known_to(self.n_evaluations) > _DROWNED * self.width

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the fields, and what the mean of one setting, or of ten, is known to."""
        all_of_them, ten = (self.known_to(self.n_evaluations / k) for k in (1, 10))
        return super().to_dict() | {"known_to": all_of_them, "known_to_of_ten": ten}

    def noise_warning(self) -> str:
        """Says how large the noise is, what follows, and what helps."""
        needed = math.ceil((1.96 * self.sd / (_DROWNED * self.width)) ** 2)
        return (
            f"{self.n_evaluations} evaluations under this mechanism tell next to nothing: "
            "even if all of them went to one setting, its mean would be known to "
            f"±{self.known_to(self.n_evaluations):.2g} only, in a range "
            f"{self.width:.3g} wide. Ask at least {needed} users, take a larger epsilon, or a "
            "narrower true range."
        )

    def __str__(self) -> str:
        one, each_of_ten = (
            self.known_to(self.n_evaluations),
            self.known_to(self.n_evaluations / 10),
        )
        said = (
            f"{self.n_evaluations} evaluations: one privatised reward has a standard deviation of "
            f"up to {self.sd:.2g} (the range is {self.width:.3g} wide). If all of them went to "
            f"one setting, its mean would be known to ±{one:.2g}; "
            f"shared by ten settings, to ±{each_of_ten:.2g} each (95 %)."
        )
        return "\n".join([said, *self._last_lines()])


def make_reward_plan(config: RewardScale | LocalMechanism, n_evaluations: int) -> RewardPlan:
    """The plan of a run.

    Args:
        config: Settings, with a range.
        n_evaluations: Number of evaluations, >= 1.

    Raises:
        ValueError: If the number is not positive, or the settings hold no range.
    """
    if not n_evaluations >= 1:
        raise ValueError(f"A plan needs at least one evaluation, got {n_evaluations}.")
    if config.low is None or config.high is None:
        raise ValueError("A plan needs the rewards' range: give bound= or value_range=.")
    width = config.high - config.low
    variance = (width / 2) ** 2 if config.noise is None else config.noise.total_variance
    return RewardPlan(int(n_evaluations), width, math.sqrt(variance))
