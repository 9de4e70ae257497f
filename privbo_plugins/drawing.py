"""Describes a picture once, as data: axes, how it is read, and series of points.

A page holds it as a small SVG, drawn by matplotlib (the ``viz`` extra). ``to_dict`` is the same
picture as plotly's JSON, as optuna-dashboard takes it; plotly itself is not needed for that. The
SVG holds numbers, the engine's own words and names of axes; names of series stand beside it, in
HTML.
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

FAINT, HOLLOW, RING = "faint", "hollow", "ring"
"""Points too, but pale, empty, or circles around points of another series."""

_DOTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    FAINT: ({"alpha": 0.45}, {"opacity": 0.45}),
    HOLLOW: ({"mfc": "none", "mew": 1}, {"symbol": "circle-open"}),
    RING: ({"mfc": "none", "mew": 1.4, "ms": 9}, {"symbol": "circle-open", "size": 13}),
}
"""How matplotlib and plotly draw them."""

_SIGNS = {LINE: "—", DOTTED: "┄", RING: "◯", HOLLOW: "○"}
"""Of names in a legend, where it is not the marker."""

COLOURS = ("#3b82c4", "#d9822b", "#2f9e6e", "#d0473f", "#8b6fc4", "#8c7a5b")
"""Of series that choose none; each is legible on white and on the dark page."""

GREY = "#7f7f7f"

_MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))
"""Of a series' points and of its name, so that colours are not all that tells them apart."""

_TURN = np.append(np.linspace(0.0, 2.0 * math.pi, 33), math.nan)
"""Angles of the corners that an ellipse is drawn with, and the gap after it."""

