"""A search that chooses by scores: what it releases, shows and refuses."""

import pickle
import re
import warnings
from functools import partial

import numpy as np
import optuna
import pandas as pd
import pytest
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    make_scorer,
    r2_score,
    recall_score,
    roc_auc_score,
)

from privbo_plugins import scores
from privbo_plugins.errors import BudgetExceededError, ObjectiveFailedError, UtilityWarning
from sklearn_search import PrivateSearch
from tests.sklearn_search.problems import classes, lasting, shown_by

pytestmark = [
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore:Nothing is protected"),
]

SPACE = {"C": loguniform(1e-3, 1e2)}
X, Y = classes(400)
BACKEND = "optuna"  # raytune_searchers/test_sklearn_search.py has some on Ray


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
    told = "f1 (1 is positive), from cells: 5 means with noise of sd 0.0"
    assert told in search.guarantee_.details()
    assert search.score(X, Y) == pytest.approx(f1_score(Y, search.predict(X)))


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

    def __init__(self, C=1.0, error=ValueError):
        self.C, self.error = C, error

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        if (X[:, 0] > 90).any():
            raise self.error("a record")
        return (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_record_that_no_model_predicts_is_odd_and_decides_nothing_else(error):
    odd = X.copy()
    odd[300, 0] = 99.0
    search = make_search(Choosy(error=error), mu=np.inf, scoring="accuracy_by_cells", n_trials=2)
    search.scoring = {"a": scores.accuracy()}
    search.fit(X[:200], Y[:200], X_valid=odd[200:], y_valid=Y[200:])
    right = (odd[200:, 0] > 0) == Y[200:]
    right[100] = False
    assert search.cv_results_["mean_test_score"] == pytest.approx([right.mean()] * 2)


@pytest.mark.parametrize("odd", [np.nan, np.inf, "n/a", None])
def test_a_loss_of_ones_own_that_fails_for_a_record_fails_for_it_alone(odd):
    def off(y, told):
        return np.array([min(abs(int(own) - p), 1.0) for own, p in zip(y, told, strict=True)])

    y = np.arange(400.0) % 2
    other = [*y[200:300].tolist(), odd, *y[301:].tolist()]
    search = make_search(
        Ridge(), {"alpha": [1.0, 2.0]}, mu=np.inf, loss=off, loss_bound=1.0, n_trials=2,
        method="released-means",
    )  # fmt: skip
    search.fit(X[:200], y[:200], X_valid=X[200:], y_valid=other)
    for params, released in shown_by(search):
        exact = off(y[200:], Ridge(**params).fit(X[:200], y[:200]).predict(X[200:]))
        exact[100] = 1.0
        assert released == pytest.approx(exact.mean())
    search = clone(search).fit(X[:200], y[:200], X_valid=X[200:], y_valid=[odd] * 200)
    assert search.cv_results_["loss"].tolist() == [1.0, 1.0]  # that all fail refuses nothing
    hopeless = clone(search).set_params(loss=lambda y, told: 1 / 0)
    with pytest.raises(ObjectiveFailedError, match="withheld"):
        hopeless.fit(X[:200], y[:200], X_valid=X[200:], y_valid=other)


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


def test_constraints_and_a_last_score_of_the_model_that_is_handed_out():
    settings = {
        "scoring": ["precision", "recall"], "refit": "precision", "constraints": {"recall": 0.9},
        "feasible_with": 0.8, "final_score": "roc_auc", "final_share": 0.36, "n_trials": 8,
        "param_distributions": {"C": loguniform(1e-3, 1e2), "class_weight": [{0: 3.0}, {1: 3.0}]},
    }  # fmt: skip
    np.random.seed(0)  # noqa: NPY002 - Tune draws configurations by it
    search = make_search(mu=100.0, backend=BACKEND).set_params(**settings)
    fitted(search)
    at = search.best_index_
    assert search.cv_results_["mean_test_recall"][at] > 0.9
    exact = roc_auc_score(Y[200:], search.predict_proba(X[200:])[:, 1])
    assert 0 < search.cv_results_["std_test_recall"][at] < 0.01
    value, sd = search.final_score_
    assert abs(value - exact) < 6 * sd
    assert search.guarantee_.mu_spent == pytest.approx(100.0)
    assert search.guarantee_.n_releases == 9
    assert pickle.loads(pickle.dumps(search)).final_score_ == search.final_score_
    none = clone(search).set_params(final_score=None, final_share=None, backend="optuna")
    assert not hasattr(fitted(none), "final_score_")


def test_a_filter_that_makes_errors_of_warnings_loses_nothing_that_was_paid_for():
    settings = {"scoring": ["f1", "recall"], "refit": "f1", "constraints": {"recall": 1.0}}
    search = make_search(n_trials=2, backend=BACKEND, **settings)
    with warnings.catch_warnings(record=True) as heard:
        warnings.filterwarnings("ignore")
        warnings.filterwarnings("error", "No trial keeps", UtilityWarning)
        fitted(search)
    assert "lack the least" in str([one.message for one in heard])
    assert search.best_params_


def test_the_last_score_is_of_the_very_model_and_paid_for_without_one_too():
    fits = []

    class Counting(LogisticRegression):
        def fit(self, X, y):
            fits.append(self)
            return super().fit(X, y)

    search = make_search(Counting(), n_trials=3, final_score=scores.f1(),
                         method="released-means")  # fmt: skip
    fitted(search)
    assert len(fits) == 4
    assert search.best_estimator_ is fits[-1]
    search = fitted(clone(search).set_params(refit=False, training_mu=0.1))
    assert len(fits) == 8
    assert search.guarantee_.trainings[0][1] == 4
    assert search.final_score_.sd > 0
    assert not hasattr(search, "best_estimator_")


def test_a_last_score_is_replayed_and_no_other_is_released(tmp_path):
    kept = lasting(tmp_path, scoring="f1")
    first = fitted(make_search(final_score="roc_auc", **kept))
    with pytest.warns(UtilityWarning, match="is shown again"):
        again = fitted(make_search(final_score="roc_auc", **kept))
    assert again.final_score_ == first.final_score_
    assert again.guarantee_.mu_spent == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError):
        fitted(make_search(final_score="recall", **kept))


