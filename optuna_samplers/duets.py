"""DUETS in Optuna: the workers of one study are the agents, its storage is what they share.

Every process derives the same run from the study's trials, whoever reads them when:

* A trial *claims* a draw, looks whether another one has it too, and *holds* it if not. Of trials
  that claim a draw at once, at most one comes to hold it; the others take another draw.
* A draw belongs to the lowest-numbered trial that holds it and has not failed (a retry holds what
  the trial that it repeats held). Rewards of an epoch are told, in the order of its draws, once
  all of them have an owner that is complete.
* Everything else that has a value informs the recommendation only.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._rewards import RewardSampler, _no_trial
from optuna_samplers._space import to_space
from optuna_samplers._study import whole
from optuna_samplers._transcript import StudyState
from privbo_plugins.algorithms.base import Play
from privbo_plugins.algorithms.duets import ATTEMPTS, DUETS, DUETSConfig
from privbo_plugins.algorithms.duets.algorithm import Slot
from privbo_plugins.privacy.local import DEFAULT_MECHANISM, reward_privacy
from privbo_plugins.privacy.noise import NoiseSource
from privbo_plugins.spaces import Space
from privbo_plugins.visualization import plot_active_set, plot_communication

CLAIM_ATTR = "privbo:claim"
"""System attribute of a trial: the draw (epoch, agent, draw) that it wants; None if it gave up."""

DRAW_ATTR = "privbo:draw"
"""System attribute of a trial: the draw (epoch, agent, draw) that it holds."""

AGENT_ATTR = "privbo:agent"
"""User attribute of a trial, for the dashboard: whose draw it is."""

EPOCH_ATTR = "privbo:epoch"
"""User attribute of a trial, for the dashboard: of which epoch."""

SUMMARY_ATTR = "privbo:duets"
"""Study attribute, for the dashboard: communication, and what each epoch has left."""

_PLOTS = {"privbo-communication": plot_communication, "privbo-active-set": plot_active_set}
"""Pictures in optuna-dashboard by their names there."""

_ATTEMPTS = 4
"""Draws that a trial claims before it is content with a spare play."""

_LOOKS = 5
"""Times that a claim is looked at again until a later trial has given way."""


class DUETSSampler(RewardSampler):
    """Distributed tuning: N agents share one objective and send few numbers.

    One study serves all agents: its parallel workers (threads, or processes on one storage) take
    turns at the agents' draws, whoever is free. An epoch closes when all of its draws have a
    value; then what cannot be the best any more is trimmed. A draw whose trial failed, or was
    given up by a heartbeat, is played again at the same point, three times at most, and then
    counts as the worst value that is known. While an epoch waits for its last
    draws, further workers play the most promising points known.

    Source: Pavlovic, Salgia and Zhao, *Order-Optimal Regret in Distributed Kernel Bandits using
    Uniform Sampling with Shared Randomness*. ``DUETSConfig.paper`` lists the published settings;
    the defaults keep its order of regret with smaller constants.

    All workers, and every resumed run, need the same settings and the same ``seed`` (or none).

    Args:
        n_agents: N, number of agents, >= 1: about as many as there are workers.
        epsilon: Privacy parameter of one reward, > 0; ``math.inf`` leaves rewards as they are.
        bound: Rewards are clipped to [-bound, bound].
        reward_range: Or to (low, high). At most one of the two, from public knowledge; a finite
            epsilon needs one.
        mechanism: "laplace", "duchi", "piecewise", "hybrid" or "gaussian".
        delta: For "gaussian" only: it is (epsilon, delta)-LDP.
        n_trials: Number of trials that you expect, of all agents together; the last epoch then
            plays the most promising points. None if it is not known.
        first_epoch: Draws of one agent in the first epoch, >= 1.
        epochs: "doubling", or "paper" for lengths that need ``n_trials``.
        trimming: "pointwise", or "paper" for the rule as published.
        inducing: "spanning", or "sampled" as published.
        coins: "shared" if all agents can replay each other's draws, or "private" as published:
            then more numbers are counted as sent.
        draws: "stratified" spreads the draws of an epoch over cells of equal size, or
            "independent" as published.
        final: What the last epoch plays: "top" the most promising points, each once, "best" the
            most promising one, or "uniform" as every other.
        fit: Whether signal and noise are estimated from the rewards.
        p0: Oversampling of "sampled", > 0.
        beta: Width of the confidence intervals in posterior standard deviations; None for the
            theorem's.
        beta_scale: Multiplies the width: smaller trims sooner.
        constants: "order", or "theorem" for the width as proven.
        failure: Failure probability of the theorem.
        B: Bound on the norm of f, in signal standard deviations.
        lam: Noise variance over signal variance, where they are not fitted.
        kernel: "rbf" or "matern52", on the unit cube.
        lengthscale: In units of the unit cube; None for 0.2 sqrt(D).
        discretisation: Number of points that the space is looked at in, >= 16.
        search_space: Optuna distributions by name, if known beforehand.
        user_budget: The most epsilon that one user may pay in all; needs
            ``private(objective, user_id=...)``.
        seed: Number behind all coins, >= 0, never noise; None derives it from the study's name,
            so that all processes toss the same.
        vault: Where users' plays are counted: None for this process, or a database URL.
        noise: For tests only; what was released with it is reported as unprotected.

    Raises:
        ValueError: For every argument outside its range.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> sampler = DUETSSampler(2, epsilon=1.0, reward_range=(0, 1), n_trials=12, seed=0)
        >>> study = optuna.create_study(direction="maximize", sampler=sampler)
        >>> reward = lambda trial: 1 - abs(trial.suggest_float("x", 0, 1) - 0.5)
        >>> study.optimize(sampler.private(reward), n_trials=12)
        >>> sampler.guarantee(study).protected
        True
        >>> study.trials[3].user_attrs["privbo:agent"], study.trials[3].user_attrs["privbo:epoch"]
        (0, 1)
    """

    def __init__(
        self,
        n_agents: int = 8,
        *,
        epsilon: float = math.inf,
        bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        mechanism: str = DEFAULT_MECHANISM,
        delta: float | None = None,
        n_trials: int | None = None,
        first_epoch: int = 2,
        epochs: str = "doubling",
        trimming: str = "pointwise",
        inducing: str = "spanning",
        coins: str = "shared",
        draws: str = "stratified",
        final: str = "top",
        fit: bool = True,
        p0: float = 10.0,
        beta: float | None = None,
        beta_scale: float = 1.0,
        constants: str = "order",
        failure: float = 0.1,
        B: float = 1.0,
        lam: float = 0.04,
        kernel: str = "rbf",
        lengthscale: float | None = None,
        discretisation: int = 2048,
        search_space: Mapping[str, BaseDistribution] | None = None,
        user_budget: float | None = None,
        seed: int | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        if epochs == "paper" and n_trials is None:
            raise ValueError(
                'epochs="paper" needs the number of trials, got None: give n_trials=.'
            )
        made, scale = reward_privacy(
            epsilon, bound=bound, reward_range=reward_range, mechanism=mechanism, delta=delta
        )
        config = DUETSConfig(
            **scale,
            n_agents=n_agents,
            horizon=_horizon(n_trials, n_agents),
            first_epoch=first_epoch,
            epochs=epochs,
            trimming=trimming,
            inducing=inducing,
            coins=coins,
            draws=draws,
            final=final,
            fit=fit,
            p0=p0,
            beta=beta,
            beta_scale=beta_scale,
            constants=constants,
            delta=failure,
            B=B,
            lam=lam,
            kernel=kernel,
            lengthscale=lengthscale,
            discretisation=discretisation,
        )
        if seed is not None:
            _check_whole("seed", seed, 0)
        self._duets, self._key = config, seed
        super().__init__(
            DUETS,
            config,
            made,
            search_space=search_space,
            user_budget=user_budget,
            seed=seed,
            vault=vault,
            noise=noise,
        )

    # What people look at ---------------------------------------------------------------------

    def summary(self, study: Study) -> dict[str, Any]:
        """Numbers sent, and what each epoch has left; also the study's ``privbo:duets``.

        Raises:
            ValueError: If the search space is not known yet.
        """
        study = whole(study)
        relative = self.infer_relative_search_space(study, _no_trial())
        space = to_space(relative) if relative else None
        if space is None:
            raise ValueError("There are no epochs yet: no trial has completed.")
        with self._lock:
            algorithm, _ = self._synchronised(study, space, None)
            self._show(study, algorithm)
        return algorithm.summary()

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

    # The next play --------------------------------------------------------------------------

    def _next(self, study: Study, trial: FrozenTrial, space: Space) -> dict[str, Any]:
        with self._lock:
            algorithm, play = self._taken(study, trial, space)
            self._show(study, algorithm)
        slot = _slot_of(play)
        if slot is None:
            return space.decode(play.x)
        study._storage.set_trial_user_attr(trial._trial_id, AGENT_ATTR, play.agent)
        study._storage.set_trial_user_attr(trial._trial_id, EPOCH_ATTR, play.epoch)
        return _first_params(study, slot, play, space) or space.decode(play.x)

    def _taken(self, study: Study, trial: FrozenTrial, space: Space) -> tuple[DUETS, Play]:
        """A draw that the trial holds from now on, or a spare play."""
        storage, trial_id = study._storage, trial._trial_id
        for attempt in range(_ATTEMPTS + 1):
            algorithm, pending = self._synchronised(study, space, trial.number)
            algorithm.seed = self._seed
            if attempt == _ATTEMPTS or _is_fixed(trial, space):
                pending = [*pending, *map(algorithm.play_of, algorithm.open_slots())]
            play = algorithm.ask(trial.number, pending) or Play(algorithm.party.ranked[0])
            slot = _slot_of(play)
            if slot is None:
                break
            storage.set_trial_system_attr(trial_id, CLAIM_ATTR, list(slot))
            if self._comes_first(study, trial.number, slot, algorithm):
                storage.set_trial_system_attr(trial_id, DRAW_ATTR, list(slot))
                return algorithm, play
            storage.set_trial_system_attr(trial_id, CLAIM_ATTR, None)
        return algorithm, play

    def _comes_first(self, study: Study, number: int, slot: Slot, algorithm: DUETS) -> bool:
        """Whether a trial may hold the draw that it has claimed: nobody else has it or wants it.

        Of two trials that claimed it, the one that looks last sees the other; it gives way unless
        the other does.
        """
        for _ in range(_LOOKS):
            others = [t for t in self._state(study).unread(study) if t.number != number]
            wanted = [t.number for t in others if _wants(t) == slot]
            stored = (t for t in others if _read_slot(t, DRAW_ATTR) == slot)
            if any(_held(t, algorithm) for t in stored) or min(wanted, default=number) < number:
                return False
            if not wanted:
                return True
        return False

    # What the study shows -------------------------------------------------------------------

    def _synchronised(
        self, study: Study, space: Space, asking: int | None
    ) -> tuple[DUETS, list[Play]]:
        """The algorithm after all epochs that the study shows as done, and the plays that are out.

        Draws of the open epoch that are done count as out: they are told with the last of it.
        """
        own = self._state(study)
        algorithm = own.algorithm
        if not isinstance(algorithm, DUETS) or algorithm.space != space:
            maximize = study.direction == StudyDirection.MAXIMIZE
            algorithm = DUETS(self._duets, space, maximize=maximize, seed=self._key_of(study))
            own.algorithm, own.told, own.first_open = algorithm, set(), 0
            own.held.clear()
            own.failed.clear()
        unread = [t for t in own.unread(study) if t.number != asking]
        own.failed.update(slot for slot in map(_failed, unread) if slot is not None)
        unread, held = _close_epochs(own, algorithm, unread)
        done = [
            t
            for t in unread
            if t.state.is_finished() and not _waits(t, algorithm, t.number in held)
        ]
        for play, value in self._values(done, space):
            algorithm.tell(Play(play.x), value)
        own.read(done)
        running = [t for t in unread if not t.state.is_finished()]
        out = set(held.values()) | {_wants(t) for t in running} | _given_up(own)
        draws = [algorithm.play_of(slot) for slot in algorithm.slots() if slot in out]
        spare = [self._played(t, space) for t in running if t.state == TrialState.RUNNING]
        return algorithm, draws + [play for play in spare if play is not None]

    def _key_of(self, study: Study) -> int:
        """The number behind all coins: the same in every process."""
        if self._key is not None:
            return int(self._key)
        return int.from_bytes(hashlib.sha256(study.study_name.encode()).digest()[:8], "big")

    def _recommendation(self, study: Study, space: Space) -> NDArray[np.float64]:
        """From all values, those of the open epoch too, in the order of trials."""
        algorithm, _ = self._synchronised(study, space, None)
        self._show(study, algorithm)
        view = copy.copy(algorithm)
        view.plays = self._values(study.get_trials(deepcopy=False), space)
        return view.recommendation()

    def _show(self, study: Study, algorithm: DUETS) -> None:
        """Writes what the epochs so far have led to into the study, if it has changed."""
        own, summary = self._state(study), algorithm.summary()
        if algorithm.history and own.shown != summary:
            own.shown = summary
            if study.user_attrs.get(SUMMARY_ATTR) != summary:
                study.set_user_attr(SUMMARY_ATTR, summary)


def _slot_of(play: Play) -> Slot | None:
    if play.epoch is None or play.agent is None or play.draw is None:
        return None
    return play.epoch, play.agent, play.draw


def _read_slot(trial: FrozenTrial, name: str) -> Slot | None:
    stored: Sequence[int] | None = trial.system_attrs.get(name)
    return None if stored is None else (int(stored[0]), int(stored[1]), int(stored[2]))


def _wants(trial: FrozenTrial) -> Slot | None:
    """The draw that an unfinished trial has claimed."""
    return None if trial.state.is_finished() else _read_slot(trial, CLAIM_ATTR)


def _has_value(trial: FrozenTrial) -> bool:
    complete = trial.state == TrialState.COMPLETE
    return complete and trial.value is not None and math.isfinite(trial.value)


def _failed(trial: FrozenTrial) -> Slot | None:
    """The draw that a trial held and has left without a value."""
    ended = trial.state.is_finished() and not _has_value(trial)
    return _read_slot(trial, DRAW_ATTR) if ended else None


def _given_up(own: StudyState) -> set[Slot]:
    """Draws that have failed so often that they count as the worst."""
    return {slot for slot, times in own.failed.items() if times >= ATTEMPTS}


def _held(trial: FrozenTrial, algorithm: DUETS) -> Slot | None:
    """The draw of the open epoch that a trial holds: it plays its point and has not failed."""
    slot = _read_slot(trial, DRAW_ATTR)
    if slot is None or (trial.state.is_finished() and not _has_value(trial)):
        return None
    return slot if _plays(trial, slot, algorithm) else None


def _plays(trial: FrozenTrial, slot: Slot, algorithm: DUETS) -> bool:
    """Whether a trial plays a draw of the open epoch; what is not suggested yet may follow."""
    epoch, agent, draw = slot
    party = algorithm.party
    if epoch != party.j or not (0 <= agent < party.config.n_agents and 0 <= draw < party.T_j):
        return False
    if not set(algorithm.space) <= set(trial.params):
        return not trial.state.is_finished()
    return _at(trial, algorithm.play_of(slot), algorithm.space)


def _at(trial: FrozenTrial, play: Play, space: Space) -> bool:
    """Whether a trial's parameters are those of a play."""
    params = {name: trial.params[name] for name in space}
    if params == space.decode(play.x):
        return True
    try:
        x = space.encode(params)
    except ValueError:  # a choice that the space does not know
        return False
    return bool(np.allclose(space.snap(x), play.x, rtol=0.0, atol=1e-9))


