"""The users' ledger in a Ray actor: who was charged for which evaluation, and its release.

No raw reward ever comes here: a reward is clipped and privatised in the worker that evaluates it,
and only what came out is sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sealing import Message
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.shown import TrialRecord
from privbo_plugins.store.release import TEST_NOISE, is_test
from raytune_searchers._channel import USERS_LEDGER, Entry
from raytune_searchers.hosts.base import RunHost

_NAMED = "named"
"""Kind of marks in the vault: that users are named."""

_FAILED = (
    "trials failed: whether a trial fails may tell of its user's reward; what a private function "
    "raises is withheld, but not what is raised or logged around it"
)


@dataclass(frozen=True)
class LedgerSettings:
    """Everything that a ledger's host needs to start or join a run; all of it public.

    Attributes:
        run: Name of the run.
        mechanism: What happens to a reward.
        user_budget: The most epsilon that one user may be charged in all.
        metric: Under which name trials report.
        maximize: Whether larger rewards are better.
        vault_id: Identity of the vault, if it must exist already.
        seen: How far the driver has seen the chain of releases: the ledger must hold it.
        user_delta: At which ``user_budget`` is meant.
    """

    run: str
    mechanism: LocalMechanism
    user_budget: float | None
    metric: str
    maximize: bool
    vault_id: str | None = None
    seen: tuple[int, str] = (0, "")
    user_delta: float = 0.0

    @property
    def worst(self) -> float:
        """Returns the value that NaN and infinity count as: the worst end of the range."""
        return self.mechanism.low if self.maximize else self.mechanism.high


class LedgerHost(RunHost[RewardSession]):
    """A ledger of evaluations behind one method that never raises.

    Args:
        settings: The run.
        url: Database of the ledger; None keeps it in this process.
        noise: Test injection, handed to trials.
    """

    KIND = "ldp/"
    MISSING = USERS_LEDGER
    FIXED = ("mechanism", "user_budget", "user_delta", "metric", "maximize")

    def __init__(
        self, settings: LedgerSettings, url: str | None, noise: NoiseSource | None
    ) -> None:
        super().__init__(settings, url, noise)
        self._entered: set[str] = set()

    def _opened(self) -> RewardSession:
        s: LedgerSettings = self._settings
        return RewardSession(
            s.mechanism, self._open_vault(), f"ray-ldp/{s.run}",
            user_budget=s.user_budget, user_delta=s.user_delta,
        )  # fmt: skip

    # The driver's side ----------------------------------------------------------------------

    def join(self, settings: LedgerSettings) -> tuple[str, tuple[str, ...]]:
        """Identity of the vault, and why nothing may be claimed, if so from the start.

        Raises:
            ValueError: If the driver's settings are not those of the run.
            VaultError: If it has seen more of the run.
        """
        if is_test(self._noise):
            self.mark_unprotected(TEST_NOISE)
        return super().join(settings)

    def record(self, trial: str, operations: Collection[str] = ()) -> TrialRecord:
        """Returns the record of a trial, and which of some operations it declared public."""
        with self._session.run.transaction() as tx:
            value, head = tx.evaluation(trial), tx.head()
        return TrialRecord(
            value,
            value is not None or trial in self._entered,
            self._session.run.declared_by(trial, operations),
            (head.n, head.digest),
        )

    def failed(self) -> None:
        """Records that a trial failed, which the guarantee reports."""
        self._session.run.note(_FAILED)

    def _guarantee(self, reasons: list[str]) -> LocalGuarantee:
        named = bool(self._session.run.marks(_NAMED))
        return self._session.guarantee(self._done(), users_named=named, reasons=reasons)

    def _done(self) -> int:
        with self._session.run.transaction() as tx:
            return tx.released_evaluations()

    def _details(self) -> dict[str, Any]:
        rows = self.ledger()
        return {
            "published": {trial: value for trial, *_, value in rows if value is not None},
            "entered": frozenset(trial for trial, *_ in rows),
            "vouched": self._session.run.declared_public(),
        }

    def ledger(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, pseudonym, epsilon, delta, release or None) of every evaluation."""
        with self._session.run.transaction() as tx:
            return tx.evaluations()

    # The trials' side -----------------------------------------------------------------------

    def enter(self, trial: str, message: Message) -> Entry:
        """Starts a trial; the host charges no user yet.

        Raises:
            BudgetExceededError: If its user's budget does not allow another evaluation.
        """
        user = self._read(message, "enter", trial)
        value = self._session.replay(trial)
        if value is None:
            self._session.check(trial, user)
        if user is not None:
            self._session.run.mark(_NAMED, "users")
        self._entered.add(trial)
        public = self._declared(trial, value)
        s: LedgerSettings = self._settings
        return Entry(s.metric, value, public, (s.mechanism, s.worst, self._noise))

    def charge(self, trial: str, message: Message) -> tuple[float | None, str]:
        """Charges a user before anything is drawn: (the release if there is one, a token)."""
        return self._session.charge(trial, self._read(message, "charge", trial))

    def store(self, trial: str, token: str, value: float) -> float:
        """Stores what the token's holder drew; the first release of a trial stays."""
        return self._session.store(trial, token, value)
