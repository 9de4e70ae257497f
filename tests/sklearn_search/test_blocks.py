"""Every record is protected: scores of blocks, what is refused, and what is left behind."""

import contextlib
import dataclasses
import functools
import itertools
import pickle
import re
import sys
import threading
import warnings
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from scipy.stats import loguniform, uniform
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import GroupKFold, ShuffleSplit, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline

from privbo_plugins import scores
from privbo_plugins.blocks import in_blocks
from privbo_plugins.errors import UtilityWarning
from sklearn_search import PrivateSearch
from sklearn_search._blocks import BlockTask
from tests.crosses import crossed
from tests.independence.odd import of_objects
from tests.independence.seen import differences, left_by
from tests.leaks.scanner import Scanner, exception_leaks
from tests.sklearn_search.problems import (
    Telling,
    classes,
    lasting,
    scanner_of,
    see_fit,
    shares,
    shown_by,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore:fit spends anew:privbo_plugins.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:No privacy:privbo_plugins.errors.PrivacyWarning"),
]

N, K = 120, 6
SPACE = {"C": loguniform(1e-3, 1e3)}


def make_search(estimator=None, space=None, **settings):
    given = {"mu": 1.0, "n_trials": 8, "seed": 0, "protect": "all", "n_blocks": K} | settings
    tuned = LogisticRegression() if estimator is None else estimator
    return PrivateSearch(tuned, SPACE if space is None else space, **given)


def vectors(search, X, y, **more):
    """Every trial's vector of block losses, in order."""
    found, own = [], BlockTask.losses

    def heard(task, values):
        found.append(own(task, values))
        return found[-1]

    with mock.patch.object(BlockTask, "losses", heard):
        search.fit(X, y, **more)
    return np.array(found)


def in_one_trial(X, y, *tuned, **settings):
    """What the blocks of a first trial have lost."""
    search = make_search(*tuned, method="released-means", n_trials=1, refit=False, **settings)
    return vectors(search, X, y)[0]


def by_hand(X, y, score, params, *, n_blocks=K, valid_size=0.5):
    """1 - score of each block, for the places that the page promises."""
    found = []
    for own in in_blocks(len, len(y), n_blocks).places():
        split = ShuffleSplit(1, test_size=valid_size, random_state=0)
        ((train, valid),) = split.split(own)
        model = LogisticRegression(**params).fit(X[own][train], y[own][train])
        found.append(1 - score(model, X[own][valid], y[own][valid]))
    return found


def auc(model, X, y):
    return roc_auc_score(y, model.decision_function(X))


def f1(model, X, y):
    return f1_score(y, model.predict(X))


SCORES = {"roc_auc": auc, "f1": f1, "accuracy": lambda model, X, y: np.mean(model.predict(X) == y)}

OF_LABELS = {"f1": scores.f1()}


@pytest.mark.parametrize("scoring", [*SCORES, auc], ids=[*SCORES, "a function"])
def test_an_entry_is_the_score_of_a_block_computed_by_hand(scoring):
    X, y = classes(N)
    search = make_search(scoring=OF_LABELS.get(scoring, scoring))
    found = vectors(search, X, y)
    score = SCORES.get(scoring, scoring) if isinstance(scoring, str) else scoring
    assert found.shape == (len(search.cv_results_["params"]), K)
    for params, losses in zip(search.cv_results_["params"], found, strict=True):
        assert losses.tolist() == pytest.approx(by_hand(X, y, score, params))
    assert search.n_blocks_ == K
    assert not hasattr(search, "n_valid_")


@pytest.mark.parametrize(
    ("labels", "make", "score"),
    [(["well", "ill"], scores.f1, f1), (["0", "1"], scores.f1, f1), (["b", "a"], scores.f1, f1),
     ([7, 3], scores.roc_auc, auc), (["a", "b"], scores.roc_auc, auc)],
)  # fmt: skip
def test_a_score_names_its_labels_where_no_fit_may_look_at_them(labels, make, score):
    X, y = classes(N)
    search = make_search(mu=np.inf, scoring=make(labels=tuple(labels)))
    with warnings.catch_warnings(action="ignore"):
        search.fit(X, np.array(labels)[y])
    for params, mean in shown_by(search, "mean_test_score"):
        assert mean == pytest.approx(1 - np.mean(by_hand(X, y, score, params)), abs=1e-9)


