"""Settings are declared once: a dataclass says name, type, default and meaning of each.

A class that users construct takes its keywords from such a dataclass::

    @settings
    class WaitSettings:
        seconds: float = setting("How long to wait, > 0.", kw_only=False)
        tries: int = setting("How often.", default=3)

    class Wait:
        '''Waits.

        {settings}
        '''

        @takes(WaitSettings)
        def __init__(self, given: WaitSettings) -> None: ...

Type checkers and editors see ``Wait(seconds, *, tries=3)``, because the decorated constructor is
typed as the dataclass's own; ``inspect.signature`` and ``help`` show the same, and
``{settings}`` becomes the section "Args".
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import (
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

P = ParamSpec("P")
C = TypeVar("C")
S = TypeVar("S")
T = TypeVar("T")

_HELP = "help"
_MARK = "{settings}"
_WIDTH = 99


def setting(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    kw_only: bool = True,
    repr: bool = True,
) -> Any:
    """One setting of a class decorated with :func:`settings`.

    Args:
        help: What it means: unit, range, and what None stands for.
        default: Its default; a setting without one must be given.
        default_factory: Makes the default.
        kw_only: Whether it can be given by name only.
        repr: Whether the settings show it when they are printed.
    """
    made: dict[str, Any] = {"default": default, "default_factory": default_factory}
    given = {name: value for name, value in made.items() if value is not dataclasses.MISSING}
    metadata = {_HELP: " ".join(help.split())}
    return dataclasses.field(**given, kw_only=kw_only, repr=repr, metadata=metadata)


def again(cls: type, name: str, *, default: Any, kw_only: bool = True, more: str = "") -> Any:
    """A setting of another class with another default, or another place.

    Args:
        cls: The other class.
        name: Of the setting.
        default: As for :func:`setting`.
        kw_only: As there.
        more: What else it means here.
    """
    field = _fields_of(cls)[name]
    return setting(f"{field.metadata[_HELP]} {more}", default=default, kw_only=kw_only)


def declaration(cls: type, name: str) -> tuple[str, Any]:
    """What a setting means, and its default; ``dataclasses.MISSING`` if it has none."""
    field = _fields_of(cls)[name]
    return field.metadata[_HELP], field.default


@overload
def settings(cls: type[C]) -> type[C]: ...


@overload
def settings(*, eq: bool) -> Callable[[type[C]], type[C]]: ...


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, again))
def settings(cls: type[C] | None = None, *, eq: bool = True) -> Any:
    """Makes a class a frozen dataclass whose fields are :func:`setting`.

    Args:
        cls: The class.
        eq: Whether its instances are compared by value, as arrays cannot be.
    """

    def decorated(cls: type[C]) -> type[C]:
        made = dataclasses.dataclass(frozen=True, kw_only=True, eq=eq)(cls)
        if _MARK in (made.__doc__ or ""):
            made.__doc__ = described(made.__doc__ or "", made)
        return made

    return decorated if cls is None else decorated(cls)


def part(given: Any, cls: type[C], **more: Any) -> C:
    """The settings of one class out of those of a class that inherits them.

    Args:
        given: Settings with every field of ``cls`` that ``more`` does not name.
        cls: A dataclass.
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
    known = {f.name for f in dataclasses.fields(given)} - set(but)
    return {name: getattr(given, name) for name in _fields_of(cls) if name in known}


def _fields_of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(cls) if f.init}


# Classes that take them ------------------------------------------------------------------------


class _Constructor:
    """Stands for a constructor until its class is there, whose docstring it completes."""

    def __init__(self, function: Callable[..., None], declared: type) -> None:
        self._function, self._declared = function, declared

    def __set_name__(self, owner: type, name: str) -> None:
        owner.__doc__ = described(owner.__doc__ or "", self._declared)
        setattr(owner, name, _constructor(self._function, self._declared, owner.__name__))


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


def _constructor(function: Callable[..., None], declared: type, name: str) -> Any:
    signature = signature_of(declared)

    @functools.wraps(function)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        function(self, made(declared, name, args, given))

    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown: Any = __init__
    shown.__signature__ = signature.replace(
        parameters=[itself, *signature.parameters.values()], return_annotation=None
    )
    shown.__doc__ = None
    del shown.__wrapped__
    return shown


def called_with(declared: Callable[P, S]) -> Callable[[Callable[[S], T]], Callable[P, T]]:
    """Gives a function the keywords of a settings class, as :func:`takes` does a constructor.

    Args:
        declared: The settings class.
    """

    def decorated(function: Callable[[S], T]) -> Callable[P, T]:
        known, name = cast(type, declared), function.__name__

        @functools.wraps(function)
        def called(*args: P.args, **given: P.kwargs) -> T:
            return function(made(known, name, args, given))

        shown: Any = called
        annotation = inspect.signature(function).return_annotation
        shown.__signature__ = signature_of(known).replace(return_annotation=annotation)
        shown.__doc__ = described(function.__doc__ or "", known)
        return called

    return decorated


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
    known = _fields_of(declared)
    for unknown in given.keys() - known:
        close = difflib.get_close_matches(unknown, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise TypeError(f"{name} has no setting {unknown!r}{hint}")
    try:
        signature_of(declared).bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{name}: {error}.") from None
    return declared(*args, **given)


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


# What people read --------------------------------------------------------------------------


def signature_of(declared: type) -> inspect.Signature:
    """The signature of a settings class: what has a default of its own shows it."""
    fields = sorted(_fields_of(declared).values(), key=lambda f: bool(f.kw_only))
    return inspect.Signature([_parameter(f) for f in fields])


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    kinds = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    default: Any = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    empty = default is dataclasses.MISSING
    return inspect.Parameter(
        field.name,
        kinds[0] if field.kw_only else kinds[1],
        default=inspect.Parameter.empty if empty else default,
        annotation=field.type,
    )


def described(text: str, declared: type) -> str:
    """A docstring whose line ``{settings}`` has become the section "Args".

    Raises:
        ValueError: If the docstring has no such line.
    """
    lines = [line for line in text.splitlines() if line.strip() == _MARK]
    if len(lines) != 1:
        raise ValueError(f"A class that takes settings says {_MARK} once in its docstring.")
    margin = lines[0][: lines[0].index(_MARK)]
    section = [f"{margin}Args:"]
    for name in signature_of(declared).parameters:
        first = f"{margin}    {name}: "
        section += textwrap.wrap(
            _fields_of(declared)[name].metadata[_HELP], _WIDTH, initial_indent=first,
            subsequent_indent=margin + " " * 8, break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return text.replace(lines[0], "\n".join(section))
