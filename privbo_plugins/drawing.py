"""One picture, drawn in two ways: as a small SVG that prints, or by plotly, to be zoomed into.

A picture is data: what its axes mean, how it is read, and series of points. Both drawers show the
same. The SVG (matplotlib, of the ``viz`` extra) holds no text from outside but numbers: names of
series stand beside it in HTML, where they are escaped.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from privbo_plugins.privacy.statement import as_html, legible

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MISSING = "Pictures and reports need plotly and matplotlib: pip install 'privbo-plugins[viz]'."

POINTS, LINE, BOTH, BAND = "points", "line", "both", "band"
"""How a series looks; of a band y is the upper edge and ``low`` the lower."""

COLOURS = ("#3b82c4", "#d9822b", "#2f9e6e", "#d0473f", "#8b6fc4", "#8c7a5b")
"""Of series that choose none; each is legible on white and on the dark page."""

GREY = "#7f7f7f"

_MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))
"""Of a series' points and of its name, so that colours are not all that tells them apart."""

_MOST = 600
"""Points that an SVG shows; of more, every k-th is drawn."""

_INK = "#010203"
"""Becomes the page's own text colour, light or dark."""


@dataclass(frozen=True)
class Series:
    """Points of one kind.

    Attributes:
        name: What they are; empty where nothing needs to tell them apart.
        x: Horizontal places.
        y: Vertical places; NaN where there is none.
        look: :data:`POINTS`, :data:`LINE`, :data:`BOTH` or :data:`BAND`.
        error: Half the length of a bar through each point; 0 for none.
        low: Lower edge of a band.
        texts: What is said of each point: in plotly on hovering, in a page in the table.
        written: Whether the texts stand in the picture as well; they must be the engine's own.
        dotted: Whether its line is.
        colour: None for the next one.
        large: Whether its points are.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: str = BOTH
    error: float = 0.0
    low: Sequence[float] = ()
    texts: Sequence[str] = ()
    written: bool = False
    dotted: bool = False
    colour: str | None = None
    large: bool = False


@dataclass(frozen=True)
class Picture:
    """What a picture shows.

    Attributes:
        title: Its headline.
        reading: One sentence on how to read it.
        x_label: What lies along.
        y_label: What lies up.
        series: What is drawn.
        level: A height with its name, drawn as a dashed line; None for none.
        log: Whether heights are logarithmic.
        from_zero: Whether they begin at zero.
    """

    title: str
    reading: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    level: tuple[float, str] | None = None
    log: bool = False
    from_zero: bool = False

    def to_plotly(self) -> Figure:
        """A figure to zoom into.

        Raises:
            ImportError: If plotly is not installed.
        """
        try:
            import plotly.graph_objects as go
        except ImportError:
            raise ImportError(_MISSING) from None
        figure = go.Figure()
        for series in self.series:
            for trace in _traces(series):
                figure.add_scatter(**trace)
        if self.level is not None:
            figure.add_hline(y=self.level[0], line_dash="dash", annotation_text=self.level[1])
        up = {"title": self.y_label, "type": "log" if self.log else None}
        return figure.update_layout(
            title=self.title,
            xaxis_title=self.x_label,
            yaxis=up | ({"rangemode": "tozero"} if self.from_zero else {}),
        )

    def to_html(self) -> str:
        """A figure element: headline, reading, SVG, names of series, and the points as a table.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        thin = self._thinned()
        several = sum(bool(series.name) for series in thin.series) > 1
        names = [
            f"<li><span style='color:{colour}'>{sign}</span> {as_html(series.name)}</li>"
            for series, colour, _, sign in _styled(thin.series)
            if series.name and several
        ]
        legend = f"<ul class='legend'>{''.join(names)}</ul>" if names else ""
        return (
            f"<figure><figcaption><strong>{as_html(self.title)}</strong> "
            f"{as_html(thin.reading)}</figcaption>{thin._svg()}{legend}{thin._table()}</figure>"
        )

    def _thinned(self) -> Picture:
        points = [len(series.x) for series in self.series]
        step = math.ceil(sum(points) / _MOST) if points else 1
        if step <= 1:
            return self
        reading = f"{self.reading} Every {step}th point is drawn, and the last."
        return replace(self, series=[_every(s, step) for s in self.series], reading=reading)

    def _svg(self) -> str:
        try:
            import matplotlib
            from matplotlib.backends.backend_svg import FigureCanvasSVG
            from matplotlib.figure import Figure as Canvas
        except ImportError:
            raise ImportError(_MISSING) from None
        settings: dict[Any, Any] = {
            "svg.fonttype": "none", "svg.hashsalt": self.title, "text.parse_math": False,
            "font.size": 11, "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _INK,
            "xtick.color": _INK, "ytick.color": _INK, "axes.unicode_minus": True,
        }  # fmt: skip
        with matplotlib.rc_context(settings), np.errstate(all="ignore"):
            canvas = Canvas(figsize=(6.4, 3.4), layout="constrained")
            FigureCanvasSVG(canvas)
            self._draw(canvas.add_subplot())
            written = io.StringIO()
            canvas.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        return _small(written.getvalue(), self.title)

    def _draw(self, axes: Any) -> None:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
        for style in _styled(self.series):
            _draw(axes, *style)
        if self.level is not None:
            axes.axhline(self.level[0], color=_INK, linestyle="--", linewidth=1)
            place = (1, self.level[0])
            axes.annotate(
                self.level[1], place, xycoords=("axes fraction", "data"), ha="right", va="bottom"
            )
        if self.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda value, _place: f"{value:g}" * _is_few(axes))
        if self.from_zero:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)

    def _table(self) -> str:
        """The points in numbers, for whoever cannot see them or wants to copy them."""
        drawn = [series for series in self.series if series.look != BAND]
        rows = "".join(
            f"<tr><td>{as_html(series.name)}</td><td>{x!r}</td><td>{y!r}</td>"
            f"<td>{as_html(text)}</td></tr>"
            for series in drawn
            for x, y, text in zip(
                series.x, series.y, series.texts or [""] * len(series.x), strict=True
            )
        )
        head = "".join(
            f"<th scope='col'>{as_html(name)}</th>"
            for name in ("", self.x_label, self.y_label, "")
        )
        return (
            "<details><summary>The same in numbers</summary><div class='wide'><table><thead><tr>"
            f"{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
        )


