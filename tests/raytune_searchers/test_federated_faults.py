"""Whatever dies, a round is released once and no trial of an agent is evaluated twice in vain."""

import gc
import os
import signal
import warnings
from collections import Counter

import pytest
import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.errors import PrivacyWarning, UtilityWarning
from raytune_searchers import DPFTSDESearch
from raytune_searchers._shell import AGENTS
from raytune_searchers.hosts.server import SERVER
from tests.inside import agent_hosts, call_host, host_name, settings_of
from tests.raytune_searchers.federated_scenes import (
    TRIALS,
    TWO,
    dies_in_the_middle,
    evaluations,
    make_search,
    noted,
    start,
)
from tests.raytune_searchers.hosts import crash, evaluation, lose, refused
from tests.raytune_searchers.scenes import CountedNoise
from tests.raytune_searchers.test_faults import never_stalls  # noqa: F401
from tests.worker import first_time, lines


def rounds(search):
    return sorted(charge.key for charge in call_host(search, "ledger"))


# Hosts ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("durable", [False, True])
def test_agents_of_a_host_that_died_are_left_out_unless_they_have_a_database(durable, tmp_path):
    where = {"agent_vaults": f"sqlite:///{tmp_path}/{{agent}}.db"} if durable else {}
    search = make_search(TWO, **where)
    host, *_ = agent_hosts(search)

    def ends(agent, before):
        if agent == 0 and before == 1:
            crash(host)

    with warnings.catch_warnings(record=True, action="error", category=UserWarning) as told:
        results = evaluation(search, search.private(noted(tmp_path, ends)))
    assert any("left out: 0" in str(warning.message) for warning in told) == (not durable)
    errors = [str(result.error) for result in results if result.error is not None]
    assert any("process that hosts this agent ended" in error for error in errors)
    assert Counter(evaluations(tmp_path)) == {0: TRIALS if durable else 2, 1: TRIALS}
    assert search.left_out == ([] if durable else [0])
    assert rounds(search) == ["1", "2"]
    guarantee = search.guarantee(results)
    assert guarantee.protected
    assert guarantee.n_released == 2
    assert ("agents were left out" in guarantee.details()) == (not durable)


@pytest.mark.soak
@pytest.mark.usefixtures("the_ray")
def test_a_trial_whose_host_is_killed_before_it_stores_is_evaluated_once_more(tmp_path):
    def dies(agent, before):
        if agent == 0 and before == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    search = make_search(TWO, agent_vaults=f"sqlite:///{tmp_path}/{{agent}}.db")
    results = start(search, search.private(noted(tmp_path, dies)), tmp_path).fit()
    assert results.num_errors == 1
    assert Counter(evaluations(tmp_path)) == {0: TRIALS + 1, 1: TRIALS}
    assert search.left_out == []
    assert rounds(search) == ["1", "2"]
    assert search.guarantee(results).protected


# The server -------------------------------------------------------------------------------------


def killer(folder, search, end):
    """The middle one of all evaluations ends the server, while a round is open."""
    name, after = host_name(search), TRIALS * settings_of(search).n_agents // 2

    def strike(agent, before):
        if len(evaluations(folder)) >= after and first_time(folder / "struck"):
            end(name)

    return search.private(noted(folder, strike))


def check_alone(search, results, folder):
    """All agents have done their trials, the later ones without a server."""
    assert Counter(evaluations(folder)) == dict.fromkeys(range(4), TRIALS)
    guarantee = search.guarantee(results)
    assert guarantee.protected
    assert guarantee.epsilon == pytest.approx(4.0, abs=0.05)
    assert guarantee.n_released == 1
    assert "the vault has ended" in guarantee.details()


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.filterwarnings("ignore:.*goes on alone:UserWarning")
@pytest.mark.parametrize("end", [crash, lose])
def test_without_a_server_agents_go_on_alone(end, tmp_path):
    search = make_search()
    with pytest.warns(UtilityWarning, match="agents go on alone"):
        results = evaluation(search, killer(tmp_path, search, end))
    assert not any(trial.error for trial in results)
    check_alone(search, results, tmp_path)


def check_begun_again(search, results, folder, n_agents):
    """Every round was released once, with one draw."""
    assert Counter(evaluations(folder)) == dict.fromkeys(range(n_agents), TRIALS)
    assert rounds(search) == ["1", "2"]
    assert len(lines(folder / "draws")) == 2
    assert not search.guarantee(results).protected


@pytest.mark.slow
@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("end", [crash, lose])
def test_a_server_with_a_database_begins_its_open_round_again(end, tmp_path):
    where, noise = f"sqlite:///{tmp_path}/server.db", CountedNoise(tmp_path)
    search = make_search(vault=where, noise=noise)
    with pytest.warns(PrivacyWarning, match="test source"):
        results = evaluation(search, killer(tmp_path, search, end))
    assert not any(trial.error for trial in results)
    check_begun_again(search, results, tmp_path, 4)


# The driver -------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_killed_driver_goes_on_elsewhere(killed, tmp_path):
    path = killed(dies_in_the_middle)
    before = Counter(evaluations(tmp_path))
    assert TRIALS <= sum(before.values()) < 2 * TRIALS
    found = DPFTSDESearch.from_experiment(path)
    private = found.private(noted(tmp_path))
    results = tune.Tuner.restore(str(path), private).fit()
    assert results.num_errors == 0
    after = Counter(evaluations(tmp_path))
    counts = f"before: {sorted(before.items())}, after: {sorted(after.items())}"
    assert all(TRIALS <= after[agent] <= TRIALS + 1 for agent in range(2)), counts
    assert sum(after.values()) <= 2 * TRIALS + 2, counts  # those that were out at the kill
    assert rounds(found) == ["1", "2"]
    guarantee = found.guarantee(results)
    assert guarantee.protected
    assert guarantee.n_released == 2
    for result in results:
        assert set(result.config) == {"agent", "round"}


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, SERVER.lost),
        ({"agent_vaults": "sqlite:///{folder}/{{agent}}.db"}, SERVER.lost),
        ({"vault": "sqlite:///{folder}/server.db"}, AGENTS.lost),
    ],
)
def test_what_was_in_memory_is_not_begun_again(settings, text, tmp_path):
    own = {name: url.format(folder=tmp_path) for name, url in settings.items()}
    search = make_search(hosts=1, **own)
    assert search.suggest("t") in (None, {"agent": 0, "round": 1})
    pickled = cloudpickle.dumps(search)
    search.close()
    del search
    gc.collect()
    restored = cloudpickle.loads(pickled)  # as Tuner.restore does in another process
    with refused(text):
        restored.suggest("other")
