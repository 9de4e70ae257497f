"""The main job: two lines changed, and everything else as Tune users know it."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from ray.tune.schedulers import ASHAScheduler

from privbo_plugins.errors import PrivacyWarning
from tests.inside import n_compared, published_by
from tests.raytune_searchers.runs import (
    PLANE,
    RECORDS,
    absent,
    assert_sound,
    fit,
    ledger,
    make_search,
)

# On a real Ray ----------------------------------------------------------------------------------


def plane_and_imports(notes):
    """A loss a record, noted with what its process has imported.

    A worker gets it by value and imports nothing for it.
    """

    def plane(config):
        import json
        import os
        import sys

        import numpy as np

        with open(notes, "a") as file:
            file.write(json.dumps([os.getpid(), list(sys.modules)]) + "\n")
        records = np.random.default_rng(11).uniform(0.4, 0.9, size=120)
        losses = (config["x"] - records) ** 2 + (config["n"]["y"] / 4 - 0.1) ** 2
        return np.clip(losses + config["c"] - 5, 0, 1)

    return plane


@dataclass
class Job:
    """A run of nine trials over two parameters and a constant, two at a time."""

    search: Any
    results: Any
    trainable: Any
    notes: list[tuple[int, list[str]]]
    warned: list[str]


@pytest.fixture(scope="module")
def job(the_ray, tmp_path_factory):
    folder = tmp_path_factory.mktemp("main")
    search, trainable = make_search(), plane_and_imports(str(folder / "notes"))
    with warnings.catch_warnings(record=True, action="always", category=PrivacyWarning) as caught:
        results = fit(
            search,
            search.private(trainable),
            folder,
            param_space=PLANE,
            max_concurrent_trials=2,
            scheduler=ASHAScheduler(metric="loss", mode="min", max_t=9, reduction_factor=2),
        )
    notes = [json.loads(line) for line in (folder / "notes").read_text().splitlines()]
    yield Job(search, results, trainable, notes, [str(warning.message) for warning in caught])
    search.close()


@pytest.mark.slow
def test_a_run_publishes_releases_only_and_ends_by_itself(job):
    assert job.warned == []
    assert not job.results.errors
    assert len(job.results) == 2 + 2 * 3 + n_compared(ledger(job.search)[1])
    published = published_by(job.search)
    assert {r.metrics["trial_id"]: r.metrics["loss"] for r in job.results} == published
    exact = {float(np.mean(job.trainable(r.config))) for r in job.results}
    assert exact.isdisjoint(published.values())
    releases = [r for r in ledger(job.search)[1] if r.kind == "value"]
    drawn = {r.metrics["privbo_release"] for r in job.results}
    assert drawn == {r.values[0] for r in releases}
    assert drawn.isdisjoint(published.values())
    assert all(0.0 <= value <= 1.0 for value in published.values())
    assert job.search.finished()
    assert job.search.guarantee(job.results).protected
    assert_sound(job.search)
    assert ledger(job.search)[2] == []


@pytest.mark.slow
def test_a_recommendation_is_a_config_that_the_trainable_runs(job):
    recommended = job.search.recommend()
    assert set(recommended) == {"x", "n", "c"}
    assert recommended["c"] == 5
    assert job.trainable(recommended).shape == RECORDS.shape


@pytest.mark.slow
def test_a_trials_process_imports_no_session_vault_model_or_accountant(job):
    process, times = Counter(pid for pid, _ in job.notes).most_common(1)[0]
    assert times > 1  # so that what its first trial needed to tell its losses is noted by a later
    imported = [modules for pid, modules in job.notes if pid == process][-1]
    assert "raytune_searchers._trainable" in imported
    assert absent(imported, [
        "privbo_plugins.sessions", "privbo_plugins.store", "privbo_plugins.privacy.accountant",
        "privbo_plugins.models", "privbo_plugins.algorithms", "sqlalchemy", "opendp",
        "dp_accounting", "scipy", "plotly",
    ])  # fmt: skip
