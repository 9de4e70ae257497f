"""What scikit-learn asks of every estimator."""

import inspect
import math
import warnings

import optuna
import pytest
from optuna.distributions import FloatDistribution
from sklearn.base import is_regressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_search import PrivateSearch

TUNED = FloatDistribution(0.1, 10, log=True)
"""Printed alike in every process, as the names of tests must be."""

NOISE = "noise is drawn anew in each fit, and no seed drives it"

FAILING = {
    "check_estimators_nan_inf": "what predicting says of a validation record is withheld, and the "
    "NaN is in one"
}
OF_REGRESSORS = FAILING | {
    "check_supervised_y_2d": "targets (n, 1) are taken as Ridge takes them, without a warning"
}
"""What a search of this kind cannot do, also without noise, and why."""

NOISY = {
    "check_classifier_data_not_an_array": NOISE,
    "check_regressor_data_not_an_array": NOISE,
    "check_fit_idempotent": NOISE,
    "check_regressors_int": NOISE,
    "check_supervised_y_2d": NOISE,
}
"""What asks for the same result of two fits; without noise these checks pass."""

EXACT = [
    PrivateSearch(
        LogisticRegression(), {"C": TUNED}, mu=math.inf, n_trials=6, seed=0
    ),
    PrivateSearch(
        make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1, 1.0]}, mu=math.inf,
        n_trials=2, seed=0, method="released-means", loss="absolute", loss_bound=10.0,
    ),
]  # fmt: skip

AGAIN = [
    PrivateSearch(
        Ridge(), {"alpha": TUNED}, mu=math.inf, n_trials=6, seed=0,
        loss="squared", loss_bound=100.0,
    ),
]  # fmt: skip
"""Another pair of a task and a method, each of which is above."""

PRIVATE = [
    PrivateSearch(LogisticRegression(), {"C": TUNED}, mu=1, n_trials=6, seed=0),
    PrivateSearch(
        Ridge(), {"alpha": [0.1, 1.0]}, mu=1, n_trials=2, seed=0, method="released-means",
        loss="squared", loss_bound=100.0,
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    """Warnings of the checks' tiny data are none of ours, nor are lines of failed trials."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        yield
    optuna.logging.set_verbosity(before)


asked = inspect.signature(parametrize_with_checks).parameters
STRICT = {"xfail_strict": True} if "xfail_strict" in asked else {}
"""What is listed fails, where scikit-learn is new enough to be asked for that."""


def known(search):
    """What is expected to fail."""
    return OF_REGRESSORS if is_regressor(search) else FAILING


@pytest.mark.slow
@parametrize_with_checks(EXACT, expected_failed_checks=known, **STRICT)
def test_without_noise_the_checks_pass_that_are_not_listed(estimator, check):
    check(estimator)


@pytest.mark.soak
@parametrize_with_checks(AGAIN, expected_failed_checks=known, **STRICT)
def test_a_regression_by_steps_passes_them_too(estimator, check):
    check(estimator)


@pytest.mark.soak  # what noise changes is in test_search; the habits are those without it
@parametrize_with_checks(PRIVATE, expected_failed_checks=lambda s: known(s) | NOISY)
def test_with_noise_so_do_those_that_fit_once(estimator, check):
    check(estimator)
