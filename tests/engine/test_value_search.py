"""The search by released values that is planned for few parameters with little noise."""

import json
import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from privbo_plugins.algorithms.dp_gibo import GIBOConfig, make_plan, value_search
from privbo_plugins.algorithms.dp_gibo.algorithm import words
from privbo_plugins.algorithms.dp_gibo.value_search import ValueSearch
from privbo_plugins.algorithms.protocols import FINAL, START
from privbo_plugins.models.estimates import Estimator
from privbo_plugins.models.kernels import Matern52
from privbo_plugins.plots import picture_of_path, picture_of_values
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.spaces import Float, Int, Space

from .helpers import answer, cost, cube, open_session, quadratic, run_session, start, tell

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")

MANY = 10_000
"""Records with which a search by values is planned at mu = 1."""


def searching(d, n=MANY, seed=0, space=None, **own):
    return start(GIBOConfig(mu=1.0, **own), space or cube(d), n, seed)


def told_to(algorithm, losses, trials, noise=None):
    """Trials one after another."""
    for _ in range(trials):
        role, step = algorithm.phase
        slot = len(algorithm.state.starts) if role == START else 0
        x = algorithm.propose(slot).x
        query = algorithm.value_query(f"{role}/{slot}", role, step, x)
        assert query is not None
        release = answer(query, losses(x)[:, None], noise)
        meta = json.loads(json.dumps(release.meta))
        algorithm.observe(type(release)(release.kind, release.key, release.values, meta))


# The plan ---------------------------------------------------------------------------------------


@given(
    d=st.integers(1, 6), n=st.integers(10, 10**6), mu=st.floats(0.01, 100.0),
    limit=st.none() | st.integers(14, 300),
    bound=st.sampled_from([0.01, 1.0, (-3.0, 2.0)]),
)  # fmt: skip
def test_a_search_costs_the_budget_and_the_trials_of_descent(d, n, mu, limit, bound):
    own = {"n_trials": limit, "loss_bound": bound}
    plan = make_plan(GIBOConfig(mu=mu, **own), cube(d), n)
    descent = make_plan(GIBOConfig(mu=mu, n_starts=plan.n_starts, **own), cube(d), n)
    assert descent.n_searched == 0
    assert plan.n_trials == descent.n_trials <= (limit or math.inf)
    assert plan.n_last == (0 if plan.n_searched else descent.n_last)
    assert plan.n_values == plan.n_trials
    assert cost(plan) == pytest.approx(mu**2)
    if plan.n_searched == 0:
        assert plan == descent
        return
    low, high = bound if isinstance(bound, tuple) else (0.0, bound)
    assert (plan.n_steps, plan.mu_gradient, plan.gradient_noise) == (0, 0.0, 0.0)
    assert d <= 4
    assert plan.value_noise <= 0.0126 * (high - low) * (1 + 1e-6)


def test_descent_ends_where_values_are_precise_enough():
    """Noise of 1.26 percent of the range, written out: sqrt(94 / .85) / n."""
    edge = math.ceil(math.sqrt(94 / 0.85) / 0.0126)
    plans = [make_plan(GIBOConfig(mu=1.0), cube(2), n) for n in (edge - 1, edge)]
    assert [(plan.n_steps, plan.n_searched) for plan in plans] == [(25, 0), (0, 78)]
    assert [plan.n_trials for plan in plans] == [94, 94]


@pytest.mark.parametrize(
    "own",
    [{"n_steps": 25}, {"n_starts": 16}, {"batch_size": 3}, {"tolerance": 60.0}, {"memory": 2},
     {"value_share": 0.2}, {"clipping_norm": 1.0}, {"lengthscale": 0.2}, {"step_size": 0.1},
     {"step_rule": "sgd"}, {"as_published": True}, {"kernel": "matern52"},
     {"random_start": True}, {"noise_ratio": 0.1},
     {"mu": math.inf}],
    ids=str,
)  # fmt: skip
def test_a_setting_of_descent_brings_descent(own):
    plan = make_plan(GIBOConfig(**({"mu": 1.0} | own)), cube(2), MANY)
    assert plan.n_searched == 0
    assert plan.n_steps == 25


def test_the_plan_and_the_claim_say_what_is_released():
    config, space = GIBOConfig(mu=1.0), cube(2)
    plan = make_plan(config, space, MANY)
    assert "78 points, each chosen by the values released before it" in str(plan)
    assert "0 steps" not in str(plan)
    assert json.loads(json.dumps(plan.to_dict()))["n_searched"] == 78
    claim = words(config, plan)
    assert "gradient" not in claim.statistics
    assert claim.parameters == {
        "N": 94,
        "value_range": (0.0, 1.0),
        "value_noise": plan.value_noise,
        "comparison_noise": plan.comparison_noise,
    }
    descent = make_plan(GIBOConfig(mu=1.0, n_starts=16), space, MANY)
    assert "points, each" not in str(descent)
    assert "25 steps of 3 trials" in str(descent)


