"""No validation record, and no loss of one, in anything that a search leaves behind."""

import copy
import gc
import logging
import pickle
import warnings

import numpy as np
import optuna
import pytest
from scipy.stats import loguniform, uniform
from sklearn.linear_model import LogisticRegression, Ridge

from privbo_plugins.errors import ObjectiveFailedError
from sklearn_search import PrivateSearch
from tests.leaks.scanner import exception_leaks
from tests.sklearn_search.problems import Telling, classes, halves, scanner_of, shares

pytestmark = [
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore:fit spends anew:privbo_plugins.errors.PrivacyWarning"),
]

N = 120
SPACE = {"alpha": loguniform(1e-3, 1e3), "fit_intercept": [True, False]}


def make_search(**settings):
    given = {"mu": 1.0, "n_trials": 12, "seed": 0, "loss": "absolute"}
    return PrivateSearch(Ridge(), SPACE, y_range=(0, 1), **(given | settings))


def losses_of(params):
    """Of each validation record, by hand."""
    X, y = shares()
    train, valid = halves(N)
    model = Ridge(**params).fit(X[train], y[train])
    return np.asarray(np.abs(y[valid] - model.predict(X[valid])))


def secrets(trials):
    """Validation records, and every trial's losses and their mean."""
    X, y = shares()
    scanner = scanner_of(X, halves(N)[1], y)
    for t, params in enumerate(trials["params"]):
        losses = losses_of(params)
        for i, loss in enumerate(losses):
            scanner.add_raw(f"loss {i} of trial {t}", loss)
        scanner.add_raw(f"mean loss of trial {t}", losses.mean())
    return scanner


def shown(search):
    """Everything that a fitted search shows, or is pickled to."""
    return {
        "pickle": pickle.dumps(search),
        "copy": pickle.dumps(copy.deepcopy(search)),
        "study": pickle.dumps(search.study_),
        "attributes": repr(vars(search)).encode(),
        "page": search._repr_html_().encode(),
        "guarantee": f"{search.guarantee_} {search.guarantee_.to_dict()}".encode(),
        "trials": repr([trial.__dict__ for trial in search.study_.trials]).encode(),
    }


METHODS = [{}, {"method": "released-means"}, {"memory": -1}, {"clipping_norm": "adaptive"}]


@pytest.mark.parametrize("settings", METHODS, ids=str)
def test_neither_records_nor_losses_are_in_what_a_fitted_search_shows(
    settings, tmp_path, caplog,
    capfd,
):  # fmt: skip
    storage, before = tmp_path / "study.db", optuna.logging.get_verbosity()
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        with caplog.at_level(logging.DEBUG):
            search = make_search(storage=f"sqlite:///{storage}", verbose=2, **settings)
            search.fit(*shares())
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(before)
    scanner, said = secrets(search.cv_results_), capfd.readouterr()
    left = shown(search) | {
        "storage": storage.read_bytes(),
        "log": caplog.text.encode(),
        "console": (said.out + said.err).encode(),
    }
    trials = search.study_.trials
    scanner.allow([number for t in trials for number in (t.value, t.params["alpha"])])
    assert search.guarantee_.protected
    assert "Trial 3 finished" in caplog.text
    assert scanner.scan(left) == []


def test_control_the_scanner_finds_what_a_careless_search_would_keep():
    search = make_search().fit(*shares())
    scanner, (X, _) = secrets(search.cv_results_), shares()
    search.X_valid_ = X[halves(N)[1]]
    assert any("X[" in hit for hit in scanner.hits(pickle.dumps(search)))
    del search.X_valid_
    search.losses_ = losses_of(search.cv_results_["params"][3]).tolist()
    hits = scanner.hits(pickle.dumps(search)) + scanner.hits(repr(vars(search)).encode())
    assert any("of trial 3" in hit for hit in hits)


def test_nothing_that_a_fitted_search_holds_on_to_leads_to_a_validation_record():
    """Neither by a closure, nor by a method that a study or a sampler keeps."""
    X, y = shares()
    for settings in METHODS:
        search = make_search(**settings).fit(X, y)
        assert list(_arrays_behind(search, own={id(X), id(y)})) == []


