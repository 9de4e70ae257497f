"""Search spaces on the unit cube.

Algorithms see points ``x`` of shape ``(D,)``: a numeric parameter is a coordinate in [0, 1]
(log scale where the dimension says so), a categorical one is the index of its choice. What the
host will really evaluate after rounding to a step is ``space.snap(x)``; the Gaussian process is
always told the snapped point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins.errors import SpaceChangedError
from privbo_plugins.sanitize import forgiven

Array = NDArray[np.float64]
T = TypeVar("T")


def _check_range(kind: str, low: float, high: float, log: bool, step: float | None) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{kind} bounds must be finite, got low={low}, high={high}.")
    if low > high:
        raise ValueError(f"{kind} needs low <= high, got low={low}, high={high}.")
    if log and low <= 0:
        raise ValueError(f"{kind} on a log scale needs low > 0, got low={low}.")
    if step is not None and not (math.isfinite(step) and step > 0):
        raise ValueError(f"{kind} needs step > 0, got step={step}.")
    if step is not None and not math.isfinite((high - low) / step):
        raise ValueError(f"{kind} has more values than can be counted, got step={step}.")


def _between(u: float, low: float, high: float, log: bool) -> float:
    """Value at a coordinate, which is projected on [0, 1]."""
    u = min(max(u, 0.0), 1.0)
    if log:
        return math.exp(_between(u, math.log(low), math.log(high), False))
    return (1.0 - u) * low + u * high


_SAME = 1e-9
"""Values that differ by so little, relative to them or their range, are the same."""


class _Numeric:
    """What numbers have in common."""

    low: float
    high: float
    log: bool
    step: float | None
    numeric: ClassVar[bool] = True

    @property
    def resolution(self) -> float:
        """Widest distance of two neighbouring values in the unit cube; 0 if continuous."""
        if self.step is None or self.high == self.low:
            return 0.0
        if self.log:
            return math.log((self.low + self.step) / self.low) / math.log(self.high / self.low)
        return self.step / (self.high - self.low)

    def encode(self, value: Any) -> float:
        """Value to coordinate; values outside the range are projected on it."""
        low, high, number = self.low, self.high, min(max(float(value), self.low), self.high)
        if high == low:
            return 0.5
        if self.log:
            number, low, high = math.log(number), math.log(low), math.log(high)
        return (number / 2 - low / 2) / (high / 2 - low / 2)  # the widest would overflow

    def decode(self, u: float) -> Any:
        """Coordinate in [0, 1] to the value that is evaluated."""
        raise NotImplementedError

    def holds(self, value: Any) -> bool:
        """Checks whether a value is one that is evaluated, but for rounding."""
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not (number and self.low <= value <= self.high):
            return False
        near = _SAME * (self.high - self.low)
        return math.isclose(self.decode(self.encode(value)), value, rel_tol=_SAME, abs_tol=near)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {"type": type(self).__name__.lower(), **vars(self)}


@dataclass(frozen=True)
class Float(_Numeric):
    """A real parameter in ``[low, high]``.

    Args:
        low: Smallest value.
        high: Largest value.
        log: Work on the logarithm; needs ``low > 0``.
        step: Only ``low + k * step`` is ever evaluated, on either scale.

    Raises:
        ValueError: If the range, the scale or the step makes no sense.

    Example:
        >>> Float(0.0, 10.0, step=0.5).decode(0.26)
        2.5
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        _check_range("Float", self.low, self.high, self.log, self.step)

    def decode(self, u: float) -> float:
        """Coordinate in [0, 1] to the value that is evaluated."""
        value = _between(u, self.low, self.high, self.log)
        if self.step is not None:
            steps = math.floor((self.high - self.low) / self.step + 1e-9)
            value = self.low + min(round((value - self.low) / self.step), steps) * self.step
        return min(max(float(value), self.low), self.high)


@dataclass(frozen=True)
class Int(_Numeric):
    """An integer parameter in ``[low, high]``.

    Args:
        low: Smallest value.
        high: Largest value.
        log: Work on the logarithm; needs ``low >= 1``.
        step: Only ``low + k * step`` is ever evaluated, on either scale.

    Raises:
        ValueError: If the range, the scale or the step makes no sense.

    Example:
        >>> Int(0, 10).decode(0.52)
        5
    """

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"Int needs step >= 1, got step={self.step}.")
        _check_range("Int", self.low, self.high, self.log, self.step)

    def decode(self, u: float) -> int:
        """Coordinate in [0, 1] to the value that is evaluated."""
        value = _between(u, self.low, self.high, self.log)
        steps = (self.high - self.low) // self.step
        return int(self.low + min(round((value - self.low) / self.step), steps) * self.step)


@dataclass(frozen=True)
class Categorical:
    """One of finitely many choices.

    Args:
        choices: The values, in the host's order; unhashable ones are allowed.

    Raises:
        ValueError: If there is no choice.

    Example:
        >>> Categorical(("rbf", "poly")).decode(1.0)
        'poly'
    """

    choices: tuple[Any, ...]
    numeric: ClassVar[bool] = False
    resolution: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("Categorical needs at least one choice, got none.")

    def encode(self, value: Any) -> float:
        """Choice to its index: the same object, or else of the same type, or else equal."""
        for index, choice in enumerate(self.choices):
            if choice is value:
                return float(index)
        equal = [i for i, choice in enumerate(self.choices) if _equal(choice, value)]
        alike = [i for i in equal if type(self.choices[i]) is type(value)]
        if equal:
            return float((alike or equal)[0])
        raise ValueError(f"A value is none of the {len(self.choices)} declared choices.")

    def holds(self, value: Any) -> bool:
        """Checks whether a value is one of the choices."""
        try:
            return self.encode(value) >= 0
        except ValueError:
            return False

    def decode(self, u: float) -> Any:
        """Index to choice."""
        return self.choices[min(max(round(u), 0), len(self.choices) - 1)]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; choices are described by ``repr`` and position only."""
        return {"type": "categorical", "choices": [repr(choice) for choice in self.choices]}


def is_plain(value: Any) -> bool:
    """Checks whether a choice's repr is the same in every process."""
    if type(value) is dict:
        return all(map(is_plain, (*value, *value.values())))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    plain = type(value) in (bool, int, float, str, bytes) or isinstance(value, np.generic)
    return value is None or plain


def choice_text(choice: Any) -> str:
    """Describes a choice, alike in every process: of an object no more than its name or type.

    Example:
        >>> choice_text({0: 1, 1: (5, 2)}), choice_text(len), choice_text(object())
        ('{0: 1, 1: (5, 2)}', 'len', 'object')
    """
    if is_plain(choice):
        return repr(choice)
    return str(getattr(choice, "__qualname__", type(choice).__name__))


def _equal(choice: Any, value: Any) -> bool:
    with forgiven:  # arrays and the like have no single truth value
        return bool(choice == value)
    return False


Dimension = Float | Int | Categorical


def _even_grid(dim: Dimension) -> float | None:
    """Width of a grid that divides [0, 1] evenly, 0 if continuous, None if it is uneven."""
    if isinstance(dim, Categorical) or (dim.log and dim.step is not None):
        return None
    if dim.high == dim.low:
        return None
    if dim.step is None:
        return 0.0
    steps = (dim.high - dim.low) / dim.step
    return 1.0 / steps if steps > 0.5 and abs(steps - round(steps)) < 1e-9 else None


def is_constant(dim: Dimension) -> bool:
    """Checks whether a dimension has one value only."""
    return len(dim.choices) == 1 if isinstance(dim, Categorical) else dim.low == dim.high


def _size(dim: Dimension) -> float:
    """Number of values; infinity if continuous."""
    if isinstance(dim, Categorical):
        return len(dim.choices)
    if dim.high == dim.low:
        return 1
    return math.inf if dim.step is None else math.floor((dim.high - dim.low) / dim.step + 1e-9) + 1


def _values(dim: Dimension, size: int) -> list[Any]:
    """The values of a finite dimension, in order."""
    if isinstance(dim, Categorical):
        return list(dim.choices)
    return [dim.low + i * (dim.step or 0) for i in range(size)]


