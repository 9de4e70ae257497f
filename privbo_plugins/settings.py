"""Settings are declared once: an attrs class says name, type, range, default and meaning of each.

A class that users construct takes its keywords from such a class::

    @settings
    class WaitSettings:
        seconds: Positive = setting("How long to wait.", kw_only=False)
        tries: Count = setting("How often.", default=3)

    class Wait:
        '''Waits.

        {settings}
        '''

        @takes(WaitSettings)
        def __init__(self, given: WaitSettings) -> None: ...

Type checkers and editors see ``Wait(seconds, *, tries=3)``, because the decorated constructor is
typed as the settings class's own; ``inspect.signature`` and ``help`` show the same, and
``{settings}`` becomes the sections "Args", in the order of use, and "For experts".
:data:`Positive` and its like are numbers with a rule, which is checked when settings are made.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from numbers import Integral, Number, Real
from typing import (
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    overload,
)

import attrs

from privbo_plugins import foreign

P = ParamSpec("P")
C = TypeVar("C")
S = TypeVar("S")
T = TypeVar("T")

HELP = "help"
"""Key of a field's metadata: what the setting means."""

_MARK = "{settings}"
_WIDTH = 99

_IN_ORDER_OF_USE = (
    "param_space mu epsilon delta value_range bound mechanism neighbor_distance bounds "
    "n_trials n_steps n_rounds incumbent trust loss scoring scores constraints feasible_with "
    "final_score final_share response_method y_range y_spread loss_bound "
    "clipping_norm training_mu metric mode search_space space parameter repeats record_ids "
    "groups per_group group_bound unit records_in_blocks protect n_blocks cv "
    "valid_size random_state user_id user_budget user_delta outcomes outcome_epsilon "
    "outcome_range maximize agents hosts deadline hold points_to_evaluate max_concurrent "
    "backend method sampler n_jobs timeout seed vault agent_vaults run_name storage "
    "study_name load_if_exists refit error_score verbose"
).split()
"""Keywords in the order in which users need them; all others are for experts."""

_PLACES = {name: place for place, name in enumerate(_IN_ORDER_OF_USE)}


# What a setting may hold --------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What a setting may hold: ``Annotated[float, Rule(...)]`` is the type of such a setting.

    Attributes:
        words: What comes after "must be" in the error.
        holds: Whether a value is accepted; None is too, where it is the default.
    """

    words: str
    holds: Callable[[Any], bool]

    def __call__(self, _: Any, field: Any, value: Any) -> None:
        """Checks a setting, as attrs asks its validators to."""
        optional = field.default is None
        if not (optional and value is None):
            self.check(field.name, value, " or None" if optional else "")

    def check(self, name: str, value: Any, also: str = "") -> None:
        """Checks a value.

        Raises:
            ValueError: If it does not follow the rule; names rule and value.
        """
        if not self.holds(value):
            raise ValueError(f"{name} must be {self.words}{also}, got {_quoted(value)}.")


def _quoted(value: Any) -> str:
    """A number, a text or a few of them as they were given; of anything else the type alone."""
    several = isinstance(value, tuple | list) and len(value) <= 4
    plain = str | Number | None
    if isinstance(value, plain) or (several and all(isinstance(x, plain) for x in value)):
        return repr(value)
    return f"a {type(value).__name__}"


def is_finite(value: Any) -> bool:
    """Tells if a value is a finite number that fits into a float; True and False are none."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and bool(abs(value) <= sys.float_info.max)


def integer(least: int) -> Rule:
    """Integers from the least one on."""
    return Rule(
        f"an integer >= {least}",
        lambda value: is_finite(value) and isinstance(value, Integral) and int(value) >= least,
    )


def between(low: float, high: float) -> Rule:
    """Numbers from ``low`` to ``high``, both included."""
    return Rule(
        f"a number in [{low:g}, {high:g}]",
        lambda value: is_finite(value) and low <= value <= high,
    )


def one_of(*names: str) -> Rule:
    """One of a few names."""
    return Rule(
        f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names
    )