def test_without_noise_what_is_released_is_the_mean_score_of_the_blocks():
    X, y = classes(N)
    with warnings.catch_warnings(action="ignore"):
        search = make_search(mu=float("inf"), scoring="roc_auc").fit(X, y)
    for params, mean in shown_by(search, "mean_test_score"):
        assert mean == pytest.approx(1 - np.mean(by_hand(X, y, auc, params)), abs=1e-9)
    assert np.array_equal(search.predict(X), clone(search.best_estimator_).fit(X, y).predict(X))


def test_cross_validation_inside_a_block_is_scikit_learns():
    X, y = classes(N)
    splitter = StratifiedKFold(3, shuffle=True, random_state=np.random.RandomState(0))
    for cv in (3, splitter):
        search = make_search(scoring="accuracy", cv=cv)
        found = vectors(search, X, y)
        for params, losses in zip(search.cv_results_["params"], found, strict=True):
            for own, loss in zip(in_blocks(len, N, K).places(), losses, strict=True):
                model, again = LogisticRegression(**params), StratifiedKFold(3)
                if cv is splitter:
                    again = StratifiedKFold(3, shuffle=True, random_state=np.random.RandomState(0))
                score = cross_val_score(model, X[own], y[own], cv=again).mean()
                assert 1 - loss == pytest.approx(score)


def test_a_block_that_cannot_be_fitted_is_the_worst_and_says_nothing():
    X, y = classes(N)
    y[in_blocks(len, N, K).places()[2]] = 1  # one class
    with warnings.catch_warnings(record=True, action="always") as heard:
        found = vectors(make_search(scoring="roc_auc"), X, y)
    assert (found[:, 2] == 1).all()
    assert (np.delete(found, 2, axis=1) < 1).all()
    assert [w for w in heard if "UtilityWarning" not in str(w.category)] == []


def test_nothing_of_a_fit_is_told_even_if_all_fail():
    X, y = np.random.default_rng(5).uniform(0.1, 0.9, size=(N, 3)), classes(N)[1]
    scanner = scanner_of(X, range(N))
    search = make_search(Telling(fails=True), {"a": uniform(0, 1)}).fit(X, y)
    with pytest.raises(AttributeError, match=r"the last fit.*failed") as raised:
        search.best_estimator_  # noqa: B018
    assert exception_leaks(raised.value, scanner) == []
    assert search.set_params(refit=False).fit(X, y).n_blocks_ == K


