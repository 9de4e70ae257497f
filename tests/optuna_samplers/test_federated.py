"""Federations of Optuna studies: rounds, workers, resumption, failures and misuse."""

from __future__ import annotations

import base64
import json
import math
import threading
import warnings

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from optuna_samplers import DPFTSDESampler, FederatedServer, run_federated
from optuna_samplers._space import to_space
from privbo_plugins.algorithms.dp_fts_de import Regions
from privbo_plugins.errors import FederationError, PrivacyWarning, SpaceChangedError
from tests.engine.helpers import in_threads
from tests.optuna_samplers.scenes.federations import (
    N_STARTUP,
    SQUARE,
    Recorder,
    Wrapper,
    bowl,
    make_config,
)

pytestmark = pytest.mark.usefixtures("quiet")


class Federation:
    """A server of this process and a study an agent; every link is a :class:`Recorder`.

    Args:
        n_agents: How many studies.
        space: Declared by all samplers; None for none.
        direction: Of every study.
        seed: Of agent 0; the others have the next ones.
        server: Settings of the server.
        link: Goes around each agent's link, inside the recorder.
        storage: From an agent to its study's storage.
        known: A server that exists.
        config: Settings of the federation.
    """

    def __init__(
        self,
        n_agents=3,
        *,
        space=SQUARE,
        direction="minimize",
        seed=0,
        server=None,
        link=lambda link: link,
        storage=lambda n: None,
        known=None,
        **config,
    ):
        settings = {"deadline": 30.0} | (server or {})
        self.server = known or FederatedServer(make_config(n_agents, **config), **settings)
        self.links = [Recorder(link(self.server.connect(n))) for n in range(n_agents)]
        self.samplers = [
            DPFTSDESampler(link, search_space=space, seed=None if seed is None else seed + n)
            for n, link in enumerate(self.links)
        ]
        self.studies = [
            optuna.create_study(
                sampler=sampler, direction=direction, storage=storage(n),
                study_name=f"agent-{n}", load_if_exists=True,
            )
            for n, sampler in enumerate(self.samplers)
        ]  # fmt: skip

    @property
    def counts(self):
        return [len(study.trials) for study in self.studies]

    def run(self, n_rounds, objective=bowl, **settings):
        objectives = [objective(n) for n in range(len(self.studies))]
        run_federated(self.studies, objectives, n_rounds, **settings)

    def check_released(self, n_rounds):
        """So many rounds, each charged once and released once; all agents got the same."""
        charges = self.server.ledger()
        keys = [str(t) for t in range(1, n_rounds + 1)]
        assert sorted(charge.key for charge in charges) == keys
        assert [b.round for b in self.server.broadcasts()] == list(range(1, n_rounds + 1))
        known = {b.round: b.weights for b in self.server.broadcasts()}
        for link in self.links:
            for t, weights in link.received.items():
                np.testing.assert_array_equal(weights, known[t])

    def points(self):
        return [[trial.params for trial in study.trials] for study in self.studies]


# A whole run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("population", ["explore", "prior"])
def test_a_server_that_is_not_trusted_reads_the_sum_alone(population, monkeypatch):
    """All that agents send it is written down: no vector of theirs is in it, in any form."""
    pytest.importorskip("cryptography", reason="needs the federation extra")
    from privbo_plugins.sessions.rounds import Rounds

    heard = []

    def writing(act):
        def written(rounds, agent, asked, **more):
            told = act(rounds, agent, asked, **more)
            heard.extend((json.dumps(asked), json.dumps(told)))
            return told

        return written

    monkeypatch.setattr(Rounds, "enter", writing(Rounds.enter))
    monkeypatch.setattr(Rounds, "turn", writing(Rounds.turn))
    federation = Federation(5, population=population, trust="aggregate", epsilon=2.0)
    federation.run(3)
    federation.check_released(3)
    assert federation.counts == [N_STARTUP + 3] * 5
    seen = "".join(heard)
    assert seen.count('"vector"') == 15  # one an agent and round
    for link in federation.links:
        assert len(link.sent) == 3
        for _, vector in link.sent:
            for number in vector[vector != 0]:
                assert repr(float(number)) not in seen
            for form in (vector.tobytes(), (-vector).tobytes()):
                assert base64.b64encode(form)[4:-4].decode() not in seen
    guarantee = federation.samplers[0].guarantee(federation.studies[0])
    assert "the server, which follows the protocol" in guarantee.details()
    assert guarantee.epsilon <= 2.0


