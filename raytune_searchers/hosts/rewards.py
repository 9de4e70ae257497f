"""What the host of a users' ledger can be asked: who paid for which evaluation, and its release.

No raw reward ever comes here: a reward is clipped and privatised in the worker that evaluates it,
and only what came out is sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.sealing import Message
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.shown import TrialRecord
from privbo_plugins.store.release import TEST_NOISE, is_test
from raytune_searchers._channel import USERS_LEDGER, Entry
from raytune_searchers.hosts.base import RunHost, Settings, by_name, remember

_NAMED = "named"
"""Kind of marks in the vault: that users are named."""


@dataclass(frozen=True, kw_only=True)
class LedgerSettings(Settings):
    """Everything that a ledger's host needs to start or join a run; all of it public.

    Attributes:
        mechanism: What happens to a reward.
        user_budget: The most epsilon that one user may be charged in all.
        metric: Under which name trials report.
        maximize: Whether larger rewards are better.
        user_delta: At which ``user_budget`` is meant.
    """

    mechanism: LocalMechanism
    user_budget: float | None
    metric: str
    maximize: bool
    user_delta: float = 0.0

    @property
    def worst(self) -> float:
        """Returns the value that NaN and infinity count as: the worst end of the range."""
        return self.mechanism.low if self.maximize else self.mechanism.high


class LedgerHost(RunHost[RewardSession]):
    """The host of a ledger of users' evaluations; a test's noise is handed to trials."""

    missing, prefix = USERS_LEDGER, "ldp/"
    fixed = ("mechanism", "user_budget", "user_delta", "metric", "maximize")
    operations = RunHost.operations | by_name("record ledger enter charge session.store")

    def open(self) -> RewardSession:
        """Opens the ledger in the vault."""
        s: LedgerSettings = self.settings
        session = RewardSession(
            s.mechanism, self.open_vault(), f"ray-ldp/{s.run}",
            user_budget=s.user_budget, user_delta=s.user_delta,
        )  # fmt: skip
        remember(session.run, s.seen)
        self._entered: set[str] = set()  # trials that have begun in this process
        return session

    # The driver's side ----------------------------------------------------------------------

    def join(self, settings: LedgerSettings) -> tuple[str, tuple[str, ...]]:
        """As every host of a run; noise of a test's counts from the start."""
        if is_test(self.noise):
            self.session.run.mark_unprotected(TEST_NOISE)
        return super().join(settings)

    def record(self, trial: str, operations: Collection[str] = ()) -> TrialRecord:
        """Returns the record of a trial, and which of some operations it declared public."""
        value = self.session.replay(trial)
        entered = value is not None or trial in self._entered
        return self.record_of(trial, operations, value, entered)

    def claim(self, reasons: list[str]) -> LocalGuarantee:
        """Claims what the ledger allows."""
        named = bool(self.session.run.marks(_NAMED))
        return self.session.guarantee(self.facts()["done"], users_named=named, reasons=reasons)

    def facts(self) -> dict[str, Any]:
        """Returns how many evaluations were released."""
        with self.session.run.transaction() as tx:
            return {"done": tx.n_released()}

    def details(self) -> dict[str, Any]:
        """Returns releases, and what was declared public."""
        rows = self.ledger()
        return {
            "published": {trial: value for trial, *_, value in rows if value is not None},
            "entered": frozenset(trial for trial, *_ in rows),
            "vouched": self.session.run.declared_public(),
        }

    def ledger(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, pseudonym, epsilon, delta, release or None) of every evaluation."""
        with self.session.run.transaction() as tx:
            return tx.evaluations()

    # The trials' side -----------------------------------------------------------------------

    def enter(self, trial: str, message: Message) -> Entry:
        """Starts a trial; the host charges no user yet.

        Raises:
            BudgetExceededError: If its user's budget does not allow another evaluation.
        """
        session, s = self.session, self.settings
        user, value = self.read(message, "enter", trial), session.replay(trial)
        if value is None:
            session.check(trial, user)
        if user is not None:
            session.run.mark(_NAMED, "users")
        self._entered.add(trial)
        details = s.mechanism, s.worst, self.noise
        return Entry(s.metric, value, self.declared(trial, value), details)

    def charge(self, trial: str, message: Message) -> tuple[float | None, str]:
        """Charges a user before anything is drawn: (the release if there is one, a token)."""
        return self.session.charge(trial, self.read(message, "charge", trial))
