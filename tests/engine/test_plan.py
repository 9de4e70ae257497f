"""What DP-GIBO plans from public quantities, and which method a plan names."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import map as measured
from privbo_plugins.algorithms.dp_gibo import GIBOConfig, make_plan
from privbo_plugins.algorithms.dp_gibo.advice import advise, as_good
from privbo_plugins.algorithms.protocols import lasting
from privbo_plugins.algorithms.registry import planned
from privbo_plugins.groups import Unit
from privbo_plugins.models.gaussian_process import gradient_weights

from .helpers import answer, cost, cube, start

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")

MUS = st.floats(0.01, 100.0)
RECORDS = st.integers(10, 10**6)
SIZES = st.integers(1, 70)
BOUNDS = st.sampled_from([0.01, 1.0, 40.0, (-3.0, 2.0)])


def plan_of(d, n, mu, **more):
    return make_plan(GIBOConfig(mu=mu, **more), cube(d), n)


def width(loss_bound):
    return loss_bound[1] - loss_bound[0] if isinstance(loss_bound, tuple) else loss_bound


# What is planned --------------------------------------------------------------------------------


@given(d=SIZES, n=RECORDS, mu=MUS, factor=st.floats(1.0, 50.0), loss_bound=BOUNDS)
def test_a_larger_budget_or_more_records_never_mean_a_smaller_norm_or_a_longer_scale(
    d, n, mu, factor, loss_bound
):
    less = plan_of(d, n, mu, loss_bound=loss_bound)
    for more in (
        plan_of(d, n, mu * factor, loss_bound=loss_bound),
        plan_of(d, math.ceil(n * factor), mu, loss_bound=loss_bound),
    ):
        assert more.clipping_norm >= less.clipping_norm
        assert more.lengthscale <= less.lengthscale
        assert abs(more.n_trials - less.n_trials) <= 1  # whether values name a third point
        assert more.batch_size == less.batch_size
        assert more.n_searched >= less.n_searched  # values are no less precise
        if more.n_searched == less.n_searched:
            assert (more.n_steps, more.step_size) == (less.n_steps, less.step_size)
    C = width(loss_bound)
    assert 0.1 * C * (1 - 1e-12) <= less.clipping_norm <= C
    at_one = plan_of(d, n, mu)
    assert less.clipping_norm == pytest.approx(C * at_one.clipping_norm)
    assert less.lengthscale == at_one.lengthscale


@given(d=SIZES, n=RECORDS, mu=MUS, loss_bound=BOUNDS)
def test_a_planned_norm_between_its_ends_gives_every_run_noise_of_one_length(d, n, mu, loss_bound):
    """The noise in clipping norms, written out: 2 sqrt(T d / .86025) / (n mu)."""
    plan, C = plan_of(d, n, mu, loss_bound=loss_bound, n_starts=16), width(loss_bound)
    nu = 2 * math.sqrt(plan.n_steps * d / 0.86025) / (n * mu)
    assert plan.noise_norm == pytest.approx(nu, rel=1e-5)
    expected = 0.1 if nu > 0.126 else min(0.0126 / nu, 1.0)
    assert plan.clipping_norm == pytest.approx(expected * C, rel=1e-5)
    assert plan.gradient_noise * math.sqrt(d) == pytest.approx(nu * expected * C, rel=1e-5)


@given(
    d=SIZES, n=RECORDS, mu=MUS, share=st.sampled_from([0.0, 0.1, 0.4]),
    adaptive=st.booleans(), limit=st.none() | st.integers(90, 3000),
)  # fmt: skip
def test_what_is_planned_costs_the_budget_and_no_more_trials_than_25_simplices(
    d, n, mu, share, adaptive, limit
):
    own = {"value_share": share, "n_trials": limit}
    if adaptive:
        own["clipping_norm"] = "adaptive"
    plan = plan_of(d, n, mu, **own)
    assert cost(plan) == pytest.approx(mu**2)
    assert plan.n_trials <= (limit or plan.n_starts + 25 * (d + 1) + 3)
    assert plan.batch_size in (d + 1, 2 * d)
    if plan.batch_size > d + 1:
        assert plan.n_steps >= 8
    assert math.sqrt(d) * plan.step_size * plan.n_steps / 2 <= 2.0 * (1 + 1e-12)


def test_values_leave_an_adaptive_norm_its_share():
    with pytest.raises(ValueError, match=r"value_share must stay below 0.95 .* got 0.95"):
        GIBOConfig(mu=1.0, clipping_norm="adaptive", value_share=0.95)
    assert GIBOConfig(mu=1.0, value_share=0.95).value_share == 0.95


GIVEN = [
    {"n_steps": 7}, {"n_steps": 40}, {"batch_size": 5}, {"batch_size": 12}, {"clipping_norm": 0.7},
    {"clipping_norm": 30.0}, {"lengthscale": 0.9}, {"step_size": 0.02},
    {"n_steps": 30, "batch_size": 12, "clipping_norm": 2.0, "lengthscale": 0.1, "step_size": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("own", GIVEN, ids=str)
@pytest.mark.parametrize("mu", [0.05, 1.0, 50.0, math.inf])
def test_what_a_user_gives_wins(own, mu):
    plan = plan_of(6, 500, mu, **own)
    assert {name: getattr(plan, name) for name in own} == own
    if "n_steps" in own and "batch_size" not in own:
        assert plan.batch_size == 7
        assert plan.lengthscale == 0.35


@pytest.mark.parametrize(
    "kept",
    [{"memory": 3}, {"memory": -1}, {"as_published": True}, {"kernel": "polynomial2"},
     {"tolerance": 60.0}, {"n_trials": 100}],
    ids=str,
)  # fmt: skip
def test_pairs_are_planned_only_where_their_closed_form_holds_and_steps_enough_fit(kept):
    plan, usual = plan_of(6, 500, 0.3, **kept), plan_of(6, 500, 0.3)
    assert (usual.n_steps, usual.batch_size) == (25 * 7 // 12, 12)
    assert plan.batch_size <= 7
    assert plan.lengthscale == 0.35


@given(d=SIZES, n=RECORDS, mu=MUS, factor=st.integers(2, 30))
def test_a_plan_is_a_function_of_records_times_mu(d, n, mu, factor):
    """So the map simulates cells with one product once."""
    plan, other = plan_of(d, n * factor, mu), plan_of(d, n, mu * factor)
    same = ("n_starts", "n_steps", "batch_size", "n_values", "step_size")
    assert [getattr(plan, name) for name in same] == [getattr(other, name) for name in same]
    for name in ("gradient_noise", "value_noise", "clipping_norm", "lengthscale"):
        assert getattr(plan, name) == pytest.approx(getattr(other, name))


def test_pairs_find_the_slope_of_a_curved_loss_and_a_simplex_does_not():
    """Of losses y(x) = a·x + xᵀHx / 2 the gradient at 0 is a, whatever the curvature H."""
    d, rng = 5, np.random.default_rng(0)
    a, root = rng.standard_normal(d), rng.standard_normal((d, d))
    angles = []
    for more in ({}, {"batch_size": d + 1}):
        engine = start(GIBOConfig(mu=1.0, n_starts=0, value_share=0.0, **more), cube(d), 900)
        X = np.array([engine.propose(slot).x for slot in range(engine.batch_capacity)])
        moved = X - 0.5
        y = moved @ a + 20.0 * ((moved @ root) ** 2).sum(1) / 2
        g = (y - y.mean()) @ gradient_weights(engine.batches.kernel, X, np.full(d, 0.5), 0.01)
        angles.append(float(g @ a / np.linalg.norm(g) / np.linalg.norm(a)))
    assert angles[0] == pytest.approx(1.0, abs=1e-9)
    assert angles[1] < 0.9


@pytest.mark.parametrize(
    ("mu", "d", "n", "told"),
    [
        (1.0, 15, 700, (13, 30, 0.29291, 0.25, 1 / 13)),
        (0.3, 15, 700, (13, 30, 0.1, 0.41064, 1 / 13)),
        (0.1, 15, 700, (13, 30, 0.1, 0.65841, 1 / 13)),
        (0.1, 64, 1200, (12, 128, 0.1, 1.36, 0.5 / 12)),
        (1.0, 2, 700, (25, 3, 0.57845, 0.15, 1 / 25)), (1.0, 2, 900, (0, 3, 1.0, 0.15, 1.0)),
        (1.0, 5, 900, (15, 10, 0.60725, 0.25, 1 / 15)),
        (1.0, 1, 600, (25, 2, 0.70119, 0.15, 1 / 25)), (1.0, 1, 900, (0, 2, 1.0, 0.15, 1.0)),
        (0.1, 1, 300, (25, 2, 0.1, 0.16786, 1 / 25)), (0.1, 4, 300, (25, 5, 0.1, 0.35, 1 / 25)),
    ],
)  # fmt: skip
def test_numbers_of_default_plans(mu, d, n, told):
    plan = plan_of(d, n, mu)
    now = (plan.n_steps, plan.batch_size, plan.clipping_norm, plan.lengthscale, plan.step_size)
    assert now == pytest.approx(told, rel=1e-4)


# Where descent begins ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "own", "gain", "leaves"),
    [
        (8, {}, 0.02, False), (8, {}, 0.04, True), (8, {"loss_bound": 10.0}, 0.2, False),
        (8, {"loss_bound": 10.0}, 0.4, True), (8, {"n_steps": 10}, 0.02, True),
        (4, {}, 0.02, True),
    ],
    ids=str,
)  # fmt: skip
def test_with_many_parameters_a_start_that_is_a_little_better_than_the_middle_is_not_taken(
    d, own, gain, leaves
):
    """A million records: noise decides nothing. The fifth start is better than the others."""
    algorithm = start(GIBOConfig(mu=1.0, **own), cube(d), 10**6)
    for slot in range(16):
        x = algorithm.propose(slot).x
        query = algorithm.value_query(f"t{slot}", *algorithm.phase, x)
        assert query is not None
        algorithm.observe(answer(query, np.full((10, 1), 0.5 - gain * (slot == 4))))
    assert (algorithm.recommendation().tolist() != [0.5] * d) == leaves


# Which method it names --------------------------------------------------------------------------


def test_the_table_that_is_shipped_is_that_of_the_measurements():
    record = json.loads((measured.RESULTS / "map.json").read_text())
    assert measured.summarise(record["runs"]) == record["summary"]
    written = measured.written_table(measured.advice(record["summary"]))
    assert measured.TABLE.read_text() == written


def test_a_plan_names_the_method_of_its_cell_in_words_and_in_json():
    for d, levels in as_good().items():
        for level, named in levels.items():
            plan = make_plan(GIBOConfig(mu=0.5), cube(d), 2 * level)
            told = json.loads(json.dumps(plan.to_dict()))["advice"]
            assert told["as_good"] == list(named)
            assert told["text"] in str(plan)
            assert f"d={d}, n mu={level}: " in told["text"]


@pytest.mark.parametrize(
    ("d", "n", "mu", "why"),
    [(65, 1000, 1.0, "d > 64"), (0, 1000, 1.0, "d < 1"), (8, 100, 0.1, "n mu < 30"),
     (8, 10**6, 1.0, "n mu > 300000"), (8, 100, math.inf, "n mu > 300000"),
     (64, 300, 0.1, "n mu < 100")],
)  # fmt: skip
def test_nothing_is_recommended_where_nothing_was_measured(d, n, mu, why):
    assert advise(d, n, mu) == {"as_good": [], "text": f"not measured for {why}"}


# How long it takes ------------------------------------------------------------------------------


def makespan(batches, workers):
    """Trials that run one after another, where a batch begins once the one before it is over."""
    turns = 0
    for left in batches:
        while left > 0:
            left -= workers
            turns += 1
    return turns


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("d", [1, 3, 15])
def test_the_time_of_a_plan_is_that_of_its_batches(d, workers):
    plan = plan_of(d, 5000, 1.0, n_starts=16).presented(60.0, workers)
    batches = [plan.n_starts + plan.n_searched, *[plan.batch_size] * plan.n_steps, plan.n_last]
    assert sum(batches) == plan.n_trials
    assert plan.seconds == 60.0 * makespan(batches, workers)
    assert plan.to_dict()["seconds"] == plan.seconds


def test_a_plan_says_its_time_only_where_a_trials_is_known():
    plan = plan_of(3, 5000, 1.0)
    assert plan.n_trials == 119
    assert not {"seconds", "seconds_per_trial", "n_workers"} & plan.presented().to_dict().keys()
    assert "time" not in str(plan.presented())
    assert "time: about 40 h, with trials of 20 min, 1 at a time" in str(plan.presented(1200))
    assert "time: about 10 h, with trials of 20 min, 4 at a time" in str(plan.presented(1200, 4))


def test_a_plan_says_that_it_is_shorter_than_was_asked():
    said = {
        n: str(planned(GIBOConfig(mu=1.0, n_trials=n), cube(2), 300, Unit())) for n in (28, 30)
    }
    assert "28 trials of n_trials=30, as steps are whole" in said[30]
    assert "n_trials" not in said[28]
    assert said[30].startswith(said[28])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25 s"), (119, "120 s"), (121, "2 min"), (7199, "120 min"), (7201, "2 h"),
     (3 * 86400 - 1, "72 h"), (3 * 86400, "3 days"), (40 * 86400, "40 days")],
)  # fmt: skip
def test_a_time_in_words(seconds, words):
    assert lasting(seconds) == words


@pytest.mark.parametrize("given", [{"seconds_per_trial": 0}, {"seconds_per_trial": float("nan")},
                                   {"n_workers": 0}, {"n_workers": 1.5}])  # fmt: skip
def test_a_time_that_is_none_is_refused(given):
    plan = plan_of(1, 5000, 1.0)
    with pytest.raises(ValueError, match=f"{next(iter(given))} must be"):
        plan.presented(**given)