def _all_held(own: StudyState, algorithm: DUETS, trials: Sequence[FrozenTrial]) -> dict[int, Slot]:
    """The draws of the open epoch that trials hold, by the trials' numbers in order."""
    held: dict[int, Slot] = {}
    for trial in trials:
        slot = own.held[trial.number] if trial.number in own.held else _held(trial, algorithm)
        if trial.state.is_finished():
            own.held[trial.number] = slot
        if slot is not None:
            held[trial.number] = slot
    return held


def _close_epochs(
    own: StudyState, algorithm: DUETS, unread: list[FrozenTrial]
) -> tuple[list[FrozenTrial], dict[int, Slot]]:
    """Tells the owners of every epoch that is complete; the trials that are left, their draws."""
    while True:
        held = _all_held(own, algorithm, unread)
        trials = {trial.number: trial for trial in unread}
        owners = {slot: trials[number] for number, slot in reversed(held.items())}
        slots = algorithm.slots()
        done = {s: owners[s] for s in slots if s in owners and owners[s].state.is_finished()}
        lost = _given_up(own) - set(owners)
        worst = algorithm.worst([float(trial.value or 0.0) for trial in done.values()])
        if not slots or worst is None or not set(slots) <= set(done) | lost:
            return unread, held
        plays = [algorithm.play_of(slot) for slot in slots]
        values = [float(done[s].value or 0.0) if s in done else worst for s in slots]
        for play, value in zip(plays, values, strict=True):
            algorithm.tell(play, value)
        own.read(list(done.values()))
        own.held.clear()
        told = {trial.number for trial in done.values()}
        unread = [trial for trial in unread if trial.number not in told]


