"""Privatised rewards on a real Ray: every searcher, and one user a trial."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

import ray.cloudpickle as cloudpickle
from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

from privbo_plugins.errors import PrivacyError, PrivacyWarning, VaultError
from raytune_searchers import (
    LDPATAGPUCBSearch,
    LDPGPUCBSearch,
    LDPMoMAGPUCBSearch,
    LDPTGPUCBSearch,
    ldp_trainable,
    report_public,
)
from tests.raytune_searchers.runs import LINE, fit

ARMS = 10

DISTANCES = np.abs(np.arange(ARMS)[:, None] - np.arange(ARMS))

KERNEL = np.exp(-((DISTANCES / 3.0) ** 2))

ENDS = {1.581976706870165, -0.5819767068701649}
"""The two outputs of randomised response at epsilon = 1 on [0, 1]."""


def reward(config: dict[str, Any]) -> float:
    """One user's reward; the best x is 0.75."""
    return 1.0 - abs(config["x"] - 0.75)


def values(results: Any, metric: str = "reward") -> dict[str, float]:
    return {r.metrics["trial_id"]: r.metrics[metric] for r in results}


def shown(search: Any) -> dict[str, float]:
    return dict(search._report()["published"])


# Searchers of ours ------------------------------------------------------------------------------


@pytest.mark.usefixtures("the_ray")
class TestSearches:
    def test_arms_with_a_kernel_matrix_are_all_that_is_played(self, tmp_path: Path) -> None:
        search = LDPGPUCBSearch(
            200.0,
            reward_range=(0, 1),
            mechanism="laplace",
            metric="score",
            mode="max",
            kernel_matrix=KERNEL,
            points_to_evaluate=[{"arm": 0}, {"arm": ARMS - 1}],
            seed=1,
        )
        space = {"arm": tune.randint(0, ARMS), "c": 5}
        results = fit(
            search,
            search.private(lambda config: 1.0 - abs(config["arm"] - 6) / 10),
            tmp_path,
            param_space=space,
            num_samples=14,
        )
        assert not results.errors
        arms = [r.config["arm"] for r in results]
        assert arms[:2] == [0, ARMS - 1]
        assert set(arms) <= set(range(ARMS))
        assert values(results, "score") == shown(search)
        assert abs(search.recommend()["arm"] - 6) <= 2
        assert search.recommend()["c"] == 5
        guarantee = search.guarantee(results)
        assert guarantee.protected
        assert (guarantee.n_plays, guarantee.epsilon) == (14, 200.0)
        assert "200-LDP" in str(guarantee)
        search.close()
        assert search.guarantee().n_plays == 14

    def test_replays_of_a_point_run_in_parallel(self, tmp_path: Path) -> None:
        search = LDPMoMAGPUCBSearch(5.0, reward_range=(0, 1), replays=4, beta_scale=0.1, seed=1)
        results = fit(
            search, search.private(reward), tmp_path, num_samples=12, metric="r", mode="max"
        )
        assert not results.errors
        played = Counter(r.config["x"] for r in results)
        assert {count % 4 for count in played.values()} == {0}  # one may be played in two epochs
        assert search._model is not None
        assert search._model.n == 3  # type: ignore[attr-defined]
        assert search.guarantee(results).n_plays == 12

    @pytest.mark.parametrize("kind", [LDPTGPUCBSearch, LDPATAGPUCBSearch])
    def test_costs_are_minimised_over_a_nested_space(self, kind: Any, tmp_path: Path) -> None:
        space = {"x": tune.uniform(0, 1), "n": {"y": tune.uniform(-2, 2), "c": 5}}
        search = kind(50.0, bound=1.0, metric="cost", mode="min", beta_scale=0.1, seed=2)

        def cost(config: dict[str, Any], at: np.ndarray) -> float:
            assert config["n"]["c"] == 5
            return float((config["x"] - at[0]) ** 2 + (config["n"]["y"] / 4 - at[1]) ** 2)

        results = fit(
            ConcurrencyLimiter(search, max_concurrent=2),
            tune.with_parameters(search.private(cost), at=np.array([0.7, 0.2])),
            tmp_path,
            param_space=space,
            num_samples=6,
        )
        assert not results.errors
        assert values(results, "cost") == shown(search)
        assert search.guarantee(results).protected
        assert set(search.recommend()) == {"x", "n"}

    def test_values_outside_of_private_end_every_claim(self, tmp_path: Path) -> None:
        search = LDPGPUCBSearch(1.0, reward_range=(0, 1), metric="reward", mode="max")
        with pytest.warns(PrivacyWarning, match=r"not privatised.*search\.private") as warned:
            results = fit(
                search, lambda config: {"reward": reward(config)}, tmp_path, num_samples=3
            )
        assert len([w for w in warned if w.category is PrivacyWarning]) == 1
        guarantee = search.guarantee(results)
        assert not guarantee.protected
        assert str(guarantee).startswith("NOT PROTECTED")
        assert math.isinf(guarantee.epsilon)


