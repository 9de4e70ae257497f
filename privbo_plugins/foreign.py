"""Answers names of other tools: why they are none here, and what to do instead.

The words stand in ``foreign.toml``. One of its tables answers keywords of constructors
("settings"), one attributes, and one scikit-learn's names of scores ("scores").
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def words(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """Reads one table, by the word that somebody types."""
    text = (files("privbo_plugins") / "foreign.toml").read_text(encoding="utf-8")
    return {word: entry for entry in tomllib.loads(text)[kind] for word in entry["words"]}


def answer(kind: str, word: str, known: Collection[str], mark: str = "") -> str:
    """Ends the sentence that a name is none here.

    Args:
        kind: The table.
        word: The name.
        known: Names that are some here; the nearest is guessed where the table lacks the word.
        mark: What follows a name of ours.
    """
    entry = words(kind).get(word)
    if entry is None:
        close = difflib.get_close_matches(word.removesuffix("_score"), known, n=1)
        return f"; did you mean {close[0]!r}?" if close else "."
    here = next((name for name in entry.get("here", ()) if name in known), None)
    return f": here it is {here}{mark}." if here else f": {entry['why']}. {entry['instead']}."


def no_attribute(owner: object, name: str) -> Any:
    """Answers an attribute that an object has not; a class takes it as its ``__getattr__``.

    Raises:
        AttributeError: Always.
    """
    cls = type(owner)
    if name in words("attributes") and not hasattr(cls, name):
        told = answer("attributes", name, {*dir(cls), *vars(owner)})
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}{told}")
    return object.__getattribute__(owner, name)  # raises in Python's words, or in a property's