@pytest.mark.parametrize(
    ("direction", "population"),
    [("minimize", "explore"), ("maximize", "explore"), ("minimize", "prior")],
)
def test_every_agent_ends_with_its_trials_and_every_round_is_released(direction, population):
    federation = Federation(direction=direction, population=population)
    federation.run(3)
    assert federation.counts == [N_STARTUP + 3] * 3
    federation.check_released(3)
    for link, study in zip(federation.links, federation.studies, strict=True):
        assert link.rounds == [1, 2, 3]
        assert sorted(link.received) == [1, 2, 3]
        assert all(trial.state == TrialState.COMPLETE for trial in study.trials)
        assert federation.samplers[0].guarantee().n_released == 3


def _pairs(federation):
    return zip(federation.samplers, federation.studies, strict=True)


# Start-up ---------------------------------------------------------------------------------------


def test_without_a_declared_space_the_first_trial_is_an_independent_draw():
    federation = Federation(4, n_regions=4, n_startup=8, space=None)
    federation.run(1)
    space = to_space(SQUARE)
    regions = Regions(space, 4)
    for study in federation.studies:
        X = np.array([space.encode(trial.params) for trial in study.trials[1:8]])
        assert len(set(regions.index(X).tolist())) == 1
    federation.check_released(1)


# Going on with a run that was interrupted -------------------------------------------------------


def test_new_samplers_and_a_new_server_go_on_with_studies_of_which_some_are_ahead(tmp_path):
    vault = {"vault": f"sqlite:///{tmp_path}/vault.db"}

    def storage(n):
        return journal(tmp_path, f"agent-{n}")

    first = Federation(server=vault, storage=storage)
    first.run(1)
    ahead = first.studies[2]
    first.links[0].leave()
    first.links[1].leave()
    ahead.optimize(bowl(2), n_trials=1)
    assert first.counts == [3, 3, 4]
    before = [b.weights for b in first.server.broadcasts()]

    second = Federation(server=vault, storage=storage)
    second.run(4)
    assert second.counts == [N_STARTUP + 4] * 3
    second.check_released(3)
    for early, late in zip(before, second.server.broadcasts(), strict=False):
        np.testing.assert_array_equal(early, late.weights)
    for n in range(2):  # rounds that were released are not sent to again
        assert min(second.links[n].rounds) == len(before) + 1


# Objectives that fail ---------------------------------------------------------------------------


def test_failed_pruned_nan_and_infinite_trials():
    def objective(n):
        def measured(trial):
            value = bowl(n)(trial)
            if n == 0:
                odd = {0: math.inf, 1: math.nan, 2: -math.inf, 3: None, 4: "text"}
                if trial.number == 5:
                    trial.report(0.5, 0)
                    raise optuna.TrialPruned
                return odd.get(trial.number, value)
            return value

        return measured

    federation = Federation(n_rounds=6)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        federation.run(6, objective)
    states = [trial.state.name for trial in federation.studies[0].trials]
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "FAIL", "FAIL", "PRUNED"] + 2 * ["COMPLETE"]
    federation.check_released(6)
    assert federation.links[0].rounds == [1, 2, 3, 4, 5, 6]
    for link in federation.links:
        assert all(np.isfinite(vector).all() for _, vector in link.sent)


def test_what_failed_is_not_in_what_is_sent():
    """An agent whose trials all fail sends what one without any trials would: its prior."""

    def fails(n):
        def measured(trial):
            bowl(n)(trial)
            return math.nan

        return measured

    federation, other = Federation(1, z=0.0), Federation(1, z=0.0)
    federation.run(2, fails)
    other.run(2, lambda n: lambda trial: (trial.suggest_float("x", 0, 1), math.inf)[1])
    a, b = (f.links[0].sent for f in (federation, other))
    for (_, one), (_, two) in zip(a, b, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", ["enqueued", "pruned", "failed"])
def test_a_trial_that_asks_for_nothing_does_not_cost_its_agent_a_round(kind):
    federation = Federation(server={"deadline": 1.0}, n_rounds=4)

    def objective(n):
        def measured(trial):
            if n == 0 and trial.number == N_STARTUP and kind != "enqueued":
                raise optuna.TrialPruned if kind == "pruned" else OSError
            return bowl(n)(trial)

        return measured

    federation.run(0)
    if kind == "enqueued":
        federation.studies[0].enqueue_trial({"x": 0.25, "y": 1.5})
    federation.run(4, objective, catch=OSError)
    assert [link.rounds for link in federation.links] == [[1, 2, 3, 4]] * 3


# Arguments --------------------------------------------------------------------------------------


def test_wrong_arguments():
    federation = Federation()
    objectives = [bowl(n) for n in range(3)]
    with pytest.raises(ValueError, match="3 studies and 2 objectives"):
        run_federated(federation.studies, objectives[:2], 1)
    with pytest.raises(ValueError, match="-1"):
        run_federated(federation.studies, objectives, -1)
    plain = optuna.create_study()
    with pytest.raises(ValueError, match="DPFTSDESampler of its own"):
        run_federated([plain, *federation.studies[1:]], objectives, 1)
    twice = optuna.create_study(sampler=federation.samplers[0])
    with pytest.raises(ValueError, match="share a sampler"):
        run_federated([twice, *federation.studies[:2]], objectives, 1)
    assert federation.counts == [0, 0, 0]
    assert federation.server.broadcasts() == []


def test_two_samplers_of_one_agent_are_refused():
    server = FederatedServer(make_config(2, n_rounds=1), deadline=0.2)
    studies = [
        optuna.create_study(sampler=DPFTSDESampler(server.connect(0), search_space=SQUARE))
        for _ in range(2)
    ]
    with pytest.raises(ValueError, match="agent"):
        run_federated(studies, [bowl(0), bowl(1)], 1)


def test_an_objective_in_another_range_than_declared():
    federation = Federation(1)
    with pytest.raises(SpaceChangedError, match="'x'"):
        federation.studies[0].optimize(lambda t: t.suggest_float("x", 2, 3), n_trials=1)


def journal(path, name):
    """A study's storage in a file; cheaper to create than a database."""
    backend = optuna.storages.journal.JournalFileBackend(f"{path}/{name}.log")
    return optuna.storages.JournalStorage(backend)


def _shared(kind, path):
    """From an agent to a storage in which all studies lie."""
    if kind == "one journal":
        storage = journal(path, "all")
    elif kind == "one database":
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}/all.db")
    elif kind == "one file of two journals":
        return lambda n: journal(path, "all")
    else:
        return lambda n: f"sqlite:///{path}/all.db"
    return lambda n: storage


