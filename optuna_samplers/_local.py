"""Privatised rewards in Optuna: an objective whose reward is randomised before it is returned."""

from __future__ import annotations

import functools
import itertools
import json
import math
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._guard import GuardedTrial, attempt_trial
from optuna_samplers._rollback_guard import StudyRollbackGuard
from optuna_samplers._sampler import OfStudy, Studies
from optuna_samplers._settings import SpaceSettings
from optuna_samplers._space import (
    ANOTHER_CONSTANT,
    ANOTHER_SPACE,
    CONSTANT_CHANGED,
    described,
    differing,
)
from optuna_samplers._study import (
    BESIDE,
    DECLARABLE,
    EXPOSED_ATTR,
    GUARANTEE_ATTR,
    attributes_note,
    failures_in,
    frozen_of,
    is_count,
    key_of,
    kind_of,
    outputs_of,
    own_name,
    refuse_multi_objective,
    refuse_shared_database,
    same,
    show_guarantee,
    suspicions,
    whole,
)
from privbo_plugins import sanitize
from privbo_plugins.convert import as_reward
from privbo_plugins.errors import PrivacyWarning, SpaceChangedError, VaultError
from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import (
    LOCAL_MECHANISMS,
    LocalMechanism,
    RewardPrivacy,
    make_mechanism,
)
from privbo_plugins.privacy.settings import NoiseSettings, UserSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sanitize import of_converting, sanitized
from privbo_plugins.sessions.rewards import RewardSession, check_user_budget, local_guarantee
from privbo_plugins.settings import again, called_with, named, setting, settings
from privbo_plugins.store.release import TEST_NOISE, is_test
from privbo_plugins.store.transaction import hashed
from privbo_plugins.store.vault import Vault, open_vault
from privbo_plugins.users import NO_NAME, User, user_name

RUN_ATTR = "privbo:ldp"
"""Study attribute that remembers the run of the users' ledger and its vault."""

PLAY_ATTR = "privbo:play"
"""Trial attribute with the release and the mechanism that it went through."""

PUBLIC_ATTR = "privbo:public"
"""Trial attribute with the operations that the objective declared public."""

_DRAW_ATTRS = ("privbo:agent", "privbo:epoch")
"""Trial attributes that DUETSSampler writes for the dashboard."""

_PARAMETERS = ("mechanism", "epsilon", "delta", "low", "high")
_NUMBERS, _FLAGS = (*_PARAMETERS[1:], "release"), ("user_named", "test_noise")

_NO_LEDGER = (
    "users were named, and how often each was asked, in other studies too, only their ledger "
    "knows: give the vault= in which it lies"
)

OTHER_RELEASE = "trials remember releases that their ledger does not hold"

PLAIN = "trials returned values that were not privatised"

_LONGEST_STEP = 20

_SETTLE = 0.05
"""Seconds in which another worker's claim of a new study shows up."""

UserOf = User | Callable[[optuna.Trial], User]


