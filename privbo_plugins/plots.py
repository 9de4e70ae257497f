"""Pictures of a run for people; they show releases and public facts only.

Each ``picture_of_...`` describes one; :mod:`privbo_plugins.drawing` draws it.
:mod:`privbo_plugins.reports` says what each system's report is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import FINAL, OUTSIDE, START, STEP
from privbo_plugins.drawing import (
    BAND,
    BOTH,
    COLOURS,
    DOTTED,
    GREY,
    LINE,
    POINTS,
    Picture,
    Series,
)
from privbo_plugins.page import Report as Report

Array = NDArray[np.float64]

# What has been published --------------------------------------------------------------------


_ROLES = {START: GREY, STEP: COLOURS[0], OUTSIDE: COLOURS[2], FINAL: COLOURS[3]}


@dataclass(frozen=True)
class History:
    """What a run has published, ready to be drawn.

    Attributes:
        values: (role, step, released value) in order of release.
        value_noise: Standard deviation of the noise on each value.
        names: Parameter names, D of them.
        path: Where the releases have led in the unit cube, one point a step, shape (t, D); of
            DP-GIBO the centres theta_0 to theta_t.
        centres: The same, decoded to parameters.
        spent: Cumulative mu after each release.
        budget: Declared total mu.
        places: Where the values were released, as points of a model, shape (m, p); None where a
            run has stored none.
        aim: The recommended point, likewise, shape (p,); None before there is one.
    """

    values: Sequence[tuple[str, int, float]]
    value_noise: float
    names: Sequence[str]
    path: Array
    centres: Sequence[Mapping[str, Any]]
    spent: Sequence[float]
    budget: float
    places: Array | None = None
    aim: Array | None = None


@dataclass(frozen=True)
class RewardHistory:
    """What a run of privatised rewards has published; a reward that is no release is not in it.

    Attributes:
        values: Released rewards, in order.
        noise: The largest standard deviation of one of them, in reward units.
        points: Parameters of each that vary; None where they are unknown.
        names: Parameter names, D of them.
        path: The same in the unit cube, shape (t, D); NaN where they are unknown.
    """

    values: Sequence[float]
    noise: float
    points: Sequence[Mapping[str, Any] | None]
    names: Sequence[str]
    path: Array


@dataclass(frozen=True)
class RowHistory:
    """What a curator has answered, and what a modeler makes of it.

    Attributes:
        rows: Numbers of the rows that have an answer, in order.
        answers: The answers, as the curator gave them.
        maximize: Whether large ones are wanted; None where that is unknown.
        noise: Standard deviation of what randomises an answer; 0 where none are.
        means: Posterior mean of each row's outcome; empty where no model was asked.
        deviations: Its standard deviations; likewise.
    """

    rows: Sequence[int]
    answers: Sequence[float]
    maximize: bool | None
    noise: float = 0.0
    means: Sequence[float] = ()
    deviations: Sequence[float] = ()


@dataclass(frozen=True)
class Round:
    """What a federation's round has broadcast, in two numbers.

    Attributes:
        number: From 1.
        size: Root mean square of the broadcast numbers, noise included.
        noise: Standard deviation of the noise in one of them.
    """

    number: int
    size: float
    noise: float


@dataclass(frozen=True)
class FederationHistory:
    """What a federation has broadcast.

    Attributes:
        rounds: Those that were released, in order.
        n_rounds: How many may be.
        spent: (rounds, epsilon of so many of them), from the first to the last that may be.
    """

    rounds: Sequence[Round]
    n_rounds: int
    spent: Sequence[tuple[int, float]]


# What pictures show -------------------------------------------------------------------------


def picture_of_values(history: History) -> Picture:
    """Shows released values in order, with the noise's standard deviation as error bars."""
    series = []
    for role, colour in _ROLES.items():
        points = [(i, v) for i, (r, _, v) in enumerate(history.values) if r == role]
        if points:
            x, y = zip(*points, strict=True)
            series.append(Series(role, x, y, POINTS, history.value_noise, colour=colour))
    return Picture(
        "Released values (clipped mean plus noise; bars: one standard deviation)",
        "Each point is one release. Two in three exact means lie within the bar, so values differ "
        "by more than noise only where their bars lie far apart.",
        "release", "released value", series,
    )  # fmt: skip


def picture_of_path(history: History) -> Picture:
    """Shows each parameter's place by step, in unit-cube units."""
    return Picture(
        "Path of the recommendation",
        "Each line is a parameter, from the lower end of its range (0) to the upper (1). Where "
        "the lines lie flat, later releases have changed little.",
        "step", "unit-cube coordinate",
        _coordinates(history.names, history.path, history.centres, BOTH),
    )  # fmt: skip


def _coordinates(
    names: Sequence[str], path: Array, values: Sequence[Mapping[str, Any] | None], look: str
) -> list[Series]:
    """Makes a series a parameter of points of shape (t, D); texts say the value."""
    return [
        Series(
            name,
            list(range(len(path))),
            [float(x[j]) for x in path],
            look,
            texts=["" if known is None else f"{name} = {known[name]}" for known in values],
        )
        for j, name in enumerate(names)
    ]


