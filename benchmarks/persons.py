"""Persons with 1 to 30 rows beside rows, at the same mu for a person; and what groups cost.

The table is the RAND Health Insurance Experiment as statsmodels ships it: 20,190 person-years. It
names no persons. Here a run of rows that stand one after another and are equal in all nine inputs
counts as one: 5,294 persons with 1 to 30 rows, 3.8 on average (members of one family who have
equal inputs are one of them). Whether there is any visit in a year is predicted by ridge
regression on 200 random features; tuned are its penalty and the features' length-scale.

Arms: "persons" gives ``groups=``; "rows" protects single rows, at mu / 30, so that a person of 30
rows has mu; "one row" leaves one row of each validation person, chosen at random; "not private"
adds no noise. Reported are excesses of the mean loss over persons above the best of all settings
that any arm of the seed has recommended, on validation persons and on test persons, who take no
part in tuning.

    python -m benchmarks.persons [--seeds 10]
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.stats import loguniform
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from optuna_samplers import DPGIBOSampler
from privbo_plugins import losses
from sklearn_search import PrivateSearch

RESULTS = Path(__file__).parent / "results"
MUS, MOST, TRIALS = (0.5, 1.0, 2.0), 30, 24
SPACE = {"ridge__alpha": loguniform(1e-4, 1e4), "rbfsampler__gamma": loguniform(1e-4, 10)}

Array = NDArray[Any]


@cache
def table() -> tuple[Array, Array, Array]:
    """Inputs (n, 9), whether there was a visit (n,), and the person of each row (n,)."""
    from statsmodels.datasets import randhie

    data = randhie.load_pandas().data
    inputs = data.drop(columns="mdvis")
    begins = (inputs != inputs.shift()).any(axis=1)
    return (
        inputs.to_numpy(dtype=float),
        (data["mdvis"] > 0).to_numpy(dtype=float),
        begins.cumsum().to_numpy() - 1,
    )


def split(ids: Array, seed: int) -> tuple[Array, Array, Array]:
    """Rows of persons that train, are validated and test: two, two and one fifths of them."""
    place = np.random.default_rng(seed).permutation(ids.max() + 1) / (ids.max() + 1)
    return tuple(
        np.flatnonzero((low <= place[ids]) & (place[ids] < high))
        for low, high in ((0.0, 0.4), (0.4, 0.8), (0.8, 1.0))
    )  # type: ignore[return-value]


def model() -> Any:
    """What is tuned."""
    return make_pipeline(StandardScaler(), RBFSampler(n_components=200, random_state=0), Ridge())


def loss_of(params: dict[str, Any], train: Array, scored: Array) -> float:
    """Mean over persons of the mean clipped loss of their rows, without noise."""
    X, y, ids = table()
    fitted = model().set_params(**params).fit(X[train], y[train])
    errors = losses.squared(y[scored], fitted.predict(X[scored]))
    return float(losses.by_group(errors, ids[scored]).mean())


def recommended(arm: str, mu: float, seed: int) -> tuple[dict[str, Any], float]:
    """What an arm recommends, and how long its search took."""
    X, y, ids = table()
    train, valid, _ = split(ids, seed)
    persons: dict[str, Any] = {}
    if arm in ("persons", "not private"):
        persons = {"groups": ids[train], "groups_valid": ids[valid]}
    if arm == "one row":
        order = np.random.default_rng(seed).permutation(valid)
        valid = order[np.unique(ids[order], return_index=True)[1]]
    spent = {"rows": mu / MOST, "not private": math.inf}.get(arm, mu)
    search = PrivateSearch(
        model(), SPACE, mu=spent, n_trials=TRIALS, seed=seed, loss="squared",
        y_range=(0.0, 1.0), y_spread=0.5, refit=False,
    )  # fmt: skip
    begun = time.perf_counter()
    search.fit(X[train], y[train], X_valid=X[valid], y_valid=y[valid], **persons)
    return search.best_params_, time.perf_counter() - begun


def run(seed: int) -> list[dict[str, Any]]:
    """All arms of one seed."""
    arms = [("not private", math.inf)]
    arms += [(arm, mu) for mu in MUS for arm in ("persons", "one row", "rows")]
    train, valid, test = split(table()[2], seed)
    found: list[dict[str, Any]] = []
    for arm, mu in arms:
        params, seconds = recommended(arm, mu, seed)
        told = {"arm": arm, "mu": mu, "seed": seed, "seconds": seconds}
        on = {"validation": loss_of(params, train, valid), "test": loss_of(params, train, test)}
        found.append(told | on)
    for part in ("validation", "test"):
        best = min(row[part] for row in found)
        for row in found:
            row[part] -= best
    return found


def cost(n: int = 20_000, n_trials: int = 20) -> dict[str, float]:
    """Seconds of a trial's own without and with groups, for n rows, and the share that they add.

    Both runs have vectors of n rows; the records' run has n entries, the persons' n / 4, so that
    what the vault and the mechanism save is no merit of groups: only ``entries`` is timed.
    """
    ids, y = np.random.default_rng(0).integers(n // 4, size=n), np.full(n, 0.5)
    space = {"x": optuna.distributions.FloatDistribution(0, 1)}

    def seconds(**groups: Any) -> tuple[float, float]:
        sampler = DPGIBOSampler(mu=1.0, n_trials=n_trials, search_space=space, **groups)
        study, taken = optuna.create_study(sampler=sampler), []

        def objective(trial: Any) -> Any:
            trial.suggest_float("x", 0, 1)
            return y

        private = sampler.private(objective)
        for _ in range(n_trials // 2):
            begun = time.perf_counter()
            study.optimize(private, n_trials=1)
            taken.append(time.perf_counter() - begun)
        session = sampler._state(study).session
        begun = time.perf_counter()
        for _ in range(50):
            session._entries(y)
        return float(np.median(taken)), (time.perf_counter() - begun) / 50

    rows, none = seconds()
    persons, own = seconds(groups=ids)
    return {"rows": rows, "persons": persons, "entries": own, "share": (own - none) / rows}


def main() -> None:
    """Runs everything, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # mu / 30 drowns on purpose
    rows = [row for seed in range(seeds) for row in run(seed)]
    cells = []
    for arm, mu in dict.fromkeys((row["arm"], row["mu"]) for row in rows):
        own = [row for row in rows if (row["arm"], row["mu"]) == (arm, mu)]
        cell: dict[str, Any] = {"arm": arm, "mu": "inf" if math.isinf(mu) else mu}
        for part in ("validation", "test"):
            values = np.array([row[part] for row in own])
            cell[part] = float(values.mean())
            cell[f"{part}, standard error"] = float(values.std(ddof=1) / math.sqrt(len(own)))
        cells.append(cell)
        print(json.dumps(cell))
    sizes = np.bincount(table()[2])
    facts = {"persons": len(sizes), "rows": int(sizes.sum()), "most rows": int(sizes.max())}
    told = {"seeds": seeds, "table": facts, "cells": cells, "cost": cost()}
    print(json.dumps(told["cost"]))
    (RESULTS / "persons.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
