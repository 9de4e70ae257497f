"""Experiments of ``private_trainable``: in this process, and by a driver that is killed."""

import os
from types import SimpleNamespace

from ray import tune
from ray.tune.search.optuna import OptunaSearch

from raytune_searchers import private_trainable
from tests.raytune_searchers.hosts import in_session, sent
from tests.raytune_searchers.runs import LINE, squares, tuner
from tests.raytune_searchers.scenes import CountedNoise, kill_driver, turn_of
from tests.worker import append, first_time

N = 6
"""Releases of a whole run."""


def counted(folder, before=None):
    """A trainable that notes each training.

    Args:
        folder: Where.
        before: Called with the trial's number before its losses are known to anybody.
    """

    def measured(config):
        turn = turn_of(folder, tune.get_context().get_trial_id())
        append(folder / "trained", turn)
        if before is not None:
            before(turn)
        return squares(config)

    return measured


def wrapped(folder, trainable, **own):
    """Made private, with draws that are counted."""
    settings = {"param_space": LINE, "mu": 1.0, "n_trials": N, "noise": CountedNoise(folder)}
    return private_trainable(trainable, **(settings | own))


class Experiment:
    """As much of Tune as calls a callback, with trials that do not travel far.

    Args:
        callback: What is called.
        kept: Trials of the experiment that is restored.
    """

    def __init__(self, callback, kept=()):
        self.callback, self.trials = callback, list(kept)
        callback.setup(stop=None, num_samples=N, total_num_samples=N)
        self.step()

    def _tell(self, hook, trial, **more):
        getattr(self.callback, hook)(iteration=0, trials=self.trials, trial=trial, **more)

    def step(self):
        """As Tune does before it looks for anything to do."""
        self.callback.on_step_begin(iteration=0, trials=self.trials)

    def begin(self, name, **config):
        """A trial whose function has not begun."""
        config = config or {"x": 0.5}
        trial = SimpleNamespace(
            trial_id=name, config=config, last_result={}, metrics={}, rows=[], error=None
        )
        self.trials.append(trial)
        self._tell("on_trial_start", trial)
        return trial

    def shows(self, trial, **row):
        """What a trial reports."""
        own = {"trial_id": trial.trial_id, "training_iteration": len(trial.rows) + 1}
        shown = sent(getattr(trial, "inside", trial.config))  # a function may write into its own
        result = {**row, **own, "config": shown}
        self._tell("on_trial_result", trial, result=result)
        trial.last_result = trial.metrics = result
        trial.rows.append(result)

    def run(self, private, name, **config):
        """A whole trial."""
        trial = self.begin(name, **config)
        return self.carry_out(private, trial)

    def carry_out(self, private, trial):
        """What is left of a trial that has begun."""
        trial.inside = sent(trial.config)
        with in_session(trial.trial_id, lambda row: self.shows(trial, **row)):
            try:
                returned = sent(private)(trial.inside)
            except Exception as error:
                trial.error = error
        if trial.error is None:
            self.shows(trial, **returned)
        self._tell("on_trial_complete" if trial.error is None else "on_trial_error", trial)
        self.step()
        return trial

    def end(self):
        """Of the experiment."""
        self.callback.on_experiment_end(trials=self.trials)


def in_a_file(folder, before=None):
    """The same with its vault in a file; arguments as :func:`counted`'s."""
    vault = f"sqlite:///{folder}/v.db"
    return wrapped(folder, counted(folder, before), vault=vault, run_name="r")


def dies_at_the_third(folder):
    """An experiment whose third trial kills its driver before its losses are stored."""
    driver = os.getpid()

    def strike(turn):
        if turn == 2 and first_time(folder / "struck"):
            kill_driver(driver, folder / "run")

    private = in_a_file(folder, strike)
    return tuner(
        OptunaSearch(seed=1), private, folder, callbacks=[private.callback], metric="loss",
        mode="min", num_samples=N, max_concurrent_trials=1,
    )  # fmt: skip
