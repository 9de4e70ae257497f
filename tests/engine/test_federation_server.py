"""The server of a federation: rounds, deadlines, ledger, restarts, threads and crashes.

Noise is the system's unless a test injects it; no test depends on its values but through equality
of what was released, and 64-bit floats of two draws meet by chance with probability below 1e-15.
"""

import json
import math
import signal
import sqlite3
import threading

import numpy as np
import pytest

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.algorithms.dp_fts_de import config as config_module
from privbo_plugins.errors import FederationError, SpaceChangedError
from privbo_plugins.federation import FederatedServer
from privbo_plugins.privacy import noise as noise_module
from privbo_plugins.privacy.accountant import gdp_epsilon
from privbo_plugins.privacy.ledger import AGENTS
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.transaction import Transaction
from tests.worker import children

from .helpers import NoNoise, cube, in_threads
from .scenes import crash

M, SECRET = 4, 0.7036283888830555
LINE = Space({"x": Float(0.0, 1.0)})


def config_of(**changed):
    published = {"population": "explore", "clipping_norm": 22.0}
    settings = {"n_agents": 3, "z": 1.0, "n_rounds": 3, "n_features": M, **published}
    return FederationConfig(**{**settings, **changed})


def server_of(config=None, **more):
    return FederatedServer(config or config_of(), **{"deadline": None, **more})


def evaluation(server, value=1.0):
    """Every agent of the roster sends the same vector."""
    rounds = [server.connect(n).submit(np.full(M, value)) for n in range(server.config.n_agents)]
    assert len(set(rounds)) == 1
    return rounds[0]


def same(one, two):
    """Bit for bit."""

    def bits(broadcasts):
        return [(b.round, b.weights.tobytes(), b.noise.tobytes()) for b in broadcasts]

    return bits(one) == bits(two)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'server.db'}"


# Rounds ---------------------------------------------------------------------------------------


def test_a_round_closes_when_everybody_has_sent():
    server = server_of()
    links = [server.connect(n) for n in range(3)]
    for n in range(2):
        assert links[n].submit(np.ones(M)) == 1
        assert server.broadcasts() == []
        assert server.ledger() == []
    assert links[2].submit(np.ones(M)) == 1
    (released,) = server.broadcasts()
    assert released.round == 1
    assert released.weights.shape == (1, M)
    assert all(link.collect(1) is released for link in links)
    assert links[0].submit(np.ones(M)) == 2


def test_after_the_last_round_nothing_is_taken():
    server = server_of()
    assert [evaluation(server) for _ in range(3)] == [1, 2, 3]
    assert server.finished
    before = server.broadcasts()
    assert [evaluation(server, 9.0) for _ in range(2)] == [None, None]
    server.close_round()
    assert server.poll() == 3
    assert same(server.broadcasts(), before)
    assert len(server.ledger()) == 3


def test_the_ledger_holds_one_charge_a_round():
    server = server_of(config_of(z=2.0, clipping_norm=5.0))
    for t in range(1, 4):
        evaluation(server)
        charges = server.ledger()
        assert [(c.kind, c.key) for c in charges] == [("broadcast", str(k + 1)) for k in range(t)]
    for charge in charges:
        assert (charge.mu, charge.sensitivity, charge.population) == (0.5, 5.0, AGENTS)
        assert charge.scale == 10.0 * SENSITIVITY_SLACK


@pytest.mark.parametrize("again", [np.full(M, 2.0), np.full(M, np.nan), np.ones(M)], ids=str)
def test_the_first_message_of_an_agent_counts(again):
    server = server_of(config_of(z=0.0, n_agents=2, clipping_norm=8.0))
    one, two = server.connect(0), server.connect(0)
    assert one.submit(np.ones(M)) == 1
    assert one.submit(again) == 1
    assert two.submit(again) == 1
    server.connect(1).submit(np.zeros(M))
    np.testing.assert_allclose(server.broadcasts()[0].weights, [[0.5] * M], rtol=1e-9)


