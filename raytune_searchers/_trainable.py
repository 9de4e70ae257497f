"""A private trainable on the trial's side: what it returns never reaches Tune as it is.

:func:`keep_private` runs the user's function with closed reports and hands its result to a
:class:`Publication`, which knows where the result goes and what may be published of it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray import tune

from privbo_plugins import sanitize
from privbo_plugins.convert import as_losses, index_of
from privbo_plugins.errors import ANOTHER_POINT, NotLossesError, PrivacyError
from privbo_plugins.sanitize import of_converting, sanitized
from privbo_plugins.shown import flat
from raytune_searchers._audit import REPEATED
from raytune_searchers._channel import LOSSES, VOUCH, Channel, Entry, MissingHost, channel_of_trial
from raytune_searchers._closing import check_closed, closed_session, session_of_trial
from raytune_searchers._space import TuneSpace

Array = NDArray[np.float64]

_SAME = 1e-9
"""Encoded parameters that are so near are the same."""

Trainable = Callable[[dict[str, Any]], Any]

NOT_MEASURED = float("nan")
"""What intermediate reports show under the metric: nothing has been released of the trial."""


class ClosedReportError(PrivacyError):
    """A private trainable called ``tune.report``."""

    def __init__(self, *_: object) -> None:
        super().__init__(
            "tune.report is closed to a private trainable: what it is given is stored and drawn "
            "by dashboards. Return the vector of per-record values, or the user's reward, "
            "instead; if what you report is public (it depends on no validation record and on no "
            "user's data), say so: raytune_searchers.report_public({...}, checkpoint=...)."
        )


class PublicReportError(PrivacyError, ValueError):
    """A private trainable called ``report_public`` with the search's metric."""

    def __init__(self, *_: object) -> None:
        super().__init__(
            "report_public may not report the search's own metric: only a release may stand "
            "under it. Use another name."
        )


Told = tuple[float, Mapping[str, float]]
"""What was released of a trial, and what else by the name that shows it: a draw, scores."""


@dataclass(frozen=True)
class Publication:
    """One trial's way from what its function returns to what may be published of it.

    Attributes:
        trial: The trial.
        channel: To the host, which records what was declared public.
        entry: The host's answer: what was released before a crash is reported again.
        convert: Makes the private value from what the function returned.
        release: Releases the private value.
    """

    trial: str
    channel: Channel
    entry: Entry
    convert: Callable[[Any], Any]
    release: Callable[[Any], Told]


