"""Trials with a private reward that die at a given point, and a driver that one of them kills."""

import os

from ray import tune

from privbo_plugins.privacy.noise import SecureNoise
from raytune_searchers import LDPGPUCBSearch
from tests.raytune_searchers.runs import tuner
from tests.raytune_searchers.scenes import DRIVER, REPORTED, STORED, act, turn_of
from tests.worker import append, first_time

CHARGED, PLAYED = "charged", "played"
"""Where else a trial may die: while its noise is drawn, and before its user is charged."""


def strike(folder, faults, point, actor, driver):
    """Does once what shall happen at this point of this trial."""
    turn = turn_of(folder, tune.get_context().get_trial_id())
    what = faults.get((turn, point))
    if what is not None and first_time(folder / f"struck-{turn}-{point}"):
        act(what, driver, actor, folder / "run")


class DeadlyNoise(SecureNoise):
    """Secure noise that notes every draw; a trial may die while it draws, charged already."""

    def __init__(self, folder, faults):
        super().__init__()
        self.folder, self.faults = folder, faults

    def __getstate__(self):
        return {"folder": self.folder, "faults": self.faults}

    def __setstate__(self, state):
        self.__dict__.update(state)

    def add_laplace(self, value, scale):
        strike(self.folder, self.faults, CHARGED, "", 0)
        noisy = super().add_laplace(value, scale)
        append(self.folder / "draws", noisy)
        return noisy


def reward(config):
    return 1.0 - abs(float(config["x"]) - 0.75)


def faulty(wrap, folder, faults, actor=""):
    """A trainable with a private reward that notes each evaluation and fails where it shall.

    Args:
        wrap: Makes the reward private.
        folder: For notes.
        faults: What happens where.
        actor: Name of the ledger's actor, for those that end it.
    """
    driver = os.getpid()

    def evaluated(config):
        append(folder / "played", turn_of(folder, tune.get_context().get_trial_id()))
        strike(folder, faults, PLAYED, actor, driver)
        return reward(config)

    private = wrap(evaluated)

    def trainable(config):
        released = private(config)
        strike(folder, faults, STORED, actor, driver)
        tune.report(released)
        strike(folder, faults, REPORTED, actor, driver)

    return trainable


def search_of(folder):
    """A search with its ledger in a file."""
    vault = f"sqlite:///{folder}/vault.db"
    return LDPGPUCBSearch(
        1.0, bound=1.0, mechanism="laplace", metric="reward", mode="max", vault=vault, run_name="r"
    )


def dies_at_the_last(folder):
    """An experiment whose last trial kills its driver once its reward is stored."""
    search = search_of(folder)
    trainable = faulty(search.private, folder, {(2, STORED): DRIVER})
    return tuner(search, trainable, folder, num_samples=3, max_concurrent_trials=1)
