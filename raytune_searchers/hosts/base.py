"""A host of a run's private state: one Ray actor, and the driver's way to it.

What a host holds stays in its process. Nothing it raises reaches Ray: a reply carries the name
and the text of an engine error, or no more than a type. The actor is started by a driver, on the
driver's own node, and never by a worker: it would end with that worker.
"""

from __future__ import annotations

import inspect
import json
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, Protocol

import ray
import ray.cloudpickle as cloudpickle
import ray.experimental.internal_kv as kv
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from privbo_plugins.errors import SET_BACK, PrivacyWarning, UtilityWarning, VaultError
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.redaction import own_error
from privbo_plugins.store.run import Head, Run
from privbo_plugins.store.vault import Vault, open_vault
from raytune_searchers._channel import (
    NAMESPACE,
    Channel,
    Gone,
    HostActor,
    Reply,
    objects_known,
)

_TRIES = 5

_KV = b"privbo"

_WARNINGS: dict[str, type[Warning]] = {
    "PrivacyWarning": PrivacyWarning,
    "UtilityWarning": UtilityWarning,
}

UNSEEN = "results passed by unseen while the vault failed: give them to guarantee"


class Settings(Protocol):
    """What every host must know of its run."""

    @property
    def run(self) -> str:
        """Name of the run."""
        ...

    @property
    def vault_id(self) -> str | None:
        """Identity of the vault, if it must exist already."""
        ...


class Host:
    """A vault behind one method that never raises; its public methods are its operations.

    Args:
        settings: The run.
        url: Database of the vault; None keeps it in this process.
        noise: Test injection.
    """

    GONE: ClassVar[Gone]
    """What is said where it is not."""

    KIND: ClassVar[str] = ""
    """Keeps the actors of one run name in one database apart."""

    CHANNEL: ClassVar[type[Channel]] = Channel

    def __init__(self, settings: Any, url: str | None, noise: NoiseSource | None) -> None:
        self._settings, self._url, self._noise = settings, url, noise
        self._warnings: list[tuple[str, str]] = []

    def call(self, operation: str, *args: Any) -> Reply:
        """Carries out one operation: ((error's name, text) or None, result)."""
        method = self._operation(operation)
        if method is None:
            return ("ValueError", "The vault's host knows no operation of this name."), None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reply = self._safely(method, args)
        for warning in caught:
            if warning.category.__name__ in _WARNINGS:
                self._warnings.append((warning.category.__name__, str(warning.message)))
        return reply

    def _operation(self, name: Any) -> Callable[..., Any] | None:
        """A public method by its name: a class attribute may be callable too, and is none."""
        if not isinstance(name, str) or name.startswith("_") or name == "call":
            return None
        found = getattr(type(self), name, None)
        return found if inspect.isfunction(found) else None

    def _safely(self, method: Callable[..., Any], args: tuple[Any, ...]) -> Reply:
        try:
            return None, method(self, *args)
        except Exception as error:
            return own_error(error), None

    def _open_vault(self) -> Vault:
        known = self._settings.vault_id
        vault = open_vault(self._url, create=known is None)
        if known not in (None, vault.vault_id):
            raise VaultError(self.GONE.lost)
        return vault

    @staticmethod
    def _remember(run: Run) -> None:
        """Has the cluster remember how far the run came, whichever process is its host.

        Raises:
            VaultError: If an older backup of the vault was restored since another host of this
                cluster held it.
        """
        if kv._internal_kv_initialized() and not run.vault.in_memory:
            run.shown_by(_Cluster(f"{run.vault.vault_id}/{run.run_id}"))

    def objects_known(self, sent: bytes) -> int:
        """How many objects of Ray's store this process knows, while it holds what it was sent."""
        return objects_known(sent)

    def told_warnings(self) -> list[tuple[str, str]]:
        """Warnings since the last call, for the driver to issue."""
        told, self._warnings = self._warnings, []
        return told


class _Cluster:
    """The witness of a run in the cluster's own memory, which ends with the cluster.

    Args:
        name: Of the run.
    """

    def __init__(self, name: str) -> None:
        self._head = f"head/{name}".encode()
        self._place = f"place/{name}/".encode()

    def head(self) -> Head:
        """The furthest head that any host of the run has shown."""
        held = kv._internal_kv_get(self._head, namespace=_KV)
        return Head() if held is None else Head(*json.loads(held))

    def places(self) -> list[str]:
        """Where the vaults of all these hosts have lain."""
        held = kv._internal_kv_list(self._place, namespace=_KV)
        return [key.decode().removeprefix(self._place.decode()) for key in held]

    def show(self, head: Head) -> None:
        """Remembers a head."""
        told = json.dumps([head.n, head.digest]).encode()
        kv._internal_kv_put(self._head, told, overwrite=True, namespace=_KV)

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        kv._internal_kv_put(self._place + place.encode(), b"", overwrite=True, namespace=_KV)


# The driver's side ----------------------------------------------------------------------------


def furthest(seen: tuple[int, str], head: tuple[int, str]) -> tuple[int, str]:
    """The head, if it goes on from what was seen: the chain only grows.

    Raises:
        VaultError: If it does not: an older backup of the vault was restored meanwhile.
    """
    if head[0] < seen[0] or (head[0] == seen[0] and head != seen):
        raise VaultError(SET_BACK)
    return head


