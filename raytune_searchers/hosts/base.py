"""A host of a run's private state: a session behind a table of operations, in a Ray actor.

What a host holds stays in its process. Nothing it raises reaches Ray: a reply carries the name
and the text of an engine error, or no more than a type. What differs between losses, rewards, a
federation's rounds, its agents and a curator is a :class:`Kind`: how the session opens, and what
may be asked of it.
"""

from __future__ import annotations

import functools
import json
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import ray.experimental.internal_kv as kv

from privbo_plugins.errors import (
    NotLossesError,
    PrivacyError,
    PrivacyWarning,
    UtilityWarning,
    VaultError,
    warn,
)
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sanitize import own_error
from privbo_plugins.sealing import AnotherKeyError, Message, Reader
from privbo_plugins.shown import TrialRecord
from privbo_plugins.store.run import NEVER_COMPARED, Run
from privbo_plugins.store.vault import Vault, open_vault
from raytune_searchers._channel import KV, SHORT_RUN, MissingHost, Reply, context_of, operation_of

WARNINGS: dict[str, type[Warning]] = {
    "PrivacyWarning": PrivacyWarning,
    "UtilityWarning": UtilityWarning,
}
"""What a host's driver warns of, by name."""

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


Operation = Callable[..., Any] | str
"""A function of the host, or where its session has it: ``"purge"``; ``"run.note"`` of its run."""


def _of_no_run(*_: Any) -> NoReturn:
    raise PrivacyError("This host holds no run.")


def _nothing(_host: Host) -> list[str]:
    return []


@dataclass(frozen=True)
class Kind:
    """What a host holds, and what may be asked of it.

    Attributes:
        missing: What is said where the host is not.
        open: Opens the session, which holds the secret.
        operations: By name; nothing else can be asked of the host.
        prefix: Keeps the actors of one run name in one database apart.
        fixed: Settings that a run keeps.
        claim: From further reasons to claim nothing to what may be claimed.
        unused: Why nothing may be claimed of a run in which no trial was private.
        facts: The parts of a report that do not grow with the run, "done" among them.
        details: The parts that do.
        translate: From what was raised to what may be told of it.
        kept: Whether what it holds in memory may be come back to after its holder is gone.
    """

    missing: MissingHost
    open: Callable[[Host], Any]
    operations: Mapping[str, Operation]
    prefix: str = ""
    fixed: tuple[str, ...] = ()
    claim: Callable[[Host, list[str]], Any] = _of_no_run
    unused: Callable[[Host], list[str]] = _nothing
    facts: Callable[[Host], dict[str, Any]] = _of_no_run
    details: Callable[[Host], dict[str, Any]] = _of_no_run
    translate: Callable[[BaseException], Exception] = own_error
    kept: bool = True


class Host:
    """A session behind one method that never raises.

    Args:
        kind: What it holds, and the table of its operations.
        settings: The run.
        url: Database of the vault; None keeps it in this process.
        noise: Test injection.
    """

    def __init__(
        self, kind: Kind, settings: Any, url: Any = None, noise: NoiseSource | None = None
    ) -> None:
        self.kind, self.settings, self.url, self.noise = kind, settings, url, noise
        self.entered: set[str] = set()
        """Trials that have begun in this process."""
        self.sent: dict[str, tuple[int, int]] = {}
        """Of each agent the last trial that it has sent a vector for, and its round."""
        self.wrong_kind: str | None = None
        """What a trial of this fit raised whose function returned no losses."""
        self.warnings: list[tuple[str, str]] = []
        vault_id = None if url is None else settings.vault_id
        self.name = actor_name(kind, vault_id, settings.run)
        self._reader = Reader()

    @functools.cached_property
    def session(self) -> Any:
        """What holds the secret, opened on first use."""
        return self.kind.open(self)

    @property
    def public_key(self) -> bytes:
        """The key to which callers seal what this process alone may read; new in each process."""
        return self._reader.public

    def call(self, operation: str, *args: Any) -> Reply:
        """Carries out one operation: ((error's name, text) or None, result)."""
        found = self.kind.operations.get(operation) if isinstance(operation, str) else None
        if found is None:
            return ("ValueError", "The run's host knows no operation of this name."), None
        if "told_warnings" not in self.kind.operations:
            return self._reply(found, args)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reply = self._reply(found, args)
        told = [(warning.category.__name__, str(warning.message)) for warning in caught]
        self.warnings += [(kind, text) for kind, text in told if kind in WARNINGS]
        return reply

    def _reply(self, found: Operation, args: tuple[Any, ...]) -> Reply:
        try:
            if isinstance(found, str):
                return None, operator.attrgetter(found)(self.session)(*args)
            return None, found(self, *args)
        except Exception as error:
            told = error if type(error) is AnotherKeyError else self.kind.translate(error)
            return (type(told).__name__, str(told)), None

    def read(self, message: Message, operation: str, owner: str) -> Any:
        """Opens what was sealed for an operation of this very run and owner."""
        return self._reader.read(message, context_of(self.name, operation, owner))

    def open_vault(self) -> Vault:
        """Opens the vault that the run has begun with, if it has.

        Raises:
            VaultError: If there is another one in its place.
        """
        known = self.settings.vault_id
        vault = open_vault(self.url, create=known is None)
        if known not in (None, vault.vault_id):
            raise VaultError(self.kind.missing.lost)
        return vault


