"""The examples' task: an SVM on handwritten digits, whose 900 validation images are the secret.

Its own module, so that a cluster's workers import it and load the records themselves, instead of
receiving them inside a pickled function.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from tqdm import tqdm

N_VALID = 900
"""Validation records; 897 others train."""


@lru_cache(maxsize=1)
def split() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """X_train, X_valid, y_train, y_valid: the same rows in the same order in every process."""
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X, y, test_size=N_VALID, random_state=0)
    return parts[0], parts[1], parts[2], parts[3]


def losses(C: float, gamma: float) -> NDArray[np.float64]:
    """One 0-1 loss per validation record, shape (900,)."""
    X_train, X_valid, y_train, y_valid = split()
    model = SVC(C=C, gamma=gamma).fit(X_train, y_train)
    return np.asarray(model.predict(X_valid) != y_valid, dtype=float)


def best_on_grid() -> tuple[float, float, float]:
    """(error, C, gamma) of the best of 11 x 15 grid points. Not private."""
    grid = list(itertools.product(np.geomspace(1e-2, 1e3, 11), np.geomspace(1e-5, 1e2, 15)))
    progress = tqdm(grid, desc="grid without privacy", leave=False)
    return min((float(losses(C, gamma).mean()), float(C), float(gamma)) for C, gamma in progress)


def print_truth(recommended: dict[str, float]) -> None:
    """Compares a recommendation with what privacy forbids to look at."""
    error, C, gamma = best_on_grid()
    print("\nNOT PRIVATE, shown because this is a demo on public data:")
    print(f"  true validation error of the recommendation: {losses(**recommended).mean():.4f}")
    print(f"  best of a non-private grid of 165 points:    {error:.4f}", end=" ")
    print(f"(C={C:.3g}, gamma={gamma:.3g})")
