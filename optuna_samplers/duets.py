"""DUETS in Optuna: the workers of one study are the agents, and they share its storage.

Every process derives the same run from the study's trials, whoever reads them when:

* A trial *claims* a draw, looks whether another one has it too, and *holds* it if not. Of trials
  that claim a draw at once, at most one comes to hold it; the others take another draw.
* A draw belongs to the lowest-numbered of the first ``ATTEMPTS`` trials that hold it, of those
  that have not ended without its value (a retry holds what the trial that it repeats held). If
  all of these have, the draw is given up for good, whatever trials hold it later.
* Rewards of an epoch are told, in the order of its draws, once each has an owner that is complete
  or is given up.
* A draw counts only for those who have the settings, the space and the coins that it was drawn
  with; they are stored beside it.
* Every other trial with a value informs the recommendation only.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._rewards import RewardSampler, _no_trial
from optuna_samplers._settings import RewardRunSettings
from optuna_samplers._space import to_space
from optuna_samplers._study import whole
from optuna_samplers._transcript import StudyState
from privbo_plugins.algorithms.duets import ATTEMPTS, DUETS
from privbo_plugins.algorithms.duets.algorithm import Slot
from privbo_plugins.algorithms.duets.coins import SECRET
from privbo_plugins.algorithms.duets.config import PUBLISHED, DUETSSettings
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.errors import SpaceChangedError, UtilityWarning
from privbo_plugins.plots import plot_active_set, plot_communication
from privbo_plugins.privacy.local import OptionalRewardPrivacy
from privbo_plugins.settings import Published, named, setting, settings, takes
from privbo_plugins.spaces import Space

CLAIM_ATTR = "privbo:claim"
"""System attribute of a trial: the draw (epoch, agent, draw) that it wants; None if it gave up."""

DRAW_ATTR = "privbo:draw"
"""System attribute of a trial: the draw (epoch, agent, draw) that it holds."""

MARK_ATTR = "privbo:duets"
"""System attribute of a trial that holds a draw: digests of the settings (and of how private coins
follow from their number) and of the space that it was drawn with, and the number behind its coins.
"""

AGENT_ATTR = "privbo:agent"
"""User attribute of a trial, for the dashboard: whose draw it is."""

EPOCH_ATTR = "privbo:epoch"
"""User attribute of a trial, for the dashboard: of which epoch."""

SUMMARY_ATTR = "privbo:duets"
"""Study attribute, for the dashboard: communication, and what each epoch has left."""

_PLOTS = {"privbo-communication": plot_communication, "privbo-active-set": plot_active_set}
"""Pictures in optuna-dashboard by their names there."""

_ATTEMPTS = 4
"""Draws that a trial claims before it is content with a spare evaluation."""

_LOOKS = 5
"""Times that a claim is looked at again until a later trial has given way."""


@settings(eq=False)
class _Settings(RewardRunSettings, OptionalRewardPrivacy, DUETSSettings):
    """Keywords of :class:`DUETSSampler`."""

    seed: int | None = setting(
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
    counts as the worst value that is known. While an epoch waits for its last
    draws, further workers evaluate the most promising points known.

    Only Optuna's heartbeat notices a lost worker, and it must be enabled in the storage
    (``RDBStorage(url, heartbeat_interval=60)``); without one an epoch waits for its trial until
    ``study.tell(number, state=TrialState.FAIL)``.

    Source: Pavlovic, Salgia and Zhao, *Order-Optimal Regret in Distributed Kernel Bandits using
    Uniform Sampling with Shared Randomness*. ``DUETSConfig.paper`` lists the published settings;
    the defaults keep its order of regret with smaller constants.

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

    @takes(_Settings)
    def __init__(self, given: _Settings) -> None:
        mechanism, scale = given.made()
        config = given.config(**scale)
        if given.seed is not None:
            _check_whole("seed", given.seed, 0)
        self._duets, self._key = config, given.seed
        declared = to_space(given.search_space) if given.search_space else None
        described = None if declared is None else declared.to_dict()
        self._settings = _digest([config.to_dict(), described])
        super().__init__(DUETS, config, mechanism, **named(given, RewardRunSettings))

    # What people look at ---------------------------------------------------------------------

    def summary(self, study: Study) -> dict[str, Any]:
        """Where the run stands, numbers sent, and what each epoch has left.

        The last two are also the study's ``privbo:duets``.

        Raises:
            ValueError: If the search space is not known yet.
        """
        study = whole(study)
        algorithm = self._known(study)
        if algorithm is None:
            raise ValueError("There are no epochs yet: no trial has completed.")
        return super().summary(study) | algorithm.summary()

    def finished(self, study: Study) -> bool:
        """Whether the last epoch has closed; never without ``n_trials=``."""
        algorithm = self._known(whole(study))
        return algorithm is not None and algorithm.finished

    def _known(self, study: Study) -> DUETS | None:
        """The algorithm after all that the study shows, shown in it; None without a space."""
        relative = self.infer_relative_search_space(study, _no_trial())
        space = to_space(relative) if relative else None
        if space is None:
            return None
        with self._lock:
            algorithm, _ = self._synchronised(study, space, None)
            self._show(study, algorithm)
        return algorithm

    def _summary(self, study: Study) -> dict[str, Any] | None:
        known = self.infer_relative_search_space(study, _no_trial())
        return self.summary(study) if known else None

    def show_plots(self, study: Study) -> None:
        """Puts the communication and the active set into optuna-dashboard as pictures.

        Raises:
            ImportError: If optuna-dashboard or plotly is not installed.
            ValueError: If the search space is not known yet.
        """
        from optuna_dashboard import save_plotly_graph_object

        summary, study = self.summary(study), whole(study)
        for name, plot in _PLOTS.items():
            save_plotly_graph_object(study, plot(summary), graph_object_id=name)

    # The next evaluation --------------------------------------------------------------------

    def _next(self, study: Study, trial: FrozenTrial, space: Space) -> dict[str, Any]:
        with self._lock:
            algorithm, evaluation = self._taken(study, trial, space)
            self._show(study, algorithm)
            slot = _slot_of(evaluation)
            notices = self._notices(study, algorithm, spare=slot is None)
        for text in notices:
            warnings.warn(text, UtilityWarning, stacklevel=2)
        if slot is None:
            return space.decode(evaluation.x)
        study._storage.set_trial_user_attr(trial._trial_id, AGENT_ATTR, evaluation.agent)
        study._storage.set_trial_user_attr(trial._trial_id, EPOCH_ATTR, evaluation.epoch)
        return _first_params(study, slot, evaluation, space) or space.decode(evaluation.x)

    def _taken(self, study: Study, trial: FrozenTrial, space: Space) -> tuple[DUETS, Evaluation]:
        """A draw that the trial holds from now on, or a spare evaluation."""
        storage, trial_id = study._storage, trial._trial_id
        self._refuse_other_settings(study)
        for attempt in range(_ATTEMPTS + 1):
            algorithm, pending = self._synchronised(study, space, trial.number)
            algorithm.seed = self._seed
            if attempt == _ATTEMPTS or _is_fixed(trial, space):
                pending = [*pending, *map(algorithm.evaluation_of, algorithm.open_slots())]
            evaluation = algorithm.ask(trial.number, pending) or Evaluation(
                algorithm.public_state.ranked[0]
            )
            slot = _slot_of(evaluation)
            if slot is None:
                break
            storage.set_trial_system_attr(trial_id, CLAIM_ATTR, list(slot))
            if self._comes_first(study, trial.number, slot, algorithm):
                storage.set_trial_system_attr(trial_id, MARK_ATTR, self._state(study).mark)
                storage.set_trial_system_attr(trial_id, DRAW_ATTR, list(slot))
                return algorithm, evaluation
            storage.set_trial_system_attr(trial_id, CLAIM_ATTR, None)
        return algorithm, evaluation

    def _comes_first(self, study: Study, number: int, slot: Slot, algorithm: DUETS) -> bool:
        """Whether a trial may hold the draw that it has claimed.

        Not if it is given up, or somebody else has it or wants it. Of two trials that claimed it,
        the one that looks last sees the other; it gives way unless the other does.
        """
        own = self._state(study)
        for _ in range(_LOOKS):
            others = [t for t in own.unread(study) if t.number != number]
            wanted = [t.number for t in others if _wants(t) == slot]
            held = _holders(own, algorithm, others)
            taken = slot in held.owners or slot in held.given_up
            if taken or min(wanted, default=number) < number:
                return False
            if not wanted:
                return True
        return False

    def _refuse_other_settings(self, study: Study) -> None:
        """All draws of a study come from one run.

        Raises:
            SpaceChangedError: If the study's first draw was drawn with other settings.
        """
        first = _founder(study.get_trials(deepcopy=False))
        if first is None:
            return
        if first["settings"] != self._drawn_with(first):
            raise SpaceChangedError(
                "All workers of a study, and every resumed run, need the same settings. This "
                f"DUETSSampler's settings or search_space= (digest {self._now}) differ from "
                f"those of the study's first draw (digest {first['settings']}): give it the same "
                "settings, or use a new study."
            )
        if self._key is not None and first["key"] != int(self._key):
            raise SpaceChangedError(
                "All workers of a study, and every resumed run, need the same seed= (or none). "
                f"This DUETSSampler has seed={self._key}, and the study's first draw was drawn "
                f"with {first['key']}: give it no seed=, or use a new study."
            )

    def _notices(self, study: Study, algorithm: DUETS, *, spare: bool) -> list[str]:
        """What the user should know and has not been told yet."""
        own, found = self._state(study), {}
        if own.stray is not None:
            found["stray"] = (
                f"Trial {own.stray} did not evaluate the point that it was given: the objective "
                "did not suggest every parameter of search_space=, or another value was used. "
                f"Such a draw is asked for {ATTEMPTS} times in all and then counts as the worst "
                "value. Declare, and suggest, the same parameters in every trial."
            )
        if spare and "late" not in own.said:
            late = _holding_up(study, own, algorithm)
            if late:
                found["late"] = (
                    f"Epoch {algorithm.epoch} waits for trials {', '.join(map(str, late))}, which "
                    "are still running; nothing is trimmed until they end. If their workers are "
                    "lost: give RDBStorage heartbeat_interval=, so that Optuna notices, or tell "
                    "them as failed with study.tell(number, state=TrialState.FAIL)."
                )
        new = [text for name, text in found.items() if name not in own.said]
        own.said |= set(found)
        return new

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random draw, before the space is known; with ``seed=`` another one in every trial."""
        with self._lock:
            if self._key is not None:
                text = f"{int(self._key)}/{trial.number}/{param_name}"
                digest = hashlib.sha256(text.encode()).digest()
                self._independent = RandomSampler(seed=int.from_bytes(digest[:4], "big"))
            return super().sample_independent(study, trial, param_name, param_distribution)

    # What the study shows -------------------------------------------------------------------

    def _synchronised(
        self, study: Study, space: Space, asking: int | None
    ) -> tuple[DUETS, list[Evaluation]]:
        """The algorithm after all epochs that the study shows as done, and pending evaluations.

        Draws of the open epoch that are done count as out: they are told with the last of it.
        """
        own, trials = self._state(study), study.get_trials(deepcopy=False)
        mark = self._mark(study, space, trials)
        algorithm = own.algorithm
        if not isinstance(algorithm, DUETS) or algorithm.space != space or own.mark != mark:
            maximize = study.direction == StudyDirection.MAXIMIZE
            old = mark["settings"] != self._now
            algorithm = DUETS(
                self._duets, space, maximize=maximize, seed=mark["key"], old_coins=old
            )
            own.algorithm, own.mark, own.told, own.first_open = algorithm, mark, set(), 0
            own.at.clear()
            own.lost.clear()
        unread, held = _close_epochs(own, algorithm, own.unread_of(trials))
        done = [t for t in unread if t.state.is_finished() and not _waits(t, own, algorithm, held)]
        for evaluation, value in self._values(done, space):
            algorithm.tell(Evaluation(evaluation.x), value)
        own.read(done)
        running = [t for t in unread if not t.state.is_finished() and t.number != asking]
        out = {slot for slot, owner in held.owners.items() if owner.number != asking}
        out |= {slot for slot in map(_wants, running) if slot is not None} | held.given_up
        draws = [algorithm.evaluation_of(slot) for slot in algorithm.slots() if slot in out]
        spare = [self._evaluated(t, space) for t in running if t.state == TrialState.RUNNING]
        return algorithm, draws + [evaluation for evaluation in spare if evaluation is not None]

    def _mark(self, study: Study, space: Space, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
        """What this sampler's draws come from: settings, space, the number behind the coins."""
        first = _founder(trials)
        if self._key is not None:
            key = int(self._key)
        elif first is not None:
            key = int(first["key"])
        else:
            key = int.from_bytes(hashlib.sha256(study.study_name.encode()).digest()[:8], "big")
        settings = self._drawn_with(first)
        return {"settings": settings, "space": _digest(space.to_dict()), "key": key}

    @property
    def _now(self) -> str:
        """Digest of the settings and, of private coins, of how they are derived."""
        private = self._duets.coins == "private"
        return _digest([self._settings, SECRET]) if private else self._settings

    def _drawn_with(self, first: Mapping[str, Any] | None) -> str:
        """What a study's draws are marked with: old private coins had the settings' digest."""
        old = first is not None and first["settings"] == self._settings
        return self._settings if old else self._now

    def _recommendation(self, study: Study, space: Space) -> NDArray[np.float64]:
        """From all values, those of the open epoch too, in the order of trials."""
        algorithm, _ = self._synchronised(study, space, None)
        self._show(study, algorithm)
        view = copy.copy(algorithm)
        view.evaluations = self._values(study.get_trials(deepcopy=False), space)
        return view.recommendation()

    def _show(self, study: Study, algorithm: DUETS) -> None:
        """Writes what the epochs so far have led to into the study, if it has changed."""
        own, summary = self._state(study), algorithm.summary()
        if algorithm.history and own.shown != summary:
            own.shown = summary
            if study.user_attrs.get(SUMMARY_ATTR) != summary:
                study.set_user_attr(SUMMARY_ATTR, summary)


def _slot_of(evaluation: Evaluation) -> Slot | None:
    if evaluation.epoch is None or evaluation.agent is None or evaluation.draw is None:
        return None
    return evaluation.epoch, evaluation.agent, evaluation.draw


def _read_slot(trial: FrozenTrial, name: str) -> Slot | None:
    """A draw as stored, or None: a storage may hold anything."""
    stored: Any = trial.system_attrs.get(name)
    if not isinstance(stored, list | tuple) or len(stored) != 3:
        return None
    if any(not isinstance(part, int) or isinstance(part, bool) for part in stored):
        return None
    return stored[0], stored[1], stored[2]


def _mark_of(trial: FrozenTrial) -> dict[str, Any] | None:
    """What a trial's draw came from; None if that is not known."""
    stored: Any = trial.system_attrs.get(MARK_ATTR)
    if not isinstance(stored, dict) or set(stored) != {"settings", "space", "key"}:
        return None
    key = stored["key"]
    return None if not isinstance(key, int) or isinstance(key, bool) or key < 0 else stored


def _founder(trials: Sequence[FrozenTrial]) -> dict[str, Any] | None:
    """What the draw of the lowest-numbered trial that holds one came from."""
    marks = (_mark_of(t) for t in trials if _read_slot(t, DRAW_ATTR) is not None)
    return next((mark for mark in marks if mark is not None), None)


def _draw_of(trial: FrozenTrial, mark: dict[str, Any] | None) -> Slot | None:
    """The draw that a trial holds or held, if it is one of this run."""
    found = _mark_of(trial)
    return _read_slot(trial, DRAW_ATTR) if found is None or found == mark else None


def _wants(trial: FrozenTrial) -> Slot | None:
    """The draw that a running trial has claimed and does not hold yet."""
    if trial.state != TrialState.RUNNING:
        return None
    claim = _read_slot(trial, CLAIM_ATTR)
    return None if claim == _read_slot(trial, DRAW_ATTR) else claim


def _has_value(trial: FrozenTrial) -> bool:
    complete = trial.state == TrialState.COMPLETE
    return complete and trial.value is not None and math.isfinite(trial.value)


@dataclass(frozen=True)
class _Holders:
    """Who holds the draws of the open epoch.

    Attributes:
        owners: Draws that have an owner, and whom.
        given_up: Draws that have been tried often enough.
        candidates: Trials that are an owner, or become one if those before them fail.
    """

    owners: dict[Slot, FrozenTrial]
    given_up: set[Slot]
    candidates: set[int]


def _holders(own: StudyState, algorithm: DUETS, trials: Sequence[FrozenTrial]) -> _Holders:
    """Who holds what, from the trials that are not read yet and what was lost by those that are.

    Given up is for good: trials never take a value back, and none comes to hold such a draw.
    """
    holding = _sorted_out(own, algorithm, trials)
    found = _Holders({}, set(), set())
    for slot in algorithm.slots():
        held, lost = holding.get(slot, {}), own.lost.get(slot, set())
        first = sorted(set(held) | lost)[:ATTEMPTS]
        good = [number for number in first if number not in lost]
        found.candidates.update(good)
        if good:
            found.owners[slot] = held[good[0]]
        elif len(first) == ATTEMPTS:
            found.given_up.add(slot)
    return found


def _sorted_out(
    own: StudyState, algorithm: DUETS, trials: Sequence[FrozenTrial]
) -> dict[Slot, dict[int, FrozenTrial]]:
    """Trials by the draws of the open epoch that they hold; who lost a draw is remembered."""
    holding: dict[Slot, dict[int, FrozenTrial]] = {}
    for trial in trials:
        slot = _draw_of(trial, own.mark)
        if slot is None:
            continue
        if trial.state.is_finished() and not _has_value(trial):
            own.lost.setdefault(slot, set()).add(trial.number)
        elif _is_open(slot, algorithm) and _evaluations(own, trial, slot, algorithm):
            holding.setdefault(slot, {})[trial.number] = trial
        elif _is_open(slot, algorithm):
            own.lost.setdefault(slot, set()).add(trial.number)
            own.stray = trial.number if own.stray is None else own.stray
    return holding


def _is_open(slot: Slot, algorithm: DUETS) -> bool:
    """Whether a slot is a draw of the open epoch."""
    (epoch, agent, draw), public_state = slot, algorithm.public_state
    return (
        epoch == public_state.j
        and 0 <= agent < public_state.config.n_agents
        and 0 <= draw < public_state.T_j
    )


def _evaluations(own: StudyState, trial: FrozenTrial, slot: Slot, algorithm: DUETS) -> bool:
    """Whether a trial evaluates its draw of the open epoch; suggestions may still be missing."""
    if not set(algorithm.space) <= set(trial.params):
        return not trial.state.is_finished()
    if trial.number not in own.at or not trial.state.is_finished():
        own.at[trial.number] = _at(trial, algorithm.evaluation_of(slot), algorithm.space)
    return own.at[trial.number]


def _at(trial: FrozenTrial, evaluation: Evaluation, space: Space) -> bool:
    """Whether a trial's parameters are those of an evaluation."""
    params = {name: trial.params[name] for name in space}
    if params == space.decode(evaluation.x):
        return True
    try:
        x = space.encode(params)
    except ValueError:  # a choice that the space does not know
        return False
    return bool(np.allclose(space.snap(x), evaluation.x, rtol=0.0, atol=1e-9))


def _close_epochs(
    own: StudyState, algorithm: DUETS, unread: list[FrozenTrial]
) -> tuple[list[FrozenTrial], _Holders]:
    """Tells the owners of every epoch that is complete; the trials that are left, who holds what.

    A draw that somebody has claimed is not given up before he has seen that he must not.
    """
    while True:
        held = _holders(own, algorithm, unread)
        slots = algorithm.slots()
        done = {s: t for s, t in held.owners.items() if t.state.is_finished()}
        lost = held.given_up - {_wants(trial) for trial in unread}
        worst = algorithm.worst(_known(algorithm, done.values()))
        if not slots or not set(slots) <= set(done) | lost or (lost and worst is None):
            return unread, held
        evaluations = [algorithm.evaluation_of(slot) for slot in slots]
        for slot, evaluation in zip(slots, evaluations, strict=True):
            if slot in done:
                algorithm.tell(evaluation, float(done[slot].value or 0.0))
            elif worst is not None:
                algorithm.give_up(evaluation, worst)
        told = {trial.number for trial in done.values()}
        own.read(list(done.values()))
        own.at.clear()
        own.lost = {slot: gone for slot, gone in own.lost.items() if slot[0] >= algorithm.epoch}
        unread = [trial for trial in unread if trial.number not in told]


def _known(algorithm: DUETS, owners: Iterable[FrozenTrial]) -> list[float]:
    """Values that the worst one is taken of: of this epoch's draws, or of those before."""
    now = [float(trial.value or 0.0) for trial in owners]
    return now or [
        value for evaluation, value in algorithm.evaluations if evaluation.epoch is not None
    ]


def _waits(trial: FrozenTrial, own: StudyState, algorithm: DUETS, held: _Holders) -> bool:
    """Whether a finished trial's value has to wait for its epoch to be done."""
    slot = _draw_of(trial, own.mark)
    if slot is None or not _has_value(trial) or algorithm.public_state.finished:
        return False
    return trial.number in held.candidates or slot[0] > algorithm.epoch


def _holding_up(study: Study, own: StudyState, algorithm: DUETS) -> list[int]:
    """Running trials that all of an epoch's other workers have been waiting for long."""
    slots = algorithm.slots()
    trials = study.get_trials(deepcopy=False)
    held = _holders(own, algorithm, own.unread_of(trials))
    left = [s for s in slots if s not in held.given_up]
    if not set(left) <= set(held.owners):
        return []
    late = sorted(t.number for t in held.owners.values() if not t.state.is_finished())
    running = all(trials[number].state == TrialState.RUNNING for number in late)
    epochs = [(_draw_of(trial, own.mark) or (0, 0, 0))[0] for trial in trials]
    opened = next((i for i, epoch in enumerate(epochs) if epoch == algorithm.epoch), len(trials))
    spare = [
        trial
        for trial, epoch in zip(trials[opened:], epochs[opened:], strict=True)
        if trial.state == TrialState.COMPLETE and epoch != algorithm.epoch
    ]
    return late if running and len(spare) > len(slots) else []


def _digest(described: Any) -> str:
    """A short name of settings; numbers that are equal count as the same."""
    text = json.dumps(_plain(described), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(described: Any) -> Any:
    if isinstance(described, Mapping):
        return {str(name): _plain(value) for name, value in described.items()}
    if isinstance(described, list | tuple):
        return [_plain(value) for value in described]
    if isinstance(described, int | float | np.number) and not isinstance(described, bool):
        return float(described)
    return described


def _is_fixed(trial: FrozenTrial, space: Space) -> bool:
    """Whether some of a trial's parameters are fixed by others, so that it cannot take a draw."""
    return bool(set(trial.system_attrs.get("fixed_params", ())) & set(space))


def _first_params(
    study: Study, slot: Slot, evaluation: Evaluation, space: Space
) -> dict[str, Any] | None:
    """Parameters of an earlier trial of a draw, without any rounding error."""
    for trial in _of_draw(study.get_trials(deepcopy=False), slot):
        if set(space) <= set(trial.params) and _at(trial, evaluation, space):
            return {name: trial.params[name] for name in space}
    return None


def _of_draw(trials: Iterable[FrozenTrial], slot: Slot) -> Iterable[FrozenTrial]:
    return (trial for trial in trials if _read_slot(trial, DRAW_ATTR) == slot)


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be an integer >= {least} or None, got {value!r}: leave it out if you "
            "have no such number."
        )