def interrupted(folder, X, groups=None, **more):
    """Fits after another search of the same study was stopped in its third trial."""
    where = lasting(folder, refit=False)

    def stop(study, trial):
        if trial.number == 2:
            study.stop()

    first = {"X": pd.DataFrame(classes(N)[0]), "groups": np.arange(N) // 2}
    if groups is None:
        del first["groups"]
    with contextlib.suppress(RuntimeError):
        make_search(callbacks=[stop], **where).fit(y=classes(N)[1], **first)
    return make_search(**(where | more)).fit(X, classes(N)[1], groups=groups)


@pytest.mark.parametrize("persons", [False, True])
def test_a_search_goes_on_with_the_same_blocks_alone(persons, tmp_path):
    X, ids = pd.DataFrame(classes(N)[0]), np.arange(N) // 2
    same = ids if persons else None
    first, again = (interrupted(tmp_path, X, same).guarantee_ for _ in range(2))
    assert first.protected
    assert again.mu_spent == first.mu_spent, "nothing was left to do"
    for other in (
        {"n_blocks": K + 1},
        {"random_state": 1},
        {"groups": ids + 1} if persons else {"X": X.iloc[::-1]},
    ):
        with pytest.raises(ValueError, match=r"told apart in another|others than the run"):
            interrupted(tmp_path, **({"X": X, "groups": same} | other))


class Stubborn(Telling):
    """Fails in a way of its own where one record is odd, and warns of it."""

    error: type[BaseException] = ValueError

    def fit(self, X, y):
        if (odd := X[X[:, 0] > 1e3]).size:
            warnings.warn(f"odd {odd}", UserWarning, stacklevel=2)
            raise self.error(f"odd {odd}")
        return super().fit(X, y)


@pytest.mark.parametrize("error", [ValueError, TypeError, MemoryError, SystemExit])
@pytest.mark.parametrize("protected", ["all", "training_mu", "final_score"])
def test_one_record_decides_nothing_that_fit_says_where_the_last_fit_fails(error, protected):
    X, y = classes(N)
    odd = X.copy()
    odd[in_blocks(len, N, K).places()[0][0], 0] = 2e3
    if protected == "all":
        search = make_search(Stubborn(), {"a": uniform(0, 1)})
    else:  # only the last fit meets the odd record
        last = {"final_score": scores.f1(), "method": "released-means", "n_trials": 3}
        search = PrivateSearch(
            Stubborn(), {"a": uniform(0, 1)}, mu=1.0, training_mu=1.0, seed=0,
            **(last if protected == "final_score" else {}),
        )  # fmt: skip
    fitted = BlockTask.__base__.fitted

    def meeting(task, params):
        if sys._getframe(1).f_code.co_name == "last_fit":
            task.records = dataclasses.replace(task.records, X=odd, y=y)
        return fitted(task, params)

    shown = []
    for table in (X, odd):
        with (
            mock.patch.object(Stubborn, "error", error),
            mock.patch.object(BlockTask.__base__, "fitted", fitted if table is X else meeting),
            warnings.catch_warnings(record=True, action="always") as heard,
        ):
            search = clone(search).fit(table if protected == "all" else X, y)
        told = [str(w.message) for w in heard if "UtilityWarning" not in str(w.category)]
        names = vars(search).keys() - {"best_estimator_"}
        shown.append((told, sorted(names), search.guarantee_.notes))
        assert hasattr(search, "best_estimator_") == (table is X)
    assert shown[0] == shown[1]
    again = pickle.loads(pickle.dumps(search))
    for asked in ("best_estimator_", "predict", "score", "classes_"):
        with pytest.raises(AttributeError, match="on records that are not secret") as raised:
            getattr(again, asked)(X, y) if asked == "score" else getattr(again, asked)(X)
        assert error.__name__ not in str(raised.value)
        assert "odd" not in str(raised.value)


def test_a_model_that_was_not_asked_for_is_not_said_to_have_failed():
    search = make_search(refit=False).fit(*classes(N)).set_params(refit=True)
    with pytest.raises(AttributeError) as raised:
        search.best_estimator_  # noqa: B018
    assert "failed" not in str(raised.value)


class Counting(BaseEstimator):
    """A step that draws, as a randomized solver does."""

    def fit(self, X, y=None):
        self.scale_ = np.random.uniform(0.5, 2, size=X.shape[1])  # noqa: NPY002
        return self

    def transform(self, X):
        return X * self.scale_


class Drawing(LogisticRegression):
    """A model of which each fit draws what it predicts."""

    def fit(self, X, y, **more):
        super().fit(X, y, **more)
        self.coef_ = np.random.normal(size=self.coef_.shape)  # noqa: NPY002
        return self


@pytest.mark.parametrize("where", ["whole", "step", "choice"])
def test_no_cache_carries_draws_from_block_to_block(where, tmp_path):
    """A cache that is hit draws nothing, so that the next step would draw something else."""
    X, y = classes(N)
    first, second = in_blocks(len, N, K).places()[:2]
    X[second], y[second] = X[first], y[first]
    other = X.copy()
    other[first[3]] += 0.1

    def made(memory):
        pipe = Pipeline([("scale", Counting()), ("model", Drawing())], memory=memory)
        if where == "whole":
            return pipe, {"model__C": loguniform(1e-3, 1e3)}
        outer = Pipeline([("inner", pipe if where == "step" else LogisticRegression())])
        if where == "step":
            return outer, {"inner__model__C": loguniform(1e-3, 1e3)}
        return outer, {"inner": [pipe, clone(pipe)]}

    found = []
    for table in (X, other):
        for memory in (None, str(tmp_path / f"{len(found)}")):
            found.append(in_one_trial(table, y, *made(memory), loss="brier"))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[2], found[3])
    assert np.array_equal(np.delete(found[1], 0), np.delete(found[3], 0))
    assert [*tmp_path.iterdir()] == []


