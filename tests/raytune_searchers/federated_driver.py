"""Experiments on secret values in a process of their own, so that every byte can be scanned."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import sys
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import cloudpickle, tune

from tests.raytune_searchers.federated_scenes import TRIALS, make_search, start
from tests.raytune_searchers.runs import tuner
from tests.raytune_searchers.scenes import first_time

__all__ = ["BOUNDS", "NAMES", "TRIALS"]


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
    leaks(sys.argv[2])