# Points -----------------------------------------------------------------------------------------


def posterior(X, y, sigma, length, a, at):
    """Mean and variance with a constant of unknown value, by dense linear algebra."""
    k = Matern52(length).k
    K = np.linalg.inv(a * k(X, X) + sigma**2 * np.eye(len(X)))
    one, c = np.ones(len(X)), a * k(X, at)
    constant = one @ K @ y / (one @ K @ one)
    mean = constant + c.T @ K @ (y - constant)
    variance = a - np.sum(c * (K @ c), axis=0) + (1 - one @ K @ c) ** 2 / (one @ K @ one)
    return mean, variance


@pytest.mark.parametrize("maximize", [False, True])
def test_the_best_point_has_the_least_posterior_mean_of_direct_linear_algebra(maximize):
    rng, space, sigma = np.random.default_rng(3), cube(2), 0.03
    X = rng.random((16, 2))
    y = ((X - 0.6) ** 2).sum(1) + sigma * rng.standard_normal(16)
    told = [(x.tolist(), float(v)) for x, v in zip(X, -y if maximize else y, strict=True)]
    bounds = (-3.0, 3.0)
    model = Estimator(space, bounds, sigma, maximize=maximize)
    search = ValueSearch(space, model, seed=0, maximize=maximize)
    fitted = model.smoother(told)
    mean, variance = posterior(X, y / 6, sigma / 6, fitted.lengthscale, fitted.amplitude, X)
    assert search.best(told) == X[(6 * mean + 3 * np.sqrt(variance)).argmin()].tolist()
    found, sd = fitted.posterior(X)
    np.testing.assert_allclose(sd, np.sqrt(variance), rtol=1e-6)
    np.testing.assert_allclose(found, (0.5 - mean) if maximize else (0.5 + mean), rtol=1e-6)
    assert mean.argmin() != y.argmin()  # the luckiest draw is another one


def test_the_next_point_is_the_least_optimistic_bound_of_direct_linear_algebra():
    """Of many points of the square, none has a bound that is clearly lower."""
    rng, sigma, space = np.random.default_rng(4), 0.02, cube(2)
    X = rng.random((20, 2))
    y = ((X - 0.6) ** 2).sum(1) + sigma * rng.standard_normal(20)
    told = [(x.tolist(), float(v)) for x, v in zip(X, y, strict=True)]
    model = Estimator(space, (0.0, 1.0), sigma, maximize=False)
    chosen = ValueSearch(space, model, seed=0, maximize=False).next(20, told)
    fitted = model.smoother(told)
    others = np.vstack([chosen, rng.random((4000, 2))])
    mean, variance = posterior(X, y, sigma, fitted.lengthscale, fitted.amplitude, others)
    bound = mean - np.sqrt(variance)
    assert bound[0] <= bound[1:].min() + 0.003
    assert bound[0] < np.quantile(bound[1:], 0.01)


def test_with_points_out_less_is_known_where_the_next_one_lies(monkeypatch):
    """By direct linear algebra: a bolder search looks where the deviation is larger."""
    rng, sigma, found = np.random.default_rng(4), 0.02, []
    X, out = rng.random((20, 2)), rng.random((7, 2))
    y = ((X - 0.6) ** 2).sum(1) + sigma * rng.standard_normal(20)
    told = [(x.tolist(), float(v)) for x, v in zip(X, y, strict=True)]
    for hope in (0.0, None, 5.0):
        if hope is not None:
            monkeypatch.setattr(value_search, "_MORE_HOPE", hope)
        model = Estimator(cube(2), (0.0, 1.0), sigma, maximize=False)
        search = ValueSearch(cube(2), model, seed=0, maximize=False)
        chosen = np.array([search.next(slot, told, list(out)) for slot in range(20, 40)])
        scales = model.smoother(told)
        seen = np.vstack([X, out]), np.append(y, np.zeros(7))
        of = scales.lengthscale, scales.amplitude
        found.append(posterior(*seen, sigma, *of, chosen)[1])
        monkeypatch.undo()
    timid, usual, bold = found
    assert timid.mean() < 0.8 * usual.mean() < usual.mean() < bold.mean()


@settings(max_examples=15)
@given(d=st.integers(1, 2), seed=st.integers(0, 99), trials=st.integers(0, 40))
def test_the_same_releases_propose_the_same_points_in_the_cube(d, seed, trials):
    losses, _ = quadratic(50, d, seed)
    one, again = (searching(d, seed=seed) for _ in range(2))
    for algorithm in (one, again):
        told_to(algorithm, losses, trials, InsecureNoise(seed))
    out, failed = [np.full(d, 0.3)], [np.full(d, 0.8)]
    for slot in (trials, trials + 1, trials + 7):
        x = one.propose(slot, out, failed).x
        assert np.array_equal(x, again.propose(slot, out, failed).x)
        assert np.array_equal(x, one.propose(slot, out, failed).x)
        assert ((x >= 0) & (x <= 1)).all()
    assert one.state_dict() == again.state_dict()