# One record -------------------------------------------------------------------------------------

ODD = [("y", "no"), ("y", "maybe"), ("y", None), ("y", 7), ("X", np.nan), ("X", 1e300)]
LOST = [("X", "Jane Doe"), ("X", None)]


def of_record(place, odd=None):
    """A table of objects in which one record, of training or validation, is odd."""
    X, y = classes(N)
    labels = np.array(["no", "yes"], dtype=object)[y]
    X = X.astype(object)
    if odd is not None:
        kind, value = odd
        if kind == "y":
            labels[place] = value
        else:
            X[place, 1] = value
    return X, labels


@functools.cache
def ordinary_scores():
    return in_one_trial(*of_record(0)).tolist()


@pytest.mark.parametrize("odd", [*ODD, *LOST], ids=str)
def test_an_odd_record_moves_the_score_of_its_own_block_alone(odd):
    own = in_blocks(len, N, K).places()[4]
    ((train, valid),) = ShuffleSplit(1, test_size=0.5, random_state=0).split(own)
    for place in (own[train[0]], own[valid[0]]):
        found = in_one_trial(*of_record(place, odd))
        assert np.delete(ordinary_scores(), 4).tolist() == np.delete(found, 4).tolist()


TYPED = "n/k", b"n/k", 2 + 1j, None, 0.5, True, 10**30


@pytest.mark.parametrize(
    ("part", "odd", "scoring"), crossed(itertools.product("Xy", TYPED, SCORES), axes=2)
)
def test_a_type_that_one_record_gives_an_array_moves_the_score_of_its_own_block_alone(
    part, odd, scoring
):
    X, y = classes(N)
    given = {"scoring": OF_LABELS.get(scoring, scoring)}
    place = in_blocks(len, N, K).places()[4][0]
    cells, labels = X.tolist(), y.tolist()
    if part == "X":
        cells[place][1] = odd
    else:
        labels[place] = odd
    found = in_one_trial(np.array(cells), np.array(labels), **given)
    assert np.delete(in_one_trial(X, y, **given), 4).tolist() == np.delete(found, 4).tolist()


class Adding:
    """A scorer, or a loss, that keeps what it has seen."""

    def __init__(self):
        self.seen = 0.0

    def __call__(self, *told):
        self.seen += float(np.sum(told[-1] if len(told) == 3 else told[0]))
        score = float(np.sin(self.seen) ** 2)
        return score if len(told) == 3 else np.full(len(told[0]), score)


@pytest.mark.parametrize("given", [{"scoring": Adding()}, {"loss": Adding(), "loss_bound": 1.0}])
def test_what_a_scorer_or_a_loss_keeps_reaches_no_other_block(given):
    X, y = classes(N)
    own, found = in_blocks(len, N, K).places()[0], []
    for label in (y[own], 1 - y[own]):
        y[own] = label
        found.append(in_one_trial(X, y, **given))
    assert found[0][0] != found[1][0]
    assert found[0][1:].tolist() == found[1][1:].tolist()


def test_a_scorer_that_cannot_be_copied_is_refused_before_anything_is_fitted():
    scorer = Adding()
    scorer.lock = threading.Lock()
    with pytest.raises(ValueError, match="cannot be: give a function"):
        make_search(scoring=scorer).fit(*classes(N))


