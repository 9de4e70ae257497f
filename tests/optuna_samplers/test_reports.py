"""The page for people of every sampler."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from optuna_samplers import (
    DPFTSDESampler,
    DPGIBOSampler,
    DUETSSampler,
    FederatedServer,
    FederationConfig,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    POGPUCBSampler,
)
from privbo_plugins.errors import FederationError
from privbo_plugins.federation import Alone
from privbo_plugins.sessions.rows import Curator
from tests.systems import Secrets, objective_of

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")

RANGE = {"bound": 1.0}


def page_of(sampler: Any, study: Any, folder: Path) -> str:
    path = folder / "report.html"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sampler.report(study, path) == path
    return path.read_text()


def study_of(sampler: Any) -> optuna.Study:
    return optuna.create_study(study_name="digits", direction="maximize", sampler=sampler)


def claim(guarantee: Any) -> str:
    return str(guarantee).split(" (")[0]


def test_of_records_it_shows_what_was_released_and_recommended(tmp_path: Path) -> None:
    own = Secrets(size=16)
    sampler = DPGIBOSampler(1.0, n_starts=2, n_steps=2)
    study = study_of(sampler)
    study.optimize(sampler.private(objective_of(own, {})), n_trials=9)
    page = page_of(sampler, study, tmp_path)
    assert own.hits("page", page.encode()) == []
    assert claim(sampler.guarantee(study)) in page
    assert "Private tuning report: digits" in page
    assert repr(study.trials[0].user_attrs["privbo:release"]) in page
    assert repr(sampler.recommend(study)["x"]) in page
    status = sampler.status(study)
    assert f"<td>trials done</td><td>{status['done']}</td>" in page
    assert f"<td>trials planned</td><td>{status['planned']}</td>" in page


@pytest.mark.parametrize("kind", ["one", "many", "agents"])
def test_of_rewards_it_shows_each_release_and_no_reward(kind: str, tmp_path: Path) -> None:
    own = Secrets()
    sampler: Any = {
        "one": lambda: LDPGPUCBSampler(1.0, mechanism="laplace", seed=0, **RANGE),
        "many": lambda: LDPMoMAGPUCBSampler(1.0, replays=3, seed=0, **RANGE),
        "agents": lambda: DUETSSampler(
            2, epsilon=1.0, mechanism="laplace", discretisation=64, seed=0, **RANGE
        ),
    }[kind]()
    study = study_of(sampler)
    study.optimize(sampler.private(objective_of(own, {})), n_trials=10)
    page = page_of(sampler, study, tmp_path)
    assert own.hits("page", page.encode()) == []
    assert claim(sampler.guarantee(study)) in page
    released = [trial.value for trial in study.trials]
    assert list(sampler.history(study).values) == released
    assert all(repr(value) in page for value in released)
    assert "Settings asked most often" in page or kind != "many"
    assert ("What agents have sent" in page) == (kind == "agents")


def test_a_plain_reward_is_on_no_page(tmp_path: Path) -> None:
    own = Secrets()
    sampler = LDPGPUCBSampler(1.0, seed=0, **RANGE)
    study = study_of(sampler)
    study.optimize(sampler.private(lambda trial: trial.suggest_float("x", 0, 1)), n_trials=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.optimize(objective_of(own, {}), n_trials=2)
    page = page_of(sampler, study, tmp_path)
    assert "NOT PROTECTED" in page
    assert own.hits("page", page.encode()) == []
    assert list(sampler.history(study).values) == [t.value for t in study.trials[:2]]


@pytest.mark.filterwarnings("ignore:Nothing is protected. epsilon = infinity")
def test_without_privacy_no_reward_is_on_the_page(tmp_path: Path) -> None:
    own = Secrets()
    sampler = DUETSSampler(2, discretisation=64, seed=0)
    study = study_of(sampler)
    study.optimize(objective_of(own, {}), n_trials=10)
    page = page_of(sampler, study, tmp_path)
    assert own.hits("page", page.encode()) == []
    assert "NOT PROTECTED" in page
    assert "What is left of the space" in page


def test_before_any_trial_there_is_a_page_that_says_so(tmp_path: Path) -> None:
    for sampler in (LDPGPUCBSampler(1.0, seed=0, **RANGE), DUETSSampler(2, epsilon=1.0, **RANGE)):
        page = page_of(sampler, study_of(sampler), tmp_path)
        assert "Nothing has been released yet" in page
        assert "No privatised reward has been released" in page


def test_of_rows_it_shows_manifest_answers_and_the_models_view(tmp_path: Path) -> None:
    own = Secrets()
    X = own.vector(24).reshape(12, 2)
    y = np.round(np.linspace(0, 1, 12), 3)
    curator = Curator(X, epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * 2, outcomes=y)
    table = curator.release()
    own.scanner.allow(np.abs(table.Z).ravel().tolist())
    sampler = POGPUCBSampler(table, seed=0)
    study = study_of(sampler)
    study.optimize(lambda trial: curator.evaluate(trial.suggest_int("row", 0, 11)), n_trials=5)
    page = page_of(sampler, study, tmp_path)
    assert own.hits("page", page.encode()) == []
    assert claim(sampler.guarantee(study)) in page
    assert table.manifest.digest in page
    history = sampler.history(study)
    assert [y[row] for row in history.rows] == list(history.answers)
    best = re.findall(r"<tr><td>(\d+)</td><td>[\d.e-]+</td><td>", page)[0]
    assert int(best) == sampler.recommend(study)["row"]


def test_of_a_bare_matrix_it_says_that_nothing_is_known(tmp_path: Path) -> None:
    sampler = POGPUCBSampler(np.linspace(-1, 1, 12)[:, None], seed=0)
    page = page_of(sampler, study_of(sampler), tmp_path)
    assert "NOT PROTECTED" in page
    assert "nothing is known of its origin" in page


def test_of_an_agent_it_shows_rounds_and_nothing_of_the_agents_own_trials(tmp_path: Path) -> None:
    own = Secrets()
    server = FederatedServer(FederationConfig(n_agents=1, epsilon=4.0, n_rounds=2))
    sampler = DPFTSDESampler(server.connect(0), seed=0)
    study = optuna.create_study(study_name=own.token, sampler=sampler)
    study.optimize(objective_of(own, {}), n_trials=6)
    for trial in study.trials:
        if trial.params["x"] not in (0.0, 1.0):  # bounds are public
            own.add_raw(f"point {trial.number}", trial.params["x"])
    page = page_of(sampler, study, tmp_path)
    assert own.hits("page", page.encode()) == []
    assert claim(server.guarantee()) in page
    assert [done.number for done in sampler.history(study).rounds] == [1, 2]
    assert study.user_attrs["privbo:guarantee"] == server.guarantee().lasting


def test_an_agent_whose_server_is_gone_writes_no_report(tmp_path: Path) -> None:
    class Gone(Alone):
        def broadcasts(self) -> Any:
            raise FederationError("The server cannot be reached.")

    server = FederatedServer(FederationConfig(n_agents=1, epsilon=4.0))
    sampler = DPFTSDESampler(Gone(server.connect(0)), seed=0)
    with pytest.raises(FederationError, match="cannot be reached"):
        sampler.report(optuna.create_study(sampler=sampler), tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []
