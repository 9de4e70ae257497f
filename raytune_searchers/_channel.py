"""A trial's way to the actor that holds a run's private state.

This is what the process of a trial imports, so it needs Ray and numpy and nothing that draws,
accounts or models. What a host raises never reaches Ray: a reply carries the name and the text of
an engine error, or no more than a type. Losses travel as direct arguments in blocks of at most
:data:`BLOCK_BYTES`: larger ones would pass through Ray's object store, which is shared memory that
other processes can read and that may be spilled to disk. What travels directly depends on how Ray
is set up, so a channel tries it out before it sends anything that matters.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError

from privbo_plugins.errors import PrivacyError, VaultError
from privbo_plugins.redaction import OWN_ERRORS

Array = NDArray[np.float64]

NAMESPACE = "privbo"

BLOCK_BYTES = 2**16
"""Below Ray's limit of 100 kB for arguments that travel inside the call itself."""

_SMALLER = (2**14, 2**13)
"""Bytes of a block where Ray's limits were lowered; with less, nothing is sent."""

_BESIDE = 2**10
"""Bytes for a call's other arguments, and for what Ray adds to each."""

OBJECTS_KNOWN = "objects_known"
"""Operation that every host offers, see :func:`objects_known`."""

TRIES = 5
"""Times that something is sent to a host that was restarted under way."""

_PATIENCE = 12
"""Times a trial looks for a host that ended: about 25 s in all."""

Reply = tuple[tuple[str, str] | None, Any]
"""((error's name, text) or None, result)."""


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

    def blocks_of(self, vector: Array) -> list[bytes]:
        """A vector in blocks that are each small enough to travel inside a call.

        Raises:
            PrivacyError: If Ray sends even small blocks through its object store.
            VaultError: If the host is gone.
        """
        size = self.block_bytes
        raw = np.ascontiguousarray(vector, dtype=np.float64).tobytes()
        return [raw[start : start + size] for start in range(0, len(raw), size)]

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
        error, result = self._send(operation, *args)
        if error is not None:
            raise OWN_ERRORS[error[0]](error[1])
        return result


_KNOWN: dict[str, Any] = {}


def trial_sender(name: str, gone: Gone) -> Callable[..., Reply]:
    """A trial's way to the host that the driver began, for a :class:`Channel`."""
    return lambda *args: _send_from_trial(name, gone, args)


def _send_from_trial(name: str, gone: Gone, args: tuple[Any, ...]) -> Any:
    for tries in range(_PATIENCE):
        try:
            return ray.get(_actor_of_trial(name, gone).call.remote(*args))
        except RayActorError:
            _KNOWN.pop(name, None)
            if name.startswith("memory/"):
                raise VaultError(gone.lost) from None
            time.sleep(0.1 * 1.5**tries)  # the driver begins another host over the database
        except RayError as error:
            raise PrivacyError(
                f"The vault's host did not answer ({type(error).__name__})."
            ) from None
    raise VaultError(
        "The vault's host ended, and the driver did not begin another one in time. What the "
        "database holds is safe: let the trial be retried (max_failures)."
    )


_SEEN: set[str] = set()


def _actor_of_trial(name: str, gone: Gone) -> Any:
    """The host's actor.

    Raises:
        RayActorError: If it was known to this process before, and is not there now.
        VaultError: If there never was one.
    """
    try:
        if name not in _KNOWN:
            _KNOWN[name] = ray.get_actor(name, namespace=NAMESPACE)
            _SEEN.add(name)
        return _KNOWN[name]
    except (ValueError, RayError):
        pass
    if name in _SEEN:
        raise RayActorError
    raise VaultError(gone.absent)


# Vectors ----------------------------------------------------------------------------------------


def objects_known(_sent: bytes) -> int:
    """How many objects of Ray's store this process knows, while it holds what it was sent.

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
            "seen whether losses stay out of its object store. Use Ray 2.60."
        ) from None


@dataclass(frozen=True)
class Entry:
    """What a trial is told when it begins."""

    metric: str
    choices: bytes
    value: float | None
    x: Array | None
    public: tuple[str, ...]


class LossChannel(Channel):
    """A trial's channel, which also takes a vector of losses."""

    def tell(self, trial: str, x: Array, losses: Array) -> float:
        """Sends one value a record and returns what may be published of them."""
        blocks = self.blocks_of(losses)
        for _ in range(TRIES):  # a host that was restarted in between has lost the blocks
            upload = uuid.uuid4().hex
            for index, block in enumerate(blocks):
                self.call("stage", trial, upload, index, block)
            value = self.call("commit", trial, upload, len(blocks), x)
            if value is not None:
                return float(value)
        raise VaultError("The vault's host was restarted again and again while a trial told it.")


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


def loss_channel(name: str) -> LossChannel:
    """A trial's channel to the vault that the driver began."""
    return LossChannel(trial_sender(name, LOSSES))
