"""What people who use scikit-learn write as a search space, in the engine's dimensions.

A host stores choices as they are, and stores plain values only, so a choice that is an object (an
estimator, a tuple of layers) goes by a label, and estimators get the object behind it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import InvalidParameterError

from privbo_plugins.errors import UtilityWarning, warn
from privbo_plugins.spaces import (
    Categorical,
    Dimension,
    Float,
    Int,
    Space,
    choice_text,
    is_constant,
    is_plain,
)

_FIX = (
    "Give an Optuna distribution (FloatDistribution, IntDistribution, CategoricalDistribution), "
    "scipy.stats.uniform, loguniform or randint, or a list of choices"
)

_OUTSIDE = (
    "The estimator has {0}={1}, outside of its range, so the search begins at the middle of all "
    "ranges and compares with that. Widen it, or say what you use today: incumbent={{{0!r}: ...}}."
)


@dataclass(frozen=True)
class Parameters:
    """A search space, and what its labels stand for.

    Attributes:
        dimensions: By the name of the estimator's parameter; choices are plain values or labels.
        choices: Object by label, by the name of each parameter whose choices have labels.
    """

    dimensions: Mapping[str, Dimension]
    choices: Mapping[str, Mapping[str, Any]]

    @property
    def space(self) -> Space:
        """For plans."""
        return Space({n: dim for n, dim in self.dimensions.items() if not is_constant(dim)})

    def decoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values as a host knows them to those that an estimator takes."""
        return {
            name: self.choices[name][value] if name in self.choices else value
            for name, value in values.items()
        }

    def incumbent(self, given: Any, own: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters in use today, as a host knows them; of data they hold nothing.

        For "auto" those of the estimator, if all lie in the space: some of them, with the middle
        of other ranges, are settings that were never in use, and may be worse than the middle.

        Args:
            given: "auto", None, or a dictionary by parameter.
            own: The unfitted estimator's parameters, for "auto".

        Example:
            >>> found = to_parameters({"C": [1, 10], "depth": range(1, 9)}, ["C", "depth"])
            >>> found.incumbent("auto", {"C": 10, "depth": 3})
            {'C': 10, 'depth': 3}
            >>> found.incumbent("auto", {"C": 10, "depth": None})
            {}
        """
        if not isinstance(given, str):
            return {name: self._label(name, value) for name, value in (given or {}).items()}
        found = {}
        for name, dim in self.space.items():
            with suppress(ValueError):  # a choice of another kind
                value = self._label(name, own[name])
                if dim.holds(value):
                    found[name] = value if dim.numeric else dim.decode(dim.encode(value))
                elif dim.numeric and isinstance(value, Real) and not isinstance(value, bool):
                    warn(_OUTSIDE.format(name, value), UtilityWarning)
        return found if len(found) == len(self.space) else {}

    def _label(self, name: str, value: Any) -> Any:
        """The label of a choice that has one; any other value as it is.

        Raises:
            ValueError: If it is no such choice.
        """
        if name not in self.choices:
            return value
        objects = self.choices[name]
        try:
            return list(objects)[int(Categorical(tuple(objects.values())).encode(value))]
        except ValueError:
            raise ValueError(
                f"incumbent= gives {name} what is none of its {len(objects)} choices. Give one of "
                "the objects that param_distributions lists, or leave the parameter out."
            ) from None


def to_parameters(given: Any, known: Iterable[str]) -> Parameters:
    """The search space of an estimator.

    Args:
        given: By parameter: an Optuna distribution, a frozen distribution of SciPy's, or choices.
        known: Parameters that the estimator has.

    Raises:
        ValueError: For what is no such mapping, a parameter that the estimator has not, or a
            distribution that cannot be translated.

    Example:
        >>> from scipy.stats import randint
        >>> found = to_parameters({"depth": randint(1, 9), "layers": [(5,), (5, 5)]},
        ...                       known=["depth", "layers"])
        >>> found.dimensions["depth"]
        Int(low=1, high=8, log=False, step=1)
        >>> found.decoded({"layers": "(5, 5)"})
        {'layers': (5, 5)}
    """
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            "param_distributions must be a dictionary with a distribution or choices for each "
            "parameter. A list of several such spaces would be a conditional space, which a plan "
            "of releases has no place for: search one after another, each with a mu of its own."
        )
    _refuse_unknown(given, known)
    choices: dict[str, Mapping[str, Any]] = {}
    dimensions: dict[str, Dimension] = {}
    for name, wanted in given.items():
        dimensions[name], labels = _dimension(name, wanted)
        if labels:
            choices[name] = labels
    if all(map(is_constant, dimensions.values())):
        raise ValueError("param_distributions must hold at least one parameter that varies.")
    return Parameters(dimensions, choices)


def check_values(estimator: Any, parameters: Parameters) -> None:
    """Asks an estimator of scikit-learn's, before any fit, for the ends of ranges and for choices.

    Raises:
        ValueError: If it refuses one of these values.
    """
    for name, dim in parameters.dimensions.items():
        for value in dim.choices if isinstance(dim, Categorical) else (dim.low, dim.high):
            model = clone(estimator).set_params(**parameters.decoded({name: value}))
            owner = model.get_params().get(name.rpartition("__")[0], model)
            try:
                if hasattr(owner, "_parameter_constraints"):
                    owner._validate_params()
            except InvalidParameterError as error:
                raise ValueError(
                    f"param_distributions[{name!r}] reaches {value!r}, where nothing can be "
                    f"fitted: {error} Both ends of a range are tried: move this one."
                ) from None


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "; see estimator.get_params()."
            raise ValueError(f"The estimator has no parameter {name!r} to tune{hint}")


_OF_OPTUNA: Mapping[str, Callable[[Any], Dimension]] = {
    "FloatDistribution": lambda given: Float(given.low, given.high, given.log, given.step),
    "IntDistribution": lambda given: Int(given.low, given.high, given.log, given.step),
}
"""By the name of its class: without Optuna nobody holds one."""

_OF_SCIPY: Mapping[str, Callable[[float, float], Dimension]] = {
    "uniform": lambda low, high: Float(float(low), float(high)),
    "loguniform": lambda low, high: Float(float(low), float(high), log=True),
    "reciprocal": lambda low, high: Float(float(low), float(high), log=True),
    "randint": lambda low, high: Int(int(low), int(high)),
}
"""By SciPy's name, from the ends of the support, which both belong to it."""


def _dimension(name: str, wanted: Any) -> tuple[Dimension, Mapping[str, Any]]:
    """One parameter, with the labels of its choices if they have any."""
    kind, told = type(wanted), f"param_distributions[{name!r}], a {type(wanted).__name__},"
    if hasattr(wanted, "dist") and hasattr(wanted, "support"):
        return _of_scipy(name, wanted), {}
    if kind.__module__ == "optuna.distributions":
        if kind.__name__ in _OF_OPTUNA:
            return _OF_OPTUNA[kind.__name__](wanted), {}
        if kind.__name__ != "CategoricalDistribution":
            raise ValueError(f"{told} is none of Optuna's present ones. {_FIX}.")
        wanted = list(wanted.choices)
    if isinstance(wanted, np.ndarray) and wanted.ndim == 1:
        wanted = wanted.tolist()
    if isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes):
        return _of_choices(name, wanted)
    raise ValueError(f"{told} is no distribution that is known here. {_FIX}.")


def _of_scipy(name: str, wanted: Any) -> Dimension:
    kind = str(wanted.dist.name)
    made = _OF_SCIPY.get(kind)
    low = high = math.nan
    with suppress(TypeError, ValueError):  # ends that are no numbers
        low, high = map(float, wanted.support())
    if made is not None and not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(
            f"param_distributions[{name!r}] has no finite ends low < high: scipy.stats.uniform "
            "takes low and a width > 0, loguniform 0 < low < high, randint whole low < high."
        )
    shifted = kind in ("loguniform", "reciprocal") and _is_shifted(wanted)
    if made is None or shifted:
        raise ValueError(
            f"param_distributions[{name!r}] is scipy.stats.{kind}{' with loc=' * shifted}, and a "
            "private search needs a range that is searched evenly, on a linear or a logarithmic "
            f"scale. {_FIX}."
        )
    return made(low, high)


def _is_shifted(frozen: Any) -> bool:
    _, loc, _ = frozen.dist._parse_args(*frozen.args, **frozen.kwds)
    return bool(loc != 0)


def _of_choices(name: str, given: Sequence[Any]) -> tuple[Categorical, Mapping[str, Any]]:
    choices = [choice.item() if isinstance(choice, np.generic) else choice for choice in given]
    if isinstance(given, tuple):
        _refuse_pair(name, choices)
    if not choices:
        raise ValueError(f"param_distributions[{name!r}] is empty. {_FIX}.")
    if all(map(_is_plain, choices)) and len(set(choices)) == len(choices):  # 1 == True
        return Categorical(tuple(choices)), {}
    labels = {_label(i, choice): choice for i, choice in enumerate(choices)}
    if len(labels) < len(choices):
        raise ValueError(f"param_distributions[{name!r}] lists a choice twice.")
    return Categorical(tuple(labels)), labels


def _refuse_pair(name: str, given: list[Any]) -> None:
    """Asks about two numbers, also with the name of a scale: a range, or choices."""
    kinds = [type(entry) for entry in given]
    if len(kinds) > 1 and {*kinds[:2]} <= {int, float} and kinds[2:] in ([], [str]):
        low, high = sorted(given[:2])
        wanted = "FloatDistribution" if float in kinds else "IntDistribution"
        scale = ", log=True" if low > 0 and float in kinds else ""
        raise ValueError(
            f"param_distributions[{name!r}] may be a range or choices: write a range as Optuna's "
            f"{wanted}({low}, {high}{scale}), and choices as the list {given}."
        )


def _is_plain(choice: Any) -> bool:
    return choice is None or type(choice) in (bool, int, float, str)


def _label(index: int, choice: Any) -> str:
    """Names a choice as it is stored, alike in every process: of objects no more than the type.

    Example:
        >>> _label(0, (50, 20)), _label(1, {"a": 5}), _label(2, object()), _label(3, len)
        ('(50, 20)', "{'a': 5}", '2: object', '3: len')
    """
    return repr(choice) if is_plain(choice) else f"{index}: {choice_text(choice)}"
