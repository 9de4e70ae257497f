"""What samplers share that learn from nothing but the study: parameters and values.

Everything they know is in the study, so a sampler keeps no store of its own; a new process, or a
resumed study, reads the trials again.
"""

from __future__ import annotations

import abc
import math
import secrets
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._study import show_guarantee
from privbo_plugins.algorithms.protocols import Evaluation, RewardAlgorithm
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.spaces import Space


def _short(seed: int) -> int:
    """A seed that numpy takes; those below 2**32 as they are."""
    return seed if seed < 2**32 else seed % 2**32


class Learner(RewardAlgorithm, Protocol):
    """An algorithm over one space, whose candidates a seed drives."""

    space: Space
    seed: int


class StudyState:
    """What one sampler object keeps of one study; all of it can be read again."""

    def __init__(self) -> None:
        self.intersection = IntersectionSearchSpace()
        self.algorithm: Learner | None = None
        self.told: set[int] = set()
        self.first_open = 0
        self.warned = False
        self.shown: dict[str, Any] | None = None
        self.mark: dict[str, Any] | None = None
        self.at: dict[int, bool] = {}
        self.lost: dict[tuple[int, int, int], set[int]] = {}
        self.stray: int | None = None
        self.said: set[str] = set()

    def unread(self, study: Study) -> list[FrozenTrial]:
        """Trials that were not finished when they were last looked at."""
        return self.unread_of(study.get_trials(deepcopy=False))

    def unread_of(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Those of all trials of the study that :meth:`unread` returns."""
        return [trial for trial in trials[self.first_open :] if trial.number not in self.told]

    def read(self, trials: Sequence[FrozenTrial]) -> None:
        """Remembers finished trials; those before the first open one need no list."""
        self.told |= {trial.number for trial in trials}
        while self.first_open in self.told:
            self.told.discard(self.first_open)
            self.first_open += 1


class TranscriptSampler(BaseSampler):
    """Base of the samplers that learn from a study's parameters and values.

    Args:
        seed: Drives candidates, never noise.
    """

    def __init__(self, *, seed: int | None) -> None:
        self._seed = secrets.randbits(32) if seed is None else int(seed)
        self._independent = RandomSampler(seed=None if seed is None else _short(seed))
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._states: weakref.WeakKeyDictionary[Any, dict[tuple[str, int], StudyState]] = (
            weakref.WeakKeyDictionary()
        )

    def __getstate__(self) -> dict[str, Any]:
        """Public settings; the rest is read from the study again."""
        state = self.__dict__.copy()
        for name in ("_lock", "_states"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _state(self, study: Study) -> StudyState:
        key = study.study_name, study._study_id
        with self._lock:
            return self._states.setdefault(study._storage, {}).setdefault(key, StudyState())

    def reseed_rng(self) -> None:
        """New seeds for candidates and independent draws."""
        self._seed = secrets.randbits(32)
        self._independent.reseed_rng()

    # What the algorithm knows -----------------------------------------------------------------

    @abc.abstractmethod
    def _new_algorithm(self, space: Space, maximize: bool) -> Learner:
        """The engine's algorithm, which has been told nothing."""

    @abc.abstractmethod
    def _evaluated(self, trial: FrozenTrial, space: Space) -> Evaluation | None:
        """What a trial evaluated; None if it has no part in this space."""

    def _synchronised(
        self, study: Study, space: Space, asking: int | None
    ) -> tuple[Learner, list[Evaluation]]:
        """The algorithm after all values that the study shows, and the pending evaluations."""
        own = self._state(study)
        if own.algorithm is None or own.algorithm.space != space:
            own.algorithm = self._new_algorithm(space, study.direction == StudyDirection.MAXIMIZE)
            own.told, own.first_open = set(), 0
        open_now = [t for t in own.unread(study) if t.number != asking]
        finished = [t for t in open_now if t.state.is_finished()]
        for evaluation, value in self._values(finished, space):
            own.algorithm.tell(evaluation, value)
        own.read(finished)
        running = [self._evaluated(t, space) for t in open_now if t.state == TrialState.RUNNING]
        return own.algorithm, [evaluation for evaluation in running if evaluation is not None]

    def _values(
        self, trials: Sequence[FrozenTrial], space: Space
    ) -> list[tuple[Evaluation, float]]:
        """Evaluations and their finite values; all are read before the first is told."""
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        evaluations = [(self._evaluated(trial, space), trial.value) for trial in complete]
        return [
            (evaluation, value)
            for evaluation, value in evaluations
            if evaluation is not None and value is not None and math.isfinite(value)
        ]

    # What a reader is told ----------------------------------------------------------------------

    def _warn_once(self, study: Study, guarantee: object, text: str) -> None:
        """Shows a study without protection as such, and warns of it once."""
        own = self._state(study)
        if not own.warned:
            own.warned = True
            show_guarantee(study, guarantee)
            warnings.warn(text, PrivacyWarning, stacklevel=4)
