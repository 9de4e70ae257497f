"""Small studies that several test modules run."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from optuna_samplers import DPGIBOSampler
from tests.inside import LEDGER, RELEASES

RECORDS = np.random.default_rng(11).uniform(0.4, 0.9, size=120)
"""The private validation records of most tests."""


SETTINGS: dict[str, Any] = {
    "n_starts": 2,
    "n_steps": 2,
    "seed": 3,
    "value_share": 0.2,
    "lengthscale": 0.25,
    "noise_ratio": 0.01,
    "step_rule": "adagrad-norm",
    "step_size": 0.15,
    "memory": 0,
}
"""Everything that a default could change."""


def make_sampler(mu: float = 1.0, **settings: Any) -> DPGIBOSampler:
    """A short plan: two start points, two steps; with one parameter 7 trials, with two 9."""
    return DPGIBOSampler(mu, **(SETTINGS | settings))


def squares(trial: Any) -> np.ndarray:
    """One parameter; a loss a record."""
    return (trial.suggest_float("x", 0.0, 1.0) - RECORDS) ** 2


def plane(trial: Any) -> np.ndarray:
    """Two parameters; a loss a record."""
    x, y = trial.suggest_float("x", 0.0, 1.0), trial.suggest_float("y", -2.0, 2.0)
    return np.clip((x - RECORDS) ** 2 + (y / 4 - 0.1) ** 2, 0.0, 1.0)


def broad(kind: str) -> str:
    """The last value counts as a value."""
    return "value" if kind == "final" else kind


def rows(path: Path | str, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a SQLite file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def vault_facts(path: Path | str) -> dict[str, Any]:
    """Ledger, releases and trials of a vault file, as stored."""
    released = rows(path, f"SELECT kind, key, payload FROM {RELEASES} ORDER BY seq")
    released = [(broad(kind), key, payload) for kind, key, payload in released]
    charged = rows(path, f"SELECT kind, key, mu FROM {LEDGER}")
    return {
        "ledger": [(broad(kind), key, mu) for kind, key, mu in charged],
        "releases": {(kind, key): json.loads(p)["values"] for kind, key, p in released},
        "order": [(kind, key) for kind, key, _ in released],
        "trials": rows(path, "SELECT trial, role, step, slot, state, value FROM privbo_board"),
        "published": dict(
            rows(path, "SELECT trial, value FROM privbo_board WHERE state = 'done'")
        ),
        "held": rows(path, "SELECT DISTINCT trial FROM privbo_losses"),
    }
