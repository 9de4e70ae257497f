"""Writes a report as one HTML page: legible offline, on a phone and on paper, in light and dark.

The page (``page.html``) holds no script and asks for nothing from elsewhere; its security policy
lets a browser do neither. Every text is escaped. :mod:`privbo_plugins.reports` says what it shows.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privbo_plugins.drawing import Picture
from privbo_plugins.files import write_text
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.privacy.figures import as_it_is, not_below
from privbo_plugins.privacy.statement import as_html, template

_LONGEST = 2000
"""Characters of an entry of a table."""

_PACKAGES = ("privbo-plugins", "numpy", "scipy", "opendp", "dp-accounting", "optuna", "ray")
"""Packages on which a run may depend; the page names the versions of those installed."""


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


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        heading: Its heading; empty where it goes on under the one before.
        content: A picture, a table, or a paragraph.
    """

    heading: str
    content: Picture | Table | str


@dataclass(frozen=True)
class Report:
    """A page for people: first the claim, then everything that was published.

    Attributes:
        title: Headline.
        guarantee: What may be claimed.
        sections: What follows it.
        status: Where the run stands (:func:`privbo_plugins.status.status`); None where
            no plan is counted.

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
    status: Mapping[str, Any] | None = None

    def to_html(self) -> str:
        """Renders one self-contained page.

        Raises:
            ImportError: If it has pictures and the ``viz`` extra is not installed.
        """
        sections = [*self.sections, *_closing(self.guarantee, self.status)]
        page = template(Path(__file__).with_suffix(".html"), as_html, cell=_cell)
        return page.render(report=self, sections=sections)

    def write(self, path: str | Path) -> Path:
        """Writes the page; returns the path."""
        target = Path(path)
        write_text(target, self.to_html(), private=False)
        return target


def _cell(entry: Any, digits: int | None) -> str:
    """Writes an entry of a table."""
    from markupsafe import Markup

    text = entry if isinstance(entry, str) else repr(entry)
    if isinstance(entry, float) and digits is not None:
        return Markup('<data value="{}">{}</data>').format(text, f"{entry:.{digits}g}")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _closing(guarantee: PrivacyGuarantee, status: Mapping[str, Any] | None) -> Iterator[Section]:
    """Ends every report: figures of plan and budget, the mechanism's settings, the versions."""
    told = guarantee.spending()
    rows: list[tuple[str, Any]] = []
    if status:
        done, planned = status["done"], status["planned"]
        rows += [
            (f"{status['counted']} done", done),
            (f"{status['counted']} planned", "not said" if planned is None else planned),
        ]
    rows += [
        ("releases so far", told["releases"]),
        (f"{told['measure']} spent", _never_less(told["spent"])),
        (f"{told['measure']} declared in all", _never_less(told["budget"])),
    ]
    rows += [] if told["delta"] is None else [("at delta", as_it_is(told["delta"]))]
    yield Section("Plan and what was spent", Table((), rows))
    settings = [(name, as_it_is(value)) for name, value in guarantee.parameters.items()]
    yield Section("Settings of the mechanism", Table((), settings) if settings else "None.")
    yield Section("Environment", Table((), list(_environment())))


def _never_less(figure: float | str | None) -> str:
    """Writes a figure of a claim; None has no limit."""
    if figure is None:
        return "no limit"
    return figure if isinstance(figure, str) else not_below(figure, 4)


def _environment() -> Iterator[tuple[str, str]]:
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, version

    yield "Python", platform.python_version()
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)
