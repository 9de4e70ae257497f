"""Ways to report to Tune, all of them closed while private code runs, and the proof that they are.

What closes them sits in the session in which Ray keeps a trial, which is none of its public
interfaces. A Ray that routes a report elsewhere would open them in silence. So before private code
runs, :func:`check_closed` tries every public way with a probe that cannot be reported.
"""

from __future__ import annotations

import functools
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import ray
from ray import tune

from privbo_plugins.errors import PrivacyError

TESTED = "2.50 to 2.60"
"""Versions of Ray with which the tests pass; with a later one each trial finds out by itself."""

_QUEUE = "_get_or_create_inter_actor_queue"
"""What workers of Ray Train put there, Tune reports: TuneReportCallback asks for it."""

_WAYS = (
    ("ray.tune", "report"),
    ("ray.train", "report"),
    ("ray.air.session", "report"),
    ("ray.train._internal.session", "report"),
)
"""Functions that report; each is asked for where it is called, so that a changed one counts."""


class _ReachedError(Exception):
    """Something has looked into the probe."""


def _reached(*_: object) -> NoReturn:
    raise _ReachedError


class _Probe(dict[str, Any]):
    """Metrics that hold nothing and cannot be read, copied, pickled or stored."""

    def __getattribute__(self, name: str) -> Any:
        return dict if name == "__class__" else _reached()

    __iter__ = __len__ = __contains__ = __getitem__ = __setitem__ = __eq__ = _reached
    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __repr__ = _reached
    __or__ = __ror__ = __reversed__ = _reached
    __hash__ = _reached  # type: ignore[assignment]


def session_of_trial() -> Any:
    """Returns Ray's session of the trial that this process is running; None outside of one.

    Raises:
        PrivacyError: If this version of Ray keeps it elsewhere.
    """
    try:
        from ray.train._internal.session import get_session
    except ImportError:
        raise PrivacyError(_unsupported("keeps a trial's session where it is not known")) from None
    return get_session()


@contextmanager
def closed_session(refuse: Callable[..., Any]) -> Iterator[None]:
    """Closes the session of the running trial.

    Args:
        refuse: Called with what would be reported instead of the session's own method, which it
            gets as first argument.
    """
    session = session_of_trial()
    closed = {
        name: _unguarded(getattr(session, name))
        for name in ("report", _QUEUE)
        if hasattr(session, name)
    }
    if "report" not in closed:
        raise PrivacyError(_unsupported("has no report in a trial's session"))
    for name, own in closed.items():
        setattr(session, name, functools.partial(refuse, own))
    try:
        yield
    finally:  # Tune reports what the function returns in the thread that has run it
        for name, own in closed.items():
            setattr(session, name, _Guarded(session, refuse, own))


class _Guarded:
    """A method that stays closed to threads which private code has left behind.

    A session serves one trial after the other, each in a thread of its own, and threads of an
    earlier one may still run.

    Args:
        session: The trial's.
        refuse: As for :func:`closed_session`.
        own: The session's own method.
    """

    def __init__(self, session: Any, refuse: Callable[..., Any], own: Callable[..., Any]) -> None:
        self.own, self._session, self._refuse = own, session, refuse
        self._opener = threading.current_thread()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        runner = getattr(self._session, "training_thread", self._opener)
        if threading.current_thread() is runner:
            return self.own(*args, **kwargs)
        return self._refuse(self.own, *args, **kwargs)


def _unguarded(method: Callable[..., Any]) -> Callable[..., Any]:
    return method.own if isinstance(method, _Guarded) else method


def check_closed(closed: type[PrivacyError]) -> None:
    """Tries every public way to report. Nothing is reported, whatever the ways are.

    Ray itself refuses some of them in a trial of Tune, by raising a DeprecationWarning.

    Args:
        closed: What a closed way raises.

    Raises:
        PrivacyError: If one of them is open.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that is an error would be no refusal
        for name, way in _ways():
            if not _refuses(way, closed):
                raise PrivacyError(_unsupported(f"does not let {name} be closed"))


def _ways() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of the ways to report that this version of Ray has, and attempts on them."""
    for module, name in _WAYS:
        found = _found(module, name)
        if found is not None:
            yield f"{module}.{name}", functools.partial(found, _Probe())
    of_context = getattr(tune.get_context(), "report", None)
    if of_context is not None:
        yield "ray.tune.get_context().report", functools.partial(of_context, _Probe())
    callback = _found("ray.tune.integration.ray_train", "TuneReportCallback")
    if callback is not None:
        yield "ray.tune.integration.ray_train.TuneReportCallback", callback


def _found(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _refuses(way: Callable[[], Any], closed: type[PrivacyError]) -> bool:
    try:
        way()
    except (closed, DeprecationWarning):
        return True
    except Exception:  # it has looked at what it was to report, or failed for another reason
        return False
    return False


def _unsupported(what: str) -> str:
    return (
        f"Ray {ray.__version__} {what}, so reports of a private trial could not be kept from "
        "Tune's results, and nothing of it was run. Use a version of Ray with which this package "
        f"was tested ({TESTED}): pip install 'ray[tune]<2.61'."
    )
