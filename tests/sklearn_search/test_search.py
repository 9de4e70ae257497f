"""What a search does, against studies driven by hand and numbers worked out by hand."""

import copy
import inspect
import logging
import math
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import optuna
import pandas as pd
import pytest
import sklearn
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.stats import loguniform, randint, rankdata, uniform
from sklearn.base import clone, is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import get_scorer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC
from sklearn.utils.class_weight import compute_class_weight

from optuna_samplers import DPGIBOSampler
from optuna_samplers._study import SPLIT_ATTR
from privbo_plugins import losses
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.errors import (
    BudgetExceededError,
    NotLossesError,
    ObjectiveFailedError,
    PrivacyWarning,
    UtilityWarning,
    VaultError,
)
from privbo_plugins.privacy.words import of_unit
from privbo_plugins.settings import fields_of
from privbo_plugins.store.transaction import Transaction
from sklearn_search import PrivateSearch
from sklearn_search._search import NOTE
from tests.optuna_samplers.runs import rows
from tests.sklearn_search.problems import (
    SPACE,
    Ends,
    N,
    Telling,
    classes,
    exact_search,
    halves,
    lasting,
    left_out,
    make_search,
    session_behind,
    shown_by,
    targets,
    whole_budget,
)

pytestmark = [
    pytest.mark.usefixtures("study_tables"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning"),
]


X, y = classes()
train, valid = halves()


@pytest.fixture(autouse=True)
def nothing_seen_yet():
    Telling.seen.clear()


# Against studies and numbers by hand -------------------------------------------------------------


def test_without_noise_it_finds_what_a_study_driven_by_hand_finds():

    def objective(trial):
        model = LogisticRegression(C=trial.suggest_float("C", 1e-3, 1e3, log=True))
        return (model.fit(X[train], y[train]).predict(X[valid]) != y[valid]).astype(float)

    sampler = DPGIBOSampler(math.inf, n_trials=8, seed=3, clipping_norm=1.0, search_space=SPACE)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective))

    search = exact_search(loss="zero_one").fit(X, y)
    assert search.best_params_ == sampler.recommend(study)
    assert [t.params for t in search.study_.trials] == [t.params for t in study.trials]
    assert search.cv_results_["loss"].tolist() == [t.value for t in study.trials]
    by_hand = LogisticRegression(**search.best_params_).fit(X[train], y[train])
    assert search.best_estimator_.coef_.tolist() == by_hand.coef_.tolist(), "training records only"


def hinge(y_true, margin):
    return np.maximum(0, 1 - (2 * y_true - 1) * margin)


LINEAR = SVC(kernel="linear")
CASES = {
    **{name: (classes, LogisticRegression(), "C", {"loss": name})
       for name in ("zero_one", "brier", "bounded_log", "log")},
    "squared": (targets, Ridge(), "alpha", {"loss": "squared", "y_range": (0, 10), "y_spread": 2}),
    "absolute": (targets, Ridge(), "alpha", {"loss": "absolute", "loss_bound": 10.0}),
    "pinball": (targets, Ridge(), "alpha", {"loss": losses.pinball(0.9), "y_range": (0, 10)}),
    "of one's own": (classes, LINEAR, "C", {
        "loss": hinge, "loss_bound": 1e6, "response_method": "decision_function",
    }),
}  # fmt: skip


def by_hand(name, model, X, y):
    """Mean loss, without the package's own losses."""
    if name == "of one's own":
        return float(np.mean(hinge(y, model.decision_function(X))))
    if name in ("squared", "absolute", "pinball"):
        off = y - model.predict(X)
        each = {
            "squared": off**2,
            "absolute": abs(off),
            "pinball": np.maximum(0.9 * off, -off / 10),
        }
        return float(np.mean(each[name]))
    if name == "zero_one":
        return float(np.mean(model.predict(X) != y))
    p = model.predict_proba(X)[:, 1]
    own = np.where(y == 1, p, 1 - p)
    q = 0.998 * own + 0.001
    each = {
        "brier": (1 - own) ** 2,
        "log": np.minimum(-np.log(own), -math.log(1e-3)),
        "bounded_log": (math.log(0.999) - np.log(q)) / (math.log(0.999) - math.log(0.001)),
    }
    return float(np.mean(each[name]))


@pytest.mark.parametrize("name", CASES)
def test_a_trial_shows_the_mean_loss_of_the_records_that_were_held_out(name):
    problem, estimator, parameter, settings = CASES[name]
    X, y = problem()
    sampler = optuna.samplers.RandomSampler(seed=0)
    space = {parameter: FloatDistribution(1e-3, 1e2, log=True)}
    search = exact_search(estimator, space, sampler=sampler, n_trials=4, **settings).fit(X, y)
    assert len(search.cv_results_["loss"]) == 4
    for params, shown in shown_by(search):
        model = clone(estimator).set_params(**params).fit(X[train], y[train])
        assert shown == pytest.approx(by_hand(name, model, X[valid], y[valid]), rel=1e-12)


def test_labels_that_are_strings_are_told_to_losses_of_probabilities():
    named = np.array(["no", "yes"])[y]
    first = exact_search(loss="brier").fit(X, y)
    second = exact_search(loss="brier").fit(X, named)
    assert first.cv_results_["loss"].tolist() == second.cv_results_["loss"].tolist()
    assert second.classes_.tolist() == ["no", "yes"]


def test_the_released_values_carry_the_noise_that_the_guarantee_states():
    """Means of N trials: sd C sqrt(N) / (n mu), worked out by hand."""
    sampler, T = optuna.samplers.RandomSampler(seed=0), 20
    search = make_search(sampler=sampler, n_trials=T, loss="zero_one").fit(X, y)
    off = []
    for params, shown in shown_by(search):
        model = LogisticRegression(**params).fit(X[train], y[train])
        off.append((shown - np.mean(model.predict(X[valid]) != y[valid])) / math.sqrt(T) * 120)
    assert 3.0 < float(np.dot(off, off)) < 60.0  # chi-square of 20: once in 10^5 outside
    assert search.guarantee_.protected
    assert (search.guarantee_.mu, search.guarantee_.n_records, search.n_valid_) == (1, 120, 120)
    assert search.guarantee_.mu_spent == pytest.approx(1)


# Which records -----------------------------------------------------------------------------------


def test_a_label_does_not_decide_who_is_held_out():
    """A split that looked at labels would move others, and the guarantee would not hold."""
    fits = []
    for labels in (y, 1 - y, np.r_[np.zeros(N - 2, int), 1, 1]):
        Telling.seen.clear()
        exact_search(Telling(), {"a": uniform(0, 1)}, loss="zero_one").fit(X, labels)
        fits.append([seen["X"].tolist() for seen in Telling.seen])
    assert fits[0] == fits[1] == fits[2]
    assert fits[0][0] == X[halves()[0]].tolist()


