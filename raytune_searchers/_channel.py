"""A trial's way to the actor that holds a run's private state.

This is what the process of a trial imports, so it needs Ray and numpy and nothing that draws,
accounts or models. What a host raises never reaches Ray: a reply carries the name and the text of
an engine error, or no more than a type. Whatever is private travels sealed
(:mod:`privbo_plugins.sealing`): Ray keeps larger arguments in its object store, which is shared
memory that other processes can read and that may be spilled to disk. The host's key comes from
the host itself, whose process alone can open what was sealed to it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
import ray.experimental.internal_kv as kv
from numpy.typing import NDArray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from privbo_plugins.errors import ObjectiveFailedError, PrivacyError, VaultError
from privbo_plugins.sanitize import OWN_ERRORS
from privbo_plugins.sealing import AnotherKeyError, Message
from privbo_plugins.shown import DRAW

Array = NDArray[np.float64]

NAMESPACE = "privbo"

KV = b"privbo"
"""Where the cluster's own memory keeps what is ours."""

SHORT_RUN = 50
"""Of so many trials a search's saved state keeps everything; of more, where the run stands."""

TRIES = 5
"""Times that a sealed message is sent to a host that was restarted under way."""

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

_ERRORS = OWN_ERRORS | {kind.__name__: kind for kind in (AnotherKeyError, ObjectiveFailedError)}


@dataclass(frozen=True)
class MissingHost:
    """The texts of errors where a host should be and is not.

    Attributes:
        lost: Of a host that has ended, and with it what it held in memory.
        absent: To a trial that finds no host of its run.
        adds: What another run on the same data costs.
    """

    lost: str
    absent: str
    adds: str = ""


class HostActor:
    """What Ray makes an actor of: whoever finds an actor imports its class, and a host needs much.

    Args:
        url: Its database. A first argument that is shorter than Ray's limit travels in the
            message that begins the actor; one behind others lies in Ray's object store once they
            fill that message.
        host: The pickled class of the host, which only the actor opens.
        settings: Of the host.
        noise: Test injection.
    """

    def __init__(self, url: str | None, host: bytes, settings: Any, noise: Any) -> None:
        self._host = cloudpickle.loads(host)(settings, url, noise)

    def call(self, operation: str, *args: Any) -> Reply:
        """As the host's own."""
        reply: Reply = self._host.call(operation, *args)
        return reply


def context_of(name: str, operation: str, owner: str) -> str:
    """What a message is sealed for: one host, one operation, one trial or agent."""
    return f"{name} {operation} {owner}"


class Channel:
    """The way to a host, from the driver or from a trial.

    Args:
        name: Of the host's actor.
        send: From the arguments of :meth:`Host.call` to what it returns.
    """

    def __init__(self, name: str, send: Callable[..., Reply]) -> None:
        self._name, self._send = name, send

    def call(self, operation: str, *args: Any) -> Any:
        """The result of an operation; its arguments may lie where other processes read them.

        Raises:
            VaultError: If the vault is gone or refuses.
            PrivacyError: If the engine refuses.
            ValueError: If what was sent is not usable.
        """
        error, result = self._send(operation, *args)
        if error is not None:
            raise _ERRORS[error[0]](error[1])
        return result

    def call_sealed(self, operation: str, owner: str, private: Any, *public: Any) -> Any:
        """The result of an operation on what only the host may read.

        A host that was begun again has another key: it is asked for that, and the message sent
        again. What it had released for the first one it replays.

        Args:
            operation: Its name.
            owner: The trial or agent whose values they are.
            private: The values.
            public: Further arguments.

        Raises:
            VaultError: If the vault is gone or refuses, or was restarted again and again.
            PrivacyError: If the engine refuses.
            ValueError: If what was sent is not usable.
        """
        context = context_of(self._name, operation, owner)
        for _ in range(TRIES):
            message = Message.to(self.call("public_key"), private, context)
            with suppress(AnotherKeyError):
                return self.call(operation, owner, message, *public)
        raise VaultError(
            "A sealed message did not reach the vault's host: the host was restarted again and "
            "again. Nothing of it was stored: let the trial be retried (max_failures)."
        )


_KNOWN: dict[str, Any] = {}
"""Hosts' actors that this process has found, by name; None once one has ended."""


def begun_key(name: str) -> bytes:
    """Under which key the cluster remembers that a vault in memory has begun."""
    return f"begun/{name}".encode()


