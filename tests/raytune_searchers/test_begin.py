"""When a search has its hosts begin, and who is told where they cannot."""

import gc
import logging
import math
import shutil
import weakref

import pytest
import ray
import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.algorithms.protocols import lasting
from privbo_plugins.errors import VaultError
from raytune_searchers import DPGIBOSearch, DUETSSearch, LDPGPUCBSearch
from raytune_searchers.hosts import actors
from tests.inside import call_host, channel_of, host_name
from tests.raytune_searchers.federated_scenes import make_search
from tests.raytune_searchers.hosts import evaluation
from tests.raytune_searchers.runs import make_search as short_search
from tests.raytune_searchers.runs import squares

pytestmark = pytest.mark.usefixtures("local_hosts")

LINE = {"x": tune.uniform(0.0, 1.0)}


def told(search, trial):
    """One reward is privatised, stored and reported."""
    assert isinstance(search.suggest(trial), dict)
    channel_of(search).call_sealed("enter", trial, None)
    _, token = channel_of(search).call_sealed("charge", trial, None)
    search.on_trial_complete(trial, {"r": call_host(search, "store", trial, token, 1.0)})


def test_a_ledger_that_cannot_go_on_is_refused_before_a_trial_is_resumed(tmp_path, local_hosts):
    """``Tuner.restore`` starts trials of before, which ask for no suggestion."""
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    search = LDPGPUCBSearch(
        1.0, value_range=(0, 1), mechanism="laplace", metric="r", mode="max",
        vault=f"sqlite:///{path}", run_name="clinic",
    )  # fmt: skip
    search.set_search_properties(None, None, LINE)
    told(search, "a")
    shutil.copy(path, backup)
    told(search, "b")
    pickled = cloudpickle.dumps(search)
    search.close()
    del search
    gc.collect()
    local_hosts.end_driver()
    shutil.copy(backup, path)
    restored = cloudpickle.loads(pickled)
    with pytest.raises(VaultError, match="older backup"):
        restored.set_search_properties(None, None, LINE)


def test_no_agents_are_looked_for_where_the_server_is_gone(tmp_path, local_hosts):
    search = make_search(hosts=2, agent_vaults=f"sqlite:///{tmp_path}/{{agent}}.db", run_name="r")
    search.suggest("t")
    search.save(str(tmp_path / "state"))
    pickled = cloudpickle.dumps(search)
    search.close()
    del search
    gc.collect()
    local_hosts.end_driver()
    assert local_hosts.alive == []
    restored = cloudpickle.loads(pickled)
    restored.restore(str(tmp_path / "state"))
    assert local_hosts.alive == []


def test_a_server_in_another_process_memory_is_refused_however_often_one_asks(
    tmp_path, monkeypatch
):
    """Two processes named their runs alike: the second does not come to use the first's ledger."""
    where = {"agent_vaults": f"sqlite:///{tmp_path}/{{agent}}.db", "run_name": "r"}
    first = make_search(**where)
    assert isinstance(first.suggest("a"), dict)
    monkeypatch.setattr(actors, "_ANCHORS", weakref.WeakValueDictionary())  # as in another process
    monkeypatch.setattr(actors, "_KEPT", {})
    second = make_search(**where)
    for trial in ("b", "c"):
        with pytest.raises(VaultError, match="started by another process"):
            second.suggest(trial)
    assert first.guarantee().protected


def planned_by(search):
    """Trials that the host of a search has planned."""
    actor = ray.get_actor(host_name(search))
    return actor.process.host._host.settings.config.n_trials