def is_range(value: Any) -> bool:
    """Checks whether a value is (low, high), finite and low < high."""
    pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_finite, value))
    return pair and 0 < value[1] - value[0] < math.inf


Count = Annotated[int, integer(1)]
WholeNumber = Annotated[int, integer(0)]
Finite = Annotated[float, Rule("a finite number", is_finite)]
POSITIVE = Rule("a finite number > 0", lambda x: is_finite(x) and x > 0)
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, Rule("a finite number >= 0", lambda x: is_finite(x) and x >= 0)]
Share = Annotated[float, Rule("a number in [0, 1)", lambda x: is_finite(x) and 0 <= x < 1)]
Likely = Annotated[float, Rule("a number in [0.5, 1)", lambda x: is_finite(x) and 0.5 <= x < 1)]
Probability = Annotated[float, Rule("a number in (0, 1)", lambda x: is_finite(x) and 0 < x < 1)]
Chance = Annotated[float, Rule("a number in (0, 1]", lambda x: is_finite(x) and 0 < x <= 1)]
Range = Annotated[
    tuple[float, float], Rule("two finite numbers (low, high) with low < high", is_range)
]
_Flag = Annotated[bool, Rule("True or False", lambda x: isinstance(x, bool))]


def plain(value: Any) -> Any:
    """Python's own number or text in place of any other; a list may hold records, and stays.

    What runs code of its own would see what is computed with it, as a draw before it is committed.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        return int(value) if isinstance(value, Integral) else float(value)
    return str.__str__(value) if isinstance(value, str) else value


# Declarations -------------------------------------------------------------------------------


def setting(
    help: str,
    *,
    default: Any = attrs.NOTHING,
    converter: Callable[[Any], Any] = plain,
    kw_only: bool = True,
    repr: bool = True,
) -> Any:
    """One setting of a class decorated with :func:`settings`.

    Args:
        help: What it means: unit, range, and what None stands for.
        default: Its default; a setting without one must be given.
        converter: Makes it what is kept; without one see :func:`plain`.
        kw_only: Whether it can be given by name only.
        repr: Whether the settings show it when they are printed.
    """
    metadata = {HELP: " ".join(help.split())}
    return attrs.field(
        default=default, converter=converter, kw_only=kw_only, repr=repr, metadata=metadata
    )


def again(cls: type, name: str, *, default: Any, more: str = "") -> Any:
    """A setting of another class with another default.

    Args:
        cls: The other class.
        name: Of the setting.
        default: As for :func:`setting`.
        more: What else it means here.
    """
    field = fields_of(cls)[name]
    metadata = {HELP: f"{field.metadata[HELP]} {more}".strip()}
    return attrs.field(
        default=default, validator=field.validator, converter=field.converter, kw_only=True,
        metadata=metadata,
    )  # fmt: skip


@overload
def settings(cls: type[C]) -> type[C]: ...


@overload
def settings(*, eq: bool = True, checked: bool = True) -> Callable[[type[C]], type[C]]: ...


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, again))
def settings(cls: type[C] | None = None, *, eq: bool = True, checked: bool = True) -> Any:
    """Makes a class a frozen attrs class whose fields are :func:`setting`.

    Args:
        cls: The class.
        eq: Whether its instances are compared by value, as arrays cannot be.
        checked: Whether settings must follow their rules, those of base classes too.
    """

    def ruled(own: type, fields: list[Any]) -> list[Any]:
        if not checked:
            return [field.evolve(validator=None, converter=None) for field in fields]
        return [field if field.inherited else _ruled(own, field) for field in fields]

    def decorated(cls: type[C]) -> Any:
        made: Any = attrs.define(cls, frozen=True, slots=False, eq=eq, field_transformer=ruled)
        parameters = sorted(map(_parameter, attrs.fields(made)), key=_place)
        made.__signature__ = inspect.Signature(parameters)
        made.__init__ = _answering(made.__init__)
        if _MARK in (made.__doc__ or ""):
            made.__doc__ = described(made.__doc__ or "", made)
        return made

    return decorated if cls is None else decorated(cls)


def _answering(constructor: Callable[..., None]) -> Callable[..., None]:
    def called(self: Any, *args: Any, **given: Any) -> None:
        _refuse_unknown(type(self).__name__, fields_of(type(self)), given)
        constructor(self, *args, **given)

    return called


def _ruled(cls: type, field: Any) -> Any:
    """A field with the rule that its type names, and with the plain type for those who read it."""
    name = str(field.type).removesuffix(" | None")
    kind: Any = _Flag if name == "bool" else vars(sys.modules[cls.__module__]).get(name)
    if not hasattr(kind, "__metadata__"):
        return field
    plain = str(field.type).replace(name, inspect.formatannotation(kind.__origin__))
    return field.evolve(validator=kind.__metadata__[0], type=plain)


def _parameter(field: Any) -> inspect.Parameter:
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY
        if field.kw_only
        else inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if field.default is attrs.NOTHING else field.default,
        annotation=field.type,
    )


def _place(parameter: inspect.Parameter) -> tuple[int, int]:
    """Sorts keywords by use; what may be given by its place keeps it."""
    by_name = parameter.kind == inspect.Parameter.KEYWORD_ONLY
    return parameter.kind, _PLACES.get(parameter.name, len(_PLACES)) if by_name else 0


def fields_of(cls: Any) -> dict[str, Any]:
    """The fields of a settings class by name: ``default``, ``type``, ``kw_only``, ..."""
    return attrs.fields_dict(cls)


def part(given: Any, cls: type[C], **more: Any) -> C:
    """The settings of one class out of those of a class that inherits them.

    Args:
        given: Settings with every field of ``cls`` that ``more`` does not name.
        cls: A settings class.
        **more: What is not given by its own name.
    """
    return cls(**named(given, cls) | more)


def named(given: Any, cls: type, *, but: Collection[str] = ()) -> dict[str, Any]:
    """Values by name of those fields of a class that the given settings have.

    Args:
        given: The settings.
        cls: The class.
        but: Names that are left out.
    """
    known = fields_of(type(given)).keys() - set(but)
    return {name: getattr(given, name) for name in fields_of(cls) if name in known}


def evolve(given: C, **changes: Any) -> C:
    """The same settings but for some, checked anew."""
    return part(given, type(given), **changes)


class Stored:
    """Settings that are kept and sent as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        return as_json(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Settings from :meth:`to_dict`.

        Raises:
            ValueError: If they are none, or hold anything else beside.
        """
        known = fields_of(cls)
        try:
            if stored.keys() - known.keys():
                raise KeyError
            return cls(**{name: _restored(known[name], stored[name]) for name in known})
        except (AttributeError, KeyError, TypeError, OverflowError):
            raise ValueError(
                f"These are no settings for {cls.__name__}, or those of another version."
            ) from None


def as_json(given: Any) -> dict[str, Any]:
    """Settings as JSON takes them: infinities as the string "inf", arrays as lists."""
    return attrs.asdict(given, value_serializer=_as_json)


def _as_json(_: Any, __: Any, value: Any) -> Any:
    if isinstance(value, float) and value == math.inf:
        return "inf"
    if isinstance(value, tuple):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _restored(field: Any, value: Any) -> Any:
    if isinstance(field.default, Stored):
        return type(field.default).from_dict(value)
    if isinstance(value, list):
        return tuple(value)
    return math.inf if value == "inf" else value


# Classes that take them ---------------------------------------------------------------------


def takes(
    declared: Callable[P, S],
) -> Callable[[Callable[[T, S], None]], Callable[Concatenate[T, P], None]]:
    """Gives a constructor the keywords of a settings class.

    The constructor gets one object, the settings; the class's docstring gets a section "Args"
    where it says ``{settings}``.

    Args:
        declared: The settings class.

    Raises:
        TypeError: From the constructor, for a name that is none, twice the same, or a missing one.
    """

    def decorated(function: Callable[[T, S], None]) -> Callable[Concatenate[T, P], None]:
        constructor = _Constructor(function, cast(type, declared))
        return cast(Callable[Concatenate[T, P], None], constructor)

    return decorated


class _Constructor:
    """Stands for a constructor until its class is there, whose docstring it completes."""

    def __init__(self, function: Callable[..., None], declared: type) -> None:
        self._function, self._declared = function, declared

    def __set_name__(self, owner: type, name: str) -> None:
        owner.__doc__ = described(owner.__doc__ or "", self._declared)
        constructor = _with_keywords(self._function, self._declared, owner.__name__)
        constructor.__doc__ = None
        setattr(owner, name, constructor)
        if not hasattr(owner, "__getattr__"):
            setattr(owner, "__getattr__", foreign.no_attribute)  # noqa: B010  # mypy: no method


def called_with(declared: Callable[P, S]) -> Callable[[Callable[[S], T]], Callable[P, T]]:
    """Gives a function the keywords of a settings class, as :func:`takes` does a constructor.

    Args:
        declared: The settings class.
    """

    def decorated(function: Callable[[S], T]) -> Callable[P, T]:
        known = cast(type, declared)
        called = _with_keywords(function, known, function.__name__)
        called.__doc__ = described(function.__doc__ or "", known)
        return cast(Callable[P, T], called)

    return decorated


def _with_keywords(function: Callable[..., Any], declared: type, name: str) -> Any:
    """A function whose last argument, the settings, is given by its keywords."""
    own = inspect.signature(function)
    first = list(own.parameters.values())[:-1]

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        n = len(first)
        return function(*args[:n], made(declared, name, args[n:], given))

    shown: Any = called
    keywords = inspect.signature(declared).parameters.values()
    shown.__signature__ = own.replace(parameters=[*first, *keywords])
    del shown.__wrapped__
    return shown


def made(declared: type[C], name: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> C:
    """The settings of a call.

    Args:
        declared: Their class.
        name: What was called, for errors.
        args: As they were given.
        given: As they were given, by name.

    Raises:
        TypeError: For names or numbers of arguments that do not fit.
    """
    _refuse_unknown(name, fields_of(declared), given)
    try:
        inspect.signature(declared).bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{name}: {error}.") from None
    return declared(*args, **given)


def _refuse_unknown(name: str, known: Collection[str], given: Mapping[str, Any]) -> None:
    for word in given:
        if word not in known:
            told = foreign.answer("settings", word, known, "=")
            raise TypeError(f"{name} has no setting {word!r}{told}")


class Published:
    """A class that can be made as its paper publishes it."""

    _PUBLISHED: ClassVar[Mapping[str, Any]]

    @classmethod
    def paper(cls, *args: Any, **changes: Any) -> Self:
        """The algorithm as its paper publishes it, for comparisons.

        Args:
            *args: As for the class.
            **changes: Settings that differ, or that the paper says nothing of, as for the class.
        """
        return cls(*args, **{**cls._PUBLISHED, **changes})


# What people read -----------------------------------------------------------------------------


def described(text: str, declared: type) -> str:
    """A docstring whose line ``{settings}`` has become the section "Args".

    Raises:
        ValueError: If the docstring has no such line.
    """
    lines = [line for line in text.splitlines() if line.strip() == _MARK]
    if len(lines) != 1:
        raise ValueError(f"A class that takes settings says {_MARK} once in its docstring.")
    margin = lines[0][: lines[0].index(_MARK)]
    names = list(inspect.signature(declared).parameters)
    keywords = [name for name in names if fields_of(declared)[name].kw_only]
    experts = [] if _PLACES.keys().isdisjoint(keywords) else keywords
    experts = [name for name in experts if name not in _PLACES]
    section = [f"{margin}Args:"]
    for name in names:
        if experts and name == experts[0]:
            section += ["", f"{margin}For experts:"]
        first = f"{margin}    {name}: "
        section += textwrap.wrap(
            fields_of(declared)[name].metadata[HELP], _WIDTH, initial_indent=first,
            subsequent_indent=margin + " " * 8, break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return text.replace(lines[0], "\n".join(section))
