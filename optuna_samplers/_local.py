"""Privatised rewards in Optuna: an objective whose reward is randomised before it is returned."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.study import Study, StudyDirection

from optuna_samplers import _evaluations, _logs, _study
from optuna_samplers._audit import BESIDE, Audit
from optuna_samplers._evaluations import PLAY_ATTR, PUBLIC_ATTR, StoredEvaluations
from optuna_samplers._guard import GuardedTrial, Releasing, check_objective, released
from optuna_samplers._sampler import OfStudy, Studies
from optuna_samplers._settings import RewardRunSettings
from privbo_plugins import sanitize
from privbo_plugins.convert import as_reward
from privbo_plugins.errors import VaultError
from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import LocalMechanism, RewardPrivacy, make_mechanism
from privbo_plugins.privacy.settings import NoiseSettings, UserSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.rewards import (
    STUDY,
    RewardSession,
    check_user_budget,
    local_guarantee,
)
from privbo_plugins.settings import again, called_with, named, setting, settings
from privbo_plugins.store.log import hashed
from privbo_plugins.store.release import is_test
from privbo_plugins.store.vault import Vault, open_vault
from privbo_plugins.users import NO_NAME, User, check_named, user_name

RUN_ATTR = "privbo:ldp"
"""Study attribute that remembers the run of the users' ledger and its vault."""

_NO_LEDGER = (
    "users were named, and how often each was asked, in other studies too, only their ledger "
    "knows: give the vault= in which it lies"
)

_DIRECTION = {
    StudyDirection.MAXIMIZE: "Values are rewards, which are maximised.",
    StudyDirection.MINIMIZE: "Values are costs, which are minimised. For rewards: "
    'optuna.create_study(direction="maximize").',
}
"""What is tuned, as it is logged once."""

_SETTLE = 0.05
"""Seconds in which another worker's claim of a new study shows up."""

UserOf = User | Callable[[optuna.Trial], User]


@dataclass(eq=False, kw_only=True)
class _Rewards(OfStudy):
    """What one objective keeps of one study; its users' evaluations are in the ledger."""

    audit: Audit
    run_id: str = ""
    session: RewardSession | None = None
    shown: int | None = None


