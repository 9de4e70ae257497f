"""Tune's search spaces to engine spaces.

Nested dictionaries are flattened to names such as ``"model/lr"``. A quantised domain is the grid
of multiples of ``q`` inside its bounds, upper bound included (except for integers with ``q=1``),
as Tune itself samples it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.tune.search.sample import Categorical as TuneCategorical
from ray.tune.search.sample import Domain, LogUniform, Quantized, Uniform
from ray.tune.search.sample import Float as TuneFloat
from ray.tune.search.sample import Integer as TuneInteger
from ray.tune.search.variant_generator import parse_spec_vars
from ray.tune.utils.util import unflatten_dict

from privbo_plugins.spaces import (
    Categorical,
    Dimension,
    Float,
    Int,
    Space,
    choice_text,
    is_constant,
)

Array = NDArray[np.float64]

_FUNCTION = "__fn_ph"
_PLACEHOLDERS = ("__ref_ph", _FUNCTION)


@dataclass(frozen=True)
class TuneSpace:
    """A search space as the driver and the trials see it.

    Attributes:
        space: What varies, by flattened name; the choices are the user's own objects.
        fixed: Domains with a single value, by flattened name.
    """

    space: Space
    fixed: Mapping[str, Any]

    @property
    def public(self) -> Space:
        """The space with choices replaced by descriptions: what the vault's host sees.

        The host then need not be able to import what the user's choices are made of.
        """
        return Space({name: _described(dim) for name, dim in self.space.items()})

    def suggestion(self, x: Sequence[float] | Array) -> dict[str, Any]:
        """A point of shape (D,) to the nested dictionary that Tune merges into the config."""
        return dict(unflatten_dict({**self.fixed, **self.space.decode(x)}))

    def encode(self, config: Mapping[str, Any], handed: Array | None = None) -> Array:
        """A trial's config to the point that it evaluates, shape (D,).

        Args:
            config: The trial's own.
            handed: The point that it was handed. Tune shows the driver placeholders for choices
                that are not plain values, and the trial the values themselves, so for a choice
                that is not recognised this says which it was.

        Raises:
            ValueError: If a parameter of the space is missing, or a choice is none of the
                declared ones.
        """
        return self.encode_flat({name: _found(config, name) for name in self.space}, handed)

    def encode_flat(self, values: Mapping[str, Any], handed: Array | None = None) -> Array:
        """The same from values by flattened name."""
        known = [None] * len(self.space) if handed is None else handed.tolist()
        dims = zip(self.space.items(), known, strict=True)
        return np.array([_encoded(name, dim, values[name], u) for (name, dim), u in dims])

    def checked_point(self, point: Mapping[str, Any]) -> Array:
        """A point the user wants evaluated, flat or nested, as shape (D,).

        Raises:
            ValueError: If a name is missing or unknown, or a value lies outside its range.
        """
        values = self._named(point, "points_to_evaluate")
        missing = [name for name in self.space if name not in values]
        if missing:
            raise ValueError(f"In points_to_evaluate {missing[0]!r} is missing.")
        for name, dim in self.space.items():
            if not isinstance(dim, Categorical) and not _inside(dim, values[name]):
                raise ValueError(
                    f"points_to_evaluate gives {name}={values[name]!r}, which is no number in "
                    f"[{dim.low}, {dim.high}]."
                )
        return self.space.snap(self.encode_flat(values))

    def take_first(self, points: list[dict[str, Any]]) -> Array:
        """Takes the first of the points that the user wants evaluated; one that fits none stays.

        Raises:
            ValueError: As :meth:`checked_point`.
        """
        x = self.checked_point(points[0])
        del points[0]
        return x

    def incumbent(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """An incumbent, flat or nested, as values of :attr:`public` by flattened name.

        Raises:
            ValueError: If a name is unknown, or a value lies outside its range.
        """
        values = self._named(given, "incumbent=")
        at = self.public.decode(self.space.incumbent(values))
        choice = {n for n, dim in self.space.items() if isinstance(dim, Categorical)}
        return {name: at[name] if name in choice else value for name, value in values.items()}

    def _named(self, point: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Values of what varies, by flattened name."""
        values = _flattened(point, (*self.space, *self.fixed), what)
        for name, value in self.fixed.items():
            own = values.pop(name, value)
            if own != value:
                raise ValueError(f"{what} gives {name}={own!r}, which can only be {value!r}.")
        return values


def to_space(config: Mapping[str, Any]) -> TuneSpace | None:
    """The space in a ``param_space``; None if nothing in it varies.

    Raises:
        ValueError: As :func:`domains_of`.
    """
    dims = domains_of(config)
    fixed = {name: dim.decode(0.0) for name, dim in dims.items() if is_constant(dim)}
    varying = {name: dim for name, dim in dims.items() if name not in fixed}
    return TuneSpace(Space(varying), fixed) if varying else None


def domains_of(config: Mapping[str, Any]) -> dict[str, Dimension]:
    """Every domain in a ``param_space``, by flattened name.

    Raises:
        ValueError: For ``grid_search``, ``sample_from``, unbounded domains, domains inside lists
            or choices, and keys that hold "/".
    """
    _refuse_hidden_functions(config, ())
    _, domains, grids = parse_spec_vars(dict(config))
    if grids:
        names = ", ".join("/".join(map(str, path)) for path, _ in grids)
        raise ValueError(
            f"grid_search cannot be used with a private search ({names}): a grid has no place in "
            "its plan. Use tune.choice([...]) for the same values, or another domain."
        )
    return {_name(path): _dimension(_name(path), d) for path, d in domains}