def test_closing_early_leaves_out_who_has_not_sent_and_they_join_the_next():
    server = server_of(config_of(z=0.0, clipping_norm=8.0))
    server.close_round()  # there is none
    assert server.broadcasts() == []
    server.connect(0).submit(np.full(M, 3.0))
    server.close_round()
    np.testing.assert_allclose(server.broadcasts()[0].weights, [[1.0] * M], rtol=1e-9)
    assert server.connect(2).submit(np.ones(M)) == 2
    assert server.connect(0).submit(np.ones(M)) == 2
    assert len(server.broadcasts()) == 1
    assert server.connect(1).submit(np.ones(M)) == 2
    np.testing.assert_allclose(server.broadcasts()[1].weights, [[1.0] * M], rtol=1e-9)


# Deadlines ------------------------------------------------------------------------------------


def test_the_deadline_leaves_out_who_is_silent():
    server = FederatedServer(config_of(z=0.0, clipping_norm=8.0), deadline=0.05)
    link = server.connect(1)
    t = link.submit(np.full(M, 3.0))
    assert t == 1
    released = link.collect(t)
    np.testing.assert_allclose(released.weights, [[1.0] * M], rtol=1e-9)
    assert server.connect(0).submit(np.ones(M)) == 2


def test_the_deadline_runs_from_the_first_message(clock):
    server = FederatedServer(config_of(), deadline=10.0)
    clock.now += 100
    assert server.poll() == 0
    server.connect(0).submit(np.ones(M))
    clock.now += 9
    server.connect(1).submit(np.ones(M))
    assert server.poll() == 0
    clock.now += 2
    assert server.poll() == 1
    server.connect(2).submit(np.ones(M))
    assert server.poll() == 1
    clock.now += 11
    assert server.poll() == 2


def held_server(deadline):
    return FederatedServer(config_of(), space=LINE, deadline=deadline, hold=True)


def test_rounds_that_are_held_close_on_the_servers_clock_only(clock):
    server = held_server(10.0)
    assert evaluation(server) == 1
    server.connect(2).leave()
    clock.now += 9
    assert server.poll() == 0
    assert evaluation(server) == 1
    clock.now += 2
    assert server.poll() == 1
    assert evaluation(server) == 2
    clock.now += 8
    assert server.poll() == 1
    clock.now += 1.5  # twenty seconds from the beginning, whenever anybody asked
    assert server.poll() == 2


def test_closing_by_hand_keeps_the_servers_clock(clock):
    server = held_server(10.0)
    server.close_round()
    assert server.poll() == 1
    clock.now += 10.5
    assert server.poll() == 2  # whether anybody has sent or not


def test_nobody_waits_for_who_has_left():
    server = server_of(config_of(n_rounds=4))
    links = [server.connect(n) for n in range(3)]
    links[2].leave()
    assert links[0].submit(np.ones(M)) == 1
    assert links[1].submit(np.ones(M)) == 1
    assert len(server.broadcasts()) == 1
    links[0].submit(np.ones(M))
    links[1].leave()  # the last that the round waited for
    assert len(server.broadcasts()) == 2
    assert links[2].submit(np.ones(M)) == 3  # comes back
    assert len(server.broadcasts()) == 2
    assert links[0].submit(np.ones(M)) == 3
    assert len(server.broadcasts()) == 3
    assert links[0].submit(np.ones(M)) == 4
    assert len(server.broadcasts()) == 3, "who is back is waited for again"
    assert links[2].submit(np.ones(M)) == 4
    assert len(server.broadcasts()) == 4


# Who takes part decides which vectors of others are in a sum -----------------------------------

BOUND, DEADLINE = 1.0, 10.0


def budgeted(**changed):
    """Ten agents and a budget that one round uses up."""
    budget = {"n_agents": 10, "z": None, "epsilon": 2.0, "delta": 1e-2, "n_rounds": 1}
    return config_of(**{**budget, "clipping_norm": BOUND, **changed})


def first_sum(clock, *, present, hold):
    """The first broadcast, without its noise, times N; the others act alike in both worlds."""
    server = FederatedServer(
        budgeted(), space=LINE, deadline=DEADLINE, hold=hold, noise=NoNoise(0)
    )
    if present:
        server.connect(0).submit(np.zeros(M))
    clock.now += DEADLINE + 0.5
    server.poll()
    for n in range(1, server.config.n_agents):
        server.connect(n).submit(np.eye(M)[0])
    clock.now += DEADLINE + 0.5
    server.poll()
    return np.asarray(server.broadcasts()[0].weights[0] * server.config.n_agents)


