"""An algorithm that the product has never heard of runs on Ray Tune as any of its own does."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

import ray

from privbo_plugins.errors import PrivacyWarning
from raytune_searchers import PrivateSearch
from tests.contracts import conformance
from tests.contracts.conformance import CHECKS, Check, Subject, evaluate_privately
from tests.inside import published_by
from tests.raytune_searchers.runs import LINE, RECORDS, fit, squares
from tests.sixth import SixthConfig

T = 6


def search_of(n_trials: int = T, **settings: Any) -> PrivateSearch:
    own = {"metric": "loss", "mode": "min", "seed": 3} | settings
    return PrivateSearch(SixthConfig(1.0, n_trials), **own)


# Through the hooks ------------------------------------------------------------------------------


@pytest.mark.usefixtures("local_hosts")
def test_the_plan_says_what_a_run_costs_and_how_to_run_it_here() -> None:
    plan = search_of().plan(LINE, len(RECORDS))
    assert plan.n_trials == T
    assert plan.value_noise == pytest.approx(T**0.5 / len(RECORDS), rel=1e-5)
    assert str(plan).startswith(f"Sixth plan: {T} released values")
    assert "max_concurrent_trials" in str(plan)
    assert pickle.loads(pickle.dumps(plan)) == plan == search_of().plan(LINE, len(RECORDS))
    with pytest.raises(AttributeError):
        _ = plan.n_steps


LEARNING = ("min is minimised", "max is maximised", "NumPy numbers are learned from")
"""Checks of what random search never does: its points do not depend on what was released."""


def made(space: Any = None, metric: Any = None, mode: Any = None, **kwargs: Any) -> PrivateSearch:
    return search_of(100, **({"search_space": space, "metric": metric, "mode": mode} | kwargs))


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.name not in LEARNING], ids=lambda c: c.name
)
def test_it_conforms(check: Check, tmp_path: Path) -> None:
    subject = Subject("PrivateSearch", made, evaluate_privately, PrivacyWarning)
    assert conformance.outcome(check, subject, tmp_path) == "yes"


# On a real Ray ----------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_fit_publishes_releases_only_and_is_protected(the_ray: Any, tmp_path: Path) -> None:
    assert ray.is_initialized()
    search = search_of()
    results = fit(search, search.private(squares), tmp_path, max_concurrent_trials=2)
    assert not results.errors
    assert len(results) == T
    published = published_by(search)
    assert {r.metrics["trial_id"]: r.metrics["loss"] for r in results} == published
    assert search.recommend() == {"x": results.get_best_result("loss", "min").config["x"]}
    assert search.guarantee(results).protected
    search.close()