def _send_from_trial(name: str, missing: MissingHost, watched: bool, *args: Any) -> Reply:
    """Sends a call to the host that the driver started, or to another one if that ends.

    Args:
        name: Of the host's actor.
        missing: Texts of the errors where it is not.
        watched: Whether a search ends the experiment if it lay in memory and is gone: trials that
            see it first wait for that, so that each of their retries has no error of its own.
        args: The call.

    Raises:
        VaultError: If there is no host, or no longer.
        PrivacyError: If it does not answer.
    """
    for pause in _pauses():
        try:
            return ray.get(_actor_of_trial(name, missing).call.remote(*args))  # type: ignore[no-any-return]
        except ActorUnavailableError:  # out of reach, or being started again: Ray will know
            pass
        except RayActorError:
            _KNOWN[name] = None
            if name.startswith("memory/"):
                _let_the_search_end(watched)
                raise VaultError(missing.lost) from None
        except RayError as error:
            told = f"The vault's host did not answer ({type(error).__name__})."
            raise PrivacyError(told) from None
        time.sleep(pause)  # the driver starts another host over the database
    raise VaultError(
        "The vault's host ended, and the driver did not begin another one in time. What the "
        "database holds is safe: let the trial be retried (max_failures)."
    )


def _pauses() -> Iterator[float]:
    """Seconds to wait before each further attempt, :data:`_PATIENCE` in all."""
    end, pause = time.monotonic() + _PATIENCE, 0.1
    while time.monotonic() < end:
        yield pause
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def _let_the_search_end(watched: bool) -> None:
    """Waits in a Ray worker: no other process ends a driver's run."""
    if watched and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        time.sleep(GRACE)


def _actor_of_trial(name: str, missing: MissingHost) -> Any:
    """The host's actor.

    Raises:
        RayActorError: If it was there once, and is not now.
        VaultError: If there never was one.
    """
    try:
        if _KNOWN.get(name) is None:
            _KNOWN[name] = ray.get_actor(name, namespace=NAMESPACE)
        return _KNOWN[name]
    except (ValueError, RayError):
        pass
    if name in _KNOWN or kv._internal_kv_exists(begun_key(name), namespace=KV):
        raise RayActorError
    raise VaultError(missing.absent)


RELEASE = "privbo_release"
"""Under which name a trial shows its noisy draw, where the metric is an estimate."""

VOUCH = "report_public({})"
"""The operation that a trial is known to have declared public, by the name that it reports."""


def operation_of(name: str) -> str:
    """The operation that puts something under a name of a result."""
    return DRAW if name == RELEASE else VOUCH.format(name)


@dataclass(frozen=True)
class Entry:
    """The host's answer to a trial that starts.

    Attributes:
        metric: Under which name the trial reports.
        value: What was released of it before a crash, if anything.
        public: What it declared public before.
        details: Of losses the pickled space and the trial's point; of a reward the mechanism,
            what NaN counts as, and a test's noise, which is in no pickle of a search or trainable.
        beside: What else was released of it then, by the name that shows it.
    """

    metric: str
    value: float | None
    public: tuple[str, ...]
    details: tuple[Any, ...]
    beside: Mapping[str, float] = field(default_factory=dict)


IN_A_DATABASE = (
    "vault='sqlite:////private/folder/vault.db' or 'env:NAME_OF_A_VARIABLE_WITH_A_POSTGRESQL_URL'"
)

LOST = (
    "{} is gone, and with it the ledger: it lay in the memory of a Ray actor, which ended with "
    "its driver or was killed. Nothing more can be released for this run; what it published stays "
    "as private as it was declared to be. Start a new run with another search object ({}), and "
    "give it a database to survive that: {}."
)

ABSENT = (
    "No vault is alive for this private trainable: its search suggests no trial of this "
    "experiment, or a vault in memory has ended with its driver. Give the Tuner the very search "
    "whose private method made the trainable, TuneConfig(search_alg=search), or call "
    "ldp_trainable in this driver. After a restore, take search = "
    "type(search).from_experiment(path) and search.private(trainable), or give both the "
    "same vault= and run_name=."
)

_RECORDS = "on the same records its mu adds to this one's: squares add up"

LOSSES = MissingHost(
    LOST.format("The vault of this run", _RECORDS, IN_A_DATABASE), ABSENT, _RECORDS
)

_USERS = "the epsilons of users who are asked in both add up"

USERS_LEDGER = MissingHost(
    LOST.format("The vault of this run's users", _USERS, IN_A_DATABASE), ABSENT, _USERS
)

UNWATCHED = (
    "No callback compares what this experiment shows with the ledger, so nothing was evaluated or "
    "charged. Give the very trainable that private_trainable returned its callback: "
    "tune.RunConfig(callbacks=[private.callback]), or callbacks=[private.callback] of tune.run. "
    "A restored experiment goes on with the callback and ledger that it began with: give "
    "Tuner.restore the same trainable, or in a new process private_trainable(..., vault=, "
    "run_name=) with the first one's vault and name."
)
"""The text of the error in a trial whose results no callback compares."""

MEANS = MissingHost(LOSSES.lost, UNWATCHED)
"""Of a vault whose searcher is not this package's: its host begins with the callback."""


def channel_of_trial(name: str, missing: MissingHost = LOSSES, *, watched: bool = True) -> Channel:
    """A trial's channel to the host that the driver started; see :func:`_send_from_trial`."""
    return Channel(name, functools.partial(_send_from_trial, name, missing, watched))
