"""Composes the report of each system: guarantee first, then everything that was published.

Hosts gather what their studies and experiments show and call one of these functions; what is no
release and no public fact does not get here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.page import Report, Section, Table
from privbo_plugins.plots import (
    FederationHistory,
    History,
    RewardHistory,
    RowHistory,
    picture_of_active_set,
    picture_of_answers,
    picture_of_budget,
    picture_of_communication,
    picture_of_evaluations,
    picture_of_path,
    picture_of_releases,
    picture_of_rounds,
    picture_of_scores,
    picture_of_spent,
    picture_of_values,
)
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.privacy.figures import two_decimals
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.words import plural
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_PUBLISHED = "What was published"

WORTH = "What it is worth"
"""Heading of the estimate at the recommendation."""

COMPARED = "Compared with the incumbent"
"""Heading of the sentence that compares the recommendation with the settings in use."""

_SMOOTHED = 600
"""Released values, the latest, that an estimate rests on: more cost seconds."""

_ROUNDS = 200
"""Rounds that are listed one by one, the latest."""

_LISTED = 10
"""Rows of a table that lists the best, or the most frequent."""

_NOTHING_YET = "Nothing has been released yet."

_AT_ENDS = (
    "Shown at an end of the score's range: {}. What noise pushes beyond is clipped there, or "
    "undefined and the worst: its standard deviation says how near the exact score is."
)

_BARE = "The table is a bare matrix: nothing is known of its origin."

_NO_PART = (
    "Who took part in which round is not shown: that is what the federation hides. Points and "
    "values of an agent's own trials are that agent's secret and are not shown either."
)


# What has been published ------------------------------------------------------------------------


def reward_history(
    space: Space | None,
    released: Iterable[tuple[Array | None, float]],
    mechanism: LocalMechanism | None,
) -> RewardHistory:
    """Collects released rewards and where they were asked for.

    Args:
        space: The search space; None before it is known.
        released: (point of shape (D,) or None, release), in order. Without a mechanism nothing
            is a release, and none is taken.
        mechanism: What privatised them.
    """
    told = [] if mechanism is None else list(released)
    names = () if space is None else space.names
    nowhere = np.full(len(names), np.nan)
    points = [None if space is None or x is None else space.decode(x) for x, _ in told]
    places = [nowhere if known is None else x for known, (x, _) in zip(points, told, strict=True)]
    return RewardHistory(
        values=[value for _, value in told],
        noise=0.0 if mechanism is None else math.sqrt(mechanism.worst_variance),
        points=points,
        names=names,
        path=np.array(places, dtype=float).reshape(len(told), len(names)),
    )


def row_history(
    answers: Sequence[tuple[int, float]],
    *,
    maximize: bool | None,
    answer_variance: float,
    posterior: Callable[[Sequence[int]], tuple[Array, Array]] | None = None,
) -> RowHistory:
    """Collects a curator's answers, and a model's view of their rows.

    Args:
        answers: (row, answer), in order.
        maximize: Whether large answers are wanted; None where that is unknown.
        answer_variance: Of what randomises one.
        posterior: Of the model that has these answers: mean and standard deviation at rows; None
            without one.
    """
    rows = [row for row, _ in answers]
    means, deviations = (np.empty(0),) * 2 if posterior is None or not rows else posterior(rows)
    told = [answer for _, answer in answers]
    noise = math.sqrt(answer_variance)
    return RowHistory(rows, told, maximize, noise, means.tolist(), deviations.tolist())


# The systems ------------------------------------------------------------------------------------


def records_report(
    title: str,
    guarantee: PrivacyGuarantee,
    history: History,
    recommendation: Mapping[str, Any] | str | None,
) -> Report:
    """Reports a run on per-record losses."""
    pictures = [picture_of_values(history), picture_of_path(history), picture_of_budget(history)]
    others = [*history.scores][1:] if history.values else []
    pictures[1:1] = [picture_of_scores(history, other) for other in others]
    worth = _worth_of_records(history, plural(guarantee.unit)) if guarantee.protected else []
    if guarantee.protected and history.comparison is not None:
        worth = [Section(COMPARED, str(history.comparison)), *worth]
    for name, (value, sd) in history.last.items() if guarantee.protected else ():
        told = f"{name} {value:.4g}, with noise of standard deviation {sd:.2g}."
        worth.append(Section("The chosen model, released last", told))
    sections = [*_recommended(recommendation), *worth, *_published(pictures)]
    if at := ", ".join(f"{n} of {name}" for name, n in history.at_ends.items() if n):
        sections.append(Section("", _AT_ENDS.format(at)))
    return Report(title, guarantee, sections)


def reward_report(
    title: str,
    guarantee: PrivacyGuarantee,
    history: RewardHistory,
    recommendation: Mapping[str, Any] | str | None,
    summary: Mapping[str, Any] | None = None,
) -> Report:
    """Reports a run on one privatised reward a trial.

    Args:
        title: Headline.
        guarantee: What may be claimed.
        history: What has been published.
        recommendation: The recommended parameters; None before there are any, or a sentence
            where nobody here knows them.
        summary: Of DUETS, as for :func:`~privbo_plugins.plots.picture_of_communication`.
    """
    worth = _worth_of_rewards(history, recommendation)
    sections = [*_recommended(recommendation), *worth, *_releases(history)]
    return Report(title, guarantee, [*sections, *(() if summary is None else _epochs(summary))])


def rows_report(
    title: str,
    guarantee: PrivacyGuarantee,
    history: RowHistory,
    manifest: Mapping[str, Any] | None,
    recommendation: Mapping[str, Any] | str | None,
) -> Report:
    """Reports a released table and the answers to a modeler.

    Args:
        title: Headline.
        guarantee: What may be claimed.
        history: What has been answered.
        manifest: Of the table, as a dictionary; None for a bare matrix.
        recommendation: The recommended row; None before there is one, or a sentence as there.
    """
    sections = [*_recommended(recommendation), *_worth_of_row(history, recommendation)]
    if history.answers:
        sections += [Section("Answers told", picture_of_answers(history))]
        sections += [] if history.maximize is None else [_best_rows(history)]
    return Report(title, guarantee, [*sections, _manifest(manifest)])


def federation_report(
    title: str, guarantee: PrivacyGuarantee, history: FederationHistory
) -> Report:
    """Reports the broadcasts of a federation; the same for its server, its agents and others."""
    sections = [Section(_PUBLISHED, _NOTHING_YET)]
    if history.rounds:
        sections = [Section(_PUBLISHED, picture_of_rounds(history))]
    if guarantee.protected:
        sections += [Section("", picture_of_spent(history)), *_rounds(history)]
    return Report(title, guarantee, [*sections, Section("Who took part", _NO_PART)])


# Sections ---------------------------------------------------------------------------------------


def _recommended(recommendation: Mapping[str, Any] | str | None) -> list[Section]:
    if recommendation is None or isinstance(recommendation, str):
        return [Section("Recommendation", recommendation or _NOTHING_YET)]
    return [Section("Recommendation", Table((), list(recommendation.items()), 4))]


# What a recommendation is worth -----------------------------------------------------------------


def _worth_of_records(history: History, units: str) -> list[Section]:
    """Estimates the exact mean at the recommended point from released values."""
    if history.places is None or history.aim is None or not len(history.places):
        return []
    from privbo_plugins.models.smoothing import Smoother

    y = np.array([value for _, _, value in history.values])[-_SMOOTHED:]
    noises = np.array(history.noises)[-_SMOOTHED:]
    smoother = Smoother(history.places[-_SMOOTHED:], y, noises)
    mean, sd = (float(found[0]) for found in smoother.posterior(history.aim[None]))
    return _worth(
        mean,
        1.96 * sd,
        f"The {history.figure} over the {units}, clipped to the range of the releases, as far as "
        f"the latest {len(y)} of them tell a Gaussian process that knows their noise (standard "
        f"deviation {np.median(noises):.4g}). The interval holds if it varies as smoothly as "
        f"that model assumes; it is for these {units}, not for new ones.",
    )


def _worth_of_rewards(
    history: RewardHistory, recommendation: Mapping[str, Any] | str | None
) -> list[Section]:
    """Takes the mean of the releases that were asked at the recommended setting."""
    if not isinstance(recommendation, Mapping):
        return []
    wanted = {name: recommendation.get(name) for name in history.names}
    told = [
        value
        for point, value in zip(history.points, history.values, strict=True)
        if point is not None and dict(point) == wanted
    ]
    if not told:
        text = "Nobody was asked for this very setting: it follows from releases at others."
        return [Section(WORTH, text)] if history.values else []
    releases = f"{len(told)} release{'s' * (len(told) != 1)}"
    return _worth(
        float(np.mean(told)),
        _reach(history, len(told)),
        f"The mean of {releases} at this setting, known as far as the "
        "privacy noise alone lets it be; that it was chosen for doing well makes it look better "
        "than it is.",
    )


def _worth_of_row(
    history: RowHistory, recommendation: Mapping[str, Any] | str | None
) -> list[Section]:
    """Shows the model's view of the recommended row."""
    if not isinstance(recommendation, Mapping) or not history.means:
        return []
    row = next(iter(recommendation.values()))
    if row not in history.rows:
        return [Section(WORTH, "This row's own outcome was never told.")]
    place = list(history.rows).index(row)
    return _worth(
        history.means[place],
        1.96 * history.deviations[place],
        "What the modeler's Gaussian process makes of the row's outcome, given all answers.",
    )


