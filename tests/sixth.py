"""A sixth algorithm, brought by another package than the product: random search, told in public.

Every trial's clipped mean is released with Gaussian noise under mu-GDP, the budget shared evenly
by as many trials as are planned; the best released one is recommended. It is written against the
protocols and the registry alone, and runs on both hosts: nothing of the product knows its name.
docs/extending.md explains it.

Notation: n records, T trials, C width of the range of values; each value gets the share
mu / sqrt(T) of the budget, and noise of standard deviation C sqrt(T) / (n mu).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from privbo_plugins.algorithms.protocols import (
    FINAL,
    START,
    START_STEP,
    CentralAlgorithm,
    NoisyPlan,
    Proposal,
    Query,
    Release,
    Words,
)
from privbo_plugins.algorithms.registry import CENTRAL, Entry
from privbo_plugins.privacy.mechanisms import gaussian_scale, mean_of_clipped_values
from privbo_plugins.spaces import Space

NAME = "sixth"

ENTRY = Entry(
    NAME,
    CENTRAL,
    algorithm="tests.sixth:Sixth",
    config="tests.sixth:SixthConfig",
)


@dataclass(frozen=True)
class SixthConfig:
    """Budget, trials, range of values, and what a training costs."""

    algorithm: ClassVar[str] = NAME
    registered_at: ClassVar[str] = "tests.sixth:ENTRY"

    mu: float
    n_trials: int
    low: float = 0.0
    high: float = 1.0
    training_mu: float | None = None

    trials_given: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.mu > 0 and self.n_trials >= 1 and self.low < self.high):
            raise ValueError(f"mu, n_trials and high - low must be positive, got {self}.")

    def with_trials(self, n_trials: int | None) -> SixthConfig:
        return self if n_trials is None else replace(self, n_trials=n_trials)

    def plain(self) -> SixthConfig:
        return replace(self, mu=math.inf, n_trials=10**9)

    def to_dict(self) -> dict[str, Any]:
        return {k: "inf" if v == math.inf else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SixthConfig:
        given = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        return cls(**{k: math.inf if v == "inf" else v for k, v in given.items()})


@dataclass(frozen=True)
class SixthPlan(NoisyPlan):
    """As many releases as trials."""

    n_records: int
    n_trials: int
    mu_value: float
    sensitivity: float

    @property
    def value_noise(self) -> float:
        return gaussian_scale(self.sensitivity, self.mu_value)

    @property
    def noise_dominates(self) -> bool:
        return self.value_noise > self.sensitivity * self.n_records

    def noise_warning(self) -> str:
        return "The noise is wider than the range."

    def __str__(self) -> str:
        return f"Sixth plan: {self.n_trials} released values, noise of sd {self.value_noise:.3g}"


def make_plan(config: SixthConfig, space: Space, n_records: int) -> SixthPlan:
    share = config.mu / math.sqrt(config.n_trials)
    return SixthPlan(n_records, config.n_trials, share, (config.high - config.low) / n_records)


def words(config: SixthConfig, plan: SixthPlan | None) -> Words:
    noise = {} if plan is None else {"value_noise": plan.value_noise}
    return Words(
        "means of clipped values, one a trial",
        {"trials": config.n_trials, "value_range": (config.low, config.high)} | noise,
        ("how a sixth algorithm came about",),
    )


def plain_mean(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Mean of values that nothing is promised for."""
    return np.array([np.concatenate(list(blocks)).mean()])


class Sixth(CentralAlgorithm):
    """Random points; whatever is released of them is all that it knows."""

    name = NAME
    config: SixthConfig
    plan: SixthPlan | None
    make_plan = staticmethod(make_plan)
    words = staticmethod(words)

    def __init__(self, config: SixthConfig, space: Space, **more: Any) -> None:
        super().__init__(config, space, **more)
        self.values: list[tuple[list[float], float]] = []

    @property
    def path(self) -> list[list[float]]:
        return [self._best(count)[0] for count in range(1, len(self.values) + 1)]

    @property
    def finished(self) -> bool:
        return len(self.values) >= self.config.n_trials

    @property
    def phase(self) -> tuple[str, int]:
        return (FINAL, 0) if self.finished else (START, START_STEP)

    @property
    def batch_capacity(self) -> int:
        return 1 if self.finished else self.config.n_trials

    def propose(
        self, slot: int, out: Sequence[np.ndarray] = (), failed: Sequence[np.ndarray] = ()
    ) -> Proposal:
        role, step = self.phase
        if self.finished:
            return Proposal(role, step, slot, self.recommendation())
        x = self.space.uniform(1, np.random.default_rng([self.seed, slot]))[0]
        return Proposal(role, step, slot, self.space.snap(x))

    def value_query(self, trial: str, role: str, step: int, x: np.ndarray) -> Query | None:
        if self.finished or self.plan is None:
            return None
        low, high = self.config.low, self.config.high
        worst, plain = low if self.maximize else high, math.isinf(self.config.mu)
        return Query(
            kind="value",
            key=trial,
            statistic=plain_mean if plain else mean_of_clipped_values,
            settings={} if plain else {"low": low, "high": high, "worst": worst},
            sensitivity=self.plan.sensitivity,
            mu=self.plan.mu_value,
            trials=(trial,),
            offset=0.0 if plain else low,
            meta={"role": role, "step": step, "x": np.asarray(x).tolist()},
        )

    def fallback_value(self, role: str, step: int) -> float:
        return self._best()[1] if self.values else 0.0

    def observe(self, release: Release) -> None:
        if release.kind != "value":
            raise ValueError(f"The sixth knows no release of kind {release.kind!r}.")
        self.values.append((list(release.meta["x"]), release.values[0]))

    def _best(self, of: int | None = None) -> tuple[list[float], float]:
        sign = -1.0 if self.maximize else 1.0
        return min(self.values[:of], key=lambda pair: sign * pair[1])

    def recommendation(self) -> np.ndarray:
        if not self.values:
            raise ValueError("There is nothing to recommend yet: nothing has been released.")
        return self.space.snap(np.array(self._best()[0]))

    def state_dict(self) -> dict[str, Any]:
        return {"values": [[x, value] for x, value in self.values]}
