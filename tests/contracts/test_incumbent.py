"""The incumbent on every host: evaluated first, and left only for what is clearly better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig
from privbo_plugins.algorithms.dp_gibo.choices import StartPoints, n_arms
from privbo_plugins.algorithms.protocols import Release
from privbo_plugins.algorithms.released_means import MeansConfig, ReleasedMeans, make_plan
from privbo_plugins.models.kernels import Matern52
from privbo_plugins.models.smoothing import Smoother
from privbo_plugins.sessions.records import Session
from privbo_plugins.spaces import Categorical, Float, Int, Space
from privbo_plugins.store.vault import open_vault
from tests.drivers import HOSTS, Run, begin, status
from tests.inside import algorithm_in

pytestmark = [
    pytest.mark.usefixtures("local_hosts"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
]

PAIRS = [(system, host) for system in ("records", "any sampler") for host in HOSTS]
each = pytest.mark.parametrize(("system", "host"), PAIRS)
PLACE = {("any sampler", "optuna"): 1, ("records", "optuna"): 0, ("records", "ray"): 0}
"""Which trial evaluates it; a searcher of Tune's own has points_to_evaluate for that."""

Start = Callable[..., Run]


def parabola(run, best=0.8):
    """Losses of which every record says where the best point is."""
    shape = np.random.default_rng(0).uniform(-0.1, 0.1, run.system.size)
    run.returned = lambda config: (config["x"] - best - shape) ** 2  # type: ignore[method-assign]
    return run


@pytest.mark.parametrize(("system", "host"), PLACE)
def test_it_is_evaluated_first(system, host, start):
    run = start(system, host, incumbent={"x": 0.3})
    run.trials(3)
    place = PLACE[system, host]
    assert run.points[place]["x"] == pytest.approx(0.3)
    assert sum(abs(point["x"] - 0.3) < 1e-9 for point in run.points) == 1


@each
def test_after_one_release_it_is_what_is_recommended(system, host, start):
    run = parabola(start(system, host, incumbent={"x": 0.3}))
    run.trials(1)
    assert run.ask("recommend")["x"] == pytest.approx(0.3)


@each
def test_it_is_left_for_a_point_that_is_clearly_better(system, host, start):
    run = parabola(start(system, host, mu=1e6, incumbent={"x": 0.1}))
    run.trials(14)
    assert abs(run.ask("recommend")["x"] - 0.8) < 0.5
    told = status(run)["comparison"]
    if system == "any sampler":
        best = min((point["x"] - 0.8) ** 2 for point in run.points)
        assert told["left"]
        assert told["lead"] == pytest.approx(0.49 - best, abs=0.05)
        assert told["text"] in run.page()


@each
def test_where_it_is_the_best_point_it_stays(system, host, start):
    run = parabola(start(system, host, mu=1e6, incumbent={"x": 0.8}))
    run.trials(14)
    assert run.ask("recommend")["x"] == pytest.approx(0.8, abs=0.05)
    if system == "any sampler":
        told = status(run)["comparison"]
        assert not told["left"]
        assert told["text"].startswith("No release says")
        assert told["text"] in run.page()


@each
@pytest.mark.parametrize("wrong", [{"x": 3.0}, {"y": 0.5}, {"x": True}, {"x": "0.5"}])
def test_what_is_no_point_of_the_space_is_refused_before_anything_is_charged(
    system, host, wrong, start
):
    match = f"incumbent= .*{next(iter(wrong))}"
    if (system, host) != ("any sampler", "optuna"):
        with pytest.raises(ValueError, match=match):
            start(system, host, incumbent=wrong)
        return
    run = start(system, host, incumbent=wrong)  # whose space the first trial tells
    with pytest.raises(ValueError, match=match):
        run.trials(1)
    assert run.ask("guarantee").n_releases == 0


@each
def test_a_run_goes_on_with_the_same_incumbent_only(system, host, start):
    name = {} if host == "optuna" else {"run_name": "a"}
    run = start(system, host, vault=True, incumbent={"x": 0.3}, **name)
    run.trials(2)
    run.more = {"incumbent": {"x": 0.4}}

    def go_on():
        if host == "ray":
            begin(system, host, run.folder, vault=True, **run.more, **name).trials(1)
        run.reopen()
        run.trials(1)

    with pytest.raises(ValueError, match=r"other settings|change under way"):
        go_on()


@pytest.mark.parametrize("system", ["records", "outside", "any sampler"])
def test_the_first_enqueued_trial_of_a_study_is_the_incumbent(system, start):
    run: Any = start(system, "optuna")
    run.trials(1)
    for x in (0.3, 0.9):
        run.study.enqueue_trial({"x": x})
    run.trials(2)
    assert enqueued(run.told._state(run.study).session) == pytest.approx([0.3])
    if system == "any sampler":
        assert status(run)["comparison"] is not None


def test_of_points_to_evaluate_the_first_one_is_the_incumbent(start):
    run: Any = start("records", "ray", points_to_evaluate=[{"x": 0.3}, {"x": 0.9}])
    run.trials(2)
    releases = run.search._call("ledger")[1]
    order = {r.meta["enqueued"]: r.meta["x"] for r in releases if "enqueued" in r.meta}
    assert [order[place] for place in sorted(order)] == [[0.3], [0.9]]


def enqueued(session):
    own = algorithm_in(session).incumbent
    return None if own is None else own.tolist()


SPACE = Space({"x": Float(0.0, 1.0)})


