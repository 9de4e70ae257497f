"""Shows a claim to people: one sentence, a table, and lists; as Markdown and as HTML.

Every text may come from outside (a study's name, a label), so all of them are escaped here.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privbo_plugins.privacy.figures import not_below

_TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Unicode's names of what lets a text be read in another order than it is written."""

Rows = Sequence[tuple[str, str]]
Lists = Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Statement:
    r"""Holds a claim as people read it.

    Attributes:
        sentence: The claim in one sentence, or that there is none.
        protected: Whether anything is claimed.
        rows: (what, text): who is protected, against whom, how much.
        lists: (heading, points): what is not covered, and why nothing is claimed, if so.

    Example:
        >>> told = Statement("It is private.", True, [("who", "a | b")], [("Not", ["c"])])
        >>> print(told.to_markdown())
        **It is private.**
        <BLANKLINE>
        | | |
        |---|---|
        | who | a \| b |
        <BLANKLINE>
        Not:
        <BLANKLINE>
        - c
        <BLANKLINE>
    """

    sentence: str
    protected: bool
    rows: Rows
    lists: Lists

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Statement:
        """Makes one of the fields that a certificate holds, as JSON has them."""
        rows = [(str(what), str(text)) for what, text in told["rows"]]
        lists = [(str(heading), [str(p) for p in points]) for heading, points in told["lists"]]
        return cls(str(told["sentence"]), told["protected"] is True, rows, lists)

    def to_markdown(self) -> str:
        """Markdown that no text from outside can put markup into."""
        return "\n".join([*self._markdown_lines(), ""])

    def _markdown_lines(self) -> Iterator[str]:
        yield f"**{as_markdown(self.sentence)}**"
        if self.rows:
            yield from ("", "| | |", "|---|---|")
            yield from (
                f"| {as_markdown(what)} | {as_markdown(text)} |" for what, text in self.rows
            )
        for heading, points in self.lists:
            yield from ("", f"{as_markdown(heading)}:", "")
            yield from (f"- {as_markdown(point)}" for point in points)

    def to_html(self) -> str:
        """A fragment of HTML; every text is escaped."""
        mark = "protected" if self.protected else "not-protected"
        rows = "".join(
            f"<tr><th scope='row'>{as_html(what)}</th><td>{as_html(text)}</td></tr>"
            for what, text in self.rows
        )
        table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
        lists = "".join(
            f"<h3>{as_html(heading)}</h3><ul>"
            f"{''.join(f'<li>{as_html(point)}</li>' for point in points)}</ul>"
            for heading, points in self.lists
        )
        return f"<p class='claim {mark}'>{as_html(self.sentence)}</p>{table}{lists}"


def legible(text: str) -> str:
    r"""A text from outside in one line, which can neither pass for a line nor steer a terminal.

    Example:
        >>> legible("a\n\x1b[2Jb")
        'a �[2Jb'
    """
    return _unsteered(" ".join(text.split()))


def _unsteered(text: str) -> str:
    """The same without control characters, half characters and turns of the writing direction."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _steers(c) else c for c in text)


def _steers(c: str) -> bool:
    steering = unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"
    return steering or unicodedata.bidirectional(c) in _TURNS


def as_html(text: str) -> str:
    """A text in which nothing is markup."""
    return html.escape(_unsteered(text))


def as_markdown(text: str) -> str:
    r"""A text in one line, in which nothing is markup and nothing becomes a link.

    Example:
        >>> print(as_markdown("[a](http://b) | <c>"))
        \[a\](http:\//b) \| &lt;c&gt;
    """
    plain = html.escape(legible(text), quote=False)
    marked = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", plain)
    return re.sub(r"(?i)\bwww\.", r"www\\.", marked.replace("://", ":\\//"))


def guess(apart: float) -> float:
    """Best chance to tell two neighbours apart that are equally likely, rounded up.

    Args:
        apart: Total variation between what is released of either: delta at epsilon 0.

    Example:
        >>> guess(0.0), round(guess(0.5), 4), guess(1.0)
        (0.5, 0.75, 1.0)
    """
    return math.nextafter(0.5 + apart / 2, 1.0) if apart else 0.5


def percent(chance: float) -> str:
    """In percent, and never less than it is.

    Example:
        >>> percent(0.5), percent(0.69146246127), percent(1.0)
        ('50 %', '69.15 %', '100 %')
    """
    return f"{not_below(100 * chance, 4)} %"
