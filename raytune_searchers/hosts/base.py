"""A host of a run's private state: one Ray actor, and the driver's way to it.

What a host holds stays in its process. Nothing it raises reaches Ray: a reply carries the name
and the text of an engine error, or no more than a type. The actor is started by a driver, on the
driver's own node, and never by a worker: it would end with that worker.
"""

from __future__ import annotations

import abc
import functools
import inspect
import json
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, Protocol, TypeVar

import ray
import ray.cloudpickle as cloudpickle
import ray.experimental.internal_kv as kv
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from privbo_plugins.errors import SET_BACK, PrivacyWarning, UtilityWarning, VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sanitize import own_error
from privbo_plugins.sealing import AnotherKeyError, Message, Reader
from privbo_plugins.store.run import NEVER_COMPARED, Run
from privbo_plugins.store.vault import Vault, open_vault
from raytune_searchers._channel import (
    KV,
    NAMESPACE,
    SHORT_RUN,
    Channel,
    HostActor,
    MissingHost,
    Reply,
    begun_key,
    context_of,
)

_TRIES = 5

_WARNINGS: dict[str, type[Warning]] = {
    "PrivacyWarning": PrivacyWarning,
    "UtilityWarning": UtilityWarning,
}

_JOINED_UNSEEN = (
    "a search that had seen nothing of this run joined it: nothing compared its vault, which may "
    "be an older backup, with what earlier experiments have shown"
)

_HOLDS_RELEASES = (
    "The vault holds releases, and {}. Go on from the experiment that has seen them "
    "(Tuner.restore, or type(search).from_experiment(path)), or give its results to guarantee."
)

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

    MISSING: ClassVar[MissingHost]
    """What is said where it is not."""

    KIND: ClassVar[str] = ""
    """Keeps the actors of one run name in one database apart."""

    KEPT: ClassVar[bool] = True
    """Whether what it holds in memory may be come back to after its holder is gone."""

    def __init__(self, settings: Any, url: str | None, noise: NoiseSource | None) -> None:
        self._settings, self._url, self._noise = settings, url, noise
        self._warnings: list[tuple[str, str]] = []
        vault_id = None if url is None else settings.vault_id
        self.name = actor_name(type(self), vault_id, settings.run)
        self._reader = Reader()

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
            told = error if type(error) is AnotherKeyError else own_error(error)
            return (type(told).__name__, str(told)), None

    def public_key(self) -> bytes:
        """The key to which callers seal what this process alone may read; new in each process."""
        return self._reader.public

    def _read(self, message: Message, operation: str, owner: str) -> Any:
        """Opens what was sealed for an operation of this very run and owner."""
        return self._reader.read(message, context_of(self.name, operation, owner))

    def _open_vault(self) -> Vault:
        known = self._settings.vault_id
        vault = open_vault(self._url, create=known is None)
        if known not in (None, vault.vault_id):
            raise VaultError(self.MISSING.lost)
        return vault

    def told_warnings(self) -> list[tuple[str, str]]:
        """Warnings since the last call, for the driver to issue."""
        told, self._warnings = self._warnings, []
        return told


class HoldsRun(Protocol):
    """A session that holds a secret."""

    @property
    def run(self) -> Run:
        """The run in its vault."""
        ...


S = TypeVar("S", bound=HoldsRun)


class RunHost(Host, abc.ABC, Generic[S]):
    """A host of one run: how it is joined, compared and reported, whatever its secret is."""

    FIXED: ClassVar[tuple[str, ...]] = ()
    """Settings that a run keeps."""

    @functools.cached_property
    def _session(self) -> S:
        session = self._opened()
        remember(session.run, self._settings.seen)
        return session

    @abc.abstractmethod
    def _opened(self) -> S:
        """Opens the session that holds the secret."""

    @abc.abstractmethod
    def _guarantee(self, reasons: list[str]) -> Any:
        """What may be claimed, with further reasons to claim nothing."""

    @abc.abstractmethod
    def _done(self) -> int:
        """How many trials or rounds have a release."""

    @abc.abstractmethod
    def _details(self) -> dict[str, Any]:
        """Returns the parts of a report that grow with the run."""

    def _unused(self) -> list[str]:
        """Why nothing may be claimed of a run in which no trial was private."""
        return []

    def join(self, settings: Any) -> tuple[str, tuple[str, ...]]:
        """Identity of the vault, and why nothing may be claimed, if so from the start.

        Raises:
            ValueError: If the driver's settings are not those of the run.
            VaultError: If it has seen more of the run.
        """
        run, own = self._session.run, self._settings
        other = [name for name in self.FIXED if getattr(settings, name) != getattr(own, name)]
        if other:
            raise ValueError(
                f"This run was started with another {' and another '.join(other)}, which cannot "
                "change under way: use the same settings, or another run_name= "
                f"({self.MISSING.adds})."
            )
        run.confirm(LogHead(*settings.seen))
        return run.vault.vault_id, self._guarantee([]).reasons

    def compared(self, trial: str) -> None:
        """As :meth:`Run.mark_compared`."""
        self._session.run.mark_compared(trial)

    def mark_unprotected(self, reason: str) -> None:
        """Records for ever that nothing may be claimed."""
        self._session.run.mark_unprotected(reason)

    def note(self, text: str) -> None:
        """Records a fact that the guarantee reports."""
        self._session.run.note(text)

    def declare_public(self, operation: str, trial: str) -> None:
        """Records what a trial declared public."""
        self._session.run.declare_public(operation, trial)

    def _declared(self, trial: str, value: float | None) -> tuple[str, ...]:
        """Returns the declared outputs of a trial that is not evaluated again."""
        return () if value is None else tuple(sorted(self._session.run.declared_by(trial)))

    def head(self) -> tuple[int, str]:
        """The end of the chain of releases."""
        head = self._session.run.head()
        return head.n, head.digest

    def report(self, unaudited: bool) -> dict[str, Any]:
        """Everything public.

        Args:
            unaudited: Whether a result passed by while the vault did not answer.
        """
        details = self._details()
        return {**self._status_of_page(unaudited), **details}

    def status(self, unaudited: bool) -> dict[str, Any]:
        """The report, of a long run without what grows with it.

        Args:
            unaudited: As for :meth:`report`.
        """
        if self._done() <= SHORT_RUN:
            return self.report(unaudited)
        return {**self._status_of_page(unaudited), "partial": True}

    def _status_of_page(self, unaudited: bool) -> dict[str, Any]:
        head, uncompared = self.head(), self._session.run.uncompared()
        reasons = [UNSEEN] * unaudited + [NEVER_COMPARED] * bool(uncompared)
        reasons = [*self._unused(), *reasons]
        return {
            "guarantee": self._guarantee(reasons),
            "done": self._done(),
            "head": head,
            "uncompared": uncompared,
        }


def remember(run: Run, seen: tuple[int, str] | None = None) -> None:
    """Has the cluster remember how far the run came, whichever process is its host.

    Args:
        run: The run.
        seen: How far the driver has seen the chain of releases; None if it never remembers.

    Raises:
        VaultError: If an older backup of the vault was restored since the driver, or another host
            of this cluster, saw it.

    Warns:
        PrivacyWarning: If neither has seen anything of a run that holds releases.
    """
    known = LogHead(*(seen or ()))
    run.confirm(known)
    if run.vault.in_memory:
        return
    if kv._internal_kv_initialized():
        cluster = _Cluster(f"{run.vault.vault_id}/{run.run_id}")
        known = known if known.n else cluster.head()
        run.guarded_by(cluster)
    if seen is not None and not known.n and run.charged:
        run.note(_JOINED_UNSEEN)
        warnings.warn(_HOLDS_RELEASES.format(_JOINED_UNSEEN), PrivacyWarning, stacklevel=2)


class _Cluster:
    """The guard of a run in the cluster's own memory, which ends with the cluster.

    Args:
        name: Of the run.
    """

    def __init__(self, name: str) -> None:
        self._head = f"head/{name}".encode()
        self._place = f"place/{name}/".encode()

    def head(self) -> LogHead:
        """The furthest head that any host of the run has shown."""
        held = kv._internal_kv_get(self._head, namespace=KV)
        return LogHead() if held is None else LogHead(*json.loads(held))

    def places(self) -> list[str]:
        """Returns the places of the vaults of all these hosts, past ones included."""
        held = kv._internal_kv_list(self._place, namespace=KV)
        return [key.decode().removeprefix(self._place.decode()) for key in held]

    def show(self, head: LogHead) -> None:
        """Remembers a head."""
        told = json.dumps([head.n, head.digest]).encode()
        kv._internal_kv_put(self._head, told, overwrite=True, namespace=KV)

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        kv._internal_kv_put(self._place + place.encode(), b"", overwrite=True, namespace=KV)