class Centroids(ClassifierMixin, BaseEstimator):
    """Predicts the class of the nearest mean, and asks the system for no entropy.

    scikit-learn's own fits do: whether one fails would move what a sealed world draws afterwards.
    """

    def __init__(self, shrink=0.5):
        self.shrink = shrink

    def fit(self, X, y):
        if not all(isinstance(label, str) for label in y):
            raise ValueError(f"no text: {y}")
        self.classes_ = np.unique(y.astype(str))
        self.means_ = [self.shrink * X[y == label].mean(0) for label in self.classes_]
        return self

    def predict(self, X):
        distances = [np.square(X - mean).sum(1) for mean in self.means_]
        return self.classes_[np.argmin(distances, axis=0)].astype(object)


def searching(seen, entry, *, place=17):
    """A search whose odd record has this label."""
    X, labels = of_record(place, ("y", entry()))
    search = make_search(
        Centroids(), {"shrink": uniform(0, 1)}, refit=False, vault=seen.vault, study_name="s",
        storage=f"sqlite:///{seen.folder / 'study.db'}", scoring="f1_macro",
    )  # fmt: skip
    see_fit(seen, search, X, labels)


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    """One for all runs, because its path is part of what they write."""
    return tmp_path_factory.mktemp("runs")


@functools.cache
def left_by_ordinary(place, folder):
    return left_by(functools.partial(searching, place=place), lambda: "yes", folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "place"), crossed(itertools.product(["maybe", None, "no", 7], [17, 18]))
)
def test_nothing_but_releases_depends_on_a_record_of_training_or_validation(
    odd, place, one_folder
):
    pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    left = left_by(functools.partial(searching, place=place), lambda: odd, one_folder)
    assert differences(left_by_ordinary(place, one_folder), left) == {}


def test_no_score_of_a_block_is_in_what_a_fitted_search_shows(caplog, tmp_path):
    X, y = shares()
    search = make_search(
        Ridge(), {"alpha": loguniform(1e-3, 1e3)}, loss="absolute", y_range=(0, 1), verbose=2,
        storage=f"sqlite:///{tmp_path / 'study.db'}",
    )  # fmt: skip
    found, scanner = vectors(search, X, y), Scanner()
    for t, losses in enumerate(found):
        scanner.add_raw(f"mean of trial {t}", losses.mean())
        for block, loss in enumerate(losses):
            scanner.add_raw(f"block {block} of trial {t}", loss)
    left = {
        "pickle": pickle.dumps({k: v for k, v in vars(search).items() if k != "best_estimator_"}),
        "study": pickle.dumps(search.study_),
        "storage": (tmp_path / "study.db").read_bytes(),
        "texts": f"{vars(search)}{search.guarantee_.details()}{caplog.text}".encode(),
        "trials": repr([trial.__dict__ for trial in search.study_.trials]).encode(),
    }
    assert scanner.scan(left) == []
    search.losses_ = found.tolist()
    assert scanner.hits(repr(vars(search)).encode()), "the control"


# What is said -----------------------------------------------------------------------------------


def test_a_guarantee_says_that_all_records_are_protected_and_the_last_model_is_not():
    X, y = classes(N)
    guarantee = make_search(scoring="roc_auc").fit(X, y).guarantee_
    headline = " ".join(str(guarantee).split("  Population")[0].split())
    assert "each of the records, those that train included" in headline
    assert "Not protected: a model that is fitted on all records, such as best_est" in headline
    assert "knows all 120 records but one" in headline
    assert (guarantee.n_records, guarantee.parameters["blocks"]) == (N, K)
    told = " ".join(guarantee.details().split())
    assert "best_estimator_ is fitted on all records and is not covered" in told
    assert "cross-validation" not in told
    assert "training records" not in told


class Folds(ShuffleSplit):
    """Folds whose text shows what they were made of."""

    def __repr__(self):
        return "made of 0.8675309"

    __str__ = __repr__


class Jane(Folds):
    """Folds that say that they are scikit-learn's."""

    __module__ = "sklearn.model_selection._split"


