"""DP-GIBO: private descent along Gaussian-process gradients (Sopa et al., Algorithm 1).

Notation:

    =======  ==========================================================  ========
    symbol   meaning                                                     shape
    =======  ==========================================================  ========
    theta    centre of step t, a function of earlier releases only       (D,)
    c        point at which the gradient is estimated (theta, moved      (d,)
             inwards where a design would leave the cube)
    X        evaluated points of the batch, as the host rounded them     (m, d)
    Y        losses, one row a record                                    (n, m)
    W        (K(X, X) + s2 I)⁻¹ k(X, c)∇ᵀ                                (m, d)
    G        Y W, per-record posterior mean gradients                    (n, d)
    B        clipping norm                                               scalar
    g        mean of clipped rows of G, released with noise              (d,)
             (2 B sqrt(T) / (n mu_g)) N(0, I)
    D, d     all and numeric coordinates
    =======  ==========================================================  ========

The object reads releases only. Raw losses pass through the statistics that it hands out as
:class:`~privbo_plugins.algorithms.protocols.Query` and are never kept here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_gibo import choices, design
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.plan import (
    Plan,
    judges_by_values,
    leaving_margin,
    lengthscales,
    make_plan,
    plan_norm,
    plan_starts,
    selects_choices,
    words,
)
from privbo_plugins.algorithms.dp_gibo.steps import STEP_RULES, scheduled
from privbo_plugins.algorithms.dp_gibo.value_search import ValueSearch
from privbo_plugins.algorithms.protocols import (
    FINAL,
    START,
    START_STEP,
    STEP,
    CentralAlgorithm,
    Proposal,
    Query,
    Release,
)
from privbo_plugins.algorithms.values import SMALLEST, value_query
from privbo_plugins.models.estimates import Estimator
from privbo_plugins.models.gaussian_process import gradient_weights
from privbo_plugins.models.kernels import Isotropic
from privbo_plugins.privacy.mechanisms import (
    fraction_within,
    mean_of_clipped_rows,
)
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_START_MARGIN = 2.0
"""Lead of another start over the first, in units of the noise's expected best, to be taken."""

_NORM_QUANTILE = 0.8
"""Fraction of records that an adaptive norm aims to leave unclipped."""

_NORM_RATE = 1.5
"""Speed of an adaptive norm, in log units per unit of fraction."""


@dataclass
class GIBOState:
    """Everything that the releases so far determine; public.

    Attributes:
        step: t, the number of gradients applied.
        theta: Centre of step t, (D,); None before the start is chosen.
        path: Centres of all steps so far.
        B: Clipping norm of the next gradient.
        rule: State of the step rule.
        starts: (x, value) of the start points that count.
        step_values: Step (as text) to its released values, in order of release.
        extras: Value releases drawn from the reserve.
        final: The released value at the recommendation, if made.
        remembered: (trial, x) of remembered points, oldest first.
        values: (x, value) of all value releases, in order.
    """

    step: int = 0
    theta: list[float] | None = None
    path: list[list[float]] = field(default_factory=list)
    B: float = 1.0
    rule: list[list[float]] = field(default_factory=list)
    starts: list[tuple[list[float], float]] = field(default_factory=list)
    step_values: dict[str, list[float]] = field(default_factory=dict)
    extras: int = 0
    final: float | None = None
    remembered: list[tuple[str, list[float]]] = field(default_factory=list)
    values: list[tuple[list[float], float]] = field(default_factory=list)