def test_on_the_servers_clock_one_agents_presence_changes_a_sum_by_at_most_the_bound(clock):
    with_it = first_sum(clock, present=True, hold=True)
    without = first_sum(clock, present=False, hold=True)
    assert np.linalg.norm(with_it - without) <= BOUND


def test_otherwise_who_is_there_when_is_said_to_be_public(clock):
    """The first message starts a round's clock, so presence can move others' vectors."""
    with_it = first_sum(clock, present=True, hold=False)
    without = first_sum(clock, present=False, hold=False)
    assert np.linalg.norm(with_it - without) > BOUND
    on_its_clock = FederatedServer(budgeted(), space=LINE, hold=True).guarantee()
    assert "does not (add or remove" in on_its_clock.neighbours
    assert "is taken as public" in FederatedServer(budgeted()).guarantee().neighbours


@pytest.mark.parametrize("deadlines", [1, 2, 5])
def test_a_listener_sees_the_same_of_held_rounds_whoever_sends(clock, deadlines):
    """Whatever is looked at, and without a poll in between."""
    looks = {
        "finished": lambda server: server.finished,
        "broadcasts": lambda server: len(server.connect(1).broadcasts()),
        "ledger": lambda server: len(server.ledger()),
        "guarantee": lambda server: server.connect(1).guarantee().n_released,
    }
    seen = {}
    for look, at in looks.items():
        for present in (False, True):
            server = FederatedServer(budgeted(), space=LINE, deadline=DEADLINE, hold=True)
            clock.now += deadlines * DEADLINE + 0.5
            if present:
                server.connect(0).submit(np.zeros(M))
            seen[look, present] = at(server)
    assert {look: seen[look, True] for look in looks} == {
        look: seen[look, False] for look in looks
    }
    n_rounds = budgeted().n_rounds
    assert seen["broadcasts", False] == min(deadlines, n_rounds)
    assert seen["finished", False] == (deadlines >= n_rounds)


# The roster -----------------------------------------------------------------------------------


def test_agents_have_numbers_and_names():
    server = server_of(agents=["Oslo", "Rome", "Bern"])
    assert server.connect("Rome").agent == server.connect(1).agent == 1
    assert server.connect(np.int64(2)).agent == 2
    for unknown in ("Paris", 3, -1, 1.5, None):
        with pytest.raises(ValueError, match="none of them"):
            server.connect(unknown)
    with pytest.raises(ValueError, match="none of them"):
        server_of().connect("Oslo")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"agents": ["a", "b"]}, "different names"),
        ({"agents": ["a", "b", "b"]}, "different names"),
        ({"deadline": 0.0}, "deadline must be"),
        ({"deadline": -1.0}, "deadline must be"),
        ({"deadline": math.nan}, "deadline must be"),
        ({"deadline": None, "hold": True}, "give deadline="),
    ],
    ids=str,
)
def test_a_server_that_makes_no_sense_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        FederatedServer(config_of(), **changed)


def test_all_agents_tune_the_same_space(url):
    server = server_of(vault=url)
    server.connect(0).join(cube(2).to_dict())
    server.connect(1).join(cube(2).to_dict())
    other = Space({"x00": Float(0.0, 2.0), "x01": Float(0.0, 1.0)})
    for space in (cube(3), cube(1), other):
        with pytest.raises(SpaceChangedError, match="same parameters"):
            server.connect(2).join(space.to_dict())
        with pytest.raises(SpaceChangedError, match="same parameters"):
            server_of(vault=url, space=space)
    again = server_of(vault=url)
    again.connect(2).join(cube(2).to_dict())
    with pytest.raises(SpaceChangedError, match="same parameters"):
        again.connect(2).join(other.to_dict())


def test_a_space_in_which_nothing_varies_is_refused():
    server = FederatedServer(budgeted(population="prior", clipping_norm=None))
    with pytest.raises(ValueError, match="varies"):
        server.connect(0).join(Space({"x": Float(1.0, 1.0)}).to_dict())
    server.connect(1).join(Space({"x": Float(0.0, 1.0)}).to_dict())


def test_nobody_can_write_into_what_others_receive():
    server = FederatedServer(budgeted(n_agents=1))
    server.connect(0).submit(np.ones(M))
    weights = server.connect(0).broadcasts()[0].weights
    with pytest.raises(ValueError, match="WRITEABLE"):
        weights.setflags(write=True)


