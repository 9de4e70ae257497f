"""DP-GIBO: private descent along Gaussian-process gradients (Sopa et al., Algorithm 1).

Notation:

    =======  ==========================================================  ========
    symbol   meaning                                                     shape
    =======  ==========================================================  ========
    theta    centre of step t, a function of earlier releases only       (D,)
    c, X, W  centre, points and weights of a step's gradient             (below)
    B        clipping norm                                               scalar
    g        mean of clipped rows of G = Y W, released with noise        (d,)
             (2 B sqrt(T) / (n mu_g)) N(0, I)
    D, d     all and numeric coordinates
    =======  ==========================================================  ========

A run ends with a comparison: :mod:`privbo_plugins.algorithms.dp_gibo.finalists`.
:mod:`privbo_plugins.algorithms.dp_gibo.batches` has the rest of the notation. The object reads
releases only. Raw losses pass through the statistics that its queries name, and are never kept
here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_gibo import choices
from privbo_plugins.algorithms.dp_gibo.batches import (
    Batches,
    GIBOState,
    fraction_of_gradients_within,
    mean_of_clipped_gradients,
)
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.finalists import COMPARISON, Finalists
from privbo_plugins.algorithms.dp_gibo.plan import (
    Plan,
    compares,
    leaving_margin,
    make_plan,
    plan_norm,
    plan_starts,
    selects_choices,
)
from privbo_plugins.algorithms.dp_gibo.steps import STEP_RULES, scheduled
from privbo_plugins.algorithms.dp_gibo.value_search import ValueSearch
from privbo_plugins.algorithms.protocols import (
    FINAL,
    START,
    START_STEP,
    STEP,
    CentralAlgorithm,
    Comparison,
    Proposal,
    Query,
    Release,
    Words,
)
from privbo_plugins.algorithms.values import SMALLEST, value_query
from privbo_plugins.models.estimates import Estimator
from privbo_plugins.models.gaussian_process import gradient_weights
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_START_MARGIN = 2.0
"""Lead of another start over the first, in units of the noise's expected best, to be taken."""

_CONTENDERS = 8
"""Points of a search by values whose losses are kept for the comparison, beside the incumbent."""

_NORM_QUANTILE = 0.8
"""Fraction of records that an adaptive norm aims to leave unclipped."""

_NORM_RATE = 1.5
"""Speed of an adaptive norm, in log units per unit of fraction."""


def words(config: GIBOConfig, plan: Plan | None) -> Words:
    """Describes the released statistics, and their noise once planned, for the guarantee."""
    statistics = "means of per-{unit} gradients clipped in L2 norm, on means of clipped values"
    compared = " and on the mean clipped differences of the last trials' losses" * compares(config)
    if plan is not None and plan.n_searched and not plan.n_steps:
        return Words(
            "means of clipped values, one a trial," + compared,
            {
                "N": plan.n_trials,
                "value_range": config.value_range,
                "value_noise": plan.value_noise,
                "comparison_noise": plan.comparison_noise,
            },
        )
    if config.adaptive:
        statistics += ", on fractions of {units} within the norm"
    statistics += "," * bool(compared) + compared
    planned = None if plan is None or config.adaptive else plan.clipping_norm
    parameters: dict[str, Any] = {
        "clipping_norm": planned or config.clipping_norm or "planned with the first trial",
        "value_range": config.value_range,
    }
    if plan is not None:
        adaptive = "2B sqrt(T)/(n mu_g) with B adaptive"
        parameters |= {
            "T": plan.n_steps,
            "b": plan.batch_size,
            "gradient_noise": adaptive if config.adaptive else plan.gradient_noise,
            "value_noise": plan.value_noise,
            "comparison_noise": plan.comparison_noise,
        }
    return Words(statistics, parameters)


