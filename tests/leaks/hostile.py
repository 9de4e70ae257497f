"""What goes wrong inside an objective that knows a secret, written once for all systems.

A way takes what an objective was :class:`Told`, and raises or returns it.
"""

from __future__ import annotations

import asyncio
import struct
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from privbo_plugins.errors import PrivacyError, VaultError


@dataclass(frozen=True)
class Told:
    """What an objective knows.

    Attributes:
        name: Of a patient.
        y: One reward, or an array of losses.
        host: Optuna's trial, or Ray's config.
    """

    name: str
    y: Any
    host: Any = None

    @property
    def shown(self):
        return repr(np.asarray(self.y).tolist())

    @property
    def text(self):
        return f"{self.name}: {self.shown}"

    @property
    def first(self):
        return float(np.ravel(self.y)[0])


def throw(error):
    raise error


# Exceptions that quote ------------------------------------------------------------------------


class Odd(BaseException):
    """Neither an Exception nor one of Python's own."""


def _cause(told):
    try:
        float(told.text)
    except ValueError as error:
        raise RuntimeError(repr(told.y)) from error


def _context(told):
    try:
        {}[told.shown]
    finally:
        raise OSError(5, told.shown, f"/{told.text}")


def _note(told):
    error = ValueError(told.name)
    error.add_note(f"for {told.shown}")
    raise error


def _class(told):
    members = {"__str__": lambda _: told.shown, "data": told.y}
    raise type(f"Bad_{told.name}_{told.first!r}", (Exception,), members)()


def _attribute(told):
    error = OSError(5, told.text, f"/{told.first!r}")
    error.losses = told.y
    raise error


def _warning(told):
    with warnings.catch_warnings(action="error"):
        warnings.warn(told.text, RuntimeWarning, stacklevel=2)


def _group(told):
    raise ExceptionGroup(told.name, [ValueError(told.shown), KeyError(told.first)])


def _bytes_of(told):
    return np.asarray(told.y, dtype=np.float64).tobytes()


RAISED = {
    "text": lambda told: throw(ValueError(told.text)),
    "cause": _cause,
    "context": _context,
    "note": _note,
    "class": _class,
    "attribute": _attribute,
    "key": lambda told: throw(KeyError(told.name, *np.ravel(told.y).tolist())),
    "missing": lambda told: {0.5: 1}[told.first],
    "group": _group,
    "unicode": lambda told: throw(UnicodeDecodeError("utf-8", _bytes_of(told), 0, 1, told.name)),
    "stop": lambda told: throw(StopIteration(told.y)),
    "assertion": lambda told: throw(AssertionError(told.text)),
    "warning": lambda told: throw(UserWarning(told.shown)),
    "warned": _warning,
    "memory": lambda told: throw(MemoryError(told.y)),
    "own": lambda told: throw(PrivacyError(told.shown)),
    "own vault": lambda told: throw(VaultError(told.shown)),
}
"""Exceptions, anywhere."""


# Objects that are no result, and quote ----------------------------------------------------------


class Bad:
    """An object that cannot be converted, and quotes its data whoever asks."""

    def __init__(self, told, kind=ValueError):
        self.y, self.shown, self.kind = told.y, told.shown, kind

    def __float__(self):
        raise self.kind(f"cannot convert {self.shown}")

    def __repr__(self):
        raise self.kind(f"cannot show {self.shown}")

    __str__ = __repr__
    __len__ = __index__ = __float__


class Shown(Bad):
    """Quotes its data in its representation as well."""

    def __repr__(self):
        return f"Shown({self.shown})"


class _Array(Shown):
    def __array__(self, dtype=None, copy=None):
        raise self.kind(f"no array of {self.shown}")


class _Warns(Bad):
    """Warns of its data while it is converted; a filter makes that an error."""

    def __float__(self):
        with warnings.catch_warnings(action="error"):
            warnings.warn(f"{self.shown} is unusual", RuntimeWarning, stacklevel=2)
        return 0.5


class _Tensor(Bad):
    """Like a tensor that cannot leave its device."""

    def detach(self):
        raise RuntimeError(f"tensor({self.shown}) is elsewhere")


class _Property(Bad):
    @property
    def detach(self):
        raise ValueError(f"no detach of {self.shown}")


class _Half(Bad):
    """Detaches; its conversion to numpy quotes it."""

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        raise ValueError(f"cannot share {self.shown}")


class _Indexed(list[Any]):
    """A vector whose labels quote it."""

    @property
    def index(self):
        raise ValueError(f"no labels of {list(self)}")


UNUSABLE = {
    "object": Bad,
    "object as type error": lambda told: Bad(told, TypeError),
    "shown object": Shown,
    "array-like": _Array,
    "tensor": _Tensor,
    "property": _Property,
    "half a tensor": _Half,
    "warns": _Warns,
    "strings": lambda told: [told.name, *map(str, np.ravel(told.y))],
    "dict": lambda told: {"losses": told.y, "loss": told.first, "name": told.name},
    "keys": lambda told: {told.name: told.y},
    "ragged": lambda told: [[told.y], [told.y, told.y]],
    "empty": lambda told: [],
}
"""Neither a reward nor a vector of losses."""

