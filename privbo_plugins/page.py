"""A report as one page: legible offline, on a phone and on paper, in light and in dark.

It asks for nothing from elsewhere. Every text is escaped; what it shows says
:mod:`privbo_plugins.reports`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbo_plugins.drawing import Picture
from privbo_plugins.files import write_text
from privbo_plugins.privacy.figures import as_it_is, not_below
from privbo_plugins.privacy.guarantee import PrivacyGuarantee
from privbo_plugins.privacy.statement import as_html

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LONGEST = 2000
"""Characters of an entry of a table."""

_PACKAGES = ("privbo-plugins", "numpy", "scipy", "opendp", "dp-accounting", "optuna", "ray")
"""What a run may depend on; of those that are installed the version is told."""


@dataclass(frozen=True)
class Table:
    """Rows of public facts.

    Attributes:
        columns: Their names; none for a table without a head.
        rows: Their entries: texts stand as they are, other things as Python writes them.
        digits: Significant digits of floats; None for all of them. The page holds all of them
            in any case, as the value of the entry.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    digits: int | None = None

    def to_html(self) -> str:
        """The table; every entry is escaped."""
        head = "".join(f"<th scope='col'>{as_html(name)}</th>" for name in self.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{self._entry(entry)}</td>' for entry in row)}</tr>"
            for row in self.rows
        )
        top = f"<thead><tr>{head}</tr></thead>" if head else ""
        return f"<div class='wide'><table>{top}<tbody>{rows}</tbody></table></div>"

    def _entry(self, entry: Any) -> str:
        text = entry if isinstance(entry, str) else repr(entry)
        if isinstance(entry, float) and self.digits is not None:
            return f"<data value='{text}'>{entry:.{self.digits}g}</data>"
        return as_html(text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ...")


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        heading: Its heading; empty where it goes on under the one before.
        content: A picture (or a figure of plotly's), a table, or a paragraph.
    """

    heading: str
    content: Picture | Figure | Table | str


@dataclass(frozen=True)
class Report:
    """A page for people: what may be claimed, and then what has been published.

    Attributes:
        title: Headline.
        guarantee: What may be claimed.
        sections: What follows it.
        interactive: Whether pictures are plotly's, to be zoomed into: 4.8 MB instead of some 100
            kB, and nothing on paper but what was seen last.
        standing: Where the run stands (:func:`privbo_plugins.standing.standing`); None where
            nobody counts what was planned.

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
    interactive: bool = False
    standing: Mapping[str, Any] | None = None

    def to_html(self) -> str:
        """One self-contained page."""
        body, figures, is_open = "", 0, False
        for section in (*self.sections, *_closing(self.guarantee, self.standing)):
            if section.heading:
                body += "</section>" * is_open + f"<section><h2>{as_html(section.heading)}</h2>"
                is_open = True
            content = section.content
            if isinstance(content, Picture) and self.interactive:
                content = content.to_plotly()
            body += _part(content, figures)
            figures += not isinstance(content, Table | str | Picture)
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            "<meta name='viewport' content='width=device-width,initial-scale=1'>"
            "<meta name='color-scheme' content='light dark'>"
            f"<title>{as_html(self.title)}</title><style>{_STYLE}</style></head><body><main>"
            f"<h1>{as_html(self.title)}</h1>{self._certificate()}{body}"
            f"{'</section>' * is_open}</main></body></html>"
        )

    def _certificate(self) -> str:
        """The claim: a sentence, a table, what is not covered, and the whole text of it."""
        whole = as_html(str(self.guarantee))
        return (
            f"<section id='guarantee'><h2>Guarantee</h2>{self.guarantee.statement().to_html()}"
            f"<details><summary>In full, as one paragraph</summary><p>{whole}</p></details>"
            "</section>"
        )

    def write(self, path: str | Path) -> Path:
        """Writes the page; returns where to."""
        target = Path(path)
        write_text(target, self.to_html(), private=False)
        return target


def _part(content: Picture | Figure | Table | str, figures: int) -> str:
    """A section's content after so many figures, of which the first brings plotly along."""
    if isinstance(content, Table | Picture):
        return content.to_html()
    if isinstance(content, str):
        return f"<p>{as_html(content)}</p>"
    return str(
        content.to_html(
            full_html=False,
            include_plotlyjs=figures == 0,
            default_height="420px",
            div_id=f"picture-{figures}",  # its own would be another one in each page
            config={"displaylogo": False},  # which is a link
        )
    )


def _closing(guarantee: PrivacyGuarantee, standing: Mapping[str, Any] | None) -> list[Section]:
    """What every report ends with: what was spent, the mechanism's settings, the versions."""
    told = guarantee.spending()
    measure = told["measure"]
    spent = [
        *_done(standing or {}),
        ("releases so far", told["releases"]),
        (f"{measure} spent", _never_less(told["spent"])),
        (f"{measure} declared in all", _never_less(told["budget"])),
    ]
    spent += [] if told["delta"] is None else [("at delta", as_it_is(told["delta"]))]
    settings = [(name, as_it_is(value)) for name, value in guarantee.parameters.items()]
    return [
        Section("Plan and what was spent", Table((), spent)),
        Section("Settings of the mechanism", Table((), settings) if settings else "None."),
        Section("Environment", Table((), _environment())),
    ]


def _done(standing: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What was done of what was planned."""
    if not standing:
        return []
    planned = standing["planned"]
    rows = [(f"{standing['counted']} done", standing["done"])]
    return [*rows, (f"{standing['counted']} planned", "not said" if planned is None else planned)]


def _never_less(figure: float | str | None) -> str:
    """A figure of a claim; None where it has no limit."""
    if figure is None:
        return "no limit"
    return figure if isinstance(figure, str) else not_below(figure, 4)


def _environment() -> list[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    found = [("Python", platform.python_version())]
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found


_STYLE = (
    ":root{--ink:#1b1f24;--paper:#fff;--line:#d0d5db;--soft:#f4f6f8;--good:#2a7d2a;"
    "--good-soft:#f2f8f2;--bad:#b00020;--bad-soft:#fdf1f2}"
    "@media (prefers-color-scheme:dark){:root{--ink:#e4e7eb;--paper:#16181c;--line:#3c424a;"
    "--soft:#1f2329;--good:#6fce7a;--good-soft:#18261b;--bad:#ff7b86;--bad-soft:#2e191c}}"
    "@media print{:root{--ink:#000;--paper:#fff;--line:#bbb;--soft:#fff;--good:#2a7d2a;"
    "--good-soft:#fff;--bad:#b00020;--bad-soft:#fff}"
    "body{font-size:12px}figure,tr,li{break-inside:avoid}h2,h3{break-after:avoid}details{display:none}"
    "a{color:inherit}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}"
    "main{max-width:52rem;margin:0 auto;padding:1rem}"
    "h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0 1rem;overflow-wrap:anywhere}"
    "h2{font-size:1.25rem;margin:2rem 0 .5rem;padding-top:.75rem;border-top:1px solid var(--line)}"
    "h3{font-size:1.05rem;margin:1.25rem 0 .25rem}"
    "p.claim{font-size:1.1rem;margin:.75rem 0;padding:.9rem 1rem;"
    "border-left:6px solid var(--good);background:var(--good-soft)}"
    "p.not-protected{border-color:var(--bad);background:var(--bad-soft)}"
    ".wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:.5rem 0;max-width:100%}"
    "td,th{border:1px solid var(--line);padding:.3rem .6rem;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere;min-width:3.5rem}"
    "th{font-weight:600;background:var(--soft);overflow-wrap:break-word}th[scope=row]{width:30%}"
    "@media (max-width:36rem){th[scope=row],th[scope=row]+td{display:block;width:auto}"
    "th[scope=row]+td{border-top:0;border-bottom:0}}"
    "td{font-variant-numeric:tabular-nums}"
    "ul{margin:.25rem 0;padding-left:1.2rem}"
    "figure{margin:1rem 0 1.5rem}figcaption{margin-bottom:.4rem}"
    "figure svg{display:block;width:100%;max-width:40rem;height:auto;"
    "font-family:system-ui,sans-serif;stroke-linejoin:round}"
    "ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;padding:0}"
    "ul.legend li{min-width:0}"
    "summary{cursor:pointer;margin:.4rem 0}"
)
