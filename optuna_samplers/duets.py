"""DUETS in Optuna: the workers of one study are the agents, and they share its storage.

Every process derives the same run from the study's trials, at any time:
:class:`privbo_plugins.sessions.scheduler.SharedScheduler` says whose a draw is. A draw counts only
for those who have the settings, the space and the coins that it was drawn with; they are stored
beside it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_samplers._rewards import RewardSampler
from optuna_samplers._scheduler import CLAIM_ATTR, DRAW_ATTR, MARK_ATTR, founder, params_of
from optuna_samplers._settings import RewardRunSettings
from optuna_samplers._space import to_space
from optuna_samplers._study import whole
from privbo_plugins.algorithms.duets import DUETS
from privbo_plugins.algorithms.duets.config import PUBLISHED, DUETSConfig, DUETSSettings
from privbo_plugins.algorithms.protocols import ATTEMPTS, Evaluation
from privbo_plugins.errors import SpaceChangedError, UtilityWarning, warn
from privbo_plugins.privacy.local import OptionalRewardPrivacy
from privbo_plugins.sessions.scheduler import (
    Attempt,
    SharedScheduler,
)
from privbo_plugins.settings import Published, WholeNumber, part, setting, settings, takes
from privbo_plugins.spaces import Space

AGENT_ATTR = "privbo:agent"
"""User attribute of a trial, for the dashboard: whose draw it is."""

EPOCH_ATTR = "privbo:epoch"
"""User attribute of a trial, for the dashboard: of which epoch."""

SUMMARY_ATTR = "privbo:duets"
"""Study attribute, for the dashboard: communication, and what each epoch has left."""

_ATTEMPTS = 4
"""Draws that a trial claims before it is content with a spare evaluation."""


@settings(eq=False)
class _Settings(RewardRunSettings, OptionalRewardPrivacy, DUETSSettings):
    """Keywords of :class:`DUETSSampler`."""

    seed: WholeNumber | None = setting(
        "Number behind all coins, >= 0, never noise; None derives it from the study's name, "
        "so that all processes toss the same.",
        default=None,
    )


class DUETSSampler(Published, RewardSampler):
    """Distributed tuning: N agents share one objective and send few numbers.

    One study serves all agents: a free worker (a thread, or a process on the same storage) takes
    the next of the agents' draws. An epoch closes when all of its draws have a value; then points
    that can no longer be the best are trimmed. A draw whose trial failed, or was
    given up by a heartbeat, is evaluated again at the same point, three times at most, and then
    counts as the worst value of its epoch. While an epoch waits for its last
    draws, further workers evaluate the most promising points known.

    Only Optuna's heartbeat notices a lost worker, and it must be enabled in the storage
    (``RDBStorage(url, heartbeat_interval=60)``); without one an epoch waits for its trial until
    ``study.tell(number, state=TrialState.FAIL)``.

    Source: Pavlovic, Salgia and Zhao, *Order-Optimal Regret in Distributed Kernel Bandits using
    Uniform Sampling with Shared Randomness*. As published it is
    ``DUETSSampler.paper(N, n_trials=N * T)``; the default keeps its order of regret with smaller
    constants.

    All workers, and every resumed run, need the same settings and the same ``seed`` (or none);
    a worker with others is refused at its first draw. A copy of a study keeps its coins.

    A trial's ``privbo:agent`` is known from its first suggestion on, so ``user_id`` cannot read
    it before the objective runs.

    {settings}

    Raises:
        ValueError: For every argument outside its range.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> sampler = DUETSSampler(2, epsilon=1.0, value_range=(0, 1), n_trials=12, seed=0)
        >>> study = optuna.create_study(direction="maximize", sampler=sampler)
        >>> reward = lambda trial: 1 - abs(trial.suggest_float("x", 0, 1) - 0.5)
        >>> study.optimize(sampler.private(reward), n_trials=12)
        >>> sampler.guarantee(study).protected
        True
        >>> study.trials[3].user_attrs["privbo:agent"], study.trials[3].user_attrs["privbo:epoch"]
        (0, 1)
    """

    _PUBLISHED = PUBLISHED
    _stops = False

    @takes(_Settings)
    def __init__(self, given: _Settings) -> None:
        mechanism, scale = given.made()
        config = part(given, DUETSConfig, **scale)
        self._key = given.seed
        declared = to_space(given.search_space) if given.search_space else None
        described = None if declared is None else declared.to_dict()
        self._settings = _digest([config.to_dict(), described])
        super().__init__(DUETS, config, mechanism, given)

    # What people look at ---------------------------------------------------------------------

    def status(self, study: Study) -> dict[str, Any]:
        """Tells where the run stands, and of its epochs the numbers sent and what is left.

        The last two are also the study's ``privbo:duets``.
        """
        study = whole(study)
        return super().status(study) | (self._summary(study) or {})

    def finished(self, study: Study) -> bool:
        """Checks whether the last epoch has closed; never without ``n_trials=``."""
        algorithm = self._known(whole(study))
        return algorithm is not None and algorithm.finished

    def _known(self, study: Study) -> DUETS | None:
        """The algorithm after all that the study shows, shown in it; None without a space."""
        space = self._known_space(study)
        if space is None:
            return None
        with self._lock:
            return self._brought_up(study, space)

    def _brought_up(self, study: Study, space: Space) -> DUETS:
        algorithm: DUETS = self._synchronised(study, space, None)[0]
        self._show(study, algorithm)
        return algorithm

    def _summary(self, study: Study) -> dict[str, Any] | None:
        algorithm = self._known(study)
        return None if algorithm is None else algorithm.status()

    # The next evaluation --------------------------------------------------------------------

    def _next(self, study: Study, trial: FrozenTrial, space: Space) -> dict[str, Any]:
        with self._lock:
            algorithm, evaluation = self._taken(study, trial, space)
            self._show(study, algorithm)
            slot = evaluation.slot
            notices = self._notices(study, spare=slot is None)
        for text in notices:
            warn(text, UtilityWarning)
        if slot is None:
            return space.decode(evaluation.x)
        study._storage.set_trial_user_attr(trial._trial_id, AGENT_ATTR, evaluation.agent)
        study._storage.set_trial_user_attr(trial._trial_id, EPOCH_ATTR, evaluation.epoch)
        return params_of(evaluation, study.get_trials(deepcopy=False), space)

    def _taken(self, study: Study, trial: FrozenTrial, space: Space) -> tuple[DUETS, Evaluation]:
        """A draw that the trial holds from now on, or a spare evaluation."""
        storage, trial_id = study._storage, trial._trial_id
        look = functools.partial(self._unread, study)
        self._refuse_other_settings(study)
        for attempt in range(_ATTEMPTS + 1):
            algorithm, pending = self._synchronised(study, space, trial.number)
            algorithm.seed = self._seed
            if attempt == _ATTEMPTS or _is_fixed(trial, space):
                pending = [*pending, *map(algorithm.evaluation_of, algorithm.open_slots())]
            evaluation = algorithm.ask(trial.number, pending) or Evaluation(
                algorithm.public_state.ranked[0]
            )
            slot = evaluation.slot
            if slot is None:
                break
            storage.set_trial_system_attr(trial_id, CLAIM_ATTR, list(slot))
            if self._draws(study).comes_first(trial.number, slot, look):
                storage.set_trial_system_attr(trial_id, MARK_ATTR, self._state(study).mark)
                storage.set_trial_system_attr(trial_id, DRAW_ATTR, list(slot))
                return algorithm, evaluation
            storage.set_trial_system_attr(trial_id, CLAIM_ATTR, None)
        return algorithm, evaluation

    def _refuse_other_settings(self, study: Study) -> None:
        """All draws of a study come from one run.

        Raises:
            SpaceChangedError: If the study's first draw was drawn with other settings.
        """
        first = founder(study.get_trials(deepcopy=False))
        if first is None:
            return
        if first["settings"] != self._settings:
            raise SpaceChangedError(
                "All workers of a study, and every resumed run, need the same settings. This "
                f"DUETSSampler's settings or search_space= (digest {self._settings}) differ from "
                f"those of the study's first draw (digest {first['settings']}): give it the same "
                "settings, or use a new study."
            )
        if self._key is not None and first["key"] != int(self._key):
            raise SpaceChangedError(
                "All workers of a study, and every resumed run, need the same seed= (or none). "
                f"This DUETSSampler has seed={self._key}, and the study's first draw was drawn "
                f"with {first['key']}: give it no seed=, or use a new study."
            )

    def _notices(self, study: Study, *, spare: bool) -> list[str]:
        """Returns the notices that the sampler has not shown to the user yet."""
        own, found, draws = self._state(study), {}, self._draws(study)
        if draws.stray is not None:
            found["stray"] = (
                f"Trial {draws.stray} did not evaluate the point that it was given: the objective "
                "did not suggest every parameter of search_space=, or another value was used. "
                f"Such a draw is asked for {ATTEMPTS} times in all and then counts as the worst "
                "value. Declare, and suggest, the same parameters in every trial."
            )
        if spare and "late" not in own.said:
            late = self._holding_up(study, draws)
            if late:
                waited_for = ", ".join(map(str, late))
                found["late"] = (
                    f"Epoch {draws.algorithm.epoch} waits for trials {waited_for}, which "
                    "are still running; nothing is trimmed until they end. If their workers are "
                    "lost: give RDBStorage heartbeat_interval=, so that Optuna notices, or tell "
                    "them as failed with study.tell(number, state=TrialState.FAIL)."
                )
        return [text for name, text in found.items() if own.once(name)]

    def _draw(self, study: Study, trial: FrozenTrial, name: str, dist: BaseDistribution) -> Any:
        """A random draw, before the space is known; with ``seed=`` another one in every trial."""
        with self._lock:
            if self._key is not None:
                text = f"{int(self._key)}/{trial.number}/{name}"
                digest = hashlib.sha256(text.encode()).digest()
                self._independent = RandomSampler(seed=int.from_bytes(digest[:4], "big"))
            return super()._draw(study, trial, name, dist)

    # What the study shows -------------------------------------------------------------------

    def _draws(self, study: Study) -> SharedScheduler[DUETS]:
        """Returns the scheduler that assigns the study's draws, as it was derived last."""
        return cast("SharedScheduler[DUETS]", self._state(study).scheduler)

    def _unread(self, study: Study) -> list[Attempt]:
        """Trials that no epoch has been told of."""
        trials = study.get_trials(deepcopy=False)
        return self._attempts(study, self._draws(study).unread(trials))

    def _mark(self, study: Study, space: Space) -> dict[str, Any]:
        """Tells what this sampler's draws come from: settings, space, the number of the coins."""
        first = founder(study.get_trials(deepcopy=False))
        if self._key is not None:
            key = int(self._key)
        elif first is not None:
            key = int(first["key"])
        else:
            key = int.from_bytes(hashlib.sha256(study.study_name.encode()).digest()[:8], "big")
        return {"settings": self._settings, "space": _digest(space.to_dict()), "key": key}

    def _recommendation(self, study: Study, space: Space) -> NDArray[np.float64]:
        """From all values, those of the open epoch too, in the order of trials."""
        view = copy.copy(self._brought_up(study, space))
        attempts = self._attempts(study, study.get_trials(deepcopy=False))
        view.evaluations = self._draws(study).values(attempts)
        return view.recommendation()

    def _holding_up(self, study: Study, draws: SharedScheduler[DUETS]) -> list[int]:
        """Running trials that all of an epoch's other workers have been waiting for long."""
        late = draws.late(self._unread(study))
        trials = self._attempts(study, study.get_trials(deepcopy=False))
        epochs = [0 if trial.held is None else trial.held[0] for trial in trials]
        now = draws.algorithm.epoch
        opened = epochs.index(now) if now in epochs else len(epochs)
        spare = [
            trial
            for trial, epoch in zip(trials[opened:], epochs[opened:], strict=True)
            if trial.value is not None and epoch != now
        ]
        waited = all(trial.running for trial in late)
        long = len(spare) > len(draws.algorithm.slots())
        return [trial.number for trial in late] if waited and long else []

    def _show(self, study: Study, algorithm: DUETS) -> None:
        """Writes what the epochs so far have led to into the study, if it has changed."""
        own, summary = self._state(study), algorithm.status()
        if algorithm.history and own.shown != summary:
            own.shown = summary
            if study.user_attrs.get(SUMMARY_ATTR) != summary:
                study.set_user_attr(SUMMARY_ATTR, summary)


def _digest(described: Any) -> str:
    """A short name of settings; numbers that are equal count as the same."""
    numbers = json.loads(json.dumps(described, default=float), parse_int=float)
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def _is_fixed(trial: FrozenTrial, space: Space) -> bool:
    """Tells if some of a trial's parameters are fixed by others, so that it cannot take a draw."""
    return bool(set(trial.system_attrs.get("fixed_params", ())) & set(space))
