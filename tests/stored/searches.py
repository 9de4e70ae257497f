"""What users of version 0.1 ran on Ray Tune, as :mod:`tests.stored.scripts` for Optuna.

Databases are named by an environment variable, so that what a search has saved finds them wherever
its files were put.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune

from privbo_plugins.algorithms.po_gp_ucb import Curator
from raytune_searchers import (
    DPFTSDESearch,
    DPGIBOSearch,
    DUETSSearch,
    LDPGPUCBSearch,
    LDPMoMAGPUCBSearch,
    POGPUCBSearch,
    agent_trials,
    answering,
)
from tests.stored import scripts
from tests.stored.scripts import EPSILON, MU, RECORDS, VAULT

__all__ = ["DPFTSDESearch", "POGPUCBSearch", "agent_trials"]

LINE = {"x": tune.uniform(0.0, 1.0)}

N_TRIALS = {"ray_federation": 4}
"""Trials of an experiment before it was stopped, where they are not three."""


def losses(config: dict[str, Any]) -> np.ndarray:
    """A loss a record."""
    return np.asarray((config["x"] - RECORDS) ** 2)


def reward(config: dict[str, Any]) -> float:
    """One user's."""
    return 1.0 - abs(float(config["x"]) - 0.3)


def user(config: dict[str, Any]) -> str:
    """Two are asked."""
    return "Jane" if config["x"] < 0.5 else "Joe"


def records(**changes: Any) -> DPGIBOSearch:
    """DP-GIBO: a plan of seven trials."""
    settings: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "n_starts": 2,
        "n_steps": 2,
        "seed": 3,
        "value_share": 0.2,
        "lengthscale": 0.25,
        "vault": VAULT,
        "run": "clinic",
    }
    return DPGIBOSearch(MU, **(settings | changes))


def gp_ucb(**changes: Any) -> LDPGPUCBSearch:
    """Small noise by default."""
    settings: dict[str, Any] = {
        "reward_range": (0, 1),
        "horizon": 12,
        "metric": "reward",
        "mode": "max",
        "user_budget": 40.0,
        "seed": 1,
        "vault": VAULT,
        "run": "users",
    }
    return LDPGPUCBSearch(EPSILON, **(settings | changes))


def moma_gp_ucb(**changes: Any) -> LDPMoMAGPUCBSearch:
    """In the middle of an epoch of two replays."""
    settings: dict[str, Any] = {
        "bound": 1.0,
        "horizon": 12,
        "failure": 0.2,
        "replays": 2,
        "metric": "reward",
        "mode": "max",
        "seed": 1,
        "vault": VAULT,
        "run": "users",
    }
    return LDPMoMAGPUCBSearch(EPSILON, **(settings | changes))


def duets(**changes: Any) -> DUETSSearch:
    """In the middle of an epoch."""
    settings: dict[str, Any] = {
        "epsilon": EPSILON,
        "reward_range": (0, 1),
        "n_trials": 12,
        "failure": 0.2,
        "discretisation": 64,
        "metric": "reward",
        "mode": "max",
        "seed": 1,
        "vault": VAULT,
        "run": "users",
    }
    return DUETSSearch(2, **(settings | changes))


def curator() -> Curator:
    """In an actor, which reads the rows itself."""
    return scripts.curator(Path(os.environ[scripts.VARIABLE].removeprefix("sqlite:///")).parent)


def rows(**changes: Any) -> POGPUCBSearch:
    """Over a curator's table."""
    settings: dict[str, Any] = {
        "metric": "outcome",
        "mode": "max",
        "delta": 0.2,
        "beta_scale": 0.5,
        "n_startup": 2,
        "seed": 1,
    }
    answers = answering(curator)
    try:
        return POGPUCBSearch(answers.release(), **(settings | changes))
    finally:
        answers.close()


def agents_reward(_agent: str, config: dict[str, Any]) -> float:
    """One agent's own value."""
    return reward(config)


def federation(**changes: Any) -> DPFTSDESearch:
    """Three rounds of two agents that explore as published."""
    settings: dict[str, Any] = {
        "search_space": LINE,
        "trials_per_agent": 4,
        "agents": scripts.AGENTS,
        "deadline": None,
        "vault": VAULT,
        "agent_vaults": f"env:{scripts.AGENTS_VARIABLE}",
        "seed": 1,
        "run": "hospitals",
    }
    config = scripts.federation_config("explore", n_startup=1)
    return DPFTSDESearch(config, **(settings | changes))


def trainable_of(search: Any) -> Any:
    """What its trials run."""
    if isinstance(search, POGPUCBSearch):
        answers = answering(curator)
        return lambda config: {"outcome": answers(config["row"])}
    if isinstance(search, DPFTSDESearch):
        return search.private(agents_reward)
    if isinstance(search, DPGIBOSearch):
        return search.private(losses)
    return search.private(reward, user_id=user)


TUNED: dict[str, Callable[..., Any]] = {
    "ray_records": records,
    "ray_gp_ucb": gp_ucb,
    "ray_moma_gp_ucb": moma_gp_ucb,
    "ray_duets": duets,
}
"""Those that tune on :data:`LINE`."""

SEARCHES: dict[str, Callable[..., Any]] = {
    **TUNED,
    "ray_rows": rows,
    "ray_federation": federation,
}