def _waits(trial: FrozenTrial, algorithm: DUETS, holds: bool) -> bool:
    """Whether a finished trial's value has to wait for its epoch to be done."""
    slot = _read_slot(trial, DRAW_ATTR)
    if slot is None or not _has_value(trial) or algorithm.party.finished:
        return False
    return holds or slot[0] > algorithm.epoch


def _is_fixed(trial: FrozenTrial, space: Space) -> bool:
    """Whether somebody else chose some of a trial's parameters, so that it cannot play a draw."""
    return bool(set(trial.system_attrs.get("fixed_params", ())) & set(space))


def _first_params(study: Study, slot: Slot, play: Play, space: Space) -> dict[str, Any] | None:
    """Parameters of an earlier trial of a draw, without any rounding error."""
    for trial in _of_draw(study.get_trials(deepcopy=False), slot):
        if set(space) <= set(trial.params) and _at(trial, play, space):
            return {name: trial.params[name] for name in space}
    return None


def _of_draw(trials: Iterable[FrozenTrial], slot: Slot) -> Iterable[FrozenTrial]:
    return (trial for trial in trials if _read_slot(trial, DRAW_ATTR) == slot)


def _horizon(n_trials: int | None, n_agents: int) -> int | None:
    """Plays of one agent, T."""
    if n_trials is None:
        return None
    _check_whole("n_trials", n_trials, 1)
    _check_whole("n_agents", n_agents, 1)
    return -(-int(n_trials) // int(n_agents))


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be an integer >= {least} or None, got {value!r}: leave it out if you "
            "have no such number."
        )
