"""A trial's way to the actor that holds a run's private state.

This is what the process of a trial imports, so it needs Ray and numpy and nothing that draws,
accounts or models. What a host raises never reaches Ray: a reply carries the name and the text of
an engine error, or no more than a type. Losses travel as direct arguments in blocks of at most
:data:`BLOCK_BYTES`: larger ones would pass through Ray's object store, which is shared memory that
other processes can read and that may be spilled to disk. What travels directly depends on how Ray
is set up, so a channel tries it out before it sends anything that matters.

A vector of several blocks is an upload (:mod:`raytune_searchers.hosts.uploads` is the host's end).
Its sender waits for its turn, and then has no more than :data:`WINDOW_BYTES` of it on their way.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
import ray.experimental.internal_kv as kv
from numpy.typing import NDArray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from privbo_plugins.errors import PrivacyError, VaultError
from privbo_plugins.sanitize import OWN_ERRORS

Array = NDArray[np.float64]

T = TypeVar("T")

NAMESPACE = "privbo"

KV = b"privbo"
"""Where the cluster's own memory keeps what is ours."""

BLOCK_BYTES = 2**16
"""Below Ray's limit of 100 kB for arguments that travel inside the call itself."""

_SMALLER = (2**14, 2**13)
"""Bytes of a block where Ray's limits were lowered; with less, nothing is sent."""

_BESIDE = 2**10
"""Bytes for a call's other arguments, and for what Ray adds to each."""

WINDOW_BYTES = 2**20
"""Of one vector under way at once: its host finds the next block there, and little queues."""

SHORT_RUN = 50
"""Of so many trials a search's saved state keeps everything; of more, where the run stands."""

OBJECTS_KNOWN = "objects_known"
"""Operation that every host offers, see :func:`objects_known`."""

TRIES = 5
"""Times that a vector is sent to a host that was restarted under way."""

_PATIENCE = 180.0
"""Seconds for which a trial looks for a host that ended. Ray calls a node dead after five health
checks, which are 15 s where its machine refuses them and 65 s where it is silent; then a driver
begins another host, whose process takes some seconds to start."""

_LONGEST_PAUSE = 5.0

GRACE = 60.0
"""Seconds for which a trial that has seen its vault in memory gone leaves it to the search to end
the experiment: Tune asks and saves a search every ten seconds at the latest, by default."""

Reply = tuple[tuple[str, str] | None, Any]
"""((error's name, text) or None, result)."""

Payload: TypeAlias = bytes | str
"""A vector as a host finds it: its bytes, or the name of the upload that brought them."""


@dataclass(frozen=True)
class Gone:
    """What is said where a host should be and is not.

    Attributes:
        lost: Of a host that has ended, and with it what it held in memory.
        absent: To a trial that finds no host of its run.
    """

    lost: str
    absent: str


@dataclass(frozen=True)
class TrialRecord:
    """What the vault knows of a trial that the host framework says has ended."""

    published: float | None
    entered: bool
    vouched: frozenset[str]
    head: tuple[int, str]
    drawn: float | None = None


class HostActor:
    """What Ray makes an actor of: whoever finds an actor imports its class, and a host needs much.

    Args:
        host: The pickled class of the host, which only the actor opens.
        args: Of that class.
    """

    def __init__(self, host: bytes, *args: Any) -> None:
        self._host = cloudpickle.loads(host)(*args)

    def call(self, operation: str, *args: Any) -> Reply:
        """As the host's own."""
        reply: Reply = self._host.call(operation, *args)
        return reply


@runtime_checkable
class Pipelined(Protocol):
    """A way to a host that takes another call before it has answered the last one."""

    def begin(self, *args: Any) -> Callable[[], Reply]:
        """Sends a call at once; what is returned waits for its reply."""
        ...


