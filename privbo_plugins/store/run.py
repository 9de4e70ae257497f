"""One run in a vault: started once, joined by everybody else, and compared with what others saw.

Every backup is a second ledger, and a vault that was restored from one looks intact: it would draw
again what has been published, and charge for it once. So the events of a vault form a chain
(:mod:`privbo_plugins.store.transaction`), and the host that shows the releases (a study, a
searcher, an agent) keeps its head, too. The head is compared when a run is joined and before every
draw. A count would not do: a copy grows again.

Two copies of one vault at the same time differ in where they lie: each place is entered in
the vault and shown beside the head. If a shown place is unknown to the vault, that vault is
another copy. A release is published in the order: commit, show the head, look at the
places again; of two copies that draw at the same moment, at least one therefore stops.
"""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from privbo_plugins.errors import SET_BACK, VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.store.log import CHARGE, EVALUATION, NOTE, PAID, RELEASE, UNPROTECTED
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import Vault

PLACE = "place"
"""Kind of marks: where the vault has lain."""

ENTERED = "entered"
"""Kind of marks: which trials have begun in the private channel."""

_PUBLIC = "vouched"
"""Kind of marks: what trials gave to which operation, declared public."""

_COMPARED = "compared"
"""Kind of marks: of which trials everything that is shown was compared with the release."""

NEVER_COMPARED = (
    "values were released of trials whose results nobody has compared with the ledger (of trials "
    "that are out, this is done when they end): give all results of the experiment to guarantee"
)
"""Why nothing is claimed of a run on Ray Tune, where nothing but a driver sees what is shown."""


class RollbackGuard(Protocol):
    """Who shows the releases of a run, and remembers how far they had come."""

    def head(self) -> LogHead:
        """The furthest head that it was shown, and where the run's vault has lain."""
        ...

    def show(self, head: LogHead) -> None:
        """Remembers a head."""
        ...

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        ...


class Spent:
    """How many charges of which size a run holds, read on from the last look.

    Every charge is an event of the log. If the log still holds the head of the last look,
    nothing before it has changed, and only the events after it are read. If it does not (a
    transaction was rolled back, or another copy of the vault was put in its place), everything is
    counted anew.
    """

    def __init__(self) -> None:
        self._seen: tuple[LogHead, Counter[tuple[str, float]]] = LogHead(), Counter()

    def of(self, tx: Transaction, population: str) -> Total:
        """Returns what a population has been charged, also in this transaction so far."""
        counted = self._counted(tx)
        costs = [(mu, n) for (who, mu), n in counted.items() if who == population]
        return Total(sum(n for _, n in costs), math.fsum(n * mu**2 for mu, n in costs))

    def _counted(self, tx: Transaction) -> Counter[tuple[str, float]]:
        seen, counted = self._seen
        now = tx.head()
        if now == seen:
            return counted
        if seen.n and tx.holds(seen):
            counted = counted + Counter(tx.charges_since(seen.n))
        else:
            counted = Counter(tx.charges_by_mu())
        self._seen = now, counted
        return counted


@dataclass(frozen=True)
class Total:
    """What a population has been charged.

    Attributes:
        n: Number of charges.
        mu2: Sum of their squared mu.
    """

    n: int
    mu2: float


_OTHER_SETTINGS = "The vault holds this run with other settings. Use the same."

Check = Callable[[Mapping[str, Any]], None]
"""Raises if the settings of a stored run are not those that it is joined with."""


