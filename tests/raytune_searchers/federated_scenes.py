"""Small federations, and objectives that fail at a given point.

:func:`drive` is for a process of its own: an experiment that its objective ends.
"""

import os
from pathlib import Path

from ray import tune

from raytune_searchers import DPFTSDESearch, FederationConfig
from tests.raytune_searchers.runs import tuner
from tests.raytune_searchers.scenes import kill_driver, own_ray
from tests.worker import append, first_time, lines

CONFIG = {"n_agents": 4, "epsilon": 4.0, "n_rounds": 2, "n_startup": 1, "n_features": 20}

TRIALS = 3
"""Of each agent: one before its first round, and one a round."""

SPACE = {"x": tune.uniform(0.0, 1.0), "n": {"k": tune.choice(["a", "b"])}, "c": 5}


def make_search(config=None, **settings):
    """Four agents, two rounds."""
    own = {"search_space": SPACE, "n_trials": TRIALS, "seed": 1, "deadline": 30.0}
    return DPFTSDESearch(FederationConfig(**(CONFIG | (config or {}))), **(own | settings))


def start(search, trainable, folder, **settings):
    """A Tuner without a param_space."""
    return tuner(search, trainable, folder, param_space={}, **settings)


def noted(folder, strike=None):
    """An objective that notes each evaluation, after which something may happen.

    Args:
        folder: Where.
        strike: Called with the agent and how often it has been evaluated before.
    """

    def objective(agent, config):
        before = evaluations(folder).count(agent)
        append(folder / "evaluated", agent)
        if strike is not None:
            strike(agent, before)
        return 1.0 - abs(config["x"] - 0.5) - 0.1 * (config["n"]["k"] == "b") + config["c"] - 5

    return objective


def evaluations(folder):
    """Agents in the order in which they were evaluated."""
    return lines(folder / "evaluated")


# Killed -----------------------------------------------------------------------------------------


def drive(folder, ray_folder, config, search, after):
    """Runs the experiment ``folder``/run until so many evaluations, the last of which ends it."""
    own_ray(ray_folder)
    driver, place = os.getpid(), Path(folder)

    def strike(agent, before):
        if len(evaluations(place)) >= after and first_time(place / "struck"):
            kill_driver(driver, place / "run")

    made = make_search(config, **search)
    start(made, made.private(noted(place, strike)), place).fit()
