"""A host of a run's private state: a session behind a table of operations, in a Ray actor.

What a host holds stays in its process. Nothing it raises reaches Ray: a reply carries the name
and the text of an engine error, or no more than a type. What differs between losses, rewards, a
federation's rounds, its agents and a curator is said by a class of each: how the session opens,
and what may be asked of it.
"""

from __future__ import annotations

import abc
import functools
import json
import operator
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import ray.experimental.internal_kv as kv

from privbo_plugins.errors import (
    NotLossesError,
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every host must know of its run; all of it public.

    Attributes:
        run: Name of the run.
        vault_id: Identity of the vault, if it must exist already.
        seen: How far the driver has seen the chain of releases: the vault must hold it.
    """

    run: str
    vault_id: str | None = None
    seen: tuple[int, str] = (0, "")


S = TypeVar("S")


def by_name(*paths: str) -> dict[str, str]:
    """Operations by name, as attributes of a host: ``session.run.note`` carries out "note".

    Example:
        >>> by_name("join session.run.note")
        {'join': 'join', 'note': 'session.run.note'}
    """
    return {path.rpartition(".")[2]: path for path in " ".join(paths).split()}


class Host(abc.ABC, Generic[S]):
    """A session behind one method that never raises; each kind of secret has a class.

    Args:
        settings: The run.
        url: Database of the vault; None keeps it in this process.
        noise: Test injection.
    """

    missing: ClassVar[MissingHost]
    """What is said where the host is not."""
    operations: ClassVar[dict[str, str]] = by_name("public_key told_warnings")
    """The attribute that carries out each; nothing else can be asked of the host."""
    prefix: ClassVar[str] = ""
    """Keeps the actors of one run name in one database apart."""
    kept: ClassVar[bool] = True
    """Whether what it holds in memory may be come back to after its holder is gone."""

    def __init__(self, settings: Any, url: Any = None, noise: NoiseSource | None = None) -> None:
        self.settings, self.url, self.noise = settings, url, noise
        self.warnings: list[tuple[str, str]] = []
        vault_id = None if url is None else settings.vault_id
        self.name = actor_name(type(self), vault_id, settings.run)
        self._reader = Reader()

    @abc.abstractmethod
    def open(self) -> S:
        """Opens the session, which holds the secret."""

    def translate(self, error: BaseException) -> Exception:
        """Makes of what was raised what may be told of it."""
        return own_error(error)

    @functools.cached_property
    def session(self) -> S:
        """What holds the secret, opened on first use."""
        return self.open()

    def public_key(self) -> bytes:
        """The key to which callers seal what this process alone may read; new in each process."""
        return self._reader.public

    def told_warnings(self) -> list[tuple[str, str]]:
        """Returns the warnings since the last call, for the driver to issue."""
        told, self.warnings = self.warnings, []
        return told

    def call(self, operation: str, *args: Any) -> Reply:
        """Carries out one operation: ((error's name, text) or None, result)."""
        path = self.operations.get(operation) if isinstance(operation, str) else None
        if path is None:
            return ("ValueError", "The run's host knows no operation of this name."), None
        if "told_warnings" not in self.operations:
            return self._reply(path, args)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reply = self._reply(path, args)
        ours = [warning for warning in caught if warning.category in WARNINGS.values()]
        self.warnings += [(own.category.__name__, str(own.message)) for own in ours]
        return reply

    def _reply(self, path: str, args: tuple[Any, ...]) -> Reply:
        try:
            return None, operator.attrgetter(path)(self)(*args)
        except (KeyboardInterrupt, SystemExit):  # Ray ends the process
            raise
        except BaseException as error:  # a library's panic may quote its input
            told = error if type(error) is AnotherKeyError else self.translate(error)
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
            raise VaultError(self.missing.lost)
        return vault


def actor_name(kind: type[Host[Any]], vault_id: str | None, run_name: str) -> str:
    """Under which name a run's host is found; "memory/" starts those without a database."""
    return f"{'memory' if vault_id is None else vault_id[:8]}/{kind.prefix}{run_name}"


class RunHost(Host[S]):
    """A host whose driver compares what is shown with a ledger."""

    operations = by_name(
        "public_key told_warnings join head report status wrong_kind check_kind",
        "session.run.mark_compared session.run.mark_unprotected session.run.note",
        "session.run.declare_public",
    )
    fixed: ClassVar[tuple[str, ...]]
    """Settings that a run keeps."""
    _wrong_kind: str | None = None
    """What a trial of this fit raised whose function returned no losses."""

    @property
    def run(self) -> Run:
        """The run of the session, in the vault."""
        session: Any = self.session
        run: Run = session.run
        return run

    @abc.abstractmethod
    def claim(self, reasons: list[str]) -> Any:
        """Claims what holds, with further reasons to claim nothing."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Returns the parts of a report that do not grow with the run, "done" among them."""

    @abc.abstractmethod
    def details(self) -> dict[str, Any]:
        """Returns the parts that do."""

    def unused(self) -> list[str]:
        """Returns why nothing may be claimed of a run in which no trial was private."""
        return []

    def join(self, settings: Any) -> tuple[str, tuple[str, ...]]:
        """Compares the driver's settings with those of the run.

        Returns:
            Identity of the vault, and why nothing may be claimed, if so from the start.

        Raises:
            ValueError: If the driver's settings are not those of the run.
            VaultError: If it has seen more of the run.
        """
        run, own = self.run, self.settings
        self._wrong_kind = None  # another fit, perhaps of another function
        other = [name for name in self.fixed if getattr(settings, name) != getattr(own, name)]
        if other:
            raise ValueError(
                f"This run was started with another {' and another '.join(other)}, which cannot "
                "change under way: use the same settings, or another run_name= "
                f"({self.missing.adds})."
            )
        run.confirm(LogHead(*settings.seen))
        return run.vault.vault_id, self.claim([]).reasons

    def wrong_kind(self, text: str) -> None:
        """Notes that a function returned no losses."""
        self._wrong_kind = text

    def check_kind(self) -> None:
        """Ends a fit whose function returns no losses.

        Only before anything was released: from then on the function is known to return some, and
        what it makes of one config or record fails a trial and decides nothing else.

        Raises:
            NotLossesError: If it returned none.
        """
        if self._wrong_kind is not None and not self.facts()["done"]:
            raise NotLossesError(self._wrong_kind)

    def head(self) -> tuple[int, str]:
        """The end of the chain of releases, of a vault that holds all that was seen of it."""
        with self.run.transaction() as tx:
            found = tx.head()
        return found.n, found.digest

    def report(self, unaudited: bool) -> dict[str, Any]:
        """Everything public.

        Args:
            unaudited: Whether a result passed by while the vault did not answer.
        """
        details = self.details()
        return {**self._all_facts(unaudited), **details}

    def status(self, unaudited: bool) -> dict[str, Any]:
        """The report, of a long run without what grows with it."""
        facts = self._all_facts(unaudited)
        long = facts["done"] > SHORT_RUN
        return {**facts, **({"partial": True} if long else self.details())}

    def _all_facts(self, unaudited: bool) -> dict[str, Any]:
        uncompared = self.run.uncompared()
        reasons = [*self.unused(), *[UNSEEN] * unaudited, *[NEVER_COMPARED] * bool(uncompared)]
        return {
            "guarantee": self.claim(reasons),
            "head": self.head(),
            "uncompared": uncompared,
            **self.facts(),
        }

    def record_of(
        self, trial: str, operations: Collection[str], published: float | None, entered: bool,
        beside: Mapping[str, float] | None = None,
    ) -> TrialRecord:  # fmt: skip
        """Makes the record of a trial, with those of some operations that it declared public."""
        declared = self.run.declared_by(trial, operations)
        shown = {operation_of(name): told for name, told in (beside or {}).items()}
        return TrialRecord(published, entered, declared, self.head(), shown)

    def declared(self, trial: str, value: float | None) -> tuple[str, ...]:
        """Returns the declared outputs of a trial that is not evaluated again."""
        return () if value is None else tuple(sorted(self.run.declared_by(trial)))


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
        """The furthest head that any host of the run has shown, and where their vaults lay."""
        shown = kv._internal_kv_get(self._head, namespace=KV)
        keys = kv._internal_kv_list(self._place, namespace=KV)
        places = [key[len(self._place) :].decode(errors="replace") for key in keys]
        return LogHead.shown(shown, places)

    def show(self, head: LogHead) -> None:
        """Remembers a head."""
        told = json.dumps([head.n, head.digest]).encode()
        kv._internal_kv_put(self._head, told, overwrite=True, namespace=KV)

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        kv._internal_kv_put(self._place + place.encode(), b"", overwrite=True, namespace=KV)
