"""Lifecycle of a private sampler: Optuna's hooks on one side, an engine session on the other.

Samplers of several processes share nothing but the study and the vault.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.storages import InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import _logs
from optuna_samplers._guard import GuardedTrial, attempt_trial
from optuna_samplers._publish import EXPOSED
from optuna_samplers._rollback_guard import StudyRollbackGuard
from optuna_samplers._sampler import OfStudy, StudySampler, constants_in
from optuna_samplers._settings import LossRunSettings
from optuna_samplers._space import (
    ANOTHER_CONSTANT,
    ANOTHER_SPACE,
    CONSTANT_CHANGED,
    SPACE_DIFFERS,
    constants_of,
    described,
    differing,
    holds,
    lies_in,
    to_space,
)
from optuna_samplers._study import (
    attributes_note,
    failures_in,
    frozen_of,
    key_of,
    kind_of,
    must_be_released,
    outputs_of,
    refuse_multi_objective,
    refuse_shared_database,
    same,
    show_guarantee,
    trials_of_loop,
    whole,
)
from privbo_plugins import sanitize
from privbo_plugins.algorithms.protocols import CentralConfig, CentralPlan
from privbo_plugins.algorithms.registry import algorithm_of, entry_of
from privbo_plugins.convert import fingerprint
from privbo_plugins.errors import PrivacyWarning, SpaceChangedError, UtilityWarning, VaultError
from privbo_plugins.plots import History, Report
from privbo_plugins.privacy.figures import together
from privbo_plugins.privacy.guarantee import Guarantee, PrivacyGuarantee
from privbo_plugins.reports import records_report
from privbo_plugins.sanitize import sanitized
from privbo_plugins.sessions.records import Published, Session
from privbo_plugins.sessions.scheduler import FRUITLESS, EarlyStop
from privbo_plugins.settings import setting, settings, takes
from privbo_plugins.spaces import Space
from privbo_plugins.store.vault import Vault, open_vault

RUN_ATTR = "privbo:run"
"""Study attribute that remembers the run and its vault."""

ROLE_ATTR = "privbo:role"
"""Trial attribute: what the trial was for, and whether its value is a release of its own."""

RELEASE_ATTR = "privbo:release"
"""Trial attribute: the noisy draw, where the trial's value is an estimate from all releases."""

_WRAP = (
    "Wrap the objective: study.optimize(sampler.private(objective)) with an objective that "
    "returns one value per validation record."
)

_PRUNED = (
    "A trial that is pruned or fails has no losses to release, and its place in the plan is "
    "evaluated again. Use optuna.pruners.NopPruner(), or a pruner that lets some trials of every "
    "point come to their end, or mend the objective."
)

_ESTIMATES = (
    "Each is an estimate of the mean over the validation records, from all noisy releases up to "
    "that trial; what is little known is shown on the worse side. It is no single draw: that is "
    "the trial's user attribute `privbo:release`. The best of many estimates still tends to look "
    "somewhat better than it is. The estimate below uses all releases."
)

_DRAWS = (
    "Each is one noisy release: the clipped mean over the validation records, plus noise. So the "
    "best value is the *luckiest* draw and looks better than it is; go by the recommendation."
)

_OVERWRITTEN = "the study holds set_user_attr data nobody vouched for"

_ELSEWHERE = "trials show releases of other parameters than theirs"

_CLAIMED = "claimed"
"""Kind of marks in the vault: that a study remembers the run."""

_CARRIED = ", carried"
"""What a role ends with where no release of its own stands behind the value."""

Objective = Callable[[Any], Any]