@pytest.mark.parametrize("failed", [False, True])
def test_points_that_are_out_or_have_failed_are_not_asked_for_again(failed):
    """With exact values another evaluation of one point says nothing."""
    losses, _ = quadratic(50, 2, 0)
    algorithm = searching(2, 10**6)
    told_to(algorithm, losses, 30)
    others = [algorithm.propose(30).x]
    for slot in range(31, 36):
        x = algorithm.propose(slot, *(([], others) if failed else (others, []))).x
        assert min(np.linalg.norm(x - other) for other in others) > 1e-3
        others.append(x)


def test_a_coarse_grid_is_searched_at_its_cells_and_the_least_one_found():
    space = Space({"k": Int(1, 9), "s": Float(0.0, 1.0, step=0.25)})
    algorithm = searching(2, 10**7, space=space)
    told_to(algorithm, lambda x: np.full(20, 0.3) + ((x - [0.6, 0.3]) ** 2).sum(), 92)
    seen = {tuple(x) for x, _ in algorithm.state.values}
    assert all(np.array_equal(space.snap(x), x) for x in seen)
    assert space.decode(algorithm.recommendation()) == {"k": 6, "s": 0.25}


def test_values_lead_off_a_plateau_that_has_no_slope():
    """An error rate of .9 on seven eighths of the square, the middle among them."""

    def losses(x):
        return np.full(100, 0.02 if x[0] < 0.35 and x[1] < 0.35 else 0.9)

    algorithm = searching(2, seed=5)
    told_to(algorithm, losses, 94, InsecureNoise(0))
    assert algorithm.phase[0] == FINAL
    assert losses(algorithm.recommendation())[0] == 0.02


# The end of descent -----------------------------------------------------------------------------


def test_a_run_that_ends_on_a_plateau_recommends_another_point_and_draws_the_way():
    def losses(x):
        return np.full(300, 0.02 if x[0] < 0.4 and x[1] < 0.4 else 0.9)

    session = open_session(GIBOConfig(mu=0.5), cube(2), noise=InsecureNoise(1))
    run_session(session, losses)
    assert session.plan.n_steps == 25
    assert losses(session.recommended_point()[0])[0] == 0.02
    path = session.history().path
    assert path.shape == (27, 2)  # theta_0 to theta_25, and the point that is recommended
    assert losses(path[25])[0] == 0.9
    assert sum(charge.mu**2 for charge in session.ledger()) == pytest.approx(0.25)


# In a session -----------------------------------------------------------------------------------


def test_a_session_runs_a_search_whose_charges_are_the_budget_and_whose_path_is_drawn():
    losses, bottom = quadratic(2000, 2, 1)
    session = open_session(GIBOConfig(mu=1.0), cube(2))
    shown = run_session(session, losses)
    assert len(shown) == 94
    charges = session.ledger()
    assert {charge.kind for charge in charges} == {"value", "comparison"}
    assert sum(charge.mu**2 for charge in charges) == pytest.approx(1.0)
    assert np.linalg.norm(session.recommended_point()[0] - bottom) < 0.15
    history = session.history()
    assert len(history.path) in (8, 9)  # after 1, 2, 4, ..., 64 and all values, and a better one
    assert np.array_equal(history.path[-1], session.recommended_point()[0])
    assert len(picture_of_path(history).series) == 2
    assert sum(len(series.x) for series in picture_of_values(history).series) == 94
    assert not session.run.held_losses()


def test_workers_at_once_are_sent_to_different_points_and_a_second_process_to_the_same():
    losses, _ = quadratic(10**5, 2, 1)
    first = open_session(GIBOConfig(mu=1.0), cube(2))
    for number in range(24):
        tell(first, f"t{number}", losses)
    asked = [first.ask(f"w{number}") for number in range(4)]
    distances = scipy.spatial.distance.pdist([proposal.x for proposal in asked])
    assert distances.min() > 1e-3
    assert [proposal.slot for proposal in asked] == [24, 25, 26, 27]
    second = open_session(GIBOConfig(mu=1.0), cube(2), vault=first.run.vault)
    second.refresh()
    second.set_space(cube(2))
    first.fail("w3")
    out = [proposal.x for proposal in asked[:3]]
    known = second._known().algorithm
    expected = known.propose(27, out, [asked[3].x]).x
    assert np.array_equal(first.ask("w4").x, expected)
    assert np.array_equal(second.ask("w4").x, expected)
    assert np.array_equal(second.ask("w1").x, asked[1].x)
