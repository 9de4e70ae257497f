"""One object in several studies on the same records says what they amount to together."""

import math
import pickle
import re

import numpy as np
import optuna
import pytest
from scipy.stats import uniform
from sklearn.linear_model import Ridge

from optuna_samplers import DPGIBOSampler, private_objective
from privbo_plugins.errors import ObjectiveFailedError
from sklearn_search import PrivateSearch
from tests.drivers import ON_STUDIES, Hosted, squared_distances
from tests.sklearn_search.problems import Telling

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore:fit spends anew:privbo_plugins.errors.PrivacyWarning"),
]


def said(guarantee):
    """What a guarantee says of several runs together."""
    found = re.findall(
        r"this object has made \d+ runs: .* (\S+)-GDP at most together", guarantee.details()
    )
    assert len(found) <= 1
    return float(found[0]) if found else None


def objective(trial):
    return squared_distances(trial.suggest_float("x", 0, 1))


def _direct(**settings):
    private = private_objective(objective, mu=1.0, n_trials=5, **settings)
    return Hosted(optuna.samplers.RandomSampler(seed=0), lambda _: private, 1)


LOSSES = {name: ON_STUDIES[name] for name in ("records", "outside", "any sampler")} | {
    "a private_objective of its own": _direct
}
"""All systems whose budget is one study's; those on rewards compose a user's in the ledger."""

EVERY = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


@EVERY
@pytest.mark.parametrize("in_file", [False, True])
def test_studies_of_one_object_say_their_sum(make, in_file, tmp_path):
    hosted = make(vault=f"sqlite:///{tmp_path}/vault.db" if in_file else None)
    private = hosted.private(hosted.objective)
    owner, studies = hosted.owner(private), [hosted.study() for _ in range(3)]
    for k, study in enumerate(studies, start=1):
        study.optimize(private, n_trials=2)
        for known in studies[:k]:
            together = said(owner.guarantee(known))
            if k == 1:
                assert together is None
            else:
                assert math.sqrt(k) <= together <= math.sqrt(k) + 1e-3


def test_a_study_in_which_nothing_was_released_adds_nothing():
    sampler = DPGIBOSampler(1.0, n_starts=2, n_steps=1)
    first, second = (optuna.create_study(sampler=sampler) for _ in range(2))
    first.optimize(sampler.private(objective), n_trials=1)
    assert not sampler.guarantee(second).n_releases
    assert said(sampler.guarantee(first)) is None


def test_a_sampler_that_was_sent_remembers_its_studies(tmp_path):
    url = f"sqlite:///{tmp_path}/vault.db"
    sampler = DPGIBOSampler(0.3, n_starts=2, n_steps=1, vault=url)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective), n_trials=1)
    sent = pickle.loads(pickle.dumps(sampler))
    other = optuna.create_study(sampler=sent)
    other.optimize(sent.private(objective), n_trials=1)
    assert said(sent.guarantee(other)) == 0.4243  # sqrt(2) 0.3 = .42426


# scikit-learn -----------------------------------------------------------------------------------


def records():
    X = np.random.default_rng(1).uniform(0.1, 0.9, size=(40, 2))
    return X, 0.5 * X[:, 0]


def make_search(**settings):
    given = {"mu": 0.5, "n_trials": 8, "y_range": (0, 1), "loss": "absolute"}
    return PrivateSearch(Ridge(), {"alpha": uniform(0.1, 1)}, **(given | settings))


@pytest.mark.parametrize("method", ["dp-gibo", "released-means"])
def test_fits_of_one_search_say_their_sum(method):
    search = make_search(method=method)
    assert said(search.fit(*records()).guarantee_) is None
    assert said(search.fit(*records()).guarantee_) == 0.7072
    search.set_params(mu=1.0)
    assert said(search.fit(*records()).guarantee_) == 1.225  # sqrt(.25 + .25 + 1) = 1.2247


def test_a_fit_that_failed_may_have_released():
    X, y = np.random.default_rng(1).uniform(size=(40, 2)), np.arange(40) % 2
    search = PrivateSearch(Telling(chokes=True), {"a": uniform(0, 1)}, mu=1, n_trials=8)
    with pytest.raises(ObjectiveFailedError):
        search.fit(X, y)
    search.set_params(estimator=Telling())
    assert said(search.fit(X, y).guarantee_) == 1.415