class _StudyState(OfStudy):
    """What one sampler object keeps of one study; everything else is in the vault."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.relative: dict[str, BaseDistribution] | None = None
        self.entered: set[str] = set()
        self.prepaid: set[int] = set()
        self.told: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.drawn: dict[str, float] = {}
        self.suggested: dict[str, BaseDistribution] = {}
        self.audited: set[int] = set()
        self.first_open = 0
        self.found: list[str] = []
        self.shown: set[str] = set()
        self.patience = EarlyStop(FRUITLESS, FRUITLESS)
        self._distributions: dict[str, BaseDistribution] = {}
        self._space: Space | None = None

    def space_of(self, distributions: dict[str, BaseDistribution]) -> Space | None:
        """The space of a trial; the same object as long as the distributions stay the same."""
        if distributions != self._distributions or self._space is None:
            self._distributions, self._space = dict(distributions), to_space(distributions)
        return self._space


@settings(eq=False)
class PrivateSamplerSettings(LossRunSettings):
    """Keywords of :class:`PrivateSampler`."""

    config: CentralConfig = setting(
        "Settings of the algorithm, which say what algorithm it is.",
        kw_only=False,
    )


class PrivateSampler(StudySampler[_StudyState]):
    """Base of the samplers that tune on per-record losses under central privacy.

    It runs any algorithm of that kind in the registry: ``PrivateSampler(config)`` is a sampler.

    {settings}

    Raises:
        ValueError: For an empty search space, a vault handle that is not a URL, or settings of an
            algorithm that is not registered.
        VaultError: If the vault cannot be opened.
    """

    _labels: str | None = None
    """Fingerprint of the records' labels; of this process alone."""

    _runs: frozenset[str] = frozenset()
    """Runs of all studies that this sampler has worked on."""

    @takes(PrivateSamplerSettings)
    def __init__(self, given: PrivateSamplerSettings) -> None:
        entry_of(given.config)  # raises before a vault is opened
        super().__init__(given)
        self._config, self._seed, self._noise = given.config, given.seed, given.noise
        ids = given.record_ids
        self._labels = None if ids is None else fingerprint(ids)
        self._vault: Vault | None = open_vault(given.vault)
        self._vault_handle = self._vault.handle

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings: no vault contents, no noise source, nothing of records."""
        return super().__getstate__() | {"_vault": None, "_noise": None, "_labels": None}

    # Sessions -------------------------------------------------------------------------------

    def _new_state(self, study: Study) -> _StudyState:
        return _StudyState(self._open(study))

    def _current(self, study: Study) -> _StudyState:
        """The state, after making sure that the study still belongs to this run.

        A study deleted and made again may get its old number; then its attribute is gone. Two
        samplers with vaults of their own may have started a new study at once; then one of them
        finds the other's run remembered, and stops before it releases anything more.
        """
        own = self._state(study)
        remembered = study.user_attrs.get(RUN_ATTR)
        if remembered is None:
            self._forget(study)
            return self._state(study)
        if remembered["run"] != own.session.run.run_id:
            own.session.run.mark_unprotected(
                "another sampler with another vault works on this study"
            )
            raise VaultError(
                "Another sampler started this study at the same time with a vault of its own, so "
                "two ledgers would pay for one study. Give all workers the same vault URL and "
                "start a new study."
            )
        return own

    def _open(self, study: Study) -> Session:
        refuse_multi_objective(study, type(self).__name__)
        if self._vault is None:
            self._vault = open_vault(self._vault_handle)
        refuse_shared_database(study, self._vault)
        remembered = study.user_attrs.get(RUN_ATTR)
        if remembered is not None and remembered["vault"] != self._vault.vault_id:
            raise VaultError(
                "This study was started with another vault, which holds its ledger; without it "
                "nothing can be released. An in-memory vault ends with its process: to resume a "
                "study, give the sampler a vault URL from the start, for example "
                "vault='sqlite:///private.db'."
            )
        session = Session.open(
            self._vault,
            f"optuna/{study.study_name}",
            self._config,
            maximize=study.direction == StudyDirection.MAXIMIZE,
            seed=self._seed,
            run_id=None if remembered is None else remembered["run"],
            noise=self._noise,
        )
        self._runs |= {session.run.run_id}
        session.expect_records(self._labels)
        _tell_of_memory(study, self._vault)
        if remembered is None:
            self._remember(study, session, self._vault.vault_id)
        if not self._vault.in_memory:  # no backup of memory can be restored
            session.run.guarded_by(StudyRollbackGuard(study, session.run))
        declared = self._search_space
        if declared is None and remembered is not None:
            declared = IntersectionSearchSpace().calculate(study)
        reasons = session.guarantee().reasons
        if reasons and remembered is None:
            warnings.warn(
                f"Nothing is protected: {'; '.join(reasons)}.", PrivacyWarning, stacklevel=2
            )
        self._give_space(session, None if declared is None else to_space(declared))
        return session

    def _give_space(self, session: Session, space: Space | None) -> None:
        """Fixes a declared space; one that trials have in common only where the run agrees."""
        given = self._search_space is not None
        if space is not None and (given or session.fixed()[0] in (None, space.to_dict())):
            session.set_space(space)

    @staticmethod
    def _remember(study: Study, session: Session, vault_id: str) -> None:
        """Writes the run's identity into the study, or waits for the worker that started the run.

        A run that was started for another study of this name never shows up in this one.
        """
        run = session.run
        for tries in range(0 if run.begun_here else 8):
            time.sleep(0.01 * 2**tries)
            remembered = study.user_attrs.get(RUN_ATTR)
            if remembered is not None and remembered["run"] == run.run_id:
                return
        if run.begun_here or not run.marks(_CLAIMED):  # its starter died before it remembered it
            study.set_user_attr(RUN_ATTR, {"run": run.run_id, "vault": vault_id})
            run.mark(_CLAIMED, "by the host")
            return
        raise VaultError(
            "The vault already holds a run of another study of this name, with a ledger that this "
            "study does not show. Give the study another name or another vault."
        )

    # Optuna's hooks -------------------------------------------------------------------------

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Charges the training that the trial is about to do, if a cost was declared."""
        super().before_trial(study, trial)
        own = self._current(whole(study))
        self._charge_training(own, str(trial.number))
        own.prepaid.add(trial.number)

    @staticmethod
    def _pay_training(own: _StudyState, number: int) -> None:
        """Once a training: what was charged when the trial started pays for the first one only."""
        if number in own.prepaid:
            own.prepaid.discard(number)
        else:  # a trial that is evaluated again, or was started by another process or sampler
            PrivateSampler._charge_training(own, str(number))

    @staticmethod
    def _charge_training(own: _StudyState, of: str) -> None:
        own.session.charge_training(f"{of}/{uuid.uuid4().hex[:12]}")

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The declared space, or what all completed trials have in common."""
        study = self._tunable(study)
        state = self._state(study)
        if state.relative is None or state.session.plan is None:
            state.relative = self._common(study) or None
        return dict(state.relative or {})

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next point of the plan, restricted to the names that Optuna asks for."""
        study = self._tunable(study)
        if not search_space:
            return {}
        session = self._state(study).session
        if session.space is None:
            full = to_space(self.infer_relative_search_space(study, trial) | search_space)
            if full is not None:
                session.set_space(full)
        space = session.space
        if space is None or not set(search_space) <= set(space):
            return {}
        params = space.decode(session.ask(key_of(trial)).x)
        return {name: params[name] for name in search_space}

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Checks what is about to be stored, and stops the study when the plan is used up."""
        super().after_trial(study, trial, state, values)
        study = whole(study)
        own = self._state(study)
        session = own.session
        key = key_of(trial)
        if state != TrialState.COMPLETE:
            session.fail(key)
            if key not in own.entered:
                self._notice_outside(study, own)
            self._end_if_in_vain(study, own, state)
            return
        own.patience.count(failed=False, learnt=True)
        published = own.told.get(key)
        if published is None:
            shown = session.published([key]).get(key)
            published = None if shown is None else shown.value
        if published is None:
            self._take_plain(study, own, trial, values)
        elif values is not None and not same(values[0], published):
            self._expose(study, own, f"trial {trial.number} was told another value than released")
        else:
            self._look_around(study, own)
        if session.finished:
            self._finish(study, own)

    def _notice_outside(self, study: Study, own: _StudyState) -> None:
        """A trial ended that no private objective evaluated: who knows what it has logged."""
        if study._thread_local.in_optimize_loop:
            reason = "trials ran outside sampler.private"
            self._expose(study, own, reason, _WRAP)
            if not own.session.plain:
                study.stop()  # a forgotten wrapper would fail, and log a vector, for ever
        else:
            own.session.run.note("trials were ended by study.tell, without losses")

    def _count_released(self, study: Study) -> None:
        """A trial of another sampler's study has come to its end."""
        self._state(study).patience.count(failed=False, learnt=True)

    def _count_lost(self, study: Study, state: TrialState) -> None:
        """A trial of another sampler's study has failed or was pruned."""
        self._end_if_in_vain(study, self._state(study), state)

    @staticmethod
    def _end_if_in_vain(study: Study, own: _StudyState, state: TrialState) -> None:
        """Ends a loop that would go on for ever: a trial without a value is asked for again."""
        why = own.patience.count(failed=state == TrialState.FAIL, learnt=False)
        if why is not None:
            own.patience = EarlyStop(FRUITLESS, FRUITLESS)  # for another loop over this study
            warnings.warn(f"{why}, so the study is stopped. {_PRUNED}", UtilityWarning, 2)
            _stop(study)

    def _take_plain(
        self, study: Study, own: _StudyState, trial: FrozenTrial, values: Sequence[float] | None
    ) -> None:
        space = to_space(trial.distributions)
        if values is not None and space is not None:
            own.session.tell_plain(key_of(trial), trial.params, space, values[0])
        self._expose(
            study,
            own,
            "trials returned plain floats instead of per-record losses",
            _WRAP,
        )

    def _expose(self, study: Study, own: _StudyState, reason: str, fix: str = "") -> None:
        own.session.run.mark_unprotected(reason)
        if reason not in own.shown:
            own.shown.add(reason)
            self._show(study, own)
        if not own.warned:
            own.warned = True
            warnings.warn(
                f"Nothing is protected: {reason}. {fix}".strip(), PrivacyWarning, stacklevel=2
            )

    def _look_around(self, study: Study, own: _StudyState) -> None:
        """Notices what others have written since, so that the study never claims too much."""
        known = len(own.found)
        self._audit(study, own)
        new = own.found[known:] if own.warned else own.found
        for reason in new:
            self._expose(study, own, reason)

    def _finish(self, study: Study, own: _StudyState) -> None:
        self._show(study, own)
        _stop(study)

    # The private channel --------------------------------------------------------------------

    def private(self, objective: Objective) -> PrivateObjective:
        """Wraps an objective that returns one value per validation record.

        Args:
            objective: From a guarded trial to a vector of shape (n_records,): losses to
                minimise or scores to maximise, in the study's direction. Entry i must belong to
                the same record in every trial and on every worker; return NaN for a record that
                cannot be scored.

        Returns:
            An objective for ``study.optimize`` that returns the released value. The vector
            itself goes to the vault.
        """
        return PrivateObjective(self, objective)

    def tell_private(self, trial: optuna.Trial, losses: Any) -> float:
        """Tells per-record losses under ask/tell; the study gets the released value.

        Args:
            trial: From ``study.ask()``.
            losses: One value per validation record, shape (n_records,); entry i belongs to the
                same record in every trial.

        Returns:
            The released value.

        Raises:
            ValueError: If the vector is not usable; the trial stays running and can be told
                again.
        """
        value, error = self._paid_and_told(trial, losses)
        del losses
        if error is not None:
            raise error
        trial.study.tell(trial, value)
        return value

    def _paid_and_told(self, trial: optuna.Trial, losses: Any) -> tuple[float, Any]:
        """As :meth:`_tell`, for a trial of an ask-and-tell loop."""
        _, error = sanitize.call(lambda: self._pay_open(trial), sanitized)
        return (float("nan"), error) if error is not None else self._tell(trial, losses)

    def _pay_open(self, trial: optuna.Trial) -> None:
        own = self._current(trial.study)
        if frozen_of(trial).state.is_finished():
            raise ValueError(
                f"Trial {trial.number} is over and cannot be told again. Nothing was charged."
            )
        self._pay_training(own, trial.number)

    def _tell(self, trial: optuna.Trial, losses: Any) -> tuple[float, BaseException | None]:
        """(released value, None), or (nan, an error whose frames hold no private value)."""
        try:
            return self._tell_or_raise(trial, losses), None
        except BaseException as error:
            return float("nan"), sanitized(error)

    def _tell_or_raise(self, trial: optuna.Trial, losses: Any) -> float:
        study = trial.study
        frozen = frozen_of(trial)
        own = self._current(study)
        own.entered.add(key_of(frozen))
        space = own.space_of(frozen.distributions)
        if space is None:
            raise ValueError(
                "The objective suggested no parameter that varies, so there is nothing to tune."
            )
        constants = constants_of(frozen.distributions)
        self._refuse_other_constants(study, own, constants)
        fixed = constants if self._search_space is None else constants_of(self._search_space)
        told = own.session.tell(key_of(frozen), frozen.params, space, losses, fixed)
        first = not own.told
        own.told[key_of(frozen)] = told.value
        own.labels[key_of(frozen)] = told.label
        trial.set_user_attr(ROLE_ATTR, told.label + _CARRIED * told.carried)
        if told.draw is not None:
            own.drawn[key_of(frozen)] = told.draw
            trial.set_user_attr(RELEASE_ATTR, told.draw)
        self._notice_overwritten(study, own, frozen, told.draw)
        if first:
            self._tell_plan(own)
        if own.session.finished:
            self._finish(study, own)
        elif first:
            self._show(study, own)
        else:  # under another sampler nothing else looks
            self._look_around(study, own)
        return told.value

    def _tell_plan(self, own: _StudyState) -> None:
        """Logs what the run does, once it is known, and whether the loop ends before it does."""
        session, plan = own.session, own.session.plan
        n_records = session.n_records
        if plan is None or n_records is None:
            return
        what = "scores, which are maximised" if session.maximize else "losses, which are minimised"
        _logs.logger.info(
            f"{plan.n_trials} trials are planned for {n_records} records; values are {what}."
        )
        asked, left = trials_of_loop(), plan.n_trials - session.n_told() + 1
        if asked is not None and asked < left:
            fitting = self._fitting(session.space, n_records, asked)
            _logs.logger.warning(
                f"study.optimize(n_trials={asked}) ends before the plan of {plan.n_trials} trials "
                f"does: {left - asked} will be left. Call it again to go on, without n_trials= to "
                f"the plan's end. {fitting}"
            )

    def _fitting(self, space: Space | None, n_records: int, n_trials: int) -> str:
        """Which plan so few trials would have."""
        try:
            config = self._config.with_trials(n_trials)
            fitting = algorithm_of(config).make_plan(config, space or Space({}), n_records)
        except ValueError:
            return f"No plan over these parameters is as short as {n_trials} trials."
        return (
            f"For a new study, n_trials={n_trials} given to the sampler plans {fitting.n_trials} "
            f"trials, each value with noise of sd {fitting.value_noise:.3g}."
        )

    def _notice_overwritten(
        self, study: Study, own: _StudyState, before: FrozenTrial, drawn: float | None
    ) -> None:
        """Notices what stood under the sampler's own attributes: a journal keeps it for ever.

        Args:
            study: The study.
            own: Its state.
            before: The trial as it was before the sampler wrote anything; what a retry has
                brought along is the sampler's own.
            drawn: What the sampler writes as the trial's draw.
        """
        key = key_of(before)
        known = _Explained({}, own.labels, {} if drawn is None else {key: drawn}, frozenset())
        own_names = {ROLE_ATTR, RELEASE_ATTR}
        if own_names & set(before.user_attrs).difference(known.own(before)):
            self._expose(study, own, _OVERWRITTEN)

    def _check_suggestion(
        self, study: Study, own: _StudyState, name: str, distribution: BaseDistribution
    ) -> None:
        """Refuses, before Optuna stores it, what differs from the space that the run has fixed.

        Until then it is compared with what the study's other trials have suggested.

        Raises:
            SpaceChangedError: If it does.
        """
        if distribution.single():
            self._refuse_other_constants(study, own, constants_of({name: distribution}))
            return
        space, _ = own.session.fixed()
        if space is not None:
            same = space.get(name) == described(name, distribution)
        else:
            same = not _suggested_otherwise(study, name, distribution)
        if not same:
            raise SpaceChangedError(ANOTHER_SPACE)

    def _refuse_other_constants(
        self, study: Study, own: _StudyState, constants: Mapping[str, Any]
    ) -> None:
        """Refuses parameters with a single value that are not those of the first trial.

        Raises:
            SpaceChangedError: If there are others; the run is marked, because it is not known
                which trial's come from private data.
        """
        _, known = own.session.fixed()
        if known is None and self._search_space is not None:
            known = constants_of(self._search_space)
        if known is not None and not holds(known, constants):
            self._expose(study, own, CONSTANT_CHANGED)
            raise SpaceChangedError(ANOTHER_CONSTANT)

    def _evaluate(self, trial: optuna.Trial, objective: Objective) -> tuple[float, Any]:
        own, key = self._state(trial.study), key_of(frozen_of(trial))
        own.entered.add(key)
        self._pay_training(own, trial.number)
        losses, error = attempt_trial(objective, self.guarded(trial))
        if error is not None:
            return float("nan"), error
        return self._tell(trial, losses)

    def guarded(self, trial: optuna.Trial) -> GuardedTrial:
        """The trial as a private objective sees it, for ask/tell: outputs need ``public=True``."""
        study, own, key = trial.study, self._state(trial.study), key_of(frozen_of(trial))
        return GuardedTrial(
            trial,
            lambda operation: own.session.run.declare_public(*_mark(operation, key)),
            lambda name, distribution: self._check_suggestion(study, own, name, distribution),
        )

    # What the user reads --------------------------------------------------------------------

    def plan(self, search_space: Mapping[str, BaseDistribution], n_records: int) -> CentralPlan:
        """What a run over this space and so many records would do and cost.

        Args:
            search_space: Optuna distributions by name.
            n_records: Number of validation records.

        Returns:
            The plan; printing it shows trials, releases and noise.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        space = to_space(search_space)
        if space is None:
            raise ValueError("search_space must hold at least one parameter that varies.")
        plan = algorithm_of(self._config).make_plan(self._config, space, n_records)
        plan.warn_if_noise_dominates()
        return plan

    def recommend(self, study: Study) -> dict[str, Any]:
        """The parameters that the algorithm recommends, from the releases alone.

        Raises:
            ValueError: If nothing has been released yet.
        """
        own = self._state(study)
        if own.session.space is None:
            common = self._known_space(study)
            if common is None:
                raise ValueError("There is nothing to recommend yet: no trial has completed.")
            own.session.set_space(common)
        return constants_in(study) | own.session.recommendation()

    def finished(self, study: Study) -> bool:
        """Whether the plan is used up; for ask/tell loops, which nothing stops."""
        session = self._state(study).session
        session.refresh()
        return session.finished

    def guarantee(self, study: Study) -> Guarantee:
        """What may be claimed for this study, after comparing its storage with the ledger."""
        return self._show(study, self._state(study))

    def _show(self, study: Study, own: _StudyState) -> Guarantee:
        """Writes the guarantee into the study; never before looking at what the study holds."""
        self._audit(study, own)
        failed = failures_in(study.get_trials(deepcopy=False))
        guarantee = own.session.guarantee(failed=failed)
        charged = partial(_has_charged, own.session.run.vault)
        others = sum(map(charged, self._runs - {own.session.run.run_id}))
        beside = together([self._config.mu] * (1 + others))
        notes = (*guarantee.notes, *attributes_note(study), *beside)
        guarantee = replace(guarantee, notes=notes)
        show_guarantee(study, guarantee)
        return guarantee

    def _audit(self, study: Study, own: _StudyState) -> None:
        """Marks the run if trials not looked at before hold what no release explains.

        The study is read before the vault: other workers may go on meanwhile, and what they show
        is committed to the vault first.
        """
        trials = study.get_trials(deepcopy=False)
        while own.first_open in own.audited:
            own.first_open += 1
        new = [trial for trial in trials[own.first_open :] if trial.number not in own.audited]
        explained = self._explained(own, new)
        elsewhere = _elsewhere(new, own.session)
        space, constants = own.session.fixed()
        misplaced = self._misplaced(own, new, space, constants)
        reasons = [*_suspicions(new, explained), *elsewhere, *misplaced]
        for reason in dict.fromkeys(reasons):
            if reason not in own.found:
                own.session.run.mark_unprotected(reason)
                own.found.append(reason)
        if constants is not None:  # until then nothing can be compared with them
            own.audited |= {trial.number for trial in new if trial.state.is_finished()}

    def _misplaced(
        self,
        own: _StudyState,
        trials: Sequence[FrozenTrial],
        space: Mapping[str, Any] | None,
        constants: Mapping[str, Any] | None,
    ) -> Iterator[str]:
        """Yields the reasons to claim nothing of trials of any state that lie in another space."""
        if constants is None and self._search_space is not None:
            constants = constants_of(self._search_space)
        for trial in trials:
            yield from differing(own.suggested, trial.distributions)
            if constants is not None and not holds(constants, constants_of(trial.distributions)):
                yield CONSTANT_CHANGED
            if space is not None and not lies_in(space, trial.distributions):
                yield SPACE_DIFFERS

    @staticmethod
    def _explained(own: _StudyState, trials: Sequence[FrozenTrial]) -> _Explained:
        """Reads from the vault the records that the trials call for, and no others."""
        showing = {key_of(trial) for trial in trials if _shows_something(trial)}
        drawing = {key_of(trial) for trial in trials if RELEASE_ATTR in trial.user_attrs}
        unknown = showing.difference(own.told) | drawing.difference(own.drawn)
        stored = own.session.published(unknown) if unknown else {}
        released = ChainMap(own.told, {key: told.value for key, told in stored.items()})
        labels = ChainMap(own.labels, {key: told.label for key, told in stored.items()})
        drawn = ChainMap(own.drawn, _draws(stored))
        explained = _Explained(released, labels, drawn, frozenset())
        marks = {mark for trial in trials for mark in explained.marks_of(trial)}
        public = own.session.run.declared_public(marks) if marks else frozenset()
        return explained._replace(vouched=public)

    def history(self, study: Study) -> History:
        """What the study has published, for :mod:`privbo_plugins.plots`."""
        return self._state(study).session.history()

    def status(self, study: Study) -> dict[str, Any]:
        """Where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        return self._state(study).session.status(self.guarantee(study))

    def _page(self, study: Study) -> Report:
        history = self.history(study)
        title = f"Private tuning report: {study.study_name}"
        return records_report(title, self.guarantee(study), history, self.recommend(study))

    def _values_are(self, study: Study, guarantee: PrivacyGuarantee) -> str:
        if not guarantee.protected:
            return EXPOSED
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return _ESTIMATES if any(RELEASE_ATTR in t.user_attrs for t in trials) else _DRAWS

    def purge(self, study: Study) -> None:
        """Deletes every raw loss of the study from the vault; ledger and releases stay."""
        self._state(study).session.purge()

    def replay(self, study: Study) -> list[int]:
        """Tells released values that a crash kept from reaching the study.

        Call it when no worker is running: it finishes every trial whose release is in the vault
        while the study still shows it as running. Nothing is drawn.

        Returns:
            Numbers of the trials that were finished.
        """
        own = self._state(study)
        session, published = own.session, own.session.published()
        finished = []
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        elsewhere = session.told_elsewhere({key_of(trial): trial.params for trial in running})
        for trial in running:
            known = published.get(key_of(trial))
            if known is not None and key_of(trial) not in elsewhere:
                own.labels[key_of(trial)] = known.label
                if known.draw is not None:
                    study._storage.set_trial_user_attr(trial._trial_id, RELEASE_ATTR, known.draw)
                self._notice_overwritten(study, own, trial, known.draw)
                study.tell(trial.number, known.value)
                finished.append(trial.number)
        return finished