_ELLIPSE = "noise: one standard deviation, in which 39 % of its draws lie"
"""What an ellipse holds, for a legend: 1 - exp(-1/2) of a Gaussian with two coordinates."""

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
        across: Half the width of an ellipse around each point, in place of the bar; ``error`` is
            half its height.
        correlation: Of the two, which tilts the ellipse; NaN for none. Faint and hollow points
            have none.
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
    correlation: Sequence[float] = ()
    low: Sequence[float] = ()
    texts: Sequence[str] = ()
    colour: str = ""

    @property
    def outlined(self) -> bool:
        """Tells whether ellipses are drawn around its points."""
        return bool(self.across) and self.look in (POINTS, RING)


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
        up: dict[str, Any] = {"title": {"text": _plain(self.y_label)}}
        up |= {"type": "log"} if self.log else {}
        up |= {"rangemode": "tozero"} if self.from_zero else {}
        layout = {
            "title": {"text": _plain(self.title)},
            "xaxis": {"title": {"text": _plain(self.x_label)}}, "yaxis": up,
        }  # fmt: skip
        traces = [
            trace for series, colour, *_ in self._styled() for trace in _traces(series, colour)
        ]
        return {"data": traces, "layout": layout}

    def thinned(self) -> Picture:
        """Leaves out points of a long picture evenly; its reading then says so."""
        strokes = sum(len(s.x) * (5 if s.across else 1) for s in self.series)
        step = math.ceil(strokes / _MOST)
        if step <= 1:
            return self
        reading = f"{self.reading} One point in {step} is drawn, and the last."
        return replace(self, series=[_every(s, step) for s in self.series], reading=reading)

    def legend(self) -> list[tuple[str, str, str]]:
        """Lists (name, colour, sign) of the named series, where there are several."""
        named = [
            (series.name, colour, _SIGNS.get(series.look, sign))
            for series, colour, _, sign in self._styled()
            if series.name
        ]
        ellipses = [(_ELLIPSE, GREY, "⬭")] if any(s.outlined for s in self.series) else []
        return [*(named if len(named) > 1 else []), *ellipses]

    def numbers(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Lists head and rows of a table beside the picture: all points, bars and texts."""
        drawn = [series for series in self.series if series.look != BAND]
        heads = {
            "across": f"noise of {self.x_label} (sd)", "error": f"noise of {self.y_label} (sd)",
            "correlation": "correlation of both noises",
        }  # fmt: skip
        noise = [name for name in heads if any(getattr(series, name) for series in drawn)]
        rows: list[tuple[Any, ...]] = []
        for own in drawn:
            blank = [""] * len(own.x)
            more = [getattr(own, name) or blank for name in (*noise, "texts")]
            rows += zip([own.name] * len(own.x), own.x, own.y, *more, strict=True)
        return ["", self.x_label, self.y_label, *(heads[name] for name in noise), ""], rows

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
            axes = figure.add_subplot(xlabel=_fitting(self.x_label), ylabel=_fitting(self.y_label))
            for series, colour, marker, _ in self._styled():
                _draw(axes, series, colour, marker)
            if self.log:
                axes.set_yscale("log")
                low, high = axes.get_ylim()
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:g}" if high < 10 * low else "")
            if self.from_zero:
                axes.set_ylim(bottom=0)
            figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        return _inlined(written.getvalue(), self.title)

    def _styled(self) -> Iterator[tuple[Series, str, str, str]]:
        """Yields each series with its colour, its marker, and the sign of its name."""
        for i, series in enumerate(self.series):
            yield series, series.colour or COLOURS[i % len(COLOURS)], *_MARKERS[i % len(_MARKERS)]


def _every(series: Series, step: int) -> Series:
    chosen = [i for i in range(len(series.x)) if i % step == 0 or i == len(series.x) - 1]
    cut: dict[str, Any] = {
        name: [getattr(series, name)[i] for i in chosen]
        for name in ("x", "y", "low", "texts", "error", "across", "correlation")
        if getattr(series, name)
    }
    return replace(series, **cut)


def _fitting(label: str) -> str:
    """Shortens a name for an axis; one that the font may lack stands in the text alone."""
    return label[:40] if label.isascii() else ""


def _draw(axes: Any, series: Series, colour: str, marker: str) -> None:
    x, y = np.array(series.x, dtype=float), np.array(series.y, dtype=float)
    y[~np.isfinite(y)] = np.nan
    if series.look == BAND:
        axes.fill_between(x, np.array(series.low, dtype=float), y, color=colour, alpha=0.2, lw=0)
        return
    style = {LINE: "-", BOTH: "-", DOTTED: ":"}.get(series.look, "")
    if series.look in _SIGNS:
        marker = "o" if series.look in _DOTS else ""
    if series.outlined:
        from matplotlib.lines import Line2D

        axes.margins(0.25)  # ends are those of the points, which wide ellipses would hide
        axes.add_artist(Line2D(*_ellipses(series), color=colour, linewidth=0.6))
    dots = {"ms": 3.5, "mew": 0, **_DOTS.get(series.look, ({},))[0]}
    axes.errorbar(
        x, y, None if series.across else series.error or None, color=colour, linestyle=style,
        linewidth=1.6, marker=marker, elinewidth=0.6, **dots,
    )  # fmt: skip


def _ellipses(series: Series) -> tuple[Any, Any]:
    """Places of all ellipses' corners along and up, with NaN after each ellipse."""
    told = series.x, series.y, series.across, series.error, series.correlation
    x, y, wide, high, tilt = np.array(told, dtype=float)[:, :, None]
    up = tilt * np.cos(_TURN) + np.sqrt(1.0 - tilt**2) * np.sin(_TURN)
    return (x + wide * np.cos(_TURN)).ravel(), (y + high * up).ravel()


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
    x, y, low = map(_finite, (series.x, series.y, series.low))
    name, dots = _plain(series.name), _DOTS.get(series.look)
    edge = {"type": "scatter", "x": x, "mode": "lines", "line": {"width": 0, "color": colour},
            "showlegend": False, "hoverinfo": "skip"}  # fmt: skip
    if series.look == BAND:
        yield {**edge, "y": y}
        yield {**edge, "y": low, "fill": "tonexty"}
        return
    trace: dict[str, Any] = {
        "type": "scatter", "x": x, "y": y, "name": name, "legendgroup": name,
        "mode": {DOTTED: LINE}.get(series.look, POINTS if dots else series.look),
        "line": {"color": colour, "dash": "dot" if series.look == DOTTED else "solid"},
    }  # fmt: skip
    if dots:
        trace["marker"] = dots[1]
    if series.outlined:
        x, y = ([v and float(f"{v:.6g}") for v in _finite(of)] for of in _ellipses(series))
        yield edge | {"x": x, "y": y, "line": {"width": 1, "color": colour}, "legendgroup": name}
    if series.across:
        noise = {"sd_x": series.across, "sd_y": series.error, "correlation": series.correlation}
        trace["meta"] = {told: _finite(of) for told, of in noise.items()}
    elif series.error:
        trace["error_y"] = {"type": "data", "array": list(series.error), "thickness": 0.6}
    if series.texts:
        trace |= {"text": list(map(_plain, series.texts)), "hoverinfo": "text+x"}
    yield trace


def _finite(values: Iterable[float]) -> list[float | None]:
    """Lists numbers for JSON, which has no infinities."""
    return [v if math.isfinite(v) else None for v in map(float, values)]


def _plain(text: str) -> str:
    return html.escape(legible(text), quote=False)
