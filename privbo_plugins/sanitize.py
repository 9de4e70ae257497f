"""What may be told of somebody else's failure.

Exception texts, tracebacks and the frames they hold quote data, and every host logs them. So the
code that touches records runs here: what it raises is dropped, and a fixed text takes its place.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import ParamSpec, TypeVar, cast

from privbo_plugins.errors import (
    BudgetExceededError,
    NotARewardError,
    NotLossesError,
    ObjectiveFailedError,
    PrivacyError,
    PrivacyWarning,
    SpaceChangedError,
    UtilityWarning,
    VaultError,
)

T = TypeVar("T")
P = ParamSpec("P")

OWN_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        BudgetExceededError,
        NotARewardError,
        NotLossesError,
        PrivacyError,
        SpaceChangedError,
        VaultError,
        ValueError,
    )
}
"""Errors of the engine by name; their texts hold no private value.

A plain ``ValueError`` is the engine's where the engine alone can have raised it: not around a call
of the user's own code.
"""


def call(
    act: Callable[[], T],
    translate: Callable[[BaseException], BaseException | None] = lambda _: None,
) -> tuple[T | None, BaseException | None]:
    """Returns (result, None), or (None, the exception to raise instead of what was raised).

    The original exception, its text, its traceback and the frames it holds are dropped here; the
    new one must be raised outside of any ``except`` block, so that neither ``__context__`` nor a
    log handler that prints local variables can reach them.

    Args:
        act: The user's code.
        translate: Makes a replacement that may be told, or None for "withheld". It must not return
            the exception it is given.

    Example:
        >>> call(lambda: int("Jane Doe"))[1].__class__.__name__
        'ObjectiveFailedError'
    """
    try:
        return act(), None
    except KeyboardInterrupt:
        return None, KeyboardInterrupt()
    except SystemExit:
        return None, SystemExit(1)
    except BaseException as error:
        told = None
        with suppress(BaseException):  # translating may run into the error's own code
            told = translate(error)
        return None, told or withheld(public_name(error))


def public_name(error: BaseException) -> str:
    """The type's name if Python itself defines it; others might carry data."""
    kind = type(error)
    return kind.__name__ if getattr(builtins, kind.__name__, None) is kind else "an exception"


def withheld(name: str) -> ObjectiveFailedError:
    """Makes the error that is raised instead of an objective's own exception.

    Args:
        name: Of its type, as :func:`public_name` gives it. The exception is of that type too, so
            that a host's ``catch=(ValueError,)`` catches it.
    """
    return _kind_of(name)(
        f"The private objective raised {name}. Its message and traceback are withheld, because "
        "exception texts quote data and the host logs them. To see them, call the bare function "
        "yourself with what it was given, which protects nothing: outcomes(row) of a curator, in "
        "a study objective(optuna.trial.FixedTrial(study.trials[-1].params)), on Ray Tune "
        "trainable(results[0].config)."
    )


@functools.cache
def _kind_of(name: str) -> type[ObjectiveFailedError]:
    """An :class:`ObjectiveFailedError` that is of a type that Python defines as well."""
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or name in _UNFIT:
        return ObjectiveFailedError
    if issubclass(ObjectiveFailedError, kind):
        return ObjectiveFailedError
    told = {
        "__module__": ObjectiveFailedError.__module__,
        "__doc__": ObjectiveFailedError.__doc__,
        "__str__": lambda error: error.args[0],
        "__reduce__": lambda error: (_again, (name, error.args[0])),
    }
    try:
        made = type("ObjectiveFailedError", (ObjectiveFailedError, kind), told)
        return made if str(made("told")) == "told" else ObjectiveFailedError
    except TypeError:  # one that is made of more than a text
        return ObjectiveFailedError


_UNFIT = frozenset({"StopIteration", "StopAsyncIteration"})
"""What would end a loop of the host's in silence."""


def _again(name: str, text: str) -> ObjectiveFailedError:
    """A failure that has travelled to another process."""
    return _kind_of(name)(text)


