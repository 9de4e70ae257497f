"""A search that chooses by scores: what it releases, shows and refuses."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score, f1_score, r2_score, roc_auc_score

from privbo_plugins import scores
from sklearn_search import PrivateSearch
from tests.sklearn_search.problems import classes

pytestmark = [
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore:Nothing is protected"),
]

SPACE = {"C": loguniform(1e-3, 1e2)}
X, Y = classes(400)


def make_search(estimator=None, space=None, **settings):
    given = {"mu": 1.0, "n_trials": 5, "seed": 0} | settings
    tuned = LogisticRegression() if estimator is None else estimator
    return PrivateSearch(tuned, SPACE if space is None else space, **given)


def exact(search, metric, method="predict", column=None):
    """What a metric says of the held-out half at each evaluated setting, without noise."""
    found = []
    for params in search.cv_results_["params"]:
        model = LogisticRegression(**params).fit(X[:200], Y[:200])
        told = getattr(model, method)(X[200:])
        found.append(metric(Y[200:], told if column is None else told[:, column]))
    return found


def fitted(search):
    return search.fit(X[:200], Y[:200], X_valid=X[200:], y_valid=Y[200:])


def test_without_noise_columns_are_scikit_learns_scores():
    search = fitted(make_search(mu=np.inf, scoring=["f1", "roc_auc", "balanced_accuracy"],
                                refit="roc_auc"))  # fmt: skip
    columns = search.cv_results_
    assert columns["mean_test_f1"] == pytest.approx(exact(search, f1_score))
    area = exact(search, roc_auc_score, "predict_proba", 1)
    assert columns["mean_test_roc_auc"] == pytest.approx(area)
    balanced = exact(search, balanced_accuracy_score)
    assert columns["mean_test_balanced_accuracy"] == pytest.approx(balanced)
    assert columns["rank_test_roc_auc"].min() == 1
    assert search.study_.direction.name == "MAXIMIZE"
    assert [t.value for t in search.study_.trials] == pytest.approx(area)
    assert search.best_score_ == columns["mean_test_roc_auc"][search.best_index_]
    assert len(pd.DataFrame(columns)) == 5


def test_the_spread_of_a_score_is_that_of_its_noise_and_one_score_has_scikit_learns_names():
    search = fitted(make_search(mu=30.0, scoring="f1"))
    assert {"mean_test_score", "std_test_score", "rank_test_score"} <= {*search.cv_results_}
    off = search.cv_results_["mean_test_score"] - exact(search, f1_score)
    assert (np.abs(off) < 6 * search.cv_results_["std_test_score"]).all()
    assert search.guarantee_.protected
    assert "f1, from cells: 4 means" in search.guarantee_.details()
    assert search.score(X, Y) == f1_score(Y, search.predict(X))


def test_classes_are_those_of_the_training_records_and_may_be_named():
    y = np.where(Y == 1, "ill", "well")
    ill = scores.f1(labels=("well", "ill"))
    area = scores.roc_auc(labels=("well", "ill"))
    search = make_search(mu=np.inf, scoring={"F1": ill, "AUC": area}, refit="F1")
    search.fit(X[:200], y[:200], X_valid=X[200:], y_valid=y[200:])
    assert search.cv_results_["mean_test_F1"] == pytest.approx(exact(search, f1_score))
    expected = exact(search, roc_auc_score, "predict_proba", 1)
    assert search.cv_results_["mean_test_AUC"] == pytest.approx(expected)


def test_regressors_have_a_public_range():
    search = make_search(
        Ridge(), {"alpha": loguniform(1e-3, 1e3)}, mu=np.inf, scoring="r2", y_range=(-6, 6)
    )
    y = X[:, 0] + 0.5
    search.fit(X[:200, 1:], y[:200], X_valid=X[200:, 1:], y_valid=y[200:])
    model = Ridge(**search.cv_results_["params"][0]).fit(X[:200, 1:], y[:200])
    expected = max(r2_score(y[200:], model.predict(X[200:, 1:])), -1.0)
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(expected)


class Choosy(ClassifierMixin, BaseEstimator):
    """Predicts no record whose first entry is large."""

    def __init__(self, C=1.0):
        self.C = C

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        if (X[:, 0] > 90).any():
            raise ValueError("a record")
        return (X[:, 0] > 0).astype(int)


def test_a_record_that_no_model_predicts_is_odd_and_decides_nothing_else():
    odd = X.copy()
    odd[300, 0] = 99.0
    search = make_search(Choosy(), mu=np.inf, scoring="accuracy_by_cells", n_trials=2)
    search.scoring = {"a": scores.accuracy()}
    search.fit(X[:200], Y[:200], X_valid=odd[200:], y_valid=Y[200:])
    right = (odd[200:, 0] > 0) == Y[200:]
    right[100] = False
    assert search.cv_results_["mean_test_score"] == pytest.approx([right.mean()] * 2)


class Moody(LogisticRegression):
    """Cannot be fitted with a small C."""

    def fit(self, X, y):
        if self.C < 3.0:
            raise ValueError("too small")
        return super().fit(X, y)


def test_fits_that_fail_count_as_the_worst_score():
    search = make_search(Moody(), mu=np.inf, scoring="f1", error_score=np.nan, n_trials=8)
    with pytest.warns(FitFailedWarning):
        fitted(search)
    columns = search.cv_results_
    failed = np.array([params["C"] < 3.0 for params in columns["params"]])
    assert 0 < failed.sum() < 8
    assert (columns["mean_test_score"][failed] == 0.0).all()
    assert (columns["mean_test_score"][~failed] > 0.5).all()


def test_scores_are_of_records():
    with pytest.raises(ValueError, match="scores= are of records"):
        make_search(scoring="f1").fit(X, Y, groups=np.arange(400) // 2)
