"""Describes a picture once, as data: axes, how it is read, and series of points.

A page holds it as a small SVG, drawn by matplotlib (the ``viz`` extra). ``to_dict`` is the same
picture as plotly's JSON, as optuna-dashboard takes it; plotly itself is not needed for that. The
SVG holds numbers and the engine's own words; names of series stand beside it in HTML.
"""

from __future__ import annotations

import html
import io
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privbo_plugins.privacy.statement import legible

POINTS, LINE, BOTH, DOTTED, BAND = "markers", "lines", "lines+markers", "dotted", "band"
"""How a series looks; of a band y is the upper edge and ``low`` the lower."""

COLOURS = ("#3b82c4", "#d9822b", "#2f9e6e", "#d0473f", "#8b6fc4", "#8c7a5b")
"""Of series that choose none; each is legible on white and on the dark page."""

GREY = "#7f7f7f"

_MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))
"""Of a series' points and of its name, so that colours are not all that tells them apart."""

_MOST = 500
"""Points that a page shows; of more, one in k is drawn."""

_INK = "#010203"
"""Becomes the page's own text colour, light or dark."""

_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 11, "text.color": _INK,
    "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": GREY, "grid.alpha": 0.25, "grid.linewidth": 0.6,
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Points of one kind.

    Attributes:
        name: What they are; empty where nothing needs to tell them apart.
        x: Horizontal places.
        y: Vertical places; NaN where there is none.
        look: :data:`POINTS`, :data:`LINE`, :data:`BOTH`, :data:`DOTTED` or :data:`BAND`.
        error: Half the length of a bar through each point.
        across: The same of a bar that lies.
        low: Lower edge of a band.
        texts: A text on each point, in the table beside the picture and on hovering.
        colour: Its colour; empty for the next one.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: str = BOTH
    error: Sequence[float] = ()
    across: Sequence[float] = ()
    low: Sequence[float] = ()
    texts: Sequence[str] = ()
    colour: str = ""


@dataclass(frozen=True)
class Picture:
    """What a picture shows.

    Attributes:
        title: Its headline.
        reading: One sentence on how to read it.
        x_label: What lies along.
        y_label: What lies up.
        series: What is drawn.
        log: Whether heights are logarithmic.
        from_zero: Whether they begin at zero.
    """

    title: str
    reading: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log: bool = False
    from_zero: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Describes the figure in plotly's JSON: ``plotly.graph_objects.Figure(...)`` takes it."""
        up: dict[str, Any] = {"title": {"text": self.y_label}}
        up |= {"type": "log"} if self.log else {}
        up |= {"rangemode": "tozero"} if self.from_zero else {}
        layout = {
            "title": {"text": self.title}, "xaxis": {"title": {"text": self.x_label}}, "yaxis": up,
        }  # fmt: skip
        traces = [
            trace for series, colour, *_ in self._styled() for trace in _traces(series, colour)
        ]
        return {"data": traces, "layout": layout}

    def thinned(self) -> Picture:
        """Leaves out points of a long picture evenly; its reading then says so."""
        strokes = sum(len(s.x) * (3 if s.across else 1) for s in self.series)
        step = math.ceil(strokes / _MOST)
        if step <= 1:
            return self
        reading = f"{self.reading} One point in {step} is drawn, and the last."
        return replace(self, series=[_every(s, step) for s in self.series], reading=reading)

    def legend(self) -> list[tuple[str, str, str]]:
        """Lists (name, colour, sign) of the named series, where there are several."""
        named = [
            (series.name, colour, {LINE: "—", DOTTED: "┄"}.get(series.look, sign))
            for series, colour, _, sign in self._styled()
            if series.name
        ]
        return named if len(named) > 1 else []

    def numbers(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Lists head and rows of a table beside the picture: all points, bars and texts."""
        drawn = [series for series in self.series if series.look != BAND]
        labels = {"across": self.x_label, "error": self.y_label}
        bars = [name for name in labels if any(getattr(series, name) for series in drawn)]
        rows: list[tuple[Any, ...]] = []
        for own in drawn:
            blank = [""] * len(own.x)
            more = [getattr(own, name) or blank for name in (*bars, "texts")]
            rows += zip([own.name] * len(own.x), own.x, own.y, *more, strict=True)
        sds = [f"noise of {labels[bar]} (sd)" for bar in bars]
        return ["", self.x_label, self.y_label, *sds, ""], rows

    def to_svg(self) -> str:
        """Draws an SVG for the inside of a page.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        try:
            import matplotlib
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError(
                "Pictures and reports need matplotlib: pip install 'privbo-plugins[viz]'."
            ) from None
        look, written = {**_LOOK, "svg.hashsalt": self.title}, io.StringIO()
        with matplotlib.rc_context(look), np.errstate(all="ignore"):
            figure = Figure(figsize=(6.4, 3.4), layout="constrained")
            axes = figure.add_subplot(xlabel=self.x_label, ylabel=self.y_label)
            for series, colour, marker, _ in self._styled():
                _draw(axes, series, colour, marker)
            if self.log:
                axes.set_yscale("log")
                low, high = axes.get_ylim()
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:g}" if high < 10 * low else "")
            if self.from_zero:
                axes.set_ylim(bottom=0)
            if any(series.across for series in self.series):  # long bars would hide the points
                ends = {f"{n}lim": _around(getattr(s, n) for s in self.series) for n in "xy"}
                axes.set(**ends)
            figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        return _inlined(written.getvalue(), self.title)

    def _styled(self) -> Iterator[tuple[Series, str, str, str]]:
        """Yields each series with its colour, its marker, and the sign of its name."""
        for i, series in enumerate(self.series):
            yield series, series.colour or COLOURS[i % len(COLOURS)], *_MARKERS[i % len(_MARKERS)]


