"""The main job on a real Ray: two lines changed, and everything else as Tune users know it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from ray import tune

from tests.raytune_searchers.runs import (
    PLANE,
    RECORDS,
    assert_sound,
    fit,
    ledger,
    make_search,
    squares,
)

pytestmark = pytest.mark.usefixtures("the_ray")


def plane(config: dict[str, Any]) -> np.ndarray:
    records = np.random.default_rng(11).uniform(0.4, 0.9, size=120)
    assert config["c"] == 5
    return np.clip((config["x"] - records) ** 2 + (config["n"]["y"] / 4 - 0.1) ** 2, 0, 1)


def test_a_run_finds_the_minimum_publishes_releases_only_and_ends_by_itself(
    tmp_path: Path,
) -> None:
    search = make_search(n_steps=12, step_size=None, step_rule="momentum")
    results = fit(search, search.private(squares), tmp_path)
    assert not results.errors
    assert len(results) == 2 + 12 * 2 + 1
    published = search._report()["published"]
    assert {r.metrics["trial_id"]: r.metrics["loss"] for r in results} == published
    exact = {float(np.mean((r.config["x"] - RECORDS) ** 2)) for r in results}
    assert exact.isdisjoint(published.values())
    assert abs(search.recommend()["x"] - RECORDS.mean()) < 0.2
    assert search.finished
    assert search.guarantee(results).protected
    assert_sound(search)
    assert ledger(search)[2] == []


def test_a_recommendation_is_a_config_that_the_trainable_runs(tmp_path: Path) -> None:
    search = make_search()
    results = fit(search, search.private(plane), tmp_path, param_space=PLANE)
    recommended = search.recommend()
    assert set(recommended) == {"x", "n", "c"}
    assert recommended["c"] == 5
    assert plane(recommended).shape == RECORDS.shape
    assert len(results) == 9


def test_scores_are_maximised_and_metric_and_mode_may_come_from_the_tuner(tmp_path: Path) -> None:
    search = make_search(
        metric=None, mode=None, n_steps=12, step_size=None, step_rule="momentum", mu=3.0
    )

    def scores(config: dict[str, Any]) -> np.ndarray:
        return 1.0 - squares(config)

    results = fit(search, search.private(scores), tmp_path, metric="accuracy", mode="max")
    assert not results.errors
    assert abs(search.recommend()["x"] - RECORDS.mean()) < 0.2
    assert results.get_best_result().metrics["accuracy"] > 0.8


def test_a_plain_trainable_still_searches_and_nothing_is_claimed(tmp_path: Path) -> None:
    from privbo_plugins.errors import PrivacyWarning

    search = make_search(n_steps=6)
    with pytest.warns(PrivacyWarning, match=r"plain floats.*search\.private"):
        results = fit(
            search, lambda c: {"loss": float(squares(c).mean())}, tmp_path, num_samples=12
        )
    assert len(results) == 12
    guarantee = search.guarantee()
    assert not guarantee.protected
    assert "plain floats" in str(guarantee)


def test_num_samples_plans_a_run_that_fits(tmp_path: Path) -> None:
    search = make_search(n_steps=None, n_starts=None)
    results = fit(search, search.private(squares), tmp_path, num_samples=20)
    assert len(results) <= 20
    assert search.finished
    assert search._report()["plan"].n_trials <= 20


def test_choices_of_any_kind_reach_the_trial_and_the_recommendation(tmp_path: Path) -> None:
    search = make_search()
    space = {
        "f": tune.choice([np.sin, np.cos]),
        "g": tune.choice([{"k": 1}, {"k": 2}]),
        "x": tune.uniform(0, 1),
    }

    def losses(config: dict[str, Any]) -> np.ndarray:
        return np.abs(config["f"](config["x"]) - RECORDS) / config["g"]["k"]

    results = fit(search, search.private(losses), tmp_path, param_space=space)
    assert not results.errors
    assert search.guarantee(results).protected
    with pytest.raises(ValueError, match=r"search\.recommend\(param_space\)"):
        search.recommend()
    recommended = search.recommend(space)
    assert recommended["f"] in (np.sin, np.cos)
    assert recommended["g"] in ({"k": 1}, {"k": 2})


def test_a_trainable_that_always_fails_ends_the_search(tmp_path: Path) -> None:
    from privbo_plugins.errors import UtilityWarning

    search = make_search()

    def broken(config: dict[str, Any]) -> np.ndarray:
        raise KeyError("Jane Doe")

    with pytest.warns(UtilityWarning, match="10 trials failed one after another"):
        results = fit(search, search.private(broken), tmp_path)
    assert 10 <= len(results) <= 12
    assert all("Jane" not in str(error) for error in results.errors)
    assert ledger(search) == ([], [], [])
