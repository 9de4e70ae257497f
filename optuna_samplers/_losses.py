"""Per-record losses in studies: each study's run in the vault, and what all who wrap losses do.

Workers of several processes share nothing but the study and the vault.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

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
from optuna_samplers._sampler import OfStudy, ReportedStudies, constants_in
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
    completed,
    failures_in,
    frozen_of,
    key_of,
    kind_of,
    must_be_released,
    outputs_of,
    refuse_multi_objective,
    refuse_shared_database,
    show_guarantee,
    suspicions,
    trials_of_loop,
)
from privbo_plugins.algorithms.protocols import CentralConfig, CentralPlan
from privbo_plugins.algorithms.registry import algorithm_of, entry_of
from privbo_plugins.convert import fingerprint
from privbo_plugins.errors import PrivacyWarning, SpaceChangedError, UtilityWarning, VaultError
from privbo_plugins.plots import History, Report
from privbo_plugins.privacy.figures import together
from privbo_plugins.privacy.guarantee import Guarantee, PrivacyGuarantee
from privbo_plugins.reports import records_report
from privbo_plugins.sanitize import call, sanitized
from privbo_plugins.sessions.reader import LossReader, Published
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.scheduler import FRUITLESS, EarlyStop
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

_BESIDE = "the study holds {} data that was not declared public"

_PLAIN = "the study holds values that were not released"

_ELSEWHERE = "trials show releases of other parameters than theirs"

_CLAIMED = "claimed"
"""Kind of marks in the vault: that a study remembers the run."""

_CARRIED = ", carried"
"""What a role ends with where no release of its own stands behind the value."""

Objective = Callable[[Any], Any]


class LossRun(OfStudy):
    """The run of one study, as one object sees it; all that lasts is in the vault.

    Args:
        session: The run in the vault.
        config: Settings of the algorithm.
        declared: Descriptions of the constants in a declared space; None without one.
        runs: Runs of all studies that the object has worked on.
    """

    def __init__(
        self,
        session: Session,
        config: CentralConfig,
        declared: Mapping[str, Any] | None,
        runs: Set[str],
    ) -> None:
        super().__init__()
        self.session = session
        self._config, self._declared, self._runs = config, declared, runs
        self.relative: dict[str, BaseDistribution] | None = None
        self.entered: set[str] = set()
        self.prepaid: set[int] = set()
        self.told: dict[str, Published] = {}
        self.audited: set[int] = set()
        self._first_open = 0
        self._suggested: dict[str, BaseDistribution] = {}
        self._found: list[str] = []
        self._shown: set[str] = set()
        self._announced = False
        self._patience = EarlyStop(FRUITLESS, FRUITLESS)
        self._distributions: dict[str, BaseDistribution] = {}
        self._space: Space | None = None

    # Trials ---------------------------------------------------------------------------------

    def charge_training(self, of: str) -> None:
        """Charges one training, if a cost was declared."""
        self.session.charge_training(f"{of}/{uuid.uuid4().hex[:12]}")

    def pay_training(self, number: int) -> None:
        """Pays once a training; the charge at the trial's start pays for its first one only."""
        if number in self.prepaid:
            self.prepaid.discard(number)
        else:  # a trial that is evaluated again, or was started by another process or sampler
            self.charge_training(str(number))

    def tell(self, trial: optuna.Trial, losses: Any) -> float:
        """Releases the value of a trial's losses, and writes what belongs to it.

        Raises:
            ValueError: If the losses are not usable, or nothing was suggested that varies.
            SpaceChangedError: If the trial lies in another space than the run.
        """
        study, frozen = trial.study, frozen_of(trial)
        key = key_of(frozen)
        self.entered.add(key)
        space = self._space_of(frozen.distributions)
        if space is None:
            raise ValueError(
                "The objective suggested no parameter that varies, so there is nothing to tune."
            )
        constants = constants_of(frozen.distributions)
        self._refuse_other_constants(study, constants)
        fixed = constants if self._declared is None else self._declared
        told = self.session.tell(key, frozen.params, space, losses, fixed)
        self.told[key] = told
        trial.set_user_attr(ROLE_ATTR, told.label + _CARRIED * told.carried)
        if told.draw is not None:
            trial.set_user_attr(RELEASE_ATTR, told.draw)
        self._notice_overwritten(study, frozen, told)
        first, self._announced = not self._announced, True
        if first:
            self._announce()
        if self.session.finished:
            self.finish(study)
        elif first:
            self.show(study)
        else:  # under another sampler nothing else looks
            self.look_around(study)
        return told.value

    def _space_of(self, distributions: dict[str, BaseDistribution]) -> Space | None:
        """The space of a trial; the same object as long as the distributions stay the same."""
        if distributions != self._distributions or self._space is None:
            self._distributions, self._space = dict(distributions), to_space(distributions)
        return self._space

    def replay(self, study: Study) -> list[int]:
        """Tells running trials the values that the vault has published for them."""
        published, finished = self.session.published(), []
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        elsewhere = self.session.told_elsewhere({key_of(t): t.params for t in running})
        for trial in running:
            told = published.get(key_of(trial))
            if told is None or key_of(trial) in elsewhere:
                continue
            self.told[key_of(trial)] = told
            if told.draw is not None:
                study._storage.set_trial_user_attr(trial._trial_id, RELEASE_ATTR, told.draw)
            self._notice_overwritten(study, trial, told)
            study.tell(trial.number, told.value)
            finished.append(trial.number)
        return finished

    def ended(self, study: Study, state: TrialState) -> None:
        """Ends a loop that would go on for ever: a trial without a value is asked for again."""
        learnt = state == TrialState.COMPLETE
        why = self._patience.count(failed=state == TrialState.FAIL, learnt=learnt)
        if why is not None:
            self._patience = EarlyStop(FRUITLESS, FRUITLESS)  # for another loop over this study
            warnings.warn(f"{why}, so the study is stopped. {_PRUNED}", UtilityWarning, 2)
            _stop(study)

    def finish(self, study: Study) -> None:
        """Shows the last guarantee, and stops the loop."""
        self.show(study)
        _stop(study)

    def _announce(self) -> None:
        """Logs what the run does, once it is known, and whether the loop ends before it does."""
        session, plan, n_records = self.session, self.session.plan, self.session.n_records
        if plan is None or n_records is None:
            return
        what = "scores, which are maximised" if session.maximize else "losses, which are minimised"
        _logs.logger.info(
            f"{plan.n_trials} trials are planned for {n_records} records; values are {what}."
        )
        asked, left = trials_of_loop(), plan.n_trials - session.run.n_told() + 1
        if asked is not None and asked < left:
            fitting = self._fitting(session.space, n_records, asked)
            _logs.logger.warning(
                f"study.optimize(n_trials={asked}) ends before the plan of {plan.n_trials} trials "
                f"does: {left - asked} will be left. Call it again to go on, without n_trials= to "
                f"the plan's end. {fitting}"
            )

    def _fitting(self, space: Space | None, n_records: int, n_trials: int) -> str:
        """Names the plan that so few trials would have."""
        try:
            config = self._config.with_trials(n_trials)
            fitting = algorithm_of(config).make_plan(config, space or Space({}), n_records)
        except ValueError:
            return f"No plan over these parameters is as short as {n_trials} trials."
        return (
            f"For a new study, n_trials={n_trials} given to the sampler plans {fitting.n_trials} "
            f"trials, each value with noise of sd {fitting.value_noise:.3g}."
        )

    # What the guarantee does not survive ------------------------------------------------------

    def expose(self, study: Study, reason: str, fix: str = "") -> None:
        """Marks the run as unprotected, shows it in the study, and warns once."""
        self.session.run.mark_unprotected(reason)
        if reason not in self._shown:
            self._shown.add(reason)
            self.show(study)
        if not self.warned:
            self.warned = True
            text = f"Nothing is protected: {reason}. {fix}".strip()
            warnings.warn(text, PrivacyWarning, stacklevel=2)

    def notice_outside(self, study: Study) -> None:
        """Notices a trial that no private objective evaluated: it may have logged anything."""
        if study._thread_local.in_optimize_loop:
            self.expose(study, "trials ran outside sampler.private", _WRAP)
            if not self.session.plain:
                study.stop()  # a forgotten wrapper would fail, and log a vector, for ever
        else:
            self.session.run.note("trials were ended by study.tell, without losses")

    def take_plain(self, study: Study, trial: FrozenTrial, values: Sequence[float] | None) -> None:
        """Learns from a plain float, of which nothing can be claimed."""
        space = to_space(trial.distributions)
        if values is not None and space is not None:
            self.session.tell_plain(key_of(trial), trial.params, space, values[0])
        self.expose(study, "trials returned plain floats instead of per-record losses", _WRAP)

    def _notice_overwritten(self, study: Study, before: FrozenTrial, told: Published) -> None:
        """Notices what stood under the sampler's own attributes: a journal keeps it for ever.

        Args:
            study: The study.
            before: The trial as it was before the sampler wrote anything; what a retry has
                brought along is the sampler's own.
            told: What the trial may show.
        """
        held = {ROLE_ATTR, RELEASE_ATTR} & set(before.user_attrs)
        if held.difference(_own(before, told)):
            self.expose(study, _BESIDE.format("set_user_attr"))

    def check_suggestion(self, study: Study, name: str, distribution: BaseDistribution) -> None:
        """Refuses, before Optuna stores it, what differs from the space that the run has fixed.

        Until then it is compared with what the study's other trials have suggested.

        Raises:
            SpaceChangedError: If it does.
        """
        if distribution.single():
            self._refuse_other_constants(study, constants_of({name: distribution}))
            return
        space, _ = self.session.fixed()
        if space is not None:
            differs = space.get(name) != described(name, distribution)
        else:
            differs = _suggested_otherwise(study, name, distribution)
        if differs:
            raise SpaceChangedError(ANOTHER_SPACE)

    def _refuse_other_constants(self, study: Study, constants: Mapping[str, Any]) -> None:
        """Refuses parameters with a single value that are not those of the first trial.

        Raises:
            SpaceChangedError: If there are others; the run is marked, because it is not known
                which trial's come from private data.
        """
        _, fixed = self.session.fixed()
        known = self._declared if fixed is None else fixed
        if known is not None and not holds(known, constants):
            self.expose(study, CONSTANT_CHANGED)
            raise SpaceChangedError(ANOTHER_CONSTANT)

    # What the study shows -------------------------------------------------------------------

    def show(self, study: Study) -> Guarantee:
        """Writes the guarantee into the study; never before looking at what the study holds."""
        self._audit(study)
        failed = failures_in(study.get_trials(deepcopy=False))
        run, guarantee = self.session.run, self.session.guarantee(failed=failed)
        others = sum(map(partial(_has_charged, run.vault), self._runs - {run.run_id}))
        beside = together([self._config.mu] * (1 + others))
        notes = (*guarantee.notes, *attributes_note(study), *beside)
        guarantee = replace(guarantee, notes=notes)
        show_guarantee(study, guarantee)
        return guarantee

    def look_around(self, study: Study) -> None:
        """Notices what others have written since, so that the study never claims too much."""
        known = len(self._found)
        self._audit(study)
        for reason in self._found[known if self.warned else 0 :]:
            self.expose(study, reason)

    def _audit(self, study: Study) -> None:
        """Marks the run if trials not looked at before hold what no release explains.

        The study is read before the vault: other workers may go on meanwhile, and what they show
        is committed to the vault first.
        """
        trials = study.get_trials(deepcopy=False)
        while self._first_open in self.audited:
            self._first_open += 1
        new = [trial for trial in trials[self._first_open :] if trial.number not in self.audited]
        asking = {key_of(trial) for trial in new if _needs_the_vault(trial)}.difference(self.told)
        published = ChainMap(self.told, self.session.published(asking) if asking else {})
        reasons = list(unexplained(new, published, self.session))
        space, constants = self.session.fixed()
        reasons += self._misplaced(new, space, self._declared if constants is None else constants)
        for reason in dict.fromkeys(reasons):
            if reason not in self._found:
                self.session.run.mark_unprotected(reason)
                self._found.append(reason)
        if constants is not None:  # until then nothing can be compared with them
            self.audited |= {trial.number for trial in new if trial.state.is_finished()}

    def _misplaced(
        self,
        trials: Sequence[FrozenTrial],
        space: Mapping[str, Any] | None,
        constants: Mapping[str, Any] | None,
    ) -> Iterator[str]:
        """Yields the reasons to claim nothing of trials of any state that lie in another space."""
        for trial in trials:
            yield from differing(self._suggested, trial.distributions)
            if constants is not None and not holds(constants, constants_of(trial.distributions)):
                yield CONSTANT_CHANGED
            if space is not None and not lies_in(space, trial.distributions):
                yield SPACE_DIFFERS