class Channel:
    """The way to a host, from the driver or from a trial.

    Nothing is sent before it has been seen that a call's arguments travel inside the call.

    Args:
        send: From the arguments of :meth:`Host.call` to what it returns.
    """

    def __init__(self, send: Callable[..., Reply]) -> None:
        self._send = send

    @functools.cached_property
    def block_bytes(self) -> int:
        """Bytes that a call carries itself, as zeros of that size have shown.

        Raises:
            PrivacyError: If Ray sends even small blocks through its object store.
        """
        before = self._sent(OBJECTS_KNOWN, b"")
        for size in (BLOCK_BYTES, *_SMALLER):
            if self._sent(OBJECTS_KNOWN, bytes(size + _BESIDE)) == before:
                return size
        least = _SMALLER[-1] + _BESIDE
        raise PrivacyError(
            "Ray is set up to send even small arguments through its object store, which other "
            "processes can read and which may be written to disk, so nothing private was sent. "
            "Leave max_direct_call_object_size and task_rpc_inlined_bytes_limit unset (in "
            "ray.init(_system_config=...) and in the environment, where their names begin with "
            f"RAY_), or set both to {least} or more."
        )

    def blocks_of(self, raw: memoryview) -> Iterator[bytes]:
        """A vector's bytes in blocks that are each small enough to travel inside a call.

        Raises:
            PrivacyError: If Ray sends even small blocks through its object store.
            VaultError: If the host is gone.
        """
        size = self.block_bytes
        return (bytes(raw[start : start + size]) for start in range(0, len(raw), size))

    def deliver(
        self, owner: str, vector: Array, take: Callable[[Payload], T | None], beside: int = 0
    ) -> T:
        """Brings a vector to the host, and tells it to take it.

        Args:
            owner: Whose it is; a host drops what was begun for an owner that has failed.
            vector: Any length; what one call carries goes with the call that takes it.
            take: The call that takes the parcel; None says that the host has not all of it.
            beside: Bytes of arrays that this call carries besides.

        Returns:
            What ``take`` returns.

        Raises:
            PrivacyError: If Ray sends even small blocks through its object store.
            VaultError: If the host is gone, or lost the vector again and again.
        """
        raw = np.ascontiguousarray(vector, dtype=np.float64).data.cast("B")
        for _ in range(TRIES):
            if len(raw) + beside <= self.block_bytes:
                parcel: Payload | None = bytes(raw)
            else:
                parcel = self._uploaded(owner, raw)
            taken = None if parcel is None else take(parcel)
            if taken is not None:
                return taken
        raise VaultError(
            "A vector did not reach the vault's host: the host was restarted, or the trial "
            "stood still for too long, again and again. Nothing of it was stored: let the trial "
            "be retried (max_failures)."
        )

    def _uploaded(self, owner: str, raw: memoryview) -> str | None:
        """The name of a complete upload, new each time; None if the host has lost some of it."""
        upload = uuid.uuid4().hex
        while wait := self._sent("turn", owner, upload, len(raw), self.block_bytes):
            time.sleep(wait)
        under_way: deque[Callable[[], Reply]] = deque()
        for index, block in enumerate(self.blocks_of(raw)):
            if len(under_way) * self.block_bytes >= WINDOW_BYTES and not self._kept(under_way):
                return None
            under_way.append(self._begun("stage", upload, index, block))
        while under_way:
            if not self._kept(under_way):
                return None
        return upload

    def _kept(self, under_way: deque[Callable[[], Reply]]) -> bool:
        """Checks whether the host has kept the block that was sent longest ago."""
        return bool(self._result(under_way.popleft()()))

    def _begun(self, *args: Any) -> Callable[[], Reply]:
        if isinstance(self._send, Pipelined):
            return self._send.begin(*args)
        return functools.partial(self._send, *args)

    def call(self, operation: str, *args: Any) -> Any:
        """The result of an operation.

        Raises:
            VaultError: If the vault is gone or refuses.
            PrivacyError: If the engine refuses, or Ray would send even a name through its store.
            ValueError: If what was sent is not usable.
        """
        self._check_inlining()
        return self._sent(operation, *args)

    def _check_inlining(self) -> None:
        _ = self.block_bytes  # raises unless small arguments travel inside calls

    def _sent(self, operation: str, *args: Any) -> Any:
        return self._result(self._send(operation, *args))

    @staticmethod
    def _result(reply: Reply) -> Any:
        error, result = reply
        if error is not None:
            raise OWN_ERRORS[error[0]](error[1])
        return result


_KNOWN: dict[str, Any] = {}


def begun_key(name: str) -> bytes:
    """Under which key the cluster remembers that a vault in memory has begun."""
    return f"begun/{name}".encode()


@dataclass(frozen=True)
class TrialSender:
    """A trial's way to the host that the driver started, for a :class:`Channel`.

    Attributes:
        name: Of the host's actor.
        gone: What is said where it is not.
        watched: Whether a search ends the experiment if it lay in memory and is gone: trials that
            see it first wait for that, so that each of their retries has no error of its own.
    """

    name: str
    gone: Gone
    watched: bool = False

    def __call__(self, *args: Any) -> Reply:
        """Sends a call, to another host if this one ends, and waits for its reply.

        Raises:
            VaultError: If there is no host, or no longer.
            PrivacyError: If it does not answer.
        """
        for pause in _pauses():
            try:
                return self._answer(_actor_of_trial(self.name, self.gone).call.remote(*args))
            except ActorUnavailableError:  # out of reach, or being started again: Ray will know
                pass
            except RayActorError:
                self._forget()
            time.sleep(pause)  # the driver starts another host over the database
        raise VaultError(
            "The vault's host ended, and the driver did not begin another one in time. What the "
            "database holds is safe: let the trial be retried (max_failures)."
        )

    def _forget(self) -> None:
        """Looks for the actor anew.

        Raises:
            VaultError: If it held its vault in memory.
        """
        _KNOWN.pop(self.name, None)
        if self.name.startswith("memory/"):
            if self.watched and _in_trial():
                time.sleep(GRACE)
            raise VaultError(self.gone.lost) from None

    def begin(self, *args: Any) -> Callable[[], Reply]:
        """As :class:`Pipelined`; what a host that ended did not answer is sent to the next one."""
        try:
            reply = _actor_of_trial(self.name, self.gone).call.remote(*args)
        except RayActorError:
            return functools.partial(self, *args)

        def answer() -> Reply:
            with suppress(RayActorError):
                return self._answer(reply)
            return self(*args)

        return answer

    @staticmethod
    def _answer(reply: Any) -> Reply:
        try:
            return ray.get(reply)  # type: ignore[no-any-return]
        except RayActorError:
            raise
        except RayError as error:
            raise PrivacyError(
                f"The vault's host did not answer ({type(error).__name__})."
            ) from None