def _arrays_behind(root, own):
    """Arrays of as many rows as there are validation records, that can be reached from here."""
    seen, open_, found = set(own), [root], []
    while open_:
        thing = open_.pop()
        if id(thing) in seen or isinstance(thing, type | type(gc) | str | bytes):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray) and thing.shape[:1] == (N // 2,):
            found.append(thing.shape)
        for part in gc.get_referents(thing):
            if not (isinstance(part, dict) and "__builtins__" in part):  # a module's globals
                open_.append(part)
    return found


def test_control_such_an_array_is_found_behind_a_closure():
    hidden = np.zeros((N // 2, 2))
    assert _arrays_behind([lambda: hidden], own=set()) == [(N // 2, 2)]


class _Interrupted(Telling):
    """Somebody presses Ctrl+C while it predicts."""

    def predict(self, X):
        raise KeyboardInterrupt(f"at {X[0]}")


@pytest.mark.parametrize(
    ("estimator", "kind"),
    [(Telling(chokes=True), ObjectiveFailedError), (_Interrupted(), KeyboardInterrupt)],
    ids=["fails", "is interrupted"],
)
def test_no_exception_and_no_log_of_one_holds_a_validation_record(estimator, kind, caplog):
    X, y = np.random.default_rng(5).uniform(0.1, 0.9, size=(N, 3)), classes(N)[1]
    scanner = scanner_of(X, halves(N)[1])
    search = PrivateSearch(estimator, {"a": uniform(0, 1)}, mu=1, n_trials=8)
    with pytest.raises(kind) as raised:
        search.fit(X, y)
    assert exception_leaks(raised.value, scanner) == []
    assert (raised.value.__context__, raised.value.__cause__) == (None, None)
    assert scanner.hits(caplog.text.encode()) == []
    assert not hasattr(search, "study_")


def test_a_label_of_a_validation_record_does_not_widen_what_a_model_keeps():
    """Texts of an array are as wide as its longest: that of a replaced record, perhaps."""
    X, y = classes(N)
    found = []
    for label in ("b", "a longer one"):
        labels = np.where(y == 1, "a", "b").astype("<U20")
        labels[halves(N)[1][0]] = label
        search = PrivateSearch(LogisticRegression(), {"C": uniform(0.1, 1)}, mu=1, n_trials=8)
        found.append(search.fit(X, labels.astype(f"<U{len(label)}")).classes_)
        train, valid = halves(N)
        search.fit(X[train], labels[train], X_valid=X[valid], y_valid=labels[valid])
        found.append(search.classes_)
    assert {kept.dtype for kept in found} == {np.dtype("<U1")}


class _Keeping(Telling):
    """Keeps the categories of its columns, as packages for trees do."""

    def fit(self, X, y):
        self.kept_ = X["kind"].cat.categories.tolist()
        return super().fit(X, y)

    def predict(self, X):
        assert X["kind"].cat.categories.tolist() == self.kept_
        assert X["kind"].isna().sum() == (len(X) == N // 2)  # of the others, none
        return super().predict(X)


def test_a_category_of_a_validation_record_is_unknown_to_the_model():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    _, y = classes(N)
    train, valid = halves(N)
    kinds = np.where(y == 1, "a", "b").astype(object)
    kinds[valid[0]] = "of one record"
    table = pd.DataFrame({"number": np.arange(N), "kind": pd.Categorical(kinds)})
    search = PrivateSearch(_Keeping(), {"a": uniform(0, 1)}, mu=1, n_trials=8, loss="zero_one")
    assert search.fit(table, y).best_estimator_.kept_ == ["a", "b"]
    search.fit(table.iloc[train], y[train], X_valid=table.iloc[valid], y_valid=y[valid])
    assert search.best_estimator_.kept_ == ["a", "b"]
    assert table["kind"].cat.categories.tolist() == ["a", "b", "of one record"]


class _KeepingRows(Telling):
    """Keeps the names of its rows."""

    def fit(self, X, y):
        self.rows_ = X.index
        return super().fit(X, y)


def test_a_model_knows_no_name_of_a_validation_row():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = pd.MultiIndex.from_arrays([[f"row {i}" for i in range(N)], range(N)])
    table, y = pd.DataFrame({"number": np.arange(N)}, index=rows), classes(N)[1]
    search = PrivateSearch(_KeepingRows(), {"a": uniform(0, 1)}, mu=1, n_trials=8)
    kept = search.fit(table, y).best_estimator_.rows_
    assert kept.equals(pd.RangeIndex(len(halves(N)[0])))


class _Warning(Telling):
    """Warns of the records that it predicts, by Python and by numpy."""

    def fit(self, X, y):
        warnings.warn("while it is fitted", UserWarning, stacklevel=2)
        return super().fit(X, y)

    def predict(self, X):
        warnings.warn(f"has never seen {X[0]}", UserWarning, stacklevel=2)
        np.log(-np.abs(X))
        return super().predict(X)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_what_predicting_warns_of_is_not_heard(n_jobs):
    X, y = classes(N)
    search = PrivateSearch(_Warning(), {"a": uniform(0, 1)}, mu=1, n_trials=8, n_jobs=n_jobs)
    with warnings.catch_warnings(record=True, action="always") as heard:
        before = list(warnings.filters)
        search.fit(X, y)
        assert warnings.filters == before
    assert {str(told.message) for told in heard} == {"while it is fitted"}


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_no_exception_of_a_fit_leads_to_a_protected_training_record(n_jobs):
    X, y = np.random.default_rng(5).uniform(0.1, 0.9, size=(N, 3)), classes(N)[1]
    scanner = scanner_of(X, halves(N)[0])
    fails = Telling(fails=True)
    open_ = PrivateSearch(fails, {"a": uniform(0, 1)}, mu=1, n_trials=8, n_jobs=n_jobs)
    with pytest.raises(ValueError, match="cannot be fitted to") as raised:
        open_.fit(X, y)
    assert exception_leaks(raised.value, scanner), "the control: its text quotes the first one"
    with pytest.raises(ObjectiveFailedError, match="raised ValueError while") as raised:
        open_.set_params(training_mu=1.0).fit(X, y)
    assert exception_leaks(raised.value, scanner) == []