ODD_ENTRIES = {
    "tokens": lambda told: [told.name] * np.size(told.y),
    "complex": lambda told: told.y * (1 + 1j),
}
"""Of the right shape, and no number in it."""

ODD_SCALARS = {
    "list of objects": lambda told: [Shown(told)],
    "text returned": lambda told: told.text,
    "bytes": _bytes_of,
    "generator": lambda told: (float(v) for v in np.ravel(told.y)),
    "none": lambda told: None,
}
"""No vector; as a reward, one that is no number."""

NO_VECTOR = {
    "short": lambda told: told.y[:-1],
    "double": lambda told: np.concatenate([told.y, told.y]),
    "two rows": lambda told: told.y.reshape(2, -1),
    "mean": lambda told: float(told.y.mean()),
    "unequal": lambda told: [told.y.tolist(), told.y[:-1].tolist()],
    "no rows": lambda told: told.y[:0],
}
"""No vector of as many losses as the others."""

NO_REWARD = {"two": lambda told: [told.y, told.y]}


# Usable results that are odd --------------------------------------------------------------------

PAYLOAD = struct.unpack("<d", struct.pack("<Q", 0x7FF8_5EC2_37A1_93BD))[0]
"""A NaN that could carry data."""

REWARDS = {
    "float": lambda told: told.y,
    "float32": lambda told: np.float32(told.y),
    "numpy": lambda told: np.array([[told.y]]),
    "big-endian": lambda told: np.array(told.y, dtype=">f8"),
    "nan": lambda told: PAYLOAD,
    "infinite": lambda told: -np.inf,
    "beyond the range": lambda told: 1e9 + told.y,
    "list": lambda told: [told.y],
    **ODD_ENTRIES,
    **ODD_SCALARS,
}

VECTORS = {
    "array": lambda told: told.y,
    "nan and infinite": lambda told: np.r_[np.nan, np.inf, -np.inf, told.y[3:]],
    "a hole": lambda told: [None, *told.y.tolist()[1:]],
    "big-endian": lambda told: told.y.astype(">f8"),
    "beyond the range": lambda told: 1e9 + told.y,
    "odd labels": lambda told: _Indexed(told.y.tolist()),
    **ODD_ENTRIES,
}


# What ends a whole study ------------------------------------------------------------------------

ABORTS = {
    "exit": lambda told: throw(SystemExit(told.y)),
    "exit text": lambda told: throw(SystemExit(told.text)),
    "interrupt": lambda told: throw(KeyboardInterrupt(told.shown)),
    "generator exit": lambda told: throw(GeneratorExit(told.shown)),
    "cancelled": lambda told: throw(asyncio.CancelledError(told.shown)),
    "odd": lambda told: throw(Odd(told.name, told.y)),
    "odd group": lambda told: throw(BaseExceptionGroup(told.shown, [Odd(told.y)])),
    "exit in a conversion": lambda told: Bad(told, SystemExit),
    "odd in a conversion": lambda told: Bad(told, Odd),
    "interrupt in a conversion": lambda told: _Array(told, KeyboardInterrupt),
}


# Optuna's trials --------------------------------------------------------------------------------


def _pruned(told):
    import optuna

    error = optuna.TrialPruned(told.text)
    error.reward = told.y
    raise error


def _annotated_refusal(told):
    try:
        told.host.suggest_float("bad", 2.0, 1.0)
    except ValueError as error:
        error.add_note(told.shown)
        raise


def _own_guard(told):
    from optuna_samplers._guard import GuardedTrialError

    class Closed(GuardedTrialError):
        def __str__(self):
            return told.text

    raise Closed("report")


class _NoText:
    def __init__(self, told):
        self.shown = told.shown

    def __str__(self):
        raise ValueError(f"no text of {self.shown}")


def _untranslatable(told):
    from optuna_samplers._guard import GuardedTrialError

    error = GuardedTrialError("report")
    error.operation = _NoText(told)
    raise error


OPTUNA = {
    "pruned": _pruned,
    "own guard": _own_guard,
    "untranslatable": _untranslatable,
    "report": lambda told: told.host.report(told.first, 0),
    "user attribute": lambda told: told.host.set_user_attr("data", told.shown),
    "constraint": lambda told: told.host.set_constraint("c", told.first),
    "suggestion": lambda told: told.host.suggest_float("x", told.first, told.first / 2),
    "noted suggestion": _annotated_refusal,
}
"""On a trial that guards itself."""


# Ray's trials -----------------------------------------------------------------------------------


def _reports(told):
    from ray import tune

    mean = float(np.mean(told.y))  # under whatever name somebody tunes
    tune.report({"loss": mean, "reward": mean, "losses": np.asarray(told.y)})


def _reports_and_goes_on(told):
    try:
        _reports(told)
    except Exception:
        raise ValueError(told.name) from None


def _mutates(told):
    told.host["losses"], told.host["x"] = np.asarray(told.y).tolist(), told.first
    raise ValueError(f"{told.host}")


RAY = {"reports": _reports, "reports and goes on": _reports_and_goes_on, "mutates": _mutates}

VECTOR_FAILS = RAISED | UNUSABLE | ODD_SCALARS | NO_VECTOR
REWARD_FAILS = RAISED | UNUSABLE | NO_REWARD | {"none": ODD_SCALARS["none"]}