def unexplained(
    trials: Sequence[FrozenTrial], published: Mapping[str, Published], session: LossReader
) -> Iterator[str]:
    """Yields why nothing may be claimed of what trials hold. Nothing is written.

    Args:
        trials: Of any state.
        published: By key, what the vault has published for them.
        session: Of the run that they show.
    """
    own = [_own(trial, published.get(key_of(trial))) for trial in trials]
    marks = [
        {op: _mark(op, key_of(trial)) for op in outputs_of(trial, names)}
        for trial, names in zip(trials, own, strict=True)
    ]
    asked = {"/".join(mark) for of_trial in marks for mark in of_trial.values()}
    public = session.run.declared_public(asked) if asked else frozenset()
    for trial, names, of_trial in zip(trials, own, marks, strict=True):
        told = published.get(key_of(trial))
        declared = [op for op, mark in of_trial.items() if "/".join(mark) in public]
        value = None if told is None else told.value
        yield from suspicions(trial, value, names, declared, plain=_PLAIN, beside=_BESIDE)
    shown = {key_of(trial): trial.params for trial in trials if must_be_released(trial)}
    if shown and session.told_elsewhere(shown):
        yield _ELSEWHERE


def _own(trial: FrozenTrial, told: Published | None) -> set[str]:
    """Attributes that hold what the sampler itself has written there."""
    if told is None:
        return set()
    role, draw = trial.user_attrs.get(ROLE_ATTR), trial.user_attrs.get(RELEASE_ATTR)
    own = set()
    if type(role) is str and role.removesuffix(_CARRIED) == told.label:  # a subclass may lie
        own.add(ROLE_ATTR)
    if told.draw is not None and type(draw) is float and draw == told.draw:
        own.add(RELEASE_ATTR)
    return own