class LocalObjective(Releasing, Studies[_Rewards]):
    """An objective that returns a privatised reward; made by :func:`ldp_objective`.

    Attributes:
        mechanism: What happens to each reward.
    """

    _vault: Vault | None = None
    _noise: NoiseSource | None = None
    _OF_THIS_PROCESS = (*Studies._OF_THIS_PROCESS, "_vault", "_noise")

    def __init__(
        self,
        objective: Callable[[Any], Any],
        mechanism: LocalMechanism,
        given: RewardRunSettings,
        user_id: UserOf | None = None,
    ) -> None:
        check_objective(objective, "one reward")
        check_user_budget(mechanism, given.user_budget, given.user_delta)
        check_named(given.user_budget, user_id, "trial")
        self.mechanism = mechanism
        self._objective, self._user_id = objective, user_id
        self._limits, self._noise = named(given, UserSettings), given.noise
        self._vault = open_vault(given.vault)
        self._vault_handle = self._vault.handle
        super().__init__(given)

    def _new_state(self, study: Study) -> _Rewards:
        audit = Audit(_evaluations.unexplained, self._claim_nothing, self._search_space)
        return _Rewards(audit=audit)

    def __repr__(self) -> str:
        return f"LocalObjective({self.mechanism.parameters()})"  # the objective's may quote data

    # The ledger -----------------------------------------------------------------------------

    def _session(self, study: Study) -> RewardSession:
        with self._lock:
            if self._vault is None:
                self._vault = self._reopened()
            run_id, own = self._run_id_of(study, self._vault), self._state(study)
            if own.session is None or own.run_id != run_id:
                _study.refuse_shared_database(study, self._vault)
                self._forget(study)
                own, name = self._state(study), f"optuna-ldp/{run_id}"
                limits, noise = self._limits, self._noise
                session = RewardSession(self.mechanism, self._vault, name, **limits, noise=noise)
                _study.guard(study, session.run)
                session.run.mark(STUDY, study.study_name)
                own.run_id, own.session = run_id, session
                _logs.logger.info(_DIRECTION[study.direction])
            return own.session

    def _reopened(self) -> Vault:
        """The vault after unpickling; one in memory starts anew where no user is named.

        Without names every trial counts as another user's, so a fresh vault forgets no user.
        """
        try:
            return open_vault(self._vault_handle)
        except VaultError:
            if self._user_id is not None:
                raise
            return open_vault()

    def _run_id_of(self, study: Study, vault: Vault) -> str:
        """The id of the run that the study remembers, or a new one.

        Raises:
            VaultError: If users are named and another vault already counts their evaluations.
        """
        known, own = study.user_attrs.get(RUN_ATTR), _study.own_name(study)
        if known is None or known["study"] != own:  # a copy of a study is another one
            claim = {"run": uuid.uuid4().hex, "vault": vault.vault_id, "study": own}
            study.set_user_attr(RUN_ATTR, claim)
            in_memory = isinstance(study._storage, optuna.storages.InMemoryStorage)
            time.sleep(0 if in_memory else _SETTLE)
            known = study.user_attrs[RUN_ATTR]
        if self._user_id is not None and known["vault"] != vault.vault_id:
            raise VaultError(
                "Another vault counts this study's users, so one user could pay twice. Give all "
                "workers, and every resumed run, the same vault=, for example "
                "vault='sqlite:///private.db'."
            )
        return str(known["run"])

    def _user(self, trial: GuardedTrial) -> tuple[User | None, BaseException | None]:
        """(whose reward it is, None), or (None, why no user can be charged)."""
        user: Any = self._user_id
        if user is None:
            return None, None
        named, error = sanitize.call(lambda: user(trial) if callable(user) else user)
        if error is not None:
            return None, error
        return sanitize.call(lambda: user_name(named), lambda _: ValueError(NO_NAME))

    # One evaluation -------------------------------------------------------------------------

    def _evaluate(self, trial: optuna.Trial) -> tuple[float | None, BaseException | None]:
        study = trial.study
        _study.refuse_multi_objective(study, "ldp_objective")
        frozen = _study.frozen_of(trial)
        session, key = self._session(study), _study.key_of(frozen)
        held = {PLAY_ATTR, PUBLIC_ATTR} & set(frozen.user_attrs)
        if held.difference(_evaluations.own_attributes(frozen)):  # a journal keeps it for ever
            self._claim_nothing(study, BESIDE)
        check = partial(self._state(study).audit.check, study)
        guarded = GuardedTrial(trial, partial(_evaluations.declare, trial), check)
        user, error = self._user(guarded)
        if error is not None:
            return None, error
        earlier = _evaluations.evaluation_of(frozen) or {}
        if self.mechanism.parameters().items() <= earlier.items():  # a retry brings it along
            session.adopt(key, user, earlier["release"])
        _, error = sanitize.call(partial(session.check, key, user), sanitize.sanitized)
        if error is not None:
            return None, error
        worst = self._worst(study)  # before there is a reward: storage may fail
        release = partial(_release, session, key, user, worst, guarded)
        value, error = released(self._objective, guarded, release)
        if value is not None:
            shown = {"release": value, "user_named": user is not None}
            shown |= {**self.mechanism.parameters(), "test_noise": is_test(self._noise)}
            trial.set_user_attr(PLAY_ATTR, shown)
            self._refresh(study)
        return value, error

    def _claim_nothing(self, study: Study, reason: str) -> None:
        study.set_user_attr(_study.EXPOSED_ATTR, reason)
        self.guarantee(study)
        self._state(study).warn(reason)

    def _refresh(self, study: Study) -> None:
        """Keeps the paragraph in the study true: other trials may not have been privatised."""
        own = self._state(study)
        own.audit.look(study)
        found = len(own.audit.found)
        if own.shown != found:
            self.guarantee(study)
            own.shown = found

    def _worst(self, study: Study) -> float:
        """Returns the value that NaN and infinity count as: the worst end of the range."""
        maximize = study.direction == StudyDirection.MAXIMIZE
        return self.mechanism.low if maximize else self.mechanism.high

    # What the user reads --------------------------------------------------------------------

    def guarantee(self, study: Study) -> LocalGuarantee:
        """Claims what holds for a study, after comparing its values with their releases."""
        study = _study.whole(study)
        found = _evaluations.read_evaluations(study, self.mechanism, self._search_space)
        found.users_named |= self._user_id is not None
        ledger = self._ledger(study, found.users_named)
        if ledger is None:
            guarantee = _without_ledger(self.mechanism, found)
        else:
            guarantee = _of_ledger(ledger, found)
        said = ledger is None and _study.GUARANTEE_ATTR in study.user_attrs
        # The ledger may know why nothing is claimed.
        return _study.show_guarantee(study, guarantee, write=not (guarantee.protected and said))

    def _ledger(self, study: Study, users_named: bool) -> RewardSession | None:
        """The ledger of the study's evaluations; None where it has begun none, or is elsewhere.

        Without names a ledger of one's own will do, which then counts no user twice.
        """
        known = study.user_attrs.get(RUN_ATTR)
        if known is None:
            return None
        if users_named:
            try:
                if open_vault(self._vault_handle).vault_id != known["vault"]:
                    return None
            except VaultError:  # it is elsewhere, or gone with its process
                return None
        return self._session(study)