@dataclass
class StoredEvaluations:
    """What a study's storage says of its evaluations."""

    releases: set[tuple[str, float]] = field(default_factory=set)
    unshown: set[tuple[str, float]] = field(default_factory=set)
    public: set[str] = field(default_factory=set)
    mechanisms: set[tuple[str, float, float, float, float]] = field(default_factory=set)
    users_named: bool = False
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of evaluations; a retry that repeats the release of its trial does not count."""
        return len(self.releases)

    @property
    def repeats(self) -> int:
        """The most releases of one trial; more than one if a retry drew again."""
        return max(Counter(key for key, _ in self.releases).values(), default=0)


def read_evaluations(study: Study, mechanism: LocalMechanism) -> StoredEvaluations:
    """Compares every value in a study with the release that its trial remembers.

    Args:
        study: The study.
        mechanism: What every reward must have gone through.
    """
    stored = StoredEvaluations()
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        stored.public |= {kind_of(operation) for operation in _declared(trial)}
        stored.reasons += _suspicions(trial)
        if _is_evaluation(trial):
            _count(stored, trial)
    if stored.mechanisms - {tuple(mechanism.parameters().values())}:
        stored.reasons.append("some evaluations went through another mechanism than this one")
    stored.reasons += Suggested().look(trials)
    if EXPOSED_ATTR in study.user_attrs:
        known = study.user_attrs[EXPOSED_ATTR] == BESIDE
        stored.reasons.append(BESIDE if known else CONSTANT_CHANGED)
    failed = failures_in(trials)
    stored.notes += attributes_note(study)
    if stored.repeats > 1:
        stored.notes.append("a trial was retried where its first release was not known")
    for operation in sorted(stored.public):
        stored.notes.append(f"the objective declared what it gave to trial.{operation} public")
    if failed:
        stored.notes.append(
            f"{failed} trials failed or were pruned: whether a trial fails may tell of its user's "
            "reward"
        )
    return stored


def _suspicions(trial: FrozenTrial) -> list[str]:
    """Returns the reasons to claim nothing of the data that one trial holds."""
    release = trial.user_attrs[PLAY_ATTR]["release"] if _is_evaluation(trial) else None
    public = _declared(trial)
    return list(suspicions(trial, release, _own(trial), public, plain=PLAIN, beside=BESIDE))


class Suggested:
    """What trials have suggested so far, to compare further ones with."""

    def __init__(self) -> None:
        self._known: dict[str, BaseDistribution] = {}
        self._completed: set[str] | None = None
        self._elsewhere: set[str] = set()

    def look(self, trials: Iterable[FrozenTrial]) -> list[str]:
        """Returns the reasons to claim nothing of trials, and of those that were looked at before.

        A parameter keeps its range in trials of any state. One with a single value is one of
        those that completed trials have, if there are any.
        """
        found: dict[str, None] = {}
        for trial in trials:
            found.update(dict.fromkeys(differing(self._known, trial.distributions)))
            constants = {name for name, d in trial.distributions.items() if d.single()}
            if trial.state == TrialState.COMPLETE:
                self._completed = (self._completed or set()) | constants
            elif trial.state.is_finished():
                self._elsewhere |= constants
        if self._completed is not None and self._elsewhere - self._completed:
            found[CONSTANT_CHANGED] = None
        return list(found)


def _own(trial: FrozenTrial) -> set[str]:
    """Attributes that hold what a wrapped objective, or its sampler, writes there."""
    own = {name for name in _DRAW_ATTRS if is_count(trial.user_attrs.get(name))}
    own |= {PLAY_ATTR} if _is_evaluation(trial) else set()
    return own | ({PUBLIC_ATTR} if _declared(trial) else set())


def _is_evaluation(trial: FrozenTrial) -> bool:
    """Checks whether a trial has the marker of a release, and nothing else in its place."""
    evaluation: Any = trial.user_attrs.get(PLAY_ATTR)
    if not isinstance(evaluation, dict) or set(evaluation) != {*_PARAMETERS, *_NUMBERS, *_FLAGS}:
        return False
    numbers = all(_is_finite(evaluation[name]) for name in _NUMBERS)
    flags = all(type(evaluation[name]) is bool for name in _FLAGS)
    name = evaluation["mechanism"]
    return numbers and flags and type(name) is str and name in LOCAL_MECHANISMS


def _is_finite(value: Any) -> bool:
    """Checks whether it is a number as a storage keeps it: a subclass may show another one."""
    return type(value) in (int, float) and math.isfinite(value)


def _declared(trial: FrozenTrial) -> list[str]:
    """Operations that were declared public; none if the list holds anything else.

    Of a finished trial an attribute or constraint that it does not hold is something else: a
    text that was given to no guarded trial.
    """
    told: Any = trial.user_attrs.get(PUBLIC_ATTR)
    if not isinstance(told, list | tuple) or not all(type(text) is str for text in told):
        return []
    held = {*DECLARABLE, *outputs_of(trial, ())}
    plausible = all(text in held or _may_come(text, trial) for text in told)
    return list(told) if plausible else []


def _may_come(text: str, trial: FrozenTrial) -> bool:
    """Tells if an operation may have been declared without a trace: a retry drops reports."""
    kind = kind_of(text)
    step = text.removeprefix("report(").removesuffix(")")
    if kind == "report":
        return step.removeprefix("-").isdecimal() and len(step) < _LONGEST_STEP
    return kind in DECLARABLE and not trial.state.is_finished()


def _count(stored: StoredEvaluations, trial: FrozenTrial) -> None:
    evaluation = trial.user_attrs[PLAY_ATTR]
    release = key_of(trial), evaluation["release"]
    stored.releases.add(release)
    if trial.state in (TrialState.FAIL, TrialState.PRUNED):
        stored.unshown.add(release)
    stored.users_named |= evaluation["user_named"]
    stored.mechanisms.add(tuple(evaluation[name] for name in _PARAMETERS))
    if evaluation["test_noise"]:
        stored.reasons.append(TEST_NOISE)


def shows_release(trial: FrozenTrial) -> bool:
    """Checks whether a trial's value is the release that it remembers."""
    if not _is_evaluation(trial) or trial.value is None:
        return False
    return same(trial.value, trial.user_attrs[PLAY_ATTR]["release"])


