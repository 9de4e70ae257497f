"""Whatever dies, a round is released once and no trial of an agent is evaluated twice in vain."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.errors import PrivacyWarning, UtilityWarning, VaultError
from raytune_searchers import DPFTSDESearch
from raytune_searchers._federation import SERVER
from raytune_searchers._shell import AGENTS
from tests.raytune_searchers.fault_driver import (
    KILL_VAULT,
    LOSE_VAULT,
    CountedNoise,
    first_time,
    kill_vault,
    lines,
)
from tests.raytune_searchers.federated_driver import (
    TRIALS,
    evaluations,
    make_search,
    noted,
    start,
)
from tests.raytune_searchers.test_faults import never_stalls, run_until_killed  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray-faults")]


def die(agent: Any, before: int) -> None:
    """The second evaluation of agent 0 ends its host, once."""
    if agent == 0 and before == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def rounds(search: DPFTSDESearch) -> list[str]:
    return sorted(charge.key for charge in search._call("ledger"))


# Hosts ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("the_ray")
def test_agents_of_a_host_that_died_are_left_out(tmp_path: Path) -> None:
    search = make_search()
    with pytest.warns(UserWarning, match="left out: 0, 2"):
        results = start(search, search.private(noted(tmp_path, die)), tmp_path).fit()
    assert [
        str(error).count("process that hosts this agent ended") > 0 for error in results.errors
    ]
    assert results.num_errors >= 1
    counted = Counter(evaluations(tmp_path))
    assert [counted[agent] for agent in (0, 1, 3)] == [2, TRIALS, TRIALS]
    assert search.left_out == [0, 2]
    guarantee = search.guarantee(results)
    assert guarantee.protected
    assert guarantee.n_released == 2
    assert "agents were left out" in str(guarantee)


@pytest.mark.usefixtures("the_ray")
def test_agents_with_a_database_go_on_after_their_host_died(tmp_path: Path) -> None:
    search = make_search(agent_vaults=f"sqlite:///{tmp_path}/{{agent}}.db")
    results = start(search, search.private(noted(tmp_path, die)), tmp_path).fit()
    assert results.num_errors == 1
    assert Counter(evaluations(tmp_path)) == {0: TRIALS + 1, 1: TRIALS, 2: TRIALS, 3: TRIALS}
    assert search.left_out == []
    assert rounds(search) == ["1", "2"]
    assert search.guarantee(results).protected


# The server -------------------------------------------------------------------------------------


def killer(folder: Path, search: DPFTSDESearch, how: str) -> Any:
    """The sixth evaluation ends the server, while a round is open."""
    name = search._actor_name

    def strike(agent: Any, before: int) -> None:
        if len(evaluations(folder)) >= 6 and first_time(folder / "struck"):
            kill_vault(name, how)

    return search.private(noted(folder, strike))


@pytest.mark.usefixtures("the_ray")
def test_without_a_server_agents_go_on_alone(tmp_path: Path) -> None:
    search = make_search()
    with pytest.warns(UtilityWarning, match="agents go on alone"):
        results = start(search, killer(tmp_path, search, LOSE_VAULT), tmp_path).fit()
    assert results.num_errors == 0
    assert Counter(evaluations(tmp_path)) == dict.fromkeys(range(4), TRIALS)
    guarantee = search.guarantee(results)
    assert guarantee.protected
    assert guarantee.epsilon == pytest.approx(4.0, abs=0.05)
    assert guarantee.n_released == 1
    assert "the vault has ended" in str(guarantee)


@pytest.mark.usefixtures("the_ray")
@pytest.mark.parametrize("how", [KILL_VAULT, LOSE_VAULT])
def test_a_server_with_a_database_begins_its_open_round_again(how: str, tmp_path: Path) -> None:
    search = make_search(vault=f"sqlite:///{tmp_path}/server.db", noise=CountedNoise(tmp_path))
    with pytest.warns(PrivacyWarning, match="test source"):
        results = start(search, killer(tmp_path, search, how), tmp_path).fit()
    assert results.num_errors == 0
    assert Counter(evaluations(tmp_path)) == dict.fromkeys(range(4), TRIALS)
    assert rounds(search) == ["1", "2"]
    assert len(lines(tmp_path / "draws")) == 2
    assert not search.guarantee(results).protected


# The driver -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("the_ray")
def test_a_killed_driver_goes_on_elsewhere(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    search = {
        "vault": f"sqlite:///{tmp_path}/server.db",
        "agent_vaults": f"sqlite:///{tmp_path}/{{agent}}.db",
        "run": "r",
    }
    settings = {"folder": str(tmp_path), "ray_folder": tempfile.mkdtemp(prefix="ry", dir="/tmp")}
    module = "tests.raytune_searchers.federated_driver"
    run_until_killed(module, settings | {"search": search})
    before = Counter(evaluations(tmp_path))
    assert 6 <= sum(before.values()) < 4 * TRIALS
    found = DPFTSDESearch.from_experiment(tmp_path / "run")
    private = found.private(noted(tmp_path))
    results = tune.Tuner.restore(str(tmp_path / "run"), private).fit()
    assert results.num_errors == 0
    after = Counter(evaluations(tmp_path))
    counts = f"before: {sorted(before.items())}, after: {sorted(after.items())}"
    assert all(TRIALS <= after[agent] <= TRIALS + 1 for agent in range(4)), counts
    assert sum(after.values()) <= 4 * TRIALS + 2, counts  # those that were out at the kill
    assert rounds(found) == ["1", "2"]
    guarantee = found.guarantee(results)
    assert guarantee.protected
    assert guarantee.n_released == 2
    for result in results:
        assert set(result.config) == {"agent", "round"}


@pytest.mark.usefixtures("the_ray")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, SERVER.lost),
        ({"agent_vaults": "sqlite:///{folder}/{{agent}}.db"}, SERVER.lost),
        ({"vault": "sqlite:///{folder}/server.db"}, AGENTS.lost),
    ],
)
def test_what_was_in_memory_is_not_begun_again(
    settings: dict[str, str], text: str, tmp_path: Path
) -> None:
    own = {name: url.format(folder=tmp_path) for name, url in settings.items()}
    search = make_search(hosts=1, **own)
    assert search.suggest("t") in (None, {"agent": 0, "round": 1})
    pickled = cloudpickle.dumps(search)
    search.close()
    del search
    gc.collect()
    restored = cloudpickle.loads(pickled)  # as Tuner.restore does in another process
    with pytest.raises(VaultError) as raised:
        restored.suggest("other")
    assert str(raised.value) == text
