"""The plan: how many steps, points and releases a run makes, fixed before the first release.

Notation:

    ======  ============================================================
    symbol  meaning
    ======  ============================================================
    n       validation records
    d       numeric coordinates
    mu      total budget; mu² = mu_g² + mu_v² + mu_b² + mu_c²
    T, b    steps, and points a step
    K       start points
    S       points chosen by the values released before them; 0 in descent alone
    M       planned value releases, one a trial
    B_c     clip of one record's difference in the comparison with the incumbent
    B, C    clipping norm; width of the range of values
    nu      a step's noise over B, 2 sqrt(T d) / (n mu_g): its expected length
    l       length-scale, unit-cube units
    ======  ============================================================

What a user leaves open follows nu, which knows n, d and mu. A record's gradient that is clipped
still tells a direction, and the noise is B nu long: so B shrinks until the noise has one absolute
length, and not below a tenth of C, from where on smaller ones changed nothing. A longer l averages
over more of the space, which biases the gradient and costs no privacy: it grows as sqrt(nu), and
with few parameters stays short.
Pairs +- around the centre cancel even terms of the loss, among them the curvature that a simplex
takes for slope; 2 d points instead of d + 1 cost trials but no privacy, so that a run has fewer
steps and as many trials. With many coordinates the direction is mostly noise, so the way of all
steps together is bounded.

The last trials of descent are the incumbent, the end and the best by values, whose clipped
per-record differences are a release of their own
(:mod:`privbo_plugins.algorithms.dp_gibo.finalists`).
Clipped to a tenth of the range, differences of a few hundredths keep their size, and large ones
their sign, with a tenth of the noise.

With few numeric parameters and so much budget that a released value has little noise, descent is
given up for a search by values (:mod:`privbo_plugins.algorithms.dp_gibo.value_search`): the points
of all steps are chosen by the values before them and the whole budget goes to values. With
choices, released values select them (:mod:`privbo_plugins.algorithms.dp_gibo.choices`).

Everything here comes from public quantities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privbo_plugins.algorithms.dp_gibo import choices, design
from privbo_plugins.algorithms.dp_gibo.advice import advise
from privbo_plugins.algorithms.dp_gibo.config import LENGTHSCALE, NORM_SHARE, GIBOConfig
from privbo_plugins.algorithms.dp_gibo.steps import DECAYING
from privbo_plugins.algorithms.values import LossPlan
from privbo_plugins.privacy.figures import not_below
from privbo_plugins.privacy.mechanisms import check_share, gaussian_scale
from privbo_plugins.settings import fields_of
from privbo_plugins.spaces import Array, Space

_STARTS = 16
"""Default K for spaces with numeric parameters."""

_STEPS = 25
"""Default T, of d + 1 trials each."""

_PAIRED_FROM = 5
"""Parameters from which on pairs are planned: they helped with 15 and 64, and not with 2."""

_FEWEST_PAIRED = 8
"""Steps of pairs are planned where there is room for so many; of d + 1 trials otherwise."""

_LEAVING = 0.03
"""Gain, in widths of the range of values, for which descent with many parameters leaves the middle
at its start."""

_NOISE_LENGTH = 0.0126
"""B nu / C, the length of a step's noise over the range of values, that a planned B aims at."""

_LEAST_NORM = 0.1
"""B / C below which a planned B does not go."""

_LENGTH_RATE = 0.28
"""l / sqrt(d nu) of a planned length-scale."""

_LEAST_LENGTH = 0.25

_MOST_LENGTH = 0.17
"""Largest planned l / sqrt(d); a rotated pair then moves each coordinate by a limited amount."""

_FEW_LENGTHS = (0.15, 0.35)
"""Least and largest planned l of fewer parameters. A design that is moved inwards at the boundary
estimates the slope beside theta: a least loss between the two is passed, and a short l keeps
them near each other."""

_WAY = 2.0
"""Largest length of the planned way of steps that keep the direction, unit-cube units."""

_PRECISE = 0.0126
"""Largest noise of a value, in widths of the range of values, for a search by values."""

_TELLING = 0.75
"""Largest noise of a value, in widths of the range, from which all values name a point to compare:
a plateau has no slope, but values tell it."""

