"""Small problems, and estimators that tell what is done to them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from optuna.distributions import FloatDistribution
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ShuffleSplit

from sklearn_search import PrivateSearch

N = 240
SPACE = {"C": FloatDistribution(1e-3, 1e3, log=True)}


def classes(n: int = N, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping clouds, labels 0 and 1."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    return rng.normal(size=(n, 3)) + 0.8 * y[:, None], y


def targets(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """A line with noise, in [0, 10]."""
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(n, 2))
    return X, np.clip(5 + 4 * X[:, 0] - 4 * X[:, 1] + rng.normal(size=n), 0, 10)


def halves(n: int = N, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Places that train and places that are held out, as the page says."""
    ((train, valid),) = ShuffleSplit(1, test_size=0.5, random_state=random_state).split(range(n))
    return np.sort(train), np.sort(valid)


def make_search(estimator: Any = None, space: Any = None, **settings: Any) -> PrivateSearch:
    """A search of few trials."""
    given = {"mu": 1.0, "n_trials": 8, "seed": 3} | settings
    tuned = LogisticRegression() if estimator is None else estimator
    return PrivateSearch(tuned, SPACE if space is None else space, **given)


def exact_search(*args: Any, **settings: Any) -> PrivateSearch:
    """The same without noise: what is released is what was computed."""
    return make_search(*args, **({"mu": math.inf} | settings))


class Telling(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that predicts ones, and notes what it was fitted with."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, a: Any = 0.5, fails: bool = False, chokes: bool = False) -> None:
        self.a, self.fails, self.chokes = a, fails, chokes

    def fit(self, X: Any, y: Any, sample_weight: Any = None, note: str = "") -> Telling:
        Telling.seen.append(
            {"X": np.asarray(X), "y": y, "weight": sample_weight, "note": note, "a": self.a}
        )
        if self.fails:
            raise ValueError(f"cannot be fitted to {X[0]}")
        self.classes_ = np.unique(y)
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: Any) -> Any:
        if self.chokes:
            raise ValueError(f"cannot predict {X[0]}")
        return np.ones(len(X), dtype=int)