def _needs_the_vault(trial: FrozenTrial) -> bool:
    """Checks whether a trial holds what only the vault can explain."""
    return must_be_released(trial) or bool({ROLE_ATTR, RELEASE_ATTR} & set(trial.user_attrs))


def _mark(operation: str, key: str) -> tuple[str, str]:
    """An operation without its place, as the guarantee names it, and where it wrote to."""
    kind = kind_of(operation)
    place = operation.removeprefix(kind)
    return f"trial.{kind}", f"{place}/{key}" if place else key


def _suggested_otherwise(study: Study, name: str, distribution: BaseDistribution) -> bool:
    """Checks whether any trial, of any state, has suggested a parameter with another range.

    A single value that is stored already is a reason to claim nothing for good.
    """
    trials = study.get_trials(deepcopy=False)
    others = (t.distributions[name] for t in trials if name in t.distributions)
    known = {name: distribution}
    return any(r == SPACE_DIFFERS for other in others for r in differing(known, {name: other}))


def _has_charged(vault: Vault, run_id: str) -> bool:
    with vault.transaction(run_id) as tx:
        return bool(tx.charges_by_mu())


def _stop(study: Study) -> None:
    with suppress(RuntimeError):  # ask/tell has no loop to stop; Optuna raises after storing
        study.stop()