def _pauses() -> Iterator[float]:
    """Seconds to wait before each further attempt, :data:`_PATIENCE` in all."""
    end, pause = time.monotonic() + _PATIENCE, 0.1
    while time.monotonic() < end:
        yield pause
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def _in_trial() -> bool:
    """Checks whether this process is a Ray worker: no other process ends a driver's run."""
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


_SEEN: set[str] = set()


def _actor_of_trial(name: str, gone: Gone) -> Any:
    """The host's actor.

    Raises:
        RayActorError: If it was there once, and is not now.
        VaultError: If there never was one.
    """
    try:
        if name not in _KNOWN:
            _KNOWN[name] = ray.get_actor(name, namespace=NAMESPACE)
            _SEEN.add(name)
        return _KNOWN[name]
    except (ValueError, RayError):
        pass
    if name in _SEEN or kv._internal_kv_exists(begun_key(name), namespace=KV):
        raise RayActorError
    raise VaultError(gone.absent)


# Vectors ----------------------------------------------------------------------------------------


def objects_known(_sent: bytes) -> int:
    """Counts how many objects of Ray's store this process knows, while it holds what it was sent.

    One more than without tells that what it was sent came through the store. The settings do not
    tell: they come from the environment of several processes and from the cluster, and new ones
    may be added.

    Raises:
        PrivacyError: If this version of Ray does not tell.
    """
    worker = ray._private.worker.global_worker
    if not worker.connected:
        return 0
    try:
        return len(worker.core_worker.get_all_reference_counts())
    except AttributeError:
        raise PrivacyError(
            "This version of Ray does not tell which objects a process knows, so it cannot be "
            "seen whether losses stay out of its object store. Use a version of Ray with which "
            "this package was tested: see its requirement ray[tune]."
        ) from None


@dataclass(frozen=True)
class Entry:
    """What a trial is told when it starts."""

    metric: str
    choices: bytes
    value: float | None
    x: Array | None
    public: tuple[str, ...]


class LossChannel(Channel):
    """A trial's channel, which also takes a vector of losses."""

    def tell(self, trial: str, x: Array, losses: Array, index: str | None = None) -> float:
        """Sends one value a record and returns what may be published of them."""

        def take(parcel: Payload) -> float | None:
            return self.call("commit", trial, parcel, x, index)  # type: ignore[no-any-return]

        return float(self.deliver(trial, losses, take, x.nbytes))


LOSSES = Gone(
    lost=(
        "The vault of this run is gone, and with it the ledger: it lay in the memory of a Ray "
        "actor, which ended with its driver or was killed. Nothing more can be released for this "
        "run; what it has published stays covered by its declared mu. Start a new run with "
        "another search object (on the same records its mu adds to this one's: squares add up), "
        "and give it a database to survive that: vault='sqlite:////private/folder/vault.db' or "
        "'env:NAME_OF_A_VARIABLE_WITH_A_POSTGRESQL_URL'."
    ),
    absent=(
        "No vault is alive for the search that made this private trainable. Either it is gone (a "
        "vault in memory ends with its driver; then nothing more can be released), or the "
        "trainable was made by another search than the one that suggests: after a restore, take "
        "search = DPGIBOSearch.from_experiment(path) and search.private(trainable), or give both "
        "searches the same vault= and run_name=."
    ),
)
"""What is said of a vault with losses."""


UNWATCHED = (
    "Nobody compares what this experiment shows with the ledger, so the trial was not run. Give "
    "the very trainable that private_trainable returned its callback: "
    "tune.RunConfig(callbacks=[private.callback]), or callbacks=[private.callback] of tune.run. "
    "An experiment that is restored has the callback that it began with, and goes on with the "
    "ledger of that one only: give Tuner.restore the same trainable, or in a new process "
    "private_trainable(..., vault=, run_name=) with the first one's vault and name. Nothing was "
    "evaluated or charged."
)
"""What is said to a trial whose results nobody of ours sees."""

MEANS = Gone(lost=LOSSES.lost, absent=UNWATCHED)
"""What is said of a vault whose searcher is not ours: its host begins with the callback."""


def loss_channel(name: str, gone: Gone = LOSSES) -> LossChannel:
    """A trial's channel to the vault that the driver started; see :class:`TrialSender`."""
    return LossChannel(TrialSender(name, gone, watched=True))