# Claims ---------------------------------------------------------------------------------------


def test_the_guarantee_names_what_was_spent_and_what_can_be():
    config = config_of(z=None, epsilon=4.0, delta=0.01, n_regions=2)
    server = server_of(config)
    for released in range(4):
        said = server.guarantee()
        assert said.protected
        assert (said.n_agents, said.n_rounds, said.n_released) == (3, 3, released)
        assert (said.epsilon, said.delta) == (config.epsilon_after(3), 0.01)
        assert said.epsilon_spent == config.epsilon_after(released) <= said.epsilon <= 4.0
        assert said.parameters["P"] == 2
        assert said.parameters["q"] == 1.0
        json.dumps(said.to_dict())
        assert f"in {released} of 3 rounds" in str(said)
        assert "participation" in str(said)
        evaluation(server)


@pytest.mark.parametrize(
    ("config", "more", "why"),
    [
        (config_of(), {"noise": InsecureNoise(0)}, "test source"),
        (config_of(z=0.0), {}, "without noise"),
        (config_of(z=None, epsilon=math.inf), {}, "without noise"),
        (config_of(z=0.0), {"noise": InsecureNoise(0)}, "test source"),
    ],
    ids=["injected", "z", "epsilon", "both"],
)
def test_a_run_without_private_noise_says_so(config, more, why):
    server = server_of(config, **more)
    for _ in range(2):
        said = server.guarantee()
        assert not said.protected
        assert said.epsilon == said.epsilon_spent == math.inf
        assert str(said).startswith("NOT PROTECTED")
        assert why in said.details()
        assert json.loads(json.dumps(said.to_dict()))["epsilon"] == "inf"
        evaluation(server)


def test_a_run_is_unprotected_for_ever_once_noise_was_injected(url):
    evaluation(server_of(vault=url, noise=InsecureNoise(0)))
    again = server_of(vault=url)
    evaluation(again)
    assert not again.guarantee().protected
    assert "test source" in again.guarantee().details()


# Begun again ----------------------------------------------------------------------------------


def test_a_new_server_replays_what_was_released_and_goes_on(url):
    config = config_of(q=0.4, n_regions=3)
    first = server_of(config, vault=url)
    assert [evaluation(first, v) for v in (1.0, 2.0)] == [1, 2]
    first.connect(1).submit(np.ones(M))  # of a round that is lost with its server
    second = server_of(config, vault=url)
    assert same(second.broadcasts(), first.broadcasts())
    assert second.connect(0).collect(1) is not None
    assert second.connect(0).collect(3) is None
    assert [evaluation(second), evaluation(second)] == [3, None]
    third = server_of(config, vault=url)
    assert third.finished
    assert same(third.broadcasts(), second.broadcasts())
    assert [b.round for b in third.broadcasts()] == [1, 2, 3]
    assert [c.key for c in third.ledger()] == ["1", "2", "3"]
    assert third.guarantee().n_released == 3


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5])
def test_what_was_spent_is_what_the_ledger_says(factor, tmp_path, monkeypatch):
    """As if another version of a library found another noise multiplier for the same budget."""
    url = f"sqlite:///{tmp_path / 'server.db'}"
    settings = {"n_agents": 1, "n_rounds": 3}
    server = FederatedServer(budgeted(**settings), vault=url)
    for _ in range(2):
        server.connect(0).submit(np.ones(M))
    usual = config_module.calibrate

    def other(**budget):
        return usual(**budget) * factor

    guarantee = FederatedServer(budgeted(**settings), vault=url).guarantee()
    mu = math.hypot(*(charge.mu for charge in server.ledger()))
    assert guarantee.epsilon_spent == pytest.approx(gdp_epsilon(mu, 1e-2), rel=1e-6)
    monkeypatch.setattr(config_module, "calibrate", other)
    with pytest.raises(ValueError, match="noise multiplier that this version"):
        FederatedServer(budgeted(**settings), vault=url)


