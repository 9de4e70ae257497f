"""Released means: every trial's clipped mean loss under one budget, wherever it was evaluated.

The points are the host's: any sampler or searcher chooses them from what has been released. Asked
for points itself, it is random search.

What is recommended is no trial's luck: of all evaluated points the one with the least posterior
mean of a Gaussian process over everything released
(:mod:`privbo_plugins.models.smoothing`). An incumbent is left only for a point whose lead exceeds
:data:`SURE` standard deviations of that lead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import (
    CORRELATIONS,
    FINAL,
    LACKS,
    LAST_SCORE,
    SCORES,
    START,
    START_STEP,
    CentralAlgorithm,
    Comparison,
    Proposal,
    Query,
    Release,
)
from privbo_plugins.algorithms.released_means.plan import MeansConfig, MeansPlan, make_plan, words
from privbo_plugins.algorithms.values import SURE, value_query
from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.models.smoothing import Smoother
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.scores.score import (
    Score,
    ScoreFacts,
    correlations,
    doubts,
    estimates,
    evaluated,
    joined_means,
    lacking,
    scales_of,
    statistics_of,
)
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_SHORTFALL = (
    "No trial keeps all constraints= with probability {}: the best of those that lack the least "
    "({:.2g}) is recommended. Fewer trials, more records or a larger mu make less noise."
)

_Judged = tuple[list[float], Comparison | None]


@dataclass
class MeansState:
    """Everything that has been released; public.

    Attributes:
        points: Where, one (D,) a release.
        values: What, in the same order.
        sds: With scores, the standard deviation of each value.
        lacks: The most that each lacks of a constraint; 0 where there is none.
    """

    points: list[list[float]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    sds: list[float] = field(default_factory=list)
    lacks: list[float] = field(default_factory=list)


class ReleasedMeans(CentralAlgorithm):
    """Noisy means over releases.

    Args:
        config: The settings.
        space: The search space.
        seed: Drives points that it is asked for, never noise.
        maximize: Whether per-record values are scores to maximise.
        plan: Known once the number of records is.

    Example:
        >>> from privbo_plugins.spaces import Float
        >>> config = MeansConfig(mu=1.0, n_trials=10)
        >>> ReleasedMeans(config, Space({"x": Float(0, 1)}), seed=0).finished
        False
    """

    name = "released-means"
    config: MeansConfig
    plan: MeansPlan | None
    state: MeansState
    make_plan = staticmethod(make_plan)
    words = staticmethod(words)

    def __init__(self, config: MeansConfig, space: Space, **more: Any) -> None:
        super().__init__(config, space, **more)
        self.state = MeansState()
        self._known: dict[tuple[int, float], _Judged] = {}
        self._latest: Sequence[float] = ()

    # What to evaluate next ------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True once N values have been released."""
        return len(self.state.values) >= self.config.n_trials

    @property
    def phase(self) -> tuple[str, int]:
        """Every trial's own value is released, so all of them are starts."""
        return (FINAL, 0) if self.finished else (START, START_STEP)

    @property
    def batch_capacity(self) -> int:
        """Number of evaluations that the plan has."""
        return 1 if self.finished else self.config.n_trials

    def propose(
        self,
        slot: int,
        out: Sequence[Array] = (),  # noqa: ARG002
        failed: Sequence[Array] = (),  # noqa: ARG002
    ) -> Proposal:
        """A uniform point; the recommendation once the budget is spent."""
        role, step = self.phase
        if self.finished:
            return Proposal(role, step, slot, self.recommendation())
        x = self.space.uniform(1, np.random.default_rng([self.seed, slot]))[0]
        return Proposal(role, step, slot, x)

    # What to release ------------------------------------------------------------------------

    def value_query(self, trial: str, role: str, step: int, x: Array) -> Query | None:
        """The clipped mean loss of a trial, while there is budget for one."""
        if self.finished or self.plan is None:
            return None
        meta = {"role": role, "step": step, "x": np.asarray(x).tolist()}
        if self.config.scores is not None:
            return self._query("value", trial, self.config.scores, self.config.mu_value, meta)
        return value_query(self, trial, meta)

    def final_query(self, score: ScoreFacts) -> Query:
        """Asks for one score of the model that was chosen, out of what is kept for it.

        Raises:
            ValueError: If nothing is.
        """
        if not self.config.mu_final:
            raise ValueError(
                "Nothing is kept for a last release: begin the run with final_share=0.1, say. "
                "Nothing was stored or charged."
            )
        meta = {"setup": score.setup, "name": score.name}
        return self._query(LAST_SCORE, LAST_SCORE, (score,), self.config.mu_final, meta)

    def _query(
        self, kind: str, key: str, listed: Sequence[ScoreFacts], mu: float, meta: dict[str, Any]
    ) -> Query:
        """Asks for the means of which scores are functions."""
        statistics, n = statistics_of(listed), self._plan.n_records
        J = math.sqrt(len(statistics))
        noise, feasible_with = gaussian_scale(J, mu), self.config.feasible_with
        wanted = self.config.constraints or {} if kind == "value" else {}

        def derived(released: Array) -> dict[str, Any]:
            values = evaluated(listed, released.tolist(), n, noise)
            found = estimates(listed, values)
            lacks = lacking(listed, wanted, feasible_with, found)
            return {SCORES: found, LACKS: lacks, CORRELATIONS: correlations(listed, values)}

        return Query(
            kind=kind,
            key=key,
            statistic=joined_means,
            settings={"statistics": statistics, "scales": scales_of(statistics, n)},
            sensitivity=J,
            mu=mu,
            trials=(key,),
            meta=meta,
            derived=derived,
            ahead=any(score.own_code for score in listed if isinstance(score, Score)),
        )

    def fallback_value(self, role: str, step: int) -> float:  # noqa: ARG002
        """Value of a trial beyond the budget: the mean of all released values.

        Raises:
            BudgetExceededError: With scores, of which no release says anything.
        """
        if self.config.scores is not None:
            raise BudgetExceededError(
                "The budget of this study is spent: as many trials were released as n_trials= "
                "says. Nothing was released or charged for this one."
            )
        return float(np.mean(self.state.values)) if self.state.values else 0.0

    # Learning from releases -----------------------------------------------------------------

    def observe(self, release: Release) -> None:
        """Learns one release.

        Raises:
            ValueError: If it is of another kind than "value" or the last score.
        """
        if release.kind == LAST_SCORE:
            return
        if release.kind != "value":
            raise ValueError(f"Released means knows no release of kind {release.kind!r}.")
        self.state.points.append(list(release.meta["x"]))
        self.state.sds += [sd for _, sd in release.scores.values()][:1]
        self._latest = release.values
        self.state.lacks.append(max(release.lacks.values(), default=0.0))
        self.state.values.append(release.value)  # by whose number others read

    def recommendation(self) -> Array:
        """The evaluated point with the best posterior mean, shape (D,).

        Raises:
            ValueError: If nothing has been released yet.
        """
        if not self.state.values:
            raise ValueError("There is nothing to recommend yet: nothing has been released.")
        return np.array(self._judged(len(self.state.values))[0])

    @property
    def comparison(self) -> Comparison | None:
        """Compares the best evaluated point with the incumbent; None without one, or a release."""
        return self._judged(m)[1] if (m := len(self.state.values)) else None

    def doubts(self) -> list[str]:
        """Lists what the latest release shows of scores with settings of other records."""
        listed, n = self.config.scores, self._plan.n_records
        J = math.sqrt(len(statistics_of(listed)))
        return doubts(listed, self._latest, n, gaussian_scale(J, self.config.mu_value))

    @property
    def shortfall(self) -> str:
        """Says that no trial is seen to keep all constraints."""
        least = min(self.state.lacks, default=0.0)
        return "" if least <= 0.0 else _SHORTFALL.format(self.config.feasible_with, least)

    def _judged(self, m: int) -> _Judged:
        """The recommendation after m releases, and how it compares with the incumbent.

        Of evaluated points: between them a cliff may lie that no release has seen. With
        constraints of those that keep them all, or of those that lack the least.
        """
        key = m, self._enqueued  # which says what incumbent there is
        if key not in self._known:
            sigma = np.array(self.state.sds[:m]) if self.state.sds else self.value_noise
            X, sign = np.array(self.state.points[:m]), 1.0 if self.maximize else -1.0
            Z = self.space.embed(X)
            smoother = Smoother(Z, np.array(self.state.values[:m]), sigma)
            lacks = np.maximum(self.state.lacks[:m], 0.0)
            allowed = np.flatnonzero(lacks == lacks.min())
            best = X[allowed[int(np.argmax(sign * smoother.posterior(Z[allowed])[0]))]]
            self._known[key] = self._kept(best, smoother, sign, m)
        return self._known[key]

    @property
    def value_noise(self) -> float:
        """Noise of a released value; with scores the median of what each has."""
        sds = self.state.sds
        return float(np.median(sds)) if sds else super().value_noise

    def _kept(self, best: Array, smoother: Smoother, sign: float, m: int) -> _Judged:
        """Keeps the incumbent, if there is one and the lead of another point may be noise.

        With constraints, one that is not seen to keep them is none.
        """
        own = self.incumbent
        if own is None or (self.config.constraints and not self._keeps(own, m)):
            return best.tolist(), None
        difference, sd = smoother.difference(*self.space.embed(np.array([best, own])))
        left = sign * difference > SURE * sd
        told = Comparison(own.tolist(), sign * difference, sd, left)
        return (best if left else own).tolist(), told

    def _keeps(self, x: Array, m: int) -> bool:
        """Tells whether one of the first m trials, at a point, keeps all constraints."""
        points = zip(self.state.points[:m], self.state.lacks, strict=False)
        return any(lack <= 0.0 and np.allclose(at, x) for at, lack in points)

    @property
    def path(self) -> list[list[float]]:
        """Recommendations after 1, 2, 4, 8, ... releases and after the last."""
        m = len(self.state.values)
        counts = sorted({2**i for i in range(m.bit_length())} | {m} - {0})
        return [self._judged(count)[0] for count in counts]
