"""Samplers that learn from nothing but the study: its trials, as attempts at evaluations.

Everything they know is in the study, so a sampler keeps no store of its own; a new process, or a
resumed study, reads the trials again.
"""

from __future__ import annotations

import abc
import secrets
from collections.abc import Iterable
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._sampler import OfStudy, StudySampler
from optuna_samplers._settings import SpaceSettings
from privbo_plugins.algorithms.protocols import Evaluation, SeededAlgorithm
from privbo_plugins.sessions.scheduler import Attempt, SharedTranscript, finite, is_at
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Space

EPOCH_ATTR = "privbo:epoch"
"""System attribute of a trial: which group of replays it belongs to."""


def _short(seed: int) -> int:
    """A seed that numpy takes; those below 2**32 as they are."""
    return seed if seed < 2**32 else seed % 2**32


class Reading(OfStudy):
    """What one sampler object has read of one study."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: SharedTranscript[Any] | None = None


class ScheduledSampler(StudySampler[Reading]):
    """Base of the samplers that learn from a study's parameters and values.

    Args:
        given: What every sampler has; its seed drives candidates as well.
    """

    def __init__(self, given: SpaceSettings) -> None:
        self._seed = secrets.randbits(32) if given.seed is None else int(given.seed)
        super().__init__(given if given.seed is None else evolve(given, seed=_short(self._seed)))

    def _new_state(self, study: Study) -> Reading:
        return Reading()

    def reseed_rng(self) -> None:
        """New seeds for candidates and independent draws."""
        self._seed = secrets.randbits(32)
        super().reseed_rng()

    # What the algorithm knows -----------------------------------------------------------------

    @abc.abstractmethod
    def _new_algorithm(self, space: Space, maximize: bool) -> SeededAlgorithm:
        """The engine's algorithm, which has been told nothing."""

    def _attempt(self, trial: FrozenTrial) -> Attempt:
        """Returns the attempt that a trial shows."""
        return Attempt(
            trial.number,
            trial.params,
            state_of(trial),
            value_of(trial),
            trial.system_attrs.get(EPOCH_ATTR),
        )

    def _attempts(self, study: Study, trials: Iterable[FrozenTrial]) -> list[Attempt]:
        return [self._attempt(trial) for trial in trials]

    def _scheduler(self, study: Study, space: Space) -> SharedTranscript[Any]:
        """The transcript of a study's trials over a space, not brought up to date."""
        own = self._state(study)
        if own.scheduler is None or own.scheduler.space != space:
            maximize = study.direction == StudyDirection.MAXIMIZE
            own.scheduler = SharedTranscript(self._new_algorithm(space, maximize), space)
        return own.scheduler

    def _synchronised(
        self, study: Study, space: Space, asking: int | None
    ) -> tuple[Any, list[Evaluation]]:
        """The algorithm after all values that the study shows, and the pending evaluations."""
        scheduler = self._scheduler(study, space)
        unread = scheduler.unread(study.get_trials(deepcopy=False))
        pending = scheduler.read(self._attempts(study, unread), asking)
        return scheduler.algorithm, pending


def state_of(trial: FrozenTrial) -> str:
    """Returns a trial's state in the engine's words."""
    if trial.state.is_finished():
        return "ended"
    return "running" if trial.state == TrialState.RUNNING else "waiting"


def value_of(trial: FrozenTrial) -> float | None:
    """The finite value of a completed trial."""
    return finite(trial.value) if trial.state == TrialState.COMPLETE else None


def params_at(
    trials: Iterable[FrozenTrial], evaluation: Evaluation, space: Space
) -> dict[str, Any] | None:
    """Parameters of the first of some trials that is at an evaluation, as it has them."""
    for trial in trials:
        if set(space) <= set(trial.params) and is_at(trial.params, evaluation, space):
            return {name: trial.params[name] for name in space}
    return None