def _refuse_hidden_functions(value: Any, path: tuple[Any, ...]) -> None:
    """Tune shows a searcher a placeholder for what ``sample_from`` will draw."""
    if isinstance(value, TuneCategorical):
        value = list(value.categories)
    if isinstance(value, tuple) and value[:1] == (_FUNCTION,):
        raise ValueError(
            f"Parameter {'/'.join(map(str, path))!r} is a Function domain (sample_from), which "
            "draws what the search does not know. Use one of Tune's own domains."
        )
    parts = value.items() if isinstance(value, Mapping) else ()
    for key, part in enumerate(value) if isinstance(value, list | tuple) else parts:
        _refuse_hidden_functions(part, (*path, key))


def _name(path: Sequence[Any]) -> str:
    if any(not isinstance(part, str | int) for part in path):
        raise ValueError(f"The search space has a key that is no string (at {list(path)}).")
    if not all(isinstance(part, str) for part in path):
        raise ValueError(
            f"The search space holds a domain inside a list (at {list(path)}): put it under a "
            "name of its own."
        )
    if any("/" in part for part in path):
        raise ValueError(
            f"The search space holds the key {'.'.join(path)!r}: names may not hold '/', which "
            "separates nested names."
        )
    return "/".join(path)


def _dimension(name: str, domain: Domain) -> Dimension:
    sampler, q = domain.get_sampler(), None
    if isinstance(sampler, Quantized):
        q, sampler = sampler.q, sampler.sampler
    if isinstance(domain, TuneCategorical):
        return _categorical(name, domain)
    if isinstance(domain, TuneFloat | TuneInteger) and isinstance(sampler, Uniform | LogUniform):
        log = isinstance(sampler, LogUniform)
        return _numeric(name, domain, log, q)
    raise ValueError(
        f"Parameter {name!r} is a {type(domain).__name__} domain sampled by "
        f"{type(sampler).__name__}; a private search needs bounded ranges and choices: uniform, "
        "loguniform, quniform, qloguniform, randint, lograndint, qrandint, qlograndint, choice."
    )


def _categorical(name: str, domain: Any) -> Categorical:
    choices = tuple(domain.categories)
    _, domains, grids = parse_spec_vars({"choices": list(choices)})
    if domains or grids:
        raise ValueError(
            f"Parameter {name!r} is a choice between domains: a private search needs a space "
            "that does not depend on its own choices. Put every domain under a name of its own, "
            "and let the trainable read those that its choice uses."
        )
    return Categorical(choices)


def _numeric(name: str, domain: Any, log: bool, q: float | None) -> Float | Int:
    whole = isinstance(domain, TuneInteger)
    low, high = domain.lower, domain.upper
    if q is not None:
        first, last = _grid_index(low, q, math.ceil), _grid_index(high, q, math.floor)
        if last < first:
            raise ValueError(f"Parameter {name!r} has no multiple of q={q} in [{low}, {high}].")
        low, high = first * q, last * q
    if not whole:
        return Float(float(low), float(high), log, None if q is None else float(q))
    if q is None or q == 1:
        high -= 1  # Tune's integer ranges exclude their upper end
    return Int(int(low), int(high), log, 1 if q is None else int(q))


def _grid_index(bound: float, q: float, inwards: Any) -> int:
    scaled = bound / q
    return round(scaled) if math.isclose(scaled, round(scaled)) else int(inwards(scaled))


def _inside(dim: Float | Int, value: Any) -> bool:
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return bool(real and dim.low <= value <= dim.high)


def holds_placeholder(value: Any) -> bool:
    """Checks whether Tune has put a placeholder somewhere into a value that it does not show."""
    if isinstance(value, Mapping):
        return any(map(holds_placeholder, value.values()))
    if isinstance(value, tuple) and len(value) == 2 and value[0] in _PLACEHOLDERS:
        return True
    return isinstance(value, list | tuple) and any(map(holds_placeholder, value))


def _found(config: Mapping[str, Any], name: str) -> Any:
    place: Any = config
    for part in name.split("/"):
        if not isinstance(place, Mapping) or part not in place:
            raise ValueError(f"The parameter {name!r} of the search space is missing.")
        place = place[part]
    return place


def _flattened(
    point: Mapping[str, Any], known: Sequence[str], what: str, path: str = ""
) -> dict[str, Any]:
    """Values by flattened name; what is a known name may hold a dictionary as its choice."""
    values: dict[str, Any] = {}
    for key, value in point.items():
        name = f"{path}{key}"
        if name in known:
            values[name] = value
        elif isinstance(value, Mapping):
            values |= _flattened(value, known, what, f"{name}/")
        elif not any(inner.startswith(f"{name}/") for inner in known):
            raise ValueError(
                f"{what} names {name}, which the search space over "
                f"{', '.join(known)} does not hold."
            )
    return values


def _encoded(name: str, dim: Dimension, value: Any, handed: float | None = None) -> float:
    """A value to its coordinate; choices that were pickled on the way are compared as bytes."""
    if not isinstance(dim, Categorical):
        return dim.encode(value)
    try:
        return dim.encode(value)
    except ValueError:
        pickled = cloudpickle.dumps(value)
    for index, choice in enumerate(dim.choices):
        if cloudpickle.dumps(choice) == pickled:
            return float(index)
    if handed is not None:
        return handed
    raise ValueError(f"The value of {name!r} is none of its {len(dim.choices)} declared choices.")


def _described(dim: Dimension) -> Dimension:
    if not isinstance(dim, Categorical):
        return dim
    return Categorical(tuple(f"{i}: {choice_text(c)[:80]}" for i, c in enumerate(dim.choices)))
