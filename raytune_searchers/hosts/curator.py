"""A curator in an actor of its own: trials ask it for a row's outcome, the rows stay with it.

The actor makes its curator itself, from a function that reads the rows where it runs; what the
function captures lies in the cluster's memory, so arrays and anything above 100 kB are refused
there: rows in any other form must not be captured either. What that
function, or a function of outcomes, raises never leaves the actor. Any process of the same user
can reach the actor: it keeps rows out of Tune's files, it is no wall against code on the cluster.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import ray
import ray.cloudpickle as cloudpickle

from privbo_plugins import sanitize
from privbo_plugins.errors import (
    ObjectiveFailedError,
    PrivacyError,
    VaultError,
)
from privbo_plugins.privacy.guarantee import OutsourcedGuarantee
from privbo_plugins.sanitize import public_name
from raytune_searchers._channel import MissingHost, Reply, channel_of_trial
from raytune_searchers.hosts.actors import ActorHandle, anchor, connect, in_worker
from raytune_searchers.hosts.base import Host, Settings, actor_name, by_name, remember

if TYPE_CHECKING:
    from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
    from privbo_plugins.sessions.rows import Curator

MakeCurator: TypeAlias = "Callable[[], Curator]"

_LARGEST = 100_000
"""Bytes of a pickled function; more would be data."""

_CAPTURED = (
    "The function that makes the curator captures a table, which Ray would keep in the cluster's "
    "memory. Read the rows inside the function, and give bounds as lists."
)

_ENDED = "The function that makes the curator, or one of outcomes, tried to end its process."


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(Settings):
    """What the curator's actor is started with; the curator opens its vault itself.

    Attributes:
        make: The pickled function that makes the curator.
    """

    make: bytes


CURATOR = MissingHost(
    lost=(
        "The curator's actor has ended, or Ray has. Call answering() again: a curator with "
        "vault='sqlite:///...' replays the table and the answers that it has told."
    ),
    absent=(
        "No such curator is alive in this cluster: call answering() in the driver, and keep what "
        "it returns while trials run."
    ),
)
"""What is said of a curator's actor."""


class CuratorHost(Host["Curator"]):
    """The host of a curator."""

    missing, prefix = CURATOR, "curator/"
    operations = Host.operations | by_name("join release session.evaluate session.guarantee")
    kept = False  # nobody could come back to it: its name is in no folder

    def open(self) -> Curator:
        """Makes the curator, once."""
        from privbo_plugins.sessions.rows import Curator

        made, failure = sanitize.call(lambda: cloudpickle.loads(self.settings.make)(), _of_making)
        if failure is not None:
            raise failure
        if not isinstance(made, Curator):
            raise ValueError("The function given to answering must return a Curator.")
        for run in made.runs:
            remember(run)
        return made

    def join(self, _settings: AnswerSettings) -> tuple[None, tuple[str, ...]]:
        """Has the curator made; its vault is its own."""
        _ = self.session
        return None, ()

    def release(self) -> ReleasedTable:
        """Returns the released table; no caller's code runs while it is drawn."""
        return self.session.release()

    def translate(self, error: BaseException) -> Exception:
        """As a host's errors travel; why an outcome failed may be told."""
        failed = isinstance(error, ObjectiveFailedError)
        return PrivacyError(str(error)) if failed else super().translate(error)

    def _reply(self, path: str, args: tuple[Any, ...]) -> Reply:
        """As of every host; none of the user's functions ends this process."""
        try:
            return super()._reply(path, args)
        except (KeyboardInterrupt, SystemExit):
            return (PrivacyError.__name__, _ENDED), None


def _of_making(error: BaseException) -> Exception:
    """Even an error of the engine's kind may be of the user's making."""
    return PrivacyError(
        f"The function that makes the curator raised {public_name(error)}. What it says is "
        "withheld, because exception texts quote data: call it outside Ray to see it."
    )


