"""Per-record losses: the run of one study in the vault, and what the study shows of it.

Workers of several processes share nothing but the study and the vault.
"""

from __future__ import annotations

import time
import uuid
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import _audit, _logs, _study
from optuna_samplers._sampler import OfStudy
from optuna_samplers._space import constants_of, to_space
from optuna_samplers._study import key_of
from privbo_plugins.algorithms.protocols import CentralConfig
from privbo_plugins.algorithms.registry import algorithm_of
from privbo_plugins.errors import (
    BudgetExceededError,
    UtilityWarning,
    VaultError,
    paid_for,
    warn,
)
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.words import plural
from privbo_plugins.sessions.reader import RUNS_BESIDE, LossReader, Published
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.scheduler import FRUITLESS, EarlyStop, FirstTrials
from privbo_plugins.spaces import Space
from privbo_plugins.store.vault import Vault

RUN_ATTR = "privbo:run"
"""Study attribute that remembers the run and its vault."""

ROLE_ATTR = "privbo:role"
"""Trial attribute: what the trial was for, and whether its value is a release of its own."""

RELEASE_ATTR = "privbo:release"
"""Trial attribute: the noisy draw, where the trial's value is an estimate from all releases."""

SCORES_ATTR = "privbo:scores"
"""Trial attribute: estimate and standard deviation of each score by name."""

_WRAP = (
    "Wrap the objective: study.optimize(sampler.private(objective)) with an objective that "
    "returns one value per validation record."
)

_PRUNED = (
    "A trial that is pruned or fails has no losses to release, and its place in the plan is "
    "evaluated again. Use optuna.pruners.NopPruner(), or a pruner that lets some trials of every "
    "point come to their end, or mend the objective."
)

_BESIDE = "the study holds {} data that was not declared public"

_PLAIN = "the study holds values that were not released"

_ELSEWHERE = "trials show releases of other parameters than theirs"

_CLAIMED = "claimed"
"""Kind of marks in the vault: that a study remembers the run."""

CARRIED = ", carried"
"""What a role ends with where no release of its own stands behind the value."""

Objective = Callable[[Any], Any]