class Run:
    """A run; made by :func:`begin_or_join`.

    Attributes:
        vault: Where it lies.
        run_id: Its identity there.
        settings: What it was started with.
        begun_here: True where it was started, false where it was joined.
        spent: What its ledger adds up to.
    """

    def __init__(
        self, vault: Vault, run_id: str, settings: Mapping[str, Any], begun_here: bool
    ) -> None:
        self.vault, self.run_id = vault, run_id
        self.settings, self.begun_here = dict(settings), begun_here
        self._seen = LogHead()
        self._rollback_guard: RollbackGuard | None = None
        self.spent = Spent()
        with vault.transaction(run_id) as tx:
            tx.check_chain()
            self._seen = tx.head()

    # Guards ---------------------------------------------------------------------------------

    def guarded_by(self, rollback_guard: RollbackGuard) -> None:
        """Compares the run with what its releases are shown by, now and before every draw.

        Raises:
            VaultError: If the vault was restored from an older backup, or is a copy of the one
                that is shown.
        """
        self._rollback_guard = rollback_guard
        place = self.vault.place()
        with self.vault.transaction(self.run_id) as tx:
            self.check(tx)
            tx.mark(PLACE, place)
        if place not in rollback_guard.head().places:
            rollback_guard.show_place(place)
        self._seen = self._shown(rollback_guard)

    def check(self, tx: Transaction) -> LogHead:
        """Checks that the vault holds everything that was seen of the run; returns its head.

        Raises:
            VaultError: If it does not.
        """
        confirm(tx, self._seen)
        if self._rollback_guard is not None:
            shown = self._rollback_guard.head()
            confirm(tx, shown)
            _check_places(tx, shown)
            return shown
        return self._seen

    def follow(self, tx: Transaction) -> None:
        """Checks that what this process has seen released is still there.

        Raises:
            VaultError: If it is not.
        """
        confirm(tx, self._seen)

    def head(self) -> LogHead:
        """The end of the chain."""
        with self.vault.transaction(self.run_id) as tx:
            return tx.head()

    def confirm(self, head: LogHead) -> None:
        """Checks that a head which somebody saw is in the chain.

        Raises:
            VaultError: If it is not.
        """
        with self.vault.transaction(self.run_id) as tx:
            confirm(tx, head)

    def _shown(self, rollback_guard: RollbackGuard) -> LogHead:
        """Shows the head before anything of it is published; the vault's lock keeps the order."""
        with self.vault.transaction(self.run_id) as tx:
            shown, head = self.check(tx), tx.head()
            if shown != head:
                rollback_guard.show(head)
        with self.vault.transaction(self.run_id) as tx:
            _check_places(tx, rollback_guard.head())
        return head

    # Transactions ---------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One transaction; the guard sees every release in it before the caller goes on."""
        with self.vault.transaction(self.run_id) as tx:
            if self._rollback_guard is None and self._seen is not None:
                confirm(tx, self._seen)
            yield tx
            head = tx.head()
        if head != self._seen:
            guard = self._rollback_guard
            self._seen = head if guard is None else self._shown(guard)

    # Facts ----------------------------------------------------------------------------------

    def mark(self, kind: str, text: str) -> None:
        """Records a fact for ever."""
        with self.transaction() as tx:
            tx.mark(kind, text)

    def marks(self, kind: str) -> tuple[str, ...]:
        """All facts of a kind."""
        with self.vault.transaction(self.run_id) as tx:
            return tx.marks(kind)

    def mark_unprotected(self, reason: str) -> None:
        """Records for ever that nothing may be claimed."""
        self.mark(UNPROTECTED, reason)

    def note(self, text: str) -> None:
        """Records a fact that the guarantee reports."""
        self.mark(NOTE, text)

    def entered(self, trial: str | None = None) -> bool:
        """Checks whether a trial has begun in the private channel; None for any."""
        with self.transaction() as tx:
            return tx.has_mark(ENTERED, trial)

    def n_told(self) -> int:
        """Counts trials that have a value."""
        with self.transaction() as tx:
            return tx.told()

    def held_losses(self) -> list[str]:
        """Trials whose raw losses the vault still holds."""
        with self.transaction() as tx:
            return tx.held()

    def give_back(self, living: Collection[str]) -> list[str]:
        """Gives back the slots of trials that the host no longer knows; returns their keys.

        Args:
            living: Trials that are still expected to tell.
        """
        with self.transaction() as tx:
            out = [row.trial for row in tx.trials(state="out")]
            lost = [trial for trial in out if trial not in living]
            for trial in lost:
                tx.fail(trial)
        return lost

    def declare_public(self, operation: str, trial: str) -> None:
        """Records that the caller declared what an operation of a trial was given public."""
        with self.transaction() as tx:
            tx.mark(NOTE, f"the caller declared values given to {operation} public")
            tx.mark(_PUBLIC, f"{operation}/{trial}")

    def declared_public(self, among: Iterable[str] | None = None) -> frozenset[str]:
        """Returns what was declared public, as operation/trial: all, or those of some."""
        with self.transaction() as tx:
            if among is None:
                return frozenset(tx.marks(_PUBLIC))
            return frozenset(one for one in among if tx.has_mark(_PUBLIC, one))

    def declared_by(self, trial: str, among: Iterable[str] | None = None) -> frozenset[str]:
        """Operations of one trial that were declared public: all, or those of some.

        Without ``among`` it looks through the declarations of all trials.
        """
        end = f"/{trial}"
        names = None if among is None else [operation + end for operation in among]
        told = self.declared_public(names)
        return frozenset(text.removesuffix(end) for text in told if text.endswith(end))

    @property
    def charged(self) -> bool:
        """Checks whether anything was charged or released."""
        with self.vault.transaction(self.run_id) as tx:
            return any(tx.has_mark(kind) for kind in (CHARGE, PAID, RELEASE))

    def mark_compared(self, trial: str) -> None:
        """Records that all that a host shows of a trial was compared with its release, if any."""
        with self.transaction() as tx:
            row = tx.trial(trial)
            value = tx.released(EVALUATION, trial) if row is None else row.value
            if value is not None:
                tx.mark(_COMPARED, trial)

    def uncompared(self) -> list[str]:
        """Lists trials with a release that :meth:`mark_compared` was not called for."""
        with self.transaction() as tx:
            return tx.uncompared(_COMPARED)