@pytest.mark.parametrize(
    "config", [GIBOConfig(1.0, n_trials=30), MeansConfig(1.0, n_trials=30)], ids=str
)
def test_workers_that_end_in_another_order_agree(config):
    """The first is the one that was enqueued first; a point of the host's own is none."""
    vault = open_vault(None)
    session = Session.open(vault, "s", config, maximize=False, seed=0)
    told = {"own": (0.9, None), "b": (0.5, 2), "a": (0.3, 1), "c": (0.7, 3)}
    seen = []
    for trial, (x, order) in told.items():
        session.tell(trial, {"x": x}, SPACE, np.full(50, x), enqueued=order)
        seen.append(enqueued(session))
    assert seen == [None, [0.5], [0.3], [0.3]]
    again = Session.open(vault, "s", config, maximize=False)
    again.set_space(SPACE)
    assert enqueued(again) == [0.3]


def test_settings_go_before_what_is_enqueued():
    config = MeansConfig(1.0, n_trials=30, incumbent={"x": 0.25})
    session = Session.open(open_vault(None), "s", config, maximize=False, seed=0)
    session.tell("a", {"x": 0.5}, SPACE, np.full(50, 0.5), enqueued=0)
    assert enqueued(session) == [0.25]


@pytest.mark.parametrize("first", [0.5, 0.9])
def test_the_first_chosen_point_is_the_incumbent_though_it_is_the_plans_own(first):
    session = Session.open(
        open_vault(None), "s", GIBOConfig(1.0, n_trials=30), maximize=False, seed=0
    )
    session.set_space(SPACE)
    for trial, x in (("a", first), ("b", 1.4 - first)):
        session.place(trial, np.array([x]))
    for trial, x in (("b", 1.4 - first), ("a", first)):
        session.tell(trial, {"x": x}, SPACE, np.full(50, x))
    assert enqueued(session) == [pytest.approx(first)]


def test_a_point_that_the_host_evaluated_is_not_proposed_again():
    config = GIBOConfig(1.0, n_trials=30, incumbent={"x": 0.25})
    session = Session.open(open_vault(None), "s", config, maximize=False, seed=0)
    session.tell("a", {"x": 0.25}, SPACE, np.full(50, 0.5))
    others = [session.ask(f"b{i}").x[0] for i in range(3)]
    assert 0.25 not in others
    assert others[0] == DPGIBO(config, SPACE, seed=0).propose(1).x[0]


# Where it is, and what is compared --------------------------------------------------------------

MIXED = Space(
    {"a": Float(1e-3, 1e3, log=True), "b": Categorical(("x", "y", "z")), "c": Categorical((1, 2)),
     "n": Int(1, 9)}
)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "a": st.floats(1e-3, 1e3),
            "b": st.sampled_from("xyz"),
            "c": st.sampled_from([1, 2]),
            "n": st.integers(1, 9),
        },
    ),
    st.integers(1, 5),
)
def test_starts_begin_with_it_and_still_try_every_combination(own, numbers):
    others = {f"x{i}": Float(0.0, 1.0) for i in range(numbers)}
    space = Space({**MIXED, **others})
    x = space.incumbent(own)
    assert space.decode(x) == pytest.approx(
        {"a": 1.0, "b": "x", "c": 1, "n": 5} | dict.fromkeys(others, 0.5) | own
    )
    starts = StartPoints(space, 0, centred=True, selects=True, incumbent=x)
    points = np.array([starts.at(slot) for slot in range(n_arms(space))])
    assert np.array_equal(points[0], x)
    assert len({tuple(point) for point in points[:, ~space.numeric]}) == 6


@given(st.integers(2, 30), st.integers(1, 3), st.integers(0, 10**6))
def test_a_difference_is_that_of_the_dense_posterior(m, d, seed):
    """The oracle solves with whole covariances, and the constant has a very wide prior."""
    rng = np.random.default_rng(seed)
    X, y, P = rng.random((m, d)), rng.standard_normal(m), rng.random((2, d))
    found = Smoother(X, y, 0.5)
    length, amplitude, sigma = found.scales
    kernel, wide = Matern52(length), 1e7
    K = amplitude * kernel.k(X, X) + sigma**2 * np.eye(m) + wide
    k = amplitude * kernel.k(X, P) + wide
    mean = k.T @ np.linalg.solve(K, y)
    S = amplitude * kernel.k(P, P) + wide - k.T @ np.linalg.solve(K, k)
    lead, sd = found.difference(P[0], P[1])
    assert lead == pytest.approx(mean[0] - mean[1], abs=1e-4)
    assert sd**2 == pytest.approx(S[0, 0] + S[1, 1] - 2 * S[0, 1], abs=1e-4)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("gain", [0.02, 0.8])
def test_another_point_needs_a_lead_beyond_the_noise(maximize, gain):
    """A released value's noise is .1, so a gain of .02 is none, whoever has the luckiest draw."""
    config = MeansConfig(1.0, n_trials=100, incumbent={"x": 0.0})
    plan = make_plan(config, SPACE, 100)
    algorithm = ReleasedMeans(config, SPACE, seed=0, maximize=maximize, plan=plan)
    assert algorithm.comparison is None
    for i in range(20):
        exact = gain * (i % 2) * (1 if maximize else -1)
        noise = 0.1 * np.sin(7.0 * i)
        algorithm.observe(Release("value", str(i), (exact + noise,), {"x": [float(i % 2)]}))
    told = algorithm.comparison
    assert told is not None
    assert told.left is (gain > 0.5)
    assert algorithm.recommendation() == [float(told.left)]
    assert told.lead == pytest.approx(gain if told.left else 0.0, abs=0.1)
