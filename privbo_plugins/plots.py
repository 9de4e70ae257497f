"""Pictures and reports of a run for people; they show releases and public facts only.

Needs plotly (the ``viz`` extra), which is imported on first use. What the report of each system is
made of says :mod:`privbo_plugins.reports`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import FINAL, OUTSIDE, START, STEP
from privbo_plugins.privacy.guarantee import PrivacyGuarantee

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Array = NDArray[np.float64]

_NO_PLOTLY = "Pictures and reports need plotly: pip install 'privbo-plugins[viz]'."


def _plotly() -> Any:
    """plotly.graph_objects.

    Raises:
        ImportError: If plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ImportError(_NO_PLOTLY) from None
    return go


# What has been published --------------------------------------------------------------------


_COLOURS = {START: "#7f7f7f", STEP: "#1f77b4", OUTSIDE: "#2ca02c", FINAL: "#d62728"}


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
    """

    values: Sequence[tuple[str, int, float]]
    value_noise: float
    names: Sequence[str]
    path: Array
    centres: Sequence[Mapping[str, Any]]
    spent: Sequence[float]
    budget: float


@dataclass(frozen=True)
class RewardHistory:
    """What a run of privatised rewards has published; a reward that is no release is not in it.

    Attributes:
        values: Released rewards, in order.
        noise: The largest standard deviation of one of them, in reward units.
        points: Parameters of each that vary; None where nobody knows them.
        names: Parameter names, D of them.
        path: The same in the unit cube, shape (t, D); NaN where nobody knows them.
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
        answers: The answers, as they were told.
        maximize: Whether large ones are wanted; None where nobody knows.
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


# Pictures -----------------------------------------------------------------------------------


def plot_values(history: History) -> Figure:
    """Released values in order, with the noise's standard deviation as error bars."""
    go = _plotly()
    figure = go.Figure()
    for role, colour in _COLOURS.items():
        points = [(i, v) for i, (r, _, v) in enumerate(history.values) if r == role]
        figure.add_scatter(
            x=[i for i, _ in points],
            y=[v for _, v in points],
            error_y={"type": "constant", "value": history.value_noise, "thickness": 0.6},
            mode="markers",
            name=role,
            marker={"color": colour, "size": 10 if role == FINAL else 6},
        )
    return figure.update_layout(
        title="Released values (clipped mean plus noise; bars: one standard deviation)",
        xaxis_title="release",
        yaxis_title="released value",
    )


def plot_path(history: History) -> Figure:
    """Each parameter's place by step, in unit-cube units; hovering shows the value."""
    figure = _plot_coordinates(history.names, history.path, history.centres)
    return figure.update_layout(title="Path of the recommendation", xaxis_title="step")


def _plot_coordinates(
    names: Sequence[str], path: Array, values: Sequence[Mapping[str, Any] | None]
) -> Figure:
    """A line a parameter over points of shape (t, D); hovering shows the value."""
    go = _plotly()
    figure = go.Figure()
    for j, name in enumerate(names):
        figure.add_scatter(
            x=list(range(len(path))),
            y=[float(x[j]) for x in path],
            mode="lines+markers",
            name=name,
            text=["" if known is None else f"{name} = {known[name]}" for known in values],
            hoverinfo="text+x",
        )
    return figure.update_layout(yaxis_title="unit-cube coordinate")


def plot_budget(history: History) -> Figure:
    """Cumulative mu by release, against the declared budget."""
    go = _plotly()
    figure = go.Figure()
    figure.add_scatter(
        x=list(range(1, len(history.spent) + 1)), y=list(history.spent), mode="lines", name="spent"
    )
    if np.isfinite(history.budget):
        figure.add_hline(y=history.budget, line_dash="dash", annotation_text="declared mu")
    return figure.update_layout(
        title="Budget spent",
        xaxis_title="release",
        yaxis_title="mu (square root of summed squares)",
    )


