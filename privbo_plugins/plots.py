"""Pictures of a run for people; they show releases and public facts only.

Each ``picture_of_...`` gives the series of one, whose words stand in ``pictures.toml``;
:mod:`privbo_plugins.drawing` draws it.
:mod:`privbo_plugins.reports` says what each system's report is made of.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import FINAL, OUTSIDE, START, STEP, Comparison
from privbo_plugins.drawing import (
    BAND,
    BOTH,
    COLOURS,
    DOTTED,
    FAINT,
    GREY,
    HOLLOW,
    LINE,
    POINTS,
    RING,
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
        spent: Cumulative mu after each charge, which is one a release.
        budget: Declared total mu.
        places: Where the values were released, as points of a model, shape (m, p); None where a
            run has stored none.
        aim: The recommended point, likewise, shape (p,); None before there is one.
        comparison: How it compares with the incumbent; None where nothing says it.
        figure: Names what values are: a mean, or a score.
        scores: By name, estimate and standard deviation of each score of each value.
        correlations: By name, that of each further score's noise with the first's; NaN of values
            that were released without it.
        undefined: By name, which values have no such score, and show the worst.
        front: With several scores, which values none betters in all of those that are compared;
            None for those that lack a constraint.
        front_of: Names of the scores that are compared: a study's objectives, or all.
        trials: Key of the trial of each value.
        last: Scores of the chosen model, released last, likewise.
        at_ends: By name, how many scores lie at an end of their range.
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
    comparison: Comparison | None = None
    figure: str = "mean"
    scores: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    correlations: Mapping[str, Sequence[float]] = field(default_factory=dict)
    undefined: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    front: Sequence[bool | None] = ()
    front_of: Sequence[str] = ()
    trials: Sequence[str] = ()
    last: Mapping[str, Sequence[float]] = field(default_factory=dict)
    at_ends: Mapping[str, int] = field(default_factory=dict)

    @property
    def noises(self) -> list[float]:
        """Standard deviation of the noise on each value, also where these differ."""
        own = next(iter(self.scores.values()), ())
        return [sd for _, sd in own] or [self.value_noise] * len(self.values)

    @property
    def recommended(self) -> list[bool]:
        """Tells of each value whether it was released at the recommended point."""
        if self.places is None or self.aim is None:
            return [False] * len(self.values)
        return [np.allclose(place, self.aim, 0, 1e-9) for place in self.places]


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


@cache
def _words() -> Mapping[str, Any]:
    text = (files("privbo_plugins") / "pictures.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _picture(name: str, series: Sequence[Series], **words: str) -> Picture:
    """Puts series under the words of a picture, and words into how it is read."""
    told = {"x_label": "", "y_label": "", **_words()[name]}
    said = {part: told[part].format(**words) for part in ("title", "reading")}
    return Picture(**told | said, series=series)


def picture_of_values(history: History) -> Picture:
    """Shows released values in order, with the noise's standard deviation as error bars."""
    steps, series = any(role == STEP for role, *_ in history.values), []
    for role, colour in _ROLES.items():
        noisy = enumerate(zip(history.values, history.noises, strict=True))
        points = [(i, v, sd) for i, ((r, _, v), sd) in noisy if r == role]
        if points:
            x, y, error = zip(*points, strict=True)
            name = role if steps or role != START else "trial"  # nothing follows it
            series.append(Series(name, x, y, POINTS, error, colour=colour))
    return _picture("values", series)