def _release(
    session: RewardSession,
    key: str,
    user: User | None,
    worst: float,
    trial: GuardedTrial,
    returned: Any,
) -> float:
    """Releases what an objective returned; nothing here touches the study."""
    reward = as_reward(returned)
    point = hashed(json.dumps(trial.params, sort_keys=True, default=repr))
    return session.release(key, reward, user, worst, point)


def _of_ledger(ledger: RewardSession, found: StoredEvaluations) -> LocalGuarantee:
    evaluations = ledger.evaluations()
    if not ledger.vault.in_memory and found.contradicted_by(evaluations):
        found.reasons.append(_evaluations.OTHER_RELEASE)
    unknown = len(found.releases - set(evaluations.items()))
    n = max(found.n, len(evaluations))
    return ledger.guarantee(n, unknown_evaluations=unknown, repeats=found.repeats, **found.told())


def _without_ledger(mechanism: LocalMechanism, found: StoredEvaluations) -> LocalGuarantee:
    """Returns the claim of a study alone, which does not know how often a user was asked."""
    if found.users_named:
        found.notes.append(_NO_LEDGER)
    claim = local_guarantee(mechanism, found.n, found.repeats, **found.told())
    return claim.at_most() if found.n and found.users_named else claim


@settings(eq=False)
class _Settings(RewardPrivacy, UserSettings):
    """Arguments of :func:`ldp_objective`."""

    objective: Callable[[Any], Any] = setting(
        "From a guarded trial to one number, the reward (or cost) of one user. NaN and "
        "infinity count as the end of the range that the study's direction does not want.",
        kw_only=False,
    )
    epsilon: float = setting("Privacy parameter of one reward, > 0 and finite.")
    user_id: UserOf | None = setting(
        "Whose reward a trial is: a string, bytes or integer, or a function from the trial "
        'to one, which must name somebody. ``7``, ``"7"`` and ``b"7 "`` are one name. A '
        "user who is asked k times pays k times. None: every trial asks another user.",
        default=None,
    )
    vault: str | Path | None = setting(
        "Where users' evaluations are counted: None for this objective alone, or a path or URL "
        "(never a raw reward goes there). Several objectives or processes that name users "
        "need one URL.",
        default=None,
    )
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


@called_with(_Settings)
def ldp_objective(given: _Settings) -> LocalObjective:
    """Makes every trial of any sampler locally private: each trial is one user's reward.

    The reward is clipped and privatised in the process that evaluates it, before Optuna sees it:
    run the trials where the users' data are (``study.optimize`` in the user's own process, or
    ask/tell from it). Everything that the study holds afterwards, and all that a sampler makes of
    it, is eps-LDP. Source: Zhou and Tan, Curator 1, and the mechanisms of
    :mod:`privbo_plugins.privacy.local`.

    {settings}

    Returns:
        An objective for ``study.optimize`` with ``guarantee(study)``.

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault cannot be opened.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> private = ldp_objective(
        ...     lambda trial: trial.suggest_float("x", 0, 1), epsilon=1.0, value_range=(0, 1)
        ... )
        >>> study = optuna.create_study(direction="maximize")
        >>> study.optimize(private, n_trials=3)
        >>> private.guarantee(study).n_evaluations
        3
    """
    mechanism = make_mechanism(given.epsilon, **named(given, RewardPrivacy, but=("epsilon",)))
    run = RewardRunSettings(vault=given.vault, noise=given.noise, **named(given, UserSettings))
    return LocalObjective(given.objective, mechanism, run, given.user_id)
