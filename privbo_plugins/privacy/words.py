"""Reads the words of guarantees from ``words.toml``, and puts figures into them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

WORDS: Mapping[str, Any] = tomllib.loads(
    (files("privbo_plugins.privacy") / "words.toml").read_text(encoding="utf-8")
)
"""Texts that all kinds share, and a table for each kind."""


@lru_cache
def texts_of(*kinds: str) -> Mapping[str, Any]:
    """The words of a kind of guarantee; where tables build on each other, the last one decides."""
    texts = {name: text for name, text in WORDS.items() if isinstance(text, str)}
    limits: dict[str, str] = {}
    for kind in kinds:
        texts |= WORDS[kind]
        limits |= WORDS[kind].get("not_covered", {})
    return texts | {"not_covered": (*limits.values(), WORDS["copies"])}


class Words(dict[str, Any]):
    """Figures by name, and the texts that are made of them once they are asked for."""

    def __init__(self, texts: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._texts = texts

    def __missing__(self, name: str) -> str:
        return self.filled(self._texts[name])

    def filled(self, text: str) -> str:
        """Puts in everything that a text names."""
        return text.format_map(self)
