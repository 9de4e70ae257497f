"""A federation under Tune: what it runs, what it shows, and what it refuses."""

import json
import math
import stat
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray.cloudpickle as cloudpickle
from ray import tune
from ray.tune.search import Repeater

from privbo_plugins.errors import PrivacyError, VaultError
from raytune_searchers import FederationConfig, agent_trials
from raytune_searchers._channel import Channel
from raytune_searchers._space import to_space
from raytune_searchers.hosts.agents import AgentHost, AgentSettings, ServerLink
from raytune_searchers.hosts.server import ServerHost, ServerSettings
from tests.inside import call_host, history_of_agent
from tests.raytune_searchers.federated_scenes import (
    SPACE,
    TRIALS,
    evaluations,
    make_search,
    noted,
    start,
)
from tests.raytune_searchers.hosts import evaluation
from tests.raytune_searchers.runs import absent
from tests.raytune_searchers.test_faults import never_stalls  # noqa: F401
from tests.worker import append, lines

NAMES = ["oslo", "bergen", "bodo", "hamar"]

TAGS = {"agent", "round", "federation_round"}


def tags(results):
    return sorted((r.metrics["agent"], r.metrics["round"]) for r in results if not r.error)


def check_results(results):
    """Nothing but tags: in configs, in results, in what Tune wrote."""
    for result in results:
        assert set(result.config) == {"agent", "round"}
        for written in lines(Path(result.path) / "result.json"):
            assert set(written["config"]) == {"agent", "round"}
            assert "x" not in written
    values = results.get_dataframe()
    assert "config/x" not in values
    assert set(values) >= {"agent", "round", "federation_round"}


# Experiments ------------------------------------------------------------------------------------


def keeping(folder):
    """Notes what each agent is told at its end."""

    def finish(agent, config, value):
        append(folder / "best", [agent, config, value])

    return finish


def noting_imports(private, notes):
    """A trial that notes what its process has imported once it was told its tags."""

    def trial(config):
        import json
        import sys

        told = private(config)
        with open(notes, "a") as file:
            file.write(json.dumps(list(sys.modules)) + "\n")
        return told

    return trial


def check_rounds(search, results, folder, template):
    """Every agent did its trials, and each of two rounds was released once."""
    assert tags(results) == sorted((name, k + 1) for name in NAMES for k in range(TRIALS))
    assert Counter(evaluations(folder)) == dict.fromkeys(NAMES, TRIALS)
    charges = call_host(search, "ledger")
    assert [(c.key, c.population) for c in charges] == [("1", "agents"), ("2", "agents")]
    guarantee = search.guarantee(results)
    assert guarantee.protected
    assert guarantee.n_released == 2
    assert guarantee.epsilon <= 4.0
    assert "which agent ran when" in guarantee.details()
    best = {agent: (config, value) for agent, config, value in lines(folder / "best")}
    assert len(lines(folder / "best")) == len(NAMES)
    for name in NAMES:
        trials = agent_trials(template, name, SPACE, search.run)
        assert len(trials) == TRIALS
        config, value = max(trials, key=lambda trial: trial[1])
        assert best[name] == (config, value)
        assert set(config) == {"x", "n", "c"}
        assert config["c"] == 5
    search.close()
    assert search.guarantee().n_released == 2


@pytest.mark.soak  # each run has its page and a killed agent on a real Ray
@pytest.mark.usefixtures("the_ray")
def test_a_federation_under_tune(tmp_path):
    template = f"sqlite:///{tmp_path}/{{agent}}.db"
    search = make_search(agents=NAMES, hosts=2, agent_vaults=template, run_name="r")
    private = search.private(noted(tmp_path), keeping(tmp_path))
    trial = noting_imports(private, str(tmp_path / "imports"))
    results = start(search, trial, tmp_path, max_concurrent_trials=1).fit()
    assert results.num_errors == 0
    check_results(results)
    check_rounds(search, results, tmp_path, template)
    imported = json.loads((tmp_path / "imports").read_text().splitlines()[-1])
    assert "raytune_searchers._shell" in imported
    assert absent(imported, [
        "privbo_plugins.sessions", "privbo_plugins.store.vault", "privbo_plugins.algorithms",
        "sqlalchemy", "dp_accounting", "scipy.stats", "scipy.optimize", "plotly",
    ])  # fmt: skip


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("hosts", [2, "agent"])
def test_every_agent_does_its_trials_and_each_round_is_released_once(hosts, tmp_path):
    template = f"sqlite:///{tmp_path}/{{agent}}.db"
    search = make_search(agents=NAMES, hosts=hosts, agent_vaults=template, run_name="r")
    results = evaluation(search, search.private(noted(tmp_path), keeping(tmp_path)))
    assert not any(trial.error for trial in results)
    assert all(set(row) == TAGS | OWN for trial in results for row in trial.rows)
    check_rounds(search, results, tmp_path, template)


