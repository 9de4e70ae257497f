"""Samplers that learn from nothing but the study: its trials, as attempts at evaluations.

Everything they know is in the study, so a sampler keeps no store of its own; a new process, or a
resumed study, reads the trials again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._audit import OF_TRIALS, stored
from optuna_samplers._sampler import OfStudy, StudySampler
from optuna_samplers._settings import SpaceSettings
from privbo_plugins.algorithms.protocols import Evaluation, RewardAlgorithm, Slot
from privbo_plugins.sessions.scheduler import Attempt, SharedScheduler, finite, is_at
from privbo_plugins.spaces import Space

EPOCH_ATTR = "privbo:epoch"
"""System attribute of a trial: which group of replays it belongs to."""

CLAIM_ATTR = "privbo:claim"
"""System attribute of a trial: the draw (epoch, agent, draw) that it wants; None if it gave up."""

DRAW_ATTR = "privbo:draw"
"""System attribute of a trial: the draw (epoch, agent, draw) that it holds."""

MARK_ATTR = "privbo:duets"
"""System attribute of a trial that holds a draw: digests of the settings (and of how private coins
follow from their number) and of the space that it was drawn with, and the number behind its coins.
"""

Mark = Mapping[str, Any]


@dataclass(eq=False)
class Reading(OfStudy):
    """What one sampler object has read of one study, and what of it was shown."""

    scheduler: SharedScheduler[Any] | None = None
    mark: Mark | None = None
    shown: dict[str, Any] | None = None


class ScheduledSampler(StudySampler[Reading]):
    """Base of the samplers that learn from a study's parameters and values.

    Args:
        algorithm: The engine's.
        config: Its settings.
        given: What every sampler has.
    """

    def __init__(
        self, algorithm: Callable[..., RewardAlgorithm], config: Any, given: SpaceSettings
    ) -> None:
        self._algorithm, self._config = algorithm, config
        super().__init__(given)

    def _new_state(self, study: Study) -> Reading:
        return Reading()

    # What the algorithm knows -----------------------------------------------------------------

    def _mark(self, study: Study, space: Space) -> Mark | None:
        """Tells what draws come from, where trials hold some."""
        return None

    def _attempt(self, trial: FrozenTrial, mark: Mark | None) -> Attempt:
        """Returns the attempt that a trial shows to samplers whose draws have this mark."""
        held = _slot(trial, DRAW_ATTR)
        counts = trial.system_attrs.get(MARK_ATTR) == mark or mark_of(trial) is None
        wanted = _slot(trial, CLAIM_ATTR) if trial.state == TrialState.RUNNING else None
        return Attempt(
            trial.number,
            trial.params,
            state_of(trial),
            value_of(trial),
            trial.system_attrs.get(EPOCH_ATTR),
            held=held if counts else None,
            wanted=None if wanted == held else wanted,
        )

    def _attempts(self, study: Study, trials: Iterable[FrozenTrial]) -> list[Attempt]:
        mark = self._state(study).mark
        return [self._attempt(trial, mark) for trial in trials]

    def _scheduler(self, study: Study, space: Space) -> SharedScheduler[Any]:
        """The transcript of a study's trials over a space, not brought up to date."""
        own, mark = self._state(study), self._mark(study, space)
        if own.scheduler is None or own.scheduler.space != space or own.mark != mark:
            maximize = study.direction == StudyDirection.MAXIMIZE
            seed = self._seed if mark is None else mark["key"]
            algorithm = self._algorithm(self._config, space, maximize=maximize, seed=seed)
            own.scheduler, own.mark = SharedScheduler(algorithm, space), mark
        return own.scheduler

    def _synchronised(
        self, study: Study, space: Space, asking: int | None
    ) -> tuple[Any, list[Evaluation]]:
        """The algorithm after all values that the study shows, and the pending evaluations."""
        own, scheduler = self._state(study), self._scheduler(study, space)
        own.scheduler = None  # what an interruption leaves half learnt is read anew
        unread = scheduler.unread(study.get_trials(deepcopy=False))
        pending = scheduler.read(self._attempts(study, unread), asking)
        own.scheduler = scheduler
        return scheduler.algorithm, pending


def state_of(trial: FrozenTrial) -> str:
    """Returns a trial's state in the engine's words."""
    if trial.state.is_finished():
        return "ended"
    return "running" if trial.state == TrialState.RUNNING else "waiting"


def value_of(trial: FrozenTrial) -> float | None:
    """The finite value of a completed trial."""
    return finite(trial.value) if trial.state == TrialState.COMPLETE else None


def mark_of(trial: FrozenTrial) -> Mark | None:
    """Returns the mark of a trial's draw; None if it is not known."""
    found: Mark | None = stored(trial.system_attrs, MARK_ATTR, OF_TRIALS)
    return found


def founder(trials: Iterable[FrozenTrial]) -> Mark | None:
    """Returns the mark of the lowest-numbered trial that holds a draw."""
    marks = (mark_of(t) for t in trials if _slot(t, DRAW_ATTR) is not None)
    return next((mark for mark in marks if mark is not None), None)


def _slot(trial: FrozenTrial, name: str) -> Slot | None:
    """A draw as stored, or None: a storage may hold anything."""
    found: list[int] | None = stored(trial.system_attrs, name, OF_TRIALS)
    return None if found is None else (found[0], found[1], found[2])


def params_of(
    evaluation: Evaluation, trials: Iterable[FrozenTrial], space: Space
) -> dict[str, Any]:
    """Parameters of an evaluation, without any rounding error where an earlier trial was there."""
    slot = evaluation.slot
    name = EPOCH_ATTR if slot is None else DRAW_ATTR
    wanted = (evaluation.epoch,) if slot is None else (slot, list(slot))
    for trial in trials:
        alike = trial.system_attrs.get(name) in wanted
        if alike and set(space) <= set(trial.params) and is_at(trial.params, evaluation, space):
            return {name: trial.params[name] for name in space}
    return space.decode(evaluation.x)