@dataclass(frozen=True)
class _Batch:
    centre: Array  # c, (d,)
    X: Array  # (b, d), as the host will evaluate them


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
    make_plan = staticmethod(make_plan)
    words = staticmethod(words)

    def __init__(self, config: GIBOConfig, space: Space, **more: Any) -> None:
        super().__init__(config, space, **more)
        plan = self.plan
        self.state = GIBOState()
        self._K = plan_starts(config, space)
        self._searched = 0 if plan is None else plan.n_searched
        self._selects = selects_choices(config, space)
        self._judges = judges_by_values(config, space, plan)
        self._numeric = space.numeric
        self._lengthscales = lengthscales(config, space, plan)
        self.kernel = config.make_kernel(self._lengthscales)
        self._start_cache: Array = np.empty((0, len(space)))
        self._forget()
        if self._K == 0:
            self._begin(self._start_point(0).tolist())

    def _forget(self) -> None:
        """Drops all that was computed from the state."""
        self._batch_cache: tuple[int, _Batch] | None = None
        self._extra_cache: list[Array] = []
        sigma = 0.0 if self.plan is None else self.plan.value_noise
        bounds = self.config.value_range
        self._estimator = Estimator(self.space, bounds, sigma, maximize=self.maximize)
        self._search = ValueSearch(
            self.space, self._estimator, seed=self.seed, maximize=self.maximize
        )

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
        """True once the recommendation has been evaluated (or values are never released)."""
        if self.phase[0] != FINAL:
            return False
        return self.state.final is not None or self.config.value_share == 0

    @property
    def batch_capacity(self) -> int:
        """Number of evaluations that the plan has in the current step."""
        role = self.phase[0]
        if role == START:
            return self._K + self._searched
        return len(self._batch().X) if role == STEP else 1

    def propose(
        self, slot: int, out: Sequence[Array] = (), failed: Sequence[Array] = ()
    ) -> Proposal:
        """The point of a slot of the current step; slots beyond the batch are extra points."""
        role, step = self.phase
        if role == START:
            told = self.state.values
            if self._searched and slot >= self._K and 2 * len(told) >= self._K:
                x = self._search.next(slot, told, out, failed)
                return Proposal(role, step, slot, x)
            return Proposal(role, step, slot, self.space.snap(self._start_point(slot)))
        theta = self._theta()
        x = theta.copy()
        if role == STEP:
            x[self._numeric] = self._step_point(slot)
        return Proposal(role, step, slot, self.space.snap(x))

    def _start_point(self, slot: int) -> Array:
        """The middle of the cube (unless a random start is asked for), then a Sobol sequence."""
        if self._selects:
            x = self._even_point(choices.place(slot, self.space))
            x[~self._numeric] = choices.cover(slot, self.space)
            return x
        return self._even_point(slot)

    def _even_point(self, index: int) -> Array:
        if index == 0 and not self.config.random_start:
            return np.where(self._numeric, 0.5, 0.0)
        if index >= len(self._start_cache):
            m = max(4, math.ceil(math.log2(index + 1)))
            sobol = scipy.stats.qmc.Sobol(
                len(self.space), scramble=True, rng=np.random.default_rng(self.seed)
            )
            self._start_cache = sobol.random_base2(m)
        u = self._start_cache[index]
        dims = list(self.space.values())
        sizes = [len(getattr(dim, "choices", ())) or 1 for dim in dims]
        return np.asarray(np.where(self._numeric, u, np.floor(u * np.array(sizes))))

    def _step_point(self, slot: int) -> Array:
        batch = self._batch()
        if slot < len(batch.X):
            return np.asarray(batch.X[slot])
        while len(self._extra_cache) <= slot - len(batch.X):
            self._extra_cache.append(self._extra_point(batch))
        return self._extra_cache[slot - len(batch.X)]

    def _extra_point(self, batch: _Batch) -> Array:
        """The next most informative point for the same centre, given all that is out."""
        if self.space.d == 0:
            return np.asarray(batch.X[0])
        out = np.vstack([batch.X, *(e[None] for e in self._extra_cache)])
        rng = np.random.default_rng([self.seed, self.state.step, len(out)])
        radius = 0.37 * self._lengthscales
        directions = radius * design.structured_directions(self.space.d, self.space.d + 1, rng)
        point = design.next_probe(
            self.kernel, out, batch.centre, self.config.noise_ratio, directions
        )
        return np.asarray(self._snap_numeric(point[None])[0])

    # Designs --------------------------------------------------------------------------------

    def _batch(self) -> _Batch:
        """The batch of the current step: a function of releases and the public seed."""
        if self._batch_cache is None or self._batch_cache[0] != self.state.step:
            self._batch_cache = (self.state.step, self._make_batch())
            self._extra_cache = []
        return self._batch_cache[1]

    def _make_batch(self) -> _Batch:
        theta = self._theta()[self._numeric]
        old = self._points_of(self.state.remembered)
        b = self._batch_size(theta, old)
        offsets = self._offsets(b)
        closed = design.has_closed_form(self.kernel, self.space.d, b) and len(old) == 0
        if closed and not self.config.as_published:
            centre = design.inward_centre(theta, offsets)
            return _Batch(centre, self._snap_numeric(centre + offsets))
        X = theta + offsets
        if not (closed and X.min() >= 0 and X.max() <= 1):
            X = design.optimise_batch(self.kernel, X, old, theta, self.config.noise_ratio)
        return _Batch(theta, self._snap_numeric(X))

    def _batch_size(self, theta: Array, old: Array) -> int:
        """The plan's b, or with a tolerance and memory the fewest points that reach it."""
        planned = self.space.d + 1 if self.plan is None else self.plan.batch_size
        if self.config.tolerance is None or len(old) == 0:
            return planned
        fewest = design.fewest_points(
            self.kernel, old, theta, self.config.noise_ratio,
            tolerance=self.config.tolerance, most=planned - 1, offsets=self._offsets,
        )  # fmt: skip
        return fewest or planned

    def _offsets(self, b: int) -> Array:
        """Structured design around the origin, shape (b, d), rotated anew in each step."""
        d, rng = self.space.d, np.random.default_rng([self.seed, self.state.step])
        if isinstance(self.kernel, Isotropic):
            symmetric = b if b in (d + 1, 2 * d) else d + 1
            r = design.best_radius(self.kernel, d, symmetric, self.config.noise_ratio)
            scales = self._lengthscales
        else:
            r, scales = 0.1, np.ones(d)
        return np.asarray(r * scales * design.structured_directions(d, b, rng))

    def _snap_numeric(self, X: Array) -> Array:
        """Points as the host will evaluate them, numeric coordinates only."""
        if not self.space.resolution.any() and self.space.d == len(self.space):
            return np.asarray(np.clip(X, 0.0, 1.0))
        full = np.repeat(self._theta()[None], len(X), axis=0)
        full[:, self._numeric] = X
        return np.array([self.space.snap(x)[self._numeric] for x in full])

    def _points_of(self, remembered: Sequence[tuple[str, list[float]]]) -> Array:
        points = [np.asarray(x)[self._numeric] for _, x in remembered]
        return np.array(points) if points else np.empty((0, self.space.d))

    # What to release ------------------------------------------------------------------------

    def value_query(self, trial: str, role: str, step: int, x: Array) -> Query | None:
        """The clipped mean loss of one trial, if the plan has a release left for it."""
        reserve = self._reserve(role, step)
        if self._known_plan().mu_value == 0 or reserve is None:
            return None
        meta: dict[str, Any] = {
            "role": role, "step": step, "reserve": reserve, "x": np.asarray(x).tolist()
        }  # fmt: skip
        if role == FINAL:
            meta["trial"] = trial  # its key does not say whose value it is
        return value_query(self, trial, meta, final=role == FINAL)

    def _reserve(self, role: str, step: int) -> bool | None:
        """Says if the reserve pays for a value (True) or the plan (False); None if neither can."""
        state, plan = self.state, self._known_plan()
        if role == FINAL:
            return False if state.final is None else None
        if role == START:
            planned = len(state.starts) < self._K + self._searched
        else:
            planned = step == state.step and (
                len(state.step_values.get(str(step), [])) < plan.batch_size
            )
        if planned:
            return False
        return True if state.extras < self.config.extra_values else None

    def shown_value(self, release: Release | None, role: str, step: int, x: Array) -> float:
        """An estimate of the exact mean at x, given the releases so far and the trial's own.

        Where values are exact or none is released, the release itself or what is carried. The
        algorithm's own steps never read it.
        """
        sigma = 0.0 if self.plan is None else self.plan.value_noise
        own = None if release is None else (np.asarray(x).tolist(), release.values[0])
        if sigma == 0 or not (self.state.values or own):
            return self.fallback_value(role, step) if release is None else release.values[0]
        return self._estimator.at(x, self.state.values, own)

    def fallback_value(self, role: str, step: int) -> float:
        """Value of a trial without a release of its own: a mean of earlier releases."""
        if role == FINAL and self.state.final is not None:
            return self.state.final
        values = self.state.step_values.get(str(step))
        if not values:
            released = (vs[-1:] for vs in reversed(self.state.step_values.values()) if vs)
            values = next(released, None) or [v for _, v in self.state.starts][-1:]
        return float(np.mean(values)) if values else 0.0

    def wants_losses(self, role: str, step: int) -> bool:
        """Tells if a trial's losses are still needed once its value is released."""
        return role == STEP and step == self.state.step and self.space.d > 0

    def ready(self, n_done: int) -> bool:
        """Tells if so many evaluated points complete the batch of the current step."""
        return n_done >= len(self._batch().X)

    def remembered_after(self, last: Query) -> list[tuple[str, list[float]]]:
        """(trial, x) of the points whose losses are still needed after a gradient release."""
        if last.meta["step"] + 1 == self._known_plan().n_steps:
            return []
        return self._trimmed([*self.state.remembered, *last.meta["points"]])

    def step_queries(
        self, trials: Sequence[str], X: Sequence[Array], held: Collection[str] | None = None
    ) -> list[Query]:
        """The gradient (and the running quantile) once a batch of the current step is done."""
        if self.phase[0] != STEP or not self.ready(len(trials)):
            return []
        plan, t = self._known_plan(), self.state.step
        points = np.array(X)
        c, fixed = self._centre(points[:, self._numeric])
        old = [p for p in self.state.remembered if held is None or p[0] in held]
        D = np.vstack([points[:, self._numeric], self._points_of(old)])
        W = gradient_weights(self.kernel, D, c, self.config.noise_ratio)  # paper, line 7
        B = self.state.B
        remembered = zip(trials, points.tolist(), strict=True) if self.config.memory else ()

        def query(kind: str, statistic: Any, sensitivity: float, mu: float, **meta: Any) -> Query:
            return Query(
                kind,
                str(t),
                lambda blocks: statistic(self._gradients(blocks, W), B),
                sensitivity,
                mu,
                trials=(*trials, *(trial for trial, _ in old)),
                meta={"step": t, **meta},
            )

        bound = 2.0 * B / plan.n_records if math.isfinite(B) else 0.0
        gradient = query(
            "gradient", mean_of_clipped_rows, bound, plan.mu_gradient,
            fixed=fixed, points=list(remembered),
        )  # fmt: skip
        if plan.mu_norm == 0:
            return [gradient]
        return [query("norm", fraction_within, 1.0 / plan.n_records, plan.mu_norm), gradient]

    def _centre(self, X: Array) -> tuple[Array, dict[str, float]]:
        """c, with coordinates that the host held fixed for the whole batch put where they were."""
        batch = self._batch()
        held = (np.ptp(X, axis=0) == 0) & (np.ptp(batch.X, axis=0) > 0)
        c = np.where(held, X[0], batch.centre)
        indices = np.flatnonzero(self._numeric)
        return c, {str(indices[j]): float(X[0, j]) for j in np.flatnonzero(held)}

    def _gradients(self, blocks: Iterable[Array], W: Array) -> Iterator[Array]:
        """Per-record posterior mean gradients of the loss to minimise, (n_block, d) a block."""
        sign = -1.0 if self.maximize else 1.0
        for Y in blocks:
            with np.errstate(all="ignore"):  # no message may depend on a record
                if not self.config.as_published:
                    Y = Y - Y.mean(axis=1, keepdims=True)
                yield sign * (Y @ W)

    # Learning from releases -----------------------------------------------------------------

    def observe(self, release: Release) -> None:
        """Learns one release; unknown kinds are an error.

        Raises:
            ValueError: If the kind is not one of this algorithm's.
        """
        if release.kind in ("value", FINAL):
            self._observe_value(release)
        elif release.kind == "gradient":
            self._observe_gradient(release)
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
        if release.meta["reserve"]:
            self.state.extras += 1
        elif role == FINAL:
            self.state.final = value
        elif role == START:
            self.state.starts.append((list(release.meta["x"]), value))
            self._learn_start()
        else:
            self.state.step_values.setdefault(str(release.meta["step"]), []).append(value)

    def _learn_start(self) -> None:
        m = len(self.state.starts)
        if m == self._K + self._searched:
            path = self.state.path
            self._begin(self._best_start())
            self.state.path = [*path, *self.state.path]
        elif self._searched and self._known_plan().n_steps == 0 and m.bit_count() == 1:
            # a search by values has no other path
            self.state.path.append(self._best_start())

    def _best_start(self) -> list[float]:
        """The least released value; others must beat the first start by more than the noise.

        The least of K equal values under noise lies about sqrt(2 ln K) standard deviations low,
        and the first start is the centre (or the user's own guess).
        """
        if self._searched:
            return self._search.best(self.state.values)
        sign = -1.0 if self.maximize else 1.0
        noise = 0.0 if self.plan is None else self.plan.value_noise
        K = len(self.state.starts)
        margin = _START_MARGIN * noise * math.sqrt(2.0 * math.log(K))
        margin += leaving_margin(self.config, self.space.d)
        first, *others = [(sign * value, x) for x, value in self.state.starts]
        best = min(others, key=lambda start: start[0], default=first)
        return best[1] if best[0] + margin < first[0] else first[1]

    def _begin(self, theta: list[float]) -> None:
        self.state.theta = list(theta)
        self.state.path = [list(theta)]
        self.state.B = (
            plan_norm(self.config, 0.0) if self.plan is None else self.plan.clipping_norm
        )
        if math.isinf(self.config.mu):
            self.state.B = math.inf

    def _observe_gradient(self, release: Release) -> None:
        """Theta <- project(theta + step(g)) (paper, line 9)."""
        state, plan = self.state, self._known_plan()
        theta, g = self._theta(), np.zeros(len(self.space))
        g[self._numeric] = release.values
        for index, value in release.meta["fixed"].items():
            theta[int(index)], g[int(index)] = value, 0.0
        name = self.config.step_rule
        eta = scheduled(name, plan.step_size, state.step, plan.n_steps)
        state.rule, delta = STEP_RULES[name](state.rule, g[self._numeric], eta)
        theta[self._numeric] = np.clip(theta[self._numeric] + delta, 0.0, 1.0)
        state.theta = theta.tolist()
        state.path.append(theta.tolist())
        state.remembered = self._trimmed([*state.remembered, *release.meta["points"]])
        state.step += 1
        if state.step == plan.n_steps and self._judges:
            end = self._search.better(state.theta, state.values)
            if end != state.theta:
                state.theta = end
                state.path.append(end)

    def _trimmed(self, points: list[Any]) -> list[tuple[str, list[float]]]:
        keep = points if self.config.memory < 0 else points[-self.config.memory :]
        return [(trial, list(x)) for trial, x in keep] if self.config.memory else []

    def recommendation(self) -> Array:
        """Theta of the latest release, shape (D,); the best start so far before the first step.

        Raises:
            ValueError: If nothing has been released yet.
        """
        if self.state.theta is not None:
            return self.space.snap(self._theta())
        if not self.state.starts:
            raise ValueError("There is nothing to recommend yet: nothing has been released.")
        return self.space.snap(np.array(self._best_start()))

    def _theta(self) -> Array:
        if self.state.theta is None:
            raise ValueError("The start has not been chosen yet.")
        return np.array(self.state.theta)

    def _known_plan(self) -> Plan:
        if self.plan is None:
            raise ValueError("The plan needs the number of records, which the first trial tells.")
        return self.plan

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready public state; infinite norms as the string "inf"."""
        fields = asdict(self.state)
        fields["B"] = "inf" if math.isinf(self.state.B) else self.state.B
        return fields

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        fields = dict(state)
        fields["B"] = float(fields["B"])
        fields["starts"] = [(list(x), v) for x, v in fields["starts"]]
        fields["remembered"] = [(t, list(x)) for t, x in fields["remembered"]]
        fields["values"] = [(list(x), v) for x, v in fields["values"]]
        self.state = GIBOState(**fields)
        self._forget()