@pytest.mark.usefixtures("local_hosts")
def test_a_trial_is_given_out_once_however_long_it_waits(monkeypatch):
    search = make_search(hosts=1)
    search.set_search_properties(None, None, {})
    assert search.suggest("first") is not None
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6, sleep=time.sleep)
    monkeypatch.setattr("raytune_searchers._agents.time", clock)
    assert [search.suggest("another") for _ in range(10)] == [None] * 10
    search.close()


OWN = {"config", "trial_id", "training_iteration"}
"""What Tune adds to a result."""


@pytest.mark.soak
@pytest.mark.usefixtures("the_ray")
def test_agents_that_fail_tell_nothing_and_hold_up_nobody(tmp_path):
    def strike(agent, before):
        if agent == 0 and before == 0:
            raise KeyError("Jane Doe", 0.123456789)
        if agent == 0 and before == 1:
            tune.report({"value": 0.123456789})
        if agent == 0 and before == 2:
            raise SystemExit("Jane Doe")

    def objective(agent, config):
        value = noted(tmp_path, strike)(agent, config)
        return math.nan if agent == 1 else value

    def finish(agent, config, value):
        append(tmp_path / "best", [agent, config, value])

    search = make_search({"n_agents": 2}, hosts="agent", log_to=f"{tmp_path}/log-{{agent}}")
    results = start(search, search.private(objective, finish), tmp_path).fit()
    log = tmp_path / "log-0"
    assert "Jane Doe" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert Counter(evaluations(tmp_path)) == {0: TRIALS + 2, 1: TRIALS}
    texts = [str(error) for error in results.errors]
    assert results.num_errors == 3
    assert not any("Jane" in text or "0.1234" in text for text in texts)
    assert sum("raised KeyError" in text for text in texts) == 1
    assert sum("raised SystemExit" in text for text in texts) == 1
    assert sum("session are closed to an agent's objective" in text for text in texts) == 1
    for path in tmp_path.rglob("error.*"):
        assert b"Jane" not in path.read_bytes()
    of_the_other = [(1, k + 1) for k in range(TRIALS)]
    assert tags(results) == [(0, 2), (0, 3), *of_the_other]
    best = {agent: (config, value) for agent, config, value in lines(tmp_path / "best")}
    assert best[1] == (None, None)
    assert best[0][0] is not None
    guarantee = search.guarantee(results)
    assert guarantee.protected
    assert guarantee.n_released == 2
    assert "trials failed" in guarantee.details()


@pytest.mark.parametrize("param_space", [{"x": tune.uniform(0, 1)}, {"c": 5}])
def test_a_param_space_would_show_an_agents_choice(param_space):
    with pytest.raises(ValueError, match="no param_space= to the Tuner"):
        make_search().set_search_properties(None, None, param_space)


def test_results_know_one_metric():
    search = make_search()
    with pytest.raises(ValueError, match="know one metric, 'federation_round', got metric='loss'"):
        search.set_search_properties("loss", "min", {})
    assert search.set_search_properties("federation_round", "min", {})
    assert search.mode == "max"


# Arguments --------------------------------------------------------------------------------------


def test_a_pickled_search_holds_no_url_of_an_agents_database(monkeypatch, tmp_path):
    monkeypatch.setenv("AGENTS", f"sqlite:///{tmp_path}/sentinel-{{agent}}.db")
    pickled = cloudpickle.dumps(make_search(agent_vaults="env:AGENTS", run_name="r"))
    assert b"sentinel" not in pickled
    assert cloudpickle.loads(pickled).run == "r"


# The server and its agents, without Ray ---------------------------------------------------------