def _worth(estimate: float, reach: float, how: str) -> list[Section]:
    interval = f"{estimate - reach:.4g} to {estimate + reach:.4g}"
    rows = [("estimate", f"{estimate:.4g}"), ("95 % interval", interval)]
    return [Section(WORTH, Table((), rows)), Section("", how)]


def _reach(history: RewardHistory, n: int) -> float:
    """Computes how far the mean of n releases is known, with 95 % confidence."""
    return 1.96 * history.noise / math.sqrt(n)


def _published(pictures: Iterable[Any]) -> list[Section]:
    return [Section("" if i else _PUBLISHED, picture) for i, picture in enumerate(pictures)]


def _releases(history: RewardHistory) -> list[Section]:
    if not history.values:
        return [Section(_PUBLISHED, "No privatised reward has been released, so none is shown.")]
    pictures = [picture_of_releases(history)]
    if any(point is not None for point in history.points):
        pictures.append(picture_of_evaluations(history))
    return [*_published(pictures), *_by_setting(history)]


def _by_setting(history: RewardHistory) -> list[Section]:
    """Lists settings that were asked more than once, and how far each mean is known."""
    asked: defaultdict[str, list[float]] = defaultdict(list)
    for point, value in zip(history.points, history.values, strict=True):
        if point is not None:
            asked[", ".join(f"{name} = {told}" for name, told in point.items())].append(value)
    often = sorted(asked.items(), key=lambda entry: -len(entry[1]))[:_LISTED]
    if not often or len(often[0][1]) < 2:
        return []
    rows = [
        (setting, len(values), f"{np.mean(values):.4g}", f"±{_reach(history, len(values)):.2g}")
        for setting, values in often
    ]
    head = ("setting", "releases", "their mean", "known to (95 %)")
    return [Section("Settings asked most often", Table(head, rows))]