def plot_communication(summary: Mapping[str, Any]) -> Figure:
    """Real numbers that agents and server have sent after each epoch of DUETS.

    Args:
        summary: Of :meth:`privbo_plugins.algorithms.duets.DUETS.summary`, or what a study's user
            attribute ``privbo:duets`` holds.
    """
    go = _plotly()
    figure, epochs = go.Figure(), summary["epochs"]
    trials = np.cumsum([epoch["length"] * summary["agents"] for epoch in epochs]).tolist()
    for key, name in (
        ("per_agent", "per agent: own uploads and all broadcasts"),
        ("up", "uploads of all agents together"),
        ("down", "broadcasts, each counted once"),
    ):
        figure.add_scatter(
            x=trials, y=[epoch[key] for epoch in epochs], mode="lines+markers", name=name
        )
    return figure.update_layout(
        title="Communication", xaxis_title="trials", yaxis_title="real numbers sent so far"
    )


def plot_active_set(summary: Mapping[str, Any]) -> Figure:
    """What each epoch of DUETS has left of the search space, and in how many components.

    Args:
        summary: As for :func:`plot_communication`.
    """
    go, epochs = _plotly(), summary["epochs"]
    figure = go.Figure()
    figure.add_scatter(
        x=[0, *(epoch["epoch"] for epoch in epochs)],
        y=[1.0, *(epoch["share"] for epoch in epochs)],
        text=["", *(f"{epoch['components']} component(s)" for epoch in epochs)],
        mode="lines+markers+text",
        textposition="top right",
    )
    return figure.update_layout(
        title="Active set",
        xaxis_title="epochs done",
        yaxis={"title": "share of the search space that is left", "type": "log"},
    )


def plot_releases(history: RewardHistory) -> Figure:
    """Released rewards in order, and the mean of all so far with its 95 % band."""
    go = _plotly()
    count = np.arange(1, len(history.values) + 1)
    mean = np.cumsum(history.values) / count
    reach = 1.96 * history.noise / np.sqrt(count)
    x, hidden = count.tolist(), {"mode": "lines", "line": {"width": 0}, "showlegend": False}
    figure = go.Figure()
    figure.add_scatter(
        x=x,
        y=list(history.values),
        mode="markers",
        name="one release",
        marker={"color": _COLOURS[START], "size": 4},
    )
    figure.add_scatter(x=x, y=(mean + reach).tolist(), hoverinfo="skip", **hidden)
    figure.add_scatter(x=x, y=(mean - reach).tolist(), hoverinfo="skip", fill="tonexty", **hidden)
    figure.add_scatter(x=x, y=mean.tolist(), mode="lines", name="mean so far")
    return figure.update_layout(
        title="Released rewards (privatised; band: where the mean is known to, 95 %)",
        xaxis_title="release",
        yaxis_title="released reward",
    )


def plot_evaluations(history: RewardHistory) -> Figure:
    """Where each released reward was asked for, in unit-cube units."""
    figure = _plot_coordinates(history.names, history.path, history.points)
    figure.update_traces(mode="markers")
    return figure.update_layout(title="Settings that users were asked", xaxis_title="release")


def plot_answers(history: RowHistory) -> Figure:
    """Answers in order, and the best of them so far; hovering shows the row."""
    go = _plotly()
    x = list(range(1, len(history.answers) + 1))
    best = np.maximum if history.maximize else np.minimum
    figure = go.Figure()
    figure.add_scatter(
        x=x,
        y=list(history.answers),
        mode="markers",
        name="answer",
        error_y={"type": "constant", "value": history.noise, "thickness": 0.6},
        text=[f"row {row}" for row in history.rows],
    )
    if history.maximize is not None:
        figure.add_scatter(
            x=x, y=best.accumulate(history.answers).tolist(), mode="lines", name="best so far"
        )
    return figure.update_layout(
        title="Answers (bars: one standard deviation of what randomises them)",
        xaxis_title="answer",
        yaxis_title="outcome as told",
    )


def plot_rounds(history: FederationHistory) -> Figure:
    """Size of what each round has broadcast beside the noise that is in it."""
    go = _plotly()
    figure = go.Figure()
    for name, key in (("broadcast, noise included", "size"), ("noise alone", "noise")):
        figure.add_scatter(
            x=[done.number for done in history.rounds],
            y=[getattr(done, key) for done in history.rounds],
            mode="lines+markers",
            name=name,
        )
    return figure.update_layout(
        title="What each round has broadcast (root mean square of its numbers)",
        xaxis_title="round",
        yaxis={"title": "size of one number", "rangemode": "tozero"},
    )