def test_the_name_of_a_listed_score_means_that_one_with_its_labels():
    y = np.where(Y == 1, "ill", "well")
    for listed in (scores.f1(labels=("well", "ill")), {"f1": scores.f1(labels=("well", "ill"))}):
        search = make_search(scoring=listed, final_score="f1", mu=np.inf, final_share=0.2)
        search.fit(X[:200], y[:200], X_valid=X[200:], y_valid=y[200:])
        told = f1_score(y[200:], search.predict(X[200:]), pos_label="ill")
        assert search.final_score_.value == pytest.approx(told)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"constraints": {"recall": 0.5}}, "constraints= needs method="),
        ({"feasible_with": 0.5}, "feasible_with= needs method="),
        ({"final_score": "f1"}, "final_score= needs method="),
        ({"final_share": 0.2, "scoring": "f1"}, "give both"),
        ({"final_share": 0.0, "scoring": "f1", "final_score": "f1"}, "keeps nothing"),
        ({"final_score": "f2", "scoring": "f1"}, "There is no score"),
        ({"constraints": {"recall": 0.5}, "scoring": "f1"}, "got 'recall'; known: 'f1'"),
        ({"final_score": "f1", "protect": "all"}, "leave it out"),
        ({"scoring": "cost"}, "needs settings that are public"),
        ({"scoring": "demographic_parity_difference"}, "needs settings that are public"),
        ({"scoring": scores.demographic_parity_difference("ab")}, "is not given: tune by gaps"),
        ({"scoring": "r2"}, r"y_range=\(low, high\)"),
        ({"scoring": "f1_score"}, "did you mean 'f1'"),
        ({"scoring": "mcc"}, "matthews_corrcoef"),
        ({"scoring": {"a": make_scorer(f1_score)}}, "got a _Scorer: scikit-learn's own"),
        ({"scoring": [f1_score]}, "got a function"),
    ],
)
def test_constraints_and_last_scores_that_make_no_sense_are_refused_before_any_fit(settings, why):
    with pytest.raises(ValueError, match=why):
        make_search(Unfitted(), **settings).fit(X, Y)


def test_a_score_of_classes_is_none_of_a_regressor():
    with pytest.raises(ValueError, match="Ridge predicts numbers"):
        make_search(Ridge(), {"alpha": loguniform(1e-3, 1e3)}, scoring="f1").fit(X, Y)


class Unfitted(LogisticRegression):
    """Was not to be fitted."""

    def fit(self, X, y):
        raise AssertionError


