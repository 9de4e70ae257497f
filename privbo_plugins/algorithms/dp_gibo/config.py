"""Settings of DP-GIBO, checked once and stored with the run."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Self

from privbo_plugins.algorithms.dp_gibo.steps import STEP_RULES
from privbo_plugins.algorithms.values import (
    LARGEST,
    SMALLEST,
    LossBound,
    LossSettings,
    value_range,
)
from privbo_plugins.models.kernels import KERNELS, Kernel
from privbo_plugins.settings import (
    Count,
    NotNegative,
    Positive,
    Rule,
    Share,
    WholeNumber,
    evolve,
    integer,
    is_finite,
    one_of,
    setting,
    settings,
)

ADAPTIVE = "adaptive"

NORM_SHARE = 0.05
"""Share of mu² that an adaptive clipping norm costs."""

_ENDLESS = 10**9

LENGTHSCALE = 0.35
"""Length-scale of a plan that chooses none."""

PUBLISHED: dict[str, Any] = {
    "n_steps": 25,
    "n_starts": 0,
    "clipping_norm": 3.0,
    "value_share": 0.0,
    "lengthscale": 0.25,
    "noise_ratio": 0.05**2,
    "step_rule": "adagrad",
    "step_size": 0.075,
    "as_published": True,
    "random_start": True,
}
"""Settings of Algorithm 1 as published (Appendix E.1)."""


_AtLeastTwo = Annotated[int, integer(2)]
_Norm = Annotated[
    float | str,
    Rule(
        f"a positive number in [{SMALLEST:g}, {LARGEST:g}], 'adaptive'",
        lambda B: B in (ADAPTIVE, math.inf) or (is_finite(B) and SMALLEST <= B <= LARGEST),
    ),
]
_Kernel = Annotated[str, one_of(*sorted(KERNELS))]
_StepRule = Annotated[str, one_of(*sorted(STEP_RULES))]
_Memory = Annotated[int, integer(-1)]


@settings
class GIBOConfig(LossSettings):
    """Settings of one run; everything here is public.

    {settings}

    Raises:
        ValueError: For every value outside its range.
    """

    algorithm: ClassVar[str] = "dp-gibo"

    n_steps: Count | None = setting(
        "Gradient steps T; None for as many as 25 (d + 1) trials, or those that ``n_trials`` "
        "allows, are enough for, or for a search by released values instead, where at most four "
        "numeric parameters vary, values have little noise and no setting speaks of descent.",
        default=None,
    )
    n_trials: _AtLeastTwo | None = setting(
        "The most trials you want to run, for planning; on Ray Tune, None takes "
        "``num_samples``, if that is not -1.",
        default=None,
    )
    batch_size: Count | None = setting(
        "Trials a step; None for d + 1, or from 5 parameters on, where the steps are planned too, "
        "for 2 d in pairs around the centre.",
        default=None,
    )
    tolerance: Positive | None = setting(
        "Instead of ``batch_size``: the trace of the gradient's posterior covariance that "
        "the fewest points should reach (unit-cube units; it starts at d / lengthscale²).",
        default=None,
    )
    n_starts: WholeNumber | None = setting(
        "Start points K, the centre first; None for 16, at most a quarter of ``n_trials``, or "
        "with choices four for each combination up to a third; half of 20 or of ``n_trials`` "
        "where nothing is numeric. A number plans descent.",
        default=None,
    )
    clipping_norm: _Norm | None = setting(
        'Largest norm B of one record\'s gradient (losses over the unit cube); "adaptive" '
        "follows a private quantile, which is charged too. None plans it: .1 to 1 of the width "
        "of ``loss_bound``, the less the noise allows.",
        default=None,
    )
    loss_bound: LossBound = setting(
        "Values are clipped to [0, loss_bound], or (low, high), before they are released. "
        "Gradients see the unclipped losses, a search by released values does not.",
        default=1.0,
    )
    value_share: Share = setting(
        "Share of mu² spent on the values that dashboards show, after the 7 % that the "
        "comparison with the incumbent costs. A search by values spends all but 15 % there, and "
        "one that selects choices before descent a half. With 0 nothing is compared.",
        default=0.075,
    )
    kernel: _Kernel = setting('"rbf", "matern52" or "polynomial2".', default="rbf")
    lengthscale: Positive | None = setting(
        "Length-scale, in units of the unit cube; None plans it: .15 to .35 for fewer than 5 "
        "parameters, .25 to .17 sqrt(d) for planned pairs, longer where there is more noise.",
        default=None,
    )
    noise_ratio: NotNegative = setting(
        "Variance of one record's evaluation noise over the signal's. 0-1 losses jump, so "
        "the default is large.",
        default=0.01,
    )
    step_rule: _StepRule = setting(
        '"momentum", "adagrad", "adagrad-norm" or "sgd".', default="momentum"
    )
    step_size: Positive | None = setting(
        "Step size in units of the unit cube; None plans it.", default=None
    )
    memory: _Memory = setting(
        "Points of earlier steps that are used again (-1: all). Their raw losses stay in "
        "the vault; with 0 a step's losses are deleted as soon as it is released.",
        default=0,
    )
    as_published: bool = setting(
        "Estimate gradients as published: at theta itself from points optimised inside the cube, "
        "not moving the design inwards at the boundary, and without subtracting each record's "
        "mean before regressing.",
        default=False,
    )
    random_start: bool = setting(
        "Take a random point for the first start, as published, instead of the centre.",
        default=False,
    )

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.batch_size is not None and self.tolerance is not None:
            raise ValueError(
                f"Give batch_size or tolerance, not both: got {self.batch_size} and "
                f"{self.tolerance}."
            )
        if self.clipping_norm == math.inf and self.mu < math.inf:
            raise ValueError(
                "clipping_norm must be a finite positive number unless mu=inf, got inf."
            )
        if self.adaptive and self.value_share + NORM_SHARE >= 1:
            raise ValueError(
                f"value_share must stay below {1 - NORM_SHARE:g} where clipping_norm is adaptive, "
                f"which costs the rest; got {self.value_share}."
            )
        if self.value_share == 0 and self.n_starts not in (None, 0):
            raise ValueError(
                f"n_starts={self.n_starts} needs released values to choose from: value_share > 0."
            )

    @property
    def adaptive(self) -> bool:
        """Tells if the clipping norm follows a private quantile."""
        return self.clipping_norm == ADAPTIVE

    @property
    def value_range(self) -> tuple[float, float]:
        """(low, high) that values are clipped to before they are released."""
        return value_range(self.loss_bound)

    def make_kernel(self, lengthscale: Any) -> Kernel:
        """The kernel with one length-scale a coordinate."""
        kind: Any = KERNELS[self.kernel]
        return kind() if self.kernel == "polynomial2" else kind(lengthscale)  # type: ignore[no-any-return]

    @classmethod
    def paper(cls, mu: float, **changes: Any) -> GIBOConfig:
        """Algorithm 1 as published, with the settings of Appendix E.1.

        Random start, no start points, no released values, no centring, b = d + 1 fresh points a
        step, AdaGrad on coordinates, length-scale 1 and step .3 on ranges of width 4.
        """
        return cls(mu=mu, **(PUBLISHED | changes))

    @property
    def trials_given(self) -> bool:
        """Tells if steps or trials are limited."""
        return self.n_trials is not None or self.n_steps is not None

    def with_trials(self, n_trials: int | None) -> Self:
        """The same settings with another limit of trials."""
        return evolve(self, n_trials=n_trials)

    def plain(self) -> Self:
        """Settings of an unprotected run: no noise, no clipping, no end."""
        return evolve(
            self,
            mu=math.inf,
            epsilon=None,
            delta=None,
            clipping_norm=math.inf,
            n_steps=_ENDLESS,
            n_trials=None,
            value_share=max(self.value_share, 0.1),
            lengthscale=self.lengthscale or LENGTHSCALE,
            step_rule="adagrad-norm",  # shrinks by itself: a run without an end has no schedule
            step_size=None,
        )