def own_words(error: BaseException) -> Exception | None:
    """One of the engine's own errors made again; None for all others, which are withheld.

    Only the classes of :data:`OWN_ERRORS` themselves pass: a subclass, or another class of the
    same name, is from elsewhere, and may hold data or be made of other arguments than a text.

    Example:
        >>> own_words(VaultError("The vault is gone."))
        VaultError('The vault is gone.')
        >>> own_words(UnicodeDecodeError("utf-8", b"Jane", 0, 1, "Jane")) is None
        True
    """
    kind = next((kind for kind in OWN_ERRORS.values() if type(error) is kind), None)
    return None if kind is None else kind(str(error))


def of_converting(error: BaseException) -> Exception | None:
    """Translates an error of converting what an objective returned to a number or a vector.

    That runs the code of what was returned, so only the converters' own errors are the engine's
    there: even a plain ``ValueError`` may quote data.

    Example:
        >>> of_converting(NotARewardError("None or several."))
        NotARewardError('None or several.')
        >>> of_converting(ValueError("Jane Doe")) is None
        True
    """
    return own_words(error) if type(error) in (NotARewardError, NotLossesError) else None


def own_error(error: BaseException) -> Exception:
    """Makes an engine error again; of any other, tells only a type that Python defines.

    Example:
        >>> own_error(VaultError("The vault is gone."))
        VaultError('The vault is gone.')
        >>> own_error(IndexError("record 7"))
        PrivacyError('A release failed inside the engine (IndexError).')
    """
    return own_words(error) or PrivacyError(
        f"A release failed inside the engine ({public_name(error)})."
    )


def sanitized(error: BaseException) -> BaseException:
    """Makes an exception in the engine's own words, to be raised instead of one with data.

    For where the engine alone was at work; it keeps interruptions, and warnings of the engine that
    a filter has turned into errors.

    Example:
        >>> sanitized(UnicodeDecodeError("utf-8", b"Jane", 0, 1, "Jane"))
        PrivacyError('A release failed inside the engine (UnicodeDecodeError).')
    """
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt()
    if type(error) in (PrivacyWarning, UtilityWarning):
        return type(error)(str(error))
    return own_error(error)


def retelling(act: Callable[P, T]) -> Callable[P, T]:
    """Lets a function of the engine raise nothing that has seen what it was given.

    A traceback holds every frame on the way, and who prints local variables shows a reward or a
    user's name. So the function's own exception is dropped with its frames, and one in the
    engine's own words is raised, in a frame that has let go of the arguments. The callers' frames
    are theirs. A call with other arguments than the function takes is a TypeError that shows it.

    Example:
        >>> @retelling
        ... def check(user: str) -> None:
        ...     raise VaultError("The vault is gone.")
        >>> check("Jane Doe")
        Traceback (most recent call last):
        privbo_plugins.errors.VaultError: The vault is gone.
        >>> check()
        Traceback (most recent call last):
        TypeError: check(user): missing a required argument: 'user'.
    """
    known = inspect.signature(act)
    own = ", ".join(name for name in known.parameters if name != "self")

    @functools.wraps(act)
    def sanitized_call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound, error = call(
            functools.partial(known.bind, *args, **kwargs),
            lambda raised: TypeError(f"{act.__name__}({own}): {raised}."),  # of names alone
        )
        if bound is not None:
            result, error = call(functools.partial(act, *args, **kwargs), sanitized)
        del args, kwargs, bound
        if error is not None:
            raise error
        return cast(T, result)

    return sanitized_call


class OfAllThreads:
    """A setting of a process: the first to enter makes it, the last to leave takes it back.

    What another package does to it meanwhile, in another thread, goes unseen.

    Args:
        setting: Makes the context of the setting.
        each: Called by all who enter: others may have undone the setting.
    """

    def __init__(
        self,
        setting: Callable[[], AbstractContextManager[object]],
        each: Callable[[], object] = lambda: None,
    ) -> None:
        self._setting, self._each, self._made = setting, each, ExitStack()
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._made.enter_context(self._setting())
            self._each()
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._made.close()


unheard = OfAllThreads(warnings.catch_warnings, functools.partial(warnings.simplefilter, "ignore"))
"""Drops warnings while protected records are scored: one of them may be what they tell of."""


class _Forgiven:
    """Drops what a user's code raises of a record, all but an interruption."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> bool:
        return kind is not None and not issubclass(kind, KeyboardInterrupt)


forgiven = _Forgiven()
