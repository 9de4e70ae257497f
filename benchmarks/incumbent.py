"""How often a run of DP-GIBO ends worse than its incumbent, here named and in the middle.

Four families with d = 2, 4, 15 and 32 parameters and losses in [0, 1], at four values of n mu:

- ``bowl``: :class:`benchmarks.map_problems.Bowl`, smooth. Defaults were chosen on it.
- ``cliff``: 0-1 loss; error .9 beyond a cliff, and near the middle little to gain. The confidence
  of the comparison was chosen on it.
- ``kinked``: a sum of absolute distances to a record's own bottom; chose nothing.
- ``cancer``: a ridge classifier of scikit-learn's breast cancer data, a penalty for each group of
  features, Brier loss; chose nothing.

Reported are the excess over the least mean loss at the incumbent, at the end of the run before
the comparison, and at the recommendation, and how many runs end worse than the incumbent by more
than .01. Neither host nor vault stands around these runs and numpy draws their noise.

    python -m benchmarks.incumbent [--seeds 18] [--jobs 1]

Takes about five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from benchmarks.map_problems import Bowl, Instance
from benchmarks.simulation import followed
from benchmarks.tasks import Row, Task, carried_out
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, make_plan
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"
DS, LEVELS = (2, 4, 15, 32), (30, 70, 210, 700)
FIRST = 7000
"""Seeds from here on: defaults were chosen on smaller ones."""

WORSE = 0.01


class Cliff:
    """0-1 loss: .08 near a bottom, rising by half the squared distance, and .9 beyond a cliff."""

    n_records = 400

    def __init__(self, d: int, seed: int) -> None:
        rng = np.random.default_rng([seed, d])
        few = min(d, 3)
        self.d, self._used = d, rng.permutation(d)[:few]
        self._bottom, self._side = rng.uniform(0.3, 0.7, few), rng.choice([-1, 1], few)
        self._ease = rng.random((self.n_records, 1))

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        x = (U[:, self._used] - self._bottom) * self._side
        error = 0.08 + 0.5 * np.minimum((x * x).sum(1), 1.0)
        return (self._ease < np.where((x > 0.25).any(1), 0.9, error)).astype(float)

    def least(self) -> float:
        """The mean loss at the bottom."""
        bottom = np.full((1, self.d), 0.5)
        bottom[0, self._used] = self._bottom
        return float(self.losses(bottom).mean())


class Kinked:
    """1 - exp(-Σ_j w_j |u_j - c_ij|), with bottoms that scatter by .15 and one weight in three."""

    n_records = 400

    def __init__(self, d: int, seed: int) -> None:
        rng = np.random.default_rng([seed, d])
        w = rng.permutation(np.where(np.arange(d) % 3 == 0, 1.0, 0.05))
        self.d, self._w = d, 3.0 * w / w.sum()
        self._c = rng.uniform(0.1, 0.9, d) + 0.15 * rng.standard_normal((self.n_records, d))

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        return np.stack([-np.expm1(-np.abs(u - self._c) @ self._w) for u in U], axis=1)

    def least(self) -> float:
        """The mean loss at the medians, which is near the least."""
        return float(self.losses(np.median(self._c, 0)[None].clip(0, 1)).mean())


class Cancer:
    """A ridge classifier on 64 features; penalties of d groups between 1e-2 and 1e4."""

    n_records = 400

    def __init__(self, d: int, seed: int) -> None:
        rng = np.random.default_rng([seed, d])
        X, y = load_breast_cancer(return_X_y=True)
        order = rng.permutation(len(y))
        pairs = rng.integers(0, X.shape[1], (34, 2))
        X = scale(np.hstack([X, X[:, pairs[:, 0]] * X[:, pairs[:, 1]]]))[order]
        self.d, self._groups = d, rng.permutation(np.arange(64) % d)
        n_train = len(y) - self.n_records
        A, target = X[:n_train], y[order][:n_train] - 0.5
        self._gram, self._moments = A.T @ A, A.T @ target
        self._X, self._y = X[n_train:], y[order][n_train:]

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        outputs = np.stack([self._X @ self._weights(u) for u in U], axis=1) + 0.5
        return np.asarray((np.clip(outputs, 0.0, 1.0) - self._y[:, None]) ** 2)

    def _weights(self, u: Array) -> Array:
        penalties = np.diag(10 ** (6 * u[self._groups] - 2))
        return np.linalg.solve(self._gram + penalties, self._moments)

    def least(self) -> float:
        """The least mean loss of many points, of which each third refines the best so far."""
        rng, best = np.random.default_rng(0), np.full(self.d, 0.5)
        for width in (1.0, 0.3, 0.1, 0.03):
            U = np.clip(best + width * rng.uniform(-1, 1, (300, self.d)), 0, 1)
            best = min([best, *U], key=lambda u: float(self.losses(u[None]).mean()))
        return float(self.losses(best[None]).mean())


FAMILIES: dict[str, Any] = {"bowl": Bowl, "cliff": Cliff, "kinked": Kinked, "cancer": Cancer}


@cache
def _known(family: str, d: int, seed: int) -> tuple[Instance, float]:
    problem: Instance = FAMILIES[family](d, seed)
    return problem, problem.least()


def run(task: Task) -> Row:
    """One run: excess at the incumbent, at its end and at its recommendation."""
    family, own = task
    warnings.simplefilter("ignore")
    problem, least = _known(family, own["d"], own["seed"])
    space = Space({f"x{j:02d}": Float(0.0, 1.0) for j in range(problem.d)})
    config = GIBOConfig(mu=own["level"] / problem.n_records, incumbent=dict.fromkeys(space, 0.5))
    plan = make_plan(config, space, problem.n_records)
    algorithm = DPGIBO(config, space, seed=own["seed"], plan=plan)
    found = followed(algorithm, problem.losses, own["seed"])
    points = np.array([np.full(problem.d, 0.5), algorithm.state.centre, found])
    names, means = ("incumbent", "end", "recommended"), problem.losses(points).mean(0) - least
    excess = {n: round(float(x), 5) for n, x in zip(names, means, strict=True)}
    return {"family": family, **own, **excess}


def summarise(rows: list[Row]) -> list[Row]:
    """A cell a family, d and n mu."""
    cells: dict[Any, list[Row]] = {}
    for row in rows:
        cells.setdefault((row["family"], row["d"], row["level"]), []).append(row)
    return [
        {"family": family, "d": d, "n_mu": level, "runs": len(of)}
        | {n: round(float(np.mean([row[n] for row in of])), 5)
           for n in ("incumbent", "end", "recommended")}
        | {f"worse, {n}": sum(row[n] > row["incumbent"] + WORSE for row in of)
           for n in ("end", "recommended")}
        for (family, d, level), of in cells.items()
    ]  # fmt: skip


def main() -> None:
    """Runs everything, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=18)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    rows = [
        row
        for family in FAMILIES
        for row in carried_out(
            [(family, {"d": d, "level": level, "seed": FIRST + seed})
             for d in DS for seed in range(given.seeds) for level in LEVELS],
            run, jobs=given.jobs, kept=None,
        )
    ]  # fmt: skip
    cells = summarise(rows)
    for cell in cells:
        print(json.dumps(cell))
    worse = {n: sum(cell[f"worse, {n}"] for cell in cells) for n in ("end", "recommended")}
    print(f"Of {len(rows)} runs, worse by more than {WORSE}: {worse}")
    told = {"runs": len(rows), "worse": worse, "cells": cells}
    (RESULTS / "incumbent.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