class _Running:
    """The trial that this process is running: Tune runs one at a time in a worker."""

    def __init__(self, publication: Publication) -> None:
        self.publication = publication
        self.public: dict[str, Any] = {}
        self._open = threading.local()

    def report(self, metrics: dict[str, Any], checkpoint: Any) -> None:
        """Reports what is public."""
        self._open.now = True
        try:
            tune.report(metrics, checkpoint=checkpoint)
        finally:
            self._open.now = False

    def heard(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In place of the session's own: lets through what this very thread reports as public."""
        if getattr(self._open, "now", False):
            return own(*args, **kwargs)
        raise ClosedReportError


_running: _Running | None = None


def report_public(metrics: Mapping[str, Any], *, checkpoint: Any = None) -> None:
    """Reports intermediate values of a private trainable that depend on no private data.

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
            "report_public works inside a trainable wrapped by search.private or ldp_trainable, "
            "while Tune runs it."
        )
    publication = running.publication
    if publication.entry.metric in flat(metrics):
        raise PublicReportError
    shown = flat(metrics) | ({} if checkpoint is None else {"checkpoint": None})
    for name in shown:
        if name not in running.public:
            publication.channel.call("declare_public", VOUCH.format(name), publication.trial)
    running.public |= shown
    running.report({**metrics, publication.entry.metric: NOT_MEASURED}, checkpoint=checkpoint)


def make_private(
    trainable: Trainable, name: str, wrapper: str = "search.private", missing: MissingHost = LOSSES
) -> Trainable:
    """A function trainable whose vector goes to the vault of the run called ``name``.

    Args:
        trainable: The user's function.
        name: Of the vault's actor.
        wrapper: What the user has called.
        missing: What a trial says where the vault is not.

    Raises:
        ValueError: If it is not a function of one argument that returns a vector.
    """
    check_trainable(trainable, wrapper, "one value per validation record")
    return keep_private(trainable, functools.partial(_begin, name, missing))


def _begin(name: str, missing: MissingHost, config: dict[str, Any]) -> tuple[Publication, None]:
    """A trial whose vector of losses goes to a vault."""
    trial, channel = trial_id(), channel_of_trial(name, missing)
    job = str(ray.get_runtime_context().get_job_id())
    entry: Entry = channel.call("enter", trial, uuid.uuid4().hex, job)
    choices, given, scores = entry.details
    space: TuneSpace = cloudpickle.loads(choices)
    x = space.encode(config, given)  # before the trainable can change it
    told_at = None if entry.value is None else given
    if told_at is not None and not np.allclose(x, told_at, rtol=0.0, atol=_SAME):
        raise PrivacyError(ANOTHER_POINT)

    def release(told: tuple[Array, str | None]) -> Told:
        return channel.call_sealed("tell", trial, told, x)  # type: ignore[no-any-return]

    convert = functools.partial(_rows_and_index, scores)
    return Publication(trial, channel, entry, convert, release), None


Begin = Callable[[dict[str, Any]], tuple[Publication | None, BaseException | None]]
"""From a config to how a trial publishes, or to the exception that ends the trial."""


def keep_private(trainable: Trainable, begin: Begin) -> Trainable:
    """A function trainable that reports releases only, under the original's name.

    Args:
        trainable: The user's function.
        begin: Called in the trial; says how that trial publishes.
    """

    def private(config: dict[str, Any], **parameters: Any) -> dict[str, float]:
        value, error = _evaluate(functools.partial(trainable, **parameters), config, begin)
        del parameters
        if error is not None:
            raise error
        return dict(value)

    functools.update_wrapper(private, trainable)
    private.is_private = True  # type: ignore[attr-defined]
    del private.__wrapped__  # type: ignore[attr-defined]
    private.__name__ = getattr(trainable, "__name__", "private_trainable")
    # Pickled as it is: by its name a worker would import its module, and wrap it once more there.
    private.__qualname__ = f"keep_private.<locals>.{private.__name__}"
    return private


_SEVERAL = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)


def check_trainable(trainable: Any, wrapper: str, returned: str) -> None:
    """Checks that something can be a private trainable.

    Args:
        trainable: What the user gave.
        wrapper: To what.
        returned: What it should return.

    Raises:
        ValueError: If it is a class, a generator, a coroutine or no function.
    """
    wanted = f"{wrapper} takes a function trainable(config) that returns {returned}"
    if inspect.isclass(trainable):
        raise ValueError(
            f"{wanted}; a Trainable class reports after every step. Train in one call "
            "and report what is public with raytune_searchers.report_public."
        )
    if not callable(trainable):
        raise ValueError(f"{wanted}, got a {type(trainable).__name__}.")
    if getattr(trainable, "is_private", None) is True:
        raise ValueError(f"{wanted}; this one is private already: give it to the Tuner as it is.")
    parts = trainable, getattr(trainable, "__call__", None)  # noqa: B004
    if any(several(part) for several in _SEVERAL for part in parts):
        raise ValueError(
            f"{wanted}, once per trial; a generator or coroutine yields several. Return the last "
            "one, and report what is public with raytune_searchers.report_public."
        )


def _evaluate(trainable: Trainable, config: dict[str, Any], begin: Begin) -> tuple[Any, Any]:
    """({metric: released value}, None), or (None, an error that holds no private value)."""
    own, failure = _begun(begin, config)
    if own is None:
        return None, failure
    if own.entry.value is not None:  # told before a crash: the release is replayed
        public = dict.fromkeys(_names(own.entry.public), NOT_MEASURED)
        return _result(own, (own.entry.value, own.entry.beside), public), None
    running = _Running(own)
    with _closed_reports(running):
        _, failure = sanitize.call(functools.partial(check_closed, ClosedReportError), sanitized)
        if failure is not None:
            return None, failure
        # A copy: Tune writes the config itself, with whatever is put into it, into every result.
        returned, failure = sanitize.call(lambda: trainable(copied(config)), _translated)
        if failure is not None:
            return None, failure
        # Converting runs the user's code too: that of the object returned.
        private, failure = sanitize.call(functools.partial(own.convert, returned), of_converting)
        if private is None or failure is not None:
            _tell_kind(own.channel, failure)
            return None, failure
        # A library's panic is no Exception, and may quote its input.
        told, failure = sanitize.call(functools.partial(own.release, private), sanitized)
    del returned, private
    if told is None or failure is not None:
        return None, failure
    return _result(own, told, running.public), None


def _tell_kind(channel: Channel, failure: BaseException | None) -> None:
    """Tells the host that a function has returned no losses, which the vector's type says.

    A reward is one user's, who may have decided the kind: it fails that user's trial alone.
    """
    if isinstance(failure, NotLossesError):
        with suppress(Exception):  # then the trial alone fails
            channel.call("wrong_kind", str(failure))


def _begun(begin: Begin, config: dict[str, Any]) -> tuple[Publication | None, Any]:
    try:
        _refuse_nesting()
        _refuse_repeats(config)
        return begin(config)
    except Exception as error:
        return None, sanitized(error)


def _result(publication: Publication, told: Told, public: Mapping[str, Any]) -> dict[str, Any]:
    """The released value beside what was vouched for: schedulers insist on their metric."""
    shown = {name: value for name, value in public.items() if name != "checkpoint"}
    value, beside = told
    return {**shown, **beside, publication.entry.metric: value}


def _names(operations: Sequence[str]) -> list[str]:
    before, after = VOUCH.split("{}")
    return [o.removeprefix(before).removesuffix(after) for o in operations if before in o]


def copied(config: dict[str, Any]) -> dict[str, Any]:
    """A config that the user's code may change."""
    try:
        return copy.deepcopy(config)
    except Exception:  # constants that cannot be copied have come by pickle, and can go by it
        return dict(cloudpickle.loads(cloudpickle.dumps(config)))


def trial_id() -> str:
    """The trial that this process is running.

    Raises:
        PrivacyError: If Tune is not running one.
    """
    found = None if session_of_trial() is None else tune.get_context().get_trial_id()
    if found is None:
        raise PrivacyError(
            "A private trainable runs inside Ray Tune only: tune.Tuner(search.private(trainable), "
            "...).fit(). To try it, call the bare function, which protects nothing: "
            "trainable({...})."
        )
    return str(found)


def _refuse_nesting() -> None:
    if _running is not None:
        raise PrivacyError(
            "A private trainable runs inside another one: each trial has one vector to tell. Wrap "
            "the outer function only."
        )


def _refuse_repeats(config: Mapping[str, Any]) -> None:
    if REPEATED in config:
        raise PrivacyError(
            "ray.tune.search.Repeater tells the search means of several releases, which are no "
            "releases, and nothing could be claimed for the run. Leave it out: give the search "
            "itself to TuneConfig. Noise is averaged by the algorithm; what a training's own "
            "randomness adds is averaged inside the trainable."
        )


def _rows_and_index(scores: Any, returned: Any) -> tuple[Any, str | None]:
    """One loss a record, or a row for scores, and which records they are, if it says so."""
    if scores is None:
        return as_losses(returned), index_of(returned)
    from privbo_plugins.scores.score import rows_of  # three quarters of all imports

    return rows_of(scores, returned), index_of(getattr(returned, "y_true", None))


def _translated(error: BaseException) -> BaseException | None:
    for kind in (ClosedReportError, PublicReportError):
        if isinstance(error, kind):
            return kind()
    return None


@contextmanager
def _closed_reports(running: _Running) -> Iterator[None]:
    """While the user's code runs, only :func:`report_public` reaches Tune."""
    global _running
    with closed_session(running.heard):
        _running = running
        try:
            yield
        finally:
            _running = None