def picture_of_scores(history: History, other: str) -> Picture:
    """Shows the first score of each trial and another, the front, what is recommended, noise."""
    (name, first), second, series = next(iter(history.scores.items())), history.scores[other], []
    kinds = {True: "front", False: "other trials", None: "lack a constraint"}
    lacking = zip(history.front, history.undefined[name], history.undefined[other], strict=True)
    shown = ["a score is undefined" if a or b else kinds[own] for own, a, b in lacking]
    for kind, look, colour in (
        ("other trials", FAINT, GREY),
        ("lack a constraint", FAINT, COLOURS[3]),
        ("a score is undefined", HOLLOW, GREY),
        ("front", POINTS, COLOURS[0]),
        ("recommended", RING, COLOURS[2]),  # once more, around its point
    ):
        chosen = history.recommended if look == RING else [own == kind for own in shown]
        told = zip(first, second, history.correlations[other], history.trials, chosen, strict=True)
        if at := [(*one, *two, tilt, f"trial {key}") for one, two, tilt, key, own in told if own]:
            x, wide, y, high, tilts, keys = zip(*at, strict=True)
            series.append(Series(kind, x, y, look, high, wide, tilts, texts=keys, colour=colour))
    words = {"along": name, "up": other, "compared": " and ".join(history.front_of)}
    return replace(_picture("scores", series, **words), x_label=name, y_label=other)


def picture_of_path(history: History) -> Picture:
    """Shows each parameter's place by step, in unit-cube units."""
    return _picture("path", _coordinates(history.names, history.path, history.centres, BOTH))


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
        ends, budget = [1, releases[-1]], [history.budget] * 2
        series.append(Series("declared mu", ends, budget, DOTTED, colour=GREY))
    return _picture("budget", series)


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
    series = [Series(name, trials, [epoch[key] for epoch in epochs]) for key, name in named]
    return _picture("communication", series)


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
    return _picture("active_set", [left])


def picture_of_releases(history: RewardHistory) -> Picture:
    """Shows released rewards in order, and the mean of all so far with its 95 % band."""
    count = np.arange(1, len(history.values) + 1)
    mean = np.cumsum(history.values) / count
    reach, x, blue = 1.96 * history.noise / np.sqrt(count), count.tolist(), COLOURS[0]
    low, high = (mean - reach).tolist(), (mean + reach).tolist()
    return _picture("releases", [
        Series("one release", x, list(history.values), POINTS, colour=GREY),
        Series("", x, high, BAND, low=low, colour=blue),
        Series("mean so far", x, mean.tolist(), LINE, colour=blue),
    ])  # fmt: skip


def picture_of_evaluations(history: RewardHistory) -> Picture:
    """Shows where each released reward was asked for, in unit-cube units."""
    series = _coordinates(history.names, history.path, history.points, POINTS)
    return _picture("evaluations", series)


def picture_of_answers(history: RowHistory) -> Picture:
    """Shows answers in order, and the best of them so far."""
    x = list(range(1, len(history.answers) + 1))
    rows = [f"row {row}" for row in history.rows]
    error = [history.noise] * len(x)
    series = [Series("answer", x, list(history.answers), POINTS, error, texts=rows)]
    if history.maximize is not None:
        pick = np.maximum if history.maximize else np.minimum
        best = pick.accumulate(history.answers).tolist()
        series.append(Series("best so far", x, best, LINE))
    bars = "Each bar is one standard deviation of what randomises the answer. "
    return _picture("answers", series, bars=bars if history.noise else "")


def picture_of_rounds(history: FederationHistory) -> Picture:
    """Shows the size of each round's broadcast beside the noise that is in it."""
    x = [done.number for done in history.rounds]
    sizes, noises = ([getattr(done, key) for done in history.rounds] for key in ("size", "noise"))
    both = [Series("broadcast, noise included", x, sizes), Series("noise alone", x, noises)]
    return _picture("rounds", both)


def picture_of_spent(history: FederationHistory) -> Picture:
    """Shows epsilon by round: of those released, and of those that may still be."""
    n = len(history.rounds)
    parts = (
        ("released", BOTH, [(t, e) for t, e in history.spent if t <= n]),
        ("still to come", DOTTED, [(t, e) for t, e in history.spent if t >= n]),
    )
    return _picture("spent", [
        Series(name, [t for t, _ in part], [e for _, e in part], look)
        for name, look, part in parts
        if len(part) > (look == DOTTED)  # the first to come is released already
    ])  # fmt: skip