@pytest.mark.parametrize(
    ("cv", "told"),
    [(3, "folds(3)"), (StratifiedKFold(3), "StratifiedKFold(3)"), (Folds(2), "folds(2)"),
     (Jane(2), "folds(2)")],
)  # fmt: skip
def test_of_folds_a_study_holds_their_kind_and_number(cv, told):
    search = make_search(cv=cv).fit(*classes(N))
    assert search.study_.user_attrs["privbo:split"]["inside"] == told
    assert "did not write" not in search.guarantee_.details()


def test_a_fit_that_fails_in_all_blocks_shows_in_the_releases():
    """Nothing else may tell, as failures depend on records: each counts as the worst score."""

    class Broken(LogisticRegression):
        def fit(self, X, y):
            raise RuntimeError

    search = make_search(Broken(), n_blocks=60, n_trials=12, mu=20)
    with pytest.warns(UtilityWarning, match="what fails count as the worst"):
        search.fit(*classes(N))


def test_whole_persons_are_dealt_and_named():
    X, y = classes(N)
    ids = np.repeat(np.arange(40), 3)
    search = make_search(scoring="roc_auc", unit="patient", n_blocks=None, mu=50)
    found = vectors(search, X, y, groups=ids)
    assert found.shape[1] == search.n_blocks_ == 2
    assert search.guarantee_.n_records == 40
    assert "each of the patients, those that train included" in str(search.guarantee_)
    with pytest.raises(ValueError, match="groups must have one id for each row"):
        search.fit(X, y, groups=ids[1:])


def test_a_plan_says_which_blocks_and_how_many_records_would_do():
    plan = str(make_search(n_blocks=None).plan(n_records=40_000))
    assert "blocks of" in plan
    assert "of 40000 records" in plan
    assert "K mu of some" in plan


def test_noise_that_hides_a_score_names_the_blocks_and_shows_no_score_beyond_its_range():
    search = make_search(n_blocks=None, scoring="roc_auc")
    with pytest.warns(UtilityWarning, match=r"helps: a loss .*groups=.* 120 are too few"):
        search.plan(n_records=N)  # in blocks of 3, that is
    found = np.concatenate(
        [search.fit(*classes(N)).cv_results_["mean_test_score"] for _ in range(3)]
    )
    assert found.min() == 0.0
    assert found.max() == 1.0
    assert search.cv_results_["std_test_score"][0] > 1


@pytest.mark.parametrize(
    "given", [{"scoring": "roc_auc"}, {"loss": "zero_one"}], ids=["score", "loss"]
)
@pytest.mark.parametrize("K", [5, 20])
def test_the_blocks_that_are_advised_have_noise_that_hides_nothing(given, K):
    """Also where fewer of them would plan another number of releases."""
    with pytest.warns(UtilityWarning, match=rf"n_blocks=\d+ in place of {K}, if") as told:
        make_search(n_blocks=K, n_trials=15, **given).plan(n_records=1100)
    (advised,) = {int(n) for one in told for n in re.findall(r"n_blocks=(\d+)", str(one.message))}
    with warnings.catch_warnings(action="error"):
        make_search(n_blocks=advised, n_trials=15, **given).plan(n_records=1100)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"n_blocks": 61}, r"n_blocks must be an integer from 2 to n / 2 = 60.*got 61.*Take fewer"),
     ({"n_blocks": 1}, "n_blocks must be an integer from 2"),
     ({"training_mu": 1.0}, "training_mu=.*they cost nothing more.*Leave it out"),
     ({"loss": "balanced"}, "scoring=\"balanced_accuracy\""),
     ({"per_group": "sum"}, "per_group= and group_bound=.*leave them out"),
     ({"scoring": "roc"}, "no score of scikit-learn's"),
     *(({"scoring": name}, r"label 1 for positive.*scores\.f1\(labels=")
       for name in ("f1", "precision", "recall", "jaccard", "average_precision")),
     ({"scoring": scores.demographic_parity_difference("ab")}, "A gap needs the group"),
     ({"scoring": ["f1"]}, "none of several"),
     ({"scoring": "neg_max_error"}, "loss_bound="),
     ({"scoring": "roc_auc", "loss": "zero_one"}, "not both"),
     ({"cv": "five"}, "Expected `cv` as an integer"),
     ({"cv": 1}, "n_splits=2 or more"),
     ({"cv": GroupKFold(3)}, "give fit groups=, the person of each row"),
     ({"protect": "everybody"}, "protect must be one of validation, all"),
     ({"protect": "validation"}, 'n_blocks= belongs to protect="all"'),
     ({"protect": "validation", "n_blocks": None, "cv": 5}, 'cv= belongs to protect="all"')],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_costs_nothing(settings, said):
    search = make_search(**settings)
    with pytest.raises(ValueError, match=said):
        search.fit(*classes(N))
    assert not hasattr(search, "study_")
    assert vars(search).get("_fits", {}) == {}