@pytest.mark.parametrize("vault", [None, "sqlite:///{folder}/vault.db"])
def test_a_plan_is_not_made_before_the_number_of_trials_is_known(vault, tmp_path):
    """A search that was saved before it was used is restored, and fitted then."""
    where = {} if vault is None else {"vault": vault.format(folder=tmp_path)}
    search = DPGIBOSearch(1.0, metric="loss", mode="min", search_space=LINE, **where)
    search.save(str(tmp_path / "state"))
    restored = DPGIBOSearch(1.0, metric="loss", mode="min", search_space=LINE, **where)
    restored.restore(str(tmp_path / "state"))
    assert restored.set_search_properties(None, None, {}, num_samples=30)
    assert isinstance(restored.suggest("a"), dict)
    fitting = DPGIBOSearch(1.0, metric="loss", mode="min", search_space=LINE)
    assert fitting.set_search_properties(None, None, {}, num_samples=30)
    assert isinstance(fitting.suggest("a"), dict)
    assert planned_by(restored) == planned_by(fitting) == 30


@pytest.mark.parametrize("kind", ["records", "rewards"])
def test_an_experiment_that_is_only_read_begins_nothing(kind, tmp_path, local_hosts):
    told_how = {"metric": "r", "mode": "max", "run_name": "clinic"}
    told_how["vault"] = f"sqlite:///{tmp_path}/vault.db"
    if kind == "records":
        search = DPGIBOSearch(1.0, **told_how)
    else:
        search = LDPGPUCBSearch(1.0, value_range=(0, 1), **told_how)
    search.set_search_properties(None, None, LINE)
    assert isinstance(search.suggest("a"), dict)
    search.save_to_dir(str(tmp_path), "session")
    search.close()
    assert local_hosts.alive == []
    found = type(search).from_experiment(tmp_path)
    assert local_hosts.alive == []
    found.set_search_properties(None, None, LINE)
    found.restore_from_dir(str(tmp_path))  # which is what a fit does
    assert len(local_hosts.alive) == 1


# By Ray Client ----------------------------------------------------------------------------------


def searches_with_hosts(folder):
    told = {"metric": "r", "mode": "max"}
    vault = f"sqlite:///{folder}/vault.db"
    return {
        "records": DPGIBOSearch(1.0, **told),
        "records in a database": DPGIBOSearch(1.0, vault=vault, **told),
        "rewards": LDPGPUCBSearch(1.0, value_range=(0, 1), **told),
        "draws": DUETSSearch(2, epsilon=1.0, value_range=(0, 1), n_trials=40, **told),
        "federation": make_search(),
    }


def test_ray_client_is_refused_when_the_tuner_pickles_the_search(tmp_path, monkeypatch):
    made = searches_with_hosts(tmp_path)
    monkeypatch.setattr("ray.util.client.ray.is_connected", lambda: True)
    for search in made.values():
        with pytest.raises(VaultError, match="Ray Client") as refused:
            cloudpickle.dumps(search)
        assert "ray job submit" in str(refused.value)
    nothing = LDPGPUCBSearch(math.inf, value_range=(0, 1), metric="r", mode="max")
    assert cloudpickle.dumps(nothing)  # without privacy there is no ledger that could be elsewhere


def test_a_search_that_was_never_fitted_can_be_closed(tmp_path, local_hosts):
    for search in searches_with_hosts(tmp_path).values():
        search.close()
    assert local_hosts.alive == []


def test_the_first_trials_tell_how_long_all_take_and_no_pickle_holds_their_times(monkeypatch):
    search = short_search(search_space=LINE)
    now, ends = [0.0], search.on_trial_complete

    def after_20_minutes(trial, row, error=False):
        now[0] += 1200.0
        ends(trial, {**row, "time_total_s": 1200.0}, error)

    monkeypatch.setattr("privbo_plugins.sessions.scheduler.time.monotonic", lambda: now[0])
    monkeypatch.setattr(search, "on_trial_complete", after_20_minutes)
    told = []
    monkeypatch.setattr(logging.getLogger("ray.tune.privbo"), "info", told.append)
    done = evaluation(search, search.private(squares), 5)
    n = search.status()["planned"]
    assert len(done) == 5
    assert len(told) == 1
    assert told[0].startswith(f"The first 3 trials took 60 min: about {lasting(1200 * n)} for all")
    assert "_pace" not in search.__getstate__()
