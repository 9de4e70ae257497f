"""Small federations, objectives that fail at a given point, and drivers of their own processes.

As a script it runs an experiment that its objective ends (``killed``), or experiments on secret
values so that every byte they leave can be scanned (``leaks``).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import sys
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import cloudpickle, tune

from raytune_searchers import DPFTSDESearch, FederationConfig
from tests.raytune_searchers.fault_driver import append, first_time, kill_driver, lines
from tests.raytune_searchers.runs import tuner

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
    own = {"search_space": SPACE, "trials_per_agent": TRIALS, "seed": 1, "deadline": 30.0}
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


def killed(folder: str, ray_folder: str, search: dict[str, Any]) -> None:
    """Runs the experiment ``folder``/run until its sixth evaluation, which ends the driver."""
    from tests.raytune_searchers.conftest import INIT  # workers need no pytest

    warnings.simplefilter("ignore")
    ray.init(_temp_dir=ray_folder, **INIT)
    driver, place = os.getpid(), Path(folder)

    def strike(agent: Any, before: int) -> None:
        if len(evaluations(place)) >= 6 and first_time(place / "struck"):
            kill_driver(driver, place / "run")

    made = make_search(**search)
    start(made, made.private(noted(place, strike)), place).fit()


# Secrets ----------------------------------------------------------------------------------------


def fresh(agent: Any, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    """A name and values that nobody has seen before, listed with whose they are."""
    folder = Path(os.environ["LEAK_SECRET"])
    name = f"patient-{hashlib.sha256(uuid.uuid4().bytes).hexdigest()[:16]}"
    y = np.random.default_rng().uniform(0.11, 0.99, 5)
    with (folder / "made").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        row = {"agent": agent, "name": name, "values": [config["x"], *y.tolist()]}
        file.write(json.dumps(row) + "\n")
    return name, y


def secret(agent: Any, config: dict[str, Any]) -> float:
    """Tells its secrets wherever it can, fails now and then, and returns one of them."""
    name, y = fresh(agent, config)
    print(name, y.tolist(), flush=True)
    os.write(1, f"{name} {y.tolist()}\n".encode())
    os.write(2, f"{name} {y.tolist()}\n".encode())
    logging.getLogger("owner").error("%s %s", name, y.tolist())
    logging.getLogger("ray").error("%s %s", name, y.tolist())
    warnings.warn(f"{name} {y.tolist()}", UserWarning, stacklevel=2)
    config["values"], config[name] = y.tolist(), y
    if first_time(Path(os.environ["LEAK_SECRET"]) / f"failed-{agent}"):
        if agent == "oslo":
            tune.report({"value": float(y[0]), name: y})
        raise RuntimeError(f"{name} {y.tolist()}")
    return float(y[0])


def keep(agent: Any, config: dict[str, Any] | None, value: float | None) -> None:
    """Keeps an agent's result beside its own trials."""
    place = Path(os.environ["LEAK_SECRET"]) / "agents" / f"{agent}.best"
    place.write_text(json.dumps([config, value]))


def leaky(config: dict[str, Any]) -> dict[str, Any]:
    """As an agent's objective would leak as a plain trainable."""
    name, y = fresh("control", {"x": 0.5})
    print(name, y.tolist(), flush=True)
    if first_time(Path(os.environ["LEAK_SECRET"]) / "failed-control"):
        raise RuntimeError(f"{name} {y.tolist()}")
    return {"federation_round": 0, "value": float(y[0])}


BOUNDS = (0.11, 0.99)
"""Of the secret parameter; an agent may well choose one of them, which are public."""

NAMES = ["oslo", "bergen", "bodo", "hamar"]


def leaks(root: str) -> None:
    """Runs a federation and the control, with a line on standard input when Ray may end."""
    from tests.raytune_searchers.conftest import INIT

    place, vaults = Path(root), os.environ["LEAK_SECRET"]
    settings = INIT | {"log_to_driver": True, "logging_level": "INFO"}
    ray.init(address="local", _temp_dir=str(place / "ray"), **settings)
    search = make_search(
        search_space={"x": tune.uniform(*BOUNDS)},
        agents=NAMES,
        hosts="agent",
        vault=f"sqlite:///{vaults}/server.db",
        agent_vaults=f"sqlite:///{vaults}/agents/{{agent}}.db",
    )
    results = start(search, search.private(secret, keep), place / "experiments").fit()
    (place / "objects").mkdir(exist_ok=True)
    (place / "objects" / "search").write_bytes(cloudpickle.dumps(search))
    (place / "objects" / "results").write_bytes(cloudpickle.dumps(list(results)))
    results.get_dataframe().to_csv(place / "objects" / "frame.csv")
    told = search.guarantee(results)
    control = tuner(None, leaky, place / "experiments", name="control", num_samples=3).fit()
    facts = {
        "protected": told.protected,
        "released": told.n_released,
        "trials": len(results),
        "errors": results.num_errors,
        "control": len(control),
    }
    (place / "facts.json").write_text(json.dumps(facts))
    sys.stdin.readline()
    ray.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "leaks":
        leaks(sys.argv[2])
    else:
        killed(**json.loads(sys.argv[1]))
