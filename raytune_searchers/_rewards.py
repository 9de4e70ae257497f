"""Lifecycle of searches that learn from one privatised number a trial.

What such a search knows is public: what trials reported, and where. So all of it may be pickled;
what must not be lost is in the users' ledger, which no pickle holds and no restore sets back.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import Evaluation, RewardAlgorithm, Slot
from privbo_plugins.algorithms.reward_plan import RewardPlan, make_reward_plan
from privbo_plugins.plots import Report, RewardHistory
from privbo_plugins.privacy.figures import warn_of_delta
from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.reward_noise import RewardScale
from privbo_plugins.reports import reward_history, reward_report
from privbo_plugins.sessions.rewards import check_user_budget
from privbo_plugins.sessions.scheduler import FailureCounts, Scheduler
from privbo_plugins.settings import evolve
from privbo_plugins.shown import as_float
from privbo_plugins.status import planned_trials, status, used_up
from privbo_plugins.users import NOT_PRIVATE
from raytune_searchers._audit import Row, stored_in, value_in
from raytune_searchers._evaluations import UserOf, wrap
from raytune_searchers._local import FAILED_NOTE, RewardsRun
from raytune_searchers._run import detail, warn_unprotected
from raytune_searchers._search import ON_TUNE, TuneSearch, config_at
from raytune_searchers._settings import RewardSearchSettings
from raytune_searchers._space import TuneSpace
from raytune_searchers._trainable import Trainable
from raytune_searchers.hosts.rewards import LedgerSettings

Array = NDArray[np.float64]


class RewardSearch(RewardsRun, TuneSearch):
    """Base of the searchers that learn from one privatised number a trial.

    Args:
        algorithm: The engine's class; raises ValueError for a space that its settings do not fit.
        config: Its settings.
        mechanism: What ``private`` does to a reward; None leaves it as it is.
        given: What every searcher has that learns from privatised rewards.

    Raises:
        ValueError: For an argument outside its range, or a vault URL with a password.
        VaultError: If the vault's database cannot be opened.
    """

    _WRAP = (
        "Wrap the trainable: tune.Tuner(search.private(trainable), ...) with a function that "
        "returns one user's reward."
    )

    def __init__(
        self,
        algorithm: Callable[..., RewardAlgorithm],
        config: RewardScale,
        mechanism: LocalMechanism | None,
        given: RewardSearchSettings,
    ) -> None:
        if mechanism is not None:
            check_user_budget(mechanism, given.user_budget, given.user_delta)
        seed = secrets.randbits(32) if given.seed is None else int(given.seed)
        if mechanism is None:
            self._HOST = None  # there is no ledger
        super().__init__(evolve(given, seed=seed))
        self.mechanism = mechanism
        self._algorithm, self._config = algorithm, config
        self._user_budget, self._user_delta = given.user_budget, given.user_delta
        self._model: Scheduler[Any] | None = None
        self._scheduler: dict[str, Any] = {"evaluations": []}
        self._lost: FailureCounts[Slot] = FailureCounts()
        self._asked = 0
        self._evaluations: dict[str, Evaluation] = {}  # of trials that have not shown anything yet
        self._begun: tuple[int, Array] | None = None  # the last epoch of replays, and where
        self._learnt: set[str] = set()
        if self._space is not None:
            algorithm(config, self._space.space)  # what does not fit is refused here

    # State ----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A handle, public settings, and what the trials have shown."""
        state = super().__getstate__()
        state["_scheduler"] = self._shown_so_far()
        state["_model"] = None
        return state

    def _shown_so_far(self) -> dict[str, Any]:
        """Returns the results that the trials have shown, as the algorithm keeps them."""
        return self._scheduler if self._model is None else self._model.algorithm.state_dict()

    def _read_results(self) -> list[Any]:
        """Returns the results that the trials have shown, for users.

        Raises:
            VaultError: If a database does not answer, is gone, or shows less than it did.
        """
        found: list[Any] = self._shown_so_far()["evaluations"]
        if found and self._HOST is not None:
            self._report()
        return found

    def _learned(self, space: TuneSpace) -> Scheduler[Any]:
        """The algorithm after everything that trials have shown."""
        if self._model is None:
            algorithm = self._algorithm(
                self._config, space.space, maximize=self._mode == "max", seed=int(self._seed or 0)
            )
            algorithm.load_state_dict(self._scheduler)
            self._model = Scheduler(algorithm, self._lost)
        return self._model

    # Tune's hooks ---------------------------------------------------------------------------

    def _begin_fit(self, _spec: Mapping[str, Any]) -> None:
        self._scheduler, self._model = self._shown_so_far(), None  # the mode may be another
        self._evaluations.clear()
        self._lost.clear()
        super()._begin_fit(_spec)
        if self._space is not None:
            self._algorithm(self._config, self._space.space)  # what does not fit is refused here
            self._begin()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration, or None while the limit, or all replays of a point, are out.

        Raises:
            RuntimeError: If metric, mode or search space are not known.
            VaultError: If the ledger is gone.
        """
        begins = not self._suggesting
        suggestion = super().suggest(trial_id)
        if begins and self.mechanism is None:
            warn_unprotected([NOT_PRIVATE])
        return suggestion

    def _next(self, trial_id: str, space: TuneSpace) -> tuple[str, Array | None]:
        if self.mechanism is not None:
            self._known.see(self._call("head"))  # trials look for a ledger that may be set back
        evaluation = self._evaluation(space)
        if evaluation is None:
            return "wait", None
        self._asked += 1
        self._evaluations[trial_id] = evaluation
        return "ask", evaluation.x

    def _evaluation(self, space: TuneSpace) -> Evaluation | None:
        """Returns the next trial's evaluation, or None to wait."""
        # Of the trials that are out, a restore may have dropped those that have not reported yet.
        may_wait = bool(self._here)
        out = self._out(self._live)
        found = self._learned(space).next(self._asked, out, may_wait=may_wait)
        return None if found is None else replace(found, x=self._where(found, space))

    def _out(self, trials: Iterable[str]) -> list[Evaluation]:
        """Returns the evaluations of these trials."""
        return [self._evaluations[trial] for trial in trials if trial in self._evaluations]

    def _where(self, evaluation: Evaluation, space: TuneSpace) -> Array:
        """The evaluation's point: a replay's is that of its epoch, to the last bit."""
        begun = self._begun
        if begun is not None and evaluation.epoch == begun[0]:
            near = np.allclose(evaluation.x, begun[1], rtol=0, atol=1e-8)
            return begun[1] if near else evaluation.x
        x = space.take_first(self._points) if self._points else evaluation.x
        self._begun = None if evaluation.epoch is None else (evaluation.epoch, x)
        return x

    def _complete(self, trial_id: str, x: Array | None, result: Row, error: bool) -> bool:
        evaluation = self._evaluations.get(trial_id)
        if not error:  # else a restored experiment may run it again: it evaluates the same
            self._evaluations.pop(trial_id, None)
        ran = self._see_end(trial_id, result, error)
        value = as_float(value_in(result, self._metric))
        learnt = not error and value is not None and math.isfinite(value)
        if learnt and value is not None:
            self._learn(trial_id, evaluation, result, value)
        elif ran and x is not None and evaluation is not None and trial_id not in self._learnt:
            self._learned(self._ready()).fail(trial_id, evaluation)
        return learnt

    def _see_end(self, trial_id: str, result: Row, error: bool) -> bool:
        """Tells if a trial has run: one that the ledger refused says nothing of its point."""
        if self.mechanism is None:
            return True
        record = self._audit(trial_id, result)
        if error and record.entered:
            self._call("note", FAILED_NOTE)
        return record.entered

    def _learn(
        self, trial_id: str, evaluation: Evaluation | None, result: Mapping[str, Any], value: float
    ) -> None:
        """Tells the algorithm once what a trial has shown, wherever its configuration is from."""
        if trial_id in self._learnt:
            return
        if evaluation is None:
            x = self._told_point(result)
            if x is None:
                return
            evaluation = Evaluation(x)
        self._learnt.add(trial_id)
        self._learned(self._ready()).tell(trial_id, evaluation, value)

    def _settings(self) -> LedgerSettings:
        self._ready()
        return super()._settings()

    # What the user writes and reads ---------------------------------------------------------

    def private(self, trainable: Trainable, *, user_id: UserOf | None = None) -> Trainable:
        """Wraps a function trainable that returns one user's reward, with this search's mechanism.

        Args:
            trainable: From a config to one number: a reward to maximise or a cost to minimise, by
                the search's mode. NaN and infinity count as the bad end of the
                range.
            user_id: Whose reward a trial is, as for :func:`raytune_searchers.ldp_trainable`.

        Returns:
            A trainable for ``tune.Tuner`` that reports the privatised reward under the search's
            metric, and nothing else. The reward itself never leaves the worker.

        Raises:
            ValueError: If epsilon is infinite: then there is nothing to wrap. Also if it is a
                class, a generator or no function.
        """
        if self.mechanism is None:
            raise ValueError(
                "This search has epsilon=inf, which privatises nothing: give the trainable to "
                "tune.Tuner as it is, or the search a finite epsilon."
            )
        return wrap(  # type: ignore[no-any-return]
            trainable, self._actor_name, self.mechanism, user_id, self._user_budget, watched=True
        )

    def plan(
        self, n_trials: int,
        *, seconds_per_trial: float | None = None, n_workers: int | None = None,
    ) -> RewardPlan:  # fmt: skip
        """Says what so many trials can tell at this epsilon.

        Args:
            n_trials: Number of trials, one user's reward each.
            seconds_per_trial: How long a trial takes, if you know it: then the plan says how long
                the run does.
            n_workers: Trials that run at once; None for ``max_concurrent=``, or 1.

        Returns:
            The plan; printing it says how well a setting's mean will be known.

        Raises:
            ValueError: If the number is not positive, or the search knows no reward range.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        warn_of_delta(getattr(self.mechanism, "delta", None), n_trials, "evaluations")
        made = make_reward_plan(self._config, n_trials)
        at_once = self._limit or 1 if n_workers is None else n_workers
        return made.presented(seconds_per_trial, at_once, ON_TUNE)

    def recommend(self, param_space: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config with the largest posterior mean: not the best noisy trial.

        Args:
            param_space: The Tuner's own, needed only where constants or choices are objects
                (functions, classes): Tune hides them from searchers.

        Returns:
            A config as a trial gets it, constants included.

        Raises:
            ValueError: If no trial has completed, or objects are hidden.
            VaultError: If the vault is gone, or shows less than it did.
        """
        if self._space is None or not self._read_results():
            raise ValueError("There is nothing to recommend yet: no trial has completed.")
        x = self._learned(self._space).algorithm.recommendation()
        return config_at(self._space, self._param_space, x, param_space)

    def guarantee(self, results: Iterable[Any] = ()) -> LocalGuarantee:
        """Claims what the ledger of this run allows.

        Args:
            results: The ``ResultGrid`` of ``Tuner.fit``, to compare what it holds with the ledger
                once more; what passed through this search was compared on the way.
        """
        if self.mechanism is None:
            return LocalGuarantee(False, "none", reasons=(NOT_PRIVATE,))
        return self._checked_report(stored_in(results))["guarantee"]  # type: ignore[no-any-return]

    def history(self) -> RewardHistory:
        """The released rewards, for :mod:`privbo_plugins.plots`.

        Values that are no releases are not among them, and none is with ``epsilon=math.inf``.
        """
        if self.mechanism is None:
            return reward_history(None, (), None)
        published = set(detail(self._report(), "published").values())
        told = [(np.array(x), value) for x, *_, value in self._shown_so_far()["evaluations"]]
        space = None if self._space is None else self._space.space
        return reward_history(
            space, [(x, value) for x, value in told if value in published], self.mechanism
        )

    def finished(self) -> bool:
        """Tells whether as many trials have a value as ``n_trials=`` expects; never without it."""
        return used_up(len(self._read_results()), planned_trials(self._config))

    def status(self) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        done = len(self._shown_so_far()["evaluations"])
        return status(
            self.guarantee(), done, planned_trials(self._config), recommendation=done > 0,
            finished=self.finished(), budget=self._user_budget,
        )  # fmt: skip

    def _page(self, results: Iterable[Any]) -> Report:
        guarantee = self.guarantee(results)
        return reward_report(
            f"Private tuning report: {self._run}",
            guarantee,
            RewardSearch.history(self),
            self.recommend() if self._shown_so_far()["evaluations"] else None,
            self._summary(),
        )

    def _summary(self) -> Mapping[str, Any] | None:
        """Returns the progress of agents that share the work; None where there are none."""
        return None