_FOR_EITHER = {
    "mu", "epsilon", "delta", "n_trials", "loss_bound", "training_mu", "incumbent"
}  # fmt: skip
"""Settings that say nothing of descent; any other setting that is given plans descent."""

_NOT_COMPARED = (
    "not measured with choices (docs/dp-gibo.md has DP-GIBO beside TPE without privacy)"
)

_COMPARED, _COMPARED_SEARCH = 0.07, 0.15
"""Shares of mu² for the comparison in the end: after descent, and after a search by values, which
compares more points."""

_COMPARISON_CLIP = 0.1
"""B_c / C."""

LAST = 3
"""Trials of the comparison after descent; 2 where values are mostly noise."""

_DROWNING = 0.5
"""Noise of a step's gradient, in clipping norms, from which a warning is due."""


@dataclass(frozen=True)
class Plan(LossPlan):
    """Steps, points and releases of a run, and the cost of each release.

    Attributes:
        n_records: n.
        d: Numeric coordinates.
        n_starts: K.
        n_steps: T.
        batch_size: b, the most points a step asks for.
        n_values: M, planned value releases.
        n_last: Trials at the end, for the comparison; 0 where those before it have all points.
        mu: Total budget.
        mu_gradient: Spent on each gradient.
        mu_value: Spent on each value; 0 if values are not released.
        mu_norm: Spent on each update of an adaptive norm; 0 otherwise.
        gradient_noise: Standard deviation a coordinate of a released gradient, at the first B.
        value_noise: Standard deviation of a released value.
        mu_comparison: Spent on the comparison with the incumbent; 0 without one.
        comparison_noise: Standard deviation of that release.
        comparison_clip: B_c.
        clipping_norm: B at the start.
        step_size: eta, unit-cube units.
        training_mu: Charged to the training records for each training; None if nothing is.
        lengthscale: l, of coordinates that are not coarse.
        n_searched: S.
        n_combinations: Combinations of choices, A; 1 without choices.
    """

    n_records: int
    d: int
    n_starts: int
    n_steps: int
    batch_size: int
    n_values: int
    n_last: int
    mu: float
    mu_gradient: float
    mu_value: float
    mu_norm: float
    gradient_noise: float
    value_noise: float
    clipping_norm: float
    step_size: float
    mu_comparison: float = 0.0
    comparison_noise: float = 0.0
    comparison_clip: float = 0.0
    training_mu: float | None = None
    lengthscale: float = LENGTHSCALE
    n_searched: int = 0
    n_combinations: int = 1

    @property
    def n_trials(self) -> int:
        """Planned trials: K + S + T b, and those that are compared in the end."""
        evaluated = self.n_starts + self.n_searched + self.n_steps * self.batch_size
        return evaluated + self.n_last

    @property
    def turns(self) -> int:
        """Trials that run one after another: start points and searched ones, steps, the last."""
        begun, batch = self.n_starts + self.n_searched, math.ceil(self.batch_size / self.n_workers)
        last = math.ceil(self.n_last / self.n_workers)
        return math.ceil(begun / self.n_workers) + self.n_steps * batch + last

    @property
    def noise_norm(self) -> float:
        """Expected length of a step's noise over the clipping norm."""
        return self.gradient_noise * math.sqrt(self.d) / self.clipping_norm

    @property
    def noise_dominates(self) -> bool:
        """Tells if the noise is likely to hide the gradient."""
        return self.n_steps > 0 and self.noise_norm > _DROWNING

    @property
    def advice(self) -> dict[str, Any]:
        """Methods that were as good as any for such d and n mu (:func:`advise`); JSON-ready."""
        if self.n_combinations > 1:
            return {"as_good": [], "text": _NOT_COMPARED}
        return advise(self.d, self.n_records, self.mu)

    def noise_warning(self) -> str:
        """Says how large the noise is, what follows, and what helps."""
        return (
            f"The noise of one step is {self.noise_norm:.2f} clipping norms long "
            f"(n={self.n_records}, d={self.d}, mu={not_below(self.mu, 6)}, "
            f"T={self.n_steps}): the run is private but may wander. More records, a larger "
            "mu, a smaller clipping_norm, fewer parameters or fewer steps help."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields and advice; infinities as the string "inf"."""
        return super().to_dict() | {"advice": self.advice}

    def _lines(self) -> list[str]:
        compared = (
            f"{self.n_last} trials at the end: the incumbent (or the middle) and what may be "
            if self.n_last
            else "at the end, without a trial more: the incumbent (or the middle) and what may be "
        )
        last = [
            f"  {compared}better, whose differences are released with noise of sd "
            f"{self.comparison_noise:.3g} (mu={not_below(self.mu_comparison, 3)})",
            f"  {self.n_values} released values with noise of sd {self.value_noise:.3g} each "
            f"(mu={not_below(self.mu_value, 3)})",
        ]
        return [
            f"DP-GIBO plan: {self.n_trials} trials, n={self.n_records} {self.entries}, "
            f"d={self.d}, mu={not_below(self.mu, 6)} in total",
            f"  {self.n_starts} start points",
            *self._told_search(),
            *(last if self.n_values else ["  no released values"]),
            f"  which method: {self.advice['text']}",
        ]

    def _told_search(self) -> list[str]:
        searched = f"  {self.n_searched} points, each chosen by the values released before it"
        steps = (
            f"  {self.n_steps} steps of {self.batch_size} trials; each released gradient carries "
            f"noise of sd {self.gradient_noise:.3g} a coordinate ({self.noise_norm:.2f} clipping "
            f"norms long, mu={not_below(self.mu_gradient, 3)}); clipping norm "
            f"{self.clipping_norm:.3g}, length-scale {self.lengthscale:.3g}"
        )
        if not self.n_searched:
            return [steps]
        if not self.n_steps:
            return [searched + (" (no gradients)" if self.d else "")]
        return [searched + ", which also select the choices", steps]


def lengthscales(config: GIBOConfig, space: Space, plan: Plan | None = None) -> Array:
    """One length-scale a numeric coordinate, shape (d,); before there is a plan, an unplanned one.

    A coordinate on a coarse grid needs one so long that a design reaches its neighbours.
    """
    d = space.d
    unplanned = config.lengthscale or LENGTHSCALE
    wanted = unplanned if plan is None else plan.lengthscale
    coarse = space.resolution[space.numeric] * math.sqrt(max(d, 1)) / 0.37
    return np.asarray(np.maximum(wanted, np.minimum(coarse, 4.0)))


def plan_starts(config: GIBOConfig, space: Space) -> int:
    """K from the space and the trial limit; needed before n is known."""
    d = space.d
    usual = _usual_starts(config, d)
    if not selects_choices(config, space):
        return usual
    trials = config.n_trials or _STARTS + _STEPS * (d + 1) + LAST
    return choices.starts(space, usual, trials)


def _usual_starts(config: GIBOConfig, d: int) -> int:
    if config.n_starts is not None:
        return config.n_starts
    if config.value_share == 0:
        if d == 0:
            raise ValueError(
                "A space without numeric parameters is searched by released values alone: "
                "value_share must be > 0."
            )
        return 0
    wanted = _STARTS if d > 0 else 20
    if config.n_trials is not None:
        share = config.n_trials if d == 0 else config.n_trials // 4
        wanted = max(1, min(wanted, share) if d > 0 else share)
    return wanted


def plan_batch(config: GIBOConfig, space: Space) -> int:
    """b: given, d + 1, or the fewest points around the middle that reach the tolerance."""
    if config.batch_size is not None:
        return config.batch_size
    d = space.d
    if config.tolerance is None or d == 0:
        return d + 1
    scales = lengthscales(config, space)
    fewest = design.fewest_points(
        config.make_kernel(scales), np.empty((0, d)), np.full(d, 0.5), config.noise_ratio,
        tolerance=config.tolerance, most=4 * d,
        offsets=lambda b: 0.3 * scales * design.structured_directions(
            d, b, np.random.default_rng(0)
        ),
    )  # fmt: skip
    if fewest is None:
        raise ValueError(
            f"tolerance={config.tolerance} is not reached by {4 * d} points. Raise it, or lower "
            "noise_ratio."
        )
    return fewest


def plans_designs(config: GIBOConfig) -> bool:
    """Tells if the points of a step are planned beyond their usual number and spread."""
    given = (config.n_steps, config.batch_size, config.tolerance)
    usual = config.memory == 0 and not config.as_published and config.kernel != "polynomial2"
    return usual and given == (None, None, None)


def leaving_margin(config: GIBOConfig, d: int) -> float:
    """Lead over the middle, beside noise and in units of values, that a start point needs.

    With many parameters an evenly spread point lies near a corner of some of them, where descent
    found worse low regions although the point itself was a little better.
    """
    if d < _PAIRED_FROM or not plans_designs(config):
        return 0.0
    low, high = config.value_range
    return _LEAVING * (high - low)


def plan_pairs(config: GIBOConfig, d: int, K: int) -> int:
    """T of steps of 2 d trials, in as many trials as 25 steps of d + 1 make; 0 without pairs."""
    if d < _PAIRED_FROM or not plans_designs(config):
        return 0
    room = math.inf if config.n_trials is None else (config.n_trials - K - LAST) // (2 * d)
    T = int(min(_STEPS * (d + 1) // (2 * d), room))
    return T if T >= _FEWEST_PAIRED else 0


def reads_values(config: GIBOConfig, space: Space) -> bool:
    """Tells if the points of a run may be chosen by released values: nothing says otherwise.

    Without privacy there is descent, which then is GIBO.
    """
    if space.d == len(space) > choices.FEW:
        return False
    of_descent = {n: f for n, f in fields_of(GIBOConfig).items() if n not in _FOR_EITHER}
    given = any(getattr(config, name) != field.default for name, field in of_descent.items())
    return not (given or math.isinf(config.mu))


def selects_choices(config: GIBOConfig, space: Space) -> bool:
    """Tells if start points try every choice, and released values may select among them."""
    return space.d < len(space) and reads_values(config, space)


def plan_search(config: GIBOConfig, space: Space, n_records: int, K: int, steps: int) -> int:
    """S of K + steps + 3 trials; the trials that are left are those of descent.

    Without descent the last trials are searched as well: what is compared was evaluated before.
    """
    d, trials = space.d, K + steps + LAST
    if not reads_values(config, space):
        return 0
    if d == 0:
        return _usual_starts(config, 0) - K
    mixed = d < len(space)
    all_of_it = not mixed or d <= choices.FEW
    share = 1.0 - _COMPARED_SEARCH if all_of_it else (1.0 - _COMPARED) * choices.HALF
    mu = config.mu * math.sqrt(share / trials)
    precise = gaussian_scale(1.0 / n_records, mu) <= (choices.PRECISE if mixed else _PRECISE)
    if not precise:
        return 0
    return steps + LAST if all_of_it else min(K, steps // 2)


def compares(config: GIBOConfig) -> bool:
    """Tells if a run ends with a comparison: where values may be released at all."""
    return config.value_share > 0


def plan_norm(config: GIBOConfig, nu: float) -> float:
    """B at the start: given, 1 for one that adapts, or what the noise allows."""
    if config.clipping_norm is not None:
        return 1.0 if isinstance(config.clipping_norm, str) else float(config.clipping_norm)
    low, high = config.value_range
    share = _NOISE_LENGTH / nu if nu > 0 else 1.0
    return min(max(share, _LEAST_NORM), 1.0) * (high - low)


def plan_lengthscale(config: GIBOConfig, d: int, nu: float, *, paired: bool) -> float:
    """l: given, the usual one, or for planned pairs or few parameters what suits the noise."""
    few = 0 < d < _PAIRED_FROM and plans_designs(config)
    if config.lengthscale is not None or not (paired or few):
        return config.lengthscale or LENGTHSCALE
    ends = _FEW_LENGTHS if few else (_LEAST_LENGTH, _MOST_LENGTH * math.sqrt(d))
    return max(min(_LENGTH_RATE * math.sqrt(d * nu), ends[1]), ends[0])


def plan_steps(config: GIBOConfig, d: int, b: int, K: int) -> int:
    """T: as given, or the default within the trial limit.

    The default steps keep the direction of the released gradients and average it, so T does not
    shrink with mu: the noise of many steps averages out.
    """
    if d == 0:
        return 0
    T = _STEPS if config.n_steps is None else config.n_steps
    last = LAST * compares(config)
    room = T if config.n_trials is None else (config.n_trials - K - last) // b
    if config.n_steps is not None and T > room:
        raise ValueError(
            f"n_steps={T} and n_trials={config.n_trials} exclude each other: {K + T * b + last} "
            "trials are needed. Lower n_steps or raise n_trials."
        )
    T = min(T, room)
    if T < 1:
        raise ValueError(
            f"n_trials={config.n_trials} leaves no room for one step of {b} trials after {K} "
            f"start points and before the {last} last trials: at least {K + b + last} are needed."
        )
    return T


def make_plan(config: GIBOConfig, space: Space, n_records: int) -> Plan:
    """The plan for n records.

    Args:
        config: The settings.
        space: The search space.
        n_records: n >= 1.

    Raises:
        ValueError: If the trial limit leaves no room for one step, or a tolerance is out of
            reach.

    Example:
        >>> from privbo_plugins.spaces import Float
        >>> make_plan(GIBOConfig(mu=1.0), Space({"x": Float(0, 1)}), 1000).batch_size
        2
    """
    d, (K, S, T, b, paired) = space.d, _counts(config, space, n_records)
    low, high = config.value_range
    for last in (LAST, LAST - 1) if T > 0 else (0,):
        M = (K + S + T * b + last) * compares(config)
        shares = _shares(config, T, M, S)
        value_noise = _noise((high - low) / n_records, shares["mu_value"])
        if T > 0 and value_noise <= _TELLING * (high - low):
            break
    check_share(shares["mu_norm"] or math.inf)
    nu = _noise(2 / n_records, shares["mu_gradient"]) * math.sqrt(d)
    B = plan_norm(config, nu)
    B_c = math.inf if math.isinf(config.mu) else _COMPARISON_CLIP * (high - low)
    return Plan(
        n_records=n_records,
        d=d,
        n_starts=K,
        n_steps=T,
        batch_size=b,
        n_values=M,
        n_last=last * compares(config),
        mu=config.mu,
        gradient_noise=_noise(2 * B / n_records, shares["mu_gradient"]),
        value_noise=value_noise,
        comparison_noise=_noise(2 * B_c / n_records, shares["mu_comparison"]),
        comparison_clip=B_c,
        clipping_norm=B,
        step_size=config.step_size or _default_step_size(config, d, T),
        training_mu=config.training_mu,
        lengthscale=plan_lengthscale(config, d, nu, paired=paired),
        n_searched=S,
        n_combinations=choices.n_arms(space),
        **shares,
    )


def _counts(config: GIBOConfig, space: Space, n_records: int) -> tuple[int, int, int, int, bool]:
    """K, S, T and b, and whether the points of a step are pairs."""
    d, K = space.d, plan_starts(config, space)
    pairs = plan_pairs(config, d, K)
    b = 2 * d if pairs else plan_batch(config, space)
    T = pairs or plan_steps(config, d, b, K)
    S = plan_search(config, space, n_records, K, T * b)
    return K, S, max(T * b - S, 0) // b if d else 0, b, pairs > 0


def _noise(sensitivity: float, mu: float) -> float:
    """Standard deviation of a release; 0 where none is planned."""
    return gaussian_scale(sensitivity, mu) if mu else 0.0


def _shares(config: GIBOConfig, T: int, M: int, S: int) -> dict[str, Any]:
    """Mu of each gradient, value and update of the norm, and of the comparison, by field.

    The comparison is paid first, the others share the rest; squares of all add up to the budget's.
    """
    compared = (_COMPARED if T > 0 else _COMPARED_SEARCH) if M else 0.0
    norm_share = NORM_SHARE if config.adaptive and T > 0 else 0.0
    value_share = (choices.HALF if S else config.value_share) if T > 0 else 1.0
    shares = {
        "mu_gradient": (1 - value_share - norm_share, T),
        "mu_value": (value_share, M),
        "mu_norm": (norm_share, T),
    }
    rest = config.mu * math.sqrt(1 - compared)
    each = {name: rest * math.sqrt(x / m) if x and m else 0.0 for name, (x, m) in shares.items()}
    return each | {"mu_comparison": config.mu * math.sqrt(compared) if compared else 0.0}


def _default_step_size(config: GIBOConfig, d: int, T: int) -> float:
    """Eta in unit-cube units; decaying rules go half the cube's diagonal in T steps, or _WAY."""
    if config.step_rule not in DECAYING:
        return 0.15
    half = math.sqrt(max(d, 1)) / 2
    return min(1.0, _WAY / half) / max(T, 1)