# Any other searcher -----------------------------------------------------------------------------


@pytest.mark.usefixtures("the_ray")
class TestTrainable:
    def test_random_search_and_declared_reports(self, tmp_path: Path) -> None:
        def measured(config: dict[str, Any]) -> float:
            report_public({"epoch": 1})
            inner = ldp_trainable(reward, epsilon=1.0, reward_range=(0, 1))
            assert inner.guarantee.__self__._anchor.actor is None  # a worker begins no ledger
            return reward(config)

        private = ldp_trainable(measured, epsilon=1.0, reward_range=(0, 1), user_id="Jane")
        results = fit(None, private, tmp_path, num_samples=4)
        assert not results.errors
        assert all(math.isclose(v, min(ENDS, key=lambda e: abs(e - v)), rel_tol=1e-6)
                   for v in values(results).values())  # fmt: skip
        guarantee = private.guarantee(results)
        assert guarantee.protected
        assert (guarantee.n_plays, guarantee.most_plays, guarantee.epsilon) == (4, 4, 4.0)
        assert "report_public(epoch) public" in str(guarantee)
        assert "not compared" in str(private.guarantee())
        again = cloudpickle.loads(cloudpickle.dumps(private))
        assert again.guarantee(results) == guarantee
        results[0].metrics["reward"] = 0.123
        assert not private.guarantee(results).protected
        assert not private.guarantee().protected

    def test_optuna_search_tunes_on_releases(self, tmp_path: Path) -> None:
        private = ldp_trainable(
            reward, epsilon=1.0, bound=1.0, metric="r", mode="min", mechanism="laplace"
        )
        results = fit(
            OptunaSearch(metric="r", mode="min", seed=1), private, tmp_path, num_samples=4
        )
        assert not results.errors
        assert values(results, "r").keys() == {row[0] for row in ledger(private)}
        assert private.guarantee(results).protected

    def test_a_sampler_of_ours_is_refused_inside_optuna_search(self, tmp_path: Path) -> None:
        from optuna_samplers import LDPGPUCBSampler

        private = ldp_trainable(reward, epsilon=1.0, reward_range=(0, 1))
        inner = LDPGPUCBSampler(1.0, reward_range=(0, 1))
        with pytest.raises(PrivacyError, match="LDPGPUCBSearch"):
            fit(
                OptunaSearch(metric="reward", mode="max", sampler=inner),
                private,
                tmp_path,
                num_samples=1,
            )


def ledger(private: Any) -> list[Any]:
    """Rows of the users' ledger."""
    return list(private.guarantee.__self__.plays())


# Arguments, and hooks without trials ------------------------------------------------------------


def search_of(epsilon: float = 1.0, **settings: Any) -> LDPGPUCBSearch:
    own: dict[str, Any] = {"reward_range": (0, 1), "metric": "reward", "mode": "max"}
    return LDPGPUCBSearch(epsilon, **(own | settings))