@pytest.mark.parametrize(
    "kind", ["one journal", "one file of two journals", "one database", "one URL"]
)
def test_studies_in_one_storage_are_warned_of(kind, tmp_path):
    federation = Federation(2, storage=_shared(kind, tmp_path))
    with pytest.warns(PrivacyWarning, match="storage of its own"):
        federation.run(0)


def test_studies_in_storages_of_their_own_are_not_warned_of(tmp_path):
    federation = Federation(storage=lambda n: journal(tmp_path, f"agent-{n}"))
    federation.run(1)  # a warning would be an error here
    federation.check_released(1)
    Federation().run(0)  # nor are those in memory


# Agents that run by themselves ------------------------------------------------------------------


def test_a_fast_agent_does_not_run_ahead():
    waits = threading.Event()

    class Announcing(Wrapper):
        def collect(self, t):
            waits.set()
            return self.link.collect(t)

    federation = Federation(2, link=Announcing, server={"deadline": None})

    def fast():
        federation.studies[0].optimize(bowl(0), n_trials=N_STARTUP + 3)

    def slow():
        assert waits.wait(120.0)
        assert len(federation.studies[0].trials) == N_STARTUP + 1  # one is waiting
        federation.studies[1].optimize(bowl(1), n_trials=N_STARTUP + 3)

    assert in_threads(2, lambda agent: (fast, slow)[agent]()) == []
    federation.check_released(3)
    assert sorted(federation.links[0].received) == [1, 2, 3]  # it has waited for each


def test_several_asked_before_one_is_told():
    federation = Federation(1, n_rounds=3)
    study = federation.studies[0]
    asked = [study.ask(SQUARE) for _ in range(N_STARTUP + 5)]
    assert len({tuple(t.params.values()) for t in asked}) > N_STARTUP
    for trial in reversed(asked):
        study.tell(trial, bowl()(trial))
    federation.check_released(3)
    study.tell(study.ask(SQUARE), state=TrialState.PRUNED)
    study.tell(study.ask(SQUARE), state=TrialState.FAIL)


# Deadlines --------------------------------------------------------------------------------------


def test_an_agent_that_has_left_is_not_waited_for_until_it_sends_again():
    federation = Federation(2, server={"deadline": None})
    federation.samplers[1].leave()
    federation.studies[0].optimize(bowl(0), n_trials=N_STARTUP + 1)
    assert len(federation.server.broadcasts()) == 1
    federation.studies[1].optimize(bowl(1), n_trials=N_STARTUP)  # it sends nothing yet
    federation.samplers[1].send(federation.studies[1])
    assert len(federation.server.broadcasts()) == 1  # agent 0 is waited for
    for n in range(2):
        federation.studies[n].optimize(bowl(n), n_trials=1)
    assert [link.rounds for link in federation.links] == [[1, 2], [2]]
    federation.check_released(2)


# Servers that fail ------------------------------------------------------------------------------


class Broken(Wrapper):
    """A link that is down while its class says so."""

    down = ()

    def __getattr__(self, name):
        if name in self.down:
            raise FederationError("the server is away")
        return super().__getattr__(name)


