"""The page for people of every search, written through Tune's hooks and without a fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")

from ray import tune

from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.sessions.stored import run_named
from privbo_plugins.store.vault import open_vault
from raytune_searchers import DUETSSearch, LDPGPUCBSearch, POGPUCBSearch
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


def plain(config: dict[str, Any]) -> dict[str, float]:
    return {"reward": _OWN[0].reward()}


def value(agent: Any, config: dict[str, Any]) -> float:
    if config["x"] not in (0.0, 1.0):  # bounds are public
        _OWN[0].scanner.add_raw(f"point of {agent}", config["x"])
    return _OWN[0].reward()


def read(path: Path, own: Secrets) -> str:
    """A page, after looking for secrets in it."""
    page = path.read_bytes()
    assert own.calls > 0
    assert own.hits("report", page) == []
    return page.decode()


def claim(guarantee: Any) -> str:
    """How a guarantee begins, which is before anything that a page escapes."""
    return str(guarantee).split(" (")[0]


@pytest.mark.usefixtures("local_hosts")
def test_the_report_of_records_holds_releases_and_no_loss(own: Secrets, tmp_path: Path) -> None:
    search = make_central(n_starts=2, n_steps=1)
    assert search.set_search_properties("loss", "min", dict(LINE))
    evaluation(search, search.private(losses), 20)
    page = read(search.report(tmp_path / "r.html"), own)
    assert claim(search.guarantee()) in page
    assert repr(search.recommend()["x"]) in page
    assert repr(search.history().values[0][2]) in page
    search.close()


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("kind", ["rewards", "duets"])
def test_the_report_of_rewards_holds_releases_and_no_reward(
    kind: str, own: Secrets, tmp_path: Path
) -> None:
    search: Any
    if kind == "rewards":
        search = LDPGPUCBSearch(1.0, mechanism="laplace", search_space=LINE, **REWARDS)
    else:
        search = DUETSSearch(
            2, epsilon=1.0, mechanism="laplace", discretisation=64, search_space=LINE, **REWARDS
        )
    trials = evaluation(search, search.private(reward), 8)
    page = read(search.report(tmp_path / "r.html"), own)
    assert claim(search.guarantee()) in page
    for trial in trials:
        assert repr(trial.metrics["reward"]) in page
    assert ("What is left of the space" in page) == (kind == "duets")
    search.close()
    assert repr(trials[0].metrics["reward"]) in search.report(tmp_path / "r.html").read_text()


@pytest.mark.usefixtures("local_hosts")
def test_a_plain_reward_is_on_no_page_although_the_search_has_learnt_it(
    own: Secrets, tmp_path: Path
) -> None:
    search = LDPGPUCBSearch(1.0, search_space=LINE, **REWARDS)
    private = search.private(lambda config: 0.5)
    (good,) = evaluation(search, private, 1)
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        evaluation(search, plain, 1, name="plain")
    assert len(search._shown_so_far()["evaluations"]) == 2
    page = read(search.report(tmp_path / "r.html"), own)
    assert "NOT PROTECTED" in page
    assert list(search.history().values) == [good.metrics["reward"]]


@pytest.mark.filterwarnings("ignore:Nothing is protected. epsilon = infinity")
def test_without_privacy_no_reward_is_on_the_page(own: Secrets, tmp_path: Path) -> None:
    search = DUETSSearch(
        2, discretisation=64, search_space=LINE, metric="reward", mode="max", seed=1
    )
    for trial in "abcd":
        search.suggest(trial)
        search.on_trial_complete(trial, {"reward": own.reward()})
    page = read(search.report(tmp_path / "r.html"), own)
    assert "NOT PROTECTED" in page
    assert "What is left of the space" in page


def test_the_report_of_a_table_holds_manifest_and_answers_and_no_row(
    own: Secrets, tmp_path: Path
) -> None:
    X = own.vector(24).reshape(12, 2)
    own.add_raw("scaled X", X - 0.5)
    y = np.round(np.linspace(0, 1, 12), 3)
    curator = Curator(X, epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * 2, outcomes=y)
    table = curator.release()
    search = POGPUCBSearch(table, metric="answer", mode="max", seed=1)
    own.scanner.allow(np.abs(table.Z).ravel().tolist())
    empty = search.report(tmp_path / "r.html").read_text()
    assert "Nothing has been released yet" in empty
    for trial in "abcd":
        config = search.suggest(trial)
        assert isinstance(config, dict)
        search.on_trial_complete(trial, {"answer": curator.evaluate(config["row"])})
    page = read(search.report(tmp_path / "r.html"), own)
    assert claim(search.guarantee()) in page
    assert table.manifest.digest in page
    assert "Best rows" in page
    assert list(search.history().answers) == [float(y[row]) for row in search.history().rows]


@pytest.mark.usefixtures("local_hosts")
def test_the_report_of_a_federation_holds_rounds_and_nothing_of_an_agent(
    own: Secrets, tmp_path: Path
) -> None:
    search = make_search(agents=["oslo", "bergen", "bodo", "hamar"])
    evaluation(search, search.private(value))
    page = read(search.report(tmp_path / "r.html"), own)
    assert claim(search.guarantee()) in page
    assert [done.number for done in search.history().rounds] == [1, 2]
    assert not re.search("oslo|bergen|bodo|hamar", page)
    search.close()
    assert "Rounds" in search.report(tmp_path / "r.html").read_text()


# The vault alone --------------------------------------------------------------------------------


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("kind", ["records", "rewards", "federation"])
def test_what_the_vault_alone_claims_is_the_searches_own_guarantee(
    kind: str, own: Secrets, tmp_path: Path
) -> None:
    """Of a federation without the notes on Ray Tune, which no vault knows."""
    url, search = f"sqlite:///{tmp_path}/vault.db", cast(Any, None)
    if kind == "records":
        search = make_central(n_starts=2, n_steps=1, vault=url, run_name="r")
        assert search.set_search_properties("loss", "min", dict(LINE))
        evaluation(search, search.private(losses), 20)
    elif kind == "rewards":
        search = LDPGPUCBSearch(1.0, search_space=LINE, vault=url, run_name="r", **REWARDS)
        evaluation(search, search.private(reward, user_id="Jane"), 3)
    else:
        search = make_search(vault=url, run_name="r")
        evaluation(search, search.private(value))
    claim = search.guarantee()
    search.close()
    known = run_named(open_vault(url), "r").guarantee
    assert known.protected
    if kind == "federation":
        claim = replace(claim, notes=known.notes)
    assert str(known) == str(claim)