def actor_name(kind: Kind, vault_id: str | None, run_name: str) -> str:
    """Under which name a run's host is found; "memory/" starts those without a database."""
    return f"{'memory' if vault_id is None else vault_id[:8]}/{kind.prefix}{run_name}"


# What every host can be asked -------------------------------------------------------------------


def _told_warnings(host: Host) -> list[tuple[str, str]]:
    """Returns the warnings since the last call, for the driver to issue."""
    told, host.warnings = host.warnings, []
    return told


OWN: Mapping[str, Operation] = {
    "public_key": lambda host: host.public_key,
    "told_warnings": _told_warnings,
}
"""Of every host that a driver joins."""


# And every host of a run ------------------------------------------------------------------------


def join(host: Host, settings: Any) -> tuple[str, tuple[str, ...]]:
    """Compares the driver's settings with those of the run.

    Returns:
        Identity of the vault, and why nothing may be claimed, if so from the start.

    Raises:
        ValueError: If the driver's settings are not those of the run.
        VaultError: If it has seen more of the run.
    """
    run, own, kind = host.session.run, host.settings, host.kind
    host.wrong_kind = None  # another fit, perhaps of another function
    other = [name for name in kind.fixed if getattr(settings, name) != getattr(own, name)]
    if other:
        raise ValueError(
            f"This run was started with another {' and another '.join(other)}, which cannot "
            "change under way: use the same settings, or another run_name= "
            f"({kind.missing.adds})."
        )
    run.confirm(LogHead(*settings.seen))
    return run.vault.vault_id, kind.claim(host, []).reasons


def tell_kind(host: Host, text: str) -> None:
    """Notes that a function returned no losses."""
    host.wrong_kind = text


def check_kind(host: Host) -> None:
    """Ends a fit whose function returns no losses.

    Only before anything was released: from then on the function is known to return some, and what
    it makes of one config or record fails a trial and decides nothing else.

    Raises:
        NotLossesError: If it returned none.
    """
    if host.wrong_kind is not None and not host.kind.facts(host)["done"]:
        raise NotLossesError(host.wrong_kind)


def head(host: Host) -> tuple[int, str]:
    """The end of the chain of releases, of a vault that holds all that was seen of it."""
    with host.session.run.transaction() as tx:
        found = tx.head()
    return found.n, found.digest


def report(host: Host, unaudited: bool) -> dict[str, Any]:
    """Everything public.

    Args:
        host: The host.
        unaudited: Whether a result passed by while the vault did not answer.
    """
    details = host.kind.details(host)
    return {**_facts(host, unaudited), **details}


def status(host: Host, unaudited: bool) -> dict[str, Any]:
    """The report, of a long run without what grows with it."""
    facts = _facts(host, unaudited)
    if facts["done"] > SHORT_RUN:
        return {**facts, "partial": True}
    return {**facts, **host.kind.details(host)}


def _facts(host: Host, unaudited: bool) -> dict[str, Any]:
    kind, uncompared = host.kind, host.session.run.uncompared()
    reasons = [*kind.unused(host), *[UNSEEN] * unaudited, *[NEVER_COMPARED] * bool(uncompared)]
    return {
        "guarantee": kind.claim(host, reasons),
        "head": head(host),
        "uncompared": uncompared,
        **kind.facts(host),
    }


RUN: Mapping[str, Operation] = {
    **OWN,
    "join": join,
    "head": head,
    "report": report,
    "status": status,
    "wrong_kind": tell_kind,
    "check_kind": check_kind,
    "compared": "run.mark_compared",
    "mark_unprotected": "run.mark_unprotected",
    "note": "run.note",
    "declare_public": "run.declare_public",
}
"""Of every host whose driver compares what is shown with a ledger."""


def record_of(
    host: Host,
    trial: str,
    operations: Collection[str],
    published: float | None,
    entered: bool,
    beside: Mapping[str, float] | None = None,
) -> TrialRecord:
    """Makes the record of a trial, with those of some operations that it declared public."""
    declared = host.session.run.declared_by(trial, operations)
    shown = {operation_of(name): told for name, told in (beside or {}).items()}
    return TrialRecord(published, entered, declared, head(host), shown)


def declared(host: Host, trial: str, value: float | None) -> tuple[str, ...]:
    """Returns the declared outputs of a trial that is not evaluated again."""
    return () if value is None else tuple(sorted(host.session.run.declared_by(trial)))


# What the cluster remembers ---------------------------------------------------------------------


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
        warn(_HOLDS_RELEASES.format(_JOINED_UNSEEN), PrivacyWarning)


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