class PrivateObjective:
    """An objective whose raw result goes to the vault; made by ``sampler.private``."""

    def __init__(self, sampler: PrivateSampler, objective: Objective) -> None:
        self._sampler = sampler
        self._objective = objective

    def __call__(self, trial: optuna.Trial) -> float:
        """Evaluates the objective on a guarded trial and returns the released value."""
        value, error = self._sampler._evaluate(trial, self._objective)
        if error is not None:
            raise error
        return value

    def _charge_refit(self, study: Study) -> None:
        """Charges the training of a model that is published when the trials are over."""
        self._sampler._charge_training(self._sampler._state(study), "refit")

    def __repr__(self) -> str:
        return "PrivateObjective()"  # the objective's own repr may quote data


def _has_charged(vault: Vault, run_id: str) -> bool:
    with vault.transaction(run_id) as tx:
        return bool(tx.charges_by_mu())


def _tell_of_memory(study: Study, vault: Vault) -> None:
    """Logs that a study which outlives its vault cannot go on."""
    if vault.in_memory and not isinstance(study._storage, InMemoryStorage):
        _logs.logger.warning(
            "The study is stored, and its vault lies in this process's memory: the study cannot "
            "go on in another process. Give the sampler vault='sqlite:///private.db' to resume it."
        )


