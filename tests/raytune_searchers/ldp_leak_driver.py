"""Experiments on secret rewards in a Ray of its own, so that every byte it leaves is scanned.

Works as :mod:`tests.raytune_searchers.leak_driver` does, whose secrets it uses: a user is named by
a secret text, and their reward is one secret number. The experiment "control" comes last, and
leaks what it makes.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import cloudpickle

from raytune_searchers import LDPGPUCBSearch, ldp_trainable
from tests.raytune_searchers.conftest import INIT
from tests.raytune_searchers.leak_driver import (
    ALONE,
    WAYS,
    all_ways,
    fresh,
    keep,
    number,
)
from tests.raytune_searchers.runs import LINE, tuner

_RETURNS_A_NUMBER = 17
"""Which of the ways returns the mean of its losses: here that is a reward like any other."""

assert isinstance(WAYS[_RETURNS_A_NUMBER]("", np.ones(2), {}), float)

FAILING = [way for i, way in enumerate(WAYS) if i != _RETURNS_A_NUMBER]

N = 4
"""Numbers of which a failing trial quotes all."""

TRIALS = {"small": 4, "plain": 4, "wild": 2 + len(ALONE), "control": 3}


def named(config: dict[str, Any]) -> str:
    """A secret name."""
    return fresh(1)[0]


def misnamed(config: dict[str, Any]) -> str:
    """Fails, and quotes a name."""
    raise KeyError(fresh(1)[0])


def mutating(config: dict[str, Any]) -> float:
    """Returns its reward, and leaves it in its config."""
    name, y = fresh(1)
    config["reward"], config["x"], config[name] = y.tolist(), float(y[0]), y
    return float(y[0])


def failing(way: Any) -> Any:
    """A trainable that goes wrong in one way."""
    return lambda config: way(*fresh(N), config)


def make_wild(search: Any) -> Any:
    """The trainable whose trials go wrong."""
    ways = [search.private(failing(way)) for way in FAILING]
    ways.append(search.private(mutating, user_id=misnamed))
    private = {
        1: search.private(mutating),
        2: functools.partial(all_ways, ways),
        **{i: search.private(failing(way)) for i, way in enumerate(ALONE, 3)},
    }

    def wild(config: dict[str, Any]) -> Any:
        return private.get(number(), private[1])(config)

    return wild


def leaky(config: dict[str, Any]) -> Any:
    """Reports a raw reward; the second trial quotes it in what it raises."""
    name, y = fresh(1)
    print(name, y.tolist(), flush=True)
    if number() == 2:
        raise ValueError(f"{name} {y.tolist()}")
    return {"reward": float(y[0])}


def n_calls() -> int:
    """How many secrets have been made so far."""
    calls = Path(os.environ["LEAK_SECRET"]) / "calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def main() -> None:
    _, root = sys.argv[1], Path(sys.argv[2])
    # Wrapped before Ray runs: its ledger is begun when Tune pickles it.
    plain = ldp_trainable(mutating, epsilon=1.0, reward_range=(0, 1), user_id=named)
    settings = INIT | {"log_to_driver": True, "logging_level": "INFO"}
    ray.init(address="local", _temp_dir=str(root / "ray"), **settings)
    own: dict[str, Any] = {"reward_range": (0, 1), "metric": "reward", "mode": "max"}
    small = LDPGPUCBSearch(1.0, mechanism="laplace", vault="env:LEAK_VAULT", **own)
    wild, control = LDPGPUCBSearch(1.0, **own), LDPGPUCBSearch(math.inf, **own)
    experiments: dict[str, tuple[Any, Any, Any]] = {
        "small": (small, small.private(mutating, user_id=named), small.guarantee),
        "plain": (None, plain, plain.guarantee),
        "wild": (wild, make_wild(wild), wild.guarantee),
        "control": (control, leaky, control.guarantee),
    }
    facts: dict[str, Any] = {}
    (root / "objects" / "plain.early").write_bytes(cloudpickle.dumps(plain))
    for name, (search, trainable, guarantee) in experiments.items():
        made = n_calls()
        results = tuner(
            search,
            trainable,
            root / "experiments",
            name=name,
            param_space=LINE,
            num_samples=TRIALS[name],
        ).fit()
        facts[name] = keep(root / "objects" / name, search, trainable, results)
        told = guarantee(results)
        facts[name] |= {"protected": told.protected, "before": made, "plays": told.n_plays}
    (root / "facts.json").write_text(json.dumps(facts))
    sys.stdin.readline()
    ray.shutdown()


if __name__ == "__main__":
    main()
