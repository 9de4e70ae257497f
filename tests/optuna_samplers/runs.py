"""Small studies that several test modules run."""

import functools
import json
import sqlite3

import numpy as np
import optuna

from optuna_samplers import DPGIBOSampler
from privbo_plugins.convert import BlockScores
from tests.inside import LEDGER, RELEASES

RECORDS = np.random.default_rng(11).uniform(0.4, 0.9, size=120)
"""The private validation records of most tests."""


SETTINGS = {
    "n_starts": 2, "n_steps": 2, "seed": 3, "value_share": 0.2, "lengthscale": 0.25,
    "noise_ratio": 0.01, "step_rule": "adagrad-norm", "step_size": 0.15, "memory": 0,
}  # fmt: skip
"""Everything that a default could change."""


def make_sampler(mu=1.0, **settings):
    """A short plan: two start points, two steps; at most 9 trials, with two parameters 11."""
    return DPGIBOSampler(mu, **(SETTINGS | settings))


def begun_study(n_trials=0, **settings):
    """A sampler, and its study in memory after so many trials."""
    sampler = make_sampler(**settings)
    study = optuna.create_study(sampler=sampler)
    if n_trials:
        study.optimize(sampler.private(squares), n_trials=n_trials)
    return sampler, study


def squares(trial):
    """One parameter; a loss a record."""
    return (trial.suggest_float("x", 0.0, 1.0) - RECORDS) ** 2


def of_blocks(private, deal):
    """Makes objectives private whose losses a record are the scores of blocks.

    Args:
        private: Of a sampler.
        deal: Its ``records_in_blocks``.
    """

    def scored(objective, **named):
        @functools.wraps(objective)
        def one(trial):
            found = objective(trial)
            whole = isinstance(found, np.ndarray) and found.shape == (deal[1],)
            return BlockScores.of(found.astype(float), deal) if whole else found

        return private(one, **named)

    return scored


def plane(trial):
    """Two parameters; a loss a record."""
    x, y = trial.suggest_float("x", 0.0, 1.0), trial.suggest_float("y", -2.0, 2.0)
    return np.clip((x - RECORDS) ** 2 + (y / 4 - 0.1) ** 2, 0.0, 1.0)


def rows(path, sql):
    """Rows of a SQLite file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def vault_facts(path):
    """Ledger, releases and trials of a vault file, as stored."""
    released = rows(path, f"SELECT kind, key, payload FROM {RELEASES} ORDER BY seq")
    drawn = rows(path, "SELECT key, payload FROM privbo_events WHERE kind = 'drawn'")
    return {
        "drawn": {tuple(key.split("/", 1)): json.loads(p)["values"] for key, p in drawn},
        "ledger": rows(path, f"SELECT kind, key, mu FROM {LEDGER}"),
        "releases": {(kind, key): json.loads(p)["values"] for kind, key, p in released},
        "order": [(kind, key) for kind, key, _ in released],
        "trials": rows(path, "SELECT trial, role, step, slot, state, value FROM privbo_board"),
        "published": dict(
            rows(path, "SELECT trial, value FROM privbo_board WHERE state = 'done'")
        ),
        "held": rows(path, "SELECT DISTINCT trial FROM privbo_losses"),
    }