def test_without_privacy_there_is_nothing_to_wrap() -> None:
    search = search_of(math.inf, search_space=LINE)
    with pytest.raises(ValueError, match="epsilon=inf"):
        search.private(reward)
    with pytest.warns(PrivacyWarning, match="epsilon = infinity"):
        assert isinstance(search.suggest("a"), dict)
    search.on_trial_complete("a", {"reward": 0.5})
    assert set(search.recommend()) == {"x"}
    assert not search.guarantee().protected
    assert "epsilon = infinity" in str(search.guarantee())
    search.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"bound": 1.0}, "one of them"),
        ({"mechanism": "none"}, "mechanism"),
        ({"metric": None}, "metric and a mode"),
        ({"metric": "done"}, "metric may not be"),
        ({"mode": "most"}, "mode"),
        ({"user_budget": 2.0}, "user_id="),
        ({"user_budget": 0.5, "user_id": "a"}, "at least the epsilon"),
        ({"user_id": 1.5}, "string, bytes or an integer"),
        ({"user_id": "a" * 2000}, "at most 1000"),
        ({"run": "r"}, "in memory"),
        ({"vault": "postgresql://u:hunter2@host/db"}, "env:NAME"),
    ],
)
def test_arguments_out_of_range_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        ldp_trainable(reward, **({"epsilon": 1.0, "reward_range": (0, 1)} | settings))
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("made", [object(), int, lambda config: (yield config)])
def test_what_is_no_function_is_refused(made: Any) -> None:
    with pytest.raises(ValueError, match=r"returns one user's reward|a reward"):
        ldp_trainable(made, epsilon=1.0, reward_range=(0, 1))


def test_a_private_trainable_looks_like_its_function() -> None:
    private = ldp_trainable(reward, epsilon=1.0, reward_range=(0, 1))
    assert private.__name__ == "reward"
    assert private.__doc__ == reward.__doc__
    assert private.mechanism.epsilon == 1.0
    assert not hasattr(private, "__wrapped__")
    with pytest.raises(PrivacyError, match="inside Ray Tune only"):
        private({"x": 0.5})


def test_a_private_trainable_is_pickled_as_it_is_and_not_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private = ldp_trainable(reward, epsilon=1.0, reward_range=(0, 1))
    monkeypatch.setitem(globals(), "reward", private)  # as a decorated function in a module
    assert cloudpickle.loads(cloudpickle.dumps(private)) is not private


def test_a_kernel_matrix_that_does_not_fit_is_refused_before_any_trial() -> None:
    space = {"arm": tune.randint(0, ARMS + 1)}
    with pytest.raises(ValueError, match="10 values"):
        search_of(kernel_matrix=KERNEL, search_space=space)
    with pytest.raises(ValueError, match="10 values"):
        search_of(kernel_matrix=KERNEL).set_search_properties(None, None, space)


def test_plan_says_what_so_many_users_can_tell() -> None:
    assert "400 plays" in str(search_of().plan(400))


@pytest.mark.usefixtures("the_ray")
def test_a_search_goes_on_from_what_it_saved_and_its_ledger_is_not_set_back(
    tmp_path: Path,
) -> None:
    search = search_of(search_space=LINE, seed=1)
    configs = {trial: search.suggest(trial) for trial in "abc"}
    for trial, value in (("a", 0.5), ("b", 0.25)):
        search._call("enter", trial, "Jane")
        assert search._call("charge", trial, "Jane") is None
        assert search._call("store", trial, value) == value
        search.on_trial_complete(trial, {"reward": value})
    search.save(str(tmp_path / "state"))
    search._call("charge", "c", None)
    assert search._call("store", "c", 0.75) == 0.75
    again = LDPGPUCBSearch(1.0, reward_range=(0, 1))
    again.restore(str(tmp_path / "state"))
    assert again.suggest("c") == configs["c"]
    assert again._call("store", "c", 0.9) == 0.75  # the first one stays
    again.on_trial_complete("c", {"reward": 0.75})
    again.on_trial_complete("c", {"reward": 0.75})
    assert len(again._shown_so_far()["plays"]) == 3
    guarantee = again.guarantee()
    assert (guarantee.n_plays, guarantee.most_plays) == (3, 2)
    assert guarantee.protected
    with pytest.warns(PrivacyWarning, match="another value than was released"):
        again.on_trial_complete("b", {"reward": 0.3})
    assert not search.guarantee().protected
    search._anchor.end()
    with pytest.raises(VaultError, match="nobody knows any longer"):
        again.suggest("d")