class LossStudies(ReportedStudies[LossRun]):
    """Base of the samplers and objectives that keep per-record losses from their studies.

    Args:
        config: Settings of the algorithm.
        given: Settings of the run.
    """

    _labels: str | None = None
    """Fingerprint of the records' labels; of this process alone."""

    def __init__(self, config: CentralConfig, given: LossRunSettings) -> None:
        entry_of(config)  # raises before a vault is opened
        super().__init__(given)
        self._config, self._seed, self._noise = config, given.seed, given.noise
        ids = given.record_ids
        self._labels = None if ids is None else fingerprint(ids)
        self._runs: set[str] = set()
        self._vault: Vault | None = open_vault(given.vault)
        self._vault_handle = self._vault.handle

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings: no vault contents, no noise source, nothing of records."""
        return super().__getstate__() | {"_vault": None, "_noise": None, "_labels": None}

    # Sessions -------------------------------------------------------------------------------

    def _new_state(self, study: Study) -> LossRun:
        declared = None if self._search_space is None else constants_of(self._search_space)
        return LossRun(self._open(study), self._config, declared, self._runs)

    def _current(self, study: Study) -> LossRun:
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
        self._runs.add(session.run.run_id)
        session.labels.expect(self._labels)
        _tell_of_memory(study, self._vault)
        if remembered is None:
            _remember(study, session, self._vault.vault_id)
        if not self._vault.in_memory:  # no backup of memory can be restored
            session.run.guarded_by(StudyRollbackGuard(study, session.run))
        reasons = session.guarantee().reasons
        if reasons and remembered is None:
            warnings.warn(
                f"Nothing is protected: {'; '.join(reasons)}.", PrivacyWarning, stacklevel=2
            )
        self._give_space(session, study, resumed=remembered is not None)
        return session

    def _give_space(self, session: Session, study: Study, *, resumed: bool) -> None:
        """Fixes a declared space; one that trials have in common only where the run agrees."""
        found = self._search_space
        if found is None and resumed:
            found = IntersectionSearchSpace().calculate(study)
        space = None if found is None else to_space(found)
        given = self._search_space is not None
        if space is not None and (given or session.fixed()[0] in (None, space.to_dict())):
            session.set_space(space)

    # The private channel --------------------------------------------------------------------

    def guarded(self, trial: optuna.Trial) -> GuardedTrial:
        """The trial as a private objective sees it, for ask/tell: outputs need ``public=True``."""
        study, own, key = trial.study, self._state(trial.study), key_of(frozen_of(trial))
        return GuardedTrial(
            trial,
            lambda operation: own.session.run.declare_public(*_mark(operation, key)),
            lambda name, distribution: own.check_suggestion(study, name, distribution),
        )

    def _evaluate(self, trial: optuna.Trial, objective: Objective) -> tuple[Any, Any]:
        """(released value, None), or (None, an error whose frames hold no private value)."""
        own = self._state(trial.study)
        own.entered.add(key_of(frozen_of(trial)))
        own.pay_training(trial.number)
        losses, error = attempt_trial(objective, self.guarded(trial))
        if error is not None:
            return None, error
        return call(lambda: self._current(trial.study).tell(trial, losses), sanitized)

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
                again. Also if the study's sampler and this object both release values.
        """
        value, error = call(partial(self._pay_and_tell, trial, losses), sanitized)
        del losses
        if error is not None:
            raise error
        assert value is not None
        trial.study.tell(trial, value)
        return value

    def _pay_and_tell(self, trial: optuna.Trial, losses: Any) -> float:
        self._check_study(trial.study)
        own = self._current(trial.study)
        if frozen_of(trial).state.is_finished():
            raise ValueError(
                f"Trial {trial.number} is over and cannot be told again. Nothing was charged."
            )
        own.pay_training(trial.number)
        return own.tell(trial, losses)

    def _check_study(self, study: Study) -> None:
        """Refuses a study whose sampler does not go with this object."""

    # What the user reads --------------------------------------------------------------------

    def plan(self, search_space: Mapping[str, BaseDistribution], n_records: int) -> CentralPlan:
        """Tells what a run over this space and so many records would do and cost.

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

        They need not be any trial's: ``study.best_params`` are those of the luckiest one.

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
        """Checks whether the plan is used up; for ask/tell loops, which nothing stops."""
        session = self._state(study).session
        session.refresh()
        return session.finished

    def guarantee(self, study: Study) -> Guarantee:
        """Claims what holds for this study, after comparing its storage with the ledger."""
        return self._state(study).show(study)

    def history(self, study: Study) -> History:
        """Returns what the study has published, for :mod:`privbo_plugins.plots`."""
        return self._state(study).session.history()

    def status(self, study: Study) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        return self._state(study).session.status(self.guarantee(study))

    def _page(self, study: Study) -> Report:
        history = self.history(study)
        title = f"Private tuning report: {study.study_name}"
        return records_report(title, self.guarantee(study), history, self.recommend(study))

    def _values_are(self, study: Study, guarantee: PrivacyGuarantee) -> str:
        if not guarantee.protected:
            return EXPOSED
        trials = completed(study)
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
        return self._state(study).replay(study)

    def _charge_refit(self, study: Study) -> None:
        """Charges the training of a model that is published when the trials are over."""
        self._state(study).charge_training("refit")


def _tell_of_memory(study: Study, vault: Vault) -> None:
    """Logs that a study which outlives its vault cannot go on."""
    if vault.in_memory and not isinstance(study._storage, InMemoryStorage):
        _logs.logger.warning(
            "The study is stored, and its vault lies in this process's memory: the study cannot "
            "go on in another process. Give the sampler vault='sqlite:///private.db' to resume it."
        )


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