@pytest.mark.parametrize("call", ["submit", "collect", "broadcasts"])
def test_a_study_goes_on_without_its_server(call, monkeypatch):
    federation = Federation(1, link=Broken, n_rounds=4)
    study = federation.studies[0]
    study.optimize(bowl(), n_trials=N_STARTUP + 1)
    monkeypatch.setattr(Broken, "down", (call,))
    with pytest.warns(UserWarning, match="goes on alone: the server is away"):
        study.optimize(bowl(), n_trials=2)
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials)
    monkeypatch.setattr(Broken, "down", ())
    study.optimize(bowl(), n_trials=4)
    federation.check_released(4)  # it came back


@pytest.mark.parametrize("how", ["reseeded", "resumed"])
def test_a_study_goes_on_without_its_server_when_it_joins_again(how, monkeypatch):
    federation = Federation(1, link=Broken, n_rounds=4, space=None)
    study = federation.studies[0]
    study.optimize(bowl(), n_trials=N_STARTUP + 1)
    if how == "reseeded":
        study.sampler.reseed_rng()
    else:
        study.sampler = DPFTSDESampler(federation.links[0], seed=0)
    monkeypatch.setattr(Broken, "down", ("join", "submit", "collect", "broadcasts"))
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        study.optimize(bowl(), n_trials=2)
    assert len(study.trials) == N_STARTUP + 3


# Spaces -----------------------------------------------------------------------------------------


def test_a_study_that_turns_out_to_have_another_space_is_refused():
    federation = Federation(2, space=None)
    federation.studies[0].optimize(bowl(0), n_trials=2)
    with pytest.raises(SpaceChangedError, match="same parameters"):
        federation.studies[1].optimize(lambda t: t.suggest_float("z", 0, 1), n_trials=2)


def _shrinking(at):
    def objective(trial):
        value = trial.suggest_float("x", 0, 1) / 2
        return float(value + (trial.suggest_float("y", 0, 1) / 2 if trial.number < at else 0))

    return objective


def test_a_study_whose_common_space_shrinks_goes_on_alone():
    federation = Federation(2, space=None, n_rounds=4, server={"deadline": 1.0})
    objectives = {0: _shrinking(N_STARTUP + 1), 1: _shrinking(99)}
    federation.run(1, objectives.__getitem__)
    with pytest.warns(UserWarning, match="has left the federation") as caught:
        federation.run(4, objectives.__getitem__)
    assert sum("left the federation" in str(w.message) for w in caught) == 1
    assert federation.counts == [N_STARTUP + 4] * 2
    federation.check_released(4)
    assert max(federation.links[0].rounds) == 2  # with the old space
    assert federation.links[1].rounds == [1, 2, 3, 4]
    assert federation.samplers[0].guarantee(federation.studies[0]).protected


# Seeds, copies ----------------------------------------------------------------------------------


def test_a_seed_gives_the_same_points():
    a, b, c = Federation(z=0.0), Federation(z=0.0), Federation(z=0.0, seed=10)
    for federation in (a, b, c):
        federation.run(3)
    assert a.points() == b.points()
    assert a.points() != c.points()
    assert a.points()[0] != a.points()[1]


def test_a_seed_never_drives_the_noise():
    a, b = Federation(z=1.0), Federation(z=1.0)
    for federation in (a, b):
        federation.run(1)
    np.testing.assert_array_equal(a.links[0].sent[0][1], b.links[0].sent[0][1])
    assert not np.array_equal(*(f.server.broadcasts()[0].weights for f in (a, b)))
    assert a.points()[0][:N_STARTUP] == b.points()[0][:N_STARTUP]


@pytest.mark.parametrize("space", [SQUARE, None])
def test_reseed_rng_changes_the_points(space):
    a, b = Federation(1, z=0.0, space=space), Federation(1, z=0.0, space=space)
    b.samplers[0].reseed_rng()
    for federation in (a, b):
        federation.run(2)
    assert all(p != q for p, q in zip(a.points()[0], b.points()[0], strict=True))


# What may be claimed ----------------------------------------------------------------------------


def test_the_recommendation_is_the_agents_own_best():
    for direction, best in (("minimize", min), ("maximize", max)):
        federation = Federation(direction=direction)
        with pytest.raises(ValueError, match="No trials are completed"):
            federation.samplers[0].recommend(federation.studies[0])
        federation.run(3)
        for sampler, study in _pairs(federation):
            found = best(study.trials, key=lambda trial: trial.value)
            assert sampler.recommend(study) == found.params


def test_one_study_of_a_federation_in_several_storages_is_several_studies():
    """A sampler may serve two studies, one after another; each has its own history."""
    federation = Federation(1, n_rounds=4)
    other = optuna.create_study(sampler=federation.samplers[0])
    federation.studies[0].optimize(bowl(), n_trials=N_STARTUP + 2)
    other.optimize(bowl(), n_trials=N_STARTUP + 2)
    federation.check_released(4)
    assert [trial.number for trial in other.trials] == list(range(N_STARTUP + 2))