@pytest.mark.parametrize(
    "changed",
    [
        {"n_rounds": 30}, {"z": 0.9}, {"q": 0.5}, {"clipping_norm": 21.0}, {"n_agents": 4},
        {"delta": 1e-3}, {"z": None, "epsilon": 5.0},
    ],
    ids=str,
)  # fmt: skip
def test_other_settings_are_refused(url, changed):
    evaluation(server_of(vault=url))
    with pytest.raises(ValueError, match="with other settings"):
        server_of(config_of(**changed), vault=url)
    other = server_of(config_of(**changed), vault=url, run_name="another")
    assert other.broadcasts() == []
    assert len(server_of(vault=url).broadcasts()) == 1


def test_two_servers_over_one_vault_release_each_round_once(url):
    one, two = server_of(vault=url), server_of(vault=url)
    assert [evaluation(one, 1.0), evaluation(one, 1.0)] == [1, 2]
    assert evaluation(two, -1.0) == 1  # what the other has released, and no second draw
    assert same(two.broadcasts(), one.broadcasts()[:1])
    assert [evaluation(two), evaluation(two), evaluation(one)] == [2, 3, 3]
    assert [evaluation(one), evaluation(two)] == [None, None]
    assert same(one.broadcasts(), two.broadcasts())
    assert [c.key for c in one.ledger()] == ["1", "2", "3"]


def test_two_servers_that_close_at_the_same_time_release_each_round_once(url):
    servers = [server_of(config_of(n_agents=1, n_rounds=4), vault=url) for _ in range(2)]
    gate = threading.Barrier(2)

    def run(server):
        for _ in range(4):
            gate.wait(30)
            evaluation(server)

    assert in_threads(2, lambda i: run(servers[i])) == []
    assert same(*(s.broadcasts() for s in servers))
    assert len(servers[0].ledger()) == len(servers[0].broadcasts()) == 4


# A vault that fails ---------------------------------------------------------------------------


@pytest.fixture(params=["charge", "draw", "release"])
def broken(request, monkeypatch):
    """The disk is full while the list holds True: after the charge, while drawing, or after it."""
    full, name = [True], request.param

    def failing(call):
        def refused(*args):
            made = call(*args)
            if full[0]:
                raise sqlite3.OperationalError(f"database or disk is full: {SECRET} of {args}")
            return made

        return refused

    if name == "draw":  # by what is given the exact sum
        make = noise_module._measurement
        monkeypatch.setattr(noise_module, "_measurement", lambda *how: failing(make(*how)))
    else:
        monkeypatch.setattr(Transaction, name, failing(getattr(Transaction, name)))
    return full


def test_what_fails_while_a_round_is_released_publishes_nothing(broken):
    server = server_of()
    links = [server.connect(n) for n in range(3)]
    for n in range(2):
        links[n].submit(np.full(M, SECRET))
    with pytest.raises(FederationError, match="Round 1 was not released") as refusal:
        links[2].submit(np.full(M, SECRET))
    assert str(SECRET)[:6] not in str(refusal.value)
    # Their frames would hold the sum.
    assert (refusal.value.__cause__, refusal.value.__context__) == (None, None)

    def waits(n):
        with pytest.raises(FederationError, match="Nothing was published"):
            links[n].collect(1)
        assert links[n].broadcasts() == []

    assert in_threads(3, waits) == []
    assert server.ledger() == []
    assert server.guarantee().n_released == 0
    broken[0] = False
    server.close_round()
    assert len(server.broadcasts()) == len(server.ledger()) == 1
    assert all(link.collect(1) is server.broadcasts()[0] for link in links)
    assert evaluation(server) == 2


# Crashes --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "how"),
    [("open", "kill"), ("drawn", "kill"), ("stored", "exit"), ("committed", "kill")],
)
def test_a_server_that_is_killed_has_released_each_round_at_most_once(url, place, how):
    """Before the second round closes, inside its transaction, and after it was committed."""
    assert children(crash, (url, place, how)) == [-signal.SIGKILL if how == "kill" else 7]
    server = server_of(vault=url)
    released = 2 if place == "committed" else 1
    before = server.broadcasts()
    assert [b.round for b in before] == list(range(1, released + 1))
    assert len(server.ledger()) == released
    rest = [evaluation(server) for _ in range(4 - released)]
    assert rest == [*range(released + 1, 4), None]
    assert same(server.broadcasts()[:released], before)
    assert [c.key for c in server.ledger()] == ["1", "2", "3"]
    assert same(server_of(vault=url).broadcasts(), server.broadcasts())
    assert server.guarantee().protected