def test_a_seed_does_not_decide_who_is_held_out_and_random_state_does():
    for seed, random_state in ((1, 0), (2, 0), (2, 5)):
        Telling.seen.clear()
        exact_search(
            Telling(), {"a": uniform(0, 1)}, seed=seed, random_state=random_state, valid_size=0.5
        ).fit(X, y)
        assert Telling.seen[0]["X"].tolist() == X[halves(random_state=random_state)[0]].tolist()


def test_with_validation_records_of_the_users_own_all_others_train():
    X_valid, y_valid = classes(60, seed=9)
    search = exact_search(Telling(), {"a": uniform(0, 1)}).fit(
        X, y, X_valid=X_valid, y_valid=y_valid
    )
    assert {len(seen["X"]) for seen in Telling.seen} == {N}
    assert search.n_valid_ == 60
    assert search.cv_results_["loss"][0] == pytest.approx(np.mean(y_valid != 1))


@pytest.mark.parametrize("step", ["", "telling__"], ids=["estimator", "step"])
def test_weights_are_split_with_the_records_and_reach_fit_alone(step):
    estimator = make_pipeline(StandardScaler(), Telling()) if step else Telling()
    given = {f"{step}sample_weight": np.arange(N, dtype=float), f"{step}note": "whole"}
    search = exact_search(estimator, {f"{step}a": uniform(0, 1)}).fit(X, y, **given)
    assert all(seen["weight"].tolist() == train.tolist() for seen in Telling.seen)
    assert {seen["note"] for seen in Telling.seen} == {"whole"}
    assert search.cv_results_["loss"][0] == pytest.approx(np.mean(y[valid] != 1)), "not weighted"


def test_metadata_is_routed_as_by_other_searches():
    with sklearn.config_context(enable_metadata_routing=True):
        asked = Telling().set_fit_request(sample_weight=True, note=False)
        asked.set_score_request(sample_weight=True)
        search = exact_search(asked, {"a": uniform(0, 1)})
        search.fit(X, y, sample_weight=np.arange(N, dtype=float))
        assert all(seen["weight"].tolist() == halves()[0].tolist() for seen in Telling.seen)
        weights = np.where(y == 1, 1.0, 0.0)
        assert search.score(X, y, sample_weight=weights) == 1.0
        assert not hasattr(search, "set_fit_request")
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError):
            exact_search(Telling(), {"a": uniform(0, 1)}).fit(X, y, sample_weight=weights)


def test_a_pipeline_over_a_table_with_columns_of_several_kinds():
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table["kind"] = np.where(y == 1, "x", np.where(X[:, 0] > 0, "y", "z"))
    kinds = OneHotEncoder(handle_unknown="ignore")
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["a", "b", "c"]), ("kinds", kinds, ["kind"])]
    )
    pipe = Pipeline([("columns", columns), ("model", LogisticRegression())])
    scaled = [StandardScaler(), "passthrough"]
    space = {"model__C": loguniform(1e-3, 1e3), "columns__numbers": scaled}
    search = exact_search(pipe, space).fit(table, pd.Series(y))
    assert search.feature_names_in_.tolist() == ["a", "b", "c", "kind"]
    assert search.n_features_in_ == 4
    assert search.predict(table).shape == (N,)
    assert search.score(table, y) > 0.8
    assert set(search.best_params_) == {"model__C", "columns__numbers"}
    assert pd.DataFrame(search.cv_results_)["param_model__C"].between(1e-3, 1e3).all()


# As a search of scikit-learn's -------------------------------------------------------------------


def test_settings_are_set_and_shown_like_those_of_every_estimator():
    search = make_search(loss="zero_one")
    search.set_params(mu=0.5, estimator__C=7.0, n_starts=2)
    assert (search.mu, search.estimator.C, search.n_starts) == (0.5, 7.0, 2)
    again = clone(search)
    assert again.get_params(deep=False).keys() == search.get_params(deep=False).keys()
    assert (again.mu, again.estimator.C) == (0.5, 7.0)
    assert "n_starts=2" in repr(search)
    assert "value_share" not in repr(search)
    assert "LogisticRegression" in search._repr_html_()