def _stop(study: Study) -> None:
    with suppress(RuntimeError):  # ask/tell has no loop to stop; Optuna raises after storing
        study.stop()


class _Explained(NamedTuple):
    """What is known of trials by key: values published, roles, draws, outputs vouched for."""

    released: Mapping[str, float]
    labels: Mapping[str, str]
    drawn: Mapping[str, float]
    vouched: frozenset[str]

    def own(self, trial: FrozenTrial) -> tuple[str, ...]:
        """Attributes that hold what the sampler itself has written there."""
        label, role = self.labels.get(key_of(trial)), trial.user_attrs.get(ROLE_ATTR)
        known = type(role) is str and role.removesuffix(_CARRIED) == label  # a subclass may lie
        drawn, shown = self.drawn.get(key_of(trial)), trial.user_attrs.get(RELEASE_ATTR)
        told = drawn is not None and type(shown) is float and shown == drawn
        return (*((ROLE_ATTR,) if known else ()), *((RELEASE_ATTR,) if told else ()))

    def vouched_for(self, operation: str, trial: FrozenTrial) -> bool:
        """Checks whether the caller declared what an operation was given public."""
        return "/".join(_mark(operation, key_of(trial))) in self.vouched

    def marks_of(self, trial: FrozenTrial) -> Iterator[str]:
        """Yields the marks which may say that a trial's outputs were declared public."""
        for operation in outputs_of(trial, self.own(trial)):
            yield "/".join(_mark(operation, key_of(trial)))


