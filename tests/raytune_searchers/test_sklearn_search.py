"""The search for scikit-learn, whose trials run on a real Ray."""

import pickle
import time

import numpy as np
import pytest
import ray
from optuna.distributions import FloatDistribution
from ray import tune
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from sklearn_search import PrivateSearch
from tests.inside import unspent
from tests.leaks.scanner import Scanner
from tests.sklearn_search import test_scores
from tests.sklearn_search.problems import halves, scanner_of, shares

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning"),
]

N = 120
PIPE = Pipeline([("scale", StandardScaler()), ("model", Ridge())])
SPACE = {
    "model__alpha": FloatDistribution(1e-3, 1e3, log=True),
    "scale": [StandardScaler(), MinMaxScaler()],
}


def losses_of(params):
    """Of each validation record, by hand; shape (60,)."""
    (X, y), (train, valid) = shares(N), halves(N)
    model = clone(PIPE).set_params(**params).fit(X[train], y[train])
    return np.asarray(np.abs(y[valid] - model.predict(X[valid])))


def make_search(folder, **settings):
    given = {"mu": 1.0, "n_trials": 8, "seed": 0, "loss": "absolute", "y_range": (0, 1)}
    more = {"backend": "ray", "storage": folder, "study_name": "run", "n_jobs": 2}
    return PrivateSearch(PIPE, SPACE, **(given | more | settings))


def check_nothing_is_left(search, folder):
    X, y = shares(N)
    scanner = scanner_of(X, halves(N)[1], y)
    for t, params in enumerate(search.cv_results_["params"]):
        scanner.add_vector(f"losses of trial {t}", losses_of(params)[losses_of(params) > 0.1])
    files = {str(f): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    assert len([name for name in files if name.endswith("result.json")]) >= 6
    assert scanner.scan(files) == []
    shown = [pickle.dumps(search), repr(vars(search)).encode(), str(search.guarantee_).encode()]
    assert [hit for blob in shown for hit in scanner.hits(blob)] == []
    assert scanner.hits(pickle.dumps(shares(N))), "control: the scanner finds them"


class Seeing(tune.Callback):
    """Notes what it is told of each trial."""

    def __init__(self):
        self.losses = []

    def on_trial_result(self, result, **_more):
        self.losses.append(result["loss"])


def stored():
    """Bytes in use in Ray's object store."""
    name = "object_store_memory"
    return float(ray.cluster_resources()[name]) - float(ray.available_resources()[name])


def test_blocks_of_all_records_run_on_ray_too_and_no_record_stays_in_its_store(the_ray, tmp_path):
    """The vectors of a run have one entry a block, and nothing else is left of them.

    What tune.with_parameters is given stays in the store until Ray is shut down.
    """
    X = np.random.default_rng(0).uniform(size=(200_000, 5))
    y = 0.1 + 0.9 * X[:, 0]
    settings = {"protect": "all", "n_blocks": 6, "loss_bound": None, "n_jobs": 1}
    search = make_search(tmp_path, **settings).fit(X, y)
    assert search.n_blocks_ == 6
    assert (search.guarantee_.in_blocks, search.guarantee_.n_records) == (True, len(X))
    end = time.monotonic() + 60
    while stored() > X.nbytes / 4 and time.monotonic() < end:
        time.sleep(0.5)
    assert stored() < X.nbytes / 4
    scanner = Scanner()
    for i in range(N):
        scanner.add_number(f"y[{i}]", y[i])
    files = {str(f): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    assert files
    assert scanner.scan(files) == []


@pytest.mark.soak  # on Optuna, and through a searcher's hooks: each run
@pytest.mark.parametrize("what", ["constraints_and_a_last_score", "a_filter_that_makes_errors"])
def test_scores_on_ray_are_those_on_optuna(what, the_ray, monkeypatch):
    monkeypatch.setattr(test_scores, "BACKEND", "ray")
    (check,) = (one for name, one in vars(test_scores).items() if name.startswith(f"test_{what}"))
    check()


def test_it_tunes_on_ray_and_leaves_releases_only(the_ray, tmp_path):
    (X, y), seeing = shares(N), Seeing()
    search = make_search(tmp_path, callbacks=[seeing]).fit(X, y)
    assert sorted(seeing.losses) == sorted(search.cv_results_["loss"])
    search.set_params(callbacks=None)
    assert search.guarantee_.protected
    plan = search.plan(n_records=60)
    left = unspent(plan, len(search.results_) - plan.n_trials + plan.n_last)
    assert search.guarantee_.mu_spent**2 + left == pytest.approx(1)
    assert search.guarantee_.n_records == 60
    assert isinstance(search.best_params_["scale"], StandardScaler | MinMaxScaler)
    assert search.predict(X).shape == (N,)
    assert len(search.results_) == len(search.cv_results_["loss"])
    assert not hasattr(search, "study_")
    assert any("Ray's object store" in note for note in search.guarantee_.notes)
    check_nothing_is_left(search, tmp_path)


@pytest.mark.soak
def test_a_searcher_of_tunes_own_sees_noisy_means(the_ray, tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")
    from ray.tune.search.optuna import OptunaSearch

    X, y = shares(N)
    searcher = OptunaSearch(seed=1)
    search = make_search(tmp_path, sampler=searcher, n_trials=6).fit(X, y)
    assert search.guarantee_.protected
    assert len(search.cv_results_["loss"]) == 6
    check_nothing_is_left(search, tmp_path)


def test_a_study_of_optunas_is_none_of_rays(tmp_path):
    with pytest.raises(ValueError, match="load_if_exists="):
        make_search(tmp_path, load_if_exists=True).fit(*shares(N))
    with pytest.raises(ValueError, match="takes a searcher of Ray Tune's"):
        make_search(tmp_path, sampler=object()).fit(*shares(N))
    with pytest.raises(ValueError, match=r"ray\.tune\.Callback's: no study is there"):
        make_search(tmp_path, callbacks=[lambda study, trial: None]).fit(*shares(N))
    with pytest.raises(ValueError, match="no distribution that is known here"):
        make_search(tmp_path).set_params(
            param_distributions={"model__alpha": tune.uniform(0, 1)}
        ).fit(*shares(N))