class _Rewards(OfStudy):
    """What one objective keeps of one study; its users' evaluations are in the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.run_id = ""
        self.session: RewardSession | None = None
        self.looked_at: int | None = None
        self.suggested = Suggested()
        self.ranges: dict[str, dict[str, Any]] = {}


class LocalObjective(Studies[_Rewards]):
    """An objective that returns a privatised reward; made by :func:`ldp_objective`.

    Attributes:
        mechanism: What happens to each reward.
    """

    def __init__(
        self,
        objective: Callable[[Any], Any],
        mechanism: LocalMechanism,
        *,
        user_id: UserOf | None = None,
        user_budget: float | None = None,
        user_delta: float = 0.0,
        search_space: Mapping[str, BaseDistribution] | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        if not callable(objective):
            raise ValueError(
                "The objective must be a function of a trial that returns one reward, got a "
                f"{type(objective).__name__}."
            )
        check_user_budget(mechanism, user_budget, user_delta)
        if user_budget is not None and user_id is None:
            raise ValueError(
                "user_budget= limits what one user pays in all, so it needs user_id=: a name, or "
                "a function from the trial to the name of the user it asks."
            )
        self.mechanism = mechanism
        self._objective, self._user_id = objective, user_id
        self._user_budget, self._user_delta = user_budget, user_delta
        self._vault: Vault | None = open_vault(vault)
        self._vault_handle = self._vault.handle
        self._noise = noise
        super().__init__(SpaceSettings(search_space=search_space))

    def _new_state(self, study: Study) -> _Rewards:
        return _Rewards()

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings: no vault contents and no noise source."""
        return super().__getstate__() | {"_vault": None, "_noise": None}

    def __repr__(self) -> str:
        return f"LocalObjective({self.mechanism.parameters()})"  # the objective's may quote data

    # The ledger -----------------------------------------------------------------------------

    def _session(self, study: Study) -> RewardSession:
        with self._lock:
            if self._vault is None:
                self._vault = self._reopened()
            run_id, own = self._run_id_of(study, self._vault), self._state(study)
            if own.session is None or own.run_id != run_id:
                refuse_shared_database(study, self._vault)
                self._forget(study)
                own = self._state(study)
                session = RewardSession(
                    self.mechanism,
                    self._vault,
                    f"optuna-ldp/{run_id}",
                    user_budget=self._user_budget,
                    user_delta=self._user_delta,
                    noise=self._noise,
                )
                if not self._vault.in_memory:  # no backup of memory can be restored
                    session.run.guarded_by(StudyRollbackGuard(study, session.run))
                own.run_id, own.session = run_id, session
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
        known, own = study.user_attrs.get(RUN_ATTR), own_name(study)
        if known is None or known["study"] != own:  # a copy of a study is another one
            claim = {"run": uuid.uuid4().hex, "vault": vault.vault_id, "study": own}
            study.set_user_attr(RUN_ATTR, claim)
            time.sleep(0 if _in_memory(study) else _SETTLE)
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

    def __call__(self, trial: optuna.Trial) -> float:
        """Evaluates the objective on a guarded trial and returns the privatised reward."""
        value, error = self._evaluate(trial)
        if error is not None:
            raise error
        assert value is not None
        return value

    def _evaluate(self, trial: optuna.Trial) -> tuple[float | None, BaseException | None]:
        """(release, None), or (None, an error whose frames hold no raw reward)."""
        _check_trial(trial)
        study = trial.study
        refuse_multi_objective(study, "ldp_objective")
        frozen = frozen_of(trial)
        session, key = self._session(study), key_of(frozen)
        self._notice_overwritten(study, frozen)
        guarded = GuardedTrial(
            trial,
            lambda operation: _declare(trial, operation),
            functools.partial(self._check_suggestion, study),
        )
        user, error = self._user(guarded)
        if error is not None:
            return None, error
        earlier = frozen.user_attrs[PLAY_ATTR] if _is_evaluation(frozen) else {}
        if self.mechanism.parameters().items() <= earlier.items():  # a retry brings it along
            session.adopt(key, user, earlier["release"])
        _, error = sanitize.call(functools.partial(session.check, key, user), sanitized)
        if error is not None:
            return None, error
        worst = self._worst(study)  # before there is a reward: storage may fail
        value, error = self._evaluation(session, guarded, key, user, worst)
        if value is not None:
            trial.set_user_attr(PLAY_ATTR, self._marker(value, user is not None))
            self._refresh(study)
        return value, error

    def _notice_overwritten(self, study: Study, before: FrozenTrial) -> None:
        """Notices what stands under names that are written next: a journal keeps it for ever."""
        if {PLAY_ATTR, PUBLIC_ATTR} & set(before.user_attrs).difference(_own(before)):
            self._claim_nothing(study, BESIDE)

    def _claim_nothing(self, study: Study, reason: str) -> None:
        study.set_user_attr(EXPOSED_ATTR, reason)
        self.guarantee(study)
        warnings.warn(f"Nothing is protected: {reason}.", PrivacyWarning, stacklevel=2)

    def _evaluation(
        self,
        session: RewardSession,
        guarded: GuardedTrial,
        key: str,
        user: User | None,
        worst: float,
    ) -> tuple[float | None, BaseException | None]:
        """The only frames that hold a raw reward; nothing here touches the study."""
        returned, error = attempt_trial(self._objective, guarded)
        if error is not None:
            return None, error
        reward, error = sanitize.call(functools.partial(as_reward, returned), of_converting)
        del returned
        if error is not None or reward is None:
            return None, error
        point = hashed(json.dumps(guarded.params, sort_keys=True, default=repr))
        release = functools.partial(session.release, key, reward, user, worst, point)
        return sanitize.call(release, sanitized)

    def _check_suggestion(self, study: Study, name: str, distribution: BaseDistribution) -> None:
        """Refuses, before Optuna stores it, what differs from an earlier trial's suggestion.

        A parameter keeps its range; one with a single value must have been in the first trial.

        Raises:
            SpaceChangedError: If it differs. Where its value is a single one nothing is claimed
                for the study any more, because it is not known which trial's is private.
        """
        known = self._known(study, name, distribution)
        if known is None or known == described(name, distribution):
            return
        if not distribution.single():
            raise SpaceChangedError(ANOTHER_SPACE)
        self._claim_nothing(study, CONSTANT_CHANGED)
        raise SpaceChangedError(ANOTHER_CONSTANT)

    def _known(
        self, study: Study, name: str, distribution: BaseDistribution
    ) -> dict[str, Any] | None:
        """Returns what a parameter must be; None if nothing is known, {} if it must not be."""
        declared = self._search_space
        if declared is not None and (name in declared or distribution.single()):
            return described(name, declared[name]) if name in declared else {}
        ranges = self._state(study).ranges
        if name in ranges:
            return ranges[name]
        trials = study.get_trials(deepcopy=False)
        first = _first_with(name, trials)
        if first is None:
            late = any(trial.state == TrialState.COMPLETE for trial in trials)
            return {} if late and distribution.single() else None
        known = described(name, first.distributions[name])
        if first.state == TrialState.COMPLETE:
            ranges[name] = known
        return known

    def _refresh(self, study: Study) -> None:
        """Keeps the paragraph in the study true: other trials may not have been privatised."""
        own = self._state(study)
        with self._lock:
            first = own.looked_at
            trials = study.get_trials(deepcopy=False)[first or 0 :]
            finished = itertools.takewhile(lambda trial: trial.state.is_finished(), trials)
            own.looked_at = (first or 0) + sum(1 for _ in finished)
        strange = own.suggested.look(trials)
        if first is None or strange or any(map(_suspicions, trials)):
            self.guarantee(study)

    def _worst(self, study: Study) -> float:
        """Returns the value that NaN and infinity count as: the worst end of the range."""
        maximize = study.direction == StudyDirection.MAXIMIZE
        return self.mechanism.low if maximize else self.mechanism.high

    def _marker(self, value: float, user_named: bool) -> dict[str, Any]:
        return {
            **self.mechanism.parameters(),
            "release": value,
            "user_named": user_named,
            "test_noise": is_test(self._noise),
        }

    # What the user reads --------------------------------------------------------------------

    def guarantee(self, study: Study) -> LocalGuarantee:
        """Claims what holds for a study, after comparing its values with their releases."""
        study = whole(study)
        stored = read_evaluations(study, self.mechanism)
        stored.users_named |= self._user_id is not None
        ledger = self._ledger(study, stored.users_named)
        if ledger is not None:
            guarantee = _of_ledger(ledger, stored)
        else:
            guarantee = _without_ledger(self.mechanism, stored)
        said = ledger is None and GUARANTEE_ATTR in study.user_attrs
        if not (guarantee.protected and said):  # the ledger may know why nothing is claimed
            show_guarantee(study, guarantee)
        return guarantee

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


