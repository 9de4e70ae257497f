"""Released means: the plan, what is learnt, and a recommendation that is nobody's luck."""

import math
import warnings

import numpy as np
import pytest

from privbo_plugins.algorithms.protocols import FINAL, START, START_STEP, Release
from privbo_plugins.algorithms.released_means import MeansConfig, ReleasedMeans, make_plan
from privbo_plugins.algorithms.values import value_query
from privbo_plugins.errors import UtilityWarning
from privbo_plugins.models import smoothing
from privbo_plugins.models.kernels import Matern52
from privbo_plugins.models.smoothing import Smoother
from privbo_plugins.spaces import Categorical, Float, Space

LINE = Space({"x": Float(0.0, 1.0)})
PLANE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})


def made(space=LINE, n=1000, maximize=False, **more):
    config = MeansConfig(**({"mu": 1.0, "n_trials": 50} | more))
    plan = make_plan(config, space, n)
    return ReleasedMeans(config, space, seed=3, maximize=maximize, plan=plan)


def told(algorithm, X, values):
    for i, (x, value) in enumerate(zip(X, values, strict=True)):
        algorithm.observe(Release("value", str(i), (float(value),), {"x": x.tolist()}))
    return algorithm


# Settings and plan ------------------------------------------------------------------------------


def test_a_plan_without_hope_says_so():
    plan = make_plan(MeansConfig(0.1, n_trials=400), LINE, 500)
    assert "WARNING" in str(plan)
    with pytest.warns(UtilityWarning, match=r"0\.40 of the range"):
        plan.warn_if_noise_dominates()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_plan(MeansConfig(1.0, n_trials=25), LINE, 5000).warn_if_noise_dominates()


def test_trainings_have_a_cap_that_the_plan_states():
    plan = make_plan(MeansConfig(1.0, n_trials=12, training_mu=0.5), LINE, 5000)
    assert plan.training_most == pytest.approx(0.5 * 6.0)
    assert "after 36 (3-GDP) the run ends" in str(plan)


# What is learnt ---------------------------------------------------------------------------------


def test_the_run_ends_with_its_releases_and_publishes_their_mean_beyond():
    algorithm = made(n_trials=3)
    assert algorithm.phase == (START, START_STEP)
    told(algorithm, np.array([[0.1], [0.2], [0.6]]), np.array([0.5, 0.1, 0.3]))
    assert algorithm.finished
    assert algorithm.phase[0] == FINAL
    assert algorithm.value_query("late", FINAL, 0, np.array([0.3])) is None
    assert algorithm.fallback_value(FINAL, 0) == pytest.approx(0.3)


@pytest.mark.parametrize("maximize", [False, True])
def test_without_noise_the_best_point_is_recommended(maximize):
    sign = -1.0 if maximize else 1.0
    X = np.linspace(0, 1, 40)[:, None]
    algorithm = made(mu=math.inf, n_trials=40, maximize=maximize)
    told(algorithm, X, sign * (X[:, 0] - 0.37) ** 2)
    assert algorithm.recommendation()[0] == pytest.approx(0.37, abs=0.5 / 39 + 1e-9)


def test_over_many_runs_the_recommendation_beats_the_luckiest_trial():
    """Sixty paired runs on one bowl with fixed seeds, 60 points each."""
    found, luckiest = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        algorithm = made(PLANE, n=500, n_trials=60)
        X = rng.uniform(size=(60, 2))
        exact = ((X - [0.3, 0.7]) ** 2).sum(axis=1)
        values = exact + algorithm.plan.value_noise * rng.standard_normal(60)
        x = told(algorithm, X, values).recommendation()
        found.append(float(((x - [0.3, 0.7]) ** 2).sum()))
        luckiest.append(float(exact[values.argmin()]))
    assert np.mean(found) < 0.8 * np.mean(luckiest)


def test_choices_are_told_apart():
    space = Space({"kind": Categorical(("bad", "good", "worse")), "x": Float(0.0, 1.0)})
    rng = np.random.default_rng(1)
    X = space.uniform(90, rng)
    level = np.array([0.5, 0.1, 0.9])[X[:, 0].astype(int)]
    algorithm = made(space, n=400, n_trials=90)
    told(algorithm, X, level + algorithm.plan.value_noise * rng.standard_normal(90))
    assert space.decode(algorithm.recommendation())["kind"] == "good"


