"""Compares what a host shows of a trial with what the ledger of its run knows of it.

A host reads its own storage or results into :class:`Shown`; the rules stand here, once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

Flat = Mapping[str, Any]
"""Parameters of a trial by flattened name, such as ``"model/lr"``."""

BESIDE = "results hold values under other names than the search's metric"
OTHER_VALUE = "a trial reported another value than was released"
NOT_RELEASED = "a trial reported a value that was not released"
ALTERED = "a trial showed another config than it was given"

DRAW = "draw"
"""The operation that shows a trial's noisy draw, where its value is an estimate."""

ANYTHING = object()
"""Stands in a given config for a value that the host does not tell."""

_OF_NUMPY = frozenset(np.sctypeDict.values())


@dataclass(frozen=True)
class Shown:
    """What a host shows of a trial.

    Attributes:
        trial: Its name in the ledger.
        value: What stands as its value; None for nothing.
        extras: Operations that have put something beside the value, such as ``report(3)``, and
            what they have put there.
        config: The parameters that are shown, flattened; None if none are, not even an empty set.
    """

    trial: str
    value: Any = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    config: Flat | None = None

    def __bool__(self) -> bool:
        """Tells if a release or a declaration must account for anything."""
        return self.value is not None or bool(self.extras)


@dataclass(frozen=True)
class TrialRecord:
    """What a ledger knows of a trial.

    Attributes:
        published: The value that was released; None if none was.
        entered: Whether the trial has run as a private one.
        vouched: Operations that it declared public.
        head: The end of the chain of releases.
        beside: What else was released of it, by the operation that shows it: its noisy draw,
            where ``published`` is an estimate, and further scores.
    """

    published: float | None
    entered: bool
    vouched: Collection[str]
    head: tuple[int, str] = (0, "")
    beside: Mapping[str, float] = field(default_factory=dict)


def complaints(
    shown: Shown, record: TrialRecord, *, plain: str, beside: str = BESIDE
) -> Iterator[str]:
    """Yields why nothing may be claimed for a run that shows this; nothing if all is well.

    Args:
        shown: What the host shows.
        record: What the ledger knows.
        plain: What to say of a value that has not passed through the ledger.
        beside: What to say of an operation's data that is not accounted for; ``{}`` is its kind.
    """
    unexplained = (op for op, put in shown.extras.items() if not _explains(record, op, put))
    yield from dict.fromkeys(beside.format(op.partition("(")[0]) for op in unexplained)
    if shown.value is None:
        return
    if record.published is None:
        yield NOT_RELEASED if record.entered else plain
    elif not same(shown.value, record.published):
        yield OTHER_VALUE


def _explains(record: TrialRecord, operation: str, put: Any) -> bool:
    if operation in record.beside and same(put, record.beside[operation]):
        return True
    return operation in record.vouched


# Values ---------------------------------------------------------------------------------------


def same(told: Any, published: float) -> bool:
    """Checks whether a value is what was published, and is written like it."""
    return type(plain(told)) is float and repr(plain(told)) == repr(float(published))


def plain(value: Any) -> Any:
    """Makes a number or text of NumPy's one of Python's own; leaves all else as it is.

    A subclass stays what it is: it may compare as one number and be written as another.
    """
    return np.generic.item(value) if type(value) in _OF_NUMPY else value


def as_float(value: Any) -> float | None:
    """A number as a float, infinity where it is too large for one; None for anything else."""
    number = plain(value)
    if type(number) not in (bool, int, float):  # a subclass may raise, or tell two numbers
        return None
    try:
        return float(number)
    except OverflowError:
        return math.inf  # or the other one: neither is learnt, nor ever published


def is_nan(value: Any) -> bool:
    """Checks whether a value is NaN."""
    number = as_float(value)
    return number is not None and math.isnan(number)


# Parameters -----------------------------------------------------------------------------------


def altered(config: Flat | None, given: Sequence[Flat]) -> bool:
    """Checks whether a trial shows another config than it was given.

    Values are the same if they are written in the same way, and so of the same type. Of objects
    the types are compared: they come back as copies.

    Args:
        config: What it shows; None for nothing.
        given: What it was given: several where a scheduler has changed it; empty if not known.
    """
    return config is not None and bool(given) and not any(_shows(config, one) for one in given)


def comparable(config: Flat | None, given: Sequence[Flat]) -> bool:
    """Checks whether it is known of all that a trial shows what it should be."""
    return bool(given) or config is None


def flat(nested: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values of nested dictionaries by flattened name; an empty dictionary is a value."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        inner = isinstance(value, Mapping) and len(value) > 0
        found |= flat(value, f"{path}{name}/") if inner else {f"{path}{name}": value}
    return found


def _shows(told: Flat, config: Flat) -> bool:
    """Checks whether a config holds every value of a given one, and nothing else."""
    flat_ones = ([name for name in row if "/" not in name] for row in (told, config))
    in_order = operator.eq(*flat_ones)  # hosts keep no order of nested ones
    same_names = in_order and told.keys() == config.keys()
    return same_names and all(_alike(told[name], config[name]) for name in config)


def _alike(shown: Any, given: Any) -> bool:
    """Tells if a value may be what was given; of objects only the types are known."""
    if given is ANYTHING:
        return True
    if isinstance(given, Mapping):
        return isinstance(shown, Mapping) and _shows(flat(shown), flat(given))
    if isinstance(given, list | tuple):
        same_size = type(shown) in (list, tuple) and len(shown) == len(given)
        return same_size and all(map(_alike, shown, given))
    shown, given = plain(shown), plain(given)
    if given is None or isinstance(given, str | Real):
        return type(shown) is type(given) and repr(shown) == repr(given)
    return type(shown).__qualname__ == type(given).__qualname__
