"""Small federations, and objectives that fail at a given point."""

import os

from ray import tune

from raytune_searchers import DPFTSDESearch, FederationConfig
from tests.raytune_searchers.runs import tuner
from tests.raytune_searchers.scenes import kill_driver
from tests.worker import append, first_time, lines

CONFIG = {"n_agents": 4, "epsilon": 4.0, "n_rounds": 2, "n_startup": 1, "n_features": 20}

TWO = {"n_agents": 2}
"""Agents; each has a host of its own then."""

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


def dies_in_the_middle(folder):
    """An experiment of two agents that kills its driver after half of their evaluations."""
    driver = os.getpid()

    def strike(agent, before):
        if len(evaluations(folder)) >= TRIALS and first_time(folder / "struck"):
            kill_driver(driver, folder / "run")

    search = make_search(
        TWO, vault=f"sqlite:///{folder}/server.db",
        agent_vaults=f"sqlite:///{folder}/{{agent}}.db", run_name="r",
    )  # fmt: skip
    return start(search, search.private(noted(folder, strike)), folder)