def test_the_path_is_what_was_recommended_on_the_way():
    X = np.random.default_rng(2).uniform(size=(21, 1))
    values = (X[:, 0] - 0.5) ** 2
    algorithm = told(made(n_trials=21), X, values)
    counts = [1, 2, 4, 8, 16, 21]
    on_the_way = [told(made(n_trials=21), X[:m], values[:m]).recommendation() for m in counts]
    assert algorithm.path == [x.tolist() for x in on_the_way]
    assert made().path == []


# Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("maximize", "losses", "expected"),
    [
        (False, [math.nan] * 4, 1.0), (True, [math.nan] * 4, 0.0),
        (False, [0.2, math.inf, 0.4, -math.inf], (0.2 + 1 + 0.4 + 1) / 4),
        (True, [0.2, math.inf, 0.4, math.nan], 0.6 / 4), (False, [0.2, 0.4, 0.6, 0.8], 0.5),
    ],
)  # fmt: skip
def test_what_is_not_finite_counts_as_the_worse_bound(private, maximize, losses, expected):
    query = query_of(4, 1.0 if private else math.inf, maximize=maximize)
    blocks = [np.array(losses[:2])[:, None], np.array(losses[2:])[:, None]]
    assert query.exact(blocks)[0] + query.offset == pytest.approx(expected)


def query_of(n, mu, *, maximize):
    config = MeansConfig(mu, n_trials=1)
    plan = make_plan(config, LINE, n)
    return value_query(
        ReleasedMeans(config, LINE, seed=0, maximize=maximize, plan=plan), "trial", {}
    )


def test_without_privacy_a_diverged_record_is_no_better_than_the_worst_one():
    query = query_of(3, math.inf, maximize=False)
    assert query.exact([np.array([[5.0], [1.0], [math.nan]])])[0] == pytest.approx(11 / 3)


# Smoothing --------------------------------------------------------------------------------------


def test_the_latest_values_count_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(smoothing, "MOST", 20)
    X = np.linspace(0, 1, 60)[:, None]
    y = np.where(np.arange(60) < 40, 100.0, (X[:, 0] - 0.8) ** 2)
    assert Smoother(X, y, 0.01).constant < 1.0


@pytest.mark.parametrize("seed", range(5))
def test_noise_that_differs_is_that_of_a_dense_gaussian_process(seed):
    rng = np.random.default_rng(seed)
    X, at, noise = rng.random((25, 2)), rng.random((7, 2)), rng.uniform(0.05, 0.4, 25)
    noise[3] = 3.0  # of a score that is not defined
    y = np.sin(4 * X[:, 0]) + noise * rng.standard_normal(25)
    found = Smoother(X, y, noise)
    kernel = Matern52(found.lengthscale)
    inverse = np.linalg.inv(found.amplitude * kernel.k(X, X) + np.diag(noise**2))
    one, k = np.ones(25), found.amplitude * kernel.k(X, at)
    c = one @ inverse @ y / (one @ inverse @ one)
    left = 1.0 - one @ inverse @ k
    variance = found.amplitude - (k * (inverse @ k)).sum(axis=0) + left**2 / (
        one @ inverse @ one
    )  # fmt: skip
    mean, sd = found.posterior(at)
    assert mean == pytest.approx(c + k.T @ inverse @ (y - c))
    assert sd == pytest.approx(np.sqrt(variance))
    lead, _ = found.difference(at[0], at[1])
    assert lead == pytest.approx(mean[0] - mean[1])


def test_noise_that_is_alike_is_one_number_and_none_counts_alone():
    X = np.linspace(0, 1, 9)[:, None]
    y = X[:, 0] ** 2
    one, alike = Smoother(X, y, 0.1), Smoother(X, y, np.full(9, 0.1))
    assert one.posterior(X)[0] == pytest.approx(alike.posterior(X)[0])
    odd = np.where(np.arange(9) == 4, 0.0, 0.1)
    assert np.isfinite(Smoother(X, y, odd).posterior(X)[0]).all()
