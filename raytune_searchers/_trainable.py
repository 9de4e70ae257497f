"""The private channel on the trial's side: a trainable whose raw result goes to the vault."""

from __future__ import annotations

import copy
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.train._internal.session import get_session

from privbo_plugins.errors import PrivacyError
from privbo_plugins.scrub import OWN_ERRORS, attempt, own_error
from privbo_plugins.session import as_losses
from raytune_searchers._host import Channel, Entry, trial_channel
from raytune_searchers._space import TuneSpace

Array = NDArray[np.float64]

Trainable = Callable[[dict[str, Any]], Any]

NOT_MEASURED = float("nan")
"""What intermediate reports show under the metric: nothing has been released of the trial."""


class ClosedReportError(PrivacyError):
    """A private trainable called ``tune.report``."""

    def __init__(self, *_: object) -> None:
        super().__init__(
            "tune.report is closed to a private trainable: what it is given is stored and drawn "
            "by dashboards. Return the vector of per-record values instead; if what you report "
            "is public (it depends on no validation record), say so: "
            "raytune_searchers.report_public({...}, checkpoint=...)."
        )


class PublicReportError(PrivacyError, ValueError):
    """A private trainable called ``report_public`` with the search's metric."""

    def __init__(self, *_: object) -> None:
        super().__init__(
            "report_public may not report the search's own metric: only a release may stand "
            "under it. Use another name."
        )


_VOUCH = "report_public({})"


class _Running:
    """The trial that this process is running: Tune runs one at a time in a worker."""

    def __init__(self, trial: str, metric: str, channel: Channel, report: Any) -> None:
        self.trial, self.metric, self.channel, self.report = trial, metric, channel, report
        self.public: dict[str, Any] = {}


_running: _Running | None = None


def report_public(metrics: Mapping[str, Any], *, checkpoint: Any = None) -> None:
    """Reports intermediate values of a private trainable that depend on no validation record.

    The caller vouches for them, and the guarantee reports that this was declared. The search's
    own metric shows NaN until the trial's value is released. Give a scheduler a metric of its
    own: ``ASHAScheduler(metric="train_loss", mode="min")``.

    Args:
        metrics: By name; the search's own metric may not be among them.
        checkpoint: A ``ray.tune.Checkpoint``, for example the model after an epoch.

    Raises:
        PrivacyError: Outside of a running private trainable.
        PublicReportError: If the search's metric is among the names.
    """
    running = _running
    if running is None:
        raise PrivacyError(
            "report_public works inside a trainable wrapped by search.private, while Tune runs it."
        )
    if running.metric in flat(metrics):
        raise PublicReportError
    shown = flat(metrics) | ({} if checkpoint is None else {"checkpoint": None})
    for name in shown:
        if name not in running.public:
            running.channel.call("vouch", _VOUCH.format(name), running.trial)
    running.public |= shown
    running.report({**metrics, running.metric: NOT_MEASURED}, checkpoint=checkpoint)


def flat(metrics: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Metrics under the names that Tune stores them by."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        inner = isinstance(value, Mapping) and len(value) > 0
        found |= flat(value, f"{path}{name}/") if inner else {f"{path}{name}": value}
    return found


def make_private(trainable: Trainable, name: str) -> Trainable:
    """A function trainable whose vector goes to the vault of the run called ``name``.

    Raises:
        ValueError: If it is not a function of one argument that returns a vector.
    """
    _check(trainable)

    def private(config: dict[str, Any], **parameters: Any) -> dict[str, float]:
        value, error = _evaluate(functools.partial(trainable, **parameters), config, name)
        if error is not None:
            raise error
        return dict(value)

    functools.update_wrapper(private, trainable)
    del private.__wrapped__  # type: ignore[attr-defined]
    if not hasattr(trainable, "__name__"):
        private.__name__ = private.__qualname__ = "private_trainable"
    return private


_SEVERAL = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)


def _callables(trainable: Any) -> tuple[Any, Any]:
    return trainable, getattr(trainable, "__call__", None)  # noqa: B004


