"""Optuna distributions to engine spaces."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from privbo_plugins.spaces import Categorical, Dimension, Float, Int, Space


def to_dimension(name: str, distribution: BaseDistribution) -> Dimension:
    """One distribution to one dimension.

    Raises:
        ValueError: If the distribution is of a kind Optuna 5 does not document.
    """
    if isinstance(distribution, FloatDistribution):
        return Float(distribution.low, distribution.high, distribution.log, distribution.step)
    if isinstance(distribution, IntDistribution):
        return Int(distribution.low, distribution.high, distribution.log, distribution.step)
    if isinstance(distribution, CategoricalDistribution):
        return Categorical(tuple(distribution.choices))
    raise ValueError(
        f"Parameter {name!r} has a distribution of type {type(distribution).__name__}; float, "
        "int and categorical ones are supported."
    )


def to_space(distributions: Mapping[str, BaseDistribution]) -> Space | None:
    """The space of all parameters that vary; None if none does.

    Optuna fills in parameters with a single value itself.
    """
    varying = {
        name: to_dimension(name, distribution)
        for name, distribution in distributions.items()
        if not distribution.single()
    }
    return Space(varying) if varying else None
