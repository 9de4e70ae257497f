"""Settings and plan: as many releases as trials, each with the same share of the budget.

Notation:

    ======  ============================================================
    symbol  meaning
    ======  ============================================================
    n       validation records
    N       trials, each of which is released
    mu      total budget; squares add up, so each release gets mu / sqrt(N)
    C       width of the range of values
    sigma   noise of a released value, C sqrt(N) / (n mu)
    D, J    with scores: diameter of a statistic, number of statistics
    ======  ============================================================

With scores, each mean of a statistic has noise D sqrt(J) sqrt(N) / (n mu), and what that makes of
a score is known with its release (:mod:`privbo_plugins.scores.score`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from privbo_plugins.algorithms.protocols import Words
from privbo_plugins.algorithms.values import LossBound, LossPlan, LossSettings, value_range
from privbo_plugins.privacy.figures import not_below
from privbo_plugins.privacy.mechanisms import check_share, gaussian_scale
from privbo_plugins.scores.score import (
    ScoreFacts,
    check_constraints,
    checked_scores,
    n_statistics,
)
from privbo_plugins.settings import Count, Likely, Share, evolve, plain, setting, settings
from privbo_plugins.spaces import Space

_ENDLESS = 10**9

_LAST = "a score of the model that is chosen may be released last"

_DROWNING = 0.1
"""Noise of a released value, in widths of the range, from which a warning is due."""


def _plain_values(given: Any) -> Any:
    return {plain(n): plain(v) for n, v in given.items()} if isinstance(given, Mapping) else given


@settings
class MeansConfig(LossSettings):
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
    scores: Any = setting(
        'Instead of the mean of one loss: names such as ``"f1"``, or ``privbo_plugins.scores``. '
        "The objective returns ``scores.predictions(...)``; the first score is the trial's value, "
        "the others are shown beside it. All of them share one release.",
        default=None,
        converter=checked_scores,
    )
    constraints: Mapping[str, float] | None = setting(
        "Of ``scores`` by name: the least that a model must reach, or the most where smaller is "
        "better. Optuna knows of each trial what it lacks, and a trial that lacks anything is "
        "recommended only where all do.",
        default=None,
        converter=_plain_values,
    )
    feasible_with: Likely = setting(
        "Probability, in [0.5, 1), with which a score must reach its constraint, by the known "
        "noise of its release.",
        default=0.9,
    )
    final_share: Share = setting(
        "Share of the squared budget, in [0, 1), that trials leave for ``release_score``: a last "
        "release of the model that was chosen.",
        default=0.0,
    )

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_share(self.mu_value)
        check_share(self.mu_final or math.inf)
        if self.scores is not None and self.loss_bound != 1.0:
            raise ValueError("scores= have ranges of their own: leave loss_bound= out.")
        check_constraints(self.constraints, self.scores)

    @property
    def mu_value(self) -> float:
        """Spent on each trial."""
        return self.mu * math.sqrt((1.0 - self.final_share) / self.n_trials)

    @property
    def mu_final(self) -> float:
        """Spent on the last release; 0 where there is none."""
        return self.mu * math.sqrt(self.final_share) if self.final_share else 0.0

    @property
    def value_range(self) -> tuple[float, float]:
        """(low, high) that values lie in: losses before they are averaged, or the first score."""
        if self.scores is not None:
            return self.scores[0].low, self.scores[0].high
        return value_range(self.loss_bound)

    def with_trials(self, n_trials: int | None) -> Self:
        """The same settings with another number of trials; None leaves it as it is."""
        return self if n_trials is None else evolve(self, n_trials=n_trials)

    def plain(self) -> Self:
        """Settings of an unprotected run: no noise, no clipping, no end."""
        return evolve(self, mu=math.inf, epsilon=None, delta=None, n_trials=_ENDLESS)


@dataclass(frozen=True)
class MeansPlan(LossPlan):
    """Releases of a run and their cost.

    Attributes:
        n_records: n.
        n_trials: N.
        mu: Total budget.
        mu_value: Spent on each value, mu / sqrt(N).
        value_noise: Standard deviation of a released value, sigma.
        width: C.
        training_mu: Charged to the training records for each training; None if nothing is.
        mu_final: Kept for a last release.
        released: With scores, what a trial releases for them, and its noise; then C and sigma are
            those of the first one's means.
    """

    n_records: int
    n_trials: int
    mu: float
    mu_value: float
    value_noise: float
    width: float
    training_mu: float | None = None
    mu_final: float = 0.0
    released: str | None = None

    @property
    def noise_dominates(self) -> bool:
        """Tells if the noise is likely to hide all differences between trials."""
        return self.value_noise > _DROWNING * self.width

    def noise_warning(self) -> str:
        """Says how large the noise is, what follows, and what helps."""
        return (
            f"The noise of a released value is {self.value_noise / self.width:.2f} of the "
            f"range of values (n={self.n_records}, mu={not_below(self.mu, 6)}, "
            f"N={self.n_trials}): the run is private but may learn nothing. More records, a "
            "larger mu, a smaller loss_bound or fewer trials help."
        )

    def _lines(self) -> list[str]:
        of = self.released
        return [
            f"Plan of released means: {self.n_trials} trials, n={self.n_records} {self.entries}, "
            f"mu={not_below(self.mu, 6)} in total",
            f"  each trial's {'clipped mean is' if of is None else f'scores ({of}) are'} released "
            f"{'' if of else f'with noise of sd {self.value_noise:.3g} '}"
            f"(mu={not_below(self.mu_value, 3)})",
            *([f"  {_LAST} (mu={not_below(self.mu_final, 3)})"] if self.mu_final else []),
        ]


def make_plan(config: MeansConfig, space: Space, n_records: int) -> MeansPlan:  # noqa: ARG001
    """The plan for n records; the space changes nothing.

    Args:
        config: The settings.
        space: The search space.
        n_records: n >= 1.
    """
    share = config.mu_value
    scores, (low, high), released = config.scores, config.value_range, None
    if scores is not None:
        J = math.sqrt(n_statistics(scores))
        low, high = 0.0, scores[0].diameter * J
        released = _released(scores, gaussian_scale(J / n_records, share))
    return MeansPlan(
        n_records=n_records,
        n_trials=config.n_trials,
        mu=config.mu,
        mu_value=share,
        value_noise=gaussian_scale((high - low) / n_records, share),
        width=high - low,
        training_mu=config.training_mu,
        mu_final=config.mu_final,
        released=released,
    )


def _released(scores: Sequence[ScoreFacts], noise: float | None = None) -> str:
    """Names scores, the statistics that are released for them, and the noise of their means.

    Args:
        scores: Of the run.
        noise: Standard deviation over D of each; None where it is not known.
    """
    names = ", ".join(
        f"{score.name} ({score.positive} is positive)" if score.positive else score.name
        for score in scores
    )
    found = {
        score.place: score.releases
        + ("" if noise is None else f" with noise of sd {noise * score.diameter:.3g}")
        for score in scores
    }
    return f"{names}, from {'; '.join(found.values())}"


def words(config: MeansConfig, plan: MeansPlan | None) -> Words:
    """Describes the released statistics, and their noise once planned, for the guarantee."""
    parameters: dict[str, Any] = {"N": config.n_trials, "value_range": config.value_range}
    of = "clipped values"
    if config.scores is not None:
        known = None if plan is None else plan.released
        of, parameters["scores"] = "bounded vectors", known or _released(config.scores)
    if config.constraints:
        kept = ", ".join(f"{name} {wanted:g}" for name, wanted in config.constraints.items())
        parameters["constraints"] = f"{kept}, with probability {config.feasible_with:g}"
    if config.final_share:
        parameters["final_share"] = config.final_share
    if plan is not None and plan.released is None:  # which says the noise of each mean
        parameters["value_noise"] = plan.value_noise
    return Words(
        f"means of {of}, one a trial",
        parameters,
        (
            "what the objective's own wrapper makes of a release: a study's values are compared "
            "with their releases when a further trial is told and when guarantee is asked for, an "
            "experiment's rows once Ray Tune has told searcher, scheduler and earlier callbacks",
        ),
    )
