"""Lifecycle of samplers that learn from one privatised number a trial.

What they know are values that have been released, and parameters. Which epoch of replays a trial
belongs to is kept with the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._evaluations import shows_release
from optuna_samplers._local import LocalObjective, UserOf
from optuna_samplers._publish import EXPOSED
from optuna_samplers._sampler import UNPROTECTED, Values, Wanted, constants_in
from optuna_samplers._scheduler import EPOCH_ATTR, ScheduledSampler, params_of
from optuna_samplers._settings import RewardRunSettings
from optuna_samplers._space import to_space
from optuna_samplers._study import completed, show_guarantee, stop, whole
from privbo_plugins.algorithms.protocols import RewardAlgorithm
from privbo_plugins.algorithms.reward_plan import RewardPlan, make_reward_plan
from privbo_plugins.errors import PrivacyError, UtilityWarning, warn
from privbo_plugins.plots import Report, RewardHistory
from privbo_plugins.privacy.figures import warn_of_delta
from privbo_plugins.privacy.guarantee import LocalGuarantee, PrivacyGuarantee
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.reward_noise import RewardScale
from privbo_plugins.reports import reward_history, reward_report
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Space
from privbo_plugins.status import planned_trials, status, used_up
from privbo_plugins.store.vault import Vault, open_vault
from privbo_plugins.users import NOT_PRIVATE, PLAIN

_WRAP = (
    "Wrap the objective: study.optimize(sampler.private(objective)) with an objective that "
    "returns one user's reward."
)

PRIVATISED = (
    "Each is one reward with privacy noise, which says next to nothing by itself. So the best "
    "value is the *luckiest* draw and looks better than it is; go by the recommendation."
)

_OVER = "All {} trials that n_trials= plans have a value: raise it to plan for further users."


class RewardSampler(ScheduledSampler):
    """Base of the samplers that learn from one privatised number a trial.

    Args:
        algorithm: The engine's.
        config: Its settings.
        mechanism: What ``private`` does to a reward; None leaves it as it is.
        given: What every sampler has that learns from privatised rewards.
    """

    def __init__(
        self,
        algorithm: Callable[..., RewardAlgorithm],
        config: RewardScale,
        mechanism: LocalMechanism | None,
        given: RewardRunSettings | None = None,
    ) -> None:
        given = RewardRunSettings() if given is None else given
        self.mechanism, self._given = mechanism, given
        super().__init__(algorithm, config, given)
        space = to_space(self._search_space or {})
        if space is not None:
            algorithm(config, space)  # what does not fit is refused here, not in a trial

    _memory: Vault | None = None
    _OF_THIS_PROCESS = (*ScheduledSampler._OF_THIS_PROCESS, "_memory")
    _stops = True
    """Whether a loop ends with the trials that ``n_trials=`` plans."""

    def __getstate__(self) -> dict[str, Any]:
        """Public settings; the rest is read from the study again."""
        return super().__getstate__() | {"_given": evolve(self._given, noise=None)}

    # Optuna's hooks -------------------------------------------------------------------------

    def _admit(self, study: Study, trial: FrozenTrial) -> None:
        """Warns if nothing is privatised, and once of a trial beyond those that are planned."""
        own, n = self._state(study), planned_trials(self._config)
        if self.mechanism is None:
            self._warn(study, NOT_PRIVATE)
        elif not study._stop_flag and used_up(len(completed(study)), n) and own.once(_OVER):
            warn(_OVER.format(n), UtilityWarning)

    def _suggest(self, study: Study, trial: FrozenTrial, wanted: Wanted) -> dict[str, Any]:
        space = to_space(wanted)
        return {} if space is None else self._next(study, trial, space)

    def _next(self, study: Study, trial: FrozenTrial, space: Space) -> dict[str, Any]:
        """The parameters of the next evaluation; {} for a random draw."""
        with self._lock:
            algorithm, pending = self._synchronised(study, space, trial.number)
            algorithm.seed = self._seed
            evaluation = algorithm.ask(trial.number, pending)
        if evaluation is None:
            return {}
        if evaluation.epoch is None:
            return space.decode(evaluation.x)
        study._storage.set_trial_system_attr(trial._trial_id, EPOCH_ATTR, evaluation.epoch)
        return params_of(evaluation, study.get_trials(deepcopy=False), space)

    def _end(self, study: Study, trial: FrozenTrial, state: TrialState, values: Values) -> None:
        """Warns of a value that is no release; ends the loop after the last planned trial."""
        done = len(completed(study)) + (state == TrialState.COMPLETE)  # it is not stored yet
        if self._stops and used_up(done, planned_trials(self._config)):
            stop(study)
        if self.mechanism is None or state != TrialState.COMPLETE or values is None:
            return
        shown = optuna.trial.create_trial(value=values[0], user_attrs=trial.user_attrs)
        if not shows_release(shown):
            self._warn(study, PLAIN, _WRAP)

    def _warn(self, study: Study, reason: str, fix: str = "") -> None:
        """Shows a study without protection as such, and warns of it once."""
        own = self._state(study)
        if UNPROTECTED not in own.said:
            show_guarantee(study, self._unprotected(reason))
        own.warn(reason, fix)

    # What the user writes and reads ---------------------------------------------------------

    def private(
        self, objective: Callable[[Any], Any], *, user_id: UserOf | None = None
    ) -> LocalObjective:
        """Wraps an objective that returns one user's reward, with this sampler's mechanism.

        Args:
            objective: From a guarded trial to one number.
            user_id: Whose reward a trial is, as for :func:`optuna_samplers.ldp_objective`.

        Returns:
            An objective for ``study.optimize`` that returns the privatised reward.

        Raises:
            ValueError: If epsilon is infinite: then there is nothing to wrap.
        """
        if self.mechanism is None:
            raise ValueError(
                "This sampler has epsilon=inf, which privatises nothing: give the objective to "
                "study.optimize as it is, or the sampler a finite epsilon."
            )
        given = self._given
        with self._lock:
            if given.vault is None and self._memory is None:
                self._memory = open_vault()  # one ledger for all that this sampler wraps
        vault = given.vault if self._memory is None else self._memory.handle
        return LocalObjective(objective, self.mechanism, evolve(given, vault=vault), user_id)

    def plan(
        self, n_trials: int, *, seconds_per_trial: float | None = None, n_workers: int = 1
    ) -> RewardPlan:
        """Tells what so many trials can show at this epsilon.

        Args:
            n_trials: Number of trials, one user's reward each.
            seconds_per_trial: How long a trial takes, if you know it: then the plan says how long
                the run does.
            n_workers: Trials that run at once.

        Returns:
            The plan; printing it says how well a setting's mean will be known.

        Raises:
            ValueError: If the number is not positive, or the sampler knows no reward range.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        warn_of_delta(getattr(self.mechanism, "delta", None), n_trials, "evaluations")
        return make_reward_plan(self._config, n_trials).presented(seconds_per_trial, n_workers)

    def recommend(self, study: Study) -> dict[str, Any]:
        """The parameters with the largest posterior mean: not the best noisy trial.

        Raises:
            ValueError: If no trial has completed.
        """
        study, space = whole(study), self._known_space(study)
        if not completed(study):
            raise ValueError("There is nothing to recommend yet: no trial has completed.")
        if space is None:
            return constants_in(study)
        with self._lock:
            return constants_in(study) | space.decode(self._recommendation(study, space))

    def _recommendation(self, study: Study, space: Space) -> NDArray[np.float64]:
        """The point that the algorithm recommends after all that the study shows."""
        algorithm, _ = self._synchronised(study, space, None)
        return np.asarray(algorithm.recommendation())

    def guarantee(self, study: Study) -> LocalGuarantee:
        """Claims what holds for this study, after comparing its values with their releases.

        It is what the wrapped objective's own ``guarantee`` says. How often one user was asked
        is in the ledger of that objective: without its vault nothing is claimed of it.
        """
        if self.mechanism is None:
            return self._unprotected(NOT_PRIVATE)
        user = None if self._given.user_budget is None else _nothing
        return self.private(_nothing, user_id=user).guarantee(study)

    def history(self, study: Study) -> RewardHistory:
        """The released rewards of the study, for :mod:`privbo_plugins.plots`.

        Values that are no releases are not among them, and none is with ``epsilon=math.inf``.
        """
        study, space = whole(study), self._known_space(study)
        released: list[tuple[NDArray[np.float64] | None, float]] = []
        for trial in filter(shows_release, completed(study)):
            known = None if space is None else self._attempt(trial, None).evaluation(space)
            released.append((None if known is None else known.x, trial.values[0]))
        return reward_history(space, released, self.mechanism)

    def finished(self, study: Study) -> bool:
        """Checks if as many trials have a value as ``n_trials=`` expects; never without it."""
        return used_up(len(completed(whole(study))), planned_trials(self._config))

    def status(self, study: Study) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        study = whole(study)
        done = len(completed(study))
        return status(
            self.guarantee(study), done, planned_trials(self._config), recommendation=done > 0,
            finished=self.finished(study), budget=self._given.user_budget,
        )  # fmt: skip

    def _page(self, study: Study) -> Report:
        return self._reported(reward_report, study, summary=self._summary(study))

    @staticmethod
    def _values_are(study: Study, guarantee: PrivacyGuarantee) -> str:  # noqa: ARG004
        return PRIVATISED if guarantee.protected else EXPOSED

    def _summary(self, _study: Study) -> Mapping[str, Any] | None:
        """Returns the progress of agents that share the work; None where there are none."""
        return None

    def _unprotected(self, reason: str) -> LocalGuarantee:
        name = "none" if self.mechanism is None else self.mechanism.name
        return LocalGuarantee(False, name, reasons=(reason,))


def _nothing(_: object) -> NoReturn:
    raise PrivacyError("This objective reads a ledger and evaluates nothing.")