class Watch:
    """Trials of which a driver compares what they show, in the cluster's own memory.

    A host that takes another's place finds them there; a driver that takes another's place is
    another job, so what the earlier one has watched counts for nothing.

    Args:
        name: Of the run.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _key(self, trial: str) -> bytes:
        return f"watched/{self._name}/{trial}".encode()

    def begin(self, trial: str, job: str) -> None:
        """A driver will compare what is shown of a trial."""
        kv._internal_kv_put(self._key(trial), job.encode(), overwrite=True, namespace=KV)

    def end(self, trial: str) -> None:
        """Nobody will any more."""
        kv._internal_kv_del(self._key(trial), namespace=KV)

    def covers(self, trial: str, job: str, attempt: str) -> bool:
        """Checks whether the driver of a job does; from now on it does so for this attempt alone.

        A driver that ends without a word may leave one behind, and whoever takes the trial up
        again in its place has to begin it anew.
        """
        found = kv._internal_kv_get(self._key(trial), namespace=KV)
        told = None if found is None else found.decode()
        if told == job:
            kv._internal_kv_put(
                self._key(trial), f"{job}/{attempt}".encode(), overwrite=True, namespace=KV
            )
        return told in (job, f"{job}/{attempt}")


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
        self, name: str, host: type[Host], may_begin: bool, noise: NoiseSource | None
    ) -> None:
        self.name, self.host, self.may_begin, self.noise = name, host, may_begin, noise
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
        if self.host.KEPT:
            _KEPT[self.name], self.kept = _Kept(actor, _this_ray()), True
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
        raise VaultError(self.host.MISSING.lost)


class _Kept(NamedTuple):
    """An actor with a vault in memory.

    Attributes:
        actor: Its handle, which keeps it alive.
        ray: In which Ray it was begun: it ended with that.
    """

    actor: Any
    ray: tuple[str, str]


_KEPT: dict[str, _Kept] = {}
"""Vaults in memory that this process has begun, by name, until they are closed."""

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
    kept = _KEPT.get(name)
    if kept is None:
        return None
    if ray.is_initialized() and kept.ray == _this_ray():
        return kept.actor
    del _KEPT[name]
    return None


def forgotten() -> list[str]:
    """Names of the vaults in memory that are alive and that no searcher here knows any more."""
    return [name for name in list(_KEPT) if name not in _ANCHORS and _kept(name) is not None]


def _warn_of_forgotten() -> None:
    n = len(forgotten())
    if n and n % _MANY == 0:
        warnings.warn(
            f"{n} vaults in memory are alive whose searches are gone, each in a process of its "
            "own. They are kept, because Tuner.restore and from_experiment may come back to them. "
            "Call search.close() when a run is over (of an earlier one: "
            "type(search).from_experiment(path).close()), or ray.shutdown() to end all.",
            UtilityWarning,
            stacklevel=2,
        )


def anchor(
    name: str, host: type[Host], *, may_begin: bool = False, noise: NoiseSource | None = None
) -> ActorHandle:
    """This process's anchor of a run, made on first use."""
    found = _ANCHORS.get(name)
    if found is None or found.over:
        found = _ANCHORS[name] = ActorHandle(name, host, may_begin, noise)
        found.actor = _kept(name)
        found.kept = found.actor is not None
        found.may_begin = may_begin and not found.kept
    return found


def actor_name(host: type[Host], vault_id: str | None, run_name: str) -> str:
    """Under which name a run's host is found; "memory/" starts those without a database."""
    return f"{'memory' if vault_id is None else vault_id[:8]}/{host.KIND}{run_name}"


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
        channel = Channel(own.name, own.host(settings, url, None).call)
    else:
        channel = Channel(own.name, lambda *args: _send_from_driver(own, settings, url, args))
    try:
        vault_id, reasons = channel.call("join", settings)
        for kind, text in channel.call("told_warnings"):
            warnings.warn(text, _WARNINGS[kind], stacklevel=4)
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
        actor = _driver_actor(own, settings, url)
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


def _driver_actor(own: ActorHandle, settings: Settings, url: str | None) -> Any:
    with own.lock:
        if own.actor is not None:
            return own.actor
        if url is None and not own.may_begin:
            return _found_actor(own)
        own.began(_begin_actor(own, settings, url), durable=url is not None)
        return own.actor


def options_of(name: str, url: str | None) -> dict[str, Any]:
    """Returns Ray's options for a host's actor: its node, and its restart when its process ends.

    Args:
        name: Of the actor.
        url: Its database; None for a vault in memory.
    """
    durable, moves = url is not None, _anywhere(url)
    asked = {"memory": 1} if moves else {}  # Ray places what asks for nothing anywhere at once
    return {
        **asked,
        "name": name,
        "namespace": NAMESPACE,
        "get_if_exists": durable,
        "num_cpus": 0,
        "max_restarts": -1 if durable else 0,  # a restarted host without a database has no ledger
        "max_task_retries": -1 if durable else 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(_here(), soft=moves),
    }


def _here() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _anywhere(url: str | None) -> bool:
    """Tells if a vault can be opened on any node: a file is on the driver's, memory on one."""
    return url is not None and not url.startswith("sqlite")


def _begin_actor(own: ActorHandle, settings: Settings, url: str | None) -> Any:
    remote = ray.remote(HostActor).options(**options_of(own.name, url))
    try:
        return remote.remote(cloudpickle.dumps(own.host), settings, url, own.noise)
    except ValueError:
        raise VaultError(
            f"A vault for the run {settings.run!r} is alive in this cluster, started by another "
            "process. Give this search another run_name=, or a vault in a database if both shall "
            "share one ledger."
        ) from None


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


def check_alive(own: ActorHandle) -> None:
    """For a vault in memory: that it may still be started here, or lives.

    Raises:
        VaultError: If it is gone.
    """
    if own.actor is None and not own.may_begin:
        _found_actor(own)


def _found_actor(own: ActorHandle) -> Any:
    if ray.is_initialized():
        try:
            return ray.get_actor(own.name, namespace=NAMESPACE)
        except (ValueError, RayError):
            pass
    own.lost()
