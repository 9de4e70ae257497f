"""The sampler on per-record losses: Optuna's hooks on one side, the study's run on the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._losses import LossRun, LossStudies, Objective
from optuna_samplers._sampler import StudySampler
from optuna_samplers._settings import LossRunSettings
from optuna_samplers._space import to_space
from optuna_samplers._study import key_of, same, whole
from privbo_plugins.algorithms.protocols import CentralConfig
from privbo_plugins.settings import setting, settings, takes


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

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Charges the training that the trial is about to do, if a cost was declared."""
        super().before_trial(study, trial)
        own = self._current(whole(study))
        own.charge_training(str(trial.number))
        own.prepaid.add(trial.number)

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
        own, key = self._state(study), key_of(trial)
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
        elif values is not None and not same(values[0], told.value):
            own.expose(study, f"trial {trial.number} shows another value than released")
        else:
            own.look_around(study)
        if own.session.finished:
            own.finish(study)


class PrivateObjective:
    """An objective whose raw result goes to the vault; made by ``sampler.private``."""

    def __init__(self, sampler: LossStudies, objective: Objective) -> None:
        self._sampler, self._objective = sampler, objective

    def __call__(self, trial: optuna.Trial) -> float:
        """Evaluates the objective on a guarded trial and returns the released value."""
        value, error = self._sampler._evaluate(trial, self._objective)
        if error is not None:
            raise error
        return float(value)

    def __repr__(self) -> str:
        return "PrivateObjective()"  # the objective's own repr may quote data