def _epochs(summary: Mapping[str, Any]) -> list[Section]:
    head = ("epoch", "draws of an agent", "inducing points", "space left", "components",
            "numbers sent, per agent")  # fmt: skip
    rows = [
        (e["epoch"], e["length"], e["inducing"], f"{e['share']:.3g}", e["components"],
         f"{e['per_agent']:g}")
        for e in summary["epochs"]
    ]  # fmt: skip
    agents = f"{summary['agents']} agents; epoch {summary['epoch']} is open."
    return [
        Section("What agents have sent", picture_of_communication(summary)),
        Section("What is left of the space", picture_of_active_set(summary)),
        Section("Epochs", agents),
        Section("", Table(head, rows)),
    ]


def _best_rows(history: RowHistory) -> Section:
    """Lists answered rows with the best posterior means, or answers where there is no model."""
    by = history.means or history.answers
    sign = -1.0 if history.maximize else 1.0
    places: dict[int, int] = {}
    for i in sorted(range(len(by)), key=lambda i: sign * by[i]):
        places.setdefault(history.rows[i], i)
    head, rows = ["row", "answer as told"], []
    head += ["what the model makes of it", "standard deviation"] if history.means else []
    for row, i in list(places.items())[:_LISTED]:
        mean = (
            [f"{history.means[i]:.4g}", f"±{history.deviations[i]:.2g}"] if history.means else []
        )
        rows.append([row, f"{history.answers[i]:.4g}", *mean])
    return Section("Best rows", Table(head, rows))


def _manifest(manifest: Mapping[str, Any] | None) -> Section:
    if manifest is None:
        return Section("Manifest", _BARE)
    rows = [(name, value) for name, value in manifest.items() if value not in (None, [], "")]
    return Section("Manifest", Table(("field", "value"), rows))


def _rounds(history: FederationHistory) -> list[Section]:
    spent = {t: two_decimals(epsilon) for t, epsilon in history.spent}
    rows = [
        (done.number, f"{done.size:.3g}", f"{done.noise:.3g}", spent.get(done.number, ""))
        for done in history.rounds[-_ROUNDS:]
    ]
    head = ("round", "size of one number", "noise in it", "epsilon after it")
    sections, left = [Section("Rounds", Table(head, rows))], len(history.rounds) - len(rows)
    if left:
        text = f"The latest {_ROUNDS}; {left} before them are not listed."
        sections.append(Section("", text))
    return sections
