"""Small federations, and objectives that fail at a given point.

:func:`drive` is for a process of its own: an experiment that its objective ends.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raytune_searchers import DPFTSDESearch, FederationConfig
from tests.raytune_searchers.runs import tuner
from tests.raytune_searchers.scenes import append, first_time, kill_driver, lines

CONFIG: dict[str, Any] = {
    "n_agents": 4,
    "epsilon": 4.0,
    "n_rounds": 2,
    "n_startup": 1,
    "n_features": 20,
}

TRIALS = 3
"""Of each agent: one before its first round, and one a round."""

SPACE = {"x": tune.uniform(0.0, 1.0), "n": {"k": tune.choice(["a", "b"])}, "c": 5}


def make_search(config: dict[str, Any] | None = None, **settings: Any) -> DPFTSDESearch:
    """Four agents, two rounds."""
    own = {"search_space": SPACE, "n_trials": TRIALS, "seed": 1, "deadline": 30.0}
    return DPFTSDESearch(FederationConfig(**(CONFIG | (config or {}))), **(own | settings))


def start(search: Any, trainable: Any, folder: Path, **settings: Any) -> Any:
    """A Tuner without a param_space."""
    return tuner(search, trainable, folder, param_space={}, **settings)


def noted(folder: Path, strike: Callable[[Any, int], Any] | None = None) -> Any:
    """An objective that notes each evaluation, after which something may happen.

    Args:
        folder: Where.
        strike: Called with the agent and how often it has been evaluated before.
    """

    def objective(agent: Any, config: dict[str, Any]) -> float:
        before = evaluations(folder).count(agent)
        append(folder / "evaluated", agent)
        if strike is not None:
            strike(agent, before)
        return 1.0 - abs(config["x"] - 0.5) - 0.1 * (config["n"]["k"] == "b") + config["c"] - 5

    return objective


def evaluations(folder: Path) -> list[Any]:
    """Agents in the order in which they were evaluated."""
    return lines(folder / "evaluated")


# Killed -----------------------------------------------------------------------------------------


def drive(
    folder: str, ray_folder: str, config: dict[str, Any], search: dict[str, Any], after: int
) -> None:
    """Runs the experiment ``folder``/run until so many evaluations, the last of which ends it."""
    from tests.raytune_searchers.conftest import INIT  # workers need no pytest

    warnings.simplefilter("ignore")
    ray.init(_temp_dir=ray_folder, **INIT)
    driver, place = os.getpid(), Path(folder)

    def strike(agent: Any, before: int) -> None:
        if len(evaluations(place)) >= after and first_time(place / "struck"):
            kill_driver(driver, place / "run")

    made = make_search(config, **search)
    start(made, made.private(noted(place, strike)), place).fit()
