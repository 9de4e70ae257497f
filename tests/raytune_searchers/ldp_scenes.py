"""Trials with a private reward that die at a given point, and a driver that one of them kills."""

from privbo_plugins.privacy.noise import SecureNoise
from raytune_searchers import LDPGPUCBSearch
from tests.raytune_searchers.runs import tuner
from tests.raytune_searchers.scenes import DRIVER, STORED, faulty, strike
from tests.worker import append

CHARGED = "charged"
"""Where else a trial may die: while its noise is drawn."""


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
        strike(self.folder, self.faults, CHARGED)
        noisy = super().add_laplace(value, scale)
        append(self.folder / "draws", noisy)
        return noisy


def reward(config):
    return 1.0 - abs(float(config["x"]) - 0.75)


def search_of(folder):
    """A search with its ledger in a file."""
    vault = f"sqlite:///{folder}/vault.db"
    return LDPGPUCBSearch(
        1.0, bound=1.0, mechanism="laplace", metric="reward", mode="max", vault=vault, run_name="r"
    )


def dies_at_the_last(folder):
    """An experiment whose last trial kills its driver once its reward is stored."""
    search = search_of(folder)
    trainable = faulty(search.private, folder, {(2, STORED): DRIVER}, reward)
    return tuner(search, trainable, folder, num_samples=3, max_concurrent_trials=1)
