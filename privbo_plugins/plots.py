"""Pictures of a run for people; they show releases and public facts only.

Needs plotly (the ``viz`` extra), which is imported on first use.
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
from privbo_plugins.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Array = NDArray[np.float64]

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


def plot_values(history: History) -> Figure:
    """Released values in order, with the noise's standard deviation as error bars."""
    import plotly.graph_objects as go

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
    import plotly.graph_objects as go

    figure = go.Figure()
    for j, name in enumerate(history.names):
        figure.add_scatter(
            x=list(range(len(history.path))),
            y=[float(x[j]) for x in history.path],
            mode="lines+markers",
            name=name,
            text=[f"{name} = {centre[name]}" for centre in history.centres],
            hoverinfo="text+x",
        )
    return figure.update_layout(
        title="Path of the recommendation", xaxis_title="step", yaxis_title="unit-cube coordinate"
    )


def plot_budget(history: History) -> Figure:
    """Cumulative mu by release, against the declared budget."""
    import plotly.graph_objects as go

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
    import plotly.graph_objects as go

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
    import plotly.graph_objects as go

    epochs = summary["epochs"]
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


def write_report(
    path: str | Path,
    history: History,
    guarantee: Guarantee,
    recommendation: Mapping[str, Any],
    title: str = "Private tuning report",
) -> Path:
    """Writes one self-contained HTML page: guarantee, recommendation, three pictures.

    Args:
        path: Where to write.
        history: What the run has published.
        guarantee: What may be claimed.
        recommendation: The recommended parameters.
        title: Headline.

    Returns:
        The path written.

    Raises:
        ImportError: If plotly is not installed.
    """
    rows = "".join(
        f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(repr(value))}</td></tr>"
        for name, value in recommendation.items()
    )
    figures = [plot(history) for plot in (plot_values, plot_path, plot_budget)]
    pictures = "".join(
        figure.to_html(full_html=False, include_plotlyjs=(i == 0), default_height="420px")
        for i, figure in enumerate(figures)
    )
    protection = "protected" if guarantee.protected else "not-protected"
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><h2>Guarantee</h2>"
        f"<p class='{protection}'>{html.escape(str(guarantee))}</p>"
        f"<h2>Recommendation</h2><table>{rows}</table><h2>What was published</h2>{pictures}"
        "</body></html>"
    )
    target = Path(path)
    target.write_text(page, encoding="utf-8")
    return target


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "p{padding:1rem;border-left:6px solid #2a7d2a;background:#f2f8f2}"
    "p.not-protected{border-color:#b00020;background:#fdf1f2}"
    "table{border-collapse:collapse}td{border:1px solid #ccc;padding:.3rem .8rem}"
)
