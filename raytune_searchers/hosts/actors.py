"""The driver's way to a host: the Ray actor of one run, and who may begin, keep and end it.

A driver starts the actor, on its own node. A worker never does: the actor would end with that
worker.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import Any, NoReturn

import ray
import ray.cloudpickle as cloudpickle
import ray.experimental.internal_kv as kv
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from privbo_plugins.errors import SET_BACK, UtilityWarning, VaultError, warn
from privbo_plugins.privacy.source import NoiseSource
from raytune_searchers._channel import KV, NAMESPACE, Channel, HostActor, begun_key
from raytune_searchers.hosts.base import WARNINGS, Host, Settings

_TRIES = 5


def furthest(seen: tuple[int, str], head: tuple[int, str]) -> tuple[int, str]:
    """The head, if it goes on from what was seen: the chain only grows.

    Raises:
        VaultError: If it does not: an older backup of the vault was restored meanwhile.
    """
    if head[0] < seen[0] or (head[0] == seen[0] and head != seen):
        raise VaultError(SET_BACK)
    return head


def in_worker() -> bool:
    """Checks whether this process is one of Ray's own, which must not begin a host."""
    mode = ray.get_runtime_context().worker.mode if ray.is_initialized() else None
    return bool(mode == ray.WORKER_MODE)


class ActorHandle:
    """A process's hold of a host, which must never be pickled.

    The actor of a database ends with the searchers of its run in the process that began it. One
    that holds its vault in memory is the only ledger of its run: whoever restores the run from its
    folder finds it again, so the process keeps it (:data:`_KEPT`) until it is closed.
    """

    def __init__(
        self, name: str, kind: type[Host[Any]], may_begin: bool, noise: NoiseSource | None
    ) -> None:
        self.name, self.kind, self.may_begin, self.noise = name, kind, may_begin, noise
        self.actor: Any = None
        self.probe: Any = None
        self.kept = False
        self.lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Checks whether a vault in memory that this process kept has ended."""
        return self.kept and _kept(self.name) is None

    def began(self, actor: Any, *, durable: bool) -> None:
        """Takes the actor that this process has begun.

        Warns:
            UtilityWarning: If many are kept that no searcher of this process knows any more.
        """
        self.actor = actor
        self.may_begin = False  # not before: whoever is refused must not find another's instead
        if durable:
            return
        kv._internal_kv_put(begun_key(self.name), b"", overwrite=True, namespace=KV)
        if self.kind.kept:
            _KEPT[self.name], self.kept = (actor, _this_ray()), True
            _warn_of_forgotten()

    def end(self) -> None:
        """Ends the actor, if this process holds it."""
        with self.lock:
            _KEPT.pop(self.name, None)
            if self.actor is not None and ray.is_initialized():
                with suppress(RayError, ValueError):  # it ended with an earlier Ray
                    ray.kill(self.actor)
            self.actor = None

    def lost(self) -> NoReturn:
        """Raises what is said of a vault that is gone."""
        raise VaultError(self.kind.missing.lost)


_KEPT: dict[str, tuple[Any, tuple[str, str]]] = {}
"""Vaults in memory that this process has begun, by name, until they are closed: the actor, which
this handle keeps alive, and the Ray in which it was begun, with which it ends."""

_ANCHORS: weakref.WeakValueDictionary[str, ActorHandle] = weakref.WeakValueDictionary()
"""One for all searchers of a run, as long as there are any."""

_MANY = 8
"""Vaults in memory without a searcher, from which on the user is told; about 150 MB each."""


def _this_ray() -> tuple[str, str]:
    """The node and the job of this driver: after ``ray.shutdown`` at least one is another."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def _kept(name: str) -> Any:
    """The actor that this process keeps under a name, unless its Ray has ended."""
    actor, begun_in = _KEPT.get(name, (None, None))
    if actor is None:
        return None
    if ray.is_initialized() and begun_in == _this_ray():
        return actor
    del _KEPT[name]
    return None


def forgotten() -> list[str]:
    """Names of the vaults in memory that are alive and that no searcher here knows any more."""
    return [name for name in list(_KEPT) if name not in _ANCHORS and _kept(name) is not None]


def _warn_of_forgotten() -> None:
    n = len(forgotten())
    if n and n % _MANY == 0:
        warn(
            f"{n} vaults in memory are alive whose searches are gone, each in a process of its "
            "own. They are kept, because Tuner.restore and from_experiment may come back to them. "
            "Call search.close() when a run is over (of an earlier one: "
            "type(search).from_experiment(path).close()), or ray.shutdown() to end all.",
            UtilityWarning,
        )


