"""What the three applications share: records in three parts, a private search, a comparison.

Each of ``examples.clinical``, ``examples.loans`` and ``examples.handwriting`` declares one
:class:`Application` and runs it. Training records fit models, validation records are the secret
that the search protects, and test records are looked at once, after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from sklearn.base import clone

from privbo_plugins import cli, losses
from sklearn_search import PrivateSearch

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Application:
    """A model, what is tuned of it, and the records.

    Attributes:
        name: Of the study and of the files that are written.
        estimator: As somebody would use it who does not tune.
        space: What is tuned, as ``PrivateSearch`` takes it.
        loss: "brier" or "zero_one".
        records: Features (n, ...) and targets (n,), in the order of the package that ships them.
        n_train: Records that fit models.
        n_valid: Records that are protected; the rest are test records.
        n_trials: The most trials.
    """

    name: str
    estimator: Any
    space: Mapping[str, Any]
    loss: str
    records: Callable[[], tuple[Any, Any]]
    n_train: int
    n_valid: int
    n_trials: int = 80


@dataclass(frozen=True, repr=False, eq=False)
class Parts:
    """Records by what they are for."""

    X: Any
    y: Any
    X_valid: Any
    y_valid: Any
    X_test: Any
    y_test: Any


def parts(application: Application, split: int = 0) -> Parts:
    """The records in three parts, told apart by their places alone.

    Args:
        application: Whose records.
        split: Number of the split; the same number gives the same parts.
    """
    X, y = application.records()
    order = np.random.default_rng(split).permutation(len(y))
    first, second = application.n_train, application.n_train + application.n_valid
    cut = [(X[own], y[own]) for own in np.split(order, [first, second])]
    return Parts(*cut[0], *cut[1], *cut[2])


def losses_of(
    application: Application, own: Parts, params: Mapping[str, Any] | None = None
) -> tuple[Array, Array]:
    """Losses of each validation record and of each test record. Not private.

    Args:
        application: Whose model and loss.
        own: The records.
        params: What is tuned; None for the estimator as it is.
    """
    model = clone(application.estimator).set_params(**(params or {})).fit(own.X, own.y)
    return (
        _losses(application, model, own.X_valid, own.y_valid),
        _losses(application, model, own.X_test, own.y_test),
    )


def _losses(application: Application, model: Any, X: Any, y: Any) -> Array:
    if application.loss == "brier":
        return losses.brier(y, model.predict_proba(X), labels=model.classes_)
    return losses.zero_one(y, model.predict(X))


def search(application: Application, own: Parts, **given: Any) -> PrivateSearch:
    """A finished private search.

    Args:
        application: What is tuned.
        own: The records; test records stay out of it.
        **given: ``mu`` and further settings of ``PrivateSearch``.
    """
    found = PrivateSearch(application.estimator, application.space, loss=application.loss, **given)
    return found.fit(own.X, own.y, X_valid=own.X_valid, y_valid=own.y_valid)


def without_privacy(
    application: Application, own: Parts, study: Any, n_trials: int
) -> dict[str, Any]:
    """What TPESampler finds in as many trials with the true mean losses.

    Args:
        application: What is tuned.
        own: The records.
        study: A study of the private search, for its distributions.
        n_trials: Number of trials.
    """
    plain = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    for _ in range(n_trials):
        trial = plain.ask(study.trials[0].distributions)
        plain.tell(trial, float(losses_of(application, own, trial.params)[0].mean()))
    return dict(plain.best_params)


def main(application: Application, description: str | None) -> None:
    """Runs the search, writes the report and the certificate, and compares."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", 1)[0])
    parser.add_argument("--mu", type=float, default=1.0, help="total Gaussian DP parameter")
    parser.add_argument("--seed", type=int, default=0, help="drives candidates, never noise")
    parser.add_argument("--trials", type=int, default=application.n_trials, help="the most")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for what is written")
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    own = parts(application)
    found = _kept(application, own, given)
    print("\nRecommended:", {name: f"{value:.3g}" for name, value in found.best_params_.items()})
    print("\nGuarantee:", found.guarantee_)
    study = found.study_
    plain = without_privacy(application, own, study, len(study.trials))
    print(f"\nNOT PRIVATE, shown because the data are public: mean {application.loss} loss of")
    arms = {"no tuning": None, "private": found.best_params_, "TPE, not private": plain}
    for arm, params in arms.items():
        valid, test = (own_losses.mean() for own_losses in losses_of(application, own, params))
        print(f"  {arm:17} {valid:.4f} on validation records, {test:.4f} on test records")


def _kept(application: Application, own: Parts, given: argparse.Namespace) -> PrivateSearch:
    """The search, with its study, vault, report and certificate as files."""
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / application.name
    study, vault = Path(f"{path}.db"), Path(f"{path}-private.db")
    for file in (study, vault):
        file.unlink(missing_ok=True)
    found = search(
        application,
        own,
        mu=given.mu,
        seed=given.seed,
        n_trials=given.trials,
        storage=f"sqlite:///{study}",
        study_name=application.name,
        vault=f"sqlite:///{vault}",
        verbose=1,
    )
    sampler = found.study_.sampler
    sampler.purge(found.study_)
    print("Report:", sampler.report(found.study_, Path(f"{path}-report.html")))
    files = [f"{path}-certificate.json", f"{path}-certificate.md"]
    if cli.main(["certificate", "--vault", f"sqlite:///{vault}", "--out", *files]):
        raise SystemExit(1)
    return found
