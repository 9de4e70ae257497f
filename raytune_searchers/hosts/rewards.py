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
from raytune_searchers.hosts import base
from raytune_searchers.hosts.base import RUN, Host, Kind, declared, record_of, remember

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


def _opened(host: Host) -> RewardSession:
    s: LedgerSettings = host.settings
    session = RewardSession(
        s.mechanism, host.open_vault(), f"ray-ldp/{s.run}",
        user_budget=s.user_budget, user_delta=s.user_delta,
    )  # fmt: skip
    remember(session.run, s.seen)
    return session


# The driver's side ------------------------------------------------------------------------------


def _join(host: Host, settings: LedgerSettings) -> tuple[str, tuple[str, ...]]:
    """As every host of a run; noise of a test's counts from the start."""
    if is_test(host.noise):
        host.session.run.mark_unprotected(TEST_NOISE)
    return base.join(host, settings)


def _record(host: Host, trial: str, operations: Collection[str] = ()) -> TrialRecord:
    """Returns the record of a trial, and which of some operations it declared public."""
    value = host.session.replay(trial)
    return record_of(host, trial, operations, value, value is not None or trial in host.entered)


def _failed(host: Host) -> None:
    """Records that a trial failed, which the guarantee reports."""
    host.session.run.note(_FAILED)


def _claim(host: Host, reasons: list[str]) -> LocalGuarantee:
    session: RewardSession = host.session
    named = bool(session.run.marks(_NAMED))
    return session.guarantee(_facts(host)["done"], users_named=named, reasons=reasons)


def _facts(host: Host) -> dict[str, Any]:
    with host.session.run.transaction() as tx:
        return {"done": tx.n_released()}


def _details(host: Host) -> dict[str, Any]:
    rows = _ledger(host)
    return {
        "published": {trial: value for trial, *_, value in rows if value is not None},
        "entered": frozenset(trial for trial, *_ in rows),
        "vouched": host.session.run.declared_public(),
    }


def _ledger(host: Host) -> list[tuple[str, str, float, float, float | None]]:
    """(trial, pseudonym, epsilon, delta, release or None) of every evaluation."""
    with host.session.run.transaction() as tx:
        return tx.evaluations()  # type: ignore[no-any-return]


# The trials' side -------------------------------------------------------------------------------


def _enter(host: Host, trial: str, message: Message) -> Entry:
    """Starts a trial; the host charges no user yet.

    Raises:
        BudgetExceededError: If its user's budget does not allow another evaluation.
    """
    session: RewardSession = host.session
    user, value = host.read(message, "enter", trial), session.replay(trial)
    if value is None:
        session.check(trial, user)
    if user is not None:
        session.run.mark(_NAMED, "users")
    host.entered.add(trial)
    s: LedgerSettings = host.settings
    return Entry(s.metric, value, declared(host, trial, value), (s.mechanism, s.worst, host.noise))


def _charge(host: Host, trial: str, message: Message) -> tuple[float | None, str]:
    """Charges a user before anything is drawn: (the release if there is one, a token)."""
    session: RewardSession = host.session
    return session.charge(trial, host.read(message, "charge", trial))


LEDGER = Kind(
    missing=USERS_LEDGER,
    open=_opened,
    prefix="ldp/",
    fixed=("mechanism", "user_budget", "user_delta", "metric", "maximize"),
    claim=_claim,
    facts=_facts,
    details=_details,
    operations={
        **RUN,
        "join": _join,
        "record": _record,
        "failed": _failed,
        "ledger": _ledger,
        "enter": _enter,
        "charge": _charge,
        "store": "store",
    },
)
"""The host of a ledger of users' evaluations; a test's noise is handed to trials."""
