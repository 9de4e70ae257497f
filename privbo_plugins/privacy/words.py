"""Reads the words of guarantees from ``words.toml``, and puts figures into them.

A figure says in its braces how it is rounded to the safe side: ``{mu:4}`` has four digits and is
never less than mu, ``{distance:-4}`` is never more, ``{epsilon:.2}`` has two decimals and is never
less, and ``{delta}`` is not rounded at all.
"""

from __future__ import annotations

import itertools
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from privbo_plugins.privacy.figures import as_it_is, not_above, not_below, two_decimals

WORDS: Mapping[str, Any] = tomllib.loads(
    (files("privbo_plugins.privacy") / "words.toml").read_text(encoding="utf-8")
)
"""Texts that all kinds share, and tables of those that differ."""


RECORD = "record"
"""The unit that is protected where the user names no other."""

ROW = "row"
"""The same of a curator's table."""

LIMITS = ("scope", "conditions", "sums")
"""Kinds of limits: out of scope, what the team confirms not to be so, and what adds up."""

_MERGED = ("box", "folded", *LIMITS)
"""Tables of a kind that go on with those of the kinds before it."""


class Limit(NamedTuple):
    """What a limit is, how a form has it confirmed or a list says it, and the page about it."""

    kind: str
    said: str
    page: str


def plural(unit: str) -> str:
    """Names several of a unit.

    Example:
        >>> [plural(unit) for unit in ("record", "person", "family", "branch", "day")]
        ['records', 'persons', 'families', 'branches', 'days']
    """
    if re.search("[^aeiou]y$", unit):
        return f"{unit[:-1]}ies"
    return unit + ("es" if re.search("(s|x|ch|sh)$", unit) else "s")


def as_row(unit: str) -> str:
    """Names a row that is taken for a unit; the word itself where it is one for rows.

    Example:
        >>> [as_row(unit) for unit in ("patient", "patient row", "record")]
        ['patient row', 'patient row', 'record']
    """
    return unit if re.search(rf"\b({RECORD}|{ROW})$", unit) else f"{unit} {ROW}"


def of_unit(said: Any, unit: str) -> Any:
    """Names the unit in a text, or in tables of texts."""
    if isinstance(said, str):
        return said.replace("{unit}", unit).replace("{units}", plural(unit))
    if isinstance(said, Mapping):
        return {name: of_unit(part, unit) for name, part in said.items()}
    return said


@lru_cache
def texts_of(*kinds: str, unit: str = RECORD) -> Mapping[str, Any]:
    """Merges the texts of some tables, of which the last one decides, and lists their limits."""
    texts: dict[str, Any] = {}
    for kind in ("any", *kinds):
        own = of_unit(WORDS[kind], unit)
        tables = [(name, texts.get(name, {}), own.get(name, {})) for name in _MERGED]
        # Of a special case its own come first, and decide.
        texts |= own | {name: new | old | new for name, old, new in tables}
    return texts | {"not_covered": tuple(text for kind in LIMITS for text in texts[kind].values())}


def limit_of(text: str, unit: str = RECORD) -> Limit:
    """Looks up a limit; one of an algorithm's own is out of scope."""
    return _limits(unit).get(text) or Limit(LIMITS[0], text, WORDS["pages"][LIMITS[0]])


@lru_cache
def _limits(unit: str) -> Mapping[str, Limit]:
    pages, found = WORDS["pages"], {}
    systems = [of_unit(own, unit) for own in WORDS.values() if isinstance(own, dict)]
    for own, kind in itertools.product(systems, LIMITS):
        texts = own.get(kind, {})
        for name, text in texts.items() if isinstance(texts, dict) else ():
            said = own["confirm"][name] if kind == "conditions" else text
            found[text] = Limit(kind, said, pages.get(name, pages[kind]))
    return found


def of_one(text: str) -> str:
    """Names one of a kind in the singular.

    Example:
        >>> of_one("1 evaluations, 11 releases, 0.1 rounds")
        '1 evaluation, 11 releases, 0.1 rounds'
    """
    return re.sub(
        r"(?<![\w.])1 (evaluation|release|training|agent|round|run|line)s\b", r"1 \1", text
    )


class Words(string.Formatter):
    """Fills texts: a name in braces is another text, or else a fact of the subject.

    Args:
        texts: By name.
        subject: Has every other name as an attribute.
        facts: Further ones, which come first.
    """

    def __init__(self, texts: Mapping[str, Any], subject: object, **facts: Any) -> None:
        self.texts, self._subject, self._facts = texts, subject, facts

    def __getitem__(self, name: str) -> str:
        return self.filled(self.texts[name])

    def rows(self, table: str) -> list[tuple[str, str]]:
        """The headings of a table of texts, and what each of them says; without empty ones."""
        rows = [(name, self.filled(text)) for name, text in self.texts[table].items()]
        return [(name, text) for name, text in rows if text]

    def filled(self, text: str, **facts: Any) -> str:
        """Puts in everything that a text names."""
        return of_one(self.vformat(text, (), self._facts | facts))

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Finds what a name stands for."""
        name = str(key)
        if name in kwargs:
            return kwargs[name]
        if name in self.texts:
            return self.vformat(self.texts[name], args, kwargs)
        return getattr(self._subject, name)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Writes a fact, rounded to the safe side."""
        if format_spec == ".2":
            return two_decimals(value)
        digits = int(format_spec or 0)
        if not digits:
            return as_it_is(value)
        return not_below(value, digits) if digits > 0 else not_above(value, -digits)