def _check(trainable: Any) -> None:
    if inspect.isclass(trainable):
        raise ValueError(
            "search.private takes a function trainable(config) that returns one value per "
            "validation record; a Trainable class reports after every step. Train in one call "
            "and report what is public with raytune_searchers.report_public."
        )
    if not callable(trainable):
        raise ValueError(
            "search.private takes a function trainable(config) that returns one value per "
            f"validation record, got a {type(trainable).__name__}."
        )
    if any(several(part) for several in _SEVERAL for part in _callables(trainable)):
        raise ValueError(
            "search.private takes a function that returns one vector per trial; a generator or "
            "coroutine yields several. Return the last one, and report what is public with "
            "raytune_searchers.report_public."
        )


def _evaluate(trainable: Trainable, config: dict[str, Any], name: str) -> tuple[Any, Any]:
    """({metric: released value}, None), or (None, an error that holds no private value)."""
    try:
        _refuse_nesting()
        trial, channel = _trial_id(), trial_channel(name)
        entry: Entry = channel.call("enter", trial, uuid.uuid4().hex)
        if entry.value is not None:  # told before a crash: the release is replayed
            return _result(entry, dict.fromkeys(_names(entry.public), NOT_MEASURED)), None
        space: TuneSpace = cloudpickle.loads(entry.choices)
        x = space.encode(config, entry.x)  # before the trainable can change its config
    except Exception as error:
        return None, _own(error)
    running = _Running(trial, entry.metric, channel, None)
    with _closed_reports(running):
        # A copy: Tune writes the config itself, with whatever is put into it, into every result.
        returned, failure = attempt(lambda: trainable(_copied(config)), _translated)
        if failure is not None:
            return None, failure
        losses, failure = _converted(returned)
        if losses is None or failure is not None:
            return None, failure
        value, failure = _tell(channel, trial, x, losses)
    del returned, losses
    if failure is not None:
        return None, failure
    return _result(replace(entry, value=value), running.public), None


def _result(entry: Entry, public: Mapping[str, Any]) -> dict[str, Any]:
    """The released value beside what was vouched for: schedulers insist on their metric."""
    shown = {name: value for name, value in public.items() if name != "checkpoint"}
    return {**shown, entry.metric: entry.value}


def _names(operations: Sequence[str]) -> list[str]:
    before, after = _VOUCH.split("{}")
    return [o.removeprefix(before).removesuffix(after) for o in operations if before in o]


def _copied(config: dict[str, Any]) -> dict[str, Any]:
    try:
        return copy.deepcopy(config)
    except Exception:  # constants that cannot be copied have come by pickle, and can go by it
        return dict(cloudpickle.loads(cloudpickle.dumps(config)))


def _trial_id() -> str:
    session = get_session()
    if session is None or session.trial_id is None:
        raise PrivacyError(
            "A private trainable runs inside Ray Tune only; call the function itself to try it."
        )
    return str(session.trial_id)


def _refuse_nesting() -> None:
    if _running is not None:
        raise PrivacyError(
            "A private trainable runs inside another one: each trial has one vector to tell. Wrap "
            "the outer function only."
        )


def _converted(returned: Any) -> tuple[Array | None, BaseException | None]:
    """The vector; converting runs the user's code too: that of the object that was returned."""
    return attempt(lambda: as_losses(returned), _unusable)


def _unusable(error: BaseException) -> BaseException | None:
    """The engine's own words on what is no vector of losses; everything else is withheld."""
    return ValueError(str(error)) if type(error) is ValueError else None


def _tell(channel: Channel, trial: str, x: Array, losses: Array) -> tuple[float, Any]:
    try:
        return channel.tell(trial, x, losses), None
    except Exception as error:
        return NOT_MEASURED, _own(error)


def _own(error: BaseException) -> Exception:
    name, text = own_error(error)
    return OWN_ERRORS[name](text)


def _translated(error: BaseException) -> BaseException | None:
    for kind in (ClosedReportError, PublicReportError):
        if isinstance(error, kind):
            return kind()
    return None


@contextmanager
def _closed_reports(running: _Running) -> Iterator[None]:
    """While the user's code runs, only :func:`report_public` reaches Tune."""
    global _running
    session = get_session()
    running.report = session.report

    def closed(*_args: Any, **_kwargs: Any) -> None:
        raise ClosedReportError

    session.report, _running = closed, running
    try:
        yield
    finally:
        del session.report  # the class's own method shows again
        _running = None