def test_scores_are_of_records():
    with pytest.raises(ValueError, match="one row each"):
        make_search(scoring="f1", final_score="f1").fit(X, Y, groups=np.arange(400) // 2)
    with pytest.raises(ValueError, match="are of records: for persons"):
        make_search(scoring="f1").fit(X, Y, groups=np.arange(400) // 2)


def test_a_column_of_targets_counts_as_the_vector_that_it_is():
    odd = X.copy()
    odd[np.arange(0, 400, 40)] = np.nan
    means = []
    for y in (Y, Y[:, None]):
        search = make_search(scoring=["f1", "accuracy"], refit="accuracy", mu=1e6)
        found = search.fit(X, Y, X_valid=odd, y_valid=y)
        means.append(max(found.cv_results_["mean_test_accuracy"]))
    assert means[0] == pytest.approx(means[1], abs=0.02)
    assert means[1] > 0.6


@pytest.mark.parametrize(
    "of",
    [
        lambda told: (told.y_true == 1) & (told.predicted == 1),
        lambda told: told.y_true.astype(int) == told.predicted,
        lambda told: np.equal(told.y_true, told.predicted),
    ],
)
def test_a_record_that_cannot_be_predicted_leaves_a_function_of_ones_own_the_others(of):
    odd, means = X.copy(), []
    odd[5] = np.nan
    for table in (X.copy(), odd):
        own = scores.Score("own", scores.PerRecord(of), lambda m, _s: m[0])
        search = make_search(scoring=own, mu=1e6).fit(X, Y, X_valid=table, y_valid=Y)
        means.append(max(search.cv_results_["mean_test_score"]))
    assert means[0] == pytest.approx(means[1], abs=0.01)
    assert means[1] > 0.2


# Records that cannot be predicted, and functions of one's own -----------------------------------


OWN = {
    "of predictions alone": lambda told: told.predicted > 0,
    "logarithms": lambda told: np.exp(-np.abs(np.log1p(np.abs(told.y_true)))),
    "roots": lambda told: 1 - np.sqrt(np.clip((told.y_true - told.predicted) ** 2, 0, 1)),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("unknown", [[17], list(range(30, 100))], ids=["one", "many"])
def test_a_record_that_cannot_be_predicted_counts_as_the_worst_in_every_score(name, unknown):
    """Neither its own nor another record's prediction moves what is known of the others."""
    rng = np.random.default_rng(0)
    X, X_valid = rng.normal(size=(60, 2)), rng.normal(size=(100, 2))
    y, y_valid = X[:, 0], X_valid[:, 0]
    own = scores.Score("own", scores.PerRecord(OWN[name]), lambda m, s: m[0])
    found = []
    for first in (X_valid[0], np.array([5.0, 5.0]), np.array([-5.0, 5.0])):
        odd = X_valid.copy()
        odd[0] = first
        odd[unknown] = np.nan
        search = make_search(Ridge(), {"alpha": loguniform(0.1, 1)}, mu=np.inf, scoring=own)
        search.fit(X, y, X_valid=odd, y_valid=y_valid)
        found.append(search.cv_results_["mean_test_score"][0])
    known = np.delete(np.arange(100), unknown)
    assert np.ptp(found) <= 1 / 100 + 1e-9
    assert found[0] <= len(known) / 100


def _own(of):
    return scores.Score("own", scores.PerRecord(of), lambda m, _s: m[0])


def _raises(told):
    return float(told.ytrue == told.predicted)  # no such part


@pytest.mark.parametrize(
    "given",
    [{"scoring": ["f1", _own(_raises)], "refit": "f1"}, {"final_score": _own(_raises)}],
    ids=["a score", "the last score"],
)
def test_a_function_of_ones_own_that_fails_for_all_is_refused_before_anything_is_spent(
    given, tmp_path
):
    kept = lasting(tmp_path)
    with pytest.raises(ObjectiveFailedError, match="scored records that trained"):
        fitted(make_search(**{"scoring": "f1"} | given, **kept))
    study = optuna.load_study(study_name="s", storage=kept["storage"])
    assert {trial.state.name for trial in study.trials} <= {"FAIL", "WAITING"}


def _of_positives(told):
    return told.predicted / told.y_true if told.y_true else "none"


@pytest.mark.parametrize(
    ("of", "settings"), [(_of_positives, {}), (_raises, {"training_mu": 1.0})],
    ids=["it is of a few", "training is protected"],
)  # fmt: skip
def test_a_function_of_ones_own_is_refused_by_all_that_trained_and_are_public(of, settings):
    last = np.argsort(Y[:200], kind="stable")  # positives
    search = make_search(scoring=_own(of), **settings)
    search.fit(X[last], Y[last], X_valid=X[200:], y_valid=Y[200:])
    assert search.guarantee_.mu_spent == pytest.approx(1.0)


class Seeing:
    """A function of one's own that keeps what it has seen."""

    def __init__(self):
        self.seen = []

    def __call__(self, told):
        self.seen.append(told.y_true)
        return 0.5


def test_what_a_function_has_seen_of_records_is_in_no_search():
    seeing = Seeing()
    own = scores.Score("own", scores.PerRecord(seeing), _first)
    again = pickle.loads(pickle.dumps(fitted(make_search(scoring=own))))
    assert (seeing.seen, again.scoring.statistic.function.seen) == ([], [])


# What scikit-learn's users write ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["f1", "precision", "recall"])
def test_a_score_of_one_class_is_refused_where_nothing_says_which(name):
    y = np.where(Y == 1, "ill", "well")
    with pytest.raises(ValueError, match=rf"which one is positive: give scores\.{name}\(labels="):
        make_search(scoring=name).fit(X, y)
    three = np.where(X[:, 0] > 1, 2, Y)
    with pytest.raises(ValueError, match=f"{name}_macro for several classes"):
        make_search(scoring=name).fit(X, three)
    own = scores.SCORES[name](labels=("ill", "well"), positive="ill")
    make_search(scoring=own).fit(X, y)


@pytest.mark.parametrize(
    ("scoring", "refit"),
    [({"F1": "f1"}, "F1"), (["f1"], "f1"), ("f1", "f1"), ({"F1": "f1", "AUC": "roc_auc"}, "F1"),
     ([scores.f1(), "roc_auc"], "f1")],
    ids=str,
)  # fmt: skip
def test_one_score_may_be_named_and_score_computes_the_one_that_is_refitted(scoring, refit):
    search = fitted(make_search(scoring=scoring, refit=refit))
    assert search.score(X, Y) == pytest.approx(f1_score(Y, search.predict(X)))


def _first(m, s):
    return m[0]


def _miss(told):
    return told.predicted != told.y_true


def _hit(told):
    return told.predicted == told.y_true


@pytest.mark.parametrize(
    ("own", "exact"),
    [(scores.Score("hits", scores.PerRecord(_hit), _first), accuracy_score),
     (scores.f1(positive=0), partial(f1_score, pos_label=0)),
     (scores.recall(labels=(1, 0)), partial(recall_score, pos_label=0)),
     (scores.Score("miss", scores.PerRecord(_miss), _first, greater_is_better=False),
      lambda y, told: -np.mean(y != told))],
    ids=["own", "positive", "labels", "cost"],
)  # fmt: skip
def test_score_computes_a_score_with_the_settings_that_it_has(own, exact):
    search = fitted(make_search(scoring=own))
    assert search.score(X, Y) == pytest.approx(exact(Y, search.predict(X)))


def test_where_training_is_protected_no_training_record_decides_a_refusal():
    """Not even one of a class of its own; so labels are the user's, and none are looked up."""
    with pytest.raises(ValueError, match=r"training_mu= protects: give scores\.f1\(labels="):
        make_search(scoring="f1", training_mu=1.0).fit(X, Y)
    listed = [scores.f1_macro(labels=(0, 1)), scores.roc_auc(labels=(0, 1))]
    for odd in (Y[0], 2):
        y = np.concatenate([[odd], Y[1:]])
        search = make_search(scoring=listed, refit="f1_macro", training_mu=1.0)
        search.fit(X[:200], y[:200], X_valid=X[200:], y_valid=Y[200:])
        assert search.best_score_ > 0.5


@pytest.mark.parametrize(
    "more",
    [{"scoring": scores.f1()}, {"scoring": {"F": scores.f1(labels=("Well", "Ill"))}},
     {"scoring": ["balanced_accuracy", scores.f1()], "refit": "f1"},
     {"scoring": "accuracy", "final_score": scores.f1()}],
    ids=["usual", "other texts", "several", "last"],
)  # fmt: skip
def test_a_score_of_other_classes_than_those_that_train_is_refused(more):
    with pytest.raises(ValueError, match=r"is of labels=\(.*\), and the classes") as refused:
        make_search(**more).fit(X, np.where(Y == 1, "ill", "well"))
    assert "not named, as they come from records" in str(refused.value)
    assert not {"'ill'", "'well'"} & {*re.findall(r"'\w+'", str(refused.value))}


def test_a_score_under_a_name_of_one_s_own_has_the_classes_that_train():
    search = make_search(scoring={"B": "balanced_accuracy"}, refit="B", final_score="B")
    y = np.where(Y == 1, "ill", "well")
    assert search.fit(X, y).final_score_.value == pytest.approx(search.best_score_, abs=0.5)
    assert search.best_score_ > 0.5
