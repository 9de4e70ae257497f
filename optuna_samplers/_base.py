"""Per-record losses under any sampler, and the sampler that plans for them.

Optuna's hooks and the user's verbs stand here; the run of one study is in
:mod:`optuna_samplers._losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import _logs, _losses, _study
from optuna_samplers._guard import GuardedTrial, Releasing, check_objective, released
from optuna_samplers._losses import LossRun, Objective
from optuna_samplers._publish import EXPOSED
from optuna_samplers._sampler import ReportedStudies, StudySampler, Values, Wanted, constants_in
from optuna_samplers._settings import LossRunSettings
from optuna_samplers._space import to_space
from optuna_samplers._study import key_of
from privbo_plugins.algorithms.protocols import CentralConfig, CentralPlan
from privbo_plugins.algorithms.registry import check_incumbent, entry_of, planned
from privbo_plugins.errors import PrivacyWarning, warn
from privbo_plugins.groups import Groups, Unit, whose
from privbo_plugins.plots import History, Report
from privbo_plugins.privacy.guarantee import Guarantee, PrivacyGuarantee
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.words import of_unit
from privbo_plugins.reports import records_report
from privbo_plugins.sanitize import call, sanitized
from privbo_plugins.sessions.reader import OBJECTIVES
from privbo_plugins.sessions.records import Session
from privbo_plugins.settings import setting, settings, takes
from privbo_plugins.spaces import varying
from privbo_plugins.store.vault import Vault, open_vault

_ESTIMATES = (
    "Each is an estimate of the mean over the validation {units}, from all noisy releases up to "
    "that trial; what is little known is shown on the worse side. It is no single draw: that is "
    "the trial's user attribute `privbo:release`. The best of many estimates still tends to look "
    "somewhat better than it is. The estimate below uses all releases."
)

_LUCKIEST = (
    " So the best value is the *luckiest* draw and looks better than it is; go by the "
    "recommendation."
)

_DRAWS = (
    "Each is one noisy release: the clipped mean over the validation {units}, plus noise."
    + _LUCKIEST
)

_OF_SCORES = (
    "Each is a score of noisy means over the validation {units}; the standard deviation that "
    "noise gives it, and further scores, are the trial's user attribute `privbo:scores`."
    + _LUCKIEST
)


class LossStudies(ReportedStudies[LossRun]):
    """Base of the samplers and objectives that keep per-record losses from their studies.

    Args:
        config: Settings of the algorithm.
        given: Settings of the run.
    """

    _labels: str | None = None
    """Fingerprint of the records' labels; of this process alone."""
    _groups: Groups | None = None
    """The persons that rows belong to; of this process alone."""
    _vault: Vault | None = None
    _noise: NoiseSource | None = None
    _OF_THIS_PROCESS = (
        *ReportedStudies._OF_THIS_PROCESS, "_vault", "_noise", "_labels", "_groups",
    )  # fmt: skip

    def __init__(self, config: CentralConfig, given: LossRunSettings) -> None:
        entry_of(config)  # raises before a vault is opened
        super().__init__(given)
        check_incumbent(config, to_space(self._search_space or {}))
        self._unit, self._config = Unit.of(given, config)
        self._run_seed, self._noise = given.seed, given.noise
        self._groups, self._labels = whose(given)
        self._runs: set[str] = set()
        self._vault = open_vault(given.vault)
        self._vault_handle = self._vault.handle

    # Runs -----------------------------------------------------------------------------------

    def _new_state(self, study: Study) -> LossRun:
        """Starts the study's run in the vault, or joins the one that the study remembers."""
        self._check_objectives(study)
        if self._vault is None:
            self._vault = open_vault(self._vault_handle)
        remembered = _losses.remembered_run(study, self._vault)
        session = Session.open(
            self._vault,
            f"optuna/{study.study_name}",
            self._config,
            maximize=study.directions[0] == StudyDirection.MAXIMIZE,
            seed=self._run_seed,
            run_id=remembered,
            noise=self._noise,
            unit=self._unit,
        )
        session.groups = self._groups
        self._runs.add(session.run.run_id)
        session.labels.expect(self._labels)
        _losses.warn_of_memory(study, session)
        if remembered is None:
            _losses.remember(study, session)
        _study.guard(study, session.run)
        if (n := len(study.directions)) > 1:
            session.run.mark(OBJECTIVES, str(n))
        reasons = session.guarantee().reasons
        if reasons and remembered is None:
            text = f"Nothing is protected: {'; '.join(reasons)}."
            warn(text, PrivacyWarning)
        self._give_space(session, study, resumed=remembered is not None)
        return LossRun(session, self._config, self._search_space, self._runs)

    def _give_space(self, session: Session, study: Study, *, resumed: bool) -> None:
        """Fixes a declared space; one that trials have in common only where the run agrees."""
        found = self._search_space
        if found is None and resumed:
            found = IntersectionSearchSpace().calculate(study)
        space = None if found is None else to_space(found)
        given = self._search_space is not None
        if space is not None and (given or session.fixed()[0] in (None, space.to_dict())):
            session.set_space(space)

    def _current(self, study: Study) -> LossRun:
        """The state, after making sure that the study still belongs to this run.

        A study deleted and made again may get its old number; then its attribute is gone.
        """
        if not self._state(study).is_of(study):
            self._forget(study)
        return self._state(study)

    # The private channel --------------------------------------------------------------------

    def guarded(self, trial: optuna.Trial) -> GuardedTrial:
        """The trial as a private objective sees it, for ask/tell: outputs need ``public=True``."""
        own, key = self._state(trial.study), key_of(trial._cached_frozen_trial)
        return GuardedTrial(
            trial,
            partial(_losses.declare_public, own.session, key),
            partial(own.audit.check, trial.study),
        )

    def _released(self, trial: optuna.Trial, objective: Objective) -> tuple[Any, Any]:
        """(released value, None), or (None, an error whose frames hold no private value)."""
        own = self._state(trial.study)
        own.entered.add(key_of(trial._cached_frozen_trial))
        own.pay_training(trial.number)
        return released(objective, self.guarded(trial), partial(own.tell, trial))

    def tell_private(self, trial: optuna.Trial, losses: Any) -> Any:
        """Tells per-record losses under ask/tell; the study gets the released value.

        Args:
            trial: From ``study.ask()``.
            losses: One value per validation record, shape (n_records,); entry i belongs to the
                same record in every trial.

        Returns:
            The released value; of a study with several objectives all of them.

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

    def _pay_and_tell(self, trial: optuna.Trial, losses: Any) -> Any:
        self._check_study(trial.study)
        own = self._current(trial.study)
        if _study.frozen_of(trial).state.is_finished():
            raise ValueError(
                f"Trial {trial.number} is over and cannot be told again. Nothing was charged."
            )
        own.pay_training(trial.number)
        return own.tell(trial, losses)

    def _check_study(self, study: Study) -> None:
        """Refuses a study whose sampler does not go with this object."""

    def _check_objectives(self, study: Study) -> None:
        """Refuses a study with more objectives than a trial has values."""
        _study.refuse_multi_objective(study, type(self).__name__)

    # What the user reads --------------------------------------------------------------------

    def plan(
        self, search_space: Mapping[str, BaseDistribution], n_records: int,
        *, seconds_per_trial: float | None = None, n_workers: int = 1,
    ) -> CentralPlan:  # fmt: skip
        """Tells what a run over this space and so many records would do and cost.

        Args:
            search_space: Optuna distributions by name.
            n_records: Number of validation records; of persons or blocks, where entries are those.
            seconds_per_trial: How long a trial takes, if you know it: then the plan says how long
                the run does.
            n_workers: Trials that run at once.

        Returns:
            The plan; printing it shows trials, releases, noise and time.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        space = varying(to_space(search_space), "search_space")
        plan: CentralPlan = planned(self._config, space, n_records, self._unit)
        return plan.presented(seconds_per_trial, n_workers)

    def recommend(self, study: Study) -> dict[str, Any]:
        """The parameters that the algorithm recommends, from the releases alone.

        They need not be any trial's: ``study.best_params`` are those of the luckiest one.

        Raises:
            ValueError: If nothing has been released yet.
        """
        session = self._state(study).session
        if session.space is None:
            common = self._known_space(study)
            if common is None:
                raise ValueError("There is nothing to recommend yet: no trial has completed.")
            session.set_space(common)
        return constants_in(study) | session.recommendation()

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
        return self._reported(records_report, study)

    @staticmethod
    def _values_are(study: Study, guarantee: PrivacyGuarantee) -> str:
        if not guarantee.protected:
            return EXPOSED
        shown = {name for trial in _study.completed(study) for name in trial.user_attrs}
        draws = _OF_SCORES if _losses.SCORES_ATTR in shown else _DRAWS
        return of_unit(_ESTIMATES if _losses.RELEASE_ATTR in shown else draws, guarantee.unit)  # type: ignore[no-any-return]

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