class LossRun(OfStudy):
    """The run of one study, as one object sees it; all that lasts is in the vault.

    Args:
        session: The run in the vault.
        config: Settings of the algorithm.
        declared: The declared search space, if there is one.
        runs: Runs of all studies that the object has worked on.
    """

    def __init__(
        self,
        session: Session,
        config: CentralConfig,
        declared: Mapping[str, BaseDistribution] | None,
        runs: Set[str],
    ) -> None:
        super().__init__()
        self.session = session
        self._config, self._runs = config, runs
        self._declared = None if declared is None else constants_of(declared)
        self.relative: dict[str, BaseDistribution] | None = None
        self.entered: set[str] = set()
        self.prepaid: dict[int, bool] = {}
        self.told: dict[str, Published] = {}
        self.told_at: dict[str, str] = {}
        look = partial(unexplained, session, self.told, self.told_at)
        self.audit = _audit.Audit(look, self.expose, declared, session.fixed)
        self._marked: set[str] = set()
        self._first_trials = FirstTrials()
        self._patience = EarlyStop(FRUITLESS, FRUITLESS)
        self._space: tuple[dict[str, BaseDistribution], Space | None] = ({}, None)

    def is_of(self, study: Study) -> bool:
        """Checks whether a study remembers this run; stops if it remembers another one.

        Two samplers with vaults of their own may have started it at once.

        Raises:
            VaultError: If it remembers the other one's run.
        """
        remembered = study._storage.get_study_user_attrs(study._study_id).get(RUN_ATTR)
        if remembered is not None and remembered["run"] != self.session.run.run_id:
            reason = "another sampler with another vault works on this study"
            self.session.run.mark_unprotected(reason)
            raise VaultError(
                "Another sampler started this study at the same time with a vault of its own, so "
                "two ledgers would pay for one study. Give all workers the same vault URL and "
                "start a new study."
            )
        return remembered is not None

    # Trials ---------------------------------------------------------------------------------

    def charge_training(self, of: str) -> None:
        """Charges one training, if a cost was declared."""
        self.session.charge_training(f"{of}/{uuid.uuid4().hex[:12]}")

    def pay_training(self, number: int) -> None:
        """Pays once a training; the charge at the trial's start pays for its first one only."""
        if self.prepaid.get(number):
            self.prepaid[number] = False
        else:  # a trial that is evaluated again, or was started by another process or sampler
            self.charge_training(str(number))

    def tell(self, trial: optuna.Trial, losses: Any) -> Any:
        """Releases the value of a trial's losses (or several), and writes what belongs to it.

        Raises:
            ValueError: If the losses are not usable, or nothing was suggested that varies.
            SpaceChangedError: If the trial lies in another space than the run.
        """
        study, frozen = trial.study, _study.frozen_of(trial)
        if not self.is_of(study):
            raise VaultError("The study of this run no longer exists; nothing can be released.")
        key = key_of(frozen)
        self.entered.add(key)
        space = self._space_of(frozen.distributions)
        if space is None:
            raise ValueError(
                "The objective suggested no parameter that varies, so there is nothing to tune: "
                "call trial.suggest_float('x', 0, 1), or another suggest method, in it."
            )
        self.audit.check_constants(study, frozen.distributions)
        fixed = constants_of(frozen.distributions) if self._declared is None else self._declared
        own = trial.number if "fixed_params" in frozen.system_attrs else None
        try:
            told = self.session.tell(key, frozen.params, space, losses, fixed, enqueued=own)
        except BudgetExceededError:
            self._follow(study, frozen)
            _study.stop(study)  # also where a trial that ended too early keeps its charge
            raise
        self._write(study, frozen, told, trial.set_user_attr)
        self._follow(study, frozen)
        n = len(study.directions)
        return told.value if n == 1 else told.values(n)

    def _space_of(self, distributions: dict[str, BaseDistribution]) -> Space | None:
        """The space of a trial's parameters, kept in one assignment: other threads tell too."""
        kept = self._space
        if kept[0] != distributions:
            self._space = kept = dict(distributions), to_space(distributions)
        return kept[1]

    @paid_for()
    def _follow(self, study: Study, trial: FrozenTrial) -> None:
        """Logs time and plan, shows the claim, and ends the loop if the plan is used up."""
        self._tell_time(trial)
        first = self.once("the plan")
        if first:
            self._announce()
        if self.session.finished:
            self.finish(study)
        elif first:
            self.show(study)
        elif trial.number not in self.prepaid:  # under another sampler nothing else looks
            self.look_around(study)

    @paid_for()
    def _write(
        self, study: Study, trial: FrozenTrial, told: Published, write: Callable[[str, Any], None]
    ) -> None:
        """Writes what a trial may show beside its value.

        Args:
            study: The study.
            trial: As it was before. What a retry has brought along is the sampler's own; all else
                under its names is noticed, because a journal keeps it for ever.
            told: What the trial may show.
            write: Writes an attribute of the trial.
        """
        self.told[key_of(trial)], self.told_at[key_of(trial)] = told, repr(trial.params)
        shown = {
            ROLE_ATTR: told.label + CARRIED * told.carried, RELEASE_ATTR: told.draw,
            SCORES_ATTR: dict(told.scores) or None,
        }  # fmt: skip
        for name, value in shown.items():
            if value is not None:
                write(name, value)
        for name, lack in told.lacks.items():  # of a retry, Trial.set_constraint keeps the old one
            key = f"{_CONSTRAINTS_KEY}:{name}"
            study._storage.set_trial_system_attr(trial._trial_id, key, lack)
        brought: set[Any] = set(shown) & set(trial.user_attrs)
        brought |= {("set_constraint", name) for name in told.lacks.keys() & trial.constraints}
        if brought.difference(_own(trial, told)):
            self.expose(study, _BESIDE.format("set_user_attr"))

    def replay(self, study: Study) -> list[int]:
        """Tells running trials the values that the vault has published for them."""
        published, finished = self.session.published(), []
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        elsewhere = self.session.told_elsewhere({key_of(t): t.params for t in running})
        for trial in running:
            told = published.get(key_of(trial))
            if told is not None and key_of(trial) not in elsewhere:
                write = partial(study._storage.set_trial_user_attr, trial._trial_id)
                self._write(study, trial, told, write)
                study.tell(trial.number, told.values(len(study.directions)))
                finished.append(trial.number)
        return finished

    def ended(self, study: Study, state: TrialState) -> None:
        """Ends a loop that would go on for ever: a trial without a value is asked for again."""
        learnt = state == TrialState.COMPLETE
        why = self._patience.count(failed=state == TrialState.FAIL, learnt=learnt)
        if why is not None:
            self._patience = EarlyStop(FRUITLESS, FRUITLESS)  # for another loop over this study
            _study.stop(study)  # before a filter raises the warning, which a thread may lose
            warn(f"{why}, so the study is stopped. {_PRUNED}", UtilityWarning)

    def finish(self, study: Study) -> None:
        """Shows the last guarantee, and stops the loop."""
        self.show(study)
        _study.stop(study)

    def _announce(self) -> None:
        """Logs what the run does, once it is known, and whether the loop ends before it does."""
        session, plan, n_records = self.session, self.session.plan, self.session.n_records
        if plan is None or n_records is None:
            return
        of = plural(session.unit.word)
        what = "values are losses, which are minimised"
        if session.maximize:
            what = "values are scores, which are maximised"
        if scores := getattr(self._config, "scores", None):
            better = ("smaller", "larger")
            named = (f"{one.name} ({better[one.greater_is_better]} is better)" for one in scores)
            what = f"released are {', '.join(named)}"
        most = self._config.n_trials or 0
        whole = f" (of n_trials={most}, as steps are whole)" if most > plan.n_trials else ""
        _logs.logger.info(
            f"{plan.n_trials} trials{whole} are planned for {n_records} {of}; {what}."
        )
        asked, left = _study.trials_of_loop(), plan.n_trials - session.run.n_told() + 1
        if asked is not None and asked < left:
            fitting = self._fitting(session.space, n_records, asked)
            _logs.logger.warning(
                f"study.optimize(n_trials={asked}) ends before the plan of {plan.n_trials} trials "
                f"does: {left - asked} will be left. Call it again to go on, without n_trials= to "
                f"the plan's end. {fitting}"
            )

    def _tell_time(self, trial: FrozenTrial) -> None:
        """Logs how long the plan will take, once, if that is long."""
        plan, begun = self.session.plan, trial.datetime_start
        if plan is not None and begun is not None:
            seconds = (datetime.now() - begun).total_seconds()
            if text := self._first_trials.count(seconds, lambda: plan.n_trials):
                _logs.logger.info(text)

    def _fitting(self, space: Space | None, n_records: int, n_trials: int) -> str:
        """Names the plan that so few trials would have."""
        try:
            config = self._config.with_trials(n_trials)
            fitting = algorithm_of(config).make_plan(config, space or Space({}), n_records)
        except ValueError:
            return f"No plan over these parameters is as short as n_trials={n_trials}."
        return (
            f"For a new study, n_trials={n_trials} from the beginning plans {fitting.n_trials} "
            f"trials, each released mean with noise of sd {fitting.value_noise:.3g}."
        )

    # What the guarantee does not survive ------------------------------------------------------

    def expose(self, study: Study, reason: str, fix: str = "") -> None:
        """Marks the run as unprotected, shows it in the study, and warns once."""
        self.session.run.mark_unprotected(reason)
        if self.once(reason):
            self.show(study)
        self.warn(reason, fix)

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

    # What the study shows -------------------------------------------------------------------

    def show(self, study: Study) -> Guarantee:
        """Writes the guarantee into the study; never before looking at what the study holds."""
        self._look(study)
        failed = _study.failures_in(study.get_trials(deepcopy=False))
        run = self.session.run
        others = sum(map(partial(_has_charged, run.vault), self._runs - {run.run_id}))
        if others:
            run.mark(RUNS_BESIDE, f"{others:06}")  # so that the ledger says it, too
        guarantee = self.session.guarantee(failed=failed)
        notes = (*guarantee.notes, *_audit.attributes_note(study))
        return _study.show_guarantee(study, replace(guarantee, notes=notes))

    def look_around(self, study: Study) -> None:
        """Notices what others have written since, so that the study never claims too much."""
        self._look(study)
        for reason in [reason for reason in self.audit.found if reason not in self.said]:
            self.expose(study, reason)

    def _look(self, study: Study) -> None:
        """Marks the run if trials not looked at before hold what no release explains."""
        self.audit.look(study)
        for reason in [reason for reason in self.audit.found if reason not in self._marked]:
            self.session.run.mark_unprotected(reason)
            self._marked.add(reason)  # not before the vault has taken it


