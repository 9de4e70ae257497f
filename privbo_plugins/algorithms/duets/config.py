"""Settings of DUETS, and what theory says of the width and of the lengths of epochs.

Notation:

    ======  =====================================================================  =======
    symbol  meaning                                                                shape
    ======  =====================================================================  =======
    N       agents                                                                 integer
    T       evaluations (plays in the paper) of one agent                          integer
    T_j     evaluations of one agent in epoch j                                    integer
    U_T     discretisation of the domain                                           (M, D)
    lam     noise variance over signal variance (eq. 3); ``noise_ratio``           scalar
    beta    width of the confidence interval, in posterior standard deviations     scalar
    B       bound on the norm of f, in units of the signal's standard deviation    scalar
    ======  =====================================================================  =======

Source: Pavlovic, Salgia and Zhao, *Order-Optimal Regret in Distributed Kernel Bandits using
Uniform Sampling with Shared Randomness*, sections 3 and 4.

What the theory leaves free, and how the default uses it:

* *Epochs.* The proof needs T_j <= 2 sqrt(T T_{j-1}) only. Lengths that double satisfy
  ``sum_j N T_j sqrt(gamma / (N T_{j-1})) = O(sqrt(N T gamma))`` too: the regret keeps its order
  and loses the factor J, the number of epochs grows from log log T to log T, and with it the
  communication by as much.
* *Trimming.* What the proof uses is that the best point stays and that what stays is nearly as
  good. Upper bound against the best lower bound, point by point, keeps both and is tighter than
  equation (9), which takes the largest deviation for every point.
* *Where coins fall.* Each draw is uniform on the active set, but the draws of an epoch need not be
  independent: cut into as many cells of equal size as there are draws, dealt out at random, one
  draw in each, they spread better and stay uniform one by one.
* *The last epoch* is followed by none that could learn from it, so every evaluation may go to the
  maximiser of the posterior mean, which lies in the set that the proof bounds.
* *Who knows the coins.* If agents know each other's coins as well, the inducing set and the
  deviations are computed everywhere and never sent. An agent that holds fewer rewards than
  there are inducing points sends the rewards.
* *The width's constants*, B, R and lam: the signal's and the noise's size are taken from the
  rewards (by marginal likelihood, for which an agent sends two further numbers). That is a rule
  of thumb: the theorem knows them beforehand. So is a tenth of its width.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from privbo_plugins.privacy.reward_noise import RewardScale
from privbo_plugins.settings import (
    Count,
    Positive,
    fields_of,
    integer,
    one_of,
    setting,
    settings,
)

WIDTH = 0.1
"""What the default multiplies the theorem's width by: see the benchmark's figure."""

B, FAILURE = 1.0, 0.1
"""Of the theorem: the norm of f in signal standard deviations, and the chance of failure."""

MANY_AGENTS = 8
"""From so many agents on one draw each is start enough: see the benchmark's figure."""

_OF_FEW_AGENTS = 2
"""T_1 of fewer agents, and as published, where none is given."""

PUBLISHED: dict[str, Any] = {"variant": "paper"}
"""Settings of the algorithm as published, with the width of the theorem."""

_Variant = Annotated[str, one_of("default", "paper")]
_Kernel = Annotated[str, one_of("rbf", "matern52")]
_Final = Annotated[str, one_of("top", "best")]
_Discretisation = Annotated[int, integer(16)]

_ONLY = {"p0": "paper", "noise_ratio": "paper", "final": "default"}
"""Settings of one variant."""