def test_weights_of_another_length_are_refused_and_tell_no_figure():
    X, y = classes(N)
    with pytest.raises(ValueError, match="must have one entry for each row") as refused:
        make_search().fit(X, y, groups=np.arange(N) // 2, sample_weight=np.ones(N - 1))
    assert str(N - 1) not in str(refused.value)
    assert make_search(cv=GroupKFold(3)).fit(X, y, groups=np.arange(N) // 2).n_blocks_ == K


def test_validation_records_cannot_be_given_apart():
    X, y = classes(N)
    with pytest.raises(ValueError, match="no X_valid= or y_valid="):
        make_search().fit(X, y, X_valid=X[:5].copy(), y_valid=y[:5])


@pytest.mark.slow
def test_blocks_at_once_find_the_same():
    X, y = classes(N)
    alone, at_once = (vectors(make_search(mu=1e-6, n_jobs=n), X, y)[0] for n in (1, 2))
    assert np.array_equal(alone, at_once)


ODD_LABELS = ["n/a", None, float("nan"), 0.5, 7]


@functools.cache
def of_folds(cv, hold, *odd):
    """Scores of the blocks of one trial, of labels of which the first may be odd."""
    X, y = classes(N)
    labels = hold([*odd, *y.tolist()[len(odd) :]])
    return in_one_trial(X, labels, cv=cv, scoring="accuracy")


FOLDS = 3, StratifiedKFold(3)
HELD = {
    "list": list, "series": pd.Series, "objects": of_objects, "index": pd.Index,
    "nullable": lambda y: pd.Series(y, dtype=object).convert_dtypes().array,
}  # fmt: skip


@pytest.mark.parametrize(
    ("cv", "holder", "odd"), crossed(itertools.product(FOLDS, HELD, ODD_LABELS), axes=2)
)
def test_one_odd_label_decides_the_folds_of_its_own_block_alone(cv, holder, odd):
    """Typed over all records, it made all labels objects, and a classifier's folds others."""
    hold = HELD[holder]
    (own,) = (b for b, places in enumerate(in_blocks(len, N, K).places()) if 0 in places)
    first, other = of_folds(cv, hold), of_folds(cv, hold, odd)
    assert np.delete(first, own).tolist() == np.delete(other, own).tolist()


@pytest.mark.parametrize(
    "given",
    [{"eval_set": [(np.zeros((1, 2)), np.zeros(1))]}, {"prior": np.zeros(3)},
     {"eval_set": [[[0.0, 1.0]]]}, {"more": {"X": pd.DataFrame({"a": [1.0]})}},
     {"sample_weight": np.ones(N - 1)}],
    ids=["pairs", "an array", "lists", "a dictionary", "weights"],
)  # fmt: skip
def test_what_would_bring_a_record_into_every_block_is_refused(given):
    class Taking(LogisticRegression):
        def fit(self, X, y, **_more):
            return super().fit(X, y)

    with pytest.raises(ValueError, match="one entry for each row"):
        make_search(Taking()).fit(*classes(N), **given)
    make_search(Taking()).fit(
        *classes(N), names=["a", "b"], verbose=False, sample_weight=[1.0] * N
    )
