"""Any searcher of Ray Tune, centrally private."""

from __future__ import annotations

import gc
import math
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

from privbo_plugins.errors import PrivacyWarning
from raytune_searchers import private_trainable
from tests.inside import published_by
from tests.raytune_searchers.runs import LINE, PLANE, RECORDS, assert_sound, fit, ledger, squares
from tests.raytune_searchers.scenes import CountedNoise, lines

N = 6


def private_of(trainable: Any = squares, **more: Any) -> Any:
    own = {"param_space": LINE, "mu": 1, "n_trials": N, "seed": 3}
    return private_trainable(trainable, **(own | more))


def run(private: Any, folder: Path, search: Any = None, **more: Any) -> Any:
    settings = {"num_samples": N, "metric": "loss", "mode": "min", "max_concurrent_trials": 2}
    return fit(search, private, folder, **(settings | more))


# In the driver alone ----------------------------------------------------------------------------


def test_the_plan_says_what_a_run_costs_and_how_to_run_it_here() -> None:
    plan = private_of().run.plan(n_records=len(RECORDS) * 10)
    assert plan.n_trials == N
    assert plan.value_noise == pytest.approx(math.sqrt(N) / (len(RECORDS) * 10), rel=1e-5)
    assert "max_concurrent_trials" in str(plan)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"metric": None}, "needs a metric and a mode"),
        ({"mode": "best"}, "mode must be 'min' or 'max'"),
        ({"param_space": {"x": 3}}, "at least one parameter that varies"),
        ({"param_space": {"x": tune.grid_search([1, 2])}}, "grid"),
        ({"n_trials": 0}, "n_trials must be an integer >= 1"),
        ({"trainable": 3}, "takes a function"),
        ({"vault": "postgresql://user:secret@host/db"}, "holds a password"),
    ],
)
def test_what_makes_no_run_is_refused(more: dict[str, Any], told: str) -> None:
    trainable = more.pop("trainable", squares)
    with pytest.raises(ValueError, match=told) as raised:
        private_of(trainable, **more)
    assert "secret" not in str(raised.value)


def test_it_pickles_small_and_without_what_a_host_holds() -> None:
    import ray.cloudpickle as cloudpickle

    assert len(cloudpickle.dumps(private_of())) < 20_000
    assert pickle.dumps(private_of().run)


# On a real Ray ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["min", "max"])
def test_another_searcher_sees_releases_only(the_ray: Any, tmp_path: Path, mode: str) -> None:
    private = private_of(param_space=PLANE, mode=mode)
    results = run(private, tmp_path, OptunaSearch(seed=1), param_space=PLANE, mode=mode)
    assert not results.errors
    search = private.run._search
    published = published_by(search)
    assert {r.metrics["trial_id"]: r.metrics["loss"] for r in results} == published
    exact = {float(np.mean(squares(r.config))) for r in results}
    assert exact.isdisjoint(published.values())
    assert_sound(search)
    _, releases, held = ledger(search)
    assert Counter(r.kind for r in releases) == {"value": N}
    assert held == []
    guarantee = private.run.guarantee(results)
    assert guarantee.protected
    assert guarantee.mu_spent == pytest.approx(1.0)
    assert "not compared" not in str(guarantee)
    assert "not compared" in str(private.run.guarantee())
    assert private.run.finished()
    assert private.run.recommend()["c"] == 5
    private.run.close()


@pytest.mark.slow
def test_random_search_by_tune_itself_and_a_trial_beyond_the_budget(
    the_ray: Any, tmp_path: Path
) -> None:
    private = private_of()
    results = run(private, tmp_path, num_samples=N + 2, max_concurrent_trials=1)
    assert results.num_errors == 2
    assert all("budget of this run is spent" in str(error) for error in results.errors)
    assert private.run.guarantee(results).protected
    assert private.run.summary()["finished"]
    private.run.close()


@pytest.mark.slow
def test_a_restored_experiment_goes_on_with_its_ledger(the_ray: Any, tmp_path: Path) -> None:
    own = {"vault": f"sqlite:///{tmp_path}/v.db", "run_name": "r"}
    noise = CountedNoise(tmp_path)
    with pytest.warns(PrivacyWarning, match="test source"):
        first = private_of(noise=noise, **own)
    limited = ConcurrencyLimiter(OptunaSearch(seed=1), 2)
    results = run(first, tmp_path, limited, num_samples=4, max_concurrent_trials=None)
    assert not results.errors
    before = ledger(first.run._search)[1]
    first.run.close()
    del first
    gc.collect()
    with pytest.warns(PrivacyWarning, match="test source"):
        again = private_of(noise=noise, **own)
    rest = run(again, tmp_path, num_samples=2, name="later")
    assert not rest.errors
    releases = ledger(again.run._search)[1]
    assert releases[:4] == before
    assert len(releases) == N == len(lines(tmp_path / "draws"))
    assert_sound(again.run._search)
    again.run.close()


@pytest.mark.slow
def test_what_reports_something_else_is_found(the_ray: Any, tmp_path: Path) -> None:
    private = private_of()

    def around(config: dict[str, Any]) -> dict[str, float]:
        return {"loss": private(config)["loss"] + 1.0}

    results = run(around, tmp_path)
    with pytest.warns(PrivacyWarning, match="another value than was released"):
        guarantee = private.run.guarantee(results)
    assert not guarantee.protected
    private.run.close()


@pytest.mark.slow
def test_plain_floats_beside_it_are_found(the_ray: Any, tmp_path: Path) -> None:
    private = private_of()
    results = run(lambda config: {"loss": config["x"]}, tmp_path)
    with pytest.warns(PrivacyWarning, match="a value that was not released"):
        guarantee = private.run.guarantee(results)
    assert not guarantee.protected
    private.run.close()