class Space(Mapping[str, Dimension]):
    """Named dimensions in a fixed order (by name, so that every process agrees).

    Args:
        dimensions: Name to dimension. Dimensions with a single value are allowed and constant.

    Raises:
        ValueError: If the space is empty.

    Example:
        >>> space = Space({"alpha": Float(0.0, 2.0), "degree": Int(1, 5)})
        >>> space.decode(space.encode({"alpha": 0.5, "degree": 2}))
        {'alpha': 0.5, 'degree': 2}
    """

    def __init__(self, dimensions: Mapping[str, Dimension]) -> None:
        if not dimensions:
            raise ValueError("A search space needs at least one parameter, got none.")
        self._dims = dict(sorted(dimensions.items()))
        dims = list(self._dims.values())
        self.numeric: NDArray[np.bool_] = np.array([dim.numeric for dim in dims])
        """Mask of shape (D,): True where the coordinate is numeric."""
        self.resolution: Array = np.array([dim.resolution for dim in dims])
        """Grid width of each coordinate in the unit cube, shape (D,); 0 if continuous."""
        self._described: dict[str, Any] | None = None
        self._continuous = all(_even_grid(dim) == 0.0 for dim in dims)

    def __getitem__(self, name: str) -> Dimension:
        return self._dims[name]

    def __iter__(self) -> Any:
        return iter(self._dims)

    def __len__(self) -> int:
        return len(self._dims)

    def __repr__(self) -> str:
        return f"Space({self._dims!r})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Space) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names in coordinate order."""
        return tuple(self._dims)

    @property
    def varies(self) -> bool:
        """Checks whether any parameter has more than one value."""
        return any(_size(dim) > 1 for dim in self._dims.values())

    @property
    def d(self) -> int:
        """Number of numeric coordinates."""
        return int(self.numeric.sum())

    def encode(self, params: Mapping[str, Any]) -> Array:
        """Parameters to a point of shape (D,).

        Raises:
            KeyError: If a parameter of the space is missing.
        """
        return np.array([dim.encode(params[name]) for name, dim in self._dims.items()])

    def incumbent(self, given: Mapping[str, Any]) -> Array:
        """Public parameters to a point of shape (D,): the middle, or the first choice, if missing.

        Raises:
            SpaceChangedError: For a name that the space has not, or a value outside it.

        Example:
            >>> Space({"C": Float(0.01, 100, log=True), "p": Float(0, 1)}).incumbent({"C": 10})
            array([0.75, 0.5 ])
        """
        for name in sorted(given.keys() - self._dims.keys()):
            raise SpaceChangedError(
                f"incumbent= names {name!r}, which is no parameter that varies; those are "
                f"{', '.join(self._dims)}. Leave it out, or mend the name."
            )
        for name, value in given.items():
            if not self._dims[name].holds(value):
                raise SpaceChangedError(
                    f"incumbent= gives {name}={value!r}, which is no value of that parameter: it "
                    "lies outside its range, or is none of its choices. Give one that is, leave "
                    "the parameter out, or widen its range."
                )
        middle = {n: dim.decode(0.5 if dim.numeric else 0.0) for n, dim in self._dims.items()}
        return self.encode({**middle, **given})

    def decode(self, x: Sequence[float] | Array) -> dict[str, Any]:
        """A point of shape (D,) to the parameters that the host evaluates."""
        values = np.asarray(x, dtype=float).tolist()
        return {
            name: dim.decode(u) for (name, dim), u in zip(self._dims.items(), values, strict=True)
        }

    def snap(self, x: Sequence[float] | Array) -> Array:
        """The point that is really evaluated when ``x`` is proposed, shape (D,)."""
        if self._continuous:
            return np.asarray(np.clip(np.asarray(x, dtype=float), 0.0, 1.0))
        return self.encode(self.decode(x))

    def snap_all(self, X: Array) -> Array:
        """:meth:`snap` of many points, shape (n, D)."""
        snapped: Array = np.clip(np.asarray(X, dtype=float), 0.0, None)
        for j, dim in enumerate(self._dims.values()):
            grid = _even_grid(dim)
            if grid is None:
                snapped[:, j] = [dim.encode(dim.decode(u)) for u in snapped[:, j]]
            else:
                column = np.minimum(snapped[:, j], 1.0)
                snapped[:, j] = np.minimum(np.round(column / grid) * grid, 1.0) if grid else column
        return np.asarray(snapped)

    def embed(self, X: Array) -> Array:
        """Points (n, D) with choices as corners of a simplex at unit distance, shape (n, p)."""
        if self.numeric.all():
            return X
        columns = []
        for j, dim in enumerate(self._dims.values()):
            if isinstance(dim, Categorical):
                columns.append((X[:, j, None] == np.arange(len(dim.choices))) / math.sqrt(2.0))
            else:
                columns.append(X[:, j, None])
        return np.hstack(columns)

    def uniform(self, n: int, rng: np.random.Generator) -> Array:
        """Uniform points as the host will evaluate them, shape (n, D)."""
        return self.within(np.zeros(len(self)), np.ones(len(self)), n, rng)

    def within(self, lower: Array, upper: Array, n: int, rng: np.random.Generator) -> Array:
        """Uniform points whose numeric coordinates lie in a box, then snapped, shape (n, D)."""
        X: Array = lower + rng.random((n, len(self))) * (upper - lower)
        for j, dim in enumerate(self._dims.values()):
            if isinstance(dim, Categorical):
                X[:, j] = rng.integers(len(dim.choices), size=n)
        return self.snap_all(X)

    def spread(self, n: int, seed: int) -> Array:
        """Evenly spread points, shape (n, D): a grid if n is k**D.

        Otherwise, or with choices, a scrambled Sobol sequence.
        """
        side = round(n ** (1.0 / len(self)))
        if self.numeric.all() and side ** len(self) == n and side > 1:
            axes = np.meshgrid(*[np.linspace(0.0, 1.0, side)] * len(self), indexing="ij")
            return self.snap_all(np.stack(axes, -1).reshape(-1, len(self)))
        from scipy.stats import qmc  # a second to import

        sobol = qmc.Sobol(len(self), scramble=True, rng=np.random.default_rng(seed))
        X = sobol.random_base2(math.ceil(math.log2(n)))
        for j, dim in enumerate(self._dims.values()):
            if isinstance(dim, Categorical):
                X[:, j] = np.floor(X[:, j] * len(dim.choices))
        return self.snap_all(X[:n])

    def grid(self, limit: int) -> Array | None:
        """Every point of a finite space, shape (n, D); None if there are more than ``limit``."""
        sizes = [_size(dim) for dim in self._dims.values()]
        if math.prod(sizes) > limit:
            return None
        axes = [
            [dim.encode(value) for value in _values(dim, int(size))]
            for dim, size in zip(self._dims.values(), sizes, strict=True)
        ]
        return np.array(list(product(*axes)))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; choices are described by ``repr`` and position only."""
        if self._described is None:
            self._described = {name: dim.to_dict() for name, dim in self._dims.items()}
        return dict(self._described)

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Space:
        """The space of :meth:`to_dict`; its choices are their descriptions.

        Raises:
            ValueError: If it describes none.
        """
        try:
            return cls({name: _dimension(dict(d)) for name, d in described.items()})
        except (AttributeError, KeyError, TypeError, OverflowError):
            raise ValueError(
                "This describes no search space: each parameter has a type ('float', 'int' or "
                "'categorical') and numbers low, high, step and log, or a list of choices."
            ) from None


class _Described:
    """A choice of which only the description is known; equal to what it describes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return self.text == repr(other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


def _dimension(described: dict[str, Any]) -> Dimension:
    kind = described.pop("type")
    if kind == "categorical":
        return Categorical(tuple(_Described(text) for text in _texts(described["choices"])))
    made: Any = {"int": Int, "float": Float}[kind]
    number = Integral if made is Int else Real
    given = [described[name] for name in ("low", "high", "step") if described[name] is not None]
    if not (type(described["log"]) is bool and all(isinstance(value, number) for value in given)):
        raise TypeError
    dimension: Dimension = made(**described)
    return dimension


def _texts(listed: Any) -> list[str]:
    if not (isinstance(listed, list) and all(isinstance(text, str) for text in listed)):
        raise TypeError
    return listed


def same_point(one: ArrayLike, other: ArrayLike) -> bool:
    """Tells whether two encoded points are one: rounding sets them apart by less."""
    return np.allclose(one, other, rtol=0.0, atol=1e-9)


def varying(space: T | None, name: str) -> T:
    """A space that was given.

    Raises:
        ValueError: If nothing in it varies.
    """
    if space is None:
        raise ValueError(f"{name} must hold at least one parameter that varies.")
    return space