class Answers:
    """The way to a curator's actor, from the driver and from trials; pickled as its name.

    Call it with a row's number for that row's answer. Made by :func:`answering`.

    Args:
        settings: Of the actor.
    """

    _anchor: ActorHandle | None

    def __init__(self, settings: AnswerSettings) -> None:
        self.name = actor_name(CuratorHost, None, settings.run)
        own = self._anchor = anchor(self.name, CuratorHost, may_begin=True)
        try:
            self._channel, _, _ = connect(own, settings, None)
        except (PrivacyError, ValueError, VaultError):
            own.end()
            raise

    def __getstate__(self) -> str:
        return self.name

    def __setstate__(self, name: str) -> None:
        """As trials have them."""
        self.name, self._anchor = name, None
        self._channel = channel_of_trial(name, CURATOR, watched=False)

    def __call__(self, row: int) -> float:
        """The outcome of a row, privatised if the curator does that; told once, then replayed.

        Args:
            row: Its number, 0 <= row < n.

        Raises:
            ValueError: If there is no such row, or the curator has no outcomes.
            PrivacyError: If the outcome is no finite number or its function failed; what that
                said is withheld.
            VaultError: If the curator's actor has ended, or its vault refuses.
        """
        return float(self._channel.call("evaluate", row))

    def release(self) -> ReleasedTable:
        """The released table, for :class:`raytune_searchers.POGPUCBSearch`.

        Raises:
            VaultError: If the curator's actor has ended, or its vault refuses.
        """
        return self._channel.call("release")  # type: ignore[no-any-return]

    def guarantee(self) -> OutsourcedGuarantee:
        """Returns the claim over everything told of one row so far: table and answer.

        Raises:
            VaultError: If the curator's actor has ended, or its vault refuses.
        """
        return self._channel.call("guarantee")  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the actor; does nothing in a trial."""
        if self._anchor is not None:
            self._anchor.end()


def answering(make_curator: MakeCurator) -> Answers:
    """Puts a curator into an actor of its own, which trials ask for rows' outcomes.

    For an owner who keeps the rows out of Tune's reach: neither a trial's process nor any file
    that Tune writes then holds one. Call it in the driver while Ray is running, and keep what it
    returns: the actor, on the driver's node, ends with it. It gives one answer after another.
    What the function prints or logs, Ray writes to its own log files.

    Args:
        make_curator: Called once, in the actor, without arguments; returns a
            :class:`privbo_plugins.sessions.rows.Curator`. It must read the rows itself.
            Give the curator a ``vault=`` in a database to go on with its ledger after the
            driver's end.

    Returns:
        A callable from a row's number to its answer, for the trainable, with ``release()``,
        ``guarantee()`` and ``close()``. It is pickled as a name.

    Raises:
        PrivacyError: If the function captures a table or fails; what it said is withheld. Also
            in a trial.
        ValueError: If it returns something else.
        RuntimeError: If Ray is not running.

    Example:
        >>> def make_curator():
        ...     rows = np.load("/data/rows.npz")
        ...     return Curator(
        ...         rows["X"], epsilon=2.0, delta=1e-6, bounds=[(18, 90), (0, 1)],
        ...         outcomes=rows["outcome"], vault="sqlite:////data/curator.db",
        ...     )
        >>> # answers = answering(make_curator)
        >>> # search = POGPUCBSearch(answers.release(), metric="outcome", mode="max")
        >>> # tune.Tuner(
        >>> #     lambda config: {"outcome": answers(config["row"])},
        >>> #     tune_config=tune.TuneConfig(search_alg=search, num_samples=50),
        >>> # ).fit()
        >>> # print(answers.guarantee())
    """
    if in_worker():
        raise PrivacyError("A curator's actor is started in the driver, not in a trial.")
    made = _pickled(make_curator)
    if not ray.is_initialized():
        raise RuntimeError("answering() starts an actor, so Ray must run: call ray.init() first.")
    return Answers(AnswerSettings(run=uuid.uuid4().hex, make=made))


class _NoTables(cloudpickle.CloudPickler):  # type: ignore[misc]  # Ray has no types
    def reducer_override(self, obj: Any) -> Any:
        dimensions = getattr(obj, "ndim", 0)
        if isinstance(dimensions, int) and dimensions > 0:
            raise PrivacyError(_CAPTURED)
        return super().reducer_override(obj)


def _pickled(make_curator: MakeCurator) -> bytes:
    if not callable(make_curator):
        raise ValueError("answering needs a function without arguments that makes a curator.")
    with io.BytesIO() as buffer:
        _NoTables(buffer).dump(make_curator)
        made = buffer.getvalue()
    if len(made) > _LARGEST:
        raise PrivacyError(_CAPTURED)
    return made