def begin_or_join(
    vault: Vault,
    host_key: str,
    settings: Mapping[str, Any],
    *,
    same: Check | None = None,
    otherwise: Exception | None = None,
    fresh: Mapping[str, Any] | None = None,
    run_id: str | None = None,
) -> Run:
    """The run that a host calls by a key; only one caller starts it.

    Args:
        vault: The private store.
        host_key: What the host calls it, unique in the vault.
        settings: What it must have been started with.
        same: Compares stored settings in the caller's own words; None wants them equal.
        otherwise: What is raised then if they are not; None for an error that knows no names.
        fresh: What a run that is started stores beside its settings.
        run_id: Its identity, if the host remembers one: then it is joined, or not found.

    Raises:
        VaultError: If the host remembers a run that the vault does not hold, if the settings
            differ, or if the vault fails.
    """
    made = {**settings, **(fresh or {})}
    for last in (False, True):
        try:
            found, stored, begun = _found_or_begun(vault, host_key, made, run_id)
            break
        except VaultError:  # another process was quicker, or the vault fails for good
            if last or run_id is not None:
                raise
    if same is not None:
        same(stored)
    elif stored != json.loads(json.dumps(settings)):
        raise otherwise or VaultError(_OTHER_SETTINGS)
    return Run(vault, found, stored, begun)


def stored_settings(vault: Vault, host_key: str) -> dict[str, Any] | None:
    """The settings that the run of a host key was started with; None if there is none."""
    with vault.transaction("") as tx:
        tx.run_id = tx.run_of_host(host_key) or ""
        return tx.settings()


def _found_or_begun(
    vault: Vault, host_key: str, settings: Mapping[str, Any], run_id: str | None
) -> tuple[str, dict[str, Any], bool]:
    with vault.transaction("") as tx:
        tx.run_id = run_id or tx.run_of_host(host_key) or ""
        known = tx.settings()
        if known is not None:
            return tx.run_id, known, False
        if run_id is not None:
            raise VaultError(
                "This run was started with another vault, which holds its ledger; without it "
                "nothing can be released. Give the vault that it was started with."
            )
        tx.run_id = uuid.uuid4().hex
        tx.new_run(host_key, settings)
        return tx.run_id, json.loads(json.dumps(settings)), True


def confirm(tx: Transaction, head: LogHead) -> None:
    """Checks that a head is in the chain of a transaction's run.

    Raises:
        VaultError: If it is not: the vault was restored from an older backup, or is another copy.
    """
    if not tx.holds(head):
        raise VaultError(SET_BACK)


def _check_places(tx: Transaction, shown: LogHead) -> None:
    if any(not tx.has_mark(PLACE, place) for place in shown.places):
        raise VaultError(
            "This vault is a copy: another copy of it holds releases of this run that are missing "
            "here, so two ledgers would pay for one run. Nothing was drawn. Give all workers the "
            "same vault, and put copies away."
        )