def _mark(operation: str, key: str) -> tuple[str, str]:
    """An operation without its place, as the guarantee names it, and where it wrote to."""
    kind = kind_of(operation)
    place = operation.removeprefix(kind)
    return f"trial.{kind}", f"{place}/{key}" if place else key


def _draws(told: Mapping[str, Published]) -> dict[str, float]:
    """Draws of the trials that have one."""
    return {key: one.draw for key, one in told.items() if one.draw is not None}


def unexplained(trials: Sequence[FrozenTrial], session: Session) -> list[str]:
    """Why nothing may be claimed of what trials hold, by all that the vault says of a run.

    Nothing is written.

    Args:
        trials: Of any state.
        session: Of the run that they show.
    """
    told = session.published()
    released = {key: one.value for key, one in told.items()}
    labels = {key: one.label for key, one in told.items()}
    known = _Explained(released, labels, _draws(told), session.run.declared_public())
    return list(dict.fromkeys([*_suspicions(trials, known), *_elsewhere(trials, session)]))


def _elsewhere(trials: Sequence[FrozenTrial], session: Session) -> list[str]:
    """Why nothing may be claimed of trials that show releases of other points than theirs."""
    shown = {key_of(trial): trial.params for trial in trials if must_be_released(trial)}
    return [_ELSEWHERE] if shown and session.told_elsewhere(shown) else []


