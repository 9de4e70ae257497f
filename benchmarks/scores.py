"""Choosing by a released score, beside choosing without privacy, where positives are few.

Forty settings of a model are fitted on n records once a table; n others validate, and 20,000 judge
what was chosen. A setting is chosen by the largest of forty released values at mu in all: of F1,
AUC or balanced accuracy (the mechanism and its noise are the engine's), or of the Brier score as
one mean; and by the same score without noise. Reported are the F1 and the AUC of what was chosen
on the records that judge, means over seeds with standard errors, beside the best and the median
setting. Tables are synthetic: 20 columns, of which 8 tell something, 2 % of labels are random.

    python -m benchmarks.scores [--seeds 10] [--largest 100000]

Takes about a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from tqdm.auto import tqdm

from privbo_plugins import scores
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.scores.score import (
    estimates,
    joined_means,
    rows_of,
    scales_of,
    statistics_of,
)

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"
SIZES, SHARES, MUS = (1000, 10_000, 100_000), (0.02, 0.1, 0.5), (0.3, 1, 3)
SETTINGS, JUDGES = 40, 20_000
CHOOSE_BY = ("f1", "roc_auc", "balanced_accuracy", "neg_brier_score")


def models(rng: np.random.Generator) -> Iterator[tuple[str, Any, float]]:
    """Yields forty settings of either kind: its name, a model and the weight of positives."""
    for _ in range(SETTINGS):
        weight = float(np.exp(rng.uniform(0, np.log(30))))
        C = float(np.exp(rng.uniform(np.log(1e-4), np.log(1e2))))
        yield "logistic", LogisticRegression(C=C, max_iter=200), weight
    for seed in range(SETTINGS):
        weight = float(np.exp(rng.uniform(0, np.log(30))))
        boosted = HistGradientBoostingClassifier(
            learning_rate=float(np.exp(rng.uniform(np.log(0.02), np.log(0.5)))),
            max_leaf_nodes=int(rng.integers(3, 32)), max_iter=40, early_stopping=False,
            random_state=seed,
        )  # fmt: skip
        yield "boosting", boosted, weight


def fitted(n: int, share: float, seed: int) -> dict[str, list[tuple[Array, float, float]]]:
    """Probabilities for the records that validate, and F1 and AUC on those that judge, by kind."""
    X, y = make_classification(
        2 * n + JUDGES, 20, n_informative=8, weights=[1 - share], flip_y=0.02, random_state=seed
    )
    found: dict[str, list[tuple[Array, float, float]]] = {"logistic": [], "boosting": []}
    for kind, model, weight in models(np.random.default_rng(seed)):
        model.fit(X[:n], y[:n], sample_weight=np.where(y[:n] == 1, weight, 1.0))
        p = model.predict_proba(X[n:])[:, 1]
        truth = y[2 * n :], p[n:]
        figures = f1_score(truth[0], truth[1] > 0.5), roc_auc_score(*truth)
        found[kind].append((p[:n], *map(float, figures)))
    found["labels"] = [(y[n : 2 * n], 0.0, 0.0)]
    return found


def released(name: str, told: list[Any], mu: float, rng: np.random.Generator) -> list[float]:
    """The score of each setting, under the noise of one of as many releases."""
    score, n = scores.named(name), len(told[0].y_true)
    statistics = statistics_of([score])
    noise = gaussian_scale(1.0, mu / math.sqrt(len(told))) if mu < math.inf else 0.0
    shown = []
    for one in told:
        exact = joined_means([rows_of([score], one)], statistics, scales_of(statistics, n))
        noisy = exact + noise * rng.standard_normal(len(exact))
        shown.append(estimates([score], noisy.tolist(), n, noise)[name].value)
    return shown


def judged(n: int, share: float, seed: int) -> dict[str, dict[str, list[float]]]:
    """F1 and AUC of what each way chooses, by kind of model."""
    made, rng, out = fitted(n, share, seed), np.random.default_rng([seed, n]), {}
    ((labels, _, _),) = made.pop("labels")
    for kind, settings in made.items():
        told = [
            scores.predictions(labels, predicted=(p > 0.5).astype(int), probabilities=p)
            for p, *_ in settings
        ]
        figures = np.array([own for _, *own in settings])
        own = {"best": figures.max(axis=0), "median": np.median(figures, axis=0)}
        for name in CHOOSE_BY:
            for mu in (*MUS, math.inf):
                place = int(np.argmax(released(name, told, mu, rng)))
                own[f"{name}, mu = {mu:g}"] = figures[place]
        out[kind] = {way: [float(x) for x in found] for way, found in own.items()}
    return out


def summary(runs: Sequence[Mapping[str, Mapping[str, list[float]]]]) -> dict[str, Any]:
    """Means and standard errors of F1 and AUC over seeds."""
    told: dict[str, Any] = {}
    for kind in runs[0]:
        for way in runs[0][kind]:
            found = np.array([run[kind][way] for run in runs])
            error = found.std(axis=0, ddof=1) / math.sqrt(len(found)) if len(found) > 1 else [0, 0]
            told.setdefault(kind, {})[way] = {
                "f1": round(float(found[:, 0].mean()), 4), "f1_error": round(float(error[0]), 4),
                "auc": round(float(found[:, 1].mean()), 4), "auc_error": round(float(error[1]), 4),
            }  # fmt: skip
    return told


def main() -> None:
    """Runs the benchmark and writes ``results/scores.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    given = parser.parse_args()
    cells = [(n, share) for n in SIZES if n <= given.largest for share in SHARES]
    found: dict[str, Any] = {"settings": SETTINGS, "cells": {}}
    for n, share in tqdm(cells):
        seeds = max(2, given.seeds if n < SIZES[-1] else given.seeds // 5)
        runs = [judged(n, share, seed) for seed in tqdm(range(seeds), leave=False)]
        found["cells"][f"n = {n}, {share:.0%} positive"] = {"seeds": seeds, **summary(runs)}
        (RESULTS / "scores.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