def _is_few(axes: Any) -> bool:
    """Whether a logarithmic axis is so short that its numbers between powers of ten have room."""
    low, high = axes.get_ylim()
    return bool(high < 10 * low)


def _every(series: Series, step: int) -> Series:
    chosen = [i for i in range(len(series.x)) if i % step == 0 or i == len(series.x) - 1]
    cut: dict[str, Any] = {
        name: [getattr(series, name)[i] for i in chosen]
        for name in ("x", "y", "low", "texts")
        if getattr(series, name)
    }
    return replace(series, **cut)


def _styled(series: Sequence[Series]) -> Iterator[tuple[Series, str, str, str]]:
    """Each series with its colour, its marker, and the sign of its name."""
    for i, one in enumerate(series):
        marker, sign = _MARKERS[i % len(_MARKERS)]
        colour = one.colour or COLOURS[i % len(COLOURS)]
        yield one, colour, marker, "—" if one.look == LINE else sign


def _draw(axes: Any, series: Series, colour: str, marker: str, _sign: str) -> None:
    x, y = np.array(series.x, dtype=float), np.array(series.y, dtype=float)
    y[~np.isfinite(y)] = np.nan
    if series.look == BAND:
        axes.fill_between(x, np.array(series.low, dtype=float), y, color=colour, alpha=0.2, lw=0)
        return
    if series.error:
        gap = np.full(len(x), np.nan)
        ends = np.stack([y - series.error, y + series.error, gap], axis=1).ravel()
        axes.plot(np.repeat(x, 3), ends, color=colour, linewidth=0.6, alpha=0.7)
    if series.look in (LINE, BOTH):
        axes.plot(x, y, color=colour, linestyle=":" if series.dotted else "-", linewidth=1.6)
    if series.look in (POINTS, BOTH):
        size = 8 if series.large else 3.5
        axes.plot(x, y, color=colour, linestyle="", marker=marker, markersize=size, mew=0)
    for place, text in zip(zip(x, y, strict=True), series.texts, strict=False):
        if series.written and text:
            axes.annotate(text, place, xytext=(4, 4), textcoords="offset points", size=9)


def _small(svg: str, title: str) -> str:
    """An SVG for the inside of a page: no head, no metadata, fewer digits, names of its own."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', svg, count=1)
    svg = re.sub(r"<[^>]+>", _fewer_digits, svg)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)  # of older versions
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    svg = svg.replace("xlink:href", "href").replace(_INK, "currentColor")
    own = f"p{abs(hash_of(title))}-"
    svg = re.sub(r'\bid="', f'id="{own}', svg)
    svg = svg.replace('href="#', f'href="#{own}').replace("url(#", f"url(#{own}")
    head = f"<svg role='img' aria-label='{html.escape(title, quote=True)}' "
    return re.sub(r"\n\s*", "\n", svg.replace("<svg ", head, 1))


def _fewer_digits(tag: re.Match[str]) -> str:
    """A tag's places to a hundredth of a point; the numbers of axes stand between tags."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0])


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    import zlib

    return zlib.crc32(text.encode())


def _plain(text: str) -> str:
    return html.escape(legible(text), quote=False)


def _traces(series: Series) -> Iterator[dict[str, Any]]:
    """What plotly adds for a series; plotly takes texts for HTML, links included."""
    x, y = list(series.x), list(series.y)
    if series.look == BAND:
        edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        yield {"x": x, "y": y, **edge}
        yield {"x": x, "y": list(series.low), "fill": "tonexty", **edge}
        return
    mode = {POINTS: "markers", LINE: "lines", BOTH: "lines+markers"}[series.look]
    trace: dict[str, Any] = {"x": x, "y": y, "mode": mode, "name": _plain(series.name)}
    marker = {"size": 10 if series.large else 6, "color": series.colour}
    trace["marker"] = {name: value for name, value in marker.items() if value is not None}
    if series.dotted:
        trace["line"] = {"dash": "dot"}
    if series.error:
        trace["error_y"] = {"type": "constant", "value": series.error, "thickness": 0.6}
    if series.texts:
        trace["text"] = list(map(_plain, series.texts))
        trace |= (
            {"mode": f"{mode}+text", "textposition": "top right"}
            if series.written
            else {"hoverinfo": "text+x"}
        )
    yield trace
