"""Optuna distributions to engine spaces."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from privbo_plugins.errors import ONE_SPACE
from privbo_plugins.spaces import Categorical, Dimension, Float, Int, Space

ANOTHER_SPACE = (
    "The search space of a private study is fixed by its first trial (or by search_space=), and "
    "{} is not in it, or with another range, scale or step: nothing was stored or charged. "
    + ONE_SPACE
)

ANOTHER_CONSTANT = (
    "A parameter with a single value is stored with its trial as it is, so its value is fixed by "
    "the study's first trial (or by search_space=); this trial suggests another value, or one "
    "more parameter of this kind. What was computed from private data must not be suggested; "
    "suggest every other constant in all trials alike, or start a new study for another one."
)

CONSTANT_CHANGED = (
    "parameters with a single value differ between trials; they are stored as they are, and may "
    "have been computed from private data"
)
"""Why nothing may be claimed any more: the first of the values is in the study already."""

SPACE_DIFFERS = (
    "trials hold parameters or ranges that are not those of the other trials; they are stored as "
    "they are, and may have been computed from private data"
)
"""Why nothing may be claimed any more: they did not come through a guarded trial."""

_LONGEST_NAME = 60


def shown_name(name: object) -> str:
    """A parameter's name as messages may show it; of anything but a short text only its type.

    What an objective passes by mistake in the place of a name may be its data.

    Example:
        >>> shown_name("x"), shown_name([0.25])
        ("'x'", '<list>')
    """
    kind = type(name)
    if kind is str and len(str(name)) <= _LONGEST_NAME:
        return repr(name)
    known = any(getattr(module, kind.__name__, None) is kind for module in (builtins, np))
    return f"<{kind.__name__}>" if known else "<an object>"


def to_dimension(name: str, distribution: BaseDistribution) -> Dimension:
    """One distribution to one dimension.

    Raises:
        ValueError: If the distribution is of a kind Optuna 5 does not document, or lists a choice
            twice.
    """
    if isinstance(distribution, FloatDistribution):
        return Float(distribution.low, distribution.high, distribution.log, distribution.step)
    if isinstance(distribution, IntDistribution):
        return Int(distribution.low, distribution.high, distribution.log, distribution.step)
    if isinstance(distribution, CategoricalDistribution):
        if any(i != distribution.to_internal_repr(c) for i, c in enumerate(distribution.choices)):
            raise ValueError(
                f"{shown_name(name)} lists choices that are equal, and Optuna takes the first for "
                "each of them (1, 1.0 and True are equal): list one, or write them as texts."
            )
        return Categorical(tuple(distribution.choices))
    raise ValueError(
        f"{shown_name(name)} must be a distribution of Optuna's, such as "
        f"optuna.distributions.FloatDistribution(0, 1), got a {type(distribution).__name__}."
    )


def to_space(distributions: Mapping[str, BaseDistribution]) -> Space | None:
    """The space of all parameters that vary; None if none does.

    Optuna fills in parameters with a single value itself.

    Raises:
        ValueError: If it is none.
    """
    given = (
        distributions if isinstance(distributions, Mapping) else {"search_space": distributions}
    )
    known = [(name, to_dimension(name, one), one.single()) for name, one in given.items()]
    varying = {name: dimension for name, dimension, single in known if not single}
    return Space(varying) if varying else None


def described(name: str, distribution: BaseDistribution) -> dict[str, Any]:
    """One distribution, JSON-ready as in ``Space.to_dict``."""
    kind = type(distribution)
    try:
        if kind is FloatDistribution or kind is IntDistribution:
            at: Any = distribution
            return dict(_numeric(kind, at.low, at.high, at.log, at.step))
        return to_dimension(name, distribution).to_dict()
    except ValueError:  # bounds that are not finite, or an unknown kind
        return {"type": kind.__name__}


@functools.lru_cache(4096)
def _numeric(kind: type[FloatDistribution | IntDistribution], *range_: Any) -> dict[str, Any]:
    """Describes a range: each trial makes each of its distributions anew."""
    low, high, log, step = range_
    return to_dimension("", kind(low, high, log=log, step=step)).to_dict()


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Tells whether a value of any type lies in a range, or among choices."""
    with suppress(TypeError, ValueError):
        return distribution._contains(distribution.to_internal_repr(value))
    return False


def constants_of(distributions: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Descriptions of all parameters that do not vary."""
    return {name: described(name, d) for name, d in distributions.items() if d.single()}


def holds(known: Mapping[str, Any], constants: Mapping[str, Any]) -> bool:
    """Checks whether constants are among those that are known."""
    return all(known.get(name) == described for name, described in constants.items())


def differing(
    known: dict[str, BaseDistribution], distributions: Mapping[str, BaseDistribution]
) -> Iterator[str]:
    """Yields the reasons to claim nothing where a parameter is not what it was in other trials.

    Args:
        known: The first distribution of each name; those of new names are added.
        distributions: Those of one trial.
    """
    for name, distribution in distributions.items():
        first = known.setdefault(name, distribution)
        if first == distribution or described(name, first) == described(name, distribution):
            continue
        single = first.single() or distribution.single()
        yield CONSTANT_CHANGED if single else SPACE_DIFFERS


def lies_in(space: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> bool:
    """Tells if all parameters that vary are those of a space, as ``Space.to_dict`` tells it."""
    return all(
        distribution.single() or space.get(name) == described(name, distribution)
        for name, distribution in distributions.items()
    )