def _around(places: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Ends of an axis that holds all points."""
    all_of_them = np.concatenate([*map(np.asarray, places)])
    low, high = float(all_of_them.min()), float(all_of_them.max())
    pad = 0.05 * (high - low) or 0.5
    return low - pad, high + pad


def _every(series: Series, step: int) -> Series:
    chosen = [i for i in range(len(series.x)) if i % step == 0 or i == len(series.x) - 1]
    cut: dict[str, Any] = {
        name: [getattr(series, name)[i] for i in chosen]
        for name in ("x", "y", "low", "texts", "error", "across")
        if getattr(series, name)
    }
    return replace(series, **cut)


def _draw(axes: Any, series: Series, colour: str, marker: str) -> None:
    x, y = np.array(series.x, dtype=float), np.array(series.y, dtype=float)
    y[~np.isfinite(y)] = np.nan
    if series.look == BAND:
        axes.fill_between(x, np.array(series.low, dtype=float), y, color=colour, alpha=0.2, lw=0)
        return
    style = {LINE: "-", BOTH: "-", DOTTED: ":", POINTS: ""}[series.look]
    marker = marker if "markers" in series.look else ""
    axes.errorbar(
        x, y, series.error or None, series.across or None, color=colour, linestyle=style,
        linewidth=1.6, marker=marker, markersize=3.5, markeredgewidth=0, elinewidth=0.6,
    )  # fmt: skip


def _inlined(svg: str, title: str) -> str:
    """Strips head, metadata and digits, gives ids a prefix of their own, takes the page's ink."""
    head, _, body = svg.partition("<svg ")[2].partition(">")
    view = head.partition('viewBox="')[2].partition('"')[0]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), body)
    own = f"p{zlib.crc32(title.encode())}-"
    body = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{own}", body)
    body = body.replace("xlink:href", "href").replace(_INK, "currentColor")
    return f'<svg role="img" aria-label="{html.escape(title)}" viewBox="{view}">{body}'


def _traces(series: Series, colour: str) -> Iterator[dict[str, Any]]:
    """Yields a series as plotly has it, which takes texts for HTML, links included."""
    x, y, low = (
        [v if math.isfinite(v) else None for v in map(float, values)]
        for values in (series.x, series.y, series.low)
    )
    if series.look == BAND:
        edge = {"type": "scatter", "x": x, "mode": "lines", "line": {"width": 0, "color": colour},
                "showlegend": False, "hoverinfo": "skip"}  # fmt: skip
        yield {**edge, "y": y}
        yield {**edge, "y": low, "fill": "tonexty"}
        return
    trace: dict[str, Any] = {
        "type": "scatter", "x": x, "y": y, "name": _plain(series.name),
        "mode": LINE if series.look == DOTTED else series.look,
        "line": {"color": colour, "dash": "dot" if series.look == DOTTED else "solid"},
    }  # fmt: skip
    for axis, half in (("x", series.across), ("y", series.error)):
        if half:
            trace[f"error_{axis}"] = {"type": "data", "array": list(half), "thickness": 0.6}
    if series.texts:
        trace |= {"text": list(map(_plain, series.texts)), "hoverinfo": "text+x"}
    yield trace


def _plain(text: str) -> str:
    return html.escape(legible(text), quote=False)