X_OF_CONFIG = cloudpickle.dumps((lambda agent, config: config["x"], None))
"""What a trial sends to its agent's host: objective and finish."""


class Federation:
    """A server and hosts of agents in this process."""

    def __init__(self, n_features=20, url=None, **settings):
        self.config = FederationConfig(
            **{"n_agents": 2, "epsilon": 4.0, "n_rounds": 2, "n_startup": 1} | settings,
            n_features=n_features,
        )
        self.space = to_space(SPACE)
        self.settings = ServerSettings(
            run="r", config=self.config, space=self.space.public, maximize=True
        )
        self.url = url
        self.restart()

    def restart(self):
        self.server = ServerHost(self.settings, self.url)

    def _send(self, operation, *args):
        return self.server.call(operation, *args)

    @property
    def channel(self):
        return Channel(self.server.name, self._send)

    def link(self, agent):
        return ServerLink(self.channel, self.config, agent)

    def host(self, monkeypatch, url=None):
        """One host of all agents."""
        monkeypatch.setattr(
            "raytune_searchers.hosts.agents.channel_of_trial", lambda *_, **__: self.channel
        )
        settings = AgentSettings(
            run="r", server="s", config=self.config, maximize=True, seed=0, trials=3,
            members=dict(enumerate(range(self.config.n_agents))),
            space=cloudpickle.dumps((self.space, SPACE)),
        )  # fmt: skip
        return AgentHost(settings, url)

    def status(self):
        return self.channel.call("rounds")


def test_a_vector_counts_once_for_a_trial():
    federation = Federation()
    link, other = federation.link(0), federation.link(1)
    link.number = other.number = 1
    assert [link.submit(np.ones(20)), other.submit(np.ones(20))] == [1, 1]
    assert link.submit(np.ones(20)) == 1  # again, for the same trial: the round it was in
    link.number = 2
    assert link.submit(np.ones(20)) == 2


def test_a_trial_that_is_over_is_not_evaluated_again(monkeypatch):
    federation = Federation()
    host = federation.host(monkeypatch)
    host.call("evaluate", 0, 0, X_OF_CONFIG)
    before = history_of_agent(host, 0).read()
    host.call("evaluate", 0, 0, X_OF_CONFIG)
    after = history_of_agent(host, 0).read()
    assert before[1].tolist() == after[1].tolist()
    error, _ = host.call("evaluate", 0, 2, X_OF_CONFIG)
    assert error[0] == "VaultError"
    assert "older backup" in error[1]


def test_a_round_that_failed_too_often_ends_without_a_value(monkeypatch):
    federation = Federation()
    host = federation.host(monkeypatch)
    stand = host.call("tend", federation.status(), {0: 0})[1]
    assert [stand[0].done, stand[1].done] == [1, 0]
    stand = host.call("tend", federation.status(), {0: 0})[1]
    assert stand[0].done == 1
    assert len(history_of_agent(host, 0).read()[1]) == 0


def test_a_server_of_other_settings_is_refused(tmp_path):
    federation = Federation()
    other = replace(federation.settings, maximize=False)
    with pytest.raises(ValueError, match="other maximize"):
        federation.channel.call("join", other)
    ahead = replace(federation.settings, seen=(1, "0" * 64))
    with pytest.raises(VaultError):
        federation.channel.call("join", ahead)


def test_functions_that_cannot_be_loaded_tell_nothing(monkeypatch):
    host = Federation().host(monkeypatch)
    (error, text), _ = host.call("evaluate", 0, 0, b"Jane Doe")
    assert error == "ObjectiveFailedError"
    assert "withheld" in text
    assert "Jane" not in text


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")  # Repeater's own
def test_a_repeater_is_refused_before_an_agent_evaluates(tmp_path):
    search = make_search()
    repeated = Repeater(search, repeat=2)
    suggestion = repeated.suggest("t0")
    with pytest.raises(PrivacyError, match="Leave it out"):
        search.private(noted(tmp_path))(dict(suggestion))
    assert evaluations(tmp_path) == []
    repeated.suggest("t1")
    for trial in ("t0", "t1"):  # of which it tells the mean, which is NaN
        repeated.on_trial_complete(trial, {"trial_id": trial}, error=True)
    assert search.guarantee().protected
    search.close()