def _of_ledger(ledger: RewardSession, stored: StoredEvaluations) -> LocalGuarantee:
    evaluations = ledger.evaluations()
    if not ledger.vault.in_memory and contradict(stored, evaluations):
        stored.reasons.append(OTHER_RELEASE)
    return ledger.guarantee(
        max(stored.n, len(evaluations)),
        users_named=stored.users_named,
        unknown_evaluations=len(stored.releases - set(evaluations.items())),
        repeats=stored.repeats,
        reasons=stored.reasons,
        notes=stored.notes,
    )


def _without_ledger(mechanism: LocalMechanism, stored: StoredEvaluations) -> LocalGuarantee:
    """Returns the claim of a study alone, which does not know how often a user was asked."""
    named = stored.users_named
    claim = local_guarantee(
        mechanism,
        stored.n,
        stored.repeats,
        users_named=named,
        reasons=stored.reasons,
        notes=[*stored.notes, *([_NO_LEDGER] if named else [])],
    )
    return claim.at_most() if stored.n else claim


def contradict(stored: StoredEvaluations, evaluations: Mapping[str, float]) -> bool:
    """Checks whether a ledger that all workers share knows better than the study.

    A copy of a study completes trials that its new ledger does not know; it fails none.
    """
    others = any(evaluations.get(key, release) != release for key, release in stored.releases)
    return others or any(key not in evaluations for key, _ in stored.unshown)


def _declare(trial: optuna.Trial, operation: str) -> None:
    known = set(_declared(frozen_of(trial)))
    trial.set_user_attr(PUBLIC_ATTR, sorted(known | {operation}))


def _check_trial(trial: Any) -> None:
    if not isinstance(trial, optuna.Trial):
        raise ValueError(
            "A private objective runs inside a study, which counts its evaluations, on a trial "
            f"from study.optimize or study.ask; got a {type(trial).__name__}. Call the objective "
            "itself to try it."
        )


def _first_with(name: str, trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The first trial that has a parameter; one that failed only if no other has it."""
    first = None
    for trial in trials:
        if name in trial.distributions:
            first = first or trial
            if trial.state == TrialState.COMPLETE:
                return trial
    return first


def _in_memory(study: Study) -> bool:
    return isinstance(study._storage, optuna.storages.InMemoryStorage)


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
    vault: str | None = setting(
        "Where users' evaluations are counted: None for this objective alone, or a database URL "
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
    return LocalObjective(
        given.objective,
        make_mechanism(given.epsilon, **named(given, RewardPrivacy, but=("epsilon",))),
        user_id=given.user_id,
        **named(given, UserSettings),
        vault=given.vault,
        noise=given.noise,
    )
