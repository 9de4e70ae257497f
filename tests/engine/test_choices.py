"""Choices are selected by released values, within the plan and its budget."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, choices, make_plan
from privbo_plugins.algorithms.dp_gibo.algorithm import words
from privbo_plugins.algorithms.protocols import FINAL, START
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.spaces import Categorical, Float, Space

from .helpers import answer, cost, cube, start

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")

N = 5400


def mixed(d, *sizes):
    """Choices first, numbers after them."""
    kinds = {f"c{i}": Categorical(tuple(range(size))) for i, size in enumerate(sizes)}
    return Space({**kinds, **{f"x{i}": Float(0.0, 1.0) for i in range(d)}})


TWO, MANY = mixed(2, 4, 2), mixed(6, 3)
LIFTS = np.array([0.2, 0.1, 0.3, 0.25, 0.15, 0.0, 0.2, 0.3])


def losses(space, x):
    """A bowl a combination, with its own bottom, and records that differ, shape (N, 1)."""
    arm = int(np.ravel_multi_index(x[~space.numeric].astype(int), sizes(space)))
    far = x[space.numeric] - 0.3 - 0.05 * arm
    offsets = 0.05 * np.linspace(-1, 1, N)
    return np.asarray(np.clip(LIFTS[arm] + (far @ far) + offsets, 0.0, 1.0)[:, None])


def sizes(space):
    return tuple(len(d.choices) for d in space.values() if isinstance(d, Categorical))


def run(algorithm, noise=None):
    """All trials but the last, one after another."""
    space = algorithm.space
    while algorithm.phase[0] != FINAL:
        role, step = algorithm.phase
        if role == START:
            x = algorithm.propose(len(algorithm.state.starts)).x
            query = algorithm.value_query("trial", role, step, x)
            assert query is not None
            asked = [(query, losses(space, x))]
        else:
            X = [algorithm.propose(slot).x for slot in range(algorithm.batch_capacity)]
            Y = np.hstack([losses(space, x) for x in X])
            names = [str(slot) for slot in range(len(X))]
            asked = [(q, Y) for q in algorithm.step_queries(names, X)]
        for query, Y in asked:
            release = answer(query, Y, noise)
            meta = json.loads(json.dumps(release.meta))
            algorithm.observe(type(release)(release.kind, release.key, release.values, meta))
    return algorithm


def made(space, mu=1.0, seed=0, **own):
    algorithm = start(GIBOConfig(mu=mu, **own), space, N, seed)
    assert isinstance(algorithm, DPGIBO)
    return algorithm


def chosen(algorithm):
    x = algorithm.recommendation()
    return tuple(int(c) for c in x[~algorithm.space.numeric])


# The plan ---------------------------------------------------------------------------------------


@given(
    d=st.integers(0, 8), arms=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    n=st.integers(10, 10**6), mu=st.floats(0.01, 100.0),
    limit=st.none() | st.integers(40, 300),
)  # fmt: skip
def test_selection_costs_the_budget_and_no_more_trials(d, arms, n, mu, limit):
    config = GIBOConfig(mu=mu, n_trials=limit)
    plan = make_plan(config, mixed(d, *arms), n)
    assert plan.n_trials <= (limit or math.inf)
    assert plan.n_values == plan.n_trials
    assert cost(plan) == pytest.approx(mu**2)
    assert (plan.n_steps > 0) == (d > choices.FEW or (0 < d and plan.n_searched == 0))
    if plan.n_searched and d:
        assert plan.value_noise <= choices.PRECISE * (1 + 1e-6)


@pytest.mark.parametrize("space", [TWO, MANY], ids=["few numbers", "many numbers"])
@pytest.mark.parametrize("own", [{"n_starts": 16}, {"mu": math.inf}], ids=str)
def test_a_run_that_is_told_how_to_start_does(space, own):
    plan = make_plan(GIBOConfig(**({"mu": 1.0} | own)), space, N)
    assert (plan.n_starts, plan.n_searched) == (16, 0)


def test_a_plan_with_choices_names_no_method_that_was_measured_without():
    plans = [make_plan(GIBOConfig(mu=1.0), space, N) for space in (TWO, mixed(0, 3), cube(2))]
    assert [plan.n_combinations for plan in plans] == [8, 3, 1]
    assert [plan.advice["as_good"] == [] for plan in plans] == [True, True, False]
    assert "not measured with choices" in str(plans[0])


def test_the_plan_and_the_claim_say_that_choices_are_selected():
    few, many = (make_plan(GIBOConfig(mu=1.0), space, N) for space in (TWO, MANY))
    assert "chosen by the values released before it (no gradients)" in str(few)
    assert "which also select the choices" in str(many)
    assert "steps of 12 trials" in str(many)
    assert "gradient" not in words(GIBOConfig(mu=1.0), few).statistics
    assert "gradient" in words(GIBOConfig(mu=1.0), many).statistics


# Where it looks ---------------------------------------------------------------------------------


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4))
def test_the_first_start_points_are_one_of_each_combination(arms):
    space = mixed(1, *arms)
    found = [choices.cover(slot, space) for slot in range(choices.n_arms(space))]
    assert sorted(found) == sorted(itertools.product(*map(range, arms)))
    assert choices.cover(len(found), space) == found[0]


def test_starts_try_every_choice_and_many_numbers_are_the_same_for_each():
    few = made(TWO)
    tried = {tuple(few.propose(slot).x[:2]) for slot in range(8)}
    assert tried == set(itertools.product(range(4), range(2)))
    X = [made(MANY).propose(slot).x for slot in range(6)]
    np.testing.assert_array_equal([x[1:] for x in X[:3]], np.full((3, 6), 0.5))
    np.testing.assert_array_equal(X[3][1:], X[5][1:])
    assert [x[0] for x in X] == [0, 1, 2, 0, 1, 2]


# What it finds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "mu"), [(TWO, 0.1), (MANY, 1.0), (mixed(0, 4, 2), 0.1)], ids=["few", "many", "none"]
)
def test_the_best_choice_is_found(space, mu):
    """The next best one is .1 worse; 4 seeds of noise and points."""
    best = np.unravel_index(int(LIFTS[: choices.n_arms(space)].argmin()), sizes(space))
    found = [chosen(run(made(space, mu, seed), InsecureNoise(seed))) for seed in range(4)]
    assert sum(arm == tuple(int(i) for i in best) for arm in found) >= 3


def test_steps_keep_the_selected_choice():
    algorithm = made(MANY)
    run(algorithm, InsecureNoise(0))
    starts = algorithm.plan.n_starts + algorithm.plan.n_searched if algorithm.plan else 0
    assert len(algorithm.state.starts) == starts
    first, *later = algorithm.path
    assert len(later) >= 8
    assert {x[0] for x in later} == {first[0]}
    assert algorithm.recommendation()[0] == first[0]
