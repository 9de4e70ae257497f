"""scikit-learn's way: an estimator and distributions go in, a private search comes out.

Handwritten digits; 900 of them are held out and are the secret. ``--model`` takes an SVM, or what
follows scikit-learn's conventions elsewhere: XGBoost, LightGBM, or a loop in torch
(``examples.torch_classifier``), where these are installed. Run it with
``python -m examples.demo_sklearn``; it writes ``demo-sklearn.csv``: what was released, which may
be shared.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy.stats import loguniform, randint
from sklearn.svm import SVC

from examples.digits import split
from sklearn_search import PrivateSearch

Model = tuple[Any, dict[str, Any], str]
"""An estimator, what is tuned of it, and the loss that it is tuned by."""


def svc() -> Model:
    """Labels only, so errors are counted."""
    return SVC(), {"C": loguniform(1e-2, 1e3), "gamma": loguniform(1e-5, 1)}, "zero_one"


def xgboost() -> Model:
    """The number of rounds is tuned: stopping early on validation records would void the claim."""
    from xgboost import XGBClassifier

    space = {"learning_rate": loguniform(0.03, 1.0), "n_estimators": randint(5, 41)}
    return XGBClassifier(max_depth=3, n_jobs=1, random_state=0), space, "bounded_log"


def lightgbm() -> Model:
    """As with XGBoost."""
    from lightgbm import LGBMClassifier

    space = {"learning_rate": loguniform(0.03, 1.0), "n_estimators": randint(5, 41)}
    given = {"num_leaves": 7, "n_jobs": 1, "random_state": 0, "verbose": -1}
    return LGBMClassifier(**given), space, "bounded_log"


def torch() -> Model:
    """A plain loop behind ``fit`` and ``predict_proba``."""
    from examples.torch_classifier import TorchClassifier

    space = {"lr": loguniform(1e-3, 1.0), "width": [16, 32, 64]}
    return TorchClassifier(), space, "bounded_log"


MODELS: dict[str, Callable[[], Model]] = {
    "svc": svc,
    "xgboost": xgboost,
    "lightgbm": lightgbm,
    "torch": torch,
}


def main() -> None:
    """Tunes one model, and compares the outcome with what privacy forbids to look at."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=MODELS, default="svc", help="what is tuned")
    parser.add_argument("--mu", type=float, default=1.0, help="total Gaussian DP parameter")
    parser.add_argument("--seed", type=int, default=0, help="drives candidates, never noise")
    parser.add_argument("--trials", type=int, default=30, help="the most trials to run")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for what is written")
    arguments = parser.parse_args()
    estimator, space, loss = MODELS[arguments.model]()
    X, X_valid, y, y_valid = split()

    search = PrivateSearch(
        estimator,
        space,
        mu=arguments.mu,
        loss=loss,
        n_trials=arguments.trials,
        seed=arguments.seed,
        verbose=1,
    )
    search.fit(X, y, X_valid=X_valid, y_valid=y_valid)

    print("\nRecommended:", search.best_params_)
    print("\nGuarantee:", search.guarantee_)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "demo-sklearn.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(search.cv_results_)
        writer.writerows(zip(*search.cv_results_.values(), strict=True))
    print("\nNOT PRIVATE, shown because this is a demo on public data:")
    print(f"  accuracy on the validation records: {search.score(X_valid, y_valid):.3f}")


if __name__ == "__main__":
    main()