@settings
class DUETSSettings:
    """Settings in words that users say them in."""

    n_agents: Count = setting(
        "N, number of agents, >= 1: about as many as there are workers.",
        default=8,
        kw_only=False,
    )
    variant: _Variant = setting(
        '"default", or "paper" for the algorithm as published: lengths of epochs that need '
        "``n_trials``, equation (9) for every point, independent draws, a last epoch like every "
        "other, the theorem's width, nothing fitted, inducing points drawn and sent, and coins "
        "that the server and the agent alone can replay. The workers of one study or search "
        "hide nothing from each other: each can know every coin.",
        default="default",
    )
    first_epoch: Count | None = setting(
        "Evaluations of an agent in the first epoch, >= 1; None for 1 from eight agents on, and "
        "for 2 of fewer and as published.",
        default=None,
    )
    final: _Final = setting(
        'What the last epoch of the default evaluates: "top" the most promising points, each '
        'once, or "best" the most promising one, which has the least regret.',
        default="top",
    )
    p0: Positive = setting(
        'Oversampling of the inducing points that "paper" draws, > 0.', default=10.0
    )
    beta: Positive | None = setting(
        "Width of the confidence intervals in posterior standard deviations; None for the "
        "theorem's.",
        default=None,
    )
    beta_scale: Positive = setting(
        "Multiplies the width, of which the default takes a tenth: smaller trims sooner.",
        default=1.0,
    )
    noise_ratio: Positive = setting(
        'lambda, noise variance over signal variance, which "paper" knows beforehand.',
        default=0.04,
    )
    kernel: _Kernel = setting('"rbf" or "matern52", on the unit cube.', default="rbf")
    lengthscale: Positive | None = setting(
        "Length-scale in units of the unit cube; None for 0.2 sqrt(D).",
        default=None,
    )
    discretisation: _Discretisation = setting(
        "Number of points that stand for the space, >= 16.",
        default=2048,
    )
    n_trials: Count | None = setting(
        "Number of trials that you expect, of all agents together, for the epochs' lengths: "
        "an agent takes T = ceil(n_trials / n_agents) of them, and the last epoch evaluates the "
        "most promising points. None if it is not known: then no epoch is the last. It does "
        "not end a run.",
        default=None,
    )


@settings
class DUETSConfig(RewardScale, DUETSSettings):
    """Public settings of one run.

    {settings}

    Raises:
        ValueError: For every setting outside its range.

    Example:
        >>> [DUETSConfig.paper(10, horizon=50).length(j, t) for j, t in ((0, 0), (2, 2), (10, 12))]
        [2, 10, 22]
    """

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.published and self.n_trials is None:
            raise ValueError(
                'The epochs of variant="paper" have the lengths floor(sqrt(T T_{j-1})) with '
                'T = n_trials / n_agents: give n_trials=, or use variant="default".'
            )
        declared = fields_of(DUETSConfig)
        for name, variant in _ONLY.items():
            if self.variant != variant and getattr(self, name) != declared[name].default:
                raise ValueError(
                    f"{name}= does nothing with variant={self.variant!r}: it belongs to "
                    f"{variant!r}."
                )

    @classmethod
    def paper(cls, n_agents: int, horizon: int, **changes: Any) -> Self:
        """The algorithm as published: the theorem's width, the experiments' p0 = 10 and T_1 = 2.

        The theorem itself asks for p0 = 72 ln(4 N T / delta') and a T_1 whose constant it does not
        name; the experiments, which have short runs, choose ``beta`` from {.2, .5, 1, 2, 5}.
        """
        return cls(n_agents=n_agents, n_trials=n_agents * horizon, **(PUBLISHED | changes))

    @property
    def published(self) -> bool:
        """Tells if the algorithm runs as published."""
        return self.variant == "paper"

    @property
    def horizon(self) -> int | None:
        """T, evaluations of one agent; None if it is not known, and then no epoch is the last."""
        return None if self.n_trials is None else -(-self.n_trials // self.n_agents)

    @property
    def T_1(self) -> int:
        """Evaluations of an agent in the first epoch: as given, or for so many agents."""
        if self.first_epoch is not None:
            return self.first_epoch
        return 1 if self.n_agents >= MANY_AGENTS and not self.published else _OF_FEW_AGENTS

    @property
    def planned_trials(self) -> int | None:
        """N T, trials of all agents together; None without an end."""
        return None if self.horizon is None else self.n_agents * self.horizon

    def length(self, previous: int, evaluated: int) -> int:
        """T_j, from T_{j-1} (0 before the first) and the evaluations of an agent so far."""
        if self.published and previous:
            planned = math.isqrt(int(self.horizon or 0) * previous)
        else:
            planned = 2 * previous or self.T_1
        left = math.inf if self.horizon is None else self.horizon - evaluated
        return int(min(max(planned, 1), max(left, 0)))

    def width(self, evaluated: int) -> float:
        """beta(delta') = B + R sqrt(2 / lam ln(2 / delta')) with R² = lam (Lemma 2.5)."""
        if self.beta is not None:
            return self.beta_scale * self.beta
        T = max(self.horizon or evaluated, 2)
        epochs = math.log(max(math.log(max(self.n_agents, 2)) * math.log(T), 1.0)) + 4
        failure = FAILURE / (2 * self.discretisation * epochs)
        theorem = B + math.sqrt(2 * math.log(2 / failure))
        return self.beta_scale * theorem * (1.0 if self.published else WIDTH)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what is not given is what follows."""
        return super().to_dict() | {"first_epoch": self.T_1}