def test_every_setting_of_the_algorithm_is_offered_and_every_keyword_explained():
    shown = inspect.signature(PrivateSearch).parameters
    text = inspect.getdoc(PrivateSearch) or ""
    assert [name for name in shown if f"    {name}: " not in text] == []
    assert max(map(len, text.splitlines())) <= 99
    own = {name: field.default for name, field in fields_of(GIBOConfig).items()}
    differing = {name for name in own if shown[name].default != own[name]}
    assert differing == {"loss_bound", "incumbent"}, "what belongs to a loss or an estimator"
    assert [n for n, p in shown.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == [
        "estimator", "param_distributions",
    ]  # fmt: skip


def test_a_classifier_stays_one_and_gets_its_methods():
    search = make_search(SVC(), {"C": [0.1, 1.0, 10.0]})
    assert is_classifier(search)
    assert hasattr(search, "decision_function")
    assert not hasattr(search, "predict_proba")
    assert not hasattr(search, "transform")
    with pytest.raises(NotFittedError):
        search.predict(X)
    search.fit(X, y)
    assert search.decision_function(X).shape == (N,)
    assert search.classes_.tolist() == [0, 1]


def test_a_transformer_stays_one():

    def far(_y, Z):
        return np.minimum(np.abs(np.asarray(Z)).max(axis=1) / 10, 1)

    search = exact_search(
        PCA(), {"n_components": randint(1, 3)}, loss=far, loss_bound=1.0,
        response_method="transform",
    )  # fmt: skip
    search.set_output(transform="pandas").fit(X, y)
    shown = search.transform(X)
    assert isinstance(shown, pd.DataFrame)
    assert search.inverse_transform(shown.to_numpy()).shape == X.shape
    assert search.fit(X).best_params_["n_components"] in (1, 2), "without targets"


def test_a_kernel_of_all_pairs_loses_the_columns_of_those_who_are_held_out():
    space = {"C": [0.01, 0.1, 1.0, 10.0]}
    linear = exact_search(SVC(kernel="linear"), space).fit(X, y)
    given = exact_search(SVC(kernel="precomputed"), space).fit(X @ X.T, y)
    assert given.cv_results_["loss"].tolist() == linear.cv_results_["loss"].tolist()
    assert given.n_features_in_ == len(halves()[0])


def test_without_refit_there_are_parameters_and_no_model():
    search = make_search(refit=False).fit(X, y)
    assert set(search.best_params_) == {"C"}
    assert not hasattr(search, "best_estimator_")
    assert not hasattr(search, "n_features_in_")
    for name in ("predict", "classes_"):
        assert not hasattr(search, name)
    with pytest.raises(AttributeError, match="refit=False"):
        search.score(X, y)


def test_a_second_fit_forgets_the_first():
    search = exact_search().fit(X, y)
    first = search.best_params_, search.study_
    search.set_params(refit=False).fit(X, y)
    assert search.best_params_ == first[0]
    assert search.study_ is not first[1]
    assert not hasattr(search, "best_estimator_")


def test_choices_that_are_objects_reach_the_estimator_as_they_are():
    pipe = Pipeline([("scale", StandardScaler()), ("model", Telling())])
    space = {"scale": [StandardScaler(), PCA(1)], "model__a": [(1, 2), (3,)]}
    search = exact_search(pipe, space).fit(X, y)
    assert {seen["a"] for seen in Telling.seen} == {(1, 2), (3,)}
    assert isinstance(search.best_params_["scale"], StandardScaler | PCA)
    stored = search.study_.trials[0].distributions
    assert stored["scale"] == CategoricalDistribution(["0: StandardScaler", "1: PCA"])
    assert stored["model__a"] == CategoricalDistribution(["(1, 2)", "(3,)"])
    assert not hasattr(space["scale"][0], "mean_"), "choices are cloned"


def test_settings_of_scikit_learn_hold_in_threads_too():
    seen, both = {}, threading.Barrier(2)

    class Looking(Telling):
        def fit(self, X, y):
            thread = threading.current_thread()
            met = thread in seen or thread is threading.main_thread()  # which refits
            seen[thread] = sklearn.get_config()["assume_finite"]
            if not met:  # neither thread does all trials
                both.wait(60)
            return super().fit(X, y)

    with sklearn.config_context(assume_finite=True):
        make_search(Looking(), {"a": uniform(0, 1)}, n_jobs=2).fit(X, y)
    assert len(seen) > 1
    assert set(seen.values()) == {True}


def test_the_plan_decides_how_many_trials_there_are():
    X, y = classes(60)
    search = exact_search(Telling(), {"a": uniform(0, 1)}, n_trials=None)
    search.fit(X, y)
    sampler = DPGIBOSampler(math.inf, clipping_norm=1.0)
    plan = sampler.plan({"a": FloatDistribution(0, 1)}, 30)
    assert len(search.cv_results_["loss"]) == plan.n_trials - left_out(search)


def test_a_plan_before_any_fit_is_that_of_the_fit_and_says_its_time():
    X, y = classes(150)
    search = make_search(Telling(), {"a": uniform(0, 1)}, mu=1, n_trials=12, n_starts=2, n_jobs=2)
    with pytest.raises(ValueError, match="reads no data: n_records=, of the vali"):
        search.plan(75)
    plan = search.plan(n_records=75, seconds_per_trial=3600)
    space = {"a": uniform(0, 1), "fails": [False, True]}
    assert search.plan(space, 75).n_combinations == 2
    assert "with trials of 60 min, 2 at a time" in str(plan)
    search.set_params(n_jobs=None).fit(X, y)
    left = left_out(search)
    assert search.guarantee_.n_releases == plan.n_values - left + plan.n_steps + (left < 3)
    assert len(search.study_.trials) == plan.n_trials - left
    with pytest.raises(ValueError, match="backend must be one of"):
        search.set_params(backend="none").plan(n_records=75)


def test_plan_is_asked_as_a_sampler_is():
    own, theirs = (inspect.signature(kind.plan) for kind in (PrivateSearch, DPGIBOSampler))
    assert list(own.parameters) == list(theirs.parameters)


@pytest.mark.parametrize("n_jobs", [1, 4])
@pytest.mark.parametrize("method", ["dp-gibo", "released-means"])
def test_trials_at_once_fit_no_more_often_than_is_planned(method, n_jobs):
    search = make_search(
        Slow(), {"a": uniform(0, 1)}, method=method, n_trials=20, n_jobs=n_jobs
    )  # fmt: skip
    search.fit(X, y)
    planned = search.plan(n_records=120).n_trials - (method == "dp-gibo" and left_out(search))
    assert len(Telling.seen) == len(search.study_.trials) + 1 == planned + 1, "and the refit"


@pytest.mark.parametrize("method", ["dp-gibo", "released-means"])
def test_a_report_tells_what_the_search_tells(method, tmp_path):
    search = make_search(method=method, vault=str(tmp_path / "private.db"))
    with pytest.raises(NotFittedError):
        search.report(tmp_path / "report.html")
    again = pickle.loads(pickle.dumps(search.fit(X, y)))
    page = again.report(tmp_path / "report.html").read_text()
    assert f"{search.best_params_['C']}" in page
    assert of_unit(NOTE, "record").partition(",")[0] in page
    assert f"<td>trials done</td><td>{len(search.study_.trials)}</td>" in page


SQUARED = {"loss": "squared", "y_range": (0, 8)}
ABSOLUTE = {"loss": "absolute", "y_range": (0, 8)}
OF_ALPHA = {"alpha": loguniform(0.1, 10)}


@pytest.mark.parametrize(
    ("drowned", "heard"),
    [
        # log: 6.9 sqrt(8) / (120 mu); a coin loses .69
        ({"scoring": "neg_log_loss", "mu": 0.1}, {"scoring": "neg_log_loss", "mu": 1.0}),
        # zero_one: sqrt(8) / (120 mu), .24 at mu = .1; a coin loses .5
        ({"loss": "zero_one", "mu": 0.05}, {"loss": "zero_one", "mu": 0.1}),
        # squared: w^2 sqrt(8) / (120 mu); the middle of the range loses some w^2 / 16
        (SQUARED | {"mu": 0.7}, SQUARED | {"mu": 0.8}),
        # absolute: w sqrt(8) / (120 mu); it loses some w / 4
        (ABSOLUTE | {"mu": 0.18}, ABSOLUTE | {"mu": 0.2}),
    ],
)  # fmt: skip
def test_noise_that_hides_losses_is_warned_of(drowned, heard):
    of_numbers = "y_range" in drowned
    model, space = (Ridge(), OF_ALPHA) if of_numbers else (LogisticRegression(), SPACE)
    more = {"method": "released-means", "n_trials": 8}
    with pytest.warns(UtilityWarning, match=r"a mere guess loses some .* hides which model"):
        PrivateSearch(model, space, **more, **drowned).fit(*(targets if of_numbers else classes)())
    with warnings.catch_warnings(record=True, action="always") as told:
        PrivateSearch(model, space, **more, **heard).fit(*(targets if of_numbers else classes)())
    assert not any("a mere guess" in str(warning.message) for warning in told)


class FailsOnce(LogisticRegression):
    """Raises in its third fit of all, or in each from there on."""

    for_ever = False
    fits = 0

    def fit(self, X, y):
        FailsOnce.fits += 1
        if FailsOnce.fits == 3 or (FailsOnce.fits > 3 and FailsOnce.for_ever):
            raise ValueError("no fit")
        return super().fit(X, y)


@pytest.mark.parametrize("n_jobs", [1, 2, 4])
@pytest.mark.parametrize("for_ever", [False, True])
@pytest.mark.parametrize("as_errors", [False, True])
def test_what_a_thread_of_trials_raises_ends_the_fit(n_jobs, for_ever, as_errors, monkeypatch):
    monkeypatch.setattr(FailsOnce, "fits", 0)
    monkeypatch.setattr(FailsOnce, "for_ever", for_ever)
    search = make_search(estimator=FailsOnce(), n_jobs=n_jobs, loss="zero_one")
    with warnings.catch_warnings():
        if as_errors:
            warnings.simplefilter("error")
        with pytest.raises(ValueError, match="no fit"):
            search.fit(X, y)
    assert FailsOnce.fits <= 2 + 2 * n_jobs


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("where", ["a callback", "Optuna itself"])
def test_what_is_raised_outside_of_a_trial_ends_the_fit(where, n_jobs, monkeypatch):
    def refuses(*_):
        raise RuntimeError("no space")

    if where == "Optuna itself":
        monkeypatch.setattr(optuna.study.Study, "ask", refuses)
    callbacks = [refuses] if where == "a callback" else None
    with pytest.raises(RuntimeError, match="no space"):
        make_search(callbacks=callbacks, n_jobs=n_jobs, loss="zero_one").fit(X, y)


def test_a_regressor_without_a_loss_is_asked_for_one():
    X, y = targets()
    search = PrivateSearch(Ridge(), OF_ALPHA, mu=1)
    with pytest.raises(ValueError, match=r"no classifier: .*loss='absolute'.*y_range="):
        search.fit(X, y)


SECRET = "postgresql://ann:swordfish@host/study?sslpassword=swordfish"


@pytest.mark.parametrize("where", ["vault", "storage"])
def test_no_representation_shows_a_password(where):
    by_keyword, set_later = make_search(**{where: SECRET}), make_search()
    set_later.set_params(**{where: SECRET})
    for search in (by_keyword, set_later, clone(by_keyword), copy.deepcopy(by_keyword)):
        shown = [repr(search), search._repr_html_(), repr(search.get_params())]
        shown += [repr(Pipeline([("search", search)])), repr([search])]
        with pytest.raises(ValueError, match="Invalid parameter 'no_such'") as raised:
            search.set_params(no_such=1)
        shown.append(str(raised.value))
        assert not any("swordfish" in text for text in shown)
        assert getattr(search, where) == SECRET, "the host gets it"
    with pytest.raises(ValueError, match="holds a password") as refused:
        make_search(vault=SECRET).fit(*classes())
    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_how_much_is_said(verbose, capfd):
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.disable_default_handler()
    optuna.logging.enable_default_handler()
    try:
        make_search(verbose=verbose).fit(X, y)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(before)
    said = capfd.readouterr().err
    assert ("private trials: 100%" in said) == (verbose == 1)
    assert verbose > 0 or said == ""


def test_of_fits_at_once_the_last_one_gives_optunas_logger_its_level_back():
    logger, began, ended = (
        logging.getLogger("optuna.study._optimize"), threading.Event(), threading.Event()
    )  # fmt: skip
    before = logger.level

    class Later(Telling):
        def fit(self, X, y):
            began.set()
            assert ended.wait(60)
            return super().fit(X, y)

    class Sooner(Telling):
        def fit(self, X, y):
            if not began.is_set():  # the other fit begins inside of this one, and outlives it
                later.start()
                assert began.wait(60)
            return super().fit(X, y)

    space = {"a": uniform(0, 1)}
    later = threading.Thread(target=lambda: make_search(Later(), space).fit(X, y))
    make_search(Sooner(), space).fit(X, y)
    ended.set()
    later.join(60)
    assert logger.level == before


# What GridSearchCV calls by other names ----------------------------------------------------------

SCORES = {
    "accuracy": (classes, LogisticRegression(), "C", {}),
    "neg_log_loss": (classes, LogisticRegression(), "C", {}),
    "neg_brier_score": (classes, LogisticRegression(), "C", {}),
    "neg_mean_absolute_error": (targets, Ridge(), "alpha", {"y_range": (0, 10)}),
    "neg_mean_squared_error": (targets, Ridge(), "alpha", {"loss_bound": 100.0}),
}


@pytest.mark.parametrize("scoring", SCORES)
def test_a_score_is_what_scikit_learn_computes_of_the_records_that_were_held_out(scoring):
    problem, estimator, parameter, settings = SCORES[scoring]
    X, y = problem()
    space = {parameter: FloatDistribution(1e-3, 1e2, log=True)}
    search = exact_search(estimator, space, scoring=scoring, n_trials=None, n_iter=8, **settings)
    search.fit(X, y)
    results, scorer = search.cv_results_, get_scorer(scoring)
    own = [
        scorer(clone(estimator).set_params(**params).fit(X[train], y[train]), X[valid], y[valid])
        for params in results["params"]
    ]
    assert results["mean_test_score"] == pytest.approx(own, rel=1e-9)
    assert results["rank_test_score"].tolist() == rankdata(np.negative(own), "min").tolist()
    assert results["std_test_score"].tolist() == [0.0] * len(own), "without noise"
    assert results[f"param_{parameter}"].dtype == float
    assert search.best_params_ == results["params"][search.best_index_]
    assert search.best_score_ == results["mean_test_score"][search.best_index_]
    assert search.score(X, y) == pytest.approx(scorer(search.best_estimator_, X, y))


@pytest.mark.parametrize("method", ["dp-gibo", "released-means"])
def test_the_noise_of_a_released_value_stands_beside_it(method):
    search = make_search(method=method, loss="zero_one").fit(X, y)
    noise = search.guarantee_.parameters["value_noise"]
    assert set(search.cv_results_["std_test_score"]) == {noise}
    assert search.best_params_ == pytest.approx(
        search.cv_results_["params"][search.best_index_], rel=1e-9
    )
    assert pd.DataFrame(search.cv_results_).shape == (len(search.cv_results_["params"]), 6)


@pytest.mark.parametrize(
    ("method", "scoring", "best"),
    [("dp-gibo", "accuracy", 1.0), ("dp-gibo", "neg_brier_score", 0.0),
     ("released-means", "accuracy", 1.0)],
)  # fmt: skip
def test_scores_and_their_ranks_are_what_the_ledger_has_released(method, scoring, best, tmp_path):
    """Greater is better, and a row without a release has no score."""
    vault = tmp_path / "private.db"
    search = make_search(
        method=method, scoring=scoring, vault=f"sqlite:///{vault}", n_trials=12, n_jobs=3
    ).fit(X, y)  # fmt: skip
    told = rows(
        vault,
        "SELECT json_extract(payload, '$.values[0]') FROM privbo_events "
        "WHERE kind = 'release' AND key LIKE 'value/%'",
    )
    scores = search.cv_results_["mean_test_score"]
    assert sorted(scores) == pytest.approx(sorted(best - float(loss) for (loss,) in told))
    assert search.cv_results_["rank_test_score"].tolist() == rankdata(-scores, "min").tolist()
    assert search.best_score_ == scores[search.best_index_]
    assert search.cv_results_["loss"].tolist() == [t.value for t in search.study_.trials]


def test_where_no_values_are_released_their_noise_is_not_said_to_be_none():
    search = make_search(value_share=0.0, n_starts=0, n_trials=None, n_steps=2).fit(X, y)
    assert np.isnan(search.cv_results_["std_test_score"]).all()
    assert np.isnan(search.cv_results_["mean_test_score"]).all()
    assert np.isfinite(search.cv_results_["loss"]).all()


def test_a_search_that_ends_before_its_plan_has_no_best_trial():
    stop = [lambda study, trial: study.stop() if trial.number == 4 else None]
    search = make_search(n_starts=0, n_trials=None, n_steps=9, callbacks=stop, loss="brier")
    search.fit(X, y)
    assert len(search.cv_results_["params"]) == 5
    assert set(search.best_params_) == {"C"}
    for name in ("best_index_", "best_score_"):
        with pytest.raises(AttributeError, match="no trial has evaluated the recommendation"):
            getattr(search, name)


def test_callbacks_see_each_trial_as_it_was_released():
    seen = []
    search = make_search(callbacks=[lambda _study, trial: seen.append(trial.value)]).fit(X, y)
    assert seen == search.cv_results_["loss"].tolist()


def test_before_fit_what_fit_makes_is_refused_as_scikit_learn_does():
    search = make_search()
    for name in (
        "best_params_",
        "best_score_",
        "cv_results_",
        "classes_",
        "guarantee_",
        "n_valid_",
    ):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(search, name)
        assert not hasattr(search, name)


def test_a_second_fit_says_before_it_spends_what_both_amount_to():
    search = make_search(Telling(), {"a": uniform(0, 1)}).fit(X, y)
    n = len(Telling.seen)
    with warnings.catch_warnings(action="error", category=PrivacyWarning):
        with pytest.raises(PrivacyWarning, match=r"1\.415-GDP at most together"):
            search.fit(X, y)
    assert len(Telling.seen) == n
    assert "at most together" not in str(search.guarantee_), "it spent nothing"
    with pytest.warns(PrivacyWarning, match=r"made 2 runs.* 1\.415-GDP at most together") as told:
        search.fit(X, y)
    assert {warning.filename for warning in told} == {__file__}


@pytest.mark.parametrize(
    ("more", "given"),
    [({"groups": np.arange(N) // 3}, {}), ({}, {"protect": "all"}), ({}, {"random_state": 1}),
     ({"X_valid": X[:9] + 1, "y_valid": y[:9]}, {}), ({}, {"valid_size": 0.3})],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
def test_fits_that_protect_different_units_or_records_have_no_figure_together(more, given):
    search = make_search(loss="zero_one").fit(X, y)
    search.set_params(**given)
    with pytest.warns(PrivacyWarning, match="no figure holds for all 2 runs of this object"):
        search.fit(X, y, **more)
    claim = search.guarantee_
    assert (claim.protected, claim.mu, claim.best_guess) == (False, math.inf, 1.0)
    shown = " ".join(str(claim).split())
    assert shown.startswith("NOT PROTECTED.")
    assert claim.reasons[-1] in shown, "the reason is whole"
    assert ("bounds nothing for persons" in shown) == ("groups" in more), "only what applies"
    assert "of validation records bounds nothing for those that trained" in shown
    assert "at most together" not in shown
    for seed in range(2, 9):
        search.set_params(random_state=seed)
        with pytest.warns(PrivacyWarning, match="no figure"):
            search.fit(X, y)
    assert search.guarantee_.reasons[-1] in " ".join(str(search.guarantee_).split())


@pytest.mark.parametrize("apart", [True, False], ids=["given apart", "held out"])
def test_what_several_fits_are_given_is_not_compared_and_the_figure_says_so(apart):
    """Whether two tables are equal is a fact of their records, so no text may depend on it."""
    half, others = (slice(0, N // 2), slice(N // 2, N)), (slice(N // 2, N), slice(0, N // 2))
    notes = set()
    for folds in ((half, half), (half, others)):
        search = make_search(loss="zero_one")
        for train, valid in folds:
            own = {"X_valid": X[valid].copy(), "y_valid": y[valid]} if apart else {}
            with warnings.catch_warnings(action="ignore"):
                search.fit(X[train], y[train], **own)
        notes.add(search.guarantee_.notes[0])
    (note,) = notes
    assert "1.415-GDP at most together" in note
    assert "whether each fit got the same records in the same places is not compared" in note


def rare(n=N):
    return np.where(np.arange(n) % 20 == 0, "ill", "well")


def test_a_rare_class_among_training_records_is_said_and_one_among_others_is_not():
    labels = {"X_valid": X[1::2].copy(), "y_valid": y[1::2]}
    assert (rare()[halves()[0]] == "ill").mean() == 7 / 120  # 1 / (2 * 7 / 120) = 8.57
    with pytest.warns(UtilityWarning, match=r"^5\.8 % of the training .* 8\.57 times the noise"):
        make_search().fit(X, rare())
    quiet = [
        ({}, y), ({"loss": "zero_one"}, rare()), ({"scoring": "accuracy"}, rare()),
        ({"training_mu": 1.0}, rare()),
    ]  # fmt: skip
    with warnings.catch_warnings(action="error", category=UtilityWarning):
        for settings, own in quiet:
            make_search(**settings).fit(X, own)
        make_search().fit(X[::2], y[::2], **(labels | {"y_valid": rare()[1::2]}))


def test_the_balanced_loss_has_the_weights_of_the_training_records():
    X, _ = classes()
    y, (train, valid) = rare(), halves()
    search = exact_search(loss="balanced").fit(X, y)
    kinds = np.array(["ill", "well"])
    of_class = compute_class_weight("balanced", classes=kinds, y=y[train])
    weights = dict(zip(kinds.tolist(), of_class.tolist(), strict=True))
    for params, shown in shown_by(search, "mean_test_score"):
        wrong = LogisticRegression(**params).fit(X[train], y[train]).predict(X[valid]) != y[valid]
        assert shown == pytest.approx(1 - np.mean(wrong * [weights[label] for label in y[valid]]))
    bound = make_search(loss="balanced").fit(X, y).guarantee_.parameters["value_range"]
    assert bound == (0.0, pytest.approx(max(weights.values())))
    capped = make_search(loss="balanced", loss_bound=3.0).fit(X, y)
    assert capped.guarantee_.parameters["value_range"] == (0.0, 3.0)


# Studies that are kept ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fits_end_well():
    Ends.left, Ends.raised = 0, RuntimeError


def kept(folder, **settings):
    return make_search(Ends(), {"a": uniform(0, 1)}, **lasting(folder, **settings))


def test_a_study_that_goes_on_with_a_table_in_another_order_is_refused(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; Ray brings it along")
    table = pandas.DataFrame(X, index=[f"patient {i}" for i in range(len(X))])
    Ends.left = 4
    with pytest.raises(RuntimeError, match="in the middle"):
        kept(tmp_path).fit(table, y)
    with pytest.raises(ValueError, match="or in another order") as raised:
        kept(tmp_path).fit(table[::-1], y[::-1])
    assert "patient" not in str(raised.value)
    assert kept(tmp_path).fit(table, y).guarantee_.protected


def test_a_study_that_was_interrupted_goes_on_with_its_ledger(tmp_path):
    Ends.left = 4
    with pytest.raises(RuntimeError, match="in the middle"):
        kept(tmp_path).fit(X, y)
    search = kept(tmp_path).fit(X, y)
    states = [trial.state.name for trial in search.study_.trials]
    whole = make_search(Telling(), {"a": uniform(0, 1)}).fit(X, y)
    planned = len(whole.cv_results_["loss"]) + left_out(whole)
    assert states.count("COMPLETE") == planned - left_out(search)
    assert states.count("FAIL") == 1
    assert whole_budget(search) == pytest.approx(1)
    assert {seen["X"].tobytes() for seen in Telling.seen} == {X[halves()[0]].tobytes()}
    over = len(Telling.seen)
    again = kept(tmp_path).fit(X, y)
    assert again.best_params_ == search.best_params_
    assert len(Telling.seen) == over + 1, "nothing but the refit"


def _trainings_in(folder):
    told = "SELECT COUNT(*) FROM privbo_events WHERE payer = 'training'"
    ((n,),) = rows(folder / "private.db", told)
    return int(n)


@pytest.mark.parametrize("method", ["dp-gibo", "released-means"])
@pytest.mark.parametrize("refit", [True, False], ids=["refit", "no refit"])
def test_each_fit_to_the_training_records_is_charged_before_it_happens(refit, method, tmp_path):
    """Whatever fits, a trial or the model that is published, and however often fit is called."""
    settings = lasting(tmp_path, training_mu=0.5, refit=refit, method=method)
    charged = []

    class Counted(Telling):
        def fit(self, X, y):
            super().fit(X, y)
            charged.append((_trainings_in(tmp_path), len(Telling.seen)))
            return self

    search = make_search(Counted(), {"a": uniform(0, 1)}, **settings)
    for _ in range(3):
        search.fit(X, y)
        n = len(Telling.seen)
        assert all(paid == fits for paid, fits in charged)
        assert _trainings_in(tmp_path) == n
        ((mu, so_far, most),) = search.guarantee_.trainings
        assert (mu, so_far) == (0.5, n)
        assert f"{n} trainings declared 0.5-GDP each compose to" in search.guarantee_.details()
        shown = search.study_.user_attrs["privbo:guarantee"]
        assert f"at most {most:g} trainings declared 0.5-GDP each" in shown
    assert n == len(search.study_.trials) + 3 * refit
    if not refit:
        return
    while _trainings_in(tmp_path) < most:
        search.fit(X, y)
    n = len(Telling.seen)
    with pytest.raises(BudgetExceededError, match="models that are fitted at the end included"):
        search.fit(X, y)
    assert len(Telling.seen) == n == most


OTHERS = "begun with the records told apart in another way"
ANOTHER = [
    ({"random_state": 1}, (X, y), ValueError, rf"{OTHERS} \(random_state=0 then and 1 now\)"),
    ({"valid_size": 0.25}, (X, y), ValueError, OTHERS),
    ({}, (np.tile(X, (2, 1)), np.tile(y, 2)), ValueError, OTHERS),
    ({}, (pd.DataFrame(X), y), ValueError, "index=False then and True now"),
    ({"vault": None}, (X, y), VaultError, "another vault"),
]


@pytest.mark.parametrize(("change", "data", "error", "said"), ANOTHER)
def test_a_study_goes_on_with_the_same_records_and_vault_alone(
    change, data, error, said, tmp_path
):
    kept(tmp_path).fit(X, y)
    with pytest.raises(error, match=said):
        kept(tmp_path).set_params(**change).fit(*data)
    with pytest.raises(ValueError, match=OTHERS):
        kept(tmp_path).fit(X, y, X_valid=X[:60].copy(), y_valid=y[:60])


def test_a_run_that_no_search_began_is_not_taken_for_one_by_what_its_study_says(
    tmp_path, monkeypatch
):
    mark = Transaction.mark
    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "mark", lambda tx, kind, text: (
            None if kind == SPLIT_ATTR else mark(tx, kind, text)
        ))  # fmt: skip
        kept(tmp_path).fit(X, y)
    with pytest.raises(ValueError, match="before this search"):
        kept(tmp_path).fit(X, y)


def test_a_vault_holds_no_losses_once_the_search_is_over(tmp_path):
    make_search(memory=-1, vault=f"sqlite:///{tmp_path / 'private.db'}").fit(X, y)
    held = "SELECT count(*) FROM privbo_losses"
    assert rows(tmp_path / "private.db", held) == [(0,)]
    released = "SELECT count(*) > 0 FROM privbo_events WHERE kind = 'release'"
    assert rows(tmp_path / "private.db", released) == [(1,)]


def test_workers_with_one_storage_and_one_vault_share_one_plan(tmp_path):
    optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}").remove_session()
    with ThreadPoolExecutor(2) as pool:
        searches = list(pool.map(lambda _: kept(tmp_path, n_trials=20).fit(X, y), range(2)))
    last = kept(tmp_path, n_trials=20).fit(X, y)
    whole = make_search(Telling(), {"a": uniform(0, 1)}, n_trials=20).fit(X, y)
    planned = len(whole.cv_results_["loss"]) + left_out(whole)
    assert len(last.cv_results_["loss"]) >= planned - left_out(last)
    assert whole_budget(last) == pytest.approx(1)
    assert last.guarantee_.protected
    assert {search.best_params_["a"] for search in searches} <= {last.best_params_["a"]}


class Slow(Telling):
    """So that time runs out in the middle of a step."""

    def fit(self, X, y):
        time.sleep(0.05)
        return super().fit(X, y)


def test_a_search_that_runs_out_of_time_says_what_was_spent_and_goes_on(tmp_path):
    settings = lasting(tmp_path, timeout=0.5, n_trials=24)
    search = make_search(Slow(), {"a": uniform(0, 1)}, **settings).fit(X, y)
    assert 0 < len(search.cv_results_["loss"]) < 24
    assert 0 < search.guarantee_.mu_spent < 1
    assert search.guarantee_.protected
    before = len(search.cv_results_["loss"])
    search.set_params(timeout=None).fit(X, y)
    assert len(search.cv_results_["loss"]) > before
    assert whole_budget(search) == pytest.approx(1)


def test_losses_that_wait_in_memory_when_time_runs_out_are_gone_with_the_search():
    search = make_search(
        Slow(), {"a": uniform(0, 1)}, timeout=0.5, n_starts=0, n_steps=1, batch_size=50,
        n_trials=None,
    ).fit(X, y)  # fmt: skip
    assert 0 < len(search.cv_results_["loss"]) < 50, "the step was not over"
    assert session_behind(search).run.held_losses() == []


def test_a_study_holds_no_attribute_that_its_guarantee_warns_of():
    search = make_search().fit(X, y)
    assert search.guarantee_.protected
    assert not any("attributes" in note for note in search.guarantee_.notes)
    told = " ".join(search.guarantee_.notes)
    assert "fitted on the training records and shows of the validation records" in told
    assert "score(X, y)" in told


# What is refused ---------------------------------------------------------------------------------

REFUSED = [
    ({"loss": "hinge"}, "loss must be one of zero_one"),
    ({"loss": "brier", "scoring": "accuracy"}, "loss= or scoring=, not both"),
    ({"scoring": "jaccard"}, "is none of accuracy, .*divides counts over all validation records"),
    ({"scoring": "average_precision"}, "compares each validation record with all others"),
    ({"scoring": "r2"}, "'r2' needs the range of the target"),
    ({"scoring": ["f1", "roc_auc"]}, "refit= one of 'f1', 'roc_auc'; got True"),
    ({"scoring": ["f1", 3]}, "refit= one of"),
    ({"scoring": "f1", "loss": "brier"}, "Give loss= or scoring="),
    ({"scoring": "roc_auc", "estimator": LinearSVC()}, "need predict_proba"),
    ({"scoring": "acuracy"}, "did you mean 'accuracy'"),
    ({"scoring": 3}, "scoring must be one of scikit-learn's names"),
    ({"loss": "balanced", "training_mu": 1.0}, "training_mu= protects"),
    ({"loss": "balanced", "estimator": SVR()}, "regressors have not"),
    ({"n_iter": 9}, "n_iter= is another name of n_trials="),
    ({"refit": "accuracy"}, "refit must be True or False"),
    ({"callbacks": print}, "callbacks must be a list"),
    ({"param_distributions": {"C": (1e-3, 0.5)}}, "C.*FloatDistribution.0.001, 0.5, log=True"),
    ({"loss": "squared"}, "y_range="),
    ({"loss": "zero_one", "y_range": (0, 1)}, "neither with another loss"),
    ({"loss": "squared", "y_spread": 1.0}, "neither with another loss"),
    ({"loss": lambda y, p: p}, "loss_bound="),
    ({"loss": "brier", "estimator": SVC()}, "predict_proba"),
    ({"response_method": "transform"}, "transform"),
    ({"backend": "dask"}, "backend must be one of optuna, ray"),
    ({"method": "random"}, "method must be one of dp-gibo"),
    ({"sampler": optuna.samplers.RandomSampler(), "n_trials": None}, "n_trials="),
    ({"sampler": optuna.samplers.RandomSampler(), "kernel": "matern52"}, "kernel= is a setting"),
    ({"random_state": None}, "random_state must be an integer"),
    ({"random_state": np.random.RandomState(0)}, "random_state must be an integer"),
    ({"error_score": "ignore"}, "error_score must be"),
    ({"sampler": DPGIBOSampler(mu=1)}, "leave it out: method='dp-gibo'"),
    ({"sampler": "tpe"}, "one of Optuna's own samplers"),
    ({"n_jobs": 0}, "n_jobs must be"),
    ({"n_jobs": 1.5}, "n_jobs must be"),
    ({"error_score": True}, "error_score must be"),
    ({"mu": -1}, "mu"),
    ({"n_trials": 1}, "n_trials"),
    ({"param_distributions": {"max_itr": randint(1, 9)}}, "did you mean 'max_iter'"),
    ({"param_distributions": [{"C": uniform(0, 1)}]}, "conditional space"),
    ({"param_distributions": {}}, "dictionary"),
    ({"param_distributions": {"C": uniform()}}, r"'C'.* reaches 0\.0, .*(0\.0, inf\].*move this"),
    ({"param_distributions": {"solver": ["lbfgs", "sgd"]}}, "'solver'.* reaches 'sgd'"),
    ({"vault": "postgresql://me:secret@host/db"}, "env:NAME"),
]


@pytest.mark.parametrize(
    ("change", "words"),
    REFUSED,
    ids=lambda part: None if " at 0x" in repr(part) else str(part)[:40],
)
def test_what_makes_no_sense_is_refused_before_anything_is_fitted(change, words):
    search = make_search().set_params(**change)
    with pytest.raises(ValueError, match=words.replace("(", r"\(")) as refused:
        search.fit(X, y)
    assert "secret" not in str(refused.value)
    assert not hasattr(search, "best_params_")


def test_validation_records_come_with_their_targets():
    with pytest.raises(ValueError, match="together"):
        make_search().fit(X, y, X_valid=X)
    with pytest.raises(ValueError, match="together"):
        make_search().fit(X, y, y_valid=y)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        make_search().fit(X, y, X_valid=X[:60].copy(), y_valid=y[:-1])
    for own in (slice(None), slice(60), slice(0, 120, 2)):
        with pytest.raises(ValueError, match="both trains and validates"):
            make_search().fit(X, y, X_valid=X[own], y_valid=y[own])
    apart = make_search().fit(X[::2], y[::2], X_valid=X[1::2], y_valid=y[1::2])
    assert apart.n_valid_ == len(X) // 2
    with pytest.raises(ValueError, match="requires y to be passed"):
        make_search().fit(X)


# When something fails ----------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "shown"), [(math.nan, 1.0), (0.25, 0.25)])
def test_or_counts_as_a_loss_of_every_record(score, shown):

    class Sometimes(Telling):
        def fit(self, X, y):
            super().fit(X, y)
            if self.a < 0.5:
                raise ValueError("no")
            return self

    search = exact_search(
        Sometimes(), {"a": uniform(0, 1)}, error_score=score, n_trials=8,
        sampler=optuna.samplers.RandomSampler(seed=1), refit=False,
    )  # fmt: skip
    with pytest.warns(FitFailedWarning, match="fits failed, .* said: ValueError: no") as warned:
        search.fit(X, y)
    failed = np.array([a < 0.5 for a in search.cv_results_["param_a"]])
    assert 0 < failed.sum() < 8
    (told,) = [w for w in warned if w.category is FitFailedWarning]
    assert str(told.message).startswith(f"{failed.sum()} fits failed")
    assert set(search.cv_results_["loss"][failed]) == {shown}


class _Quoting(Telling):
    """Warns of a record that it is fitted with, and quotes it where it fails."""

    def fit(self, X, y):
        warnings.warn(f"cannot {X[0]}", UserWarning, stacklevel=2)
        if self.a < 0.5 or self.fails:
            raise ValueError(f"cannot be fitted to {X[0]}")
        return super().fit(X, y)


@pytest.mark.parametrize("score", ["raise", math.nan])
def test_what_fits_say_of_protected_training_records_is_withheld(score):
    search = make_search(
        _Quoting(fails=score == "raise"), {"a": uniform(0, 1)}, training_mu=1.0,
        error_score=score, sampler=optuna.samplers.RandomSampler(seed=1), refit=False,
    )  # fmt: skip
    ends = pytest.raises(ObjectiveFailedError) if score == "raise" else nullcontext()
    with warnings.catch_warnings(record=True) as heard, ends as raised:
        warnings.simplefilter("always")
        search.fit(X, y)
    told = [str(warning.message) for warning in heard]
    if raised is not None:
        told.append(str(raised.value))
        assert (raised.value.__context__, raised.value.__cause__) == (None, None)
    assert any("raised ValueError while it was fitted" in text for text in told)
    assert not any("cannot" in text for text in told)


def talks(y_true, _prediction):
    raise NotLossesError(f"Jane Doe has {y_true[0]}")


class Talks(losses.ZeroOne):
    __call__ = staticmethod(talks)


FAILING = {
    "predicting": (
        {"estimator": Telling(chokes=True)}, ObjectiveFailedError, "scored records that trained"
    ),
    # One record would decide the losses of all, which no noise covers.
    "predicting, with a score for failures": (
        {"estimator": Telling(chokes=True), "error_score": math.nan},
        ObjectiveFailedError,
        "while it scored",
    ),
    "a loss of shapes": (
        {"estimator": Ridge(), "loss": "squared", "y_range": (0, 1), "targets": 2},
        NotLossesError,
        "has another shape",
    ),
    "a loss of the user's own": (
        {"loss": talks, "loss_bound": 1.0}, ObjectiveFailedError, "scored records that trained"
    ),
    "and one that inherits": (
        {"loss": Talks(), "loss_bound": 1.0}, ObjectiveFailedError, "scored records that trained"
    ),
    "and one that says it is the package's": (
        {"loss": type("ZeroOne", (Talks,), {"__module__": losses.__name__})(), "loss_bound": 1.0},
        ObjectiveFailedError,
        "scored records that trained",
    ),
    "a loss of all records": (
        {"loss": lambda y, p: 0.5, "loss_bound": 1.0},
        NotLossesError,
        "one value per validation record",
    ),
}  # fmt: skip
"""What fails when validation records are scored, and what may be told of it."""


@pytest.mark.parametrize("what", FAILING)
def test_what_scoring_says_of_a_validation_record_is_withheld(what):
    settings, kind, words = FAILING[what]
    settings = dict(settings)
    Y = np.c_[y, 1 - y] if settings.pop("targets", 1) == 2 else y
    estimator = settings.pop("estimator", LogisticRegression())
    parameter = {Telling: "a", Ridge: "alpha"}.get(type(estimator), "C")
    with pytest.raises(kind, match=words) as raised:
        make_search(estimator, {parameter: uniform(0.1, 1)}, **settings).fit(X, Y)
    assert isinstance(raised.value, ValueError) or kind is ObjectiveFailedError
    assert not any(word in str(raised.value) for word in ("Jane", "cannot predict"))
    assert raised.value.__context__ is None


# Pickles and copies ------------------------------------------------------------------------------


def test_a_pickled_search_predicts_and_a_clone_is_unfitted():
    search = make_search().fit(X, y)
    for again in (pickle.loads(pickle.dumps(search)), copy.deepcopy(search)):
        assert again.predict(X).tolist() == search.predict(X).tolist()
        assert again.best_params_ == search.best_params_
        assert str(again.guarantee_) == str(search.guarantee_)
    assert not hasattr(clone(search), "best_params_")
    assert [name for name in vars(search) if name.endswith("_")] == [
        "best_params_", "guarantee_", "cv_results_", "n_valid_", "study_", "best_index_",
        "best_score_", "best_estimator_",
    ]  # fmt: skip


def test_the_users_sampler_and_estimator_stay_as_they_were():
    sampler, estimator = optuna.samplers.TPESampler(seed=4), RandomForestClassifier(5)
    space = {"max_depth": IntDistribution(1, 4)}
    search = make_search(estimator, space, sampler=sampler, n_trials=3).fit(X, y)
    assert search.study_.sampler is not sampler
    assert not hasattr(estimator, "classes_")
    with warnings.catch_warnings(action="error"):
        warnings.simplefilter("ignore", PrivacyWarning)  # of the second fit
        search.fit(X, y)  # a sampler that serves one study only would object