def plot_spent(history: FederationHistory) -> Figure:
    """Epsilon by round: of those released, and of those that may still be."""
    go = _plotly()
    released = len(history.rounds)
    figure = go.Figure()
    for name, dash, part in (
        ("released", "solid", [(t, e) for t, e in history.spent if t <= released]),
        ("still to come", "dot", [(t, e) for t, e in history.spent if t >= released]),
    ):
        figure.add_scatter(
            x=[t for t, _ in part],
            y=[epsilon for _, epsilon in part],
            mode="lines+markers",
            line={"dash": dash},
            name=name,
        )
    return figure.update_layout(
        title="Budget by round", xaxis_title="rounds released", yaxis_title="epsilon"
    )


# Reports ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of public facts.

    Attributes:
        columns: Their names; none for a table without a head.
        rows: Their entries: texts stand as they are, other things as Python writes them.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def to_html(self) -> str:
        """The table; every entry is escaped."""
        head = "".join(f"<th>{_escaped(name)}</th>" for name in self.columns)
        rows = (f"<td>{'</td><td>'.join(map(_escaped, row))}</td>" for row in self.rows)
        lines = [head, *rows] if head else rows
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        heading: Its heading; empty where it goes on under the one before.
        content: A picture, a table, or a paragraph.
    """

    heading: str
    content: Figure | Table | str


@dataclass(frozen=True)
class Report:
    """A page for people: what may be claimed, and then what has been published.

    Attributes:
        title: Headline.
        guarantee: What may be claimed.
        sections: What follows it.

    Example:
        >>> from privbo_plugins.privacy.guarantee import Guarantee
        >>> told = Guarantee(True, "Gaussian mechanism", "replace-one", "records", 9, 1.0, 0.5, 3)
        >>> facts = Section("Facts", Table((), [("a < b", 1)]))
        >>> "<td>a &lt; b</td><td>1</td>" in Report("A run", told, [facts]).to_html()
        True
    """

    title: str
    guarantee: PrivacyGuarantee
    sections: Sequence[Section]

    def to_html(self) -> str:
        """One self-contained page."""
        protection = "protected" if self.guarantee.protected else "not-protected"
        body, pictures = "", 0
        for section in self.sections:
            heading = f"<h2>{_escaped(section.heading)}</h2>" if section.heading else ""
            body += heading + _part(section.content, pictures)
            pictures += not isinstance(section.content, Table | str)
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            f"<title>{_escaped(self.title)}</title><style>{_STYLE}</style></head><body>"
            f"<h1>{_escaped(self.title)}</h1><h2>Guarantee</h2>"
            f"<p class='claim {protection}'>{_escaped(str(self.guarantee))}</p>"
            f"{body}</body></html>"
        )

    def write(self, path: str | Path) -> Path:
        """Writes the page; returns where to."""
        target = Path(path)
        target.write_text(self.to_html(), encoding="utf-8")
        return target


def _part(content: Figure | Table | str, pictures: int) -> str:
    """A section's content after so many pictures, of which the first brings plotly along."""
    if isinstance(content, Table):
        return content.to_html()
    if isinstance(content, str):
        return f"<p>{_escaped(content)}</p>"
    return str(
        content.to_html(
            full_html=False,
            include_plotlyjs=pictures == 0,
            default_height="420px",
            div_id=f"picture-{pictures}",  # its own would be another one in each page
        )
    )


def _escaped(entry: Any) -> str:
    return html.escape(entry if isinstance(entry, str) else repr(entry))


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "p.claim{padding:1rem;border-left:6px solid #2a7d2a;background:#f2f8f2}"
    "p.not-protected{border-color:#b00020;background:#fdf1f2}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3rem .8rem;"
    "text-align:left;vertical-align:top;overflow-wrap:anywhere}"
)