def _suspicions(trials: Sequence[FrozenTrial], explained: _Explained) -> Iterator[str]:
    """Yields the reasons to claim nothing of the data that trials hold beside their parameters."""
    for trial in trials:
        for operation in outputs_of(trial, explained.own(trial)):
            if not explained.vouched_for(operation, trial):
                yield f"the study holds {kind_of(operation)} data nobody vouched for"
        if must_be_released(trial) and not _shows(trial, explained.released.get(key_of(trial))):
            yield "the study holds values that were not released"


def _suggested_otherwise(study: Study, name: str, distribution: BaseDistribution) -> bool:
    """Checks whether any trial, of whatever state, has suggested a parameter with another range.

    A single value that is stored already is a reason to claim nothing, whatever comes after it.
    """
    trials = study.get_trials(deepcopy=False)
    others = (t.distributions[name] for t in trials if name in t.distributions)
    known = {name: distribution}
    return any(r == SPACE_DIFFERS for other in others for r in differing(known, {name: other}))


def _shows_something(trial: FrozenTrial) -> bool:
    """Checks whether a trial holds what only the vault can explain."""
    return must_be_released(trial) or ROLE_ATTR in trial.user_attrs


def _shows(trial: FrozenTrial, released: float | None) -> bool:
    """Checks whether a trial's value is the one that was released."""
    return released is not None and trial.value is not None and same(trial.value, released)