def anchor(
    name: str, kind: type[Host[Any]], *, may_begin: bool = False, noise: NoiseSource | None = None
) -> ActorHandle:
    """This process's anchor of a run, made on first use."""
    found = _ANCHORS.get(name)
    if found is None or found.over:
        found = _ANCHORS[name] = ActorHandle(name, kind, may_begin, noise)
        found.actor = _kept(name)
        found.kept = found.actor is not None
        found.may_begin = may_begin and not found.kept
    return found


def connect(
    own: ActorHandle, settings: Settings, url: str | None
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
        channel = Channel(own.name, own.kind(settings, url).call)
    else:
        channel = Channel(own.name, lambda *args: _send_from_driver(own, settings, url, args))
    try:
        vault_id, reasons = channel.call("join", settings)
        for kind, text in channel.call("told_warnings"):
            warn(text, WARNINGS[kind])
        if settings.vault_id not in (None, vault_id):
            own.lost()
    except VaultError:
        if url is not None:
            own.end()  # another database may stand behind the handle next time
        raise
    return channel, vault_id, reasons


def _send_from_driver(
    own: ActorHandle, settings: Settings, url: str | None, args: tuple[Any, ...]
) -> Any:
    """Starts the host where that is allowed.

    A vault in memory is started once, by the process that made the searcher, and never again: a
    second one would have an empty ledger. A vault in a database may be opened by anyone.
    """
    for tries in range(_TRIES if ray.is_initialized() else 0):
        actor = actor_of(own, url, settings)
        try:
            return ray.get(actor.call.remote(*args))
        except Exception as error:  # Ray's errors, and what handles of an ended Ray raise
            if url is not None:
                own.actor = None  # the database holds everything: another host takes its place
            elif not isinstance(error, ActorUnavailableError):
                _KEPT.pop(own.name, None)
                break
            time.sleep(0.2 * 2**tries)
    own.lost()


def actor_of(own: ActorHandle, url: str | None, settings: Settings, **options: Any) -> Any:
    """A host's actor, begun where that is allowed: in memory once, by its maker.

    Args:
        own: The process's hold of the host.
        url: Its database; None for a vault in memory.
        settings: Of the host.
        options: Ray's.

    Raises:
        VaultError: If it is gone, or another process has begun one of its name.
    """
    with own.lock:
        if own.actor is not None:
            return own.actor
        if url is None and not own.may_begin:
            return _found_actor(own)
        try:
            actor = _begin_actor(own, url, settings, **options)
        except ValueError:
            raise VaultError(
                f"A vault for the run {settings.run!r} is alive in this cluster, started by "
                "another process. Give this search another run_name=, or a vault in a database "
                "if both shall share one ledger."
            ) from None
        own.began(actor, durable=url is not None)
        return own.actor


def _begin_actor(own: ActorHandle, url: str | None, settings: Settings, **more: Any) -> Any:
    """Begins a host's actor: on which node, and whether it is restarted when its process ends.

    Args:
        own: The process's hold of the host.
        url: Its database; None for a vault in memory.
        settings: Of the host.
        more: Further options of Ray's.
    """
    durable = url is not None
    moves = durable and not str(url).startswith("sqlite")  # a file lies on the driver's node
    options = {
        "name": own.name,
        "namespace": NAMESPACE,
        "get_if_exists": durable,
        "num_cpus": 0,
        "max_restarts": -1 if durable else 0,  # a restarted host without a database has no ledger
        "max_task_retries": -1 if durable else 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(_this_ray()[0], soft=moves),
    }
    if moves:
        options["memory"] = 1  # Ray places what asks for nothing anywhere at once
    host = cloudpickle.dumps(own.kind)
    return ray.remote(HostActor).options(**(options | more)).remote(url, host, settings, own.noise)


def check_lives(own: ActorHandle) -> None:
    """For a vault in memory that has begun: that its actor has not ended meanwhile.

    A handle outlives its actor, and so does its name where it was begun: a call must show it. It
    is not waited for, because the host may be busy; a later look finds its answer.

    Raises:
        VaultError: If it has.
    """
    if own.may_begin:
        return
    try:
        if own.probe is None:
            actor = own.actor if own.actor is not None else _found_actor(own)
            own.probe = actor.call.remote("public_key")
        if ray.wait([own.probe], timeout=0)[0]:
            probe, own.probe = own.probe, None
            ray.get(probe)
    except ActorUnavailableError:
        pass
    except Exception:  # Ray's errors, and what handles of an ended Ray raise
        own.lost()


def _found_actor(own: ActorHandle) -> Any:
    if ray.is_initialized():
        try:
            return ray.get_actor(own.name, namespace=NAMESPACE)
        except (ValueError, RayError):
            pass
    own.lost()
