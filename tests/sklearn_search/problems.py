"""Small problems, and estimators that tell what is done to them."""

from __future__ import annotations

import functools
import math
import pickle
import warnings
from typing import Any, ClassVar
from unittest import mock

import numpy as np
from optuna.distributions import FloatDistribution
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ShuffleSplit

import sklearn_search._optuna as of_optuna
from optuna_samplers import DPGIBOSampler
from sklearn_search import PrivateSearch
from tests.independence.sealed import Deaf
from tests.inside import n_compared, session_of, unspent
from tests.leaks.scanner import Scanner

N = 240
SPACE = {"C": FloatDistribution(1e-3, 1e3, log=True)}


def classes(n=N, seed=1):
    """Two overlapping clouds, labels 0 and 1."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    return rng.normal(size=(n, 3)) + 0.8 * y[:, None], y


def see_fit(seen, search, X, labels, **persons):
    """Fits under noise that hears nothing, and adds all that this leaves in public."""
    deaf = functools.partial(DPGIBOSampler, noise=Deaf())
    with mock.patch.object(of_optuna, "DPGIBOSampler", deaf), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen.telling(search.fit)(X, labels, **persons)
    seen.add_guarantee(search.guarantee_)
    shown = {name: value for name, value in vars(search).items() if name != "study_"}
    seen.add("texts", "what it shows", repr(shown))
    seen.add("pickles", "the search", pickle.dumps(shown))
    trials = [(t.params, t.values, t.user_attrs, t.state) for t in search.study_.trials]
    seen.add("storage", "the study", repr((trials, search.study_.user_attrs)))


def targets(n=N):
    """A line with noise, in [0, 10]."""
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(n, 2))
    return X, np.clip(5 + 4 * X[:, 0] - 4 * X[:, 1] + rng.normal(size=n), 0, 10)


def shares(n=120):
    """Records and targets in (0, 1)."""
    rng = np.random.default_rng(8)
    X = rng.uniform(0.1, 0.5, size=(n, 2))
    return X, 0.4 * X[:, 0] + rng.uniform(0.2, 0.7, size=n)


def halves(n=N, random_state=0):
    """Places that train and places that are held out, as the page says."""
    ((train, valid),) = ShuffleSplit(1, test_size=0.5, random_state=random_state).split(range(n))
    return np.sort(train), np.sort(valid)


def lasting(folder, **more):
    """Settings of a study that is gone on with, and of its vault; both lie in a folder."""
    return {
        "storage": f"sqlite:///{folder}/study.db", "study_name": "s", "load_if_exists": True,
        "vault": f"sqlite:///{folder}/private.db", **more,
    }  # fmt: skip


def make_search(estimator=None, space=None, **settings):
    """A search of few trials."""
    given = {"mu": 1.0, "n_trials": 8, "seed": 3} | settings
    tuned = LogisticRegression() if estimator is None else estimator
    return PrivateSearch(tuned, SPACE if space is None else space, **given)


def exact_search(*args, **settings):
    """The same without noise: what is released is what was computed."""
    return make_search(*args, **({"mu": math.inf} | settings))


def session_behind(search):
    """What holds the records of a search on Optuna."""
    return session_of(search.study_.sampler, search.study_)


def whole_budget(search):
    """Square of the mu that a search has spent, or has kept for points that were not compared."""
    session = session_behind(search)
    left = unspent(session.plan, n_compared(session.releases()))
    return search.guarantee_.mu_spent**2 + left


def left_out(search):
    """Trials of a plan for which values have named no further point to compare."""
    session = session_behind(search)
    return session.plan.n_last - n_compared(session.releases())


def shown_by(search, name="loss"):
    """To the setting of each trial what a column has of it."""
    return zip(search.cv_results_["params"], search.cv_results_[name], strict=True)


def scanner_of(X, places, y=None):
    """Finds the first entries of some records, and their targets."""
    scanner = Scanner()
    for i in places:
        scanner.add_number(f"X[{i}, 0]", X[i, 0])
        if y is not None:
            scanner.add_number(f"y[{i}]", y[i])
    return scanner


class Telling(ClassifierMixin, BaseEstimator):
    """A classifier that predicts ones, and notes what it was fitted with."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, a=0.5, fails=False, chokes=False):
        self.a, self.fails, self.chokes = a, fails, chokes

    def fit(self, X, y, sample_weight=None, note=""):
        Telling.seen.append(
            {"X": np.asarray(X), "y": y, "weight": sample_weight, "note": note, "a": self.a}
        )
        if self.fails:
            raise ValueError(f"cannot be fitted to {X[0]}")
        self.classes_ = np.unique(y)
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        if self.chokes:
            raise ValueError(f"cannot predict {X[0]}")
        return np.ones(len(X), dtype=int)


class Ends(Telling):
    """Ends its n-th fit from now on as it is told; the count is the class's, for clones."""

    left = 0
    raised: type[BaseException] = RuntimeError

    def fit(self, X, y):
        Ends.left -= 1
        if Ends.left == 0:
            raise Ends.raised("in the middle")
        return super().fit(X, y)
