"""Where a run stands, of every search: numbers that a program reads, and nothing private."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from ray import tune

from privbo_plugins.errors import UtilityWarning
from privbo_plugins.sessions.rows import Curator
from raytune_searchers import (
    DUETSSearch,
    LDPGPUCBSearch,
    POGPUCBSearch,
)
from tests.raytune_searchers.federated_scenes import make_search
from tests.raytune_searchers.hosts import evaluation
from tests.raytune_searchers.runs import make_search as make_central
from tests.systems import Secrets

LINE = {"x": tune.uniform(0.0, 1.0)}
REWARDS: dict[str, Any] = {"value_range": (0, 1), "metric": "reward", "mode": "max", "seed": 1}

_OWN: list[Secrets] = []


@pytest.fixture
def own() -> Secrets:
    """Whoever's secrets they are: trainables travel by name, so the test knows what they made."""
    _OWN[:] = [Secrets(size=16)]
    return _OWN[0]


def losses(config: dict[str, Any]) -> np.ndarray:
    return _OWN[0].vector()


def reward(config: dict[str, Any]) -> float:
    return _OWN[0].reward()


def value(agent: Any, config: dict[str, Any]) -> float:
    return _OWN[0].reward()


def summary_of(search: Any, own: Secrets) -> dict[str, Any]:
    """What it says, once it has gone through JSON and no secret was found in it."""
    told = search.status()
    text = json.dumps(told, allow_nan=False)
    assert own.hits("status", text.encode()) == []
    assert json.loads(text) == told
    return dict(told)


@pytest.mark.usefixtures("local_hosts")
def test_of_records_it_counts_trials_releases_and_mu(own: Secrets) -> None:
    search = make_central(n_starts=2, n_steps=1)
    assert search.set_search_properties("loss", "min", dict(LINE))
    before = summary_of(search, own)
    assert (before["done"], before["planned"], before["finished"]) == (0, None, False)
    assert (before["releases"], before["recommendation"]) == (0, False)
    done = 0
    for n, finished in ((2, False), (20, True)):
        done += len(evaluation(search, search.private(losses), n, name=f"after {n}"))
        told, guarantee = summary_of(search, own), search.guarantee()
        assert (told["done"], told["counted"]) == (done, "trials")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UtilityWarning)
            assert told["planned"] == search.plan(LINE, 16).n_trials
        assert told["finished"] is finished is search.finished()
        assert told["recommendation"] is told["protected"] is True
        assert (told["measure"], told["spent"]) == ("mu", guarantee.mu_spent)
        assert (told["releases"], told["budget"]) == (guarantee.n_releases, guarantee.mu)
    search.close()
    assert summary_of(search, own) == told


@pytest.mark.usefixtures("local_hosts")
def test_of_rewards_it_counts_trials_and_the_epsilon_of_a_user(own: Secrets) -> None:
    search = LDPGPUCBSearch(
        0.5, n_trials=4, user_budget=5.0, mechanism="laplace", search_space=LINE, **REWARDS
    )
    told = summary_of(search, own)
    assert (told["releases"], told["spent"], told["finished"]) == (0, 0.0, False)
    private = search.private(reward, user_id="Jane")
    for n in range(1, 6):
        evaluation(search, private, 1, name=f"trial {n}")
        assert summary_of(search, own) == {
            "protected": True, "counted": "trials", "done": n, "planned": 4, "finished": n >= 4,
            "recommendation": True, "releases": n, "measure": "epsilon", "delta": 0.0,
            "spent": 0.5 * n, "budget": 5.0,
        }  # fmt: skip
        assert search.finished() is (n >= 4)


@pytest.mark.filterwarnings("ignore:Nothing is protected. epsilon = infinity")
def test_without_privacy_there_are_trials_and_no_releases(own: Secrets) -> None:
    search = LDPGPUCBSearch(
        float("inf"), search_space=LINE, metric="reward", mode="max", seed=1, value_range=(0, 1)
    )
    for trial in "abc":
        search.suggest(trial)
        search.on_trial_complete(trial, {"reward": own.reward()})
    told = summary_of(search, own)
    assert (told["done"], told["releases"], told["protected"]) == (3, 0, False)
    assert (told["spent"], told["planned"], told["finished"]) == ("inf", None, None)
    assert search.finished() is False


@pytest.mark.usefixtures("local_hosts")
def test_of_agents_that_share_work_it_has_epochs_too_and_ends_with_the_last(own: Secrets) -> None:
    search = DUETSSearch(
        2, epsilon=1.0, n_trials=7, discretisation=64, search_space=LINE, **REWARDS
    )
    assert search.finished() is False
    for n in range(1, 12):
        evaluation(search, search.private(reward), 1, name=f"trial {n}")
        told = summary_of(search, own)
        assert (told["done"], told["planned"], told["releases"]) == (n, 8, n)
        assert told["finished"] is search.finished() is (n >= 8)
        assert [epoch["epoch"] for epoch in told["epochs"]] == [1] * (n >= 4)
    assert (told["agents"], told["spent"]) == (2, 1.0)


def test_of_rows_it_counts_answers_and_what_the_table_costs(own: Secrets) -> None:
    X = own.vector(24).reshape(12, 2)
    curator = Curator(
        X, epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * 2, outcomes=np.linspace(0, 1, 12)
    )
    search = POGPUCBSearch(curator.release(), metric="answer", mode="max", seed=1)
    for n, trial in enumerate("abc"):
        assert summary_of(search, own) == {
            "protected": True, "counted": "answers", "done": n, "planned": None, "finished": None,
            "recommendation": n > 0, "releases": n, "measure": "epsilon", "delta": 1e-6,
            "spent": 4.0, "budget": 4.0,
        }  # fmt: skip
        config = search.suggest(trial)
        assert isinstance(config, dict)
        search.on_trial_complete(trial, {"answer": curator.evaluate(config["row"])})
    with pytest.warns(UtilityWarning, match="times as long as they are apart") as caught:
        plan = search.plan()
    assert [one.filename for one in caught] == [__file__]
    assert (plan.n_rows, plan.n_columns, plan.epsilon) == (12, 2, 4.0)


@pytest.mark.usefixtures("local_hosts")
def test_of_a_federation_it_counts_rounds_and_nothing_of_an_agent(own: Secrets) -> None:
    search = make_search(agents=["oslo", "bergen", "bodo", "hamar"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UtilityWarning)
        plan = search.plan()
    before = summary_of(search, own)
    assert (before["done"], before["planned"], before["finished"]) == (0, plan.n_rounds, False)
    assert before["spent"] == 0.0
    evaluation(search, search.private(value))
    told, guarantee = summary_of(search, own), search.guarantee()
    assert (told["done"], told["planned"], told["counted"]) == (2, 2, "rounds")
    assert told["finished"] is search.finished() is True
    assert (told["spent"], told["budget"]) == (guarantee.epsilon_spent, guarantee.epsilon)
    assert told["recommendation"] is None
    assert plan.epsilon == guarantee.epsilon
    search.close()
    assert summary_of(search, own) == told
