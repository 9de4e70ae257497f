"""The user's side of local privacy: clips, charges, privatises and stores one reward.

The paper calls it Curator 1. It runs in the process that evaluates a user's reward. The raw reward
is an argument of one function and is kept nowhere; the vault holds who was charged for which
evaluation (a play in the paper), and the release. Where the reward is evaluated by a process that
has no vault, the charge is made here and the noise is drawn there
(:func:`privbo_plugins.store.release.draw_reward`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from privbo_plugins.errors import (
    ANOTHER_POINT,
    BudgetExceededError,
    PrivacyError,
    VaultError,
)
from privbo_plugins.privacy.accountant import (
    Cost,
    evaluations_delta,
    evaluations_epsilon,
    events_of,
)
from privbo_plugins.privacy.figures import as_it_is, not_below
from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import Gaussian, LocalMechanism
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sanitize import retelling
from privbo_plugins.sessions.run_settings import asked_with, check_asked
from privbo_plugins.spaces import Space
from privbo_plugins.store.log import EVALUATION, NOTE, UNPROTECTED
from privbo_plugins.store.release import Order, Outlet
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import Vault
from privbo_plugins.users import User, one_name

_WORDS = {
    "laplace": "clipping to the public range, Laplace noise (OpenDP, on a fixed grid)",
    "duchi": "clipping to the public range, unbiased rounding to its ends, randomised response",
    "piecewise": "clipping to the public range, the piecewise mechanism on 2^20 points",
    "hybrid": "clipping to the public range, the piecewise mechanism or randomised response by a "
    "coin that does not depend on the reward",
    "gaussian": "clipping to the public range, analytic Gaussian noise (OpenDP, up to its grid)",
}


STUDY = "study"
"""Kind of marks: what the host calls a run whose name in the vault is a code."""

_POINT = "point"
"""Kind of marks: a digest of the parameters that a trial was released at."""


class RewardSession:
    """One run's mechanism, its noise and the ledger of its users; no raw reward is ever kept.

    Args:
        mechanism: What happens to a reward.
        vault: Where charges and releases are kept.
        host_key: Name of the run in the vault; the first session starts it.
        user_budget: The most epsilon that one user may be charged in all runs of the vault, at
            ``user_delta``; None for no limit.
        user_delta: Delta of one user's total and its limit; at 0 pure epsilons add up.
        noise: Test injection only; a run with it is reported as unprotected.
        config: Settings of the algorithm that asks for the rewards, JSON-ready, with its name as
            "algorithm" and all else that shall not change under way; stored with a run that is
            started. None where any algorithm may ask.
        space: What it searches; stored with the run. None where the host alone knows it.

    Raises:
        ValueError: If the budget is smaller than what one evaluation costs, or the run is asked
            for rewards with another ``config``.
        SpaceChangedError: If it is asked over another space.
        TypeError: If ``config`` is not JSON-ready.
        VaultError: If the run was started with another mechanism, budget or delta.

    Example:
        >>> from privbo_plugins.privacy.local import make_mechanism
        >>> from privbo_plugins.store.vault import open_vault
        >>> session = RewardSession(make_mechanism(1.0, bound=1.0), open_vault(), "study")
        >>> first = session.release("0", 0.25, "Jane", worst=-1.0)
        >>> session.release("0", 0.99, "Jane", worst=-1.0) == first  # replayed, not drawn again
        True
    """

    def __init__(
        self,
        mechanism: LocalMechanism,
        vault: Vault,
        host_key: str,
        *,
        user_budget: float | None = None,
        user_delta: float = 0.0,
        noise: NoiseSource | None = None,
        config: Mapping[str, Any] | None = None,
        space: Space | None = None,
    ) -> None:
        check_user_budget(mechanism, user_budget, user_delta)
        self.mechanism, self.vault, self.user_budget = mechanism, vault, user_budget
        self.user_delta = user_delta
        own = {**mechanism.parameters(), "user_budget": user_budget, "user_delta": user_delta}
        asked = asked_with(config, space)
        self.run = begin_or_join(
            vault, host_key, own | asked, same=lambda stored: _check_same(stored, own, asked)
        )
        self._outlet = Outlet(self.run, noise)

    def _pseudonym(self, trial: str, user: User | None) -> str:
        """A salted hash of the name, which is kept nowhere; without a name, of the trial."""
        name = f"play:{trial}" if user is None else f"user:{one_name(user)!r}"
        return hashlib.sha256(f"{self.vault.vault_id}/{name}".encode()).hexdigest()

    def replay(self, trial: str) -> float | None:
        """Returns what was released of a trial before, if anything."""
        with self.run.transaction() as tx:
            known: float | None = tx.released(EVALUATION, trial)
            return known

    @retelling
    def check(self, trial: str, user: User | None) -> None:
        """Refuses a user whose budget is used up, before the reward is even evaluated.

        Raises:
            BudgetExceededError: If one more evaluation would exceed it.
            ValueError: If the user's name is none.
        """
        person = self._pseudonym(trial, user)
        with self.run.transaction() as tx:
            if tx.payer(trial) is None:
                self._check(tx, person)

    def _check(self, tx: Transaction, person: str) -> None:
        if self.user_budget is None:
            return
        evaluations = Counter([self.mechanism.evaluation])
        for _, _, mechanism, epsilon, delta, k in tx.evaluation_counts(person):
            evaluations.update(_evaluations(mechanism, epsilon, delta, k))
        total = evaluations_epsilon(evaluations, self.user_delta)
        if total > self.user_budget * (1 + 1e-9):
            at = f" at delta={as_it_is(self.user_delta)}" if self.user_delta else ""
            # Hosts show this text: what the user has paid so far stays in the vault.
            raise BudgetExceededError(
                "With one more evaluation this user would have paid more than user_budget="
                f"{as_it_is(self.user_budget)}{at}, in all runs of this vault. Nothing was drawn. "
                "Ask another user; study.optimize goes on to the next trial if it is given "
                "catch=(BudgetExceededError,)."
            )

    @retelling
    def release(
        self, trial: str, reward: float, user: User | None, worst: float, point: str = ""
    ) -> float:
        """Charges the user, privatises the reward and stores the release, in one transaction.

        Args:
            trial: The evaluation; what it released before is replayed, for any reward.
            reward: The raw reward.
            user: Whose it is; None takes every evaluation for another user's.
            worst: What NaN and infinity count as.
            point: Digest of the parameters; what was released at others is not replayed.

        Returns:
            The release.

        Raises:
            BudgetExceededError: If the user's budget does not allow it; nothing is drawn.
            PrivacyError: If the trial was released at another point.
            VaultError: If the vault refuses; nothing is published.
        """
        order = self._order(trial, user)
        with self.run.transaction() as tx:
            points = () if tx.released(EVALUATION, trial) is None else tx.marks(_POINT)
            known = [at for at in points if at.endswith(f"/{trial}")]
            if known and f"{point}/{trial}" not in known:
                raise PrivacyError(ANOTHER_POINT)
            tx.mark(_POINT, f"{point}/{trial}")
            return self._outlet.release(
                tx, order, lambda noise: self.mechanism.randomize(reward, noise, worst)
            )

    @retelling
    def charge(self, trial: str, user: User | None) -> tuple[float | None, str]:
        """Charges a user for an evaluation that is drawn elsewhere: (its release if any, a token).

        An evaluation whose process died after the charge and before :meth:`store` is not charged
        again: its token is void from now on, so that its draw is never stored.

        Raises:
            BudgetExceededError: If the user's budget does not allow it.
            PrivacyError: If another user was charged for it.
        """
        with self.run.transaction() as tx:
            return self._outlet.admit(tx, self._order(trial, user))

    def store(self, trial: str, token: str, value: float) -> float:
        """Stores what the token's holder drew; a release that is there stays, and is returned.

        Raises:
            PrivacyError: If the token is void, or the mechanism could not have drawn the value.
        """
        if not (isinstance(value, float) and self.mechanism.could_release(value)):
            raise PrivacyError(
                "A release was refused, because the run's mechanism cannot give such a value: it "
                "must be a float that the mechanism drew. Nothing was published; let the trial be "
                "retried."
            )
        with self.run.transaction() as tx:
            return self._outlet.accept(tx, self._order(trial, None), token, value)

    def _order(self, trial: str, user: User | None) -> Order:
        person = self._pseudonym(trial, user)
        return Order(EVALUATION, trial, lambda tx: self._charge(tx, trial, person))

    def _charge(self, tx: Transaction, trial: str, person: str) -> None:
        payer = tx.payer(trial)
        if payer not in (None, person):
            raise PrivacyError(
                "This trial has been charged to another user and was not released; nothing is "
                "drawn for this one. Start another trial."
            )
        if payer is None:
            self._check(tx, person)
            tx.charge_evaluation(trial, person, self.mechanism.epsilon, self.mechanism.delta)

    def evaluations(self) -> dict[str, float]:
        """Releases by trial."""
        with self.run.transaction() as tx:
            return {trial: y for trial, _, _, _, y in tx.evaluations() if y is not None}

    @retelling
    def adopt(self, trial: str, user: User | None, value: float) -> None:
        """Charges an evaluation that another vault released, so that it is paid for here too."""
        person = self._pseudonym(trial, user)
        with self.run.transaction() as tx:
            if tx.payer(trial) is None:
                tx.charge_evaluation(trial, person, self.mechanism.epsilon, self.mechanism.delta)
            if tx.released(EVALUATION, trial) is None:
                tx.release(EVALUATION, trial, value)

    @property
    def users_named(self) -> bool:
        """Checks whether any evaluation was charged to a named user, and not to itself."""
        with self.run.transaction() as tx:
            payers = [(trial, person) for trial, person, *_ in tx.evaluations()]
        return any(person != self._pseudonym(trial, None) for trial, person in payers)

    def most(self) -> tuple[int, float]:
        """Evaluations and epsilon of the user of this run who paid most, other runs included."""
        return _most(self._users(), self.user_delta or self.mechanism.delta)[:2]

    def _users(self, unknown: int = 0) -> list[Counter[Cost]]:
        """Evaluations of every user of this run, other runs and ``unknown`` more included.

        Those that are not known here may be anybody's whom the vault knows.
        """
        of: defaultdict[str, Counter[Cost]] = defaultdict(Counter)
        mine = set()
        with self.run.transaction() as tx:
            for person, run, mechanism, cost, at, k in tx.evaluation_counts():
                of[person].update(_evaluations(mechanism, cost, at, k))
                mine |= {person} if unknown or run == self.run.run_id else set()
        more = Counter({self.mechanism.evaluation: unknown})
        return [of[person] + more for person in mine] or [+more]

    def guarantee(
        self,
        n_evaluations: int,
        *,
        users_named: bool,
        unknown_evaluations: int = 0,
        repeats: int = 1,
        reasons: Iterable[str] = (),
        notes: Iterable[str] = (),
    ) -> LocalGuarantee:
        """Returns what may be claimed.

        Args:
            n_evaluations: Releases that the host framework shows.
            users_named: Whether evaluations were charged to named users.
            unknown_evaluations: Of these, those that this ledger does not know; they are taken to
                be of the user who paid most.
            repeats: The most releases that one trial shows.
            reasons: Why nothing may be claimed.
            notes: What a reader should know.
        """
        with self.run.transaction() as tx:
            marks, noted = tx.marks(UNPROTECTED), tx.marks(NOTE)
        return local_guarantee(
            self.mechanism,
            n_evaluations,
            min(n_evaluations, repeats),
            users=self._users(unknown_evaluations) if users_named else None,
            user_delta=self.user_delta,
            users_named=users_named,
            reasons=[*marks, *reasons],
            notes=[*noted, *notes],
        )


def _check_same(
    stored: Mapping[str, Any], own: Mapping[str, Any], asked: Mapping[str, Any]
) -> None:
    known = {name: stored[name] for name in own if name in stored}
    if known != json.loads(json.dumps(own)):
        raise VaultError(
            "The vault holds evaluations of this run under another mechanism, epsilon, range "
            "or user budget. Use the same, or another study."
        )
    check_asked(stored, asked)


def _evaluations(mechanism: str | None, epsilon: float, delta: float, k: int) -> Counter[Cost]:
    """Returns what a ledger holds of k evaluations of the same cost in some run."""
    return Counter({Cost(epsilon, delta, gaussian=mechanism == Gaussian.name): k})


def _worst(users: Iterable[Counter[Cost]]) -> list[Counter[Cost]]:
    """Each way to have paid once, without those of whom another user paid all, and more."""
    distinct = [Counter(dict(paid)) for paid in {frozenset(one.items()) for one in users}]
    return [one for one in distinct if not any(one < other for other in distinct)]


def _most(users: Iterable[Counter[Cost]], least: float) -> tuple[int, float, float]:
    """Evaluations and epsilon of who paid most, and the delta at which no user paid more."""
    users = _worst(users)
    delta = max(evaluations_delta(evaluations, least) for evaluations in users)
    epsilon, most = max(
        (evaluations_epsilon(evaluations, delta), evaluations.total()) for evaluations in users
    )
    return most, epsilon, delta


def local_guarantee(
    mechanism: LocalMechanism,
    n_evaluations: int,
    most_evaluations: int,
    *,
    users_named: bool,
    users: Iterable[Counter[Cost]] | None = None,
    user_delta: float = 0.0,
    reasons: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> LocalGuarantee:
    """A guarantee for so many evaluations, of which one user had at most so many.

    Args:
        mechanism: What happens to a reward.
        n_evaluations: Releases.
        most_evaluations: Of these, the most of one user.
        users_named: Whether evaluations were charged to named users.
        users: What each user paid, if more is known than ``most_evaluations``.
        user_delta: Delta at which that holds; 0 for the mechanism's own.
        reasons: Why nothing may be claimed.
        notes: What a reader should know.
    """
    why = tuple(dict.fromkeys(reasons))
    protected = not why and n_evaluations > 0
    known = [Counter({mechanism.evaluation: most_evaluations})] if users is None else users
    most, epsilon, delta = _most(known, user_delta or mechanism.delta)
    return LocalGuarantee(
        protected=protected,
        mechanism=_WORDS[mechanism.name],
        epsilon_evaluation=mechanism.epsilon if protected else math.inf,
        delta_evaluation=mechanism.delta,
        n_evaluations=n_evaluations,
        most_evaluations=most,
        epsilon_most=epsilon if protected else math.inf,
        delta_most=delta,
        users_named=users_named,
        parameters=mechanism.parameters(),
        reasons=why,
        notes=tuple(notes),
        composed=tuple(frozenset(events_of(one).items()) for one in _worst(known) if one.total()),
    )


def check_user_budget(
    mechanism: LocalMechanism, user_budget: float | None, user_delta: float = 0.0
) -> None:
    """Checks that a budget allows for one evaluation at least.

    Raises:
        ValueError: If it does not, or the delta is none.
    """
    if not 0 <= user_delta < 1:
        raise ValueError(f"user_delta must lie in [0, 1), got {user_delta}.")
    if user_budget is None:
        return
    if mechanism.delta and not user_delta:
        raise ValueError(
            f"user_budget= holds at user_delta=, which is 0: no epsilon is enough there for the "
            f"{mechanism.name} mechanism, which has a delta. Give user_delta=, for example "
            f"{as_it_is(mechanism.delta)}."
        )
    one = evaluations_epsilon({mechanism.evaluation: 1}, user_delta)
    if not user_budget >= one:
        raise ValueError(
            f"user_budget must be at least the epsilon of one evaluation, {not_below(one, 6)}, "
            f"got {user_budget}."
        )
