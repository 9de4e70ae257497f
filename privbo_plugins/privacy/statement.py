"""Shows a claim to people: a headline, a box, lists, details; as text, Markdown and HTML.

Every text may come from outside (a study's name, a label), so all of them are escaped here.
"""

from __future__ import annotations

import html
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbo_plugins.privacy.figures import not_below
from privbo_plugins.privacy.words import WORDS

if TYPE_CHECKING:
    from jinja2 import Template

_WIDTH, _LINES = 110, 14
"""Of a text for a terminal that leaves the rest out."""

_NAME = 80
"""Characters of a word in a fact: the name of a run may have any number."""

_FORM, _NOTES, _FOLDED = (WORDS["headings"][of] for of in ("conditions", "notes", "folded"))
_SIGNED = WORDS["any"]["form"]

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control, halves of characters, and what turns the order of reading."""

Rows = Sequence[tuple[str, str]]
Lists = Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Statement:
    r"""Holds a claim as people read it.

    Attributes:
        sentence: Who is protected, how strongly, and who is not; or that nothing is claimed.
        protected: Whether anything is claimed.
        weak: Whether the claim hardly keeps an attacker from being right.
        rows: (what, text): the box of facts.
        lists: (heading, points): limits by their kinds, notes, and why nothing is claimed, if so.
        folded: (what, text): details of the mechanism.

    Example:
        >>> told = Statement("It is private.", True, False, [("who", "a | b")], [("Not", ["c"])])
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
    weak: bool
    rows: Rows
    lists: Lists
    folded: Rows = ()

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Statement:
        """Makes one of the fields that a certificate holds, as JSON has them."""
        rows, folded = (
            [(str(what), str(text)) for what, text in told[name]] for name in ("rows", "folded")
        )
        lists = [(str(heading), [str(p) for p in points]) for heading, points in told["lists"]]
        marks = told["protected"] is True, told["weak"] is not False
        return cls(str(told["sentence"]), *marks, rows, lists, folded)

    def to_text(self, more: str = "") -> str:
        """For a terminal: headline and box, in few lines, and then the rest.

        Args:
            more: Says how to see the rest, which then is left out.
        """
        if not more:
            return "\n".join([*self._box(self.rows), self._rendered("txt", legible)]).strip()
        for whole in range(len(self.brief), -1, -1):  # facts of two lines, the first ones
            shown = [*self._box(self.brief, whole), more]
            if len(shown) <= _LINES:
                break
        return "\n".join(shown)

    def _box(self, rows: Rows, whole: int | None = None) -> list[str]:
        """Headline and facts; from the fact with that number on, they have one line each."""
        pad = max([len(what) for what, _ in rows], default=0) + 4
        facts = [
            _wrapped(f"{f'  {what}':{pad}}", text, None if whole is None else 1 + (i < whole))
            for i, (what, text) in enumerate(rows)
        ]
        head = _wrapped("", self.sentence, None if whole is None else _LINES - len(rows) - 1)
        return [*head, *itertools.chain(*facts)]

    @property
    def brief(self) -> Rows:
        """The box, with what narrows the claim, for a place that shows no lists."""
        notes = dict(self.lists).get(_NOTES, ())
        return [*self.rows, *[(_NOTES, f"{len(notes)}: {'; '.join(notes)}")] * bool(notes)]

    def in_one_line(self) -> str:
        """All of it as one paragraph."""
        facts = [(what, [text]) for what, text in (*self.rows, *self.folded)]
        told = [f"{what}: {'; '.join(points)}." for what, points in (*facts, *self.lists)]
        return legible(" ".join([self.sentence, *told]))

    def to_markdown(self) -> str:
        """Markdown that no text from outside can put markup into."""
        return self._rendered("md", as_markdown)

    def to_html(self) -> str:
        """A fragment of HTML; every text is escaped."""
        return self._rendered("html", as_html)

    def _rendered(self, form: str, escape: Callable[[str], str]) -> str:
        page = template(Path(__file__).with_suffix(f".{form}"), escape)
        return page.render(told=self, form=_FORM, signed=_SIGNED, folded=_FOLDED)


@cache
def template(path: Path, escape: Callable[[str], str], **filters: Callable[..., Any]) -> Template:
    """Compiles a template; a text becomes markup only where the template marks it as safe.

    Args:
        path: Its file.
        escape: Makes a text one in which nothing is markup.
        filters: Functions that the template calls, by name.
    """
    import jinja2
    from markupsafe import Markup

    def escaped(value: Any) -> Any:
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    made = jinja2.Environment(
        autoescape=True, finalize=escaped, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    made.filters |= filters
    return made.from_string(path.read_text(encoding="utf-8"))


def _wrapped(first: str, text: str, most: int | None) -> list[str]:
    """Wraps a text; with ``most`` lines it is cut, and shows that it is."""
    longest = _NAME if most else len(text)
    words = (w if len(w) <= longest else f"{w[:longest]}..." for w in legible(text).split())
    return textwrap.wrap(
        " ".join(words), _WIDTH, initial_indent=first, subsequent_indent=" " * len(first),
        max_lines=most, placeholder=" ...", break_on_hyphens=False,
    )  # fmt: skip


def legible(text: str) -> str:
    r"""A text from outside in one line, which can neither pass for a line nor steer a terminal.

    Example:
        >>> legible("a\n\x1b[2Jb")
        'a �[2Jb'
    """
    return _unsteered(" ".join(text.split()))


def _unsteered(text: str) -> str:
    """The same without control characters, half characters and turns of the writing direction."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


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
