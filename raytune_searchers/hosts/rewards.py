"""The users' ledger in a Ray actor: who was charged for which evaluation, and its release.

No raw reward ever comes here: a reward is clipped and privatised in the worker that evaluates it,
and only what came out is sent.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sealing import Message
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.shown import TrialRecord
from privbo_plugins.store.release import TEST_NOISE, is_test
from privbo_plugins.store.run import NEVER_COMPARED
from privbo_plugins.store.transaction import UNPROTECTED
from raytune_searchers._admission import USERS_LEDGER, Admission, LedgerSettings
from raytune_searchers._channel import SHORT_RUN
from raytune_searchers.hosts.base import UNSEEN, Host

_NAMED = "named"
"""Kind of marks in the vault: that users are named."""

_FAILED = (
    "trials failed: whether a trial fails may tell of its user's reward; what a private function "
    "raises is withheld, but not what is raised or logged around it"
)


class LedgerHost(Host):
    """A ledger of evaluations behind one method that never raises.

    Args:
        settings: The run.
        url: Database of the ledger; None keeps it in this process.
        noise: Test injection, handed to trials.
    """

    KIND = "ldp/"
    GONE = USERS_LEDGER
    FIXED = ("mechanism", "user_budget", "user_delta", "metric", "maximize")
    ADDS = "the epsilons of users who are asked in both add up"

    def __init__(
        self, settings: LedgerSettings, url: str | None, noise: NoiseSource | None
    ) -> None:
        super().__init__(settings, url, noise)
        self._opened: RewardSession | None = None
        self._entered: set[str] = set()

    @property
    def _ledger(self) -> RewardSession:
        if self._opened is None:
            s: LedgerSettings = self._settings
            ledger = RewardSession(
                s.mechanism, self._open_vault(), f"ray-ldp/{s.run}",
                user_budget=s.user_budget, user_delta=s.user_delta,
            )  # fmt: skip
            self._remember(ledger.run, s.seen)
            if is_test(self._noise):
                ledger.run.mark_unprotected(TEST_NOISE)
            self._opened = ledger
        return self._opened

    # The driver's side ----------------------------------------------------------------------

    def join(self, settings: LedgerSettings) -> tuple[str, tuple[str, ...]]:
        """Identity of the vault, and why nothing may be claimed, if so from the start.

        Raises:
            ValueError: If the driver's settings are not those of the run.
        """
        ledger = self._ledger
        self._agree(ledger.run, settings)
        return ledger.vault.vault_id, ledger.run.marks(UNPROTECTED)

    def record(self, trial: str, operations: Collection[str] = ()) -> TrialRecord:
        """Returns the record of a trial, and which of some operations it declared public."""
        with self._ledger.run.transaction() as tx:
            value, head = tx.evaluation(trial), tx.head()
        return TrialRecord(
            value,
            value is not None or trial in self._entered,
            self._ledger.run.declared_by(trial, operations),
            (head.n, head.digest),
        )

    def compared(self, trial: str) -> None:
        """As :meth:`Run.mark_compared`."""
        self._ledger.run.mark_compared(trial)

    def mark_unprotected(self, reason: str) -> None:
        """Records for ever that nothing may be claimed."""
        self._ledger.run.mark_unprotected(reason)

    def failed(self) -> None:
        """Records that a trial failed, which the guarantee reports."""
        self._ledger.run.note(_FAILED)

    def report(self, unaudited: bool) -> dict[str, Any]:
        """Everything public: guarantee and releases.

        Args:
            unaudited: Whether a result passed by while the ledger did not answer.
        """
        rows = self.ledger()
        published = {trial: value for trial, *_, value in rows if value is not None}
        return {
            **self._status_of_page(len(published), unaudited),
            "published": published,
            "entered": frozenset(trial for trial, *_ in rows),
            "vouched": self._ledger.run.declared_public(),
        }

    def status(self, unaudited: bool) -> dict[str, Any]:
        """The report, of a long run without what grows with it.

        Args:
            unaudited: As for :meth:`report`.
        """
        with self._ledger.run.transaction() as tx:
            done = tx.released_evaluations()
        if done <= SHORT_RUN:
            return self.report(unaudited)
        return {**self._status_of_page(done, unaudited), "partial": True}

    def _status_of_page(self, done: int, unaudited: bool) -> dict[str, Any]:
        run, head = self._ledger.run, self.head()
        uncompared = run.uncompared()
        guarantee = self._ledger.guarantee(
            done,
            users_named=bool(run.marks(_NAMED)),
            reasons=[UNSEEN] * unaudited + [NEVER_COMPARED] * bool(uncompared),
        )
        return {"guarantee": guarantee, "done": done, "head": head, "uncompared": uncompared}

    def head(self) -> tuple[int, str]:
        """The end of the chain of releases."""
        head = self._ledger.run.head()
        return head.n, head.digest

    def ledger(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, pseudonym, epsilon, delta, release or None) of every evaluation."""
        with self._ledger.run.transaction() as tx:
            return tx.evaluations()

    # The trials' side -----------------------------------------------------------------------

    def enter(self, trial: str, message: Message) -> Admission:
        """Starts a trial; the host charges no user yet.

        Raises:
            BudgetExceededError: If its user's budget does not allow another evaluation.
        """
        user = self._read(message, "enter", trial)
        value = self._ledger.replay(trial)
        if value is None:
            self._ledger.check(trial, user)
        if user is not None:
            self._ledger.run.mark(_NAMED, "users")
        self._entered.add(trial)
        # only a trial that is not evaluated again needs to know what it had shown
        public = () if value is None else tuple(sorted(self._ledger.run.declared_by(trial)))
        return Admission(self._settings, value, public, self._noise)

    def charge(self, trial: str, message: Message) -> tuple[float | None, str]:
        """Charges a user before anything is drawn: (the release if there is one, a token)."""
        return self._ledger.charge(trial, self._read(message, "charge", trial))

    def store(self, trial: str, token: str, value: float) -> float:
        """Stores what the token's holder drew; the first release of a trial stays."""
        return self._ledger.store(trial, token, value)

    def vouch(self, operation: str, trial: str) -> None:
        """Records what a trial declared public."""
        self._ledger.run.declare_public(operation, trial)