@settings(eq=False)
class PrivateSamplerSettings(LossRunSettings):
    """Keywords of :class:`PrivateSampler`."""

    config: CentralConfig = setting(
        "Settings of the algorithm, which say what algorithm it is.",
        kw_only=False,
    )


class PrivateSampler(LossStudies, StudySampler[LossRun]):
    """Base of the samplers that tune on per-record losses under central privacy.

    It runs any algorithm of that kind in the registry: ``PrivateSampler(config)`` is a sampler.

    {settings}

    Raises:
        ValueError: For an empty search space, a vault handle that is not a URL, or settings of an
            algorithm that is not registered.
        VaultError: If the vault cannot be opened.
    """

    @takes(PrivateSamplerSettings)
    def __init__(self, given: PrivateSamplerSettings) -> None:
        super().__init__(given.config, given)

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

    # Optuna's hooks -------------------------------------------------------------------------

    def _admit(self, study: Study, trial: FrozenTrial) -> None:
        """Charges the training that the trial is about to do, if a cost was declared."""
        own = self._current(study)
        if own.session.finished and not study._stop_flag:  # which other trials' threads may set
            _logs.logger.warning(
                "The plan of this study is used up: the trial releases nothing new. Take "
                "sampler.recommend(study); a new study has a mu of its own."
            )
        own.charge_training(str(trial.number))
        own.prepaid[trial.number] = True

    def _relative(self, study: Study) -> dict[str, BaseDistribution]:
        state = self._state(study)
        if state.relative is None or state.session.plan is None:
            state.relative = self._common(study) or None
        return dict(state.relative or {})

    def _suggest(self, study: Study, trial: FrozenTrial, wanted: Wanted) -> dict[str, Any]:
        """Returns the next point of the plan, restricted to the names that Optuna asks for."""
        session = self._state(study).session
        if session.space is None:
            full = to_space(self._relative(study) | wanted)
            if full is not None:
                session.set_space(full)
        space = session.space
        if space is None or not set(wanted) <= set(space):
            return {}
        params = space.decode(session.ask(key_of(trial)).x)
        return {name: params[name] for name in wanted}

    def _draw(self, study: Study, trial: FrozenTrial, name: str, dist: BaseDistribution) -> Any:
        """The incumbent's value in the first trial, or a random draw."""
        drawn = super()._draw(study, trial, name, dist)
        given, space = getattr(self._config, "incumbent", None), to_space({name: dist})
        if given is None or space is None or trial.number > 0:
            return drawn
        own = {n: value for n, value in given.items() if n == name}
        return own.get(name, space.decode(space.incumbent(own))[name])

    def _end(self, study: Study, trial: FrozenTrial, state: TrialState, values: Values) -> None:
        """Checks what is about to be stored, and stops the study when the plan is used up."""
        own, key = self._state(study), key_of(trial)
        own.prepaid.pop(trial.number, None)
        if state != TrialState.COMPLETE:
            own.session.fail(key)
            if key not in own.entered:
                own.notice_outside(study)
            own.ended(study, state)
            return
        own.ended(study, state)
        told = own.told.get(key) or own.session.published([key]).get(key)
        if told is None:
            own.take_plain(study, trial, values)
        elif values is not None and not _study.same(values[0], told.value):
            own.expose(study, f"trial {trial.number} shows another value than released")
        else:
            own.look_around(study)
        if own.session.finished:
            own.finish(study)


class PrivateObjective(Releasing):
    """An objective whose raw result goes to the vault; made by ``sampler.private``."""

    def __init__(self, sampler: LossStudies, objective: Objective) -> None:
        check_objective(objective, "one value per validation record")
        self._sampler, self._objective = sampler, objective

    def _evaluate(self, trial: optuna.Trial) -> tuple[Any, Any]:
        return self._sampler._released(trial, self._objective)