def picture_of_budget(history: History) -> Picture:
    """Shows cumulative mu by release, against the declared budget."""
    releases = list(range(1, len(history.spent) + 1))
    series = [Series("spent", releases, list(history.spent), LINE)]
    if releases and np.isfinite(history.budget):
        series.append(
            Series("declared mu", [1, releases[-1]], [history.budget] * 2, DOTTED, colour=GREY)
        )
    return Picture(
        "Budget spent",
        "The line is what so many releases had cost when this was drawn (the root of their summed "
        "squares); it cannot cross the dotted one.",
        "release", "mu spent", series,
    )  # fmt: skip


def picture_of_communication(summary: Mapping[str, Any]) -> Picture:
    """Shows the real numbers that agents and server have sent after each epoch of DUETS.

    Args:
        summary: Of :meth:`privbo_plugins.algorithms.duets.DUETS.status`, or what a study's user
            attribute ``privbo:duets`` holds.
    """
    epochs = summary["epochs"]
    trials = np.cumsum([epoch["length"] * summary["agents"] for epoch in epochs]).tolist()
    named = (
        ("per_agent", "per agent: own uploads and all broadcasts"),
        ("up", "uploads of all agents together"),
        ("down", "broadcasts, each counted once"),
    )
    return Picture(
        "Communication",
        "Each point is the end of an epoch. A flat line sends little for many trials.",
        "trials", "real numbers sent so far",
        [Series(name, trials, [epoch[key] for epoch in epochs]) for key, name in named],
    )  # fmt: skip


def picture_of_active_set(summary: Mapping[str, Any]) -> Picture:
    """Shows the share of the search space that each epoch of DUETS has left.

    Args:
        summary: As for :func:`picture_of_communication`.
    """
    epochs = summary["epochs"]
    left = Series(
        "",
        [0, *(epoch["epoch"] for epoch in epochs)],
        [1.0, *(epoch["share"] for epoch in epochs)],
        texts=["", *(f"{epoch['components']} component(s)" for epoch in epochs)],
    )
    return Picture(
        "Active set",
        "The line is the share of the search space in which the best point can still lie, on a "
        "logarithmic scale.",
        "epochs done", "share of the search space that is left", [left], log=True,
    )  # fmt: skip


def picture_of_releases(history: RewardHistory) -> Picture:
    """Shows released rewards in order, and the mean of all so far with its 95 % band."""
    count = np.arange(1, len(history.values) + 1)
    mean = np.cumsum(history.values) / count
    reach = 1.96 * history.noise / np.sqrt(count)
    x = count.tolist()
    return Picture(
        "Released rewards (privatised; band: where the mean is known to, 95 %)",
        "One release says next to nothing of its user; only the mean of many does, as far as its "
        "band reaches.",
        "release", "released reward",
        [
            Series("one release", x, list(history.values), POINTS, colour=GREY),
            Series("", x, (mean + reach).tolist(), BAND, low=(mean - reach).tolist(),
                   colour=COLOURS[0]),
            Series("mean so far", x, mean.tolist(), LINE, colour=COLOURS[0]),
        ],
    )  # fmt: skip


def picture_of_evaluations(history: RewardHistory) -> Picture:
    """Shows where each released reward was asked for, in unit-cube units."""
    return Picture(
        "Settings that users were asked",
        "Each point is where a parameter was in one evaluation, from the lower end of its range "
        "(0) to the upper (1). Rows of points are settings that were asked again and again.",
        "release", "unit-cube coordinate",
        _coordinates(history.names, history.path, history.points, POINTS),
    )  # fmt: skip


def picture_of_answers(history: RowHistory) -> Picture:
    """Shows answers in order, and the best of them so far."""
    x, best = list(range(1, len(history.answers) + 1)), None
    rows = [f"row {row}" for row in history.rows]
    told = Series("answer", x, list(history.answers), POINTS, history.noise, texts=rows)
    if history.maximize is not None:
        pick = np.maximum if history.maximize else np.minimum
        best = Series("best so far", x, pick.accumulate(history.answers).tolist(), LINE)
    bars = "Each bar is one standard deviation of what randomises the answer. "
    return Picture(
        "Answers (bars: one standard deviation of what randomises them)",
        f"Each point is the outcome of one row. {bars if history.noise else ''}"
        "The best so far may be the luckiest answer.",
        "answer", "outcome as told", [told] if best is None else [told, best],
    )  # fmt: skip


def picture_of_rounds(history: FederationHistory) -> Picture:
    """Shows the size of each round's broadcast beside the noise that is in it."""
    named = (("broadcast, noise included", "size"), ("noise alone", "noise"))
    x = [done.number for done in history.rounds]
    return Picture(
        "What each round has broadcast (root mean square of its numbers)",
        "Where the upper line hardly leaves the lower one, a broadcast is mostly noise.",
        "round", "size of one number",
        [Series(name, x, [getattr(done, key) for done in history.rounds]) for name, key in named],
        from_zero=True,
    )  # fmt: skip


def picture_of_spent(history: FederationHistory) -> Picture:
    """Shows epsilon by round: of those released, and of those that may still be."""
    released = len(history.rounds)
    parts = (
        ("released", BOTH, [(t, e) for t, e in history.spent if t <= released]),
        ("still to come", DOTTED, [(t, e) for t, e in history.spent if t >= released]),
    )
    return Picture(
        "Budget by round",
        "The line is epsilon of all rounds up to there, for one agent; its end is the most that "
        "this federation can cost.",
        "rounds released", "epsilon",
        [
            Series(name, [t for t, _ in part], [e for _, e in part], look)
            for name, look, part in parts
            if len(part) > (look == DOTTED)  # the first to come is released already
        ],
    )  # fmt: skip