def unexplained(
    session: LossReader, told: dict[str, Published], told_at: dict[str, str],
    trials: Sequence[FrozenTrial],
) -> Iterator[str]:  # fmt: skip
    """Yields why nothing may be claimed of what trials hold. Nothing is written.

    Args:
        session: Of the run that they show.
        told: By key, what is known to be published; all else is read from the vault.
        told_at: By key, the parameters that are known to be those of a release, for one look.
        trials: Of any state.
    """
    keyed = [(key_of(trial), trial) for trial in trials]
    asking = {key for key, trial in keyed if _needs_the_vault(trial)}.difference(told)
    published = ChainMap(told, session.published(asking) if asking else {})
    marks = [
        {op: _mark(op, key) for op in _audit.outputs_of(trial, _own(trial, published.get(key)))}
        for key, trial in keyed
    ]
    asked = {"/".join(mark) for of_trial in marks for mark in of_trial.values()}
    public = session.run.declared_public(asked) if asked else frozenset()
    for (key, trial), of_trial in zip(keyed, marks, strict=True):
        known = published.get(key)
        value = None if known is None else known.values(len(trial.values or (0,)))
        declared = [op for op, mark in of_trial.items() if "/".join(mark) in public]
        yield from _audit.suspicions(trial, of_trial, value, declared, _PLAIN, _BESIDE)
    shown = {key: trial.params for key, trial in keyed if _audit.must_be_released(trial)}
    shown = {key: at for key, at in shown.items() if told_at.pop(key, None) != repr(at)}
    if shown and session.told_elsewhere(shown):
        yield _ELSEWHERE