class DPGIBO(CentralAlgorithm):
    """DP-GIBO over releases.

    Args:
        config: The settings.
        space: The search space.
        seed: Drives start points and designs, never noise.
        maximize: Whether per-record values are scores to maximise.
        plan: Known once the number of records is; start points can be proposed without.

    Example:
        >>> from privbo_plugins.spaces import Float
        >>> algorithm = DPGIBO(GIBOConfig(mu=1.0), Space({"x": Float(0, 1)}), seed=0)
        >>> algorithm.propose(0).x
        array([0.5])
    """

    name = "dp-gibo"

    config: GIBOConfig
    plan: Plan | None
    state: GIBOState
    make_plan = staticmethod(make_plan)
    words = staticmethod(words)

    def __init__(self, config: GIBOConfig, space: Space, **more: Any) -> None:
        super().__init__(config, space, **more)
        plan = self.plan
        self.state = GIBOState()
        self._sign = -1.0 if self.maximize else 1.0
        self._K = plan_starts(config, space)
        self._planned_starts = self._K + (0 if plan is None else plan.n_searched)
        self._starts = choices.StartPoints(
            space,
            self.seed,
            centred=not config.random_start,
            incumbent=self.incumbent,
            selects=selects_choices(config, space),
        )
        self.batches = Batches(config, space, plan, self.seed, self.state)
        self._estimator = Estimator(
            space, config.value_range, self.value_noise, maximize=self.maximize
        )
        self._search = ValueSearch(space, self._estimator, seed=self.seed, maximize=self.maximize)
        self._contending: dict[str, tuple[list[float], float]] = {}
        self._searches = self._planned_starts > self._K
        """Tells if released values choose points."""
        self._finalists = Finalists(
            space, config.value_range, plan, self.state, maximize=self.maximize
        )
        if self._K == 0:
            self._begin(self._starts.at(0).tolist())

    # What to evaluate next ------------------------------------------------------------------

    @property
    def path(self) -> list[list[float]]:
        """Centres of all steps so far."""
        return self.state.path

    @property
    def phase(self) -> tuple[str, int]:
        """Role and step of the next proposals."""
        if self.state.theta is None:
            return START, START_STEP
        if self.plan is None or self.state.step < self.plan.n_steps:
            return STEP, self.state.step
        return FINAL, self.state.step

    @property
    def finished(self) -> bool:
        """True once the end of the run has been compared with the incumbent, if it is to be."""
        compared = bool(self.state.gains) or not self.state.finalists
        return self.phase[0] == FINAL and compared

    @property
    def batch_capacity(self) -> int:
        """Number of evaluations that the plan has in the current step."""
        role = self.phase[0]
        if role == START:
            return self._planned_starts
        return len(self.batches.current().X) if role == STEP else len(self.state.finalists)

    def propose(
        self, slot: int, out: Sequence[Array] = (), failed: Sequence[Array] = ()
    ) -> Proposal:
        """The point of a slot of the current step; slots beyond the batch are extra points."""
        role, step = self.phase
        if role == START:
            told = self.state.values
            if self._searches and slot >= self._K and 2 * len(told) >= self._K:
                x = self._search.next(slot, told, out, failed)
                return Proposal(role, step, slot, x)
            return Proposal(role, step, slot, self.space.snap(self._starts.at(slot)))
        if role == FINAL and self.finished:
            return Proposal(role, step, slot, self.recommendation())
        if role == FINAL:
            finalists = self.state.finalists
            return Proposal(role, step, slot, np.array(finalists[slot % len(finalists)]))
        x = self.state.centre
        x[self.space.numeric] = self.batches.point(slot)
        return Proposal(role, step, slot, self.space.snap(x))

    @property
    def _first(self) -> Array:
        """The point to be beaten, shape (D,): the incumbent, or the middle."""
        return self.space.snap(self._starts.at(0) if self.incumbent is None else self.incumbent)

    # What to release ------------------------------------------------------------------------

    def value_query(self, trial: str, role: str, step: int, x: Array) -> Query | None:
        """The clipped mean loss of one trial, if the plan has a release left for it."""
        state, plan = self.state, self._plan
        if role == START:
            due = len(state.starts) < self._planned_starts
        else:
            most = plan.n_last if role == FINAL else plan.batch_size
            due = step == state.step and len(state.step_values.get(str(step), [])) < most
        if plan.mu_value == 0 or not due:
            return None
        return value_query(self, trial, {"role": role, "step": step, "x": np.asarray(x).tolist()})

    def shown_value(self, release: Release | None, role: str, step: int, x: Array) -> float:
        """An estimate of the exact mean at x, given the releases so far and the trial's own.

        Where values are exact or none is released, the release itself or what is carried. The
        algorithm's own steps never read it.
        """
        own = None if release is None else (np.asarray(x).tolist(), release.values[0])
        if self.value_noise == 0 or not (self.state.values or own):
            return self.fallback_value(role, step) if release is None else release.values[0]
        return self._estimator.at(x, self.state.values, own)

    def fallback_value(self, role: str, step: int) -> float:  # noqa: ARG002
        """Value of a trial without a release of its own: a mean of earlier releases."""
        values = self.state.step_values.get(str(step))
        if not values:
            released = (vs[-1:] for vs in reversed(self.state.step_values.values()) if vs)
            values = next(released, None) or [v for _, v in self.state.starts][-1:]
        return float(np.mean(values)) if values else 0.0

    def wants_losses(self, role: str, step: int, release: Release | None = None) -> bool:
        """Tells if a trial's losses are still needed once its value is released."""
        if role == FINAL:
            return self.phase == (role, step) and not self.finished
        if role == START:
            kept = self.phase[0] == START and self._compares_starts
            return kept and (release is None or release.key in self._contenders(release))
        return role == STEP and step == self.state.step and self.space.d > 0

    def _contenders(self, release: Release) -> dict[str, tuple[list[float], float]]:
        """Points that may be compared in the end, by trial: the incumbent, and the best so far."""
        among = self._contending | {release.key: (list(release.meta["x"]), release.values[0])}
        best = sorted(among, key=lambda trial: self._sign * among[trial][1])[:_CONTENDERS]
        first = self._first
        return {
            trial: point
            for trial, point in among.items()
            if trial in best or np.allclose(point[0], first)
        }

    @property
    def _compares_starts(self) -> bool:
        """Tells if the points that are compared in the end are evaluated before: no descent."""
        plan = self.plan
        return plan is not None and plan.n_steps == 0 and plan.mu_comparison > 0

    def ready(self, done: Collection[int], given_up: Collection[int] = ()) -> bool:
        """Tells if the evaluated slots complete the batch of the current step."""
        if self.finished:
            return False
        if self.phase[0] == FINAL:
            k = len(self.state.finalists)
            return len(done) > 0 and len({slot % k for slot in (*done, *given_up)}) == k
        return self.phase[0] == STEP and len(done) >= len(self.batches.current().X)

    def remembered_after(self, last: Query) -> Collection[str]:
        """Trials whose losses are still needed after a release."""
        if last.kind == "value":
            return [*self._contending, last.key]
        if last.meta["step"] + 1 >= self._plan.n_steps:
            return []
        kept = self.batches.trimmed([*self.state.remembered, *last.meta["points"]])
        return [trial for trial, _ in kept]

    def step_queries(
        self, trials: Sequence[str], X: Sequence[Array], held: Collection[str] | None = None
    ) -> list[Query]:
        """The gradient (and the running quantile) once a batch of the current step is done.

        At the end, the comparison with the incumbent.
        """
        if self.phase[0] == FINAL:
            return [self._finalists.query(trials, X)] if trials and not self.finished else []
        if not self.ready(range(len(trials))):
            return []
        plan, t, B = self._plan, self.state.step, self.state.B
        points = np.array(X)
        new = points[:, self.space.numeric]
        c, fixed = self.batches.centre_of(new)
        old = [p for p in self.state.remembered if held is None or p[0] in held]
        D = np.vstack([new, self.batches.remembered(old)])
        W = gradient_weights(self.batches.kernel, D, c, self.config.noise_ratio)  # paper, line 7
        of_both: dict[str, Any] = {
            "key": str(t),
            "trials": (*trials, *(trial for trial, _ in old)),
            "settings": {"W": self._sign * W, "B": B, "centred": not self.config.as_published},
        }
        remembered = zip(trials, points.tolist(), strict=True) if self.config.memory else ()
        gradient = Query(
            "gradient",
            statistic=mean_of_clipped_gradients,
            sensitivity=2.0 * B / plan.n_records if math.isfinite(B) else 0.0,
            mu=plan.mu_gradient,
            meta={"step": t, "fixed": fixed, "points": list(remembered)},
            **of_both,
        )
        if plan.mu_norm == 0:
            return [gradient]
        norm = Query(
            "norm",
            statistic=fraction_of_gradients_within,
            sensitivity=1.0 / plan.n_records,
            mu=plan.mu_norm,
            meta={"step": t},
            **of_both,
        )
        return [norm, gradient]

    # Learning from releases -----------------------------------------------------------------

    def observe(self, release: Release) -> None:
        """Learns one release; unknown kinds are an error.

        Raises:
            ValueError: If the kind is not one of this algorithm's.
        """
        if release.kind == "value":
            self._observe_value(release)
        elif release.kind == "gradient":
            self._observe_gradient(release)
        elif release.kind == COMPARISON:
            self._finalists.observe(release, self._first, middle=self.incumbent is None)
        elif release.kind == "norm":
            # Andrew et al. 2021, eq. 2: geometric updates towards a quantile.
            excess = _NORM_RATE * (release.values[0] - _NORM_QUANTILE)
            moved = self.state.B * math.exp(-min(max(excess, -1.0), 1.0))
            self.state.B = min(max(moved, SMALLEST), 1.0 / SMALLEST)
        else:
            raise ValueError(f"DP-GIBO knows no release of kind {release.kind!r}.")

    def _observe_value(self, release: Release) -> None:
        value, role = release.values[0], release.meta["role"]
        self.state.values.append((list(release.meta["x"]), value))
        if role == START:
            self.state.starts.append((list(release.meta["x"]), value))
            if self._compares_starts:
                self._contending = self._contenders(release)
                self.state.remembered = [(t, x) for t, (x, _) in self._contending.items()]
            self._learn_start()
        else:
            self.state.step_values.setdefault(str(release.meta["step"]), []).append(value)

    def _learn_start(self) -> None:
        m = len(self.state.starts)
        if m == self._planned_starts:
            path = self.state.path
            self._begin(self._best_start())
            self.state.path = [*path, *self.state.path]
        elif self._searches and self._plan.n_steps == 0 and m.bit_count() == 1:
            # a search by values has no other path
            self.state.path.append(self._best_start())

    def _best_start(self) -> list[float]:
        """The least released value; others must beat the first start by more than the noise.

        The least of K equal values under noise lies about sqrt(2 ln K) standard deviations low,
        and the first start is the incumbent.
        """
        if self._searches:
            among = [x for _, x in self.state.remembered]
            return self._search.best(self.state.values, among or None)
        starts = [(self._sign * value, x) for x, value in self.state.starts]
        margin = _START_MARGIN * self.value_noise * math.sqrt(2.0 * math.log(len(starts)))
        margin += leaving_margin(self.config, self.space.d)
        incumbent = self._first
        first = next((start for start in starts if np.allclose(start[1], incumbent)), starts[0])
        best = min(starts, key=lambda start: start[0])
        return best[1] if best[0] + margin < first[0] else first[1]

    def _begin(self, theta: list[float]) -> None:
        self.state.theta = list(theta)
        self.state.path = [list(theta)]
        self.state.B = (
            plan_norm(self.config, 0.0) if self.plan is None else self.plan.clipping_norm
        )
        if math.isinf(self.config.mu):
            self.state.B = math.inf
        if self.plan is not None and self.plan.n_steps == 0:
            self._finalists.choose(self._first, self._search)

    def _observe_gradient(self, release: Release) -> None:
        """Theta <- project(theta + step(g)) (paper, line 9)."""
        state, plan = self.state, self._plan
        theta, g, numeric = state.centre, np.zeros(len(self.space)), self.space.numeric
        g[numeric] = release.values
        for index, value in release.meta["fixed"].items():
            theta[int(index)], g[int(index)] = value, 0.0
        name = self.config.step_rule
        eta = scheduled(name, plan.step_size, state.step, plan.n_steps)
        state.rule, delta = STEP_RULES[name](state.rule, g[numeric], eta)
        theta[numeric] = np.clip(theta[numeric] + delta, 0.0, 1.0)
        state.theta = theta.tolist()
        state.path.append(theta.tolist())
        state.remembered = self.batches.trimmed([*state.remembered, *release.meta["points"]])
        state.step += 1
        if state.step == plan.n_steps:
            self._finalists.choose(self._first, self._search)

    def recommendation(self) -> Array:
        """Theta of the latest release, shape (D,); the best start so far before the first step.

        An incumbent that was given stays, unless another finalist is clearly better in the end,
        or before it the released values, if there are any, call that point clearly better.

        Raises:
            ValueError: If nothing has been released yet.
        """
        if self.state.gains:
            best = self._finalists.best(self._first, middle=self.incumbent is None)
            return self.space.snap(np.array(self.state.finalists[best]))
        if self.state.theta is None and not self.state.starts:
            raise ValueError("There is nothing to recommend yet: nothing has been released.")
        found = self._found()
        if (
            self.incumbent is None
            or not self.state.values
            or self._search.compared(found, self._first, self.state.values).left
        ):
            return found
        return self._first

    def _found(self) -> Array:
        """Theta, or the best start so far, shape (D,)."""
        return self.space.snap(np.array(self.state.theta or self._best_start()))

    @property
    def comparison(self) -> Comparison | None:
        """The released gain on the incumbent or the middle; before, what values say of it."""
        state, middle = self.state, self.incumbent is None
        if state.gains:
            return self._finalists.comparison(self._first, middle=middle)
        known = state.values and (state.theta or state.starts)
        if not known or (middle and not self.finished):
            return None
        found = self._search.compared(self._found(), self._first, state.values)
        return replace(found, middle=middle)
