"""Choosing by a released score, beside choosing without privacy, where positives are few.

Forty settings of a model are fitted on n records once a table; n others validate, and 20,000 judge
what was chosen. A setting is chosen by the largest of forty released values at mu in all: of F1,
AUC or balanced accuracy (the mechanism and its noise are the engine's), or of the Brier score as
one mean; and by the same score without noise. Reported are the F1 and the AUC of what was chosen
on the records that judge, means over seeds with standard errors, beside the best and the median
setting. Of two scores at once, the front of forty released pairs is judged: the area that it
dominates, of 1, beside those of the front without noise and of all settings. Tables are synthetic:
20 columns, of which 8 tell something, 2 % of labels are random.

    python -m benchmarks.scores [--seeds 10] [--sizes 1000 10000 100000]

Cells of other sizes stay as they are. All take some 40 minutes on one core.
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
from optuna._hypervolume import compute_hypervolume
from optuna.study._multi_objective import _is_pareto_front
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from tqdm.auto import tqdm

from privbo_plugins import scores
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.scores import Predictions, Score
from privbo_plugins.scores.score import (
    estimates,
    evaluated,
    joined_means,
    rows_of,
    scales_of,
    statistics_of,
)

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"
SIZES, SHARES, MUS = (1000, 10_000, 100_000), (0.02, 0.1, 0.5), (0.3, 1, 3)
SETTINGS, JUDGES, BINS = 40, 20_000, 200
CHOOSE_BY = ("f1", "roc_auc", "balanced_accuracy", "neg_brier_score")
GROUPS = "a", "b"
FRONTS: Mapping[str, Sequence[Score]] = {
    "F1 and calibration error": [scores.f1(), scores.expected_calibration_error()],
    "balanced accuracy and gap": [
        scores.balanced_accuracy(), scores.demographic_parity_difference(GROUPS),
    ],
}  # fmt: skip


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


def predicted(y: Array, p: Array, group: Array) -> Predictions:
    """What scores take of some records."""
    return scores.predictions(y, predicted=(p > 0.5).astype(int), probabilities=p, group=group)


def binned(X: Array, n: int) -> Array:
    """Bins by quantiles of the first n records; the model's own, of weighted records, are slow."""
    edges = np.quantile(X[:n], np.linspace(0, 1, BINS)[1:-1], axis=0)
    columns = zip(edges.T, X.T, strict=True)
    return np.stack([np.searchsorted(own, x) for own, x in columns], axis=1).astype(float)


def fitted(n: int, share: float, seed: int) -> dict[str, list[tuple[Predictions, Predictions]]]:
    """Predictions for the records that validate and for those that judge, by kind of model."""
    X, y = make_classification(
        2 * n + JUDGES, 20, n_informative=8, weights=[1 - share], flip_y=0.02, random_state=seed
    )
    group = np.where(X[:, 0] > 0, *GROUPS)
    found: dict[str, list[tuple[Predictions, Predictions]]] = {"logistic": [], "boosting": []}
    inputs = {"logistic": X, "boosting": binned(X, n)}
    for kind, model, weight in models(np.random.default_rng(seed)):
        own = inputs[kind]
        model.fit(own[:n], y[:n], sample_weight=np.where(y[:n] == 1, weight, 1.0))
        p = model.predict_proba(own[n:])[:, 1]
        validating, judging = (
            predicted(y[n:][part], p[part], group[n:][part]) for part in (slice(n), slice(n, None))
        )
        found[kind].append((validating, judging))
    return found


def exact_means(listed: Sequence[Score], told: Sequence[Predictions]) -> Array:
    """What a release of each setting adds noise to, shape (settings, numbers)."""
    statistics, n = statistics_of(listed), len(told[0].y_true)
    scales = scales_of(statistics, n)
    return np.array([joined_means([rows_of(listed, one)], statistics, scales) for one in told])


def released(
    listed: Sequence[Score], means: Array, n: int, mu: float, rng: np.random.Generator
) -> Array:
    """The scores of each setting, under the noise of one of as many releases."""
    J, share = math.sqrt(len(statistics_of(listed))), mu / math.sqrt(len(means))
    noise = gaussian_scale(J, share) if mu < math.inf else 0.0
    shown = []
    for own in means:
        noisy = own + noise * rng.standard_normal(len(own))
        found = estimates(listed, evaluated(listed, noisy.tolist(), n, noise))
        shown.append([found[score.name].value for score in listed])
    return np.array(shown)


def dominated(
    listed: Sequence[Score], means: Array, n: int, judge: Array, mu: float,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """The area that those dominate, where they are judged, which are the front of the released."""
    signs = np.array([1.0 if score.greater_is_better else -1.0 for score in listed])
    front = _is_pareto_front(-signs * released(listed, means, n, mu, rng), False)
    worst = [score.worst for score in listed]
    return float(compute_hypervolume(-signs * judge[front], -signs * np.array(worst)))


def judged(n: int, share: float, seed: int) -> dict[str, dict[str, list[float]]]:
    """F1 and AUC of what each way chooses, and what fronts dominate, by kind of model."""
    made, rng, out = fitted(n, share, seed), np.random.default_rng([seed, n]), {}
    for kind, settings in made.items():
        told, judges = zip(*settings, strict=True)
        figures = np.array(
            [
                (f1_score(one.y_true, one.predicted), roc_auc_score(one.y_true, one.probabilities))
                for one in judges
            ]
        )
        own = {"best": figures.max(axis=0), "median": np.median(figures, axis=0)}
        for name in CHOOSE_BY:
            score = [scores.named(name)]
            means = exact_means(score, told)
            for mu in (*MUS, math.inf):
                place = int(np.argmax(released(score, means, n, mu, rng)))
                own[f"{name}, mu = {mu:g}"] = figures[place]
        for name, listed in FRONTS.items():
            ideal, means = exact_means(listed, judges), exact_means(listed, told)
            exact = released(listed, ideal, JUDGES, math.inf, rng)
            own[f"{name}, all"] = [dominated(listed, ideal, JUDGES, exact, math.inf, rng)]
            for mu in (*MUS, math.inf):
                own[f"{name}, mu = {mu:g}"] = [dominated(listed, means, n, exact, mu, rng)]
        out[kind] = {way: [float(x) for x in found] for way, found in own.items()}
    return out


def summary(runs: Sequence[Mapping[str, Mapping[str, list[float]]]]) -> dict[str, Any]:
    """Means and standard errors of F1 and AUC over seeds."""
    told: dict[str, Any] = {}
    for kind in runs[0]:
        for way in runs[0][kind]:
            found = np.array([run[kind][way] for run in runs])
            mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / math.sqrt(len(found))
            names = ["f1", "auc"] if len(mean) == 2 else ["area"]
            told.setdefault(kind, {})[way] = {
                key: round(float(x), 4)
                for name, own in zip(names, zip(mean, error, strict=True), strict=True)
                for key, x in zip((name, f"{name}_error"), own, strict=True)
            }
    return told


def main() -> None:
    """Runs the benchmark and writes ``results/scores.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=SIZES)
    given = parser.parse_args()
    cells, path = [(n, share) for n in given.sizes for share in SHARES], RESULTS / "scores.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    for n, share in tqdm(cells):
        runs = [judged(n, share, seed) for seed in tqdm(range(given.seeds), leave=False)]
        cell = {"seeds": given.seeds, **summary(runs)}
        found["cells"][f"n = {n}, {share:.0%} positive"] = cell
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