def in_worker() -> bool:
    """Whether this process is one of Ray's own, which must not begin a host."""
    mode = ray.get_runtime_context().worker.mode if ray.is_initialized() else None
    return bool(mode == ray.WORKER_MODE)


class Anchor:
    """What keeps an embedded vault alive in the driver, and must never be pickled.

    The actor lives as long as one searcher of its run lives in the process that started it.
    """

    def __init__(
        self, name: str, host: type[Host], may_begin: bool, noise: NoiseSource | None
    ) -> None:
        self.name, self.host, self.may_begin, self.noise = name, host, may_begin, noise
        self.actor: Any = None
        self.lock = threading.Lock()

    def end(self) -> None:
        """Ends the actor, if this process holds it."""
        with self.lock:
            if self.actor is not None:
                ray.kill(self.actor)
                self.actor = None

    def lost(self) -> NoReturn:
        """Raises what is said of a vault that is gone."""
        raise VaultError(self.host.GONE.lost)


_ANCHORS: weakref.WeakValueDictionary[str, Anchor] = weakref.WeakValueDictionary()


def anchor(
    name: str, host: type[Host], *, may_begin: bool = False, noise: NoiseSource | None = None
) -> Anchor:
    """This process's anchor of a run, made on first use."""
    found = _ANCHORS.get(name)
    if found is None:
        found = _ANCHORS[name] = Anchor(name, host, may_begin, noise)
    return found


def actor_name(host: type[Host], vault_id: str | None, run_name: str) -> str:
    """Under which name a run's host is found; "memory/" starts those without a database."""
    return f"{'memory' if vault_id is None else vault_id[:8]}/{host.KIND}{run_name}"


def connect(
    own: Anchor, settings: Settings, url: str | None
) -> tuple[Channel, str, tuple[str, ...]]:
    """A driver's channel to the host of its run, once both agree what run that is.

    Args:
        own: The process's anchor of the run.
        settings: The run.
        url: Its database; None for a vault in memory.

    Returns:
        The channel, the identity of the vault, and why nothing may be claimed, if so already.

    Raises:
        VaultError: If the vault is gone.
        ValueError: If the settings are not those of the run.
    """
    if url is not None and not ray.is_initialized():  # for reading a finished run
        channel = own.host.CHANNEL(own.host(settings, url, None).call)
    else:
        channel = own.host.CHANNEL(lambda *args: _send_from_driver(own, settings, url, args))
    try:
        vault_id, reasons = channel.call("join", settings)
        if settings.vault_id not in (None, vault_id):
            own.lost()
    except VaultError:
        if url is not None:
            own.end()  # another database may stand behind the handle next time
        raise
    return channel, vault_id, reasons


def _send_from_driver(
    own: Anchor, settings: Settings, url: str | None, args: tuple[Any, ...]
) -> Any:
    """Starts the host where that is allowed.

    A vault in memory is started once, by the process that made the searcher, and never again: a
    second one would have an empty ledger. A vault in a database may be opened by anyone.
    """
    for tries in range(_TRIES if ray.is_initialized() else 0):
        actor = _driver_actor(own, settings, url)
        try:
            return ray.get(actor.call.remote(*args))
        except Exception:  # Ray's errors, and what handles of an ended Ray raise
            if url is None:
                break
            own.actor = None  # the database holds everything: another host takes its place
            time.sleep(0.2 * 2**tries)
    own.lost()


def _driver_actor(own: Anchor, settings: Settings, url: str | None) -> Any:
    with own.lock:
        if own.actor is not None:
            return own.actor
        if url is None and not own.may_begin:
            return _found_actor(own)
        own.actor = _begin_actor(own, settings, url)
        own.may_begin = False  # not before: whoever is refused must not find another's instead
        return own.actor


def _begin_actor(own: Anchor, settings: Settings, url: str | None) -> Any:
    here = ray.get_runtime_context().get_node_id()
    durable = url is not None
    remote = ray.remote(HostActor).options(
        name=own.name,
        namespace=NAMESPACE,
        get_if_exists=durable,
        num_cpus=0,
        max_restarts=-1 if durable else 0,  # a restarted host without a database has no ledger
        max_task_retries=-1 if durable else 0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    try:
        return remote.remote(cloudpickle.dumps(own.host), settings, url, own.noise)
    except ValueError:
        raise VaultError(
            f"A vault for the run {settings.run!r} is alive in this cluster, started by another "
            "process. Give this search another run_name=, or a vault in a database if both shall "
            "share one ledger."
        ) from None


def check_alive(own: Anchor) -> None:
    """For a vault in memory: that it may still be started here, or lives.

    Raises:
        VaultError: If it is gone.
    """
    if own.actor is None and not own.may_begin:
        _found_actor(own)


def _found_actor(own: Anchor) -> Any:
    if ray.is_initialized():
        try:
            return ray.get_actor(own.name, namespace=NAMESPACE)
        except (ValueError, RayError):
            pass
    own.lost()
