"""Settings of DP-GIBO, checked once and stored with the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self

from privbo_plugins.algorithms.dp_gibo.steps import STEP_RULES
from privbo_plugins.models.kernels import KERNELS, Kernel

ADAPTIVE = "adaptive"

_ENDLESS = 10**9

SMALLEST = 1e-100
"""Bounds below it would underflow inside the mechanisms."""


def _positive(name: str, value: Any, allow_inf: bool = False) -> None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if not fine or not (allow_inf or math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number, got {value!r}.")


def _within(name: str, value: Any, end: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < end:
        raise ValueError(f"{name} must lie in [0, {end:g}), got {value!r}.")


def _count(name: str, value: Any, least: int, optional: bool = True) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not whole and not (optional and value is None):
        also = " or None" if optional else ""
        raise ValueError(f"{name} must be an integer >= {least}{also}, got {value!r}.")


@dataclass(frozen=True)
class GIBOConfig:
    """Settings of one run; everything here is public.

    See :class:`optuna_samplers.DPGIBOSampler` for what each means to a user.

    Args:
        mu: Total Gaussian DP parameter of the run; infinity for GIBO without privacy.
        n_steps: Steps T; None for 25, or as many as n_trials allows.
        n_trials: The user's trial limit for planning; None for no limit.
        batch_size: Points a step, b; None for d + 1.
        tolerance: Instead of a batch size, the gradient trace to reach with the fewest points.
        n_starts: Start points K; None plans them.
        extra_values: Releases reserved for trials outside the plan (enqueued, or beyond a batch).
        clipping_norm: B, or "adaptive" for a private running quantile.
        loss_bound: Values are clipped to [0, loss_bound], or to (low, high).
        value_share: Share of mu² spent on released values; 0 releases none.
        norm_share: Share of mu² spent on the adaptive norm; ignored for a fixed one.
        kernel: "rbf", "matern52" or "polynomial2".
        lengthscale: In unit-cube units.
        noise_ratio: lambda, variance of one record's evaluation noise over the signal's.
        step_rule: "momentum", "adagrad", "adagrad-norm", "sgd" or "adam".
        step_size: eta in unit-cube units; None plans it.
        memory: Remembered points from earlier steps; -1 remembers all.
        centring: Subtract each record's mean before regressing.
        exact_centre: Estimate the gradient at theta itself from points optimised inside the
            cube, instead of moving the design inwards at the boundary.
        random_start: The first start is a random point instead of the centre.
        average: Fraction of the last iterates averaged into the recommendation; 0 for theta_T.
        training_mu: Gaussian DP parameter that one trial's training costs the training records.

    Raises:
        ValueError: For every value outside its range.
    """

    algorithm: ClassVar[str] = "dp-gibo"

    mu: float
    n_steps: int | None = None
    n_trials: int | None = None
    batch_size: int | None = None
    tolerance: float | None = None
    n_starts: int | None = None
    extra_values: int = 0
    clipping_norm: float | str = 1.0
    loss_bound: float | tuple[float, float] = 1.0
    value_share: float = 0.1
    norm_share: float = 0.05
    kernel: str = "rbf"
    lengthscale: float = 0.35
    noise_ratio: float = 0.01
    step_rule: str = "momentum"
    step_size: float | None = None
    memory: int = 0
    centring: bool = True
    exact_centre: bool = False
    random_start: bool = False
    average: float = 0.0
    training_mu: float | None = None

    def __post_init__(self) -> None:
        _positive("mu", self.mu, allow_inf=True)
        self._check_counts()
        self._check_bounds()
        self._check_names()
        for name in ("tolerance", "step_size", "training_mu"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        _positive("lengthscale", self.lengthscale)
        _within("noise_ratio", self.noise_ratio, math.inf)

    def _check_counts(self) -> None:
        _count("n_steps", self.n_steps, 1)
        _count("n_trials", self.n_trials, 2)
        _count("batch_size", self.batch_size, 1)
        _count("n_starts", self.n_starts, 0)
        _count("extra_values", self.extra_values, 0, optional=False)
        _count("memory", self.memory, -1, optional=False)
        if self.batch_size is not None and self.tolerance is not None:
            raise ValueError(
                f"Give batch_size or tolerance, not both: got {self.batch_size} and "
                f"{self.tolerance}."
            )
        for name in ("centring", "exact_centre", "random_start"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")

    def _check_bounds(self) -> None:
        if isinstance(self.clipping_norm, str) and not self.adaptive:
            raise ValueError(
                f"clipping_norm must be a positive number or 'adaptive', got "
                f"{self.clipping_norm!r}."
            )
        if not isinstance(self.clipping_norm, str):
            _positive("clipping_norm", self.clipping_norm, allow_inf=math.isinf(self.mu))
            if float(self.clipping_norm) < SMALLEST:
                raise ValueError(f"clipping_norm must be >= {SMALLEST}, got {self.clipping_norm}.")
        low, high = self.value_range
        if not (math.isfinite(high - low) and high - low >= SMALLEST):
            raise ValueError(
                f"loss_bound must be a positive number or (low, high) with low < high, "
                f"got {self.loss_bound!r}."
            )
        for name in ("value_share", "norm_share", "average"):
            _within(name, getattr(self, name), 1.0)
        if self.value_share + (self.norm_share if self.adaptive else 0) >= 1:
            raise ValueError("value_share and norm_share together must stay below 1.")
        if self.value_share == 0 and self.n_starts not in (None, 0):
            raise ValueError(
                f"n_starts={self.n_starts} needs released values to choose from: value_share > 0."
            )

    def _check_names(self) -> None:
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {sorted(KERNELS)}, got {self.kernel!r}.")
        if self.step_rule not in STEP_RULES:
            known = sorted(STEP_RULES)
            raise ValueError(f"step_rule must be one of {known}, got {self.step_rule!r}.")

    @property
    def adaptive(self) -> bool:
        """Whether the clipping norm follows a private quantile."""
        return self.clipping_norm == ADAPTIVE

    @property
    def value_range(self) -> tuple[float, float]:
        """(low, high) that values are clipped to before they are released."""
        if isinstance(self.loss_bound, tuple | list):
            if len(self.loss_bound) != 2 or any(isinstance(b, str) for b in self.loss_bound):
                raise ValueError(f"loss_bound needs two numbers, got {self.loss_bound!r}.")
            return float(self.loss_bound[0]), float(self.loss_bound[1])
        _positive("loss_bound", self.loss_bound)
        return 0.0, float(self.loss_bound)

    def make_kernel(self, lengthscale: Any) -> Kernel:
        """The kernel with one length-scale a coordinate."""
        kind: Any = KERNELS[self.kernel]
        return kind() if self.kernel == "polynomial2" else kind(lengthscale)  # type: ignore[no-any-return]

    @classmethod
    def paper(cls, mu: float, **settings: Any) -> GIBOConfig:
        """Algorithm 1 as published, with the settings of Appendix E.1.

        Random start, no start points, no released values, no centring, b = d + 1 fresh points a
        step, AdaGrad on coordinates, length-scale 1 and step .3 on ranges of width 4.
        """
        published: dict[str, Any] = {
            "n_steps": 25,
            "n_starts": 0,
            "clipping_norm": 3.0,
            "value_share": 0.0,
            "lengthscale": 0.25,
            "noise_ratio": 0.05**2,
            "step_rule": "adagrad",
            "step_size": 0.075,
            "memory": 0,
            "centring": False,
            "exact_centre": True,
            "random_start": True,
            "average": 0.0,
        }
        return cls(mu=mu, **(published | settings))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        fields = asdict(self)
        if isinstance(self.loss_bound, tuple):
            fields["loss_bound"] = list(self.loss_bound)
        return {k: "inf" if v == math.inf else v for k, v in fields.items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Settings from :meth:`to_dict`; what an older version did not know has its default."""
        given = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        given = {name: math.inf if v == "inf" else v for name, v in given.items()}
        if isinstance(given.get("loss_bound"), list):
            given["loss_bound"] = tuple(given["loss_bound"])
        return cls(**given)

    @property
    def trials_given(self) -> bool:
        """Whether steps or trials are limited."""
        return self.n_trials is not None or self.n_steps is not None

    def with_trials(self, n_trials: int | None) -> Self:
        """The same settings with another limit of trials."""
        return replace(self, n_trials=n_trials)

    def plain(self) -> Self:
        """Settings of an unprotected run: no noise, no clipping, no end."""
        return replace(
            self,
            mu=math.inf,
            clipping_norm=math.inf,
            n_steps=_ENDLESS,
            n_trials=None,
            value_share=max(self.value_share, 0.1),
            step_rule="adagrad-norm",  # shrinks by itself: a run without an end has no schedule
            step_size=None,
        )