def _own(trial: FrozenTrial, told: Published | None) -> set[Any]:
    """Attributes and constraints that hold what the sampler itself has written there."""
    if told is None:
        return set()
    role, draw = trial.user_attrs.get(ROLE_ATTR), trial.user_attrs.get(RELEASE_ATTR)
    own: set[Any] = set()
    if type(role) is str and role.removesuffix(CARRIED) == told.label:  # a subclass may lie
        own.add(ROLE_ATTR)
    if told.draw is not None and type(draw) is float and draw == told.draw:
        own.add(RELEASE_ATTR)
    if _are_scores(trial.user_attrs.get(SCORES_ATTR), told.scores):
        own.add(SCORES_ATTR)
    kept = {} if _CONSTRAINTS_KEY in trial.system_attrs else trial.constraints  # another's list
    alike = [n for n, v in kept.items() if type(v) is float and v == told.lacks.get(n)]
    return own | {("set_constraint", name) for name in alike}


def _are_scores(shown: Any, told: Mapping[str, Sequence[float]]) -> bool:
    """Checks whether an attribute holds released scores and nothing else, of plain types."""
    if type(shown) is not dict or {*map(type, shown)} != {str} or shown.keys() != told.keys():
        return False
    pairs = [(one, [*told[name]]) for name, one in shown.items()]
    return all(
        type(one) is list and {*map(type, one)} == {float} and one == own for one, own in pairs
    )


def _needs_the_vault(trial: FrozenTrial) -> bool:
    """Checks whether a trial holds what only the vault can explain."""
    ours = {ROLE_ATTR, RELEASE_ATTR, SCORES_ATTR} & {*trial.user_attrs}
    return _audit.must_be_released(trial) or bool(ours or trial.constraints)


def _mark(operation: str, key: str) -> tuple[str, str]:
    """An operation without its place, as the guarantee names it, and where it wrote to."""
    kind = _audit.kind_of(operation)
    place = operation.removeprefix(kind)
    return f"trial.{kind}", f"{place}/{key}" if place else key


def declare_public(session: Session, key: str, operation: str) -> None:
    """Records that an objective declared what a trial gave to an operation public."""
    session.run.declare_public(*_mark(operation, key))


def _has_charged(vault: Vault, run_id: str) -> bool:
    with vault.transaction(run_id) as tx:
        return bool(tx.charges_by_mu())


# Joining ----------------------------------------------------------------------------------------


def remembered_run(study: Study, vault: Vault) -> str | None:
    """Returns the run that a study remembers; None for one that has none yet.

    Raises:
        VaultError: If the vault does not hold it, or is the study's own database.
    """
    _study.refuse_shared_database(study, vault)
    remembered = study.user_attrs.get(RUN_ATTR)
    if remembered is not None and remembered["vault"] != vault.vault_id:
        raise VaultError(
            "This study was started with another vault, which holds its ledger; without it "
            "nothing can be released. An in-memory vault ends with its process: to resume a "
            "study, give the sampler a vault URL from the start, for example "
            "vault='sqlite:///private.db'."
        )
    return None if remembered is None else str(remembered["run"])


def remember(study: Study, session: Session) -> None:
    """Writes the run's identity into the study, or waits for the worker that started the run.

    A run that was started for another study of this name never shows up in this one.
    """
    run = session.run
    for tries in range(0 if run.begun_here else 8):
        time.sleep(0.01 * 2**tries)
        remembered = study.user_attrs.get(RUN_ATTR)
        if remembered is not None and remembered["run"] == run.run_id:
            return
    if not run.begun_here and run.marks(_CLAIMED):  # else its starter died before it remembered it
        raise VaultError(
            "The vault already holds a run of another study of this name, with a ledger that this "
            "study does not show. Give the study another name or another vault."
        )
    study.set_user_attr(RUN_ATTR, {"run": run.run_id, "vault": run.vault.vault_id})
    run.mark(_CLAIMED, "by the host")


def warn_of_memory(study: Study, session: Session) -> None:
    """Logs that a study which outlives its vault cannot go on."""
    if session.run.vault.in_memory and not isinstance(study._storage, InMemoryStorage):
        _logs.logger.warning(
            "The study is stored, and its vault lies in this process's memory: the study cannot "
            "go on in another process. Give the sampler vault='sqlite:///private.db' to resume it."
        )
