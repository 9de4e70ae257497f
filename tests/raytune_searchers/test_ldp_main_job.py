"""Privatised rewards: every searcher, and one user a trial."""

import math
from collections import Counter

import numpy as np
import pytest
import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.errors import BudgetExceededError, PrivacyError, PrivacyWarning, VaultError
from privbo_plugins.store.run import NEVER_COMPARED
from raytune_searchers import (
    LDPGPUCBSearch,
    LDPMoMAGPUCBSearch,
    ldp_trainable,
    report_public,
)
from tests.inside import (
    call_host,
    channel_of,
    end_host,
    holds_a_host,
    ledger_of,
    model_of,
)
from tests.raytune_searchers.hosts import evaluation
from tests.raytune_searchers.runs import LINE, fit
from tests.worker import append, lines

ARMS = 10

DISTANCES = np.abs(np.arange(ARMS)[:, None] - np.arange(ARMS))

KERNEL = np.exp(-((DISTANCES / 3.0) ** 2))

ENDS = {1.581976706870165, -0.5819767068701649}
"""The two outputs of randomised response at epsilon = 1 on [0, 1]."""


def reward(config):
    """One user's reward; the best x is 0.75."""
    return 1.0 - abs(config["x"] - 0.75)


def values(results, metric="reward"):
    return {r.metrics["trial_id"]: r.metrics[metric] for r in results}


# On a real Ray ----------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.usefixtures("the_ray")
def test_random_search_with_declared_reports_and_a_budget_that_holds_across_workers(tmp_path):
    def measured(config):
        append(tmp_path / "asked", config["user"])
        report_public({"epoch": 1})
        inner = ldp_trainable(reward, epsilon=1.0, value_range=(0, 1))
        assert not holds_a_host(inner.guarantee.__self__)  # a worker begins no ledger
        return reward(config)

    private = ldp_trainable(
        measured, epsilon=1.0, value_range=(0, 1), user_id=lambda config: config["user"],
        user_budget=1.0,
    )  # fmt: skip
    results = fit(
        None,
        private,
        tmp_path,
        param_space={**LINE, "user": tune.grid_search(["Jane", "Joe", "Jane"])},
        num_samples=1,
        max_concurrent_trials=1,
        reuse_actors=False,
    )
    assert Counter(lines(tmp_path / "asked")) == {"Jane": 1, "Joe": 1}
    assert results.num_errors == 1
    assert BudgetExceededError.__name__ in str(results.errors[0])
    assert "Jane" not in str(results.errors[0])
    good = [result for result in results if result.error is None]
    assert all(math.isclose(v, min(ENDS, key=lambda e: abs(e - v)), rel_tol=1e-6)
               for v in values(good).values())  # fmt: skip
    assert NEVER_COMPARED in private.guarantee().reasons
    guarantee = private.guarantee(results)
    assert guarantee.protected
    assert (guarantee.n_evaluations, guarantee.most_evaluations, guarantee.epsilon) == (2, 1, 1.0)
    assert "report_public(epoch) public" in guarantee.details()
    assert private.guarantee() == guarantee  # the ledger remembers what was compared
    again = cloudpickle.loads(cloudpickle.dumps(private))
    assert again.guarantee(results) == guarantee
    good[0].metrics["reward"] = 0.123
    with pytest.warns(PrivacyWarning, match="another value than was released"):
        assert not private.guarantee(results).protected
    assert not private.guarantee().protected


# Through the hooks ------------------------------------------------------------------------------


def ready(search, space=LINE, **tune_config):
    """As Tune begins a fit."""
    metric, mode = tune_config.get("metric"), tune_config.get("mode")
    assert search.set_search_properties(metric, mode, dict(space))
    return search


@pytest.mark.usefixtures("local_hosts")
class TestSearches:
    def test_replays_of_a_point_run_at_the_same_time(self):
        search = LDPMoMAGPUCBSearch(5.0, value_range=(0, 1), replays=4, beta_scale=0.1, seed=1)
        ready(search, metric="r", mode="max")
        trials = evaluation(search, search.private(reward), 12, at_once=4)
        assert not any(trial.error for trial in trials)
        evaluated = Counter(trial.config["x"] for trial in trials)
        assert {count % 4 for count in evaluated.values()} == {
            0
        }  # one may be evaluated in two epochs
        assert model_of(search).n == 3
        assert search.guarantee(trials).n_evaluations == 12


def ledger(private):
    """Rows of the users' ledger."""
    return ledger_of(private)


# Arguments, and hooks without trials ------------------------------------------------------------


def search_of(epsilon=1.0, **settings):
    own = {"value_range": (0, 1), "metric": "reward", "mode": "max"}
    return LDPGPUCBSearch(epsilon, **(own | settings))


def test_a_private_trainable_looks_like_its_function():
    private = ldp_trainable(reward, epsilon=1.0, value_range=(0, 1))
    assert private.__name__ == "reward"
    assert private.__doc__ == reward.__doc__
    assert private.mechanism.epsilon == 1.0
    assert not hasattr(private, "__wrapped__")
    with pytest.raises(PrivacyError, match="inside Ray Tune only"):
        private({"x": 0.5})


def test_a_private_trainable_is_pickled_as_it_is_and_not_by_its_name(monkeypatch):
    private = ldp_trainable(reward, epsilon=1.0, value_range=(0, 1))
    monkeypatch.setitem(globals(), "reward", private)  # as a decorated function in a module
    assert cloudpickle.loads(cloudpickle.dumps(private)) is not private


def test_a_kernel_matrix_that_does_not_fit_is_refused_before_any_trial():
    space = {"arm": tune.randint(0, ARMS + 1)}
    with pytest.raises(ValueError, match="10 values"):
        search_of(kernel_matrix=KERNEL, search_space=space)
    with pytest.raises(ValueError, match="10 values"):
        search_of(kernel_matrix=KERNEL).set_search_properties(None, None, space)


@pytest.mark.usefixtures("local_hosts")
def test_a_search_goes_on_from_what_it_saved_and_its_ledger_is_not_put_back(tmp_path):
    search = search_of(search_space=LINE, seed=1, mechanism="laplace")
    configs = {trial: search.suggest(trial) for trial in "abc"}
    for trial, value in (("a", 0.5), ("b", 0.25)):
        channel_of(search).call_sealed("enter", trial, "Jane")
        known, token = channel_of(search).call_sealed("charge", trial, "Jane")
        assert known is None
        assert call_host(search, "store", trial, token, value) == value
        search.on_trial_complete(trial, {"reward": value})
    search.save(str(tmp_path / "state"))
    _, token = channel_of(search).call_sealed("charge", "c", None)
    assert call_host(search, "store", "c", token, 0.75) == 0.75
    again = LDPGPUCBSearch(1.0, value_range=(0, 1))
    again.restore(str(tmp_path / "state"))
    assert again.suggest("c") == configs["c"]
    assert call_host(again, "store", "c", token, 0.9) == 0.75  # the first one stays
    again.on_trial_complete("c", {"reward": 0.75})
    again.on_trial_complete("c", {"reward": 0.75})
    assert len(again._shown_so_far()["evaluations"]) == 3
    guarantee = again.guarantee()
    assert (guarantee.n_evaluations, guarantee.most_evaluations) == (3, 2)
    assert guarantee.protected
    with pytest.warns(PrivacyWarning, match="another value than was released"):
        again.on_trial_complete("b", {"reward": 0.3})
    assert not search.guarantee().protected
    end_host(search)
    with pytest.raises(VaultError, match="gone, and with it the ledger"):
        again.suggest("d")
